"""Keep a node running: its SuperNode, a process that takes tasks, and one per answer.

This process imports once and has no thread and no socket, so that it can be forked at any time.
A fork answers each message and exits. The parent only reads the output of the others.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import secrets
import select
import selectors
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import FrameType

from threadpoolctl import threadpool_limits

from fedkern_flwr import clients, flower_compat
from fedkern_flwr.errors import EngineError, FedKernError, OptionError
from fedkern_flwr.failure import describe_unanswered
from fedkern_flwr.flower_compat import TaskQueue, answer_task, run_supernode
from fedkern_flwr.log_lines import utc_now
from fedkern_flwr.node_config import read_config, reread_config
from fedkern_flwr.online.source import fed_by_socket

from .feeder import feed
from .report import KEEPER, SUPERNODE, LogReader, NodeReport, connection
from .start import NO_THREADS, NodeSettings

_HOST = "127.0.0.1"
_LOOK = 1.0  # seconds between two looks for overdue processes
_RETRY, _FORGOTTEN = 3, 180.0  # seconds until a SuperNode is started again, and for how long
_AGAIN = 1.0  # seconds until the process that takes tasks is started again
_ASKS = "executor"
#: Reason for a SuperNode that exits by itself: its signature is refused.
_REFUSED = (
    ": the SuperLink refuses what it signs; its clock is wrong by more than five minutes, or its "
    "key is no longer registered"
)
_LONGEST = 1 << 20  # bytes of a line
_TASKS = "/proc/self/task"  # Linux: a folder per thread
_PARENT_GONE = 1  # PR_SET_PDEATHSIG of prctl

FREE, HINT = b"f", b"h"  # to the process that takes tasks: one is free, a message is there
TASK = "@task"  # first word of its line about a task
_SOON, _LATER = 0.05, 1.0  # seconds between two looks: after a hint, and else
_FRESH = 0.5  # seconds for which a hint counts

#: What the clients of all methods need.
_WARM = (
    "flwr.clientapp.utils",
    "flwr.supernode.runtime.run_clientapp",
    *(f"pyarrow.{name}" for name in ("compute", "csv", "parquet")),
    *(f"scipy.{name}" for name in ("linalg", "optimize", "sparse", "spatial.distance", "special")),
    "fedkern_flwr.registered",
    "fedkern_flwr.simulations.apps.node",
    "fedkern_flwr.tables.arrow",
    "fedkern_flwr.vertical.phase_training",
)


@dataclass
class Forked:
    """A forked process: its output, standard input, parser of lines, and unfinished line.

    ``task`` is the task that it answers; ``stopped`` says why it was killed if its answer is not
    needed, ``overdue`` that it took too long.
    """

    pid: int
    output: int
    input: int
    log: LogReader
    rest: bytes = b""
    task: str = ""
    began: float = field(default_factory=time.monotonic)
    overdue: bool = False
    stopped: str = ""


class WarmNode:
    """Run a SuperNode, a process that takes its tasks, and a process for each.

    Parameters
    ----------
    settings : NodeSettings

    Raises
    ------
    OptionError
        The node's configuration cannot be used.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self.config = read_config(Path(settings.node_config))
        metrics = Path(settings.metrics) if settings.metrics else None
        own, longest = (settings.superlink, self.config), settings.message_seconds + settings.grace
        self.report = NodeReport(*own, metrics, self._say, longest=longest)
        self._log = LogReader(KEEPER)
        self.address = f"{_HOST}:{settings.port}"
        self._secret = secrets.token_bytes(32)
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, Forked] = {}
        self._supernode: Forked | None = None
        self._asking: Forked | None = None  # not before the SuperNode is there to be asked
        self._feeding: Forked | None = None  # where rows come to a socket
        self._forgotten = time.monotonic() + _FORGOTTEN  # by the SuperLink, if it was killed
        self._ending, self._reload, self._stopping = 0, False, False

    def run(self) -> int:
        """Run until the SuperNode ends, or on a signal; return an exit code."""
        self._wake_on_signals()
        with tempfile.TemporaryDirectory(prefix="fedkern-node-") as folder:
            file = self._secret_file = Path(folder, "secret")
            arguments = ["--superlink", self.settings.superlink, *self.settings.supernode]
            arguments += ["--node-config", self.settings.node_config, "--isolation", "process"]
            arguments += ["--host", _HOST, "--port", str(self.settings.port)]
            arguments += ["--superexec-auth-secret-file", str(file)]
            gc.collect()
            gc.freeze()
            self._arguments = arguments
            self._start_supernode()
            self._feed()
            code = None
            try:
                while code is None:
                    self._read()
                    code = self._reap()
                    self._kill_overdue()
                    self._read_config()
                    self.report.save()
            finally:
                self._stop()
                self.report.supernode_ended()
                self.report.save(now=True)
        return 128 + self._ending if self._ending else code

    # -- processes

    def _fork(self, log: LogReader, work: Callable[[], None], end: signal.Signals) -> Forked:
        started = fork(work, log, end_with=end)
        self._running[started.pid] = started
        self._selector.register(started.output, selectors.EVENT_READ, started.pid)
        return started

    def _start_supernode(self) -> None:
        given = self._arguments, describe_unanswered
        self._connected = self._refused = self._cut_off = False
        self._secret_file.touch(0o600)
        self._secret_file.write_bytes(self._secret)
        log, work = LogReader(SUPERNODE), lambda: run_supernode(*given)
        self._supernode = self._fork(log, work, signal.SIGTERM)

    def _starts_again(self) -> bool:
        """Start the SuperNode again where Flower's own exits though it may come back.

        It exits if the network is cut during a handshake, and if the SuperLink still counts the
        killed node as connected.
        """
        if self._cut_off:  # it could not say goodbye
            self.report.was_killed, self._forgotten = True, time.monotonic() + _FORGOTTEN
            self._kill_clients(lambda one: True, "run {run} lost the SuperNode")
            self.report.done()  # the message at hand went with it
        elif not (self._refused and self.report.was_killed and time.monotonic() < self._forgotten):
            return False
        why = "lost the SuperLink" if self._cut_off else "is still counted as connected"
        self._say(f"the SuperNode {why}; started again", "WARNING")
        for _ in range(_RETRY):
            time.sleep(0 if self._ending else 1)
        self._start_supernode()
        return True

    def _kill_clients(self, chosen: Callable[[Forked], bool], why: str) -> None:
        """End processes with an answer that is not needed."""
        for pid, one in self._running.items():
            if one.task and chosen(one):
                one.stopped = why.format(run=one.log.run)
                os.kill(pid, signal.SIGKILL)

    def _ask(self) -> None:
        """Start the process that takes tasks."""
        work = self.address, self._secret
        busy = sum(bool(one.task) for one in self._running.values())
        self._asking = self._fork(LogReader(_ASKS), lambda: ask_for_tasks(*work), signal.SIGKILL)
        _tell(self._asking, FREE * (self.settings.max_processes - busy))

    def _feed(self) -> None:
        """Start the process that writes rows from a socket into the node's file."""
        if (fed := fed_by_socket(self.config)) is not None:
            self._feeding = self._fork(LogReader("feeder"), lambda: feed(*fed), signal.SIGKILL)

    def _answer(self, token: str, run: int, task: str) -> None:
        """Fork a process that answers the message of a task."""
        work = self.address, token, self.settings
        try:
            client = LogReader("client", run)
            self._fork(client, lambda: answer(*work), signal.SIGKILL).task = task
        except OSError as error:
            self._say(
                f"a message of run {run} cannot be answered ({error.strerror}); allow this user "
                "more processes"
            )
            self._unanswered(task, "no process could be started for the message")
            _tell(self._asking, FREE)
            return
        self.report.began()

    def _unanswered(self, task: str, problem: str, code: str = "FK-NODE-ENDED") -> None:
        """Have the SuperNode send an error if there is no reply yet."""
        _tell(self._supernode, f"{task} {describe_unanswered(problem, code)}\n".encode())

    def _reap(self) -> int | None:
        """Note ended processes; return the exit code if the node ends."""
        for ended, code, used in self._ended():
            if self._ending:
                break
            if ended is self._supernode:
                if self._starts_again():
                    continue
                why = "" if code else _REFUSED
                self._say(f"the SuperNode has ended with exit code {code}{why}")
                return code if code > 0 else 1
            if ended.task:
                self._note_end(ended, code)
                cpu, seconds = used.ru_utime + used.ru_stime, time.monotonic() - ended.began
                self.report.ended(seconds, cpu, failed=code != 0 and not ended.stopped)
                _tell(self._asking, FREE)
            else:
                self._say(f"the {ended.log.source} has ended; started again")
                time.sleep(_AGAIN)
                self._feed() if ended is self._feeding else self._ask()
        return 0 if self._ending else None

    def _ended(self) -> Iterator[tuple[Forked, int, resource.struct_rusage]]:
        """Yield ended processes, with exit code and resource usage."""
        with suppress(ChildProcessError):
            while (found := os.wait4(-1, os.WNOHANG))[0]:
                if found[0] in self._running:  # where this is the first process it gets orphans
                    yield self._forget(found[0]), os.waitstatus_to_exitcode(found[1]), found[2]

    def _note_end(self, ended: Forked, code: int) -> None:
        """Report how an answering process has ended."""
        run = ended.log.run
        if ended.stopped:
            self._say(f"{ended.stopped}: what answered its message was ended", "INFO")
            return
        if code < 0:
            self._say(f"a message of run {run} was ended by signal {-code}")
        if ended.overdue:
            longest = f"the message took longer than {self.settings.message_seconds:g} s"
            self._unanswered(ended.task, longest, "FK-NODE-SECONDS")
        elif code:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            self._unanswered(ended.task, f"the process that answered the message {how}")

    def _forget(self, pid: int) -> Forked:
        self._take(pid, last=True)
        ended = self._running.pop(pid)
        with suppress(KeyError):  # it has closed its output before
            self._selector.unregister(ended.output)
        os.close(ended.output)
        os.close(ended.input)
        return ended

    def _kill_overdue(self) -> None:
        """Kill processes that did not end in time: no signal reaches them."""
        longest = self.settings.message_seconds + self.settings.grace
        for pid, one in self._running.items():
            if one.task and time.monotonic() > one.began + longest:
                one.overdue = True
                os.kill(pid, signal.SIGKILL)

    def _read_config(self) -> None:
        """Read the node's configuration again if requested."""
        if not self._reload:
            return
        self._reload = False
        try:
            self.config = reread_config(Path(self.settings.node_config), self.config)
            self.report.config = self.config
            self._say("the configuration was read again; it holds from the next message on", "INFO")
        except OptionError as error:
            self._say(f"the configuration stays as it was: {error}")

    def _stop(self) -> None:
        """End all processes. The SuperNode may sign off, so that it can reconnect at once."""
        self._stopping = True
        for pid, one in self._running.items():
            os.kill(pid, signal.SIGTERM if one is self._supernode else signal.SIGKILL)
        deadline = time.monotonic() + self.settings.grace
        while self._running and time.monotonic() < deadline:
            self._read()
            for _ in self._ended():  # nothing is to be said of them
                pass
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)

    # -- what they print, and signals

    def _wake_on_signals(self) -> None:
        reading, writing = os.pipe()
        for end in (reading, writing):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self._selector.register(reading, selectors.EVENT_READ, None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: setattr(self, "_ending", number))
        signal.signal(signal.SIGHUP, lambda *_: setattr(self, "_reload", True))
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def _read(self) -> None:
        for key, _ in self._selector.select(_LOOK):
            if key.data is None:
                os.read(key.fd, 1024)  # which signals there were is known already
            else:
                self._take(key.data)

    def _take(self, pid: int, *, last: bool = False) -> None:
        """Read the output of a process, as much as a pipe holds; pass on whole lines."""
        source, block = self._running[pid], b""
        with suppress(BlockingIOError):
            block = os.read(source.output, 1 << 16)
            if not block:  # closed, though the process may live on
                with suppress(KeyError):
                    self._selector.unregister(source.output)
        *lines, source.rest = (source.rest + block).split(b"\n")
        if source.rest and (last or len(source.rest) > _LONGEST):
            lines.append(source.rest)
            source.rest = b""
        for line in lines:
            self._line(source.log, line.decode(errors="replace"))

    def _line(self, log: LogReader, text: str) -> None:
        # a SuperNode's log quotes names that a server chose: they must not start tasks
        source = _ASKS if text.startswith(TASK) else SUPERNODE
        if text.startswith("@") and log.source == source and self._word(text.split()):
            return
        line = log.line(text)
        self.report.line(line)
        if log.source == SUPERNODE:
            self._refused |= flower_compat.NOT_ACTIVATED in text
            self._cut_off |= self._connected and flower_compat.GIVES_UP in text
        if connection(line):  # its port is its own from here on
            self._connected = True
            self._secret_file.unlink(missing_ok=True)
            if self._asking is None:
                self._ask()
        out = line.to_json() if self.settings.log_format == "json" else f"{utc_now()} {text}"
        with suppress(OSError):  # a log that nobody reads, or a full disk, ends no run
            os.write(1, f"{out}\n".encode(errors="replace"))

    def _word(self, words: list[str]) -> bool:
        """Handle a line for this process; return whether it was one."""
        match words:
            case [word, token, run, task] if word == TASK:
                if not self._stopping:
                    self._answer(token, int(run), task)
            case [flower_compat.COMES, run] if run.isdecimal():  # it is a label of the metrics
                self.report.comes(run)
            case [flower_compat.THERE, _]:
                self.report.there()
                _tell(self._asking, HINT)
            case [flower_compat.STOPPED, task]:
                self._kill_clients(lambda one: one.task == task, "run {run} is over")
            case [flower_compat.DONE]:
                self.report.done()
            case _:
                return False
        return True

    def _say(self, text: str, level: str = "ERROR") -> None:
        """Print a line in Flower's format; errors go to the status."""
        self._line(self._log, f"{level} :{' ' * (9 - len(level))}{text}")


