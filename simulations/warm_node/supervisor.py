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
from pathlib import Path
from types import FrameType

from fedkern_flwr.flower_compat import MESSAGE_ARRIVED, run_supernode

from .forked import Forked, fork
from .start import NodeSettings
from .tasks import FREE, HINT, TASK, answer, ask_for_tasks, warm_up

_HOST = "127.0.0.1"
_LOOK = 1.0  # seconds from one look at what is overdue to the next
_GRACE = 10.0  # seconds that a process gets to end by itself
_AGAIN = 1.0  # seconds until who asks for tasks is started again
_ENDS = (signal.SIGTERM, signal.SIGINT)


class WarmNode:
    """A SuperNode, who asks it for tasks, and a process for each that it has.

    Parameters
    ----------
    settings : NodeSettings
        What it is started with.
    write : callable
        Takes a line of a log: who prints it, and the text.
    """

    def __init__(self, settings: NodeSettings, write: Callable[[str, str], None]) -> None:
        self.settings, self.write = settings, write
        self.address = f"{_HOST}:{settings.port}"
        self._secret = secrets.token_bytes(32)
        self._selector = selectors.DefaultSelector()
        self._unread: dict[int, bytes] = {}  # the line that is not over, by process
        self._messages: dict[int, float] = {}  # process -> when it must have ended
        self._ending = 0
        self._started: dict[int, Forked] = {}

    def run(self) -> int:
        """Run until the SuperNode ends, or this process is told to; return an exit code."""
        self._wake_on_signals()
        with tempfile.TemporaryDirectory(prefix="fedkern-node-") as folder:
            file = Path(folder, "secret")
            file.touch(0o600)
            file.write_bytes(self._secret)
            arguments = [*self.settings.supernode, "--isolation", "process"]
            arguments += ["--host", _HOST, "--port", str(self.settings.port)]
            arguments += ["--superexec-auth-secret-file", str(file)]
            gc.collect()
            gc.freeze()
            supernode = self._fork("supernode", lambda: run_supernode(arguments), signal.SIGTERM)
            self._asking = self._ask(self.settings.max_processes)
            code = None
            try:
                while code is None:
                    self._read()
                    code = self._reap(supernode.pid)
                    self._kill_overdue()
            finally:
                self._stop(supernode.pid)
        return 128 + self._ending if self._ending else code

    # -- processes

    def _fork(self, name: str, work: Callable[[], None], end_with: signal.Signals) -> Forked:
        started = fork(name, work, end_with=end_with)
        self._started[started.pid] = started
        self._unread[started.pid] = b""
        self._selector.register(started.output, selectors.EVENT_READ, started)
        return started

    def _ask(self, free: int) -> Forked:
        """Start who asks for tasks."""
        work = self.address, self._secret
        asking = self._fork("executor", lambda: ask_for_tasks(*work), signal.SIGKILL)
        os.write(asking.input, FREE * free)
        return asking

    def _answer(self, token: str, run: str) -> None:
        """Have a copy of this process answer the message of a task."""
        own = self.settings
        limits = own.message_seconds, own.message_gigabytes, own.threads

        def work() -> None:
            seconds, gigabytes, threads = limits
            answer(self.address, token, seconds=seconds, gigabytes=gigabytes, threads=threads)

        started = self._fork(f"client of run {run}", work, signal.SIGKILL)
        self._messages[started.pid] = time.monotonic() + own.message_seconds + _GRACE

    def _tell(self, word: bytes) -> None:
        with suppress(BrokenPipeError):
            os.write(self._asking.input, word)

    def _reap(self, supernode: int) -> int | None:
        """Note who has ended; return the exit code once the SuperNode has or this one is to."""
        if self._ending:
            return 0
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if not pid:
                return None
            code = os.waitstatus_to_exitcode(status)
            name = self._forget(pid)
            if pid == supernode:
                self.write("node", f"the SuperNode has ended with exit code {code}")
                return code if code > 0 else 1
            if self._messages.pop(pid, None) is not None:
                if code < 0:
                    self.write("node", f"the {name} was ended by signal {-code}")
                self._tell(FREE)
            elif pid == self._asking.pid:
                self.write("node", "who asks for tasks has ended; started again")
                time.sleep(_AGAIN)
                self._asking = self._ask(self.settings.max_processes - len(self._messages))

    def _forget(self, pid: int) -> str:
        ended = self._started.pop(pid)
        self._take(ended, last=True)
        self._selector.unregister(ended.output)
        os.close(ended.output)
        os.close(ended.input)
        return ended.name

    def _kill_overdue(self) -> None:
        """Kill what did not end when its time was over: it is stuck where no signal reaches it."""
        for pid, deadline in self._messages.items():
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)

    def _stop(self, supernode: int) -> None:
        """End all: the SuperNode may say goodbye, so that it is welcome at once."""
        for pid in self._started:
            os.kill(pid, signal.SIGTERM if pid == supernode else signal.SIGKILL)
        deadline = time.monotonic() + _GRACE
        while self._started and time.monotonic() < deadline:
            self._read()
            with suppress(ChildProcessError):
                while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                    self._forget(pid)
        for pid in list(self._started):
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

        for number in _ENDS:
            signal.signal(number, end)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def _read(self) -> None:
        for key, _ in self._selector.select(_LOOK):
            if key.data is None:
                os.read(key.fd, 1024)  # which signals there were is known already
            else:
                self._take(key.data)

    def _take(self, source: Forked, *, last: bool = False) -> None:
        """Read what a process has printed; pass on whole lines, of an ended one all."""
        with suppress(BlockingIOError):
            while block := os.read(source.output, 65536):
                self._unread[source.pid] += block
        *lines, rest = self._unread[source.pid].split(b"\n")
        if last:
            lines += [rest] if rest else []
            del self._unread[source.pid]
        else:
            self._unread[source.pid] = rest
        for line in lines:
            self._line(source, line.decode(errors="replace"))

    def _line(self, source: Forked, text: str) -> None:
        if source.name == "executor" and text.startswith(f"{TASK} "):
            _, token, run = text.split()
            self._answer(token, run)
            return
        if source.name == "supernode" and MESSAGE_ARRIVED in text:
            self._tell(HINT)
        self.write(source.name, text)


def main() -> int:
    """Run the node that the first argument describes."""
    settings = NodeSettings(**json.loads(sys.argv[1]))
    warm_up()
    return WarmNode(settings, lambda source, text: print(text, flush=True)).run()


if __name__ == "__main__":
    sys.exit(main())
