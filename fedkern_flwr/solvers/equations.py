"""The normal equations as one vector, as nodes sum them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def pack_equations(gram: Floats, right: Floats) -> Floats:
    """Return the upper triangle of K^T K, shape (m, m), and K^T y, shape (m, k), as one vector."""
    return np.concatenate([gram[np.triu_indices(len(gram))], right.ravel()])


def unpack_equations(vector: Floats, landmarks: int, outputs: int) -> tuple[Floats, Floats]:
    """Return (K^T K, K^T y) from what :func:`pack_equations` made."""
    gram = np.empty((landmarks, landmarks))
    upper = np.triu_indices(landmarks)
    split = len(upper[0])
    gram[upper] = vector[:split]
    gram.T[upper] = vector[:split]
    return gram, vector[split:].reshape(landmarks, outputs)


def equations_length(landmarks: int, outputs: int) -> int:
    """Return how many numbers :func:`pack_equations` makes."""
    return landmarks * (landmarks + 1) // 2 + landmarks * outputs
