"""The solver against a plain textbook version, and the promises a federated method relies on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.errors import CheckpointError, OptionError, ProtocolError
from fedkern_flwr.solvers.conjugate_gradient import CGState, conjugate_gradient


def positive_matrix(m: int, seed: int, condition: float = 100.0) -> np.ndarray:
    """A symmetric matrix with eigenvalues from 1 to ``condition``."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((m, m)))
    return (q * np.geomspace(1.0, condition, m)) @ q.T


class Products:
    """Multiplies with a matrix and counts calls and columns; ``noise`` is relative."""

    def __init__(self, a: np.ndarray, noise: float = 0.0) -> None:
        self.a, self.noise = a, noise
        self.columns: list[int] = []
        self.rng = np.random.default_rng(0)

    def __call__(self, p: np.ndarray) -> np.ndarray:
        self.columns.append(p.shape[1])
        q = self.a @ p
        p[:] = np.nan  # whoever multiplies may use what it was given as it likes
        return q + self.noise * np.abs(q).max(axis=0) * self.rng.uniform(-1, 1, q.shape)


def textbook(
    a: np.ndarray, b: np.ndarray, tolerance: float, x: np.ndarray | None = None
) -> list[np.ndarray]:
    """Plain conjugate gradients for one right-hand side: all iterates."""
    x = np.zeros(len(b)) if x is None else x.copy()
    r = b - a @ x
    p = r.copy()
    iterates = [x.copy()]
    while np.sqrt(r @ r) > tolerance * np.sqrt(b @ b):
        q = a @ p
        old = r @ r
        step = old / (p @ q)
        x = x + step * p
        r = r - step * q
        p = r + (r @ r) / old * p
        iterates.append(x.copy())
    return iterates


def iterates_of(multiply: Any, b: np.ndarray, **options: Any) -> tuple[Any, list[np.ndarray]]:
    """The result and x after each iteration."""
    seen: list[np.ndarray] = []
    result = conjugate_gradient(
        multiply, b, on_iteration=lambda state, _: seen.append(state.x.copy()), **options
    )
    return result, seen


@pytest.mark.parametrize("m", [1, 2, 30])
def test_the_solution_is_that_of_a_direct_solver(m: int) -> None:
    a = positive_matrix(m, 0)
    b = np.random.default_rng(1).standard_normal((m, 3))
    found = conjugate_gradient(Products(a), b, tolerance=1e-12)
    assert found.converged
    np.testing.assert_allclose(found.x, np.linalg.solve(a, b), rtol=1e-9, atol=1e-11)


def test_every_iterate_is_that_of_the_textbook() -> None:
    a = positive_matrix(40, 2, condition=10.0)
    b = np.random.default_rng(3).standard_normal((40, 1))
    expected = textbook(a, b[:, 0], 1e-8)
    found, seen = iterates_of(Products(a), b, tolerance=1e-8)
    assert found.iterations == len(expected) - 1 == len(seen)
    for x, y in zip(seen, expected[1:], strict=True):
        np.testing.assert_allclose(x[:, 0], y, rtol=1e-12, atol=1e-12)
    for residual, y in zip(found.residuals[:, 0], expected, strict=True):
        norm = np.linalg.norm(b[:, 0] - a @ y) / np.linalg.norm(b)
        assert residual == pytest.approx(norm, rel=1e-6)
    np.testing.assert_allclose(found.squared, found.residuals**2 * (b**2).sum(), rtol=1e-12)


def test_a_random_start_takes_the_iterations_of_the_textbook() -> None:
    a, rng = positive_matrix(25, 4, condition=10.0), np.random.default_rng(5)
    b, start = rng.standard_normal((25, 1)), 10.0 * rng.standard_normal((25, 1))
    expected = textbook(a, b[:, 0], 1e-8, start[:, 0])
    multiply = Products(a)
    found = conjugate_gradient(multiply, b, start=start)
    assert found.iterations == len(expected) - 1
    assert len(multiply.columns) == found.iterations + 1
    assert found.residuals[0, 0] > 10.0
    np.testing.assert_allclose(found.x[:, 0], expected[-1], rtol=1e-8)


