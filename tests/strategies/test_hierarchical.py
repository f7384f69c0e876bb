"""HierarchicalSVM against pooled data and against plain loops of what the documents say."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import SVC

from fedkern_flwr.clients import SVMClient
from fedkern_flwr.errors import FedKernError, ProtocolError
from fedkern_flwr.groups.linear_model import model_rows, outputs
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Transcript
from fedkern_flwr.strategies import HierarchicalSVM

KEY = b"a secret of the data's owners"
Array = np.ndarray
Nodes = tuple[Callable[[Context], SVMClient], int]
Table = dict[str, Any]


@pytest.fixture(autouse=True)
def _same_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkern_flwr.strategy.secrets.token_hex", lambda n: "5e" * n)


# -- data and nodes


def blobs(n: int = 90, d: int = 4, seed: int = 0) -> tuple[Array, Array]:
    """Return two classes that overlap, in columns of different units, not centred."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.4, 1.0, -1.0)
    x = rng.standard_normal((n, d)) + 0.7 * y[:, None] * (np.arange(d) < 3)
    return x * np.geomspace(0.3, 6.0, d) + np.arange(d), y


def cancer(n: int = 569, d: int = 6) -> tuple[Array, Array]:
    x, y = load_breast_cancer(return_X_y=True)
    return x[:n, :d], 2.0 * y[:n] - 1.0


def deal(rows: int, users: int, seed: int = 1) -> list[Array]:
    return np.array_split(np.random.default_rng(seed).permutation(rows), users)


def serve(tables: Sequence[Table]) -> Nodes:
    def client_fn(context: Context) -> SVMClient:
        return SVMClient(context, **tables[int(context.node_config["partition-id"])])

    return client_fn, len(tables)


def horizontal(
    x: Array, y: Array, sizes: Sequence[int], *, agents: bool = True, tests: int = 0, **common: Any
) -> Nodes:
    """Deal rows to groups of so many users; the last rows are held out, at everybody in turn."""
    users, tables = sum(sizes), list[Table]()
    parts, held = deal(len(x) - tests, users), np.arange(len(x) - tests, len(x))
    common = {"classes": [-1.0, 1.0], **common}
    for k, group in enumerate(np.repeat(np.arange(len(sizes)), sizes).tolist()):
        table = {"x": x[parts[k]], "y": y[parts[k]], "group": group, **common}
        if tests:
            table |= {"x_test": x[held[k::users]], "y_test": y[held[k::users]]}
        tables.append(table)
    tables += [{"role": "agent", "group": i} for i in range(len(sizes)) if agents]
    return serve(tables)


def vertical_tables(
    x: Array, y: Array, groups: int = 2, users: int = 2, *, tests: int = 12, **owner: Any
) -> list[Table]:
    """Deal columns to groups and rows to their users, each in an order of its own."""
    n = len(x)
    ids = np.array([f"person {k}" for k in np.random.default_rng(5).permutation(9 * n)[:n]])
    learn, held, tables = np.arange(n - tests), np.arange(n - tests, n), list[Table]()
    for i, columns in enumerate(np.array_split(np.arange(x.shape[1]), groups)):
        mine, others = deal(len(learn), users, seed=i), deal(tests, users, seed=i)
        for rows, more in zip(mine, others, strict=True):
            table = {"x": x[np.ix_(rows, columns)], "ids": ids[rows], "group": i}
            table |= {"x_test": x[np.ix_(held[more], columns)], "ids_test": ids[held[more]]}
            tables.append({**table, "alignment_key": KEY})
    tables += [{"role": "agent", "group": i} for i in range(groups)]
    order = np.random.default_rng(9).permutation(learn)
    table = {"role": "owner", "y": y[order], "ids": ids[order], "alignment_key": KEY}
    if tests:
        table |= {"y_test": y[held], "ids_test": ids[held]}
    tables.append({**table, "classes": [-1.0, 1.0], **owner})
    return tables


def vertical(x: Array, y: Array, *shape: int, **more: Any) -> Nodes:
    return serve(vertical_tables(x, y, *shape, **more))


def fit(
    nodes: Nodes,
    rounds: int = 200,
    faults: Any = None,
    transcript: Transcript | None = None,
    serialise: bool = False,
    **options: Any,
) -> HierarchicalSVM:
    strategy = HierarchicalSVM(**{"seed": 3, "C": 1.0, **options})
    how: Table = {"faults": faults, "transcript": transcript, "serialise": serialise}
    simulate(strategy, *nodes, num_rounds=rounds, timeout=60.0, **how)
    return strategy


# -- pooled references


def standard(x: Array, rows: Array | None = None) -> Array:
    own = x if rows is None else rows
    return (x - own.mean(0)) / own.std(0)


def value(kind: str, w: Array, b: Array, x: Array, y: Array, c: float) -> float:
    """1/2 |w|^2 + C sum loss, of models (k, d) and targets (n, k)."""
    f = x @ w.T + b
    losses = {
        "linear": lambda: np.maximum(0.0, 1.0 - y * f),
        "logistic": lambda: np.logaddexp(0.0, -y * f),
        "ridge": lambda: 0.5 * (y - f) ** 2,
    }[kind]()
    return float(0.5 * (w**2).sum() + c * losses.sum())


