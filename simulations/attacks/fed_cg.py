"""FedCG against its server and its hospitals: the paper's two protocols, and the default.

A *viewer* is the server, which reads all messages, or a hospital, which opens what is delivered to
it. What a viewer can write down of patients are squared distances, a row for each patient and a
column for each landmark:

    ========  ========  =========================================================================
    protocol  viewer    distances
    ========  ========  =========================================================================
    naive     server    those of every block, from the kernel blocks: landmarks have a shared seed
    default   server    masked vectors; the attack is given the landmarks
    default   hospital  the totals of its own patients; the landmarks of centres are secret
    ========  ========  =========================================================================

The chain shows the server K_h^T K_h p of each hospital: its gradient K_h^T (K_h alpha - y). The
default opens sums over the hospitals. The model tells a hospital the sum of the others' gradients,
because (K^T K + lambda I) alpha = K^T y holds for all rows together.

Source: follows from Algorithms 1 and 2 of FedCG and from :mod:`fedkern_flwr.hybrid.messages`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from fedkern_flwr.hybrid import messages as wire

from ...clients import HybridKernelClient
from ...strategies import FedCG
from ..engines import Transcript, simulate
from ..papers import fedcg as paper
from .distances import distances_by_svd
from .edm_completion import alternating_descent
from .phases import Floats
from .seen import SeenRun, Watched, Watcher
from .table import Attack, Seen, correlation, made_up_table, served
from .trilateration import distances_from_kernel, trilaterate, trilaterate_secret_widths

COLUMNS = {"clinical": (0, 1), "genes": (2, 3, 4), "images": (5, 6)}
CENTRES = ("genes", "images")
ROWS = 40  # of a hospital
LANDMARKS, GAMMA, REGULARIZATION = 20, 0.5, 1e-2
_KEY = b"a key of all parties but the server"


@dataclass(frozen=True)
class Ward:
    """The rows of all hospitals: features (hospitals * ROWS, 7) on [0, 1], and labels."""

    hospitals: int
    seed: int
    x: Floats
    y: Floats

    @classmethod
    def of(cls, hospitals: int, seed: int) -> Ward:
        """Make up the rows."""
        return cls(hospitals, seed, *made_up_table(hospitals * ROWS, 7, seed))

    def ids(self, hospital: int) -> Any:
        """Return the numbers of a hospital's rows."""
        return np.arange(hospital * ROWS, (hospital + 1) * ROWS)

    def client(self, context: Any, k: int) -> HybridKernelClient:
        """Return a hospital with its own block, or a centre with the rows of all hospitals."""
        if k < self.hospitals:
            ids = self.ids(k)
            held: Any = {"block": "clinical", "classes": (0, 1)}
            labels = [self.y[ids]]
        else:
            ids = np.random.default_rng(k).permutation(len(self.x))
            held, labels = {"block": CENTRES[k - self.hospitals]}, []
        x = self.x[np.ix_(ids, COLUMNS[held["block"]])]
        return HybridKernelClient(context, x, *labels, ids=ids, alignment_key=_KEY, **held)


# -- the paper's protocols


@dataclass(frozen=True)
class Printed:
    """Rows, landmarks, result and transcript of a protocol of the paper."""

    ward: Ward
    landmarks: Floats  # of all blocks, those of centres first
    alpha: Floats
    transcript: paper.Transcript

    @property
    def rows(self) -> list[Floats]:
        """Rows of each hospital, columns as in ``landmarks``."""
        columns = [c for block in (*CENTRES, "clinical") for c in COLUMNS[block]]
        return [self.ward.x[np.ix_(self.ward.ids(h), columns)] for h in range(self.ward.hospitals)]

    @property
    def widths(self) -> list[int]:
        """Number of columns of each block."""
        return [len(COLUMNS[block]) for block in (*CENTRES, "clinical")]


@cache
def printed(protocol: str, seed: int, secret_widths: bool = False) -> Printed:
    """Run ``naive`` or ``chain`` over three hospitals; with a width per landmark (eq. 4.1)."""
    ward = Ward.of(3, seed)
    rng = np.random.default_rng(seed)
    w = rng.random((LANDMARKS, 7))
    gamma: Any = rng.uniform(0.5 * GAMMA, 2.0 * GAMMA, LANDMARKS) if secret_widths else GAMMA
    about = Printed(ward, w, np.zeros(0), [])
    cuts = np.cumsum(about.widths)[:-1]
    hospitals = [
        paper.Hospital(np.split(x, cuts, axis=1), 2.0 * ward.y[ward.ids(h)] - 1.0)
        for h, x in enumerate(about.rows)
    ]
    slices = np.split(w, cuts, axis=1)
    result, sent = getattr(paper, protocol)(hospitals, slices, gamma, REGULARIZATION, seed=seed)
    return Printed(ward, w, result.alpha, sent)


