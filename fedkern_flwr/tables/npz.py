"""Tables in NPZ files."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TableError
from .table import Table, no_such


def read_npz(
    path: Path,
    label: str | None,
    id_column: str | None,
    site_column: str | None,
    use_label: bool,
    labelled: bool,
) -> Table:
    """Read an NPZ file; see :func:`load_table` for the arrays."""
    arrays = NpzArrays(path)
    x = arrays.numbers("X", ndim=2)
    n, d = x.shape
    columns = tuple(f"x{j}" for j in range(d))
    if "feature_names" in arrays.names:
        columns = tuple(str(name) for name in arrays.get("feature_names").ravel())
    y = y_test = label_name = None
    if use_label and (labelled or arrays.has_labels(label)):
        y, label_name, y_test = arrays.labels(label)
    x_test = arrays.numbers("X_test", ndim=2) if "X_test" in arrays.names else None
    site_column = "site" if site_column is None and "site" in arrays.names else site_column
    ids = None if id_column is None else arrays.text_or_integers(id_column, "id array")
    site = None if site_column is None else arrays.text_or_integers(site_column, "site array")
    counts = [
        (label_name or "y", y, "rows", n),
        (id_column or "", ids, "rows", n),
        (site_column or "", site, "rows", n),
        ("feature_names", np.array(columns), "columns", d),
    ]
    if x_test is None:
        y_test = None
    else:
        counts += [("X_test", x_test.T, "columns", d), ("y_test", y_test, "test rows", len(x_test))]
    for name, values, unit, expected in counts:
        if values is not None and len(values) != expected:
            raise TableError(
                f"{path.name}: {name} has {len(values)} entries but X has {expected} {unit}",
                remedy="save arrays that belong together",
                code="FK-SHAPE-DIFFERS",
            )
    ids = None if ids is None else np.char.strip(ids.astype(np.str_))
    return Table(x, y, columns, label_name, ids, site, x_test, y_test)


def read_npz_ids(path: Path, id_column: str) -> NDArray[np.str_]:
    """Read the ids of an NPZ file as trimmed text."""
    ids = NpzArrays(path).text_or_integers(id_column, "id array")
    return np.char.strip(ids.astype(np.str_))


class NpzArrays:
    """The arrays of an NPZ file, read when asked for, with errors in our words."""

    def __init__(self, path: Path) -> None:
        self.source = path.name
        try:
            archive = np.load(path, allow_pickle=False)
            self.names: list[str] = list(archive.files)
        except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile):
            raise self._unreadable() from None
        self._archive = archive

    def _unreadable(self) -> TableError:
        return TableError(
            f"{self.source} is not a readable NPZ file",
            remedy="save it again",
            code="FK-FILE-FORMAT",
        )

    def get(self, name: str, kind: str = "array") -> NDArray[Any]:
        if name not in self.names:
            raise no_such(kind, name, self.source, self.names)
        try:
            values: NDArray[Any] = self._archive[name]
        except ValueError as error:
            if "Object arrays" not in str(error):
                raise self._unreadable() from None
            raise TableError(
                f"array {name!r} of {self.source} holds pickled objects, which are never loaded",
                remedy="save it as numbers or text",
                code="FK-FILE-PICKLED",
            ) from None
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error):
            raise self._unreadable() from None
        return values

    def numbers(self, name: str, ndim: int, kind: str = "array") -> NDArray[np.float64]:
        values = self.get(name, kind)
        if values.dtype.kind not in "biuf":
            raise TableError(
                f"array {name!r} of {self.source} is not numeric",
                remedy="encode it as numbers",
                code="FK-COLUMN-NUMBERS",
            )
        if values.ndim != ndim:
            raise TableError(
                f"array {name!r} of {self.source} has {values.ndim} dimensions, not {ndim}",
                remedy="save X as (rows, columns) and labels as (rows,)",
                code="FK-SHAPE-DIFFERS",
            )
        return values.astype(np.float64)

    def text_or_integers(self, name: str, kind: str) -> NDArray[Any]:
        values = self.get(name, kind)
        if values.ndim != 1 or values.dtype.kind not in "biuUS":
            raise TableError(
                f"{kind} {name!r} of {self.source} is not one list of integers or text",
                remedy="save one integer or text per row",
                code="FK-SHAPE-DIFFERS",
            )
        return values.astype(np.str_) if values.dtype.kind == "S" else values

    def has_labels(self, label: str | None) -> bool:
        """Tell whether there is an array for a label."""
        return (label or "y") in self.names or ("y" in self.names and str(label).isdecimal())

    def labels(
        self, label: str | None
    ) -> tuple[NDArray[np.float64], str, NDArray[np.float64] | None]:
        """Return y, its name and y_test for a label that is an array or a column of y."""
        if label is not None and (label in self.names or not label.isdecimal()):
            name, column = label, None
        else:
            name, column = "y", label
        choices = self.get(name, "label array")
        test_name = f"{name}_test"
        ndim = 2 if choices.ndim == 2 else 1
        y = self.numbers(name, ndim)
        y_test = self.numbers(test_name, ndim) if test_name in self.names else None
        if ndim == 1 and column is None:
            return y, name, y_test
        if ndim == 1:
            raise no_such("label array", str(column), self.source, self.names)
        if column is None or int(column) >= y.shape[1]:
            raise TableError(
                f"array {name!r} of {self.source} has {y.shape[1]} label columns",
                remedy=f"choose one with --label, an index from 0 to {y.shape[1] - 1}",
                code="FK-COLUMN-UNNAMED",
            )
        index = int(column)
        return y[:, index], f"{name}[{index}]", None if y_test is None else y_test[:, index]
