"""Secure Gram when nodes vanish and servers break down: no two sums whose difference shows one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import PowerCutError
from item_rows import Rows, away, binary, drawn
from refusals import refused

from fedkern_flwr.clients import GramClient
from fedkern_flwr.errors import EngineError, FedKernError
from fedkern_flwr.simulations.engines import Fault
from fedkern_flwr.strategies import FedCFK, SecureGram

NODES = 6
Plan = Callable[[Any], Fault | None]


@pytest.fixture
def nodes(tmp_path: Path) -> Rows:
    """Six nodes of three rows that keep their state."""
    rng, chance = np.random.default_rng(0), np.array([0.9, 0.6, 0.6, 0.5, 0.4, 0.05, 0.0])
    x = [(rng.random((3, len(chance))) < chance).astype(int) for _ in range(NODES)]
    return Rows(
        GramClient,
        [{"x": rows, "x_test": (1 - rows) * [1, 0, 1, 0, 1, 0, 1]} for rows in x],
        tmp_path,
    )


def release(nodes: Rows, faults: Any = None, **options: Any) -> Any:
    return nodes.release(faults, **{"threshold": 4, "attempts": 3, **options})


def opened(nodes: Rows) -> int:
    """Return how many exchanges asked to open a sum."""
    return len({entry.scalars["round"] for entry in nodes.sent.entries(phase="unmask")})


def at(
    phase: str, numbers: Sequence[int], who: Sequence[int] | None, kind: Any = "vanished"
) -> Plan:
    """Strike nodes in some exchanges of a phase; without nodes the server breaks down."""
    rounds: list[int] = []

    def plan(delivery: Any) -> Fault | None:
        if delivery.phase != phase:
            return None
        if delivery.round not in rounds:
            rounds.append(delivery.round)
        if rounds.index(delivery.round) + 1 not in numbers:
            return None
        if who is None:
            raise PowerCutError
        return Fault(kind) if delivery.partition in who else None

    return plan


# -- a difference of two sums that would show somebody


@pytest.mark.parametrize("kind", ["vanished", "error"])
def test_when_one_node_drops_out_after_the_counts_all_are_asked_again_or_nothing_is_opened(
    kind: Any, nodes: Rows
) -> None:
    strategy = release(nodes, at("gram-matrix", [1], [4], kind))
    nodes.check(strategy, range(NODES))
    assert strategy.ledger_.by_phase["gram-matrix"] == 2
    assert opened(nodes) == 2  # the counts, and K once
    with refused("FK-PARTIES-LOST"):
        release(nodes, away([4], kind=kind))
    assert opened(nodes) == 1
    assert len(nodes.times("gram-matrix")) == 3 * NODES
    # without counts there is no difference
    nodes.check(release(nodes, away([4], kind=kind), min_support=0), [0, 1, 2, 3, 5])


def test_few_rows_that_drop_out_are_shown_by_nothing_either(nodes: Rows) -> None:
    """Two nodes of six rows: enough for a support of 6, not for one of 7."""
    nodes.check(release(nodes, away([1, 4]), min_support=6), [0, 2, 3, 5])
    with refused("FK-PARTIES-LOST"):
        release(nodes, away([1, 4]), min_support=7)
    assert opened(nodes) == 1
    once = at("gram-matrix", [1, 2], [1, 4])
    nodes.check(release(nodes, once, min_support=7), range(NODES))


def test_the_rule_holds_in_each_cohort(nodes: Rows) -> None:
    first, second = drawn(NODES, cohorts=2)
    options = {"cohorts": 2, "threshold": 2, "min_support": 2}
    nodes.check(release(nodes, at("gram-matrix", [1], second[:1]), **options), range(NODES))
    assert sorted(nodes.times("gram-matrix")) == sorted([*first, *second, *second])
    with refused("FK-PARTIES-LOST"):
        release(nodes, away(second[:1]), **options)
    assert opened(nodes) == 1  # nothing of the first cohort either


def test_too_few_nodes_end_the_run_and_show_nothing(nodes: Rows) -> None:
    counts, matrix = away([0, 1], "gram-counts"), away([2])
    with refused("FK-PARTIES-LOST"):  # those that add zeros hide nobody
        release(nodes, lambda d: counts(d) or matrix(d), min_support=2)
    assert opened(nodes) == 1
    silent, for_ever = away(range(3), "unmask"), away(range(3), "recover")
    for support in (0, 5):
        with refused("FK-SUM-SILENT"):
            release(nodes, lambda d: silent(d) or for_ever(d), min_support=support)


# -- servers that break down


def where(nodes: Rows, **more: Any) -> dict[str, Any]:
    return {"checkpoint": nodes.folder / "run.npz", **more}


def break_off(nodes: Rows, plan: Any, **options: Any) -> None:
    with pytest.raises(PowerCutError):
        release(nodes, plan, **where(nodes, **options))


def test_a_run_that_broke_off_before_k_was_opened_ends_with_the_exact_matrix(nodes: Rows) -> None:
    quiet = release(nodes)
    break_off(nodes, at("unmask", [2], None))
    break_off(nodes, at("unmask", [1], None), resume=True)  # may break off again
    strategy = release(nodes, **where(nodes, resume=True))
    nodes.check(strategy, range(NODES))
    np.testing.assert_array_equal(strategy.counts_, quiet.counts_)
    assert (strategy.metrics_, strategy.history_) == (quiet.metrics_, quiet.history_)
    assert strategy.model()[1] == quiet.model()[1]
    # who misses the counts stays out of K after a break-down as well
    gone, end = away([3], "gram-counts", "error"), at("gram-matrix", [1], None)
    break_off(nodes, lambda d: end(d) or gone(d))
    nodes.check(release(nodes, **where(nodes, resume=True)), [0, 1, 2, 4, 5])


def break_the_opening(nodes: Rows, answered: Sequence[int]) -> None:
    """End the server when it has asked to open K, and some nodes have answered."""
    silent = [k for k in range(NODES) if k not in answered]
    strategy = SecureGram(threshold=4, attempts=3, **where(nodes))

    def after(done: int, *_: Any) -> None:
        if done == 3 * NODES + 1:  # counts, their opening, the matrix
            raise PowerCutError

    strategy.on_round = after
    with pytest.raises(PowerCutError):
        nodes.run(strategy, faults=at("unmask", [2], silent, "lost request"))


class Forgetful(SecureGram):
    """A server that does not know who has helped to open K."""

    def rounds(self, parties: Any) -> Any:
        self.spent_ = set()
        return super().rounds(parties)


def test_who_has_answered_the_opening_does_not_sum_again(nodes: Rows) -> None:
    """Two sums of different nodes must not both be opened, whatever numbers come."""
    break_the_opening(nodes, [0, 5])
    nodes.check(release(nodes, **where(nodes, resume=True)), [1, 2, 3, 4])
    assert sorted(nodes.times("gram-matrix")) == [1, 2, 3, 4]
    break_the_opening(nodes, [0, 5])
    try:
        nodes.check(release(nodes, kind=Forgetful, **where(nodes, resume=True)), [1, 2, 3, 4])
    except FedKernError:
        assert opened(nodes) == 0
    first = nodes.contexts[0].node_id
    answered = list(nodes.sent.entries(phase="gram-matrix", direction="up"))
    assert not {entry.node - first for entry in answered if entry.arrays} & {0, 5}


@pytest.mark.parametrize("answered", [[3], [0, 1, 2], [0, 1, 2, 3, 4, 5]])
def test_when_too_few_are_left_to_sum_again_nothing_is_released(
    answered: list[int], nodes: Rows
) -> None:
    """One node of three rows; more than may be missing; all."""
    break_the_opening(nodes, answered)
    with pytest.raises(FedKernError):
        release(nodes, **where(nodes, resume=True))
    assert opened(nodes) == 0
    if len(answered) == 1:  # a node whose notes are gone may have helped to open K
        break_the_opening(nodes, [0, 5])
        for k in (0, 5):
            shutil.rmtree(nodes.folder / f"node-{k}")
        with refused("FK-STATE-GONE"):
            release(nodes, **where(nodes, resume=True))
        assert opened(nodes) == 0


@pytest.mark.promise("gram-rounds")
@pytest.mark.parametrize("masks", [False, True])
def test_rounds_that_were_summed_are_not_summed_again(nodes: Rows, masks: bool) -> None:
    """With sums that nodes open and with sums that open by themselves."""
    options = {"threshold": None, "min_support": 0, "drop_outs": masks, "num_rounds": 3}
    break_off(nodes, at("gram-matrix", [2], None), **options)
    first = drawn(NODES, num_rounds=3)[0]
    strategy = release(nodes, **where(nodes, resume=True, **options))
    nodes.check(strategy, range(NODES))
    assert sorted(nodes.times("gram-matrix")) == [k for k in range(NODES) if k not in first]
    assert [row["round"] for row in strategy.history_] == [1, 2, 3]
    assert sum(row["clients"] for row in strategy.history_) == NODES


def test_a_recommender_that_broke_off_after_the_kernel_goes_on(nodes: Rows) -> None:
    quiet = release(nodes, kind=FedCFK)
    assert quiet.metrics_["evaluated_users"] > 10
    for phase, number in (("gram-recommend", 1), ("unmask", 3)):
        break_off(nodes, at(phase, [number], None), kind=FedCFK)
        for _ in range(2):
            strategy = release(nodes, kind=FedCFK, **where(nodes, resume=True))
            assert strategy.metrics_ == pytest.approx(quiet.metrics_, abs=1e-12)
            assert strategy.ledger_.by_phase["gram-matrix"] == 1


# -- users come and go in rounds


@pytest.mark.promise("gram-rounds")
#: A node that misses ten exchanges is left out.
@pytest.mark.parametrize("attempts", [2, pytest.param(12, marks=pytest.mark.long)])
def test_nodes_that_are_away_in_their_round_are_summed_in_a_later_one(attempts: int) -> None:
    """In each round one of the nodes that are left is away, until all others are summed."""
    nodes, rounds = binary(10, rows=3, items=5, share=0.8), drawn(10, 4, num_rounds=3)
    misses = {rounds[0][1]: 2 * attempts, rounds[1][0]: attempts}  # node -> requests

    def plan(delivery: Any) -> Fault | None:
        k = delivery.partition
        if delivery.phase != "gram-matrix" or not misses.get(k):
            return None
        misses[k] -= 1
        return Fault("vanished")

    strategy = nodes.release(plan, num_rounds=3, seed=4, min_support=2, attempts=attempts)
    assert not any(misses.values())
    nodes.check(strategy, range(10))
    # rounds 1 and 2 are put off, the third is summed, 1 is put off once more
    later = [len(rounds[k]) for k in (2, 1, 0)]
    assert [(h["round"], h["clients"]) for h in strategy.history_] == list(enumerate(later, 1))


def test_a_node_that_stays_away_is_left_out_or_ends_the_run_when_the_others_are_summed() -> None:
    nodes, rounds = binary(8, rows=3, items=5, share=0.8), drawn(8, num_rounds=3)
    lost = rounds[0][0]
    with refused("FK-PARTIES-LOST"):
        nodes.release(away([lost]), num_rounds=3, min_support=2, attempts=2)
    assert set(rounds[1] + rounds[2]) <= set(nodes.times("gram-matrix"))
    strategy = nodes.release(away([lost]), num_rounds=3, min_support=0, drop_outs=True)
    nodes.check(strategy, [k for k in range(8) if k != lost])
    assert nodes.times("gram-matrix").count(lost) == 1  # in no later round


def test_what_is_no_bad_luck_ends_the_rounds() -> None:
    """A mistake in a table repeats itself, an engine that broke down stays so."""
    nodes, seen = binary(4), list[int]()
    nodes.tables[1]["x"][0, 0] = 7
    with refused("FK-VALUES-BOUND"):
        nodes.release(min_support=0, num_rounds=2, attempts=2)

    def plan(delivery: Any) -> None:
        if delivery.phase == "gram-matrix":
            seen.append(delivery.round)
            raise EngineError("a Ray actor died", code="FK-ENGINE-ACTOR")

    with refused("FK-ENGINE-ACTOR"):
        binary(4).release(plan, min_support=0, num_rounds=2)
    assert len(seen) == 1
