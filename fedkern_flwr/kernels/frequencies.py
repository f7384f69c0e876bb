"""Random directions of a kernel, drawn block by block from secrets of the parties.

A direction omega spans the columns of all parties. Under the Gaussian and the Laplacian kernel its
components are independent, so each party may draw those of its own columns from a secret of its
own: together they have the same law, and nobody can solve phases omega^T x + b for the columns of
somebody else. The offset b is a sum of one number per party, fixed per direction.

References
----------
Rahimi and Recht, "Random Features for Large-Scale Kernel Machines", NIPS 2007.

Gu, Dang, Li and Huang, "Federated Doubly Stochastic Kernel Learning for Vertically Partitioned
Data", KDD 2020, section 2.2.1.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError

Floats = NDArray[np.float64]
Kernel = Literal["rbf", "laplacian"]
KERNELS = ("rbf", "laplacian")
SEED_BYTES = 32

_LEAST = 256  # directions drawn at once


def draw_directions(
    seed: bytes, owner: int, count: int, width: int, kernel: Kernel, gamma: float
) -> Floats:
    """Return the components of an owner's first directions on one party's columns.

    Parameters
    ----------
    seed : bytes
        The party's secret.
    owner : int
        Partition of the active party to which the directions belong.
    count : int
        Number of directions. The first of more directions are the same.
    width : int
        d, columns of the party.
    kernel : {"rbf", "laplacian"}
        exp(-gamma |x - x'|^2): normal with variance 2 gamma; exp(-gamma |x - x'|_1): Cauchy with
        scale gamma.
    gamma : float
        Width of the kernel.

    Returns
    -------
    ndarray of float64, shape (count, d)
        Memory: twice as many at most are kept for the next call.
    """
    standard = _draw(seed, owner, _capacity(count), width, kernel, gamma)[:count]
    return np.asarray(standard * (gamma if kernel == "laplacian" else np.sqrt(2.0 * gamma)))


def draw_offsets(seed: bytes, owner: int, count: int, kernel: Kernel, gamma: float) -> Floats:
    """Return one party's part of the offsets b of an owner's first directions, in [0, 2 pi).

    Parameters
    ----------
    seed : bytes
        The party's secret.
    owner, count, kernel, gamma
        See :func:`draw_directions`; with another kernel or width the offsets are others too, or
        they would cancel between two runs.

    Returns
    -------
    ndarray of float64, shape (count,)
    """
    return _offsets(seed, owner, _capacity(count), kernel, gamma)[:count]


def check_frequency_seed(seed: bytes) -> None:
    """Refuse a seed that is too short to be secret.

    Raises
    ------
    OptionError
    """
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
