"""Apps of stock Flower whose sums are secure: least squares, and updates far beyond a clip."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from identities import known_node

from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.secure_aggregation import secure_aggregation_mod

NODES = 4
LENGTH, CLIP, NOISE = 300, 2.0, 1.5
OPTIONS: dict[str, Any] = {"clip": CLIP, "noise_multiplier": NOISE}


def load(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of different numbers and laws."""
    k = int(context.node_config["partition-id"])
    x = np.random.default_rng(k).standard_normal((20 + 7 * k, 3))
    return x, x @ np.array([1.0, -2.0, 0.5 * k])


def initial() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros((3, 1))), "b": Array(np.zeros(()))})


def make_app(
    fails: Any = lambda *_: False, change: Any = lambda *_: None, examples: Any = load, **mod: Any
) -> ClientApp:
    """Return an app of least squares.

    ``fails`` says of a partition and a round of the server whether the app raises; ``change`` may
    spoil what a partition returns.
    """
    app = ClientApp(mods=[secure_aggregation_mod(examples, **{"held_out": examples, **mod})])

    def error(message: Message, context: Context) -> tuple[Any, ...]:
        k = int(context.node_config["partition-id"])
        if fails(k, int(message.content["config"]["server-round"])):
            raise ValueError("private value 4711")
        (x, y), net = load(context), message.content["arrays"]
        return k, x, x @ net["w"].numpy()[:, 0] + net["b"].numpy() - y, net

    def metrics(e: np.ndarray) -> MetricRecord:
        return MetricRecord(
            {"loss": float(e @ e / len(e)), "ends": [e.min(), e.max()], "num-examples": len(e)}
        )

    @app.train()
    def train(message: Message, context: Context) -> Message:
        k, x, e, net = error(message, context)
        w = net["w"].numpy() - 0.1 * (x.T @ e / len(x))[:, None]
        arrays = {"w": Array(w), "b": Array(np.asarray(net["b"].numpy() - 0.1 * e.mean()))}
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics(e)})
        change(k, message.content["config"]["server-round"], content)
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(
            RecordDict({"metrics": metrics(error(message, context)[2])}), reply_to=message
        )

    return app


def update(k: int, length: float = 10.0) -> np.ndarray:
    """Return how a node would move the model."""
    found = np.random.default_rng(k).standard_normal(LENGTH)
    return found * length / float(np.linalg.norm(found))


def noisy_app(change: Any = update, **mod: Any) -> ClientApp:
    """Return an app that moves the model by an update of its own, far beyond the clip."""
    app = ClientApp(mods=[secure_aggregation_mod(load, **{**OPTIONS, **mod})])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        k = int(context.node_config["partition-id"])
        own = [array.numpy() for array in message.content["arrays"].values()]
        moves = np.split(change(k), np.cumsum([one.size for one in own])[:-1])
        moved = [Array(np.asarray(a + m.reshape(a.shape))) for a, m in zip(own, moves, strict=True)]
        record = ArrayRecord(dict(zip(message.content["arrays"], moved, strict=True)))
        metrics = MetricRecord({"loss": 4711.0, "num-examples": 20 + 7 * k})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    return app


def owned(folder: Path, made: Callable[..., ClientApp], **policy: Any) -> ClientApp:
    """Return the app of deployed nodes with folders, whose owners have a policy."""

    class App(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            context.node_config["simulation"] = False
            about = known_node(folder, int(context.node_config["partition-id"]), NODES)
            return made(**about, policy=NodePolicy(**policy))(message, context)

    return App()
