"""Linear models of rows and columns split over parties: subspace optimisation at the label owner.

Groups i hold column blocks X_i, (n, d_i), of X = [X_1 .. X_S]; users j of a group hold row blocks
X_ij; one label owner holds the targets. The model minimises

    1/2 sum_i |x_i|^2 + C sum_n loss(y_n, (sum_i X_i x_i)_n + b).

The optimum is X^T g for the dual variables g = -C loss'(y, f), an n-vector. The label owner keeps
its messages m_1, m_2, .. and their outputs X X^T m_1, X X^T m_2, .. It solves the problem exactly
for x in the span of the X^T m_k; the dual variables of that optimum give the next message. A visit
of the users does both halves of a product with X X^T, each for another message:

    user (i, j)   X_ij^T m^k to the agent of group i       X_ij x_i^k to the label owner
    agent i       x_i^(k+1) = sum_j X_ij^T m^k
    label owner   outputs X X^T m^(k-1) = sum_i X_i x_i^k; m^(k+1) from all outputs so far

An iteration is two exchanges: the users, then agents and label owner together. There is no step
size or penalty, and the split into groups and users does not change the iterates. The objective
never rises; the optimum is exact after rank(X) independent messages. For the squared loss this is a
block Krylov method. A last visit for X_ij^T M c gives group i the model x_i = sum_j X_ij^T M c.

Disclosure: after rank(X) independent messages the label owner knows X X^T, the inner products of
all rows. Users see the messages at their rows; at first the signs are the labels.

References
----------
Narkiss and Zibulevsky, "Sequential Subspace Optimization Method for Large-Scale Unconstrained
Problems", Technion CCIT Report 559, 2005. For the hinge see :mod:`.local_hinge`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, assert_never

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError, ProtocolError
from .local_hinge import interior_point
from .local_solvers import LOSSES, Loss, total_loss
from .losses import expit

__all__ = ["LOSSES", "LabelOwner", "Loss", "Optimum", "objective", "restricted_optimum"]

Floats = NDArray[np.float64]
_PRECISION = 1e-9  # relative duality gap, or Newton decrement, of the restricted problem
_ITERATIONS = 100
_ROUNDING = 1e-12  # of the squared norms of columns, relative to the largest


class Optimum(NamedTuple):
    """Solution for one output in m orthonormal coordinates.

    Attributes
    ----------
    weights : ndarray of float64, shape (m,)
    bias : float
    duals : ndarray of float64, shape (n,)
        g = -C loss'(y, f), with weights = columns^T g and sum(g) = 0.
    """

    weights: Floats
    bias: float
    duals: Floats


def objective(
    loss: Loss, squared_norm: float, outputs: Floats, targets: Floats, cost: float
) -> float:
    """Return 1/2 |x|^2 + C sum loss(y, f).

    Parameters
    ----------
    loss : {"hinge", "logistic", "squared"}
        max(0, 1 - y f), log(1 + exp(-y f)) or (y - f)^2 / 2.
    squared_norm : float
        |x|^2, without the bias.
    outputs : ndarray of float64, shape (n,)
        f, with the bias.
    targets : ndarray of float64, shape (n,)
        y; -1 or 1 for hinge and logistic.
    cost : float
        C.
    """
    return 0.5 * squared_norm + cost * total_loss(loss, outputs, targets)


def restricted_optimum(loss: Loss, columns: Floats, targets: Floats, cost: float) -> Optimum:
    """Minimise 1/2 |c|^2 + C sum loss(y, Z c + b) over c and b.

    By a primal-dual interior point method (hinge), Newton's method with backtracking (logistic) or
    the normal equations (squared).

    Parameters
    ----------
    loss : {"hinge", "logistic", "squared"}
        See :func:`objective`.
    columns : ndarray of float64, shape (n, m)
        Z: outputs of an orthonormal basis; m may be 0.
    targets : ndarray of float64, shape (n,)
        y; -1 and 1, both of them, for hinge and logistic.
    cost : float
        C.
    """
    design = np.column_stack([columns, np.ones(len(targets))])
    ridge = np.ones(design.shape[1])
    ridge[-1] = 0.0
    if loss == "hinge":
        signed = targets[:, None] * design
        margins = np.ones(len(targets))
        solution, duals, *_ = interior_point(signed, margins, ridge, cost, _PRECISION)
        duals *= targets
    elif loss == "logistic":
        solution = _logistic(design, ridge, targets, cost)
        duals = cost * targets * expit(-targets * (design @ solution))
    elif loss == "squared":
        hessian = np.diag(ridge / cost) + design.T @ design
        solution = np.linalg.solve(hessian, design.T @ targets)
        duals = cost * (targets - design @ solution)
    else:
        assert_never(loss)
    return Optimum(solution[:-1], float(solution[-1]), duals)


def _logistic(design: Floats, ridge: Floats, targets: Floats, cost: float) -> Floats:
    def value(point: Floats) -> float:
        return objective("logistic", float(point @ (ridge * point)), design @ point, targets, cost)

    point = np.zeros(len(ridge))
    for _ in range(_ITERATIONS):
        chance = expit(-targets * (design @ point))
        gradient = ridge * point - cost * (design.T @ (targets * chance))
        curvature = cost * chance * (1.0 - chance)
        hessian = np.diag(ridge) + design.T @ (curvature[:, None] * design)
        change = np.linalg.solve(hessian, -gradient)
        decrease, before, step = -float(gradient @ change), value(point), 1.0
        while value(point + step * change) > before - 1e-4 * step * decrease and step > 1e-10:
            step /= 2.0
        point = point + step * change
        if decrease <= _PRECISION**2 * before or step <= 1e-10:
            break
    return point


def orthonormal_basis(sent: Floats, outputs: Floats) -> Floats:
    """Return T, (m, r), such that the columns X^T M T are orthonormal.

    Outputs may be rounded: the asymmetry of M^T X X^T M shows by how much, and smaller directions
    are dropped (r <= m).

    Parameters
    ----------
    sent : ndarray of float64, shape (n, m)
        M, the messages.
    outputs : ndarray of float64, shape (n, m)
        X X^T M.
    """
    gram = sent.T @ outputs
    sizes = np.diagonal(gram)
    noise = float(np.linalg.norm(gram - gram.T))
    floor = max(noise, _ROUNDING * float(sizes.max(initial=0.0)))
    norms = np.sqrt(np.where(sizes > floor, sizes, np.inf))
    gram = gram / np.outer(norms, norms)
    values, vectors = np.linalg.eigh((gram + gram.T) / 2.0)
    keep = values > max(2.0 * float(np.linalg.norm(gram - gram.T)), _ROUNDING)
    return np.asarray(vectors[:, keep] / np.sqrt(values[keep]) / norms[:, None])


class LabelOwner:
    """The label owner's side for K outputs, which share one subspace.

    Parameters
    ----------
    loss : {"hinge", "logistic", "squared"}
        See :func:`objective`.
    targets : ndarray of float64, shape (n, K)
        -1 and 1, both in each column, for hinge and logistic; real numbers for squared.
    cost : float
        C > 0.
    seed : int
        For the random factors of the second message.
    numbers : ndarray of int, shape (n,), optional
        Numbers of the rows, from 0, that select the factors: results then do not depend on the
        order of rows. Default: the position.

    Attributes
    ----------
    sent : ndarray of float64, shape (n, m)
        M, all messages so far, each with mean square 1.
    outputs : ndarray of float64, shape (n, at most m)
        X X^T of the messages that came back.
    objective : ndarray of float64, shape (K,)
        The optimum in the subspace, the exact objective of the present model.
    bound : ndarray of float64, shape (K,)
        Lower bound of the pooled optimum by duality; -inf if unknown.
    bias : ndarray of float64, shape (K,)
        b of the present model.
    gap : ndarray of float64, shape (K,)
        objective - bound; rounding may make it slightly negative.

    Raises
    ------
    OptionError
        C is not positive, or the targets do not suit the loss.
    """

    def __init__(
        self,
        loss: Loss,
        targets: Floats,
        cost: float,
        seed: int,
        *,
        numbers: NDArray[np.integer[Any]] | None = None,
    ) -> None:
        if not 0.0 < cost < np.inf:
            raise OptionError(
                f"the cost C is {cost}", remedy="use a positive number", code="FK-OPTION-RANGE"
            )
        signs = (abs(targets) == 1.0).all() and (targets.min(0) < targets.max(0)).all()
        if loss != "squared" and not signs:
            raise OptionError(
                f"the {loss} loss got targets other than -1 and 1, or one class alone",
                code="FK-LOSS-CLASSES",
            )
        n, k = targets.shape
        self.loss, self.targets, self.cost = loss, targets, cost
        self.seed, self.numbers = seed, np.arange(n) if numbers is None else numbers
        self.sent, self.outputs = np.empty((n, 0)), np.empty((n, 0))
        self.objective, self.bound = np.full(k, np.inf), np.full(k, -np.inf)
        self.bias = np.zeros(k)
        self._waiting: list[tuple[Floats, Floats]] = []  # objective and scale of pending messages
        self._solve()

    @property
    def gap(self) -> Floats:
        """How far the objective may be from the pooled optimum, (K,)."""
        return np.asarray(self.objective - self.bound)

    def next_message(self) -> Floats:
        """Return the next message of each output, (n, K).

        It is g - M c for the dual variables g and the model X^T M c: the gradient of the dual,
        orthogonal to the subspace; 1/2 |X^T (g - M c)|^2 is the duality gap. The second message,
        sent before any outputs are known, would equal the first: its entries are multiplied by
        uniform factors from [0, 2], and it gives no gap.
        """
        messages, claim = self._duals - self.model_message(), self.objective.copy()
        if self._waiting and not self.outputs.size:
            claim = np.full(len(claim), -np.inf)
            rng = np.random.default_rng([self.seed, self.sent.shape[1]])
            factors = rng.uniform(0.0, 2.0, (int(self.numbers.max()) + 1, len(claim)))
            messages *= factors[self.numbers]
        scale = np.sqrt((messages**2).mean(axis=0))
        scale[scale == 0.0] = 1.0
        messages /= scale
        self.sent = np.column_stack([self.sent, messages])
        self._waiting.append((claim, scale))
        return messages

    def receive(self, outputs: Floats) -> None:
        """Take X X^T m, (n, K), of the oldest pending messages, and solve again.

        Raises
        ------
        ProtocolError
            No message is pending, the shape is wrong, or numbers are not finite.
        """
        if not self._waiting or outputs.shape != self.targets.shape:
            raise ProtocolError(
                f"outputs of shape {outputs.shape} came unasked", code="FK-MESSAGE-ORDER"
            )
        if not np.isfinite(outputs).all():
            raise ProtocolError(
                "the outputs have NaN or infinite entries", code="FK-MESSAGE-FINITE"
            )
        claim, scale = self._waiting.pop(0)
        known = self.outputs.shape[1]
        messages = self.sent[:, known : known + len(scale)]
        gap = 0.5 * scale**2 * (messages * outputs).sum(axis=0)
        self.bound = np.maximum(self.bound, claim - gap)
        self.outputs = np.column_stack([self.outputs, outputs])
        self._solve()

    def model_message(self) -> Floats:
        """Return M c, (n, K); X_i^T M c, summed over users, is the model of group i."""
        return np.asarray(self.sent[:, : len(self._coefficients)] @ self._coefficients)

    def pack(self) -> dict[str, Floats]:
        """Return the state to keep between two messages."""
        claims = [np.concatenate(pair) for pair in self._waiting]
        return {
            "sent": self.sent,
            "outputs": self.outputs,
            "bound": self.bound,
            "claims": np.array(claims).reshape(len(claims), -1),
        }

    def unpack(self, kept: Mapping[str, Floats]) -> None:
        """Restore the state of :meth:`pack`; :meth:`receive` must come next.

        Only before any outputs are known may :meth:`next_message` come next.
        """
        self.sent, self.outputs, self.bound = kept["sent"], kept["outputs"], kept["bound"]
        k = len(self.bias)
        self._waiting = [(claim[:k], claim[k:]) for claim in kept["claims"]]

    def _solve(self) -> None:
        basis = orthonormal_basis(self.sent[:, : self.outputs.shape[1]], self.outputs)
        columns = self.outputs @ basis
        self._coefficients = np.empty((len(basis), len(self.bias)))
        self._duals = np.empty_like(self.targets)
        for k, y in enumerate(self.targets.T):
            best = restricted_optimum(self.loss, columns, y, self.cost)
            f = columns @ best.weights + best.bias
            square = float(best.weights @ best.weights)
            self.objective[k] = objective(self.loss, square, f, y, self.cost)
            self._coefficients[:, k] = basis @ best.weights
            self.bias[k], self._duals[:, k] = best.bias, best.duals
