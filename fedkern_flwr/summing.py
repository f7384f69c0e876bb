"""Secure sums for strategies: keys at the start, sections on messages, unmasking."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from flwr.app import Message
from flwr.serverapp import Grid

from .errors import CohortError, SumError
from .exchange import FAREWELL, request_messages, take_sections
from .failure import Failure
from .guard import counting
from .options import at_least
from .planning import Allowance
from .secure_sum import RunningSum, SecureSum
from .secure_sum.identity import Counts
from .strategy import PhaseStrategy, logger
from .wire import PhaseMessage
from .wire import sums as sum_wire

_FOLLOW_UPS = 3  # exchanges after the first that may be spent on unmasking a sum


class SummingStrategy(PhaseStrategy):
    """Base class of strategies that may take secure sums.

    A method begins a sum with ``sums.order(...)``, lets ``sum_sections`` ride on its requests, and
    opens it with ``unmask``; replies are taken apart as they arrive.

    Parameters
    ----------
    threshold : int, optional
        Of secure sums: t, least number of clients whose vectors are in a sum, by default
        floor(2 K / 3) + 1. With a server that follows the protocol, t - 1 clients together cannot
        open another's vector up to 30 clients; with more it takes 65 % of the few with whom a
        client shares masks. With one that lies about survivors, pinned identities are needed, and
        fewer than 2 t - K and than those 65 % may collude (:mod:`fedkern_flwr.secure_sum.votes`).
    min_cohort : int (default: 2)
        Of secure sums: least number of clients in a sum whatever the threshold.
    **common
        Options of :class:`~fedkern_flwr.strategy.PhaseStrategy`.

    Attributes
    ----------
    sums : SecureSum or None
        The secure sums of the run at hand.
    allow_single : bool
        Whether a sum of two parties may belong to one of them.
    notes_ : list of str
        What the last run planned within the share of its nodes, for ``result.json``.
    """

    allow_single = False
    #: Unknowns of a row beside its columns.
    labels_of_row: ClassVar[int] = 1
    #: Whether the method sums nothing: its clients have keys to seal messages for each other.
    relays_only: ClassVar[bool] = False
    #: Whether all sums of the method are over whole cohorts, without self masks.
    whole_cohorts: bool = False

    def __init__(self, *, threshold: int | None = None, min_cohort: int = 2, **common: Any) -> None:
        super().__init__(**common)
        at_least("min_cohort", min_cohort, 2)
        self.threshold, self.min_cohort = threshold, min_cohort

    def _reset(self) -> None:
        super()._reset()
        self.sums: SecureSum | None = None
        self.notes_: list[str] = []

    def note_plan(self, what: str, allowed: Allowance) -> None:
        """Note which default sizes were planned, and log it."""
        self.notes_.append(
            f"{what}; at most {math.floor(allowed.numbers):,} numbers, "
            f"{allowed.share:.2g} of what the nodes' rows hide"
        )
        logger.info(self.notes_[-1])

    def result(self) -> dict[str, Any]:
        """Return the result of the last run, with the notes on what was planned."""
        return {**super().result(), **({"notes": self.notes_} if self.notes_ else {})}

    def gather(self, grid: Grid, *, resume_round: int = 0, secure: bool = False) -> None:
        """Wait for the nodes and remember them; with ``secure``, ``sums`` is ready after it."""
        super().gather(grid, resume_round=resume_round, secure=secure)
        cohorts = self.cohorts() if secure else []
        if cohorts != []:
            self.sums = SecureSum(
                self._session,
                {p.partition: (p.public_key, p.signature) for p in self.parties_.values()},
                cohorts=cohorts,
                threshold=self.thresholds(1 if cohorts is None else len(cohorts)),
                min_cohort=self.min_cohort,
                allow_single=self.allow_single,
                relays_only=self.relays_only,
                counts={
                    p.partition: Counts(p.rows, p.test_rows, p.bits) for p in self.parties_.values()
                },
            )

    def cohorts(self) -> list[list[int]] | None:
        """Return the sets of partitions among which the method sums; None for everybody.

        Sums of the same values over two sets that differ by one party give that party's values.
        Without any set there are no sums.
        """
        return None

    def thresholds(self, cohorts: int) -> list[int | None]:
        """Return the threshold of each of so many cohorts, None for the default."""
        return [self.threshold] * cohorts

    def sums_privacy(self) -> dict[str, Any]:
        """Return the parameters of the secure sums of the last run."""
        out: dict[str, Any] = {"protocol": "secure sums", "min_cohort": self.min_cohort}
        out["everybody_sees"] = [
            "who takes part in which sums, with how many rows and held-out rows, its public key, "
            "and bits of a row: 64 for a column, 1 for one of two values"
        ]
        if self.sums is not None:
            cohorts = self.sums.membership.cohorts
            out["cohorts"] = [
                {
                    "parties": len(cohort.members),
                    "threshold": len(cohort.members) if self.whole_cohorts else cohort.threshold,
                    "masks_per_party": len(cohort.neighbours[cohort.members[0]]),
                    **({} if self.whole_cohorts else {"shares_to_open": cohort.share_threshold}),
                }
                for cohort in cohorts
            ]
        return {**out, "sums": self.released_sums()}

    def released_sums(self) -> list[dict[str, Any]]:
        """Return the numbers and unknowns of all sums that the server opened, by name.

        Sums of one name over the same cohort count together; of several cohorts the one with the
        most numbers for an unknown is told.
        """
        worst: dict[str, tuple[float, dict[str, Any]]] = {}
        for (full, cohort), numbers in (self.sums.released if self.sums else {}).items():
            name = full.partition("#")[0]
            if name.startswith(counting.OF_NO_ROWS):
                continue
            unknowns = self._unknowns(name, cohort)
            ratio = numbers / max(unknowns, 1)
            if ratio > worst.get(name, (-1.0, {}))[0]:
                worst[name] = ratio, counting.released(name, numbers, unknowns)
        return [entry for _, entry in worst.values()]

    def _unknowns(self, name: str, cohort: int = 0) -> float:
        assert self.sums is not None
        held_out = name.startswith(counting.OF_HELD_OUT)
        members = self.sums.membership.cohorts[cohort].members
        cells = {
            p.partition: ((held_out and p.test_rows) or p.rows) * (p.features + self.labels_of_row)
            for p in self.parties_.values()
        }
        return counting.hidden_rows(cells, members)

    def check_count(self, problem: str) -> None:
        """Stop, or warn, where a sum would release too many numbers: as the nodes would.

        Raises
        ------
        RefusedError
            A node refuses it.
        """
        if not problem:
            return
        strictest = {party.counting for party in self.parties_.values()}
        if "refuse" in strictest:
            raise counting.small_sum(problem)
        if "warn" in strictest:
            logger.warning("the rows behind a sum can be computed: %s", problem)

    def sum_sections(self, sums: Sequence[RunningSum]) -> dict[int, list[PhaseMessage]]:
        """Return node -> what its request must carry so that it contributes to ``sums``."""
        assert self.sums is not None
        return {
            node: self.sums.sections(self.parties_[node].partition, sums)
            for node in self.active_nodes()
        }

    def unmask(
        self, grid: Grid, sums: Sequence[RunningSum], *, number: int, timeout: float
    ) -> None:
        """Unmask sums whose vectors are in: one exchange, more when survivors vote or fall silent.

        A method that has a next request at hand lets ``SecureSum.unmask_sections`` ride on it
        instead.

        Raises
        ------
        SumError
            A sum has too few survivors or votes, or cannot be opened. Nothing is released.
        """
        assert self.sums is not None
        self._collect_votes(grid, sums, number, timeout)
        asked = self.sums.unmask_sections(sums)
        if asked:  # nobody is asked where there are no self masks
            request = sum_wire.UnmaskRequest(session=self._session, round=number)
            self._sum_exchange(grid, request, asked, timeout, lambda: _complete(sums))
        self.open_sums(grid, sums, number=number, timeout=timeout)

    def open_sums(
        self, grid: Grid, sums: Sequence[RunningSum], *, number: int, timeout: float
    ) -> None:
        """Open sums that have been unmasked; ask again where survivors fell silent.

        Raises
        ------
        SumError
            A sum cannot be opened. Nothing is released.
        """
        assert self.sums is not None
        for attempt in range(1, _FOLLOW_UPS + 1):
            missing = self.sums.recover_sections(sums)
            if not missing:
                break
            again = sum_wire.RecoverRequest(session=self._session, round=number, attempt=attempt)
            self._sum_exchange(grid, again, missing, timeout, lambda: _complete(sums))
        for running in sums:
            running.open()
            for forger in running.forgers:
                logger.warning("partition %d revealed a forged share", forger)
                self.ledger_.add_failure(forger, "forged share")

    def blame(self, running: RunningSum, error: SumError, number: int) -> None:
        """Count an aborted sum against the parties whose masks did not fit."""
        for node, party in self.parties_.items():
            if party.partition in running.suspects:
                self.reject(node, Failure.invalid(error), number)

    def finish(self, grid: Grid, *, number: int, timeout: float, goes_on: bool = False) -> None:
        """Let all clients erase what a run leaves on them; wait a minute at most."""
        timeout = min(timeout, FAREWELL)
        kind = sum_wire.BreakRequest if goes_on else sum_wire.FinishRequest
        request = kind(session=self._session, round=number)
        messages = request_messages(request, self.parties_, group_id="finish")
        self.run_phase(
            grid,
            messages,
            phase=request.phase,
            timeout=timeout,
            number=number,
            required=0,
            awaits=False,
        )

    def _collect_votes(
        self, grid: Grid, sums: Sequence[RunningSum], number: int, timeout: float
    ) -> None:
        """Have the survivors vote where identities are pinned and it is needed."""
        assert self.sums is not None
        ballots = self.sums.ballot_sections(sums)
        if ballots:
            request = sum_wire.VoteRequest(session=self._session, round=number)
            self._sum_exchange(grid, request, ballots, timeout, lambda: _voted(sums))

    def _sum_exchange(
        self,
        grid: Grid,
        request: sum_wire.SumRequest,
        sections: Mapping[int, list[PhaseMessage]],
        timeout: float,
        enough: Callable[[], bool],
    ) -> None:
        by_node = self._by_node(sections)
        self.run_phase(
            grid,
            request_messages(request, by_node, group_id=str(request.round), sections=by_node),
            phase=request.phase,
            timeout=timeout,
            number=request.round,
            required=0,
            enough=enough,
        )

    def _by_node(self, sections: Mapping[int, list[PhaseMessage]]) -> dict[int, list[PhaseMessage]]:
        return {
            node: sections[party.partition]
            for node, party in self.parties_.items()
            if party.partition in sections
        }

    @property
    def summed(self) -> bool:
        """Whether a secure sum of this run has been opened."""
        return self.sums is not None and self.sums.contributors > 0

    def on_reply(self) -> Callable[[int, Message], None] | None:
        """Take the sections of secure sums out of replies as they arrive."""
        return self._take_sections if self.sums is not None else None

    def _take_sections(self, node: int, message: Message) -> None:
        assert self.sums is not None
        partition = self.parties_[node].partition
        self.sums.take(partition, take_sections(message, party=self.party(node)))

    def broken(self, problem: str, phase: str) -> CohortError:
        """Return the error with which a run ends for want of clients."""
        error = super().broken(problem, phase)
        if self.checkpoint or self.sums is None or not self.sums.contributors:
            return error
        remedy = (
            "mend the clients and start again with all of them: two runs over the same rows that "
            "differ in their clients show single ones; a checkpoint avoids that"
        )
        return CohortError(problem, remedy=remedy, phase=phase, code="FK-PARTIES-LOST")


def _complete(sums: Sequence[RunningSum]) -> bool:
    return all(running.complete for running in sums)


def _voted(sums: Sequence[RunningSum]) -> bool:
    return not any(running.votes_missing for running in sums)