# -- processes that begin as copies of this one


class TooLong(FedKernError):
    """A message took longer than it may."""


def fork(work: Callable[[], None], log: LogReader, *, end_with: signal.Signals) -> Forked:
    """Run work in a forked process, which gets the signal ``end_with`` when this one dies (Linux).

    Its exit code is that of ``SystemExit``, 1 after any other exception, else 0.

    Raises
    ------
    EngineError
        This process has other threads.
    OSError
        The system has no more processes or pipes.
    """
    refuse_threads()
    parent = os.getpid()
    pipes = *os.pipe(), *os.pipe()
    reading, writing, told, telling = pipes
    try:
        pid = os.fork()
    except OSError:
        for end in pipes:
            os.close(end)
        raise
    if pid:
        os.close(writing)
        os.close(told)
        for end in (reading, telling):
            os.set_blocking(end, False)
        return Forked(pid, reading, telling, log)
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        os.setpgid(0, 0)  # what is sent to a group, as by a terminal, is for the parent to handle
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PARENT_GONE, end_with)
            if os.getppid() != parent:  # it has ended already
                os._exit(1)
        for stream, pipe in enumerate((told, writing, writing)):
            os.dup2(pipe, stream)
        os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])  # pipes of the others
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def refuse_threads() -> None:
    """Refuse to fork a process that has threads.

    Raises
    ------
    EngineError
    """
    if os.path.isdir(_TASKS) and (count := len(os.listdir(_TASKS))) > 1:
        lacking = [f"{n}={v}" for n, v in NO_THREADS.items() if os.environ.get(n) != v]
        raise EngineError(
            f"a process with {count} threads cannot be copied",
            remedy=f"set {' '.join(lacking)} in its environment, as fedkern node start does"
            if lacking
            else "a package among the registered methods starts threads when it is imported",
            code="FK-NODE-THREADS",
        )


