"""Lower bounds of epsilon: methods keep their budget, half the noise is caught, bounds are bounds.

The noise comes from the operating system: what is random here fails once in a million runs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.privacy import skellam
from fedkern_flwr.secure_sum import party
from fedkern_flwr.simulations.attacks import budgets
from fedkern_flwr.simulations.attacks.budget_cases import CASES
from fedkern_flwr.simulations.attacks.budgets import Audited, Case, audit_epsilon

SURE, EPSILON, DRAWS = 1.0 - 1e-6, 8.0, 2000
TITLES = [case.title for case in CASES]


def audited(case: Case, **more: Any) -> Audited:
    return audit_epsilon(case, EPSILON, draws=DRAWS, confidence=SURE, **more)


@pytest.mark.parametrize("case", CASES, ids=TITLES)
def test_no_test_proves_more_epsilon_than_is_declared(case: Case) -> None:
    """And the audit is near: the sensitivity is used, half of epsilon is proven."""
    found = audited(case)
    assert found.score <= 1.0
    assert found.declared == pytest.approx(EPSILON, abs=1e-6)
    assert found.epsilon <= found.declared
    assert case.uses * found.sensitivity < found.moved <= found.sensitivity
    assert 0.85 * found.epsilon < found.reached <= found.epsilon
    assert 0.5 * found.epsilon < found.gaussian <= found.epsilon
    assert len(np.unique(found.one)) > 0.9 * DRAWS  # each release has noise of its own


@pytest.mark.parametrize("case", CASES, ids=TITLES)
def test_half_the_noise_is_caught(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(variance: int, size: int, key: bytes) -> Any:
        return skellam(variance // 4, size, key)

    monkeypatch.setattr(party, "skellam", half)
    found = audited(case)
    assert found.score > 1.0
    assert found.gaussian > found.epsilon
    assert found.moved <= found.sensitivity  # it is the noise


def test_the_control_of_the_table_adds_half_the_noise() -> None:
    found = audited(CASES[0], noise=0.25)
    assert found.score > 1.0
    assert found.moved <= found.sensitivity


def test_a_party_that_adds_more_than_is_charged_and_a_charge_beyond_the_budget_are_caught() -> None:
    found = audited(CASES[0])
    assert found.score <= 1.0
    for wrong in ({"moved": 1.01 * found.sensitivity}, {"declared": 0.99 * found.epsilon}):
        assert replace(found, **wrong).score > 1.0


def test_a_sum_that_no_run_made_is_refused() -> None:
    case = replace(CASES[0], sum="rest")
    with pytest.raises(ProtocolError, match="no such sum"):
        audit_epsilon(case, 1.0, draws=1)


# -- the bounds


def test_epsilon_of_a_shift_is_that_of_the_analytic_gaussian_mechanism() -> None:
    for epsilon, deviation in ((1.0, 3.730632), (0.1, 30.8)):  # of Balle and Wang, delta 1e-5
        found = budgets.epsilon_of_shift(1.0 / deviation, 1e-5)
        assert found == pytest.approx(epsilon, rel=0.01)
        again = budgets.shift_of_epsilon(epsilon, 1e-5)
        assert again == pytest.approx(1.0 / deviation, rel=0.01)
    assert budgets.epsilon_of_shift(-0.1, 1e-5) == 0.0


@pytest.mark.parametrize("bound", [budgets.gaussian_epsilon, budgets.proven_epsilon])
@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_bounds_are_below_epsilon_as_often_as_they_say(bound: Any, mu: float) -> None:
    rng, true, times = np.random.default_rng(0), budgets.epsilon_of_shift(mu, 1e-5), 200
    found = [
        bound(rng.normal(size=500), mu + rng.normal(size=500), mu, 1e-5, 0.9) for _ in range(times)
    ]
    assert np.mean(np.array(found) > true) < 0.1 + 3.0 * math.sqrt(0.09 / times)


def test_bounds_come_near_with_many_draws() -> None:
    rng, mu = np.random.default_rng(0), budgets.shift_of_epsilon(3.0, 1e-5)
    one, other = rng.normal(size=1_000_000), mu + rng.normal(size=1_000_000)
    assert 2.9 < budgets.gaussian_epsilon(one, other, mu, 1e-5, 0.95) < 3.0
    assert 2.0 < budgets.proven_epsilon(one, other, mu, 1e-5, 0.95) < 3.0
