"""Conjugate gradients for several right-hand sides that share their products with the matrix.

The matrix is known only through its products, the seam of the federated method: there each product
is a secure sum over the hospitals, an exchange over the network. :class:`ConjugateGradient` says
which product it wants next, and is given it; :func:`conjugate_gradient` has a function that
multiplies.

Solve A X = B, A symmetric positive definite (m, m), B (m, k). The numbers are the lines of the
paper's Algorithm 1, where A = K^T K + lambda I, B = K^T y and k = 1; without preconditioner
z = r::

    r = b - A x                  54, 56    (x random in the paper, zero here unless given)
    z = P^-1 r;  p = z           55
    repeat                       59
        q = A p                  60-63     one call of ``multiply`` for all columns
        a = (r.z) / (p.q)        64, 67
        x = x + a p              68
        r = r - a q              70
        stop if |r| <= tol |b|   71-75     (sum(r^2) < tol in the paper)
        z = P^-1 r
        beta = (r.z) / (r.z)_old 77
        p = z + beta p           78

Each column has its own a and beta and stops by itself: the same iterates as if it were alone.

References
----------
Damiani, Rodina and Decherchi, "A Hybrid Federated Kernel Regularized Least Squares Algorithm",
2024, Algorithm 1. Hestenes and Stiefel, "Methods of Conjugate Gradients for Solving Linear
Systems", 1952. Saad, "Iterative Methods for Sparse Linear Systems", 2003, algorithm 9.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError, OptionError, ProtocolError

__all__ = ["CGResult", "CGState", "ConjugateGradient", "conjugate_gradient"]

Floats = NDArray[np.float64]


@dataclass(eq=False)
class CGState:
    """All that a run needs to go on, k right-hand sides of m unknowns.

    Attributes
    ----------
    x, r, p : ndarray, shapes (m, k)
        Solution so far, its residual b - A x as the recursion has it, and next direction.
    rz : ndarray, shape (k,)
        r . P^-1 r of each column.
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
        """Number of iterations done, each with one product."""
        return len(self.squared) - 1

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return a copy of the state as named arrays, for a checkpoint."""
        return {name: value.copy() for name, value in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> CGState:
        """Read what :meth:`arrays` returned.

        Raises
        ------
        CheckpointError
            If these are not the arrays of one state.
        """
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


@dataclass(frozen=True, eq=False)
class CGResult:
    """What :func:`conjugate_gradient` found.

    Attributes
    ----------
    x : ndarray, shape (m, k)
        The solutions.
    iterations : int
        Number of iterations, those before a resumption included.
    residuals : ndarray, shape (iterations + 1, k)
        |r| / |b| at the start and after each iteration; 0 where b is 0. r is that of the
        recursion: with inexact products the residual b - A x stays at their error.
    squared : ndarray, shape (iterations + 1, k)
        sum(r^2), on which the paper stops.
    converged : bool
        Whether every column has reached the tolerance.
    """

    x: Floats
    iterations: int
    residuals: Floats
    squared: Floats
    converged: bool


def conjugate_gradient(
    multiply: Callable[[Floats], Floats],
    b: Floats,
    *,
    start: Floats | None = None,
    start_product: Floats | None = None,
    precondition: Callable[[Floats], Floats] | None = None,
    tolerance: float = 1e-8,
    max_iterations: int = 1000,
    state: CGState | None = None,
    on_iteration: Callable[[CGState, Floats], None] | None = None,
) -> CGResult:
    """Solve A X = B for a symmetric positive definite matrix A, see the top of this module.

    Parameters
    ----------
    multiply : callable, (m, j) -> (m, j)
        Returns A @ P for directions P. Called once per iteration with the j columns that have
        not stopped, in the order of B. A column of P may be of any length; where products are
        rounded to a fixed number of digits, scale it first.
    b : ndarray, shape (m, k)
        The right-hand sides. The solution of a column of zeros is zero, whatever the start.
    start : ndarray, shape (m, k), or None (default: None)
        Where to start; None starts at zero, which needs no product.
    start_product : ndarray, shape (m, k), or None (default: None)
        A @ start where it is known; else it is the first call of ``multiply``.
    precondition : callable, (m, j) -> (m, j), or None (default: None)
        Returns P^-1 R, P symmetric positive definite; called with the columns of ``multiply``.
    tolerance : float (default: 1e-8)
        A column stops at |r| <= tolerance * |b|.
    max_iterations : int (default: 1000)
        Most iterations, those before a resumption included.
    state : CGState or None (default: None)
        Go on from here, with the same b and matrix: the iterates are bit for bit those of a run
        that never stopped. The state itself is not changed.
    on_iteration : callable or None (default: None)
        Called after each iteration with the state, which the next iteration changes in place,
        and the relative residuals, shape (k,).

    Returns
    -------
    CGResult
        A column with p^T A p <= 0 (the matrix is not positive definite, or noise has taken over)
        stays where it was before that step, and the result has not converged.

    Raises
    ------
    OptionError
        If the options do not fit together.
    ProtocolError
        If a product has another shape, or numbers that are not finite appear.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.array([[4.0, 1.0], [1.0, 3.0]])
    >>> found = conjugate_gradient(lambda p: a @ p, np.array([[1.0], [2.0]]))
    >>> found.x.round(4).ravel().tolist(), found.iterations
    ([0.0909, 0.6364], 2)
    """
    if max_iterations < 0:
        raise OptionError(
            f"max_iterations is {max_iterations}", remedy="use at least 0", code="FK-OPTION-RANGE"
        )
    solver = ConjugateGradient(
        b,
        start=start,
        start_product=start_product,
        multiply=multiply,
        precondition=precondition,
        tolerance=tolerance,
        state=state,
    )
    while solver.state.iteration < max_iterations and solver.active.any():
        solver.take(multiply(solver.direction))
        if on_iteration is not None:
            on_iteration(solver.state, solver.residuals)
    return solver.result()


class ConjugateGradient:
    """Conjugate gradients from outside: give :meth:`take` the product with each ``direction``.

    Parameters
    ----------
    b, start, start_product, precondition, tolerance, state
        See :func:`conjugate_gradient`.
    multiply : callable, optional
        For the product with the start where that is not given.

    Attributes
    ----------
    state : CGState
        As it is now; changed in place.
    active : ndarray of bool, shape (k,)
        Columns that have not stopped.
    direction : ndarray, shape (m, j)
        P of the next product, a copy: the columns that have not stopped.
    residuals : ndarray, shape (k,)
        |r| / |b| as the recursion has it.

    Raises
    ------
    OptionError
        If the options do not fit together.
    """

    def __init__(
        self,
        b: Floats,
        *,
        start: Floats | None = None,
        start_product: Floats | None = None,
        multiply: Callable[[Floats], Floats] | None = None,
        precondition: Callable[[Floats], Floats] | None = None,
        tolerance: float = 1e-8,
        state: CGState | None = None,
    ) -> None:
        if not tolerance >= 0.0:
            raise OptionError(
                f"tolerance is {tolerance}",
                remedy="use a number that is not negative",
                code="FK-OPTION-RANGE",
            )
        if start_product is not None and start is None:
            raise OptionError(
                "start_product is given without start", remedy="give both", code="FK-OPTION-PARTNER"
            )
        if state is not None and start is not None:
            raise OptionError(
                "state and start are both given",
                remedy="give one of them",
                code="FK-OPTION-PARTNER",
            )
        if b.ndim != 2:
            raise OptionError(
                f"b has {b.ndim} dimensions",
                remedy="give a matrix of columns",
                code="FK-SHAPE-DIFFERS",
            )
        b = _finite(b, b.shape, "the right-hand side")
        self._lengths, self._tolerance = np.sqrt(_dots(b, b)), tolerance
        self._precondition = precondition
        if state is None:
            self.state = _start(multiply, b, start, start_product, precondition)
        elif state.x.shape != b.shape:
            raise CheckpointError(
                f"the state is of a problem of shape {state.x.shape}, not {b.shape}",
                remedy="start anew",
                code="FK-CHECKPOINT-OTHER",
            )
        else:
            self.state = CGState.from_arrays(state.arrays())

    @property
    def active(self) -> NDArray[np.bool_]:
        """Columns that have not stopped."""
        return ~self._reached & ~self.state.ended

    @property
    def direction(self) -> Floats:
        """P of the next product."""
        return np.array(self.state.p[:, self.active], order="C")

    @property
    def residuals(self) -> Floats:
        """Return |r| / |b| of each column, shape (k,)."""
        return _relative(self.state.squared[-1], self._lengths)

    def take(self, product: Floats) -> None:
        """Do one iteration with A @ ``direction``.

        Raises
        ------
        ProtocolError
            The product has another shape, or numbers that are not finite appear.
        """
        _iterate(self.state, self.active, product, self._precondition)

    def result(self) -> CGResult:
        """Return what has been found so far."""
        return CGResult(
            x=self.state.x,
            iterations=self.state.iteration,
            residuals=_relative(self.state.squared, self._lengths),
            squared=self.state.squared,
            converged=bool(self._reached.all()),
        )

    @property
    def _reached(self) -> NDArray[np.bool_]:
        return np.asarray(np.sqrt(self.state.squared[-1]) <= self._tolerance * self._lengths)


def _start(
    multiply: Callable[[Floats], Floats] | None,
    b: Floats,
    start: Floats | None,
    start_product: Floats | None,
    precondition: Callable[[Floats], Floats] | None,
) -> CGState:
    """Return the state before the first iteration."""
    x, r = np.zeros(b.shape), b.copy()
    nonzero = b.any(axis=0)
    if start is not None and nonzero.any():
        if start.shape != b.shape:
            raise OptionError(
                f"start has shape {start.shape}",
                remedy=f"give one of shape {b.shape}",
                code="FK-SHAPE-DIFFERS",
            )
        x[:, nonzero] = _finite(start, b.shape, "the start")[:, nonzero]
        if start_product is None:
            if multiply is None:
                raise OptionError(
                    "start is given without start_product",
                    remedy="give both",
                    code="FK-OPTION-PARTNER",
                )
            shape = (len(b), int(nonzero.sum()))
            product = _finite(multiply(x[:, nonzero]), shape, "the product with the start")
        else:
            product = _finite(start_product, b.shape, "the product with the start")[:, nonzero]
        r[:, nonzero] -= product
    squared = _finite(_dots(r, r), b.shape[1:], "the residual of the start")
    z = r if precondition is None else _finite(precondition(r.copy()), b.shape, "P^-1 r")
    rz = _dots(r, z)
    p = np.array(z, order="C")
    return CGState(x, r, p, rz, (rz <= 0.0) & (squared > 0.0), squared[None, :])


def _iterate(
    state: CGState,
    active: NDArray[np.bool_],
    product: Floats,
    precondition: Callable[[Floats], Floats] | None,
) -> None:
    """Do one iteration of the active columns, in place."""
    here = f"of iteration {state.iteration + 1}"
    columns = np.flatnonzero(active)
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
        z = r if precondition is None else _finite(precondition(r.copy()), r.shape, "P^-1 r")
        rz = _finite(_dots(r, z), columns.shape, f"the residual {here}")
        state.p[:, columns] = z + rz / state.rz[columns] * p
    state.rz[columns] = rz
    state.ended[columns] = (rz <= 0.0) & (squared[columns] > 0.0)


def _dots(a: Floats, b: Floats) -> Floats:
    """Return the dot product of each pair of columns, (k,)."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.einsum("ij,ij->j", a, b))


def _relative(squared: Floats, lengths: Floats) -> Floats:
    return np.sqrt(squared) / np.where(lengths > 0.0, lengths, 1.0)


def _finite(values: Floats, shape: tuple[int, ...], what: str) -> Floats:
    """Return the values as float64 of this shape, without NaN or infinity."""
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
        "this is no state of a conjugate gradient run",
        remedy="start anew",
        code="FK-CHECKPOINT-DAMAGED",
    )
