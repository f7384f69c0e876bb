"""Methods of rows: every client has rows of its own; any registered method, ours or another's."""

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
from fedkern_flwr.tables.table import Table, drop_constant_columns, with_label

from ..run.data import Prepared, TableSettings, held_out_of, hold_out
from ..run.entries import Entry
from ..run.format import figure
from ..run.options import of_settings
from ..run.splits import Split, split_rows
from .base import Config, Family, Kept
from .common import COSTS, Column
from .dealt_data import NodeClients, alignment_key
from .new_rows import Parts

Missing = Literal["encode", "error", "drop-row"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RowSettings(TableSettings):
    """Which rows go to which client.

    Attributes
    ----------
    missing : {"encode", "error", "drop-row"}
        Rows with missing values (encode: the median, and a column that says so).
    clients : int
        Number of clients.
    split : {"iid", "site", "dirichlet"}
        How rows are dealt.
    alpha : float
        Concentration of the Dirichlet split.
    """

    missing: Missing = "error"
    clients: int = 5
    split: Split = "iid"
    alpha: float = 0.5

    def describe(self) -> str:
        """Return who gets what, for the caption of a table."""
        return f"{self.clients} clients, split {self.split}"

    def table(self) -> Table:
        """Load the table, which may have labels or none."""
        return self.load(self.missing, labelled=self.label is not None)


def _simulated(state_dir: Path | None, partition: int) -> dict[str, Any]:
    """Return where a simulated node writes its results, beside its state, and what draws them."""
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

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self.tables)

    def client_fn(self, strategy: Method, state_dir: Path | None = None) -> NodeClients:
        """Return what builds the clients of a method."""
        kind = client_of(type(strategy))
        return NodeClients(
            kind=kind,
            table=(self.raw if kind.raw else self.tables).__getitem__,
            state_dir=state_dir,
            simulated=partial(_simulated, state_dir),
            configured=_configured,
        )

    def variant(self, strategy: Method) -> str:
        """Return the method: each has clients of its own."""
        return strategy.method

    def start(self) -> dict[str, Any]:
        """Return nothing: the method needs no more."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Return how many rows each client has."""
        held = [len(table["x_test"]) for table in self.tables]
        return {"rows": [len(table["x"]) for table in self.tables], "held_out_rows": held}

    def scaling_json(self) -> str:
        """Return the encoder of the columns; labels are as they are."""
        labels = {"classes": [], "y_middle": 0.0, "y_half_range": 1.0}
        return json.dumps({"encoder": self.encoder.to_dict(), **labels})

    def explain(self) -> list[Explanation]:
        """Return what became of the columns of the table."""
        return self.encoder.explain()


def prepare(settings: RowSettings) -> RowData:
    """Load the table, hold rows out, encode the features, deal the rows.

    The encoder is of the training rows; a deployment declares ranges.
    """
    table = drop_constant_columns(settings.table())
    whole, each = table, settings.files is not None
    table, x_test, y_test = hold_out(table, settings.test_size, settings.seed, each_site=each)
    encoder = settings.encoder(table)
    x, x_test = (encoder.transform(replace(table, x=part)) for part in (table.x, x_test))
    parts = split_rows(table, settings.split, settings.clients, settings.seed, alpha=settings.alpha)
    tests = np.array_split(np.arange(len(x_test)), len(parts))
    if settings.files is not None:
        tests = held_out_of(whole, table)
    held_names = _names_of_held(whole, table, len(x_test))
    given, raw, plain = [], list[dict[str, Any]](), with_label(table)
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
    return RowData(tuple(given), tuple(raw), encoder, (*table.notes, *encoder.left_out(table)))


def _names_of_held(whole: Table, left: Table, number: int) -> NDArray[np.str_]:
    """Return the ids of held-out rows; numbers where these came with the data, without ids."""
    if whole.ids is None or left.ids is None or left.rows == whole.rows:
        return np.arange(number).astype(np.str_)
    left_ids = {str(name) for name in np.asarray(left.ids)}
    names = [str(name) for name in np.asarray(whole.ids)]
    return np.array([name for name in names if name not in left_ids], np.str_)


