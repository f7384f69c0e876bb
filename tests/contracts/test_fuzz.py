"""Contract: whatever a message says, a node answers in bounded time and memory, in one plain line.

Each request of a way comes again with one number, array, text or section changed: a bit flipped, a
text of 200,000 characters with escape codes, lists nested 100,000 deep. Memory is what the process
may map beyond what it has, so that an array which is allocated and never touched counts as well.
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from conversation import SECURE, Asked, met, ordered
from zoo import chosen

ROOM, SECONDS = 256 << 20, 5.0
LONGEST = 500  # characters of an error: 200 of a server at most
#: One way of each method.
MAIN = ("fed-cg", "fdskl", "hierarchical-svm", "secure-gram", "pof-mkl, secure", "kernel-pca")


class LateError(BaseException):
    """The node took too long."""


@contextmanager
def bounded() -> Iterator[None]:
    """Give the process so much time and so much more memory."""

    def late(*_: Any) -> None:
        raise LateError

    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    before, limits = signal.signal(signal.SIGALRM, late), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, limits[1]))
    timer = signal.setitimer(signal.ITIMER_REAL, SECONDS)  # that of pytest-timeout goes on after
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def others(value: Any) -> Iterator[Any]:
    """Yield what a field may be instead."""
    if type(value) is int:
        yield from (value ^ 1 << bit for bit in (16, 31, 62))
    elif type(value) is str:
        yield from (f"{value}\x1b[31m{'x' * 200_000}", "[" * 100_000)
    elif type(value) is bytes:
        yield from (b"[" * 100_000, b"\xff" + value[1:])
    elif isinstance(value, tuple) and value:
        yield from ((other, *value[1:]) for other in others(value[0]))
    elif isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size:
        for place, bit in ((0, 30), (-1, 30), (-1, 24)):
            other = value.copy()
            other.flat[place] ^= other.dtype.type(1 << bit % (8 * value.itemsize - 1))
            yield other


def mutants(message: Any) -> Iterator[tuple[str, Any]]:
    """Yield a message with one field changed, and what was changed."""
    for one in fields(message):
        if one.name != "session":
            for number, other in enumerate(others(getattr(message, one.name))):
                yield f"{one.name}, {number}", replace(message, **{one.name: other})


def changed(one: Asked, known: set[Any]) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield requests and sections: one of them changed, or a field of the request.

    What travels on every request is changed on the first of a role that has it; ``known`` says what
    was.
    """
    for what, request in mutants(one.request):
        try:
            yield what, request, ordered(one, request)
        except ValueError:  # nothing is named after it
            yield what, request, one.sections
    for at, section in enumerate(one.sections):
        for what, other in mutants(section):
            if (kind := (one.client.role, section.phase, what)) in known:
                continue
            known.add(kind)
            sections = [*one.sections[:at], other, *one.sections[at + 1 :]]
            yield f"{section.phase}: {what}", one.request, sections


@pytest.mark.promise("fuzz-bounded")
@pytest.mark.parametrize("way", chosen(SECURE, MAIN))
def test_changed_messages_are_answered_in_bounded_time_and_memory(way: str) -> None:
    wrong, known = [], set[Any]()
    for key, one in met(way).items():
        for what, request, sections in changed(one, known):
            try:
                with bounded():
                    said, _ = one.try_out(request=request, sections=sections)
            except (LateError, MemoryError, RecursionError) as error:
                said = f"{type(error).__name__}\n"
            plain = said.isprintable() and len(said) <= LONGEST
            if not plain or said.startswith(("MemoryError", "RecursionError")):
                wrong.append(f"{key}, {what}: {said[:120]!r}")
    assert wrong == []
