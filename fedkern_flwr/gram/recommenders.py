"""Rank items for each user of a device, from the Gram matrix K of the items.

The learners EASE, CF-KOMD, item-kNN and popularity read only K, which counts in how many rows two
items occur together, and what the user likes.

CF-KOMD solves a quadratic program per user. With P the p items that a user likes, the weights alpha
minimise alpha^T K_PP alpha + lambda |alpha|^2 - 2 alpha^T q_P over the simplex, where q_i is the
mean of row i of K. The score of item i, sum_j K_ij alpha_j - q_i, says how much closer it is to
what the user likes than to all items.

References
----------
Polato and Aiolli, "Exploiting sparsity to build efficient kernel based collaborative filtering for
top-N item recommendation", Neurocomputing 268, 2017. Steck, "Embarrassingly Shallow Autoencoders
for Sparse Data", WWW 2019; "Autoencoders that Don't Overfit towards the Identity", NeurIPS 2020.
Deshpande and Karypis, "Item-based top-N recommendation algorithms", ACM TOIS 22, 2004.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ..checkpoint import write_csv
from ..errors import OptionError
from .dot_kernels import DotKernel
from .matrix import pack, packed_columns, unpack

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Items = NDArray[Any]

Learner = Literal["ease", "cf-komd", "knn"]
LEARNERS: tuple[str, ...] = get_args(Learner)
#: Start of the search for lambda.
REGULARIZATION = {"ease": 200.0, "cf-komd": 0.1, "knn": 1.0}
NEIGHBOURS = 100
#: Lambda is one of start * 3^-4 ... start * 3^4.
STEP, MOST_STEPS = 3.0, 4
FEWEST_USERS = 5  # who choose lambda
#: Share of likes that EASE is trained to do without, so that popular items weigh less.
DROPOUT = 0.2
_HELD_OUT = 0.2  # share of a user's likes
_MOST_USERS = 1000  # who choose lambda
_ALONE = 1.0 + 1e-9  # with one user the gain equals its standard error, up to rounding
_CACHED_ITEMS = 2048
_CHUNK = 1 << 22  # kernel entries computed at once
_LEAST = 1e-3  # smallest eigenvalue after lifting an indefinite kernel
_ONE_THREAD = 100  # with more items BLAS would use more threads


# -- the matrix as a device receives it


@dataclass(frozen=True)
class ItemKernel:
    """Kernel of the items of a catalogue; items that are not in it have zeros.

    Attributes
    ----------
    kernel : DotKernel
    items : ndarray of int, shape (kept,)
        The items in it, ascending.
    catalogue : int
        m, number of all items.
    users : int
        Users in the sum.
    mean : ndarray, shape (kept,)
        q, mean of each row over the items in the kernel. Zeros for left-out items would cost up to
        0.01 of the AUC on MovieLens.
    squares : ndarray of int, shape (kept,)
        Diagonal of the Gram matrix.
    products : ndarray of int, shape (kept (kept + 1) / 2,)
        The Gram matrix, packed.
    """

    kernel: DotKernel
    items: NDArray[Any]
    catalogue: int
    users: int
    mean: Floats
    squares: NDArray[Any]
    products: NDArray[Any]

    @classmethod
    def of_gram(
        cls, gram: NDArray[Any], items: NDArray[Any], catalogue: int, users: int, kernel: DotKernel
    ) -> Self:
        """Build from a Gram matrix, (kept, kept), in the smallest integer type."""
        squares = gram.diagonal().copy()
        mean = np.empty(len(items))
        step = max(1, _CHUNK // max(1, len(items)))
        for start in range(0, len(items), step):
            rows = slice(start, start + step)
            block = kernel.block(gram[rows], squares[rows], squares, users)
            mean[rows] = block.mean(axis=1)
        return cls(kernel, items, catalogue, users, mean, squares, pack(compact(gram)))

    @property
    def missing(self) -> NDArray[np.intp]:
        return np.setdiff1d(np.arange(self.catalogue), self.items)

    def positions(self, positives: NDArray[Any]) -> NDArray[np.intp]:
        return np.flatnonzero(np.isin(self.items, positives))

    def columns(
        self, positions: NDArray[np.intp], without: NDArray[np.intp] | None = None
    ) -> Floats:
        """Return columns of the kernel, (kept, positions).

        ``without`` are the positions of a 0/1 row to subtract from the Gram matrix; they include
        ``positions``.
        """
        products = packed_columns(self.products, len(self.items), positions).astype(np.float64)
        squares, users = self.squares, self.users
        if without is not None:
            squares, users = squares.astype(np.float64), users - 1
            products[without] -= 1.0
            squares[without] -= 1.0
        return self.kernel.block(products, squares, squares[positions], users)


def compact(numbers: NDArray[Any]) -> NDArray[Any]:
    """Convert non-negative whole numbers to the smallest type of 16, 32 or 64 bits."""
    largest = int(numbers.max(initial=0))
    bits = next(b for b in (16, 32, 64) if largest < 1 << b)
    return numbers.astype(np.dtype(f"u{bits // 8}"))


# -- learners


@dataclass(frozen=True)
class Recommender:
    """A learner with the matrix of the items.

    Attributes
    ----------
    kernel : ItemKernel
    learner : str
        One of ``LEARNERS``, or ``popularity``: the number of rows with an item.
    regularization : float
        lambda of ease and cf-komd.
    subtract_mean : bool (default: True)
        For cf-komd, whether q is subtracted from the scores.
    neighbours : int
        For knn.
    """

    kernel: ItemKernel
    learner: str
    regularization: float
    subtract_mean: bool = True
    neighbours: int = NEIGHBOURS

    def scores(self, liked: Items, own: Items | None = None) -> Floats:
        """Return the scores of all items for a user, shape (catalogue,).

        EASE: with P = (K + p / (1 - p) diag(K) + lambda I)^-1, p = ``DROPOUT``, and B_ji = -P_ji /
        P_ii (0 where j = i), the sum of B_ji over liked items j. CF-KOMD: K[:, P] a - q, or K[:, P]
        a. knn: the sum of the kernel between i and the liked items among its ``neighbours`` nearest
        (ties included). A user without liked items, or whose fit fails, gets q (cf-komd) or
        popularity (others). Items outside of the matrix get 0 (cf-komd) or -inf.

        Parameters
        ----------
        liked : ndarray of int
            Items that the user likes; those outside of the matrix are ignored.
        own : ndarray of int, optional
            All items of this user's row of K: scores are then those of K without this row, except
            in q of cf-komd and p / (1 - p) diag(K).
        """
        kernel, known = self.kernel, self.kernel.positions(liked)
        row = None if own is None else kernel.positions(own)
        komd = self.learner == "cf-komd"
        usual = kernel.mean if komd else kernel.squares.astype(np.float64)
        values = usual
        if len(known) and komd:
            # an error would show the server which items the user likes
            with suppress(OptionError, ValueError, np.linalg.LinAlgError):
                values = self._komd(known, row)
        elif len(known) and self._weights is not None:
            values = self._weights[known].sum(axis=0)
            if self.learner == "ease":
                values = self._ease(self._weights, values, known, row)
        found = np.full(kernel.catalogue, 0.0 if komd else -np.inf)
        found[kernel.items] = values if np.isfinite(values).all() else usual
        return found

    def _komd(self, known: Items, row: Items | None) -> Floats:
        """Fit a user, with a larger lambda if the kernel is singular to working precision."""
        columns, mean = self.kernel.columns(known, row), self.kernel.mean
        own, penalty = columns[known], self.regularization
        try:
            alpha = fit_user(own, mean[known], penalty)
        except OptionError:
            least = float(np.linalg.eigvalsh(own)[0])
            if least + penalty > _LEAST:
                raise
            alpha = fit_user(own, mean[known], _LEAST - least)
        return item_scores(columns, alpha, mean if self.subtract_mean else None)

    def _ease(self, inverse: Floats, sums: Floats, known: Items, row: Items | None) -> Floats:
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
        """P of ease, or knn's kernel between neighbours; cached per process."""
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
        """Choose lambda by ratings held out of what some users like; return the steps as well.

        A fifth of a user's likes is ranked from the rest, with the user's row removed from K.
        Lambda moves in steps of 3 while the mean nDCG@100 grows by more than its standard error. At
        most a thousand users choose.

        Parameters
        ----------
        users : iterable of ndarray of int
            What each user likes.
        summed : bool (default: True)
            Whether their rows are in K.
        fewest : int (default: 5)
            Below so many users with two items of K, lambda stays.
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
        """Return each user's nDCG@100 on held-out items, 0 without any."""
        found = []
        for rest, held in parts:
            scores = self.scores(rest, np.union1d(rest, held) if summed else None)
            metrics = rank_metrics(scores, held, rest)
            found.append(0.0 if metrics is None else metrics[1])
        return np.array(found)


