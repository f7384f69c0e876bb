"""Define the privacy budget of a run, and the noise of a release within it.

Each party of a sum adds noise of variance v / (t - c), where v is the variance that the release
needs. The sum can be opened over at least t parties, and c colluders can subtract their noise. So
every opened sum has at least variance v of noise that nobody knows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from ..errors import FedKernError, OptionError
from ..plain_text import read_json
from .accounting import (
    LEAST_VARIANCE,
    TOTAL_VARIATION,
    Curve,
    epsilon_of,
    least_variance,
    skellam_curve,
)

Unit = Literal["row", "party"]

#: A party's noise has at most this standard deviation, in units of the last place.
_WIDEST = 1 << 15
_FINEST, _COARSEST = 40, -20  # fractional bits


@dataclass(frozen=True)
class Budget:
    """Limit what a run may cost.

    Attributes
    ----------
    epsilon, delta : float
        Limits for all releases of the run about a unit.
    unit : {"row", "party"}
        What is substituted: one record, or all records of a party.
    colluders : int
        c, parties that may reveal their noise.
    """

    epsilon: float
    delta: float = 1e-5
    unit: Unit = "row"
    colluders: int = 1

    def __post_init__(self) -> None:
        if not 0.0 < self.epsilon < math.inf:
            raise OptionError(
                f"privacy_epsilon is {self.epsilon}",
                remedy="use a positive number, such as 3",
                code="FK-OPTION-RANGE",
            )
        if not 0.0 < self.delta < 1.0:
            raise OptionError(
                f"privacy_delta is {self.delta}",
                remedy="use less than one over the rows",
                code="FK-OPTION-RANGE",
            )
        if self.unit not in get_args(Unit):
            raise OptionError(
                f"privacy_unit is {str(self.unit)[:20]!r}",
                remedy="row or party",
                code="FK-OPTION-CHOICE",
            )
        if self.colluders < 0:
            raise OptionError(
                f"privacy_colluders is {self.colluders}",
                remedy="use 0 or more",
                code="FK-OPTION-RANGE",
            )

    def check_rows(self, rows: Sequence[int]) -> None:
        """Refuse a delta with which a release could show whole records.

        ``rows`` are those of each party. Delta must be less than one over all rows; with unit
        ``party``, one over the parties.
        """
        count, what = (len(rows), "parties") if self.unit == "party" else (sum(rows), "rows")
        if self.delta * count >= 1.0:
            raise OptionError(
                f"privacy_delta {self.delta:g} is not less than one over the {count} {what}",
                code="FK-BUDGET-DELTA",
            )

    def write(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    @lru_cache(maxsize=64)  # a node reads it for every sum
    def read(cls, text: str) -> Budget | None:
        """Read the text of :meth:`write`; None for an empty one."""
        if not text:
            return None
        try:
            found = read_json(text)
            kinds = {"epsilon": float, "delta": float, "unit": str, "colluders": int}
            if {name: type(value) for name, value in found.items()} == kinds:
                return cls(**found)
        except (ValueError, AttributeError, FedKernError):
            pass
        raise OptionError("the budget of the run is none", code="FK-MESSAGE-FIELD")

    def honest(self, least: int, name: str) -> int:
        """Return t - c for a sum over at least t = ``least`` parties, which must be positive."""
        if least <= self.colluders:
            raise OptionError(
                f"{name} may be opened over {least} parties of which {self.colluders} collude",
                code="FK-BUDGET-COLLUDERS",
            )
        return least - self.colluders


@dataclass(frozen=True)
class NoisySum:
    """Noise of a sum, the same for all its parties.

    Attributes
    ----------
    variance : int
        Variance of each party's noise, in squared units of the last place; 0 for none.
    fraction : int
        Fractional bits of the fixed point: a unit is 2^-fraction.
    """

    variance: int = 0
    fraction: int = 0

    def deviation(self, parties: int) -> float:
        """Return the standard deviation of the noise in a sum over ``parties`` parties."""
        return math.sqrt(parties * self.variance) * 2.0**-self.fraction


@dataclass(frozen=True)
class Release:
    """A sum with noise, and what it costs.

    Attributes
    ----------
    noise : NoisySum
        Noise of each party.
    curve : ndarray of float64
        Renyi divergences at the least noise, see :mod:`fedkern_flwr.privacy.accounting`.
    delta : float
        Delta of the reported epsilon, less the sampler's total variation.
    sensitivity : float
        Euclidean distance by which a unit moves the sum, with rounding.
    honest : int
        t - c.
    """

    name: str
    noise: NoisySum
    curve: Curve
    delta: float
    sensitivity: float
    honest: int
    budget: Budget

    @property
    def epsilon(self) -> float:
        """Cost at its delta."""
        return epsilon_of(self.curve, self.delta)

    def report(self, parties: int) -> dict[str, Any]:
        """Return the entry of ``result.json``; ``parties`` contributed."""
        return {
            "release": self.name,
            "mechanism": "skellam",
            "epsilon": self.epsilon,
            "sensitivity": self.sensitivity,
            "declared_deviation": self.noise.deviation(self.honest),
            "deviation": self.noise.deviation(parties),
        }


class Releases:
    """All releases of a run with noise, including those before an interruption.

    ``noised`` maps the name of an opened sum to its release, and its number of parties.
    """

    def __init__(self) -> None:
        self.noised: dict[str, tuple[Release, int]] = {}
        self._earlier: dict[str, Any] = {}

    def note(self, release: Release, parties: int) -> None:
        self.noised[release.name] = release, parties

    def go_on(self, earlier: Mapping[str, Any]) -> None:
        """Restore the releases of an interrupted run."""
        self._earlier = dict(earlier)

    def reports(self) -> dict[str, Any]:
        """Return the entries of ``result.json``, by name."""
        own = {name: one.report(parties) for name, (one, parties) in self.noised.items()}
        return self._earlier | own


@lru_cache(maxsize=64)
def plan_release(
    name: str,
    budget: Budget,
    *,
    sensitivity: float,
    length: int,
    parties: int,
    least: int,
    times: int = 1,
) -> Release:
    """Return the noise of a sum that costs the whole budget, with a unit as fine as sensible.

    Rounding moves a party's vector by at most half a unit per number, before and after the
    substitution: so sqrt(``length``) units are added to the sensitivity. Integers moved by S2 in
    Euclidean length move by at most S1 = min(sqrt(length) S2, S2^2) in absolute length.

    - ``sensitivity``: Euclidean distance by which a unit moves the sum.
    - ``length``: Length of the sum.
    - ``parties``, ``least``: N, parties of the sum; t, fewest parties over which it can be opened.
    - ``times`` (default: 1): Releases about the same unit that share the budget equally.
    """
    honest = budget.honest(least, name)
    # delta loses e^epsilon + 1 times the total variation of all samples
    drawn = float(length) * parties * times * TOTAL_VARIATION
    delta = budget.delta - (math.exp(min(budget.epsilon, 700.0)) + 1.0) * drawn
    if 2.0 * delta <= budget.delta:
        raise OptionError(
            f"epsilon {budget.epsilon:g} is more than the noise is exact to", code="FK-BUDGET-EXACT"
        )
    # with so fine a unit that rounding counts for nothing, noise is too wide by so many bits
    scaled = sensitivity * 2.0**_FINEST
    exact = least_variance(scaled, scaled, budget.epsilon, delta, least=1, times=times)
    finest = _FINEST - max(0, (exact // honest // _WIDEST**2).bit_length() // 2)
    for fraction in range(finest, _COARSEST - 1, -1):
        moved = sensitivity * 2.0**fraction + math.sqrt(length)
        absolute = min(math.sqrt(length) * moved, moved**2)
        needed = least_variance(
            moved, absolute, budget.epsilon, delta, least=honest * LEAST_VARIANCE, times=times
        )
        share = -(-needed // honest)
        if share <= _WIDEST**2:
            curve = skellam_curve(float(share * honest), moved, absolute)
            noise = NoisySum(share, fraction)
            return Release(name, noise, curve, delta, moved * 2.0**-fraction, honest, budget)
    raise OptionError(
        f"no noise is enough for {name} at epsilon {budget.epsilon:g}", code="FK-BUDGET-SMALL"
    )


def plan_sum(
    name: str,
    budget: Budget,
    *,
    sensitivity: float,
    length: int,
    rows: Sequence[int],
    least: int,
    releases: int = 1,
) -> Release:
    """Return the noise of a sum over parties with ``rows`` rows each, see :func:`plan_release`.

    With unit ``row`` a record is either a training or a held-out row, so their costs do not add up.
    A party has both, which share the budget, and all its rows may be substituted. ``sensitivity``
    is for one row; ``releases`` sums about the same rows share the budget.
    """
    budget.check_rows(rows)
    whole = budget.unit == "party"
    return plan_release(
        name,
        budget,
        sensitivity=sensitivity * (max(1, *rows) if whole else 1),
        length=length,
        parties=len(rows),
        least=least,
        times=releases * (2 if whole else 1),
    )
