"""Ranges of columns: two passes of sums give mean and deviation of the pooled rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.align.column_ranges import (
    ENCODING,
    Centre,
    Statistics,
    beyond,
    check_values,
    first_pass,
    own_ranges,
    read_first_pass,
    read_second_pass,
    resolution,
    second_pass,
    summed_ranges,
)
from fedkern_flwr.errors import ProtocolError, SumError, TableError
from fedkern_flwr.secure_sum import Encoding

BOUND = 2.0**20
NAN = np.nan


def add(parts: list[np.ndarray]) -> np.ndarray:
    """Add vectors up as the ring does, without masks."""
    with np.errstate(over="ignore"):
        total = sum(ENCODING.encode(part, len(parts), name="sum") for part in parts)
    return ENCODING.decode(np.asarray(total, np.uint64), len(parts))


def two_passes(tables: list[np.ndarray], bound: float = BOUND) -> tuple[Centre, Statistics]:
    rows = sum(map(len, tables))
    holders = len(tables)
    total = add([first_pass(x, bound, rows) for x in tables])
    centre = read_first_pass(total, bound, rows, holders)
    return centre, read_second_pass(add([second_pass(x, centre) for x in tables]), centre, holders)


def one_pass(tables: list[np.ndarray], bound: float = BOUND) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation from sums of values and squares alone, as precise as the ring lets them.

    What the second pass is needed for.
    """
    rows, encoding = sum(map(len, tables)), Encoding.fixed_point(bound**2)
    parts = [np.concatenate([x.sum(0), (x**2).sum(0)]) / rows for x in tables]
    with np.errstate(over="ignore"):
        total = sum(encoding.encode(part, len(parts), name="sum") for part in parts)
    mean, square = encoding.decode(np.asarray(total, np.uint64), len(parts)).reshape(2, -1)
    return mean, np.sqrt(np.maximum(square - mean**2, 0.0))


