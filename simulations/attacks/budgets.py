"""Test whether a method keeps its privacy budget: the epsilon that the best attack proves.

Two runs differ in one record, or in all records of a party: the two worst that a search finds. They
give the parties' contributions to a noisy sum. Then the parties' own code releases the sum
thousands of times with new noise, over the fewest parties that can open it. The server and the
colluders subtract everything that they know.

The rest is projected on the difference of the two sums, in standard deviations of the noise: about
N(0, 1) with one record and N(mu, 1) with the other. Error rates a, b of this test bound epsilon
from below: without assumptions by a e^epsilon + b >= 1 - delta (:func:`proven_epsilon`), and with
hundreds instead of millions of releases for Gaussian errors, as of Skellam noise of 2^8 units and
more (:func:`gaussian_epsilon`).

References
----------
Kairouz, Oh and Viswanath, "The Composition Theorem for Differential Privacy", ICML 2015. Nasr et
al., "Adversary Instantiation: Lower Bounds for Differentially Private Machine Learning", S&P 2021;
"Tight Auditing of Differentially Private Machine Learning", USENIX Security 2023. Dong, Roth and
Su, "Gaussian Differential Privacy", 2022, Corollary 2.13; Balle and Wang, 2018, Theorem 8.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize
from scipy.spatial.distance import cdist
from scipy.stats import beta, norm

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.exchange import SumSpec
from fedkern_flwr.groups.linear_model import GRADIENT_SUM, gradient, public_coordinates, shortened
from fedkern_flwr.hybrid import landmarks
from fedkern_flwr.hybrid.landmarks import public_seed
from fedkern_flwr.judging.figures import OUTCOMES
from fedkern_flwr.kernel_pca import moments
from fedkern_flwr.kernels.product import features_of
from fedkern_flwr.online import ridge
from fedkern_flwr.online.messages import UPDATE_SUM
from fedkern_flwr.privacy import Release
from fedkern_flwr.privacy.budget import Unit
from fedkern_flwr.secure_sum import Encoding, Party, PartyState, SecureSum
from fedkern_flwr.solvers.least_squares import pack_equations
from fedkern_flwr.wire.message import Section, attach, detach
from fedkern_flwr.wire.sums import Order, Unmask, Upload

from ...clients import HybridKernelClient, KernelPCAClient, OnlineKernelClient, SVMClient
from ...strategies import POFMKL, POFRLS, FedCG, HierarchicalSVM, KernelPCA
from ..engines import simulate
from .seen import Floats, Seen, served

Record = tuple[Floats, float]  # columns in [0, 1], label of -1 or 1

DELTA = 1e-5
WIDTH = 2  # columns
_TRIED, _KEPT = 100, 4  # random rows that are tried, and pairs of them that are improved


def _noised(strategy: Any) -> Iterable[Release]:
    return (release for release, _ in strategy.noise_.noised.values())


@dataclass(frozen=True)
class Case:
    """A noisy sum of a method.

    Attributes
    ----------
    method, sum : str
        Names on the command line and of the sum, before a #.
    parties : int
    run : callable
        (record, parties, budget options) -> strategy and ``client_fn`` or app. The first row of
        party 0, or all its rows, is the record. The first such sum depends on rows only.
    term : callable
        Record -> its contribution, up to scale.
    unit : {"row", "party"}
    least : int or None
        Fewest parties of the sum (default: all).
    colluders : int
    start : dict
        More arguments of the run.
    released : callable
        Strategy -> its noisy releases.
    uses : float
        Share of the charged sensitivity that the worst records use, at least.
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
        """Name of the case."""
        whole = ", unit party" if self.unit == "party" else ""
        return f"{self.method}, {self.sum}, {self.fewest} of {self.parties} parties{whole}"


