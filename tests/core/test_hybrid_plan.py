"""Who holds what in FedCG, which landmarks are drawn, and which parties are refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scipy import stats

from fedkern_flwr.errors import FedKernError, PartitionError
from fedkern_flwr.hybrid.landmarks import (
    check_seed_bytes,
    draw_landmarks,
    moment_sums,
    public_seed,
    read_moments,
    seed_fingerprint,
)
from fedkern_flwr.hybrid.messages import HybridDescribeReply
from fedkern_flwr.hybrid.parties import (
    CENTRE,
    HOSPITAL,
    Plan,
    check_alone,
    check_parties,
    make_plan,
    match_rows,
)

POLICIES: list[Any] = ["error", "drop-row", "neutral"]


def hashes(ids: Any) -> np.ndarray:
    return np.array([(7919 * i % 101, i) for i in ids], np.uint64).reshape(-1, 2)


def party(partition: int, rows: Any, tests: Any = (), **more: Any) -> HybridDescribeReply:
    """Describe a party; with labels it is a hospital."""
    role = more.pop("role", HOSPITAL if "outputs" in more else CENTRE)
    block = f"centre {partition}" if role == CENTRE else "clinical"
    values: dict[str, Any] = {"partition": partition, "partitions": 9, "role": role}
    values |= {"rows": len(rows), "test_rows": len(tests), "ids": hashes([*rows, *tests])}
    values |= {"features": 2, "columns": "a digest", "block": block, "seeded": True}
    values |= {"square_bound": 2.0, "absolute_bound": 2.0, "restored": True}
    values |= {"outputs": 0, "classes": 0, "labels": "", "label_bound": 1.0}
    values |= {"labelled": False, "allow_single": False}
    return HybridDescribeReply(**{**values, **more})


def hospital(partition: int, rows: Any, tests: Any = (), **more: Any) -> HybridDescribeReply:
    return party(partition, rows, tests, **{"outputs": 1, "classes": 2, "labels": "0 1", **more})


def wards(plan: Plan) -> dict[int, Any]:
    return {
        h: (
            ward.train,
            ward.test,
            {p: rows.tolist() for p, rows in ward.rows.items()},
            ward.dropped,
            dict(ward.lacking),
        )
        for h, ward in plan.wards.items()
    }


# -- matching, against dictionaries


class RefusedError(Exception):
    """The plain implementation finds no plan."""


def plain(parties: list[HybridDescribeReply], missing: str, predict: bool) -> dict[int, Any]:
    """Match the rows one by one."""
    names = {p.partition: [tuple(row) for row in p.ids.tolist()] for p in parties}
    holds = {p.partition: {name: k for k, name in enumerate(names[p.partition])} for p in parties}
    blocks = {p.block for p in parties if p.features}
    centres = [p for p in parties if p.role == CENTRE and p.features]
    out: dict[int, Any] = {}
    for h in (p for p in parties if p.role == HOSPITAL):
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


@settings(max_examples=400)
@given(parties=splits(), missing=st.sampled_from(POLICIES), predict=st.booleans())
def test_rows_are_matched_as_one_by_one(
    parties: list[HybridDescribeReply], missing: Any, predict: bool
) -> None:
    try:
        expected = plain(parties, missing, predict)
    except RefusedError:
        with pytest.raises(FedKernError) as caught:
            make_plan(parties, missing, predict=predict)
        assert "\n" not in str(caught.value)
        assert caught.value.remedy
        return
    plan = make_plan(parties, missing, predict=predict)
    assert wards(plan) == expected
    assert plan.hospitals == tuple(expected)
    assert set(plan.parties) == {p.partition for p in parties}
    everybody = {tuple(row) for h in plan.hospitals for row in parties[h].ids.tolist()}
    for c in (p for p in parties if p.role == CENTRE):
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


def test_the_matching_is_tested_in_all_directions() -> None:
    """Negative control: the splits above are refused and accepted, complete and incomplete."""
    seen: set[str] = set()

    @settings(max_examples=300)
    @given(parties=splits(), missing=st.sampled_from(POLICIES))
    def collect(parties: list[HybridDescribeReply], missing: str) -> None:
        try:
            found = plain(parties, missing, False)
        except RefusedError:
            seen.add("refused")
            return
        seen.add("accepted")
        seen.update(f"{missing} dropped" for ward in found.values() if ward[3])
        seen.update(f"{missing} lacking" for ward in found.values() if ward[4])
        seen.add(f"{sum(p.role == CENTRE for p in parties)} centres")

    collect()
    assert seen >= {"refused", "accepted", "drop-row dropped", "neutral lacking", "3 centres"}


def test_the_shape_of_figure_three() -> None:
    """Two hospitals share a block; genomics lie at two centres, proteomics at one."""
    plan = make_plan(
        [
            hospital(0, [1, 2], [3]),
            hospital(1, [4, 5], []),
            party(2, [2, 3, 1], block="genomics"),
            party(3, [5, 4, 9], block="genomics"),
            party(4, [5, 4, 3, 2, 1, 0], block="proteomics"),
        ],
        "error",
    )
    assert wards(plan) == {
        0: (2, 1, {0: [0, 1, 2], 2: [2, 0, 1], 4: [4, 3, 2]}, 0, {}),
        1: (2, 0, {1: [0, 1], 3: [1, 0], 4: [1, 0]}, 0, {}),
    }
    assert plan.unknown == {2: 0, 3: 1, 4: 1}
    none = {"dropped_rows": 0, "rows_without_block": {}}
    assert plan.report() == {
        "hospitals": {
            "0": {"training_rows": 2, "held_out_rows": 1, "centres": [2, 4], **none},
            "1": {"training_rows": 2, "held_out_rows": 0, "centres": [3, 4], **none},
        },
        "blocks": {"clinical": [0, 1], "genomics": [2, 3], "proteomics": [4]},
        "rows_no_hospital_knows": {"3": 1, "4": 1},
    }


def test_predictions_are_for_held_out_rows_only() -> None:
    parties = [hospital(0, [1, 2], [3, 4]), party(1, [4, 3, 1])]
    plan = make_plan(parties, "error", predict=True)  # row 2 lacks a block, and does not matter
    assert wards(plan) == {0: (0, 2, {0: [2, 3], 1: [1, 0]}, 0, {})}
    with refused("FK-TEST-NONE"):
        match_rows([hospital(0, [1])], "error", predict=True, allow_single=True)


# -- what does not fit together

ROWS = (1, 2, 3)
FIRST = hospital(0, ROWS)
MISFITS: dict[str, tuple[list[HybridDescribeReply], str]] = {
    "no hospital": ([party(0, ROWS)], "FK-LABELS-NOBODY"),
    "no features": ([hospital(0, ROWS, features=0)], "FK-FEATURES-NONE"),
    "no training rows": ([hospital(0, [], ROWS)], "FK-ROWS-NONE"),
    "block twice": (
        [FIRST, party(1, ROWS, block="b"), party(2, [9, 3, 2], block="b")],
        "FK-BLOCK-TWICE",
    ),
    "block twice, hospital": ([FIRST, party(1, [3], block="clinical")], "FK-BLOCK-TWICE"),
    "other columns": ([FIRST, hospital(1, [4], columns="another")], "FK-COLUMNS-DIFFER"),
    "other number of them": ([FIRST, hospital(1, [4], features=3)], "FK-COLUMNS-DIFFER"),
    "other ranges": ([FIRST, hospital(1, [4], square_bound=8.0)], "FK-BLOCK-DIFFERS"),
    "a seed here, none there": ([FIRST, hospital(1, [4], seeded=False)], "FK-BLOCK-DIFFERS"),
    **{
        f"labels: {name}": ([FIRST, hospital(1, [4], **{name: value})], "FK-CLASSES-DIFFER")
        for name, value in (
            ("outputs", 2),
            ("labels", "0 2"),
            ("classes", 0),
            ("label_bound", 2.0),
        )
    },
}


@pytest.mark.promise("fedcg-misfits")
@pytest.mark.parametrize("name", MISFITS)
def test_parties_that_do_not_fit_together_are_refused(name: str) -> None:
    parties, code = MISFITS[name]
    for missing in POLICIES:
        with refused(code) as caught:
            make_plan(parties, missing)
        assert "\n" not in str(caught.value)


def test_missing_blocks_are_an_error_unless_something_else_is_chosen() -> None:
    parties = [hospital(0, [1, 2], [3]), party(1, [1, 3]), party(2, [1, 2])]
    with refused("FK-ROWS-LACKING") as caught:
        make_plan(parties, "error")
    assert caught.value.party == "partition 0"
    dropped, neutral = make_plan(parties, "drop-row"), make_plan(parties, "neutral")
    assert wards(dropped) == {0: (1, 0, {0: [0], 1: [0], 2: [0]}, 2, {})}
    lacking = {"centre 1": 1, "centre 2": 1}
    assert wards(neutral) == {0: (2, 1, {0: [0, 1, 2], 1: [0, -1, 1], 2: [0, 1, -1]}, 0, lacking)}
    told = [plan.report()["hospitals"]["0"] for plan in (dropped, neutral)]
    assert told[0]["dropped_rows"] == 2
    assert told[1]["rows_without_block"] == lacking


def test_a_hospital_whose_patients_no_centre_knows() -> None:
    """Refused, or left without the block; never left out silently."""
    parties = [hospital(0, [1, 2]), hospital(1, [4, 5]), party(2, [1, 2])]
    for missing, code in (("error", "FK-ROWS-LACKING"), ("drop-row", "FK-IDS-APART")):
        with refused(code):
            make_plan(parties, missing)  # type: ignore[arg-type]
    plan = make_plan(parties, "neutral")
    assert plan.wards[1].centres == ()
    assert plan.wards[1].lacking == {"centre 2": 2}
    strangers = [hospital(0, [1, 2], features=2), party(1, [7, 8])]
    with refused("FK-IDS-APART"):
        make_plan(strangers, "neutral")


def test_descriptions_are_checked_before_rows_are_matched() -> None:
    good = [replace(p, partitions=2) for p in (FIRST, party(1, ROWS))]
    check_parties(good)
    for parties in ([good[0], good[0]], good[:1]):
        with pytest.raises(PartitionError):
            check_parties(parties)
    bad: list[tuple[dict[str, Any], str]] = [
        ({"role": "client"}, "FK-NODE-METHOD"),
        ({"rows": 2}, "FK-MESSAGE-SHAPE"),
        ({"ids": good[1].ids[:, :1]}, "FK-MESSAGE-SHAPE"),
        ({"ids": good[1].ids.astype(np.uint32)}, "FK-MESSAGE-SHAPE"),
        ({"ids": hashes([1, 2, 1])}, "FK-IDS-DUPLICATE"),
    ]
    for change, code in bad:
        with refused(code):
            check_parties([good[0], replace(good[1], **change)])


# -- sums that would show a single party's values


@pytest.mark.promise("fedcg-alone")
def test_values_of_a_single_party_are_not_shown_unless_allowed() -> None:
    def plan(missing: Any, second: HybridDescribeReply, *centres: Any) -> Plan:
        more = [party(2 + k, rows) for k, rows in enumerate(centres)]
        return make_plan([FIRST, second, *more], missing)

    every = [1, 2, 3, 4]
    cases = [
        (make_plan([FIRST], "error"), "FK-PARTIES-ALONE"),
        (plan("error", hospital(1, [], [4]), every, every[::-1]), "FK-PARTIES-ALONE"),
        (plan("error", hospital(1, [4]), every), "FK-COLUMNS-ALONE"),
        (plan("neutral", hospital(1, [4]), every, [1, 4]), "FK-COLUMNS-ALONE"),
    ]
    for found, code in cases:
        with refused(code):
            check_alone(found, [], allow_single=False)
        check_alone(found, [], allow_single=True)
    check_alone(plan("error", hospital(1, [4]), every, every[::-1]), [], allow_single=False)


@pytest.mark.promise("fedcg-centre-asked")
def test_a_centre_must_agree_to_be_alone_with_a_row() -> None:
    parties = [FIRST, hospital(1, [4]), party(2, [1, 2, 3, 4]), party(3, [1, 4])]
    plan = make_plan(parties, "neutral")
    with refused("FK-COLUMNS-ALONE") as caught:
        check_alone(plan, parties, allow_single=True)
    assert caught.value.party == "partition 2"
    parties[2] = replace(parties[2], allow_single=True)
    check_alone(plan, parties, allow_single=True)  # partition 3 is never alone


# -- landmarks

SEED = public_seed(3, "genes")
RANGES = np.array([[0.0, 1.0], [-1.0, 1.0], [50.0, 250.0], [7.0, 7.0]])
WIDE = [0, 1, 2]  # the fourth range is a point
MOMENTS = np.array([[0.5, 0.9, 150.0, 7.0], [0.1, 0.3, 10.0, 0.0]])


def unturned(m: int, moments: np.ndarray | None = None) -> np.ndarray:
    """Landmarks as they are drawn before the turn: uniform, or normal and clipped."""
    digest = hashlib.sha256(b"fedkern-flwr landmarks " + SEED).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "little"))
    low, high = RANGES.T
    if moments is None:
        return low + (high - low) * rng.random((m, 4))
    return np.clip(moments[0] + moments[1] * rng.standard_normal((m, 4)), low, high)


@pytest.mark.promise("fedcg-turned")
@pytest.mark.parametrize("moments", [None, MOMENTS])
@pytest.mark.parametrize("m", [1, 3, 4000])
def test_landmarks_are_drawn_in_a_box_that_is_turned_as_a_whole(
    m: int, moments: np.ndarray | None
) -> None:
    """Uniform and turned about the middle, or normal and turned about the mean."""
    about = RANGES.mean(axis=1) if moments is None else moments[0]
    found, straight = draw_landmarks(SEED, m, RANGES, moments), unturned(m, moments)
    assert found.shape == (m, 4)
    assert (found[:, 3] == 7.0).all()
    np.testing.assert_array_equal(found, draw_landmarks(SEED, m, RANGES, moments))
    flipped = bytes([SEED[0] ^ 1]) + SEED[1:]
    assert not np.isclose(found, draw_landmarks(flipped, m, RANGES, moments))[:, :2].any()
    a, b = (found - about)[:, WIDE], (straight - about)[:, WIDE]
    np.testing.assert_allclose(a[:50] @ a[:50].T, b[:50] @ b[:50].T, rtol=1e-12, atol=1e-8)
    assert not np.isclose(a, b).any() or m > 5
    if m < 4:
        return
    turn = np.linalg.lstsq(a, b)[0]
    np.testing.assert_allclose(turn.T @ turn, np.eye(3), atol=1e-9)
    np.testing.assert_allclose(a @ turn, b, atol=1e-7)
    low, high = RANGES[WIDE].T
    for k, column in enumerate((a @ turn).T):
        if moments is None:
            share = (column + about[k] - low[k]) / (high - low)[k]
            assert stats.kstest(share, "uniform").pvalue > 1e-3
        elif k != 1:
            assert stats.kstest(column / moments[1, k], "norm").pvalue > 1e-3
    if moments is not None:
        clipped = (a @ turn)[:, 1] > 0.1 - 1e-9
        assert clipped.mean() == pytest.approx(stats.norm.sf(1 / 3), abs=0.03)


@pytest.mark.parametrize("of_a_corner", [False, True])
def test_no_landmark_is_farther_from_the_middle_than_a_corner(of_a_corner: bool) -> None:
    low, high = RANGES.T
    given = np.stack([low, high - low]) if of_a_corner else None
    away = np.linalg.norm(draw_landmarks(SEED, 4000, RANGES, given) - RANGES.mean(axis=1), axis=1)
    corner = np.linalg.norm(high - low) / 2.0
    assert away.max() <= corner * (1.0 + 1e-12)
    assert not of_a_corner or (away > corner * (1.0 - 1e-12)).mean() > 0.1  # some were beyond


@pytest.mark.parametrize("m", [2, 40])
def test_no_direction_is_preferred_to_another(m: int) -> None:
    """Haar: where a turn takes a vector is uniform on the sphere; on it coordinates are uniform."""
    unit = np.tile([-1.0, 1.0], (3, 1))
    drawn = np.array([draw_landmarks(public_seed(k, "turn"), m, unit)[0] for k in range(1500)])
    directions = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    for column in directions.T:
        assert stats.kstest((column + 1.0) / 2.0, "uniform").pvalue > 1e-3


def test_a_single_feature_is_not_turned() -> None:
    one, constant = np.array([[2.0, 4.0]]), np.array([[2.0, 4.0], [7.0, 7.0]])
    moments = np.array([[3.9, 7.0], [1.0, 0.0]])
    for ranges, given_ in ((one, None), (one, moments[:, :1]), (constant, moments)):
        found = draw_landmarks(SEED, 400, ranges, given_)
        assert 2.0 <= found[:, 0].min() < found[:, 0].max() <= 4.0


#: Models that were saved name their seeds only: other landmarks would spoil them silently.
FROZEN: list[tuple[int, Any, Any, Any]] = [
    (
        2,
        [[0.0, 1.0], [2.0, 4.0]],
        None,
        [[0.8425573000798182, 2.270112783196475], [0.1720849585065673, 3.429483576909131]],
    ),
    (2, [[-9.0, 9.0]], [[1.0], [2.0]], [[-1.5395939427377145], [1.7970872744915263]]),
    (
        2,
        [[0.0, 1.0], [2.0, 4.0]],
        [[0.5, 3.0], [0.1, 0.4]],
        [[0.2965064191083886, 2.988680505879785], [0.48745702070082464, 2.881510225040117]],
    ),
    (1, [[0.0, 1.0], [2.0, 4.0]], None, [[-0.2984491587302204, 2.8879295131884692]]),
]


@pytest.mark.parametrize(("m", "ranges", "moments", "expected"), FROZEN)
def test_what_is_drawn_stays_the_same(m: int, ranges: Any, moments: Any, expected: Any) -> None:
    given_ = None if moments is None else np.array(moments)
    found = draw_landmarks(bytes(range(32)), m, np.array(ranges), given_)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@given(
    n=st.integers(1, 60),
    d=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
    parties=st.integers(1, 5),
)
def test_added_up_moments_are_those_of_the_pooled_table(
    n: int, d: int, seed: int, parties: int
) -> None:
    rng = np.random.default_rng(seed)
    low = rng.uniform(-100.0, 100.0, d)
    spans = rng.uniform(0.1, 100.0, d)
    ranges = np.stack([low, low + spans], axis=1)
    x = rng.uniform(*ranges.T, (n, d))
    parts = np.array_split(x[rng.permutation(n)], parties)
    mean, deviation = read_moments(np.sum([moment_sums(p, ranges) for p in parts], axis=0), ranges)
    np.testing.assert_allclose(mean, x.mean(0), atol=1e-13 * 200)
    np.testing.assert_allclose(deviation / spans, x.std(0) / spans, atol=1e-7)


def test_moments_are_within_their_bound_and_may_be_of_nothing() -> None:
    """A party adds at most its number of rows to each number: the bound of the secure sum."""
    low, high = RANGES.T
    assert moment_sums(np.tile(high, (9, 1)), RANGES).max() == 9.0
    assert moment_sums(np.tile(low, (9, 1)), RANGES)[1:].max() == 0.0
    mean, deviation = read_moments(moment_sums(np.zeros((0, 4)), RANGES), RANGES)
    np.testing.assert_array_equal(mean, low)
    np.testing.assert_array_equal(deviation, np.zeros(4))
    x = np.full((11, 4), 0.3) + low  # constant features have no deviation
    x[:, 3] = 7.0
    mean, deviation = read_moments(moment_sums(x, RANGES), RANGES)
    np.testing.assert_allclose(mean, x[0], rtol=1e-12)
    found = draw_landmarks(SEED, 3, RANGES, np.stack([mean, deviation]))
    np.testing.assert_allclose(found, x[:3], rtol=1e-6)  # turned about the mean


def test_a_fingerprint_tells_seeds_sessions_blocks_and_moments_apart() -> None:
    moments = np.array([[0.5], [0.1]])
    found = [
        seed_fingerprint(SEED, "one", "genes"),
        seed_fingerprint(public_seed(4, "genes"), "one", "genes"),
        seed_fingerprint(SEED, "two", "genes"),
        seed_fingerprint(SEED, "one", "proteins"),
        seed_fingerprint(SEED, "one", "genes", moments),
        seed_fingerprint(SEED, "one", "genes", moments + 1e-12),
    ]
    assert len(set(found)) == len(found)
    assert {len(f) for f in found} == {16}
    assert seed_fingerprint(SEED, "one", "genes") == found[0]
    assert not any(SEED[k : k + 4] in found[0] for k in range(29))
    seeds = {public_seed(seed, block) for seed in (0, 1, 10) for block in ("a", "b", "0/a", "")}
    assert (len(seeds), {len(seed) for seed in seeds}) == (12, {32})


def test_seeds_of_another_length_are_refused() -> None:
    check_seed_bytes(bytes(32))
    for length in (0, 16, 31, 33):
        with refused("FK-SEED-LENGTH"):
            check_seed_bytes(bytes(length))
