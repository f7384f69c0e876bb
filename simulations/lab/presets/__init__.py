"""Presets of ``fedkern compare``: the demo, and the tables and figures of the papers."""

from __future__ import annotations

from collections.abc import Mapping

from fedkern_flwr.errors import TableError

from . import cross, demo, gram, hybrid, online, vertical
from . import groups as hierarchical
from .base import Builder, Preset, Section, placed
from .own import own_options, own_table
from .rows import registered_methods

__all__ = [
    "NAMES",
    "PAPERS",
    "Preset",
    "Section",
    "own_options",
    "own_table",
    "preset",
    "registered_methods",
]

#: Tables and figures of the papers.
_PAPERS: dict[str, Builder] = {
    name: builder
    for family in (online, hybrid, vertical, gram, hierarchical)
    for name, builder in family.PRESETS.items()
}
#: New presets are registered here.
_PRESETS: dict[str, Builder] = {"demo": demo.demo, **cross.PRESETS, **_PAPERS}

NAMES, PAPERS = tuple(_PRESETS), tuple(_PAPERS)


def preset(
    name: str, datasets: tuple[str, ...] = (), files: Mapping[str, str] | None = None
) -> Preset:
    """Return a preset.

    Parameters
    ----------
    name : str
        One of :data:`NAMES`.
    datasets : tuple of str
        Data sets of the paper to keep; all when empty.
    files : mapping, optional
        Of some of them: the file to read, instead of one in the folder that FEDKERN_DATA names.

    Raises
    ------
    TableError
        Unknown preset or data set, or the data of the paper is not there.
    """
    if name not in _PRESETS:
        raise TableError(f"there is no preset {name!r}", remedy=f"choose of {', '.join(NAMES)}")
    with placed(files or {}):
        return _PRESETS[name](datasets)
