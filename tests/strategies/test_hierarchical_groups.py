"""HierarchicalSVM whose groups do not wait, or are lost for good."""

from __future__ import annotations

import time
from collections import Counter

import pytest
import svm_groups
from faulty import PowerCutError
from refusals import raises, refuses
from svm_groups import GROUPS, Network, Open, check_optimum, delays, hits
from zoo import same

from fedkern_flwr.simulations.engines import Fault, Transcript
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.strategies import HierarchicalSVM

network, same_session = svm_groups.network, svm_groups.same_session


pytestmark = pytest.mark.timeout(60)  # a loop that waits for nobody must not block the others


def test_an_iteration_takes_an_exchange_more_once_a_group_is_lost(network: Open) -> None:
    """The agents' sums have self masks then; before, the same run needs none."""
    whole, found = network("leave-out").learn(rounds=8), network("leave-out")
    assert "unmask" not in whole.ledger_.by_phase
    strategy = found.learn(hits(2, "svm-step", Fault("error"), 5, always=True), 8)
    attempts, totals = strategy.attempts, strategy.ledger_.by_phase["unmask"]
    assert totals == 1 + 8 - 3  # all but those of three iterations, and one for the last losses
    more = strategy.ledger_.exchanges - whole.ledger_.exchanges
    assert more == totals + attempts - 1 + 1  # the group is asked again, the last model judged anew


@pytest.mark.promise("svm-half-stays")
def test_no_more_than_half_of_the_agents_may_be_lost(network: Open) -> None:
    def plan(delivery: Delivery) -> Fault | None:
        late = delivery.phase == "svm-step" and delivery.round >= 3
        return Fault("error") if late and delivery.partition in (2, 4) else None

    refuses("FK-PARTIES-LOST", network("leave-out").learn, plan)


@pytest.mark.parametrize(
    "name", [pytest.param("leave-out", marks=pytest.mark.long), "asynchronous, leave-out"]
)
def test_a_run_that_left_a_group_out_can_be_resumed(name: str, network: Open) -> None:
    found, at = network(name), hits(2, "svm-step", Fault("error"), 3, always=True)
    keep = {**found.keep, "tolerance": 2e-3}
    raises(PowerCutError, found.learn, at, rounds=60, stop_at=7, **keep)
    strategy = found.learn(at, rounds=60, resume=True, **keep)
    check_optimum(strategy, found, [1])


def same_model(found: Network, quiet: HierarchicalSVM) -> bool:
    """Tell whether a run came to the model of the one in which nothing happened."""
    return same(found.last.model()[0], quiet.model()[0], 1e-12)


def test_a_checkpoint_that_not_all_could_keep_is_not_written(network: Open) -> None:
    for name, partition in (("pairwise", 9), ("centralised", 3), ("vertical", 4)):
        found = network(name)
        at = hits(partition, "svm-save", Fault("error"), 1, always=True)
        found.learn(at, **found.keep)
        assert at.times
        assert not (found.folder / "run.npz").exists()
        assert same_model(found, network(name).learn())


def advances(transcript: Transcript) -> list[dict[int, bool]]:
    """Return which agents advanced, exchange by exchange."""
    ticks: dict[int, dict[int, bool]] = {}
    for entry in transcript.entries(phase="svm-combine", direction="down"):
        ticks.setdefault(int(entry.scalars["round"]), {})[entry.node] = entry.scalars["advance"]
    assert all(len(found) == GROUPS for found in ticks.values())
    return [ticks[k] for k in sorted(ticks)]


