"""Conjugate gradients for several right-hand sides that share their products with the matrix.

The matrix is known only through its products: in the federated method each is a secure sum over the
hospitals, one exchange. :class:`ConjugateGradient` names the product it needs next. The
preconditioner takes one more product, with probe vectors: :class:`NystromPreconditioner`.

Solve A X = B, A symmetric positive definite (m, m), B (m, k). The numbers are the lines of the
paper's Algorithm 1, where A = K^T K + lambda I, B = K^T y and k = 1; without preconditioner
z = r::

    r = b - A x                  54, 56    (x random in the paper, zero here unless given)
    z = P^-1 r;  p = z           55
    repeat                       59
        q = A p                  60-63     one product for all columns
        a = (r.z) / (p.q)        64, 67
        x = x + a p              68
        r = r - a q              70
        stop if |r| <= tol |b|   71-75     (sum(r^2) < tol in the paper)
        z = P^-1 r
        beta = (r.z) / (r.z)_old 77
        p = z + beta p           78

Each column has its own a and beta and stops by itself, as if it were the only one.

References
----------
Damiani, Rodina and Decherchi 2024 (FedCG), Algorithm 1. Hestenes and Stiefel, "Methods of Conjugate
Gradients for Solving Linear Systems", 1952. Saad, "Iterative Methods for Sparse Linear Systems",
2003, algorithm 9.1. Frangella, Tropp and Udell, "Randomized Nystrom Preconditioning", SIAM Journal
on Matrix Analysis and Applications 44(2), 2023: Algorithm 2.1, equations 1.3 and 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from ..errors import CheckpointError, OptionError, ProtocolError
from ..seeding import derive_seed

Floats = NDArray[np.float64]


@dataclass(eq=False)
class CGState:
    """State of a run with k right-hand sides of m unknowns.

    Attributes
    ----------
    x, r, p : ndarray, shapes (m, k)
        Solution, its residual b - A x by the recursion, next direction.
    rz : ndarray, shape (k,)
        r . P^-1 r.
    ended : ndarray of bool, shape (k,)
        Columns that met a direction in which the matrix is not positive.
    squared : ndarray, shape (iteration + 1, k)
        sum(r^2) at the start and after each iteration.
    """

    x: Floats
    r: Floats
    p: Floats
    rz: Floats
    ended: NDArray[np.bool_]
    squared: Floats

    @property
    def iteration(self) -> int:
        return len(self.squared) - 1

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return copies as named arrays, for a checkpoint."""
        return {name: value.copy() for name, value in vars(self).items()}

    @classmethod
    def begin(cls, x: Floats, r: Floats, z: Floats) -> CGState:
        """Return the state before the first iteration, from a start, its residual and P^-1 r."""
        squared, rz = _finite(_dots(r, r), r.shape[1:], "the residual of the start"), _dots(r, z)
        p = np.array(z, order="C")
        return cls(x, r, p, rz, (rz <= 0.0) & (squared > 0.0), squared[None, :])

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> CGState:
        """Read what :meth:`arrays` returned; CheckpointError if it is not one state."""
        try:
            x, r, p, rz, squared = (
                np.array(arrays[name], dtype=np.float64, order="C")
                for name in ("x", "r", "p", "rz", "squared")
            )
            ended = np.array(arrays["ended"], dtype=np.bool_)
        except (KeyError, TypeError, ValueError):
            raise _damaged() from None
        columns = x.shape[1:]
        if not (
            x.ndim == squared.ndim == 2
            and x.shape == r.shape == p.shape
            and rz.shape == ended.shape == squared.shape[1:] == columns
            and len(squared) > 0
            and all(np.isfinite(values).all() for values in (x, r, p, rz, squared))
        ):
            raise _damaged()
        return cls(x, r, p, rz, ended, squared)


