"""Privacy: the law of the noise, what releases cost, how far a record moves what is released."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from averaging_apps import noisy_app
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from refusals import refused, refuses
from scipy import special, stats
from scipy.optimize import brentq
from zoo import SecureMean

from fedkern_flwr.clients import KernelPCAClient, SummaryClient
from fedkern_flwr.clients.pof_mkl_samples import message_sum
from fedkern_flwr.kernel_pca import REST_SENSITIVITY, SENSITIVITY, moments
from fedkern_flwr.kernels.product import features_of
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.private import Times, ridge_release, ridge_sum, update_release
from fedkern_flwr.privacy import Budget, accounting, plan_release, skellam
from fedkern_flwr.privacy.accounting import ORDERS, bessel, epsilon_of, reach, skellam_curve
from fedkern_flwr.privacy.budget import plan_sum
from fedkern_flwr.secure_aggregation.averages import TRAIN_SUM
from fedkern_flwr.secure_aggregation.clipping import Clip, NoisyMeans
from fedkern_flwr.simulations.attacks import budgets
from fedkern_flwr.simulations.attacks.budgets import (
    ALL,
    CASES,
    WIDTH,
    Audited,
    Case,
    Record,
    audit_epsilon,
    signed,
    tables_of,
)
from fedkern_flwr.simulations.attacks.seen import served
from fedkern_flwr.strategies import Summary
from fedkern_flwr.summary import NOISY, noisy_terms
from fedkern_flwr.summary_columns import public_columns

# -- the noise, which cannot be seeded: what is random here fails once in 10^9 runs


ALARM = 1e-9  # of a false one

DRAWS = 400_000

VARIANCES = [1 << 16, 123_457, 1 << 22]


def law(variance):
    """P(abs(X) <= k) of the sampler as fractions."""
    upper, lower = accounting._thresholds(variance)
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
def test_draws_have_the_law(variance):
    draws, sigmas = skellam(variance, DRAWS), stats.norm.isf(ALARM)
    edges = np.unique(np.rint(np.sqrt(variance) * stats.norm.ppf(np.arange(1, 200) / 200)))
    half = np.array([float(p) for p in law(variance)]) / 2
    places = np.abs(edges).astype(int)
    cdf = 0.5 + np.where(edges < 0, -half[places - 1], half[places])  # P(X <= edge)
    expected = DRAWS * np.diff([0.0, *cdf, 1.0])
    counts = np.bincount(np.searchsorted(edges, draws), minlength=len(edges) + 1)
    statistic, freedom = ((counts - expected) ** 2 / expected).sum(), len(edges)
    assert stats.chi2.ppf(ALARM, freedom) < statistic < stats.chi2.isf(ALARM, freedom)
    assert abs(draws.mean()) < sigmas * math.sqrt(variance / DRAWS)
    assert abs(draws.var() / variance - 1) < sigmas * math.sqrt(2.001 / DRAWS)
    assert np.abs(draws).max() <= reach(variance)


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
def test_a_tie_is_decided_by_further_bits_and_the_tail_is_counted_to_its_end(place):
    upper, lower = accounting._thresholds(1 << 16)
    words = np.array([upper[place] * 2, upper[place] * 2 + 1], np.uint64)
    low, high = FixedStream(int(lower[place]) - 1), FixedStream(int(lower[place]))
    assert accounting._draw(words, upper, lower, low).tolist() == [place, -place]
    assert accounting._draw(words, upper, lower, high).tolist() == [place + 1, -place - 1]
    last = np.array([(1 << 64) - 2], np.uint64)
    (draw,) = accounting._draw(last, upper, lower, FixedStream((1 << 64) - 1))
    assert draw == len(upper) <= reach(1 << 16)
    weights = bessel(1 << 16)
    beyond = Fraction(2 * sum(weights[len(upper) + 1 :]), weights[0] + 2 * sum(weights[1:]))
    assert 0 < beyond <= Fraction(1, 1 << 100)


def test_a_key_gives_the_same_noise_and_none_fresh_noise():
    key, seeds = bytes(range(32)), []
    assert np.array_equal(skellam(1 << 20, 500, key), skellam(1 << 20, 500, key))
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        seeds.append(skellam(1 << 20, 500))
    assert not np.array_equal(*seeds)
    with pytest.raises(ValueError, match="key of 3 bytes"):
        skellam(1 << 20, 5, b"abc")
    for variance in (0, 15, 1 << 15, 1 << 33):  # for which nothing is argued
        with pytest.raises(ValueError, match="outside"):
            skellam(variance, 1)


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


LAWS = [
    (order, variance, shift)
    for variance in (4, 30, 500, 20_000)
    for shift in (1, 2, 5, 20)
    for order in (2, 3, 8, 16)
    if order * shift <= 2 * math.sqrt(variance)  # what is used, and what floats hold
]


@pytest.mark.promise("noise-cost")
@pytest.mark.parametrize(("order", "variance", "shift"), LAWS)
def test_the_curve_is_above_the_divergence_and_close_to_it(order, variance, shift):
    found = skellam_curve(variance, shift, shift)[list(ORDERS).index(order)]
    exact = divergence(order, variance, shift)
    assert exact <= found * (1 + 1e-9)
    assert found <= exact * (1 + 10 / math.sqrt(variance))


def gaussian(multiplier, times=1):
    """The epsilon of Gaussian noise by another library."""
    accountant = RdpAccountant(ORDERS.tolist())
    accountant.compose(GaussianDpEvent(multiplier), times)
    return accountant.get_epsilon(1e-5)


@pytest.mark.promise("noise-cost")
@pytest.mark.parametrize("multiplier", [0.7, 15.0])
def test_much_noise_costs_what_gaussian_noise_costs(multiplier):
    moved, exact = 4000.0, gaussian(multiplier)
    curve = skellam_curve((multiplier * moved) ** 2, moved, math.sqrt(5000) * moved)
    assert exact <= epsilon_of(curve, 1e-5) <= 1.001 * exact


def test_releases_about_the_same_records_add_up_and_nothing_costs_nothing():
    one = skellam_curve(1e8, 3000.0, 2e5)
    both, alone = epsilon_of(one + one, 1e-5), epsilon_of(one, 1e-5)
    assert alone < both < 2 * alone
    assert both == pytest.approx(gaussian(1e4 / 3000.0, 2), rel=1e-3)
    assert epsilon_of(np.zeros(len(ORDERS)), 1e-5) == 0.0
    assert epsilon_of(one, 0.0) == math.inf  # there is none without a delta


@pytest.mark.parametrize("parts", [(1.0, 0.2, 0.97), (3.0, 0.6, 2.9), (10.0, 2.0, 9.5)])
def test_ranks_and_a_model_cost_together_what_the_page_says(parts: Any) -> None:
    whole, *each = parts
    about: dict[str, Any] = {"sensitivity": 1.0, "length": 5150, "parties": 4, "least": 4}
    curves = [plan_release("sum", Budget(one), **about).curve for one in each]
    assert 0.98 * whole < epsilon_of(sum(curves), 1e-5) <= whole
    page = (Path(__file__).parents[2] / "docs/privacy-budget.md").read_text("utf-8")
    assert "| {:g} | {:g} | {:g} |".format(*parts) in page


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0, 8.0])
def test_the_noise_is_what_the_budget_needs_and_no_more(epsilon):
    about = {"sensitivity": 2.2, "length": 5150, "parties": 6}
    planned = plan_release("sum", Budget(epsilon), **about, least=5)
    assert 0.999 * epsilon <= planned.epsilon <= epsilon
    units = planned.sensitivity * 2.0**planned.noise.fraction
    assert units == pytest.approx(2.2 * 2.0**planned.noise.fraction + math.sqrt(5150))
    assert 2**13 < math.sqrt(planned.noise.variance) <= 2**15
    exact = skellam_curve(4.0 * planned.noise.variance, units, math.sqrt(5150) * units)
    assert np.array_equal(planned.curve, exact)  # t - c = 4
    planned = plan_release("sum", Budget(1.0, 1e-24), **about, least=6)
    off = (math.e + 1) * 5150 * 6 * 2.0**-99  # what the sampler may be off
    assert planned.delta == pytest.approx(1e-24 - off, rel=1e-9)


@pytest.mark.parametrize("unit", ["row", "party"])
@pytest.mark.parametrize("releases", [1, 3])
def test_all_sums_that_a_unit_is_in_cost_the_budget_together(unit: Any, releases: int) -> None:
    """A party has rows to learn from and held-out ones: it is in twice as many as a row."""
    budget, about = Budget(2.0, unit=unit), {"sensitivity": 1.5, "length": 40, "least": 3}
    found = plan_sum("sum", budget, **about, rows=[9, 4, 2], releases=releases)
    times = releases * {"row": 1, "party": 2}[unit]
    assert 1.98 <= epsilon_of(times * found.curve, found.delta) <= 2.0
    assert found.sensitivity >= 1.5 * {"row": 1, "party": 9}[unit]


def test_a_budget_travels_as_text():
    budget = Budget(3.0, 1e-6, "party", 2)
    assert Budget.read(budget.write()) == budget
    assert Budget.read("") is None
    for text in ("{}", "[1]", "x", '{"epsilon": 3}', budget.write().replace("3.0", '"3"')):
        refuses("FK-MESSAGE-FIELD", Budget.read, text)


@pytest.mark.parametrize(("budget", "code"), [
    ({"epsilon": 0.0}, "FK-OPTION-RANGE"), ({"epsilon": math.inf}, "FK-OPTION-RANGE"),
    ({"epsilon": 1.0, "delta": 1.0}, "FK-OPTION-RANGE"),
    ({"epsilon": 1.0, "unit": "user"}, "FK-OPTION-CHOICE"),
    ({"epsilon": 1.0, "colluders": -1}, "FK-OPTION-RANGE"), ({"epsilon": 50.0}, "FK-BUDGET-EXACT"),
    ({"epsilon": 1e-9, "delta": 1e-25}, "FK-BUDGET-SMALL"),
    ({"epsilon": 1.0, "colluders": 2}, "FK-BUDGET-COLLUDERS"),
])  # fmt: skip
def test_a_budget_that_cannot_be_kept_is_refused(budget, code):
    with refused(code):
        plan_release("sum", Budget(**budget), sensitivity=2.0, length=5150, parties=3, least=2)


def test_without_the_library_that_accounts_there_is_no_plan(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with refused("FK-PACKAGE-MISSING"):
        plan_release("sum", Budget(1.0), sensitivity=1.0, length=5, parties=3, least=3)


# -- how far a record moves what is released


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
    assert found == pytest.approx(accounting.ridge(2 * pairs, bound))


#: What every request for gradients says of features, and of whom a sum is.
ABOUT: dict[str, Any] = {"features": 3, "seed": 0, "regularization": 0.1, "precision": "float32"}
ABOUT |= {"frequency_draw": "orthogonal", "centre": 0.5, "released": 0}
PARTIES: dict[str, int] = {"messages": 9, "parties": 5, "least": 4}


def widths(*values: float) -> bytes:
    return np.array(values, "<f8").tobytes()


def apart(summed: Any, one: Any, other: Any, unit: float) -> float:
    """How far two tables are apart in what is released of them, in whole units."""
    with np.errstate(all="ignore"):
        vectors = [summed(*one), summed(*other)]
    assert np.isfinite(vectors).all()
    return float(np.linalg.norm(np.diff(np.rint(np.array(vectors) / unit), axis=0)) * unit)


@pytest.mark.promise("noise-sensitivity")
@pytest.mark.parametrize("losses", [0, 4])
@pytest.mark.parametrize("released", [0, 5])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e30, math.inf])
def test_a_sample_moves_no_farther_than_charged(losses: int, released: int, scale: float) -> None:
    """The worst neighbours that were found, in units of the ring and with rounding."""
    rng = np.random.default_rng(0)
    features, kernels, clip = 3, 4, 0.2
    pairs = released or kernels * features
    sums: dict[str, int] = {"pairs": pairs, "features": features, "losses": losses}
    release = update_release(Budget(3.0), clip=clip, **sums, times=Times(6, **PARTIES))
    unit, farthest = 2.0**-release.noise.fraction, 0.0
    for number in range(60):
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
        moved = apart(
            lambda *rows, r=request: message_sum(r, *rows), (x, y), (other_x, other_y), unit
        )
        farthest = max(farthest, moved)
    assert farthest <= release.sensitivity
    if scale <= 1.0 and not losses:
        assert farthest > 0.95 * release.sensitivity


@pytest.mark.promise("noise-sensitivity")
@pytest.mark.parametrize(
    ("columns", "kernels", "summed"),
    [(1, 0, 3), (4, 0, 3), *((c, *both) for c in (0, 1, 4) for both in ((1, 3), (3, 2)))],
)
def test_a_row_moves_sums_no_farther_than_charged(columns: int, kernels: int, summed: int) -> None:
    rng, farthest, features = np.random.default_rng(0), 0.0, 3
    about: dict[str, Any] = {"columns": columns, "kernels": kernels, "summed": summed}
    how = Times(most=5, messages=2, parties=5, least=5)
    release = ridge_release(Budget(3.0), features=features, **about, times=how)
    unit = 2.0**-release.noise.fraction
    for number in range(120):
        request: Any = SimpleNamespace(raw=columns > 0, sums=kernels > 0, seed=number)
        request.bandwidths = widths(*np.geomspace(0.02, 1.0, kernels))
        request.features, request.summed, request.shared = features, summed, kernels
        x, y = rng.standard_normal((5, columns or 4)), rng.uniform(-5.0, 5.0, 5)
        other_x, other_y = x.copy(), y.copy()
        towards = rng.standard_normal(columns or 4) if number % 3 else np.zeros(columns or 4)
        other_x[2] = rng.choice([3.0, 1e300]) * (towards - x[2])
        other_y[2] = -5.0 * np.sign(y[2])
        moved = apart(
            lambda *rows, r=request: ridge_sum(r, *rows), (x, y), (other_x, other_y), unit
        )
        farthest = max(farthest, moved)
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
    sums: dict[str, int] = {"pairs": features, "features": features, "losses": kernels}
    times = Times(1, **PARTIES)
    assert moved <= update_release(Budget(3.0), clip=clip, **sums, times=times).sensitivity
    # features that are no numbers do not show: a refusal would tell which rows overflow
    model = {"bandwidths": widths(1e-38), "theta": np.ones((1, 6), np.float32)}
    wild = wire.SharedRequest(**ABOUT, **model, send_losses=True, weights=np.ones(1), clip=0.1)
    with np.errstate(all="ignore"):
        assert np.isfinite(message_sum(wild, np.full((1, 3), 30.0), np.zeros(1))).all()


def test_one_row_moves_the_moments_no_farther_than_is_charged() -> None:
    rng, farthest = np.random.default_rng(0), 0.0
    for seed in range(300):
        kernel: Any = {"bandwidth": 0.5, "features": 1 + seed % 3, "seed": seed}
        x = rng.uniform(0.0, 30.0, (20, 3))  # so far apart that features are unrelated
        other = np.concatenate([rng.uniform(0.0, 30.0, (1, 3)), x[1:]])
        one, two = (
            np.concatenate([np.ravel(v) for v in moments(features_of(a, **kernel)).values()])
            for a in (x, other)
        )
        farthest = max(farthest, float(np.linalg.norm(one - two)))
    assert 0.97 * SENSITIVITY < farthest <= SENSITIVITY


def test_no_mean_and_no_components_make_a_held_out_row_count_for_more() -> None:
    config: Any = {"partition-id": 0, "num-partitions": 6, "simulation": True}
    x, rng = np.random.default_rng(0).random((400, 3)), np.random.default_rng(0)
    node: Any = KernelPCAClient(Context(1, 1, config, RecordDict(), {}), x[:300], x_test=x[300:])
    about: Any = {"bandwidth": 0.5, "features": 5, "seed": 0}
    for scale in (1.0, 100.0):
        about["mean"] = scale * rng.normal(size=10)
        about["components"] = scale * rng.normal(size=(2, 10))
        before = node.add_rest(**about)
        node.x_test = node.x_test.copy()
        node.x_test[0] += 7.0
        after = node.add_rest(**about)
        assert math.hypot(*(before[k] - after[k] for k in before)) <= REST_SENSITIVITY
        assert all(0.0 <= v <= 4.0 * len(node.x_test) for v in after.values())


#: Two columns of numbers, the ranges of which are public.
PUBLIC = Path(__file__).with_name("public_columns.json")
COLUMNS = public_columns(str(PUBLIC), [0])


def noisy_vector(*columns: Any) -> Any:
    """Return what a node adds of these columns to a summary with noise."""
    own = dict(zip("ab", map(np.asarray, columns), strict=False))
    terms = noisy_terms(COLUMNS, own)
    return np.concatenate([np.ravel(part) for part in terms.values()])


def test_a_row_moves_figures_and_bins_of_a_summary_no_farther_than_charged() -> None:
    """Also with values beyond the public ranges, with gaps, and with zeros in most rows."""
    rng, farthest, ends = np.random.default_rng(0), 0.0, [-9.0, 0.0, 1e-9, 0.3, 1.0, 1e300, np.nan]
    for number in range(400):
        x = np.where(rng.random((2, 20)) < 0.5, 0.0, rng.lognormal(-5.0, 3.0, (2, 20)))
        other = x.copy()
        x[:, 4], other[:, 4] = rng.choice(ends, (2, 2)) if number % 2 else rng.random((2, 2))
        farthest = max(farthest, float(np.linalg.norm(noisy_vector(*x) - noisy_vector(*other))))
    assert NOISY.sensitivity == 1.0
    assert 0.99 < farthest <= 1.0 + 1e-12


@pytest.mark.promise("averages-clipped")
@settings(max_examples=100)
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
    refuses("FK-CLIP-OVERFLOW", clip.encoding, release, 10**9)


# -- lower bounds of epsilon: methods keep their budget, half the noise is caught, bounds are bounds


# -- any app: no method of the command line, and so no row of its table

_CLIP, _STEP = 2.0, 100.0  # a step far beyond the clip


def _averaging(record: Record, parties: int, **budget: Any) -> tuple[Any, ClientApp]:
    """Take a step of least squares; all rows of party 0 are the record."""
    delta, colluders = budget["privacy_delta"], budget["privacy_colluders"]

    def over(multiplier: float) -> float:
        """Return by how much a run with such noise costs more than it may."""
        means = NoisyMeans(Clip(_CLIP, multiplier), delta, colluders)
        means.open(WIDTH + 1, 1)
        return means.budget.epsilon - float(budget["privacy_epsilon"])

    noise: dict[str, Any] = {"clip": _CLIP, "noise_multiplier": brentq(over, 0.2, 1e4)}
    tables = tables_of(record, parties, ALL)

    def step(k: int) -> Any:
        x, y = tables[k]
        return _STEP * np.column_stack([x, np.ones(len(x))]).T @ y

    common: dict[str, Any] = {"delta": delta, "colluders": colluders, "threshold": 3}
    return SecureMean(fraction_evaluate=0.0, **noise, **common), noisy_app(step, **noise)


APP = Case(
    *("secure-aggregation", TRAIN_SUM, 4, _averaging, signed, "party"),
    least=3,
    start={"num_rounds": 1, "initial_arrays": ArrayRecord({"w": Array(np.zeros(WIDTH + 1))})},
    released=lambda strategy: (one for one, _ in strategy._averages.noisy._released),
)


def _summary(record: Record, parties: int, **budget: Any) -> tuple[Any, Any]:
    """Take the figures of two public columns."""
    tables = tables_of(record, parties)

    def party(context: Any, k: int) -> SummaryClient:
        return SummaryClient(context, tables[k][0], columns=("a", "b"))

    return Summary(bounds=str(PUBLIC), threshold=3, **budget), served(party)


def _figures(record: Record) -> Any:
    return noisy_vector(*record[0][:, None])


SUMMARY = Case("summary", NOISY.name, 4, _summary, _figures, least=3)

SURE, EPSILON, AUDITS = 1.0 - 1e-6, 8.0, 2000
EVERY = (*CASES, APP, SUMMARY)
TITLES = [case.title for case in EVERY]


def audited(case: Case, **more: Any) -> Audited:
    return audit_epsilon(case, EPSILON, draws=AUDITS, confidence=SURE, **more)


@pytest.mark.promise("epsilon-kept")
@pytest.mark.parametrize("case", EVERY, ids=TITLES)
def test_no_test_proves_more_epsilon_than_is_declared(case: Case) -> None:
    """And the audit is near: the sensitivity is used, half of epsilon is proven."""
    found = audited(case)
    assert found.score <= 1.0
    assert found.declared == pytest.approx(EPSILON, abs=1e-6)
    assert found.epsilon <= found.declared
    assert case.uses * found.sensitivity < found.moved <= found.sensitivity
    assert 0.85 * found.epsilon < found.reached <= found.epsilon
    assert 0.5 * found.epsilon < found.gaussian <= found.epsilon
    for wrong in ({"moved": 1.01 * found.sensitivity}, {"declared": 0.99 * found.epsilon}):
        assert replace(found, **wrong).score > 1.0
    assert len(np.unique(found.one)) > 0.9 * AUDITS  # each release has noise of its own


def test_the_control_of_the_table_adds_half_the_noise_and_is_of_a_sum_that_a_run_made() -> None:
    found = audited(CASES[0], noise=0.25)
    assert found.score > 1.0
    assert found.moved <= found.sensitivity
    refuses("FK-ATTACK-NOISE", audit_epsilon, replace(CASES[0], sum="rest"), 1.0, draws=1)


# -- the bounds


def test_epsilon_of_a_shift_is_that_of_the_analytic_gaussian_mechanism() -> None:
    for epsilon, deviation in ((1.0, 3.730632), (0.1, 30.8)):  # of Balle and Wang, delta 1e-5
        found = budgets.epsilon_of_shift(1.0 / deviation, 1e-5)
        assert found == pytest.approx(epsilon, rel=0.01)
        again = budgets.shift_of_epsilon(epsilon, 1e-5)
        assert again == pytest.approx(1.0 / deviation, rel=0.01)
    assert budgets.epsilon_of_shift(-0.1, 1e-5) == 0.0


@pytest.mark.promise("bounds-are-bounds")
@pytest.mark.parametrize("bound", [budgets.gaussian_epsilon, budgets.proven_epsilon])
@pytest.mark.parametrize("mu", [0.2, 3.0])
def test_bounds_are_below_epsilon_as_often_as_they_say(bound: Any, mu: float) -> None:
    rng, true, times = np.random.default_rng(0), budgets.epsilon_of_shift(mu, 1e-5), 60
    found = [
        bound(rng.normal(size=500), mu + rng.normal(size=500), mu, 1e-5, 0.9) for _ in range(times)
    ]
    assert np.mean(np.array(found) > true) < 0.1 + 3.0 * math.sqrt(0.09 / times)


def test_bounds_come_near_with_many_draws() -> None:
    rng, mu = np.random.default_rng(0), budgets.shift_of_epsilon(3.0, 1e-5)
    one, other = rng.normal(size=1_000_000), mu + rng.normal(size=1_000_000)
    assert 2.9 < budgets.gaussian_epsilon(one, other, mu, 1e-5, 0.95) < 3.0
    assert 2.0 < budgets.proven_epsilon(one, other, mu, 1e-5, 0.95) < 3.0
