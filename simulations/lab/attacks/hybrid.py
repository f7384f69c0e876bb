"""Inversion of FedCG over a whole run: what the server and every party can compute from it.

A viewer is the server, which sees all messages, or a party, which sees those that it is sent, opens
what is sealed for it and has its own table. :class:`HybridRun` reads a recorded run. What a viewer
can write down of the patients is a :class:`Matrix`, a row per patient and a column per landmark:

    ========  ========  ===================================================================
    protocol  viewer    matrix
    ========  ========  ===================================================================
    naive     server    every party's kernel block, and their product
    chain     centre    on the way forth the kernel of the centres before it: p is known
    chain     hospital  likewise the kernel of all its centres
    chain     centre    on the way back the kernel of the hospital and of the centres after
                        it, each row times a number that the centre does not know
    chain     server    sealed bytes
    secure    hospital  the total distances of its own rows to the centres' landmarks
    secure    server    masked vectors
    ========  ========  ===================================================================

:func:`attack_matrix` tries on it what :mod:`.distances` has. A number that multiplies a whole row
does not hinder trilateration, which takes means over the landmarks away.

Beyond matrices: :func:`gram_of_products` (chain and conjugate gradients: the server has K^T K as
soon as the directions span the space), :func:`labels_of_residual` (chain: the noise hides no
label), :func:`rows_in_box` and :func:`rows_along_spread` (secure: landmarks with a coordinate per
feature, uniform or normal, would show a hospital the axes of the features, so that from its
patients' distances it had their features; the landmarks of a block are turned for that) and
:func:`gradient_of_others` (the model of two hospitals tells each K^T (K a - y) of the other).

Source: follows from Algorithms 1 and 2 of FedCG and from the messages of
:mod:`fedkern_flwr.hybrid.messages`; axes by fourth moments: Hyvärinen and Oja, "A Fast Fixed-Point
Algorithm for Independent Component Analysis", Neural Computation 9(7), 1997.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from fedkern_flwr.alignment import AlignmentKey
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.landmarks import draw_landmarks, public_seed
from fedkern_flwr.secure_sum.envelope import unseal_message
from fedkern_flwr.solvers.equations import equations_length, unpack_equations
from fedkern_flwr.solvers.tuning_sums import Equations, tuning_length

from ...engines import Transcript
from .gradient_inversion import Floats
from .hybrid_insiders import SERVER, Insiders, Matrix
from .seen import MaskedVector, Reading, SeenRun
from .trilateration import distances_from_kernel

_NONCE = 12  # bytes before the content of a sealed message
_TAG = 16  # bytes after it


# -- what is seen


class HybridRun(SeenRun):
    """A recorded run of FedCG: messages, what each party can open of them, and the truth.

    Attacks are those on the Gaussian kernel.

    Parameters
    ----------
    transcript : Transcript
        All messages, what came late included.
    insiders : Insiders
        Who watched the same run.
    ranges : dict, optional
        Block -> public ranges of its features, shape (d, 2); [0, 1] by default.

    Attributes
    ----------
    protocol : {"secure", "naive", "chain"}
    positions : dict
        (party, hospital) -> which of the party's announced rows stands at each position of the
        hospital's kernel, -1 for none.
    settings : LandmarksRequest
        The first: widths, number of landmarks, public seed.
    """

    name, kinds, opening = "FedCG", wire, wire.LandmarksRequest
    insiders: Insiders

    def __init__(
        self,
        transcript: Transcript,
        insiders: Insiders,
        ranges: Mapping[str, Floats] | None = None,
    ) -> None:
        super().__init__(transcript, insiders)
        self.ranges = dict(ranges or {})
        self.protocol = self.settings.variant
        self.positions: dict[tuple[int, int], NDArray[np.int32]] = {}
        self._trained: dict[int, int] = {}
        self.gammas = self.settings.gammas
        self._asked: wire.EquationsRequest | None = None
        for passed in self.messages:
            request = passed.message
            if isinstance(request, wire.EquationsRequest) and request.gammas.size:
                self._asked = request
            if isinstance(request, wire.CoefficientsRequest) and request.gammas.size:
                self.gammas = request.gammas
            if not isinstance(request, wire.LandmarksRequest):
                continue
            for k, hospital in enumerate(request.hospitals.tolist()):
                self.positions[passed.partition, hospital] = request.rows[k]
                self._trained[hospital] = int(request.trains[k])

    # -- the truth

    @property
    def hospitals(self) -> list[int]:
        """Partitions of the hospitals."""
        return sorted({h for _, h in self.positions})

    def holders(self, hospital: int) -> dict[str, int]:
        """Return block -> who holds it of a hospital's rows, in the order of a chain."""
        with_rows = [p for p, h in self.positions if h == hospital and self.parties[p].features]
        ordered = sorted(with_rows, key=lambda p: (p == hospital, p))
        return {self.parties[p].block: p for p in ordered}

    def rows(self, hospital: int, blocks: Sequence[str]) -> Floats:
        """Return the features of all rows of a hospital in the kernel's order, zeros if missing."""
        parts = []
        for block in blocks:
            holder = self.holders(hospital)[block]
            table, key = self._table(holder)
            positions = self.positions[holder, hospital]
            features = table.announced(self.session, key)[positions]
            parts.append(np.where((positions >= 0)[:, None], features, 0.0))
        return np.hstack(parts)

    def targets(self, hospital: int) -> Floats:
        """Return the targets of a hospital's training rows, shape (train, k)."""
        table, key = self._table(hospital)
        positions = self.positions[hospital, hospital][: self._trained[hospital]]
        return np.asarray(table.y[table.order(self.session, key)[positions]])

    def kernel(self, hospital: int) -> Floats:
        """Return the kernel of all rows of a hospital, from all parties' tables and landmarks."""
        exponents = np.zeros(())
        for block, holder in self.holders(hospital).items():
            rows = self.rows(hospital, [block])
            held = (self.positions[holder, hospital] >= 0)[:, None]
            landmarks = self.insiders.parties[holder].landmarks
            exponents = exponents + held * cdist(rows, landmarks, "sqeuclidean")
        return np.asarray(np.exp(-self.gammas * exponents))

    def equations(self, numbers: Floats) -> tuple[Floats, Floats]:
        """Return K^T K and K^T y from a vector of equations, of the width that was chosen."""
        grams, rights = self.equations_of_folds(numbers)
        return grams.sum(0), rights.sum(0)

    def equations_of_folds(self, numbers: Floats) -> tuple[Floats, Floats]:
        """Return the same of each fold, shapes (folds, m, m) and (folds, m, k)."""
        m, outputs = self.settings.landmarks, self.targets(self.hospitals[0]).shape[1]
        if self._asked is None:
            gram, right = unpack_equations(numbers[: equations_length(m, outputs)], m, outputs)
            return gram[None], right[None]
        shape = m, outputs, self._asked.folds, len(self._asked.gammas)
        found = Equations.unpack(numbers[: tuning_length(*shape)], *shape)
        width = int(np.argmin(np.abs(self._asked.gammas - self.gammas).sum(axis=1)))
        return found.gram[:, width], found.right[:, width]

    def folds(self, hospital: int) -> NDArray[np.intp]:
        """Return of which of the released sums each training row of a hospital is a part."""
        table, key = self._table(hospital)
        positions = self.positions[hospital, hospital][: self._trained[hospital]]
        number = 1 if self._asked is None else self._asked.folds
        return np.asarray(table.folds(table.order(self.session, key)[positions], number, key))

    def training_kernel(self, hospital: int) -> Floats:
        """Return the kernel of the training rows of a hospital."""
        return self.kernel(hospital)[: self._trained[hospital]]

    def truth(self, matrix: Matrix) -> Floats:
        """Return the features that a matrix is made of, shape (n, d)."""
        rows = self.rows(matrix.hospital, matrix.blocks)
        return rows[matrix.start : matrix.start + len(matrix.exponents)]

    def _table(self, partition: int) -> tuple[Any, AlignmentKey | None]:
        client = self.insiders.parties[partition].client
        return client.table, client.alignment_key

    # -- matrices

    def matrices(self, viewer: int) -> Iterator[Matrix]:
        """Yield what a viewer can write down of patients."""
        if viewer == SERVER:
            yield from self._blocks()
            yield from self._sealed()
            yield from self._masked_distances()
        else:
            yield from self._totals(viewer)
            yield from self._hops(viewer)

    def public_landmarks(self, blocks: Sequence[str]) -> Floats | None:
        """Return the landmarks of blocks in the paper's protocols, whose seed is public.

        None in the secure protocol, and where moments are needed as well as the seed.
        """
        if self.settings.public_seed < 0 or self.settings.sampling != "U":
            return None
        features = {p.block: p.features for p in self.parties.values()}
        unit = np.array([[0.0, 1.0]])
        parts = []
        for block in blocks:
            ranges = self.ranges.get(block, np.repeat(unit, features[block], axis=0))
            seed = public_seed(self.settings.public_seed, block)
            parts.append(draw_landmarks(seed, self.settings.landmarks, ranges))
        return np.hstack(parts)

    def _matrix(
        self,
        viewer: int,
        source: str,
        hospital: int,
        blocks: Sequence[str],
        exponents: Floats,
        *,
        start: int = 0,
        scaled: bool = False,
    ) -> Matrix:
        return Matrix(
            viewer,
            source,
            hospital,
            start,
            tuple(blocks),
            exponents,
            self.gammas,
            self.public_landmarks(blocks),
            scaled,
        )

    def _blocks(self) -> Iterator[Matrix]:
        """Naive: kernel blocks in plain."""
        seen: dict[tuple[int, int], Floats] = {}
        asked: dict[int, list[int]] = {}
        for passed in self.messages:
            if isinstance(passed.message, wire.BlocksRequest):
                asked[passed.partition] = passed.message.hospitals.tolist()
            elif isinstance(passed.message, wire.BlocksReply):
                pairs = zip(asked[passed.partition], passed.message.blocks, strict=True)
                seen |= {(passed.partition, h): block for h, block in pairs}
        for (partition, hospital), kernel in seen.items():
            if self.parties[partition].features:
                blocks = [self.parties[partition].block]
                exponents = distances_from_kernel(kernel, 1.0)
                yield self._matrix(SERVER, "kernel block", hospital, blocks, exponents)
        for hospital in self.hospitals if seen else ():
            holders = self.holders(hospital)
            product = np.prod([seen[p, hospital] for p in holders.values()], axis=0)
            exponents = distances_from_kernel(product, 1.0)
            yield self._matrix(SERVER, "product", hospital, list(holders), exponents)

    def _sealed(self) -> Iterator[Matrix]:
        """Chain: what one party sealed for another, read as numbers in [0, 1]."""
        for request, k in self._hop_requests():
            if not request.received[k].size:
                continue
            hospital, start = int(request.hospitals[k]), int(request.starts[k])
            inside = request.received[k].tobytes()[_NONCE:-_TAG]
            numbers = np.frombuffer(inside, "<u8") / 2.0**64
            kernel = numbers.reshape(-1, self.settings.landmarks)
            exponents = -np.log(np.maximum(kernel, 2.0**-65))
            blocks = list(self.holders(hospital))
            yield self._matrix(SERVER, "sealed hop", hospital, blocks, exponents, start=start)

    def _masked_distances(self) -> Iterator[Matrix]:
        """Secure: masked distances and padded totals, read as if they were bare."""
        for vector in self.masked():
            kind, _, rest = vector.order.name.partition("/")
            if kind != "distances":
                continue
            hospital, start = (int(part) for part in rest.split("#"))
            blocks = [b for b, p in self.holders(hospital).items() if p != hospital]
            if not vector.delivered and vector.partition != hospital:
                blocks = [self.parties[vector.partition].block]
            what = "padded total" if vector.delivered else "masked distances"
            for reading in get_args(Reading):
                distances = vector.read(reading).reshape(-1, self.settings.landmarks)
                exponents = distances * self.gammas
                source = f"{what} as {reading}"
                yield self._matrix(SERVER, source, hospital, blocks, exponents, start=start)

    def _totals(self, viewer: int) -> Iterator[Matrix]:
        """Secure: totals that belong to a hospital."""
        seen = set()
        for name, total in self.insiders.parties[viewer].totals:
            kind, _, rest = name.partition("/")
            if kind != "distances" or name in seen:
                continue
            seen.add(name)
            hospital, start = (int(part) for part in rest.split("#"))
            blocks = [b for b, p in self.holders(hospital).items() if p != hospital]
            exponents = total.reshape(-1, self.settings.landmarks) * self.gammas
            yield self._matrix(viewer, "total distances", hospital, blocks, exponents, start=start)

    def _hops(self, viewer: int) -> Iterator[Matrix]:
        """Chain: what the party before sealed for the viewer, and what it can divide out."""
        for request, k in self._hop_requests(viewer):
            if not request.received[k].size:
                continue
            hospital, start = int(request.hospitals[k]), int(request.starts[k])
            before, back = int(request.froms[k]), int(request.backwards[k])
            place = ("chain", self.session, request.purpose, hospital, before, viewer, back)
            secret = self.insiders.parties[viewer].secrets[before]
            plain = unseal_message(secret, request.received[k].tobytes(), *place)
            matrix = np.abs(np.frombuffer(plain, "<f8").reshape(-1, self.settings.landmarks))
            order = list(self.holders(hospital).items())
            centres = [p for _, p in order if p != hospital]
            place_of = centres.index(viewer) if viewer in centres else len(centres)
            if back:
                blocks = [b for b, p in order if p == hospital or centres.index(p) > place_of]
                largest = matrix.max(axis=1, keepdims=True)
                usable = (largest > 0.0).all()
                kernel = matrix / np.where(largest > 0.0, largest, 1.0)
            else:
                blocks = [b for b, p in order if p in centres[:place_of]]
                p = np.abs(request.vector[:, 0])
                usable = (p > 0.0).all()
                kernel = matrix / np.where(p > 0.0, p, 1.0)
            if usable and blocks:  # at a start from zero there is nothing to see
                exponents = distances_from_kernel(np.minimum(kernel, 1.0), 1.0)
                source = f"{'back' if back else 'forth'}, {request.purpose}"
                yield self._matrix(
                    viewer, source, hospital, blocks, exponents, start=start, scaled=bool(back)
                )

    def _hop_requests(self, viewer: int | None = None) -> Iterator[tuple[wire.ChainRequest, int]]:
        for passed in self.messages:
            request = passed.message
            if isinstance(request, wire.ChainRequest) and viewer in (None, passed.partition):
                yield from ((request, k) for k in range(len(request.hospitals)))

    # -- sums

    def opened(self) -> Iterator[tuple[MaskedVector, Floats]]:
        """Yield all sums that the server can open: one of their vectors, and the total.

        A sum without self masks opens as soon as all its vectors are there, late ones included.
        """
        sums: dict[tuple[int, int], dict[int, MaskedVector]] = {}
        for vector in self.masked():
            order = vector.order
            if order.receiver == SERVER:
                sums.setdefault((order.cohort, order.index), {})[vector.partition] = vector
        for parts in sums.values():
            first = next(iter(parts.values()))
            if set(parts) == set(first.members):
                whole = np.sum([v.ring for v in parts.values()], axis=0, dtype=first.ring.dtype)
                yield first, first.encoding.decode(whole, len(first.members))

    def products(self, hospital: int) -> tuple[Floats, Floats]:
        """Return p and K_h^T K_h p of all products of a chain, as the server has them, (m, j)."""
        directions, found = [], []
        for passed, request in self.answered(wire.ChainReply):
            if request.purpose == "product":
                for k, h in enumerate(request.hospitals.tolist()):
                    if h == hospital and request.tos[k] < 0:
                        directions.append(request.vector[:, 0])
                        found.append(np.frombuffer(passed.message.sent[k].tobytes(), "<f8"))
        return np.array(directions).T, np.array(found).T

    def residuals(self) -> dict[int, Floats]:
        """Return hospital -> v = K a - y + noise of its training rows, as a chain shows it."""
        return {
            passed.partition: passed.message.residual
            for passed, request in self.answered(wire.ChainReply)
            if request.purpose == "start" and passed.message.residual.size
        }
