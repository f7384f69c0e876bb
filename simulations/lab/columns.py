"""Columns of comparisons: a row of ``columns.toml`` each."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np

from ..methods.base import Family
from ..methods.rows import figures_of
from ..run.entries import mean
from ..run.format import count, figure, megabytes, size

Summary = Mapping[str, Any]
#: Columns that are added to those of classes.
SCORED = ("test_balanced_accuracy", "test_auc", "test_log_loss")
#: Seconds of an exchange of a deployment with three nodes on one machine, see docs/deploy.md.
_EXCHANGE_SECONDS = 1.07


@dataclass(frozen=True, kw_only=True)
class Column:
    """Column of a comparison.

    Attributes
    ----------
    head : str or sequence of str
        Headings.
    metric : str or sequence of str
        Metrics or costs in the cells.
    form : int or str
        Decimals, or a format.
    unit : float
        What values are divided by.
    spread : {"", "range", "± std"}
        Second cell, over the runs; the first is their mean.
    cells : str
        What fills the cells instead, see :data:`CELLS`.
    tolerance : float
        Of ``cells = "epochs"``.
    rank : {"", "low", "high"}
        Which value is best.
    higher : bool
        Whether higher is better than the paper, where nothing is ranked.
    paper : int
        Decimals of the paper's figures.
    values : {"", "spread", "converged"}
        Runs that are compared with the paper: one figure of all, or those that converged.
    reading : str
        What the report says of it.
    wide : bool
        Whether it is only in the report.
    pooled : bool
        Whether it needs the comparison with a pooled model.
    """

    head: str | Sequence[str]
    metric: str | Sequence[str] = ""
    form: int | str = ".1e"
    unit: float = 1.0
    spread: Literal["", "range", "± std"] = ""
    cells: str = ""
    tolerance: float = 0.0
    rank: Literal["", "low", "high"] = ""
    higher: bool = False
    paper: int = 2
    values: Literal["", "spread", "converged"] = ""
    reading: str = ""
    wide: bool = False
    pooled: bool = False

    @property
    def headings(self) -> list[str]:
        """Headings, one for each cell."""
        return [*_listed(self.head), *([self.spread] if self.spread else [])]

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics."""
        return _listed(self.metric)

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values are better."""
        return self.higher or self.rank == "high"

    def written(self, summary: Summary) -> list[str]:
        """Return the cells of an entry."""
        if self.cells:
            return CELLS[self.cells](summary, self)
        if not self.spread:
            return [self._figure(_value(summary, name)) for name in self.metrics]
        name = self.metrics[0]
        values = summary.get("draws", {}).get(name) or [_value(summary, name)]
        if any(value is None for value in values):
            return ["-", "-"]
        first = self._figure(sum(values) / len(values))
        if self.spread == "range":
            return [first, "-".join(f"{end(values):.{int(self.form) - 1}f}" for end in (min, max))]
        return [first, self._figure(float(np.std(values, ddof=1)) if len(values) > 1 else None)]

    def best(self, summary: Summary) -> float | None:
        """Return what entries are ranked by, lower is better; None for no rank."""
        value = _value(summary, self.metrics[0]) if self.rank else None
        return -(value or 0.0) if self.rank == "high" else value

    def drawn(self, summary: Summary) -> list[float | None]:
        """Return the value of each run."""
        if self.cells == "epochs":
            return _epochs(summary, self)
        name, draws = self.metrics[0], summary["draws"]
        found = draws.get(name, [])
        if self.values == "spread":  # of several runs
            found = [_value(summary, name) if len(draws["mse"]) > 1 else None]
        if self.values == "converged":
            ended = zip(found, draws.get("converged", [True] * len(found)), strict=True)
            found = [value if done else None for value, done in ended]
        return [None if value is None else value / self.unit for value in found]

    def _figure(self, value: float | None) -> str:
        return figure(None if value is None else value / self.unit, self.form)


def columns_of(family: Family[Any, Any, Any]) -> Mapping[str, Column]:
    """Return the columns of a family by name."""
    known = _columns()
    return {**known["all"], **known.get(family.strategies[0].method, {})}


def reconstruction_columns() -> dict[str, str]:
    """Return the metrics of the attacks of FedCG's Figure 8, and their headings."""
    column = _columns()["fed-cg"]["reconstruction"]
    return dict(zip(column.metrics, column.headings, strict=True))


@cache
def _columns() -> Mapping[str, Mapping[str, Column]]:
    text = files(__package__).joinpath("columns.toml").read_text("utf-8")
    return {
        part: {name: Column(**row) for name, row in rows.items()}
        for part, rows in tomllib.loads(text).items()
    }


def _listed(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _value(summary: Summary, name: str) -> float | None:
    """Return a metric or a cost."""
    found: float | None = summary["metrics"].get(name, summary.get(name))
    return found


def seen_plainly(summary: Summary) -> str:
    """Write what single parties showed the server."""
    if not summary["exchanges"]:
        return "all data" if summary["privacy"]["server_sees"] else "-"
    seen = summary["privacy"].get("seen")
    if seen is None:
        return "-"
    return size(sum(row["bytes"] for row in seen["server"] if row["kind"] == "plain"))


def _epochs(summary: Summary, column: Column) -> list[float | None]:
    """Return the first iteration of each run below the tolerance."""
    found: list[float | None] = []
    for run in summary.get("squared_residuals", []):
        below = np.flatnonzero(np.asarray(run) < column.tolerance)
        found.append(None if len(run) < 2 or not len(below) else float(below[0]) + 1.0)
    return found


def _log_loss(summary: Summary) -> str:
    found = summary["metrics"]
    return figure(found.get("test_log_loss", found.get("test_log_loss_ovr")), 3)


def _beside(summary: Summary) -> str:
    value = summary.get("beside_pooled")
    form = "+.4f" if "test_accuracy" in summary["metrics"] else "+.3g"
    return "-" if value is None else format(value, form)


def _federated(write: Callable[[Summary], str]) -> Callable[[Summary], str]:
    """Write of methods with exchanges only."""
    return lambda summary: write(summary) if summary["exchanges"] else "-"


def _deployed(summary: Summary) -> str:
    seconds = _EXCHANGE_SECONDS * summary["exchanges"] + (summary.get("cpu_seconds") or 0.0)
    return f"{seconds:.0f}"


def _one_cell(write: Callable[[Summary], str]) -> Callable[[Summary, Column], list[str]]:
    return lambda summary, _: [write(summary)]


_SINGLE: Mapping[str, Callable[[Summary], str]] = {
    "plain": seen_plainly,
    "exchanges": _federated(lambda s: count(s["exchanges"])),
    "log loss": _log_loss,
    "beside": _beside,
    "traffic": _federated(lambda s: f"{(s['bytes_up'] + s['bytes_down']) / 1e3:.0f}"),
    "deployed": _federated(_deployed),
    "epsilon": _federated(lambda s: str(s["privacy"].get("epsilon", "none"))),
    "sees": lambda s: next(iter(s["privacy"].get("server_sees", ())), "-"),
    "figures": figures_of,
}
#: What fills the cells of a column, by its name in ``columns.toml``.
CELLS: dict[str, Callable[[Summary, Column], list[str]]] = {
    "megabytes": lambda s, _: [
        megabytes(s[name]) if s["exchanges"] else "-" for name in ("bytes_up", "bytes_down")
    ],
    "epochs": lambda s, column: [figure(mean(_epochs(s, column)), 1)],
    **{name: _one_cell(write) for name, write in _SINGLE.items()},
}
