"""The server against FedCG's naive protocol: kernels of rows and landmarks give the rows away."""

from __future__ import annotations

import os
from itertools import pairwise
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn import datasets

from fedkern_flwr.errors import OptionError
from fedkern_flwr.simulations.lab.attacks.distances import distances_by_quadric, distances_by_svd
from fedkern_flwr.simulations.lab.attacks.edm_completion import (
    COMPLETIONS,
    alternating_descent,
    rank_alternation,
    reconstruction_errors,
    soft_impute,
)
from fedkern_flwr.simulations.lab.attacks.errors import correlation, relative_error
from fedkern_flwr.simulations.lab.attacks.trilateration import (
    distances_from_kernel,
    trilaterate,
    trilaterate_secret_widths,
    trilaterate_unknown_width,
)

DATA = os.environ.get("FEDKERN_DATA")
EXACT = 1e-6


def squared(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(cdist(a, b, "sqeuclidean"))


def scaled(x: np.ndarray) -> np.ndarray:
    """Scale features to [0, 1], as the paper does."""
    low, high = x.min(axis=0), x.max(axis=0)
    return np.asarray((x - low) / np.where(high > low, high - low, 1.0))


def table(name: str) -> np.ndarray:
    return scaled(getattr(datasets, f"load_{name}")().data)


def uniform(n: int, m: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and landmarks, uniform on [0, 1]."""
    rng = np.random.default_rng(seed)
    return rng.random((n, d)), rng.random((m, d))


def landmarks(m: int, x: np.ndarray, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((m, x.shape[1]))


def widths(m: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.1, 2.0, m)


class TestDistancesFromKernel:
    def test_inverts_the_gaussian_kernel(self) -> None:
        x, w = uniform(20, 7, 3)
        d = squared(x, w)

        np.testing.assert_allclose(distances_from_kernel(np.exp(-0.3 * d), 0.3), d, rtol=1e-12)
        gamma = widths(7)
        found = distances_from_kernel(np.exp(-gamma * d), gamma)
        np.testing.assert_allclose(found, d, rtol=1e-12)

    def test_where_the_kernel_underflows_only_a_bound_is_left(self) -> None:
        kernel = np.array([[1.0, np.exp(-700.0), np.exp(-740.0), 0.0]])

        found = distances_from_kernel(kernel, 1.0)

        np.testing.assert_allclose(found, [[0.0, 700.0, np.inf, np.inf]])
        assert np.isinf(distances_from_kernel(np.full((1, 1), 1e-40, np.float32), 1.0)).all()

    def test_rounding_above_one_is_distance_zero(self) -> None:
        found = distances_from_kernel(np.array([[1.0 + 2e-16]]), 1.0)

        assert found == 0.0


class TestTrilateration:
    def test_by_hand(self) -> None:
        w = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
        d = np.array([[25.0, 17.0, 9.0], [2.0, 10.0, 10.0]])

        np.testing.assert_allclose(trilaterate(d, w), [[3.0, 4.0], [1.0, 1.0]], atol=1e-14)

    def test_d_landmarks_give_only_what_they_span(self) -> None:
        x, w = uniform(50, 5, 5)

        found = trilaterate(squared(x, w), w)

        assert relative_error(found, x) > 0.1
        inside = (w - w.mean(axis=0))[:-1]
        np.testing.assert_allclose(found @ inside.T, x @ inside.T, atol=1e-12)

    def test_leaves_out_underflows(self) -> None:
        x, w = uniform(10, 12, 3)
        d = squared(x, w)
        d[0, :8] = d[1, :11] = d[2] = np.inf

        found = trilaterate(d, w)

        np.testing.assert_allclose(np.delete(found, [1, 2], 0), np.delete(x, [1, 2], 0), atol=1e-12)
        assert relative_error(found[1], x[1]) > 0.1
        assert np.isnan(found[2]).all()


class TestUnknownWidths:
    def test_one_gamma_by_hand(self) -> None:
        w = np.array([[0.0], [1.0], [3.0]])

        found = trilaterate_unknown_width(2.0 * np.array([[4.0, 1.0, 1.0]]), w)

        np.testing.assert_allclose(found.gamma, 2.0)
        np.testing.assert_allclose(found.x, [[2.0]])
        assert found.misfit < 1e-14

    def test_nor_do_distances_that_are_not_squared(self) -> None:
        """Equation 4.1 as printed: its exponents need only be squared."""
        x = table("iris")
        w, gamma = landmarks(10, x), widths(10)
        kernel = np.exp(-gamma * np.sqrt(squared(x, w)))

        found = trilaterate_secret_widths(distances_from_kernel(kernel, 1.0) ** 2, w)

        assert found.consistent
        np.testing.assert_allclose(found.gamma, gamma**2, rtol=1e-9)
        assert relative_error(found.x, x) < 1e-9

    @pytest.mark.parametrize(
        ("n", "m", "enough"), [(2, 11, False), (2, 12, True), (3, 8, False), (4, 8, True)]
    )
    def test_few_rows_are_enough_for_secret_widths(self, n: int, m: int, enough: bool) -> None:
        """Of n rows, min(n, d + 2) (m - d - 1) equations for m widths: d = 5."""
        x, w = uniform(n, m, 5)
        gamma = widths(m)

        found = trilaterate_secret_widths(gamma * squared(x, w), w)

        assert found.consistent == enough
        assert (relative_error(found.x, x) < EXACT) == enough
        assert (relative_error(found.gamma, gamma) < EXACT) == enough


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer"])
def test_few_landmarks_that_are_known_give_every_row(name: str) -> None:
    """d + 1 do, d + 2 with one unknown gamma, and d + 3 with a secret one each (equation 4.1)."""
    x = table(name)
    w = landmarks(x.shape[1] + 3, x)
    few, more = w[:-2], w[:-1]
    d = distances_from_kernel(np.exp(-0.5 * squared(x, few)), 0.5)
    assert relative_error(trilaterate(d, few), x) < 1e-10
    assert relative_error(trilaterate(d[:1], few), x[:1]) < 1e-10

    found = trilaterate_unknown_width(0.7 * squared(x, more), more)
    assert found.consistent
    np.testing.assert_allclose(found.gamma, 0.7, rtol=1e-9)
    assert relative_error(found.x, x) < 1e-9
    with pytest.raises(OptionError, match="fix no width"):
        trilaterate_unknown_width(0.7 * squared(x, few), few)

    gamma = widths(len(w))
    kernel = np.exp(-gamma * squared(x, w))
    found = trilaterate_secret_widths(distances_from_kernel(kernel, 1.0), w)
    assert found.consistent
    np.testing.assert_allclose(found.gamma, gamma, rtol=1e-8)
    assert relative_error(found.x, x) < 1e-8


@pytest.mark.parametrize(
    ("attack", "given", "text"),
    [
        *(
            (distances_from_kernel, (np.array([[0.5, value]]), 1.0), "between 0 and 1")
            for value in (-0.1, 1.1, np.nan, np.inf)
        ),
        (distances_from_kernel, (np.array([[0.5]]), 0.0), "gamma must be positive"),
        (trilaterate, (np.ones((3, 4)), np.ones((5, 2))), "do not fit landmarks"),
        (distances_by_svd, (np.array([[1.0, np.inf], [1.0, 2.0]]),), "infinite or missing"),
        (distances_by_quadric, (np.ones((5, 1)),), "rank 1"),
    ],
)
def test_what_no_kernel_can_be_is_refused(attack: Any, given: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        attack(*given)


class TestDistancesBySVD:
    def test_by_hand(self) -> None:
        d = np.array([[1.0, 25.0], [0.0, 16.0], [4.0, 4.0], [36.0, 4.0]])  # 0, 1, 3, 7 to 1, 5

        found = distances_by_svd(d)

        x = np.array([[0.0], [1.0], [3.0], [7.0]])
        np.testing.assert_allclose(found.distances, squared(x, x), atol=1e-10)
        assert found.consistent
        assert found.dimension == 1

    @pytest.mark.parametrize(("name", "m"), [("iris", 5), ("wine", 14), ("breast_cancer", 40)])
    def test_exact_on_data(self, name: str, m: int) -> None:
        x = table(name)
        kernel = np.exp(-0.5 * squared(x, landmarks(m, x)))

        found = distances_by_svd(distances_from_kernel(kernel, 0.5))

        assert found.dimension == x.shape[1]
        assert found.consistent
        assert relative_error(found.distances, squared(x, x)) < EXACT

    @pytest.mark.parametrize("d", [2, 5, 7])
    def test_conditions(self, d: int) -> None:
        """With c = (d + 1)(d + 2) / 2: n >= c, or n + m > c; not n + m = c, not m = d."""
        c = comb(d + 2, 2)
        spare = c // 4
        sizes = {
            (c, d + 1): True,
            (c + 5, d + 1): True,
            (d + 1, c + spare): True,
            (c // 2, c - c // 2 + spare): True,
            (c - d - 2, d + 2): False,
            (3 * c, d): False,
        }
        for (n, m), exact in sizes.items():
            x, w = uniform(n, m, d, seed=3)
            found = distances_by_svd(squared(x, w))
            error = relative_error(found.distances, squared(x, x))
            assert (error < EXACT) == exact, (n, m, error)
            assert found.consistent == exact, (n, m, found.misfit)

    def test_is_never_sure_and_wrong(self) -> None:
        rng = np.random.default_rng(5)
        sure = 0
        for seed in range(60):
            d = int(rng.integers(1, 6))
            n, m = (int(v) for v in rng.integers(2, comb(d + 2, 2) + 4, 2))
            x, w = uniform(n, m, d, seed=seed)
            found = distances_by_svd(squared(x, w))
            sure += found.consistent
            if found.consistent:
                assert relative_error(found.distances, squared(x, x)) < EXACT, (seed, n, m, d)
        assert sure > 20

    def test_a_constant_feature_changes_nothing(self) -> None:
        x, w = uniform(40, 9, 5)
        x[:, 2] = 0.25

        found = distances_by_svd(squared(x, w))

        assert found.consistent
        assert found.dimension == 4
        assert relative_error(found.distances, squared(x, x)) < EXACT

    def test_a_binary_feature_takes_the_landmarks_means(self) -> None:
        """On rows with x^2 = x there is a quadric, and their means leave its scale open."""
        x, w = uniform(60, 30, 4)
        x[:, 1] = np.rint(x[:, 1])

        found = distances_by_svd(squared(x, w))

        assert found.consistent
        assert relative_error(found.distances, squared(x, x)) < EXACT

    def test_a_float32_kernel_gives_six_digits(self) -> None:
        x = table("wine")
        kernel = np.exp(-0.5 * squared(x, landmarks(30, x))).astype(np.float32)

        found = distances_by_svd(distances_from_kernel(kernel, 0.5), rounding=1e-5)

        assert found.consistent
        assert relative_error(found.distances, squared(x, x)) < EXACT

    def test_too_few_rows_still_leak_a_good_guess(self) -> None:
        x = table("breast_cancer")[:100]  # 496 would be exact
        errors = []
        for m in (40, 160, 320):
            found = distances_by_svd(squared(x, landmarks(m, x)))
            assert not found.consistent
            assert correlation(found.distances, squared(x, x)) > 0.95
            errors.append(relative_error(found.distances, squared(x, x)))
        assert errors[0] > errors[1] > errors[2]
        assert errors[0] < 0.3
        assert errors[2] < 0.1

    @pytest.mark.skipif(DATA is None, reason="FEDKERN_DATA is not set")
    def test_sonar_and_ionosphere(self) -> None:
        """60 and 34 features for 208 and 351 rows: a guess, with 100 landmarks a good one."""
        for name, least in (("sonar", 0.95), ("ionosphere", 0.99)):
            x = scaled(np.load(Path(DATA or "") / f"{name}.npz")["X"])
            found = distances_by_svd(squared(x, landmarks(100, x)))
            assert not found.consistent
            assert correlation(found.distances, squared(x, x)) > least


class TestDistancesByQuadric:
    @pytest.mark.parametrize(("name", "m"), [("iris", 7), ("wine", 16)])
    def test_neither_widths_nor_landmarks_need_be_known(self, name: str, m: int) -> None:
        x = table(name)
        kernel = np.exp(-widths(m) * squared(x, landmarks(m, x)))

        found = distances_by_quadric(distances_from_kernel(kernel, 1.0))

        assert found.dimension == x.shape[1]
        assert found.consistent
        assert relative_error(found.distances, squared(x, x), up_to_scale=True) < EXACT

    @pytest.mark.parametrize(
        ("missing", "m", "exact"), [(0, 6, True), (0, 12, True), (1, 6, False), (0, 5, False)]
    )
    def test_conditions(self, missing: int, m: int, exact: bool) -> None:
        """It takes (d + 2)(d + 3) / 2 - 1 rows, one more to be sure, and d + 2 landmarks: d = 4."""
        x, w = uniform(21, m, 4)
        exponents = widths(m) * squared(x, w)
        few = slice(20 - missing)

        found = distances_by_quadric(exponents[few])

        error = relative_error(found.distances, squared(x[few], x[few]), up_to_scale=True)
        assert (error < EXACT) == exact
        assert not found.consistent
        assert distances_by_quadric(exponents).consistent == (m > 5)

    def test_too_few_rows_still_leak_a_guess(self) -> None:
        x = table("breast_cancer")[:100]
        exponents = widths(60) * squared(x, landmarks(60, x))

        found = distances_by_quadric(exponents)

        assert not found.consistent
        # 0.63 to 0.77 by the processor: the last bits of a null space fill what is left open
        assert correlation(found.distances, squared(x, x)) > 0.5


def ring_values(shape: tuple[int, int]) -> np.ndarray:
    """Return what a masked sum shows: uniform numbers of Z_2^64."""
    rng = np.random.default_rng(7)
    return rng.integers(0, 2**64, shape, dtype=np.uint64).astype(np.float64) / 2.0**40


def shuffled(d: np.ndarray) -> np.ndarray:
    return np.random.default_rng(8).permutation(d.ravel()).reshape(d.shape)


@pytest.mark.parametrize("m", [4, 30])
@pytest.mark.parametrize("hide", ["mask", "shuffle"])
def test_masked_or_shuffled_distances_give_nothing(m: int, hide: str) -> None:
    x = table("iris")
    w = landmarks(m, x)
    d = squared(x, w)
    d = ring_values(d.shape) if hide == "mask" else shuffled(d)

    for found in (distances_by_svd(d), distances_by_quadric(d)):
        assert not found.consistent
        assert abs(correlation(found.distances, squared(x, x))) < 0.15
    assert abs(correlation(trilaterate(d, w), x)) < 0.15
    if m > 5:
        for attack in (trilaterate_unknown_width, trilaterate_secret_widths):
            guess = attack(d, w)
            assert not guess.consistent
            assert abs(correlation(guess.x, x)) < 0.15


class TestScores:
    def test_relative_error_by_hand(self) -> None:
        truth = np.array([3.0, 4.0])

        assert relative_error(truth, truth) == 0.0
        assert relative_error(np.array([3.0, 1.0]), truth) == pytest.approx(0.6)
        assert relative_error(10.0 * truth, truth) == pytest.approx(9.0)
        assert relative_error(10.0 * truth, truth, up_to_scale=True) == pytest.approx(0.0)
        assert relative_error(0.0 * truth, truth, up_to_scale=True) == 1.0
        # (1, 0) scaled by 3 misses the 4
        assert relative_error(np.array([1.0, 0.0]), truth, up_to_scale=True) == pytest.approx(0.8)

    def test_correlation_leaves_out_the_diagonal(self) -> None:
        truth = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])

        assert correlation(5.0 - truth, truth) == pytest.approx(-1.0)
        assert correlation(np.array([[1.0, 2.0]]), np.array([[3.0, 7.0]])) == pytest.approx(1.0)


def completion_problem(n: int, m: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return distances of n rows and m landmarks, the mask without D_X, and D_X."""
    points = np.vstack(uniform(n, m, d))
    distances = squared(points, points)
    mask = np.ones(distances.shape, dtype=np.bool_)
    mask[:n, :n] = False
    return np.where(mask, distances, np.nan), mask, distances[:n, :n]


def stress(found: np.ndarray, distances: np.ndarray, mask: np.ndarray) -> float:
    return float(((found - distances)[mask] ** 2).sum())


def plain_descent(distances: np.ndarray, mask: np.ndarray, d: int, sweeps: int) -> np.ndarray:
    """Dokmanić et al., algorithm 4, one coordinate after another."""
    known = mask & ~np.eye(len(mask), dtype=bool)
    size = 1e-3 * np.sqrt(distances[known].mean() / d)
    x = np.random.default_rng(0).normal(0.0, size, (len(mask), d))
    for _ in range(sweeps):
        for i in range(len(x)):
            near = known[i]
            for k in range(d):
                gap = x[i, k] - x[near, k]
                excess = ((x[i] - x[near]) ** 2).sum(axis=1) - distances[i, near]
                polynomial = np.poly1d([0.0])
                for a, e in zip(gap, excess, strict=True):
                    polynomial += np.poly1d([1.0, 2.0 * a, e]) ** 2
                roots = polynomial.deriv().roots
                real = roots[np.abs(roots.imag) < 1e-9].real
                x[i, k] += min(real, key=polynomial)
    return squared(x, x)


class TestCompletion:
    def test_alternating_descent_is_the_plain_algorithm(self) -> None:
        distances, mask, _ = completion_problem(6, 4, 2)

        found = alternating_descent(distances, mask, 2, iterations=4)

        expected = plain_descent(distances, mask, 2, sweeps=4)
        np.testing.assert_allclose(found, expected, atol=1e-6)

    def test_alternating_descent_never_climbs(self) -> None:
        distances, mask, _ = completion_problem(30, 8, 4)

        steps = [
            stress(alternating_descent(distances, mask, 4, iterations=k), distances, mask)
            for k in range(1, 12)
        ]

        assert all(a >= b for a, b in pairwise(steps))
        assert steps[-1] < 0.2 * steps[0]

    def test_alternating_descent_completes_the_rows_block(self) -> None:
        distances, mask, truth = completion_problem(40, 20, 2)

        found = alternating_descent(distances, mask, 2, iterations=200)

        assert relative_error(found[:40, :40], truth) < 1e-4

    @pytest.mark.parametrize(
        ("complete", "largest"), [(rank_alternation, 1e-5), (soft_impute, 0.05)]
    )
    def test_low_rank_fills_single_gaps(self, complete: Any, largest: float) -> None:
        x, _ = uniform(60, 1, 2)
        truth = squared(x, x)
        gaps = np.triu(np.random.default_rng(0).random(truth.shape) < 0.1, 1)
        mask = ~(gaps | gaps.T)

        found = complete(np.where(mask, truth, 0.0), mask, 2, iterations=300)

        assert relative_error(found[~mask], truth[~mask]) < largest
        np.testing.assert_array_equal(found[mask], truth[mask])

    @pytest.mark.parametrize("name", COMPLETIONS)
    def test_gives_symmetric_distances_and_repeats_itself(self, name: str) -> None:
        distances, mask, _ = completion_problem(15, 6, 3)

        found, again = (
            COMPLETIONS[name](distances, mask, 3, iterations=20, seed=4) for _ in range(2)
        )

        np.testing.assert_array_equal(found, again)
        np.testing.assert_allclose(found, found.T, atol=1e-12)
        assert np.isfinite(found).all()

    @pytest.mark.parametrize("name", COMPLETIONS)
    def test_refuses_what_is_not_a_problem(self, name: str) -> None:
        distances, mask, _ = completion_problem(5, 4, 2)
        lopsided = mask.copy()
        lopsided[0, 8] = False
        complete = COMPLETIONS[name]

        with pytest.raises(OptionError, match="square matrices"):
            complete(distances, mask[:5], 2, iterations=1, seed=0)
        with pytest.raises(OptionError, match="symmetric"):
            complete(distances, lopsided, 2, iterations=1, seed=0)
        with pytest.raises(OptionError, match="finite"):
            complete(distances, np.ones_like(mask), 2, iterations=1, seed=0)

    def test_difficulty_of_completion_is_no_protection(self) -> None:
        """Where the iterative algorithms of figure 8 fail, closed forms are exact."""
        x = table("wine")[:110]

        errors = reconstruction_errors(x, landmarks(15, x), iterations=30)

        assert min(errors[name] for name in COMPLETIONS) > 0.1
        assert errors["svd"] < EXACT
        assert errors["trilateration"] < EXACT
