"""What a solver needs of the parties of FedCG, whatever the protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.landmarks import moments_length
from fedkern_flwr.hybrid.parties import Plan, Ward
from fedkern_flwr.judging.counts import Yardstick, bins_of
from fedkern_flwr.judging.noisy import tidy
from fedkern_flwr.method import Ask, Steps, Term
from fedkern_flwr.privacy import Budget, Release
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.strategy import logger

from .fed_cg_columns import CommonColumns

Floats = NDArray[np.float64]
KEPT = 1  # the parties keep what belongs to a run under this number
_NOTHING, _NO_BYTES = np.zeros(0), np.zeros(0, np.uint8)
_ROUNDED = 1.0 + 1e-9


@dataclass(kw_only=True)
class HybridSystem(ABC):
    """The linear system of a run, held by the parties.

    Attributes
    ----------
    plan : Plan
        Who holds which rows and blocks.
    parties : dict
        Partition -> its description.
    cohorts : list of str
        Names of the sets among which is summed, by number.
    landmarks, sampling, kernel, basis, penalty, protocol, distance_bits, attempts
        Options of :class:`~fedkern_flwr.strategies.FedCG`.
    keep_training : bool
        Whether hospitals keep the kernel of their training rows: conjugate gradients need it.
    tunes : bool
        Whether the width is chosen in this run.
    gammas : ndarray of float64, shape (1,) or (m,)
        None before the width is chosen.
    public_seed : int
        Seed of the landmarks in the paper's protocols.
    model_of : (str, int)
        Of predictions: session and step of the run that made the model.
    budget : Budget or None
        What the run may cost in privacy.
    note_noise : callable
        Called with what is released, and over how many parties.
    known : dict
        Block -> fingerprint that its landmarks must have; of a new run empty.
    columns : CommonColumns
        The blocks that are encoded in this run.
    landmark_kernel : ndarray of shape (m, m) or None
        K_mm, where the penalty needs it.
    fingerprints : dict
        Block -> fingerprint of its landmarks.
    """

    plan: Plan
    parties: Mapping[int, wire.HybridDescribeReply]
    cohorts: list[str]
    landmarks: int
    sampling: str
    kernel: str
    basis: str
    penalty: str
    protocol: str
    distance_bits: int
    attempts: int
    keep_training: bool
    tunes: bool
    gammas: Floats
    public_seed: int
    model_of: tuple[str, int]
    known: Mapping[str, str]
    columns: CommonColumns
    budget: Budget | None = None
    note_noise: Callable[[Release, int], None] = lambda release, parties: None
    landmark_kernel: Floats | None = None
    gram: Floats | None = None  # K^T K, once it is summed
    deviation: float = 0.0  # of the noise on it
    fingerprints: dict[str, str] = field(default_factory=dict)
    # Mean distance of training rows to landmarks, where it was summed.
    mean_distance: float | None = None
    # Whether classes count alike, and how many training rows each has, once these are summed.
    balanced: bool = False
    class_counts: Floats | None = None
    _moments: dict[str, Floats] = field(default_factory=dict)
    # Partition -> who sealed the secret of its block, and the sealed secret.
    _sealed: dict[int, tuple[int, NDArray[Any]]] = field(default_factory=dict)

    @abstractmethod
    def open(self) -> Steps:
        """Have the kernel made, wherever the protocol keeps it."""

    def equations(self) -> Steps:
        """Return K^T K, shape (m, m), and K^T y, shape (m, k).

        Raises
        ------
        OptionError
            The protocol makes products only.
        """
        raise OptionError(
            f"protocol {self.protocol!r} has no normal equations", remedy="use solver cg"
        )

    @abstractmethod
    def products(self, directions: Floats, *, labels: bool = False) -> Steps:
        """Return (K^T y if ``labels``, K^T K P) for directions P of shape (m, j)."""

    def begin(self, probes: Floats, start: Floats) -> Steps:
        """Return K^T y, and the products of K^T K with probes and, unless it is zero, start."""
        moved = start if start.any() else start[:, :0]
        right, products = yield from self.products(np.hstack([probes, moved]), labels=True)
        return right, products[:, : probes.shape[1]], products[:, probes.shape[1] :]

    def predict(self, coefficients: Floats) -> Steps:
        """Return predictions of held-out rows per hospital, where hospitals cannot make them."""
        yield from ()
        return {}

    def evaluate(self, coefficients: Floats, allow_single: bool) -> Steps:
        """Give the hospitals the model; return what they counted on held-out rows, and how.

        The sum is None where there are no such rows, and zeros where the nodes keep it to
        themselves.
        """
        wards, first = self.plan.wards, self.first
        predicted = yield from self.predict(coefficients)
        tested = [h for h, ward in wards.items() if ward.test]
        count = bool(tested) and all(self.parties[h].labelled for h in tested)
        if count and len(tested) == 1 < len(wards) and self.protocol == "secure":
            if not allow_single:
                logger.warning(
                    "partition %d alone has held-out rows: their counts are not sent", tested[0]
                )
            count = allow_single
        rows = [self.plan.wards[h].test for h in tested] or [0]
        # where nothing is summed each hospital's rows must be enough for its histogram
        bins = bins_of(sum(rows) if self.protocol == "secure" else min(rows), first.classes)
        bins = 0 if self.budget is not None else bins
        yard = Yardstick(first.classes, first.outputs, first.label_bound, bins)
        counts = yield from self.give(
            coefficients, predicted, yard if count else None, most=float(max(rows))
        )
        if self.budget is not None and count and counts.any():
            counts = tidy(counts, first.classes, sum(rows))
        return yard, counts if count else None

    def give(
        self,
        coefficients: Floats,
        predicted: Mapping[int, Floats] | None = None,
        yard: Yardstick | None = None,
        *,
        most: float = 1.0,
        calibration: Sequence[float] = (),
        noise: Sequence[float] = (),
        factor: Floats | None = None,
    ) -> Steps:
        """Give the hospitals the model; return the sum of their counts.

        Without ``yard`` nothing is counted, with it rows of which a hospital has ``most``.
        ``predicted`` are predictions by hospital, where hospitals cannot make them;
        ``calibration``, ``noise`` and ``factor`` are those of a saved model.
        """
        nothing = np.zeros((0, coefficients.shape[1]))
        requests = {
            h: wire.CoefficientsRequest(
                count=yard is not None,
                bins=0 if yard is None else yard.bins,
                coefficients=coefficients,
                predictions=(predicted or {}).get(h, nothing),
                gammas=self.gammas if self.tunes else _NOTHING,
                calibration=np.array(calibration, np.float64),
                noise=np.array(noise, np.float64),
                factor=nothing[:, :0] if factor is None else factor,
            )
            for h in self.plan.hospitals
        }
        if yard is None:
            return (yield from self._collect(requests, 0, 1.0))
        return (yield from self._collect(requests, yard.length, most * yard.largest))

    def _collect(
        self, requests: Mapping[int, wire.CoefficientsRequest], length: int, bound: float
    ) -> Steps:
        answers = yield Ask(requests, reply=wire.CoefficientsReply)
        return self.added(answers.replies, length)

    @property
    def first(self) -> wire.HybridDescribeReply:
        """A hospital: all have the same outputs, classes and bound of labels."""
        return self.parties[self.plan.hospitals[0]]

    @property
    def released(self) -> int:
        """How many numbers about training rows the server has before the equations."""
        moments = sum(vector.size for vector in self._moments.values())
        counts = 0 if self.class_counts is None else self.class_counts.size
        return moments + counts + (self.mean_distance is not None)

    # -- landmarks

    def agreements(self) -> dict[str, tuple[tuple[int, ...], bool, int | None]]:
        """Return block -> (holders, whether to sum moments, who draws its secret).

        Only blocks whose holders must agree on something before they can draw landmarks.
        """
        found = {}
        for block, holders in self.plan.blocks.items():
            moments = self.sampling in ("N", "C") and len(holders) > 1
            if moments and len(holders) == 2 and self.protocol == "secure":
                logger.warning(
                    "block %r has two holders: each can compute the other's means and %s from "
                    "those of both; sampling U needs none",
                    block,
                    "deviations" if self.sampling == "N" else "covariances",
                )
            unseeded = self.protocol == "secure" and not self.parties[holders[0]].seeded
            leader = holders[0] if unseeded and len(holders) > 2 else None
            if self.sampling != "P" and not self.model_of[0] and (moments or leader is not None):
                found[block] = (holders, moments, leader)
        return found

    def agree(self) -> Steps:
        """Add up the moments and pass on the secrets of blocks that several parties hold.

        Nothing is asked where there are none. One exchange.
        """
        blocks, terms, requests = self.agreements(), [], {}
        if not blocks:
            return
        secure, rows = self.protocol == "secure", sum(w.train for w in self.plan.wards.values())
        for block, (holders, moments, leader) in blocks.items():
            for p in holders:
                peers = [q for q in holders if q != p] if p == leader else []
                requests[p] = self.rows_request(
                    wire.MomentsRequest,
                    p,
                    moments=moments,
                    sampling=self.sampling,
                    encoder=self.columns.of(self.parties[p]),
                    peers=np.array(peers, np.int32),
                )
            length = self._moments_length(holders[0])
            if moments and secure:
                terms.append(self.term(f"moments/{block}", length, rows or 1, f"block {block}"))
        answers = yield Ask(requests, reply=wire.MomentsReply, sums=terms)
        for block, (holders, moments, leader) in blocks.items():
            if moments and secure:
                self._moments[block] = answers.totals[f"moments/{block}"]
            elif moments:  # the paper's protocols hide nothing
                plain = [answers.replies[p].plain for p in holders]
                length = self._moments_length(holders[0])
                if any(vector.shape != (length,) for vector in plain):
                    raise ProtocolError(f"moments of block {block!r} are missing")
                self._moments[block] = np.sum(plain, axis=0)
            if leader is not None:
                peers = [q for q in holders if q != leader]
                sealed = answers.replies[leader].sealed
                if len(sealed) != len(peers):
                    raise ProtocolError(
                        "the secret of its block is missing", party=f"partition {leader}"
                    )
                self._sealed |= {q: (leader, s) for q, s in zip(peers, sealed, strict=True)}

    def _moments_length(self, holder: int) -> int:
        return moments_length(self.columns.features(self.parties[holder]), self.sampling)

    def take_fingerprints(self, replies: Mapping[int, wire.DistancesReply]) -> None:
        """Check that all holders of a block have the same landmarks, and the model's.

        Raises
        ------
        ProtocolError
        """
        for block, holders in self.plan.blocks.items():
            for partition in holders:
                if partition not in replies:
                    continue
                found = replies[partition].fingerprint.hex()
                if self.fingerprints.setdefault(block, found) != found:
                    raise ProtocolError(
                        f"its landmarks of block {block!r} differ from those of the other holders",
                        remedy="configure the same landmark seed at all holders of the block",
                        party=f"partition {partition}",
                    )
                if self.known.get(block, found) != found:
                    raise ProtocolError(
                        f"its landmarks of block {block!r} are not those of the model",
                        remedy="give it the state_dir or the landmark seed of the training run",
                        party=f"partition {partition}",
                    )

    # -- requests, sums, replies

    def rows_request(
        self, kind: Any, partition: int, parts: Mapping[int, slice] | None = None, **more: Any
    ) -> Any:
        """Return a request to a party about rows of hospitals, as far as it has any of them.

        ``parts`` are the positions of each hospital, by default all.
        """
        wards = [ward for ward in self.plan.wards.values() if partition in ward.rows]
        if parts is None:
            parts = {ward.partition: slice(0, ward.total) for ward in wards}
        wards = [ward for ward in wards if ward.partition in parts]

        def whole(of: Callable[[Ward], int]) -> NDArray[np.int32]:
            return np.array([of(ward) for ward in wards], np.int32)

        return kind(
            hospitals=whole(lambda w: w.partition),
            trains=whole(lambda w: w.train),
            starts=whole(lambda w: parts[w.partition].start),
            stops=whole(lambda w: parts[w.partition].stop),
            rows=tuple(ward.rows[partition] for ward in wards),
            **more,
        )

    def landmarks_requests(
        self, kind: Any, asked: Iterable[int], parts: Mapping[int, slice] | None = None
    ) -> dict[int, Any]:
        """Return partition -> all that it must know to draw its landmarks and make its kernel."""
        secret, requests = self.protocol == "secure", {}
        for partition in sorted(asked):
            party = self.parties[partition]
            holders = self.plan.blocks.get(party.block, ())
            seed_from, sealed = self._sealed.get(partition, (-1, _NO_BYTES))
            if secret and party.features and not party.seeded and len(holders) == 2:
                seed_from = next(p for p in holders if p != partition)
            requests[partition] = self.rows_request(
                kind,
                partition,
                parts,
                variant=self.protocol,
                kernel=self.kernel,
                basis=self.basis,
                sampling=self.plan.sampling(party.block, self.sampling),
                landmarks=self.landmarks,
                seed_from=seed_from,
                public_seed=-1 if secret else self.public_seed,
                model=self.model_of[0],
                model_round=self.model_of[1],
                save_as=0 if self.model_of[0] else KEPT,
                landmark_pairs=bool(party.features) and holders[:1] == (partition,),
                keep_training=self.keep_training,
                gammas=self.gammas,
                moments=self._moments.get(party.block, _NOTHING),
                sealed_seed=sealed,
                encoder=self.columns.of(party),
            )
        return requests

    def tell_everybody(self, request: Any, reply: Any) -> Steps:
        """Tell all parties rows, landmarks and widths; return their replies (one exchange)."""
        yield from self.agree()
        requests = self.landmarks_requests(request, self.plan.parties)
        answers = yield Ask(requests, reply=reply)
        self.take_fingerprints(answers.replies)
        return answers.replies

    def term(
        self,
        name: str,
        length: int,
        bound: float,
        cohort: str,
        *,
        receiver: int | None = None,
        bits: int = 64,
        release: Release | None = None,
    ) -> Term:
        """Return a sum over a whole cohort, of numbers up to ``bound`` and what rounding adds."""
        encoding = Encoding.fixed_point(bound * _ROUNDED, bits)
        if release is not None:
            encoding = encoding.noisy(release.noise)
        return Term(
            name=name,
            length=length,
            encoding=encoding,
            cohort=self.cohorts.index(cohort),
            receiver=receiver,
            self_masks=False,
        )

    @staticmethod
    def added(replies: Mapping[int, Any], length: int) -> Floats:
        """Add up vectors that were sent in plain.

        Raises
        ------
        ProtocolError
        """
        total = np.zeros(length)
        for partition, reply in replies.items() if length else ():
            if len(reply.plain) != 1 or reply.plain[0].shape != (length,):
                raise ProtocolError("its vector is missing", party=f"partition {partition}")
            total += reply.plain[0]
        return total
