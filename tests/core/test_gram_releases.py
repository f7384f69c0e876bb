"""What a node of Secure Gram lets itself be asked: each sum of its rows once, and of enough."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from item_rows import Rows, away
from refusals import refused
from scipy import sparse

from fedkern_flwr.clients import GramClient
from fedkern_flwr.gram import messages as wire
from fedkern_flwr.gram.matrix import packed_size, unpack
from fedkern_flwr.gram.messages import counts_encoding, matrix_encoding, ranking_encoding
from fedkern_flwr.secure_sum import RunningSum, SecureSum
from fedkern_flwr.strategies import FedCFK, SecureGram
from fedkern_flwr.wire import DescribeReply, DescribeRequest, PhaseMessage
from fedkern_flwr.wire.sections import Section, attach, detach
from fedkern_flwr.wire.sums import FinishRequest, UnmaskRequest, bind

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
    config: Table = {"simulation": True, "partition-id": partition, "num-partitions": partitions}
    return Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})


def send(
    client: GramClient, request: PhaseMessage, sections: Sequence[PhaseMessage] = ()
) -> tuple[list[Any], dict[str, Any], list[Section]]:
    """Pass a request to a client as a server would; return what it answers."""
    more, extra = attach(sections)
    arrays, _, scalars = client.fit([*request.arrays(), *more], {**request.scalars(), **extra})
    return detach(arrays, scalars, party="")


@dataclass
class Server:
    """A server that does what it is told, not what the strategy would do."""

    cohorts: list[list[int]] | None = None
    tables: list[Any] = field(default_factory=lambda: list(X))
    state: Path | None = None
    resume_round: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        self.contexts = [context(k, len(self.tables)) for k in range(len(self.tables))]
        own: Table = {"session": SESSION, "method": "secure-gram", "secure": True}
        opening = DescribeRequest(resume_round=self.resume_round, **own)
        answers = [send(self.client(k), opening)[:2] for k in range(len(self.tables))]
        self.described = found = [DescribeReply.unpack(*a, party="") for a in answers]
        keys = {f.partition: (f.public_key, f.signature) for f in found}
        counts = {f.partition: (f.rows, f.test_rows, f.bits) for f in found}
        self.sums = SecureSum(SESSION, keys, cohorts=self.cohorts, counts=counts)

    def client(self, k: int) -> GramClient:
        """Return the client of a message: a fresh one, as in Flower."""
        more = {} if self.state is None else {"state_dir": self.state / str(k)}
        return GramClient(self.contexts[k], self.tables[k], **more)

    def ask(
        self, k: int, request: PhaseMessage, sections: Sequence[PhaseMessage] = ()
    ) -> list[Section]:
        _, _, answers = send(self.client(k), request, sections)
        self.sums.take(k, answers)
        return answers

    def order(self, request: Any, cohort: int = 0) -> RunningSum:
        """Order the sum that a request is for, bound to it."""
        parties = len(self.sums.membership.cohorts[cohort].members)
        what, length, ring = {
            "gram-counts": (wire.COUNTS_SUM, ITEMS, counts_encoding(parties, 3)),
            "gram-matrix": (wire.GRAM_SUM, 0, matrix_encoding(parties, 3, 1.0, 0)),
            "gram-recommend": (wire.RANKING_SUM, 7, ranking_encoding(3)),
        }[request.phase]
        length = length or packed_size(len(request.items))
        return self.sums.order(bind(what, request), length, ring, cohort=cohort)

    def matrix(
        self, cohort: int = 0, counted: Sequence[int] | None = None, **more: Any
    ) -> wire.MatrixRequest:
        """Return the next request for a matrix, in which some nodes count, by default all."""
        self.step += 1
        members = self.sums.membership.cohorts[cohort]
        bits = members.pack(members.members if counted is None else counted)
        own: Table = {"counted": bits, "supports": False, "items": np.arange(ITEMS, dtype="i4")}
        own |= {"round": self.step, "parties": len(members.members), **more}
        return wire.MatrixRequest(**fields(**own))

    def run(self, request: Any, who: Sequence[int] = range(4), cohort: int = 0) -> RunningSum:
        """Let nodes contribute to a sum."""
        running = self.order(request, cohort)
        for k in who:
            self.ask(k, request, self.sums.sections(k, [running]))
        return running

    def matrices(self, who: Sequence[int] = range(4), cohort: int = 0, **more: Any) -> RunningSum:
        return self.run(self.matrix(cohort, **more), who, cohort)

    def matrix_again(self) -> RunningSum:
        """Sum the matrix of all nodes, as if the sum before it had been closed."""
        request = self.matrix()
        running = self.order(request)
        running.order = replace(running.order, open_from=1)
        for k in range(4):
            self.ask(k, request, self.sums.sections(k, [running]))
        return running

    def count(self, who: Sequence[int] = range(4), cohort: int = 0) -> RunningSum:
        self.step += 1
        parties = len(self.sums.membership.cohorts[cohort].members)
        request = wire.CountsRequest(**fields(round=self.step, parties=parties))
        return self.run(request, who, cohort)

    def openings(self, *sums: RunningSum) -> dict[int, list[PhaseMessage]]:
        return self.sums.unmask_sections(sums)

    def unmask(self, sections: dict[int, list[PhaseMessage]]) -> None:
        self.step += 1
        for k, parts in sections.items():
            self.ask(k, UnmaskRequest(session=SESSION, round=self.step), parts)

    def refuses(self, code: str, sections: dict[int, list[PhaseMessage]]) -> None:
        """No node opens it, by the rule of the method or by that of all methods."""
        self.step += 1
        for k, parts in sections.items():
            with refused(code, "FK-ORDER-AGAIN"):
                self.ask(k, UnmaskRequest(session=SESSION, round=self.step), parts)

    def release(self, who: Sequence[int] = range(4), **more: Any) -> np.ndarray:
        running = self.matrices(who, **more)
        self.unmask(self.openings(running))
        return unpack(self.sums.total(running), ITEMS)


def fields(**more: Any) -> Table:
    found: Table = {"session": SESSION, "round": 1, "encoding": "counts", "bound": 1.0}
    return {**found, "fraction_bits": 0, "rows": 3, "parties": len(X), **more}


def recommend(**more: Any) -> wire.RecommendRequest:
    gram = np.concatenate(X).T @ np.concatenate(X)
    own: Table = {"session": SESSION, "round": 1, "kernel": "linear", "degree": 2, "gamma": 1.0}
    own |= {"coef0": 1.0, "users": 7, "learner": "cf-komd", "regularization": 0.1, "tune": False}
    own |= {"summed": b"", "neighbours": 100, "subtract_mean": True, "rows": 3}
    own |= {"items": np.arange(ITEMS, dtype="i4"), "coefficients": np.zeros(0)}
    own |= {"mean": gram.mean(axis=1), "squares": gram.diagonal().astype(np.uint16)}
    products = gram[np.triu_indices(ITEMS)].astype(np.uint16)
    return wire.RecommendRequest(**{**own, "products": products, **more})


def pooled(who: Sequence[int] = range(len(X))) -> np.ndarray:
    rows = np.concatenate([X[k] for k in who])
    return rows.T @ rows


# -- tables


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"x": [["secret", "77"]]}, "FK-COLUMN-NUMBERS"),
        ({"x": np.zeros((1, 2), complex)}, "FK-COLUMN-NUMBERS"),
        *(({"x": np.zeros(shape)}, "FK-SHAPE-DIFFERS") for shape in ((1, 2, 3), (0, 4), (2, 0))),
        ({"x": sparse.csr_array((0, 4))}, "FK-SHAPE-DIFFERS"),
        ({"x_test": np.zeros((2, 3))}, "FK-SHAPE-DIFFERS"),
        ({"x_test": sparse.csr_array((3, 4))}, "FK-SHAPE-DIFFERS"),
        ({"x_new": np.zeros((3, 1))}, "FK-SHAPE-DIFFERS"),
        *(({"users": names}, "FK-COLUMN-NAMES") for names in (["secret"] * 2, ["secret"])),
        *(({"items": i}, "FK-COLUMN-NAMES") for i in ("abca", "abcde", [1, "1", 2, 3])),
    ],
)
def test_tables_that_cannot_be_used_are_refused_in_one_line(change: Table, code: str) -> None:
    with refused(code) as caught:
        GramClient(context(), **{"x": X[0], **change})
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_state_of_a_node_holds_none_of_its_rows() -> None:
    server = Server(tables=[np.array([[3, 0, 2, 1]]) * 104_729 for _ in X])
    request = server.matrix(bound=314187.0, rows=1)
    ring = matrix_encoding(4, 1, 314187.0, 0)
    running = server.sums.order(bind(wire.GRAM_SUM, request), packed_size(ITEMS), ring, cohort=0)
    for k in range(4):
        server.ask(k, request, server.sums.sections(k, [running]))
    text = repr(server.contexts[0].state)
    assert not any(str(part * 104_729) in text for part in (1, 2, 104_729, 4 * 104_729))


@pytest.mark.promise("gram-refusal-blind")
def test_a_refusal_does_not_tell_of_a_single_item() -> None:
    """A server that asks for one item after the other would read the row off the refusals."""
    odd, texts = X[0].copy(), set()
    odd[0, 3] = 1000
    for item in range(ITEMS):
        server = Server(tables=[odd, *X[1:]])
        with refused("FK-VALUES-BOUND") as caught:
            server.matrices([0], items=np.array([item], np.int32))
        texts.add(str(caught.value))
    assert len(texts) == 1


# -- what is summed is what was asked


def test_a_sum_is_bound_to_all_that_was_asked() -> None:
    server = Server()
    for request in (wire.CountsRequest(**fields()), server.matrix()):
        other = server.order(replace(request, round=9))
        with refused("FK-SUM-UNASKED"):
            server.ask(2, request, server.sums.sections(2, [other]))


# -- each sum of the rows once


def test_the_server_that_keeps_to_the_rules_gets_the_exact_matrix() -> None:
    np.testing.assert_array_equal(Server().release([0, 2, 3]), pooled([0, 2, 3]))
    server = Server()
    server.matrices([0, 1, 2])  # was never opened, and may be repeated
    np.testing.assert_array_equal(server.release(), pooled())
    server = Server()
    server.unmask(server.openings(server.count([0, 1, 2])))  # who was not counted adds zeros
    np.testing.assert_array_equal(server.release(counted=[0, 1, 2]), pooled([0, 1, 2]))


def test_matrix_and_counts_are_summed_once_in_a_release() -> None:
    server = Server(cohorts=[[0, 1, 2], [0, 1, 2, 3]])
    found = server.count(range(3))
    server.unmask(server.openings(found))
    np.testing.assert_array_equal(server.sums.total(found), (np.concatenate(X[:3]) != 0).sum(0))
    with refused("FK-RELEASE-TWICE"):
        server.count([0], cohort=0)
    with refused("FK-ORDER-PARTIES"):
        server.count([0], cohort=1)
    server = Server(cohorts=[[0, 1, 2], [0, 1, 2, 3]])
    server.release([0, 1, 2])
    for more in ({}, {"items": np.arange(2, dtype=np.int32)}):  # of fewer items, too
        with refused("FK-RELEASE-TWICE"):
            server.matrices([0], cohort=0, **more)
    with refused("FK-ORDER-PARTIES"):
        server.matrices([0], cohort=1)


def two_openings(server: Server) -> list[dict[int, list[PhaseMessage]]]:
    """Sum the matrix over two sets that differ by node 3; open neither yet."""
    both = server.matrices([0, 1, 2]), server.matrix_again()  # an honest server closes the first
    return [server.openings(one) for one in both]


def test_two_sums_of_the_same_rows_are_not_both_opened() -> None:
    """The difference of the two is the matrix of node 3; sections travel on any request."""
    server = Server()
    second, first = two_openings(server)  # the last that was ordered is opened
    server.unmask(first)
    server.refuses("FK-RELEASE-TWICE", {k: second[k] for k in range(3)})
    predict = wire.PredictRequest(**{**vars(recommend()), "round": 9})
    for ride in (predict, FinishRequest(session=SESSION, round=9)):
        with refused("FK-RELEASE-TWICE", "FK-ORDER-AGAIN"):
            server.ask(0, ride, second[0])
    server = Server()
    second, first = two_openings(server)  # the last that was ordered is opened
    server.refuses("FK-RELEASE-TWICE", {k: [*first[k], *second[k]] for k in range(3)})
    server.ask(0, predict, first[0])  # which is remembered
    server.refuses("FK-RELEASE-TWICE", {0: second[0]})


@pytest.mark.promise("gram-release-kept")
def test_a_resumed_node_refuses_what_it_has_helped_to_open(tmp_path: Path) -> None:
    """Whatever numbers the server gives its exchanges from then on."""
    Server(state=tmp_path).release([0, 1, 2])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    for number in (1, 2, 3, 77):
        again = Server(state=tmp_path, resume_round=1)
        assert [found.answered for found in again.described] == [2, 2, 2, 0]
        assert all(found.restored for found in again.described)
        again.step = number - 1
        with refused("FK-RELEASE-TWICE", "FK-MESSAGE-ORDER"):
            again.matrices([0])
    for folder in (None, tmp_path / "elsewhere"):  # it cannot know what it has opened
        again = Server(state=folder, resume_round=1)
        assert not any(found.restored for found in again.described)


def test_the_end_of_a_run_erases_the_secrets_of_its_sums_not_the_rule() -> None:
    server = Server()
    server.release()
    for k in range(4):
        send(server.client(k), FinishRequest(session=SESSION, round=9))
        assert "fedkern-sums" not in server.contexts[k].state
        with refused("FK-RELEASE-TWICE"):
            send(server.client(k), server.matrix(round=10))


# -- counts and matrix are of the same nodes, and of enough


@pytest.mark.promise("gram-same-nodes")
def test_counts_come_before_the_matrix_and_of_the_same_nodes() -> None:
    """Else their difference to the diagonal is one node's row."""
    server = Server()
    server.release(who=[0, 1, 3])
    with refused("FK-MESSAGE-ORDER"):
        server.count()
    server = Server()
    server.unmask(server.openings(server.count(who=[0, 1, 3])))
    asked = server.openings(server.matrices())
    server.refuses("FK-RELEASE-NODES", {k: asked[k] for k in (0, 1, 3)})
    server = Server()
    server.unmask(server.openings(server.count()))
    with refused("FK-RELEASE-NODES"):
        server.matrices([3], counted=[0, 1, 2])


