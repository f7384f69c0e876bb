"""The client of Secure Gram and FedCFK: what it refuses, releases once, tells and writes."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from scipy import sparse

from fedkern_flwr.clients import GramClient
from fedkern_flwr.errors import (
    FedKernError,
    ProtocolError,
    RefusedError,
    SumError,
    TableError,
)
from fedkern_flwr.gram import messages as wire
from fedkern_flwr.gram.matrix import packed_size, unpack
from fedkern_flwr.gram.messages import counts_encoding, matrix_encoding, ranking_encoding
from fedkern_flwr.guard import RunRecord
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.node.sums import load_state, store_state
from fedkern_flwr.secure_sum import Encoding, RunningSum, SecureSum
from fedkern_flwr.wire import DescribeReply, DescribeRequest, PhaseMessage, columns_digest
from fedkern_flwr.wire.sections import Section, attach, detach
from fedkern_flwr.wire.sums import FinishRequest, Unmask, UnmaskRequest, bind

SESSION = "5e" * 8
ITEMS = 4
#: Rows of four nodes.
X = [
    np.array([[1, 0, 1, 1], [0, 0, 1, 0]]),
    np.array([[1, 1, 0, 1]]),
    np.array([[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1]]),
    np.array([[1, 0, 1, 1]]),
]
Table = dict[str, Any]


def context(partition: int = 0, partitions: int = len(X)) -> Context:
    config: dict[str, Any] = {
        "simulation": True,
        "partition-id": partition,
        "num-partitions": partitions,
    }
    return Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})


def make(place: Context | None = None, x: Any = X[0], **more: Any) -> GramClient:
    return GramClient(place or context(), x, **more)


def send(
    client: GramClient, request: PhaseMessage, sections: Sequence[PhaseMessage] = ()
) -> tuple[list[Any], dict[str, Any], list[Section]]:
    """Pass a request to a client as a server would; return what it answers."""
    more, extra = attach(sections)
    arrays, _, scalars = client.fit([*request.arrays(), *more], {**request.scalars(), **extra})
    return detach(arrays, scalars, party="")


def opening(resume_round: int = 0) -> DescribeRequest:
    own: Table = {"session": SESSION, "method": "secure-gram", "secure": True}
    return DescribeRequest(resume_round=resume_round, **own)


@dataclass
class Server:
    """A server that does what it is told, not what the strategy would do."""

    cohorts: list[list[int]] | None = None
    common: Table = field(default_factory=dict)
    tables: list[Any] = field(default_factory=lambda: list(X))
    state: Path | None = None
    resume_round: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        self.contexts = [context(k, len(self.tables)) for k in range(len(self.tables))]
        found = []
        for k in range(len(self.tables)):
            arrays, scalars, _ = send(self.client(k), opening(self.resume_round))
            found.append(DescribeReply.unpack(arrays, scalars, party=""))
        self.described = found
        keys = {f.partition: (f.public_key, f.signature) for f in found}
        counts = {f.partition: (f.rows, f.test_rows) for f in found}
        self.sums = SecureSum(SESSION, keys, cohorts=self.cohorts, counts=counts)

    def client(self, k: int) -> GramClient:
        """Return the client of a message: a fresh one, as in Flower."""
        more = {} if self.state is None else {"state_dir": self.state / str(k)}
        return GramClient(self.contexts[k], self.tables[k], **more, **self.common)

    def ask(
        self, k: int, request: PhaseMessage, sections: Sequence[PhaseMessage] = ()
    ) -> list[Section]:
        _, _, answers = send(self.client(k), request, sections)
        self.sums.take(k, answers)
        return answers

    def order(
        self,
        name: str,
        length: int,
        encoding: Encoding,
        cohort: int = 0,
        request: PhaseMessage | None = None,
        self_masks: bool = True,
    ) -> RunningSum:
        """Order a sum, bound to a request where it should be."""
        self_masks = self_masks and name != wire.CROSS_SUM
        if request is not None and getattr(request, "request", "full") == "full":
            name = bind(name, request)
        return self.sums.order(name, length, encoding, cohort=cohort, self_masks=self_masks)

    def request(
        self, cohort: int = 0, counted: Sequence[int] | None = None, **more: Any
    ) -> wire.MatrixRequest:
        """Return the next request for a matrix, in which some nodes count, by default all."""
        self.step += 1
        members = self.sums.membership.cohorts[cohort]
        bits = members.pack(members.members if counted is None else counted)
        fields: Table = {"round": self.step, "parties": len(members.members), "counted": bits}
        return matrix(**{**fields, **more})

    def matrices(
        self,
        who: Sequence[int] = range(len(X)),
        cohort: int = 0,
        counted: Sequence[int] | None = None,
        **more: Any,
    ) -> RunningSum:
        """Let nodes contribute to a sum of matrices."""
        request = self.request(cohort, counted, **more)
        parties = len(self.sums.membership.cohorts[cohort].members)
        length, ring = packed_size(len(request.items)), matrix_encoding(parties, 3, 1.0, 0)
        running = self.order(wire.GRAM_SUM, length, ring, cohort, request)
        for k in who:
            self.ask(k, request, self.sums.sections(k, [running]))
        return running

    def count(self, who: Sequence[int] = range(len(X)), cohort: int = 0) -> RunningSum:
        """Let nodes contribute to a sum of item counts."""
        self.step += 1
        parties = len(self.sums.membership.cohorts[cohort].members)
        request = counts(round=self.step, parties=parties)
        ring = counts_encoding(parties, 3)
        running = self.order(wire.COUNTS_SUM, ITEMS, ring, cohort, request)
        for k in who:
            self.ask(k, request, self.sums.sections(k, [running]))
        return running

    def openings(self, sums: Sequence[RunningSum]) -> dict[int, list[PhaseMessage]]:
        return self.sums.unmask_sections(sums)

    def unmask(self, sections: dict[int, list[PhaseMessage]]) -> None:
        self.step += 1
        for k, parts in sections.items():
            self.ask(k, UnmaskRequest(session=SESSION, round=self.step), parts)

    def release(self, who: Sequence[int] = range(len(X)), **more: Any) -> np.ndarray:
        running = self.matrices(who, **more)
        self.unmask(self.openings([running]))
        return unpack(self.sums.total(running), ITEMS)


def fields(**more: Any) -> Table:
    found: Table = {"session": SESSION, "round": 1, "encoding": "counts", "bound": 1.0}
    return {**found, "fraction_bits": 0, "rows": 3, "parties": len(X), **more}


def counts(**more: Any) -> wire.CountsRequest:
    return wire.CountsRequest(**{**fields(), **more})


def matrix(**more: Any) -> wire.MatrixRequest:
    own: Table = {"counted": bytes([0b1111])}
    return wire.MatrixRequest(
        **{"supports": False, **fields(), **own, "items": np.arange(ITEMS, dtype="i4"), **more}
    )


def cross(**more: Any) -> wire.CrossRequest:
    own: Table = {"new_items": 1, "items": np.arange(ITEMS, dtype=np.int32)}
    return wire.CrossRequest(**{**fields(), **own, **more})


def recommend(**more: Any) -> wire.RecommendRequest:
    gram = np.concatenate(X).T @ np.concatenate(X)
    own: Table = {
        "session": SESSION,
        "round": 1,
        "kernel": "linear",
        "degree": 2,
        "gamma": 1.0,
        "coef0": 1.0,
        "users": 7,
        "learner": "cf-komd",
        "regularization": 0.1,
        "tune": False,
        "summed": b"",
        "neighbours": 100,
        "subtract_mean": True,
        "rows": 3,
        "items": np.arange(ITEMS, dtype=np.int32),
        "coefficients": np.zeros(0),
        "mean": gram.mean(axis=1),
        "squares": gram.diagonal().astype(np.uint16),
        "products": gram[np.triu_indices(ITEMS)].astype(np.uint16),
    }
    return wire.RecommendRequest(**{**own, **more})


def pooled(who: Sequence[int] = range(len(X))) -> np.ndarray:
    rows = np.concatenate([X[k] for k in who])
    return rows.T @ rows


# -- tables


BAD_TABLES: dict[str, tuple[Table, str]] = {
    "text": ({"x": [["secret", "77"]]}, "x has dtype <U6; pass numbers"),
    "complex numbers": ({"x": np.zeros((1, 2), complex)}, "x has dtype complex128; pass numbers"),
    "three dimensions": ({"x": np.zeros((1, 2, 3))}, r"x has shape \(1, 2, 3\); pass rows of item"),
    "no rows": ({"x": np.zeros((0, 4))}, r"x has shape \(0, 4\); pass rows of items"),
    "no items": ({"x": np.zeros((2, 0))}, r"x has shape \(2, 0\); pass rows of items"),
    "no rows, sparse": ({"x": sparse.csr_array((0, 4))}, r"x has shape \(0, 4\); pass rows of it"),
    "held out: other items": (
        {"x_test": np.zeros((2, 3))},
        r"x_test has shape \(2, 3\), x \(2, 4\); pass matrices that fit",
    ),
    "held out: other rows": (
        {"x_test": sparse.csr_array((3, 4))},
        r"x_test has shape \(3, 4\), x \(2, 4\)",
    ),
    "new items: other rows": ({"x_new": np.zeros((3, 1))}, "x_new has 3 rows, x 2"),
    "a user twice": (
        {"users": ["secret", "secret"]},
        "1 different names of 2 users; name each of the users once",
    ),
    "too few users": ({"users": ["secret"]}, "1 different names of 2 users"),
    "an item twice": ({"items": list("abca")}, "3 different names of 4 items; name each of the it"),
    "too many items": ({"items": list("abcde")}, "5 different names of 4 items"),
    "items that are the same as text": ({"items": [1, "1", 2, 3]}, "3 different names of 4 items"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_tables_that_cannot_be_used_are_refused_in_one_line(name: str) -> None:
    change, text = BAD_TABLES[name]
    with pytest.raises(TableError, match=f"^partition 0: {text}") as caught:
        make(**change)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_node_tells_sizes_and_a_digest() -> None:
    client = make(items=list("abcd"), users=["u", "v"], x_new=np.zeros((2, 3)))
    arrays, scalars, _ = send(client, opening())
    found = DescribeReply.unpack(arrays, scalars, party="")
    assert (found.rows, found.features, found.test_rows) == (2, 4, 3)
    assert found.columns == columns_digest("abcd")
    assert len(found.public_key) == 32
    assert not arrays
    assert "u" not in scalars.values()
    single = make(x=[1, 0, 1])
    found = single.describe(opening())
    assert (found.rows, found.features, found.test_rows, found.columns) == (1, 3, 0, "")


# -- values


RIGHT_COUNTS, RIGHT_MATRIX = counts_encoding(4, 3), matrix_encoding(4, 3, 1.0, 0)


BAD_VALUES: dict[str, tuple[float, str]] = {
    "NaN": (np.nan, "features hold NaN or infinite values; clean the data"),
    "infinite": (np.inf, "features hold NaN or infinite values"),
    "negative": (-1.0, 'features are not whole numbers of at least 0; use encoding "fixed-point"'),
    "not whole": (0.25, "features are not whole numbers of at least 0; use encoding"),
    "beyond the bound": (77.0, "features exceed their declared bound of 1; declare a larger bou"),
}
BAD_REALS = ("NaN", "infinite", "beyond the bound")


def remembered(context: Context) -> list[Any]:
    """Return what a node remembers, but for how a sum may be repeated."""
    state = load_state(context)
    assert state is not None
    store_state(context, state)
    session, record = SessionState.load(context), RunRecord.load(context, state.session)
    return [replace(state, fixed={}).pack(), session, record]


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array, sparse.coo_array])
@pytest.mark.parametrize("name", BAD_VALUES)
def test_values_that_do_not_fit_never_reach_a_mask(name: str, form: Any) -> None:
    value, text = BAD_VALUES[name]
    bad = X[0].astype(float)
    bad[1, 2] = value
    real: Table = {"encoding": "fixed-point", "fraction_bits": 10}
    ways: list[tuple[PhaseMessage, int, Encoding, str]] = [
        (counts(), ITEMS, RIGHT_COUNTS, text),
        (matrix(), packed_size(ITEMS), RIGHT_MATRIX, text),
        (matrix(**real), packed_size(ITEMS), matrix_encoding(4, 3, 1.0, 10), "features "),
    ]
    for request, length, encoding, refused in ways[: 2 + (name in BAD_REALS)]:
        server = Server(tables=[form(bad), *X[1:]])
        sum_name = wire.COUNTS_SUM if length == ITEMS else wire.GRAM_SUM
        running = server.order(sum_name, length, encoding, request=request)
        before = remembered(server.contexts[0])
        with pytest.raises(TableError, match=f"TableError: partition 0: {refused}") as caught:
            send(server.client(0), request, server.sums.sections(0, [running]))
        assert "77" not in str(caught.value)
        assert "\n" not in str(caught.value)
        assert remembered(server.contexts[0]) == before
        send(server.client(1), request, server.sums.sections(1, [running]))


def test_a_refusal_does_not_tell_of_a_single_item() -> None:
    """A server that asks for one item after the other would read the row off the refusals."""
    odd = X[0].copy()
    odd[0, 3] = 1000
    texts = set()
    for item in range(ITEMS):
        server = Server(tables=[odd, *X[1:]])
        with pytest.raises(TableError) as caught:
            server.matrices(who=[0], items=np.array([item], np.int32))
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_counts_come_before_the_matrix_and_of_the_same_nodes() -> None:
    """Else their difference to the diagonal is one node's row."""
    server = Server()
    server.release(who=[0, 1, 3])
    with pytest.raises(ProtocolError, match="item counts come before the matrix"):
        server.count()
    server = Server()
    running = server.count(who=[0, 1, 3])
    server.unmask(server.openings([running]))
    matrix_of_all = server.matrices()
    with pytest.raises(ProtocolError, match="nodes count that are not in the item counts"):
        server.unmask(server.openings([matrix_of_all]))


