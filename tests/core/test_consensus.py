"""Consensus over groups: updates are the minima that they stand for; who may advance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.groups.consensus import (
    Coordinates,
    Residuals,
    balance,
    global_center,
    group_center,
    growth,
    initial_rho,
    may_advance,
    paper_group_center,
    penalty_of,
    relax,
    risen,
)

RNG = np.random.default_rng(0)


def fit(x: np.ndarray, *, standardised: bool = True) -> Coordinates:
    return Coordinates.fit(x.mean(0), (x**2).mean(0), standardised=standardised)


@pytest.mark.parametrize("standardised", [True, False])
def test_coordinates_change_neither_outputs_nor_penalties(standardised: bool) -> None:
    x = RNG.standard_normal((30, 3)) * [1.0, 100.0, 0.01] + [0.0, 5.0, 3.0]
    own = fit(x, standardised=standardised)
    rows, w = own.rows(x), RNG.standard_normal((2, 4))
    np.testing.assert_allclose(rows[:, :-1].mean(0), 0.0, atol=1e-8)
    np.testing.assert_allclose(rows[:, :-1].std(0), 1.0, rtol=1e-6)
    assert (rows[:, -1] == 1.0).all()
    weights, bias = own.model(w)
    np.testing.assert_allclose(x @ weights.T + bias, rows @ w.T, rtol=1e-9, atol=1e-9)
    penalised = w[:, :-1] if standardised else weights
    assert penalty_of(w, own.ridge()) == pytest.approx(0.5 * (penalised**2).sum())


def test_constant_columns_and_the_identity() -> None:
    x = np.column_stack([np.full(9, 1e6), np.zeros(9), np.arange(9.0)])
    own = fit(x)
    np.testing.assert_array_equal(own.deviation[:2], 1.0)
    np.testing.assert_allclose(own.rows(x)[:, :2], 0.0)
    same = Coordinates.identity(3)
    np.testing.assert_array_equal(same.rows(x)[:, :-1], x)
    np.testing.assert_array_equal(same.ridge(), [1.0, 1.0, 1.0, 0.0])


def test_centers_are_minima() -> None:
    """z_i and z minimise the augmented Lagrangian: no step in any direction lowers it."""
    w, r = RNG.standard_normal((2, 5, 2, 4))
    h, s = RNG.standard_normal((2, 2, 4))
    q = np.append(RNG.uniform(0.5, 2.0, 3), 0.0)
    zi = group_center((w + r).sum(0), 5, 0.7, 1.9, h, s)
    z = global_center((w + r).sum(0), 0.7, 5, q)

    def lagrangian(zi: np.ndarray) -> float:
        return float(0.35 * ((w - zi + r) ** 2).sum() + 0.95 * ((zi - h + s) ** 2).sum())

    def whole(z: np.ndarray) -> float:
        return penalty_of(z, q) + 0.35 * float(((w + r - z) ** 2).sum())

    for f, point in ((lagrangian, zi), (whole, z)):
        for _ in range(20):
            step = 1e-3 * RNG.standard_normal((2, 4))
            assert f(point + step) > f(point)
    np.testing.assert_allclose(relax(w, r, 1.7), w + 0.7 * (w - r))


def test_the_papers_center_is_the_formula() -> None:
    total, others = RNG.standard_normal((2, 1, 3))
    found = paper_group_center(total.copy(), 4, others, 0.5, 12, 3)
    right = (total / 4 + others) / 3 * [[6 / 7, 6 / 7, 1.0]]
    np.testing.assert_allclose(found, right)


def test_penalties() -> None:
    assert [risen(k) for k in (0, 20, 40, 400)] == pytest.approx([1.0, 20**0.5, 20.0, 20.0])
    assert initial_rho("rising", 2.0) == 2.0
    assert initial_rho("fixed", 2.0) == initial_rho("balanced", 2.0) == 6.0
    assert balance(9.0, 4.0, 5) == pytest.approx(1.5)
    assert balance(4.0, 9.0, 10) == pytest.approx(2 / 3)
    assert (balance(1e9, 1.0, 5), balance(1.0, 1e9, 60)) == (2.0, 0.5)
    for primal, dual, k in ((1e9, 1.0, 6), (1e9, 1.0, 65), (0.0, 1.0, 5), (1.0, 0.0, 5)):
        assert balance(primal, dual, k) == 1.0
    assert growth("fixed", 5, 1.0) == 1.0
    assert growth("rising", 40, 1.0) == pytest.approx(20.0)
    assert growth("balanced", 40, 1.5) == 1.5


def test_residuals() -> None:
    assert Residuals(1.0, 2.0, 3.0, 4.0).relative == (0.5, 0.75)
    assert Residuals(1.0, 2.0, 3.0, 4.0).small(0.75)
    assert not Residuals(1.0, 2.0, 3.0, 4.0).small(0.74)
    assert not Residuals(0.0, 0.0, 0.0, 0.0).small(0.99)  # nothing is known yet


@given(
    st.dictionaries(st.integers(0, 9), st.integers(0, 8), min_size=1),
    st.sets(st.integers(0, 9)),
    st.integers(0, 4),
)
def test_groups_advance_as_far_as_the_bound_allows(
    done: dict[int, int], ready: set[int], staleness: int
) -> None:
    least = min(done.values())
    done = {g: min(t, least + staleness) for g, t in done.items()}
    ready &= set(done)
    found = may_advance(ready, done, staleness)
    after = {g: t + (g in found) for g, t in done.items()}
    assert found <= ready
    assert max(after.values()) - min(after.values()) <= staleness
    slowest = {g for g in done if done[g] == least}
    assert (slowest & ready) <= found or (staleness == 0 and not slowest <= ready)
    if slowest <= ready:
        assert found == ready  # then nobody is beyond the bound
    if staleness == 0:
        assert found in (set(), set(done))
