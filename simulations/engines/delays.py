"""Simulated delays of groups of users: some are slow in every iteration, or now and then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

from fedkern_flwr.errors import OptionError
from fedkern_flwr.seeding import uniform

from .faults import Delivery, Fault, Plan

Law = Literal["exponential", "fixed"]

#: Phases whose replies are held back: those in which users work.
DELAYED = frozenset({"svm-local", "svm-step", "svm-visit"})

_LONGEST = 3600.0  # seconds
_REMEDY = "use exponential:SECONDS or fixed:SECONDS, for all groups or a number for each"


@dataclass(frozen=True)
class DelayLaw:
    """How long the groups' replies are held back.

    Attributes
    ----------
    law : {"exponential", "fixed"}
        Draws with these means, or always the same.
    means : tuple of float
        Seconds: one number for all groups, or one for each.

    Examples
    --------
    >>> DelayLaw.parse("exponential:0.05,0.25")
    DelayLaw(law='exponential', means=(0.05, 0.25))
    """

    law: Law
    means: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``LAW:SECONDS`` or ``LAW:SECONDS,SECONDS,...``.

        Raises
        ------
        OptionError
        """
        law, _, numbers = text.partition(":")
        try:
            means = tuple(float(number) for number in numbers.split(","))
        except ValueError:
            raise OptionError(f"delay is {text!r}", remedy=_REMEDY, code="FK-OPTION-TYPE") from None
        if law not in get_args(Law) or not all(0.0 <= mean <= _LONGEST for mean in means):
            raise OptionError(f"delay is {text!r}", remedy=_REMEDY, code="FK-OPTION-TYPE")
        return cls(law, means)  # type: ignore[arg-type]

    def check(self, groups: int) -> None:
        """Refuse numbers that are neither for all groups nor for each.

        Raises
        ------
        OptionError
        """
        if len(self.means) not in (1, groups):
            raise OptionError(
                f"delay has {len(self.means)} numbers for {groups} groups",
                remedy=_REMEDY,
                code="FK-GROUPS-DIFFER",
            )

    def seconds(self, group: int, number: int, seed: int) -> float:
        """Return the delay of a group in an iteration, a function of the arguments alone."""
        mean = self.means[group if len(self.means) > 1 else 0]
        if self.law == "fixed":
            return mean
        return -mean * math.log1p(-uniform(seed, "delay", group, number))


@dataclass(frozen=True)
class GroupDelays:
    """Holds back the replies of all users of a group by the same time, drawn per iteration.

    Parameters
    ----------
    law : DelayLaw
    groups : sequence of int
        The group of each user, by partition; other partitions are not held back.
    seed : int (default: 0)

    Raises
    ------
    OptionError
        See :meth:`DelayLaw.check`.
    """

    law: DelayLaw
    groups: Sequence[int]
    seed: int = 0

    def __post_init__(self) -> None:
        self.law.check(len(set(self.groups)))

    def __call__(self, delivery: Delivery) -> Fault | None:
        """Say by how much the reply is late."""
        if delivery.phase not in DELAYED or not 0 <= delivery.partition < len(self.groups):
            return None
        seconds = self.law.seconds(self.groups[delivery.partition], delivery.round, self.seed)
        return Fault("delay", seconds=seconds) if seconds > 0.0 else None


def first_fault(*plans: Plan | None) -> Plan | None:
    """Return several plans in one: what the first of them says that says anything."""
    given = [plan for plan in plans if plan is not None]
    if len(given) < 2:
        return given[0] if given else None
    return lambda delivery: next((f for plan in given if (f := plan(delivery)) is not None), None)
