"""The rule of counting: as many numbers as unknowns at most, at the node and at the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import Context
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused, refuses
from summing_nodes import Done, Nodes, SummingClient

from fedkern_flwr.exchange import SumSpec
from fedkern_flwr.guard import NodePolicy, counting
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.secure_sum.membership import default_threshold
from fedkern_flwr.simulations import Transcript, simulate
from fedkern_flwr.strategies import EMKOFL, OFSKL, POFMKL, POFRLS, VMKOFL, OFMKLAvg, PerFedAvg
from fedkern_flwr.wire import PhaseMessage, sums

# -- the figures


def samples(numbers: int, parties: int, columns: int, *, alive: int, known: int) -> int:
    """Return the least number of samples a message."""
    one = dict.fromkeys(range(parties), 1)
    survivors = counting.least_survivors(one, alive)
    hidden = counting.hidden_rows(one, survivors, colluders=known)
    return counting.least_samples(numbers, hidden * counting.unknowns_of_row(columns + 1))


@pytest.mark.parametrize(("parties", "columns", "numbers", "figures"), [
    (23, 15, 2040, (6, 6, 9)), (23, 15, 10200, (28, 29, 43)), (9, 12, 2040, (18, 20, 27)),
    (4, 15, 2040, (32, 43, 64)), (3, 15, 2040, (43, 64, 64)),
])  # fmt: skip
def test_samples_a_message(
    parties: int, columns: int, numbers: int, figures: tuple[int, ...]
) -> None:
    """All survive and none is known, or one is; the least sum that can be opened, one known."""
    t = default_threshold(parties)
    cases = ((parties, 0), (parties, 1), (t, 1))
    found = [samples(numbers, parties, columns, alive=a, known=k) for a, k in cases]
    assert tuple(found) == figures


@pytest.mark.parametrize(
    ("parties", "columns", "all_of_them", "least"), [(23, 15, 368, 256), (9, 12, 117, 91)]
)
def test_numbers_of_one_sample(parties: int, columns: int, all_of_them: int, least: int) -> None:
    one, row = dict.fromkeys(range(parties), 1), counting.unknowns_of_row(columns + 1)
    for survivors, unknowns in ((parties, all_of_them), (default_threshold(parties), least)):
        alive = counting.least_survivors(one, survivors)
        found = counting.hidden_rows(one, alive, colluders=0) * row
        assert found == unknowns
        assert not counting.too_many(unknowns, found)
        assert counting.too_many(unknowns + 1, found)


def test_a_binary_column_hides_one_bit_of_sixty_four() -> None:
    x = np.array([[0.0, 3.0, 1.5], [1.0, 3.0, 2.5], [0.0, 3.0, 3.5]])
    assert counting.binary_columns(x, np.array([0.0, 1.0, 1.0])) == 3
    assert counting.binary_columns(x[:, 2]) == 0
    assert counting.unknowns_of_row(4, 3) == 1 + 3 / 64


ROWS = st.dictionaries(st.integers(0, 40), st.integers(0, 100), min_size=1, max_size=12)


@pytest.mark.promise("guard-colluder")
@settings(max_examples=100)
@given(ROWS, st.data())
def test_drop_outs_and_colluders_hide_nothing(rows: dict[int, int], data: st.DataObject) -> None:
    own = data.draw(st.sampled_from(sorted(rows)))
    full = counting.hidden_rows(rows, rows, own=own)
    others = sorted(rows[j] for j in rows if j != own)
    assert full == rows[own] + sum(others[:-1])  # by its definition: without the largest other
    gone = data.draw(st.sampled_from(sorted(rows)))
    if gone != own:
        assert counting.hidden_rows(rows, set(rows) - {gone}, own=own) <= full
    assert counting.hidden_rows(rows, rows, own=own, colluders=2) <= full
    receiver = data.draw(st.sampled_from(sorted(rows)))
    assert counting.hidden_rows(rows, rows, own=own, receiver=receiver) <= full
    # whoever the node is, the coordinator's count is not larger
    assert counting.hidden_rows(rows, rows) <= full


@pytest.mark.promise("cells-centres")
@settings(max_examples=100)
@given(ROWS, st.lists(st.floats(0.1, 50.0), max_size=3), st.floats(0.1, 50.0))
def test_columns_of_others_hide_rows(rows: dict[int, int], beside: list[float], row: float) -> None:
    """A colluder knows its rows, or its columns: a row's share of a sum is counted in full."""
    own = min(rows)
    columns = {-1 - k: unknowns for k, unknowns in enumerate(beside)}
    least, others, kept = counting.hidden_beside(rows, rows, row, columns, own=own)
    assert rows[own] + kept == counting.hidden_rows(rows, rows, own=own)
    total, whole = sum(rows.values()), row + sum(beside)
    others_known = [n for party, n in rows.items() if party != own] or [0]
    unknowns = [(total - n) * whole for n in others_known]
    unknowns += [total * (whole - columns) for columns in beside]
    assert (rows[own] + others) * least <= min(unknowns) * (1 + 1e-9)
    assert (rows[own] + others + 1) * least >= min(unknowns) * (1 - 1e-9)


