"""Predictions for new rows with a model of FedCG, dealt to the parties as training rows were."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedkern_flwr.checkpoint import load_arrays, write_atomically
from fedkern_flwr.errors import CheckpointError, TableError
from fedkern_flwr.labels import decide
from fedkern_flwr.tables import load_table

from ...strategies import FedCG
from ..engines import InProcessGrid
from .hybrid_data import HybridClients, HybridData, HybridSettings, Pooled
from .hybrid_oracle import read_predictions

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
    arrays, meta = load_arrays(folder / "model.npz")
    try:
        scaling = json.loads((folder / "scaling.json").read_text())
    except (OSError, ValueError):
        raise CheckpointError(f"{folder} has no scaling.json", remedy="run again") from None
    x, ids = _read(data, scaling, id_column, str(config["data"].get("label") or ""))
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
    _write(out, [ids[rows[k]] for k in sorted(found)], [found[k] for k in sorted(found)], scaling)
    return len(found), len(x) - len(found)


def _read(
    data: Path, scaling: Mapping[str, Any], id_column: str | None, label: str
) -> tuple[Floats, list[str]]:
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
    x = np.clip((x - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    ids = [str(k) for k in (table.ids if table.ids is not None else range(table.rows))]
    return x, ids


def _write(
    out: Path, ids: list[str], outputs: list[list[float]], scaling: Mapping[str, Any]
) -> None:

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
    write_atomically(out, text.getvalue().encode())
