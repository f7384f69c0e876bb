"""Attack FedCG at its server and its hospitals: the paper's two protocols, and the default.

The server reads all messages; a hospital opens the sums that it receives. Each can write down
squared distances, a row per patient and a column per landmark:

    ========  ========  =================================================================
    protocol  viewer    distances
    ========  ========  =================================================================
    naive     server    from the kernel blocks: landmarks have a shared seed
    default   server    masked vectors; the attack is given the landmarks
    default   hospital  of its own patients; the centres' landmarks are secret
    ========  ========  =================================================================

The chain shows the server K_h^T K_h p of each hospital, and so its gradient K_h^T (K_h alpha - y).
In the default the model gives a hospital the sum of the others' gradients, because
(K^T K + lambda I) alpha = K^T y holds for all rows together.

Source: follows from Algorithms 1 and 2 of FedCG and from :mod:`fedkern_flwr.hybrid.messages`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from fedkern_flwr.hybrid import messages as wire

from ...clients import HybridKernelClient
from ...strategies import FedCG
from ..papers import fedcg as paper
from .distances import (
    alternating_descent,
    columns_of_distances,
    distances_by_svd,
    share_of_columns,
    trilaterate,
)
from .seen import Floats, SeenRun, Watched, closeness, correlation, made_up_table

COLUMNS = {"genes": (0, 1, 2), "images": (3, 4), "clinical": (5, 6)}  # centres' blocks first
ROWS = 40  # of a hospital
LANDMARKS, GAMMA, REGULARIZATION = 20, 0.5, 1e-2
_KEY = b"a key of all parties but the server"
_SWEEPS = 20  # of the completion: it finds the distances of the paper's protocol in these

#: Squared distances, and the rows and landmarks that they are between.
Distances = tuple[Floats, Floats, Floats]


def wards(hospitals: int, seed: int, *, binary: bool = False) -> list[tuple[Floats, Floats]]:
    """Make the rows of each hospital, columns as in :data:`COLUMNS`, and labels 0 or 1."""
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
        """Return the arrays that a party received under a name, in order."""
        return [a for _, to, called, a in self.transcript if (to, called) == (receiver, name)]

    def server(self) -> Iterator[Distances]:
        """Yield D[i, j] of each hospital's rows, from the blocks that the server receives."""
        for hospital, rows in enumerate(self.rows):
            product = np.prod(self.received(f"kernel of hospital {hospital}"), axis=0)
            yield np.asarray(-np.log(product) / GAMMA), rows, self.landmarks

    def gradients(self) -> Iterator[tuple[Floats, Floats]]:
        """Yield K_h^T (K_h alpha - y) from the chain's messages to the server, and the true one.

        At the start it has K_h^T v and K_h^T eta, with the gradient as their difference. The steps
        of alpha lie in the span of the directions p, and it has the products of these.
        """
        for h, (x, y) in enumerate(zip(self.rows, self.labels, strict=True)):
            which = f"of hospital {h}"
            (v,), (eta,) = self.received(f"K^T v {which}"), self.received(f"K^T eta {which}")
            (start,) = self.received("alpha", f"hospital {h}")
            directions = np.array(self.received("p", f"hospital {h}")).T
            found = np.array(self.received(f"K^T K p {which}")).T
            steps = np.linalg.lstsq(directions, self.alpha - start, rcond=None)[0]
            kernel = np.exp(-GAMMA * cdist(x, self.landmarks, "sqeuclidean"))
            yield v - eta + found @ steps, kernel.T @ (kernel @ self.alpha - y)


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


# -- the default


