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
from .distances import (
    alternating_descent,
    distances_by_svd,
    trilaterate,
)
from .seen import Floats, Seen, SeenRun, Watched, Watcher, correlation, made_up_table, served
from .single_rows import columns_of_distances, share_of_columns

COLUMNS = {"genes": (0, 1, 2), "images": (3, 4), "clinical": (5, 6)}  # centres' blocks first
CENTRES = ("genes", "images")
ROWS = 40  # of a hospital
LANDMARKS, GAMMA, REGULARIZATION = 20, 0.5, 1e-2
_KEY = b"a key of all parties but the server"


def wards(hospitals: int, seed: int, *, binary: bool = False) -> list[tuple[Floats, Floats]]:
    """Return the rows of each hospital, columns as in :data:`COLUMNS`, and labels 0 or 1."""
    x, y = made_up_table(hospitals * ROWS, 7, seed)
    if binary:
        x = np.rint(x)
    return list(zip(np.split(x, hospitals), np.split(y, hospitals), strict=True))


# -- the paper's protocols


@dataclass(frozen=True)
class Printed:
    """Rows, labels, landmarks, result and transcript of a protocol of the paper."""

    rows: list[Floats]
    labels: list[Floats]
    landmarks: Floats
    alpha: Floats
    transcript: paper.Transcript

    def received(self, name: str, receiver: str = "server") -> list[Floats]:
        """Return what somebody received under a name, in order."""
        return [a for _, to, called, a in self.transcript if (to, called) == (receiver, name)]


@cache
def printed(protocol: str, seed: int, *, binary: bool = False) -> Printed:
    """Run ``naive`` or ``chain`` over three hospitals."""
    w = np.random.default_rng(seed).random((LANDMARKS, 7))
    rows, labels = zip(*((x, 2.0 * y - 1.0) for x, y in wards(3, seed, binary=binary)), strict=True)
    cuts = np.cumsum([len(block) for block in COLUMNS.values()])[:-1]
    hospitals = [
        paper.Hospital(np.split(x, cuts, axis=1), y) for x, y in zip(rows, labels, strict=True)
    ]
    slices = np.split(w, cuts, axis=1)
    result, sent = getattr(paper, protocol)(hospitals, slices, GAMMA, REGULARIZATION, seed=seed)
    return Printed(list(rows), list(labels), w, result.alpha, sent)


def naive_distances(run: Printed, hospital: int) -> Floats:
    """Return D[i, j] of a hospital's rows, from the blocks that the server receives."""
    product = np.prod(run.received(f"kernel of hospital {hospital}"), axis=0)
    return np.asarray(-np.log(product) / GAMMA)


def chain_gradient(run: Printed, hospital: int) -> Floats:
    """Return K_h^T (K_h alpha - y), as the server computes it from the chain.

    At the start it has K_h^T v and K_h^T eta, whose difference is the gradient there. The steps of
    alpha lie in the span of the directions p, whose products it has.
    """
    whose = f"of hospital {hospital}"
    (v,), (eta,) = run.received(f"K^T v {whose}"), run.received(f"K^T eta {whose}")
    (start,) = run.received("alpha", f"hospital {hospital}")
    directions = np.array(run.received("p", f"hospital {hospital}")).T
    found = np.array(run.received(f"K^T K p {whose}")).T
    steps = np.linalg.lstsq(directions, run.alpha - start, rcond=None)[0]
    return np.asarray(v - eta + found @ steps)


# -- the default


@dataclass
class Insider(Watched):
    """What a party of FedCG has besides: the landmarks of its block."""

    landmarks: Floats = field(default_factory=lambda: np.zeros((0, 0)))


class Insiders(Watcher):
    """Watches all parties of one run in this process."""

    insider = Insider

    def listen(self, client: Any, insider: Any) -> None:
        """Have a client note its landmarks."""
        landmarks = client._landmarks

        def drawn() -> Floats:
            found: Floats = landmarks()
            insider.landmarks = found
            return found

        client._landmarks = drawn