def pooled(
    kind: str, x: Array, y: Array, c: float = 1.0, tol: float = 1e-9
) -> tuple[float, Array, Array]:
    """Return objective, weights (k, d) and biases (k,) of scikit-learn's optimum."""
    y = y.reshape(len(y), -1)
    weights, bias = [], []
    for target in y.T:
        if kind == "linear":
            found = SVC(kernel="linear", C=c, tol=tol).fit(x, target)
        elif kind == "logistic":
            found = LogisticRegression(C=c, tol=1e-10, max_iter=10_000, solver="newton-cholesky")
            found.fit(x, target)
        else:
            found = Ridge(alpha=1.0 / c).fit(x, target)
        weights.append(np.ravel(found.coef_))
        bias.append(float(np.ravel(found.intercept_)[0]))
    w, b = np.array(weights), np.array(bias)
    return value(kind, w, b, x, y, c), w, b


# -- a plain solver of local problems, and plain loops


def local_hinge(x: Array, y: Array, v: Array, penalty: Array, c: float) -> Array:
    """argmin C sum hinge + 1/2 (w - v)^T diag(penalty) (w - v): interior point on the dual box."""
    scale = np.sqrt(1.0 / penalty)
    z, b = y[:, None] * x * scale, 1.0 - y * (x @ v)
    q, a = z @ z.T, np.full(len(y), c / 2.0)
    low, high = np.ones(len(y)), np.ones(len(y))
    for _ in range(100):
        gap = float(low @ a + high @ (c - a))
        rest = q @ a - b - low + high
        if gap < 1e-15 * c * len(y) and np.abs(rest).max() < 1e-13 * (1.0 + np.abs(b).max()):
            break
        mu = 0.1 * gap / (2 * len(y))
        right = -(q @ a - b) + mu / a - mu / (c - a)
        da = np.linalg.solve(q + np.diag(low / a + high / (c - a)), right)
        dlow = mu / a - low - low / a * da
        dhigh = mu / (c - a) - high + high / (c - a) * da
        pairs = [(a, da), (c - a, -da), (low, dlow), (high, dhigh)]
        step = min(1.0, 0.99 / max(1e-300, *(float((-d / p).max()) for p, d in pairs)))
        a, low, high = a + step * da, low + step * dlow, high + step * dhigh
    return v + scale * (z.T @ a)


def augment(x: Array, y: Array, users: int) -> tuple[list[Array], list[Array]]:
    """Return users' rows in standardised coordinates with a constant column, and their labels."""
    rows = np.column_stack([standard(x), np.ones(len(x))])
    parts = deal(len(x), users)
    return [rows[p] for p in parts], [y[p] for p in parts]


def rise(t: int) -> float:
    return 20.0 ** (min(t, 40) / 40)


def plain_admm(
    x: Array,
    y: Array,
    sizes: Sequence[int],
    iterations: int,
    *,
    c: float = 1.0,
    a: float = 1.7,
    first: Sequence[float] | None = None,
    sigma: float | None = None,
    grow: Callable[[int], float] = rise,
    q: Array | None = None,
) -> list[Array]:
    """Two-block ADMM as the module docstring of consensus.py has it; return z of each iteration."""
    users, d = sum(sizes), x.shape[1] + 1
    xs, ys = augment(x, y, users)
    group = np.repeat(np.arange(len(sizes)), sizes)
    first = [c] * len(sizes) if first is None else list(first)
    q = np.append(np.ones(d - 1), 0.0) if q is None else q
    zi, s = np.zeros((len(sizes), d)), np.zeros((len(sizes), d))
    r, z, out = np.zeros((users, d)), np.zeros(d), []
    for t in range(iterations):
        sig, nxt = (
            float(np.mean(first)) * grow(u) * users / len(sizes) if sigma is None else sigma
            for u in (t, t + 1)
        )
        before, h = zi.copy(), np.zeros((users, d))
        rho = [p * grow(t) for p in first]
        for j, i in enumerate(group):
            w = local_hinge(xs[j], ys[j], before[i] - r[j], np.full(d, rho[i]), c)
            h[j] = a * w + (1 - a) * before[i]
        for i in range(len(sizes)):
            mine = group == i
            hi = a * z + (1 - a) * before[i]
            top = rho[i] * (h[mine] + r[mine]).sum(0) + sig * (hi - s[i])
            zi[i] = top / (rho[i] * mine.sum() + sig)
            r[mine] += h[mine] - zi[i]
            s[i] += zi[i] - hi
        r *= grow(t) / grow(t + 1)
        s *= sig / nxt
        z = nxt * (zi + s).sum(0) / (nxt * len(sizes) + q)
        out.append(z)
    return out


def traced(strategy: HierarchicalSVM) -> list[Array]:
    """Return the global model after each iteration of one output."""
    return [z[0] for _, t, z in strategy.trace_ if t > 0]


