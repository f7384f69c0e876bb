"""The kernel between items as a device gets it, against the whole one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simplex import minimise

from fedkern_flwr.gram import recommenders
from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.gram.matrix import pack
from fedkern_flwr.gram.recommenders import ItemKernel, compact

KERNELS = {
    "linear": DotKernel("linear"),
    "cosine": DotKernel("cosine"),
    "rbf": DotKernel("rbf", gamma=0.03),
    "poly": DotKernel("poly", degree=2, gamma=0.1),
    "conjunctive": DotKernel("conjunctive", degree=2),
    "disjunctive": DotKernel("disjunctive", degree=2),
    "series": DotKernel("series", coefficients=(0.0, 1.0, 0.5)),
}
CATALOGUE, USERS = 30, 25
#: Items of the kernel: others were suppressed.
ITEMS = np.delete(np.arange(CATALOGUE), [0, 3, 7, 8, 29]).astype(np.int32)


def ratings(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = (rng.random((USERS, CATALOGUE)) < rng.random(CATALOGUE)).astype(np.int64)
    x[:2] = 1
    return x


def gram(seed: int = 0) -> np.ndarray:
    x = ratings(seed)[:, ITEMS]
    return x.T @ x


def of(kernel: DotKernel, seed: int = 0) -> ItemKernel:
    return ItemKernel.of_gram(gram(seed), ITEMS, CATALOGUE, USERS, kernel)


def expected(
    kernel: DotKernel, positives: np.ndarray, lam: float, subtract: bool = True, seed: int = 0
) -> np.ndarray:
    """CF-KOMD with the whole kernel, zero where an item is suppressed."""
    whole = np.zeros((CATALOGUE, CATALOGUE))
    whole[np.ix_(ITEMS, ITEMS)] = kernel.matrix(gram(seed), USERS)
    q = whole.sum(axis=1) / len(ITEMS)
    liked = np.intersect1d(positives, ITEMS)
    if not liked.size:
        return q
    a = minimise(whole[np.ix_(liked, liked)] + lam * np.eye(liked.size), q[liked])
    return whole[:, liked] @ a - (q if subtract else 0.0)


@pytest.mark.parametrize("subtract", [True, False])
@pytest.mark.parametrize("name", KERNELS)
def test_scores_are_those_of_cf_komd_with_the_whole_kernel(name: str, subtract: bool) -> None:
    kernel = KERNELS[name]
    device = of(kernel)
    largest = np.abs(kernel.matrix(gram(), USERS)).max()
    for lam in (0.1, 10.0):
        for positives in (
            np.array([1]),
            np.array([0, 2, 5, 7, 11, 28]),
            np.flatnonzero(ratings()[5]),
        ):
            found = device.scores(positives, lam * largest, subtract_mean=subtract)
            right = expected(kernel, positives, lam * largest, subtract)
            np.testing.assert_allclose(found, right, atol=1e-8 * largest, rtol=0)


def test_users_without_known_positives_get_what_goes_with_many() -> None:
    device = of(KERNELS["cosine"])
    for positives in (np.zeros(0, int), np.array([0, 3, 29])):
        for subtract in (True, False):
            found = device.scores(positives, 0.1, subtract_mean=subtract)
            np.testing.assert_array_equal(found[ITEMS], device.mean)
            assert not np.delete(found, ITEMS).any()


def test_the_mean_is_one_of_the_items_of_the_kernel() -> None:
    kernel = KERNELS["linear"]
    np.testing.assert_allclose(of(kernel).mean, gram().sum(axis=1) / len(ITEMS), rtol=1e-15)


@pytest.mark.parametrize("chunk", [1, 40, 10_000])
def test_rows_in_chunks_make_the_same_kernel(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = of(KERNELS["cosine"])
    monkeypatch.setattr(recommenders, "_CHUNK", chunk)
    np.testing.assert_array_equal(of(KERNELS["cosine"]).mean, whole.mean)


def indefinite(size: int = 6) -> np.ndarray:
    """What a forged matrix can come to."""
    rng = np.random.default_rng(1)
    parts = [(rng.random((2, size)) < 0.7).astype(int) for _ in range(5)]
    found: np.ndarray = np.max([p.T @ p for p in parts], axis=0)
    return found


def test_a_kernel_that_is_not_positive_semi_definite_still_ranks() -> None:
    k = indefinite()
    assert np.linalg.eigvalsh(k)[0] < -0.1
    items = np.arange(6, dtype=np.int32)
    device = ItemKernel(
        DotKernel("linear"), items, 6, 5, k.mean(axis=1), k.diagonal(), pack(compact(k))
    )
    found = device.scores(items, 1e-4)
    assert np.isfinite(found).all()
    least = np.linalg.eigvalsh(k)[0]
    a = minimise(k + (1e-3 - least) * np.eye(6), k.mean(axis=1))
    np.testing.assert_allclose(found, k @ a - k.mean(axis=1), atol=1e-5)


def test_a_kernel_that_cannot_be_fitted_to_gives_the_means() -> None:
    """An error would tell the server, whose kernel it is, what the user likes."""
    kernel = of(KERNELS["cosine"])
    nobody = kernel.scores(np.zeros(0, int), 0.1)
    np.testing.assert_array_equal(kernel.scores(np.array([1, 2]), -1.0), nobody)


# -- few bytes


@pytest.mark.parametrize(
    ("largest", "dtype"),
    [(0, "u2"), (2**16 - 1, "u2"), (2**16, "u4"), (2**32 - 1, "u4"), (2**32, "u8"), (2**62, "u8")],
)
def test_numbers_take_as_few_bytes_as_they_can(largest: int, dtype: Any) -> None:
    numbers = np.array([[0, 1], [largest, 1]], np.int64)
    found = compact(numbers)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.astype(np.int64), numbers)
    assert compact(np.zeros((0, 0), np.int64)).dtype == "u2"
