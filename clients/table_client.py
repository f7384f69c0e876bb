"""What the clients share whose rows are joined by ids: their table, and what they say of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.alignment import AlignmentKey
from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.guard import refusal
from fedkern_flwr.guard.counting import binary_columns
from fedkern_flwr.guard.orders import check_binary_columns
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.judging.figures import Calibration, Yardstick, bins_of
from fedkern_flwr.node.client import Client
from fedkern_flwr.node.state import SessionState
from fedkern_flwr.table_parties import TableReply
from fedkern_flwr.tables.arrow import take_frame
from fedkern_flwr.wire import DescribeRequest, columns_digest

from .party_table import Ids, PartyTable
from .run_file import RunFile

logger = logging.getLogger("fedkern_flwr")
_SHOWN = (
    "another party opens values of single rows of this node; it can compute the %d columns of two "
    "values, up to their order and 0/1: forbid that with max_binary_columns"
)

Reply = TypeVar("Reply", bound=TableReply)


class TableClient(Client):
    """Base class of parties with a table whose rows are joined by ids.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context.
    x, y, ids, x_test, y_test, ids_test, columns, classes, label_bound
        See :class:`~fedkern_flwr.clients.party_table.PartyTable`; all optional.
    alignment_key : bytes or AlignmentTags, optional
        Joins ids.
    predictions : path, optional
        CSV file for predictions of its held-out rows.
    table : callable (default: PartyTable)
        Makes the table.
    check : callable, optional
        Raises for options that do not fit, before the table is made.
    **common
        Options of :class:`~fedkern_flwr.node.client.Client`.

    Attributes
    ----------
    table : PartyTable
    alignment_key, predictions
        As they were given.
    """

    pair_secrets: ClassVar[bool] = True
    enough_parties: ClassVar[int] = 2
    #: What helps where ids come without a key.
    without_key: ClassVar[str] = ""
    #: Ending of the file that the node keeps while a run lasts.
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
        """Whether rows of this party are joined with those of others by their ids."""
        return True

    @property
    def shows_rows(self) -> bool:
        """Whether another party opens values of single rows of this one."""
        return False

    @property
    def session(self) -> str:
        """Name of the run of the message at hand."""
        return str(self._request.session)

    def wrong(self, problem: str, remedy: str = "", *, code: str = "") -> ProtocolError:
        """Return the error with which this party refuses what cannot be asked for."""
        return ProtocolError(problem, remedy=remedy, party=self.name, code=code)

    def own_rows(self) -> OwnRows:
        """Return the rows of the table."""
        rows: OwnRows = self.table.own_rows()
        return rows

    def tell(self, request: DescribeRequest, reply: type[Reply], **more: Any) -> Reply:
        """Tell who this is, and remember in which order its rows are announced."""
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
        """Return how many columns have two values, the label included: they hide little."""
        return binary_columns(self.table.x) + (len(self.table.classes) == 2)

    def keep_order(self, ids: NDArray[np.uint64], order: NDArray[np.int32]) -> None:
        """Remember which row of the table stands at each announced position."""
        self.kept.arrays["order"] = order

    def places(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return which rows of the table announced rows are."""
        return np.asarray(self.kept.arrays["order"][rows])

    def features_at(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Return the features of announced rows, shape (n, d)."""
        found: NDArray[np.float64] = self.table.features_of(self.places(rows))
        return found

    def yardstick(self, bins: int) -> Yardstick:
        """Return what this party counts on its held-out rows."""
        table = self.table
        return Yardstick(len(table.classes), table.y.shape[1], table.label_bound, bins)

    def outcomes(
        self,
        tests: NDArray[Any],
        predictions: NDArray[np.float64],
        bins: int,
        *,
        total: str = "",
        alone: bool = False,
        judged: bytes = b"",
        trained: bool = True,
        once: bool = True,
    ) -> NDArray[np.float64]:
        """Return what may be told of how good predictions of held-out rows are, or zeros.

        Parameters
        ----------
        tests : ndarray
            The held-out rows, counted from the first of them.
        predictions : ndarray, shape (n, k)
            Of these rows.
        bins : int
            Bins of a histogram.
        total, alone, judged, trained, once
            See :meth:`~fedkern_flwr.node.guarded.GuardedNode.figures`.

        Raises
        ------
        RefusedError
            There would be more bins than there are rows for, or figures of these rows were told too
            often.
        """
        table, yard = self.table, self.yardstick(bins)
        tests = tests if table.labelled else tests[:0]
        behind = sum(self.told_of(tests, total))
        if bins < 0 or bins % 2 or bins > bins_of(behind, yard.classes):
            raise refusal(
                f"{bins} bins of scores of {behind} held-out rows", self.name, code="FK-ORDER-BINS"
            )
        targets = table.y_test[tests] if len(tests) else table.y[:0]
        halves = table.calibrates(tests, self.ledger.split_key())
        counts = yard.count(predictions[: len(tests)], targets, halves)
        named: Any = {"total": total, "alone": alone, "judged": judged}
        named |= {"trained": trained, "once": once}
        return self.figures("outcomes", tests, counts, **named)

    def write_predictions(
        self,
        tests: NDArray[Any],
        outputs: NDArray[np.float64],
        calibration: NDArray[np.float64] | None = None,
        deviations: NDArray[np.float64] | None = None,
    ) -> None:
        """Write predictions of held-out rows to this party's file, if it has one.

        ``calibration`` are the numbers of a :class:`~fedkern_flwr.judging.figures.Calibration`,
        if the model has one.
        """
        if self.predictions is not None and len(tests):
            found = Calibration.read(() if calibration is None else calibration, outputs.shape[1])
            self.table.write_predictions(self.predictions, tests, outputs, found, deviations)

    def close_round(self, state: SessionState, *done: Any) -> None:
        """Keep the state; on disk as well, if there is a place and the request says so."""
        super().close_round(state, *done)
        if save_as := getattr(self._request, "save_as", 0):
            self._save(state, save_as)

    def forget(self, state: SessionState) -> bytes:
        """Erase the file of the run and all else at its end."""
        RunFile(self.state_dir, state.session, self.partition, self.run_file).erase()
        return b""
