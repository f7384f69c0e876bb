"""The paper's secure matrix product: X^T c without showing X to one side and c to the other.

User and agent want X^T c, where the user has X, shape (n, d), and the agent c. The user draws
vectors Z orthogonal to its columns and sends them; the agent returns W = (I - Z Z^T) c; then
X^T W = X^T c. It hides less than it seems: whoever has Z can test a guess of a column, as
Z^T x = 0 for the true one, and W shows c but for its part in the span of Z. No number g of vectors
is safe for both: few hide nothing of c, n - d show the span of X (Jia et al. 2019, section 3.3;
Karr, Lin, Sanil and Reiter, "Privacy-Preserving Analysis of Vertically Partitioned Data Using
Secure Matrix Products", 2009).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError

Floats = NDArray[np.float64]
Product = Literal["local", "orthogonal"]
PRODUCTS = ("local", "orthogonal")


def draw_orthogonal(x: Floats, vectors: int, seed: int, *, party: str = "") -> Floats:
    """Return Z: random orthonormal vectors, orthogonal to the columns of x.

    Parameters
    ----------
    x : ndarray, shape (n, d)
        The user's columns.
    vectors : int
        g, number of vectors.
    seed : int
        Seed of the draw, the user's secret.
    party : str
        Who the user is, for errors.

    Returns
    -------
    ndarray, shape (n, g)

    Raises
    ------
    OptionError
        There are not so many such vectors, or I - Z Z^T shows a row of c by itself.
    """
    n = len(x)
    basis, values, _ = np.linalg.svd(x, full_matrices=False)
    rank = int((values > values[:1].max(initial=0.0) * n * np.finfo(float).eps).sum())
    if not 1 <= vectors <= n - rank:
        raise OptionError(
            f"{vectors} vectors orthogonal to columns of rank {rank} in {n} rows",
            remedy="give every user more rows than columns, or use product local",
            party=party,
        )
    basis = basis[:, :rank]
    raw = np.random.default_rng(seed).standard_normal((n, vectors))
    raw -= basis @ (basis.T @ raw)
    z, _ = np.linalg.qr(raw)
    z -= basis @ (basis.T @ z)  # once more, to rounding
    check_degenerate(z, party=party)
    return np.asarray(z)


def check_degenerate(z: Floats, *, party: str = "") -> None:
    """Refuse Z where a column of I - Z Z^T has one entry only: it would show that row of c.

    Raises
    ------
    OptionError
    """
    alone = np.einsum("ij,ij->i", z, z) < 1e-12
    if alone.any():
        raise OptionError(
            f"{int(alone.sum())} rows do not mix with others in the secure matrix product",
            remedy="leave out rows that are the only ones with a value, or use product local",
            party=party,
        )


def mask_multiplier(z: Floats, c: Floats) -> Floats:
    """Return W = (I - Z Z^T) c, shape of c, (n, k)."""
    return np.asarray(c - z @ (z.T @ c))


def default_vectors(rows: int, columns: int) -> int:
    """Return g where it is not given: half of the directions that there are."""
    return max(1, (rows - columns) // 2)
