"""Clients that hold rows of a table: its parts, order, files and answers."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeVar

import numpy as np
from flwr.app import Context
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
from fedkern_flwr.checkpoint import open_private, run_folder, temporary_folder, write_csv
from fedkern_flwr.errors import OptionError, ProtocolError, StateError, TableError
from fedkern_flwr.guard import refusal
from fedkern_flwr.guard.counting import binary_columns
from fedkern_flwr.guard.policy import check_binary_columns
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.judging.figures import Calibration, Yardstick, bins_of, calibrating
from fedkern_flwr.labels import decide, encode_classes, label_rows, name_classes
from fedkern_flwr.node.client import Client
from fedkern_flwr.node.state import SessionState
from fedkern_flwr.tables import take_frame
from fedkern_flwr.wire import DescribeRequest, columns_digest
from fedkern_flwr.wire.describe import TableReply

# -- a private file of a run on a node, for data too large for its state


class RunFile:
    """A private file of a run, ending in ``kind``; by default in a folder for temporary files."""

    def __init__(self, folder: Path | None, session: str, partition: int, kind: str) -> None:
        base = folder if folder is not None else temporary_folder()
        self.path = run_folder(base, session, partition) / f"partition-{partition}.{kind}"
        self.party = f"partition {partition}"

    def open(self) -> BinaryIO:
        return open_private(self.path)

    def gone(self, what: str, remedy: str, *, code: str = "FK-STATE-GONE") -> StateError:
        """Return the error for lost contents of the file."""
        return StateError(
            f"the {what} of this run are gone from its disk",
            remedy=remedy,
            party=self.party,
            code=code,
        )

    def erase(self) -> None:
        """Remove the file, and the run's folder if it is empty."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty, or just removed by another party
            self.path.parent.rmdir()


