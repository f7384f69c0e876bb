"""The server of the app: has the columns' statistics summed, logs the result."""

from __future__ import annotations

from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.reporting import errors_reported, log_result, write_result
from fedkern_flwr.strategies import ColumnRanges

app = ServerApp()


def make_strategy(config: dict[str, Any]) -> ColumnRanges:
    """Build the strategy from the options of ``[tool.flwr.app.config]``."""
    return ColumnRanges(
        deviations=float(config["deviations"]),
        bound=float(config["bound"]),
        labels=config["labels"],
        clip=config["clip"],
        attempts=config["attempts"],
        min_cohort=config["min-cohort"],
        node_timeout=float(config["node-timeout"]),
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Let the nodes write their ranges."""
    config: dict[str, Any] = context.run_config
    with errors_reported(config["result"]):
        strategy = make_strategy(config)
        strategy.start(grid=grid, timeout=float(config["timeout"]))
        log_result(strategy.result())
        write_result(config["result"], strategy.result())
