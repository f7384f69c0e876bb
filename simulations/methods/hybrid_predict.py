"""Predictions for new rows with a model of FedCG, dealt to the parties as training rows were."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedkern_flwr.errors import TableError

from ...strategies import FedCG
from ..engines import InProcessGrid
from .hybrid_data import HybridClients, HybridData, HybridSettings, Pooled
from .new_rows import read_model, read_predictions, read_rows, write_rows

Floats = NDArray[np.float64]


def predict_rows(
    folder: Path, config: Mapping[str, Any], data: Path, id_column: str | None, out: Path
) -> tuple[int, int]:
    """Predict the rows of a file with the model of a run and write a CSV file.

    Rows are dealt to the run's hospitals in turn and columns to its parties; the model's landmarks
    are those that the simulated parties kept. Values beyond the training rows' range are clipped
    to it.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    config : mapping
        The run's configuration.
    data : Path
        File with the columns of the training data; others are ignored, as is a label.
    id_column : str or None
        Column of record ids; row numbers by default.
    out : Path
        CSV file: id, then the predicted class and the outputs, or the predicted value.

    Returns
    -------
    (int, int)
        Rows predicted, and rows left out because they lack a block.

    Raises
    ------
    TableError
        The file lacks a column of the model, or every row lacks a block.
    CheckpointError
        The folder has no model.
    """
    arrays, meta, scaling = read_model(folder, config["method"])
    x, ids = read_rows(data, scaling, id_column, str(config["data"].get("label") or ""))
    settings = HybridSettings.from_values(config["data"])
    prepared = HybridData(settings)
    seed = int(config["seed"])
    strategy = FedCG.of_model(meta, allow_single=settings.allow_single)
    given = FedCG.of_model(meta, seed=seed)
    first = prepared.split(seed)
    held = np.ones(len(x), bool)
    for block, columns in first.blocks.items():
        if settings.missing == "drop-row" or block not in list(first.blocks)[1:]:
            held &= np.isfinite(x[:, columns]).all(axis=1)
    rows = np.flatnonzero(held)
    if not len(rows):
        raise TableError("every row lacks a block of columns", remedy="fill in its cells")
    pooled = Pooled(
        x[rows],
        np.full(len(rows), np.nan),
        np.zeros(len(rows), bool),
        np.arange(len(rows)) % settings.hospitals,
        first.blocks,
        first.classes,
        scaling,
    )
    with tempfile.TemporaryDirectory(prefix="fedkern-") as place:
        clients = HybridClients(
            pooled,
            settings.hospitals,
            prepared.columns,
            seed,
            prepared.given(given),
            "secure",
            settings.allow_single,
            Path(place),
            folder / "private_state",
        )
        app = ClientApp(client_fn=lambda context: clients(context).to_client())
        strategy.predict(InProcessGrid(app, prepared.num_clients), arrays, meta)
        found = read_predictions(Path(place))
    write_rows(
        out, [ids[rows[k]] for k in sorted(found)], [found[k] for k in sorted(found)], scaling
    )
    return len(found), len(x) - len(found)
