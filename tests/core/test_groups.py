"""Consensus of groups: updates are the minima that they stand for; who may advance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.groups import consensus

# -- consensus: updates are the minima that they stand for; who may advance

RNG = np.random.default_rng(0)


def fit(x: np.ndarray, *, standardised: bool = True) -> consensus.Coordinates:
    return consensus.Coordinates.fit(x.mean(0), (x**2).mean(0), standardised=standardised)


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
    np.testing.assert_allclose(consensus.penalties_of(w, own.ridge()), 0.5 * (penalised**2).sum(1))


def test_constant_columns_and_the_identity() -> None:
    # the variance of 0.1 and 1/3 is no exact 0
    x = np.column_stack([np.full((9, 4), [1e6, 0.0, 0.1, 1 / 3]), np.arange(9.0)])
    own = fit(x)
    np.testing.assert_array_equal(own.deviation[:4], 1.0)
    np.testing.assert_allclose(own.rows(x)[:, :4], 0.0, atol=1e-15)
    same = consensus.Coordinates.identity(5)
    np.testing.assert_array_equal(same.rows(x)[:, :-1], x)
    np.testing.assert_array_equal(same.ridge(), [1.0] * 5 + [0.0])


def test_centers_are_minima() -> None:
    """z_i and z minimise the augmented Lagrangian: no step in any direction lowers it."""
    w, r = RNG.standard_normal((2, 5, 2, 4))
    h, s = RNG.standard_normal((2, 2, 4))
    q = np.append(RNG.uniform(0.5, 2.0, 3), 0.0)
    zi = consensus.group_center((w + r).sum(0), 5, 0.7, 1.9, h, s)
    z = consensus.global_center((w + r).sum(0), 0.7, 5, q)

    def lagrangian(zi: np.ndarray) -> float:
        return float(0.35 * ((w - zi + r) ** 2).sum() + 0.95 * ((zi - h + s) ** 2).sum())

    def whole(z: np.ndarray) -> float:
        return consensus.penalties_of(z, q).sum() + 0.35 * float(((w + r - z) ** 2).sum())

    for f, point in ((lagrangian, zi), (whole, z)):
        for _ in range(20):
            step = 1e-3 * RNG.standard_normal((2, 4))
            assert f(point + step) > f(point)
    np.testing.assert_allclose(consensus.relax(w, r, 1.7), w + 0.7 * (w - r))


def test_penalties() -> None:
    assert [consensus.risen(k) for k in (0, 20, 40, 400)] == pytest.approx(
        [1.0, 20**0.5, 20.0, 20.0]
    )
    assert consensus.initial_rho("rising", 2.0) == 2.0
    assert consensus.initial_rho("fixed", 2.0) == consensus.initial_rho("balanced", 2.0) == 6.0
    assert consensus.initial_rho("scaled", 2.0) == 2.0
    few = np.array([9.0, 4.0, 1e9, 1.0, 0.0, 1.0]), np.array([4.0, 9.0, 1.0, 1e9, 1.0, 0.0])
    np.testing.assert_allclose(consensus.balance(*few, 5), [1.5, 2 / 3, 2.0, 0.5, 1.0, 1.0])
    for k in (6, 65):
        np.testing.assert_array_equal(consensus.balance(*few, k), 1.0)
    factor = np.array([1.0, 1.5])
    np.testing.assert_allclose(consensus.growth("rising", 40, factor), 20.0)
    for schedule in ("fixed", "balanced", "scaled"):
        np.testing.assert_array_equal(consensus.growth(schedule, 40, factor), factor)


def test_each_output_has_a_penalty_of_its_own_scale() -> None:
    """Three times the size of the duals in units of the model's; at most three times as before."""
    pull, size = np.array([6.0, 0.06, 60.0, 0.0, 1.0]), np.array([3.0, 3.0, 3.0, 3.0, 0.0])
    rho = np.array([5.0, 0.1, 1.0, 1.0, 1.0])
    np.testing.assert_allclose(consensus.scale(pull, size, rho, 40), [6 / 5, 0.6, 3.0, 1.0, 1.0])
    for k in (1, 44, 45):
        np.testing.assert_array_equal(consensus.scale(pull, size, rho, k), 1.0)
    now, residuals = np.full(5, 2.0), consensus.Residuals(size, size, pull, pull)
    np.testing.assert_allclose(
        consensus.next_growth("scaled", now, residuals, rho, 5)[:2], [12 / 5, 1.2]
    )
    for schedule in ("rising", "fixed"):
        np.testing.assert_array_equal(consensus.next_growth(schedule, now, residuals, rho, 5), now)


@pytest.mark.promise("svm-every-class")
def test_residuals() -> None:
    """They are small when those of every output are: a total would be that of frequent classes."""
    own = consensus.Residuals(*np.array([[1.0, 30.0], [200.0, 40.0], [3.0, 1.0], [4.0, 100.0]]))
    assert own.largest() == (0.75, 0.75)
    assert own.small(0.75)
    assert not own.small(0.74)
    rare = consensus.Residuals(*np.array([[1.0, 0.9], [1e6, 1.0], [0.0, 0.0], [1e6, 1.0]]))
    assert not rare.small(0.8)
    assert not consensus.Residuals.unknown(2).small(0.99)  # nothing is known yet
    np.testing.assert_allclose(consensus.norms(np.array([[3.0, 4.0], [0.0, 2.0]])), [5.0, 2.0])


@given(
    st.dictionaries(st.integers(0, 9), st.integers(0, 8), min_size=1),
    st.sets(st.integers(0, 9)),
    st.integers(0, 4),
)
def test_groups_keep_the_bound(done: dict[int, int], ready: set[int], staleness: int) -> None:
    least = min(done.values())
    done = {g: min(t, least + staleness) for g, t in done.items()}
    ready &= set(done)
    found = consensus.may_advance(ready, done, staleness)
    after = {g: t + (g in found) for g, t in done.items()}
    assert found <= ready
    assert max(after.values()) - min(after.values()) <= staleness
    slowest = {g for g in done if done[g] == least}
    assert (slowest & ready) <= found or (staleness == 0 and not slowest <= ready)
    if slowest <= ready:
        assert found == ready  # then nobody is beyond the bound
    if staleness == 0:
        assert found in (set(), set(done))