class FedCGRun(SeenRun):
    """A recorded run of FedCG: messages, what each party can open of them, and the truth."""

    name, kinds, opening = "FedCG", wire, wire.DistancesRequest
    strategy: FedCG

    def __init__(self, transcript: Transcript, insiders: Insiders, strategy: FedCG) -> None:
        super().__init__(transcript, insiders)
        self.strategy = strategy
        self.positions: dict[tuple[int, int], Any] = {}
        self.trained: dict[int, int] = {}
        for passed in self.messages:
            if isinstance(passed.message, wire.DistancesRequest):
                for k, hospital in enumerate(passed.message.hospitals.tolist()):
                    self.positions[passed.partition, hospital] = passed.message.rows[k]
                    self.trained[hospital] = int(passed.message.trains[k])

    def holders(self, hospital: int) -> list[int]:
        """Return who holds columns of a hospital's rows, centres first."""
        with_rows = [p for p, h in self.positions if h == hospital and self.parties[p].features]
        return sorted(with_rows, key=lambda p: (p == hospital, p))

    def truth(self, hospital: int, holders: list[int]) -> tuple[Floats, Floats]:
        """Return rows of a hospital, in the order of the run, and the landmarks of some parties."""
        rows = []
        for p in holders:
            client = self.insiders.parties[p].client
            announced = client.table.announced(self.session, client.alignment_key)
            rows.append(announced[self.positions[p, hospital]])
        landmarks = [self.insiders.parties[p].landmarks for p in holders]
        return np.hstack(rows), np.hstack(landmarks)

    def _distances(
        self, name: str, numbers: Floats, sender: int | None = None
    ) -> Iterator[tuple[Floats, Floats, Floats]]:
        """Yield distances, rows and landmarks of a sum of distances, or of a party's part of it."""
        kind, _, rest = name.partition("/")
        if kind == "distances":
            hospital, start = int(rest.split("/")[0].split("#")[0]), int(rest.split("#")[1])
            values = numbers.reshape(-1, self.settings.landmarks)
            centres = [p for p in self.holders(hospital) if p != hospital]
            if sender is None or sender != hospital:
                rows, w = self.truth(hospital, centres if sender is None else [sender])
                yield values, rows[start : start + len(values)], w

    def masked_distances(self) -> Iterator[tuple[Floats, Floats, Floats]]:
        """Yield masked distances as if they were bare, with the rows and landmarks behind them."""
        for vector in self.masked():
            if not vector.delivered:
                yield from self._distances(vector.order.name, vector.read(), vector.partition)

    def totals(self, hospital: int) -> Iterator[tuple[Floats, Floats, Floats]]:
        """Yield the totals that are opened for a hospital: distances of its own patients."""
        for name, total in self.insiders.parties[hospital].totals:
            yield from self._distances(name, total)

    def gradient(self, hospital: int) -> Floats:
        """Return the true K_h^T (K_h alpha - y) of a hospital, shape (m, 1)."""
        far = cdist(*self.truth(hospital, self.holders(hospital)), "sqeuclidean")
        client, train = self.insiders.parties[hospital].client, self.trained[hospital]
        order = client.table.order(self.session, client.alignment_key)
        targets = client.table.y[order[self.positions[hospital, hospital][:train]]]
        kernel = np.exp(-self.strategy.gammas_ * far[:train])
        return np.asarray(kernel.T @ (kernel @ self.strategy.coefficients_ - targets))

    def gradient_of_others(self, hospital: int) -> Floats:
        """Return the sum of all other gradients, as a hospital computes it from the model."""
        penalty = self.strategy.regularization_ * self.strategy.coefficients_
        return np.asarray(-self.gradient(hospital) - penalty)


@cache
def default_run(seed: int, hospitals: int = 3, *, binary: bool = False) -> FedCGRun:
    """Run FedCG with its default options, but for the number of landmarks."""
    rows = wards(hospitals, seed, binary=binary)
    return run_on(rows, COLUMNS, FedCG(landmarks=LANDMARKS, seed=seed))


