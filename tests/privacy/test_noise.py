"""Skellam noise: its law, its randomness, and what survives of it in a sum.

The noise comes from the operating system and cannot be seeded: what is random here fails once in
10^9 runs.
"""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy import special, stats

from fedkern_flwr.privacy import Budget, noise, plan_release, skellam
from fedkern_flwr.privacy.noise import bessel, reach

ALARM = 1e-9  # of a false one
DRAWS = 400_000
VARIANCES = [1 << 16, 123_457, 1 << 22]


def law(variance):
    """P(abs(X) <= k) of the sampler as fractions."""
    upper, lower = noise._thresholds(variance)
    return [Fraction((int(u) << 64) + int(w), 1 << 127) for u, w in zip(upper, lower, strict=True)]


@pytest.mark.parametrize("variance", VARIANCES[:2])
def test_the_moments_are_exact(variance):
    below = [Fraction(0), *law(variance), Fraction(1)]
    mass = [b - a for a, b in pairwise(below)]
    second = sum(k**2 * p for k, p in enumerate(mass))
    fourth = sum(k**4 * p for k, p in enumerate(mass))
    assert abs(second / variance - 1) < Fraction(1, 10**25)
    assert abs(fourth / (variance + 3 * variance**2) - 1) < Fraction(1, 10**22)


@pytest.mark.parametrize("variance", VARIANCES)
def test_the_probabilities_are_those_of_bessel_functions(variance):
    found, k = bessel(variance), np.arange(0, 9 * math.isqrt(variance), 37)
    total = found[0] + 2 * sum(found[1:])
    ours = [float(Fraction(found[j], total)) for j in k]
    assert np.allclose(ours, special.ive(k, float(variance)), rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("variance", VARIANCES)
def test_draws_have_the_law(variance):
    draws = skellam(variance, DRAWS)
    edges = np.unique(np.rint(np.sqrt(variance) * stats.norm.ppf(np.arange(1, 200) / 200)))
    below = np.array([float(p) for p in law(variance)])
    cdf = np.where(
        edges < 0,
        (1 - below[np.abs(edges).astype(int) - 1]) / 2,
        0.5 + below[edges.astype(int)] / 2,
    )  # P(X <= edge)
    expected = DRAWS * np.diff([0.0, *cdf, 1.0])
    counts = np.bincount(np.searchsorted(edges, draws), minlength=len(edges) + 1)
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = len(edges)
    assert stats.chi2.ppf(ALARM, freedom) < statistic < stats.chi2.isf(ALARM, freedom)
    sigmas = stats.norm.isf(ALARM)
    assert abs(draws.mean()) < sigmas * math.sqrt(variance / DRAWS)
    assert abs(draws.var() / variance - 1) < sigmas * math.sqrt(2.001 / DRAWS)
    assert np.abs(draws).max() <= reach(variance)


def test_signs_and_sizes_are_independent_and_even():
    draws = skellam(1 << 16, DRAWS)
    inside = np.abs(draws) < 172  # about half of them
    table = [[np.sum((draws > 0) & inside), np.sum((draws < 0) & inside)]]
    table += [[np.sum((draws > 0) & ~inside), np.sum((draws < 0) & ~inside)]]
    assert stats.chi2_contingency(np.array(table)).pvalue > ALARM


def test_parity_is_that_of_a_lattice_of_all_integers():
    """Rounded or doubled draws would miss numbers."""
    odd = int((skellam(1 << 16, DRAWS) % 2).sum())
    assert stats.binomtest(odd, DRAWS).pvalue > ALARM


class FixedStream:
    """A key stream that gives one word, always."""

    def __init__(self, word):
        self.word = word

    def update(self, zeros):
        return int(self.word).to_bytes(8, "little") * (len(zeros) // 8)


@pytest.mark.parametrize("place", [0, 1, 17, 300])
def test_a_tie_is_decided_by_further_bits(place):
    upper, lower = noise._thresholds(1 << 16)
    words = np.array([upper[place] * 2, upper[place] * 2 + 1], np.uint64)
    low, high = FixedStream(int(lower[place]) - 1), FixedStream(int(lower[place]))
    assert noise._draw(words, upper, lower, low).tolist() == [place, -place]
    assert noise._draw(words, upper, lower, high).tolist() == [place + 1, -place - 1]


def test_the_tail_is_counted_to_its_end():
    upper, lower = noise._thresholds(1 << 16)
    words = np.array([(1 << 64) - 2], np.uint64)
    draws = noise._draw(words, upper, lower, FixedStream((1 << 64) - 1))
    assert draws[0] == len(upper)
    assert draws[0] <= reach(1 << 16)
    weights = bessel(1 << 16)
    beyond = Fraction(2 * sum(weights[len(upper) + 1 :]), weights[0] + 2 * sum(weights[1:]))
    assert 0 < beyond <= Fraction(1, 1 << 100)


def test_a_key_gives_the_same_noise_and_none_fresh_noise():
    key = bytes(range(32))
    assert np.array_equal(skellam(1 << 20, 500, key), skellam(1 << 20, 500, key))
    assert not np.array_equal(skellam(1 << 20, 500), skellam(1 << 20, 500))
    with pytest.raises(ValueError, match="key of 3 bytes"):
        skellam(1 << 20, 5, b"abc")


def test_seeds_of_numpy_do_not_change_it():
    np.random.seed(0)  # noqa: NPY002
    first = skellam(1 << 20, 500)
    np.random.seed(0)  # noqa: NPY002
    assert not np.array_equal(first, skellam(1 << 20, 500))


@pytest.mark.parametrize("variance", [0, 15, 1 << 15, 1 << 33])
def test_variances_for_which_nothing_is_argued_are_refused(variance):
    with pytest.raises(ValueError, match="outside"):
        skellam(variance, 1)


@pytest.mark.parametrize(
    ("parties", "least", "colluders"),
    [(2, 2, 1), (2, 2, 0), (3, 3, 1), (10, 7, 2), (30, 21, 1), (50, 34, 5)],
)
def test_whoever_survives_the_declared_noise_is_there(parties, least, colluders):
    """The fewest that open a sum, less those who tell what they added."""
    budget = Budget(3.0, colluders=colluders)
    planned = plan_release("sum", budget, sensitivity=2.0, length=100, parties=parties, least=least)
    variance, count = planned.noise.variance, 40_000
    needed = variance * (least - colluders) * 4.0**-planned.noise.fraction
    total = sum(skellam(variance, count) for _ in range(least - colluders))
    found = total.astype(float) * 2.0**-planned.noise.fraction
    sigmas = stats.norm.isf(ALARM)
    assert abs(found.var() / needed - 1) < sigmas * math.sqrt(2.001 / count)
    assert planned.noise.deviation(least - colluders) ** 2 == pytest.approx(needed)
    assert planned.noise.deviation(parties) ** 2 >= needed
