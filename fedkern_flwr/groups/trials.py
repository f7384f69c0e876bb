"""Several C tried side by side: what a run adds to its outputs, and what it goes on with.

While C is chosen, a run has an output for each fold, each C and each class, in this order. That of
a fold learns from the rows of the other folds, and its loss is counted on those of the fold. All of
them are iterated in the same exchanges. Then the run goes on with the outputs of one C, from their
mean over the folds: rows that one fold left out have their duals from the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.bool_]

#: What is tried, ascending.
TRIED = (0.01, 0.1, 1.0, 10.0)
#: Into so many folds users deal their rows; each is held out in turn, or of wide models one.
FOLDS = 3
#: Coefficients of all outputs together up to which every fold is held out.
_NUMBERS = 1 << 13
#: Iteration whose center is the first of the chosen C, and the least iterations of such a run.
ITERATIONS, LEAST_ROUNDS = 12, 24
#: Iteration whose record tells the losses by which C is chosen: agents and users have it in time
#: whether they are asked together or one after the other.
JUDGED = ITERATIONS - 2
#: Of C whose losses differ by no more than this share, the smallest is taken: less is noise, and
#: after these iterations large C are not yet as bad as they will be.
TIE = 0.05
MOST_TRIED = 8


def folds_held_out(outputs: int, width: int, most: int = FOLDS) -> int:
    """Return how many folds are held out in turn, for models of so many coefficients."""
    return most if outputs * width * most * len(TRIED) <= _NUMBERS else 1


def choose(losses: Floats, folds: int, tried: Sequence[float]) -> tuple[int, list[float]]:
    """Return the position of the C with the least loss, and the loss of each.

    Parameters
    ----------
    losses : ndarray, shape (folds * len(tried) * k,)
        Of the rows of the fold that each output did not learn from.
    folds : int
        How many were held out.
    tried : sequence of float
        C, ascending.
    """
    found = losses.reshape(folds, len(tried), -1).sum((0, 2))
    return int(np.argmax(found <= found.min() * (1.0 + TIE))), found.tolist()


def part_of(stacked: Floats, folds: int, tried: int, chosen: int) -> Floats:
    """Return the mean over the folds of what belongs to the outputs of one C, shape (k, ...).

    ``stacked`` belongs to all outputs, its shape is (folds * tried * k, ...).
    """
    return np.asarray(stacked.reshape(folds, tried, -1, *stacked.shape[1:])[:, chosen].mean(axis=0))


def deal(rows: int, digest: str) -> NDArray[np.intp]:
    """Return the fold of each row of a user: drawn by a digest of its table, which nobody else has.

    Folds differ by one row at most.
    """
    seed = int.from_bytes(bytes.fromhex(digest)[:16], "big")
    return np.random.default_rng(seed).permutation(rows) % FOLDS