@pytest.mark.promise("gram-same-nodes")
def test_nodes_do_not_open_a_matrix_that_one_node_fewer_has() -> None:
    server = Server()
    server.unmask(server.openings(server.count()))
    asked = server.openings(server.matrices([0, 1, 2]))
    server.refuses("FK-RELEASE-ONE", {k: asked[k] for k in range(3)})
    for between in (False, True):  # node 3 never hears that its counts were opened, and adds zeros
        server = Server()
        asked = server.openings(server.count())
        del asked[3]
        server.unmask(asked)
        first = server.matrices(counted=[0, 1, 2])
        if between:  # another order, in which all count, must not stand in for it
            server.matrix_again()
        asked = server.openings(first)
        server.refuses("FK-RELEASE-ONE", {k: asked[k] for k in range(3)})


@pytest.mark.promise("gram-same-nodes")
def test_zeros_do_not_count_among_those_that_a_matrix_must_have() -> None:
    server = Server()
    asked = server.openings(server.matrices([0, 1, 3], counted=[0, 1, 2]))
    server.refuses("FK-RELEASE-NODES", asked)


# -- sums that open by themselves when all contribute: servers that ask for more

OPEN: Table = {"min_support": 2, "allow_recovery": True, "drop_outs": False, "seed": 0}


