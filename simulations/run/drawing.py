"""Styles, axes, legends and files of figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import cycle
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import missing_package

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Okabe and Ito's palette without yellow, which is too pale for lines on white.
# seven of Okabe and Ito, and five of Paul Tol's muted ones
_OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
_COLOURS = (*_OKABE_ITO, "#332288", "#882255", "#999933", "#AA4499", "#664400")
_DASHES = ("-",) * 7 + ("--",) * 7 + (":",) * 7 + ("-.",) * 7
_MARKERS = "osD^vPX<>*hp"
_DPI = 150
_WIDTH = 5.2  # inches: the text stays readable when the figure shrinks to a column
INK = "#222222"
SOFT = "#666666"
GRID = "#E3E3E3"
TEXT = 9.5  # points
SMALL = 8.5
LOG_FROM = 25.0  # ratio of largest to smallest value from which an axis is logarithmic
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
    dash : str
        Line style of Matplotlib.
    marker : str
        Marker of Matplotlib.
    """

    colour: str
    dash: str
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

    Colours and markers repeat after twelve names, with other dashes.
    """
    looks = zip(cycle(_COLOURS), cycle(_DASHES), cycle(_MARKERS))
    return {name: Style(*look) for name, look in zip(dict.fromkeys(names), looks, strict=False)}


def new_figure(height: float) -> Figure:
    """Make a white figure of the common width, ``height`` inches high."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise missing_package("matplotlib is not installed") from None
    layout = ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.07)
    return Figure(figsize=(_WIDTH, height), layout=layout, facecolor="white")


def complete_styles(styles: Mapping[str, Style] | None, names: Iterable[str]) -> dict[str, Style]:
    """Give names without a style the next one."""
    return assign_styles([*(styles or {}), *names]) | dict(styles or {})


def scale_axes(axes: Axes, xs: Sequence[float], ys: Sequence[float]) -> None:
    """Scale axes logarithmically that span a large range, also one of values below zero."""
    from matplotlib.ticker import MaxNLocator

    for name, values in (("x", xs), ("y", ys)):
        low, high = min(values), max(values)
        least = min((abs(value) for value in values if value), default=1.0)
        wide = max(high, -low) >= LOG_FROM * least
        if wide and low > 0:
            axes.set(**{f"{name}scale": "log"})
        elif wide and name == "y":
            threshold = 10.0 ** round(math.log10(max(least, max(high, -low) / 1e4)))
            axes.set_yscale("symlog", linthresh=threshold, linscale=0.5)
    if all(float(value).is_integer() for value in xs) and axes.get_xscale() == "linear":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    low = min(ys)
    if low > 0 and axes.get_yscale() == "log":
        axes.set_ylim(low / 2, None)  # a band that reaches zero must not drag the axis down
    if low < 0 < max(ys):
        axes.axhline(0.0, color=SOFT, linewidth=0.8, zorder=1.5)


def clean_name(text: str) -> str:
    """Make a name printable, on one short line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    line = line if len(line) <= _LONGEST_NAME else f"{line[: _LONGEST_NAME - 1]}…"
    return _plain(line)


def _plain(text: str) -> str:
    """Escape dollars, between which Matplotlib sets mathematics."""
    return text.replace("$", r"\$")


def tint(colour: str) -> str:
    """Mix a colour with white."""
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + 0.68 * (255 - c)):02X}" for c in channels)


def draw_line(axes: Axes, xs: Sequence[float], ys: Sequence[float], style: Style) -> None:
    """Draw a curve with a few markers."""
    apart = _MARK_EVERY if len(xs) > 12 else 1
    size = 4.2 if len(xs) > 1 else 8.5
    axes.plot(xs, ys, **style.line(), markersize=size, markevery=apart)


def name_rows(axes: Axes, names: list[str]) -> None:
    """Label the rows of a bar chart from the top."""
    labels = [
        "\n".join(wrap(clean_name(name), _LONGEST_LINE, max_lines=2, placeholder="…"))
        for name in names
    ]
    axes.set_yticks(range(len(names)), labels)
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
    axes.set_title(_plain(title), fontsize=TEXT + 1, color=INK, loc="left", pad=8, wrap=True)
    axes.set_xlabel(xlabel, fontsize=TEXT, color=INK)
    axes.set_ylabel(ylabel, fontsize=TEXT, color=INK)
    axes.grid(visible=True, axis=grid, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
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


def save_figure(figure: Figure, path: Path, *, svg: bool = True) -> Path:
    """Write PNG and SVG with private access; return the path of the PNG.

    Canvases print themselves, because ``Figure.savefig`` would print twice.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    stem, buffers = path.name.removesuffix(".png"), {"png": BytesIO()}
    if svg:
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        buffers["svg"] = BytesIO()
        canvas: Any = FigureCanvasSVG(figure)  # methods of canvases have no types
        canvas.print_svg(buffers["svg"], metadata={"Date": None})
        figure.set_layout_engine("none")  # all has its place: the next one need not look for it
    figure.set_dpi(_DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.print_png(buffers["png"])
    for kind, buffer in buffers.items():
        write_atomically(path.with_name(f"{stem}.{kind}"), buffer.getvalue(), private=True)
    return path.with_name(f"{stem}.png")
