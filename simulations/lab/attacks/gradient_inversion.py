"""Inversion of POF-MKL's gradients: what a server learns from plain updates.

A client that takes one sample (x, y) per round sends, for each kernel i that it chose,

    g_i = (2 (f_i - y) z_i(x) + 2 lambda theta_i) / p_i,    f_i = theta_i^T z_i(x)        (eq. 9)

with z_i(x) = [sin(rho_i^T x), cos(rho_i^T x)] / sqrt(D). The server knows theta, lambda, the
frequencies rho (their seed is public) and, with exploration 1, the probability p. So

1. h_i = g_i - 2 lambda theta_i / p is a multiple of z_i, and because |z_i| = 1 it is z_i up to its
   sign: |h_i| = 2 |f_i - y| / p;
2. with u_i = h_i / |h_i| and that sign s_i, y = s_i (theta_i^T u_i - p |h_i| / 2), the same
   number for every kernel;
3. sines and cosines give the phases rho^T x modulo 2 pi, up to the sign of their kernel. Rows lie
   in the unit ball, so the phases of wide kernels cannot wrap, and what they tell about x unwraps
   those of narrower ones; where all kernels are narrow, lattice reduction finds the turns
   (:mod:`.phases`);
4. Gauss-Newton on eq. 9 itself, with all kernels, gives x and y to the last digits.

The server can tell that it is right: 2 m D numbers are explained by d + 1.

Source: follows from eq. 9 of Ghari and Shen, "Personalized Online Federated Learning with Multiple
Kernels", NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.kernels.random_features import Precision, Real
from fedkern_flwr.online.learning import Selection

from .phases import Phases

Floats = NDArray[np.float64]

#: Misfit below which a solution explains the gradient: right ones reach about 1e-14 and 1e-6, wrong
#: ones 0.1 and more.
TOLERANCE = {"float64": 1e-8, "float32": 2e-5}
_STEPS = 12  # of Gauss-Newton, at most


@dataclass(frozen=True)
class Inversion:
    """A sample computed from a gradient.

    Attributes
    ----------
    x : ndarray, shape (d,)
    y : float
        NaN where nothing fixes it.
    misfit : float
        Norm of what the sample leaves unexplained of the gradient, relative to the gradient.
    consistent : bool
        Whether that is rounding and x lies in the ball, so that the server knows the sample to be
        right. If not, it is a guess.
    """

    x: Floats
    y: float
    misfit: float
    consistent: bool = False


def invert_gradient(
    gradient: Real,
    theta: Real,
    frequencies: Floats,
    *,
    probability: float | None,
    regularization: float,
    selection: Selection = "subset",
    precision: Precision = "float64",
    radius: float = 1.0,
) -> Inversion | None:
    """Compute x and y of the one sample from which a gradient was made (eq. 9).

    Parameters
    ----------
    gradient, theta : ndarray, shape (m, 2D)
        Gradients of m kernels, and the parameters at which they were taken.
    frequencies : ndarray, shape (m, D, d)
        Frequencies of these kernels, as rounded by the client.
    probability : float or None
        The p by which the gradients were divided; None to find it as well.
    regularization : float
        lambda. Without it, and with unknown probabilities that differ, y cannot be found.
    selection : {"bins", "subset"} (default: "subset")
        Whether an unknown probability is the same for all kernels, or each has its own.
    precision : {"float32", "float64"} (default: "float64")
        Arithmetic of the client.
    radius : float (default: 1.0)
        Bound on |x|.

    Returns
    -------
    Inversion or None
        None when the gradient does not fix x: all zero, or too few frequencies. When no sample
        explains the gradient, the last guess, with x moved into the ball.
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
        selection,
        float(np.finfo(precision).eps),
    )
    best: Inversion | None = None
    for start in kernels.starts(radius):
        found = kernels.refine(start)
        length = float(np.linalg.norm(found.x))
        if found.misfit < TOLERANCE[precision] and length <= 1.01 * radius:
            return replace(found, consistent=True)
        found = replace(found, x=found.x / max(1.0, length / radius))
        if best is None or found.misfit < best.misfit:
            best = found
    return best


