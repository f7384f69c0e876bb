"""Recursive ridge regression: sums of rows, learners that take one row at a time, and their plan.

A learner sees a row as raw columns with a one, or as random Fourier features. For p features, p (p
+ 3) / 2 numbers are summed over clients: the upper triangle of Phi^T Phi, and Phi^T y. They
determine the ridge regression of all rows exactly.

:func:`plan` says which sums of POF-RLS go with which message, within the release limit. Products of
w columns need 2 w hidden rows. With fewer rows than columns, the columns of whole numbers span all
whole vectors, and lattice reduction finds the rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import RefusedError
from ..guard.cells import ROWS_PER_COLUMN
from ..guard.counting import least_samples
from ..kernels.random_features import feature_map

Floats = NDArray[np.float64]
Experts = Literal[
    "all", "local-ridge", "global-ridge", "local-kernels", "global-kernels", "local", "global"
]

#: Rows after which a local learner takes part, at most its number of features.
NAP = 20
#: Rows that a learner takes at once.
_BLOCK = 32
#: Below so many rows, rows are multiplied with packed triangles one by one.
_FEW = 16
#: Up to so many features, inverses stay whole matrices between messages.
_SMALL = 64
#: Widths of the kernels, relative to twice the distance of rows, in the order of kernels.
_WIDTHS = (1.0, 0.5, 2.0, 0.25, 4.0, 0.125, 8.0)


def numbers(features: int) -> int:
    """Return how many numbers the sums of ``features`` features have."""
    return features * (features + 3) // 2


def sums(phi: Floats, y: Floats, scale: float = 1.0) -> Floats:
    """Return the upper triangle of Phi^T Phi and Phi^T y, times scale, of rows (..., n, p)."""
    across, (*stack, n, p) = scale * phi.swapaxes(-1, -2), phi.shape
    if n > 1:
        return np.concatenate([_triangle(across @ phi), across @ y], axis=-1)
    from scipy.linalg import blas  # other methods do not need it

    found = np.zeros((*stack, numbers(p)))
    found[..., -p:] = across @ y
    for total, row in zip(found.reshape(-1, numbers(p)), phi.reshape(-1, p), strict=True):
        blas.dspr(p, scale, row, total[:-p], lower=1, overwrite_ap=1)
    return found


def _triangle(matrix: Floats) -> Floats:
    flat = matrix.reshape(*matrix.shape[:-2], matrix.shape[-1] ** 2)
    return flat.take(_upper(matrix.shape[-1]), axis=-1)


@lru_cache(maxsize=64)
def _upper(features: int) -> NDArray[np.intp]:
    found = np.flatnonzero(np.tri(features, dtype=bool).T)
    found.setflags(write=False)
    return found


def _square(triangles: Floats, features: int) -> Floats:
    flat = triangles.take(_places(features), axis=-1)
    return flat.reshape(*triangles.shape[:-1], features, features)


@lru_cache(maxsize=64)
def _places(features: int) -> NDArray[np.intp]:
    matrix = np.zeros((features, features), np.intp)
    matrix.put(_upper(features), np.arange(features * (features + 1) // 2))
    found = np.asarray(np.maximum(matrix, matrix.T).ravel())
    found.setflags(write=False)
    return found


def unpack(totals: Floats, features: int) -> tuple[Floats, Floats]:
    """Return Phi^T Phi, shape (..., p, p), and Phi^T y from what :func:`sums` returns."""
    pairs = totals.shape[-1] - features
    return _square(totals[..., :pairs], features), totals[..., pairs:]


def pack(matrix: Floats, right: Floats) -> Floats:
    """Invert :func:`unpack`."""
    return np.concatenate([_triangle(matrix), right], axis=-1)


def solve(totals: Floats, features: int, ridge: float) -> Floats:
    """Return the initial state of learners: the triangle of (P + ridge I)^-1, and coefficients.

    ``totals``, (..., numbers(features)), is what :func:`sums` returns, summed over rows.
    """
    from scipy.linalg import cho_factor, cho_solve

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
    """Several ridge regressions of p features each, updated row by row, all together.

    Each inverse is stored as c (P - U^T U): P the initial packed triangle, U a row for each later
    update. Once U has more than p / 4 rows, or many rows come at once, it is merged into P. With
    few features P is a whole matrix, which is faster, and U is empty.

    Parameters
    ----------
    inverse : ndarray, shape (..., p (p + 1) / 2) or (..., p p), or None
        P, not changed in place. None: fixed coefficients.
    theta : ndarray, shape (..., p)
        Coefficients.
    since : ndarray, shape (..., r, p), optional
        U.
    scale : float (default: 1.0)
        c.
    memory : float (default: 1.0)
        Forgetting factor per row. The ridge does not decay: each step adds a row of label zero to
        one feature, in turn.
    ridge : float (default: 0.0)
        lambda, needed if ``memory`` is below 1.
    rows : int (default: 0)
        Rows learned before.
    """

    def __init__(
        self,
        inverse: Floats | None,
        theta: Floats,
        *,
        since: Floats | None = None,
        scale: float = 1.0,
        memory: float = 1.0,
        ridge: float = 0.0,
        rows: int = 0,
    ) -> None:
        self._triangles, self.theta, p = inverse, theta, theta.shape[-1]
        self._since = theta[..., None, :][..., :0, :] if since is None else since
        self._scale = scale
        self._whole = np.zeros(0)  # the inverses as matrices, if many rows are learned
        if inverse is not None and p > 1 and inverse.shape[-1] == p * p:
            self._whole = inverse.reshape(*theta.shape, p).copy()
        self.memory, self.rows = memory, rows
        self._leak = math.sqrt(theta.shape[-1] * ridge * (1.0 - memory))

    def learn(self, phi: Floats, y: Floats, *, last: bool = False) -> Floats:
        """Predict and then learn one row after the other; return the predictions, (..., n).

        Parameters
        ----------
        phi : ndarray, shape (..., n, p)
            The rows, of each regression or the same for several.
        y : ndarray, shape (n,)
            Labels.
        last : bool (default: False)
            Whether no prediction follows: then the inverse is not updated.
        """
        if self._triangles is None or (last and len(y) == 1):
            return np.asarray((phi @ self.theta[..., None])[..., 0])
        if self.theta.shape[-1] <= _SMALL:
            self._open()
        if len(y) == 1:
            found = [self._learn_one(phi[..., 0, :], float(y[0]))[..., None]]
        else:
            found = self._learn_many(phi, y, last=last)
        if 4 * self._since.shape[-2] > self.theta.shape[-1]:
            self._open()
        return np.concatenate(found, axis=-1)

    def _learn_one(self, phi: Floats, y: float) -> Floats:
        found, memory = np.asarray(np.vecdot(self.theta, phi)), self.memory
        gain = self._times(phi[..., None, :])[..., 0, :]
        spread = (memory + np.vecdot(gain, phi))[..., None]
        theta = self.theta + gain * ((y - found)[..., None] / spread)
        steps = (gain / np.sqrt(spread))[..., None, :]
        if self._leak:
            j = [self.rows % theta.shape[-1]]
            column = self._columns(np.array(j))[..., 0, :] - steps[..., 0, :] * steps[..., 0, j]
            column *= self._leak / memory
            spread = 1.0 + self._leak * column[..., j]
            theta -= column * (self._leak * theta[..., j] / spread)
            more = column / np.sqrt(spread / memory)
            steps = np.concatenate([steps, more[..., None, :]], axis=-2)
        self.theta, self.rows = theta, self.rows + 1
        self._add(steps, 1.0 / memory)
        return found

    def _learn_many(self, phi: Floats, y: Floats, *, last: bool) -> list[Floats]:
        if len(y) >= _FEW:
            self._open()
        fewer = math.log(0.01) / math.log(self.memory) if self.memory < 1.0 else _BLOCK
        block = max(1, min(_BLOCK, int(fewer)))
        parts = [slice(t, min(t + block, len(y))) for t in range(0, len(y), block)]
        return [self._learn(phi[..., t, :], y[t], last=last and t.stop == len(y)) for t in parts]

    def _learn(self, phi: Floats, y: Floats, *, last: bool) -> Floats:
        """Learn a few rows at once.

        With S = Phi P Phi^T + W = L L^T and W the rows' ages, L^-1 (y - Phi theta) are the one-step
        prediction errors divided by L's diagonal. P - K S^-1 K^T with K = P Phi^T is the final
        inverse.
        """
        n, some = len(y), 1
        ages = self.memory ** np.arange(1.0, n + 1.0)
        gain = self._times(phi)
        if self._leak:
            some, features = 2, self.theta.shape[-1]
            places = (self.rows + np.arange(n)) % features
            phi, gain = np.repeat(phi, 2, axis=-2), np.repeat(gain, 2, axis=-2)
            phi[..., 1::2, :] = 0.0
            phi[..., 2 * np.arange(n) + 1, places] = self._leak
            gain[..., 1::2, :] = self._leak * self._columns(places)
            y, ages = np.column_stack([y, np.zeros(n)]).ravel(), ages.repeat(2)
        spread = gain @ phi.swapaxes(-1, -2)
        each = np.arange(len(y))
        spread[..., each, each] += ages
        try:
            factor = np.linalg.cholesky(spread)
        except np.linalg.LinAlgError:  # a failure on invalid inverses must not show
            self.rows += n
            return np.asarray((phi @ self.theta[..., None])[..., 0][..., ::some])
        wrong = (y - (phi @ self.theta[..., None])[..., 0])[..., None]
        if last:
            gain = gain[..., :0]
        both = np.linalg.solve(factor, np.concatenate([gain, wrong], axis=-1))
        gain, wrong = np.ascontiguousarray(both[..., :-1]), both[..., -1]
        if not last:
            self.theta = self.theta + (wrong[..., None, :] @ gain)[..., 0, :]
            self._add(gain, 1.0 / ages[-1])
        self.rows += n
        return np.asarray((y - factor[..., each, each] * wrong)[..., ::some])

    def _times(self, phi: Floats) -> Floats:
        if self._whole.size:
            return phi @ self._whole
        assert self._triangles is not None
        from scipy.linalg import blas

        *stack, p = self.theta.shape
        found = np.empty((*stack, phi.shape[-2], p))
        rows = np.broadcast_to(phi, found.shape)
        for place in np.ndindex(*stack, phi.shape[-2]):
            found[place] = blas.dspmv(p, 1.0, self._triangles[place[:-1]], rows[place], lower=1)
        found -= (phi @ self._since.swapaxes(-1, -2)) @ self._since
        return found * self._scale

    def _columns(self, places: NDArray[np.intp]) -> Floats:
        if self._whole.size:
            return self._whole[..., places, :]
        assert self._triangles is not None
        p = self.theta.shape[-1]
        found = self._triangles[..., _places(p).reshape(p, p)[places]]
        found -= self._since[..., places].swapaxes(-1, -2) @ self._since
        return found * self._scale

    def _add(self, gain: Floats, growth: float) -> None:
        if not self._whole.size:
            self._since = np.concatenate([self._since, gain / math.sqrt(self._scale)], axis=-2)
            self._scale *= growth
            return
        self._whole -= gain.swapaxes(-1, -2) @ gain
        if growth > 1.0:
            self._whole *= growth

    def _open(self) -> None:
        if not self._whole.size:
            assert self._triangles is not None
            self._whole = _square(self._triangles, self.theta.shape[-1])
            gain = self._since * math.sqrt(self._scale)
            self._since, self._scale, growth = self._since[..., :0, :], 1.0, self._scale
            self._whole *= growth
            self._add(gain, 1.0)

    @property
    def state(self) -> list[Floats]:
        """Flat arrays to restore from: rows and scale, P, coefficients, U."""
        inverse = self._triangles
        if self._whole.size:
            inverse = self._whole if self.theta.shape[-1] <= _SMALL else _triangle(self._whole)
        assert inverse is not None
        head = np.array([float(self.rows), self._scale])
        return [head, *(one.ravel() for one in (inverse, self.theta, self._since))]


#: Arrays in a state.
STATE = 4


def from_start(start: Floats, features: int, **more: Any) -> Ridges:
    """Return regressions from what :func:`solve` returns, or from coefficients alone."""
    inverse = start[..., :-features] if start.shape[-1] > features else None
    return Ridges(inverse, start[..., -features:], **more)


def from_state(state: list[Floats], shape: tuple[int, ...], features: int, **more: Any) -> Ridges:
    (rows, scale), inverse, theta, since = state
    since = since.reshape(*shape, -1, features)
    inverse, theta = inverse.reshape(*shape, -1), theta.reshape(*shape, features)
    return Ridges(inverse, theta, since=since, scale=float(scale), rows=int(rows), **more)


def without_inverses(states: list[Floats]) -> list[Floats]:
    """Return states that can predict but not learn."""
    kept = [True, False, True, False]  # of the parts of a state
    return [one if kept[k % STATE] else one[:0] for k, one in enumerate(states)]


def unlearned(features: int, ridge: float) -> Floats:
    return np.concatenate([np.eye(features).take(_upper(features)) / ridge, np.zeros(features)])


def widths(kernels: int, width: float) -> bytes:
    """Return the widths of kernels around ``width``, little-endian float64."""
    ratios = [_WIDTHS[k] if k < len(_WIDTHS) else 2.0 ** (k - 4) for k in range(kernels)]
    return (width * np.array(ratios)).astype("<f8").tobytes()


def raw_rows(x: NDArray[Any]) -> Floats:
    found = np.ones((len(x), x.shape[1] + 1))
    found[:, :-1] = x
    return found


def kernel_rows(x: NDArray[Any], bandwidths: bytes, features: int, seed: int) -> Floats:
    """Return the random features of rows, shape (kernels, n, 2 D).

    Empty ``bandwidths``: no width is known yet, so there are no kernels.
    """
    if not bandwidths:
        return np.zeros((0, len(x), 2 * features))
    x = np.asarray(x, np.float64)
    z = feature_map(bandwidths, x.shape[1], features, seed, "float64", "orthogonal")(x)
    return np.ascontiguousarray(z.swapaxes(0, 1))


def summed_places(features: int, summed: int) -> NDArray[np.intp]:
    """Return the columns of the summed frequencies of a kernel."""
    half = np.arange(summed)
    return np.concatenate([half, features + half])


def all_rows(x: NDArray[Any], bandwidths: bytes, features: int, seed: int) -> Floats:
    return np.column_stack([raw_rows(x), *kernel_rows(x, bandwidths, features, seed)])


def distance(total: Floats, features: int) -> float:
    """Return the root mean squared distance of two rows, from sums of raw columns and a one."""
    matrix = _square(total[: total.size - features], features)  # last row: sums of columns
    rows = max(1.0, matrix[-1, -1])
    spread = np.trace(matrix[:-1, :-1]) / rows - (matrix[-1, :-1] ** 2).sum() / rows**2
    return math.sqrt(max(0.0, 2.0 * float(spread)))


# -- which sums go with which message

#: Most samples per message, unless set by the user or needed for raw columns.
MOST_SAMPLES = 50
#: Features are summed over at most so many times the samples that one message would need.
_WAIT = 2


@dataclass(frozen=True)
class Plan:
    """Sums of each message of a run.

    Attributes
    ----------
    stops : tuple of int
        Samples of each client after each message. A message takes as many as all before it, within
        limits, so at least half are always summed.
    starts : tuple of int
        First sample of each client that is in no sum of features before the message.
    sums : tuple of bool
        Whether the message sums features, of all samples from ``starts`` on.
    raw : int
        Fewest samples of a message that sums raw columns; 0 for none.
    features, kernels : int
        Summed frequencies per kernel, and summed kernels; 0 for none.
    """

    stops: tuple[int, ...] = (1,)
    starts: tuple[int, ...] = (0,)
    sums: tuple[bool, ...] = (False,)
    raw: int = 0
    features: int = 0
    kernels: int = 0


def plan(
    samples: int,
    unknowns: float,
    *,
    given: int | None,
    columns: int,
    kernels: int,
    features: int,
    fixed: int,
    up: float = math.inf,
    down: float = math.inf,
    known: bool = True,
    steady: bool = False,
    hidden: float = math.inf,
    fewest: int = 1,
) -> Plan:
    """Plan messages that never release more numbers about rows than these have unknowns.

    Raw columns come first, in every message, then kernels, then frequencies of the first kernel:
    fewer kernels with all frequencies predict better. Features are summed over several messages,
    which are as short as raw columns allow.

    Parameters
    ----------
    samples : int
        T, of each client.
    unknowns, hidden : float
        Of a message with one sample of each client; infinite without limit.
    given : int or None
        Samples per message, if set by the user.
    columns : int
        Raw columns with a one; 0 to sum none.
    kernels, features : int
        Kernels to sum, and frequencies of each.
    fixed : int
        Further numbers of each message.
    up, down : float
        Most numbers of a message, most coefficients to a client.
    known : bool
        Whether kernels have a width before raw columns are summed.
    steady : bool
        Whether the first messages are as long as the others.
    fewest : int
        Messages have multiples of so many samples, so that two runs share boundaries.
    """
    room = unknowns if unknowns > 0.0 else math.inf
    wide = ROWS_PER_COLUMN / hidden if hidden > 0.0 else 0.0  # samples that a column needs
    fewest = min(fewest, given or samples, samples)

    def least(count: int, width: int) -> int:
        few = max(1, least_samples(fixed + count, room), math.ceil(wide * width))
        return fewest * math.ceil(few / fewest)

    raw = numbers(columns) if columns else 0
    most = min(samples if given is None else given, samples)
    enough = most if given or not kernels else min(MOST_SAMPLES, most // 4)
    for_raw = least(raw, columns) if raw and fixed + raw <= up and columns <= down else 0
    if for_raw > max(fewest, enough):
        for_raw = 0
    raw *= for_raw > 0
    if raw and fewest > 1:  # windows of two runs differ in products of raw columns, too
        fewest = max(fewest, math.ceil(wide * columns))
        for_raw = fewest * math.ceil(for_raw / fewest)
    if given is None:
        shared = raw + kernels * numbers(2 * features)
        # nothing is shared: clients are independent
        wanted = least(shared, 2 * features * (kernels > 0)) if shared else MOST_SAMPLES
        most = max(for_raw, min(wanted, MOST_SAMPLES, samples), fewest)
    left, down = min(room * most, up) - fixed - raw, down - columns * (for_raw > 0)

    def within() -> bool:
        many = kernels * 2 * features
        narrow = not many or wide * 2 * features <= most
        return narrow and kernels * numbers(2 * features) <= left and many <= down

    while kernels > 1 and not within():
        kernels -= 1
    while features and not within():
        features -= 1
    some = kernels * numbers(2 * features)
    few = least(raw + some, 2 * features) if some else 0
    if given is None and for_raw and few:
        longest = min(_WAIT * few, max(few, MOST_SAMPLES))
        steps = range(for_raw, few + 1, fewest)
        fit = (n for n in steps if _window(n, fixed + raw, some, room) <= longest)
        most = next(fit, few)
    stops = _stops(samples, most if steady else for_raw or few or most, most)
    starts, sums, start, released = list[int](), list[bool](), 0, 0
    for number, stop in enumerate(stops):
        starts.append(start if some else stops[number - 1] if number else 0)
        released += fixed + raw
        may = (number > 0 or known or not for_raw) and released + some <= room * (stop - start)
        may = may and wide * 2 * features <= stop - start
        sums.append(some > 0 and may)
        if sums[-1]:
            start, released = stop, 0
    return Plan(tuple(stops), tuple(starts), tuple(sums), for_raw, features if few else 0, kernels)


def too_wide(width: int, hidden: float) -> str:
    """Return why products of ``width`` columns are not allowed; empty if they are."""
    if ROWS_PER_COLUMN * width <= hidden:
        return ""
    return f"products of {width} columns would be opened about {hidden:.0f} hidden rows"


def wide_sum(problem: str, party: str = "") -> RefusedError:
    """Return the error for products of too many columns, on either side."""
    return RefusedError(
        f"refused: {problem}",
        remedy=f"take more samples per message or fewer columns: each needs {ROWS_PER_COLUMN} rows",
        party=party,
        code="FK-CELLS-WIDTH",
    )


def _stops(samples: int, first: int, most: int) -> list[int]:
    stops = [0]
    while (rest := samples - stops[-1]) > 0:
        step = min(max(first, stops[-1]), most)
        stops.append(samples if rest - step < first else stops[-1] + step)
    return stops[1:]


def _window(step: int, each: int, some: int, room: float) -> float:
    """Return after how many samples features can be summed, with ``step`` samples per message."""
    left = room * step - each
    return step * math.ceil(some / left) if left > 0.0 else math.inf
