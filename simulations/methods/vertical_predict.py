"""Predictions for new rows with a model of FDSKL, dealt to the parties as the columns were."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...strategies import FDSKL
from .dealt_data import deal_columns
from .new_rows import Outputs, SavedRun, complete_rows
from .vertical_data import Columns, VerticalClients, VerticalData, VerticalSettings


def predict_rows(run: SavedRun, x: NDArray[np.float64]) -> Outputs:
    """Predict new rows with the model of a run.

    Columns are dealt as in the run; directions and coefficients are those that the simulated
    parties kept. The first active party predicts all rows.

    Raises
    ------
    TableError
        Every row lacks a value.
    """
    settings = VerticalSettings.from_values(run.config["data"])
    strategy = FDSKL.of_model(run.meta, allow_single=settings.allow_single)
    rows = complete_rows(x)
    new = Columns(
        x=x[rows],
        y=np.full(len(rows), np.nan),
        train=np.zeros(len(rows), bool),
        classes=tuple(run.scaling["classes"]),
        scaling=run.scaling,
        label_bound=float(run.meta["label_bound"]),
        owner=np.zeros(len(rows), np.intp),
        parts=deal_columns(run.scaling["sources"], settings.parties),
    )
    clients = VerticalClients(
        dealt=new,
        seed=run.seed,
        options={name: getattr(strategy, name) for name in VerticalData.told},
        predictions=None,
        state_dir=None,
        actives=settings.active_parties,
    )
    found = run.ask(clients, settings.parties, lambda grid: strategy.predict(grid, run.meta))
    return {rows[k]: outputs for k, outputs in found.items()}
