"""Files of parties, joined as one table."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.tables import check_file, load_table
from fedkern_flwr.tables.parties import (
    PartyTable,
    PartyTables,
    blocks_of,
    check_repeated,
    read_party,
)
from fedkern_flwr.tables.parties import check_files as check_twice
from fedkern_flwr.tables.table import Missing, Table, chosen, how_many, listing, near, no_such

#: What files of a method's parties have: rows of the same columns; such rows, and columns of theirs
#: with others; or columns of the same rows each, labels with one of them.
Holding = Literal["rows", "rows and columns", "columns"]

logger = logging.getLogger("fedkern_flwr")

#: Suffix of a file with unused labels.
FEATURES = ":features"


class Columns(NamedTuple):
    """Selection of feature columns.

    Attributes
    ----------
    use, ignore : tuple of str
        Columns to use (default: all) and to ignore.
    common : bool
        Whether columns are ignored that some files with labels lack.
    """

    use: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    common: bool = False


@dataclass(frozen=True, eq=False)
class PartyFiles(PartyTables):
    """Files of parties."""

    @classmethod
    def read(
        cls,
        party: Sequence[str],
        holding: Holding,
        label: str | None,
        id_column: str | None,
        dialect: Mapping[str, Any],
        columns: Columns = Columns(),  # noqa: B008
    ) -> PartyFiles:
        """Read files, each named as ``FILE`` or ``FILE:features``."""
        joined = holding != "rows"
        if joined and (label is None or id_column is None):
            what, flag = ("label", "--label") if label is None else ("ids", "--id")
            why = "" if label is None else ", by which rows of different files are matched"
            raise OptionError(
                f"the column of the {what}{why} is not named",
                remedy=f"use {flag}",
                code="FK-COLUMN-UNNAMED",
            )
        paths = [Path(text.removesuffix(FEATURES)) for text in party]
        check_files(paths)
        for path in paths:
            check_file(path)
        files = tuple(
            (path.absolute(), text.endswith(FEATURES))
            for text, path in zip(party, paths, strict=True)
        )
        states = tuple((path.stat().st_mtime_ns, path.stat().st_size) for path in paths)
        how = tuple(dialect.items())
        return cls._read(files, states, holding, label, id_column, how, columns)

    @classmethod
    @lru_cache(maxsize=1)  # the options of a run follow from the files, and so does its table
    def _read(
        cls,
        files: tuple[tuple[Path, bool], ...],
        states: tuple[tuple[int, int], ...],
        holding: Holding,
        label: str | None,
        id_column: str | None,
        dialect: tuple[tuple[str, Any], ...],
        columns: Columns,
    ) -> PartyFiles:
        joined = holding != "rows"
        owners: list[PartyTable] = []
        others: list[PartyTable] = []
        named = dict[str, Any]()
        read = [read_party(path, label, id_column, dict(dialect)) for path, _ in files]
        check_repeated(read)
        for (path, plain), file in zip(files, read, strict=True):
            if plain and not joined:
                raise OptionError(
                    f"{path.name} is to give features only, and every party of this method has "
                    "labels or needs none",
                    code="FK-PARTY-FEATURES",
                )
            named.update(file.features)
            kept = chosen(file.features, columns.use, columns.ignore)
            file = replace(file, features={name: file.features[name] for name in kept})
            if not joined and label is not None and file.label is None:
                if owners:
                    raise TableError(
                        f"{file.name} has no label column {label!r}, and every party of this "
                        "method has labels",
                        remedy="use fed-cg, fdskl or secure-gram for parties with other columns",
                        code="FK-LABELS-MISSING",
                    )
                raise no_such("label column", label, file.name, file.features)
            (owners if not joined or (file.label is not None and not plain) else others).append(
                file
            )
        if not owners:
            meant = near(
                label or "", dict.fromkeys(name for one in others for name in one.features)
            )
            remedy = "".join(f"did you mean {one!r}? " for one in meant)
            raise TableError(
                f"no file has the labels: column {label!r}",
                remedy=f"{remedy}name a file with it, or another column with --label",
                code="FK-LABELS-MISSING",
            )
        if holding == "columns" and len(owners) > 1:
            raise TableError(
                f"{len(owners)} files have the labels: {listing(one.name for one in owners)}",
                remedy="write FILE:features of all but one, or use fed-cg if each has own rows",
                code="FK-LABELS-FILES",
            )
        for name in (*columns.use, *columns.ignore):
            if name not in named:
                raise no_such("feature column", name, "no file", named)
        if columns.common:
            owners = _common_columns(owners)
        for one in owners[1:]:
            _check_columns(one, owners[0])
        blocks, dates = blocks_of(owners[0], others), dict(dialect).get("dates")
        return cls(label, id_column, tuple(owners), tuple(others), blocks, dates)

    @property
    def labelled(self) -> list[int]:
        """Other parties with unused labels."""
        return [k for k, file in enumerate(self.others) if file.label is not None]

    def named(self, text: str, nodes: int) -> str:
        """Add names of files to partitions in a text."""
        files = [*self.owners, *self.others]
        if nodes < len(files):  # of a matrix, who has columns is a node
            files = [file for file in files if file.features]

        def name(found: re.Match[str]) -> str:
            number = int(found[1])
            return f"{files[number].name} ({found[0]})" if number < len(files) else found[0]

        return re.sub(r"\bpartition (\d+)\b", name, text)

    def parts(self, sources: Sequence[str]) -> tuple[NDArray[np.intp], ...]:
        """Return the encoded columns of each block; ``sources`` names their source columns."""
        found = tuple(np.flatnonzero(np.isin(sources, block)) for block in self.blocks)
        names = [listing(file.name for file in self.owners), *(file.name for file in self.others)]
        for name, block, part in zip(names, self.blocks, found, strict=True):
            if block and not len(part):
                raise TableError(
                    f"no column of {name} says anything",
                    remedy="omit the party",
                    code="FK-COLUMNS-CONSTANT",
                )
        return found

    def table(self, missing: Missing) -> Table:
        """Return the joined table; the site of a row is the number of its file.

        Encoding of gaps needs rows that are in all files; otherwise rows lack what a file lacks.
        """
        units = self.units
        frame, site, notes = self.frame(whole=missing == "encode")
        table = load_table(
            frame,
            label=self.label,
            id_column=self.id_column,
            site_column=site,
            missing=missing,
            labelled=self.label is not None,
            kinds={},
            dates=self.dates,
            source="the table of all parties",
        )
        return replace(table, units=units, notes=(*notes, *table.notes))

    def say_lacking(self, table: Table) -> None:
        """Warn if a file with labels lacks classes."""
        if not table.classes or table.y is None or table.site is None:
            return
        for k, file in enumerate(self.owners):
            here = set(table.y[table.site == f"{k:05}"].tolist())
            lacking = [name for place, name in enumerate(table.classes) if place not in here]
            if lacking:
                text = "%s has no row of %s %s, which others have"
                classes = "class" if len(lacking) == 1 else f"{len(lacking)} classes"
                logger.warning(text, file.name, classes, listing(lacking))


def _common_columns(files: Sequence[PartyTable]) -> list[PartyTable]:
    """Keep the columns of all files, with a note on others."""
    common = [name for name in files[0].features if all(name in one.features for one in files)]
    left = dict.fromkeys(name for one in files for name in one.features if name not in common)
    note = f"left out {how_many(len(left), 'column')} that not all files have: {listing(left)}"
    kept = [replace(one, features={name: one.features[name] for name in common}) for one in files]
    return [replace(kept[0], notes=(*kept[0].notes, note)), *kept[1:]] if left else kept


def check_files(paths: Sequence[Path]) -> None:
    """Refuse a single party, and repeated files."""
    if len(paths) < 2:
        raise OptionError(
            "one file is one party",
            remedy="use --party for every party's file",
            code="FK-PARTIES-FEW",
        )
    check_twice(paths)


def _check_columns(one: PartyTable, first: PartyTable) -> None:
    """Refuse a file with other columns than the first."""
    for here, there in ((one, first), (first, one)):
        lacking = [name for name in there.features if name not in here.features]
        if lacking:
            others = [name for name in here.features if name not in there.features]
            meant = "".join(f"did you mean {one!r}? " for one in near(lacking[0], others))
            raise TableError(
                f"{here.name} lacks {how_many(len(lacking), 'column')} of {there.name}, "
                f"the first is {lacking[0]!r}",
                remedy=f"{meant}give both the same, use --common-columns, or write FILE:features "
                "of one that has further columns of rows in others",
                code="FK-COLUMNS-DIFFER",
            )
