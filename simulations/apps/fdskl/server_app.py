"""The server of the app: runs FDSKL, logs the result, saves the model; or predicts with one."""

from __future__ import annotations

import logging
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.model_file import load_model, save_model
from fedkern_flwr.reporting import errors_reported, log_result, write_result
from fedkern_flwr.strategies import FDSKL

app = ServerApp()
logger = logging.getLogger("flwr")  # what `flwr log` shows


def make_strategy(config: dict[str, Any]) -> FDSKL:
    """Build the strategy from the options of ``[tool.flwr.app.config]``."""
    return FDSKL(
        schedule=config["schedule"],
        features=config["features"] or None,
        directions=config["directions"] or None,
        batch=config["batch"] or None,
        step=float(config["step"]) or None,
        step_schedule=config["step-schedule"] or None,
        evaluate_every=config["evaluate-every"] or None,
        checkpoint_every=config["checkpoint-every"],
        loss=config["loss"] or None,
        kernel=config["kernel"],
        gamma=float(config["gamma"]) or None,
        regularization=float(config["regularization"]) or None,
        frequencies=config["frequencies"],
        phase_bits=config["phase-bits"],
        topology=config["topology"],
        missing=config["missing"],
        allow_single=config["allow-single"],
        attempts=config["attempts"],
        seed=config["seed"],
        node_timeout=float(config["node-timeout"]),
        checkpoint=config["checkpoint"] or None,
        resume=config["resume"],
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Fit the model; or, if one is named, have the active parties predict with it."""
    config: dict[str, Any] = context.run_config
    with errors_reported(config["result"]):
        strategy = (predict if config["predict"] else fit)(grid, config)
        log_result(strategy.result())
        write_result(config["result"], strategy.result())


def fit(grid: Grid, config: dict[str, Any]) -> FDSKL:
    """Fit a model and save it."""
    strategy = make_strategy(config)
    strategy.start(grid=grid, num_rounds=config["num-rounds"], timeout=float(config["timeout"]))
    if config["model"]:
        save_model(config["model"], strategy.method, *strategy.model())
        logger.info("model saved: %s", config["model"])
    return strategy


def predict(grid: Grid, config: dict[str, Any]) -> FDSKL:
    """Have the active parties predict their held-out rows with a saved model."""
    _, meta = load_model(config["predict"], FDSKL.method)
    strategy = FDSKL.of_model(
        meta,
        node_timeout=float(config["node-timeout"]),
        allow_single=config["allow-single"],
        attempts=config["attempts"],
    )
    strategy.predict(grid, meta, timeout=float(config["timeout"]))
    return strategy
