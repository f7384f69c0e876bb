"""Whole models of runs, and what they predict of the rows of a file."""

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
    """What a run adds to the whole model of its method: a form and what that computes from."""

    form: str
    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any]

    def with_table(
        self, method: str, scaling: str, config: Config, calibration: Sequence[float]
    ) -> FittedModel:
        """Return the whole model, with how its table was encoded and what calibrates it."""
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
    """Rows that a model predicts, and where its predictions go.

    Attributes
    ----------
    data : Path, or list of several
        Of parties. Rows with the columns of the training data; others are ignored, as is a label.
        Values beyond the training rows' range are clipped to it.
    id_column : str or None
        Column of record ids; by default the run's, if it is there, else row numbers.
    out : callable
        Returns the file that is written; it is asked when nothing else can be wrong.
    client : int or None
        Of an online method: whose weights predict, by default the mean of all.
    dialect : dict
        How the file is written, see :func:`fedkern_flwr.tables.load_table`; what was said of the
        run's table by default.
    """

    data: Any
    id_column: str | None
    out: Callable[[], Path]
    client: int | None
    dialect: Mapping[str, Any]

    def predict(self, model: FittedModel) -> tuple[int, int]:
        """Predict the rows and write them: id, then the class and the outputs, or the value.

        Returns
        -------
        (int, int)
            How many were predicted, and how many lack cells.

        Raises
        ------
        TableError
            A column of the model is missing, or every row lacks a value.
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
    """Write predictions: id, class and outputs, or id and the value in the label's unit.

    Of a model without labels the projections on its components.
    With a calibration the probabilities of the classes and a set of them, or an interval.
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
