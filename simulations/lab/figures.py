"""Draw the figures of comparisons by name: on one data set, and over those of a section."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..methods.pooled import error_of
from ..run import drawing, plots
from ..run.entries import Entry
from ..run.report import FigureBlock
from .columns import reconstruction_columns
from .comparison import Comparison

Styles = Mapping[str, drawing.Style]
#: Called with the comparison, the path without its end ``-NAME.png``, and the entries' styles.
DrawFigure = Callable[[Comparison, Path, Styles], FigureBlock]
#: The same over the comparisons of a section on several data sets.
DrawAcross = Callable[[Sequence[Comparison], Path, Styles], FigureBlock]
#: Series -> points (x, mean, standard deviation).
Curves = dict[str, list[tuple[float, float, float]]]
#: Called with the result of a repetition.
Value = Callable[[Mapping[str, Any]], float]

_LEAST = 1e-4  # a shorter time is drawn as this: 0 has no logarithm
_BAND = "band: one standard deviation over repetitions"
_MARKERS = (
    "mean and one standard deviation over runs. Markers: methods with a model at the end only"
)


def _file(stem: Path, name: str = "") -> Path:
    return stem.with_name(f"{stem.name}{f'-{name}' if name else ''}.png")


def _metric(name: str) -> Value:
    def value(result: Mapping[str, Any]) -> float:
        found = result["metrics"].get(name)
        return math.nan if found is None else float(found)

    return value


def _spread(entry: Entry, value: Value) -> tuple[float, float]:
    """Compute mean and standard deviation over an entry's repetitions."""
    values = np.array([value(result) for result in entry.results])
    return float(values.mean()), float(values.std())


# -- over an option that is swept, or over a property of the data sets

#: Name -> axis label, and the value of a repetition.
_DRAWN: dict[str, tuple[str, Value]] = {
    "iterations": ("iterations", _metric("iterations")),
    "reached": ("iterations to 1e-3 of the pooled optimum", _metric("iterations_to_pooled")),
    "accuracy": ("accuracy on held-out rows", _metric("test_accuracy")),
    "auc": ("AUC of held-out ratings", _metric("auc")),
    "regret": ("mean regret per client (squared error)", _metric("regret_mean")),
    "seconds": ("seconds", lambda result: float(result["seconds"])),
    **{
        name: (f"relative error of squared distances, {text}", _metric(name))
        for name, text in reconstruction_columns().items()
    },
}
#: Property of data sets -> axis label, and its value.
_SWEPT: dict[str, tuple[str, Callable[[Any], float]]] = {
    "groups": ("groups", lambda s: float(len(s.sizes))),
    "users": ("users", lambda s: float(s.users)),
    "ratio": ("users of the larger group / of the smaller", lambda s: max(s.sizes) / min(s.sizes)),
    "rows": ("training rows", lambda s: float(s.train_rows)),
}


def _sweep(name: str, alone: bool, comparison: Comparison, stem: Path, _: Styles) -> FigureBlock:
    """Draw a value over the swept option, a line per label without its last part."""
    (what, value), option = _DRAWN[name], comparison.section.sweep
    words, curves = option.replace("_", " "), Curves()
    for entry in comparison.entries:
        if option in entry.options:
            x = float(np.mean(entry.options[option]))
            series = entry.label.rpartition(", ")[0] or entry.method
            curves.setdefault(series, []).append((x, *_spread(entry, value)))
    title = f"{comparison.dataset}: {what}"
    path = _file(stem, option if alone else f"{option}-{name}")
    drawn = plots.plot_sweep(curves, path, title=title, xlabel=words, ylabel=what)
    return FigureBlock(f"{title} over {words}; {_BAND}", drawn)


def _over_data(
    name: str, swept: str, comparisons: Sequence[Comparison], stem: Path, styles: Styles
) -> FigureBlock:
    """Draw a value over a property of the data sets of a section, a line per entry."""
    (words, place), (what, value) = _SWEPT[swept], _DRAWN[name]
    title, curves = comparisons[0].section.title or what, Curves()
    for comparison in comparisons:
        x = place(comparison.section.data[comparison.dataset])
        for entry in comparison.entries:
            curves.setdefault(entry.label, []).append((x, *_spread(entry, value)))
    drawn = plots.plot_sweep(
        curves, _file(stem), title=title, xlabel=words, ylabel=what, styles=styles
    )
    return FigureBlock(f"{title}: {what} over {words}; {_BAND}", drawn)


# -- over the rounds of the first run

#: Name -> field of a history, and axis label.
_HISTORIES = {
    "consensus": ("consensus_difference", "change of the global model |z - z before|"),
    "residual": ("squared_residual", "sum of squared residuals"),
    "kernel-error": ("kernel_error", "mean squared error of the cosine-normalised kernel"),
}


