"""Phases known modulo 2 pi -> the vector that they are phases of."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SIGN_MARGIN, _TURN_MARGIN = 1.5, 3.0  # a little less than pi / 2 and pi
_DETERMINED = 1e-2  # largest uncertainty of x, relative to the radius, that counts as found
_LEAST_NOISE = 1e-5  # so that the information about x stays well conditioned
_SPARE = 8  # frequencies more than unknowns in a lattice, if there are so many
_LARGEST_WEIGHT = 1e9
_LOVASZ = 0.99


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

    def search(self) -> list[Floats]:
        """Find x from narrow kernels: the closest vector of a lattice, for both signs of the label.

        With more frequencies than unknowns few whole numbers k make all rho^T x = angle + 2 pi k
        possible for one x in the ball; lattice reduction finds them.

        Returns
        -------
        list of ndarray, shape (d,)
            Candidates, none when there are too few frequencies.

        References
        ----------
        Lenstra, Lenstra and Lovasz, "Factoring Polynomials with Rational Coefficients",
        Mathematische Annalen 261, 1982; Babai, "On Lovasz' Lattice Reduction and the Nearest
        Lattice Point Problem", Combinatorica 6, 1986.
        """
        _, features, dimension = self.frequencies.shape
        wanted = dimension + _SPARE
        widest = np.argsort(np.linalg.norm(self.frequencies, axis=2).mean(axis=1), kind="stable")
        if self.labels[widest[0]] != 0.0:  # signs relative to the first are known where labels are
            widest = widest[self.labels[widest] != 0.0][: -(-wanted // features)]
        else:
            widest = widest[:1]
        rho = self.frequencies[widest].reshape(-1, dimension)[:wanted]
        if len(rho) <= dimension:
            return []
        digits = np.floor(-np.log10(self.noise[widest].max()))  # whole: lattices are used again
        weight = min(float(10.0**digits), _LARGEST_WEIGHT)
        basis, embedding = _reduced_lattice(rho.tobytes(), dimension, weight, self.radius)
        candidates: list[Floats] = []
        for sign in (1.0, -1.0):
            turned = np.pi * (np.sign(self.labels[widest]) * sign < 0.0)
            if not self.labels[widest[0]]:
                turned = np.full(1, np.pi * (sign < 0.0))
            angles = (self.angles[widest] + turned[:, None]).reshape(-1)[:wanted]
            rest = _closest(basis, embedding @ nearest_turn(angles))
            expected = rho @ rest[-dimension:] * self.radius
            phases = expected + nearest_turn(angles - expected)  # without the basis' rounding
            candidates.append(np.asarray(np.linalg.lstsq(rho, phases, rcond=None)[0], np.float64))
        return candidates


def nearest_turn(angles: Floats) -> Floats:
    """Move angles to [-pi, pi]."""
    return np.asarray(angles - 2.0 * np.pi * np.rint(angles / (2.0 * np.pi)))


@lru_cache(maxsize=256)
def _reduced_lattice(
    frequencies: bytes, dimension: int, weight: float, radius: float
) -> tuple[Floats, Floats]:
    """Return a reduced basis of the lattice of turns, and the map of phases into its space.

    Phases are mapped to (weight * what no x explains, x / radius): n + d numbers, small for the
    right turns. The rows of the basis are the images of the n turns.
    """
    rho = np.frombuffer(frequencies).reshape(-1, dimension)
    q, _ = np.linalg.qr(rho)
    unexplained = np.eye(len(rho)) - q @ q.T
    embedding = np.concatenate([weight * unexplained, np.linalg.pinv(rho) / radius])
    basis = 2.0 * np.pi * embedding.T
    for _ in range(2):  # the second time with a fresh factorisation
        basis = _reduce(basis)
    return basis, embedding


def _reduce(basis: Floats) -> Floats:
    """Reduce a lattice basis (rows) by the algorithm of Lenstra, Lenstra and Lovasz."""
    basis = basis.copy()
    r = np.asarray(np.linalg.qr(basis.T, mode="r"))
    k = 1
    while k < len(basis):
        for j in range(k - 1, -1, -1):
            times = np.rint(r[j, k] / r[j, j])
            if times:
                basis[k] -= times * basis[j]
                r[:, k] -= times * r[:, j]
        if r[k, k] ** 2 + r[k - 1, k] ** 2 >= _LOVASZ * r[k - 1, k - 1] ** 2:
            k += 1
            continue
        basis[[k - 1, k]] = basis[[k, k - 1]]
        r[:, [k - 1, k]] = r[:, [k, k - 1]]
        a, b = r[k - 1, k - 1], r[k, k - 1]
        r[k - 1 : k + 1] = np.array([[a, b], [-b, a]]) @ r[k - 1 : k + 1] / np.hypot(a, b)
        k = max(k - 1, 1)
    return basis


def _closest(basis: Floats, target: Floats) -> Floats:
    """Return ``target`` less a close lattice vector (Babai's nearest plane)."""
    q, r = np.linalg.qr(basis.T)
    rest = q.T @ target
    turns = np.zeros(len(basis))
    for j in range(len(basis) - 1, -1, -1):
        turns[j] = np.rint((rest[j] - r[j, j + 1 :] @ turns[j + 1 :]) / r[j, j])
    return np.asarray(target - basis.T @ turns)
