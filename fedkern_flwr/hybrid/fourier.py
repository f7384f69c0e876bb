"""Random Fourier features of a hybrid split: phases are summed over the blocks of features.

A row's phases are omega_j^T x + b_j for j = 1..D. The holders of a block draw the components of
their columns, and a part of the offset, from their own secret; the sum over the blocks, modulo 2
pi, goes to the hospital. The features cos and sin of the phases, times sqrt(1 / D), give every row
length one. So a row moves their sums little, whatever its values: a run with a privacy budget uses
them.

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

#: Phases are summed on a circle of 2^64 steps.
CIRCLE = Encoding.circle(64)
#: Name of the sum of the normal equations.
EQUATIONS = "equations"


def draw_block(seed: bytes, pairs: int, width: int, kernel: Kernel, gamma: float) -> Floats:
    """Return a block's components of all directions, with its offsets as last column: (D, d + 1).

    ``seed`` is the secret of the block's holders, 32 bytes; ``pairs`` is D, ``width`` d.
    """
    directions = draw_directions(seed, 0, pairs, width, kernel, gamma)
    return np.column_stack([directions, draw_offsets(seed, 0, pairs, kernel, gamma)])


def usual_gamma(columns: int) -> float:
    """Return the default width for columns in [0, 1], where none may be chosen.

    Noise hurts smooth kernels more, as their features are nearly alike; with many columns, narrow
    kernels separate all rows. Measured with noise on ten tables of 2 to 123 columns.
    """
    return float(20.0 / columns**1.5)


def block_phases(x: Floats, block: Floats) -> Floats:
    """Return a block's part of the phases, (n, D)."""
    phases = x @ block[:, :-1].T + block[:, -1]
    return np.where(np.isfinite(phases), phases, 0.0)  # an overflow must not show


def features(phases: Floats) -> Floats:
    """Return the features of total phases, (n, 2 D); rows have length one."""
    pairs = phases.shape[1]
    out = np.empty((len(phases), 2 * pairs))
    np.cos(phases, out=out[:, :pairs])
    np.sin(phases, out=out[:, pairs:])
    out *= np.sqrt(1.0 / pairs)
    return out


# -- noise of released sums, which are all over whole cohorts: no party may be missing


def equations_release(
    budget: Budget, *, features: int, outputs: int, bound: float, rows: Sequence[int]
) -> Release:
    """Return the noise of the normal equations.

    ``bound`` is the largest absolute label; ``rows`` are each hospital's declared training rows.
    """
    moved = sensitivity.ridge(features, label_weight(bound, outputs) * bound * math.sqrt(outputs))
    length = equations_length(features, outputs)
    return plan_sum(EQUATIONS, budget, sensitivity=moved, length=length, rows=rows, least=len(rows))


def label_weight(bound: float, outputs: int) -> float:
    """Return the factor of K^T y before noise is added; labels then have length 1/2.

    Length one would raise the sensitivity from 5 / 4 to 2, and with it the noise of the Gram
    matrix; the optimum is flat.
    """
    return 0.5 / (bound * math.sqrt(outputs))


def regularize(gram: Floats, regularization: float, deviation: float) -> tuple[Floats, float]:
    """Remove the negative part of a noisy Gram matrix; return it and a lambda that suits the noise.

    The noise matrix has entries of this deviation, and eigenvalues within 2 ``deviation`` sqrt(m).
    Lambda is at least a quarter of that, a factor found on svmguide1 and phishing, to damp spurious
    directions.

    References
    ----------
    Wang, "Revisiting differentially private linear regression: optimal and adaptive prediction and
    estimation in unbounded domain", UAI 2018.
    """
    values, vectors = np.linalg.eigh(gram)
    positive = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return positive, max(regularization, 0.5 * deviation * math.sqrt(len(gram)))
