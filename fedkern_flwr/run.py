"""Run a method: execute the steps that its generator yields.

A step (:mod:`fedkern_flwr.exchange`) is a sum, a request, a delivery, a state to save or a round to
report. A request is sent as messages, with sections of its secure sums. There are two ways to
repeat one: *each* repeats it to the nodes that did not answer; *enough* repeats the whole exchange
with new masks, so that nothing of the first attempt can be opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from .errors import CohortError, ProtocolError, SumError, quoted_code
from .exchange import (
    SERVER,
    Answers,
    Ask,
    Deliver,
    LostState,
    Overlapping,
    Round,
    Rounds,
    Save,
    Step,
    Sum,
)
from .failure import Failure, count_failures
from .nodes import Nodes, Overlap, logger
from .privacy import Budget
from .privacy.budget import Releases
from .run_log import RunLog
from .secure_sum import RunningSum
from .transport import Outcome, read_reply, request_messages
from .wire import PhaseMessage
from .wire.message import Arrays, array_record
from .wire.method import MethodReply, MethodRequest, pack, unpack
from .wire.sums import End, FinishRequest, bind

_LOGS = "their logs say where"
_MISSING = "not all parties answered"
_AGAIN = ": others have erased what would make it anew"


class Program(Protocol):
    """All that a run needs from its method; each method has defaults.

    Its options come as :class:`RunRules`, its generator in :meth:`Run.drive`.

    Attributes
    ----------
    planned : int
        Number of rounds, or exchanges, of the run, for its progress; set by the generator.
    saved_, saved_meta_ : dict
        In a resumed run the state of the last ``Save``, from which the generator continues.
    kept_ : int or None
        Exchange after which the clients saved their state.
    spent_ : set of int
        Partitions that have opened a sum that they open once. No sum waits for these.
    """

    planned: int
    saved_: dict[str, NDArray[Any]]
    saved_meta_: dict[str, Any]
    kept_: int | None
    spent_: set[int]

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model; a checkpoint must have the same."""

    def check_answer(self, partition: int, answer: Any) -> None:
        """Refuse a reply that is well-formed but wrong."""

    def unknowns(self, name: str, cohort: int) -> float:
        """Return the number of unknowns in a sum."""

    def progress(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""

    def go_on(self, progress: Mapping[str, Any]) -> None:
        """Restore an interrupted run, before the nodes are collected."""


@dataclass(frozen=True, kw_only=True)
class RunRules:
    """A method's rules for checkpoints and repetitions, see :class:`.Method`."""

    method: str
    attempts: int = 5
    checkpoint: Path | None = None
    checkpoint_every: int = 50
    resume: bool = False
    confirmed: bool = False
    opens_once: bool = False
    reopens: bool = False
    counts_replies: bool = False
    budget: Budget | None = None
    releases: int = 1

    @classmethod
    def of(cls, method: object) -> RunRules:
        return cls(**{rule.name: getattr(method, rule.name) for rule in fields(cls)})


@dataclass
class _Question:
    """State of a request, over all its attempts.

    ``same`` is whether it is repeated unchanged, with the same sums. ``idle`` are nodes that only
    need to know that the run is over, and have not answered.
    """

    attempt: int = 0
    same: bool = False
    idle: set[int] = field(default_factory=set)
    failures: dict[int, Failure] = field(default_factory=dict)


class Run:
    """Execute one run of a method.

    Parameters
    ----------
    program, rules : Program, RunRules
        The method, and its rules.
    nodes : Nodes
        Nodes of the run, after :meth:`.Nodes.gather`.
    grid : Grid
        Flower's grid.
    timeout : float
        Seconds to wait for the replies of an exchange.
    log : RunLog
        Checkpoints of the run.
    noise : Releases
        Releases with noise.
    tell : callable
        Called with each round; returns its row of the history.
    show : callable, optional
        Called after each round with (rounds done, all rounds, metrics of the round).
    """

    def __init__(
        self,
        program: Program,
        rules: RunRules,
        nodes: Nodes,
        grid: Grid,
        timeout: float,
        log: RunLog,
        noise: Releases,
        tell: Callable[[Round], Mapping[str, Any]],
        show: Callable[[int, int, Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.program, self.rules, self.nodes = program, rules, nodes
        self.grid, self.timeout, self.log = grid, timeout, log
        self.noise, self.tell, self.show = noise, tell, show
        self._sums: Any = nodes.sums  # None in a run that takes none
        self.over = False
        self.deliveries: dict[int, list[Deliver]] = {}
        self._outcome = Outcome()  # of the exchange at hand
        self._question = _Question()
        self._counts_exchanges = True  # whether the progress is that of exchanges

    # -- the generator

    def drive(self, rounds: Rounds) -> dict[str, Any]:
        """Execute the generator's steps until it returns; return its metrics."""
        value: Any = None
        lost: CohortError | SumError | None = None
        while True:
            try:
                step = rounds.send(value) if lost is None else rounds.throw(lost)
            except StopIteration as end:
                return dict(end.value or {})
            value = lost = None
            try:
                value = self._take(step)
            except (CohortError, SumError) as error:
                lost = error
                if isinstance(error, LostState):
                    self._withdraw()
            else:
                if isinstance(step, (Sum, Ask)) and self._counts_exchanges:
                    self._progress(self.log.number, {})

    def _take(self, step: Step) -> Any:
        if isinstance(step, Save):
            return self.log.save(step, self._outcome)
        if isinstance(step, Round):
            return self._tell(step)
        if isinstance(step, Deliver):
            self.deliveries.setdefault(step.receiver, []).append(step)
            return None
        if isinstance(step, Overlapping):
            check = self.program.check_answer
            return Overlap(self.nodes, self.grid, self.timeout, check)
        if isinstance(step, Sum):
            return step.split(
                self._known_or(step.name, lambda: {"total": self._sum(step)})["total"]
            )
        if isinstance(step, Ask) and not isinstance(step.what, str):
            if self.log.replay:  # what was answered before has a name
                self.log.known(step.what)
            self.log.lose()
            return self.ask(step)
        if isinstance(step, Ask):
            return _by_party(self._known_or(step.what, lambda: self._ask_by_name(step)))
        raise ProtocolError(
            f"rounds() yielded {type(step).__name__}, which is no step", code="FK-METHOD-STEP"
        )

    def _known_or(self, name: str, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if self.log.replay:
            return self.log.known(name)
        found = ask()
        self.log.note(name, found)
        return found

    def _tell(self, step: Round) -> None:
        self._counts_exchanges = False
        row = self.tell(step)
        if step.save is not None:
            self.log.save(step.save, self._outcome)
        if step.number and (row or step.arrays is None):
            self._progress(step.number, row)

    def _progress(self, number: int, row: Mapping[str, Any]) -> None:
        if self.show is not None and not self.rules.counts_replies:
            self.show(number, max(self.program.planned, number), row)

    def _withdraw(self) -> None:
        """Close sums on their way to clients, except those to keep."""
        for receiver, waiting in self.deliveries.items():
            self.close(one.sum for one in waiting if not one.keep)
            self.deliveries[receiver] = [one for one in waiting if one.keep]

    # -- sums and questions by the name of a handler

    def _sum(self, step: Sum) -> NDArray[np.float64]:
        if not step.shapes:
            raise ProtocolError(f"the sum {step.name!r} has no shapes", code="FK-METHOD-STEP")
        budget, name, cohort = self.rules.budget, step.full_name, self._sums.membership.cohorts[0]
        parties = {p.partition: p for p in self.nodes.parties.values()}
        rows = [parties[p].test_rows if step.held_out else parties[p].rows for p in cohort.members]
        about: Any = {"least": cohort.threshold, "releases": self.rules.releases}
        spec = step.spec(step.sizes, rows, budget, **about)
        found = self.ask(
            Ask(
                self._request(step.name, step.ask, step.sizes),
                reply=MethodReply,
                sums=[spec],
                until="enough",
                among=self.log.again or None,
            )
        )
        self.log.again = []
        self.nodes.contributors[name] = found.contributors[name]
        if spec.release is None:
            self.nodes.warn_released(name, self.program.unknowns)
        else:
            self.noise.note(spec.release, len(found.contributors[name]))
        return np.asarray(found.totals[name], np.float64)

    def _ask_by_name(self, step: Ask) -> dict[str, Any]:
        assert isinstance(step.what, str)
        name, given = step.what, step.ask
        among = self.nodes.partitions() if step.among is None else list(step.among)
        each = bool(given) and set(given) <= set(among)
        shared = None if each else self._request(name, given)  # type: ignore[arg-type]
        own: Mapping[Any, Any] = given
        requests = {p: shared or self._request(name, own.get(p, {})) for p in among}
        answers = self.ask(replace(step, what=requests, reply=MethodReply))
        found: dict[str, Any] = {}
        for p, reply in answers.replies.items():
            party = self.nodes.called(p)
            told = unpack(reply.plain, reply.given, party=party)[0] if reply.plain else {}
            found |= {f"{p}/": None} | {f"{p}/{key}": value for key, value in told.items()}
        return found

    def _request(
        self, name: str, values: Mapping[str, Any], sizes: Mapping[str, int] | None = None
    ) -> MethodRequest:
        plain, given = pack(values, sizes)
        every = 1 if self.rules.checkpoint else 0
        return MethodRequest(
            session="", round=0, checkpoint_every=every, name=name, plain=plain, given=given
        )

    # -- questions

    def ask(self, step: Ask) -> Answers:
        """Send a request with the method's own messages.

        Raises
        ------
        LostState
            A node has lost the state that the request needs.
        CohortError
            Not all have answered after all attempts.
        """
        self._question = _Question()
        if step.until == "each":
            return self._each(step)
        if step.until == "tried":
            replies = self._exchange(self._requests(step), step, step.running)
            return Answers(replies, failures=self._failed_parties())
        return self._once(step) if step.until == "once" else self._enough(step)

    def _each(self, step: Ask) -> Answers:
        """Send a request; repeat it to nodes that did not answer, until each has."""
        question, requests = self._question, self._requests(step)
        found: dict[int, Any] = {}
        whole: dict[str, RunningSum] = {}
        running: dict[str, RunningSum] = {}
        for attempt in range(self.rules.attempts):
            question.attempt, question.same = 0 if step.ends else attempt, step.ends and attempt > 0
            if question.same:
                for one in running.values():
                    one.repeated = True
            else:
                running = self._order(step, requests, whole)
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
                self.over = step.last or (step.ends and self.nodes.sums is not None)
                return self._opened(step, {p: found[p] for p in requests}, whole)
        if step.least is not None and len(found) >= step.least and not step.sums:
            return Answers({p: found[p] for p in requests if p in found})
        raise self._gave_up(step)

    def _once(self, step: Ask) -> Answers:
        """Send a request once. A sum that cannot be opened releases nothing."""
        nodes, requests = self.nodes, self._requests(step)
        running = self._order(step, requests)
        opened = list(running.values())
        replies = self._exchange(requests, step, opened, final=False)
        phase, failures = next(iter(requests.values())).phase, self._question.failures
        nodes.require(len(replies), self.log.number, phase, failures, step.least)
        try:
            found = self._opened(step, replies, running)
        except SumError as error:
            nodes.spoilers.clear()
            for one in opened:
                nodes.blame(one, error, self.log.number)
            self.close(opened)
            problem = f"{error.problem}{count_failures(failures)}"
            raise SumError(problem, party=error.party, code=error.code) from None
        found.failures.update(self._failed_parties())
        for node, party in nodes.parties.items():
            p = party.partition
            answered = p in replies and node not in failures
            if answered and all(p in one.survivors and p not in one.silent for one in opened):
                nodes.accept(node)
        return found

    def _enough(self, step: Ask) -> Answers:
        """Send a request to all; repeat it with new sums where too few answered.

        A sum that is repeated was not opened, and will never be.
        """
        problem = _MISSING
        replies: dict[int, Any] = {}
        whole: dict[str, RunningSum] = {}
        terms = {term.key: term for term in step.sums}
        for attempt in range(self.rules.attempts):
            there = self.nodes.partitions()
            here = {p: r for p, r in self._requests(step).items() if p in there}
            running = self._order(step, here, whole)
            summed = {p for one in running.values() for p in one.cohort.members}
            summed -= self.program.spent_
            if waiting := {p: r for p, r in here.items() if p in summed}:
                replies |= self._exchange(waiting, step, list(running.values()))
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
        if self.log.again and set(one.uploaded) != set(self.log.again):
            return "those whose sum was being opened when the run broke off did not all answer"
        try:
            one.check_survivors(self.nodes.min_cohort)
        except SumError as error:
            self.nodes.blame(one, error, self.log.number)
            return f"{error.party}: {error.problem}" if error.party else error.problem
        return ""

    # -- one exchange

    def _exchange(
        self,
        requests: Mapping[int, PhaseMessage],
        step: Ask,
        running: Sequence[RunningSum],
        *,
        final: bool = True,
    ) -> dict[int, Any]:
        """Send requests with their sections; return the proper replies by partition.

        Unless ``final``, nodes that answer must still help to open the sums.
        """
        nodes, question = self.nodes, self._question
        self.log.number = self.log.asked = self._next(step)
        phase = next(iter(requests.values())).phase
        if not question.same:
            told = nodes.parties.items() if step.ends and nodes.sums is not None else ()
            question.idle = {node for node, party in told if party.partition not in requests}
        self._outcome = outcome = nodes.ask(
            self.grid,
            self._messages(requests, running, step),
            phase=phase,
            timeout=self.timeout,
            number=self.log.number,
            required=0,
            idle=question.idle,
        )
        question.failures = dict(outcome.failures)
        if final:
            self._stop_at_final(phase)
        forgot = any(why.detail.startswith("StateError") for why in question.failures.values())
        found = self._read(outcome, requests, step, final=final)
        if forgot and final and step.until != "tried":
            self.close(running)
            raise LostState(
                f"a client has forgotten what the question needs: {self._failed()}",
                remedy="give its node a state_dir that stays, and "
                + ("resume from the checkpoint" if nodes.resumable else "start again")
                + (_AGAIN if step.ends else ""),
                phase=phase,
                code="FK-STATE-GONE",
            )
        return found

    def _stop_at_final(self, phase: str) -> None:
        """End the run if a retry is useless, or all nodes report the same bug."""
        nodes, failures = self.nodes, self._question.failures
        for node, failure in failures.items():
            failure.raise_final(phase, nodes.name(node))
        details = [failure.detail for failure in failures.values()]
        if len(details) == len(nodes.active()) and len(set(details)) == 1:
            bug, _ = quoted_code(details[0])  # a client sends only the class of a bug
            if bug.isidentifier():
                problem, code = f"all clients ended in {bug}", "FK-CLIENT-RAISED"
                raise ProtocolError(problem, remedy=_LOGS, phase=phase, code=code)

    def _read(
        self,
        outcome: Outcome,
        requests: Mapping[int, PhaseMessage],
        step: Ask,
        *,
        final: bool,
    ) -> dict[int, Any]:
        nodes, question, reply = self.nodes, self._question, step.reply
        kinds: Mapping[int, Any] = (
            reply if isinstance(reply, Mapping) else dict.fromkeys(requests, reply)
        )
        found = {}
        for message in nodes.in_order(outcome):
            node = message.metadata.src_node_id
            partition = nodes.parties[node].partition
            if node in question.idle:  # it got the final message
                question.idle.discard(node)
                continue
            try:
                about: Any = {"party": nodes.name(node), "of": self.log.number, **step.sizes}
                answer = read_reply(kinds[partition], message, **about)
                self.program.check_answer(partition, answer)
            except ProtocolError as error:
                question.failures[node] = Failure.invalid(error)
                nodes.reject(node, question.failures[node], self.log.number)
                continue
            if final:
                nodes.accept(node)
            self.close(one.sum for one in self.deliveries.pop(partition, ()))
            found[partition] = answer
        return found

    def _messages(
        self, requests: Mapping[int, PhaseMessage], running: Sequence[RunningSum], step: Ask
    ) -> Iterable[Message]:
        sums, number, node_of = self.nodes.sums, self.log.number, self.nodes.node_of()
        packed: dict[tuple[int, ...], tuple[Arrays, ArrayRecord]] = {}
        alike: dict[int, tuple[PhaseMessage, list[int]]] = {}
        for partition, request in requests.items():
            alike.setdefault(id(request), (request, []))[1].append(partition)
        for request, partitions in alike.values():
            sections: dict[int, list[PhaseMessage]] = {}
            for partition in partitions:
                own: list[PhaseMessage] = [
                    one.sum.delivery() for one in self.deliveries.get(partition, ())
                ]
                if sums is not None and not step.last:
                    own += sums.sections(partition, list(running))
                if sums is not None and step.ends:
                    own.append(End())
                sections[node_of[partition]] = own
            arrays = request.arrays()
            key = tuple(map(id, arrays))
            if key not in packed:
                packed[key] = arrays, array_record(arrays)
            yield from request_messages(
                self._addressed(request, number),
                sections,
                group_id=str(number),
                arrays=packed[key][1],
                sections=sections,
            )
        if sums is not None and step.ends:
            bye = FinishRequest(session=self.nodes.session, round=number)
            yield from request_messages(bye, self._question.idle, group_id=str(number))

    def _addressed(self, request: PhaseMessage, number: int) -> PhaseMessage:
        known: dict[str, Any] = {"session": self.nodes.session, "round": number}
        if self._question.attempt:
            known["attempt"] = self._question.attempt
        return request.addressed(**known)

    def _requests(self, step: Ask) -> dict[int, PhaseMessage]:
        if isinstance(step.what, PhaseMessage):
            among = self.nodes.partitions() if step.among is None else step.among
            return dict.fromkeys(among, step.what)
        assert not isinstance(step.what, str)
        return dict(step.what)

    def _next(self, step: Ask) -> int:
        return self.log.number + (not self._question.same) if step.number is None else step.number

    # -- secure sums

    def _order(
        self, step: Ask, requests: Mapping[int, PhaseMessage], without: Iterable[str] = ()
    ) -> dict[str, RunningSum]:
        found = {}
        for term in step.sums:
            if term.key in without:
                continue
            name, members = term.name, self._sums.membership.cohorts[term.cohort].members
            asked = [requests[p] for p in members if p in requests]
            if term.bound and asked:
                name = bind(name, self._addressed(asked[0], self._next(step)))
            found[term.key] = self._sums.order(term, name)
        return found

    def _opened(
        self, step: Ask, replies: dict[int, Any], running: dict[str, RunningSum]
    ) -> Answers:
        masked = [running[term.key] for term in step.sums if term.self_masks]
        if masked:
            self.log.number += step.number is None
            self.log.mark(masked)
            self.nodes.unmask(self.grid, masked, number=self.log.number, timeout=self.timeout)
        bare = [one for one in running.values() if one not in masked]
        if bare:
            self._sums.unmask_sections(bare)
        found = Answers(replies)
        for term in step.sums:
            one = running[term.key]
            found.contributors[term.key] = list(one.survivors)
            if term.receiver == SERVER:
                found.totals[term.key] = self._sums.total(one)
            else:
                found.running[term.key] = one
        return found

    def close(self, sums: Iterable[RunningSum]) -> None:
        for one in sums:
            self._sums.close(one)

    # -- failures

    def _gave_up(self, step: Ask, problem: str = _MISSING) -> CohortError:
        nodes, phase = self.nodes, next(iter(self._requests(step).values())).phase
        failed = self._failed() or "replies without their sums"
        text = f"{problem}, {self.rules.attempts} times in a row: {failed}"
        if step.until == "enough" and nodes.summed and not nodes.keeps:
            return nodes.broken(text, phase)  # which says what another run would show
        again = "resume from the checkpoint" if nodes.resumable else "start again"
        remedy = f"mend it and {again}, with more attempts if it answers at times"
        if step.until != "enough":
            remedy += "; a model of fewer rows is never made"
        return CohortError(text, remedy=step.remedy or remedy, phase=phase, code="FK-PARTIES-LOST")

    def _failed(self) -> str:
        failures = sorted(self._question.failures.items())
        return ", ".join(f"{self.nodes.name(node)} {failure}" for node, failure in failures[:3])

    def _failed_parties(self) -> dict[int, Failure]:
        parties = self.nodes.parties
        return {parties[node].partition: why for node, why in self._question.failures.items()}


def _by_party(flat: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for name, value in flat.items():
        partition, _, key = name.partition("/")
        own = found.setdefault(int(partition), {})
        if key:
            own[key] = value
    return found
