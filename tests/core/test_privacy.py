"""Privacy: the law of the noise, what releases cost, how far a record moves what is released."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, rdp
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from flwr.app import Context, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from refusals import refused
from scipy import special, stats

from fedkern_flwr.clients import KernelPCAClient
from fedkern_flwr.clients.pof_mkl_private import message_sum
from fedkern_flwr.kernels.pca import REST_SENSITIVITY, SENSITIVITY, features_of, moments
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.private import ridge_release, ridge_sum, update_release
from fedkern_flwr.privacy import Budget, noise, plan_release, sensitivity, skellam
from fedkern_flwr.privacy.accounting import ORDERS, epsilon_of, skellam_curve
from fedkern_flwr.privacy.noise import bessel, reach
from fedkern_flwr.secure_aggregation.clipping import Clip

# -- the noise, which cannot be seeded: what is random here fails once in 10^9 runs


ALARM = 1e-9  # of a false one

DRAWS = 400_000

VARIANCES = [1 << 16, 123_457, 1 << 22]


def law(variance):
    """P(abs(X) <= k) of the sampler as fractions."""
    upper, lower = noise._thresholds(variance)
    return [Fraction((int(u) << 64) + int(w), 1 << 127) for u, w in zip(upper, lower, strict=True)]


@pytest.mark.promise("noise-law")
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


@pytest.mark.promise("noise-law")
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
    seeds = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        seeds.append(skellam(1 << 20, 500))
    assert not np.array_equal(*seeds)
    with pytest.raises(ValueError, match="key of 3 bytes"):
        skellam(1 << 20, 5, b"abc")


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


# -- what releases cost, against divergences term by term and dp-accounting


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


@pytest.mark.promise("noise-cost")
@pytest.mark.parametrize(("order", "variance", "shift"), CASES)
def test_the_curve_is_above_the_divergence_and_close_to_it(order, variance, shift):
    found = skellam_curve(variance, shift, shift)[list(ORDERS).index(order)]
    exact = divergence(order, variance, shift)
    assert exact <= found * (1 + 1e-9)
    assert found <= exact * (1 + 10 / math.sqrt(variance))


@pytest.mark.promise("noise-cost")
@pytest.mark.parametrize("multiplier", [0.7, 15.0])
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


def test_nothing_costs_nothing_and_no_delta_has_no_epsilon():
    assert epsilon_of(np.zeros(len(ORDERS)), 1e-5) == 0.0
    assert epsilon_of(skellam_curve(1e8, 100.0, 1e3), 0.0) == math.inf


def test_a_budget_travels_as_text():
    budget = Budget(3.0, 1e-6, "party", 2)
    assert Budget.read(budget.write()) == budget
    assert Budget.read("") is None
    for text in ("{}", "[1]", "x", '{"epsilon": 3}', budget.write().replace("3.0", '"3"')):
        with refused("FK-MESSAGE-FIELD"):
            Budget.read(text)


@pytest.mark.parametrize(
    ("budget", "code"),
    [
        ({"epsilon": 0.0}, "FK-OPTION-RANGE"),
        ({"epsilon": math.inf}, "FK-OPTION-RANGE"),
        ({"epsilon": 1.0, "delta": 1.0}, "FK-OPTION-RANGE"),
        ({"epsilon": 1.0, "unit": "user"}, "FK-OPTION-CHOICE"),
        ({"epsilon": 1.0, "colluders": -1}, "FK-OPTION-RANGE"),
        ({"epsilon": 50.0}, "FK-BUDGET-EXACT"),
        ({"epsilon": 1e-9, "delta": 1e-25}, "FK-BUDGET-SMALL"),
        ({"epsilon": 1.0, "colluders": 2}, "FK-BUDGET-COLLUDERS"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(budget, code):
    with refused(code):
        plan_release("sum", Budget(**budget), sensitivity=2.0, length=5150, parties=3, least=2)


def test_without_the_library_that_accounts_there_is_no_plan(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with refused("FK-PACKAGE-MISSING"):
        plan_release("sum", Budget(1.0), sensitivity=1.0, length=5, parties=3, least=3)


# -- how far a record moves what is released


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


#: What every request for gradients says of features, and of whom a sum is.
ABOUT: dict[str, Any] = {"features": 3, "seed": 0, "regularization": 0.1, "precision": "float32"}
ABOUT |= {"frequency_draw": "orthogonal", "centre": 0.5, "released": 0}
PARTIES: dict[str, int] = {"messages": 9, "parties": 5, "least": 4}


def widths(*values: float) -> bytes:
    return np.array(values, "<f8").tobytes()


@pytest.mark.promise("noise-sensitivity")
@pytest.mark.parametrize("losses", [0, 4])
@pytest.mark.parametrize("released", [0, 5])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e30, math.inf])
def test_a_sample_moves_a_message_no_farther_than_is_charged(
    losses: int, released: int, scale: float
) -> None:
    """The worst neighbours that were found, in units of the ring and with rounding."""
    rng = np.random.default_rng(0)
    features, kernels, clip = 3, 4, 0.2
    pairs = released or kernels * features
    sums: dict[str, int] = {"pairs": pairs, "features": features, "losses": losses, "most": 6}
    release = update_release(Budget(3.0), clip=clip, **sums, **PARTIES)
    unit, farthest = 2.0**-release.noise.fraction, 0.0
    for number in range(150):
        theta = rng.choice([-scale, 0.0, scale], (kernels, 2 * features))
        about = {**ABOUT, "seed": number, "released": released, "samples": 6, "clip": clip}
        about |= {"theta": theta.astype(np.float32), "send_losses": losses > 0}
        about |= {"bandwidths": widths(*np.geomspace(1e-3, 10.0, kernels))}
        request = wire.SharedRequest(**about, weights=np.ones(kernels))
        x, y = rng.random((6, 3)), rng.uniform(-5.0, 5.0, 6)
        other_x, other_y = x.copy(), y.copy()
        other_y[3] = -y[3]  # to the other side
        if number % 2:
            other_x[3] = 1e3 * rng.standard_normal(3)
        both = (x, y), (other_x, other_y)
        with np.errstate(all="ignore"):
            vectors = [message_sum(request, *one) for one in both]
        assert all(np.isfinite(v).all() for v in vectors)
        whole = [np.rint(v / unit) for v in vectors]
        farthest = max(farthest, float(np.linalg.norm(whole[0] - whole[1]) * unit))
    assert farthest <= release.sensitivity
    if scale <= 1.0 and not losses:
        assert farthest > 0.95 * release.sensitivity


@pytest.mark.promise("noise-sensitivity")
@pytest.mark.parametrize("columns", [0, 1, 4])
@pytest.mark.parametrize(("kernels", "summed"), [(0, 3), (1, 3), (3, 2)])
def test_a_row_moves_sums_of_products_no_farther_than_is_charged(
    columns: int, kernels: int, summed: int
) -> None:
    if not columns and not kernels:
        return
    rng, farthest, features = np.random.default_rng(0), 0.0, 3
    about: dict[str, Any] = {"columns": columns, "kernels": kernels, "summed": summed}
    how: dict[str, int] = {"most": 5, "messages": 2, "parties": 5, "least": 5}
    release = ridge_release(Budget(3.0), features=features, **about, **how)
    unit = 2.0**-release.noise.fraction
    for number in range(300):
        request: Any = SimpleNamespace(raw=columns > 0, sums=kernels > 0, seed=number)
        request.bandwidths = widths(*np.geomspace(0.02, 1.0, kernels))
        request.features, request.summed, request.shared = features, summed, kernels
        x, y = rng.standard_normal((5, columns or 4)), rng.uniform(-5.0, 5.0, 5)
        other_x, other_y = x.copy(), y.copy()
        towards = rng.standard_normal(columns or 4) if number % 3 else np.zeros(columns or 4)
        other_x[2] = rng.choice([3.0, 1e300]) * (towards - x[2])
        other_y[2] = -5.0 * np.sign(y[2])
        both = (x, y), (other_x, other_y)
        with np.errstate(all="ignore"):
            sums = [ridge_sum(request, *one) for one in both]
        assert all(np.isfinite(one).all() for one in sums)
        whole = [np.rint(one / unit) for one in sums]
        farthest = max(farthest, float(np.linalg.norm(whole[0] - whole[1]) * unit))
    assert 0.6 * release.sensitivity < farthest <= release.sensitivity


def test_losses_of_kernels_that_are_not_drawn_are_charged() -> None:
    """A label that is predicted exactly takes the place of one that is far from all kernels."""
    kernels, features, clip = 8, 3, 0.2
    model: Any = {"bandwidths": widths(*[1.0] * kernels), "theta": np.zeros((kernels, 6), "f4")}
    request = wire.DrawnRequest(**ABOUT, **model, kernel=3, probability=0.5, clip=clip)
    x = np.full((1, 3), 0.3)
    one, other = (message_sum(request, x, np.array([label])) for label in (0.5, 9.0))
    moved = float(np.linalg.norm(one - other))
    assert moved == pytest.approx(3.0 * clip, rel=1e-6)
    sums: dict[str, int] = {"pairs": features, "features": features, "losses": kernels, "most": 1}
    charged = update_release(Budget(3.0), clip=clip, **sums, **PARTIES)
    assert 2.5 * clip < moved <= charged.sensitivity
    assert len(one) == 2 * features + kernels


def test_features_that_are_no_numbers_do_not_show() -> None:
    """Frequencies so high that phases of some rows overflow: a refusal would tell which."""
    model: Any = {"bandwidths": widths(1e-38), "theta": np.ones((1, 6), np.float32)}
    request = wire.SharedRequest(**ABOUT, **model, send_losses=True, weights=np.ones(1), clip=0.1)
    with np.errstate(all="ignore"):
        found = message_sum(request, np.full((1, 3), 30.0), np.zeros(1))
    assert np.isfinite(found).all()


@pytest.mark.parametrize(("unit", "messages"), [("row", 9), ("party", 9), ("party", 90)])
def test_epsilon_is_that_of_a_reckoning_by_hand(unit: Any, messages: int) -> None:
    least = 4 - 1
    how: dict[str, int] = {"pairs": 12, "features": 3, "losses": 0, "most": 6, **PARTIES}
    release = update_release(Budget(3.0, 1e-5, unit), clip=0.1, **{**how, "messages": messages})
    times, one = (1, 1) if unit == "row" else (messages, 6)
    scale = 2.0**release.noise.fraction
    length, variance = 24, release.noise.variance * least
    two = one * 2.0 * 0.1 * math.sqrt(4) * scale * (1.0 + 1e-5) + math.sqrt(length)
    first = min(math.sqrt(length) * two, two**2)
    second = ((2 * ORDERS - 1) * two**2 + 6 * first) / (4 * variance**2)
    curve = ORDERS * two**2 / (2 * variance) + np.minimum(second, 1.5 * first / variance)
    by_hand = rdp.compute_epsilon(ORDERS.tolist(), (times * curve).tolist(), 1e-5)[0]
    assert by_hand == pytest.approx(3.0, rel=1e-3)
    assert epsilon_of(times * release.curve, release.delta) == pytest.approx(by_hand, rel=1e-5)
    ratio = math.sqrt(variance) / two
    exact = privacy_loss_distribution.from_gaussian_mechanism(ratio, sensitivity=1.0)
    exact = exact.self_compose(times) if times > 1 else exact
    assert 0.85 * by_hand < exact.get_epsilon_for_delta(1e-5) < by_hand


def far_apart(rng: Any, n: int) -> np.ndarray:
    return np.asarray(rng.uniform(0.0, 30.0, (n, 3)))  # so far apart that features are unrelated


def test_one_row_moves_the_moments_no_farther_than_is_charged() -> None:
    rng, farthest = np.random.default_rng(0), 0.0
    for seed in range(300):
        x = far_apart(rng, 20)
        other = x.copy()
        other[0] = far_apart(rng, 1)
        found = [
            np.concatenate([np.ravel(v) for v in moments(features_of(a, **kernel)).values()])
            for kernel in [{"bandwidth": 0.5, "features": 1 + seed % 3, "seed": seed}]
            for a in (x, other)
        ]
        farthest = max(farthest, float(np.linalg.norm(found[0] - found[1])))
    assert 0.97 * SENSITIVITY < farthest <= SENSITIVITY


def test_no_mean_and_no_components_make_a_held_out_row_count_for_more() -> None:
    config: Any = {"partition-id": 0, "num-partitions": 6, "simulation": True}
    x = np.random.default_rng(0).random((400, 3))
    node = KernelPCAClient(Context(1, 1, config, RecordDict(), {}), x[:300], x_test=x[300:])
    kernel: Any = {"bandwidth": 0.5, "features": 5, "seed": 0}
    rng = np.random.default_rng(0)
    for scale in (1.0, 100.0):
        about = {
            "mean": scale * rng.normal(size=10),
            "components": scale * rng.normal(size=(2, 10)),
        }
        before = node.add_rest(**about, **kernel)  # type: ignore[attr-defined]
        node.x_test = node.x_test.copy()
        node.x_test[0] += 7.0
        after = node.add_rest(**about, **kernel)  # type: ignore[attr-defined]
        moved = math.hypot(*(before[k] - after[k] for k in before))
        assert moved <= REST_SENSITIVITY
        assert all(0.0 <= v <= 4.0 * len(node.x_test) for v in after.values())


@pytest.mark.promise("averages-clipped")
@given(arrays(np.float64, 20, elements=st.floats(-1e300, 1e300)), st.floats(1e-3, 1e3))
def test_no_update_is_longer_than_the_clip_and_shorter_ones_stay(found, length):
    short = Clip(length, 1.0).shorten(found)
    with np.errstate(over="ignore"):
        whole = float(np.linalg.norm(found))
    assert np.linalg.norm(short) <= length
    if whole <= length * (1 - 1e-9):
        assert np.array_equal(short, found)
    elif math.isfinite(whole):
        np.testing.assert_allclose(short, found * length / whole, rtol=1e-9, atol=1e-300)


def test_the_ring_of_clipped_updates_is_the_smallest_with_room_for_them_and_their_noise():
    for clip, parties, bits in ((Clip(2.0, 0.5), 40, 32), (Clip(2.0, 0.5), 40_000_000, 64)):
        release = clip.release(Budget(1.0, 1e-5, "party"), 300, 40, 40)
        assert clip.encoding(release, parties).bits == bits
    clip = Clip(1.0, 1e-7)
    release = clip.release(Budget(1.0, 1e-5, "party"), 300, 5, 4)
    with refused("FK-CLIP-OVERFLOW"):
        clip.encoding(release, 10**9)
