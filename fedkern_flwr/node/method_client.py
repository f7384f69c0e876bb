"""Define the client of methods written as a generator of rounds, with handlers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from ..alignment import AlignmentKey, check_alignment_key
from ..checkpoint import make_private_folder, write_csv
from ..errors import ProtocolError, SumError, TableError
from ..exchange import Sum, split
from ..guard import counting, refusal
from ..guard.rows import OwnRows
from ..secure_sum.membership import asked
from ..tables import take_frame
from ..wire import DescribeReply, DescribeRequest, PhaseMessage, columns_digest
from ..wire.method import MethodReply, MethodRequest, pack, unpack
from .client import Answer, Client, Handler

Draw = Callable[[Path, NDArray[np.float64], NDArray[np.float64] | None], object]


def contributes(what: Sum) -> Callable[[Answer], Answer]:
    """Mark a client's method that returns its terms of a sum: key -> number or array.

    The method gets the arguments of the request, and returns the keys of its shapes. Bound,
    sensitivity and rounds are those declared at this client: other requests, and larger values, are
    refused.

    Parameters
    ----------
    what : Sum
        The sum, declared at module level, see :class:`~fedkern_flwr.exchange.Sum`.

    Raises
    ------
    ProtocolError
        ``what`` is no declared sum.
    """
    if not isinstance(what, Sum):
        raise ProtocolError(
            f"@contributes takes a sum, not {type(what).__name__}",
            remedy='declare it at module level: ROWS = Sum("rows", bound=1.0), @contributes(ROWS)',
            code="FK-CLIENT-HANDLER",
        )

    def mark(method: Answer) -> Answer:
        method.contributes = what  # type: ignore[attr-defined]
        return method

    return mark


class MethodClient(Client):
    """Base class of clients for your own method, with a table of rows and handlers by name.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context.
    x : array or data frame, shape (n, d)
        Features.
    y : array, shape (n,), optional
        Labels.
    x_test, y_test : arrays, optional
        Held-out rows.
    ids, ids_test : sequences, optional
        Names of the rows.
    columns : sequence of str, optional
        Names of the features; the server compares a digest of them.
    kinds, categories : mapping, optional
        For ``raw`` clients: kinds of columns other than numbers, and names of categories; see
        :class:`~fedkern_flwr.tables.table.Table`.
    alignment_key : bytes or AlignmentTags, optional
        Common secret of the parties, for handlers that make pseudonyms of ``ids``.
    results : path, optional
        Private folder for files that handlers write, see :meth:`write_rows`.
    draw : callable, optional
        Plots points for :meth:`scatter`. Arguments: file without suffix, points of shape (n, 2),
        labels or None.
    **common
        Options of :class:`~fedkern_flwr.node.client.Client`.

    Attributes
    ----------
    kept : KeptState
        What the client remembers between messages: put arrays into ``kept.arrays``.
    delivered : dict
        Name -> total of a sum that this client receives, in the current message.
    sizes : dict
        Key -> length, for the current sum.

    Raises
    ------
    TableError
        Shapes do not fit, or values are infinite (or NaN, unless ``raw``).
    """

    #: Sums of a run about the same rows that share its budget of privacy.
    releases: ClassVar[int] = 1
    #: Arguments of requests that stay as in the run's first one that has them.
    pinned: ClassVar[tuple[str, ...]] = ()
    #: Whether it takes its table as it is: gaps are NaN, text is positions among ``categories``,
    #: labels are a column.
    raw: ClassVar[bool] = False
    same_parties = True

    def __init__(
        self,
        context: Context,
        x: ArrayLike,
        y: ArrayLike | None = None,
        *,
        x_test: ArrayLike | None = None,
        y_test: ArrayLike | None = None,
        ids: Sequence[Any] | None = None,
        ids_test: Sequence[Any] | None = None,
        columns: Sequence[str] = (),
        kinds: Mapping[str, str] | None = None,
        categories: Mapping[str, tuple[str, ...]] | None = None,
        alignment_key: AlignmentKey | None = None,
        results: str | Path | None = None,
        draw: Draw | None = None,
        **common: Any,
    ) -> None:
        super().__init__(context, **common)
        self.results, self.draw = None if results is None else Path(results), draw
        x, columns = take_frame(x, columns, self.name)
        x_test, columns = take_frame(x_test, columns, self.name)
        self.x = self._table(x, 2)
        self.y = None if y is None else self._table(y, 1, len(self.x))
        self.x_test = self.x[:0] if x_test is None else self._table(x_test, 2)
        self.y_test = None if y_test is None else self._table(y_test, 1, len(self.x_test))
        self.ids, self.ids_test, self.columns = ids, ids_test, tuple(columns)
        if self.raw and not self.columns:
            self.columns = tuple(map(str, range(self.x.shape[1])))
        if self.columns and len(set(self.columns)) != self.x.shape[1]:
            raise TableError(
                f"{self.x.shape[1]} features have {len(set(self.columns))} different names",
                remedy="name each of them",
                party=self.name,
                code="FK-COLUMN-NAMES",
            )
        self.kinds, self.categories = dict(kinds or {}), dict(categories or {})
        if alignment_key is not None:
            check_alignment_key(alignment_key)
        self.alignment_key, self.sizes = alignment_key, dict[str, int]()
        self._check_handlers()
        sums = self.marked("contributes")
        # in a run with a budget, a sum without sensitivity is refused on request
        self.adds_noise = any(one.sensitivity is not None for one in sums)

    # -- for handlers

    def write_rows(self, name: str, columns: Sequence[str], values: NDArray[Any]) -> None:
        """Write a CSV file with values of each row, if the node has a results folder.

        Parameters
        ----------
        name : str
            File name without suffix.
        columns : sequence of str
            Names of the values.
        values : ndarray, shape (n, k)
            Values of n rows, with the ids of the training rows.
        """
        if self.results is None:
            return
        make_private_folder(self.results)
        heads = ["row" if self.ids is None else "id", *columns]
        names = range(len(values)) if self.ids is None else self.ids
        rows = ([n, *row] for n, row in zip(names, values.tolist(), strict=True))
        write_csv(self.results / f"{name}.csv", [heads, *rows], ends="\n")

    def write_table(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """Write a CSV file, header first, if the node has a results folder."""
        if self.results is not None:
            make_private_folder(self.results)
            write_csv(self.results / f"{name}.csv", rows, ends="\n")

    def scatter(self, name: str, points: NDArray[np.float64]) -> None:
        """Draw a scatter plot of points of shape (n, 2 or more), if the node can."""
        if self.results is not None and self.draw is not None and points.shape[1] > 1:
            make_private_folder(self.results)
            self.draw(self.results / name, points[:, :2], self.y)

    # -- what the base class requires

    def handlers(self) -> dict[str, tuple[type[PhaseMessage], Handler]]:
        return {MethodRequest.phase: (MethodRequest, self._by_name), **super().handlers()}

    def own_rows(self) -> OwnRows:
        parts = [
            tuple(a for a in pair if a is not None)
            for pair in ((self._named(self.x), self.y), (self._named(self.x_test), self.y_test))
        ]
        ids = self.ids
        if ids is not None:
            held = range(len(self.x_test)) if self.ids_test is None else self.ids_test
            ids = [*ids, *held]
        return OwnRows(parts, ids, learned=len(self.x))

    def _named(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return rows with digests for categories, independent of the table's other categories."""
        found = x.copy() if self.categories else x
        for name, words in self.categories.items():
            k = self.columns.index(name)
            known = np.isfinite(x[:, k])
            digests = np.array([crc32(word.encode()) for word in words], np.float64)
            found[known, k] = digests[x[known, k].astype(np.intp)]
        return found

    def describe(self, request: DescribeRequest) -> DescribeReply:
        labels = [] if self.y is None or not self.labels_of_row else [self.y]
        return DescribeReply(
            rows=len(self.x),
            features=self.x.shape[1],
            test_rows=len(self.x_test),
            columns=columns_digest(self.columns),
            binary=counting.binary_columns(np.nan_to_num(self.x), *labels),
        )

    def saved_state(self, session: str, number: int) -> Path | None:
        """Return the file of the last state up to a round; not every round saves one."""
        exact = self.state_path(session, f"-round-{number}.state")
        if exact is None:
            return None
        known = exact.parent.glob(f"partition-{self.partition}-round-*.state")
        rounds = [int(file.stem.rsplit("-", 1)[1]) for file in known]
        last = max((n for n in rounds if n <= number), default=number)
        return self.state_path(session, f"-round-{last}.state")

    @property
    def session(self) -> str:
        return str(self._request.session)

    @property
    def delivered(self) -> Mapping[str, NDArray[Any]]:
        """Totals of sums that this client receives, in the current message."""
        return {} if self.sums is None else self.sums.delivered

    # -- requests

    def round_of(self, name: str) -> int:
        """Return the exchange number for sums with rounds; else 0."""
        rounds = {one.full_name for one in self.marked("contributes") if one.rounds}
        return int(self._request.round) if name in rounds else 0

    def _given(self, request: MethodRequest) -> tuple[dict[str, Any], dict[str, int]]:
        given, sizes = unpack(request.plain, request.given, party="server")
        self.pin_options({name: given[name] for name in self.pinned if name in given})
        return given, sizes

    def _by_name(self, request: MethodRequest) -> PhaseMessage:
        sums = {one.name: (one, f) for one, f in self.marked("contributes").items()}
        questions = self.marked("answers")
        name, ordered = request.name, self.sums is not None and bool(self.sums.orders)
        if name not in sums and name not in questions:
            raise ProtocolError(
                f"{type(self).__name__} has no handler for {name[:40]!r}",
                remedy=f"mark one with @contributes or @answers; there are {[*sums, *questions]}",
                code="FK-CLIENT-HANDLER",
            )
        if ordered != (name in sums):
            asks, marked = ("a Sum", "answers") if ordered else ("an Ask", "contributes")
            raise ProtocolError(
                f"{asks} asks for {name!r}, which is marked with @{marked}", code="FK-CLIENT-MARK"
            )
        if ordered:
            return self.answering(lambda r: self._contribute(r, *sums[name]), request)
        answering = self.ending if name in self.marked("ends") else self.answering
        return answering(lambda r: self._tell(r, questions[name]), request)

    def _contribute(
        self, request: MethodRequest, what: Sum, method: Callable[..., Any]
    ) -> MethodReply:
        sums, name = self.secure_sums, what.full_name
        given, self.sizes = self._given(request)
        sizes = self.sizes
        cohort, counts = sums.cohort(name), sums.party.state.counts
        rows = [counts[member][what.held_out] for member in cohort.members]
        about: Any = {"least": cohort.threshold, "releases": self.releases}
        spec = what.spec(sizes, rows, self.budget, **about)
        sums.check(spec)
        terms, bound = flatten(method(**given), sizes, what.name), spec.encoding.bound
        if not np.abs(terms).max(initial=0.0) <= bound:
            parts = split(terms, sizes).items()
            at = sorted(key for key, part in parts if not (abs(part) <= bound).all())
            raise self.unfit(
                SumError(
                    f"{', '.join(at)} of {what.name!r}: beyond the bound of {what.bound:g} per "
                    f"{what.per}, or not finite",
                    code="FK-SUM-BOUND",
                )
            )
        if what.held_out:
            learns = any(not one.held_out for one in self.marked("contributes"))
            trained = self.record.helped or self.simulated or not learns
            held = np.arange(len(self.x_test))
            terms = self.figures(name, held, terms, total=name, trained=trained)
        else:
            self.record.helped = True
        # Masks cancel among parties with the same request only: no party is summed with a decoy.
        kinds = (f"{array.dtype.str}{array.shape}" for array in request.given)
        same = asked(request.plain, *kinds, *request.given)
        question = "" if self.budget is None else same
        sums.contribute(name, terms, release=question, common=same.encode())
        return MethodReply(round=request.round, given=())

    def _tell(self, request: MethodRequest, method: Callable[..., Any]) -> MethodReply:
        given, _ = self._given(request)
        found = method(**given)
        if found is not None and not isinstance(found, Mapping):
            raise ProtocolError(
                f"the handler of {request.name!r} returned {type(found).__name__}",
                code="FK-CLIENT-REPLY",
            )
        if found and self.budget is not None:
            raise refusal(
                "privacy: its answer would be sent without noise", code="FK-BUDGET-ANSWER"
            )
        plain, arrays = pack(found or {})
        return MethodReply(round=request.round, plain=plain, given=arrays)

    def _check_handlers(self) -> None:
        names = [one.name for one in self.marks("contributes")]
        names += [n for n in self.marks("answers") if isinstance(n, str)]
        for name in names:
            if names.count(name) > 1:
                raise ProtocolError(
                    f"{type(self).__name__} has two handlers for {name!r}", code="FK-CLIENT-TWICE"
                )

    def _table(self, values: ArrayLike, dimensions: int, rows: int = -1) -> NDArray[np.float64]:
        try:
            table = np.asarray(values, np.float64)
        except (TypeError, ValueError):  # its text quotes a cell
            raise TableError(
                "the table holds values that are not numbers",
                party=self.name,
                code="FK-COLUMN-NUMBERS",
            ) from None
        if table.ndim != dimensions or (rows >= 0 and len(table) != rows):
            raise TableError(
                f"an array of shape {table.shape} does not fit",
                party=self.name,
                code="FK-SHAPE-DIFFERS",
            )
        if np.isinf(table).any() or not (self.raw or np.isfinite(table).all()):
            raise TableError(
                "infinite values" if self.raw else "NaN or infinite values",
                party=self.name,
                code="FK-VALUES-FINITE",
            )
        return table


def flatten(
    terms: Mapping[str, ArrayLike], sizes: Mapping[str, int], name: str
) -> NDArray[np.float64]:
    """Return the terms of a sum as one vector, key after key.

    Raises
    ------
    ProtocolError
        Keys or sizes are not those of the sum.
    """
    found: object = type(terms).__name__
    if isinstance(terms, Mapping):
        found = {key: int(np.size(value)) for key, value in terms.items()}
    if found != dict(sizes):
        raise ProtocolError(
            f"the handler of {name!r} returned {found}, what is summed is {dict(sizes)}",
            code="FK-CLIENT-REPLY",
        )
    return np.concatenate([np.asarray(terms[key], np.float64).ravel() for key in sizes])
