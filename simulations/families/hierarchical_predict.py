"""Predictions for new rows with a model of HierarchicalSVM, which the server has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.linear_model import outputs

from .new_rows import read_model, read_rows, write_rows


def predict_rows(
    folder: Path, config: Mapping[str, Any], data: Path, id_column: str | None, out: Path
) -> tuple[int, int]:
    """Predict the rows of a file with the model of a run and write a CSV file.

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
    OptionError
        The split is vertical.
    CheckpointError
        The folder has no model.
    """
    if config["data"]["partition"] == "vertical":
        raise OptionError(
            "in a vertical split every group keeps its part of the model",
            remedy="hold rows out with --test-size: the label owner predicts them",
        )
    arrays, meta, scaling = read_model(folder)
    label = str(config["data"].get("label") or "")
    x, ids = read_rows(data, scaling, id_column, label, scaled=False)
    rows = np.flatnonzero(np.isfinite(x).all(axis=1))
    if not len(rows):
        raise TableError("every row lacks a value", remedy="fill in its cells")
    found = outputs(arrays, meta, x[rows])
    write_rows(out, [ids[k] for k in rows], found.tolist(), scaling)
    return len(rows), len(x) - len(rows)
