"""Styles, axes, legends and files of figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Dash = Literal["-", "--", ":", "-."]
Scale = Literal["linear", "log"]
#: x, mean and standard deviation.
Point = tuple[float, float, float]


# Okabe and Ito's palette without yellow, which is too pale for lines on white.
# seven of Okabe and Ito, and five of Paul Tol's muted ones
_OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
_COLOURS = (*_OKABE_ITO, "#332288", "#882255", "#999933", "#AA4499", "#664400")
_DASHES: tuple[Dash, ...] = ("-", "--", ":", "-.")
_MARKERS = "osD^vPX<>*hp"
_SOLID = 7  # names after which the dashes change
_DPI = 150
_WIDTH = 5.2  # inches: the text stays readable when the figure shrinks to a column
INK = "#222222"
SOFT = "#666666"
GRID = "#E3E3E3"
TEXT = 9.5  # points
SMALL = 8.5
LOG_FROM = 50.0  # ratio of largest to smallest value from which an axis is logarithmic
_MOST_POINTS = 400  # per curve; more cannot be seen and bloat the SVG
_MARK_EVERY = 0.16  # distance of markers, in diagonals of the axes
_LONGEST_NAME = 60
_LONGEST_LINE = 30  # next to a bar; there is room for two


@dataclass(frozen=True)
class Style:
    """Look of a series.

    Attributes
    ----------
    colour : str
        Colour, ``"#RRGGBB"``.
    dash : {"-", "--", ":", "-."}
        Line style of Matplotlib.
    marker : str
        Marker of Matplotlib.
    """

    colour: str
    dash: Dash
    marker: str

    def line(self) -> dict[str, Any]:
        """Return Matplotlib keywords for a curve."""
        return {
            "color": self.colour,
            "linestyle": self.dash,
            "linewidth": 1.7,
            "marker": self.marker,
            "markeredgecolor": "white",
            "markeredgewidth": 0.5,
        }


def assign_styles(names: Iterable[str]) -> dict[str, Style]:
    """Assign a look to each name, by order of first appearance.

    Colours and markers repeat after twelve names; dashes change after seven.
    """
    styles: dict[str, Style] = {}
    for index, name in enumerate(dict.fromkeys(names)):
        lap, place = divmod(index, len(_COLOURS))
        styles[name] = Style(
            _COLOURS[place],
            _DASHES[index // _SOLID % len(_DASHES)],
            _MARKERS[(place + lap) % len(_MARKERS)],
        )
    return styles


def new_figure(height: float) -> Figure:
    """Return an empty figure; ``height`` in inches."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise OptionError(
            "matplotlib is not installed",
            remedy="pip install 'fedkern-flwr[simulation]'",
            code="FK-PACKAGE-MISSING",
        ) from None
    layout = ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.07)
    figure = Figure(figsize=(_WIDTH, height), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def complete_styles(styles: Mapping[str, Style] | None, names: Iterable[str]) -> dict[str, Style]:
    """Return a style for every name, given or next."""
    return assign_styles([*(styles or {}), *names]) | dict(styles or {})


def thin_out(points: list[Point]) -> list[Point]:
    """Keep at most `_MOST_POINTS` points, evenly over the logarithm of their index."""
    n = len(points)
    if n <= _MOST_POINTS:
        return points
    places = {round(n ** (k / (_MOST_POINTS - 1))) - 1 for k in range(_MOST_POINTS)}
    return [points[place] for place in sorted(places)]


def scale_x(axes: Axes, values: Sequence[float], *, log_from: float) -> None:
    """Make the x axis logarithmic if values are positive and span ``log_from``."""
    from matplotlib.ticker import MaxNLocator

    if min(values) > 0 and max(values) > log_from * min(values):
        axes.set_xscale("log")
        ticks_of_log(axes.xaxis, min(values), max(values))
    elif all(float(value).is_integer() for value in values):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def scale_y(axes: Axes, values: Sequence[float]) -> None:
    """Make the y axis logarithmic if values span ``LOG_FROM``, linear near zero."""
    from matplotlib.ticker import SymmetricalLogLocator

    low, high = min(values), max(values)
    least = min((abs(value) for value in values if value), default=1.0)
    largest = max(high, -low)
    if low > 0 and high > LOG_FROM * low:
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(low / 2, None)  # a band that reaches zero must not drag the axis down
        ticks_of_log(axes.yaxis, low, high)
    elif low <= 0 and largest > LOG_FROM * least:
        threshold = 10.0 ** round(math.log10(max(least, largest / 1e4)))
        axes.set_yscale("symlog", linthresh=threshold, linscale=0.5)
        locator = SymmetricalLogLocator(base=10, linthresh=threshold)
        locator.set_params(numticks=7)
        axes.yaxis.set_major_locator(locator)
        axes.yaxis.set_major_formatter(power_or_number)
    if low < 0 < high:
        axes.axhline(0.0, color=SOFT, linewidth=0.8, zorder=1.5)


def ticks_of_log(axis: Axis, low: float, high: float) -> None:
    """Label a logarithmic axis at 1, 2, 5 or powers of ten."""
    from matplotlib.ticker import LogLocator

    decades = math.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2 else (1.0,), numticks=8))
    axis.set_major_formatter(power_or_number)