class _Kernels:
    """The gradients of some kernels, supposed to be of one sample.

    Attributes
    ----------
    gradient, theta : ndarray, shape (m, 2D)
    frequencies : ndarray, shape (m, D, d)
    scale : ndarray, shape (m,)
        1 / p_i; NaN where it is unknown.
    free : {"none", "one", "each"}
        Which scales to find.
    residual : ndarray, shape (m, 2D)
        h_i, the gradient without the penalty.
    """

    def __init__(
        self,
        gradient: Floats,
        theta: Floats,
        frequencies: Floats,
        regularization: float,
        probability: float | None,
        selection: Selection,
        rounding: float,
    ) -> None:
        self.gradient, self.theta, self.frequencies = gradient, theta, frequencies
        self.regularization, self.rounding = regularization, rounding
        _, self.features, self.dimension = frequencies.shape
        if probability is not None:
            self.free = "none"
            self.scale = np.full(len(gradient), 1.0 / probability)
        else:
            self.free = "one" if selection == "bins" else "each"
            self.scale = self._scales()
            if self.free == "one" and np.isfinite(self.scale).any():
                self.scale[:] = np.nanmedian(self.scale)
        penalty = 2.0 * regularization * np.nan_to_num(self.scale)
        self.residual = gradient - penalty[:, None] * theta
        norms = np.linalg.norm(self.residual, axis=1)
        self._clarity = norms / np.linalg.norm(gradient, axis=1)

    def starts(self, radius: float) -> Iterator[Floats]:
        """Yield candidates for x from the phases of the kernels."""
        seen = self._clarity > 1e3 * self.rounding  # f_i is not y
        if not seen.any():
            return
        size = np.linalg.norm(self.residual[seen], axis=1)
        directions = self.residual[seen] / size[:, None]
        # y but for the sign of the kernel
        labels = np.vecdot(self.theta[seen], directions) - size / (2.0 * self.scale[seen])
        labels[~(np.abs(labels) > 1e4 * self.rounding)] = 0.0  # also NaN
        lengths = np.linalg.norm(self.frequencies[seen], axis=2)
        phases = Phases(
            angles=np.arctan2(directions[:, : self.features], directions[:, self.features :]),
            noise=2.0 * self.rounding * (1.0 / self._clarity[seen, None] + radius * lengths),
            labels=labels,
            frequencies=self.frequencies[seen],
            radius=radius,
        )
        x = phases.unwrap()
        if x is not None:
            yield x
        elif self._one_sample()[seen].all():
            yield from phases.search()

    # -- sine^2 + cosine^2 = 1

    def _energy(self, a: Floats, b: Floats) -> Floats:
        """Return a_sin b_sin + a_cos b_cos per frequency, less its mean, (m, D)."""
        product = a * b
        energy = product[:, : self.features] + product[:, self.features :]
        return np.asarray(energy - energy.mean(axis=1, keepdims=True))

    def _one_sample(self) -> NDArray[np.bool_]:
        """Return for which kernels one sample can make the gradient: the energy is constant."""
        deviation = self._energy(self.residual, self.residual).std(axis=1)
        mean = np.vecdot(self.residual, self.residual) / self.features
        return np.asarray(deviation * self._clarity <= max(1e-7, 100.0 * self.rounding) * mean)

    def _scales(self) -> Floats:
        """Find 1 / p_i: the energy of g_i - b theta_i is constant for b = 2 lambda / p_i.

        It is linear in b and b^2.
        """
        g, theta = self.gradient, self.theta
        columns = np.stack([2.0 * self._energy(g, theta), -self._energy(theta, theta)], axis=2)
        b = (np.linalg.pinv(columns) @ self._energy(g, g)[..., None])[:, 0, 0]
        error = self.rounding * np.linalg.norm(g, axis=1)
        clear = 0.01 * b * np.linalg.norm(theta, axis=1) > error
        unit = 2.0 * self.regularization or np.nan
        return np.where(clear, b / unit, np.nan)

    # -- Gauss-Newton

    def refine(self, x: Floats) -> Inversion:
        """Fit eq. 9 to the gradients, from a start within the last turn of every phase."""
        known, y, scale = self._label(x)
        size = np.linalg.norm(self.gradient)
        best = Inversion(x, np.nan, np.inf)
        for _ in range(_STEPS):
            model, slopes = self._model(x, y, scale)
            missing = self.gradient - model
            misfit = float(np.linalg.norm(missing) / size)
            if not misfit < best.misfit:
                break
            best = Inversion(x, y if known else np.nan, misfit)
            step = _least_squares(slopes, missing)
            x, y = x + step[: self.dimension], y + float(step[self.dimension])
            if self.free != "none":
                scale = scale * np.exp(np.clip(step[self.dimension + 1 :], -1.0, 1.0))
        return best

    def _label(self, x: Floats) -> tuple[bool, float, Floats]:
        """Return y and all 1 / p_i at x, from h_i = 2 (f_i - y) z_i / p_i, and if y is known."""
        z, _ = self._features(x)
        predicted = np.vecdot(self.theta, z)
        signed = np.vecdot(self.residual, z)  # 2 (f_i - y) / p_i
        if self.free == "one" and np.ptp(predicted) > 1e4 * self.rounding:
            slope, shift = np.polyfit(predicted, signed, 1)
            if slope > 0.0:
                return True, float(-shift / slope), np.full(len(z), slope / 2.0)
        clear = np.isfinite(self.scale)
        labels = predicted[clear] - signed[clear] / (2.0 * self.scale[clear])
        y = float(np.median(labels) if labels.size else predicted.max() + 1.0)  # any y would do
        error = predicted - y
        error[error == 0.0] = self.rounding
        return bool(labels.size), y, np.where(clear, self.scale, signed / (2.0 * error))

    def _features(self, x: Floats) -> tuple[Floats, Floats]:
        """Return z(x), shape (m, 2D), and its derivative, shape (m, 2D, d)."""
        phase = self.frequencies @ x
        sine, cosine = np.sin(phase), np.cos(phase)
        z = np.concatenate([sine, cosine], axis=1)
        turned = np.concatenate([cosine, -sine], axis=1)
        slope = turned[..., None] * np.concatenate([self.frequencies] * 2, axis=1)
        root = np.sqrt(self.features)
        return z / root, slope / root

    def _model(self, x: Floats, y: float, scale: Floats) -> tuple[Floats, Floats]:
        """Return eq. 9, shape (m, 2D), and its derivatives, shape (m, 2D, d + 1 + free scales)."""
        z, dz = self._features(x)
        error = np.vecdot(self.theta, z) - y
        factor = 2.0 * scale[:, None]
        model = factor * (error[:, None] * z + self.regularization * self.theta)
        dx = z[..., None] * (self.theta[:, None] @ dz) + error[:, None, None] * dz
        columns = [factor[..., None] * dx, (-factor * z)[..., None]]
        if self.free == "one":  # by the logarithm of the scale
            columns.append(model[..., None])
        elif self.free == "each":
            columns.append(model[..., None] * np.eye(len(z))[:, None])
        return model, np.concatenate(columns, axis=2)


def _least_squares(slopes: Floats, target: Floats) -> Floats:
    """Solve by the normal equations of scaled columns; exact enough for a step of Gauss-Newton.

    Slopes (m, 2D, k) and target (m, 2D) are summed kernel by kernel: one large product would wake
    the threads of BLAS for nothing.
    """
    lengths = np.sqrt((slopes**2).sum(axis=(0, 1)))
    lengths[lengths == 0.0] = 1.0
    scaled = slopes / lengths
    across = scaled.transpose(0, 2, 1)
    matrix = (across @ scaled).sum(axis=0)
    vector = (across @ target[..., None]).sum(axis=0)[:, 0]
    return np.asarray(np.linalg.lstsq(matrix, vector, rcond=1e-13)[0] / lengths)
