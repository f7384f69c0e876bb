"""Apps of nodes whose replies are averaged, in secure sums or in plain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from identities import known_node

from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.secure_aggregation import SecureAggregation, secure_aggregation_mod

NODES, ROUNDS = 4, 3


class SecureAvg(SecureAggregation, FedAvg):
    pass


def secure(stock: type[Any]) -> type[Any]:
    return type(f"Secure{stock.__name__}", (SecureAggregation, stock), {})


def load(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of different numbers and laws."""
    k = int(context.node_config["partition-id"])
    x = np.random.default_rng(k).standard_normal((20 + 7 * k, 3))
    return x, x @ np.array([1.0, -2.0, 0.5 * k])


def owned(folder: Path, examples: Any = load, mod: Any = None, **policy: Any) -> ClientApp:
    """Return the app of deployed nodes with folders, whose owners have a policy."""

    def answer(message: Message, context: Context) -> Message:
        content = RecordDict({"metrics": MetricRecord({"num-examples": 1.0})})
        content["arrays"] = message.content["arrays"]
        return Message(content, reply_to=message)

    class App(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            context.node_config["simulation"] = False
            about = known_node(folder, int(context.node_config["partition-id"]), NODES)
            about |= {"policy": NodePolicy(**policy), **(mod or {})}
            return secure_aggregation_mod(examples, **about)(message, context, answer)

    return App()
