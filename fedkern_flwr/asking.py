"""Questions to clients: who is asked, who is asked again, and what comes with the answers.

Two ideas of asking again are all there are: *each* (whoever did not answer, alone) and *enough*
(the whole exchange anew, with new masks, so that nothing of the first attempt can be opened).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from .driven import Driven
from .errors import CohortError, ProtocolError, SumError, quoted_code
from .exchange import Outcome, read_reply, request_messages
from .failure import Failure, count_failures
from .run_log import RunLog
from .secure_sum import RunningSum
from .steps import Answers, Ask, Deliver, LostState, Term
from .strategy import logger
from .wire import PhaseMessage
from .wire.message import Arrays
from .wire.numpy_format import array_record
from .wire.sums import End, FinishRequest, bind

_LOGS = "their logs say where"
_MISSING = "not all parties answered"
_AGAIN = ": others have erased what would make it anew"


class Asking:
    """What one run asks.

    Parameters
    ----------
    method : Driven
        Whose run it is; its parties are there.
    grid : Grid
        Flower's grid.
    timeout : float
        Seconds to wait for the replies of an exchange.
    log : RunLog
        Has the numbers of the exchanges.

    Attributes
    ----------
    over : bool
        Whether the clients have erased what belongs to the run.
    deliveries : dict
        Partition -> sums on their way to it.
    outcome : Outcome
        Of the exchange at hand.
    """

    def __init__(self, method: Driven, grid: Grid, timeout: float, log: RunLog) -> None:
        self.method, self.grid, self.timeout, self.log = method, grid, timeout, log
        self.over = False
        self.deliveries: dict[int, list[Deliver]] = {}
        self.outcome = Outcome()
        self._attempt = 0  # how often the question at hand has been asked before
        self._same = False  # whether it is asked as it was, with the same sums
        self._idle: set[int] = set()  # who is only told that the run is over, and has not answered
        self._failures: dict[int, Failure] = {}

    def ask(self, step: Ask) -> Answers:
        """Ask with messages of the method's own.

        Raises
        ------
        LostState
            Somebody has forgotten what the question needs.
        CohortError
            Not all have answered in the end.
        """
        self._attempt, self._same = 0, False
        if step.until == "each":
            return self._each(step)
        if step.until == "tried":
            replies = self._exchange(self._requests(step), step, step.running)
            parties = self.method.parties_
            failures = {parties[node].partition: why for node, why in self._failures.items()}
            return Answers(replies, failures=failures)
        return self._once(step) if step.until == "once" else self._enough(step)

    def _each(self, step: Ask) -> Answers:
        found: dict[int, Any] = {}
        whole: dict[str, RunningSum] = {}
        requests = self._requests(step)
        running: dict[str, RunningSum] = {}
        for attempt in range(self.method.attempts):
            self._attempt = 0 if step.ends else attempt
            self._same = step.ends and attempt > 0
            running = self._running(step, requests, whole, running)
            summed = {p for one in running.values() for p in one.cohort.members}
            summed -= set(found) if step.ends else set()
            waiting = {p: r for p, r in requests.items() if p not in found or p in summed}
            found = {p: reply for p, reply in found.items() if p not in waiting}
            found |= self._exchange(waiting, step, list(running.values()))
            for key, one in running.items():
                members = set(one.cohort.members)
                if len(one.uploaded) == len(members) and members & set(requests) <= set(found):
                    whole[key] = one
                elif not step.ends:
                    self._sums.close(one)
            if len(found) == len(requests) and len(whole) == len(step.sums):
                self.over = step.last or (step.ends and self.method.sums is not None)
                return self._opened(step, {p: found[p] for p in requests}, whole)
        if step.least is not None and len(found) >= step.least and not step.sums:
            return Answers({p: found[p] for p in requests if p in found})
        raise self._gave_up(step)

    def _once(self, step: Ask) -> Answers:
        method, requests = self.method, self._requests(step)
        running = self._order(step, requests)
        replies = self._exchange(requests, step, list(running.values()), final=False)
        phase = next(iter(requests.values())).phase
        method.require(len(replies), self.log.number, phase, self._failures, step.least)
        try:
            found = self._opened(step, replies, running)
        except SumError as error:
            for one in running.values():
                method.blame(one, error, self.log.number)
            self.close(running.values())
            problem = f"{error.problem}{count_failures(self._failures)}"
            raise SumError(problem, party=error.party, code=error.code) from None
        opened = list(running.values())
        for node, party in method.parties_.items():
            p = party.partition
            if node in self._failures:
                found.failures[p] = self._failures[node]
            elif p in replies and all(p in s.survivors and p not in s.silent for s in opened):
                method.accept(node)
        return found

    def _enough(self, step: Ask) -> Answers:
        """Ask all, and again with new sums those whose sum has too few, until all have enough.

        Nothing of a sum that is repeated has been opened, nor will it be.
        """
        method, problem = self.method, _MISSING
        replies: dict[int, Any] = {}
        whole: dict[str, RunningSum] = {}
        terms = {term.key: term for term in step.sums}
        for attempt in range(method.attempts):
            here = {p: r for p, r in self._requests(step).items() if p in self.partitions()}
            running = self._order(step, here, whole)
            summed = {p for one in running.values() for p in one.cohort.members}
            waiting = {p: r for p, r in here.items() if p in summed and p not in method.spent_}
            replies |= self._exchange(waiting, step, list(running.values())) if waiting else {}
            for key, one in running.items():
                found = self._too_few(one) or terms[key].unfit(one.uploaded)
                if found:
                    problem = found
                    logger.warning("%s: %s (attempt %d)", terms[key].name, found, attempt + 1)
                    self.close([one])
                else:
                    whole[key] = one
            if len(whole) == len(step.sums):
                return self._opened(step, replies, whole)
        raise self._gave_up(step, problem)

    def _too_few(self, one: RunningSum) -> str:
        """Return why a sum cannot be opened, if it cannot."""
        if self.log.again and set(one.uploaded) != set(self.log.again):
            return "those whose sum was being opened when the run broke off did not all answer"
        try:
            one.check_survivors(self.method.min_cohort)
        except SumError as error:
            self.method.blame(one, error, self.log.number)
            return f"{error.party}: {error.problem}" if error.party else error.problem
        return ""

    # -- exchanges

    def _exchange(
        self,
        requests: Mapping[int, PhaseMessage],
        step: Ask,
        running: Sequence[RunningSum],
        *,
        final: bool = True,
    ) -> dict[int, Any]:
        """Send requests with their sections; return the proper replies by partition.

        Unless it is ``final`` whoever answers has yet to help to open the sums.
        """
        method, reply = self.method, step.reply
        self.log.number = self.log.asked = self._next(step)
        kinds: Mapping[int, Any] = (
            reply if isinstance(reply, Mapping) else dict.fromkeys(requests, reply)
        )
        phase = next(iter(requests.values())).phase
        if not self._same:
            told = method.parties_.items() if step.ends and method.sums is not None else ()
            self._idle = {node for node, party in told if party.partition not in requests}
        outcome = method.run_phase(
            self.grid,
            self._messages(requests, running, step),
            phase=phase,
            timeout=self.timeout,
            number=self.log.number,
            required=0,
            idle=self._idle,
        )
        self.outcome, self._failures = outcome, dict(outcome.failures)
        details = [failure.detail for failure in self._failures.values()]
        for node, failure in self._failures.items() if final else ():
            failure.raise_final(phase, method.party(node))
        if final and len(details) == len(method.active_nodes()) and len(set(details)) == 1:
            bug, _ = quoted_code(details[0])  # a client tells the class of a bug alone
            if bug.isidentifier():
                problem, code = f"all clients ended in {bug}", "FK-CLIENT-RAISED"
                raise ProtocolError(problem, remedy=_LOGS, phase=phase, code=code)
        found = {}
        for message in method.in_order(outcome):
            node = message.metadata.src_node_id
            partition = method.parties_[node].partition
            if node in self._idle:  # has been told that the run is over
                self._idle.discard(node)
                continue
            try:
                where = method.party(node)
                answer = read_reply(kinds[partition], message, party=where, **step.sizes)
                if answer.round != self.log.number:
                    raise ProtocolError(
                        f"the reply belongs to exchange {answer.round}", code="FK-MESSAGE-ORDER"
                    )
                method.check_answer(partition, answer)
            except ProtocolError as error:
                self._failures[node] = Failure.invalid(error)
                method.reject(node, self._failures[node], self.log.number)
                continue
            if final:
                method.accept(node)
            self.close(one.sum for one in self.deliveries.pop(partition, ()))
            found[partition] = answer
        lost = any(detail.startswith("StateError") for detail in details)
        if lost and final and step.until != "tried":
            self.close(running)
            raise LostState(
                f"a client has forgotten what the question needs: {self._failed()}",
                remedy="give its node a state_dir that stays, and "
                + ("resume from the checkpoint" if method.resumable else "start again")
                + (_AGAIN if step.ends else ""),
                phase=phase,
                code="FK-STATE-GONE",
            )
        return found

    def _messages(
        self, requests: Mapping[int, PhaseMessage], running: Sequence[RunningSum], step: Ask
    ) -> Iterable[Message]:
        """Return the messages; a request, or its arrays, that several are asked are packed once."""
        method, packed = self.method, dict[tuple[int, ...], tuple[Arrays, ArrayRecord]]()
        node_of = {party.partition: node for node, party in method.parties_.items()}
        alike: dict[int, tuple[PhaseMessage, list[int]]] = {}
        for partition, request in requests.items():
            alike.setdefault(id(request), (request, []))[1].append(partition)
        for request, partitions in alike.values():
            sections: dict[int, list[PhaseMessage]] = {}
            for partition in partitions:
                own: list[PhaseMessage] = [
                    one.sum.delivery() for one in self.deliveries.get(partition, ())
                ]
                if method.sums is not None and not step.last:
                    own += method.sums.sections(partition, list(running))
                if method.sums is not None and step.ends:
                    own.append(End())
                sections[node_of[partition]] = own
            arrays = request.arrays()
            key = tuple(map(id, arrays))
            if key not in packed:
                packed[key] = arrays, array_record(arrays)
            yield from request_messages(
                self._addressed(request, self.log.number),
                sections,
                group_id=str(self.log.number),
                arrays=packed[key][1],
                sections=sections,
            )
        if step.ends and method.sums is not None:
            bye = FinishRequest(session=method.session, round=self.log.number)
            yield from request_messages(bye, self._idle, group_id=str(self.log.number))

    def _addressed(self, request: PhaseMessage, number: int) -> PhaseMessage:
        """Fill in what only the run knows."""
        known: dict[str, Any] = {"session": self.method.session, "round": number}
        if self._attempt:
            known["attempt"] = self._attempt
        names = {field.name for field in fields(request)}
        return replace(request, **{k: v for k, v in known.items() if k in names})

    def _requests(self, step: Ask) -> dict[int, PhaseMessage]:
        if isinstance(step.what, PhaseMessage):
            among = self.partitions() if step.among is None else step.among
            return dict.fromkeys(among, step.what)
        assert not isinstance(step.what, str)
        return dict(step.what)

    def _next(self, step: Ask) -> int:
        """Return the number of the next exchange."""
        return self.log.number + (not self._same) if step.number is None else step.number

    def partitions(self) -> list[int]:
        """Return who takes part."""
        method = self.method
        return [method.parties_[node].partition for node in method.active_nodes()]

    # -- sums

    def _running(
        self,
        step: Ask,
        requests: Mapping[int, PhaseMessage],
        without: Iterable[str],
        before: dict[str, RunningSum],
    ) -> dict[str, RunningSum]:
        """Return the sums of the next exchange: those of the one before where that ends the run."""
        if not self._same:
            return self._order(step, requests, without)
        for one in before.values():
            one.repeated = True
        return before

    def _order(
        self, step: Ask, requests: Mapping[int, PhaseMessage], without: Iterable[str] = ()
    ) -> dict[str, RunningSum]:
        """Order the sums of the next exchange, but for some."""
        return {
            term.key: self._sums.order(
                self._bound(step, term, requests) if term.bound else term.name,
                term.length,
                term.encoding,
                cohort=term.cohort,
                receiver=term.receiver,
                self_masks=term.self_masks,
            )
            for term in step.sums
            if term.key not in without
        }

    def _bound(self, step: Ask, term: Term, requests: Mapping[int, PhaseMessage]) -> str:
        members = self._sums.membership.cohorts[term.cohort].members
        asked = [requests[p] for p in members if p in requests]
        return bind(term.name, self._addressed(asked[0], self._next(step))) if asked else term.name

    def _opened(
        self, step: Ask, replies: dict[int, Any], running: dict[str, RunningSum]
    ) -> Answers:
        """Open what is the server's; keep what is to be delivered."""
        masked = [running[term.key] for term in step.sums if term.self_masks]
        if masked:
            self.log.number += step.number is None
            self.log.mark(masked)
            self.method.unmask(self.grid, masked, number=self.log.number, timeout=self.timeout)
        bare = [one for one in running.values() if one not in masked]
        if bare:
            self._sums.unmask_sections(bare)
        found = Answers(replies)
        for term in step.sums:
            one = running[term.key]
            found.contributors[term.key] = list(one.survivors)
            if term.receiver is None:
                found.totals[term.key] = self._sums.total(one)
            else:
                found.running[term.key] = one
        return found

    def close(self, sums: Iterable[RunningSum]) -> None:
        """Forget sums that nobody shall have."""
        for one in sums:
            self._sums.close(one)

    @property
    def _sums(self) -> Any:
        assert self.method.sums is not None
        return self.method.sums

    def _gave_up(self, step: Ask, problem: str = _MISSING) -> CohortError:
        """Return the error with which a run ends for want of answers."""
        method, phase = self.method, next(iter(self._requests(step).values())).phase
        failed = self._failed() or "replies without their sums"
        text = f"{problem}, {method.attempts} times in a row: {failed}"
        if step.until == "enough" and method.summed and not method.checkpoint:
            return method.broken(text, phase)  # which says what another run would show
        again = "resume from the checkpoint" if method.resumable else "start again"
        remedy = f"mend it and {again}, with more attempts if it answers at times"
        if step.until != "enough":
            remedy += "; a model of fewer rows is never made"
        return CohortError(text, remedy=step.remedy or remedy, phase=phase, code="FK-PARTIES-LOST")

    def _failed(self) -> str:
        """Return the first who did not answer, and why."""
        who = [
            f"{self.method.party(node)} {failure}"
            for node, failure in sorted(self._failures.items())
        ]
        return ", ".join(who[:3])
