"""Who holds what: rows matched as by dictionaries, and parties that do not fit together refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkern_flwr.errors import (
    CohortError,
    FedKernError,
    OptionError,
    PartitionError,
    ProtocolError,
)
from fedkern_flwr.hybrid.messages import HybridDescribeReply
from fedkern_flwr.hybrid.parties import (
    CENTRE,
    HOSPITAL,
    Plan,
    check_alone,
    check_parties,
    make_plan,
)

POLICIES: list[Any] = ["error", "drop-row", "neutral"]


def hashes(ids: Any) -> np.ndarray:
    return np.array([(7919 * i % 101, i) for i in ids], np.uint64).reshape(-1, 2)


def party(partition: int, rows: Any, tests: Any = (), **more: Any) -> HybridDescribeReply:
    """Describe a party; with tests or labels it is a hospital."""
    ids = hashes([*rows, *tests])
    role = more.pop("role", HOSPITAL if "outputs" in more else CENTRE)
    values: dict[str, Any] = {
        "partition": partition,
        "partitions": 9,
        "role": role,
        "rows": len(list(rows)),
        "features": 2,
        "test_rows": len(list(tests)),
        "columns": "a digest",
        "restored": True,
        "block": f"centre {partition}" if role == CENTRE else "clinical",
        "seeded": True,
        "square_bound": 2.0,
        "absolute_bound": 2.0,
        "outputs": 0,
        "classes": 0,
        "labels": "",
        "label_bound": 1.0,
        "labelled": False,
        "allow_single": False,
        "ids": ids,
    }
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
    assert plan.blocks == {"clinical": (0, 1), "genomics": (2, 3), "proteomics": (4,)}
    assert plan.unknown == {2: 0, 3: 1, 4: 1}
    assert plan.report() == {
        "hospitals": {
            "0": {
                "training_rows": 2,
                "held_out_rows": 1,
                "dropped_rows": 0,
                "rows_without_block": {},
                "centres": [2, 4],
            },
            "1": {
                "training_rows": 2,
                "held_out_rows": 0,
                "dropped_rows": 0,
                "rows_without_block": {},
                "centres": [3, 4],
            },
        },
        "blocks": {"clinical": [0, 1], "genomics": [2, 3], "proteomics": [4]},
        "rows_no_hospital_knows": {"3": 1, "4": 1},
    }


def test_a_patient_of_two_hospitals_is_a_row_of_both() -> None:
    plan = make_plan([hospital(0, [1, 2]), hospital(1, [2, 3]), party(2, [3, 2, 1])], "error")
    assert plan.wards[0].rows[2].tolist() == [2, 1]
    assert plan.wards[1].rows[2].tolist() == [1, 0]


# -- what does not fit together

ROWS = (1, 2, 3)
MISFITS: dict[str, tuple[list[HybridDescribeReply], str]] = {
    "no hospital": ([party(0, ROWS)], r"phase describe: there is no hospital: nobody has labels; "),
    "no features": ([hospital(0, ROWS, features=0)], r"no party has features; give at least one"),
    "no training rows": ([hospital(0, [], ROWS)], r"there are no training rows; check"),
    "strangers": (
        [hospital(0, ROWS), party(1, [7, 8])],
        r"partition \d, .*; check ",
    ),
    "block twice": (
        [hospital(0, ROWS), party(1, ROWS, block="b"), party(2, [9, 3, 2], block="b")],
        r"partition 2, phase describe: block 'b' of 2 rows is held by another party as well; let ",
    ),
    "block twice, with the hospital": (
        [hospital(0, ROWS), party(1, [3], block="clinical")],
        r"partition 1, phase describe: block 'clinical' of 1 rows is held by another party",
    ),
    "other columns": (
        [hospital(0, ROWS), hospital(1, [4], columns="another")],
        r"partition 1, .*block 'clinical' has 2 columns that differ from the 2 of partition 0",
    ),
    "other number of columns": (
        [hospital(0, ROWS), hospital(1, [4], features=3)],
        r"partition 1, .*block 'clinical' has 3 columns that differ from the 2 of partition 0",
    ),
    "other ranges": (
        [hospital(0, ROWS), hospital(1, [4], square_bound=8.0)],
        r"partition 1, .*its ranges of block 'clinical' and that of partition 0 do not fit; conf",
    ),
    "a seed here, none there": (
        [hospital(0, ROWS), hospital(1, [4], seeded=False)],
        r"partition 1, .*its landmark seed of block 'clinical' and that of partition 0 do not fit",
    ),
    "other outputs": (
        [hospital(0, ROWS), hospital(1, [4], outputs=2)],
        r"partition 1, .*its labels differ from those of partition 0 in number of outputs, classes",
    ),
    "other classes": (
        [hospital(0, ROWS), hospital(1, [4], labels="0 2")],
        r"partition 1, .*its labels differ from those of partition 0",
    ),
    "classes and a regression": (
        [hospital(0, ROWS), hospital(1, [4], classes=0)],
        r"partition 1, .*its labels differ from those of partition 0",
    ),
    "other label bound": (
        [hospital(0, ROWS), hospital(1, [4], label_bound=2.0)],
        r"partition 1, .*; declare the same classes or the same label bound at all hospitals",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_parties_that_do_not_fit_together_are_refused(name: str) -> None:
    parties, text = MISFITS[name]
    for missing in POLICIES:
        with pytest.raises(FedKernError, match=text) as caught:
            make_plan(parties, missing)
        assert "\n" not in str(caught.value)


def test_missing_blocks_are_an_error_unless_something_else_is_chosen() -> None:
    parties = [hospital(0, [1, 2], [3]), party(1, [1, 3]), party(2, [1, 2])]
    with pytest.raises(
        FedKernError,
        match=r"partition 0, phase describe: 1 of its 3 rows have no block 'centre 1' "
        r"\(2 blocks are incomplete\); check the ids, or choose --missing drop-row or neutral",
    ):
        make_plan(parties, "error")
    dropped = make_plan(parties, "drop-row")
    assert wards(dropped) == {0: (1, 0, {0: [0], 1: [0], 2: [0]}, 2, {})}
    neutral = make_plan(parties, "neutral")
    expected = {0: [0, 1, 2], 1: [0, -1, 1], 2: [0, 1, -1]}
    assert wards(neutral) == {0: (2, 1, expected, 0, {"centre 1": 1, "centre 2": 1})}
    assert dropped.report()["hospitals"]["0"]["dropped_rows"] == 2
    rows = neutral.report()["hospitals"]["0"]["rows_without_block"]
    assert rows == {"centre 1": 1, "centre 2": 1}


def test_a_hospital_whose_patients_no_centre_knows() -> None:
    """Refused, or left without the block; never left out silently."""
    parties = [hospital(0, [1, 2]), hospital(1, [4, 5]), party(2, [1, 2])]
    with pytest.raises(FedKernError, match=r"partition 1, .*2 of its 2 rows have no block 'cent"):
        make_plan(parties, "error")
    with pytest.raises(FedKernError, match=r"partition 1, .*every row lacks a block; check the id"):
        make_plan(parties, "drop-row")
    plan = make_plan(parties, "neutral")
    assert plan.wards[1].centres == ()
    assert plan.wards[1].lacking == {"centre 2": 2}


def test_predictions_are_for_held_out_rows_only() -> None:
    parties = [hospital(0, [1, 2], [3, 4]), party(1, [4, 3, 1])]
    plan = make_plan(parties, "error", predict=True)  # row 2 lacks a block, and does not matter
    assert wards(plan) == {0: (0, 2, {0: [2, 3], 1: [1, 0]}, 0, {})}
    assert (
        make_plan([hospital(0, [], [3]), party(1, [3])], "error", predict=True).wards[0].test == 1
    )


# -- descriptions that cannot be


def test_descriptions_are_checked_before_rows_are_matched() -> None:
    good = [replace(p, partitions=2) for p in (hospital(0, ROWS), party(1, ROWS))]
    check_parties(good)
    with pytest.raises(PartitionError):
        check_parties([good[0], good[0]])
    with pytest.raises(PartitionError):
        check_parties(good[:1])
    bad: list[tuple[Any, str]] = [
        ({"role": "client"}, "partition 1, .*: it is neither a hospital nor a centre; serve a Hyb"),
        ({"rows": 2}, "partition 1, .*: its hashes of ids do not fit"),
        ({"ids": good[1].ids[:, :1]}, "partition 1, .*: its hashes of ids do not fit"),
        ({"ids": good[1].ids.astype(np.uint32)}, "partition 1, .*: its hashes of ids do not fit"),
        ({"ids": hashes([1, 2, 1])}, "partition 1: 1 duplicate ids; keep one row per id"),
    ]
    for change, text in bad:
        with pytest.raises(FedKernError, match=text):
            check_parties([good[0], replace(good[1], **change)])


# -- sums that would show a single party's values


def test_values_of_a_single_party_are_not_shown_unless_allowed() -> None:
    alone = make_plan([hospital(0, ROWS)], "error")
    one = make_plan([hospital(0, ROWS), hospital(1, [4]), party(2, [1, 2, 3, 4])], "error")
    partly = make_plan(
        [hospital(0, ROWS), hospital(1, [4]), party(2, [1, 2, 3, 4]), party(3, [1, 4])], "neutral"
    )
    fine = make_plan(
        [hospital(0, ROWS), hospital(1, [4]), party(2, [1, 2, 3, 4]), party(3, [4, 3, 2, 1])],
        "error",
    )
    learner = make_plan(
        [hospital(0, ROWS), hospital(1, [], [4]), party(2, [1, 2, 3, 4]), party(3, [4, 3, 2, 1])],
        "error",
    )
    texts = [
        (
            learner,
            "partition 0 alone has training rows: what is summed over hospitals would be its",
        ),
        (alone, "there is one hospital: what is summed over hospitals would be its own; let more"),
        (one, "3 of 3 rows of partition 0 are known to one centre only: the hospital would learn"),
        (partly, "2 of 3 rows of partition 0 are known to one centre only: .* --allow-single"),
    ]
    for plan, text in texts:
        with pytest.raises(OptionError, match=text):
            check_alone(plan, [], allow_single=False)
        check_alone(plan, [], allow_single=True)
    check_alone(fine, [], allow_single=False)


def test_a_centre_must_agree_to_be_alone_with_a_row() -> None:
    parties = [hospital(0, ROWS), hospital(1, [4]), party(2, [1, 2, 3, 4]), party(3, [1, 4])]
    plan = make_plan(parties, "neutral")
    with pytest.raises(ProtocolError, match="partition 2, phase describe: it alone knows rows of"):
        check_alone(plan, parties, allow_single=True)
    parties[2] = replace(parties[2], allow_single=True)
    check_alone(plan, parties, allow_single=True)  # partition 3 is never alone


def test_a_run_without_training_rows_is_no_cohort() -> None:
    with pytest.raises(CohortError):
        make_plan([hospital(0, [], ROWS)], "error")
