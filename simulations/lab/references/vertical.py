"""Methods on pooled data to compare with: LIBSVM, a linear model, boosting and DSG.

They stand for what the paper on FDSKL compares with: LIBSVM and DSG as they are, a linear model
for FD-SVRG, and gradient boosting of trees for SecureBoost, which loses nothing by its encryption.
Each returns metrics of the held-out rows, and a history whose rows have ``test_error`` and the
``seconds`` of training, on one thread; those of cross-validation are the metric
``tuning_seconds``.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.alignment import hash_ids, sort_order
from fedkern_flwr.errors import OptionError
from fedkern_flwr.kernels.random_features import draw_directions, draw_offsets
from fedkern_flwr.options import check_choice
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.vertical.phase_training import fit as fit_phases
from fedkern_flwr.vertical.phase_training import minimise
from fedkern_flwr.vertical.phases import outputs

from ...methods.dealt_data import alignment_key, frequency_seed
from ...methods.pooled import PooledSplit, error_of
from ...papers.fdskl import add_phases, draw_trees
from ...run.entries import Outcome, Reference
from ..topologies import tree_steps
from .dsg import dsg

__all__ = ["PooledSplit", "boosting", "dsg", "fit", "kernel_ridge", "linear", "svc"]

Progress = Callable[[int, int], None]
LinearLoss = Literal["square", "logistic", "squared-hinge"]

_TUNING_ROWS, _FOLDS = 3000, 5
_COSTS = (1.0, 10.0, 100.0)
_WIDTHS = (0.25, 1.0, 4.0)  # times 1 / (d Var x), the default of scikit-learn
_WIDE = (*_WIDTHS, 1e-1, 1e-2, 1e-3)  # of equal ones the first is taken
_REGULARIZATIONS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
_TUBE = 0.01  # errors of SVR that cost nothing, in units of labels scaled to [-1, 1]


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
    _check_positive(C=C, gamma=gamma, max_rows=max_rows)
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
    loss: LinearLoss | None = None,
) -> Outcome:
    """Train a linear model with an intercept: mean loss + lambda / 2 |w|^2.

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
    loss : {"square", "logistic", "squared-hinge"}, optional
        By default logistic, as in FD-SVRG; square for a regression.

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
    _check_positive(regularization=regularization)
    if loss is None:
        loss = "logistic" if pooled.classes else "square"
    check_choice("loss", loss, get_args(LinearLoss) if pooled.classes else ("square",))
    pooled.check()
    given = _REGULARIZATIONS if regularization is None else (regularization,)
    build = partial(_linear_model, pooled, loss)
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
    _check_positive(landmarks=landmarks)
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


