"""Figures of comparisons by name: on one data set, and over the data sets of a section."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..methods.hybrid import ATTACKS
from ..methods.pooled import error_of
from ..run import drawing, plots
from ..run.entries import Entry
from ..run.report import FigureBlock
from .comparison import Comparison
from .error_plots import plot_error_boxes, plot_error_panels
from .topologies import SERVER_NOTE, plot_topologies

Styles = Mapping[str, drawing.Style]
#: Called with the comparison, the path of the figure without its end ``-<name>.png``, and the
#: styles of the entries.
DrawFigure = Callable[[Comparison, Path, Styles], FigureBlock]
#: The same over the comparisons of a section on several data sets, with the path but for ``.png``.
DrawAcross = Callable[[Sequence[Comparison], Path, Styles], FigureBlock]
#: Series -> points (x, mean, standard deviation).
Curves = dict[str, list[tuple[float, float, float]]]
#: Called with the result of a draw.
Value = Callable[[Mapping[str, Any]], float]

_BAND = "band: one standard deviation over draws"
_MARKERS = (
    "mean and one standard deviation over runs. Markers: methods with a model at the end only"
)


def _file(stem: Path, name: str = "") -> Path:
    """Return the path of a figure."""
    return stem.with_name(f"{stem.name}{f'-{name}' if name else ''}.png")


def _curves(
    curves: Curves,
    path: Path,
    caption: str,
    *,
    title: str,
    axes: tuple[str, str],
    styles: Styles | None = None,
) -> FigureBlock:
    """Draw curves with bands; ``axes`` says what x and y are."""
    xlabel, ylabel = axes
    drawn = plots.plot_sweep(curves, path, title=title, xlabel=xlabel, ylabel=ylabel, styles=styles)
    return FigureBlock(caption, drawn)


def _metric(name: str) -> Value:
    def value(result: Mapping[str, Any]) -> float:
        found = result["metrics"].get(name)
        return math.nan if found is None else float(found)

    return value


def _spread(entry: Entry, value: Value) -> tuple[float, float]:
    """Return mean and standard deviation over an entry's draws."""
    values = np.array([value(result) for result in entry.results])
    return float(values.mean()), float(values.std())


# -- over an option that is swept, or over a property of the data sets

#: What is drawn: name -> how a figure calls it, and what it is of a draw's result.
_DRAWN: dict[str, tuple[str, Value]] = {
    "iterations": ("iterations", _metric("iterations")),
    "reached": ("iterations to 1e-3 of the pooled optimum", _metric("iterations_to_pooled")),
    "accuracy": ("accuracy on held-out rows", _metric("test_accuracy")),
    "regret": ("mean regret per client (squared error)", _metric("regret_mean")),
    "seconds": ("seconds", lambda result: float(result["seconds"])),
}
#: What is swept over data sets: name -> how a figure calls it, and its value for one of them.
_SWEPT: dict[str, tuple[str, Callable[[Any], float]]] = {
    "groups": ("groups", lambda s: float(len(s.sizes))),
    "users": ("users", lambda s: float(s.users)),
    "ratio": ("users of the larger group / of the smaller", lambda s: max(s.sizes) / min(s.sizes)),
    "rows": ("training rows", lambda s: float(s.train_rows)),
}


def _sweep(name: str, alone: bool, comparison: Comparison, stem: Path, _: Styles) -> FigureBlock:
    """Draw a figure against the option of a sweep, a line per label but for its end."""
    (what, value), dataset, option = _DRAWN[name], comparison.dataset, comparison.section.sweep
    words, found = option.replace("_", " "), Curves()
    for entry in comparison.entries:
        if option in entry.options:
            x = float(np.mean(entry.options[option]))
            series = entry.label.rpartition(", ")[0] or entry.label
            found.setdefault(series, []).append((x, *_spread(entry, value)))
    return _curves(
        found,
        _file(stem, option if alone else f"{option}-{name}"),
        f"{dataset}: {what} against {words}; {_BAND}",
        title=f"{dataset}: {what}",
        axes=(words, what),
    )


def _over_data(
    name: str, swept: str, comparisons: Sequence[Comparison], stem: Path, styles: Styles
) -> FigureBlock:
    """Draw a figure against a property of the data sets of a section, a line per entry."""
    (against, place), (what, value) = _SWEPT[swept], _DRAWN[name]
    title, found = comparisons[0].section.title or what, Curves()
    for comparison in comparisons:
        x = place(comparison.section.data[comparison.dataset])
        for entry in comparison.entries:
            found.setdefault(entry.label, []).append((x, *_spread(entry, value)))
    return _curves(
        found,
        _file(stem),
        f"{title}: {what} against {against}; {_BAND}",
        title=title,
        axes=(against, what),
        styles=styles,
    )


# -- test errors, over what they cost and over runs

#: Cost -> how a figure calls it, its unit, and what it is of a whole run.
_COSTS: dict[str, tuple[str, float, Value]] = {
    "exchanges": ("exchanges", 1.0, lambda r: r["exchanges"]),
    "bytes": ("MB up and down, all parties", 1e-6, lambda r: r["bytes_up"] + r["bytes_down"]),
    "seconds": ("training time (s)", 1.0, lambda r: r["seconds"]),
}


