"""Noise of the online methods in runs with a privacy budget, the same at server and nodes.

A sample is in one message, and its contribution depends only on itself and earlier public values.
So the run costs a row as much as one message, and a party as much as all.

POF-MKL and its baselines: a client sums each kernel's random features times the residual of its
prediction, clipped to [-c, c], and for some methods losses. The server applies public factors: 2,
the probability of a choice, the penalty. A kernel's features have length 1, so ``pairs``
sine-cosine pairs have length sqrt(pairs / D).

POF-RLS: a client sums Phi^T Phi and Phi^T y over raw columns and each kernel's features, of the
message's rows, scaled into the unit ball, and labels in [-1/2, 1/2].
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.random_features import Real
from ..privacy import Budget, Release, plan_release
from ..privacy import accounting as sensitivity
from . import ridge

Floats = NDArray[np.float64]

#: Name of the sum of a message.
UPDATE_SUM = "update"
#: Clip of residuals of labels in [0, 1].
CLIP = 0.1
#: Bound of centred labels.
LABELS = 0.5
_FLOAT32 = 1.0 + 1e-5  # rounding: features of 32 bits may be slightly longer than 1


class Times(NamedTuple):
    """How often a sum with noise is opened, with how many samples and parties.

    Attributes
    ----------
    most, messages : int
        Samples of a client in the largest message; largest number of messages. With a budget per
        party all of them may be substituted.
    parties, least : int
        N, parties of the sum; t, fewest that can open it.
    """

    most: int
    messages: int
    parties: int
    least: int

    def release(self, budget: Budget, moved: float, length: int) -> Release:
        """Return the noise of a sum of ``length`` numbers, which one sample moves by ``moved``."""
        whole = budget.unit == "party"
        return plan_release(
            UPDATE_SUM,
            budget,
            sensitivity=moved * _FLOAT32 * (self.most if whole else 1),
            length=length,
            parties=self.parties,
            least=self.least,
            times=self.messages if whole else 1,
        )


def update_release(
    budget: Budget,
    *,
    clip: float,
    pairs: int,
    features: int,
    losses: int,
    times: Times,
) -> Release:
    """Return the noise of a message's sum for POF-MKL and its baselines.

    A substituted sample moves the residual times features by up to 2 ``clip`` for each kernel,
    since signs may differ. A loss is a clipped residual's square over ``clip``. ``pairs`` counts
    summed pairs of features over all kernels, ``features`` those of one (D).
    """
    moved = clip * math.sqrt(4.0 * pairs / features + losses)
    return times.release(budget, moved, 2 * pairs + losses)


def clipped(residuals: Floats, clip: float) -> Floats:
    """Clip residuals to [-c, c]; NaN residuals of a diverged model become 0."""
    found = np.nan_to_num(residuals, nan=0.0, posinf=np.inf, neginf=-np.inf)
    return np.asarray(found.clip(-clip, clip))


def weighed_features(residuals: Floats, z: Real) -> Floats:
    """Sum features times clipped residuals over samples: (B, M), (B, M, 2D) -> (M, 2D).

    64 bits, so that a sample hardly affects how others are rounded. NaN features, of extreme
    frequencies, become 0 so that they do not show.
    """
    found = np.nan_to_num(z.astype(np.float64), nan=0.0)
    return np.asarray(np.einsum("bm,bmw->mw", residuals, found))


def clipped_losses(residuals: Floats, clip: float) -> Floats:
    """Sum the squares of clipped residuals over c: (B, N) -> (N,)."""
    return np.asarray((residuals**2).sum(axis=0) / clip)


def ridge_release(
    budget: Budget,
    *,
    columns: int,
    kernels: int,
    features: int,
    summed: int,
    times: Times,
) -> Release:
    """Return the noise of the sums of POF-RLS, for all learners of a message together.

    A raw row is u = (x, 1), x in the unit ball. Substituting it changes x in the last column of
    Phi^T Phi, and the upper triangle of x x^T by at most its whole matrix. With t = x^T x' the
    squares are 2 - 2 t and 2 - 2 t^2, together at most 9/2. Phi^T y moves by 2 sqrt(2) / 2. For
    kernels see :func:`~fedkern_flwr.privacy.accounting.ridge`. ``columns`` is 0 if raw columns are
    not summed; ``summed`` of D frequencies per kernel are.
    """
    square = (4.5 + 8.0 * LABELS**2) * (columns > 0)
    square += kernels * sensitivity.ridge(2 * features, LABELS) ** 2
    length = ridge.numbers(columns + 1) * (columns > 0) + kernels * ridge.numbers(2 * summed)
    return times.release(budget, math.sqrt(square), length)


def ridge_sum(request: Any, x: NDArray[Any], labels: Floats) -> Floats:
    y, parts = labels.clip(-LABELS, LABELS), [np.zeros(0)]
    if request.raw:
        inside = np.asarray(x, np.float64)
        largest = np.abs(inside).max(axis=1, keepdims=True, initial=1.0)
        lengths = largest * np.linalg.norm(inside / largest, axis=1, keepdims=True)
        inside = inside / np.maximum(1.0, lengths)
        parts.append(ridge.sums(ridge.raw_rows(inside), y))
    if request.sums:
        phi = ridge.kernel_rows(x, request.bandwidths, request.features, request.seed)
        places = ridge.summed_places(request.features, request.summed)
        phi = np.nan_to_num(phi[: request.shared, :, places], nan=0.0)
        parts.append(ridge.sums(phi, y).ravel())
    return np.concatenate(parts)


def steadied(totals: Floats, features: int, deviation: float) -> Floats:
    """Remove the negative part of a noisy Phi^T Phi and add a lambda that suits the noise.

    Lambda is half of ``deviation`` sqrt(p), as in :func:`fedkern_flwr.hybrid.landmarks.regularize`.
    """
    gram, right = ridge.unpack(totals, features)
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values, 0.0) + 0.5 * deviation * math.sqrt(features)
    gram = (vectors * values[..., None, :]) @ vectors.swapaxes(-1, -2)
    return ridge.pack(gram, right)
