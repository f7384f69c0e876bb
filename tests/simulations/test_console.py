"""What commands show while they work, where nobody sits before a terminal."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from fedkern_flwr.simulations.cli import console
from fedkern_flwr.simulations.cli.console import Screen, course


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def test_a_log_file_gets_a_line_a_minute(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with Screen().progress() as bar:
        for second in range(0, 150, 10):
            clock[0] = float(second)
            bar.update(f"draw {second}", second + 0.5, 200)
    assert capsys.readouterr().err.splitlines() == ["draw 60: 60 of 200", "draw 120: 120 of 200"]


@pytest.mark.usefixtures("clock")
def test_what_is_soon_done_leaves_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen().progress() as bar:
        bar.update("draw 1", 1, 1)
    assert capsys.readouterr().err == ""


def test_quiet_is_quiet(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Screen(quiet=True).progress() as bar:
        clock[0] = 1000.0
        bar.update("draw 1", 1, 2)
    assert capsys.readouterr().err == ""


def test_the_course_of_the_error_is_shown_while_a_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = StringIO()
    screen = Screen()
    monkeypatch.setattr(screen, "console", Console(file=file, force_terminal=True, width=120))
    with screen.progress() as bar:
        bar.update("draw 1", 0, 3)
        for error in (0.1, 0.01, 0.001):
            bar.watch({"round": 1, "mse": error})
        bar.watch({"accuracy": 1.0})
    assert "█▄▁ 0.001" in file.getvalue()


def test_a_drift_stands_out_in_the_course() -> None:
    errors = [0.01] * 500 + [0.08] * 100
    assert course(errors) == "▁" * 20 + "█" * 4
    assert course([0.1, float("inf"), 0.0]) == "█▁"
    assert course([]) == ""


def test_what_has_no_count_is_seen_to_be_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    file = StringIO()
    screen = Screen()
    monkeypatch.setattr(screen, "console", Console(file=file, force_terminal=True, width=120))
    with screen.progress() as bar:
        bar.update("draw 1", 3, 3)
        bar.update("draw 1: training", 0, 0)
        bar.update("draw 2", 0, 3)
    shown = file.getvalue()
    assert "draw 1: training" in shown
    assert shown.rindex("draw 1: training") < shown.rindex("0/3")
    assert "0:00:00" in shown


def test_a_log_file_is_told_of_what_has_no_count(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with Screen().progress() as bar:
        clock[0] = 61.0
        bar.update("draw 1: training", 0, 0)
    assert capsys.readouterr().err == "draw 1: training\n"
