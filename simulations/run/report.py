"""HTML report of a run or comparison, in one file.

Images are embedded; there are no scripts, fonts or links. It has light, dark and print styles.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.text import Text

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import OptionError

REPORT = "report.html"
_CAPTIONS = {
    "confusion_plot": "Confusion matrix of the held-out rows: true and predicted classes",
    "roc_plot": "ROC curves on the held-out rows",
    "calibration_plot": "Calibration: predicted probabilities and observed shares of the class",
    "predicted_plot": "Predicted and true labels of held-out rows, with prediction intervals",
}
#: Part of a run -> what the bar of its time calls it, and the colour, one of Okabe and Ito's.
_PARTS = {
    "read": ("reading the table", "#56b4e9"),
    "collect": ("exchanges with the parties", "#0072b2"),
    "train": ("training", "#e69f00"),
    "judge": ("evaluation", "#009e73"),
    "plots": ("plots", "#cc79a7"),
}
_HEADS = {"column": "column", "kind": "type", "text": "encoding", "outputs": "columns"}


@dataclass(frozen=True)
class TableBlock:
    """A table.

    Attributes
    ----------
    caption : str
        Caption with units.
    columns : sequence of str
        Headings.
    rows : sequence of sequence of str
        Cells; numbers are aligned to the right.
    best : frozenset of (int, int) (default: frozenset())
        Row and column, from zero, of bold cells.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class FigureBlock:
    """A figure.

    Attributes
    ----------
    caption : str
        Caption and alternative text.
    png : Path
        Image.
    """

    caption: str
    png: Path


@dataclass(frozen=True)
class BarBlock:
    """A horizontal bar of seconds.

    Attributes
    ----------
    caption : str
        Caption.
    parts : sequence of (str, str, float)
        Name, colour and seconds of each part.
    """

    caption: str
    parts: Sequence[tuple[str, str, float]]


@dataclass(frozen=True)
class TextBlock:
    """A section of text.

    Attributes
    ----------
    heading : str
        Heading, or empty.
    paragraphs : sequence of str
        Plain text.
    """

    heading: str
    paragraphs: Sequence[str]


@dataclass(frozen=True)
class FactsBlock:
    """Names and values in two columns.

    Attributes
    ----------
    heading : str
        Heading, or empty.
    facts : mapping of str to str
        Names and values.
    warnings : frozenset of str (default: frozenset())
        Names in red.
    """

    heading: str
    facts: Mapping[str, str]
    warnings: frozenset[str] = frozenset()


Block = TableBlock | FigureBlock | BarBlock | TextBlock | FactsBlock


def write_report(path: Path, *, title: str, subtitle: str, blocks: Sequence[Block]) -> Path:
    """Write a self-contained HTML page with escaped text.

    Parameters
    ----------
    path : Path
        Target, replaced at once.
    title, subtitle : str
        Head of the page.
    blocks : sequence of Block
        Content.

    Returns
    -------
    Path
        ``path``.
    """
    lead = f'\n<p class="subtitle">{escape(subtitle)}</p>' if subtitle else ""
    page = _PAGE.format(title=escape(title), lead=lead, style=_STYLE, body=_body(blocks))
    # A lone surrogate (from a file name, say) must not lose the report. Its pictures may show rows.
    write_atomically(path, page.encode("utf-8", errors="replace"), private=True)
    return path


