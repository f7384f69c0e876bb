"""Which orders a node takes: properties of pure functions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from refusals import refused, refuses

from fedkern_flwr.errors import RefusedError
from fedkern_flwr.exchange import SumSpec
from fedkern_flwr.groups.messages import SVMFacts
from fedkern_flwr.guard import NodePolicy, check_selection
from fedkern_flwr.guard.policy import Rules, check_cohort, check_order, check_own_rows, check_run
from fedkern_flwr.hybrid import messages as hybrid
from fedkern_flwr.judging.figures import Yardstick
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.secure_sum.identity import Counts
from fedkern_flwr.secure_sum.membership import Cohort
from fedkern_flwr.vertical.messages import VerticalFacts
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
    assert is_refused(replace(order_of(spec), receiver=-2), replace(spec, receiver=-2))


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
        check_cohort(cohort, counts, Rules(policy=policy, enough=enough), holds=holds)
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


def distances(*hospitals: int) -> hybrid.DistancesRequest:
    count, none = len(hospitals), np.zeros(0)
    about = [np.array(part, np.int32) for part in (hospitals, [3] * count, [0] * count)]
    return hybrid.DistancesRequest(
        hospitals=about[0], trains=about[1], starts=about[2], stops=about[1],
        rows=(np.arange(3, dtype=np.int32),) * count, kernel="rbf", sampling="U", landmarks=4,
        basis="fourier", seed_from=-1, model="", model_round=0, save_as=0, landmark_pairs=False,
        keep_training=False, fixed_gammas=np.ones(1), moments=none,
        sealed_seed=np.zeros(0, np.uint8),
    )  # fmt: skip


def facts(**own: Any) -> hybrid.Facts:
    return hybrid.Facts(
        landmarks=4, labels=Yardstick(2, 1, 1.0, 0), block="b", features=2, distance=1.0,
        budget=None, signed=[], cohorts=defaultdict(int),
        **{"rows": (3,), "tests": (0,), "wanted": (), **own},
    )  # fmt: skip


@pytest.mark.parametrize("receiver", [-1, -2])
def test_no_request_makes_the_server_the_receiver_of_a_sum_of_one_partys(receiver: int) -> None:
    assert [one.receiver for one in distances(2).sum_specs(facts())] == [2]
    refuses("FK-ORDER-TERMS", distances(receiver).sum_specs, facts())
    columns = SVMFacts(columns=2, plan_rows=3, owner=receiver)
    refuses("FK-ORDER-TERMS", columns.for_agent, 4, receiver)
    refuses(
        "FK-ORDER-TERMS", VerticalFacts(32, 1, np.zeros(3, np.uint64)).scores, "scores", 3, receiver
    )


def test_the_bound_of_counts_of_classes_is_of_the_rows_that_are_counted() -> None:
    """A request that names none of them would let the server choose a bound."""
    (counts,) = distances().sum_specs(facts(wanted=(hybrid.CLASS_COUNTS,), rows=(0,), counted=100))
    assert counts.encoding.bound >= 100.0
