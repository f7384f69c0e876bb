"""What tests of attacks share: a table, a key, and whether bytes are uniform."""

from __future__ import annotations

import numpy as np
from scipy.stats import chi2
from sklearn.datasets import load_breast_cancer

KEY = b"a key of all parties but the server"
UNIFORM = 1e-9  # p-values: masks are not seeded, so chance must not fail a test


def scaled_table() -> tuple[np.ndarray, np.ndarray]:
    """The breast cancer data, features on [0, 1]."""
    x, y = load_breast_cancer(return_X_y=True)
    return (x - x.min(axis=0)) / np.ptp(x, axis=0), y.astype(float)


X, Y = scaled_table()


def p_uniform(words: np.ndarray) -> float:
    """P-value of the chi-square test that all bytes are equally likely."""
    counts = np.bincount(np.ascontiguousarray(words).reshape(-1).view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    assert expected >= 5
    return float(chi2.sf(((counts - expected) ** 2).sum() / expected, 255))
