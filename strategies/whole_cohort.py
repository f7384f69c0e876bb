"""Strategies that need every party: sums over whole cohorts, exchanges that are repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.errors import CohortError, ProtocolError
from fedkern_flwr.exchange import Failure, read_reply, request_messages
from fedkern_flwr.secure_sum import RunningSum
from fedkern_flwr.strategy import at_least
from fedkern_flwr.summing import SummingStrategy
from fedkern_flwr.wire import PhaseMessage

#: Errors of clients after which another try is no use.
FINAL = (
    "ProtocolError:",
    "RefusedError:",
    "OptionError:",
    "TableError:",
    "SumError:",
    "CheckpointError:",
)


class WholeCohortStrategy(SummingStrategy):
    """Base class of strategies that need every party in every step.

    Their sums have no self masks and need no unmasking exchange; a step that somebody did not
    answer is repeated with all.

    Parameters
    ----------
    attempts : int (default: 5)
        An exchange that somebody failed to answer is repeated so often in all.
    allow_single : bool (default: False)
        Allow what shows a single party's values.
    **common
        Options of :class:`~fedkern_flwr.summing.SummingStrategy`.

    Attributes
    ----------
    step : int
        Number of the exchange at hand.
    first_step : int
        Step under which the parties keep what belongs to the run.
    model_of : (str, int)
        Of predictions: session and step of the run that made the model.
    lost_state : bool
        Whether somebody has forgotten what the last request needed.
    run_seed : int
        Seed of the run at hand.
    """

    fixed: ClassVar[frozenset[str]] = frozenset(
        {"min_clients", "max_missed", "checkpoint_every", "threshold", "min_cohort"}
    )

    def __init__(self, *, attempts: int = 5, allow_single: bool = False, **common: Any) -> None:
        at_least("attempts", attempts, 1)
        self.attempts, self.allow_single = attempts, allow_single
        super().__init__(**common)

    def _reset(self) -> None:
        super()._reset()
        self.model_of: tuple[str, int] = ("", 0)
        self.step, self.lost_state, self.first_step, self.run_seed = 0, False, 0, 0
        self._failures: Mapping[int, Failure] = {}

    @property
    def session(self) -> str:
        """Name of the run."""
        return self._session

    def next_step(self) -> None:
        """Begin the next exchange: steps are numbered so that duplicates are noticed."""
        self.step += 1
        self.lost_state = False

    def described_parties(self) -> Iterable[Any]:
        """Yield the descriptions of all parties by partition."""
        return self.parties_.values()

    def party_of(self, partition: int) -> Any:
        """Return the description of a party."""
        return next(p for p in self.described_parties() if p.partition == partition)

    def ask(
        self,
        grid: Grid,
        requests: Mapping[int, PhaseMessage],
        reply: type[Any] | Mapping[int, type[Any]],
        timeout: float,
        sums: Iterable[RunningSum] = (),
        deliveries: Mapping[int, Sequence[RunningSum]] | None = None,
    ) -> dict[int, Any]:
        """Send each party its request; return the proper replies by partition.

        ``reply`` is their class, or that of each party.

        Requests carry the orders of ``sums`` and the totals of ``deliveries``. ``lost_state`` tells
        afterwards whether a party has forgotten what the request needs.
        """
        ordered, messages = list(sums), []
        kinds = reply if isinstance(reply, Mapping) else dict.fromkeys(requests, reply)
        phase = next(iter(kinds.values())).phase
        node_of = {party.partition: node for node, party in self.parties_.items()}
        for partition, request in requests.items():
            node = node_of[partition]
            sections: list[PhaseMessage] = []
            if self.sums is not None:
                if deliveries and partition in deliveries:
                    sections = [running.delivery() for running in deliveries[partition]]
                sections += self.sums.sections(partition, ordered)
            messages += request_messages(
                request, [node], group_id=str(self.step), sections={node: sections}
            )
        outcome = self.run_phase(
            grid, messages, phase=phase, timeout=timeout, number=self.step, required=0
        )
        self._failures = outcome.failures
        self.lost_state = any(f.detail.startswith("StateError") for f in outcome.failures.values())
        for failure in outcome.failures.values():
            if failure.detail.startswith(FINAL):
                raise ProtocolError(failure.detail.partition(": ")[2], phase=phase)
        found = {}
        for message in self.in_order(outcome):
            node = message.metadata.src_node_id
            try:
                kind = kinds[self.parties_[node].partition]
                answer = read_reply(kind, message, party=self.party(node))
                if answer.round != self.step:
                    raise ProtocolError(f"the reply belongs to step {answer.round}")
            except ProtocolError as error:
                self.reject(node, Failure("invalid reply", error.problem), self.step)
                continue
            self.accept(node)
            found[self.parties_[node].partition] = answer
        return found

    def whole(self, running: RunningSum) -> bool:
        """Tell whether all parties of a sum have contributed."""
        return len(running.uploaded) == len(running.cohort.members)

    def declare(self, running: RunningSum) -> None:
        """Fix the parties of a sum that all have contributed to."""
        assert self.sums is not None
        self.sums.unmask_sections([running])

    def total(self, running: RunningSum) -> NDArray[np.float64]:
        """Open a sum that all have contributed to."""
        assert self.sums is not None
        self.declare(running)
        return self.sums.total(running)

    def close(self, running: RunningSum) -> None:
        """Forget a sum."""
        assert self.sums is not None
        self.sums.close(running)

    def gave_up(self, phase: str) -> CohortError:
        """Return the error with which a run ends when a party does not answer."""
        who = [
            f"partition {self.parties_[node].partition} {failure}"
            for node, failure in sorted(self._failures.items())
        ]
        again = "resume from the checkpoint" if self.resumable else "start again"
        remedy = f"mend it and {again}, with more attempts if it answers at times"
        return CohortError(
            f"not all parties answered, {self.attempts} times in a row: "
            f"{', '.join(who[:3]) or 'replies without their sums'}",
            remedy=f"{remedy}; a model of fewer rows is never made",
            phase=phase,
        )
