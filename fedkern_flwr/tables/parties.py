"""Combine tables of parties: rows of the same columns, and further columns of these rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..alignment import plain_ids
from ..errors import OptionError, TableError
from . import check_file
from .dialect import Dialect, file_kind
from .table import Dates, copies_note, listing, no_such


@dataclass(frozen=True, eq=False)
class PartyTable:
    """A party's name, features, labels, ids, notes, units, and number of repeated ids."""

    name: str
    features: dict[str, Any]
    label: Any
    ids: NDArray[np.str_] | None
    notes: tuple[str, ...]
    units: Mapping[str, str] = field(default_factory=dict)
    repeated: int = 0

    @property
    def rows(self) -> int:
        columns = [*self.features.values(), *[self.label] * (self.label is not None)]
        return len(columns[0]) if columns else len(self.ids) if self.ids is not None else 0


@dataclass(frozen=True, eq=False)
class PartyTables:
    """The tables of several parties.

    Attributes
    ----------
    label, id_column : str or None
        Names of the columns.
    owners : tuple
        Tables with labels; all tables if there is no label.
    others : tuple
        Tables without labels; their rows are matched by id.
    blocks : tuple of tuple of str
        Columns of the owners, which are the same, and of each of the others, by their names in the
        combined table.
    dates : {"day-first", "month-first", "iso"} or None
        Order of dates.
    """

    label: str | None
    id_column: str | None
    owners: tuple[PartyTable, ...]
    others: tuple[PartyTable, ...]
    blocks: tuple[tuple[str, ...], ...]
    dates: Dates | None = None

    @classmethod
    def of_new_rows(
        cls,
        party: Any,
        label: str | None,
        id_column: str | None,
        dialect: Mapping[str, Any],
        known: Sequence[str],
    ) -> Self:
        """Read tables with new rows; labels are not used.

        Tables with the columns of the first have further rows, others further columns. ``party``
        has files or data frames; a mapping gives their names. ``known`` are the columns of the
        model; others are ignored.

        Raises
        ------
        TableError, OptionError
            A table cannot be read, there is only one, or rows cannot be matched.
        """
        numbered = {f"table {k + 1}": one for k, one in enumerate(party)}
        named = party if isinstance(party, Mapping) else numbered
        check_files([Path(one) for one in named.values() if isinstance(one, (str, Path))])
        read = [read_party(one, label, id_column, dialect, name) for name, one in named.items()]
        check_repeated(read)
        files = [replace(one, label=None, features=_needed(one.features, known)) for one in read]
        if len(files) < 2:
            raise OptionError(
                "one table is one party", remedy="name that of every party", code="FK-PARTIES-FEW"
            )
        owners = tuple(one for one in files if one.features.keys() == files[0].features.keys())
        others = tuple(one for one in files if one not in owners)
        if others and id_column is None:
            raise OptionError(
                f"{others[0].name} has other columns than {files[0].name}, and nothing tells which "
                "rows belong together",
                remedy="name the column of the ids with --id, in Python as id_column of read",
                code="FK-COLUMN-UNNAMED",
            )
        return cls(None, id_column, owners, others, blocks_of(owners[0], others, known))

    @property
    def text(self) -> str:
        return " + ".join(file.name for file in (*self.owners, *self.others))

    def frame(self, *, whole: bool) -> tuple[Any, str, list[str]]:
        """Return a data frame of all, the name of the column with a row's file number, and notes.

        With ``whole``, rows that are not in all files are dropped.
        """
        import pyarrow as pa

        columns = {
            mine: _stack([file.features[name] for file in self.owners])
            for mine, name in zip(self.blocks[0], self.owners[0].features, strict=True)
        }
        sizes = [file.rows for file in self.owners]
        number = np.repeat([f"{k:05}" for k in range(len(sizes))], sizes)
        keep, notes = np.ones(len(number), bool), [n for f in self.owners for n in f.notes]
        if self.others:
            names = (listing(file.name for file in part) for part in (self.owners, self.others))
            what = "labels" if self.label else "new rows"
            notes.insert(0, "{} are in {}, other columns of their rows in {}".format(what, *names))
        ids = None
        if self.id_column is not None:
            ids = np.concatenate([file.ids for file in self.owners if file.ids is not None])
            self._check_ids(ids)
        for file, block in zip(self.others, self.blocks[1:], strict=True):
            assert ids is not None
            places, found = _places(ids, file, "a row with a label" if self.label else "a new row")
            keep &= found
            for mine, name in zip(block, file.features, strict=True):
                columns[mine] = file.features[name].take(pa.array(places, mask=~found))
            notes += [*file.notes, *(_lost(file, int(found.sum())) if self.label else ())]
        special = {self.label: _stack([file.label for file in self.owners])} if self.label else {}
        if ids is not None and self.id_column is not None:
            special[self.id_column] = pa.array(ids.tolist(), pa.string())
        site = _free("party", [*columns, *special])
        frame = pa.table({**columns, **special, site: pa.array(number.tolist(), pa.string())})
        if whole and not keep.all():
            notes.append(f"{int((~keep).sum())} of {len(keep)} rows are not in all files: left out")
            frame = frame.filter(pa.array(keep))
        return frame, site, notes

    @property
    def units(self) -> dict[str, str]:
        """The unit of each column that has one, by its name in the combined table.

        Raises
        ------
        TableError
            Two owners have a column in different units.
        """
        first = self.owners[0]
        for one in self.owners[1:]:
            for name in first.features:
                mine, theirs = first.units.get(name, ""), one.units.get(name, "")
                if mine != theirs:
                    raise TableError(
                        f"column {name!r} is in {mine or 'no unit'} in {first.name}, "
                        f"in {theirs or 'no unit'} in {one.name}",
                        code="FK-UNITS-DIFFER",
                    )
        found = dict[str, str]()
        for file, block in zip((first, *self.others), self.blocks, strict=True):
            named = zip(file.features, block, strict=True)
            found |= {mine: file.units[name] for name, mine in named if name in file.units}
        return found

    def _check_ids(self, ids: NDArray[np.str_]) -> None:
        if repeated := len(ids) - len(np.unique(ids)):
            raise TableError(
                f"{repeated} ids are in two of {listing(file.name for file in self.owners)}",
                code="FK-IDS-PARTIES",
            )


