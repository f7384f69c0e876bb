"""Online learning: weights, choice of kernels, step rules, recursive ridge regression, its plan."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkern_flwr.clients.pof_mkl_samples import StreamAccount
from fedkern_flwr.clients.pof_rls import learn_samples
from fedkern_flwr.online import learning, ridge
from fedkern_flwr.online.learning import Hedge
from fedkern_flwr.online.messages import RidgeRequest
from fedkern_flwr.online.network import plan_layers, project
from fedkern_flwr.seeding import derive_seed, uniform
from fedkern_flwr.strategies import POFRLS

# -- weights


def naive_weights(past: np.ndarray, losses: np.ndarray, eta: float) -> np.ndarray:
    """Weights before each sample as plain products w *= exp(-eta L)."""
    w, out = [math.exp(-eta * p) for p in past], []
    for loss in losses:
        out.append([v / sum(w) for v in w])
        w = [v * math.exp(-eta * x) for v, x in zip(w, loss, strict=True)]
    return np.array(out)


@pytest.mark.promise("online-before-label")
def test_exponential_weights_equal_the_product_form() -> None:
    rng = np.random.default_rng(0)
    past, losses = rng.random(7) * 20, rng.random((30, 7))
    weights, cumulative = learning.exponential_weights(past, losses, 0.3)
    np.testing.assert_allclose(weights, naive_weights(past, losses, 0.3), atol=1e-12)
    np.testing.assert_allclose(cumulative, past + losses.sum(axis=0), rtol=1e-14)
    assert past is not cumulative


def test_weights_of_huge_losses_never_underflow() -> None:
    """The product form gives 0/0 here: exp(-1e5) is zero."""
    losses = np.array([[1e5, 1e5 + 1.0, 2e5]] * 4)
    weights, cumulative = learning.exponential_weights(np.zeros(3), losses, 1.0)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-15)
    expected = 1.0 / (1.0 + math.exp(3.0))
    np.testing.assert_allclose(weights[3], [1.0 - expected, expected, 0.0], atol=1e-12)
    following = learning.current_weights("exponential", cumulative, 0.0, 1.0)
    assert following[1] == pytest.approx(math.exp(-4.0) / (1 + math.exp(-4.0)), rel=1e-10)


def hedge_run(losses: np.ndarray) -> tuple[float, float]:
    weights, cumulative, gap = learning.kernel_weights(
        "adahedge", np.zeros(losses.shape[1]), losses, 0.0, 1.0
    )
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)
    assert (weights >= 0.0).all()
    np.testing.assert_allclose(cumulative, losses.sum(axis=0), rtol=1e-12)
    return float((weights * losses).sum() - cumulative.min()), gap


def adversarial(rounds: int, kernels: int) -> np.ndarray:
    """The largest loss always hits the kernel with the largest weight."""
    losses = np.zeros((rounds, kernels))
    cumulative, gap = np.zeros(kernels), 0.0
    for t in range(rounds):
        losses[t, learning.current_weights("adahedge", cumulative, gap, 1.0).argmax()] = 1.0
        _, cumulative, gap = learning.kernel_weights(
            "adahedge", cumulative, losses[t : t + 1], gap, 1.0
        )
    return losses


UNIFORM = np.random.default_rng(1).random((400, 10))
LOSSES = {
    "uniform": UNIFORM,
    "one good": np.random.default_rng(2).random((400, 10)) * np.r_[0.1, np.ones(9)],
    "adversarial": adversarial(400, 10),
    "alternating": np.tile([[0.0, 1.0], [1.0, 0.0]], (200, 1)),
    "follow the leader": np.vstack([[[0.0, 0.5]], np.tile([[1.0, 0.0], [0.0, 1.0]], (99, 1))]),
}


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e6])
@pytest.mark.parametrize("name", LOSSES)
def test_adahedge_keeps_its_regret_bound(name: str, scale: float) -> None:
    """JMLR 15 (2014), Theorem 8: R <= 2 sqrt(S L*(ST - L*)/(ST) ln N) + S (16/3 ln N + 2).

    Here with L* (1 - L*/(S T)) <= L* and losses in [0, S].
    """
    losses = LOSSES[name] * scale
    regret, gap = hedge_run(losses)
    log_n, best = math.log(losses.shape[1]), losses.sum(axis=0).min()
    assert regret <= 2.0 * math.sqrt(scale * best * log_n) + scale * (16 / 3 * log_n + 2.0)
    assert regret <= 2.0 * gap * (1 + 1e-9) + scale  # Lemma 3
    small, small_gap = hedge_run(LOSSES[name])
    assert regret == pytest.approx(scale * small, rel=1e-6)  # no learning rate to tune
    assert gap == pytest.approx(scale * small_gap, rel=1e-6)


@pytest.mark.parametrize("rule", ["exponential", "adahedge", "uniform"])
def test_a_single_kernel_has_weight_one_and_weights_are_those_before_a_sample(rule: Any) -> None:
    one = UNIFORM[:, :1]
    weights, cumulative, gap = learning.kernel_weights(rule, np.full(1, 0.1), one, 0.0, 0.5)
    np.testing.assert_array_equal(weights, 1.0)
    assert cumulative[0] == pytest.approx(0.1 + one.sum(), rel=1e-12)
    assert gap == 0.0
    rows, *_ = learning.kernel_weights(rule, np.zeros(10), UNIFORM, 0.0, 0.2)
    _, past, gap = learning.kernel_weights(rule, np.zeros(10), UNIFORM[:50], 0.0, 0.2)
    np.testing.assert_allclose(learning.current_weights(rule, past, gap, 0.2), rows[50], rtol=1e-9)


@given(st.integers(2, 6), st.integers(1, 300), st.integers(0, 4000))
def test_the_mixture_keeps_the_bound_on_any_losses(experts: int, samples: int, seed: int) -> None:
    """Also where some are asleep, which have the mixture's loss."""
    rng = np.random.default_rng(seed)
    hedge, mixed = Hedge(np.zeros(experts)), 0.0
    better = rng.random(experts) ** 3
    for _ in range(samples):
        awake = rng.random(experts) < 0.8
        awake[rng.integers(experts)] = True
        losses = (rng.random(experts) < better).astype(float)
        loss = float(hedge.weights(awake) @ losses)
        hedge.learn(np.where(awake, losses, loss))
        mixed += loss
    best, log = float(hedge.losses.min()), math.log(experts)
    bound = 2.0 * math.sqrt(best * max(0.0, 1.0 - best / samples) * log) + 16.0 / 3.0 * log + 2.0
    assert mixed - best <= bound + 1e-9  # JMLR 2014, Theorem 8


