"""One process that keeps a node running: its SuperNode, who asks for tasks, who answers them.

It imports once and has no thread and no socket, so that it can be copied at any time: every message
is answered by a copy that ends with it. All it does itself is to read what the others print.
"""

from __future__ import annotations

import gc
import json
import os
import secrets
import selectors
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from fedkern_flwr.errors import FedKernError, OptionError
from fedkern_flwr.flower_compat import MESSAGE_ARRIVED, run_supernode
from fedkern_flwr.node_config import read_config, reread_config
from fedkern_flwr.online.stream_files import fed_by_socket

from .feeder import feed
from .forked import Forked, fork
from .log import SUPERNODE, LogReader, connection
from .report import KEEPER, NodeReport
from .start import NodeSettings
from .tasks import FREE, HINT, TASK, answer, ask_for_tasks, warm_up

_HOST = "127.0.0.1"
_LOOK = 1.0  # seconds from one look at what is overdue to the next
_AGAIN = 1.0  # seconds until who asks for tasks is started again
_ASKS, _FEEDS = "executor", "feeder"
#: Why a SuperNode ends that nobody has told to: so it does where its signature is not taken.
_REFUSED = (
    ": the SuperLink refuses what it signs; its clock is wrong by more than five minutes, or its "
    "key is no longer registered"
)
_ENDS = (signal.SIGTERM, signal.SIGINT)
_LONGEST = 1 << 20  # bytes of a line


@dataclass
class _Running:
    """A process and the line that it has begun."""

    process: Forked
    log: LogReader
    rest: bytes = b""
    began: float = 0.0  # answers a message since then


