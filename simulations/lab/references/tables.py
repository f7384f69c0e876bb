"""Train pooled models to compare with, and models of single parties.

For the comparisons of the paper on FDSKL a linear model replaces FD-SVRG, and gradient boosting of
trees SecureBoost: encryption changes no result. Each reference takes

* ``pooled`` : the data, refused without held-out rows,
* ``seed`` : of folds, and of random rows,
* ``progress`` : called with steps done and steps in all,

and returns metrics of the held-out rows, see :meth:`PooledSplit.judge`, and a history with
``test_error`` and ``seconds`` of training on one thread. Seconds of cross-validation are the metric
``tuning_seconds``; chosen options are metrics as well.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, missing_package
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.solvers.losses import Loss
from fedkern_flwr.vertical.phases import draw_batch, new_coefficients

from ...methods.pooled import ALONE, PooledSplit, error_of
from ...run.entries import Outcome, Reference, mean

Progress = Callable[[int, int], None]
Floats = NDArray[np.float64]

_TUNING_ROWS, _FOLDS = 3000, 5
_COSTS = (1.0, 10.0, 100.0)
_WIDTHS = (0.25, 1.0, 4.0)  # times 1 / (d Var x), the default of scikit-learn
_WIDE = (*_WIDTHS, 1e-1, 1e-2, 1e-3)  # of equal ones the first is taken
_REGULARIZATIONS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
_TUBE = 0.01  # errors of SVR that cost nothing, in units of labels scaled to [-1, 1]
_BATCH, _DIRECTIONS, _LAMBDA, _EVALUATIONS = 64, 16, 1e-4, 50  # of DSG


def svc(
    pooled: PooledSplit,
    *,
    seed: int,
    progress: Progress,
    C: float | None = None,
    gamma: float | None = None,
    max_rows: int | None = None,
    wide: bool = False,
) -> Outcome:
    """Train a support vector machine with the Gaussian kernel by LIBSVM; SVR for numbers.

    Parameters
    ----------
    pooled, seed, progress
        See above.
    C : float, optional
        Cost of errors (default: by cross-validation over 1, 10, 100).
    gamma : float, optional
        Width of the kernel exp(-gamma |x - x'|^2) (default: by cross-validation over 1/4, 1 and 4
        times 1 / (d Var x)).
    max_rows : int, optional
        Train on so many random rows, if there are more.
    wide : bool (default: False)
        Try 1/1000, 1/100 and 1/10 of that width as well.
    """
    pooled.check()
    widths = _widths(pooled, wide) if gamma is None else [gamma]
    grid = _grid(C=_COSTS if C is None else [C], gamma=widths)
    return _tuned(partial(_machine, pooled), grid, pooled, seed, progress, max_rows)


def linear(
    pooled: PooledSplit,
    *,
    seed: int,
    progress: Progress,
    regularization: float | None = None,
) -> Outcome:
    """Train a linear model with an intercept: mean loss + lambda / 2 |w|^2.

    The loss is the logistic one, as in FD-SVRG; the square for numbers.

    Parameters
    ----------
    pooled, seed, progress
        See above.
    regularization : float, optional
        lambda (default: by cross-validation over 1e-5 to 1e-1).
    """
    pooled.check()
    given = _REGULARIZATIONS if regularization is None else (regularization,)
    build = partial(_linear_model, pooled)
    return _tuned(build, _grid(regularization=given), pooled, seed, progress)


def kernel_ridge(
    pooled: PooledSplit,
    *,
    seed: int,
    progress: Progress,
    landmarks: int = 500,
    wide: bool = False,
) -> Outcome:
    """Train kernel ridge regression with the Gaussian kernel on random landmarks (Nystroem).

    Parameters
    ----------
    pooled, seed, progress
        See above.
    landmarks : int (default: 500)
        Number of training rows as landmarks; with all rows the method is exact.
    wide : bool (default: False)
        Try smoother kernels as well, see :func:`svc`.
    """
    pooled.check()
    approximation, models = _scikit_learn("kernel_approximation"), _scikit_learn("linear_model")
    pipeline = _scikit_learn("pipeline")

    def build(rows: int, gamma: float, regularization: float) -> Any:
        ridge = models.RidgeClassifier if pooled.classes else models.Ridge
        features = approximation.Nystroem(
            gamma=gamma,
            n_components=min(landmarks, rows),
            random_state=_state(seed, "landmarks"),
        )
        return pipeline.make_pipeline(features, ridge(alpha=regularization))

    grid = _grid(gamma=_widths(pooled, wide), regularization=_REGULARIZATIONS)
    return _tuned(build, grid, pooled, seed, progress)


def boosting(pooled: PooledSplit, *, seed: int, progress: Progress) -> Outcome:
    """Boost trees over binned features, with scikit-learn's defaults."""
    pooled.check()
    ensemble = _scikit_learn("ensemble")
    trees = ensemble.HistGradientBoostingRegressor
    if pooled.classes:
        trees = ensemble.HistGradientBoostingClassifier
    model = trees(random_state=_state(seed, "boosting"))
    return fit(model, pooled, np.arange(len(pooled.y)), 0, progress)


