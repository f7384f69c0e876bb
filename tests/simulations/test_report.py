"""Pages and plots of runs and comparisons: self-contained, escaped; figures of the papers."""

from __future__ import annotations

import html
import json
import math
import re
import struct
import sys
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from refusals import refuses

from fedkern_flwr.simulations.lab.comparison import (
    HEADINGS,
    Comparison,
    PaperFigure,
    count_misses,
    paper_figures,
)
from fedkern_flwr.simulations.lab.figures import FIGURES
from fedkern_flwr.simulations.lab.presets import preset
from fedkern_flwr.simulations.run import drawing
from fedkern_flwr.simulations.run.entries import Entry
from fedkern_flwr.simulations.run.plots import plot_boxes, plot_panels, plot_sweep
from fedkern_flwr.simulations.run.report import (
    BarBlock,
    Block,
    FactsBlock,
    FigureBlock,
    TableBlock,
    TextBlock,
    write_report,
)
from fedkern_flwr.simulations.run.scatter import plot_scatter

EVIL = """<script>alert('x')</script>&"\x27{evil}"""
VOID = {"meta", "img"}


class Reader(HTMLParser):
    """Checks that tags match, and collects elements and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def write(path: Path, *blocks: Block, title: str = "Title", subtitle: str = "Sub") -> str:
    """Write a page and return it as text."""
    page = write_report(path / "r.html", title=title, subtitle=subtitle, blocks=blocks)
    return page.read_text(encoding="utf-8")


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def png(path: Path) -> Path:
    """Write a grey PNG of 3 by 2 pixels."""
    pyplot.imsave(path, np.full((2, 3), 0.5), cmap="gray")
    return path


def every_block(tmp_path: Path, text: str) -> list[Block]:
    return [
        TextBlock(text, [text, text]),
        TableBlock(text, [text, text], [[text, text]], frozenset({(0, 1)})),
        FigureBlock(text, png(tmp_path / "f.png")),
        FactsBlock(text, {text: text}),
        BarBlock(text, [(text, "#0072b2", 1.0)]),
    ]


def test_the_page_needs_nothing_from_outside_and_is_the_same_again(tmp_path: Path) -> None:
    page = write(tmp_path, *every_block(tmp_path, "text"))
    images = read(page).all("img")
    assert page.startswith("<!DOCTYPE html>")
    assert not re.search(r"https?://|@import|url\(|<script|<link", page)
    assert all((image["src"] or "").startswith("data:image/png;base64,") for image in images)
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    assert write(tmp_path, *every_block(tmp_path, "text")) == page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.png", "r.html"]
    read(write(tmp_path, subtitle=""))
    assert "<h2>" not in write(tmp_path, TextBlock("", ["words"]), FactsBlock("", {}))


def test_hostile_text_is_escaped_everywhere(tmp_path: Path) -> None:
    blocks = every_block(tmp_path, EVIL)
    reader = read(write(tmp_path, *blocks, title=EVIL, subtitle=EVIL))
    assert reader.all("script") == []
    # title, h1, subtitle; text 3; table 1 + 2 + 2; figure 1; facts 3; bar 2
    assert reader.text.count(EVIL) == 3 + 3 + 5 + 1 + 3 + 2
    assert reader.all("img")[0]["alt"] == EVIL
    assert "a?b" in write(tmp_path, TextBlock("", ["a\ud800b"]))  # no valid Unicode


def test_what_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"GIF89a")
    for block, code in (
        (TableBlock("T", ["a", "b"], [["1", "2"], ["3"]]), "FK-SHAPE-DIFFERS"),
        (FigureBlock("", tmp_path / "gone.png"), "FK-FILE-READ"),
        (FigureBlock("", tmp_path / "bad.png"), "FK-FILE-FORMAT"),
    ):
        refuses(code, write, tmp_path, block)
    assert not (tmp_path / "r.html").exists()


# -- of a run


def run_page(tables: Any, commands: Any, columns: dict[str, Any], label: str) -> str:
    path = tables.write("t.csv", columns)
    given = ("run", "fed-cg", "--data", path, "--label", label, "--out", "o")
    code, _, err = commands(*given, plots=True)
    assert code == 0, err
    return Path("o/report.html").read_text()


@pytest.mark.usefixtures("in_tmp")
def test_a_run_leaves_a_page_with_its_columns_figures_and_plots(tables: Any, commands: Any) -> None:
    rng, score = np.random.default_rng(0), np.random.default_rng(1).normal(size=120)
    columns: dict[str, Any] = {"income [EUR]": np.exp(rng.normal(10, 2, 120)), "score": score}
    columns["town <x>"] = np.array(["Seldwyla", "Gotham"])[rng.integers(0, 2, 120)]
    columns |= {"always": np.ones(120), "kind": np.where(score > 0, "one <b>", "other")}
    page = run_page(tables, commands, columns, "kind")
    result, read = json.loads(Path("o/result.json").read_text()), html.unescape(page)
    for one in result["columns"]:
        assert f">{one['column']}<" in read
        assert one["text"] in read
    assert f"{result['metrics']['test_accuracy']:.4f}" in page
    for caption in ("Confusion matrix", "ROC curves", "Calibration"):
        assert caption in page
    assert page.count("data:image/png") == 3
    assert result["privacy"]["server_sees"][0] in read
    assert '<th scope="row" class="short">one <b></th>' in read
    assert "one <b>" not in page  # escaped
    head, rest = read.split("</table>", 1)
    for value in ("Seldwyla", "Gotham", "always, mean (SD)", "median [quartiles]"):
        assert value in head  # what the rows are together
        assert value not in rest
    assert str(score[0])[:8] not in read
    x = rng.normal(size=(120, 3))
    numbers = dict(zip("abc", x.T, strict=True)) | {"y": x.sum(axis=1)}
    Path("o").rename("first")
    page = run_page(tables, commands, numbers, "y")
    assert "Predicted and true labels of held-out rows, with prediction intervals" in page
    assert page.count("data:image/png") == 1


# -- the papers' figures that are missed by more than the spread


def made(values: list[float | None], paper: float, column: str = "accuracy") -> PaperFigure:
    section = replace(
        preset("demo").sections[1], paper={"Breast cancer": {column: {"FedCG": paper}}}
    )
    summaries: dict[str, Any] = {"FedCG": {"draws": {f"test_{column}": values}}}
    (found,) = paper_figures(Comparison(section, "Breast cancer", len(values), [], summaries))
    return found


def test_a_figure_within_its_spread_and_the_papers_rounding_is_met() -> None:
    found = made([0.94, 0.96], 0.96)
    assert found.ours == pytest.approx(0.95)
    assert found.spread == pytest.approx(0.0141421356)
    assert (found.decimals, found.misses, found.better) == (2, False, False)
    assert not made([0.956, 0.956], 0.96).misses  # 0.956 may be printed as 0.96
    assert made([0.954, 0.954], 0.96).misses
    diverges = made([14.4, 6.7e12], 0.029)  # whatever its spread
    assert (diverges.nearest, diverges.misses) == (14.4, True)
    alone = made([0.95], 0.96)
    assert (alone.spread, alone.misses) == (None, True)


def test_a_miss_is_better_or_worse_in_the_direction_of_its_column_or_missing() -> None:
    better, worse = made([0.99, 0.99], 0.96), made([0.90, 0.90], 0.96, "recall")
    assert (better.misses, better.better) == (True, True)
    assert (worse.misses, worse.better) == (True, False)
    met = made([0.94, 0.96], 0.96)
    counts = {"figures": 3, "missed": 2, "better": 1, "worse": 1}
    assert count_misses([better, worse, met]) == counts
    cells = ["Breast cancer", "FedCG", "recall", "0.900", "0.000", "0.96", "-0.060", "worse"]
    assert worse.cells() == cells
    assert len(HEADINGS) == len(cells)
    lacks = made([0.9, None], 0.96)
    assert (lacks.ours, lacks.spread, lacks.misses, lacks.better) == (None, None, True, None)
    assert lacks.cells()[3:] == ["-", "-", "0.96", "-", "missing"]


def test_what_gives_rows_away_is_in_red_in_the_terminal_and_the_report(
    in_tmp: Path, commands: Any, tables: Any, table: dict[str, Any]
) -> None:
    """It is no more a line of a log alone: 40 landmarks make more sums than 60 rows have cells."""
    run = ("--data", tables.write("t.csv", table), "--label", "y", "--id", "id", "--out", "here")
    code, out, _ = commands("run", "fed-cg", *run, "--landmarks", "40")
    assert code == 0
    told = re.search("rows can be computed +from equations: .* numbers of .* unknowns", out)
    assert told
    page = Path("here/report.html").read_text()
    assert re.search('<dd class="bad">from equations: [0-9,]+ numbers of [0-9,]+ unknowns', page)


# -- figures: files are valid, odd numbers and names break nothing, looks stay the same


pytest.importorskip("matplotlib")


HOSTILE = ["_hidden", r"$\frac{", "<b>&amp;\n\x00\x1b--></b>", "x" * 300, ""]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Collect the figures that are drawn."""
    figures, make = list[Figure](), drawing.new_figure
    remember = lambda height: (figures.append(make(height)), figures[-1])[1]  # noqa: E731
    monkeypatch.setattr(drawing, "new_figure", remember)
    return figures


