"""Clients with a table: what they take, what they tell of it, and who else may not be answered.

What no client takes is in tests/contracts/test_bad_tables.py.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from refusals import refused, refuses
from zoo import WAYS, Table, fit, same

from fedkern_flwr.alignment import hash_ids
from fedkern_flwr.clients import HybridKernelClient, SVMClient, VerticalKernelClient
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.wire import DescribeRequest

KEY, SESSION = bytes(range(16)), "5e" * 8
X = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]])
HELD_OUT: Table = {"x_test": X[:2], "y_test": [1, 0], "ids_test": [7, "ü"]}


def context(partition: int = 4, **more: Any) -> Context:
    config = {"simulation": True, "partition-id": partition, "num-partitions": 5, **more}
    return Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})


@dataclass(frozen=True)
class Kind:
    """A client, and what its method calls those with labels and those without."""

    client: type[Any]
    method: str
    roles: tuple[str, str]

    def make(self, place: Context | None = None, **more: Any) -> Any:
        """Build a party of four rows with labels."""
        table: Table = {"x": X, "y": [0, 1, 1, 0], "ids": list("abcd"), "classes": (0, 1)}
        return self.client(place or context(), **{**table, "alignment_key": KEY, **more})

    def describe(self, client: Any, session: str = SESSION, **more: Any) -> Any:
        """Have a client describe itself, as Flower does; return what it tells."""
        request = DescribeRequest(session=session, method=self.method, resume_round=0, **more)
        (ids, *_), _, told = client.fit(request.arrays(), request.scalars())
        return SimpleNamespace(ids=ids, **told)


KINDS = {
    "fed-cg": Kind(HybridKernelClient, "fed-cg", ("hospital", "centre")),
    "fdskl": Kind(VerticalKernelClient, "fdskl", ("active", "passive")),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@every_kind
def test_edges_of_what_may_be(kind: Kind) -> None:
    """A party may have no rows yet, no features, no ids, several outputs."""
    kind.make(classes=None, y=[-9.0, 1.0, 0.0, 0.5], label_bound=9.0)
    kind.make(y=np.array([[0], [1], [1], [0]]))
    for more in ({}, {"classes": None}, {"classes": None, "y": np.zeros((0, 3))}):
        empty: Table = {"x": np.zeros((0, 2)), "y": [], "ids": [], **more}
        assert kind.make(**empty).table.rows == 0
    assert kind.make(classes=None, y=np.zeros((0, 3)), x=X[:0], ids=[]).table.y.shape == (0, 3)
    assert kind.make(x=None).table.features == 0
    assert kind.make(ids=None, alignment_key=None).table.rows == 4
    assert kind.make(y=None, classes=None).role == kind.roles[1]
    if kind is KINDS["fed-cg"]:  # ranges include their ends
        kind.make(x=[[0.0, 1.0], [1.0, 0.0], [0.5, 0.5], [1.0, 1.0]])
        kind.make(x=[[5.0, 0.5]] * 4, ranges=[[5, 5], [0, 1]])


def test_labels_of_some_rows_may_be_elsewhere() -> None:
    kind, gap = KINDS["fdskl"], np.nan
    assert kind.make(y=[gap] * 4, **HELD_OUT).table.rows == 0  # only held-out rows
    found = kind.describe(kind.make(y=[[0], [gap], [1], [1]], **HELD_OUT))
    assert (found.rows, found.test_rows, found.others) == (3, 2, 1)
    for part, ids in ((found.ids[:3], "acd"), (found.ids[3:5], ["7", "ü"]), (found.ids[5:], "b")):
        assert sorted(part.tolist()) == sorted(hash_ids(list(ids), KEY, SESSION).tolist())
    numbers = kind.make(y=[[0.1, 0.2], [0.3, gap], [0.5, 0.1], [1, 1]], classes=None).table
    words = kind.make(classes=("no", "yes"), y=["no", "yes", None, ""]).table
    assert (numbers.rows, numbers.others, words.rows, words.others) == (3, 1, 2, 2)
    passive = kind.make(y=None, classes=None, x_test=X[:2], ids_test=["e", "f"])
    assert passive.table.others == 6


# -- what others compute of single rows

SHOWN = {**KINDS, "hierarchical-svm": Kind(SVMClient, "hierarchical-svm", ("user", "user"))}


@pytest.mark.promise("binary-columns")
@pytest.mark.parametrize("kind", SHOWN.values(), ids=SHOWN)
def test_an_owner_limits_what_others_compute(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    """Of two values each; one of a single value shows nothing."""
    x = np.column_stack([X, [0, 1, 1, 0], [1, 0, 0, 0], [1] * 4])
    without: Table = {"x": x, "y": None, "classes": None}
    allowed: Table = {"min_own_rows": 0, "require_secure_sums": False}
    for limit in (None, 1, 2):
        place, policy = context(simulation=False), NodePolicy(max_binary_columns=limit, **allowed)
        with refused("FK-POLICY-BINARY") if limit == 1 else nullcontext():
            kind.describe(kind.make(place, policy=policy, **without))
        assert ("compute the 2 columns" in caplog.text) == (limit is None)
        caplog.clear()
    policy = NodePolicy(max_binary_columns=1, **allowed)
    kind.describe(kind.make(policy=policy, x=x))  # it opens its own rows, or nobody does


# -- what a party tells


@every_kind
def test_a_party_tells_sizes_and_keyed_hashes(kind: Kind) -> None:
    found = kind.describe(kind.make(**HELD_OUT, columns=["age", "weight"], allow_single=True))
    expected = {"partition": 4, "partitions": 5, "role": kind.roles[0], "rows": 4, "features": 2}
    expected |= {"test_rows": 2, "outputs": 1, "classes": 2, "label_bound": 1.0, "labelled": True}
    expected |= {"restored": True, "allow_single": True}
    assert {name: getattr(found, name) for name in expected} == expected
    assert "weight" not in repr(found)
    for part, ids in ((found.ids[:4], list("abcd")), (found.ids[4:], ["7", "ü"])):
        assert part.tolist() == sorted(hash_ids(ids, KEY, SESSION).tolist())
    other = kind.describe(kind.make(y=None, classes=None))
    assert (other.role, other.outputs, other.classes) == (kind.roles[1], 0, 0)
    assert not other.labelled
    assert not other.allow_single
    if kind is KINDS["fed-cg"]:  # of a centre also how far apart its rows may be
        wide = kind.describe(kind.make(y=None, classes=None, ranges=[[0, 2], [-3, 1]]))
        assert (wide.block, wide.square_bound, wide.seeded) == ("centre 4", 20.0, False)
        assert wide.absolute_bound == pytest.approx(40.0**0.5)


@pytest.mark.promise("labels-of-text")
@every_kind
def test_labels_are_names_or_positions_of_classes(kind: Kind) -> None:
    wanted = kind.make(classes=("no", "yes")).table.y
    np.testing.assert_array_equal(wanted[:, 0], [-1, 1, 1, -1])
    for y in (["no", "yes", " yes", "no"], np.array(["no", "yes", "yes", "no"], object)):
        np.testing.assert_array_equal(kind.make(classes=("no", "yes"), y=y).table.y, wanted)
    kept = kind.make(classes=(1, 0), y=["0", "1", "1.0", "0"]).table.y  # numbers that are text
    np.testing.assert_array_equal(kept, -wanted)
    if kind is KINDS["fdskl"]:  # a gap is a row of another party, and no class
        assert kind.make(classes=("no", "yes"), y=["no", "yes", None, ""]).table.rows == 2


def test_the_order_of_the_table_is_not_told() -> None:
    """Rows are announced by their hashes; the same seed makes the same order in any session."""
    kind, turned = KINDS["fdskl"], [2, 0, 3, 1]
    same = {"x": X[turned], "ids": [list("abcd")[k] for k in turned], "y": None, "classes": None}

    def order(session: str, seed: int, **more: Any) -> list[str]:
        client = kind.make(**{"y": None, "classes": None, **more})
        found = kind.describe(client, session=session, order_seed=seed).ids
        hashes = {tuple(hash_ids([i], KEY, session)[0].tolist()): i for i in "abcd"}
        return [hashes[tuple(row)] for row in found.tolist()]

    for seed in (-1, 0, 7):
        assert order(SESSION, seed) == order(SESSION, seed, **same)
    orders = [order(f"{k}" * 16, 7) for k in range(6)]
    assert all(o == orders[0] for o in orders)
    assert len({tuple(order(f"{k}" * 16, -1)) for k in range(6)}) > 1
    assert len({tuple(order(SESSION, seed)) for seed in range(6)}) > 1


def test_rows_without_ids_are_those_of_others_by_their_order_or_nobody_s() -> None:
    """Of columns that all parties hold in one order; at hospitals nobody else has the rows."""
    for kind in KINDS.values():
        other = kind.make(context(3), y=None, classes=None, ids=None, alignment_key=None)
        one, two = (kind.describe(c) for c in (kind.make(ids=None, alignment_key=None), other))
        same = {tuple(r) for r in one.ids.tolist()} & {tuple(r) for r in two.ids.tolist()}
        assert len(same) == (4 if kind is KINDS["fdskl"] else 0)
        assert not getattr(one, "named", False)


@every_kind
def test_requests_of_others_are_refused(kind: Kind) -> None:
    """A session names folders."""
    for session in ("../5e", "a/b", "", "a b"):
        refuses("FK-MESSAGE-FIELD", kind.describe, kind.make(), session=session)


# -- clients of all methods

ALL = ("fed-cg", "fdskl", "secure-gram, fixed point", "hierarchical-svm", "pof-mkl", "kernel-pca")


@pytest.mark.parametrize("name", ALL)
def test_lists_are_as_good_as_arrays(name: str) -> None:
    way = WAYS[name].few(6)
    sites = way.sites()
    for table in sites.tables:
        table |= {k: v.tolist() for k, v in table.items() if isinstance(v, np.ndarray)}
    assert same(sites.fit().outcome(), fit(way).outcome(), max(1e-6, way.near))


@pytest.mark.parametrize("name", ALL)
def test_a_client_of_another_method_is_named_in_a_line(name: str) -> None:
    way = replace(WAYS[ALL[ALL.index(name) - 1]], rounds=WAYS[name].rounds and 1)
    caught = refuses("FK-NODE-METHOD", way.sites().fit, strategy=WAYS[name].strategy())
    assert WAYS[name].method in str(caught)
