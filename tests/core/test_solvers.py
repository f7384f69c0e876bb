"""Solvers of FedCG: against textbook versions, SciPy and scikit-learn, and what they refuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refuses
from scipy import linalg
from sklearn.linear_model import Ridge

from fedkern_flwr.errors import CheckpointError, ProtocolError
from fedkern_flwr.kernels import product as product
from fedkern_flwr.solvers.conjugate_gradient import (
    CGState,
    ConjugateGradient,
    NystromPreconditioner,
    probe_vectors,
)
from fedkern_flwr.solvers.least_squares import (
    Equations,
    check_regularization,
    choose,
    equations_length,
    pack_equations,
    regularized,
    solve_equations,
    tuning_length,
    unpack_equations,
    widths_around,
)
from fedkern_flwr.solvers.losses import LOSSES, Loss, loss_curvatures, loss_derivatives, loss_values

Array = np.ndarray


def normal(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def gram(m: int, spectrum: Array, seed: int = 0) -> Array:
    """A symmetric matrix (m, m) with these eigenvalues, the others zero."""
    q, _ = np.linalg.qr(normal((m, len(spectrum)), seed))
    return (q * spectrum) @ q.T


def positive(m: int, condition: float = 100.0, seed: int = 0) -> Array:
    return gram(m, np.geomspace(1.0, condition, m), seed)


# -- conjugate gradients


class Products:
    """Multiplies with a matrix and counts columns; ``noise`` is relative."""

    def __init__(self, a: Array, noise: float = 0.0) -> None:
        self.a, self.noise, self.columns = a, noise, list[int]()
        self.rng = np.random.default_rng(0)

    def __call__(self, p: Array) -> Array:
        self.columns.append(p.shape[1])
        q = self.a @ p
        p[:] = np.nan  # whoever multiplies may use what it was given as it likes
        return q + self.noise * np.abs(q).max(axis=0) * self.rng.uniform(-1, 1, q.shape)


def textbook(a: Array, b: Array, tolerance: float = 1e-8, x: Array | None = None) -> list[Array]:
    """Plain conjugate gradients for one right-hand side: all iterates."""
    x = np.zeros(len(b)) if x is None else x.copy()
    r = b - a @ x
    p, iterates = r.copy(), [x.copy()]
    while np.sqrt(r @ r) > tolerance * np.sqrt(b @ b):
        q, old = a @ p, r @ r
        step = old / (p @ q)
        x, r = x + step * p, r - step * q
        p = r + (r @ r) / old * p
        iterates.append(x.copy())
    return iterates


def conjugate_gradient(
    multiply: Any, b: Array, most: int = 1000, note: Any = lambda state: None, **options: Any
) -> Any:
    """Go on until all columns have stopped; what came of it, with the residuals on the way."""
    solver = ConjugateGradient(b, **options)
    residuals = [solver.residuals]
    while solver.state.iteration < most and solver.active.any():
        solver.take(multiply(solver.direction))
        residuals.append(solver.residuals)
        note(solver.state)
    return SimpleNamespace(
        x=solver.state.x,
        iterations=solver.state.iteration,
        residuals=np.array(residuals),
        squared=solver.state.squared,
        converged=solver.reached.all(),
    )


def followed(multiply: Any, b: Array, **options: Any) -> tuple[Any, CGState, list[Array]]:
    """The result, the last state and the iterate after each iteration."""
    states, seen = list[CGState](), list[tuple[Array, Array]]()

    def note(state: CGState) -> None:
        states.append(state)
        seen.append((state.x.copy(), state.arrays()["x"]))

    result = conjugate_gradient(multiply, b, note=note, **options)
    for x, kept in seen:
        np.testing.assert_array_equal(kept, x)  # a copy, which later iterations leave alone
    return result, states[-1], [x for x, _ in seen]


@pytest.mark.parametrize("started", [False, True])
def test_every_iterate_is_that_of_the_textbook(started: bool) -> None:
    a, b = positive(40, 10.0, seed=2), normal((40, 1), 3)
    start = 10.0 * normal((40, 1), 4) if started else None
    expected = textbook(a, b[:, 0], x=start[:, 0] if started else None)
    multiply = Products(a)
    known = None if start is None else (start, a @ start)
    found, _, seen = followed(multiply, b, tolerance=1e-8, start=known)
    assert found.iterations == len(expected) - 1 == len(seen) == len(multiply.columns)
    for x, y in zip(seen, expected[1:], strict=True):
        np.testing.assert_allclose(x[:, 0], y, rtol=1e-11, atol=1e-11)
    norms = [np.linalg.norm(b[:, 0] - a @ y) / np.linalg.norm(b) for y in expected]
    np.testing.assert_allclose(found.residuals[:, 0], norms, rtol=1e-6)
    np.testing.assert_allclose(found.squared, found.residuals**2 * (b**2).sum(), rtol=1e-12)


def test_right_hand_sides_share_the_calls_and_stop_one_by_one() -> None:
    """Each column goes as if it were alone; a call carries the columns still under way."""
    a = positive(30, 10.0, seed=8)
    values, vectors = np.linalg.eigh(a)
    b = normal((30, 4), 9)
    b[:, 1] = vectors[:, 3] * values[3]  # solved in one iteration
    b[:, 2] = 0.0
    multiply = Products(a)
    found = conjugate_gradient(multiply, b)
    alone = [textbook(a, b[:, j]) for j in range(4)]
    counts = [len(one) - 1 for one in alone]
    assert counts[1:3] == [1, 0]
    assert found.iterations == max(counts) == len(multiply.columns)
    assert multiply.columns == [sum(i < n for n in counts) for i in range(found.iterations)]
    for j in range(4):
        np.testing.assert_allclose(found.x[:, j], alone[j][-1], rtol=1e-11, atol=1e-12)
    assert (np.diff(found.squared[1:, 1]) == 0).all()
    multiply.columns.clear()
    zero = conjugate_gradient(
        multiply, 0.0 * b, start=(b, a @ b)
    )  # of zero it is zero, from any start
    assert zero.converged
    assert (zero.iterations, multiply.columns, zero.x.any()) == (0, [], False)
    assert not zero.residuals.any()


def test_a_preconditioner_gives_the_iterates_of_the_transformed_system() -> None:
    """With P = L L^T the iterates are those of L^-1 A L^-T, and the exact inverse needs one."""
    a, b = positive(15, seed=17), normal((15, 2), 18)
    lower = np.linalg.cholesky(positive(15, 5.0, seed=19))
    inverse = np.linalg.inv(lower)
    found, _, seen = followed(lambda p: a @ p, b, precondition=lambda r: inverse.T @ inverse @ r)
    for j in range(2):
        transformed = textbook(inverse @ a @ inverse.T, inverse @ b[:, j], 1e-14)
        for x, y in zip(seen[:8], transformed[1:9], strict=True):
            np.testing.assert_allclose(x[:, j], inverse.T @ y, rtol=1e-9, atol=1e-11)
    assert found.converged
    exact = conjugate_gradient(lambda p: a @ p, b, precondition=lambda r: np.linalg.solve(a, r))
    assert exact.iterations == 1


def test_what_cannot_converge_ends_its_column_and_is_told() -> None:
    b, a, ones = np.ones((4, 2)), positive(30, 1e4, seed=21), np.ones((30, 1))
    b[2] = 3.0, 0.0
    rng = np.random.default_rng(26)
    indefinite = conjugate_gradient(Products(np.diag([1.0, 2.0, -1.0, 3.0])), b)
    np.testing.assert_allclose(indefinite.x[:, 1], [1.0, 0.5, 0.0, 1 / 3], rtol=1e-9, atol=1e-12)
    assert indefinite.residuals[-1, 0] > 0.1
    assert indefinite.iterations < 10
    zero = conjugate_gradient(lambda p: 0.0 * p, b)
    assert (zero.iterations, zero.x.any()) == (1, False)
    negative = conjugate_gradient(lambda p: a @ p, a[:, :1], precondition=lambda r: -r)
    short, none = (conjugate_gradient(Products(a), ones, most=n) for n in (5, 0))
    assert [one.iterations for one in (negative, short, none)] == [0, 5, 0]
    assert short.residuals.shape == short.squared.shape == (6, 1)
    noisy = conjugate_gradient(lambda p: a @ p + rng.standard_normal(p.shape), a[:, :1])
    for one in (indefinite, zero, negative, short, none, noisy):
        assert not one.converged
        assert np.isfinite(one.x).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    a, b, fine, calls = positive(5), np.ones((5, 1)), lambda p: positive(5) @ p, []

    def breaks_later(p: Array) -> Array:
        calls.append(p)
        return a @ p if len(calls) < 3 else np.full(p.shape, bad)

    cases: list[tuple[Any, Array, dict[str, Any]]] = [
        (breaks_later, b, {}),
        (fine, b * bad, {}),
        (fine, b, {"start": (b * bad, b)}),
        (fine, b, {"start": (b, b * bad)}),
        (fine, b, {"precondition": lambda r: r * bad}),
        (lambda p: 1e200 * p, 1e100 * b, {}),  # A p
        (lambda p: p * [[1.0], [2.0**-50 - 1.0]], 1e150 * b[:2], {}),  # the residual
    ]
    for multiply, right, options in cases:
        with refused("FK-MESSAGE-FINITE", kind=ProtocolError):
            conjugate_gradient(multiply, right, **options)
    probes = probe_vectors(6, 3, 0)
    with refused("FK-MESSAGE-FINITE", kind=ProtocolError):
        NystromPreconditioner(probes * bad, probes, 1.0)


ONES = np.ones((4, 1))
STATE = followed(lambda p: 2.0 * p, ONES)[1]


@pytest.mark.parametrize(("options", "code"), [
    ({"tolerance": -1.0}, "FK-OPTION-RANGE"), ({"tolerance": float("nan")}, "FK-OPTION-RANGE"),
    ({"start": (np.ones((3, 1)), ONES)}, "FK-SHAPE-DIFFERS"),
    ({"b": np.ones(4)}, "FK-SHAPE-DIFFERS"),
    ({"b": np.ones((5, 1)), "saved": STATE.arrays()}, "FK-CHECKPOINT-OTHER"),
    ({"multiply": lambda _: np.ones((4, 2))}, "FK-MESSAGE-SHAPE"),
])  # fmt: skip
def test_what_cannot_work_is_refused(options: dict[str, Any], code: str) -> None:
    refuses(code, conjugate_gradient, **{"multiply": lambda p: p, "b": ONES, **options})


def test_a_state_that_is_damaged_is_refused() -> None:
    good = STATE.arrays()
    for name in good:
        broken = [{**good, name: good[name][..., :0]}, {k: v for k, v in good.items() if k != name}]
        if name != "ended":
            broken.append({**good, name: good[name] * np.nan})
        for arrays in broken:
            with refused("FK-CHECKPOINT-DAMAGED", kind=CheckpointError):
                CGState.from_arrays(arrays)


# -- the preconditioner


def test_probes_are_orthonormal_seeded_and_point_everywhere() -> None:
    """The mean of q q^T over 2,000 draws is I s / m, within 5 standard errors."""
    probes = probe_vectors(40, 7, 3)
    np.testing.assert_allclose(probes.T @ probes, np.eye(7), atol=1e-14)
    np.testing.assert_array_equal(probes, probe_vectors(40, 7, 3))
    assert np.abs(probes - probe_vectors(40, 7, 4)).max() > 0.1
    assert probe_vectors(5, 9, 0).shape == (5, 5)
    draws = np.array([probe_vectors(6, 2, seed) for seed in range(2000)])
    outer = draws @ draws.transpose(0, 2, 1)
    error = np.abs(outer.mean(axis=0) - np.eye(6) * 2 / 6)
    assert (error < 5 * outer.std(axis=0) / np.sqrt(2000)).all()
    assert (np.abs(draws.mean(axis=0)) < 5 / np.sqrt(6 * 2000)).all()  # no preferred sign


def test_the_formula_holds_and_the_sketched_space_is_inverted_exactly() -> None:
    """P^-1 (A_nys + lambda I) is (l_s + lambda) on the span of U; beyond it P^-1 is 1 (eq. 5.3)."""
    a, probes = gram(40, np.geomspace(1e3, 1e-3, 40)), probe_vectors(40, 10, 4)
    inverse = NystromPreconditioner(a @ probes, probes, 0.1)
    basis, values = inverse.basis, inverse.eigenvalues
    approximation = a @ probes @ np.linalg.solve(probes.T @ a @ probes, probes.T @ a)
    np.testing.assert_allclose((basis * values) @ basis.T, approximation, atol=1e-9)
    assert (np.diff(values) <= 0).all()
    beyond = np.eye(40) - basis @ basis.T
    p = (basis * (values + 0.1)) @ basis.T / (values[-1] + 0.1) + beyond
    np.testing.assert_allclose(inverse(np.eye(40)), np.linalg.inv(p), rtol=1e-6, atol=1e-9)


@given(
    m=st.integers(1, 25), rank=st.integers(1, 30), true_rank=st.integers(0, 25),
    decades=st.floats(0.0, 16.0), lam=st.floats(-8.0, 2.0).map(lambda x: 10.0**x),
    noise=st.sampled_from([0.0, 1e-15, 1e-12, 1e-6, 1e-1]), seed=st.integers(0, 1000),
)  # fmt: skip
def test_it_is_symmetric_and_positive_definite_whatever_the_sketch(
    m: int, rank: int, true_rank: int, decades: float, lam: float, noise: float, seed: int
) -> None:
    a = gram(m, np.geomspace(1e3, 1e3 * 10.0**-decades, min(m, true_rank)), seed)
    probes, rng = probe_vectors(m, rank, seed), np.random.default_rng(seed)
    inverse = NystromPreconditioner(Products(a, noise)(probes.copy()), probes, lam)
    dense, values = inverse(np.eye(m)), inverse.eigenvalues
    np.testing.assert_allclose(dense, dense.T, atol=1e-12)
    smallest = values[-1] if values.size else 0.0
    exact = (smallest + lam) / (values + lam)
    expected = np.sort(np.concatenate([exact, np.ones(m - values.size)]))
    np.testing.assert_allclose(np.linalg.eigvalsh(dense), expected, rtol=1e-6, atol=1e-12)
    r = rng.standard_normal((m, 4))
    assert (np.einsum("ij,ij->j", r, inverse(r)) > 0).all()


def test_a_sketch_that_is_not_positive_is_cut() -> None:
    """Symmetric noise: no asymmetry gives it away, and Cholesky fails."""
    a, probes = gram(30, np.array([100.0, 10.0, 1.0])), probe_vectors(30, 6, 10)
    inverse = NystromPreconditioner(a @ probes - 1e-9 * probes, probes, 1e-3)
    np.testing.assert_allclose(inverse.eigenvalues, [100.0, 10.0, 1.0], rtol=1e-6)
    b = np.ones((30, 1))
    assert conjugate_gradient(lambda p: a @ p + 1e-3 * p, b, precondition=inverse).iterations <= 3
    negative = NystromPreconditioner(-probes, probes, 1.0)  # no positive eigenvalue at all
    assert negative.eigenvalues.size == 0
    np.testing.assert_array_equal(negative(b), b)


# -- normal equations


@given(m=st.integers(1, 12), k=st.integers(1, 4), seed=st.integers(0, 99))
def test_equations_survive_the_packing_and_add_up(m: int, k: int, seed: int) -> None:
    total = np.zeros(equations_length(m, k))
    assert total.size == m * (m + 1) // 2 + m * k
    grams, rights = np.zeros((m, m)), np.zeros((m, k))
    for part in range(3):
        kernel = normal((9, m), seed + part)
        one, right = kernel.T @ kernel, kernel.T @ normal((9, k), seed + part + 1)
        total += pack_equations(one, right)
        grams, rights = grams + one, rights + right
    found, right = unpack_equations(total, m, k)
    np.testing.assert_allclose(found, grams, rtol=1e-14)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_allclose(right, rights, rtol=1e-14)
    three = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
    packed = pack_equations(three, np.arange(7.0, 13.0).reshape(3, 2))
    assert packed.tolist() == [float(n) for n in range(1, 13)]  # the upper triangle first


def test_the_solution_is_that_of_ridge_regression_or_has_a_penalty_of_the_functions_norm() -> None:
    """Equation 2.10, against a general solver; singular matrices give the least-norm solution."""
    kernel, y = np.random.default_rng(0).random((40, 7)), normal((40, 3))
    left, right = kernel.T @ kernel, kernel.T @ y
    copies = left.copy(), right.copy()
    for regularization in (1e-4, 1e-2, 3.0):
        found = solve_equations(left, right, regularization)
        ridge = Ridge(regularization, fit_intercept=False, solver="svd").fit(kernel, y)
        np.testing.assert_allclose(found, ridge.coef_.T, rtol=1e-9)
    np.testing.assert_array_equal(left, copies[0])
    np.testing.assert_array_equal(right, copies[1])
    w = np.random.default_rng(1).random((7, 7))
    pairs = w @ w.T
    found = solve_equations(left, right, 0.3, pairs)
    np.testing.assert_allclose(found, linalg.solve(left + 0.3 * pairs, right), rtol=1e-9)
    np.testing.assert_array_equal(regularized(left, 0.3, pairs), left + 0.3 * pairs)
    np.testing.assert_allclose(regularized(left, 0.3, None) - left, 0.3 * np.eye(7), atol=1e-15)
    twice = np.repeat(np.arange(4), 2)[:7]  # equal landmarks
    left, right, pairs = left[np.ix_(twice, twice)], right[twice], pairs[np.ix_(twice, twice)]
    found = solve_equations(left, right, 0.3, pairs)
    expected = linalg.lstsq(left + 0.3 * pairs, right, cond=1e-12)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-8)


@pytest.mark.parametrize("value", [0.0, -1e-3, float("nan"), float("inf")])
def test_numbers_that_give_no_solution_are_refused(value: float) -> None:
    check_regularization(1e-12)
    probes = probe_vectors(6, 3, 0)
    refuses("FK-OPTION-RANGE", check_regularization, value)
    if not value > 0.0:
        refuses("FK-OPTION-RANGE", NystromPreconditioner, probes, probes, value)
    for m, rank in ((0, 3), (3, 0)):
        refuses("FK-OPTION-RANGE", probe_vectors, m, rank, 0)
    refuses("FK-MESSAGE-SHAPE", NystromPreconditioner, probes[:, :2], probes, 1.0)
    refuses("FK-EQUATIONS-SINGULAR", solve_equations, np.ones((3, 3)), np.ones((3, 1)), 1e-30)


# -- losses


def test_losses_are_those_of_the_table() -> None:
    z = np.array([-2.0, 0.0, 0.5, 1.0, 3.0])
    table = {
        "square": [9.0, 1.0, 0.25, 0.0, 4.0],
        "logistic": np.log(1.0 + np.exp(-z)),
        "smooth-hinge": [2.5, 0.5, 0.125, 0.0, 0.0],
    }
    assert set(table) == set(LOSSES)
    for loss, expected in table.items():
        for y in (-1.0, 1.0):
            found = loss_values(loss, y * z, np.full(5, y))  # type: ignore[arg-type]
            np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize("loss", LOSSES)
@given(f=st.floats(-20.0, 20.0), y=st.sampled_from([-1.0, 1.0]))
def test_derivatives_are_those_of_the_values(loss: Loss, f: float, y: float) -> None:
    values = loss_values(loss, np.array([f - 1e-6, f + 1e-6]), np.full(2, y))
    (found,) = loss_derivatives(loss, np.array([f]), np.array([y]))
    assert found == pytest.approx(np.diff(values)[0] / 2e-6, abs=2e-6)
    far, y2 = np.array([-1e8, 1e8, -1e8, 1e8]), np.array([1.0, 1.0, -1.0, -1.0])
    slopes = loss_derivatives(loss, far, y2)
    assert np.isfinite([loss_values(loss, far, y2), slopes]).all()  # no overflow far away
    if loss != "square":
        np.testing.assert_allclose(slopes, [-1.0, 0.0, 0.0, 1.0], atol=1e-300)


@pytest.mark.parametrize("loss", LOSSES)
@given(z=st.floats(-20.0, 20.0).filter(lambda z: min(abs(z), abs(z - 1.0)) > 1e-3))
def test_curvatures_are_the_derivatives_of_the_derivatives(loss: Loss, z: float) -> None:
    for y in (-1.0, 1.0):
        around = loss_derivatives(loss, np.array([z - 1e-6, z + 1e-6]) * y, np.full(2, y))
        (found,) = loss_curvatures(loss, np.array([z * y]), np.array([y]))
        assert found == pytest.approx(y * np.diff(around)[0] / 2e-6, abs=2e-6)


# -- width and lambda from normal equations

LAMBDAS = 10.0 ** np.arange(-8.0, 1.0)


def line(y: Array, gammas: Array, folds: int, m: int = 12) -> Equations:
    """The equations of rows on the line, dealt to folds in turn."""
    distances = (np.linspace(0.0, 1.0, len(y))[:, None] - np.linspace(0.0, 1.0, m)) ** 2
    sums = Equations.zeros(m, y.shape[1], folds, len(gammas))
    for f in range(folds):
        rows = np.arange(len(y)) % folds == f
        sums.add(f, distances[rows], y[rows], gammas)
    return sums


@pytest.mark.parametrize("folds", [1, 3])
def test_of_equal_errors_the_smoothest_model_is_taken(folds: int) -> None:
    gammas = widths_around(0.2, 9)
    found = choose(line(np.zeros((30, 2)), gammas, folds), LAMBDAS, 30)
    assert (found.width, found.weight) == (0, len(LAMBDAS) - 1)
    same = choose(line(np.ones((30, 1)), np.full(3, 2.0), folds), LAMBDAS, 30)
    errors = same.errors[0]
    assert same.width == 0
    assert same.weight == np.flatnonzero(errors <= errors.min() * (1.0 + 1e-6))[-1]


def test_of_numbers_gcv_takes_a_larger_lambda_that_is_as_good_to_a_hundredth() -> None:
    y = np.sin(6.0 * np.linspace(0.0, 1.0, 60))[:, None] + normal((60, 1), 2)
    lambdas, gammas = 10.0 ** np.arange(-6.0, 3.0, 0.1), widths_around(0.2, 9)
    sums, folds = line(y, gammas, 1), line(y, gammas, 5)
    strict, loose = (choose(sums, lambdas, 60, numbers=numbers) for numbers in (False, True))
    row = loose.errors[loose.width]
    assert loose.width == strict.width
    assert loose.weight > strict.weight
    assert loose.weight == np.flatnonzero(row <= 1.01 * row.min())[-1]
    # held-out errors are as they are
    assert choose(folds, lambdas, 60, numbers=True).weight == choose(folds, lambdas, 60).weight


@pytest.mark.parametrize("folds", [1, 5])
def test_errors_are_never_negative_and_noise_is_not_learned_by_heart(folds: int) -> None:
    """Rounding takes sums of squares that vanish below zero: they count as zero."""
    x = np.linspace(0.0, 1.0, 40)
    y = 1e6 * np.exp(-5.0 * (x[:, None] - 0.5) ** 2)  # in the span of the landmarks, nearly
    found = choose(line(y, np.array([5.0]), folds, m=11), 1e-30 * LAMBDAS, 40)
    assert (found.errors >= 0.0).all()
    assert np.isfinite(found.errors[found.width, found.weight])
    # as many landmarks as rows: a model that interpolates has no residual, and is not taken
    found = choose(line(normal((30, 1)), widths_around(0.2, 9), folds, m=30), LAMBDAS, 30)
    assert found.errors[found.width, found.weight] > 0.5


@pytest.mark.parametrize(("folds", "widths"), [(1, 1), (1, 3), (2, 3)])
def test_what_was_packed_for_tuning_is_unpacked(folds: int, widths: int) -> None:
    y = normal((20, 3), 1)
    sums = line(y, np.arange(1.0, widths + 1), folds)
    assert len(sums.pack()) == tuning_length(12, 3, folds, widths)
    again = Equations.unpack(sums.pack(), 12, 3, folds, widths)
    for name in ("gram", "right", "squares"):
        np.testing.assert_array_equal(getattr(again, name), getattr(sums, name))
    np.testing.assert_allclose(again.squares.sum(0), (y**2).sum(0))
