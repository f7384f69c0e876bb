"""Who holds which rows of a vertical split: what is matched, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.alignment import hash_ids
from fedkern_flwr.errors import (
    CohortError,
    FedKernError,
    OptionError,
    ProtocolError,
    SmallCohortError,
    TableError,
)
from fedkern_flwr.vertical.messages import VerticalDescribeReply
from fedkern_flwr.vertical.parties import check_alone, check_parties, make_plan

KEY = bytes(range(16))


def party(
    partition: int,
    *,
    rows: Any = (),
    tests: Any = (),
    others: Any = (),
    partitions: int = 3,
    **more: Any,
) -> VerticalDescribeReply:
    """Describe a party by the ids of its rows; one with labels is active."""
    active = bool(len(rows) or len(tests))
    ids = [str(i) for i in (*rows, *tests, *others)]
    fields: dict[str, Any] = {
        "partition": partition,
        "partitions": partitions,
        "role": "active" if active else "passive",
        "rows": len(rows),
        "features": 2,
        "test_rows": len(tests),
        "columns": "c",
        "restored": True,
        "others": len(others),
        "outputs": 1 if active else 0,
        "classes": 2 if active else 0,
        "labels": "two" if active else "",
        "label_bound": 1.0,
        "labelled": True,
        "named": True,
        "allow_single": False,
        "ids": hash_ids(ids, KEY, "s"),
    }
    return VerticalDescribeReply(**{**fields, **more})


def three(**more: Any) -> list[VerticalDescribeReply]:
    """One active party and two passive ones that know a few more people."""
    return [
        party(0, rows="abcd", tests="ef", **more),
        party(1, others="xfedcba"),
        party(2, others="cadbfey"),
    ]


def spelled(parties: list[VerticalDescribeReply], plan: Any, names: dict[int, str]) -> list[str]:
    """Return for each row of a plan how the parties call it."""
    return ["".join(names[p][i] for p, i in row) for row in
            ([(p, plan.rows[p][k]) for p in names] for k in range(plan.total))]  # fmt: skip


def test_rows_are_matched_whoever_has_them_where() -> None:
    plan = make_plan(three(), "error")
    assert plan.parties == (0, 1, 2)
    assert plan.actives == (0,)
    assert plan.train == {0: slice(0, 4)}
    assert plan.test == {0: slice(4, 6)}
    assert (plan.total, plan.training_rows, plan.test_rows, plan.dropped) == (6, 4, 2, 0)
    names = {0: "abcdef", 1: "xfedcba", 2: "cadbfey"}
    assert spelled(three(), plan, names) == [3 * i for i in "abcdef"]
    assert plan.report() == {
        "active_parties": {"0": {"training_rows": 4, "held_out_rows": 2}},
        "passive_parties": [1, 2],
        "dropped_rows": 0,
    }


def test_several_active_parties_have_slices_of_their_own() -> None:
    parties = [
        party(0, rows="ab", tests="e", others="cdfg"),
        party(1, others="gfedcba"),
        party(2, rows="dc", tests="fg", others="eab"),
    ]
    plan = make_plan(parties, "error")
    assert plan.actives == (0, 2)
    assert plan.train == {0: slice(0, 2), 2: slice(2, 4)}
    assert plan.test == {0: slice(4, 5), 2: slice(5, 7)}
    names = {0: "abecdfg", 1: "gfedcba", 2: "dcfgeab"}
    assert spelled(parties, plan, names) == [3 * i for i in "abdcefg"]
    later = make_plan(parties, "error", predict=True)
    assert later.train == {0: slice(0, 0), 2: slice(0, 0)}
    assert spelled(parties, later, names) == [3 * i for i in "efg"]


@given(st.data())
def test_plans_of_any_tables(data: Any) -> None:
    """Each kept row is the same person at all parties; what is left out is lacked by somebody."""
    people = data.draw(st.permutations("abcdefghijkl"))
    cut = data.draw(st.integers(1, 11))
    sets: dict[int, str] = {}
    parties = []
    for k in range(2):
        mine = people[k::2]
        rows = [p for p in mine if people.index(p) < cut]
        tests = [p for p in mine if people.index(p) >= cut]
        more = data.draw(st.permutations([p for p in people if p not in mine]))
        more = more[: data.draw(st.integers(0, len(more)))]
        sets[k] = "".join([*rows, *tests, *more])
        parties.append(party(k, rows=rows, tests=tests, others=more))
    order = data.draw(st.permutations(people))
    sets[2] = "".join(order[: data.draw(st.integers(0, 12))])
    parties.append(party(2, others=sets[2]))
    common = [p for p in people if all(p in held for held in sets.values())]
    if not any(people.index(p) < cut for p in common):
        with pytest.raises(FedKernError):
            make_plan(parties, "drop-row")
        return
    plan = make_plan(parties, "drop-row")
    assert plan.dropped == 12 - len(common)
    found = spelled(parties, plan, sets)
    assert sorted(found) == sorted(3 * p for p in common)
    for k in range(2):
        learned = {p for p in common if people.index(p) < cut and p in people[k::2]}
        assert {name[0] for name in found[plan.train[k]]} == learned
    if len(common) < 12:
        with pytest.raises(ProtocolError, match=r"it does not hold|it holds none"):
            make_plan(parties, "error")


def without_names(count: int, k: int) -> VerticalDescribeReply:
    return party(k, others=range(count), named=False)


SAME = {"others": "abcdef"}
REFUSED: dict[str, tuple[list[VerticalDescribeReply], type[FedKernError], str]] = {
    "no active party": (
        [party(0, **SAME), party(1, **SAME)],
        CohortError,
        "phase describe: there is no active party: nobody has labels; start at least one node wit",
    ),
    "one party": (
        [party(0, rows="ab")],
        SmallCohortError,
        "phase describe: there is one party: no columns are split; start the nodes that hold",
    ),
    "a row is lacking": (
        [party(0, rows="abc"), party(1, others="ab"), party(2, others="abc")],
        ProtocolError,
        "partition 1, phase describe: it does not hold 1 of the 3 rows with labels; check the ids",
    ),
    "no row is there": (
        [party(0, rows="abc"), party(1, others="xyz")],
        ProtocolError,
        "partition 1, phase describe: it holds none of the 3 rows; check its id column and that",
    ),
    "two labels of a row": (
        [party(0, rows="abc"), party(1, rows="c", others="ab")],
        ProtocolError,
        "phase describe: 1 rows have labels at two parties, or are held out and learned from; keep",
    ),
    "held out and learned from": (
        [party(0, rows="abc", others="d"), party(1, tests="cd", others="ab")],
        ProtocolError,
        "phase describe: 1 rows have labels at two parties, or are held out and learned from; keep",
    ),
    "other classes": (
        [party(0, rows="ab", others="c"), party(1, rows="c", others="ab", labels="cats, dogs")],
        ProtocolError,
        "partition 1, phase describe: its labels differ from those of partition 0 in number of ou",
    ),
    "another bound": (
        [party(0, rows="ab", others="c"), party(1, rows="c", others="ab", label_bound=2.0)],
        ProtocolError,
        "partition 1, phase describe: its labels differ from those of partition 0",
    ),
    "no ids at one": (
        [party(0, rows="abc"), party(1, others="abc", named=False)],
        ProtocolError,
        "partition 1, phase describe: its rows have no ids, those of other parties have; give all",
    ),
    "no ids at the first": (
        [party(0, rows="abc", named=False), party(1, others="abc")],
        ProtocolError,
        "partition 0, phase describe: its rows have no ids, those of other parties have; give all",
    ),
    "no ids, other numbers": (
        [party(0, rows=range(3), named=False), without_names(4, 1)],
        ProtocolError,
        "partition 1, phase describe: it has 4 rows without ids, partition 0 has 3; bring the same",
    ),
    "no features": (
        [party(0, rows="abc", features=0), party(1, others="abc", features=0)],
        TableError,
        "no party has features; give at least one a feature column",
    ),
    "nothing to learn from": (
        [party(0, tests="abc"), party(1, others="abc")],
        CohortError,
        "there are no labelled rows to learn from; check the tables",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_parties_that_do_not_fit_together_are_refused(name: str) -> None:
    parties, kind, text = REFUSED[name]
    with pytest.raises(kind, match=f"^{text}") as caught:
        make_plan(parties, "error")
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


def test_nothing_in_common_is_an_error_whatever_is_allowed() -> None:
    parties = [party(0, rows="abc"), party(1, others="ax"), party(2, others="bx")]
    with pytest.raises(ProtocolError, match="no row is held by all parties; check the ids"):
        make_plan(parties, "drop-row")
    only_tests = [party(0, rows="ab", tests="c"), party(1, others="c")]
    with pytest.raises(CohortError, match="there are no labelled rows to learn from"):
        make_plan(only_tests, "drop-row")
    with pytest.raises(CohortError, match="there are no rows to predict"):
        make_plan([party(0, rows="ab"), party(1, others="ab")], "error", predict=True)


# -- descriptions


def test_descriptions_that_cannot_be_are_refused() -> None:
    check_parties(three())
    for change, kind, text in (
        ({"role": "server"}, ProtocolError, "partition 0, phase describe: it is neither an active"),
        (
            {"test_rows": 5},
            ProtocolError,
            "partition 0, phase describe: its hashes of ids do not fit",
        ),
        ({"ids": np.zeros((6, 2), np.uint32)}, ProtocolError, "its hashes of ids do not fit"),
        (
            {"ids": np.zeros((6, 2), np.uint64)},
            TableError,
            "partition 0: 5 duplicate ids; keep one row per id",
        ),
        ({"partitions": 4}, FedKernError, "partition"),
    ):
        with pytest.raises(kind, match=text) as caught:
            check_parties(three(**change))
        assert "\n" not in str(caught.value)
    with pytest.raises(FedKernError, match="two nodes have partition-id 1"):
        check_parties([*three(), party(1, others="abcdef")])


# -- a single other party


def alone(parties: list[VerticalDescribeReply], **options: bool) -> None:
    check_alone(make_plan(parties, "error"), parties, **{"allow_single": False, **options})


def test_the_phases_of_a_single_other_party_are_not_shown() -> None:
    """Unless the run and that party allow it."""
    two = [party(0, rows="abc"), party(1, others="abc")]
    with pytest.raises(OptionError, match="partition 1 alone has columns beside partition 0, whic"):
        alone(two)
    with pytest.raises(ProtocolError, match="partition 1, phase describe: partition 0 would learn"):
        alone(two, allow_single=True)
    two[1] = party(1, others="abc", allow_single=True)
    alone(two, allow_single=True)
    with pytest.raises(OptionError, match=r"remedy|let more parties take part, or allow it with"):
        alone(two)


def test_parties_without_columns_do_not_count() -> None:
    bare = party(2, others="abc", features=0)
    with pytest.raises(OptionError, match="partition 1 alone has columns beside partition 0"):
        alone([party(0, rows="abc"), party(1, others="abc"), bare])
    with pytest.raises(OptionError, match="partition 1 alone has columns beside partition 0"):
        alone([party(0, rows="abc", features=0), party(1, others="abc"), bare])
    alone(three())
    alone(three(features=0))  # the active party has labels only, two others have columns
    alone([party(0, rows="abc"), party(1, others="abc", features=0), bare])  # none is shown


def test_every_active_party_is_looked_at() -> None:
    """The first has two others with columns, the second, which has some, has one only."""
    parties = [
        party(0, rows="ab", others="c", features=0),
        party(1, rows="c", others="ab"),
        party(2, others="abc"),
    ]
    with pytest.raises(OptionError, match="partition 2 alone has columns beside partition 1"):
        alone(parties)
    allowing = party(2, others="abc", allow_single=True)
    alone([parties[0], parties[1], allowing], allow_single=True)
    both = [party(0, rows="ab", others="c"), party(1, rows="c", others="ab", allow_single=True)]
    with pytest.raises(ProtocolError, match="partition 0, phase describe: partition 1 would learn"):
        alone(both, allow_single=True)
