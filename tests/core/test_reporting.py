"""What an app writes at the end of a run: a result, or why there is none."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import fedkern_flwr.strategies  # noqa: F401 - of an app's server
from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.reporting import errors_reported, log_result, write_result


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "result.json"


def test_an_error_of_ours_is_written(path: Path) -> None:
    with pytest.raises(TableError), errors_reported(path):
        raise TableError("no rows", remedy="bring\nsome", party="partition 1")
    assert json.loads(path.read_text()) == {
        "error": "partition 1: no rows; bring some",
        "exit_code": 2,
    }


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_run_that_crashes_leaves_no_result_of_an_earlier_one(
    path: Path, error: type[BaseException]
) -> None:
    with errors_reported(path):
        write_result(path, {"metrics": {"rows": 3}})
    assert json.loads(path.read_text()) == {"metrics": {"rows": 3}}
    with pytest.raises(error), errors_reported(path):
        raise error
    assert not path.exists()


def test_a_result_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    begun = []
    with pytest.raises(OptionError, match="the file of the result"), errors_reported(tmp_path):
        begun.append(1)
    assert not begun


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TableError), errors_reported(""):
        raise TableError("no rows")
    write_result("", {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("told", [True, False])
def test_an_error_of_ours_is_the_last_line_of_the_log(
    told: bool, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Flower logs what an app raises; an app of one's own does not report it itself."""
    flower, shown = logging.getLogger("flwr"), logging.StreamHandler()
    flower.addHandler(shown)
    try:
        for error in (TableError("no rows", remedy="bring\nsome"), ValueError("crash")):
            try:
                if told:
                    with errors_reported(path):
                        raise error
                raise error
            except Exception as raised:
                flower.error("%s raised an exception", "ServerApp", exc_info=raised)
    finally:
        flower.removeHandler(shown)
    ours, _, crash = capsys.readouterr().err.partition("ServerApp raised an exception")
    assert ours == "fedkern: no rows; bring some\n"
    assert "Traceback" in crash


def test_what_is_told_to_nobody_is_no_line(caplog: pytest.LogCaptureFixture) -> None:
    told = {"exchanges": 6, "seconds": 1.0, "bytes_up": 0, "bytes_down": 0}
    result = {"metrics": {"mse": None, "rows": 3}, "privacy": {}, "failures": {}, **told}
    with caplog.at_level(logging.INFO, logger="flwr"):
        log_result(result)
    assert caplog.messages[0] == "rows: 3"
