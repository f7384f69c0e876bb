"""The rounds of a run at a node: each is done once, and its state is kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flwr.app import Context

from ..checkpoint import write_atomically
from ..errors import OptionError, ProtocolError
from ..run_names import run_folder
from .guarded import GuardedNode
from .session_state import SessionState

#: What helps where a node knows nothing of a run that goes on.
STATE_LOST = (
    "give the node a state-dir, so that it can go on after a restart, and start the run again"
)
_KEPT_STATES = 32  # a checkpoint is written a few rounds after the one it belongs to


class SessionNode(GuardedNode):
    """What a client remembers of its rounds, in its context and in its folder."""

    state_dir: Path | None

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
                remedy=STATE_LOST,
                code="FK-MESSAGE-SESSION",
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
                code="FK-MESSAGE-ORDER",
            )
        if checkpoint_every:  # checkpoints whose rounds never reached this node find it unchanged
            last = number - 1 - (number - 1) % checkpoint_every
            missed = range(last, state.round, -checkpoint_every)[:_KEPT_STATES]
            for due in reversed(missed):
                self._save(state, due)
        return state

    def close_round(
        self, state: SessionState, number: int, kept: Any, checkpoint_every: int
    ) -> None:
        """Keep the state after a round; the last thing a handler does before it answers.

        In a secure run the number is noted on disk as well: a run that is resumed must not repeat
        a sum of the same values, see :meth:`.PhaseClient._open_session`.
        """
        state.round, state.kept = number, kept
        if self.sums is not None and checkpoint_every:
            self.note_answered(state.session, number)
        if checkpoint_every and number % checkpoint_every == 0:
            self._save(state, number)
        state.store(self.context)

    def note_answered(self, session: str, number: int, *, opened: bool = False) -> None:
        """Note on disk, before the reply leaves, that a secure round was answered, or opened."""
        path = self.state_path(session, ".opened" if opened else ".answered")
        if path is not None:
            write_atomically(path, str(number).encode(), private=True)

    def noted(self, session: str, name: str) -> int:
        """Return the round that was noted; 0 if none was."""
        path = self.state_path(session, name)
        return int(path.read_text()) if path is not None and path.is_file() else 0

    def state_path(self, session: str, name: str) -> Path | None:
        """Return this node's file for a session in its folder; None without a folder."""
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


def node_number(context: Context, key: str) -> int:
    """Return a whole number of the node's configuration.

    Raises
    ------
    OptionError
    """
    value = context.node_config.get(key)
    if type(value) is not int:
        raise OptionError(
            f"the node's configuration has no whole number {key}",
            remedy='start the SuperNode with --node-config "partition-id=0 num-partitions=..."'
            if key == "partition-id"
            else "add num-partitions=... to --node-config",
            code="FK-NODE-KEY",
        )
    return value
