"""Scatter plots of the rows of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import drawing

_MOST_CLASSES = 7


def plot_scatter(
    path: Path, points: NDArray[np.float64], labels: NDArray[np.float64] | None = None
) -> Path:
    """Draw points, coloured by class for at most seven classes.

    Parameters
    ----------
    path : Path
        Target; the suffix does not matter.
    points : ndarray, shape (n, 2)
        First two components of each row.
    labels : ndarray, shape (n,), optional
        Labels of the rows.

    Returns
    -------
    Path
        The PNG.
    """
    figure = drawing.new_figure(4.2)
    axes = figure.add_subplot()
    of = np.zeros(len(points)) if labels is None else labels
    classes = np.unique(of).tolist()
    if not 1 < len(classes) <= _MOST_CLASSES:
        of, classes = np.zeros(len(points)), [0.0]
    for value, style in zip(
        classes, drawing.assign_styles(map(str, classes)).values(), strict=True
    ):
        look: Any = {"color": style.colour, "marker": style.marker, "alpha": 0.7, "linewidths": 0}
        x, y, *_ = points[of == value].T
        axes.scatter(x, y, s=14, label=f"{value:g}", **look)
    title = f"{len(points)} rows of this node"
    drawing.finish_axes(axes, title, "component 1", "component 2")
    if len(classes) > 1:
        axes.legend(title="label", frameon=False, fontsize=8)
    return drawing.save_figure(figure, path, svg=False)
