"""Figures: files are valid, odd numbers and names break nothing, looks stay the same."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fedkern_flwr.errors import OptionError
from fedkern_flwr.simulations.run import drawing
from fedkern_flwr.simulations.run.drawing import assign_styles
from fedkern_flwr.simulations.run.plots import (
    plot_average_regret,
    plot_bytes,
    plot_mse_bars,
    plot_sweep,
)
from fedkern_flwr.simulations.run.scatter import plot_scatter

PAPER = {
    "POF-MKL (1, 100)": (31.0e-3, 0.7e-3),
    "POF-MKL (25, 20)": (31.9e-3, 0.8e-3),
    "OFSKL": (101.7e-3, 1.2e-3),
    "eM-KOFL": (3.4e6, 1e5),
    "PerFedAvg": (5.4e-3, 0.8e-3),
}
HOSTILE = ["_hidden", r"$\frac{", "<b>&amp;\n\x00\x1b--></b>", "x" * 300, ""]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Collect the figures that are drawn."""
    figures: list[Figure] = []
    make = drawing.new_figure

    def remember(height: float) -> Figure:
        figures.append(make(height))
        return figures[-1]

    monkeypatch.setattr(drawing, "new_figure", remember)
    return figures


def assert_valid(png: Path) -> None:
    data = png.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width == 780  # 5.2 inches at 150 dpi
    assert 150 < height < 3000
    assert 2_000 < len(data) < 500_000
    root = ElementTree.fromstring(png.with_suffix(".svg").read_bytes())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"


def texts(figure: Figure) -> list[str]:
    """All words of a figure that are not ticks."""
    (axes,) = figure.axes
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return [text.get_text() for text in axes.texts] + legends


def points_of(figure: Figure) -> list[list[float]]:
    """The points of the first line."""
    points: list[list[float]] = np.asarray(figure.axes[0].lines[0].get_xydata()).tolist()
    return points


def regret(slope: float, start: float = 0.5, n: int = 300) -> list[tuple[int, float]]:
    return [(t, slope * t + start * math.sqrt(t)) for t in range(1, n + 1)]


def test_names_get_distinct_looks_by_first_appearance() -> None:
    styles = assign_styles(["a", "b", "a", *(f"m{i}" for i in range(12))])
    assert list(styles)[:3] == ["a", "b", "m0"]
    assert len({(s.colour, s.dash) for s in styles.values()}) == len(styles) == 14
    assert len({s.colour for s in list(styles.values())[:7]}) == 7


def test_given_styles_hold_in_every_figure(tmp_path: Path, drawn: list[Figure]) -> None:
    styles = assign_styles(["first", "second"])
    plot_average_regret({"second": regret(0.1)}, tmp_path / "r", title="", styles=styles)
    plot_mse_bars(
        {"second": (0.1, 0.0), "new": (0.1, 0.0)}, tmp_path / "m", title="", styles=styles
    )
    line = drawn[0].axes[0].lines[0]
    bars = [mpl.colors.to_hex(bar.get_facecolor()).upper() for bar in drawn[1].axes[0].patches]
    assert line.get_color() == bars[0] == styles["second"].colour
    assert bars[1] not in {style.colour for style in styles.values()}


@pytest.mark.parametrize("name", ["fig", "fig.png", "fig.svg"])
def test_png_and_svg_lie_next_to_each_other(tmp_path: Path, name: str) -> None:
    png = plot_mse_bars(PAPER, tmp_path / "new" / name, title="Error")
    assert png == tmp_path / "new" / "fig.png"
    assert_valid(png)
    assert sorted(p.name for p in png.parent.iterdir()) == ["fig.png", "fig.svg"]


@pytest.mark.parametrize(("classes", "colours"), [(0, 1), (3, 3), (8, 1)])
def test_rows_of_a_node_are_drawn_by_class(
    tmp_path: Path, drawn: list[Figure], classes: int, colours: int
) -> None:
    """Where there are at most seven."""
    labels = np.arange(24.0) % classes if classes else None
    assert_valid(plot_scatter(tmp_path / "rows", np.random.default_rng(0).random((24, 2)), labels))
    (axes,) = drawn[0].axes
    assert len(axes.collections) == colours
    assert (axes.get_legend() is not None) == (colours > 1)


