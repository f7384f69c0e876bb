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
from fedkern_flwr.judging.calibration import Calibration
from fedkern_flwr.labels import decide
from fedkern_flwr.model_file import load_model
from fedkern_flwr.tables import load_table

from ..engines import InProcessGrid
from .clients import TableClients

Floats = NDArray[np.float64]
#: Row of a file -> its outputs, for those that are predicted, and their deviations, if any.
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
    def calibration(self) -> Calibration | None:
        """What turns outputs of the model into probabilities or intervals, if it has that.

        It is in the model, or in the result of a run whose coordinator has held-out rows itself.
        """
        numbers, classes = self.meta.get("calibration"), len(self.scaling["classes"])
        file = self.folder / "result.json"
        if numbers is None and file.is_file():
            numbers = json.loads(file.read_text()).get("held_out", {}).get("fitted")
        return Calibration.read(numbers or (), classes if classes > 2 else 1)

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
    **dialect: Any,
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
    **dialect
        How the file is written, see :func:`fedkern_flwr.tables.load_table`.

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
        label=(label or None) if data.suffix == ".npz" else None,  # of arrays one of several
        id_column=id_column,
        missing="keep",
        labelled=False,
        kinds=encoder.kinds,
        needed=encoder.kinds,
        **dialect,
    )
    places = encoder.places(table, data.name)
    if scaled:
        x = encoder.transform(table)
    else:
        names = [encoder.columns[source].name for source in encoder.sources]
        x = table.x[:, [places[name] for name in names]]
        x = np.where(np.isfinite(x), x, np.nan)
    ids = [str(k) for k in (table.ids if table.ids is not None else range(table.rows))]
    return x, ids


def write_rows(
    out: Path,
    ids: list[str],
    found: Outputs,
    scaling: Mapping[str, Any],
    calibration: Calibration | None = None,
) -> None:
    """Write predictions: id, class and outputs, or id and the value in the label's unit.

    With a calibration the probabilities of the classes and a set of them, or an interval.
    """
    text = io.StringIO()
    classes = scaling["class_names"]
    writer, rows = csv.writer(text), sorted(found)
    values, heads = np.array([found[row] for row in rows]), ["prediction"]
    cells: list[list[Any]] = [[ids[row]] for row in rows]
    if classes:
        heads = ["class", *(f"output_{k}" for k in range(values.shape[1]))]
        cells = [[*row, classes[k]] for row, k in zip(cells, decide(values), strict=True)]
    else:
        values, deviations = values[:, :1], values[:, 1:] * scaling["y_half_range"]
        values = values * scaling["y_half_range"] + scaling["y_middle"]
    cells = [[*row, *map(repr, more)] for row, more in zip(cells, values.tolist(), strict=True)]
    if calibration is not None:
        more_heads, columns = calibration.columns(values, classes, scaling["y_half_range"])
        heads = [*heads, *more_heads]
        cells = [row + more for row, more in zip(cells, columns, strict=True)]
    if not classes and deviations.size:
        heads = [*heads, "deviation"]
        cells = [
            [*row, repr(value)] for row, value in zip(cells, deviations[:, 0].tolist(), strict=True)
        ]
    writer.writerows([["id", *heads], *cells])
    write_atomically(out, text.getvalue().encode(), private=True)


def read_predictions(folder: Path) -> dict[int, list[float]]:
    """Return row -> outputs, and deviations, from the files that simulated parties wrote."""
    found = {}
    for file in sorted(folder.glob("partition-*.csv")):
        with file.open(newline="") as lines:
            reader = csv.reader(lines)
            kinds = [name.partition("_")[0] for name in next(reader)]
            for row in reader:
                cells = zip(kinds, row, strict=True)
                found[int(row[0])] = [float(c) for k, c in cells if k in ("output", "deviation")]
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
