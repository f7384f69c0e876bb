"""A model that is whole, with the encoder of its table and the names of its classes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import model_file
from ..encoding import Encoder
from ..errors import CheckpointError, OptionError, TableError
from ..judging.figures import Calibration
from ..labels import are_numbers, decide, name_classes
from ..scaling import Scaling
from ..tables.table import Table, listing
from .forms import FORMS, with_deviations
from .rows import array_of, read_rows

Floats = NDArray[np.float64]

#: The file of a run's folder that holds its whole model.
PREDICTOR = "predictor.npz"

_CHUNK = 1024  # rows predicted at once


@dataclass(frozen=True, eq=False, repr=False)
class FittedModel:
    """A model that predicts new rows where it is: no nodes, no exchanges, no training table.

    That of a simulated run holds what its parties have and a server does not: landmarks or
    directions, of Secure Gram rows to learn from, and ranks and categories of columns. Its file is
    for this user's eyes only and is to be kept like the training table.

    Rows are a table of :func:`fedkern_flwr.tables.load_table`, a data frame of pandas, polars or
    pyarrow, or a file, all with the columns of the training table by name, in any order and perhaps
    with others; or a list of several, one of each party, or a mapping of them by names; or an array
    of the training table's features in their order, where all are numbers.

    Parameters
    ----------
    method : str
        Name of the method.
    arrays : mapping
        Arrays that the outputs are computed from.
    meta : mapping
        What else belongs to the model, as JSON.
    """

    method: str
    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any]

    @classmethod
    def of_server(
        cls,
        method: str,
        form: str,
        arrays: Mapping[str, NDArray[Any]],
        meta: Mapping[str, Any],
        classes: Sequence[Any] | int,
    ) -> FittedModel:
        """Return a model of which a server has all: of features and labels as nodes hold them."""
        named = list(range(classes) if isinstance(classes, int) else classes)
        table = {"classes": named, "y_middle": 0.0, "y_half_range": 1.0}
        return cls(method, arrays, {**meta, "form": form, "table": table})

    def __repr__(self) -> str:
        """Return the method, its classes and its columns."""
        names, encoder = self.class_names, self.encoder
        told = [f"classes {listing(names)}"] if names else ["numbers"] * (not self.components)
        told += [f"columns {listing(encoder.kinds)}"] if encoder is not None else []
        return f"<model of {self.method}: {'; '.join(told)}>"

    # -- files

    def save(self, path: str | Path) -> None:
        """Save it to a file (``.npz``) for this user's eyes only, for :func:`load_model`."""
        meta = {**self.meta, "method": self.method}
        model_file.save_model(path, self.method, self.arrays, meta)

    # -- what it is

    @property
    def classes_(self) -> NDArray[Any] | None:
        """The classes: names if the label was text, else numbers; None of a regression."""
        names: list[Any] = self.class_names
        if not names:
            return None
        return np.array([float(name) for name in names] if are_numbers(names) else names)

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, as files of predictions have them; none of a regression."""
        table = self.meta["table"]
        return list(table.get("class_names") or name_classes(table["classes"])[0])

    @property
    def clients(self) -> int:
        """Number of clients that have weights of their own; 0 where there are none."""
        return len(self.arrays["weights"]) if self.meta.get("personal") else 0

    def of_client(self, number: int) -> FittedModel:
        """Return the model of one client of an online method; by default the mean predicts.

        Raises
        ------
        OptionError
            There is no such client, or clients have no weights of their own.
        """
        if not 0 <= number < self.clients:
            raise OptionError(
                f"there is no client {number} with weights of its own",
                remedy=f"use 0 to {self.clients - 1}" if self.clients else "leave it out",
                code="FK-MODEL-CLIENT",
            )
        weights = self.arrays["weights"][number : number + 1]
        return replace(self, arrays={**self.arrays, "weights": weights})

    @property
    def calibration(self) -> Calibration | None:
        """What turns outputs into probabilities or intervals, if held-out rows calibrated it."""
        classes = self.classes_
        outputs = len(classes) if classes is not None and len(classes) > 2 else 1
        return Calibration.read(self.meta.get("calibration") or (), outputs)

    # -- rows

    @property
    def encoder(self) -> Encoder | None:
        """The encoder of the columns; None where nodes bring features as the model takes them."""
        found = self.meta["table"].get("encoder")
        return None if found is None else Encoder.from_dict(found)

    def read(
        self, rows: Any, id_column: str | None = None, *, strict: bool = False, **dialect: Any
    ) -> Table:
        """Return a file, data frame or array as a table with the columns of the model.

        Parameters
        ----------
        rows : path, data frame, array, or a sequence or mapping of several paths or frames
            Cells may be missing; a label column is ignored. Of several, each a party's, those with
            the columns of the first have rows of their own, the others further columns of these.
            Rows that are not in all of them are left out, with a note.
        id_column : str or None
            Column of the rows' names, of files or data frames; by default that of the run's table,
            of a single file or frame only if it is there.
        strict : bool (default: False)
            Whether rows that are not in all of several tables are refused.
        **dialect
            How a file is written, see :func:`fedkern_flwr.tables.load_table`; what was said of the
            run's table by default.

        Returns
        -------
        Table
            Its ``ids`` are the names of the rows, its ``notes`` say what is unlike the run's table.

        Raises
        ------
        TableError
            They cannot be read, or an array cannot hold the columns.
        OptionError
            Nothing tells which rows of several tables belong together.
        CheckpointError
            The model has no encoder of columns.
        """
        if (encoder := self.encoder) is None:
            raise CheckpointError(
                "the model is one of features as nodes hold them, a file has columns",
                remedy="predict in Python, with fedkern_flwr.load_model",
                code="FK-MODEL-FEATURES",
            )
        return read_rows(rows, encoder, self.meta, id_column, dialect, strict=strict)

    def features(self, rows: Any) -> Floats:
        """Return what the model takes of rows, shape (n, d); NaN where a cell is missing.

        Raises
        ------
        TableError
            They lack a column of the model, or cannot be read.
        """
        encoder = self.encoder
        if encoder is None:
            return array_of(rows, int(self.meta["columns"]))
        table = rows if isinstance(rows, Table) else self.read(rows, strict=True)
        if not self.meta.get("encoded", True):
            places = encoder.places(table, "the table")
            names = [encoder.columns[source].name for source in encoder.sources]
            x = table.x[:, [places[name] for name in names]]
            return np.where(np.isfinite(x), x, np.nan)
        x = encoder.transform(table)
        if "row_norm" not in self.meta["table"]:
            return x
        return Scaling.from_json(json.dumps(self.meta["table"])).new_rows(x)

    def complete(self, x: Floats) -> NDArray[np.bool_]:
        """Return which rows of :meth:`features` have all that a prediction needs."""
        held = np.isfinite(x)
        needed = self.meta.get("needed")
        return np.asarray((held if needed is None else held[:, needed]).all(axis=1))

    def outputs_of(self, x: Floats) -> tuple[Floats, Floats]:
        """Return outputs and deviations of complete rows of :meth:`features`.

        Returns
        -------
        (ndarray, ndarray), shapes (n, k) and (n, 0 or k)
            In units of the label; of classes the sign of the one output, or the largest, decides.
        """
        table, starts = self.meta["table"], range(0, max(1, len(x)), _CHUNK)
        parts = [with_deviations(self.arrays, self.meta, x[k : k + _CHUNK]) for k in starts]
        found, spread = (np.concatenate(part) for part in zip(*parts, strict=True))
        if self.classes_ is not None:
            return found, spread
        unit = float(table["y_half_range"])
        return found * unit + float(table["y_middle"]), spread * unit

    # -- predictions

    def outputs(self, rows: Any) -> Floats:
        """Return the outputs of rows, shape (n, k): scores of classes, or predicted numbers.

        Raises
        ------
        TableError
            Rows lack a column or a cell that the model needs.
        """
        x = self.features(rows)
        lacking = int((~self.complete(x)).sum())
        if lacking:
            raise TableError(
                f"{lacking} of {len(x)} rows lack a value that the model needs",
                remedy="fill in their cells, or leave these rows out",
                code="FK-VALUES-MISSING",
            )
        return self.outputs_of(x)[0]

    @property
    def components(self) -> int:
        """Number of principal components, of a model without labels; 0 of others."""
        return len(self.arrays["components"]) if self.meta["form"] == "components" else 0

    def transform(self, rows: Any) -> Floats:
        """Return the projections of rows on the principal components, shape (n, k).

        Raises
        ------
        TableError
            Rows lack a column or a cell that the model needs.
        OptionError
            The model is one of labels.
        """
        if not self.components:
            raise OptionError(
                f"{self.method} predicts labels", remedy="use predict", code="FK-PREDICT-KIND"
            )
        return self.outputs(rows)

    def predict(self, rows: Any) -> NDArray[Any]:
        """Return the class of each row, or its number in units of the label; shape (n,).

        Raises
        ------
        TableError
            Rows lack a column or a cell that the model needs.
        OptionError
            The model has no labels.
        """
        if self.components:
            raise OptionError(
                f"a model of {self.method} has no labels",
                remedy="use transform",
                code="FK-PREDICT-KIND",
            )
        found, classes = self.outputs(rows), self.classes_
        return found[:, 0] if classes is None else classes[decide(found)]

    def predict_proba(self, rows: Any) -> Floats:
        """Return the probability of each class, in the order of :attr:`classes_`.

        Raises
        ------
        TableError
            Rows lack a column or a cell that the model needs.
        OptionError
            The model predicts numbers, or no held-out rows calibrated it.
        """
        return self._calibrated("probabilities", classes=True).probabilities(self.outputs(rows))

    def predict_set(self, rows: Any) -> NDArray[np.bool_]:
        """Return which classes a row may have at the model's level, shape (n, classes).

        Raises
        ------
        TableError, OptionError
            See :meth:`predict_proba`.
        """
        return self._calibrated("sets of classes", classes=True).sets(self.outputs(rows))

    def predict_interval(self, rows: Any) -> Floats:
        """Return where the number of a row lies at the model's level, shape (n, 2).

        Raises
        ------
        TableError
            Rows lack a column or a cell that the model needs.
        OptionError
            The model tells classes, or no held-out rows calibrated it.
        """
        calibration, found = self._calibrated("intervals", classes=False), self.outputs(rows)[:, :1]
        width = calibration.widths[0] * float(self.meta["table"]["y_half_range"])
        return np.hstack([found - width, found + width])

    def _calibrated(self, what: str, *, classes: bool) -> Calibration:
        if classes == (self.classes_ is None):
            kind = "numbers" if classes else "classes"
            raise OptionError(
                f"there are no {what} of {kind}", remedy="use predict", code="FK-PREDICT-KIND"
            )
        if (found := self.calibration) is None:
            raise OptionError(
                f"no held-out rows calibrated this model: there are no {what}",
                remedy="run it with a --test-size above 0",
                code="FK-HELD-OUT-NONE",
            )
        return found


def load_model(path: str | Path) -> FittedModel:
    """Load the whole model of a run.

    Parameters
    ----------
    path : path
        Folder of a run, or a file that :meth:`FittedModel.save` wrote.

    Raises
    ------
    CheckpointError
        There is none, or it is damaged, or a newer release wrote it.
    """
    place = Path(path)
    if place.is_dir():
        place /= PREDICTOR
        if not place.is_file():
            raise CheckpointError(
                f"{path} has no {PREDICTOR}: no run, one of an older release, or one whose model "
                "does not predict rows in one place",
                remedy="name the folder of a run, or run again",
                code="FK-MODEL-PREDICTOR",
            )
    arrays, meta = model_file.load_model(place)
    if meta.get("form") not in FORMS or "table" not in meta:
        raise CheckpointError(
            f"{place} is the part of a model that a server has",
            remedy="name the folder of the run",
            code="FK-MODEL-SERVER",
        )
    return FittedModel(str(meta["method"]), arrays, meta)