@given(ROWS, st.integers(1, 12))
def test_no_sum_that_can_be_opened_hides_too_little(rows: dict[int, int], threshold: int) -> None:
    own, threshold = min(rows), min(threshold, len(rows))
    least = counting.least_survivors(rows, threshold, own=own)
    assert own in least
    assert len(least) == threshold
    rng = np.random.default_rng(threshold)
    for _ in range(5):
        more = rng.choice(sorted(set(rows) - {own}), threshold - 1, replace=False)
        found = counting.hidden_rows(rows, {own, *map(int, more)}, own=own)
        assert counting.hidden_rows(rows, least, own=own) <= found


# -- the node, order by order


COLUMNS = 5


class Client(SummingClient):
    """Contributes to whatever is ordered; ``round`` says of which row."""

    rows, features = 100, COLUMNS - 1
    usual_counting = "refuse"
    rounds_of: ClassVar[dict[str, str]] = dict.fromkeys(("a", "b", "first"), "round")
    one_row = True

    def is_counted(self, order: sums.Order) -> bool:
        return not self.one_row and super().is_counted(order)

    def work(self, request: Any) -> PhaseMessage:
        assert self.sums is not None
        for name, order in list(self.sums.orders.items()):
            self.sums.check(spec_of(order))
            if self.one_row:
                self.windows[name] = (request.round, request.round + 1, None)
            self.sums.contribute(name, np.zeros(order.length))
        return Done()


def spec_of(order: sums.Order) -> SumSpec:
    """Return the sum that an order means, whatever it is."""
    masks = order.self_masks
    return SumSpec(name=order.name, encoding=Encoding.of(order), self_masks=masks)


class LastRow(Client):
    """Sums over the rows up to that of the message, some numbers about the last one alone."""

    alone: ClassVar[int] = 10

    def work(self, request: Any) -> PhaseMessage:
        done = super().work(request)
        for name in self.windows:
            self.windows[name] = (0, request.round + 1, (request.round, self.alone))
        return done


class WholeTables(Client):
    """Sums over all rows, with a warning only."""

    usual_counting = "warn"
    one_row = False


class Run(Nodes):
    """Four nodes and a server; sums of one row each hide (3 - 1) x 5 unknowns."""

    def __init__(self, kind: type[Client] = Client, policy: NodePolicy | None = None) -> None:
        super().__init__(4, kind, simulation=False, policy=policy or NodePolicy())

    def sum(self, name: str, length: int, row: int = 1, **more: Any) -> Any:
        """Order a sum and have all contribute."""
        running = self.order(name, length, **more)
        self.contribute(running, number=row)
        return running


def test_a_sum_is_refused_when_it_is_ordered() -> None:
    run = Run()
    run.unmask(run.sum("a", 10))
    refuses("FK-POLICY-COUNTING", run.sum, "a", 11, row=2)


def test_sums_in_turn_over_the_same_rows_count_together() -> None:
    """Kernels in turn: each sum would pass alone."""
    run = Run()
    run.unmask(run.sum("first", 2))
    run.unmask(run.sum("a", 4))
    refuses("FK-POLICY-COUNTING", run.sum, "b", 5)


def test_a_sum_that_was_not_opened_may_be_repeated_but_both_are_not_opened() -> None:
    """The second order passes; opening the first as well would release too much."""
    run = Run()
    first, second = run.sum("a", 8), run.sum("a", 8)
    run.unmask(second)
    refuses("FK-ORDER-AGAIN", run.unmask, first)


def test_rows_of_an_earlier_message_are_not_summed_again() -> None:
    """What was released of them is forgotten."""
    run = Run()
    for row in (1, 2):
        run.unmask(run.sum("a", 6, row=row))
    refuses("FK-POLICY-COUNTING", run.sum, "b", 1, row=1)


