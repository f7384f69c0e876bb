"""Who holds what in FedCG and FDSKL, parties that do not fit, and how many numbers are opened."""

from __future__ import annotations

import math
import secrets
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import raises, refused, refuses
from zoo import fit, quiet

from fedkern_flwr import errors
from fedkern_flwr.alignment import hash_ids
from fedkern_flwr.groups.members import check_parties as check_groups
from fedkern_flwr.groups.messages import SVMFacts
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid import parties as hybrid
from fedkern_flwr.hybrid.messages import HybridDescribeReply
from fedkern_flwr.judging.figures import Yardstick
from fedkern_flwr.planning import Allowance, allowance
from fedkern_flwr.strategies.fed_cg_system import auto_landmarks
from fedkern_flwr.vertical.messages import VerticalDescribeReply, VerticalFacts
from fedkern_flwr.vertical.parties import check_parties as check_vertical
from fedkern_flwr.vertical.parties import make_plan as make_vertical
from fedkern_flwr.wire import DescribeReply

POLICIES: list[Any] = ["error", "drop-row", "neutral"]


def hashes(ids: Any) -> np.ndarray:
    return np.array([(7919 * i % 101, i) for i in ids], np.uint64).reshape(-1, 2)


def party(partition: int, rows: Any, tests: Any = (), **more: Any) -> HybridDescribeReply:
    """Describe a party; with labels it is a hospital."""
    role = more.pop("role", hybrid.HOSPITAL if "outputs" in more else hybrid.CENTRE)
    block = f"centre {partition}" if role == hybrid.CENTRE else "clinical"
    values: dict[str, Any] = {"partition": partition, "partitions": 9, "role": role}
    values |= {"rows": len(rows), "test_rows": len(tests), "ids": hashes([*rows, *tests])}
    values |= {"features": 2, "columns": "a digest", "block": block, "seeded": True}
    values |= {"square_bound": 2.0, "absolute_bound": 2.0, "restored": True}
    values |= {"outputs": 0, "classes": 0, "labels": "", "label_bound": 1.0}
    values |= {"labelled": False, "allow_single": False, "spelled": hashes(())}
    return HybridDescribeReply(**{**values, **more})


def hospital(partition: int, rows: Any, tests: Any = (), **more: Any) -> HybridDescribeReply:
    return party(partition, rows, tests, **{"outputs": 1, "classes": 2, "labels": "0 1", **more})


def wards(plan: hybrid.Plan) -> dict[int, Any]:
    def plain(one: Any) -> Any:
        rows = {p: rows.tolist() for p, rows in one.rows.items()}
        return one.train, one.test, rows, one.dropped, dict(one.lacking)

    return {h: plain(one) for h, one in plan.wards.items()}


# -- matching, against dictionaries


class RefusedError(Exception):
    """The plain implementation finds no plan."""


def plain(parties: list[HybridDescribeReply], missing: str, predict: bool) -> dict[int, Any]:
    """Match the rows one by one."""
    names = {p.partition: [tuple(row) for row in p.ids.tolist()] for p in parties}
    holds = {p.partition: {name: k for k, name in enumerate(names[p.partition])} for p in parties}
    blocks = {p.block for p in parties if p.features}
    centres = [p for p in parties if p.role == hybrid.CENTRE and p.features]
    out: dict[int, Any] = {}
    for h in (p for p in parties if p.role == hybrid.HOSPITAL):
        kept: list[int] = []
        lacking: dict[str, int] = {}
        dropped = candidates = 0
        for place, name in enumerate(names[h.partition]):
            owners = [h.block] * bool(h.features)
            owners += [c.block for c in centres if name in holds[c.partition]]
            if len(owners) != len(set(owners)):
                raise RefusedError
            if predict and place < h.rows:
                continue
            candidates += 1
            absent = blocks - set(owners)
            if absent and missing == "error":
                raise RefusedError
            if absent and missing == "drop-row":
                dropped += 1
                continue
            for block in absent:
                lacking[block] = lacking.get(block, 0) + 1
            kept.append(place)
        if candidates and not kept:
            raise RefusedError
        rows = {h.partition: kept}
        for c in centres:
            found = [holds[c.partition].get(names[h.partition][place], -1) for place in kept]
            if any(position >= 0 for position in found):
                rows[c.partition] = found
        train = sum(place < h.rows for place in kept)
        out[h.partition] = (train, len(kept) - train, rows, dropped, lacking)
    known = {p for _, _, rows, *_ in out.values() for p in rows}
    if not known >= {p.partition for p in parties} or not blocks:
        raise RefusedError
    if not predict and not any(train for train, *_ in out.values()):
        raise RefusedError
    return out


