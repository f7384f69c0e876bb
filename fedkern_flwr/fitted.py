"""Predict new rows with a whole model in one place, without nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import model_file
from .encoding import Encoder
from .errors import CheckpointError, ColumnError, OptionError, TableError
from .gram.dot_kernels import DotKernel
from .gram.matrix import count_values, quantise
from .groups import linear_model
from .hybrid.landmarks import fourier_features
from .judging.figures import Calibration
from .kernels.product import features_of, kernel_from_distances, partial_distances
from .kernels.random_features import feature_map
from .labels import are_numbers, decide, name_classes
from .online import network
from .online.ridge import all_rows
from .scaling import Scaling
from .secure_sum import Encoding
from .tables import load_table
from .tables.dialect import DIALECT, file_kind
from .tables.parties import PartyTables
from .tables.table import Table, listing
from .vertical import phases

__all__ = ["PREDICTOR", "FittedModel", "load_model"]

Floats = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]
Meta = Mapping[str, Any]

#: The file of a run's folder that holds its whole model.
PREDICTOR = "predictor.npz"

_CHUNK = 1024  # rows predicted at once
_NUMBERS = ("number", "boolean", "date")
_FRAMES = ("__arrow_c_stream__", "__dataframe__")


@dataclass(frozen=True, eq=False, repr=False)
class FittedModel:
    """A model that predicts new rows without nodes or a training table.

    The model of a simulated run has parts that a server lacks: landmarks or directions, training
    rows for Secure Gram, and ranks and categories of columns. Its file is private: keep it like the
    training table.

    Rows are a table of :func:`fedkern_flwr.tables.load_table`, a data frame of pandas, polars or
    pyarrow, or a file, with the model's columns by name in any order. A list or mapping of several
    has one table of each party. If all features are numbers, rows may be an array.

    Parameters
    ----------
    method : str
        Name of the method.
    arrays : mapping
        Arrays of the model.
    meta : mapping
        All else, as JSON.
    """

    method: str
    arrays: Arrays
    meta: Mapping[str, Any]

    @classmethod
    def of_server(
        cls,
        method: str,
        form: str,
        arrays: Arrays,
        meta: Meta,
        classes: Sequence[Any] | int,
    ) -> FittedModel:
        """Return a model from the server's part, for features and labels as nodes have them."""
        named = list(range(classes) if isinstance(classes, int) else classes)
        table = {"classes": named, "y_middle": 0.0, "y_half_range": 1.0}
        return cls(method, arrays, {**meta, "form": form, "table": table})

    def __repr__(self) -> str:
        names, encoder = self.class_names, self.encoder
        told = [f"classes {listing(names)}"] if names else ["numbers"] * (not self.components)
        told += [f"columns {listing(encoder.kinds)}"] if encoder is not None else []
        return f"<model of {self.method}: {'; '.join(told)}>"

    # -- files

    def save(self, path: str | Path) -> None:
        """Save it to a private ``.npz`` file for :func:`load_model`."""
        meta = {**self.meta, "method": self.method}
        model_file.save_model(path, self.method, self.arrays, meta)

    # -- what it is

    @property
    def classes_(self) -> NDArray[Any] | None:
        """The classes: names of a text label, otherwise numbers; None for a regression."""
        names: list[Any] = self.class_names
        if not names:
            return None
        return np.array([float(name) for name in names] if are_numbers(names) else names)

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, as in files of predictions; empty for a regression."""
        table = self.meta["table"]
        return list(table.get("class_names") or name_classes(table["classes"])[0])

    @property
    def clients(self) -> int:
        """Number of clients with personal weights, or 0."""
        return len(self.arrays["weights"]) if self.meta.get("personal") else 0

    def of_client(self, number: int) -> FittedModel:
        """Return the model of one client of an online method. Default: the mean predicts.

        Raises
        ------
        OptionError
            There is no such client, or clients have no personal weights.
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
        """Calibration on held-out rows, or None."""
        classes = self.classes_
        outputs = len(classes) if classes is not None and len(classes) > 2 else 1
        return Calibration.read(self.meta.get("calibration") or (), outputs)

    # -- rows

    @property
    def encoder(self) -> Encoder | None:
        """The encoder of the columns; None if nodes provide features."""
        found = self.meta["table"].get("encoder")
        return None if found is None else Encoder.from_dict(found)

    def read(
        self, rows: Any, id_column: str | None = None, *, strict: bool = False, **dialect: Any
    ) -> Table:
        """Return a file, data frame or array as a table with the columns of the model.

        Parameters
        ----------
        rows : path, data frame, array, or a sequence or mapping of several paths or frames
            Cells may be missing; a label column is ignored. Of several tables, one for each party,
            those with the columns of the first have further rows, others further columns. Rows that
            are not in all tables are dropped, with a note.
        id_column : str or None
            Column of row names. Default: that of the training table, if it exists.
        strict : bool (default: False)
            Whether to refuse rows that are not in all tables.
        **dialect
            Format of a file, see :func:`fedkern_flwr.tables.load_table`. Default: that of the
            training table.

        Returns
        -------
        Table
            Its ``ids`` are the names of the rows; its ``notes`` list differences to the training
            table.

        Raises
        ------
        TableError
            The rows cannot be read, or an array cannot have the columns.
        OptionError
            Rows of several tables cannot be matched.
        CheckpointError
            The model has no encoder of columns.
        """
        if (encoder := self.encoder) is None:
            raise CheckpointError(
                "the model is one of features as nodes hold them, a file has columns",
                code="FK-MODEL-FEATURES",
            )
        return read_rows(rows, encoder, self.meta, id_column, dialect, strict=strict)

    def features(self, rows: Any) -> Floats:
        """Return the model's inputs for rows, shape (n, d); NaN for a missing cell.

        Raises
        ------
        TableError
            A column is missing, or rows cannot be read.
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
        """Return outputs and standard deviations of complete rows of :meth:`features`.

        Shapes are (n, k) and (n, 0 or k), in units of the label. For classes the sign of a single
        output, or the largest output, decides.
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
            A needed column or cell is missing.
        """
        x = self.features(rows)
        lacking = int((~self.complete(x)).sum())
        if lacking:
            raise TableError(
                f"{lacking} of {len(x)} rows lack a value that the model needs",
                code="FK-VALUES-MISSING",
            )
        return self.outputs_of(x)[0]

    @property
    def components(self) -> int:
        """Number of principal components; 0 for other models."""
        return len(self.arrays["components"]) if self.meta["form"] == "components" else 0

    def transform(self, rows: Any) -> Floats:
        """Return the projections of rows on the principal components, shape (n, k).

        Raises
        ------
        TableError
            A needed column or cell is missing.
        OptionError
            The model predicts labels.
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
            A needed column or cell is missing.
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
            A needed column or cell is missing.
        OptionError
            The model predicts numbers, or was not calibrated on held-out rows.
        """
        return self._calibrated("probabilities", classes=True).probabilities(self.outputs(rows))

    def predict_set(self, rows: Any) -> NDArray[np.bool_]:
        """Return the conformal set of each row at the model's level, shape (n, classes).

        Raises
        ------
        TableError, OptionError
            See :meth:`predict_proba`.
        """
        return self._calibrated("sets of classes", classes=True).sets(self.outputs(rows))

    def predict_interval(self, rows: Any) -> Floats:
        """Return the prediction interval of each row at the model's level, shape (n, 2).

        Raises
        ------
        TableError
            A needed column or cell is missing.
        OptionError
            The model predicts classes, or was not calibrated on held-out rows.
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
                code="FK-HELD-OUT-NONE",
            )
        return found