def assert_valid(png: Path, *, svg: bool = True) -> None:
    data = png.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width == 780  # 5.2 inches at 150 dpi
    assert 150 < height < 3000
    assert 2_000 < len(data) < 500_000
    assert png.with_suffix(".svg").exists() == svg
    if svg:
        root = ElementTree.fromstring(png.with_suffix(".svg").read_bytes())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"


def texts(figure: Figure) -> list[str]:
    """Return all words of a figure that are not ticks."""
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return [text.get_text() for text in figure.axes[0].texts] + legends


def lines(figure: Figure) -> list[list[list[float]]]:
    """Return the points of each line."""
    return [np.asarray(line.get_xydata()).tolist() for line in figure.axes[0].lines]


def regret(slope: float, start: float = 0.5, n: int = 300) -> list[tuple[float, float, float]]:
    return [(t, slope + start / math.sqrt(t), 0.0) for t in range(1, n + 1)]


SWEEP = partial(plot_sweep, xlabel="x", ylabel="y (s)")
BOXES = partial(plot_boxes, xlabel="e")


def panels(own: Any, path: Path, title: str) -> Path:
    return plot_panels({"": own}, path, xlabel="s", ylabel="test error (%)")


POINTS = [(0.5, 2.0, 0.1), (0.1, 1.0, math.nan), (0.9, math.nan, 0.1), (math.inf, 1.0, 0.0)]
SQUARES = [(x, x**2, 2 * x**2) for x in (1.0, 10.0, 100.0)]
#: A plot, what it draws, the scales of its axes, and words of its figure that are no ticks.
DRAWN: list[tuple[Any, dict[str, Any], str, list[str]]] = [
    (SWEEP, {"a": regret(0.001), "b": regret(0.1)}, "log linear", []),
    (SWEEP, {"_good": regret(0.1), "fair": regret(0.2), "eM-KOFL": regret(3.4e6)}, "log log",
     ["_good", "fair", "eM-KOFL"]),
    (SWEEP, {"a": regret(-0.01, 0.05), "b": regret(0.1, 50.0)}, "log symlog", []),
    (SWEEP, {"a": POINTS, "b": []}, "linear linear", ["b (n/a)"]),
    (SWEEP, {"a": SQUARES}, "log log", []),
    (panels, {"curve": [(2.0, 0.2, 0.01), (1.0, 0.4, 0.02), (4.0, math.nan, 0.0)],
              "point": [(3.0, 0.25, 0.05)], "nothing": [(1.0, math.nan, 0.0)]},
     "linear linear", ["curve", "point", "nothing (n/a)"]),
    (panels, {"a": [(0.0, 50.0, 60.0), (1.0, 2.0, 3.0)], "b": [(40.0, 3.0, 0.0)]}, "linear log",
     []),
    (SWEEP, {"a": [(0.0, 3.0, 0.1), (1.0, 2.0, 0.1), (16.0, 1.0, 0.1)]}, "linear linear", []),
    (BOXES, {"a": [1e-9], "b": [1e9], "c": [math.nan], "d": []}, "", ["n/a"]),
    *((plot, {}, "", []) for plot in (SWEEP, panels, BOXES)),
    *((plot, dict.fromkeys(HOSTILE, values), "", []) for plot, values in (
        (SWEEP, regret(0.1)), (BOXES, [1.0, 2.0]))),
]  # fmt: skip


