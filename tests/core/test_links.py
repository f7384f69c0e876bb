"""Link times: the formulas against a simulation that knows nothing but messages and busy links."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.errors import OptionError
from fedkern_flwr.simulations.lab.links import (
    Link,
    LinkCost,
    masked_star_cost,
    relayed_cost,
    ring_steps,
    ring_time,
    star_steps,
    star_time,
    tree_steps,
    tree_time,
    two_trees_steps,
    two_trees_time,
)
from fedkern_flwr.vertical.trees import Tree, make_trees

COUNTS = st.integers(2, 40)
POWERS = st.sampled_from([2, 4, 8, 16, 32])
SIZES = st.sampled_from([12.0, 4096.0, 1e6])
LINKS = st.builds(Link, st.sampled_from([0.0, 1e-3, 0.2]), st.sampled_from([1e5, 100e6]))
UNIT = Link(0.0, 8.0)  # a byte takes a second and nothing else does
SERVER = -1


@dataclass(frozen=True)
class Message:
    """A message and the numbers of those that must have been received before it leaves."""

    sender: int
    receiver: int
    after: tuple[int, ...] = ()


def simulated(messages: Sequence[Message], size: float, link: Link) -> float:
    """Play events in order of time; a link serves who asked first. Return when the last is in."""
    duration, order = 8 * size / link.rate, count()
    waits = [set(message.after) for message in messages]
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
        node = messages[k].sender if what == "send" else messages[k].receiver
        start = max(now, free[node])
        free[node] = start + duration
        if what == "send":
            heapq.heappush(events, (start + link.latency, next(order), "receive", k))
        else:
            heapq.heappush(events, (free[node], next(order), "received", k))
    assert len(received) == len(messages)
    return now


def star(parties: int) -> list[Message]:
    return [Message(k, 0) for k in range(1, parties)]


def ring(parties: int) -> list[Message]:
    return [Message(k, k + 1, (k - 1,) if k else ()) for k in range(parties - 1)]


def eager(tree: Tree) -> list[Message]:
    """Each party sends as soon as all its children's sums are in."""
    number = {sender: k for k, (sender, _) in enumerate(tree.sends)}
    return [
        Message(sender, receiver, tuple(number[child] for child in tree.children[sender]))
        for sender, receiver in tree.sends
    ]


def stepwise(steps: Sequence[Sequence[Message]], start: int = 0) -> list[Message]:
    """A step begins when all messages of the step before are in."""
    out: list[Message] = []
    before: tuple[int, ...] = ()
    for step in steps:
        out += [Message(m.sender, m.receiver, before) for m in step]
        before = tuple(range(start + len(out) - len(step), start + len(out)))
    return out


def pairs(parties: Sequence[int]) -> list[list[Message]]:
    """Pair neighbours until the first holds all."""
    holders, steps = list(parties), []
    while len(holders) > 1:
        step = [Message(b, a) for a, b in zip(holders[::2], holders[1::2], strict=False)]
        steps.append(step)
        holders = holders[::2]
    return steps


def relayed(steps: Sequence[Sequence[Message]]) -> list[Message]:
    """All up to the server, then all down from it, step by step."""
    halves: list[list[Message]] = []
    for step in steps:
        halves.append([Message(m.sender, SERVER) for m in step])
        halves.append([Message(SERVER, m.receiver) for m in step])
    return stepwise(halves)


def check(
    cost: LinkCost, unit: LinkCost, messages: Sequence[Message], size: float, link: Link
) -> None:
    assert cost.seconds == pytest.approx(simulated(messages, size, link))
    assert cost.bytes == size * len(messages)
    # With links that only queue, the time is the number of messages that cannot overlap.
    assert unit.critical_messages == simulated(messages, 1.0, UNIT)
    assert cost.critical_messages == unit.critical_messages


@given(COUNTS, SIZES, LINKS)
def test_star_and_ring_take_as_long_as_simulated(q: int, size: float, link: Link) -> None:
    check(star_time(q, size, link=link), star_time(q, 1, link=UNIT), star(q), size, link)
    check(ring_time(q, size, link=link), ring_time(q, 1, link=UNIT), ring(q), size, link)


@given(COUNTS, SIZES, LINKS)
def test_trees_in_synchronous_steps_take_as_long_as_simulated(
    q: int, size: float, link: Link
) -> None:
    one = pairs(range(q))
    check(tree_time(q, size, link=link), tree_time(q, 1, link=UNIT), stepwise(one), size, link)
    two = stepwise(one + pairs(range(q - 1)))
    check(two_trees_time(q, size, link=link), two_trees_time(q, 1, link=UNIT), two, size, link)
    assert [len(step) for step in one] == list(tree_steps(q))


@given(POWERS, SIZES, LINKS, st.integers(0, 50))
def test_a_random_tree_of_a_power_of_two_takes_just_the_formula(
    q: int, size: float, link: Link, seed: int
) -> None:
    tree, _ = make_trees(range(q), 0, q - 1, seed)
    cost = tree_time(q, size, link=link)
    assert simulated(eager(tree), size, link) == pytest.approx(cost.seconds)


