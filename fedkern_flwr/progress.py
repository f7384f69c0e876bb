"""Report long local work, and measure the time of a run by part.

>>> shown = []
>>> with listening(Listener(lambda *step: shown.append(step))):
...     progress("training on 120 rows", 1, 3)
>>> shown
[('training on 120 rows', 1, 3)]

In a deployment the text is only logged, at level DEBUG, where the work is done. It may contain
numbers of rows, so no message has it.
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
    """Receive the progress of one run, and measure its seconds by part.

    ``show`` gets the arguments of :func:`progress`. ``seconds`` maps a part to the time spent in
    it.
    """

    def __init__(self, show: Show) -> None:
        self.show = show
        self.seconds: dict[Part, float] = dict.fromkeys(get_args(Part), 0.0)
        self._part: Part = "collect"
        self._since = 0.0

    def start(self) -> None:
        self._since = time.perf_counter()

    def turn_to(self, part: Part) -> Part:
        """Start to measure another part; return the part before."""
        before, now = self._part, time.perf_counter()
        self.seconds[before] += now - self._since
        self._part, self._since = part, now
        return before


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Let a listener, or None, receive the progress of the block, in this thread."""
    token = _listener.set(listener)
    if listener is not None:
        listener.start()
    try:
        yield
    finally:
        _listener.reset(token)


def progress(text: str, done: int = 0, of: int = 0) -> None:
    """Report the start of a step.

    Parameters
    ----------
    text : str
        Such as "training on 22,792 rows x 1,000 features"; constant for all steps of one task.
    done, of : int (default: 0)
        Number of the step, from 1, and of all steps; 0 for no count.
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
    """Measure the time of the block for a part of the run."""
    listener = _listener.get()
    if listener is None:
        yield
        return
    before = listener.turn_to(name)
    try:
        yield
    finally:
        listener.turn_to(before)
