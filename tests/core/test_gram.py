"""Exact Gram matrices: products, rings, who sums with whom; what a node lets itself be asked."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from item_rows import Rows, away, binary, drawn
from numpy.typing import NDArray
from refusals import refused, refuses
from scipy import sparse
from summing_nodes import SESSION, Nodes

from fedkern_flwr.clients import GramClient
from fedkern_flwr.clients.secure_gram import liked_items
from fedkern_flwr.errors import EngineError
from fedkern_flwr.exchange import SumSpec
from fedkern_flwr.gram import matrix as gram
from fedkern_flwr.gram import messages as wire
from fedkern_flwr.gram.matrix import packed_size, unpack
from fedkern_flwr.gram.messages import matrix_encoding
from fedkern_flwr.secure_sum import RunningSum
from fedkern_flwr.simulations.engines import Fault
from fedkern_flwr.strategies import FedCFK, SecureGram
from fedkern_flwr.wire import PhaseMessage
from fedkern_flwr.wire.sums import FinishRequest, UnmaskRequest, bind

DTYPES = {16: np.int16, 32: np.int32, 64: np.int64}
FORMS = [np.asarray, sparse.csr_array, sparse.csr_matrix]


@st.composite
def tables(draw: st.DrawFn, bits: int) -> NDArray[np.int64]:
    """Tables of up to 6 users and 9 items, of the largest numbers whose squares fit the ring."""
    users, items = draw(st.integers(0, 6)), draw(st.integers(1, 9))
    bound = math.isqrt(((1 << (bits - 1)) - 1) // (2 * max(1, users)))
    numbers = st.sampled_from([0, 0, 1, bound, -bound]) | st.integers(-bound, bound)
    row = st.lists(numbers, min_size=items, max_size=items)
    rows = draw(st.lists(row, min_size=users, max_size=users))
    return np.array(rows, np.int64).reshape(users, items)


def exact(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.object_]:
    """Return left^T right in Python's integers."""
    return left.T.astype(object) @ right.astype(object)


def assert_exact(x: NDArray[np.int64], bits: int, form: Any = np.asarray) -> None:
    packed = gram.local_gram(form(x), bits)
    assert packed.dtype == DTYPES[bits]
    assert packed.tolist() == gram.pack(exact(x, x)).tolist()


# -- products


@pytest.mark.promise("gram-exact")
@settings(max_examples=60)
@given(st.data(), st.sampled_from([16, 32, 64]), st.integers(8, 400) | st.just(8 << 20))
def test_products_are_exact_in_blocks(monkeypatch: Any, data: Any, bits: int, room: int) -> None:
    monkeypatch.setattr(gram, "_BLOCK_BYTES", room)
    both, form = data.draw(tables(bits)), data.draw(st.sampled_from(FORMS))
    assert_exact(both, bits, form)
    cut = data.draw(st.integers(0, both.shape[1]))
    new, x = both[:, :cut], both[:, cut:]
    products = gram.cross_gram(form(new), form(x))
    assert products.dtype == np.int64
    assert products.tolist() == exact(new, x).tolist()


