"""Pooled optimum of HierarchicalSVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.groups.consensus import Coordinates
from fedkern_flwr.groups.linear_model import LOSS_OF
from fedkern_flwr.options import check_choice
from fedkern_flwr.solvers.dual_subspace import objective, restricted_optimum
from fedkern_flwr.solvers.local_solvers import Loss

from ..run.entries import Outcome
from .pooled import PooledSplit, error_of

__all__ = ["Optimum", "linear_svm", "pooled_optimum"]

Floats = NDArray[np.float64]
FeatureMap = Callable[[Floats], Floats]
Scale = Literal["standard", "none"]

MOST_WORK = 2e11  # rows times columns squared: beyond that the optimum takes minutes


@dataclass(frozen=True)
class Optimum:
    """The optimum, to 1e-9 of its objective.

    Attributes
    ----------
    objective : float
        1/2 |w|^2 + C sum loss, over all outputs.
    metrics : dict
        Metrics of held-out rows, if there are any.
    """

    objective: float
    metrics: Mapping[str, float]


def pooled_optimum(
    pooled: PooledSplit,
    loss: Loss,
    cost: float,
    scale: Scale,
    features: FeatureMap | None = None,
    label_bound: float = 1.0,
) -> Optimum | None:
    """Minimise 1/2 |w|^2 + C sum loss(y, w^T x + b) on pooled rows, per output.

    Parameters
    ----------
    pooled : PooledSplit
        Rows.
    loss : {"hinge", "logistic", "squared"}
        max(0, 1 - y f), log(1 + exp(-y f)) or (y - f)^2 / 2.
    cost : float
        C.
    scale : {"standard", "none"}
        Penalise weights of standardised columns, or of columns as they are.
    features : callable, optional
        Random Fourier features of the scaled columns.
    label_bound : float (default: 1.0)
        Unit of numeric targets.

    Returns
    -------
    Optimum or None
        None if it would take minutes.
    """
    x, x_test = pooled.x, pooled.x_test
    if scale == "standard":
        standard = Coordinates.fit(x.mean(axis=0), (x**2).mean(axis=0), standardised=True)
        x, x_test = standard.rows(x)[:, :-1], standard.rows(x_test)[:, :-1]
    if features is not None:
        x, x_test = features(x), features(x_test)
    if len(x) * (x.shape[1] + 1.0) ** 2 > MOST_WORK:
        return None
    targets, total = pooled.targets() / label_bound, 0.0
    outputs = np.empty((len(x_test), targets.shape[1]))
    for k, y in enumerate(targets.T):
        best = restricted_optimum(loss, x, y, cost)
        square = float(best.weights @ best.weights)
        total += objective(loss, square, x @ best.weights + best.bias, y, cost)
        outputs[:, k] = x_test @ best.weights + best.bias
    metrics = pooled.judge(outputs * label_bound) if len(x_test) else {}
    return Optimum(total, metrics)


def linear_svm(
    pooled: PooledSplit,
    *,
    seed: int,
    progress: Callable[[int, int], None],
    C: float = 1.0,
    model: str = "linear",
    scale: Scale = "standard",
) -> Outcome:
    """Train the linear model on pooled data.

    Parameters
    ----------
    pooled : PooledSplit
        Data.
    seed : int
        Not used.
    progress : callable
        Called with steps done and steps in all.
    C : float (default: 1.0)
        Weight of the losses.
    model : {"linear", "logistic", "ridge"} (default: "linear")
        Hinge, logistic or squared loss.
    scale : {"standard", "none"} (default: "standard")
        See :func:`pooled_optimum`.

    Returns
    -------
    metrics : dict
        With ``objective`` and ``centralised_objective``, which are equal.
    history : list of dict
        One row.
    """
    check_choice("model", model, tuple(name for name in LOSS_OF if name != "rbf"))
    check_choice("scale", scale, get_args(Scale))
    pooled.check()
    best = pooled_optimum(pooled, LOSS_OF[model], C, scale)
    progress(1, 1)
    if best is None:
        return {}, [{"round": 1}]
    found: dict[str, Any] = {"objective": best.objective, "centralised_objective": best.objective}
    history = [{"round": 1, "test_error": error_of(best.metrics)}]
    return {**best.metrics, **found}, history
