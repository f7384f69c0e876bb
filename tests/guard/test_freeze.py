"""The data freeze: what is one row, how rows are dealt, and that no sums differ by a few."""

from __future__ import annotations

import stat
import time
import tracemalloc
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frozen_tables import (
    EVENTS,
    KEY,
    Story,
    freeze,
    in_use,
    rows_of,
    table,
    table_blocks,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from refusals import refused, refuses
from scipy import sparse

from fedkern_flwr.guard.freeze import BARRED, FILE, HELD_OUT, USED, Freeze
from fedkern_flwr.guard.rows import Rows

# -- identity


def test_an_id_is_the_same_row_in_every_spelling() -> None:
    found = Rows(ids=["12", "13"]).identify(KEY).names
    for spelled in ("12.0", " 12 ", 12, 12.0):
        assert Rows(ids=[spelled, "13"]).identify(KEY).names.tolist() == found.tolist()
    composed, apart = Rows(ids=["Zo\u00eb"]), Rows(ids=["Zoe\u0308"])
    assert composed.identify(KEY).names == apart.identify(KEY).names
    assert Rows(ids=["0012"]).identify(KEY).names != found[0]


@pytest.mark.parametrize(("before", "after"), [("{}", "000{}"), ("000{}", "{}")])
def test_leading_zeros_are_kept_and_reported(before: str, after: str) -> None:
    old, new = ([form.format(k) for k in range(100, 140)] for form in (before, after))
    made, _ = Freeze.deal(Rows(ids=old), least=5)
    change = made.update(Rows(ids=new), needed=99)
    assert change.near_misses == len(new)
    assert "zeros" in str(change)


def test_content_is_raw_and_the_same_in_every_array() -> None:
    x = np.random.default_rng(0).random((50, 4)) * (np.random.default_rng(1).random((50, 4)) > 0.5)
    dense = Rows(columns=[x]).identify(KEY)
    same = Rows(columns=[sparse.csr_array(x)]).identify(KEY)
    assert dense.values.tolist() == same.values.tolist()
    moved = x.copy()
    moved[7, 2] += 1e-15
    assert (Rows(columns=[moved]).identify(KEY).values != dense.values).nonzero()[0].tolist() == [7]
    words = np.array(["a", "b", "a much longer word", "\u00e9"])
    texts = Rows(columns=[words]).identify(KEY).values
    assert len(set(texts.tolist())) == 4
    assert Rows(columns=[words[:2]]).identify(KEY).values.tolist() == texts[:2].tolist()
    assert Rows(columns=[words.astype(object)]).identify(KEY).values.tolist() == texts.tolist()
    assert (Rows(columns=[x]).identify(bytes(32)).values != dense.values).all()


def test_without_ids_equal_rows_are_told_apart_by_number() -> None:
    x = np.array([[1.0], [2.0], [1.0], [1.0]])
    found = Rows(columns=[x]).identify(KEY).names
    again = Rows(columns=[x[[3, 1, 0]]]).identify(KEY).names
    assert len(set(found.tolist())) == 4
    assert set(again.tolist()) < set(found.tolist())


# -- dealing


def test_a_new_row_of_an_id_that_has_many_changes_no_other() -> None:
    made, _ = Freeze.deal(Rows(columns=[np.arange(200.0)], ids=[7] * 200), least=5)
    more = Rows(columns=[np.append(np.arange(200.0), 50.5)], ids=[7] * 201)
    change = made.update(more, needed=0)
    assert not any(change.done.values())
    assert change.waiting["new rows"] == 1


def test_rows_are_dealt_whatever_their_order() -> None:
    made = freeze(500)
    turned, _ = Freeze.deal(table(range(499, -1, -1)), least=5, key=KEY)
    assert made.blocks["rows"].tolist() == [100] + [80] * 5
    used = [(f, in_use(f, range(500))) for f in (made, turned)]
    for block in made.select():
        own = [{rows[k] for k in rows_of(f, [block])} for f, rows in used]
        assert own[0] == own[1]
    other, _ = Freeze.deal(table(range(500)), least=5)
    assert other.key != KEY
    assert set(in_use(made, range(500))) == set(range(500))


def test_parties_with_the_same_key_deal_matched_rows_alike() -> None:
    ids = [f"p{k}" for k in range(60)]
    one, _ = Freeze.deal(Rows(ids=ids), least=5, key=KEY)
    other, _ = Freeze.deal(Rows(ids=[f" {name} " for name in ids[::-1]]), least=5, key=KEY)
    assert dict(zip(one.names, one.block, strict=True)) == dict(
        zip(other.names, other.block, strict=True)
    )


@pytest.mark.parametrize("rows", [1, 4, 5, 9, 13, 20, 31, 200])
@pytest.mark.parametrize("least", [1, 5])
def test_blocks_have_enough_rows(rows: int, least: int) -> None:
    made, change = Freeze.deal(table(range(rows)), least=least, key=KEY)
    assert (made.blocks["rows"] >= least).all()
    assert made.used.sum() + change.waiting["new rows"] == rows
    assert made.used.any() == (rows >= least)


def test_test_data_is_held_out() -> None:
    held = np.arange(60) < 20
    made = freeze(60, held_out=held)
    chosen = rows_of(made, made.select(HELD_OUT))
    assert {in_use(made, range(60))[k] for k in chosen} == set(range(20))


def test_strata_by_which_many_wait_are_refused() -> None:
    rare = ["a"] * 96 + ["b"] * 4
    _, change = Freeze.deal(table(range(100), strata=rare), least=5, key=KEY)
    assert change.waiting["new rows"] == 4
    with refused("FK-FREEZE-STRATA"):
        Freeze.deal(table(range(100), strata=[str(k // 4) for k in range(100)]), least=5)


# -- changes


@pytest.mark.promise("freeze-wait")
def test_changes_wait_until_they_form_a_lot() -> None:
    made = freeze(500)
    change = made.update(table(range(537)), needed=56)
    assert str(change) == "37 new rows wait: a block needs 56"
    there = made.places(table(range(537))) >= 0
    assert there.tolist() == [True] * 500 + [False] * 37
    change = made.update(table(range(3, 580), dict.fromkeys(range(3, 9), 1)), needed=56)
    assert change.done["new rows"] == 80
    assert change.waiting == {"new rows": 0, "rows that came back": 0, "edits": 6, "withdrawals": 3}
    assert made.used.sum() == 580


def test_a_withdrawal_that_must_not_wait_takes_others_along_for_good() -> None:
    made = freeze(100)
    change = made.withdraw([7])
    assert change.done["withdrawals"] == 5
    assert made.generation == 1
    gone = set(range(100)) - set(in_use(made, range(100)))
    assert 7 in gone
    made.update(table(range(100)), needed=0)
    made.update(table(range(100)), needed=0, force=True)
    assert not gone & set(in_use(made, range(100)))
    rows = Rows(columns=[np.arange(100.0)], ids=[k % 20 for k in range(100)])
    visits, _ = Freeze.deal(rows, least=5)
    visits.withdraw([7])
    names = rows.identify(visits.key).names[7::20]
    assert np.isin(names, visits.names[~visits.used]).all()
    small = freeze(9, least=5)  # of nine rows fewer than five would stay
    assert small.withdraw([3]).done["withdrawals"] in (5, 9)
    assert small.withdraw([3]).done["withdrawals"] == 0


def test_the_owner_forces_changes() -> None:
    made = freeze(100)
    change = made.update(table(range(1, 101), {5: 1}), needed=99, force=True)
    assert (change.done["new rows"], change.done["edits"], change.done["withdrawals"]) == (1, 1, 1)
    assert made.generation == 1
    assert made.blocks["forced"].any()
    small = freeze(20)
    two = [in_use(small, range(20))[k] for k in rows_of(small, small.select(1))[:2]]
    small.update(table(k for k in range(20) if k not in two), needed=0, force=True)
    for block in small.select():
        assert small.blocks["forced"][block] == (small.blocks["rows"][block] < 5)


# -- the file


def test_the_file_is_private_and_survives(tmp_path: Path) -> None:
    assert Freeze.load(tmp_path) is None
    made = freeze(100)
    made.update(table(range(20, 160)), needed=0)
    made.withdraw([50])
    made.save(tmp_path)
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    again = Freeze.load(tmp_path)
    assert again is not None
    assert (again.key, again.least, again.generation) == (made.key, made.least, made.generation)
    for name in ("names", "values", "bare", "block", "blocks", "past"):
        assert (getattr(again, name) == getattr(made, name)).all()
    change = again.update(table(range(20, 160)), needed=0)
    assert not any(change.done.values())


def test_a_damaged_or_newer_file_is_an_error(tmp_path: Path) -> None:
    made = freeze(20)
    made.save(tmp_path)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-40])
    refuses("FK-FREEZE-FILE", Freeze.load, tmp_path)
    (tmp_path / FILE).write_bytes(whole.replace(b'"version": 2', b'"version": 9'))
    with refused("FK-FREEZE-VERSION", "FK-FREEZE-FILE"):
        Freeze.load(tmp_path)


# -- whatever is done


def rank(matrix: NDArray[Any]) -> int:
    """Return the rank over the rational numbers."""
    rows = [[Fraction(int(v)) for v in row] for row in matrix]
    found = 0
    for column in range(matrix.shape[1] if len(rows) else 0):
        pivot = next((k for k in range(found, len(rows)) if rows[k][column]), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        for k in range(found + 1, len(rows)):
            factor = rows[k][column] / rows[found][column]
            if factor:
                rows[k] = [a - factor * b for a, b in zip(rows[k], rows[found], strict=True)]
        found += 1
    return found


def few_rows(sums: list[list[tuple[int, int]]], least: int) -> list[set[int]]:
    """Return sets of fewer than ``least`` people to whom a combination of the sums gives weight.

    A row is (person, version of the content). People who are in the same sums with the same
    versions have equal weights; a combination with weight on a set alone exists if and only if the
    columns of all others have a smaller rank than all columns.
    """
    columns: dict[int, set[bytes]] = {}
    for row in sorted({row for one in sums for row in one}):
        inside = np.array([row in one for one in map(set, sums)], np.int8)
        columns.setdefault(row[0], set()).add(inside.tobytes())
    classes: dict[frozenset[bytes], list[int]] = {}
    for person, own in columns.items():
        classes.setdefault(frozenset(own), []).append(person)
    small = [own for own, people in classes.items() if len(people) < least]

    def all_but(without: Any) -> int:
        kept = {column for own in classes if own not in without for column in own}
        return rank(np.array([np.frombuffer(column, np.int8) for column in kept]))

    found = []
    for number in range(1, min(least, len(small) + 1)):
        for chosen in combinations(small, number):
            people = {person for own in chosen for person in classes[own]}
            if len(people) < least and all_but(chosen) < all_but(()):
                found.append(people)
    return found


@pytest.mark.promise("freeze-few-rows")
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6), rows=st.integers(20, 150), least=st.sampled_from([2, 3, 5]),
    needed=st.sampled_from([0, 0, 10, 30]), strata=st.booleans(), labels=st.booleans(),
    events=st.lists(st.sampled_from(EVENTS), min_size=1, max_size=30),
)  # fmt: skip
@example(seed=0, rows=20, least=5, needed=0, strata=False, labels=True, events=["edit"])
def test_no_combination_of_sums_is_about_few_rows(
    seed: int, rows: int, least: int, needed: int, strata: bool, labels: bool, events: list[str]
) -> None:
    """Also where a function does not see what was edited: a person is one column then."""
    story = Story(seed, rows, least, strata=False, labels=False)
    story.strata, story.labels = strata, labels
    for event in events:
        story.ask()
        story.happen(event, needed)
    story.ask()
    assert few_rows(story.sums, least) == []
    assert few_rows([[(k, 0) for k, _ in rows] for rows in story.sums], least) == []
    sizes = story.freeze.blocks["rows"][np.isin(story.freeze.blocks["state"], (USED, BARRED))]
    assert (sizes >= least).all()


def test_rows_that_move_to_another_stratum_wait_for_others() -> None:
    story = Story(1, 600, 5, strata=True, labels=False)
    assert len({story.freeze.blocks["group"][b] for b in story.freeze.select()}) == 2
    story.moved = set(range(200))
    story.edits.update(dict.fromkeys(range(400), 1))
    story.happen("none", 0)
    women = np.array([(k + (k in story.moved)) % 2 == 0 for k, v in story.frozen])
    done = np.array([v == 1 for _, v in story.frozen])
    assert 200 < done.sum() <= 400
    groups = story.freeze.blocks["group"][table_blocks(story.freeze)]
    assert len(set(groups[women & done])) == len(set(groups[~women & done])) == 1
    assert set(groups[women & done]) != set(groups[~women & done])


def test_a_forced_change_exposes_the_rows_that_it_is_about() -> None:
    story = Story(3, 60, 5, strata=False, labels=False)
    story.ids.append(60)
    story.edits[60], story.next = 0, 61
    for force in ("", "force", ""):
        story.happen(force, 10)
        story.sums.append([story.frozen[k] for k in rows_of(story.freeze, story.freeze.select())])
    assert few_rows(story.sums, 5) == [{60}]


# -- cost


@pytest.mark.parametrize("rows", [200_000, pytest.param(10**6, marks=pytest.mark.long)])
def test_many_rows_are_checked_in_little_time_and_room(tmp_path: Path, rows: int) -> None:
    x = np.random.default_rng(0).random((rows, 10))
    names = [f"p{k}" for k in range(rows)]
    own = Rows(columns=[x], ids=names)
    made, _ = Freeze.deal(own, least=5, key=KEY)
    made.save(tmp_path)
    assert (tmp_path / FILE).stat().st_size < 30 * rows
    start = time.process_time()
    again = Freeze.load(tmp_path)
    assert again is not None
    change = again.update(own, needed=56)
    assert time.process_time() - start < 4e-6 * rows  # seconds; a half on a machine of its own
    assert not any(change.done.values())
    tracemalloc.start()
    again.update(own, needed=56)
    assert tracemalloc.get_traced_memory()[1] < 200 * rows
    tracemalloc.stop()
