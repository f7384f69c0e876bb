"""Trials against chance: guesses hit as the formula says, knowledge shows, doubt repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from fedkern_flwr.errors import OptionError
from fedkern_flwr.simulations.lab.audits import engine
from fedkern_flwr.simulations.lab.audits.evidence import CHOICES, Evidence, Sheet, Subject
from fedkern_flwr.simulations.lab.audits.findings import doubtful, judge
from fedkern_flwr.simulations.lab.audits.plan import Plan, Variant

WHAT = Subject("trilateration", "server", "rows")
KNOWN = Subject("trilateration", "hospital", "distances", documented=True)


def table(rows: int = 1000, seed: int = 0) -> np.ndarray:
    """Correlated columns of very different scale, one of few values, as tables have them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3)) @ rng.normal(size=(3, 5))
    return np.column_stack([100.0 * x, x[:, 0] > 1.0])


def entered(enter: Callable[[Sheet], None], seed: int = 0) -> Evidence:
    sheet = Sheet(seed)
    enter(sheet)
    (evidence,) = sheet.evidence.values()
    return evidence


@pytest.mark.parametrize("guess", ["nothing", "mean", "noise", "far away", "extreme row"])
def test_guesses_without_knowledge_hit_one_of_ten(guess: str) -> None:
    """Whatever the guess: a row that often is nearest to it is as often a decoy."""
    x, rng = table(), np.random.default_rng(1)
    guesses: dict[str, Any] = {
        "nothing": None,
        "mean": np.repeat(x.mean(axis=0)[None], len(x), axis=0),
        "noise": rng.normal(size=x.shape) * x.std(axis=0),
        "far away": rng.normal(size=x.shape) * 1e9,
        "extreme row": np.repeat(x[x[:, 0].argmax()][None], len(x), axis=0),
    }
    found = entered(lambda sheet: sheet.rows(WHAT, guesses[guess], x))
    low, high = found.interval
    assert low <= np.mean(found.hits) <= high
    assert abs(found.correlation or 0.0) < 0.05


def test_the_truth_hits_always_and_noise_on_it_less() -> None:
    x = table()
    noise = np.random.default_rng(2).normal(size=x.shape) * x.std(axis=0)
    exact, near, off = (
        entered(lambda sheet, k=k: sheet.rows(WHAT, x + k * noise, x)) for k in (0.0, 0.3, 1.0)
    )
    rates = [float(np.mean(e.hits)) for e in (exact, near, off)]
    assert rates[0] == 1.0
    assert 1.0 > rates[1] > rates[2] > exact.interval[1]
    assert exact.correlation == pytest.approx(1.0)


def test_the_correlation_minds_neither_scale_nor_huge_guesses() -> None:
    x = table()
    x[:, -1] = x[:, 0]
    monotone = entered(lambda sheet: sheet.rows(WHAT, np.sinh(x / 20.0), x))
    assert monotone.correlation == pytest.approx(1.0)


def test_one_of_several_alternatives_is_enough_and_alternatives_that_are_none_are_not() -> None:
    x, rng = table(), np.random.default_rng(3)
    noise = rng.normal(size=(len(x), 4, x.shape[1])) * x.std(axis=0)
    empty = entered(lambda sheet: sheet.rows(WHAT, noise, x))
    assert empty.interval[0] <= np.mean(empty.hits) <= empty.interval[1]
    noise[:, 2] = x
    assert np.mean(entered(lambda sheet: sheet.rows(WHAT, noise, x)).hits) > 0.8


def test_distances_are_told_from_a_coin() -> None:
    x, other = table(), table(seed=9)
    right = entered(lambda sheet: sheet.distances(WHAT, 7.0 * cdist(x, x), x))
    wrong = entered(lambda sheet: sheet.distances(WHAT, cdist(other, other), x))
    assert len(right.hits) == 333
    assert all(right.hits)
    assert wrong.interval[0] <= np.mean(wrong.hits) <= wrong.interval[1]


def test_pairs_of_two_kinds_share_no_row() -> None:
    kind = np.arange(1000) % 5 == 0
    told = entered(lambda sheet: sheet.order(WHAT, kind.astype(float), kind))
    assert told.hits == [True] * 200
    same = entered(lambda sheet: sheet.order(WHAT, np.ones(1000), kind))
    none = entered(lambda sheet: sheet.order(WHAT, None, kind))
    for coin in (same, none):
        assert coin.interval[0] <= np.mean(coin.hits) <= coin.interval[1]


def test_tested_guesses() -> None:
    rng = np.random.default_rng(4)
    misfits = rng.random((500, CHOICES))
    coin = entered(lambda sheet: sheet.guesses(WHAT, misfits))
    assert coin.interval[0] <= np.mean(coin.hits) <= coin.interval[1]
    misfits[:, 0] = 0.0
    assert all(entered(lambda sheet: sheet.guesses(WHAT, misfits)).hits)


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(OptionError, match="9 rows are too few to hide the true one among 10"):
        Sheet(0).rows(WHAT, None, table(9))