# -- step rules, the bound, seeds


def test_step_rules() -> None:
    theta, gradient = np.ones((2, 3)), np.array([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0]])
    rule = learning.step_rule("paper", 2, 400)
    assert isinstance(rule, learning.GradientDescent)
    rule.update(theta, gradient)
    np.testing.assert_allclose(theta, [[0.85, 1.0, 0.8], [1.0, 1.0, 1.0]])
    theta = np.ones((2, 3))
    ada = learning.step_rule("adaptive", 2, 400)
    assert isinstance(ada, learning.AdaGradNorm)
    ada.update(theta, gradient)
    np.testing.assert_allclose(theta, [[0.4, 1.0, 0.2], [1.0, 1.0, 1.0]])
    ada.update(theta, 1e9 * gradient)
    assert ada.state[1] == 0.0
    assert np.linalg.norm(theta[0] - [0.4, 1.0, 0.2]) == pytest.approx(1.0)


def test_regret_bound_of_theorem_one() -> None:
    eta = 1 / math.sqrt(500)
    expected = math.log(51) / eta + eta * 500 / 2
    assert learning.regret_bound(51, eta, 500, 0.8) == pytest.approx(expected)
    assert learning.regret_bound(51, eta, 500, 2.0) == pytest.approx(
        math.log(51) / eta + eta * 1000
    )


@given(st.integers(-(2**63), 2**63), st.lists(st.integers() | st.text(max_size=9), max_size=4))
def test_seeds_fit_a_signed_integer_and_draws_the_unit_interval(seed: int, labels: Any) -> None:
    assert 0 <= derive_seed(seed, *labels) == derive_seed(seed, *labels) < 2**63
    assert 0.0 <= uniform(seed, *labels) < 1.0


def test_draws_are_uniform() -> None:
    draws = np.sort([uniform(3, "x", i) for i in range(4000)])
    assert np.abs(draws - (np.arange(4000) + 0.5) / 4000).max() < 1.63 / math.sqrt(4000)


# -- the kernels whose gradients are sent


