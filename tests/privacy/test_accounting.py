"""What releases cost, against divergences computed term by term and against dp-accounting."""

import math
import sys

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from fedkern_flwr.errors import OptionError
from fedkern_flwr.privacy import Budget, plan_release, sensitivity
from fedkern_flwr.privacy.accounting import (
    ORDERS,
    epsilon_of,
    least_variance,
    skellam_curve,
)


def divergence(order, variance, shift):
    """The Renyi divergence of Skellam noise from the same moved by ``shift``, term by term."""
    reach = int(60 * math.sqrt(variance) + 40 * shift * order)
    k = np.arange(-reach, reach + 1)

    def log(k):
        with np.errstate(divide="ignore"):
            return np.log(special.ive(np.abs(k), float(variance)))

    p, q = log(k), log(k - shift)
    kept = np.isfinite(p) & np.isfinite(q)
    return special.logsumexp(order * p[kept] + (1 - order) * q[kept]) / (order - 1)


CASES = [
    (order, variance, shift)
    for variance in (4, 30, 500, 20_000)
    for shift in (1, 2, 5, 20)
    for order in (2, 3, 8, 16)
    if order * shift <= 2 * math.sqrt(variance)  # what is used, and what floats hold
]


@pytest.mark.parametrize(("order", "variance", "shift"), CASES)
def test_the_curve_is_above_the_divergence_and_close_to_it(order, variance, shift):
    found = skellam_curve(variance, shift, shift)[list(ORDERS).index(order)]
    exact = divergence(order, variance, shift)
    assert exact <= found * (1 + 1e-9)
    assert found <= exact * (1 + 10 / math.sqrt(variance))


@pytest.mark.parametrize("multiplier", [0.7, 1.2, 4.0, 15.0])
def test_much_noise_costs_what_gaussian_noise_costs(multiplier):
    delta, moved, length = 1e-5, 4000.0, 5000
    curve = skellam_curve((multiplier * moved) ** 2, moved, math.sqrt(length) * moved)
    accountant = RdpAccountant(ORDERS.tolist())
    accountant.compose(GaussianDpEvent(multiplier))
    gaussian = accountant.get_epsilon(delta)
    assert gaussian <= epsilon_of(curve, delta) <= 1.001 * gaussian


def test_releases_about_the_same_records_add_up():
    one = skellam_curve(1e8, 3000.0, 2e5)
    both, alone = epsilon_of(one + one, 1e-5), epsilon_of(one, 1e-5)
    assert alone < both < 2 * alone
    accountant = RdpAccountant(ORDERS.tolist())
    accountant.compose(GaussianDpEvent(1e4 / 3000.0), 2)
    assert both == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0, 8.0])
def test_the_noise_is_what_the_budget_needs_and_no_more(epsilon):
    planned = plan_release("sum", Budget(epsilon), sensitivity=2.2, length=5150, parties=6, least=5)
    assert 0.999 * epsilon <= planned.epsilon <= epsilon
    units = planned.sensitivity * 2.0**planned.noise.fraction
    assert units == pytest.approx(2.2 * 2.0**planned.noise.fraction + math.sqrt(5150))
    assert 2**13 < math.sqrt(planned.noise.variance) <= 2**15
    exact = skellam_curve(4.0 * planned.noise.variance, units, math.sqrt(5150) * units)
    assert np.array_equal(planned.curve, exact)  # t - c = 4


def test_what_the_sampler_may_be_off_is_taken_from_delta():
    budget = Budget(1.0, 1e-24)
    planned = plan_release("sum", budget, sensitivity=2.2, length=5150, parties=6, least=6)
    taken = (math.e + 1) * 5150 * 6 * 2.0**-99
    assert planned.delta == pytest.approx(1e-24 - taken, rel=1e-9)


def test_an_epsilon_beyond_what_the_sampler_is_exact_to_is_refused():
    with pytest.raises(OptionError, match="exact to") as why:
        plan_release("sum", Budget(50.0), sensitivity=2.0, length=5150, parties=6, least=6)
    assert "\n" not in str(why.value)


