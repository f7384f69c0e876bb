"""The server of the app: runs FedCFK, logs the result, saves the kernel; or recommends with one."""

from __future__ import annotations

import logging
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.errors import OptionError
from fedkern_flwr.model_file import load_model, save_model
from fedkern_flwr.reporting import errors_reported, log_result, write_result
from fedkern_flwr.strategies import FedCFK

app = ServerApp()
logger = logging.getLogger("flwr")  # what `flwr log` shows


def make_strategy(config: dict[str, Any]) -> FedCFK:
    """Build the strategy from the options of ``[tool.flwr.app.config]``."""
    coef0, support = float(config["coef0"]), config["min-support"]
    return FedCFK(
        kernel=config["kernel"],
        degree=config["degree"] or None,
        gamma=float(config["gamma"]) or None,
        coef0=None if coef0 == 1.0 else coef0,
        coefficients=read_numbers(config["coefficients"]) or None,
        regularization=float(config["regularization"]),
        subtract_mean=config["subtract-mean"],
        request=config["request"],
        min_support=None if support == -1 else support,
        cohorts=config["cohorts"],
        merge=config["merge"],
        participation=float(config["participation"]),
        rows_per_item=float(config["rows-per-item"]),
        allow_recovery=config["allow-recovery"] or None,
        drop_outs=read_choice(config["drop-outs"]),
        threshold=config["threshold"] or None,
        min_cohort=config["min-cohort"],
        attempts=config["attempts"],
        seed=config["seed"],
        node_timeout=float(config["node-timeout"]),
        checkpoint=config["checkpoint"] or None,
        resume=config["resume"],
    )


def read_choice(text: str) -> bool | None:
    """Read "on", "off" or "auto"."""
    if text not in ("on", "off", "auto"):
        raise OptionError(f"drop-outs is {text!r}", remedy="use auto, on or off")
    return None if text == "auto" else text == "on"


def read_numbers(text: str) -> tuple[float, ...]:
    """Read numbers separated by commas."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise OptionError(
            "coefficients are not all numbers", remedy='write them as "0, 1, 0.5"'
        ) from None


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Sum the kernel and have the nodes recommend with it; or with one that was saved."""
    config: dict[str, Any] = context.run_config
    with errors_reported(config["result"]):
        strategy = (predict if config["predict"] else fit)(grid, config)
        log_result(strategy.result())
        write_result(config["result"], strategy.result())


def fit(grid: Grid, config: dict[str, Any]) -> FedCFK:
    """Sum a kernel, recommend with it and save it."""
    strategy = make_strategy(config)
    strategy.start(grid=grid, num_rounds=config["num-rounds"], timeout=float(config["timeout"]))
    if config["model"]:
        save_model(config["model"], strategy.method, *strategy.model())
        logger.info("model saved: %s", config["model"])
    return strategy


def predict(grid: Grid, config: dict[str, Any]) -> FedCFK:
    """Have the nodes recommend with a saved kernel."""
    arrays, meta = load_model(config["predict"], FedCFK.method)
    strategy = FedCFK.of_model(
        meta,
        attempts=config["attempts"],
        node_timeout=float(config["node-timeout"]),
    )
    strategy.predict(grid, arrays, meta, timeout=float(config["timeout"]))
    return strategy
