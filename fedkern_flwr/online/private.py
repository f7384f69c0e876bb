"""What the online methods release with noise: the same reckoning at server and nodes.

A sample is in one message, at a place of the stream that everybody knows, and what is made of it
depends on it and on what was public before. So a run costs a row what one message costs, and a
party all of them together.

Of POF-MKL and its baselines a client sums, over its samples of a message, the random features of
each kernel in question times the residual of that kernel's prediction, clipped to [-c, c], and of
some methods losses. What is multiplied with it is public and the server's to add: a factor 2, the
probability of a choice, and the penalty. Features of a kernel have length one, and so many pairs
of them, a sine and a cosine each, have the length sqrt(pairs / D).

Of POF-RLS it sums Phi^T Phi and Phi^T y, over raw columns and the features of each kernel: of its
message's own rows, which are brought into the unit ball, and of labels in [-1/2, 1/2].
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
#: Bound of labels without their centre.
LABELS = 0.5
_FLOAT32 = 1.0 + 1e-5  # by what features of 32 bits may be longer than one


class Times(NamedTuple):
    """How often a sum with noise is opened, about how many samples and over how many parties.

    Attributes
    ----------
    most, messages : int
        Samples of a client in the largest message; how many messages there are at most. Of a party
        all samples may be substituted, in all messages.
    parties, least : int
        N, parties of the sum; t, fewest parties over which it can be opened.
    """

    most: int
    messages: int
    parties: int
    least: int

    def release(self, budget: Budget, moved: float, length: int) -> Release:
        """Return the noise of a sum of so many numbers, which a sample moves by so much."""
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
    """Return the noise of the sum of a message.

    A sample that takes another's place moves the residual times features by 2 c in length for
    each kernel, since they may point to opposite sides. A loss is a clipped residual's square over
    c, from 0 to c.

    Parameters
    ----------
    budget : Budget
        Of the run.
    clip : float
        c.
    pairs, features : int
        Pairs of features that are summed, of all kernels; D, pairs of a kernel.
    losses : int
        Losses that are summed beside them.
    times : Times
        How often the sum is opened.

    Raises
    ------
    OptionError
        See :func:`~fedkern_flwr.privacy.budget.plan_release`.
    """
    moved = clip * math.sqrt(4.0 * pairs / features + losses)
    return times.release(budget, moved, 2 * pairs + losses)


def clipped(residuals: Floats, clip: float) -> Floats:
    """Return residuals within [-c, c]; of a model that has diverged, which are no numbers, 0."""
    found = np.nan_to_num(residuals, nan=0.0, posinf=np.inf, neginf=-np.inf)
    return np.asarray(found.clip(-clip, clip))


def weighed_features(residuals: Floats, z: Real) -> Floats:
    """Return features times clipped residuals, summed over samples: (B, M), (B, M, 2D) -> (M, 2D).

    In 64 bits, so that a sample changes how others are rounded by next to nothing. Features of
    absurd frequencies may be no numbers: whether they are must not show.
    """
    found = np.nan_to_num(z.astype(np.float64), nan=0.0)
    return np.asarray(np.einsum("bm,bmw->mw", residuals, found))


def clipped_losses(residuals: Floats, clip: float) -> Floats:
    """Return the squares of clipped residuals over c, summed over samples: (B, N) -> (N,)."""
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
    """Return the noise of the sums of POF-RLS: of all learners of a message together.

    A row of raw columns is u = (x, 1) with x in the unit ball. Another row moves x in the last
    column of Phi^T Phi by v, and the upper triangle of x x^T by no more than its whole matrix: with
    t = x^T x' their squares are 2 - 2 t and 2 - 2 t^2, at most 9/2 together. Phi^T y moves by
    2 sqrt(2) / 2. Of a kernel see :func:`~fedkern_flwr.privacy.accounting.ridge`; fewer features
    are a part of it.

    Parameters
    ----------
    columns : int
        Raw columns; 0 if they are not summed.
    kernels, features, summed : int
        Kernels; D; and how many frequencies of each are summed.
    budget, times
        See :func:`update_release`.
    """
    square = (4.5 + 8.0 * LABELS**2) * (columns > 0)
    square += kernels * sensitivity.ridge(2 * features, LABELS) ** 2
    length = ridge.numbers(columns + 1) * (columns > 0) + kernels * ridge.numbers(2 * summed)
    return times.release(budget, math.sqrt(square), length)


def ridge_sum(request: Any, x: NDArray[Any], labels: Floats) -> Floats:
    """Return what a client adds by a ``RidgeRequest``: rows (B, d), labels without their centre."""
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
    """Return noisy sums whose Phi^T Phi has no negative part, and a lambda that the noise asks for.

    As FedCG does with its own, see :func:`fedkern_flwr.hybrid.fourier.regularize`: half of
    ``deviation`` sqrt(p), where the noise has eigenvalues up to 2 ``deviation`` sqrt(p).
    """
    gram, right = ridge.unpack(totals, features)
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values, 0.0) + 0.5 * deviation * math.sqrt(features)
    gram = (vectors * values[..., None, :]) @ vectors.swapaxes(-1, -2)
    return ridge.pack(gram, right)
