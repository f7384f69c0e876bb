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
