"""Recursive ridge regression: sums of rows, learners that take one row at a time, their mixture.

A row is given to learners as its raw columns with a one, or as the random Fourier features of a
kernel. What is summed over clients of p features are p (p + 1) / 2 + p numbers: the upper triangle
of Phi^T Phi, and Phi^T y. A ridge regression of all rows so far follows from them exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular
from scipy.linalg.blas import dsymm, dsymv, dsyr, dsyrk, dtrsm

from ..guard.counting import least_samples
from ..kernels.random_features import feature_map
from .messages import SUM_BOUND

Floats = NDArray[np.float64]
Experts = Literal[
    "all", "local-ridge", "global-ridge", "local-kernels", "global-kernels", "local", "global"
]

#: Rows after which a learner of this client alone takes part, if its features are not fewer.
NAP = 20
#: Samples per message at most, unless they are given or the sums of raw columns need more.
MOST_SAMPLES = 50
#: Rows that a learner takes at once.
_BLOCK = 32
#: Fewer rows than these are taken one by one.
_FEW = 4
#: The kernels' widths over twice the distance of rows, in the order in which kernels are added.
_WIDTHS = (1.0, 0.5, 2.0, 0.25, 4.0, 0.125, 8.0)


def numbers(features: int) -> int:
    """Return how many numbers the sums of so many features have."""
    return features * (features + 3) // 2


def sums(phi: Floats, y: Floats) -> Floats:
    """Return the upper triangle of Phi^T Phi and Phi^T y of rows phi, shape (n, p)."""
    return np.concatenate([(phi.T @ phi).take(_upper(phi.shape[1])), phi.T @ y])


@lru_cache(maxsize=64)
def _upper(features: int) -> NDArray[np.intp]:
    """Return the places of the upper triangle in a square matrix, row by row."""
    found = np.flatnonzero(np.tri(features, dtype=bool).T)
    found.setflags(write=False)
    return found


def square(triangle: Floats, features: int) -> Floats:
    """Return the matrix of an upper triangle, p (p + 1) / 2 numbers; below it are zeros."""
    matrix = np.zeros((features, features))
    matrix.put(_upper(features), triangle)
    return matrix


def solve(total: Floats, features: int, ridge: float) -> Floats:
    """Return what a learner begins from: the triangle of (P + ridge I)^-1, and its coefficients.

    Parameters
    ----------
    total : ndarray, shape (numbers(features),)
        What :func:`sums` returns, summed over rows.
    features : int
        p.
    ridge : float
        lambda > 0.
    """
    pairs = total.size - features
    matrix = square(total[:pairs], features)
    matrix.flat[:: features + 1] += ridge
    factor = cho_factor(matrix, check_finite=False)  # reads the upper triangle
    both = cho_solve(factor, np.column_stack([np.eye(features), total[pairs:]]))
    return np.concatenate([both[:, :features].take(_upper(features)), both[:, features]])


class Ridge:
    """A ridge regression that learns one row after the other, a few of them in one step.

    Parameters
    ----------
    features : int
        p.
    start : ndarray
        Triangle of the inverse and coefficients, as :func:`solve` returns them; or coefficients
        alone, which then stay as they are.
    memory : float (default: 1.0)
        Share of what is remembered of all rows before, with each row. The ridge stays: for what is
        forgotten of it, one feature after the other is given a row of zero label.
    ridge : float (default: 0.0)
        lambda, where something is forgotten.
    rows : int (default: 0)
        Rows learned before.
    """

    def __init__(
        self,
        features: int,
        start: Floats,
        *,
        memory: float = 1.0,
        ridge: float = 0.0,
        rows: int = 0,
    ) -> None:
        pairs = start.size - features
        self.theta = start[pairs:].copy()
        self.inverse = square(start[:pairs], features) if pairs else None  # its upper triangle
        self.memory, self.rows = memory, rows
        self._leak = math.sqrt(features * ridge * (1.0 - memory))

    def learn(self, phi: Floats, y: Floats) -> Floats:
        """Predict and learn one row after the other; return what was predicted.

        Parameters
        ----------
        phi : ndarray, shape (n, p)
            The rows.
        y : ndarray, shape (n,)
            Their labels.

        Returns
        -------
        ndarray, shape (n,)
            Of each row what those before it tell.
        """
        if self.inverse is None:
            return np.asarray(phi @ self.theta)
        if len(y) < _FEW:
            return np.array([self._learn_one(*row) for row in zip(phi, y, strict=True)])
        fewer = math.log(0.01) / math.log(self.memory) if self.memory < 1.0 else _BLOCK
        block = max(1, min(_BLOCK, int(fewer)))
        parts = [slice(t, t + block) for t in range(0, len(y), block)]
        return np.concatenate([np.zeros(0), *(self._learn(phi[t], y[t]) for t in parts)])

    def _learn_one(self, phi: Floats, y: float) -> float:
        """Take a row by itself, which is faster for a few."""
        found = float(self.theta @ phi)
        self._add(phi, y - found, self.memory)
        if self._leak:
            row, j = np.zeros_like(phi), self.rows % len(phi)
            row[j] = self._leak
            self._add(row, -self._leak * float(self.theta[j]), 1.0)
        self.rows += 1
        return found

    def _add(self, phi: Floats, wrong: float, memory: float) -> None:
        assert self.inverse is not None
        inverse = self.inverse.T  # as BLAS has it, where the triangle is the lower one
        gain = dsymv(1.0, inverse, phi, lower=1)
        scale = 1.0 / (memory + float(gain @ phi))
        self.theta += gain * (wrong * scale)
        dsyr(-scale, gain, a=inverse, lower=1, overwrite_a=1)
        if memory < 1.0:
            self.inverse /= memory

    def _learn(self, phi: Floats, y: Floats) -> Floats:
        """Take a few rows at once.

        With S = Phi P Phi^T + W = L L^T and W the rows' ages, L^-1 (y - Phi theta) are the errors
        of predicting each row from those before it, divided by L's diagonal; and P - K S^-1 K^T,
        K = P Phi^T, is the inverse after them all.
        """
        assert self.inverse is not None
        n, inverse = len(y), self.inverse.T
        ages, some = self.memory ** np.arange(1.0, n + 1.0), 1
        if self._leak:
            some = 2
            phi = np.repeat(phi, 2, axis=0)
            phi[1::2] = 0.0
            phi[2 * np.arange(n) + 1, (self.rows + np.arange(n)) % phi.shape[1]] = self._leak
            y, ages = np.column_stack([y, np.zeros(n)]).ravel(), ages.repeat(2)
        gain = dsymm(1.0, inverse, phi.T, lower=1)
        spread = phi @ gain
        spread.flat[:: len(y) + 1] += ages
        factor = cholesky(spread, lower=True, check_finite=False)
        wrong = solve_triangular(factor, y - phi @ self.theta, lower=True, check_finite=False)
        gain = dtrsm(1.0, factor, gain, side=1, lower=1, trans_a=1, overwrite_b=1)
        self.theta += gain @ wrong
        dsyrk(-1.0 / ages[-1], gain, 1.0 / ages[-1], inverse, lower=1, overwrite_c=1)
        self.rows += n
        return np.asarray((y - factor.diagonal() * wrong)[::some])

    def state(self) -> Floats:
        """Return what it goes on from, as :func:`solve` returns it."""
        assert self.inverse is not None
        return np.concatenate([self.inverse.take(_upper(len(self.theta))), self.theta])


def unlearned(features: int, ridge: float) -> Floats:
    """Return what a learner begins from that has seen nothing."""
    return np.concatenate([np.eye(features).take(_upper(features)) / ridge, np.zeros(features)])


@dataclass
class Hedge:
    """AdaHedge over experts of which some may be asleep: these predict what the others do.

    Attributes
    ----------
    losses : ndarray, shape (N,)
        Summed so far.
    gap : float
        Cumulative mixability gap.

    References
    ----------
    de Rooij, van Erven, Grunwald and Koolen, "Follow the Leader If You Can, Hedge If You Must",
    JMLR 15, 2014. Freund, Schapire, Singer and Warmuth, "Using and Combining Predictors That
    Specialize", STOC 1997.
    """

    losses: Floats
    gap: float = 0.0

    def weights(self, awake: NDArray[np.bool_] | None = None) -> Floats:
        """Return the weights for the next sample, those of who is asleep 0."""
        behind = self.losses - (self.losses if awake is None else self.losses[awake]).min()
        if self.gap > 0.0 and behind.size > 1:
            found = np.exp(-math.log(behind.size) / self.gap * np.maximum(behind, 0.0))
        else:
            found = (behind <= 0.0).astype(np.float64)
        if awake is not None:
            found = np.where(awake, found, 0.0)
        return np.asarray(found / found.sum())

    def learn(self, losses: Floats) -> None:
        """Take the losses of a sample; that of who slept is the mixture's."""
        weights, before = self.weights(), self.losses.min()
        after = self.losses + losses
        mixed = after.min() - before
        if self.gap > 0.0 and losses.size > 1:
            rate = math.log(losses.size) / self.gap
            shares = [np.exp(-rate * (s - s.min())).sum() for s in (self.losses, after)]
            mixed -= math.log(shares[1] / shares[0]) / rate
        self.gap += max(0.0, float(weights @ losses) - float(mixed))
        self.losses = after


