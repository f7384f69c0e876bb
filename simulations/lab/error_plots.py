"""Draw test errors over a cost, and their spread over runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..run import drawing
from ..run.drawing import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOG_TIME, _LOG_ERROR = 20.0, 5.0  # ratios of largest to smallest from which axes are logarithmic
_LEAST_SECONDS = 1e-4  # shorter times are drawn as this
_POINT, _DOT = 8.5, 3.4  # points
_WHISKER = 1.5  # interquartile ranges


def plot_error_panels(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float, float]]]],
    path: Path,
    *,
    ylabel: str,
    xlabel: str = "training time (s)",
    styles: Mapping[str, Style] | None = None,
) -> Path:
    """Draw test errors over a cost, a panel per data set and two panels a row.

    A method with several points is a curve with a band of one standard deviation, else a marker
    with an error bar.

    Parameters
    ----------
    panels : mapping of str to mapping
        Title -> method -> ``(cost, mean, std)``. Points without a finite mean are left out.
    path : Path
        The file; PNG and SVG whatever its suffix.
    ylabel, xlabel : str
        Labels of the axes, with units.
    styles : mapping of str to Style, optional (default: by order)
        Look of the methods.

    Raises
    ------
    OptionError
        If matplotlib is not installed.
    """
    wide = min(len(panels), 2)
    rows = -(-len(panels) // 2)
    figure = drawing.new_figure(1.75 * rows if wide > 1 else 3.2)
    names = dict.fromkeys(name for curves in panels.values() for name in curves)
    looks, drawn = drawing.complete_styles(styles, names), set[str]()
    for place, (title, curves) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(rows, wide, place)
        drawn |= _draw_errors(axes, curves, looks)
        last, first = place > len(panels) - wide, wide == 1 or place % 2
        drawing.finish_axes(axes, title, xlabel if last else "", ylabel if first else "")
    labels = {n: drawing.clean_name(n) + ("" if n in drawn else " (n/a)") for n in names}
    drawing.legend_below(figure, labels, looks)
    return drawing.save_figure(figure, path)


def _draw_errors(
    axes: Axes,
    curves: Mapping[str, Sequence[tuple[float, float, float]]],
    looks: Mapping[str, Style],
) -> set[str]:
    """Draw curves and markers; return the methods with points."""
    drawn, times, errors = set(), list[float](), list[float]()
    for name, points in curves.items():
        kept = sorted(p for p in points if math.isfinite(p[0]) and math.isfinite(p[1]))
        if not kept:
            continue
        drawn.add(name)
        xs = [max(seconds, _LEAST_SECONDS) for seconds, _, _ in kept]
        means = [mean for _, mean, _ in kept]
        stds = [std if math.isfinite(std) else 0.0 for _, _, std in kept]
        if len(kept) == 1:
            style = looks[name].line() | {"markersize": _POINT, "linestyle": "none"}
            bars = axes.errorbar(xs, means, yerr=stds if stds[0] else None, capsize=3, **style)
            bars[0].set(markeredgecolor=drawing.INK, markeredgewidth=0.7)
        else:
            if any(stds):
                low, high = np.subtract(means, stds), np.add(means, stds)
                axes.fill_between(xs, low, high, color=looks[name].colour, alpha=0.16, linewidth=0)
            drawing.draw_line(axes, xs, means, looks[name])
        times += xs
        errors += means
    if not times:
        drawing.say_no_data(axes)
        return drawn
    drawing.scale_x(axes, times, log_from=_LOG_TIME)
    least, most = min(errors), max(errors)
    if least > 0 and most > _LOG_ERROR * least:
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(least / 1.3, most * 1.3)
        drawing.ticks_of_log(axes.yaxis, least, most)
    else:
        axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    return drawn


def plot_error_boxes(
    errors: Mapping[str, Sequence[float]],
    path: Path,
    *,
    title: str,
    xlabel: str,
    styles: Mapping[str, Style] | None = None,
) -> Path:
    """Draw the finite test errors of the runs of each method as a box with a dot per run.

    Arguments are those of :func:`plot_error_panels`; a method without errors gets "n/a".
    """
    figure = drawing.new_figure(1.15 + 0.36 * max(len(errors), 1))
    axes = figure.add_subplot()
    looks = drawing.complete_styles(styles, errors)
    drawn = {n: [e for e in values if math.isfinite(e)] for n, values in errors.items()}
    every = [error for values in drawn.values() for error in values]
    low, high = (min(every), max(every)) if every else (0.0, 1.0)
    margin = 0.06 * ((high - low) or abs(high) or 1.0)
    axes.set_xlim(max(low - margin, 0.0) if low >= 0 else low - margin, high + margin)
    for place, (name, values) in enumerate(drawn.items()):
        if not values:
            drawing.value_at(axes, axes.get_xlim()[0], place, "n/a")
            continue
        colour = looks[name].colour
        first, median, third = np.percentile(values, (25, 50, 75))
        reach = _WHISKER * (third - first)
        inner = [v for v in values if first - reach <= v <= third + reach]
        axes.barh(
            place,
            third - first,
            left=first,
            height=0.52,
            facecolor=drawing.tint(colour),
            edgecolor=colour,
            linewidth=1.0,
        )
        for start, end in ((min(inner), first), (third, max(inner))):
            axes.plot([start, end], [place, place], color=colour, linewidth=1.1)
        axes.plot([median, median], [place - 0.26, place + 0.26], color=colour, linewidth=2.2)
        shifts = 0.13 * np.array([-1, 1, 0])[np.arange(len(values)) % 3]
        axes.plot(
            values,
            place + shifts,
            linestyle="none",
            marker="o",
            markersize=_DOT,
            markerfacecolor="white",
            markeredgecolor=drawing.INK,
            markeredgewidth=0.6,
        )
    drawing.name_rows(axes, list(errors))
    drawing.finish_axes(axes, title, xlabel, "", grid="x")
    return drawing.save_figure(figure, path)
