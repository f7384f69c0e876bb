"""The driver of a method's generator: exchanges, retries, sums, deliveries, checkpoints.

Two ideas of asking again are all there are: *each* (whoever did not answer, alone) and *enough*
(the whole exchange anew, with new masks, so that nothing of the first attempt can be opened).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from .errors import CheckpointError, CohortError, ProtocolError, SumError
from .exchange import Failure, Outcome, read_reply, request_messages
from .guard.counting import too_many
from .overlap import Overlap
from .secure_sum import Encoding, RunningSum
from .steps import (
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
    Term,
    sum_bound,
    sum_name,
)
from .strategy import count_failures, logger
from .wire import PhaseMessage
from .wire.method import MethodReply, MethodRequest, pack, unpack
from .wire.sums import bind

if TYPE_CHECKING:
    from .method import Method

Arrays = dict[str, NDArray[Any]]

_LOGS = "their logs say where"
_MISSING = "not all parties answered"


class Run:
    """One run of a method.

    Parameters
    ----------
    method : Method
        Whose generator it is; its parties are there.
    grid : Grid
        Flower's grid.
    timeout : float
        Seconds to wait for the replies of an exchange.

    Attributes
    ----------
    number : int
        Of the exchange at hand; the clients refuse one that they have answered.
    over : bool
        Whether the clients have erased what belongs to the run.
    tell : callable
        Called with each :class:`~fedkern_flwr.steps.Round`.
    """

    def __init__(self, method: Method, grid: Grid, timeout: float) -> None:
        self.method, self.grid, self.timeout = method, grid, timeout
        self.number = 0
        self.over = False
        self._asked = 0  # number of the last exchange that clients keep a state of
        self._attempt = 0  # how often the question at hand has been asked before
        self.tell: Callable[[Round], None] = lambda step: None
        self._counts_exchanges = True  # whether the progress is that of exchanges
        self._deliveries: dict[int, list[Deliver]] = {}
        self._failures: dict[int, Failure] = {}
        self._outcome = Outcome()  # of the exchange at hand
        self._log: list[tuple[str, dict[str, Any]]] | None = []  # results since the last Save
        self._written: tuple[Arrays, dict[str, Any]] = {}, {}  # the last checkpoint
        self._again: list[int] = []  # those whose sum was being opened when the run broke off
        self._warned: set[str] = set()
        self._replay: list[tuple[str, dict[str, Any]]] = []

    # -- the generator

    def drive(self, rounds: Rounds) -> dict[str, Any]:
        """Do what the generator yields until it returns; return its metrics."""
        send: Callable[[], Step] = lambda: next(rounds)  # noqa: E731
        while True:
            try:
                step = send()
            except StopIteration as end:
                return dict(end.value or {})
            try:
                value = self._take(step)
            except LostState as lost:
                for receiver, waiting in self._deliveries.items():
                    self._close(one.sum for one in waiting if not one.keep)
                    self._deliveries[receiver] = [one for one in waiting if one.keep]
                send = _throw(rounds, lost)
                continue
            except (CohortError, SumError) as lost:
                send = _throw(rounds, lost)
                continue
            send = _send(rounds, value)
            self._show(step)

    def _show(self, step: Step) -> None:
        """Call ``on_round`` with each round, or with each exchange of methods that tell of none."""
        method, show = self.method, self.method.on_round
        if method.counts_replies:
            return
        if isinstance(step, Round):
            self._counts_exchanges = False
            row = method.history_[-1] if step.metrics else {}
            if show is not None and step.number and (row or step.arrays is None):
                show(step.number, max(method.planned, step.number), row)
        elif isinstance(step, (Sum, Ask)) and self._counts_exchanges and show is not None:
            show(self.number, max(method.planned, self.number), {})

    def _take(self, step: Step) -> Any:
        if not isinstance(step, Step):
            raise ProtocolError(
                f"rounds() yielded {type(step).__name__}, which is no step",
                remedy="yield Sum, Ask, Deliver, Save or Round",
            )
        if isinstance(step, Save):
            return self._save(step)
        if isinstance(step, Round):
            self.tell(step)
            return None if step.save is None else self._save(step.save)
        if isinstance(step, Deliver):
            self._deliveries.setdefault(step.receiver, []).append(step)
            return None
        if isinstance(step, Overlapping):
            return Overlap(self.method, self.grid, self.timeout)
        name = step.name if isinstance(step, Sum) else step.what
        if self._replay:
            known, value = self._replay.pop(0)
            if known != name:
                raise CheckpointError(
                    "the checkpoint is one of another release of the method",
                    remedy="start the run anew",
                )
            found = step.split(value["total"]) if isinstance(step, Sum) else _by_party(value)
            if self._log is not None:
                self._log.append((known, value))
            return found
        if isinstance(step, Sum):
            total = self._sum(step)
            self._note(step.name, {"total": total})
            return step.split(total)
        if not isinstance(step.what, str):
            self._log = None  # what it answered is not kept: a Save is needed
            return self.ask(step)
        found = self._ask_by_name(step)
        flat = {f"{p}/{key}": value for p, reply in found.items() for key, value in reply.items()}
        self._note(step.what, flat)
        return found

    # -- steps

    def _sum(self, step: Sum) -> NDArray[np.float64]:
        plain, given = pack(step.ask, step.sizes)
        request = self._request(step.name, plain, given)
        most = [p.test_rows if step.held_out else p.rows for p in self.method.parties_.values()]
        bound = sum_bound(step.bound, most if step.per == "row" else [1])
        length = sum(step.sizes.values())
        term = Term(
            name=sum_name(step.name, held_out=step.held_out),
            length=length,
            encoding=Encoding.fixed_point(bound),
        )
        among = self._again or None
        asked = Ask(request, reply=MethodReply, sums=[term], until="enough", among=among)
        found = self._enough(asked)
        self._again = []
        self._warn(term.name)
        return np.asarray(found.totals[term.name], np.float64)

    def _warn(self, name: str) -> None:
        """Warn once of a sum of more numbers than unknowns; in deployments the nodes do."""
        if name in self._warned or not self.method.simulated:
            return
        for entry in self.method.released_sums():
            if entry["name"] == name and entry["numbers"] > entry["unknowns"]:
                self._warned.add(name)
                problem = too_many(entry["numbers"], entry["unknowns"])
                logger.warning("the rows behind the sum %r can be computed: %s", name, problem)

    def _ask_by_name(self, step: Ask) -> dict[int, dict[str, Any]]:
        assert isinstance(step.what, str)
        among = self._partitions() if step.among is None else list(step.among)
        each = set(step.ask) <= set(among) and bool(step.ask)
        requests: dict[int, PhaseMessage] = {}
        shared = None if each else self._request(step.what, *pack(step.ask))  # type: ignore[arg-type]
        for partition in among:
            own = shared or self._request(step.what, *pack(step.ask.get(partition, {})))  # type: ignore[call-overload]
            requests[partition] = own
        answers = self.ask(replace(step, what=requests, reply=MethodReply))
        return {
            p: unpack(reply.plain, reply.given, party=f"partition {p}")[0] if reply.plain else {}
            for p, reply in answers.replies.items()
        }

    def ask(self, step: Ask) -> Answers:
        """Ask with messages of the method's own.

        Raises
        ------
        LostState
            Somebody has forgotten what the question needs.
        CohortError
            Not all have answered in the end.
        """
        self._attempt = 0
        if step.until == "each":
            return self._each(step)
        if step.until == "tried":
            return Answers(self._exchange(self._requests(step), step, step.running))
        return self._once(step) if step.until == "once" else self._enough(step)

    def _each(self, step: Ask) -> Answers:
        found: dict[int, Any] = {}
        whole: dict[str, RunningSum] = {}
        requests = self._requests(step)
        for attempt in range(self.method.attempts):
            self._attempt = attempt
            running = self._order(step, requests, whole)
            summed = {p for one in running.values() for p in one.cohort.members}
            waiting = {p: r for p, r in requests.items() if p not in found or p in summed}
            found = {p: reply for p, reply in found.items() if p not in waiting}
            found |= self._exchange(waiting, step, list(running.values()))
            for key, one in running.items():
                members = set(one.cohort.members)
                if len(one.uploaded) == len(members) and members & set(requests) <= set(found):
                    whole[key] = one
                else:
                    self._sums.close(one)
            if len(found) == len(requests) and len(whole) == len(step.sums):
                self.over = step.last
                return self._opened(step, {p: found[p] for p in requests}, whole)
        if step.least is not None and len(found) >= step.least and not step.sums:
            return Answers({p: found[p] for p in requests if p in found})
        raise self._gave_up(step)

    def _once(self, step: Ask) -> Answers:
        method, requests = self.method, self._requests(step)
        running = self._order(step, requests)
        replies = self._exchange(requests, step, list(running.values()), final=False)
        phase = next(iter(requests.values())).phase
        method.require(len(replies), self.number, phase, self._failures, step.least)
        try:
            found = self._opened(step, replies, running)
        except SumError as error:
            for one in running.values():
                method.blame(one, error, self.number)
            self._close(running.values())
            problem = f"{error.problem}{count_failures(self._failures)}"
            raise SumError(problem, party=error.party) from None
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
            here = {p: r for p, r in self._requests(step).items() if p in self._partitions()}
            running = self._order(step, here, whole)
            summed = {p for one in running.values() for p in one.cohort.members}
            waiting = {p: r for p, r in here.items() if p in summed and p not in method.spent_}
            replies |= self._exchange(waiting, step, list(running.values())) if waiting else {}
            for key, one in running.items():
                found = self._too_few(one) or terms[key].unfit(one.uploaded)
                if found:
                    problem = found
                    logger.warning("%s: %s (attempt %d)", terms[key].name, found, attempt + 1)
                    self._close([one])
                else:
                    whole[key] = one
            if len(whole) == len(step.sums):
                return self._opened(step, replies, whole)
        raise self._gave_up(step, problem)

    def _too_few(self, one: RunningSum) -> str:
        """Return why a sum cannot be opened, if it cannot."""
        if self._again and set(one.uploaded) != set(self._again):
            return "those whose sum was being opened when the run broke off did not all answer"
        try:
            one.check_survivors(self.method.min_cohort)
        except SumError as error:
            self.method.blame(one, error, self.number)
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
        self.number = self._asked = self.number + 1 if step.number is None else step.number
        kinds: Mapping[int, Any] = (
            reply if isinstance(reply, Mapping) else dict.fromkeys(requests, reply)
        )
        phase = next(iter(requests.values())).phase
        outcome = method.run_phase(
            self.grid,
            self._messages(requests, running, step),
            phase=phase,
            timeout=self.timeout,
            number=self.number,
            required=0,
        )
        self._outcome, self._failures = outcome, dict(outcome.failures)
        details = [failure.detail for failure in outcome.failures.values()]
        for failure in outcome.failures.values() if final else ():
            failure.raise_final(phase)
        if final and len(details) == len(method.active_nodes()) and len(set(details)) == 1:
            bug = details[0]  # of its handler a client tells the class of an exception alone
            if bug.isidentifier():
                raise ProtocolError(f"all clients ended in {bug}", remedy=_LOGS, phase=phase)
        found = {}
        for message in method.in_order(outcome):
            node = message.metadata.src_node_id
            partition = method.parties_[node].partition
            try:
                where = method.party(node)
                answer = read_reply(kinds[partition], message, party=where, **step.sizes)
                if answer.round != self.number:
                    raise ProtocolError(f"the reply belongs to exchange {answer.round}")
                method.check_answer(partition, answer)
            except ProtocolError as error:
                self._failures[node] = Failure("invalid reply", error.problem)
                method.reject(node, self._failures[node], self.number)
                continue
            if final:
                method.accept(node)
            self._close(one.sum for one in self._deliveries.pop(partition, ()))
            found[partition] = answer
        lost = any(detail.startswith("StateError") for detail in details)
        if lost and final and step.until != "tried":
            self._close(running)
            raise LostState(
                f"a client has forgotten what the question needs: {self._failed()}",
                remedy="give its node a state_dir that stays",
                phase=phase,
            )
        return found

    def _messages(
        self, requests: Mapping[int, PhaseMessage], running: Sequence[RunningSum], step: Ask
    ) -> Iterable[Message]:
        """Return the messages; a request that several are asked is packed once."""
        method = self.method
        node_of = {party.partition: node for node, party in method.parties_.items()}
        alike: dict[int, tuple[PhaseMessage, list[int]]] = {}
        for partition, request in requests.items():
            alike.setdefault(id(request), (request, []))[1].append(partition)
        for request, partitions in alike.values():
            sections: dict[int, list[PhaseMessage]] = {}
            for partition in partitions:
                own: list[PhaseMessage] = [
                    one.sum.delivery() for one in self._deliveries.get(partition, ())
                ]
                if method.sums is not None and not step.last:
                    own += method.sums.sections(partition, list(running))
                sections[node_of[partition]] = own
            yield from request_messages(
                self._addressed(request, self.number),
                sections,
                group_id=str(self.number),
                sections=sections,
            )

    def _addressed(self, request: PhaseMessage, number: int) -> PhaseMessage:
        """Fill in what only the run knows."""
        known: dict[str, Any] = {"session": self.method.session, "round": number}
        if self._attempt:
            known["attempt"] = self._attempt
        names = {field.name for field in fields(request)}
        return replace(request, **{k: v for k, v in known.items() if k in names})

    def _requests(self, step: Ask) -> dict[int, PhaseMessage]:
        if isinstance(step.what, PhaseMessage):
            among = self._partitions() if step.among is None else step.among
            return dict.fromkeys(among, step.what)
        assert not isinstance(step.what, str)
        return dict(step.what)

    def _request(self, name: str, plain: bytes, given: tuple[NDArray[Any], ...]) -> MethodRequest:
        every = 1 if self.method.checkpoint else 0
        return MethodRequest(
            session="", round=0, checkpoint_every=every, name=name, plain=plain, given=given
        )

    def _partitions(self) -> list[int]:
        method = self.method
        return [method.parties_[node].partition for node in method.active_nodes()]

    # -- sums

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
        number = self.number + 1 if step.number is None else step.number
        return bind(term.name, self._addressed(asked[0], number)) if asked else term.name

    def _opened(
        self, step: Ask, replies: dict[int, Any], running: dict[str, RunningSum]
    ) -> Answers:
        """Open what is the server's; keep what is to be delivered."""
        masked = [running[term.key] for term in step.sums if term.self_masks]
        if masked:
            self.number += step.number is None
            self._mark(masked)
            self.method.unmask(self.grid, masked, number=self.number, timeout=self.timeout)
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

    def _close(self, sums: Iterable[RunningSum]) -> None:
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
        return CohortError(text, remedy=step.remedy or remedy, phase=phase)

    def _failed(self) -> str:
        """Return the first who did not answer, and why."""
        who = [
            f"partition {self.method.parties_[node].partition} {failure}"
            for node, failure in sorted(self._failures.items())
        ]
        return ", ".join(who[:3])

    # -- checkpoints

    def take_up(self, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        """Go on from a checkpoint.

        Raises
        ------
        CheckpointError
            The run broke off while a sum was opened: asked again, with other survivors, the
            difference of the two sums would be that of single clients.
        """
        method = self.method
        if method.confirmed:
            self.number, method.saved_, method.saved_meta_ = meta["round"], dict(arrays), dict(meta)
            if method.sums is not None:
                method.sums.go_on(meta["sums"])
            return
        opening, parties = meta.get("opening") or {}, method.parties_.values()
        opened = max((party.opened for party in parties), default=0)
        if method.opens_once:
            method.spent_ = {p.partition for p in parties if p.answered > int(meta["number"])}
            opened = 0
        self._again = list(opening.get("among", ()))
        known = opening["asked"] if self._again else int(meta["round"])
        if (opened > known and not method.reopens) or meta["log"] is None:
            raise CheckpointError(
                "the run broke off while a sum was being opened, and it may not be summed again",
                remedy="start anew, with all of the clients",
            )
        answered = max((party.answered for party in parties), default=0)
        self.number, self._asked = max(int(meta["number"]), answered), int(meta["round"])
        method.saved_ = {k[2:]: v for k, v in arrays.items() if k.startswith("s/")}
        method.saved_meta_, method.kept_ = dict(meta["saved"]), meta["kept"]
        self._replay = [
            (
                name,
                {
                    key: arrays[f"l/{i}/{key}"] if key in named else plain[key]
                    for key in (*named, *plain)
                },
            )
            for i, (name, named, plain) in enumerate(meta["log"])
        ]
        if method.sums is not None and meta["sums"]:
            method.sums.go_on(meta["sums"])

    def _note(self, name: str, value: dict[str, Any]) -> None:
        if self._log is not None:
            self._log.append((name, value))
            self._write()

    def _save(self, step: Save) -> None:
        method = self.method
        if method.confirmed:
            last = self._asked >= method.planned
            sums = {} if method.sums is None else {"sums": method.sums.progress()}
            method.keep(self._asked, dict(step.arrays), {**step.meta, **sums}, last=last)
            method.confirm(self._outcome)
            return
        method.saved_, method.saved_meta_ = dict(step.arrays), dict(step.meta)
        method.kept_ = step.kept
        self._log = []
        self._write()

    def _write(self) -> None:
        """Write all of it anew: at any moment there is one whole checkpoint, and none torn.

        Ledger, history and masks change with every entry of the log too. A method whose log grows
        long yields ``Save``, which begins it anew.
        """
        method = self.method
        if method.checkpoint is None or self._log is None or self._replay:
            return
        arrays: Arrays = {f"s/{name}": value for name, value in method.saved_.items()}
        log = []
        for i, (name, value) in enumerate(self._log):
            own = {k: v for k, v in value.items() if isinstance(v, np.ndarray)}
            arrays |= {f"l/{i}/{key}": array for key, array in own.items()}
            log.append([name, [*own], {k: v for k, v in value.items() if k not in own}])
        sums = method.sums.progress() if method.sums is not None else {}
        meta = {
            "log": log,
            "saved": method.saved_meta_,
            "kept": method.kept_,
            "sums": sums,
            "number": self.number,
        }
        self._written = arrays, {"round": self._asked, **meta}
        method.write_checkpoint(self._asked, arrays, meta)

    def _mark(self, sums: Sequence[RunningSum]) -> None:
        """Note in the checkpoint whose sums are about to be opened: they may not be over others."""
        method = self.method
        if method.checkpoint is None or method.confirmed or method.opens_once:
            return
        arrays, meta = self._written
        if not meta:
            meta = {"round": 0, "log": [], "saved": {}, "kept": None, "sums": {}, "number": 0}
        among = sorted({p for one in sums for p in one.uploaded})
        marked = {**meta, "opening": {"among": among, "asked": self._asked}}
        if self._log is None or len(sums) > 1:  # it cannot be asked again as it was
            marked["log"] = None
        method.write_checkpoint(int(meta["round"]) or self._asked, arrays, marked)


def _send(rounds: Rounds, value: Any) -> Callable[[], Step]:
    return lambda: rounds.send(value)


def _throw(rounds: Rounds, error: Exception) -> Callable[[], Step]:
    return lambda: rounds.throw(error)


def _by_party(flat: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for name, value in flat.items():
        partition, _, key = name.partition("/")
        found.setdefault(int(partition), {})[key] = value
    return found