def simple(pooled: PooledSplit, *, seed: int, progress: Progress) -> Outcome:
    """Train :func:`linear` or :func:`svc`, whichever is better in cross-validation."""

    def build(rows: int, **choice: float) -> Any:
        if "gamma" in choice:
            return _machine(pooled, rows, **choice)
        return _linear_model(pooled, rows, **choice)

    grid = [*_grid(regularization=_REGULARIZATIONS), *_grid(C=_COSTS, gamma=_widths(pooled))]
    return _tuned(build, grid, pooled, seed, progress)


def _machine(pooled: PooledSplit, _: int, **choice: float) -> Any:
    svm = _scikit_learn("svm")
    if pooled.classes:
        return svm.SVC(**choice, cache_size=500)
    return svm.SVR(**choice, epsilon=_TUBE, cache_size=500)


def _linear_model(pooled: PooledSplit, rows: int, regularization: float) -> Any:
    models = _scikit_learn("linear_model")
    if pooled.classes:
        return models.LogisticRegression(C=1.0 / (rows * regularization), max_iter=1000)
    return models.Ridge(alpha=0.5 * rows * regularization)


def _widths(pooled: PooledSplit, wide: bool = False) -> list[float]:
    """Return the grid of widths around scikit-learn's default, or from far below it."""
    unit = 1.0 / (pooled.x.shape[1] * (float(pooled.x.var()) or 1.0))
    return [width * unit for width in (_WIDE if wide else _WIDTHS)]


def _grid(**options: Sequence[float]) -> list[dict[str, float]]:
    """Return all combinations of some options."""
    return [dict(zip(options, values, strict=True)) for values in product(*options.values())]


def _tuned(
    build: Callable[..., Any],
    grid: Sequence[dict[str, float]],
    pooled: PooledSplit,
    seed: int,
    progress: Progress,
    max_rows: int | None = None,
) -> Outcome:
    """Fit with the best options of a grid; ``build`` takes the number of rows and options."""
    choice, tuning = _choose(build, grid, pooled, seed, progress)
    rows = _some_rows(pooled, max_rows or len(pooled.y), seed, "training rows")
    metrics, history = fit(build(len(rows), **choice), pooled, rows, len(grid), progress)
    return {**metrics, **choice, "tuning_seconds": tuning}, history


