"""Packed Gram matrices: exact for any integers within the bound, from dense and sparse tables."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse

import fedkern_flwr.gram.matrix as gram
from fedkern_flwr.errors import FedKernError, OptionError, ProtocolError, TableError
from fedkern_flwr.gram.matrix import (
    count_values,
    cross_gram,
    entry_bound,
    local_gram,
    local_support,
    mirror_upper,
    pack,
    packed_columns,
    packed_diagonal,
    packed_size,
    quantisation_error,
    quantise,
    smallest_ring,
    unpack,
)
from fedkern_flwr.secure_sum.encoding import Encoding

DTYPES = {16: np.int16, 32: np.int32, 64: np.int64}
FORMS = [np.asarray, sparse.csr_array, sparse.csr_matrix]


@st.composite
def tables(draw: st.DrawFn, bits: int) -> NDArray[np.int64]:
    """Tables of up to 6 users and 9 items, of the largest numbers whose squares fit the ring."""
    users, items = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    bound = math.isqrt(((1 << (bits - 1)) - 1) // (2 * users))
    numbers = st.sampled_from([0, 0, 1, bound, -bound]) | st.integers(-bound, bound)
    row = st.lists(numbers, min_size=items, max_size=items)
    return np.array(draw(st.lists(row, min_size=users, max_size=users)), np.int64)


def exact(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.object_]:
    """Return left^T right in Python's integers."""
    return left.T.astype(object) @ right.astype(object)


def assert_exact(x: NDArray[np.int64], bits: int, form: Any = np.asarray) -> None:
    packed = local_gram(form(x), bits)
    assert packed.dtype == DTYPES[bits]
    assert packed.tolist() == pack(exact(x, x)).tolist()


class TestPacking:
    def test_the_upper_triangle_is_packed_row_by_row(self) -> None:
        matrix = np.array([[1, 2, 3], [2, 4, 5], [3, 5, 6]], np.int16)
        assert packed_size(3) == 6
        assert pack(matrix).tolist() == [1, 2, 3, 4, 5, 6]
        assert pack(matrix).dtype == np.int16

    @pytest.mark.parametrize("items", [0, 1, 2, 63, 64, 65, 130])
    @pytest.mark.parametrize("dtype", [np.int16, np.uint64, np.float64])
    def test_unpack_and_its_parts_agree_with_the_matrix(self, items: int, dtype: Any) -> None:
        half = np.random.default_rng(items).integers(0, 100, (items, items))
        matrix = (half + half.T).astype(dtype)
        packed = pack(matrix)
        np.testing.assert_array_equal(unpack(packed, items), matrix)
        np.testing.assert_array_equal(packed_diagonal(packed, items), matrix.diagonal())
        columns = np.arange(items)[::-3]
        np.testing.assert_array_equal(packed_columns(packed, items, columns), matrix[:, columns])
        assert unpack(packed, items).dtype == packed_columns(packed, items, columns).dtype == dtype

    def test_columns_come_in_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gram, "_BLOCK_BYTES", 8 * 10 * 2)
        matrix = np.add.outer(np.arange(10), np.arange(10)) ** 2
        columns = np.array([9, 0, 3, 3, 7])
        np.testing.assert_array_equal(packed_columns(pack(matrix), 10, columns), matrix[:, columns])

    def test_no_columns(self) -> None:
        assert packed_columns(np.arange(6), 3, np.array([], np.int64)).shape == (3, 0)

    @pytest.mark.parametrize("columns", [[-1], [0, 3]])
    def test_columns_out_of_range_are_refused(self, columns: list[int]) -> None:
        with pytest.raises(ProtocolError, match="columns outside of 0 to 2"):
            packed_columns(np.arange(6), 3, np.array(columns))

    def test_a_vector_of_another_length_is_refused(self) -> None:
        for use in (
            lambda: unpack(np.arange(5), 3),
            lambda: packed_diagonal(np.arange(7), 3),
            lambda: packed_columns(np.arange(7), 3, np.array([0])),
        ):
            with pytest.raises(ProtocolError, match="3 items has 6 numbers"):
                use()

    def test_mirroring_keeps_the_upper_triangle(self) -> None:
        matrix = np.arange(100 * 100.0).reshape(100, 100)
        expected = np.triu(matrix) + np.triu(matrix, 1).T
        mirror_upper(matrix)
        np.testing.assert_array_equal(matrix, expected)


