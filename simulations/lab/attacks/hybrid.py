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
:mod:`fedkern_flwr.wire.hybrid`; axes by fourth moments: Hyvärinen and Oja, "A Fast Fixed-Point
Algorithm for Independent Component Analysis", Neural Computation 9(7), 1997.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, linprog
from scipy.spatial.distance import cdist

from fedkern_flwr.alignment import AlignmentKey
from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.landmarks import draw_landmarks, public_seed
from fedkern_flwr.secure_sum.envelope import unseal_message
from fedkern_flwr.secure_sum.membership import Membership
from fedkern_flwr.wire import hybrid as wire
from fedkern_flwr.wire.message import PhaseMessage
from fedkern_flwr.wire.sums import Roster

from ...engines import Transcript
from .distances import (
    EXPLAINED,
    correlation,
    distances_by_quadric,
    distances_by_svd,
    distances_from_kernel,
    relative_error,
    trilaterate,
    trilaterate_secret_widths,
)
from .gradient_inversion import Floats
from .seen import MaskedVector, Passed, Reading, Watched, Watcher, masked_vectors, read_messages

#: The server as a viewer; parties are named by their partition.
SERVER = -1

Attack = Literal["trilateration", "secret widths", "svd", "quadric"]

_REQUESTS: dict[str, type[PhaseMessage]] = {
    cls.phase: cls
    for cls in (
        wire.MomentsRequest,
        wire.DistancesRequest,
        wire.BlocksRequest,
        wire.EquationsRequest,
        wire.ProductRequest,
        wire.ChainRequest,
        wire.CoefficientsRequest,
    )
}
_REPLIES: dict[str, type[PhaseMessage]] = {
    cls.phase: cls
    for cls in (
        wire.HybridDescribeReply,
        wire.MomentsReply,
        wire.DistancesReply,
        wire.BlocksReply,
        wire.EquationsReply,
        wire.ProductReply,
        wire.ChainReply,
        wire.CoefficientsReply,
    )
}
_NONCE, _TAG = 12, 16  # bytes around the content of a sealed message
_STARTS, _STEPS = 20, 200  # of the search for axes
_SIDE = 12.0**0.5  # a uniform number on [0, 1] times this has variance one


# -- what is seen


@dataclass
class Insider(Watched):
    """What a party has besides the messages that it is sent.

    Attributes
    ----------
    seed : bytes
    landmarks : ndarray, shape (m, d)
        Of its block.
    """

    seed: bytes = b""
    landmarks: Floats = field(default_factory=lambda: np.zeros((0, 0)))


class Insiders(Watcher[Insider]):
    """Watches all parties of one run in this process.

    Examples
    --------
    ::

        insiders, transcript = Insiders(), Transcript()
        simulate(FedCG(), insiders.watch(client_fn), 5, transcript=transcript)
        run = HybridRun(transcript, insiders)
    """

    insider = Insider

    def listen(self, client: Any, insider: Insider) -> None:
        """Have a client note its landmarks and their secret."""
        landmarks = client._landmarks

        def drawn() -> Floats:
            insider.seed, insider.landmarks = client.kept.seed, landmarks()
            return insider.landmarks

        client._landmarks = drawn


@dataclass(frozen=True)
class Matrix:
    """What a viewer can write down of a hospital's patients.

    Attributes
    ----------
    viewer : int
        A partition, or :data:`SERVER`.
    source : str
        Where it is from.
    hospital : int
    start : int
        Position of its first row among the hospital's rows.
    blocks : tuple of str
        The blocks whose features are in it.
    exponents : ndarray, shape (n, m)
        gamma_j D[i, j] with squared distances D, or what the viewer takes for that.
    gammas : ndarray, shape (1,) or (m,)
    landmarks : ndarray, shape (m, d), or None
        Of these blocks, where the viewer knows them.
    scaled : bool
        Whether to each row of the exponents a number is added that the viewer does not know.
    """

    viewer: int
    source: str
    hospital: int
    start: int
    blocks: tuple[str, ...]
    exponents: Floats
    gammas: Floats
    landmarks: Floats | None = None
    scaled: bool = False

    @property
    def distances(self) -> Floats:
        """The squared distances, shape (n, m)."""
        return np.asarray(self.exponents / self.gammas)