def check_files(paths: Sequence[Path]) -> None:
    for k, path in enumerate(paths):
        if path.resolve() in [other.resolve() for other in paths[:k]]:
            raise OptionError(f"{path.name} is named twice", code="FK-FILE-TWICE")


def read_party(
    data: Any,
    label: str | None,
    id_column: str | None,
    dialect: Mapping[str, Any],
    name: str = "",
) -> PartyTable:
    """Read the columns of a file, or of a data frame called ``name``."""
    import pyarrow as pa

    from . import arrow, cells

    how, file_notes = Dialect.of(dialect), tuple[str, ...]()
    if isinstance(data, (str, Path)):
        path = Path(data)
        name = path.name
        check_file(path)
        if file_kind(path) == ".npz":
            raise TableError(
                f"{name} is no party's file",
                remedy="save it as .csv or .parquet",
                code="FK-FILE-SUFFIX",
            )
        columns, how, file_notes = arrow.file_columns(path, how)
    else:
        columns, how = arrow.frame_columns(data), replace(how, sep=None)
    ids, repeated = None, 0
    if id_column is not None:
        if id_column not in columns:
            raise no_such("id column", id_column, name, columns)
        again = arrow.repeated_rows(columns, id_column, name)
        ids = arrow.text_cells(columns.pop(id_column), id_column, name)
        if again.any():
            columns = {one: cells.filter(pa.array(~again)) for one, cells in columns.items()}
            ids, file_notes = ids[~again], (*file_notes, *copies_note(int(again.sum()), name))
        repeated = len(ids) - len(np.unique(ids))
    tsv = name.lower().endswith(".tsv")
    labels = [label] if label is not None and label in columns else []
    read = cells.read_plainly(columns, [*columns], name, how, tsv=tsv, labels=labels)
    columns, notes = read.columns, (*file_notes, *read.notes)
    found = None if label is None else columns.pop(label, None)
    return PartyTable(name, columns, found, ids, notes, read.units, repeated)


def check_repeated(files: Sequence[PartyTable]) -> None:
    told = [f"{one.repeated} in {one.name}" for one in files if one.repeated]
    if told:
        raise TableError(f"duplicate ids: {listing(told)}", code="FK-IDS-DUPLICATE")


def blocks_of(
    first: PartyTable, others: Sequence[PartyTable], known: Sequence[str] = ()
) -> tuple[tuple[str, ...], ...]:
    """Return the columns of each party; a name that two parties have gets the party's name.

    If the model knows one such name that is free, that is used: the file may have been renamed.
    """
    taken = list(first.features)
    blocks = [tuple(taken)]
    for file in others:
        block: list[str] = []
        for name in file.features:
            of = name
            if name in taken:
                left = [one for one in known if _is_of(one, name) and one not in taken]
                of = left[0] if len(left) == 1 else _free(f"{name} of {_stem(file)}", taken)
            block.append(of)
        taken += block
        blocks.append(tuple(block))
    return tuple(blocks)


def _stem(file: PartyTable) -> str:
    return Path(file.name).stem


def _is_of(one: str, name: str) -> bool:
    return one.startswith(f"{name} of ")


def _needed(features: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    return {
        name: column
        for name, column in features.items()
        if name in known or any(_is_of(one, name) for one in known)
    }


def _free(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "'"
    return name


def _stack(parts: Sequence[Any]) -> Any:
    import pyarrow as pa

    if len({part.type for part in parts}) > 1:
        parts = [part.cast(pa.string()) for part in parts]
    chunks = [chunk for part in parts for chunk in getattr(part, "chunks", [part])]
    return pa.chunked_array(chunks, parts[0].type)


def _places(
    ids: NDArray[np.str_], file: PartyTable, row: str
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    assert file.ids is not None
    order = np.argsort(file.ids)
    places = order[np.searchsorted(file.ids, ids, sorter=order).clip(max=len(order) - 1)]
    found = (file.ids[places] == ids) & (ids != "")
    alike = int(np.isin(plain_ids(ids[ids != ""]), plain_ids(file.ids)).sum())
    if alike > found.sum():
        raise TableError(
            f"{int(found.sum())} ids of {file.name} are those of {row}, {alike} would be if all "
            "files wrote them alike",
            code="FK-IDS-SPELLED",
        )
    if not found.any():
        raise TableError(
            f"no id of {file.name} is that of {row}",
            remedy="write the ids alike in all files",
            code="FK-IDS-APART",
        )
    return places, found


def _lost(file: PartyTable, found: int) -> list[str]:
    lost = file.rows - found
    return [f"{lost} of {file.rows} rows of {file.name} have no label: left out"] if lost else []
