"""The server of the app: runs FedCG, logs the result, saves the model; or predicts with one."""

from __future__ import annotations

import logging
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.model_file import load_model, save_model
from fedkern_flwr.reporting import errors_reported, log_result, write_result
from fedkern_flwr.strategies import FedCG

app = ServerApp()
logger = logging.getLogger("flwr")  # what `flwr log` shows


def make_strategy(config: dict[str, Any]) -> FedCG:
    """Build the strategy from the options of ``[tool.flwr.app.config]``."""
    rank = config["preconditioner-rank"]
    return FedCG(
        landmarks=config["landmarks"],
        sampling=config["sampling"],
        kernel=config["kernel"],
        gamma=float(config["gamma"]) or None,
        landmark_gamma=config["landmark-gamma"],
        regularization=float(config["regularization"]),
        penalty=config["penalty"],
        protocol=config["protocol"],
        solver=config["solver"],
        preconditioner_rank=None if rank == -1 else rank,
        init=config["init"],
        tolerance=float(config["tolerance"]),
        missing=config["missing"],
        allow_single=config["allow-single"],
        distance_bits=config["distance-bits"],
        attempts=config["attempts"],
        seed=config["seed"],
        node_timeout=float(config["node-timeout"]),
        checkpoint=config["checkpoint"] or None,
        resume=config["resume"],
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Fit the model; or, if one is named, have the hospitals predict with it."""
    config: dict[str, Any] = context.run_config
    with errors_reported(config["result"]):
        strategy = (predict if config["predict"] else fit)(grid, config)
        log_result(strategy.result())
        write_result(config["result"], strategy.result())


def fit(grid: Grid, config: dict[str, Any]) -> FedCG:
    """Fit a model and save it."""
    strategy = make_strategy(config)
    strategy.start(grid=grid, num_rounds=config["num-rounds"], timeout=float(config["timeout"]))
    if config["model"]:
        save_model(config["model"], strategy.method, *strategy.model())
        logger.info("model saved: %s", config["model"])
    return strategy


def predict(grid: Grid, config: dict[str, Any]) -> FedCG:
    """Have the hospitals predict their held-out rows with a saved model."""
    arrays, meta = load_model(config["predict"], FedCG.method)
    strategy = FedCG.of_model(
        meta,
        node_timeout=float(config["node-timeout"]),
        allow_single=config["allow-single"],
        attempts=config["attempts"],
    )
    strategy.predict(grid, arrays, meta, timeout=float(config["timeout"]))
    return strategy
