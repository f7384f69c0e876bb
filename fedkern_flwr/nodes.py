"""Manage the nodes of one run at the server.

:class:`Nodes` knows which nodes there are and which answer, and opens sums with their keys, shares
and votes; :mod:`fedkern_flwr.run` sends a method's requests through it. An :class:`Overlap` sends
messages while others are under way, for methods with parties that do not wait.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from .errors import CheckpointError, CohortError, ProtocolError, RefusedError, SumError, quoted_code
from .exchange import Answers
from .failure import Failure, count_failures
from .flower_compat import is_simulated
from .guard import counting
from .options import Declared, at_least
from .secure_sum import RunningSum, SecureSum
from .secure_sum.crypto import KEY_BYTES
from .secure_sum.identity import Counts
from .transport import (
    FAREWELL,
    REPLY,
    Courier,
    Outcome,
    exchange,
    pause,
    read_reply,
    request_messages,
    take_sections,
)
from .watch import Ledger, Watch
from .wire import PhaseMessage
from .wire import sums as sum_wire
from .wire.describe import (
    DescribeReply,
    DescribeRequest,
    called,
    check_node,
    check_parties,
    check_refusal,
    other_releases,
    release_of,
)
from .wire.message import array_record

logger = logging.getLogger("fedkern_flwr")

#: Seconds for which nodes are awaited by default.
NODE_TIMEOUT = 120.0
Arrays = dict[str, NDArray[Any]]
_PATIENCE = Declared(NODE_TIMEOUT, above=0.0, name="node_timeout", type=float)
_FOLLOW_UPS = 3  # exchanges after the first that may be spent on unmasking a sum
_FIRST, _SIMULATED = 0.002, 0.01  # seconds between two looks of an Overlap in a simulation
_DESCRIBE = "describe"
_REFUSED = "RefusedError: "
#: What a node says of itself, by its name or without one; before it knows its partition it only
#: refuses an app.
_SAID = r"\w+Error: (.{0,42}?partition \d+\)?)(?:, phase \w+)?: (.+)"
_OWN = re.compile(rf"{_SAID}|RefusedError: (the app .+)")


class Nodes:
    """The nodes of one run: descriptions, failures, and sums over them.

    The parameters are those of :class:`~fedkern_flwr.method.Method`.

    Attributes
    ----------
    session : str
        Random name of the run.
    parties : dict
        Node id -> its description, by partition.
    left_out : list of int
        Partitions excluded for missing too many rounds.
    ledger : Ledger
        Exchanges, bytes, seconds and failures.
    failures : dict
        Phase -> node id -> why it did not answer the last request of that phase.
    sums : SecureSum or None
        The secure sums of the run.
    contributors : dict
        Name of a sum -> partitions over which it was opened last.
    spoilers : set of int
        Partitions with wrong masks in the last sum that could not be opened.
    listener : callable or None
        Called with (node, reply) on arrival, before sections of secure sums are removed. A
        FedKernError that it raises makes the reply invalid.
    keeps, resumable : bool
        Whether the run should keep a checkpoint, and whether there is one.
    """

    def __init__(
        self,
        method: str,
        *,
        min_clients: int = 1,
        max_missed: int = 10,
        node_timeout: float = NODE_TIMEOUT,
        min_cohort: int = 2,
    ) -> None:
        at_least("min_clients", min_clients, 1)
        at_least("max_missed", max_missed, 1)
        at_least("min_cohort", min_cohort, 2)
        self.method, self.min_clients, self.max_missed = method, min_clients, max_missed
        self.node_timeout, self.min_cohort = _PATIENCE.check(node_timeout), min_cohort
        self.session = secrets.token_hex(8)
        self.parties: dict[int, Any] = {}
        self.left_out: list[int] = []
        self.ledger = Ledger()
        self.failures: dict[str, dict[int, Failure]] = {}
        self.sums: SecureSum | None = None
        self.watch: Watch | None = None
        self.listener: Callable[[int, Message], None] | None = None
        self.keeps = self.resumable = False
        self.contributors: dict[str, list[int]] = {}
        self.spoilers: set[int] = set()
        self._nonces: dict[str, str] = {}  # of a run that is resumed
        self._missed: dict[int, int] = {}
        self._last_missed: dict[int, int] = {}
        self._warned: set[str] = set()

    # -- the beginning of a run

    def gather(
        self,
        grid: Grid,
        *,
        reply: type[DescribeReply] = DescribeReply,
        check: Callable[[Sequence[Any]], None] = check_parties,
        figures: str | Path | None = None,
        **request: Any,
    ) -> None:
        """Wait for the nodes and request their descriptions.

        The nodes' ``num-partitions`` is their expected number. A node that fails here fails the
        run. Releases with the same protocol work together; a warning names those that differ.

        Raises
        ------
        CohortError
            Nodes are missing after ``node_timeout`` seconds, or partition ids clash.
        ProtocolError
            A node's table or its reply does not fit.
        CheckpointError
            A node has lost its state of the run to resume.
        """
        if not is_simulated(grid):
            path = Path(figures) if figures else None
            self.watch = Watch(self.node_timeout, self.name, self.ledger, path)
        asked = DescribeRequest(
            session=self.session,
            method=self.method,
            nonces=json.dumps(self._nonces) if self._nonces else "",
            **{"resume_round": 0, "secure": False, "order_seed": -1, "privacy": "", **request},
        )
        deadline = time.monotonic() + self.node_timeout
        releases: dict[int, str] = {}
        expected = max(1, self.min_clients)
        while True:
            fresh = sorted(set(grid.get_node_ids()) - set(self.parties))
            if len(fresh) + len(self.parties) >= expected and fresh:
                remaining = max(1.0, deadline - time.monotonic())
                for node, party, release in self._describe(grid, asked, fresh, reply, remaining):
                    self.parties[node] = party
                    releases[party.partition] = release
                expected = max(expected, *(p.partitions for p in self.parties.values()))
            if len(self.parties) >= expected:
                break
            if time.monotonic() > deadline:
                if self.parties:
                    check(list(self.parties.values()))
                there, seconds = len(fresh) + len(self.parties), f"{self.node_timeout:g} s"
                raise CohortError(
                    f"{there} of {expected} nodes connected within {seconds}",
                    phase=_DESCRIBE,
                    code="FK-PARTIES-AWAITED",
                )
            say = logger.info if self.watch is None else self.watch.say
            say(f"waiting for nodes: {len(self.parties)} of {expected}")
            time.sleep(0.2)
        ordered = sorted((party.partition, node) for node, party in self.parties.items())
        self.parties = {node: self.parties[node] for _, node in ordered}
        check(list(self.parties.values()))
        if differing := other_releases(releases):
            logger.warning(differing)
        self._nonces = {str(p.partition): p.nonce for p in self.parties.values()}
        for party in self.parties.values():
            if not party.restored and party.partition not in self.left_out:
                raise CheckpointError(
                    f"no private state saved for round {asked.resume_round}",
                    remedy="give the client the state_dir of the run that broke off",
                    party=party.called,
                    phase=_DESCRIBE,
                    code="FK-STATE-GONE",
                )

    def _describe(
        self,
        grid: Grid,
        asked: DescribeRequest,
        nodes: Sequence[int],
        reply: type[DescribeReply],
        timeout: float,
    ) -> Iterable[tuple[int, DescribeReply, str]]:
        messages = request_messages(asked, nodes, group_id=_DESCRIBE)
        ledger, watch = self.ledger, self.watch
        outcome = exchange(
            grid, messages, phase=_DESCRIBE, timeout=timeout, ledger=ledger, watch=watch
        )
        _refuse_failures(outcome.failures)
        for node, message in outcome.replies.items():
            party = f"node {node}"
            told: Any = message.content.get(REPLY, {})
            check_node(told, party=party)
            try:
                found = read_reply(reply, message, party=party)
            except ProtocolError as error:  # of the same protocol
                raise ProtocolError(
                    f"it serves no client of {self.method}: {error.problem}",
                    party=party,
                    phase=_DESCRIBE,
                    code="FK-NODE-METHOD",
                ) from None
            if asked.secure and len(found.public_key) != KEY_BYTES:
                raise ProtocolError(
                    "it sent no key for secure sums",
                    party=found.called,
                    phase=_DESCRIBE,
                    code="FK-NODE-FOREIGN",
                )
            yield node, found, release_of(told)

    def begin_sums(
        self,
        cohorts: Sequence[Sequence[int]] | None = None,
        thresholds: Sequence[int | None] = (None,),
        *,
        allow_single: bool = False,
        relays_only: bool = False,
    ) -> None:
        """Prepare secure sums over cohorts. Default: one of all parties.

        With ``relays_only`` nothing is summed: the keys only encrypt messages between clients.
        """
        parties = self.parties.values()
        self.sums = SecureSum(
            self.session,
            {p.partition: (p.public_key, p.signature) for p in parties},
            cohorts=cohorts,
            threshold=thresholds,
            min_cohort=self.min_cohort,
            allow_single=allow_single,
            relays_only=relays_only,
            counts={p.partition: Counts(p.rows, p.test_rows, p.bits) for p in parties},
        )

    # -- who they are

    def active(self) -> list[int]:
        """Return the ids of nodes that take part, by partition."""
        left_out = set(self.left_out)
        return [node for node, party in self.parties.items() if party.partition not in left_out]

    def partitions(self) -> list[int]:
        """Return the partitions that take part."""
        return [self.parties[node].partition for node in self.active()]

    def node_of(self) -> dict[int, int]:
        return {party.partition: node for node, party in self.parties.items()}

    def name(self, node: int) -> str:
        """Return a node's name in messages, such as ``north (partition 0)``."""
        known = self.parties.get(node)
        return f"node {node}" if known is None else str(known.called)

    def called(self, partition: int) -> str:
        names = {party.partition: party.called for party in self.parties.values()}
        return str(names.get(partition, called(partition)))

    # -- one exchange

    def ask(
        self,
        grid: Grid,
        messages: Iterable[Message],
        *,
        phase: str,
        timeout: float,
        number: int,
        required: int | None = None,
        enough: Callable[[], bool] | None = None,
        idle: Iterable[int] = (),
        awaits: bool = True,
    ) -> Outcome:
        """Send messages and wait for the replies; count failures, exclude nodes with too many.

        Sections of secure sums are removed from the replies as they arrive. ``number`` is the
        round, by which misses are counted; at least ``required`` nodes (default: ``min_clients``)
        must answer. For the rest see :func:`fedkern_flwr.transport.exchange`.

        Raises
        ------
        CohortError
            Too few answered.
        RefusedError
            A node refuses a request before anything was summed.
        """
        outcome = exchange(
            grid,
            list(messages),
            phase=phase,
            timeout=timeout,
            ledger=self.ledger,
            on_reply=self.on_reply,
            enough=enough,
            idle=idle,
            watch=self.watch,
            awaits=awaits,
        )
        self.failures[phase] = outcome.failures
        for node, failure in sorted(outcome.failures.items()):
            self.reject(node, failure, number)
            if failure.detail.startswith(_REFUSED) and not self.summed:
                told = failure.detail.removeprefix(_REFUSED)
                raise RefusedError(told, phase=phase, code="")  # that of the node
            if not outcome.replies:
                failure.raise_foreign(self.method, phase)
        self.require(len(outcome.replies), number, phase, outcome.failures, required)
        return outcome

    def on_reply(self, node: int, message: Message) -> None:
        """Remove the sections of secure sums from a reply as it arrives."""
        if self.listener is not None:
            self.listener(node, message)
        if self.sums is not None:
            partition = self.parties[node].partition
            self.sums.take(partition, take_sections(message, party=self.name(node)))

    def in_order(self, outcome: Outcome) -> list[Message]:
        return [outcome.replies[node] for node in self.parties if node in outcome.replies]

    def accept(self, node: int) -> None:
        self._missed[self.parties[node].partition] = 0

    def reject(self, node: int, failure: Failure, number: int) -> None:
        """Count a missing or invalid answer of a client."""
        partition = self.parties[node].partition
        self.ledger.add_failure(partition, str(failure))
        once = self._last_missed.get(partition) != number  # a round may have several exchanges
        missed = self._missed.get(partition, 0) + once
        self._missed[partition], self._last_missed[partition] = missed, number
        logger.info("%s, round %d: %s", self.name(node), number, failure)
        if missed >= self.max_missed and partition not in self.left_out:
            self.left_out.append(partition)
            logger.warning("%s is left out after %d rounds", self.name(node), missed)

    def forgive(self) -> None:
        """Forget missed rounds, and exclude nobody."""
        self._missed.clear()
        self.left_out.clear()

    def require(
        self,
        answers: int,
        number: int,
        phase: str,
        failures: Mapping[int, Failure] | None = None,
        required: int | None = None,
    ) -> None:
        """Stop the run if fewer than ``required`` (``min_clients``) answered properly."""
        least = self.min_clients if required is None else required
        if answers < least:
            raise self.broken(
                f"{answers} of {len(self.parties)} clients answered round {number}, at least "
                f"{least} must{count_failures(failures)}",
                phase,
            )

    def broken(self, problem: str, phase: str) -> CohortError:
        """Return the error of a run with too few clients."""
        remedy = "mend the clients and start again"
        if self.resumable:
            remedy = "mend the clients and resume from the checkpoint"
        elif self.summed and not self.keeps:
            remedy += (
                " with all of them: two runs over the same rows that differ in their clients show "
                "single ones; a checkpoint avoids that"
            )
        return CohortError(problem, remedy=remedy, phase=phase, code="FK-PARTIES-LOST")

    # -- secure sums

    @property
    def summed(self) -> bool:
        """Whether a secure sum of this run has been opened."""
        return self.sums is not None and self.sums.contributors > 0

    def sections(self, sums: Sequence[RunningSum]) -> dict[int, list[PhaseMessage]]:
        """Return node -> the sections of a request to contribute to ``sums``."""
        parties = self.parties
        return {n: self._known.sections(parties[n].partition, sums) for n in self.active()}

    def unmask(
        self, grid: Grid, sums: Sequence[RunningSum], *, number: int, timeout: float
    ) -> None:
        """Open sums: one exchange, more if survivors vote or drop out.

        Raises
        ------
        SumError
            A sum has too few survivors or votes, or cannot be opened. Nothing is released.
        """
        known = self._known
        about: dict[str, Any] = {"session": self.session, "round": number}
        if ballots := known.ballot_sections(sums):  # where identities are pinned and it is needed
            request = sum_wire.VoteRequest(**about)
            self._ask_about(grid, request, ballots, timeout, partial(_voted, sums))
        complete = partial(_complete, sums)
        if asked := known.unmask_sections(sums):  # none without self masks
            self._ask_about(grid, sum_wire.UnmaskRequest(**about), asked, timeout, complete)
        for attempt in range(1, _FOLLOW_UPS + 1):
            missing = known.recover_sections(sums)
            if not missing:
                break
            again = sum_wire.RecoverRequest(**about, attempt=attempt)
            self._ask_about(grid, again, missing, timeout, complete)
        for running in sums:
            running.open()
            for forger in running.forgers:
                logger.warning("partition %d revealed a forged share", forger)
                self.ledger.add_failure(forger, "forged share")

    def _ask_about(
        self,
        grid: Grid,
        request: sum_wire.SumRequest,
        sections: Mapping[int, list[PhaseMessage]],
        timeout: float,
        enough: Callable[[], bool],
    ) -> None:
        nodes = self.node_of()
        by_node = {nodes[p]: own for p, own in sections.items() if p in nodes}
        number = request.round
        messages = request_messages(request, by_node, group_id=str(number), sections=by_node)
        about: dict[str, Any] = {"phase": request.phase, "timeout": timeout, "number": number}
        self.ask(grid, messages, required=0, enough=enough, **about)

    def blame(self, running: RunningSum, error: SumError, number: int) -> None:
        """Count an aborted sum against the parties with wrong masks."""
        self.spoilers |= set(running.suspects)
        for node, party in self.parties.items():
            if party.partition in running.suspects:
                self.reject(node, Failure.invalid(error), number)

    def finish(self, grid: Grid, *, number: int, timeout: float, goes_on: bool = False) -> None:
        """Let all clients erase the run; wait at most a minute."""
        kind = sum_wire.BreakRequest if goes_on else sum_wire.FinishRequest
        request = kind(session=self.session, round=number)
        messages = request_messages(request, self.parties, group_id="finish")
        about: dict[str, Any] = {"phase": request.phase, "number": number, "required": 0}
        self.ask(grid, messages, timeout=min(timeout, FAREWELL), awaits=False, **about)

    def check_count(self, problem: str) -> None:
        """Stop, or warn, if a sum would break a node's release limit."""
        strictest = {party.counting for party in self.parties.values()}
        if problem and "refuse" in strictest:
            raise counting.small_sum(problem)
        if problem and "warn" in strictest:
            logger.warning("the rows behind a sum can be computed: %s", problem)

    def note_untold(self) -> None:
        """Warn that nodes withhold figures of held-out rows."""
        if any(party.test_rows for party in self.parties.values()):
            logger.warning("nodes keep figures of held-out rows to themselves, by their policies")

    def unknowns(self, name: str, cohort: int = 0, *, labels: int = 1) -> float:
        """Return the unknowns in a sum: cells of its rows, with ``labels`` more columns."""
        held_out = name.startswith(counting.OF_HELD_OUT)
        cells = {
            p.partition: ((held_out and p.test_rows) or p.rows) * (p.features + labels)
            for p in self.parties.values()
        }
        return counting.hidden_rows(cells, self._known.membership.cohorts[cohort].members)

    def warn_released(self, name: str, unknowns: Callable[[str, int], float]) -> None:
        """Warn once about a sum with more numbers than unknowns; in deployments the nodes do."""
        if name in self._warned or self.watch is not None:
            return
        for entry in self.released(unknowns):
            if entry["name"] == name and entry["numbers"] > entry["unknowns"]:
                self._warned.add(name)
                problem = counting.too_many(entry["numbers"], entry["unknowns"])
                logger.warning("the rows behind the sum %r can be computed: %s", name, problem)

    def released(self, unknowns: Callable[[str, int], float]) -> list[dict[str, Any]]:
        """Return numbers and unknowns of all sums that the server opened, by name.

        Sums of one name over the same cohort count together. Of several cohorts, the one with the
        most numbers per unknown is reported. ``unknowns`` maps (name, cohort) to the unknowns of
        the sum.
        """
        worst: dict[str, tuple[float, dict[str, Any]]] = {}
        for (full, cohort), numbers in (self.sums.released if self.sums else {}).items():
            name = full.partition("#")[0]
            if name.startswith(counting.OF_NO_ROWS):
                continue
            hidden = unknowns(name, cohort)
            ratio = numbers / max(hidden, 1)
            if ratio > worst.get(name, (-1.0, {}))[0]:
                worst[name] = ratio, counting.released(name, numbers, hidden)
        return [entry for _, entry in worst.values()]

    def privacy(self, *, whole_cohorts: bool = False) -> dict[str, Any]:
        """Return the parameters of the secure sums; with ``whole_cohorts`` all lack self masks."""
        out: dict[str, Any] = {"protocol": "secure sums", "min_cohort": self.min_cohort}
        out["everybody_sees"] = [
            "who takes part in which sums, with how many rows and held-out rows, its public key, "
            "and bits of a row: 64 for a column, 1 for one of two values"
        ]
        if self.sums is not None:
            out["cohorts"] = [
                {
                    "parties": len(cohort.members),
                    "threshold": len(cohort.members) if whole_cohorts else cohort.threshold,
                    "masks_per_party": len(cohort.neighbours[cohort.members[0]]),
                    **({} if whole_cohorts else {"shares_to_open": cohort.share_threshold}),
                }
                for cohort in self.sums.membership.cohorts
            ]
        return out

    @property
    def _known(self) -> SecureSum:
        assert self.sums is not None
        return self.sums

    # -- checkpoints

    def progress(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return {
            "session": self.session,
            "nonces": self._nonces,
            "ledger": self.ledger.to_dict(),
            "missed": {str(k): v for k, v in self._missed.items()},
            "left_out": list(self.left_out),
        }

    def go_on(self, progress: Mapping[str, Any]) -> None:
        """Restore an interrupted run, before the nodes are collected."""
        self.resumable = True
        self.session, self._nonces = progress["session"], progress.get("nonces", {})
        self.ledger = Ledger.from_dict(progress["ledger"])
        self._missed = {int(k): v for k, v in progress["missed"].items()}
        self.left_out = progress["left_out"]


def _complete(sums: Sequence[RunningSum]) -> bool:
    return all(running.complete for running in sums)


def _voted(sums: Sequence[RunningSum]) -> bool:
    return not any(running.votes_missing for running in sums)


def _refuse_failures(failures: Mapping[int, Failure]) -> None:
    """Raise the first failure, with the node's text if it is a FedKernError."""
    if not failures:
        return
    node, failure = next(iter(sorted(failures.items())))
    more = f" ({len(failures)} nodes in all)" if len(failures) > 1 else ""
    found = _OWN.match(failure.detail)
    if failure.kind == "raised" and found is not None:
        problem, code = quoted_code(found[2] or found[3])
        party = found[1] or f"node {node}"
        told = problem + more  # with its remedy
        raise RefusedError(told, remedy="", party=party, phase=_DESCRIBE, code=code)
    for node, failure in sorted(failures.items()):
        check_refusal(failure.detail, party=f"node {node}")
    problem, code = quoted_code(str(failure))
    code = code or "FK-NODE-FAILED"
    remedy = "read that node's log: its table, its options or its release do not fit"
    if failure.kind == "unreachable":
        remedy = "start its SuperNode again, then the run; its node id is in `flwr supernode ls`"
        code = "FK-NODE-UNREACHABLE"
    elif failure.kind == "timed out":
        code = "FK-NODE-SLOW"
        remedy = (
            "allow more time if it reads a large table (node_timeout), else start its SuperNode "
            "again; its node id is in `flwr supernode ls`"
        )
    raise ProtocolError(
        f"{problem}{more}",
        remedy=remedy,
        party=f"node {node}",
        phase=_DESCRIBE,
        code=code,
    )


# -- messages that overlap


class Overlap:
    """Manage overlapping messages of a run.

    Uploads to sums are removed from the replies as they arrive. The method decides about
    repetitions and time-outs. A party has one message at a time. ``check`` refuses a reply that is
    well-formed but wrong.
    """

    def __init__(
        self,
        nodes: Nodes,
        grid: Grid,
        timeout: float,
        check: Callable[[int, Any], None],
    ) -> None:
        self.nodes, self.grid, self.timeout, self.check = nodes, grid, timeout, check
        self._courier = Courier(grid, nodes.ledger, nodes.on_reply, nodes.watch)
        self._outcome, self._asked = Outcome(), dict[int, tuple[type[Any], int]]()
        self._node, self._simulated = nodes.node_of(), nodes.watch is None
        self._sent, self._pause = time.monotonic(), _FIRST
        self._phase = ""

    @property
    def deadline(self) -> float:
        """When a message sent now times out."""
        return time.monotonic() + self.timeout

    def waiting(self, partitions: Iterable[int]) -> list[int]:
        """Return the parties among these that owe a reply."""
        there = {self.nodes.parties[node].partition for node in self._courier.waiting}
        return [p for p in partitions if p in there]

    def send(
        self,
        requests: Mapping[int, Any],
        replies: Mapping[int, type[Any]],
        sums: Sequence[RunningSum],
        deliveries: Mapping[int, RunningSum],
        *,
        number: int,
    ) -> None:
        """Send requests to partitions, as one exchange; shared arrays are packed once.

        ``replies`` has the class of each reply. The parties contribute to ``sums``; ``deliveries``
        maps partitions to sums that they receive.
        """
        messages, packed = list[Message](), dict[Any, ArrayRecord]()
        sums_of = self.nodes.sums
        assert sums_of is not None
        for partition, request in requests.items():
            arrays, node = request.arrays(), self._node[partition]
            key = tuple(map(id, arrays))
            if key not in packed:
                packed[key] = array_record(arrays)
            own = [deliveries[partition].delivery()] if partition in deliveries else []
            messages += request_messages(
                request.addressed(session=self.nodes.session),
                [node],
                group_id=str(number),
                arrays=packed[key],
                sections={node: [*own, *sums_of.sections(partition, sums)]},
            )
            self._asked[node] = replies[partition], request.round
        self._phase = next(iter(requests.values())).phase
        self._outcome.failures.update(self._courier.send(messages, phase=self._phase))
        self._sent, self._pause = time.monotonic(), _FIRST

    def arrived(self, number: int) -> Answers:
        """Read what has arrived, or wait briefly; return proper replies and failures.

        Raises
        ------
        ProtocolError
            A retry is useless.
        """
        began, nodes = time.monotonic(), self.nodes
        if self._courier.collect(self._outcome) or not self._courier.waiting:
            self._pause = _FIRST
        elif self._simulated:
            time.sleep(self._pause)
            self._pause = min(1.5 * self._pause, _SIMULATED)
        else:
            time.sleep(pause(began - self._sent))
        nodes.ledger.seconds += time.monotonic() - began
        outcome, self._outcome = self._outcome, Outcome()
        if nodes.watch is not None and self._courier.waiting:
            # They overlap: no line says that one is over.
            about = self._phase, began - self._sent, outcome
            nodes.watch.waits(*about, self._courier.waiting, self._courier.away)
        found, failed = dict[int, Any](), dict(outcome.failures)
        for node, message in outcome.replies.items():
            (kind, asked), partition = self._asked[node], self.nodes.parties[node].partition
            try:
                reply = read_reply(kind, message, party=nodes.name(node), of=asked)
                self.check(partition, reply)
            except ProtocolError as error:
                failed[node] = Failure.invalid(error)
                continue
            nodes.accept(node)
            found[partition] = reply
        for node, failure in failed.items():
            nodes.reject(node, failure, number)
            failure.raise_final(self._asked[node][0].phase, nodes.name(node))
        of = nodes.parties
        return Answers(found, failures={of[n].partition: why for n, why in failed.items()})

    def give_up(self, partitions: Iterable[int], number: int) -> dict[int, Failure]:
        """Time out parties that have not answered; return these failures."""
        late = self.waiting(partitions)
        failed = dict.fromkeys(late, Failure("timed out", f"after {self.timeout:g} s"))
        for partition, failure in failed.items():
            self.nodes.reject(self._node[partition], failure, number)
        self.forget(late)
        return failed

    def forget(self, partitions: Iterable[int]) -> None:
        self._courier.forget(self._node[p] for p in partitions)

    def unmask(self, running: RunningSum, number: int) -> None:
        self.nodes.unmask(self.grid, [running], number=number, timeout=self.timeout)