@st.composite
def splits(draw: Any) -> list[HybridDescribeReply]:
    """Hospitals and centres that overlap at random; most rows are known to most centres."""
    parties = []
    for h in range(draw(st.integers(1, 3))):
        rows = draw(st.lists(st.integers(0, 9), unique=True, max_size=6))
        cut = draw(st.integers(0, len(rows)))
        features = draw(st.sampled_from([0, 2, 2]))
        parties.append(hospital(h, rows[:cut], rows[cut:], features=features))
    for c in range(draw(st.integers(0, 3))):
        absent = draw(st.sets(st.integers(0, 11), max_size=draw(st.sampled_from([0, 0, 2, 9]))))
        rows = [i for i in draw(st.permutations(range(12))) if i not in absent]
        block = draw(st.sampled_from([f"own {c}", f"own {c}", "shared", "clinical"]))
        parties.append(party(len(parties), rows, block=block))
    return parties


#: Splits that are always tried: all rows are known to all centres; one lacks the last of three.
WHOLE, PARTLY = (
    [hospital(0, (1, 2), (3,)), *(party(k, rows, block=f"own {k}") for k in (1, 2, 3))]
    for rows in ((3, 2, 1), (2, 1))
)


@pytest.mark.parametrize("missing", POLICIES)
@settings(max_examples=140)
@given(parties=splits(), predict=st.booleans())
@example(parties=WHOLE, predict=False)
@example(parties=PARTLY, predict=False)
def test_rows_are_matched_as_one_by_one(parties: Any, missing: Any, predict: bool) -> None:
    try:
        expected = plain(parties, missing, predict)
    except RefusedError:
        with pytest.raises(errors.FedKernError) as caught:
            hybrid.make_plan(parties, missing, predict=predict)
        assert "\n" not in str(caught.value)
        assert caught.value.remedy
        return
    plan = hybrid.make_plan(parties, missing, predict=predict)
    assert wards(plan) == expected
    assert plan.hospitals == tuple(expected)
    assert set(plan.parties) == {p.partition for p in parties}
    everybody = {tuple(row) for h in plan.hospitals for row in parties[h].ids.tolist()}
    for c in (p for p in parties if p.role == hybrid.CENTRE):
        strangers = sum(tuple(row) not in everybody for row in c.ids.tolist())
        assert plan.unknown[c.partition] == strangers
    for h, ward in plan.wards.items():
        assert ward.total == ward.train + ward.test
        assert ward.centres == tuple(sorted(set(ward.rows) - {h}))
        owners = [sum(ward.rows[c][k] >= 0 for c in ward.centres) for k in range(ward.total)]
        assert ward.lonely == owners.count(1)
    holders: dict[str, tuple[int, ...]] = {}
    for p in parties:
        if p.features:
            holders[p.block] = (*holders.get(p.block, ()), p.partition)
    assert plan.blocks == holders
    told, none = plan.report(), {c: n for c, n in plan.unknown.items() if n}
    assert told["blocks"] == {block: list(held) for block, held in holders.items()}
    assert told["rows_no_hospital_knows"] == {str(c): n for c, n in none.items()}
    for h, (train, test, rows, dropped, lacking) in expected.items():
        one = {"training_rows": train, "held_out_rows": test, "centres": sorted(set(rows) - {h})}
        one |= {"dropped_rows": dropped, "rows_without_block": lacking}
        assert told["hospitals"][str(h)] == one


def test_the_matching_was_tested_in_all_directions() -> None:
    """Negative control: of the splits above each policy accepts one, and treats the other apart."""
    for missing in POLICIES:
        assert plain(WHOLE, missing, False)[0][:2] == (2, 1)
    raises(RefusedError, plain, PARTLY, "error", False)
    dropped, lacking = (plain(PARTLY, missing, False)[0] for missing in POLICIES[1:])
    assert (dropped[1], dropped[3], dropped[4]) == (0, 1, {})
    assert (lacking[1], lacking[3], lacking[4]) == (1, 0, {f"own {k}": 1 for k in (1, 2, 3)})


