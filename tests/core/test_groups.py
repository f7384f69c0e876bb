"""Who belongs to which group, and which rows belong together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from refusals import refused

from fedkern_flwr.errors import FedKernError, ProtocolError
from fedkern_flwr.groups import members
from fedkern_flwr.groups.messages import SVMDescribeReply


def party(partition: int, role: str = "user", group: int = 0, **more: Any) -> SVMDescribeReply:
    rows = more.pop("rows", 0 if role == "agent" else 3)
    fields: dict[str, Any] = {
        "partitions": 7,
        "features": 2 if role == "user" else 0,
        "test_rows": 0,
        "columns": "c",
        "restored": True,
        "outputs": 1,
        "classes": 2,
        "labels": "l",
        "label_bound": 1.0,
        "labelled": False,
        "named": True,
        "allow_single": False,
        "ids": np.zeros((0, 2), np.uint64),
    }
    return SVMDescribeReply(
        partition=partition, role=role, rows=rows, group=group, **{**fields, **more}
    )


def ids(*numbers: int) -> np.ndarray:
    return np.array([[k, k] for k in numbers], np.uint64).reshape(-1, 2)


PARTIES = [party(0), party(1), party(2, group=5), party(3, "agent"), party(4, "agent", 5)]


def test_groups_are_read_in_order_of_their_numbers() -> None:
    found = members.read_groups(PARTIES, layers=True)
    assert [(g.number, g.agent, g.users) for g in found] == [(0, 3, (0, 1)), (5, 4, (2,))]
    assert found[0].members == [0, 1, 3]
    (one,) = members.read_groups(PARTIES[:3], layers=False)
    assert (one.agent, one.users) == (-1, (0, 1, 2))


@pytest.mark.parametrize(
    ("parties", "layers", "code"),
    [
        (PARTIES[:4], True, "FK-GROUPS-SHAPE"),
        ([*PARTIES, party(5, "agent")], True, "FK-GROUPS-SHAPE"),
        ([*PARTIES, party(5, "agent", 9)], True, "FK-GROUPS-SHAPE"),
        (PARTIES, False, "FK-GROUPS-NO-AGENT"),
    ],
)
def test_incomplete_groups_are_refused(parties: Any, layers: bool, code: str) -> None:
    with refused(code):
        members.read_groups(parties, layers=layers)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (party(1, "server"), ProtocolError),
        (party(1, group=-1), ProtocolError),
        (party(1, "agent", -1), ProtocolError),
        (party(1, "owner", -2), ProtocolError),
        (party(0), FedKernError),
    ],
)
def test_roles_and_clashes(wrong: SVMDescribeReply, error: type[Exception]) -> None:
    with pytest.raises(error):
        members.check_parties([replace(party(0), partitions=2), replace(wrong, partitions=2)])


def test_users_of_a_horizontal_split_must_agree() -> None:
    assert members.check_horizontal(PARTIES).partition == 0
    for change in ({"outputs": 2}, {"classes": 3}, {"labels": "m"}, {"label_bound": 2.0}):
        with refused("FK-CLASSES-DIFFER"):
            members.check_horizontal([party(0), party(1, **change)])
    for change in ({"rows": 0}, {"outputs": 0}):
        with refused("FK-LABELS-MISSING"):
            members.check_horizontal([party(0), party(1, **change)])
    for change in ({"features": 3}, {"columns": "d"}):
        with refused("FK-COLUMNS-DIFFER"):
            members.check_horizontal([party(0), party(1, **change)])


@pytest.mark.promise("svm-alone")
def test_single_users() -> None:
    found = members.read_groups(PARTIES, layers=True)
    with refused("FK-GROUPS-SINGLE"):
        members.check_single(found, PARTIES, allow_single=False)
    others = [replace(p, allow_single=p.partition != 2) for p in PARTIES]
    for parties in (PARTIES, others):
        with refused("FK-ALONE-REFUSED"):
            members.check_single(found, parties, allow_single=True)
    willing = [replace(p, allow_single=True) for p in PARTIES]
    members.check_single(found, willing, allow_single=True)
    members.check_single(
        members.read_groups(PARTIES[:3], layers=False), PARTIES[:3], allow_single=False
    )


def column_parties() -> list[SVMDescribeReply]:
    """Two groups of two users; the owner has rows 1 .. 6, of which 5 and 6 are held out."""
    blank = {"outputs": 0, "classes": 0}
    return [
        party(0, ids=ids(2, 4, 6), rows=2, test_rows=1, **blank),
        party(1, ids=ids(1, 3, 5, 9), rows=2, test_rows=2, **blank),
        party(2, group=1, ids=ids(3, 1, 4), rows=3, **blank),
        party(3, group=1, ids=ids(2, 6, 5), rows=1, test_rows=2, **blank),
        party(4, "agent", 0, **blank),
        party(5, "agent", 1, **blank),
        party(6, "owner", -1, ids=ids(1, 2, 3, 4, 5, 6), rows=4, test_rows=2),
    ]


def test_rows_are_joined() -> None:
    parties = column_parties()
    found = members.read_groups(parties, layers=True)
    assert members.check_vertical(parties, found).partition == 6
    plan = members.match_rows(parties, found, drop=False)
    assert (plan.rows, plan.all_rows, plan.dropped) == (4, 6, 0)
    owner = parties[6].ids[plan.owner]
    for k in range(4):
        np.testing.assert_array_equal(parties[k].ids[plan.take[k]], owner[plan.place[k]])
    np.testing.assert_array_equal(plan.learned(0), [1, 3])
    for users in ((0, 1), (2, 3)):
        places = np.concatenate([plan.place[k] for k in users])
        np.testing.assert_array_equal(np.sort(places), np.arange(6))


def test_rows_that_are_missing() -> None:
    parties = column_parties()
    parties[2] = replace(parties[2], ids=ids(3, 1))
    found = members.read_groups(parties, layers=True)
    with refused("FK-ROWS-LACKING"):
        members.match_rows(parties, found, drop=False)
    plan = members.match_rows(parties, found, drop=True)
    assert (plan.rows, plan.all_rows, plan.dropped) == (3, 5, 1)
    owner = parties[6].ids[plan.owner]
    assert 4 not in owner
    for k in range(4):
        np.testing.assert_array_equal(parties[k].ids[plan.take[k]], owner[plan.place[k]])
    empty = [replace(p, ids=ids()) if p.partition in (2, 3) else p for p in parties]
    with refused("FK-IDS-APART"):
        members.match_rows(empty, found, drop=True)


def test_held_out_rows_alone_are_matched_for_predictions() -> None:
    parties = column_parties()
    found = members.read_groups(parties, layers=True)
    plan = members.match_rows(parties, found, drop=False, held_out=True)
    assert (plan.rows, plan.all_rows, plan.dropped) == (0, 2, 0)
    np.testing.assert_array_equal(plan.owner, [4, 5])
    owner = parties[6].ids[plan.owner]
    for k in range(4):
        np.testing.assert_array_equal(parties[k].ids[plan.take[k]], owner[plan.place[k]])
        assert plan.learned(k).size == 0
    places = np.concatenate([plan.place[k] for k in (2, 3)])
    np.testing.assert_array_equal(np.sort(places), [0, 1])
    parties[6] = replace(parties[6], test_rows=0, ids=parties[6].ids[:4])
    with refused("FK-TEST-NONE"):
        members.match_rows(parties, found, drop=True, held_out=True)


@pytest.mark.parametrize(
    ("who", "change", "code"),
    [
        (0, {"ids": ids(2, 2, 4)}, "FK-IDS-DUPLICATE"),
        (6, {"ids": ids(2, 2, 4)}, "FK-IDS-DUPLICATE"),
        (1, {"ids": ids(1, 2, 3, 5)}, "FK-IDS-PARTIES"),
        (3, {"named": False}, "FK-IDS-SOME"),
    ],
)
def test_tables_that_cannot_be_joined(who: int, change: dict[str, Any], code: str) -> None:
    parties = column_parties()
    parties[who] = replace(parties[who], **change)
    with refused(code):
        members.match_rows(parties, members.read_groups(parties, layers=True), drop=True)


@pytest.mark.parametrize(
    ("who", "change", "code"),
    [
        (6, {"rows": 0}, "FK-LABELS-MISSING"),
        (6, {"outputs": 0}, "FK-LABELS-MISSING"),
        (6, {"role": "agent", "group": 2}, "FK-GROUPS-OWNER"),
        (1, {"outputs": 1}, "FK-ROLE-DATA"),
        (1, {"columns": "d"}, "FK-COLUMNS-DIFFER"),
    ],
)
def test_nodes_that_do_not_fit_a_vertical_split(
    who: int, change: dict[str, Any], code: str
) -> None:
    parties = column_parties()
    found = members.read_groups(parties, layers=True)
    parties[who] = replace(parties[who], **change)
    with refused(code):
        members.check_vertical(parties, found)
    for k in (0, 1):
        parties[k] = replace(parties[k], features=0)
    with refused(code, "FK-COLUMNS-NONE"):
        members.check_vertical(parties, found)
