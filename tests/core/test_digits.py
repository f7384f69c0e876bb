"""Sums of numbers beyond the bound of a run, digit by digit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.groups.digits import DIGITS, from_digits, to_digits

NUMBERS = st.lists(st.floats(-(2.0**79), 2.0**79), min_size=1, max_size=5)


@given(NUMBERS)
def test_digits_are_within_the_bound_and_make_the_number_again(numbers: list[float]) -> None:
    values = np.array(numbers)
    digits = to_digits(values)
    assert digits.shape == (DIGITS * len(values),)
    assert np.abs(digits).max() <= 2.0**20
    rest = digits[len(values) :]
    np.testing.assert_array_equal(rest, np.rint(rest))
    np.testing.assert_allclose(from_digits(digits), values, rtol=1e-15)


def test_numbers_below_the_bound_are_their_own_last_digit() -> None:
    values = np.array([0.1, -3.75, 2.0**20 - 1.0 / 3.0])
    np.testing.assert_array_equal(to_digits(values), [*values, *np.zeros(9)])


def test_the_sum_of_digits_is_that_of_the_numbers() -> None:
    few = np.random.default_rng(0).normal(size=(5, 3)) * [1.0, 1e9, 1e18]
    np.testing.assert_allclose(from_digits(sum(map(to_digits, few))), few.sum(0), rtol=1e-12)
