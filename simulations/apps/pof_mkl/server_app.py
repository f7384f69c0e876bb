"""The server of the app: runs POF-MKL, logs the result, saves the model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.checkpoint import save_arrays
from fedkern_flwr.errors import OptionError
from fedkern_flwr.strategies import POFMKL

SECURE = {"auto": None, "on": True, "off": False}

app = ServerApp()
logger = logging.getLogger("flwr")  # what `flwr log` shows


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the method with the options of ``[tool.flwr.app.config]``."""
    config: dict[str, Any] = context.run_config
    if config["secure"] not in SECURE:
        raise OptionError(f"secure is {config['secure']!r}", remedy="use auto, on or off")
    strategy = POFMKL(
        kernels=config["kernels"],
        kernels_per_round=config["kernels-per-round"] or None,
        features=config["features"],
        exploration=float(config["exploration"]),
        regularization=float(config["regularization"]),
        step_size=config["step-size"],
        samples_per_round=config["samples-per-round"],
        seed=config["seed"],
        min_clients=config["min-clients"],
        secure=SECURE[config["secure"]],
        subset=config["subset"],
        threshold=config["threshold"] or None,
    )
    strategy.start(grid=grid, num_rounds=config["num-rounds"], timeout=float(config["timeout"]))

    metrics, ledger = strategy.metrics_, strategy.ledger_
    logger.info("mean squared error: %.4g", metrics["mse"])
    logger.info("regret per client: %.4g", metrics["regret_mean"])
    for seen in strategy.privacy()["server_sees"]:
        logger.info("the server saw: %s", seen)
    logger.info("exchanges: %d in %.1f s", ledger.exchanges, ledger.seconds)
    for partition, reasons in ledger.failures.items():
        logger.warning("partition %s: %s", partition, reasons)

    if config["model"]:
        save_arrays(Path(config["model"]), *strategy.model())
        logger.info("model saved: %s", config["model"])
