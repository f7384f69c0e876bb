"""Evaluate a model on held-out rows: counts that can be summed, and figures from them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError
from ..labels import decide
from ..privacy import Budget, Release, plan_sum
from ..privacy import accounting as sensitivity

# -- what a party counts on held-out rows: a confusion matrix or sums of errors, and histograms
#
# A score f is counted in one of equal bins of f / sqrt(1 + f^2), which is in (-1, 1), and an error
# in one of geometric bins in units of the labels' bound; all edges are public. Half of the rows are
# for calibration, which must not see the rows on which it is judged: every histogram is made twice.
#
# Anyone who knows a person's columns and the model may learn the label from these counts: the score
# says in which bin the person is, and a bin may hold rows of one class only. So bins are few.

Floats = NDArray[np.float64]

#: A larger test error, in units of the labels' bound, counts as that, so that sums are bounded.
LARGEST_ERROR = 10.0
#: Fewest and most bins of a histogram of scores.
LEAST_BINS, MOST_BINS = 4, 64
#: Held-out rows for each bin of scores, and the rows below which there is no histogram.
ROWS_PER_BIN, LEAST_ROWS = 64, 16
#: Fewest bins of a histogram of errors.
_LEAST_ERRORS = 8
#: Upper edges of the second and of the last but one bin of errors; the last has none.
_FINEST, _COARSEST = 1e-3, 2.0
_SUMS = 4  # squared and absolute errors, labels and squared labels


def bins_of(rows: int, classes: int) -> int:
    """Return the number of histogram bins for the held-out rows of all parties, 0 for none.

    For classes: one bin for every 64 rows, an even number from 4 to 64, so that zero is an edge.
    For a regression (``classes`` is 0): half as many bins as rows, from 8 to 64. Below 16 rows
    there is no histogram.

    Examples
    --------
    >>> [bins_of(rows, 2) for rows in (15, 200, 2_000, 20_000)], bins_of(200, 0)
    ([0, 4, 30, 64], 64)
    """
    if rows < LEAST_ROWS:
        return 0
    if not classes:
        return min(max(rows // 4 * 2, _LEAST_ERRORS), MOST_BINS)
    return min(max(rows // (2 * ROWS_PER_BIN) * 2, LEAST_BINS), MOST_BINS)


def calibrating(names: Iterable[str], key: bytes = b"") -> NDArray[np.bool_]:
    """Return which held-out rows calibrate: every second one in the order of their keyed hashes.

    Parameters
    ----------
    names : iterable of str
        Identities of the rows.
    key : bytes, at most 64 (default: none)
        Secret of the node. Without one anyone who knows an id knows its half, and half as many rows
        hide a label.
    """
    hashes = [
        hashlib.blake2b(str(name).encode(), key=key, person=b"calibration").digest()
        for name in names
    ]
    chosen = np.zeros(len(hashes), bool)
    chosen[np.argsort(np.array(hashes, dtype="S64"), kind="stable")[::2]] = True
    return chosen


def places_of(scores: Floats, bins: int) -> NDArray[np.intp]:
    """Return the bin of each score; scores of 0 or more are in the upper half."""
    bounded = scores / np.hypot(1.0, scores)
    places = np.floor(bounded * (bins / 2)) + bins // 2
    return np.asarray(np.clip(places, 0, bins - 1), np.intp)


def middles_of(bins: int) -> Floats:
    """Return the score in the middle of each bin."""
    bounded = (2.0 * np.arange(bins) + 1.0) / bins - 1.0
    return np.asarray(bounded / np.sqrt(1.0 - bounded**2))


def error_edges(bins: int) -> Floats:
    """Return the upper edges of the bins of errors, in units of the bound."""
    return np.append(np.geomspace(_FINEST, _COARSEST, bins - 1), np.inf)


@dataclass(frozen=True)
class Yardstick:
    """Define what is counted of a model's outputs, the same at all parties.

    Attributes
    ----------
    classes : int
        Number of classes, 0 for a regression.
    outputs : int
        Outputs of the model.
    bound : float
        Bound of the labels in a regression.
    bins : int
        Bins of a histogram, 0 for none.
    """

    classes: int
    outputs: int
    bound: float = 1.0
    bins: int = 0

    @property
    def plain(self) -> int:
        """Number of figures before the histograms."""
        return self.classes**2 if self.classes else 1 + _SUMS * self.outputs

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the histograms.

        Axes: (calibration rows, report rows), outputs, for classes (negatives, positives), bins.
        """
        signs = (2,) if self.classes else ()
        return (2, self.outputs, *signs, self.bins)

    @property
    def length(self) -> int:
        """Length of the result of :meth:`count`."""
        return self.plain + int(np.prod(self.shape))

    @property
    def largest(self) -> float:
        """Most that a single test row adds to a number of :meth:`count`."""
        return 1.0 if self.classes else LARGEST_ERROR**2

    def count(
        self, predictions: Floats, targets: Floats, calibrates: NDArray[np.bool_] | None = None
    ) -> Floats:
        """Return the counts of test rows, to be summed over the parties.

        Parameters
        ----------
        predictions, targets : ndarray, shape (n, k)
            Outputs of the model, and their true values.
        calibrates : ndarray of bool, shape (n,), optional
            Which rows calibrate; not needed without bins.

        Returns
        -------
        ndarray of float64
            Classes: the confusion matrix, row by row (true class, predicted class). Regression: the
            number of rows, then for each output the sums of squared errors, absolute errors, labels
            and squared labels, in units of the bound. Then the histograms.
        """
        predictions = np.clip(np.nan_to_num(predictions), -1e150, 1e150)  # of a forged model
        if self.classes:
            pairs = decide(targets) * self.classes + decide(predictions)
            head = np.bincount(pairs, minlength=self.classes**2).astype(np.float64)
        else:
            errors = np.minimum(np.abs(predictions - targets) / self.bound, LARGEST_ERROR)
            y = targets / self.bound
            head = np.concatenate(
                [[float(len(y))], *(v.sum(0) for v in (errors**2, errors, y, y**2))]
            )
        if not self.bins:
            return head
        assert calibrates is not None
        found = np.zeros(self.shape)
        half = np.broadcast_to(np.where(calibrates, 0, 1)[:, None], predictions.shape)
        output = np.broadcast_to(np.arange(self.outputs), predictions.shape)
        if self.classes:
            places = places_of(predictions, self.bins)
            np.add.at(found, (half, output, (targets > 0.0).astype(np.intp), places), 1.0)
        else:
            places = np.searchsorted(error_edges(self.bins), errors)
            np.add.at(found, (half, output, places), 1.0)
        return np.concatenate([head, found.ravel()])

    def split(self, total: Floats) -> tuple[Floats, Floats]:
        """Split a sum into the figures before the histograms, and the histograms."""
        head, histograms = total[: self.plain], np.rint(total[self.plain :])
        head = np.rint(head) if self.classes else np.concatenate([np.rint(head[:1]), head[1:]])
        return head, histograms.reshape(self.shape)


