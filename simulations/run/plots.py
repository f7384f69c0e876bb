"""Figures of a comparison: regret, error, traffic and sweeps, each as PNG and SVG.

Every function draws one figure, writes ``<path>.png`` (150 dpi) and ``<path>.svg`` next to each
other and returns the path of the PNG. Colours are safe for the colour-blind (Okabe and Ito, 2008);
markers and dashes tell the series apart in print as well. A method keeps its look over the figures
of a report when all of them get the same ``styles``, see :func:`assign_styles`.

Matplotlib comes with the extra ``simulation`` and is imported when a figure is drawn; nothing here
touches pyplot or any other global state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import median_low
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = [
    "Style",
    "assign_styles",
    "plot_average_regret",
    "plot_bytes",
    "plot_mse_bars",
    "plot_sweep",
]

Dash = Literal["-", "--", ":", "-."]
Scale = Literal["linear", "log"]

# Okabe and Ito's palette without yellow, which is too pale for lines on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
_DASHES: tuple[Dash, ...] = ("-", "--", ":", "-.")
_MARKERS = "osD^vPX"

_DPI = 150
_WIDTH = 5.2  # inches: the text stays readable when the figure shrinks to a column
_INK, _SOFT, _GRID = "#222222", "#666666", "#E3E3E3"
_TEXT, _SMALL = 9.5, 8.5  # points
_LOG_FROM = 50.0  # ratio of largest to smallest value from which an axis is logarithmic
_OFF_SCALE = 1000.0  # a curve this many times above the typical one leaves the figure
_MOST_POINTS = 400  # per curve; more cannot be seen and bloat the SVG
_MARK_EVERY = 0.16  # distance of markers, in diagonals of the axes
_LONGEST_NAME = 60
_LONGEST_LINE = 30  # beside a bar; there is room for two
_HUGE = 1e150  # where bars are cut: the ticks of matplotlib overflow soon after


@dataclass(frozen=True)
class Style:
    """The look of one method or series.

    Attributes
    ----------
    colour : str
        Colour of line and bar, ``"#RRGGBB"``.
    dash : {"-", "--", ":", "-."}
        Matplotlib's line style.
    marker : str
        Matplotlib's marker.
    """

    colour: str
    dash: Dash
    marker: str


def assign_styles(names: Iterable[str]) -> dict[str, Style]:
    """Give each name its own look, by order of first appearance.

    Parameters
    ----------
    names : iterable of str
        Names of all methods of a report; repetitions are fine.

    Returns
    -------
    dict of str to Style
        Colours repeat after seven names, then with other dashes and markers.
    """
    styles: dict[str, Style] = {}
    for index, name in enumerate(dict.fromkeys(names)):
        lap, place = divmod(index, len(_COLOURS))
        styles[name] = Style(
            _COLOURS[place],
            _DASHES[lap % len(_DASHES)],
            _MARKERS[(place + lap) % len(_MARKERS)],
        )
    return styles


def plot_average_regret(
    curves: Mapping[str, Sequence[tuple[int, float]]],
    path: Path,
    *,
    title: str,
    styles: Mapping[str, Style] | None = None,
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

    Returns
    -------
    Path
        The PNG.

    Raises
    ------
    OptionError
        If matplotlib is not installed.
    """
    figure = _figure(3.2)
    axes = figure.add_subplot()
    axes.set_autoscaley_on(False)  # it would follow the curves that are off scale
    looks = _complete(styles, curves)
    averages = {name: _averages(points) for name, points in curves.items()}
    drawn = {name: points for name, points in averages.items() if points}
    top = _ceiling([[y for _, y in points] for points in drawn.values()])
    shown = [[y for _, y in points if abs(y) <= top] for points in drawn.values()]

    labels, note = {}, ""
    for name, points in averages.items():
        label = _clean(name) if points else f"{_clean(name)} (n/a)"
        if extreme := max((y for _, y in points if abs(y) > top), key=abs, default=None):
            label += f" (off scale: {_number(extreme)})"
        labels[name] = label
        xs, ys = zip(*_thin(points), strict=True) if points else ((), ())
        _line(axes, xs, ys, looks[name])
    if drawn:
        _scale_x(axes, [t for points in drawn.values() for t, _ in points], log_from=20)
        note = _scale_regret(axes, shown)
    else:
        _say_no_data(axes)
    ylabel = f"average regret per sample\n(squared error{note})"
    _finish(axes, title, "samples per client $t$", ylabel)
    _legend_below(figure, labels, looks)
    return _save(figure, path)


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
    figure = _figure(1.15 + 0.31 * max(len(bars), 1))
    axes = figure.add_subplot()
    looks = _complete(styles, bars)
    rows = [_in_thousandths(entry) for entry in bars.values()]
    scale, low, high = _bar_scale(
        [mean for mean, _ in rows], [mean + (std or 0.0) for mean, std in rows], room=0.26
    )
    _scale_bars(axes, scale, low, high)
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
                    color=_INK,
                    elinewidth=1.1,
                    capsize=3,
                    capthick=1.1,
                )
                end = mean + std
        _value_at(axes, min(end, high), place, _mean_and_std(mean, std))
    _name_rows(axes, list(bars))
    _finish(axes, title, "mean squared error (10⁻³)" + _note(scale), "", grid="x")
    return _save(figure, path)


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
    figure = _figure(1.45 + 0.44 * max(len(traffic), 1))
    from matplotlib.patches import Patch  # after `_figure`, which says what to install

    axes = figure.add_subplot()
    looks = _complete(styles, traffic)
    rows = [(up / 1e6, down / 1e6) for up, down in traffic.values()]
    sizes = [size for row in rows for size in row]
    scale, low, high = _bar_scale(sizes, sizes, room=0.14)
    _scale_bars(axes, scale, low, high)
    for place, (name, row) in enumerate(zip(traffic, rows, strict=True)):
        colour = looks[name].colour
        for shift, size, face in zip((-0.19, 0.19), row, (colour, _tint(colour)), strict=True):
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
            _value_at(axes, min(max(size, low), high), place + shift, _number(size))
    _name_rows(axes, list(traffic))
    _finish(axes, title, "traffic (MB)" + _note(scale), "", grid="x")
    figure.legend(
        [
            Patch(facecolor=_SOFT, edgecolor=_SOFT),
            Patch(facecolor=_tint(_SOFT), edgecolor=_SOFT),
        ],
        ["up: clients to server", "down: server to clients"],
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=_SMALL,
        labelcolor=_INK,
    )
    return _save(figure, path)


