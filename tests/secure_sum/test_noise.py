"""Noise in secure sums: every opened sum has it, it never wraps, and it is never drawn twice."""

from __future__ import annotations

import math
import secrets
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from refusals import refused
from scipy import special, stats
from sums_in_memory import Run, refuses

from fedkern_flwr.privacy import NoisySum
from fedkern_flwr.privacy.noise import reach
from fedkern_flwr.secure_sum import Encoding, PartyState
from fedkern_flwr.secure_sum.membership import Cohort
from fedkern_flwr.secure_sum.noise_keys import noise_key

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


RINGS = [(16, NoisySum(1 << 16, -1)), (32, SMALL), (64, SMALL)]


@pytest.mark.parametrize(("bits", "noise"), RINGS)
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


@pytest.mark.parametrize(("bits", "noise"), RINGS)
@pytest.mark.parametrize(("parties", "dead"), [(2, 0), (5, 1), (50, 5)])
def test_the_noise_of_survivors_has_the_law_of_their_variance(
    bits: int, noise: NoisySum, parties: int, dead: int
) -> None:
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


@pytest.mark.parametrize(
    ("kind", "noise"),
    [
        *(("integer", SMALL), ("circle", SMALL)),
        *(("fixed-point", NoisySum(*of)) for of in ((1 << 15, 4), (1 << 33, 4), (1 << 16, 99))),
    ],
)
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


@pytest.mark.parametrize("other", [NoisySum(), NoisySum(1 << 17, 4), NoisySum(1 << 16, 5)])
def test_a_sum_is_not_repeated_with_other_noise(other: NoisySum) -> None:
    run, encoding = begin(3), Encoding.fixed_point(5.0)
    values = dict.fromkeys(range(3), np.zeros(5))
    run.sum(values, encoding=encoding.noisy(SMALL), name="a")
    with refused("FK-ORDER-PARTIES"):
        run.sum(values, encoding=encoding.noisy(other), name="a")
