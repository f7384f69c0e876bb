"""Messages per second of the in-process engine: 240 clients, ten numbers there and back."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedkern_flwr.clients.base import PhaseClient
from fedkern_flwr.exchange import exchange, request_messages
from fedkern_flwr.flower_compat import NumPyClient
from fedkern_flwr.ledger import Ledger
from fedkern_flwr.simulations import InProcessGrid
from fedkern_flwr.wire.message import PhaseMessage, array

CLIENTS, ROUNDS, BLOCKS = 240, 10, 8


@dataclass(frozen=True)
class Numbers(PhaseMessage):
    """Ten numbers and their round."""

    phase = "numbers"
    round: int
    values: NDArray[np.float64] = array("ten", dtype="float64")  # noqa: RUF009


class PhaseDoubler(PhaseClient):
    """A client of this package."""

    def handlers(self) -> dict[str, Any]:
        """Answer one phase."""
        return {"numbers": (Numbers, self.double)}

    def double(self, request: Numbers) -> Numbers:
        """Return twice the numbers."""
        return Numbers(round=request.round, values=2.0 * request.values)


class StockDoubler(NumPyClient):
    """The same as a stock NumPyClient, without checks."""

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Return twice the numbers."""
        return [2.0 * parameters[0]], 0, {"phase": "numbers", "round": config["round"]}


def requests(grid: InProcessGrid, number: int) -> list[Any]:
    """Return one message per node."""
    request = Numbers(round=number, values=np.arange(10.0))
    return request_messages(request, grid.get_node_ids(), group_id=str(number))


def through_exchange(grid: InProcessGrid, number: int) -> None:
    """One round as a strategy of this package drives it."""
    outcome = exchange(grid, requests(grid, number), phase="numbers", timeout=60, ledger=Ledger())
    assert len(outcome.replies) == CLIENTS


def bare_loop(grid: InProcessGrid, number: int) -> None:
    """Call the ClientApp for each message; neither grid nor exchange."""
    for message in requests(grid, number):
        reply = grid.client_app(message, grid.contexts[message.metadata.dst_node_id])
        assert reply.has_content()


def main() -> None:
    """Interleave the variants; print the median block of each."""

    def stock(context: Context) -> Any:
        return StockDoubler().to_client()

    def phase(context: Context) -> Any:
        return PhaseDoubler(context).to_client()

    grids = {
        "stock NumPyClient": InProcessGrid(ClientApp(client_fn=stock), CLIENTS),
        "PhaseClient": InProcessGrid(ClientApp(client_fn=phase), CLIENTS),
    }
    variants: dict[str, tuple[Callable[[InProcessGrid, int], None], InProcessGrid]] = {
        "bare ClientApp, stock NumPyClient": (bare_loop, grids["stock NumPyClient"]),
        "engine, stock NumPyClient": (through_exchange, grids["stock NumPyClient"]),
        "bare ClientApp, PhaseClient": (bare_loop, grids["PhaseClient"]),
        "engine, PhaseClient": (through_exchange, grids["PhaseClient"]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for block in range(BLOCKS + 1):
        for name, (drive, grid) in variants.items():
            started = time.perf_counter()
            for number in range(ROUNDS):
                drive(grid, number)
            if block:  # the first warms up
                seconds[name].append(time.perf_counter() - started)
    rates = {k: CLIENTS * ROUNDS / statistics.median(v) for k, v in seconds.items()}
    table = Table(title=f"in-process messages: {CLIENTS} clients, 10 numbers each way")
    for column in ("this / bare stock", "messages/s", ""):
        table.add_column(column, justify="right" if column else "left")
    for name, rate in rates.items():
        table.add_row(f"{rate / next(iter(rates.values())):.2f}", f"{rate:,.0f}", name)
    Console().print(table)


if __name__ == "__main__":
    main()