def _choose(
    build: Callable[..., Any],
    grid: Sequence[dict[str, float]],
    pooled: PooledSplit,
    seed: int,
    progress: Progress,
) -> tuple[dict[str, float], float]:
    """Choose options by cross-validation over some training rows; return them and seconds."""
    if len(grid) == 1:
        return grid[0], 0.0
    selection = _scikit_learn("model_selection")
    started = time.perf_counter()
    rows, folds = _some_rows(pooled, _TUNING_ROWS, seed, "tuning rows"), selection.KFold
    few = len(rows) // 2
    if pooled.classes:
        _, place, counts = np.unique(pooled.y[rows], return_inverse=True, return_counts=True)
        several = counts > 1  # a single row would be in one fold only
        rows, folds = rows[several[place]], selection.StratifiedKFold
        few = int(counts[several].min()) if several.sum() > 1 else 0
    if few < 2:
        return grid[0], 0.0
    count = min(_FOLDS, few)
    folds = folds(count, shuffle=True, random_state=_state(seed, "folds"))
    scores = []
    for k, choice in enumerate(grid):
        model = build(len(rows) * (count - 1) // count, **choice)
        with _fitting():
            score = selection.cross_val_score(model, pooled.x[rows], pooled.y[rows], cv=folds)
        scores.append(float(score.mean()))
        progress(k + 1, len(grid) + 1)
    return grid[int(np.argmax(scores))], time.perf_counter() - started


def fit(
    model: Any, pooled: PooledSplit, rows: NDArray[np.intp], steps: int, progress: Progress
) -> Outcome:
    """Fit a model to some training rows and evaluate it; ``steps`` were done before."""
    started = time.perf_counter()
    with _fitting():
        model.fit(pooled.x[rows], pooled.y[rows])
    seconds = time.perf_counter() - started
    metrics = pooled.judge_classes(np.asarray(model.predict(pooled.x_test), np.float64))
    if pooled.classes:  # classes come from the model, AUC and log loss from its scores
        metrics = pooled.judge(_scores(model, pooled.x_test)) | metrics
    progress(steps + 1, steps + 1)
    return dict(metrics), [{"round": 1, "test_error": error_of(metrics), "seconds": seconds}]


def _scores(model: Any, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return scores from -1 to 1, of two classes one column."""
    if hasattr(model, "decision_function"):
        scores = np.tanh(model.decision_function(x) / 2.0)
    else:
        scores = 2.0 * model.predict_proba(x) - 1.0
        scores = scores[:, 1:] if scores.shape[1] == 2 else scores
    return np.asarray(scores, np.float64).reshape(len(x), -1)


@contextmanager
def _fitting() -> Iterator[None]:
    """Fit on one thread, and accept the last iterate.

    Threads would wait for each other on shared processors, and sums depend on their number.
    Separable classes with little regularisation never converge.
    """
    with import_module("threadpoolctl").threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", _scikit_learn("exceptions").ConvergenceWarning)
        yield


def _some_rows(pooled: PooledSplit, count: int, seed: int, purpose: str) -> NDArray[np.intp]:
    n = len(pooled.y)
    if n <= count:
        return np.arange(n)
    rng = np.random.default_rng(derive_seed(seed, purpose))
    return np.sort(rng.choice(n, count, replace=False))


def _state(seed: int, purpose: str) -> int:
    return derive_seed(seed, purpose) % 2**32


def _scikit_learn(module: str) -> Any:
    try:
        return import_module(f"sklearn.{module}")
    except ImportError:
        raise missing_package("this method needs scikit-learn") from None


# -- doubly stochastic gradients


@np.errstate(over="ignore", invalid="ignore")  # divergence is an error of one line
def dsg(
    pooled: PooledSplit,
    *,
    seed: int,
    progress: Progress,
    rounds: int = 500,
    step: float = 0.1,
    loss: Loss = "square",
    gamma: float = 1.0,
) -> Outcome:
    """Train by doubly stochastic gradients, the pooled twin of FDSKL (Dai et al., NeurIPS 2014).

    The model is f(x) = sum_j alpha_j phi_j(x) with phi_j(x) = sqrt(2) cos(omega_j^T x + b_j).
    Iteration t takes a batch of 64 rows and r = 16 new directions of the Gaussian kernel, and

        alpha_new = -(step / r) mean over the batch of L'(f(x), y) phi_new(x),
        alpha_old = (1 - step lambda) alpha_old,        lambda = 1e-4.

    Batches are those of FDSKL with the same seed; ``seconds`` do not count the 50 evaluations.

    Parameters
    ----------
    pooled, seed, progress
        See above.
    rounds, step : int, float (default: 500, 0.1)
        Iterations; the square loss needs a step of at most about 2 / r.
    loss : {"square", "logistic", "smooth-hinge"} (default: "square")
        L.
    gamma : float (default: 1.0)
        Of the kernel exp(-gamma |x - x'|^2), features in [0, 1].

    Raises
    ------
    OptionError
        It diverges.
    """
    pooled.check()
    rng = np.random.default_rng(derive_seed(seed, "pooled directions"))
    marks = set(np.linspace(0, rounds, min(_EVALUATIONS, rounds) + 1).astype(int)[1:].tolist())
    targets, r = pooled.targets(), _DIRECTIONS
    omega = np.empty((pooled.x.shape[1], rounds * r))
    offsets, alpha = np.empty(rounds * r), np.zeros((rounds * r, targets.shape[1]))
    test = np.zeros((len(pooled.x_test), targets.shape[1]))
    started, seconds = time.perf_counter(), 0.0
    metrics: dict[str, float] = {}
    history = []
    for t in range(1, rounds + 1):
        old, new = slice((t - 1) * r), slice((t - 1) * r, t * r)
        omega[:, new] = np.sqrt(2.0 * gamma) * rng.standard_normal((len(omega), r))
        offsets[new] = rng.uniform(0.0, 2.0 * np.pi, r)
        batch = draw_batch(seed, t, len(pooled.y), _BATCH)
        x = pooled.x[batch]
        values = _features(x, omega[:, old], offsets[old]) @ alpha[old]
        z = _features(x, omega[:, new], offsets[new])
        alpha[new] = new_coefficients(loss, values, targets[batch], z, step)
        alpha[old] *= 1.0 - step * _LAMBDA
        seconds += time.perf_counter() - started
        test *= 1.0 - step * _LAMBDA
        test += _features(pooled.x_test, omega[:, new], offsets[new]) @ alpha[new]
        if t in marks:
            if not np.isfinite(test).all():
                raise OptionError(f"DSG diverges at step {step:g}", code="FK-RUN-DIVERGED")
            metrics = pooled.judge(test)
            history.append({"round": t, "test_error": error_of(metrics), "seconds": seconds})
            progress(t, rounds)
        started = time.perf_counter()
    return dict(metrics), history


def _features(x: Floats, omega: Floats, offsets: Floats) -> NDArray[np.float32]:
    """Compute sqrt(2) cos(omega^T x + b), shape (n, r)."""
    turns = (x @ omega + offsets) / (2.0 * np.pi)
    turns -= np.rint(turns)  # large angles are too coarse in float32
    angles = (2.0 * np.pi * turns).astype(np.float32)
    return np.asarray(np.float32(np.sqrt(2.0)) * np.cos(angles))


# -- no model at all, and local models


def constant(pooled: PooledSplit, *, seed: int, progress: Progress) -> Outcome:
    """Predict the majority class of the training rows, or their mean."""
    pooled.check()
    progress(1, 1)
    return _outcome(_constant(pooled))


def alone(pooled: PooledSplit, *, seed: int, progress: Progress) -> Outcome:
    """Train a model at each party on its own rows and columns, see :func:`simple`.

    A party with one label only, or without columns, predicts its majority class or mean.
    Each party predicts all held-out rows from its columns.

    Returns
    -------
    metrics : dict
        Means over the parties, and ``parties``.
    history : list of dict
    """
    pooled.check()
    found = []
    for k, (rows, columns) in enumerate(pooled.parties):
        own = replace(
            pooled,
            x=pooled.x[np.ix_(rows, columns)],
            y=pooled.y[rows],
            x_test=pooled.x_test[:, columns],
        )
        if len(columns) and len(np.unique(own.y)) > 1:
            metrics, _ = simple(own, seed=seed, progress=lambda done, total: None)
        else:
            metrics = _constant(own)
        found.append(metrics)
        progress(k + 1, len(pooled.parties))
    judged = [name for name in found[0] if name.startswith("test_")]
    means = {name: mean([metrics.get(name) for metrics in found]) for name in judged}
    metrics, history = _outcome(means)
    return {**metrics, "parties": len(found)}, history


def _constant(pooled: PooledSplit) -> dict[str, float]:
    values, counts = np.unique(pooled.y, return_counts=True)
    value = values[counts.argmax()] if pooled.classes else pooled.y.mean()
    return pooled.judge_classes(np.full(len(pooled.y_test), value))


def _outcome(metrics: Mapping[str, float]) -> Outcome:
    return dict(metrics), [{"round": 1, "test_error": error_of(metrics)}]


#: The references of all families of tables.
TABLES: Mapping[str, Reference] = {
    "svc": svc,
    "kernel-ridge": kernel_ridge,
    "linear": linear,
    "boosting": boosting,
    "dsg": dsg,
    "constant": constant,
    ALONE: alone,
}
