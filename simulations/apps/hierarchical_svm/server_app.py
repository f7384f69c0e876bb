"""The server of the app: runs HierarchicalSVM, logs the result, saves the model; or predicts."""

from __future__ import annotations

import logging
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.errors import OptionError
from fedkern_flwr.model_file import load_model, save_model
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
    """Fit the model; or, if one is named, have held-out rows predicted with it."""
    config: dict[str, Any] = context.run_config
    with errors_reported(config["result"]):
        strategy = (predict if config["predict"] else fit)(grid, config)
        log_result(strategy.result())
        write_result(config["result"], strategy.result())


def fit(grid: Grid, config: dict[str, Any]) -> HierarchicalSVM:
    """Fit a model, judge it on held-out rows, save it."""
    strategy = make_strategy(config)
    strategy.start(grid=grid, num_rounds=config["num-rounds"], timeout=float(config["timeout"]))
    if config["saved-model"]:
        save_model(config["saved-model"], strategy.method, *strategy.model())
        logger.info("model saved: %s", config["saved-model"])
    return strategy


def predict(grid: Grid, config: dict[str, Any]) -> HierarchicalSVM:
    """Have users or label owner predict their held-out rows with a saved model."""
    arrays, meta = load_model(config["predict"], HierarchicalSVM.method)
    strategy = HierarchicalSVM.of_model(
        meta,
        missing=config["missing"],
        allow_single=config["allow-single"],
        attempts=config["attempts"],
        node_timeout=float(config["node-timeout"]),
    )
    if strategy.partition != config["partition"]:  # by which nodes read their tables
        raise OptionError(
            f"the model is one of a {strategy.partition} split",
            remedy=f'add partition="{strategy.partition}" to --run-config',
        )
    strategy.predict(grid, arrays, meta, timeout=float(config["timeout"]))
    return strategy
