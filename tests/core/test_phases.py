"""Phases: cosines as NumPy's, multiples exact in the ring, chunks that change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.errors import OptionError
from fedkern_flwr.vertical import phases as phases_module
from fedkern_flwr.vertical.phases import angles, cosines, feature_chunks

DTYPES = (np.uint16, np.uint32)
TOLERANCE = {np.uint16: 1e-7, np.uint32: 1e-9}


def draw(dtype: type, shape: tuple[int, int] = (50, 7), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def quantised(turns: np.ndarray, dtype: type) -> np.ndarray:
    size = int(np.iinfo(dtype).max) + 1
    return (np.rint((turns % 1.0) * size).astype(np.int64) % size).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_angles_count_steps_of_the_circle(dtype: type) -> None:
    quarter = 1 << (8 * np.dtype(dtype).itemsize - 2)
    found = angles(np.array([[0, quarter, 3 * quarter]], dtype))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [[0.0, np.pi / 2, 3 * np.pi / 2]], rtol=1e-15)
    assert angles(np.array([np.iinfo(dtype).max], dtype))[0] < 2 * np.pi


@pytest.mark.parametrize("dtype", DTYPES)
@given(multiple=st.integers(1, 100), seed=st.integers(0, 99))
def test_cosines_are_those_of_the_multiplied_angles(dtype: type, multiple: int, seed: int) -> None:
    phases = draw(dtype, seed=seed)
    found = cosines(phases, multiple)
    assert found.dtype == (np.float32 if dtype is np.uint16 else np.float64)
    np.testing.assert_allclose(
        found, np.cos(multiple * angles(phases)), rtol=0, atol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_multiple_is_the_multiplied_ring_element(dtype: type) -> None:
    phases = draw(dtype)
    np.testing.assert_array_equal(cosines(phases, 12), cosines(phases * dtype(12)))
    size = int(np.iinfo(dtype).max) + 1
    np.testing.assert_array_equal(cosines(phases, size + 5), cosines(phases, 5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("multiple", [1, 2, 3, 8])
def test_a_multiple_serves_multiplied_frequencies(dtype: type, multiple: int) -> None:
    rng = np.random.default_rng(1)
    x, omega, b = rng.random((40, 3)), rng.standard_normal((3, 30)), rng.random(30)
    base = quantised((x @ omega) / (2 * np.pi) + b, dtype)
    exact = np.cos(multiple * (x @ omega + 2 * np.pi * b))
    rounding = multiple * np.pi / (int(np.iinfo(dtype).max) + 1)
    assert np.abs(cosines(base, multiple) - exact).max() <= rounding + TOLERANCE[dtype]


@pytest.mark.parametrize("multiple", [1, 3])
def test_features_approach_the_gaussian_kernel_of_the_multiplied_width(multiple: int) -> None:
    rng = np.random.default_rng(2)
    gamma, directions = 0.3, 40_000
    x, omega = rng.random((6, 3)), np.sqrt(2 * gamma) * rng.standard_normal((3, directions))
    phases = quantised((x @ omega) / (2 * np.pi) + rng.random(directions), np.uint16)
    ((_, z),) = feature_chunks(phases, multiple)
    squares = ((x[:, None] - x) ** 2).sum(2)
    np.testing.assert_allclose(z @ z.T, np.exp(-gamma * multiple**2 * squares), atol=0.03)


def test_features_approach_the_laplacian_kernel_of_the_multiplied_width() -> None:
    rng = np.random.default_rng(3)
    gamma, directions = 0.2, 40_000
    x, omega = rng.random((6, 3)), gamma * rng.standard_cauchy((3, directions))
    phases = quantised((x @ omega) / (2 * np.pi) + rng.random(directions), np.uint16)
    ((_, z),) = feature_chunks(phases, 4)
    distances = np.abs(x[:, None] - x).sum(2)
    np.testing.assert_allclose(z @ z.T, np.exp(-4 * gamma * distances), atol=0.03)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bytes_", [1, 200, 1 << 20])
def test_chunks_make_up_all_features(
    dtype: type, bytes_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases, found = draw(dtype), np.full((50, 7), np.nan)
    monkeypatch.setattr(phases_module, "_CHUNK", bytes_)
    for part, z in feature_chunks(phases, 3):
        assert z.nbytes <= max(bytes_, 7 * z.itemsize)
        found[part] = z
    np.testing.assert_allclose(found, np.sqrt(2 / 7) * cosines(phases, 3), rtol=2e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_arrays_and_views_have_the_same_cosines(dtype: type) -> None:
    phases = draw(dtype, (9000, 33))
    some = phases[::3, 4:9]
    np.testing.assert_array_equal(cosines(phases)[::3, 4:9], cosines(some))
    np.testing.assert_array_equal(cosines(np.asfortranarray(phases)), cosines(phases))


def test_no_rows_make_no_chunks() -> None:
    phases = np.empty((0, 3), np.uint16)
    assert list(feature_chunks(phases)) == []
    assert cosines(phases).shape == (0, 3)


def test_other_integers_and_multiples_are_refused() -> None:
    wrong = np.zeros((2, 2), np.int64)
    for call in (angles, cosines, lambda p: list(feature_chunks(p))):
        with pytest.raises(OptionError, match="phases are int64; use uint16 or uint32"):
            call(wrong)
    with pytest.raises(OptionError, match="multiple is 0; use a whole number from 1"):
        cosines(np.zeros((2, 2), np.uint16), 0)
