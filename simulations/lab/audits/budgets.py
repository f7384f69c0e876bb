"""Does a method keep the budget that it says it keeps? Audits of epsilon.

A run of the method over one table and a run over its worst neighbour, which differs in one record,
tell what the parties add to a sum with noise, and how much noise they were told to add. The sum is
then released hundreds of times by the parties' own code, with fresh noise, over the fewest parties
that can open it, and the best test tries to tell the tables apart by what is left once the server
and the colluders have taken off all that they know (:mod:`..attacks.likelihood_ratio`).

A method is entered by a :class:`Case`: its sum, a strategy and the clients for a record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.groups.gradients import (
    GRADIENT_SUM,
    gradient,
    public_coordinates,
    shortened,
)
from fedkern_flwr.hybrid import fourier, private
from fedkern_flwr.hybrid.landmarks import public_seed
from fedkern_flwr.kernels.pca import features_of, moments
from fedkern_flwr.online.messages import UPDATE_SUM
from fedkern_flwr.privacy import Release
from fedkern_flwr.solvers.equations import pack_equations
from fedkern_flwr.wire.sums import Order

from ....clients import HybridKernelClient, KernelPCAClient, OnlineKernelClient, SVMClient
from ....strategies import POFMKL, FedCG, HierarchicalSVM, KernelPCA
from ...engines import simulate
from ..attacks.likelihood_ratio import (
    epsilon_of_shift,
    gaussian_epsilon,
    proven_epsilon,
    shift_of_epsilon,
)
from ..attacks.replayed_sums import Contributions, ReplayedSum

Floats = NDArray[np.float64]
Record = tuple[Floats, float]  # columns in [0, 1], label of -1 or 1

DELTA = 1e-5
_ROWS, _WIDTH = 12, 2  # of a party; columns
_TRIED, _KEPT = 2000, 8  # records among which the worst two are looked for


@dataclass(frozen=True)
class Case:
    """A sum of a method that has a budget.

    Attributes
    ----------
    method, sum : str
        Its name on the command line; that of the sum, before a #.
    parties : int
    strategy : callable
        Options of a budget -> the strategy of a run whose first such sum has nothing behind it but
        rows.
    clients : callable
        A record -> ``client_fn`` of a run in which that is the first row of party 0.
    term : callable
        A record -> what it adds to the sum.
    least : int or None
        Fewest parties over which the sum can be opened, by default all.
    colluders : int
    rounds : int or None
        Of the run; of a sum that all rounds make one has all of the budget.
    """

    method: str
    sum: str
    parties: int
    strategy: Callable[..., Any]
    clients: Callable[[Record], Callable[[Any], Any]]
    term: Callable[[Record], Floats]
    least: int | None = None
    colluders: int = 1
    rounds: int | None = None

    @property
    def title(self) -> str:
        """The case in words."""
        opened = self.parties if self.least is None else self.least
        return f"{self.method}, {self.sum}, {opened} of {self.parties} parties"


@dataclass(frozen=True)
class Audited:
    """What an audit of epsilon found.

    Attributes
    ----------
    case : Case
    epsilon, delta : float
        Of the budget.
    moved, sensitivity : float
        Length by which the record moves what its party adds, and what is charged for.
    reached : float
        Epsilon of the best test of these two tables: what is declared less what they do not use.
    one, other : ndarray, shape (draws,)
        Projections with the one record and the other, in standard deviations of the noise.
    confidence : float
    """

    case: Case
    epsilon: float
    delta: float
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
        """Whether neither bound nor length contradicts the budget."""
        within = self.moved <= self.sensitivity * (1.0 + 1e-9)
        return within and max(self.gaussian, self.proven) <= self.epsilon

    @property
    def _shift(self) -> float:
        return shift_of_epsilon(self.epsilon, self.delta)


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
        found = np.array([replayed.release(0, values) - one for _ in range(draws)])
        return np.asarray(found @ (other - one) / (moved * deviation))

    return Audited(
        case=case,
        epsilon=epsilon,
        delta=delta,
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
    budget = {"privacy_epsilon": epsilon, "privacy_delta": delta}
    strategy, watcher = case.strategy(**budget, privacy_colluders=case.colluders), Contributions()
    watched = watcher.watch(case.clients(record))
    simulate(strategy, watched, case.parties, num_rounds=case.rounds)
    added = {p: one.sums[case.sum] for p, one in watcher.parties.items() if case.sum in one.sums}
    told = {release.name: release for release, _ in strategy.noised_.values()}
    if len(added) != case.parties or case.sum not in told:
        raise ProtocolError(f"{case.title}: the run made no such sum with noise")
    return _Run(added[0][0], {p: values for p, (_, values) in added.items()}, told[case.sum])


@cache
def worst_records(term: Callable[[Record], Floats], seed: int) -> tuple[Record, Record]:
    """Return two records whose terms are as far apart as a search finds them."""
    rng = np.random.default_rng(seed)

    def apart(flat: Floats, labels: tuple[float, float]) -> float:
        one, other = flat.clip(0.0, 1.0).reshape(2, _WIDTH)
        return float(np.linalg.norm(term((one, labels[0])) - term((other, labels[1]))))

    best = (0.0, np.zeros(2 * _WIDTH), (1.0, -1.0))
    for labels in ((1.0, -1.0), (1.0, 1.0)):
        tried = rng.random((_TRIED, 2 * _WIDTH))
        found = np.array([apart(flat, labels) for flat in tried])
        for start in tried[np.argsort(found)[-_KEPT:]]:
            better = minimize(lambda *at: -apart(*at), start, args=(labels,), method="Nelder-Mead")
            best = max(best, (-better.fun, better.x, labels), key=lambda pair: pair[0])
    _, flat, labels = best
    one, other = flat.clip(0.0, 1.0).reshape(2, _WIDTH)
    return (one, labels[0]), (other, labels[1])


def _tables(record: Record, parties: int) -> list[tuple[Floats, Floats]]:
    """Return rows and labels of each party; the record is the first of party 0."""
    rng = np.random.default_rng(1)
    tables = [(rng.random((_ROWS, _WIDTH)), np.resize([-1.0, 1.0], _ROWS)) for _ in range(parties)]
    tables[0][0][0], tables[0][1][0] = record
    return tables


# -- FedCG

_BLOCK, _PAIRS, _GAMMA = "own", 2, 300.0  # so narrow that phases are whatever a record likes
_BLOCK_SEED = public_seed(0, _BLOCK)


def _fed_cg(**budget: Any) -> FedCG:
    return FedCG(basis="fourier", landmarks=2 * _PAIRS, gamma=_GAMMA, seed=0, **budget)


def _hospitals(parties: int) -> Callable[[Record], Callable[[Any], Any]]:
    def clients(record: Record) -> Callable[[Any], Any]:
        tables = _tables(record, parties)

        def client_fn(context: Any) -> HybridKernelClient:
            k = int(context.node_config["partition-id"])
            x, y = tables[k]
            return HybridKernelClient(
                context,
                x,
                y,
                ids=[_ROWS * k + i for i in range(_ROWS)],
                block=_BLOCK,
                landmark_seed=_BLOCK_SEED,
                alignment_key=b"a secret of the data's owners",
                classes=(-1.0, 1.0),
            )

        return client_fn

    return clients


def _equations(record: Record) -> Floats:
    x, y = record
    drawn = fourier.draw_block(_BLOCK_SEED, _PAIRS, _WIDTH, "rbf", _GAMMA)
    z = fourier.features(fourier.block_phases(x[None], drawn))
    return pack_equations(z.T @ z, z.T * y * private.label_weight(1.0, 1))


# -- kernel PCA

_PCA: dict[str, Any] = {"bandwidth": 0.05, "features": 1, "seed": 0}


def _kernel_pca(**budget: Any) -> KernelPCA:
    return KernelPCA(components=1, threshold=3, **_PCA, **budget)


def _owners(record: Record) -> Callable[[Any], Any]:
    tables = _tables(record, 4)

    def client_fn(context: Any) -> KernelPCAClient:
        return KernelPCAClient(context, tables[int(context.node_config["partition-id"])][0])

    return client_fn


def _moments(record: Record) -> Floats:
    found = moments(features_of(record[0][None], **_PCA))
    return np.concatenate([np.ravel(part) for part in found.values()])


# -- HierarchicalSVM


def _svm(**budget: Any) -> HierarchicalSVM:
    return HierarchicalSVM(architecture="centralised", C=1.0, seed=0, **budget)


def _users(record: Record) -> Callable[[Any], Any]:
    tables = _tables(record, 3)

    def client_fn(context: Any) -> SVMClient:
        x, y = tables[int(context.node_config["partition-id"])]
        return SVMClient(context, x, y, classes=(-1.0, 1.0))

    return client_fn


def _slope(record: Record) -> Floats:
    """Return the gradient at zero, where all rows are within the margin."""
    x, y = record
    rows = shortened(public_coordinates(_WIDTH, 0).rows(x[None]))
    return gradient("hinge", rows, np.array([[y]]), np.zeros((1, _WIDTH + 1))).ravel()


# -- POF-MKL


def _pof_mkl(**budget: Any) -> POFMKL:
    return POFMKL(kernels=1, features=2, samples_per_round=_ROWS, seed=0, **budget)


def _streams(record: Record) -> Callable[[Any], Any]:
    tables = _tables(record, 3)

    def client_fn(context: Any) -> OnlineKernelClient:
        return OnlineKernelClient(context, *tables[int(context.node_config["partition-id"])])

    return client_fn


def _signed(record: Record) -> Floats:
    """Return what moves as a residual of theta zero times features of length one: as labels do."""
    x, y = record
    return np.asarray(y * np.append(x, 1.0))


CASES: tuple[Case, ...] = (
    Case("fed-cg", "equations", 2, _fed_cg, _hospitals(2), _equations),
    Case("fed-cg", "equations", 4, _fed_cg, _hospitals(4), _equations, colluders=2),
    Case("kernel-pca", "moments", 4, _kernel_pca, _owners, _moments, least=3),
    Case("hierarchical-svm", GRADIENT_SUM, 3, _svm, _users, _slope, rounds=1),
    Case("pof-mkl", UPDATE_SUM, 3, _pof_mkl, _streams, _signed, rounds=_ROWS),
)