def _unit(comparison: Comparison) -> tuple[str, str, float]:
    """Return what the error is called, its unit, and the factor that brings it there."""
    if any("test_rmse" in r["metrics"] for entry in comparison.entries for r in entry.results):
        return "RMSE", "units of the label", 1.0
    return "test error", "%", 100.0


def _final_error(result: Mapping[str, Any]) -> float:
    """Return the error of a draw on held-out rows, NaN where it has none."""
    metrics = result["metrics"]
    known = any(metrics.get(name) is not None for name in ("test_accuracy", "test_rmse"))
    return error_of(metrics) if known else math.nan


def _error_curves(comparison: Comparison, cost: str) -> Curves:
    """Return (cost, mean error, std) of each entry, evaluation by evaluation.

    Of a run whose history does not tell its last error alone. Exchanges and bytes are of federated
    methods.
    """
    _, unit, whole = _COSTS[cost]
    factor, found = _unit(comparison)[2], Curves()

    def course(result: Mapping[str, Any]) -> list[tuple[float, float]]:
        told = [
            (row[cost], row["test_error"])
            for row in result["history"]
            if row.get("test_error") is not None and row.get(cost) is not None
        ]
        return told or [(whole(result), _final_error(result))]

    for entry in comparison.entries:
        if cost == "seconds" or comparison.summaries[entry.label]["exchanges"]:
            together = zip(*map(course, entry.results), strict=False)
            points = [np.array(one).T for one in together]
            found[entry.label] = [
                (float(unit * x.mean()), float(factor * e.mean()), float(factor * e.std()))
                for x, e in points
            ]
    return found


def _errors_of_all(
    cost: str, comparisons: Sequence[Comparison], stem: Path, styles: Styles, name: str = ""
) -> FigureBlock:
    """Draw the test error of each method over what it cost so far, a panel per data set."""
    (text, unit, _), words = _unit(comparisons[0]), _COSTS[cost][0]
    path = plot_error_panels(
        {one.dataset: _error_curves(one, cost) for one in comparisons},
        _file(stem, name),
        ylabel=f"{text} ({unit})",
        xlabel=words,
        styles=styles,
    )
    more = ", without that of evaluations and cross-validation" if cost == "seconds" else ""
    whose = f"{comparisons[0].dataset}: " if name else ""
    return FigureBlock(f"{whose}{text} on held-out rows over {words}{more}; {_MARKERS}", path)


def _errors_over(
    cost: str, name: str, comparison: Comparison, stem: Path, styles: Styles
) -> FigureBlock:
    return _errors_of_all(cost, [comparison], stem, styles, name)


