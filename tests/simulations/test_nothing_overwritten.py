"""Nothing is overwritten unasked, and a full disk ends in a line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SMALL = ["kernel-pca", "--clients", "3", "--features", "10", "--test-size", "0.2"]
MAIN = [sys.executable, "-m", "fedkern_flwr.simulations.cli.main"]


@pytest.fixture(autouse=True)
def _in_tmp(in_tmp: Path) -> None:
    """Leave runs in a folder of the test's own."""


def test_a_used_folder_is_refused_and_replaced_when_asked(commands: Any) -> None:
    run = ["run", *SMALL, "--out", "mine", "--quiet"]
    assert commands(*run)[0] == 0
    before = Path("mine/result.json").read_bytes()
    line = commands.complaint(*run)
    assert "mine has results already" in line
    assert "--force" in line
    assert Path("mine/result.json").read_bytes() == before
    assert commands(*run, "--force", "--features", "12")[0] == 0
    assert Path("mine/result.json").read_bytes() != before


def test_predictions_are_not_replaced_unasked(commands: Any, tables: Any) -> None:
    data = tables.write("t.csv", tables.columns())
    assert (
        commands("run", "fed-cg", "--data", data, "--label", "y", "--id", "id", "--out", "o")[0]
        == 0
    )
    predict = ["predict", "o", "--data", data, "--id", "id"]
    first = Path("o/predictions.csv")
    assert commands(*predict)[0] == 0
    first.write_text("precious")
    assert commands(*predict)[0] == 0
    assert Path("o/predictions-2.csv").exists()
    assert first.read_text() == "precious"
    predict += ["--out", str(first)]
    assert "has results already" in commands.complaint(*predict)
    assert commands(*predict, "--force")[0] == 0


@pytest.mark.parametrize(("command", "file"), [("compare demo", "compare")])
def test_results_of_other_commands_are_refused_before_anything_is_computed(
    command: str, file: str, commands: Any
) -> None:
    Path("mine").mkdir()
    Path(f"mine/{file}.json").write_text("precious")
    assert "mine has results already" in commands.complaint(*command.split(), "--out", "mine")
    assert Path(f"mine/{file}.json").read_text() == "precious"


def test_runs_of_one_second_have_folders_of_their_own(
    commands: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.strftime", lambda *_: "20260101-120000")
    for _ in range(2):
        assert commands("run", *SMALL, "--quiet")[0] == 0
    names = sorted(path.name for path in Path("runs").iterdir())
    assert names == ["kernel-pca-20260101-120000", "kernel-pca-20260101-120000-2"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device here")
def test_json_that_cannot_be_written_is_a_line(commands: Any) -> None:
    line = commands.complaint("run", *SMALL, "--quiet", "--json", "/dev/full", code=1)
    assert "--json /dev/full cannot be written (No space left on device)" in line
    with Path("/dev/full").open("w") as full:
        command = [*MAIN, "run", *SMALL, "--quiet", "--json", "-"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("fedkern: --json - cannot be written")
    assert len(done.stderr.splitlines()) == 1


def test_a_disk_that_takes_no_more_is_a_line() -> None:
    """As on a full disk files stop in the middle: here at 2,000 bytes."""
    limit = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); "
    limit += "sys.argv[0] = 'fedkern'; runpy.run_module('fedkern_flwr.simulations.cli.main', "
    limit += "run_name='__main__')"
    command = [sys.executable, "-c", limit, "run", *SMALL, "--quiet", "--out", "mine"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("fedkern: File too large")
    assert "Traceback" not in done.stderr