def test_nothing_costs_nothing_and_no_delta_has_no_epsilon():
    assert epsilon_of(np.zeros(len(ORDERS)), 1e-5) == 0.0
    assert epsilon_of(skellam_curve(1e8, 100.0, 1e3), 0.0) == math.inf


def test_a_budget_that_no_noise_keeps_is_refused():
    with pytest.raises(OptionError, match="no noise"):
        least_variance(1.0, 1.0, 1e-9, 1e-300, least=1)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"epsilon": 0.0}, "privacy_epsilon"),
        ({"epsilon": math.inf}, "privacy_epsilon"),
        ({"epsilon": 1.0, "delta": 1.0}, "privacy_delta"),
        ({"epsilon": 1.0, "unit": "user"}, "privacy_unit"),
        ({"epsilon": 1.0, "colluders": -1}, "privacy_colluders"),
    ],
)
def test_what_is_no_budget_is_refused(wrong, named):
    with pytest.raises(OptionError, match=named):
        Budget(**wrong)


def test_a_budget_travels_as_text():
    budget = Budget(3.0, 1e-6, "party", 2)
    assert Budget.read(budget.write()) == budget
    assert Budget.read("") is None
    for text in ("{}", "[1]", "x", '{"epsilon": 3}', budget.write().replace("3.0", '"3"')):
        with pytest.raises(OptionError):
            Budget.read(text)


def test_a_sum_that_colluders_open_alone_is_refused():
    with pytest.raises(OptionError, match="2 parties of which 2 collude"):
        plan_release("sum", Budget(1.0, colluders=2), sensitivity=1.0, length=5, parties=3, least=2)


def test_without_the_library_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(OptionError, match="pip install") as refused:
        plan_release("sum", Budget(1.0), sensitivity=1.0, length=5, parties=3, least=3)
    assert "\n" not in str(refused.value)


# -- sensitivity

ROWS = st.integers(0, 2**32 - 1)


def features(rng, pairs):
    phases = rng.uniform(0, 2 * np.pi, pairs)
    return np.concatenate([np.cos(phases), np.sin(phases)]) / np.sqrt(pairs)


@given(ROWS, st.integers(1, 40), st.floats(0.1, 3.0))
@settings(max_examples=200, deadline=None)
def test_a_row_moves_normal_equations_no_farther_than_declared(seed, pairs, bound):
    rng = np.random.default_rng(seed)
    u, v = features(rng, pairs), features(rng, pairs)
    upper = np.triu_indices(2 * pairs)
    moved = (np.outer(u, u) - np.outer(v, v))[upper]
    labels = bound * (u + v)  # y = bound and y = -bound
    found = math.hypot(np.linalg.norm(moved), np.linalg.norm(labels))
    assert found <= sensitivity.ridge(2 * pairs, bound) * (1 + 1e-12)


@pytest.mark.parametrize("pairs", [1, 2, 7])
@pytest.mark.parametrize("bound", [0.0, 0.5, 1.0, 2.0])
def test_the_sensitivity_of_ridge_is_attained(pairs, bound):
    """By phases of equal inner products, whose squares move by as much as they can."""
    c = min(1.0, bound**2 / (1.0 + 1.0 / pairs))
    half = math.acos(c) / 2.0
    phases = np.outer([math.pi / 4.0 + half, math.pi / 4.0 - half], np.ones(pairs))
    u, v = np.hstack([np.cos(phases), np.sin(phases)]) / math.sqrt(pairs)
    moved = (np.outer(u, u) - np.outer(v, v))[np.triu_indices(2 * pairs)]
    found = math.hypot(np.linalg.norm(moved), np.linalg.norm(bound * (u + v)))
    assert found == pytest.approx(sensitivity.ridge(2 * pairs, bound))


@given(ROWS, st.integers(1, 60), st.floats(0.0, 50.0))
@settings(max_examples=100, deadline=None)
def test_rounding_adds_the_root_of_the_length(seed, length, moved):
    rng = np.random.default_rng(seed)
    a, step = rng.normal(0, 100, length), rng.normal(size=length)
    b = a + moved * step / np.linalg.norm(step)
    apart = np.linalg.norm(np.rint(a) - np.rint(b))
    assert apart <= moved + math.sqrt(length) + 1e-9
