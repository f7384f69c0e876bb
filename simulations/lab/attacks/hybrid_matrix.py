"""What the inversions of distances find in a matrix that a viewer of FedCG has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.spatial.distance import cdist

from .distances import distances_by_quadric, distances_by_svd
from .errors import correlation, relative_error
from .gradient_inversion import Floats
from .hybrid_insiders import Matrix
from .trilateration import EXPLAINED, trilaterate, trilaterate_secret_widths

Attack = Literal["trilateration", "secret widths", "svd", "quadric"]


@dataclass(frozen=True)
class Finding:
    """What an attack on a matrix found.

    Attributes
    ----------
    attack : {"trilateration", "secret widths", "svd", "quadric"}
    rows : ndarray, shape (n, d), or None
        Features of the patients, where landmarks are known.
    distances : ndarray, shape (n, n), or None
        Squared distances among the patients, where they are not; of ``quadric`` a multiple.
    consistent : bool
        Whether the viewer itself can tell that it is right.
    """

    attack: Attack
    rows: Floats | None
    distances: Floats | None
    consistent: bool


@dataclass(frozen=True)
class Score:
    """How good a finding is.

    Attributes
    ----------
    error : float
        Relative to that of somebody who knows the mean and guesses it for all: 1 is a guess.
    correlation : float
        With the truth; of features less the mean of each.
    """

    error: float
    correlation: float


def attack_matrix(matrix: Matrix) -> list[Finding]:
    """Try all attacks for which a matrix has enough rows and landmarks.

    ``secret widths`` and ``quadric`` do as if the widths were not known (eq. 4.1).
    """
    found = []
    n, m = matrix.exponents.shape
    landmarks = matrix.landmarks
    if landmarks is not None and m > landmarks.shape[1]:
        found.append(trilaterate_matrix(matrix, landmarks))
    if matrix.scaled or not np.isfinite(matrix.exponents).all():
        return found
    if landmarks is not None and m > landmarks.shape[1] + 1:
        secret = trilaterate_secret_widths(matrix.exponents, landmarks)
        found.append(Finding("secret widths", secret.x, None, secret.consistent))
    if n > 2 and m > 2:
        by_svd = distances_by_svd(matrix.distances)
        found.append(Finding("svd", None, by_svd.distances, by_svd.consistent))
        by_quadric = distances_by_quadric(matrix.exponents)
        found.append(Finding("quadric", None, by_quadric.distances, by_quadric.consistent))
    return found


def trilaterate_matrix(matrix: Matrix, landmarks: Floats) -> Finding:
    distances = matrix.distances
    x = trilaterate(distances, landmarks)
    missing = distances - cdist(x, landmarks, "sqeuclidean")
    if matrix.scaled:
        missing = missing - missing.mean(axis=1, keepdims=True)
    explained = np.linalg.norm(missing) < EXPLAINED * np.linalg.norm(distances)
    surplus = distances.shape[1] > landmarks.shape[1] + 1 + matrix.scaled
    return Finding("trilateration", x, None, bool(explained and surplus))


def score(finding: Finding, rows: Floats) -> Score:
    """Compare a finding with the rows that it is about, shape (n, d)."""
    if finding.rows is not None:
        guess = rows.mean(axis=0)
        estimate, truth = finding.rows - guess, rows - guess
        return Score(
            relative_error(estimate, truth), _correlation(estimate - estimate.mean(axis=0), truth)
        )
    assert finding.distances is not None
    off = ~np.eye(len(rows), dtype=np.bool_)
    truth, estimate = cdist(rows, rows, "sqeuclidean")[off], finding.distances[off]
    if finding.attack == "quadric":
        square = float((estimate**2).sum())
        estimate = estimate * (float((estimate * truth).sum()) / square if square else 0.0)
    mean = truth.mean()
    return Score(relative_error(estimate - mean, truth - mean), _correlation(estimate, truth))


def _correlation(estimate: Floats, truth: Floats) -> float:
    """Return Pearson's correlation, 0 for an estimate that is the same everywhere."""
    return correlation(estimate.ravel(), truth.ravel()) if np.ptp(estimate) else 0.0