# -- a party's table in a vertical or hybrid split: checked once, joined by pseudonyms

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
        Features, (n, d); labels, (n,) or (n, k), or class names; record ids.
    x_test, y_test, ids_test : arrays, or None
        The same of held-out rows.
    columns : sequence of str or None
        Names of the features; default: numbers.
    classes : sequence of float or str
        Empty for regression. Labels are then names or positions.
    label_bound : float
        Bound of regression targets.

    Attributes
    ----------
    x, x_test : ndarray, shapes (n, d) and (t, d)
    columns : tuple of str
    classes, class_names : tuple of float, tuple of str
    y, y_test : ndarray, shapes (n, k) and (t, k)
        Targets; of no rows without labels.
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
                "classes that are fewer than two or not distinct", code="FK-CLASSES-NAMED"
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
                code="FK-COLUMNS-DIFFER",
            )
        self.labelled = y_test is not None
        self.y_test = self._targets(y_test, tests)
        self._given = (ids, len(self.x), "row"), (ids_test, tests, "held-out row")
        for given, rows, _ in self._given:
            self._check_length(given, rows)
        self.identified = ids is not None or ids_test is not None
        self.columns = tuple(columns) if columns is not None else tuple(map(str, range(features)))
        if len(self.columns) != features:
            raise self._bad(
                f"{features} features have {len(self.columns)} names", code="FK-COLUMN-NAMES"
            )
        # of the session: hashes of the rows, and the order that sorts them
        self._known: tuple[str, NDArray[np.uint64], NDArray[np.intp]] | None = None

    @cached_property
    def _ids(self) -> NDArray[np.str_]:
        """Names of all rows, which few messages need."""
        return np.concatenate([self._names(*given) for given in self._given])

    @property
    def rows(self) -> int:
        """Number of rows that are not held out."""
        return len(self.x)

    @property
    def tests(self) -> int:
        return len(self.x_test)

    @property
    def parts(self) -> tuple[Floats, ...]:
        """The features of the rows in announced order, part by part."""
        return self.x, self.x_test

    @property
    def features(self) -> int:
        return int(self.x.shape[1])

    def own_rows(self) -> OwnRows:
        parts, labels = self.parts, (self.y, self.y_test)
        blocks = [
            (x, labels[k]) if k < len(labels) and labels[k].size else (x,)
            for k, x in enumerate(parts)
        ]
        return OwnRows(blocks, self._ids if self.identified else None, self.rows)

    def digest(self) -> str:
        """Return a digest of features and targets, without held-out rows."""
        digest = hashlib.sha256(self.x.tobytes())
        digest.update(b"/" + self.y.tobytes())
        return digest.hexdigest()

    # -- rows as they are announced to the server: sorted by pseudonym

    def pseudonyms(self, session: str, key: AlignmentKey | None) -> NDArray[np.uint64]:
        """Return the pseudonyms of all rows, part by part, each part sorted.

        Without ids they match no other party's.
        """
        _, hashes, order = self._hash(session, key)
        return hashes[order]

    def spellings(self, session: str, key: AlignmentKey | None) -> NDArray[np.uint64]:
        """Return the pseudonyms of all ids in a standard spelling, in announced order.

        Empty if all ids have that spelling, or with tags of an align run.
        """
        if self.identified and isinstance(key, bytes):
            plain = plain_ids(self._ids)
            if plain != id_texts(self._ids):
                return hash_ids(plain, key, session)[self.order(session, key)]
        return np.zeros((0, 2), np.uint64)

    def order(self, session: str, key: AlignmentKey | None) -> NDArray[np.intp]:
        """Return the table row, counted over its :attr:`parts`, at each position."""
        return self._hash(session, key)[2]

    def announced(self, session: str, key: AlignmentKey | None) -> Floats:
        return self.features_of(self.order(session, key))

    def features_of(self, rows: NDArray[Any]) -> Floats:
        """Return the features of some rows, counted over the parts."""
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
        return hashes

    def _own_key(self) -> bytes:
        """Return a key for pseudonyms that match no other party's."""
        return hashlib.sha256(f"fedkern-flwr rows/{self.party}".encode()).digest()

    # -- predictions

    def calibrates(self, tests: NDArray[np.intp], key: bytes) -> NDArray[np.bool_]:
        """Return which held-out rows calibrate; ``key`` is the node's own."""
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

        id, outputs, predicted class; with a calibration class probabilities and a set of classes,
        or an interval; deviations of outputs, if any.
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
                f"features of shape {out.shape} do not fit {rows} rows", code="FK-SHAPE-DIFFERS"
            )
        if not np.isfinite(out).all():
            raise self._bad("NaN or infinite values", code="FK-VALUES-FINITE")
        return out

    def _targets(self, y: ArrayLike | None, rows: int) -> Floats:
        if y is None:
            return np.zeros((0, 0))
        out = as_numbers(label_rows(y, self.class_names, self.party), "labels", self.party, _TEXT)
        if self.classes and out.ndim == 2 and out.shape[1] == 1:
            out = out[:, 0]
        if out.ndim not in (1, 2) or len(out) != rows or (self.classes and out.ndim != 1):
            raise self._bad(
                f"labels of shape {out.shape} do not fit {rows} rows", code="FK-SHAPE-DIFFERS"
            )
        if not np.isfinite(out).all():
            raise self._bad("NaN or infinite labels", code="FK-VALUES-FINITE")
        if self.classes:
            return encode_classes(out, self.classes, self.party)
        out = out[:, None] if out.ndim == 1 else out
        if rows and np.abs(out).max() > self.label_bound:
            raise self._bad(
                f"labels beyond the declared bound of {self.label_bound:g}", code="FK-LABELS-BOUND"
            )
        return out

    def _names(self, ids: Ids | None, rows: int, kind: str) -> NDArray[np.str_]:
        self._check_length(ids, rows)
        if isinstance(ids, np.ndarray) and ids.dtype.kind == "U":
            return ids
        names = [f"{kind} {k}" for k in range(rows)] if ids is None else [str(i) for i in ids]
        return np.array(names, dtype=np.str_)

    def _check_length(self, ids: Ids | None, rows: int) -> None:
        if ids is not None and len(ids) != rows:
            raise self._bad(f"{len(ids)} ids for {rows} rows", code="FK-SHAPE-DIFFERS")

    def check_key(self, key: AlignmentKey | None, remedy: str, *, joined: bool = True) -> None:
        """Raise OptionError for a weak key, or for ids that are ``joined`` without one."""
        if key is not None:
            check_alignment_key(key)
        elif self.identified and joined:
            problem = "ids are joined by keyed hashes, and there is no alignment key"
            raise OptionError(problem, remedy=remedy, party=self.party, code="FK-IDS-KEY")

    def check_ids(self, session: str, key: AlignmentKey | None) -> None:
        """Raise TableError for duplicate ids."""
        if repeated := count_duplicates(self._hash(session, key)[1]):
            raise self._bad(f"{repeated} duplicate ids", code="FK-IDS-DUPLICATE")

    def _bad(self, problem: str, remedy: str | None = None, *, code: str = "") -> TableError:
        return TableError(problem, remedy=remedy, party=self.party, code=code)


