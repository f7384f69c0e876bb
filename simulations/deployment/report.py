"""Report on a node: its log, its status, and figures for Prometheus.

The status is ``node-status.json`` of its state-dir. It has times, counts and lines of the node
itself, nothing of its data or of clients: a traceback may quote a cell.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from fedkern_flwr import __version__
from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import FedKernError, OptionError
from fedkern_flwr.flower_compat import CONNECTED, CONTENT_SECONDS, DISCONNECTED, RUN_OF_MESSAGE
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import LedgerTotals, ledger_totals
from fedkern_flwr.guard.policy import read_policy
from fedkern_flwr.log_lines import json_line, utc_now
from fedkern_flwr.plain_text import plain_line
from fedkern_flwr.watch import Family, write_figures

FILE = "node-status.json"

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_ENDED = "ZX"  # states of a process that has ended and is not reaped yet
_STARTED = 19  # place of the start time in /proc/PID/stat, counted from behind the name

SUPERNODE = "supernode"

# As Flower prints it, "INFO :  text", with the time where it logs more, and as uvicorn does.
_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) ?(?:\d{4}-\d\d-\d\d [\d:,]+ ?)?:( |$)")
_LONGEST, _LONGEST_ERROR = 10_000, 200  # characters of a line, and of one about an error

KEEPER = "node"  # source of the lines of the process that keeps the others
WRITTEN = 10.0  # seconds at most from one writing of the status to the next


# -- its log


@dataclass(frozen=True)
class Line:
    """A line of a log.

    Attributes
    ----------
    source : str
        ``supernode``, ``executor``, ``client`` or ``node``.
    text : str
        Without colours and the level.
    level : str
        Without a stated one, as in tracebacks, that of the line before.
    run : int, optional
    """

    source: str
    text: str
    level: str = "INFO"
    run: int | None = None

    def to_json(self) -> str:
        """Return one JSON object on a line."""
        return json_line(self.text, self.level, self.source, self.run)


class LogReader:
    """Parse the output of one process.

    Parameters
    ----------
    source : str
        The process.
    run : int, optional
        The run of all its lines.
    """

    def __init__(self, source: str, run: int | None = None) -> None:
        self.source, self.run, self._level = source, run, "INFO"

    def line(self, printed: str) -> Line:
        """Parse a printed line, without its end."""
        text = plain_line(printed, _LONGEST)
        found = _LEVEL.match(text)
        if found is not None:
            self._level, text = found[1], text[found.end() :]
        else:  # of a traceback
            text = " " * (len(printed) - len(printed.lstrip(" "))) + text
        about = re.match(RUN_OF_MESSAGE, text)
        if about is not None and self.source == SUPERNODE:
            self.run = int(about[1])
        return Line(self.source, text, self._level, self.run)


def connection(line: Line) -> bool | None:
    """Return whether a line of the SuperNode says that it reaches the SuperLink; None for neither.

    Only lines of the SuperNode itself count.
    """
    if line.source != SUPERNODE:
        return None
    if line.text.startswith(CONNECTED):
        return True
    return False if line.text.startswith(DISCONNECTED) else None


# -- its status


@dataclass
class NodeStatus:
    """Status of a node; times are UTC, empty where they do not apply.

    Attributes
    ----------
    superlink : str
        Address of the SuperLink.
    pid, process : int, str
        The node's process, and its start: a later one may have the same number.
    version : str
    started, written, connected_since, message_since, last_message : str
        Times: start, writing, connection, current message, last message.
    connected : bool
        Whether its SuperNode reaches the SuperLink.
    busy, run : int, str
        Messages being answered, and the run of the current one.
    stuck : str
        The problem, if the message should be over.
    messages, failures : int
        Messages taken, and those that ended in an error or the death of their process.
    message_seconds, cpu_seconds : float
        Time and processor time of answers.
    last_error : str
        The last line about an error of the node itself.
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
    run: str = ""
    message_since: str = ""
    stuck: str = ""
    messages: int = 0
    failures: int = 0
    message_seconds: float = 0.0
    cpu_seconds: float = 0.0
    last_message: str = ""
    last_error: str = ""

    def write(self, folder: Path) -> None:
        """Write it into a folder, readable by this user only."""
        self.written = utc_now()
        text = json.dumps(asdict(self), indent=2)
        write_atomically(folder / FILE, f"{text}\n".encode(), private=True)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the status in a folder; None if there is none.

        Raises
        ------
        OptionError
            The file cannot be read, or has another release's format.
        """
        try:
            found = cls(**json.loads((folder / FILE).read_text()))
            _time(found.written)
            return found
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            raise OptionError(f"{FILE} in {folder} cannot be read", code="FK-NODE-STATUS") from None

    @property
    def running(self) -> bool:
        """Whether the process that wrote it still runs."""
        return bool(self.process) and started_at(self.pid) == self.process

    @property
    def age(self) -> float:
        """Seconds since it was written."""
        return (datetime.now(UTC) - _time(self.written)).total_seconds()


def started_at(pid: int) -> str:
    """Return the start of a process in the system's format; empty if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in _ENDED else f"{_BOOT.read_text().strip()} {fields[_STARTED]}"
    except (OSError, IndexError):
        return ""


