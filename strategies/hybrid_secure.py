"""The secure protocol of FedCG: sums of distances for the hospitals, sums of products for us.

Exchanges: (1) ``describe``. (2) Keys out, masked partial distances back, a sum per hospital that it
alone can open. (3) The sums to the hospitals, masked K_h^T K_h and K_h^T y_h back; or, per
iteration, masked products. All sums are over fixed cohorts without self masks, so none needs an
exchange to be unmasked; a sum that lacks a party is repeated with all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from fedkern_flwr.least_squares import equations_length, unpack_equations
from fedkern_flwr.product_kernel import kernel_from_distances
from fedkern_flwr.secure_sum import RunningSum
from fedkern_flwr.wire import hybrid as wire

from .hybrid_system import Floats, HybridSystem

_MESSAGE = 256 << 20  # bytes of distances in a message; larger problems take more exchanges


class SecureSystem(HybridSystem):
    """See the module and :class:`~fedkern_flwr.strategies.hybrid_system.HybridSystem`."""

    def __init__(self, run: Any, grid: Grid, timeout: float) -> None:
        super().__init__(run, grid, timeout)
        self._deliveries: dict[int, list[RunningSum]] = {}

    def open(self) -> None:
        """Agree on landmarks where needed, then have the hospitals' kernels made."""
        self.agree()
        self._make_kernels()

    def equations(self) -> tuple[Floats, Floats]:
        """Sum the normal equations over the hospitals."""
        run, m = self.run, self.run.landmarks
        vector = self.sum_over_hospitals(
            "equations",
            lambda _: wire.EquationsRequest(session=run.session, round=run.step),
            wire.EquationsReply,
            equations_length(m, run.outputs_),
            self.most_rows * max(1.0, run.label_bound_),
        )
        return unpack_equations(vector, m, run.outputs_)

    def products(self, directions: Floats, *, labels: bool = False) -> tuple[Floats, Floats]:
        """Sum products over the hospitals; directions travel with length one."""
        run, m = self.run, self.run.landmarks
        lengths = np.linalg.norm(directions, axis=0)
        lengths[lengths == 0.0] = 1.0
        unit = directions / lengths
        right = m * run.outputs_ if labels else 0
        vector = self.sum_over_hospitals(
            "product",
            lambda _: wire.ProductRequest(
                session=run.session, round=run.step, labels=labels, directions=unit
            ),
            wire.ProductReply,
            right + unit.size,
            self.most_rows * max(np.sqrt(m), run.label_bound_),
        )
        product = vector[right:].reshape(unit.shape) * lengths
        return vector[:right].reshape(m if right else 0, -1) if right else product[:, :0], product

    # -- kernels

    def _make_kernels(self) -> None:
        """Sum the distances, as many rows at a time as a message may hold."""
        run, wards = self.run, self.plan.wards
        for hospital in list(self._deliveries):
            self._delivered(hospital)
        largest = max(
            (sum(w.total for w in wards.values() if p in w.centres) for p in self.plan.parties),
            default=0,
        )
        parts = max(1, -(-largest * run.landmarks * run.distance_bits // 8 // _MESSAGE))
        steps = {h: -(-ward.total // parts) for h, ward in wards.items()}
        for number in range(parts):
            pending = {}
            for h, ward in wards.items():
                start = min(number * steps[h], ward.total)
                stop = min(start + steps[h], ward.total)
                if ward.centres and start < stop:
                    pending[h] = slice(start, stop)
                elif not number:
                    pending[h] = slice(0, 0)  # makes its kernel alone
            if pending:
                self._sum_distances(pending, landmark_pairs=not number)

    def _sum_distances(self, pending: dict[int, slice], *, landmark_pairs: bool) -> None:
        run, m = self.run, self.run.landmarks
        want_pairs = landmark_pairs and run.penalty == "rkhs" and self.landmark_kernel is None
        if want_pairs and m == 1:
            self._take_pairs(np.zeros(0))
            want_pairs = False
        for _ in range(run.attempts):
            run.next_step()
            sums: dict[int, RunningSum] = {}
            for h, part in pending.items():
                if part.stop:
                    name, length = f"distances/{h}#{part.start}", (part.stop - part.start) * m
                    sums[h] = run.order(
                        name,
                        length,
                        self._distance_bound,
                        f"ward {h}",
                        receiver=h,
                        bits=run.distance_bits,
                    )
            pairs = None
            if want_pairs:
                pairs = run.order(
                    "landmark pairs", m * (m - 1) // 2, self._distance_bound, "everybody"
                )
            asked = {p for h in pending for p in self.plan.wards[h].rows}
            if pairs is not None:
                asked = set(self.plan.parties)
            requests = {
                p: self.rows_request(wire.DistancesRequest, p, pending, **self.landmark_fields(p))
                for p in sorted(asked)
            }
            ordered = [*sums.values(), *([pairs] if pairs is not None else [])]
            replies = run.ask(
                self.grid, requests, wire.DistancesReply, self.timeout, ordered, self._deliveries
            )
            self.take_fingerprints(replies)
            for h in list(pending):
                if h in replies:
                    self._delivered(h)
                if all(p in replies for p in self.plan.wards[h].rows) and (
                    h not in sums or run.whole(sums[h])
                ):
                    if h in sums:
                        run.declare(sums[h])
                        self._deliveries[h] = [sums[h]]
                    del pending[h]
                elif h in sums:
                    run.close(sums[h])
            if pairs is not None and run.whole(pairs):
                self._take_pairs(run.total(pairs))
                want_pairs = False
            elif pairs is not None:
                run.close(pairs)
            if not pending and not want_pairs:
                return
        raise run.gave_up("hybrid-distances")

    def _take_pairs(self, distances: Floats) -> None:
        m = self.run.landmarks
        square = np.zeros((m, m))
        square[np.triu_indices(m, 1)] = distances
        self.landmark_kernel = kernel_from_distances(square + square.T, self.run.gammas_)

    @property
    def _distance_bound(self) -> float:
        bounds = [
            p.square_bound if self.run.kernel == "rbf" else p.absolute_bound
            for p in self.run.described_parties()
        ]
        return (max(bounds) or 1.0) * (1.0 + 1e-9)  # rounding of the distances

    # -- sums over the hospitals

    def sum_over_hospitals(
        self,
        name: str,
        request: Callable[[int], Any],
        reply: Any,
        length: int,
        bound: float,
    ) -> Floats:
        """Return the exact sum of a vector over all hospitals.

        Raises
        ------
        CohortError
            A hospital did not answer, ``attempts`` times in a row.
        """
        run = self.run
        for _ in range(run.attempts):
            run.next_step()
            running = None
            if len(self.plan.hospitals) > 1:
                running = run.order(name, length, bound, "hospitals")
            requests = {h: request(h) for h in self.plan.hospitals}
            replies = run.ask(
                self.grid,
                requests,
                reply,
                self.timeout,
                [running] if running is not None else [],
                self._deliveries,
            )
            for h in replies:
                self._delivered(h)
            if len(replies) == len(requests):
                if running is None:
                    return run.single_vector(replies, length)
                if run.whole(running):
                    return run.total(running)
            if running is not None:
                run.close(running)
            if run.lost_state:
                self._make_kernels()
        raise run.gave_up(reply.phase)

    def tell_hospitals(self, requests: Callable[[int], Any], reply: Any) -> None:
        """Send each hospital a request, until all have answered."""
        run, waiting = self.run, set(self.plan.hospitals)
        for _ in range(run.attempts):
            run.next_step()
            replies = run.ask(
                self.grid,
                {h: requests(h) for h in sorted(waiting)},
                reply,
                self.timeout,
                (),
                self._deliveries,
            )
            for h in replies:
                self._delivered(h)
            waiting -= set(replies)
            if not waiting:
                return
            if run.lost_state:
                self._make_kernels()
        raise run.gave_up(reply.phase)

    def _delivered(self, hospital: int) -> None:
        for running in self._deliveries.pop(hospital, ()):
            self.run.close(running)