def test_a_known_product_with_the_start_saves_a_call() -> None:
    a, rng = positive_matrix(12, 6), np.random.default_rng(7)
    b, start = rng.standard_normal((12, 2)), rng.standard_normal((12, 2))
    multiply = Products(a)
    known = conjugate_gradient(multiply, b, start=start, start_product=a @ start)
    assert len(multiply.columns) == known.iterations
    asked = conjugate_gradient(lambda p: a @ p, b, start=start)
    np.testing.assert_allclose(known.x, asked.x, rtol=1e-12)


def test_right_hand_sides_share_the_calls_and_stop_one_by_one() -> None:
    """Each column goes as if it were alone; a call carries the columns still under way."""
    a = positive_matrix(30, 8, condition=10.0)
    values, vectors = np.linalg.eigh(a)
    b = np.random.default_rng(9).standard_normal((30, 4))
    b[:, 1] = vectors[:, 3] * values[3]  # solved in one iteration
    b[:, 2] = 0.0
    multiply = Products(a)
    found = conjugate_gradient(multiply, b)
    alone = [len(textbook(a, b[:, j], 1e-8)) - 1 for j in range(4)]
    assert alone[1:3] == [1, 0]
    assert found.iterations == max(alone) == len(multiply.columns)
    assert multiply.columns == [sum(i < n for n in alone) for i in range(found.iterations)]
    for j in range(4):
        expected = textbook(a, b[:, j], 1e-8)[-1]
        np.testing.assert_allclose(found.x[:, j], expected, rtol=1e-11, atol=1e-12)
    assert (np.diff(found.squared[1:, 1]) == 0).all()


def test_the_solution_for_a_zero_right_hand_side_is_zero() -> None:
    multiply = Products(positive_matrix(5, 10))
    found = conjugate_gradient(multiply, np.zeros((5, 2)), start=np.ones((5, 2)))
    assert found.converged
    assert found.iterations == 0 == len(multiply.columns)
    assert not found.x.any()
    assert found.residuals.tolist() == [[0.0, 0.0]]
    b = np.eye(5)[:, :2] * [1.0, 0.0]
    mixed = conjugate_gradient(multiply, b, start=np.ones((5, 2)))
    assert mixed.converged
    assert not mixed.x[:, 1].any()
    assert set(multiply.columns) == {1}


@pytest.mark.parametrize("preconditioned", [False, True])
def test_a_resumed_run_is_bit_for_bit_the_run_that_never_stopped(
    tmp_path: Path, preconditioned: bool
) -> None:
    a = positive_matrix(20, 11)
    diagonal = np.diag(a)[:, None]
    options: dict[str, Any] = {"tolerance": 1e-10}
    if preconditioned:
        options["precondition"] = lambda r: r / diagonal
    b = np.random.default_rng(12).standard_normal((20, 3))
    b[:, 1] = a @ np.eye(20)[0] + 1e-9 * b[:, 1]
    whole, iterates = iterates_of(lambda p: a @ p, b, **options)
    for stop in range(0, whole.iterations + 1, 3):
        states: list[CGState] = []
        conjugate_gradient(
            lambda p: a @ p,
            b,
            max_iterations=stop,
            on_iteration=lambda state, _, kept=states: kept.append(state),
            **options,
        )
        if not states:
            continue
        path = tmp_path / f"{stop}.npz"
        save_arrays(path, states[-1].arrays(), {})
        state = CGState.from_arrays(load_arrays(path)[0])
        assert state.iteration == stop
        before = state.arrays()
        rest, seen = iterates_of(lambda p: a @ p, b, state=state, **options)
        assert rest.iterations == whole.iterations == stop + len(seen)
        assert all((x == y).all() for x, y in zip(seen, iterates[stop:], strict=True))
        np.testing.assert_array_equal(rest.squared, whole.squared)
        assert all((state.arrays()[name] == before[name]).all() for name in before)


