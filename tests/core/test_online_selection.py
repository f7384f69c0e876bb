"""Choice of the kernels whose gradients are sent: bins (eq. 8) and subsets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.online.learning import select_bin, select_subset

TINY = 5e-324  # the smallest denormal number


WEIGHTS = [
    np.array([0.4, 0.3, 0.15, 0.1, 0.05]),
    np.full(5, 0.2),
    np.array([0.0, 0.0, 1.0, 0.0, 0.0]),
    np.array([1.0, 1e-5, 0.0, 0.0, 0.0]),
    np.array([1.0, TINY, 0.0, 0.0, 0.0]),
    np.array([1.0, TINY, TINY, TINY, TINY]),
    np.array([0.5, 0.5, 1e-200, 1e-300, 0.0]),
    np.array([0.999, 0.001, 0.0, 0.0, 0.0]),
]
CHOICES = list(itertools.product(range(len(WEIGHTS)), (1, 2, 3, 4, 5), (1.0, 0.3, 0.01)))


def subset_frequencies(weights: np.ndarray, many: int, xi: float, draws: int) -> np.ndarray:
    counts = np.zeros(weights.size)
    for seed in range(draws):
        chosen, _ = select_subset(weights, many, xi, np.random.default_rng(seed))
        counts[chosen] += 1
    return counts / draws


def all_probabilities(weights: np.ndarray, many: int, xi: float) -> np.ndarray:
    """Collect every kernel's probability from repeated draws."""
    found = np.full(weights.size, np.nan)
    for seed in range(2000):
        chosen, p = select_subset(weights, many, xi, np.random.default_rng(seed))
        found[chosen] = p
        if np.isfinite(found).all():
            break
    return found


@pytest.mark.parametrize(("which", "many", "xi"), CHOICES)
def test_subset_has_exactly_m_kernels_with_probabilities_that_sum_to_m(
    which: int, many: int, xi: float
) -> None:
    weights = WEIGHTS[which]
    floor = xi * many / weights.size
    for seed in range(20):
        chosen, p = select_subset(weights, many, xi, np.random.default_rng(seed))
        assert len(set(chosen.tolist())) == many
        assert chosen.dtype == np.int32
        assert (np.diff(chosen) > 0).all()
        assert ((p >= floor * (1 - 1e-12)) & (p <= 1.0 + 1e-12)).all()
    if xi >= 0.3:
        assert all_probabilities(weights, many, xi).sum() == pytest.approx(many, rel=1e-9)


@pytest.mark.parametrize("which", [0, 3, 5, 7])
@pytest.mark.parametrize(("many", "xi"), [(1, 0.3), (2, 1.0), (3, 0.3)])
def test_subset_includes_kernels_as_often_as_it_says(which: int, many: int, xi: float) -> None:
    weights, draws = WEIGHTS[which], 1500
    expected = all_probabilities(weights, many, xi)
    observed = subset_frequencies(weights, many, xi, draws)
    tolerance = 4.5 * np.sqrt(expected * np.maximum(1.0 - expected, 0.0) / draws) + 1e-9
    assert (np.abs(observed - expected) <= tolerance).all()


@given(
    weights=st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=12),
    many=st.integers(1, 12),
    xi=st.floats(0.05, 1.0),
    seed=st.integers(0, 2**20),
)
def test_subset_probabilities_of_any_weights(
    weights: list[float], many: int, xi: float, seed: int
) -> None:
    w = np.array(weights) / sum(weights)
    many = min(many, w.size)
    chosen, p = select_subset(w, many, xi, np.random.default_rng(seed))
    assert len(set(chosen.tolist())) == many
    assert ((p >= xi * many / w.size - 1e-12) & (p <= 1.0 + 1e-12)).all()
    if many == 1:  # then it is equation 8 with bins of one kernel
        np.testing.assert_allclose(p, (1 - xi) * w[chosen] + xi / w.size, rtol=1e-9)
    order = np.argsort(w[chosen])  # a heavier kernel is never less likely
    assert (np.diff(p[order]) >= -1e-12).all()


@given(
    weights=st.lists(st.sampled_from([0.0, TINY, 1e-300, 1e-9, 0.1, 0.1, 0.5, 1.0]), min_size=1),
    many=st.integers(1, 30),
    xi=st.floats(0.01, 1.0),
)
def test_gradients_divided_by_the_bins_probability_are_unbiased(
    weights: list[float], many: int, xi: float
) -> None:
    """The expectation over the draw is exact: every bin once, with its own probability."""
    w = np.array(weights)
    w = np.full(w.size, 1.0 / w.size) if w.sum() < 1e-100 else w / w.sum()
    many = min(many, w.size)
    gradient = np.random.default_rng(w.size).standard_normal(w.size)
    expectation, low, bins = np.zeros(w.size), 0.0, 0
    while low < 1.0 - 1e-9:
        chosen, p = select_bin(w, many, xi, low)
        assert len(set(p.tolist())) == 1
        expectation[chosen] += p * (gradient[chosen] / p)
        low, bins = low + p[0] * (1 + 1e-12), bins + 1
        assert 1 <= chosen.size <= many
    assert bins == -(-w.size // many)
    np.testing.assert_allclose(expectation, gradient, rtol=1e-9)


def test_bins_are_sorted_by_weight_with_ties_by_index() -> None:
    weights = np.array([0.1, 0.3, 0.1, 0.3, 0.2])
    bins = [select_bin(weights, 2, 1.0, draw)[0].tolist() for draw in (0.0, 0.34, 0.99999)]
    assert bins == [[1, 3], [4, 0], [2]]
    chosen, p = select_bin(weights, 2, 0.4, 0.0)
    np.testing.assert_allclose(p, 0.6 * 0.6 + 0.4 / 3)
    assert chosen.dtype == np.int32


def test_a_bin_of_all_kernels_is_certain() -> None:
    chosen, p = select_bin(np.array([0.2, 0.8]), 2, 0.5, 0.999)
    assert sorted(chosen.tolist()) == [0, 1]
    np.testing.assert_array_equal(p, 1.0)


def test_the_last_bin_is_taken_when_the_probabilities_round_below_one() -> None:
    weights = np.full(51, 1.0 / 51)
    chosen, _ = select_bin(weights, 1, 0.7, 1.0 - 2**-53)
    assert chosen.tolist() == [50]
