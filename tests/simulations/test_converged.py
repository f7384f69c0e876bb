"""Whether a run converged: one line, one metric and one row, of every method that iterates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.simulations.methods import gram_learner
from fedkern_flwr.simulations.methods.online import OnlineFamily
from fedkern_flwr.strategies import FedCG

ROWS = 200
DRAWN = np.random.default_rng(5)
FEATURES = DRAWN.normal(size=(ROWS, 4))
CLASSES = np.where(DRAWN.random(ROWS) < 0.5, "yes", "no")  # of which the features know nothing
RARE = np.where(np.arange(ROWS) % 50 == 0, "bad", "good")
NOISE = DRAWN.normal(size=ROWS)

SVM = "hierarchical-svm --users 4 --C 1 --rounds"
TOO_FEW: dict[str, Any] = {
    f"{SVM} 3": CLASSES,
    f"{SVM} 3 --groups 2": CLASSES,
    f"{SVM} 3 --staleness 2": CLASSES,
    f"{SVM} 2 --partition vertical --id id": CLASSES,
    "fed-cg --solver cg --preconditioner-rank 0 --id id": CLASSES,
    "fdskl --schedule streaming --rounds 5 --id id": RARE,
    "secure-gram --encoding fixed-point --id id --kernel linear --cost 1e4": CLASSES,
    **{f"{cls.method} --clients 3 --rounds 40": NOISE for cls in OnlineFamily.strategies},
}
#: How each says in its table that it did not converge.
ROWS_OF = ("not converged", "converged no")


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what has no option for it take few steps."""
    monkeypatch.setattr(FedCG, "default_rounds", 2)
    monkeypatch.setattr(gram_learner, "STEPS", 1)
    monkeypatch.setattr(gram_learner, "STEPS_A_ROW", 1)


@pytest.mark.promise("converged-said")
@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("arguments", TOO_FEW)
def test_what_has_not_converged_says_so_once_and_goes_on(
    arguments: str, in_tmp: Path, tables: Any, commands: Any
) -> None:
    columns = dict(zip("abcd", FEATURES.T, strict=True)) | {"y": TOO_FEW[arguments]}
    file = tables.write(in_tmp / "t.csv", {"id": [f"r{k}" for k in range(ROWS)], **columns})
    given = (*arguments.split(), "--data", file, "--label", "y", "--out", "o")
    code, _, err = commands("run", *given)
    shown = " ".join(err.split())
    line, _, table = shown.partition(", in-process ")
    assert code == 0, shown
    assert line.count("not converged") == 1
    assert sum(table.count(text) for text in ROWS_OF) == 1, table
    assert json.loads(Path("o/result.json").read_text())["metrics"]["converged"] is False


@pytest.mark.parametrize(
    "case",
    ["hierarchical-svm", "pof-mkl", "pof-rls", "fed-cg --data iris --positive 2 --solver cg"],
)
def test_what_has_converged_says_nothing(case: str, finished: Any) -> None:
    done = finished(*case.split())
    assert done.result["metrics"]["converged"] is True
    assert "converged" not in done.shown
