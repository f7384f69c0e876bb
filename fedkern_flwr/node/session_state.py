"""The private state of a node within a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flwr.app import Context

from ..flower_compat import held_in, held_record

_RECORD = "fedkern"


@dataclass
class SessionState:
    """The private state of a node within a run; lives in ``Context.state``, never sent.

    Attributes
    ----------
    session : str
        The run it belongs to.
    round : int
        Last round done.
    kept : bytes or object
        What the method keeps, small: packed, or an object with ``pack()`` and ``twin()``.
    """

    session: str = ""
    round: int = 0
    kept: Any = b""

    @property
    def payload(self) -> bytes:
        """What the method keeps, packed."""
        return self.kept if isinstance(self.kept, bytes) else bytes(self.kept.pack())

    @payload.setter
    def payload(self, packed: bytes) -> None:
        self.kept = packed

    def opened(self, kind: Any) -> Any:
        """Return what the method keeps, of its class ``kind``, to be changed at will.

        What a message that fails has changed must be gone with it, so this is a twin.
        """
        return self.kept.twin() if type(self.kept) is kind else kind.unpack(self.payload)

    @classmethod
    def load(cls, context: Context) -> SessionState:
        """Read the state of a node, empty at first."""
        record: Any = context.state.get(_RECORD)
        held: SessionState | None = held_in(record)
        if held is not None:
            return replace(held)
        return (
            cls() if record is None else cls(*(record[n] for n in ("session", "round", "payload")))
        )

    def store(self, context: Context) -> None:
        """Replace the state of a node."""
        now = replace(self)
        context.state[_RECORD] = held_record(
            now, lambda: {"session": now.session, "round": now.round, "payload": now.payload}
        )
