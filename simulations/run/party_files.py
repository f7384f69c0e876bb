"""Files of parties, one each, as one table: what each of them would hold is known of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.tables import check_file, load_table
from fedkern_flwr.tables.table import Missing, Table, listing, near, no_such

#: What files of a method's parties have: rows of the same columns; such rows, and columns of theirs
#: with others; or columns of the same rows each, labels with one of them.
Holding = Literal["rows", "rows and columns", "columns"]

#: What is written behind a file whose labels are not used.
FEATURES = ":features"


@dataclass(frozen=True, eq=False)
class _File:
    """A party's file: what it is called, its columns without label and id, its labels and ids."""

    name: str
    features: dict[str, Any]
    label: Any
    ids: NDArray[np.str_] | None
    notes: tuple[str, ...]

    @property
    def rows(self) -> int:
        columns = [*self.features.values(), *[self.label] * (self.label is not None)]
        return len(columns[0]) if columns else len(self.ids) if self.ids is not None else 0


@dataclass(frozen=True, eq=False)
class PartyFiles:
    """What parties have in files of their own.

    Attributes
    ----------
    label, id_column : str or None
        Names of the columns.
    owners : tuple
        Files with the labels, or of all parties if there is no label.
    others : tuple
        Files without them, whose rows are found by their ids.
    blocks : tuple of tuple of str
        Columns of the owners, which are the same, and of each of the others, by their names in the
        table of all.
    """

    label: str | None
    id_column: str | None
    owners: tuple[_File, ...]
    others: tuple[_File, ...]
    blocks: tuple[tuple[str, ...], ...]

    @classmethod
    def read(
        cls,
        party: Sequence[str],
        holding: Holding,
        label: str | None,
        id_column: str | None,
        dialect: Mapping[str, Any],
    ) -> PartyFiles:
        """Read files, each named as ``FILE`` or ``FILE:features``, whose labels are not used.

        Raises
        ------
        TableError, OptionError
            A file cannot be read or is no party's of the method, or there is one party only.
        """
        joined = holding != "rows"
        if joined and (label is None or id_column is None):
            what, flag = ("label", "--label") if label is None else ("ids", "--id")
            why = "" if label is None else ", by which rows of different files are matched"
            raise OptionError(f"the column of the {what}{why} is not named", remedy=f"use {flag}")
        paths = [Path(text.removesuffix(FEATURES)) for text in party]
        check_files(paths)
        for path in paths:
            check_file(path)
        files = tuple(
            (path.absolute(), text.endswith(FEATURES))
            for text, path in zip(party, paths, strict=True)
        )
        states = tuple((path.stat().st_mtime_ns, path.stat().st_size) for path in paths)
        return cls._read(files, states, holding, label, id_column, tuple(dialect.items()))

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
    ) -> PartyFiles:
        joined = holding != "rows"
        owners: list[_File] = []
        others: list[_File] = []
        for path, plain in files:
            if plain and not joined:
                raise OptionError(
                    f"{path.name} is to give features only, and every party of this method has "
                    "labels or needs none",
                    remedy="leave out :features, or use fed-cg, fdskl or secure-gram",
                )
            file = _read(path, label, id_column, dict(dialect))
            if not joined and label is not None and file.label is None:
                if owners:
                    raise TableError(
                        f"{file.name} has no label column {label!r}, and every party of this "
                        "method has labels",
                        remedy="use fed-cg, fdskl or secure-gram for parties with other columns",
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
            )
        if holding == "columns" and len(owners) > 1:
            raise TableError(
                f"{len(owners)} files have the labels: {listing(one.name for one in owners)}",
                remedy="write FILE:features of all but one, or use fed-cg if each has own rows",
            )
        for one in owners[1:]:
            _check_columns(one, owners[0])
        return cls(label, id_column, tuple(owners), tuple(others), _blocks(owners[0], others))

    @classmethod
    def of_new_rows(
        cls,
        party: Sequence[str],
        label: str | None,
        id_column: str | None,
        dialect: Mapping[str, Any],
    ) -> PartyFiles:
        """Read files with new rows, whose labels are not used.

        Files with the columns of the first have rows of their own, the others further columns.

        Raises
        ------
        TableError, OptionError
            A file cannot be read, there is one only, or nothing tells which rows belong together.
        """
        paths = [Path(text.removesuffix(FEATURES)) for text in party]
        check_files(paths)
        files = [replace(_read(path, label, id_column, dialect), label=None) for path in paths]
        owners = tuple(one for one in files if one.features.keys() == files[0].features.keys())
        others = tuple(one for one in files if one not in owners)
        if others and id_column is None:
            raise OptionError(
                f"{others[0].name} has other columns than {files[0].name}, and nothing tells which "
                "rows belong together",
                remedy="name the column of the ids with --id",
            )
        return cls(None, id_column, owners, others, _blocks(owners[0], others))

    @property
    def text(self) -> str:
        """Names of the files."""
        return " + ".join(file.name for file in (*self.owners, *self.others))

    def named(self, text: str, nodes: int) -> str:
        """Return a text in which partitions, of so many, have the names of their files as well."""
        files = [*self.owners, *self.others]
        if nodes < len(files):  # of a matrix, who has columns is a node
            files = [file for file in files if file.features]

        def name(found: re.Match[str]) -> str:
            number = int(found[1])
            return f"{files[number].name} ({found[0]})" if number < len(files) else found[0]

        return re.sub(r"\bpartition (\d+)\b", name, text)

    def parts(self, sources: Sequence[str]) -> tuple[NDArray[np.intp], ...]:
        """Return for each block the places of what became of its columns.

        ``sources`` names for each place the column that it comes from.

        Raises
        ------
        TableError
            Nothing is left of a file.
        """
        found = tuple(np.flatnonzero(np.isin(sources, block)) for block in self.blocks)
        names = [listing(file.name for file in self.owners), *(file.name for file in self.others)]
        for name, block, part in zip(names, self.blocks, found, strict=True):
            if block and not len(part):
                raise TableError(f"no column of {name} says anything", remedy="leave the party out")
        return found

    def table(self, missing: Missing) -> Table:
        """Return the table of all; the site of a row is the number of the owner's file.

        Rows that are not in all files are left out where gaps are encoded, for they are none; else
        they lack what is in those files.

        Raises
        ------
        TableError
            Ids come twice or nowhere else, or the table cannot be used.
        """
        frame, site, notes = self.frame(whole=missing == "encode")
        table = load_table(
            frame,
            label=self.label,
            id_column=self.id_column,
            site_column=site,
            missing=missing,
            labelled=self.label is not None,
            kinds={},
            source="the table of all parties",
        )
        return Table(**{**vars(table), "notes": (*notes, *table.notes)})

    def frame(self, *, whole: bool) -> tuple[Any, str, list[str]]:
        """Return a data frame of all, the column with the number of a row's file, and notes.

        Rows that are not in all files are left out if the others are to be ``whole``.
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
            places, found = _places(ids, file)
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

    def _check_ids(self, ids: NDArray[np.str_]) -> None:
        if repeated := len(ids) - len(np.unique(ids)):
            raise TableError(
                f"{repeated} ids are in two of {listing(file.name for file in self.owners)}",
                remedy="keep the row of an id in one of them",
            )


def check_files(paths: Sequence[Path]) -> None:
    """Refuse one party only, and a file that is named twice.

    Raises
    ------
    OptionError
    """
    if len(paths) < 2:
        raise OptionError("one file is one party", remedy="use --party for every party's file")
    for k, path in enumerate(paths):
        if path.resolve() in [other.resolve() for other in paths[:k]]:
            raise OptionError(f"{path.name} is named twice", remedy="name every file once")


def _read(
    path: Path, label: str | None, id_column: str | None, dialect: Mapping[str, Any]
) -> _File:
    """Read the columns of a file."""
    from fedkern_flwr.tables.arrow import file_columns, text_cells
    from fedkern_flwr.tables.dialect import Dialect, read_plainly

    check_file(path)
    if path.suffix.lower() == ".npz":
        raise TableError(f"{path.name} is no party's file", remedy="save it as .csv or .parquet")
    columns, found = file_columns(path, Dialect.of(**dialect))
    ids = None
    if id_column is not None:
        if id_column not in columns:
            raise no_such("id column", id_column, path.name, columns)
        ids = text_cells(columns.pop(id_column), id_column, path.name)
        if repeated := len(ids) - len(np.unique(ids)):
            raise TableError(
                f"the id column of {path.name} has {repeated} duplicate ids",
                remedy="keep one row per id",
            )
    tsv = path.suffix.lower() == ".tsv"
    columns, notes = read_plainly(columns, [*columns], path.name, found, tsv=tsv)
    labels = None if label is None else columns.pop(label, None)
    return _File(path.name, columns, labels, ids, notes)


def _check_columns(one: _File, first: _File) -> None:
    """Refuse a file that has not the columns of the first."""
    for here, there in ((one, first), (first, one)):
        lacking = [name for name in there.features if name not in here.features]
        if lacking:
            raise TableError(
                f"{here.name} lacks {len(lacking)} columns of {there.name}, "
                f"the first is {lacking[0]!r}",
                remedy="give both the same, or write FILE:features of what is a part of the rows'",
            )


def _blocks(first: _File, others: Sequence[_File]) -> tuple[tuple[str, ...], ...]:
    """Return the columns of each party; names that two of them have say whose they are."""
    taken = list(first.features)
    blocks = [tuple(taken)]
    for file in others:
        block = [
            name if name not in taken else _free(f"{name} of {Path(file.name).stem}", taken)
            for name in file.features
        ]
        taken += block
        blocks.append(tuple(block))
    return tuple(blocks)


def _free(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "'"
    return name


def _stack(parts: Sequence[Any]) -> Any:
    """Return columns of several files as one; as text if their types differ."""
    import pyarrow as pa

    if len({part.type for part in parts}) > 1:
        parts = [part.cast(pa.string()) for part in parts]
    chunks = [chunk for part in parts for chunk in getattr(part, "chunks", [part])]
    return pa.chunked_array(chunks, parts[0].type)


def _places(ids: NDArray[np.str_], file: _File) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return where the rows stand in a file, and which of them are there."""
    assert file.ids is not None
    order = np.argsort(file.ids)
    places = order[np.searchsorted(file.ids, ids, sorter=order).clip(max=len(order) - 1)]
    found = (file.ids[places] == ids) & (ids != "")
    if not found.any():
        raise TableError(
            f"no id of {file.name} is that of a row with a label",
            remedy="write the ids alike in all files",
        )
    return places, found


def _lost(file: _File, found: int) -> list[str]:
    lost = file.rows - found
    return [f"{lost} of {file.rows} rows of {file.name} have no label: left out"] if lost else []