def two_trees(
    pooled: PooledSplit,
    *,
    seed: int,
    progress: Progress,
    parties: int,
    gamma: float,
    features: int,
) -> Outcome:
    """Train one-shot FDSKL of classes on phases that the paper's two trees have summed.

    Parameters
    ----------
    pooled : PooledSplit
        The data.
    seed : int
        Seed of directions, which are those of FDSKL with this seed, and of the trees.
    progress : callable
        Called with steps done and steps in all.
    parties : int
        How many share the columns, in order; the first has the labels.
    gamma, features : float, int
        Width of the Gaussian kernel, and number of directions.

    Returns
    -------
    metrics : dict
        Also ``regularization``, ``centralised_difference`` and, as ``costs``, the trees' steps and
        the bytes sent.
    history : list of dict
        One row.
    """
    started = time.perf_counter()
    columns = np.array_split(np.arange(pooled.x.shape[1]), parties)
    secrets = [frequency_seed(seed, party) for party in range(parties)]
    law = 0, features
    blocks = [
        draw_directions(secret, *law, len(own), "rbf", gamma)
        for secret, own in zip(secrets, columns, strict=True)
    ]
    masks = [draw_offsets(secret, *law, "rbf", gamma) for secret in secrets]
    trees = draw_trees(parties, 0, 1 + derive_seed(seed, "kept", 0) % (parties - 1), seed)
    # Rows stand as FDSKL's parties announce them where the table has held-out rows of its own.
    n, names = len(pooled.y), np.arange(len(pooled.y)).astype(str)
    order = sort_order(hash_ids(names, alignment_key(seed), f"order {seed}"))
    x, y = np.concatenate([pooled.x[order], pooled.x_test]), pooled.targets()[order]
    sent: list[Any] = []
    parts = [x[:, own] for own in columns]
    angles = add_phases(parts, np.hstack(blocks), np.stack(masks, axis=1), trees, sent)
    narrow, wide = (
        Encoding.circle(bits).encode(angles.ravel(), 1, name="").reshape(angles.shape)
        for bits in (16, 32)
    )
    chosen = fit_phases(
        "smooth-hinge", narrow[:n], y, classes=len(pooled.classes), seed=seed, multiples=(1,)
    )
    exact = minimise("smooth-hinge", wide[:n], y, chosen.regularization)
    scores = outputs(narrow[n:], chosen.weights)
    metrics = pooled.judge(scores)
    size = sum(array.nbytes for *_, array in sent)
    steps = sum(len(tree_steps(workers)) for workers in (parties, parties - 1))
    seconds = time.perf_counter() - started
    progress(1, 1)
    return {
        **metrics,
        "regularization": chosen.regularization,
        "centralised_difference": float(np.abs(outputs(wide[n:], exact) - scores).max()),
        "costs": {"exchanges": steps, "bytes_up": size, "bytes_down": size},
        "server_sees": ["nothing: the parties send to each other"],
    }, [{"round": 1, "test_error": error_of(metrics), "seconds": seconds}]


def simple(pooled: PooledSplit, *, seed: int, progress: Progress) -> Outcome:
    """Train :func:`linear` or :func:`svc`, whichever is better in cross-validation."""
    linear_loss: LinearLoss = "logistic" if pooled.classes else "square"

    def build(rows: int, **choice: float) -> Any:
        if "gamma" in choice:
            return _machine(pooled, rows, **choice)
        return _linear_model(pooled, linear_loss, rows, **choice)

    grid = [*_grid(regularization=_REGULARIZATIONS), *_grid(C=_COSTS, gamma=_widths(pooled))]
    return _tuned(build, grid, pooled, seed, progress)


def _machine(pooled: PooledSplit, _: int, **choice: float) -> Any:
    svm = _scikit_learn("svm")
    if pooled.classes:
        return svm.SVC(**choice, cache_size=500)
    return svm.SVR(**choice, epsilon=_TUBE, cache_size=500)


def _linear_model(pooled: PooledSplit, loss: LinearLoss, rows: int, regularization: float) -> Any:
    models = _scikit_learn("linear_model")
    if loss == "logistic":
        return models.LogisticRegression(C=1.0 / (rows * regularization), max_iter=1000)
    if loss == "squared-hinge":  # LIBLINEAR minimises C sum L + |w|^2 / 2
        cost = 1.0 / (rows * regularization)
        return _scikit_learn("svm").LinearSVC(C=cost, dual=False, max_iter=5000)
    ridge = models.RidgeClassifier if pooled.classes else models.Ridge
    return ridge(alpha=0.5 * rows * regularization)


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


def _check_positive(**options: float | None) -> None:
    for name, value in options.items():
        if value is not None and not (np.isfinite(value) and value > 0):
            raise OptionError(
                f"{name} is {value:g}", remedy="use a positive number", code="FK-OPTION-RANGE"
            )


def _scikit_learn(module: str) -> Any:
    try:
        return import_module(f"sklearn.{module}")
    except ImportError:
        raise OptionError(
            "this method needs scikit-learn",
            remedy="pip install 'fedkern-flwr[simulation]'",
            code="FK-PACKAGE-MISSING",
        ) from None


#: The references of families of vertical methods.
VERTICAL: Mapping[str, Reference] = {
    "svc": svc,
    "kernel-ridge": kernel_ridge,
    "linear": linear,
    "boosting": boosting,
    "dsg": dsg,
}
