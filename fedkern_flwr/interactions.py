"""Read ratings of items by users from files of several formats."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .errors import ColumnError, OptionError, TableError
from .seeding import derive_seed
from .tables import check_file
from .tables.table import is_number, listing, no_such

if TYPE_CHECKING:
    from scipy.sparse import csr_array


# -- interactions and catalogues of items in files, read with pyarrow (imported when needed)

#: The files that :func:`~fedkern_flwr.interactions.load_interactions` reads.
INTERACTION_FILES = "a u.data, .dat, .inter, .csv, .tsv or .parquet file"
#: The files that :func:`read_catalogue` reads.
CATALOGUE_FILES = "a .txt, .csv, .tsv, .item or .parquet file"
#: What a column may be, in the order of the columns in files without header.
ROLES = ("user", "item", "rating", "time")

_SEPARATORS = {".data": "\t", ".dat": "::", ".inter": "\t", ".tsv": "\t", ".csv": ","}
_CATALOGUE_SEPARATORS = {".item": "\t", ".tsv": "\t", ".csv": ","}
_WITHOUT_HEADER = (".data", ".dat")
_KNOWN_NAMES = {  # in lower case, without underscores
    "user": ("user", "userid"),
    "item": ("item", "itemid", "movie", "movieid"),
    "rating": ("rating",),
    "time": ("time", "timestamp"),
}
_CATALOGUE_NAMES = ("item", "itemid", "movieid")  # a column movie of a catalogue may be a title
_MEND = {"rating": "give numbers", "time": "give numbers, such as seconds since 1970"}
_NUMBER = r"^-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")

Choose = Callable[[Sequence[str]], dict[str, str]]  # from the names of columns to role -> name


def unusable(problem: str, remedy: str, code: str) -> TableError:
    return TableError(problem, remedy=remedy, code=code)


def is_interactions(path: str | Path) -> bool:
    """Return whether a file name means interactions (MovieLens, RecBole)."""
    return Path(path).suffix.lower() in (".data", ".dat", ".inter")


def has_header(path: str | Path) -> bool:
    """Return whether a file of interactions has column names, from its file name."""
    return Path(path).suffix.lower() not in _WITHOUT_HEADER


def read_columns(
    path: Path, named: Mapping[str, str | None], column_remedy: str | None = None
) -> dict[str, Any]:
    """Return the columns of a file of interactions by role, those of ``named`` that exist.

    ``named`` maps a role to the name of its column; None: detected.

    Raises
    ------
    TableError
        The file cannot be read, or lacks columns.
    OptionError
        Columns are named for a file without header.
    """
    suffix = path.suffix.lower()
    check_file(path, (*_SEPARATORS, ".parquet"), INTERACTION_FILES)
    if not has_header(path) and any(named.values()):
        raise OptionError(
            f"the columns of {path.name} are fixed: user, item, rating, time",
            remedy="do not name them",
            code="FK-COLUMNS-FIXED",
        )

    def choose(names: Sequence[str]) -> dict[str, str]:
        if has_header(path):
            return _find_columns(path.name, names, named, column_remedy)
        return {role: name for role, name in _count_columns(path, names).items() if role in named}

    if suffix == ".parquet":
        return _read_parquet(path, choose)
    return _read_text(path, _SEPARATORS[suffix], choose)


def read_catalogue(path: str | Path) -> tuple[str, ...]:
    """Read the ids of all items, in file order.

    Parameters
    ----------
    path : str or Path
        A ``.txt`` file with an id per line; or a ``.csv``, ``.tsv``, ``.parquet`` or RecBole
        ``.item`` file with a column ``item``, ``itemId``, ``item_id`` or ``movieId``, in any case.

    Raises
    ------
    TableError
        The file cannot be read, an id is empty or duplicate, or there are fewer than two.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    check_file(path, (".txt", *_CATALOGUE_SEPARATORS, ".parquet"), CATALOGUE_FILES)

    def choose(names: Sequence[str]) -> dict[str, str]:
        found = [n for n in names if _key(_plain_name(n)) in _CATALOGUE_NAMES]
        if len(found) == 1:
            return {"item": found[0]}
        raise unusable(
            f"{path.name} has {len(found) or 'no'} columns that may be the item",
            "name one column item in the first line",
            "FK-COLUMN-UNNAMED",
        )

    if suffix == ".txt":
        column = _read_lines(path)
    elif suffix == ".parquet":
        column = _read_parquet(path, choose)["item"]
    else:
        column = _read_text(path, _CATALOGUE_SEPARATORS[suffix], choose)["item"]
    items: list[str] = _id_cells(column, "item", path.name).to_pylist()
    repeated = len(items) - len(set(items))
    if repeated:
        raise unusable(
            f"{path.name} has {repeated} rows that repeat an item",
            "keep one row of each item",
            "FK-IDS-DUPLICATE",
        )
    if len(items) < 2:
        raise unusable(f"items in {path.name}: {len(items)}", "list all items", "FK-ITEMS-FEW")
    return tuple(items)


