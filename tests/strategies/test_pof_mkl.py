"""POF-MKL against a separate plain implementation, with loops over clients and kernels.

Only the random draws are shared with the package. There are two modes: equations 6-10 of the paper,
with weights kept as plain products, and AdaGrad-norm with AdaHedge.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from plain_online import CLIENTS, DIMENSION, ETA, ROUNDS, SEED, D, N, features_of, plain_pof_mkl
from refusals import refused

from fedkern_flwr.simulations import Transcript, simulate
from fedkern_flwr.strategies import POFMKL


@pytest.fixture
def streams(make_streams: Callable[..., Any]) -> Any:
    return make_streams(CLIENTS, ROUNDS, DIMENSION, seed=1)


def run(streams: Any, *, paper: bool, **options: Any) -> SimpleNamespace:
    """The package's own POF-MKL in process, and what its clients reported."""
    mode = "paper" if paper else "adaptive"
    options = {"features": D, "kernels": N, "precision": "float64", "step_size": mode, **options}
    strategy, record = POFMKL(**options), Transcript()
    simulate(strategy, streams.client_fn, CLIENTS, seed=SEED, num_rounds=ROUNDS, transcript=record)
    reported: dict[int, list[float]] = {}
    for entry in record.entries(phase="online-personal", direction="up"):
        reported.setdefault(entry.scalars["round"], []).append(entry.scalars["regret"])
    account = np.array([streams.numbers(k) for k in range(CLIENTS)])
    losses, gaps = account[:, :N], account[:, 2 * N + 2]
    rates = np.full(CLIENTS, ETA) if paper else np.log(N) / gaps
    weights = np.exp(-rates[:, None] * (losses - losses.min(axis=1, keepdims=True)))
    return SimpleNamespace(
        theta=strategy.theta_,
        weights=weights / weights.sum(axis=1, keepdims=True),
        mse=[metrics["mse"] for metrics in strategy.history_],
        regret=[reported[t] for t in sorted(reported)],
        metrics=strategy.metrics_,
    )


def distance(ours: SimpleNamespace, plain: SimpleNamespace) -> float:
    """Largest difference in theta, weights, MSE and regret."""
    pairs = [(getattr(ours, n), getattr(plain, n)) for n in ("theta", "weights", "mse", "regret")]
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


@pytest.mark.promise("online-before-label", "online-gradients-weighed")
@pytest.mark.parametrize("paper", [True, False], ids=["paper", "adaptive"])
@pytest.mark.parametrize(
    ("many", "exploration", "samples"),
    [(1, 1.0, 1), (1, 0.3, 1), (4, 1.0, 1), (4, 0.3, 1), (N, 1.0, 1), (4, 0.3, 4), (N, 1.0, 4)],
)
def test_both_modes_equal_the_plain_algorithm(
    streams: Any, many: int, exploration: float, samples: int, paper: bool
) -> None:
    """With four samples 30 in 7 messages: weights move per sample, one summed gradient travels.

    In the adaptive mode the client's copy of the parameters moves per sample, too.
    """
    options: dict[str, Any] = {"exploration": exploration, "paper": paper}
    ours = run(streams, kernels_per_round=many, samples_per_round=samples, **options)
    z = features_of(streams, paper=paper)
    plain = plain_pof_mkl(z, streams.y, many=many, samples=samples, **options)
    assert len(ours.mse) == len(ours.regret) == ROUNDS // samples
    assert distance(ours, plain) < (1e-10 if paper else 1e-9)
    assert ours.metrics["mse"] == pytest.approx(plain.mse[-1], abs=1e-9)
    assert ours.metrics["regret_mean"] == pytest.approx(np.mean(plain.regret[-1]), abs=1e-9)
    assert ours.metrics["regret_std"] == pytest.approx(np.std(plain.regret[-1]), abs=1e-9)
    if not paper:
        for k, hedge in enumerate(plain.hedges):
            numbers = streams.numbers(k)
            np.testing.assert_allclose(numbers[:N], hedge.losses, atol=1e-9)
            assert numbers[2 * N + 2] == pytest.approx(hedge.gap, abs=1e-9)


@pytest.mark.parametrize(
    ("mistake", "paper", "samples"),
    [
        ("weights first", True, 1),
        ("weights first", True, 4),
        ("not divided", True, 1),
        ("waits", False, 4),
        ("latest forgotten", False, 1),
    ],
)
def test_the_comparison_notices_a_wrong_algorithm(
    streams: Any, mistake: str, paper: bool, samples: int
) -> None:
    options: dict[str, Any] = {"exploration": 0.3, "paper": paper}
    ours = run(streams, kernels_per_round=4, samples_per_round=samples, **options)
    z = features_of(streams, paper=paper)
    wrong = plain_pof_mkl(z, streams.y, many=4, samples=samples, mistake=mistake, **options)
    assert distance(ours, wrong) > 1e-6


def test_float32_stays_near_float64(streams: Any) -> None:
    """The default precision costs nothing that a user would see."""
    double, single = (
        run(streams, paper=False, kernels_per_round=4, precision=precision)
        for precision in ("float64", "float32")
    )
    assert 0.0 < np.abs(double.theta - single.theta).max() < 1e-3
    assert single.metrics["mse"] == pytest.approx(double.metrics["mse"], rel=1e-4)


def test_adaptive_mode_predicts_better_than_the_papers_step(
    make_streams: Callable[..., Any],
) -> None:
    streams = make_streams(2, 150, DIMENSION, seed=3)
    errors = {}
    for step_size in ("paper", "adaptive"):
        strategy = POFMKL(kernels_per_round=25, features=20, step_size=step_size)
        simulate(strategy, streams.client_fn, 2, seed=SEED, num_rounds=150)
        errors[step_size] = strategy.metrics_["mse"]
    assert errors["adaptive"] < 0.6 * errors["paper"]


def test_by_default_every_client_updates_every_kernel_of_a_dense_sum(
    make_streams: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Else the sum of a kernel that few clients chose would be nearly their own gradient."""
    streams = make_streams(7, 5)
    common: dict[str, Any] = {"kernels": 7, "features": 4, "seed": 3, "samples_per_round": 1}
    common |= {"frequencies_per_round": "all", "secure": True}
    for options, many, warned in (
        ({}, 7, False),
        ({"kernels_per_round": 3}, 3, True),
        ({"kernels_per_round": 3, "subset": "shared"}, 3, False),
        ({"subset": "shared", "kernels": 40}, 25, False),
        ({"kernels": 40, "secure": False}, 25, False),
    ):
        caplog.clear()
        strategy = POFMKL(**{**common, **options})
        simulate(strategy, streams.client_fn, 7, num_rounds=3)
        assert strategy.kernels_per_round == strategy.options()["kernels_per_round"] == many
        assert ("chosen by fewer than 4 clients" in caplog.text) == warned
        seen = strategy.privacy()["server_sees"]
        assert any("few clients chose" in line for line in seen) == warned
        assert (strategy.lonely_kernels > 1e-9) == warned


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"kernels_per_round": 8}, "FK-OPTION-RANGE"),
        ({"kernels_per_round": 3, "frequencies_per_round": 4}, "FK-OPTION-BOTH"),
        ({"kernels_per_round": 3, "privacy_epsilon": 3.0}, "FK-BUDGET-KERNELS"),
        ({"bandwidths": [1.0, -1.0]}, "FK-OPTION-RANGE"),
    ],
)
def test_kernels_that_cannot_be_chosen_are_refused(options: dict[str, Any], code: str) -> None:
    with refused(code):
        POFMKL(**{"kernels": 7, **options})