class HybridRun:
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
    messages : list of Passed
    parties : dict
        Partition -> its description.
    protocol : {"secure", "naive", "chain"}
    cohorts : dict
        Number -> partitions that sum together.
    positions : dict
        (party, hospital) -> which of the party's announced rows stands at each position of the
        hospital's kernel, -1 for none.
    settings : LandmarksRequest
        The first: widths, number of landmarks, public seed.

    Raises
    ------
    ProtocolError
        Messages are missing: nothing could be audited.
    """

    def __init__(
        self,
        transcript: Transcript,
        insiders: Insiders,
        ranges: Mapping[str, Floats] | None = None,
    ) -> None:
        self.transcript, self.insiders = transcript, insiders
        self.ranges = dict(ranges or {})
        self.messages = list(read_messages(transcript, _REQUESTS, _REPLIES))
        replies = [p.message for p in self.messages if p.up]
        self.parties: dict[int, wire.HybridDescribeReply] = {
            m.partition: m for m in replies if isinstance(m, wire.HybridDescribeReply)
        }
        requests = [p for p in self.messages if isinstance(p.message, wire.LandmarksRequest)]
        if not requests:
            raise ProtocolError(
                "the transcript holds no run of FedCG", remedy="record all messages as they pass"
            )
        self.settings: wire.LandmarksRequest = requests[0].message
        self.protocol, self.session = self.settings.variant, self.settings.session
        rosters = [s for p in self.messages for s in p.sections if isinstance(s, Roster)]
        members = Membership.read(rosters[0], self.session).cohorts if rosters else ()
        self.cohorts: dict[int, tuple[int, ...]] = {c.number: c.members for c in members}
        self.positions: dict[tuple[int, int], NDArray[np.int32]] = {}
        self._trained: dict[int, int] = {}
        for passed in requests:
            request = passed.message
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
        return np.asarray(np.exp(-self.settings.gammas * exponents))

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
            self.settings.gammas,
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
                exponents = distances * self.settings.gammas
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
            exponents = total.reshape(-1, self.settings.landmarks) * self.settings.gammas
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

    def masked(self) -> Iterator[MaskedVector]:
        """Yield every masked vector that the server was sent, and every total that it passed on.

        Raises
        ------
        ProtocolError
            A reply came without any of the vectors that were ordered.
        """
        yield from masked_vectors(self.messages, self.cohorts)

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
        for passed, request in self._answered(wire.ChainReply):
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
            for passed, request in self._answered(wire.ChainReply)
            if request.purpose == "start" and passed.message.residual.size
        }

    def _answered(self, reply: type[PhaseMessage]) -> Iterator[tuple[Passed, Any]]:
        """Yield replies and the requests that they answer."""
        asked: dict[int, Any] = {}
        for passed in self.messages:
            if not passed.up:
                asked[passed.partition] = passed.message
            elif isinstance(passed.message, reply):
                yield passed, asked[passed.partition]


# -- attacks


@dataclass(frozen=True)
class Finding:
    """What an attack on a matrix found.

    Attributes
    ----------
    attack : {"trilateration", "secret widths", "svd", "quadric"}
    rows : ndarray, shape (n, d), or None
        Features of the patients, where landmarks are known.
    distances : ndarray, shape (n, n), or None
        Squared distances among the patients, where they are not; of ``quadric`` a multiple.
    consistent : bool
        Whether the viewer itself can tell that it is right.
    """

    attack: Attack
    rows: Floats | None
    distances: Floats | None
    consistent: bool


@dataclass(frozen=True)
class Score:
    """How good a finding is.

    Attributes
    ----------
    error : float
        Relative to that of somebody who knows the mean and guesses it for all: 1 is a guess.
    correlation : float
        With the truth; of features less the mean of each.
    """

    error: float
    correlation: float


def attack_matrix(matrix: Matrix) -> list[Finding]:
    """Try all attacks for which a matrix has enough rows and landmarks.

    ``secret widths`` and ``quadric`` do as if the widths were not known (eq. 4.1).
    """
    found = []
    n, m = matrix.exponents.shape
    landmarks = matrix.landmarks
    if landmarks is not None and m > landmarks.shape[1]:
        found.append(_trilaterate(matrix, landmarks))
    if matrix.scaled or not np.isfinite(matrix.exponents).all():
        return found
    if landmarks is not None and m > landmarks.shape[1] + 1:
        secret = trilaterate_secret_widths(matrix.exponents, landmarks)
        found.append(Finding("secret widths", secret.x, None, secret.consistent))
    if n > 2 and m > 2:
        by_svd = distances_by_svd(matrix.distances)
        found.append(Finding("svd", None, by_svd.distances, by_svd.consistent))
        by_quadric = distances_by_quadric(matrix.exponents)
        found.append(Finding("quadric", None, by_quadric.distances, by_quadric.consistent))
    return found


def _trilaterate(matrix: Matrix, landmarks: Floats) -> Finding:
    distances = matrix.distances
    x = trilaterate(distances, landmarks)
    missing = distances - cdist(x, landmarks, "sqeuclidean")
    if matrix.scaled:
        missing = missing - missing.mean(axis=1, keepdims=True)
    explained = np.linalg.norm(missing) < EXPLAINED * np.linalg.norm(distances)
    surplus = distances.shape[1] > landmarks.shape[1] + 1 + matrix.scaled
    return Finding("trilateration", x, None, bool(explained and surplus))


def score(finding: Finding, rows: Floats) -> Score:
    """Compare a finding with the rows that it is about, shape (n, d)."""
    if finding.rows is not None:
        guess = rows.mean(axis=0)
        estimate, truth = finding.rows - guess, rows - guess
        return Score(
            relative_error(estimate, truth), _correlation(estimate - estimate.mean(axis=0), truth)
        )
    assert finding.distances is not None
    off = ~np.eye(len(rows), dtype=np.bool_)
    truth, estimate = cdist(rows, rows, "sqeuclidean")[off], finding.distances[off]
    if finding.attack == "quadric":
        square = float((estimate**2).sum())
        estimate = estimate * (float((estimate * truth).sum()) / square if square else 0.0)
    mean = truth.mean()
    return Score(relative_error(estimate - mean, truth - mean), _correlation(estimate, truth))


def _correlation(estimate: Floats, truth: Floats) -> float:
    """Return Pearson's correlation, 0 for an estimate that is the same everywhere."""
    return correlation(estimate.ravel(), truth.ravel()) if np.ptp(estimate) else 0.0