@pytest.mark.promise("gram-exact")
@pytest.mark.parametrize("size", [2**23 - 1, 2**24, 2**52 - 1, 2**53, 2**62])
def test_products_are_exact_where_floats_end(size: int) -> None:
    root = math.isqrt(size)
    assert_exact(np.array([[root, 1, -root], [1, root, root // 3], [-1, 1, 1]]), 64)


def test_sums_over_many_users_and_unequal_factors_are_exact() -> None:
    x = np.random.default_rng(0).integers(-(2**26), 2**26, (1000, 5))
    x[:, 0] = math.isqrt(2**62 // 1000)
    assert exact(x, x)[0, 0] > 0.99 * 2**62
    assert_exact(x, 64)
    new, old = np.array([[2**60 + 12_345], [7]]), np.array([[3, -1], [1, 1]])
    assert gram.cross_gram(new, old).tolist() == exact(new, old).tolist()
    assert gram.local_gram(np.array([[100, 0, 0]], np.int8), 16)[0] == 10_000  # not in 8 bits


def test_duplicates_and_zeros_stored_in_a_sparse_table() -> None:
    x = sparse.csr_array((np.array([1, 2, 0, -5]), np.array([2, 2, 0, 1]), [0, 4]), (1, 20))
    dense = x.toarray()
    assert gram.local_gram(x, 16).tolist() == gram.pack(dense.T @ dense).tolist()
    assert gram.local_support(x).tolist() == (dense[0] != 0).astype(int).tolist()
    assert x.nnz == 4  # the caller's table is left alone
    stored = sparse.csr_array((np.array([0.0, 2.0]), np.array([0, 1]), [0, 2]), (1, 2))
    assert gram.count_values(stored, 2).nnz == 1
    assert liked_items(stored, 0).tolist() == [1]  # a stored zero is no rating
    assert stored.nnz == 2


@pytest.mark.parametrize("form", FORMS)
def test_what_does_not_fit_or_is_no_integer_is_refused(form: Any) -> None:
    for bits, root in ((16, 182), (32, 46341), (64, 3_037_000_500)):
        caught = refuses("FK-SUM-OVERFLOW", gram.local_gram, form(np.array([[0, root]])), bits)
        assert str(root) not in str(caught)
    with refused("FK-SUM-OVERFLOW"):
        gram.cross_gram(form(np.full((1, 1), 2**32)), form(np.full((1, 1), 2**32)))
    with refused("FK-SHAPE-DIFFERS"):
        gram.cross_gram(form(np.ones((2, 1), np.int64)), form(np.ones((3, 1), np.int64)))
    refuses("FK-OPTION-CHOICE", gram.local_gram, form(np.ones((1, 2), np.int64)), 8)
    for bad in (form(np.ones((1, 2))), np.ones(3, np.int64)):
        refuses("FK-GRAM-INTEGERS", gram.local_gram, bad, 16)


def test_memory_beside_the_result_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram, "_BLOCK_BYTES", 1 << 20)
    items = 900
    for x in (
        np.random.default_rng(0).integers(-(2**29), 2**29, (2, items)),  # in halves
        np.random.default_rng(0).integers(0, 2, (300, items)),  # in chunks of users
        sparse.csr_array(np.random.default_rng(0).integers(0, 2, (300, items))),
        np.arange(1, items + 1)[None, :] * (np.arange(items) < items // 5),  # one user
    ):
        tracemalloc.start()
        packed = gram.local_gram(x, 64)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < packed.nbytes + (7 << 20)


# -- counts and rounded numbers


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array, sparse.coo_array])
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint64, np.float32, np.float64])
def test_whole_numbers_of_any_type_become_integers(dtype: Any, form: Any) -> None:
    x = np.array([[0, 1, 0], [1, 1, 0]], dtype)
    counts = gram.count_values(form(x), 1)
    assert counts.dtype == np.int64
    assert sparse.issparse(counts) == (form is not np.asarray)
    dense = counts.toarray() if sparse.issparse(counts) else counts
    assert dense.tolist() == [[0, 1, 0], [1, 1, 0]]
    assert not np.shares_memory(dense, x)
    support = gram.local_support(counts)
    assert support.dtype == np.int64
    assert support.tolist() == [1, 2, 0]
    for shape in ((0, 3), (2, 0)):
        assert gram.count_values(form(np.zeros(shape)), 1).shape == shape


@given(st.lists(st.floats(-3, 3), min_size=4, max_size=4), st.integers(0, 40))
def test_the_matrix_of_rounded_numbers_is_within_its_error(row: list[float], fraction: int) -> None:
    x = np.array(row).reshape(2, 2)
    before, whole = x.copy(), gram.quantise(x, fraction, 3.0)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(gram.quantise(sparse.csr_array(x), fraction, 3.0), whole)
    assert np.abs(whole.astype(object)).max() <= math.isqrt(gram.entry_bound(1, 3.0, fraction))
    rounded = exact(whole, whole) * Fraction(1, 4**fraction)
    values = np.array([[Fraction(value) for value in line] for line in x.tolist()], object)
    allowed = Fraction(gram.quantisation_error(2, 3.0, fraction))
    assert abs(rounded - values.T @ values).max() <= allowed


def test_the_stated_error_is_reached() -> None:
    x = np.full((3, 1), 0.75)  # rounded up by half, at the bound
    assert gram.quantise(x, 1, 0.75).tolist() == [[2]] * 3
    assert gram.quantise(np.array([[0.3, -2.0]]), 2, 2.0).tolist() == [[1, -8]]
    assert gram.quantisation_error(3, 0.75, 1) == pytest.approx(3 * (1.0 - 0.75**2), rel=1e-15)


# -- rings


@given(
    st.integers(1, 2000),
    st.integers(1, 5000),
    st.integers(1, 2**20) | st.floats(1e-3, 1e6),
    st.integers(0, 30),
)
def test_the_ring_of_a_matrix_is_the_smallest_that_holds_every_sum(
    parties: int, rows: int, bound: float, fraction: int
) -> None:
    entry = rows * math.ceil(Fraction(bound) * 2**fraction) ** 2  # the largest of a node
    assert gram.entry_bound(rows, bound, fraction) == entry
    fitting = [bits for bits in (16, 32, 64) if parties * entry < 2 ** (bits - 1)]
    if not fitting:
        refuses("FK-SUM-OVERFLOW", wire.matrix_encoding, parties, rows, bound, fraction)
        return
    found = wire.matrix_encoding(parties, rows, bound, fraction)
    assert found.kind == "integer"
    assert found.bits == fitting[0] or parties * float(entry) >= 2.0**63  # rounded upwards
    assert entry <= found.bound <= entry * (1 + 2**-52)
    found.check_room(parties)
    total = np.array([min(entry, 2**63 - 1)])
    found.encode(total, parties, name="the largest entry")  # is not refused


def test_all_rings_come_up_at_their_ends() -> None:
    """Just below a half of each ring, and at it."""
    for bits, most in ((16, 2**15 - 1), (32, 2**31 - 1)):
        assert [wire.matrix_encoding(1, most + k, 1.0, 0).bits for k in (0, 1)] == [bits, 2 * bits]
        assert [wire.counts_encoding(k, most).bits for k in (1, 2)] == [bits, 2 * bits]
    assert gram.smallest_ring(8, 2**60 - 2**8) == 64
    for parties, entry in ((2, 2**62), (1, 2**63), (1, 2**63 - 1), (1, 10**400)):
        refuses("FK-SUM-OVERFLOW", gram.smallest_ring, parties, entry)
    found = wire.counts_encoding(5, 7)  # need no more than the rows
    assert (found.kind, found.bits, found.bound) == ("integer", 16, 7.0)
    for rows in (0, 1, 943):  # metrics are precise
        found = wire.ranking_encoding(rows)
        assert (found.kind, found.bits, found.bound) == ("fixed-point", 64, float(max(1, rows)))
        assert found.fraction_bits(943) >= 42


# -- who takes part


@pytest.mark.promise("gram-rounds")
@settings(max_examples=100)
@given(
    st.sets(st.integers(0, 500), min_size=2, max_size=60), st.floats(0.01, 1.0), st.integers(1, 5),
    st.integers(0, 9), st.booleans(),
)  # fmt: skip
def test_cohorts_and_rounds_are_disjoint_and_as_large_as_they_can_be(
    partitions: set[int], participation: float, cohorts: int, seed: int, halves: bool
) -> None:
    chosen = min(len(partitions), max(2, round(participation * len(partitions))))
    listed = sorted(partitions)
    if chosen < 2 * cohorts:
        with refused("FK-COHORTS-MANY"):
            wire.disjoint_cohorts(listed, participation, cohorts, seed, halves=halves)
        return
    found = wire.disjoint_cohorts(listed, participation, cohorts, seed, halves=halves)
    everybody = [p for members in found for p in members]
    assert len(found) == cohorts
    assert len(everybody) == len(set(everybody)) == chosen
    assert set(everybody) <= partitions
    assert all(members == sorted(members) for members in found)
    assert wire.disjoint_cohorts(listed[::-1], participation, cohorts, seed, halves=halves) == found
    sizes = [len(members) for members in found]
    if not halves:
        assert max(sizes) - min(sizes) <= 1
        return
    left = chosen
    for number, size in enumerate(sizes[:-1], start=1):
        rest = left - size
        assert rest >= 2 * (cohorts - number)  # two for each round that follows
        assert size == max(2, left // 2) or rest == 2 * (cohorts - number)
        left = rest
    assert sizes[-1] == left


def test_who_is_in_which_cohort_depends_on_the_seed() -> None:
    for halves, sizes in ((False, (4, 4, 4)), (True, (6, 3, 3))):
        drawn = [wire.disjoint_cohorts(range(12), 1.0, 3, seed, halves=halves) for seed in range(9)]
        assert {tuple(map(len, found)) for found in drawn} == {sizes}
        assert len({tuple(map(tuple, found)) for found in drawn}) == 9
    half = Counter(
        p for seed in range(300) for p in wire.disjoint_cohorts(range(10), 0.5, 1, seed)[0]
    )
    assert all(100 < half[p] < 200 for p in range(10))


# -- which items


@pytest.mark.promise("gram-support")
@settings(max_examples=100)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=6, max_size=6), min_size=1, max_size=4),
    st.integers(2, 7),
)
def test_an_item_is_kept_if_no_cohort_has_few_of_it(counts: list[list[int]], least: int) -> None:
    few = [any(0 < c < least for c in item) for item in zip(*counts, strict=True)]
    some = [any(item) for item in zip(*counts, strict=True)]
    found = wire.supported([np.array(c, np.int64) for c in counts], least)
    assert found.tolist() == [item for item in range(6) if some[item] and not few[item]]
    assert found.dtype == np.int32