# -- what does not fit together: see tests/contracts/test_misfits.py

ROWS = (1, 2, 3)
FIRST = hospital(0, ROWS)


@pytest.mark.promise("fedcg-alone")
def test_values_of_a_single_party_are_not_shown_unless_allowed() -> None:
    def plan(missing: Any, second: HybridDescribeReply, *centres: Any) -> hybrid.Plan:
        more = [party(2 + k, rows) for k, rows in enumerate(centres)]
        return hybrid.make_plan([FIRST, second, *more], missing)

    every = [1, 2, 3, 4]
    for found in (
        hybrid.make_plan([FIRST], "error"), plan("error", hospital(1, [], [4]), every, every[::-1]),
        plan("error", hospital(1, [4]), every), plan("neutral", hospital(1, [4]), every, [1, 4]),
    ):  # fmt: skip
        refuses("FK-PARTIES-ALONE", hybrid.check_alone, found, [], allow_single=False)
        hybrid.check_alone(found, [], allow_single=True)
    hybrid.check_alone(plan("error", hospital(1, [4]), every, every[::-1]), [], allow_single=False)


@pytest.mark.promise("fedcg-centre-asked")
def test_a_centre_must_agree_to_be_alone_with_a_row() -> None:
    parties = [FIRST, hospital(1, [4]), party(2, [1, 2, 3, 4]), party(3, [1, 4])]
    plan = hybrid.make_plan(parties, "neutral")
    with refused("FK-TEST-NONE"):
        hybrid.match_rows(parties[:1], "error", predict=True, allow_single=True)
    caught = refuses("FK-ALONE-REFUSED", hybrid.check_alone, plan, parties, allow_single=True)
    assert caught.party == "partition 2"
    parties[2] = replace(parties[2], allow_single=True)
    hybrid.check_alone(plan, parties, allow_single=True)  # partition 3 is never alone


# -- columns of FDSKL


def owner(
    partition: int, rows: Any = (), tests: Any = (), others: Any = (), **more: Any
) -> VerticalDescribeReply:
    """Describe a party by the ids of its rows; one with labels is active."""
    active = bool(len(rows) or len(tests))
    ids = [str(i) for i in (*rows, *tests, *others)]
    fields: dict[str, Any] = {"partition": partition, "partitions": 3}
    fields |= {"role": "active" if active else "passive", "features": 2, "columns": "c"}
    fields |= {"rows": len(rows), "test_rows": len(tests), "others": len(others)}
    fields |= {"outputs": int(active), "classes": 2 * active, "labels": "two" * active}
    fields |= {"label_bound": 1.0, "labelled": True, "named": True, "allow_single": False}
    fields |= {"restored": True, "ids": hash_ids(ids, bytes(range(16)), "s")}
    fields["spelled"] = hashes(())
    return VerticalDescribeReply(**{**fields, **more})


def spelled(plan: Any, names: dict[int, str]) -> list[str]:
    """Return for each row of a plan how the parties call it."""
    return ["".join(names[p][plan.rows[p][k]] for p in names) for k in range(plan.total)]


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
        parties.append(owner(k, rows=rows, tests=tests, others=more))
    order = data.draw(st.permutations(people))
    sets[2] = "".join(order[: data.draw(st.integers(0, 12))])
    parties.append(owner(2, others=sets[2]))
    common = [p for p in people if all(p in held for held in sets.values())]
    if not any(people.index(p) < cut for p in common):
        raises(errors.FedKernError, make_vertical, parties, "drop-row")
        return
    plan = make_vertical(parties, "drop-row")
    assert plan.dropped == 12 - len(common)
    found = spelled(plan, sets)
    assert sorted(found) == sorted(3 * p for p in common)
    for k in range(2):
        learned = {p for p in common if people.index(p) < cut and p in people[k::2]}
        assert {found[row][0] for row in plan.train[k]} == learned
    if len(common) < 12:
        with refused("FK-ROWS-LACKING", "FK-IDS-APART"):
            make_vertical(parties, "error")


