"""Presets of ``fedkern compare``: the demo, and the tables and figures of the papers."""

from __future__ import annotations

from collections.abc import Mapping

from fedkern_flwr.errors import OptionError, TableError

from . import cross, demo, gram, hybrid, online, own, vertical
from . import groups as hierarchical
from .base import Builder, Preset, Section, placed
from .own import own_options, own_table, registered_methods

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
_PRESETS: dict[str, Builder] = {
    "demo": demo.demo,
    "demo-quick": demo.demo_quick,
    **cross.PRESETS,
    **own.PRESETS,
    **_PAPERS,
}

NAMES, PAPERS = tuple(_PRESETS), tuple(_PAPERS)


def preset(
    name: str,
    datasets: tuple[str, ...] = (),
    files: Mapping[str, str] | None = None,
    *,
    paper_split: bool = False,
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
    paper_split : bool
        With the rows that the paper's programs hold out.

    Raises
    ------
    TableError
        Unknown preset or data set, or the data of the paper is not there.
    OptionError
        The paper's split of it is not known.
    """
    if name not in _PRESETS:
        raise TableError(
            f"there is no preset {name!r}",
            remedy=f"choose of {', '.join(NAMES)}",
            code="FK-OPTION-CHOICE",
        )
    if paper_split and name not in hybrid.PAPER_SPLITS:
        raise OptionError(
            f"the paper's split of {name} is not known",
            remedy="leave out --paper-split",
            code="FK-PRESET-SPLIT",
        )
    with placed(files or {}):
        return (hybrid.PAPER_SPLITS if paper_split else _PRESETS)[name](datasets)
