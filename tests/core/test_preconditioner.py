"""The randomised Nystrom preconditioner: exact where it must be, SPD always, and worth it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.kernels.dictionary import gaussian_kernel
from fedkern_flwr.solvers.conjugate_gradient import conjugate_gradient
from fedkern_flwr.solvers.preconditioner import NystromPreconditioner, probe_vectors

DATA = os.environ.get("FEDKERN_DATA")
LANDMARKS, PROBES, GAMMA, REGULARIZATION = 500, 200, 1.0, 1e-3


def gram(m: int, spectrum: np.ndarray, seed: int) -> np.ndarray:
    """A positive semidefinite matrix (m, m) with these leading eigenvalues, the others zero."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((m, len(spectrum))))
    return (q * spectrum) @ q.T


def test_probes_are_orthonormal_seeded_and_no_more_than_unknowns() -> None:
    probes = probe_vectors(40, 7, 3)
    assert probes.shape == (40, 7)
    np.testing.assert_allclose(probes.T @ probes, np.eye(7), atol=1e-14)
    np.testing.assert_array_equal(probes, probe_vectors(40, 7, 3))
    assert np.abs(probes - probe_vectors(40, 7, 4)).max() > 0.1
    assert probe_vectors(5, 9, 0).shape == (5, 5)
    for m, rank in ((0, 3), (3, 0)):
        with pytest.raises(OptionError, match="use at least 1 of each"):
            probe_vectors(m, rank, 0)


def test_probes_point_everywhere() -> None:
    """The mean of q q^T over 2,000 draws is I s / m, within 5 standard errors."""
    draws = np.array([probe_vectors(6, 2, seed) for seed in range(2000)])
    outer = np.einsum("tij,tkj->tik", draws, draws)
    error = np.abs(outer.mean(axis=0) - np.eye(6) * 2 / 6)
    assert (error < 5 * outer.std(axis=0) / np.sqrt(2000)).all()
    mean = np.abs(draws.mean(axis=0))  # no preferred sign
    assert (mean < 5 / np.sqrt(6 * 2000)).all()


