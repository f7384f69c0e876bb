"""Groups: who belongs to which, which rows belong together, and their consensus."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refuses

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.groups import consensus, members
from fedkern_flwr.groups.messages import SVMDescribeReply


def party(partition: int, role: str = "user", group: int = 0, **more: Any) -> SVMDescribeReply:
    own: dict[str, Any] = {"partition": partition, "role": role, "group": group, "partitions": 7}
    own |= {"rows": 0 if role == "agent" else 3, "test_rows": 0, "restored": True}
    own |= {"features": 2 if role == "user" else 0, "columns": "c", "outputs": 1, "classes": 2}
    own |= {"labels": "l", "label_bound": 1.0, "labelled": False, "named": True}
    own |= {"spelled": ids()}
    return SVMDescribeReply(**{**own, "allow_single": False, "ids": ids(), **more})


def ids(*numbers: int) -> np.ndarray:
    return np.array([[k, k] for k in numbers], np.uint64).reshape(-1, 2)


PARTIES = [party(0), party(1), party(2, group=5), party(3, "agent"), party(4, "agent", 5)]


def test_groups_are_read_in_order_of_their_numbers() -> None:
    found = members.read_groups(PARTIES, layers=True)
    assert [(g.number, g.agent, g.users) for g in found] == [(0, 3, (0, 1)), (5, 4, (2,))]
    assert found[0].members == [0, 1, 3]
    (one,) = members.read_groups(PARTIES[:3], layers=False)
    assert (one.agent, one.users) == (-1, (0, 1, 2))
    for parties in (PARTIES[:4], *([*PARTIES, party(5, "agent", group)] for group in (0, 9))):
        refuses("FK-GROUPS-SHAPE", members.read_groups, parties, layers=True)


@pytest.mark.parametrize("who", [("server", 0), ("user", -1), ("agent", -1), ("owner", -2)])
def test_roles_and_clashes(who: tuple[str, int]) -> None:
    with pytest.raises(ProtocolError):
        members.check_parties([party(0, partitions=2), party(1, *who, partitions=2)])


def test_users_of_a_horizontal_split_must_agree() -> None:
    assert members.check_horizontal(PARTIES).partition == 0
    for change in ({"outputs": 2}, {"classes": 3}, {"labels": "m"}, {"label_bound": 2.0}):
        refuses("FK-CLASSES-DIFFER", members.check_horizontal, [party(0), party(1, **change)])
    for change in ({"rows": 0}, {"outputs": 0}):
        refuses("FK-LABELS-MISSING", members.check_horizontal, [party(0), party(1, **change)])
    for change in ({"features": 3}, {"columns": "d"}):
        refuses("FK-COLUMNS-DIFFER", members.check_horizontal, [party(0), party(1, **change)])


@pytest.mark.promise("svm-alone")
def test_single_users() -> None:
    found = members.read_groups(PARTIES, layers=True)
    refuses("FK-GROUPS-SINGLE", members.check_single, found, PARTIES, allow_single=False)
    others = [replace(p, allow_single=p.partition != 2) for p in PARTIES]
    for parties in (PARTIES, others):
        refuses("FK-ALONE-REFUSED", members.check_single, found, parties, allow_single=True)
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


def joined(parties: list[SVMDescribeReply], **how: bool) -> tuple[Any, tuple[int, int, int]]:
    """Return the plan by which rows meet those of the owner, and how many learn, are, and go."""
    plan = members.match_rows(parties, members.read_groups(parties, layers=True), **how)
    owner = parties[6].ids[plan.owner]
    for k in range(4):
        np.testing.assert_array_equal(parties[k].ids[plan.take[k]], owner[plan.place[k]])
    return plan, (plan.rows, plan.all_rows, plan.dropped)


def test_rows_are_joined() -> None:
    parties = column_parties()
    plan, sizes = joined(parties, drop=False)
    assert sizes == (4, 6, 0)
    np.testing.assert_array_equal(plan.learned(0), [1, 3])
    for users in ((0, 1), (2, 3)):
        places = np.concatenate([plan.place[k] for k in users])
        np.testing.assert_array_equal(np.sort(places), np.arange(6))


def test_rows_that_are_missing() -> None:
    parties = column_parties()
    parties[2] = replace(parties[2], ids=ids(3, 1))
    refuses("FK-ROWS-LACKING", joined, parties, drop=False)
    plan, sizes = joined(parties, drop=True)
    assert sizes == (3, 5, 1)
    assert 4 not in parties[6].ids[plan.owner]
    empty = [replace(p, ids=ids()) if p.partition in (2, 3) else p for p in parties]
    refuses("FK-IDS-APART", joined, empty, drop=True)


def test_held_out_rows_alone_are_matched_for_predictions() -> None:
    parties = column_parties()
    plan, sizes = joined(parties, drop=False, held_out=True)
    assert sizes == (0, 2, 0)
    np.testing.assert_array_equal(plan.owner, [4, 5])
    assert not any(plan.learned(k).size for k in range(4))
    places = np.concatenate([plan.place[k] for k in (2, 3)])
    np.testing.assert_array_equal(np.sort(places), [0, 1])
    parties[6] = replace(parties[6], test_rows=0, ids=parties[6].ids[:4])
    refuses("FK-TEST-NONE", joined, parties, drop=True, held_out=True)


@pytest.mark.parametrize(("who", "change", "code"), [
    (6, {"ids": ids(2, 2, 4)}, "FK-IDS-DUPLICATE"), (1, {"ids": ids(1, 2, 3, 5)}, "FK-IDS-PARTIES"),
])  # fmt: skip
def test_tables_that_cannot_be_joined(who: int, change: dict[str, Any], code: str) -> None:
    parties = column_parties()
    parties[who] = replace(parties[who], **change)
    refuses(code, joined, parties, drop=True)


@pytest.mark.parametrize(("who", "change", "code"), [
    (6, {"rows": 0}, "FK-LABELS-MISSING"), (6, {"outputs": 0}, "FK-LABELS-MISSING"),
    (1, {"outputs": 1}, "FK-ROLE-DATA"), (1, {"columns": "d"}, "FK-COLUMNS-DIFFER"),
])  # fmt: skip
def test_nodes_that_fit_no_vertical_split(who: int, change: dict[str, Any], code: str) -> None:
    parties = column_parties()
    found = members.read_groups(parties, layers=True)
    assert members.check_vertical(parties, found).partition == 6
    parties[who] = replace(parties[who], **change)
    refuses(code, members.check_vertical, parties, found)
    for k in (0, 1):
        parties[k] = replace(parties[k], features=0)
    with refused(code, "FK-COLUMNS-NONE"):
        members.check_vertical(parties, found)


# -- consensus: updates are the minima that they stand for; who may advance

RNG = np.random.default_rng(0)


def fit(x: np.ndarray, *, standardised: bool = True) -> consensus.Coordinates:
    return consensus.Coordinates.fit(x.mean(0), (x**2).mean(0), standardised=standardised)


@pytest.mark.parametrize("standardised", [True, False])
def test_coordinates_change_neither_outputs_nor_penalties(standardised: bool) -> None:
    x = RNG.standard_normal((30, 3)) * [1.0, 100.0, 0.01] + [0.0, 5.0, 3.0]
    own = fit(x, standardised=standardised)
    rows, w = own.rows(x), RNG.standard_normal((2, 4))
    np.testing.assert_allclose(rows[:, :-1].mean(0), 0.0, atol=1e-8)
    np.testing.assert_allclose(rows[:, :-1].std(0), 1.0, rtol=1e-6)
    assert (rows[:, -1] == 1.0).all()
    weights, bias = own.model(w)
    np.testing.assert_allclose(x @ weights.T + bias, rows @ w.T, rtol=1e-9, atol=1e-9)
    penalised = w[:, :-1] if standardised else weights
    np.testing.assert_allclose(consensus.penalties_of(w, own.ridge()), 0.5 * (penalised**2).sum(1))


def test_constant_columns_and_the_identity() -> None:
    x = np.column_stack([np.full(9, 1e6), np.zeros(9), np.arange(9.0)])
    own = fit(x)
    np.testing.assert_array_equal(own.deviation[:2], 1.0)
    np.testing.assert_allclose(own.rows(x)[:, :2], 0.0)
    same = consensus.Coordinates.identity(3)
    np.testing.assert_array_equal(same.rows(x)[:, :-1], x)
    np.testing.assert_array_equal(same.ridge(), [1.0, 1.0, 1.0, 0.0])


def test_centers_are_minima() -> None:
    """z_i and z minimise the augmented Lagrangian: no step in any direction lowers it."""
    w, r = RNG.standard_normal((2, 5, 2, 4))
    h, s = RNG.standard_normal((2, 2, 4))
    q = np.append(RNG.uniform(0.5, 2.0, 3), 0.0)
    zi = consensus.group_center((w + r).sum(0), 5, 0.7, 1.9, h, s)
    z = consensus.global_center((w + r).sum(0), 0.7, 5, q)

    def lagrangian(zi: np.ndarray) -> float:
        return float(0.35 * ((w - zi + r) ** 2).sum() + 0.95 * ((zi - h + s) ** 2).sum())

    def whole(z: np.ndarray) -> float:
        return consensus.penalties_of(z, q).sum() + 0.35 * float(((w + r - z) ** 2).sum())

    for f, point in ((lagrangian, zi), (whole, z)):
        for _ in range(20):
            step = 1e-3 * RNG.standard_normal((2, 4))
            assert f(point + step) > f(point)
    np.testing.assert_allclose(consensus.relax(w, r, 1.7), w + 0.7 * (w - r))


def test_penalties() -> None:
    assert [consensus.risen(k) for k in (0, 20, 40, 400)] == pytest.approx(
        [1.0, 20**0.5, 20.0, 20.0]
    )
    assert consensus.initial_rho("rising", 2.0) == 2.0
    assert consensus.initial_rho("fixed", 2.0) == consensus.initial_rho("balanced", 2.0) == 6.0
    assert consensus.initial_rho("scaled", 2.0) == 2.0
    few = np.array([9.0, 4.0, 1e9, 1.0, 0.0, 1.0]), np.array([4.0, 9.0, 1.0, 1e9, 1.0, 0.0])
    np.testing.assert_allclose(consensus.balance(*few, 5), [1.5, 2 / 3, 2.0, 0.5, 1.0, 1.0])
    for k in (6, 65):
        np.testing.assert_array_equal(consensus.balance(*few, k), 1.0)
    factor = np.array([1.0, 1.5])
    np.testing.assert_allclose(consensus.growth("rising", 40, factor), 20.0)
    for schedule in ("fixed", "balanced", "scaled"):
        np.testing.assert_array_equal(consensus.growth(schedule, 40, factor), factor)


def test_each_output_has_a_penalty_of_its_own_scale() -> None:
    """Three times the size of the duals in units of the model's; at most three times as before."""
    pull, size = np.array([6.0, 0.06, 60.0, 0.0, 1.0]), np.array([3.0, 3.0, 3.0, 3.0, 0.0])
    rho = np.array([5.0, 0.1, 1.0, 1.0, 1.0])
    np.testing.assert_allclose(consensus.scale(pull, size, rho, 40), [6 / 5, 0.6, 3.0, 1.0, 1.0])
    for k in (1, 44, 45):
        np.testing.assert_array_equal(consensus.scale(pull, size, rho, k), 1.0)
    now, residuals = np.full(5, 2.0), consensus.Residuals(size, size, pull, pull)
    np.testing.assert_allclose(
        consensus.next_growth("scaled", now, residuals, rho, 5)[:2], [12 / 5, 1.2]
    )
    for schedule in ("rising", "fixed"):
        np.testing.assert_array_equal(consensus.next_growth(schedule, now, residuals, rho, 5), now)


