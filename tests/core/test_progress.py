"""What long work says, who hears it, and how its seconds are counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from fedkern_flwr import progress as module
from fedkern_flwr.progress import Listener, listening, part, progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def test_seconds_are_those_of_the_innermost_part_also_in_a_generator_that_fails(
    clock: list[float],
) -> None:
    def steps() -> Iterator[None]:
        with part("train"):
            clock[0] += 2.0
            yield
            with part("judge"):
                clock[0] += 4.0
            raise LookupError

    listener = Listener(lambda *step: None)
    clock[0] += 50.0  # nobody listens yet
    with listening(listener):
        clock[0] += 1.0
        work = steps()
        next(work)
        clock[0] += 8.0
        with pytest.raises(LookupError):
            next(work)
        clock[0] += 16.0
        with part("judge"):
            clock[0] += 32.0
    assert listener.seconds == {"collect": 17.0, "train": 10.0, "judge": 36.0}


def test_only_the_listener_of_the_block_hears_and_no_other_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outer, inner = list[tuple[str, int, int]](), list[tuple[str, int, int]]()
    caplog.set_level(logging.DEBUG, "fedkern_flwr")

    def work() -> None:
        progress("first", 1, 2)
        other = threading.Thread(target=progress, args=("elsewhere",))
        other.start()
        other.join()
        with listening(Listener(lambda *step: inner.append(step))):
            progress("second")
        with listening(None):
            progress("third", 2, 3)
        progress("fourth", 2, 2)
        raise KeyError

    with pytest.raises(KeyError), listening(Listener(lambda *step: outer.append(step))):
        work()
    with part("train"):
        progress("last")
    assert outer == [("first", 1, 2), ("fourth", 2, 2)]
    assert inner == [("second", 0, 0)]
    assert caplog.messages == ["elsewhere", "third, 2 of 3", "last"]
    assert {record.levelname for record in caplog.records} == {"DEBUG"}
