"""Methods on pooled data that every table is compared with, and what parties have alone.

LIBSVM and DSG stand as they are for what the paper on FDSKL compares with, a linear model for
FD-SVRG, and gradient boosting of trees for SecureBoost, which loses nothing by its encryption. Each
returns metrics of the held-out rows, and a history whose rows have ``test_error`` and the
``seconds`` of training, on one thread; those of cross-validation are the metric
``tuning_seconds``.
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

from fedkern_flwr.errors import OptionError
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.solvers.losses import Loss
from fedkern_flwr.vertical.phases import draw_batch, new_coefficients

from ...methods.pooled import PooledSplit, error_of
from ...methods.references import ALONE
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
_CHUNK = 1 << 14  # angles made at once: they stay in the processor's cache
# Multiplications of a product that is too small for threads of BLAS, which would spin on for a
# while and keep others from their work.
_PRODUCT, _FEWEST = 1 << 18, 64


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
    """Train a support vector machine with the Gaussian kernel by LIBSVM; SVR for a regression.

    Parameters
    ----------
    pooled : PooledSplit
        The data.
    seed : int
        Seed of the folds and of the rows that are trained on.
    progress : callable
        Called with steps done and steps in all.
    C : float, optional
        Cost of errors; by cross-validation over 1, 10, 100 if not given.
    gamma : float, optional
        Width of the kernel exp(-gamma |x - x'|^2); by cross-validation over 1/4, 1 and 4 times
        1 / (d Var x) if not given.
    max_rows : int, optional
        Train on so many random rows, if there are more.
    wide : bool (default: False)
        Try 1/1000, 1/100 and 1/10 of that width as well.

    Returns
    -------
    metrics : dict
        Also ``C``, ``gamma`` and ``tuning_seconds``.
    history : list of dict
        One row.

    Raises
    ------
    OptionError, TableError
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

    The loss is the logistic one, as in FD-SVRG; the square for a regression.

    Parameters
    ----------
    pooled : PooledSplit
        The data.
    seed : int
        Seed of the folds.
    progress : callable
        Called with steps done and steps in all.
    regularization : float, optional
        lambda; by cross-validation over 1e-5 to 1e-1 if not given.

    Returns
    -------
    metrics : dict
        Also ``regularization`` and ``tuning_seconds``.
    history : list of dict
        One row.

    Raises
    ------
    OptionError, TableError
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
    pooled : PooledSplit
        The data.
    seed : int
        Seed of the folds and landmarks.
    progress : callable
        Called with steps done and steps in all.
    landmarks : int (default: 500)
        Training rows taken as landmarks; with no fewer than there are rows the method is exact.
    wide : bool (default: False)
        Try smoother kernels as well, see :func:`svc`.

    Returns
    -------
    metrics : dict
        Also ``gamma``, ``regularization`` and ``tuning_seconds``, by cross-validation.
    history : list of dict
        One row.

    Raises
    ------
    OptionError, TableError
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
    """Boost trees over binned features, with scikit-learn's defaults.

    Parameters
    ----------
    pooled : PooledSplit
        The data.
    seed : int
        Seed of the rows that decide when to stop, where there are more than 10,000.
    progress : callable
        Called with steps done and steps in all.

    Returns
    -------
    metrics : dict
        See :meth:`PooledSplit.judge`.
    history : list of dict
        One row.

    Raises
    ------
    OptionError, TableError
    """
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
    """Return the widths to choose from, around scikit-learn's default or from far below it."""
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
    """Fit with the best options of a grid; ``build`` is called with the number of rows and one."""
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
    """Return the best of some options by cross-validation over some training rows, and seconds."""
    if len(grid) == 1:
        return grid[0], 0.0
    selection = _scikit_learn("model_selection")
    started = time.perf_counter()
    rows, folds = _some_rows(pooled, _TUNING_ROWS, seed, "tuning rows"), selection.KFold
    few = len(rows) // 2
    if pooled.classes:
        _, place, counts = np.unique(pooled.y[rows], return_inverse=True, return_counts=True)
        several = counts > 1  # others would be learned from or predicted, not both
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
    """Fit a model to some training rows and judge it; ``steps`` were done before."""
    started = time.perf_counter()
    with _fitting():
        model.fit(pooled.x[rows], pooled.y[rows])
    seconds = time.perf_counter() - started
    metrics = pooled.judge_classes(np.asarray(model.predict(pooled.x_test), np.float64))
    if pooled.classes:  # classes are the model's own, AUC and log loss those of its scores
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
    """Fit on one thread, and be content with the last iterate.

    Threads would wait for each other where processors are shared, and sums depend on their number.
    Classes that can be separated, hardly regularised, never converge.
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
        raise OptionError(
            "this method needs scikit-learn",
            remedy="pip install 'fedkern-flwr[simulation]'",
            code="FK-PACKAGE-MISSING",
        ) from None


# -- doubly stochastic gradients


@np.errstate(over="ignore", invalid="ignore")  # that it diverges is said in one line
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
    Iteration t draws a batch of 64 rows and r = 16 new directions of the Gaussian kernel, and

        alpha_new = -(step / r) mean over the batch of L'(f(x), y) phi_new(x),
        alpha_old = (1 - step lambda) alpha_old,        lambda = 1e-4.

    The coefficients are needed nowhere but in f. So the outputs of all rows that a later batch will
    ask for are kept up to date instead, and no cosine is made twice: at most n r of them per
    iteration, where the sum itself takes 64 r t.

    Parameters
    ----------
    pooled : PooledSplit
        The data.
    seed : int
        Seed of batches, which are those of FDSKL with this seed, and of directions.
    progress : callable
        Called with iterations done and iterations in all.
    rounds : int (default: 500)
        Iterations.
    step : float (default: 0.1)
        The square loss needs a step of at most about 2 / r; the others stand larger ones.
    loss : {"square", "logistic", "smooth-hinge"} (default: "square")
        L.
    gamma : float (default: 1.0)
        Of the kernel exp(-gamma |x - x'|^2), in units of features scaled to [0, 1].

    Returns
    -------
    metrics : dict
        See :meth:`PooledSplit.judge`.
    history : list of dict
        At 50 iterations ``round``, ``test_error`` and ``seconds`` of training so far, without those
        of evaluations.

    Raises
    ------
    OptionError
        It diverges.
    """
    pooled.check()
    rng = np.random.default_rng(derive_seed(seed, "pooled directions"))
    marks = set(np.linspace(0, rounds, min(_EVALUATIONS, rounds) + 1).astype(int)[1:].tolist())
    test = np.zeros((len(pooled.x_test), pooled.targets().shape[1]))
    started, seconds = time.perf_counter(), 0.0
    rows = _Rows(pooled, seed, rounds)
    metrics: dict[str, float] = {}
    history = []
    for t in range(1, rounds + 1):
        omega = np.sqrt(2.0 * gamma) * rng.standard_normal((pooled.x.shape[1], _DIRECTIONS))
        offsets = rng.uniform(0.0, 2.0 * np.pi, _DIRECTIONS)
        x, outputs_of, targets = rows.batch(t)
        alpha = new_coefficients(loss, outputs_of, targets, _features(x, omega, offsets), step)
        later = rows.needed_after(t)
        rows.outputs[:later] *= 1.0 - step * _LAMBDA
        _add(rows.outputs[:later], rows.x, omega, offsets, alpha)
        seconds += time.perf_counter() - started
        test *= 1.0 - step * _LAMBDA
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
    rounds : int
        Number of batches.
    """

    def __init__(self, pooled: PooledSplit, seed: int, rounds: int) -> None:
        n = len(pooled.y)
        drawn = np.stack([draw_batch(seed, t, n, _BATCH) for t in range(1, rounds + 1)])
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


def _features(x: Floats, omega: Floats, offsets: Floats) -> NDArray[np.float32]:
    """Return sqrt(2) cos(omega^T x + b), shape (n, r)."""
    turns = (x @ omega + offsets) / (2.0 * np.pi)
    turns -= np.rint(turns)  # large angles are too coarse in float32
    angles = (2.0 * np.pi * turns).astype(np.float32)
    return np.asarray(np.float32(np.sqrt(2.0)) * np.cos(angles))


def _add(outputs: Floats, x: Floats, omega: Floats, offsets: Floats, alpha: Floats) -> None:
    """Add what some directions contribute to the outputs of the first rows."""
    d, directions = omega.shape
    size = max(1, min(_CHUNK, max(_PRODUCT // d, _FEWEST * directions)) // directions)
    for start in range(0, len(outputs), size):
        part = slice(start, min(start + size, len(outputs)))
        outputs[part] += _features(x[part], omega, offsets) @ alpha.astype(np.float32)


# -- no model at all, and what parties have without each other


def constant(pooled: PooledSplit, *, seed: int, progress: Progress) -> Outcome:
    """Predict the most frequent class of the training rows, or their mean.

    Returns
    -------
    metrics : dict
        See :meth:`PooledSplit.judge`.
    history : list of dict
        One row.
    """
    pooled.check()
    progress(1, 1)
    return _outcome(_constant(pooled))


def alone(pooled: PooledSplit, *, seed: int, progress: Progress) -> Outcome:
    """Train a model at each party that could, on its own rows and columns.

    It is logistic or ridge regression or a support vector machine, whichever is better in
    cross-validation at the party; and no model where all its rows have one label, or it has no
    column. All held-out rows are predicted, of which the party is given its columns.

    Returns
    -------
    metrics : dict
        Means over the parties, and ``parties``.
    history : list of dict
        One row.
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
