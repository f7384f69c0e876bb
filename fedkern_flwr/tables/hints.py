"""What a column of text may have been meant to be: numbers or dates that are written otherwise."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_NUMBER = r"(?i)^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$"
_COMMA = r"(?i)^[+-]?(\d+,\d*|,\d+|\d{1,3}([.,]\d{3})+([.,]\d+)?)(e[+-]?\d+)?$"
_LIMIT = r"^[<>≤≥]=? *[+-]?\d+([.,]\d+)?$"
_YEAR_LAST = r"\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2})|\d{1,2}[. -]+[A-Za-z]{3,9}[., -]+\d{4}"
_DATE = rf"^(\d{{4}}[./-]\d{{1,2}}[./-]\d{{1,2}}|{_YEAR_LAST})([T ,]+\d{{1,2}}:.*)?$"
_SHOWN = 5


def hint(
    column: str, names: Sequence[str], places: NDArray[np.float64], decimal: str | None = None
) -> tuple[str, ...]:
    """Return a note if half of the cells or more look like numbers or dates; it quotes no cell.

    Of numbers with a decimal comma, where a point was asked for, it is a warning.

    Parameters
    ----------
    column : str
        Its name.
    names : sequence of str
        The different cells.
    places : ndarray of float64, shape (n,)
        Positions of the n cells among them, NaN where one is missing.
    decimal : str or None
        The decimal mark that was asked for.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = pa.array(names, pa.string())
    times = np.bincount(places[np.isfinite(places)].astype(np.intp), minlength=len(names))
    known = int(times.sum())

    def count(how: str) -> int:
        return int(times[pc.match_substring_regex(cells, how).to_numpy(zero_copy_only=False)].sum())

    dates = count(_DATE)
    if known and 2 * dates >= known:
        text = f"{dates} of {known} cells look like dates; write them as YYYY-MM-DD"
        return (f"{column!r} is read as text: {text}",)
    commas, limits = count(_COMMA), count(_LIMIT)
    numbers = commas + count(_NUMBER)
    if not numbers or 2 * (numbers + limits) < known:
        return ()
    if count(r"^[+-]?0\d+$"):
        return (f"{column!r} is read as text: some of its numbers begin with 0",)
    text = f"{numbers} of {known} cells look like numbers" + " with a decimal comma" * bool(commas)
    text += f", {limits} have a mark such as <" * bool(limits)
    remedies = ["--decimal , reads them, --decimal . if commas mark thousands"] if commas else []
    if numbers < known:
        remedies.append("--na names what marks a missing cell")
    text = f"{column!r} is read as text: {text}; {', '.join(remedies)}"
    if commas and decimal == ".":
        logging.getLogger("fedkern_flwr").warning(text)
        return ()
    return (text,)


def shortened(hints: Sequence[str]) -> tuple[str, ...]:
    """Return the first hints, and how many columns are like these."""
    more = len(hints) - _SHOWN
    return (*hints[:_SHOWN], *([f"{more} more columns of text are so"] if more > 0 else []))
