"""What a preset is, and where the data of the papers lies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedkern_flwr.errors import TableError

from ...engines import Engine
from ...methods.base import Family
from ...methods.common import Column
from ...methods.registry import family_with
from ...run.data import Settings
from ...run.datasets import spelled
from ..own_columns import OWN_COLUMNS

DATA_FOLDER = "FEDKERN_DATA"

#: (label, method, options)
Contender = tuple[str, str, dict[str, Any]]


@dataclass(frozen=True)
class Section:
    """Methods compared on the same data.

    Attributes
    ----------
    data : dict
        Name of the data set -> settings; names are unique in a preset. The family whose settings
        these are is the section's.
    entries : tuple of (label, method, options)
        What is compared: strategies and reference methods, by name.
    columns, figures : tuple of str
        Columns of the table, and plots; names of the section's family.
    dealt : dict
        Data set -> label -> settings of an entry of another family, or of one to which the same
        rows are dealt in another way. With the same seed and share all families hold out the same
        rows.
    parties : str
        Who holds the data, where the settings in ``data`` do not tell.
    title, text : str
        Headline and explanation in a report of several sections.
    paper : dict
        Figures of the paper: data set -> column -> label -> value in the column's unit.
    sweep : str
        Option on the x axis of the plot ``sweep``.
    across : tuple of str
        Plots over all data sets of the section; names of the family's.
    ranks : tuple of tuple of str
        Labels from the best to the worst as the paper has them, for paired differences of mean
        squared errors.
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
        """The family that has the columns and figures."""
        return family_with(next(iter(self.data.values())))

    def column(self, name: str) -> Column:
        """Return a column by its name."""
        return OWN_COLUMNS.get(name) or self.family.columns[name]

    @property
    def check_pooled(self) -> bool:
        """Whether a column shows how far a model is from that of the pooled rows."""
        return any(self.column(name).pooled for name in self.columns)

    def caption(self, dataset: str) -> str:
        """Return data set and who gets what, for the caption of a table."""
        return f"{dataset}: {self.parties or self.data[dataset].describe()}"

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return how much data there is, from what :meth:`Prepared.facts` returns."""
        if not self.parties:
            return self.family.size(facts)
        train, held = (int(np.sum(facts[name])) for name in ("rows", "held_out_rows"))
        return f"{self.parties}, {train} training and {held} held-out rows"

    def settings(self, dataset: str, label: str) -> Settings:
        """Return how an entry gets its data."""
        return self.dealt.get(dataset, {}).get(label, self.data[dataset])


@dataclass(frozen=True)
class Preset:
    """A comparison with a name.

    Attributes
    ----------
    name, title, text : str
        Name on the command line, headline and explanation in the report.
    sections : tuple of Section
        What is compared, one after the other.
    runs : int
        Draws per entry.
    engine : str
        Default engine.
    """

    name: str
    title: str
    text: str
    sections: tuple[Section, ...]
    runs: int = 20
    engine: Engine = "in-process"

    @property
    def data(self) -> dict[str, Settings]:
        """Settings of the data sets of all sections."""
        return {name: own for section in self.sections for name, own in section.data.items()}

    @property
    def entries(self) -> tuple[Contender, ...]:
        """Entries of all sections."""
        return tuple(entry for section in self.sections for entry in section.entries)


#: Makes a preset for the data sets of the paper that are asked for; all when there are none.
Builder = Callable[[tuple[str, ...]], Preset]
#: Makes the sections of a preset, of the data sets that are asked for.
Sections = Callable[[tuple[str, ...]], Iterable[Section]]


class Presets(dict[str, Builder]):
    """Presets by name, each declared where its sections are made."""

    def add(
        self, name: str, title: str, text: str, *, runs: int = 20
    ) -> Callable[[Sections], Sections]:
        """Return what makes a preset of a function that returns its sections."""

        def register(sections: Sections) -> Sections:
            self[name] = lambda datasets: Preset(name, title, text, tuple(sections(datasets)), runs)
            return sections

        return register

    def each(
        self,
        name: str,
        title: str,
        text: str,
        kept: Callable[[tuple[str, ...]], Iterable[str]],
        *,
        runs: int = 20,
    ) -> Callable[[Callable[[str], Section]], None]:
        """Return what makes a preset of a function that returns the section of one data set.

        ``kept`` returns which to show of those that are asked for.
        """

        def register(section: Callable[[str], Section]) -> None:
            self.add(name, title, text, runs=runs)(lambda asked: map(section, kept(asked)))

        return register


#: Data set -> its file in the folder, where it is not called as the data set.
_FILES = {
    "uji": "ujiindoorloc.npz",
    "air": "beijing_prsa.npz",
    "breast-cancer": "breast_cancer_original.npz",
    "ml-100k": "ml-100k/u.data",
    "ml-1m": "ml-1m/ratings.dat",
}
#: File in the folder -> the one that is read instead.
_placed: dict[str, Path] = {}
_read: set[str] = set()


@contextmanager
def placed(given: Mapping[str, str]) -> Iterator[None]:
    """Read data sets from other files than those in the folder while the block makes a preset.

    Parameters
    ----------
    given : mapping
        Name of a data set -> file.

    Raises
    ------
    TableError
        There is no such file, or the preset does not read it.
    """
    for name, text in given.items():
        path = Path(text)
        if not path.is_file():
            raise TableError(
                f"{text} is not a file", remedy=f"name the file of {name}", code="FK-FILE-READ"
            )
        _placed[_FILES.get(spelled(name), f"{spelled(name)}.npz")] = path.resolve()
    _read.clear()
    try:
        yield
        if unread := _placed.keys() - _read:
            raise TableError(
                f"the preset reads no file {min(unread)}",
                remedy="name a data set of the preset",
                code="FK-PRESET-DATA",
            )
    finally:
        _placed.clear()


def data_file(name: str) -> str:
    """Return the path of a data file in the folder ``$FEDKERN_DATA``.

    Raises
    ------
    TableError
        The folder is not named, or holds no such file.
    """
    path = data_path(name)
    if not path.is_file():
        raise TableError(
            f"{name} is not in the folder that {DATA_FOLDER} names",
            remedy="put it there",
            code="FK-DATA-MISSING",
        )
    return str(path)


def is_there(name: str) -> bool:
    """Tell whether a data file is there; not so where its folder is not named."""
    there = name in _placed or bool(os.environ.get(DATA_FOLDER))
    return there and data_path(name).is_file()


def data_path(name: str) -> Path:
    """Return where a data file belongs in the folder ``$FEDKERN_DATA``.

    Raises
    ------
    TableError
        The folder is not named.
    """
    if name in _placed:
        _read.add(name)
        return _placed[name]
    folder = os.environ.get(DATA_FOLDER)
    if not folder:
        raise TableError(
            f"{DATA_FOLDER} is not set",
            remedy=f"set it to the folder that holds {name}",
            code="FK-DATA-FOLDER",
        )
    return Path(folder) / name


def choose(
    datasets: tuple[str, ...], known: Iterable[str], usual: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the data sets asked for; the usual ones, or all that are known, when there are none.

    Case, spaces, dashes and underscores do not matter.

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
