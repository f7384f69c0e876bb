"""Which run a message belongs to, and where a node keeps what belongs to a run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message

from .errors import ProtocolError

_LENGTH = 64
_FOLDER = re.compile(r"(?:\d{4}-\d\d-\d\dT\d{4}Z-)?([^\W_]+)")
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


def run_folder(state_dir: Path, session: str, partition: int) -> Path:
    """Return the folder of a run in a node's own folder; it need not be there yet.

    A new one is named by the time and the session, such as ``2026-11-27T0812Z-5e1f``, so that they
    are in the order of time. The session alone says which run it is: it is letters and digits, and
    a run that is resumed keeps it. Folders of earlier releases are named by the session alone.

    Nodes that share a folder may begin a run in different minutes: each finds the folder that has
    its files.
    """
    plain = state_dir / session
    found = [plain] if plain.is_dir() else sorted(state_dir.glob(f"????-??-??T????Z-{session}"))
    own = (one for one in found if any(one.glob(f"partition-{partition}[.-]*")))
    fresh = state_dir / f"{time.strftime('%Y-%m-%dT%H%MZ', time.gmtime())}-{session}"
    return next(own, found[0]) if len(found) > 1 else [*found, fresh][0]


def session_of(folder: Path) -> str:
    """Return the session that the name of a run's folder ends in; empty of other folders."""
    found = _FOLDER.fullmatch(folder.name)
    return found[1] if found else ""
