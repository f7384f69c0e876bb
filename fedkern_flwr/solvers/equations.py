"""The normal equations as one vector, for one or several widths and folds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..kernels.product import kernel_from_distances

Floats = NDArray[np.float64]

#: Most widths and folds that a hospital accepts.
MOST_WIDTHS, MOST_FOLDS = 9, 5
#: Factors of the width for successive landmarks, repeated.
SPREAD = (0.5, 2.0)


def pack_equations(gram: Floats, right: Floats) -> Floats:
    """Return the upper triangle of K^T K, (m, m), and K^T y, (m, k), as one vector."""
    return np.concatenate([gram[np.triu_indices(len(gram))], right.ravel()])


def unpack_equations(vector: Floats, landmarks: int, outputs: int) -> tuple[Floats, Floats]:
    """Invert :func:`pack_equations`."""
    gram = np.empty((landmarks, landmarks))
    upper = np.triu_indices(landmarks)
    split = len(upper[0])
    gram[upper] = vector[:split]
    gram.T[upper] = vector[:split]
    return gram, vector[split:].reshape(landmarks, outputs)


def equations_length(landmarks: int, outputs: int) -> int:
    """Return how many numbers :func:`pack_equations` makes."""
    return landmarks * (landmarks + 1) // 2 + landmarks * outputs


def spread(gammas: Floats, landmarks: int) -> Floats:
    """Return the widths of each landmark, half and double ``gammas`` in turn, shape (w, m).

    The same sums then see the rows at two scales, so the width matters less.
    """
    return np.asarray(np.multiply.outer(gammas, np.resize(SPREAD, landmarks)))


def tuning_length(landmarks: int, outputs: int, folds: int, widths: int) -> int:
    return folds * (widths * equations_length(landmarks, outputs) + outputs)


@dataclass
class Equations:
    """The normal equations of several widths and folds.

    Attributes
    ----------
    gram : ndarray of float64, shape (folds, widths, m, m)
        K^T K.
    right : ndarray of float64, shape (folds, widths, m, k)
        K^T y.
    squares : ndarray of float64, shape (folds, k)
        y^T y.
    """

    gram: Floats
    right: Floats
    squares: Floats

    @classmethod
    def zeros(cls, landmarks: int, outputs: int, folds: int, widths: int) -> Equations:
        shape = (folds, widths, landmarks)
        gram, right = np.zeros((*shape, landmarks)), np.zeros((*shape, outputs))
        return cls(gram, right, np.zeros((folds, outputs)))

    def add(
        self,
        fold: int,
        distances: Floats,
        y: Floats,
        gammas: Floats,
        weights: Floats | None = None,
    ) -> None:
        """Add rows of a fold, by their distances, shape (n, m), and targets, shape (n, k).

        ``gammas`` has shape (widths, 1), or (widths, m) for a width per landmark; ``weights``,
        (n,), multiply squared errors.
        """
        root = None if weights is None else np.sqrt(weights)[:, None]
        y = y if root is None else y * root
        self.squares[fold] += (y**2).sum(0)
        for w, gamma in enumerate(gammas):
            kernel = kernel_from_distances(distances.copy(), gamma)
            if root is not None:
                kernel *= root
            self.gram[fold, w] += kernel.T @ kernel
            self.right[fold, w] += kernel.T @ y

    def pack(self) -> Floats:
        """Return one vector, as nodes sum it."""
        parts = [self.squares.ravel()]
        for grams, rights in zip(self.gram, self.right, strict=True):
            parts += [pack_equations(g, r) for g, r in zip(grams, rights, strict=True)]
        return np.concatenate(parts)

    @classmethod
    def unpack(
        cls, vector: Floats, landmarks: int, outputs: int, folds: int, widths: int
    ) -> Equations:
        """Invert :meth:`pack`."""
        out = cls.zeros(landmarks, outputs, folds, widths)
        out.squares[:] = vector[: folds * outputs].reshape(folds, outputs)
        cells = vector[folds * outputs :].reshape(folds, widths, -1)
        for f, w in np.ndindex(folds, widths):
            out.gram[f, w], out.right[f, w] = unpack_equations(cells[f, w], landmarks, outputs)
        return out
