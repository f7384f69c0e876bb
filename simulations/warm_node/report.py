"""What a node tells those who watch it while it runs: its status, and figures for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedkern_flwr.errors import FedKernError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.policy import read_policy
from fedkern_flwr.guard.totals import LedgerTotals, ledger_totals
from fedkern_flwr.plain_text import plain_line

from .log import SUPERNODE, Line, connection
from .metrics import write_metrics
from .status import NodeStatus, utc_now

KEEPER = "node"  # source of the lines of the process that keeps the others
WRITTEN = 10.0  # seconds at most from one writing of the status to the next

_LONGEST = 200  # characters of a line about an error


class NodeReport:
    """The status of a node, and its figures if they are wanted.

    Parameters
    ----------
    superlink : str
        Address of the SuperLink.
    config : mapping
        The node's configuration: its ``state-dir`` gets the status, its ``policy`` is looked up.
    metrics : Path, optional
        File for Prometheus.
    say : callable
        Told once what cannot be written.
    pause : float (default: 2.0)
        Seconds at least from one writing of what has changed to the next.
    """

    def __init__(
        self,
        superlink: str,
        config: Mapping[str, Any],
        metrics: Path | None = None,
        say: Callable[[str], None] = lambda _: None,
        *,
        pause: float = 2.0,
    ) -> None:
        self.status, self._pause = NodeStatus(superlink), pause
        self.config, self.metrics, self.say = config, metrics, say
        self._totals: LedgerTotals | None = None
        self._changed, self._written, self._complained = True, -WRITTEN, False

    def line(self, line: Line) -> None:
        """Take note of a line that one of the node's processes printed."""
        found = connection(line)
        if found is not None and found != self.status.connected:
            self.status.connected = found
            self.status.connected_since = utc_now() if found else ""
            self._changed = True
        if line.level in ("ERROR", "CRITICAL") and line.source in (SUPERNODE, KEEPER):
            self.status.last_error = f"{utc_now()} {plain_line(line.text, _LONGEST)}"
            self._changed = True

    def began(self) -> None:
        """Count a message that was taken."""
        self.status.messages += 1
        self.status.busy += 1
        self.status.last_message = utc_now()
        self._changed = True

    def ended(self, seconds: float, cpu_seconds: float, *, failed: bool) -> None:
        """Count a message whose process has ended, with what it took."""
        self.status.busy -= 1
        self.status.failures += failed
        self.status.message_seconds += seconds
        self.status.cpu_seconds += cpu_seconds
        self._changed, self._totals = True, None

    def supernode_ended(self) -> None:
        """Note that the SuperNode is gone, and with it the connection."""
        self.status.connected, self.status.connected_since = False, ""
        self.status.busy, self._changed = 0, True

    def save(self, *, now: bool = False) -> None:
        """Write what has changed, but not too often; to be called every second or so.

        What cannot be written is said once and does not stop the node.
        """
        passed = time.monotonic() - self._written
        if not now and passed < (self._pause if self._changed else WRITTEN):
            return
        self._changed, self._written = False, time.monotonic()
        try:
            if folder := self.config.get("state-dir"):
                self.status.write(Path(str(folder)))
            if self.metrics is not None:
                write_metrics(self.metrics, self.status, self._ledger(), self._allowed())
            self._complained = False
        except (OSError, FedKernError) as error:
            if not self._complained:
                reason = getattr(error, "strerror", None) or plain_line(str(error), _LONGEST)
                self.say(f"status or metrics cannot be written: {reason}")
            self._complained = True

    def _ledger(self) -> LedgerTotals | None:
        """Return what the ledger holds; it is read again when a message has been answered."""
        folder = self.config.get("state-dir")
        if self._totals is None and folder:
            self._totals = ledger_totals(Path(str(folder)))
        return self._totals

    def _allowed(self) -> int:
        file = self.config.get("policy")
        return (read_policy(Path(str(file))) if file else NodePolicy()).max_evaluations