def plot_sweep(
    curves: Mapping[str, Sequence[tuple[float, float, float]]],
    path: Path,
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    styles: Mapping[str, Style] | None = None,
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

    Returns
    -------
    Path
        The PNG.

    Raises
    ------
    OptionError
        If matplotlib is not installed.
    """
    figure = _figure(3.2)
    axes = figure.add_subplot()
    looks = _complete(styles, curves)
    all_x: list[float] = []
    all_y: list[float] = []
    labels = {}
    for name, points in curves.items():
        kept = sorted(p for p in points if math.isfinite(p[0]) and math.isfinite(p[1]))
        labels[name] = _clean(name) if kept else f"{_clean(name)} (n/a)"
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
        _line(axes, xs, means, looks[name])
        all_x += xs
        all_y += means
    if all_x:
        _scale_x(axes, all_x, log_from=_LOG_FROM)
        if min(all_y) > 0 and max(all_y) > _LOG_FROM * min(all_y):
            axes.set_yscale("log", nonpositive="clip")
            # A band that reaches zero must not drag the axis down with it.
            axes.set_ylim(min(all_y) / 2, None)
            _ticks_of_log(axes.yaxis, min(all_y), max(all_y))
    else:
        _say_no_data(axes)
    _finish(axes, title, xlabel, ylabel)
    _legend_below(figure, labels, looks)
    return _save(figure, path)


def _figure(height: float) -> Figure:
    """Return an empty figure with a canvas of its own; ``height`` in inches."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise OptionError(
            "matplotlib is not installed", remedy="pip install 'fedkern-flwr[simulation]'"
        ) from None
    layout = ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.07)
    figure = Figure(figsize=(_WIDTH, height), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _complete(styles: Mapping[str, Style] | None, names: Iterable[str]) -> dict[str, Style]:
    """Return a style for every name: the given one, else the next free one by order."""
    return assign_styles([*(styles or {}), *names]) | dict(styles or {})


def _averages(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return ``(t, regret / t)`` sorted by ``t``, without what cannot be drawn."""
    return sorted((t, r / t) for t, r in points if t > 0 and r is not None and math.isfinite(r / t))


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep at most `_MOST_POINTS` points, spread evenly over the logarithm of their place."""
    n = len(points)
    if n <= _MOST_POINTS:
        return points
    places = {round(n ** (k / (_MOST_POINTS - 1))) - 1 for k in range(_MOST_POINTS)}
    return [points[place] for place in sorted(places)]


def _ceiling(curves: list[list[float]]) -> float:
    """Return the absolute value above which a curve is off scale."""
    sizes = [max(abs(y) for y in curve) for curve in curves]
    typical = median_low(sizes) if sizes else 0.0
    return _OFF_SCALE * typical if typical > 0 else math.inf


def _scale_x(axes: Axes, values: Sequence[float], *, log_from: float) -> None:
    """Make the x axis logarithmic if its values are positive and span ``log_from``.

    Else whole numbers, such as iterations and groups, get whole ticks.
    """
    from matplotlib.ticker import MaxNLocator

    if min(values) > 0 and max(values) > log_from * min(values):
        axes.set_xscale("log")
        _ticks_of_log(axes.xaxis, min(values), max(values))
    elif all(float(value).is_integer() for value in values):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _ticks_of_log(axis: Axis, low: float, high: float) -> None:
    """Label a logarithmic axis at 1, 2, 5, 10, ... or, over many decades, at powers of ten."""
    from matplotlib.ticker import LogLocator

    decades = math.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2 else (1.0,), numticks=8))
    axis.set_major_formatter(_power_or_number)


