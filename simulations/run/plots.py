"""Figures of runs and comparisons: curves, bars and boxes, as PNG and SVG.

Each function makes one figure and returns the path of its PNG. A single run writes no SVG, which
takes as long again. Colours are safe for colour-blind readers (Okabe and Ito, 2008).
Matplotlib is imported on demand, without pyplot or global state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import drawing
from .drawing import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Mean, and standard deviation if there is one.
Bar = tuple[float | None, float | None]
#: Name -> x, mean and standard deviation of each point, in any order.
Curves = Mapping[str, Sequence[tuple[float, float, float]]]
_HUGE = 1e150  # bars are cut here: the ticks of matplotlib overflow soon after
_LEAST = 1e-4  # shorter times are drawn as this
_ROOM = 0.26  # of a bar's axis, for the printed values


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

    The axis is logarithmic if values span more than a factor of 25.

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
    count, looks = len(parts), drawing.complete_styles(styles, bars)
    figure = drawing.new_figure(1.3 + (0.44 if count > 1 else 0.31) * max(len(bars), 1))
    axes = figure.add_subplot()
    rows = [[_finite(bar) for bar in row] for row in bars.values()]
    ends = [mean + std for row in rows for mean, std in row if math.isfinite(mean + std)]
    shown = [mean for row in rows for mean, _ in row if math.isfinite(mean) and mean > 0]
    low, high = 0.0, min(max(ends, default=0.0), _HUGE) * (1 + _ROOM) or 1.0
    if shown and max(shown) > drawing.LOG_FROM * min(shown):
        low = max(10.0 ** math.floor(math.log10(min(shown)) - 0.15), 1 / _HUGE)
        high = min(max(ends) * (max(ends) / low) ** _ROOM, _HUGE)
        axes.set_xscale("log")
    axes.set_xlim(low, high)  # also ends autoscaling, which overflows on extreme bars
    thick, edge = 0.62 if count == 1 else 0.72 / count, {"linewidth": 0.8, "height": 0.0}
    for place, (name, row) in enumerate(zip(bars, rows, strict=True)):
        for number, (mean, std) in enumerate(row):
            colour, at = looks[name].colour, place + (number - (len(row) - 1) / 2) * thick
            face = drawing.tint(colour) if number else colour
            end = mean if low < mean < math.inf else low
            look: Any = {**edge, "height": 0.9 * thick, "facecolor": face, "edgecolor": colour}
            if std and end > low:
                look |= {"xerr": [[min(end - low, std)], [std]], "ecolor": drawing.INK}
            bar = axes.barh(at, end - low, left=low, capsize=3, **look)
            text = drawing.write_mean_and_std(mean, std or None)
            axes.bar_label(bar, [text], padding=5, fontsize=drawing.SMALL, color=drawing.INK)
    drawing.name_rows(axes, list(bars))
    log = axes.get_xscale() == "log"
    drawing.finish_axes(axes, title, xlabel + ", log scale" * log, "", grid="x")
    if count > 1:
        tints = [drawing.SOFT, *[drawing.tint(drawing.SOFT)] * (count - 1)]
        grey = {part: Style(tint, "", "s") for part, tint in zip(parts, tints, strict=True)}
        drawing.legend_below(figure, dict(zip(parts, parts, strict=True)), grey)
    return drawing.save_figure(figure, path)


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
        drawn[name] = [(x or _LEAST, y, e if math.isfinite(e) else 0.0) for x, y, e in finite]
        xs, means, stds = zip(*drawn[name], strict=True)
        if len(xs) > 1:
            bounds = zip(*((y - e, y + e) for _, y, e in drawn[name]), strict=True)
            axes.fill_between(xs, *bounds, color=looks[name].colour, alpha=0.16, linewidth=0)
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

    Arguments are those of :func:`plot_bars`.
    """
    figure = drawing.new_figure(1.15 + 0.36 * max(len(values), 1))
    axes, looks = figure.add_subplot(), drawing.complete_styles(styles, values)
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


def _finite(bar: Bar) -> tuple[float, float]:
    """Return mean and standard deviation, NaN or 0 where missing."""
    mean, std = bar
    known = std is not None and math.isfinite(std)
    return math.nan if mean is None else mean, float(std or 0.0) if known else 0.0
