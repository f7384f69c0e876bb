"""Sums of products of few rows give the rows away; with fewer numbers than unknowns they do not."""

from __future__ import annotations

import numpy as np
import pytest

from fedkern_flwr.kernels.random_features import gaussian_frequencies
from fedkern_flwr.online import ridge
from fedkern_flwr.simulations.lab.attacks.product_inversion import Products, invert_products

WIDTHS = ridge.widths(1, 1.0)


def sums_of(rows: int, columns: int, features: int, messages: int) -> tuple[np.ndarray, Products]:
    """Return rows with labels, and the sums that clients of POF-RLS make of them."""
    rng = np.random.default_rng(rows + columns)
    x, y = rng.random((rows, columns)) / np.sqrt(columns), rng.random(rows) - 0.5
    parts = np.array_split(np.arange(rows), messages)
    raw = tuple(ridge.sums(ridge.raw_rows(x[one]), y[one]) for one in parts)
    omega, total = np.zeros((0, columns, 0)), np.zeros((0, 0))
    if features:
        total = ridge.sums(ridge.kernel_rows(x, WIDTHS, features, 3), y)
        omega = gaussian_frequencies(WIDTHS, columns, features, 3, "float64", "orthogonal")[None]
    scale = 1.0 / np.sqrt(max(1, features))
    sums = Products(raw, tuple(len(one) for one in parts), total, omega, scale)
    return np.column_stack([x, y]), sums


def recovered(rows: np.ndarray, sums: Products) -> tuple[float, bool]:
    x, y, sure = invert_products(sums, 0)
    found = np.column_stack([x, y])
    near = np.abs(rows[:, None] - found).max(axis=2).min(axis=1)
    return float((near < 1e-3).mean()), sure


@pytest.mark.parametrize(
    ("rows", "columns", "features", "messages"),
    [(1, 5, 0, 1), (2, 5, 0, 1), (3, 5, 4, 1), (5, 12, 8, 1), (10, 12, 20, 1), (4, 5, 3, 2)],
)
def test_more_numbers_than_unknowns_return_every_row(
    rows: int, columns: int, features: int, messages: int
) -> None:
    """One row or two from raw columns alone, more with features; also over several messages."""
    truth, sums = sums_of(rows, columns, features, messages)
    assert sums.numbers > rows * (columns + 1)
    assert recovered(truth, sums) == (1.0, True)


@pytest.mark.parametrize(
    ("rows", "columns", "features", "messages"), [(10, 5, 3, 1), (24, 12, 3, 1), (12, 5, 0, 2)]
)
def test_fewer_numbers_than_unknowns_return_no_row(
    rows: int, columns: int, features: int, messages: int
) -> None:
    truth, sums = sums_of(rows, columns, features, messages)
    assert sums.numbers < rows * (columns + 1)
    assert recovered(truth, sums) == (0.0, False)
