"""Predictions for new rows with a model of FDSKL, dealt to the parties as the columns were."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.clientapp import ClientApp

from ...strategies import FDSKL
from ..engines import InProcessGrid
from .new_rows import complete_rows, read_model, read_predictions, read_rows, write_rows
from .vertical_data import Columns, VerticalClients, VerticalSettings


def predict_rows(
    folder: Path, config: Mapping[str, Any], data: Path, id_column: str | None, out: Path
) -> tuple[int, int]:
    """Predict the rows of a file with the model of a run and write a CSV file.

    Columns are dealt as in the run; directions and coefficients are those that the simulated
    parties kept. The first active party predicts all rows. Values beyond the training rows' range
    are clipped to it.

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
        Rows predicted, and rows left out because they lack a value.

    Raises
    ------
    TableError
        The file lacks a column of the model, or every row lacks a value.
    CheckpointError
        The folder has no model.
    """
    _, meta, scaling = read_model(folder, config["method"])
    x, ids = read_rows(data, scaling, id_column, str(config["data"].get("label") or ""))
    settings = VerticalSettings.from_values(config["data"])
    rows = complete_rows(x)
    pooled = Columns(
        x[rows],
        np.full(len(rows), np.nan),
        np.zeros(len(rows), bool),
        np.zeros(len(rows), np.intp),
        tuple(np.array_split(np.arange(x.shape[1]), settings.parties)),
        tuple(scaling["classes"]),
        scaling,
        float(meta["label_bound"]),
    )
    strategy = FDSKL.of_model(meta, allow_single=settings.allow_single)
    with tempfile.TemporaryDirectory(prefix="fedkern-") as place:
        clients = VerticalClients(
            pooled,
            settings.active_parties,
            tuple(scaling["columns"]),
            int(config["seed"]),
            strategy.frequencies,
            strategy.topology,
            settings.allow_single,
            Path(place),
            folder / "private_state",
        )
        app = ClientApp(client_fn=lambda context: clients(context).to_client())
        strategy.predict(InProcessGrid(app, settings.parties), meta)
        found = read_predictions(Path(place))
    write_rows(
        out, [ids[rows[k]] for k in sorted(found)], [found[k] for k in sorted(found)], scaling
    )
    return len(found), len(x) - len(found)