def load_model(path: str | Path) -> FittedModel:
    """Load the whole model of a run.

    Parameters
    ----------
    path : path
        Folder of a run, or a file of :meth:`FittedModel.save`.

    Raises
    ------
    CheckpointError
        It is missing, damaged, or from a newer release.
    """
    place = Path(path)
    if place.is_dir():
        place /= PREDICTOR
        if not place.is_file():
            raise CheckpointError(
                f"{path} has no {PREDICTOR}: no run, one of an older release, or one whose model "
                "does not predict rows in one place",
                code="FK-MODEL-PREDICTOR",
            )
    arrays, meta = model_file.load_model(place)
    if meta.get("form") not in FORMS or "table" not in meta:
        raise CheckpointError(
            f"{place} is the part of a model that a server has", code="FK-MODEL-SERVER"
        )
    return FittedModel(str(meta["method"]), arrays, meta)


# -- rows to predict: of a file, a data frame, an array, or of several parties' tables


def read_rows(
    rows: Any,
    encoder: Encoder,
    meta: Mapping[str, Any],
    id_column: str | None,
    dialect: Mapping[str, Any],
    *,
    strict: bool,
) -> Table:
    """Return rows as a table with the columns of a model; see ``FittedModel.read``."""
    kinds, notes, several = encoder.kinds, list[str](), _several(rows)
    how: dict[str, Any] = {key: dialect.get(key) or meta.get(key) for key in DIALECT}
    how = {key: value for key, value in how.items() if value}
    if several:
        id_column = id_column or meta.get("id")
        parties = PartyTables.of_new_rows(rows, meta["label"] or None, id_column, how, list(kinds))
        rows, _, notes = parties.frame(whole=True)
        lost = sum(one.rows for one in parties.owners) - rows.num_rows
        if strict and lost:
            raise TableError(
                f"{lost} rows are not in all of {parties.text}",
                remedy="leave them out, or predict model.read(...) of the tables, which does",
                code="FK-ROWS-LACKING",
            )
    if isinstance(rows, (np.ndarray, list, tuple)):
        if any(kind not in _NUMBERS for kind in kinds.values()):
            raise TableError(
                "the model has columns of categories, which an array does not hold",
                code="FK-COLUMNS-CATEGORIES",
            )
        table = Table(array_of(rows, len(kinds)), None, tuple(kinds), kinds=kinds)
        return replace(table, notes=encoder.strange(table))
    file = Path(rows) if isinstance(rows, (str, Path)) else None
    arrays = file is not None and file_kind(file) == ".npz"
    load = partial(
        load_table,
        rows,
        label=(meta["label"] or None) if arrays else None,  # an array of several
        missing="keep",
        labelled=False,
        bare=True,
        kinds=kinds,
        needed=kinds,
        source="the table of all parties" if several else None,
        **how,
    )
    usual = None if arrays or id_column else meta.get("id")
    try:
        table = load(id_column=id_column or usual)
    except TableError as error:
        if usual is None:
            raise
        table = load(id_column=None)
        if not isinstance(error, ColumnError):
            notes.append(f"{error.problem}: the rows are numbered")
    encoder.places(table, "the table" if file is None else file.name)
    return replace(table, notes=(*notes, *table.notes, *encoder.strange(table)))


