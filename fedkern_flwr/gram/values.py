"""Whole numbers for a Gram matrix: counts as they are, real features rounded, and their rings."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError, TableError

Array = NDArray[Any]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
#: A table with one row per user: a two-dimensional array, or scipy's CSR array or matrix.
Rows = Any

_RINGS = (16, 32, 64)  # bits


def count_values(x: Rows, bound: float) -> Rows:
    """Return features that are counts, 0 or 1 for instance, as integers.

    Parameters
    ----------
    x : ndarray or sparse array or matrix, shape (users, m)
        Whole numbers of at least 0 of any numeric dtype.
    bound : float
        The largest that may occur.

    Returns
    -------
    ndarray or CSR array of int64, shape (users, m)
        Sparse if ``x`` is; without stored zeros.

    Raises
    ------
    OptionError
        If the bound is not positive or does not fit 63 bits.
    TableError
        If a value is negative, not whole, NaN, infinite or above the bound. The text quotes none.
    """
    _check_bound(bound)
    if bound >= 2.0**63:
        raise OptionError(f"bound is {bound:g}", remedy="use a bound below 2^63")
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
    """Return real features as whole multiples of 2^-f, the nearest: round(x 2^f).

    Parameters
    ----------
    x : ndarray or sparse array or matrix, shape (users, m)
        Real numbers.
    fraction_bits : int
        f, at least 0.
    bound : float
        The largest absolute value that may occur.

    Returns
    -------
    ndarray of int64, shape (users, m)
        Of absolute value at most ceil(bound 2^f).

    Raises
    ------
    OptionError
        If the options do not fit 63 bits.
    TableError
        If a value is NaN, infinite or beyond the bound. The text quotes none.
    """
    if _scaled_bound(bound, fraction_bits) >= 1 << 63:
        raise OptionError(
            f"numbers up to {bound:g} with {fraction_bits} fraction bits do not fit 63 bits",
            remedy="use fewer fraction bits or a smaller bound",
        )
    x = x.toarray() if is_sparse(x) else np.asarray(x)
    _check_table(x)
    scaled: Floats = x.astype(np.float64)
    largest = _largest_absolute(scaled)
    if not math.isfinite(largest):
        raise TableError("features hold NaN or infinite values", remedy="clean the data")
    if largest > bound:
        raise TableError(
            f"features exceed their declared bound of {bound:g}",
            remedy="scale the data, or declare a larger bound for all clients",
        )
    scaled *= 2.0**fraction_bits  # exact
    whole: Floats = np.rint(scaled, out=scaled)
    return whole.astype(np.int64)


def entry_bound(rows: int, bound: float, fraction_bits: int) -> int:
    """Return rows ceil(bound 2^f)^2, the largest absolute value of an entry of a Gram matrix.

    Parameters
    ----------
    rows : int
        The largest number of rows (users) that the matrix is made of.
    bound : float
        The largest absolute value of a feature.
    fraction_bits : int
        f; 0 for counts.

    Returns
    -------
    int
        Exact, of any size.

    Raises
    ------
    OptionError
        If an option is out of its range.
    """
    if rows < 1:
        raise OptionError(f"rows is {rows}", remedy="use at least 1")
    return rows * _scaled_bound(bound, fraction_bits) ** 2


def smallest_ring(parties: int, entry: int) -> int:
    """Return the bits of the smallest ring that holds a sum of matrices.

    Parameters
    ----------
    parties : int
        Number of matrices in the sum.
    entry : int
        The largest absolute value of an entry of each, see :func:`entry_bound`.

    Returns
    -------
    {16, 32, 64}
        The sum stays below half the ring: parties entry < 2^(bits - 1).

    Raises
    ------
    OptionError
        If no ring is large enough.
    """
    for bits in _RINGS:
        half = 1 << (bits - 1)
        # the encoding compares again, with the bound rounded to a float, perhaps upwards
        if parties * entry < half and parties * float(entry) < half:
            return bits
    raise OptionError(
        f"a sum of {parties} Gram matrices overflows a 64-bit ring",
        remedy="use fewer fraction bits or a smaller bound",
    )


def quantisation_error(features: int, bound: float, fraction_bits: int) -> float:
    """Return how far an entry of K may be from that of the features before they were rounded.

    Rounding moves each number by at most h = 2^-(f + 1), so a product of two numbers within the
    bound B moves by at most 2 B h + h^2, and a sum over n users by n times that.

    Parameters
    ----------
    features : int
        n, the number of all rows (users) that K is summed over.
    bound : float
        B, the largest absolute value of a feature.
    fraction_bits : int
        f.

    Returns
    -------
    float
        n h (2 B + h), in squared units of the data. Features that are whole numbers have no error
        at all, which the caller knows.

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
        raise OptionError(f"bound is {bound}", remedy="declare a positive bound")


def _scaled_bound(bound: float, fraction_bits: int) -> int:
    """Return ceil(bound 2^f), exactly."""
    _check_bound(bound)
    if not 0 <= fraction_bits <= 1000:
        raise OptionError(f"fraction_bits is {fraction_bits}", remedy="use 0 to 1000")
    return math.ceil(Fraction(bound) * (1 << fraction_bits))


def _check_table(x: Rows) -> None:
    if x.ndim != 2:
        raise TableError("features are not a table of rows and columns")
    if x.dtype.kind not in "biuf":
        raise TableError(f"features have dtype {x.dtype}", remedy="use numbers")


def _check_counts(values: Array, bound: float) -> None:
    if not values.size:
        return
    if not math.isfinite(_largest_absolute(values)):
        raise TableError("features hold NaN or infinite values", remedy="clean the data")
    whole = values.dtype.kind != "f" or bool((np.floor(values) == values).all())
    if not whole or values.min() < 0:
        raise TableError(
            "features are not whole numbers of at least 0", remedy='use encoding "fixed-point"'
        )
    if values.max().item() > bound:
        raise TableError(
            f"features exceed their declared bound of {bound:g}",
            remedy="declare a larger bound for all clients",
        )


def _largest_absolute(values: Array) -> float:
    """Return the largest absolute value, 0 of none, NaN if there is one."""
    if not values.size:
        return 0.0
    return max(abs(float(values.max())), abs(float(values.min())))


def is_sparse(x: Rows) -> bool:
    """Tell whether rows are an array or matrix of SciPy's, which is not imported for it."""
    return hasattr(x, "tocsr")


def canonical(x: Rows) -> Rows:
    """Return a CSR array or matrix in which each row names its columns once, in order."""
    x = x.tocsr()
    if not x.has_canonical_format:
        x = x.astype(np.int64) if x.dtype.kind in "biu" else x.copy()  # room for the sums
        x.sum_duplicates()
    return x
