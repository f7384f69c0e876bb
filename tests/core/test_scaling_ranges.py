"""Scaling by files of ranges: plain ones refuse what is beyond, those of summed statistics clip."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedkern_flwr.errors import TableError
from fedkern_flwr.scaling import Scaling, ranges_to_json, read_ranges, scale_by_ranges
from fedkern_flwr.tables.table import Table

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
    one = np.array([[np.nan, 10.0]])
    np.testing.assert_array_equal(scale_by_ranges(one, ("a", "b"), path), [[np.nan, 0.0]])


def test_values_beyond_are_refused_or_clipped(path: Path) -> None:
    x = X + np.array([0.0, 7.0])
    path.write_text(json.dumps(PLAIN))
    with pytest.raises(TableError) as error:
        scale_by_ranges(x, ("a", "b"), path)
    assert "column 'b' has 2 values beyond its range; declare a wider range" in str(error.value)
    assert "\n" not in str(error.value)
    path.write_text(json.dumps({"ranges": PLAIN, "clip": False}))
    with pytest.raises(TableError, match="column 'b' has 2 values beyond its range"):
        scale_by_ranges(x, ("a", "b"), path)
    path.write_text(json.dumps({"ranges": PLAIN, "clip": True}))
    found = scale_by_ranges(x - [3.0, 0.0], ("a", "b"), path)
    np.testing.assert_allclose(found, [[0.0, 0.7], [0.2, 1.0], [0.7, 1.0]])


NUMBERS = st.floats(-1e300, 1e300)


@settings(max_examples=40)
@given(
    x=arrays(np.float64, (5, 3), elements=NUMBERS),
    limits=st.lists(st.tuples(NUMBERS, NUMBERS).filter(lambda p: p[0] < p[1]), min_size=3),
    clip=st.booleans(),
)
def test_ranges_survive_json_exactly(
    tmp_path: Path, x: np.ndarray, limits: list[tuple[float, float]], clip: bool
) -> None:
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


BAD: list[tuple[Any, str]] = [
    ({"a": [0, 10]}, "there is no range of column 'b'; write"),
    ({"ranges": {"a": [0, 10]}, "clip": True}, "there is no range of column 'b'"),
    ({"a": [0, 10], "b": [5, 5]}, "a range is empty or infinite"),
    ({"a": [0, 10], "b": [5, float("inf")]}, "a range is empty or infinite"),
    ({"a": [0, 10], "b": [float("nan"), 5]}, "a range is empty or infinite"),
    ({"a": [-1.5e308, 1.5e308], "b": [0, 1]}, "a range is empty or infinite"),
    ({"a": [0, 10], "b": [0, 10**400]}, "the file of ranges cannot be read"),
    ({"a": [0, 10], "b": ["x", 5]}, "the file of ranges cannot be read"),
    ({"a": [0, 10], "b": [1, 2, 3]}, "the file of ranges cannot be read"),
    ({"a": 1, "b": 2}, "the file of ranges cannot be read"),
    ({"ranges": PLAIN, "clip": "yes"}, "the file of ranges cannot be read"),
    ([PLAIN], "the file of ranges cannot be read"),
    (None, "the file of ranges cannot be read"),
]


@pytest.mark.parametrize(("content", "text"), BAD)
def test_files_that_do_not_serve_are_refused_in_one_line(
    path: Path, content: Any, text: str
) -> None:
    path.write_text(json.dumps(content))
    with pytest.raises(TableError) as error:
        scale_by_ranges(X, ("a", "b"), path)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_no_file_no_json_and_other_rows_are_refused(path: Path) -> None:
    with pytest.raises(TableError, match="the file of ranges cannot be read"):
        scale_by_ranges(X, ("a", "b"), path)
    path.write_text("{")
    with pytest.raises(TableError, match="the file of ranges cannot be read"):
        scale_by_ranges(X, ("a", "b"), path)
    path.write_text(json.dumps(PLAIN))
    with pytest.raises(TableError, match=r"rows of shape \(3, 1\) have 2 names"):
        scale_by_ranges(X[:, :1], ("a", "b"), path)


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
    with pytest.raises(TableError, match="this is not a scaling"):
        Scaling.from_json(json.dumps({**old, "clip": 1}))


SOUND = {"x_min": [0, 0], "x_max": [10, 0], "row_norm": 1.5, "y_min": 0, "y_max": 3}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x_max": [10]}, "one greatest value per column"),
        ({"x_max": 10}, "one greatest value per column"),
        ({"x_min": [[0, 0]]}, "one greatest value per column"),
        ({"x_min": [20, 0]}, "empty or infinite"),
        ({"x_max": [float("nan"), 0]}, "empty or infinite"),
        ({"x_min": [None, 0]}, "empty or infinite"),
        ({"row_norm": 0}, "row_norm is not positive"),
        ({"row_norm": -1}, "row_norm is not positive"),
        ({"y_min": 3}, "empty or infinite"),
        ({"y_max": float("inf")}, "empty or infinite"),
    ],
)
def test_a_scaling_that_would_scale_wrongly_is_refused(change: dict[str, Any], text: str) -> None:
    assert Scaling.from_json(json.dumps(SOUND)).x_max.tolist() == [10.0, 0.0]
    with pytest.raises(TableError, match=text):
        Scaling.from_json(json.dumps({**SOUND, **change}))