def some(nodes: int) -> Rows:
    rng = np.random.default_rng(0)
    rows = Rows.of([(rng.random((4, 6)) < 0.6).astype(int) for _ in range(nodes)])
    for table in rows.tables:
        table["x_test"] = 1 - table["x"]
    return rows


def test_exchanges_are_as_many_as_are_told() -> None:
    for n, cohorts in ((2, 1), (3, 1), (4, 2), (6, 3)):
        nodes = some(n)
        strategy = nodes.release(**{**OPEN, "min_support": 0}, cohorts=cohorts)
        nodes.check(strategy, range(n))
        assert strategy.ledger_.by_phase == {"describe": 1, "gram-matrix": 1, "finish": 1}
    assert nodes.release(**OPEN).ledger_.exchanges == 4
    plain, masked = (nodes.release(kind=FedCFK, **{**OPEN, "drop_outs": m}) for m in (False, True))
    assert (plain.ledger_.exchanges, masked.ledger_.exchanges) == (5, 8)
    assert plain.metrics_ == masked.metrics_
    np.testing.assert_array_equal(plain.gram_, masked.gram_)
    for options, simulated, masks in (({}, 0, 0), ({}, 1, 1), ({"threshold": 2}, 0, 1)):
        strategy = SecureGram(**options)  # type: ignore[arg-type]
        strategy.simulated = bool(simulated)
        assert strategy.self_masks == bool(masks)


