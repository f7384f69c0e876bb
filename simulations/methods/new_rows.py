"""Whole models of runs, and their predictions for a file."""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.checkpoint import write_csv
from fedkern_flwr.errors import TableError
from fedkern_flwr.fitted import FittedModel
from fedkern_flwr.labels import decide
from fedkern_flwr.plain_text import read_json
from fedkern_flwr.tables.dialect import DIALECT

Config = Mapping[str, Any]
Floats = NDArray[np.float64]


class Parts(NamedTuple):
    """Form, arrays and meta data of a whole model."""

    form: str
    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any]

    def with_table(
        self, method: str, scaling: str, config: Config, calibration: Sequence[float]
    ) -> FittedModel:
        """Return the whole model, with encoder and calibration."""
        told = {
            "form": self.form,
            "table": read_json(scaling),
            "label": str(config["data"].get("label") or ""),
            "id": config["data"].get("id_column"),
            "calibration": list(calibration),
            **{key: config["data"].get(key) for key in DIALECT},
            "keep": "as safe as the training table: it holds what the simulated parties know",
        }
        return FittedModel(method, self.arrays, {**self.meta, **told})


@dataclass(frozen=True)
class NewRows:
    """Rows to predict, and the target file.

    Attributes
    ----------
    data : Path, or list of several
        Files with the columns of the training data; others are ignored. Values are clipped to the
        training range.
    id_column : str or None
        Column of record ids (default: that of the run, or row numbers).
    out : callable
        Returns the target file, when nothing else can fail.
    client : int or None
        Client of an online method (default: mean of all).
    dialect : dict
        Text format, see :func:`fedkern_flwr.tables.load_table`; by default that of the run.
    """

    data: Any
    id_column: str | None
    out: Callable[[], Path]
    client: int | None
    dialect: Mapping[str, Any]

    def predict(self, model: FittedModel) -> tuple[int, int]:
        """Predict the rows and write id, class and outputs, or the value.

        Returns
        -------
        (int, int)
            Numbers of predicted rows and of rows with missing cells.
        """
        model = model if self.client is None else model.of_client(self.client)
        table = model.read(self.data, self.id_column, **self.dialect)
        for note in table.notes:
            logging.getLogger("fedkern_flwr").warning(note)
        x = model.features(table)
        ids = [str(k) for k in (table.ids if table.ids is not None else range(table.rows))]
        rows = np.flatnonzero(model.complete(x))
        if not len(rows):
            raise TableError("every row lacks a value", code="FK-VALUES-NOROW")
        named = (self.id_column or model.meta.get("id")) if table.ids is not None else None
        write_rows(self.out(), [ids[row] for row in rows], model, x[rows], named or "id")
        return len(rows), len(x) - len(rows)


def write_rows(
    out: Path, ids: Sequence[str], model: FittedModel, x: Floats, id_column: str = "id"
) -> None:
    """Write predictions: class and outputs, value, or components of each row.

    A calibration adds probabilities and a set of classes, or an interval.
    """
    values, deviations = model.outputs_of(x)
    names, calibration, heads = model.class_names, model.calibration, ["prediction"]
    cells: list[list[Any]] = [[name] for name in ids]
    if model.components:
        heads = [f"component {k + 1}" for k in range(model.components)]
    elif not names:
        values = values[:, :1]
    else:
        heads = ["class", *(f"output_{k}" for k in range(values.shape[1]))]
        cells = [[*row, names[k]] for row, k in zip(cells, decide(values), strict=True)]
    cells = [[*row, *map(repr, more)] for row, more in zip(cells, values.tolist(), strict=True)]
    if calibration is not None:
        unit = float(model.meta["table"]["y_half_range"])
        more_heads, columns = calibration.columns(values, names, unit)
        heads = [*heads, *more_heads]
        cells = [row + more for row, more in zip(cells, columns, strict=True)]
    if not names and deviations.size:
        heads = [*heads, "deviation"]
        cells = [[*row, repr(v)] for row, v in zip(cells, deviations[:, 0].tolist(), strict=True)]
    write_csv(out, [["id" if id_column in heads else id_column, *heads], *cells])


def read_predictions(folder: Path) -> dict[int, list[float]]:
    """Return outputs and deviations by row from the files of simulated parties."""
    found = {}
    for file in sorted(folder.glob("partition-*.csv")):
        with file.open(newline="") as lines:
            reader = csv.reader(lines)
            kinds = [name.partition("_")[0] for name in next(reader)]
            for row in reader:
                cells = zip(kinds, row, strict=True)
                found[int(row[0])] = [float(c) for k, c in cells if k in ("output", "deviation")]
    return found