def check_trace(strategy: HierarchicalSVM, right: Sequence[Array], atol: float = 1e-7) -> None:
    found = traced(strategy)
    assert len(found) == len(right)
    for k, (one, other) in enumerate(zip(found, right, strict=True)):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=f"iteration {k + 1}")
    assert np.linalg.norm(right[-1]) > 0.1


SIZES = {"1": [4], "2": [2, 3], "5": [2, 2, 3, 2, 2], "13": [2] * 13}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_each_iteration_is_that_of_the_plain_admm(sizes: list[int]) -> None:
    x, y = blobs(26 * 5)
    iterations = 6 if len(sizes) > 5 else 12
    strategy = fit(horizontal(x, y, sizes), iterations, tolerance=1e-12)
    check_trace(strategy, plain_admm(x, y, sizes, iterations))
    assert [row["round"] for row in strategy.history_] == list(range(1, iterations + 1))


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({"C": 0.3}, {"c": 0.3}),
        ({"relaxation": 1.0}, {"a": 1.0}),
        ({"rho": 2.5}, {"first": [2.5] * 3, "grow": lambda t: 1.0}),
        ({"step_sizes": (0.5, 2.0, 1.0)}, {"first": [0.5, 2.0, 1.0], "grow": lambda t: 1.0}),
        ({"step_sizes": (0.5, 2, 1), "rho_schedule": "rising"}, {"first": [0.5, 2.0, 1.0]}),
        ({"sigma": 0.7}, {"sigma": 0.7}),
        ({"rho_schedule": "fixed", "C": 2.0}, {"c": 2.0, "first": [6.0] * 3, "grow": lambda t: 1}),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_options_enter_the_iterations_as_documented(options: Table, plain: Table) -> None:
    x, y = blobs(70)
    sizes = [2, 3, 2]
    strategy = fit(horizontal(x, y, sizes), 8, tolerance=1e-12, **options)
    check_trace(strategy, plain_admm(x, y, sizes, 8, **plain))


def test_columns_as_they_are_have_another_penalty_in_the_same_coordinates() -> None:
    x, y = blobs(70)
    q = np.append(x.std(0) ** -2.0, 0.0)
    strategy = fit(horizontal(x, y, [3, 2]), 8, scale="none", tolerance=1e-12)
    check_trace(strategy, plain_admm(x, y, [3, 2], 8, q=q))


def test_balanced_penalties_change_and_reach_the_same_optimum() -> None:
    x, y = blobs()
    strategy = fit(horizontal(x, y, [2, 2]), 75, rho_schedule="balanced", rho=0.02, tolerance=1e-9)
    rhos = [row["rho"] for row in strategy.history_]
    assert max(rhos) > 2 * rhos[0]
    steps = np.array(rhos[1:]) / rhos[:-1]
    assert steps.max() <= 2.0 + 1e-12
    assert len(set(rhos[65:])) <= 1
    best = pooled("linear", standard(x), y)[0]
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=1e-3)


# -- the pooled optimum


@pytest.mark.parametrize(
    "sizes", [[2], [2, 2], [2] * 5, pytest.param([2] * 13, marks=pytest.mark.long)], ids=len
)
def test_the_pooled_svm_is_reached_for_any_number_of_groups(sizes: list[int]) -> None:
    x, y = cancer()
    strategy = fit(horizontal(x[:469], y[:469], sizes), 60)
    best, w, b = pooled("linear", standard(x[:469]), y[:469])
    objective = strategy.metrics_["objective"]
    assert best * (1 - 1e-7) <= objective <= best * (1 + 1e-3)
    arrays, meta = strategy.model()
    f = outputs(arrays, meta, x)[:, 0]
    model = standardised_model(arrays, x[:469])
    found = value("linear", *model, standard(x[:469]), y[:469, None], 1.0)
    assert found == pytest.approx(objective, rel=1e-7)
    theirs = standard(x, x[:469]) @ w[0] + b[0]
    clear = np.abs(theirs) > 0.02
    np.testing.assert_array_equal(np.sign(f)[clear], np.sign(theirs)[clear])
    assert clear.mean() > 0.9


def standardised_model(arrays: Table, x: Array) -> tuple[Array, Array]:
    return arrays["weights"] * x.std(0), arrays["bias"] + arrays["weights"] @ x.mean(0)


KINDS = {
    "hinge, standard": ("linear", "standard", 1.0),
    "hinge, as they are": ("linear", "none", 0.5),
    "logistic": ("logistic", "standard", 2.0),
    "logistic, as they are": ("logistic", "none", 1.0),
    "ridge, classes": ("ridge", "standard", 0.1),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_model_is_that_of_the_pooled_rows(name: str) -> None:
    kind, scale, c = KINDS[name]
    x, y = blobs(60)
    z = standard(x) if scale == "standard" else x
    strategy = fit(horizontal(x, y, [2, 2]), model=kind, scale=scale, C=c, tolerance=4e-3)
    best, w, b = pooled(kind, z, y, c)
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=1e-3)
    assert strategy.metrics_["objective"] >= best * (1 - 1e-7)
    arrays, meta = strategy.model()
    gap = outputs(arrays, meta, x)[:, 0] - (z @ w[0] + b[0])
    assert np.abs(gap).max() < 0.05 * np.abs(z @ w[0] + b[0]).max()


