"""Clipped updates with noise: what a round of averaging costs, whoever takes part.

A node's update is what its app returns less what it was sent. All its arrays together are clipped
to a Euclidean length C. Other data in place of a node's move the sum of updates by 2 C at most, and
by what rounding does. The noise of the nodes that are in the sum, less that of the colluders, adds
up to a standard deviation of z C or more (z is the noise multiplier).

The mean is of equal weights. A weight by the number of examples would let one node count for all of
the clip, and others for nothing.

Participation is not sampled, so nothing is gained by it: rounds add up.

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
from ..privacy.accounting import check_accountant, epsilon_of, skellam_curve
from ..privacy.noise import LEAST_VARIANCE, TOTAL_VARIATION
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
        z: the noise of a mean's sum has at least the standard deviation z C.
    """

    length: float
    multiplier: float

    @classmethod
    def of(cls, clip: float | None, noise_multiplier: float | None) -> Clip | None:
        """Return a clip with its noise; None where neither is asked for.

        Raises
        ------
        OptionError
            One is asked for without the other, or is no positive number.
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
        """Fractional bits: the noise of a sum has a standard deviation of 2^14 to 2^15 units.

        Raises
        ------
        OptionError
            There are none such.
        """
        found = _WIDEST - math.ceil(math.log2(self.multiplier * self.length))
        if abs(found) > _MOST_FRACTION:
            raise OptionError(
                f"no unit fits noise of {self.multiplier * self.length:g}",
                remedy="scale the model, or use another clip",
                code="FK-CLIP-UNIT",
            )
        return found

    def release(self, budget: Budget, numbers: int, parties: int, least: int) -> Release:
        """Return what a round costs and which noise each node adds.

        Parameters
        ----------
        budget : Budget
            Of the run.
        numbers : int
            Of an update.
        parties, least : int
            N, nodes of a sum; t, fewest over which it can be opened.

        Raises
        ------
        OptionError
            All of the fewest collude, or there is no such noise.
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
        """Return the smallest ring that has room for the sum and its noise.

        Raises
        ------
        OptionError
            There is none.
        """
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
        """Return an update of at most the clip's length, zeros of one that is not finite."""
        largest = float(np.abs(update).max(initial=0.0))
        if not math.isfinite(largest):
            logger.error("the update is not finite: zeros take its place")
            return np.zeros_like(update)
        norm = largest * float(np.linalg.norm(update / largest)) if largest else 0.0
        return update * min(1.0, _SHORTER * self.length / norm) if norm else update


class NoisyMeans:
    """What the means of a run cost, at the server.

    Parameters
    ----------
    clip : Clip
    delta : float
        At which epsilon is told.
    colluders : int
        c, nodes that may tell the noise that they added.

    Attributes
    ----------
    budget : Budget
        Of the run, once it is :meth:`open`.

    Raises
    ------
    OptionError
        There is no such budget, or ``dp-accounting`` is not installed.
    """

    def __init__(self, clip: Clip, delta: float, colluders: int) -> None:
        check_accountant()
        self.clip = clip
        self.budget = Budget(1.0, delta, "party", colluders)
        self._released: list[tuple[Release, int]] = []  # of each mean, and how many are in it

    def open(self, numbers: int, rounds: int) -> None:
        """Begin a run: what so many means of updates cost follows from no number of nodes.

        Raises
        ------
        OptionError
            There is no such noise.
        """
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
        """Return the arrays moved by the mean of updates, and what all means have cost."""
        self._released.append((release, survivors))
        return shifted(sent, total / survivors), {"epsilon": self.spent}

    @property
    def spent(self) -> float:
        """Epsilon of the means that were opened."""
        if not self._released:
            return 0.0
        curves = [release.curve for release, _ in self._released]
        return epsilon_of(np.sum(curves, axis=0), self._released[0][0].delta)

    def report(self) -> dict[str, Any]:
        """Return what ``privacy()`` says of it."""
        releases = [release.report(parties) for release, parties in self._released]
        return {**vars(self.budget), "spent": self.spent, "releases": releases}


def flatten(arrays: ArrayRecord) -> NDArray[np.float64]:
    """Return all numbers of a record, by the order of its names."""
    parts = [np.asarray(array.numpy(), np.float64).ravel() for array in arrays.values()]
    return np.concatenate([np.zeros(0), *parts])


def shifted(sent: ArrayRecord, update: NDArray[np.float64]) -> ArrayRecord:
    """Return the arrays that were sent, moved by an update; whole numbers become float64."""
    start, out = 0, {}
    for name, array in sent.items():
        size, dtype = math.prod(array.shape), np.dtype(array.dtype)
        values = array.numpy().astype(np.float64) + update[start : start + size].reshape(
            array.shape
        )
        out[name] = Array(np.asarray(values, dtype if dtype.kind == "f" else np.float64))
        start += size
    return ArrayRecord(out)