def power_or_number(value: float, _: float | None = None) -> str:
    """Label a tick of a logarithmic axis."""
    if value and not 1e-3 <= abs(value) < 1e4:
        return write_power(value)
    return f"{value:g}".replace("-", "−")


def write_number(value: float) -> str:
    """Write three significant digits, or a power of ten."""
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value and not 1e-3 <= abs(value) < 1e5:
        return write_power(value)
    text = f"{value:.0f}" if value == 0 or abs(value) >= 1000 else f"{value:#.3g}"
    return text.removesuffix(".").replace("-", "−")


def write_power(value: float) -> str:
    """Write a multiple of a power of ten."""
    digits, exponent = f"{value:.1e}".split("e")
    power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    head = "" if digits == "1.0" else f"{digits.removesuffix('.0')}·"
    return f"{head}10{power}".replace("-", "−")


def clean_name(text: str) -> str:
    """Make a name printable, on one short line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _LONGEST_NAME else f"{line[: _LONGEST_NAME - 1]}…"


def tint(colour: str) -> str:
    """Mix a colour with white."""
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + 0.68 * (255 - c)):02X}" for c in channels)


def draw_line(axes: Axes, xs: Sequence[float], ys: Sequence[float], style: Style) -> None:
    """Draw a curve with a few markers."""
    apart = _MARK_EVERY if len(xs) > 12 else 1
    axes.plot(xs, ys, **style.line(), markersize=4.2, markevery=apart)


def value_at(axes: Axes, x: float, y: float, text: str) -> None:
    """Print a value next to its bar."""
    axes.annotate(
        text,
        (x, y),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=SMALL,
        color=SOFT if text == "n/a" else INK,
    )


def name_rows(axes: Axes, names: list[str]) -> None:
    """Label the rows of a bar chart from the top."""
    labels = [
        "\n".join(wrap(clean_name(name), _LONGEST_LINE, max_lines=2, placeholder="…"))
        for name in names
    ]
    axes.set_yticks(range(len(names)), labels)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_ylim(max(len(names), 1) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    if not names:
        say_no_data(axes)


def say_no_data(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color=SOFT)


def finish_axes(
    axes: Axes, title: str, xlabel: str, ylabel: str, *, grid: Literal["x", "both"] = "both"
) -> None:
    """Add title, labels and a light grid."""
    axes.set_title(title, fontsize=TEXT + 1, color=INK, loc="left", pad=8, wrap=True)
    axes.title.set_parse_math(False)
    axes._left_title.set_parse_math(False)  # type: ignore[attr-defined]
    axes.set_xlabel(xlabel, fontsize=TEXT, color=INK)
    axes.set_ylabel(ylabel, fontsize=TEXT, color=INK)
    axes.grid(visible=True, axis=grid, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    axes.tick_params(labelsize=TEXT - 0.5, color=SOFT, labelcolor=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(SOFT)


def legend_below(figure: Figure, labels: Mapping[str, str], styles: Mapping[str, Style]) -> None:
    """Put the legend below the axes."""
    from matplotlib.lines import Line2D

    if not labels:
        return
    handles: list[Any] = [Line2D([], [], **styles[name].line(), markersize=4.8) for name in labels]
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
        fontsize=SMALL,
        labelcolor=INK,
        handlelength=2.2,
        columnspacing=1.4,
    )
    # Matplotlib hides labels that start with an underscore unless they are set afterwards.
    for text, label in zip(legend.get_texts(), labels.values(), strict=True):
        text.set_text(label)
        text.set_parse_math(False)


def save_figure(figure: Figure, path: Path, *, svg: bool = True) -> Path:
    """Write PNG and SVG with private access; return the path of the PNG.

    Canvases print themselves, because ``Figure.savefig`` would print twice.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    stem = path.name.removesuffix(path.suffix) if path.suffix in (".png", ".svg") else path.name
    if svg:
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        buffer = BytesIO()
        canvas: Any = FigureCanvasSVG(figure)  # its methods have no types
        canvas.print_svg(buffer, metadata={"Date": None})
        figure.set_layout_engine("none")  # all has its place: the next one need not look for it
        write_atomically(path.with_name(f"{stem}.svg"), buffer.getvalue(), private=True)
    buffer = BytesIO()
    figure.set_dpi(_DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.print_png(buffer)
    write_atomically(path.with_name(f"{stem}.png"), buffer.getvalue(), private=True)
    return path.with_name(f"{stem}.png")


def scale_bars(axes: Axes, scale: Scale, low: float, high: float) -> None:
    """Set the value axis before bars are drawn."""
    axes.set_xlim(low, high)  # also ends autoscaling, which overflows on extreme bars
    axes.set_xscale(scale)
    if scale == "log":
        axes.xaxis.set_major_formatter(power_or_number)


def write_mean_and_std(mean: float, std: float | None) -> str:
    """Write mean and standard deviation with equal decimals."""
    if not math.isfinite(mean) or std is None or not 1e-3 <= abs(mean) < 1e5:
        return write_number(mean)
    decimals = 1 if abs(mean) >= 1 else 3
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"