@pytest.mark.parametrize(("plot", "values", "scales", "words"), DRAWN)
def test_odd_numbers_and_names_are_drawn(plot, values, scales, words, tmp_path, drawn):
    """Names as they are; what diverges leaves the others readable."""
    assert_valid(plot(values, tmp_path / "new" / "v1.2", title="$_{"))
    axes = drawn[0].axes[0]
    assert scales in ("", f"{axes.get_xscale()} {axes.get_yscale()}")
    told = texts(drawn[0])
    assert told[len(told) - len(words) :] == words or told[: len(words)] == words, told
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["v1.2.png", "v1.2.svg"]


def test_points_are_those_of_the_numbers(tmp_path, drawn, monkeypatch):
    """Boxes span quartiles and show every run."""
    SWEEP({"_a": [(40, 0.05, 0.0), (10, 0.3, 0.0)]}, tmp_path / "r", title="")
    SWEEP({"a": POINTS}, tmp_path / "s", title="")
    panels({"a": [(2.0, 0.2, 0.01), (1.0, 0.4, 0.02)]}, tmp_path / "t", "")
    assert lines(drawn[0])[0] == [[10.0, 0.3], [40.0, 0.05]]
    assert lines(drawn[1])[0] == [[0.1, 1.0], [0.5, 2.0]]
    assert [[1.0, 0.4], [2.0, 0.2]] in lines(drawn[2])
    errors = [1.0, 2.0, 3.0, 4.0, 50.0]
    BOXES({"a": errors, "b": [2.0, math.nan]}, tmp_path / "b", title="")
    (axes,) = drawn[3].axes
    box = axes.patches[0].get_path().get_extents()
    assert (box.x0, box.x1) == (2.0, 4.0)
    whiskers = [sorted(line.get_xdata()) for line in axes.lines[:3]]
    assert whiskers == [[1.0, 2.0], [4.0, 4.0], [3.0, 3.0]]
    assert axes.collections[0].get_offsets()[:, 0].tolist() == errors
    for classes, colours in ((0, 1), (3, 3), (8, 1)):  # at most seven have colours
        labels = np.arange(24.0) % classes if classes else None
        plot_scatter(tmp_path / "rows", np.random.default_rng(0).random((24, 2)), labels)
        (axes,) = drawn[-1].axes
        assert (len(axes.collections), axes.get_legend() is not None) == (colours, colours > 1)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    refuses("FK-PACKAGE-MISSING", BOXES, {"a": [1.0, 2.0]}, tmp_path / "b", title="")


