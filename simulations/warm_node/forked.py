"""Processes that begin as copies of this one.

Only a process without threads may make them: a copy has none of the others' threads, but whatever
locks these held. It has no sockets either, so that no two copies share one.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from fedkern_flwr.errors import EngineError, FedKernError

_TASKS = "/proc/self/task"  # Linux: a folder per thread
_PARENT_GONE = 1  # PR_SET_PDEATHSIG of prctl


@dataclass
class Forked:
    """A process that was forked.

    Attributes
    ----------
    pid : int
    output, input : int
        File descriptors: from the one what it prints is read, the other is its standard input.
    """

    pid: int
    output: int
    input: int


class TooLong(FedKernError):
    """A message took longer than it may."""


def fork(work: Callable[[], None], *, end_with: signal.Signals) -> Forked:
    """Let a copy of this process do some work and end.

    Parameters
    ----------
    work : callable
        Its exit code is that of ``SystemExit``, 1 after any other exception, else 0.
    end_with : signal.Signals
        What it gets when this process dies (Linux).

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
        os.set_blocking(reading, False)
        return Forked(pid, reading, telling)
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        os.setpgid(0, 0)  # what is sent to a group, as by a terminal, is for the parent to handle
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        _end_with_parent(parent, end_with)
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
        raise EngineError(
            f"a process with {count} threads cannot be copied",
            remedy="a package among the registered methods starts threads when it is imported",
            code="FK-NODE-THREADS",
        )


def _end_with_parent(parent: int, number: signal.Signals) -> None:
    """Have this process end when its parent does, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_GONE, number)
        if os.getppid() != parent:  # it has ended already
            os._exit(1)


def limit(seconds: float, gigabytes: float) -> None:
    """Bound what this process may take: the one who is asked gets the error, and says so.

    Parameters
    ----------
    seconds : float
        Of the clock; then :class:`TooLong` is raised in the main thread.
    gigabytes : float
        Of memory of its own; more than that is a ``MemoryError``.
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