def evidence_of(hits: int, trials: int = 200, chance: float = 0.1) -> Evidence:
    return Evidence(chance, [k < hits for k in range(trials)])


def test_intervals_and_p_values_are_those_of_the_binomial_law() -> None:
    evidence = evidence_of(20)
    assert evidence.interval == (0.06, 0.145)
    assert evidence.p_value == pytest.approx(0.5348, abs=1e-3)
    assert evidence_of(200).p_value < 1e-190


@pytest.mark.parametrize(
    ("hits", "checks", "verdict"),
    [(26, 1, "nothing"), (30, 1, "LEAK"), (30, 8, "nothing"), (40, 8, "LEAK"), (5, 1, "nothing")],
)
def test_the_level_is_shared_by_the_checks_and_only_more_than_chance_leaks(
    hits: int, checks: int, verdict: str
) -> None:
    others = {Subject("labels", "server", str(k)): evidence_of(20) for k in range(checks - 1)}
    finding = judge({WHAT: evidence_of(hits), **others})[0]
    assert finding.verdict == verdict


def test_what_is_documented_is_shown_and_not_judged() -> None:
    finding, other = judge({KNOWN: evidence_of(200), WHAT: evidence_of(29)})
    assert (finding.verdict, finding.evidence.recovered) == ("documented", 1.0)
    assert not doubtful(finding)
    assert other.evidence.p_value is not None


def test_a_correlation_leaks_by_itself() -> None:
    rng = np.random.default_rng(5)
    truth = rng.normal(size=(2000, 1))
    for mixed, verdict in ((0.0, "nothing"), (0.3, "LEAK")):
        found = mixed * truth + rng.normal(size=truth.shape)
        sheet = Sheet(0)
        sheet.values(WHAT, found, truth)
        (finding,) = judge(sheet.evidence)
        assert finding.verdict == verdict
        assert finding.evidence.recovered is None


def test_only_what_is_neither_chance_nor_clear_is_doubtful() -> None:
    found = [judge({WHAT: evidence_of(hits)})[0] for hits in (9, 20, 33, 100)]
    assert [doubtful(f) for f in found] == [True, False, True, False]


class Fake:
    """Inspects nothing but a coin, or a secret that always shows."""

    def __init__(self, outcomes: Mapping[int, int]) -> None:
        self.outcomes, self.runs = outcomes, list[int]()

    def inspect(self, run: Any, sheet: Sheet) -> None:
        self.runs.append(run)
        hits = self.outcomes[run]
        sheet.guesses(WHAT, np.array([[float(k >= hits), 0.5] for k in range(200)]))


@pytest.mark.parametrize(
    ("outcomes", "runs", "verdict"),
    [
        ({7: 100, 7 + engine.MOST_RUNS: 0}, [7], "nothing"),
        ({7: 120, 7 + engine.MOST_RUNS: 101}, [7, 7 + engine.MOST_RUNS], "nothing"),
        ({7: 120, 7 + engine.MOST_RUNS: 125}, [7, 7 + engine.MOST_RUNS], "LEAK"),
        ({7: 200, 7 + engine.MOST_RUNS: 0}, [7], "LEAK"),
    ],
)
def test_doubt_is_settled_by_a_second_attempt(
    monkeypatch: pytest.MonkeyPatch, outcomes: dict[int, int], runs: list[int], verdict: str
) -> None:
    fake = Fake(outcomes)
    monkeypatch.setattr(engine, "record", lambda plan, config, seed: seed)
    plan = Plan(("fed-cg",), fake.inspect, ())
    (finding,) = engine.audit(plan, {"method": "fed-cg", "seed": 7}, trials=200)
    assert fake.runs == runs
    assert finding.verdict == verdict
    assert finding.repeated == (len(runs) > 1)


def test_runs_go_on_until_there_are_trials_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(dict.fromkeys(range(100), 100))
    monkeypatch.setattr(engine, "record", lambda plan, config, seed: seed)
    plan = Plan(("fed-cg",), fake.inspect, ())
    (finding,) = engine.audit(plan, {"method": "fed-cg", "seed": 0}, trials=900)
    assert fake.runs == [0, 1, 2, 3, 4]
    assert len(finding.evidence.hits) == 1000


def test_commands_are_those_that_a_user_types() -> None:
    options = {"secure": False, "allow_single": True, "min_support": 0, "id_column": "patient"}
    assert Variant("fed-cg", options).command == (
        "fedkern audit fed-cg --no-secure --allow-single --min-support 0 --id patient"
    )