_VERTICAL: Table = {"partition": "vertical"}
SPLITS: dict[str, tuple[Callable[..., Nodes], Table]] = {
    "rows": (lambda x, y, **more: horizontal(x, y, [2, 2], **more), {}),
    "columns": (vertical, _VERTICAL),
}


@pytest.mark.parametrize("split", SPLITS)
def test_ridge_regression_of_several_targets(split: str) -> None:
    deal_out, options = SPLITS[split]
    x, _ = blobs()
    rng = np.random.default_rng(0)
    y = standard(x) @ rng.standard_normal((4, 2)) + rng.standard_normal((90, 2)) + [1.0, -2.0]
    nodes = deal_out(x, y, classes=None, label_bound=20.0, tests=10)
    strategy = fit(nodes, model="ridge", tolerance=1e-5 if split == "rows" else 1e-8, **options)
    z = standard(x, x[:80])
    best, w, b = pooled("ridge", z[:80], y[:80])
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=1e-7)
    errors = np.sqrt(((z @ w.T + b - y)[80:] ** 2).mean())
    assert strategy.metrics_["test_rmse"] == pytest.approx(errors, rel=1e-4)


@pytest.mark.parametrize("split", SPLITS)
def test_three_classes_are_one_against_the_rest(split: str) -> None:
    deal_out, options = SPLITS[split]
    x, labels = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(150)[:100]
    x, labels = x[order], labels[order]
    tight = split == "columns"
    nodes = deal_out(x, labels, classes=[0, 1, 2], tests=20)
    strategy = fit(nodes, 300, tolerance=1e-5 if tight else 4e-3, **options)
    y = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
    z = standard(x, x[:80])
    best, w, b = pooled("linear", z[:80], y[:80])
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=1e-5 if tight else 3e-3)
    theirs = z @ w.T + b
    right = (theirs[80:].argmax(1) == labels[80:]).mean()
    assert strategy.metrics_["test_accuracy"] == pytest.approx(right, abs=0.06)
    if not tight:  # in a vertical split the model stays with the groups
        f = outputs(*strategy.model(), x)
        assert f.shape == (100, 3)
        clear = np.diff(np.sort(theirs), axis=1)[:, -1] > 0.2
        np.testing.assert_array_equal(f.argmax(1)[clear], theirs.argmax(1)[clear])


def rare(n: int = 300) -> tuple[Array, Array]:
    """Return rows of five classes, of which the last has ten."""
    rng = np.random.default_rng(5)
    labels = np.repeat(np.arange(5.0), [n - 190, 120, 40, 20, 10])
    centers = 1.6 * rng.normal(size=(5, 6))
    x = centers[labels.astype(int)] + rng.normal(size=(n, 6))
    order = rng.permutation(n)
    return x[order], labels[order]


def test_rare_classes_are_learned_as_the_pooled_svm_learns_them() -> None:
    """Each class has a penalty and a stop of its own: a total would be that of frequent ones."""
    x, labels = rare()
    strategy = fit(horizontal(x, labels, [2, 2], classes=range(5)), 80)
    assert strategy.metrics_["converged"]  # with one penalty for all it is not in 200
    z, y = standard(x), np.where(labels[:, None] == np.arange(5), 1.0, -1.0)
    arrays, _ = strategy.model()
    w, b = standardised_model(arrays, x)
    for k in range(5):
        found = value("linear", w[k : k + 1], b[k : k + 1], z, y[:, k : k + 1], 1.0)
        # libsvm needs millions of iterations for the digits beyond
        assert found / pooled("linear", z, y[:, k], tol=1e-3)[0] < (1.03 if k < 4 else 1.1)
    _, right, bias = pooled("linear", z, y, tol=1e-3)
    assert ((z @ w.T + b).argmax(1) == (z @ right.T + bias).argmax(1)).mean() > 0.99


@pytest.mark.parametrize(
    ("name", "options"),
    [("linear", {}), ("linear", {"architecture": "centralised"}), ("logistic", {})],
)
def test_balanced_classes_are_those_of_scikit_learn(name: str, options: Table) -> None:
    x, labels = rare(240)
    labels = np.minimum(labels, 2.0)
    sizes = [4] if options.get("architecture") else [2, 2]
    agents = not options.get("architecture")
    nodes = horizontal(x, labels, sizes, classes=range(3), agents=agents)
    more = {"model": name, "class_weight": "balanced", "tolerance": 5e-3, **options}
    strategy = fit(nodes, 150, **more)
    z, y = standard(x), np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
    kinds = {
        "linear": SVC(kernel="linear", tol=1e-9, class_weight="balanced"),
        "logistic": LogisticRegression(tol=1e-10, class_weight="balanced"),
    }
    w, b = standardised_model(strategy.model()[0], x)
    for k in range(3):
        right = kinds[name].fit(z, y[:, k])
        theirs = right.decision_function(z)
        assert np.abs(z @ w[k] + b[k] - theirs).mean() < 0.05 * np.abs(theirs).mean()


