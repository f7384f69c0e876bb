"""Pages of runs and comparisons: self-contained, escaped, with the figures of the papers."""

from __future__ import annotations

import base64
import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot
from refusals import refused

from fedkern_flwr.simulations.lab.comparison import Comparison
from fedkern_flwr.simulations.lab.paper_figures import (
    HEADINGS,
    PaperFigure,
    count_misses,
    paper_figures,
)
from fedkern_flwr.simulations.lab.presets import PAPERS, preset
from fedkern_flwr.simulations.lab.presets.hybrid import hospitals
from fedkern_flwr.simulations.run.report import (
    LARGEST,
    Block,
    FactsBlock,
    FigureBlock,
    TableBlock,
    TextBlock,
    write_report,
)

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
    # title, h1, subtitle; text 3; table 1 + 2 + 2; figure 1; facts 3
    assert reader.text.count(EVIL) == 3 + 3 + 5 + 1 + 3
    assert reader.all("img")[0]["alt"] == EVIL
    assert "a?b" in write(tmp_path, TextBlock("", ["a\ud800b"]))  # no valid Unicode


def test_figures_are_embedded_with_size_and_number_and_facts_by_name(tmp_path: Path) -> None:
    image = png(tmp_path / "f.png")
    facts = FactsBlock("Versions", {"flwr": "1.42.0", "numpy": "2.3.1"})
    page = write(tmp_path, FigureBlock("One", image), FigureBlock("Two", image), facts)
    reader = read(page)
    first, second = reader.all("img")
    assert first["src"] == second["src"]
    assert base64.b64decode((first["src"] or "").split(",")[1]) == image.read_bytes()
    assert (first["width"], first["height"], first["alt"]) == ("3", "2", "One")
    assert "Figure 2. Two" in reader.text
    assert "<dt>flwr</dt><dd>1.42.0</dd>\n<dt>numpy</dt><dd>2.3.1</dd>" in page


def test_columns_of_numbers_are_aligned_to_the_right(tmp_path: Path) -> None:
    columns = ["Method", "MSE", "Bytes", "Note", "Gaps"]
    rows = [
        ["POF-MKL", "31.0 ± 0.7", "2.10 MB", "3 kernels", "n/a"],
        ["eM-KOFL", "3.4·10⁹", "52 kB", "diverges", "–"],
        ["PerFedAvg", "−0.0121", "1,234,567", "", "1e-3"],
        ["local", "nan", "95%", "7", ""],
    ]
    page = write(tmp_path, TableBlock("Results", columns, rows, frozenset({(2, 1)})))
    heads = [head for head in read(page).all("th") if head["scope"] == "col"]
    assert [head.get("class") for head in heads] == [None, "num", "num", None, "num"]
    assert page.count('<th scope="row" class="short">') == 4
    assert '<td class="num"><strong>−0.0121</strong></td>' in page
    assert page.count("<strong>") == 1
    for cells in ([], ["", "n/a"], ["1", "two"], ["3 kernels"], ["1.2.3"]):
        other = write(tmp_path, TableBlock("", ["Name", "x"], [["a", cell] for cell in cells]))
        assert 'class="num"' not in other


def test_what_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"GIF89a")
    for block, code in (
        (TableBlock("T", ["a", "b"], [["1", "2"], ["3"]]), "FK-SHAPE-DIFFERS"),
        (FigureBlock("", tmp_path / "gone.png"), "FK-FILE-READ"),
        (FigureBlock("", tmp_path / "bad.png"), "FK-FILE-FORMAT"),
    ):
        with refused(code):
            write(tmp_path, block)
    assert not (tmp_path / "r.html").exists()


def test_a_page_of_many_plots_stays_below_two_megabytes(tmp_path: Path) -> None:
    """Plots get few colours where the page would be larger; their size and captions stay."""
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for k in range(6):
        axes.plot([((k + 3) * j * j) % 97 for j in range(160)], label=f"method {k}")
    axes.legend()
    figure.savefig(tmp_path / "plot.png", dpi=200)
    pyplot.close(figure)
    one = (tmp_path / "plot.png").stat().st_size
    count = 2 + 1_500_000 // one  # as base64 more than two million bytes
    page = write(tmp_path, *[FigureBlock(f"plot {k}", tmp_path / "plot.png") for k in range(count)])
    assert count * one * 4 / 3 > LARGEST > len(page.encode())
    shown = read(page).all("img")
    assert len(shown) == count
    assert (shown[0]["width"], shown[0]["height"]) == ("1600", "1000")
    alone = write(tmp_path, FigureBlock("plot", tmp_path / "plot.png"))
    kept = base64.b64decode(str(read(alone).all("img")[0]["src"]).partition(",")[2])
    assert kept == (tmp_path / "plot.png").read_bytes()


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
    assert "held-out rows of one <b>" in read
    assert "one <b>" not in page  # escaped
    for value in ("Seldwyla", "Gotham", str(score[0])[:8]):
        assert value not in read
    x = rng.normal(size=(120, 3))
    numbers = dict(zip("abc", x.T, strict=True)) | {"y": x.sum(axis=1)}
    Path("o").rename("first")
    page = run_page(tables, commands, numbers, "y")
    assert "Predicted and true labels of held-out rows, with intervals" in page
    assert page.count("data:image/png") == 1


# -- the papers' figures that are missed by more than the spread


def made(values: list[float | None], paper: float, column: str = "accuracy") -> PaperFigure:
    section = replace(hospitals(), paper={"Breast cancer": {column: {"FedCG": paper}}})
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


def test_every_figure_of_a_paper_can_be_compared_draw_by_draw(monkeypatch):
    monkeypatch.setenv("FEDKERN_DATA", "somewhere")
    monkeypatch.setattr("pathlib.Path.is_file", lambda self: True)
    told = [
        (section.family.columns[column].values, *own)
        for name in PAPERS
        for section in preset(name).sections
        for figures in section.paper.values()
        for column, own in figures.items()
    ]
    assert all(values is not None for values, *_ in told)
    assert sum(len(own) for _, *own in told) > 150


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
