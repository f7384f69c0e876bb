"""NumPy's format, which Flower's arrays carry: headers that look alike are made and read once.

``np.save`` and ``np.load`` spend most of a small array's time on its header, and a run of many
iterations moves some hundred thousand small arrays.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

_NUMPY = "numpy.ndarray"  # how Flower calls it
_EMPTY = "_empty"  # Flower's placeholder for an empty list of arrays


def write_array(value: NDArray[Any]) -> Array:
    """Return what Flower's ``Array(value)`` is, to the byte."""
    if not value.flags.c_contiguous or value.dtype.hasobject or value.dtype.names:
        return Array(value)
    head, name = _written(value.dtype, value.shape)
    return Array(name, value.shape, _NUMPY, head + value.tobytes())


def array_record(arrays: Iterable[NDArray[Any]]) -> ArrayRecord:
    """Return what Flower's ``ArrayRecord(list(arrays))`` is."""
    return add_arrays(ArrayRecord(), arrays)


def add_arrays(record: ArrayRecord, arrays: Iterable[NDArray[Any]]) -> ArrayRecord:
    """Add arrays to a record under the next numbers; return it."""
    for number, value in enumerate(arrays, len(record)):
        record[str(number)] = write_array(value)
    return record


def read_arrays(record: ArrayRecord) -> list[NDArray[Any]]:
    """Return the arrays of a record, as :func:`read_array` does.

    Raises
    ------
    ValueError
        See :func:`read_array`.
    """
    return [read_array(value) for key, value in record.items() if key != _EMPTY]


def read_array(array: Any) -> NDArray[Any]:
    """Return the array of a record without copying its bytes, which are trusted with nothing.

    Raises
    ------
    ValueError
        They are not a plain array in NumPy's format, of exactly the size that they announce.
    """
    try:
        start = 10 + int.from_bytes(array.data[8:10], "little")
        shape, fortran, dtype = _header(array.data[:start])
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(array.data) - start:
            raise ValueError
        flat = np.frombuffer(array.data, dtype, offset=start) if dtype.itemsize else None
        return flat.reshape(shape, order="F" if fortran else "C")  # type: ignore[union-attr]
    except Exception:  # a header can break its parser in many ways
        raise ValueError("not an array") from None


@lru_cache(maxsize=1024)
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Parse a header, which takes longer than all else of a small array; most are alike."""
    stream = io.BytesIO(head)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError
    return np.lib.format.read_array_header_1_0(stream)


@lru_cache(maxsize=1024)
def _written(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[bytes, str]:
    """Return the header of an array in the order of C, and how Flower names its type."""
    stream = io.BytesIO()
    like = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, like)
    return stream.getvalue(), str(dtype)