def test_a_dot_in_the_name_is_no_suffix(tmp_path: Path) -> None:
    assert plot_bytes({"a": (1, 2)}, tmp_path / "v1.2", title="").name == "v1.2.png"


@pytest.mark.parametrize(
    ("curves", "scale"),
    [
        ({"a": regret(0.01), "b": regret(0.1)}, "log"),
        ({"a": regret(-0.05, -0.1), "b": regret(0.1)}, "linear"),
        ({"a": regret(0.1), "b": regret(0.2), "c": [(1, 1e300), (2, 1e308)]}, "log"),
        ({"a": regret(-0.01, 0.05), "b": regret(0.1, 50.0)}, "symlog"),
        ({"zero": [(t, 0.0) for t in range(1, 50)]}, "linear"),
        ({"negative": [(t, -3.0 * t) for t in range(1, 50)]}, "linear"),
        ({"one point": [(1, 0.5)]}, "linear"),
        ({"a": [(0, 0.0), (1, math.nan), (2, math.inf)], "b": []}, "linear"),
        ({}, "linear"),
    ],
)
def test_average_regret_of_every_sign(
    tmp_path: Path, drawn: list[Figure], curves: dict[str, Any], scale: str
) -> None:
    assert_valid(plot_average_regret(curves, tmp_path / "r", title="Regret"))
    axes = drawn[0].axes[0]
    assert axes.get_yscale() == scale
    assert ("linear within ±" in axes.get_ylabel()) == (scale == "symlog")


def test_average_regret_divides_by_the_samples(tmp_path: Path, drawn: list[Figure]) -> None:
    plot_average_regret({"a": [(40, 2.0), (10, 3.0)]}, tmp_path / "r", title="")
    assert points_of(drawn[0]) == [[10.0, 0.3], [40.0, 0.05]]


def test_a_diverging_method_leaves_the_others_readable(tmp_path: Path, drawn: list[Figure]) -> None:
    curves = {"good": regret(0.1), "fair": regret(0.2), "eM-KOFL": regret(3.4e6)}
    assert_valid(plot_average_regret(curves, tmp_path / "r", title=""))
    assert drawn[0].axes[0].get_ylim()[1] < 1.5
    assert "eM-KOFL (off scale: 3.4·10⁶)" in texts(drawn[0])


def test_long_curves_are_thinned_but_keep_their_ends(tmp_path: Path, drawn: list[Figure]) -> None:
    plot_average_regret({"a": regret(0.1, n=20_000)}, tmp_path / "r", title="")
    x = [point[0] for point in points_of(drawn[0])]
    assert x[0] == 1
    assert x[-1] == 20_000
    assert len(x) <= 400


