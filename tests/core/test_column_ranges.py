"""Ranges of columns: two passes of sums are as precise as pooled rows; scaling by their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from refusals import refused, refuses

from fedkern_flwr.align import column_ranges as ranges
from fedkern_flwr.align.column_ranges import ENCODING, Centre, Statistics, first_pass, second_pass
from fedkern_flwr.scaling import Scaling, ranges_to_json, read_ranges, scale_by_ranges
from fedkern_flwr.tables.table import Table

BOUND = 2.0**20
NAN = np.nan


def add(parts: list[np.ndarray]) -> np.ndarray:
    """Add vectors up as the ring does, without masks."""
    with np.errstate(over="ignore"):
        total = sum(ENCODING.encode(part, len(parts), name="sum") for part in parts)
    return ENCODING.decode(np.asarray(total, np.uint64), len(parts))


def two_passes(*tables: np.ndarray) -> Statistics:
    rows, holders = sum(map(len, tables)), len(tables)
    total = add([first_pass(x, BOUND, rows) for x in tables])
    centre = ranges.read_first_pass(total, BOUND, rows, holders)
    total = add([second_pass(x, centre) for x in tables])
    return ranges.read_second_pass(total, centre, holders)


def check_pooled(*tables: np.ndarray) -> None:
    """As of all rows in the long numbers that NumPy has, to 1e-9 of the deviation.

    A mean is a float64 all the same.
    """
    found, x = two_passes(*tables), np.concatenate(tables).astype(np.longdouble)
    count = (~np.isnan(x)).sum(axis=0)
    mean = np.nansum(x, axis=0) / count
    deviation = np.sqrt(np.nansum((x - mean) ** 2, axis=0) / count)
    np.testing.assert_array_equal(found.count, count)
    slack = 1e-9 * deviation
    assert (np.abs(found.mean - mean) <= slack + 2.0 * np.spacing(np.abs(found.mean))).all()
    assert (np.abs(found.deviation - deviation) <= slack).all()


@pytest.mark.promise("ranges-exact")
@given(mean=st.floats(-5e5, 5e5), exponent=st.floats(-3.0, 4.5), seed=st.integers(0, 2**32 - 1))
def test_two_passes_give_the_pooled_statistics(mean: float, exponent: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    holders, rows = rng.integers(2, 11), rng.integers(2, 31)
    (apart, missing), tables = rng.random(2), []
    for _ in range(holders):
        x = rng.uniform(-1.0, 1.0, (rows, 3)) + apart * rng.uniform(-1.0, 1.0, 3)
        x[:, 1] = rng.standard_cauchy(rows).clip(-10.0, 10.0)
        x = mean + 10.0**exponent * x
        x[1:][rng.random((rows - 1, 3)) < 0.8 * missing] = NAN
        tables.append(x)
    check_pooled(*tables)


def test_the_documented_precision_holds_and_many_rows_lose_nothing() -> None:
    rng = np.random.default_rng(3)
    for mean in (0.0, 0.99 * BOUND):
        deviation = 2.0**-32 * BOUND
        tables = [mean + deviation * rng.standard_normal((100, 4)) for _ in range(10)]
        check_pooled(*tables)
    for holders in (2, 3, 4, 10, 1000):
        assert ranges.resolution(holders) <= holders**2 * 2.0**-60
    tables = [1e5 + 1e-2 * rng.standard_normal((200_000, 2)) for _ in range(2)]
    check_pooled(*tables)
    # added up row by row the squares would be off by more than their spread
    x = np.full((1_000_000, 1), 123456.7)
    x[::2] += 0.1
    check_pooled(x, x[:2])


def test_the_second_pass_is_taken_at_its_word_down_to_the_resolution() -> None:
    centre = Centre(np.full(4, 9.0), np.full(4, 100.0), np.full(4, 2.0))
    noise = ranges.resolution(3)
    total = np.array([0.5, -0.25, 0.0, 0.0, 0.5, 0.0625, 10.0 * noise, 100.0 * noise])
    found = ranges.read_second_pass(total, centre, 3)
    np.testing.assert_array_equal(found.mean, [101.0, 99.5, 100.0, 100.0])
    np.testing.assert_allclose(found.deviation, [1.0, 0.0, 0.0, 20.0 * noise**0.5], rtol=1e-15)


@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-9, 1.0, BOUND]))
def test_no_contribution_is_larger_than_one(seed: int, scale: float) -> None:
    """Whatever the rows: else a node could not contribute what the others need."""
    rng = np.random.default_rng(seed)
    x = rng.choice([-1.0, 0.0, 1.0, rng.uniform(-1, 1)], (int(rng.integers(2, 40)), 2)) * scale
    tables = [x[:1], x[1:]]
    firsts = [first_pass(t, BOUND, len(x)) for t in tables]
    centre = ranges.read_first_pass(add(firsts), BOUND, len(x), 2)
    for part in (*firsts, *(second_pass(t, centre) for t in tables)):
        assert np.abs(part).max() <= 1.0 + 1e-12
    assert (np.log2(centre.scale) == np.rint(np.log2(centre.scale))).all()


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3, 1e5 + 0.1, BOUND, -BOUND])
def test_a_constant_column_has_no_deviation_and_a_range_around_it(value: float) -> None:
    for holders in (2, 3, 7):
        tables = [np.full((11 * k + 1, 1), value) for k in range(1, holders + 1)]
        found = two_passes(*tables)
        assert found.deviation.tolist() == [0.0]
        assert found.mean[0] == pytest.approx(value, rel=1e-15, abs=1e-12)
        for limits in (ranges.summed_ranges(found, 4.0), ranges.own_ranges(tables[0])):
            low, high = limits[:, 0]
            assert high - low == pytest.approx(max(1.0, abs(value)))
            assert low + high == pytest.approx(2.0 * value, rel=1e-12, abs=1e-11)


def test_ranges_are_some_deviations_around_the_mean() -> None:
    found = Statistics(np.array([9.0, 9.0]), np.array([1.0, -2.0]), np.array([0.5, 3.0]))
    np.testing.assert_array_equal(ranges.summed_ranges(found, 2.0), [[0.0, -8.0], [2.0, 4.0]])
    tiny = Statistics(np.ones(1), np.array([1e6]), np.array([1e-14]))  # below a float64's last bit
    low, high = ranges.summed_ranges(tiny, 4.0)
    assert low < high
    own = np.array([[1.0, NAN], [3.0, 5.0]])
    np.testing.assert_array_equal(ranges.own_ranges(own), [[1.0, 2.5], [3.0, 7.5]])
    x = np.array([[1.0, -3.0, NAN, 2.0], [NAN, 1.0, 2.0, -2.5]])
    assert ranges.beyond(x, 2.0) == [1, 3]
    assert ranges.beyond(x, 3.0) == []


@pytest.mark.promise("ranges-column-empty")
def test_values_that_cannot_be_summed_are_refused() -> None:
    infinite, empty = [[1.0, np.inf]] * 2, [[1.0, NAN]] * 2
    for values, code in ((infinite, "FK-VALUES-FINITE"), (empty, "FK-BLOCK-EMPTY")):
        caught = refuses(code, ranges.check_values, np.array(values), ("a", "b"), "p")
        assert "column 'b'" in str(caught)
    ranges.check_values(np.array([[1.0, NAN], [NAN, 2.0]]), ("a", "b"), "p")
    centre = Centre(np.array([2.0]), np.array([0.0]), np.array([1.0]))
    share = second_pass(np.array([[5.0], [5.0]]), centre)  # beyond the promise
    refuses("FK-SUM-BOUND", ENCODING.encode, share, 2, name="sum")


def test_totals_that_cannot_be_are_refused_or_give_numbers() -> None:
    for count in (0.0, 1.0, 11.0, -4.0):
        with refused("FK-SUM-TOTAL"):
            ranges.read_first_pass(np.array([count / 10, 0.0, 0.0]), BOUND, 10, 2)
    # squares below zero, or below that of the mean: a party lied within the bound
    for total in ([1.0, 0.5, -0.25], [1.0, 1.0, 0.0]):
        centre = ranges.read_first_pass(np.array(total), BOUND, 10, 2)
        assert np.isfinite(centre.scale).all()
        found = ranges.read_second_pass(np.array([0.5, -1.0]), centre, 2)
        assert found.deviation.tolist() == [0.0]


# -- scaling by files of ranges: plain ones refuse what is beyond, those of summed statistics clip

X = np.array([[0.0, 10.0], [5.0, 15.0], [10.0, 20.0]])
PLAIN = {"a": [0, 10], "b": [10, 20], "other": [1, 1]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ranges.json"


def test_columns_are_scaled_by_their_ranges_in_their_order(path: Path) -> None:
    path.write_text(json.dumps(PLAIN))
    unit = np.array([[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]])
    np.testing.assert_array_equal(scale_by_ranges(X, ("a", "b"), path), unit)
    np.testing.assert_array_equal(scale_by_ranges(X[:, ::-1], ("b", "a"), str(path)), unit)
    np.testing.assert_array_equal(scale_by_ranges(X[:0], ("a", "b"), path), unit[:0])
    one = np.array([[NAN, 10.0]])
    np.testing.assert_array_equal(scale_by_ranges(one, ("a", "b"), path), [[NAN, 0.0]])


def test_values_beyond_are_refused_or_clipped(path: Path) -> None:
    x = X + np.array([0.0, 7.0])
    for content in (PLAIN, {"ranges": PLAIN, "clip": False}):
        path.write_text(json.dumps(content))
        caught = refuses("FK-RANGES-OUTSIDE", scale_by_ranges, x, ("a", "b"), path)
        assert "column 'b' has 2 values" in str(caught)
    path.write_text(json.dumps({"ranges": PLAIN, "clip": True}))
    found = scale_by_ranges(x - [3.0, 0.0], ("a", "b"), path)
    np.testing.assert_allclose(found, [[0.0, 0.7], [0.2, 1.0], [0.7, 1.0]])


NUMBERS = st.floats(-1e300, 1e300)


@settings(max_examples=25)
@given(
    x=arrays(np.float64, (5, 3), elements=NUMBERS),
    limits=st.lists(st.tuples(NUMBERS, NUMBERS).filter(lambda p: p[0] < p[1]), min_size=3),
    clip=st.booleans(),
)
def test_ranges_survive_json(tmp_path: Path, x: np.ndarray, limits: Any, clip: bool) -> None:
    low, high = np.array(limits[:3]).T
    names, path = ("x", "y", "ranges"), tmp_path / "ranges.json"
    path.write_text(ranges_to_json(names, low, high, clip=clip))
    found = read_ranges(names, path)
    np.testing.assert_array_equal(found.low, low)
    np.testing.assert_array_equal(found.high, high)
    assert found.clip is clip
    inside = x if clip else np.clip(x, low, high)
    scaled = scale_by_ranges(inside, names, path)
    assert ((scaled >= 0.0) & (scaled <= 1.0)).all()


def test_files_that_do_not_serve_are_refused(path: Path) -> None:
    wide = [-1.5e308, 1.5e308]
    wrong: dict[str, list[Any]] = {
        "FK-RANGES-MISSING": [{"a": [0, 10]}, {"ranges": {"a": [0, 10]}, "clip": True}],
        "FK-FILE-READ": [{"ranges": PLAIN, "clip": "yes"}, [PLAIN], None],
        "FK-RANGES-WRONG": [],
    }
    for code, limits in (
        ("FK-RANGES-WRONG", ([5, 5], [5, np.inf], [NAN, 5], wide)),
        ("FK-FILE-READ", ([0, 10**400], ["x", 5], [1, 2, 3], 2)),
    ):
        wrong[code] += [{"a": [0, 1], "b": b} for b in limits]
    texts = [(json.dumps(content), code) for code, found in wrong.items() for content in found]
    for text, code in (("", "FK-FILE-READ"), ("{", "FK-FILE-READ"), *texts):
        path.write_text(text)
        refuses(code, scale_by_ranges, X, ("a", "b"), path)
    path.unlink()
    refuses("FK-FILE-READ", scale_by_ranges, X, ("a", "b"), path)
    path.write_text(json.dumps(PLAIN))
    refuses("FK-COLUMN-NAMES", scale_by_ranges, X[:, :1], ("a", "b"), path)


def test_a_scaling_of_summed_statistics_clips_rows_to_learn_from() -> None:
    low, high = np.array([0.0, 10.0]), np.array([10.0, 20.0])
    table = Table(X + np.array([0.0, 7.0]), np.array([1.0, 2.0, 9.0]), ("a", "b"))
    table = Table(table.x, table.y, table.columns, x_test=table.x, y_test=table.y)
    plain = Scaling(low, high, 2.0**0.5, 0.0, 4.0)
    clipping = Scaling(low, high, 2.0**0.5, 0.0, 4.0, clip=True)
    assert np.linalg.norm(plain.apply(table).x, axis=1).max() > 1.0
    scaled = clipping.apply(table)
    assert np.linalg.norm(scaled.x, axis=1).max() <= 1.0
    np.testing.assert_array_equal(scaled.y, [0.25, 0.5, 1.0])
    np.testing.assert_array_equal(scaled.y_test, [0.25, 0.5, 2.25])  # to be predicted as they are
    np.testing.assert_array_equal(scaled.x_test, plain.apply(table).x_test)
    assert Scaling.from_json(clipping.to_json()).clip is True
    old = {k: v for k, v in json.loads(plain.to_json()).items() if k != "clip"}
    assert Scaling.from_json(json.dumps(old)).clip is False
    refuses("FK-FILE-FORMAT", Scaling.from_json, json.dumps({**old, "clip": 1}))


SOUND = {"x_min": [0, 0], "x_max": [10, 0], "row_norm": 1.5, "y_min": 0, "y_max": 3}


def test_a_scaling_that_would_scale_wrongly_is_refused() -> None:
    assert Scaling.from_json(json.dumps(SOUND)).x_max.tolist() == [10.0, 0.0]
    changes: list[dict[str, Any]] = [
        *({"x_max": wrong} for wrong in ([10], 10, [NAN, 0])),
        *({"x_min": wrong} for wrong in ([[0, 0]], [20, 0], [None, 0])),
        *({"row_norm": wrong} for wrong in (0, -1)), {"y_min": 3}, {"y_max": float("inf")},
    ]  # fmt: skip
    for change in changes:
        refuses("FK-RANGES-WRONG", Scaling.from_json, json.dumps({**SOUND, **change}))
