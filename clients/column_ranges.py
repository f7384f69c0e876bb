"""The client of a preparation run: its columns are summed, ranges or an encoder come back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike

from fedkern_flwr.align import column_ranges as wire
from fedkern_flwr.align.column_ranges import (
    DEFAULT_BOUND,
    ENCODING,
    LABEL,
    Block,
    Centre,
    Coarse,
    Floats,
    OwnColumns,
    beyond,
    check_values,
    own_ranges,
)
from fedkern_flwr.checkpoint import can_be_written, write_atomically
from fedkern_flwr.encoding.columns import CIRCLES, Number, other_scale
from fedkern_flwr.encoding.encoder import KeptEncoder, Told
from fedkern_flwr.errors import FedKernError, OptionError, ProtocolError, TableError
from fedkern_flwr.exchange import SumSpec
from fedkern_flwr.guard import refusal
from fedkern_flwr.guard.counting import binary_columns
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.node.client import Client, answers, logger
from fedkern_flwr.node.state import KeptState, SessionState
from fedkern_flwr.scaling import Scaling, ranges_to_json
from fedkern_flwr.tables import take_frame
from fedkern_flwr.tables.table import Kind, Table
from fedkern_flwr.wire import DescribeRequest, columns_digest
from fedkern_flwr.wire.sums import Order

from .table_client import as_numbers

#: Own values within less than 1 / this of the common range are reported.
_NARROW = 50.0


class RangesClient(Client):
    """A node that gets ranges of its columns, over the rows of all nodes with the same columns.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context.
    x : array, shape (n, d)
        Rows in the units of the data; NaN for missing values.
    y : array, shape (n,), optional
        Labels, a further column in runs that request them.
    columns : sequence of str, optional
        Names of the features, default numbers; only a digest is sent.
    block : str (default: "all")
        Name of the columns; nodes with the same name hold the same columns of different rows.
    ranges : path, optional
        JSON file to write, for :func:`fedkern_flwr.scaling.read_ranges`; with labels a range
        ``"label"`` is added.
    scaling : path, optional
        JSON file to write, for :class:`fedkern_flwr.scaling.Scaling`.
    encoder : path, optional
        JSON file to write, for :class:`fedkern_flwr.encoding.encoder.KeptEncoder`: the common
        encoder of the block's holders. The scaling is then that of encoded columns.
    kinds, categories : mapping, optional
        For encoded columns, as in a :class:`~fedkern_flwr.tables.Table`.
    units : mapping, optional
        Units of number columns, the same at all holders.
    category_key : bytes, optional
        Secret of all holders of the block, not of the server, that hides category names.
    bound : float, optional
        Public bound on all magnitudes, equal to that of the run; default: the strategy's default.
    **common
        Options of :class:`~fedkern_flwr.node.client.Client`.

    Raises
    ------
    TableError
        Wrong shapes, infinite values, a column without a value.
    OptionError
        Ranges are requested for encoded columns.
    """

    whole_cohorts: ClassVar[bool] = True
    enough_parties: ClassVar[int] = 2

    def __init__(
        self,
        context: Context,
        x: ArrayLike,
        y: ArrayLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        block: str = "all",
        ranges: str | Path | None = None,
        scaling: str | Path | None = None,
        encoder: str | Path | None = None,
        kinds: Mapping[str, Kind] | None = None,
        categories: Mapping[str, tuple[str, ...]] | None = None,
        units: Mapping[str, str] | None = None,
        category_key: bytes = b"",
        bound: float | None = None,
        **common: Any,
    ) -> None:
        super().__init__(context, **common)
        self.bound, self.block, self.category_key = bound, block, category_key
        paths = (None if path is None else Path(path) for path in (ranges, scaling, encoder))
        self.ranges, self.scaling, self.encoder = paths
        x, columns = take_frame(x, columns, self.name)
        self.x = as_numbers(x, "features", self.name)
        if self.x.ndim != 2 or not self.x.size:
            raise self._bad(f"features of shape {self.x.shape}", code="FK-SHAPE-DIFFERS")
        rows, features = self.x.shape
        self.columns = tuple(map(str, range(features) if columns is None else columns))
        if len(self.columns) != features or len(set(self.columns)) != features:
            raise self._bad(
                f"{features} features have {len(set(self.columns))} different names",
                code="FK-COLUMN-NAMES",
            )
        check_values(self.x, self.columns, self.name)
        self.units = dict(units or {})
        own = Table(self.x[:, :0], None, ())  # of encoded columns
        if self.encoder is not None:
            if self.ranges is not None:
                raise OptionError(
                    "this node has ranges and an encoder", party=self.name, code="FK-OPTION-BOTH"
                )
            named = {"kinds": kinds or {}, "categories": categories or {}, "units": self.units}
            own = Table(self.x, None, self.columns, **named)  # type: ignore[arg-type]
        self.own = OwnColumns(own, category_key)
        if self.own.kinds:
            self.x = self.own.x
        self.y = None if y is None else as_numbers(y, "labels", self.name)
        if self.y is not None:
            if self.y.shape != (rows,):
                raise self._bad(
                    f"labels of shape {self.y.shape} do not fit {rows} rows",
                    code="FK-SHAPE-DIFFERS",
                )
            if LABEL in self.columns:
                raise self._bad(
                    f"a feature is named {LABEL!r}, as the range of the labels is",
                    code="FK-NAMES-LABEL",
                )
            check_values(self.y[:, None], [LABEL], self.name)

    def own_rows(self) -> OwnRows:
        part = (self.x,) if self.y is None else (self.x, self.y)
        return OwnRows([part], learned=len(self.x))

    def weight(self, order: Order, rows: int) -> float:
        """Return the mean weight of a number: most are counts."""
        asked, columns = self._request, self._numbers().shape[1] + self._request.labels
        block = Block(self.own.kinds, columns, rows)
        if order.name.startswith(wire.MEANS_SUM):
            numbers = block.coarse_numbers(asked.circles)
        else:
            numbers = block.fine_numbers(order.length, asked.buckets)
        return numbers / max(order.length, 1)

    # -- phases

    def describe(self, request: DescribeRequest) -> wire.RangesDescribeReply:
        for path in (self.ranges, self.scaling, self.encoder):
            if path is not None and not can_be_written(path):
                raise self._unwritable()
        with self.keeping(request.session):
            self.check_table(self._digest(request.session))
        return wire.RangesDescribeReply(
            rows=len(self.x),
            features=self.x.shape[1],
            test_rows=0,
            columns=columns_digest(self.columns),
            units=columns_digest(self.units.get(name, "") for name in self.columns),
            block=self.block,
            labelled=self.y is not None,
            binary=0 if self.simulated else binary_columns(self.x),
            kinds=self.own.kinds,
            secret_digest=self.own.digest_of_key(self.category_key, request.session),
        )

    @answers(wire.MeansRequest)
    def send_means(self, request: wire.MeansRequest) -> wire.MeansReply:
        """Contribute counts, sums and sums of squares."""
        x = self._columns(request)
        self.check_declared("bound", self.bound, DEFAULT_BOUND, request.bound)
        block = self._check_sum(wire.MEANS_SUM, x, request.bound)
        if request.rows != block.rows:
            raise refusal("the rows of a block", self.name, code="FK-ORDER-ROWS")
        self._check_bound(x, request.bound)
        self.kept.settings["bound"] = request.bound
        if block.holders == 2:
            logger.warning(
                "block %r has two holders: each can compute the other's means and deviations from "
                "those of both%s",
                self.block,
                ", and its histograms" if self.own.kinds else "",
            )
        if not 0 <= request.circles <= CIRCLES:
            raise refusal("circles that there are not", self.name, code="FK-ORDER-SIZE")
        share = self.own.coarse(x, block, request.circles)
        self.secure_sums.contribute(wire.MEANS_SUM, share)
        return wire.MeansReply()

    @answers(wire.DeviationsRequest)
    def send_deviations(self, request: wire.DeviationsRequest) -> wire.DeviationsReply:
        """Contribute distances from the centre, their squares, and the second histograms."""
        x = self._columns(request)
        bound = self.kept.settings["bound"] if x.size else DEFAULT_BOUND
        block = self._check_sum(wire.DEVIATIONS_SUM, x, bound)
        centre = Centre(request.count, request.mean, request.scale)
        bins = request.places, request.counts, request.strays, request.splits, request.buckets
        asked = Coarse(centre, *bins)
        if not asked.fits(x.shape[1], block.numeric):
            raise ProtocolError(
                "what was summed before does not fit the columns of this node",
                party=self.name,
                code="FK-MESSAGE-SHAPE",
            )
        if not self.kept.pin("asked", asked.digest):  # varying bins would reveal single values
            raise refusal(
                "another centre or other bins than before", self.name, code="FK-SETTINGS-CHANGED"
            )
        least, before = self.policy.min_sum_rows, self.ledger.told_counts()
        told = self.own.tell({name: Told(**one) for name, one in before.items()}, least)
        if told:
            self.ledger.keep_counts({**before, **{name: vars(one) for name, one in told.items()}})
        share = self.own.fine(x, block, asked, least, told)
        self.secure_sums.contribute(wire.DEVIATIONS_SUM, share)
        return wire.DeviationsReply()

    @answers(wire.WriteRequest, last=True)
    def write(self, request: wire.WriteRequest) -> wire.WriteReply:
        """Write the files and erase the run's state; a repeated request writes them again."""
        x = self._columns(request)
        low, high = own_ranges(x) if request.alone else (request.low, request.high)
        if len(low) != x.shape[1] or not (low < high).all():
            raise ProtocolError(
                "the ranges do not fit the columns of this node",
                party=self.name,
                code="FK-MESSAGE-SHAPE",
            )
        if self.own.kinds and self.scaling and request.scaling in ("standard", "none"):
            raise self.unfit(
                self._bad(
                    f"its scaling is one of columns from 0 to 1, those of scaling "
                    f"{request.scaling} are not",
                    code="FK-ENCODER-SCALING",
                )
            )
        limits = (float(low[-1]), float(high[-1])) if request.labels else (0.0, 1.0)
        try:
            if self.encoder is not None:
                low = np.zeros(self._write_encoder(request, self.encoder))
                high = low + 1.0
            elif self.ranges is not None:
                names = [*self.columns, LABEL] if request.labels else self.columns
                self._warn_narrow(x, low, high)
                text = ranges_to_json(names, low, high, clip=request.clip)
                write_atomically(self.ranges, text.encode(), private=True)
            if self.scaling is not None:
                d = len(low) - (request.labels and not self.own.kinds)
                # the corner of the unit cube, which reveals nothing about rows
                scaling = Scaling(low[:d], high[:d], float(np.sqrt(d)), *limits, request.clip)
                write_atomically(self.scaling, scaling.to_json().encode(), private=True)
        except OSError:
            raise self._unwritable() from None
        self.kept = KeptState()
        return wire.WriteReply()

    def forget(self, state: SessionState) -> bytes:
        return b""

    # -- pieces

    def _digest(self, session: str) -> str:
        digest = hashlib.sha256(repr((session, self.columns, self.x.shape)).encode())
        for values in (self.x, self.y):
            digest.update(b"" if values is None else np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()

    def _columns(self, request: wire.RangesRequest) -> Floats:
        self.check_table(self._digest(request.session))
        x = self._numbers()
        if not request.labels:
            return x
        if self.y is None:
            raise ProtocolError(
                "labels are asked for, and it has none", party=self.name, code="FK-LABELS-MISSING"
            )
        return np.column_stack([x, self.y])

    def _numbers(self) -> Floats:
        return self.own.numbers() if self.own.kinds else self.x

    def _check_bound(self, x: Floats, bound: float) -> None:
        """Refuse values beyond the run's public bound."""
        wide = beyond(x, bound)
        if wide:
            names = self.columns
            if self.own.kinds:
                names = tuple(names[k] for k in self.own.numeric)
            name = [*names, LABEL][wide[0]]
            more = f" (and {len(wide) - 1} more)" if len(wide) > 1 else ""
            error = self._bad(
                f"column {name!r}{more} has values beyond the public bound of {bound:g}",
                code="FK-VALUES-BOUND",
            )
            raise self.unfit(error)

    def _check_sum(self, name: str, x: Floats, bound: float) -> Block:
        self.secure_sums.check(SumSpec(name=name, encoding=ENCODING, everybody=True))
        try:
            self.own.check_secret(self.category_key, self.name)
        except OptionError as error:
            raise self.unfit(error) from None
        rows = self.secure_sums.rows(name)
        return Block(self.own.kinds, x.shape[1], sum(rows), len(rows), bound)

    def _write_encoder(self, request: wire.WriteRequest, path: Path) -> int:
        own = self.own
        try:
            if request.alone:
                kept = KeptEncoder.fit(path, own.table, request.scaling, request.categories)
                return len(kept.names)
            kept = KeptEncoder(own.named(request.encoder), request.session)
        except FedKernError as error:
            raise self.unfit(error) from None
        for column, values in zip(kept.encoder.columns, own.table.x.T, strict=True):
            if isinstance(column, Number) and (times := other_scale(values, column.facts)):
                logger.warning(
                    "column %r: the values of this node are about %.3g times those of all nodes: "
                    "maybe it has another unit",
                    column.name,
                    times,
                )
        kept.write(path)
        return len(kept.names)

    def _warn_narrow(self, x: Floats, low: Floats, high: Floats) -> None:
        """Warn of columns with values in a small part of the common range."""
        for name, values, width in zip(self.columns, x.T, high - low, strict=False):
            own = float(np.ptp(known)) if len(known := values[np.isfinite(values)]) else 0.0
            if 0.0 < own * _NARROW < width:
                logger.warning(
                    "column %r: the values of this node are within %.2g %% of the range of all "
                    "nodes: maybe one has another unit",
                    name,
                    100.0 * own / width,
                )

    def _bad(self, problem: str, remedy: str | None = None, *, code: str) -> TableError:
        return TableError(problem, remedy=remedy, party=self.name, code=code)

    def _unwritable(self) -> OptionError:
        return OptionError(
            "the file of ranges or of the scaling cannot be written",
            party=self.name,
            code="FK-FILE-WRITE",
        )
