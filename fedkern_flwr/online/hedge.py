"""AdaHedge over learners of which some may be asleep: the mixture of POF-RLS, and its bound."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass
class Hedge:
    """AdaHedge over experts of which some may be asleep: these predict what the others do.

    Attributes
    ----------
    losses : ndarray, shape (N,)
        Summed so far.
    gap : float
        Cumulative mixability gap.

    References
    ----------
    de Rooij, van Erven, Grunwald and Koolen, "Follow the Leader If You Can, Hedge If You Must",
    JMLR 15, 2014. Freund, Schapire, Singer and Warmuth, "Using and Combining Predictors That
    Specialize", STOC 1997.
    """

    losses: Floats
    gap: float = 0.0

    def weights(self, awake: NDArray[np.bool_] | None = None) -> Floats:
        """Return the weights for the next sample, those of who is asleep 0."""
        behind = self.losses - (self.losses if awake is None else self.losses[awake]).min()
        if self.gap > 0.0 and behind.size > 1:
            found = np.exp(-math.log(behind.size) / self.gap * np.maximum(behind, 0.0))
        else:
            found = (behind <= 0.0).astype(np.float64)
        if awake is not None:
            found = np.where(awake, found, 0.0)
        return np.asarray(found / found.sum())

    def learn(self, losses: Floats) -> None:
        """Take the losses of a sample; that of who slept is the mixture's."""
        weights, before = self.weights(), self.losses.min()
        after = self.losses + losses
        mixed = after.min() - before
        if self.gap > 0.0 and losses.size > 1:
            rate = math.log(losses.size) / self.gap
            shares = [np.exp(-rate * (s - s.min())).sum() for s in (self.losses, after)]
            mixed -= math.log(shares[1] / shares[0]) / rate
        self.gap += max(0.0, float(weights @ losses) - float(mixed))
        self.losses = after


def hedge_bound(experts: int, samples: int, best: float) -> float:
    """Return AdaHedge's bound on the regret, for losses in [0, 1] (JMLR 2014, Theorem 8).

    Parameters
    ----------
    experts, samples : int
        N, and how many samples there were.
    best : float
        Loss of the best expert, summed.
    """
    log, left = math.log(experts), max(0.0, 1.0 - best / samples)
    return 2.0 * math.sqrt(best * left * log) + 16.0 / 3.0 * log + 2.0