def limit(seconds: float, gigabytes: float) -> None:
    """Limit wall-clock time and private memory of this process.

    Beyond, :class:`TooLong` is raised in the main thread, or a ``MemoryError``.
    """

    def ended(number: int, frame: FrameType | None) -> None:
        raise TooLong(
            f"the message took longer than {seconds:g} s",
            remedy="allow more with --message-seconds of fedkern node start",
            code="FK-NODE-SECONDS",
        )

    signal.signal(signal.SIGALRM, ended)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    most = int(gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


# -- asking for tasks, and answering one: each in a process of its own


def warm_up() -> None:
    """Import the modules that answers need."""
    for module in _WARM:
        import_module(module)
    for name in clients.__all__:  # each is imported when it is first named
        getattr(clients, name)
    flower_compat.warm = True


def ask_for_tasks(address: str, secret: bytes) -> None:
    """Print a line per task of the SuperNode, as many as there are free processes.

    Standard input says when to look; a SuperNode that does not answer is tried again.
    """
    queue, free, hinted = TaskQueue(address, secret), 0, -_FRESH
    while True:
        fresh = time.monotonic() < hinted + _FRESH
        pause = None if not free else _SOON if fresh else _LATER
        if select.select([0], [], [], pause)[0]:
            told = os.read(0, 1024)
            if not told:
                return
            free += told.count(FREE)
            if HINT in told:
                hinted = time.monotonic()
        if not free:
            continue
        try:
            found = queue.take()
        except ConnectionError:
            hinted = time.monotonic()
            continue
        if found is not None:
            print(TASK, *found, flush=True)
            free, hinted = free - 1, time.monotonic()


def answer(address: str, token: str, settings: NodeSettings) -> None:
    """Answer the message of one task, within limits."""
    sys.stdin.close()
    threadpool_limits(settings.threads)
    limit(settings.message_seconds, settings.message_gigabytes)
    answer_task(address, token, os.getppid())


def _tell(process: Forked | None, word: bytes) -> None:
    if process is not None:
        with suppress(OSError):  # it has ended
            os.write(process.input, word)


def main() -> int:
    """Run the node of the first argument."""
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
