"""Predictions for new rows with a model of HierarchicalSVM, in a vertical split by its nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.groups.linear_model import outputs

from ...strategies import HierarchicalSVM
from .groups_data import HierarchicalData
from .groups_settings import HierarchicalSettings
from .new_rows import Outputs, SavedRun, complete_rows


def predict_rows(run: SavedRun, x: NDArray[np.float64]) -> Outputs:
    """Predict new rows with the model of a run, of a vertical split by its nodes.

    Of a vertical split the data must still be there. Columns are dealt as in the run; the first
    user of each group has all new rows. Agents and label owner use the parts of the model that they
    kept.

    Raises
    ------
    TableError
        Every row lacks a value.
    CheckpointError
        Nodes of a vertical split kept no parts of the model.
    """
    rows = complete_rows(x)
    if run.meta["partition"] != "vertical":
        return dict(zip(rows, outputs(run.arrays, run.meta, x[rows]).tolist(), strict=True))
    prepared = HierarchicalData(HierarchicalSettings.from_values(run.config["data"]))
    dealt = prepared.split(run.seed)
    train, new = np.flatnonzero(dealt.train), len(rows)
    known, first = len(train), np.cumsum([0, *prepared.sizes[:-1]])
    with_new = replace(
        dealt,
        x=np.concatenate([dealt.x[train], x[rows]]),
        y=np.concatenate([dealt.y[train], np.full(new, np.nan)]),
        train=np.arange(known + new) < known,
        holders=tuple(
            np.concatenate([holders[train], np.full(new, user)])
            for holders, user in zip(dealt.holders, first, strict=True)
        ),
    )
    allow_single = bool(run.config["options"].get("allow_single", False))
    strategy = HierarchicalSVM.of_model(run.meta, allow_single=allow_single)
    clients = replace(prepared.client_fn(strategy), dealt=with_new, seed=run.seed)
    found = run.ask(
        clients, prepared.num_clients, lambda grid: strategy.predict(grid, {}, run.meta)
    )
    return {rows[k]: found[known + k] for k in range(new)}
