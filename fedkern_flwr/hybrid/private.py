"""What FedCG on Fourier features releases with noise: the same reckoning at server and nodes.

All sums are over whole cohorts: no party of them may be missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..privacy import Budget, Release, plan_sum, sensitivity
from ..solvers.equations import equations_length

Floats = NDArray[np.float64]

EQUATIONS = "equations"


def equations_release(
    budget: Budget, *, features: int, outputs: int, bound: float, rows: Sequence[int]
) -> Release:
    """Return the noise of the normal equations.

    Parameters
    ----------
    budget : Budget
        Of the run.
    features, outputs : int
        m, k.
    bound : float
        Largest absolute value of a number of a row's labels.
    rows : sequence of int
        How many rows each hospital declared that it learns from.
    """
    moved = sensitivity.ridge(features, label_weight(bound, outputs) * bound * math.sqrt(outputs))
    length = equations_length(features, outputs)
    return plan_sum(EQUATIONS, budget, sensitivity=moved, length=length, rows=rows, least=len(rows))


def label_weight(bound: float, outputs: int) -> float:
    """Return by what K^T y is multiplied before noise is added: labels then have length 1/2.

    Labels of length one would take the sensitivity from 5 / 4 to 2, and with it the noise of the
    Gram matrix up; the optimum is flat.
    """
    return 0.5 / (bound * math.sqrt(outputs))


def regularize(gram: Floats, regularization: float, deviation: float) -> tuple[Floats, float]:
    """Return a noisy Gram matrix without its negative part, and a lambda that the noise asks for.

    The noise is a symmetric matrix with entries of that standard deviation, whose eigenvalues are
    within 2 ``deviation`` sqrt(m). Directions that it may have made up are damped by a lambda of at
    least a quarter of that, a factor that was found on svmguide1 and phishing.

    References
    ----------
    Wang, "Revisiting differentially private linear regression: optimal and adaptive prediction and
    estimation in unbounded domain", UAI 2018.
    """
    values, vectors = np.linalg.eigh(gram)
    positive = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return positive, max(regularization, 0.5 * deviation * math.sqrt(len(gram)))