@pytest.mark.parametrize(("way", "check"), [
    ("fed-cg", hybrid.check_parties), ("fdskl", check_vertical),
    ("hierarchical-svm", check_groups),
])  # fmt: skip
def test_descriptions_are_checked_before_rows_are_matched(way: str, check: Any) -> None:
    good = list(quiet(way).strategy.parties_.values())
    check(good)
    *others, last = good
    for parties in ([good[0]] * len(good), others):
        raises(errors.PartitionError, check, parties)
    role = "FK-NODE-ROLE" if check is check_groups else "FK-NODE-METHOD"
    refuses(role, check, [*others, replace(last, role="client")])
    if check is check_groups:
        refuses(role, check, [*others, replace(last, group=-1)])
        return
    for change, code in (
        ({"test_rows": 5}, "FK-MESSAGE-SHAPE"), ({"spelled": hashes([1])}, "FK-MESSAGE-SHAPE"),
        ({"ids": last.ids[:, :1], "spelled": last.ids[:0, :1]}, "FK-MESSAGE-SHAPE"),
        ({"ids": last.ids.astype(np.uint32)}, "FK-MESSAGE-SHAPE"),
        ({"ids": np.zeros_like(last.ids)}, "FK-IDS-DUPLICATE"),
    ):  # fmt: skip
        refuses(code, check, [*others, replace(last, **change)])


# -- runs in parts


#: The way, where the size of its messages is, bytes of a message, and the phase that has parts.


