"""The page: self-contained, escaped, valid, with numbers aligned."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedkern_flwr.errors import OptionError
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
    assert write_report(path / "r.html", title=title, subtitle=subtitle, blocks=blocks).is_file()
    return (path / "r.html").read_text(encoding="utf-8")


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def png(path: Path) -> Path:
    """Write a grey PNG of 3 by 2 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 3, 2, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(2 * b"\x00\x80\x80\x80"))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b""))
    return path


def every_block(tmp_path: Path, text: str) -> list[Block]:
    return [
        TextBlock(text, [text, text]),
        TableBlock(text, [text, text], [[text, text]], frozenset({(0, 1)})),
        FigureBlock(text, png(tmp_path / "f.png")),
        FactsBlock(text, {text: text}),
    ]


def test_the_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    page = write(tmp_path, *every_block(tmp_path, "text"))
    reader = read(page)
    assert page.startswith("<!DOCTYPE html>")
    assert not re.search(r"https?://|@import|url\(|<script|<link", page)
    assert all(
        (image["src"] or "").startswith("data:image/png;base64,") for image in reader.all("img")
    )
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_hostile_text_is_escaped_everywhere(tmp_path: Path) -> None:
    blocks = every_block(tmp_path, EVIL)
    page = write(tmp_path, *blocks, title=EVIL, subtitle=EVIL)
    reader = read(page)
    assert reader.all("script") == []
    # title, h1, subtitle; text 3; table 1 + 2 + 2; figure 1; facts 3
    assert reader.text.count(EVIL) == 3 + 3 + 5 + 1 + 3
    assert reader.all("img")[0]["alt"] == EVIL


def test_text_that_is_no_valid_unicode_does_not_lose_the_page(tmp_path: Path) -> None:
    assert "a?b" in write(tmp_path, TextBlock("", ["a\ud800b"]))


def test_figures_are_embedded_with_size_and_number(tmp_path: Path) -> None:
    image = png(tmp_path / "f.png")
    reader = read(write(tmp_path, FigureBlock("One", image), FigureBlock("Two", image)))
    first, second = reader.all("img")
    assert first["src"] == second["src"]
    assert base64.b64decode((first["src"] or "").split(",")[1]) == image.read_bytes()
    assert (first["width"], first["height"], first["alt"]) == ("3", "2", "One")
    assert "Figure 1. One" in reader.text
    assert "Figure 2. Two" in reader.text


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
    assert '<td class="num">31.0 ± 0.7</td>' in page
    assert '<td class="num"><strong>−0.0121</strong></td>' in page
    assert page.count("<strong>") == 1
    assert "<b>Table 1.</b> Results" in page


@pytest.mark.parametrize("cells", [[], ["", "n/a"], ["1", "two"], ["3 kernels"], ["1.2.3"]])
def test_other_columns_are_not(tmp_path: Path, cells: list[str]) -> None:
    page = write(tmp_path, TableBlock("", ["Name", "x"], [["a", cell] for cell in cells]))
    assert 'class="num"' not in page


def test_rows_of_the_wrong_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="row 1 of table 'T' has 1 cells for 2 columns"):
        write(tmp_path, TableBlock("T", ["a", "b"], [["1", "2"], ["3"]]))
    assert not (tmp_path / "r.html").exists()


def test_missing_and_broken_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"cannot read the figure .*gone\.png: No such file"):
        write(tmp_path, FigureBlock("", tmp_path / "gone.png"))
    (tmp_path / "bad.png").write_bytes(b"GIF89a")
    with pytest.raises(OptionError, match=r"bad\.png is no PNG"):
        write(tmp_path, FigureBlock("", tmp_path / "bad.png"))


def test_facts_are_name_and_value(tmp_path: Path) -> None:
    page = write(tmp_path, FactsBlock("Versions", {"flwr": "1.42.0", "numpy": "2.3.1"}))
    assert "<h2>Versions</h2>" in page
    assert "<dt>flwr</dt><dd>1.42.0</dd>\n<dt>numpy</dt><dd>2.3.1</dd>" in page


def test_an_empty_report_and_empty_headings_are_fine(tmp_path: Path) -> None:
    read(write(tmp_path, subtitle=""))
    assert "<h2>" not in write(tmp_path, TextBlock("", ["words"]), FactsBlock("", {}))


def test_the_same_blocks_give_the_same_bytes_and_no_scraps(tmp_path: Path) -> None:
    first = write(tmp_path, TextBlock("a", ["b"]))
    assert write(tmp_path, TextBlock("a", ["b"])) == first
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_a_page_of_many_plots_stays_below_two_megabytes(tmp_path: Path) -> None:
    """Plots get few colours where the page would be larger; their size and captions stay."""
    plt = pytest.importorskip("matplotlib.pyplot")
    figure, axes = plt.subplots(figsize=(8, 5))
    for k in range(6):
        axes.plot([((k + 3) * j * j) % 97 for j in range(160)], label=f"method {k}")
    axes.legend()
    figure.savefig(tmp_path / "plot.png", dpi=200)
    plt.close(figure)
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