# -- test errors


def test_classes_are_compared_by_their_share_of_errors(tmp_path: Path, drawn: list[Figure]) -> None:
    streaming, final, unfinished = Entry("DSG", "dsg"), Entry("SVC", "svc"), Entry("x", "y")
    for shift in (0.0, 0.1):
        known = [
            {"round": t, "test_error": 0.6 - t / 5 + shift, "seconds": t + shift} for t in (1, 2)
        ]
        right = {"test_accuracy": 0.8 - shift}
        streaming.results.append({"metrics": right, "history": known, "seconds": 9.0})
        final.results.append({"metrics": {"test_accuracy": 0.9}, "history": [], "seconds": 5.0})
        unfinished.results.append({"metrics": {}, "history": [{"round": 1}], "seconds": 1.0})
    made = Comparison(preset("demo").sections[0], "Iris", 2, [streaming, final, unfinished], {}, ())
    for name in ("error-time", "errors-box"):
        block = FIGURES[name](made, tmp_path / "iris", {})
        assert (tmp_path / f"iris-{name}.png").is_file()
        assert "test error" in vars(block)["caption"]
    np.testing.assert_allclose(lines(drawn[0])[0], [[1.05, 45.0], [2.05, 25.0]])
    np.testing.assert_allclose(lines(drawn[0])[1], [[5.0, 10.0]])