# -- requests that cannot be; orders of other sums are in test_forged_orders.py


def test_an_order_that_the_phase_has_no_vector_for_is_refused() -> None:
    server = Server()
    sums = [
        server.order(wire.COUNTS_SUM, ITEMS, RIGHT_COUNTS, request=counts()),
        server.order(wire.GRAM_SUM, packed_size(ITEMS), RIGHT_MATRIX, request=matrix()),
    ]
    with pytest.raises(SumError, match="this phase contributes nothing to gram matrix#"):
        server.ask(0, counts(), server.sums.sections(0, sums))
    server = Server()
    with pytest.raises(SumError, match=r"no sum 'gram matrix#[0-9a-f]+' was ordered"):
        server.ask(0, matrix(), server.sums.sections(0, []))


def test_a_sum_is_bound_to_all_that_was_asked() -> None:
    for request, name, length, ring in (
        (counts(), wire.COUNTS_SUM, ITEMS, RIGHT_COUNTS),
        (matrix(), wire.GRAM_SUM, packed_size(ITEMS), RIGHT_MATRIX),
        (cross(), wire.CROSS_SUM, ITEMS + 1, RIGHT_MATRIX),
    ):
        other = replace(request, round=2)
        for order in (other, None):
            server = Server()
            running = server.order(name, length, ring, request=order)
            client = GramClient(server.contexts[2], X[2], x_new=np.ones((3, 1), int))
            with pytest.raises(SumError, match=f"no sum '{name}#[0-9a-f]+' was ordered"):
                send(client, request, server.sums.sections(2, [running]))


