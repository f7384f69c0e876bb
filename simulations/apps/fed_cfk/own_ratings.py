"""What a deployed node reads from its own disk: its users' ratings and the public catalogue.

CHANGE THIS if your ratings need more preparation. No error repeats an id or a rating.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv, parquet
from scipy.sparse import csr_array

from fedkern_flwr.errors import OptionError, TableError

logger = logging.getLogger("flwr")

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".inter": "\t", ".data": "\t", ".dat": "\t"}
_WITHOUT_HEADER = (".data", ".dat")
_ROLES = ("user", "item", "rating", "time")  # the order of columns in files without header
_NAMES = {
    "user": ("user", "userid"),
    "item": ("item", "itemid", "movie", "movieid"),
    "rating": ("rating",),
}

Columns = tuple[str | None, str | None, str | None]  # names of users, items and ratings


@dataclass(frozen=True, eq=False, repr=False)
class OwnRatings:
    """What the users of a node like, in the order of the catalogue.

    Attributes
    ----------
    users : tuple of str
        Their names, which never leave the node.
    items : tuple of str
        The catalogue.
    train : csr_array of int, shape (users, items)
        1 for every item that a user likes.
    test : csr_array of int, shape (users, items), or None
        1 for what was held out.
    """

    users: tuple[str, ...]
    items: tuple[str, ...]
    train: csr_array
    test: csr_array | None

    def __repr__(self) -> str:
        # tracebacks show this, so no id may be in it
        return f"OwnRatings({len(self.users)} users, {len(self.items)} items)"


@lru_cache  # a process reads its ratings once
def own_ratings(
    data: str,
    catalogue: str,
    test_data: str | None = None,
    columns: Columns = (None, None, None),
    min_rating: float | None = None,
) -> OwnRatings:
    """Read the ratings of a node's users, of one or of many.

    Ratings of at least ``min_rating`` count, all by default. A user without any stays. Users of
    ``test_data`` who are not in ``data`` are left out.

    Raises
    ------
    TableError
        A file cannot be used, or ratings name items that are not in the catalogue.
    """
    items = read_catalogue(catalogue)
    users, rows, places, likes = read_ratings(data, items, columns, min_rating)
    if not users:
        raise TableError(f"{Path(data).name} has no rows", remedy="give a file with ratings")
    train = _matrix(rows[likes], places[likes], len(users), len(items))
    if test_data is None:
        return OwnRatings(users, items, train, None)
    others, rows, places, likes = read_ratings(test_data, items, columns, min_rating)
    known = {user: row for row, user in enumerate(users)}
    row_of = np.array([known.get(user, -1) for user in others], np.intp)
    strangers = int((row_of < 0).sum())
    if strangers:
        logger.warning("%d users of the test data have no ratings, they are left out", strangers)
    likes &= row_of[rows] >= 0
    test = _matrix(row_of[rows[likes]], places[likes], len(users), len(items))
    both = train.multiply(test).nnz
    if both:
        raise TableError(
            f"{both} ratings are in the data and in the test data",
            remedy="hold them out of the data",
        )
    return OwnRatings(users, items, train, test)


def read_catalogue(path: str) -> tuple[str, ...]:
    """Read the ids of all items: a line each, or a column ``item`` of a table with a header.

    Raises
    ------
    TableError
    """
    file = Path(path)
    if file.suffix.lower() in (".csv", ".tsv", ".parquet"):
        table = _read(file)
        ids: list[str] = _text(table[_column(file, table.column_names, "item", None)]).to_pylist()
    else:
        ids = [line.strip() for line in _bytes(file).decode(errors="replace").splitlines()]
        ids = [line for line in ids if line]
    repeated, empty = len(ids) - len(set(ids)), ids.count("")
    if repeated or empty:
        problem = f"{empty} empty" if empty else f"{repeated} repeated"
        raise TableError(f"{file.name} has {problem} items", remedy="name each item once")
    if len(ids) < 2:
        raise TableError(f"{file.name} has {len(ids)} items", remedy="list all items, a line each")
    return tuple(ids)


def read_ratings(
    path: str, items: tuple[str, ...], columns: Columns, min_rating: float | None
) -> tuple[tuple[str, ...], NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
    """Return the users, and of each rating the user, the item and whether it counts.

    Raises
    ------
    TableError
    """
    file = Path(path)
    if file.suffix.lower() in _WITHOUT_HEADER and any(columns):
        raise OptionError(
            f"the columns of {file.name} are fixed: user, item, rating, time",
            remedy="do not name them",
        )
    table = _read(file)
    user, item, rating = (
        _column(file, table.column_names, role, name)
        for role, name in zip(_NAMES, columns, strict=True)
    )
    owners, named = _text(table[user]), _text(table[item])
    places = pc.index_in(named, value_set=pa.array(items))
    if places.null_count:
        unknown = len(pc.unique(named.filter(pc.is_null(places))))
        raise TableError(
            f"{places.null_count} ratings of {file.name} are of {unknown} items that are not in "
            "the catalogue",
            remedy="add these items at all nodes, or leave out the ratings",
        )
    users = pc.unique(owners)
    names: list[str] = users.to_pylist()
    if "" in names:
        raise TableError(f"{file.name} has rows without a user", remedy="fill in its cells")
    rows, where = (
        codes.to_numpy().astype(np.intp) for codes in (pc.index_in(owners, users), places)
    )
    repeated = len(rows) - len(np.unique(rows * len(items) + where))
    if repeated:
        raise TableError(
            f"{file.name} has {repeated} rows that repeat a pair of user and item",
            remedy="keep one row of each pair",
        )
    likes = np.ones(len(rows), bool)
    if rating:
        values = _numbers(file, table[rating])
        if min_rating is not None:
            likes = values >= min_rating
    elif min_rating is not None:
        raise TableError(f"{file.name} has no ratings", remedy="leave out min-rating")
    return tuple(names), rows, where, likes


def _matrix(rows: NDArray[np.intp], places: NDArray[np.intp], users: int, items: int) -> csr_array:
    ones = np.ones(len(rows), np.int64)
    return csr_array((ones, (rows, places)), shape=(users, items))


def _bytes(file: Path) -> bytes:
    if not file.is_file():
        raise TableError(f"there is no file {file.name}", remedy="check the path")
    try:
        content = file.read_bytes()
    except OSError:
        raise TableError(f"{file.name} is not readable", remedy="check who may read it") from None
    if not content.strip():
        raise TableError(f"{file.name} is empty", remedy="give a file with data")
    return content


def _read(file: Path) -> Any:
    """Return an Arrow table; cells of text files stay text, so that ids keep leading zeros."""
    suffix = file.suffix.lower()
    if suffix not in (*_SEPARATORS, ".parquet"):
        raise TableError(
            f"{file.name} has an unknown suffix",
            remedy=f"give one of {', '.join(_SEPARATORS)}, .parquet",
        )
    content, header = _bytes(file), suffix not in _WITHOUT_HEADER
    if suffix == ".dat":
        content = content.replace(b"::", b"\t")
    separator = _SEPARATORS.get(suffix, ",")
    reading = csv.ReadOptions(autogenerate_column_names=not header)
    parsing = csv.ParseOptions(delimiter=separator, quote_char='"' if separator == "," else False)
    try:
        if suffix == ".parquet":
            return parquet.read_table(BytesIO(content))
        with csv.open_csv(BytesIO(content), reading, parsing) as reader:
            names = reader.schema.names
        texts = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
        table = csv.read_csv(BytesIO(content), reading, parsing, texts)
    except (pa.ArrowException, ValueError):  # their text repeats cells
        raise TableError(
            f"{file.name} is not a readable table",
            remedy="save it again, as UTF-8 and with as many cells in each line",
        ) from None
    if header:
        return table
    if not 2 <= table.num_columns <= len(_ROLES):
        raise TableError(
            f"{file.name} has {table.num_columns} columns",
            remedy="give user, item, rating and time, separated by tabs or ::",
        )
    return table.rename_columns(list(_ROLES[: table.num_columns]))


def _column(file: Path, names: list[str], role: str, wanted: str | None) -> str:
    """Return the name of a column, empty if there are no ratings."""
    plain = [name.strip().partition(":")[0] for name in names]  # RecBole adds a type
    if wanted is not None:
        found = [n for n, p in zip(names, plain, strict=True) if wanted in (n, p)]
    else:
        keys = [p.lower().replace("_", "") for p in plain]
        found = [n for n, key in zip(names, keys, strict=True) if key in _NAMES[role]]
    if len(found) == 1:
        return found[0]
    if not found and role == "rating" and wanted is None:
        return ""
    # a file without a header has cells here, which are private: no name is repeated
    raise TableError(
        f"{file.name} has {len(found) or 'no'} columns {wanted or role!r}",
        remedy=f"add a header, or name the column as {role}-column",
    )


def _text(column: Any) -> Any:
    """Return ids as text without spaces around; empty where there is none."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    ):
        raise TableError(
            "a column of ids is neither text nor whole numbers", remedy="save it as one of these"
        )
    return pc.utf8_trim_whitespace(pc.fill_null(column.cast(pa.string()), "")).combine_chunks()


def _numbers(file: Path, column: Any) -> NDArray[np.float64]:
    try:
        values: NDArray[np.float64] = column.cast(pa.float64()).to_numpy()
    except pa.ArrowException:
        raise TableError(
            f"the ratings of {file.name} are not all numbers", remedy="fill in numbers"
        ) from None
    bad = int((~np.isfinite(values)).sum())
    if bad:
        raise TableError(
            f"{bad} ratings of {file.name} are not finite numbers", remedy="fill in numbers"
        )
    return values
