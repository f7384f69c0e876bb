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
from scipy.linalg import cho_factor, cho_solve

from ..kernels.random_features import feature_map

Floats = NDArray[np.float64]
Experts = Literal[
    "all", "local-ridge", "global-ridge", "local-kernels", "global-kernels", "local", "global"
]

#: Rows after which a learner of this client alone takes part, if its features are not fewer.
NAP = 20
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
    """Return the upper triangle of Phi^T Phi and Phi^T y of rows phi, shape (..., n, p)."""
    across = phi.swapaxes(-1, -2)
    return pack(across @ phi, across @ y)


def _triangle(matrix: Floats) -> Floats:
    """Return the upper triangles of square matrices, shape (..., p (p + 1) / 2)."""
    flat = matrix.reshape(*matrix.shape[:-2], matrix.shape[-1] ** 2)
    return flat.take(_upper(matrix.shape[-1]), axis=-1)


@lru_cache(maxsize=64)
def _upper(features: int) -> NDArray[np.intp]:
    """Return the places of the upper triangle in a square matrix, row by row."""
    found = np.flatnonzero(np.tri(features, dtype=bool).T)
    found.setflags(write=False)
    return found


def _square(triangles: Floats, features: int) -> Floats:
    """Return the symmetric matrices of upper triangles, shape (..., p, p)."""
    flat = triangles.take(_places(features), axis=-1)
    return flat.reshape(*triangles.shape[:-1], features, features)


