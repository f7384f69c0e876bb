"""Registered methods of rows beside each other, on tables that come with the package or files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedkern_flwr.registered import find_method

from ...methods.rows import RowSettings
from .base import Contender, Preset, Section

_USUAL = ("iris", "wine", "breast-cancer")
_SHARE, _RUNS = 0.3, 5


def registered_methods(names: Sequence[str], datasets: tuple[str, ...]) -> Preset:
    """Return a comparison of registered methods.

    Parameters
    ----------
    names : sequence of str
        The methods.
    datasets : tuple of str
        Built-in data sets or files of features; by default three built-in ones.
    """
    entries: tuple[Contender, ...] = tuple((find_method(n).title, n, {}) for n in names)
    data = {
        Path(table).stem: RowSettings(data=table, test_size=_SHARE) for table in datasets or _USUAL
    }
    return Preset(
        "-".join(names),
        ", ".join(title for title, *_ in entries),
        f"Rows at five clients, {100 * _SHARE:.0f} % of them held out.",
        (Section(data, entries, ("figures", "exchanges", "megabytes", "seconds", "plain"), ()),),
        runs=_RUNS,
    )