@pytest.mark.promise("svm-every-class")
def test_residuals() -> None:
    """They are small when those of every output are: a total would be that of frequent classes."""
    own = consensus.Residuals(*np.array([[1.0, 30.0], [200.0, 40.0], [3.0, 1.0], [4.0, 100.0]]))
    assert own.largest() == (0.75, 0.75)
    assert own.small(0.75)
    assert not own.small(0.74)
    rare = consensus.Residuals(*np.array([[1.0, 0.9], [1e6, 1.0], [0.0, 0.0], [1e6, 1.0]]))
    assert not rare.small(0.8)
    assert not consensus.Residuals.unknown(2).small(0.99)  # nothing is known yet
    np.testing.assert_allclose(consensus.norms(np.array([[3.0, 4.0], [0.0, 2.0]])), [5.0, 2.0])


@given(
    st.dictionaries(st.integers(0, 9), st.integers(0, 8), min_size=1),
    st.sets(st.integers(0, 9)),
    st.integers(0, 4),
)
def test_groups_keep_the_bound(done: dict[int, int], ready: set[int], staleness: int) -> None:
    least = min(done.values())
    done = {g: min(t, least + staleness) for g, t in done.items()}
    ready &= set(done)
    found = consensus.may_advance(ready, done, staleness)
    after = {g: t + (g in found) for g, t in done.items()}
    assert found <= ready
    assert max(after.values()) - min(after.values()) <= staleness
    slowest = {g for g in done if done[g] == least}
    assert (slowest & ready) <= found or (staleness == 0 and not slowest <= ready)
    if slowest <= ready:
        assert found == ready  # then nobody is beyond the bound
    if staleness == 0:
        assert found in (set(), set(done))
