"""Rows of a file that are new to the model of a run, scaled as its own were; predictions."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.encoding import Encoder
from fedkern_flwr.errors import CheckpointError, TableError
from fedkern_flwr.labels import decide
from fedkern_flwr.model_file import load_model
from fedkern_flwr.tables import load_table

from ..engines import InProcessGrid
from .clients import TableClients

Floats = NDArray[np.float64]
#: Row of a file -> its outputs, for those that are predicted.
Outputs = dict[Any, list[float]]


@dataclass(frozen=True)
class SavedRun:
    """A run whose model predicts new rows.

    Attributes
    ----------
    folder : Path
        Folder of the run.
    config : dict
        Its configuration.
    arrays, meta : dict
        Its model.
    scaling : dict
        How its table was scaled.
    """

    folder: Path
    config: Mapping[str, Any]
    arrays: dict[str, NDArray[Any]]
    meta: dict[str, Any]
    scaling: dict[str, Any]

    @classmethod
    def open(cls, folder: Path, config: Mapping[str, Any]) -> SavedRun:
        """Read the model of a run.

        Raises
        ------
        CheckpointError
            The folder has no model, or one of another method.
        """
        arrays, meta = load_model(folder / "model.npz", config["method"])
        try:
            scaling = json.loads((folder / "scaling.json").read_text())
        except (OSError, ValueError):
            raise CheckpointError(f"{folder} has no scaling.json", remedy="run again") from None
        return cls(folder, config, arrays, meta, scaling)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config["seed"])

    def ask(
        self, clients: TableClients[Any], nodes: int, predict: Callable[[Grid], object]
    ) -> dict[int, list[float]]:
        """Return row -> outputs, as the nodes of the run predict them with what they kept."""
        with tempfile.TemporaryDirectory(prefix="fedkern-") as place:
            state = self.folder / "private_state"
            building = replace(clients, predictions=Path(place), state_dir=state)
            predict(InProcessGrid(ClientApp(lambda c: building(c).to_client()), nodes))
            return read_predictions(Path(place))


class PredictRows(Protocol):
    """What predicts new rows with the model of a run."""

    def __call__(self, run: SavedRun, x: Floats, /) -> Outputs:
        """Return the outputs of the rows that can be predicted.

        Raises
        ------
        TableError
            There is none.
        """


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
        Whether the features are encoded as those of the model were.

    Raises
    ------
    TableError
        A column of the model is missing.
    CheckpointError
        An older release ran the method.
    """
    if "encoder" not in scaling:
        raise CheckpointError("the run has no encoder of its columns", remedy="run again")
    encoder = Encoder.from_dict(scaling["encoder"])
    table = load_table(
        data,
        label=label or None,
        id_column=id_column,
        missing="keep",
        labelled=False,
        kinds=encoder.kinds,
    )
    places = {name: k for k, name in enumerate(table.columns)}
    lacking = [column.name for column in encoder.columns if column.name not in places]
    if lacking:
        raise TableError(
            f"{data.name} lacks {len(lacking)} columns of the model, the first is {lacking[0]!r}",
            remedy="give the columns of the training data",
        )
    if scaled:
        x = encoder.transform(table)
    else:
        names = [encoder.columns[source].name for source in encoder.sources]
        x = table.x[:, [places[name] for name in names]]
        x = np.where(np.isfinite(x), x, np.nan)
    ids = [str(k) for k in (table.ids if table.ids is not None else range(table.rows))]
    return x, ids


def write_rows(out: Path, ids: list[str], found: Outputs, scaling: Mapping[str, Any]) -> None:
    """Write predictions: id, class and outputs, or id and the value in the label's unit."""
    text, classes = io.StringIO(), scaling["classes"]
    writer, rows = csv.writer(text), sorted(found)
    values, names = np.array([found[row] for row in rows]), [ids[row] for row in rows]
    if classes:
        decided, words = decide(values), scaling.get("class_names") or [f"{c:g}" for c in classes]
        writer.writerow(["id", "class", *(f"output_{k}" for k in range(values.shape[1]))])
        for name, place, row in zip(names, decided, values.tolist(), strict=True):
            writer.writerow([name, words[place], *map(repr, row)])
    else:
        writer.writerow(["id", "prediction"])
        values = values * scaling["y_half_range"] + scaling["y_middle"]
        for name, row in zip(names, values.tolist(), strict=True):
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