def _power_or_number(value: float, _: float | None = None) -> str:
    """Label a tick of a logarithmic axis."""
    if value and not 1e-3 <= abs(value) < 1e4:
        return _power(value)
    return f"{value:g}".replace("-", "−")


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
        _ticks_of_log(axes.yaxis, low, high)
    elif low <= 0 and smallest > 0 and largest > _LOG_FROM * smallest:
        threshold = 10.0 ** round(math.log10(max(smallest, largest / 1e4)))
        axes.set_yscale("symlog", linthresh=threshold, linscale=0.5)
        locator = SymmetricalLogLocator(base=10, linthresh=threshold)
        locator.set_params(numticks=7)
        axes.yaxis.set_major_locator(locator)
        axes.yaxis.set_major_formatter(_power_or_number)
        pad = 1.6
        axes.set_ylim(
            low * pad if low < -threshold else low - 0.5 * threshold,
            high * pad if high > threshold else high + 0.5 * threshold,
        )
        note = f"; linear within ±{_power_or_number(threshold)}"
    else:
        margin = 0.06 * ((high - low) or abs(high) or 1.0)
        axes.set_ylim(low - margin, high + margin)
    if low < 0 < high:
        axes.axhline(0.0, color=_SOFT, linewidth=0.8, zorder=1.5)
    return note


def _scale_bars(axes: Axes, scale: Scale, low: float, high: float) -> None:
    """Set scale and limits of the value axis of a bar chart, before the bars are drawn."""
    axes.set_xlim(low, high)  # also ends autoscaling, which overflows on extreme bars
    axes.set_xscale(scale)
    if scale == "log":
        axes.xaxis.set_major_formatter(_power_or_number)


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
    if max(finite) / min(finite) > _LOG_FROM:
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


def _mean_and_std(mean: float, std: float | None) -> str:
    """Write a mean and its standard deviation with the same decimals; extremes as the mean."""
    if not math.isfinite(mean) or std is None or not 1e-3 <= abs(mean) < 1e5:
        return _number(mean)
    decimals = 1 if abs(mean) >= 1 else 3
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def _number(value: float) -> str:
    """Write a number with three significant digits, as a power of ten when far from one."""
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value and not 1e-3 <= abs(value) < 1e5:
        return _power(value)
    text = f"{value:.0f}" if value == 0 or abs(value) >= 1000 else f"{value:#.3g}"
    return text.removesuffix(".").replace("-", "−")


