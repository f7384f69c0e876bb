"""Figures of held-out rows: ROC curves, calibration, the confusion matrix, errors of a regression.

See :mod:`.plots` for what they have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import drawing

_MOST_CURVES = 7
_MOST_POINTS = 1000
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
        curves = dict(zip(map(drawing.clean_name, rest), held_out["roc"], strict=True))
        made["roc_plot"] = plot_roc(curves, folder / "roc.png", single=len(names) == 2)
        made["calibration_plot"] = plot_calibration(
            held_out["calibration"], folder / "calibration.png"
        )
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
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
    return drawing.save_figure(figure, path, svg=False)


def plot_roc(
    curves: Mapping[str, Sequence[Sequence[float]]], path: Path, *, single: bool = False
) -> Path:
    """Draw (false, true positive rate) per class, of several the first seven."""
    figure = drawing.new_figure(4.2)
    axes = figure.add_subplot()
    shown = dict(list(curves.items())[:_MOST_CURVES])
    looks = drawing.assign_styles(shown)
    for name, points in shown.items():
        xs, ys = zip(*points, strict=True)
        drawing.draw_line(axes, xs, ys, looks[name])
    _draw_diagonal(axes)
    title = "ROC curve of held-out rows, from summed histograms"
    drawing.finish_axes(axes, title, "false positive rate", "true positive rate")
    of = "class" if single else "class against the rest:"
    drawing.legend_below(figure, {name: f"{of} {name}" for name in shown}, looks)
    return drawing.save_figure(figure, path, svg=False)


def plot_calibration(curves: Mapping[str, Sequence[Sequence[float]]], path: Path) -> Path:
    """Draw (mean probability, share of positives, rows) before and after calibration."""
    figure = drawing.new_figure(4.2)
    axes = figure.add_subplot()
    looks = drawing.assign_styles(curves)
    for name, points in curves.items():
        xs, ys, _ = zip(*points, strict=True) if points else ((), (), ())
        drawing.draw_line(axes, xs, ys, looks[name])
    _draw_diagonal(axes)
    title = "Calibration on held-out rows"
    drawing.finish_axes(axes, title, "predicted probability (mean)", "observed share of the class")
    drawing.legend_below(figure, {name: f"{name} calibration" for name in curves}, looks)
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


def _draw_diagonal(axes: Any) -> None:
    axes.plot([0.0, 1.0], [0.0, 1.0], color=drawing.SOFT, linewidth=0.8, zorder=1.5)
    for set_limits in (axes.set_xlim, axes.set_ylim):
        set_limits(-0.02, 1.02)