def gram_of_products(directions: Floats, products: Floats) -> Floats | None:
    """Compute K^T K from products with it.

    Parameters
    ----------
    directions, products : ndarray, shape (m, j)
        P and K^T K P.

    Returns
    -------
    ndarray, shape (m, m), or None
        None while the directions do not span the space; what is in their span is known even then.
    """
    if np.linalg.matrix_rank(directions) < len(directions):
        return None
    gram = np.linalg.lstsq(directions.T, products.T, rcond=None)[0]
    return np.asarray((gram + gram.T) / 2.0)


def labels_of_residual(residual: Floats, noise: Floats | None = None) -> Floats:
    """Compute targets from v = eta - y, which a chain that starts at zero shows.

    Parameters
    ----------
    residual : ndarray, shape (n, 1)
        v.
    noise : ndarray, shape (n, 1), optional
        eta, of which everybody knows the seed: then targets of any kind are exact. Without it those
        of -1 and 1 are, as eta lies between 0 and 1.
    """
    if noise is not None:
        return np.asarray(noise - residual)
    return np.where(residual < 0.5, 1.0, -1.0)


def gradient_of_others(
    kernel: Floats, targets: Floats, coefficients: Floats, regularization: float
) -> Floats:
    """Compute what the model tells a hospital of all others: their sum of K^T (K a - y).

    The coefficients solve (K^T K + lambda I) a = K^T y for all rows together, so that what the
    hospital's own rows leave of it are the others'.

    Parameters
    ----------
    kernel : ndarray, shape (n, m)
        Of the hospital's own training rows.
    targets : ndarray, shape (n, k)
        Theirs.
    coefficients : ndarray, shape (m, k)
        The model a.
    regularization : float
        lambda.

    Returns
    -------
    ndarray, shape (m, k)
    """
    own = kernel.T @ (targets - kernel @ coefficients)
    return np.asarray(own - regularization * coefficients)


