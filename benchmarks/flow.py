"""How much of the package a run goes through: distinct functions and files that it executes.

``python benchmarks/flow.py`` counts them for a run of FedCG in this process, for its largest
exchange (from one push of messages to the next), and for a run of POF-RLS. Another checkout is
counted by its own interpreter: ``../before/.venv/bin/python benchmarks/flow.py``.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
from flwr.app import Context

import fedkern_flwr
from fedkern_flwr.clients import HybridKernelClient, OnlineKernelClient
from fedkern_flwr.flower_compat import quiet_flower
from fedkern_flwr.simulations import InProcessGrid, simulate
from fedkern_flwr.strategies import POFRLS, FedCG

PACKAGE = Path(fedkern_flwr.__file__).parents[1]
ROOMS = tuple(str(PACKAGE / r) for r in ("fedkern_flwr", "strategies", "clients", "simulations"))


class Flow:
    """Notes the functions of the package that are called, apart for each exchange."""

    def __init__(self) -> None:
        self.exchanges: list[set[CodeType]] = [set()]

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """Note a call; comprehensions and bodies of modules and classes are no functions."""
        code = frame.f_code
        plain = not code.co_name.startswith("<") or code.co_name == "<lambda>"
        if event == "call" and plain and code.co_filename.startswith(ROOMS):
            self.exchanges[-1].add(code)

    def watch(self, run: Callable[[], object]) -> None:
        """Run something, and note what it calls in any thread."""
        push = InProcessGrid.push_messages

        def pushed(grid: Any, messages: Any) -> Any:
            self.exchanges.append(set())
            return push(grid, messages)

        with patch.object(InProcessGrid, "push_messages", pushed):
            threading.setprofile(self.note)
            sys.setprofile(self.note)
            try:
                run()
            finally:
                sys.setprofile(None)
                threading.setprofile(None)  # type: ignore[arg-type]

    def row(self, name: str, codes: set[CodeType]) -> str:
        """Return a row of the table."""
        return f"| {name} | {len(codes)} | {len({code.co_filename for code in codes})} |"


def fed_cg() -> None:
    """Run FedCG: two hospitals with labels and two columns each, two centres with the others."""
    x = np.random.default_rng(0).random((60, 6))
    ids = [f"patient {k}" for k in range(60)]
    rows, columns = (slice(30), slice(30, 60)), ((0, 1), (2, 3), (4, 5))

    def client_fn(context: Context) -> HybridKernelClient:
        k = int(context.node_config["partition-id"])
        known: dict[str, Any] = {"alignment_key": bytes(16)}
        if k >= 2:
            return HybridKernelClient(context, x[:, columns[k - 1]], ids=ids, **known)
        part, y = rows[k], (x.sum(axis=1) > 3.0).astype(float)
        known |= {"block": "clinical", "classes": (0, 1)}
        held = {"x_test": x[part][-6:, :2], "y_test": y[part][-6:], "ids_test": ids[part][-6:]}
        own = ids[part][:-6]
        return HybridKernelClient(context, x[part][:-6, :2], y[part][:-6], ids=own, **held, **known)

    simulate(FedCG(landmarks=12), client_fn, 4)


def pof_rls() -> None:
    """Run POF-RLS: four clients with streams of 60 rows."""
    x = np.random.default_rng(0).random((4, 60, 3)) / 2.0
    y = x.sum(axis=2) / 1.5

    def client_fn(context: Context) -> OnlineKernelClient:
        k = int(context.node_config["partition-id"])
        return OnlineKernelClient(context, x[k], y[k])

    simulate(POFRLS(), client_fn, 4, num_rounds=60)


def main() -> None:
    """Print the table."""
    quiet_flower(logging.CRITICAL)
    logging.getLogger("fedkern_flwr").setLevel(logging.ERROR)
    print(f"{PACKAGE}\n\n| what | functions | files |\n|---|---:|---:|")
    for name, run in (("FedCG", fed_cg), ("POF-RLS", pof_rls)):
        run()  # so that nothing is imported below
        flow = Flow()
        flow.watch(run)
        print(
            flow.row(
                f"a run of {name}, {len(flow.exchanges) - 1} exchanges",
                set().union(*flow.exchanges),
            )
        )
        if run is fed_cg:
            print(flow.row("its largest exchange", max(flow.exchanges[2:], key=len)))


if __name__ == "__main__":
    main()
