"""Data of all families: settings and prepared tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import SequenceMatcher
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.encoding import Encoder, Explanation
from fedkern_flwr.encoding.columns import Categories, Gaps, NumberFacts, Scaling, other_scale
from fedkern_flwr.encoding.encoder import KeptEncoder
from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.options import within
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.summary_report import pooled_table
from fedkern_flwr.tables.dialect import DIALECT
from fedkern_flwr.tables.table import (
    Dates,
    Missing,
    Note,
    Table,
    choose_columns,
    how_many,
    is_number,
    listing,
    with_label,
    without_missing,
)

from ...strategies import Method
from ..engines.faults import Plan
from ..engines.ray import ClientFn
from .datasets import load_data, usual_name
from .party_files import FEATURES, Columns, Holding, PartyFiles

_NAMED = 10  # classes that a note names
_NEAR = 0.8  # how alike names are that may be one, of 1
_LEAK, _LEAST_LEAK = 0.98, 10  # AUC of a column that is noted; rows of a class for that
_MOST_NEAR = 50  # names of a column that are compared
#: Of a table that is summed up at the head of a report.
_MOST_CELLS, _MOST_COLUMNS, _MOST_GROUPS, _LARGEST = 300_000, 40, 6, 1e100


@dataclass(frozen=True)
class Settings(ABC):
    """Data set; the fields are options of the command line.

    Attributes
    ----------
    data : str
        Built-in table (iris, wine, breast-cancer, digits, diabetes, nyc-weather) or file.
    test_size : float
        Share of the rows that is held out.
    seed : int
        Seed of the split.
    """

    #: Settings that ``fedkern compare`` may set for all data of a preset.
    adjustable: ClassVar[frozenset[str]] = frozenset({"rounds", "clients"})

    #: Settings that are options of the strategy, too.
    of_method: ClassVar[frozenset[str]] = frozenset()
    #: Settings with a default that follows from other options.
    worked_out: ClassVar[frozenset[str]] = frozenset()
    #: Defaults of the command line where those of the papers' comparisons are others.
    of_runs: ClassVar[Mapping[str, Any]] = {}

    data: str
    test_size: float = 0.0
    seed: int = 0

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Read the settings from command line values or a configuration."""
        own: dict[str, Any] = {f.name: values[f.name] for f in fields(cls)}
        own = {k: tuple(v) if isinstance(v, list) else v for k, v in own.items()}
        return cls(**own | {"data": usual_name(own["data"])})

    @abstractmethod
    def describe(self) -> str:
        """Describe the split for a caption."""

    @abstractmethod
    def of_files(self) -> dict[str, Any]:
        """Return settings that follow from files of parties."""

    def first_table(self) -> list[list[str]]:
        """Return the first table of a paper, of the rows that were read; nothing where none is."""
        return []