def codes(column: Any, role: str, source: str) -> tuple[NDArray[np.intp], tuple[str, ...]]:
    """Return the code of every row, and the ids in the order of codes."""
    import pyarrow.compute as pc

    cells = _id_cells(column, role, source)
    different = pc.unique(cells)
    found = pc.index_in(cells, value_set=different).to_numpy()
    ids: list[str] = different.tolist()
    if all(map(_WHOLE_NUMBER.fullmatch, ids)):
        order = sorted(range(len(ids)), key=lambda code: (int(ids[code]), ids[code]))
    else:
        order = sorted(range(len(ids)), key=ids.__getitem__)
    rank = np.empty(len(ids), dtype=np.intp)
    rank[order] = np.arange(len(ids))
    return rank[found], tuple(ids[code] for code in order)


def numbers(column: Any, role: str, source: str) -> NDArray[np.float64]:
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
        raise unusable(
            f"the {role} column of {source} is not numeric", _MEND[role], "FK-COLUMN-NUMBERS"
        ) from None
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise unusable(
            f"the {role} is not a finite number in {bad.size} rows of {source}, "
            f"for example in row {bad[0] + 1}",
            _MEND[role],
            "FK-VALUES-FINITE",
        )
    return values


def _read_bytes(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError:
        raise unusable(
            f"{path.name} is not readable", "check who may read it", "FK-FILE-READ"
        ) from None
    if not content.strip():
        raise unusable(f"{path.name} is empty", "give a file with data", "FK-FILE-EMPTY")
    return content


def _no_text(path: Path) -> TableError:
    return unusable(
        f"{path.name} is not a readable text file", "save it again as UTF-8", "FK-FILE-FORMAT"
    )


def _read_lines(path: Path) -> Any:
    import pyarrow as pa

    try:
        text = _read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _no_text(path) from None
    return pa.array(text.rstrip().split("\n"), pa.string())


def _read_text(path: Path, separator: str, choose: Choose) -> dict[str, Any]:
    """Return the columns of a text file by role; cells stay text, so ids keep leading zeros."""
    import pyarrow as pa
    from pyarrow import csv

    content = _read_bytes(path)
    if separator == "::":
        content, separator = content.replace(b"::", b"\t"), "\t"
    broken: list[Any] = []

    def stop(row: Any) -> Literal["error"]:
        broken.append(row)
        return "error"

    reading = csv.ReadOptions(use_threads=False, autogenerate_column_names=not has_header(path))
    parsing = csv.ParseOptions(
        delimiter=separator,
        quote_char='"' if separator == "," else False,
        invalid_row_handler=stop,
    )
    try:
        with csv.open_csv(BytesIO(content), reading, parsing) as reader:
            roles = choose(reader.schema.names)
        chosen = csv.ConvertOptions(
            column_types=dict.fromkeys(roles.values(), pa.string()),
            include_columns=list(roles.values()),
        )
        table = csv.read_csv(BytesIO(content), reading, parsing, chosen)
    except (pa.ArrowException, ValueError):  # their text repeats cells
        if not broken:
            raise _no_text(path) from None
        expected, actual = broken[0].expected_columns, broken[0].actual_columns
        raise unusable(
            f"line {broken[0].number} of {path.name} has {actual} columns instead of {expected}",
            "mend it",
            "FK-FILE-COLUMNS",
        ) from None
    return {role: table[name] for role, name in roles.items()}


def _read_parquet(path: Path, choose: Choose) -> dict[str, Any]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            roles = choose(file.schema_arrow.names)
            table = file.read(list(roles.values()), use_threads=False)
    except (pa.ArrowException, OSError, ValueError):
        raise unusable(
            f"{path.name} is not a readable Parquet file", "save it again", "FK-FILE-FORMAT"
        ) from None
    return {role: table[name] for role, name in roles.items()}


def _count_columns(path: Path, names: Sequence[str]) -> dict[str, str]:
    if not 2 <= len(names) <= len(ROLES):
        separator = _SEPARATORS[path.suffix.lower()].replace("\t", "tabs")
        raise unusable(
            f"line 1 of {path.name} has {len(names)} columns",
            f"give user, item, rating and time, separated by {separator}",
            "FK-FILE-COLUMNS",
        )
    return dict(zip(ROLES, names, strict=False))


def _find_columns(
    source: str,
    names: Sequence[str],
    named: Mapping[str, str | None],
    column_remedy: str | None,
) -> dict[str, str]:
    plain = [_plain_name(name) for name in names]
    if any(map(is_number, plain)):  # a cell, which no error may list as a name
        raise unusable(
            f"the first line of {source} holds data instead of column names",
            "add a line with column names",
            "FK-FILE-HEADER",
        )

    def advice(role: str) -> str:
        return (column_remedy or "").replace("{role}", role)

    keys = [_key(name) for name in plain]
    roles = {}
    for role, wanted in named.items():
        if wanted is None:
            found = [n for n, key in zip(names, keys, strict=True) if key in _KNOWN_NAMES[role]]
        else:
            found = [n for n, p in zip(names, plain, strict=True) if wanted in (n, p)]
            if not found:
                error = no_such(f"{role} column", wanted, source, plain)
                raise (
                    unusable(error.problem, advice(role), error.code) if column_remedy else error
                )
        if len(found) == 1:
            roles[role] = found[0]
        elif found or role in ("user", "item"):
            kind = TableError if column_remedy else ColumnError
            raise kind(
                f"{source} has {len(found) or 'no'} columns that may be the {role}",
                remedy=advice(role) or f"choose one with --{role}: {listing(plain)}",
                code="FK-COLUMN-UNNAMED",
            )
    if len(set(roles.values())) < len(roles):
        raise unusable(
            f"one column of {source} has two of the roles {', '.join(roles)}",
            "name different columns",
            "FK-COLUMN-TWICE",
        )
    return roles


def _plain_name(name: str) -> str:
    return name.strip().partition(":")[0]  # RecBole adds a type


def _key(name: str) -> str:
    return name.lower().replace("_", "")


def _plain(column: Any) -> Any:
    import pyarrow as pa

    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _id_cells(column: Any, role: str, source: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _plain(column)
    if not (
        pa.types.is_integer(column.type)
        or pa.types.is_string(column.type)
        or pa.types.is_large_string(column.type)
    ):
        raise unusable(
            f"the {role} ids of {source} are neither text nor whole numbers",
            "save them as one of these",
            "FK-IDS-TYPE",
        )
    cells = pc.utf8_trim_whitespace(pc.fill_null(column.cast(pa.string()), ""))
    empty = np.flatnonzero(np.asarray(pc.equal(cells, pa.scalar(""))))
    if empty.size:
        raise unusable(
            f"the {role} id is empty in {empty.size} rows of {source}, "
            f"for example in row {empty[0] + 1}",
            "fill it in or remove these rows",
            "FK-IDS-MISSING",
        )
    return cells


# -- interactions of users with items: loading them, choosing the positive ones, holding some out
#
# The MovieLens files may not be passed on, so they are read from where the user has them. Ratings
# are private: no error and no text of an object repeats an id, a rating or a time, only column
# names, row numbers and counts.

__all__ = [
    "INTERACTION_FILES",
    "Interactions",
    "Unknown",
    "encode_interactions",
    "has_header",
    "hold_out_latest",
    "hold_out_random",
    "is_interactions",
    "load_interactions",
    "read_catalogue",
]

#: What to do with rows with an item that is not in the catalogue.
Unknown = Literal["error", "drop"]


@dataclass(frozen=True, eq=False, repr=False)
class Interactions:
    """Ratings of items by users.

    Attributes
    ----------
    user, item : NDArray[np.intp], shape (n,)
        Codes 0..users-1 and 0..items-1; each pair once.
    rating : NDArray[np.float64], shape (n,)
        1 without ratings.
    time : NDArray[np.float64], shape (n,), or None
        In the unit of the source; for MovieLens seconds since 1970.
    user_ids, item_ids : tuple[str, ...]
        Id of each code, in numerical order if all are integers, otherwise as text; items in the
        order of the catalogue, if any.
    rated : bool (default: True)
        Whether the source has ratings.
    notes : tuple[str, ...] (default: ())
        What was done to the data, for the user.
    """

    user: NDArray[np.intp]
    item: NDArray[np.intp]
    rating: NDArray[np.float64]
    time: NDArray[np.float64] | None
    user_ids: tuple[str, ...]
    item_ids: tuple[str, ...]
    rated: bool = True
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        # Tracebacks show this, so no id may be in it.
        return f"Interactions({self.rows} rows, {self.users} users, {self.items} items)"

    @property
    def rows(self) -> int:
        """Number of interactions n."""
        return len(self.user)

    @property
    def users(self) -> int:
        """Number of users, including those without a row."""
        return len(self.user_ids)

    @property
    def items(self) -> int:
        """Number of items, including those without a row."""
        return len(self.item_ids)

    def take(self, rows: NDArray[np.bool_]) -> Interactions:
        """Return the rows of a mask of shape (n,), with all users and items."""
        return replace(
            self,
            user=self.user[rows],
            item=self.item[rows],
            rating=self.rating[rows],
            time=None if self.time is None else self.time[rows],
        )

    @property
    def usual_least(self) -> float | None:
        """Default of the least rating that counts; None if all count.

        With negative ratings, such as dislikes, those above the middle of the scale count.
        """
        if not self.rated or not self.rows or self.rating.min() >= 0.0:
            return None
        middle = (self.rating.min() + self.rating.max()) / 2.0
        return float(self.rating[self.rating > middle].min(initial=np.inf))

    def refuse_negative(self, source: str) -> None:
        """Refuse negative ratings if there is no least rating."""
        if self.usual_least is not None:
            raise unusable(
                f"{source} has negative ratings",
                "say from which rating on one counts, with min-rating in --node-config, the "
                "same at all nodes",
                "FK-RATINGS-NEGATIVE",
            )

    def positive(self, min_rating: float | None) -> Interactions:
        """Return the rows rated at least ``min_rating``, with all users and items.

        Default: :attr:`usual_least`, with a note.

        Raises
        ------
        TableError
            No row remains.
        """
        notes = self.notes
        if min_rating is None:
            if (min_rating := self.usual_least) is None:
                return self
            left = int((self.rating < min_rating).sum())
            notes += (
                f"some ratings are negative: {left} of {self.rows} are left out, those of at least "
                f"{min_rating:g} count; --min-rating says otherwise",
            )
        keep = self.rating >= min_rating
        if not keep.any():
            raise unusable(
                f"no rating is at least {min_rating:g}", "choose a lower one", "FK-RATINGS-LOW"
            )
        return replace(self.take(keep), notes=notes)

    def matrix(self, rows: NDArray[np.bool_] | None = None) -> csr_array:
        """Return which user has which item, in the interactions ``rows`` (a mask; default: all).

        Returns
        -------
        csr_array of int64, shape (users, items)
            1 for every interaction.
        """
        from scipy.sparse import csr_array  # runs on tables do without

        user, item = (self.user, self.item) if rows is None else (self.user[rows], self.item[rows])
        ones = np.ones(len(user), dtype=np.int64)
        return csr_array((ones, (user, item)), shape=(self.users, self.items))


def load_interactions(
    path: str | Path,
    *,
    user: str | None = None,
    item: str | None = None,
    rating: str | None = None,
    time: str | None = None,
    timed: bool = True,
    catalogue: Sequence[str] | None = None,
    unknown: Unknown = "error",
    allow_empty: bool = False,
    column_remedy: str | None = None,
) -> Interactions:
    """Load interactions from a MovieLens, RecBole, CSV, TSV or Parquet file.

    =====================  =============================================================
    ``u.data``, ``.data``  user, item, rating and time, separated by tabs, no header
    ``ratings.dat``        the same, separated by ``::``
    ``.inter``             tabs, header ``user_id:token item_id:token rating:float ...``
    ``.csv``, ``.tsv``     commas or tabs, with a header
    ``.parquet``           named columns
    =====================  =============================================================

    Ratings and times are optional.

    Parameters
    ----------
    path : str or Path
        The file.
    user, item, rating, time : str or None (default: None)
        Column names. Default: ``user``, ``userId`` or ``user_id``, ``item``, ``itemId``,
        ``item_id`` or ``movieId``, ``rating``, and ``time`` or ``timestamp``, in any case.
    timed : bool (default: True)
        Whether to read times.
    catalogue, unknown, allow_empty
        See :func:`encode_interactions`.
    column_remedy : str or None (default: None)
        Remedy in errors for a missing column, with ``{role}`` for user, item, rating or time.

    Raises
    ------
    TableError
        The file cannot be read, or its content cannot be used.
    OptionError
        Columns are named for a file without header.
    """
    path = Path(path)
    named = dict(zip(ROLES, (user, item, rating, time), strict=True))
    if not timed:
        del named["time"]
    columns = read_columns(path, named, column_remedy)
    return encode_interactions(
        **columns,
        source=path.name,
        catalogue=catalogue,
        unknown=unknown,
        allow_empty=allow_empty,
    )


def encode_interactions(
    user: Any,
    item: Any,
    rating: Any = None,
    time: Any = None,
    source: str = "the data",
    *,
    catalogue: Sequence[str] | None = None,
    unknown: Unknown = "error",
    allow_empty: bool = False,
) -> Interactions:
    """Check columns of ids, ratings and times, and give every id a code.

    Parameters
    ----------
    user, item : arrow array, shape (n,)
        Ids, text or integers.
    rating, time : arrow array, shape (n,), or None (default: None)
        Numbers, or numbers as text; ``time`` may be timestamps.
    source : str (default: "the data")
        Name of the data in errors.
    catalogue : sequence of str or None (default: None)
        Ids of all items: an item's code is its position. Default: the items in the data.
    unknown : {"error", "drop"} (default: "error")
        Refuse or drop rows with an item outside the catalogue. Users without other rows stay.
    allow_empty : bool (default: False)
        Return interactions without users if there are no rows.

    Raises
    ------
    TableError
        There are no rows, an id is empty, a number is not finite, a pair is duplicate, an item is
        not in the catalogue, or there are fewer than two users or items and no catalogue.
    """
    if unknown not in get_args(Unknown):
        raise OptionError(
            f"unknown is {unknown!r}", remedy="choose 'error' or 'drop'", code="FK-OPTION-CHOICE"
        )
    if len(user) == 0:
        if allow_empty:
            return _no_rows(catalogue, rating is not None, time is not None)
        raise unusable(f"{source} has no rows", "give a file with data", "FK-ROWS-NONE")
    users, user_ids = codes(user, "user", source)
    items, item_ids = codes(item, "item", source)
    notes: tuple[str, ...] = ()
    if catalogue is not None:
        items, notes = _positions(items, item_ids, catalogue, source, unknown)
        item_ids = tuple(catalogue)
    elif min(len(user_ids), len(item_ids)) < 2:
        raise unusable(
            f"users in {source}: {len(user_ids)}, items: {len(item_ids)}",
            "give at least 2 of each",
            "FK-ITEMS-FEW",
        )
    known = items >= 0
    pairs = (users * len(item_ids) + items)[known]
    repeated = len(pairs) - len(np.unique(pairs))
    if repeated:
        raise unusable(
            f"{source} has {repeated} rows that repeat a pair of user and item",
            "keep one row of each pair",
            "FK-PAIRS-TWICE",
        )
    ratings = np.ones(len(users)) if rating is None else numbers(rating, "rating", source)
    times = None if time is None else numbers(time, "time", source)
    found = Interactions(
        users, items, ratings, times, user_ids, item_ids, rating is not None, notes
    )
    return found if known.all() else found.take(known)


def hold_out_random(interactions: Interactions, share: float, seed: int) -> NDArray[np.bool_]:
    """Return a mask that holds out a random share of all interactions.

    It does not depend on the order of the rows. ``share`` is in [0, 1).
    """
    rng = np.random.default_rng(derive_seed(seed, "held-out interactions"))
    order = np.lexsort((interactions.item, interactions.user))
    return _last(rng.permutation(order), share)


def hold_out_latest(interactions: Interactions, share: float) -> NDArray[np.bool_]:
    """Return a mask that holds out the latest share of all interactions.

    Rows of equal time are sorted by user and item. ``share`` is in [0, 1).

    Raises
    ------
    TableError
        There are no times.
    """
    if interactions.time is None:
        raise unusable(
            "the interactions have no times", "hold out a random share", "FK-TIMES-MISSING"
        )
    return _last(np.lexsort((interactions.item, interactions.user, interactions.time)), share)


def _last(order: NDArray[np.intp], share: float) -> NDArray[np.bool_]:
    if not 0.0 <= share < 1.0:
        raise OptionError(
            f"the held-out share is {share:g}",
            remedy="choose from 0 to below 1",
            code="FK-OPTION-RANGE",
        )
    kept = max(len(order) - round(share * len(order)), 1)
    held_out = np.zeros(len(order), dtype=np.bool_)
    held_out[order[kept:]] = True
    return held_out


def _no_rows(catalogue: Sequence[str] | None, rated: bool, timed: bool) -> Interactions:
    no_codes, no_numbers = np.zeros(0, dtype=np.intp), np.zeros(0)
    time = no_numbers if timed else None
    return Interactions(no_codes, no_codes, no_numbers, time, (), tuple(catalogue or ()), rated)


def _positions(
    items: NDArray[np.intp],
    item_ids: Sequence[str],
    catalogue: Sequence[str],
    source: str,
    unknown: Unknown,
) -> tuple[NDArray[np.intp], tuple[str, ...]]:
    places = {name: place for place, name in enumerate(catalogue)}
    place_of = np.array([places.get(name, -1) for name in item_ids], dtype=np.intp)
    positions = place_of[items]
    rows, different = int((positions < 0).sum()), int((place_of < 0).sum())
    if not rows:
        return positions, ()
    if unknown == "error":
        raise unusable(
            f"{rows} rows of {source} name {different} items that are not in the catalogue",
            "leave out these rows, or add the items to the catalogue",
            "FK-ITEMS-UNKNOWN",
        )
    note = f"left out {rows} rows of {source} that name {different} unknown items"
    return positions, (note,)