# -- what is counted on held-out rows in runs with a budget: the same at server and nodes

OUTCOMES = "outcomes"


def outcomes_release(budget: Budget, *, classes: int, outputs: int, rows: Sequence[int]) -> Release:
    """Return the noise of counts on held-out rows; ``rows`` are those of each hospital."""
    moved = sensitivity.confusion() if classes else sensitivity.errors(outputs)
    length = classes**2 if classes else 1 + 4 * outputs
    return plan_sum(OUTCOMES, budget, sensitivity=moved, length=length, rows=rows, least=len(rows))


def tidy(counts: Floats, classes: int, rows: int) -> Floats:
    """Project noisy counts of ``rows`` held-out rows onto possible ones.

    Classes: a confusion matrix of whole numbers, none negative. Regression: only sums of labels may
    be negative.
    """
    if classes:
        found = np.maximum(counts, 0.0)
        total = found.sum()
        return np.rint(found * rows / total) if total > 0.0 else np.rint(found)
    outputs = (len(counts) - 1) // 4
    squared, absolute, labels, squares = counts[1:].reshape(4, outputs)
    positive = [np.maximum(part, 0.0) for part in (squared, absolute, squares)]
    return np.concatenate([[float(rows)], positive[0], positive[1], labels, positive[2]])


# -- probabilities, intervals and sets, fitted to the histogram of the rows that calibrate

