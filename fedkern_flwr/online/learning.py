"""Online multi-kernel learning: kernel weights, choice of kernels, step-size rules, drift.

Notation of Ghari and Shen, "Personalized Online Federated Learning with Multiple Kernels"
(NeurIPS 2022): N kernels, B samples, losses L_i, weights w_i.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import TableError
from ..seeding import derive_seed

Floats = NDArray[np.float64]
WeightRule = Literal["exponential", "adahedge"]
StepSize = Literal["paper", "adaptive"]
Selection = Literal["bins", "subset"]
#: Initial prediction for labels in [0, 1].
CENTRE = 0.5
#: c of AdaGrad-norm for a client's own steps between messages. A single client's gradients are
#: noisier than the mean over clients, for which the server uses 1.
LOCAL_STEP = 0.5
#: Whether every client chooses its own kernels or all share a public choice per round.
Subset = Literal["private", "shared"]

_TINY = 1e-200  # a sum of weights below this counts as none

WEIGHT_RULES: tuple[str, ...] = ("exponential", "adahedge")


def exponential_weights(
    cumulative: Floats, losses: Floats, learning_rate: float
) -> tuple[Floats, Floats]:
    """Compute the weights before each sample, w_i proportional to exp(-eta * past losses) (eq. 7).

    Parameters
    ----------
    cumulative : ndarray, shape (N,)
        Losses summed over earlier samples. Weights themselves could underflow.
    losses : ndarray, shape (B, N)
        Of the new samples.
    learning_rate : float
        eta_k.

    Returns
    -------
    weights : ndarray, shape (B, N)
        Row b has the weights before sample b; rows sum to one.
    cumulative : ndarray, shape (N,)
        The sums after the last sample.
    """
    if len(losses) == 1:  # same result as below, in a third of the time
        weights = np.exp(learning_rate * (np.minimum.reduce(cumulative) - cumulative))
        return (weights / np.add.reduce(weights))[None], cumulative + losses[0]
    past = np.empty((losses.shape[0] + 1, losses.shape[1]))
    past[0] = cumulative
    np.cumsum(losses, axis=0, out=past[1:])
    past[1:] += cumulative
    weights = np.exp(learning_rate * (past[:-1].min(axis=1, keepdims=True) - past[:-1]))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights, past[-1].copy()


@dataclass
class Hedge:
    """AdaHedge, without learning rate or range of losses; inactive experts predict as the mixture.

    ``gap`` is the cumulative mixability gap; the learning rate is ln N / gap.

    References
    ----------
    de Rooij, van Erven, Grunwald and Koolen, "Follow the Leader If You Can, Hedge If You Must",
    JMLR 15, 2014. Freund, Schapire, Singer and Warmuth, "Using and Combining Predictors That
    Specialize", STOC 1997.
    """

    losses: Floats
    gap: float = 0.0

    def weights(self, awake: NDArray[np.bool_] | None = None) -> Floats:
        """Return the weights for the next sample; inactive experts get 0."""
        behind = self.losses - (self.losses if awake is None else self.losses[awake]).min()
        if self.gap > 0.0:
            found = np.exp(-math.log(behind.size) / self.gap * np.maximum(behind, 0.0))
        else:  # infinite learning rate: follow the leaders
            found = (behind <= 0.0).astype(np.float64)
        if awake is not None:
            found = np.where(awake, found, 0.0)
        return np.asarray(found / found.sum())

    def learn(self, losses: Floats) -> Floats:
        """Add the losses of a sample and return the weights before it.

        For inactive experts pass the loss of the mixture.
        """
        weights, after = self.weights(), self.losses + losses
        mixed = after.min() - self.losses.min()
        if self.gap > 0.0:
            rate = math.log(losses.size) / self.gap
            # the leader's weight is one over the sum of all, of which its own share is 1
            grown = float(np.exp(rate * (after.min() - after)).sum() * weights.max())
            mixed -= math.log(grown) / rate
        if losses.size > 1:  # a single expert is the mixture
            self.gap += max(0.0, float(weights @ losses - mixed))
        self.losses = after
        return weights


def kernel_weights(
    rule: WeightRule, cumulative: Floats, losses: Floats, gap: float, learning_rate: float
) -> tuple[Floats, Floats, float]:
    if rule == "exponential":
        return *exponential_weights(cumulative, losses, learning_rate), gap
    hedge = Hedge(cumulative, gap)  # each step needs the one before
    weights = np.array([hedge.learn(loss) for loss in losses])
    return weights, hedge.losses, hedge.gap


def current_weights(
    rule: WeightRule, cumulative: Floats, gap: float, learning_rate: float
) -> Floats:
    none = np.zeros((1, cumulative.size))
    weights, _, _ = kernel_weights(rule, cumulative, none, gap, learning_rate)
    return np.asarray(weights[0])


def select_bin(
    weights: Floats, kernels_per_round: int, exploration: float, draw: float
) -> tuple[NDArray[np.int32], Floats]:
    """Choose the bin of kernels to send gradients of (Algorithm 1, eq. 8).

    Kernels, sorted by weight, are cut into ceil(N / M) bins of at most M. With u_j the weight of
    bin j, its probability is xi / (number of bins) + (1 - xi) u_j / sum u.

    Parameters
    ----------
    weights : ndarray, shape (N,)
        Of the client.
    kernels_per_round : int
        M, at most N.
    exploration : float
        xi in (0, 1]; 1: uniform.
    draw : float
        Uniform random number from [0, 1).

    Returns
    -------
    chosen : ndarray of int32, shape (at most M,)
    probabilities : ndarray, shape (at most M,)
        The bin's probability, once per kernel.
    """
    order = (-weights).argsort(kind="stable")
    bins = -(-weights.size // kernels_per_round)
    if exploration == 1.0:
        drawn, probability = int(draw * bins), 1.0 / bins
    else:
        starts = np.arange(0, weights.size, kernels_per_round)
        mass = np.add.reduceat(weights[order], starts)
        chances = (1.0 - exploration) * mass / mass.sum() + exploration / bins
        drawn = int(chances.cumsum().searchsorted(draw, side="right"))
        drawn = min(drawn, bins - 1)  # the last cumulative sum may round below 1
        probability = float(chances[drawn])
    start = drawn * kernels_per_round
    chosen = order[start : start + kernels_per_round].astype(np.int32)
    probabilities = np.empty(chosen.size)
    probabilities.fill(probability)  # np.full takes three times as long
    return chosen, probabilities


def shared_subset(kernels: int, kernels_per_round: int, seed: int, round: int) -> NDArray[np.int32]:
    """Return the M of N kernels that all clients update in a round, in increasing order.

    The choice is public, so it is uniform: it must not depend on weights.
    """
    rng = np.random.default_rng(derive_seed(seed, "shared kernels", round))
    chosen = rng.choice(kernels, kernels_per_round, replace=False)
    return np.sort(chosen).astype(np.int32)


def shared_frequencies(
    kernels: int, features: int, count: int, seed: int, round: int
) -> NDArray[np.int32]:
    """Return kernel * features + frequency of ``count`` frequencies that all clients send.

    The choice is public and uniform, increasing; counts per kernel differ by at most one.
    """
    rng = np.random.default_rng(derive_seed(seed, "shared frequencies", round))
    ranks = rng.random((kernels, features)).argsort(axis=1)  # of the frequencies of a kernel
    each, rest = divmod(count, kernels)
    limits = np.full(kernels, each)
    limits[rng.permutation(kernels)[:rest]] += 1
    return np.flatnonzero(ranks < limits[:, None]).astype(np.int32)


def pick_frequencies(gradient: NDArray[Any], chosen: NDArray[np.int32]) -> NDArray[Any]:
    """Return sine and cosine of chosen frequencies, (M, 2D) -> (count, 2)."""
    kernels, width = gradient.shape
    pairs = gradient.reshape(kernels, 2, width // 2).swapaxes(1, 2).reshape(-1, 2)
    return pairs.take(chosen, axis=0)


def place_frequencies(
    pairs: NDArray[Any], chosen: NDArray[np.int32], kernels: int, features: int
) -> NDArray[Any]:
    """Invert :func:`pick_frequencies`: return the gradient, zero elsewhere."""
    gradient = np.zeros((kernels, 2, features), pairs.dtype)
    gradient[chosen // features, :, chosen % features] = pairs
    return gradient.reshape(kernels, -1)


def select_subset(
    weights: Floats, kernels_per_round: int, exploration: float, rng: np.random.Generator
) -> tuple[NDArray[np.int32], Floats]:
    """Choose exactly M kernels, each with its own probability, so that every message is full.

    The bins of Algorithm 1 waste uplink when M does not divide N. Kernel i is included with
    probability xi M / N + (1 - xi) p_i, where p_i = min(1, s w_i) sums to M; M = 1 is eq. 8.
    Systematic sampling: the kernels lie in random order on a line, each as long as its probability,
    and M equally spaced points choose.

    Parameters
    ----------
    weights : ndarray, shape (N,)
        Of the client.
    kernels_per_round : int
        M, at most N.
    exploration : float
        xi in (0, 1].
    rng : numpy.random.Generator
        Public randomness of this client and round.

    Returns
    -------
    chosen : ndarray of int32, shape (M,)
        Increasing.
    probabilities : ndarray, shape (M,)
        Of inclusion; gradients are divided by them.

    References
    ----------
    Madow, "On the Theory of Systematic Sampling, II", Annals of Mathematical Statistics, 1949.
    """
    kernels, wanted = weights.size, kernels_per_round
    inclusion = np.full(kernels, wanted / kernels)
    if exploration < 1.0:
        inclusion *= exploration
        inclusion += (1.0 - exploration) * _capped(weights, wanted)
    order = rng.permutation(kernels)
    ends = np.cumsum(inclusion[order])
    ends[-1] = wanted  # exactly, not only up to rounding
    points = np.searchsorted(ends, np.arange(wanted) + rng.random(), side="right")
    chosen = np.sort(order[points]).astype(np.int32)
    return chosen, inclusion[chosen]


def _capped(weights: Floats, total: int) -> Floats:
    """Scale weights so that min(1, s w) sums to ``total``; a remainder is shared out."""
    descending = np.sort(weights)[::-1]
    rest = np.cumsum(descending[::-1])[::-1]  # rest[c]: all but the c largest
    scale = (total - np.arange(weights.size)) / np.maximum(rest, _TINY)
    capped = int(np.argmax(descending * scale <= 1.0))
    shares = np.minimum(1.0, weights * scale[capped])
    room = 1.0 - shares
    deficit = total - shares.sum()
    return np.asarray(shares + deficit * room / room.sum()) if deficit > 0.0 else shares


class GradientDescent:
    """Take the paper's step, theta_i -= eta * g_i (eq. 10)."""

    def __init__(self, step: float) -> None:
        self.step = step
        self.state: Floats = np.zeros(0)  # there is no state

    def update(self, theta: Floats, gradient: Floats) -> None:
        theta -= self.step * gradient


