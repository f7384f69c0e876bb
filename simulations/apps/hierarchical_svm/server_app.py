"""The server of the app: runs HierarchicalSVM, logs the result, saves the model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.checkpoint import save_arrays
from fedkern_flwr.errors import OptionError
from fedkern_flwr.strategies import HierarchicalSVM

app = ServerApp()
logger = logging.getLogger("flwr")  # what `flwr log` shows


def make_strategy(config: dict[str, Any]) -> HierarchicalSVM:
    """Build the strategy from the options of ``[tool.flwr.app.config]``."""
    return HierarchicalSVM(
        partition=config["partition"],
        model=config["model"],
        architecture=config["architecture"],
        consensus=config["consensus"],
        C=float(config["C"]),
        tolerance=float(config["tolerance"]) or None,
        rho=float(config["rho"]) or None,
        sigma=float(config["sigma"]) or None,
        rho_schedule=config["rho-schedule"] or None,
        relaxation=float(config["relaxation"]) or None,
        step_sizes=read_numbers(config["step-sizes"]),
        scale=config["scale"],
        features=config["features"] or None,
        gamma=float(config["gamma"]) or None,
        agent_topology=config["agent-topology"],
        product=config["product"],
        staleness=config["staleness"],
        lost_groups=config["lost-groups"] or None,
        missing=config["missing"],
        bound=float(config["bound"]),
        allow_single=config["allow-single"],
        attempts=config["attempts"],
        checkpoint_every=config["checkpoint-every"],
        seed=config["seed"],
        node_timeout=float(config["node-timeout"]),
        checkpoint=config["checkpoint"] or None,
        resume=config["resume"],
    )


def read_numbers(text: str) -> list[float] | None:
    """Read numbers separated by commas; None if there are none."""
    try:
        return [float(number) for number in text.split(",")] if text else None
    except ValueError:
        raise OptionError(
            f"step-sizes is {text!r}", remedy="write numbers separated by commas"
        ) from None


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Fit the model and judge it on held-out rows."""
    config: dict[str, Any] = context.run_config
    strategy = make_strategy(config)
    strategy.start(grid=grid, num_rounds=config["num-rounds"], timeout=float(config["timeout"]))
    report(strategy)
    if config["saved-model"]:
        save_arrays(Path(config["saved-model"]), *strategy.model())
        logger.info("model saved: %s", config["saved-model"])


def report(strategy: HierarchicalSVM) -> None:
    """Log who took part, how good the model is, what it cost and what the server saw."""
    for group in strategy.groups_:
        logger.info("group %d: %d users, agent %d", group.number, len(group.users), group.agent)
    if strategy.row_plan_.dropped:
        logger.info("rows left out, a group lacks them: %d", strategy.row_plan_.dropped)
    for row in strategy.history_[:: max(1, len(strategy.history_) // 10)]:
        logger.info("iteration %d: %s", row["round"], row)
    for name, value in strategy.metrics_.items():
        logger.info("%s: %.6g", name, value)
    for seen in strategy.privacy()["server_sees"]:
        logger.info("the server saw: %s", seen)
    logger.info("exchanges: %d in %.1f s", strategy.ledger_.exchanges, strategy.ledger_.seconds)
    for partition, reasons in strategy.ledger_.failures.items():
        logger.warning("partition %s: %s", partition, reasons)
