"""Exact Gram matrices of integer tables, packed for a secure sum.

A client holds rows x_u of m whole numbers, one row per user. The Gram matrix of all rows, K = sum_u
x_u^T x_u, is the sum of the clients' Gram matrices. Each uploads its upper triangle, m (m + 1) / 2
integers, modulo 2^16, 2^32 or 2^64. A public bound per entry rules out overflow, so K is exact.

Real features are first rounded to multiples of 2^-f (:func:`quantise`); K is then exact for the
rounded features, in units of 4^-f.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ..errors import OptionError, ProtocolError, TableError

Array = NDArray[Any]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
#: A table with one row per user: a two-dimensional array, or scipy's CSR array or matrix.
Rows = Any

_RINGS = (16, 32, 64)  # bits
_SIGNED: dict[int, type[np.signedinteger[Any]]] = {16: np.int16, 32: np.int32, 64: np.int64}
_BLOCK_BYTES = 8 << 20  # of one temporary array; up to six are alive at once
_MAX_USERS = 1 << 22  # in a block, so that sums of low halves stay below 2^53
_THIN = 256  # users; thinner products run in one thread
_MIRROR = 64  # rows of a block that is transposed within the processor's cache


def packed_size(items: int) -> int:
    """Return m (m + 1) / 2, the size of the upper triangle."""
    return items * (items + 1) // 2


def pack(matrix: Array) -> Array:
    """Return the upper triangle of a symmetric matrix, (m, m), row by row."""
    items = len(matrix)
    packed = np.empty(packed_size(items), matrix.dtype)
    for row, part in _row_tails(items, 0, items):
        packed[part] = matrix[row, row:]
    return packed


def unpack(packed: Array, items: int) -> Array:
    """Return the symmetric matrix of a packed upper triangle; ProtocolError for a wrong length.

    It needs the memory of the result, twice that of ``packed``, and little else.
    """
    _check_packed(packed, items)
    matrix = np.empty((items, items), packed.dtype)
    for row, part in _row_tails(items, 0, items):
        matrix[row, row:] = packed[part]
    mirror_upper(matrix)
    return matrix


def mirror_upper(matrix: Array) -> None:
    """Copy the upper triangle of a matrix to its lower one, in place."""
    items = len(matrix)
    for start in range(0, items, _MIRROR):
        stop = min(start + _MIRROR, items)
        matrix[stop:, start:stop] = matrix[start:stop, stop:].T
        corner = matrix[start:stop, start:stop]
        below = np.tril_indices(len(corner), -1)
        corner[below] = corner.T[below]


def packed_columns(packed: Array, items: int, columns: NDArray[np.integer[Any]]) -> Array:
    """Return K[:, columns], shape (m, p), of a packed symmetric matrix without unpacking the rest.

    Parameters
    ----------
    packed : ndarray, shape (m (m + 1) / 2,)
        The upper triangle, row by row.
    items : int
        m.
    columns : ndarray of int, shape (p,)
        From 0 to m - 1, in any order.

    Raises
    ------
    ProtocolError
        If ``packed`` has another length or a column is out of range.
    """
    _check_packed(packed, items)
    columns = np.asarray(columns, np.int64)
    if columns.size and not (columns.min() >= 0 and columns.max() < items):
        raise ProtocolError(
            f"columns outside of 0 to {items - 1} are asked for", code="FK-MESSAGE-FIELD"
        )
    out = np.empty((items, columns.size), packed.dtype)
    rows = np.arange(items)[:, None]
    width = max(1, _BLOCK_BYTES // (8 * max(1, items)))
    for start in range(0, columns.size, width):
        wanted = columns[None, start : start + width]
        first, last = np.minimum(rows, wanted), np.maximum(rows, wanted)
        out[:, start : start + width] = packed[_row_starts(items, first) + last - first]
    return out


def packed_diagonal(packed: Array, items: int) -> Array:
    """Return the diagonal, shape (m,), of a packed matrix; ProtocolError for a wrong length."""
    _check_packed(packed, items)
    return packed[_row_starts(items, np.arange(items))]


def local_gram(x: Rows, bits: int) -> NDArray[np.signedinteger[Any]]:
    """Return the packed Gram matrix X^T X of a client's rows, exactly.

    A single user with p non-zero values costs p^2 operations. Other tables use products of
    floating-point blocks with
    partial sums are exact whole numbers: by Cauchy and Schwarz none
    exceeds the largest diagonal entry. From 2^52 on, numbers are first split into high and low
    halves. Memory: the result and at most 64 MB.

    Parameters
    ----------
    x : ndarray or CSR array or matrix, shape (users, m)
        Of an integer dtype.
    bits : {16, 32, 64}
        Size of the ring.

    Returns
    -------
    ndarray of int16, int32 or int64, shape (m (m + 1) / 2,)

    Raises
    ------
    OptionError
        There is no such ring, or the table does not hold integers.
    TableError
        An entry does not fit; never, if the declared bound was checked.
    """
    if bits not in _SIGNED:
        raise OptionError(
            f"there is no {bits}-bit ring", remedy="use 16, 32 or 64 bits", code="FK-OPTION-CHOICE"
        )
    x = _integer_rows(x)
    largest = _checked_products(_largest_norm(x), bits)
    users, items = x.shape
    packed = np.zeros(packed_size(items), _SIGNED[bits])
    if users == 1:
        columns, values = _non_zeros(x)
        if 4 * columns.size < items:
            _write_products(packed, items, columns, values)
            return packed
    with _threads(users):
        _add_products(packed, x, largest)
    return packed


def cross_gram(new: Rows, x: Rows) -> Integers:
    """Return the products new^T x of new items with old ones over the same users, exactly.

    Parameters
    ----------
    new : ndarray or CSR array or matrix, shape (users, m_new)
        Of an integer dtype.
    x : ndarray or CSR array or matrix, shape (users, m)
        Of an integer dtype.

    Returns
    -------
    ndarray of int64, shape (m_new, m)

    Raises
    ------
    OptionError
        Different numbers of users, or no integers.
    TableError
        An entry could exceed 63 bits.
    """
    new, x = _integer_rows(new), _integer_rows(x)
    if new.shape[0] != x.shape[0]:
        raise OptionError("the two tables have different numbers of users", code="FK-SHAPE-DIFFERS")
    norms = math.sqrt(_largest_norm(new)) * math.sqrt(_largest_norm(x))
    largest = _checked_products(norms, 64)
    rows, items = new.shape[1], x.shape[1]
    total = np.zeros((rows, items), np.int64)
    height = max(1, _BLOCK_BYTES // (8 * max(1, items)))
    widest = max(rows, items)
    with _threads(x.shape[0]):
        for chunk, old in zip(_chunks(new, widest), _chunks(x, widest), strict=True):
            left, right = _float_factors(chunk, largest), _float_factors(old, largest)
            for start in range(0, rows, height):
                part = slice(start, start + height)
                total[part] += _exact_product(tuple(factor[:, part] for factor in left), right)
    return total


def local_support(x: Rows) -> Integers:
    """Return how many users have a non-zero value, for each item of a table (users, m)."""
    if not is_sparse(x):
        return np.asarray(np.count_nonzero(x, axis=0), np.int64)
    x = canonical(x)
    return np.bincount(x.indices[x.data != 0], minlength=x.shape[1]).astype(np.int64)


def _row_starts(items: int, rows: Integers) -> Integers:
    return rows * items - rows * (rows - 1) // 2


def _row_tails(items: int, start: int, stop: int) -> Iterator[tuple[int, slice]]:
    """Yield each row with its slice of the packed vector.

    Index arrays of the triangle would need more memory than the matrix.
    """
    place = start * items - start * (start - 1) // 2
    for row in range(start, stop):
        yield row, slice(place, place + items - row)
        place += items - row


def _write_products(packed: Array, items: int, columns: Integers, values: Integers) -> None:
    size = columns.size
    order = np.arange(size)
    step = max(1, _BLOCK_BYTES // (8 * max(1, size)))
    for start in range(0, size, step):
        rows = columns[start : start + step, None]
        upper = order[start : start + step, None] <= order[start:]
        places = _row_starts(items, rows) - rows + columns[start:]
        products = values[start : start + step, None] * values[start:]
        packed[places[upper]] = products[upper]


def _add_products(packed: Array, x: Rows, largest: float) -> None:
    items = x.shape[1]
    height = max(1, _BLOCK_BYTES // (8 * max(1, items)))
    for number, chunk in enumerate(_chunks(x, items)):
        factors = _float_factors(chunk, largest)
        for start in range(0, items, height):
            left = tuple(factor[:, start : start + height] for factor in factors)
            right = tuple(factor[:, start:] for factor in factors)
            block = _exact_product(left, right).astype(packed.dtype, copy=False)
            for row, part in _row_tails(items, start, min(start + height, items)):
                tail = block[row - start, row - start :]
                if number:
                    packed[part] += tail
                else:  # reading fresh memory costs as much as writing it
                    packed[part] = tail


def _chunks(x: Rows, items: int) -> Iterator[Integers]:
    step = min(_MAX_USERS, max(1, _BLOCK_BYTES // (8 * max(1, items))))
    for start in range(0, x.shape[0], step):
        chunk = x[start : start + step]
        dense = chunk.toarray() if is_sparse(chunk) else chunk
        yield dense.astype(np.int64, copy=False)


def _float_factors(x: Integers, largest: float) -> tuple[Array, ...]:
    """Return x as floats with exact products, or its high and low halves.

    With x = 2^16 high + low and low from -2^15 to 2^15 - 1, |low| <= |x| and |high| <= 2^-15 |x|.
    Products with a high half stay below 2^(63 - 15), those of two low halves below 2^30.
    """
    if largest < 2.0**52:  # slightly below what the type holds, as ``largest`` is rounded
        return (x.astype(np.float32 if largest < 2.0**23 else np.float64),)
    high = (x + (1 << 15)) >> 16
    return high.astype(np.float64), (x - (high << 16)).astype(np.float64)


def _exact_product(left: tuple[Array, ...], right: tuple[Array, ...]) -> Array:
    if len(left) == 1:
        product: Array = left[0].T @ right[0]
        return product.astype(np.int64)
    total = (left[0].T @ right[0]).astype(np.int64)
    total <<= 16
    total += (left[0].T @ right[1]).astype(np.int64)
    total += (left[1].T @ right[0]).astype(np.int64)
    total <<= 16  # an overflow here is undone by the last addition
    total += (left[1].T @ right[1]).astype(np.int64)
    return total


def _threads(users: int) -> AbstractContextManager[Any]:
    """Limit BLAS to one thread for thin products.

    They are bound by memory; on a busy processor, waiting threads make them twenty times as slow.
    """
    return threadpool_limits(1, "blas") if users < _THIN else nullcontext()


def _integer_rows(x: Rows) -> Rows:
    if is_sparse(x):
        x = canonical(x)
    if x.ndim != 2 or x.dtype.kind not in "iu":
        raise OptionError(
            f"a table of {x.ndim} dimensions and dtype {x.dtype} has no exact Gram matrix",
            remedy="prepare it with count_values or quantise",
            code="FK-GRAM-INTEGERS",
        )
    return x


def _non_zeros(x: Rows) -> tuple[Integers, Integers]:
    if is_sparse(x):
        return x.indices.astype(np.int64), x.data.astype(np.int64)
    columns = np.flatnonzero(x[0])
    return columns, x[0, columns].astype(np.int64)


def _largest_norm(x: Rows) -> float:
    """Return the largest sum of squares of a column, a bound on all entries of X^T X."""
    if is_sparse(x):
        squares = x.data.astype(np.float64) ** 2
        norms = np.bincount(x.indices, weights=squares, minlength=x.shape[1])
    else:
        norms = np.einsum("ui,ui->i", x, x, dtype=np.float64)
    return float(norms.max(initial=0.0))


def _checked_products(largest: float, bits: int) -> float:
    if largest >= 2.0 ** (bits - 1):
        raise TableError(
            f"the products of the features overflow a {bits}-bit ring",
            remedy="declare the bound that the features have",
            code="FK-SUM-OVERFLOW",
        )
    return largest


def _check_packed(packed: Array, items: int) -> None:
    if packed.shape != (packed_size(items),):
        raise ProtocolError(
            f"a packed matrix of {items} items has {packed_size(items)} numbers, not {packed.size}",
            code="FK-MESSAGE-SHAPE",
        )


# -- whole numbers: counts as they are, real features rounded, and their rings


def count_values(x: Rows, bound: float) -> Rows:
    """Return counts (such as 0 and 1) as integers.

    Parameters
    ----------
    x : ndarray or sparse array or matrix, shape (users, m)
        Non-negative whole numbers of any numeric dtype.
    bound : float
        Largest value allowed.

    Returns
    -------
    ndarray or CSR array of int64, shape (users, m)
        Sparse if ``x`` is; without stored zeros.

    Raises
    ------
    OptionError
        The bound is not positive or exceeds 63 bits.
    TableError
        A value is negative, not whole, not finite or above the bound. The text quotes none.
    """
    _check_bound(bound)
    if bound >= 2.0**63:
        raise OptionError(
            f"bound is {bound:g}", remedy="use a bound below 2^63", code="FK-OPTION-RANGE"
        )
    if not is_sparse(x):
        x = np.asarray(x)
        _check_table(x)
        _check_counts(x, bound)
        return x.astype(np.int64)
    _check_table(x)
    x = canonical(x)
    _check_counts(x.data, bound)
    from scipy.sparse import csr_array

    out = csr_array((x.data.astype(np.int64), x.indices, x.indptr), shape=x.shape, copy=True)
    out.eliminate_zeros()
    return out


def quantise(x: Rows, fraction_bits: int, bound: float) -> Integers:
    """Round real features to multiples of 2^-f: round(x 2^f).

    Parameters
    ----------
    x : ndarray or sparse array or matrix, shape (users, m)
        Real numbers.
    fraction_bits : int
        f, at least 0.
    bound : float
        Largest absolute value allowed.

    Returns
    -------
    ndarray of int64, shape (users, m)
        Of absolute value at most ceil(bound 2^f).

    Raises
    ------
    OptionError
        The options exceed 63 bits.
    TableError
        A value is not finite or beyond the bound. The text quotes none.
    """
    if _scaled_bound(bound, fraction_bits) >= 1 << 63:
        raise OptionError(
            f"numbers up to {bound:g} with {fraction_bits} fraction bits do not fit 63 bits",
            remedy="use fewer fraction bits or a smaller bound",
            code="FK-SUM-OVERFLOW",
        )
    x = x.toarray() if is_sparse(x) else np.asarray(x)
    _check_table(x)
    scaled: Floats = x.astype(np.float64)
    if _largest_absolute(scaled) > bound:
        raise _beyond(bound)
    scaled *= 2.0**fraction_bits  # exact
    whole: Floats = np.rint(scaled, out=scaled)
    return whole.astype(np.int64)


def entry_bound(rows: int, bound: float, fraction_bits: int) -> int:
    """Return rows ceil(bound 2^f)^2, the largest absolute entry of a Gram matrix, exactly.

    Parameters
    ----------
    rows : int
        Most rows (users) in the matrix.
    bound : float
        Largest absolute value of a feature.
    fraction_bits : int
        f; 0 for counts.

    Raises
    ------
    OptionError
        If an option is out of its range.
    """
    if rows < 1:
        raise OptionError(f"rows is {rows}", remedy="use at least 1", code="FK-OPTION-RANGE")
    return rows * _scaled_bound(bound, fraction_bits) ** 2


def smallest_ring(parties: int, entry: int) -> int:
    """Return the bits of the smallest ring that holds a sum: parties entry < 2^(bits - 1).

    Parameters
    ----------
    parties : int
        Matrices in the sum.
    entry : int
        Largest absolute entry of each, see :func:`entry_bound`.

    Raises
    ------
    OptionError
        If no ring is large enough.
    """
    for bits in _RINGS:
        half = 1 << (bits - 1)
        # the encoding compares again, with a bound that may be rounded upwards
        if parties * entry < half and parties * float(entry) < half:
            return bits
    raise OptionError(
        f"a sum of {parties} Gram matrices overflows a 64-bit ring",
        remedy="use fewer fraction bits or a smaller bound",
        code="FK-SUM-OVERFLOW",
    )


def quantisation_error(features: int, bound: float, fraction_bits: int) -> float:
    """Return a bound on the rounding error of an entry of K, n h (2 B + h).

    Rounding moves a number by at most h = 2^-(f + 1), so a product of two numbers within B moves by
    at most 2 B h + h^2. Whole numbers have no error, which the caller must know.

    Parameters
    ----------
    features : int
        n, number of all rows (users) in K.
    bound : float
        B, the largest absolute value of a feature.
    fraction_bits : int
        f.

    Raises
    ------
    OptionError
        If an option is out of its range.
    """
    _scaled_bound(bound, fraction_bits)
    half = Fraction(1, 2 << fraction_bits)
    exact = features * half * (2 * Fraction(bound) + half)
    return math.nextafter(float(exact), math.inf) if exact else 0.0


def _check_bound(bound: float) -> None:
    if not 0.0 < bound < math.inf:
        raise OptionError(
            f"bound is {bound}", remedy="declare a positive bound", code="FK-OPTION-RANGE"
        )


def _scaled_bound(bound: float, fraction_bits: int) -> int:
    _check_bound(bound)
    if not 0 <= fraction_bits <= 1000:
        raise OptionError(
            f"fraction_bits is {fraction_bits}", remedy="use 0 to 1000", code="FK-OPTION-RANGE"
        )
    return math.ceil(Fraction(bound) * (1 << fraction_bits))


def _check_table(x: Rows) -> None:
    if x.ndim != 2:
        raise TableError("features are not a table of rows and columns", code="FK-SHAPE-DIFFERS")
    if x.dtype.kind not in "biuf":
        raise TableError(
            f"features have dtype {x.dtype}", remedy="use numbers", code="FK-COLUMN-NUMBERS"
        )


def _check_counts(values: Array, bound: float) -> None:
    if not values.size:
        return
    _largest_absolute(values)  # checks that values are finite
    whole = values.dtype.kind != "f" or bool((np.floor(values) == values).all())
    if not whole or values.min() < 0:
        raise TableError(
            "features are not whole numbers of at least 0",
            remedy='use encoding "fixed-point"',
            code="FK-VALUES-COUNTS",
        )
    if values.max().item() > bound:  # beyond 2^53 a value could round to the bound as a float
        raise _beyond(bound)


def _beyond(bound: float) -> TableError:
    return TableError(
        f"features exceed their declared bound of {bound:g}",
        remedy="scale the data, or declare a larger bound for all clients",
        code="FK-VALUES-BOUND",
    )


def _largest_absolute(values: Array) -> float:
    ends = [abs(float(values.max())), abs(float(values.min()))] if values.size else [0.0]
    if not all(map(math.isfinite, ends)):
        raise TableError(
            "features hold NaN or infinite values", remedy="clean the data", code="FK-VALUES-FINITE"
        )
    return max(ends)


def is_sparse(x: Rows) -> bool:
    """Return whether rows are a SciPy array or matrix, without importing SciPy."""
    return hasattr(x, "tocsr")


def canonical(x: Rows) -> Rows:
    """Return a CSR table in which each row has each column once, in order."""
    x = x.tocsr()
    if not x.has_canonical_format:
        x = x.astype(np.int64) if x.dtype.kind in "biu" else x.copy()  # room for sums of duplicates
        x.sum_duplicates()
    return x