@pytest.mark.parametrize(
    "change",
    [
        {"items": np.array([0, 1, 3], np.int32)},
        {"counted": bytes([0b0111])},
    ],
    ids=["items", "who counts"],
)
def test_nodes_that_are_told_different_things_make_no_sum(change: Table) -> None:
    """Each gets an order that fits its own request: their masks do not."""
    server = Server()
    common = server.request()
    size = packed_size(3) if "items" in change else packed_size(ITEMS)
    if "items" in change:
        common = replace(common, items=np.array([0, 1, 2], np.int32))
    running = server.order(wire.GRAM_SUM, size, RIGHT_MATRIX, request=common)
    honest = running.order
    other = replace(common, **change)

    def go() -> None:
        for k in range(4):
            request = other if k == 3 else common
            running.order = replace(honest, name=bind(wire.GRAM_SUM, request))
            server.ask(k, request, server.sums.sections(k, [running]))
        running.order = honest
        server.unmask(server.openings([running]))
        server.sums.total(running)

    with pytest.raises(SumError):
        go()


# -- what is released once


def test_the_server_that_keeps_to_the_rules_gets_the_exact_matrix() -> None:
    np.testing.assert_array_equal(Server().release(), pooled())
    np.testing.assert_array_equal(Server().release([0, 2, 3]), pooled([0, 2, 3]))


