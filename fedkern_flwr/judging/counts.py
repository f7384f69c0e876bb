"""What a party counts on held-out rows: a confusion matrix or sums of errors, and histograms.

A score f is counted in one of equal bins of f / sqrt(1 + f^2), which is in (-1, 1), and an error in
one of geometric bins in units of the labels' bound; all edges are public. Half of the rows are for
calibration, which must not see the rows on which it is judged: every histogram is made twice.

Anyone who knows a person's columns and the model may learn the label from these counts: the score
says in which bin the person is, and a bin may hold rows of one class only. So bins are few.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..labels import decide

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
    """Return into how many bins a histogram over so many held-out rows may be cut.

    Bins of scores are one for every 64 rows, an even number of 4 to 64: zero is an edge. In which
    bin a person's error is nobody knows who knows the columns and the model, so bins of errors may
    be finer: 8 to 64, no more than half as many as there are rows. Below 16 rows there are none.

    Parameters
    ----------
    rows : int
        Held-out rows of all parties whose counts are added up.
    classes : int
        Number of classes, 0 for a regression.

    Returns
    -------
    int
        0 for no histogram.

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
    """Return which held-out rows calibrate: every other one in the order of their keyed hashes.

    Parameters
    ----------
    names : iterable of str
        Identities of the rows.
    key : bytes, at most 64 (default: none)
        Of the node alone. Without one anybody who knows an id knows the half, and half as many
        rows hide a label.
    """
    hashes = [
        hashlib.blake2b(str(name).encode(), key=key, person=b"calibration").digest()
        for name in names
    ]
    chosen = np.zeros(len(hashes), bool)
    chosen[np.argsort(np.array(hashes, dtype="S64"), kind="stable")[::2]] = True
    return chosen


def places_of(scores: Floats, bins: int) -> NDArray[np.intp]:
    """Return the bin of each score; the upper half is of scores that are not negative."""
    bounded = scores / np.hypot(1.0, scores)
    places = np.floor(bounded * (bins / 2)) + bins // 2
    return np.asarray(np.clip(places, 0, bins - 1), np.intp)


def middles_of(bins: int) -> Floats:
    """Return the score in the middle of each bin."""
    bounded = (2.0 * np.arange(bins) + 1.0) / bins - 1.0
    return np.asarray(bounded / np.sqrt(1.0 - bounded**2))


def error_edges(bins: int) -> Floats:
    """Return the upper edges of the bins of errors, in units of the bound, which belong to them."""
    return np.append(np.geomspace(_FINEST, _COARSEST, bins - 1), np.inf)


@dataclass(frozen=True)
class Yardstick:
    """What is counted of a model's outputs, the same at all parties.

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
        """How many numbers stand before the histograms."""
        return self.classes**2 if self.classes else 1 + _SUMS * self.outputs

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the histograms.

        Rows that calibrate and rows that are reported, outputs, for classes negatives and
        positives, bins.
        """
        signs = (2,) if self.classes else ()
        return (2, self.outputs, *signs, self.bins)

    @property
    def length(self) -> int:
        """How many numbers :meth:`count` makes."""
        return self.plain + int(np.prod(self.shape))

    @property
    def largest(self) -> float:
        """What a single test row adds to one of the numbers of :meth:`count` at most."""
        return 1.0 if self.classes else LARGEST_ERROR**2

    def count(
        self, predictions: Floats, targets: Floats, calibrates: NDArray[np.bool_] | None = None
    ) -> Floats:
        """Return what is added up over the parties to judge a model on test rows.

        Parameters
        ----------
        predictions : ndarray, shape (n, k)
            Outputs of the model.
        targets : ndarray, shape (n, k)
            What they should be.
        calibrates : ndarray of bool, shape (n,), optional
            Which rows calibrate; not needed without bins.

        Returns
        -------
        ndarray of float64
            Classes: the confusion matrix, row by row (true class, predicted class). Regression: the
            number of rows, then for each output the sums of squared errors, of absolute errors, of
            labels and of squared labels, in units of the bound. Then the histograms.
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
        """Return what stands before the histograms of a sum, and the histograms, :attr:`shape`."""
        head, histograms = total[: self.plain], np.rint(total[self.plain :])
        head = np.rint(head) if self.classes else np.concatenate([np.rint(head[:1]), head[1:]])
        return head, histograms.reshape(self.shape)