def timestamp(text: str) -> float:
    """Return a time of the status as seconds since 1970; 0 for none."""
    return _time(text).timestamp() if text else 0.0


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


# -- its figures


def write_metrics(
    file: Path, status: NodeStatus, totals: LedgerTotals | None, max_evaluations: int | None
) -> None:
    """Write all figures of a node; ``totals`` are of its ledger, if it could be read."""
    write_figures(file, "fedkern_node", _families(status, totals, max_evaluations))


def _families(
    status: NodeStatus, totals: LedgerTotals | None, max_evaluations: int | None
) -> Iterator[Family]:
    """Yield name, type, meaning and samples."""
    info = f'{{version="{status.version}"}}'
    yield "info", "gauge", "Release of fedkern-flwr.", [(info, 1)]
    yield "written_timestamp_seconds", "gauge", "When this was written.", time.time()
    yield "connected", "gauge", "Whether the SuperLink is reached.", status.connected
    yield "start_timestamp_seconds", "gauge", "When it was started.", timestamp(status.started)
    yield "busy_messages", "gauge", "Messages being answered.", status.busy
    yield "messages_total", "counter", "Messages taken.", status.messages
    yield "failures_total", "counter", "Messages that ended in an error.", status.failures
    since = [(f'{{run="{status.run}"}}', timestamp(status.message_since))] if status.run else []
    yield "message_start_timestamp_seconds", "gauge", "When the message at hand came.", since
    yield "stuck", "gauge", "Whether the message at hand should be over.", bool(status.stuck)
    answered = status.messages - status.busy
    took = [("_sum", status.message_seconds), ("_count", answered)]
    yield "message_seconds", "summary", "What answering took.", took
    yield "client_cpu_seconds_total", "counter", "Time of processors.", status.cpu_seconds
    last = timestamp(status.last_message)
    yield "last_message_timestamp_seconds", "gauge", "When the last one was taken, or 0.", last
    if totals is not None:
        yield "runs_total", "counter", "Runs in the ledger.", totals.runs
        yield "sums_total", "counter", "Sums in the ledger.", totals.sums
        refused = [(f'{{rule="{rule}"}}', float(n)) for rule, n in totals.refusals.items()]
        yield "refusals_total", "counter", "Refusals in the ledger.", refused
        yield "evaluations_told", "gauge", "How often the same rows were.", totals.told
    if max_evaluations is not None:
        yield "evaluations_allowed", "gauge", "How many may be told.", max_evaluations


# -- what keeps them


