"""The kernel between items as a user's device gets it: enough to rank all items for the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from .cf_komd import fit_user, item_scores
from .dot_kernels import DotKernel
from .matrix import pack, packed_columns

Floats = NDArray[np.float64]
_CHUNK = 1 << 22  # entries of the kernel at once
_LEAST = 1e-3  # eigenvalue to which an indefinite kernel is lifted


@dataclass(frozen=True)
class ItemKernel:
    """Kernel of the items of a catalogue; items that are not in it have zeros.

    Attributes
    ----------
    kernel : DotKernel
    items : ndarray of int, shape (kept,)
        The items in it, ascending.
    catalogue : int
        m, number of all items.
    users : int
        Users whose ratings were summed.
    mean : ndarray, shape (kept,)
        q, mean of each row over the items in the kernel. Measured on MovieLens, zeros of items that
        were left out would cost up to 0.01 of the AUC.
    squares : ndarray of int, shape (kept,)
        Diagonal of the Gram matrix.
    products : ndarray of int, shape (kept (kept + 1) / 2,)
        The Gram matrix, packed.
    """

    kernel: DotKernel
    items: NDArray[Any]
    catalogue: int
    users: int
    mean: Floats
    squares: NDArray[Any]
    products: NDArray[Any]

    @classmethod
    def of_gram(
        cls, gram: NDArray[Any], items: NDArray[Any], catalogue: int, users: int, kernel: DotKernel
    ) -> Self:
        """Build from a Gram matrix of shape (kept, kept); numbers take as few bytes as they can."""
        squares = gram.diagonal().copy()
        mean = np.empty(len(items))
        step = max(1, _CHUNK // max(1, len(items)))
        for start in range(0, len(items), step):
            rows = slice(start, start + step)
            block = kernel.block(gram[rows], squares[rows], squares, users)
            mean[rows] = block.mean(axis=1)
        return cls(kernel, items, catalogue, users, mean, squares, pack(compact(gram)))

    @property
    def missing(self) -> NDArray[np.intp]:
        """The items that are not in it, ascending."""
        return np.setdiff1d(np.arange(self.catalogue), self.items)

    def scores(
        self,
        positives: NDArray[Any],
        regularization: float,
        *,
        subtract_mean: bool = True,
        without: NDArray[np.intp] | None = None,
    ) -> Floats:
        """Return the scores of all items for a user.

        Parameters
        ----------
        positives : ndarray of int
            Items that the user likes; those that are not in the kernel are ignored. A user without
            any gets the mean of each row, which favours items that go with many; so does a user
            whose part of the kernel cannot be fitted to.
        regularization : float
            lambda.
        subtract_mean : bool (default: True)
            Whether the scores are those of CF-KOMD, K[:, P] a - q, or K[:, P] a.
        without : ndarray of int, optional
            See :meth:`columns`.

        Returns
        -------
        ndarray, shape (catalogue,)
            Zero for items that are not in the kernel.
        """
        found = np.zeros(self.catalogue)
        known = self.positions(positives)
        found[self.items] = self.mean
        if not len(known):
            return found
        try:
            columns = self.columns(known, without)
            alpha = _fit(columns[known], self.mean[known], regularization)
        except (OptionError, ValueError, np.linalg.LinAlgError):
            return found  # an error would tell the server which items the user likes
        found[self.items] = item_scores(columns, alpha, self.mean if subtract_mean else None)
        return found

    def positions(self, positives: NDArray[Any]) -> NDArray[np.intp]:
        """Return where a user's items are, of those in the kernel."""
        return np.flatnonzero(np.isin(self.items, positives))

    def columns(
        self, positions: NDArray[np.intp], without: NDArray[np.intp] | None = None
    ) -> Floats:
        """Return columns of the kernel, shape (kept, positions).

        ``without`` are the positions of a row of zeros and ones that is taken out of the Gram
        matrix; the positions are some of them.
        """
        products = packed_columns(self.products, len(self.items), positions).astype(np.float64)
        squares, users = self.squares, self.users
        if without is not None:
            squares, users = squares.astype(np.float64), users - 1
            products[without] -= 1.0
            squares[without] -= 1.0
        return self.kernel.block(products, squares, squares[positions], users)


def _fit(kernel: Floats, mean: Floats, regularization: float) -> Floats:
    """Fit a user; a kernel that is singular to working precision gets a larger lambda."""
    try:
        return fit_user(kernel, mean, regularization)
    except OptionError:
        least = float(np.linalg.eigvalsh(kernel)[0])
        if least + regularization > _LEAST:
            raise
        return fit_user(kernel, mean, _LEAST - least)


def compact(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return non-negative whole numbers in the smallest type of 16, 32 or 64 bits."""
    largest = int(numbers.max(initial=0))
    bits = next(b for b in (16, 32, 64) if largest < 1 << b)
    return numbers.astype(np.dtype(f"u{bits // 8}"))
