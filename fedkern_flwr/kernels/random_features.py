"""Random Fourier features: frequencies of a kernel, and the features of rows."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from ..seeding import derive_seed

# -- random directions of a kernel, drawn block by block from secrets of the parties
#
# A direction omega spans the columns of all parties. Under the Gaussian and the Laplacian kernel
# its components are independent. So each party may draw those of its columns from its own secret:
# the law is the same, and no other party can solve phases omega^T x + b for these columns. The
# offset b is a sum of one number per party, fixed per direction.
#
# Rahimi and Recht, "Random Features for Large-Scale Kernel Machines", NIPS 2007. Gu, Dang, Li and
# Huang 2020 (FDSKL), section 2.2.1.

Floats = NDArray[np.float64]
Kernel = Literal["rbf", "laplacian"]
KERNELS = ("rbf", "laplacian")
SEED_BYTES = 32

_LEAST = 256  # directions drawn at once


def draw_directions(
    seed: bytes, owner: int, count: int, width: int, kernel: Kernel, gamma: float
) -> Floats:
    """Return the components of an owner's first directions on one party's columns, (count, d).

    Parameters
    ----------
    seed : bytes
        The party's secret.
    owner : int
        Partition of the active party.
    count : int
        Number of directions; more directions begin with the same ones.
    width : int
        d, columns of the party.
    kernel : {"rbf", "laplacian"}
        exp(-gamma |x - x'|^2): normal with variance 2 gamma; exp(-gamma |x - x'|_1): Cauchy with
        scale gamma.
    gamma : float
        Width of the kernel.
    """
    standard = _draw(seed, owner, _capacity(count), width, kernel, gamma)[:count]
    return np.asarray(standard * (gamma if kernel == "laplacian" else np.sqrt(2.0 * gamma)))


def draw_offsets(seed: bytes, owner: int, count: int, kernel: Kernel, gamma: float) -> Floats:
    """Return one party's part of the offsets b of an owner's first directions, in [0, 2 pi).

    Parameters are those of :func:`draw_directions`. Another kernel or width gives other offsets,
    else they would cancel between two runs.
    """
    return _offsets(seed, owner, _capacity(count), kernel, gamma)[:count]


def check_frequency_seed(seed: bytes) -> None:
    """Raise OptionError for a seed that is too short to be secret."""
    if len(seed) != SEED_BYTES:
        raise OptionError(
            f"the frequency seed has {len(seed)} bytes instead of {SEED_BYTES}",
            remedy="draw one with python3 -c 'import secrets; print(secrets.token_hex(32))'",
            code="FK-KEY-LENGTH",
        )


def _capacity(count: int) -> int:
    return max(_LEAST, 1 << max(0, count - 1).bit_length())


def _generator(
    seed: bytes, purpose: str, owner: int, kernel: Kernel, gamma: float
) -> np.random.Generator:
    text = f"fedkern-flwr {purpose}/{owner}/{kernel}/{float(gamma)!r}/".encode() + seed
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text).digest(), "little"))


@lru_cache(maxsize=16)
def _draw(seed: bytes, owner: int, count: int, width: int, kernel: Kernel, gamma: float) -> Floats:
    rng = _generator(seed, "frequencies", owner, kernel, gamma)
    draw = rng.standard_cauchy if kernel == "laplacian" else rng.standard_normal
    found = np.asarray(draw((count, width)))  # row by row: more directions begin with these
    found.setflags(write=False)
    return found


@lru_cache(maxsize=16)
def _offsets(seed: bytes, owner: int, count: int, kernel: Kernel, gamma: float) -> Floats:
    found = _generator(seed, "offsets", owner, kernel, gamma).random(count) * (2.0 * np.pi)
    found.setflags(write=False)
    return found


# -- random Fourier features of a dictionary of Gaussian kernels, all kernels in one product
#
# z_i(x) = [sin(rho_i1^T x), ..., sin(rho_iD^T x), cos(rho_i1^T x), ..., cos(rho_iD^T x)] / sqrt(D)
# with rho ~ Normal(0, I / s_i^2), so that z_i(x)^T z_i(x') estimates the kernel i without bias
# (Rahimi and Recht 2007; Ghari and Shen 2022, eq. 4).

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
    """Draw the frequencies of every kernel, (d, N * D), read-only.

    Memory: about d * N * D * 16 bytes while drawing.

    Parameters
    ----------
    bandwidths : bytes
        The N bandwidths s_i as little-endian float64 (hashable, as sent).
    dimension : int
        d, features of x.
    features : int
        D, frequencies per kernel.
    seed : int
        Shared seed.
    precision : {"float32", "float64"}
        Both round the same random numbers.
    draw : {"independent", "orthogonal"} (default: "independent")
        ``orthogonal``: blocks of d frequencies of a kernel are orthogonal. Each is still Normal(0,
        I / s_i^2), and the kernel estimate has a smaller variance.

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
    """Return standard normal columns, (d, N * D), orthogonal in blocks of d of a kernel."""
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
        As in :func:`gaussian_frequencies`. float32 sines are about ten times faster.
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
        x = x.astype(self.dtype, copy=False)
        # Row by row for a few rows: BLAS would start threads, and wait when cores are busy.
        rows = x[:, None] if 1 < len(x) <= _FEW_ROWS else x
        phase = rows @ self._frequencies
        phase = phase.reshape(len(x), self.kernels, self.features)
        z = np.empty((len(x), self.kernels, 2 * self.features), self.dtype)
        np.sin(phase, out=z[..., : self.features])
        np.cos(phase, out=z[..., self.features :])
        z *= self._scale
        return z


#: The map of these arguments, cached per process.
feature_map = lru_cache(maxsize=8)(FeatureMap)


# -- dictionaries of bandwidths


def bandwidth_dictionary(kernels: int) -> Floats:
    """Return ``kernels`` bandwidths, (N,), evenly spaced in the logarithm over [1e-2, 1e2].

    For 51 kernels these are s_i = 10^((2i - 52) / 25), i = 1..51, of Ghari and Shen (NeurIPS 2022),
    section 4. A single kernel has bandwidth 1.
    """
    if kernels < 1:
        raise OptionError(f"kernels is {kernels}", remedy="use at least 1", code="FK-OPTION-RANGE")
    exponents = np.linspace(-2.0, 2.0, kernels) if kernels > 1 else np.zeros(1)
    return np.asarray(10.0**exponents)
