"""The server of the app: runs HierarchicalSVM, logs the result, saves the model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.checkpoint import save_arrays
from fedkern_flwr.errors import OptionError
from fedkern_flwr.reporting import errors_reported, log_result, write_result
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
    with errors_reported(config["result"]):
        strategy = make_strategy(config)
        strategy.start(grid=grid, num_rounds=config["num-rounds"], timeout=float(config["timeout"]))
        if config["saved-model"]:
            save_arrays(Path(config["saved-model"]), *strategy.model())
            logger.info("model saved: %s", config["saved-model"])
        log_result(strategy.result())
        write_result(config["result"], strategy.result())