def test_one_row_in_sixty_is_found_with_balanced_classes() -> None:
    rng = np.random.default_rng(1)
    y = np.where(np.arange(1200) % 60 == 0, 1.0, -1.0)
    x = rng.normal(size=(1200, 3)) + (y > 0)[:, None]
    found = [
        fit(horizontal(x, y, [2, 2], tests=600), class_weight=own).metrics_["test_recall"]
        for own in (None, "balanced")
    ]
    assert found[0] < 0.2
    assert found[1] > 0.7


@pytest.mark.parametrize("split", SPLITS)
def test_incomes_years_and_seconds_are_columns_as_others(split: str) -> None:
    """Their squares are far beyond the bound of sums; the model is that of standard columns."""
    deal_out, options = SPLITS[split]
    x, y = blobs(90)
    wide = x * [3e5, 20.0, 1e7, 1e-3] + [5e4, 1990.0, 1.7e9, 0.0]
    found = [
        fit(deal_out(own, y, tests=12), 30, model="logistic", **options).metrics_
        for own in (x, wide)
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.parametrize("scale", ["standard", "none"])
def test_rbf_is_the_pooled_svm_of_the_same_random_features(scale: str) -> None:
    x, y = blobs(60)
    nodes = horizontal(standard(x), y, [2, 2])
    strategy = fit(nodes, model="rbf", features=15, gamma=0.3, scale=scale, tolerance=1e-3)
    arrays, meta = strategy.model()
    assert meta["features"] == 15
    features = model_rows(standard(x), 15, 0.3, meta["feature_seed"])
    assert features.shape == (60, 30)
    best, w, b = pooled("linear", features, y)
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=1e-3)
    theirs = features @ w[0] + b[0]
    gap = outputs(arrays, meta, standard(x))[:, 0] - theirs
    assert np.abs(gap).max() < 0.05 * np.abs(theirs).max()


@pytest.mark.parametrize("options", [{}, {"architecture": "centralised"}, {"staleness": 1}])
def test_rbf_converges(options: dict[str, Any]) -> None:
    """Random features vary little: with the penalties of columns it took hundreds of iterations."""
    x, y = blobs(120)
    groups = [6] if options.get("architecture") else [3, 3]
    nodes = horizontal(x, y, groups, **({"agents": False} if len(groups) == 1 else {}))
    strategy = fit(nodes, 70, model="rbf", features=100, tolerance=4e-3, **options)
    assert strategy.metrics_["converged"]
    _, meta = strategy.model()
    features = model_rows(standard(x), 100, 0.25, meta["feature_seed"])
    best, _, _ = pooled("linear", features, y)
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=3e-3)


@pytest.mark.parametrize("split", SPLITS)
def test_iterations_that_were_too_few_are_said_in_one_line(
    split: str, caplog: pytest.LogCaptureFixture
) -> None:
    deal_out, options = SPLITS[split]
    for rounds, tolerance in ((3, 1e-9), (200, 0.05)):
        caplog.clear()
        strategy = fit(deal_out(*blobs(60)), rounds, tolerance=tolerance, **options)
        said = [r.getMessage() for r in caplog.records if "not converged" in r.getMessage()]
        assert len(said) == (not strategy.metrics_["converged"]) == (rounds == 3)
        assert all("after 3 iterations" in s and "--rounds" in s for s in said)


def test_default_width_of_the_kernel_and_other_seeds() -> None:
    x, y = blobs(60)
    models = []
    for seed in (3, 4):
        strategy = fit(horizontal(x, y, [2, 2]), 3, model="rbf", features=5, seed=seed)
        meta = strategy.model()[1]
        assert meta["gamma"] == pytest.approx(1 / 4)
        assert meta["feature_seed"] == seed
        models.append(strategy.coefficients_)
    assert np.abs(models[0] - models[1]).max() > 1e-3


def test_odd_tables_are_learned_from_as_if_pooled() -> None:
    """A constant column, users of one class and of one row, one of them alone in its group."""
    x, y = blobs(40)
    x[:, 1] = 7.0
    cuts = np.split(np.argsort(y), [1, 12, 30])
    groups, common = (0, 0, 0, 1), {"classes": [-1.0, 1.0], "allow_single": True}
    tables: list[Table] = [
        {"x": x[p], "y": y[p], "group": group, **common}
        for p, group in zip(cuts, groups, strict=True)
    ]
    tables += [{"role": "agent", "group": k} for k in (0, 1)]
    strategy = fit(serve(tables), tolerance=1e-2, allow_single=True)
    best = pooled("linear", standard(np.delete(x, 1, axis=1)), y)[0]
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=3e-3)