def test_a_finished_run_can_go_on_to_a_smaller_tolerance() -> None:
    a = positive_matrix(20, 13)
    b = np.random.default_rng(14).standard_normal((20, 2))
    states: list[CGState] = []
    coarse = conjugate_gradient(
        lambda p: a @ p, b, tolerance=1e-3, on_iteration=lambda state, _: states.append(state)
    )
    again = conjugate_gradient(lambda p: a @ p, b, tolerance=1e-3, state=states[-1])
    assert again.iterations == coarse.iterations
    fine = conjugate_gradient(lambda p: a @ p, b, tolerance=1e-10, state=states[-1])
    np.testing.assert_allclose(fine.x, np.linalg.solve(a, b), rtol=1e-8, atol=1e-10)


def test_the_callback_sees_the_residuals_of_the_result() -> None:
    a = positive_matrix(10, 15)
    b = np.random.default_rng(16).standard_normal((10, 2))
    seen: list[np.ndarray] = []
    found = conjugate_gradient(lambda p: a @ p, b, on_iteration=lambda _, r: seen.append(r))
    np.testing.assert_array_equal(np.array(seen), found.residuals[1:])


def test_a_preconditioner_gives_the_iterates_of_the_transformed_system() -> None:
    """With P = L L^T the iterates are those of L^-1 A L^-T, and the exact inverse needs one."""
    a, rng = positive_matrix(15, 17), np.random.default_rng(18)
    b = rng.standard_normal((15, 2))
    lower = np.linalg.cholesky(positive_matrix(15, 19, condition=5.0))
    found, seen = iterates_of(
        lambda p: a @ p, b, precondition=lambda r: np.linalg.solve(lower @ lower.T, r)
    )
    inverse = np.linalg.inv(lower)
    for j in range(2):
        transformed = textbook(inverse @ a @ inverse.T, inverse @ b[:, j], 1e-14)
        for x, y in zip(seen[:8], transformed[1:9], strict=True):
            np.testing.assert_allclose(x[:, j], inverse.T @ y, rtol=1e-9, atol=1e-11)
    assert found.converged
    assert conjugate_gradient(lambda p: a @ p, b, precondition=lambda r: r / 7.0).converged
    exact = conjugate_gradient(lambda p: a @ p, b, precondition=lambda r: np.linalg.solve(a, r))
    assert exact.iterations == 1


def test_an_indefinite_matrix_ends_its_column_and_no_other() -> None:
    a = np.diag([1.0, 2.0, -1.0, 3.0])
    b = np.array([[1.0, 1.0], [1.0, 1.0], [3.0, 0.0], [1.0, 1.0]])
    multiply = Products(a)
    found = conjugate_gradient(multiply, b)
    assert not found.converged
    np.testing.assert_allclose(found.x[:, 1], [1.0, 0.5, 0.0, 1 / 3], rtol=1e-9, atol=1e-12)
    assert found.residuals[-1, 0] > 0.1
    assert found.iterations < 10
    assert np.isfinite(found.x).all()
    zero = conjugate_gradient(lambda p: 0.0 * p, b)
    assert not zero.converged
    assert not zero.x.any()
    assert zero.iterations == 1


def test_a_preconditioner_that_is_not_positive_ends_the_column() -> None:
    a = positive_matrix(6, 20)
    found = conjugate_gradient(lambda p: a @ p, np.ones((6, 1)), precondition=lambda r: -r)
    assert not found.converged
    assert found.iterations == 0


def test_too_few_iterations_are_told() -> None:
    a = positive_matrix(30, 21)
    found = conjugate_gradient(lambda p: a @ p, np.ones((30, 1)), max_iterations=5)
    assert not found.converged
    assert found.iterations == 5
    assert found.residuals.shape == found.squared.shape == (6, 1)
    assert conjugate_gradient(lambda p: a @ p, np.ones((30, 1)), max_iterations=0).iterations == 0


@pytest.mark.parametrize("noise", [1e-12, 1e-9])
def test_rounded_products_leave_a_true_residual_of_their_size(noise: float) -> None:
    a = positive_matrix(60, 22, condition=1e3)
    b = np.random.default_rng(23).standard_normal((60, 1))
    exact = conjugate_gradient(lambda p: a @ p, b, tolerance=1e-10)
    found = conjugate_gradient(Products(a, noise), b, tolerance=1e-10)
    assert found.converged
    assert found.iterations < 1.5 * exact.iterations
    true = np.linalg.norm(b - a @ found.x) / np.linalg.norm(b)
    assert true < 1e-10 + 10.0 * noise