class NodeReport:
    """Keep the status of a node, and its figures in a file ``metrics`` for Prometheus.

    ``config`` is the node's configuration, with ``state-dir`` and ``policy``. ``say`` is called
    once with what cannot be written. An answer may take ``longest`` seconds; ``pause`` seconds pass
    between two writings. ``was_killed`` says whether an earlier process of the node was killed.
    """

    def __init__(
        self,
        superlink: str,
        config: Mapping[str, Any],
        metrics: Path | None = None,
        say: Callable[[str], None] = lambda _: None,
        *,
        longest: float = 3600.0,
        pause: float = 2.0,
    ) -> None:
        self.status, self._pause = NodeStatus(superlink), pause
        self.config, self.metrics, self.say, self._longest = config, metrics, say, longest
        self.was_killed = self._was_killed()
        self._due, self._stuck = math.inf, ""
        self._totals: LedgerTotals | None = None
        self._changed, self._written, self._complained = True, -WRITTEN, False

    def _was_killed(self) -> bool:
        """Return whether an earlier process of the node was killed."""
        folder = self.config.get("state-dir")
        with suppress(OptionError):
            before = NodeStatus.read(Path(str(folder))) if folder else None
            return before is not None and before.connected and not before.running
        return False

    def line(self, line: Line) -> None:
        """Note a line that one of the node's processes printed."""
        found = connection(line)
        if found is not None and found != self.status.connected:
            self.status.connected = found
            self.status.connected_since = utc_now() if found else ""
            self._changed = True
        if line.level in ("ERROR", "CRITICAL") and line.source in (SUPERNODE, KEEPER):
            self.status.last_error = f"{utc_now()} {plain_line(line.text, _LONGEST_ERROR)}"
            self._changed = True

    def began(self) -> None:
        """Count a message that was taken."""
        self.status.messages += 1
        self.status.busy += 1
        self.status.last_message = utc_now()
        self._changed = True
        if self.status.run:
            self._await(self._longest, f"answering it takes longer than {self._longest:g} s")

    def comes(self, run: str) -> None:
        """Note that a message of a run arrives, or a part of it."""
        self.status.run, self.status.message_since = run, self.status.message_since or utc_now()
        self._await(CONTENT_SECONDS, f"parts of it are missing after {CONTENT_SECONDS:g} s")

    def there(self) -> None:
        """Note that the whole message is there, to be taken by an answering process."""
        if not self.status.busy:  # its task may have been taken before
            self._await(CONTENT_SECONDS, f"no process answers it after {CONTENT_SECONDS:g} s")

    def done(self) -> None:
        """Note that there is no current message."""
        self.status.run = self.status.message_since = ""
        self._await(math.inf, "")

    def _await(self, seconds: float, stuck: str) -> None:
        """Expect the next step of the current message; else ``stuck`` is the problem."""
        self._due, self._stuck, self._changed = time.monotonic() + seconds, stuck, True

    def ended(self, seconds: float, cpu_seconds: float, *, failed: bool) -> None:
        """Count a message, with time and processor time of its process."""
        self.status.busy -= 1
        self.status.failures += failed
        self.status.message_seconds += seconds
        self.status.cpu_seconds += cpu_seconds
        self._changed, self._totals = True, None

    def supernode_ended(self) -> None:
        """Note that the SuperNode and its connection are gone."""
        self.status.connected, self.status.connected_since = False, ""
        self.status.busy = 0
        self.done()

    def save(self, *, now: bool = False) -> None:
        """Write changes, but not too often; call it about every second.

        A failure to write is reported once and does not stop the node.
        """
        stuck = self._stuck if time.monotonic() > self._due else ""
        self._changed |= stuck != self.status.stuck
        self.status.stuck = stuck
        passed = time.monotonic() - self._written
        if not now and passed < (self._pause if self._changed else WRITTEN):
            return
        self._changed, self._written = False, time.monotonic()
        try:
            if folder := self.config.get("state-dir"):
                self.status.write(Path(str(folder)))
            if self.metrics is not None:
                if self._totals is None and folder:
                    self._totals = ledger_totals(Path(str(folder)))
                file = self.config.get("policy")
                policy = read_policy(Path(str(file))) if file else NodePolicy()
                write_metrics(self.metrics, self.status, self._totals, policy.max_evaluations)
            self._complained = False
        except (OSError, FedKernError) as error:
            if not self._complained:
                reason = getattr(error, "strerror", None) or plain_line(str(error), _LONGEST_ERROR)
                self.say(f"status or metrics cannot be written: {reason}")
            self._complained = True