class Fewer(SecureGram):
    """Sums the matrix once more, of other items."""

    def sum_matrices(self) -> Any:
        yield from super().sum_matrices()
        self.items_ = self.items_[:-1]
        yield from super().sum_matrices()


class Counting(SecureGram):
    """Counts again after the matrix."""

    def sum_matrices(self) -> Any:
        yield from super().sum_matrices()
        yield from self.sum_counts()


class Leaving(SecureGram):
    """Leaves out a node."""

    def sum_matrices(self) -> Any:
        self._counted = [[0, 1, 2]]
        yield from super().sum_matrices()


class Elsewhere(SecureGram):
    """Sums the matrix over fewer nodes than it counted."""

    def more_cohorts(self) -> list[list[int]]:
        return [[0, 1, 2]]

    def sum_matrices(self) -> Any:
        self._members = [*self._members, [0, 1, 2]]
        self._counted = self._members
        length = packed_size(len(self.items_))
        request = self._matrix_request
        yield from self.sum_over(wire.GRAM_SUM, length, [1], request, wire.MatrixReply)


@pytest.mark.parametrize(
    ("server", "code"),
    [
        (Fewer, "FK-RELEASE-TWICE"),
        (Counting, "FK-MESSAGE-ORDER"),
        (Leaving, "FK-RELEASE-NODES"),
        (Elsewhere, "FK-RELEASE-ONE"),
    ],
)
def test_nodes_refuse_what_would_show_one_of_them(server: Any, code: str) -> None:
    with refused(code):
        some(4).release(kind=server, **OPEN)