@pytest.mark.promise("gram-difference")
def test_a_difference_needs_two_nodes_and_enough_rows() -> None:
    rows = {0: 1, 1: 1, 2: 4, 3: 9, 4: 1}
    everybody = [0, 1, 2, 3, 4]
    assert not wire.shows_few(everybody, everybody, rows, 5)
    assert wire.shows_few(everybody, [0, 1, 2, 4], rows, 5)  # one node of nine rows
    assert wire.shows_few(everybody, [2, 3, 4], rows, 5)  # two of one row each
    assert not wire.shows_few(everybody, [1, 3, 4], rows, 5)  # five rows of two nodes
    assert wire.shows_few(everybody, [1, 3, 4], rows, 6)
    assert not wire.shows_few(everybody, [0, 1], rows, 5)
    assert not wire.shows_few([0, 1], [0, 1, 2], rows, 5)  # one more is not in the counts
    assert wire.shows_few([0, 1], [0, 2], rows, 1)


# -- names


@pytest.mark.promise("gram-bound-names")
def test_a_name_is_bound_to_every_field_of_a_request() -> None:
    items = [np.array(one, np.int32) for one in ([0, 1, 2], [0, 1, 3], [], [0, 1])]
    fields: dict[str, tuple[Any, Any]] = {"session": ("a", "b"), "round": (1, 2), "rows": (3, 4)}
    fields |= {"encoding": ("counts", "fixed-point"), "bound": (1.0, 1.5), "parties": (4, 5)}
    fields |= {"fraction_bits": (0, 1), "supports": (False, True), "counted": (b"\x0f", b"\x0e")}
    first = wire.MatrixRequest(items=items[0], **{k: one for k, (one, _) in fields.items()})
    changed: list[dict[str, Any]] = [{}, *({name: other} for name, (_, other) in fields.items())]
    changed += [{"items": other} for other in items[1:]]
    names = {bind(wire.GRAM_SUM, replace(first, **change)) for change in changed}
    assert len(names) == len(changed)
    assert all(name.startswith("gram matrix#") for name in names)
    assert bind("other", first).startswith("other#")
    arrived = wire.MatrixRequest.unpack(first.arrays(), first.scalars(), party="")
    assert bind(wire.GRAM_SUM, arrived) == bind(wire.GRAM_SUM, first)


