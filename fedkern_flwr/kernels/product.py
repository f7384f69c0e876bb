"""Kernels computed block by block of columns, and random features of whole rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..seeding import derive_seed
from ..threads import share
from .random_features import feature_map

# -- product kernels over feature blocks: a Hadamard product of kernels is a sum of distances
#
# For the Gaussian kernel exp(-gamma |x - w|^2) and the Laplacian kernel exp(-gamma |x - w|_1) the
# distance of two rows is the sum of the distances over their blocks of features. Each holder of a
# block computes its own partial distances; the kernel needs their total only.
#
# References
# ----------
# Damiani, Rodina and Decherchi, "A Hybrid Federated Kernel Regularized Least Squares Algorithm",
# 2024, section 2.2.

Floats = NDArray[np.float64]
ProductKernel = Literal["rbf", "laplacian"]
PRODUCT_KERNELS = ("rbf", "laplacian")

_CHUNK = 1 << 22  # numbers of a temporary array, 32 MB
# Distances computed at once: they stay in the processor's cache. The product is too small for BLAS
# threads, which would keep spinning and slow down other work.
_BLOCK = 1 << 15


def partial_distances(x: Floats, landmarks: Floats, kernel: ProductKernel) -> Floats:
    """Return the distances of rows to landmarks over one block of features, shape (n, m).

    Zeros without features. Squared distances come from a matrix product; their error is some 1e-16
    times those of the rows to the landmarks' mean.

    Parameters
    ----------
    x : ndarray of float64, shape (n, d)
        Rows of the block.
    landmarks : ndarray of float64, shape (m, d)
        The block's part of the landmarks.
    kernel : {"rbf", "laplacian"}
        Squared Euclidean or absolute (city block) distances.
    """
    n, m = len(x), len(landmarks)
    if not x.shape[1]:
        return np.zeros((n, m))
    out, rows = np.empty((n, m)), max(1, _BLOCK // max(1, m))
    # -2 x.w + |x|^2 + |w|^2 as one matrix product into the result, without a temporary of its size.
    # Centred at the landmarks: features far from zero would lose their digits in the squares.
    middle = landmarks.mean(axis=0)
    near, places = x - middle, landmarks - middle
    left = np.hstack([near, np.einsum("nd,nd->n", near, near)[:, None], np.ones((n, 1))])
    squares = np.einsum("md,md->m", places, places)[:, None]
    right = np.hstack([-2.0 * places, np.ones((m, 1)), squares]).T

    def work(start: int, stop: int) -> None:
        for k in range(start, stop, rows):
            part = slice(k, min(k + rows, stop))
            if kernel == "laplacian":
                _city_block(x[part], landmarks, out[part])
            else:
                np.matmul(left[part], right, out=out[part])
                np.maximum(out[part], 0.0, out=out[part])

    share(work, n, 4 * rows)
    return out


def _city_block(x: Floats, landmarks: Floats, out: Floats) -> None:
    from scipy.spatial.distance import cdist  # only the Laplacian kernel needs it

    cdist(x, landmarks, "cityblock", out=out)


def mean_distances(x: Floats, landmarks: Floats, kernel: ProductKernel) -> Floats:
    """Return the mean distance of each row to the landmarks, (n,).

    As :func:`partial_distances`, but squared distances need no n x m numbers.
    """
    if kernel == "rbf":
        middle = landmarks.mean(axis=0)
        apart = np.einsum("md,md->m", landmarks - middle, landmarks - middle).mean()
        return np.asarray(np.einsum("nd,nd->n", x - middle, x - middle) + apart)
    parts = [x[part] for part in row_chunks(len(x), len(landmarks))]
    means = (partial_distances(part, landmarks, kernel).mean(axis=1) for part in parts)
    return np.concatenate([np.zeros(0), *means])


def kernel_from_distances(distances: Floats, gammas: Floats) -> Floats:
    """Convert total distances, (n, m), to kernel values, in place.

    ``gammas`` is one width, (1,), or one per landmark, (m,).
    """
    np.multiply(distances, -gammas, out=distances)
    return np.exp(distances, out=distances)


def distance_bound(ranges: Floats, kernel: ProductKernel) -> float:
    """Return a bound on the distance of any row within ``ranges``, (d, 2), to any landmark.

    Landmarks lie in the ball of diameter D through the corners of the ranges. The squared distance
    is at most D^2 = sum span^2, the absolute one sqrt(d) D. Constant features do not count in d.
    """
    spans = ranges[:, 1] - ranges[:, 0]
    if kernel == "rbf":
        return float((spans**2).sum())
    widest = float(spans.max(initial=0.0))
    parts = spans[spans > 0.0] / widest  # squares of tiny spans would vanish
    return widest * math.sqrt(len(parts) * (parts**2).sum())


def landmark_gammas(gamma: float, landmarks: int, seed: int) -> Floats:
    """Draw a width per landmark, log-uniform in [gamma / 2, 2 gamma] (eq. 4.1).

    Distances are squared here. The paper prints only their root, with which the kernel would not be
    a product over blocks.
    """
    rng = np.random.default_rng(derive_seed(seed, "landmark gammas"))
    return np.asarray(gamma * 2.0 ** rng.uniform(-1.0, 1.0, landmarks))


def row_chunks(rows: int, columns: int) -> Iterator[slice]:
    """Cut rows of ``columns`` numbers into pieces of about 32 MB."""
    step = max(1, _CHUNK // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


# -- random features of rows


def features_of(x: Floats, *, bandwidth: float, features: int, seed: int) -> Floats:
    """Return the random features of rows, (n, 2 D), each row of length one."""
    widths = np.array([bandwidth], "<f8").tobytes()
    z = feature_map(widths, x.shape[1], features, seed, "float64", "orthogonal")(x)
    finite = np.isfinite(z[:, 0]).all(axis=1, keepdims=True)
    return np.where(finite, z[:, 0], 0.0)  # an overflow must not show
