"""Rows of a file that are new to a model, scaled as the model's own were, and its predictions."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import CheckpointError, TableError
from fedkern_flwr.labels import decide
from fedkern_flwr.model_file import load_model
from fedkern_flwr.tables import load_table

Floats = NDArray[np.float64]


def read_model(
    folder: Path, method: str
) -> tuple[dict[str, NDArray[Any]], dict[str, Any], dict[str, Any]]:
    """Return arrays and meta of a run's model, and how its table was scaled.

    Raises
    ------
    CheckpointError
        The folder has no model, or one of another method.
    """
    arrays, meta = load_model(folder / "model.npz", method)
    try:
        return arrays, meta, json.loads((folder / "scaling.json").read_text())
    except (OSError, ValueError):
        raise CheckpointError(f"{folder} has no scaling.json", remedy="run again") from None


def read_rows(
    data: Path,
    scaling: Mapping[str, Any],
    id_column: str | None,
    label: str,
    *,
    scaled: bool = True,
) -> tuple[Floats, list[str]]:
    """Return the features of a file's rows, NaN where one is missing, and the rows' names.

    Parameters
    ----------
    data : Path
        The file.
    scaling : mapping
        How the table of the model was scaled.
    id_column : str or None
        Column of names; row numbers by default.
    label : str
        Label column, which is ignored; empty for none.
    scaled : bool (default: True)
        Whether the features are scaled and clipped as those of the model were.

    Raises
    ------
    TableError
        A column of the model is missing.
    """
    table = load_table(
        data, label=label or None, id_column=id_column, missing="keep", labelled=False
    )
    places = {name: k for k, name in enumerate(table.columns)}
    lacking = [name for name in scaling["columns"] if name not in places]
    if lacking:
        raise TableError(
            f"{data.name} lacks {len(lacking)} columns of the model, the first is {lacking[0]!r}",
            remedy="give the columns of the training data",
        )
    low, high = np.array(scaling["x_min"]), np.array(scaling["x_max"])
    x = table.x[:, [places[name] for name in scaling["columns"]]]
    x = np.where(np.isfinite(x), x, np.nan)
    if scaled:
        x = np.clip((x - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    ids = [str(k) for k in (table.ids if table.ids is not None else range(table.rows))]
    return x, ids


def write_rows(
    out: Path, ids: list[str], outputs: list[list[float]], scaling: Mapping[str, Any]
) -> None:
    """Write predictions: id, class and outputs, or id and the value in the label's unit."""
    text, classes = io.StringIO(), scaling["classes"]
    writer = csv.writer(text)
    values = np.array(outputs)
    if classes:
        decided = decide(values)
        writer.writerow(["id", "class", *(f"output_{k}" for k in range(values.shape[1]))])
        for name, place, row in zip(ids, decided, values.tolist(), strict=True):
            writer.writerow([name, f"{classes[place]:g}", *map(repr, row)])
    else:
        writer.writerow(["id", "prediction"])
        values = values * scaling["y_half_range"] + scaling["y_middle"]
        for name, row in zip(ids, values.tolist(), strict=True):
            writer.writerow([name, *map(repr, row)])
    write_atomically(out, text.getvalue().encode(), private=True)


def read_predictions(folder: Path) -> dict[int, list[float]]:
    """Return row -> outputs from the files that simulated parties wrote."""
    found = {}
    for file in sorted(folder.glob("partition-*.csv")):
        with file.open(newline="") as lines:
            reader = csv.reader(lines)
            outputs = sum(name.startswith("output_") for name in next(reader))
            for row in reader:
                found[int(row[0])] = [float(cell) for cell in row[1 : 1 + outputs]]
    return found


def complete_rows(x: Floats) -> NDArray[np.intp]:
    """Return the places of the rows that lack no value.

    Raises
    ------
    TableError
        There is none.
    """
    rows = np.flatnonzero(np.isfinite(x).all(axis=1))
    if not len(rows):
        raise TableError("every row lacks a value", remedy="fill in its cells")
    return rows
