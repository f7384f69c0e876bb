"""How numbers enter a ring and leave it: exact where it says so, refused where it must."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from scipy import special, stats
from sums_in_memory import Reference, Run, refuses

from fedkern_flwr.privacy import NoisySum
from fedkern_flwr.privacy.noise import reach
from fedkern_flwr.secure_sum import Encoding, PartyState
from fedkern_flwr.secure_sum.membership import Cohort
from fedkern_flwr.secure_sum.noise_keys import noise_key

RINGS = (16, 32, 64)
bounds = st.floats(2.0**-40, 2.0**40)
rings = st.sampled_from(RINGS)


def encode(encoding: Encoding, values: Any, parties: int = 3) -> np.ndarray:
    return encoding.encode(np.asarray(values), parties, name="gradient")


# -- fixed point


@given(bits=rings, parties=st.integers(2, 2000), bound=bounds)
def test_the_overflow_rule_keeps_sums_to_a_quarter(bits: int, parties: int, bound: float) -> None:
    encoding = Encoding.fixed_point(bound, bits)
    f = encoding.fraction_bits(parties)
    assert f == Reference.fraction_bits(encoding, parties)
    scaled = parties * Fraction(bound) * Fraction(2) ** f
    assert scaled <= 2 ** (bits - 2)
    assert 2 * scaled > 2 ** (bits - 2) / 4  # not a bit more is given away than two roundings


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
def test_integers_are_summed_exactly_up_to_the_largest_with_room(bits: int, parties: int) -> None:
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


@pytest.mark.parametrize(("code", "encoding", "values"), [
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
])  # fmt: skip
def test_what_does_not_fit_is_refused_unquoted(code: str, encoding: Encoding, values: Any) -> None:
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


@pytest.mark.parametrize(("code", "make"), [
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
])  # fmt: skip
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


# -- noise


ALARM = 1e-9  # probability of a false one: the noise cannot be seeded
SMALL = NoisySum(1 << 16, 4)


def begin(parties: int) -> Run:
    """Begin a run in which each party has a key of noise."""
    run = Run(parties)
    for p in run.members:
        state = PartyState.unpack(run.states[p])
        state.noise_key = secrets.token_bytes(32)
        run.states[p] = state.pack()
    return run


NOISE_RINGS = [(16, NoisySum(1 << 16, -1)), (32, SMALL), (64, SMALL)]


@pytest.mark.parametrize(("bits", "noise"), NOISE_RINGS)
@pytest.mark.parametrize("parties", [2, 12, 50])
def test_noise_at_its_largest_does_not_wrap(bits: int, noise: NoisySum, parties: int) -> None:
    """All parties at their bound, with all of them the largest noise that there is."""
    encoding = Encoding.fixed_point(3.0, bits).noisy(noise)
    if bits == 16 and parties > 9:
        refuses("FK-SUM-OVERFLOW", encoding.check_room, parties)
        return
    encoding.check_room(parties)
    one = encoding.encode(np.array([3.0, -3.0]), parties, name="x")
    most = reach(noise.variance)
    extreme = one + np.array([most, -most]).astype(one.dtype)
    total = np.zeros_like(one)
    for _ in range(parties):
        total += extreme
    found = encoding.decode(total, parties)
    largest = parties * (3.0 + most * 2.0**-noise.fraction)
    assert np.allclose(found, [largest, -largest], rtol=0.0, atol=parties * 2.0**-noise.fraction)
    encoding.check_total(found, parties, name="x")


@pytest.mark.parametrize(("bits", "noise"), NOISE_RINGS)
@pytest.mark.parametrize(("parties", "dead"), [(2, 0), (5, 1), (50, 5)])
def test_survivors_noise_has_its_law(bits: int, noise: NoisySum, parties: int, dead: int) -> None:
    """In each ring, by chi-square against e^-v I_k(v), where it has room; else it is refused."""
    run, encoding = begin(parties), Encoding.fixed_point(64.0, bits).noisy(noise)
    values = {p: np.resize([64.0, -64.0, 0.0], 4000) for p in range(dead, parties)}
    if bits == 16 and parties == 50:
        with refused("FK-SUM-OVERFLOW"):
            run.sum(values, encoding=encoding)
        return
    total = run.sum(values, encoding=encoding) - sum(values.values())
    units, variance = total * 2.0**noise.fraction, noise.variance * (parties - dead)
    assert np.array_equal(units, np.rint(units))
    whole = np.arange(-14 * math.isqrt(variance), 14 * math.isqrt(variance) + 1)
    below = np.cumsum(special.ive(np.abs(whole), float(variance)))
    assert below[-1] == pytest.approx(1.0)
    edges = whole[np.searchsorted(below, np.arange(1, 40) / 40)]
    expected = np.diff([0.0, *below[edges - whole[0]], below[-1]]) * units.size
    counts = np.bincount(np.searchsorted(edges, units), minlength=40)
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert stats.chi2.ppf(ALARM, 39) < statistic < stats.chi2.isf(ALARM, 39)


def test_what_no_noise_explains_is_no_total() -> None:
    encoding = Encoding.fixed_point(3.0).noisy(SMALL)
    largest = 2 * (3.0 + reach(SMALL.variance) / 16 + 1 / 16)
    encoding.check_total(np.array([0.999 * largest]), 2, name="x")
    with refused("FK-SUM-TOTAL"):
        encoding.check_total(np.array([1.01 * largest]), 2, name="x")


@pytest.mark.parametrize(("kind", "noise"), [
    *(("integer", SMALL), ("circle", SMALL)),
    *(("fixed-point", NoisySum(*of)) for of in ((1 << 15, 4), (1 << 33, 4), (1 << 16, 99))),
])  # fmt: skip
def test_noise_of_which_nothing_is_known_is_refused(kind: Any, noise: NoisySum) -> None:
    with refused("FK-SUM-ENCODING"):
        Encoding(kind, 64, 0.0 if kind == "circle" else 2.0, noise)


def test_a_sum_that_is_repeated_has_the_noise_that_it_had() -> None:
    """Byte for byte, under other masks, from parties that were only bytes in between."""
    run = begin(4)
    encoding = Encoding.fixed_point(5.0).noisy(SMALL)
    values = {p: np.full(50, float(p)) for p in run.members}
    first = run.sum(values, encoding=encoding, name="gradient")
    again = run.sum(values, encoding=encoding, name="gradient#another attempt")
    assert np.array_equal(first, again)
    assert not np.array_equal(first, np.full(50, 6.0))


@pytest.mark.promise("noise-its-own")
@pytest.mark.parametrize("change", ["values", "name", "length"])
def test_what_differs_has_noise_of_its_own(change: str) -> None:
    run, length = begin(4), 400
    encoding = Encoding.fixed_point(5.0).noisy(SMALL)
    values = {p: np.zeros(length) for p in run.members}
    first = run.sum(values, encoding=encoding, name="a")
    if change == "values":  # by one digit, of each party
        values = {p: np.full(length, 2.0**-4) for p in run.members}
    if change == "length":
        values = {p: np.zeros(length + 1) for p in run.members}
    name = "b" if change == "name" else "a"
    second = run.sum(values, encoding=encoding, name=name)[:length]
    apart = second - values[0][:length].sum() / length * 4 - first
    expected = math.sqrt(2.0) * SMALL.deviation(4)
    assert abs(apart.std() / expected - 1) < stats.norm.isf(ALARM) * math.sqrt(0.51 / length)


def test_zeros_of_two_releases_have_noise_of_their_own() -> None:
    """What a party without rows adds round after round is the same, and its noise is not."""
    run, encoding = begin(3), Encoding.fixed_point(5.0).noisy(SMALL)
    found = []
    for release in ("1", "2", "2"):
        running = run.order(100, encoding, name="gradient")
        party = run.party(0)
        for section in run.server.sections(0, [running]):
            if section.phase == "sum-roster" and not party.state.digest:
                party.join(section)  # type: ignore[arg-type]
        party.contribute(running.order, np.zeros(100), release=release)
        run.keep(party)
        found.append(party.drawn["gradient"])
        run.server.close(running)
    assert found[0] != found[1] == found[2]


def test_among_other_parties_noise_is_another_whatever_the_server_calls_them() -> None:
    """Else the difference of two sums shows the parties in which they differ."""
    order = replace(Run(3).order(3, Encoding.fixed_point(1.0).noisy(SMALL)).order, index=0)
    numbers = np.zeros(3, np.uint64)
    cohorts = [((0, 1, 2), 3), ((0, 1, 2), 3), ((0, 1, 3), 3), ((0, 1, 2, 3), 3), ((0, 1, 2), 2)]
    keys = [
        noise_key(bytes(32), order, Cohort(n, members, least, b""), "asked", numbers)
        for n, (members, least) in enumerate(cohorts)
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


def test_noise_in_a_run_without_a_budget_is_refused() -> None:
    zeros, encoding = dict.fromkeys(range(3), np.zeros(5)), Encoding.fixed_point(1.0).noisy(SMALL)
    with refused("FK-ORDER-NOISE"):
        Run(3).sum(zeros, encoding=encoding)