@pytest.mark.parametrize("staleness", [0, 1, 3, 16])
@pytest.mark.parametrize("name", ["pairwise", "leave-out"])
def test_no_group_is_further_ahead_than_it_may(name: str, staleness: int, network: Open) -> None:
    """Without staleness delays change nothing."""
    transcript, found = Transcript(), network(name)

    def plan(delivery: Delivery) -> Fault | None:
        slow = delivery.phase == "svm-step" and delivery.partition < 2
        return Fault("delay", seconds=0.02) if slow else delays(2, 0.002)(delivery)

    strategy = found.learn(plan, 8, transcript=transcript, staleness=staleness)
    if not staleness:
        assert same_model(found, network(name).learn(rounds=8))
    done: Counter[int] = Counter()
    most = 0
    for tick in advances(transcript):
        assert sum(tick.values()) != 1  # two totals would show one group
        done.update({node: int(advance) for node, advance in tick.items()})
        apart = max(done.values()) - min(done.values())
        assert apart <= staleness
        most = max(most, apart)
    assert min(done.values()) == 8 + (not staleness)  # the losses of the last one are asked for
    assert most >= min(staleness, 1)
    assert [row["round"] for row in strategy.history_] == list(range(1, 9))


@pytest.mark.promise("svm-two-new-terms")
def test_a_total_has_two_new_terms_at_least(network: Open) -> None:
    """Whose users come one after the other: two totals would show the step of one group."""
    transcript = Transcript()

    def plan(delivery: Delivery) -> Fault | None:
        users = delivery.phase == "svm-step"
        return Fault("delay", seconds=0.03 * (delivery.partition // 2)) if users else None

    network("pairwise").learn(plan, 5, transcript=transcript, staleness=3)
    fresh = [sum(tick.values()) for tick in advances(transcript)]
    assert 1 not in fresh
    assert set(fresh) & {2, 3}  # they do not wait for each other


def test_users_are_not_asked_beyond_the_bound(network: Open) -> None:
    asked: list[tuple[int, int]] = []

    def plan(delivery: Delivery) -> Fault | None:
        if delivery.phase == "svm-step":
            asked.append((delivery.partition // 2, delivery.round))
            return Fault("delay", seconds=0.02 if delivery.partition < 2 else 0.0)
        return None

    network("pairwise").learn(plan, 6, staleness=2)
    ahead = 0
    for k, (_, number) in enumerate(asked):
        started = {g: max([r for h, r in asked[: k + 1] if h == g], default=1) for g in range(4)}
        ahead = max(ahead, number - min(started.values()))
    assert 0 < ahead <= 3  # one more than the bound: it waits with what it has done


@pytest.mark.promise("svm-one-message")
def test_an_agent_has_one_message_at_a_time(network: Open) -> None:
    """It is slow to answer for its group again; the others could go on, and wait for it."""
    waiting = {"until": 0.0}

    def plan(delivery: Delivery) -> Fault | None:
        if (delivery.phase, delivery.round, delivery.attempt) == ("svm-step", 2, 0):
            if delivery.partition > 1:  # ready once the group of 0 and 1 has been asked again
                return Fault("delay", seconds=0.1)
            return Fault("error") if delivery.partition else None
        if (delivery.partition, delivery.phase) != (8, "svm-combine"):
            return None
        assert time.monotonic() >= waiting["until"], "it has not answered what it was asked before"
        if delivery.attempt:
            waiting["until"] = time.monotonic() + 0.5
            return Fault("delay", seconds=0.5)
        return None

    network("asynchronous").learn(plan, 5)
    assert waiting["until"] > 0.0


def test_replies_that_came_while_the_server_waited_for_agents_are_not_late(network: Open) -> None:
    """The exchange with the agents uses up all the time; the users have answered meanwhile."""
    found = network("asynchronous")

    def plan(delivery: Delivery) -> Fault | None:
        if delivery.phase == "svm-step":
            slow = delivery.partition in (6, 7)
            return Fault("delay", seconds=0.1) if slow else None
        lost = delivery.phase == "svm-combine" and delivery.partition == 9
        return Fault("lost request") if lost and next(count) % 4 == 2 else None

    count = iter(range(10_000))
    strategy = found.learn(plan, 4, timeout=1.0)
    blamed = [k for k, failures in strategy.ledger_.failures.items() if failures]
    assert {int(k) for k in blamed} == {9}
