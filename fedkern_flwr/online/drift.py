"""Detect drift: a rise of the prediction error while a run learns.

The server knows the input anyway: errors of all clients' samples, summed per message.

References
----------
Bifet and Gavalda, "Learning from Time-Changing Data with Adaptive Windowing", SDM 2007: ADWIN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Chance of a false alarm per message, if errors of messages are independent.
DELTA = 0.002
_LEAST = 5  # messages on each side of a change
_MOST = 400  # messages that are tested one by one; more are tested in blocks
_TINY = 1e-12
_ROUNDING = 1e-6  # changes of a mean that may be rounding, where errors are all alike


def message_errors(history: Sequence[Mapping[str, Any]]) -> tuple[Floats, Floats]:
    """Return the samples of a client after each message, and the mean squared error within it.

    ``history`` has ``round`` (samples so far) and ``mse`` (of all of them) of each message. A
    message without a reported error is merged with the next one.
    """
    told = [(row["round"], row["mse"]) for row in history if row["mse"] is not None]
    if not told:
        return np.zeros(0), np.zeros(0)
    t, so_far = np.array(told, np.float64).T
    samples, totals = np.diff(t, prepend=0.0), np.diff(t * so_far, prepend=0.0)
    some = samples > 0.0
    return t[some], (totals[some] / samples[some]).clip(0.0)


def recent_errors(history: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """Return (t, error of the last tenth of a run's samples up to t); it rises with drift."""
    told = [(0, 0.0)]
    told += [(row["round"], row["round"] * row["mse"]) for row in history if row["mse"] is not None]
    found, first = [], 0
    for t, total in told[1:]:
        while told[first + 1][0] <= t - told[-1][0] / 10:
            first += 1
        before, earlier = told[first]
        if before <= t - told[-1][0] / 10:
            found.append((t, max(0.0, total - earlier) / (t - before)))
    return found


def rises(history: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return after how many samples of a client the error began to rise.

    ADWIN on the logarithms of the messages' errors, so that units do not matter. It cuts the window
    where the means of its two parts differ by more than the bound for normal deviations. Cuts where
    the error fell are learning and are left out.
    """
    t, errors = message_errors(history)
    block = -(-len(errors) // _MOST)
    if block > 1:
        whole = len(errors) // block * block
        t = t[block - 1 : whole : block]
        errors = errors[:whole].reshape(-1, block).mean(axis=1)
    values, start = np.log(errors + _TINY), 0
    found: list[int] = []
    for stop in range(2 * _LEAST, len(values) + 1):
        while (cut := _cut(values[start:stop])) is not None:
            where, rose = cut
            start, before = start + where, start
            if rose and not (found and where <= 2 * _LEAST and found[-1] == t[before - 1]):
                found.append(int(t[start - 1]))
    return found


def _cut(window: Floats) -> tuple[int, bool] | None:
    """Return where to cut a window and whether the mean rises there; None without a cut."""
    n = len(window)
    first = np.arange(_LEAST, n - _LEAST + 1)
    if not len(first):
        return None
    sums, squares = np.cumsum(window), window @ window
    before = sums[first - 1] / first
    after = (sums[-1] - sums[first - 1]) / (n - first)
    within = (squares - first * before**2 - (n - first) * after**2).clip(0.0) / (n - 2)
    harmonic = 1.0 / (1.0 / first + 1.0 / (n - first))
    length = np.log(2.0 * np.log(n) / DELTA)
    bound = np.sqrt(within) * (np.sqrt(2.0 / harmonic * length) + 2.0 / (3.0 * harmonic) * length)
    excess = np.abs(after - before) - bound - _ROUNDING
    best = int(excess.argmax())
    return (int(first[best]), bool(after[best] > before[best])) if excess[best] > 0.0 else None