def write_run_report(
    folder: Path,
    title: str,
    subtitle: str,
    rows: Sequence[Sequence[str]],
    tables: Mapping[str, Sequence[Sequence[str]]],
    result: Mapping[str, Any],
    first: Sequence[Sequence[str]] = (),
) -> Path:
    """Write ``report.html`` of a run, without values or categories except classes.

    Where the rows are on this computer, it begins with a table of the data.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    title, subtitle : str
        Head of the page.
    rows : sequence of (str, str)
        Names and values, with the markup of Rich.
    tables : mapping of str to sequence
        Headings and rows by caption.
    result : mapping
        Content of ``result.json``.
    first : sequence of sequence of str
        The table of the data, headings first; empty for none.
    """
    named = [(Text.from_markup(name), Text.from_markup(str(value)).plain) for name, value in rows]
    facts = dict[str, str]()
    for name, value in named:  # values of one name are listed below each other
        own = name.plain.strip()
        facts[own] = f"{facts[own]}\n{value}" if own in facts else value
    red = frozenset(name.plain.strip() for name, _ in named if name.spans)
    blocks: list[Block] = first_blocks(first, "the data")
    blocks += [
        TableBlock(name.capitalize(), heads, cells) for name, (heads, *cells) in tables.items()
    ]
    blocks.append(FactsBlock("Figures", facts, red))
    if seconds := result.get("seconds_by_part"):
        parts = [(*_PARTS[name], value) for name, value in seconds.items()]
        blocks.append(BarBlock("Time of the command by part", parts))
    if columns := result["columns"]:
        cells = [[str(one[name]) for name in _HEADS] for one in columns]
        blocks.append(TableBlock("Encoding of the columns", [*_HEADS.values()], cells))
    for name, path in result["artifacts"].items():
        if path.endswith(".png"):
            caption = _CAPTIONS.get(name, name.removesuffix("_plot").replace("_", " ").capitalize())
            blocks.append(FigureBlock(caption, folder / path))
    if seen := result["privacy"].get("server_sees"):
        blocks.append(TextBlock("The server saw", [*seen]))
    if notes := [*result["config"]["notes"], *result.get("notes", ())]:
        blocks.append(TextBlock("Notes", notes))
    return write_report(folder / REPORT, title=title, subtitle=subtitle, blocks=blocks)


def first_blocks(first: Sequence[Sequence[str]], data: str) -> list[Block]:
    """Return the table with which a report begins, if there is one."""
    return [TableBlock(f"Rows and columns of {data}", first[0], first[1:])] if first else []


def _body(blocks: Sequence[Block]) -> str:
    parts = []
    tables = figures = 0
    for block in blocks:
        match block:
            case TableBlock():
                tables += 1
                parts.append(_table(block, tables))
            case FigureBlock():
                figures += 1
                parts.append(_figure(block, figures))
            case BarBlock():
                figures += 1
                parts.append(_bar(block, figures))
            case TextBlock():
                parts.append(_text(block))
            case FactsBlock():
                parts.append(_facts(block))
    return "\n".join(parts)