def row_of_gradient(
    gradient: Floats, landmarks: Floats, gammas: Floats, coefficients: Floats
) -> tuple[Floats, float, bool]:
    """Compute the only row of another hospital from its k (k^T a - y), for one output.

    Its absolute value is the row of the kernel, times one number: trilateration does not mind.

    Parameters
    ----------
    gradient : ndarray, shape (m, 1)
        From :func:`gradient_of_others`.
    landmarks : ndarray, shape (m, d)
        Those of all blocks; of centres' blocks in any frame.
    gammas : ndarray, shape (1,) or (m,)
        The widths.
    coefficients : ndarray, shape (m, 1)
        The model a.

    Returns
    -------
    x : ndarray, shape (d,)
    target : float
    consistent : bool
        Whether the hospital can tell that there is one row and that it is this one.
    """
    size = np.abs(gradient[:, 0])
    exponents = -np.log(np.maximum(size / size.max(), np.finfo(np.float64).tiny))[None]
    whole = Matrix(SERVER, "gradient", 0, 0, (), exponents, gammas, landmarks, scaled=True)
    found = _trilaterate(whole, landmarks)
    assert found.rows is not None
    kernel = np.exp(-gammas * cdist(found.rows, landmarks, "sqeuclidean"))[0]
    residual = float(kernel @ gradient[:, 0]) / float(kernel @ kernel)
    target = float(kernel @ coefficients[:, 0]) - residual
    return found.rows[0], target, found.consistent


# -- landmarks on a box


def rows_in_box(distances: Floats) -> Floats:
    """Compute features from distances to unknown landmarks that are uniform on the unit box.

    1. :func:`.distances_by_svd` gives rows, and with them landmarks, up to a motion.
    2. Coordinates of uniform landmarks are independent and have small fourth moments: the rotation
       with the smallest sum of them finds the axes (independent component analysis).
    3. The rotation is refined until the smallest box around the landmarks is as small as it gets,
       by linear programs for small rotations; its middle is 1/2.

    Parameters
    ----------
    distances : ndarray, shape (n, m)
        Squared, of patients to landmarks.

    Returns
    -------
    ndarray, shape (n, d)
        Which column is which feature stays open, and whether it is 1 less the feature.

    Raises
    ------
    OptionError
        There are fewer rows or landmarks than it takes.
    """
    x, w = _common_frame(distances)
    rotation = _smallest_box(w, independent_axes(w))
    turned = w @ rotation
    middle = (turned.min(axis=0) + turned.max(axis=0)) / 2.0
    return np.asarray(x @ rotation - middle + 0.5)