def _hold_out(own: Items) -> tuple[Items, Items]:
    order = np.random.default_rng(len(own)).permutation(own)
    many = max(1, round(_HELD_OUT * len(own))) if len(own) > 1 else 0
    return np.sort(order[many:]), np.sort(order[:many])


def _matrix(products: bytes, kind: str) -> NDArray[Any]:
    packed = np.frombuffer(products, kind)
    return unpack(packed, math.isqrt(2 * packed.size))


@lru_cache(maxsize=4)
def _inverse(products: bytes, kind: str, regularization: float) -> Floats | None:
    """Return P of EASE; None if the matrix has none, as a forged one."""
    from scipy.linalg.lapack import dpotrf, dpotri  # only ranking nodes need it

    matrix = _matrix(products, kind).astype(np.float64)
    diagonal = matrix.ravel()[:: len(matrix) + 1]
    diagonal += DROPOUT / (1.0 - DROPOUT) * diagonal + regularization
    factor, failed = dpotrf(matrix.T, lower=1)  # the transpose is the same matrix in LAPACK's order
    if failed:
        return None
    lower = np.tril(dpotri(factor, lower=1)[0])
    found: Floats = lower + np.tril(lower, -1).T
    return found


@lru_cache(maxsize=1)
def _neighbours(
    products: bytes, kind: str, kernel: DotKernel, users: int, neighbours: int
) -> Floats | None:
    """Return the kernel between items, 0 where the row is no neighbour of the column."""
    try:
        found = kernel.matrix(_matrix(products, kind), users)
    except OptionError:
        return None
    np.fill_diagonal(found, 0.0)
    if neighbours < len(found):
        found[found < np.partition(found, -neighbours, axis=0)[-neighbours]] = 0.0
    return found