def run_on(
    rows: list[tuple[Floats, Floats]], columns: dict[str, tuple[int, ...]], strategy: FedCG
) -> FedCGRun:
    """Run FedCG on rows of hospitals, of whose columns centres have all but the last block."""
    *centres, own_block = columns
    everybody, hospitals = np.vstack([x for x, _ in rows]), len(rows)
    ids = np.split(np.arange(len(everybody)), np.cumsum([len(x) for x, _ in rows])[:-1])

    def party(context: Any, k: int) -> HybridKernelClient:
        if k < hospitals:
            x, y = rows[k]
            own: dict[str, Any] = {"block": own_block, "y": y, "classes": (0, 1), "ids": ids[k]}
        else:
            mixed = np.random.default_rng(k).permutation(len(everybody))
            own, x = {"block": centres[k - hospitals], "ids": mixed}, everybody[mixed]
        held = x[:, columns[own["block"]]]
        return HybridKernelClient(context, held, alignment_key=_KEY, **own)

    insiders, transcript = Insiders(), Transcript()
    clients = insiders.watch(served(party))
    simulate(strategy, clients, hospitals + len(centres), transcript=transcript)
    return FedCGRun(transcript, insiders, strategy)


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
    run = printed("naive", seed)
    scores = [
        of_rows(trilaterate(naive_distances(run, h), run.landmarks), x)
        for h, x in enumerate(run.rows)
    ]
    return [Seen("server", float(np.mean(scores)))]


def trilaterate_masked(seed: int) -> list[Seen]:
    """Give the server of the default the true landmarks, and the masked distances."""
    scores = [
        of_rows(trilaterate(values, landmarks), rows)
        for values, rows, landmarks in default_run(seed).masked_distances()
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
        of_distances(complete(naive_distances(run, h), run.landmarks, seed), x)
        for h, x in enumerate(run.rows)
    ]
    return [Seen("server", float(np.mean(scores)))]


def complete_default(seed: int) -> list[Seen]:
    """Complete it from masked distances; a hospital tries its own totals, without landmarks."""
    run = default_run(seed)
    masked = [
        of_distances(complete(np.abs(values), landmarks, seed), rows)
        for values, rows, landmarks in run.masked_distances()
    ]
    own = [
        of_distances(distances_by_svd(values), rows)
        for hospital in run.trained
        for values, rows, _ in run.totals(hospital)
    ]
    said = "distances between their own patients"
    return [
        Seen("server, given landmarks", abs(float(np.mean(masked)))),
        Seen("hospital", float(np.mean(own)), said, run.strategy.privacy()),
    ]


def gradients_of_chain(seed: int) -> list[Seen]:
    """Compute the gradient of each hospital from the chain."""
    run, scores = printed("chain", seed), []
    for h, (x, y) in enumerate(zip(run.rows, run.labels, strict=True)):
        kernel = np.exp(-GAMMA * cdist(x, run.landmarks, "sqeuclidean"))
        scores.append(of_vector(chain_gradient(run, h), kernel.T @ (kernel @ run.alpha - y)))
    return [Seen("server", float(np.mean(scores)))]


def gradients_of_default(seed: int) -> list[Seen]:
    """Take what the model tells a hospital for the gradient of another one."""
    found = []
    said = "of two hospitals each can compute K^T(K a - y) of the other"
    for hospitals, admits in ((3, ""), (2, said)):
        run = default_run(seed, hospitals)
        score = of_vector(run.gradient_of_others(0), run.gradient(1))
        found.append(Seen(f"a hospital of {hospitals}", score, admits, run.strategy.privacy()))
    return found


def columns_of_naive(seed: int) -> list[Seen]:
    """Compute columns of two values from the naive protocol, as if the landmarks were not known."""
    run = printed("naive", seed, binary=True)
    scores = [
        share_of_columns(columns_of_distances(naive_distances(run, h)), x)
        for h, x in enumerate(run.rows)
    ]
    return [Seen("server", float(np.mean(scores)))]


def columns_found(run: FedCGRun) -> float:
    """Return the share of the centres' columns of two values that hospitals compute."""
    scores = [
        share_of_columns(columns_of_distances(values), rows)
        for hospital in run.trained
        for values, rows, _ in run.totals(hospital)
    ]
    return float(np.mean(scores))


def columns_of_default(seed: int) -> list[Seen]:
    """Compute columns of two values from the distances that a hospital opens."""
    run = default_run(seed, binary=True)
    said = "columns of two values, up to their order and 0/1"
    return [Seen("hospital", columns_found(run), said, run.strategy.privacy())]
