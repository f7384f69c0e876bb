"""The server of the app: runs POF-MKL, logs the result, saves the model; or predicts with one."""

from __future__ import annotations

import logging
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.errors import OptionError
from fedkern_flwr.model_file import load_model, save_model
from fedkern_flwr.reporting import errors_reported, log_result, write_result
from fedkern_flwr.strategies import POFMKL

SECURE = {"auto": None, "on": True, "off": False}

app = ServerApp()
logger = logging.getLogger("flwr")  # what `flwr log` shows


def make_strategy(config: dict[str, Any]) -> POFMKL:
    """Build the strategy from the options of ``[tool.flwr.app.config]``."""
    if config["secure"] not in SECURE:
        raise OptionError(f"secure is {config['secure']!r}", remedy="use auto, on or off")
    return POFMKL(
        kernels=config["kernels"],
        kernels_per_round=config["kernels-per-round"] or None,
        features=config["features"],
        exploration=float(config["exploration"]),
        regularization=float(config["regularization"]),
        step_size=config["step-size"],
        samples_per_round=config["samples-per-round"] or "auto",
        seed=config["seed"],
        min_clients=config["min-clients"],
        secure=SECURE[config["secure"]],
        subset=config["subset"],
        threshold=config["threshold"] or None,
        node_timeout=float(config["node-timeout"]),
        checkpoint=config["checkpoint"] or None,
        checkpoint_every=config["checkpoint-every"],
        resume=config["resume"],
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Learn from the streams; or, if a model is named, have the clients predict with it."""
    config: dict[str, Any] = context.run_config
    with errors_reported(config["result"]):
        strategy = (predict if config["predict"] else fit)(grid, config)
        log_result(strategy.result())
        write_result(config["result"], strategy.result())


def fit(grid: Grid, config: dict[str, Any]) -> POFMKL:
    """Run the method and save the model."""
    strategy = make_strategy(config)
    strategy.start(grid=grid, num_rounds=config["num-rounds"], timeout=float(config["timeout"]))
    if config["model"]:
        save_model(config["model"], strategy.method, *strategy.model())
        logger.info("model saved: %s", config["model"])
    return strategy


def predict(grid: Grid, config: dict[str, Any]) -> POFMKL:
    """Have the clients predict their held-out rows with a saved model."""
    arrays, meta = load_model(config["predict"], POFMKL.method)
    strategy = POFMKL.of_model(
        meta,
        threshold=config["threshold"] or None,
        node_timeout=float(config["node-timeout"]),
    )
    strategy.predict(grid, arrays, meta, timeout=float(config["timeout"]))
    return strategy
