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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.exchange import SERVER
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.fourier import CIRCLE, EQUATIONS, equations_release, label_weight
from fedkern_flwr.hybrid.landmarks import moments_length
from fedkern_flwr.hybrid.parties import CLASS_COUNTS, MEAN_DISTANCE, Plan
from fedkern_flwr.judging.figures import OUTCOMES, Yardstick, bins_of, outcomes_release, tidy
from fedkern_flwr.kernels.product import kernel_from_distances
from fedkern_flwr.method import Answers, Ask, Deliver, LostState, Steps, SumSpec
from fedkern_flwr.nodes import logger
from fedkern_flwr.privacy import Release
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.solvers.equations import equations_length, unpack_equations
from fedkern_flwr.solvers.tuning_sums import Equations, tuning_length

from .fed_cg_options import HybridOptions

Floats = NDArray[np.float64]
KEPT = 1  # the parties keep what belongs to a run under this number
_NOTHING, _NO_BYTES = np.zeros(0), np.zeros(0, np.uint8)
_ROUNDED = 1.0 + 1e-9
_MESSAGE = 256 << 20  # bytes of distances in a message; larger problems take more exchanges


@dataclass(kw_only=True)
class HybridSystem:
    """The linear system of a run, held by the parties.

    Attributes
    ----------
    options : HybridOptions
        Of the run.
    plan : Plan
        Who holds which rows and blocks.
    parties : dict
        Partition -> its description.
    cohorts : list of str
        Names of the sets among which is summed, by number.
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
    sums : ((int, int), str) or None
        Folds and widths that were planned with the landmarks, and why not more.
    widths : sequence of float
        Those of an earlier run, if they are taken again.
    at_once : bool
        Whether hospitals make their kernels by themselves, as they answer the first request.
    """

    options: HybridOptions
    plan: Plan
    parties: Mapping[int, wire.HybridDescribeReply]
    cohorts: list[str]
    landmarks: int
    gammas: Floats
    tunes: bool
    model_of: tuple[str, int]
    known: Mapping[str, str]
    sums: tuple[tuple[int, int], str] | None = None
    widths: Sequence[float] = ()
    at_once: bool = False
    landmark_kernel: Floats | None = None  # K_mm, where the penalty needs it
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
    def balanced(self) -> bool:
        """Whether the training rows of all classes count alike."""
        return self.options.class_weight is not None

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
        m, outputs = self.landmarks, self.first.outputs
        request = wire.EquationsRequest(gammas=np.zeros((0, 1)), class_counts=_NOTHING)
        bound = self._rows * max(1.0, self.first.label_bound)
        length = equations_length(m, outputs)
        vector = yield from self._sum(EQUATIONS, request, wire.EquationsReply, length, bound)
        gram, right = unpack_equations(vector, m, outputs)
        if self.options.budget is not None:
            right /= label_weight(self._labels, outputs)
        return gram, right

    def tuning_equations(self, gammas: Floats, folds: int) -> Steps:
        """Sum the normal equations of each width, shape (w, 1) or (w, m), and fold."""
        shape = (self.landmarks, self.first.outputs, folds, len(gammas))
        bound = self._rows * max(1.0, self.first.label_bound**2)
        counts = _NOTHING if self.class_counts is None else self.class_counts
        request = wire.EquationsRequest(
            gammas=gammas, folds=folds, balanced=self.balanced, class_counts=counts
        )
        if self.balanced:
            bound = float(self.plan.training_rows)
        name, length = wire.equations_sum(request), tuning_length(*shape)
        vector = yield from self._sum(name, request, wire.EquationsReply, length, bound)
        return Equations.unpack(vector, *shape)

    def products(self, directions: Floats, *, labels: bool = False) -> Steps:
        """Return (K^T y if ``labels``, K^T K P) for directions P, which travel with length one."""
        lengths = np.linalg.norm(directions, axis=0)
        lengths[lengths == 0.0] = 1.0
        unit, m = directions / lengths, self.landmarks
        right = m * self.first.outputs if labels else 0
        bound = self._rows * max(np.sqrt(m), self.first.label_bound)
        request = wire.ProductRequest(labels=labels, directions=unit)
        length = right + unit.size
        vector = yield from self._sum(wire.PRODUCTS, request, wire.ProductReply, length, bound)
        product = vector[right:].reshape(unit.shape) * lengths
        return vector[:right].reshape(m if right else 0, -1) if right else product[:, :0], product

    def begin(self, probes: Floats, start: Floats) -> Steps:
        """Return K^T y, and the products of K^T K with probes and, unless it is zero, start."""
        moved = start if start.any() else start[:, :0]
        right, products = yield from self.products(np.hstack([probes, moved]), labels=True)
        return right, products[:, : probes.shape[1]], products[:, probes.shape[1] :]

    def evaluate(self, coefficients: Floats, allow_single: bool) -> Steps:
        """Give the hospitals the model; return what they counted on held-out rows, and how.

        The sum is None where there are no such rows, and zeros where the nodes keep it to
        themselves.
        """
        wards, first = self.plan.wards, self.first
        tested = [h for h, ward in wards.items() if ward.test]
        count = bool(tested) and all(self.parties[h].labelled for h in tested)
        if count and len(tested) == 1 < len(wards) and not allow_single:
            logger.warning(
                "partition %d alone has held-out rows: their counts are not sent", tested[0]
            )
            count = False
        rows = [wards[h].test for h in tested] or [0]
        bins = 0 if self.options.budget is not None else bins_of(sum(rows), first.classes)
        yard = Yardstick(first.classes, first.outputs, first.label_bound, bins)
        counts = yield from self.give(coefficients, yard if count else None, most=float(max(rows)))
        if self.options.budget is not None and count and counts.any():
            counts = tidy(counts, first.classes, sum(rows))
        return yard, counts if count else None

    def give(
        self,
        coefficients: Floats,
        yard: Yardstick | None = None,
        *,
        most: float = 1.0,
        calibration: Sequence[float] = (),
        noise: Sequence[float] = (),
        factor: Floats | None = None,
    ) -> Steps:
        """Give the hospitals the model; return the sum of their counts.

        Without ``yard`` nothing is counted, with it rows of which a hospital has ``most``.
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
        if yard is not None:
            bound = most * yard.largest
            return (yield from self._sum(OUTCOMES, request, reply, yard.length, bound))
        yield from self._ask(Ask(request, reply=reply, among=self.plan.hospitals))
        return _NOTHING

    # -- landmarks

    def _agree(self) -> Steps:
        """Sum the moments, pass on the secrets of blocks that several parties hold: one exchange.

        Nothing is asked where holders need not agree on anything before they draw landmarks.
        """
        sampling, terms, requests = self.options.chosen_sampling, list[SumSpec](), dict[int, Any]()
        leaders: dict[str, int] = {}
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
            if moments:
                length = moments_length(self.parties[holders[0]].features, sampling)
                bound = float(self.plan.training_rows or 1)
                terms.append(self._term(f"moments/{block}", length, bound, f"block {block}"))
        if not requests:
            return
        answers = yield Ask(requests, reply=wire.MomentsReply, sums=terms)
        self._moments = {term.name.partition("/")[2]: answers.totals[term.name] for term in terms}
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
        options, m, bound = self.options, self.landmarks, self._distance_bound
        fourier, rows = options.basis == "fourier", float(self.plan.training_rows)
        pairs = once and options.penalty == "rkhs" and self.landmark_kernel is None
        terms = [
            self._term(
                wire.distances_sum(h, part.start, self.plan.whole.get(h)),
                (part.stop - part.start) * (m // 2 if fourier else m),
                bound,
                f"ward {h}",
                receiver=h,
                bits=options.distance_bits,
            )
            for h, part in parts.items()
            if part.stop
        ]
        if fourier:
            terms = [replace(term, encoding=CIRCLE) for term in terms]
        asked = {p for h in parts for p in self.plan.wards[h].rows}
        if pairs and m > 1:
            terms.append(self._term("landmark pairs", m * (m - 1) // 2, bound, "everybody"))
            asked = set(self.plan.parties)
        spread = self.tunes and "everybody" in self.cohorts and self.mean_distance is None
        if spread:
            terms.append(self._term(MEAN_DISTANCE, 1, rows * bound, "everybody"))
        counted = self.tunes and self.balanced and "hospitals" in self.cohorts
        if counted and self.class_counts is None:
            terms.append(self._term(CLASS_COUNTS, self.first.classes, self._rows, "hospitals"))
            asked |= set(self.plan.hospitals)
        kind = wire.DistancesRequest
        requests = {p: self._rows_request(kind, p, parts, **self._how(p)) for p in sorted(asked)}
        answers = yield Ask(requests, reply=wire.DistancesReply, sums=terms)
        self._take_fingerprints(answers.replies)
        for running in answers.running.values():
            yield Deliver(running, running.order.receiver)
        if spread:
            self.mean_distance = float(answers.totals[MEAN_DISTANCE][0]) / rows
        if CLASS_COUNTS in answers.totals:
            self.class_counts = np.rint(answers.totals[CLASS_COUNTS])
        if pairs:
            square = np.zeros((m, m))
            square[np.triu_indices(m, 1)] = answers.totals.get("landmark pairs", ())
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

    @property
    def _distance_bound(self) -> float:
        rbf = self.options.kernel == "rbf"
        bounds = (p.square_bound if rbf else p.absolute_bound for p in self.parties.values())
        return max(bounds) or 1.0

    # -- sums over the hospitals

    def _sum(self, name: str, request: Any, reply: Any, length: int, bound: float) -> Steps:
        """Return the exact sum of a vector over all hospitals; of the only one its vector."""
        hospitals = self.plan.hospitals
        alone = len(hospitals) == 1
        release = None if self.options.budget is None else self._release(name)
        terms = [] if alone else [self._term(name, length, bound, "hospitals", release=release)]
        ask = Ask(request, reply=reply, sums=terms, among=hospitals)
        answers: Answers = yield from self._ask(ask)
        if release is not None:
            self.options.noise_.note(release, len(hospitals))
            if name == EQUATIONS:
                self.deviation = release.noise.deviation(len(hospitals))
        if not alone:
            return answers.totals[name]
        (only,) = answers.replies.values()
        if len(only.plain) != 1 or only.plain[0].shape != (length,):
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

    def _term(
        self,
        name: str,
        length: int,
        bound: float,
        cohort: str,
        *,
        receiver: int = SERVER,
        bits: int = 64,
        release: Release | None = None,
    ) -> SumSpec:
        """Return a sum over a whole cohort, of numbers up to ``bound`` and what rounding adds."""
        return SumSpec(
            name=name,
            length=length,
            encoding=Encoding.fixed_point(bound * _ROUNDED, bits),
            cohort=self.cohorts.index(cohort),
            receiver=receiver,
            release=release,
        )

    def _release(self, name: str) -> Release:
        """Return the noise of a sum: each node derives the same.

        Raises
        ------
        OptionError
            A single hospital has nobody who adds noise besides.
        """
        budget = self.options.budget
        assert budget is not None
        hospitals, first = [self.parties[h] for h in self.plan.hospitals], self.first
        if len(hospitals) == 1:
            raise OptionError(
                "privacy_epsilon is for sums of several hospitals",
                remedy="let more take part",
                code="FK-BUDGET-ALONE",
            )
        if name == OUTCOMES:
            rows = [party.test_rows for party in hospitals]
            return outcomes_release(budget, classes=first.classes, outputs=first.outputs, rows=rows)
        return equations_release(
            budget,
            features=self.landmarks,
            outputs=first.outputs,
            bound=self._labels,
            rows=[party.rows for party in hospitals],
        )

    @property
    def _labels(self) -> float:
        """Largest absolute value of a row's labels."""
        return 1.0 if self.first.classes else self.first.label_bound

    @property
    def _rows(self) -> float:
        """Largest number of training rows of a hospital: bounds its sums of kernel values."""
        return max(1.0, *(float(ward.train) for ward in self.plan.wards.values()))
