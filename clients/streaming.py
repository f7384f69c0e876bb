"""The client of the online methods with rows that arrive during a run."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, ProtocolError, StreamError
from fedkern_flwr.guard import counting
from fedkern_flwr.guard.rows import OwnRows, Streamed
from fedkern_flwr.node.state import SessionState
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.source import (
    ENDED,
    LATE,
    ROWS,
    Found,
    IteratorSource,
    Place,
    Source,
    open_stream,
)
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.wire import DescribeReply, DescribeRequest

from .pof_mkl import OnlineKernelClient
from .pof_mkl_samples import StreamAccount

logger = logging.getLogger("fedkern_flwr")

WAIT = 30.0
_RECORD = "fedkern-stream"
_LOOKED_AT = 20  # rows that decide which columns are binary


@dataclass
class PlacedAccount(StreamAccount):
    """A client's stream state with the read position.

    Attributes
    ----------
    place : Place
        How far the stream has been read.
    recent : ndarray, shape (n, d + 2)
        Rows that later sums may need, as POF-RLS sums features over several messages: sample
        number, features and label.
    """

    place: Place = field(default_factory=Place)
    recent: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    def __post_init__(self) -> None:
        packed: Any = self.place
        if isinstance(packed, dict):
            self.place = Place(**packed)


class StreamClient(OnlineKernelClient):
    """Client of POF-MKL, POF-RLS and their baselines that learns rows as they come.

    A message takes as many next rows of the stream as requested, predicts each and learns it. If
    they have not come after ``wait`` seconds, the client skips the message and the rows wait for
    the next: all parties of a sum must have as many rows in it. Rows with gaps, text or a wrong
    number of cells are skipped, and counted in the node's log.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context.
    stream : path, iterable or Source
        A CSV or JSONL file that may grow; or an iterator of (features, label), created anew with
        the client and read up to the place again. None: no row yet.
    label : str, optional
        The column of a file to predict.
    id_column : str, optional
        The column of row ids, such as times.
    columns : sequence of str, optional
        Names of the features; default: all other columns.
    wait : float (default: 30.0)
        Seconds to wait for a message's rows; 0 if the stream does not grow.
    scaling : Scaling, optional
        Public ranges that scale rows into the unit ball and labels to [0, 1].
    sep, decimal, na : str, optional
        CSV dialect.
    **common
        Held-out rows, and options of :class:`OnlineKernelClient`. A node needs ``state_dir`` for
        its ledger with used rows and the read position.

    Raises
    ------
    OptionError
        A node has no folder, or a file no label.
    """

    state_class = PlacedAccount
    freezes = False

    def __init__(
        self,
        context: Context,
        stream: str | Path | Iterable[Any] | Source,
        *,
        label: str | None = None,
        id_column: str | None = None,
        columns: Sequence[str] = (),
        wait: float = WAIT,
        scaling: Scaling | None = None,
        sep: str | None = None,
        decimal: str | None = None,
        na: str = "",
        **common: Any,
    ) -> None:
        super().__init__(context, np.zeros((0, 0)), np.zeros(0), **common)
        if not wait >= 0.0:
            raise OptionError(
                f"stream wait is {wait}", remedy="give seconds, 0 or more", code="FK-OPTION-RANGE"
            )
        if self.state_dir is None and not self.simulated:
            raise OptionError(
                "a node with a stream needs a folder of its own",
                remedy="name it as state_dir",
                party=self.name,
                code="FK-STREAM-FOLDER",
            )
        self.wait, self.scaling = wait, scaling
        if isinstance(stream, (str, Path)):
            how: dict[str, Any] = {"label": label, "id_column": id_column, "sep": sep}
            how |= {
                "columns": tuple(columns),
                "decimal": decimal or ".",
                "na": na,
                "follow": wait > 0.0,
            }
            self.source: Source = open_stream(stream, self.state_dir, self.partition, **how)
        elif isinstance(stream, Source):
            self.source = stream
        else:
            self.source = IteratorSource(stream, columns)
        self.kept: PlacedAccount
        self._found: Found | None = None  # rows of the current message
        self._request: Any = None

    # -- description

    def describe(self, request: DescribeRequest) -> DescribeReply:
        """Describe the stream, with as many rows as requested.

        Binary columns are counted on its next rows: of fewer rows there may be more, which is the
        safe direction.
        """
        self._open(self.wait)
        self.kept = PlacedAccount.unpack(SessionState.load(self.context).payload)
        found = self.source.take(self._place(), _LOOKED_AT, self.wait)
        if not len(found.y):
            raise self._none(found)
        binary = counting.binary_columns(found.x, found.y)
        self.context.state[_RECORD] = ConfigRecord({"binary": binary})
        self.x, self.y = self._scaled(found)
        reply = replace(super().describe(request), rows=ROWS)
        self.x, self.y = self.x[:0], self.y[:0]  # these rows are not used yet
        return reply

    @property
    def binary(self) -> int:
        """Columns, label included, with at most two values at the stream's beginning."""
        return int(self.context.state[_RECORD]["binary"])  # type: ignore[arg-type]

    def _open(self, wait: float) -> None:
        self.columns = self.source.names(wait)
        self.x = np.zeros((0, len(self.columns)))
        if not len(self.x_test):
            self.x_test = self.x

    # -- the rows of a message

    def answer(self, request: Any, method: Callable[[Any], Any]) -> Any:
        """Answer with the next rows; mark them as used if all went well."""
        if isinstance(request, (wire.NetworkRequest, wire.NetworkEvaluateRequest)):
            raise ProtocolError(
                "PerFedAvg looks at rows twice, a stream has them once",
                remedy="use pof-rls or pof-mkl",
                party=self.name,
                code="FK-STREAM-ONCE",
            )
        self._open(0.0)
        self._found, self._request = None, request
        reply = super().answer(request, method)
        self._take_part()
        return reply

    def note_window(self, start: int, stop: int) -> None:
        """Do nothing: the ledger knows the rows of a stream, each in one message."""

    def _rows(self, step: int, samples: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the next rows, after those of messages since ``step``.

        Skipped messages have no rows. If the features of all of them are summed, this client must
        skip, too, as the others assume equally many rows.
        """
        before = self._request.step - step
        if step < 0 or not 0 <= before < samples:
            raise ProtocolError(
                f"{samples} rows are asked for", party=self.name, code="FK-MESSAGE-FIELD"
            )
        earlier = self._earlier(step)
        if before and len(earlier) < before and self._request.sums:
            raise StreamError(LATE, party=self.name, code="FK-STREAM-LATE")
        found = self.source.take(self._place(), samples - before, self.wait)
        if len(found.y) < samples - before:
            raise self._none(found)
        x, y = self._scaled(found)
        self._found = replace(found, x=x, y=y)
        if not len(earlier):
            return x, y
        return np.concatenate([earlier[:, 1:-1], x]), np.concatenate([earlier[:, -1], y])

    def _none(self, found: Found) -> StreamError:
        if found.ended:
            return StreamError(ENDED, party=self.name, code="FK-STREAM-ENDED")
        return StreamError(LATE, party=self.name, code="FK-STREAM-LATE")

    def _earlier(self, step: int) -> NDArray[np.float64]:
        recent = self.kept.recent
        return recent[recent[:, 0] >= step] if len(recent) else recent

    def _scaled(self, found: Found) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self.scaling is None:
            return found.x, found.y
        return self.scaling.rows(found.x, found.y)

    def _place(self) -> Place:
        """Return the read position; a node's ledger has it for all runs."""
        if self.simulated:
            return self.kept.place
        kept = self.ledger.place()
        return Place(**json.loads(kept)) if kept else Place()

    def _take_part(self) -> None:
        """Record the used rows in the ledger before the answer is sent."""
        found = self._found
        if found is None:
            return
        self.kept.place = found.place
        if isinstance(self._request, wire.RidgeRequest):
            steps = self._request.step + np.arange(len(found.y))
            recent = np.column_stack([steps, found.x, found.y])
            earlier = self._earlier(self._request.window)
            self.kept.recent = np.concatenate([earlier, recent]) if len(earlier) else recent
        if not self.simulated:
            rows = OwnRows([(found.x, found.y)], found.ids, learned=len(found.y))
            self.note_stream(Streamed(rows, json.dumps(vars(found.place)), found.anew))
        if found.skipped:
            why = ", ".join(f"{number} {what}" for what, number in sorted(found.skipped.items()))
            total = found.skipped.total()
            logger.warning("rows of the stream that are left out: %d (%s)", total, why)