def naive_exponents(run: Printed, hospital: int) -> Floats:
    """Return gamma_j D[i, j] of a hospital's rows, from the blocks that the server receives."""
    kernel = np.prod(
        [a for *_, name, a in run.transcript if name == f"kernel of hospital {hospital}"], 0
    )
    return distances_from_kernel(kernel, 1.0)


def products(run: Printed, hospital: int) -> tuple[Floats, Floats]:
    """Return p and K_h^T K_h p of all epochs of a chain, as the server has them, (m, j)."""
    directions, found = list[Floats](), list[Floats]()
    for _, receiver, name, array in run.transcript:
        if name == "p" and receiver == f"hospital {hospital}":
            directions.append(array)
        elif receiver == "server" and name == f"K^T K p of hospital {hospital}":
            found.append(array)
    return np.array(directions).T, np.array(found).T


def chain_gradient(run: Printed, hospital: int) -> Floats:
    """Return K_h^T (K_h alpha - y), as the server computes it from the chain.

    At the start it has K_h^T v and K_h^T eta, whose difference is the gradient there. The steps of
    alpha lie in the span of the directions p, whose products it has.
    """
    sums = {name: array for _, receiver, name, array in run.transcript if receiver == "server"}
    start = next(array for *_, name, array in run.transcript if name == "alpha")
    first = sums[f"K^T v of hospital {hospital}"] - sums[f"K^T eta of hospital {hospital}"]
    directions, found = products(run, hospital)
    steps = np.linalg.lstsq(directions, run.alpha - start, rcond=None)[0]
    return np.asarray(first + found @ steps)


# -- the default


@dataclass
class Insider(Watched):
    """What a party of FedCG has besides: the landmarks of its block."""

    landmarks: Floats = field(default_factory=lambda: np.zeros((0, 0)))


class Insiders(Watcher[Insider]):
    """Watches all parties of one run in this process."""

    insider = Insider

    def listen(self, client: Any, insider: Insider) -> None:
        """Have a client note its landmarks."""
        landmarks = client._landmarks

        def drawn() -> Floats:
            insider.landmarks = landmarks()
            return insider.landmarks

        client._landmarks = drawn


@dataclass(frozen=True)
class Distances:
    """Squared distances of patients to landmarks, or what a viewer takes for that.

    Attributes
    ----------
    hospital : int
    start : int
        Position of the first row among the hospital's rows.
    blocks : tuple of str
        The blocks whose features are in them.
    values : ndarray, shape (n, m)
    """

    hospital: int
    start: int
    blocks: tuple[str, ...]
    values: Floats


class FedCGRun(SeenRun):
    """A recorded run of FedCG: messages, what each party can open of them, and the truth."""

    name, kinds, opening = "FedCG", wire, wire.LandmarksRequest
    insiders: Insiders

    def __init__(self, transcript: Transcript, insiders: Insiders) -> None:
        super().__init__(transcript, insiders)
        self.positions: dict[tuple[int, int], Any] = {}
        self.trained: dict[int, int] = {}
        for passed in self.messages:
            if isinstance(passed.message, wire.LandmarksRequest):
                for k, hospital in enumerate(passed.message.hospitals.tolist()):
                    self.positions[passed.partition, hospital] = passed.message.rows[k]
                    self.trained[hospital] = int(passed.message.trains[k])

    def holders(self, hospital: int) -> dict[str, int]:
        """Return block -> who holds it of a hospital's rows, centres first."""
        with_rows = [p for p, h in self.positions if h == hospital and self.parties[p].features]
        ordered = sorted(with_rows, key=lambda p: (p == hospital, p))
        return {self.parties[p].block: p for p in ordered}

    def rows(self, hospital: int, blocks: Any) -> Floats:
        """Return the features of all rows of a hospital, in the order of the run."""
        parts = []
        for block in blocks:
            holder = self.holders(hospital)[block]
            client = self.insiders.parties[holder].client
            announced = client.table.announced(self.session, client.alignment_key)
            parts.append(announced[self.positions[holder, hospital]])
        return np.hstack(parts)

    def landmarks(self, hospital: int, blocks: Any) -> Floats:
        """Return the landmarks of blocks, which the server does not have."""
        holders = self.holders(hospital)
        return np.hstack([self.insiders.parties[holders[block]].landmarks for block in blocks])

    def masked_distances(self) -> Iterator[Distances]:
        """Yield masked distances, as if they were bare."""
        for vector in self.masked():
            kind, _, rest = vector.order.name.partition("/")
            if kind == "distances" and not vector.delivered:
                hospital, start = (int(part) for part in rest.split("#"))
                values = vector.read("fixed point").reshape(-1, self.settings.landmarks)
                block = self.parties[vector.partition].block
                if vector.partition != hospital:
                    yield Distances(hospital, start, (block,), values)

    def totals(self, hospital: int) -> Iterator[Distances]:
        """Yield the totals that are opened for a hospital: distances of its own patients."""
        for name, total in self.insiders.parties[hospital].totals:
            kind, _, rest = name.partition("/")
            if kind == "distances":
                whose, start = (int(part) for part in rest.split("#"))
                blocks = tuple(b for b, p in self.holders(whose).items() if p != whose)
                yield Distances(whose, start, blocks, total.reshape(-1, self.settings.landmarks))

    def truth(self, seen: Distances) -> Floats:
        """Return the features that distances are made of, shape (n, d)."""
        return self.rows(seen.hospital, seen.blocks)[seen.start : seen.start + len(seen.values)]