# -- what a node lets itself be asked: each sum of its rows once, and of enough


ITEMS = 4
#: Rows of four nodes.
X = [
    np.array([[1, 0, 1, 1], [0, 0, 1, 0]]), np.array([[1, 1, 0, 1]]),
    np.array([[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1]]), np.array([[1, 0, 1, 1]]),
]  # fmt: skip
Table = dict[str, Any]


class Server(Nodes):
    """A server that does what it is told, not what the strategy would do."""

    def __init__(
        self, cohorts: Any = None, tables: Any = X, state: Path | None = None, resume_round: int = 0
    ) -> None:
        self.tables, self.state, self.step = tables, state, 0
        how = {"method": "secure-gram", "resume_round": resume_round}
        super().__init__(len(tables), cohorts=cohorts, described=how)

    def client(self, k: int, given: Any = None) -> GramClient:
        """Return the client of a message: a fresh one, as in Flower."""
        more = {} if self.state is None else {"state_dir": self.state / str(k)}
        return GramClient(self.contexts[k], self.tables[k], **{**more, **(given or {})})

    def ask(self, k: int, request: PhaseMessage, sections: Any = (), given: Any = None) -> Any:
        found = super().ask(k, request, sections, given)
        if request.phase != "describe":
            self.server.take(k, found[1])
        return found

    def order(self, request: Any, cohort: int = 0) -> RunningSum:
        """Order the sum that a request is for, bound to it."""
        parties = len(self.server.membership.cohorts[cohort].members)
        (spec,) = request.sum_specs(wire.GramFacts(parties, 3, ITEMS))
        name = bind(spec.name, request)
        return self.server.order(replace(spec, cohort=cohort, self_masks=True), name)

    def matrix(self, cohort: int = 0, counted: Any = None, **more: Any) -> wire.MatrixRequest:
        """Return the next request for a matrix, in which some nodes count, by default all."""
        self.step += 1
        members = self.server.membership.cohorts[cohort]
        bits = members.pack(members.members if counted is None else counted)
        own: Table = {"counted": bits, "supports": False, "items": np.arange(ITEMS, dtype="i4")}
        own |= {"round": self.step, "parties": len(members.members), **more}
        return wire.MatrixRequest(**fields(**own))

    def run(self, request: Any, who: Sequence[int] = range(4), cohort: int = 0) -> RunningSum:
        """Let nodes contribute to a sum."""
        running = self.order(request, cohort)
        for k in who:
            self.ask(k, request, self.server.sections(k, [running]))
        return running

    def matrices(self, who: Sequence[int] = range(4), cohort: int = 0, **more: Any) -> RunningSum:
        return self.run(self.matrix(cohort, **more), who, cohort)

    def matrix_again(self) -> RunningSum:
        """Sum the matrix of all nodes, as if the sum before it had been closed."""
        request = self.matrix()
        running = self.order(request)
        running.order = replace(running.order, open_from=1)
        for k in range(4):
            self.ask(k, request, self.server.sections(k, [running]))
        return running

    def count(self, who: Sequence[int] = range(4), cohort: int = 0) -> RunningSum:
        self.step += 1
        parties = len(self.server.membership.cohorts[cohort].members)
        request = wire.CountsRequest(**fields(round=self.step, parties=parties))
        return self.run(request, who, cohort)

    def openings(self, *sums: RunningSum) -> dict[int, list[PhaseMessage]]:
        return self.server.unmask_sections(sums)

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
        return unpack(self.server.total(running), ITEMS)


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