def hedge_bound(experts: int, samples: int, best: float) -> float:
    """Return AdaHedge's bound on the regret, for losses in [0, 1] (JMLR 2014, Theorem 8).

    Parameters
    ----------
    experts, samples : int
        N, and how many samples there were.
    best : float
        Loss of the best expert, summed.
    """
    log, left = math.log(experts), max(0.0, 1.0 - best / samples)
    return 2.0 * math.sqrt(best * left * log) + 16.0 / 3.0 * log + 2.0


def widths(kernels: int, width: float) -> bytes:
    """Return the widths of so many kernels around ``width``, little-endian float64."""
    ratios = [_WIDTHS[k] if k < len(_WIDTHS) else 2.0 ** (k - 4) for k in range(kernels)]
    return (width * np.array(ratios)).astype("<f8").tobytes()


def rows_of(x: NDArray[Any], bandwidths: bytes, features: int, seed: int) -> list[Floats]:
    """Return rows as learners take them: raw columns and a one, then each kernel's features.

    Parameters
    ----------
    x : ndarray, shape (n, d)
        The rows.
    bandwidths : bytes
        Widths of the kernels; none are known yet if it is empty.
    features : int
        D, frequencies of each kernel.
    seed : int
        Of the draw.
    """
    x = np.asarray(x, np.float64)
    raw = np.column_stack([x, np.ones(len(x))])
    if not bandwidths or not features:
        return [raw]
    z = feature_map(bandwidths, x.shape[1], features, seed, "float64", "orthogonal")(x)
    return [raw, *np.ascontiguousarray(z.swapaxes(0, 1))]


