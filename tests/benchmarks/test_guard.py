"""The guard of the benchmarks: its baseline, and when it calls a figure worse."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner


def results(quick: bool = True, **values: float) -> dict:
    better = {"speed": "higher", "slowness": "lower", "seconds": ""}
    records = [
        {"name": name, "value": value, "unit": "this / that", "better": better[name]}
        for name, value in values.items()
    ]
    return {
        "date": "2026-01-01",
        "quick": quick,
        "cores": 2,
        "versions": {},
        "benchmarks": {"one": {"seconds": 1.0, "records": records}},
    }


@pytest.fixture
def guard(script):
    return script("guard")


def baseline(guard) -> dict:
    runs = [results(speed=s, slowness=0.5, seconds=9.0) for s in (2.0, 2.4, 1.6)]
    return guard.make_baseline(runs)


def test_a_baseline_is_the_median_with_twice_the_spread_as_tolerance(guard):
    slowness, speed = sorted(baseline(guard)["records"], key=lambda record: record["name"])
    assert (speed["name"], speed["value"]) == ("speed", 2.0)
    assert speed["tolerance"] == pytest.approx(2.0 * (2.4 / 1.6 - 1.0))
    assert (slowness["value"], slowness["tolerance"]) == (0.5, guard.EXACT)


@pytest.mark.parametrize(
    ("speed", "verdict"),
    [(2.0, "ok"), (1.01, "ok"), (0.99, "worse"), (3.9, "ok"), (4.1, "better")],
)
def test_a_figure_may_change_by_its_tolerance_as_a_factor(guard, speed, verdict):
    """The tolerance is 1: worse below 2.0 / 2, better above 2.0 * 2."""
    compared = guard.compare(baseline(guard), results(speed=speed, slowness=0.5))
    assert {one.key[1]: one.verdict for one in compared} == {"speed": verdict, "slowness": "ok"}


def test_lower_is_better_where_it_says_so(guard):
    (one,) = (
        one
        for one in guard.compare(baseline(guard), results(speed=2.0, slowness=0.51))
        if one.key[1] == "slowness"
    )
    assert one.verdict == "worse"
    assert one.change == pytest.approx(0.5 / 0.51 - 1.0)


def test_a_missing_figure_fails_and_a_benchmark_that_did_not_run_does_not(guard):
    (missing,) = (
        one for one in guard.compare(baseline(guard), results(speed=2.0)) if one.verdict != "ok"
    )
    assert (missing.verdict, missing.key[1]) == ("missing", "slowness")
    assert guard.compare(baseline(guard), {**results(), "benchmarks": {}}) == []


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (results(speed=2.0, slowness=0.5), 0),
        (results(speed=0.9, slowness=0.5), 1),
        (results(quick=False, speed=2.0, slowness=0.5), 2),
    ],
)
def test_exit_codes_of_a_check(guard, tmp_path, found, code):
    before, now = tmp_path / "baseline.json", tmp_path / "now.json"
    before.write_text(json.dumps(baseline(guard)))
    now.write_text(json.dumps(found))
    done = CliRunner().invoke(guard.app, ["check", str(now), "--baseline", str(before)])
    assert done.exit_code == code, done.output
