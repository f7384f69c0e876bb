"""What a running node says of itself in ``node-status.json`` of its state-dir.

Times, counts and lines that the node itself writes: nothing of its data, and of what a client
prints nothing, since a traceback may quote a cell.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from fedkern_flwr import __version__
from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import OptionError

FILE = "node-status.json"

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_ENDED = "ZX"  # states of a process that is over and that nobody has asked for yet
_STARTED = 19  # place of the start time in /proc/PID/stat, counted from behind the name


@dataclass
class NodeStatus:
    """What a node says of itself; times are UTC.

    Attributes
    ----------
    superlink : str
        Address of the SuperLink.
    pid : int
        The node's process.
    process : str
        When that process was started, as the system tells: what distinguishes it from a later one
        of the same number.
    version : str
        Of fedkern-flwr.
    started, written : str
        When the node was started, and when this was written.
    connected : bool
        Whether its SuperNode reaches the SuperLink.
    connected_since : str
        Since when; empty if it does not.
    busy : int
        Messages that are being answered.
    messages, failures : int
        Messages that were taken, and those that ended in an error or whose process died.
    message_seconds, cpu_seconds : float
        What answering them took, and of that of the processors.
    last_message : str
        When the last one was taken.
    last_error : str
        The last line about something that went wrong at the node itself.
    """

    superlink: str
    pid: int = field(default_factory=os.getpid)
    process: str = field(default_factory=lambda: started_at(os.getpid()))
    version: str = __version__
    started: str = field(default_factory=lambda: utc_now())
    written: str = ""
    connected: bool = False
    connected_since: str = ""
    busy: int = 0
    messages: int = 0
    failures: int = 0
    message_seconds: float = 0.0
    cpu_seconds: float = 0.0
    last_message: str = ""
    last_error: str = ""

    def write(self, folder: Path) -> None:
        """Write it into a folder, for this user's eyes only."""
        self.written = utc_now()
        text = json.dumps(asdict(self), indent=2)
        write_atomically(folder / FILE, f"{text}\n".encode(), private=True)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return what a node has written into a folder; None if it never did.

        Raises
        ------
        OptionError
            The file cannot be read, or a node of another release has written it.
        """
        try:
            values: dict[str, Any] = json.loads((folder / FILE).read_text())
            found = cls(**values)
            _time(found.written)
            return found
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            raise OptionError(
                f"{FILE} in {folder} cannot be read",
                remedy="ask as the user of the node, with the release that the node runs",
                code="FK-NODE-STATUS",
            ) from None

    @property
    def running(self) -> bool:
        """Whether the process that wrote it is still there, and not another of its number."""
        return bool(self.process) and started_at(self.pid) == self.process

    @property
    def age(self) -> float:
        """Seconds since it was written."""
        return (datetime.now(UTC) - _time(self.written)).total_seconds()


def started_at(pid: int) -> str:
    """Return when a process was started, in the system's own words; empty if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in _ENDED else f"{_BOOT.read_text().strip()} {fields[_STARTED]}"
    except (OSError, IndexError):
        return ""


def utc_now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def timestamp(text: str) -> float:
    """Return a time of the status as seconds since 1970; 0 for none."""
    return _time(text).timestamp() if text else 0.0


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