def test_a_sum_that_was_never_opened_may_be_repeated() -> None:
    server = Server()
    server.matrices([0, 1, 2])
    np.testing.assert_array_equal(server.release(), pooled())


COUNTED = "the rows of this node are counted in this release already"


def test_the_matrix_is_summed_once_in_a_release() -> None:
    server = Server(cohorts=[[0, 1, 2], [0, 1, 2, 3]])
    server.release([0, 1, 2])
    with pytest.raises(ProtocolError, match=COUNTED):
        server.matrices([0], cohort=0)
    with pytest.raises(SumError, match="gram matrix was summed before and would be repeated oth"):
        server.matrices([0], cohort=1)
    with pytest.raises(ProtocolError, match=COUNTED):  # of fewer items, too
        server.matrices([0], items=np.arange(2, dtype=np.int32))


def test_the_counts_are_summed_once_in_a_release() -> None:
    server = Server(cohorts=[[0, 1, 2], [0, 1, 2, 3]])
    running = server.count(range(3))
    server.unmask(server.openings([running]))
    found = server.sums.total(running)
    np.testing.assert_array_equal(found, np.count_nonzero(np.concatenate(X[:3]), axis=0))
    with pytest.raises(ProtocolError, match=rf"{COUNTED} \(item counts\); start a new run"):
        server.count([0], cohort=0)
    with pytest.raises(SumError, match="item counts was summed before and would be repeated oth"):
        server.count([0], cohort=1)


