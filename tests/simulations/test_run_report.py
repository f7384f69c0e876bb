"""The page that a run leaves: what was shown, what became of the columns, the plots."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import numpy as np


def test_a_run_leaves_a_page_with_its_columns_figures_and_plots(
    in_tmp: Path, tables: Any, commands: Any
) -> None:
    rng = np.random.default_rng(0)
    n = 120
    columns = {
        "income [EUR]": np.exp(rng.normal(10, 2, n)),
        "town <x>": np.array(["Seldwyla", "Gotham"])[rng.integers(0, 2, n)],
        "always": np.ones(n),
        "score": rng.normal(size=n),
    }
    columns["kind"] = np.where(columns["score"] > 0, "one <b>", "other")
    path = tables.write(in_tmp / "t.csv", columns)
    code, _, err = commands(
        "run", "fed-cg", "--data", path, "--label", "kind", "--out", "o", plots=True
    )
    assert code == 0, err
    result = json.loads(Path("o/result.json").read_text())
    page = Path("o", result["artifacts"]["report"]).read_text()
    read = html.unescape(page)
    for one in result["columns"]:
        assert f">{one['column']}<" in read
        assert one["text"] in read
    assert f"{result['metrics']['test_accuracy']:.4f}" in page
    for caption in ("Confusion matrix", "ROC curves", "Calibration"):
        assert caption in page
    assert page.count("data:image/png") == 3
    assert result["privacy"]["server_sees"][0] in read
    assert "held-out rows of one <b>" in read
    assert "one <b>" not in page  # escaped
    for value in ("Seldwyla", "Gotham", str(columns["score"][0])[:8]):
        assert value not in read


def test_a_page_of_numbers_shows_predictions_with_intervals(
    in_tmp: Path, tables: Any, commands: Any
) -> None:
    x = np.random.default_rng(1).normal(size=(120, 3))
    path = tables.write(in_tmp / "t.csv", dict(zip("abc", x.T, strict=True)) | {"y": x.sum(axis=1)})
    code, _, err = commands(
        "run", "fed-cg", "--data", path, "--label", "y", "--out", "o", plots=True
    )
    assert code == 0, err
    page = Path("o/report.html").read_text()
    assert "Predicted and true labels of held-out rows, with intervals" in page
    assert page.count("data:image/png") == 1
