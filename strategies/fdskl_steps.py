"""Steps of FDSKL: phases for their owners, iterations, predictions of held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.serverapp import Grid

from fedkern_flwr.doubly_stochastic import draw_batch, step_size
from fedkern_flwr.labels import counts_length, outcome_metrics
from fedkern_flwr.secure_sum import Encoding, RunningSum
from fedkern_flwr.wire import vertical as wire

from .vertical_base import Collection, LostStateError, Need, Rows
from .vertical_tree import TreeSums

if TYPE_CHECKING:
    from .fdskl import FDSKL

__all__ = ["Steps"]

_REAL_BITS = 64
_LARGEST = 1e6  # bound of outputs, as the clients have it


class Steps:
    """The exchanges of one run.

    Parameters
    ----------
    run : FDSKL
    grid : Grid
    timeout : float
        Seconds to wait for the replies of one exchange.
    """

    def __init__(self, run: FDSKL, grid: Grid, timeout: float) -> None:
        self.run, self.grid, self.timeout = run, grid, timeout
        self._scores: dict[int, list[RunningSum]] = {}
        self._trees = TreeSums(run, grid, timeout) if run.topology == "tree" else None

    # -- iterations

    def leader(self, iteration: int) -> int:
        """Return the active party whose batch an iteration takes, in turn."""
        actives = self.run.leaders
        return actives[(iteration - 1) % len(actives)]

    def batch(self, iteration: int) -> Rows:
        """Return the rows of an iteration's batch."""
        own = self.run.plan_.train[self.leader(iteration)]
        rows = own.stop - own.start
        drawn = draw_batch(self.run.run_seed, iteration, rows, self.run.batch)
        return np.asarray(own.start + drawn)

    def upto(self, iteration: int) -> dict[int, int]:
        """Return how many directions each owner has after an iteration."""
        leaders = self.run.leaders
        return {
            owner: self.run.directions * ((iteration + len(leaders) - 1 - k) // len(leaders))
            for k, owner in enumerate(leaders)
        }

    def need(self, first: int, last: int) -> Need:
        """Return the phases that iterations need."""
        rows = np.unique(np.concatenate([self.batch(t) for t in range(first, last + 1)]))
        return Need(rows, self.upto(last))

    def advance(
        self,
        need: Need | None = None,
        *,
        finish: int = 0,
        score: int = 0,
        save_as: int = 0,
        again: Callable[[], Need] | None = None,
    ) -> None:
        """Finish an iteration, score another, collect phases: one exchange where all answer.

        Parameters
        ----------
        need : Need, optional
            Phases to collect.
        finish, score : int
            Iterations; 0 for none.
        save_as : int
            Number under which the parties keep their state; 0 for not.
        again : callable, optional
            Returns the phases to collect anew if a party has lost them.

        Raises
        ------
        CohortError
            Somebody did not answer, ``attempts`` times in a row.
        """
        run = self.run
        for _ in range(run.attempts):
            try:
                wanted = None
                if need is not None:
                    bits = run.phase_bits if self._trees is None else _REAL_BITS
                    parts = list(run.collections(need, bits))
                    if self._trees is not None:
                        for part in parts:
                            self._trees.collect(part)
                    else:
                        for part in parts[:-1]:
                            self._step(part)
                        wanted = parts[-1]
                if wanted is not None or finish or score or save_as:
                    self._step(wanted, finish=finish, score=score, save_as=save_as)
            except LostStateError:
                run.forget_phases()
                if again is not None:
                    self.advance(again())
                continue
            return
        raise run.gave_up(wire.StepReply.phase)

    def _step(
        self, wanted: Collection | None, *, finish: int = 0, score: int = 0, save_as: int = 0
    ) -> None:
        run = self.run
        everybody = wanted is not None or score or save_as
        parties = run.plan_.parties if everybody else run.plan_.actives
        for _ in range(run.attempts):
            run.next_step()
            phases = {} if wanted is None else run.order_phases(wanted)
            scores = self._order_scores(score)
            requests = {p: self._request(p, wanted, finish, score, save_as) for p in parties}
            sums = [*(one for some in phases.values() for one in some), *scores]
            totals = self._scores if finish else {}  # else they wait: an iteration needs them
            try:
                replies = run.ask_parties(
                    self.grid, requests, wire.StepReply, self.timeout, sums, totals
                )
            except LostStateError:
                for one in sums:
                    run.close(one)
                raise
            for partition in replies:
                for one in totals.pop(partition, ()):
                    run.close(one)
            if len(replies) == len(requests) and all(run.whole(one) for one in sums):
                if wanted is not None:
                    run.collected(wanted, phases)
                for one in scores:
                    run.declare(one)
                    self._scores[self.leader(score)] = [one]
                return
            for one in sums:
                run.close(one)
        raise run.gave_up(wire.StepReply.phase)

    def _order_scores(self, iteration: int) -> list[RunningSum]:
        run = self.run
        if not iteration:
            return []
        assert run.sums is not None
        return [
            run.sums.order(
                f"scores/{self.leader(iteration)}",
                len(self.batch(iteration)) * run.outputs_,
                Encoding.fixed_point(_LARGEST),
                receiver=self.leader(iteration),
                self_masks=False,
            )
        ]

    def _request(
        self, partition: int, wanted: Collection | None, finish: int, score: int, save_as: int
    ) -> wire.StepRequest:
        run, nothing = self.run, np.zeros(0, np.int32)
        rate = decay = 0.0
        if finish:
            regularization = run.chosen_regularization
            rate = step_size(run.chosen_step, run.chosen_step_schedule, regularization, finish)
            decay = 1.0 - rate * regularization
        leads = finish and self.leader(finish) == partition
        return wire.StepRequest(
            **run.step_fields(partition, save_as),
            **run.settings(),
            **run.phase_fields(partition, wanted),
            loss=run.chosen_loss,
            finish=finish,
            leader=self.leader(finish) if finish else -1,
            scorer=self.leader(score) if score else -1,
            directions=run.directions,
            rate=rate,
            decay=decay,
            score=score,
            finish_rows=run.positions(partition, self.batch(finish)) if leads else nothing,
            score_rows=run.positions(partition, self.batch(score)) if score else nothing,
        )

    # -- held-out rows

    def test_rows(self) -> Rows:
        """Return all held-out rows of the plan."""
        parts = [np.arange(s.start, s.stop) for s in self.run.plan_.test.values()]
        return np.concatenate(parts).astype(np.int64)

    def judge(self, upto: Mapping[int, int]) -> dict[str, float]:
        """Let the active parties predict their held-out rows, whose phases wait for them.

        Returns
        -------
        dict
            Metrics, empty if no party has labels of held-out rows.
        """
        run = self.run
        need = Need(self.test_rows(), upto)
        for _ in range(run.attempts):
            try:
                if len(run.plan_.actives) > 1:
                    self._outcome(run.plan_.parties, scoring=True)
                replies = self._outcome(run.plan_.actives, scoring=False)
            except LostStateError:
                run.forget_phases()
                self.advance(need)
                continue
            return self.metrics([reply.counts for reply in replies.values()])
        raise run.gave_up(wire.OutcomeReply.phase)

    def metrics(self, counts: Sequence[np.ndarray]) -> dict[str, float]:
        """Return the metrics of held-out rows from what the active parties counted."""
        run = self.run
        found = [c for c in counts if len(c) == counts_length(run.outputs_, run.classes_)]
        if not found:
            if run.counting:
                run.note_untold()
            return {}
        return outcome_metrics(np.sum(found, axis=0), run.classes_, run.label_bound_)

    def _outcome(self, parties: Sequence[int], *, scoring: bool) -> dict[int, Any]:
        run, waiting = self.run, set(parties)
        owners = [a for a in run.plan_.actives if run.plan_.test[a].stop > run.plan_.test[a].start]
        sizes = [run.plan_.test[a].stop - run.plan_.test[a].start for a in owners]
        rows = self.test_rows()
        found: dict[int, Any] = {}
        for _ in range(run.attempts):
            run.next_step()
            sums: dict[int, RunningSum] = {}
            if scoring:
                assert run.sums is not None
                for owner, size in zip(owners, sizes, strict=True):
                    sums[owner] = run.sums.order(
                        f"outcome/{owner}",
                        size * run.outputs_,
                        Encoding.fixed_point(_LARGEST),
                        receiver=owner,
                        self_masks=False,
                    )
            asked = set(parties) if scoring else waiting
            requests = {
                p: wire.OutcomeRequest(
                    **run.step_fields(p, 0),
                    scoring=scoring,
                    count=run.counting,
                    owners=np.array(owners, np.int32),
                    sizes=np.array(sizes, np.int32),
                    rows=run.positions(p, rows),
                )
                for p in sorted(asked)
            }
            replies = run.ask_parties(
                self.grid,
                requests,
                wire.OutcomeReply,
                self.timeout,
                sums.values(),
                self._scores,
            )
            found |= replies
            if not scoring:
                for partition in replies:
                    for one in self._scores.pop(partition, ()):
                        run.close(one)
                waiting -= set(replies)
                if not waiting:
                    return found
            elif len(replies) == len(requests) and all(run.whole(s) for s in sums.values()):
                for owner, one in sums.items():
                    run.declare(one)
                    self._scores[owner] = [one]
                return found
            else:
                for one in sums.values():
                    run.close(one)
        raise run.gave_up(wire.OutcomeReply.phase)
