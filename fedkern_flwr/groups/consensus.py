"""Consensus ADMM over groups of users: the updates of users, agents and server.

Minimise 1/2 |w|^2 + C sum_n loss(w^T x_n), the bias not penalised. User j of group i has a copy
w_ij of the model, agent i a copy z_i, the server z, with w_ij = z_i and z_i = z. Two-block ADMM
with scaled duals r_ij and s_i, over-relaxation a, and penalties rho_i of users and sigma of
agents::

    w_ij = argmin C sum loss + rho_i / 2 |w - z_i + r_ij|^2    h_ij = a w_ij + (1 - a) z_i
    z    = sigma sum_i (z_i + s_i) / (sigma S + 1)             h_i = a z + (1 - a) z_i
    z_i  = (rho_i sum_j (h_ij + r_ij) + sigma (h_i - s_i)) / (rho_i N_i + sigma)
    r_ij += h_ij - z_i                                         s_i += z_i - h_i

w_ij and z are one block of variables, the z_i the other, so that it converges to the pooled optimum
for any number of groups (Boyd et al. 2011, section 3). All is done in the coordinates of
:class:`Coordinates`, in which the columns have mean 0 and variance 1: the objective stays what it
is, and ADMM converges as fast on columns of any units.

While C is chosen, a run has an output for each fold, each C and each class, in this order. That of
a fold learns from the rows of the other folds, and its loss is counted on those of the fold. All of
them are iterated in the same exchanges. Then the run goes on with the outputs of one C, from their
mean over the folds: rows that one fold left out have their duals from the others.

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
#: Of all outputs, or of each, shape (k, 1).
Penalty = float | Floats
RhoSchedule = Literal["scaled", "rising", "balanced", "fixed"]

_RISE, _RISE_ROUNDS = 20.0, 40  # rho grows so many times within so many iterations
_BALANCE_UNTIL, _BALANCE_EVERY, _BALANCE_MOST = 60, 5, 2.0
_SCALE_UNTIL, _SCALE_EVERY, _SCALE_MOST, _SCALE = 40, 5, 3.0, 3.0


@dataclass(frozen=True)
class Coordinates:
    """Coordinates in which ADMM runs: x~ = (x - mean) / deviation, then a constant 1 for the bias.

    Attributes
    ----------
    mean, deviation : ndarray, shape (d,)
        Of the columns of all users; a constant column has deviation 1.
    standardised : bool
        Whether the model is that of the standardised columns, so that the penalty is 1/2 |w~|^2;
        else it is that of the columns as they are.
    """

    mean: Floats
    deviation: Floats
    standardised: bool

    @classmethod
    def fit(cls, mean: Floats, mean_square: Floats, *, standardised: bool) -> Coordinates:
        """Return the coordinates that follow from the columns' means and mean squares."""
        variance = np.maximum(mean_square - mean**2, 0.0)
        constant = variance <= 1e-12 * np.maximum(mean_square, 1e-300)
        return cls(mean, np.where(constant, 1.0, np.sqrt(variance)), standardised)

    @classmethod
    def identity(cls, dimension: int) -> Coordinates:
        """Return the coordinates that leave columns as they are."""
        return cls(np.zeros(dimension), np.ones(dimension), True)

    def rows(self, x: Floats) -> Floats:
        """Return rows in these coordinates, shape (n, d + 1)."""
        out = np.empty((len(x), x.shape[1] + 1))
        np.subtract(x, self.mean, out=out[:, :-1])
        out[:, :-1] /= self.deviation
        out[:, -1] = 1.0
        return out

    def ridge(self) -> Floats:
        """Return q, shape (d + 1,): the penalty of a model is 1/2 sum q w~^2."""
        scale = np.ones_like(self.mean) if self.standardised else self.deviation**-2.0
        return np.append(scale, 0.0)

    def model(self, w: Floats) -> tuple[Floats, Floats]:
        """Return weights, shape (k, d), and biases, shape (k,), for columns as they are."""
        weights = w[:, :-1] / self.deviation
        return weights, w[:, -1] - weights @ self.mean


def penalties_of(w: Floats, ridge: Floats) -> Floats:
    """Return 1/2 sum q w~^2 of each of the models w, shape (k, d + 1)."""
    return np.asarray(0.5 * (w**2 @ ridge))