def array_of(rows: Any, columns: int) -> NDArray[np.float64]:
    """Return rows of numbers, shape (n, columns); TableError for anything else."""
    try:
        x = np.asarray(rows, np.float64)
    except (TypeError, ValueError):
        raise TableError("the rows are not numbers", code="FK-COLUMN-NUMBERS") from None
    if x.ndim != 2 or x.shape[1] != columns:
        raise TableError(
            f"an array of shape {x.shape} is no rows of the model's {columns} columns",
            remedy="give its features in their order, or a data frame with their names",
            code="FK-COLUMNS-DIFFER",
        )
    return x


def _several(rows: Any) -> bool:
    if isinstance(rows, (list, tuple)):
        return any(
            isinstance(one, (str, Path)) or any(hasattr(one, name) for name in _FRAMES)
            for one in rows
        )
    return isinstance(rows, Mapping)


# -- what they compute: outputs of rows, from arrays and plain values
#
# What the parties of a run rounded for their sums is rounded here as well, where it would be seen.


def landmark_kernel(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    """Return FedCG's kernel between rows and landmarks, shape (n, m).

    A block that a row lacks adds no distance.
    """
    distances = np.zeros((len(x), len(arrays["landmarks"])))
    for block in meta["blocks"]:
        held = np.isfinite(x[:, block]).all(axis=1)
        places = arrays["landmarks"][:, block]
        distances[held] += partial_distances(x[np.ix_(held, block)], places, meta["kernel"])
    return kernel_from_distances(distances, arrays["gammas"])


def of_landmarks(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    """Return outputs of FedCG; numbers are clipped to the labels' bound, as at hospitals."""
    return _within(meta, landmark_kernel(arrays, meta, x) @ arrays["coefficients"])


def of_features(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    """Return outputs of FedCG on Fourier features, clipped likewise."""
    phases = x @ arrays["directions"].T + arrays["offsets"]
    return _within(meta, fourier_features(phases) @ arrays["coefficients"])


def _within(meta: Meta, outputs: Floats) -> Floats:
    bound = np.inf if meta["classes"] else float(meta["label_bound"])
    return np.asarray(np.clip(outputs, -bound, bound))


def with_deviations(arrays: Arrays, meta: Meta, x: Floats) -> tuple[Floats, Floats]:
    """Return outputs, and standard deviations of Bayesian ridge, shape (n, k) or (n, 0)."""
    form = FORMS[meta["form"]]
    if "factor" not in arrays or not len(meta["noise"]):
        return form(arrays, meta, x), np.zeros((len(x), 0))
    both = np.hstack([arrays["coefficients"], arrays["factor"]])
    found = landmark_kernel(arrays, meta, x) @ both
    outputs, spread = np.split(found, [arrays["coefficients"].shape[1]], axis=1)
    bound = float(meta["label_bound"])
    variances = np.array(meta["noise"]) * (1.0 + (spread**2).sum(axis=1, keepdims=True))
    return np.clip(outputs, -bound, bound), np.sqrt(variances)


def of_directions(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    """Return outputs of FDSKL: each party's angles are rounded, and added on the circle."""
    circle, parties = Encoding.circle(meta["phase_bits"]), len(meta["blocks"])
    directions, weights = arrays["directions"], arrays["weights"]
    total = np.zeros((len(x), len(directions)), circle.dtype)
    for block, offsets in zip(meta["blocks"], arrays["offsets"], strict=True):
        angles = x[:, block] @ directions[:, block].T + offsets
        total += circle.encode(angles.ravel(), parties, name="phases").reshape(total.shape)
    ends = np.cumsum(meta["sizes"]).tolist()
    found = np.zeros((len(x), weights.shape[1]))
    for start, end in zip([0, *ends], ends, strict=False):
        part = slice(start, end)
        found += phases.outputs(total[:, part], weights[part], meta["multiple"])
    return found * float(meta["label_bound"])


def of_instances(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    """Return outputs of Secure Gram from its support instances.

    Raises
    ------
    TableError
        Values of a row exceed those that the parties could have summed.
    """
    bits, bound = meta["fraction_bits"], meta["bound"]
    x = x[:, meta["used"]]
    counts = meta["encoding"] == "counts"
    whole = count_values(x, bound) if counts else quantise(x, bits, bound)
    rows, known = whole * 2.0**-bits, arrays["instances"]
    kernel = DotKernel(**{**meta["kernel"], "coefficients": tuple(meta["kernel"]["coefficients"])})
    new, old = (np.einsum("ij,ij->i", part, part) for part in (rows, known))
    matrix = kernel.block(rows @ known.T, new, old, meta["rows"])
    found = np.asarray(matrix @ arrays["weights"] + arrays["bias"])
    return votes(found, meta["votes"]) if meta["votes"] else found


def votes(pairs: Floats, classes: int) -> Floats:
    """Return one output per class from those of all pairs of classes, as in scikit-learn.

    Each pair votes for one class; the sums of outputs break ties.
    """
    first, second = np.triu_indices(classes, 1)
    sums, count = np.zeros((2, len(pairs), classes))
    for k, (i, j) in enumerate(zip(first, second, strict=True)):
        found = pairs[:, k]
        count[np.arange(len(pairs)), np.where(found >= 0.0, i, j)] += 1.0
        sums[:, i] += found
        sums[:, j] -= found
    return np.asarray(count + sums / (3.0 * (np.abs(sums) + 1.0)))


def _features(arrays: Arrays, meta: Meta, x: Floats) -> NDArray[Any]:
    bandwidths = arrays["bandwidths"].astype("<f8").tobytes()
    numbers = meta["features"], meta["seed"], meta["precision"], meta["frequency_draw"]
    return feature_map(bandwidths, x.shape[1], *numbers)(x)


def of_dictionary(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    kernels = np.vecdot(_features(arrays, meta, x), arrays["theta"].astype(meta["precision"]))
    return np.asarray((kernels @ arrays["weights"].T).mean(axis=1, keepdims=True) + meta["centre"])


def of_ridges(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    widths, centre = arrays["bandwidths"].astype("<f8").tobytes(), meta["centre"]
    rows = all_rows(x, widths, meta["features"], meta["seed"])
    found = (rows @ arrays["weights"].T).clip(-centre, 1.0 - centre)
    return np.asarray(found.mean(axis=1, keepdims=True) + centre)


def of_lone_dictionaries(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    found = _features(arrays, meta, x).reshape(len(x), -1) @ arrays["weights"].T
    return np.asarray(found.mean(axis=1, keepdims=True) + meta["centre"])


def of_networks(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    inputs = network.project(x, meta["layers"][0], meta["seed"])
    found = [network.predict(own, meta["layers"], inputs) for own in arrays["weights"]]
    return np.asarray(np.mean(found, axis=0)[:, None])


def of_components(arrays: Arrays, meta: Meta, x: Floats) -> Floats:
    numbers = {name: meta[name] for name in ("bandwidth", "features", "seed")}
    return np.asarray((features_of(x, **numbers) - arrays["mean"]) @ arrays["components"].T)


FORMS: Mapping[str, Callable[[Arrays, Meta, Floats], Floats]] = {
    "landmarks": of_landmarks,
    "fourier": of_features,
    "directions": of_directions,
    "instances": of_instances,
    "linear": linear_model.outputs,
    "dictionary": of_dictionary,
    "ridges": of_ridges,
    "lone-dictionaries": of_lone_dictionaries,
    "networks": of_networks,
    "components": of_components,
}
