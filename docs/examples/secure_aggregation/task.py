"""The data of a node and a small network, in NumPy."""

import numpy as np

HIDDEN = 8


def load(context):
    """Return the rows that a node trains on, and their labels."""
    x, y = table(context)
    return x[: len(x) * 4 // 5], y[: len(x) * 4 // 5]


def load_test(context):
    """Return the rows that a node holds out, and their labels."""
    x, y = table(context)
    return x[len(x) * 4 // 5 :], y[len(x) * 4 // 5 :]


def table(context):
    """Return all rows of a node: those of its own CSV, or its share of public data."""
    if "data" in context.node_config:
        rows = np.loadtxt(context.node_config["data"], delimiter=",")
        return rows[:, :-1], rows[:, -1]
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    share = slice(context.node_config["partition-id"], None, context.node_config["num-partitions"])
    return ((x - x.mean(axis=0)) / x.std(axis=0))[share], y[share].astype(float)


def initial(columns=30):
    """Return a new network."""
    rng = np.random.default_rng(0)
    return {
        "w1": rng.standard_normal((columns, HIDDEN)) / np.sqrt(columns),
        "b1": np.zeros(HIDDEN),
        "w2": rng.standard_normal(HIDDEN) / np.sqrt(HIDDEN),
        "b2": np.zeros(()),
    }


def outputs(net, x):
    """Return the hidden layer and the probabilities of class 1."""
    hidden = np.tanh(x @ net["w1"] + net["b1"])
    return hidden, 1.0 / (1.0 + np.exp(-(hidden @ net["w2"] + net["b2"])))


def fit(net, x, y, steps=10, rate=0.5):
    """Return the network after some steps of gradient descent, and its loss before the last."""
    for _ in range(steps):
        hidden, p = outputs(net, x)
        error = (p - y) / len(x)
        back = np.outer(error, net["w2"]) * (1.0 - hidden**2)
        slopes = {"w1": x.T @ back, "b1": back.sum(0), "w2": hidden.T @ error, "b2": error.sum()}
        net = {name: np.asarray(net[name] - rate * slopes[name]) for name in net}
    return net, loss(p, y)


def loss(p, y):
    """Return the mean logistic loss."""
    return float(-np.log(np.where(y > 0.5, p, 1.0 - p)).mean())