def two_openings(server: Server) -> list[dict[int, list[PhaseMessage]]]:
    """Sum the matrix over two sets that differ by node 3; open neither yet."""
    first = server.matrices([0, 1, 2])
    request = server.request()
    second = server.order(wire.GRAM_SUM, packed_size(ITEMS), RIGHT_MATRIX, request=request)
    second.order = replace(second.order, open_from=1)  # an honest server closes the first
    for k in range(4):
        server.ask(k, request, server.sums.sections(k, [second]))
    return [server.openings([first]), server.openings([second])]


SECOND = "a second gram matrix of the same rows in one release"


def test_two_sums_of_the_same_rows_are_not_both_opened() -> None:
    server = Server()
    first, second = two_openings(server)
    server.unmask(first)
    server.step += 1
    for k in range(3):
        with pytest.raises(ProtocolError, match=SECOND):
            server.ask(k, UnmaskRequest(session=SESSION, round=server.step), second[k])


def test_two_sums_of_the_same_rows_are_not_both_opened_by_one_message() -> None:
    """The difference of the two is the matrix of node 3."""
    server = Server()
    first, second = two_openings(server)
    request = UnmaskRequest(session=SESSION, round=9)
    for k in range(3):
        with pytest.raises(ProtocolError, match=SECOND):
            server.ask(k, request, [*first[k], *second[k]])


RIDES: dict[str, PhaseMessage] = {
    "predict": wire.PredictRequest(**{**vars(recommend()), "round": 9}),
    "finish": FinishRequest(session=SESSION, round=9),
}


@pytest.mark.parametrize("ride", RIDES)
def test_an_opening_that_rides_on_another_message_counts_as_one(ride: str) -> None:
    """Unmask sections may travel on any request: the rule must not hang on the phase."""
    server = Server()
    first, second = two_openings(server)
    server.unmask(first)
    with pytest.raises(ProtocolError, match=SECOND):
        server.ask(0, RIDES[ride], second[0])


def test_an_opening_that_rode_on_another_message_is_remembered() -> None:
    server = Server()
    first, second = two_openings(server)
    try:
        server.ask(0, RIDES["predict"], first[0])
    except ProtocolError:
        return  # openings travel alone: as good
    with pytest.raises(ProtocolError, match=SECOND):
        server.ask(0, UnmaskRequest(session=SESSION, round=10), second[0])


def test_the_same_opening_may_be_asked_for_again() -> None:
    """A reply that was lost is no second opening."""
    server = Server()
    running = server.matrices()
    asked = server.openings([running])
    request = UnmaskRequest(session=SESSION, round=5)
    one = send(server.client(0), request, asked[0])[2]
    two = send(server.client(0), request, asked[0])[2]
    assert [s.scalars for s in one] == [s.scalars for s in two]
    server.unmask(asked)
    np.testing.assert_array_equal(unpack(server.sums.total(running), ITEMS), pooled())


def test_a_second_set_of_survivors_is_refused() -> None:
    server = Server()
    running = server.matrices()
    asked = server.openings([running])
    server.unmask(asked)
    (section,) = asked[0]
    assert isinstance(section, Unmask)
    members = running.cohort
    other = replace(section, alive=members.pack([0, 1, 2]), dead=members.pack([3]))
    with pytest.raises(SumError, match="a second set of survivors for the same sum"):
        send(server.client(0), UnmaskRequest(session=SESSION, round=9), [other])


