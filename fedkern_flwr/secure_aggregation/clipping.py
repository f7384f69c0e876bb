"""Clip updates and add noise: what a round of averaging costs, whichever nodes take part.

A node's update is the difference of the returned and the sent arrays, clipped together to a
Euclidean length C. Replacing a node's data moves the sum of updates by at most 2 C, plus rounding.
The noise of the nodes in the sum, without the colluders, has a standard deviation of at least z C
(z is the noise multiplier).

The mean has equal weights. If examples were weights, one node could count for the whole clip, and
others for nothing. Participation is not sampled, so there is no amplification: rounds add up.

References
----------
McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private Recurrent Language Models",
2018.

Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated Learning",
2021.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from ..errors import OptionError
from ..privacy import Budget, NoisySum, Release
from ..privacy.accounting import (
    LEAST_VARIANCE,
    TOTAL_VARIATION,
    check_accountant,
    epsilon_of,
    skellam_curve,
)
from ..secure_sum.encoding import Encoding
from ..secure_sum.membership import Cohort
from . import averages

logger = logging.getLogger("fedkern_flwr")

_WIDEST = 15  # bits of the standard deviation of the noise of a sum, in units of the last place
_MOST_FRACTION = 40
_DRAWN = 2.0**-10  # share of delta that is left to the sampler
_RUNS = float(1 << 16)  # rounds, times parties in a sum, that it is enough for
_SHORTER = 1.0 - 2.0**-40  # so that no rounding of floats makes an update longer than the clip


@dataclass(frozen=True)
class Clip:
    """A clip with its noise.

    Attributes
    ----------
    length : float
        C, largest Euclidean length of an update.
    multiplier : float
        z: the noise of a sum has at least the standard deviation z C.
    """

    length: float
    multiplier: float

    @classmethod
    def of(cls, clip: float | None, noise_multiplier: float | None) -> Clip | None:
        """Return a clip with its noise; None if both are None.

        Raises
        ------
        OptionError
            One is missing, or is no positive number.
        """
        if clip is None and noise_multiplier is None:
            return None
        for name, value in (("clip", clip), ("noise_multiplier", noise_multiplier)):
            if value is None:
                raise OptionError(
                    f"{name} is missing",
                    remedy="give clip and noise_multiplier",
                    code="FK-OPTION-PARTNER",
                )
            if not 0.0 < value < math.inf:
                raise OptionError(
                    f"{name} is {value}", remedy="use a positive number", code="FK-OPTION-RANGE"
                )
        assert clip is not None
        assert noise_multiplier is not None
        return cls(float(clip), float(noise_multiplier))

    @property
    def fraction(self) -> int:
        """Fractional bits: the noise of a sum has a standard deviation of 2^14 to 2^15 units."""
        found = _WIDEST - math.ceil(math.log2(self.multiplier * self.length))
        if abs(found) > _MOST_FRACTION:
            raise OptionError(
                f"no unit fits noise of {self.multiplier * self.length:g}",
                remedy="scale the model, or use another clip",
                code="FK-CLIP-UNIT",
            )
        return found

    def release(self, budget: Budget, numbers: int, parties: int, least: int) -> Release:
        """Return what a round costs, and the noise of each node.

        An update has ``numbers`` numbers. A sum has N = ``parties`` nodes, and can be opened over t
        = ``least``.

        Raises
        ------
        OptionError
            Too many collude, or there is no such noise.
        """
        honest = budget.honest(least, "the mean")
        scale = 2.0**self.fraction
        variance = math.ceil((self.multiplier * self.length * scale) ** 2)
        share = max(-(-variance // honest), LEAST_VARIANCE)
        moved = 2.0 * self.length * scale + math.sqrt(numbers)
        absolute = min(math.sqrt(numbers) * moved, moved**2)
        curve = skellam_curve(float(variance), moved, absolute)
        delta = budget.delta * (1.0 - _DRAWN)
        drawn = float(numbers) * parties * _RUNS * TOTAL_VARIATION
        if (math.exp(min(budget.epsilon, 700.0)) + 1.0) * drawn > budget.delta * _DRAWN:
            raise OptionError(
                f"the run would cost epsilon {budget.epsilon:.3g}, more than the noise is exact to",
                remedy="use a larger noise_multiplier or fewer rounds",
                code="FK-BUDGET-EXACT",
            )
        noise = NoisySum(share, self.fraction)
        name = averages.TRAIN_SUM
        return Release(name, noise, curve, delta, moved / scale, honest, budget)

    def encoding(self, release: Release, parties: int) -> Encoding:
        """Return the smallest ring with room for the sum and its noise."""
        for bits in (32, 64):
            found = Encoding.fixed_point(self.length, bits).noisy(release.noise)
            try:
                found.check_room(parties)
            except OptionError:
                if bits == 64:
                    raise OptionError(
                        f"updates up to {self.length:g} with their noise overflow a 64-bit ring",
                        remedy="use a larger noise_multiplier",
                        code="FK-CLIP-OVERFLOW",
                    ) from None
                continue
            break
        return found

    def shorten(self, update: NDArray[np.float64]) -> NDArray[np.float64]:
        """Clip an update; zeros for one that is not finite."""
        largest = float(np.abs(update).max(initial=0.0))
        if not math.isfinite(largest):
            logger.error("the update is not finite: zeros take its place")
            return np.zeros_like(update)
        norm = largest * float(np.linalg.norm(update / largest)) if largest else 0.0
        return update * min(1.0, _SHORTER * self.length / norm) if norm else update


class NoisyMeans:
    """Account for the means of a run, at the server.

    Parameters
    ----------
    clip : Clip
        Clip and noise multiplier.
    delta : float
        Delta of the reported epsilon.
    colluders : int
        c, nodes that may reveal their noise.

    Attributes
    ----------
    budget : Budget
        Budget of the run, after :meth:`open`.
    """

    def __init__(self, clip: Clip, delta: float, colluders: int) -> None:
        check_accountant()
        self.clip = clip
        self.budget = Budget(1.0, delta, "party", colluders)
        self._released: list[tuple[Release, int]] = []  # of each mean, and how many are in it

    def open(self, numbers: int, rounds: int) -> None:
        """Start a run; compute the cost of ``rounds`` means, for any number of nodes."""
        self._released, least = [], self.budget.colluders + 1
        some = replace(self.budget, epsilon=1.0)
        one = self.clip.release(some, numbers, least, least)
        epsilon = epsilon_of(rounds * one.curve, one.delta)
        if not 0.0 < epsilon < math.inf:
            raise OptionError(
                f"{rounds} rounds have no epsilon at delta {some.delta:g}",
                remedy="use a larger noise_multiplier",
                code="FK-BUDGET-EXACT",
            )
        self.budget = replace(some, epsilon=epsilon)

    def release(self, numbers: int, cohort: Cohort) -> Release:
        """Return what a mean costs; see :meth:`Clip.release`."""
        return self.clip.release(self.budget, numbers, len(cohort.members), cohort.threshold)

    def mean(
        self, sent: ArrayRecord, total: NDArray[np.float64], release: Release, survivors: int
    ) -> tuple[ArrayRecord, dict[str, float]]:
        """Return the arrays moved by the mean of updates, and the cost of all means."""
        self._released.append((release, survivors))
        return shifted(sent, total / survivors), {"epsilon": self.spent}

    @property
    def spent(self) -> float:
        """Epsilon of the opened means."""
        if not self._released:
            return 0.0
        curves = [release.curve for release, _ in self._released]
        return epsilon_of(np.sum(curves, axis=0), self._released[0][0].delta)

    def report(self) -> dict[str, Any]:
        releases = [release.report(parties) for release, parties in self._released]
        return {**vars(self.budget), "spent": self.spent, "releases": releases}


def flatten(arrays: ArrayRecord) -> NDArray[np.float64]:
    parts = [np.asarray(array.numpy(), np.float64).ravel() for array in arrays.values()]
    return np.concatenate([np.zeros(0), *parts])


def shifted(sent: ArrayRecord, update: NDArray[np.float64]) -> ArrayRecord:
    """Return the sent arrays, moved by an update; integers become float64."""
    start, out = 0, {}
    for name, array in sent.items():
        size, dtype = math.prod(array.shape), np.dtype(array.dtype)
        values = array.numpy().astype(np.float64) + update[start : start + size].reshape(
            array.shape
        )
        out[name] = Array(np.asarray(values, dtype if dtype.kind == "f" else np.float64))
        start += size
    return ArrayRecord(out)