@dataclass(frozen=True)
class Recorded:
    """A run of FedCG with its default options."""

    strategy: FedCG
    seen: FedCGRun
    ward: Ward

    def kernel(self, hospital: int) -> tuple[Floats, Floats]:
        """Return kernel and targets of a hospital's training rows, shapes (n, m) and (n, 1)."""
        blocks = list(self.seen.holders(hospital))
        far = cdist(
            self.seen.rows(hospital, blocks), self.seen.landmarks(hospital, blocks), "sqeuclidean"
        )
        client = self.seen.insiders.parties[hospital].client
        order = client.table.order(self.seen.session, client.alignment_key)
        train = self.seen.trained[hospital]
        targets = client.table.y[order[self.seen.positions[hospital, hospital][:train]]]
        return np.exp(-self.strategy.gammas_ * far[:train]), targets

    def gradient(self, hospital: int) -> Floats:
        """Return the true K_h^T (K_h alpha - y) of a hospital, shape (m, 1)."""
        kernel, targets = self.kernel(hospital)
        return np.asarray(kernel.T @ (kernel @ self.strategy.coefficients_ - targets))

    def gradient_of_others(self, hospital: int) -> Floats:
        """Return the sum of all other gradients, as a hospital computes it from the model."""
        penalty = self.strategy.regularization_ * self.strategy.coefficients_
        return np.asarray(-self.gradient(hospital) - penalty)


@cache
def default_run(seed: int, hospitals: int = 3) -> Recorded:
    """Run FedCG with its default options, but for the number of landmarks."""
    ward = Ward.of(hospitals, seed)
    insiders, transcript = Insiders(), Transcript()
    strategy = FedCG(landmarks=LANDMARKS, seed=seed)
    clients = insiders.watch(served(ward.client))
    simulate(strategy, clients, hospitals + len(CENTRES), transcript=transcript)
    return Recorded(strategy, FedCGRun(transcript, insiders), ward)


# -- the attacks


def of_rows(found: Floats, truth: Floats) -> float:
    """Return the mean correlation of columns with the true ones, 0 where they are lost."""
    return float(np.mean([correlation(a, b) for a, b in zip(found.T, truth.T, strict=True)]))


def of_distances(found: Floats, rows: Floats) -> float:
    """Return the correlation of distances among rows with the true ones."""
    pairs = np.triu_indices(len(rows), 1)
    return correlation(found[pairs], cdist(rows, rows, "sqeuclidean")[pairs])


def of_vector(found: Floats, truth: Floats) -> float:
    """Return how near a vector is: 1 less its relative error, at least 0."""
    error = np.linalg.norm(found.ravel() - truth.ravel()) / np.linalg.norm(truth)
    return max(0.0, 1.0 - float(error))


def trilaterate_naive(seed: int) -> list[Seen]:
    """Compute all features from the kernel blocks of the naive protocol."""
    run, hidden = printed("naive", seed), printed("naive", seed, secret_widths=True)
    plain = [
        of_rows(trilaterate(naive_exponents(run, h) / GAMMA, run.landmarks), x)
        for h, x in enumerate(run.rows)
    ]
    secret = [
        of_rows(trilaterate_secret_widths(naive_exponents(hidden, h), hidden.landmarks), x)
        for h, x in enumerate(hidden.rows)
    ]
    return [
        Seen("server", float(np.mean(plain))),
        Seen("server, secret widths", float(np.mean(secret))),
    ]