class AdaGradNorm:
    """Take the step theta_i -= c g_i / sqrt(sum over rounds of |g_i|^2), one step size per kernel.

    The scale of the gradients cancels, so no step size needs tuning. ``rows`` is the number of
    kernels, ``scale`` c.

    References
    ----------
    Streeter and McMahan, "Less Regret via Online Conditioning", 2010; Ward, Wu and Bottou,
    "AdaGrad Stepsizes", JMLR 21, 2020.
    """

    def __init__(self, rows: int, scale: float = 1.0) -> None:
        self.scale = scale
        self.state = np.zeros(rows)

    def update(self, theta: Floats, gradient: Floats) -> None:
        self.state += np.vecdot(gradient, gradient)
        norm = np.sqrt(self.state)
        theta -= self.scale * gradient / np.where(norm > 0.0, norm, 1.0)[:, None]


def step_rule(step_size: StepSize, rows: int, rounds: int) -> GradientDescent | AdaGradNorm:
    return GradientDescent(1.0 / np.sqrt(rounds)) if step_size == "paper" else AdaGradNorm(rows)


def regret_bound(kernels: int, learning_rate: float, samples: int, largest_loss: float) -> float:
    """Return the bound of Theorem 1 on a client's regret, for losses in [0, c].

    For c <= 1 it is ln N / eta + eta T / 2. For larger losses apply the theorem to L / c with
    learning rate eta c: ln N / eta + eta c^2 T / 2.
    """
    largest = max(1.0, largest_loss)
    return float(np.log(kernels) / learning_rate + learning_rate * largest**2 * samples / 2.0)