# -- CF-KOMD


def simplex_qp(quadratic: Floats, linear: Floats, *, tolerance: float = 1e-12) -> Floats:
    """Return the minimiser of a^T Q a - 2 a^T c over all a >= 0 that sum to 1.

    An active-set method. On a support (weights that may differ from 0) a Cholesky factorisation
    gives the minimiser. Starting with all weights, negative ones are dropped together until there
    are none. Then all weights that would lower the objective are added or, if that fails, only the
    best, which always lowers it. No support may recur, so the method ends.

    Parameters
    ----------
    quadratic : ndarray, shape (p, p)
        Q, symmetric positive definite.
    linear : ndarray, shape (p,)
        c.
    tolerance : float (default: 1e-12)
        Largest violation of the optimality conditions, relative to the largest number of diag(Q)
        and c. The gradient Q a - c must be equal on the support, and nowhere smaller.

    Returns
    -------
    ndarray of float64, shape (p,)
        Exactly 0 outside of the support.

    Raises
    ------
    OptionError
        Q is not positive definite or too badly conditioned, or values are NaN or infinite.
    """
    size = len(linear)
    if quadratic.shape != (size, size):
        raise OptionError(
            "the kernel and the mean do not have the same items", code="FK-SHAPE-DIFFERS"
        )
    quadratic, linear = np.asarray(quadratic, np.float64), np.asarray(linear, np.float64)
    if size == 0:
        return np.zeros(0)
    if not (np.isfinite(quadratic).all() and np.isfinite(linear).all()):
        raise OptionError(
            "the kernel holds NaN or infinite values",
            remedy="clean the data",
            code="FK-VALUES-FINITE",
        )
    scale = max(float(np.abs(quadratic.diagonal()).max()), float(np.abs(linear).max()))
    # on a processor that is busy with other clients, threads take a hundred times as long
    with threadpool_limits(1, "blas") if size > _ONE_THREAD else nullcontext():
        return _active_set(quadratic, linear, tolerance * scale)


