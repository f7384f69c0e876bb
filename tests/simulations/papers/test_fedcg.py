"""The FedCG paper's protocols against the pooled rows, and what their messages show."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord
from hospitals import TWO, Array, deal, server, small
from nodes import Table, side
from sklearn.datasets import load_breast_cancer

from fedkern_flwr.hybrid.landmarks import draw_landmarks
from fedkern_flwr.simulations.papers.fedcg import (
    SERVER,
    Hospital,
    build_kernel,
    chain,
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


def test_conjugate_gradients_are_those_of_the_paper_iterate_by_iterate(tmp_path: Path) -> None:
    """From the same start, without a preconditioner: Algorithm 1, from sums of all hospitals.

    The start is drawn by the server from the seed of the run. No party needs it: they are asked for
    products with it. The paper's program is given what the server drew.
    """
    tables, starts = deal(*side(60, 6), 3, 2, **TWO), list[Array]()
    m, lam, gamma = 20, 0.3, 4.0  # well conditioned: few digits go
    options: Table = {"solver": "cg", "init": "random", "preconditioner_rank": 0, "seed": 7}
    options |= {"gamma": gamma, "regularization": lam, "tolerance": 1e-14}

    def note(number: int, arrays: ArrayRecord) -> None:
        if not number:
            starts.append(arrays.to_numpy_ndarrays()[0])

    iterates = []
    for number in (1, 2, 4, 8):
        more = {"num_rounds": number, "evaluate_fn": note}
        iterates.append(server(tmp_path)(tables).fit(more, **options).coefficients_[:, 0])
    assert {start.tobytes() for start in starts} == {starts[0].tobytes()}
    assert np.abs(starts[0]).max() > 1.0

    rows: list[Hospital] = []
    for own in tables[:3]:
        known = [dict(zip(centre["ids"], centre["x"], strict=True)) for centre in tables[3:]]
        blocks = [np.array([rows[name] for name in own["ids"]]) for rows in known]
        rows.append(Hospital([*blocks, own["x"]], np.where(own["y"] == 1, 1.0, -1.0)))
    w = [draw_landmarks(t["landmark_seed"], m, t["ranges"]) for t in (*tables[3:], tables[0])]
    for paper in (chain, naive):
        limits = {"tolerance": 1e-30, "epochs": 8}
        found, _ = paper(rows, w, gamma, lam, alpha=starts[0][:, 0], **limits)
        assert np.abs(np.diff(found.iterates, axis=0)).max(axis=1).min() > 1e-3  # each is another
        for ours, number in zip(iterates, (1, 2, 4, 8), strict=True):
            np.testing.assert_allclose(ours, found.iterates[number], rtol=0.0, atol=1e-6)
