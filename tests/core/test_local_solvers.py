"""HierarchicalSVM: local problems of ADMM, their optimality and awkward data; linear models."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scipy.special import expit
from sklearn.utils.class_weight import compute_sample_weight

from fedkern_flwr.groups.linear_model import LOSS_OF, MODELS, model_columns, model_rows, outputs
from fedkern_flwr.solvers import local_hinge
from fedkern_flwr.solvers.local_solvers import (
    LOSSES,
    Loss,
    balanced_weights,
    solve_local,
    total_loss,
)

NONE = np.empty(0)


class Problem(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    v: np.ndarray
    penalty: np.ndarray
    c: float


def problem(
    n: int, d: int, *, penalty: float = 1.0, c: float = 1.0, spread: float = 1.0, seed: int = 0
) -> Problem:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = np.where(x[:, 0] + 0.5 * rng.normal(size=n) > 0.0, 1.0, -1.0)
    return Problem(x, y, 0.1 * rng.normal(size=d), penalty * np.geomspace(1.0, spread, d), c)


def check_hinge(p: Problem, w: np.ndarray, alpha: np.ndarray, tolerance: float = 1e-11) -> None:
    """Primal and dual feasible, stationary, complementary: together sufficient."""
    assert w.shape == p.v.shape
    assert alpha.shape == p.y.shape
    assert np.all((alpha >= 0.0) & (alpha <= p.c))
    pull = (p.x.T @ (p.y * alpha)) / p.penalty
    sizes = np.abs(p.v) + np.abs(p.x).T @ alpha / p.penalty
    assert np.abs(w - p.v - pull).max() <= tolerance * sizes.max()
    short = 1.0 - p.y * (p.x @ w)
    unit = (1.0 + np.abs(p.x) @ (np.abs(w) + np.abs(p.v))).max()
    assert short[alpha < p.c].max(initial=0.0) <= tolerance * unit
    assert short[alpha > 0.0].min(initial=0.0) >= -tolerance * unit


def check_smooth(loss: Loss, p: Problem, w: np.ndarray) -> None:
    outputs = p.x @ w
    slopes = -p.y * expit(-p.y * outputs) if loss == "logistic" else outputs - p.y
    gradient = p.c * (p.x.T @ slopes) + p.penalty * (w - p.v)
    sizes = p.c * (np.abs(p.x).T @ np.abs(slopes)) + p.penalty * (np.abs(w) + np.abs(p.v))
    rounding = p.c * (np.abs(p.x).T @ (np.abs(p.y) + np.abs(p.x) @ np.abs(w)))
    assert np.abs(gradient).max() <= 1e-11 * sizes.max() + 1e-14 * rounding.max()


def check(loss: Loss, p: Problem, start: np.ndarray = NONE) -> tuple[np.ndarray, np.ndarray]:
    w, memory = solve_local(loss, *p, start)
    if loss == "hinge":
        check_hinge(p, w, memory)
    else:
        check_smooth(loss, p, w)
    return w, memory


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", [(150, 10), (150, 400), (800, 15), (30, 30)])
@pytest.mark.parametrize("penalty", [0.01, 1.0, 100.0])
def test_the_conditions_of_the_optimum_hold_warm_and_cold(
    loss: Loss, shape: tuple[int, int], penalty: float
) -> None:
    p = problem(*shape, penalty=penalty, spread=3.0)
    _, memory = check(loss, p)
    for step in (1e-3, 0.1):
        near = p._replace(v=p.v + step * np.sin(np.arange(len(p.v))))
        warm, _ = check(loss, near, memory)
        cold, _ = check(loss, near)
        assert np.linalg.norm(warm - cold) <= 1e-9 * np.linalg.norm(cold)


@pytest.mark.parametrize("shape", [(150, 10), (60, 200)])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_hinge_is_the_same_by_exchanges_products_and_proximal_points(
    shape: tuple[int, int], weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = problem(*shape, penalty=2.0, c=0.7)
    weights = 1.0 + 0.5 * np.cos(np.arange(len(p.y))) if weighted else None
    _, start = solve_local("hinge", *p, NONE, weights)
    near = p._replace(v=p.v + 0.1 * np.sin(np.arange(len(p.v))))
    plain = solve_local("hinge", *near, start, weights)
    known = solve_local("hinge", *near, start, weights, p.x @ p.x.T)
    asked = []
    monkeypatch.setattr(local_hinge, "_exchange", lambda *_: asked.append(1))
    slow = solve_local("hinge", *near, start, weights)
    assert asked
    for one, other in itertools.pairwise((plain, known, slow)):
        np.testing.assert_allclose(one[0], other[0], rtol=0, atol=1e-11)
    if weights is None:
        check_hinge(near, *plain)
    p = problem(*shape, spread=5.0)  # products of rows are not used where penalties differ
    check_hinge(p, *solve_local("hinge", *p, NONE, None, p.x @ p.x.T))


@settings(max_examples=150)
@given(
    p=st.builds(
        problem,
        n=st.integers(1, 60),
        d=st.integers(1, 40),
        penalty=st.sampled_from([1e-2, 0.3, 1.0, 30.0, 1e2]),
        spread=st.sampled_from([1.0, 10.0]),
        c=st.sampled_from([1e-4, 0.1, 1.0, 20.0, 1e4]),
        seed=st.integers(0, 10**6),
    ),
    repeat=st.integers(1, 3),
    whole=st.booleans(),
    loss=st.sampled_from(LOSSES),
)
def test_the_conditions_hold_for_any_data(p: Problem, repeat: int, whole: bool, loss: Loss) -> None:
    x = np.rint(2.0 * p.x) if whole else p.x
    p = p._replace(x=np.tile(x, (repeat, 1)), y=np.tile(p.y, repeat))
    _, memory = check(loss, p)
    check(loss, p._replace(v=p.v[::-1].copy()), memory)


AWKWARD: dict[str, Callable[..., Any]] = {
    "repeated": lambda x, y: (
        np.repeat(x[: len(y) // 4], 4, axis=0),
        np.repeat(y[: len(y) // 4], 4),
    ),
    "opposed": lambda x, y: (np.repeat(x[::2], 2, axis=0), np.outer(y[::2], [1.0, -1.0]).ravel()),
    "zero": lambda x, y: (x * (np.arange(x.shape[1]) != 1), y),
    "bias": lambda x, y: (np.c_[x[:, :-1], np.ones(len(y))], y),
    "one class": lambda x, y: (x, np.ones(len(y))),
    "unscaled": lambda x, y: (x * np.geomspace(1.0, 1000.0, x.shape[1]), y),
    "all zero": lambda x, y: (0.0 * x, y),
    "onehot": lambda x, y: (np.eye(x.shape[1])[np.arange(len(y)) % x.shape[1]], y),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("c", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("shape", [(60, 8), (12, 30)])
@pytest.mark.parametrize("case", AWKWARD)
def test_awkward_data(loss: Loss, c: float, shape: tuple[int, int], case: str) -> None:
    x, y, v, penalty, _ = problem(*shape)
    p = Problem(*AWKWARD[case](x, y), v * (case != "onehot"), penalty, c)
    w, memory = check(loss, p)
    if case == "zero" and shape[0] > shape[1]:
        assert w[1] == pytest.approx(v[1], abs=1e-13)
    check(loss, p._replace(v=p.v + 0.01), memory)


@pytest.mark.parametrize("loss", LOSSES)
def test_no_rows_and_a_start_that_does_not_fit(loss: Loss) -> None:
    v = np.array([1.0, 2.0, 3.0])
    w, memory = solve_local(loss, np.empty((0, 3)), NONE, v, np.ones(3), 1.0, NONE)
    assert w.tolist() == v.tolist()
    assert w is not v
    assert memory.shape == ((0,) if loss == "hinge" else (3,))
    p = problem(40, 5)
    cold = solve_local(loss, *p, NONE)
    for start in (np.ones(3), np.ones((40, 5)), np.full(40, np.nan), np.full(5, np.inf)):
        for a, b in zip(solve_local(loss, *p, start), cold, strict=True):
            assert a.tobytes() == b.tobytes()
    wild = solve_local(loss, *p, np.full(len(cold[1]), 50.0))[0]
    np.testing.assert_allclose(wild, cold[0], rtol=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", [(90, 7), (20, 50)])
def test_same_input_same_bits_and_nothing_is_changed(loss: Loss, shape: tuple[int, int]) -> None:
    p = problem(*shape, penalty=0.1)
    start = solve_local(loss, *p, NONE)[1]
    p = p._replace(v=p.v + 0.05)
    kept = [np.copy(value) for value in (*p, start)]
    first, second = solve_local(loss, *p, start), solve_local(loss, *p, start)
    assert [a.tobytes() for a in first] == [a.tobytes() for a in second]
    for before, after in zip(kept, (*p, start), strict=True):
        np.testing.assert_array_equal(before, after)
    solve_local(loss, *p, first[1])[0][:] = np.nan
    np.testing.assert_array_equal(first[0], second[0])


def test_totals_of_losses_and_balanced_weights() -> None:
    f, y = np.array([-800.0, 0.0, 0.5, 2.0]), np.array([1.0, 1.0, -1.0, 1.0])
    assert total_loss("hinge", f, y) == 801.0 + 1.0 + 1.5
    assert total_loss("squared", f, y) == 0.5 * (801.0**2 + 1.0 + 1.5**2 + 1.0)
    expected = 800.0 + np.log(2.0) + np.log1p(np.exp(0.5)) + np.log1p(np.exp(-2.0))
    assert total_loss("logistic", f, y) == pytest.approx(expected, rel=1e-14)
    y = np.array([1.0, -1.0, -1.0, -1.0, -1.0, 1.0, -1.0])
    right = compute_sample_weight("balanced", y)
    np.testing.assert_allclose(balanced_weights(y, 2 / 7), right)
    np.testing.assert_array_equal(balanced_weights(-np.ones(3), 0.0), 1.0)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", [(60, 5), (12, 30)])
def test_a_row_of_weight_two_is_two_rows(loss: Loss, shape: tuple[int, int]) -> None:
    p = problem(*shape)
    twice = np.arange(shape[0]) % 3 == 0
    rows = np.concatenate([np.arange(shape[0]), np.flatnonzero(twice)])
    right, _ = solve_local(loss, p.x[rows], p.y[rows], p.v, p.penalty, p.c, NONE)
    weights = 1.0 + twice
    w, memory = solve_local(loss, *p, NONE, weights)
    np.testing.assert_allclose(w, right, atol=1e-9)
    again, _ = solve_local(loss, *p, memory, weights)
    np.testing.assert_allclose(again, right, atol=1e-9)
    outputs = p.x @ w
    whole = total_loss(loss, outputs[rows], p.y[rows])
    assert total_loss(loss, outputs, p.y, weights) == pytest.approx(whole)


# -- linear models of columns or of random Fourier features

X = np.random.default_rng(0).standard_normal((40, 3))


def test_random_features_approach_the_kernel_and_columns_stay_as_they_are() -> None:
    assert set(LOSS_OF) == set(MODELS)
    assert model_rows(X, 0, 0.0, 0) is X
    assert model_columns(3, 0) == 3
    found = model_rows(X, 3000, 0.4, 1)
    assert found.shape == (40, model_columns(3, 3000)) == (40, 6000)
    squares = ((X[:, None] - X) ** 2).sum(-1)
    np.testing.assert_allclose(found @ found.T, np.exp(-0.4 * squares), atol=0.08)
    np.testing.assert_array_equal(found, model_rows(X, 3000, 0.4, 1))
    assert np.abs(found - model_rows(X, 3000, 0.4, 2)).max() > 0.001


@pytest.mark.parametrize("features", [0, 5])
def test_outputs_of_a_saved_model(features: int) -> None:
    rng = np.random.default_rng(1)
    weights, bias = rng.standard_normal((2, model_columns(3, features))), rng.standard_normal(2)
    meta = {"columns": 3, "features": features, "gamma": 0.4 * bool(features), "feature_seed": 7}
    arrays = {"weights": weights, "bias": bias}
    right = model_rows(X, features, 0.4, 7) @ weights.T + bias
    np.testing.assert_allclose(outputs(arrays, meta, X), right)
    with refused("FK-COLUMNS-DIFFER"):
        outputs(arrays, meta, X[:, :2])