def check_rows(x: NDArray[Any], y: NDArray[Any], party: str) -> None:
    """Raise TableError unless features and labels are finite numbers of shapes (n, d) and (n,)."""
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y):
        raise TableError(
            f"features of shape {x.shape} and labels of shape {y.shape} do not fit",
            remedy="pass x of shape (n, d) and y of shape (n,)",
            party=party,
            code="FK-SHAPE-DIFFERS",
        )
    if not {x.dtype.kind, y.dtype.kind} <= set("biuf"):
        raise TableError(
            "features or labels that are not numbers",
            remedy="convert them, or leave out their columns",
            party=party,
            code="FK-COLUMN-NUMBERS",
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise TableError(
            "NaN or infinite values",
            remedy="clean the table first",
            party=party,
            code="FK-VALUES-FINITE",
        )


# -- drift: a rise of the prediction error while a run learns
#
# The server knows the input anyway: errors of all clients' samples, summed per message. The test is
# ADWIN of Bifet and Gavalda, "Learning from Time-Changing Data with Adaptive Windowing", SDM 2007.

#: Chance of a false alarm per message, if errors of messages are independent.
DELTA = 0.002
_LEAST = 5  # messages on each side of a change
_MOST = 400  # messages that are tested one by one; more are tested in blocks
_TINY = 1e-12
_ROUNDING = 1e-6  # changes of a mean that may be rounding, where errors are all alike


def message_errors(history: Sequence[Mapping[str, Any]]) -> tuple[Floats, Floats]:
    """Return the samples of a client after each message, and the mean squared error within it.

    ``history`` has ``round`` (samples so far) and ``mse`` (of all of them) of each message. A
    message without a reported error is merged with the next one.
    """
    told = [(row["round"], row["mse"]) for row in history if row["mse"] is not None]
    if not told:
        return np.zeros(0), np.zeros(0)
    t, so_far = np.array(told, np.float64).T
    samples, totals = np.diff(t, prepend=0.0), np.diff(t * so_far, prepend=0.0)
    some = samples > 0.0
    return t[some], (totals[some] / samples[some]).clip(0.0)


def recent_errors(history: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """Return (t, error of the last tenth of a run's samples up to t); it rises with drift."""
    told = [(0, 0.0)]
    told += [(row["round"], row["round"] * row["mse"]) for row in history if row["mse"] is not None]
    found, first = [], 0
    for t, total in told[1:]:
        while told[first + 1][0] <= t - told[-1][0] / 10:
            first += 1
        before, earlier = told[first]
        if before <= t - told[-1][0] / 10:
            found.append((t, max(0.0, total - earlier) / (t - before)))
    return found


def rises(history: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return after how many samples of a client the error began to rise.

    ADWIN on the logarithms of the messages' errors, so that units do not matter. It cuts the window
    where the means of its two parts differ by more than the bound for normal deviations. Cuts where
    the error fell are learning and are left out.
    """
    t, errors = message_errors(history)
    block = -(-len(errors) // _MOST)
    if block > 1:
        whole = len(errors) // block * block
        t = t[block - 1 : whole : block]
        errors = errors[:whole].reshape(-1, block).mean(axis=1)
    values, start = np.log(errors + _TINY), 0
    found: list[int] = []
    for stop in range(2 * _LEAST, len(values) + 1):
        while (cut := _cut(values[start:stop])) is not None:
            where, rose = cut
            start, before = start + where, start
            if rose and not (found and where <= 2 * _LEAST and found[-1] == t[before - 1]):
                found.append(int(t[start - 1]))
    return found


def _cut(window: Floats) -> tuple[int, bool] | None:
    """Return where to cut a window and whether the mean rises there; None without a cut."""
    n = len(window)
    first = np.arange(_LEAST, n - _LEAST + 1)
    if not len(first):
        return None
    sums, squares = np.cumsum(window), window @ window
    before = sums[first - 1] / first
    after = (sums[-1] - sums[first - 1]) / (n - first)
    within = (squares - first * before**2 - (n - first) * after**2).clip(0.0) / (n - 2)
    harmonic = 1.0 / (1.0 / first + 1.0 / (n - first))
    length = np.log(2.0 * np.log(n) / DELTA)
    bound = np.sqrt(within) * (np.sqrt(2.0 / harmonic * length) + 2.0 / (3.0 * harmonic) * length)
    excess = np.abs(after - before) - bound - _ROUNDING
    best = int(excess.argmax())
    return (int(first[best]), bool(after[best] > before[best])) if excess[best] > 0.0 else None
