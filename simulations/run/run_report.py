"""The page of a single run: its figures, what became of the columns, the plots, who saw what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from .report import BarBlock, Block, FactsBlock, FigureBlock, TableBlock, TextBlock, write_report

REPORT = "report.html"
_CAPTIONS = {
    "confusion_plot": "Confusion matrix of the held-out rows: true classes and predicted ones",
    "roc_plot": "ROC curves on the held-out rows",
    "calibration_plot": "Calibration: predicted probabilities and shares of the class",
    "predicted_plot": "Predicted and true labels of held-out rows, with intervals",
}
#: Part of a run -> what the bar of its time calls it, and the colour, one of Okabe and Ito's.
_PARTS = {
    "read": ("reading the table", "#56b4e9"),
    "collect": ("exchanges with the parties", "#0072b2"),
    "train": ("training", "#e69f00"),
    "judge": ("evaluation", "#009e73"),
    "plots": ("plots", "#cc79a7"),
}
_HEADS = {"column": "column", "kind": "holds", "text": "became", "outputs": "columns"}


def write_run_report(
    folder: Path,
    title: str,
    subtitle: str,
    rows: Sequence[Sequence[str]],
    result: Mapping[str, Any],
) -> Path:
    """Write ``report.html`` of a run; it names no value and no category but classes of the label.

    Parameters
    ----------
    folder : Path
        Of the run.
    title, subtitle : str
        Head of the page.
    rows : sequence of (str, str)
        Figures as a run shows them, with Rich's markup.
    result : mapping
        What ``result.json`` has.

    Raises
    ------
    OptionError
        A plot is missing.
    """
    named = [(Text.from_markup(name), Text.from_markup(str(value)).plain) for name, value in rows]
    facts = dict[str, str]()
    for name, value in named:  # several of one name stand below each other
        own = name.plain.strip()
        facts[own] = f"{facts[own]}\n{value}" if own in facts else value
    red = frozenset(name.plain.strip() for name, _ in named if name.spans)
    blocks: list[Block] = [FactsBlock("Figures", facts, red)]
    if seconds := result.get("seconds_by_part"):
        parts = [(*_PARTS[name], value) for name, value in seconds.items()]
        blocks.append(BarBlock("Time of the command by part", parts))
    if columns := result["columns"]:
        cells = [[str(one[name]) for name in _HEADS] for one in columns]
        blocks.append(TableBlock("What became of the columns", [*_HEADS.values()], cells))
    for name, path in result["artifacts"].items():
        if path.endswith(".png"):
            caption = _CAPTIONS.get(name, name.removesuffix("_plot").replace("_", " ").capitalize())
            blocks.append(FigureBlock(caption, folder / path))
    if seen := result["privacy"].get("server_sees"):
        blocks.append(TextBlock("The server saw", [*seen]))
    if notes := result["config"]["notes"]:
        blocks.append(TextBlock("Notes", [*notes]))
    return write_report(folder / REPORT, title=title, subtitle=subtitle, blocks=blocks)