TINY = 5e-324  # the smallest denormal number

WEIGHTS = [
    np.array([0.4, 0.3, 0.15, 0.1, 0.05]), np.array([1.0, 1e-5, 0.0, 0.0, 0.0]),
    np.array([1.0, TINY, TINY, TINY, TINY]), np.array([0.999, 0.001, 0.0, 0.0, 0.0]),
]  # fmt: skip


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("many", "xi"), [(1, 0.3), (2, 1.0), (3, 0.3)])
def test_subsets_have_kernels_as_often_as_said(weights: np.ndarray, many: int, xi: float) -> None:
    draws, expected, observed = 1500, np.full(5, np.nan), np.zeros(5)
    for seed in range(draws):
        chosen, expected_of = learning.select_subset(weights, many, xi, np.random.default_rng(seed))
        expected[chosen] = expected_of
        observed[chosen] += 1 / draws
    assert expected.sum() == pytest.approx(many, rel=1e-9)
    assert (expected >= xi * many / 5 - 1e-12).all()
    if many == 1:  # then it is equation 8 with bins of one kernel
        share = weights / weights.sum()
        np.testing.assert_allclose(expected, (1 - xi) * share + xi / 5, rtol=1e-9)
    tolerance = 4.5 * np.sqrt(expected * np.maximum(1.0 - expected, 0.0) / draws) + 1e-9
    assert (np.abs(observed - expected) <= tolerance).all()


@given(
    weights=st.lists(st.sampled_from([0.0, TINY, 1e-300, 1e-9, 0.1, 0.1, 0.5, 1.0]), min_size=1),
    many=st.integers(1, 30),
    xi=st.floats(0.01, 1.0),
)
def test_gradients_of_a_bin_are_unbiased(weights: list[float], many: int, xi: float) -> None:
    """The expectation over the draw is exact: every bin once, with its own probability."""
    w = np.array(weights)
    w = np.full(w.size, 1.0 / w.size) if w.sum() < 1e-100 else w / w.sum()
    many = min(many, w.size)
    gradient = np.random.default_rng(w.size).standard_normal(w.size)
    expectation, low, bins = np.zeros(w.size), 0.0, 0
    while low < 1.0 - 1e-9:
        chosen, p = learning.select_bin(w, many, xi, low)
        assert len(set(p.tolist())) == 1
        expectation[chosen] += p * (gradient[chosen] / p)
        low, bins = low + p[0] * (1 + 1e-12), bins + 1
        assert 1 <= chosen.size <= many
    assert bins == -(-w.size // many)
    np.testing.assert_allclose(expectation, gradient, rtol=1e-9)


def test_bins_are_sorted_by_weight_with_ties_by_index() -> None:
    weights = np.array([0.1, 0.3, 0.1, 0.3, 0.2])
    bins = [learning.select_bin(weights, 2, 1.0, draw)[0].tolist() for draw in (0.0, 0.34, 0.99999)]
    assert bins == [[1, 3], [4, 0], [2]]
    chosen, p = learning.select_bin(weights, 2, 0.4, 0.0)
    np.testing.assert_allclose(p, 0.6 * 0.6 + 0.4 / 3)
    assert chosen.dtype == np.int32
    last, _ = learning.select_bin(
        np.full(51, 1.0 / 51), 1, 0.7, 1.0 - 2**-53
    )  # which rounds below one
    assert last.tolist() == [50]


# -- POF-RLS: learners, and what a message sums


LAMBDA = 1e-3


@pytest.mark.parametrize("memory", [1.0, 0.98, 0.9])
@pytest.mark.parametrize("several", [1, 7, 70])
@pytest.mark.parametrize("features", [6, 40, 70])
def test_a_learner_of_rows_is_ridge_regression(memory: float, several: int, features: int) -> None:
    """However many rows it is given at once, and with its state kept between them."""
    rng, each = np.random.default_rng(0), np.arange(features)
    phi, y = rng.standard_normal((2, 70, features)), rng.standard_normal(70)
    more = {"memory": memory, "ridge": 0.5}

    def fresh() -> ridge.Ridges:
        start = np.stack([ridge.unlearned(features, 0.5)] * 2)
        return ridge.from_start(start, features, **more)

    learner, found = fresh(), []
    for t in range(0, 70, several):
        found.append(learner.learn(phi[:, t : t + several], y[t : t + several]))
        learner = ridge.from_state(learner.state, (2,), features, **more)
    matrix, vector = np.stack([0.5 * np.eye(features)] * 2), np.zeros((2, features))
    expected = np.zeros((2, 70))
    for t in range(70):
        row = phi[:, t]
        expected[:, t] = np.vecdot(row, np.linalg.solve(matrix, vector[..., None])[..., 0])
        matrix = memory * matrix + row[:, None] * row[..., None]
        j = each[t % features]
        matrix[:, j, j] += features * 0.5 * (1.0 - memory)
        vector = memory * vector + row * y[t]
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, rtol=0, atol=1e-9)
    theta = np.linalg.solve(matrix, vector[..., None])[..., 0]
    np.testing.assert_allclose(learner.theta, theta, atol=1e-9)
    for last in (False, True):  # what is predicted does not depend on what comes after
        np.testing.assert_allclose(fresh().learn(phi, y, last=last), expected, atol=1e-9)
    np.testing.assert_allclose(learner.theta, theta, atol=1e-9)