def test_rows_of_earlier_messages_are_no_unknowns_of_what_is_summed_of_the_last_alone() -> None:
    """Nor is anything that was summed before a sum of the last rows alone."""
    run = Run(LastRow)
    run.unmask(run.sum("a", 15, row=1))
    refuses("FK-POLICY-COUNTING", run.sum, "b", 1, row=1)
    with refused("FK-POLICY-COUNTING"):
        Run(type("Forged", (LastRow,), {"alone": 11})).sum("a", 15, row=1)


@pytest.mark.parametrize(("policy", "told", "logged"), [
    (NodePolicy(counting="warn"), {"warn"}, 1), (NodePolicy(allow_small_sums=True), {"off"}, 0),
    (NodePolicy(counting="refuse", allow_small_sums=True), {"off"}, 0),
])  # fmt: skip
def test_the_owner_of_a_node_may_allow_it(
    policy: NodePolicy, told: set[str], logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(policy=policy)
    for row in (1, 2):
        run.unmask(run.sum("a", 11, row=row))
    assert run.counting == told
    assert caplog.text.count("the rows behind a sum can be computed") == logged * 4


def test_methods_over_whole_tables_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Two sums of 100 rows of 5 columns, of whole cohorts: (4 - 1) x 500 unknowns."""
    run = Run(WholeTables)
    run.sum("a", 1000, self_masks=False)
    assert "would be released" not in caplog.text
    run.sum("b", 501, self_masks=False)
    assert "1,501 numbers would be released about 1,500 unknowns" in caplog.text
    strict = Run(WholeTables, NodePolicy(counting="refuse"))
    strict.sum("a", 1000, self_masks=False)
    refuses("FK-POLICY-COUNTING", strict.sum, "b", 501, self_masks=False)


# -- online methods


SMALL = {"kernels": 7, "features": 4, "seed": 3, "secure": True}
STRICT = NodePolicy.of_simulations(counting="refuse")
METHODS: dict[str, Callable[..., Any]] = {
    "pof-mkl": lambda **o: POFMKL(**SMALL, **o),
    "pof-mkl shared": lambda **o: POFMKL(**SMALL, subset="shared", kernels_per_round=3, **o),
    "ofskl": lambda **o: OFSKL(features=40, seed=3, secure=True, **o),
    "ofmkl-avg": lambda **o: OFMKLAvg(**SMALL, **o),
    "vm-kofl": lambda **o: VMKOFL(**SMALL, **o),
    "em-kofl": lambda **o: EMKOFL(**{**SMALL, "features": 20}, **o),
    "per-fed-avg": lambda **o: PerFedAvg(seed=3, secure=True, **o),
}


def guarded(streams: Any) -> Any:
    """Return a client_fn whose nodes refuse, though in a simulation."""

    def client_fn(context: Context) -> Any:
        client = streams.client_fn(context)
        client.policy = STRICT
        return client

    return client_fn


@pytest.mark.parametrize(
    ("name", "clients"), [*((name, 3) for name in METHODS), ("pof-mkl shared", 9)]
)
def test_every_online_method_runs_under_the_rule_without_an_option(
    name: str, clients: int, make_streams: Callable[..., Any]
) -> None:
    rounds = 110 if name == "per-fed-avg" else 20
    strategy = METHODS[name]()
    streams = make_streams(clients, rounds + 3, test_rows=3)
    simulate(strategy, guarded(streams), clients, num_rounds=rounds)
    entry, held_out = strategy.result()["privacy"]["sums"]
    hidden = (default_threshold(clients) - 1) * 5
    assert entry["name"] == "update"
    assert entry["unknowns"] == hidden * min(strategy.batch_size(), rounds)
    assert entry["numbers"] == strategy.sum_length() + 6 <= entry["unknowns"]
    assert held_out == {"name": "evaluate", "numbers": 2, "unknowns": 3 * clients * 5}
    assert len(strategy.history_) == strategy.exchanges()
    assert strategy.history_[-1]["round"] == rounds
    assert np.isfinite(strategy.metrics_["test_mse"])


def test_auto_takes_few_samples_and_many_frequencies(make_streams: Callable[..., Any]) -> None:
    """The setting of naval in the design, under the rule with its statistics."""
    streams = make_streams(23, 10, 15)
    strategy = POFMKL(secure=True)
    simulate(strategy, guarded(streams), 23, num_rounds=3)
    assert strategy.batch_size() == 1
    assert strategy.result()["privacy"]["sums"] == [
        {"name": "update", "numbers": 240, "unknowns": 240}
    ]
    strategy = POFMKL(secure=True, frequencies_per_round="all")
    simulate(strategy, guarded(streams), 23, num_rounds=10)
    assert strategy.batch_size() == 9  # (2040 + 6) / 240
    assert len(strategy.history_) == 1  # the tenth sample is in the last message
    strategy = POFMKL(secure=True, samples_per_round=4)
    simulate(strategy, guarded(streams), 23, num_rounds=10)
    assert [row["round"] for row in strategy.history_] == [4, 10]
    assert strategy.sum_length() + 6 == 960  # of 2,046


def test_the_coordinator_refuses_before_anything_is_sent(make_streams: Callable[..., Any]) -> None:
    streams, record = make_streams(5, 10), Transcript()
    strategy = POFMKL(**SMALL, samples_per_round=1, frequencies_per_round="all")
    with refused("FK-POLICY-COUNTING") as caught:
        simulate(strategy, guarded(streams), 5, num_rounds=5, transcript=record)
    assert "\n" not in str(caught.value)
    assert {entry.phase for entry in record.entries()} <= {"describe", "finish", "sum-reply"}


class Careless(POFMKL):
    """A server that does not count."""

    def check_count(self, problem: str) -> None:
        pass


class Remainders(Careless):
    """A server whose last message has only what is left."""

    def exchanges(self) -> int:
        return -(-self.num_rounds // self.batch_size())


def test_nodes_refuse_what_a_careless_coordinator_orders(make_streams: Callable[..., Any]) -> None:
    strategy = Careless(**SMALL, samples_per_round=1, frequencies_per_round="all")
    refuses("FK-POLICY-COUNTING", simulate, strategy, guarded(make_streams(5, 10)), 5, num_rounds=5)


def test_nodes_refuse_a_last_message_of_few_samples(make_streams: Callable[..., Any]) -> None:
    strategy, streams = Remainders(**SMALL, samples_per_round=2), make_streams(5, 10)
    refuses("FK-PARTIES-LOST", simulate, strategy, guarded(streams), 5, num_rounds=5)
    assert [row["survivors"] for row in strategy.history_] == [5, 5]


class Greedy(POFRLS):
    """A server that sums features in each message, whatever it has planned."""

    def check_count(self, problem: str) -> None:
        pass

    def plan_release(self, dimension: int) -> None:
        super().plan_release(dimension)
        sums = (False, *(True for _ in self.plan_.stops[1:]))
        self.plan_ = replace(self.plan_, sums=sums)


@pytest.mark.parametrize("drop_outs", [True, False])
def test_nodes_count_features_and_columns_of_the_same_rows_together(
    drop_outs: bool, make_streams: Callable[..., Any]
) -> None:
    """Columns in each message, features over the rows of several: as planned it passes."""
    options: dict[str, Any] = {"secure": True, "features": 4, "drop_outs": drop_outs}
    planned, streams = POFRLS(**options), make_streams(6, 60)
    simulate(planned, guarded(streams), 6, num_rounds=60)
    plan = planned.plan_
    assert 1 < sum(plan.sums) <= len(plan.sums) / 2
    assert all(row["survivors"] == 6 for row in planned.history_)
    (told,) = planned.privacy()["sums"]
    assert 0.7 * told["unknowns"] < told["numbers"] <= told["unknowns"]
    refuses("FK-PARTIES-LOST", simulate, Greedy(**options), guarded(streams), 6, num_rounds=60)


def test_a_simulation_warns_once(make_streams: Callable[..., Any], caplog: Any) -> None:
    strategy = POFMKL(**SMALL, samples_per_round=1, frequencies_per_round="all")
    simulate(strategy, make_streams(5, 10).client_fn, 5, num_rounds=3)
    assert caplog.text.count("62 numbers would be released about 15 unknowns") == 1
    seen = strategy.result()["privacy"]
    assert "more numbers than unknowns" in seen["server_sees"][0]
    assert seen["sums"] == [{"name": "update", "numbers": 62, "unknowns": 15}]


@pytest.mark.promise("gradients-own-choice")
def test_kernels_of_the_clients_own_choice_are_refused(make_streams: Callable[..., Any]) -> None:
    """A kernel that one client chose shows its rows, however many others there are."""
    strategy = POFMKL(**SMALL, kernels_per_round=3, samples_per_round=10)
    with refused("FK-POLICY-COUNTING"):
        simulate(strategy, guarded(make_streams(5, 20)), 5, num_rounds=20)


def test_rows_of_a_sum_that_is_ordered_and_not_opened_are_not_new() -> None:
    group = counting.Group(1, 3, 5.0)
    assert group.has(1, 2)
    assert not group.has(1, 3)