class ConjugateGradient:
    """Conjugate gradients driven by the caller: :meth:`take` gets A @ ``direction``.

    Parameters
    ----------
    b : ndarray, shape (m, k)
        The right-hand sides. The solution of a zero column is zero.
    start : (ndarray, ndarray), shapes (m, k), optional
        Start x and A @ x; default zero.
    precondition : callable, (m, j) -> (m, j), optional
        R -> P^-1 R, P symmetric positive definite; gets a copy of the active columns.
    tolerance : float (default: 1e-8)
        A column stops at |r| <= tolerance * |b|.
    saved : mapping, optional
        :meth:`CGState.arrays` to resume from, with the same b and matrix: the iterates are the same
        to the last bit.

    Attributes
    ----------
    state : CGState
        Changed in place. A column with p^T A p <= 0 (A is not positive definite, or noise
        dominates) stays where it was before that step.

    Raises
    ------
    OptionError
        The tolerance is negative, or shapes do not fit.
    ProtocolError
        Numbers are not finite.
    CheckpointError
        The saved state belongs to another problem.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.array([[4.0, 1.0], [1.0, 3.0]])
    >>> solver = ConjugateGradient(np.array([[1.0], [2.0]]))
    >>> while solver.active.any():
    ...     solver.take(a @ solver.direction)
    >>> solver.state.x.round(4).ravel().tolist(), solver.state.iteration
    ([0.0909, 0.6364], 2)
    """

    def __init__(
        self,
        b: Floats,
        *,
        start: tuple[Floats, Floats] | None = None,
        precondition: Callable[[Floats], Floats] = np.asarray,
        tolerance: float = 1e-8,
        saved: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        if not tolerance >= 0.0:
            problem, remedy = f"tolerance is {tolerance}", "use a number that is not negative"
            raise OptionError(problem, remedy=remedy, code="FK-OPTION-RANGE")
        if b.ndim != 2 or (start is not None and start[0].shape != b.shape):
            problem = f"b has {b.ndim} dimensions, or the start another shape than b"
            remedy = "give matrices of columns"
            raise OptionError(problem, remedy=remedy, code="FK-SHAPE-DIFFERS")
        b = _finite(b, b.shape, "the right-hand side")
        self._lengths, self._tolerance = np.sqrt(_dots(b, b)), tolerance
        self._precondition = precondition
        if saved:
            self.state = CGState.from_arrays(saved)
            if self.state.x.shape != b.shape:
                raise CheckpointError(
                    f"the state is of a problem of shape {self.state.x.shape}, not {b.shape}",
                    code="FK-CHECKPOINT-OTHER",
                )
            return
        x, r, nonzero = np.zeros(b.shape), b.copy(), b.any(axis=0)
        if start is not None:
            x[:, nonzero] = _finite(start[0], b.shape, "the start")[:, nonzero]
            r[:, nonzero] -= _finite(start[1], b.shape, "the product with the start")[:, nonzero]
        self.state = CGState.begin(x, r, _finite(precondition(r.copy()), b.shape, "P^-1 r"))

    @property
    def active(self) -> NDArray[np.bool_]:
        """Columns that have not stopped, shape (k,)."""
        return ~self.reached & ~self.state.ended

    @property
    def direction(self) -> Floats:
        """P of the next product, (m, j), for the active columns; a copy.

        Columns have any length: scale them before products that round to fixed digits.
        """
        return np.array(self.state.p[:, self.active], order="C")

    @property
    def residuals(self) -> Floats:
        """Return |r| / |b| of each column, (k,), 0 where b is 0."""
        lengths = np.where(self._lengths > 0.0, self._lengths, 1.0)
        return np.asarray(np.sqrt(self.state.squared[-1]) / lengths)

    @property
    def reached(self) -> NDArray[np.bool_]:
        """Columns that have reached the tolerance, shape (k,)."""
        return np.asarray(np.sqrt(self.state.squared[-1]) <= self._tolerance * self._lengths)

    def take(self, product: Floats) -> None:
        """Do one iteration of the active columns with A @ ``direction``.

        Raises
        ------
        ProtocolError
            The product has another shape, or numbers are not finite.
        """
        state, here = self.state, f"of iteration {self.state.iteration + 1}"
        columns = np.flatnonzero(self.active)
        p = state.p[:, columns]
        q = _finite(product, p.shape, f"the product {here}")
        with np.errstate(over="ignore", invalid="ignore"):
            curvature = _finite(_dots(p, q), columns.shape, f"p^T A p {here}")
            positive = curvature > 0.0
            state.ended[columns[~positive]] = True
            columns, p, q = columns[positive], p[:, positive], q[:, positive]
            a = state.rz[columns] / curvature[positive]
            state.x[:, columns] += a * p
            state.r[:, columns] -= a * q
            squared = _finite(_dots(state.r, state.r), state.rz.shape, f"the residual {here}")
            state.squared = np.vstack([state.squared, squared])
            if not columns.size:
                return
            r = state.r[:, columns]
            z = _finite(self._precondition(r.copy()), r.shape, "P^-1 r")
            rz = _finite(_dots(r, z), columns.shape, f"the residual {here}")
            state.p[:, columns] = z + rz / state.rz[columns] * p
        state.rz[columns] = rz
        state.ended[columns] = (rz <= 0.0) & (squared[columns] > 0.0)


def _dots(a: Floats, b: Floats) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.einsum("ij,ij->j", a, b))