def _errors_box(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """Draw test errors of the runs of each method."""
    name, (text, unit, scale) = comparison.dataset, _unit(comparison)
    path = plot_error_boxes(
        {
            entry.label: [scale * _final_error(result) for result in entry.results]
            for entry in comparison.entries
            if entry.method != "constant"  # others would be hard to tell apart beside it
        },
        _file(stem, "errors-box"),
        title=f"{name}: {text} over runs",
        xlabel=f"{text} ({unit})",
        styles=styles,
    )
    return FigureBlock(
        f"{name}: {text} on held-out rows; a dot per run, quartiles and median as a box", path
    )


def _traffic(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """Draw what all clients sent and got."""
    name = comparison.dataset
    sent = {
        label: [(s[way] / 1e6, None) for way in ("bytes_up", "bytes_down")]
        for label, s in comparison.summaries.items()
        if s["exchanges"]
    }
    path = plots.plot_bars(
        sent,
        _file(stem, "bytes"),
        title=f"{name}: traffic",
        xlabel="traffic (MB)",
        parts=("up: clients to server", "down: server to clients"),
        styles=styles,
    )
    return FigureBlock(f"{name}: arrays sent by all clients and to them", path)


def _topologies(comparison: Comparison, stem: Path, _: Styles) -> FigureBlock:
    """Draw link times of star, ring and tree."""
    return FigureBlock(
        "Link time of one sum by star, ring, tree and two trees, computed: 1 ms of latency, "
        f"100 Mbit/s. {SERVER_NOTE}",
        plot_topologies(_file(stem, "topologies")),
    )


# -- what the history of a run tells, and what is of one method


def _mse(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    name, bars = comparison.dataset, {}
    for label, summary in comparison.summaries.items():
        mean, std = (summary["metrics"][key] for key in ("mse", "mse_std"))
        spread = None if std is None or comparison.runs == 1 else 1e3 * std
        bars[label] = [(None if mean is None else 1e3 * mean, spread)]
    path = plots.plot_bars(
        bars,
        _file(stem, "mse"),
        title=f"{name}: prediction error",
        xlabel="mean squared error (10⁻³)",
        styles=styles,
    )
    return FigureBlock(f"{name}: mean squared error of each method", path)


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
    return _curves(
        curves,
        _file(stem, "regret"),
        f"{text} over time",
        title=text,
        axes=("samples per client t", "regret per sample (squared error)"),
        styles=styles,
    )


def _points(rows: Iterable[Mapping[str, Any]], name: str) -> list[tuple[float, float, float]]:
    """Return what can be drawn on a logarithmic axis of what a history tells, by rounds."""
    known = ((row["round"], row.get(name)) for row in rows)
    return [(float(at), max(value, 1e-12), 0.0) for at, value in known if value is not None]


def _consensus(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """Draw |z_t - z_{t-1}| over the iterations of the first run (HierarchicalSVM, Figure 9)."""
    curves = {
        entry.label: _points(entry.results[0]["history"], "consensus_difference")
        for entry in comparison.entries
    }
    text = f"{comparison.dataset}: change of the global model"
    return _curves(
        {label: points for label, points in curves.items() if points},
        _file(stem, "consensus"),
        f"{text} from the iteration before, first run",
        title=text,
        axes=("iteration", "consensus difference |z - z before|"),
        styles=styles,
    )


def _residual(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """Draw squared residuals over iterations, mean of the runs that got so far."""
    curves = Curves()
    for label, summary in comparison.summaries.items():
        runs = [run for run in summary["squared_residuals"] if len(run) > 1]
        if runs:
            length = min(map(len, runs))
            logs = np.log10([[max(v, 1e-300) for v in run[:length]] for run in runs])
            curves[label] = [(k + 1, float(10.0 ** logs[:, k].mean()), 0.0) for k in range(length)]
    return _curves(
        curves,
        _file(stem, "residual"),
        f"{comparison.dataset}: sum of squared residuals, geometric mean over runs",
        title=f"{comparison.dataset}: residual",
        axes=("iteration", "sum of squared residuals"),
        styles=styles,
    )


def _reconstruction(sampling: str, comparison: Comparison, stem: Path, _: Styles) -> FigureBlock:
    """Draw errors of reconstructed distances against the number of landmarks (FedCG, Figure 8)."""
    curves = Curves()
    for label, summary in comparison.summaries.items():
        if label.rpartition(", ")[0] == sampling:
            for name, text in ATTACKS.items():
                error = max(summary["metrics"][f"reconstruction_{name}"], 1e-16)
                point = (float(summary["options"]["landmarks"]), error, 0.0)
                curves.setdefault(text, []).append(point)
    return _curves(
        curves,
        _file(stem, f"reconstruction-{sampling}"),
        f"{comparison.dataset}, landmarks {sampling}: relative error of the distances between "
        "training rows, from what protocol naive shows the server",
        title=f"{comparison.dataset}: distances between patients, landmarks {sampling}",
        axes=("landmarks (number)", "relative error of squared distances"),
    )


def _participation(comparison: Comparison, stem: Path, _: Styles) -> FigureBlock:
    """Draw the AUC against the share of users in the kernel (FedCFK, Tables 1 and 2)."""
    points = [
        (100.0 * entry.options.get("participation", 1.0), *_spread(entry, _metric("auc")))
        for entry in comparison.entries
        if entry.reference is None
    ]
    return _curves(
        {"FedCFK": points},
        _file(stem, "participation"),
        f"{comparison.dataset}: AUC against the share of users in the kernel; {_BAND}",
        title=f"{comparison.dataset}: recommendations and participation",
        axes=("users whose ratings are in the kernel (%)", "AUC of held-out ratings"),
    )


def _kernel_error(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """Draw the error of the normalised kernel over rounds (FedCFK, Figure 1)."""
    curves, looks = Curves(), dict[str, drawing.Style]()
    for label, summary in comparison.summaries.items():
        exact = summary["metrics"].get("exact_from")
        name = label if exact is None else f"{label} (exact from round {exact:g})"
        rows = [row for row in summary["history"] if row["kernel_error"] > 0.0]
        curves[name] = _points(rows, "kernel_error")
        if label in styles:
            looks[name] = styles[label]
    return _curves(
        curves,
        _file(stem, "kernel-error"),
        f"{comparison.dataset}: mean squared difference of the cosine-normalised matrices of all "
        "users and of the rounds so far",
        title=f"{comparison.dataset}: kernel after rounds of random users",
        axes=("round", "error of the normalised kernel (MSE)"),
        styles=looks,
    )


FIGURES: dict[str, DrawFigure] = {
    "bytes": _traffic,
    "errors-box": _errors_box,
    "error-time": partial(_errors_over, "seconds", "error-time"),
    "error-exchanges": partial(_errors_over, "exchanges", "error-exchanges"),
    "error-bytes": partial(_errors_over, "bytes", "error-bytes"),
    "mse": _mse,
    "regret": _regret,
    "sweep": partial(_sweep, "regret", True),
    "accuracy": partial(_sweep, "accuracy", True),
    **{f"sweep-{name}": partial(_sweep, name, False) for name in _DRAWN},
    "residual": _residual,
    **{f"reconstruction {sampling}": partial(_reconstruction, sampling) for sampling in "PUN"},
    "topologies": _topologies,
    "consensus": _consensus,
    "participation": _participation,
    "kernel-error": _kernel_error,
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