class TestLocalGram:
    @given(st.data(), st.sampled_from([16, 32, 64]), st.integers(8, 400) | st.just(8 << 20))
    def test_it_is_exact_up_to_the_bound_in_blocks_of_any_size(
        self, monkeypatch: pytest.MonkeyPatch, data: st.DataObject, bits: int, room: int
    ) -> None:
        monkeypatch.setattr(gram, "_BLOCK_BYTES", room)
        assert_exact(data.draw(tables(bits)), bits, data.draw(st.sampled_from(FORMS)))

    @pytest.mark.parametrize("size", [2**23 - 1, 2**24, 2**52 - 1, 2**53, 2**62])
    def test_it_is_exact_where_floats_end(self, size: int) -> None:
        root = math.isqrt(size)
        x = np.array([[root, 1, -root], [1, root, root // 3], [-1, 1, 1]])
        assert_exact(x, 64)

    def test_entries_near_2_to_the_62_of_many_users(self) -> None:
        users = 1000
        x = np.random.default_rng(0).integers(-(2**26), 2**26, (users, 5))
        x[:, 0] = math.isqrt(2**62 // users)
        assert exact(x, x)[0, 0] > 0.99 * 2**62
        assert_exact(x, 64)

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("positives", [0, 1, 7, 60])
    @pytest.mark.parametrize("room", [8, 100, 1 << 20])
    def test_one_sparse_user(
        self, monkeypatch: pytest.MonkeyPatch, form: Any, positives: int, room: int
    ) -> None:
        monkeypatch.setattr(gram, "_BLOCK_BYTES", room)
        rng = np.random.default_rng(positives)
        x = np.zeros((1, 250), np.int64)
        x[0, rng.choice(250, positives, replace=False)] = rng.integers(-50, 50, positives)
        assert_exact(x, 32, form)

    def test_values_of_few_bits_are_not_multiplied_in_them(self) -> None:
        x = np.array([[100, 0, 0, 0, 0, 0, 0, 0, 0]], np.int8)
        assert local_gram(x, 16)[0] == 10_000

    def test_no_users_have_a_gram_matrix_of_zeros(self) -> None:
        for form in FORMS:
            assert local_gram(form(np.zeros((0, 4), np.int64)), 16).tolist() == [0] * 10

    def test_duplicates_and_zeros_stored_in_a_sparse_table(self) -> None:
        x = sparse.csr_array((np.array([1, 2, 0, -5]), np.array([2, 2, 0, 1]), [0, 4]), (1, 20))
        dense = x.toarray()
        assert local_gram(x, 16).tolist() == pack(dense.T @ dense).tolist()
        assert x.nnz == 4  # the caller's table is left alone

    def test_clients_add_up_to_the_whole_in_the_ring(self) -> None:
        x = np.random.default_rng(1).integers(0, 2, (60, 30))
        encoding = Encoding.integers(entry_bound(20, 1, 0), bits=16)
        parts = [local_gram(x[k : k + 20], 16) for k in (0, 20, 40)]
        total = sum(encoding.encode(part, 3, name="gram") for part in parts)
        np.testing.assert_array_equal(unpack(encoding.decode(total, 3), 30), x.T @ x)

    @pytest.mark.parametrize(("bits", "root"), [(16, 182), (32, 46341), (64, 3_037_000_500)])
    @pytest.mark.parametrize("form", FORMS)
    def test_what_does_not_fit_is_refused(self, bits: int, root: int, form: Any) -> None:
        with pytest.raises(TableError, match=f"overflow a {bits}-bit ring") as caught:
            local_gram(form(np.array([[0, root]])), bits)
        assert str(root) not in str(caught.value)

    def test_unknown_rings_and_real_numbers_are_refused(self) -> None:
        with pytest.raises(OptionError, match="8-bit ring; use 16, 32 or 64"):
            local_gram(np.ones((1, 2), np.int64), 8)
        for bad in (np.ones((1, 2)), np.ones(3, np.int64), sparse.csr_array(np.ones((1, 2)))):
            with pytest.raises(OptionError, match="count_values or quantise"):
                local_gram(bad, 16)

    def test_memory_beside_the_result_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gram, "_BLOCK_BYTES", 1 << 20)
        items = 900
        for x in (
            np.random.default_rng(0).integers(-(2**29), 2**29, (2, items)),  # in halves
            np.random.default_rng(0).integers(0, 2, (300, items)),  # in chunks of users
            sparse.csr_array(np.random.default_rng(0).integers(0, 2, (300, items))),
            np.arange(1, items + 1)[None, :] * (np.arange(items) < items // 5),  # one user
        ):
            tracemalloc.start()
            packed = local_gram(x, 64)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < packed.nbytes + (7 << 20)


class TestCrossGram:
    @given(st.data(), st.sampled_from([16, 32, 64]), st.sampled_from(FORMS), st.integers(8, 400))
    def test_it_is_exact(
        self,
        monkeypatch: pytest.MonkeyPatch,
        data: st.DataObject,
        bits: int,
        form: Any,
        room: int,
    ) -> None:
        monkeypatch.setattr(gram, "_BLOCK_BYTES", room)
        both = data.draw(tables(bits))
        cut = data.draw(st.integers(0, both.shape[1]))
        new, x = both[:, :cut], both[:, cut:]
        products = cross_gram(form(new), form(x))
        assert products.dtype == np.int64
        assert products.tolist() == exact(new, x).tolist()

    def test_large_times_small_is_exact(self) -> None:
        new, x = np.array([[2**60 + 12_345], [7]]), np.array([[3, -1], [1, 1]])
        assert cross_gram(new, x).tolist() == exact(new, x).tolist()

    def test_tables_that_do_not_match_are_refused(self) -> None:
        with pytest.raises(OptionError, match="different numbers of users"):
            cross_gram(np.ones((2, 1), np.int64), np.ones((3, 1), np.int64))
        large = np.full((1, 1), 2**32)
        with pytest.raises(TableError, match="overflow"):
            cross_gram(large, large)


class TestSupport:
    @pytest.mark.parametrize("form", FORMS)
    def test_it_counts_the_users_of_each_item(self, form: Any) -> None:
        x = np.array([[0, 2, 0, -1], [0, 3, 0, 0]])
        support = local_support(form(x))
        assert support.dtype == np.int64
        assert support.tolist() == [0, 2, 0, 1]

    def test_stored_zeros_do_not_count(self) -> None:
        x = sparse.csr_array((np.array([0, 1, 1]), np.array([0, 1, 1]), [0, 3]), (1, 2))
        assert local_support(x).tolist() == [0, 1]


class TestCounts:
    @pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint64, np.float32, np.float64])
    @pytest.mark.parametrize("form", [np.asarray, sparse.csr_array, sparse.coo_array])
    def test_whole_numbers_of_any_type_become_integers(self, dtype: Any, form: Any) -> None:
        x = np.array([[0, 1, 0], [1, 1, 0]], dtype)
        counts = count_values(form(x), 1)
        assert counts.dtype == np.int64
        assert sparse.issparse(counts) == (form is not np.asarray)
        dense = counts.toarray() if sparse.issparse(counts) else counts
        assert dense.tolist() == [[0, 1, 0], [1, 1, 0]]
        assert not np.shares_memory(dense, x)

    def test_stored_zeros_are_dropped(self) -> None:
        x = sparse.csr_array((np.array([0.0, 2.0]), np.array([0, 1]), [0, 2]), (1, 2))
        assert count_values(x, 2).nnz == 1
        assert x.nnz == 2

    @pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
    def test_empty_tables(self, shape: tuple[int, int]) -> None:
        for form in (np.asarray, sparse.csr_array):
            assert count_values(form(np.zeros(shape)), 1).shape == shape

    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            (0.75, 'whole numbers of at least 0; use encoding "fixed-point"'),
            (-3.0, 'whole numbers of at least 0; use encoding "fixed-point"'),
            (41.0, "exceed their declared bound of 5; declare a larger bound"),
            (math.nan, "NaN or infinite"),
            (-math.inf, "NaN or infinite"),
        ],
    )
    @pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
    def test_other_numbers_are_refused_unquoted(
        self, value: float, problem: str, form: Any
    ) -> None:
        with pytest.raises(TableError, match=problem) as caught:
            count_values(form(np.array([[1.0, value]])), 5)
        assert f"{value:g}" not in str(caught.value).replace("infinite", "")

    def test_what_is_no_table_of_numbers_is_refused(self) -> None:
        with pytest.raises(TableError, match="rows and columns"):
            count_values(np.ones(3), 1)
        with pytest.raises(TableError, match="dtype <U1"):
            count_values(np.array([["a"]]), 1)

    @pytest.mark.parametrize("bound", [0, -1, math.nan, math.inf, 2.0**63])
    def test_bounds_that_cannot_be_are_refused(self, bound: float) -> None:
        with pytest.raises(OptionError, match="bound is"):
            count_values(np.ones((1, 1)), bound)


