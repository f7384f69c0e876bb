"""Clients with a table whose rows are joined by ids: what all of them refuse, tell and keep."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from nodes import Table

from fedkern_flwr.alignment import hash_ids
from fedkern_flwr.clients import HybridKernelClient, VerticalKernelClient
from fedkern_flwr.clients.fed_cg_kernel import RunState
from fedkern_flwr.clients.party_table import PartyTable
from fedkern_flwr.errors import OptionError, ProtocolError, TableError
from fedkern_flwr.hybrid.messages import HybridDescribeReply
from fedkern_flwr.table_parties import TableReply
from fedkern_flwr.vertical.messages import VerticalDescribeReply
from fedkern_flwr.wire import DescribeRequest

KEY, SESSION = bytes(range(16)), "5e" * 8
X = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]])
HELD_OUT: Table = {"x_test": X[:2], "y_test": [1, 0], "ids_test": [7, "ü"]}


def context(partition: int = 4) -> Context:
    config: dict[str, Any] = {"simulation": True, "partition-id": partition, "num-partitions": 5}
    return Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})


@dataclass(frozen=True)
class Kind:
    """A client, and what its method calls those with labels and those without."""

    client: type[Any]
    method: str
    reply: type[TableReply]
    roles: tuple[str, str]

    def make(self, place: Context | None = None, **more: Any) -> Any:
        """Build a party of four rows with labels."""
        table: Table = {"x": X, "y": [0, 1, 1, 0], "ids": list("abcd"), "classes": (0, 1)}
        return self.client(place or context(), **{**table, "alignment_key": KEY, **more})

    def describe(self, client: Any, session: str = SESSION, **more: Any) -> Any:
        """Have a client describe itself, as Flower does."""
        request = DescribeRequest(session=session, method=self.method, resume_round=0, **more)
        arrays, _, scalars = client.fit(request.arrays(), request.scalars())
        return self.reply.unpack(arrays, scalars, party="node")


KINDS = {
    "fed-cg": Kind(HybridKernelClient, "fed-cg", HybridDescribeReply, ("hospital", "centre")),
    "fdskl": Kind(VerticalKernelClient, "fdskl", VerticalDescribeReply, ("active", "passive")),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)

NOT_FINITE = "NaN or infinite values; leave such rows out: they lack the block"
OUTSIDE = "has values outside its declared range"
#: What is wrong with a table: at whose client (None: at all), how, and what is said of it.
BAD_TABLES: dict[str, tuple[str | None, Table, str]] = {
    "NaN": (None, {"x": X * np.nan}, NOT_FINITE),
    "infinite": (None, {"x": [[0.1, -np.inf]] * 4}, NOT_FINITE),
    "NaN held out": (None, {**HELD_OUT, "x_test": X[:2] * np.nan}, NOT_FINITE),
    "NaN in a row without a label": (
        "fdskl",
        {"x": X * [[1.0], [np.nan], [1.0], [1.0]], "y": [0, np.nan, 1, 1]},
        NOT_FINITE,
    ),
    "one dimension": (None, {"x": X[:, 0]}, r"features of shape \(4,\) do not fit 4 rows; pass x"),
    "no id for a row": (None, {"ids": list("abc")}, "3 ids for 4 rows; give each row an id"),
    "no label for a row": (
        None,
        {"y": [0, 1]},
        r"labels of shape \(2,\) do not fit 4 rows; pass one lab",
    ),
    "infinite labels": (
        None,
        {"y": [0, np.inf, 1, 1], "classes": None},
        "NaN or infinite labels; leave such rows out",
    ),
    "NaN labels": ("fed-cg", {"y": [0, 1, 1, np.nan]}, "NaN or infinite labels; leave such rows"),
    "two columns of classes": (None, {"y": [[0, 1]] * 4}, r"labels of shape \(4, 2\) do not fit 4"),
    "an unknown class": (None, {"y": [0, 1, 77.0, 1]}, "1 labels are none of the 2 classes; name"),
    "an unknown class held out": (
        None,
        {**HELD_OUT, "y_test": [77.0, 0]},
        "1 labels are none of the 2 classes; name the same classes on every node",
    ),
    "labels beyond the bound": (
        None,
        {"y": [0.5, -77.0, 1.0, 0.0], "classes": None, "label_bound": 2.0},
        "labels beyond the declared bound of 2; scale them, or declare a larger label bound",
    ),
    "other columns held out": (
        None,
        {**HELD_OUT, "x_test": X[:2, :1]},
        "its held-out rows have 1 features instead of 2; bring them to the same columns",
    ),
    "too few names": (None, {"columns": ["age"]}, "2 features have 1 names; name each of them"),
    "one class": (None, {"classes": (1,), "y": [1] * 4}, "classes that are fewer than two or not"),
    "a class twice": (None, {"classes": (1, 1, 0)}, "classes that are fewer than two or not dist"),
    "text": (None, {"x": [["secret", "name"]] * 4}, "features that are not numbers; clean the ta"),
    "text labels": (None, {"y": ["secret"] * 4}, "labels that are not numbers; clean the table"),
    "out of range": (
        "fed-cg",
        {"x": X + np.array([0.0, 77.0]), "columns": ["age", "weight"]},
        f"column 'weight' {OUTSIDE}; scale it by the public range, or declare a wider one",
    ),
    "out of range below": ("fed-cg", {"x": X - [0.77, 0.0]}, f"column '0' {OUTSIDE}"),
    "two columns out of range": (
        "fed-cg",
        {"x": X + 77.0},
        rf"column '0' \(and 1 more\) {OUTSIDE}",
    ),
    "held-out row out of range": (
        "fed-cg",
        {**HELD_OUT, "x_test": [[0.1, 0.2], [0.3, 7.7]]},
        f"column '1' {OUTSIDE}",
    ),
    "ranges of one feature": (
        "fed-cg",
        {"ranges": [[0, 1]]},
        r"ranges of shape \(1, 2\) do not fi",
    ),
    "ranges upside down": ("fed-cg", {"ranges": [[1, 0]] * 2}, "ranges that end .*; declare least"),
    "ranges unknown": ("fed-cg", {"ranges": [[0, np.nan]] * 2}, "ranges of .*; declare least and"),
    "ranges of text": ("fed-cg", {"ranges": [["secret", 1]] * 2}, "ranges that are not numbers"),
}


def cases(table: dict[str, Any]) -> list[Any]:
    """Return (kind, case) of all clients that a case is for."""
    return [
        pytest.param(kind, case, id=f"{method}, {name}")
        for name, case in table.items()
        for method, kind in KINDS.items()
        if case[0] in (None, method)
    ]


@pytest.mark.parametrize(("kind", "case"), cases(BAD_TABLES))
def test_tables_that_cannot_be_used_are_refused_in_one_line(kind: Kind, case: Any) -> None:
    _, change, text = case
    with pytest.raises(TableError, match=f"^partition 4: {text}") as caught:
        kind.make(**change)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    for private in ("77", "secret"):  # no value is quoted
        assert private not in str(caught.value).replace("declared bound of 2", "")


NOT_ACTIVE = "partition 4: an active party has no labels to learn from; give it labels, or make it"
BAD_OPTIONS: dict[str, tuple[str | None, Table, str]] = {
    "no alignment key": (
        None,
        {"alignment_key": None},
        "partition 4: ids are joined by keyed hashes, and there is no alignment key; give all",
    ),
    "a short alignment key": (
        None,
        {"alignment_key": KEY[1:]},
        "the alignment key has 15 bytes, a",
    ),
    "no label bound": (None, {"classes": None, "label_bound": 0.0}, "label_bound is 0.0; use a po"),
    "a short landmark seed": (
        "fed-cg",
        {"landmark_seed": bytes(31)},
        "the landmark seed has 31 bytes instead of 32; draw one",
    ),
    "labels at a passive party": (
        "fdskl",
        {"role": "passive"},
        "partition 4: a passive party has labels; leave them out, or make it an active party",
    ),
    "held-out labels at a passive party": (
        "fdskl",
        {**HELD_OUT, "role": "passive", "y": None},
        "partition 4: a passive party has labels; leave them out",
    ),
    "no labels at an active party": ("fdskl", {"role": "active", "y": None}, NOT_ACTIVE),
    "only held-out labels": ("fdskl", {**HELD_OUT, "y": None}, NOT_ACTIVE),
    "an unknown role": ("fdskl", {"role": "server"}, "role is 'server'"),
    "a short seed": (
        "fdskl",
        {"frequency_seed": KEY},
        "the frequency seed has 16 bytes instead of",
    ),
}


@pytest.mark.parametrize(("kind", "case"), cases(BAD_OPTIONS))
def test_options_that_cannot_work_are_refused_in_one_line(kind: Kind, case: Any) -> None:
    _, change, text = case
    with pytest.raises(OptionError, match=f"^{text}") as caught:
        kind.make(**change)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


@every_kind
def test_edges_of_what_may_be(kind: Kind) -> None:
    """A party may have no rows yet, no features, no ids, several outputs."""
    kind.make(classes=None, y=[-1.0, 1.0, 0.0, 0.5])
    kind.make(classes=None, y=[-9.0, 1.0, 0.0, 0.5], label_bound=9.0)
    kind.make(y=np.array([[0], [1], [1], [0]]))
    for more in ({}, {"classes": None}, {"classes": None, "y": np.zeros((0, 3))}):
        empty: Table = {"x": np.zeros((0, 2)), "y": [], "ids": [], **more}
        assert kind.make(**empty).table.rows == 0
    assert kind.make(classes=None, y=np.zeros((0, 3)), x=X[:0], ids=[]).table.y.shape == (0, 3)
    assert kind.make(x=None).table.features == 0
    assert kind.make(ids=None, alignment_key=None).table.rows == 4
    assert kind.make(y=None, classes=None).role == kind.roles[1]


def test_ranges_include_their_ends_and_a_feature_may_be_constant() -> None:
    KINDS["fed-cg"].make(x=[[0.0, 1.0], [1.0, 0.0], [0.5, 0.5], [1.0, 1.0]])
    KINDS["fed-cg"].make(x=[[5.0, 0.5]] * 4, ranges=[[5, 5], [0, 1]])


def test_labels_of_some_rows_may_be_elsewhere() -> None:
    kind, gap = KINDS["fdskl"], np.nan
    assert kind.make(y=[gap] * 4, **HELD_OUT).table.rows == 0  # only held-out rows
    found = kind.describe(kind.make(y=[[0], [gap], [1], [1]], **HELD_OUT))
    assert (found.rows, found.test_rows, found.others) == (3, 2, 1)
    for part, ids in ((found.ids[:3], "acd"), (found.ids[3:5], ["7", "ü"]), (found.ids[5:], "b")):
        assert sorted(part.tolist()) == sorted(hash_ids(list(ids), KEY, SESSION).tolist())
    numbers = kind.make(y=[[0.1, 0.2], [0.3, gap], [0.5, 0.1], [1, 1]], classes=None).table
    assert (numbers.rows, numbers.others) == (3, 1)
    passive = kind.make(y=None, classes=None, x_test=X[:2], ids_test=["e", "f"])
    assert passive.table.others == 6


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


@every_kind
def test_digests_tell_columns_and_classes_apart(kind: Kind) -> None:
    base = kind.describe(kind.make(columns=["age", "weight"]))
    for columns in (["weight", "age"], ["age", "Weight"], ["0", "1"]):
        assert kind.describe(kind.make(columns=columns)).columns != base.columns
    assert kind.describe(kind.make(classes=(1, 0))).labels != base.labels
    assert kind.describe(kind.make(classes=(0.0, 1.0))).labels == base.labels  # the same classes
    named = [kind.describe(kind.make(classes=("no", other))).labels for other in ("yes", "on")]
    assert len({base.labels, *named}) == 3


@every_kind
def test_labels_are_names_or_positions_of_classes(kind: Kind) -> None:
    wanted = kind.make(classes=("no", "yes")).table.y
    np.testing.assert_array_equal(wanted[:, 0], [-1, 1, 1, -1])
    for y in (["no", "yes", " yes", "no"], np.array(["no", "yes", "yes", "no"], object)):
        np.testing.assert_array_equal(kind.make(classes=("no", "yes"), y=y).table.y, wanted)
    with pytest.raises(TableError, match="1 labels of text are none of the 2 classes") as refused:
        kind.make(classes=("no", "yes"), y=["no", "yes", "Zebra", "no"])
    assert "Zebra" not in str(refused.value)
    kept = kind.make(classes=(1, 0), y=["0", "1", "1.0", "0"]).table.y  # numbers that are text
    np.testing.assert_array_equal(kept, -wanted)


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


def test_a_gap_among_labels_of_text_is_a_row_of_another_party() -> None:
    table = KINDS["fdskl"].make(classes=("no", "yes"), y=["no", "yes", None, ""]).table
    assert (table.rows, table.others) == (2, 2)


@every_kind
def test_hashes_of_two_runs_or_two_keys_have_nothing_in_common(kind: Kind) -> None:
    one = kind.describe(kind.make()).ids
    for other in (
        kind.describe(kind.make(), session="ab" * 8).ids,
        kind.describe(kind.make(alignment_key=KEY[::-1])).ids,
    ):
        assert not np.isin(one, other).any()


def test_rows_without_ids_are_those_of_others_by_their_order_or_nobody_s() -> None:
    """Of columns that all parties hold in one order; at hospitals nobody else has the rows."""
    for kind in KINDS.values():
        other = kind.make(context(3), y=None, classes=None, ids=None, alignment_key=None)
        one, two = (kind.describe(c) for c in (kind.make(ids=None, alignment_key=None), other))
        same = {tuple(r) for r in one.ids.tolist()} & {tuple(r) for r in two.ids.tolist()}
        assert len(same) == (4 if kind is KINDS["fdskl"] else 0)
        assert not getattr(one, "named", False)


def test_a_centre_tells_its_block_and_how_far_apart_its_rows_may_be() -> None:
    kind = KINDS["fed-cg"]
    found = kind.describe(kind.make(y=None, classes=None, ranges=[[0, 2], [-3, 1]]))
    assert (found.block, found.square_bound, found.seeded) == ("centre 4", 20.0, False)
    assert found.absolute_bound == pytest.approx(40.0**0.5)


@every_kind
def test_ids_that_come_twice_are_refused(kind: Kind) -> None:
    twice: list[Table] = [{"ids": list("abac")}, {**HELD_OUT, "ids_test": ["c", "e"]}]
    if kind is KINDS["fdskl"]:
        twice.append({"ids": list("abbc"), "y": [0, np.nan, 1, 1]})  # one label is elsewhere
    for more in twice:
        with pytest.raises(TableError, match="partition 4: 1 duplicate ids; keep one row per id"):
            kind.describe(kind.make(**more))


@every_kind
def test_requests_of_others_are_refused(kind: Kind) -> None:
    """A session names folders; and is opened by describe alone."""
    for session in ("../5e", "a/b", "", "a b"):
        with pytest.raises(ProtocolError, match="partition 4: the name of the session is no name"):
            kind.describe(kind.make(), session=session)
    client = kind.make()
    kind.describe(client)
    with pytest.raises(ProtocolError, match="does not take part in phase 'online-personal'; serve"):
        client.fit([], {"phase": "online-personal"})


@every_kind
def test_a_table_must_not_change_in_a_run(kind: Kind) -> None:
    place = context()
    kind.describe(kind.make(place))
    kind.describe(kind.make(place))
    text = "partition 4: its table is not the one with which this run began; bring that table back"
    for change in ({"x": X * [[1.0], [1.0], [1.0], [1.0 - 1e-9]]}, {"y": [1, 1, 1, 0]}):
        with pytest.raises(TableError, match=text):
            kind.describe(kind.make(place, **change))


# -- what is written and remembered


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ((), {"id": "z,1", "output_0": "0.25", "output_1": "-0.5"}),
        (
            (2000002, 7, 1.5),
            {"id": "z,1", "output_0": "0.25", "output_1": "-0.5", "class": "2000002"},
        ),
        (
            ("owl", "cat", "dog"),
            {"id": "z,1", "output_0": "0.25", "output_1": "-0.5", "class": "owl"},
        ),
    ],
)
def test_predictions_are_written_for_this_party_s_eyes(
    classes: Any, expected: Table, tmp_path: Path
) -> None:
    """In the order of its table, classes as they were declared."""
    table = PartyTable(
        "p", X, None, None, X[:2], None, ["z,1", 'q"'], columns=None, classes=classes,
        label_bound=1.0,
    )  # fmt: skip
    path = tmp_path / "out" / "predictions.csv"
    outputs = np.array([[0.5, 1.0], [0.25, -0.5]])
    if classes:
        outputs, expected = np.c_[outputs, [[-1.0], [-1.0]]], {**expected, "output_2": "-1.0"}
    table.write_predictions(path, np.array([1, 0]), outputs)
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == expected
    assert [row["id"] for row in rows] == ["z,1", 'q"']


names = st.text("abcdefgh", min_size=1, max_size=8)


@given(
    settings=st.dictionaries(names, st.integers() | st.text(max_size=5) | st.booleans()),
    seed=st.binary(max_size=32),
    arrays=st.dictionaries(names, st.lists(st.floats(allow_nan=False), max_size=4)),
)
def test_what_a_party_remembers_survives_as_bytes(
    settings: dict[str, Any], seed: bytes, arrays: dict[str, list[float]]
) -> None:
    kept = RunState(settings, seed, {name: np.array(value) for name, value in arrays.items()})
    again = RunState.unpack(kept.pack())
    assert (again.settings, again.seed) == (settings, seed)
    assert {name: value.tolist() for name, value in again.arrays.items()} == arrays


def test_a_state_shows_no_secret_in_its_text() -> None:
    kept = RunState({"landmarks": 3}, b"\x5e" * 32)
    assert "5e5e" not in repr(kept)
    assert "^^" not in repr(kept)
    assert kept.begun
    assert not RunState.unpack(b"").begun
