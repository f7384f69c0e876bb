"""Inversion of POF-MKL's gradients: what a server learns from plain updates.

A client that takes one sample (x, y) per round sends, for each kernel i that it chose,

    g_i = (2 (f_i - y) z_i(x) + 2 lambda theta_i) / p_i,    f_i = theta_i^T z_i(x)        (eq. 9)

with z_i(x) = [sin(rho_i^T x), cos(rho_i^T x)] / sqrt(D). The server knows theta, lambda, the
frequencies rho (their seed is public) and, with exploration 1, the probability p. With less it is
private, and found in the gradient itself, since the penalty is divided by it as well. So:

1. h_i = g_i - 2 lambda theta_i / p is a multiple of z_i, and because |z_i| = 1 it is z_i up to its
   sign: |h_i| = 2 |f_i - y| / p;
2. with u_i = h_i / |h_i| and that sign s_i, y = s_i (theta_i^T u_i - p |h_i| / 2), the same
   number for every kernel;
3. sines and cosines give the phases rho^T x modulo 2 pi, up to the sign of their kernel. Rows lie
   in the unit ball, so the phases of wide kernels cannot wrap, and what they tell about x unwraps
   those of narrower ones (:mod:`.phases`);
4. Gauss-Newton on eq. 9 itself, with all kernels, gives x and y to the last digits.

The server can tell that it is right: 2 m D numbers are explained by d + 1.

Source: follows from eq. 9 of Ghari and Shen, "Personalized Online Federated Learning with Multiple
Kernels", NeurIPS 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedkern_flwr.kernels.random_features import Precision, Real

from .phases import Floats, Phases

_STEPS = 12  # of Gauss-Newton, at most


@dataclass(frozen=True)
class Inversion:
    """A sample computed from a gradient.

    Attributes
    ----------
    x : ndarray, shape (d,)
    y : float
    misfit : float
        Norm of what the sample leaves unexplained of the gradient, relative to the gradient: about
        1e-14, in float32 1e-6, where the server knows the sample to be right, else 0.1 and more.
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
    """Compute x and y of the one sample from which a gradient was made (eq. 9).

    Parameters
    ----------
    gradient, theta : ndarray, shape (m, 2D)
        Gradients of m kernels, and the parameters at which they were taken.
    frequencies : ndarray, shape (m, D, d)
        Frequencies of these kernels, as rounded by the client.
    probability : float or None
        The p by which the gradients were divided; None where each kernel has a private one.
    regularization : float
        lambda.
    precision : {"float32", "float64"} (default: "float64")
        Arithmetic of the client.
    radius : float (default: 1.0)
        Bound on |x|.

    Returns
    -------
    Inversion or None
        None when the gradient does not fix x: all zero, or too few frequencies. When no sample
        explains the gradient, the last guess.
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
    """The gradients (m, 2D) of some kernels, supposed to be of one sample, and scale = 1 / p.

    Kernels whose p is not known, and cannot be found, are left out.
    """

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
        """Return x as the phases of the kernels have it."""
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
        """Fit eq. 9 to the gradients by Gauss-Newton, from a start within the last turn."""
        z, _ = self._features(x)
        labels = np.vecdot(self.theta, z) - np.vecdot(self.residual, z) / (2.0 * self.scale[:, 0])
        y, size = float(np.median(labels)), np.linalg.norm(self.gradient)
        best = Inversion(x, np.nan, np.inf)
        for _ in range(_STEPS):
            model, slopes = self._model(x, y)
            missing = self.gradient - model
            misfit = float(np.linalg.norm(missing) / size)
            if not misfit < best.misfit:
                break
            best = Inversion(x, y, misfit)
            flat = slopes.reshape(-1, self.dimension + 1)
            step = np.linalg.lstsq(flat, missing.ravel(), rcond=1e-13)[0]
            x, y = x + step[:-1], y + float(step[-1])
        return best

    def _features(self, x: Floats) -> tuple[Floats, Floats]:
        """Return z(x), shape (m, 2D), and its derivative, shape (m, 2D, d)."""
        phase = self.frequencies @ x
        sine, cosine = np.sin(phase), np.cos(phase)
        z = np.concatenate([sine, cosine], axis=1)
        turned = np.concatenate([cosine, -sine], axis=1)
        slope = turned[..., None] * np.concatenate([self.frequencies] * 2, axis=1)
        root = np.sqrt(self.features)
        return z / root, slope / root

    def _model(self, x: Floats, y: float) -> tuple[Floats, Floats]:
        """Return eq. 9, shape (m, 2D), and its derivatives, shape (m, 2D, d + 1)."""
        z, dz = self._features(x)
        error = np.vecdot(self.theta, z) - y
        factor = 2.0 * self.scale
        model = factor * (error[:, None] * z + self.regularization * self.theta)
        dx = z[..., None] * (self.theta[:, None] @ dz) + error[:, None, None] * dz
        return model, factor[..., None] * np.concatenate([dx, -z[..., None]], axis=2)
