"""The exchanges of FedCG: sums of distances for the hospitals, sums of products for the server.

Exchanges: (1) ``describe``. (2) Keys out, masked partial distances back, a sum per hospital that it
alone can open. (3) The sums to the hospitals, masked K_h^T K_h and K_h^T y_h back; or, per
iteration, masked products. (4) Coefficients. (5) ``finish``. All sums are over fixed cohorts
without self masks, so none needs an exchange to be unmasked; a sum that lacks a party is repeated
with all of them.

Without centres each hospital computes the distances of its rows by itself. Then (2) is left out,
and the run is over with (4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.exchange import SumSpec
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.fourier import EQUATIONS, label_weight
from fedkern_flwr.hybrid.parties import Plan
from fedkern_flwr.judging.figures import Yardstick, bins_of, tidy
from fedkern_flwr.kernels.product import kernel_from_distances
from fedkern_flwr.method import Ask, Deliver, LostState, Steps
from fedkern_flwr.nodes import logger
from fedkern_flwr.solvers.equations import unpack_equations
from fedkern_flwr.solvers.tuning_sums import Equations

if TYPE_CHECKING:
    from .fed_cg import FedCG
    from .fed_cg_plan import Sums

Floats = NDArray[np.float64]
KEPT = 1  # the parties keep what belongs to a run under this number
_NOTHING, _NO_BYTES = np.zeros(0), np.zeros(0, np.uint8)
_MESSAGE = 256 << 20  # bytes of distances in a message; larger problems take more exchanges


@dataclass(kw_only=True)
class HybridSystem:
    """The linear system of a run, held by the parties.

    Attributes
    ----------
    options : FedCG
        The options of the run.
    plan : Plan
        Who holds which rows and blocks.
    parties : dict
        Partition -> its description.
    cohorts : dict
        Name of a set among which is summed -> its number.
    landmarks : int
        Number m of landmarks.
    gammas : ndarray of float64, shape (1,) or (m,)
        Widths; of none while they are being chosen.
    tunes : bool
        Whether the width is chosen in this run.
    model_of : (str, int)
        Of predictions: session and step of the run that made the model.
    known : dict
        Block -> fingerprint that its landmarks must have; of a new run empty.
    sums : Sums or None
        What is summed to choose from, where that was planned with the landmarks.
    at_once : bool
        Whether hospitals make their kernels by themselves, as they answer the first request.
    """

    options: FedCG
    plan: Plan
    parties: Mapping[int, wire.HybridDescribeReply]
    cohorts: Mapping[str, int]
    landmarks: int
    gammas: Floats
    tunes: bool
    model_of: tuple[str, int]
    known: Mapping[str, str]
    sums: Sums | None
    at_once: bool
    landmark_kernel: Floats | None = None  # K_mm, where the penalty needs it
    released: int = 0  # numbers about training rows that the server has before the equations
    gram: Floats | None = None  # K^T K, once it is summed
    deviation: float = 0.0  # of the noise on it
    fingerprints: dict[str, str] = field(default_factory=dict)
    mean_distance: float | None = None  # of training rows to landmarks, once it is summed
    class_counts: Floats | None = None  # training rows of each class, once they are summed
    _says_how: bool = False  # whether the next request says how kernels are made
    _moments: dict[str, Floats] = field(default_factory=dict)
    # partition -> who sealed the secret of its block, and the sealed secret
    _sealed: dict[int, tuple[int, NDArray[Any]]] = field(default_factory=dict)

    @property
    def labels(self) -> Yardstick:
        """What the hospitals have labels of: all have the same outputs, classes and bound."""
        first = self.parties[self.plan.hospitals[0]]
        return Yardstick(first.classes, first.outputs, first.label_bound)

    def facts(self, partition: int, wanted: Collection[str] = ()) -> wire.Facts:
        """Return what the sums of a request to a party depend on."""
        party, wards, rbf = self.parties[partition], self.plan.wards, self.options.kernel == "rbf"
        bounds = (p.square_bound if rbf else p.absolute_bound for p in self.parties.values())
        return wire.Facts(
            landmarks=self.landmarks,
            labels=self.labels,
            rows=[ward.train for ward in wards.values()],
            tests=[ward.test for ward in wards.values()],
            block=party.block,
            features=party.features,
            distance=max(bounds) or 1.0,
            bits=self.options.distance_bits,
            budget=self.options.budget,
            signed=[(self.parties[h].rows, self.parties[h].test_rows) for h in wards],
            wanted=wanted,
            cohorts=self.cohorts,
        )

    # -- what solvers ask for

    def open(self, *, resumed: bool = False) -> Steps:
        """Agree on landmarks where needed, then have the hospitals' kernels made.

        Hospitals that make theirs by themselves remember how when a run is resumed.
        """
        if self.at_once and resumed:
            return
        yield from self._agree()
        if self.at_once:
            self._says_how = True
        else:
            yield from self._make_kernels()

    def equations(self) -> Steps:
        """Sum the normal equations: K^T K, shape (m, m), and K^T y, shape (m, k)."""
        m, labels = self.landmarks, self.labels
        request = wire.EquationsRequest(gammas=np.zeros((0, 1)), class_counts=_NOTHING)
        vector = yield from self._sum(request, wire.EquationsReply)
        gram, right = unpack_equations(vector, m, labels.outputs)
        if self.options.budget is not None:
            right /= label_weight(labels.bound, labels.outputs)
        return gram, right

    def tuning_equations(self, gammas: Floats, folds: int) -> Steps:
        """Sum the normal equations of each width, shape (w, 1) or (w, m), and fold."""
        counts = _NOTHING if self.class_counts is None else self.class_counts
        balanced = self.options.class_weight is not None
        request = wire.EquationsRequest(
            gammas=gammas, folds=folds, balanced=balanced, class_counts=counts
        )
        vector = yield from self._sum(request, wire.EquationsReply)
        return Equations.unpack(vector, self.landmarks, self.labels.outputs, folds, len(gammas))

    def products(self, directions: Floats, *, labels: bool = False) -> Steps:
        """Return (K^T y if ``labels``, K^T K P) for directions P, which travel with length one."""
        lengths = np.linalg.norm(directions, axis=0)
        lengths[lengths == 0.0] = 1.0
        request = wire.ProductRequest(labels=labels, directions=directions / lengths)
        vector = yield from self._sum(request, wire.ProductReply)
        outputs = self.labels.outputs if labels else 0
        right, product = np.split(vector, [self.landmarks * outputs])
        product = product.reshape(directions.shape) * lengths
        return right.reshape(self.landmarks, outputs), product

    def begin(self, probes: Floats, start: Floats) -> Steps:
        """Return K^T y, and the products of K^T K with probes and, unless it is zero, start."""
        moved = start if start.any() else start[:, :0]
        right, products = yield from self.products(np.hstack([probes, moved]), labels=True)
        return right, products[:, : probes.shape[1]], products[:, probes.shape[1] :]

    def evaluate(self, coefficients: Floats) -> Steps:
        """Give the hospitals the model; return what they counted on held-out rows, and how.

        The sum is None where there are no such rows, and zeros where the nodes keep it to
        themselves.
        """
        private = self.options.budget is not None
        tested = {h: ward.test for h, ward in self.plan.wards.items() if ward.test}
        count = bool(tested) and all(self.parties[h].labelled for h in tested)
        if count and len(tested) == 1 < len(self.plan.wards) and not self.options.allow_single:
            logger.warning(
                "partition %d alone has held-out rows: their counts are not sent", *tested
            )
            count = False
        rows = sum(tested.values())
        bins = 0 if private else bins_of(rows, self.labels.classes)
        yard = replace(self.labels, bins=bins)
        counts = yield from self.give(coefficients, yard if count else None)
        if private and count and counts.any():
            counts = tidy(counts, yard.classes, rows)
        return yard, counts if count else None

    def give(
        self,
        coefficients: Floats,
        yard: Yardstick | None = None,
        *,
        calibration: Sequence[float] = (),
        noise: Sequence[float] = (),
        factor: Floats | None = None,
    ) -> Steps:
        """Give the hospitals the model; return the sum of their counts, none without ``yard``.

        ``calibration``, ``noise`` and ``factor`` are those of a saved model.
        """
        nothing = np.zeros((0, coefficients.shape[1]))
        request = wire.CoefficientsRequest(
            count=yard is not None,
            bins=0 if yard is None else yard.bins,
            coefficients=coefficients,
            gammas=self.gammas if self.tunes else _NOTHING,
            calibration=np.array(calibration, np.float64),
            noise=np.array(noise, np.float64),
            factor=nothing[:, :0] if factor is None else factor,
        )
        reply = wire.CoefficientsReply
        if request.count:
            return (yield from self._sum(request, reply))
        yield from self._ask(Ask(request, reply=reply, among=self.plan.hospitals))
        return _NOTHING

    # -- landmarks

    def _agree(self) -> Steps:
        """Sum the moments, pass on the secrets of blocks that several parties hold: one exchange.

        Nothing is asked where holders need not agree on anything before they draw landmarks.
        """
        sampling, requests, leaders = self.options.chosen_sampling, dict[int, Any](), {}
        if self.model_of[0]:
            return
        for block, holders in self.plan.blocks.items():
            moments = sampling in ("N", "C") and len(holders) > 1
            if moments and len(holders) == 2:
                logger.warning(
                    "block %r has two holders: each can compute the other's means and %s from "
                    "those of both; sampling U needs none",
                    block,
                    "deviations" if sampling == "N" else "covariances",
                )
            if len(holders) > 2 and not self._agreed(block):
                leaders[block] = holders[0]
            for p in holders if moments or block in leaders else ():
                peers = [q for q in holders if q != p] if p == leaders.get(block) else []
                requests[p] = self._rows_request(
                    wire.MomentsRequest,
                    p,
                    moments=moments,
                    sampling=sampling,
                    peers=np.array(peers, np.int32),
                )
        if not requests:
            return
        answers = yield Ask(requests, reply=wire.MomentsReply, sums=self._declared(requests))
        self._moments = {name.partition("/")[2]: total for name, total in answers.totals.items()}
        self.released += sum(total.size for total in answers.totals.values())
        for block, leader in leaders.items():
            peers = [q for q in self.plan.blocks[block] if q != leader]
            sealed = answers.replies[leader].sealed
            if len(sealed) != len(peers):
                raise ProtocolError(
                    "the secret of its block is missing",
                    party=f"partition {leader}",
                    code="FK-MESSAGE-FIELD",
                )
            self._sealed |= {q: (leader, s) for q, s in zip(peers, sealed, strict=True)}

    def _agreed(self, block: str) -> bool:
        """Tell whether the holders of a block have a secret: configured, or of an earlier run."""
        holders = self.plan.blocks[block]
        digests = {self.parties[p].secret_digest(len(holders)) for p in holders}
        return len(digests) == 1 and "" not in digests

    def _take_fingerprints(self, replies: Mapping[int, Any]) -> None:
        """Check that all holders of a block have the same landmarks, and the model's.

        Raises
        ------
        ProtocolError
        """
        for block, holders in self.plan.blocks.items():
            for partition in [p for p in holders if p in replies]:
                found = replies[partition].fingerprint.hex()
                if self.fingerprints.setdefault(block, found) != found:
                    raise ProtocolError(
                        f"its landmarks of block {block!r} differ from those of the other holders",
                        remedy="configure the same landmark seed at all holders of the block",
                        party=f"partition {partition}",
                        code="FK-BLOCK-DIFFERS",
                    )
                if self.known.get(block, found) != found:
                    raise ProtocolError(
                        f"its landmarks of block {block!r} are not those of the model",
                        remedy="give it the state_dir or the landmark seed of the training run",
                        party=f"partition {partition}",
                        code="FK-LANDMARKS-MODEL",
                    )

    # -- kernels

    def _make_kernels(self) -> Steps:
        """Sum the distances, as many rows at a time as a message may hold."""
        wards = self.plan.wards
        largest = max(sum(w.total for w in wards.values() if p in w.centres) for p in self.parties)
        parts = max(1, -(-largest * self.landmarks * self.options.distance_bits // 8 // _MESSAGE))
        steps = {h: -(-ward.total // parts) for h, ward in wards.items()}
        for number in range(parts):
            part = {}
            for h, ward in wards.items():
                start = min(number * steps[h], ward.total)
                stop = min(start + steps[h], ward.total)
                if ward.centres and start < stop:
                    part[h] = slice(start, stop)
                elif not number:
                    part[h] = slice(0, 0)  # makes its kernel alone
            if part:
                yield from self._sum_distances(part, once=not number)

    def _sum_distances(self, parts: dict[int, slice], *, once: bool) -> Steps:
        options, m, plan = self.options, self.landmarks, self.plan
        pairs = once and options.penalty == "rkhs" and self.landmark_kernel is None
        spread = self.tunes and "everybody" in self.cohorts and self.mean_distance is None
        counted = self.tunes and options.class_weight is not None and self.class_counts is None
        counted = counted and len(plan.hospitals) > 1
        asked = {p for h in parts for p in plan.wards[h].rows}
        asked |= set(plan.parties) if pairs and m > 1 else set()
        asked |= set(plan.hospitals) if counted else set()
        kind = wire.DistancesRequest
        requests = {p: self._rows_request(kind, p, parts, **self._how(p)) for p in sorted(asked)}
        beside = {
            wire.PAIRS: pairs and m > 1,
            wire.MEAN_DISTANCE: spread,
            wire.CLASS_COUNTS: counted,
        }
        wanted = [name for name, takes in beside.items() if takes]
        whole = plan.whole.keys() & parts
        wanted += [wire.distances_sum(h, parts[h].start, plan.whole[h]) for h in whole]
        sums = self._declared(requests, wanted)
        answers = yield Ask(requests, reply=wire.DistancesReply, sums=sums)
        self._take_fingerprints(answers.replies)
        for running in answers.running.values():
            yield Deliver(running, running.order.receiver)
        totals = answers.totals
        if spread:
            self.mean_distance = float(totals[wire.MEAN_DISTANCE][0]) / plan.training_rows
            self.released += 1
        if counted:
            self.class_counts = np.rint(totals[wire.CLASS_COUNTS])
            self.released += len(self.class_counts)
        if pairs:
            square = np.zeros((m, m))
            square[np.triu_indices(m, 1)] = totals.get(wire.PAIRS, ())
            self.landmark_kernel = kernel_from_distances(square + square.T, self.gammas)

    def _how(self, partition: int) -> dict[str, Any]:
        """Return all that a party must know to draw its landmarks and make its kernel."""
        options, party = self.options, self.parties[partition]
        holders = self.plan.blocks.get(party.block, ())
        seed_from, sealed = self._sealed.get(partition, (-1, _NO_BYTES))
        if bool(party.features) and not party.seeded and len(holders) == 2:
            seed_from = next(p for p in holders if p != partition)
        return {
            "kernel": options.kernel,
            "basis": options.basis,
            "sampling": self.plan.sampling(party.block, options.chosen_sampling),
            "landmarks": self.landmarks,
            "seed_from": seed_from,
            "lasting": bool(party.features) and not party.seeded and self._agreed(party.block),
            "holders": max(1, len(holders)),
            "alike": self.plan.alike,
            "model": self.model_of[0],
            "model_round": self.model_of[1],
            "save_as": 0 if self.model_of[0] else KEPT,
            "landmark_pairs": bool(party.features) and holders[:1] == (partition,),
            "keep_training": options.chosen_solver == "cg",
            "fixed_gammas": self.gammas,
            "moments": self._moments.get(party.block, _NOTHING),
            "sealed_seed": sealed,
        }

    def _rows_request(
        self, kind: Any, partition: int, parts: Mapping[int, slice] | None = None, **more: Any
    ) -> Any:
        """Return a request to a party about rows of hospitals, as far as it has any of them.

        ``parts`` are the positions of each hospital, by default all.
        """
        wards = [ward for ward in self.plan.wards.values() if partition in ward.rows]
        if parts is None:
            parts = {ward.partition: slice(0, ward.total) for ward in wards}
        wards = [ward for ward in wards if ward.partition in parts]

        def column(values: Iterable[int]) -> NDArray[np.int32]:
            return np.array([*values], np.int32)

        return kind(
            hospitals=column(ward.partition for ward in wards),
            trains=column(ward.train for ward in wards),
            starts=column(parts[ward.partition].start for ward in wards),
            stops=column(parts[ward.partition].stop for ward in wards),
            rows=tuple(ward.rows[partition] for ward in wards),
            **more,
        )

    # -- sums

    def _declared(
        self, requests: Mapping[int, wire.HybridRequest], wanted: Collection[str] = ()
    ) -> list[SumSpec]:
        """Return what requests to several parties sum."""
        found = {
            spec.name: spec
            for p, request in requests.items()
            for spec in request.sum_specs(self.facts(p, wanted))
        }
        return list(found.values())

    def _sum(self, request: wire.HybridRequest, reply: Any) -> Steps:
        """Return the exact sum of a vector over all hospitals; of the only one its vector."""
        hospitals, options = self.plan.hospitals, self.options
        alone = len(hospitals) == 1
        if alone and options.budget is not None:  # nobody would add noise besides
            raise OptionError(
                "privacy_epsilon is for sums of several hospitals",
                remedy="let more take part",
                code="FK-BUDGET-ALONE",
            )
        (spec,) = request.sum_specs(self.facts(hospitals[0]))
        ask = Ask(request, reply=reply, sums=[] if alone else [spec], among=hospitals)
        answers = yield from self._ask(ask)
        if spec.release is not None:
            options.noise_.note(spec.release, len(hospitals))
            if spec.name == EQUATIONS:
                self.deviation = spec.noise.deviation(len(hospitals))
        if not alone:
            return answers.totals[spec.name]
        (only,) = answers.replies.values()
        if len(only.plain) != 1 or only.plain[0].shape != (spec.length,):
            raise ProtocolError(
                "its vector is missing", party=f"partition {hospitals[0]}", code="FK-MESSAGE-FIELD"
            )
        return only.plain[0]

    def _ask(self, ask: Ask) -> Steps:
        """Return what hospitals answer; if one has lost its kernel, all kernels are made again.

        Where hospitals make them by themselves the first request says how. They need nobody for
        them, so the run is over with the last.
        """
        base: Any = ask.what
        rows_alone, options = self.plan.rows_alone, self.options
        if rows_alone and isinstance(base, wire.CoefficientsRequest):
            # where noise may be asked for again, hospitals need the key of theirs
            ask = replace(ask, ends=options.budget is None or options.checkpoint is None)
        if self._says_how:
            known = {one.name: getattr(base, one.name) for one in fields(base)}
            kind = wire.OWN[base.phase]
            what = {p: kind(**known, **self._how(p)) for p in self.plan.hospitals}
            answers = yield replace(ask, what=what)
            self._take_fingerprints(answers.replies)
            self._says_how = False
            return answers
        for _ in range(self.options.attempts):
            try:
                return (yield ask)
            except LostState as error:
                if rows_alone:
                    raise
                lost = error
                yield from self._make_kernels()
        raise lost
