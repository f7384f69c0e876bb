"""Probabilities, intervals and sets, fitted to the histogram of the rows that calibrate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError
from .counts import Yardstick, error_edges, middles_of, places_of

Floats = NDArray[np.float64]

_STEPS, _CLOSE = 100, 1e-12  # of Newton's method
_ENDLESS = -1.0  # a width in messages and JSON, which have no infinity


def sigmoid(values: Floats) -> Floats:
    """Return 1 / (1 + exp(-v))."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)))


def fit_sigmoid(scores: Floats, negatives: Floats, positives: Floats) -> tuple[float, float]:
    """Return slope and offset of Platt's probabilities, 1 / (1 + exp(-(a f + b))).

    The likelihood of labels that are smoothed by Platt's priors, (N+ + 1) / (N+ + 2) and
    1 / (N- + 2), is maximised by Newton's method. Where a class is missing the slope is 0.

    Parameters
    ----------
    scores : ndarray, shape (bins,)
        Score of each bin.
    negatives, positives : ndarray, shape (bins,)
        How many rows it has.

    References
    ----------
    Platt, "Probabilistic Outputs for Support Vector Machines", 1999; Lin, Lin and Weng, "A Note on
    Platt's Probabilistic Outputs for Support Vector Machines", Machine Learning 2007.
    """
    n, p = float(negatives.sum()), float(positives.sum())
    rows = negatives + positives
    wanted = (positives * (p + 1.0) / (p + 2.0) + negatives / (n + 2.0)) / np.maximum(rows, 1.0)
    found = np.array([0.0, math.log((p + 1.0) / (n + 1.0))])
    if not n or not p:
        return 0.0, float(found[1])
    features = np.stack([scores, np.ones(len(scores))])

    def loss(ab: Floats) -> float:
        values = ab @ features
        return float((rows * (np.logaddexp(0.0, values) - wanted * values)).sum())

    for _ in range(_STEPS):
        q = sigmoid(found @ features)
        gradient = features @ (rows * (q - wanted))
        curvature = (features * (rows * q * (1.0 - q))) @ features.T + _CLOSE * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        while loss(found - step) > loss(found) and np.abs(step).max() > _CLOSE:
            step = step / 2.0
        found = found - step
        if np.abs(step).max() <= _CLOSE:
            break
    return float(found[0]), float(found[1])


def conformal_place(counts: Floats, level: float) -> int:
    """Return the bin up to whose upper edge new values lie with a probability of at least a level.

    It holds the value of rank ceil((n + 1) level) of the n that are counted; where there are too
    few, the last bin, which is open.

    Parameters
    ----------
    counts : ndarray, shape (bins,)
        How many values each bin holds, in ascending order.
    level : float
        The probability.

    References
    ----------
    Vovk, Gammerman and Shafer, *Algorithmic Learning in a Random World*, 2005.
    """
    # (n + 1) level is a whole number in exact arithmetic more often than in floats
    rank = math.ceil(round((counts.sum() + 1.0) * level, 9))
    return min(int(np.searchsorted(np.cumsum(counts), rank)), len(counts) - 1)


def true_scores(histogram: Floats) -> Floats:
    """Return the histogram of the score of each row's own class.

    Parameters
    ----------
    histogram : ndarray, shape (outputs, 2, bins)
        Negatives and positives of each output; of two classes there is one output f, the score of
        the first class is -f.
    """
    if len(histogram) == 1:
        return np.asarray(histogram[0, 1] + histogram[0, 0, ::-1])
    return np.asarray(histogram[:, 1].sum(0))