def test_strong_noise_ends_or_exhausts_the_run_but_never_passes_for_a_solution() -> None:
    a = positive_matrix(60, 24, condition=1e4)
    b = np.random.default_rng(25).standard_normal((60, 1))
    rng = np.random.default_rng(26)
    found = conjugate_gradient(
        lambda p: a @ p + rng.standard_normal(p.shape), b, tolerance=1e-12, max_iterations=300
    )
    assert not found.converged
    assert np.isfinite(found.x).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    a = positive_matrix(5, 27)
    b = np.ones((5, 1))
    calls = []

    def breaks_later(p: np.ndarray) -> np.ndarray:
        calls.append(p)
        return a @ p if len(calls) < 3 else np.full(p.shape, bad)

    with pytest.raises(ProtocolError, match="product of iteration 3 has NaN or infinite entries"):
        conjugate_gradient(breaks_later, b)
    with pytest.raises(ProtocolError, match="right-hand side has NaN"):
        conjugate_gradient(lambda p: a @ p, b * bad)
    with pytest.raises(ProtocolError, match="the start has NaN"):
        conjugate_gradient(lambda p: a @ p, b, start=b * bad)
    with pytest.raises(ProtocolError, match="product with the start has NaN"):
        conjugate_gradient(lambda p: a @ p, b, start=b, start_product=b * bad)
    with pytest.raises(ProtocolError, match="P\\^-1 r has NaN"):
        conjugate_gradient(lambda p: a @ p, b, precondition=lambda r: r * bad)
    with pytest.raises(ProtocolError, match="A p of iteration 1 has NaN"):
        conjugate_gradient(lambda p: 1e200 * p, 1e100 * b)
    with pytest.raises(ProtocolError, match="residual of iteration 1 has NaN"):
        conjugate_gradient(lambda p: p * [[1.0], [2.0**-50 - 1.0]], 1e150 * b[:2])


def test_a_product_of_another_shape_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"iteration 1 has shape \(5, 2\) instead of \(5, 1\)"):
        conjugate_gradient(lambda p: np.ones((5, 2)), np.ones((5, 1)))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tolerance": -1.0}, "tolerance is -1.0; use a number that is not negative"),
        ({"tolerance": float("nan")}, "tolerance is nan"),
        ({"max_iterations": -1}, "max_iterations is -1; use at least 0"),
        ({"start_product": np.ones((4, 1))}, "start_product is given without start"),
        ({"start": np.ones((3, 1))}, r"start has shape \(3, 1\); give one of shape \(4, 1\)"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        conjugate_gradient(lambda p: p, np.ones((4, 1)), **options)


def test_a_state_that_does_not_belong_is_refused() -> None:
    states: list[CGState] = []
    b = np.ones((4, 1))
    conjugate_gradient(lambda p: 2.0 * p, b, on_iteration=lambda state, _: states.append(state))
    with pytest.raises(OptionError, match="state and start are both given"):
        conjugate_gradient(lambda p: p, b, start=b, state=states[0])
    with pytest.raises(CheckpointError, match=r"problem of shape \(4, 1\), not \(5, 1\)"):
        conjugate_gradient(lambda p: p, np.ones((5, 1)), state=states[0])
    good = states[0].arrays()
    for name in good:
        broken = [{**good, name: good[name][..., :0]}, {k: v for k, v in good.items() if k != name}]
        if name != "ended":
            broken.append({**good, name: good[name] * np.nan})
        for arrays in broken:
            with pytest.raises(CheckpointError, match="no state of a conjugate gradient run"):
                CGState.from_arrays(arrays)
    with pytest.raises(OptionError, match="b has 1 dimensions"):
        conjugate_gradient(lambda p: p, np.ones(4))


def test_a_checkpoint_is_a_copy() -> None:
    a, b = positive_matrix(8, 28), np.ones((8, 1))
    kept: list[tuple[dict[str, np.ndarray], np.ndarray]] = []
    conjugate_gradient(
        lambda p: a @ p, b, on_iteration=lambda s, _: kept.append((s.arrays(), s.x.copy()))
    )
    assert len(kept) > 2
    assert all((arrays["x"] == x).all() for arrays, x in kept)
