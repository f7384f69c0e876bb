"""Figures of runs and comparisons: curves and boxes, as PNG and SVG.

Each function makes one figure and returns the path of its PNG. A single run writes no SVG, which
takes as long again. Colours are safe for colour-blind readers (Okabe and Ito, 2008).
Matplotlib is imported on demand, without pyplot or global state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import drawing
from .drawing import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Name -> x, mean and standard deviation of each point, in any order.
Curves = Mapping[str, Sequence[tuple[float, float, float]]]
_MOST_POINTS = 1000  # of a curve


def plot_sweep(
    curves: Curves,
    path: Path,
    *,
    title: str,
    marks: Mapping[str, Sequence[float]] | None = None,
    **how: Any,
) -> Path:
    """Draw curves in one panel, as :func:`plot_panels`, with labelled vertical lines.

    Parameters
    ----------
    curves : mapping of str to sequence of (float, float, float)
        ``(x, mean, std)`` of each series.
    path : Path
        Target; the suffix does not matter.
    title : str
        Title.
    marks : mapping of str to sequence of float, optional (default: None)
        Labelled vertical lines.
    **how : object
        As of :func:`plot_panels`.
    """
    return plot_panels({title: curves}, path, marks=marks, **how)


def plot_panels(
    panels: Mapping[str, Curves],
    path: Path,
    *,
    xlabel: str,
    ylabel: str,
    styles: Mapping[str, Style] | None = None,
    marks: Mapping[str, Sequence[float]] | None = None,
    svg: bool = True,
) -> Path:
    """Draw curves, two panels a row.

    A curve has a band of one standard deviation; a single point is a marker with an error bar. An
    axis is logarithmic if its values are positive and span more than a factor of 25; otherwise y is
    linear near zero.

    Parameters
    ----------
    panels : mapping of str to mapping
        Title -> name -> ``(x, mean, std)``, in any order; infinite points are omitted.
    path : Path
        Target; the suffix does not matter.
    xlabel, ylabel : str
        Axis labels with units.
    styles : mapping of str to Style, optional (default: None)
        Look of the names; by default assigned in order.
    marks : mapping of str to sequence of float, optional (default: None)
        Labelled vertical lines.
    svg : bool (default: True)
        Whether to write an SVG as well.

    Returns
    -------
    Path
        The PNG.
    """
    wide, rows = min(len(panels), 2), -(-len(panels) // 2)
    figure = drawing.new_figure(1.75 * rows if wide > 1 else 3.2)
    names = dict.fromkeys(name for curves in panels.values() for name in curves)
    looks, drawn = drawing.complete_styles(styles, names), set[str]()
    for place, (title, curves) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(rows, wide, place)
        drawn |= _draw_curves(axes, curves, looks, marks or {})
        last, first = place > len(panels) - wide, wide == 1 or place % 2
        drawing.finish_axes(axes, title, xlabel if last else "", ylabel if first else "")
    labels = {name: drawing.clean_name(name) + " (n/a)" * (name not in drawn) for name in names}
    drawing.legend_below(figure, labels, looks)
    return drawing.save_figure(figure, path, svg=svg)


def _draw_curves(
    axes: Axes,
    curves: Curves,
    looks: Mapping[str, Style],
    marks: Mapping[str, Sequence[float]],
) -> set[str]:
    """Draw curves and markers; return the names with points."""
    for name, places in marks.items():
        for place in places:
            axes.axvline(place, color="0.5", linewidth=0.8, linestyle=":")
            at = axes.get_xaxis_transform()
            own: Any = {"rotation": 90, "va": "top", "ha": "right", "fontsize": 7, "color": "0.4"}
            axes.text(place, 0.98, name, transform=at, **own)
    drawn: dict[str, list[tuple[float, float, float]]] = {}
    for name, points in curves.items():
        finite = sorted(p for p in points if math.isfinite(p[0]) and math.isfinite(p[1]))
        if not finite:
            continue
        kept = finite[:: 1 + len(finite) // _MOST_POINTS]  # more make a picture slow and large
        kept += finite[-1:] if kept[-1] != finite[-1] else []
        drawn[name] = [(x, y, e if math.isfinite(e) else 0.0) for x, y, e in kept]
        xs, means, stds = zip(*drawn[name], strict=True)
        if len(xs) > 1:
            low, high = zip(*((y - e, y + e) for _, y, e in drawn[name]), strict=True)
            axes.fill_between(xs, low, high, color=looks[name].colour, alpha=0.16, linewidth=0)
        elif any(stds):
            axes.errorbar(xs, means, yerr=stds, capsize=3, color=looks[name].colour)
        drawing.draw_line(axes, xs, means, looks[name])
    if drawn:
        every = [point for points in drawn.values() for point in points]
        drawing.scale_axes(axes, [x for x, *_ in every], [y for _, y, _ in every])
    else:
        drawing.say_no_data(axes)
    return drawn.keys() & looks.keys()


def plot_boxes(
    values: Mapping[str, Sequence[float]],
    path: Path,
    *,
    title: str,
    xlabel: str,
    styles: Mapping[str, Style] | None = None,
) -> Path:
    """Draw the finite values of each name as a box with a dot for each; without any it has "n/a".

    The axis is logarithmic if values are positive and span more than a factor of 25.

    Parameters
    ----------
    values : mapping of str to sequence of float
        Values of each name.
    path : Path
        Target; the suffix does not matter.
    title, xlabel : str
        Title, and axis label with a unit.
    styles : mapping of str to Style, optional (default: None)
        Look of the names; by default assigned in order.
    """
    figure = drawing.new_figure(1.15 + 0.36 * max(len(values), 1))
    axes, looks = figure.add_subplot(), drawing.complete_styles(styles, values)
    every = [value for own in values.values() for value in own if math.isfinite(value)]
    if every and min(every) > 0.0 and max(every) >= drawing.LOG_FROM * min(every):
        axes.set_xscale("log")
    for place, name in enumerate(values):
        own, colour = [v for v in values[name] if math.isfinite(v)], looks[name].colour
        if not own:
            at = axes.get_yaxis_transform()
            axes.text(0.01, place, "n/a", transform=at, va="center", fontsize=drawing.SMALL)
            continue
        look: Any = {kind: {"color": colour} for kind in ("whiskerprops", "medianprops")}
        box = {"facecolor": drawing.tint(colour), "edgecolor": colour}
        axes.boxplot(
            own,
            positions=[place],
            widths=0.52,
            orientation="horizontal",
            patch_artist=True,
            showfliers=False,
            showcaps=False,
            boxprops=box,
            **look,
        )
        places = [place + 0.13 * (number % 3 - 1) for number in range(len(own))]
        axes.scatter(own, places, s=11, c="white", edgecolors=drawing.INK, linewidths=0.6, zorder=3)
    drawing.name_rows(axes, list(values))
    drawing.finish_axes(axes, title, xlabel, "", grid="x")
    return drawing.save_figure(figure, path)


# -- held-out rows

_MOST_CURVES = 7
_MOST_POINTS = 1000
_OBSERVED = "observed share of the class"
_WRITTEN = 12  # classes up to which the cells of a confusion matrix say their numbers


def plot_judged(folder: Path, held_out: Mapping[str, Any], names: Sequence[str]) -> dict[str, Path]:
    """Draw what was counted on held-out rows; return name of the artifact -> file.

    Parameters
    ----------
    folder : Path
        Where to write.
    held_out : mapping
        See :meth:`fedkern_flwr.judging.figures.Judged.details`.
    names : sequence of str
        Of the classes.

    Raises
    ------
    OptionError
        If matplotlib is not installed.
    """
    made = dict[str, Path]()
    if "confusion" in held_out:
        matrix = np.array(held_out["confusion"])
        made["confusion_plot"] = plot_confusion(matrix, names, folder / "confusion.png")
    if "roc" in held_out:
        rest = names[1:] if len(names) == 2 else names
        of = "class" if len(names) == 2 else "class against the rest:"
        rest = [f"{of} {drawing.clean_name(name)}" for name in names[len(names) == 2 :]]
        curves = dict(zip(rest[:_MOST_CURVES], held_out["roc"], strict=False))
        title = "ROC curve of held-out rows, from summed histograms"
        labels = title, "false positive rate", "true positive rate"
        made["roc_plot"] = plot_unit_square(curves, folder / "roc.png", *labels)
        kinds = {f"{name} calibration": own for name, own in held_out["calibration"].items()}
        labels = "Calibration on held-out rows", "predicted probability (mean)", _OBSERVED
        made["calibration_plot"] = plot_unit_square(kinds, folder / "calibration.png", *labels)
    return made


def plot_confusion(matrix: NDArray[Any], names: Sequence[str], path: Path) -> Path:
    """Draw a confusion matrix, shape (classes, classes), rows are true classes."""
    figure = drawing.new_figure(4.4)
    axes = figure.add_subplot()
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    if len(names) <= _WRITTEN:
        for row, column in np.ndindex(*matrix.shape):
            colour = "white" if shares[row, column] > 0.5 else drawing.INK
            text = f"{matrix[row, column]:d}"
            axes.text(
                column, row, text, ha="center", va="center", color=colour, fontsize=drawing.SMALL
            )
    drawing.finish_axes(
        axes, f"Confusion matrix of {matrix.sum():d} held-out rows", "predicted class", "true class"
    )
    axes.grid(visible=False)
    for set_ticks in (axes.set_xticks, axes.set_yticks):
        set_ticks(range(len(names)), [drawing.clean_name(name) for name in names])
    return drawing.save_figure(figure, path, svg=False)


def plot_unit_square(
    curves: Mapping[str, Sequence[Sequence[float]]],
    path: Path,
    title: str,
    xlabel: str,
    ylabel: str,
) -> Path:
    """Draw curves of shares over shares, such as of a ROC, with the diagonal.

    Parameters
    ----------
    curves : mapping of str to sequence
        Name -> points, of which the first two numbers are drawn.
    path : Path
        Where to write; the suffix does not matter.
    title, xlabel, ylabel : str
        Texts of the figure.
    """
    figure = drawing.new_figure(4.2)
    axes = figure.add_subplot()
    looks = drawing.assign_styles(curves)
    for name, points in curves.items():
        xs, ys = zip(*(point[:2] for point in points), strict=True) if points else ((), ())
        drawing.draw_line(axes, xs, ys, looks[name])
    axes.plot([0.0, 1.0], [0.0, 1.0], color=drawing.SOFT, linewidth=0.8, zorder=1.5)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    drawing.finish_axes(axes, title, xlabel, ylabel)
    drawing.legend_below(figure, {name: name for name in curves}, looks)
    return drawing.save_figure(figure, path, svg=False)


def plot_predicted(
    true: NDArray[np.float64], predicted: NDArray[np.float64], width: float | None, path: Path
) -> Path:
    """Draw predictions of a regression against labels, with the interval of half a width.

    Parameters
    ----------
    true, predicted : ndarray, shape (n,)
        In the label's unit; of more than a thousand rows some are drawn.
    width : float or None
        Half the width of an interval.
    path : Path
        Where to write; the suffix does not matter.
    """
    figure = drawing.new_figure(4.2)
    axes = figure.add_subplot()
    step = -(-len(true) // _MOST_POINTS)
    colour = drawing.assign_styles(["rows"])["rows"].colour
    axes.scatter(predicted[::step], true[::step], s=8, alpha=0.5, color=colour, linewidths=0)
    ends = np.array([predicted.min(), predicted.max()])
    axes.plot(ends, ends, color=drawing.SOFT, linewidth=1.0)
    if width is not None:
        axes.fill_between(ends, ends - width, ends + width, color=colour, alpha=0.14, linewidth=0)
    title = "Held-out rows" + (", with prediction interval" if width is not None else "")
    drawing.finish_axes(axes, title, "prediction", "label")
    return drawing.save_figure(figure, path, svg=False)


# -- a summary

_MOST = 60  # columns that are drawn
_ACROSS = 5
_TITLE = 16  # letters in a line above a small histogram


def plot_summary(folder: Path, details: Mapping[str, Any]) -> dict[str, Path]:
    """Draw the details of a summary; return artifact -> file."""
    found, columns = {}, [one for one in details.get("columns", ()) if one["histogram"]]
    if columns:
        found["histograms_plot"] = _histograms(folder, columns[:_MOST])
    for k, one in enumerate(details.get("correlations", ())):
        if len(one["columns"]) <= _MOST:
            found[f"correlations_{k + 1}_plot"] = _correlations(folder, one, k + 1)
    gaps = {one["name"]: one["gaps"] / max(one["rows"], 1) for one in details.get("columns", ())}
    for name, one in details.get("categories", {}).items():
        known = sum(one["counts"].values())
        gaps[name] = (one["rows"] - known) / max(one["rows"], 1)
    gaps = {name: share for name, share in gaps.items() if share > 0.0}
    if gaps:
        found["missing_plot"] = _missing(folder, dict([*gaps.items()][:_MOST]))
    return found


def _histograms(folder: Path, columns: list[Any]) -> Path:
    down = -(-len(columns) // _ACROSS)
    figure = drawing.new_figure(1.2 + 1.3 * down)
    style = drawing.assign_styles(["all"])["all"]
    grid = figure.subplots(down, _ACROSS, squeeze=False).ravel()
    for axes, one in zip(grid, columns, strict=False):
        edges, counts = map(np.asarray, one["histogram"])
        axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=style.colour)
        axes.set_title(fill(drawing.clean_name(one["name"]), _TITLE), fontsize=7)
        axes.set_yticks([])
        axes.set_xticks([edges[0], edges[-1]])
        axes.set_xticklabels([_end(value, one["kind"]) for value in edges[[0, -1]]], fontsize=6)
        axes.spines[["top", "right", "left"]].set_visible(False)
    for axes in grid[len(columns) :]:
        axes.set_axis_off()
    return drawing.save_figure(figure, folder / "histograms", svg=False)


def _end(value: float, kind: str) -> str:
    """Write an end of an axis; dates are in days since 1970."""
    return str(np.datetime64(int(value), "D")) if kind == "date" else f"{value:.3g}"


def _correlations(folder: Path, one: Mapping[str, Any], number: int) -> Path:
    names = [drawing.clean_name(name) for name in one["columns"]]
    figure = drawing.new_figure(min(5.0, 2.0 + 0.25 * len(names)))  # it is as wide as the page
    axes = figure.add_subplot()
    matrix = np.array(one["matrix"], np.float64)
    image = axes.imshow(matrix, cmap="RdBu_r", vmin=-1.0, vmax=1.0)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    figure.colorbar(image, ax=axes, fraction=0.046, label="correlation")
    return drawing.save_figure(figure, folder / f"correlations-{number}", svg=False)


def _missing(folder: Path, gaps: Mapping[str, float]) -> Path:
    figure = drawing.new_figure(1.2 + 0.25 * len(gaps))
    axes = figure.add_subplot()
    style = drawing.assign_styles(["all"])["all"]
    axes.barh(range(len(gaps)), [100.0 * share for share in gaps.values()], color=style.colour)
    axes.invert_yaxis()
    axes.set_yticks(range(len(gaps)), [drawing.clean_name(name) for name in gaps], fontsize=7)
    axes.set_xlabel("missing cells (%)")
    axes.spines[["top", "right"]].set_visible(False)
    return drawing.save_figure(figure, folder / "missing", svg=False)
