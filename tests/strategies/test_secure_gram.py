"""Secure Gram: the exact matrix of whoever took part, and nothing of what was suppressed."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.datasets import load_breast_cancer
from sklearn.kernel_ridge import KernelRidge
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.clients import GramClient
from fedkern_flwr.errors import (
    CheckpointError,
    CohortError,
    EngineError,
    FedKernError,
    OptionError,
    ProtocolError,
    SmallCohortError,
    SumError,
)
from fedkern_flwr.gram.matrix import packed_size, quantisation_error
from fedkern_flwr.gram.messages import disjoint_cohorts
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import (
    Audit,
    Fault,
    FaultPlan,
    FaultyGrid,
    InProcessGrid,
    Transcript,
)
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.strategies import SecureGram
from fedkern_flwr.wire.sections import detach

Table = dict[str, Any]
FIRST_NODE = 1000


@dataclass
class Nodes:
    """Nodes with a table each."""

    x: Sequence[Any]
    own: dict[int, Table] = field(default_factory=dict)
    common: Table = field(default_factory=dict)

    def client_fn(self, context: Context) -> GramClient:
        k = int(context.node_config["partition-id"])
        return GramClient(context, self.x[k], **{**self.common, **self.own.get(k, {})})

    def fit(self, strategy: SecureGram, **more: Any) -> Result:
        return simulate(strategy, self.client_fn, len(self.x), **more)

    def release(
        self,
        faults: Any = None,
        transcript: Transcript | None = None,
        num_rounds: int = 1,
        **options: Any,
    ) -> SecureGram:
        strategy = SecureGram(**options)
        self.fit(strategy, faults=faults, transcript=transcript, num_rounds=num_rounds)
        return strategy

    def grid(self) -> InProcessGrid:
        app = ClientApp(client_fn=lambda context: self.client_fn(context).to_client())
        return InProcessGrid(app, len(self.x))

    def rows(self, who: Iterable[int]) -> np.ndarray:
        chosen = [self.x[k] for k in who]
        return np.concatenate([r.toarray() if sparse.issparse(r) else r for r in chosen])

    def gram(self, who: Iterable[int], items: Any = slice(None)) -> np.ndarray:
        """Return the matrix of some nodes' rows, in Python's integers."""
        x = self.rows(who)[:, items].astype(np.int64).astype(object)
        found: np.ndarray = x.T @ x
        return found

    def counts(self, who: Iterable[int]) -> np.ndarray:
        return np.count_nonzero(self.rows(who), axis=0)


def binary(nodes: int, rows: int = 2, items: int = 7, seed: int = 0, share: float = 0.5) -> Nodes:
    rng = np.random.default_rng(seed)
    return Nodes([(rng.random((rows, items)) < share).astype(int) for _ in range(nodes)])


def exact(found: np.ndarray, right: np.ndarray) -> None:
    assert found.dtype == np.int64
    assert found.shape == right.shape
    assert found.astype(object).tolist() == right.tolist()


def sent(
    record: Transcript, phase: str, direction: str = "down"
) -> list[tuple[int, Any, Any, Any]]:
    """Return (partition, arrays, scalars, sections) of each message of a phase."""
    out = []
    for entry in record.entries(phase=phase, direction=direction):
        arrays, scalars, sections = detach(entry.arrays, entry.scalars, party="")
        out.append((entry.node - FIRST_NODE, arrays, scalars, sections))
    return out


def orders(record: Transcript, phase: str) -> list[dict[str, Any]]:
    found = [s.scalars for *_, parts in sent(record, phase) for s in parts]
    return [scalars for scalars in found if scalars["phase"] == "sum-order"]


# -- the exact matrix, whoever drops out


@dataclass
class Case:
    """A network, a bound that needs a certain ring, and who drops out where."""

    bits: int
    bound: int
    nodes: Nodes
    support: int
    threshold: int
    gone: dict[str, set[int]]
    forever: bool  # whether who does not unmask is silent for ever
    kind: Literal["vanished", "error"]

    @property
    def faults(self) -> FaultPlan:
        phases = {"unmask": ("unmask", "recover") if self.forever else ("unmask",)}
        fault = Fault(self.kind)
        return FaultPlan(
            [
                (k, phase, None, fault)
                for name, who in self.gone.items()
                for phase in phases.get(name, (name,))
                for k in who
            ]
        )

    def expected(self) -> tuple[bool, list[int], list[int]]:
        """Return whether the run must succeed, with whom and with which items."""
        everybody = set(range(len(self.nodes.x)))
        least, silent = max(self.threshold, 2), self.gone["unmask"] if self.forever else set()
        counted = everybody
        items = np.arange(self.nodes.x[0].shape[1])
        failed = (False, [], [])

        def opens(alive: set[int]) -> bool:
            """Enough answer; and no survivor falls silent that alone knows a dead one's mask."""
            answer = alive - silent
            return len(answer) >= least and (alive == everybody or not alive & silent)

        if self.support > 1:
            counted = everybody - self.gone["gram-counts"]
            if len(counted) < least or not opens(counted):
                return failed
            counts = self.nodes.counts(counted)
            items = np.flatnonzero(counts >= self.support)
            if not items.size:
                return failed
        alive = everybody - self.gone["gram-matrix"]
        summed, missing = counted & alive, counted - alive
        if len(alive) < least or len(summed) < least or not opens(alive):
            return failed
        dropped = sum(self.nodes.x[k].shape[0] for k in missing)
        if self.support > 1 and missing and (len(missing) < 2 or dropped < max(5, self.support)):
            return failed
        if self.support > 1 and self.bound == 1:
            left = self.nodes.counts(summed)[items]
            items = items[(left == 0) | (left >= self.support)]
        return True, sorted(summed), items.tolist()


