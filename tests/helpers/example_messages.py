"""Messages of every class, and whether two are equal."""

from __future__ import annotations

import dataclasses

import numpy as np

from fedkern_flwr.wire import PhaseMessage

SIZES = {"kernels": 3, "width": 4, "chosen": 2, "drawn": 1, "reported": 3, "given": 3}
SIZES |= {"parameters": 5, "samples": 2, "numbers": 4, "named": 2, "summed": 4}
VALUES = {"bool": True, "bytes": b"\x00\xff", "float": 0.25, "int": 7, "str": 'a\u00e9"'}


def example(cls: type[PhaseMessage], seed: int = 0, *, parts: int = 2) -> PhaseMessage:
    """A message with a value in every field, of any number of arrays so many."""
    rng, values = np.random.default_rng(seed), {}
    for f in dataclasses.fields(cls):
        if "dimensions" in f.metadata:
            shape = tuple(SIZES[d] for d in f.metadata["dimensions"])
            one = rng.integers(0, 3, shape).astype(f.metadata["dtypes"][0])
            many = tuple(one + one.dtype.type(k) for k in range(parts))
            values[f.name] = many if f.metadata["many"] else one
        else:
            values[f.name] = VALUES[str(f.type)]
    return cls(**values)


def assert_equal(a: PhaseMessage, b: PhaseMessage) -> None:
    assert type(a) is type(b)
    for f in dataclasses.fields(a):
        x, y = getattr(a, f.name), getattr(b, f.name)
        assert type(x) is type(y)
        if isinstance(x, tuple):
            assert [part.dtype for part in x] == [part.dtype for part in y]
        elif isinstance(x, np.ndarray):
            assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