def test_group_numbers_need_not_follow_each_other() -> None:
    x, y = blobs(60)
    renamed = {0: 7, 1: 3}
    fn, count = horizontal(x, y, [2, 2])

    def client_fn(context: Context) -> SVMClient:
        client = fn(context)
        client.group = renamed[client.group]
        return client

    strategy = fit((client_fn, count), 5, tolerance=1e-12)
    again = fit((fn, count), 5, tolerance=1e-12)
    np.testing.assert_allclose(strategy.coefficients_, again.coefficients_, atol=1e-10)


# -- one layer


def plain_central(x: Array, y: Array, users: int, iterations: int) -> list[Array]:
    d = x.shape[1] + 1
    xs, ys = augment(x, y, users)
    q, z, r, out = np.append(np.ones(d - 1), 0.0), np.zeros(d), np.zeros((users, d)), []
    for t in range(iterations):
        rho = rise(t)
        w = [local_hinge(xs[j], ys[j], z - r[j], np.full(d, rho), 1.0) for j in range(users)]
        h = 1.7 * np.array(w) - 0.7 * z
        z = rho * (h + r).sum(0) / (rho * users + q)
        r = (r + h - z) * rho / rise(t + 1)
        out.append(z)
    return out


def test_one_layer_is_the_plain_consensus_of_users() -> None:
    x, y = blobs()
    nodes = horizontal(x, y, [5], agents=False)
    strategy = fit(nodes, 12, architecture="centralised", tolerance=1e-12)
    check_trace(strategy, plain_central(x, y, 5, 12))
    phases = {"describe", "svm-statistics", "svm-local", "svm-evaluate"}
    assert set(strategy.ledger_.by_phase) == phases
    assert strategy.ledger_.by_phase["svm-local"] == 12


def test_one_layer_and_one_group_have_the_same_fixed_point() -> None:
    x, y = blobs(50)
    one = fit(horizontal(x, y, [2], agents=False), 300, architecture="centralised", tolerance=1e-4)
    two = fit(horizontal(x, y, [2]), 300, tolerance=1e-4)
    best = pooled("linear", standard(x), y)[0]
    assert one.metrics_["objective"] == pytest.approx(best, rel=1e-4)
    assert two.metrics_["objective"] == pytest.approx(best, rel=1e-4)
    np.testing.assert_allclose(one.coefficients_, two.coefficients_, atol=2e-2)


# -- how it is done must not matter


@pytest.mark.parametrize(
    ("split", "options", "each"),
    [
        ("rows", {}, 1),
        ("rows", {"staleness": 2}, 1),
        ("rows", {"lost_groups": "leave-out"}, 1),
        ("columns", {}, 2),
    ],
)
def test_one_exchange_an_iteration_or_two(split: str, options: Table, each: int) -> None:
    nodes = horizontal(*blobs(72), [2, 2, 2]) if split == "rows" else vertical(*blobs(60))
    own = SPLITS[split][1]
    a, b = (fit(nodes, n, tolerance=1e-12, **options, **own) for n in (2, 4))
    assert b.ledger_.exchanges - a.ledger_.exchanges == 2 * each


@pytest.mark.parametrize("other", [{"lost_groups": "leave-out"}, {"staleness": 3}])
def test_groups_that_are_all_there_in_time_have_the_same_models(other: Table) -> None:
    nodes = horizontal(*blobs(72), [2, 2, 2])
    one, two = (fit(nodes, 8, tolerance=1e-12, **options) for options in ({}, other))
    for a, b in zip(traced(one), traced(two), strict=True):
        np.testing.assert_array_equal(a, b)
    assert [row["round"] for row in two.history_] == [row["round"] for row in one.history_]
    if "staleness" not in other:
        assert two.history_ == one.history_
        assert two.metrics_ == one.metrics_


MODES: dict[str, Table] = {
    "pairwise": {},
    "leave-out": {"lost_groups": "leave-out"},
    "asynchronous": {"staleness": 2},
    "centralised": {"architecture": "centralised"},
    "vertical": _VERTICAL,
}


@pytest.mark.parametrize("name", MODES)
def test_serialised_messages_give_identical_results(name: str) -> None:
    (x, y), options = blobs(60), MODES[name]
    nodes = horizontal(x, y, [2, 2, 2], agents="architecture" not in options, tests=6)
    if name == "vertical":
        nodes = vertical(x, y)
    one, two = (fit(nodes, 3, serialise=how, **options) for how in (False, True))
    np.testing.assert_array_equal(one.coefficients_, two.coefficients_)
    assert one.metrics_ == two.metrics_
    assert name == "vertical" or np.abs(one.coefficients_).max() > 0.1