_STEPS, _CLOSE = 100, 1e-12  # of Newton's method
_ENDLESS = -1.0  # a width in messages and JSON, which have no infinity


def sigmoid(values: Floats) -> Floats:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)))


def fit_sigmoid(scores: Floats, negatives: Floats, positives: Floats) -> tuple[float, float]:
    """Return slope a and offset b of Platt's probabilities, 1 / (1 + exp(-(a f + b))).

    Newton's method maximises the likelihood of labels smoothed by Platt's priors, (N+ + 1) / (N+ +
    2) and 1 / (N- + 2). If a class is missing the slope is 0. See Platt, "Probabilistic Outputs for
    Support Vector Machines", 1999; Lin, Lin and Weng, "A Note on Platt's Probabilistic Outputs",
    2007.
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
    """Return the bin with an upper edge that new values do not exceed, with probability ``level``.

    It has the value of rank ceil((n + 1) level) of the n counted ones. With too few values it is
    the last bin, which is open (Vovk, Gammerman and Shafer, *Algorithmic Learning in a Random
    World*, 2005).
    """
    # (n + 1) level is a whole number in exact arithmetic more often than in floats
    rank = math.ceil(round((counts.sum() + 1.0) * level, 9))
    return min(int(np.searchsorted(np.cumsum(counts), rank)), len(counts) - 1)


def true_scores(histogram: Floats) -> Floats:
    """Return the histogram of the score of each row's true class.

    ``histogram`` has shape (outputs, 2, bins), negatives and positives of each output. Two classes
    have one output f; the score of the first class is -f.
    """
    if len(histogram) == 1:
        return np.asarray(histogram[0, 1] + histogram[0, 0, ::-1])
    return np.asarray(histogram[:, 1].sum(0))


@dataclass(frozen=True)
class Calibration:
    """Convert outputs to probabilities and conformal sets, or to intervals.

    Attributes
    ----------
    level : float
        Nominal coverage of sets or intervals.
    bins, least : int
        Classes with a score in bin ``least`` or higher are in a set.
    slopes, offsets : tuple of float
        Platt's parameters of each output.
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
        """Fit to the histograms of the calibration rows."""
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
        """Return all parameters as numbers."""
        head = [self.level, float(self.classes), float(self.bins), float(self.least)]
        widths = [width if math.isfinite(width) else _ENDLESS for width in self.widths]
        return [*head, *self.slopes, *self.offsets, *widths]

    @classmethod
    def read(cls, numbers: Sequence[float] | Floats, outputs: int) -> Calibration | None:
        """Read the result of :meth:`numbers`; None of no numbers."""
        if not len(numbers):
            return None
        level, *whole = [float(value) for value in numbers[:4]]
        rest = [float(value) for value in numbers[4:]]
        sizes = (len(numbers) > 3, len(rest) == outputs * (2 if whole and whole[0] else 1))
        if not all(sizes) or not all(value.is_integer() for value in whole):
            raise CheckpointError(
                "the calibration of the model is damaged", code="FK-MODEL-DAMAGED"
            )
        classes, bins, least = (int(value) for value in whole)
        if not classes:
            return cls(level, 0, widths=tuple(math.inf if w == _ENDLESS else w for w in rest))
        halves = tuple(rest[:outputs]), tuple(rest[outputs:])
        return cls(level, classes, bins, least, *halves)

    # -- of outputs

    def probabilities(self, outputs: Floats) -> Floats:
        """Return the probability of each class, shape (n, classes), from outputs (n, k).

        With several classes they are one-against-rest probabilities, divided by their sum. The
        predicted class has the largest; for two classes see :attr:`threshold`.
        """
        found = self.one_against_rest(outputs)
        if found.shape[1] == 1:
            return np.hstack([1.0 - found, found])
        total = found.sum(axis=1, keepdims=True)
        return np.where(total > 0.0, found / np.where(total > 0.0, total, 1.0), 1.0 / self.classes)

    @property
    def threshold(self) -> float:
        """For two classes: the probability from which the second one is predicted.

        It is the probability at output 0. It differs from 1/2 if the calibration rows have other
        class shares than the training, such as with balanced classes.
        """
        return float(sigmoid(np.array(self.offsets[0])))

    def one_against_rest(self, outputs: Floats) -> Floats:
        """Return Platt's probability of each output, shape (n, k)."""
        return sigmoid(outputs * np.array(self.slopes) + np.array(self.offsets))

    def sets(self, outputs: Floats) -> NDArray[np.bool_]:
        """Return the conformal set of each row, shape (n, classes); it may be empty."""
        places = places_of(outputs, self.bins)
        if places.shape[1] == 1:
            places = np.hstack([self.bins - 1 - places, places])
        return np.asarray(places >= self.least)

    def columns(
        self, outputs: Floats, names: Sequence[str], unit: float = 1.0
    ) -> tuple[list[str], list[list[str]]]:
        """Return header and cells for a file of predictions.

        ``outputs`` has shape (n, k). ``unit`` is the unit of a regression's outputs, as a multiple
        of the labels' unit.
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


# -- figures of held-out rows, from what all parties counted

_CELLS = 10  # of a calibration curve
_LEAST_ROWS = 200  # held-out rows below which a calibration error is chance


@dataclass(frozen=True, eq=False)
class Judged:
    """Compute figures from the summed counts of held-out rows.

    Attributes
    ----------
    total : ndarray
        Sum of the parties' counts.
    level : float
        Nominal coverage of intervals and sets.
    weighted : bool
        Whether the model was trained with balanced classes; accuracy then says little.
    """

    yard: Yardstick
    total: Floats
    level: float = 0.9
    weighted: bool = False

    @cached_property
    def _parts(self) -> tuple[Floats, Floats]:
        return self.yard.split(self.total)

    @property
    def rows(self) -> int:
        """Number of held-out rows."""
        head = self._parts[0]
        return int(head.sum() if self.yard.classes else head[0])

    @cached_property
    def calibration(self) -> Calibration | None:
        """Probabilities, sets and intervals; None without calibration rows."""
        histogram = self._parts[1]
        if not self.yard.bins or not histogram[0].any():
            return None
        return Calibration.fit(self.yard, histogram[0], self.level)

    def metrics(self) -> dict[str, float]:
        """Return the figures, in the labels' units of the parties; undefined ones are missing.

        Classes: ``test_accuracy``, ``test_most_frequent`` (majority-class baseline),
        ``test_balanced_accuracy`` (mean recall). Two classes: ``test_recall`` and
        ``test_precision`` of the second one. With histograms: ``test_auc`` (mean over the classes,
        ties count half) and ``test_auc_bin``, its largest binning error. On rows that do not
        calibrate: ``test_log_loss``, ``test_brier``, ``test_set_coverage``, ``test_set_size`` and,
        from 200 held-out rows, ``test_calibration_error`` and ``test_calibration_error_before``
        calibration. With several classes log loss and Brier score end in ``_ovr``: means of one
        class against the rest.

        Regression: ``test_rmse``, ``test_mae``, ``test_r2`` (means over outputs),
        ``test_interval_width``, and ``test_interval_coverage`` on rows that do not calibrate.
        """
        if not self.rows:
            return {}
        found = self._classes() if self.yard.classes else self._errors()
        if self.calibration is not None:
            found |= self._curves() if self.yard.classes else self._intervals(self.calibration)
        return found

    def details(self) -> dict[str, Any]:
        """Return plain values for plots: confusion matrix, curves, calibration."""
        found: dict[str, Any] = {"rows": self.rows}
        if self.yard.classes:
            found["confusion"] = self.confusion.astype(int).tolist()
        if self.calibration is not None and self.rows:
            found |= {"bins": self.yard.bins, "fitted": self.calibration.numbers()}
            if self.yard.classes:
                found["roc"] = [self.roc(k) for k in range(self.yard.outputs)]
                found["calibration"] = {
                    "before": self.curve(self.before()),
                    "after": self.curve(self.after()),
                }
        return found

    @property
    def useless(self) -> str:
        """Baseline that predicts the held-out rows as well (most frequent class or mean), or ""."""
        if not self.rows:
            return ""
        if self.yard.classes:
            most = self.confusion.sum(axis=1).max()
            worse = np.trace(self.confusion) <= most < self.confusion.sum()
            if self.weighted:
                there = np.count_nonzero(self.confusion.sum(axis=1))
                worse = self._classes()["test_balanced_accuracy"] <= 1.0 / there < 1.0
            single = np.count_nonzero(self.confusion.sum(axis=0)) == 1
            told = " (one class only is predicted)" if single else ""
            return f"their most frequent class{told}" if worse else ""
        return "their mean" if self._errors().get("test_r2", 1.0) <= 0.0 else ""

    @property
    def never_found(self) -> int:
        """Number of classes in the held-out rows that are never predicted correctly."""
        if not self.yard.classes:
            return 0
        found, there = np.diagonal(self.confusion), self.confusion.sum(axis=1)
        return int(((found == 0.0) & (there > 0.0)).sum()) if (there > 0.0).sum() > 1 else 0

    def warnings(self) -> dict[str, Any]:
        """Return warnings for a result: a baseline as good, classes never found."""
        found = {"no_better_than": self.useless, "never_found": self.never_found}
        return {name: value for name, value in found.items() if value}

    # -- classes

    @property
    def confusion(self) -> Floats:
        """The confusion matrix; rows are true classes."""
        return self._parts[0].reshape(self.yard.classes, -1)

    def _classes(self) -> dict[str, float]:
        confusion = self.confusion
        here = confusion.sum(1) > 0.0
        recalls = np.diagonal(confusion)[here] / confusion.sum(1)[here]
        found = {"test_accuracy": float(np.trace(confusion) / confusion.sum())}
        found["test_most_frequent"] = float(confusion.sum(1).max() / confusion.sum())
        if self.yard.classes == 2:
            hits = confusion[1, 1]
            if confusion[1].sum():
                found["test_recall"] = float(hits / confusion[1].sum())
            if confusion[:, 1].sum():
                found["test_precision"] = float(hits / confusion[:, 1].sum())
        return {**found, "test_balanced_accuracy": float(recalls.mean())}

    def roc(self, output: int) -> list[list[float]]:
        """Return the points (false, true positive rate) of an output, at the edges of the bins."""
        negatives, positives = self._parts[1].sum(0)[output][:, ::-1]
        points = []
        for counts in (negatives, positives):
            points.append(np.concatenate([[0.0], np.cumsum(counts)]) / max(1.0, counts.sum()))
        kept = np.concatenate([[True], (negatives + positives) > 0.0])
        found: list[list[float]] = np.stack(points, axis=1)[kept].tolist()
        return found

    def areas(self) -> list[tuple[float, float]]:
        """Return (AUC, binning error at most) of the outputs with both labels."""
        found = []
        for negatives, positives in self._parts[1].sum(0):
            pairs = negatives.sum() * positives.sum()
            if pairs:
                below = np.cumsum(negatives) - negatives
                ties = float((positives * negatives).sum() / (2.0 * pairs))
                found.append((float((positives * below).sum() / pairs) + ties, ties))
        return found

    def before(self) -> Floats:
        """Return the probability in each bin before calibration, (f + 1) / 2; shape (k, bins)."""
        plain = np.clip((middles_of(self.yard.bins) + 1.0) / 2.0, 0.0, 1.0)
        return np.tile(plain, (self.yard.outputs, 1))

    def after(self) -> Floats:
        """Return Platt's probability in each bin, shape (k, bins)."""
        assert self.calibration is not None
        middles = middles_of(self.yard.bins)
        pairs = zip(self.calibration.slopes, self.calibration.offsets, strict=True)
        return np.stack([sigmoid(a * middles + b) for a, b in pairs])

    def curve(self, probabilities: Floats) -> list[list[float]]:
        """Return (mean probability, share of positives, rows) of each tenth that has rows.

        ``probabilities`` are those of the bins, shape (k, bins). The curve is over rows that do not
        calibrate, all outputs together.
        """
        negatives, positives = np.moveaxis(self._parts[1][1], 1, 0)
        edges = np.linspace(0.0, 1.0, _CELLS + 1)[1:-1]
        cells = np.searchsorted(edges, probabilities.ravel())
        sums = [
            np.bincount(cells, values.ravel(), _CELLS)
            for values in (probabilities * (negatives + positives), positives, negatives)
        ]
        rows = sums[1] + sums[2]
        kept = rows > 0.0
        columns = [sums[0][kept] / rows[kept], sums[1][kept] / rows[kept], rows[kept]]
        found: list[list[float]] = np.stack(columns, 1).tolist()
        return found

    def _curves(self) -> dict[str, float]:
        found = {}
        if areas := self.areas():
            found["test_auc"], found["test_auc_bin"] = (
                float(np.mean(column)) for column in zip(*areas, strict=True)
            )
        reported = self._parts[1][1]
        if not reported.any():
            return found
        q = self.after()
        negatives, positives = reported[:, 0], reported[:, 1]
        pairs = reported.sum()
        safe = np.clip(q, np.finfo(np.float64).eps, 1.0 - np.finfo(np.float64).eps)
        loss = positives * np.log(safe) + negatives * np.log1p(-safe)
        ovr = "_ovr" * (self.yard.classes > 2)
        found[f"test_log_loss{ovr}"] = float(-loss.sum() / pairs)
        squares = positives * (1.0 - q) ** 2 + negatives * q**2
        found[f"test_brier{ovr}"] = float(squares.sum() / pairs)
        for name, values in (("", q), ("_before", self.before())):
            if self.rows >= _LEAST_ROWS:
                found[f"test_calibration_error{name}"] = calibration_error(self.curve(values))
        return found | self._sets(reported)

    def _sets(self, reported: Floats) -> dict[str, float]:
        assert self.calibration is not None
        least, own, scores = self.calibration.least, true_scores(reported), reported.sum(1)
        scores = scores[0] + scores[0, ::-1] if len(scores) == 1 else scores.sum(0)
        rows = own.sum()
        return {
            "test_set_coverage": float(own[least:].sum() / rows),
            "test_set_size": float(scores[least:].sum() / rows),
        }

    # -- regression

    def squares(self) -> list[float]:
        """Return the mean squared error of each output."""
        squares = self._parts[0][1:].reshape(4, -1)[0]
        found: list[float] = (self.yard.bound**2 * squares / max(1, self.rows)).tolist()
        return found

    def _errors(self) -> dict[str, float]:
        rows, bound = self.rows, self.yard.bound
        squares, errors, y, yy = self._parts[0][1:].reshape(4, -1)
        found = {
            "test_rmse": float(bound * np.sqrt(squares.sum() / (rows * len(squares)))),
            "test_mae": float(bound * errors.sum() / (rows * len(errors))),
        }
        spread = yy - y**2 / rows
        if (spread > 1e-12 * np.maximum(yy, 1e-300)).all():
            found["test_r2"] = float((1.0 - squares / spread).mean())
        return found

    def _intervals(self, calibration: Calibration) -> dict[str, float]:
        reported, found = self._parts[1][1], dict[str, float]()
        if np.isfinite(calibration.widths).all():
            found["test_interval_width"] = float(2.0 * np.mean(calibration.widths))
        if reported.any():
            places = [conformal_place(counts, self.level) for counts in self._parts[1][0]]
            inside = sum(counts[: p + 1].sum() for counts, p in zip(reported, places, strict=True))
            found["test_interval_coverage"] = float(inside / reported.sum())
        return found


def calibration_error(curve: list[list[float]]) -> float:
    """Return the mean distance of probability and share of a curve, corrected for chance.

    A share of n rows has variance p (1 - p) / n even if p is exact. The distance is scaled by the
    square root of the part of its square beyond that.
    """
    mean, share, rows = np.array(curve).T
    gaps = np.abs(mean - share)
    squares, chance = rows @ gaps**2, (mean * (1.0 - mean)).sum()
    left = max(0.0, 1.0 - chance / squares) if squares else 0.0
    return float(np.average(gaps, weights=rows) * np.sqrt(left))


def in_units(metrics: dict[str, Any], unit: float) -> dict[str, Any]:
    """Return the figures of a regression in other units of the labels."""
    scaled = ("test_rmse", "test_mae", "test_interval_width")
    return {name: metrics[name] * unit for name in scaled if name in metrics}
