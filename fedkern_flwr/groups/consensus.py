"""Consensus ADMM over groups of users: the updates of users, agents and server.

Minimise 1/2 |w|^2 + C sum_n loss(w^T x_n), the bias not penalised. User j of group i has a copy
w_ij of the model, agent i a copy z_i, the server z, with w_ij = z_i and z_i = z. Two-block ADMM
with scaled duals r_ij and s_i, over-relaxation a, and penalties rho_i of users and sigma of
agents::

    w_ij = argmin C sum loss + rho_i / 2 |w - z_i + r_ij|^2    h_ij = a w_ij + (1 - a) z_i
    z    = sigma sum_i (z_i + s_i) / (sigma S + 1)             h_i = a z + (1 - a) z_i
    z_i  = (rho_i sum_j (h_ij + r_ij) + sigma (h_i - s_i)) / (rho_i N_i + sigma)
    r_ij += h_ij - z_i                                         s_i += z_i - h_i

The w_ij and z are one block of variables, the z_i the other, so it converges to the pooled optimum
for any number of groups (Boyd et al. 2011, section 3). It runs in :class:`Coordinates`, columns
with mean 0 and variance 1. The objective is unchanged, and units do not slow convergence.

While C is chosen, a run has an output for each fold, each C and each class, in this order. An
output learns from the rows outside its fold; its loss is counted on the fold. All are iterated in
the same exchanges. Then the run continues with the mean over the folds of the chosen C; rows that
one fold left out get their duals from the others.

References
----------
Jia, Guo and Fang, "Efficient Privacy-Preserving Machine Learning in Hierarchical Distributed
System", IEEE TNSE 2019.

Boyd, Parikh, Chu, Peleato and Eckstein, "Distributed Optimization and Statistical Learning via the
Alternating Direction Method of Multipliers", 2011, sections 3.3 (stopping), 3.4.1 (balancing),
3.4.3 (over-relaxation), 7.1 (consensus).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: For all outputs, or for each, shape (k, 1).
Penalty = float | Floats
RhoSchedule = Literal["scaled", "rising", "balanced", "fixed"]

_RISE, _RISE_ROUNDS = 20.0, 40  # total growth of rho, within so many iterations
_BALANCE_UNTIL, _BALANCE_EVERY, _BALANCE_MOST = 60, 5, 2.0
_SCALE_UNTIL, _SCALE_EVERY, _SCALE_MOST, _SCALE = 40, 5, 3.0, 3.0


@dataclass(frozen=True)
class Coordinates:
    """Coordinates of ADMM: x~ = (x - mean) / deviation, then a constant 1 for the bias.

    Attributes
    ----------
    mean, deviation : ndarray, shape (d,)
        Of the columns of all users; a constant column has deviation 1.
    standardised : bool
        Whether the penalty is 1/2 |w~|^2, of the standardised columns; else it is that of the
        original columns.
    """

    mean: Floats
    deviation: Floats
    standardised: bool

    @classmethod
    def fit(cls, mean: Floats, mean_square: Floats, *, standardised: bool) -> Coordinates:
        variance = np.maximum(mean_square - mean**2, 0.0)
        constant = variance <= 1e-12 * np.maximum(mean_square, 1e-300)
        return cls(mean, np.where(constant, 1.0, np.sqrt(variance)), standardised)

    @classmethod
    def identity(cls, dimension: int) -> Coordinates:
        return cls(np.zeros(dimension), np.ones(dimension), True)

    def rows(self, x: Floats) -> Floats:
        out = np.empty((len(x), x.shape[1] + 1))
        np.subtract(x, self.mean, out=out[:, :-1])
        out[:, :-1] /= self.deviation
        out[:, -1] = 1.0
        return out

    def ridge(self) -> Floats:
        """Return q, (d + 1,): the penalty of a model is 1/2 sum q w~^2."""
        scale = np.ones_like(self.mean) if self.standardised else self.deviation**-2.0
        return np.append(scale, 0.0)

    def model(self, w: Floats) -> tuple[Floats, Floats]:
        """Return weights, (k, d), and biases, (k,), for the original columns."""
        weights = w[:, :-1] / self.deviation
        return weights, w[:, -1] - weights @ self.mean


def penalties_of(w: Floats, ridge: Floats) -> Floats:
    return np.asarray(0.5 * (w**2 @ ridge))


def norms(w: Floats) -> Floats:
    return np.array([np.linalg.norm(one) for one in w])


def relax(new: Floats, center: Floats, relaxation: float) -> Floats:
    """Over-relax an update: a new + (1 - a) center."""
    return relaxation * new + (1.0 - relaxation) * center


def global_center(total: Floats, sigma: Penalty, groups: int, ridge: Floats) -> Floats:
    """Return z from the sum of z_i + s_i over groups, or of users' h + r."""
    return sigma * total / (sigma * groups + ridge)


