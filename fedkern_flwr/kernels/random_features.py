"""Random Fourier features of a dictionary of Gaussian kernels, all kernels in one product.

z_i(x) = [sin(rho_i1^T x), ..., sin(rho_iD^T x), cos(rho_i1^T x), ..., cos(rho_iD^T x)] / sqrt(D)
with rho ~ Normal(0, I / s_i^2), so that z_i(x)^T z_i(x') estimates the kernel i without bias
(Rahimi and Recht 2007; Ghari and Shen 2022, eq. 4).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..seeding import derive_seed

Real = NDArray[Any]  # float32 or float64
_FEW_ROWS = 16

Precision = Literal["float32", "float64"]
FrequencyDraw = Literal["independent", "orthogonal"]


def gaussian_frequencies(
    bandwidths: bytes,
    dimension: int,
    features: int,
    seed: int,
    precision: Precision,
    draw: FrequencyDraw = "independent",
) -> Real:
    """Draw the frequencies of every kernel, read-only.

    Parameters
    ----------
    bandwidths : bytes
        The N bandwidths s_i as little-endian float64 (hashable, as they travel).
    dimension : int
        Number d of features of x.
    features : int
        Number D of frequencies per kernel.
    seed : int
        Shared seed of the draw.
    precision : {"float32", "float64"}
        Both precisions round the same draw.
    draw : {"independent", "orthogonal"} (default: "independent")
        ``orthogonal``: blocks of d frequencies of a kernel stand at right angles. Each is still
        Normal(0, I / s_i^2), and the estimate of the kernel has a smaller variance.

    Returns
    -------
    ndarray, shape (d, N * D)
        Memory: about d * N * D * 16 bytes while drawing.

    References
    ----------
    Yu, Suresh, Choromanski, Holtmann-Rice and Kumar, "Orthogonal Random Features", NIPS 2016.
    """
    scale = np.repeat(1.0 / np.frombuffer(bandwidths, "<f8"), features)
    rng = np.random.default_rng(derive_seed(seed, "frequencies"))
    if draw == "independent":
        standard = rng.standard_normal((dimension, scale.size))
    else:
        standard = _orthogonal_normals(scale.size // features, dimension, features, rng)
    frequencies = (standard * scale).astype(precision)
    frequencies.setflags(write=False)
    return frequencies


def _orthogonal_normals(
    kernels: int, dimension: int, features: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Standard normal columns, (d, N * D), orthogonal within blocks of d columns of a kernel."""
    width = min(dimension, features)
    blocks = -(-features // width)
    q, r = np.linalg.qr(rng.standard_normal((kernels * blocks, dimension, width)))
    q *= np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]  # uniform on the rotations
    directions = q.reshape(kernels, blocks, dimension, width).transpose(2, 0, 1, 3)
    directions = directions.reshape(dimension, kernels, blocks * width)[..., :features]
    lengths = np.sqrt(rng.chisquare(dimension, kernels * features))
    return np.asarray(directions.reshape(dimension, -1) * lengths)


class FeatureMap:
    """The map x -> z(x) of N kernels with D frequencies each.

    Parameters
    ----------
    bandwidths, dimension, features, seed, precision, draw
        As in :func:`gaussian_frequencies`. NumPy's float32 sine is about ten times faster than
        that of float64.
    """

    def __init__(
        self,
        bandwidths: bytes,
        dimension: int,
        features: int,
        seed: int,
        precision: Precision = "float32",
        draw: FrequencyDraw = "independent",
    ) -> None:
        self.kernels, self.features = len(bandwidths) // 8, features
        self.dtype = np.dtype(precision)
        self._frequencies = gaussian_frequencies(
            bandwidths, dimension, features, seed, precision, draw
        )
        self._scale = self.dtype.type(1.0 / np.sqrt(features))

    def __call__(self, x: Real) -> Real:
        """Return z, shape (n, N, 2D), for rows x, shape (n, d); memory n * N * 2D numbers."""
        x = x.astype(self.dtype, copy=False)
        # Row by row for a few rows: BLAS would wake its threads, and waits when cores are busy.
        rows = x[:, None] if 1 < len(x) <= _FEW_ROWS else x
        phase = rows @ self._frequencies
        phase = phase.reshape(len(x), self.kernels, self.features)
        z = np.empty((len(x), self.kernels, 2 * self.features), self.dtype)
        np.sin(phase, out=z[..., : self.features])
        np.cos(phase, out=z[..., self.features :])
        z *= self._scale
        return z


@lru_cache(maxsize=8)
def feature_map(
    bandwidths: bytes,
    dimension: int,
    features: int,
    seed: int,
    precision: Precision,
    draw: FrequencyDraw,
) -> FeatureMap:
    """Return a :class:`FeatureMap`, cached per process."""
    return FeatureMap(bandwidths, dimension, features, seed, precision, draw)