def test_a_matrix_of_lower_rank_than_the_sketch_is_inverted_exactly() -> None:
    """Then l_s = 0 and P = (K^T K + lambda I) / lambda."""
    a = gram(50, np.geomspace(1e4, 1.0, 12), 0)
    probes = probe_vectors(50, 20, 1)
    inverse = NystromPreconditioner(a @ probes, probes, 1e-2)
    r = np.random.default_rng(2).standard_normal((50, 3))
    exact = 1e-2 * np.linalg.solve(a + 1e-2 * np.eye(50), r)
    np.testing.assert_allclose(inverse(r), exact, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(inverse.eigenvalues[:12], np.geomspace(1e4, 1.0, 12), rtol=1e-6)
    assert inverse.eigenvalues[12:].max() < 1e-8


def test_the_formula_holds_and_the_sketched_space_is_inverted_exactly() -> None:
    """P^-1 (A_nys + lambda I) is (l_s + lambda) on the span of U; beyond it P^-1 is 1 (eq. 5.3)."""
    a = gram(40, np.geomspace(1e3, 1e-3, 40), 3)
    probes = probe_vectors(40, 10, 4)
    inverse = NystromPreconditioner(a @ probes, probes, 0.1)
    basis, values = inverse.basis, inverse.eigenvalues
    approximation = a @ probes @ np.linalg.solve(probes.T @ a @ probes, probes.T @ a)
    np.testing.assert_allclose((basis * values) @ basis.T, approximation, atol=1e-9)
    assert (np.diff(values) <= 0).all()
    np.testing.assert_allclose(
        inverse((approximation + 0.1 * np.eye(40)) @ basis), (values[-1] + 0.1) * basis, atol=1e-9
    )
    beyond = np.eye(40) - basis @ basis.T
    np.testing.assert_allclose(inverse(beyond), beyond, atol=1e-12)
    p = (basis * (values + 0.1)) @ basis.T / (values[-1] + 0.1) + beyond
    np.testing.assert_allclose(inverse(np.eye(40)), np.linalg.inv(p), rtol=1e-6, atol=1e-9)


def test_as_many_probes_as_unknowns_leave_one_iteration() -> None:
    a = gram(30, np.geomspace(100.0, 0.1, 30), 5)
    probes = probe_vectors(30, 30, 6)
    inverse = NystromPreconditioner(a @ probes, probes, 1e-3)
    b = np.ones((30, 1))
    found = conjugate_gradient(lambda p: a @ p + 1e-3 * p, b, precondition=inverse)
    assert found.converged
    assert found.iterations <= 2


@given(
    m=st.integers(1, 25),
    rank=st.integers(1, 30),
    true_rank=st.integers(0, 25),
    decades=st.floats(0.0, 16.0),
    regularization=st.floats(-8.0, 2.0).map(lambda x: 10.0**x),
    noise=st.sampled_from([0.0, 1e-15, 1e-12, 1e-6, 1e-1]),
    seed=st.integers(0, 1000),
)
def test_it_is_symmetric_and_positive_definite_whatever_the_sketch(
    m: int,
    rank: int,
    true_rank: int,
    decades: float,
    regularization: float,
    noise: float,
    seed: int,
) -> None:
    a = gram(m, np.geomspace(1e3, 1e3 * 10.0**-decades, min(m, true_rank)), seed)
    probes = probe_vectors(m, rank, seed)
    sketch = a @ probes
    rng = np.random.default_rng(seed)
    sketch = sketch + noise * np.abs(sketch).max() * rng.uniform(-1, 1, sketch.shape)
    inverse = NystromPreconditioner(sketch, probes, regularization)
    dense = inverse(np.eye(m))
    np.testing.assert_allclose(dense, dense.T, atol=1e-12)
    values = inverse.eigenvalues
    smallest = values[-1] if values.size else 0.0
    exact = (smallest + regularization) / (values + regularization)
    expected = np.sort(np.concatenate([exact, np.ones(m - values.size)]))
    np.testing.assert_allclose(np.linalg.eigvalsh(dense), expected, rtol=1e-6, atol=1e-12)
    r = rng.standard_normal((m, 4))
    assert (np.einsum("ij,ij->j", r, inverse(r)) > 0).all()


def test_a_sketch_of_pure_noise_or_of_zeros_changes_nothing_much() -> None:
    probes = probe_vectors(20, 8, 7)
    r = np.random.default_rng(8).standard_normal((20, 2))
    np.testing.assert_allclose(NystromPreconditioner(0.0 * probes, probes, 1.0)(r), r, atol=1e-12)
    negative = NystromPreconditioner(-probes, probes, 1.0)  # no positive eigenvalue at all
    assert negative.eigenvalues.size == 0
    np.testing.assert_array_equal(negative(r), r)


def test_a_core_that_is_not_positive_is_cut() -> None:
    """Symmetric noise: no asymmetry gives it away, and Cholesky fails."""
    a = gram(30, np.array([100.0, 10.0, 1.0]), 9)
    probes = probe_vectors(30, 6, 10)
    inverse = NystromPreconditioner(a @ probes - 1e-9 * probes, probes, 1e-3)
    np.testing.assert_allclose(inverse.eigenvalues, [100.0, 10.0, 1.0], rtol=1e-6)
    b = np.ones((30, 1))
    assert conjugate_gradient(lambda p: a @ p + 1e-3 * p, b, precondition=inverse).iterations <= 3


def test_bad_input_is_refused() -> None:
    probes = probe_vectors(6, 3, 0)
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(OptionError, match="use a positive number"):
            NystromPreconditioner(probes, probes, bad)
    with pytest.raises(ProtocolError, match=r"shape \(6, 2\) instead of \(6, 3\)"):
        NystromPreconditioner(probes[:, :2], probes, 1.0)
    with pytest.raises(ProtocolError, match="NaN or infinite entries"):
        NystromPreconditioner(probes * np.nan, probes, 1.0)


def unit_cube(x: np.ndarray) -> np.ndarray:
    """Each feature scaled to [0, 1]."""
    lowest, highest = x.min(axis=0), x.max(axis=0)
    return np.asarray((x - lowest) / (highest - lowest))


def kernel_problem(x: np.ndarray, y: np.ndarray, sampling: str) -> tuple[np.ndarray, np.ndarray]:
    """K^T K and K^T y for Gaussian landmarks, K = exp(-GAMMA |x - w|^2)."""
    x, rng = unit_cube(x), np.random.default_rng(0)
    if sampling == "U":
        landmarks = rng.random((LANDMARKS, x.shape[1]))
    else:
        normal = rng.standard_normal((LANDMARKS, x.shape[1]))
        landmarks = np.clip(x.mean(axis=0) + x.std(axis=0) * normal, 0.0, 1.0)
    k = gaussian_kernel(x, landmarks, np.sqrt(0.5 / GAMMA))
    return k.T @ k, (k.T @ y)[:, None]


def real_data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels -1 or 1."""
    if name == "svmguide1":
        if not DATA:
            pytest.skip("FEDKERN_DATA is not set")
        data = np.load(Path(DATA) / "svmguide1.npz", allow_pickle=False)
        return data["X"], np.where(data["y"] > data["y"].min(), 1.0, -1.0)
    datasets = pytest.importorskip("sklearn.datasets")
    bunch = datasets.load_wine() if name == "wine" else datasets.load_breast_cancer()
    return bunch.data, np.where(bunch.target == 0, 1.0, -1.0)


@pytest.mark.parametrize("noise", [0.0, 1e-12])
@pytest.mark.parametrize(
    ("name", "sampling", "plain_at_least"),
    [
        ("wine", "U", 500),
        ("wine", "N", 500),
        ("breast-cancer", "U", 120),
        ("breast-cancer", "N", 600),
        ("svmguide1", "U", 250),
        ("svmguide1", "N", 180),
    ],
)
def test_hundreds_of_iterations_become_few_on_kernel_matrices(
    name: str, sampling: str, plain_at_least: int, noise: float
) -> None:
    """Measured: 654, 678, 148, 807, 358, 237 iterations become 2, 2, 5, 13, 2, 2."""
    a, b = kernel_problem(*real_data(name), sampling)

    def multiply(p: np.ndarray) -> np.ndarray:
        return np.asarray(a @ p + REGULARIZATION * p)

    plain = conjugate_gradient(multiply, b, tolerance=1e-10)
    probes = probe_vectors(LANDMARKS, PROBES, 0)
    sketch = a @ probes
    rounding = np.random.default_rng(1).uniform(-1, 1, sketch.shape)
    sketch = sketch + noise * np.abs(sketch).max() * rounding
    inverse = NystromPreconditioner(sketch, probes, REGULARIZATION)
    found = conjugate_gradient(multiply, b, tolerance=1e-10, precondition=inverse)
    assert plain.iterations >= plain_at_least
    assert found.converged
    assert found.iterations <= 20
    assert np.linalg.norm(b - multiply(found.x)) < 2e-10 * np.linalg.norm(b)
