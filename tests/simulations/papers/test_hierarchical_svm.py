"""The HierarchicalSVM paper as a plain program: against pooled oracles, and what messages show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.svm import SVC

from fedkern_flwr.simulations.papers import hierarchical_svm as paper
from fedkern_flwr.solvers.local_solvers import solve_local

Floats = NDArray[np.float64]
C, RHO = 0.7, 2.0


def blobs(rows: int = 24, columns: int = 3, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    return x, np.where(x @ rng.normal(size=columns) + 0.7 * rng.normal(size=rows) > 0.3, 1.0, -1.0)


def deal(x: Floats, y: Floats, users: int) -> list[paper.User]:
    return [(x[k::users], y[k::users]) for k in range(users)]


def dealt(sizes: Sequence[int]) -> list[list[paper.User]]:
    users = iter(deal(*blobs(), sum(sizes)))
    return [[next(users) for _ in range(size)] for size in sizes]


def objective(model: Floats, x: Floats, y: Floats) -> float:
    hinge = np.maximum(0.0, 1.0 - y * (x @ model[:-1] + model[-1]))
    return float(0.5 * model[:-1] @ model[:-1] + C * hinge.sum())


def pooled(x: Floats, y: Floats) -> Floats:
    svm = SVC(C=C, kernel="linear", tol=1e-9).fit(x, y)
    return np.append(svm.coef_[0], svm.intercept_)


# -- against oracles


@pytest.mark.parametrize("seed", range(3))
def test_a_user_solves_its_problem(seed: int) -> None:
    x, y = blobs(40, 5, seed)
    rng = np.random.default_rng(seed)
    v, penalty = rng.normal(size=6), rng.uniform(0.5, 4.0, 6)
    rows = np.column_stack([x, np.ones(40)])
    right, _ = solve_local("hinge", rows, y, v, penalty, C, np.zeros(0))
    np.testing.assert_allclose(paper.solve_user((x, y), v, penalty, C), right, atol=1e-8)


def test_the_chain_reaches_the_pooled_svm() -> None:
    x, y = blobs()
    found, _ = paper.fully_distributed(deal(x, y, 3), C=C, iterations=110)
    np.testing.assert_allclose(found.models[-1], pooled(x, y), atol=1e-4)
    assert np.abs(found.models[20] - pooled(x, y)).max() > 1e-3  # control
    assert not found.converged


@pytest.mark.parametrize("sizes", [(3,), (2, 2, 1)], ids=len)
def test_users_of_any_groups_reach_the_pooled_svm_by_equation_8(sizes: tuple[int, ...]) -> None:
    x, y = blobs()
    options = {"C": C, "rho": RHO, "iterations": 110, "equation": 8}
    found, _ = paper.hierarchical(dealt(sizes), **options)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.models[-1], pooled(x, y), atol=1e-4)


def test_the_fixed_point_of_equation_11_is_not_the_pooled_svm() -> None:
    x, y = blobs()
    found, transcript = paper.hierarchical(dealt((2, 2)), C=C, rho=RHO, iterations=120)
    model, best = found.models[-1], pooled(x, y)
    assert np.linalg.norm(model - found.models[-2]) < 1e-6
    assert objective(model, x, y) > 1.01 * objective(best, x, y)
    z = {a: [m for who, _, n, m in transcript if (who, n) == (a, "z")] for a in AGENTS[:2]}
    assert np.linalg.norm(z["agent 0"][-1] - z["agent 1"][-1]) > 1e-2  # no consensus of groups


def test_equation_11_is_the_documented_formula() -> None:
    groups, stiff = dealt((2, 3, 1)), 6 * RHO
    _, transcript = paper.hierarchical(groups, C=C, rho=RHO, iterations=3)
    masked = [m for m in transcript if m[2] == "masked model"]
    centers = [m for m in transcript if m[2] == "z"]
    before = np.zeros((3, 4))
    for t in range(3):
        total = [sum(m[3] for m in masked[6 * t : 6 * t + 6] if m[1] == a) for a in AGENTS]
        z = np.array([next(m[3] for m in centers[6 * t :] if m[0] == a) for a in AGENTS])
        for i, size in enumerate((2, 3, 1)):
            right = (total[i] / size + before.sum(axis=0) - before[i]) / 3
            right[:-1] *= stiff / (1 + stiff)
            np.testing.assert_allclose(z[i], right, atol=1e-10)
        before = z


AGENTS = ("agent 0", "agent 1", "agent 2")


def test_runs_end_when_their_residuals_are_small() -> None:
    x, y = blobs()
    for found, _ in (
        paper.fully_distributed(deal(x, y, 3), C=C, iterations=200, tolerance=1e-3),
        paper.hierarchical(dealt((3,)), C=C, rho=RHO, iterations=200, tolerance=1e-3),
        paper.hierarchical(dealt((2, 2)), C=C, rho=RHO, iterations=200, tolerance=1e-3, equation=8),
    ):
        assert found.converged
        assert 5 < len(found.models) < 200
    apart, _ = paper.hierarchical(dealt((2, 2)), C=C, rho=RHO, iterations=100, tolerance=1e-3)
    assert not apart.converged  # control: groups come to no consensus by equation 11


# -- what messages show


def test_what_an_agent_gets_of_a_user_is_masked_unless_it_is_alone() -> None:
    groups = dealt((3, 1))
    seen = []
    for seed in (0, 1):
        _, transcript = paper.hierarchical(groups, C=C, iterations=1, seed=seed)
        seen.append({m[0]: m[3] for m in transcript if m[2] == "masked model"})
    right = {  # the first iteration's models, and duals of zero
        f"user {i}.{j}": paper.solve_user(user, np.zeros(4), np.ones(4), C)
        for i, group in enumerate(groups)
        for j, user in enumerate(group)
    }
    for one in seen:
        apart = {name: np.abs(one[name] - model).max() for name, model in right.items()}
        assert min(apart[f"user 0.{j}"] for j in range(3)) > 0.1
        assert apart["user 1.0"] < 1e-12
        total = sum(one[f"user 0.{j}"] for j in range(3))
        np.testing.assert_allclose(total, sum(right[f"user 0.{j}"] for j in range(3)), atol=1e-12)
    assert np.abs(seen[0]["user 0.0"] - seen[1]["user 0.0"]).max() > 0.1


# -- the secure matrix product

X = np.random.default_rng(0).standard_normal((20, 4)) * [1.0, 1e3, 1e-3, 1.0]
MULTIPLIER = np.random.default_rng(1).standard_normal((20, 3))


@pytest.mark.parametrize("vectors", [None, 1, 16])
def test_the_secure_product_is_the_plain_one(vectors: int | None) -> None:
    product, transcript = paper.secure_product(X, MULTIPLIER, vectors=vectors)
    np.testing.assert_allclose(product, X.T @ MULTIPLIER, rtol=1e-9, atol=1e-9)
    (user, agent, first, z), (_, _, second, w) = transcript
    assert (user, agent, first, second) == ("user", "agent", "Z", "W")
    np.testing.assert_allclose(z.T @ z, np.eye(vectors or 8), atol=1e-12)
    assert np.abs(w - MULTIPLIER).max() > 0.05


def test_a_row_that_would_be_shown_by_itself_is_refused() -> None:
    x = X.copy()
    x[:, 0] = 0.0
    x[7, 0] = 3.0  # the only row with a value: every orthogonal vector is zero there
    with pytest.raises(ValueError, match="1 rows do not mix with others"):
        paper.secure_product(x, MULTIPLIER, vectors=5)
