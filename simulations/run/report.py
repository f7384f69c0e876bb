"""HTML report of a run or comparison, in one file.

Images are embedded; there are no scripts, fonts or links. It has light, dark and print styles.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, ClassVar

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
    kind: ClassVar[str] = "Table"

    def html(self, label: str) -> str:
        """Return the table; numbers are aligned to the right."""
        for place, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise OptionError(
                    f"row {place} of table {self.caption!r} has {len(row)} cells for "
                    f"{len(self.columns)} columns",
                    remedy="give one cell per column",
                    code="FK-SHAPE-DIFFERS",
                )
        kinds = [' class="num"' * _is_numeric(column) for column in zip(*self.rows, strict=True)]
        kinds = kinds or [""] * len(self.columns)
        head = zip(kinds, self.columns, strict=True)
        heads = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for kind, name in head)
        rows = "\n".join(f"<tr>{self._row(i, kinds)}</tr>" for i in range(len(self.rows)))
        wide = " wide" * (len(self.columns) >= _WIDE)
        return (
            f'<div class="table{wide}" role="region" aria-label="{label}" tabindex="0">\n<table>'
            f"\n<caption><b>{label}.</b> {escape(self.caption)}</caption>"
            f"\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>"
        )

    def _row(self, i: int, kinds: Sequence[str]) -> str:
        cells = []
        for j, (kind, cell) in enumerate(zip(kinds, self.rows[i], strict=True)):
            text = escape(cell.replace("  ", "\N{EM SPACE}"))  # HTML drops spaces that indent
            text = f"<strong>{text}</strong>" if (i, j) in self.best else text
            short = ' class="short"' * (len(cell) <= _SHORT)
            name = f'<th scope="row"{short}>{text}</th>'
            cells.append(f"<td{kind}>{text}</td>" if j or kind else name)
        return "".join(cells)


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
    kind: ClassVar[str] = "Figure"

    def html(self, label: str) -> str:
        """Return the embedded image."""
        try:
            data = self.png.read_bytes()
        except OSError as error:
            raise OptionError(
                f"cannot read the figure {self.png}: {error.strerror}",
                remedy="draw it first",
                code="FK-FILE-READ",
            ) from None
        if not data.startswith(b"\x89PNG\r\n\x1a\n"):
            raise OptionError(f"the figure {self.png} is no PNG", code="FK-FILE-FORMAT")
        caption, text = escape(self.caption), base64.b64encode(data).decode()
        image = f'<img src="data:image/png;base64,{text}" alt="{caption}">'
        return _figure(image, label, caption)


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
    kind: ClassVar[str] = "Figure"

    def html(self, label: str) -> str:
        """Return a bar with a list of its parts."""
        whole = sum(seconds for *_, seconds in self.parts)
        places = 1 if whole >= 10.0 else 2
        bars, items = "", ""
        for name, colour, seconds in self.parts:
            share, look = seconds / (whole or 1.0), f'style="background:{colour}'
            bars += f'<span {look};flex-grow:{1000.0 * share:.0f}"></span>' * (seconds > 0.0)
            figure = f"<b>{seconds:.{places}f} s</b> ({share:.0%})"
            items += f'<li><span {look}"></span>{escape(name)} {figure}</li>\n'
        inner = f'<div class="bar" aria-hidden="true">{bars}</div>\n'
        inner += f'<ul class="bar-parts">\n{items}</ul>'
        return _figure(inner, label, f"{escape(self.caption)}: {whole:.1f} s")


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
    kind: ClassVar[str] = ""

    def html(self, label: str) -> str:
        """Return the section."""
        paragraphs = "\n".join(f"<p>{escape(text)}</p>" for text in self.paragraphs)
        return f"<section>{_heading(self.heading)}\n{paragraphs}\n</section>"


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
    kind: ClassVar[str] = ""

    def html(self, label: str) -> str:
        """Return a list of definitions."""
        rows = "\n".join(
            f"<dt{mark}>{escape(name)}</dt><dd{mark}>{escape(value)}</dd>"
            for name, value in self.facts.items()
            for mark in [' class="bad"' * (name in self.warnings)]
        )
        return f"<section>{_heading(self.heading)}\n<dl>\n{rows}\n</dl>\n</section>"


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
    numbers, parts = Counter[str](), list[str]()
    for block in blocks:
        numbers[block.kind] += 1
        parts.append(block.html(f"{block.kind} {numbers[block.kind]}"))
    whole = Template(files(__package__).joinpath("report.html").read_text("utf-8"))
    page = whole.substitute(title=escape(title), lead=lead, body="\n".join(parts))
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


def _figure(inner: str, label: str, caption: str) -> str:
    return f"<figure>\n{inner}\n<figcaption><b>{label}.</b> {caption}</figcaption>\n</figure>"


def _heading(text: str) -> str:
    return f"\n<h2>{escape(text)}</h2>" if text else ""


_WIDE = 8  # columns from which on a table is set closer
_SHORT = 28  # characters of a row's name that are never broken
_NUMBER = re.compile(
    r"[<>≤≥≈~]?\s*[+−-]?[\d., ]+(e[+-]\d+)?(\s*[±–-]\s*[\d.,]+)?\s*(%|[kMGT]?i?B|[mµn]?s|min|h)?"
)
_NO_NUMBER = frozenset({"", "-", "–", "—", "n/a", "nan", "inf", "-inf", "∞", "−∞", "all data"})


def _is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column holds numbers (``31.0 ± 0.7``, ``12 MB``) and gaps."""
    filled = [text for cell in cells if (text := cell.strip()).lower() not in _NO_NUMBER]
    return bool(filled) and all(_NUMBER.fullmatch(text) for text in filled)
