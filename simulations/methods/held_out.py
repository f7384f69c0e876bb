"""Plots of held-out rows: what nodes counted, and predictions of simulated ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedkern_flwr.judging.figures import Calibration

from ..run.data import Prepared
from ..run.judging_plots import plot_judged, plot_predicted
from .dealt_data import DealtData
from .new_rows import read_predictions


def plot_held_out(folder: Path, prepared: Prepared, summary: Mapping[str, Any]) -> dict[str, Path]:
    """Draw what is known of the held-out rows of the first run; return name -> file."""
    held_out = summary.get("held_out")
    if not held_out or not isinstance(prepared, DealtData):
        return {}
    first = prepared.split(prepared.settings.seed)
    made = plot_judged(folder, held_out, first.class_names)
    found = read_predictions(prepared.predictions)
    if first.classes or not found or prepared.settings.resplit:
        return made
    rows = sorted(found)
    half = float(first.scaling["y_half_range"])
    predicted = np.array([found[row][0] for row in rows])
    true, predicted = (v * half + first.scaling["y_middle"] for v in (first.y[rows], predicted))
    calibration, width = Calibration.read(held_out.get("fitted", ()), 1), None
    if calibration is not None and math.isfinite(calibration.widths[0]):
        width = calibration.widths[0] * half
    file = plot_predicted(true, predicted, width, folder / "predicted.png")
    return {**made, "predicted_plot": file}