@dataclass(frozen=True)
class TableSettings(Settings):
    """Table, its columns and its encoding.

    Attributes
    ----------
    label : str or None
        Label column (npz: array, or column of y).
    target : str or None
        Feature column (index or name) to predict instead.
    id_column : str or None
        Column of record ids.
    site_column : str or None
        Column of sites.
    party : tuple of str
        File of a party, once for each; FILE:features ignores its label.
    scaling : {"auto", "rank", "standard", "range", "none"}
        Scaling of numbers (auto: range, or rank with outliers).
    categories : {"auto", "onehot", "frequency", "hashing"}
        Encoding of text (auto: onehot up to 20 categories, else frequency).
    ranks : str or None
        result.json of a summary with a budget, whose noisy quantiles rank the columns.
    sep : str or None
        Separator of a .csv file: a character, or tab (default: detected).
    decimal : {".", ","} or None
        Decimal mark of a .csv file (default: detected).
    na : tuple of str
        More marks of missing cells, separated by commas.
    dates : {"day-first", "month-first", "iso"} or None
        Order of dates such as 03/04/2024 (default: detected).
    header : bool or None
        Whether the first line of a .csv file has names (default: detected).
    class_of : tuple of str
        Classes of differing labels, such as 0=no,1=yes.
    use : tuple of str
        Column to use, once for each (default: all).
    ignore : tuple of str
        Column to ignore, once for each.
    common_columns : bool
        Ignore columns that some files with labels lack.
    """

    of_runs = {"scaling": "auto", "missing": "encode"}  # noqa: RUF012
    #: What files of parties have.
    holding: ClassVar[Holding] = "rows"
    #: The table where it is in memory, see :meth:`of_table`.
    given: ClassVar[Table | None] = None

    label: str | None = None
    target: str | None = None
    id_column: str | None = None
    site_column: str | None = None
    party: tuple[str, ...] = ()
    scaling: Scaling = "range"
    categories: Categories = "auto"
    ranks: str | None = None
    sep: str | None = None
    decimal: Literal[".", ","] | None = None
    na: tuple[str, ...] = ()
    dates: Dates | None = None
    header: bool | None = None
    class_of: tuple[str, ...] = ()
    use: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    common_columns: bool = False

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Read the settings; some lists may be text with commas."""
        given = dict(values)
        for name in ("na", "class_of"):
            text = values[name] or ()
            given[name] = tuple(text.split(",") if isinstance(text, str) else text)
        given |= {name: tuple(values[name] or ()) for name in ("party", "use", "ignore")}
        return super().from_values(given)

    def of_table(self, table: Table) -> Self:
        """Return these settings for a table in memory."""
        found = replace(self)
        found.__dict__["given"] = table
        return found

    @property
    def dialect(self) -> dict[str, Any]:
        """Text format for :func:`load_data`."""
        return {key: getattr(self, key) for key in DIALECT}

    @cached_property
    def files(self) -> PartyFiles | None:
        """Files of parties, if given."""
        if not self.party:
            return None
        columns = Columns(self.use, self.ignore, self.common_columns)
        how = self.label, self.id_column, self.dialect, columns
        return PartyFiles.read(self.party, self.holding, *how)

    def of_files(self) -> dict[str, Any]:
        """Return settings that follow from files of parties."""
        assert self.files is not None
        return {**self.counted(self.files), "data": self.files.text}

    @classmethod
    def counted(cls, files: PartyFiles) -> dict[str, Any]:
        """Return settings that follow from files of parties."""
        return {"clients": len(files.owners), "split": "site"}

    def load(self, missing: Missing, *, labelled: bool = True) -> Table:
        """Load the table, with notes on classes, names, units and leaks."""
        table = self._load(missing, labelled)
        if (self.use or self.ignore) and self.files is None:
            table = choose_columns(table, self.use, self.ignore)
        names = [one.name for one in self.files.owners] if self.files is not None else []
        _check_classes(table, names)
        if self.files is not None:
            self.files.say_lacking(table)
        more = (*_classes_note(table), *_near_notes(table), *_unit_notes(table, names))
        more += _leak_notes(table)
        self.__dict__["read"] = table  # for the head of a report
        return replace(table, notes=(*table.notes, *more))

    def first_table(self) -> list[list[str]]:
        """Return that of the table that was read, by its label; nothing of a large one."""
        table: Table | None = self.__dict__.get("read")
        if table is None or table.x.size > _MOST_CELLS or len(table.columns) > _MOST_COLUMNS:
            return []
        if np.abs(table.x).max(initial=0.0, where=~np.isnan(table.x)) > _LARGEST:
            return []
        if table.label not in table.columns:
            table = with_label(table)
        group = table.columns[-1]
        groups = len(table.categories.get(group, ()))
        return pooled_table(table, group if 1 < groups <= _MOST_GROUPS else "")

    def _load(self, missing: Missing, labelled: bool) -> Table:
        if self.given is not None:
            return without_missing(self.given, missing, self.data)
        if self.files is not None:
            return self.files.table(missing)
        return load_data(
            self.data,
            label=self.label,
            target=self.target,
            id_column=self.id_column,
            site_column=self.site_column,
            missing=missing,
            labelled=labelled,
            **self.dialect,
        )

    def encoder(self, train: Table) -> Encoder:
        """Fit an encoder on training rows, or take that of a summary."""
        encode = getattr(self, "missing", "error") == "encode"
        key = derive_seed(self.seed, "categories").to_bytes(16)
        gaps: Gaps = "encode" if encode else "keep"
        if self.ranks is not None:
            return KeptEncoder.read(Path(self.ranks)).within(train, gaps).encoder
        return Encoder.fit(train, self.scaling, gaps, self.categories, key=key)


def check_public(settings: Any) -> None:
    """Refuse columns with encodings that count all rows, for runs with a privacy budget."""
    if settings.ranks is not None:
        KeptEncoder.read(Path(settings.ranks)).check_noise()
        return
    missing: Any = getattr(settings, "missing", "error")
    table = settings.load(missing, labelled=settings.label is not None)
    problems = []
    if settings.scaling not in ("range", "none"):
        problems.append(
            ("columns that are scaled by all rows", "--scaling range", "FK-BUDGET-SCALING")
        )
    if "category" in table.kinds.values() and settings.categories != "hashing":
        what = "categories with counted rows"
        problems.append((what, "--categories hashing", "FK-BUDGET-CATEGORIES"))
    if problems:
        whats, flags, codes = zip(*problems, strict=True)
        raise OptionError(
            f"privacy_epsilon does not hold for {listing(whats)}",
            remedy=f"use {' '.join(flags)}",
            code=codes[0],
        )


def _classes_note(table: Table) -> tuple[str, ...]:
    """Return a note about classes and possible typos."""
    if not table.classes or table.y is None:
        return ()
    places = table.y[np.isfinite(table.y)].astype(np.intp)
    rows = np.bincount(places, minlength=len(table.classes)).tolist()
    found = [(name, n) for name, n in zip(table.classes, rows, strict=True) if n]
    alone = [name for name, n in found if n == 1]
    text = f"{len(found)} classes"
    if len(found) <= _NAMED:
        text += f": {listing(f'{name} {n}' for name, n in found)}"
    elif not alone:
        return ()
    if len(alone) == 1:
        text += f"; {listing(alone)} has 1 row: a typo?"
    elif alone:
        text += f"; {listing(alone)} have 1 row each: typos?"
    return (text,)


def _check_classes(table: Table, files: Sequence[str]) -> None:
    """Refuse classes with different spellings."""
    if not table.classes or table.y is None:
        return
    known = np.isfinite(table.y)
    places = table.y[known].astype(np.intp)
    sites = np.zeros(len(places), np.str_) if table.site is None else table.site[known]
    of = {site: Counter(places[sites == site].tolist()) for site in np.unique(sites).tolist()}
    used = {k for counts in of.values() for k in counts}
    folded = {"".join(table.classes[k].split()).casefold() for k in used}
    numbers = [{is_number(table.classes[k]) for k in counts} for counts in of.values()]
    if len(folded) == len(used) and not ({True} in numbers and {False} in numbers):
        return
    told = []
    for number, (site, counts) in enumerate(of.items()):
        name = files[number] if number < len(files) else f"site {site}"
        text = ", ".join(f"{table.classes[k]} {n}" for k, n in sorted(counts.items()))
        told.append(f"{name}: {text}" if len(of) > 1 else text)
    raise TableError(
        f"classes of {table.label!r} are written differently: {'; '.join(told[:10])}",
        code="FK-CLASSES-SPELLED",
    )


def _near_notes(table: Table) -> tuple[str, ...]:
    """Return notes about categories with similar names."""
    notes = []
    for column, names in table.categories.items():
        if column in table.columns and len(names) <= _MOST_NEAR:
            pairs = [f"{a} and {b}" for a, b in combinations(names, 2) if _are_near(a, b)]
            if pairs:
                plain = f"{column!r} has {how_many(len(pairs), 'pair')} of names that may be one"
                notes.append(Note(f"{plain}: {listing(pairs)}", plain))
    return tuple(notes)


def _unit_notes(table: Table, files: Sequence[str]) -> tuple[str, ...]:
    """Return notes about columns that may have another unit at a party."""
    if table.site is None:
        return ()
    notes = []
    for name, values in zip(table.columns, table.x.T, strict=True):
        if name in table.kinds:
            continue
        facts = NumberFacts.measure(values)
        for number, site in enumerate(np.unique(table.site).tolist()):
            if times := other_scale(values[table.site == site], facts):
                who = files[number] if number < len(files) else f"site {site}"
                text = f"values of {name!r} at {who} are about {times:.3g} times those of all"
                notes.append(f"{text}: maybe in another unit")
    return tuple(notes)


def _leak_notes(table: Table) -> tuple[str, ...]:
    """Return notes about columns that separate two classes alone.

    A column is fitted on each half of the rows and evaluated on the other; the lower AUC counts.
    """
    if table.y is None or len(known := np.unique(table.y[np.isfinite(table.y)])) != 2:
        return ()
    rows = np.random.default_rng(0).permutation(np.flatnonzero(np.isfinite(table.y)))
    second, halves = table.y == known[1], np.array_split(rows, 2)
    notes = []
    for name, values in zip(table.columns, table.x.T, strict=True):
        areas = []
        for first, rest in (halves, halves[::-1]):
            scores = values
            if name in table.categories:
                of = np.nan_to_num(values, nan=len(table.categories[name])).astype(np.intp)
                sizes = np.bincount(of[first], minlength=of.max() + 1)
                hits = np.bincount(of[first], second[first], minlength=of.max() + 1)
                scores = ((hits + 0.5) / (sizes + 1.0))[of]
            area = _area(scores[rest], second[rest])
            areas.append(max(area, 1.0 - area))
        if min(areas) >= _LEAK:
            notes.append(
                f"{name!r} alone separates the classes (AUC {min(areas):.3f}): a possible leak; "
                f"--ignore {name!r} leaves it out"
            )
    return tuple(notes)


def _area(scores: Any, positive: Any) -> float:
    """Return the AUC, or 1/2 with few rows of a class."""
    known = np.isfinite(scores)
    scores, positive = scores[known], positive[known]
    p, n = int(positive.sum()), int((~positive).sum())
    if min(p, n) < _LEAST_LEAK:
        return 0.5
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[places]
    return float((ranks[positive].sum() - p * (p + 1) / 2.0) / (p * n))


def _are_near(one: str, other: str) -> bool:
    """Return whether one name is an initial of the other, or nearly equal."""
    a, b = sorted((one.casefold(), other.casefold()), key=len)
    if len(a) == 1:
        return len(b) > 1 and b.startswith(a) and a.isalpha()
    shared = [text.rstrip("0123456789") for text in (a, b)]
    if len(a) < 4 or shared[0] == shared[1]:  # such as ward1 and ward2
        return False
    return SequenceMatcher(None, a, b).ratio() > _NEAR


def deal_files(
    settings: type[Settings], values: Mapping[str, Any], usual: Mapping[str, Any]
) -> dict[str, Any]:
    """Add values that follow from files of parties.

    Parameters
    ----------
    settings : type of Settings
        Kind of the settings.
    values, usual : mapping
        Command line values, and defaults.
    """
    found = dict(values)
    if not values.get("party"):
        return found
    for name, flag in (("data", "data"), ("target", "target"), ("site_column", "site")):
        if values.get(name) != usual.get(name):
            raise OptionError(f"--{flag} is not for files of parties", code="FK-DATA-OPTION")
    for name, value in settings.from_values(values).of_files().items():
        if name != "data" and values.get(name) not in (None, usual.get(name), value):
            raise OptionError(
                f"{name.replace('_', '-')} {values[name]} is not that of the files, {value}",
                code="FK-CLIENTS-DIFFER",
            )
        found[name] = value
    ends = (
        (Path(text.removesuffix(FEATURES)), text.endswith(FEATURES)) for text in values["party"]
    )
    found["party"] = [f"{path.resolve()}{FEATURES * plain}" for path, plain in ends]
    return found


class Prepared(ABC):
    """Data that were loaded, scaled and dealt.

    Attributes
    ----------
    notes : tuple of str
        Notes for the user.
    settings : Settings
        Settings that the data were loaded with.
    """

    notes: tuple[str, ...]
    settings: Any

    @property
    @abstractmethod
    def num_clients(self) -> int:
        """Number of clients."""

    def nodes(self, strategy: Method) -> int:
        """Return the number of nodes of a strategy."""
        return self.num_clients

    def faults(self, strategy: Method) -> Plan | None:
        """Return further faults of a simulation."""
        return None

    @abstractmethod
    def client_fn(self, strategy: Method, state_dir: Path | None = None) -> ClientFn:
        """Return the client function of a strategy.

        Private state goes to ``state_dir``.
        """

    def variant(self, strategy: Method) -> Hashable:
        """Return what the clients depend on.

        The engine starts again for another variant.
        """
        return None

    def pooled(self, seed: int) -> Any:
        """Return the pooled data of a run."""
        raise NotImplementedError

    def plot_held_out(self, folder: Path, summary: Mapping[str, Any]) -> dict[str, Path]:
        """Draw plots of the held-out rows of the first run; return name -> file."""
        return {}

    @abstractmethod
    def start(self) -> dict[str, Any]:
        """Return arguments for the strategy's ``start``."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return facts about the data for the configuration, as JSON."""

    @abstractmethod
    def scaling_json(self) -> str:
        """Return encoder and scale, to be kept with the model."""

    def explain(self) -> list[Explanation]:
        """Return how columns were encoded."""
        return []

    @cached_property
    def first_table(self) -> list[list[str]]:
        """Return the first table of a paper, of the rows that were read; empty if there is none."""
        found: list[list[str]] = self.settings.first_table()
        return found