class WarmNode:
    """A SuperNode, who asks it for tasks, and a process for each that it has.

    Parameters
    ----------
    settings : NodeSettings
        What it is started with.

    Raises
    ------
    OptionError
        The node's configuration cannot be used.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self.config = read_config(Path(settings.node_config))
        metrics = Path(settings.metrics) if settings.metrics else None
        self.report = NodeReport(settings.superlink, self.config, metrics, self._say)
        self._log = LogReader(KEEPER)
        self.address = f"{_HOST}:{settings.port}"
        self._secret = secrets.token_bytes(32)
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, _Running] = {}
        self._asking: Forked | None = None  # not before the SuperNode is there to be asked
        self._feeding: Forked | None = None  # where rows come to a socket
        self._ending, self._reload, self._stopping = 0, False, False

    def run(self) -> int:
        """Run until the SuperNode ends, or this process is told to; return an exit code."""
        self._wake_on_signals()
        with tempfile.TemporaryDirectory(prefix="fedkern-node-") as folder:
            file = self._secret_file = Path(folder, "secret")
            file.touch(0o600)
            file.write_bytes(self._secret)
            arguments = ["--superlink", self.settings.superlink, *self.settings.supernode]
            arguments += ["--node-config", self.settings.node_config, "--isolation", "process"]
            arguments += ["--host", _HOST, "--port", str(self.settings.port)]
            arguments += ["--superexec-auth-secret-file", str(file)]
            gc.collect()
            gc.freeze()
            reader = LogReader(SUPERNODE)
            supernode = self._fork(reader, lambda: run_supernode(arguments), signal.SIGTERM)
            self._feed()
            code = None
            try:
                while code is None:
                    self._read()
                    code = self._reap(supernode.pid)
                    self._kill_overdue()
                    self._read_config()
                    self.report.save()
            finally:
                self._stop(supernode.pid)
                self.report.supernode_ended()
                self.report.save(now=True)
        return 128 + self._ending if self._ending else code

    # -- processes

    def _fork(self, log: LogReader, work: Callable[[], None], end: signal.Signals) -> Forked:
        started = fork(work, end_with=end)
        self._running[started.pid] = _Running(started, log)
        self._selector.register(started.output, selectors.EVENT_READ, started.pid)
        return started

    def _ask(self, free: int) -> Forked:
        """Start who asks for tasks."""
        work = self.address, self._secret
        asking = self._fork(LogReader(_ASKS), lambda: ask_for_tasks(*work), signal.SIGKILL)
        os.write(asking.input, FREE * free)
        return asking

    def _feed(self) -> None:
        """Start what writes the rows that come to a socket into the node's file."""
        fed = fed_by_socket(self.config)
        if fed is not None:
            self._feeding = self._fork(LogReader(_FEEDS), lambda: feed(*fed), signal.SIGKILL)

    def _answer(self, token: str, run: int) -> None:
        """Have a copy of this process answer the message of a task."""
        own = self.settings

        def work() -> None:
            answer(
                self.address,
                token,
                seconds=own.message_seconds,
                gigabytes=own.message_gigabytes,
                threads=own.threads,
            )

        try:
            started = self._fork(LogReader("client", run), work, signal.SIGKILL)
        except OSError as error:
            self._say(
                f"a message of run {run} cannot be answered ({error.strerror}); allow this user "
                "more processes"
            )
            self._tell(FREE)
            return
        self._running[started.pid].began = time.monotonic()
        self.report.began()

    def _tell(self, word: bytes) -> None:
        if self._asking is not None:
            with suppress(OSError):  # it has ended
                os.write(self._asking.input, word)

    def _reap(self, supernode: int) -> int | None:
        """Note who has ended; return the exit code once the SuperNode has or this one is to."""
        if self._ending:
            return 0
        while True:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if not pid:
                return None
            if pid not in self._running:  # where this is the first process it gets orphans
                continue
            code = os.waitstatus_to_exitcode(status)
            ended = self._forget(pid)
            if pid == supernode:
                self._say(
                    f"the SuperNode has ended with exit code {code}{'' if code else _REFUSED}"
                )
                return code if code > 0 else 1
            if ended.began:
                if code < 0:
                    self._say(f"a message of run {ended.log.run} was ended by signal {-code}")
                cpu = used.ru_utime + used.ru_stime
                self.report.ended(time.monotonic() - ended.began, cpu, failed=code != 0)
                self._tell(FREE)
            elif ended.process is self._feeding:
                self._say("what takes the rows of the stream has ended; started again")
                time.sleep(_AGAIN)
                self._feed()
            elif ended.process is self._asking:
                self._say("who asks for tasks has ended; started again")
                time.sleep(_AGAIN)
                busy = sum(bool(one.began) for one in self._running.values())
                self._asking = self._ask(self.settings.max_processes - busy)

    def _forget(self, pid: int) -> _Running:
        self._take(pid, last=True)
        ended = self._running.pop(pid)
        with suppress(KeyError):  # it has closed its output before
            self._selector.unregister(ended.process.output)
        os.close(ended.process.output)
        os.close(ended.process.input)
        return ended

    def _kill_overdue(self) -> None:
        """Kill what did not end when its time was over: it is stuck where no signal reaches it."""
        longest = self.settings.message_seconds + self.settings.grace
        for pid, one in self._running.items():
            if one.began and time.monotonic() > one.began + longest:
                os.kill(pid, signal.SIGKILL)

    def _read_config(self) -> None:
        """Read the node's configuration again if that is asked for."""
        if not self._reload:
            return
        self._reload = False
        try:
            self.config = reread_config(Path(self.settings.node_config), self.config)
            self.report.config = self.config
            self._say("the configuration was read again; it holds from the next message on", "INFO")
        except OptionError as error:
            self._say(f"the configuration stays as it was: {error}")

    def _stop(self, supernode: int) -> None:
        """End all: the SuperNode may say goodbye, so that it is welcome at once."""
        self._stopping = True
        for pid in self._running:
            os.kill(pid, signal.SIGTERM if pid == supernode else signal.SIGKILL)
        deadline = time.monotonic() + self.settings.grace
        while self._running and time.monotonic() < deadline:
            self._read()
            with suppress(ChildProcessError):
                while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                    if pid in self._running:
                        self._forget(pid)
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)

    # -- what they print, and signals

    def _wake_on_signals(self) -> None:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self._selector.register(reading, selectors.EVENT_READ, None)

        def end(number: int, frame: FrameType | None) -> None:
            self._ending = number

        def reload(number: int, frame: FrameType | None) -> None:
            self._reload = True

        for number in _ENDS:
            signal.signal(number, end)
        signal.signal(signal.SIGHUP, reload)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def _read(self) -> None:
        for key, _ in self._selector.select(_LOOK):
            if key.data is None:
                os.read(key.fd, 1024)  # which signals there were is known already
            else:
                self._take(key.data)

    def _take(self, pid: int, *, last: bool = False) -> None:
        """Read what a process has printed, as much as a pipe holds; pass on whole lines."""
        source, block = self._running[pid], b""
        with suppress(BlockingIOError):
            block = os.read(source.process.output, 1 << 16)
            if not block:  # closed, though the process may live on
                with suppress(KeyError):
                    self._selector.unregister(source.process.output)
        *lines, source.rest = (source.rest + block).split(b"\n")
        if source.rest and (last or len(source.rest) > _LONGEST):
            lines.append(source.rest)
            source.rest = b""
        for line in lines:
            self._line(source.log, line.decode(errors="replace"))

    def _line(self, log: LogReader, text: str) -> None:
        if log.source == _ASKS and text.startswith(f"{TASK} "):
            _, token, run = text.split()
            if not self._stopping:
                self._answer(token, int(run))
            return
        line = log.line(text)
        self.report.line(line)
        if log.source == SUPERNODE:
            if MESSAGE_ARRIVED in text:
                self._tell(HINT)
            if connection(line) and self._asking is None:  # its port is its own from here on
                self._secret_file.unlink(missing_ok=True)
                self._asking = self._ask(self.settings.max_processes)
        out = line.to_json() if self.settings.log_format == "json" else text
        with suppress(OSError):  # a log that nobody reads, or a full disk, ends no run
            os.write(1, f"{out}\n".encode(errors="replace"))

    def _say(self, text: str, level: str = "ERROR") -> None:
        """Print a line of this process's own as Flower prints its; errors are in the status."""
        self._line(self._log, f"{level} :{' ' * (9 - len(level))}{text}")


def main() -> int:
    """Run the node that the first argument describes."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nothing can be read again yet
    try:
        node = WarmNode(NodeSettings(**json.loads(sys.argv[1])))
        warm_up()
        return node.run()
    except FedKernError as error:
        print(f"fedkern: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
