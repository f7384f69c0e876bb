"""Registered methods, in which every client has rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.encoding import Encoder, Explanation
from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.method import Method, PrivateMethod
from fedkern_flwr.options import declared
from fedkern_flwr.registered import client_of, find_method, registered
from fedkern_flwr.tables.table import Table, drop_constant_columns, listing, with_label

from ..run.data import Prepared, TableSettings, held_out_of, hold_out
from ..run.entries import Entry
from ..run.format import figure
from ..run.options import of_settings
from ..run.splits import Split, split_rows
from .base import Config, Family, Kept
from .dealt_data import NodeClients, alignment_key
from .new_rows import Parts

Missing = Literal["encode", "error", "drop-row"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RowSettings(TableSettings):
    """Rows of each client.

    Attributes
    ----------
    missing : {"encode", "error", "drop-row"}
        Rows with missing values (encode: median and indicator).
    clients : int
        Number of clients.
    split : {"iid", "site", "dirichlet"}
        Split of the rows among clients.
    alpha : float
        Concentration of the Dirichlet split.
    """

    missing: Missing = "error"
    clients: int = 5
    split: Split = "iid"
    alpha: float = 0.5

    def describe(self) -> str:
        """Describe the split for a caption."""
        return f"{self.clients} clients, split {self.split}"

    def table(self) -> Table:
        """Load the table, with or without labels."""
        return self.load(self.missing, labelled=self.label is not None)


def _simulated(state_dir: Path | None, partition: int) -> dict[str, Any]:
    """Return the result folder of a simulated node, and its plot function."""
    results = state_dir and state_dir.parent / "nodes" / str(partition)
    return {"results": results, "draw": scatter_plot()}


def _configured(partition: int) -> dict[str, Any]:
    return {"results": "results"}


@dataclass(frozen=True)
class RowData(Prepared):
    """Tables ready for a method of rows."""

    tables: tuple[dict[str, Any], ...]
    raw: tuple[dict[str, Any], ...]
    encoder: Encoder
    notes: tuple[str, ...]
    settings: RowSettings

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self.tables)

    def client_fn(self, strategy: Method, state_dir: Path | None = None) -> NodeClients:
        """Return the client function of a method."""
        kind = client_of(type(strategy))
        return NodeClients(
            kind=kind,
            table=(self.raw if kind.raw else self.tables).__getitem__,
            state_dir=state_dir,
            simulated=partial(_simulated, state_dir),
            configured=_configured,
        )

    def variant(self, strategy: Method) -> str:
        """Return the method."""
        return strategy.method

    def start(self) -> dict[str, Any]:
        """Return nothing: the method needs no more."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Return how many rows each client has."""
        held = [len(table["x_test"]) for table in self.tables]
        return {"rows": [len(table["x"]) for table in self.tables], "held_out_rows": held}

    def scaling_json(self) -> str:
        """Return the encoder; labels are not scaled."""
        labels = {"classes": [], "y_middle": 0.0, "y_half_range": 1.0}
        return json.dumps({"encoder": self.encoder.to_dict(), **labels})

    def explain(self) -> list[Explanation]:
        """Return how columns were encoded."""
        return self.encoder.explain()


def prepare(settings: RowSettings) -> RowData:
    """Load the table, hold rows out, encode features and deal the rows."""
    every = settings.table()
    table = drop_constant_columns(every)
    constant = [name for name in every.columns if name not in table.columns]
    notes = [
        *every.notes,
        *([f"constant, so no features: {listing(constant)}"] if constant else ()),
    ]
    whole, each = table, settings.files is not None
    kept, *_ = hold_out(every, settings.test_size, settings.seed, each_site=each)
    table, x_test, y_test = hold_out(table, settings.test_size, settings.seed, each_site=each)
    encoder = settings.encoder(table)
    x, x_test = (encoder.transform(replace(table, x=part)) for part in (table.x, x_test))
    parts = split_rows(table, settings.split, settings.clients, settings.seed, alpha=settings.alpha)
    tests = np.array_split(np.arange(len(x_test)), len(parts))
    if settings.files is not None:
        tests = held_out_of(whole, table)
    held_names = _names_of_held(whole, table, len(x_test))
    given, raw, plain = [], list[dict[str, Any]](), with_label(kept)
    about = {"columns": plain.columns, "kinds": plain.kinds, "categories": plain.categories}
    for rows, held in zip(parts, tests, strict=True):
        own: dict[str, Any] = {"x": x[rows], "x_test": x_test[held], "columns": encoder.outputs}
        if table.y is not None:
            own |= {"y": table.y[rows], "y_test": y_test[held]}
        if table.ids is not None:
            own["ids"] = [str(name) for name in np.asarray(table.ids)[rows]]
            own["ids_test"] = held_names[held].tolist()
        given.append(own)
        ids: dict[str, Any] = {}
        if "ids" in own:
            ids = {"ids": own["ids"], "alignment_key": alignment_key(settings.seed)}
        raw.append({"x": plain.x[rows], **about, **ids})
    notes += encoder.left_out(table)
    return RowData(tuple(given), tuple(raw), encoder, tuple(notes), settings)


