"""A party of FedCG whose features are encoded in the run, by sums over all holders of its block."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedkern_flwr.align.column_ranges import (
    DEFAULT_BOUND,
    ENCODING,
    Centre,
    beyond,
    check_values,
)
from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.encoding.common import Coarse, OwnColumns, coarse_length, fine_length
from fedkern_flwr.errors import (
    CheckpointError,
    FedKernError,
    OptionError,
    ProtocolError,
    TableError,
)
from fedkern_flwr.guard import SumRule, refusal
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.landmarks import seed_fingerprint
from fedkern_flwr.hybrid.parties import COLUMNS, HISTOGRAMS
from fedkern_flwr.node.answering import answers
from fedkern_flwr.node.client import logger
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.tables.table import Kind, Table
from fedkern_flwr.wire import columns_digest

from .fed_cg_kernel import RunState
from .fed_cg_landmarks import LandmarkedParty
from .fed_cg_table import HybridTable
from .party_table import as_numbers

Names = Mapping[str, tuple[str, ...]]
_ROWS = wire.LandmarksRequest, wire.MomentsRequest  # requests about features of rows


class UnencodedTable(HybridTable):
    """Rows of one party as they are in its file: without features, until these are encoded.

    Parameters
    ----------
    party, x, y, ids, x_test, y_test, ids_test
        See :class:`~fedkern_flwr.clients.party_table.PartyTable`; features may have gaps (NaN),
        text is positions among ``categories``.
    kinds, categories, categories_test
        What the columns hold, and the categories of the rows and of those held out.
    secret : bytes
        Of all holders, hides the names of categories.
    value_bound : float
        Public bound on the magnitude of all values, dates in days.
    columns, **common
        See :class:`~fedkern_flwr.clients.fed_cg_table.HybridTable`.
    """

    def __init__(
        self,
        party: str,
        x: ArrayLike,
        y: ArrayLike | None,
        ids: Any,
        x_test: ArrayLike | None,
        y_test: ArrayLike | None,
        ids_test: Any,
        *,
        kinds: Mapping[str, Kind],
        categories: Names,
        categories_test: Names,
        secret: bytes,
        value_bound: float,
        columns: Any,
        **common: Any,
    ) -> None:
        own = as_numbers(x, "features", party)
        if own.ndim != 2:
            problem = f"features of shape {own.shape}"
            raise TableError(problem, remedy="pass x of shape (n, d)", party=party)
        d = own.shape[1]
        held = np.zeros((0, d)) if x_test is None else as_numbers(x_test, "features", party)
        none = None if x_test is None else np.zeros((len(held), 0))
        bare = (np.zeros((len(own), 0)), y, ids, none, y_test, ids_test)
        super().__init__(party, *bare, columns=(), **common)
        self.names = tuple(map(str, range(d) if columns is None else columns))
        told: dict[str, Any] = {"kinds": dict(kinds)}
        self.raw = Table(own, None, self.names, categories=dict(categories), **told)
        self.held = Table(held, None, self.names, categories=dict(categories_test), **told)
        self.own = OwnColumns(self.raw, secret)
        check_values(self.own.x, self.names, party)
        if wide := beyond(self.own.numbers(), value_bound):
            raise self._bad(
                f"column {self.names[self.own.numeric[wide[0]]]!r} has values beyond the public "
                f"bound of {value_bound:g}",
                "write it in larger units, or declare a larger value_bound at all its holders",
            )
        self._secret, self._rest = secret, (y, ids, y_test, ids_test)
        self._common = {**common, "ranges": None}

    def own_rows(self) -> OwnRows:
        """Return the rows, by what they hold before it is encoded."""
        held = OwnColumns(self.held, self._secret).x
        parts, labels = (self.own.x, held), (self.y, self.y_test)
        blocks = [(x, y) if y.size else (x,) for x, y in zip(parts, labels, strict=True)]
        return OwnRows(blocks, self._ids if self.identified else None, self.rows)

    def digest(self) -> str:
        """Return a digest of features and targets of all rows that are not held out."""
        names = repr((self.names, self.own.kinds)).encode()
        return hashlib.sha256(names + self.own.x.tobytes() + b"/" + self.y.tobytes()).hexdigest()

    def encoded(self, text: str) -> HybridTable:
        """Return the table whose features are what the common encoder makes of them.

        Raises
        ------
        TableError
            It does not fit the columns.
        """
        encoder, (y, ids, y_test, ids_test) = self.own.named(text), self._rest
        parts = (encoder.transform(part) for part in (self.raw, self.held))
        # whether values are beyond what the server says they are must not show
        x, x_test = (np.clip(np.nan_to_num(part), 0.0, 1.0) for part in parts)
        rows = (x, y, ids, x_test if self.tests else None, y_test, ids_test)
        return HybridTable(self.party, *rows, columns=encoder.outputs, **self._common)


class EncodingParty(LandmarkedParty):
    """Base class of FedCG's client: takes part in the sums that its block's encoder is made of.

    Attributes
    ----------
    raw : UnencodedTable or None
        The table as it was given, where it is encoded in the run; ``table`` is the same until the
        encoder has come.
    category_key, value_bound
        As they were given.
    """

    raw: UnencodedTable | None
    category_key: bytes
    value_bound: float

    def unencoded(
        self,
        kinds: Mapping[str, Kind],
        categories: Names,
        categories_test: Names,
        category_key: bytes,
        value_bound: float | None,
    ) -> Any:
        """Return what makes the table."""
        self.category_key = category_key
        self.value_bound = DEFAULT_BOUND if value_bound is None else value_bound
        return partial(
            UnencodedTable,
            ranges=None,
            kinds=kinds,
            categories=categories,
            categories_test=categories_test,
            secret=category_key,
            value_bound=self.value_bound,
        )

    def own_rows(self) -> OwnRows:
        """Return the rows of the table, by what they hold before it is encoded."""
        return (self.table if self.raw is None else self.raw).own_rows()

    def tell_columns(
        self, reply: wire.HybridDescribeReply, session: str
    ) -> wire.HybridDescribeReply:
        """Say of features that are to be encoded how many there are and what they hold."""
        if self.raw is None:
            return reply
        return replace(
            reply,
            features=len(self.raw.names),
            columns=columns_digest(self.raw.names),
            kinds=self.raw.own.kinds,
            value_bound=self.value_bound,
            secret_digest=self.raw.own.digest_of_key(self.category_key, session),
        )

    # -- the two sums

    @answers(wire.ColumnsRequest)
    def send_columns(self, request: wire.ColumnsRequest) -> wire.ColumnsReply:
        """Contribute to the coarse sum, in an exchange of its own."""
        self.add_columns()
        return wire.ColumnsReply()

    def add_columns(self) -> None:
        """Contribute to the coarse sum, if it is ordered: see OwnColumns.coarse."""
        name = COLUMNS + self.block
        if self.sums is None or name not in self.sums.orders:
            return
        own = self._raw().own
        rows = self._check_columns(name, coarse_length(own.kinds, len(own.numeric)))
        self.kept.settings["columns"] = True
        share = own.coarse(own.numbers(), self.value_bound, rows)
        self.secure_sums.contribute(name, share)

    @answers(wire.HistogramsRequest)
    def send_histograms(self, request: wire.HistogramsRequest) -> wire.HistogramsReply:
        """Contribute to the fine sum: distances, histograms, counts of categories."""
        own, name = self._raw().own, HISTOGRAMS + self.block
        d = len(own.numeric)
        centre = Centre(request.count, request.mean, request.scale)
        asked = Coarse(centre, request.places, request.counts, request.strays)
        if d and "columns" not in self.kept.settings:
            raise refusal("the second sum of columns before the first", self.name)
        if not asked.fits(d, d):
            raise self.wrong("what was summed before does not fit the columns of this node")
        length = fine_length(own.kinds, asked.edges(self.value_bound), d)
        rows = self._check_columns(name, length)
        # distances from ever new centres, and counts in ever new bins, would tell of single values
        if not self.kept.pin("asked", asked.digest):
            raise refusal("another centre or other bins than before", self.name)
        share = own.fine(own.numbers(), asked, self.value_bound, rows)
        self.secure_sums.contribute(name, share)
        return wire.HistogramsReply()

    def _raw(self) -> UnencodedTable:
        if self.raw is None:
            raise refusal("histograms of columns that are not to be encoded", self.name)
        return self.raw

    def _check_columns(self, name: str, length: int) -> int:
        """Refuse a sum of another kind than is meant; return the rows of all holders."""
        self.secure_sums.check(name, SumRule(ENCODING, length=length))
        self._check_share(np.arange(self.table.rows))
        try:
            self._raw().own.check_secret(self.category_key, self.name)
        except OptionError as error:
            raise self.unfit(error) from None
        rows = self.secure_sums.rows(name)
        if len(rows) == 2:
            logger.warning(
                "block %r has two holders: each can compute the other's means, deviations and "
                "histograms from those of both",
                self.block,
            )
        return sum(rows)

    # -- the encoder

    def take_encoder(self, text: str) -> None:
        """Take up the encoder that came with a request, or that was kept; nothing without one."""
        kept = self.kept
        if text:
            self._raw()
            told = np.frombuffer(text.encode(), np.uint8)
            if "encoder" not in kept.arrays and "asked" not in kept.settings:
                raise refusal("an encoder before the sums that it is made of", self.name)
            if not np.array_equal(kept.arrays.setdefault("encoder", told), told):
                raise refusal("another encoder than before in this run", self.name)
        if self.raw is None:
            return
        self.table, settings = self.raw, kept.settings
        made = settings.get("done", -1) == settings.get("total")  # features are not needed then
        if "encoder" not in kept.arrays or (made and not isinstance(self._request, _ROWS)):
            return
        try:
            self.table = self.raw.encoded(kept.arrays["encoder"].tobytes().decode())
        except FedKernError as error:
            raise self.unfit(error) from None

    def _begin(self, request: wire.LandmarksRequest) -> None:
        super()._begin(request)
        if self.raw is not None:
            self.kept.settings["keep_as"] = request.save_as

    def _remember(self, request: wire.LandmarksRequest) -> None:
        """Take up the encoder of the model as well."""
        super()._remember(request)
        if self.raw is not None and "encoder" not in self.kept.arrays:
            raise CheckpointError(
                "the encoder of the model is not known here any more",
                remedy="give the client the state_dir that it had when the model was made",
                party=self.name,
            )

    def _fingerprint(self) -> bytes:
        """Return that of the seed: what the landmarks are drawn in is the encoder's matter."""
        if self.raw is None or self.kept.settings["sampling"] != "U":
            return super()._fingerprint()
        return seed_fingerprint(self.kept.seed, str(self.kept.settings["model"]), self.block)

    def close_round(self, state: SessionState, *done: Any) -> None:
        """Add the encoder to what was kept on disk of the run: predictions need it."""
        super().close_round(state, *done)
        number = self.kept.settings.get("keep_as", 0)
        path = self.saved_state(state.session, number) if number else None
        if self._request.encoder and path is not None and path.is_file():
            old = RunState.unpack(path.read_bytes())
            old.arrays["encoder"] = self.kept.arrays["encoder"]
            write_atomically(path, old.pack(), private=True)


def check_unencoded(party: str, *, protocol: str, ranges: Any, landmarks: Any, x: Any) -> None:
    """Refuse options that do not go with features that are encoded in the run.

    Raises
    ------
    OptionError, ProtocolError
    """
    if x is None:
        raise OptionError("there are no features to encode", remedy="leave out encode", party=party)
    if protocol != "secure":
        raise ProtocolError("encoders are made in protocol 'secure' only", party=party)
    for name, value in (("ranges", ranges), ("landmarks", landmarks)):
        if value is not None:
            raise OptionError(
                f"{name} are of features that are encoded",
                remedy="leave them out, or encode the features before",
                party=party,
            )
