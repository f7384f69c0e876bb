"""Lower bounds of epsilon: methods keep their budget, half the noise is caught, bounds are bounds.

The noise comes from the operating system: what is random here fails once in a million runs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from refusals import refuses
from scipy.optimize import brentq

from fedkern_flwr.privacy import skellam
from fedkern_flwr.secure_aggregation import SecureAggregation, secure_aggregation_mod
from fedkern_flwr.secure_aggregation.averages import TRAIN_SUM
from fedkern_flwr.secure_aggregation.clipping import Clip, NoisyMeans
from fedkern_flwr.secure_sum import party
from fedkern_flwr.simulations.attacks import budgets
from fedkern_flwr.simulations.attacks.budget_cases import ALL, CASES, Table, signed, tables_of
from fedkern_flwr.simulations.attacks.budgets import WIDTH, Audited, Case, Record, audit_epsilon

# -- any app: no method of the command line, and so no row of its table

_CLIP, _STEP = 2.0, 100.0  # a step far beyond the clip


class _SecureAvg(SecureAggregation, FedAvg):
    """Flower's mean of what apps return, with a clip and noise."""


def _averaging(record: Record, parties: int, **budget: Any) -> tuple[Any, ClientApp]:
    """Take a step of least squares; all rows of party 0 are the record."""
    delta, colluders = budget["privacy_delta"], budget["privacy_colluders"]

    def over(multiplier: float) -> float:
        """Return by how much a run with such noise costs more than it may."""
        means = NoisyMeans(Clip(_CLIP, multiplier), delta, colluders)
        means.open(WIDTH + 1, 1)
        return means.budget.epsilon - float(budget["privacy_epsilon"])

    noise: dict[str, Any] = {"clip": _CLIP, "noise_multiplier": brentq(over, 0.2, 1e4)}
    tables = tables_of(record, parties, ALL)

    def table(context: Context) -> Table:
        return tables[int(context.node_config["partition-id"])]

    app = ClientApp(mods=[secure_aggregation_mod(table, **noise)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        x, y = table(context)
        sent = message.content.array_records["arrays"]["w"].numpy()
        rows = np.column_stack([x, np.ones(len(x))])
        moved = ArrayRecord({"w": Array(sent + _STEP * rows.T @ (y - rows @ sent))})
        content: Any = {"arrays": moved, "metrics": MetricRecord({"num-examples": len(x)})}
        return Message(RecordDict(content), reply_to=message)

    common: dict[str, Any] = {"delta": delta, "colluders": colluders, "threshold": 3}
    return _SecureAvg(fraction_evaluate=0.0, **noise, **common), app


APP = Case(
    *("secure-aggregation", TRAIN_SUM, 4, _averaging, signed, "party"),
    least=3,
    start={"num_rounds": 1, "initial_arrays": ArrayRecord({"w": Array(np.zeros(WIDTH + 1))})},
    released=lambda strategy: (one for one, _ in strategy._averages.noisy._released),
)

SURE, EPSILON, DRAWS = 1.0 - 1e-6, 8.0, 2000
EVERY = (*CASES, APP)
TITLES = [case.title for case in EVERY]


def audited(case: Case, **more: Any) -> Audited:
    return audit_epsilon(case, EPSILON, draws=DRAWS, confidence=SURE, **more)


@pytest.mark.promise("epsilon-kept")
@pytest.mark.parametrize("case", EVERY, ids=TITLES)
def test_no_test_proves_more_epsilon_than_is_declared(case: Case) -> None:
    """And the audit is near: the sensitivity is used, half of epsilon is proven."""
    found = audited(case)
    assert found.score <= 1.0
    assert found.declared == pytest.approx(EPSILON, abs=1e-6)
    assert found.epsilon <= found.declared
    assert case.uses * found.sensitivity < found.moved <= found.sensitivity
    assert 0.85 * found.epsilon < found.reached <= found.epsilon
    assert 0.5 * found.epsilon < found.gaussian <= found.epsilon
    for wrong in ({"moved": 1.01 * found.sensitivity}, {"declared": 0.99 * found.epsilon}):
        assert replace(found, **wrong).score > 1.0
    assert len(np.unique(found.one)) > 0.9 * DRAWS  # each release has noise of its own


@pytest.mark.parametrize("case", EVERY, ids=TITLES)
def test_half_the_noise_is_caught(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(variance: int, size: int, key: bytes) -> Any:
        return skellam(variance // 4, size, key)

    monkeypatch.setattr(party, "skellam", half)
    found = audited(case)
    assert found.score > 1.0
    assert found.gaussian > found.epsilon
    assert found.moved <= found.sensitivity  # it is the noise


def test_the_control_of_the_table_adds_half_the_noise_and_is_of_a_sum_that_a_run_made() -> None:
    found = audited(CASES[0], noise=0.25)
    assert found.score > 1.0
    assert found.moved <= found.sensitivity
    refuses("FK-ATTACK-NOISE", audit_epsilon, replace(CASES[0], sum="rest"), 1.0, draws=1)


# -- the bounds


def test_epsilon_of_a_shift_is_that_of_the_analytic_gaussian_mechanism() -> None:
    for epsilon, deviation in ((1.0, 3.730632), (0.1, 30.8)):  # of Balle and Wang, delta 1e-5
        found = budgets.epsilon_of_shift(1.0 / deviation, 1e-5)
        assert found == pytest.approx(epsilon, rel=0.01)
        again = budgets.shift_of_epsilon(epsilon, 1e-5)
        assert again == pytest.approx(1.0 / deviation, rel=0.01)
    assert budgets.epsilon_of_shift(-0.1, 1e-5) == 0.0


@pytest.mark.promise("bounds-are-bounds")
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
