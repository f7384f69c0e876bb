"""``fedkern audit``: each paper's option shows its leak, each default none, through the command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.simulations.cli import audit as command
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.lab.audits import (
    PLANS,
    Variant,
    budget_attacks,
    budget_report,
    findings,
    plan_of,
)
from fedkern_flwr.simulations.lab.audits.budget_cases import CASES
from fedkern_flwr.simulations.lab.audits.budgets import audit_epsilon
from fedkern_flwr.simulations.lab.audits.catalogue import ATTACKS

#: Smaller runs than those of an audit.
SMALL = {
    "pof-mkl": ["--clients", "10", "--rounds", "20"],
    "pof-rls": ["--clients", "10", "--rounds", "20"],
    "per-fed-avg": ["--clients", "10", "--rounds", "20"],
    "fed-cg": [],
    "fdskl": ["--features", "60", "--train-rows", "150", "--kernel", "rbf", "--gamma", "0.1"],
    "secure-gram": [],
    "fed-cfk": [],
    "hierarchical-svm": ["--users", "10", "--data", "wine", "--rounds", "27"],
}
#: Least trials of a check; ``make test-long`` has all 200 of each default.
TRIALS, ALL = 100, 200
#: Of audits whose attacks take seconds a sum.
FEW = {"fedkern audit pof-mkl": 40}
#: Variants whose messages are those of others here, and that would take seconds more.
SKIPPED = (
    *("ofskl", "ofmkl-avg", "vm-kofl", "em-kofl"),
    "fedkern audit per-fed-avg",
    "fedkern audit fdskl --topology tree",
    "fedkern audit fed-cfk --min-support 0",
    "fedkern audit fed-cfk --merge max",
)


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks are not seeded, so chance must not fail a test."""
    monkeypatch.setattr(findings, "FAMILY_LEVEL", 1e-6)


def audited(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = run(["audit", *words, "--quiet", "--json", "-", "--out", "here", "--force"])
    return code, json.loads(capsys.readouterr().out)


def words_of(variant: Variant) -> list[str]:
    """The words of a variant's command, with a smaller run."""
    own = variant.command.split()[2:]
    if variant.options.get("partition") == "vertical":
        return own
    more = ["--rounds", "10"] if variant.options.get("merge") == "max" else []
    if variant.options.get("topology") == "tree":
        more = ["--seed", "1"]  # those of seed 0 keep their values apart
    return [*own, *SMALL[variant.method], *more]


#: A default and an option of the paper for each method; the others are run by ``make test-long``.
QUICK = (
    "fedkern audit pof-mkl",
    "fedkern audit pof-mkl --no-secure",
    "fedkern audit pof-rls",
    "fedkern audit pof-rls --no-secure",
    "fedkern audit pof-rls --samples-per-round 1 --clients 5 --allow-small-sums",
    "fedkern audit fed-cg",
    "fedkern audit fed-cg --protocol chain",
    "fedkern audit fdskl",
    "fedkern audit fdskl --frequencies shared",
    "fedkern audit secure-gram",
    "fedkern audit secure-gram --min-support 0",
    "fedkern audit fed-cfk",
    "fedkern audit fed-cfk --request noisy",
    "fedkern audit hierarchical-svm",
    "fedkern audit hierarchical-svm --agent-topology ring",
    "fedkern audit hierarchical-svm --partition vertical --product orthogonal",
)


def variants(red: bool) -> list[Any]:
    every = [v for plan in PLANS for v in plan.variants]
    kept = [v for v in every if v.method not in SKIPPED and v.command not in SKIPPED]
    return [
        pytest.param(v, id=v.command[14:], marks=() if v.command in QUICK else pytest.mark.long)
        for v in kept
        if bool(v.leaks) == red
    ]


def assert_complete(result: dict[str, Any], variant: Variant, trials: int = TRIALS) -> None:
    assert result["method"] == variant.method
    assert result["checks"]
    for check in result["checks"]:
        assert check["attack"] in ATTACKS
        costly = check["attack"] in ("joint inversion", "product inversion")
        sure = costly and check["p_value"] < 1e-6
        if check["verdict"] != "documented" and not sure:
            assert check["trials"] >= trials or check["trials"] == 0
            assert check["values"] == 0 or check["values"] >= 1500
            assert check["trials"] or check["values"]


def expected_of(default: Variant) -> set[str]:
    """Return what works on other options: a default must not be green because nobody looked."""
    alike = [
        v
        for v in plan_of(default.method).variants
        if v.method == default.method
        and v.options.get("partition") == default.options.get("partition")
    ]
    return {attack for variant in alike for attack in variant.leaks}


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("variant", variants(red=False))
def test_defaults_show_nothing(variant: Variant, capsys: pytest.CaptureFixture[str]) -> None:
    """And every attack that an option of the same method shows to work is tried."""
    trials = FEW.get(variant.command, TRIALS)
    assert_shows_nothing(words_of(variant), variant, trials, capsys)


@pytest.mark.long
@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("variant", variants(red=False))
def test_defaults_show_nothing_in_all_trials(
    variant: Variant, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("27", "52") for word in words_of(variant)]  # rounds for so many trials
    assert_shows_nothing(words, variant, ALL, capsys)


def assert_shows_nothing(
    words: list[str], variant: Variant, trials: int, capsys: pytest.CaptureFixture[str]
) -> None:
    code, result = audited(capsys, *words, "--trials", str(trials))
    assert (code, result["leaks"]) == (0, [])
    assert_complete(result, variant, trials)
    judged = [c for c in result["checks"] if c["verdict"] != "documented"]
    assert all(abs(c["correlation"] or 0.0) < 0.1 for c in judged)
    assert {c["attack"] for c in judged} >= expected_of(variant)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("variant", variants(red=True))
def test_options_of_papers_show_what_they_are_said_to(
    variant: Variant, capsys: pytest.CaptureFixture[str]
) -> None:
    # a user gives a trial a run: of 120 the requests of one run are told apart by little
    trials = ALL if "noisy" in variant.command else TRIALS
    code, result = audited(capsys, *words_of(variant), "--trials", str(trials))
    assert code == command.LEAK == 3
    assert set(variant.leaks) <= set(result["leaks"])
    assert_complete(result, variant, trials)
    computed = [c for c in result["checks"] if c["attack"] == "joint inversion"]
    if "joint inversion" in variant.leaks:
        assert min(c["recovered"] for c in computed if c["verdict"] == "LEAK") >= 0.95
        assert {c["verdict"] for c in computed} == {"LEAK", "documented"}


def test_the_report_stands_alone_and_explains_every_attack(
    capsys: pytest.CaptureFixture[str],
) -> None:
    naive = plan_of("fed-cg").variants[1]
    code, result = audited(capsys, *words_of(naive), "--seed", "3")
    page = Path("here/audit.html").read_text()
    assert (code, set(naive.leaks) - set(result["leaks"])) == (3, set())
    assert_complete(result, naive, ALL)
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!data:)", page)
    assert "<script" not in page
    assert '<span class="bad">LEAK</span>' in page
    assert '<span class="fair">documented</span>' in page
    assert "fedkern audit fed-cg --protocol naive" in page
    for attack in {check["attack"] for check in result["checks"]}:
        assert f"Attack: {attack}" in page
        assert ATTACKS[attack].knows.split(",")[0].split("'")[0] in page
    saved = json.loads(Path("here/audit.json").read_text())
    assert saved["checks"] == result["checks"]
    assert (saved["seed"], saved["config"]["seed"]) == (3, 3)