def trilaterate_masked(seed: int) -> list[Seen]:
    """Give the server of the default the true landmarks, and the masked distances."""
    run = default_run(seed).seen
    scores = [
        of_rows(trilaterate(one.values, run.landmarks(one.hospital, one.blocks)), run.truth(one))
        for one in run.masked_distances()
    ]
    return [Seen("server, given landmarks", abs(float(np.mean(scores))))]


def complete(distances: Floats, landmarks: Floats, seed: int) -> Floats:
    """Complete the distances among rows by alternating descent, as section 4 does."""
    n, points = len(distances), sum(distances.shape)
    given = np.zeros((points, points))
    given[:n, n:], given[n:, :n] = distances, distances.T
    given[n:, n:] = cdist(landmarks, landmarks, "sqeuclidean")
    mask = np.ones(given.shape, dtype=np.bool_)
    mask[:n, :n] = False
    return alternating_descent(given, mask, landmarks.shape[1], seed=seed)[:n, :n]


def complete_naive(seed: int) -> list[Seen]:
    """Complete the matrix of Figure 8 from the kernels of the naive protocol."""
    run = printed("naive", seed)
    scores = [
        of_distances(complete(naive_exponents(run, h) / GAMMA, run.landmarks, seed), x)
        for h, x in enumerate(run.rows)
    ]
    return [Seen("server", float(np.mean(scores)))]


def complete_default(seed: int) -> list[Seen]:
    """Complete it from masked distances; a hospital tries its own totals, without landmarks."""
    recorded = default_run(seed)
    run = recorded.seen
    masked = [
        of_distances(
            complete(np.abs(one.values), run.landmarks(one.hospital, one.blocks), seed),
            run.truth(one),
        )
        for one in run.masked_distances()
    ]
    own = [
        of_distances(distances_by_svd(one.values).distances, run.truth(one))
        for h in range(recorded.ward.hospitals)
        for one in run.totals(h)
    ]
    said = "distances between their own patients"
    return [
        Seen("server, given landmarks", abs(float(np.mean(masked)))),
        Seen("hospital", float(np.mean(own)), said, recorded.strategy.privacy()),
    ]


def gradients_of_chain(seed: int) -> list[Seen]:
    """Compute the gradient of each hospital from the chain."""
    run = printed("chain", seed)
    scores = []
    for h, x in enumerate(run.rows):
        kernel = np.exp(-GAMMA * cdist(x, run.landmarks, "sqeuclidean"))
        y = 2.0 * run.ward.y[run.ward.ids(h)] - 1.0
        scores.append(of_vector(chain_gradient(run, h), kernel.T @ (kernel @ run.alpha - y)))
    return [Seen("server", float(np.mean(scores)))]


def gradients_of_default(seed: int) -> list[Seen]:
    """Take what the model tells a hospital for the gradient of another one."""
    found = []
    for hospitals in (3, 2):
        run = default_run(seed, hospitals)
        score = of_vector(run.gradient_of_others(0), run.gradient(1))
        said = "of two hospitals each can compute K^T(K a - y) of the other"
        of = f"a hospital of {hospitals}"
        found.append(Seen(of, score, said if hospitals == 2 else "", run.strategy.privacy()))
    return found


TRILATERATION = Attack(
    name="trilateration",
    methods=("fed-cg",),
    claim="FedCG 4: rows cannot be computed from a kernel; secret widths hide them (eq. 4.1)",
    protocol="naive, landmarks of a shared seed",
    measure="correlation of features",
    threshold=0.3,
    on_paper=trilaterate_naive,
    on_default=trilaterate_masked,
)
COMPLETION = Attack(
    name="completion of distances",
    methods=("fed-cg",),
    claim="FedCG 4, Figure 8: completing the matrix of distances fails",
    protocol="naive, landmarks of a shared seed",
    measure="correlation of distances among patients",
    threshold=0.3,
    on_paper=complete_naive,
    on_default=complete_default,
)
GRADIENT = Attack(
    name="a hospital's gradient",
    methods=("fed-cg",),
    claim="FedCG 3: the chain shows the server nothing of a single hospital",
    protocol="chain",
    measure="1 less the relative error",
    threshold=0.9,
    on_paper=gradients_of_chain,
    on_default=gradients_of_default,
)
