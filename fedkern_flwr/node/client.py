"""What all clients share: phases, sessions and private state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from ..checkpoint import write_atomically
from ..errors import (
    FedKernError,
    OptionError,
    ProtocolError,
    RefusedError,
    SumError,
    TableError,
)
from ..exchange import mark_error
from ..flower_compat import Client, NumPyClient
from ..guard import NodePolicy, RunRecord, check_own_rows, check_run
from ..guard.evaluations import open_once
from ..guard.policy import is_simulated, node_policy
from ..secure_sum import Party, PartyState
from ..secure_sum.identity import read_identity, read_trusted
from ..wire import DescribeReply, DescribeRequest, PhaseMessage, Scalar
from ..wire import sums as sum_wire
from ..wire.sections import Section, attach, detach
from .failures import conceal, replied
from .guarded import GuardedNode
from .ledger import ClientLedger
from .session_state import SessionState
from .sums import ClientSums, erase_state, load_state, store_state

logger = logging.getLogger("fedkern_flwr")

_KEPT_STATES = 32  # a checkpoint is written a few rounds after the one it belongs to
_SERVER = "server"

Handler = Callable[[Any], PhaseMessage]


class PhaseClient(GuardedNode, NumPyClient):
    """Base class of the clients: a phase named in the request is handled by one method.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context; its ``node_config`` holds ``partition-id`` and ``num-partitions``.
    state_dir : path, optional
        The node's own folder for saved private state, needed to resume a run that broke off, and
        for the ledger of what it answered in all runs (see :mod:`fedkern_flwr.guard.ledger`).
    identity_key : path, optional
        Ed25519 private key of the organisation; signs the node's key of each secure run.
    trusted_keys : path, optional
        File of pinned identity keys (see :mod:`fedkern_flwr.secure_sum.identity`). With it, the
        node takes part in a secure run only if every other party signed its key.
    allow_single : bool (default: False)
        Whether to contribute to a sum that one other client opens alone, without a third party.
    policy : NodePolicy or path, optional
        What the node's owner allows (see :class:`~fedkern_flwr.guard.NodePolicy`), or its TOML
        file. By default the defaults of a node; in simulations rules only warn.

    Attributes
    ----------
    simulated : bool
        Whether this is a node of a simulation.
    sums : ClientSums or None
        The secure sums that the request at hand asks for; None outside secure runs.
    partners : collection of int
        Parties to whom messages may be sealed though they share no masks.
    restored : bool
        Whether the state of the round to resume from was found, for ``describe``.
    answered, opened : int
        The last round of a secure run that broke off which this node has answered, and the last
        whose sum it helped to open.
    """

    role: str = "client"
    #: Whether the method seals messages between two clients.
    pair_secrets: ClassVar[bool] = False
    #: What helps where two clients share no secret.
    without_secret: ClassVar[str] = "run the same release of fedkern-flwr on both sides"
    #: Whether all sums of the method are over whole cohorts, without self masks.
    whole_cohorts: ClassVar[bool] = False
    #: Whether sums of one name may be over ever new cohorts.
    regroup = False
    sums: ClientSums | None = None
    partners: Collection[int] = ()
    restored = True
    answered = 0
    opened = 0

    _wrappers: ClassVar[dict[type, type[Client]]] = {}

    def __init__(
        self,
        context: Context,
        *,
        state_dir: str | Path | None = None,
        identity_key: str | Path | None = None,
        trusted_keys: str | Path | None = None,
        allow_single: bool = False,
        policy: NodePolicy | str | Path | None = None,
    ) -> None:
        self.context, self.record = context, RunRecord()
        self.policy, self.simulated = node_policy(policy, context), is_simulated(context)
        self.identity_key, self.trusted_keys = identity_key, trusted_keys
        self.allow_single = allow_single
        self.partition = _node_number(context, "partition-id")
        self.name = f"partition {self.partition}"
        self.partitions = _node_number(context, "num-partitions")
        self.state_dir = Path(state_dir) if state_dir is not None else None
        folder = None if self.simulated else self.state_dir
        self.ledger = ClientLedger(folder, self.partition, self.policy)
        if not 0 <= self.partition < self.partitions:
            raise OptionError(
                f"partition-id {self.partition} is outside 0..{self.partitions - 1}",
                remedy="correct the node's --node-config",
            )

    # -- for subclasses

    def handlers(self) -> dict[str, tuple[type[PhaseMessage], Handler]]:
        """Return phase -> (class of the request, method that answers it)."""
        raise ProtocolError("this client answers no phase")

    def describe(self, request: DescribeRequest) -> DescribeReply:
        """Answer what this node has. Called in a fresh session."""
        raise ProtocolError("this client does not describe itself")

    def choose_partners(self, request: Any) -> Collection[int]:
        """Return parties to whom messages may be sealed though they share no masks; none here."""
        return ()

    # -- Flower's NumPyClient

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Scalar]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Scalar]]:
        """Answer a phase of training."""
        reply = self._answer(parameters, config)
        samples = config.get("samples", 0)
        arrays, scalars = reply.arrays(), reply.scalars()
        if self.sums is not None:
            more, extra = attach(self.sums.replies)
            arrays, scalars = arrays + more, scalars | extra
        return arrays, samples if isinstance(samples, int) else 0, scalars

    def to_client(self) -> Client:
        """Wrap this object for Flower, which makes a new class at each call: kept per type."""
        wrapper = self._wrappers.get(type(self))
        if wrapper is None:
            client = super().to_client()
            self._wrappers[type(self)] = type(client)
            return client
        return wrapper(numpy_client=self)  # type: ignore[call-arg]

    def forget(self, state: SessionState) -> bytes:
        """Erase what a finished run leaves on this node; return what is kept of its state."""
        return state.payload

    # -- sessions

    def open_session(self, session: str) -> SessionState:
        """Return the node's state in a session that ``describe`` has opened.

        Raises
        ------
        ProtocolError
            Another session is open.
        """
        state = SessionState.load(self.context)
        if not session or state.session != session:
            raise ProtocolError(
                "the request belongs to a session that this node has not opened",
                remedy="start the run again",
                party=self.name,
            )
        return state

    def open_round(self, session: str, number: int, checkpoint_every: int) -> SessionState:
        """Return the state with which to work on a round.

        Raises
        ------
        ProtocolError
            Another session is open, or the round has been done already (a late duplicate).
        """
        state = self.open_session(session)
        if number <= state.round:
            raise ProtocolError(
                f"round {number} has been done already (last round {state.round})",
                party=self.name,
            )
        if checkpoint_every:  # checkpoints whose rounds never reached this node find it unchanged
            missed = range(state.round + 1, number)
            for due in [n for n in missed if n % checkpoint_every == 0][-_KEPT_STATES:]:
                self._save(state, due)
        return state

    def close_round(
        self, state: SessionState, number: int, payload: bytes, checkpoint_every: int
    ) -> None:
        """Keep the state after a round; the last thing a handler does before it answers.

        In a secure run the number is noted on disk as well: a run that is resumed must not repeat
        a sum of the same values, see :meth:`_open_session`.
        """
        state.round, state.payload = number, payload
        if self.sums is not None and checkpoint_every:
            self.note_answered(state.session, number)
        if checkpoint_every and number % checkpoint_every == 0:
            self._save(state, number)
        state.store(self.context)

    def _answer(self, parameters: list[NDArray[Any]], config: dict[str, Scalar]) -> PhaseMessage:
        """Answer a request; Flower shows the server the text of whatever is raised here."""
        try:
            return self._dispatch(parameters, config)
        except FedKernError as error:
            if isinstance(error, RefusedError):
                self._count_refusal(str(config.get("session", "")), error)
            error.args = (mark_error(f"{type(error).__name__}: {error}"),)
            raise
        except Exception as error:
            if self.simulated:  # its engine shows all of it
                raise
            concealed = conceal(error)
        raise concealed

    def _dispatch(self, parameters: list[NDArray[Any]], config: dict[str, Scalar]) -> PhaseMessage:
        self.sums, self._group, self._small, self._share = None, None, "", 0.0
        parameters, config, sections = detach(parameters, config, party=_SERVER)
        phase = str(config.get("phase", ""))
        self.record = RunRecord.load(self.context, str(config.get("session", "")))
        self.record.check(self.name)
        if phase == DescribeRequest.phase:
            opening = DescribeRequest.unpack(parameters, config, party=_SERVER)
            self._open_session(opening)
            return self._announce(opening, replied(self.describe, opening))
        handlers = {**self.handlers(), **self._sum_handlers}
        if phase not in handlers:
            raise ProtocolError(
                f"{type(self).__name__} does not take part in phase {phase[:40]!r}",
                remedy="serve the client that belongs to the strategy",
                party=self.name,
            )
        message, handler = handlers[phase]
        self._request = request = message.unpack(parameters, config, party=_SERVER)
        self.partners = self.choose_partners(request)
        self.sums = self._open_sums(str(config.get("session", "")), sections)
        sums = self.sums
        reply = replied(handler, request)
        self.ledger.enter(
            str(config.get("session", "")),
            sums,
            records=self.records,
            share=self._share,
        )
        if self.sums is not None:
            self.sums.check_done()
            if load_state(self.context) is not None and phase != sum_wire.FinishRequest.phase:
                self._keep_count()
                store_state(self.context, self.sums.party.state)
        return reply

    def _open_session(self, request: DescribeRequest) -> None:
        """Start with an empty state, or with the one saved for the round to resume from.

        Rounds after that one which this node answered in a secure run are not done again: with
        the same values but other survivors, the difference of two sums would show a single client.
        """
        if not request.session.isalnum():  # it names folders
            raise ProtocolError(
                "the name of the session is no name",
                remedy="run the same release of fedkern-flwr on both sides",
                party=self.name,
            )
        method, known = request.method, self._pinned
        check_run(self.policy, method, secure=request.secure, pinned=known, party=self.name)
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
            self.answered = self._noted(request.session, ".answered")
            self.opened = self._noted(request.session, ".opened")
            state.round = max(state.round, self.answered)
        state.store(self.context)

    def note_answered(self, session: str, number: int, *, opened: bool = False) -> None:
        """Note on disk, before the reply leaves, that a secure round was answered, or opened."""
        path = self.state_path(session, ".opened" if opened else ".answered")
        if path is not None:
            write_atomically(path, str(number).encode(), private=True)

    def _noted(self, session: str, name: str) -> int:
        path = self.state_path(session, name)
        return int(path.read_text()) if path is not None and path.is_file() else 0

    def state_path(self, session: str, name: str) -> Path | None:
        """Return this node's file for a session in its folder; None without a folder."""
        if self.state_dir is None or not session.isalnum():
            return None
        return self.state_dir / session / f"partition-{self.partition}{name}"

    def saved_state(self, session: str, number: int) -> Path | None:
        """Return the file of the state after a round; None without a folder."""
        return self.state_path(session, f"-round-{number}.state")

    def _save(self, state: SessionState, number: int) -> None:
        path = self.state_path(state.session, f"-round-{number}.state")
        if path is None:
            return
        write_atomically(path, state.payload, private=True)
        older = sorted(
            path.parent.glob(f"partition-{self.partition}-round-*.state"),
            key=lambda file: int(file.stem.rsplit("-", 1)[1]),
        )
        for file in older[:-_KEPT_STATES]:
            file.unlink(missing_ok=True)

    # -- secure sums

    @property
    def _sum_handlers(self) -> dict[str, tuple[type[PhaseMessage], Handler]]:
        """Phases that carry sections and nothing else."""
        return {
            "vote": (sum_wire.VoteRequest, self._answer_sections),
            "unmask": (sum_wire.UnmaskRequest, self._answer_sections),
            "recover": (sum_wire.RecoverRequest, self._answer_sections),
            "finish": (sum_wire.FinishRequest, self._finish_sums),
        }

    def _announce(self, request: DescribeRequest, reply: DescribeReply) -> DescribeReply:
        """Add who the node is, and its key of the run, to its description."""
        known_as: dict[str, Any] = {"partition": self.partition, "partitions": self.partitions}
        reply = replace(reply, **known_as, role=self.role, restored=self.restored)
        if self.records:
            check_own_rows(self.policy, reply.rows, party=self.name)
        if not self.simulated:
            pinned, kind = self._pinned, type(self).__name__
            self.ledger.open_run(request, kind, self.own_rows(), pinned=pinned)
        if not request.secure:
            if self.trusted_keys:
                raise SumError(
                    "this node has pinned identities and takes part in secure runs only",
                    remedy="run with secure sums",
                    party=self.name,
                )
            erase_state(self.context)
            return reply
        known = load_state(self.context)
        if known is None or known.session != request.session or not known.private:
            # else the request has come twice: the same key
            same = known is not None and known.session == request.session
            known = PartyState(request.session, fixed=known.fixed if same and known else {})
        self.record.secure, self.record.columns = True, reply.features + self.labels_of_row
        self.record.store(self.context)
        party = self._party(known)
        public, signature = party.announce((reply.rows, reply.test_rows))
        store_state(self.context, party.state)
        return replace(
            reply,
            public_key=public,
            signature=signature,
            answered=self.answered,
            opened=self.opened,
            counting=self.count_mode,
        )

    def _open_sums(self, session: str, sections: list[Section]) -> ClientSums | None:
        """Return the sums of a request; in a secure run always, so that nothing goes unmasked."""
        state = load_state(self.context)
        if state is None or state.session != session:
            if sections:
                raise ProtocolError(
                    "the request sums securely, but this node has announced no key in its session",
                    remedy="start the run again",
                    party=self.name,
                )
            if not self.record.secure:
                return None
            state = PartyState(session)  # the sums of the run have ended: no order fits
            return ClientSums(self._party(state), self.policy, self.enough_parties)
        known = self.open_session(session)
        sums = ClientSums(self._party(state), self.policy, self.enough_parties)
        sums.on_check = self._count_table
        sums.take(sections)
        if sums.opened:
            self.note_answered(session, known.round, opened=True)
            for name, place in sums.opened.items():
                open_once(self.record, name.partition("#")[0], place, self.name)
            self.record.store(self.context)
            self.sums = sums
            for name, place in sums.opened.items():
                group = self._counted_rows()
                if group.has(place):
                    receiver = sums.party.state.open[place].order.receiver
                    numbers, alive = group.open(place), sums.survivors[name]
                    self._count(group, numbers, alive, receiver)
        return sums

    @property
    def _pinned(self) -> bool:
        """Whether this node signs its keys, and knows those of the others."""
        return bool(self.trusted_keys and self.identity_key)

    def pair_secret(self, other: int) -> bytes:
        """Return the secret that this party has with another in this run.

        Raises
        ------
        ProtocolError
            They are in no cohort together.
        """
        secret = None if self.sums is None else self.sums.party.state.secrets.get(other)
        if secret is None:
            raise ProtocolError(
                f"it shares no secret with partition {other}",
                remedy=self.without_secret,
                party=self.name,
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
            regroup=self.regroup,
            allow_recovery=self.policy.allow_recovery,
        )

    def _answer_sections(self, request: sum_wire.SumRequest) -> sum_wire.SumReply:
        self.open_session(request.session)
        return sum_wire.SumReply()

    def _finish_sums(self, request: sum_wire.FinishRequest) -> sum_wire.SumReply:
        state = self.open_session(request.session)
        state.payload = self.forget(state)
        state.store(self.context)
        self.record.told = {}
        self.record.store(self.context)
        erase_state(self.context)
        return sum_wire.SumReply()


def _node_number(context: Context, key: str) -> int:
    value = context.node_config.get(key)
    if type(value) is not int:
        raise OptionError(
            f"the node's configuration has no whole number {key}",
            remedy='start the SuperNode with --node-config "partition-id=0 num-partitions=..."'
            if key == "partition-id"
            else "add num-partitions=... to --node-config",
        )
    return value


def check_rows(x: NDArray[Any], y: NDArray[Any], party: str) -> None:
    """Refuse features and labels that cannot be streamed.

    Raises
    ------
    TableError
        Wrong number of dimensions, different lengths, NaN or infinite values.
    """
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y):
        raise TableError(
            f"features of shape {x.shape} and labels of shape {y.shape} do not fit",
            remedy="pass x of shape (n, d) and y of shape (n,)",
            party=party,
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise TableError("NaN or infinite values", remedy="clean the table first", party=party)
