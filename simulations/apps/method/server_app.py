"""The server of the app: runs the method that the run names, logs the result, saves the model."""

from __future__ import annotations

import json
import logging
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.errors import OptionError
from fedkern_flwr.method import Method
from fedkern_flwr.model_file import save_model
from fedkern_flwr.registered import find_method
from fedkern_flwr.reporting import errors_reported, log_result, write_result

app = ServerApp()
logger = logging.getLogger("flwr")  # what `flwr log` shows


def make_strategy(config: dict[str, Any]) -> Method:
    """Build the method from ``[tool.flwr.app.config]``."""
    try:
        options = dict(json.loads(config["options"]))
    except ValueError:
        raise OptionError(
            "options is no JSON object", remedy="""write options = '{"components": 3}'"""
        ) from None
    common = {
        "seed": config["seed"],
        "min_clients": config["min-clients"],
        "node_timeout": float(config["node-timeout"]),
        "checkpoint": config["checkpoint"] or None,
        "resume": config["resume"],
    }
    return find_method(config["method"])(**{**common, **options})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the method and save its model."""
    config: dict[str, Any] = context.run_config
    with errors_reported(config["result"]):
        strategy = make_strategy(config)
        strategy.start(grid=grid, num_rounds=config["num-rounds"], timeout=float(config["timeout"]))
        if config["model"]:
            save_model(config["model"], strategy.method, *strategy.model())
            logger.info("model saved: %s", config["model"])
        log_result(strategy.result())
        write_result(config["result"], strategy.result())