class TestQuantisation:
    def test_numbers_are_rounded_to_multiples(self) -> None:
        x = np.array([[0.3, -0.3], [1.0, -2.0]])
        assert quantise(x, 2, 2.0).tolist() == [[1, -1], [4, -8]]
        assert quantise(sparse.csr_array(x), 2, 2.0).tolist() == [[1, -1], [4, -8]]
        assert x[0, 0] == 0.3

    @given(st.lists(st.floats(-3, 3), min_size=4, max_size=4), st.integers(0, 40))
    def test_the_matrix_is_within_the_stated_error(self, row: list[float], fraction: int) -> None:
        x = np.array(row).reshape(2, 2)
        whole = quantise(x, fraction, 3.0)
        assert np.abs(whole.astype(object)).max() <= math.isqrt(entry_bound(1, 3.0, fraction))
        rounded = exact(whole, whole) * Fraction(1, 4**fraction)
        values = [[Fraction(value) for value in line] for line in x.tolist()]
        unrounded = exact(np.array(values, object), np.array(values, object))
        allowed = Fraction(quantisation_error(2, 3.0, fraction))
        assert abs(rounded - unrounded).max() <= allowed

    def test_the_stated_error_is_reached(self) -> None:
        x = np.full((3, 1), 0.75)  # rounded up by half, at the bound
        assert quantise(x, 1, 0.75).tolist() == [[2]] * 3
        assert quantisation_error(3, 0.75, 1) == pytest.approx(3 * (1.0 - 0.75**2), rel=1e-15)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -7.5])
    def test_what_has_no_place_is_refused_unquoted(self, value: float) -> None:
        with pytest.raises(TableError, match=r"features (hold|exceed)") as caught:
            quantise(np.array([[0.5, value]]), 3, 1.0)
        assert "7.5" not in str(caught.value)

    @pytest.mark.parametrize(("fraction", "bound"), [(63, 1.0), (-1, 1.0), (2000, 1.0), (3, 0.0)])
    def test_options_out_of_range_are_refused(self, fraction: int, bound: float) -> None:
        with pytest.raises(OptionError):
            quantise(np.ones((1, 1)), fraction, bound)


