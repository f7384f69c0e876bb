"""Gaps: the column that says where a cell is missing, and what is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from .facts import CategoryFacts, Floats, NumberFacts

#: What becomes of a gap: the median and a column that says so, or NaN.
Gaps = Literal["encode", "keep"]


def indicator(name: str, facts: NumberFacts | CategoryFacts, gaps: Gaps) -> tuple[str, ...]:
    """Return the name of the column that says where a cell is missing, if it varies."""
    varies = 0 < facts.missing < facts.rows
    return (f"{name}[missing]",) if varies and gaps == "encode" else ()


def stacked(
    found: Sequence[Floats], known: Any, facts: NumberFacts | CategoryFacts, gaps: Gaps
) -> Floats:
    """Return outputs side by side, with the column that says where a cell is missing."""
    if indicator("", facts, gaps):
        found = [*found, np.where(known, 0.0, 1.0)]
    return np.stack(found, axis=1) if found else np.empty((len(known), 0))


def explained(text: str, facts: NumberFacts | CategoryFacts, outputs: tuple[str, ...]) -> str:
    """Return what is told of a column, with its gaps."""
    if facts.missing:
        own = " (a column says so)" if outputs and outputs[-1].endswith("[missing]") else ""
        text += f"; missing in {facts.missing} of {facts.rows} rows{own}"
    return text if outputs else f"left out: {text}"
