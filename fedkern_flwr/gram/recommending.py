"""What a user asks for, all rows of the kernel or the paper's superset, and what it gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..checkpoint import write_csv
from .ranking import top_items

Request = Literal["full", "noisy"]
REQUESTS: tuple[str, ...] = get_args(Request)

_KEPT = 0.9  # chance that a needed row is asked for
_DECOYS = 4  # rows asked for in vain, per needed one


def superset(needed: NDArray[Any], rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the rows of a noisy request, ascending.

    Most of the needed rows, and four others for each. The paper (section 3.2) asks for "a bigger
    set of items" without some of the needed ones, ever new ones; it gives no numbers. What a user
    needs is asked for far more often than anything else, which is why this is not the default.

    Parameters
    ----------
    needed : ndarray of int
        Rows that the user needs.
    rows : int
        Rows that there are.
    rng : numpy.random.Generator
        Of the user.
    """
    asked = needed[rng.random(len(needed)) < _KEPT]
    others = np.setdiff1d(np.arange(rows), needed, assume_unique=True)
    decoys = rng.permutation(others)[: _DECOYS * len(needed)]
    return np.union1d(asked, decoys).astype(np.int64)


def are_positions(wanted: NDArray[Any], rows: int) -> bool:
    """Tell whether numbers are different positions among so many rows, ascending."""
    if not len(wanted):
        return True
    return bool(wanted[0] >= 0 and wanted[-1] < rows and (np.diff(wanted) > 0).all())


def best_items(
    user: Any,
    scores: NDArray[np.float64],
    excluded: NDArray[Any],
    top: int,
    names: Sequence[str] | None,
) -> list[tuple[Any, ...]]:
    """Return (user, rank, item, score) of the items with the highest scores, some left out."""
    return [
        (user, rank, i if names is None else names[i], f"{scores[i]:.9g}")
        for rank, i in enumerate(top_items(scores, excluded, top).tolist(), start=1)
    ]


def write_recommendations(path: Path, lines: Iterable[tuple[Any, ...]]) -> None:
    """Write what :func:`best_items` returned as CSV."""
    write_csv(path, [("user", "rank", "item", "score"), *lines], ends="\n")