def test_bars_print_thousandths_and_switch_to_a_log_scale(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    assert_valid(plot_mse_bars(PAPER, tmp_path / "all", title=""))
    tame = {name: value for name, value in PAPER.items() if name != "eM-KOFL"}
    assert_valid(plot_mse_bars(tame, tmp_path / "tame", title=""))
    assert [figure.axes[0].get_xscale() for figure in drawn] == ["log", "linear"]
    assert texts(drawn[0]) == ["31.0 ± 0.7", "31.9 ± 0.8", "101.7 ± 1.2", "3.4·10⁹", "5.4 ± 0.8"]
    assert "log scale" in drawn[0].axes[0].get_xlabel()


def test_missing_and_infinite_errors_are_written_out(tmp_path: Path, drawn: list[Figure]) -> None:
    bars: dict[str, Any] = {
        "ok": (0.02, math.nan),
        "nan": (math.nan, math.nan),
        "none": None,
        "none in pair": (None, None),
        "inf": (math.inf, math.nan),
        "zero": (0.0, 0.0),
    }
    assert_valid(plot_mse_bars(bars, tmp_path / "m", title=""))
    assert texts(drawn[0]) == ["20.0", "n/a", "n/a", "n/a", "∞", "0"]
    assert len(drawn[0].axes[0].patches) == 1


@pytest.mark.parametrize(
    "bars",
    [
        {},
        {"a": (math.nan, math.nan)},
        {"a": (1e300, 1e300), "b": (1e-300, 1.0)},
        {"a": (1e308, 0.0)},
        {"a": (1e-3, 5.0), "b": (1.0, 0.1)},
    ],
)
def test_extreme_bars_are_drawn(tmp_path: Path, bars: dict[str, Any]) -> None:
    assert_valid(plot_mse_bars(bars, tmp_path / "m", title=""))


def test_bytes_are_shown_in_megabytes(tmp_path: Path, drawn: list[Figure]) -> None:
    assert_valid(plot_bytes({"a": (2_100_000, 52_000_000)}, tmp_path / "b", title=""))
    assert_valid(plot_bytes({"a": (10**3, 10**9), "b": (0, 0)}, tmp_path / "b", title=""))
    assert_valid(plot_bytes({"silent": (0, 0)}, tmp_path / "b", title=""))
    assert_valid(plot_bytes({}, tmp_path / "b", title=""))
    assert texts(drawn[0])[:2] == ["2.10", "52.0"]
    assert [figure.axes[0].get_xscale() for figure in drawn] == ["linear", "log"] + 2 * ["linear"]


def test_sweeps_sort_and_skip_what_is_not_finite(tmp_path: Path, drawn: list[Figure]) -> None:
    points = [(0.5, 2.0, 0.1), (0.1, 1.0, math.nan), (0.9, math.nan, 0.1), (math.inf, 1.0, 0.0)]
    png = plot_sweep({"a": points, "b": []}, tmp_path / "s", title="", xlabel="x", ylabel="y (s)")
    assert_valid(png)
    assert points_of(drawn[0]) == [[0.1, 1.0], [0.5, 2.0]]
    assert "b (n/a)" in texts(drawn[0])
    assert drawn[0].axes[0].get_ylabel() == "y (s)"


def test_sweeps_use_log_axes_for_wide_ranges(tmp_path: Path, drawn: list[Figure]) -> None:
    wide = {"a": [(x, x**2, 2 * x**2) for x in (1.0, 10.0, 100.0)]}
    assert_valid(plot_sweep(wide, tmp_path / "s", title="", xlabel="M", ylabel="s"))
    assert_valid(plot_sweep({}, tmp_path / "s", title="", xlabel="M", ylabel="s"))
    axes = drawn[0].axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_ylim()[0] == 0.5


@pytest.mark.parametrize(
    "plot",
    [
        lambda names, path: plot_average_regret({n: regret(0.1) for n in names}, path, title="$_{"),
        lambda names, path: plot_mse_bars(dict.fromkeys(names, (0.1, 0.01)), path, title="$_{"),
        lambda names, path: plot_bytes(dict.fromkeys(names, (10, 20)), path, title="$_{"),
    ],
)
def test_hostile_names_are_drawn_as_they_are(
    tmp_path: Path, plot: Callable[[list[str], Path], Path]
) -> None:
    assert_valid(plot(HOSTILE, tmp_path / "h"))


def test_underscored_names_stay_in_the_legend(tmp_path: Path, drawn: list[Figure]) -> None:
    plot_average_regret({"_a": regret(0.1), "b": regret(0.2)}, tmp_path / "r", title="")
    assert texts(drawn[0]) == ["_a", "b"]


def test_no_global_state_is_touched(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    plot_mse_bars(PAPER, tmp_path / "m", title="")
    assert dict(mpl.rcParams) == before


def test_without_matplotlib_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        OptionError, match=r"^matplotlib is not installed; pip install .*simulation"
    ):
        plot_bytes({"a": (1, 2)}, tmp_path / "b", title="")
