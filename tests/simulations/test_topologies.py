"""Link times of star, ring and tree: formulas against a simulation of messages, and the figure."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from fedkern_flwr.simulations.lab.topologies import (
    LATENCY,
    RATE,
    SERVER_NOTE,
    direct_seconds,
    plot_topologies,
    relayed_seconds,
    tree_steps,
)
from fedkern_flwr.simulations.papers.fdskl import draw_trees
from fedkern_flwr.simulations.run import drawing

COUNTS = st.integers(2, 40)
SIZES = st.sampled_from([12.0, 4096.0, 1e6])
SERVER = -1
#: Sender, receiver, and the numbers of the messages that must have been received before.
Message = tuple[int, int, tuple[int, ...]]


def simulated(messages: Sequence[Message], size: float) -> float:
    """Play events in order of time; a link serves who asked first. Return when the last is in."""
    duration, order = 8 * size / RATE, count()
    waits = [set(after) for *_, after in messages]
    free: dict[int, float] = defaultdict(float)
    events = [(0.0, next(order), "send", k) for k, wait in enumerate(waits) if not wait]
    received: set[int] = set()
    now = 0.0
    while events:
        now, _, what, k = heapq.heappop(events)
        if what == "received":
            received.add(k)
            for later, wait in enumerate(waits):
                if k in wait:
                    wait.remove(k)
                    if not wait:
                        heapq.heappush(events, (now, next(order), "send", later))
            continue
        node = messages[k][what == "receive"]
        start = max(now, free[node])
        free[node] = start + duration
        if what == "send":
            heapq.heappush(events, (start + LATENCY, next(order), "receive", k))
        else:
            heapq.heappush(events, (free[node], next(order), "received", k))
    assert len(received) == len(messages)
    return now


def stepwise(steps: Sequence[Sequence[tuple[int, int]]]) -> list[Message]:
    """A step begins when all messages of the step before are in."""
    out: list[Message] = []
    before: tuple[int, ...] = ()
    for step in steps:
        start = len(out)
        out += [(sender, receiver, before) for sender, receiver in step]
        before = tuple(range(start, len(out)))
    return out


def pairs(parties: int) -> list[list[tuple[int, int]]]:
    """Pair neighbours until the first holds all."""
    holders, steps = list(range(parties)), []
    while len(holders) > 1:
        steps.append([(b, a) for a, b in zip(holders[::2], holders[1::2], strict=False)])
        holders = holders[::2]
    return steps


def hops_of(parties: int) -> dict[str, list[list[tuple[int, int]]]]:
    """Return the messages of each step, by topology."""
    return {
        "star": [[(k, 0) for k in range(1, parties)]],
        "ring": [[(k, k + 1)] for k in range(parties - 1)],
        "tree": pairs(parties),
    }


@given(COUNTS, SIZES)
def test_between_parties_it_takes_as_long_as_simulated(q: int, size: float) -> None:
    found = direct_seconds(q, size)
    for name, hops in {**hops_of(q), "two trees": pairs(q) + pairs(q - 1)}.items():
        assert found[name] == pytest.approx(simulated(stepwise(hops), size)), name
    assert [len(step) for step in pairs(q)] == tree_steps(q)


@given(COUNTS, SIZES)
def test_through_the_server_it_takes_as_long_as_simulated(q: int, size: float) -> None:
    found, first, second = relayed_seconds(q, size), pairs(q), pairs(q - 1)
    second += [[]] * (len(first) - len(second))
    both = [one + other for one, other in zip(first, second, strict=True)]
    for name, hops in {**hops_of(q), "two trees": both}.items():
        halves = []  # all up to the server, then all down from it
        for step in hops:
            halves += [[(sender, SERVER) for sender, _ in step], [(SERVER, r) for _, r in step]]
        assert found[name] == pytest.approx(simulated(stepwise(halves), size)), name
    masked = stepwise([[(k, SERVER) for k in range(q)], [(SERVER, 0)]])
    assert found["masked star"] == pytest.approx(simulated(masked, size))


@given(COUNTS, SIZES, st.integers(0, 50))
def test_no_random_tree_takes_longer_than_the_formula(q: int, size: float, seed: int) -> None:
    spent = []
    for tree in draw_trees(q, 0, q - 1, seed):
        got: dict[int, tuple[int, ...]] = defaultdict(tuple)
        eager = []  # each party sends as soon as all that it waits for is in
        for number, (sender, receiver) in enumerate(tree.sends):
            eager.append((sender, receiver, got[sender]))
            got[receiver] += (number,)
        spent.append(simulated(eager, size))
    found = direct_seconds(q, size)
    assert spent[0] <= found["tree"] * (1 + 1e-12)
    assert sum(spent) <= found["two trees"] * (1 + 1e-12)


def test_eight_parties_by_hand() -> None:
    """A megabyte takes 80 ms on a link of 100 Mbit/s."""
    direct = {"star": 0.561, "ring": 0.567, "tree": 0.243, "two trees": 0.486}
    assert direct_seconds(8, 1e6) == pytest.approx(direct)
    relayed = relayed_seconds(8, 1e6)
    assert (relayed["tree"], relayed["masked star"]) == pytest.approx((1.126, 0.722))


@given(st.integers(4, 200), st.floats(1e5, 1e9))
def test_the_tree_wins_with_long_vectors_between_parties(q: int, size: float) -> None:
    found = direct_seconds(q, size)
    assert found["tree"] < min(found["star"], found["ring"])


@given(st.integers(3, 200), SIZES)
def test_the_masked_star_wins_through_the_server(q: int, size: float) -> None:
    found = relayed_seconds(q, size)
    others = min(found["ring"], found["two trees"])
    assert found["masked star"] <= found["star"] < found["tree"] <= others


def test_the_figure_shows_both_ways_with_units_and_says_what_flower_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    save = drawing.save_figure
    monkeypatch.setattr(
        drawing, "save_figure", lambda f, path: (figures.append(f), save(f, path))[1]
    )
    png = plot_topologies(tmp_path / "links.png")
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert png.with_suffix(".svg").exists()
    (figure,) = figures
    assert figure.get_suptitle() == SERVER_NOTE
    axes = figure.axes
    assert [a.get_ylabel() for a in axes] == ["time of a sum (s)", "", "time of a sum (s)", ""]
    assert [len([line for line in a.lines if len(line.get_xdata())]) for a in axes] == [4, 5, 4, 5]