def test_a_run_can_be_repeated_to_the_last_bit_and_reports_progress() -> None:
    x, y = blobs(60)
    strategy = HierarchicalSVM(seed=3)
    seen: list[tuple[int, int]] = []
    strategy.on_round = lambda done, rounds, row: seen.append((done, rounds))
    models = []
    for _ in range(2):
        result = simulate(strategy, *horizontal(x, y, [2, 2]), num_rounds=4)
        models.append(strategy.coefficients_)
        assert set(result.train_metrics_clientapp) == {1, 2, 3, 4}
        weights, bias = result.arrays.to_numpy_ndarrays()
        np.testing.assert_array_equal(weights, strategy.model()[0]["weights"])
        np.testing.assert_array_equal(bias, strategy.model()[0]["bias"])
    np.testing.assert_array_equal(*models)
    assert seen == [(k, 4) for k in range(1, 5)] * 2


# -- vertical splits


@pytest.mark.parametrize("groups", [2, 4])
def test_a_vertical_split_gives_the_pooled_svm(groups: int, tmp_path: Path) -> None:
    x, y = cancer(220, 8)
    nodes = vertical(x, y, groups, 3, tests=20, predictions=tmp_path / "out.csv")
    strategy = fit(nodes, 300, partition="vertical")
    z = standard(x, x[:200])
    best, w, b = pooled("linear", z[:200], y[:200])
    assert best * (1 - 1e-6) <= strategy.metrics_["objective"] <= best * (1 + 1e-3)
    assert strategy.metrics_["converged"]
    f = (z @ w.T + b)[200:, 0]
    clear = np.abs(f) > 0.2
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20
    ids = vertical_tables(x, y, groups, 3, tests=20)[-1]["ids_test"].tolist()
    column = next(name for name in rows[0] if name.startswith("output"))
    found = {row["id"]: float(row[column]) for row in rows}
    ours = np.array([found[name] for name in ids])
    np.testing.assert_array_equal(np.sign(ours)[clear], np.sign(f)[clear])
    accuracy = ((ours > 0) == (y[200:] > 0)).mean()
    assert strategy.metrics_["test_accuracy"] == pytest.approx(accuracy)
    assert clear.sum() > 10


@pytest.mark.parametrize("name", KINDS)
def test_every_model_in_a_vertical_split(name: str) -> None:
    kind, scale, c = KINDS[name]
    x, y = blobs(80)
    z = standard(x, x[:68]) if scale == "standard" else x
    strategy = fit(vertical(x, y), model=kind, scale=scale, C=c, tolerance=1e-6, **_VERTICAL)
    best = pooled(kind, z[:68], y[:68], c)[0]
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=2e-6)


def test_without_held_out_rows_and_with_a_limit_of_iterations() -> None:
    nodes = vertical(*blobs(60), tests=0)
    strategy = fit(nodes, 1, partition="vertical", tolerance=1e-12)
    assert strategy.metrics_["iterations"] == 1
    assert not strategy.metrics_["converged"]
    assert set(strategy.metrics_) == {"objective", "iterations", "converged"}
    x, y = blobs(60)
    assert strategy.metrics_["objective"] > pooled("linear", standard(x), y)[0]


def test_rows_that_a_group_lacks_are_refused_or_left_out() -> None:
    x, y = blobs(60)
    tables = vertical_tables(x, y)
    missing = set(tables[0]["ids"][:5].tolist()) | set(tables[2]["ids_test"][:1].tolist())
    for k, names in ((0, ("x", "ids")), (2, ("x_test", "ids_test"))):
        cut = 5 if k == 0 else 1
        for name in names:
            tables[k][name] = tables[k][name][cut:]
    with pytest.raises(ProtocolError, match="group 0 does not hold 5 of the 60 labelled rows"):
        fit(serve(tables), partition="vertical")
    strategy = fit(serve(tables), partition="vertical", missing="drop-row", tolerance=1e-6)
    assert strategy.row_plan_.dropped == 6
    n = len(x)
    ids = np.array([f"person {k}" for k in np.random.default_rng(5).permutation(9 * n)[:n]])
    keep = ~np.isin(ids[:48], list(missing))
    assert keep.sum() == 43
    best = pooled("linear", standard(x[:48][keep]), y[:48][keep])[0]
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=2e-6)


def test_rows_that_nobody_labelled_do_no_harm() -> None:
    x, y = blobs(60)
    tables = vertical_tables(x, y)
    for k in (0, 2):
        extra = np.full((3, tables[k]["x"].shape[1]), 1e3)
        tables[k]["x"] = np.concatenate([extra, tables[k]["x"]])
        tables[k]["ids"] = np.concatenate([[f"stranger {j}" for j in range(3)], tables[k]["ids"]])
    strategy = fit(serve(tables), partition="vertical", tolerance=1e-6)
    best = pooled("linear", standard(x[:48]), y[:48])[0]
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=2e-6)


def test_the_model_of_a_vertical_split_stays_with_the_groups() -> None:
    strategy = fit(vertical(*blobs(60)), partition="vertical")
    arrays, meta = strategy.model()
    assert arrays == {}
    assert meta["columns"] == 4


# -- nodes that do not fit; more in tests/core/test_groups.py


