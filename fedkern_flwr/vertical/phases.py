"""Random Fourier features from phases: integers that represent angles modulo 2 pi.

A phase of ``bits`` bits counts steps of 2 pi / 2^bits. The angle of row x and direction j is
omega_j^T x + b_j; its feature is sqrt(2 / R) times the cosine.

Multiplying a phase by m modulo 2^bits gives the phase of frequency m omega_j and offset m b_j,
which is as uniform as b_j. So one set of phases serves the Gaussian kernel at width gamma m^2 and
the Laplacian kernel at gamma m for every integer ``multiple`` m, and its holder can choose a width
without another exchange. Rounding errors of an angle, at most pi / 2^bits per party, are multiplied
by m, too.

Doubly stochastic gradients sample rows and directions; their coefficients shrink.

References
----------
Rahimi and Recht, "Random Features for Large-Scale Kernel Machines", 2007. Gu, Dang, Li and Huang
2020 (FDSKL), equation 7 and Algorithm 1. Dai, Xie, He, Liang, Raj, Balcan and Song, "Scalable
Kernel Methods via Doubly Stochastic Gradients", NIPS 2014.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from ..seeding import derive_seed
from ..solvers.losses import Loss, loss_derivatives
from ..threads import share

Floats = NDArray[np.float64]
Phases = NDArray[np.uint16] | NDArray[np.uint32]
#: float32 for phases of 16 bits, float64 for phases of 32.
Features = NDArray[np.float32] | NDArray[np.float64]
StepSchedule = Literal["constant", "diminishing"]
STEP_SCHEDULES = ("constant", "diminishing")

#: The intercept's part of the kernel: the square of its constant feature. Both are exact in
#: float32, so that sums do not drift.
INTERCEPT = 0.25

#: Directions of all iterations of a run.
MOST_DIRECTIONS = 1 << 20
#: Bytes of features that training keeps in memory, 1 GB; more are in a file.
IN_MEMORY = 1 << 30
_CHUNK = 1 << 25  # bytes of a temporary array, 32 MB
# Phases in one lookup: their positions, eight bytes each, stay in the processor's cache.
_BLOCK = 1 << 15


def angles(phases: Phases) -> Floats:
    """Return angles in [0, 2 pi); OptionError unless phases are uint16 or uint32."""
    return np.asarray(phases * _step(phases), np.float64)


def cosines(phases: Phases, multiple: int = 1) -> Features:
    """Return the cosine of ``multiple`` times each angle, exact modulo 2 pi before the cosine.

    float32 (from a table) for 16 bits, float64 for 32 bits.

    Raises
    ------
    OptionError
        The multiple is not positive, or phases are neither uint16 nor uint32.
    """
    out = np.empty(phases.shape, _feature_dtype(phases))
    _fill(phases, multiple, 1.0, out)
    return out


def keep_features(
    phases: Phases, multiple: int = 1, *, intercept: bool = False, folder: Path | None = None
) -> Features:
    """Compute the features sqrt(2 / R) cos(m angle) of all rows, (n, R) or (n, R + 1).

    Up to ``IN_MEMORY`` bytes stay in memory. More go to an unnamed file that only this process can
    open and that disappears with it.

    Parameters
    ----------
    phases : ndarray of uint16 or uint32, shape (n, R)
        Angles as integers.
    multiple : int (default: 1)
        m, which multiplies the frequencies.
    intercept : bool (default: False)
        Whether to append a constant, the root of INTERCEPT.
    folder : path, optional
        Of the file; default: the system's temporary folder.

    Raises
    ------
    OptionError
        As in :func:`cosines`.
    OSError
        The disk is full.
    """
    rows, directions = phases.shape
    shape, dtype = (rows, directions + intercept), _feature_dtype(phases)
    size = rows * (directions + intercept) * dtype.itemsize
    if size <= IN_MEMORY:
        z: Features = np.empty(shape, dtype)
    else:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(size)
            if hasattr(os, "posix_fallocate"):  # not on macOS
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk kills later writes
            z = np.memmap(file, dtype, mode="r+", shape=shape).view(np.ndarray)
    z[:, directions:] = np.sqrt(INTERCEPT)
    _fill(phases, multiple, float(np.sqrt(2.0 / max(1, directions))), z[:, :directions])
    return z


def blocks(rows: int, size: int) -> Iterator[slice]:
    """Yield slices of as many rows of ``size`` bytes as fit in about 32 MB."""
    step = max(1, _CHUNK // max(1, size))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _fill(phases: Phases, multiple: int, scale: float, out: Features) -> None:
    if multiple < 1:
        raise OptionError(
            f"multiple is {multiple}", remedy="use a whole number from 1", code="FK-OPTION-RANGE"
        )
    rows = max(1, _BLOCK // max(1, phases.shape[1]))
    if phases.dtype == np.uint16:
        # "clip" saves a copy of the result: no position is out of the table. Threads would not
        # help: a lookup holds the interpreter's lock for much of its time.
        table = _table(multiple, scale)
        for k in range(0, len(phases), rows):
            np.take(table, phases[k : k + rows], out=out[k : k + rows], mode="clip")
        return
    factor, step = np.uint32(multiple % (1 << 32)), _step(phases)

    def work(start: int, stop: int) -> None:
        for k in range(start, stop, rows):
            part = out[k : min(k + rows, stop)]
            np.multiply(phases[k : k + len(part)] * factor, step, out=part)
            np.cos(part, out=part)
            np.multiply(part, scale, out=part)

    share(work, len(phases), 4 * rows)


@lru_cache(maxsize=32)
def _table(multiple: int, scale: float) -> NDArray[np.float32]:
    positions = np.arange(1 << 16, dtype=np.uint16) * np.uint16(multiple % (1 << 16))
    table = (scale * np.cos(angles(positions))).astype(np.float32)
    table.flags.writeable = False
    return table


def _step(phases: Phases) -> float:
    _feature_dtype(phases)
    return float(2.0 * np.pi / (1 << 8 * phases.itemsize))


def _feature_dtype(phases: Phases) -> np.dtype[np.float32] | np.dtype[np.float64]:
    if phases.dtype == np.uint16:
        return np.dtype(np.float32)
    if phases.dtype == np.uint32:
        return np.dtype(np.float64)
    raise OptionError(
        f"phases are {phases.dtype}", remedy="use uint16 or uint32", code="FK-OPTION-TYPE"
    )


def outputs(phases: Phases, weights: Floats, multiple: int = 1) -> Floats:
    """Return phi(x) w of every row, shape (n, k).

    ``weights`` is (R, k), or (R + 1, k) with the intercept's last; see :func:`keep_features`.
    """
    intercept = len(weights) > phases.shape[1]
    out = np.empty((len(phases), weights.shape[1]))
    for part in blocks(len(phases), phases.shape[1] * _feature_dtype(phases).itemsize):
        z = keep_features(phases[part], multiple, intercept=intercept)
        out[part] = z @ weights.astype(z.dtype)
    return out


def step_size(step: float, schedule: StepSchedule, regularization: float, iteration: int) -> float:
    """Return gamma_t: ``step`` ("constant"), or step / (1 + step lambda t) ("diminishing").

    The latter tends to 1 / (lambda t); t counts from 1.
    """
    return step if schedule == "constant" else step / (1.0 + step * regularization * iteration)


def draw_batch(seed: int, iteration: int, rows: int, batch: int) -> NDArray[np.int64]:
    """Return the positions of an iteration's batch among ``rows`` rows, without repetition."""
    rng = np.random.default_rng(derive_seed(seed, "batch", iteration))
    return np.sort(rng.choice(rows, size=min(batch, rows), replace=False))


def new_coefficients(
    loss: Loss, outputs: Floats, targets: Floats, features: NDArray[Any], rate: float
) -> Floats:
    """Return the coefficients of an iteration's new directions, (r, k) (Algorithm 1, line 9).

    alpha = -(gamma_t / r) mean over the batch of L'(f, y) phi, phi = sqrt(2) cos(phase). The paper
    has a batch of one row and r = 1.

    Parameters
    ----------
    loss : {"square", "logistic", "smooth-hinge"}
        L.
    outputs, targets : ndarray, shape (B, k)
        f and y of the batch.
    features : ndarray, shape (B, r)
        phi of the new directions.
    rate : float
        gamma_t.
    """
    slopes = loss_derivatives(loss, outputs, targets)
    batch, directions = features.shape
    return np.asarray(-rate / (directions * batch) * (features.T.astype(np.float64) @ slopes))