def usable(name: str) -> type[Method]:
    """Return a registered method; its options must not have the names of those of the table."""
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
    """Methods of rows that are registered, see :mod:`fedkern_flwr.registered`."""

    strategies = tuple(find_method(name) for name in registered())
    settings, makes = RowSettings, staticmethod(prepare)
    app, deployable = "method", tuple(registered())
    columns = {  # noqa: RUF012
        "figures": Column(("figures",), lambda s: [_figures(s)], reading="Figures: see its page."),
        **COSTS,
    }

    data = "iris"
    repetitions, seeded = "Runs averaged, each with a seed of its own.", "split and method"

    def encodes(self, name: str) -> bool:
        """Return whether the method's client is given what columns become."""
        return not client_of(find_method(name)).raw

    def check(self, config: Config) -> None:
        """Refuse a method whose options cannot be told from those of the table; see the base."""
        usable(config["method"])
        super().check(config)

    def check_data(self, config: Config, prepared: RowData) -> None:
        """Refuse a table without labels where the method needs them."""
        super().check_data({**config, "secure": True}, prepared)
        if find_method(config["method"]).labels_of_row and "y" not in prepared.tables[0]:
            raise TableError(
                "the data has no labels", remedy="name them with --label", code="FK-LABELS-MISSING"
            )

    def outcome(self, strategy: Method) -> dict[str, Any]:
        """Return how many clients there were at the end, and the tables of the method."""
        found = {"tables": strategy.tables_, "details": strategy.details_}
        own = {name: one for name, one in found.items() if one}
        return {"survivors": len(strategy.nodes.active()), **own}

    def summarise(self, entry: Entry) -> dict[str, Any]:
        """Average the results of an entry's draws; tables are those of the first."""
        first = entry.results[0]
        kept: dict[str, Any] = {n: first[n] for n in ("tables", "details") if n in first}
        return {**super().summarise(entry), **kept}

    def whole_model(self, strategy: Method, prepared: RowData, kept: Kept) -> Parts:
        """Return the model that the server has."""
        found = strategy.fitted()
        return Parts(found.meta["form"], found.arrays, found.meta)

    def why_unpredictable(self, config: Config) -> tuple[str, str] | None:
        """Return why a method whose server has no whole model does not predict."""
        return None if find_method(config["method"]).left_whole else self.unpredictable

    def usual_options(self, name: str) -> frozenset[str]:
        """Return the method's own options and the number of clients."""
        own = declared(find_method(name)).keys() - declared(Method).keys()
        budget = declared(PrivateMethod).keys() - {"privacy_epsilon"}
        return frozenset({"clients", *(own - budget)})

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return the numbers of clients and rows."""
        rows = f"{sum(facts['rows'])} rows"
        held = sum(facts["held_out_rows"])
        return f"{len(facts['rows'])} clients, {rows}" + (f" and {held} held out" if held else "")

    def figures(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return the metrics, first those that the method shows by name."""
        shown = find_method(result["method"]).shows
        metrics = {k: v for k, v in result["metrics"].items() if isinstance(v, (int, float))}
        ordered = [*(n for n in shown if n in metrics), *(n for n in metrics if n not in shown)]
        return [[shown.get(name, name), _written(metrics[name])] for name in ordered]

    def plots(self, folder: Path, label: str, summary: Mapping[str, Any]) -> dict[str, Path]:
        """Draw what a summary found; return that, and what the simulated nodes drew."""
        found = sorted((folder.parent / "nodes").glob("*/*.png"))
        drawn = {f"node_{path.parent.name}_{path.stem}": path for path in found}
        if "columns" not in summary.get("details", {}):
            return drawn
        from ..run.summary_plots import plot_summary

        return {**plot_summary(folder, summary["details"]), **drawn}


def scatter_plot() -> Callable[..., object] | None:
    """Return what draws a node's scatter plot, where there is Matplotlib."""
    if find_spec("matplotlib") is None:
        return None
    from ..run.scatter import plot_scatter

    return plot_scatter


def _figures(summary: Mapping[str, Any]) -> str:
    found = summary["metrics"].items()
    return ", ".join(f"{k} {_written(v)}" for k, v in found if isinstance(v, (int, float)))


def _written(value: float) -> str:
    return str(value) if isinstance(value, int) else figure(value, 4)