def altered(k: int, **changes: Any) -> Nodes:
    """Two groups of two users, of which a node is another one."""
    x, y = blobs(60)
    tables: list[Table] = [
        {"x": x[p], "y": y[p], "group": j // 2, "classes": [-1.0, 1.0]}
        for j, p in enumerate(deal(60, 4))
    ]
    tables += [{"role": "agent", "group": j} for j in (0, 1)]
    tables[k] |= changes
    return serve(tables)


def rows(*sizes: int, **more: Any) -> Nodes:
    return horizontal(*blobs(60), sizes, **more)


def columns(k: int, *, owners: int = 1, **changes: Any) -> Nodes:
    """Two groups of columns, of which a node is another one."""
    tables = vertical_tables(*blobs(60))
    tables[k] |= changes
    return serve(tables[:-1] + tables[-1:] * owners)


_NO_AGENT = "group 0 has 0 agents and {} users; give every group one node with role agent"
_ALONE = "partition 4 is an agent, and this architecture has none; leave the agents out"
BAD_NODES: dict[str, tuple[Callable[[], Nodes], Table, str]] = {
    "no users at all": (
        lambda: serve([{"role": "agent", "group": 0}, {"role": "agent", "group": 1}]),
        {},
        "there are no users; start nodes with role user",
    ),
    "groups without agents": (lambda: rows(2, 2, agents=False), {}, _NO_AGENT.format(2)),
    "staleness without agents": (
        lambda: rows(4, agents=False),
        {"staleness": 1},
        _NO_AGENT.format(4),
    ),
    "a budget with agents": (lambda: altered(0), {"privacy_epsilon": 1.0}, _ALONE),
    "no agent": (lambda: altered(4, group=1), {}, _NO_AGENT.format(2)),
    "agents in one layer": (lambda: altered(0), {"architecture": "centralised"}, _ALONE),
    "other classes": (
        lambda: altered(1, classes=[-1.0, 1.0, 3.0]),
        {},
        "partition 1, phase describe: its labels differ from those of partition 0",
    ),
    "regression labels": (
        lambda: rows(2, 2, classes=None),
        {},
        "model linear is for classes, the labels are numbers; use model ridge",
    ),
    "step sizes": (
        lambda: rows(2, 2),
        {"step_sizes": (1, 1, 1)},
        "3 step sizes for 2 groups; give each group one",
    ),
    "two groups of which none may go": (
        lambda: rows(2, 2),
        {"lost_groups": "leave-out"},
        "of 2 groups none can be left out: the total would be that of one; use lost_groups stop",
    ),
    "a single user": (
        lambda: rows(2, 1),
        {},
        "group 1 has one user, partition 2, whose model its agent would see; form larger",
    ),
    "a single user that does not want it": (
        lambda: rows(2, 1),
        {"allow_single": True},
        "partition 2, phase describe: its agent would see its model, and it does not allow that",
    ),
    "no owner": (
        lambda: columns(0, owners=0),
        _VERTICAL,
        "0 nodes have the labels in a vertical split; start one node with role owner",
    ),
    "no ids": (
        lambda: columns(2, ids=None, ids_test=None),
        _VERTICAL,
        "partition 2, phase describe: its rows have no ids to join them by",
    ),
    "another key": (
        lambda: columns(0, alignment_key=bytes(16)),
        _VERTICAL,
        "group 0 does not hold 30 of the 60 labelled rows; check ids",
    ),
    "duplicate ids": (
        lambda: columns(0, ids=["a"] * 24),
        _VERTICAL,
        "23 duplicate ids; keep one row per id",
    ),
    "an owner in a horizontal split": (
        lambda: columns(0),
        {},
        "partition 6, phase describe: it is a label owner, and in a horizontal split",
    ),
    "one class alone": (lambda: columns(6, y=np.ones(48)), _VERTICAL, "one class alone"),
}


@pytest.mark.parametrize("name", BAD_NODES)
def test_nodes_that_do_not_fit_are_refused_in_one_line(name: str) -> None:
    make, options, text = BAD_NODES[name]
    with pytest.raises(FedKernError, match=re.escape(text)) as caught:
        fit(make(), **options)
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)


def test_what_an_agent_and_the_server_see_is_told() -> None:
    for options in ({}, {"partition": "vertical"}, {"staleness": 3}):
        strategy = HierarchicalSVM(**options)
        seen = strategy.privacy()
        assert seen["server_sees"]
        assert seen["user_sees"]
    assert "differ" in str(HierarchicalSVM(lost_groups="leave-out").privacy()["server_sees"])


def test_without_groups_all_users_are_around_the_server() -> None:
    x, y = blobs(60)
    found = {}
    for agents in (False, True):
        for architecture in (None, "hierarchical" if agents else "centralised"):
            nodes = horizontal(x, y, [2, 2] if agents else [4], agents=agents)
            found[agents, architecture] = fit(nodes, 5, architecture=architecture)
    for agents, architecture in found:
        one, other = found[agents, architecture], found[agents, None]
        assert ("svm-combine" in one.ledger_.by_phase) == agents
        np.testing.assert_array_equal(one.coefficients_, other.coefficients_)
