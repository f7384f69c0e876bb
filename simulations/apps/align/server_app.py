"""The server of the app: relays sealed lists, counts common rows, logs and writes the counts."""

from __future__ import annotations

from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.reporting import errors_reported, log_result, write_result
from fedkern_flwr.strategies import AlignIds

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Let the parties agree on tags."""
    config: dict[str, Any] = context.run_config
    with errors_reported(config["result"]):
        strategy = AlignIds(attempts=config["attempts"], node_timeout=float(config["node-timeout"]))
        strategy.start(grid=grid, timeout=float(config["timeout"]))
        log_result(strategy.result())
        write_result(config["result"], strategy.result())