class FedCGRun(SeenRun):
    """Run FedCG on hospitals' rows; centres have all blocks of ``columns`` but the last."""

    kinds, opening = wire, wire.DistancesRequest

    def __init__(
        self,
        rows: list[tuple[Floats, Floats]],
        columns: dict[str, tuple[int, ...]],
        strategy: FedCG,
    ) -> None:
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

        super().__init__(strategy, party, hospitals + len(centres))

    def listen(self, client: Any, insider: Watched) -> None:
        """Have a client note its landmarks as well."""
        super().listen(client, insider)
        landmarks = client._landmarks

        def drawn() -> Floats:
            found: Floats = landmarks()
            insider.noted["landmarks"] = found
            return found

        client._landmarks = drawn

    @cached_property
    def positions(self) -> dict[tuple[int, int], Any]:
        """(Partition, hospital) -> where the hospital's rows are in the party's table."""
        sent = ((p.partition, p.message) for p in self.messages)
        return {
            (partition, hospital): message.rows[k]
            for partition, message in sent
            if isinstance(message, wire.DistancesRequest)
            for k, hospital in enumerate(message.hospitals.tolist())
        }

    @cached_property
    def trained(self) -> dict[int, int]:
        """Hospital -> rows that it learns from."""
        return {
            hospital: int(message.trains[k])
            for message in self.requests(wire.DistancesRequest)
            for k, hospital in enumerate(message.hospitals.tolist())
        }

    def holders(self, hospital: int) -> list[int]:
        """Return the parties with columns of a hospital's rows, centres first."""
        with_rows = [p for p, h in self.positions if h == hospital and self.parties[p].features]
        return sorted(with_rows, key=lambda p: (p == hospital, p))

    def truth(self, hospital: int, holders: list[int]) -> tuple[Floats, Floats]:
        """Return rows of a hospital, in the order of the run, and landmarks of some parties."""
        rows = []
        for p in holders:
            client = self.watched[p].client
            announced = client.table.announced(self.session, client.alignment_key)
            rows.append(announced[self.positions[p, hospital]])
        return np.hstack(rows), np.hstack([self.watched[p].noted["landmarks"] for p in holders])

    def _distances(
        self, name: str, numbers: Floats, sender: int | None = None
    ) -> Iterator[Distances]:
        """Yield distances, rows and landmarks of a sum of distances, or of a party's part of it."""
        kind, _, rest = name.partition("/")
        if kind == "distances":
            hospital, start = int(rest.split("/")[0].split("#")[0]), int(rest.split("#")[1])
            values = numbers.reshape(-1, self.settings.landmarks)
            centres = [p for p in self.holders(hospital) if p != hospital]
            if sender is None or sender != hospital:
                rows, w = self.truth(hospital, centres if sender is None else [sender])
                yield values, rows[start : start + len(values)], w

    def server(self) -> Iterator[Distances]:
        """Yield masked distances as if they were bare."""
        for vector in self.masked():
            if not vector.delivered:
                yield from self._distances(vector.order.name, vector.read(), vector.partition)

    def hospital(self) -> Iterator[Distances]:
        """Yield the totals that hospitals open: distances of their own patients."""
        for hospital in self.trained:
            for name, total in self.watched[hospital].totals:
                yield from self._distances(name, total)

    def gradient(self, hospital: int) -> Floats:
        """Return the true K_h^T (K_h alpha - y) of a hospital, shape (m, 1)."""
        far = cdist(*self.truth(hospital, self.holders(hospital)), "sqeuclidean")
        client, train = self.watched[hospital].client, self.trained[hospital]
        order = client.table.order(self.session, client.alignment_key)
        targets = client.table.y[order[self.positions[hospital, hospital][:train]]]
        kernel = np.exp(-self.strategy.gammas_ * far[:train])
        return np.asarray(kernel.T @ (kernel @ self.strategy.coefficients_ - targets))

    def gradients(self) -> Iterator[tuple[Floats, Floats]]:
        """Yield the others' gradient as the first hospital computes it, and the second's.

        The model gives it the sum of all other gradients.
        """
        penalty = self.strategy.regularization_ * self.strategy.coefficients_
        yield -self.gradient(0) - penalty, self.gradient(1)


@cache
def default_run(seed: int, hospitals: int = 3, *, binary: bool = False) -> FedCGRun:
    """Run FedCG with its default options, but for the number of landmarks."""
    rows = wards(hospitals, seed, binary=binary)
    return FedCGRun(rows, COLUMNS, FedCG(landmarks=LANDMARKS, seed=seed))


# -- what the attacks measure: means over all that a viewer has

AnyRun = Printed | FedCGRun


def rows_found(run: AnyRun, seed: int) -> float:
    """Trilaterate rows as the server; correlate columns with the true ones, 0 where lost."""
    scores = []
    for values, rows, landmarks in run.server():
        columns = zip(trilaterate(values, landmarks).T, rows.T, strict=True)
        scores.append(np.mean([correlation(found, true) for found, true in columns]))
    return abs(float(np.mean(scores)))


def distances_found(
    seen: Iterable[Distances], compute: Callable[[Floats, Floats], Floats]
) -> float:
    """Compute the correlation of distances among rows with the true ones."""
    scores = []
    for values, rows, landmarks in seen:
        pairs = np.triu_indices(len(rows), 1)
        truth = cdist(rows, rows, "sqeuclidean")[pairs]
        scores.append(correlation(compute(values, landmarks)[pairs], truth))
    return float(np.mean(scores))


def completed(run: AnyRun, seed: int) -> float:
    """Complete the distances among rows as the server, by alternating descent (section 4)."""

    def complete(distances: Floats, landmarks: Floats) -> Floats:
        n, points = len(distances), sum(distances.shape)
        given = np.zeros((points, points))
        given[:n, n:], given[n:, :n] = np.abs(distances), np.abs(distances.T)
        given[n:, n:] = cdist(landmarks, landmarks, "sqeuclidean")
        return alternating_descent(given, n, landmarks.shape[1], iterations=_SWEEPS, seed=seed)

    return abs(distances_found(run.server(), complete))


def unfolded(run: FedCGRun, seed: int) -> float:
    """Compute the distances among a hospital's rows without landmarks."""
    return distances_found(run.hospital(), lambda values, _: distances_by_svd(values))


def gradients_found(run: AnyRun, seed: int) -> float:
    """Compare gradients of hospitals, as a viewer computes them, with the true ones."""
    return float(np.mean([closeness(found, true) for found, true in run.gradients()]))


def columns_found(run: AnyRun, seed: int = 0) -> float:
    """Compute the share of columns of two values that distances give, without landmarks."""
    seen = run.server() if isinstance(run, Printed) else run.hospital()
    found = (share_of_columns(columns_of_distances(values), rows) for values, rows, _ in seen)
    return float(np.mean(list(found)))