def test_who_cannot_learn_yet_stays_asleep_through_a_long_message() -> None:
    """Kernels without a width have the mixture's loss of each sample, however many come."""
    rng, account = np.random.default_rng(3), StreamAccount()
    strategy = POFRLS(features=4, regularization=LAMBDA)
    start = np.concatenate([ridge.unlearned(4, LAMBDA)] * 2)
    fields = {**strategy._fields(), "inverses": 2, "raw": True, "starts": start}
    request = RidgeRequest(step=1, samples=60, window=1, **fields)
    x = rng.random((60, 3)) / 2
    learn_samples(request, account, lambda start, many: (x[:many], x[:many].sum(axis=1)))
    raw, kernels = account.losses[:4], account.losses[4:]
    assert len(kernels) == 2
    np.testing.assert_allclose(kernels, account.total, rtol=1e-12)
    assert (np.abs(raw - account.total) > 1e-6 * account.total).all()


@pytest.mark.promise("rls-counting")
@settings(max_examples=100)
@given(
    samples=st.integers(1, 600),
    unknowns=st.floats(1.0, 2000.0),
    given=st.none() | st.integers(1, 60),
    columns=st.integers(0, 24),
    many=st.tuples(st.integers(0, 3), st.integers(1, 30)),
    most=st.tuples(
        st.just(math.inf) | st.integers(1, 2000), st.just(math.inf) | st.integers(1, 200)
    ),
)
def test_no_message_of_a_plan_releases_more_numbers_than_it_has_unknowns(
    samples: int, unknowns: float, given: int | None, columns: int, many: Any, most: Any
) -> None:
    """Nor than its budget has, up and down."""
    (kernels, features), (up, down) = many, most
    sizes = {"columns": columns, "kernels": kernels, "features": features, "fixed": 0}
    plan = ridge.plan(samples, unknowns, given=given, **sizes, up=up, down=down)
    raw = ridge.numbers(columns) if columns else 0
    lengths = np.diff([0, *plan.stops])
    assert lengths.sum() == samples
    assert lengths.min() >= 1
    if given:
        assert lengths.max() < 2 * given
    kept, released = plan.kernels * ridge.numbers(2 * plan.features), 0
    assert raw * (plan.raw > 0) + kept <= up
    assert columns * (plan.raw > 0) + plan.kernels * 2 * plan.features <= down
    if plan.kernels > 1:
        assert plan.features in (0, features)
    starts = (0, *plan.stops)
    for before, length, start, summed in zip(starts, lengths, plan.starts, plan.sums, strict=False):
        one = raw * (plan.raw > 0)
        assert one <= unknowns * length
        released = one + kept * summed + (released if start < before else 0)
        assert released <= unknowns * (before + length - start)
        assert start <= before
        if before and length != lengths[-1]:
            assert length <= max(before, lengths[0])


@pytest.mark.parametrize("dimension", [1, 3, 15, 24, 48, 529])
def test_the_network_has_at_most_a_thousand_parameters(dimension: int) -> None:
    widths = plan_layers(dimension)
    size = sum((a + 1) * b for a, b in pairwise(widths))
    larger = size + 20 * 21
    assert size <= 1000 < larger
    assert widths[-1] == 1
    assert set(widths[1:-1]) == {20}
    rows = np.ones((2, dimension))
    assert project(rows, widths[0], 0).shape == (2, widths[0])
