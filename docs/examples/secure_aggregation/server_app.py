"""The server: two stock strategies, and one mixin."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg
from task import initial

from fedkern_flwr.secure_aggregation import SecureAggregation


class SecureFedAvg(SecureAggregation, FedAvg):
    """FedAvg of which the server sees means only."""


class SecureFedAdam(SecureAggregation, FedAdam):
    """FedAdam of which the server sees means only."""


STRATEGIES = {"fedavg": SecureFedAvg, "fedadam": SecureFedAdam}
app = ServerApp()


@app.main()
def main(grid, context):
    """Train, and save the model if it is asked for."""
    config = context.run_config
    strategy = STRATEGIES[config["strategy"]](fraction_evaluate=float(config["evaluate"]))
    result = strategy.start(
        grid,
        ArrayRecord({name: Array(value) for name, value in initial().items()}),
        num_rounds=config["num-rounds"],
        timeout=float(config["timeout"]),
    )
    if config["model"]:
        np.savez(config["model"], **{name: a.numpy() for name, a in result.arrays.items()})
