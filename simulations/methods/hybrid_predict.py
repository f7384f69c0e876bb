"""Predictions for new rows with a model of FedCG, dealt to the parties as training rows were."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import TableError

from ...strategies import FedCG
from .hybrid_data import HybridData, HybridSettings, Pooled
from .new_rows import Outputs, SavedRun


def predict_rows(run: SavedRun, x: NDArray[np.float64]) -> Outputs:
    """Predict new rows with the model of a run.

    Rows are dealt to the run's hospitals in turn and columns to its parties; the model's landmarks
    are those that the simulated parties kept.

    Raises
    ------
    TableError
        Every row lacks a block.
    """
    settings = HybridSettings.from_values(run.config["data"])
    prepared = HybridData(settings)
    strategy = FedCG.of_model(run.meta, allow_single=settings.allow_single)
    first = prepared.split(run.seed)
    held = np.ones(len(x), bool)
    for block, columns in first.blocks.items():
        if settings.missing == "drop-row" or block not in list(first.blocks)[1:]:
            held &= np.isfinite(x[:, columns]).all(axis=1)
    rows = np.flatnonzero(held)
    if not len(rows):
        raise TableError("every row lacks a block of columns", remedy="fill in its cells")
    new = Pooled(
        x=x[rows],
        y=np.full(len(rows), np.nan),
        train=np.zeros(len(rows), bool),
        classes=first.classes,
        scaling=run.scaling,
        hospital=np.arange(len(rows)) % settings.hospitals,
        blocks=first.blocks,
    )
    clients = prepared.client_fn(FedCG.of_model(run.meta, seed=run.seed))
    told = {"protocol": "secure", "allow_single": settings.allow_single}
    found = run.ask(
        replace(clients, dealt=new, options=told),
        prepared.num_clients,
        lambda grid: strategy.predict(grid, run.arrays, run.meta),
    )
    return {rows[k]: outputs for k, outputs in found.items()}
