"""Figures of held-out rows, from what all parties counted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .calibration import Calibration, conformal_place, sigmoid, true_scores
from .counts import Yardstick, middles_of

Floats = NDArray[np.float64]

_CELLS = 10  # of a calibration curve
_LEAST_ROWS = 200  # held-out rows below which a calibration error is chance


@dataclass(frozen=True, eq=False)
class Judged:
    """What was counted on held-out rows, and what it says.

    Attributes
    ----------
    yard : Yardstick
    total : ndarray
        The sum of what the parties counted.
    level : float
        Of intervals and sets.
    weighted : bool
        Whether all classes were to count alike: accuracy is then no measure of use.
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
        """How many held-out rows were counted."""
        head = self._parts[0]
        return int(head.sum() if self.yard.classes else head[0])

    @cached_property
    def calibration(self) -> Calibration | None:
        """Probabilities, sets and intervals; None without rows that calibrate."""
        histogram = self._parts[1]
        if not self.yard.bins or not histogram[0].any():
            return None
        return Calibration.fit(self.yard, histogram[0], self.level)

    def metrics(self) -> dict[str, float]:
        """Return the figures, in the labels' units of the parties.

        Returns
        -------
        dict
            Classes: ``test_accuracy``, ``test_most_frequent`` (that of the rows' most frequent
            class), ``test_balanced_accuracy`` (mean recall of the classes that are there); for two
            ``test_recall`` and ``test_precision`` of the second class; with histograms
            ``test_auc`` (mean over the classes, ties count half) and ``test_auc_bin``, by how much
            the bins can have changed it; of the rows that do not calibrate
            ``test_log_loss``, ``test_brier`` and, of 200 held-out rows or more,
            ``test_calibration_error``, the last also before calibration, ``test_set_coverage`` and
            ``test_set_size``. Log loss and Brier score of
            several classes end in ``_ovr``: they are means of one class against the rest.
            Regression: ``test_rmse``, ``test_mae``, ``test_r2`` (means over outputs);
            ``test_interval_width``, and of the rows that do not calibrate
            ``test_interval_coverage``. What is not defined is left out.
        """
        if not self.rows:
            return {}
        found = self._classes() if self.yard.classes else self._errors()
        if self.calibration is not None:
            found |= self._curves() if self.yard.classes else self._intervals(self.calibration)
        return found

    def details(self) -> dict[str, Any]:
        """Return what plots are made of, plain values: the matrix, curves, the calibration."""
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
        """What predicts the held-out rows as well, if that is so simple: a class, the mean."""
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
        """How many of the classes that the held-out rows have are predicted for none of these."""
        if not self.yard.classes:
            return 0
        found, there = np.diagonal(self.confusion), self.confusion.sum(axis=1)
        return int(((found == 0.0) & (there > 0.0)).sum()) if (there > 0.0).sum() > 1 else 0

    def warnings(self) -> dict[str, Any]:
        """Return what a result says of a model of little use: what is as good, what it misses."""
        found = {"no_better_than": self.useless, "never_found": self.never_found}
        return {name: value for name, value in found.items() if value}

    # -- classes

    @property
    def confusion(self) -> Floats:
        """The confusion matrix, rows are true classes."""
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
        """Return (AUC, what the bins can have changed) of the outputs that have both labels."""
        found = []
        for negatives, positives in self._parts[1].sum(0):
            pairs = negatives.sum() * positives.sum()
            if pairs:
                below = np.cumsum(negatives) - negatives
                ties = float((positives * negatives).sum() / (2.0 * pairs))
                found.append((float((positives * below).sum() / pairs) + ties, ties))
        return found

    def before(self) -> Floats:
        """Return what outputs of -1 to 1 say of the probability in each bin, shape (k, bins)."""
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

        ``probabilities`` are those of the bins, shape (k, bins); of the rows that do not calibrate,
        all outputs together.
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
        """Return what the histograms say of classes."""
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
    """Return the mean distance of probability and share of a curve, less what chance makes of it.

    A share of n rows is off by p (1 - p) / n in the mean square, however right p is. The distance
    is scaled by the root of the part of its square that is more than that.

    Parameters
    ----------
    curve : list of (float, float, float)
        Mean probability, share of positives and rows of each cell.
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
