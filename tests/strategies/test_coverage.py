"""How often intervals and sets hold what they should, on real tables and with defaults."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedkern_flwr.simulations.methods.experiment import run_entries
from fedkern_flwr.simulations.methods.registry import family
from fedkern_flwr.simulations.run.entries import Entry

SPLITS = 10


def coverage(data: str, kind: str, **more: object) -> tuple[float, float, list[float]]:
    """Return mean and deviation of the coverage over splits, and calibration before and after."""
    own = family("fed-cg")
    values = {option.name: option.default for option in own.parameters()}
    values |= {"data": data, "hospitals": 3, "resplit": True, **more}
    prepared = own.prepare(own.settings.from_values(values))
    missing = prepared.settings.missing
    entry = Entry("FedCG", "fed-cg", {"missing": "error" if missing == "encode" else missing})
    run_entries([entry], prepared, engine="in-process", seed=0, runs=SPLITS)
    found = [result["metrics"] for result in entry.results]
    errors = [
        float(np.mean([m[f"test_calibration_error{when}"] for m in found]))
        for when in ("_before", "")
        if kind == "set"
    ]
    covered = [m[f"test_{kind}_coverage"] for m in found]
    return float(np.mean(covered)), float(np.std(covered)), errors


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "more"), [("ccpp", {}), ("beijing_prsa", {"train_rows": 20000, "missing": "drop-row"})]
)
def test_intervals_hold_the_label_as_often_as_they_say(data: str, more: dict[str, object]) -> None:
    if (folder := os.environ.get("FEDKERN_DATA")) is None:
        pytest.skip("FEDKERN_DATA is not set")
    mean, spread, _ = coverage(str(Path(folder) / f"{data}.npz"), "interval", **more)
    print(f"{data}: {mean:.4f} +- {spread:.4f}")
    assert abs(mean - 0.9) <= 0.02


@pytest.mark.parametrize("data", ["breast-cancer", "digits", "wine"])
def test_sets_hold_the_class_as_often_as_they_say(data: str) -> None:
    """Of wine's 53 held-out rows 27 calibrate: 26 of them have to be in their sets."""
    mean, spread, (before, after) = coverage(data, "set")
    print(f"{data}: {mean:.4f} +- {spread:.4f}, calibration {before:.4f} {after:.4f}")
    assert 0.88 <= mean <= {"wine": 0.99}.get(data, 0.94)
    if data != "wine":  # too few rows to tell
        assert after < 0.7 * before