def _table(block: TableBlock, number: int) -> str:
    width = len(block.columns)
    for place, row in enumerate(block.rows):
        if len(row) != width:
            raise OptionError(
                f"row {place} of table {block.caption!r} has {len(row)} cells for {width} columns",
                remedy="give one cell per column",
                code="FK-SHAPE-DIFFERS",
            )
    numeric = [_is_numeric([row[j] for row in block.rows]) for j in range(width)]
    kinds = [' class="num"' if is_numeric else "" for is_numeric in numeric]
    head = "".join(
        f'<th scope="col"{kind}>{escape(name)}</th>'
        for kind, name in zip(kinds, block.columns, strict=True)
    )
    lines = []
    for i, row in enumerate(block.rows):
        cells = []
        for j, (kind, cell) in enumerate(zip(kinds, row, strict=True)):
            text = escape(cell.replace("  ", "\N{EM SPACE}"))  # HTML drops spaces that indent
            if (i, j) in block.best:
                text = f"<strong>{text}</strong>"
            if j == 0 and not numeric[0]:
                short = ' class="short"' if len(cell) <= _SHORT else ""
                cells.append(f'<th scope="row"{short}>{text}</th>')
            else:
                cells.append(f"<td{kind}>{text}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    rows = "\n".join(lines)
    kind = "table wide" if width >= _WIDE else "table"
    return (
        f'<div class="{kind}" role="region" aria-labelledby="table-{number}" tabindex="0">\n<table>'
        f'\n<caption id="table-{number}"><b>Table {number}.</b> {escape(block.caption)}</caption>'
        f"\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>"
    )


def _figure(block: FigureBlock, number: int) -> str:
    try:
        data = block.png.read_bytes()
    except OSError as error:
        raise OptionError(
            f"cannot read the figure {block.png}: {error.strerror}",
            remedy="draw it first",
            code="FK-FILE-READ",
        ) from None
    if data[:8] != b"\x89PNG\r\n\x1a\n" or len(data) < 24:
        raise OptionError(f"the figure {block.png} is no PNG", code="FK-FILE-FORMAT")
    width, height = struct.unpack(">II", data[16:24])  # of the IHDR chunk
    caption = escape(block.caption)
    return (
        f'<figure>\n<img src="data:image/png;base64,{base64.b64encode(data).decode()}" '
        f'width="{width}" height="{height}" alt="{caption}">\n'
        f"<figcaption><b>Figure {number}.</b> {caption}</figcaption>\n</figure>"
    )


def _bar(block: BarBlock, number: int) -> str:
    """Return a bar with a list of its parts."""
    whole = sum(seconds for _, _, seconds in block.parts)
    shares = [seconds / (whole or 1.0) for _, _, seconds in block.parts]
    bars = "".join(
        f'<span style="background:{colour};flex-grow:{1000.0 * share:.0f}"></span>'
        for share, (_, colour, seconds) in zip(shares, block.parts, strict=True)
        if seconds > 0.0
    )
    items = "\n".join(
        f'<li><span style="background:{colour}"></span>{escape(name)} '
        f"<b>{seconds:.{1 if whole >= 10.0 else 2}f} s</b> ({share:.0%})</li>"
        for share, (name, colour, seconds) in zip(shares, block.parts, strict=True)
    )
    return (
        f'<figure>\n<div class="bar" aria-hidden="true">{bars}</div>\n'
        f'<ul class="bar-parts">\n{items}\n</ul>\n'
        f"<figcaption><b>Figure {number}.</b> {escape(block.caption)}: {whole:.1f} s</figcaption>"
        "\n</figure>"
    )


def _text(block: TextBlock) -> str:
    paragraphs = "\n".join(f"<p>{escape(text)}</p>" for text in block.paragraphs)
    return f"<section>{_heading(block.heading)}\n{paragraphs}\n</section>"


def _facts(block: FactsBlock) -> str:
    colours = dict.fromkeys(block.warnings, ' class="bad"')
    rows = "\n".join(
        f"<dt{(mark := colours.get(name, ''))}>{escape(name)}</dt><dd{mark}>{escape(value)}</dd>"
        for name, value in block.facts.items()
    )
    return f"<section>{_heading(block.heading)}\n<dl>\n{rows}\n</dl>\n</section>"


def _heading(text: str) -> str:
    return f"\n<h2>{escape(text)}</h2>" if text else ""


_WIDE = 8  # columns from which on a table is set closer
_SHORT = 28  # characters of a row's name that are never broken
_DIGITS = r"[+\-−]?(?:\d[\d,  ]*(?:\.\d+)?|\.\d+)(?:e[+\-]?\d+)?(?:[·×]10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?"
_NUMBER = re.compile(
    rf"[<>≤≥≈~]?\s*{_DIGITS}(?:\s*[±–-]\s*{_DIGITS})?\s*(?:%|×|[kMGT]?i?B|[mµn]?s|min|h)?",
    re.IGNORECASE,
)
_NO_NUMBER = frozenset({"", "-", "–", "—", "n/a", "nan", "inf", "-inf", "∞", "−∞", "all data"})


def _is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column holds numbers (``31.0 ± 0.7``, ``12 MB``) and gaps."""
    filled = [text for cell in cells if (text := cell.strip()).lower() not in _NO_NUMBER]
    return bool(filled) and all(_NUMBER.fullmatch(text) for text in filled)


_STYLE = """\
:root {
  color-scheme: light;
  --ink: #1c1f23; --soft: #5b636e; --paper: #ffffff; --line: #d9dde3; --band: #f5f7f9;
  --accent: #0072b2; --bad: #b3261e;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    color-scheme: dark;
    --ink: #e4e7eb; --soft: #a0a8b3; --paper: #16191d; --line: #363c45; --band: #1e2228;
    --accent: #56b4e9; --bad: #ff8a80;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 52rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
header { border-bottom: 3px solid var(--accent); margin-bottom: 2rem; padding-bottom: 1rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; text-wrap: balance; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 2.5rem 0 0.6rem; }
h1, h2, p, dt, dd, caption, figcaption { overflow-wrap: anywhere; }
.subtitle { color: var(--soft); font-size: 1.05rem; margin: 0.4rem 0 0; }
section p { max-width: 42rem; margin: 0 0 0.8rem; }
.table { margin: 1.8rem 0; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.925rem; }
caption, figcaption { color: var(--soft); font-size: 0.9rem; text-align: left; }
caption { caption-side: top; padding-bottom: 0.5rem; }
caption b, figcaption b { color: var(--ink); }
th, td { padding: 0.4rem 0.75rem; text-align: left; vertical-align: baseline; }
thead th {
  border-top: 1.5px solid var(--ink); border-bottom: 1px solid var(--ink);
  font-weight: 600; vertical-align: bottom;
}
tbody th { font-weight: 400; }
tbody tr { border-bottom: 1px solid var(--line); }
tbody tr:nth-child(even) { background: var(--band); }
tbody tr:last-child { border-bottom: 1.5px solid var(--ink); }
th.num, td.num { text-align: right; font-variant-numeric: tabular-nums; }
td.num, th.short { white-space: nowrap; }
th, td { overflow-wrap: break-word; }
.wide table { font-size: 0.85rem; }
.wide th, .wide td { padding: 0.35rem 0.45rem; }
.wide th.short { white-space: normal; }
strong { font-weight: 700; }
.bad { color: var(--bad); font-weight: 600; }
figure { margin: 2rem 0; }
figure img {
  display: block; width: auto; max-width: min(100%, 44rem); height: auto; padding: 0.5rem;
  background: #ffffff; border: 1px solid var(--line); border-radius: 6px;
}
.bar { display: flex; gap: 2px; height: 1.6rem; max-width: 44rem; }
.bar span { flex-basis: 0; min-width: 2px; }
.bar-parts {
  display: flex; flex-wrap: wrap; gap: 0.2rem 1.4rem; list-style: none;
  margin: 0.6rem 0 0; padding: 0; font-size: 0.925rem;
}
.bar-parts span {
  display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.5em;
}
.bar span, .bar-parts span { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
figcaption { margin-top: 0.5rem; max-width: 48rem; }
dl {
  display: grid; grid-template-columns: minmax(8rem, max-content) 1fr;
  margin: 0; border-top: 1px solid var(--line); font-size: 0.925rem;
}
dt, dd { margin: 0; padding: 0.35rem 0.75rem 0.35rem 0; border-bottom: 1px solid var(--line); }
dt { color: var(--soft); max-width: 18rem; padding-right: 2rem; }
dd { font-variant-numeric: tabular-nums; white-space: pre-wrap; }
@media (max-width: 34rem) {
  main { padding: 1.5rem 1rem 3rem; }
  dl { grid-template-columns: 1fr; }
  dt { border-bottom: 0; padding-bottom: 0; max-width: none; }
  dd { padding-top: 0; }
}
@media print {
  @page { margin: 18mm 16mm; }
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  .table { overflow: visible; }
  .wide table { font-size: 7.5pt; line-height: 1.35; }
  .wide th, .wide td { padding: 0.25rem 0.3rem; }
  .wide td:not(.num):last-child { min-width: 9rem; }
  h2, caption, thead { break-after: avoid; }
  thead { display: table-header-group; }
  figure, tr, dt, dd { break-inside: avoid; }
  tbody tr:nth-child(even) { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  dl { break-inside: avoid; }
  figure img { border: 0; padding: 0; max-width: 130mm; }
  p { orphans: 3; widows: 3; }
}
"""

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" \
content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
<header>
<h1>{title}</h1>{lead}
</header>
{body}
</main>
</body>
</html>
"""
