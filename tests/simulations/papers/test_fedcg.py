"""The FedCG paper's protocols against the pooled rows, and what their messages show."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from fedkern_flwr.simulations.papers.fedcg import (
    SERVER,
    Hospital,
    build_kernel,
    chain,
    initial,
    label_noise,
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


def test_a_width_per_landmark() -> None:
    hospitals, w, k = dealt(2)
    widths = np.linspace(0.5, 1.5, M)
    found, _ = chain(hospitals, w, GAMMA * widths, LAMBDA, tolerance=1e-22)
    np.testing.assert_allclose(found.alpha, pooled(k**widths, labels(hospitals)), rtol=1e-9)


def test_chain_and_naive_are_the_same_iteration() -> None:
    hospitals, w, k = dealt(2)
    results = [run(hospitals, w, GAMMA, LAMBDA, seed=SEED)[0] for run in (naive, chain)]
    np.testing.assert_allclose(*(one.iterates for one in results), rtol=1e-9)
    found = results[0]
    np.testing.assert_array_equal(found.iterates[0], initial(M, SEED))
    residual = k.T @ (k @ found.iterates[0] - labels(hospitals)) + LAMBDA * found.iterates[0]
    assert found.squared[0] == pytest.approx(residual @ residual)


def test_stops_at_the_first_residual_below_the_tolerance() -> None:
    hospitals, w, _ = dealt(1)
    long, _ = chain(hospitals, w, GAMMA, LAMBDA, tolerance=1e-20)
    short, _ = chain(hospitals, w, GAMMA, LAMBDA, tolerance=1e-3)
    assert short.squared == long.squared[: len(short.squared)]
    assert short.squared[-1] < 1e-3 <= short.squared[-2]
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


def test_naive_shows_the_server_every_block_and_label() -> None:
    hospitals, w, _ = dealt(2)
    _, transcript = naive(hospitals, w, GAMMA, LAMBDA)
    assert {receiver for _, receiver, *_ in transcript} == {SERVER}
    parties = ("centre 0", "centre 1", "hospital 1")
    for party, x, slice_ in zip(parties, hospitals[1].blocks, w, strict=True):
        (seen,) = (a for s, _, n, a in transcript if s == party and n == "kernel of hospital 1")
        np.testing.assert_array_equal(seen, build_kernel(x, slice_, GAMMA, "rbf"))
    (seen,) = (a for s, _, n, a in transcript if s == "hospital 1" and n == "labels")
    np.testing.assert_array_equal(seen, hospitals[1].y)


def test_chain_shows_a_party_the_kernel_before_it_and_the_server_every_hospital() -> None:
    hospitals, w, k = dealt(2)
    found, transcript = chain(hospitals, w, GAMMA, LAMBDA, seed=SEED, epochs=3)
    mine, y = slice(*CUTS[1:3]), hospitals[1].y
    directions = [a for _, r, n, a in transcript if (r, n) == ("hospital 1", "p")]
    assert len(directions) == 3
    blocks = [
        build_kernel(*both, GAMMA, "rbf") for both in zip(hospitals[1].blocks, w, strict=True)
    ]

    def received(receiver: str, name: str) -> list[np.ndarray]:
        return [a for _, r, n, a in transcript if (r, n) == (receiver, f"{name} of hospital 1")]

    # the direction is known: divided by it, what comes is the kernel of the blocks before
    for p, first, both in zip(
        directions, received("centre 1", "K p"), received("hospital 1", "K p"), strict=True
    ):
        np.testing.assert_allclose(first / p, blocks[0])
        np.testing.assert_allclose(both / p, blocks[0] * blocks[1])
    for p, back, sums in zip(
        directions, received("centre 0", "K^T K p"), received(SERVER, "K^T K p"), strict=True
    ):
        goes_back = (k[mine] @ p)[:, None] * blocks[1] * blocks[2]
        np.testing.assert_allclose(back, goes_back, atol=1e-12)
        np.testing.assert_allclose(sums, k[mine].T @ k[mine] @ p, atol=1e-12)
    # the server knows the seed of the noise: it has the gradient and the labels of a hospital
    (v,), (with_v,), (with_eta,) = (received(SERVER, n) for n in ("v", "K^T v", "K^T eta"))
    residual = k[mine] @ found.iterates[0] - y
    np.testing.assert_allclose(v - label_noise(len(y), SEED, 1), residual)
    np.testing.assert_allclose(with_v - with_eta, k[mine].T @ residual, atol=1e-12)
    assert {n for _, r, n, _ in transcript if r == "hospital 0"} == {
        "alpha",
        "p",
        *(f"K {name} of hospital 0" for name in ("alpha", "p")),
    }
