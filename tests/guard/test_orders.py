"""Which orders a node takes: properties of pure functions."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from refusals import refused, refuses

from fedkern_flwr.errors import RefusedError
from fedkern_flwr.exchange import SumSpec
from fedkern_flwr.guard import NodePolicy, check_selection
from fedkern_flwr.guard.orders import check_cohort, check_order, check_own_rows, check_run
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.secure_sum.identity import Counts
from fedkern_flwr.secure_sum.membership import Cohort
from fedkern_flwr.wire.sums import Order

PARTY = "partition 3"
bounds = st.floats(1e-6, 1e6)
encodings = st.builds(
    Encoding, st.sampled_from(["fixed-point", "integer"]), st.sampled_from([16, 32, 64]), bounds
)
specs = st.builds(
    SumSpec, name=st.just("a"), encoding=encodings, receiver=st.integers(-1, 4),
    self_masks=st.booleans(), wider=st.booleans(),
    rings=st.sampled_from([(), (32,)]), length=st.sampled_from([None, 7]),
)  # fmt: skip


def order_of(spec: SumSpec) -> Order:
    """Return the order that a method means."""
    right = spec.encoding
    known = {
        "cohort": 0, "index": 1, "name": "a", "length": 7, "kind": right.kind, "bits": right.bits,
        "bound": right.bound, "receiver": spec.receiver, "self_masks": spec.self_masks,
        "backups": False, "open_from": 1, "counted": 0, "noise": spec.noise.variance,
        "fraction": spec.noise.fraction,
    }  # fmt: skip
    return Order(**{f.name: known[f.name] for f in fields(Order)})  # type: ignore[arg-type]


def is_refused(order: Order, spec: SumSpec, cohorts: int = 1) -> bool:
    try:
        check_order(order, spec, cohorts=cohorts)
    except RefusedError as error:
        text = str(error)
        return text.startswith("refused by the node: the ") and "\n" not in text
    return False


@given(specs)
def test_what_a_method_means_is_taken(spec: SumSpec) -> None:
    assert not is_refused(order_of(spec), spec)
    assert not is_refused(order_of(spec), spec, cohorts=2)
    assert is_refused(order_of(spec), replace(spec, everybody=True), cohorts=2)


@pytest.mark.promise("orders-receiver", "orders-bound")
@settings(max_examples=100)
@given(specs, st.integers(-1, 4), st.sampled_from([16, 32, 64]), bounds, st.integers(1, 20))
def test_what_it_does_not_mean_is_refused(
    spec: SumSpec, receiver: int, bits: int, bound: float, length: int
) -> None:
    order = order_of(spec)
    assert is_refused(replace(order, receiver=receiver), spec) == (receiver != spec.receiver)
    rings = (spec.encoding.bits, *spec.rings)
    assert is_refused(replace(order, bits=bits), spec) == (bits not in rings)
    fits = bound >= spec.encoding.bound if spec.wider else bound == spec.encoding.bound
    assert is_refused(replace(order, bound=bound), spec) == (not fits)
    wrong = spec.length is not None and length != spec.length
    assert is_refused(replace(order, length=length), spec) == wrong
    other = replace(order, self_masks=not order.self_masks)
    assert is_refused(other, spec)
    kind = "integer" if order.kind == "fixed-point" else "fixed-point"
    assert is_refused(replace(order, kind=kind), spec)
    assert is_refused(replace(order, kind="circle", bound=0.0), spec)
    assert is_refused(replace(order, bound=float("nan")), spec)


@given(
    st.dictionaries(
        st.integers(0, 9), st.builds(Counts, *[st.integers(0, 9)] * 2, st.just(640)), min_size=2
    ),
    st.integers(2, 4),
    st.booleans(),
)
def test_cohorts_hide_enough(counts: dict[int, Counts], enough: int, holds: bool) -> None:
    cohort = Cohort(0, tuple(sorted(counts)), 2, bytes(32))
    policy = NodePolicy(min_sum_rows=9)
    rows = sum(one.rows + one.held_out for one in counts.values())
    few = len(counts) < min(3, enough) or (holds and rows < 9)
    try:
        check_cohort(cohort, counts, policy, enough=enough, holds=holds)
    except RefusedError:
        assert few
    else:
        assert not few


@given(st.lists(st.integers(-2, 12), max_size=12), st.integers(0, 6))
def test_selections_are_of_different_rows_that_there_are(rows: list[int], least: int) -> None:
    held = [row for row in rows if row >= 0]
    fine = (
        -2 not in rows
        and len(set(held)) == len(held)
        and all(row < 10 for row in held)
        and len(held) >= least
    )
    try:
        check_selection(np.array(rows, np.int32), range(10), least=least, party=PARTY)
    except RefusedError:
        assert not fine
    else:
        assert fine


def test_a_party_of_few_rows_may_bring_them_all() -> None:
    check_selection(np.arange(3), range(3), least=5, party=PARTY)
    refuses("FK-ORDER-ROWS-FEW", check_selection, np.arange(2), range(3), least=5, party=PARTY)
    check_selection(np.zeros(0, np.int32), range(0), least=5, party=PARTY)


@given(st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.sampled_from(["a", "b"]))
def test_runs_are_those_that_the_owner_allows(
    secure: bool, pinned: bool, needs: bool, knows: bool, method: str
) -> None:
    policy = NodePolicy(methods=("a",), require_secure_sums=needs, require_pinned_identities=knows)
    fine = method == "a" and (secure or not needs) and (pinned or not knows)
    try:
        check_run(policy, method, secure=secure, pinned=pinned)
    except RefusedError:
        assert not fine
    else:
        assert fine


@given(st.integers(0, 9), st.integers(0, 9))
def test_few_own_rows_are_refused_and_none_are_fine(rows: int, least: int) -> None:
    assume(rows >= least or rows == 0)
    check_own_rows(NodePolicy(min_own_rows=least), rows)
    if least > 1:
        with refused("FK-POLICY-OWN-ROWS"):
            check_own_rows(NodePolicy(min_own_rows=least), 1)
