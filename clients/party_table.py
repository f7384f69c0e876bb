"""A party's table in a vertical or hybrid split: checked once, joined by pseudonyms."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.alignment import (
    AlignmentKey,
    Hashes,
    check_alignment_key,
    count_duplicates,
    hash_ids,
    id_texts,
    plain_ids,
    sort_order,
)
from fedkern_flwr.checkpoint import write_csv
from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.judging.figures import Calibration, calibrating
from fedkern_flwr.labels import decide, encode_classes, label_rows, name_classes

Floats = NDArray[np.float64]
Ids = Sequence[Any] | NDArray[Any]

_TEXT = 'clean the table first, or name classes of text: classes=("no", "yes")'


class PartyTable:
    """Rows of one party: a block of features, perhaps labels, perhaps held-out rows.

    Parameters
    ----------
    party : str
        Name of the party in errors.
    x, y, ids : arrays of length n, or None
        Features, shape (n, d); labels, shape (n,) or (n, k), or names of classes; record ids.
    x_test, y_test, ids_test : arrays, or None
        The same of held-out rows.
    columns : sequence of str or None
        Names of the features, numbers by default.
    classes : sequence of float or str
        Empty for regression. Labels of named ones are names, or their positions.
    label_bound : float
        Bound of the targets of a regression.

    Attributes
    ----------
    x, x_test : ndarray, shapes (n, d) and (t, d)
    columns : tuple of str
    classes, class_names : tuple of float, tuple of str
    y, y_test : ndarray, shapes (n, k) and (t, k)
        Targets; of no rows where there are none.
    labelled : bool
        Whether the held-out rows have labels.
    """

    def __init__(
        self,
        party: str,
        x: ArrayLike | None,
        y: ArrayLike | None,
        ids: Ids | None,
        x_test: ArrayLike | None,
        y_test: ArrayLike | None,
        ids_test: Ids | None,
        *,
        columns: Sequence[str] | None,
        classes: Sequence[float | str],
        label_bound: float,
    ) -> None:
        self.party, self.label_bound = party, label_bound
        self.class_names, self.classes = name_classes(classes)
        if self.classes and len(set(self.class_names)) < max(2, len(self.classes)):
            raise self._bad(
                "classes that are fewer than two or not distinct",
                "name each once",
                code="FK-CLASSES-NAMED",
            )
        self.x = self._features(x, _length(x, y, ids))
        self.y = self._targets(y, len(self.x))
        tests, features = _length(x_test, y_test, ids_test), self.x.shape[1]
        self.x_test = self._features(x_test, tests)
        if not tests:
            self.x_test = np.zeros((0, features))
        if self.x_test.shape[1] != features:
            raise self._bad(
                f"its held-out rows have {self.x_test.shape[1]} features instead of {features}",
                "bring them to the same columns",
                code="FK-COLUMNS-DIFFER",
            )
        self.labelled = y_test is not None
        self.y_test = self._targets(y_test, tests)
        self._ids = np.concatenate(
            [self._names(ids, len(self.x), "row"), self._names(ids_test, tests, "held-out row")]
        )
        self.identified = ids is not None or ids_test is not None
        self.columns = tuple(columns) if columns is not None else tuple(map(str, range(features)))
        if len(self.columns) != features:
            raise self._bad(
                f"{features} features have {len(self.columns)} names",
                "name each of them",
                code="FK-COLUMN-NAMES",
            )
        # of a session: hashes of the rows, and the order that sorts them
        self._known: tuple[str, NDArray[np.uint64], NDArray[np.intp]] | None = None

    @property
    def rows(self) -> int:
        """Number of rows that are not held out."""
        return len(self.x)

    @property
    def tests(self) -> int:
        """Number of held-out rows."""
        return len(self.x_test)

    @property
    def parts(self) -> tuple[Floats, ...]:
        """The features of the rows in the order in which they are announced, part by part."""
        return self.x, self.x_test

    @property
    def features(self) -> int:
        """Number d of features."""
        return int(self.x.shape[1])

    def own_rows(self) -> OwnRows:
        """Return the rows, as the node's ledger tells them apart."""
        parts, labels = self.parts, (self.y, self.y_test)
        blocks = [
            (x, labels[k]) if k < len(labels) and labels[k].size else (x,)
            for k, x in enumerate(parts)
        ]
        return OwnRows(blocks, self._ids if self.identified else None, self.rows)

    def digest(self) -> str:
        """Return a digest of the features and targets of all rows that are not held out."""
        digest = hashlib.sha256(self.x.tobytes())
        digest.update(b"/" + self.y.tobytes())
        return digest.hexdigest()

    # -- rows as they are announced to the server: sorted by pseudonym

    def pseudonyms(self, session: str, key: AlignmentKey | None) -> NDArray[np.uint64]:
        """Return the pseudonyms of all rows, part by part, each part sorted.

        Without ids rows get numbers of this party that match nobody else's.
        """
        _, hashes, order = self._hash(session, key)
        return hashes[order]

    def spellings(self, session: str, key: AlignmentKey | None) -> NDArray[np.uint64]:
        """Return the pseudonyms of all ids in one spelling, in announced order.

        Nothing where all ids are spelled so, and where tags of an align run stand for them.
        """
        if self.identified and isinstance(key, bytes):
            plain = plain_ids(self._ids)
            if plain != id_texts(self._ids):
                return hash_ids(plain, key, session)[self.order(session, key)]
        return np.zeros((0, 2), np.uint64)

    def order(self, session: str, key: AlignmentKey | None) -> NDArray[np.intp]:
        """Return the row of the table, counted over its :attr:`parts`, at each position."""
        return self._hash(session, key)[2]

    def announced(self, session: str, key: AlignmentKey | None) -> Floats:
        """Return the features of all rows in announced order, shape (n + t, d)."""
        return self.features_of(self.order(session, key))

    def features_of(self, rows: NDArray[Any]) -> Floats:
        """Return the features of some rows of the table, counted over its parts."""
        filled = [part for part in self.parts if len(part)]
        x = np.concatenate(filled) if len(filled) > 1 else (filled or [self.x])[0]
        return np.asarray(x[rows])

    def _hash(
        self, session: str, key: AlignmentKey | None
    ) -> tuple[str, NDArray[np.uint64], NDArray[np.intp]]:
        if self._known is None or self._known[0] != session:
            if key is None:
                key = self._own_key()
            try:
                hashes = hash_ids(self._ids, key, session)
            except TableError as error:
                raise self._bad(error.problem, error.remedy, code=error.code) from None
            ends = np.cumsum([len(part) for part in self.parts])
            starts = [0, *ends[:-1].tolist()]
            ranks = self._ranks(hashes, session, key)
            orders = [a + sort_order(ranks[a:b]) for a, b in zip(starts, ends, strict=True)]
            order = np.concatenate(orders)
            self._known = (session, hashes, order)
        return self._known

    def _ranks(self, hashes: Hashes, session: str, key: AlignmentKey) -> Hashes:
        """Return what rows are sorted by when they are announced: their pseudonyms."""
        return hashes

    def _own_key(self) -> bytes:
        """Return the key of pseudonyms without an alignment key: they match nobody else's."""
        return hashlib.sha256(f"fedkern-flwr rows/{self.party}".encode()).digest()

    # -- predictions

    def calibrates(self, tests: NDArray[np.intp], key: bytes) -> NDArray[np.bool_]:
        """Return which of some held-out rows calibrate; ``key`` is the node's own."""
        return calibrating(self._ids[self.rows + tests], key)

    def write_predictions(
        self,
        path: Path,
        tests: NDArray[np.intp],
        outputs: Floats,
        calibration: Calibration | None = None,
        deviations: Floats | None = None,
    ) -> None:
        """Write predictions of held-out rows as CSV.

        id, outputs, predicted class; with a calibration the probability of each class and a set of
        classes, or an interval; the deviation of each output, if there are any.
        """
        names = self.class_names
        heads, cells = list[str](), [list[str]() for _ in tests]
        if calibration is not None:
            heads, cells = calibration.columns(outputs, names)
        if deviations is not None and deviations.size:
            heads = [*heads, *(f"deviation_{k}" for k in range(deviations.shape[1]))]
            cells = [[*a, *map(repr, b)] for a, b in zip(cells, deviations.tolist(), strict=True)]
        if names:
            heads = ["class", *heads]
            cells = [[names[k], *row] for k, row in zip(decide(outputs), cells, strict=True)]
        rows = [["id", *(f"output_{k}" for k in range(outputs.shape[1])), *heads]]
        for place in np.argsort(tests, kind="stable"):
            name = self._ids[self.rows + tests[place]]
            rows.append([name, *map(repr, outputs[place].tolist()), *cells[place]])
        write_csv(path, rows)

    # -- checks

    def _numbers(self, values: ArrayLike, what: str) -> Floats:
        return as_numbers(values, what, self.party)

    def _features(self, x: ArrayLike | None, rows: int) -> Floats:
        if x is None:
            return np.zeros((rows, 0))
        out = np.ascontiguousarray(self._numbers(x, "features"))
        if out.ndim != 2 or len(out) != rows:
            raise self._bad(
                f"features of shape {out.shape} do not fit {rows} rows",
                "pass x of shape (n, d)",
                code="FK-SHAPE-DIFFERS",
            )
        if not np.isfinite(out).all():
            raise self._bad(
                "NaN or infinite values",
                "leave such rows out: they lack the block",
                code="FK-VALUES-FINITE",
            )
        return out

    def _targets(self, y: ArrayLike | None, rows: int) -> Floats:
        if y is None:
            return np.zeros((0, 0))
        out = as_numbers(label_rows(y, self.class_names, self.party), "labels", self.party, _TEXT)
        if self.classes and out.ndim == 2 and out.shape[1] == 1:
            out = out[:, 0]
        if out.ndim not in (1, 2) or len(out) != rows or (self.classes and out.ndim != 1):
            raise self._bad(
                f"labels of shape {out.shape} do not fit {rows} rows",
                "pass one label per row",
                code="FK-SHAPE-DIFFERS",
            )
        if not np.isfinite(out).all():
            raise self._bad(
                "NaN or infinite labels", "leave such rows out", code="FK-VALUES-FINITE"
            )
        if self.classes:
            return encode_classes(out, self.classes, self.party)
        out = out[:, None] if out.ndim == 1 else out
        if rows and np.abs(out).max() > self.label_bound:
            raise self._bad(
                f"labels beyond the declared bound of {self.label_bound:g}",
                "scale them, or declare a larger label bound at all hospitals",
                code="FK-LABELS-BOUND",
            )
        return out

    def _names(self, ids: Ids | None, rows: int, kind: str) -> NDArray[np.str_]:
        if ids is None:
            return np.array([f"{kind} {k}" for k in range(rows)], dtype=np.str_)
        names = ids if isinstance(ids, np.ndarray) and ids.dtype.kind == "U" else None
        if names is None:
            names = np.array([str(i) for i in ids], dtype=np.str_)
        if len(names) != rows:
            raise self._bad(
                f"{len(names)} ids for {rows} rows", "give each row an id", code="FK-SHAPE-DIFFERS"
            )
        return names

    def check_key(self, key: AlignmentKey | None, remedy: str, *, joined: bool = True) -> None:
        """Refuse a key that can be guessed, and ids that are ``joined`` without a key.

        Raises
        ------
        OptionError
        """
        if key is not None:
            check_alignment_key(key)
        elif self.identified and joined:
            problem = "ids are joined by keyed hashes, and there is no alignment key"
            raise OptionError(problem, remedy=remedy, party=self.party, code="FK-IDS-KEY")

    def check_ids(self, session: str, key: AlignmentKey | None) -> None:
        """Refuse ids that come twice.

        Raises
        ------
        TableError
        """
        if repeated := count_duplicates(self._hash(session, key)[1]):
            raise self._bad(
                f"{repeated} duplicate ids", "keep one row per id", code="FK-IDS-DUPLICATE"
            )

    def _bad(self, problem: str, remedy: str, *, code: str = "") -> TableError:
        return TableError(problem, remedy=remedy, party=self.party, code=code)


def as_numbers(
    values: ArrayLike, what: str, party: str, remedy: str = "clean the table first"
) -> Floats:
    """Return values as float64.

    Raises
    ------
    TableError
        They are something else.
    """
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):  # whose text quotes a value
        problem = f"{what} that are not numbers"
        raise TableError(problem, remedy=remedy, party=party, code="FK-COLUMN-NUMBERS") from None


def _length(*columns: Any) -> int:
    return next((len(column) for column in columns if column is not None), 0)
