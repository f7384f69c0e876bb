"""The secure protocol of FedCG: sums of distances for the hospitals, sums of products for us.

Exchanges: (1) ``describe``. (2) Keys out, masked partial distances back, a sum per hospital that it
alone can open. (3) The sums to the hospitals, masked K_h^T K_h and K_h^T y_h back; or, per
iteration, masked products. All sums are over fixed cohorts without self masks, so none needs an
exchange to be unmasked; a sum that lacks a party is repeated with all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedkern_flwr.errors import OptionError
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.fourier import CIRCLE
from fedkern_flwr.hybrid.parties import CLASS_COUNTS, MEAN_DISTANCE
from fedkern_flwr.hybrid.private import (
    EQUATIONS,
    equations_release,
    label_weight,
)
from fedkern_flwr.judging.noisy import OUTCOMES, outcomes_release
from fedkern_flwr.kernels.product import (
    ProductKernel,
    distance_bound,
    kernel_from_distances,
)
from fedkern_flwr.method import Answers, Ask, Deliver, LostState, Steps
from fedkern_flwr.privacy import Release
from fedkern_flwr.solvers.equations import equations_length, unpack_equations
from fedkern_flwr.solvers.tuning_sums import Equations, tuning_length

from .fed_cg_system import Floats, HybridSystem

_NOTHING = np.zeros(0)
_MESSAGE = 256 << 20  # bytes of distances in a message; larger problems take more exchanges


class SecureSystem(HybridSystem):
    """See the module and :class:`~fedkern_flwr.strategies.fed_cg_system.HybridSystem`."""

    def open(self) -> Steps:
        """Agree on landmarks where needed, then have the hospitals' kernels made."""
        columns = self.columns
        columns.late = columns.late and self._parts == 1
        if columns.missing and not columns.late:
            yield from columns.sum_coarse()
            yield from columns.sum_fine()
        yield from self.agree()
        yield from self._make_kernels()

    def equations(self) -> Steps:
        """Sum the normal equations over the hospitals."""
        m, outputs = self.landmarks, self.first.outputs
        length, bound = equations_length(m, outputs), max(1.0, self.first.label_bound)
        request = wire.EquationsRequest(gammas=np.zeros((0, 1)), class_counts=_NOTHING)
        reply = wire.EquationsReply
        vector = yield from self._sum("equations", request, reply, length, self._rows * bound)
        gram, right = unpack_equations(vector, m, outputs)
        if self.budget is not None:
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
            bound = float(sum(ward.train for ward in self.plan.wards.values()))
        reply, length = wire.EquationsReply, tuning_length(*shape)
        vector = yield from self._sum(wire.equations_sum(request), request, reply, length, bound)
        return Equations.unpack(vector, *shape)

    def products(self, directions: Floats, *, labels: bool = False) -> Steps:
        """Sum products over the hospitals; directions travel with length one."""
        m = self.landmarks
        lengths = np.linalg.norm(directions, axis=0)
        lengths[lengths == 0.0] = 1.0
        unit = directions / lengths
        right = m * self.first.outputs if labels else 0
        bound = self._rows * max(np.sqrt(m), self.first.label_bound)
        request = wire.ProductRequest(labels=labels, directions=unit)
        vector = yield from self._sum(
            "product", request, wire.ProductReply, right + unit.size, bound
        )
        product = vector[right:].reshape(unit.shape) * lengths
        return vector[:right].reshape(m if right else 0, -1) if right else product[:, :0], product

    def _collect(
        self, requests: Mapping[int, wire.CoefficientsRequest], length: int, bound: float
    ) -> Steps:
        """Sum the counts over the hospitals."""
        request, reply = next(iter(requests.values())), wire.CoefficientsReply
        if not length:
            yield from self._ask_hospitals(Ask(request, reply=reply, among=self.plan.hospitals))
            return np.zeros(0)
        return (yield from self._sum("outcomes", request, reply, length, bound))

    # -- kernels

    def _make_kernels(self) -> Steps:
        """Sum the distances, as many rows at a time as a message may hold."""
        wards, parts = self.plan.wards, self._parts
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
                yield from self._sum_distances(part, pairs=not number)

    @property
    def _parts(self) -> int:
        """In how many messages the distances travel."""
        wards = self.plan.wards.values()
        largest = max(
            (sum(w.total for w in wards if p in w.centres) for p in self.plan.parties), default=0
        )
        return max(1, -(-largest * self.landmarks * self.distance_bits // 8 // _MESSAGE))

    def _sum_distances(self, parts: dict[int, slice], *, pairs: bool) -> Steps:
        m, bound = self.landmarks, self._distance_bound
        fourier = self.basis == "fourier"
        width = m // 2 if fourier else m
        pairs = pairs and self.penalty == "rkhs" and self.landmark_kernel is None
        terms = [
            self.term(
                f"distances/{h}#{part.start}",
                (part.stop - part.start) * width,
                bound,
                f"ward {h}",
                receiver=h,
                bits=self.distance_bits,
            )
            for h, part in parts.items()
            if part.stop
        ]
        asked = {p for h in parts for p in self.plan.wards[h].rows}
        if fourier:
            terms = [replace(term, encoding=CIRCLE) for term in terms]
        if pairs and m > 1:
            terms.append(self.term("landmark pairs", m * (m - 1) // 2, bound, "everybody"))
            asked = set(self.plan.parties)
        wards = {h: self.plan.wards[h] for h in parts}
        counted = sum(ward.train for ward in wards.values())
        spread = self.tunes and "everybody" in self.cohorts and self.mean_distance is None
        if spread:
            terms.append(self.term(MEAN_DISTANCE, 1, counted * bound, "everybody"))
        counted_classes = self.tunes and self.balanced and "hospitals" in self.cohorts
        counted_classes = counted_classes and self.class_counts is None
        if counted_classes:
            terms.append(self.term(CLASS_COUNTS, self.first.classes, self._rows, "hospitals"))
            asked |= set(self.plan.hospitals)
        terms += self.columns.terms()
        requests = self.landmarks_requests(wire.DistancesRequest, asked, parts)
        answers = yield Ask(requests, reply=wire.DistancesReply, sums=terms)
        self.take_fingerprints(answers.replies)
        self.columns.take(answers.totals)
        if self.columns.missing:  # hospitals add their own block as the distances arrive
            yield from self.columns.sum_fine()
        for running in answers.running.values():
            yield Deliver(running, running.order.receiver)
        if spread:
            own = self.columns.mean_distance(self.plan, self.kernel)
            self.mean_distance = float(answers.totals[MEAN_DISTANCE][0]) / counted + own
        if counted_classes:
            self.class_counts = np.rint(answers.totals[CLASS_COUNTS])
        if pairs:
            square = np.zeros((m, m))
            square[np.triu_indices(m, 1)] = answers.totals.get("landmark pairs", ())
            self.landmark_kernel = kernel_from_distances(square + square.T, self.gammas)

    @property
    def _distance_bound(self) -> float:
        rbf, columns = self.kernel == "rbf", self.columns
        bounds = [p.square_bound if rbf else p.absolute_bound for p in self.parties.values()]
        if not columns.late:  # else a block that is encoded in the run is no part of the sums
            units = (np.tile([0.0, 1.0], (columns.features(p), 1)) for p in columns.parties)
            kernel: ProductKernel = "rbf" if rbf else "laplacian"
            bounds += [distance_bound(unit, kernel) for unit in units]
        return max(bounds) or 1.0

    # -- sums over the hospitals

    def _sum(self, name: str, request: Any, reply: Any, length: int, bound: float) -> Steps:
        """Return the exact sum of a vector over all hospitals; of the only one its vector."""
        hospitals = self.plan.hospitals
        alone = len(hospitals) == 1
        release = None if self.budget is None else self._release(name, alone)
        terms = [] if alone else [self.term(name, length, bound, "hospitals", release=release)]
        request = self.columns.told(request, self.parties, hospitals)
        among = None if isinstance(request, dict) else hospitals
        answers: Answers = yield from self._ask_hospitals(
            Ask(request, reply=reply, sums=terms, among=among)
        )
        if release is not None:
            self.note_noise(release, len(hospitals))
            if name == EQUATIONS:
                self.deviation = release.noise.deviation(len(hospitals))
        return self.added(answers.replies, length) if alone else answers.totals[name]

    def _release(self, name: str, alone: bool) -> Release:
        """Return the noise of a sum: each node derives the same.

        Raises
        ------
        OptionError
            A single hospital has nobody who adds noise besides.
        """
        assert self.budget is not None
        if alone:
            raise OptionError(
                "privacy_epsilon is for sums of several hospitals", remedy="let more take part"
            )
        hospitals, first = [self.parties[h] for h in self.plan.hospitals], self.first
        if name == OUTCOMES:
            rows = [party.test_rows for party in hospitals]
            return outcomes_release(
                self.budget, classes=first.classes, outputs=first.outputs, rows=rows
            )
        return equations_release(
            self.budget,
            features=self.landmarks,
            outputs=first.outputs,
            bound=self._labels,
            rows=[party.rows for party in hospitals],
        )

    @property
    def _labels(self) -> float:
        """Largest absolute value of a row's labels."""
        return 1.0 if self.first.classes else self.first.label_bound

    def _ask_hospitals(self, ask: Ask) -> Steps:
        """Return what hospitals answer; if one has lost its kernel, all kernels are made again."""
        for _ in range(self.attempts):
            try:
                return (yield ask)
            except LostState as error:
                lost = error
                yield from self._make_kernels()
        raise lost

    @property
    def _rows(self) -> float:
        """Largest number of training rows of a hospital: bounds its sums of kernel values."""
        return max(1.0, *(float(ward.train) for ward in self.plan.wards.values()))