def distance(total: Floats, features: int) -> float:
    """Return the root mean squared distance of two rows, from the sums of raw columns and a one."""
    matrix = square(total[: total.size - features], features).T  # last row: sums of columns
    rows = max(1.0, matrix[-1, -1])
    spread = np.trace(matrix[:-1, :-1]) / rows - (matrix[-1, :-1] ** 2).sum() / rows**2
    return math.sqrt(max(0.0, 2.0 * float(spread)))


@dataclass(frozen=True)
class Plan:
    """Which sums the messages of a run take.

    Attributes
    ----------
    stops : tuple of int
        Samples of each client after each message. A message takes as many as all before it, from
        the fewest that will do to the most: so what was summed is never less than half.
    raw : int
        Fewest samples of a message that sums raw columns; 0 if none does.
    features : int
        Frequencies of each kernel that are summed; 0 if none are.
    kernels : int
        Fewest samples of a message that sums them.
    """

    stops: tuple[int, ...]
    raw: int
    features: int
    kernels: int


def plan(
    samples: int,
    unknowns: float,
    *,
    given: int | None,
    raw: int,
    kernels: int,
    features: int,
    fixed: int,
    up: float = math.inf,
) -> Plan:
    """Plan the messages so that no more numbers are released of a message than it has unknowns.

    Raw columns come first, then as many frequencies of the kernels as are left.

    Parameters
    ----------
    samples : int
        T, of each client.
    unknowns : float
        Of a message with one sample of each client; infinite if nothing is counted.
    given : int or None
        Samples per message, if they are given.
    raw : int
        Numbers of the sums of raw columns; 0 if they are not wanted.
    kernels, features : int
        Kernels whose features are wanted, and how many frequencies of each.
    fixed : int
        Numbers that each message has besides.
    up : float
        Most numbers of a message.
    """
    room = unknowns if unknowns > 0.0 else math.inf

    def least(count: int) -> int:
        return max(1, least_samples(fixed + count, room))

    most = min(samples if given is None else given, samples)
    enough = most if given or not kernels else min(MOST_SAMPLES, most // 4)
    for_raw = least(raw) if raw and fixed + raw <= up else 0
    if for_raw > max(1, enough):
        for_raw = 0
    raw *= for_raw > 0
    if given is None:
        shared = raw + kernels * numbers(2 * features)
        wanted = least(shared) if shared else MOST_SAMPLES  # or clients need nothing of each other
        most = max(for_raw, min(wanted, MOST_SAMPLES, samples), 1)
    left = min(room * most, up) - fixed - raw
    while kernels * numbers(2 * features) > left and features:
        features -= 1
    few = least(raw + kernels * numbers(2 * features)) if kernels and features else 0
    first = for_raw or few or most
    stops = [0]
    while (rest := samples - stops[-1]) > 0:
        step = min(max(first, stops[-1]), most)
        stops.append(samples if rest - step < first else stops[-1] + step)
    return Plan(tuple(stops[1:]), for_raw, features if few else 0, few)


def scale(samples: int) -> float:
    """Return by what sums of so many samples are multiplied to fill the bound of secure sums.

    A power of two. Products of features of rows in the unit ball, and of labels, are at most 1;
    half of the bound is left for what is a little larger.
    """
    return float(SUM_BOUND) / 2.0 ** (1 + math.ceil(math.log2(samples)))