@pytest.mark.promise("faults-made-again")
@pytest.mark.parametrize(("name", "places", "phase"), [
    ("fdskl", {"fdskl._MESSAGE": 1200, "fdskl._CHUNK": 70}, "vertical-step"),
    ("fed-cg", {"fed_cg_system._MESSAGE": 8 * 8 * 20}, "hybrid-distances"),
    ("fed-cg, cg", {"fed_cg_system._MESSAGE": 8 * 8 * 20}, "hybrid-distances"),
])  # fmt: skip
def test_runs_in_parts_come_to_the_same(
    name: str, places: dict[str, int], phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nodes lose their files, in any exchange."""
    monkeypatch.setattr(secrets, "token_hex", lambda n: "5e" * n)
    whole = fit(name, tmp_path / "whole")
    for place, size in places.items():
        monkeypatch.setattr(f"fedkern_flwr.strategies.{place}", size)
    exchanges, noticed = fit(name, tmp_path / "quiet").phases, 0
    assert exchanges[phase] > whole.phases[phase]
    count = sum(exchanges.values())
    for lost in range(1, count, 1 + count // 4):
        folder, rounds = tmp_path / str(lost), set[int]()

        def spoil(
            delivery: Any, folder: Path = folder, rounds: Any = rounds, n: int = lost
        ) -> None:
            if delivery.phase in ("describe", "finish"):
                return
            rounds.add(delivery.round)
            if len(rounds) == n + 1:
                rounds.add(-1)  # once
                for path in [*folder.rglob("*.phases"), *folder.rglob("*.kernel")]:
                    path.unlink()

        found = fit(name, folder, faults=spoil)
        assert found.predictions.keys() == whole.predictions.keys()
        pairs = [(found.predictions[key], row) for key, row in whole.predictions.items()]
        pairs += [(found.outcome()[key], value) for key, value in whole.outcome().items()]
        for got, right in pairs:
            if isinstance(right, np.ndarray):
                np.testing.assert_allclose(got, right, rtol=1e-9)
        noticed += "FK-STATE-GONE" in str(found.strategy.ledger_.failures)
    assert noticed


# -- what an exchange asks for


def distances(*hospitals: int) -> wire.DistancesRequest:
    count, none = len(hospitals), np.zeros(0)
    about = [np.array(part, np.int32) for part in (hospitals, [3] * count, [0] * count)]
    return wire.DistancesRequest(
        hospitals=about[0], trains=about[1], starts=about[2], stops=about[1],
        rows=(np.arange(3, dtype=np.int32),) * count, kernel="rbf", sampling="U", landmarks=4,
        basis="fourier", seed_from=-1, model="", model_round=0, save_as=0, landmark_pairs=False,
        keep_training=False, fixed_gammas=np.ones(1), moments=none,
        sealed_seed=np.zeros(0, np.uint8),
    )  # fmt: skip


def facts(**own: Any) -> wire.Facts:
    return wire.Facts(
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
    (counts,) = distances().sum_specs(facts(wanted=(wire.CLASS_COUNTS,), rows=(0,), counted=100))
    assert counts.encoding.bound >= 100.0


# -- how many numbers about rows a run may open, as nodes say their share in describe


def planned(partition: int, rows: int = 200, share: float = 0.2, **more: Any) -> DescribeReply:
    values: dict[str, Any] = {"counting": "refuse", "signature": b"s", "features": 30, **more}
    return DescribeReply(rows=rows, partition=partition, partitions=3, share=share, **values)


PLANNED = [planned(k) for k in range(3)]
ROW = 31.0


@pytest.mark.parametrize(("parties", "how", "numbers", "columns", "rows"), [
    (PLANNED, {}, 0.2 * 400 * ROW, 200, 400),  # without the strongest colluder
    ([*PLANNED[:2], planned(2, share=0.1)], {}, 0.1 * 400 * ROW, 200, 400),  # the least share
    ([*PLANNED[:2], planned(2, 20)], {}, 0.2 * 220 * ROW, 110, 220),
    ([planned(k, signature=b"") for k in range(3)], {}, 0.2 * 200 * ROW, 100, 200),  # no pins
    (PLANNED, {"rows": dict.fromkeys(range(3), 40)}, 0.2 * 80 * ROW, 40, 80),  # a fold
    (PLANNED, {"threshold": 2}, 0.2 * 200 * ROW, 100, 200),
    (PLANNED, {"labels": 0}, 0.2 * 400 * 30, 200, 400),
    ([planned(k, binary=31) for k in range(3)], {}, 0.2 * 400 * ROW / 64, 200, 400),
    (
        [planned(k, share=1.0, counting="warn") for k in range(3)],
        {},
        400 * ROW,
        math.inf,
        400,
    ),  # a simulation
    ([planned(k, counting="off") for k in range(3)], {}, math.inf, math.inf, math.inf),
])  # fmt: skip
def test_a_run_may_open_the_least_share_of_hidden_unknowns(
    parties: list[DescribeReply], how: Any, numbers: float, columns: float, rows: float
) -> None:
    found = allowance(parties, **how)
    assert found.numbers == pytest.approx(numbers)
    assert (found.columns, found.rows) == (columns, rows)
    assert found.planned == (numbers < 400 * ROW and not math.isinf(numbers))


@pytest.mark.parametrize("linear", [0.0, 1.0, 3.0])
def test_the_widest_sum_of_products_has_no_more_numbers_than_allowed(linear: float) -> None:
    for free in (0.0, 1.0, 350.0, 2480.0):
        m = Allowance(free + 7.0).square(linear, taken=7.0)
        assert m * (m + 1) / 2 + linear * m <= free < (m + 1) * (m + 2) / 2 + linear * (m + 1)
        assert Allowance(2.0 * free + 7.0).square(linear, times=2, taken=7.0) == m  # taken once
    assert Allowance(2480.0, columns=40).square(linear) == 40
    assert Allowance().square() > 1 << 20


def test_a_share_that_is_none_is_refused() -> None:
    for share in (0.0, -0.2, 1.5):
        with refused("FK-MESSAGE-FIELD"):
            DescribeReply.unpack([], planned(0, share=share).scalars(), party="partition 0")
    assert DescribeReply.unpack([], planned(0, share=0.5).scalars(), party="x").share == 0.5


@pytest.mark.parametrize(("rows", "centres", "landmarks"), [
    (20_000, 1, 400),
    (100_000, 1, 83),  # 64 MB hold the distances of all rows
    (100_000, 0, 400),  # none travels
    (1_000_000, 0, 268),  # 1 GB holds those of one hospital
])  # fmt: skip
def test_distances_fit_in_a_message_or_in_a_hospitals_file(
    rows: int, centres: int, landmarks: int
) -> None:
    half = rows // 2
    holders = {0: (0, *range(2, 2 + centres)), 1: (1, *range(2, 2 + centres))}
    places = np.arange(half)
    wards = {h: hybrid.Ward(h, half - 10, 10, dict.fromkeys(p, places)) for h, p in holders.items()}
    plan = hybrid.Plan(wards, {"a": (0, 1)}, {})
    assert auto_landmarks(plan, 1, Allowance(1e6), 0) == landmarks
