"""Weights over kernels, step rules, the bound of Theorem 1, seeds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.errors import OptionError
from fedkern_flwr.online.learning import (
    AdaGradNorm,
    GradientDescent,
    adahedge_weights,
    current_weights,
    exponential_weights,
    kernel_weights,
    regret_bound,
    step_rule,
)
from fedkern_flwr.options import check_choice
from fedkern_flwr.seeding import derive_seed, uniform

# -- weights


def naive_weights(past: np.ndarray, losses: np.ndarray, eta: float) -> np.ndarray:
    """Weights before each sample as plain products w *= exp(-eta L)."""
    w, out = [math.exp(-eta * p) for p in past], []
    for loss in losses:
        out.append([v / sum(w) for v in w])
        w = [v * math.exp(-eta * x) for v, x in zip(w, loss, strict=True)]
    return np.array(out)


def test_exponential_weights_equal_the_product_form() -> None:
    rng = np.random.default_rng(0)
    past, losses = rng.random(7) * 20, rng.random((30, 7))
    weights, cumulative = exponential_weights(past, losses, 0.3)
    np.testing.assert_allclose(weights, naive_weights(past, losses, 0.3), atol=1e-12)
    np.testing.assert_allclose(cumulative, past + losses.sum(axis=0), rtol=1e-14)
    assert past is not cumulative


def test_weights_of_huge_losses_never_underflow() -> None:
    """The product form gives 0/0 here: exp(-1e5) is zero."""
    losses = np.array([[1e5, 1e5 + 1.0, 2e5]] * 4)
    weights, cumulative = exponential_weights(np.zeros(3), losses, 1.0)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-15)
    expected = 1.0 / (1.0 + math.exp(3.0))
    np.testing.assert_allclose(weights[3], [1.0 - expected, expected, 0.0], atol=1e-12)
    following = current_weights("exponential", cumulative, 0.0, 1.0)
    assert following[1] == pytest.approx(math.exp(-4.0) / (1 + math.exp(-4.0)), rel=1e-10)


def hedge_run(losses: np.ndarray) -> tuple[float, np.ndarray, float]:
    weights, cumulative, gap = adahedge_weights(np.zeros(losses.shape[1]), losses, 0.0)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)
    assert (weights >= 0.0).all()
    np.testing.assert_allclose(cumulative, losses.sum(axis=0), rtol=1e-12)
    return float((weights * losses).sum() - cumulative.min()), weights, gap


def adversarial(rounds: int, kernels: int) -> np.ndarray:
    """The largest loss always hits the kernel with the largest weight."""
    losses = np.zeros((rounds, kernels))
    cumulative, gap = np.zeros(kernels), 0.0
    for t in range(rounds):
        losses[t, current_weights("adahedge", cumulative, gap, 1.0).argmax()] = 1.0
        _, cumulative, gap = adahedge_weights(cumulative, losses[t : t + 1], gap)
    return losses


LOSSES = {
    "uniform": np.random.default_rng(1).random((400, 10)),
    "one good": np.random.default_rng(2).random((400, 10)) * np.r_[0.1, np.ones(9)],
    "adversarial": adversarial(400, 10),
    "alternating": np.tile([[0.0, 1.0], [1.0, 0.0]], (200, 1)),
    "follow the leader fails": np.vstack(
        [[[0.0, 0.5]], np.tile([[1.0, 0.0], [0.0, 1.0]], (99, 1))]
    ),
}


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e6])
@pytest.mark.parametrize("name", LOSSES)
def test_adahedge_keeps_its_regret_bound(name: str, scale: float) -> None:
    """JMLR 15 (2014), Theorem 8: R <= 2 sqrt(S L*(ST - L*)/(ST) ln N) + S (16/3 ln N + 2).

    Here with L* (1 - L*/(S T)) <= L* and losses in [0, S].
    """
    losses = LOSSES[name] * scale
    regret, _, gap = hedge_run(losses)
    log_n, best = math.log(losses.shape[1]), losses.sum(axis=0).min()
    assert regret <= 2.0 * math.sqrt(scale * best * log_n) + scale * (16 / 3 * log_n + 2.0)
    assert regret <= 2.0 * gap * (1 + 1e-9) + scale  # Lemma 3
    small, _, small_gap = hedge_run(LOSSES[name])
    assert regret == pytest.approx(scale * small, rel=1e-6)  # no learning rate to tune
    assert gap == pytest.approx(scale * small_gap, rel=1e-6)


def test_follow_the_leader_would_break_that_bound() -> None:
    """Negative control: the bound is not trivially true."""
    losses, cumulative, regret = LOSSES["adversarial"], np.zeros(10), 0.0
    for loss in LOSSES["follow the leader fails"]:
        regret += loss[cumulative[:2].argmin()]
        cumulative[:2] += loss
    best = cumulative[:2].min()
    assert regret - best > 2.0 * math.sqrt(best * math.log(2)) + 16 / 3 * math.log(2) + 2.0
    assert losses.sum() == 400.0


def test_adahedge_takes_samples_in_one_call_or_one_by_one() -> None:
    losses = LOSSES["one good"]
    together, cumulative, gap = adahedge_weights(np.zeros(10), losses, 0.0)
    past, running, rows = np.zeros(10), 0.0, []
    for loss in losses:
        row, past, running = adahedge_weights(past, loss[None], running)
        rows.append(row[0])
    np.testing.assert_array_equal(together, rows)
    np.testing.assert_array_equal(cumulative, past)
    assert gap == running


@pytest.mark.parametrize("rule", ["exponential", "adahedge", "uniform"])
def test_a_single_kernel_has_weight_one(rule: Any) -> None:
    losses = np.random.default_rng(3).random((200, 1))
    weights, cumulative, gap = kernel_weights(rule, np.full(1, 0.1), losses, 0.0, 0.5)
    np.testing.assert_array_equal(weights, 1.0)
    assert cumulative[0] == pytest.approx(0.1 + losses.sum(), rel=1e-12)
    assert gap == 0.0


def test_adahedge_itself_bears_a_single_kernel() -> None:
    """Rounding of (a + b) - a against b must not open a mixability gap."""
    losses = np.random.default_rng(4).random((500, 1))
    weights, _, gap = adahedge_weights(np.full(1, 0.1), losses, 0.0)
    np.testing.assert_array_equal(weights, 1.0)
    assert gap == pytest.approx(0.0, abs=1e-9)


def test_current_weights_are_those_before_the_next_sample() -> None:
    losses = LOSSES["uniform"]
    for rule in ("exponential", "adahedge"):
        zero = np.zeros(10)
        rows, *_ = kernel_weights(rule, zero, losses, 0.0, 0.2)  # type: ignore[arg-type]
        _, past, gap = kernel_weights(rule, zero, losses[:50], 0.0, 0.2)  # type: ignore[arg-type]
        now = current_weights(rule, past, gap, 0.2)  # type: ignore[arg-type]
        np.testing.assert_allclose(now, rows[50], rtol=1e-9)


# -- step rules, bound, seeds


def test_step_rules() -> None:
    theta, gradient = np.ones((2, 3)), np.array([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0]])
    rule = step_rule("paper", 2, 400)
    assert isinstance(rule, GradientDescent)
    rule.update(theta, gradient)
    np.testing.assert_allclose(theta, [[0.85, 1.0, 0.8], [1.0, 1.0, 1.0]])
    theta = np.ones((2, 3))
    ada = step_rule("adaptive", 2, 400)
    assert isinstance(ada, AdaGradNorm)
    ada.update(theta, gradient)
    np.testing.assert_allclose(theta, [[0.4, 1.0, 0.2], [1.0, 1.0, 1.0]])
    ada.update(theta, 1e9 * gradient)
    assert ada.state[1] == 0.0
    assert np.linalg.norm(theta[0] - [0.4, 1.0, 0.2]) == pytest.approx(1.0)


def test_regret_bound_of_theorem_one() -> None:
    eta = 1 / math.sqrt(500)
    expected = math.log(51) / eta + eta * 500 / 2
    assert regret_bound(51, eta, 500, 0.8) == pytest.approx(expected)
    assert regret_bound(51, eta, 500, 2.0) == pytest.approx(math.log(51) / eta + eta * 1000)


@given(st.integers(-(2**63), 2**63), st.lists(st.integers() | st.text(max_size=9), max_size=4))
def test_seeds_fit_a_signed_integer_and_draws_the_unit_interval(seed: int, labels: Any) -> None:
    derived = derive_seed(seed, *labels)
    assert 0 <= derived < 2**63
    assert derived == derive_seed(seed, *labels)
    assert 0.0 <= uniform(seed, *labels) < 1.0


def test_draws_are_uniform() -> None:
    draws = np.sort([uniform(3, "x", i) for i in range(4000)])
    assert np.abs(draws - (np.arange(4000) + 0.5) / 4000).max() < 1.63 / math.sqrt(4000)


def test_unknown_choices_are_listed() -> None:
    with pytest.raises(OptionError, match="engine is 'rai'; choose one of in-process, ray"):
        check_choice("engine", "rai", ("in-process", "ray"))