def fit_user(kernel: Floats, mean: Floats, regularization: float) -> Floats:
    """Return the weights alpha of a user's positive items, at least 0 and of sum 1.

    ``kernel`` is K_PP, (p, p); ``mean`` q_P; ``regularization`` lambda, positive if K_PP is
    singular, as with equal items.

    Raises
    ------
    OptionError
        lambda is negative or not finite; or as :func:`simplex_qp`.
    """
    if not 0.0 <= regularization < math.inf:
        raise OptionError(
            f"regularization is {regularization}", remedy="use at least 0", code="FK-OPTION-RANGE"
        )
    quadratic = np.array(kernel, np.float64)
    quadratic.ravel()[:: len(quadratic) + 1] += regularization  # the diagonal
    return simplex_qp(quadratic, mean)


def item_scores(columns: NDArray[Any], alpha: Floats, mean: Floats | None = None) -> Floats:
    """Return a user's scores of all items, K[:, P] alpha - q, (m,); without ``mean`` no q."""
    scores = np.asarray(columns @ alpha, np.float64)
    return scores if mean is None else scores - mean


def _active_set(quadratic: Floats, linear: Floats, tolerance: float) -> Floats:
    size = linear.size
    weights = _drop_negative(quadratic, linear, np.ones(size, np.bool_))
    seen = {(weights > 0.0).tobytes()}
    for _ in range(10 * size + 10):  # two to six in practice
        support = weights > 0.0
        gradient = quadratic @ weights - linear
        level = float(gradient @ weights)  # what it is on the support, as the weights sum to 1
        missing = ~support & (gradient < level - tolerance)
        if not missing.any():
            return weights
        candidate = _drop_negative(quadratic, linear, support | missing)
        objective = float(weights @ (gradient - linear))
        lower = candidate @ (quadratic @ candidate - 2.0 * linear) <= objective
        if not lower or (candidate > 0.0).tobytes() in seen:
            best = int(np.argmin(np.where(missing, gradient, math.inf)))
            candidate = _add_one(quadratic, linear, weights, best)
            if (candidate > 0.0).tobytes() in seen:  # only rounding errors remain
                break
        weights = candidate
        seen.add((weights > 0.0).tobytes())
    raise OptionError(
        f"the weights of {size} items are not found to a tolerance of {tolerance:.2g}",
        remedy="use a larger regularization",
        code="FK-EQUATIONS-SINGULAR",
    )


def _minimiser(quadratic: Floats, linear: Floats, support: Mask) -> Floats:
    """Return the weights on a support that sum to 1 and minimise the objective, of any sign.

    Q a = c + t 1: a = Q^-1 c + t Q^-1 1, with t for the sum 1. One step of iterative refinement
    repairs the cancellation of the two terms.
    """
    from scipy.linalg.lapack import dposv, dpotrs  # only ranking nodes need it

    items = np.flatnonzero(support)
    matrix, target = quadratic[np.ix_(items, items)], linear[items]
    sides = np.stack((target, np.ones(items.size))).T
    # the transpose is the same matrix in LAPACK's order
    factor, solutions, failed = dposv(matrix.T, sides)
    precision = items.size * np.finfo(np.float64).eps * matrix.diagonal().max()
    if failed or factor.diagonal().min() ** 2 <= precision:
        raise OptionError(
            "the kernel is not positive definite",
            remedy="use a larger regularization",
            code="FK-EQUATIONS-SINGULAR",
        )
    weights, ones = solutions.T
    level = (1.0 - weights.sum()) / ones.sum()
    weights = weights + level * ones
    rest, _ = dpotrs(factor, target + level - matrix @ weights)
    weights += rest + (1.0 - weights.sum() - rest.sum()) / ones.sum() * ones
    out = np.zeros(linear.size)
    out[items] = weights
    return out


def _drop_negative(quadratic: Floats, linear: Floats, support: Mask) -> Floats:
    while True:  # ends, as positive weights remain: they sum to at least 1
        weights = _minimiser(quadratic, linear, support)
        negative = weights < 0.0
        if not negative.any():
            return weights
        support = support & ~negative


def _add_one(quadratic: Floats, linear: Floats, weights: Floats, item: int) -> Floats:
    """Return the minimiser on a support with one item more.

    Before a weight becomes negative, the step ends; the weight is dropped and the next step starts
    there. The objective falls all the way.
    """
    support = weights > 0.0
    support[item] = True
    while True:  # ends, as each step drops an item and a single item has weight 1
        target = _minimiser(quadratic, linear, support)
        negative = target < 0.0
        if not negative.any():
            return target
        steps = np.full(weights.size, math.inf)
        steps[negative] = weights[negative] / (weights[negative] - target[negative])
        length = float(steps.min())
        weights = weights + length * (target - weights)
        support &= steps > length
        weights[~support] = 0.0


