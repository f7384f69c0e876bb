"""Inversion of sums of products: what messages of POF-RLS show of the rows behind them.

A message has the upper triangle of Phi^T Phi and Phi^T y, summed over n rows: of raw columns and a
constant, and of random Fourier features, whose frequencies are public, over the rows of one message
or of several. The last row of the matrix of raw columns is the sum of the rows: of a single row it
*is* the row. From more, the matrix tells them up to a rotation that keeps their mean; sums of
features, which are not linear, fix that as well. So rows are fitted to all sums at once by least
squares (Levenberg and Marquardt), from starts that have the right mean and spread and are rotated
at random. With more numbers than unknowns, n (d + 1), a start that explains all of them is right.
Where there are fewer the first is returned: it is one of infinitely many solutions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Starts from which rows are fitted, and steps of each, at most.
STARTS, STEPS = 40, 60
#: Root mean square of what is unexplained, per row, from which on rows explain the numbers.
TOLERANCE = 1e-7
_STUCK, _BETTER, _WORSE = 1e10, 0.2, 5.0  # damping


@dataclass(frozen=True)
class Products:
    """What the server knows of the rows of one or more messages.

    Attributes
    ----------
    raw : tuple of ndarray, each of shape ((d + 1) (d + 4) / 2,) or (0,)
        Of each message the sums of raw columns and a one, if it has them.
    samples : tuple of int
        Rows behind each message.
    features : ndarray, shape (kernels, 2 D (2 D + 3) / 2)
        Sums of features over all these rows; of no kernels if there are none.
    frequencies : ndarray, shape (kernels, d, D)
        The public frequencies of these features.
    scale : float
        By which sines and cosines are multiplied.
    """

    raw: tuple[Floats, ...]
    samples: tuple[int, ...]
    features: Floats
    frequencies: Floats
    scale: float

    @property
    def numbers(self) -> int:
        """Numbers that were released."""
        return int(sum(one.size for one in self.raw) + self.features.size)

    @property
    def rows(self) -> list[slice]:
        """Which rows are behind each message."""
        ends = np.cumsum(self.samples).tolist()
        return [slice(b, e) for b, e in zip([0, *ends], ends, strict=False)]


def invert_products(sums: Products, seed: int) -> tuple[Floats, Floats, bool]:
    """Return rows and labels that explain the sums, and whether the server knows them to be right.

    Parameters
    ----------
    sums : Products
        What the server knows.
    seed : int
        Of the starts.

    Returns
    -------
    x, y : ndarray, shapes (n, d) and (n,)
    sure : bool
    """
    rng, dimension = np.random.default_rng(seed), sums.frequencies.shape[1]
    n = sum(sums.samples)
    enough = sums.numbers > n * (dimension + 1)
    best, least = np.zeros((n, dimension + 1)), np.inf
    for _ in range(STARTS):
        rows, misfit = _fit(sums, _start(sums, dimension, rng))
        if misfit < least:
            best, least = rows, misfit
        if least < TOLERANCE:
            break
    return best[:, :-1], best[:, -1], bool(enough and least < TOLERANCE)


def _start(sums: Products, dimension: int, rng: np.random.Generator) -> Floats:
    """Return rows with labels, (n, d + 1), of the mean and the spread that raw sums tell."""
    parts = []
    for total, n in zip(sums.raw, sums.samples, strict=True):
        if not total.size:
            parts.append(rng.uniform(-0.5, 0.5, (n, dimension + 1)))
            continue
        p = dimension + 1
        upper = np.zeros((p, p))
        upper[np.triu_indices(p)] = total[:-p]
        matrix = upper + np.triu(upper, 1).T
        mean = matrix[-1, :-1] / n
        spread = matrix[:-1, :-1] - n * np.outer(mean, mean)
        values, vectors = np.linalg.eigh(spread)
        kept = np.argsort(values)[::-1][: n - 1]
        drawn = rng.standard_normal((n, len(kept)))
        turned = np.linalg.qr(np.column_stack([np.ones(n), drawn]))[0][:, 1:]
        x = mean + (turned * np.sqrt(values[kept].clip(0.0))) @ vectors[:, kept].T
        theta = np.linalg.lstsq(matrix, total[-p:], rcond=1e-12)[0]
        parts.append(np.column_stack([x, np.column_stack([x, np.ones(n)]) @ theta]))
    return np.concatenate(parts)


def _fit(sums: Products, rows: Floats) -> tuple[Floats, float]:
    """Return rows fitted to the sums from a start, and what they leave unexplained."""
    wrong, slope = _unexplained(sums, rows)
    damping = 1e-3
    for _ in range(STEPS):
        misfit = float(np.sqrt(np.mean(wrong**2))) / len(rows)
        if misfit < 1e-3 * TOLERANCE or damping > _STUCK:
            break
        step = _step(slope, wrong, damping)
        tried = rows - step.reshape(rows.shape)
        then, steeper = _unexplained(sums, tried)
        if then @ then < wrong @ wrong:
            rows, wrong, slope, damping = tried, then, steeper, damping * _BETTER
        else:
            damping *= _WORSE
    return rows, float(np.sqrt(np.mean(wrong**2))) / len(rows)


def _step(slope: Floats, wrong: Floats, damping: float) -> Floats:
    """Return the damped step of least squares, by the smaller of two systems."""
    numbers, unknowns = slope.shape
    if numbers < unknowns:
        square = slope @ slope.T
        square.flat[:: numbers + 1] += damping * np.trace(square) / numbers + 1e-15
        return np.asarray(slope.T @ np.linalg.solve(square, wrong))
    square = slope.T @ slope
    square.flat[:: unknowns + 1] += damping * np.trace(square) / unknowns + 1e-15
    return np.asarray(np.linalg.solve(square, slope.T @ wrong))


def _unexplained(sums: Products, rows: Floats) -> tuple[Floats, Floats]:
    """Return what rows leave unexplained of all numbers, and its derivatives."""
    x, y, (n, columns) = rows[:, :-1], rows[:, -1], rows.shape
    wrong, slopes, dimension = [], [], columns - 1
    flat = np.zeros((1, dimension + 1, dimension))
    flat[0, :-1] = np.eye(dimension)
    for total, part in zip(sums.raw, sums.rows, strict=True):
        if total.size:
            phi = np.column_stack([x[part], np.ones(len(x[part]))])
            found, slope = _products(phi, np.repeat(flat, len(phi), axis=0), y[part])
            whole = np.zeros((len(found), n, columns))
            whole[:, part] = slope
            wrong.append(found - total)
            slopes.append(whole)
    for total, omega in zip(sums.features, sums.frequencies, strict=True):
        phase = x @ omega
        sine, cosine = sums.scale * np.sin(phase), sums.scale * np.cos(phase)
        phi = np.hstack([sine, cosine])
        turned = np.concatenate([cosine, -sine], axis=1)[..., None]
        found, slope = _products(phi, turned * np.tile(omega.T, (2, 1)), y)
        wrong.append(found - total)
        slopes.append(slope)
    return np.concatenate(wrong), np.concatenate(slopes).reshape(-1, n * columns)


def _products(phi: Floats, slope: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return sums of products of features (n, p) and labels, and their derivatives by rows.

    ``slope`` has those of the features, (n, p, d); the derivatives are (numbers, n, d + 1).
    """
    one, other = np.triu_indices(phi.shape[1])
    found = np.concatenate([(phi.T @ phi)[one, other], phi.T @ y])
    pairs = slope[:, one] * phi[:, other, None] + slope[:, other] * phi[:, one, None]
    both = np.concatenate([pairs, slope * y[:, None, None]], axis=1).swapaxes(0, 1)
    labels = np.zeros((*both.shape[:2], 1))
    labels[len(one) :, :, 0] = phi.T
    return found, np.concatenate([both, labels], axis=2)
