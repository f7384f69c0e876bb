"""The client of Secure Gram and FedCFK: users' ratings, or features of all instances."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import ProtocolError, TableError
from fedkern_flwr.gram import matrix, recommenders
from fedkern_flwr.gram import messages as wire
from fedkern_flwr.gram.messages import RANKING, check_values
from fedkern_flwr.gram.recommenders import Recommender
from fedkern_flwr.guard import refusal
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.node.client import Client, answers
from fedkern_flwr.node.state import SessionState
from fedkern_flwr.node.sums import ClientSums
from fedkern_flwr.secure_sum.membership import Cohort
from fedkern_flwr.secure_sum.party import PartyState
from fedkern_flwr.tables import take_frame
from fedkern_flwr.wire import DescribeReply, DescribeRequest, columns_digest
from fedkern_flwr.wire.message import Section
from fedkern_flwr.wire.sums import Order, bind

if TYPE_CHECKING:
    from scipy.sparse import csr_array, sparray

Rows: TypeAlias = "NDArray[Any] | csr_array"
Items = NDArray[np.intp]


@dataclass
class Released:
    """State of a release, in the node's state and, with a ``state_dir``, on disk.

    Attributes
    ----------
    opened : dict
        Name -> [cohort, number] of the sums that it has helped to open.
    survivors : list of int
        Nodes in the item counts.
    counted : dict
        "cohort/number" of a sum of matrices -> the nodes to be in it, a bit each.
    asked : dict
        Name -> digest of the request, for sums that open once all contribute.
    """

    opened: dict[str, list[int]] = field(default_factory=dict)
    survivors: list[int] = field(default_factory=list)
    counted: dict[str, str] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)

    @classmethod
    def unpack(cls, data: bytes) -> Released:
        return cls(**json.loads(data)) if data else cls()

    def pack(self) -> bytes:
        return json.dumps(vars(self)).encode()

    def twin(self) -> Released:
        return Released(**{name: copy(one) for name, one in vars(self).items()})

    def check_survivors(self, name: str, place: tuple[int, int], state: PartyState) -> None:
        """Refuse to open a matrix that differs from the counts by one node."""
        cohort = state.cohorts[place[0]]
        alive = cohort.unpack(state.open[place].alive)
        if name == wire.COUNTS_SUM:
            if self.counted:
                raise disagreement("item counts come before the matrix", code="FK-MESSAGE-ORDER")
            self.survivors = sorted(alive)
        elif name == wire.GRAM_SUM:
            counted = cohort.unpack(bytes.fromhex(self.counted["{}/{}".format(*place)]))
            summed = alive.intersection(counted)
            if len(summed) < cohort.threshold:
                raise disagreement(
                    f"{len(summed)} nodes count, at least {cohort.threshold} must",
                    code="FK-RELEASE-NODES",
                )
            self.check_summed(summed)

    def check_summed(self, summed: Collection[int]) -> None:
        """Refuse a matrix with one node less than the item counts, or with others."""
        if len(set(self.survivors).difference(summed)) == 1:
            raise disagreement(
                "a single node dropped out after the item counts", code="FK-RELEASE-ONE"
            )
        counted = wire.COUNTS_SUM in self.opened or wire.COUNTS_SUM in self.asked
        if counted and not set(summed) <= set(self.survivors):
            raise disagreement(
                "nodes count that are not in the item counts", code="FK-RELEASE-NODES"
            )


class GramClient(Client):
    """A node that holds rows of a matrix; all nodes share its columns.

    A row is a user's ratings of all items, or a feature of all instances: for columns split over
    parties, pass the transpose of the party's part.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context.
    x : array or sparse array, shape (rows, items)
        Whole numbers from 0 (0: no rating), or real features; see the strategy's ``encoding``.
        Shape (items,) is a single row.
    x_test : array or sparse array, shape (rows, items), optional
        For FedCFK: non-zero for held-out items that a user likes, to evaluate recommendations.
    bound : float, optional
        Public bound on the absolute value of a cell, equal to that of the run; default 1.
    x_new : array, shape (rows, new items), optional
        The same rows for new items, see :meth:`~fedkern_flwr.strategies.SecureGram.cross`.
    items : sequence of str, optional
        Public names of the items, the same at all nodes, in the same order.
    users : sequence, optional
        Names of the rows; never sent.
    recommendations : path, optional
        CSV file of user, rank, item and score that this node writes.
    top : int (default: 100)
        Recommendations per user.
    **common
        Options of :class:`~fedkern_flwr.node.client.Client`.

    Raises
    ------
    TableError
        Wrong shapes, duplicate users or items.

    Notes
    -----
    Memory: the Gram matrix, m (m + 1) / 2 numbers of up to 8 bytes, and 64 MB; for EASE 24 m^2.
    """

    freezes_apart = True
    state_class = Released
    labels_of_row = 0
    #: A node may hold a single user, hidden by the other nodes' users.
    records: ClassVar[bool] = False

    def __init__(
        self,
        context: Context,
        x: ArrayLike | sparray,
        *,
        x_test: ArrayLike | sparray | None = None,
        x_new: ArrayLike | None = None,
        bound: float | None = None,
        items: Sequence[str] | None = None,
        users: Sequence[Any] | None = None,
        recommendations: str | Path | None = None,
        top: int = 100,
        **common: Any,
    ) -> None:
        super().__init__(context, **common)
        self.bound = bound
        x, items = take_frame(x, items, self.name)
        x_test, items = take_frame(x_test, items, self.name)
        self.x = read_rows(x, "x", self.name)
        self.x_test = None if x_test is None else read_rows(x_test, "x_test", self.name)
        self.x_new = self.x[:, :0] if x_new is None else read_rows(x_new, "x_new", self.name)
        self.items = None if items is None else tuple(map(str, items))
        self.users = None if users is None else tuple(users)
        self.recommendations = None if recommendations is None else Path(recommendations)
        self.top = top
        rows, columns = self.x.shape
        if self.x_test is not None and self.x_test.shape != (rows, columns):
            raise self._bad(
                f"x_test has shape {self.x_test.shape}, x {self.x.shape}", code="FK-SHAPE-DIFFERS"
            )
        if self.x_new.shape[0] != rows:
            raise self._bad(
                f"x_new has {self.x_new.shape[0]} rows, x {rows}", code="FK-SHAPE-DIFFERS"
            )
        for what, names, size in (("items", self.items, columns), ("users", self.users, rows)):
            if names is not None and (len(names) != size or len(set(names)) < size):
                found = f"{len(set(names))} different names of {size} {what}"
                raise self._bad(found, f"name each of the {what} once", code="FK-COLUMN-NAMES")

    # -- phases

    def own_rows(self) -> OwnRows:
        return OwnRows([(self.x,)], self.users, self.x.shape[0])

    def describe(self, request: DescribeRequest) -> DescribeReply:
        return DescribeReply(
            rows=self.x.shape[0],
            features=self.x.shape[1],
            test_rows=self.x_new.shape[1],
            columns="" if self.items is None else columns_digest(self.items),
        )

    def answer(self, request: Any, method: Any) -> Any:
        if not isinstance(request, wire.PredictRequest):
            self._check_order(request)
        return method(request)

    @answers(wire.CountsRequest)
    def sum_counts(self, request: wire.CountsRequest) -> wire.CountsReply:
        if self.kept.counted or wire.GRAM_SUM in self.kept.asked:
            raise disagreement("item counts come before the matrix", code="FK-MESSAGE-ORDER")
        if not request.self_masks and wire.COUNTS_SUM not in self.kept.asked:
            self.kept.survivors = sorted(self._cohort.members)
        self._ask_once(request)
        self._contribute(matrix.local_support(self._encode(self.x, request)))
        return wire.CountsReply()

    @answers(wire.MatrixRequest)
    def sum_matrix(self, request: wire.MatrixRequest) -> wire.MatrixReply:
        order, kept, cohort = self._order, self.kept, self._cohort
        counted = cohort.unpack(request.counted)
        if len(counted) < cohort.threshold:
            raise disagreement(
                f"{len(counted)} nodes count, at least {cohort.threshold} must",
                code="FK-RELEASE-NODES",
            )
        if not request.self_masks:
            if len(counted) < len(cohort.members):
                raise disagreement(
                    "a sum that does without opening is of all nodes", code="FK-RELEASE-NODES"
                )
            kept.check_summed(counted)
        self._ask_once(request)
        if self.partition in counted:
            values = self._encode_kept(request)
            vector: NDArray[Any] = matrix.local_gram(values, order.bits)
            if request.supports:
                vector = np.concatenate([vector, matrix.local_support(values).astype(vector.dtype)])
            self._contribute(vector, overwrite=True)
        elif wire.COUNTS_SUM in kept.opened:
            raise disagreement(
                "its rows are left out, and they were counted", code="FK-RELEASE-NODES"
            )
        else:
            self.secure_sums.contribute_nothing(order.name)
        if request.self_masks:
            kept.counted[f"{order.cohort}/{order.index}"] = request.counted.hex()
        return wire.MatrixReply()

    @answers(wire.CrossRequest)
    def sum_cross(self, request: wire.CrossRequest) -> wire.CrossReply:
        old, new = self._encode_kept(request), self._encode(self.x_new, request)
        squares = np.asarray((new * new).sum(axis=0)).ravel()
        self._contribute(np.concatenate([matrix.cross_gram(new, old).ravel(), squares]))
        return wire.CrossReply()

    @answers(wire.RecommendRequest)
    def recommend(self, request: wire.RecommendRequest) -> wire.RecommendReply:
        self._ask_once(request)
        name, users = self._order.name, np.arange(self.x.shape[0])
        ranks, steps = read_recommender(request, self.x.shape[1]), 0
        if request.tune:
            summed = self.partition in self._cohort.unpack(request.summed)
            fewest = max(recommenders.FEWEST_USERS, self.policy.min_evaluation_rows)
            own = (liked_items(self.x, row) for row in range(len(users)))
            ranks, steps = ranks.tuned(own, summed=summed, fewest=fewest)
            if sum(n >= fewest for n in self.secure_sums.rows(name)) < 2:
                steps = 0  # a mean over one node would reveal its choice
        totals = np.zeros(len(RANKING) + 2)
        totals[-1] = len(users) * steps / recommenders.MOST_STEPS
        for row, liked, scores in self._rank(ranks):
            if self.x_test is not None and len(liked):
                found = recommenders.rank_metrics(scores, liked_items(self.x_test, row), liked)
                if found is not None:
                    totals[:-1] += (*found, 1.0)
        self._contribute(self.figures("ranking", users, totals, total=name, users=True))
        return wire.RecommendReply()

    @answers(wire.PredictRequest)
    def predict(self, request: wire.PredictRequest) -> wire.PredictReply:
        ranked = self._rank(read_recommender(request, self.x.shape[1]))
        users = 0 if self.recommendations is None else sum(1 for _ in ranked)
        return wire.PredictReply(users=users)

    def _rank(self, ranks: Recommender) -> Iterator[tuple[int, Items, NDArray[np.float64]]]:
        """Yield each row, its liked items and all scores; then write the best."""
        path, missing, lines = self.recommendations, ranks.kernel.missing, list[tuple[Any, ...]]()
        for row in range(self.x.shape[0]):
            liked = liked_items(self.x, row)
            scores = ranks.scores(liked)
            yield row, liked, scores
            if path is not None:
                user, others = row if self.users is None else self.users[row], self.items
                lines += recommenders.best_items(
                    user, scores, np.union1d(liked, missing), self.top, others
                )
        if path is not None:
            recommenders.write_recommendations(path, lines)

    # -- what is released only once

    def _open_session(self, request: DescribeRequest) -> None:
        """Restore which sums this node has helped to open, whatever the server says."""
        super()._open_session(request)
        state = SessionState.load(self.context)
        path = self.state_path(request.session, ".released")
        if path is not None and path.is_file():
            state.payload, self.restored = path.read_bytes(), True
        self._keep(state, Released.unpack(state.payload))

    def _open_sums(self, session: str, sections: list[Section]) -> ClientSums | None:
        """Read the sections of a request; each sum of a release is opened once."""
        sums = super()._open_sums(session, sections)
        if sums is not None and sums.opened:
            state = SessionState.load(self.context)
            kept = Released.unpack(state.payload)
            for full, place in sums.opened.items():
                name = full.partition("#")[0]
                if kept.opened.setdefault(name, list(place)) != list(place):
                    raise disagreement(
                        f"a second {name} of the same rows in one release", code="FK-RELEASE-TWICE"
                    )
                kept.check_survivors(name, place, sums.party.state)
            self.note_answered(session, state.round + 1)
            self._keep(state, kept)
        return sums

    def _keep(self, state: SessionState, kept: Released) -> None:
        """Store the release in the node's state, and on disk before an answer is sent."""
        state.payload = kept.pack()
        path = self.state_path(state.session, ".released")
        if path is not None:
            write_atomically(path, state.payload, private=True)
        state.store(self.context)

    def close_round(
        self, state: SessionState, number: int, kept: Any, checkpoint_every: int
    ) -> None:
        """Store the request on disk before the answer is sent."""
        if self.kept.asked != state.opened(Released).asked:
            self._keep(state, self.kept)
        super().close_round(state, number, kept, checkpoint_every)

    def _check_order(self, request: wire.SumRequest | wire.RecommendRequest) -> None:
        """Refuse a sum other than the declared one, given what this node knows.

        Row counts are those that the cohort's nodes signed.
        """
        if request.what in (wire.COUNTS_SUM, wire.GRAM_SUM) and request.what in self.kept.opened:
            raise disagreement(
                f"the rows of this node are counted in this release already ({request.what})",
                "start a new run",
                code="FK-RELEASE-TWICE",
            )
        sums, name = self.secure_sums, bind(request.what, request)
        rows = sums.rows(name)
        facts = wire.GramFacts(len(rows), max(rows), self.x.shape[1])
        parties = facts.parties
        if isinstance(request, wire.SumRequest):
            parties = request.parties
            check_values(request.encoding, request.bound, request.fraction_bits)
            self.check_declared("bound", self.bound, 1.0, request.bound)
        if (parties, request.rows) != (facts.parties, facts.rows):
            raise refusal("the encoding of a sum", code="FK-ORDER-TERMS")
        if isinstance(request, (wire.MatrixRequest, wire.CrossRequest)):
            check_items(request.items, facts.items)
        new_items = self.x_new.shape[1]
        if isinstance(request, wire.CrossRequest) and not 0 < new_items == request.new_items:
            raise self._bad(
                f"{request.new_items} new items are asked for, this node has {new_items}",
                "give all nodes the same new items as x_new",
                code="FK-ITEMS-NEW",
            )
        sums.check_all(replace(spec, name=name) for spec in request.sum_specs(facts))

    @property
    def _order(self) -> Order:
        return next(iter(self.secure_sums.orders.values()))

    @property
    def _cohort(self) -> Cohort:
        return self.secure_sums.party.state.cohorts[self._order.cohort]

    def _contribute(self, values: NDArray[Any], *, overwrite: bool = False) -> None:
        self.secure_sums.contribute(self._order.name, values, overwrite=overwrite)

    def _ask_once(self, request: wire.SumRequest | wire.RecommendRequest) -> None:
        """Refuse a second sum of the same rows in one release.

        Sums without self masks are open once all nodes have contributed: the same request may be
        repeated to the same nodes, but no other one.

        Raises
        ------
        ProtocolError
        """
        kept, what, masks = self.kept, request.what, request.self_masks
        if masks and what not in kept.asked:
            return
        digest = bind(f"{sorted(self._cohort.members)}", replace(request, round=0))
        if masks or what in kept.opened or kept.asked.setdefault(what, digest) != digest:
            raise disagreement(
                f"a second {what} of the same rows in one release", code="FK-RELEASE-TWICE"
            )

    def _encode_kept(self, request: wire.MatrixRequest | wire.CrossRequest) -> Rows:
        """Return the integers of the kept items.

        All items are encoded, so that a refusal does not depend on a single one.
        """
        items = request.items
        values = self._encode(self.x, request)
        part: Rows = values if len(items) == self.x.shape[1] else values[:, items]
        return part

    def _encode(self, x: Rows, request: wire.SumRequest) -> Rows:
        try:
            if request.encoding == "counts":
                counts: Rows = matrix.count_values(x, request.bound)
                return counts
            return matrix.quantise(x, request.fraction_bits, request.bound)
        except TableError as error:
            raise self.unfit(error) from None

    def _bad(
        self, problem: str, remedy: str = "pass matrices that fit", *, code: str
    ) -> TableError:
        return TableError(problem, remedy=remedy, party=self.name, code=code)