@pytest.mark.parametrize(("change", "code"), [
    ({"x": [["secret", "77"]]}, "FK-COLUMN-NUMBERS"),
    ({"x": np.zeros((1, 2), complex)}, "FK-COLUMN-NUMBERS"),
    *(({"x": np.zeros(shape)}, "FK-SHAPE-DIFFERS") for shape in ((1, 2, 3), (0, 4), (2, 0))),
    ({"x": sparse.csr_array((0, 4))}, "FK-SHAPE-DIFFERS"),
    ({"x_test": np.zeros((2, 3))}, "FK-SHAPE-DIFFERS"),
    ({"x_test": sparse.csr_array((3, 4))}, "FK-SHAPE-DIFFERS"),
    ({"x_new": np.zeros((3, 1))}, "FK-SHAPE-DIFFERS"),
    *(({"users": names}, "FK-COLUMN-NAMES") for names in (["secret"] * 2, ["secret"])),
    *(({"items": i}, "FK-COLUMN-NAMES") for i in ("abca", "abcde", [1, "1", 2, 3])),
])  # fmt: skip
def test_tables_that_cannot_be_used_are_refused_in_one_line(change: Table, code: str) -> None:
    caught = refuses(code, GramClient, Server().contexts[0], **{"x": X[0], **change})
    assert "secret" not in str(caught)


