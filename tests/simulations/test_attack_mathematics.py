"""What the attacks compute: rows from distances and sums, profiles from a matrix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from fedkern_flwr.simulations.attacks import pof_mkl
from fedkern_flwr.simulations.attacks.distances import (
    angles_apart,
    columns_of_phases,
    coordinates,
    distances_by_svd,
    equal_rows,
    from_known,
    relative_error,
    share_of_columns,
    two_valued,
    unwrapped,
)
from fedkern_flwr.simulations.attacks.inversion import TOLERANCE, invert_gradient, invert_release
from fedkern_flwr.simulations.attacks.secure_gram import peel_profiles

# -- POF-MKL


def test_so_are_most_of_those_in_the_papers_bins() -> None:
    """All but those of which a bin has narrow kernels only, whose phases wrap."""
    options: dict[str, Any] = {"precision": "float64", "step_size": "paper"}
    recorded = pof_mkl.run(0, secure=False, samples_per_round=1, **options)
    assert recorded.strategy.selection == "bins"
    assert pof_mkl.samples_found(recorded) > 0.6


def test_the_wrong_frequencies_recover_nothing() -> None:
    recorded = pof_mkl.run(0, secure=False, samples_per_round=1)
    for one in list(pof_mkl.observe(recorded))[:30]:
        found = pof_mkl.invert(replace(one, request=replace(one.request, seed=1)))
        assert found is None or found.misfit > 1e-3


def test_a_zero_gradient_and_too_few_frequencies_determine_nothing() -> None:
    rng = np.random.default_rng(0)
    rho, theta = rng.standard_normal((1, 2, 4)), np.zeros((1, 4))
    fixed = {"probability": 1.0, "regularization": 1e-3}
    assert invert_gradient(rng.standard_normal((1, 4)), theta, rho, **fixed) is None
    assert invert_gradient(theta, theta, rho, **fixed) is None


@pytest.mark.parametrize("number", [0, pytest.param(20, marks=pytest.mark.long)])
def test_fewer_numbers_than_unknowns_return_no_row(number: int) -> None:
    """The same sum and the same effort, but a part of the numbers."""
    release, members = pof_mkl.whole_gradients(0).release(number)
    rows, misfit = invert_release(release, 0)
    assert misfit < TOLERANCE
    middle = np.append(np.zeros(pof_mkl.COLUMNS), 0.5 - release.middle)
    assert cdist(members, rows + middle, "chebyshev").min(axis=1).max() < pof_mkl.RETURNED
    few = np.random.default_rng(0).permutation(release.total.size) < 0.9 * members.size
    part = np.where(few.reshape(release.total.shape), release.total, np.nan)
    rows, _ = invert_release(replace(release, total=part), 0, starts=4)
    assert cdist(members, rows + middle, "chebyshev").min() > pof_mkl.RETURNED


def test_strangers_are_no_members() -> None:
    """Negative control: of rows that are in no sum nothing is told."""
    rng, found = np.random.default_rng(0), []
    recorded = pof_mkl.whole_gradients(0)
    for number in range(0, 40, 4):
        release, _ = recorded.release(number)
        others = rng.permutation(np.delete(recorded.rows, number, axis=1).reshape(-1, 5))
        familiar, one, other = np.array_split(others, 3)
        scores = pof_mkl.sum_membership(release, familiar, np.concatenate([one, other]))
        found.append(pof_mkl.advantage(*np.split(scores, [len(one)])))
    assert abs(np.mean(found)) < 0.2
    assert pof_mkl.advantage(np.array([1.0, 2.0]), np.array([0.0, 1.0])) == 0.75  # ties by half


# -- FedCG: distances to landmarks


def squared(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(cdist(a, b, "sqeuclidean"))


def uniform(n: int, m: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and landmarks, uniform on [0, 1]."""
    rng = np.random.default_rng(seed)
    return rng.random((n, d)), rng.random((m, d))


@pytest.mark.parametrize(("n", "m", "d"), [(100, 100, 4), (40, 20, 5), (50, 12, 4)])
def test_unknown_landmarks_give_the_distances_among_many_rows(n: int, m: int, d: int) -> None:
    """More than (d + 1) (d + 2) / 2 of them; of fewer there is a guess."""
    x, w = uniform(n, m, d)
    assert relative_error(distances_by_svd(squared(x, w)), squared(x, x)) < 1e-10
    few = x[: d + 2]
    assert relative_error(distances_by_svd(squared(few, w)), squared(few, few)) > 1e-3


# -- values of single rows


@pytest.mark.parametrize("narrower", [1.0, 16.0])
def test_phases_of_any_width_give_binary_columns_and_rows_from_known_ones(narrower: float) -> None:
    """A width that is 16 times smaller turns phases oftener, but not between neighbours."""
    rng = np.random.default_rng(0)
    x = (rng.random((120, 6)) < 0.4).astype(float)
    x[:, 5] = np.maximum(x[:, 0], x[:, 1])  # depends on others
    phases = (x @ rng.normal(scale=narrower * 0.05, size=(6, 500))) % (2.0 * np.pi)
    assert share_of_columns(columns_of_phases(phases, 1e-4), x) == 1.0
    first, kinds = equal_rows(angles_apart(phases), 1e-6)
    assert len(first) == len(np.unique(x, axis=0)) == kinds.max() + 1
    products = two_valued(coordinates(x[first] @ x[first].T, 1e-9))  # as a label owner has them
    assert share_of_columns(products, x[first]) == 1.0
    linear, known = unwrapped(phases, angles_apart(phases)), rng.permutation(120)[:40]
    np.testing.assert_allclose(from_known(linear, known, x[known]), x, atol=1e-9)


# -- Secure Gram


def profiles_of(users: int, items: int, *, seed: int = 0, min_support: int = 2) -> np.ndarray:
    """Binary profiles over items of very different popularity, none of them rare."""
    rng = np.random.default_rng(seed)
    popularity = np.clip(0.6 / np.arange(1.0, items + 1.0) ** 0.5, 0.08, 0.5)
    activity = rng.uniform(0.5, 2.0, (users, 1))
    rated = rng.random((users, items)) < np.minimum(popularity * activity, 0.9)
    supported = rated[:, rated.sum(axis=0) >= min_support]
    return supported[supported.any(axis=1)].astype(np.int64)


def rows_in(found: np.ndarray, x: np.ndarray) -> int:
    """How many of the rows found are rows of x."""
    truth = {tuple(row) for row in x.tolist()}
    return sum(tuple(row) in truth for row in found.tolist())


@pytest.mark.parametrize("rows", [
    profiles_of(2, 120), profiles_of(40, 120), profiles_of(80, 160, min_support=5),
    np.repeat(profiles_of(10, 60), 2, axis=0),
], ids=["2 users", "40 users", "support of five", "equal profiles"])  # fmt: skip
def test_fewer_users_than_items_are_all_found(rows: np.ndarray) -> None:
    found, remaining = peel_profiles(rows.T @ rows)
    assert not remaining.diagonal().any()
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, rows.tolist()))


@pytest.mark.parametrize("seed", [0, 1])
def test_two_rows_per_item_withstand_the_search(seed: int) -> None:
    x = profiles_of(140, 60, seed=seed, min_support=5)
    found, remaining = peel_profiles(x.T @ x, patience=20, limit=40)
    assert remaining.diagonal().any()
    assert rows_in(found, x) <= 2
