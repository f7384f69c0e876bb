"""Define the presets of ``fedkern compare``, and find their data."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedkern_flwr.errors import TableError

from ..methods.base import Family
from ..methods.registry import family_with
from ..run.data import Settings
from ..run.datasets import spelled
from .columns import Column, columns_of

DATA_FOLDER = "FEDKERN_DATA"

#: (label, method, options)
Contender = tuple[str, str, dict[str, Any]]


@dataclass(frozen=True)
class Section:
    """Methods compared on the same data.

    Attributes
    ----------
    data : dict
        Data set -> settings of the section's family; names are unique in a preset.
    entries : tuple of (label, method, options)
        Strategies and reference methods.
    columns, figures, across : tuple of str
        Columns of the table, plots, and plots over all data sets.
    dealt : dict
        Data set -> label -> other settings of an entry. With the same seed and share all families
        hold out the same rows.
    parties : str
        The parties, where the settings do not describe them.
    title, text : str
        Headline and explanation.
    paper : dict
        Figures of the paper: data set -> column -> label -> value in the column's unit.
    sweep : str
        Option on the x axis of sweeps.
    ranks : tuple of tuple of str
        Labels from the paper's best to its worst, for paired differences.
    """

    data: Mapping[str, Settings]
    entries: tuple[Contender, ...]
    columns: tuple[str, ...]
    figures: tuple[str, ...]
    title: str = ""
    text: str = ""
    paper: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    sweep: str = ""
    across: tuple[str, ...] = ()
    ranks: tuple[tuple[str, ...], ...] = ()
    dealt: Mapping[str, Mapping[str, Settings]] = field(default_factory=dict)
    parties: str = ""

    @property
    def family(self) -> Family[Any, Any, Any]:
        """The family of the data."""
        return family_with(next(iter(self.data.values())))

    def column(self, name: str) -> Column:
        """Return a column by its name."""
        return columns_of(self.family)[name]

    @property
    def check_pooled(self) -> bool:
        """Whether a column shows the difference to the pooled model."""
        return any(self.column(name).pooled for name in self.columns)

    def caption(self, dataset: str) -> str:
        """Return data set and parties, for the caption of a table."""
        return f"{dataset}: {self.parties or self.data[dataset].describe()}"

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return the size of the data, from :meth:`Prepared.facts`."""
        if not self.parties:
            return self.family.size(facts)
        train, held = (int(np.sum(facts[name])) for name in ("rows", "held_out_rows"))
        return f"{self.parties}, {train} training and {held} held-out rows"

    def settings(self, dataset: str, label: str) -> Settings:
        """Return the settings of an entry."""
        return self.dealt.get(dataset, {}).get(label, self.data[dataset])

    def describer(self, dataset: str) -> str:
        """Return the entry whose cells describe a data set: the first that has its settings."""
        dealt = self.dealt.get(dataset, {})
        return next((label for label, *_ in self.entries if label not in dealt), "")


@dataclass(frozen=True)
class Preset:
    """A comparison with a name.

    Attributes
    ----------
    name, title, text : str
        Name on the command line, headline and explanation in the report.
    sections : tuple of Section
    runs : int
        Repetitions per entry.
    """

    name: str
    title: str
    text: str
    sections: tuple[Section, ...]
    runs: int = 20

    @property
    def data(self) -> dict[str, Settings]:
        """Settings of the data sets of all sections."""
        return {name: own for section in self.sections for name, own in section.data.items()}

    @property
    def entries(self) -> tuple[Contender, ...]:
        """Entries of all sections."""
        return tuple(entry for section in self.sections for entry in section.entries)


# -- the data


class DataFiles:
    """Find data in the folder ``$FEDKERN_DATA``, or in given files.

    Parameters
    ----------
    given : mapping
        Data set -> file.

    Raises
    ------
    TableError
        There is no such file.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        for name, text in given.items():
            if not Path(text).is_file():
                raise TableError(
                    f"{text} is not a file", remedy=f"name the file of {name}", code="FK-FILE-READ"
                )
        self._given = {spelled(name): Path(text).resolve() for name, text in given.items()}
        self.unread = set(self._given)

    def is_there(self, name: str, values: Mapping[str, Any]) -> bool:
        """Return whether an optional data set is available."""
        try:
            return bool(self._path(name, values))
        except TableError:
            return not values.get("optional")

    def find(self, name: str, values: Mapping[str, Any]) -> str:
        """Return built-in data by its name, other data by its path.

        Raises
        ------
        TableError
            The folder is not named, or does not hold it.
        """
        found = self._path(name, values)
        self.unread.discard(spelled(name) * ("." in found))
        return found

    def _path(self, name: str, values: Mapping[str, Any]) -> str:
        known = values["data"] if isinstance(values["data"], list) else [values["data"]]
        if "." not in known[0]:
            return str(known[0])
        if spelled(name) in self._given:
            return str(self._given[spelled(name)])
        folder = os.environ.get(DATA_FOLDER)
        if not folder:
            raise TableError(
                f"{DATA_FOLDER} is not set",
                remedy=f"set it to the folder that holds {known[0]}",
                code="FK-DATA-FOLDER",
            )
        found = next((path for file in known if (path := Path(folder, file)).is_file()), None)
        if found is None:
            raise TableError(
                f"{' or '.join(known)} is not in the folder that {DATA_FOLDER} names",
                remedy=values.get("remedy", "put it there"),
                code="FK-DATA-MISSING",
            )
        return str(found)


def choose(
    datasets: tuple[str, ...], known: Iterable[str], usual: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the requested data sets; without a request the usual ones, or all known ones.

    Case, spaces, dashes and underscores are ignored.

    Raises
    ------
    TableError
        Unknown data set.
    """
    names = {spelled(name): name for name in known}
    datasets = tuple(names.get(spelled(name), name) for name in datasets)
    unknown = sorted(set(datasets) - set(names.values()))
    if unknown:
        raise TableError(
            f"the presets have no data set {unknown[0]!r}",
            remedy=f"choose of {', '.join(names.values())}",
            code="FK-PRESET-DATA",
        )
    return tuple(dict.fromkeys(datasets)) or tuple(usual) or tuple(names.values())
