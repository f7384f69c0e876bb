"""The server of the app: runs FedCG, logs the result, saves the model; or predicts with one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.checkpoint import load_arrays, save_arrays
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
    timeout = float(config["timeout"])
    if config["predict"]:
        arrays, meta = load_arrays(Path(config["predict"]))
        more = {name: config[name.replace("_", "-")] for name in ("allow_single", "attempts")}
        strategy = FedCG.of_model(meta, node_timeout=float(config["node-timeout"]), **more)
        strategy.predict(grid, arrays, meta, timeout=timeout)
    else:
        strategy = make_strategy(config)
        strategy.start(grid=grid, num_rounds=config["num-rounds"], timeout=timeout)
    report(strategy)
    if config["model"] and not config["predict"]:
        save_arrays(Path(config["model"]), *strategy.model())
        logger.info("model saved: %s", config["model"])


def report(strategy: FedCG) -> None:
    """Log whose rows took part, how good the model is, what it cost and what the server saw."""
    matched, ledger = strategy.plan_.report(), strategy.ledger_
    for hospital, facts in matched["hospitals"].items():
        logger.info("hospital at partition %s: %s", hospital, facts)
    for block, holders in matched["blocks"].items():
        logger.info("block %s: held by partitions %s", block, holders)
    for name, value in strategy.metrics_.items():
        logger.info("%s: %.6g", name, value)
    for seen in strategy.privacy()["server_sees"]:
        logger.info("the server saw: %s", seen)
    logger.info("exchanges: %d in %.1f s", ledger.exchanges, ledger.seconds)
    for partition, reasons in ledger.failures.items():
        logger.warning("partition %s: %s", partition, reasons)