def _history(name: str, comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    field, what = _HISTORIES[name]
    curves = Curves()
    for entry in comparison.entries:
        known = ((row["round"], row.get(field)) for row in entry.results[0]["history"])
        if points := [(float(at), v, 0.0) for at, v in known if v]:  # 0 has no logarithm
            curves[entry.label] = points
    title, path = f"{comparison.dataset}: {what}", _file(stem, name)
    drawn = plots.plot_sweep(curves, path, title=title, xlabel="round", ylabel=what, styles=styles)
    return FigureBlock(f"{title}, first run", drawn)


def _regret(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    text = f"{comparison.dataset}: average regret of the clients"
    curves = {
        k: [
            (row["round"], row["regret"] / row["round"], 0.0)
            for row in s["history"]
            if row["regret"] is not None
        ]
        for k, s in comparison.summaries.items()
        if s["metrics"]["regret_mean"] is not None and s["method"] != "ofskl"
    }
    path = plots.plot_sweep(
        curves,
        _file(stem, "regret"),
        title=text,
        xlabel="samples per client t",
        ylabel="regret per sample (squared error)",
        styles=styles,
    )
    return FigureBlock(f"{text} over time", path)


# -- test errors over costs and over runs, and traffic

#: Cost -> axis label, its unit, and its value for a whole run.
_COSTS: dict[str, tuple[str, float, Value]] = {
    "exchanges": ("exchanges", 1.0, lambda r: r["exchanges"]),
    "bytes": ("MB up and down, all parties", 1e-6, lambda r: r["bytes_up"] + r["bytes_down"]),
    "seconds": ("training time (s)", 1.0, lambda r: r["seconds"]),
}


def _unit(comparison: Comparison) -> tuple[str, str, float]:
    """Return name, unit and factor of the error."""
    if any("test_rmse" in r["metrics"] for entry in comparison.entries for r in entry.results):
        return "RMSE", "units of the label", 1.0
    return "test error", "%", 100.0


def _final_error(result: Mapping[str, Any]) -> float:
    """Return the error on held-out rows, NaN for none."""
    metrics = result["metrics"]
    known = any(metrics.get(name) is not None for name in ("test_accuracy", "test_rmse"))
    return error_of(metrics) if known else math.nan


def _error_curves(comparison: Comparison, cost: str) -> Curves:
    """Return (cost, mean error, std) of each entry, evaluation by evaluation.

    A run without errors in its history has the last error only. Only federated methods have
    exchanges and bytes.
    """
    _, unit, whole = _COSTS[cost]
    factor, found = _unit(comparison)[2], Curves()

    def curve(result: Mapping[str, Any]) -> list[tuple[float, float]]:
        known = [
            (row[cost], row["test_error"])
            for row in result["history"]
            if row.get("test_error") is not None and row.get(cost) is not None
        ]
        return known or [(whole(result), _final_error(result))]

    for entry in comparison.entries:
        if cost == "seconds" or comparison.summaries[entry.label]["exchanges"]:
            together = zip(*map(curve, entry.results), strict=False)
            points = [np.array(one).T for one in together]
            found[entry.label] = [
                (
                    unit * float(x.mean()) or _LEAST,
                    factor * float(e.mean()),
                    factor * float(e.std()),
                )
                for x, e in points
            ]
    return found


def _errors_of_all(
    cost: str, comparisons: Sequence[Comparison], stem: Path, styles: Styles, name: str = ""
) -> FigureBlock:
    """Draw the test error of each method over its cost so far, a panel per data set."""
    (text, unit, _), words = _unit(comparisons[0]), _COSTS[cost][0]
    path = plots.plot_panels(
        {one.dataset: _error_curves(one, cost) for one in comparisons},
        _file(stem, name),
        ylabel=f"{text} ({unit})",
        xlabel=words,
        styles=styles,
    )
    more = ", without that of evaluations and cross-validation" if cost == "seconds" else ""
    prefix = f"{comparisons[0].dataset}: " if name else ""
    return FigureBlock(f"{prefix}{text} on held-out rows over {words}{more}; {_MARKERS}", path)


def _errors_over(
    cost: str, name: str, comparison: Comparison, stem: Path, styles: Styles
) -> FigureBlock:
    return _errors_of_all(cost, [comparison], stem, styles, name)


def _errors_box(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """Draw test errors of the runs of each method."""
    name, (text, unit, scale) = comparison.dataset, _unit(comparison)
    path = plots.plot_boxes(
        {
            entry.label: [scale * _final_error(result) for result in entry.results]
            for entry in comparison.entries
            if entry.method != "constant"  # its error would hide differences among the others
        },
        _file(stem, "errors-box"),
        title=f"{name}: {text} over runs",
        xlabel=f"{text} ({unit})",
        styles=styles,
    )
    return FigureBlock(
        f"{name}: {text} on held-out rows; a dot per run, quartiles and median as a box", path
    )


def _mse(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """Draw the mean squared errors of the runs of each method."""
    runs = {label: summary["draws"]["mse"] for label, summary in comparison.summaries.items()}
    path = plots.plot_boxes(
        {label: [1e3 * v for v in values if v is not None] for label, values in runs.items()},
        _file(stem, "mse"),
        title=f"{comparison.dataset}: prediction error",
        xlabel="mean squared error (10⁻³)",
        styles=styles,
    )
    return FigureBlock(f"{comparison.dataset}: mean squared error of each method", path)


FIGURES: dict[str, DrawFigure] = {
    "errors-box": _errors_box,
    "error-time": partial(_errors_over, "seconds", "error-time"),
    "error-exchanges": partial(_errors_over, "exchanges", "error-exchanges"),
    "error-bytes": partial(_errors_over, "bytes", "error-bytes"),
    "mse": _mse,
    "regret": _regret,
    "sweep": partial(_sweep, "regret", True),
    "accuracy": partial(_sweep, "accuracy", True),
    **{f"sweep-{name}": partial(_sweep, name, False) for name in _DRAWN},
    **{name: partial(_history, name) for name in _HISTORIES},
}
ACROSS: dict[str, DrawAcross] = {
    "errors-exchanges": partial(_errors_of_all, "exchanges"),
    "errors-bytes": partial(_errors_of_all, "bytes"),
    "time-size": partial(_over_data, "seconds", "rows"),
    **{
        f"{name}-over-{swept}": partial(_over_data, name, swept)
        for name in _DRAWN
        for swept in _SWEPT
    },
}