def pooled(tables: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count, mean and deviation of all rows, in the long numbers that NumPy has."""
    x = np.concatenate(tables).astype(np.longdouble)
    count = (~np.isnan(x)).sum(axis=0)
    mean = np.nansum(x, axis=0) / count
    return count, mean, np.sqrt(np.nansum((x - mean) ** 2, axis=0) / count)


def assert_pooled(found: Statistics, tables: list[np.ndarray]) -> None:
    """To 1e-9 of the deviation; a mean is a float64 all the same."""
    count, mean, deviation = pooled(tables)
    np.testing.assert_array_equal(found.count, count)
    slack = 1e-9 * deviation
    assert (np.abs(found.mean - mean) <= slack + 2.0 * np.spacing(np.abs(found.mean))).all()
    assert (np.abs(found.deviation - deviation) <= slack).all()


@given(
    holders=st.integers(2, 10),
    rows=st.integers(2, 30),
    mean=st.floats(-5e5, 5e5),
    exponent=st.floats(-3.0, 4.5),
    apart=st.floats(0.0, 1.0),
    missing=st.floats(0.0, 0.8),
    seed=st.integers(0, 2**32 - 1),
)
def test_two_passes_give_the_pooled_statistics(
    holders: int,
    rows: int,
    mean: float,
    exponent: float,
    apart: float,
    missing: float,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    tables = []
    for _ in range(holders):
        x = rng.uniform(-1.0, 1.0, (rows, 3)) + apart * rng.uniform(-1.0, 1.0, 3)
        x[:, 1] = rng.standard_cauchy(rows).clip(-10.0, 10.0)
        x = mean + 10.0**exponent * x
        x[1:][rng.random((rows - 1, 3)) < missing] = NAN
        tables.append(x)
    assert_pooled(two_passes(tables)[1], tables)


@pytest.mark.parametrize("holders", [2, 3, 10, 30])
@pytest.mark.parametrize("mean", [0.0, 1e5, -1e6])
def test_spreads_that_are_small_against_the_values_need_the_second_pass(
    holders: int, mean: float
) -> None:
    rng = np.random.default_rng(holders)
    tables = [mean + 1e-2 * rng.standard_normal((50, 2)) for _ in range(holders)]
    found = two_passes(tables)[1]
    assert_pooled(found, tables)
    if mean:
        deviation = pooled(tables)[2]
        assert (np.abs(one_pass(tables)[1] / deviation - 1.0) > 1e-3).all()  # negative control


def test_the_documented_precision_holds() -> None:
    rng = np.random.default_rng(3)
    for mean in (0.0, 0.99 * BOUND):
        deviation = 2.0**-32 * BOUND
        tables = [mean + deviation * rng.standard_normal((100, 4)) for _ in range(10)]
        assert_pooled(two_passes(tables)[1], tables)
    for holders in (2, 3, 4, 10, 1000):
        assert resolution(holders) <= holders**2 * 2.0**-60


def test_many_rows_lose_nothing() -> None:
    rng = np.random.default_rng(4)
    tables = [1e5 + 1e-2 * rng.standard_normal((200_000, 2)) for _ in range(2)]
    assert_pooled(two_passes(tables)[1], tables)


def test_rounding_of_many_equal_values_does_not_add_up() -> None:
    """Added up row by row the squares would be off by more than their spread."""
    x = np.full((1_000_000, 2), 123456.7)
    x[::2] += 0.1
    assert_pooled(two_passes([x, x[:2]])[1], [x, x[:2]])


def test_the_second_pass_is_taken_at_its_word_down_to_the_resolution() -> None:
    centre = Centre(np.full(4, 9.0), np.full(4, 100.0), np.full(4, 2.0))
    noise = resolution(3)
    total = np.array([0.5, -0.25, 0.0, 0.0, 0.5, 0.0625, 10.0 * noise, 100.0 * noise])
    found = read_second_pass(total, centre, 3)
    np.testing.assert_array_equal(found.mean, [101.0, 99.5, 100.0, 100.0])
    np.testing.assert_allclose(found.deviation, [1.0, 0.0, 0.0, 20.0 * noise**0.5], rtol=1e-15)


@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-9, 1.0, BOUND]))
def test_no_contribution_is_larger_than_one(seed: int, scale: float) -> None:
    """Whatever the rows: else a node could not contribute what the others need."""
    rng = np.random.default_rng(seed)
    x = rng.choice([-1.0, 0.0, 1.0, rng.uniform(-1, 1)], (int(rng.integers(2, 40)), 2)) * scale
    tables = [x[:1], x[1:]]
    firsts = [first_pass(t, BOUND, len(x)) for t in tables]
    centre = read_first_pass(add(firsts), BOUND, len(x), 2)
    for part in (*firsts, *(second_pass(t, centre) for t in tables)):
        assert np.abs(part).max() <= 1.0 + 1e-12
    assert (np.log2(centre.scale) == np.rint(np.log2(centre.scale))).all()


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3, 1e5 + 0.1, BOUND, -BOUND])
@pytest.mark.parametrize("holders", [2, 3, 7])
def test_a_constant_column_has_no_deviation_and_a_range_around_it(
    value: float, holders: int
) -> None:
    tables = [np.full((11 * k + 1, 1), value) for k in range(1, holders + 1)]
    found = two_passes(tables)[1]
    assert found.deviation.tolist() == [0.0]
    assert found.mean[0] == pytest.approx(value, rel=1e-15, abs=1e-12)
    for low, high in (summed_ranges(found, 4.0)[:, 0], own_ranges(tables[0])[:, 0]):
        assert high - low == pytest.approx(max(1.0, abs(value)))
        assert low + high == pytest.approx(2.0 * value, rel=1e-12, abs=1e-11)


def test_missing_values_are_left_out_column_by_column() -> None:
    first, second = np.array([[1.0, NAN], [3.0, 5.0]]), np.array([[NAN, 1.0], [5.0, NAN]])
    found = two_passes([first, second])[1]
    np.testing.assert_array_equal(found.count, [3, 2])
    np.testing.assert_allclose(found.mean, [3.0, 3.0], rtol=1e-15)
    np.testing.assert_allclose(found.deviation, [np.sqrt(8.0 / 3.0), 2.0], rtol=1e-14)
    np.testing.assert_array_equal(own_ranges(first), [[1.0, 4.5 - 2.0], [3.0, 7.5]])


def test_ranges_are_some_deviations_around_the_mean() -> None:
    found = Statistics(np.array([9.0, 9.0]), np.array([1.0, -2.0]), np.array([0.5, 3.0]))
    np.testing.assert_array_equal(summed_ranges(found, 2.0), [[0.0, -8.0], [2.0, 4.0]])
    tiny = Statistics(np.ones(1), np.array([1e6]), np.array([1e-14]))  # below a float64's last bit
    low, high = summed_ranges(tiny, 4.0)
    assert low < high


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([[1.0, np.inf], [1.0, -np.inf]], "p: column 'b' is infinite in 2 rows; leave these cells"),
        ([[1.0, NAN], [1.0, NAN]], "p: column 'b' has no value: its sums would be those of the"),
    ],
)
def test_values_that_cannot_be_summed_are_refused(values: list[list[float]], text: str) -> None:
    with pytest.raises(TableError) as error:
        check_values(np.array(values), ("a", "b"), "p")
    assert text in str(error.value)
    assert "\n" not in str(error.value)
    check_values(np.array([[1.0, NAN], [NAN, 2.0]]), ("a", "b"), "p")


def test_columns_beyond_the_bound_are_found() -> None:
    x = np.array([[1.0, -3.0, NAN, 2.0], [NAN, 1.0, 2.0, -2.5]])
    assert beyond(x, 2.0) == [1, 3]
    assert beyond(x, 3.0) == []


@pytest.mark.parametrize(("count", "rows"), [(0.0, 10), (1.0, 10), (11.0, 10), (-4.0, 10)])
def test_totals_of_impossible_counts_are_refused(count: float, rows: int) -> None:
    total = np.array([count / rows, 0.0, 0.0])
    with pytest.raises(ProtocolError, match="fewer values than holders, or more than rows"):
        read_first_pass(total, BOUND, rows, 2)


def test_totals_that_contradict_each_other_still_give_numbers() -> None:
    """Squares below zero, or below that of the mean: a party lied within the bound."""
    for total in ([1.0, 0.5, -0.25], [1.0, 1.0, 0.0]):
        centre = read_first_pass(np.array(total), BOUND, 10, 2)
        assert np.isfinite(centre.scale).all()
        found = read_second_pass(np.array([0.5, -1.0]), centre, 2)
        assert found.deviation.tolist() == [0.0]


def test_values_beyond_the_promise_are_refused_before_masking() -> None:
    centre = Centre(np.array([2.0]), np.array([0.0]), np.array([1.0]))
    share = second_pass(np.array([[5.0], [5.0]]), centre)
    with pytest.raises(SumError, match="sum exceeds its declared bound"):
        ENCODING.encode(share, 2, name="sum")
