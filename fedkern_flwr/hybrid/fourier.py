"""Random Fourier features of a hybrid split: phases are added up over the blocks of features.

A row's phases are omega_j^T x + b_j for j = 1..D. The holders of a block draw the components of
their columns, and a part of the offset, from a secret of their own; the sum over the blocks, modulo
2 pi, is the hospital's. A pair of features cos and sin of each phase, of length sqrt(1 / D), makes
a row of length one: that is why one row moves a sum of theirs so little, whatever its values are,
and why a run with a budget of privacy has such features. Server and nodes reckon its noise alike.

References
----------
Rahimi and Recht, "Random Features for Large-Scale Kernel Machines", NIPS 2007.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..kernels.random_features import Kernel, draw_directions, draw_offsets
from ..privacy import Budget, Release, plan_sum
from ..privacy import accounting as sensitivity
from ..secure_sum import Encoding
from ..solvers.equations import equations_length

Floats = NDArray[np.float64]

#: Phases are added up on a circle of 2^64 steps.
CIRCLE = Encoding.circle(64)
#: Name of the sum of the normal equations.
EQUATIONS = "equations"


def draw_block(seed: bytes, pairs: int, width: int, kernel: Kernel, gamma: float) -> Floats:
    """Return one block's components of all directions, and its offsets in the last column.

    Parameters
    ----------
    seed : bytes
        The secret of the block's holders, 32 bytes.
    pairs : int
        D.
    width : int
        d, columns of the block.
    kernel : {"rbf", "laplacian"}
        Whose kernel the features estimate.
    gamma : float
        Its width.

    Returns
    -------
    ndarray of float64, shape (D, d + 1)
    """
    directions = draw_directions(seed, 0, pairs, width, kernel, gamma)
    return np.column_stack([directions, draw_offsets(seed, 0, pairs, kernel, gamma)])


def usual_gamma(columns: int) -> float:
    """Return the width of columns in [0, 1] that is taken where none may be chosen.

    Noise costs smooth kernels more, as their features are nearly alike; with many columns a narrow
    kernel sees every row by itself. Measured with noise on ten tables of 2 to 123 columns.
    """
    return float(20.0 / columns**1.5)


def block_phases(x: Floats, block: Floats) -> Floats:
    """Return a block's part of the phases, shape (n, D)."""
    phases = x @ block[:, :-1].T + block[:, -1]
    return np.where(np.isfinite(phases), phases, 0.0)  # of absurd widths: it must not show


def features(phases: Floats) -> Floats:
    """Return the features of total phases, shape (n, 2 D): rows have length one."""
    pairs = phases.shape[1]
    out = np.empty((len(phases), 2 * pairs))
    np.cos(phases, out=out[:, :pairs])
    np.sin(phases, out=out[:, pairs:])
    out *= np.sqrt(1.0 / pairs)
    return out


# -- noise of what is released: all sums are over whole cohorts, no party of them may be missing


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
