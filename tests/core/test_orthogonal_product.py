"""The paper's secure matrix product: exact, and what it does not hide."""

from __future__ import annotations

import numpy as np
import pytest

from fedkern_flwr.errors import OptionError
from fedkern_flwr.groups.orthogonal_product import (
    check_degenerate,
    default_vectors,
    draw_orthogonal,
    mask_multiplier,
)

RNG = np.random.default_rng(0)
X, C = RNG.standard_normal((20, 4)) * [1.0, 1e3, 1e-3, 1.0], RNG.standard_normal((20, 3))


@pytest.mark.parametrize("vectors", [1, 8, 16])
def test_the_product_is_exact_and_the_multiplier_is_not(vectors: int) -> None:
    z = draw_orthogonal(X, vectors, 5)
    assert z.shape == (20, vectors)
    np.testing.assert_allclose(z.T @ z, np.eye(vectors), atol=1e-12)
    np.testing.assert_allclose(X.T @ z / np.linalg.norm(X, axis=0)[:, None], 0.0, atol=1e-12)
    w = mask_multiplier(z, C)
    np.testing.assert_allclose(X.T @ w, X.T @ C, rtol=1e-9, atol=1e-9)
    assert np.abs(w - C).max() > 0.05


def test_vectors_are_drawn_by_the_seed() -> None:
    np.testing.assert_array_equal(draw_orthogonal(X, 3, 5), draw_orthogonal(X, 3, 5))
    assert np.abs(draw_orthogonal(X, 3, 5) - draw_orthogonal(X, 3, 6)).max() > 0.01


def test_repeated_columns_and_zero_columns_count_once() -> None:
    x = np.column_stack([X, X[:, :2], np.zeros(20)])
    z = draw_orthogonal(x, 16, 0)
    np.testing.assert_allclose(x.T @ mask_multiplier(z, C), x.T @ C, rtol=1e-9, atol=1e-9)
    with pytest.raises(OptionError, match="17 vectors orthogonal to columns of rank 4 in 20 rows"):
        draw_orthogonal(x, 17, 0)


@pytest.mark.parametrize("vectors", [0, 17, 30])
def test_more_vectors_than_there_are_are_refused(vectors: int) -> None:
    with pytest.raises(
        OptionError, match=r"^partition 3: .* in 20 rows; give every user more rows"
    ):
        draw_orthogonal(X, vectors, 0, party="partition 3")


def test_a_row_that_would_be_shown_by_itself_is_refused() -> None:
    x = X.copy()
    x[:, 0] = 0.0
    x[7, 0] = 3.0  # the only row with a value: every orthogonal vector is zero there
    with pytest.raises(OptionError, match="1 rows do not mix with others"):
        draw_orthogonal(x, 5, 0)
    z = np.eye(4)[:, :2]
    with pytest.raises(OptionError, match="2 rows do not mix with others"):
        check_degenerate(z)


def test_a_guess_of_a_column_can_be_tested() -> None:
    """Documented: whoever has Z sees whether a guess is right."""
    z = draw_orthogonal(X, 8, 0)
    assert np.linalg.norm(z.T @ X[:, 1]) < 1e-9 * np.linalg.norm(X[:, 1])
    assert np.linalg.norm(z.T @ (X[:, 1] + 100.0 * RNG.standard_normal(20))) > 1.0


def test_default_number_of_vectors() -> None:
    assert default_vectors(20, 4) == 8
    assert default_vectors(5, 4) == 1
