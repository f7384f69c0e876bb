"""FedCG's linear system: its plan, the exchanges that sum it, and its solvers.

Exchanges: (1) ``describe``. (2) Keys out, masked partial distances back: one sum per hospital,
which only it can open. (3) The sums to the hospitals, masked K_h^T K_h and K_h^T y_h back; or
masked products, per iteration. (4) Coefficients. (5) ``finish``. All sums are over fixed cohorts
without self masks, so none needs an exchange to be unmasked; a sum that lacks a party is repeated
with all.

Without centres each hospital computes its own distances: (2) is skipped, and (4) ends the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.exchange import SumSpec
from fedkern_flwr.guard.counting import unknowns_of_bits
from fedkern_flwr.guard.freeze import FOLDS
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.landmarks import EQUATIONS, label_weight, moments_length, regularize
from fedkern_flwr.hybrid.parties import Plan
from fedkern_flwr.judging.figures import Yardstick, bins_of, tidy
from fedkern_flwr.kernels.product import kernel_from_distances
from fedkern_flwr.method import Ask, Deliver, LostState, Round, Save, Steps
from fedkern_flwr.nodes import Arrays, logger
from fedkern_flwr.planning import Allowance, allowance
from fedkern_flwr.progress import part, progress
from fedkern_flwr.reporting import iterations_ended
from fedkern_flwr.solvers.conjugate_gradient import ConjugateGradient, NystromPreconditioner
from fedkern_flwr.solvers.least_squares import (
    LAMBDAS,
    LAMBDAS_OF_NUMBERS,
    PLANS,
    Equations,
    choose,
    regularized,
    solve_equations,
    spread,
    tuning_length,
    unpack_equations,
    widths_around,
)

if TYPE_CHECKING:
    from .fed_cg import FedCG

Floats = NDArray[np.float64]
Parties = Mapping[int, wire.HybridDescribeReply]
KEPT = 1  # the parties save the state of a run under this number
_NOTHING, _NO_BYTES = np.zeros(0), np.zeros(0, np.uint8)
_MESSAGE = 256 << 20  # bytes of distances in a message; larger problems take more exchanges

# -- which sums are taken: landmarks, folds and widths within the nodes' release limits
#
#
# With m landmarks and k outputs the normal equations of a width and fold are m (m + 1) / 2 + m k
# numbers about the rows of that fold. Each fold is counted separately: with five folds its rows
# hide a fifth of what all rows hide.

_LEAST_ROWS = 5  # of a hospital in a fold
_LEAST_LANDMARKS = (20, 400)  # least and most
_MOST_NUMBERS = 1 << 23  # of a hospital's message: 64 MB
_MOST_KEPT = 1 << 27  # of a hospital's rows without a message: 1 GB, in a file
#: Within a share: landmarks that are worth more than folds and widths; the fewest.
_ENOUGH, _LEAST_PLANNED = 200, 5
_EARLIER = "the nodes' earlier run"


@dataclass(frozen=True)
class Sums:
    """The normal equations that are summed to choose from, and why not more.

    Attributes
    ----------
    folds, widths : int
        Numbers of folds and widths.
    why : str
    known : sequence of float
        The widths, if taken from an earlier run.
    """

    folds: int
    widths: int
    why: str
    known: Sequence[float] = ()


def hospital_allowance(plan: Plan, parties: Parties, folds: int = 0) -> Allowance:
    """Return what may be opened about the hospitals' rows, or about each of some folds."""
    # nodes deal five parts to fewer folds
    share = (FOLDS // folds) / FOLDS if 1 < folds <= FOLDS else 1.0
    rows = {h: int(ward.train * share) for h, ward in plan.wards.items()} if folds else None
    beside = {
        h: {c: unknowns_of_bits(parties[c].bits) for c in ward.centres}
        for h, ward in plan.wards.items()
        if h in plan.whole
    }
    # A hospital that makes its own kernel may have other landmarks than the others. So it counts
    # only its own rows, as without pinned identities.
    own = [h for h, ward in plan.wards.items() if not (ward.centres or plan.alike)]
    cohort = [replace(parties[h], signature=b"") if h in own else parties[h] for h in plan.wards]
    return allowance(cohort, rows=rows, beside=beside)


def auto_landmarks(plan: Plan, outputs: int, allowed: Allowance, counts: int) -> int:
    """Return the number of landmarks that the release limit allows for one width.

    ``counts`` further numbers are released, such as class counts.
    """
    least, moments = _LEAST_LANDMARKS[0], 1 + outputs  # the mean distance, y^T y
    fits = allowed.square(outputs, taken=moments + counts)
    return min(_most_landmarks(plan), max(least, fits))


def plan_landmarks(
    options: FedCG, plan: Plan, parties: Parties, counts: int
) -> tuple[int, Sums | None]:
    """Return landmarks, and folds and widths if they are chosen, within the nodes' share.

    Folds and several widths are used if they allow 200 landmarks, else one width, with lambda by
    generalised cross-validation. Explicit options are kept.
    """
    outputs, stated = parties[plan.hospitals[0]].outputs, options.landmarks
    sampling, taken, sums = options.chosen_sampling, float(counts), None
    for holders in plan.blocks.values():
        if sampling in ("N", "C") and len(holders) > 1:
            taken += moments_length(parties[holders[0]].features, sampling)
    if not options.tunes:
        times = 2 if options.chosen_solver == "cg" else 1  # probes and products take equal numbers
        allowed, more = hospital_allowance(plan, parties, 1), ""
        fits = min(options.fixed_landmarks, allowed.square(outputs, times=times, taken=taken))
        fits = max(_LEAST_PLANNED + 1, fits - fits % 2 * (options.basis == "fourier"))
    elif known := known_widths(options, plan, parties):
        allowed, times = hospital_allowance(plan, parties), len(known)
        again = min(parties[h].again for h in plan.hospitals)
        allowed = replace(allowed, numbers=max(allowed.numbers, again))
        fits = allowed.square(outputs, times=times, taken=taken + outputs)
        more, sums = f", widths of an earlier run: {times}", Sums(1, times, _EARLIER, known)
    else:
        wanted = [some for some in _wanted(options) if some[0] > 1 or options.tune != "folds"]
        for folds, widths in wanted:
            allowed = hospital_allowance(plan, parties, folds)
            fits = allowed.square(outputs, times=widths, taken=taken + 1 + outputs)
            enough = fits >= (_ENOUGH if stated == "auto" else int(stated))
            if enough and not _few_rows(plan, parties, folds):
                break
        how = f"{folds} folds" if folds > 1 else "generalised cross-validation"
        more = f", {how}, widths tried: {widths}"
        sums = Sums(folds, widths, f"the nodes' share of {allowed.share:.0%}")
    if options.tunes:
        fits = min(_most_landmarks(plan), max(_LEAST_PLANNED, fits))
    landmarks = fits if stated == "auto" else int(stated)
    options.note_plan(f"{landmarks} landmarks{more}", allowed)
    return landmarks, sums


def known_widths(options: FedCG, plan: Plan, parties: Parties) -> list[float]:
    """Return the widths of an earlier run of all hospitals, if they may be used again.

    The same sums of the same rows cost nothing. None if the user's options or centres affect the
    kernel.
    """
    said = {parties[h].how for h in plan.hospitals}
    free = options.gamma is None and options.class_weight is None and options.tune != "folds"
    same = all(plan.sampling(block, options.chosen_sampling) == "U" for block in plan.blocks)
    if not (free and same and plan.rows_alone) or len(said) > 1:
        return []
    kernel, widths = wire.read_widths(said.pop())
    return widths if kernel == options.kernel else []


def plan_sums(system: HybridSystem) -> Sums:
    options, plan, parties = system.options, system.options.plan_, system.parties
    allowed = hospital_allowance(plan, parties).numbers - system.released
    why, of_folds = "all that is tried", ""
    for folds, widths in _wanted(options):
        numbers = tuning_length(options.landmarks_, system.labels.outputs, folds, widths)
        few = _few_rows(plan, parties, folds)
        if few:
            why = "more folds would have too few rows"
        elif numbers > allowed:
            why = f"the rule of counting allows {math.floor(max(allowed, 0)):,} numbers"
        elif numbers > _MOST_NUMBERS:
            why = f"more would be {8 * numbers >> 20} MB"
        else:
            break
        if folds > 1:
            of_folds = why if few else f"{why}; use fewer landmarks"
    if options.tune == "folds" and folds == 1 and of_folds:
        logger.warning("generalised cross-validation chooses, not folds: %s", of_folds)
    return Sums(folds, widths, why)


def most_iterations(landmarks: int, rank: int, outputs: int, allowed: Allowance) -> int:
    """Return the most products of conjugate gradients, besides K^T y and the probes."""
    return max(1, int(allowed.numbers / landmarks - rank) // outputs - 1)


def _wanted(options: FedCG) -> list[tuple[int, int]]:
    wanted = [plan for plan in PLANS if options.tune != "gcv" or plan[0] == 1]
    if None not in (options.gamma, options.regularization):
        return [(1, 1)]  # nothing is chosen: only rows of rare classes get more weight
    if options.gamma is not None:
        return list(dict.fromkeys((folds, 1) for folds, _ in wanted))
    return wanted


def _few_rows(plan: Plan, parties: Parties, folds: int) -> bool:
    wards = plan.wards
    least = max(_LEAST_ROWS, *(parties[h].fold_rows for h in wards))
    most = max(parties[h].fold_sum_rows for h in wards)
    few = any(0 < ward.train < folds * least for ward in wards.values())
    few = few or sum(ward.train // folds for ward in wards.values()) < most
    return folds > 1 and few


def _most_landmarks(plan: Plan) -> int:
    least, most = _LEAST_LANDMARKS
    rows = [ward.total for ward in plan.wards.values()]
    fits = _MOST_KEPT // max(1, *rows) if plan.rows_alone else _MOST_NUMBERS // max(1, sum(rows))
    return max(least, min(most, fits))


# -- the exchanges


@dataclass(kw_only=True)
class HybridSystem:
    """The linear system of a run, held by the parties.

    Attributes
    ----------
    options : FedCG
    parties : dict
        Partition -> its description.
    cohorts : dict
        Name of a summing set -> its number.
    tunes : bool
        Whether the width is chosen in this run.
    sums : Sums or None
        Folds and widths, if planned with the landmarks.
    at_once : bool
        Whether hospitals make their own kernels as they answer the first request.
    """

    options: FedCG
    parties: Parties
    cohorts: Mapping[str, int]
    tunes: bool
    sums: Sums | None
    at_once: bool
    landmark_kernel: Floats | None = None  # K_mm, if the penalty needs it
    released: int = 0  # numbers about training rows released before the equations
    gram: Floats | None = None  # K^T K, once summed
    deviation: float = 0.0  # of the noise on it
    fingerprints: dict[str, str] = field(default_factory=dict)
    mean_distance: float | None = None  # of training rows to landmarks, once summed
    class_counts: Floats = field(default_factory=lambda: _NOTHING)  # of training rows, once summed
    _says_how: bool = False  # whether the next request says how to make kernels
    _moments: dict[str, Floats] = field(default_factory=dict)
    # partition -> party that sealed the secret of its block, and the sealed secret
    _sealed: dict[int, tuple[int, NDArray[Any]]] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        return self.options.plan_

    @property
    def labels(self) -> Yardstick:
        first = self.parties[self.plan.hospitals[0]]
        return Yardstick(first.classes, first.outputs, first.label_bound)

    def facts(self, partition: int, wanted: Collection[str] = ()) -> wire.Facts:
        party, wards, options = self.parties[partition], self.plan.wards, self.options
        return wire.Facts(
            landmarks=options.landmarks_,
            labels=self.labels,
            rows=[ward.train for ward in wards.values()],
            tests=[ward.test for ward in wards.values()],
            block=party.block,
            features=party.features,
            distance=max(p.bound(options.kernel) for p in self.parties.values()) or 1.0,
            bits=options.distance_bits,
            budget=options.budget,
            signed=[(self.parties[h].rows, self.parties[h].test_rows) for h in wards],
            wanted=wanted,
            cohorts=self.cohorts,
        )

    # -- operations for the solvers

    def open(self, *, resumed: bool = False) -> Steps:
        """Agree on landmarks if needed, then have the hospitals' kernels made.

        In a resumed run, hospitals with their own kernels remember how.
        """
        self._says_how = self.at_once and not resumed
        if not (self.at_once and resumed):
            yield from self._agree()
        if not self.at_once:
            yield from self._make_kernels()

    def equations(self, gammas: Floats | None = None, folds: int = 1) -> Steps:
        """Sum the normal equations: K^T K, shape (m, m), and K^T y, shape (m, k).

        With ``gammas``, shape (w, 1) or (w, m), those of each of these widths and of each fold.
        """
        options, m, labels = self.options, self.options.landmarks_, self.labels
        request = wire.EquationsRequest(
            gammas=np.zeros((0, 1)) if gammas is None else gammas,
            folds=folds,
            balanced=options.class_weight is not None,
            class_counts=self.class_counts,
        )
        vector = yield from self._sum(request, wire.EquationsReply)
        if gammas is not None:
            return Equations.unpack(vector, m, labels.outputs, folds, len(gammas))
        gram, right = unpack_equations(vector, m, labels.outputs)
        if options.budget is not None:
            right /= label_weight(labels.bound, labels.outputs)
        return gram, right

    def products(self, directions: Floats, *, labels: bool = False) -> Steps:
        """Return (K^T y if ``labels``, K^T K P) for directions P, sent with length one."""
        lengths = np.linalg.norm(directions, axis=0)
        lengths[lengths == 0.0] = 1.0
        request = wire.ProductRequest(labels=labels, directions=directions / lengths)
        vector = yield from self._sum(request, wire.ProductReply)
        outputs = self.labels.outputs if labels else 0
        right, product = np.split(vector, [len(directions) * outputs])
        product = product.reshape(directions.shape) * lengths
        return right.reshape(len(directions), outputs), product

    def evaluate(self, coefficients: Floats) -> Steps:
        """Send the hospitals the model; return how they count held-out rows, and the counts.

        The counts are None without such rows, and zeros if the nodes withhold them.
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
        """Send the hospitals the model; return the sum of their counts, none without ``yard``.

        ``calibration``, ``noise`` and ``factor`` are those of a saved model.
        """
        nothing = np.zeros((0, coefficients.shape[1]))
        request = wire.CoefficientsRequest(
            count=yard is not None,
            bins=0 if yard is None else yard.bins,
            coefficients=coefficients,
            gammas=self.options.gammas_ if self.tunes else _NOTHING,
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
        """Sum the moments, relay the secrets of blocks with several holders: one exchange.

        Skipped if holders need no agreement before they draw landmarks.
        """
        sampling, requests, leaders = self.options.chosen_sampling, dict[int, Any](), {}
        if self.options.model_of[0]:
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
        holders = self.plan.blocks[block]
        digests = {self.parties[p].secret_digest(len(holders)) for p in holders}
        return len(digests) == 1 and "" not in digests

    def _take_fingerprints(self, replies: Mapping[int, Any]) -> None:
        """Check that all holders of a block have the same landmarks, and the model's."""
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
                if self.options.fingerprints_.get(block, found) != found:
                    raise ProtocolError(
                        f"its landmarks of block {block!r} are not those of the model",
                        remedy="give it the state_dir or the landmark seed of the training run",
                        party=f"partition {partition}",
                        code="FK-LANDMARKS-MODEL",
                    )

    # -- kernels

    def _make_kernels(self) -> Steps:
        wards = self.plan.wards
        largest = max(sum(w.total for w in wards.values() if p in w.centres) for p in self.parties)
        parts = max(
            1, -(-largest * self.options.landmarks_ * self.options.distance_bits // 8 // _MESSAGE)
        )
        steps = {h: -(-ward.total // parts) for h, ward in wards.items()}
        for number in range(parts):
            part = {}
            for h, ward in wards.items():
                start = min(number * steps[h], ward.total)
                stop = min(start + steps[h], ward.total)
                if ward.centres and start < stop:
                    part[h] = slice(start, stop)
                elif not number:
                    part[h] = slice(0, 0)  # the hospital makes its kernel alone
            if part:
                yield from self._sum_distances(part, once=not number)

    def _sum_distances(self, parts: dict[int, slice], *, once: bool) -> Steps:
        options, m, plan = self.options, self.options.landmarks_, self.plan
        pairs = once and options.penalty == "rkhs" and self.landmark_kernel is None
        spread = self.tunes and "everybody" in self.cohorts and self.mean_distance is None
        counted = self.tunes and options.class_weight is not None and not self.class_counts.size
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
            self.landmark_kernel = kernel_from_distances(square + square.T, options.gammas_)

    def _how(self, partition: int) -> dict[str, Any]:
        options, party = self.options, self.parties[partition]
        holders = self.plan.blocks.get(party.block, ())
        seed_from, sealed = self._sealed.get(partition, (-1, _NO_BYTES))
        if bool(party.features) and not party.seeded and len(holders) == 2:
            seed_from = next(p for p in holders if p != partition)
        return {
            "kernel": options.kernel,
            "basis": options.basis,
            "sampling": self.plan.sampling(party.block, options.chosen_sampling),
            "landmarks": options.landmarks_,
            "seed_from": seed_from,
            "lasting": bool(party.features) and not party.seeded and self._agreed(party.block),
            "holders": max(1, len(holders)),
            "alike": self.plan.alike,
            "model": options.model_of[0],
            "model_round": options.model_of[1],
            "save_as": 0 if options.model_of[0] else KEPT,
            "landmark_pairs": bool(party.features) and holders[:1] == (partition,),
            "keep_training": options.chosen_solver == "cg",
            "fixed_gammas": options.gammas_,
            "moments": self._moments.get(party.block, _NOTHING),
            "sealed_seed": sealed,
        }

    def _rows_request(
        self, kind: Any, partition: int, parts: Mapping[int, slice] | None = None, **more: Any
    ) -> Any:
        """Return a request to a party about those rows of hospitals that it holds.

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
        found = {
            spec.name: spec
            for p, request in requests.items()
            for spec in request.sum_specs(self.facts(p, wanted))
        }
        return list(found.values())

    def _sum(self, request: wire.HybridRequest, reply: Any) -> Steps:
        """Return the exact sum of a vector over all hospitals; a single one's own vector."""
        hospitals, options = self.plan.hospitals, self.options
        alone = len(hospitals) == 1
        if alone and options.budget is not None:  # no other hospital would add noise
            raise OptionError(
                "privacy_epsilon is for sums of several hospitals", code="FK-BUDGET-ALONE"
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
        """Return the hospitals' answers; if one has lost its kernel, make all kernels again.

        If hospitals make their own kernels, the first request says how, and the last one ends the
        run.
        """
        base: Any = ask.what
        rows_alone, options = self.plan.rows_alone, self.options
        if rows_alone and isinstance(base, wire.CoefficientsRequest):
            # to repeat the same noise, hospitals need its key
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


# -- solvers: the normal equations at once, or conjugate gradients, a product an exchange
#
# Width and lambda are chosen from normal equations of several widths and folds, in the same
# exchanges.

#: Rounding errors: ratio of the worst held-out row to the mean; smallest error to report.
_WORST, _TOLD = 50.0, 1e-3


def solve_directly(system: HybridSystem, regularization: float) -> Steps:
    """Sum and solve the normal equations; return coefficients, shape (m, k), and metrics."""
    gram, right = yield from system.equations()
    if not system.deviation:
        return (yield from solve_summed(system, gram, right, regularization))
    gram, regularization = regularize(gram, regularization, system.deviation)
    coefficients, metrics = yield from solve_summed(system, gram, right, regularization)
    return coefficients, {**metrics, "regularization": regularization}


def solve_summed(system: HybridSystem, gram: Floats, right: Floats, regularization: float) -> Steps:
    """Solve summed normal equations; return coefficients, shape (m, k), and metrics."""
    system.gram, pairs = gram, system.landmark_kernel
    with part("train"):
        coefficients = solve_equations(gram, right, regularization, pairs)
    rest = right - regularized(gram, regularization, pairs) @ coefficients
    lengths = np.linalg.norm(right, axis=0)
    residuals = np.linalg.norm(rest, axis=0) / np.where(lengths > 0.0, lengths, 1.0)
    if pairs is None and (error := rounding_error(system, gram, coefficients, regularization)):
        logger.warning(
            "lambda %.1g is lost in the rounding of the sums: predictions may be off by %.1g; use "
            "a larger regularization",
            regularization,
            error,
        )
    row = _row(system, residuals, (rest**2).sum(0))
    yield Round(1, row)
    return coefficients, {"iterations": 0, "residual": row["residual"]}


def rounding_error(
    system: HybridSystem, gram: Floats, coefficients: Floats, regularization: float
) -> float:
    """Estimate the error of predictions due to rounded sums; 0 if negligible.

    Numbers of K^T K have errors E of some 1e-16 of the largest, the coefficients c then (K^T K +
    lambda I)^-1 E c. The mean over training rows is multiplied by the worst ratio seen on held-out
    rows.
    """
    rows = system.plan.training_rows
    error = _WORST * np.finfo(np.float64).eps / 2.0 * float(gram.max(initial=0.0))
    error *= math.sqrt(1.0 + float((coefficients**2).sum()))
    if error * math.sqrt(len(gram) / (4.0 * regularization * rows)) < _TOLD:  # upper bound
        return 0.0
    values = np.maximum(np.linalg.eigvalsh(gram), 0.0)
    error *= math.sqrt(float((values / (values + regularization) ** 2).sum()) / rows)
    return error if error >= _TOLD else 0.0


def iterate(
    system: HybridSystem,
    start: Floats,
    probes: Floats,
    most: int,
    saved: Arrays,
    save: Callable[[Arrays], Save],
) -> Steps:
    """Run conjugate gradients; return coefficients, (m, k), and metrics.

    ``probes``, (m, r), make the preconditioner; ``saved`` are arrays of an interrupted run's
    checkpoint; ``save`` returns the step that saves arrays.
    """
    pairs, regularization = system.landmark_kernel, system.options.regularization_

    def shifted(product: Floats, p: Floats) -> Floats:
        return product + regularization * (p if pairs is None else pairs @ p)

    begun, options = dict(saved), dict[str, Any](saved=saved)
    if not saved:  # one exchange, in which a start of zero needs no product
        moved, rank = start if start.any() else start[:, :0], probes.shape[1]
        both = np.hstack([probes, moved])
        begun["right"], products = yield from system.products(both, labels=True)
        if rank:
            begun |= {"sketch": products[:, :rank], "probes": probes}
        if moved.size:
            options["start"] = start, shifted(products[:, rank:], start)
    kept: Arrays = {name: begun[name] for name in ("right", "sketch", "probes") if name in begun}
    kept |= {} if pairs is None else {"landmark_kernel": pairs}
    if "sketch" in begun:
        options["precondition"] = NystromPreconditioner(
            begun["sketch"], begun["probes"], regularization
        )
    solver = ConjugateGradient(begun["right"], tolerance=system.options.tolerance, **options)
    state = solver.state
    while state.iteration < most and solver.active.any():
        p = solver.direction
        solver.take(shifted((yield from system.products(p))[1], p))
        row = _row(system, solver.residuals, state.squared[-1])
        yield Round(state.iteration, row, save=save({**state.arrays(), **kept}))
    if not state.iteration:
        yield Round(0, _row(system, solver.residuals, state.squared[-1]))
    residual = float(solver.residuals.max())
    remedy = "use a larger regularization, a larger preconditioner_rank or solver normal-equations"
    reached = bool(solver.reached.all())
    ended = iterations_ended(state.iteration, reached, f"residual {residual:.1e}", remedy)
    return state.x, {**ended, "residual": residual}


def tune_and_solve(system: HybridSystem) -> Steps:
    """Sum the equations of several widths and folds, choose, solve.

    Return coefficients, (m, k), metrics, and what was tried and chosen.
    """
    options, labels, plan = system.options, system.labels, system.plan
    taken, m, rows = system.sums or plan_sums(system), options.landmarks_, plan.training_rows
    # if no mean distance is summed: that of uniform rows in the declared ranges
    bound = sum(
        system.parties[holders[0]].bound(options.kernel) for holders in plan.blocks.values()
    )
    uniform = bound / (6.0 if options.kernel == "rbf" else 3.0)
    # the last digits depend on the nodes' processors; all engines must use the same widths
    distance = float(f"{system.mean_distance or uniform or 1.0:.12g}")
    gammas = np.array(taken.known) if taken.known else widths_around(distance, taken.widths)
    if options.gamma is not None:
        gammas = np.array([options.gamma])
    lambdas = rows * (LAMBDAS if labels.classes else LAMBDAS_OF_NUMBERS)
    if options.regularization is not None:
        lambdas = np.array([options.regularization])
    widths = of_landmarks(options, gammas)
    sums = yield from system.equations(widths, taken.folds)
    progress(f"choosing width and lambda, {len(widths)} x {len(lambdas)} candidates")
    with part("train"):
        found = choose(sums, lambdas, rows, numbers=not labels.classes)
    gamma, weight = float(gammas[found.width]), float(lambdas[found.weight])
    tuned = {
        "by": f"{taken.folds} folds" if taken.folds > 1 else "generalised cross-validation",
        "why": taken.why,
        "gammas": gammas.tolist(),
        "regularizations": lambdas.tolist(),
        "gamma": gamma,
        "regularization": weight,
        "error": float(found.errors[found.width, found.weight]),
        "numbers": tuning_length(m, labels.outputs, taken.folds, len(gammas)),
    }
    logger.info("by %s: gamma %.3g, lambda %.3g (%s)", tuned["by"], gamma, weight, taken.why)
    gram, right = sums.gram[:, found.width].sum(0), sums.right[:, found.width].sum(0)
    coefficients, metrics = yield from solve_summed(system, gram, right, weight)
    return coefficients, {**metrics, "gamma": gamma, "regularization": weight}, tuned


def of_landmarks(options: FedCG, gammas: Floats) -> Floats:
    """Return the widths of the landmarks, (w, m), or a given one, (w, 1)."""
    return gammas[:, None] if options.gamma is not None else spread(gammas, options.landmarks_)


def _row(system: HybridSystem, residuals: Floats, squared: Floats) -> dict[str, Any]:
    return {
        "residual": float(np.max(residuals)),
        "squared_residual": float(np.sum(squared)),
        "survivors": len(system.plan.parties),
    }
