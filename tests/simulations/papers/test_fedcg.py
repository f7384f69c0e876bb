"""The FedCG paper's protocols against the pooled rows, and what their messages show."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from fedkern_flwr.simulations.papers.fedcg import Hospital, chain, naive, sample_landmarks

GAMMA, LAMBDA, M = 0.5, 1.0, 6
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
