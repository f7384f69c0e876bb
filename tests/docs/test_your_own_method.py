"""The page of a method of one's own: its code runs, and what ``new-method`` writes works."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr import registered
from fedkern_flwr.registered import client_of
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.cli.main import run

PAGE = Path(__file__).resolve().parents[2] / "docs/your-own-method.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="no source tree here")
def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), flags=re.M | re.S)
    for block in blocks:
        exec(block, names)
    assert "'rows': 100" in capsys.readouterr().out
    mean = names["tables"].mean(axis=(0, 1))
    np.testing.assert_allclose(names["strategy"].model_["mean"], mean, atol=1e-12)


def test_a_new_method_is_written_found_and_run(tmp_path, monkeypatch, capsys):
    root = tmp_path / "new"
    assert run(["new-method", "method-of-tests", "--out", str(root)]) == 0
    assert run(["new-method", "method-of-tests", "--out", str(root)]) == 2
    assert "is there already" in capsys.readouterr().err
    for name in ("My Method", "1st", "class", "kernel-pca"):
        assert run(["new-method", name, "--out", str(tmp_path / "other")]) == 2
        assert not (tmp_path / "other").exists()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    around = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=root, env=around, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    monkeypatch.syspath_prepend(str(root))
    place = "method_of_tests:MethodOfTests"
    point = metadata.EntryPoint("method-of-tests", place, registered.GROUP)
    monkeypatch.setattr(registered, "registered", lambda: {"method-of-tests": point})
    method = registered.find_method.__wrapped__("method-of-tests")
    rows = np.random.default_rng(1).random((4, 9, 2))
    made = method(floor=0.5)
    simulate(made, lambda c: client_of(method)(c, rows[c.node_config["partition-id"]]), 4)
    assert made.metrics_ == {"rows": 36, "deviation": 0.5}
