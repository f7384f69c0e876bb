"""Say what long local work is doing, and count where the time of a run goes.

>>> shown = []
>>> with listening(Listener(lambda *step: shown.append(step))):
...     progress("training on 120 rows", 1, 3)
>>> shown
[('training on 120 rows', 1, 3)]

Nobody listens in a deployment. There the same text is a line at level DEBUG in the log of the
process that works. It may name numbers of rows, so no message carries it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

logger = logging.getLogger("fedkern_flwr")

#: ``collect`` is what is in no other part: requests, replies, and what nodes do for them.
Part = Literal["collect", "train", "judge"]
Show = Callable[[str, int, int], None]

# A context variable, not a global: runs in other threads do not hear each other.
_listener: ContextVar[Listener | None] = ContextVar("_listener", default=None)


class Listener:
    """Hear what the work of one run is doing, and count its seconds by part.

    Parameters
    ----------
    show : callable
        Called with what :func:`progress` is called with.

    Attributes
    ----------
    seconds : dict
        Part -> seconds spent in it while somebody listened. A part at hand is not in it yet.
    """

    def __init__(self, show: Show) -> None:
        self.show = show
        self.seconds: dict[Part, float] = dict.fromkeys(get_args(Part), 0.0)
        self._part: Part = "collect"
        self._since = 0.0

    def start(self) -> None:
        """Count the time from now on; what was before is not counted."""
        self._since = time.perf_counter()

    def turn_to(self, part: Part) -> Part:
        """Count the time from now on for a part; return the part before."""
        before, now = self._part, time.perf_counter()
        self.seconds[before] += now - self._since
        self._part, self._since = part, now
        return before


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Let a listener, or nobody, hear the work of the block, in this thread."""
    token = _listener.set(listener)
    if listener is not None:
        listener.start()
    try:
        yield
    finally:
        _listener.reset(token)


def progress(text: str, done: int = 0, of: int = 0) -> None:
    """Say what work begins now.

    Parameters
    ----------
    text : str
        What is done, such as "training on 22,792 rows x 1,000 features". It stays the same while
        the steps of one piece of work are counted.
    done, of : int (default: 0)
        The number of the step that begins, from 1, and of all steps. Without ``of`` nothing is
        counted.
    """
    listener = _listener.get()
    if listener is not None:
        listener.show(text, done, of)
    elif of:
        logger.debug("%s, %d of %d", text, done, of)
    else:
        logger.debug("%s", text)


@contextmanager
def part(name: Part) -> Iterator[None]:
    """Count the time of the block for a part of the run, where somebody listens."""
    listener = _listener.get()
    if listener is None:
        yield
        return
    before = listener.turn_to(name)
    try:
        yield
    finally:
        listener.turn_to(before)
