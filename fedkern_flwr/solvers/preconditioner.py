"""Randomised Nystrom preconditioner of K^T K + lambda I, from one product with probe vectors.

With orthonormal probes Omega, (m, s), and the sketch Y = K^T K Omega, the Nystrom approximation
Y (Omega^T Y)^-1 Y^T = U diag(l) U^T has the large eigenvalues of K^T K. The preconditioner
divides by them on the span of U and leaves the rest alone, so that with s a little above the
effective dimension of K^T K a few iterations remain. In the federated method the sketch is one
secure sum over the hospitals and all else is local.

References
----------
Frangella, Tropp and Udell, "Randomized Nystrom Preconditioning", SIAM Journal on Matrix Analysis
and Applications 44(2), 2023: Algorithm 2.1, equations 1.3 and 5.3.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from ..errors import OptionError, ProtocolError
from ..seeding import derive_seed

__all__ = ["NystromPreconditioner", "probe_vectors"]

Floats = NDArray[np.float64]


def probe_vectors(m: int, rank: int, seed: int) -> Floats:
    """Return orthonormal probe vectors with a uniformly random span.

    Parameters
    ----------
    m : int
        Number of unknowns.
    rank : int
        Number of probe vectors; more than m are of no use.
    seed : int
        Seed of the Gaussian draw. Everybody with the seed gets the same vectors, up to rounding.

    Returns
    -------
    ndarray of float64, shape (m, min(m, rank))

    Raises
    ------
    OptionError
        If m or rank is less than 1.
    """
    if m < 1 or rank < 1:
        raise OptionError(
            f"{rank} probe vectors of length {m}",
            remedy="use at least 1 of each",
            code="FK-OPTION-RANGE",
        )
    rng = np.random.default_rng(derive_seed(seed, "probes"))
    q, r = np.linalg.qr(rng.standard_normal((m, min(m, rank))))
    signs = np.where(np.diagonal(r) < 0.0, -1.0, 1.0)  # libraries differ in the signs they choose
    return np.asarray(q * signs)


class NystromPreconditioner:
    """The map R -> P^-1 R, symmetric and positive definite for every sketch.

    P = U (diag(l) + lambda I) U^T / (l_s + lambda) + (I - U U^T), l_1 >= ... >= l_s >= 0.

    Parameters
    ----------
    sketch : ndarray, shape (m, s)
        K^T K @ probes. It may be rounded; how much is seen from the asymmetry of
        probes^T @ sketch, and eigenvalues below that are taken for zero.
    probes : ndarray, shape (m, s)
        From :func:`probe_vectors`.
    regularization : float
        lambda > 0 of the system to solve.

    Attributes
    ----------
    eigenvalues : ndarray, shape (s,)
        l, estimates (from below) of the largest eigenvalues of K^T K, descending. Fewer where
        the sketch is only noise beyond them.
    basis : ndarray, shape (m, s)
        U, orthonormal columns.

    Raises
    ------
    OptionError
        If the regularization is not positive.
    ProtocolError
        If the sketch has another shape than the probes, or NaN or infinite entries.
    """

    def __init__(self, sketch: Floats, probes: Floats, regularization: float) -> None:
        if not regularization > 0.0:
            raise OptionError(
                f"regularization is {regularization}",
                remedy="use a positive number",
                code="FK-OPTION-RANGE",
            )
        if sketch.shape != probes.shape:
            raise ProtocolError(
                f"the sketch has shape {sketch.shape} instead of {probes.shape}",
                code="FK-MESSAGE-SHAPE",
            )
        if not np.isfinite(sketch).all():
            raise ProtocolError("the sketch has NaN or infinite entries", code="FK-MESSAGE-FINITE")
        self.eigenvalues, self.basis = _nystrom(sketch, probes)
        smallest = self.eigenvalues[-1:].sum()  # 0 if there are none
        self._gains = (smallest + regularization) / (self.eigenvalues + regularization)

    def __call__(self, residuals: Floats) -> Floats:
        """Return P^-1 R, shape (m, k), for residuals R, shape (m, k)."""
        projected = self.basis.T @ residuals
        scaled = self._gains[:, None] * projected
        return np.asarray(self.basis @ scaled + (residuals - self.basis @ projected))


def _nystrom(sketch: Floats, probes: Floats) -> tuple[Floats, Floats]:
    """Return the eigenvalues, (s,), and eigenvectors, (m, s), of the approximation.

    Algorithm 2.1, with two guards against rounding of the sketch: the shift is at least the
    asymmetry of the core, and a core that is not positive definite even so is cut.
    """
    core = probes.T @ sketch
    asymmetry = float(np.linalg.norm(core - core.T))
    epsilon = float(np.finfo(np.float64).eps)
    shift = max(np.sqrt(len(sketch)) * epsilon * float(np.linalg.norm(sketch)), asymmetry)
    shifted = sketch + shift * probes
    core = probes.T @ shifted
    core = (core + core.T) / 2.0
    try:
        lower = scipy.linalg.cholesky(core, lower=True)
        root = scipy.linalg.solve_triangular(lower, shifted.T, lower=True).T
    except scipy.linalg.LinAlgError:
        weights, vectors = np.linalg.eigh(core)
        keep = weights > shift + max(-weights[0], 0.0)
        root = (shifted @ vectors[:, keep]) / np.sqrt(weights[keep])
    basis, singular, _ = np.linalg.svd(root, full_matrices=False)
    return np.maximum(singular**2 - shift, 0.0), basis
