"""Secure Gram: the exact matrix of whoever took part, and nothing of what was suppressed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import PowerCutError
from item_rows import Rows, away, binary, crossing, drawn, few_of_some, many_items
from refusals import raises, refused, refuses
from scipy import sparse

from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.errors import CheckpointError, FedKernError
from fedkern_flwr.gram.matrix import packed_size, quantisation_error
from fedkern_flwr.simulations.engines import Fault, FaultPlan, FaultyGrid
from fedkern_flwr.strategies import SecureGram

# -- the exact matrix, whoever drops out

FORMS = (np.asarray, sparse.csr_array, sparse.coo_array, lambda v: v.astype(float))
#: Who does not count items, does not sum, does not open.
GONE: list[tuple[Any, Any, Any]] = [((), (), ()), ([2], (), ()), ((), [1, 4], ())]
GONE += [((), (), [0, 5]), ([6], [1, 4], ()), ([2], (), [3])]


@pytest.mark.parametrize(("bits", "bound"), [(16, 1), (32, 9000), (64, 6 * 10**8)])
def test_the_matrix_is_exact_for_whoever_is_left(bits: int, bound: int) -> None:
    rng, x = np.random.default_rng(bound), list[Any]()
    for k in range(8):
        values = rng.integers(0, bound + 1, (3, 6)) * (rng.random((3, 6)) < [0.9, 0.5, 0.3] * 2)
        values[0, 0] = bound
        x.append(FORMS[k % 4](values))
    nodes = Rows.of(x)
    for uncounted, unsummed, silent in GONE if bits == 32 else GONE[4:]:
        plans = away(uncounted, "gram-counts"), away(unsummed), away(silent, "unmask")
        strategy = nodes.release(
            lambda d, plans=plans: next((fault for plan in plans if (fault := plan(d))), None),
            **{"bound": bound, "min_support": 6, "threshold": 5, "attempts": 2},
        )
        counted = [k for k in range(8) if k not in uncounted]
        who = [k for k in counted if k not in unsummed]
        left = nodes.counts(who)
        kept = (nodes.counts(counted) >= 6) & ((left >= 6) | (left == 0))
        nodes.check(strategy, who, np.flatnonzero(kept))
        assert all(order.bits == bits for order in nodes.orders("gram-matrix").values())
        assert strategy.error_bound_ == 0.0


@pytest.mark.parametrize("support", [0, 3])
def test_disjoint_cohorts_add_up_and_an_item_has_none_or_enough_rows_in_each(support: int) -> None:
    for seed, cohorts, participation in ((0, 2, 1.0), (1, 3, 0.7), (2, 1, 0.8)):
        rng = np.random.default_rng(seed)
        x = [(rng.random((int(rng.integers(1, 7)), 6)) < rng.random(6)).astype(int)
             for _ in range(9)]  # fmt: skip
        nodes, options = Rows.of(x), {"cohorts": cohorts, "participation": participation}
        members = drawn(9, seed, **options)
        each = np.stack([nodes.counts(who) for who in members])
        fine = ((each == 0) | (each >= support)).all(axis=0) & (each.any(axis=0) | (support == 0))
        everybody = sorted(p for who in members for p in who)
        strategy = nodes.release(seed=seed, min_support=support, **options)
        nodes.check(strategy, everybody, np.flatnonzero(fine))
        assert set(nodes.requests("gram-matrix")) == set(everybody)
        if support:
            np.testing.assert_array_equal(strategy.counts_, nodes.counts(everybody))
    refuses("FK-ITEMS-SUPPORT", nodes.release, min_support=60)


# -- support


@pytest.mark.parametrize("bound", [1, 9])  # rows count, not values
def test_items_of_few_rows_are_in_no_message(bound: int) -> None:
    nodes = few_of_some(bound)
    strategy = nodes.release(bound=bound)
    assert strategy.min_support == 5
    assert strategy.counts_.tolist() == [6, 5, 4, 1, 0, 12]
    nodes.check(strategy, range(6), [0, 1, 5])
    requests, size = nodes.requests("gram-matrix"), packed_size(3) + 3 * (bound != 1)
    assert {tuple(request.items) for request in requests.values()} == {(0, 1, 5)}
    assert {request.counted for request in requests.values()} == {bytes([0b111111])}
    assert {order.length for order in nodes.orders("gram-matrix").values()} == {size}
    for support in (0, 1):  # nothing is counted where nothing is suppressed
        strategy = nodes.release(min_support=support, bound=bound)
        assert not nodes.requests("gram-counts")
        nodes.check(strategy, range(6), range(6))
        assert strategy.counts_.tolist() == [0] * 6


def test_who_missed_the_counts_does_not_count_in_the_matrix() -> None:
    """It adds zeros, for its masks; its rows may be the only ones of an item that was kept."""
    nodes, left = few_of_some(), [1, 2, 3, 4, 5]
    strategy = nodes.release(away([0], "gram-counts"), min_support=4)
    assert strategy.counts_.tolist() == nodes.counts(left).tolist()
    nodes.check(strategy, left)
    told = {k: request.counted for k, request in nodes.requests("gram-matrix").items()}
    assert told == dict.fromkeys(range(6), bytes([0b111110]))  # the same for all


# -- matrices that can be taken apart


def shows_rows(strategy: Any) -> bool:
    return any("by computation" in line for line in strategy.privacy()["server_sees"])


@pytest.mark.promise("gram-recovery-refused")
def test_a_matrix_that_can_be_taken_apart_is_told_of_or_refused() -> None:
    nodes, options = many_items(), {"min_support": 0, "allow_recovery": False}
    refuses("FK-GRAM-RECOVERY", nodes.release, **options)
    assert not nodes.times("gram-matrix")
    assert shows_rows(nodes.release(min_support=0))  # in a simulation
    grid = nodes.grid()
    grid.simulation = False
    refuses("FK-GRAM-RECOVERY", SecureGram(min_support=2, drop_outs=True).start, grid)
    strategy = SecureGram(drop_outs=True, allow_recovery=True)
    strategy.start(grid)  # there an item needs twenty rows
    np.testing.assert_array_equal(strategy.items_, np.flatnonzero(strategy.counts_ >= 20))
    real = Rows.of([table["x"] + 0.5 for table in nodes.tables])
    with refused("FK-GRAM-RECOVERY"):
        real.release(encoding="fixed-point", bound=2.0, allow_recovery=False)
    # together there are two rows for each item, in each sum there is one or less
    for more in ({"cohorts": 3}, {"num_rounds": 3}):
        strategy = binary(12, items=12).release(min_support=0, **more)
        assert strategy.rows_ == 2 * len(strategy.items_) == 24
        assert shows_rows(strategy)


@pytest.mark.parametrize("support", [0, 5])
def test_items_that_most_rows_have_are_kept_as_far_as_the_rows_reach(support: int) -> None:
    nodes, options = many_items(), {"min_support": support, "allow_recovery": False}
    counts = nodes.counts(range(6))
    best = sorted(sorted(range(20), key=lambda i: (-counts[i], i))[:12])
    strategy = nodes.release(rows_per_item=2, **options)
    np.testing.assert_array_equal(strategy.counts_, counts)
    nodes.check(strategy, range(6), best)
    assert not shows_rows(strategy)
    assert len(nodes.release(rows_per_item=2, cohorts=2, min_support=0).items_) == 6  # in each
    apart = binary(5).release(rows_per_item=1, cohorts=2, min_support=0)  # six rows and four
    assert len(apart.items_) == 4
    assert len(nodes.release(rows_per_item=7.5, min_support=0).items_) == 3
    refuses("FK-ITEMS-SUPPORT", nodes.release, rows_per_item=25)
    # what was promised of the rows that were counted must hold for those that are summed
    with refused("FK-PARTIES-LOST"):
        nodes.release(away([0, 1]), threshold=4, attempts=2, rows_per_item=2, **options)


# -- real features


@pytest.mark.parametrize("fraction", [0, 3, 20, 24])
def test_real_features_are_summed_as_they_are_rounded(fraction: int) -> None:
    rng = np.random.default_rng(0)
    nodes = Rows.of([sparse.csr_array(rng.uniform(-3.0, 3.0, (k + 1, 5))) for k in range(4)])
    options = {"encoding": "fixed-point", "bound": 3.0, "fraction_bits": fraction}
    for lost in ([], [2]):
        left = [k for k in range(4) if k not in lost]
        strategy, true = nodes.release(away(lost), **options), nodes.rows(left)
        rounded = np.rint(true * 2.0**fraction).astype(np.int64).astype(object)
        assert strategy.gram_.tolist() == (rounded.T @ rounded).tolist()
        assert strategy.error_bound_ == quantisation_error(len(true), 3.0, fraction)
        assert np.abs(strategy.linear_ - true.T @ true).max() <= strategy.error_bound_
    assert (strategy.gram_ < 0).any()
    assert SecureGram(encoding="fixed-point").fraction_bits == 20
    for table in nodes.tables:  # new instances are rounded alike
        table["x_new"] = rng.uniform(-3.0, 3.0, (table["x"].shape[0], 2))
    model, again = nodes.release(**options).model(), SecureGram(**options)
    products, squares = again.cross(nodes.grid(), model)
    whole = [np.rint(table["x_new"] * 2.0**fraction) for table in nodes.tables]
    new, old = np.concatenate(whole), np.rint(nodes.rows(range(4)) * 2.0**fraction)
    np.testing.assert_array_equal(products * 4.0**fraction, new.T @ old)
    np.testing.assert_array_equal(squares * 4.0**fraction, (new**2).sum(axis=0))


# -- new items


def test_products_of_new_items_are_exact_with_a_model_that_was_saved(tmp_path: Path) -> None:
    nodes = crossing()
    options = {"kernel": "poly", "degree": 3, "gamma": 0.25, "coef0": 2.0, "seed": 5}
    strategy = nodes.release(**options)
    save_arrays(tmp_path / "model.npz", *strategy.model())
    model = load_arrays(tmp_path / "model.npz")
    again = SecureGram.of_model(model[1])
    once = FaultPlan([(1, "gram-cross", 1, Fault("vanished"))])
    found = again.cross(FaultyGrid(nodes.grid(), once), model)
    nodes.check_cross(found, strategy, [0, 1, 2, 3])
    kernel = again.dot_kernel_.block(*found, again.linear_.diagonal(), again.rows_)
    np.testing.assert_allclose(kernel, (0.25 * found[0] + 2.0) ** 3, rtol=1e-12)
    np.testing.assert_array_equal(again.kernel_, strategy.kernel_)
    # nodes that are not in the model are left out, all others must take part
    fewer = nodes.release(away([0], "gram-counts"), min_support=3)
    nodes.check_cross(SecureGram().cross(nodes.grid(), fewer.model()), fewer, [1, 2, 3])
    gone = FaultyGrid(nodes.grid(), away([1], "gram-cross", "error"))
    refuses("FK-PARTIES-LOST", SecureGram(attempts=2).cross, gone, strategy.model())


def test_other_models_other_nodes_and_other_units_are_refused() -> None:
    nodes = crossing()
    arrays, meta = model = nodes.release().model()
    whole = [table["x"] for table in nodes.tables]
    more_items = [np.column_stack([rows, rows[:, 0]]) for rows in whole]
    # of the last node no rows, and more; all of them with another item
    for x in (whole[:3], [*whole[:3], np.ones((4, 6), int)], more_items):
        others = Rows.of(x)
        for table in others.tables:
            table["x_new"] = np.ones((len(table["x"]), 1))
        refuses("FK-MODEL-PARTIES", SecureGram().cross, others.grid(), model)
    # K in units of 4^-20 read as one in units of 4^-10 would be another kernel
    real = nodes.release(encoding="fixed-point").model()
    units = {"encoding": "fixed-point", "fraction_bits": 10}
    for options, made in (({}, (arrays, {})), (units, real)):
        with pytest.raises(CheckpointError):
            SecureGram(**options).cross(nodes.grid(), made)
    refuses("FK-MODEL-OTHER", SecureGram.of_model, {**meta, "method": "fdskl"})
    for new in (nodes.tables[2]["x_new"][:, :3], None):
        nodes.tables[2]["x_new"] = new
        refuses("FK-ITEMS-NEW", SecureGram().cross, nodes.grid(), model)


# -- nodes vanish and servers break down: no two sums whose difference shows one


NODES = 6
Plan = Callable[[Any], Fault | None]


@pytest.fixture
def nodes(tmp_path: Path) -> Rows:
    """Six nodes of three rows that keep their state."""
    rng, chance = np.random.default_rng(0), np.array([0.9, 0.6, 0.6, 0.5, 0.4, 0.05, 0.0])
    x = [(rng.random((3, len(chance))) < chance).astype(int) for _ in range(NODES)]
    nodes = Rows.of(x, tmp_path)
    for table in nodes.tables:
        table["x_test"] = (1 - table["x"]) * [1, 0, 1, 0, 1, 0, 1]
    return nodes


def release(nodes: Rows, faults: Any = None, **options: Any) -> Any:
    return nodes.release(faults, **{"threshold": 4, "attempts": 3, **options})


def opened(nodes: Rows) -> int:
    """Return how many exchanges asked to open a sum."""
    return len({entry.scalars["round"] for entry in nodes.sent.entries(phase="unmask")})


def at(phase: str, numbers: Sequence[int], who: Any, kind: Any = "vanished") -> Plan:
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
def test_if_a_node_drops_out_after_the_counts_all_are_asked_again(kind: Any, nodes: Rows) -> None:
    strategy = release(nodes, at("gram-matrix", [1], [4], kind))
    nodes.check(strategy, range(NODES))
    assert strategy.ledger_.by_phase["gram-matrix"] == 2
    assert opened(nodes) == 2  # the counts, and K once
    refuses("FK-PARTIES-LOST", release, nodes, away([4], kind=kind))
    assert opened(nodes) == 1
    assert len(nodes.times("gram-matrix")) == 3 * NODES
    # without counts there is no difference
    nodes.check(release(nodes, away([4], kind=kind), min_support=0), [0, 1, 2, 3, 5])


def test_few_rows_that_drop_out_are_shown_by_nothing_either(nodes: Rows) -> None:
    """Two nodes of six rows: enough for a support of 6, not for one of 7."""
    nodes.check(release(nodes, away([1, 4]), min_support=6), [0, 2, 3, 5])
    refuses("FK-PARTIES-LOST", release, nodes, away([1, 4]), min_support=7)
    assert opened(nodes) == 1
    once = at("gram-matrix", [1, 2], [1, 4])
    nodes.check(release(nodes, once, min_support=7), range(NODES))


def test_the_rule_holds_in_each_cohort(nodes: Rows) -> None:
    first, second = drawn(NODES, cohorts=2)
    options = {"cohorts": 2, "threshold": 2, "min_support": 2}
    nodes.check(release(nodes, at("gram-matrix", [1], second[:1]), **options), range(NODES))
    assert sorted(nodes.times("gram-matrix")) == sorted([*first, *second, *second])
    refuses("FK-PARTIES-LOST", release, nodes, away(second[:1]), **options)
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
    raises(PowerCutError, release, nodes, plan, **where(nodes, **options))


def test_who_missed_the_counts_stays_out_of_k_after_a_break_down_as_well(nodes: Rows) -> None:
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
        nodes.fit(strategy=strategy, faults=at("unmask", [2], silent, "lost request"))


def test_who_has_answered_the_opening_does_not_sum_again(nodes: Rows) -> None:
    """Two sums of different nodes must not both be opened, whatever numbers come."""
    break_the_opening(nodes, [0, 5])
    nodes.check(release(nodes, **where(nodes, resume=True)), [1, 2, 3, 4])
    assert sorted(nodes.times("gram-matrix")) == [1, 2, 3, 4]


@pytest.mark.parametrize("answered", [[3], [0, 1, 2], [0, 1, 2, 3, 4, 5]])
def test_if_too_few_can_sum_again_nothing_is_released(answered: list[int], nodes: Rows) -> None:
    """One node of three rows; more than may be missing; all."""
    break_the_opening(nodes, answered)
    raises(FedKernError, release, nodes, **where(nodes, resume=True))
    assert opened(nodes) == 0
    if len(answered) == 1:  # a node whose notes are gone may have helped to open K
        break_the_opening(nodes, [0, 5])
        for k in (0, 5):
            shutil.rmtree(nodes.folder / f"state-{k}")
        refuses("FK-STATE-GONE", release, nodes, **where(nodes, resume=True))
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