class Again(FedCFK):
    """Has the recommendations judged again, by sums that open by themselves."""

    def rounds(self, parties: Any) -> Any:
        self.spent_ = set()
        del self.saved_meta_["judged"]
        return super().rounds(parties)


def test_nodes_refuse_a_second_judgement_of_other_nodes(tmp_path: Path) -> None:
    nodes, options = some(4), {**OPEN, "min_support": 0, "checkpoint": tmp_path / "run.npz"}
    nodes.folder, nodes.state = tmp_path, True
    late = away([2], "gram-recommend")
    first = nodes.release(late, kind=FedCFK, **{**options, "drop_outs": True})
    assert first.judged_ == [0, 1, 3]
    with refused("FK-RELEASE-TWICE"):
        nodes.release(kind=Again, **options, resume=True)


# -- recommendations


@pytest.mark.parametrize("top", [1, 100])
def test_recommendations_are_written_for_the_users_only(top: int, tmp_path: Path) -> None:
    path, server = tmp_path / "out" / "recommendations.csv", Server()
    own: Table = {"users": ["a,1", 'b"', "c"], "items": "wxyz", "top": top}
    client = GramClient(server.contexts[2], X[2], recommendations=path, **own)
    send(client, recommend(), server.sums.sections(2, [server.order(recommend())]))
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    ranks = [("a,1", "1"), ("a,1", "2"), ("c", "1"), ("c", "2"), ("c", "3")]
    assert [(r["user"], r["rank"]) for r in rows] == [r for r in ranks if int(r[1]) <= top]
    assert {r["item"] for r in rows if r["user"] == "a,1"} <= {"w", "z"}  # it likes x and y
    assert len({(r["user"], r["item"]) for r in rows}) == len(rows)
    for user in ("a,1", "c"):
        scores = [float(r["score"]) for r in rows if r["user"] == user]
        assert scores == sorted(scores, reverse=True)
