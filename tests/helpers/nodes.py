"""Nodes that serve tables with the client of a method, each with a folder of its own."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from zoo import Table, side

from fedkern_flwr.simulations import InProcessGrid, simulate
from fedkern_flwr.simulations.engines.direct import as_client

__all__ = ["Nodes", "Table", "side"]


@dataclass
class Nodes:
    """Serves the clients of tables, keeps their contexts, reads the predictions they write.

    ``paths`` has options that name files of a node, and their names with the partition in it.
    """

    client: type[Any]
    tables: list[Table]
    folder: Path
    common: Table = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    state: bool = True
    contexts: dict[int, Context] = field(default_factory=dict)

    def client_fn(self, context: Context) -> Any:
        """Build the client of a node."""
        k = int(context.node_config["partition-id"])
        self.contexts[k] = context
        table: Table = {"state_dir": self.folder / f"node-{k}"} if self.state else {}
        table |= {**self.common, **self.tables[k]}
        if "y" in table and not self.paths:
            table["predictions"] = self.folder / f"{k}.csv"
        table = {name: self.folder / path.format(k) for name, path in self.paths.items()} | table
        return self.client(context, **table)

    def run(self, strategy: Any, **more: Any) -> Any:
        """Run a strategy with these nodes; return it."""
        simulate(strategy, self.client_fn, len(self.tables), **more)
        return strategy

    def grid(self) -> InProcessGrid:
        """Return a grid of these nodes."""
        app = ClientApp(client_fn=lambda context: as_client(self.client_fn(context)))
        return InProcessGrid(app, len(self.tables))

    def files(self, suffix: str) -> list[Path]:
        """Return the files with this ending in all folders."""
        return sorted(self.folder.rglob(f"*.{suffix}"))

    def written(self) -> list[dict[str, str]]:
        """Return the rows of all files of predictions, by partition."""
        out: list[dict[str, str]] = []
        for path in sorted(self.folder.glob("*.csv"), key=lambda path: int(path.stem)):
            with path.open(newline="") as file:
                out += csv.DictReader(file)
        return out

    def outputs(self) -> dict[str, list[float]]:
        """Return the predictions that were written, by id."""
        found = {
            row["id"]: [float(value) for name, value in row.items() if name.startswith("output_")]
            for row in self.written()
        }
        assert len(found) == len(self.written())
        return found
