"""Does a method keep the budget that it says it keeps? Audits of epsilon.

A run of the method over one table and a run over its worst neighbour, which differs in one record,
or in all records of a party, tell what the parties add to a sum with noise, and how much noise they
were told to add. The sum is then released thousands of times by the parties' own code, with fresh
noise, over the fewest parties that can open it, and the best test tries to tell the tables apart by
what is left once the server and the colluders have taken off all that they know
(:mod:`..attacks.likelihood_ratio`).

A method is entered by a :class:`Case` (:mod:`.budget_cases`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.privacy import Release
from fedkern_flwr.privacy.budget import Unit
from fedkern_flwr.wire.sums import Order

from ...engines import simulate
from ..attacks.likelihood_ratio import (
    epsilon_of_shift,
    gaussian_epsilon,
    proven_epsilon,
    shift_of_epsilon,
)
from ..attacks.replayed_sums import ReplayedSum, contributions

Floats = NDArray[np.float64]
Record = tuple[Floats, float]  # columns in [0, 1], label of -1 or 1

DELTA = 1e-5
WIDTH = 2  # columns
_TRIED, _KEPT = 2000, 8  # records among which the worst two are looked for


def _noised(strategy: Any) -> Iterable[Release]:
    return (release for release, _ in strategy.noised_.values())


@dataclass(frozen=True)
class Case:
    """A sum of a method that has a budget.

    Attributes
    ----------
    method, sum : str
        Its name on the command line; that of the sum, before a #.
    parties : int
    run : callable
        A record, the number of parties and the options of a budget -> the strategy of a run whose
        first such sum has nothing behind it but rows, and the ``client_fn`` of its parties, or
        their app: of party 0 the first row is the record, or all are.
    term : callable
        A record -> what it adds to the sum; its scale does not matter.
    unit : {"row", "party"}
        Of the budget.
    least : int or None
        Fewest parties over which the sum can be opened, by default all.
    colluders : int
    start : dict
        Further arguments of the run: of a sum that all rounds make one has all of the budget.
    released : callable
        A strategy after its run -> what it released with noise.
    uses : float
        How much of the length that is charged for the worst two records use, at least.
    """

    method: str
    sum: str
    parties: int
    run: Callable[..., tuple[Any, Any]]
    term: Callable[[Record], Floats]
    unit: Unit = "row"
    least: int | None = None
    colluders: int = 1
    start: Mapping[str, Any] = field(default_factory=dict)
    released: Callable[[Any], Iterable[Release]] = _noised
    uses: float = 0.99

    @property
    def fewest(self) -> int:
        """Fewest parties over which the sum can be opened."""
        return self.parties if self.least is None else self.least

    @property
    def title(self) -> str:
        """The case in words."""
        whole = ", unit party" if self.unit == "party" else ""
        return f"{self.method}, {self.sum}, {self.fewest} of {self.parties} parties{whole}"


@dataclass(frozen=True)
class Audited:
    """What an audit of epsilon found.

    Attributes
    ----------
    case : Case
    declared, delta : float
        Of the budget of the run.
    epsilon : float
        What the sum is charged: all of the budget, or its part.
    moved, sensitivity : float
        Length by which the unit moves what its party adds, and what is charged for.
    reached : float
        Epsilon of the best test of these two tables: what is charged less what they do not use.
    one, other : ndarray, shape (draws,)
        Projections with the one record and the other, in standard deviations of the noise.
    confidence : float
    """

    case: Case
    declared: float
    delta: float
    epsilon: float
    moved: float
    sensitivity: float
    reached: float
    confidence: float
    one: Floats = field(repr=False)
    other: Floats = field(repr=False)

    @property
    def gaussian(self) -> float:
        """Lower bound of epsilon, of noise that is nearly normal."""
        return gaussian_epsilon(self.one, self.other, self._shift, self.delta, self.confidence)

    @property
    def proven(self) -> float:
        """Lower bound of epsilon, whatever the law of the noise."""
        return proven_epsilon(self.one, self.other, self._shift, self.delta, self.confidence)

    @property
    def advantage(self) -> float:
        """Share of draws with the other record beyond the middle, less that with the one."""
        middle = self._shift / 2.0
        return float((self.other > middle).mean() - (self.one > middle).mean())

    @property
    def kept(self) -> bool:
        """Whether neither charge nor length nor bound contradicts the budget."""
        within = self.epsilon <= self.declared * (1.0 + 1e-6)
        within = within and self.moved <= self.sensitivity * (1.0 + 1e-9)
        return within and max(self.gaussian, self.proven) <= self.epsilon

    @property
    def _shift(self) -> float:
        return shift_of_epsilon(self.epsilon, self.delta)


@contextmanager
def silence() -> Iterator[None]:
    """Say nothing of runs over rows that are made up."""
    logger = logging.getLogger("fedkern_flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@silence()
def audit_epsilon(
    case: Case,
    epsilon: float,
    *,
    draws: int,
    seed: int = 0,
    delta: float = DELTA,
    confidence: float = 0.95,
) -> Audited:
    """Release the sum of a case so often with one record and the other; tell them apart.

    Parameters
    ----------
    case : Case
        The sum.
    epsilon, delta : float
        The budget that the runs declare.
    draws : int
        Releases of each table.
    seed : int
        Of the search for the worst record; the noise has none.
    confidence : float
        Of the lower bounds.

    Raises
    ------
    ProtocolError
        The runs made no such sum with noise, or it differs in more than the record.
    """
    first, second = (
        _run(case, record, epsilon, delta) for record in worst_records(case.term, seed)
    )
    same = all(np.array_equal(first.vectors[p], second.vectors[p]) for p in first.vectors if p)
    if not same or first.noise != second.noise:
        raise ProtocolError(f"{case.title}: the two runs differ in more than a record")
    replayed = ReplayedSum(
        first.order,
        first.vectors,
        case.least,
        range(case.parties - case.colluders, case.parties),
    )
    one, other = first.vectors[0], second.vectors[0]
    moved = float(np.linalg.norm(other - one))
    deviation = first.told.noise.deviation(len(replayed.alive) - case.colluders)

    def scores(values: Floats) -> Floats:
        found = replayed.releases(0, values, draws) - one
        return np.asarray(found @ (other - one) / (moved * deviation))

    return Audited(
        case=case,
        declared=first.told.budget.epsilon,
        delta=first.told.budget.delta,
        epsilon=first.told.epsilon,
        moved=moved,
        sensitivity=first.told.sensitivity,
        reached=epsilon_of_shift(moved / deviation, delta),
        confidence=confidence,
        one=scores(one),
        other=scores(other),
    )


@dataclass(frozen=True)
class _Run:
    """A sum as a run had it made, what its parties added, and what the run said of it."""

    order: Order
    vectors: dict[int, Floats]
    told: Release

    @property
    def noise(self) -> tuple[int, int, int]:
        return self.order.noise, self.order.fraction, self.order.length


def _run(case: Case, record: Record, epsilon: float, delta: float) -> _Run:
    """Run the method with a budget, once.

    Raises
    ------
    ProtocolError
        There is no such sum, or not of all parties alike.
    """
    budget = {
        "privacy_epsilon": epsilon,
        "privacy_delta": delta,
        "privacy_unit": case.unit,
        "privacy_colluders": case.colluders,
    }
    strategy, clients = case.run(record, case.parties, **budget)
    with contributions() as found:
        simulate(strategy, clients, case.parties, **case.start)
    added = found.get(case.sum, {})
    told = {release.name: release for release in case.released(strategy)}
    if len(added) != case.parties or case.sum not in told:
        raise ProtocolError(f"{case.title}: the run made no such sum with noise")
    return _Run(added[0][0], {p: values for p, (_, values) in added.items()}, told[case.sum])


@cache
def worst_records(term: Callable[[Record], Floats], seed: int) -> tuple[Record, Record]:
    """Return two records whose terms are as far apart as a search finds them."""
    rng = np.random.default_rng(seed)

    def apart(flat: Floats, labels: tuple[float, float]) -> float:
        one, other = flat.clip(0.0, 1.0).reshape(2, WIDTH)
        return float(np.linalg.norm(term((one, labels[0])) - term((other, labels[1]))))

    best = (0.0, np.zeros(2 * WIDTH), (1.0, -1.0))
    for labels in ((1.0, -1.0), (1.0, 1.0)):
        tried = rng.random((_TRIED, 2 * WIDTH))
        found = np.array([apart(flat, labels) for flat in tried])
        for start in tried[np.argsort(found)[-_KEPT:]]:
            better = minimize(lambda *at: -apart(*at), start, args=(labels,), method="Nelder-Mead")
            best = max(best, (-better.fun, better.x, labels), key=lambda pair: pair[0])
    _, flat, labels = best
    one, other = flat.clip(0.0, 1.0).reshape(2, WIDTH)
    return (one, labels[0]), (other, labels[1])
