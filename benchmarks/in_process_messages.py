"""Messages per second of the in-process engine: 240 clients, ten numbers there and back."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from common import Record, interleave, new_table, run_script
from flwr.app import Context
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from rich.console import Console

from fedkern_flwr.flower_compat import NumPyClient
from fedkern_flwr.node.client import Client
from fedkern_flwr.simulations import InProcessGrid
from fedkern_flwr.transport import exchange, request_messages
from fedkern_flwr.watch import Ledger
from fedkern_flwr.wire.message import PhaseMessage, array

CLIENTS, ROUNDS, BLOCKS = 240, 10, 8


@dataclass(frozen=True)
class Numbers(PhaseMessage):
    """Ten numbers and their round."""

    phase = "numbers"
    round: int
    values: NDArray[np.float64] = array("ten", dtype="float64")  # noqa: RUF009


class PhaseDoubler(Client):
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


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Interleave the variants; print the median block of each."""

    def stock(context: Context) -> Any:
        return StockDoubler().to_client()

    def phase(context: Context) -> Any:
        return PhaseDoubler(context).to_client()

    grids = {
        "stock NumPyClient": InProcessGrid(ClientApp(client_fn=stock), CLIENTS),
        "Client": InProcessGrid(ClientApp(client_fn=phase), CLIENTS),
    }
    variants: dict[str, tuple[Callable[[InProcessGrid, int], None], InProcessGrid]] = {
        "bare ClientApp, stock NumPyClient": (bare_loop, grids["stock NumPyClient"]),
        "engine, stock NumPyClient": (through_exchange, grids["stock NumPyClient"]),
        "bare ClientApp, Client": (bare_loop, grids["Client"]),
        "engine, Client": (through_exchange, grids["Client"]),
    }

    def block(drive: Callable[[InProcessGrid, int], None], grid: InProcessGrid) -> None:
        for number in range(ROUNDS):
            drive(grid, number)

    calls = {name: partial(block, *variant) for name, variant in variants.items()}
    seconds = interleave(calls, BLOCKS // 2 if options.quick else BLOCKS, warm_up=1)
    rates = {k: CLIENTS * ROUNDS / statistics.median(v) for k, v in seconds.items()}
    table = new_table(
        f"in-process messages: {CLIENTS} clients, 10 numbers each way",
        "this / bare stock | messages/s | ",
    )
    for name, rate in rates.items():
        table.add_row(f"{rate / next(iter(rates.values())):.2f}", f"{rate:,.0f}", name)
    console.print(table)
    bare, *others = rates
    return [
        Record(name, rates[name] / rates[bare], "this / bare stock", "higher") for name in others
    ]


if __name__ == "__main__":
    run_script(__doc__, measure)
