"""Invert POF-MKL's gradients: of one sample, and sums of several.

**One sample.** A client with one sample (x, y) a round sends, for each chosen kernel i,

    g_i = (2 (f_i - y) z_i(x) + 2 lambda theta_i) / p_i,    f_i = theta_i^T z_i(x)        (eq. 9)

with z_i(x) = [sin(rho_i^T x), cos(rho_i^T x)] / sqrt(D). The server knows theta, lambda, rho and,
with exploration 1, p. A private p follows from the gradient, since it divides the penalty as well.

1. h_i = g_i - 2 lambda theta_i / p is a multiple of z_i with |h_i| = 2 |f_i - y| / p. It gives
   z_i = s_i h_i / |h_i| with a sign s_i;
2. y = s_i (theta_i^T h_i / |h_i| - p |h_i| / 2) is the same for every kernel;
3. sines and cosines give the phases rho^T x modulo 2 pi, up to the sign of their kernel. In the
   unit ball phases of wide kernels do not wrap, and they unwrap the others (:class:`Phases`);
4. least squares on eq. 9 give the last digits.

Source: follows from eq. 9 of Ghari and Shen, "Personalized Online Federated Learning with Multiple
Kernels", NeurIPS 2022.

**Sums.** Eq. 9 summed over n samples is 2 N D equations for n (d + 1) unknowns, solved by
Levenberg-Marquardt. Rows start around the middle and are fitted to kernels in which phases do not
wrap, with a decreasing pull towards the middle: without it most starts end where rows of huge,
opposite weight cancel. Narrower kernels give the last digits.

Source: sums of sines and cosines of few points determine the points (sparse inverse problems, e.g.
Candes and Fernandez-Granda, CPAM 2014).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from fedkern_flwr.kernels.random_features import Precision, Real

# -- phases known modulo 2 pi -> the vector that they are phases of

Floats = NDArray[np.float64]

_SIGN_MARGIN, _TURN_MARGIN = 1.5, 3.0  # a little less than pi / 2 and pi
_DETERMINED = 1e-2  # largest uncertainty of x, relative to the radius, that counts as found
_LEAST_NOISE = 1e-5  # so that the information about x stays well conditioned


class Phases(NamedTuple):
    """Phases rho^T x of some kernels, each known up to turns and up to the sign of its kernel.

    Attributes
    ----------
    angles, noise : ndarray, shape (m, D)
        The phases, off by pi in kernels of negative sign, and the size of their errors.
    labels : ndarray, shape (m,)
        A number common to all kernels, times the kernel's sign; 0 where unknown.
    frequencies : ndarray, shape (m, D, d)
        rho.
    radius : float
        Bound on |x|.
    """

    angles: Floats
    noise: Floats
    labels: Floats
    frequencies: Floats
    radius: float

    def unwrap(self) -> Floats | None:
        """Find x by least squares, from the widest frequencies to the narrowest.

        The ellipsoid of possible x confines each phase to an interval. One below half a turn
        determines the sign of the kernel, one below a turn the phase. These make the ellipsoid
        smaller.

        Returns
        -------
        ndarray, shape (d,), or None
            None when the kernels are too narrow.
        """
        rho, dimension = self.frequencies, self.frequencies.shape[2]
        floor = _LEAST_NOISE * np.maximum(1.0, self.radius * np.linalg.norm(rho, axis=2))
        weight = 1.0 / np.maximum(self.noise, floor)
        prior = np.eye(dimension) / self.radius**2
        axes, x = self.radius * np.eye(dimension), np.zeros(dimension)  # of the ellipsoid
        used = np.zeros(self.angles.shape, bool)
        while True:
            interval = np.linalg.norm(rho @ axes, axis=2)
            expected = rho @ x
            offset = self.angles - expected
            votes = np.where(interval < _SIGN_MARGIN, np.cos(offset), 0.0).sum(axis=1)
            by_label = np.sign(self.labels) * np.sign(votes @ self.labels)
            signs = np.where(votes != 0.0, np.sign(votes), by_label)
            usable = (signs != 0.0)[:, None] & (interval < _TURN_MARGIN)
            if not (usable & ~used).any():
                break
            used |= usable
            phases = expected + nearest_turn(offset + np.pi * (signs < 0.0)[:, None])
            rows = rho * (weight * used)[..., None]
            across = rows.transpose(0, 2, 1)
            information = prior + (across @ rows).sum(axis=0)
            vector = (across @ (weight * used * phases)[..., None]).sum(axis=0)[:, 0]
            values, vectors = np.linalg.eigh(information)
            axes = vectors / np.sqrt(values)
            x = axes @ (axes.T @ vector)
        longest = np.linalg.norm(axes, axis=0).max()
        return x if longest < _DETERMINED * self.radius else None


def nearest_turn(angles: Floats) -> Floats:
    """Move angles to [-pi, pi]."""
    return np.asarray(angles - 2.0 * np.pi * np.rint(angles / (2.0 * np.pi)))


# -- a gradient of one sample


@dataclass(frozen=True)
class Inversion:
    """A sample computed from a gradient.

    Attributes
    ----------
    x : ndarray, shape (d,)
    y : float
    misfit : float
        Relative norm of the unexplained part: about 1e-14, in float32 1e-6, if the sample is right,
        else 0.1 and more.
    """

    x: Floats
    y: float
    misfit: float


def invert_gradient(
    gradient: Real,
    theta: Real,
    frequencies: Floats,
    *,
    probability: float | None,
    regularization: float,
    precision: Precision = "float64",
    radius: float = 1.0,
) -> Inversion | None:
    """Compute x and y of the one sample of a gradient (eq. 9).

    Parameters
    ----------
    gradient, theta : ndarray, shape (m, 2D)
        Gradients of m kernels, and their parameters.
    frequencies : ndarray, shape (m, D, d)
        As rounded by the client.
    probability : float or None
        The divisor p; None where each kernel has a private one.
    regularization : float
        lambda.
    precision : {"float32", "float64"} (default: "float64")
        Of the client.
    radius : float (default: 1.0)
        Bound on |x|.

    Returns
    -------
    Inversion or None
        None when the gradient does not determine x.
    """
    given = gradient.any(axis=1)
    if not given.any():
        return None
    kernels = _Kernels(
        gradient[given].astype(np.float64),
        theta[given].astype(np.float64),
        frequencies[given],
        regularization,
        probability,
        float(np.finfo(precision).eps),
    )
    start = kernels.start(radius)
    if start is None:
        return None
    return kernels.refine(start)


class _Kernels:
    """Gradients (m, 2D) of kernels, supposed to be of one sample, and scale = 1 / p where found."""

    def __init__(
        self,
        gradient: Floats,
        theta: Floats,
        frequencies: Floats,
        regularization: float,
        probability: float | None,
        rounding: float,
    ) -> None:
        self.regularization, self.rounding = regularization, rounding
        _, self.features, self.dimension = frequencies.shape
        if probability is None:
            scale = self._scales(gradient, theta)
        else:
            scale = np.full((len(gradient), 1), 1.0 / probability)
        known = np.isfinite(scale[:, 0])
        gradient, theta, self.scale = gradient[known], theta[known], scale[known]
        self.gradient, self.theta, self.frequencies = gradient, theta, frequencies[known]
        # h_i, the gradient without the penalty
        self.residual = gradient - 2.0 * regularization * self.scale * theta
        norms = np.linalg.norm(self.residual, axis=1)
        self._clarity = norms / np.linalg.norm(gradient, axis=1)

    def _scales(self, gradient: Floats, theta: Floats) -> Floats:
        """Find 1 / p_i: for b = 2 lambda / p_i, g_i - b theta_i is a multiple of z_i.

        Its sine^2 + cosine^2 is the same for all frequencies, which is linear in b and b^2.
        """

        def energy(a: Floats, b: Floats) -> Floats:
            product = (a * b).reshape(len(a), 2, -1).sum(axis=1)
            return np.asarray(product - product.mean(axis=1, keepdims=True))

        columns = np.stack([2.0 * energy(gradient, theta), -energy(theta, theta)], axis=2)
        b = (np.linalg.pinv(columns) @ energy(gradient, gradient)[..., None])[:, 0]
        error = self.rounding * np.linalg.norm(gradient, axis=1, keepdims=True)
        clear = 0.01 * b * np.linalg.norm(theta, axis=1, keepdims=True) > error
        return np.where(clear, b / (2.0 * self.regularization), np.nan)

    def start(self, radius: float) -> Floats | None:
        """Return x from the phases of the kernels."""
        seen = self._clarity > 1e3 * self.rounding  # f_i is not y
        if not seen.any():  # nor of kernels of which there are none
            return None
        size = np.linalg.norm(self.residual[seen], axis=1)
        directions = self.residual[seen] / size[:, None]
        # y but for the sign of the kernel
        labels = np.vecdot(self.theta[seen], directions) - size / (2.0 * self.scale[seen, 0])
        labels[~(np.abs(labels) > 1e4 * self.rounding)] = 0.0
        lengths = np.linalg.norm(self.frequencies[seen], axis=2)
        return Phases(
            angles=np.arctan2(directions[:, : self.features], directions[:, self.features :]),
            noise=2.0 * self.rounding * (1.0 / self._clarity[seen, None] + radius * lengths),
            labels=labels,
            frequencies=self.frequencies[seen],
            radius=radius,
        ).unwrap()

    def refine(self, x: Floats) -> Inversion:
        """Fit eq. 9 to the gradients, from a start within the last turn."""
        given = Release(
            total=self.gradient,
            theta=self.theta,
            frequencies=self.frequencies,
            bandwidths=np.ones(len(self.theta)),
            samples=1,
            regularization=self.regularization,
            scale=self.scale,
        )
        sums, root = Equations(given), np.sqrt(self.features)
        phase = self.frequencies @ x
        z = np.concatenate([np.sin(phase), np.cos(phase)], axis=1) / root
        labels = np.vecdot(self.theta, z) - np.vecdot(self.residual, z) / (2.0 * self.scale[:, 0])
        row = np.append(x, np.median(labels))[None]
        (found,), _ = _fit(sums, row, np.zeros(row.shape[1]), row[0])
        misfit = np.linalg.norm(sums.missing(found[None])) / np.linalg.norm(sums.target)
        return Inversion(found[:-1], float(found[-1]), float(misfit))


# -- a sum of gradients

#: Misfit below which rows explain the numbers: right ones reach 1e-8 in float32, wrong ones 1e-6.
TOLERANCE = 1e-7
#: Starts at most.
STARTS = 20
_UNWRAPPED = 0.3  # bandwidths from here on, in which phases do not wrap
_FINE = 0.1  # from here on features in float32 are those in float64
_PULLS = (1e-2, 1e-3, 1e-4, 1e-5, 0.0)  # towards the middle
_CLOSE, _STEPS = 1e-5, 60  # misfit from which on narrower kernels help; steps of a fit
_SPREAD, _LABELS = 0.5, 0.3  # of rows in the unit ball, of labels in [0, 1]


@dataclass(frozen=True)
class Release:
    """What the server knows of one sum: Eq. 9 summed over ``samples``.

    ``total`` and ``theta``, shape (N, 2D), are NaN where a number was not released, and the
    parameters. ``frequencies``, shape (N, D, d), are as rounded by the clients. ``scale`` is 1 / p,
    a number or of shape (N, 1), and ``middle`` a middling label.
    """

    total: Floats
    theta: Floats
    frequencies: Floats
    bandwidths: Floats
    samples: int
    regularization: float
    scale: Any = 1.0
    middle: float = 0.5


def invert_release(release: Release, seed: int, starts: int = STARTS) -> tuple[Floats, float]:
    """Compute all rows and labels of a sum.

    Returns
    -------
    rows : ndarray, shape (n, d + 1)
        The rows that explain most of at most ``starts``, labels last.
    misfit : float
        Root mean square of the unexplained numbers, per row.
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
    """The equations of the kernels with a bandwidth of at least ``least``, or of the widest one.

    Attributes
    ----------
    target : ndarray, shape (numbers,)
        The sum of the rows' terms.
    """

    def __init__(self, release: Release, least: float = 0.0) -> None:
        given = np.isfinite(release.total).any(axis=1)
        used = given & (release.bandwidths >= min(least, release.bandwidths[given].max()))
        self.frequencies, self.theta = release.frequencies[used], release.theta[used]
        self.given = np.nonzero(np.isfinite(release.total[used]))  # kernels, and numbers of theirs
        self.features, self.dimension = self.frequencies.shape[1:]
        self.samples = release.samples
        penalty = 2.0 * release.regularization * release.samples * self.theta
        self.target = (release.total[used] / release.scale - penalty)[self.given]

    def features_of(self, x: Floats) -> tuple[Floats, Floats]:
        """Compute z and its derivative by the phases, each of shape (n, N, 2D)."""
        phase = (x @ self.frequencies.reshape(-1, self.dimension).T).reshape(
            len(x), -1, self.features
        )
        root = np.sqrt(self.features)
        sine, cosine = np.sin(phase) / root, np.cos(phase) / root
        return np.concatenate([sine, cosine], axis=2), np.concatenate([cosine, -sine], axis=2)

    def terms(self, rows: Floats) -> Floats:
        """Compute what each row adds to the released numbers, shape (n, numbers)."""
        z, _ = self.features_of(rows[:, :-1])
        kernel, number = self.given
        error = 2.0 * (np.vecdot(z, self.theta) - rows[:, -1:])
        return np.asarray(error[:, kernel] * z[:, kernel, number])

    def missing(self, rows: Floats) -> Floats:
        """Compute the model less the released numbers."""
        return np.asarray(self.terms(rows).sum(axis=0) - self.target)

    def slopes(self, rows: Floats) -> Floats:
        """Compute derivatives by rows and labels, shape (numbers, n (d + 1))."""
        z, turned = self.features_of(rows[:, :-1])
        error = np.vecdot(z, self.theta) - rows[:, -1:]
        both = np.concatenate([self.frequencies] * 2, axis=1)  # (N, 2D, d)
        change = np.einsum("snj,njd->snd", turned * self.theta, both, optimize=True)  # of f
        kernel, number = self.given
        z, turned = z[:, kernel, number].T, turned[:, kernel, number].T
        slopes = np.empty((*z.shape, self.dimension + 1))
        slopes[..., :-1] = (error[:, kernel].T * turned)[..., None] * both[kernel, number][:, None]
        slopes[..., :-1] += z[..., None] * change.transpose(1, 0, 2)[kernel]
        slopes[..., -1] = -z
        return np.asarray(2.0 * slopes.reshape(len(z), -1))


def _fit(sums: Equations, rows: Floats, pull: Floats, middle: Floats) -> tuple[Floats, float]:
    """Fit rows, shape (n, d + 1), with a pull towards the middle; return them and their misfit."""
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