def held_out_of(table: Table, kept: Table) -> list[NDArray[np.intp]]:
    """Return the held-out rows of each site."""
    assert table.site is not None
    assert kept.site is not None
    sites, rows = np.unique(table.site, return_counts=True)
    held = [int(n - (kept.site == site).sum()) for site, n in zip(sites, rows, strict=True)]
    return np.split(np.arange(sum(held)), np.cumsum(held)[:-1])


def hold_out(
    table: Table, test_size: float, seed: int, *, each_site: bool = False
) -> tuple[Table, NDArray[np.float64], NDArray[np.float64]]:
    """Return training rows, and features and labels of test rows.

    Test rows of the data set are used if there are any; otherwise a random share is held out.
    """
    within("test-size", test_size, "[0, 1)")
    if table.x_test is not None and table.y_test is not None:
        return table, table.x_test, table.y_test
    order = np.random.default_rng([seed, 1]).permutation(table.rows)
    groups = [order]
    if each_site and table.site is not None:
        groups = [order[table.site[order] == site] for site in np.unique(table.site)]
    parts = [np.split(group, [round(test_size * len(group))]) for group in groups]
    held, kept = (np.sort(np.concatenate(part)) for part in zip(*parts, strict=True))
    y_test = np.empty(0) if table.y is None else table.y[held]
    return table.take(kept), table.x[held], y_test
