"""Inversion of a sum of gradients: what a secure round of POF-MKL shows of the rows behind it.

The total that a round releases is, for kernel i and n samples (eq. 9 summed over the clients),

    g_i = (sum_s 2 (f_i(x_s) - y_s) z_i(x_s) + 2 n lambda theta_i) / p,    f_i = theta_i^T z_i

The server knows theta, lambda, n, p and the frequencies in z_i (their seed is public), so these are
2 N D equations for n (d + 1) unknowns. They are solved by least squares:

1. one row with weight n fits the widest kernels, which are nearly linear: the mean row;
2. n rows start around it, or around the middle of the range that rows are scaled to where labels
   cancel in it, and are fitted to the kernels in which phases do not wrap, with a pull
   towards the mean row and middling labels. It grows weaker step by step; without it most starts
   end where rows of huge, opposite weight cancel;
3. all kernels fix what is found to the last digits.

A step is one of Levenberg and Marquardt with the second order of the path added (geodesic
acceleration). Where a start ends short of an explanation, the rows of the smallest errors, which
the sum determines least, are drawn anew and fitted once more, up to ten times; then comes another
start, until one explains the numbers or the budget is spent. The server can tell that it is right:
there are more numbers than unknowns. Where there are fewer, the first rows that explain the numbers
to five digits are returned: they are one of infinitely many solutions, and so is the next.

Source: sums of sines and cosines of few points determine the points (sparse inverse problems, e.g.
Candes and Fernandez-Granda, CPAM 2014); Transtrum and Sethna, "Improvements to the
Levenberg-Marquardt algorithm for nonlinear least-squares minimization", arXiv:1201.5885.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg

from .phases import Floats

#: Multiplications spent on one sum, at most: less than a minute of a core.
BUDGET = 2e11
#: Starts from which rows are fitted, at most.
STARTS = 32
#: Root mean square of what is unexplained, over n, below which rows explain the numbers. Right
#: ones reach 1e-8 in float32, wrong ones 1e-6 and more.
TOLERANCE = 1e-7

_LINEAR = 4.0  # bandwidths from here on fit the mean row
_UNWRAPPED = 0.3  # from here on phases do not wrap
_FINE = 0.1  # from here on features in float32 are those in float64
_PULLS = (1e-2, 1e-3, 1e-4, 1e-5)  # towards the mean row
_CLOSE, _LONGER = 1e-5, 3  # misfit from which on rows are fitted without a pull; stages of that
_HOPS, _REDRAWN = 10, 3  # new attempts from where a start ended; rows that are drawn anew, at most
_SPREAD, _LABELS = 0.5, 0.3  # of rows in the unit ball, of labels in [0, 1]
_STEPS, _PATIENCE, _SLOW = 60, 3, 1e-3  # steps of a stage; steps in a row that hardly help
_PROBE, _BEND = 0.1, 0.75  # of the second order: length of the probe, share of a step
_WORSE, _BETTER, _STUCK = 4.0, 0.2, 1e8  # damping


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

    @property
    def numbers(self) -> int:
        """Numbers that were released."""
        return int(np.isfinite(self.total).sum())

    @property
    def unknowns(self) -> int:
        """Features and labels behind the sum, n (d + 1)."""
        return self.samples * (int(self.frequencies.shape[2]) + 1)


@dataclass(frozen=True)
class JointInversion:
    """Rows computed from a sum.

    Attributes
    ----------
    x : ndarray, shape (n, d)
    y : ndarray, shape (n,)
    misfit : float
        Root mean square of what they leave unexplained of the released numbers, per row.
    consistent : bool
        Whether that is rounding and there are more numbers than unknowns, so that the server knows
        the rows to be right.
    starts : int
        Starts that were made.
    """

    x: Floats
    y: Floats
    misfit: float
    consistent: bool
    starts: int


def invert_release(
    release: Release, seed: int, *, starts: int = STARTS, budget: float = BUDGET
) -> JointInversion:
    """Compute all rows and labels behind a sum.

    Parameters
    ----------
    release : Release
        The sum.
    seed : int
        Of the starts.
    starts : int (default: 32)
        Starts at most.
    budget : float (default: 2e11)
        Multiplications at most. Counted and not timed, so that results are reproducible.

    Returns
    -------
    JointInversion
        The rows that explain most; a guess unless ``consistent``.
    """
    rng, work = np.random.default_rng(seed), _Work(budget)
    determined = release.numbers > release.unknowns
    enough = TOLERANCE if determined else _CLOSE
    wide, all_but_fine = (Equations(release, least) for least in (_UNWRAPPED, _FINE))
    mean = _mean_row(release, work)
    best = JointInversion(mean[None, :-1], mean[-1:], np.inf, False, 0)
    noise = np.append(np.full(mean.size - 1, _SPREAD / np.sqrt(mean.size - 1)), _LABELS)
    middles = [np.append(x, release.middle) for x in (mean[:-1], noise[:-1])]
    for start in range(1, starts + 1):
        middle = middles[(start - 1) % 2]
        rows, misfit = _redrawn(release, np.zeros((0, mean.size)), middle, noise, rng), np.inf
        for attempt in range(_HOPS + 1):
            tried = rows
            if attempt:
                kept = _heaviest(wide, rows, release.samples - int(rng.integers(1, _REDRAWN + 1)))
                tried = _redrawn(release, kept, middle, noise, rng)
            for pull in _PULLS[-2:] if attempt else _PULLS:
                tried, after = _fit(wide, tried, work, pull / noise, middle)
            found, unexplained = _finish(wide, all_but_fine, tried, after, work)
            if after < misfit:
                rows, misfit = tried, after
            if unexplained < best.misfit:
                best = JointInversion(found[:, :-1], found[:, -1], unexplained, False, start)
            if best.misfit < enough or work.left <= 0.0:
                break
        if best.misfit < enough or work.left <= 0.0:
            break
    known = determined and best.misfit < TOLERANCE
    return replace(best, consistent=known, starts=start)


def _finish(
    wide: Equations, all_but_fine: Equations, rows: Floats, misfit: float, work: _Work
) -> tuple[Floats, float]:
    """Fit rows that are close without a pull, then to finer kernels; return rows and misfit."""
    for _ in range(_LONGER):
        if TOLERANCE <= misfit < _CLOSE:
            rows, misfit = _fit(wide, rows, work)
    return _fit(all_but_fine, rows, work) if misfit < _CLOSE else (rows, misfit)


def _heaviest(sums: Equations, rows: Floats, many: int) -> Floats:
    """Return the rows with the largest errors, which are those that the sum determines best."""
    z, _ = sums.features_of(rows[:, :-1])
    errors = np.abs(np.vecdot(z, sums.theta) - rows[:, -1:]).mean(axis=1)
    return np.asarray(rows[np.argsort(errors)[len(rows) - many :]])


def _redrawn(
    release: Release, kept: Floats, middle: Floats, noise: Floats, rng: np.random.Generator
) -> Floats:
    """Return rows that are kept, and new ones around ``middle``."""
    drawn = rng.standard_normal((release.samples - len(kept), middle.size))
    return np.concatenate([kept, middle + noise * drawn * _SPREAD])


def _mean_row(release: Release, work: _Work) -> Floats:
    """Return the row, with its label, that n times explains the widest kernels, (d + 1,)."""
    dimension = release.frequencies.shape[2]
    single = Equations(release, _LINEAR, weight=float(release.samples))
    middle = np.append(np.zeros(dimension), release.middle)
    noise = np.append(np.full(dimension, _SPREAD), _LABELS)
    pull = release.samples * 1e-3 / noise
    row = np.asarray(_fit(single, middle[None] + 0.1, work, pull, middle)[0][0])
    row[:-1] /= max(1.0, float(np.linalg.norm(row[:-1])))
    return row


class _Work:
    """Counts multiplications."""

    def __init__(self, budget: float) -> None:
        self.left = budget

    def spend(self, equations: int, unknowns: int) -> None:
        """Enter normal equations made of so many equations, or one solution of them."""
        self.left -= equations * unknowns**2 if equations else unknowns**3 / 3.0


class Equations:
    """The equations of those kernels whose bandwidth is not below ``least``.

    Of a release without such kernels: of its widest one. With ``weight`` every row counts so often.

    Attributes
    ----------
    target : ndarray, shape (numbers,)
        What the rows must add up to.
    """

    def __init__(self, release: Release, least: float = 0.0, weight: float = 1.0) -> None:
        given = np.isfinite(release.total).any(axis=1)
        used = given & (release.bandwidths >= min(least, release.bandwidths[given].max()))
        self.frequencies, self.theta = release.frequencies[used], release.theta[used]
        self.given = np.isfinite(release.total[used]).ravel()
        self.features, self.dimension = self.frequencies.shape[1:]
        self.samples, self.weight = release.samples, weight
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
        return self._products(rows).reshape(len(rows), -1)[:, self.given]

    def missing(self, rows: Floats) -> Floats:
        """Return the model less the numbers released."""
        return np.asarray(self._products(rows).sum(axis=0).ravel()[self.given] - self.target)

    def _products(self, rows: Floats) -> Floats:
        z, _ = self.features_of(rows[:, :-1])
        error = 2.0 * self.weight * (np.vecdot(z, self.theta) - rows[:, -1:])
        return np.asarray(error[..., None] * z)

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
        slopes *= 2.0 * self.weight
        return np.asarray(slopes.reshape(self.given.size, -1)[self.given])


def _fit(
    sums: Equations,
    rows: Floats,
    work: _Work,
    pull: Floats | float = 0.0,
    middle: Floats | float = 0.0,
) -> tuple[Floats, float]:
    """Fit rows, (n, d + 1), with a ``pull`` towards ``middle``; return them and their misfit."""
    weight = np.broadcast_to(pull, rows.shape).ravel()
    at = np.broadcast_to(middle, rows.shape).ravel()
    flat = rows.ravel()
    damping, slow, least = 1e-3, 0, TOLERANCE * sums.samples / 10.0
    missing, drawn = sums.missing(rows), weight * (flat - at)
    cost, moved = missing @ missing + drawn @ drawn, True
    for _ in range(_STEPS):
        if work.left <= 0.0:
            break
        if moved:
            slopes = sums.slopes(flat.reshape(rows.shape))
            matrix, gradient = slopes.T @ slopes, slopes.T @ missing + weight * drawn
            matrix[np.diag_indices_from(matrix)] += weight**2
            size = np.diag(matrix)
            size = np.maximum(size, 1e-12 * size.max())
            work.spend(*slopes.shape)
        work.spend(0, flat.size)
        step = _step(
            sums, flat.reshape(rows.shape), missing, slopes, matrix, gradient, damping, size
        )
        moved = False
        if step is not None:
            reached = flat + step
            after = sums.missing(reached.reshape(rows.shape))
            pulled = weight * (reached - at)
            total = after @ after + pulled @ pulled
            moved = bool(total < cost)
        if not moved:
            damping *= _WORSE
            if damping > _STUCK:
                break
            continue
        slow = slow + 1 if cost - total < _SLOW * cost else 0
        flat, missing, drawn, cost = reached, after, pulled, total
        damping = max(damping * _BETTER, 1e-15)
        if slow == _PATIENCE or _root_mean_square(missing) < least:
            break
    return flat.reshape(rows.shape), _root_mean_square(missing) / sums.samples


def _step(
    sums: Equations,
    rows: Floats,
    missing: Floats,
    slopes: Floats,
    matrix: Floats,
    gradient: Floats,
    damping: float,
    size: Floats,
) -> Floats | None:
    """Return a damped step with its second order; None where the path bends too much for it."""
    try:
        factor = scipy.linalg.cho_factor(matrix + np.diag(damping * size), check_finite=False)
    except scipy.linalg.LinAlgError:
        return None
    velocity = -scipy.linalg.cho_solve(factor, gradient, check_finite=False)
    probe = sums.missing(rows + _PROBE * velocity.reshape(rows.shape))
    curvature = (2.0 / _PROBE) * ((probe - missing) / _PROBE - slopes @ velocity)
    bend = -scipy.linalg.cho_solve(factor, slopes.T @ curvature, check_finite=False)
    root = np.sqrt(size)
    if 2.0 * np.linalg.norm(root * bend) > _BEND * np.linalg.norm(root * velocity):
        return None
    return np.asarray(velocity + 0.5 * bend)


def _root_mean_square(values: Floats) -> float:
    return float(np.linalg.norm(values) / np.sqrt(values.size))