def test_the_state_of_a_node_holds_none_of_its_rows() -> None:
    server = Server(tables=[np.array([[3, 0, 2, 1]]) * 104_729 for _ in X])
    request = server.matrix(bound=314187.0, rows=1)
    ring = matrix_encoding(4, 1, 314187.0, 0)
    about: Any = {"name": bind(wire.GRAM_SUM, request), "length": packed_size(ITEMS)}
    running = server.server.order(SumSpec(encoding=ring, self_masks=True, **about))
    for k in range(4):
        server.ask(k, request, server.server.sections(k, [running]))
    text = repr(server.contexts[0].state)
    assert not any(str(part * 104_729) in text for part in (1, 2, 104_729, 4 * 104_729))


@pytest.mark.promise("gram-refusal-blind")
def test_a_refusal_does_not_tell_of_a_single_item() -> None:
    """A server that asks for one item after the other would read the row off the refusals."""
    odd, texts = X[0].copy(), set()
    odd[0, 3] = 1000
    for item in range(ITEMS):
        server = Server(tables=[odd, *X[1:]])
        caught = refuses("FK-VALUES-BOUND", server.matrices, [0], items=np.array([item], np.int32))
        texts.add(str(caught))
    assert len(texts) == 1


# -- each sum of the rows once


def test_matrix_and_counts_are_summed_once_in_a_release() -> None:
    server = Server(cohorts=[[0, 1, 2], [0, 1, 2, 3]])
    found = server.count(range(3))
    server.unmask(server.openings(found))
    np.testing.assert_array_equal(server.server.total(found), (np.concatenate(X[:3]) != 0).sum(0))
    refuses("FK-RELEASE-TWICE", server.count, [0], cohort=0)
    refuses("FK-ORDER-PARTIES", server.count, [0], cohort=1)
    server = Server(cohorts=[[0, 1, 2], [0, 1, 2, 3]])
    server.release([0, 1, 2])
    for more in ({}, {"items": np.arange(2, dtype=np.int32)}):  # of fewer items, too
        refuses("FK-RELEASE-TWICE", server.matrices, [0], cohort=0, **more)
    refuses("FK-ORDER-PARTIES", server.matrices, [0], cohort=1)


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
        assert [found["answered"] for found in again.told] == [2, 2, 2, 0]
        assert all(found["restored"] for found in again.told)
        again.step = number - 1
        with refused("FK-RELEASE-TWICE", "FK-MESSAGE-ORDER"):
            again.matrices([0])
    for folder in (None, tmp_path / "elsewhere"):  # it cannot know what it has opened
        again = Server(state=folder, resume_round=1)
        assert not any(found["restored"] for found in again.told)


def test_the_end_of_a_run_erases_the_secrets_of_its_sums_not_the_rule() -> None:
    server = Server()
    server.release()
    for k in range(4):
        server.ask(k, FinishRequest(session=SESSION, round=9))
        assert "fedkern-sums" not in server.contexts[k].state
        refuses("FK-RELEASE-TWICE", server.ask, k, server.matrix(round=10))


# -- counts and matrix are of the same nodes, and of enough


@pytest.mark.promise("gram-same-nodes")
def test_counts_come_before_the_matrix_and_of_the_same_nodes() -> None:
    """Else their difference to the diagonal is one node's row."""
    server = Server()
    server.release(who=[0, 1, 3])
    refuses("FK-MESSAGE-ORDER", server.count)
    server = Server()
    server.unmask(server.openings(server.count(who=[0, 1, 3])))
    asked = server.openings(server.matrices())
    server.refuses("FK-RELEASE-NODES", {k: asked[k] for k in (0, 1, 3)})
    server = Server()
    server.unmask(server.openings(server.count()))
    refuses("FK-RELEASE-NODES", server.matrices, [3], counted=[0, 1, 2])


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
        yield from self.sum_over({1: self._matrix_request(1)}, wire.MatrixReply)


@pytest.mark.parametrize(("server", "code"), [
    (Fewer, "FK-RELEASE-TWICE"), (Counting, "FK-MESSAGE-ORDER"), (Leaving, "FK-RELEASE-NODES"),
    (Elsewhere, "FK-RELEASE-ONE"),
])  # fmt: skip
def test_nodes_refuse_what_would_show_one_of_them(server: Any, code: str) -> None:
    refuses(code, some(4).release, kind=server, **OPEN)


class Again(FedCFK):
    """Has the recommendations judged again, by sums that open by themselves."""

    def rounds(self, parties: Any) -> Any:
        self.spent_ = set()
        del self.saved_meta_["judged"]
        return super().rounds(parties)