def disagreement(problem: str, remedy: str | None = None, *, code: str) -> ProtocolError:
    """Return the error for a request that this release would not send."""
    remedy = remedy or "run the same release of fedkern-flwr on both sides"
    return ProtocolError(problem, remedy=remedy, code=code)


# -- rows: read, encoded for a sum, and the items of each


def read_rows(values: Any, what: str, party: str) -> Rows:
    """Return a matrix with a row per user or feature; TableError if it is none."""
    if matrix.is_sparse(values):
        from scipy.sparse import csr_array

        rows: Rows = csr_array(values)
        if rows.dtype.kind in "biu":  # duplicate entries are summed
            rows = rows.astype(np.int64)
    else:
        rows = np.atleast_2d(np.asarray(values))
        if rows.dtype.kind not in "fiub":
            problem = f"{what} has dtype {rows.dtype}"
            raise TableError(problem, remedy="pass numbers", party=party, code="FK-COLUMN-NUMBERS")
    if rows.ndim != 2 or not all(rows.shape):
        problem = f"{what} has shape {np.shape(values)}"
        raise TableError(problem, remedy="pass rows of items", party=party, code="FK-SHAPE-DIFFERS")
    return rows


def check_items(items: NDArray[Any], columns: int) -> NDArray[Any]:
    """Return a message's items; ProtocolError if they are missing, unsorted or unknown."""
    if not len(items) or items[0] < 0 or (np.diff(items) < 1).any():
        raise disagreement("its items are not in order", code="FK-MESSAGE-FIELD")
    if items[-1] >= columns:
        raise disagreement(f"it names items that are not among {columns}", code="FK-MESSAGE-FIELD")
    return items


def liked_items(x: Rows, row: int) -> NDArray[np.intp]:
    """Return the non-zero items of a row, ascending."""
    if isinstance(x, np.ndarray):
        return np.flatnonzero(x[row])
    part = slice(x.indptr[row], x.indptr[row + 1])
    return np.sort(x.indices[part][x.data[part] != 0]).astype(np.intp)


# -- ranks of all items for each user


def read_recommender(request: wire.RecommendRequest, columns: int) -> Recommender:
    """Return the recommender of a message.

    Raises
    ------
    ProtocolError
        Wrong size of the kernel, unknown learner, or unusual start of lambda.
    """
    items = check_items(request.items, columns)
    if request.products.size != matrix.packed_size(len(items)):
        raise disagreement("its kernel has the wrong size", code="FK-MESSAGE-SHAPE")
    if request.learner not in recommenders.LEARNERS or request.neighbours < 1:
        raise disagreement("it names a learner that is not there", code="FK-MESSAGE-FIELD")
    start = recommenders.REGULARIZATION[request.learner] if request.tune else request.regularization
    if not 0.0 < request.regularization == start:
        raise disagreement("it sends a lambda that none would send", code="FK-MESSAGE-FIELD")
    return request.recommender(columns)