PHASES = ("gram-counts", "gram-matrix", "unmask")


@st.composite
def cases(draw: st.DrawFn, bits: int) -> Case:
    """Draw up to six nodes of up to four rows; 16 bits are enough for 24 rows up to 36."""
    bounds = {16: st.sampled_from([1, 1, 1, 36]), 32: st.integers(200, 9000)}
    bound = draw(bounds.get(bits, st.integers(30_000, 6 * 10**8)))
    n, items = draw(st.integers(3, 6)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x: list[Any] = []
    for _ in range(n):
        shape = (draw(st.integers(1, 4)), items)
        values = rng.integers(0, bound + 1, shape) * (
            rng.random(shape) < draw(st.sampled_from([0.3, 0.9]))
        )
        values[rng.random(shape) < 0.2] = bound
        kinds = [np.asarray, sparse.csr_array, sparse.coo_array, lambda v: v.astype(float)]
        x.append(draw(st.sampled_from(kinds))(values))
    few = st.sets(st.integers(0, n - 1), max_size=2)
    phases = draw(st.sets(st.sampled_from(PHASES), min_size=1, max_size=2))
    gone = {phase: draw(few) if phase in phases else set() for phase in PHASES}
    return Case(
        bits,
        bound,
        Nodes(x),
        draw(st.sampled_from([0, 2, 3, 5])),
        draw(st.sampled_from([n // 2 + 1, n // 2 + 1, n - 1, n])),
        gone,
        draw(st.booleans()),
        draw(st.sampled_from(["vanished", "error"])),
    )


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_the_matrix_is_exact_for_whoever_is_left(bits: int) -> None:
    succeeded = []

    @settings(max_examples=20)
    @given(cases(bits))
    def check(case: Case) -> None:
        record = Transcript()
        strategy = SecureGram(
            bound=case.bound, min_support=case.support, threshold=case.threshold, attempts=2
        )
        must, survivors, items = case.expected()
        failure = None
        try:
            case.nodes.fit(strategy, faults=case.faults, transcript=record)
        except (CohortError, SumError, ProtocolError) as error:
            failure = error
        assert all(order["bits"] == case.bits for order in orders(record, "gram-matrix"))
        if failure is not None:
            assert not must, failure
            assert "\n" not in str(failure)
            assert not strategy.gram_.size
            return
        # a backup of masks may save a run that need not succeed; never another number
        assert must or (case.forever and case.gone["unmask"])
        succeeded.append(bool(any(case.gone.values())))
        if must:
            assert strategy.survivors_ == survivors
            assert strategy.items_.tolist() == items
        exact(strategy.gram_, case.nodes.gram(strategy.survivors_, strategy.items_))
        assert strategy.rows_ == sum(case.nodes.x[k].shape[0] for k in strategy.survivors_)
        assert strategy.error_bound_ == 0.0

    check()
    assert sum(succeeded) >= 4, succeeded


@given(
    st.integers(6, 10),
    st.integers(1, 3),
    st.floats(0.7, 1.0),
    st.integers(0, 99),
    st.sampled_from([0, 3]),
)
@settings(max_examples=12)
def test_disjoint_cohorts_add_up(
    n: int, cohorts: int, participation: float, seed: int, support: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = [int(rng.integers(1, 7)) for _ in range(n)]
    nodes = Nodes([(rng.random((r, 6)) < rng.random(6)).astype(int) for r in rows])
    options: Table = {"cohorts": cohorts, "participation": participation, "min_support": support}
    try:
        members = disjoint_cohorts(range(n), participation, cohorts, seed)
        kept = np.arange(6)
        if support:
            each = np.stack([nodes.counts(who) for who in members])
            fine = ((each == 0) | (each >= support)).all(axis=0)
            kept = np.flatnonzero(fine & each.any(axis=0))
    except OptionError:
        with pytest.raises(OptionError, match="do not make"):
            nodes.release(seed=seed, **options)
        return
    if not kept.size:
        with pytest.raises(ProtocolError, match="no item is in 3 rows"):
            nodes.release(seed=seed, **options)
        return
    record = Transcript()
    strategy = nodes.release(seed=seed, transcript=record, **options)
    everybody = sorted(p for who in members for p in who)
    assert strategy.survivors_ == everybody
    assert strategy.items_.tolist() == kept.tolist()
    exact(strategy.gram_, nodes.gram(everybody, kept))
    assert strategy.rows_ == sum(rows[p] for p in everybody)
    assert {k for k, *_ in sent(record, "gram-matrix")} == set(everybody)
    if support:
        np.testing.assert_array_equal(strategy.counts_, nodes.counts(everybody))


def test_more_than_thirty_clients_mask_with_some_of_the_others() -> None:
    nodes = binary(34, rows=3, items=5, share=0.7)
    gone = FaultPlan([(k, "gram-matrix", None, Fault("vanished")) for k in (3, 17)])
    silent = FaultPlan([(5, "unmask", None, Fault("vanished"))])
    strategy = nodes.release(lambda d: gone(d) or silent(d), min_support=2)
    (cohort,) = strategy.privacy()["cohorts"]
    assert cohort["masks_per_party"] < cohort["parties"] - 1 == 33
    assert strategy.survivors_ == [k for k in range(34) if k not in (3, 17)]
    exact(strategy.gram_, nodes.gram(strategy.survivors_, strategy.items_))


# -- rounds: users come and go, and K grows


@pytest.mark.parametrize("masks", [None, True])
def test_k_grows_by_half_of_the_nodes_that_are_left_until_it_is_exact(masks: bool | None) -> None:
    nodes, record = binary(11, rows=3, items=5, share=0.8), Transcript()
    strategy = SecureGram(min_support=2, drop_outs=masks)
    drawn = disjoint_cohorts(range(11), 1.0, 3, 0, halves=True)
    assert [len(who) for who in drawn] == [5, 3, 3]
    seen: list[list[int]] = []

    class Watched(type(strategy)):  # type: ignore[misc]
        def state(self, stage: str, **more: Any) -> Any:
            if stage in ("round", "gram"):
                exact(self.gram_, nodes.gram(self.survivors_, self.items_))
                seen.append(list(self.survivors_))
            return super().state(stage, **more)

    strategy.__class__ = Watched
    nodes.fit(strategy, num_rounds=3, transcript=record)
    assert seen[:2] == [sorted(drawn[0]), sorted([*drawn[0], *drawn[1]])]
    assert strategy.survivors_ == seen[-1] == list(range(11))
    assert strategy.items_.size
    assert [h["round"] for h in strategy.history_] == [1, 2, 3]
    assert [h["clients"] for h in strategy.history_] == [5, 3, 3]
    asked = [k for k, *_ in sent(record, "gram-matrix")]
    assert sorted(asked) == list(range(11))  # nobody is counted twice
    assert strategy.ledger_.by_phase["gram-matrix"] == 3
    assert ("unmask" in strategy.ledger_.by_phase) == bool(masks)
    assert any(
        "each of these sums for every cohort" in s for s in strategy.privacy()["server_sees"]
    )


@pytest.mark.parametrize("attempts", [2, 12])  # a node that misses ten exchanges is left out
def test_nodes_that_are_away_in_their_round_are_summed_in_a_later_one(
    attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In each round one of the nodes that are left is away, until all others are summed."""
    nodes = binary(10, rows=3, items=5, share=0.8)
    drawn = disjoint_cohorts(range(10), 1.0, 3, 4, halves=True)
    away = {drawn[0][1]: 2, drawn[1][0]: 1}  # node -> requests that it misses
    missed = dict.fromkeys(away, 0)

    def plan(delivery: Delivery) -> Fault | None:
        k = delivery.partition
        if delivery.phase != "gram-matrix" or missed.get(k, 99) >= attempts * away.get(k, 0):
            return None
        missed[k] += 1
        return Fault("vanished")

    strategy = nodes.release(plan, num_rounds=3, seed=4, min_support=2, attempts=attempts)
    assert missed == {k: attempts * times for k, times in away.items()}
    exact(strategy.gram_, nodes.gram(range(10), strategy.items_))
    assert [h["round"] for h in strategy.history_] == [1, 2, 3]
    # rounds 1 and 2 are put off, the third is summed, 1 is put off once more
    assert [h["clients"] for h in strategy.history_] == [
        len(who) for who in (drawn[2], drawn[1], drawn[0])
    ]
    put_off = sum("a round is put off" in r.getMessage() for r in caplog.records)
    assert put_off == 3


def test_with_drop_outs_a_round_goes_on_without_who_is_away() -> None:
    nodes, record = binary(10, rows=3, items=5, share=0.8), Transcript()
    away = disjoint_cohorts(range(10), 1.0, 2, 0, halves=True)[0][0]
    gone = FaultPlan([(away, "gram-matrix", None, Fault("vanished"))])
    options: Table = {"num_rounds": 2, "drop_outs": True, "min_support": 0}
    strategy = nodes.release(gone, transcript=record, **options)
    assert strategy.survivors_ == [k for k in range(10) if k != away]
    exact(strategy.gram_, nodes.gram(strategy.survivors_))
    assert [k for k, *_ in sent(record, "gram-matrix")].count(away) == 1  # in no later round


def test_a_node_that_stays_away_ends_the_run_when_all_others_are_summed() -> None:
    nodes, record = binary(8, rows=3, items=5, share=0.8), Transcript()
    drawn = disjoint_cohorts(range(8), 1.0, 3, 0, halves=True)
    gone = FaultPlan([(drawn[0][0], "gram-matrix", None, Fault("vanished"))])
    with pytest.raises(CohortError, match=r"missing in .*, which has no self masks, 2 times in a"):
        nodes.release(gone, num_rounds=3, min_support=2, attempts=2, transcript=record)
    others = {*drawn[1], *drawn[2]}
    assert others <= {k for k, *_ in sent(record, "gram-matrix")}


def test_what_is_wrong_with_a_table_is_told_in_rounds_too() -> None:
    """Not only that a node is away: a mistake that repeats itself is no bad luck."""
    nodes = binary(4)
    nodes.x[1][0, 0] = 7
    with pytest.raises(FedKernError, match="partition 1: features exceed their declared bound"):
        nodes.release(min_support=0, num_rounds=2, attempts=2)


def test_an_engine_that_broke_down_ends_the_rounds() -> None:
    seen = []

    def plan(delivery: Delivery) -> None:
        if delivery.phase == "gram-matrix":
            seen.append(delivery.round)
            raise EngineError("a Ray actor died", remedy="look for memory exhaustion")

    with pytest.raises(EngineError, match="a Ray actor died"):
        binary(4).release(plan, min_support=0, num_rounds=2)
    assert len(seen) == 1


# -- support


def few_of_some() -> Nodes:
    """Six nodes: item 0 in 6 rows, 1 in 5, 2 in 4, 3 in 1, 4 in none, 5 in 12."""
    x = np.zeros((6, 2, 6), int)
    x[:, 0, 0] = 1
    x[:5, 0, 1] = 1
    x[1:5, 1, 2] = 1
    x[2, 1, 3] = 1
    x[:, :, 5] = 1
    return Nodes(list(x))


def test_items_of_few_rows_are_in_no_message() -> None:
    nodes, record = few_of_some(), Transcript()
    strategy = nodes.release(transcript=record)
    assert strategy.min_support == 5
    assert strategy.counts_.tolist() == [6, 5, 4, 1, 0, 12]
    assert strategy.items_.tolist() == [0, 1, 5]
    exact(strategy.gram_, nodes.gram(range(6), [0, 1, 5]))
    requests = sent(record, "gram-matrix")
    assert len(requests) == 6
    for _, arrays, scalars, _ in requests:
        assert [a.tolist() for a in arrays] == [[0, 1, 5]]
        assert scalars["counted"] == bytes([0b111111])
    assert {order["length"] for order in orders(record, "gram-matrix")} == {packed_size(3)}
    for _, arrays, scalars, sections in sent(record, "gram-matrix", "up"):
        assert not arrays
        assert set(scalars) == {"phase", "protocol", "round", "code", "message"}  # two of Flower's
        (upload,) = sections
        assert sum(a.size for a in upload.arrays) == packed_size(3)
    assert strategy.metrics_ == {"items": 3, "catalogue": 6, "rows": 12, "clients": 6}


@pytest.mark.parametrize("support", [0, 1])
def test_nothing_is_counted_where_nothing_is_suppressed(support: int) -> None:
    nodes, record = few_of_some(), Transcript()
    strategy = nodes.release(transcript=record, min_support=support)
    assert not list(record.entries(phase="gram-counts"))
    exact(strategy.gram_, nodes.gram(range(6)))
    assert strategy.counts_.tolist() == [0] * 6


def test_support_is_counted_in_rows_not_in_values() -> None:
    nodes = Nodes([np.array([[5, 0, 1]]), np.array([[5, 9, 1]]), np.array([[0, 9, 1]])])
    strategy = nodes.release(min_support=3, bound=9)
    assert strategy.counts_.tolist() == [2, 2, 3]
    assert strategy.items_.tolist() == [2]


def test_an_item_must_have_none_or_enough_rows_in_every_cohort() -> None:
    first, second = disjoint_cohorts(range(6), 1.0, 2, 0)
    x = np.zeros((6, 3, 5), int)
    x[first, :, 0] = 1  # nine and none
    x[:, :, 1] = 1  # nine each
    x[:, :, 2] = 1
    x[second, :, 2] = np.eye(3, dtype=int)[0]
    x[second[0], :, 2] = 0  # nine and two
    x[first[:2], 0, 3] = 1  # two and three
    x[second, 0, 3] = 1
    nodes, record = Nodes(list(x)), Transcript()
    strategy = nodes.release(cohorts=2, min_support=3, seed=0, transcript=record)
    assert strategy.items_.tolist() == [0, 1]
    assert strategy.counts_.tolist() == [9, 18, 11, 5, 0]
    exact(strategy.gram_, nodes.gram(range(6), [0, 1]))
    assert {tuple(a[0]) for _, a, *_ in sent(record, "gram-matrix")} == {(0, 1)}
    with pytest.raises(ProtocolError, match="no item is in 10 rows of every cohort; lower min_sup"):
        nodes.release(cohorts=2, min_support=10, seed=0)
    with pytest.raises(ProtocolError, match="no item is in 19 rows; lower min_support"):
        nodes.release(min_support=19)


@pytest.mark.parametrize("bound", [1, 5])
def test_items_that_fall_below_when_nodes_drop_out_are_left_out(
    bound: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Three of the five rows of item 1 are lost after the counts; ratings are no different."""
    x = np.zeros((7, 2, 3), int)
    x[:, :, 0] = bound
    x[:5, 0, 1] = bound
    x[6, :, 2] = x[5, :, 2] = x[4, 0, 2] = bound
    nodes = Nodes(list(x))
    gone = FaultPlan([(k, "gram-matrix", None, Fault("vanished")) for k in (0, 1, 2)])
    strategy = nodes.release(gone, threshold=4, bound=bound)
    assert strategy.counts_.tolist() == [14, 5, 5]
    assert strategy.survivors_ == [3, 4, 5, 6]
    assert strategy.items_.tolist() == [0, 2]
    exact(strategy.gram_, nodes.gram([3, 4, 5, 6], [0, 2]))
    assert "1 items are left out: fewer than 5 rows had them when nodes dropped out" in caplog.text


def test_who_missed_the_counts_does_not_count_in_the_matrix() -> None:
    """It adds zeros, for its masks; its rows may be the only ones of an item that was kept."""
    nodes, record = few_of_some(), Transcript()
    gone = FaultPlan([(k, "gram-counts", None, Fault("vanished")) for k in (0,)])
    strategy = nodes.release(gone, record, min_support=4)
    assert strategy.counts_.tolist() == nodes.counts([1, 2, 3, 4, 5]).tolist()
    assert strategy.survivors_ == [1, 2, 3, 4, 5]
    exact(strategy.gram_, nodes.gram([1, 2, 3, 4, 5], strategy.items_))
    told = {k: scalars["counted"] for k, _, scalars, _ in sent(record, "gram-matrix")}
    assert told == dict.fromkeys(range(6), bytes([0b111110]))  # the same for all


# -- matrices that can be taken apart


def many_items(nodes: int = 6) -> Nodes:
    """Four rows a node; popular items have low numbers."""
    rng = np.random.default_rng(2)
    return Nodes(
        [(rng.random((4, 20)) < np.linspace(0.9, 0.3, 20)).astype(int) for _ in range(nodes)]
    )


def test_a_grid_that_is_no_simulation_refuses_such_a_matrix_by_default() -> None:
    for deployed in (True, False):
        nodes, grid = many_items(), many_items().grid()
        grid.simulation = not deployed
        options = {"min_support": 2, "drop_outs": True}
        if deployed:
            with pytest.raises(OptionError, match="fewer than two rows per item"):
                SecureGram(**options).start(grid)  # type: ignore[arg-type]
        else:
            strategy = SecureGram(**options)  # type: ignore[arg-type]
            strategy.start(grid)
            exact(strategy.gram_, nodes.gram(range(6), strategy.items_))


@pytest.mark.parametrize("options", [{"cohorts": 3}, {"num_rounds": 3}])
def test_rows_of_each_sum_that_is_seen_can_be_too_few(options: Table) -> None:
    """Together there are two rows for each item, in each sum there is one or less."""
    strategy = binary(12, items=12).release(min_support=0, **options)
    assert strategy.rows_ == 2 * len(strategy.items_) == 24
    assert any("hence the rows, by computation" in v for v in strategy.privacy()["server_sees"])


@pytest.mark.parametrize("support", [0, 1, 5])
def test_items_that_most_rows_have_are_kept_as_far_as_the_rows_reach(support: int) -> None:
    nodes, record = many_items(), Transcript()
    strategy = nodes.release(rows_per_item=2, min_support=support, transcript=record)
    counts = nodes.counts(range(6))
    np.testing.assert_array_equal(strategy.counts_, counts)
    best = sorted(sorted(range(20), key=lambda i: (-counts[i], i))[:12])
    assert strategy.items_.tolist() == best
    exact(strategy.gram_, nodes.gram(range(6), best))
    assert {tuple(a[0]) for _, a, *_ in sent(record, "gram-matrix")} == {tuple(best)}
    assert not any("by computation" in line for line in strategy.privacy()["server_sees"])


def test_rows_per_item_count_in_every_cohort() -> None:
    strategy = many_items().release(rows_per_item=2, cohorts=2, min_support=0)
    assert len(strategy.items_) == 6
    fractional = many_items().release(rows_per_item=7.5, min_support=0)
    assert len(fractional.items_) == 3
    with pytest.raises(ProtocolError):
        many_items().release(rows_per_item=25)


def test_a_matrix_that_can_be_taken_apart_is_warned_of_or_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes, record = many_items(), Transcript()
    text = (
        r"24 rows and 20 items are fewer than two rows per item: these rows can be .*; use rows_per"
    )
    options: Table = {"min_support": 0, "allow_recovery": False}
    with pytest.raises(OptionError, match=f"{text}.*; or accept it with allow_recovery"):
        nodes.release(transcript=record, **options)
    assert not list(record.entries(phase="gram-matrix"))
    strategy = nodes.release(min_support=0)  # a simulation
    assert "fewer than two rows per item" in caplog.text
    assert any("hence the rows, by computation" in v for v in strategy.privacy()["server_sees"])
    real = Nodes([x + 0.5 for x in nodes.x])
    options = {"encoding": "fixed-point", "bound": 2.0, "allow_recovery": False}
    with pytest.raises(
        OptionError,
        match="fewer than two features per instance: the matrix shows the instances up to",
    ):
        real.release(**options)
    caplog.clear()
    assert nodes.release(rows_per_item=2, allow_recovery=False).gram_.shape == (12, 12)
    assert "can be computed" not in caplog.text


@pytest.mark.parametrize("options", [{"rows_per_item": 2}, {"rows_per_item": 2, "min_support": 0}])
def test_nodes_that_drop_out_do_not_leave_too_few_rows_for_the_items(options: Table) -> None:
    """What was promised of the rows that were counted must hold for those that are summed."""
    nodes = many_items()
    gone = FaultPlan([(k, "gram-matrix", None, Fault("vanished")) for k in (0, 1)])
    strategy = SecureGram(threshold=4, allow_recovery=False, attempts=2, **options)
    try:
        nodes.fit(strategy, faults=gone)
    except (CohortError, OptionError):
        return
    assert strategy.rows_ >= 2 * len(strategy.items_)


# -- what cannot be


def test_values_beyond_the_bound_end_the_run_before_anything_is_masked_with_them() -> None:
    for support, phase in ((0, "gram-matrix"), (5, "gram-counts")):
        for value, text in (
            (
                7,
                "features exceed their declared bound of 1; declare a larger bound for all clients",
            ),
            (-1, "features are not whole numbers of at least 0; use encoding"),
            (np.nan, "features hold NaN or infinite values; clean the data"),
            (0.5, "features are not whole numbers of at least 0"),
        ):
            nodes, record = binary(4), Transcript()
            nodes.x = [x.astype(float) for x in nodes.x]
            nodes.x[2][1, 3] = value
            with pytest.raises(ProtocolError, match=f"phase {phase}: partition 2: {text}") as error:
                nodes.release(transcript=record, min_support=support)
            assert "\n" not in str(error.value)
            asked = [k for k, *_ in sent(record, phase)]
            assert asked == [0, 1, 2, 3]  # once: another attempt is no use
            assert [k for k, *_ in sent(record, phase, "up")] == [0, 1, 3]
            assert not list(record.entries(phase="unmask"))


def test_a_sum_that_no_ring_holds_is_refused_before_anything_is_masked() -> None:
    nodes, record = binary(4), Transcript()
    for options in (
        {"bound": 2**30, "min_support": 5},
        {"encoding": "fixed-point", "bound": 4.0, "fraction_bits": 30},
    ):
        with pytest.raises(OptionError, match="overflows a 64-bit ring; use fewer fraction bits"):
            nodes.release(transcript=record, **options)
        uploads = [s for *_, parts in sent(record, "gram-matrix", "up") for s in parts]
        assert not uploads


def test_tables_that_do_not_fit_together_are_refused() -> None:
    nodes = binary(3)
    other = Nodes([*nodes.x[:2], nodes.x[2][:, :6]])
    with pytest.raises(ProtocolError, match="partition 2, phase describe: its table has 6 feature"):
        other.release()
    named = Nodes(nodes.x, own={k: {"items": list("abcdefg")} for k in range(3)})
    assert named.release(min_support=0).gram_.shape == (7, 7)
    named.own[1] = {"items": list("abcdegf")}
    text = "partition 1, phase describe: its table has 7 feature columns that differ from the 7 of"
    with pytest.raises(ProtocolError, match=text):
        named.release()
    named.own[1] = {}
    with pytest.raises(ProtocolError, match="partition 1, phase describe: its table has 7 feature"):
        named.release()


_FEW = "4 nodes that take part do not make 3 {} of two or more"
TOO_FEW: list[tuple[int, Table, type[FedKernError], str]] = [
    (1, {}, OptionError, "1 nodes that take part do not make 1 cohorts"),
    (
        3,
        {"min_cohort": 4},
        SmallCohortError,
        "3 parties are too few for a secure sum, 4 are needed",
    ),
    (4, {"cohorts": 3}, OptionError, _FEW.format("cohorts")),
    (4, {"num_rounds": 3}, OptionError, _FEW.format("rounds")),
    (5, {"num_rounds": 2, "min_cohort": 3}, SmallCohortError, "2 parties are too few for a secure"),
    (4, {"threshold": 2}, OptionError, "threshold is 2 for 4 parties; use 3 to 4"),
    (6, {"participation": 0.01, "min_cohort": 3}, SmallCohortError, "2 parties are too few"),
    # cohorts are summed at once or round by round
    (
        12,
        {"num_rounds": 3, "cohorts": 2},
        OptionError,
        "2 cohorts are summed at once, and 3 rounds",
    ),
    (3, {"num_rounds": 0}, OptionError, "is 0"),
]


@pytest.mark.parametrize(("nodes", "options", "error", "text"), TOO_FEW)
def test_few_nodes_and_cohorts_that_are_none_are_refused(
    nodes: int, options: Table, error: type[FedKernError], text: str
) -> None:
    with pytest.raises(error, match=text):
        binary(nodes).release(**options)
    assert binary(2).release(min_support=0).survivors_ == [0, 1]


# -- real features


def test_real_features_are_summed_as_they_are_rounded() -> None:
    rng = np.random.default_rng(0)
    nodes = Nodes([rng.uniform(-3.0, 3.0, (k + 1, 5)) for k in range(4)])
    for fraction in (0, 3, 20, 25):
        strategy = nodes.release(encoding="fixed-point", bound=3.0, fraction_bits=fraction)
        rounded = np.rint(nodes.rows(range(4)) * 2.0**fraction).astype(np.int64).astype(object)
        exact(strategy.gram_, rounded.T @ rounded)
        assert strategy.error_bound_ == quantisation_error(10, 3.0, fraction)
        true = nodes.rows(range(4)).T @ nodes.rows(range(4))
        assert np.abs(strategy.linear_ - true).max() <= strategy.error_bound_
        assert strategy.items_.tolist() == [0, 1, 2, 3, 4]
    assert (strategy.gram_ < 0).any()
    assert SecureGram(encoding="fixed-point").fraction_bits == 20


@pytest.mark.parametrize("cohorts", [1, 2])
def test_real_features_drop_out_as_others_do(cohorts: int) -> None:
    rng = np.random.default_rng(1)
    nodes = Nodes([sparse.csr_array(rng.uniform(-1.0, 1.0, (2, 4))) for _ in range(8)])
    lost = 2 if cohorts == 1 else disjoint_cohorts(range(8), 1.0, 2, 0)[1][0]
    gone = FaultPlan([(lost, "gram-matrix", None, Fault("vanished"))])
    threshold = 3 if cohorts == 2 else None
    strategy = nodes.release(gone, encoding="fixed-point", cohorts=cohorts, threshold=threshold)
    left = [k for k in range(8) if k != lost]
    assert strategy.survivors_ == left
    rounded = np.rint(nodes.rows(left) * 2.0**20).astype(np.int64).astype(object)
    exact(strategy.gram_, rounded.T @ rounded)


# -- kernels


def test_kernels_are_functions_of_the_matrix() -> None:
    """More of them in tests/core/test_dot_kernels.py; here which numbers they are made with."""
    nodes = binary(5, rows=3, items=8)
    x = nodes.rows(range(5)).astype(float)
    k, norms = x.T @ x, (x * x).sum(axis=0)
    squared = ((x[:, :, None] - x[:, None, :]) ** 2).sum(axis=0)
    a, b, c = (15 - norms)[:, None], (15 - norms)[None, :], 15 - norms[:, None] - norms + k

    def two(v: Any) -> Any:
        return v * (v - 1) / 2

    pairs = {
        "poly": ({"degree": 3, "gamma": 0.5, "coef0": 2.0}, (0.5 * k + 2.0) ** 3),
        "rbf": ({}, np.exp(-squared / 15.0)),
        "conjunctive": ({}, two(k)),
        "series": ({"coefficients": [1.0, 0.0, 3.0]}, 1.0 + 3.0 * k**2),
        "disjunctive": ({"degree": 2}, two(15.0) - two(a) - two(b) + two(c)),
    }
    for kernel, (options, right) in pairs.items():
        strategy = nodes.release(kernel=kernel, min_support=0, **options)
        np.testing.assert_allclose(strategy.kernel_, right, rtol=1e-12)


def test_breast_cancer_is_learned_as_if_pooled() -> None:
    """Instances whose features parties hold; quantised as the parties do."""
    x, y = load_breast_cancer(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    order, gamma = np.random.default_rng(0).permutation(len(x)), 1 / 30
    train, test, y = x[order[:300]], x[order[300:]], y[order[:300]]
    blocks = np.split(np.random.default_rng(1).permutation(30), [4, 5, 18])
    own = {k: {"x_new": test[:, b].T} for k, b in enumerate(blocks)}
    nodes = Nodes([train[:, b].T for b in blocks], own)  # a row is a feature
    options: Table = {"kernel": "rbf", "gamma": gamma, "encoding": "fixed-point", "bound": 16.0}
    strategy = nodes.release(**options)
    units, new = np.rint(train * 2.0**20), np.rint(test * 2.0**20)
    np.testing.assert_array_equal(strategy.gram_, units @ units.T)
    again = SecureGram(**options)
    products, squares = again.cross(nodes.grid(), strategy.model())
    np.testing.assert_array_equal(products * 4.0**20, new @ units.T)
    np.testing.assert_array_equal(squares * 4.0**20, (new**2).sum(axis=1))
    kernel, train, test = strategy.kernel_, units / 2.0**20, new / 2.0**20
    block = again.dot_kernel_.block(products, squares, again.linear_.diagonal(), again.rows_)
    ours = SVC(kernel="precomputed", C=2.0, tol=1e-10).fit(kernel, y)
    theirs = SVC(kernel="rbf", gamma=gamma, C=2.0, tol=1e-10).fit(train, y)
    for mine, other in ((kernel, train), (block, test)):
        decided = ours.decision_function(mine), theirs.decision_function(other)
        np.testing.assert_allclose(*decided, atol=1e-6, rtol=0)
        np.testing.assert_array_equal(ours.predict(mine), theirs.predict(other))
    ridge = KernelRidge(alpha=0.1, kernel="precomputed").fit(kernel, y)
    plain = KernelRidge(alpha=0.1, kernel="rbf", gamma=gamma).fit(train, y)
    np.testing.assert_allclose(ridge.predict(block), plain.predict(test), atol=1e-8, rtol=0)


# -- new items


def crossing() -> Nodes:
    nodes = binary(4, rows=3, items=6, share=0.7)
    rng = np.random.default_rng(9)
    nodes.own = {k: {"x_new": (rng.random((3, 4)) < 0.6).astype(int)} for k in range(4)}
    return nodes


def new_rows(nodes: Nodes) -> np.ndarray:
    return np.concatenate([own["x_new"] for own in nodes.own.values()])


def test_products_of_new_items_are_exact() -> None:
    nodes = crossing()
    strategy = nodes.release()
    assert 0 < len(strategy.items_) <= 6
    new = new_rows(nodes)
    again, record = SecureGram(), Transcript()
    products, squares = again.cross(nodes.grid(), strategy.model())
    np.testing.assert_array_equal(products, new.T @ nodes.rows(range(4))[:, strategy.items_])
    np.testing.assert_array_equal(squares, new.sum(axis=0))
    np.testing.assert_array_equal(again.gram_, strategy.gram_)
    assert not len(record)


def test_a_model_that_was_saved_serves_as_well(tmp_path: Path) -> None:
    nodes = crossing()
    strategy = nodes.release(kernel="poly", degree=3, gamma=0.25, coef0=2.0, seed=5)
    save_arrays(tmp_path / "model.npz", *strategy.model())
    arrays, meta = load_arrays(tmp_path / "model.npz")
    again = SecureGram.of_model(meta)
    products, squares = again.cross(nodes.grid(), (arrays, meta))
    new = new_rows(nodes)
    old = nodes.rows(range(4))[:, strategy.items_]
    kernel = again.dot_kernel_.block(products, squares, again.linear_.diagonal(), again.rows_)
    np.testing.assert_allclose(kernel, (0.25 * new.T @ old + 2.0) ** 3, rtol=1e-12)
    np.testing.assert_array_equal(again.kernel_, strategy.kernel_)


def test_products_need_all_nodes_of_the_model() -> None:
    nodes = crossing()
    strategy = nodes.release()
    gone = FaultPlan([(1, "gram-cross", None, Fault("error"))])
    with pytest.raises(CohortError, match="1 parties are missing in cross products"):
        SecureGram(attempts=2).cross(FaultyGrid(nodes.grid(), gone), strategy.model())
    once = FaultPlan([(1, "gram-cross", 1, Fault("vanished"))])
    products, _ = SecureGram().cross(FaultyGrid(nodes.grid(), once), strategy.model())
    new = new_rows(nodes)
    np.testing.assert_array_equal(products, new.T @ nodes.rows(range(4))[:, strategy.items_])
    nodes.own[2] = {"x_new": nodes.own[2]["x_new"][:, :3]}
    with pytest.raises(ProtocolError, match="the nodes have 3 and 4 new items; give all nodes the"):
        SecureGram().cross(nodes.grid(), strategy.model())
    nodes.own = {}
    with pytest.raises(ProtocolError, match="the nodes have 0 new items"):
        SecureGram().cross(nodes.grid(), strategy.model())


def test_products_leave_out_nodes_that_are_not_in_the_model() -> None:
    nodes = crossing()
    gone = FaultPlan([(0, "gram-counts", None, Fault("vanished"))])
    strategy = nodes.release(gone, min_support=3)
    assert strategy.survivors_ == [1, 2, 3]
    products, _ = SecureGram().cross(nodes.grid(), strategy.model())
    new = np.concatenate([nodes.own[k]["x_new"] for k in (1, 2, 3)])
    np.testing.assert_array_equal(products, new.T @ nodes.rows([1, 2, 3])[:, strategy.items_])


def test_other_models_and_other_nodes_are_refused() -> None:
    nodes = crossing()
    arrays, meta = nodes.release().model()
    fewer = Nodes(nodes.x[:3], nodes.own)
    with pytest.raises(
        CheckpointError, match="the nodes are not those of the model; bring the nod"
    ):
        SecureGram().cross(fewer.grid(), (arrays, meta))
    tables = [*nodes.x[:3], np.ones((4, 6), int)]
    larger = Nodes(tables, {k: {"x_new": np.ones((len(x), 1))} for k, x in enumerate(tables)})
    with pytest.raises(CheckpointError, match="the nodes are not those of the model"):
        SecureGram().cross(larger.grid(), (arrays, meta))


def test_models_of_other_methods_are_refused() -> None:
    nodes = crossing()
    arrays, meta = nodes.release().model()
    for wrong in ({}, {**meta, "method": "fdskl"}):
        with pytest.raises(CheckpointError, match="the model is one of"):
            SecureGram.of_model(wrong)
        with pytest.raises(CheckpointError, match="model"):
            SecureGram().cross(nodes.grid(), (arrays, wrong))


def test_a_model_in_other_units_is_refused() -> None:
    """K in units of 4^-20 read as one in units of 4^-10 would be another kernel."""
    rng = np.random.default_rng(0)
    x = [rng.uniform(-1, 1, (2, 5)) for _ in range(3)]
    nodes = Nodes(x, {k: {"x_new": x[k][:, :2]} for k in range(3)})
    model = nodes.release(encoding="fixed-point").model()
    right = SecureGram(encoding="fixed-point")
    right.cross(nodes.grid(), model)
    np.testing.assert_allclose(
        right.linear_, nodes.rows(range(3)).T @ nodes.rows(range(3)), atol=1e-5
    )
    with pytest.raises(CheckpointError):
        SecureGram(encoding="fixed-point", fraction_bits=10).cross(nodes.grid(), model)


# -- what is sent, seen and told


@pytest.mark.parametrize("options", [{}, {"cohorts": 2}, {"min_support": 0}])
def test_nothing_of_a_row_leaves_a_node_in_plain(options: Table) -> None:
    nodes, seen = binary(6, rows=5, items=60, share=0.6), Audit()
    nodes.fit(SecureGram(**options), audit=seen)
    up = seen.view("up")
    kinds = {entry.kind for entry in up.values()}
    assert kinds <= {"control", "size", "key", "commitment", "sealed", "masked", "share", "seed"}
    assert "masked" in kinds
    p = up["sum-upload", "masked"].uniform
    assert p is not None
    assert p > 1e-9
    names = {name for _, name in up} - {n for (p, n) in up if p.startswith("sum-")}
    assert names <= {
        "phase", "protocol", "round", "partition", "partitions", "role", "rows", "features",
        "test_rows", "columns", "restored", "answered", "opened", "binary", "counting",
        "public_key", "signature", "num_examples", "code", "message", "session", "release",
    }  # fmt: skip


def test_the_seed_determines_the_run_whatever_carries_the_messages() -> None:
    nodes = binary(9, rows=3, items=6)
    options: Table = {"cohorts": 2, "participation": 0.8, "min_support": 2}
    found = []
    for seed, serialise in ((4, False), (4, True), (5, False)):
        strategy = SecureGram(**options)
        result = nodes.fit(strategy, seed=seed, serialise=serialise)
        found.append((strategy.gram_.tolist(), strategy.metrics_, strategy.history_))
        assert strategy.options()["seed"] == seed
        assert dict(result.train_metrics_clientapp[1]) == strategy.history_[0]
    assert found[0] == found[1] != found[2]
    own = SecureGram(seed=4, **options)
    nodes.fit(own, seed=77)
    assert own.gram_.tolist() == found[0][0]


def test_bytes_are_those_of_the_smallest_ring() -> None:
    for rows, size in ((2, 2), (9000, 4)):
        nodes = Nodes([np.ones((rows, 30), np.int8)] * 4)
        strategy = nodes.release(min_support=0)
        packed = packed_size(30) * size
        assert 4 * packed < strategy.ledger_.bytes_up < 4 * (packed + 1500)
        assert strategy.ledger_.by_phase == {
            "describe": 1, "gram-matrix": 1, "unmask": 1, "finish": 1,
        }  # fmt: skip


def test_a_run_tells_its_options_and_what_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    nodes = binary(6)
    with caplog.at_level(logging.INFO, "fedkern_flwr"):
        strategy = nodes.release(cohorts=2, kernel="rbf", gamma=0.5, min_support=2)
    assert "method: secure-gram" in caplog.text
    assert "kernel: rbf" in caplog.text
    found = strategy.privacy()
    assert any("in how many rows each of 7 items is" in line for line in found["server_sees"])
    assert "each of these sums for every cohort" in found["server_sees"]
    assert "rows" in found["never_leaves_the_client"]
    assert json.loads(json.dumps({**strategy.options(), **found, **strategy.model()[1]}))
    seen: list[tuple[int, int]] = []
    strategy.on_round = lambda done, total, metrics: seen.append((done, total))
    strategy.start(nodes.grid(), train_config=ConfigRecord({"seed": 3}))
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    assert all(done <= total for done, total in seen)