def test_what_is_released_once_needs_an_opening_that_is_noticed() -> None:
    """Without self masks a sum is open as soon as it is complete, and nobody notes it."""
    server = Server()
    for request, name, length, encoding in (
        (counts(), wire.COUNTS_SUM, ITEMS, RIGHT_COUNTS),
        (matrix(round=2), wire.GRAM_SUM, packed_size(ITEMS), RIGHT_MATRIX),
    ):
        running = server.order(name, length, encoding, request=request, self_masks=False)
        with pytest.raises(FedKernError):
            server.ask(0, request, server.sums.sections(0, [running]))


def test_a_node_that_was_counted_does_not_let_itself_be_left_out() -> None:
    """Else the diagonal of K and the counts would differ by its row."""
    server = Server()
    server.unmask(server.openings([server.count()]))
    with pytest.raises(ProtocolError, match="partition 3: its rows are left out, and they were co"):
        server.matrices([3], counted=[0, 1, 2])


def test_who_was_not_counted_adds_zeros() -> None:
    server = Server()
    server.unmask(server.openings([server.count([0, 1, 2])]))
    np.testing.assert_array_equal(server.release(counted=[0, 1, 2]), pooled([0, 1, 2]))


SINGLE = "a single node dropped out after the item counts"


def test_nodes_do_not_open_a_matrix_that_one_node_fewer_has() -> None:
    server = Server()
    server.unmask(server.openings([server.count()]))
    asked = server.openings([server.matrices([0, 1, 2])])
    for k in range(3):
        with pytest.raises(ProtocolError, match=SINGLE):
            server.ask(k, UnmaskRequest(session=SESSION, round=9), asked[k])


def deaf_node(server: Server) -> None:
    """Count the items of all nodes; node 3 never hears that its counts were opened."""
    asked = server.openings([server.count()])
    del asked[3]
    server.unmask(asked)


def test_zeros_do_not_hide_that_a_node_is_left_out() -> None:
    server = Server()
    deaf_node(server)
    asked = server.openings([server.matrices(counted=[0, 1, 2])])
    for k in range(3):
        with pytest.raises(ProtocolError, match=SINGLE):
            server.ask(k, UnmaskRequest(session=SESSION, round=9), asked[k])


def test_zeros_do_not_count_among_those_that_a_matrix_must_have() -> None:
    server = Server()
    asked = server.openings([server.matrices([0, 1, 3], counted=[0, 1, 2])])
    for k in (0, 1, 3):
        with pytest.raises(ProtocolError, match="2 nodes count, at least 3 must"):
            server.ask(k, UnmaskRequest(session=SESSION, round=9), asked[k])


def test_the_set_that_counts_is_that_of_the_sum_that_is_opened() -> None:
    """Another order in between, in which all count, must not stand in for it."""
    server = Server()
    deaf_node(server)
    first = server.matrices(counted=[0, 1, 2])
    request = server.request()
    second = server.order(wire.GRAM_SUM, packed_size(ITEMS), RIGHT_MATRIX, request=request)
    second.order = replace(second.order, open_from=1)  # an honest server closes the first
    for k in range(4):
        server.ask(k, request, server.sums.sections(k, [second]))
    asked = server.openings([first])
    for k in range(3):
        with pytest.raises(ProtocolError, match=SINGLE):
            server.ask(k, UnmaskRequest(session=SESSION, round=9), asked[k])


def test_cross_products_are_summed_over_one_set_of_nodes_only() -> None:
    server = Server(cohorts=[[0, 1, 2, 3], [0, 1, 2]])
    for k in range(4):
        server.tables[k] = X[k]
    running = server.order(
        wire.CROSS_SUM, ITEMS + 1, RIGHT_MATRIX, request=cross(), self_masks=False
    )
    news = [np.ones((len(x), 1), int) for x in X]

    def client(k: int) -> GramClient:
        return GramClient(server.contexts[k], X[k], x_new=news[k])

    for k in range(4):
        answers = send(client(k), cross(), server.sums.sections(k, [running]))[2]
        server.sums.take(k, answers)
    assert not server.openings([running])
    rows = np.concatenate(X)
    total = server.sums.total(running)
    np.testing.assert_array_equal(total[:ITEMS], rows.sum(axis=0))
    assert total[ITEMS] == len(rows)
    request = cross(round=2, parties=3)
    ring = matrix_encoding(3, 3, 1.0, 0)
    smaller = server.order(wire.CROSS_SUM, ITEMS + 1, ring, 1, request, self_masks=False)
    with pytest.raises(SumError, match="was summed before and would be repeated oth"):
        send(client(0), request, server.sums.sections(0, [smaller]))