# -- metrics of ranked held-out items, and the best items


def rank_metrics(
    scores: NDArray[np.floating[Any]],
    relevant: Items,
    excluded: Items,
    cutoffs: tuple[tuple[int, int], ...] = ((100, 100), (10, 20)),
) -> tuple[float, ...] | None:
    """Return AUC, then nDCG and recall of each pair of cutoffs, of one user's scores.

    All from 0 to 1; None without a relevant or an irrelevant candidate. Candidates are all items
    that are not excluded. The AUC is the share of (relevant, irrelevant) pairs in the right order,
    ties counting half. nDCG has gains 1 and discounts log2(1 + rank). Items of equal score are
    ranked by index.

    Parameters
    ----------
    scores : ndarray of float, shape (m,)
        Higher is better.
    relevant : ndarray of int
        Held-out items.
    excluded : ndarray of int
        Training items.
    cutoffs : tuple of (int, int)
        List lengths of nDCG and recall, pair by pair.

    Raises
    ------
    OptionError
        If a cutoff is below 1 or a score is NaN.
    """
    candidates, values = _candidates(scores, excluded)
    held_out = np.zeros(len(scores), np.bool_)
    held_out[relevant] = True
    hits = held_out[candidates]
    positives = int(hits.sum())
    negatives = hits.size - positives
    lengths = [length for pair in cutoffs for length in pair]
    if min(lengths) < 1:
        raise OptionError(
            f"cutoff is {min(lengths)}", remedy="use at least 1", code="FK-OPTION-RANGE"
        )
    if not (positives and negatives):
        return None
    others = np.sort(values[~hits])
    below = np.searchsorted(others, values[hits], "left")
    not_above = np.searchsorted(others, values[hits], "right")
    auc = float(below.sum() + not_above.sum()) / (2.0 * positives * negatives)
    listed = hits[_best(values, max(lengths))]
    found = [auc]
    for cutoff, most in cutoffs:
        part = listed[:cutoff]
        gains = 1.0 / np.log2(2.0 + np.arange(max(part.size, min(positives, cutoff))))
        found.append(
            float(gains[: part.size] @ part) / float(gains[: min(positives, cutoff)].sum())
        )
        found.append(float(listed[:most].sum()) / positives)
    return tuple(found)


def top_items(scores: NDArray[np.floating[Any]], excluded: Items, count: int) -> NDArray[np.int64]:
    """Return the items with the highest scores, best first, ties by index.

    Parameters
    ----------
    scores : ndarray of float, shape (m,)
        Higher is better.
    excluded : ndarray of int
        Items not to return.
    count : int
        How many to return at most.

    Raises
    ------
    OptionError
        If the count is below 1 or a score is NaN.
    """
    if count < 1:
        raise OptionError(f"count is {count}", remedy="use at least 1", code="FK-OPTION-RANGE")
    candidates, values = _candidates(scores, excluded)
    return candidates[_best(values, count)]


def _candidates(
    scores: NDArray[np.floating[Any]], excluded: Items
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    allowed = np.ones(len(scores), np.bool_)
    allowed[excluded] = False
    candidates = np.flatnonzero(allowed)
    values = scores[candidates].astype(np.float64)
    if np.isnan(values).any():
        raise OptionError("scores hold NaN", remedy="clean the data", code="FK-VALUES-FINITE")
    return candidates.astype(np.int64), values


def _best(values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    return np.argsort(-values, kind="stable")[:count].astype(np.int64)


def best_items(
    user: Any,
    scores: NDArray[np.float64],
    excluded: NDArray[Any],
    top: int,
    names: Sequence[str] | None,
) -> list[tuple[Any, ...]]:
    """Return (user, rank, item, score) of the items with the highest scores."""
    return [
        (user, rank, i if names is None else names[i], f"{scores[i]:.9g}")
        for rank, i in enumerate(top_items(scores, excluded, top).tolist(), start=1)
    ]


def write_recommendations(path: Path, lines: Iterable[tuple[Any, ...]]) -> None:
    write_csv(path, [("user", "rank", "item", "score"), *lines], ends="\n")