def group_center(
    total: Floats, users: int, rho: Penalty, sigma: Penalty, center: Floats, dual: Floats
) -> Floats:
    """Return z_i; ``total`` sums h_ij + r_ij over the group, ``center`` is h_i, ``dual`` s_i."""
    return (rho * total + sigma * (center - dual)) / (rho * users + sigma)


def next_group_center(
    total: Floats,
    users: int,
    model: Floats,
    before: tuple[Floats, Floats],
    rho: Penalty,
    sigma: Penalty,
    relaxation: float,
) -> tuple[Floats, Floats]:
    """Return z_i and s_i after an iteration, from the group's sum, z, and z_i and s_i before.

    Agents and the users of the group compute the same.
    """
    center, dual = before
    target = relax(model, center, relaxation)
    made = group_center(total, users, rho, sigma, target, dual)
    return made, dual + made - target


# -- penalties


def initial_rho(schedule: RhoSchedule, c: Floats) -> Floats:
    """Return the default first rho: C if it will grow, else 3 C."""
    return c if schedule in ("rising", "scaled") else 3.0 * c


def risen(iteration: int) -> float:
    """Return the growth of rho: up to 20 times in 40 iterations, then constant.

    Small penalties bring the first iterations near the optimum, larger ones the last digits.
    """
    return float(_RISE ** (min(iteration, _RISE_ROUNDS) / _RISE_ROUNDS))


def balance(primal: Floats, dual: Floats, iteration: int) -> Floats:
    """Return factors for rho by residual balancing, at most 2, and 1 from iteration 60 on.

    ``primal`` and ``dual``, (k,), are relative residuals. Rho may change every fifth iteration; a
    finite number of changes keeps ADMM convergent.

    References
    ----------
    Boyd et al. 2011, section 3.4.1; Wohlberg, "ADMM penalty parameter selection by residual
    balancing", 2017 (relative residuals, factor).
    """
    factor, known = np.ones_like(primal), (primal > 0.0) & (dual > 0.0)
    if iteration > _BALANCE_UNTIL or iteration % _BALANCE_EVERY:
        return factor
    np.sqrt(np.divide(primal, dual, out=factor, where=known), out=factor)
    return np.clip(factor, 1.0 / _BALANCE_MOST, _BALANCE_MOST)


def scale(pull: Floats, size: Floats, rho: Floats, iteration: int) -> Floats:
    """Return factors for rho by each output's scale, at most 3, and 1 from iteration 40 on.

    The optimal duals do not depend on rho, so rho should be their size in units of the model. Rare
    classes have small duals: with the rho of a frequent class their model, above all its bias,
    would hardly move. Three times the scale needed the fewest iterations on tables of seven
    classes. See :class:`Residuals`; rho may change every fifth iteration.
    """
    factor, known = np.ones_like(rho), (pull > 0.0) & (size > 0.0)
    if iteration > _SCALE_UNTIL or iteration % _SCALE_EVERY:
        return factor
    np.divide(_SCALE * pull, size * rho, out=factor, where=known)
    return np.clip(factor, 1.0 / _SCALE_MOST, _SCALE_MOST)


def next_growth(
    schedule: RhoSchedule, now: Floats, residuals: Residuals, rho: Floats, iteration: int
) -> Floats:
    if schedule == "balanced":
        return now * balance(*residuals.relative, iteration)
    if schedule == "scaled":
        return now * scale(residuals.pull, residuals.size, rho, iteration)
    return now


def growth(schedule: RhoSchedule, iteration: int, factor: Floats) -> Floats:
    """Return rho relative to the first; ``factor`` is the product of all changes so far."""
    return np.full_like(factor, risen(iteration)) if schedule == "rising" else factor


# -- residuals


