"""FDSKL streaming: doubly stochastic gradients, an iteration per exchange.

The exchange that brings the active parties the phases of one batch asks for those of the next.
Where a single party is active and nothing is said of steps, it makes the last model of the phases
that it has by then: of the rows of the last half of the batches and the directions of the first
half, as one-shot does. The iterations are then what the error on the way is of.
With several active parties f is summed over them in between: an iteration then begins two exchanges
before it ends, and they overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.method import Steps
from fedkern_flwr.vertical.doubly_stochastic import StepSchedule, draw_batch, step_size
from fedkern_flwr.vertical.parties import VerticalPlan

from .fdskl_options import VerticalOptions
from .fdskl_phases import Iteration, Need, Phases, Rows


@dataclass(frozen=True, kw_only=True)
class Descent:
    """The iterations of a run.

    Attributes
    ----------
    plan : VerticalPlan
        Who holds which rows.
    leaders : tuple of int
        The active parties that take turns.
    seed : int
        Of the batches.
    batch, directions, step, schedule, regularization
        Options of :class:`~fedkern_flwr.strategies.FDSKL`.
    """

    plan: VerticalPlan
    leaders: tuple[int, ...]
    seed: int
    batch: int
    directions: int
    step: float
    schedule: StepSchedule
    regularization: float

    @property
    def lag(self) -> int:
        """How many exchanges after its own phases are asked for an iteration is finished."""
        return 1 if len(self.leaders) == 1 else 2

    def leader(self, number: int) -> int:
        """Return the active party whose batch an iteration takes, in turn."""
        return self.leaders[(number - 1) % len(self.leaders)]

    def rows(self, number: int) -> Rows:
        """Return the rows of an iteration's batch."""
        own = self.plan.train[self.leader(number)]
        drawn = draw_batch(self.seed, number, own.stop - own.start, self.batch)
        return np.asarray(own.start + drawn)

    def iteration(self, number: int) -> Iteration:
        """Return an iteration."""
        rate = step_size(self.step, self.schedule, self.regularization, number)
        return Iteration(
            number=number,
            leader=self.leader(number),
            rows=self.rows(number),
            directions=self.directions,
            rate=rate,
            decay=1.0 - rate * self.regularization,
        )

    def upto(self, number: int) -> dict[int, int]:
        """Return how many directions each owner has after an iteration."""
        count = len(self.leaders)
        return {
            owner: self.directions * ((number + count - 1 - k) // count)
            for k, owner in enumerate(self.leaders)
        }

    def need(self, first: int, last: int) -> Need:
        """Return the phases that iterations need."""
        rows = [self.rows(number) for number in range(first, last + 1)]
        return Need(np.unique(np.concatenate(rows)), self.upto(last))

    def solved(self, iterations: int) -> Need:
        """Return the phases that a solution takes at the end: rows of the last half of the batches.

        All of them have the directions of the first of these batches.
        """
        half = iterations // 2
        return Need(self.need(half + 1, iterations).rows, self.upto(half + 1))

    def advance(
        self, phases: Phases, t: int, done: int, last: int, tested: Need | None, save_as: int
    ) -> Steps:
        """Take an exchange of iterations ``done`` + 1 to ``last``.

        The t-th asks for the phases of iteration t and finishes the one that is due. The last of
        them asks for those of held-out rows, and has the parties keep their state.
        """
        finish, score = t - self.lag, t - 1 if self.lag == 2 else 0
        need = self.need(t, t) if t <= last else tested if finish == last else None
        work: dict[str, Any] = {}
        if finish > done:
            work["finish"] = self.iteration(finish)
        if done < score <= last:
            work["score"] = self.iteration(score)
        if finish == last and save_as:
            work["save_as"] = save_as

        def again() -> Need:
            return self.need(max(finish, done + 1), min(t - 1, last))

        yield from phases.advance(need, again if t > done + 1 else None, **work)


def descent_of(strategy: VerticalOptions) -> Descent:
    """Return the iterations of streaming, of the run at hand."""
    return Descent(
        plan=strategy.plan_,
        leaders=strategy.leaders,
        seed=strategy.run_seed,
        batch=strategy.batch or 0,
        directions=strategy.directions or 0,
        step=strategy.chosen_step,
        schedule=strategy.step_schedule or "constant",
        regularization=strategy.chosen_regularization,
    )


def evaluation_row(found: Mapping[str, float], spent: NDArray[np.float64]) -> dict[str, Any]:
    """Return the row of the history of an evaluation after so many seconds and bytes."""
    seconds, bytes_up = spent.tolist()
    error = found.get("test_rmse", 1.0 - found.get("test_accuracy", 1.0))
    return {**found, "test_error": error, "bytes_up": int(bytes_up), "seconds": seconds}
