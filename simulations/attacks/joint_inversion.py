"""Inversion of a sum of gradients: what a secure round of POF-MKL shows of the rows in it.

The total that a round releases is, for kernel i and n samples (eq. 9 summed over the clients),

    g_i = (sum_s 2 (f_i(x_s) - y_s) z_i(x_s) + 2 n lambda theta_i) / p,    f_i = theta_i^T z_i

The server knows theta, lambda, n, p and the frequencies in z_i (their seed is public), so these are
2 N D equations for n (d + 1) unknowns. They are solved by least squares (Levenberg and Marquardt):
n rows start around the middle and are fitted to the kernels in which phases do not wrap, with a
pull towards the middle that grows weaker step by step. Without it most starts end where rows of
huge, opposite weight cancel. Narrower kernels fix what is found to the last digits.

The server can tell that it is right: there are more numbers than unknowns. Where there are fewer,
the first rows that explain the numbers are one of infinitely many solutions.

Source: sums of sines and cosines of few points determine the points (sparse inverse problems, e.g.
Candes and Fernandez-Granda, CPAM 2014).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from .phases import Floats

#: Root mean square of what is unexplained, over n, below which rows explain the numbers. Right
#: ones reach 1e-8 in float32, wrong ones 1e-6 and more.
TOLERANCE = 1e-7
#: Starts from which rows are fitted, at most.
STARTS = 20
_UNWRAPPED = 0.3  # bandwidths from here on, in which phases do not wrap
_FINE = 0.1  # from here on features in float32 are those in float64
_PULLS = (1e-2, 1e-3, 1e-4, 1e-5, 0.0)  # towards the middle
_CLOSE, _STEPS = 1e-5, 60  # misfit from which on narrower kernels help; steps of a fit
_SPREAD, _LABELS = 0.5, 0.3  # of rows in the unit ball, of labels in [0, 1]


@dataclass(frozen=True)
class Release:
    """What the server knows of one sum.

    Attributes
    ----------
    total : ndarray, shape (N, 2D)
        The sum over all samples; NaN where a number was not released.
    theta : ndarray, shape (N, 2D)
        Parameters at which gradients were taken.
    frequencies : ndarray, shape (N, D, d)
        Frequencies rho, as rounded by the clients.
    bandwidths : ndarray, shape (N,)
    samples : int
        Number n of samples in the sum.
    regularization : float
        lambda.
    scale : float (default: 1.0)
        By what gradients were multiplied, 1 / p.
    middle : float (default: 0.5)
        A middling label.
    """

    total: Floats
    theta: Floats
    frequencies: Floats
    bandwidths: Floats
    samples: int
    regularization: float
    scale: float = 1.0
    middle: float = 0.5


def invert_release(release: Release, seed: int, starts: int = STARTS) -> tuple[Floats, float]:
    """Compute all rows and labels of a sum.

    Parameters
    ----------
    release : Release
        The sum.
    seed : int
        Of the starts.
    starts : int (default: 20)
        Starts at most.

    Returns
    -------
    rows : ndarray, shape (n, d + 1)
        The rows that explain most, labels last.
    misfit : float
        Root mean square of what they leave unexplained of the released numbers, per row.
    """
    rng, dimension = np.random.default_rng(seed), release.frequencies.shape[2]
    wide, all_but_fine = (Equations(release, least) for least in (_UNWRAPPED, _FINE))
    middle = np.append(np.zeros(dimension), release.middle)
    noise = np.append(np.full(dimension, _SPREAD / np.sqrt(dimension)), _LABELS)
    best, least = np.tile(middle, (release.samples, 1)), np.inf
    for _ in range(starts):
        rows = middle + noise * rng.standard_normal(best.shape) * _SPREAD
        for pull in _PULLS:
            rows, misfit = _fit(wide, rows, pull / noise, middle)
        if misfit < _CLOSE:
            rows, misfit = _fit(all_but_fine, rows, 0.0 * noise, middle)
        if misfit < least:
            best, least = rows, misfit
        if least < TOLERANCE:
            break
    return best, least


class Equations:
    """The equations of those kernels whose bandwidth is not below ``least``.

    Of a release without such kernels: of its widest one.

    Attributes
    ----------
    target : ndarray, shape (numbers,)
        What the rows must add up to.
    """

    def __init__(self, release: Release, least: float = 0.0) -> None:
        given = np.isfinite(release.total).any(axis=1)
        used = given & (release.bandwidths >= min(least, release.bandwidths[given].max()))
        self.frequencies, self.theta = release.frequencies[used], release.theta[used]
        self.given = np.isfinite(release.total[used]).ravel()
        self.features, self.dimension = self.frequencies.shape[1:]
        self.samples = release.samples
        penalty = 2.0 * release.regularization * release.samples * self.theta
        self.target = (release.total[used] / release.scale - penalty).ravel()[self.given]

    def features_of(self, x: Floats) -> tuple[Floats, Floats]:
        """Return z and its derivative by the phases, each (n, N, 2D)."""
        phase = (x @ self.frequencies.reshape(-1, self.dimension).T).reshape(
            len(x), -1, self.features
        )
        root = np.sqrt(self.features)
        sine, cosine = np.sin(phase) / root, np.cos(phase) / root
        return np.concatenate([sine, cosine], axis=2), np.concatenate([cosine, -sine], axis=2)

    def terms(self, rows: Floats) -> Floats:
        """Return what each row adds to the numbers released, (n, numbers)."""
        z, _ = self.features_of(rows[:, :-1])
        error = 2.0 * (np.vecdot(z, self.theta) - rows[:, -1:])
        return np.asarray((error[..., None] * z).reshape(len(rows), -1)[:, self.given])

    def missing(self, rows: Floats) -> Floats:
        """Return the model less the numbers released."""
        return np.asarray(self.terms(rows).sum(axis=0) - self.target)

    def slopes(self, rows: Floats) -> Floats:
        """Return the derivatives by the rows and their labels, (numbers, n (d + 1))."""
        z, turned = self.features_of(rows[:, :-1])
        error = np.vecdot(z, self.theta) - rows[:, -1:]
        both = np.concatenate([self.frequencies] * 2, axis=1)  # (N, 2D, d)
        change = np.einsum("snj,njd->snd", turned * self.theta, both, optimize=True)  # of f
        slopes = np.empty((*z.shape[1:], len(rows), self.dimension + 1))
        slopes[..., :-1] = (error[..., None] * turned).transpose(1, 2, 0)[..., None]
        slopes[..., :-1] *= both[:, :, None, :]
        slopes[..., :-1] += z.transpose(1, 2, 0)[..., None] * change.transpose(1, 0, 2)[:, None]
        slopes[..., -1] = -z.transpose(1, 2, 0)
        return np.asarray(2.0 * slopes.reshape(self.given.size, -1)[self.given])


def _fit(sums: Equations, rows: Floats, pull: Floats, middle: Floats) -> tuple[Floats, float]:
    """Fit rows, (n, d + 1), with a pull towards the middle; return them and their misfit."""
    weight = np.diag(np.tile(pull, len(rows)))

    def missing(flat: Floats) -> Floats:
        away = (flat.reshape(rows.shape) - middle) * pull
        return np.concatenate([sums.missing(flat.reshape(rows.shape)), away.ravel()])

    def slopes(flat: Floats) -> Floats:
        return np.vstack([sums.slopes(flat.reshape(rows.shape)), weight])

    found = least_squares(
        missing, rows.ravel(), jac=slopes, method="lm", x_scale="jac", max_nfev=_STEPS
    ).x.reshape(rows.shape)
    unexplained = sums.missing(found)
    return found, float(np.linalg.norm(unexplained) / np.sqrt(unexplained.size) / sums.samples)