def norms(w: Floats) -> Floats:
    """Return the norm of each of the models w, shape (k, d + 1)."""
    return np.array([np.linalg.norm(one) for one in w])


def relax(new: Floats, center: Floats, relaxation: float) -> Floats:
    """Return what an update counts as: a new + (1 - a) center."""
    return relaxation * new + (1.0 - relaxation) * center


def global_center(total: Floats, sigma: Penalty, groups: int, ridge: Floats) -> Floats:
    """Return z from the sum of z_i + s_i over so many groups, or of users' h + r at a center."""
    return sigma * total / (sigma * groups + ridge)


def group_center(
    total: Floats, users: int, rho: Penalty, sigma: Penalty, center: Floats, dual: Floats
) -> Floats:
    """Return z_i.

    Parameters
    ----------
    total : ndarray
        Sum of h_ij + r_ij over the users of the group.
    users : int
        N_i.
    rho, sigma : float or ndarray, shape (k, 1)
        Penalties.
    center : ndarray, same shape
        h_i.
    dual : ndarray, same shape
        s_i.
    """
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
    """Return z_i and s_i after an iteration, of the group's sum, z, and z_i and s_i before it.

    Agents and the users of the group compute the same.
    """
    center, dual = before
    target = relax(model, center, relaxation)
    made = group_center(total, users, rho, sigma, target, dual)
    return made, dual + made - target


# -- penalties


def initial_rho(schedule: RhoSchedule, c: Floats) -> Floats:
    """Return the first rho of a run that was given none: C where it will grow, else 3 C."""
    return c if schedule in ("rising", "scaled") else 3.0 * c


def risen(iteration: int) -> float:
    """Return by how much rho has grown after so many iterations: 20 times after 40, then no more.

    Small penalties bring the first iterations near the optimum, larger ones the last digits.
    """
    return float(_RISE ** (min(iteration, _RISE_ROUNDS) / _RISE_ROUNDS))


def balance(primal: Floats, dual: Floats, iteration: int) -> Floats:
    """Return the factors for rho by residual balancing, at most 2, and 1 from iteration 60 on.

    Parameters
    ----------
    primal, dual : ndarray, shape (k,)
        Relative residuals.
    iteration : int
        Iterations done. Every fifth rho may change; as it changes finitely often, ADMM converges.

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
    """Return the factors for rho by the scale of each output, at most 3, and 1 from iteration 40.

    The optimum has the same duals for any rho, so that the rho they ask for is their size in units
    of the model's. Of a class with few rows they are small: with the rho of a frequent one its
    model, and above all its bias, would hardly move. Three times the scale needed the fewest
    iterations on tables of seven classes.

    Parameters
    ----------
    pull, size : ndarray, shape (k,)
        See :class:`Residuals`.
    rho : ndarray, shape (k,)
        What the penalties are.
    iteration : int
        Iterations done. Every fifth rho may change.
    """
    factor, known = np.ones_like(rho), (pull > 0.0) & (size > 0.0)
    if iteration > _SCALE_UNTIL or iteration % _SCALE_EVERY:
        return factor
    np.divide(_SCALE * pull, size * rho, out=factor, where=known)
    return np.clip(factor, 1.0 / _SCALE_MOST, _SCALE_MOST)


def next_growth(
    schedule: RhoSchedule, now: Floats, residuals: Residuals, rho: Floats, iteration: int
) -> Floats:
    """Return the factors of the next iteration, of those of this one, shape (k,)."""
    if schedule == "balanced":
        return now * balance(*residuals.relative, iteration)
    if schedule == "scaled":
        return now * scale(residuals.pull, residuals.size, rho, iteration)
    return now


def growth(schedule: RhoSchedule, iteration: int, factor: Floats) -> Floats:
    """Return rho in units of the first one; ``factor`` is the product of all changes so far."""
    return np.full_like(factor, risen(iteration)) if schedule == "rising" else factor


# -- residuals


@dataclass(frozen=True)
class Residuals:
    """Distances from the optimum of each output, as sums of norms over users and groups.

    A total over the outputs would be that of the frequent classes alone.

    Attributes
    ----------
    primal : ndarray, shape (k,)
        sum_ij |w_ij - z_i| + sum_i |z_i - z|.
    size : ndarray, shape (k,)
        sum_ij |z_i| + sum_i |z|: what ``primal`` is measured by.
    dual : ndarray, shape (k,)
        sum_i (rho_i N_i + sigma) |z_i - z_i before|.
    pull : ndarray, shape (k,)
        sum_ij rho_i |r_ij| + sum_i sigma |s_i|: what ``dual`` is measured by.
    """

    primal: Floats
    size: Floats
    dual: Floats
    pull: Floats

    @classmethod
    def unknown(cls, outputs: int) -> Residuals:
        """Return those of which nothing is known yet."""
        return cls(*np.zeros((4, outputs)))

    @property
    def relative(self) -> tuple[Floats, Floats]:
        """Both residuals in units of what they are measured by; 1 while that is zero."""
        pairs = ((self.primal, self.size), (self.dual, self.pull))
        primal, dual = (np.divide(a, b, out=np.ones_like(a), where=b > 0.0) for a, b in pairs)
        return primal, dual

    def largest(self) -> tuple[float, float]:
        """Return both relative residuals of the outputs that are farthest."""
        primal, dual = self.relative
        return float(primal.max()), float(dual.max())

    def small(self, tolerance: float) -> bool:
        """Tell whether all are at most ``tolerance`` (Boyd et al. 2011, section 3.3.1)."""
        return max(self.largest()) <= tolerance


# -- asynchronous advance


def may_advance(ready: Iterable[int], done: Mapping[int, int], staleness: int) -> set[int]:
    """Return which groups may complete an iteration now, so that max t_i - min t_i <= D after it.

    Parameters
    ----------
    ready : iterable of int
        Groups whose users have finished an iteration.
    done : mapping
        Group -> t_i, iterations completed.
    staleness : int
        D, the paper's equation 20. With 0 all groups advance together.
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