def test_nodes_refuse_a_second_judgement_of_other_nodes(tmp_path: Path) -> None:
    nodes, options = some(4), {**OPEN, "min_support": 0, "checkpoint": tmp_path / "run.npz"}
    nodes.folder, nodes.more = tmp_path, {}
    late = away([2], "gram-recommend")
    first = nodes.release(late, kind=FedCFK, **{**options, "drop_outs": True})
    assert first.judged_ == [0, 1, 3]
    refuses("FK-RELEASE-TWICE", nodes.release, kind=Again, **options, resume=True)


# -- rounds: users come and go, and K grows


@pytest.mark.parametrize("masks", [None, True])
def test_k_grows_by_half_of_the_nodes_that_are_left_until_it_is_exact(masks: bool | None) -> None:
    nodes, seen = binary(11, rows=3, items=5, share=0.8), list[list[int]]()

    class Watched(SecureGram):
        def state(self, stage: str, **more: Any) -> Any:
            if stage in ("round", "gram"):
                nodes.check(self, self.survivors_)
                seen.append(list(self.survivors_))
            return super().state(stage, **more)

    rounds = drawn(11, num_rounds=3)
    assert [len(who) for who in rounds] == [5, 3, 3]
    strategy = nodes.release(num_rounds=3, kind=Watched, min_support=2, drop_outs=masks)
    assert seen[:2] == [rounds[0], sorted(rounds[0] + rounds[1])]
    nodes.check(strategy, range(11))
    assert [(h["round"], h["clients"]) for h in strategy.history_] == [(1, 5), (2, 3), (3, 3)]
    assert sorted(nodes.times("gram-matrix")) == list(range(11))  # nobody is counted twice
    assert ("unmask" in strategy.ledger_.by_phase) == bool(masks)
    assert any("each of these sums" in line for line in strategy.privacy()["server_sees"])


@pytest.mark.promise("gram-rounds")
#: A node that misses ten exchanges is left out.
@pytest.mark.parametrize("attempts", [2, pytest.param(12, marks=pytest.mark.long)])
def test_nodes_that_are_away_in_their_round_are_summed_in_a_later_one(attempts: int) -> None:
    """In each round one of the nodes that are left is away, until all others are summed."""
    nodes, rounds = binary(10, rows=3, items=5, share=0.8), drawn(10, 4, num_rounds=3)
    misses = {rounds[0][1]: 2 * attempts, rounds[1][0]: attempts}  # node -> requests

    def plan(delivery: Any) -> Fault | None:
        k = delivery.partition
        if delivery.phase != "gram-matrix" or not misses.get(k):
            return None
        misses[k] -= 1
        return Fault("vanished")

    strategy = nodes.release(plan, num_rounds=3, seed=4, min_support=2, attempts=attempts)
    assert not any(misses.values())
    nodes.check(strategy, range(10))
    # rounds 1 and 2 are put off, the third is summed, 1 is put off once more
    later = [len(rounds[k]) for k in (2, 1, 0)]
    assert [(h["round"], h["clients"]) for h in strategy.history_] == list(enumerate(later, 1))


def test_a_node_that_stays_away_is_left_out_or_ends_the_run_when_the_others_are_summed() -> None:
    nodes, rounds = binary(8, rows=3, items=5, share=0.8), drawn(8, num_rounds=3)
    lost = rounds[0][0]
    refuses("FK-PARTIES-LOST", nodes.release, away([lost]), num_rounds=3, min_support=2, attempts=2)
    assert set(rounds[1] + rounds[2]) <= set(nodes.times("gram-matrix"))
    strategy = nodes.release(away([lost]), num_rounds=3, min_support=0, drop_outs=True)
    nodes.check(strategy, [k for k in range(8) if k != lost])
    assert nodes.times("gram-matrix").count(lost) == 1  # in no later round


def test_what_is_no_bad_luck_ends_the_rounds() -> None:
    """An engine that broke down stays so."""
    seen = list[int]()

    def plan(delivery: Any) -> None:
        if delivery.phase == "gram-matrix":
            seen.append(delivery.round)
            raise EngineError("a Ray actor died", code="FK-ENGINE-ACTOR")

    refuses("FK-ENGINE-ACTOR", binary(4).release, plan, min_support=0, num_rounds=2)
    assert len(seen) == 1
