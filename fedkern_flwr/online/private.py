"""What the online methods release with noise: the same reckoning at server and nodes.

A sample is in one message, at a place of the stream that everybody knows, and what is made of it
depends on it and on what was public before. So a run costs a row what one message costs, and a
party all of them together.

Of POF-MKL and its baselines a client sums, over its samples of a message, the random features of
each kernel in question times the residual of that kernel's prediction, clipped to [-c, c], and of
some methods losses. What is multiplied with it is public and the server's to add: a factor 2, the
probability of a choice, and the penalty. Features of a kernel have length one, and so many pairs
of them, a sine and a cosine each, have the length sqrt(pairs / D).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..kernels.random_features import Real
from ..privacy import Budget, Release, plan_release
from .messages import UPDATE_SUM

Floats = NDArray[np.float64]

#: Clip of residuals of labels in [0, 1].
CLIP = 0.1
_FLOAT32 = 1.0 + 1e-5  # by what features of 32 bits may be longer than one


def update_release(
    budget: Budget,
    *,
    clip: float,
    pairs: int,
    features: int,
    losses: int,
    most: int,
    messages: int,
    parties: int,
    least: int,
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
    most, messages : int
        Samples of a client in the largest message; how many messages there are at most. Of a party
        all samples may be substituted, in all messages.
    parties, least : int
        N, parties of the sum; t, fewest parties over which it can be opened.

    Raises
    ------
    OptionError
        See :func:`~fedkern_flwr.privacy.budget.plan_release`.
    """
    whole = budget.unit == "party"
    moved = clip * math.sqrt(4.0 * pairs / features + losses) * _FLOAT32
    return plan_release(
        UPDATE_SUM,
        budget,
        sensitivity=moved * (most if whole else 1),
        length=2 * pairs + losses,
        parties=parties,
        least=least,
        times=messages if whole else 1,
    )


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
