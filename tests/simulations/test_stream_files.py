"""Files of parties that are read while the run goes on, on the command line."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.simulations.cli.main import run

pytestmark = pytest.mark.usefixtures("in_tmp")
PARTIES = [word for k in range(3) for word in ("--party", f"{k}.csv")]
SMALL = ["--label", "power", "--samples-per-round", "5", "--quiet"]


def lines(k: int, rows: slice) -> str:
    rng = np.random.default_rng(k)
    x = rng.normal(20.0, 5.0, (90, 2))
    y = np.sin(x[:, 0] / 4.0) + 0.1 * x[:, 1]
    y[60:] = 3.0 * rng.random(30)  # nothing of what was learned holds
    return "".join(",".join(map(repr, row)) + "\n" for row in np.c_[x, y][rows].tolist())


def write(rows: int) -> None:
    for k in range(3):
        Path(f"{k}.csv").write_text("a,b,power\n" + lines(k, slice(rows)))


def result(out: str, *more: str, method: str = "pof-rls") -> dict[str, Any]:
    assert run(["run", method, *PARTIES, *SMALL, *more, "--out", out]) == 0
    found: dict[str, Any] = json.loads(Path(out, "result.json").read_text())
    return found


def test_files_that_do_not_grow_are_the_table() -> None:
    write(90)
    table, files = result("table"), result("files", "--stream-wait", "0")
    assert files["metrics"] == table["metrics"]
    assert files["history"] == table["history"]
    assert table["drift"] == [] or table["drift"][0] >= 55
    for out in ("table", "files"):
        run(["predict", out, "--data", "0.csv", "--out", f"{out}.csv"])
    assert Path("files.csv").read_text() == Path("table.csv").read_text()
    longer = result("longer", "--stream-wait", "0", "--rounds", "1000")
    assert 85 < longer["history"][-1]["round"] <= 90


def test_rows_that_are_written_meanwhile_are_learned() -> None:
    write(30)

    def grow() -> None:
        for at in range(30, 90, 10):
            time.sleep(0.2)
            for k in range(3):
                with Path(f"{k}.csv").open("a") as file:
                    file.write(lines(k, slice(at, at + 10)))

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        found = result("growing", "--stream-wait", "60", "--rounds", "90", method="pof-mkl")
    finally:
        writer.join()
    assert found["history"][-1]["round"] == 90
    assert {row["survivors"] for row in found["history"]} == {3}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--data", "0.csv", "--stream-wait", "0"], "streams are files of parties"),
        ([*PARTIES, "--stream-wait", "0", "--test-size", "0.2"], "no rows of a stream are held"),
        ([*PARTIES, "--stream-wait", "0", "--scaling", "rank"], "streams are scaled by ranges"),
        ([*PARTIES, "--stream-wait", "-1"], "stream wait is -1.0"),
        ([*PARTIES, "--stream-wait", "0", "--rounds", "0"], "rounds is 0"),
    ],
)
def test_what_a_stream_does_not_have(
    options: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(30)
    assert run(["run", "pof-rls", *options, *SMALL, "--out", "o"]) == 2
    assert line in " ".join(capsys.readouterr().err.split())


def test_text_is_no_stream(capsys: pytest.CaptureFixture[str]) -> None:
    write(30)
    for k in range(3):
        path = Path(f"{k}.csv")
        head, *rows = path.read_text().splitlines()
        rows = [f"{'red' if n % 2 else 'blue'},{row}" for n, row in enumerate(rows)]
        path.write_text("\n".join([f"colour,{head}", *rows]) + "\n")
    assert run(["run", "pof-rls", *PARTIES, *SMALL, "--stream-wait", "0", "--out", "o"]) == 2
    assert "was made of text, dates or gaps" in " ".join(capsys.readouterr().err.split())
