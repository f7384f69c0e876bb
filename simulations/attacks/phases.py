"""Phases known modulo 2 pi -> the vector that they are phases of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SIGN_MARGIN, _TURN_MARGIN = 1.5, 3.0  # a little less than pi / 2 and pi
_DETERMINED = 1e-2  # largest uncertainty of x, relative to the radius, that counts as found
_LEAST_NOISE = 1e-5  # so that the information about x stays well conditioned


class Phases(NamedTuple):
    """Phases rho^T x of some kernels, each known up to turns and up to the sign of its kernel.

    Attributes
    ----------
    angles, noise : ndarray, shape (m, D)
        The phases, wrong by pi in kernels of negative sign, and the size of their errors.
    labels : ndarray, shape (m,)
        A number that is the same for all kernels, times the sign of the kernel; 0 where unknown.
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

        What is known so far confines x to an ellipsoid, at first the ball, and so each phase to an
        interval. If that is shorter than half a turn it tells the sign of the kernel, if shorter
        than a turn the phase itself, which makes the ellipsoid smaller.

        Returns
        -------
        ndarray, shape (d,), or None
            None when the kernels are too narrow for this.
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
