"""The FedCG paper's protocols against the pooled rows, and what their messages show."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hospitals import Array, server, small
from nodes import Table
from sklearn.datasets import load_breast_cancer

from fedkern_flwr.simulations.papers.fedcg import (
    Hospital,
    chain,
    naive,
    sample_landmarks,
)

GAMMA, LAMBDA, M, SEED = 0.5, 1.0, 6, 3
CUTS = (0, 100, 130, 200)


def dealt(centres: int, kernel: str = "rbf") -> tuple[list[Hospital], list[np.ndarray], np.ndarray]:
    """Three hospitals, the landmarks' slices, and the pooled kernel from all features at once."""
    x, y = load_breast_cancer(return_X_y=True)
    x, y = ((x - x.min(0)) / np.ptp(x, 0))[: CUTS[-1]], 2.0 * y[: CUTS[-1]] - 1.0
    w = sample_landmarks("U", M, x, np.random.default_rng(0))
    blocks, slices = (np.array_split(a, centres + 1, axis=1) for a in (x, w))
    parts = [slice(*cut) for cut in pairwise(CUTS)]
    hospitals = [Hospital([block[part] for block in blocks], y[part]) for part in parts]
    apart = x[:, None] - w
    square = (apart**2 if kernel == "rbf" else np.abs(apart)).sum(axis=-1)
    return hospitals, slices, np.exp(-GAMMA * square)


def labels(hospitals: list[Hospital]) -> np.ndarray:
    return np.concatenate([one.y for one in hospitals])


def pooled(k: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.linalg.solve(k.T @ k + LAMBDA * np.eye(k.shape[1]), k.T @ y)


@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
@pytest.mark.parametrize("centres", [0, 1, 3])
@pytest.mark.parametrize("protocol", [naive, chain])
def test_is_the_pooled_solution(protocol, centres, kernel) -> None:  # type: ignore[no-untyped-def]
    hospitals, w, k = dealt(centres, kernel)
    found, _ = protocol(hospitals, w, GAMMA, LAMBDA, kernel=kernel, tolerance=1e-22)
    np.testing.assert_allclose(found.alpha, pooled(k, labels(hospitals)), rtol=1e-9)
    assert 2 < found.epochs <= 3 * M


def test_stops_at_the_first_residual_below_the_tolerance() -> None:
    hospitals, w, _ = dealt(1)
    long, _ = chain(hospitals, w, GAMMA, LAMBDA, tolerance=1e-20)
    for tolerance, epochs in ((1.001 * long.squared[3], 3), (long.squared[3], 4)):
        short, _ = chain(hospitals, w, GAMMA, LAMBDA, tolerance=tolerance)
        assert short.squared == long.squared[: epochs + 1]
    assert chain(hospitals, w, GAMMA, LAMBDA, epochs=2)[0].epochs == 2


def test_starts_at_given_coefficients_and_stays_at_a_solution() -> None:
    hospitals, w, _ = dealt(1)
    found, _ = naive(hospitals, w, GAMMA, LAMBDA, alpha=np.zeros(M))
    assert not found.iterates[0].any()
    silent = [Hospital(one.blocks, np.zeros(len(one.y))) for one in hospitals]
    found, _ = naive(silent, w, GAMMA, LAMBDA, alpha=np.zeros(M))
    assert found.epochs == 0
    assert not found.alpha.any()


def test_landmarks_are_rows_uniform_or_normal() -> None:
    x = np.random.default_rng(1).beta(2.0, 5.0, (400, 3))
    draw = partial(sample_landmarks, x=x, rng=np.random.default_rng(2))
    rows = draw("P", 50)
    assert (rows[:, None] == x).all(axis=2).sum() == len(np.unique(rows, axis=0)) == 50
    uniform, normal = draw("U", 4000), draw("N", 4000)
    assert 0.0 <= min(uniform.min(), normal.min()) < max(uniform.max(), normal.max()) <= 1.0
    np.testing.assert_allclose(uniform.mean(axis=0), 0.5, atol=0.02)
    np.testing.assert_allclose(normal.mean(axis=0), x.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(normal.std(axis=0), x.std(axis=0), atol=0.02)


# -- the strategy


def plain_cg(k: Array, y: Array, lam: float) -> list[float]:
    """Solve (K^T K + lambda I) x = K^T y as Hestenes and Stiefel did; return all sum(r^2)."""
    b = k.T @ y
    x, r, p, squares = np.zeros_like(b), b.copy(), b.copy(), [b @ b]
    while np.sqrt(squares[-1]) > 1e-10 * np.linalg.norm(b):
        q = k.T @ (k @ p) + lam * p
        step = squares[-1] / (p @ q)
        x, r = x + step * p, r - step * q
        squares.append(r @ r)
        p = r + squares[-1] / squares[-2] * p
    return squares


def test_residuals_are_those_of_the_centralised_method(tmp_path: Path) -> None:
    """As the paper's figure 6 has them: sum(r^2) after each iteration, an exchange each."""
    nodes = server(tmp_path)(small(90))
    options: Table = {"solver": "cg", "regularization": 0.1, "gamma": 8.0}
    fitted = nodes.fit(preconditioner_rank=0, **options)
    k, y, _ = nodes.kernel(fitted)
    squares = plain_cg(k[: len(y)], y[:, 0], 0.1)
    found = [row["squared_residual"] for row in fitted.history_]
    assert len(found) == len(squares) - 1 == fitted.metrics_["iterations"] > 10
    assert found[:-1] == pytest.approx(squares[1:-1], rel=1e-3)
    relative = [row["residual"] for row in fitted.history_]
    np.testing.assert_allclose(np.square(relative) * squares[0], found, rtol=1e-9)
    assert relative[-1] == fitted.metrics_["residual"] <= 1e-10 < relative[-2]
    phases = ("describe", "hybrid-distances", "hybrid-coefficients", "finish")
    products = {"hybrid-product": 1 + len(found)}  # K^T y comes first
    assert fitted.ledger_.by_phase == Counter({**dict.fromkeys(phases, 1), **products})
    hard: Table = {"solver": "cg", "gamma": 1.0, "landmarks": 60, "regularization": 1e-3}
    made = [nodes.fit(preconditioner_rank=rank, **hard) for rank in (0, 10, None, 60)]
    plain, some, half, all_ = (fitted.metrics_["iterations"] for fitted in made)
    assert plain > some > half >= all_
    assert half < plain / 5
    assert all_ <= 4
    assert made[2].ledger_.by_phase["hybrid-product"] == 1 + half  # the sketch comes with K^T y