#: What is tried, ascending.
TRIED = (0.01, 0.1, 1.0, 10.0)
#: Into so many folds users deal their rows; each is held out in turn, or of wide models one.
FOLDS = 3
#: Coefficients of all outputs together up to which every fold is held out.
_NUMBERS = 1 << 13
#: Iteration whose center is the first of the chosen C, and the least iterations of such a run.
TRIAL_ROUNDS, LEAST_ROUNDS = 12, 24
#: Iteration whose record tells the losses by which C is chosen: agents and users have it in time
#: whether they are asked together or one after the other.
JUDGED = TRIAL_ROUNDS - 2
#: Of C whose losses differ by no more than this share, the smallest is taken: less is noise, and
#: after these iterations large C are not yet as bad as they will be.
TIE = 0.05
MOST_TRIED = 8


def folds_held_out(outputs: int, width: int, most: int = FOLDS) -> int:
    """Return how many folds are held out in turn, for models of so many coefficients."""
    return most if outputs * width * most * len(TRIED) <= _NUMBERS else 1


def choose(losses: Floats, folds: int, tried: Sequence[float]) -> tuple[int, list[float]]:
    """Return the position of the C with the least loss, and the loss of each.

    Parameters
    ----------
    losses : ndarray, shape (folds * len(tried) * k,)
        Of the rows of the fold that each output did not learn from.
    folds : int
        How many were held out.
    tried : sequence of float
        C, ascending.
    """
    found = losses.reshape(folds, len(tried), -1).sum((0, 2))
    return int(np.argmax(found <= found.min() * (1.0 + TIE))), found.tolist()


def part_of(stacked: Floats, folds: int, tried: int, chosen: int) -> Floats:
    """Return the mean over the folds of what belongs to the outputs of one C, shape (k, ...).

    ``stacked`` belongs to all outputs, its shape is (folds * tried * k, ...).
    """
    return np.asarray(stacked.reshape(folds, tried, -1, *stacked.shape[1:])[:, chosen].mean(axis=0))


def deal(rows: int, digest: str) -> NDArray[np.intp]:
    """Return the fold of each row of a user: drawn by a digest of its table, which nobody else has.

    Folds differ by one row at most.
    """
    seed = int.from_bytes(bytes.fromhex(digest)[:16], "big")
    return np.random.default_rng(seed).permutation(rows) % FOLDS
