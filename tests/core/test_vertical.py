"""Who holds which rows of a vertical split: what is matched, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from fedkern_flwr.alignment import hash_ids
from fedkern_flwr.errors import CohortError, FedKernError, ProtocolError, SmallCohortError
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
    fields: dict[str, Any] = {"partition": partition, "partitions": partitions}
    fields |= {"role": "active" if active else "passive", "features": 2, "columns": "c"}
    fields |= {"rows": len(rows), "test_rows": len(tests), "others": len(others)}
    fields |= {"outputs": int(active), "classes": 2 * active, "labels": "two" * active}
    fields |= {"label_bound": 1.0, "labelled": True, "named": True, "allow_single": False}
    fields |= {"restored": True, "ids": hash_ids(ids, KEY, "s")}
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
        with refused("FK-ROWS-LACKING", "FK-IDS-APART"):
            make_plan(parties, "error")


TWICE = "FK-LABELS-TWICE"
REFUSED: dict[str, tuple[list[VerticalDescribeReply], str]] = {
    "no active party": ([party(k, others="abc") for k in (0, 1)], "FK-LABELS-NOBODY"),
    "one party": ([party(0, rows="ab")], "FK-PARTIES-FEW"),
    "a row is lacking": ([party(0, rows="abc"), party(1, others="ab")], "FK-ROWS-LACKING"),
    "no row is there": ([party(0, rows="abc"), party(1, others="xyz")], "FK-IDS-APART"),
    "two labels of a row": ([party(0, rows="abc"), party(1, rows="c", others="ab")], TWICE),
    "held out and learned from": (
        [party(0, rows="abc", others="d"), party(1, tests="cd", others="ab")],
        TWICE,
    ),
    **{
        f"other {name}": (
            [party(0, rows="ab", others="c"), party(1, rows="c", others="ab", **{name: value})],
            "FK-CLASSES-DIFFER",
        )
        for name, value in (("labels", "cats, dogs"), ("label_bound", 2.0))
    },
    "no ids at one": (
        [party(0, rows="abc"), party(1, others="abc", named=False)],
        "FK-IDS-MISSING",
    ),
    "no ids at the first": (
        [party(0, rows="abc", named=False), party(1, others="abc")],
        "FK-IDS-MISSING",
    ),
    "no ids, other numbers": (
        [party(0, rows=range(3), named=False), party(1, others=range(4), named=False)],
        "FK-ROWS-DIFFER",
    ),
    "no features": (
        [party(0, rows="abc", features=0), party(1, others="abc", features=0)],
        "FK-FEATURES-NONE",
    ),
    "nothing to learn from": ([party(0, tests="abc"), party(1, others="abc")], "FK-ROWS-NONE"),
}


@pytest.mark.promise("fdskl-misfits")
@pytest.mark.parametrize("name", REFUSED)
def test_parties_that_do_not_fit_together_are_refused(name: str) -> None:
    parties, code = REFUSED[name]
    with refused(code) as caught:
        make_plan(parties, "error")
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, SmallCohortError) == (name == "one party")


def test_nothing_in_common_is_an_error_whatever_is_allowed() -> None:
    parties = [party(0, rows="abc"), party(1, others="ax"), party(2, others="bx")]
    with refused("FK-IDS-APART", kind=ProtocolError):
        make_plan(parties, "drop-row")
    with refused("FK-ROWS-NONE", kind=CohortError):
        make_plan([party(0, rows="ab", tests="c"), party(1, others="c")], "drop-row")
    with refused("FK-TEST-NONE", kind=CohortError):
        make_plan([party(0, rows="ab"), party(1, others="ab")], "error", predict=True)


def test_descriptions_that_cannot_be_are_refused() -> None:
    check_parties(three())
    for change, code in (
        ({"role": "server"}, "FK-NODE-METHOD"),
        ({"test_rows": 5}, "FK-MESSAGE-SHAPE"),
        ({"ids": np.zeros((6, 2), np.uint32)}, "FK-MESSAGE-SHAPE"),
        ({"ids": np.zeros((6, 2), np.uint64)}, "FK-IDS-DUPLICATE"),
    ):
        with refused(code):
            check_parties(three(**change))


# -- a single other party


def alone(parties: list[VerticalDescribeReply], allow_single: bool = False) -> None:
    check_alone(make_plan(parties, "error"), parties, allow_single=allow_single)


@pytest.mark.promise("fdskl-alone")
def test_the_phases_of_a_single_other_party_are_not_shown() -> None:
    """Unless the run and that party allow it; parties without columns do not count."""
    two = [party(0, rows="abc"), party(1, others="abc")]
    bare = party(2, others="abc", features=0)
    labels_alone = party(0, rows="abc", features=0)
    for parties in (two, [*two, bare], [labels_alone, two[1], bare]):
        with refused("FK-COLUMNS-ALONE"):
            alone(parties)
    with refused("FK-COLUMNS-ALONE") as caught:
        alone(two, allow_single=True)
    assert caught.value.party == "partition 1"
    two[1] = party(1, others="abc", allow_single=True)
    alone(two, allow_single=True)
    with refused("FK-COLUMNS-ALONE"):
        alone(two)
    alone(three())
    alone(three(features=0))  # the active party has labels only, two others have columns
    alone([two[0], party(1, others="abc", features=0), bare])  # none is shown


def test_every_active_party_is_looked_at() -> None:
    """The first has two others with columns, the second, which has some, has one only."""
    first, second = party(0, rows="ab", others="c", features=0), party(1, rows="c", others="ab")
    with refused("FK-COLUMNS-ALONE"):
        alone([first, second, party(2, others="abc")])
    alone([first, second, party(2, others="abc", allow_single=True)], allow_single=True)
    both = [party(0, rows="ab", others="c"), party(1, rows="c", others="ab", allow_single=True)]
    with refused("FK-COLUMNS-ALONE") as caught:
        alone(both, allow_single=True)
    assert caught.value.party == "partition 0"