def test_a_resumed_node_refuses_what_it_has_helped_to_open(tmp_path: Path) -> None:
    """Whatever numbers the server gives its exchanges from then on."""
    server = Server(state=tmp_path)
    server.release([0, 1, 2])
    for number in (1, 2, 3, 77):
        again = Server(state=tmp_path, resume_round=1)
        assert [found.answered for found in again.described] == [2, 2, 2, 0]
        assert all(found.restored for found in again.described)
        again.step = number - 1
        with pytest.raises(ProtocolError):
            again.matrices([0])


def test_a_node_that_cannot_know_what_it_has_opened_cannot_be_resumed(tmp_path: Path) -> None:
    """It has no folder, or one that has nothing of the run."""
    Server(state=tmp_path).release()
    for folder in (None, tmp_path / "elsewhere"):
        again = Server(state=folder, resume_round=1)
        assert not any(found.restored for found in again.described)


def test_notes_are_for_the_node_s_eyes(tmp_path: Path) -> None:
    Server(state=tmp_path).release()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)


def test_the_end_of_a_run_erases_the_secrets_of_its_sums() -> None:
    server = Server()
    server.release()
    for k in range(4):
        send(server.client(k), FinishRequest(session=SESSION, round=9))
        assert "fedkern-sums" not in server.contexts[k].state
        with pytest.raises(ProtocolError, match="counted in this release already"):
            send(server.client(k), matrix(round=10))


def test_the_state_of_a_node_holds_none_of_its_rows() -> None:
    odd = [np.array([[314159, 0, 271828, 1]]) for _ in X]
    server = Server(tables=odd)
    encoding = matrix_encoding(4, 1, 314159.0, 0)
    request = matrix(bound=314159.0, rows=1)
    running = server.order(wire.GRAM_SUM, packed_size(ITEMS), encoding, request=request)
    for k in range(4):
        server.ask(k, request, server.sums.sections(k, [running]))
    text = repr(server.contexts[0].state)
    assert "314159" not in text.replace("314159.0", "")  # but for the public bound
    assert str(314159**2) not in text.replace(str(encoding.bound), "")


# -- recommendations


def recommended(
    tmp_path: Path, request: wire.RecommendRequest | None = None, **more: Any
) -> list[dict[str, str]]:
    path = tmp_path / "out" / "recommendations.csv"
    server = Server()
    request = request or recommend()
    running = server.order(wire.RANKING_SUM, 7, ranking_encoding(3), request=request)
    client = GramClient(server.contexts[2], X[2], recommendations=path, **more)
    send(client, request, server.sums.sections(2, [running]))
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_recommendations_are_written_for_the_users_only(tmp_path: Path) -> None:
    rows = recommended(tmp_path, users=["a,1", 'b"', "c"], items=list("wxyz"))
    assert [(r["user"], r["rank"]) for r in rows] == [
        ("a,1", "1"), ("a,1", "2"), ("c", "1"), ("c", "2"), ("c", "3"),
    ]  # fmt: skip
    assert {r["item"] for r in rows if r["user"] == "a,1"} == {"w", "z"}  # it likes x and y
    for user in ("a,1", "c"):
        scores = [float(r["score"]) for r in rows if r["user"] == user]
        assert scores == sorted(scores, reverse=True)
    short = recommended(tmp_path, top=1)
    assert [(r["user"], r["rank"]) for r in short] == [("0", "1"), ("2", "1")]
    assert short[0]["item"] in "03"


def test_metrics_of_more_users_than_were_announced_do_not_fit() -> None:
    server = Server()
    request = recommend(rows=1)
    running = server.order(wire.RANKING_SUM, 7, ranking_encoding(1), request=request)
    client = GramClient(server.contexts[2], X[2], x_test=np.eye(3, 4, dtype=int)[[0, 0, 0]])
    with pytest.raises(RefusedError, match="partition 2: refused by the node: the bound of a sum"):
        send(client, request, server.sums.sections(2, [running]))