def as_numbers(values: ArrayLike, what: str, party: str, remedy: str | None = None) -> Floats:
    """Return values as float64; TableError if they are not numbers."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):  # its text quotes a value
        problem = f"{what} that are not numbers"
        raise TableError(problem, remedy=remedy, party=party, code="FK-COLUMN-NUMBERS") from None


def _length(*columns: Any) -> int:
    return next((len(column) for column in columns if column is not None), 0)


# -- common parts of clients with rows joined by ids: table and description

logger = logging.getLogger("fedkern_flwr")
_SHOWN = (
    "another party opens values of single rows of this node; it can compute the %d columns of two "
    "values, up to their order and 0/1: forbid that with max_binary_columns"
)

Reply = TypeVar("Reply", bound=TableReply)


class TableClient(Client):
    """Base class of parties with a table; rows are joined by ids.

    ``table`` makes the table, by default a :class:`PartyTable` (see there for its parameters);
    ``check`` checks options before that. ``alignment_key`` joins ids; ``predictions`` is a CSV file
    for held-out rows.
    """

    pair_secrets: ClassVar[bool] = True
    enough_parties: ClassVar[int] = 2
    #: Remedy for ids without a key.
    without_key: ClassVar[str] = ""
    #: Ending of the node's file during a run.
    run_file: ClassVar[str] = ""
    table: Any

    def __init__(
        self,
        context: Context,
        x: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        ids: Ids | None = None,
        x_test: ArrayLike | None = None,
        y_test: ArrayLike | None = None,
        ids_test: Ids | None = None,
        columns: Sequence[str] | None = None,
        classes: Sequence[float | str] | None = None,
        label_bound: float = 1.0,
        alignment_key: AlignmentKey | None = None,
        predictions: str | Path | None = None,
        table: Callable[..., PartyTable] = PartyTable,
        check: Callable[[], None] = lambda: None,
        **common: Any,
    ) -> None:
        super().__init__(context, **common)
        check()
        if not 0.0 < label_bound < np.inf:
            raise OptionError(
                f"label_bound is {label_bound}",
                remedy="use a positive number",
                code="FK-OPTION-RANGE",
            )
        self.alignment_key = alignment_key
        self.predictions = None if predictions is None else Path(predictions)
        x, columns = take_frame(x, columns, self.name)
        x_test, columns = take_frame(x_test, columns, self.name)
        rows = (x, y, ids, x_test, y_test, ids_test)
        bound = 1.0 if classes else label_bound
        self.table = table(
            self.name, *rows, columns=columns, classes=classes or (), label_bound=bound
        )
        self.table.check_key(alignment_key, self.without_key, joined=self.joins_rows)

    @property
    def joins_rows(self) -> bool:
        """Whether rows are joined with those of other parties by ids."""
        return True

    @property
    def shows_rows(self) -> bool:
        """Whether another party opens values of single rows of this one."""
        return False

    @property
    def session(self) -> str:
        return str(self._request.session)

    def wrong(self, problem: str, remedy: str | None = None, *, code: str = "") -> ProtocolError:
        return ProtocolError(problem, remedy=remedy, party=self.name, code=code)

    def own_rows(self) -> OwnRows:
        rows: OwnRows = self.table.own_rows()
        return rows

    def tell(self, request: DescribeRequest, reply: type[Reply], **more: Any) -> Reply:
        """Describe this party, and store the announced order of its rows."""
        table, known = self.table, (request.session, self.alignment_key)
        if self.shows_rows:
            found = check_binary_columns(self.policy, np.vstack(table.parts), party=self.name)
            if found and not self.simulated and self.policy.max_binary_columns is None:
                logger.warning(_SHOWN, found)
        table.check_ids(*known)
        ids = table.pseudonyms(*known)
        with self.keeping(request.session):
            self.check_table(table.digest())
            self.keep_order(ids, table.order(*known).astype(np.int32))
        return reply(
            rows=table.rows,
            features=table.features,
            test_rows=table.tests,
            columns=columns_digest(table.columns),
            outputs=table.y.shape[1],
            classes=len(table.classes),
            labels=columns_digest(table.class_names),
            label_bound=table.label_bound,
            labelled=table.labelled,
            allow_single=self.allow_single,
            ids=ids,
            spelled=table.spellings(*known),
            **{"binary": 0 if self.simulated else self._binary_columns(), **more},
        )

    def _binary_columns(self) -> int:
        """Return the number of binary columns, label included: they hide little."""
        return binary_columns(self.table.x) + (len(self.table.classes) == 2)

    def keep_order(self, ids: NDArray[np.uint64], order: NDArray[np.int32]) -> None:
        self.kept.arrays["order"] = order

    def places(self, rows: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(self.kept.arrays["order"][rows])

    def features_at(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self.table.features_of(self.places(rows))
        return found

    def yardstick(self, bins: int) -> Yardstick:
        table = self.table
        return Yardstick(len(table.classes), table.y.shape[1], table.label_bound, bins)

    def outcomes(
        self,
        tests: NDArray[Any],
        predictions: NDArray[np.float64],
        bins: int,
        *,
        total: str = "",
        **about: Any,
    ) -> NDArray[np.float64]:
        """Return the evaluation of held-out rows that may be released, or zeros.

        ``tests`` are their numbers; ``total`` and ``about`` as in
        :meth:`~fedkern_flwr.node.guarded.GuardedNode.figures`.

        Raises
        ------
        RefusedError
            Too many bins for the rows, or figures of these rows were released too often.
        """
        table, yard = self.table, self.yardstick(bins)
        tests = tests if table.labelled else tests[:0]
        behind = sum(self.told_of(tests, total))
        if bins < 0 or bins % 2 or bins > bins_of(behind, yard.classes):
            raise refusal(f"{bins} bins of scores of {behind} held-out rows", code="FK-ORDER-BINS")
        targets = table.y_test[tests] if len(tests) else table.y[:0]
        halves = table.calibrates(tests, self.ledger.split_key())
        counts = yard.count(predictions[: len(tests)], targets, halves)
        return self.figures("outcomes", tests, counts, total=total, **about)

    def write_predictions(
        self,
        tests: NDArray[Any],
        outputs: NDArray[np.float64],
        calibration: NDArray[np.float64] | None = None,
        deviations: NDArray[np.float64] | None = None,
    ) -> None:
        """Write predictions of held-out rows to this party's file, if any.

        ``calibration`` has the numbers of a :class:`~fedkern_flwr.judging.figures.Calibration`.
        """
        if self.predictions is not None and len(tests):
            found = Calibration.read(() if calibration is None else calibration, outputs.shape[1])
            self.table.write_predictions(self.predictions, tests, outputs, found, deviations)

    def close_round(self, state: SessionState, *done: Any) -> None:
        """Save the state; also on disk if there is a folder and the request says so."""
        super().close_round(state, *done)
        if save_as := getattr(self._request, "save_as", 0):
            self._save(state, save_as)

    def forget(self, state: SessionState) -> bytes:
        RunFile(self.state_dir, state.session, self.partition, self.run_file).erase()
        return b""
