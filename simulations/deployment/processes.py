"""Start processes together and end them all."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fedkern_flwr.checkpoint import open_private, write_atomically
from fedkern_flwr.errors import EngineError


class Processes:
    """Processes with a log each, each the leader of its own group.

    A group ends as a whole. A Ctrl-C at the terminal does not reach it: we choose the sequence. The
    file ``pids`` lists the leaders; after ``grace`` seconds they are killed.
    """

    def __init__(self, environment: Mapping[str, str], pids: Path, grace: float = 10.0) -> None:
        self.environment, self.pids, self._grace = dict(environment), pids, grace
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.logs: dict[str, Path] = {}

    def start(self, name: str, command: Sequence[str | Path], log: Path) -> int:
        """Start a process; return its id.

        Raises
        ------
        EngineError
            It cannot be started.
        """
        try:
            with open_private(log, append=True) as out:
                self.started[name] = process = subprocess.Popen(
                    [str(part) for part in command],
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
        except OSError as error:
            raise EngineError(
                f"{name} cannot be started ({error.strerror})",
                remedy="pip install fedkern-flwr into the environment of this command",
                code="FK-PACKAGE-MISSING",
            ) from None
        self.logs[name] = log
        self._note()
        return process.pid

    def ended(self) -> list[str]:
        """Return the processes that have ended by themselves."""
        return [name for name, process in self.started.items() if process.poll() is not None]

    def end(self, name: str) -> None:
        """Let a process end by itself; kill it if it does not."""
        _signal(self.started[name], signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.started[name].wait(self._grace)
        self.kill(name)

    def kill(self, name: str) -> None:
        """Kill a process and its group at once."""
        process = self.started.pop(name)
        _signal(process, signal.SIGKILL)
        process.wait()
        self._note()

    def stop(self) -> None:
        """Stop all, the last one first; kill those that do not end in time, or at Ctrl-C."""
        running = [*reversed(self.started.values())]
        try:
            for process in running:
                _signal(process, signal.SIGTERM)
            deadline = time.monotonic() + self._grace
            for process in running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, deadline - time.monotonic()))
        finally:
            for process in running:
                _signal(process, signal.SIGKILL)  # also what a leader has left in its group
            for process in running:
                process.wait()
            self.started.clear()
            self.pids.unlink(missing_ok=True)

    def _note(self) -> None:
        ids = "".join(f"{process.pid}\n" for process in self.started.values())
        write_atomically(self.pids, ids.encode(), private=True)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the group of a process, if it still exists."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
