"""What a deployed node reads from its own disk: its users' ratings and the public catalogue.

CHANGE THIS if your ratings need more preparation. No error repeats an id or a rating.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedkern_flwr.errors import TableError
from fedkern_flwr.interactions import Interactions, load_interactions, read_catalogue

logger = logging.getLogger("flwr")

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
    OptionError
        Columns are named for a file without header.
    """
    items, (user, item, rating) = read_catalogue(catalogue), columns
    read = partial(
        load_interactions,
        user=user,
        item=item,
        rating=rating,
        timed=False,
        catalogue=items,
        column_remedy="add a header, or name the column as {role}-column",
    )
    known = read(data)
    users, train = known.user_ids, known.matrix(likes(known, min_rating, data))
    if test_data is None:
        return OwnRatings(users, items, train, None)
    held = read(test_data, allow_empty=True)
    row_of = {name: row for row, name in enumerate(users)}
    rows = np.array([row_of.get(name, -1) for name in held.user_ids], np.intp)
    strangers = int((rows < 0).sum())
    if strangers:
        logger.warning("%d users of the test data have no ratings, they are left out", strangers)
    held = replace(held, user=rows[held.user], user_ids=users)
    test = held.matrix(likes(held, min_rating, test_data) & (held.user >= 0))
    both = train.multiply(test).nnz
    if both:
        raise TableError(
            f"{both} ratings are in the data and in the test data",
            remedy="hold them out of the data",
        )
    return OwnRatings(users, items, train, test)


def likes(found: Interactions, min_rating: float | None, path: str) -> NDArray[np.bool_]:
    """Return which ratings count as positive."""
    if min_rating is None:
        return np.ones(found.rows, np.bool_)
    if not found.rated:
        raise TableError(f"{Path(path).name} has no ratings", remedy="leave out min-rating")
    return found.rating >= min_rating
