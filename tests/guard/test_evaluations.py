"""Figures about held-out rows, and what a node remembers of them."""

from __future__ import annotations

import pytest
from flwr.app import Context, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from fedkern_flwr.guard import NodePolicy, RunRecord
from fedkern_flwr.guard.evaluations import Asked, check_model, enter, too_few

PARTY = "partition 3"
blobs = st.lists(st.binary(max_size=3), max_size=3)


@given(blobs, blobs, st.binary(max_size=3))
def test_evaluations_differ_if_anything_does(
    one: list[bytes], two: list[bytes], rows: bytes
) -> None:
    """Parts are told apart by their lengths: what is moved from one to the next is noticed."""
    first, second = (Asked.of("figures", rows, model) for model in (one, two))
    assert (first.key == second.key) == (one == two)
    assert Asked.of("figures", rows + b"x", one).key != first.key
    assert Asked.of("others", rows, one).key != first.key


@pytest.mark.promise("held-out-each-holder")
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.booleans(), st.integers(0, 12))
def test_figures_are_of_enough_rows_at_each_of_two_parties(
    tests: list[int], alone: bool, least: int
) -> None:
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
    record, (first, second) = RunRecord("run"), (Asked.of("a", b"", m) for m in (one, two))
    check_model(record, first, PARTY)
    check_model(record, first, PARTY)
    check_model(record, Asked.of("b", b"", two), PARTY)
    if one != two:
        with refused("FK-ORDER-MODEL"):
            check_model(record, second, PARTY)


@pytest.mark.promise("guard-evaluations")
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=30),
    st.integers(0, 5),
)
def test_each_set_of_rows_is_judged_so_often(asked: list[tuple[int, int]], most: int) -> None:
    """The same again is answered with what was told, whatever it would be now."""
    record, policy = RunRecord("run"), NodePolicy(max_evaluations=most)
    told: dict[tuple[int, int], list[float]] = {}
    for number, (rows, model) in enumerate(asked):
        what = Asked.of("figures", bytes([rows]), [bytes([model])])
        seen = sum(1 for known in told if known[0] == rows)
        if (rows, model) not in told and seen >= most:
            with refused("FK-POLICY-EVALUATIONS"):
                enter(record, what, [float(number)], policy, PARTY)
            continue
        found = enter(record, what, [float(number)], policy, PARTY)
        assert found == told.setdefault((rows, model), [float(number)])


names = st.text("abc/", max_size=5)


@settings(max_examples=40)
@given(
    st.builds(
        RunRecord,
        names,
        st.booleans(),
        st.integers(0, 9),
        st.dictionaries(names, st.lists(st.floats(allow_nan=False), max_size=3), max_size=3),
        st.dictionaries(names, st.integers(0, 9), max_size=3),
        st.dictionaries(names, st.lists(st.integers(0, 9), max_size=2), max_size=3),
    )
)
def test_a_record_survives_in_the_state_of_its_run(record: RunRecord) -> None:
    context = Context(1, 1, {}, RecordDict(), {})
    record.store(context)
    assert RunRecord.load(context, record.session) == record
    assert RunRecord.load(context, record.session + "x") == RunRecord(record.session + "x")


@pytest.mark.promise("guard-refusals")
def test_the_third_refusal_is_the_last() -> None:
    for refusals in range(5):
        record = RunRecord("run", refusals=refusals)
        if refusals < 3:
            record.check(PARTY)
        else:
            with refused("FK-ORDER-OVER"):
                record.check(PARTY)
