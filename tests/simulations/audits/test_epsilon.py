"""Audits of epsilon: methods keep their budget, half the noise is caught, bounds are bounds.

The noise comes from the operating system: what is random here fails once in a million runs.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.privacy import skellam
from fedkern_flwr.secure_sum import party
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.lab.attacks import likelihood_ratio
from fedkern_flwr.simulations.lab.audits import budget_attacks, budget_report
from fedkern_flwr.simulations.lab.audits.budget_cases import CASES
from fedkern_flwr.simulations.lab.audits.budgets import Audited, Case, audit_epsilon

SURE, EPSILON, DRAWS = 1.0 - 1e-6, 8.0, 2000
TITLES = [case.title for case in CASES]


def audited(case: Case) -> Audited:
    return audit_epsilon(case, EPSILON, draws=DRAWS, confidence=SURE)


@pytest.mark.parametrize("case", CASES, ids=TITLES)
def test_no_test_proves_more_epsilon_than_is_declared(case: Case) -> None:
    """And the audit is near: the sensitivity is used, half of epsilon is proven."""
    found = audited(case)
    assert found.kept
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
    assert not found.kept
    assert found.gaussian > found.epsilon
    assert found.moved <= found.sensitivity  # it is the noise


@pytest.mark.parametrize("attack", budget_report.ATTACKS)
def test_known_attacks_work_without_a_budget_and_have_nothing_left_with_one(attack: str) -> None:
    """On the same tables; the second runs declare epsilon 3, and their noise has no seed."""
    free, noisy = (recovered(epsilon)[attack] for epsilon in (math.inf, 3.0))
    assert free.interval[0] > 0.2
    assert noisy.shares.mean() < 0.75 * free.shares.mean()  # six of its deviations away
    assert noisy.kept
    assert not replace(free, epsilon=1.0).kept


@cache
def recovered(epsilon: float) -> dict[str, budget_attacks.Recovered]:
    return {one.attack: one for one in budget_attacks.recover(epsilon)}


def test_a_party_that_adds_more_than_is_charged_and_a_charge_beyond_the_budget_are_caught() -> None:
    found = audited(CASES[0])
    assert found.kept
    for wrong in ({"moved": 1.01 * found.sensitivity}, {"declared": 0.99 * found.epsilon}):
        assert not replace(found, **wrong).kept


def test_a_sum_that_no_run_made_is_refused() -> None:
    case = replace(CASES[0], sum="rest")
    with pytest.raises(ProtocolError, match="no such sum"):
        audit_epsilon(case, 1.0, draws=1)


def test_the_command_tells_what_was_proven(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(budget_report, "CASES", CASES[:1])
    monkeypatch.setattr(budget_report, "LEVEL", SURE)
    monkeypatch.setattr(budget_attacks, "RUNS", 2)
    monkeypatch.setattr(budget_attacks, "FEW", 2)
    words = ["audit", "epsilon", "--epsilon", "8", "--draws", "1000", "--json", "-"]
    words += ["--out", str(tmp_path / "here")]
    assert run(words) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    (check,) = found["checks"]
    assert found["verdict"] == "kept"
    assert 0.0 < max(check["proven"], check["proven_if_normal"]) <= check["charged"]
    assert check["charged"] <= check["declared"] == 8.0
    assert "epsilon at delta 1e-05; 1,000 releases" in said.err
    page = (tmp_path / "here" / "audit.html").read_text()
    assert '<span class="good">kept</span>' in page
    for attack in ("likelihood ratio", "loss", "definiteness", "joint inversion"):
        assert page.count(f"Attack: {attack}") == 1
    assert [one["kept"] for one in found["attacks"]] == 6 * [True]
    assert json.loads((tmp_path / "here" / "audit.json").read_text()) == found
    monkeypatch.setattr(party, "skellam", lambda v, size, key: skellam(1 << 16, size, key))
    assert run([*words, "--quiet", "--force"]) == 3
    assert json.loads(capsys.readouterr().out)["verdict"] == "BROKEN"
    assert '<span class="bad">BROKEN</span>' in (tmp_path / "here" / "audit.html").read_text()


@pytest.mark.parametrize("wrong", [["--epsilon", "none"], ["--epsilon", "0"], ["--draws", "9"]])
def test_what_cannot_be_audited_is_refused(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", "epsilon", *wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# -- the bounds


def test_epsilon_of_a_shift_is_that_of_the_analytic_gaussian_mechanism() -> None:
    for epsilon, deviation in ((1.0, 3.730632), (0.1, 30.8)):  # of Balle and Wang, delta 1e-5
        found = likelihood_ratio.epsilon_of_shift(1.0 / deviation, 1e-5)
        assert found == pytest.approx(epsilon, rel=0.01)
        again = likelihood_ratio.shift_of_epsilon(epsilon, 1e-5)
        assert again == pytest.approx(1.0 / deviation, rel=0.01)
    assert likelihood_ratio.epsilon_of_shift(-0.1, 1e-5) == 0.0


@pytest.mark.parametrize(
    "bound", [likelihood_ratio.gaussian_epsilon, likelihood_ratio.proven_epsilon]
)
@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_bounds_are_below_epsilon_as_often_as_they_say(bound: Any, mu: float) -> None:
    rng, true, times = np.random.default_rng(0), likelihood_ratio.epsilon_of_shift(mu, 1e-5), 200
    found = [
        bound(rng.normal(size=500), mu + rng.normal(size=500), mu, 1e-5, 0.9) for _ in range(times)
    ]
    assert np.mean(np.array(found) > true) < 0.1 + 3.0 * math.sqrt(0.09 / times)


def test_bounds_come_near_with_many_draws() -> None:
    rng, mu = np.random.default_rng(0), likelihood_ratio.shift_of_epsilon(3.0, 1e-5)
    one, other = rng.normal(size=1_000_000), mu + rng.normal(size=1_000_000)
    assert 2.9 < likelihood_ratio.gaussian_epsilon(one, other, mu, 1e-5, 0.95) < 3.0
    assert 2.0 < likelihood_ratio.proven_epsilon(one, other, mu, 1e-5, 0.95) < 3.0
