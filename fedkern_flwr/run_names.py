"""Which run a message belongs to, for what builds the client that answers it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from flwr.app import ConfigRecord, Context, Message

from .errors import ProtocolError

_LENGTH = 64
_session: ContextVar[str | None] = ContextVar("_session", default=None)


def with_session(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Note the session of a message while it is answered.

    A mod of Flower's ``ClientApp``, whose function that builds a client sees the context alone.

    Raises
    ------
    ProtocolError
        The message names two sessions: rows would be read for the one and summed in the other.
    """
    named = {
        str(record["session"])
        for record in (message.content.values() if message.has_content() else ())
        if isinstance(record, ConfigRecord) and "session" in record
    }
    if len(named) > 1:
        raise ProtocolError(
            "a message names two sessions",
            remedy="run the same release of fedkern-flwr on both sides",
            code="FK-MESSAGE-FIELD",
        )
    session = "".join(named)
    found = session[:_LENGTH] if session.isalnum() else ""
    before = _session.set(found)
    try:
        return call_next(message, context)
    finally:
        _session.reset(before)


def run_name(context: Context) -> str | None:
    """Return what tells a run from others: its session, which a run that is resumed keeps.

    None where no message is being answered, as in a program that looks at its own rows.
    """
    session = _session.get()
    return f"run {context.run_id}" if session == "" else session