@dataclass(frozen=True)
class Audited:
    """Result of an audit: declared and charged ``epsilon``, lengths, and projections.

    ``moved`` is the length by which the unit moves its party's contribution, ``sensitivity`` the
    charged one; ``reached`` is epsilon of the best test of these two tables. ``one`` and ``other``,
    shape (draws,), are projections with either record, in standard deviations of the noise.
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
        """Lower bound of epsilon, of nearly normal noise."""
        return gaussian_epsilon(self.one, self.other, self._shift, self.delta, self.confidence)

    @property
    def proven(self) -> float:
        """Lower bound of epsilon, of any noise."""
        return proven_epsilon(self.one, self.other, self._shift, self.delta, self.confidence)

    @property
    def score(self) -> float:
        """The larger bound over the charged epsilon; above 1 the budget is broken.

        Also above 1 where more is charged than declared, or a table moves the sum farther.
        """
        found = max(self.gaussian, self.proven) / self.epsilon
        if self.epsilon > self.declared * (1.0 + 1e-6):
            found = max(found, self.epsilon / self.declared)
        if self.moved > self.sensitivity * (1.0 + 1e-9):
            found = max(found, self.moved / self.sensitivity)
        return found

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
    noise: float = 1.0,
) -> Audited:
    """Release the sum of a case ``draws`` times with either record, and test which one it has.

    ``epsilon`` and ``delta`` are the declared budget, ``noise`` the share of the variance that the
    parties add: less than 1 is a control, which must be noticed. The noise has no seed.

    Raises
    ------
    ProtocolError
        The runs made no such sum, or it differs in more than the record.
    """
    first, second = (
        _run(case, record, epsilon, delta) for record in worst_records(case.term, seed)
    )
    same = all(np.array_equal(first.vectors[p], second.vectors[p]) for p in first.vectors if p)
    if not same or first.noise != second.noise:
        raise ProtocolError(
            f"{case.title}: the two runs differ in more than a record", code="FK-ATTACK-PAIR"
        )
    replayed = ReplayedSum(
        replace(first.order, noise=int(noise * first.order.noise)),
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
    """A sum of a run: its order, contributions by party, and its declared release."""

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
        There is no such sum of all parties.
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
        raise ProtocolError(
            f"{case.title}: the run made no such sum with noise", code="FK-ATTACK-NOISE"
        )
    return _Run(added[0][0], {p: values for p, (_, values) in added.items()}, told[case.sum])


@cache
def worst_records(term: Callable[[Record], Floats], seed: int) -> tuple[Record, Record]:
    """Search for two records with the largest distance of their terms."""
    rng = np.random.default_rng(seed)
    rows = rng.random((_TRIED, WIDTH))
    terms = {label: np.array([term((row, label)) for row in rows]) for label in (1.0, -1.0)}

    def apart(flat: Floats, labels: tuple[float, float]) -> float:
        one, other = flat.clip(0.0, 1.0).reshape(2, WIDTH)
        return float(np.linalg.norm(term((one, labels[0])) - term((other, labels[1]))))

    best = (0.0, np.zeros(2 * WIDTH), (1.0, -1.0))
    for labels in ((1.0, -1.0), (1.0, 1.0)):
        found = cdist(terms[labels[0]], terms[labels[1]])  # of all pairs of the rows
        for pair in np.argsort(found, axis=None)[-_KEPT:]:
            start = rows[list(np.unravel_index(pair, found.shape))].ravel()
            better = optimize.minimize(
                lambda *at: -apart(*at), start, args=(labels,), method="Nelder-Mead"
            )
            best = max(best, (-better.fun, better.x, labels), key=lambda pair: pair[0])
    _, flat, labels = best
    one, other = flat.clip(0.0, 1.0).reshape(2, WIDTH)
    return (one, labels[0]), (other, labels[1])


# -- a sum that is released again and again

#: Name of a sum -> partition -> its order and what that party adds, before noise and masks.
Contributions = dict[str, dict[int, tuple[Order, Floats]]]

_CONTRIBUTE = Party.contribute
_NUMBERS = 1 << 18  # of releases that are made at once


@contextmanager
def contributions() -> Iterator[Contributions]:
    """Record what parties add to noisy sums in this process: the first sum of each name.

    The run itself has no noise. So two runs over two tables have the same model, and counts on
    held-out rows differ by rows only.
    """
    found: Contributions = {}

    def noted(party: Party, order: Order, values: NDArray[Any], **more: Any) -> Upload:
        if not order.noise:
            return _CONTRIBUTE(party, order, values, **more)
        parties = found.setdefault(order.name.partition("#")[0], {})
        parties.setdefault(party.partition, (order, np.array(values, np.float64)))
        return _without_noise(party, order, values, **more)

    Party.contribute = noted  # type: ignore[method-assign,assignment]
    try:
        yield found
    finally:
        Party.contribute = _CONTRIBUTE  # type: ignore[method-assign]


class ReplayedSum:
    """Repeat a sum of a run with new keys, masks and noise.

    It is opened over the fewest parties (``threshold``, by default all) with the colluders, which
    send the server their contribution and noise.
    """

    def __init__(
        self,
        order: Order,
        vectors: Mapping[int, Floats],
        threshold: int | None = None,
        colluders: Collection[int] = (),
    ) -> None:
        self.order, self.vectors, self.colluders = order, dict(vectors), colluders
        others = [p for p in vectors if p not in colluders]
        least = len(vectors) if threshold is None else threshold
        self.alive = sorted([*others[: least - len(colluders)], *colluders])
        self.parties = {p: Party(p, PartyState("replayed")) for p in vectors}
        keys = {p: party.announce() for p, party in self.parties.items()}
        self.server = SecureSum("replayed", keys, threshold=threshold)
        for party in self.parties.values():
            party.join(self.server.roster)

    def releases(self, victim: int, values: Floats, times: int) -> Floats:
        """Release the sum ``times``; return the ``values`` and noise of the victim and others.

        All that colluders know is subtracted. The releases are one long sum with independent noise.
        Shape (times, length).
        """
        most = max(1, _NUMBERS // self.order.length)
        parts = [min(most, times - start) for start in range(0, times, most)]
        return np.concatenate([self._release(victim, values, some) for some in parts])

    def _release(self, victim: int, values: Floats, times: int) -> Floats:
        order, encoding = self.order, Encoding.of(self.order)
        length = times * order.length
        spec = SumSpec(
            name=order.name, encoding=encoding, length=length, self_masks=order.self_masks
        )
        running = self.server.order(spec)
        known = np.zeros(length, encoding.dtype)
        for p in self.alive:
            party = self.parties[p]
            party.state.noise_key = secrets.token_bytes(32)  # as each run has its own
            added = np.tile(values if p == victim else self.vectors[p], times)
            if p != victim:
                known += encoding.encode(added, len(self.vectors), name=order.name)
            send = _without_noise if p in self.colluders else _CONTRIBUTE
            self.server.take(p, _carried(send(party, running.order, added)))
        for p, messages in self.server.unmask_sections([running]).items():
            (section,) = _carried(*messages)
            reply = self.parties[p].unmask(section.read(Unmask, party="server"))
            self.server.take(p, _carried(reply))
        left = self.server.total(running) - encoding.decode(known, len(self.vectors))
        return np.asarray(left).reshape(times, order.length)


def _without_noise(party: Party, order: Order, values: NDArray[Any], **more: Any) -> Upload:
    """Contribute as a colluder that discloses its noise: without any."""
    if (order.cohort, order.index) not in party.accepted:
        party.accept(order)
    upload = _CONTRIBUTE(party, replace(order, noise=0), values, **more)
    party.state.open[order.cohort, order.index].order = order
    party.drawn[order.name] = secrets.token_bytes(32)  # random: the ledger needs some value
    return upload


def _carried(*messages: Any) -> list[Section]:
    arrays, scalars = attach(messages)
    return detach(arrays, scalars, party="server")[2]


# -- lower bounds

_MOST = 1e3  # of epsilon
_FARTHEST = 9.0  # deviations to a threshold


def epsilon_of_shift(mu: float, delta: float) -> float:
    """Compute epsilon at delta of distinguishing N(0, 1) from N(mu, 1)."""
    if mu <= 0.0:
        return 0.0

    def excess(epsilon: float) -> float:
        beyond = math.exp(min(700.0, epsilon + norm.logcdf(-epsilon / mu - mu / 2.0)))
        return float(norm.cdf(mu / 2.0 - epsilon / mu) - beyond - delta)

    return float(optimize.brentq(excess, 0.0, _MOST)) if excess(0.0) > 0.0 else 0.0


@cache
def shift_of_epsilon(epsilon: float, delta: float) -> float:
    """Compute mu with that epsilon at delta."""
    return float(
        optimize.brentq(lambda mu: epsilon_of_shift(mu, delta) - epsilon, 0.0, 30.0, xtol=1e-6)
    )


def most(hits: ArrayLike, trials: int, confidence: float) -> Floats:
    """Compute upper confidence bounds of probabilities (Clopper and Pearson)."""
    found = np.asarray(hits)
    return np.where(found == trials, 1.0, beta.ppf(confidence, found + 1.0, trials - found))


def gaussian_epsilon(
    one: Floats, other: Floats, mu: float, delta: float, confidence: float
) -> float:
    """Bound epsilon from below, for nearly normal noise.

    ``one`` and ``other``, shape (n,), are projections with either record, in deviations. The
    threshold is half of the expected shift ``mu``. ``confidence`` is that of both intervals
    together.
    """
    each = (1.0 + confidence) / 2.0
    false_alarm = most((one > mu / 2.0).sum(), len(one), each)
    miss = most((other <= mu / 2.0).sum(), len(other), each)
    return epsilon_of_shift(float(-norm.ppf(false_alarm) - norm.ppf(miss)), delta)


def proven_epsilon(one: Floats, other: Floats, mu: float, delta: float, confidence: float) -> float:
    """Bound epsilon from below, for any noise; see :func:`gaussian_epsilon`.

    The threshold has the largest expected bound where the shift is ``mu``.
    """
    each = (1.0 + confidence) / 2.0

    def bound(false_alarms: ArrayLike, misses: ArrayLike) -> Floats:
        alarm, miss = most(false_alarms, len(one), each), most(misses, len(other), each)
        return np.log(np.maximum(1.0, (1.0 - delta - miss) / alarm))

    thresholds = np.linspace(0.0, _FARTHEST, 181)
    alarms, misses = norm.sf(thresholds), norm.cdf(thresholds - mu)
    promised = bound(np.rint(len(one) * alarms), np.rint(len(other) * misses))
    chosen = thresholds[promised.argmax()]
    return float(bound((one > chosen).sum(), (other <= chosen).sum()))


# -- the sums that are audited

_ROWS = 12  # of a party, to learn from, and as many held out
_FIRST, ALL, _NONE = slice(1), slice(None), slice(0)
Run = tuple[Any, Callable[[Any], Any]]
Table = tuple[Floats, Floats]  # rows, labels


def tables_of(
    record: Record, parties: int, which: slice = _FIRST, *, spread: float = 1.0, seed: int = 1
) -> list[Table]:
    """Make rows and labels of each party; the rows ``which`` of party 0 are the record."""
    rng = np.random.default_rng(seed)
    tables = [
        (0.5 + spread * (rng.random((_ROWS, WIDTH)) - 0.5), np.resize([-1.0, 1.0], _ROWS))
        for _ in range(parties)
    ]
    tables[0][0][which], tables[0][1][which] = record
    return tables


def _both(
    record: Record, parties: int, unit: str, *, held_out: bool, spread: float = 1.0
) -> list[tuple[Table, Table]]:
    """Make training and held-out rows of each party; the record is in one of the two."""
    which = ALL if unit == "party" else _FIRST
    learned, tests = (_NONE, which) if held_out else (which, _NONE)
    return list(
        zip(
            tables_of(record, parties, learned, spread=spread),
            tables_of(record, parties, tests, seed=2),
            strict=True,
        )
    )


def _outcome(record: Record) -> Floats:
    """Return the cells of a held-out row among counts, one for each label."""
    return np.asarray(np.eye(2)[int(record[1] > 0.0)])


# -- FedCG

_BLOCK, _PAIRS, _GAMMA = "own", 2, 300.0
_EQUATIONS, _LABELS = "equations", 0.5  # the sum; factor of labels of length one
_BLOCK_SEED = public_seed(0, _BLOCK)


def _fed_cg(record: Record, parties: int, *, held_out: bool = False, **budget: Any) -> Run:
    tables = _both(record, parties, budget["privacy_unit"], held_out=held_out)

    def hospital(context: Any, k: int) -> HybridKernelClient:
        (x, y), (x_test, y_test) = tables[k]
        ids = [f"{k}/{i}" for i in range(2 * _ROWS)]
        tests: dict[str, Any] = {}
        if held_out:
            tests = {"x_test": x_test, "y_test": y_test, "ids_test": ids[_ROWS:]}
        return HybridKernelClient(
            context,
            x,
            y,
            ids=ids[:_ROWS],
            block=_BLOCK,
            landmark_seed=_BLOCK_SEED,
            alignment_key=b"a secret of the data's owners",
            classes=(-1.0, 1.0),
            **tests,
        )

    strategy = FedCG(basis="fourier", landmarks=2 * _PAIRS, gamma=_GAMMA, seed=0, **budget)
    return strategy, served(hospital)


def _equations(record: Record) -> Floats:
    x, y = record
    drawn = landmarks.draw_block(_BLOCK_SEED, _PAIRS, WIDTH, "rbf", _GAMMA)
    z = landmarks.fourier_features(landmarks.block_phases(x[None], drawn))
    return pack_equations(z.T @ z, z.T * y * _LABELS)


# -- kernel PCA

_PCA: dict[str, Any] = {"bandwidth": 0.05, "features": 1, "seed": 0}
_NEAR = 1e-3  # rows so near to each other that their mean has length one, nearly


def _kernel_pca(record: Record, parties: int, *, held_out: bool = False, **budget: Any) -> Run:
    spread = _NEAR if held_out else 1.0
    tables = _both(record, parties, budget["privacy_unit"], held_out=held_out, spread=spread)

    def owner(context: Any, k: int) -> KernelPCAClient:
        (x, _), (x_test, _) = tables[k]
        return KernelPCAClient(context, x, x_test=x_test if held_out else None)

    return KernelPCA(components=1, threshold=3, **_PCA, **budget), served(owner)


def _moments(record: Record) -> Floats:
    found = moments(features_of(record[0][None], **_PCA))
    return np.concatenate([np.ravel(part) for part in found.values()])


def _rest(record: Record) -> Floats:
    """Return the term of a held-out row: rows near 1 / 2 have a tangent as their component."""
    z, middle = (features_of(np.full((1, WIDTH), x), **_PCA)[0] for x in (record[0], 0.5))
    whole = float((z - middle) @ (z - middle))
    return np.array([min(float(middle @ (z - middle)) ** 2, whole), whole])


# -- HierarchicalSVM


def _svm(record: Record, parties: int, *, held_out: bool = False, **budget: Any) -> Run:
    tables = _both(record, parties, budget["privacy_unit"], held_out=held_out)

    def user(context: Any, k: int) -> SVMClient:
        (x, y), (x_test, y_test) = tables[k]
        tests: dict[str, Any] = {"x_test": x_test, "y_test": y_test} if held_out else {}
        return SVMClient(context, x, y, classes=(-1.0, 1.0), **tests)

    return HierarchicalSVM(architecture="centralised", C=1.0, seed=0, **budget), served(user)


def _slope(record: Record) -> Floats:
    """Return the gradient at zero, where all rows are within the margin."""
    x, y = record
    rows = shortened(public_coordinates(WIDTH, 0).rows(x[None]))
    return gradient("hinge", rows, np.array([[y]]), np.zeros((1, WIDTH + 1))).ravel()


# -- online methods


def _streams(tables: list[Table]) -> Callable[[Any], Any]:
    return served(lambda context, k: OnlineKernelClient(context, *tables[k]))


def _pof_mkl(record: Record, parties: int, **budget: Any) -> Run:
    which = ALL if budget["privacy_unit"] == "party" else _FIRST
    strategy = POFMKL(kernels=1, features=2, samples_per_round=_ROWS, seed=0, **budget)
    return strategy, _streams(tables_of(record, parties, which))


def signed(record: Record) -> Floats:
    """Return a term that moves like a residual of theta zero times features of length one."""
    x, y = record
    return np.asarray(y * np.append(x, 1.0))


_RLS: dict[str, Any] = {"features": 2, "seed": 0}
_RLS_WIDTH = 0.02


def _sample(x: Floats, y: Any) -> tuple[Floats, Any]:
    """Return columns in [-1, 1] and labels in [0, 1], the units of the client."""
    return 2.0 * x - 1.0, (np.asarray(y) + 1.0) / 2.0


def _pof_rls(record: Record, parties: int, **budget: Any) -> Run:
    tables = [_sample(*table) for table in tables_of(record, parties)]
    one = {"kernels": 1, "width": _RLS_WIDTH, "samples_per_round": _ROWS}
    return POFRLS(**one, **_RLS, **budget), _streams(tables)


def _products(record: Record) -> Floats:
    x, y = _sample(record[0][None], [record[1]])
    inside = x / max(1.0, float(np.linalg.norm(x)))
    (phi,) = ridge.kernel_rows(x, ridge.widths(1, _RLS_WIDTH), **_RLS)
    return np.concatenate([ridge.sums(rows, y - 0.5) for rows in (ridge.raw_rows(inside), phi)])


_ONE, _ALL_ROWS = {"num_rounds": 1}, {"num_rounds": _ROWS}
CASES: tuple[Case, ...] = (
    Case("fed-cg", _EQUATIONS, 2, _fed_cg, _equations),
    Case("fed-cg", _EQUATIONS, 4, _fed_cg, _equations, colluders=2),
    Case("fed-cg", _EQUATIONS, 3, _fed_cg, _equations, "party"),
    Case("fed-cg", OUTCOMES, 3, partial(_fed_cg, held_out=True), _outcome),
    Case("kernel-pca", "moments", 4, _kernel_pca, _moments, least=3),
    Case("kernel-pca", "evaluate/rest", 4, partial(_kernel_pca, held_out=True), _rest, least=3),
    Case("hierarchical-svm", GRADIENT_SUM, 3, _svm, _slope, start=_ONE),
    Case("hierarchical-svm", OUTCOMES, 3, partial(_svm, held_out=True), _outcome, start=_ONE),
    Case("pof-mkl", UPDATE_SUM, 3, _pof_mkl, signed, start=_ALL_ROWS),
    Case("pof-mkl", UPDATE_SUM, 3, _pof_mkl, signed, "party", start=_ALL_ROWS),
    Case("pof-rls", UPDATE_SUM, 3, _pof_rls, _products, start=_ALL_ROWS, uses=0.8),
)


# -- the attack

#: Budget that the runs declare, and releases of each of the two tables.
EPSILON, DRAWS = 8.0, 2000
#: Confidence of all bounds together: one audit in 10,000 is wrong by chance.
LEVEL = 1.0 - 1e-4


def lower_bounds(seed: int, method: str | None = None, noise: float = 1.0) -> list[Seen]:
    """Prove epsilon of the noisy sums of one method, or of all.

    ``noise`` below 1 is the control, see :func:`audit_epsilon`.
    """
    cases = [case for case in CASES if method in (None, case.method)]
    each = 1.0 - (1.0 - LEVEL) / (2 * len(CASES))
    options: dict[str, Any] = {"draws": DRAWS, "seed": seed, "confidence": each, "noise": noise}
    return [Seen(case.title, audit_epsilon(case, EPSILON, **options).score) for case in cases]