@lru_cache(maxsize=64)
def _places(features: int) -> NDArray[np.intp]:
    """Return where each number of a symmetric matrix is in its upper triangle."""
    matrix = np.zeros((features, features), np.intp)
    matrix.put(_upper(features), np.arange(features * (features + 1) // 2))
    found = np.asarray(np.maximum(matrix, matrix.T).ravel())
    found.setflags(write=False)
    return found


def unpack(totals: Floats, features: int) -> tuple[Floats, Floats]:
    """Return Phi^T Phi, shape (..., p, p), and Phi^T y of what :func:`sums` returns."""
    pairs = totals.shape[-1] - features
    return _square(totals[..., :pairs], features), totals[..., pairs:]


def pack(matrix: Floats, right: Floats) -> Floats:
    """Return what :func:`sums` returns."""
    return np.concatenate([_triangle(matrix), right], axis=-1)


def solve(totals: Floats, features: int, ridge: float) -> Floats:
    """Return what learners begin from: the triangle of (P + ridge I)^-1, and their coefficients.

    Parameters
    ----------
    totals : ndarray, shape (..., numbers(features))
        Of each learner what :func:`sums` returns, summed over rows.
    features : int
        p.
    ridge : float
        lambda > 0.
    """
    pairs = totals.shape[-1] - features
    matrices = _square(totals[..., :pairs], features)
    each = np.arange(features)
    matrices[..., each, each] += ridge
    found = np.empty_like(totals)
    for place in np.ndindex(totals.shape[:-1]):
        factor = cho_factor(matrices[place], check_finite=False)
        both = cho_solve(factor, np.column_stack([np.eye(features), totals[place][pairs:]]))
        found[place] = np.concatenate([_triangle(both[:, :features]), both[:, features]])
    return found


class Ridges:
    """Ridge regressions of p features each, which learn one row after the other, all together.

    Parameters
    ----------
    inverse : ndarray, shape (..., p, p), or None
        Of each what :func:`solve` returns, as a whole matrix; it is taken over. None for
        coefficients that stay as they are.
    theta : ndarray, shape (..., p)
        Coefficients.
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
        inverse: Floats | None,
        theta: Floats,
        *,
        memory: float = 1.0,
        ridge: float = 0.0,
        rows: int = 0,
    ) -> None:
        self.inverse, self.theta = inverse, theta
        self.memory, self.rows = memory, rows
        self._leak = math.sqrt(theta.shape[-1] * ridge * (1.0 - memory))

    def learn(self, phi: Floats, y: Floats, *, last: bool = False) -> Floats:
        """Predict and learn one row after the other; return what was predicted.

        Parameters
        ----------
        phi : ndarray, shape (..., n, p)
            The rows, of each regression or the same for several.
        y : ndarray, shape (n,)
            Their labels.
        last : bool (default: False)
            Whether nothing is predicted after these rows: then they are not added to the inverse.

        Returns
        -------
        ndarray, shape (..., n)
            Of each row what those before it tell.
        """
        if self.inverse is None or (last and len(y) == 1):
            return np.asarray((phi @ self.theta[..., None])[..., 0])
        if len(y) < _FEW:
            each = [self._learn_one(phi[..., t, :], y[t]) for t in range(len(y))]
            return np.stack(each, axis=-1)
        fewer = math.log(0.01) / math.log(self.memory) if self.memory < 1.0 else _BLOCK
        block = max(1, min(_BLOCK, int(fewer)))
        parts = [slice(t, min(t + block, len(y))) for t in range(0, len(y), block)]
        found = [self._learn(phi[..., t, :], y[t], last=last and t.stop == len(y)) for t in parts]
        return np.concatenate(found, axis=-1)

    def _learn_one(self, phi: Floats, y: float) -> Floats:
        """Take a row by itself, which is faster for a few."""
        assert self.inverse is not None
        found = np.asarray(np.vecdot(self.theta, phi))
        gain = (self.inverse @ phi[..., None])[..., 0]
        self._add(gain, np.vecdot(gain, phi), y - found, self.memory)
        if self._leak:
            j = self.rows % self.theta.shape[-1]
            gain = self._leak * self.inverse[..., j]
            self._add(gain, self._leak * gain[..., j], -self._leak * self.theta[..., j], 1.0)
        self.rows += 1
        return found

    def _add(self, gain: Floats, spread: Floats, wrong: Floats, memory: float) -> None:
        """Move by a row with ``gain`` P phi, ``spread`` phi P phi and error ``wrong``."""
        assert self.inverse is not None
        step = gain / np.sqrt(memory + spread)[..., None]  # its outer product is symmetric
        self.theta += gain * (wrong / (memory + spread))[..., None]
        self.inverse -= step[..., None] * step[..., None, :]
        if memory < 1.0:
            self.inverse *= 1.0 / memory

    def _learn(self, phi: Floats, y: Floats, *, last: bool) -> Floats:
        """Take a few rows at once.

        With S = Phi P Phi^T + W = L L^T and W the rows' ages, L^-1 (y - Phi theta) are the errors
        of predicting each row from those before it, divided by L's diagonal; and P - K S^-1 K^T,
        K = P Phi^T, is the inverse after them all.
        """
        assert self.inverse is not None
        n, some = len(y), 1
        ages = self.memory ** np.arange(1.0, n + 1.0)
        if self._leak:
            some = 2
            phi = np.repeat(phi, 2, axis=-2)
            phi[..., 1::2, :] = 0.0
            places = (self.rows + np.arange(n)) % phi.shape[-1]
            phi[..., 2 * np.arange(n) + 1, places] = self._leak
            y, ages = np.column_stack([y, np.zeros(n)]).ravel(), ages.repeat(2)
        gain = phi @ self.inverse
        spread = gain @ phi.swapaxes(-1, -2)
        each = np.arange(len(y))
        spread[..., each, each] += ages
        factor = np.linalg.cholesky(spread)
        wrong = (y - (phi @ self.theta[..., None])[..., 0])[..., None]
        if last:
            gain = gain[..., :0]
        both = np.linalg.solve(factor, np.concatenate([gain, wrong], axis=-1))
        gain, wrong = np.ascontiguousarray(both[..., :-1]), both[..., -1]
        if not last:
            self.theta += (wrong[..., None, :] @ gain)[..., 0, :]
            self.inverse -= gain.swapaxes(-1, -2) @ gain
            if ages[-1] < 1.0:
                self.inverse *= 1.0 / ages[-1]
        self.rows += n
        return np.asarray((y - factor[..., each, each] * wrong)[..., ::some])

    def state(self) -> Floats:
        """Return what they go on from, as :func:`solve` returns it, shape (..., numbers)."""
        assert self.inverse is not None
        return np.concatenate([_triangle(self.inverse), self.theta], axis=-1)


def from_state(state: Floats, features: int, *, inverses: bool = True, **more: Any) -> Ridges:
    """Return regressions that go on from a state, coefficients alone without ``inverses``.

    Parameters
    ----------
    state : ndarray, shape (..., numbers(p)) or (..., p)
        As :meth:`Ridges.state` and :func:`solve` return it.
    features : int
        p.
    inverses : bool
        Whether it has the inverses.
    **more
        Of :class:`Ridges`.
    """
    pairs = state.shape[-1] - features
    inverse = _square(state[..., :pairs], features) if inverses else None
    return Ridges(inverse, state[..., pairs:].copy(), **more)


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


def raw_rows(x: NDArray[Any]) -> Floats:
    """Return rows as learners on raw columns take them: with a one."""
    return np.column_stack([np.asarray(x, np.float64), np.ones(len(x))])


def kernel_rows(x: NDArray[Any], bandwidths: bytes, features: int, seed: int) -> Floats:
    """Return rows as learners on features take them, shape (kernels, n, 2 D).

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
    if not bandwidths:
        return np.zeros((0, len(x), 2 * features))
    x = np.asarray(x, np.float64)
    z = feature_map(bandwidths, x.shape[1], features, seed, "float64", "orthogonal")(x)
    return np.ascontiguousarray(z.swapaxes(0, 1))


def all_rows(x: NDArray[Any], bandwidths: bytes, features: int, seed: int) -> Floats:
    """Return all that learners take of rows side by side: raw columns, a one, kernel by kernel."""
    return np.column_stack([raw_rows(x), *kernel_rows(x, bandwidths, features, seed)])


def distance(total: Floats, features: int) -> float:
    """Return the root mean squared distance of two rows, from the sums of raw columns and a one."""
    matrix = _square(total[: total.size - features], features)  # last row: sums of columns
    rows = max(1.0, matrix[-1, -1])
    spread = np.trace(matrix[:-1, :-1]) / rows - (matrix[-1, :-1] ** 2).sum() / rows**2
    return math.sqrt(max(0.0, 2.0 * float(spread)))
