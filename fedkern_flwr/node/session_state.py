"""The private state of a node within a run."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import Context

from ..flower_compat import config_record

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
        return cls() if record is None else cls(**dict(record.items()))  # type: ignore[arg-type]

    def store(self, context: Context) -> None:
        """Replace the state of a node."""
        context.state[_RECORD] = config_record(
            {
                "session": self.session,
                "round": self.round,
                "payload": self.payload,
            }
        )
