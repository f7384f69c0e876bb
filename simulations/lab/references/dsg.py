"""DSG: doubly stochastic gradients by a single owner of all data, the pooled twin of FDSKL.

The model is f(x) = sum_j alpha_j phi_j(x) with phi_j(x) = sqrt(2) cos(omega_j^T x + b_j). Iteration
t draws a batch of B rows and r new directions, and with step gamma_t

    alpha_new = -(gamma_t / r) mean over the batch of L'(f(x), y) phi_new(x),
    alpha_old = (1 - gamma_t lambda) alpha_old.

The coefficients are needed nowhere but in f. So the outputs of all rows that a later batch will ask
for are kept up to date instead, and no cosine is made twice: at most n r of them per iteration,
where the sum itself takes B r t.

References
----------
Dai, Xie, He, Liang, Raj, Balcan and Song, "Scalable Kernel Methods via Doubly Stochastic
Gradients", NeurIPS 2014.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError
from fedkern_flwr.kernels.random_features import KERNELS, Kernel
from fedkern_flwr.options import check_choice
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.solvers.losses import LOSSES, Loss
from fedkern_flwr.vertical.phases import (
    STEP_SCHEDULES,
    StepSchedule,
    draw_batch,
    new_coefficients,
    step_size,
)

from ...methods.pooled import PooledSplit, error_of
from ...run.entries import Outcome

Floats = NDArray[np.float64]

_CHUNK = 1 << 14  # angles made at once: they stay in the processor's cache
# Multiplications of a product that is too small for threads of BLAS, which would spin on for a
# while and keep others from their work.
_PRODUCT, _FEWEST = 1 << 18, 64


@np.errstate(over="ignore", invalid="ignore")  # that it diverges is said in one line
def dsg(
    pooled: PooledSplit,
    *,
    seed: int,
    progress: Callable[[int, int], None],
    rounds: int = 500,
    batch: int = 64,
    directions: int = 16,
    step: float = 0.1,
    step_schedule: StepSchedule = "constant",
    regularization: float = 1e-4,
    loss: Loss = "square",
    kernel: Kernel = "rbf",
    gamma: float = 1.0,
    evaluations: int = 50,
) -> Outcome:
    """Train by doubly stochastic gradients.

    Parameters
    ----------
    pooled : PooledSplit
        The data.
    seed : int
        Seed of batches, which are those of FDSKL with this seed, and of directions.
    progress : callable
        Called with iterations done and iterations in all.
    rounds : int (default: 500)
        Iterations T.
    batch : int (default: 64)
        Rows B per iteration, drawn without replacement; all rows where there are fewer.
    directions : int (default: 16)
        New directions r per iteration.
    step : float (default: 0.1)
        gamma_0. The square loss needs a step of at most about 2 / r; the others stand larger ones.
    step_schedule : {"constant", "diminishing"} (default: "constant")
        gamma_t = step, or step / (1 + step lambda t), where t counts from 1.
    regularization : float (default: 1e-4)
        lambda.
    loss : {"square", "logistic", "smooth-hinge"} (default: "square")
        L.
    kernel : {"rbf", "laplacian"} (default: "rbf")
        exp(-gamma |x - x'|^2), frequencies normal with variance 2 gamma; or exp(-gamma |x - x'|_1),
        frequencies Cauchy with scale gamma.
    gamma : float (default: 1.0)
        Width of the kernel, in units of features scaled to [0, 1].
    evaluations : int (default: 50)
        How often the held-out rows are judged, evenly over the iterations.

    Returns
    -------
    metrics : dict
        See :meth:`PooledSplit.judge`.
    history : list of dict
        Per evaluation ``round``, ``test_error`` and ``seconds`` of training so far, without those
        of evaluations.

    Raises
    ------
    OptionError
    """
    counts = {"rounds": rounds, "batch": batch, "directions": directions}
    for name, count in (counts | {"evaluations": evaluations}).items():
        if count < 1:
            raise OptionError(f"{name} is {count}", remedy="use at least 1", code="FK-OPTION-RANGE")
    for name, value in (("step", step), ("gamma", gamma)):
        if not 0.0 < value < np.inf:
            raise OptionError(
                f"{name} is {value:g}", remedy="use a positive number", code="FK-OPTION-RANGE"
            )
    if not 0.0 <= regularization < np.inf:
        raise OptionError(
            f"regularization is {regularization:g}", remedy="use at least 0", code="FK-OPTION-RANGE"
        )
    check_choice("step_schedule", step_schedule, STEP_SCHEDULES)
    check_choice("loss", loss, LOSSES if pooled.classes else ("square",))
    check_choice("kernel", kernel, KERNELS)
    pooled.check()
    rng = np.random.default_rng(derive_seed(seed, "pooled directions"))
    marks = set(np.linspace(0, rounds, min(evaluations, rounds) + 1).astype(int)[1:].tolist())
    test = np.zeros((len(pooled.x_test), pooled.targets().shape[1]))
    started, seconds = time.perf_counter(), 0.0
    rows = _Rows(pooled, seed, rounds, batch)
    metrics: dict[str, float] = {}
    history = []
    for t in range(1, rounds + 1):
        omega = _frequencies(kernel, gamma, pooled.x.shape[1], directions, rng)
        offsets = rng.uniform(0.0, 2.0 * np.pi, directions)
        x, outputs, targets = rows.batch(t)
        rate = step_size(step, step_schedule, regularization, t)
        features = _features(x, omega, offsets)
        alpha = new_coefficients(loss, outputs, targets, features, rate)
        shrink = 1.0 - rate * regularization
        later = rows.needed_after(t)
        rows.outputs[:later] *= shrink
        _add(rows.outputs[:later], rows.x, omega, offsets, alpha)
        seconds += time.perf_counter() - started
        test *= shrink
        _add(test, pooled.x_test, omega, offsets, alpha)
        if t in marks:
            if not np.isfinite(test).all():
                raise OptionError(
                    f"DSG diverges at step {step:g}",
                    remedy="use a smaller step",
                    code="FK-RUN-DIVERGED",
                )
            metrics = pooled.judge(test)
            history.append({"round": t, "test_error": error_of(metrics), "seconds": seconds})
            progress(t, rounds)
        started = time.perf_counter()
    return dict(metrics), history


class _Rows:
    """Training rows and their outputs, those that are needed longest first.

    Parameters
    ----------
    pooled : PooledSplit
    seed : int
        Of the batches.
    rounds, batch : int
        Number of batches, and rows of each.
    """

    def __init__(self, pooled: PooledSplit, seed: int, rounds: int, batch: int) -> None:
        n = len(pooled.y)
        drawn = np.stack([draw_batch(seed, t, n, batch) for t in range(1, rounds + 1)])
        last = np.zeros(n, np.intp)  # iteration that asks for a row last
        np.maximum.at(last, drawn, np.arange(1, rounds + 1)[:, None])
        order = np.argsort(-last, kind="stable")
        place = np.empty(n, np.intp)
        place[order] = np.arange(n)
        self._batches, self._last = place[drawn], -last[order]
        self.x, self._targets = pooled.x[order], pooled.targets()[order]
        self.outputs = np.zeros(self._targets.shape)

    def batch(self, t: int) -> tuple[Floats, Floats, Floats]:
        """Return rows, outputs and targets of a batch."""
        mine = self._batches[t - 1]
        return self.x[mine], self.outputs[mine], self._targets[mine]

    def needed_after(self, t: int) -> int:
        """Return how many rows, from the first, a later batch asks for."""
        return int(np.searchsorted(self._last, -t))


def _frequencies(
    kernel: Kernel, gamma: float, features: int, directions: int, rng: np.random.Generator
) -> Floats:
    """Draw directions from the Fourier transform of the kernel, shape (d, r)."""
    if kernel == "rbf":
        return np.asarray(np.sqrt(2.0 * gamma) * rng.standard_normal((features, directions)))
    return np.asarray(gamma * rng.standard_cauchy((features, directions)))


def _features(x: Floats, omega: Floats, offsets: Floats) -> NDArray[np.float32]:
    """Return sqrt(2) cos(omega^T x + b), shape (n, r)."""
    turns = (x @ omega + offsets) / (2.0 * np.pi)
    turns -= np.rint(turns)  # Cauchy frequencies make angles too large for float32
    angles = (2.0 * np.pi * turns).astype(np.float32)
    return np.asarray(np.float32(np.sqrt(2.0)) * np.cos(angles))


def _add(outputs: Floats, x: Floats, omega: Floats, offsets: Floats, alpha: Floats) -> None:
    """Add what some directions contribute to the outputs of the first rows."""
    d, directions = omega.shape
    size = max(1, min(_CHUNK, max(_PRODUCT // d, _FEWEST * directions)) // directions)
    for start in range(0, len(outputs), size):
        part = slice(start, min(start + size, len(outputs)))
        outputs[part] += _features(x[part], omega, offsets) @ alpha.astype(np.float32)
