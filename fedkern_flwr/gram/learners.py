"""What ranks items for a user from the matrix of the items: EASE, CF-KOMD, item-kNN, popularity.

All of them read nothing but K, which counts in how many rows two items are together, and what the
user likes.

References
----------
Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", WWW 2019; "Autoencoders that Don't
Overfit towards the Identity", NeurIPS 2020. Deshpande and Karypis,
"Item-based top-N recommendation algorithms", ACM TOIS 22, 2004.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from .dot_kernels import DotKernel
from .item_kernel import ItemKernel
from .matrix import unpack
from .ranking import rank_metrics

Learner = Literal["ease", "cf-komd", "knn"]
LEARNERS: tuple[str, ...] = get_args(Learner)
#: Where the search for lambda starts.
REGULARIZATION = {"ease": 200.0, "cf-komd": 0.1, "knn": 1.0}
NEIGHBOURS = 100
#: Lambda is one of start * 3^-4 ... start * 3^4.
STEP, MOST_STEPS = 3.0, 4
FEWEST_USERS = 5  # who choose lambda

Floats = NDArray[np.float64]
Items = NDArray[Any]
#: Share of what a user likes that EASE is trained to do without: popular items weigh less.
DROPOUT = 0.2
_HELD_OUT = 0.2  # of what a user likes
_MOST_USERS = 1000  # who choose lambda
_ALONE = 1.0 + 1e-9  # the gain of one user alone is its standard error, but for rounding
_CACHED_ITEMS = 2048


@dataclass(frozen=True)
class Recommender:
    """A learner with the matrix of the items.

    Attributes
    ----------
    kernel : ItemKernel
        The matrix.
    learner : str
        One of ``LEARNERS``, or ``popularity``: how many rows have an item.
    regularization : float
        lambda, of ease and cf-komd.
    subtract_mean : bool (default: True)
        Of cf-komd, see :meth:`ItemKernel.scores`.
    neighbours : int
        Of knn.
    """

    kernel: ItemKernel
    learner: str
    regularization: float
    subtract_mean: bool = True
    neighbours: int = NEIGHBOURS

    def scores(self, liked: Items, own: Items | None = None) -> Floats:
        """Return the scores of all items for a user.

        EASE: with P = (K + p / (1 - p) diag(K) + lambda I)^-1, p = ``DROPOUT``, and B_ji =
        -P_ji / P_ii (0 where j = i) the score of item i is the sum of B_ji over what the user
        likes. knn: the sum of the kernel between i and the
        liked items that are among its ``neighbours`` nearest (and as near as the last of these).
        Without liked items in the matrix, and where it cannot be inverted: popularity.

        Parameters
        ----------
        liked : ndarray of int
            Items that the user likes; those that are not in the matrix are ignored.
        own : ndarray of int, optional
            All items of this user's row of K, ``liked`` among them: scores are those of K without
            this row. Only q of cf-komd, a mean over all items, and p / (1 - p) diag(K) keep it.

        Returns
        -------
        ndarray, shape (catalogue,)
            Of items that are not in the matrix -inf, for cf-komd 0.
        """
        kernel = self.kernel
        row = None if own is None else np.flatnonzero(np.isin(kernel.items, own))
        if self.learner == "cf-komd":
            return kernel.scores(
                liked, self.regularization, subtract_mean=self.subtract_mean, without=row
            )
        popular = kernel.squares.astype(np.float64)
        known = kernel.positions(liked)
        values = popular
        if len(known) and self._weights is not None:
            values = self._weights[known].sum(axis=0)
            if self.learner == "ease":
                values = self._ease(self._weights, values, known, row)
        found = np.full(kernel.catalogue, -np.inf)
        found[kernel.items] = values if np.isfinite(values).all() else popular
        return found

    def _ease(self, inverse: Floats, sums: Floats, known: Items, row: Items | None) -> Floats:
        """Return the sum of B over what is known, from that of P."""
        diagonal = inverse.diagonal()
        with np.errstate(all="ignore"):
            if row is not None:  # the inverse of K - x x^T, by Sherman and Morrison
                ours = inverse[row].sum(axis=0)
                left = 1.0 - ours[row].sum()
                sums = sums + ours * (ours[known].sum() / left)
                diagonal = diagonal + ours**2 / left
            scores = -sums / diagonal
        scores[known] += 1.0
        return scores

    @cached_property
    def _weights(self) -> Floats | None:
        """P of ease, the kernel between neighbours of knn (columns: whose), None of others.

        Nodes of one process share those of one matrix.
        """
        kernel = self.kernel
        if self.learner not in ("ease", "knn"):
            return None
        make: Any = _inverse
        how: tuple[Any, ...] = (self.regularization,)
        if self.learner == "knn":
            make, how = _neighbours, (kernel.kernel, kernel.users, self.neighbours)
        make = make if len(kernel.items) <= _CACHED_ITEMS else make.__wrapped__
        found: Floats | None = make(kernel.products.tobytes(), kernel.products.dtype.str, *how)
        return found

    def tuned(
        self, users: Iterable[Items], *, summed: bool = True, fewest: int = FEWEST_USERS
    ) -> tuple[Self, int]:
        """Choose lambda by ratings held out of what some users like.

        A fifth of what each user likes is held out and ranked from the rest, with K less the user's
        row: it saw none of them. From where it is, lambda goes in steps of 3 as long as the mean
        nDCG@100 grows by more than its standard error, which no single user can do; with fewer than
        ``fewest`` users it stays. No more than a thousand choose.

        Parameters
        ----------
        users : iterable of ndarray of int
            What each user likes.
        summed : bool (default: True)
            Whether their rows are in K.
        fewest : int (default: 5)
            Of users who like two items of K or more.

        Returns
        -------
        (Recommender, int)
            With lambda chosen, and in how many steps.
        """
        parts = [_hold_out(np.intersect1d(own, self.kernel.items)) for own in users]
        parts = [part for part in parts if len(part[1])][:_MOST_USERS]
        if self.learner not in ("ease", "cf-komd") or len(parts) < max(2, fewest):
            return self, 0
        best, values, steps = self, self._validate(parts, summed), 0
        for way in (-1, 1):
            while abs(steps) < MOST_STEPS:
                other = replace(best, regularization=best.regularization * STEP**way)
                found = other._validate(parts, summed)
                gain = found - values
                if gain.mean() <= _ALONE * gain.std(ddof=1) / np.sqrt(len(gain)):
                    break
                best, values, steps = other, found, steps + way
            if steps:
                break
        return best, steps

    def _validate(self, parts: list[tuple[Items, Items]], summed: bool) -> Floats:
        """Return the nDCG@100 of each user's held-out items, 0 where nothing can be ranked."""
        found = []
        for rest, held in parts:
            scores = self.scores(rest, np.union1d(rest, held) if summed else None)
            metrics = rank_metrics(scores, held, rest)
            found.append(0.0 if metrics is None else metrics[1])
        return np.array(found)


