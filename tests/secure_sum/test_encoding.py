"""How numbers enter a ring and leave it: exact where it says so, refused where it must."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sums_in_memory import Reference, refuses

from fedkern_flwr.secure_sum import Encoding

RINGS = (16, 32, 64)
bounds = st.floats(2.0**-40, 2.0**40)
rings = st.sampled_from(RINGS)


def encode(encoding: Encoding, values: Any, parties: int = 3) -> np.ndarray:
    return encoding.encode(np.asarray(values), parties, name="gradient")


# -- fixed point


@given(bits=rings, parties=st.integers(2, 2000), bound=bounds)
def test_the_overflow_rule_leaves_the_sum_below_a_quarter_of_the_ring(
    bits: int, parties: int, bound: float
) -> None:
    encoding = Encoding.fixed_point(bound, bits)
    f = encoding.fraction_bits(parties)
    assert f == Reference.fraction_bits(encoding, parties)
    scaled = parties * Fraction(bound) * Fraction(2) ** f
    assert scaled <= 2 ** (bits - 2)
    assert 2 * scaled > 2 ** (bits - 2) / 4  # not a bit more is given away than two roundings


@pytest.mark.parametrize("bits", RINGS)
@pytest.mark.parametrize("bound", [1.0, 8.0, 2.0**-30, 2.0**20, 0.5])
def test_both_ends_of_the_range_are_exact(bits: int, bound: float) -> None:
    for parties in (2, 3, 5):
        for encoding in (Encoding.fixed_point(bound, bits), Encoding.integers(100, bits)):
            ends = np.array([1, -1]) * (bound if encoding.kind == "fixed-point" else 100)
            total = np.asarray(sum(encode(encoding, ends, parties) for _ in range(parties)))
            found = encoding.decode(total.astype(encoding.dtype), parties)
            np.testing.assert_array_equal(found, parties * ends)


@given(bits=rings, bound=bounds, parties=st.integers(2, 50), data=st.data())
def test_a_number_is_rounded_to_the_nearest_step(
    bits: int, bound: float, parties: int, data: st.DataObject
) -> None:
    encoding = Encoding.fixed_point(bound, bits)
    values = data.draw(st.lists(st.floats(-bound, bound), min_size=1, max_size=8))
    ring = encode(encoding, values, parties)
    assert ring.dtype == encoding.dtype
    assert ring.tolist() == Reference.ring(encoding, parties, values)
    half_step = Fraction(2) ** -(encoding.fraction_bits(parties) + 1)
    for value, element in zip(values, ring.tolist(), strict=True):
        signed = (element + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
        assert abs(Fraction(value) - 2 * half_step * signed) <= half_step
    back = encoding.decode(ring, parties)
    assert back.dtype == np.float64
    slack = 2 * bound * 2.0**-53  # of the float64 that comes out
    assert np.abs(back - values).max() <= float(half_step) + slack


# -- integers


@pytest.mark.parametrize("bits", RINGS)
@pytest.mark.parametrize("parties", [2, 3, 30])
def test_integers_are_summed_exactly_up_to_the_largest_that_have_room(
    bits: int, parties: int
) -> None:
    bound = min((2 ** (bits - 1) - 1) // parties, 2**52)
    encoding = Encoding.integers(bound, bits)
    encoding.check_room(parties)
    total = np.zeros(3, encoding.dtype)
    for _ in range(parties):
        total += encode(encoding, np.array([bound, -bound, 1]), parties)
    found = encoding.decode(total, parties)
    assert found.tolist() == [parties * bound, -parties * bound, parties]
    assert found.dtype == np.int64


# -- the circle


@pytest.mark.parametrize("bits", RINGS)
def test_angles_are_in_a_turn(bits: int) -> None:
    encoding = Encoding.circle(bits)
    found = encoding.decode(np.array([0, 1, -1, -2, -1000]).astype(encoding.dtype), 3)
    assert ((found >= 0.0) & (found < 2.0 * math.pi)).all()


@given(bits=rings, angles=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=6))
def test_sums_of_angles_are_right_modulo_a_turn(bits: int, angles: list[float]) -> None:
    encoding = Encoding.circle(bits)
    total = np.zeros(1, encoding.dtype)
    for angle in angles:
        ring = encode(encoding, [angle])
        assert ring.tolist() == Reference.ring(encoding, 3, [angle])
        total += ring
    (found,) = encoding.decode(total, 3)
    error = abs(np.angle(np.exp(1j * (found - math.fsum(angles)))))
    assert error <= len(angles) * (math.pi * 2.0 ** -min(bits, 53) + 1e-12)


# -- what is refused

SECRET = 123456.789


@pytest.mark.promise("sums-bound")
@pytest.mark.parametrize("bits", RINGS)
@pytest.mark.parametrize("bound", [1.0, 0.1, 8.0, 1e-20, 1e300])
def test_one_ulp_beyond_the_bound_is_refused(bits: int, bound: float) -> None:
    encoding = Encoding.fixed_point(bound, bits)
    for value in (bound, -bound):
        encode(encoding, [0.0, value])
        beyond = [0.0, np.nextafter(value, 2.0 * value)]
        refuses("FK-SUM-BOUND", encode, encoding, beyond)


def test_float32_is_compared_with_the_bound_as_it_is() -> None:
    """float32(0.1) is larger than 0.1."""
    encoding = Encoding.fixed_point(0.1)
    refuses("FK-SUM-BOUND", encode, encoding, np.array([0.1], np.float32))
    encode(Encoding.fixed_point(float(np.float32(0.1))), np.array([0.1], np.float32))


REALS = Encoding.fixed_point(1e6)


@pytest.mark.parametrize(
    ("code", "encoding", "values"),
    [
        *(
            ("FK-VALUES-FINITE", encoding, [SECRET, bad])
            for encoding in (REALS, Encoding.circle())
            for bad in (math.nan, math.inf, -math.inf)
        ),
        ("FK-SUM-BOUND", Encoding.fixed_point(1.0), [SECRET]),
        ("FK-SUM-BOUND", Encoding.integers(3), [4]),
        ("FK-SUM-BOUND", Encoding.integers(3), [-4]),
        ("FK-SUM-BOUND", Encoding.integers(2**53), [2**53 + 1]),
        ("FK-SUM-BOUND", Encoding.integers(3), np.array([2**64 - 1], np.uint64)),
        ("FK-SUM-VALUES", Encoding.integers(3), [SECRET]),
        ("FK-SUM-VALUES", Encoding.integers(3), [1.0]),
        ("FK-SUM-VALUES", REALS, [SECRET + 0j]),
        ("FK-SUM-VALUES", REALS, ["123456.789"]),
        ("FK-SUM-VALUES", REALS, np.array([SECRET], object)),
        ("FK-SUM-VALUES", Encoding.circle(), np.array(["2020-01-01"], "datetime64[D]")),
        ("FK-SUM-VALUES", REALS, [[SECRET]]),
        ("FK-SUM-VALUES", REALS, SECRET),
    ],
)
def test_what_does_not_fit_is_refused_and_never_quoted(
    code: str, encoding: Encoding, values: Any
) -> None:
    error = refuses(code, encode, encoding, values)
    for shown in (str(error), repr(error), repr(error.args)):
        assert "123456" not in shown
        assert "nan" not in shown.replace("NaN", "")


def test_a_bad_number_is_found_wherever_it_stands() -> None:
    """Vectors are encoded piece by piece; the last piece counts as the first."""
    values = np.zeros((1 << 17) + 3)
    encode(Encoding.fixed_point(1.0), values)
    for place in (0, (1 << 17) - 1, 1 << 17, -1):
        bad = values.copy()
        bad[place] = 1.5
        refuses("FK-SUM-BOUND", encode, Encoding.fixed_point(1.0), bad)


@pytest.mark.parametrize(
    ("code", "make"),
    [
        ("FK-OPTION-CHOICE", lambda: Encoding.fixed_point(1.0, 8)),
        ("FK-OPTION-CHOICE", lambda: Encoding.fixed_point(1.0, 128)),
        ("FK-OPTION-CHOICE", lambda: Encoding("float", 64, 1.0)),  # type: ignore[arg-type]
        *(
            ("FK-OPTION-RANGE", lambda bound=bound: Encoding.fixed_point(bound))
            for bound in (0.0, -1.0, math.nan, math.inf)
        ),
        ("FK-SUM-OVERFLOW", lambda: Encoding.fixed_point(5e-324).check_room(3)),
        ("FK-SUM-OVERFLOW", lambda: Encoding.fixed_point(2.0**12 + 1, 16).check_room(3)),
        ("FK-SUM-OVERFLOW", lambda: Encoding.fixed_point(1.0, 16).check_room(2**15)),
    ],
)
def test_encodings_that_cannot_be_are_refused(code: str, make: Callable[[], Any]) -> None:
    Encoding.fixed_point(2.0**12, 16).check_room(3)  # the last with room
    Encoding.fixed_point(1.0, 16).check_room(2**14)
    refuses(code, make)


@pytest.mark.parametrize("kind", ["fixed-point", "integer", "circle"])
def test_an_empty_vector_is_no_error(kind: Any) -> None:
    encoding = Encoding(kind, 32, 1.0)
    ring = encode(encoding, np.zeros(0, np.int64 if kind == "integer" else np.float64))
    assert (ring.size, ring.dtype) == (0, encoding.dtype)
    assert encoding.decode(ring, 3).size == 0


# -- the reference of these tests is itself right


def test_the_reference_finds_known_elements() -> None:
    """Negative control: the independent encoder is not a copy of the code under test."""
    fixed = Encoding.fixed_point(1.0, 16)
    assert Reference.ring(fixed, 4, [1.0, -1.0, 0.25]) == [4096, 61440, 1024]
    assert Reference.ring(Encoding.circle(16), 4, [math.pi, -math.pi / 2]) == [32768, 49152]
    assert Reference.total(Encoding.integers(9), 2, [[9, -9], [9, -9]]).tolist() == [18, -18]
    assert encode(fixed, [0.25], 4).tolist() != Reference.ring(fixed, 8, [0.25])