def _power(value: float) -> str:
    """Write a number as a multiple of a power of ten."""
    digits, exponent = f"{value:.1e}".split("e")
    power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    head = "" if digits == "1.0" else f"{digits.removesuffix('.0')}·"
    return f"{head}10{power}".replace("-", "−")


def _clean(text: str) -> str:
    """Make a name safe to print: one line, printable, not too long."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _LONGEST_NAME else f"{line[: _LONGEST_NAME - 1]}…"


def _tint(colour: str) -> str:
    """Mix a colour with white."""
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + 0.68 * (255 - c)):02X}" for c in channels)


def _note(scale: Scale) -> str:
    return ", log scale" if scale == "log" else ""


def _line(axes: Axes, xs: Sequence[float], ys: Sequence[float], style: Style) -> None:
    """Draw a curve with a few markers."""
    axes.plot(
        xs,
        ys,
        color=style.colour,
        linestyle=style.dash,
        linewidth=1.7,
        marker=style.marker,
        markersize=4.2,
        markeredgecolor="white",
        markeredgewidth=0.5,
        markevery=_MARK_EVERY if len(xs) > 12 else 1,
    )


def _value_at(axes: Axes, x: float, y: float, text: str) -> None:
    """Print a value right of the end of its bar."""
    axes.annotate(
        text,
        (x, y),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=_SMALL,
        color=_SOFT if text == "n/a" else _INK,
    )


def _name_rows(axes: Axes, names: list[str]) -> None:
    """Label the rows of a bar chart, the first on top."""
    labels = [
        "\n".join(wrap(_clean(name), _LONGEST_LINE, max_lines=2, placeholder="…")) for name in names
    ]
    axes.set_yticks(range(len(names)), labels)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_ylim(max(len(names), 1) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    if not names:
        _say_no_data(axes)


def _say_no_data(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color=_SOFT)


def _finish(
    axes: Axes, title: str, xlabel: str, ylabel: str, *, grid: Literal["x", "both"] = "both"
) -> None:
    """Add title, labels and a light grid; remove what carries no information."""
    axes.set_title(title, fontsize=_TEXT + 1, color=_INK, loc="left", pad=8, wrap=True)
    axes.title.set_parse_math(False)
    axes._left_title.set_parse_math(False)  # type: ignore[attr-defined]
    axes.set_xlabel(xlabel, fontsize=_TEXT, color=_INK)
    axes.set_ylabel(ylabel, fontsize=_TEXT, color=_INK)
    axes.grid(visible=True, axis=grid, color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    axes.tick_params(labelsize=_TEXT - 0.5, color=_SOFT, labelcolor=_INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_SOFT)


def _legend_below(figure: Figure, labels: Mapping[str, str], styles: Mapping[str, Style]) -> None:
    """Put the legend under the axes, in as many columns as fit."""
    from matplotlib.lines import Line2D

    if not labels:
        return
    handles: list[Any] = [
        Line2D(
            [],
            [],
            color=styles[name].colour,
            linestyle=styles[name].dash,
            linewidth=1.7,
            marker=styles[name].marker,
            markersize=4.8,
            markeredgecolor="white",
            markeredgewidth=0.5,
        )
        for name in labels
    ]
    longest = max(len(label) for label in labels.values())
    columns = max(1, min(len(labels), 4, 78 // (longest + 8)))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.19 * rows)
    legend = figure.legend(
        handles,
        [str(place) for place in range(len(handles))],
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=_SMALL,
        labelcolor=_INK,
        handlelength=2.2,
        columnspacing=1.4,
    )
    # Matplotlib hides labels that start with an underscore unless they are set afterwards.
    for text, label in zip(legend.get_texts(), labels.values(), strict=True):
        text.set_text(label)
        text.set_parse_math(False)


def _save(figure: Figure, path: Path) -> Path:
    """Write the figure as PNG and SVG and return the path of the PNG."""
    stem = path.name.removesuffix(path.suffix) if path.suffix in (".png", ".svg") else path.name
    for kind, metadata in (("svg", {"Date": None}), ("png", {})):
        buffer = BytesIO()
        figure.savefig(buffer, format=kind, dpi=_DPI, metadata=metadata)
        write_atomically(path.with_name(f"{stem}.{kind}"), buffer.getvalue())
    return path.with_name(f"{stem}.png")
