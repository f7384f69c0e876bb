"""Split linear models: the pooled optimum whatever the split, in few visits, with a true bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused
from scipy import optimize
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from fedkern_flwr.solvers import dual_subspace as dual

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


def test_rank_many_messages_give_the_optimum() -> None:
    federation = hinge(columns=6)
    for _ in range(7):  # outputs of six messages
        federation.iterate()
    np.testing.assert_allclose(federation.owner.objective, machine(columns=6)[1], rtol=1e-6)


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


def test_the_logistic_model_is_the_pooled_one() -> None:
    federation = Federation(X, dual.LabelOwner("logistic", Y, 1.0, seed=0), 3, 4).run(1e-8)
    pooled = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(X, Y[:, 0])
    weights, bias = federation.model()
    np.testing.assert_allclose(weights[:, 0], pooled.coef_[0], atol=1e-3)
    np.testing.assert_allclose(bias, pooled.intercept_, atol=1e-3)


def test_the_squared_model_is_ridge_regression() -> None:
    targets = np.column_stack([X[:, 0], X[:, 1] - 2.0 * X[:, 5]]) + 3.0
    owner = dual.LabelOwner("squared", targets, 0.5, seed=0)
    federation = Federation(X[:, 2:20], owner, 3, 4).run(1e-10)
    pooled = Ridge(2.0, solver="cholesky").fit(X[:, 2:20], targets)
    weights, bias = federation.model()
    np.testing.assert_allclose(weights, pooled.coef_.T, atol=1e-5)
    np.testing.assert_allclose(bias, pooled.intercept_, atol=1e-6)


def test_rounded_sums_give_the_optimum_nearly() -> None:
    federation = hinge(split=(4, 5))
    for _ in range(40):
        federation.iterate(decimals=5)
    found = pooled_objective("hinge", federation.model(), X, Y, 1.0)
    np.testing.assert_allclose(found, machine()[1], rtol=1e-4)


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize("seed", range(4))
def test_the_restricted_optimum_beats_a_general_solver(loss: dual.Loss, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, m, cost = 25, 3, float(10.0 ** rng.uniform(-2, 2))
    columns = rng.standard_normal((n, m))
    y = np.where(columns[:, 0] + rng.standard_normal(n) > 0.3, 1.0, -1.0)
    best = dual.restricted_optimum(loss, columns, y, cost)

    def value(point: np.ndarray) -> float:
        outputs = columns @ point[:-1] + point[-1]
        return dual.objective(loss, float(point[:-1] @ point[:-1]), outputs, y, cost)

    at = np.append(best.weights, best.bias)
    other = optimize.minimize(value, np.zeros(m + 1), method="BFGS", tol=1e-9).x
    assert value(at) == pytest.approx(value(other), rel=1e-6)
    assert value(at) <= value(other) * (1.0 + 1e-8)
    np.testing.assert_allclose(at, other, atol=1e-4)
    np.testing.assert_allclose(columns.T @ best.duals, best.weights, atol=1e-6 * cost)
    assert best.duals.sum() == pytest.approx(0.0, abs=1e-6 * cost)


@pytest.mark.parametrize("cost", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("separable", [False, True])
def test_the_duality_gap_of_the_hinge_closes(cost: float, separable: bool) -> None:
    rng = np.random.default_rng(5)
    columns = 10.0 * rng.standard_normal((60, 4))
    y = np.where(columns[:, 0] + 30.0 * (not separable) * rng.standard_normal(60) > 8, 1.0, -1.0)
    best = dual.restricted_optimum("hinge", columns, y, cost)
    a = y * best.duals
    assert a.min() >= 0.0
    assert a.max() <= cost
    outputs = columns @ best.weights + best.bias
    primal = dual.objective("hinge", float(best.weights @ best.weights), outputs, y, cost)
    bound = a.sum() - 0.5 * float(np.sum((columns.T @ best.duals) ** 2))
    assert primal == pytest.approx(bound, rel=1e-6)
    assert best.duals.sum() == pytest.approx(0.0, abs=1e-6 * cost)
    np.testing.assert_allclose(columns.T @ best.duals, best.weights, atol=1e-6 * cost)


def test_the_basis_is_orthonormal_and_leaves_out_what_is_rounding() -> None:
    rng = np.random.default_rng(0)
    x, sent = rng.standard_normal((30, 4)), rng.standard_normal((30, 7))
    outputs = x @ (x.T @ sent)
    basis = dual.orthonormal_basis(sent, outputs)
    assert basis.shape == (7, 4)
    columns = x.T @ sent @ basis
    np.testing.assert_allclose(columns.T @ columns, np.eye(4), atol=1e-6)
    noisy = dual.orthonormal_basis(sent, outputs + 1e-4 * rng.standard_normal(outputs.shape))
    assert noisy.shape == (7, 4)
    assert dual.orthonormal_basis(sent[:, :0], outputs[:, :0]).shape == (0, 0)


def test_unsuitable_targets_and_widths_are_refused() -> None:
    for targets in (np.ones((3, 1)), np.array([[0.0], [1.0]]), np.full((2, 1), np.nan)):
        with refused("FK-LOSS-CLASSES"):
            dual.LabelOwner("logistic", targets, 1.0, seed=0)
    with refused("FK-OPTION-RANGE"):
        dual.LabelOwner("squared", np.ones((3, 1)), 1.0, seed=0, width=0)
    for cost in (0.0, -1.0, np.inf, np.nan):
        with refused("FK-OPTION-RANGE"):
            dual.LabelOwner("hinge", np.array([[1.0], [-1.0]]), cost, seed=0)


def test_outputs_that_nobody_waits_for_are_refused() -> None:
    owner = dual.LabelOwner("hinge", np.array([[1.0], [-1.0]]), 1.0, seed=0)
    with refused("FK-MESSAGE-ORDER"):
        owner.receive(np.zeros((2, 1)))
    owner.next_message()
    with refused("FK-MESSAGE-ORDER"):
        owner.receive(np.zeros((2, 2)))
    with refused("FK-MESSAGE-FINITE"):
        owner.receive(np.full((2, 1), np.nan))
