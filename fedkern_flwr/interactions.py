"""Interactions of users with items: loading them, choosing the positive ones, holding some out.

The MovieLens files may not be passed on, so they are read from where the user has them. Ratings
are private: no error and no text of an object repeats an id, a rating or a time, only column
names, row numbers and counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .errors import OptionError, TableError
from .interactions_files import (
    INTERACTION_FILES,
    ROLES,
    codes,
    has_header,
    is_interactions,
    numbers,
    read_catalogue,
    read_columns,
)
from .seeding import derive_seed

if TYPE_CHECKING:
    from scipy.sparse import csr_array

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

#: What to do with rows whose item is not in the catalogue.
Unknown = Literal["error", "drop"]


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
        The id of every code, in numerical order if all are whole numbers, else as text; items in
        the order of the catalogue if there is one.
    rated : bool (default: True)
        Whether the source has ratings.
    notes : tuple[str, ...] (default: ())
        What was done to the data, for the user to read.
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
        """Number of users, those without a row included."""
        return len(self.user_ids)

    @property
    def items(self) -> int:
        """Number of items, those without a row included."""
        return len(self.item_ids)

    def take(self, rows: NDArray[np.bool_]) -> Interactions:
        """Return the rows of a mask of shape (n,); users and items stay."""
        return replace(
            self,
            user=self.user[rows],
            item=self.item[rows],
            rating=self.rating[rows],
            time=None if self.time is None else self.time[rows],
        )

    @property
    def usual_least(self) -> float | None:
        """The least rating that counts unless one is named; None if all do.

        Where some are negative, such as dislikes, those above the middle of the scale count.
        """
        if not self.rated or not self.rows or self.rating.min() >= 0.0:
            return None
        middle = (self.rating.min() + self.rating.max()) / 2.0
        return float(self.rating[self.rating > middle].min(initial=np.inf))

    def refuse_negative(self, source: str) -> None:
        """Refuse negative ratings where nothing says from which rating on one counts.

        Raises
        ------
        TableError
        """
        if self.usual_least is not None:
            raise TableError(
                f"{source} has negative ratings",
                remedy="say from which rating on one counts, with min-rating in --node-config, the "
                "same at all nodes",
                code="FK-RATINGS-NEGATIVE",
            )

    def positive(self, min_rating: float | None) -> Interactions:
        """Return the rows rated at least ``min_rating``; users and items stay.

        None is :attr:`usual_least`, with a note.

        Raises
        ------
        TableError
            No row is left.
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
            raise TableError(
                f"no rating is at least {min_rating:g}",
                remedy="choose a lower one",
                code="FK-RATINGS-LOW",
            )
        return replace(self.take(keep), notes=notes)

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
    timed : bool (default: True)
        Whether times are read.
    catalogue, unknown, allow_empty
        See :func:`encode_interactions`.
    column_remedy : str or None (default: None)
        What errors tell the reader to do about a column that is not found, with ``{role}`` for
        user, item, rating or time; by default to choose one of those there are.

    Raises
    ------
    TableError
        The file cannot be read or its content cannot be used.
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
        The ids, text or whole numbers.
    rating, time : arrow array, shape (n,), or None (default: None)
        Numbers, or text that says numbers; ``time`` may be timestamps.
    source : str (default: "the data")
        Names the data in errors.
    catalogue : sequence of str or None (default: None)
        The ids of all items, each once: an item's code is its position. By default the items are
        those of the data.
    unknown : {"error", "drop"} (default: "error")
        Refuse or leave out rows whose item is not in the catalogue. Users without any other row
        stay, and a note tells how many rows were left out.
    allow_empty : bool (default: False)
        Return interactions without users if there are no rows.

    Raises
    ------
    TableError
        There are no rows, an id is empty, a number is missing or infinite, a pair occurs twice, an
        item is not in the catalogue, or there are fewer than two users or items and no catalogue.
    OptionError
        ``unknown`` is not one of the choices.
    """
    if unknown not in get_args(Unknown):
        raise OptionError(
            f"unknown is {unknown!r}", remedy="choose 'error' or 'drop'", code="FK-OPTION-CHOICE"
        )
    if len(user) == 0:
        if allow_empty:
            return _no_rows(catalogue, rating is not None, time is not None)
        raise TableError(
            f"{source} has no rows", remedy="give a file with data", code="FK-ROWS-NONE"
        )
    users, user_ids = codes(user, "user", source)
    items, item_ids = codes(item, "item", source)
    notes: tuple[str, ...] = ()
    if catalogue is not None:
        items, notes = _positions(items, item_ids, catalogue, source, unknown)
        item_ids = tuple(catalogue)
    elif min(len(user_ids), len(item_ids)) < 2:
        raise TableError(
            f"users in {source}: {len(user_ids)}, items: {len(item_ids)}",
            remedy="give at least 2 of each",
            code="FK-ITEMS-FEW",
        )
    known = items >= 0
    pairs = (users * len(item_ids) + items)[known]
    repeated = len(pairs) - len(np.unique(pairs))
    if repeated:
        raise TableError(
            f"{source} has {repeated} rows that repeat a pair of user and item",
            remedy="keep one row of each pair",
            code="FK-PAIRS-TWICE",
        )
    ratings = np.ones(len(users)) if rating is None else numbers(rating, "rating", source)
    times = None if time is None else numbers(time, "time", source)
    found = Interactions(
        users, items, ratings, times, user_ids, item_ids, rating is not None, notes
    )
    return found if known.all() else found.take(known)


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
        raise TableError(
            "the interactions have no times",
            remedy="hold out a random share",
            code="FK-TIMES-MISSING",
        )
    return _last(np.lexsort((interactions.item, interactions.user, interactions.time)), share)


def _last(order: NDArray[np.intp], share: float) -> NDArray[np.bool_]:
    """Return a mask of the last rows in an order; one row at least is left."""
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
    """Return the position of each row's item in the catalogue, -1 for none, and notes."""
    places = {name: place for place, name in enumerate(catalogue)}
    place_of = np.array([places.get(name, -1) for name in item_ids], dtype=np.intp)
    positions = place_of[items]
    rows, different = int((positions < 0).sum()), int((place_of < 0).sum())
    if not rows:
        return positions, ()
    if unknown == "error":
        raise TableError(
            f"{rows} rows of {source} name {different} items that are not in the catalogue",
            remedy="leave out these rows, or add the items to the catalogue",
            code="FK-ITEMS-UNKNOWN",
        )
    note = f"left out {rows} rows of {source} that name {different} unknown items"
    return positions, (note,)
