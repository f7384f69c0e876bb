"""The server of the app: runs FDSKL, logs the result, saves the model; or predicts with one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.checkpoint import load_arrays, save_arrays
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
    timeout = float(config["timeout"])
    if config["predict"]:
        _, meta = load_arrays(Path(config["predict"]))
        more = {name: config[name.replace("_", "-")] for name in ("allow_single", "attempts")}
        strategy = FDSKL.of_model(meta, node_timeout=float(config["node-timeout"]), **more)
        strategy.predict(grid, meta, timeout=timeout)
    else:
        strategy = make_strategy(config)
        strategy.start(grid=grid, num_rounds=config["num-rounds"], timeout=timeout)
    report(strategy)
    if config["model"] and not config["predict"]:
        save_arrays(Path(config["model"]), *strategy.model())
        logger.info("model saved: %s", config["model"])


def report(strategy: FDSKL) -> None:
    """Log whose rows took part, how good the model is, what it cost and what the server saw."""
    matched, ledger = strategy.plan_.report(), strategy.ledger_
    for active, facts in matched["active_parties"].items():
        logger.info("active party at partition %s: %s", active, facts)
    logger.info("passive parties: partitions %s", matched["passive_parties"])
    if matched["dropped_rows"]:
        logger.info("rows left out, a party lacks them: %d", matched["dropped_rows"])
    for row in strategy.history_[:-1]:
        logger.info("iteration %d: %s", row["round"], row)
    for name, value in strategy.metrics_.items():
        logger.info("%s: %.6g", name, value)
    for seen in strategy.privacy()["server_sees"]:
        logger.info("the server saw: %s", seen)
    logger.info("exchanges: %d in %.1f s", ledger.exchanges, ledger.seconds)
    for partition, reasons in ledger.failures.items():
        logger.warning("partition %s: %s", partition, reasons)