@dataclass(frozen=True)
class Residuals:
    """Distances from the optimum of each output, as sums of norms over users and groups.

    Kept per output: a total would reflect only the frequent classes.

    Attributes
    ----------
    primal : ndarray, shape (k,)
        sum_ij |w_ij - z_i| + sum_i |z_i - z|.
    size : ndarray, shape (k,)
        sum_ij |z_i| + sum_i |z|, the scale of ``primal``.
    dual : ndarray, shape (k,)
        sum_i (rho_i N_i + sigma) |z_i - z_i before|.
    pull : ndarray, shape (k,)
        sum_ij rho_i |r_ij| + sum_i sigma |s_i|, the scale of ``dual``.
    """

    primal: Floats
    size: Floats
    dual: Floats
    pull: Floats

    @classmethod
    def unknown(cls, outputs: int) -> Residuals:
        return cls(*np.zeros((4, outputs)))

    @property
    def relative(self) -> tuple[Floats, Floats]:
        """Both residuals relative to their scales; 1 if the scale is zero."""
        pairs = ((self.primal, self.size), (self.dual, self.pull))
        primal, dual = (np.divide(a, b, out=np.ones_like(a), where=b > 0.0) for a, b in pairs)
        return primal, dual

    def largest(self) -> tuple[float, float]:
        primal, dual = self.relative
        return float(primal.max()), float(dual.max())

    def small(self, tolerance: float) -> bool:
        return max(self.largest()) <= tolerance


# -- asynchronous advance


def may_advance(ready: Iterable[int], done: Mapping[int, int], staleness: int) -> set[int]:
    """Return the groups that may complete an iteration, so that max t_i - min t_i <= D after it.

    Parameters
    ----------
    ready : iterable of int
        Groups in which users have finished an iteration.
    done : mapping
        Group -> t_i, completed iterations.
    staleness : int
        D (eq. 20). With 0 all groups advance together.
    """
    advancing = set(ready)
    while advancing:
        after = {group: t + (group in advancing) for group, t in done.items()}
        limit = min(after.values()) + staleness
        ahead = {group for group in advancing if after[group] > limit}
        if not ahead:
            break
        advancing -= ahead
    return advancing


# -- several C tried side by side

#: Candidates for C, ascending.
TRIED = (0.01, 0.1, 1.0, 10.0)
#: Number of folds of a user's rows; each is held out in turn, in wide models only one.
FOLDS = 3
#: Most coefficients of all outputs for which every fold is held out.
_NUMBERS = 1 << 13
#: Iteration with the first center of the chosen C; fewest iterations of such a run.
TRIAL_ROUNDS, LEAST_ROUNDS = 12, 24
#: Iteration with the record of losses for the choice of C. Agents and users then have the choice in
#: time, whether they work together or one after the other.
JUDGED = TRIAL_ROUNDS - 2
#: If losses differ by at most this share, the smallest C is used. Smaller differences are noise,
#: and after these iterations large C are not yet as bad as they will be.
TIE = 0.05
MOST_TRIED = 8


def folds_held_out(outputs: int, width: int, most: int = FOLDS) -> int:
    """Return how many folds are held out in turn; wide models hold out one."""
    return most if outputs * width * most * len(TRIED) <= _NUMBERS else 1


def choose(losses: Floats, folds: int, tried: Sequence[float]) -> tuple[int, list[float]]:
    """Return the position of the C with the least loss, and the loss of each.

    ``losses``, (folds * len(tried) * k,), are of each output's held-out rows; ``tried`` is
    ascending.
    """
    found = losses.reshape(folds, len(tried), -1).sum((0, 2))
    return int(np.argmax(found <= found.min() * (1.0 + TIE))), found.tolist()


def part_of(stacked: Floats, folds: int, tried: int, chosen: int) -> Floats:
    """Return the mean over the folds of the values of one C, (k, ...).

    ``stacked``, (folds * tried * k, ...), has those of all outputs.
    """
    return np.asarray(stacked.reshape(folds, tried, -1, *stacked.shape[1:])[:, chosen].mean(axis=0))


def deal(rows: int, digest: str) -> NDArray[np.intp]:
    """Return the fold of each row, drawn by a digest of the user's table, unknown to others."""
    seed = int.from_bytes(bytes.fromhex(digest)[:16], "big")
    return np.random.default_rng(seed).permutation(rows) % FOLDS
