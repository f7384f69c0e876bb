"""What all clients share: phases, sessions and private state."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from flwr.app import ConfigRecord, Context
from numpy.typing import NDArray

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import (
    ClientError,
    FedKernError,
    OptionError,
    ProtocolError,
    RefusedError,
    SumError,
    TableError,
)
from fedkern_flwr.exchange import mark_error
from fedkern_flwr.flower_compat import Client, NumPyClient
from fedkern_flwr.guard import NodePolicy, RunRecord, check_own_rows, check_run, counting, refusal
from fedkern_flwr.guard.evaluations import Asked, enter, open_once, too_few
from fedkern_flwr.guard.policy import is_simulated, node_policy
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.secure_sum import Party, PartyState
from fedkern_flwr.secure_sum.identity import read_identity, read_trusted
from fedkern_flwr.wire import DescribeReply, DescribeRequest, PhaseMessage, Scalar
from fedkern_flwr.wire import sums as sum_wire
from fedkern_flwr.wire.sections import Section, attach, carries_sections, detach

from .ledger import ClientLedger
from .sums import ClientSums, erase_state, load_state, store_state

logger = logging.getLogger("fedkern_flwr")

_RECORD = "fedkern"
_KEPT_STATES = 32  # a checkpoint is written a few rounds after the one it belongs to
_SERVER = "server"

Handler = Callable[[Any], PhaseMessage]


@dataclass
class SessionState:
    """The private state of a node within a run; lives in ``Context.state``, never sent.

    Attributes
    ----------
    session : str
        The run it belongs to.
    round : int
        Last round done.
    payload : bytes
        What the method keeps, small.
    """

    session: str = ""
    round: int = 0
    payload: bytes = b""

    @classmethod
    def load(cls, context: Context) -> SessionState:
        """Read the state of a node, empty at first."""
        record = context.state.get(_RECORD)
        return cls() if record is None else cls(**dict(record))  # type: ignore[arg-type]

    def store(self, context: Context) -> None:
        """Replace the state of a node."""
        context.state[_RECORD] = ConfigRecord(
            {
                "session": self.session,
                "round": self.round,
                "payload": self.payload,
            }
        )


class PhaseClient(NumPyClient):
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
    answered : int
        The last round of a secure run that broke off which this node has answered.
    """

    role: ClassVar[str] = "client"
    #: Whether the method seals messages between two clients.
    pair_secrets: ClassVar[bool] = False
    #: What helps where two clients share no secret.
    without_secret: ClassVar[str] = "run the same release of fedkern-flwr on both sides"
    #: Whether all sums of the method are over whole cohorts, without self masks.
    whole_cohorts: ClassVar[bool] = False
    #: Least number of parties of a sum that suffices, by what the method shows of each of them.
    enough_parties: ClassVar[int] = 3
    #: Whether the rows of a node are records that must hide among each other. Where a node may hold
    #: a single one it needs no others of its own, and sets of fewer rows than the policy asks for
    #: are not compared.
    records: ClassVar[bool] = True
    #: Whether sums of one name may be over ever new cohorts.
    regroup = False
    #: Whether more released numbers than unknowns are refused unless the policy says otherwise.
    counts_strictly: ClassVar[bool] = False
    #: Unknowns of a row beside its columns.
    labels_of_row: ClassVar[int] = 1
    sums: ClientSums | None = None
    partners: Collection[int] = ()
    restored = True
    answered = 0
    _group: counting.Group | None = None  # rows of the request at hand and what was counted
    _small = ""  # what is wrong with the request at hand, if it is allowed

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
        self.context = context
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
        """Answer who this node is. Called in a fresh session."""
        raise ProtocolError("this client does not describe itself")

    def own_rows(self) -> OwnRows:
        """Return the rows of this node's table, for its ledger; none here."""
        return OwnRows()

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

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Answer a phase of evaluation; the first figure is a mean loss.

        Sums travel in messages of training only: Flower's evaluation replies carry no arrays.
        """
        if carries_sections(config):
            raise ProtocolError(mark_error("sums are ordered in a message of evaluation"))
        reply = self._answer(parameters, config)
        samples = int(getattr(reply, "samples", 0))
        total = float(getattr(reply, "squared_error", 0.0))
        return total / max(1, samples), samples, reply.scalars()

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

    # -- what the node guards

    def check_declared(self, name: str, own: float | None, default: float, asked: float) -> None:
        """Refuse a public option of the run that is not the one with which this node was started.

        Parameters
        ----------
        name : str
            The option.
        own : float or None
            As this node was started; None for the default, or in simulations for the run's.
        default : float
            Of the strategy.
        asked : float
            As the run has it.

        Raises
        ------
        RefusedError
        """
        if own is None and self.simulated:
            return
        if asked != (default if own is None else own):
            raise refusal(f"the {name} of the run is not the one that it declares", self.name)

    def unfit(self, error: FedKernError) -> FedKernError:
        """Return what is said of own values that do not fit what the run declares.

        In simulations all that the user must know; else nothing but that, and what a request may
        provoke is counted. The log of the node has the rest.
        """
        logger.error("%s", error)
        if self.simulated:
            return error
        return refusal("its values do not fit the run, its log says more", self.name)

    def release(
        self,
        name: str,
        columns: int,
        *,
        binary: int = 0,
        start: int = 0,
        stop: int = counting.ENDLESS,
    ) -> None:
        """Count the numbers that a sum would release about this node's rows, with earlier ones.

        To be called for the order of each sum over rows, before anything is contributed; when the
        sum is opened they are counted again, over those who took part.

        Parameters
        ----------
        name : str
            Name of the sum.
        columns : int
            Columns of the rows, label included.
        binary : int
            How many of them have at most two values.
        start, stop : int
            The rows that are summed, the same of every party; by default all.

        Raises
        ------
        RefusedError
            There would be more numbers than unknowns.
        """
        if self.sums is None or self.count_mode == "off":
            return
        order = self.sums.order(name)
        group = self._counted_rows()
        row = counting.unknowns_of_row(columns, binary)
        if not group.meets(start, stop):
            group = counting.Group(start, stop, row)
        elif self.count_mode == "refuse":
            counting.check_rows_again(group, start, self.name)
        group.start, group.stop = min(group.start, start), max(group.stop, stop)
        group.row = min(group.row, row)
        place = order.cohort, order.index
        numbers = group.order(name, place, order.length, at_once=not order.self_masks)
        cohort = self.sums.party.state.cohorts[order.cohort]
        rows = self._rows_behind(group, cohort.members)
        # a sum without self masks has the whole cohort
        least = cohort.threshold if order.self_masks else len(cohort.members)
        alive = counting.least_survivors(rows, least, own=self.partition)
        self._count(group, numbers, alive, order.receiver)

    def _counted_rows(self) -> counting.Group:
        """Return the rows summed last, as counted in this request or in the last one answered."""
        if self._group is None:
            assert self.sums is not None
            record = RunRecord.load(self.context, self.sums.party.state.session)
            self._group = counting.Group(**record.group)
        return self._group

    def counts(self, order: sum_wire.Order) -> bool:
        """Tell whether a sum is counted as a release about all rows of this node's table."""
        return counting.is_counted(order.name, order.receiver)

    def _count_table(self, name: str) -> None:
        assert self.sums is not None
        order = self.sums.order(name)
        own = self.sums.party.state.counts.get(self.partition, (0, 0))[0]
        if own and self.counts(order):
            record = RunRecord.load(self.context, self.sums.party.state.session)
            self.release(name, record.columns)

    def _rows_behind(self, group: counting.Group, members: Collection[int]) -> dict[int, int]:
        assert self.sums is not None
        counts = self.sums.party.state.counts
        return group.rows((j, counts.get(j, (0, 0))[0]) for j in members)

    def _count(
        self,
        group: counting.Group,
        numbers: int,
        survivors: Collection[int],
        receiver: int,
    ) -> None:
        """Refuse or warn where numbers exceed unknowns."""
        rows = self._rows_behind(group, survivors)
        hidden = counting.hidden_rows(rows, survivors, own=self.partition, receiver=receiver)
        problem = counting.too_many(numbers, hidden * group.row)
        if problem and self.count_mode == "refuse":
            raise counting.small_sum(problem, self.name)
        if problem and not self.simulated:  # there the coordinator warns
            self._small = problem
        self._group = group

    def _keep_count(self) -> None:
        """Keep what was counted, before an answer leaves; warn once in a run."""
        if self._group is None or self.sums is None:
            return
        record = RunRecord.load(self.context, self.sums.party.state.session)
        record.group = vars(self._group)
        if self._small and not record.warned:
            logger.warning("the rows behind a sum can be computed: %s", self._small)
            record.warned = True
        record.store(self.context)

    @property
    def count_mode(self) -> counting.Mode:
        """What is done where more numbers are released than there are unknowns."""
        return counting.mode(self.policy, refuses=self.counts_strictly)

    def note_rows(self, purpose: str, rows: NDArray[Any], *, each: bool = False) -> None:
        """Note of which rows a sum is, where the server chooses them; else it is of all.

        What nobody notes is a sum of all rows that this node learns from.

        Parameters
        ----------
        purpose : str
            Name of the sum, without what follows a # or a second slash; or of anything else that
            is made of these rows.
        rows : ndarray of int
            Places of the rows in :meth:`own_rows`.
        each : bool
            Whether it is made row by row, so that it is of a single row anyway.
        """
        if not self.simulated:
            self.ledger.note(purpose, rows, each=each)

    def figures(
        self,
        purpose: str,
        rows: NDArray[Any],
        values: NDArray[np.float64],
        *,
        total: str = "",
        alone: bool = False,
        users: bool = False,
    ) -> NDArray[np.float64]:
        """Return the figures about held-out rows that may leave this node: these, or zeros.

        Parameters
        ----------
        purpose : str
            What the method calls the evaluation.
        rows : ndarray
            The held-out rows.
        values : ndarray
            The figures.
        total : str
            Name of the sum that they go into, if any.
        alone : bool
            Whether a single party may tell figures of its own rows.
        users : bool
            Whether they are about the rows that are learned from, such as users.

        Raises
        ------
        RefusedError
            Figures of these rows were told too often.
        """
        tests = [len(rows)]
        if total and self.sums is not None:
            state = self.sums.party.state
            members = state.cohorts[self.sums.order(total).cohort].members
            tests = [state.counts[member][0 if users else 1] for member in members]
        why = too_few(self.policy, tests, alone=alone or self.simulated or self.allow_single)
        record = RunRecord.load(self.context, SessionState.load(self.context).session)
        if total:
            record.sums.setdefault(total.partition("#")[0], [])
            record.store(self.context)
        if why:
            logger.warning("figures about held-out rows are not told: %s", why)
            return np.zeros_like(values)
        if not len(rows):
            return values
        same = {"round": 0} if hasattr(self._request, "round") else {}
        request = replace(self._request, **same)
        parts = [repr(sorted(request.scalars().items())).encode()]
        parts += [np.ascontiguousarray(array).tobytes() for array in request.arrays()]
        asked = Asked.of(purpose, np.ascontiguousarray(rows).tobytes(), parts)
        told = enter(record, asked, values.ravel().tolist(), self.policy, self.name)
        if not self.simulated:
            places = rows if users else rows + self.own_rows().learned
            told = self.ledger.tell(record.session, asked.key, places, told)
            record.told[asked.key] = told
        record.store(self.context)
        return np.array(told).reshape(values.shape)

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
            name = type(error).__name__
            frames = "".join(traceback.format_tb(error.__traceback__))
            logger.error("%s; its text is left out, it may quote data\n%s", name, frames)
        raise ClientError(mark_error(name))

    def _dispatch(self, parameters: list[NDArray[Any]], config: dict[str, Scalar]) -> PhaseMessage:
        self.sums, self._group, self._small = None, None, ""
        parameters, config, sections = detach(parameters, config, party=_SERVER)
        phase = str(config.get("phase", ""))
        RunRecord.load(self.context, str(config.get("session", ""))).check(self.name)
        if phase == DescribeRequest.phase:
            opening = DescribeRequest.unpack(parameters, config, party=_SERVER)
            self._open_session(opening)
            return self._announce(opening, self.describe(opening))
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
        reply = handler(request)
        self.ledger.enter(str(config.get("session", "")), sums, records=self.records)
        if self.sums is not None:
            self.sums.check_done()
            if load_state(self.context) is not None and phase != sum_wire.FinishRequest.phase:
                self._keep_count()
                store_state(self.context, self.sums.party.state)
        return reply

    def _count_refusal(self, session: str, error: RefusedError) -> None:
        """Note that an order was refused; at the third nothing of the run is left here to open."""
        with suppress(FedKernError):  # the refusal is what is told
            self.ledger.refuse(session, error.problem.partition(": ")[2])
        if SessionState.load(self.context).session != session:
            return
        record = RunRecord.load(self.context, session)
        record.refusals += 1
        record.store(self.context)
        try:
            record.check(self.name)
        except RefusedError:
            erase_state(self.context)

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
        self.restored, self.answered = not request.resume_round, 0
        before = SessionState.load(self.context)
        if before.session == request.session:  # a run is not begun twice: what was fixed stays so
            state = before
        if request.resume_round:
            path = self.state_path(request.session, f"-round-{request.resume_round}.state")
            if path is not None and path.is_file():
                self.restored = True
                state.round, state.payload = request.resume_round, path.read_bytes()
            noted = self.state_path(request.session, ".answered")
            if noted is not None and noted.is_file():
                self.answered = int(noted.read_text())
                state.round = max(state.round, self.answered)
        state.store(self.context)

    def note_answered(self, session: str, number: int) -> None:
        """Note on disk, before the reply leaves, that a secure round has been answered."""
        path = self.state_path(session, ".answered")
        if path is not None:
            write_atomically(path, str(number).encode(), private=True)

    def state_path(self, session: str, name: str) -> Path | None:
        """Return this node's file for a session in its folder; None without a folder."""
        if self.state_dir is None or not session.isalnum():
            return None
        return self.state_dir / session / f"partition-{self.partition}{name}"

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
        """Add the node's key of the run to its description."""
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
        record = RunRecord.load(self.context, request.session)
        record.secure, record.columns = True, reply.features + self.labels_of_row
        record.store(self.context)
        party = self._party(known)
        public, signature = party.announce((reply.rows, reply.test_rows))
        store_state(self.context, party.state)
        return replace(
            reply,
            public_key=public,
            signature=signature,
            answered=self.answered,
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
            if not RunRecord.load(self.context, session).secure:
                return None
            state = PartyState(session)  # the sums of the run have ended: no order fits
            return ClientSums(self._party(state), self.policy, self.enough_parties)
        self.open_session(session)
        sums = ClientSums(self._party(state), self.policy, self.enough_parties)
        sums.on_check = self._count_table
        sums.take(sections)
        if sums.opened:
            record = RunRecord.load(self.context, session)
            for name, place in sums.opened.items():
                open_once(record, name.partition("#")[0], place, self.name)
            record.store(self.context)
            self.sums = sums
            for name, place in sums.opened.items():
                group = self._counted_rows()
                if group.has(place):
                    opened = sums.party.state.open[place]
                    numbers, alive = group.open(place), sums.survivors[name]
                    self._count(group, numbers, alive, opened.receiver)
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
        )

    def _answer_sections(self, request: sum_wire.SumRequest) -> sum_wire.SumReply:
        self.open_session(request.session)
        return sum_wire.SumReply()

    def _finish_sums(self, request: sum_wire.FinishRequest) -> sum_wire.SumReply:
        state = self.open_session(request.session)
        state.payload = self.forget(state)
        state.store(self.context)
        record = RunRecord.load(self.context, request.session)
        record.told = {}
        record.store(self.context)
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
