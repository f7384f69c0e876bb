"""Clients whose handlers are marked: their state is loaded before an answer and kept after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any, ClassVar, TypeVar

import numpy as np
from flwr.app import Context

from ..errors import ProtocolError, TableError
from ..secure_sum.noise_keys import asked
from ..wire import PhaseMessage
from .client import Handler, PhaseClient
from .failures import NoReplyError
from .guarded import OF_AN_ATTEMPT
from .kept_state import KeptState, NotKeptError
from .session_state import SessionState
from .sums import ClientSums, erase_state

Answer = TypeVar("Answer", bound=Callable[..., Any])


def answers(what: str | type[PhaseMessage], *, last: bool = False) -> Callable[[Answer], Answer]:
    """Mark a client's method that answers for this client alone.

    Of a name it is called with the arguments of the :class:`~fedkern_flwr.steps.Ask` and returns
    what is to be sent, key -> value; of a class of requests with the request, and returns the
    reply, whose round is filled in. What it returns the server sees: it is no sum.

    The ``last`` request of a run ends it: all but what the handler leaves in ``kept`` is erased
    then. It may come again, if the reply was lost.
    """

    def mark(method: Answer) -> Answer:
        method.answers = what  # type: ignore[attr-defined]
        if last:
            method.ends = what  # type: ignore[attr-defined]
        return method

    return mark


class AnsweringClient(PhaseClient):
    """Base class of clients whose handlers are marked with :func:`answers`.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context.
    **common
        Options of :class:`~fedkern_flwr.node.client.PhaseClient`.

    Attributes
    ----------
    kept : KeptState
        What the client remembers from one message to the next, of ``state_class``.
    """

    #: Has ``unpack(bytes)``, ``pack()`` and ``twin()``.
    state_class: ClassVar[Any] = KeptState

    def __init__(self, context: Context, **common: Any) -> None:
        super().__init__(context, **common)
        self.kept = self.state_class()

    def handlers(self) -> dict[str, tuple[type[PhaseMessage], Handler]]:
        """Return the phases that this client answers."""
        last = self.marked("ends")
        return {
            what.phase: (what, partial(self.ending if what in last else self.answering, method))
            for what, method in self.marked("answers").items()
            if not isinstance(what, str)
        }

    def keep_fixed(self, session: str) -> None:
        """Keep what was pinned, and the party's secret, of a message that failed."""
        super().keep_fixed(session)
        state = SessionState.load(self.context)
        if session and state.session == session:
            before = state.opened(self.state_class)
            if isinstance(before, KeptState):
                self.kept.leave_pins(before)
                state.kept = before
                state.store(self.context)

    def question(self) -> str:
        """Return the name of what is asked, and of what was settled by messages before."""
        session = self._request.session
        settled = self.kept.settled(session) if isinstance(self.kept, KeptState) else b""
        return asked(super().question(), settled)

    def answer(self, request: Any, method: Callable[[Any], Any]) -> Any:
        """Return what a handler replies; subclasses check orders before and add to sums after."""
        return method(request)

    def answering(self, method: Callable[..., Any], request: Any) -> PhaseMessage:
        """Open the round of a request, call its handler, and keep its state."""
        every = getattr(request, "checkpoint_every", 0)
        state = self.open_round(request.session, request.round, every)
        self.kept = state.opened(self.state_class)
        reply = self._reply(request, method)
        self.close_round(state, request.round, self.kept, every)
        return reply

    def ending(self, method: Callable[..., Any], request: Any) -> PhaseMessage:
        """Call the handler of a run's last request, and erase what is left of the run.

        It may be asked again, but nothing else in its place.
        """
        self.pin_options({f"{request.phase}.last request": _content(request)})
        with self.keeping(request.session):
            reply = self._reply(request, method)
            erase_state(self.context)
            self.ledger.end_run(request.session)
            self.sums = None  # or it would be stored again
        return reply

    def pin_options(self, options: Mapping[str, Any]) -> None:
        """Fix public options for the rest of the run, also if the message at hand fails.

        Raises
        ------
        RefusedError
            One is not that of an earlier request.
        """
        if self.record.pin(options):
            self._keep_record()

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
        if not isinstance(reply, PhaseMessage):
            raise NoReplyError(method, reply)
        number: dict[str, Any] = {"round": request.round}
        return replace(reply, **number)

    @contextmanager
    def keeping(self, session: str) -> Iterator[None]:
        """Load what is kept of a run, outside its rounds, and store it if nothing was raised."""
        state = self.open_session(session)
        self.kept = state.opened(self.state_class)
        yield
        state.kept = self.kept
        state.store(self.context)

    # -- for handlers

    def check_table(self, digest: str) -> None:
        """Refuse another table than the one with which this run began.

        Raises
        ------
        TableError
        """
        if not self.kept.pin("table", digest):
            raise TableError(
                "its table is not the one with which this run began",
                remedy="bring that table back, or start the run anew",
                code="FK-CHECKPOINT-PARTIES",
            )

    @property
    def secure_sums(self) -> ClientSums:
        """The sums of the message at hand, for values that leave this node in no other way.

        Raises
        ------
        ProtocolError
            There are none.
        """
        if self.sums is None:
            raise ProtocolError(
                "values are asked for that leave this node in secure sums only",
                remedy="run the same release of fedkern-flwr on both sides",
                code="FK-ORDER-PLAIN",
            )
        return self.sums

    def marked(self, mark: str) -> dict[Any, Callable[..., Any]]:
        """Return what is marked -> method; one that overrides a marked one need not be marked."""
        return {what: getattr(self, name) for name, what in _marks(type(self), mark)}


def _content(request: Any) -> bytes:
    """Return what a request says, but for what another attempt may change."""
    told = sorted(item for item in request.scalars().items() if item[0] not in OF_AN_ATTEMPT)
    arrays = (b"%r" % (a.shape,) + np.ascontiguousarray(a).tobytes() for a in request.arrays())
    return repr(told).encode() + b"/".join(arrays)


@cache  # a client is made for every message
def _marks(cls: Any, mark: str) -> tuple[tuple[str, Any], ...]:
    """Return (name of a method, what it is marked with) of a class and its bases."""
    found = {
        name: getattr(method, mark)
        for base in reversed(cls.__mro__)
        for name, method in vars(base).items()
        if hasattr(method, mark)
    }
    return tuple(found.items())
