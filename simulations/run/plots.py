"""Figures of a comparison: regret, error, traffic and sweeps, each as PNG and SVG.

Every function draws one figure, writes ``<path>.png`` (150 dpi) and ``<path>.svg`` next to each
other and returns the path of the PNG. What a single run draws is PNG alone: an SVG would take as
long again. Colours are safe for the colour-blind (Okabe and Ito, 2008); markers and dashes tell the
series apart in print as well. A method keeps its look over the figures of a report when all of them
get the same ``styles``, see :func:`assign_styles`.

Matplotlib comes with the extra ``simulation`` and is imported when a figure is drawn; nothing here
touches pyplot or any other global state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING

from . import drawing
from .drawing import Scale, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_HUGE = 1e150  # where bars are cut: the ticks of matplotlib overflow soon after


def plot_average_regret(
    curves: Mapping[str, Sequence[tuple[int, float]]],
    path: Path,
    *,
    title: str,
    styles: Mapping[str, Style] | None = None,
    svg: bool = True,
) -> Path:
    """Draw the regret per sample against the number of samples.

    A method whose average regret is more than a thousand times the typical one runs out of the
    figure; the legend then says how far. Points that are not finite are left out.

    Parameters
    ----------
    curves : mapping of str to sequence of (int, float)
        Per method ``(t, regret)``: mean over the clients of the regret after ``t`` samples. The
        regret may be zero or negative.
    path : Path
        Where to write; the suffix does not matter.
    title : str
        Title of the figure.
    styles : mapping of str to Style, optional (default: None)
        Look of the methods; ``None`` gives them by order.
    svg : bool (default: True)
        Whether to write an SVG as well.

    Returns
    -------
    Path
        The PNG.

    Raises
    ------
    OptionError
        If matplotlib is not installed.
    """
    figure = drawing.new_figure(3.2)
    axes = figure.add_subplot()
    axes.set_autoscaley_on(False)  # it would follow the curves that are off scale
    looks = drawing.complete_styles(styles, curves)
    averages = {name: drawing.averages_of(points) for name, points in curves.items()}
    drawn = {name: points for name, points in averages.items() if points}
    top = drawing.ceiling_of([[y for _, y in points] for points in drawn.values()])
    shown = [[y for _, y in points if abs(y) <= top] for points in drawn.values()]

    labels, note = {}, ""
    for name, points in averages.items():
        label = drawing.clean_name(name) if points else f"{drawing.clean_name(name)} (n/a)"
        if extreme := max((y for _, y in points if abs(y) > top), key=abs, default=None):
            label += f" (off scale: {drawing.write_number(extreme)})"
        labels[name] = label
        xs, ys = zip(*drawing.thin_out(points), strict=True) if points else ((), ())
        drawing.draw_line(axes, xs, ys, looks[name])
    if drawn:
        drawing.scale_x(axes, [t for points in drawn.values() for t, _ in points], log_from=20)
        note = _scale_regret(axes, shown)
    else:
        drawing.say_no_data(axes)
    ylabel = f"average regret per sample\n(squared error{note})"
    drawing.finish_axes(axes, title, "samples per client t", ylabel)
    drawing.legend_below(figure, labels, looks)
    return drawing.save_figure(figure, path, svg=svg)


def plot_mse_bars(
    bars: Mapping[str, tuple[float | None, float | None] | None],
    path: Path,
    *,
    title: str,
    styles: Mapping[str, Style] | None = None,
) -> Path:
    """Draw the mean squared error of each method as a bar with its standard deviation.

    The axis is logarithmic when the largest error is more than 50 times the smallest.

    Parameters
    ----------
    bars : mapping of str to (float, float)
        Per method the mean squared error and its standard deviation over the feature draws. A mean
        that is ``None`` or NaN is written as "n/a"; so may be a whole entry.
    path : Path
        Where to write; the suffix does not matter.
    title : str
        Title of the figure.
    styles : mapping of str to Style, optional (default: None)
        Look of the methods; ``None`` gives them by order.

    Returns
    -------
    Path
        The PNG.

    Raises
    ------
    OptionError
        If matplotlib is not installed.
    """
    figure = drawing.new_figure(1.15 + 0.31 * max(len(bars), 1))
    axes = figure.add_subplot()
    looks = drawing.complete_styles(styles, bars)
    rows = [_in_thousandths(entry) for entry in bars.values()]
    scale, low, high = _bar_scale(
        [mean for mean, _ in rows], [mean + (std or 0.0) for mean, std in rows], room=0.26
    )
    drawing.scale_bars(axes, scale, low, high)
    for place, (name, (mean, std)) in enumerate(zip(bars, rows, strict=True)):
        end = low
        if math.isfinite(mean) and mean > low:
            axes.barh(place, mean - low, left=low, height=0.62, color=looks[name].colour)
            end = mean
            if std:
                left = min(mean - low, std)
                axes.errorbar(
                    mean,
                    place,
                    xerr=[[left], [std]],
                    color=drawing.INK,
                    elinewidth=1.1,
                    capsize=3,
                    capthick=1.1,
                )
                end = mean + std
        drawing.value_at(axes, min(end, high), place, drawing.write_mean_and_std(mean, std))
    drawing.name_rows(axes, list(bars))
    drawing.finish_axes(
        axes, title, "mean squared error (10⁻³)" + drawing.note_of(scale), "", grid="x"
    )
    return drawing.save_figure(figure, path)


def plot_bytes(
    traffic: Mapping[str, tuple[int, int]],
    path: Path,
    *,
    title: str,
    styles: Mapping[str, Style] | None = None,
) -> Path:
    """Draw the bytes that each method sends up to the server and down to the clients.

    The axis is logarithmic when the largest value is more than 50 times the smallest.

    Parameters
    ----------
    traffic : mapping of str to (int, int)
        Per method the bytes up and the bytes down.
    path : Path
        Where to write; the suffix does not matter.
    title : str
        Title of the figure.
    styles : mapping of str to Style, optional (default: None)
        Look of the methods; ``None`` gives them by order.

    Returns
    -------
    Path
        The PNG.

    Raises
    ------
    OptionError
        If matplotlib is not installed.
    """
    figure = drawing.new_figure(1.45 + 0.44 * max(len(traffic), 1))
    from matplotlib.patches import Patch  # after `new_figure`, which says what to install

    axes = figure.add_subplot()
    looks = drawing.complete_styles(styles, traffic)
    rows = [(up / 1e6, down / 1e6) for up, down in traffic.values()]
    sizes = [size for row in rows for size in row]
    scale, low, high = _bar_scale(sizes, sizes, room=0.14)
    drawing.scale_bars(axes, scale, low, high)
    for place, (name, row) in enumerate(zip(traffic, rows, strict=True)):
        colour = looks[name].colour
        for shift, size, face in zip(
            (-0.19, 0.19), row, (colour, drawing.tint(colour)), strict=True
        ):
            if size > low:
                axes.barh(
                    place + shift,
                    size - low,
                    left=low,
                    height=0.34,
                    facecolor=face,
                    edgecolor=colour,
                    linewidth=0.8,
                )
            drawing.value_at(
                axes, min(max(size, low), high), place + shift, drawing.write_number(size)
            )
    drawing.name_rows(axes, list(traffic))
    drawing.finish_axes(axes, title, "traffic (MB)" + drawing.note_of(scale), "", grid="x")
    figure.legend(
        [
            Patch(facecolor=drawing.SOFT, edgecolor=drawing.SOFT),
            Patch(facecolor=drawing.tint(drawing.SOFT), edgecolor=drawing.SOFT),
        ],
        ["up: clients to server", "down: server to clients"],
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=drawing.SMALL,
        labelcolor=drawing.INK,
    )
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
    """Draw means over a swept option, with a band of one standard deviation.

    Axes are logarithmic when their values are positive and span more than a factor of 50.

    Parameters
    ----------
    curves : mapping of str to sequence of (float, float, float)
        Per series ``(x, mean, std)``, in any order. Points without a finite mean are left out; a
        standard deviation that is not finite counts as none.
    path : Path
        Where to write; the suffix does not matter.
    title : str
        Title of the figure.
    xlabel, ylabel : str
        What the axes show, with units.
    styles : mapping of str to Style, optional (default: None)
        Look of the series; ``None`` gives them by order.
    marks : mapping of str to sequence of float, optional (default: None)
        Places on the horizontal axis that are marked, and what they are.
    svg : bool (default: True)
        Whether to write an SVG as well.

    Returns
    -------
    Path
        The PNG.

    Raises
    ------
    OptionError
        If matplotlib is not installed.
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
        kept = sorted(p for p in points if math.isfinite(p[0]) and math.isfinite(p[1]))
        labels[name] = drawing.clean_name(name) if kept else f"{drawing.clean_name(name)} (n/a)"
        xs, means = [x for x, _, _ in kept], [mean for _, mean, _ in kept]
        stds = [std if math.isfinite(std) else 0.0 for _, _, std in kept]
        if any(stds):
            axes.fill_between(
                xs,
                [mean - std for mean, std in zip(means, stds, strict=True)],
                [mean + std for mean, std in zip(means, stds, strict=True)],
                color=looks[name].colour,
                alpha=0.16,
                linewidth=0,
            )
        drawing.draw_line(axes, xs, means, looks[name])
        all_x += xs
        all_y += means
    if all_x:
        drawing.scale_x(axes, all_x, log_from=drawing.LOG_FROM)
        if min(all_y) > 0 and max(all_y) > drawing.LOG_FROM * min(all_y):
            axes.set_yscale("log", nonpositive="clip")
            # A band that reaches zero must not drag the axis down with it.
            axes.set_ylim(min(all_y) / 2, None)
            drawing.ticks_of_log(axes.yaxis, min(all_y), max(all_y))
    else:
        drawing.say_no_data(axes)
    drawing.finish_axes(axes, title, xlabel, ylabel)
    drawing.legend_below(figure, labels, looks)
    return drawing.save_figure(figure, path, svg=svg)


