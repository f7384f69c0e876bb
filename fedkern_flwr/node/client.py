"""Define the base class of all clients, which answers messages.

For each message the client loads the run's *state*, from Flower's context or the node's disk. The
*guard* (:mod:`.guarded`) decides whether to answer. *Sections* of secure sums are read
(:mod:`.sums`). The *handler* marked with the message's class answers. The release is entered in the
node's ledger before the reply is sent.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from numpy.typing import NDArray

from ..checkpoint import run_folder, write_atomically
from ..errors import (
    REFUSED,
    FedKernError,
    ProtocolError,
    RefusedError,
    SumError,
    TableError,
)
from ..failure import NoReplyError, conceal, mark_error, reported, unwritable
from ..flower_compat import Client as FlowerClient
from ..flower_compat import NumPyClient
from ..guard import counting, refusal
from ..guard.policy import check_own_rows, check_run
from ..secure_sum import Party, PartyState
from ..secure_sum.identity import Counts, read_identity, read_trusted
from ..secure_sum.membership import asked
from ..wire import DescribeReply, DescribeRequest, PhaseMessage, Scalar
from ..wire import sums as sum_wire
from ..wire.describe import check_server
from ..wire.message import Section, attach, detach
from .guarded import GuardedNode
from .state import (
    Answered,
    KeptState,
    NotKeptError,
    SessionState,
    erase_state,
    forget_answer,
    forget_last,
    has_state,
    keep_answer,
    kept_answer,
    load_state,
    on_disk,
    store_state,
)
from .sums import ClientSums

logger = logging.getLogger("fedkern_flwr")

_SERVER = "server"
#: What helps where a node knows nothing of a run that goes on.
STATE_LOST = (
    "give the node a state-dir, so that it can go on after a restart, and start the run again"
)
_KEPT_STATES = 32  # a checkpoint is written a few rounds after the one it belongs to

_OF_SUMS: dict[str, type[sum_wire.SumRequest]] = {
    request.phase: request
    for request in (
        sum_wire.VoteRequest,
        sum_wire.UnmaskRequest,
        sum_wire.RecoverRequest,
        sum_wire.FinishRequest,
        sum_wire.BreakRequest,
    )
}

#: What answers a request, or the name of a marked method.
Handler = Callable[[Any], PhaseMessage] | str
Answer = TypeVar("Answer", bound=Callable[..., Any])


def answers(what: str | type[PhaseMessage], *, last: bool = False) -> Callable[[Answer], Answer]:
    """Mark a client's method that answers a request for this client alone, without a sum.

    The server sees the answer. For a name the method gets the arguments of the
    :class:`~fedkern_flwr.exchange.Ask`, and returns key -> value. For a class of requests it gets
    the request, and returns the reply; its round is filled in. The ``last`` request of a run ends
    it, and erases everything but ``kept``.
    """

    def mark(method: Answer) -> Answer:
        method.answers = what  # type: ignore[attr-defined]
        if last:
            method.ends = what  # type: ignore[attr-defined]
        return method

    return mark


class Client(GuardedNode, NumPyClient):
    """Answer each request by the method marked with its class; base class of all clients.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context; its ``node_config`` has ``partition-id`` and ``num-partitions``.
    state_dir : path, optional
        Private folder of the node. Needed to resume an interrupted run, and for the ledger of all
        runs (:mod:`fedkern_flwr.guard.ledger`).
    identity_key : path, optional
        Ed25519 private key of the organisation; signs the node's key of each secure run.
    trusted_keys : path, optional
        File of pinned identity keys (:mod:`fedkern_flwr.secure_sum.identity`). With it, the node
        takes part in a secure run only if every other party signed its key.
    allow_single : bool (default: False)
        Whether to contribute to a sum of two parties that the other one opens.
    policy : NodePolicy or path, optional
        What the node's owner allows (:class:`~fedkern_flwr.guard.NodePolicy`), or its TOML file.
        Default: that of nodes; in simulations rules only warn.
    frozen : ndarray of int64, optional
        For rows read from frozen files: each row's number in the freeze, training rows first; -1
        for a row in no block.

    Attributes
    ----------
    simulated : bool
        Whether this is a node of a simulation.
    sums : ClientSums or None
        The secure sums of the current request; None outside secure runs.
    restored : bool
        Whether the state of the round to resume from was found.
    kept : KeptState
        What the client remembers between messages, of ``state_class``.
    """

    role: str = "client"
    #: Whether the method seals messages between two clients.
    pair_secrets: ClassVar[bool] = False
    #: What helps where two clients share no secret.
    without_secret: ClassVar[str] = "run the same release of fedkern-flwr on both sides"
    #: Whether all sums of the method are over whole cohorts, without self masks.
    whole_cohorts: ClassVar[bool] = False
    #: Whether the same values are opened over the same survivors only.
    same_parties: ClassVar[bool] = False
    #: Whether it has a table to freeze: no stream, which comes while a run goes on, no bare ids.
    freezes: ClassVar[bool] = True
    #: Name of a sum that a run opens in several rounds -> field of the request that numbers them.
    rounds_of: ClassVar[Mapping[str, str]] = {}
    partners: Collection[int] = ()
    restored = True
    answered = 0
    opened = 0
    #: Whether the message at hand has come as far as the code that looks at rows.
    _looked = False

    _wrappers: ClassVar[dict[type, type[FlowerClient]]] = {}

    # -- for subclasses

    def handlers(self) -> dict[str, tuple[type[PhaseMessage], Handler]]:
        return _handlers(type(self))

    def describe(self, request: DescribeRequest) -> DescribeReply:
        """Describe this node, in a new session."""
        raise ProtocolError("this client does not describe itself", code="FK-MESSAGE-PHASE")

    def answer(self, request: Any, method: Callable[[Any], Any]) -> Any:
        """Return a handler's reply; subclasses check requests before, and add to sums after."""
        return method(request)

    def choose_partners(self, request: Any) -> Collection[int]:
        """Return parties without common masks that may get sealed messages."""
        return ()

    # -- for handlers

    def pin_options(self, options: Mapping[str, Any]) -> None:
        """Fix public options for the rest of the run, even if the current message fails.

        Raises
        ------
        RefusedError
            An option differs from an earlier request.
        """
        if self.record.pin(options):
            self._keep_record()

    @contextmanager
    def keeping(self, session: str) -> Iterator[None]:
        """Load what is kept of a run, outside its rounds; store it unless the block raises."""
        state = self.open_session(session)
        self.kept = state.opened(self.state_class)
        yield
        state.kept = self.kept
        state.store(self.context)

    def check_table(self, digest: str) -> None:
        """Refuse a table other than the one with which this run started."""
        if not self.kept.pin("table", digest):
            raise TableError(
                "its table is not the one with which this run began", code="FK-CHECKPOINT-PARTIES"
            )

    @property
    def secure_sums(self) -> ClientSums:
        """The sums of the current message, for values that are sent in secure sums only.

        Raises
        ------
        ProtocolError
            The request has no sums.
        """
        if self.sums is None:
            raise ProtocolError(
                "values are asked for that leave this node in secure sums only",
                code="FK-ORDER-PLAIN",
            )
        return self.sums

    def marked(self, mark: str) -> dict[Any, Callable[..., Any]]:
        """Return mark -> method; a method that overrides a marked one inherits its mark."""
        return {what: getattr(self, name) for name, what in _marks(type(self), mark)}

    def marks(self, mark: str) -> list[Any]:
        return [what for _, what in _marks(type(self), mark)]

    # -- Flower's NumPyClient

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Scalar]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Scalar]]:
        """Answer a message of Flower."""
        if self.simulated:  # all that it remembers is in this process
            return self._fit(parameters, config)
        with reported(self.context):  # the name of a session may be too long for a folder
            file = self.state_path(str(config.get("session", "")), ".context")
        with on_disk(self.context, file, config), self.ledger.held():
            return self._fit(parameters, config)

    def _fit(self, parameters: list[NDArray[Any]], config: dict[str, Scalar]) -> Answered:
        again = kept_answer(self.context, parameters, config)
        if again is not None:
            return again
        reply = self._answer(parameters, config)
        samples = config.get("samples", 0)
        arrays, scalars = reply.arrays(), reply.scalars()
        if self.sums is not None:
            more, extra = attach(self.sums.replies)
            self.sums.replies = []  # as large as the reply, and this client may live on
            arrays, scalars = arrays + more, scalars | extra
        answer = arrays, samples if isinstance(samples, int) else 0, scalars
        if self.sums is not None and self.sums.ends:
            keep_answer(self.context, (parameters, config), answer)
        return answer

    def to_client(self) -> FlowerClient:
        """Wrap this object for Flower; cached by type, as Flower makes a new class at each call."""
        wrapper = self._wrappers.get(type(self))
        if wrapper is None:
            client = super().to_client()
            self._wrappers[type(self)] = type(client)
            return client
        return wrapper(numpy_client=self)  # type: ignore[call-arg]

    def forget(self, state: SessionState) -> bytes:
        """Erase a finished run's data at this node; return what is kept of its state."""
        return state.payload

    def keep_fixed(self, session: str) -> None:
        """Save what a failed message has fixed or pinned, so that the next one cannot change it.

        Whether a message fails may depend on values, so a failure may reveal something about them.
        """
        state = load_state(self.context)
        if state is not None:
            if self.sums is not None and state.session == session:
                state.fixed = self.sums.fixed() | state.fixed
                state.keep_delivered(self.sums.party.state)
            store_state(self.context, state)
        known = SessionState.load(self.context)
        if session and known.session == session:
            before = known.opened(self.state_class)
            if isinstance(before, KeptState):
                self.kept.leave_pins(before)
                known.kept = before
                known.store(self.context)

    def question(self) -> str:
        """Return the name of the request, and of what earlier messages have settled."""
        session = self._request.session
        settled = self.kept.settled(session) if isinstance(self.kept, KeptState) else b""
        return asked(self.message_name(), settled)

    # -- requests

    def _answer(self, parameters: list[NDArray[Any]], config: dict[str, Scalar]) -> PhaseMessage:
        """Answer a request; hide the text of foreign exceptions from the server."""
        session = str(config.get("session", ""))
        try:
            try:
                return self._dispatch(parameters, config)
            except OSError as error:
                raise unwritable(error, self.name) from None
        except FedKernError as error:
            if error.problem.startswith(REFUSED) or not isinstance(error, RefusedError):
                error.name(self.name)  # without a name, equal errors of all nodes are one
            self.keep_fixed(session)
            if isinstance(error, RefusedError) or self._may_tell(error):
                self._count_refusal(session, error)
            error.args = (mark_error(f"{type(error).__name__}: {error}"),)
            raise
        except Exception as error:
            if self.simulated:  # its engine shows all of it
                raise
            self.keep_fixed(session)
            if self.record.secure:  # repeated failures would reveal values
                failed = refusal("an error of its own code", code="FK-CLIENT-RAISED")
                self._count_refusal(session, failed)
            concealed = conceal(error)
        raise concealed

    def _may_tell(self, error: FedKernError) -> bool:
        """Return whether an error may depend on values of rows; then it counts as a refusal.

        A server that forges requests until one fails could read values. Messages out of order, and
        sums that cannot be opened, do not count.
        """
        return self._looked and not error.free and self.record.secure and not self.simulated

    def _dispatch(self, parameters: list[NDArray[Any]], config: dict[str, Scalar]) -> PhaseMessage:
        self.sums, self._looked = None, False
        self.forget_notes()
        parameters, config, sections = detach(parameters, config, party=_SERVER)
        phase, session = str(config.get("phase", "")), str(config.get("session", ""))
        self.record = self._load_record(session)
        self.record.check()
        if phase == DescribeRequest.phase:
            check_server(config, party=self.name)
            opening = DescribeRequest.unpack(parameters, config, party=_SERVER)
            self._open_session(opening)
            found: Any = _checked(self.describe(opening), self.describe)
            described = self._announce(opening, found)
            self._keep_record()
            return described
        of_sums = _OF_SUMS.get(phase)
        handlers: dict[str, tuple[Any, Any]] = (
            {phase: (of_sums, self._answer_sums)} if of_sums else self.handlers()
        )
        if phase not in handlers:
            raise ProtocolError(
                f"{type(self).__name__} does not take part in phase {phase[:40]!r}",
                code="FK-MESSAGE-PHASE",
            )
        message, handler = handlers[phase]
        if isinstance(handler, str):
            ends = handler in dict(_marks(type(self), "ends"))
            handler = partial(self.ending if ends else self.answering, getattr(self, handler))
        self.record.begun = True
        self._request = request = message.unpack(parameters, config, party=_SERVER)
        self.partners = self.choose_partners(request)
        self.sums = self._open_sums(session, sections)
        reply = _checked(handler(request), handler)
        with self.ledger.entering():  # all that the reply is about is on disk before it leaves
            self.enter_sums(session)
            if self.sums is not None:
                self.sums.check_done()
                if has_state(self.context) and phase != sum_wire.FinishRequest.phase:
                    store_state(self.context, self.sums.party.state)
                if self.sums.ends:
                    self._end(session)
            self._keep_record()
        return reply

    def answering(self, method: Callable[..., Any], request: Any) -> PhaseMessage:
        """Open the round of a request, call its handler, and keep its state."""
        every = getattr(request, "checkpoint_every", 0)
        state = self.open_round(request.session, request.round, every)
        self.kept = state.opened(self.state_class)
        reply = self._reply(request, method)
        self.close_round(state, request.round, self.kept, every)
        return reply

    def ending(self, method: Callable[..., Any], request: Any) -> PhaseMessage:
        """Call the handler of a run's last request, and erase the run.

        The request may be repeated, but not replaced.
        """
        self.pin_options({f"{request.phase}.last request": self.message_name()})
        with self.keeping(request.session):
            reply = self._reply(request, method)
            erase_state(self.context)
            self.ledger.end_run(request.session)
            self.sums = None  # or it would be stored again
        return reply

    def _reply(self, request: Any, method: Callable[..., Any]) -> PhaseMessage:
        self.pin_options(request.public_options)
        self._looked = True
        try:
            reply: Any = self.answer(request, method)
        except NotKeptError as missing:
            raise ProtocolError(
                f"what the request needs was never asked for in this run: {missing.args[0]}",
                remedy="run the same release on both sides; start again, or resume",
                code=missing.code,
            ) from None
        return _checked(reply, method).addressed(round=request.round)

    def _open_session(self, request: DescribeRequest) -> None:
        """Start with an empty state, or with the one saved for the round to resume from.

        Later rounds that this node answered in a secure run are not repeated: with the same values
        but other survivors, the difference of two sums would show a single client.
        """
        if not request.session.isalnum():  # it names folders
            raise ProtocolError("the name of the session is no name", code="FK-MESSAGE-FIELD")
        self.ledger.check_failures()
        self._know_session(request.nonces)
        check_run(
            self.policy,
            request.method,
            secure=request.secure,
            pinned=self._pinned,
            budget=self.open_budget(request),
            tells=self.tells_values,
            remembers=self.simulated or self.state_dir is not None,
            simulated=self.simulated,
        )
        forget_answer(self.context)
        if not self.simulated:
            forget_last(self.state_dir, self.partition)
        state = SessionState(session=request.session)
        self.restored, self.answered, self.opened = not request.resume_round, 0, 0
        before = SessionState.load(self.context)
        if before.session == request.session:  # a run is not begun twice: what was fixed stays so
            state = before
        if request.resume_round:
            path = self.saved_state(request.session, request.resume_round)
            if path is not None and path.is_file():
                self.restored = True
                state.round, state.payload = request.resume_round, path.read_bytes()
            self.answered = self.noted(request.session, ".answered")
            self.opened = self.noted(request.session, ".opened")
            state.round = max(state.round, self.answered)
        state.store(self.context)

    def _know_session(self, nonces: str) -> None:
        """Create a nonce for a new run; refuse a known run if the request lacks its nonce.

        A second run under the same name would share its record and its noise.
        """
        record = self.record
        if not record.nonce:
            record.check_new(self.context)
            record.nonce = secrets.token_hex(16)
        elif record.begun:
            try:
                given = json.loads(nonces or "{}")[str(self.partition)]
            except (ValueError, KeyError, TypeError, RecursionError):
                given = None
            if given != record.nonce:
                raise refusal("a run of this name was opened here before", code="FK-SESSION-KNOWN")

    # -- rounds: each is done once, and its state is kept

    def open_session(self, session: str) -> SessionState:
        """Return the state of the session that ``describe`` has opened.

        Raises
        ------
        ProtocolError
            It is another session.
        """
        state = SessionState.load(self.context)
        if not session or state.session != session:
            raise ProtocolError(
                "the request belongs to a session that this node has not opened",
                remedy=STATE_LOST,
                code="FK-MESSAGE-SESSION",
            )
        return state

    def open_round(self, session: str, number: int, checkpoint_every: int) -> SessionState:
        """Return the state for a round.

        Raises
        ------
        ProtocolError
            Another session is open, or the round was done before (a late duplicate).
        """
        state = self.open_session(session)
        if number <= state.round:
            raise ProtocolError(
                f"round {number} has been done already (last round {state.round})",
                code="FK-MESSAGE-ORDER",
            )
        if checkpoint_every:  # save states of checkpoint rounds that this node missed
            last = number - 1 - (number - 1) % checkpoint_every
            missed = range(last, state.round, -checkpoint_every)[:_KEPT_STATES]
            for due in reversed(missed):
                self._save(state, due)
        return state

    def close_round(
        self, state: SessionState, number: int, kept: Any, checkpoint_every: int
    ) -> None:
        """Save the state after a round, as the last step before the answer.

        In a secure run the number is also written to disk: a resumed run must not repeat a sum of
        the same values, see :meth:`_open_session`.
        """
        state.round, state.kept = number, kept
        if self.sums is not None and checkpoint_every:
            self.note_answered(state.session, number)
        if checkpoint_every and number % checkpoint_every == 0:
            self._save(state, number)
        state.store(self.context)

    def note_answered(self, session: str, number: int, *, opened: bool = False) -> None:
        """Write to disk, before the reply is sent, that a secure round was answered or opened."""
        path = self.state_path(session, ".opened" if opened else ".answered")
        if path is not None:
            write_atomically(path, str(number).encode(), private=True)

    def noted(self, session: str, name: str) -> int:
        path = self.state_path(session, name)
        return int(path.read_text()) if path is not None and path.is_file() else 0

    def state_path(self, session: str, name: str) -> Path | None:
        if self.state_dir is None or not session.isalnum():
            return None
        folder = run_folder(self.state_dir, session, self.partition)
        return folder / f"partition-{self.partition}{name}"

    def saved_state(self, session: str, number: int) -> Path | None:
        """Return the file of the state after a round; None without a folder."""
        return self.state_path(session, f"-round-{number}.state")

    def _save(self, state: SessionState, number: int) -> None:
        path = self.state_path(state.session, f"-round-{number}.state")
        if path is None:
            return
        write_atomically(path, state.payload, private=True)
        start, end = f"partition-{self.partition}-round-", ".state"
        names = [n for n in os.listdir(path.parent) if n.startswith(start) and n.endswith(end)]
        for name in sorted(names, key=lambda n: int(n[len(start) : -len(end)]))[:-_KEPT_STATES]:
            (path.parent / name).unlink(missing_ok=True)

    # -- secure sums

    def _announce(self, request: DescribeRequest, reply: DescribeReply) -> DescribeReply:
        record = self.record
        record.binary = reply.binary
        known_as: dict[str, Any] = {
            "partition": self.partition,
            "partitions": self.partitions,
            "name": self.own_name,
            "role": self.role,
            "restored": self.restored,
            "nonce": record.nonce,
        }
        if record.privacy:  # how many columns are binary follows from the rows
            known_as["binary"] = 0
        reply = replace(reply, **known_as)
        if self.records:
            check_own_rows(self.policy, reply.rows)
        if not self.simulated:
            own = self.own_rows()
            self.enter_run(request, own)
            if request.secure and self.freezes and not record.privacy:
                left = self.ledger.freeze(request.session, own, self.frozen)
                if self.count_mode == "refuse":  # else its owner lets more pass
                    reply = replace(reply, **left._asdict())
        if not request.secure:
            if self.trusted_keys:
                raise SumError(
                    "this node has pinned identities and takes part in secure runs only",
                    code="FK-IDENTITY-PLAIN",
                )
            erase_state(self.context)
            return reply
        before = load_state(self.context)
        same = before is not None and before.session == request.session
        known = PartyState(request.session)
        if before is not None and same and before.private:  # it has come twice: the same key
            known = before
        elif before is not None and same:
            known.fixed, known.shown, known.noise_key = before.fixed, before.shown, before.noise_key
        if record.privacy:
            known.noise_key = self.ledger.noise_key(request.session, known.noise_key)
        record.secure, record.columns = True, reply.features + self.labels_of_row
        bits = counting.bits_of_row(record.columns, reply.binary)
        party = self._party(known)
        public, signature = party.announce(Counts(reply.rows, reply.test_rows, bits))
        store_state(self.context, party.state)
        return replace(
            reply,
            bits=bits,
            public_key=public,
            signature=signature,
            answered=self.answered,
            opened=self.opened,
            counting=self.count_mode,
        )

    def _open_sums(self, session: str, sections: list[Section]) -> ClientSums | None:
        """Return the sums of a request; in a secure run never None, so nothing is sent unmasked."""
        state = load_state(self.context)
        if state is None or state.session != session:
            if sections:
                raise ProtocolError(
                    "the request sums securely, but this node has announced no key in its session",
                    remedy=STATE_LOST,
                    code="FK-SUM-KEY-NONE",
                )
            if not self.record.secure:
                return None
            # the sums of the run have ended: no order fits
            state, known = PartyState(session), SessionState()
        else:
            known = self.open_session(session)
        # kept also where a section is refused: see keep_fixed
        self.sums = sums = ClientSums(self._party(state), self.ledger.rules)
        sums.on_check, sums.question = self._check_named, self.question
        sums.take(sections)
        if sums.opened:
            self.note_answered(session, known.round, opened=True)
            for name, place in sums.opened.items():
                self.record.open_once(name.partition("#")[0], place)
        return sums

    def round_of(self, name: str) -> int:
        """Return the round of a sum; 0 if a run opens it once."""
        return int(getattr(self._request, self.rounds_of.get(name, ""), 0))

    def _check_named(self, name: str) -> None:
        assert self.sums is not None
        order, known_as = self.sums.order(name), name.partition("#")[0]
        if order.self_masks:
            place, number = (order.cohort, order.index), self.round_of(known_as)
            digest = self.message_name()
            self.record.note_order(known_as, place, number, digest, repeats=self.same_parties)

    def pair_secret(self, other: int) -> bytes:
        """Return the secret that this party shares with another in this run.

        Raises
        ------
        ProtocolError
            They have no cohort in common.
        """
        secret = None if self.sums is None else self.sums.party.state.secrets.get(other)
        if secret is None:
            raise ProtocolError(
                f"it shares no secret with partition {other}",
                remedy=self.without_secret,
                code="FK-SUM-PARTNER",
            )
        return secret

    def _party(self, state: PartyState) -> Party:
        return Party(
            self.partition,
            state,
            identity=read_identity(Path(self.identity_key)) if self.identity_key else None,
            trusted=read_trusted(Path(self.trusted_keys)) if self.trusted_keys else None,
            allow_single=self.allow_single,
            pair_secrets=self.pair_secrets,
            partners=self.partners,
            whole_cohorts=self.whole_cohorts,
            same_parties=self.same_parties,
            allow_recovery=self.policy.allow_recovery,
        )

    def _answer_sums(self, request: sum_wire.SumRequest) -> sum_wire.SumReply:
        if isinstance(request, (sum_wire.FinishRequest, sum_wire.BreakRequest)):
            self._end(request.session, over=isinstance(request, sum_wire.FinishRequest))
        else:
            self.open_session(request.session)
        return sum_wire.SumReply()

    def _end(self, session: str, *, over: bool = True) -> None:
        """Erase a run's data; its noise key only when it is ``over``."""
        state = self.open_session(session)
        state.payload = self.forget(state)
        state.store(self.context)
        if over:
            self.ledger.end_run(session)
        self.record.told = {key: [] for key in self.record.told}
        erase_state(self.context)


def _checked(reply: object, handler: Callable[..., Any]) -> PhaseMessage:
    if not isinstance(reply, PhaseMessage):
        raise NoReplyError(handler, reply)
    return reply


@cache  # a client is made for every message
def _marks(cls: Any, mark: str) -> tuple[tuple[str, Any], ...]:
    found = {
        name: getattr(method, mark)
        for base in reversed(cls.__mro__)
        for name, method in vars(base).items()
        if hasattr(method, mark)
    }
    return tuple(found.items())


@cache
def _handlers(cls: Any) -> dict[str, tuple[type[PhaseMessage], Handler]]:
    marks = _marks(cls, "answers")
    return {what.phase: (what, name) for name, what in marks if not isinstance(what, str)}