def _finite(values: Floats, shape: tuple[int, ...], what: str) -> Floats:
    values = np.asarray(values, dtype=np.float64)
    if values.shape != shape:
        raise ProtocolError(
            f"{what} has shape {values.shape} instead of {shape}", code="FK-MESSAGE-SHAPE"
        )
    if not np.isfinite(values).all():
        raise ProtocolError(
            f"{what} has NaN or infinite entries",
            remedy="check the data and the regularization",
            code="FK-MESSAGE-FINITE",
        )
    return values


def _damaged() -> CheckpointError:
    return CheckpointError(
        "this is no state of a conjugate gradient run", code="FK-CHECKPOINT-DAMAGED"
    )


# -- a randomised Nystrom preconditioner of K^T K + lambda I, from one product with probe vectors
#
# With orthonormal probes Omega, (m, s), and the sketch Y = K^T K Omega, the Nystrom approximation Y
# (Omega^T Y)^-1 Y^T = U diag(l) U^T has the large eigenvalues of K^T K. The preconditioner divides
# by them on the span of U and is the identity elsewhere. With s a little above the effective
# dimension of K^T K few iterations remain. In the federated method the sketch is one secure sum
# over the hospitals.


def probe_vectors(m: int, rank: int, seed: int) -> Floats:
    """Return orthonormal probe vectors, (m, min(m, rank)), with a uniformly random span.

    The same ``seed`` gives the same vectors, up to rounding. OptionError if m or rank is below 1.
    """
    if m < 1 or rank < 1:
        raise OptionError(
            f"{rank} probe vectors of length {m}",
            remedy="use at least 1 of each",
            code="FK-OPTION-RANGE",
        )
    rng = np.random.default_rng(derive_seed(seed, "probes"))
    q, r = np.linalg.qr(rng.standard_normal((m, min(m, rank))))
    signs = np.where(np.diagonal(r) < 0.0, -1.0, 1.0)  # libraries choose different signs
    return np.asarray(q * signs)


class NystromPreconditioner:
    """The map R -> P^-1 R, symmetric and positive definite for every sketch.

    P = U (diag(l) + lambda I) U^T / (l_s + lambda) + (I - U U^T), l_1 >= ... >= l_s >= 0.

    Parameters
    ----------
    sketch : ndarray, shape (m, s)
        K^T K @ probes, perhaps rounded: the asymmetry of probes^T @ sketch shows by how much, and
        smaller eigenvalues count as zero.
    probes : ndarray, shape (m, s)
        From :func:`probe_vectors`.
    regularization : float
        lambda > 0 of the system.

    Attributes
    ----------
    eigenvalues : ndarray, shape (s,)
        l, estimates (from below) of the largest eigenvalues of K^T K, descending; fewer where the
        sketch is only noise.
    basis : ndarray, shape (m, s)
        U.

    Raises
    ------
    OptionError
        The regularization is not positive.
    ProtocolError
        Shapes differ, or the sketch has NaN or infinite entries.
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

    Algorithm 2.1, with two guards against a rounded sketch: the shift is at least the asymmetry of
    the core, and a core that is still not positive definite is cut.
    """
    core = probes.T @ sketch
    asymmetry = float(np.linalg.norm(core - core.T))
    epsilon = float(np.finfo(np.float64).eps)
    shift = max(np.sqrt(len(sketch)) * epsilon * float(np.linalg.norm(sketch)), asymmetry)
    shifted = sketch + shift * probes
    core = probes.T @ shifted
    core = (core + core.T) / 2.0
    try:
        lower = linalg.cholesky(core, lower=True)
        root = linalg.solve_triangular(lower, shifted.T, lower=True).T
    except linalg.LinAlgError:
        weights, vectors = np.linalg.eigh(core)
        keep = weights > shift + max(-weights[0], 0.0)
        root = (shifted @ vectors[:, keep]) / np.sqrt(weights[keep])
    basis, singular, _ = np.linalg.svd(root, full_matrices=False)
    return np.maximum(singular**2 - shift, 0.0), basis