def _scale_regret(axes: Axes, curves: list[list[float]]) -> str:
    """Scale the y axis linearly, logarithmically or both for the values in sight.

    Returns what the axis' label has to add about it.
    """
    from matplotlib.ticker import SymmetricalLogLocator

    values = [y for curve in curves for y in curve]
    low, high = min(values), max(values)
    largest = max(high, -low)
    # The curve closest to zero sets the detail that must stay visible.
    sizes = [[abs(y) for y in curve if y] for curve in curves]
    smallest = min((median_low(size) for size in sizes if size), default=0.0)
    note = ""
    if low > 0 and high > 5 * low:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.3, high * 1.3)
        drawing.ticks_of_log(axes.yaxis, low, high)
    elif low <= 0 and smallest > 0 and largest > drawing.LOG_FROM * smallest:
        threshold = 10.0 ** round(math.log10(max(smallest, largest / 1e4)))
        axes.set_yscale("symlog", linthresh=threshold, linscale=0.5)
        locator = SymmetricalLogLocator(base=10, linthresh=threshold)
        locator.set_params(numticks=7)
        axes.yaxis.set_major_locator(locator)
        axes.yaxis.set_major_formatter(drawing.power_or_number)
        pad = 1.6
        axes.set_ylim(
            low * pad if low < -threshold else low - 0.5 * threshold,
            high * pad if high > threshold else high + 0.5 * threshold,
        )
        note = f"; linear within ±{drawing.power_or_number(threshold)}"
    else:
        margin = 0.06 * ((high - low) or abs(high) or 1.0)
        axes.set_ylim(low - margin, high + margin)
    if low < 0 < high:
        axes.axhline(0.0, color=drawing.SOFT, linewidth=0.8, zorder=1.5)
    return note


def _bar_scale(
    values: list[float], ends: list[float], *, room: float
) -> tuple[Scale, float, float]:
    """Return scale and limits of a bar axis.

    The longest bar leaves ``room``, a part of its length, on the right for its printed value.
    """
    finite = [value for value in values if math.isfinite(value) and value > 0]
    if not finite:
        return "linear", 0.0, 1.0
    top = max([*finite, *(end for end in ends if math.isfinite(end))])
    if max(finite) / min(finite) > drawing.LOG_FROM:
        low = max(10.0 ** math.floor(math.log10(min(finite)) - 0.15), 1 / _HUGE)
        return "log", low, min(top * (top / low) ** room, _HUGE)
    return "linear", 0.0, min(top, _HUGE) * (1 + room)


def _in_thousandths(
    entry: tuple[float | None, float | None] | None,
) -> tuple[float, float | None]:
    """Return mean and standard deviation in units of 1e-3; NaN for a missing mean."""
    mean, std = entry if entry is not None else (None, None)
    if mean is None:
        return math.nan, None
    known = std is not None and math.isfinite(std * 1e3)
    return mean * 1e3, (std * 1e3 if known and std is not None else None)
