"""HierarchicalSVM: local problems of ADMM, linear models, and those whose columns are split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused, refuses
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils.class_weight import compute_sample_weight

from fedkern_flwr.groups.linear_model import LOSS_OF, MODELS, model_columns, model_rows, outputs
from fedkern_flwr.solvers import dual_subspace as dual
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


@settings(max_examples=150)
@given(
    p=st.builds(
        problem, n=st.integers(1, 60), d=st.integers(1, 40),
        penalty=st.sampled_from([1e-2, 0.3, 1.0, 30.0, 1e2]), spread=st.sampled_from([1.0, 10.0]),
        c=st.sampled_from([1e-4, 0.1, 1.0, 20.0, 1e4]), seed=st.integers(0, 10**6),
    ),
    repeat=st.integers(1, 3),
    whole=st.booleans(),
    loss=st.sampled_from(LOSSES),
)  # fmt: skip
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

FEW = np.random.default_rng(0).standard_normal((40, 3))


def test_random_features_approach_the_kernel_and_columns_stay_as_they_are() -> None:
    assert set(LOSS_OF) == set(MODELS)
    assert model_rows(FEW, 0, 0.0, 0) is FEW
    assert model_columns(3, 0) == 3
    found = model_rows(FEW, 3000, 0.4, 1)
    assert found.shape == (40, model_columns(3, 3000)) == (40, 6000)
    squares = ((FEW[:, None] - FEW) ** 2).sum(-1)
    np.testing.assert_allclose(found @ found.T, np.exp(-0.4 * squares), atol=0.08)
    np.testing.assert_array_equal(found, model_rows(FEW, 3000, 0.4, 1))
    assert np.abs(found - model_rows(FEW, 3000, 0.4, 2)).max() > 0.001


@pytest.mark.parametrize("features", [0, 5])
def test_outputs_of_a_saved_model(features: int) -> None:
    rng = np.random.default_rng(1)
    weights, bias = rng.standard_normal((2, model_columns(3, features))), rng.standard_normal(2)
    meta = {"columns": 3, "features": features, "gamma": 0.4 * bool(features), "feature_seed": 7}
    arrays = {"weights": weights, "bias": bias}
    right = model_rows(FEW, features, 0.4, 7) @ weights.T + bias
    np.testing.assert_allclose(outputs(arrays, meta, FEW), right)
    refuses("FK-COLUMNS-DIFFER", outputs, arrays, meta, FEW[:, :2])


# -- split linear models: the pooled optimum whatever the split, in few visits, with a true bound


Model = tuple[np.ndarray, np.ndarray]
X, LABELS = load_breast_cancer(return_X_y=True)
X, Y = StandardScaler().fit_transform(X), np.where(LABELS > 0, 1.0, -1.0)[:, None]


class Federation:
    """Groups with column blocks, each with its own random row blocks, around one label owner."""

    def __init__(self, x: np.ndarray, owner: dual.LabelOwner, groups: int, users: int) -> None:
        rng = np.random.default_rng(groups * 100 + users)
        self.x, self.owner = x, owner
        self.columns = np.array_split(np.arange(x.shape[1]), groups)
        self.rows = [np.array_split(rng.permutation(len(x)), users) for _ in self.columns]
        self.weights: list[np.ndarray | None] = [None] * groups
        self.visits = 0

    def agents(
        self, messages: np.ndarray, last: bool = False
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """One visit: the sums that the agents and the label owner get."""
        total = np.zeros(messages.shape)
        sums = []
        for columns, groups, weights in zip(self.columns, self.rows, self.weights, strict=True):
            sums.append(np.zeros((len(columns), messages.shape[1])))
            for rows in groups:
                block = self.x[np.ix_(rows, columns)]
                part, outputs = dual.visit(block, messages[rows], None if last else weights)
                sums[-1] += part
                if outputs is not None:
                    total[rows] += outputs
        self.visits += 1
        return sums, total

    def iterate(self, decimals: int | None = None) -> None:
        first = self.weights[0] is None
        sums, total = self.agents(self.owner.next_message())
        if decimals is not None:
            sums, total = [np.round(part, decimals) for part in sums], np.round(total, decimals)
        self.weights = list(sums)
        if not first:
            self.owner.receive(total)

    def run(self, tolerance: float, most: int = 100) -> Federation:
        while (self.owner.gap > tolerance * self.owner.objective).any():
            assert self.visits < most
            self.iterate()
        return self

    def model(self) -> Model:
        sums, _ = self.agents(self.owner.model_message(), last=True)
        return np.concatenate(sums), self.owner.bias


def pooled_objective(
    loss: dual.Loss, model: Model, x: np.ndarray, y: np.ndarray, cost: float
) -> np.ndarray:
    weights, bias = model
    f = x @ weights + bias
    return np.array(
        [
            dual.objective(loss, float(w @ w), f[:, k], y[:, k], cost)
            for k, w in enumerate(weights.T)
        ]
    )


def hinge(
    cost: float = 1.0, split: tuple[int, int] = (2, 5), columns: int = 30, **more: Any
) -> Federation:
    return Federation(X[:, :columns], dual.LabelOwner("hinge", Y, cost, seed=0, **more), *split)


def machine(cost: float = 1.0, columns: int = 30, x: Any = None, y: Any = None) -> tuple[Any, Any]:
    """Return the pooled machine and its objective."""
    x, y = X[:, :columns] if x is None else x, Y[:, 0] if y is None else y
    svc = SVC(kernel="linear", C=cost, tol=1e-8).fit(x, y)
    model = svc.coef_.T, svc.intercept_
    return svc, pooled_objective("hinge", model, x, y[:, None], cost)


@pytest.mark.parametrize("cost", [0.1, 1.0, 10.0])
def test_the_objective_is_that_of_the_pooled_svm_and_stays_there(cost: float) -> None:
    svc, oracle = machine(cost)
    federation = hinge(cost, (4, 5)).run(1e-3, most=40)
    for _ in range(25):  # beyond the rank, where messages are rounding
        found = pooled_objective("hinge", federation.model(), X, Y, cost)
        np.testing.assert_allclose(found, oracle, rtol=1e-3)
        np.testing.assert_allclose(found, federation.owner.objective, rtol=1e-7)
        federation.iterate()
    found = pooled_objective("hinge", federation.model(), X, Y, cost)
    np.testing.assert_allclose(found, oracle, rtol=2e-5)
    weights, bias = federation.model()
    np.testing.assert_allclose(weights[:, 0], svc.coef_[0], atol=0.02 * abs(svc.coef_).max())
    np.testing.assert_allclose(bias, svc.intercept_, rtol=0.02)


@pytest.mark.parametrize("split", [(1, 1), (2, 20), (30, 3)])
def test_the_split_does_not_change_the_iterates(split: tuple[int, int]) -> None:
    one, other = hinge(split=(4, 5)), hinge(split=split)
    for _ in range(12):
        one.iterate()
        other.iterate()
        np.testing.assert_allclose(one.owner.objective, other.owner.objective, rtol=1e-6)
    np.testing.assert_allclose(one.model()[0], other.model()[0], rtol=1e-4, atol=1e-6)


def test_the_objective_falls_and_the_bound_holds_at_every_visit() -> None:
    federation, objectives, bounds = hinge(), [], []
    for _ in range(30):
        federation.iterate()
        objectives.append(float(federation.owner.objective[0]))
        bounds.append(float(federation.owner.bound[0]))
    assert all(np.diff(objectives) <= 1e-7 * objectives[-1])
    assert max(bounds) <= objectives[-1] * (1.0 + 1e-7)
    assert bounds[-1] == pytest.approx(objectives[-1], rel=1e-6)
    assert bounds[5] < objectives[-1] * 0.99  # it says so while it is far


def test_a_message_with_factors_bounds_nothing() -> None:
    owner = hinge().owner
    first, second = owner.next_message(), owner.next_message()
    assert not np.allclose(first, second)
    owner.receive(X @ (X.T @ first))
    bound = owner.bound.copy()
    owner.receive(np.zeros_like(second))  # would claim a gap of zero
    np.testing.assert_array_equal(owner.bound, bound)


def test_a_greater_width_saves_visits() -> None:
    visits = [hinge(width=width).run(1e-4).visits for width in (1, 4)]
    assert visits[1] <= visits[0] / 2


@pytest.mark.parametrize("width", [1, 2])
def test_one_versus_rest_shares_the_subspace(width: int) -> None:
    x, labels = load_iris(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    y = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
    owner = dual.LabelOwner("hinge", y, 1.0, seed=0, width=width)
    federation = Federation(x, owner, 2, 5).run(1e-6)
    oracle = [machine(x=x, y=y[:, k])[1][0] for k in range(3)]
    found = pooled_objective("hinge", federation.model(), x, y, 1.0)
    np.testing.assert_allclose(found, oracle, rtol=1e-5)
    assert federation.visits <= 7


def test_unsuitable_targets_and_widths_are_refused() -> None:
    for targets in (np.ones((3, 1)), np.array([[0.0], [1.0]]), np.full((2, 1), np.nan)):
        refuses("FK-LOSS-CLASSES", dual.LabelOwner, "logistic", targets, 1.0, seed=0)
    refuses("FK-OPTION-RANGE", dual.LabelOwner, "squared", np.ones((3, 1)), 1.0, seed=0, width=0)
    for cost in (0.0, -1.0, np.inf, np.nan):
        with refused("FK-OPTION-RANGE"):
            dual.LabelOwner("hinge", np.array([[1.0], [-1.0]]), cost, seed=0)


def test_outputs_that_nobody_waits_for_are_refused() -> None:
    owner = dual.LabelOwner("hinge", np.array([[1.0], [-1.0]]), 1.0, seed=0)
    refuses("FK-MESSAGE-ORDER", owner.receive, np.zeros((2, 1)))
    owner.next_message()
    refuses("FK-MESSAGE-ORDER", owner.receive, np.zeros((2, 2)))
    refuses("FK-MESSAGE-FINITE", owner.receive, np.full((2, 1), np.nan))