@given(COUNTS, SIZES, LINKS, st.integers(0, 50))
def test_no_random_tree_takes_longer_than_the_formula(
    q: int, size: float, link: Link, seed: int
) -> None:
    t1, t2 = make_trees(range(q), 0, q - 1, seed)
    spent = simulated(eager(t1), size, link)
    assert spent <= tree_time(q, size, link=link).seconds * (1 + 1e-12)
    if q > 2:
        both = spent + simulated(eager(t2), size, link)
        assert both <= two_trees_time(q, size, link=link).seconds * (1 + 1e-12)


@given(COUNTS, SIZES, LINKS)
def test_what_passes_the_server_takes_as_long_as_simulated(q: int, size: float, link: Link) -> None:
    for steps, hops in (
        (star_steps(q), [star(q)]),
        (ring_steps(q), [[message] for message in ring(q)]),
        (tree_steps(q), pairs(range(q))),
    ):
        assert steps == tuple(map(len, hops))
        cost, unit = relayed_cost(steps, size, link=link), relayed_cost(steps, 1, link=UNIT)
        check(cost, unit, relayed(hops), size, link)


@given(COUNTS, SIZES, LINKS)
def test_two_trees_at_once_through_the_server(q: int, size: float, link: Link) -> None:
    first, second = pairs(range(q)), pairs(range(q - 1))
    second += [[]] * (len(first) - len(second))
    hops = [one + other for one, other in zip(first, second, strict=True)]
    steps = two_trees_steps(q)
    cost, unit = relayed_cost(steps, size, link=link), relayed_cost(steps, 1, link=UNIT)
    check(cost, unit, relayed(hops), size, link)
    assert sum(steps) == 2 * q - 3


@given(COUNTS, SIZES, LINKS)
def test_masked_star_takes_as_long_as_simulated(q: int, size: float, link: Link) -> None:
    messages = stepwise([[Message(k, SERVER) for k in range(q)], [Message(SERVER, 0)]])
    cost, unit = masked_star_cost(q, size, link=link), masked_star_cost(q, 1, link=UNIT)
    check(cost, unit, messages, size, link)


def test_eight_parties_by_hand() -> None:
    """A megabyte takes 80 ms on a link of 100 Mbit/s."""
    assert star_time(8, 1e6) == LinkCost(pytest.approx(0.561), 7, 7e6)
    assert ring_time(8, 1e6) == LinkCost(pytest.approx(0.567), 7, 7e6)
    assert tree_time(8, 1e6) == LinkCost(pytest.approx(0.243), 3, 7e6)
    assert two_trees_time(8, 1e6) == LinkCost(pytest.approx(0.486), 6, 13e6)
    assert relayed_cost(tree_steps(8), 1e6) == LinkCost(pytest.approx(1.126), 14, 14e6)
    assert masked_star_cost(8, 1e6) == LinkCost(pytest.approx(0.722), 9, 9e6)


@given(st.integers(4, 200), st.floats(1e5, 1e9))
def test_the_tree_wins_with_long_vectors_between_parties(q: int, size: float) -> None:
    assert tree_time(q, size).seconds < min(star_time(q, size).seconds, ring_time(q, size).seconds)


def test_the_star_wins_with_short_vectors_and_few_parties() -> None:
    wins = [tree_time(q, 4096).seconds < star_time(q, 4096).seconds for q in range(3, 65)]
    assert wins == [q in (15, 16) or q >= 19 for q in range(3, 65)]
    assert not any(tree_time(q, 8).seconds < star_time(q, 8).seconds for q in range(3, 10_000))


@given(st.integers(3, 200), SIZES)
def test_the_masked_star_wins_through_the_server(q: int, size: float) -> None:
    star_, tree, ring_, two = (
        relayed_cost(steps(q), size).seconds
        for steps in (star_steps, tree_steps, ring_steps, two_trees_steps)
    )
    assert masked_star_cost(q, size).seconds <= star_ < tree <= min(ring_, two)


@pytest.mark.parametrize("cost", [star_time, ring_time, tree_time, two_trees_time])
def test_what_cannot_be_summed_is_refused(cost: type[LinkCost]) -> None:
    with pytest.raises(OptionError, match="a sum of 1 parties; use at least 2"):
        cost(1, 10)
    with pytest.raises(OptionError, match="vectors of -1 bytes"):
        cost(2, -1)


@pytest.mark.parametrize("options", [{"latency": -1.0}, {"rate": 0.0}, {"rate": float("nan")}])
def test_impossible_links_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(OptionError, match="a positive rate"):
        Link(**options)


def test_no_steps_are_refused() -> None:
    with pytest.raises(OptionError, match="without messages"):
        relayed_cost(star_steps(1), 10)