class TestRings:
    def test_entries_are_bounded_exactly(self) -> None:
        assert entry_bound(10, 5, 0) == 250
        assert entry_bound(3, 0.3, 3) == 3 * 3**2
        assert entry_bound(1, 1.0, 100) == 1 << 200
        with pytest.raises(OptionError, match="rows is 0"):
            entry_bound(0, 1, 0)

    @pytest.mark.parametrize(
        ("parties", "entry", "bits"),
        [
            (943, 1, 16),
            (1, 2**15 - 1, 16),
            (1, 2**15, 32),
            (2, 2**30 - 1, 32),
            (2, 2**30, 64),
            (8, 2**60 - 2**8, 64),
        ],
    )
    def test_the_ring_is_the_smallest(self, parties: int, entry: int, bits: int) -> None:
        assert smallest_ring(parties, entry) == bits

    @pytest.mark.parametrize("entry", [2**63, 2**63 - 1, 10**400])
    def test_without_a_ring_the_remedy_is_named(self, entry: int) -> None:
        with pytest.raises(OptionError, match="use fewer fraction bits or a smaller bound"):
            smallest_ring(1, entry)

    @given(st.integers(1, 2000), st.integers(1, 2**62))
    def test_the_encoding_has_room_too(self, parties: int, entry: int) -> None:
        try:
            bits = smallest_ring(parties, entry)
        except FedKernError:
            assert parties * entry >= (1 << 63) * (1 - 1e-15)
        else:
            Encoding.integers(entry, bits).check_room(parties)