def _names_of_held(whole: Table, left: Table, number: int) -> NDArray[np.str_]:
    """Return ids of held-out rows, or their numbers."""
    if whole.ids is None or left.ids is None or left.rows == whole.rows:
        return np.arange(number).astype(np.str_)
    left_ids = {str(name) for name in np.asarray(left.ids)}
    names = [str(name) for name in np.asarray(whole.ids)]
    return np.array([name for name in names if name not in left_ids], np.str_)


def usable(name: str) -> type[Method]:
    """Return a registered method; refuse options named as those of a table."""
    found = find_method(name)
    flags = {one.flag or f"--{one.name}" for one in of_settings(RowSettings, "iris")}
    taken = {option for option in declared(found) if f"--{option}" in flags}
    if taken:
        raise OptionError(
            f"option {min(taken)} of method {name} has the name of an option of the table",
            remedy="choose another name for it",
            code="FK-METHOD-CLASS",
        )
    return found


class RowsFamily(Family[Method, RowSettings, RowData]):
    """Registered methods, see :mod:`fedkern_flwr.registered`."""

    strategies = tuple(find_method(name) for name in registered())
    settings, makes = RowSettings, staticmethod(prepare)
    app, deployable = "method", tuple(registered())
    data = "iris"

    def encodes(self, name: str) -> bool:
        """Return whether the method's client is given what columns become."""
        return not client_of(find_method(name)).raw

    def check(self, config: Config) -> None:
        """Refuse a method with options named as those of a table."""
        usable(config["method"])
        super().check(config)

    def check_data(self, config: Config, prepared: RowData) -> None:
        """Refuse a table without labels if the method needs them."""
        super().check_data({**config, "secure": True}, prepared)
        if find_method(config["method"]).labels_of_row and "y" not in prepared.tables[0]:
            raise TableError("the data has no labels", code="FK-LABELS-MISSING")

    def outcome(self, strategy: Method) -> dict[str, Any]:
        """Return the number of active clients, and the tables of the method."""
        found = {"tables": strategy.tables_, "details": strategy.details_}
        own = {name: one for name, one in found.items() if one}
        return {"survivors": len(strategy.nodes.active()), **own}

    def summarise(self, entry: Entry) -> dict[str, Any]:
        """Average the runs; tables are those of the first."""
        first = entry.results[0]
        kept: dict[str, Any] = {n: first[n] for n in ("tables", "details") if n in first}
        return {**super().summarise(entry), **kept}

    def whole_model(self, strategy: Method, prepared: RowData, kept: Kept) -> Parts:
        """Return the model of the server."""
        found = strategy.fitted()
        return Parts(found.meta["form"], found.arrays, found.meta)

    def why_unpredictable(self, config: Config) -> tuple[str, str] | None:
        """Return why there is no whole model."""
        return None if find_method(config["method"]).left_whole else self.unpredictable

    def usual_options(self, name: str) -> frozenset[str]:
        """Return the options of the method, and the number of clients."""
        own = declared(find_method(name)).keys() - declared(Method).keys()
        budget = declared(PrivateMethod).keys() - {"privacy_epsilon"}
        return frozenset({"clients", *(own - budget)})

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return the numbers of clients and rows."""
        rows = f"{sum(facts['rows'])} rows"
        held = sum(facts["held_out_rows"])
        return f"{len(facts['rows'])} clients, {rows}" + (f" and {held} held out" if held else "")

    def figures(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return the metrics, named ones first."""
        shown = find_method(result["method"]).shows
        metrics = {k: v for k, v in result["metrics"].items() if isinstance(v, (int, float))}
        ordered = [*(n for n in shown if n in metrics), *(n for n in metrics if n not in shown)]
        return [[shown.get(name, name), _written(metrics[name])] for name in ordered]

    def plots(self, folder: Path, label: str, summary: Mapping[str, Any]) -> dict[str, Path]:
        """Draw a summary; return its plots and those of simulated nodes."""
        found = sorted((folder.parent / "nodes").glob("*/*.png"))
        drawn = {f"node_{path.parent.name}_{path.stem}": path for path in found}
        if "columns" not in summary.get("details", {}):
            return drawn
        from ..run.plots import plot_summary

        return {**plot_summary(folder, summary["details"]), **drawn}


def scatter_plot() -> Callable[..., object] | None:
    """Return the scatter plot function, if Matplotlib is installed."""
    if find_spec("matplotlib") is None:
        return None
    from ..run.scatter import plot_scatter

    return plot_scatter


def figures_of(summary: Mapping[str, Any]) -> str:
    """Return all metrics on a line."""
    found = summary["metrics"].items()
    return ", ".join(f"{k} {_written(v)}" for k, v in found if isinstance(v, (int, float)))


def _written(value: float) -> str:
    return str(value) if isinstance(value, int) else figure(value, 4)
