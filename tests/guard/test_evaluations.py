"""What a node remembers: runs by their names, and figures about held-out rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused, refuses
from summing_nodes import Nodes, SummingClient, opening, work

from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.guard.policy import too_few
from fedkern_flwr.node.state import RunRecord, SessionState, evaluation_key
from fedkern_flwr.secure_sum import SecureSum
from fedkern_flwr.wire import DescribeRequest

blobs = st.lists(st.binary(max_size=3), max_size=3)


@given(blobs, blobs, st.binary(max_size=3))
def test_evaluations_differ_if_a_part_does(one: list[bytes], two: list[bytes], rows: bytes) -> None:
    """Parts are told apart by their lengths: what is moved from one to the next is noticed."""
    first, second = (evaluation_key("figures", rows, model) for model in (one, two))
    assert (first == second) == (one == two)
    assert evaluation_key("figures", rows + b"x", one) != first
    assert evaluation_key("others", rows, one) != first


@pytest.mark.promise("held-out-each-holder")
@settings(max_examples=100)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.booleans(), st.integers(0, 12))
def test_of_two_parties_each_has_enough_rows(tests: list[int], alone: bool, least: int) -> None:
    """Whoever else there is: a party with four rows or one sends zeros, and hides nobody's rows."""
    for own in tests:
        why = too_few(NodePolicy(min_evaluation_rows=least), tests, own, alone=alone)
        hiding = sum(n >= max(1, least) for n in tests)
        assert bool(why) == (0 < own < least or (hiding == 1 and not alone))
    for few in (1, 4):
        assert too_few(NodePolicy(), [few, 500, 500], few, alone=alone)
        assert bool(too_few(NodePolicy(), [few, 500], 500, alone=alone)) == (not alone)


@given(blobs, blobs)
def test_a_run_judges_one_model(one: list[bytes], two: list[bytes]) -> None:
    record, (first, second) = RunRecord("run"), (evaluation_key("a", b"", m) for m in (one, two))
    record.check_model(first)
    record.check_model(first)
    record.check_model(evaluation_key("b", b"", two))
    if one != two:
        refuses("FK-ORDER-MODEL", record.check_model, second)


@pytest.mark.promise("guard-evaluations")
@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=30), st.integers(0, 5))
def test_each_set_of_rows_is_judged_so_often(asked: list[tuple[int, int]], most: int) -> None:
    """The same again is answered with what was told, whatever it would be now."""
    record = RunRecord("run")
    told: dict[tuple[int, int], list[float]] = {}
    for number, (rows, model) in enumerate(asked):
        what = evaluation_key("figures", bytes([rows]), [bytes([model])])
        seen = sum(1 for known in told if known[0] == rows)
        if (rows, model) not in told and seen >= most:
            refuses("FK-POLICY-EVALUATIONS", record.tell, what, [float(number)], most)
            continue
        found = record.tell(what, [float(number)], most)
        assert found == told.setdefault((rows, model), [float(number)])


names = st.text("abc/", max_size=5)


@settings(max_examples=40)
@given(
    st.builds(
        RunRecord, names, st.booleans(), st.integers(0, 9),
        st.dictionaries(names, st.lists(st.floats(allow_nan=False), max_size=3), max_size=3),
        st.dictionaries(names, st.lists(st.integers(0, 9), max_size=2), max_size=3),
    )
)  # fmt: skip
def test_a_record_survives_in_the_state_of_its_run(record: RunRecord) -> None:
    context = Context(1, 1, {}, RecordDict(), {})
    record.store(context)
    assert RunRecord.load(context, record.session) == record
    assert RunRecord.load(context, record.session + "x") == RunRecord(record.session + "x")


class Breaking(SummingClient):
    """Fails where it looks at its rows, as a forged request makes it do."""

    def secure_sum(self, name: str, values: Any) -> None:
        self._looked = True
        raise ValueError(f"row {values[0]}")


def deployed(folder: Path, kind: type[SummingClient] = SummingClient) -> Nodes:
    policy = NodePolicy(min_sum_rows=0)
    return Nodes(kind=kind, simulation=False, state_dir=folder, policy=policy)


@pytest.mark.parametrize("simulation", [True, False])
def test_a_known_run_is_answered_to_who_knows_its_nonce(simulation: bool, tmp_path: Path) -> None:
    more: dict[str, Any] = {} if simulation else {"state_dir": tmp_path}
    nodes = Nodes(simulation=simulation, policy=NodePolicy(min_sum_rows=0), **more)
    again = nodes.ask(0, opening())[0]  # asked twice before it has begun: the same key
    assert again["public_key"] == nodes.keys[0][0]
    assert len(again["nonce"]) == 32
    nodes.contribute(nodes.order())

    def resume(nonces: Any) -> dict[str, Any]:
        how: dict[str, Any] = {"resume_round": 1, "secure": True, "nonces": json.dumps(nonces)}
        return nodes.ask(0, DescribeRequest(session="abc", method="m", **how))[0]

    for said in ({"1": again["nonce"]}, [again["nonce"]]):
        refuses("FK-SESSION-KNOWN", resume, said)
    assert resume({"0": again["nonce"]})["nonce"] == again["nonce"]


def test_another_run_in_between_makes_nothing_forgotten() -> None:
    """Refusals, figures told and budgets of a run stay, whatever else the server opens."""
    nodes = Nodes()
    nodes.contribute(nodes.order())
    nodes.ask(0, opening("between"))
    refuses("FK-SESSION-KNOWN", nodes.ask, 0, opening())
    with refused("FK-SESSION-MANY"):
        for k in range(40):
            nodes.ask(0, opening(f"run{k}"))


@pytest.mark.promise("failures-over-all-runs")
def test_failures_by_values_end_the_run_and_count_in_all_runs(tmp_path: Path) -> None:
    nodes = deployed(tmp_path, Breaking)
    for k in range(3):
        if k:
            told = nodes.ask(0, opening(f"run{k}"))[0]
            keys = {**nodes.keys, 0: (told["public_key"], told["signature"])}
            nodes.server = SecureSum(f"run{k}", keys, counts=nodes.counts)
        running = nodes.order()
        request = type(work())(session=f"run{k}" if k else "abc", round=1)
        refuses("FK-CLIENT-RAISED", nodes.ask, 0, request, nodes.server.sections(0, [running]))
        refuses("FK-ORDER-OVER", nodes.ask, 0, request, nodes.server.sections(0, [running]))
    refuses("FK-NODE-FAILURES", nodes.ask, 0, opening("next"))
    assert NodeLedger(tmp_path).failures(reset=True) == 3
    nodes.ask(0, opening("next"))


def test_the_newest_states_are_kept_whatever_their_digits(tmp_path: Path) -> None:
    client = deployed(tmp_path).client(0)
    for number in range(90, 131):
        client._save(SessionState(session="abc"), number)
    kept = {int(path.stem.rpartition("-")[2]) for path in tmp_path.glob("*-abc/*.state")}
    assert kept == set(range(99, 131))