def rows_along_spread(distances: Floats) -> Floats:
    """Compute features from distances to unknown landmarks whose deviations differ by feature.

    Of normal landmarks (sampling N before they were turned) the principal axes are the features.

    Parameters
    ----------
    distances : ndarray, shape (n, m)
        Squared, of patients to landmarks.

    Returns
    -------
    ndarray, shape (n, d)
        Features but for order, direction and a constant each.

    Raises
    ------
    OptionError
        There are fewer rows or landmarks than it takes.
    """
    x, w = _common_frame(distances)
    return np.asarray(x @ np.linalg.svd(w - w.mean(axis=0), full_matrices=False)[2].T)


def _common_frame(distances: Floats) -> tuple[Floats, Floats]:
    """Return rows and landmarks up to a motion, from their squared distances to each other."""
    found = distances_by_svd(distances)
    if not found.consistent:
        raise OptionError("too few rows and landmarks to know the distances among rows")
    centred = found.distances - found.distances.mean(axis=0)
    values, vectors = np.linalg.eigh((centred - centred.mean(axis=1, keepdims=True)) / -2.0)
    d = found.dimension
    x = vectors[:, -d:] * np.sqrt(np.maximum(values[-d:], 0.0))
    return x, trilaterate(distances.T, x)


def match_columns(found: Floats, truth: Floats) -> Floats:
    """Return the columns of ``found`` in the order and direction that fits the truth best."""
    d = truth.shape[1]
    together = np.corrcoef(found.T, truth.T)[:d, d:]
    order = linear_sum_assignment(-np.abs(together.T))[1]
    forward = together[order, np.arange(d)] > 0.0
    return np.where(forward, found[:, order], 1.0 - found[:, order])


def independent_axes(w: Floats) -> Floats:
    """Return the rotation to axes along which fourth moments are smallest, (d, d)."""
    z = (w - w.mean(axis=0)) * _SIDE
    best, least = np.eye(w.shape[1]), np.inf
    for seed in range(_STARTS):
        rng = np.random.default_rng(seed)
        rotation = np.linalg.qr(rng.standard_normal(best.shape))[0]
        for _ in range(_STEPS):
            y = z @ rotation
            left, _, right = np.linalg.svd(
                3.0 * rotation * (y**2).mean(axis=0) - z.T @ y**3 / len(z)
            )
            last, rotation = rotation, left @ right
            if np.abs(np.abs((last * rotation).sum(axis=0)) - 1.0).max() < 1e-12:
                break
        moment = float(((z @ rotation) ** 4).mean(axis=0).sum())
        if moment < least:
            best, least = rotation, moment
    return best


def _smallest_box(w: Floats, rotation: Floats) -> Floats:
    """Turn the axes until the box around the points is smallest in its sum of edges."""
    m, d = w.shape
    pairs = np.array(np.triu_indices(d, 1)).T
    if not len(pairs):
        return rotation
    for step in range(_STEPS):
        y = w @ rotation
        limit = 0.3 * 0.8**step
        shift = np.zeros((d, m, len(pairs)))  # of coordinate j per unit of a small rotation
        for k, (a, b) in enumerate(pairs):
            shift[b, :, k] += y[:, a]
            shift[a, :, k] -= y[:, b]
        edges = np.repeat(np.eye(d), m, axis=0)
        moved, nothing = shift.reshape(d * m, -1), np.zeros((d * m, d))
        system = np.block([[-moved, edges, nothing], [moved, nothing, -edges]])
        at = y.T.ravel()
        goal = np.concatenate([np.zeros(len(pairs)), -np.ones(d), np.ones(d)])
        bounds = [(-limit, limit)] * len(pairs) + [(None, None)] * (2 * d)
        solved = linprog(goal, A_ub=system, b_ub=np.concatenate([at, -at]), bounds=bounds)
        if solved.x is None:
            break
        small = np.zeros((d, d))
        small[pairs[:, 0], pairs[:, 1]] = solved.x[: len(pairs)]
        left, _, right = np.linalg.svd(rotation @ (np.eye(d) + small - small.T))
        rotation = left @ right
        if np.abs(small).max() < 1e-9:
            break
    return rotation
