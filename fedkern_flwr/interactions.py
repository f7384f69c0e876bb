"""Interactions of users with items: loading them, choosing the positive ones, holding some out.

The MovieLens files may not be passed on, so they are read from where the user has them. Ratings
are private: no error and no text of an object repeats an id, a rating or a time, only column
names, row numbers and counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from .errors import OptionError, TableError
from .seeding import derive_seed
from .tables import listing, no_such

__all__ = [
    "INTERACTION_FILES",
    "Interactions",
    "encode_interactions",
    "hold_out_latest",
    "hold_out_random",
    "is_interactions",
    "load_interactions",
]

#: The files that :func:`load_interactions` reads.
INTERACTION_FILES = "a u.data, .dat, .inter, .csv, .tsv or .parquet file"

_ROLES = ("user", "item", "rating", "time")  # the order of columns in files without header
_SEPARATORS = {".data": "\t", ".dat": "::", ".inter": "\t", ".tsv": "\t", ".csv": ","}
_WITHOUT_HEADER = (".data", ".dat")
_KNOWN_NAMES = {  # in lower case, without underscores
    "user": ("user", "userid"),
    "item": ("item", "itemid", "movie", "movieid"),
    "rating": ("rating",),
    "time": ("time", "timestamp"),
}
_MEND = "give numbers, such as seconds since 1970"
_NUMBER = r"^-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True, eq=False, repr=False)
class Interactions:
    """Which users had to do with which items, how they rated them, and when.

    Attributes
    ----------
    user, item : NDArray[np.intp], shape (n,)
        Codes 0..users-1 and 0..items-1; a pair occurs once.
    rating : NDArray[np.float64], shape (n,)
        1 where the source has no ratings.
    time : NDArray[np.float64], shape (n,), or None
        In the unit of the source, seconds since 1970 for MovieLens.
    user_ids, item_ids : tuple[str, ...]
        The id of every code, in numerical order if all are whole numbers, else as text.
    """

    user: NDArray[np.intp]
    item: NDArray[np.intp]
    rating: NDArray[np.float64]
    time: NDArray[np.float64] | None
    user_ids: tuple[str, ...]
    item_ids: tuple[str, ...]

    def __repr__(self) -> str:
        # Tracebacks show this, so no id may be in it.
        return f"Interactions({self.rows} rows, {self.users} users, {self.items} items)"

    @property
    def rows(self) -> int:
        """Number of interactions n."""
        return len(self.user)

    @property
    def users(self) -> int:
        """Number of users, those without a row included."""
        return len(self.user_ids)

    @property
    def items(self) -> int:
        """Number of items, those without a row included."""
        return len(self.item_ids)

    def positive(self, min_rating: float | None) -> Interactions:
        """Return the rows rated at least ``min_rating`` (None: all); users and items stay.

        Raises
        ------
        TableError
            No row is left.
        """
        if min_rating is None:
            return self
        keep = self.rating >= min_rating
        if not keep.any():
            raise TableError(f"no rating is at least {min_rating:g}", remedy="choose a lower one")
        return replace(
            self,
            user=self.user[keep],
            item=self.item[keep],
            rating=self.rating[keep],
            time=None if self.time is None else self.time[keep],
        )

    def matrix(self, rows: NDArray[np.bool_] | None = None) -> csr_array:
        """Return which user has which item.

        Parameters
        ----------
        rows : NDArray[np.bool_], shape (n,), or None (default: None)
            The interactions to count; None is all.

        Returns
        -------
        csr_array of int64, shape (users, items)
            1 for every interaction.
        """
        user, item = (self.user, self.item) if rows is None else (self.user[rows], self.item[rows])
        ones = np.ones(len(user), dtype=np.int64)
        return csr_array((ones, (user, item)), shape=(self.users, self.items))


def is_interactions(path: str | Path) -> bool:
    """Tell from its name whether a file can only hold interactions (MovieLens, RecBole)."""
    return Path(path).suffix.lower() in (".data", ".dat", ".inter")


def load_interactions(
    path: str | Path,
    *,
    user: str | None = None,
    item: str | None = None,
    rating: str | None = None,
    time: str | None = None,
) -> Interactions:
    """Load interactions from a file of MovieLens or RecBole, a CSV, TSV or Parquet file.

    =====================  =============================================================
    ``u.data``, ``.data``  user, item, rating and time, separated by tabs, no header
    ``ratings.dat``        the same, separated by ``::``
    ``.inter``             tabs, header ``user_id:token item_id:token rating:float ...``
    ``.csv``, ``.tsv``     commas or tabs, with a header
    ``.parquet``           named columns
    =====================  =============================================================

    Ratings and times are optional everywhere.

    Parameters
    ----------
    path : str or Path
        The file.
    user, item, rating, time : str or None (default: None)
        Column names, for files that have them; by default ``user``, ``userId`` or ``user_id``,
        ``item``, ``itemId``, ``item_id`` or ``movieId``, ``rating``, and ``time`` or
        ``timestamp``, in upper or lower case.

    Raises
    ------
    TableError
        The file cannot be read or its content cannot be used.
    OptionError
        Columns are named for a file without header.
    """
    path = Path(path)
    _check_file(path)
    named = dict(zip(_ROLES, (user, item, rating, time), strict=True))
    suffix = path.suffix.lower()
    if suffix in _WITHOUT_HEADER and any(named.values()):
        raise OptionError(
            f"the columns of {path.name} are fixed: user, item, rating, time",
            remedy="do not name them",
        )
    columns = _read_parquet(path, named) if suffix == ".parquet" else _read_text(path, named)
    return encode_interactions(**columns, source=path.name)


def encode_interactions(
    user: Any, item: Any, rating: Any = None, time: Any = None, source: str = "the data"
) -> Interactions:
    """Check columns of ids, ratings and times, and give every id a code.

    Parameters
    ----------
    user, item : arrow array, shape (n,)
        The ids, text or whole numbers.
    rating, time : arrow array, shape (n,), or None (default: None)
        Numbers, or text that says numbers; ``time`` may be timestamps.
    source : str (default: "the data")
        Names the data in errors.

    Raises
    ------
    TableError
        An id is empty, a number is missing or infinite, a pair occurs twice, or there are fewer
        than two users or items.
    """
    if len(user) == 0:
        raise TableError(f"{source} has no rows", remedy="give a file with data")
    users, user_ids = _codes(user, "user", source)
    items, item_ids = _codes(item, "item", source)
    if min(len(user_ids), len(item_ids)) < 2:
        raise TableError(
            f"users in {source}: {len(user_ids)}, items: {len(item_ids)}",
            remedy="give at least 2 of each",
        )
    repeated = len(users) - len(np.unique(users * len(item_ids) + items))
    if repeated:
        raise TableError(
            f"{source} has {repeated} rows that repeat a pair of user and item",
            remedy="keep one row of each pair",
        )
    ratings = np.ones(len(users)) if rating is None else _numbers(rating, "rating", source)
    times = None if time is None else _numbers(time, "time", source)
    return Interactions(users, items, ratings, times, user_ids, item_ids)


def hold_out_random(interactions: Interactions, share: float, seed: int) -> NDArray[np.bool_]:
    """Return which interactions are held out: a random share of all.

    The same pairs are held out in whatever order the rows are.

    Parameters
    ----------
    interactions : Interactions
        What to part.
    share : float
        In [0, 1).
    seed : int
        Of the experiment.

    Returns
    -------
    NDArray[np.bool_], shape (n,)
        True for a row that is held out.

    Raises
    ------
    OptionError
        The share is not in [0, 1).
    """
    rng = np.random.default_rng(derive_seed(seed, "held-out interactions"))
    order = np.lexsort((interactions.item, interactions.user))
    return _last(rng.permutation(order), share)


def hold_out_latest(interactions: Interactions, share: float) -> NDArray[np.bool_]:
    """Return which interactions are held out: the latest share of all, users taken together.

    Rows of one time are ordered by user and item.

    Parameters
    ----------
    interactions : Interactions
        What to part.
    share : float
        In [0, 1).

    Returns
    -------
    NDArray[np.bool_], shape (n,)
        True for a row that is held out.

    Raises
    ------
    TableError
        There are no times.
    OptionError
        The share is not in [0, 1).
    """
    if interactions.time is None:
        raise TableError("the interactions have no times", remedy="hold out a random share")
    return _last(np.lexsort((interactions.item, interactions.user, interactions.time)), share)


def _last(order: NDArray[np.intp], share: float) -> NDArray[np.bool_]:
    """Return a mask of the last rows in an order; one row at least is left."""
    if not 0.0 <= share < 1.0:
        raise OptionError(f"the held-out share is {share:g}", remedy="choose from 0 to below 1")
    kept = max(len(order) - round(share * len(order)), 1)
    held_out = np.zeros(len(order), dtype=np.bool_)
    held_out[order[kept:]] = True
    return held_out


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise TableError(f"{path} is a directory", remedy=f"give {INTERACTION_FILES}")
    if not path.is_file():
        raise TableError(f"there is no file {path}", remedy="check the path")
    if path.suffix.lower() not in (*_SEPARATORS, ".parquet"):
        raise TableError(f"{path.name} has an unknown suffix", remedy=f"give {INTERACTION_FILES}")
    if path.stat().st_size == 0:
        raise TableError(f"{path.name} is empty", remedy="give a file with data")


def _read_text(path: Path, named: dict[str, str | None]) -> dict[str, Any]:
    """Return the columns of a text file by role; cells stay text, so ids keep leading zeros."""
    import pyarrow as pa
    from pyarrow import csv

    suffix = path.suffix.lower()
    separator, header = _SEPARATORS[suffix], suffix not in _WITHOUT_HEADER
    try:
        content = path.read_bytes()
    except OSError:
        raise TableError(f"{path.name} is not readable", remedy="check who may read it") from None
    if separator == "::":
        content, separator = content.replace(b"::", b"\t"), "\t"
    if not content.strip():
        raise TableError(f"{path.name} is empty", remedy="give a file with data")
    broken: list[Any] = []

    def stop(row: Any) -> Literal["error"]:
        broken.append(row)
        return "error"

    reading = csv.ReadOptions(use_threads=False, autogenerate_column_names=not header)
    parsing = csv.ParseOptions(
        delimiter=separator,
        quote_char='"' if separator == "," else False,
        invalid_row_handler=stop,
    )
    try:
        with csv.open_csv(BytesIO(content), reading, parsing) as reader:
            names = reader.schema.names
        roles = _find_columns(path.name, names, named) if header else _count_columns(path, names)
        chosen = csv.ConvertOptions(
            column_types=dict.fromkeys(roles.values(), pa.string()),
            include_columns=list(roles.values()),
        )
        table = csv.read_csv(BytesIO(content), reading, parsing, chosen)
    except (pa.ArrowException, ValueError):  # their text repeats cells
        if not broken:
            raise TableError(
                f"{path.name} is not a readable text file", remedy="save it again as UTF-8"
            ) from None
        expected, actual = broken[0].expected_columns, broken[0].actual_columns
        raise TableError(
            f"line {broken[0].number} of {path.name} has {actual} columns instead of {expected}",
            remedy="mend it",
        ) from None
    return {role: table[name] for role, name in roles.items()}


def _read_parquet(path: Path, named: dict[str, str | None]) -> dict[str, Any]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            roles = _find_columns(path.name, file.schema_arrow.names, named)
            table = file.read(list(roles.values()), use_threads=False)
    except (pa.ArrowException, OSError, ValueError):
        raise TableError(
            f"{path.name} is not a readable Parquet file", remedy="save it again"
        ) from None
    return {role: table[name] for role, name in roles.items()}


def _count_columns(path: Path, names: Sequence[str]) -> dict[str, str]:
    if not 2 <= len(names) <= len(_ROLES):
        separator = _SEPARATORS[path.suffix.lower()].replace("\t", "tabs")
        raise TableError(
            f"line 1 of {path.name} has {len(names)} columns",
            remedy=f"give user, item, rating and time, separated by {separator}",
        )
    return dict(zip(_ROLES, names, strict=False))


def _find_columns(
    source: str, names: Sequence[str], named: dict[str, str | None]
) -> dict[str, str]:
    """Return the column of each role: the named one, else the one that is recognised."""
    plain = [name.strip().partition(":")[0] for name in names]  # RecBole adds a type
    if any(map(_is_number, plain)):  # a cell, which no error may list as a name
        raise TableError(
            f"the first line of {source} holds data instead of column names",
            remedy="add a line with column names",
        )
    keys = [name.lower().replace("_", "") for name in plain]
    roles = {}
    for role, wanted in named.items():
        if wanted is None:
            found = [n for n, key in zip(names, keys, strict=True) if key in _KNOWN_NAMES[role]]
        else:
            found = [n for n, p in zip(names, plain, strict=True) if wanted in (n, p)]
            if not found:
                raise no_such(f"{role} column", wanted, source, plain)
        if len(found) == 1:
            roles[role] = found[0]
        elif found or role in ("user", "item"):
            raise TableError(
                f"{source} has {len(found) or 'no'} columns that may be the {role}",
                remedy=f"choose one with --{role}: {listing(plain)}",
            )
    if len(set(roles.values())) < len(roles):
        raise TableError(
            f"one column of {source} has two of the roles {', '.join(roles)}",
            remedy="name different columns",
        )
    return roles


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _plain(column: Any) -> Any:
    import pyarrow as pa

    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _codes(column: Any, role: str, source: str) -> tuple[NDArray[np.intp], tuple[str, ...]]:
    """Return the code of every row, and the ids in the order of their codes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _plain(column)
    if not (
        pa.types.is_integer(column.type)
        or pa.types.is_string(column.type)
        or pa.types.is_large_string(column.type)
    ):
        raise TableError(
            f"the {role} ids of {source} are neither text nor whole numbers",
            remedy="save them as one of these",
        )
    cells = pc.utf8_trim_whitespace(pc.fill_null(column.cast(pa.string()), ""))
    different = pc.unique(cells)
    codes = pc.index_in(cells, value_set=different).to_numpy()
    ids: list[str] = different.tolist()
    if "" in ids:
        empty = np.flatnonzero(codes == ids.index(""))
        raise TableError(
            f"the {role} id is empty in {len(empty)} rows of {source}, "
            f"for example in row {empty[0] + 1}",
            remedy="fill it in or remove these rows",
        )
    if all(map(_WHOLE_NUMBER.fullmatch, ids)):
        order = sorted(range(len(ids)), key=lambda code: (int(ids[code]), ids[code]))
    else:
        order = sorted(range(len(ids)), key=ids.__getitem__)
    rank = np.empty(len(ids), dtype=np.intp)
    rank[order] = np.arange(len(ids))
    return rank[codes], tuple(ids[code] for code in order)


def _numbers(column: Any, role: str, source: str) -> NDArray[np.float64]:
    """Return finite numbers; timestamps become seconds since 1970."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _plain(column)
    if pa.types.is_timestamp(column.type):
        column = pc.divide(column.cast(pa.timestamp("us"), safe=False).cast(pa.int64()), 1e6)
    elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        text = pc.utf8_ltrim(pc.utf8_trim_whitespace(column), "+")
        is_number = pc.fill_null(pc.match_substring_regex(text, _NUMBER), False)
        column = pc.if_else(is_number, text, "nan")
    try:
        values: NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy()
    except pa.ArrowException:
        raise TableError(f"the {role} column of {source} is not numeric", remedy=_MEND) from None
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise TableError(
            f"the {role} is not a finite number in {bad.size} rows of {source}, "
            f"for example in row {bad[0] + 1}",
            remedy=_MEND,
        )
    return values