@dataclass(frozen=True)
class Calibration:
    """What turns outputs into probabilities and sets of classes, or into intervals.

    Attributes
    ----------
    level : float
        Probability with which a set holds the class of a new row, or an interval its label.
    classes : int
        Number of classes, 0 for a regression.
    bins, least : int
        Classes: those whose score is in bin ``least`` or a higher one are in a set.
    slopes, offsets : tuple of float
        Classes: of the probabilities, for each output.
    widths : tuple of float
        Regression: half the width of an interval, for each output.
    """

    level: float
    classes: int
    bins: int = 0
    least: int = 0
    slopes: tuple[float, ...] = field(default=())
    offsets: tuple[float, ...] = field(default=())
    widths: tuple[float, ...] = field(default=())

    @classmethod
    def fit(cls, yard: Yardstick, histogram: Floats, level: float) -> Calibration:
        """Fit to the histograms of the rows that calibrate."""
        if not yard.classes:
            edges = error_edges(yard.bins) * yard.bound
            widths = [float(edges[conformal_place(counts, level)]) for counts in histogram]
            return cls(level, 0, widths=tuple(widths))
        # One sigmoid for all classes: the largest output is the most probable class then.
        middles = middles_of(yard.bins)
        fitted = [fit_sigmoid(middles, *histogram.sum(axis=0))] * len(histogram)
        least = yard.bins - 1 - conformal_place(true_scores(histogram)[::-1], level)
        slopes, offsets = zip(*fitted, strict=True)
        return cls(level, yard.classes, yard.bins, least, slopes, offsets)

    # -- as numbers, for messages and models

    def numbers(self) -> list[float]:
        """Return it as plain numbers."""
        head = [self.level, float(self.classes), float(self.bins), float(self.least)]
        widths = [width if math.isfinite(width) else _ENDLESS for width in self.widths]
        return [*head, *self.slopes, *self.offsets, *widths]

    @classmethod
    def read(cls, numbers: Sequence[float] | Floats, outputs: int) -> Calibration | None:
        """Return what :meth:`numbers` returned; None of no numbers.

        Raises
        ------
        CheckpointError
            They are something else.
        """
        if not len(numbers):
            return None
        level, *whole = [float(value) for value in numbers[:4]]
        rest = [float(value) for value in numbers[4:]]
        sizes = (len(numbers) > 3, len(rest) == outputs * (2 if whole and whole[0] else 1))
        if not all(sizes) or not all(value.is_integer() for value in whole):
            raise CheckpointError(
                "the calibration of the model is damaged",
                remedy="run again",
                code="FK-MODEL-DAMAGED",
            )
        classes, bins, least = (int(value) for value in whole)
        if not classes:
            return cls(level, 0, widths=tuple(math.inf if w == _ENDLESS else w for w in rest))
        halves = tuple(rest[:outputs]), tuple(rest[outputs:])
        return cls(level, classes, bins, least, *halves)

    # -- of outputs

    def probabilities(self, outputs: Floats) -> Floats:
        """Return the probability of each class, shape (n, classes), from outputs (n, k).

        Of several classes they are those of one against the rest, divided by their sum. The class
        that is predicted has the largest; of two classes see :attr:`threshold`.
        """
        found = self.one_against_rest(outputs)
        if found.shape[1] == 1:
            return np.hstack([1.0 - found, found])
        total = found.sum(axis=1, keepdims=True)
        return np.where(total > 0.0, found / np.where(total > 0.0, total, 1.0), 1.0 / self.classes)

    @property
    def threshold(self) -> float:
        """Of two classes: from which probability on the second one is predicted.

        It is the probability of the output 0. It is not 1/2 where classes have other shares among
        the rows that calibrate than they were learned with, such as with balanced classes.
        """
        return float(sigmoid(np.array(self.offsets[0])))

    def one_against_rest(self, outputs: Floats) -> Floats:
        """Return Platt's probability of each output, shape (n, k)."""
        return sigmoid(outputs * np.array(self.slopes) + np.array(self.offsets))

    def sets(self, outputs: Floats) -> NDArray[np.bool_]:
        """Return which classes may be those of a row, shape (n, classes); perhaps none."""
        places = places_of(outputs, self.bins)
        if places.shape[1] == 1:
            places = np.hstack([self.bins - 1 - places, places])
        return np.asarray(places >= self.least)

    def columns(
        self, outputs: Floats, names: Sequence[str], unit: float = 1.0
    ) -> tuple[list[str], list[list[str]]]:
        """Return heads and rows of the cells that a file of predictions has of these outputs.

        Parameters
        ----------
        outputs : ndarray, shape (n, k)
            Of the rows.
        names : sequence of str
            Of the classes.
        unit : float (default: 1.0)
            What a label of 1 is in a regression whose outputs are given in other units.
        """
        if self.classes:
            heads = [*(f"probability_{name}" for name in names), "set"]
            cut = list[str]()
            if len(names) == 2:
                heads, cut = [*heads[:2], f"threshold_{names[1]}", "set"], [repr(self.threshold)]
            chosen = self.sets(outputs)
            sets = ["|".join(n for n, here in zip(names, r, strict=True) if here) for r in chosen]
            rows = self.probabilities(outputs).tolist()
            return heads, [[*map(repr, r), *cut, s] for r, s in zip(rows, sets, strict=True)]
        single = outputs.shape[1] == 1
        heads, cells = [], []
        for k, width in enumerate(self.widths):
            heads += [f"{end}{'' if single else f'_{k}'}" for end in ("low", "high")]
            cells += [outputs[:, k] - width * unit, outputs[:, k] + width * unit]
        return heads, [[repr(float(v)) for v in row] for row in np.stack(cells, axis=1)]