def test_a_table_of_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    rows = rng.random((300, 6))
    np.savez("mine.npz", X=rows, y=(rows[:, 0] > rows[:, 5]).astype(float))
    code, result = audited(capsys, "fed-cg", "--data", "mine.npz", "--protocol", "naive")
    assert code == 3
    assert Path(result["config"]["data"]["data"]).name == "mine.npz"
    assert {check["viewer"] for check in result["checks"]} >= {"server", "hospital"}


def cache_of(audit: Callable[..., Any]) -> Callable[..., Any]:
    """Return what audits once and says the same ever after."""
    found: list[Any] = []

    def again(*given: Any, **options: Any) -> Any:
        if not found:
            found.append(audit(*given, **options))
        return found[0]

    return again


def test_all_needs_every_verdict_to_be_as_documented(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one audit of the many, and one sum: they are as documented, or one is not."""
    naive = plan_of("fed-cg").variants[1]
    monkeypatch.setattr(command, "audit", cache_of(command.audit))
    kept = audit_epsilon(CASES[0], 3.0, draws=100, confidence=1.0 - 1e-6)
    broken = replace(kept, moved=2.0 * kept.sensitivity)
    attacks = [budget_attacks.Recovered("loss", 3.0, np.array([0.1, 0.2]))]
    wrong = Variant("fed-cg", naive.options)
    for expected, one, code in ((naive, kept, 0), (wrong, kept, 3), (naive, broken, 3)):
        found = budget_report.Budgets([one], attacks, 100)
        monkeypatch.setattr(
            budget_report, "audit_all_budgets", lambda *known, found=found, **more: found
        )
        plan = next(p for p in PLANS if "fed-cg" in p.methods)
        short = type(plan)(**{**vars(plan), "variants": (expected,)})
        monkeypatch.setattr(command, "PLANS", (short,))
        assert run(["audit", "all", "--json", "-", "--out", "here", "--force"]) == code
        said = capsys.readouterr()
        assert f"{1 + int(code == 0)} of 2 audits as documented" in said.err
        assert f"fedkern audit epsilon: {found.outcome}" in said.err
        result = json.loads(said.out)
        assert result["audits"][0]["as_expected"] == (expected is naive)
        assert result["epsilon"]["verdict"] == ("kept" if one is kept else "BROKEN")
        page = Path("here/audit.html").read_text()
        assert "Audit of all methods" in page
        assert page.count("Attack: likelihood ratio") == page.count("Attack: loss") == 1
        assert page.count('<span class="bad">NO</span>') == (code != 0)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["fed-cg", "--protocol", "none"], "none"),
        (["fed-cg", "--trials", "0"], "trials is 0"),
        (["fed-cg", "--seed", "-1"], "seed is -1"),
        (["fed-cg", "--kernel", "laplacian"], "the attacks are on the Gaussian kernel"),
        (["fed-cg", "--data", "absent.csv"], "absent.csv"),
        (["nobody"], "pof-mkl"),
        (["secure-gram", "--rounds", "3"], "rounds is for merge max"),
        (["fed-cg", "--ray-address", "10.0.0.1:1"], "No such option '--ray-address'"),
        (["hierarchical-svm", "--architecture", "chain", "--groups", "3"], "has no groups"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", *words, "--quiet"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert text in captured.err
    assert not any(Path("runs").glob("*"))


def test_a_folder_with_something_else_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    Path("mine/letter.txt").write_text("mine")
    assert run(["audit", "fed-cg", "--quiet", "--out", "mine"]) == 2
    assert "is not empty and has no audit.json" in capsys.readouterr().err
    assert [f.name for f in Path("mine").iterdir()] == ["letter.txt"]