def _hold_out(own: Items) -> tuple[Items, Items]:
    """Part what a user likes in what is known and what is held out, always the same."""
    order = np.random.default_rng(len(own)).permutation(own)
    many = max(1, round(_HELD_OUT * len(own))) if len(own) > 1 else 0
    return np.sort(order[many:]), np.sort(order[:many])


def _matrix(products: bytes, kind: str) -> NDArray[Any]:
    packed = np.frombuffer(products, kind)
    return unpack(packed, math.isqrt(2 * packed.size))


@lru_cache(maxsize=4)
def _inverse(products: bytes, kind: str, regularization: float) -> Floats | None:
    """Return P of EASE; None if there is none, as of forged matrices."""
    from scipy.linalg.lapack import dpotrf, dpotri  # a node that ranks nothing does without

    matrix = _matrix(products, kind).astype(np.float64)
    diagonal = matrix.ravel()[:: len(matrix) + 1]
    diagonal += DROPOUT / (1.0 - DROPOUT) * diagonal + regularization
    factor, failed = dpotrf(matrix.T, lower=1)  # which is the same, in the order of LAPACK
    if failed:
        return None
    lower = np.tril(dpotri(factor, lower=1)[0])
    found: Floats = lower + np.tril(lower, -1).T
    return found


@lru_cache(maxsize=1)
def _neighbours(
    products: bytes, kind: str, kernel: DotKernel, users: int, neighbours: int
) -> Floats | None:
    """Return the kernel between items, 0 where the row's is not among the column's neighbours."""
    try:
        found = kernel.matrix(_matrix(products, kind), users)
    except OptionError:
        return None
    np.fill_diagonal(found, 0.0)
    if neighbours < len(found):
        found[found < np.partition(found, -neighbours, axis=0)[-neighbours]] = 0.0
    return found
