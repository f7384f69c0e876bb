"""Figures of runs and comparisons: curves and bars, as PNG and SVG.

Each function makes one figure and returns the path of its PNG. A single run writes no SVG, which
takes as long again. Colours are safe for colour-blind readers (Okabe and Ito, 2008).
Matplotlib is imported on demand, without pyplot or global state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import drawing
from .drawing import Scale, Style

#: Mean, and standard deviation if there is one.
Bar = tuple[float | None, float | None]
_HUGE = 1e150  # bars are cut here: the ticks of matplotlib overflow soon after


def plot_bars(
    bars: Mapping[str, Sequence[Bar]],
    path: Path,
    *,
    title: str,
    xlabel: str,
    parts: Sequence[str] = ("",),
    styles: Mapping[str, Style] | None = None,
) -> Path:
    """Draw bars with their values.

    The axis is logarithmic if values span more than a factor of 50.

    Parameters
    ----------
    bars : mapping of str to sequence of (float, float)
        Mean and standard deviation of each part; None or NaN has no bar.
    path : Path
        Target; the suffix does not matter.
    title, xlabel : str
        Title, and axis label with a unit.
    parts : sequence of str (default: ("",))
        Names of the bars in the legend.
    styles : mapping of str to Style, optional (default: None)
        Look of the names; by default assigned in order.

    Returns
    -------
    Path
        The PNG.
    """
    several = len(parts) > 1
    figure = drawing.new_figure(1.3 + (0.44 if several else 0.31) * max(len(bars), 1))
    from matplotlib.patches import Patch  # after `new_figure`, which reports a missing package

    axes = figure.add_subplot()
    looks = drawing.complete_styles(styles, bars)
    rows = [[_finite(bar) for bar in row] for row in bars.values()]
    flat = [bar for row in rows for bar in row]
    deviates = any(std for _, std in flat)
    ends = [mean + (std or 0.0) for mean, std in flat]
    scale, low, high = _bar_scale([m for m, _ in flat], ends, room=0.26 if deviates else 0.14)
    drawing.scale_bars(axes, scale, low, high)
    thick = 0.62 if not several else 0.72 / len(parts)
    for place, (name, row) in enumerate(zip(bars, rows, strict=True)):
        colour = looks[name].colour
        for number, (mean, std) in enumerate(row):
            at, end = place + (number - (len(row) - 1) / 2) * thick, low
            if math.isfinite(mean) and mean > low:
                face, end = drawing.tint(colour) if number else colour, mean
                look: Any = {"facecolor": face, "edgecolor": colour, "linewidth": 0.8}
                axes.barh(at, mean - low, left=low, height=0.9 * thick, **look)
            if std and end > low:
                bar = [[min(mean - low, std)], [std]]
                axes.errorbar(mean, at, xerr=bar, color=drawing.INK, elinewidth=1.1, capsize=3)
                end += std
            text = drawing.write_mean_and_std(mean, std)
            drawing.value_at(axes, min(end, high), at, text)
    drawing.name_rows(axes, list(bars))
    drawing.finish_axes(axes, title, xlabel + ", log scale" * (scale == "log"), "", grid="x")
    if several:
        faces = [drawing.SOFT, *[drawing.tint(drawing.SOFT)] * (len(parts) - 1)]
        patches = [Patch(facecolor=face, edgecolor=drawing.SOFT) for face in faces]
        look = {"frameon": False, "fontsize": drawing.SMALL, "labelcolor": drawing.INK}
        figure.legend(patches, parts, loc="outside lower center", ncols=len(parts), **look)
    return drawing.save_figure(figure, path)


def plot_sweep(
    curves: Mapping[str, Sequence[tuple[float, float, float]]],
    path: Path,
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    styles: Mapping[str, Style] | None = None,
    marks: Mapping[str, Sequence[float]] | None = None,
    svg: bool = True,
) -> Path:
    """Draw curves, with a band of one standard deviation.

    An axis is logarithmic if its values are positive and span more than a factor of 50; otherwise y
    is linear near zero. At most 400 points of a curve are drawn.

    Parameters
    ----------
    curves : mapping of str to sequence of (float, float, float)
        ``(x, mean, std)`` of each series, in any order; infinite points are omitted.
    path : Path
        Target; the suffix does not matter.
    title : str
        Title.
    xlabel, ylabel : str
        Axis labels with units.
    styles : mapping of str to Style, optional (default: None)
        Look of the series; by default assigned in order.
    marks : mapping of str to sequence of float, optional (default: None)
        Labelled vertical lines.
    svg : bool (default: True)
        Whether to write an SVG as well.

    Returns
    -------
    Path
        The PNG.
    """
    figure = drawing.new_figure(3.2)
    axes = figure.add_subplot()
    looks = drawing.complete_styles(styles, curves)
    for name, places in (marks or {}).items():
        for place in places:
            axes.axvline(place, color="0.5", linewidth=0.8, linestyle=":")
            axes.annotate(
                name,
                (place, 0.98),
                xycoords=("data", "axes fraction"),
                rotation=90,
                va="top",
                ha="right",
                fontsize=7,
                color="0.4",
            )
    all_x: list[float] = []
    all_y: list[float] = []
    labels = {}
    for name, points in curves.items():
        finite = sorted(p for p in points if math.isfinite(p[0]) and math.isfinite(p[1]))
        kept = drawing.thin_out(finite)
        labels[name] = drawing.clean_name(name) + " (n/a)" * (not kept)
        xs, means = [x for x, _, _ in kept], [mean for _, mean, _ in kept]
        stds = [std if math.isfinite(std) else 0.0 for _, _, std in kept]
        if any(stds):
            lower, upper = (
                [mean - std for _, mean, std in kept],
                [mean + std for _, mean, std in kept],
            )
            axes.fill_between(xs, lower, upper, color=looks[name].colour, alpha=0.16, linewidth=0)
        drawing.draw_line(axes, xs, means, looks[name])
        all_x += xs
        all_y += means
    if all_x:
        drawing.scale_x(axes, all_x, log_from=drawing.LOG_FROM)
        drawing.scale_y(axes, all_y)
    else:
        drawing.say_no_data(axes)
    drawing.finish_axes(axes, title, xlabel, ylabel)
    drawing.legend_below(figure, labels, looks)
    return drawing.save_figure(figure, path, svg=svg)


def _bar_scale(
    values: list[float], ends: list[float], *, room: float
) -> tuple[Scale, float, float]:
    """Return scale and limits of a bar axis, with ``room`` for the printed values."""
    finite = [value for value in values if math.isfinite(value) and value > 0]
    if not finite:
        return "linear", 0.0, 1.0
    top = max([*finite, *(end for end in ends if math.isfinite(end))])
    if max(finite) / min(finite) > drawing.LOG_FROM:
        low = max(10.0 ** math.floor(math.log10(min(finite)) - 0.15), 1 / _HUGE)
        return "log", low, min(top * (top / low) ** room, _HUGE)
    return "linear", 0.0, min(top, _HUGE) * (1 + room)


def _finite(bar: Bar) -> tuple[float, float | None]:
    """Return mean and standard deviation, NaN or None where missing."""
    mean, std = bar
    known = std is not None and math.isfinite(std)
    return (math.nan, None) if mean is None else (mean, std if known else None)
