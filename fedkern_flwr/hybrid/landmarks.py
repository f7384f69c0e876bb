"""The features of a kernel on a hybrid split: random landmarks, or random Fourier features.

A landmark is a row over all blocks. The holders of a block draw its part of every landmark from
their own secret, so nobody else can locate a patient by distances to landmarks.

Distributions with independent coordinates reveal the features' axes: uniform landmarks by the edges
of their box, normal ones by their deviations. A hospital with its patients' distances to such
landmarks would have the features themselves. So each block's landmarks are rotated by a secret
matrix.

Random Fourier features sum phases over the blocks: omega_j^T x + b_j for j = 1..D. The holders of a
block draw the components of their columns, and a part of the offset, from their own secret; the sum
over the blocks, modulo 2 pi, goes to the hospital. The features cos and sin of the phases, times
sqrt(1 / D), give every row length one. So a row moves their sums little, whatever its values: a run
with a privacy budget uses them.

References
----------
Damiani, Rodina and Decherchi 2024 (FedCG), section 2 (sampling methods U and N). Rahimi and Recht,
"Random Features for Large-Scale Kernel Machines", NIPS 2007.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from ..checkpoint import write_atomically
from ..errors import OptionError, ProtocolError
from ..kernels.random_features import Kernel, draw_directions, draw_offsets
from ..privacy import Budget, Release, plan_sum
from ..privacy import accounting as sensitivity
from ..secure_sum import Encoding
from ..solvers.least_squares import equations_length

Floats = NDArray[np.float64]

# -- random landmarks

Sampling = Literal["U", "N", "C"]
SAMPLINGS = ("U", "N", "C")
SEED_BYTES = 32
#: Landmarks, or features, of a run.
MOST_LANDMARKS = 1 << 16
_FINGERPRINT_BYTES = 16
_MOST_TOLD = 4  # secrets of earlier runs to report, one per number of holders


def draw_landmarks(
    seed: bytes, landmarks: int, ranges: Floats, moments: Floats | None = None
) -> Floats:
    """Draw one block's part of all landmarks, shape (m, d), then rotate it at random.

    The rotation, uniform on the orthogonal matrices, is drawn from the same secret. It rotates the
    non-constant features about the middle of the ranges, or the mean; a single feature stays. No
    landmark is farther from the middle than a corner of the ranges.

    Parameters
    ----------
    seed : bytes
        Secret of the block's holders, 32 bytes.
    landmarks : int
        m.
    ranges : ndarray of float64, shape (d, 2)
        Public least and greatest value of each feature.
    moments : ndarray of float64, shape (2, d) or (1 + d, d), optional
        Without: uniform in the range (sampling U). Mean and standard deviation: normal, clipped to
        the range before the rotation and to the ball around it after (N). Mean and covariance:
        normal, pulled back into the ball; not rotated, as its only axes are the principal ones (C).
    """
    digest = hashlib.sha256(b"fedkern-flwr landmarks " + seed).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "little"))
    low, high = ranges[:, 0], ranges[:, 1]
    centre, shape = (low + high) / 2.0, (landmarks, len(ranges))
    if moments is None:
        drawn = low + (high - low) * rng.random(shape)
    elif len(moments) > 2:
        values, axes = np.linalg.eigh(moments[1:])
        root = (axes * np.sqrt(np.maximum(values, 0.0))) @ axes.T
        return _pulled_back(moments[0] + rng.standard_normal(shape) @ root, ranges)
    else:
        centre, deviation = moments
        drawn = np.clip(centre + deviation * rng.standard_normal(shape), low, high)
    wide = high > low
    if wide.sum() > 1:
        drawn[:, wide] = centre[wide] + _turn((drawn - centre)[:, wide], rng)
        drawn = drawn if moments is None else _pulled_back(drawn, ranges)
    return np.asarray(drawn)


def _pulled_back(points: Floats, ranges: Floats) -> Floats:
    """Return points, those outside the ball through the corners of the ranges moved onto it."""
    away = points - ranges.mean(axis=1)
    radius = math.hypot(*(ranges[:, 1] - ranges[:, 0])) / 2.0
    # in units of the radius: squares of tiny distances would vanish
    far = np.maximum(np.linalg.norm(away / (radius or 1.0), axis=1, keepdims=True), 1.0)
    return np.asarray(ranges.mean(axis=1) + away / far)


def moment_sums(x: Floats, ranges: Floats, sampling: str = "N") -> Floats:
    """Return count, sums and sums of squares of features scaled to [0, 1].

    Parameters
    ----------
    x : ndarray of float64, shape (n, d)
        Rows of the block.
    ranges : ndarray of float64, shape (d, 2)
        Least and greatest value of each feature.
    sampling : {"N", "C"}
        C: products of all pairs of features instead of squares.
    """
    scaled = (x - ranges[:, 0]) / _spans(ranges)
    products = (scaled**2).sum(0)
    if sampling == "C":
        products = (scaled.T @ scaled)[np.triu_indices(len(ranges))]
    return np.concatenate([[float(len(x))], scaled.sum(0), products])


def moments_length(features: int, sampling: str) -> int:
    products = features * (features + 1) // 2 if sampling == "C" else features
    return 1 + features + products


def read_moments(sums: Floats, ranges: Floats, sampling: str = "N") -> Floats:
    """Return mean and deviation, (2, d), or with C mean and covariance, (1 + d, d), from sums.

    A single feature always has a deviation. The covariance is mixed with a multiple of the identity
    that counts as one row per feature, so that landmarks of few rows do not lie in their span.
    """
    count, features = max(float(sums[0]), 1.0), len(ranges)
    mean, rest = sums[1 : 1 + features] / count, sums[1 + features :]
    place = ranges[:, 0] + mean * _spans(ranges)
    if sampling == "C" and features > 1:
        upper = np.triu_indices(features)
        covariance = np.zeros((features, features))
        covariance[upper] = rest / count - np.multiply.outer(mean, mean)[upper]
        covariance.T[upper] = covariance[upper]
        level = np.maximum(covariance.diagonal(), 0.0).mean()
        mixed = (count * covariance + features * level * np.eye(features)) / (count + features)
        spans = ranges[:, 1] - ranges[:, 0]
        return np.vstack([place, mixed * np.multiply.outer(spans, spans)])
    variance = np.maximum(rest / count - mean**2, 0.0)
    return np.stack([place, np.sqrt(variance) * _spans(ranges)])


def public_seed(seed: int, block: str) -> bytes:
    """Return a block's seed that anyone can compute: for simulations only."""
    return hashlib.sha256(f"fedkern-flwr public landmarks/{seed}/{block}".encode()).digest()


def seed_fingerprint(seed: bytes, session: str, block: str, moments: Floats | None = None) -> bytes:
    """Return 16 bytes that are equal at all holders of a block with the same landmarks.

    They reveal nothing about the seed of 256 bits nor, without it, about the moments.
    """
    text = f"fedkern-flwr fingerprint of turned landmarks/{session}/{block}".encode()
    if moments is not None:
        text += b"/" + np.ascontiguousarray(moments, "<f8").tobytes()
    return hmac.digest(seed, text, "sha256")[:_FINGERPRINT_BYTES]


@dataclass(frozen=True)
class SharedSecret:
    """The secret of landmarks that the holders of a block share, kept for later runs.

    With it they sum the same numbers again, which reveals nothing new. A new holder lacks it, so
    all take a new one. Fewer holders take a new one, too: those who left know the old one.

    Attributes
    ----------
    file : Path or None
        File of the secret of two holders; for more, their number is appended. None keeps nothing.
    """

    file: Path | None

    @classmethod
    def of(cls, folder: str | Path | None, place: bytes | None) -> Self:
        """Return that of a node's folder; ``place`` separates runs that must not share it."""
        if folder is None or place is None:
            return cls(None)
        return cls(Path(folder) / f"landmarks-{place.hex()[:32]}")

    def take(self, made: bytes, holders: int, *, lasting: bool) -> tuple[bytes, bool]:
        """Return the secret of earlier runs or the one ``made``; and whether for one run only.

        Raises
        ------
        ProtocolError
            An earlier one is required and missing.
        """
        file = self.file and self.file.with_name(self.file.name + f"-{holders}" * (holders > 2))
        if lasting:
            if file is None or not file.is_file():
                raise ProtocolError("it has no secret of an earlier run", code="FK-ASKED-SECRET")
            return file.read_bytes(), False
        if file is not None:
            write_atomically(file, made, private=True)
        return made, file is None

    def told(self, session: str) -> str:
        """Return digests of the latest secrets, from which the server sees whether all match."""
        if self.file is None:
            return ""
        start = len(self.file.name)
        files = self.file.parent.glob(f"{self.file.name}*")
        latest = sorted(files, key=lambda file: file.stat().st_mtime)[-_MOST_TOLD:]
        told = {one.name[start + 1 :] or "2": one.read_bytes() for one in latest}
        return " ".join(f"{n}:{session_digest(known, session)}" for n, known in told.items())


def session_digest(secret: bytes, session: str) -> str:
    """Return a digest that is equal for all who know a secret, and differs between runs."""
    return hmac.digest(secret, session.encode(), "sha256")[:_FINGERPRINT_BYTES].hex()


def check_seed_bytes(seed: bytes) -> None:
    """Raise OptionError for a landmark seed that is too short to be secret."""
    if len(seed) != SEED_BYTES:
        raise OptionError(
            f"the landmark seed has {len(seed)} bytes instead of {SEED_BYTES}",
            remedy="draw one with python3 -c 'import secrets; print(secrets.token_hex(32))'",
            code="FK-KEY-LENGTH",
        )


def _spans(ranges: Floats) -> Floats:
    spans = ranges[:, 1] - ranges[:, 0]
    return np.asarray(np.where(spans > 0.0, spans, 1.0))


def _turn(points: Floats, rng: np.random.Generator) -> Floats:
    """Rotate points, (m, d), about the origin by a random orthogonal matrix, uniform (Haar).

    If d exceeds m, only the effect on the points is drawn: a random frame replaces theirs.
    """
    m, d = points.shape
    if m >= d:
        return np.asarray(points @ _frame(rng.standard_normal((d, d)))[0])
    place = _frame(points.T)[1]
    return np.asarray((_frame(rng.standard_normal((d, m)))[0] @ place).T)


def _frame(columns: Floats) -> tuple[Floats, Floats]:
    """Return the QR factors with a positive diagonal, the same in every library."""
    q, r = np.linalg.qr(columns)
    signs = np.where(np.diag(r) < 0.0, -1.0, 1.0)
    return q * signs, r * signs[:, None]


# -- random Fourier features

#: Phases are summed on a circle of 2^64 steps.
CIRCLE = Encoding.circle(64)
#: Name of the sum of the normal equations.
EQUATIONS = "equations"


def draw_block(seed: bytes, pairs: int, width: int, kernel: Kernel, gamma: float) -> Floats:
    """Return a block's components of all directions, with its offsets as last column: (D, d + 1).

    ``seed`` is the secret of the block's holders, 32 bytes; ``pairs`` is D, ``width`` d.
    """
    directions = draw_directions(seed, 0, pairs, width, kernel, gamma)
    return np.column_stack([directions, draw_offsets(seed, 0, pairs, kernel, gamma)])


def usual_gamma(columns: int) -> float:
    """Return the default width for columns in [0, 1], where none may be chosen.

    Noise hurts smooth kernels more, as their features are nearly alike; with many columns, narrow
    kernels separate all rows. Measured with noise on ten tables of 2 to 123 columns.
    """
    return float(20.0 / columns**1.5)


def block_phases(x: Floats, block: Floats) -> Floats:
    """Return a block's part of the phases, (n, D)."""
    phases = x @ block[:, :-1].T + block[:, -1]
    return np.where(np.isfinite(phases), phases, 0.0)  # an overflow must not show


def fourier_features(phases: Floats) -> Floats:
    """Return the features of total phases, (n, 2 D); rows have length one."""
    pairs = phases.shape[1]
    out = np.empty((len(phases), 2 * pairs))
    np.cos(phases, out=out[:, :pairs])
    np.sin(phases, out=out[:, pairs:])
    out *= np.sqrt(1.0 / pairs)
    return out


# -- noise of released sums, which are all over whole cohorts: no party may be missing


def equations_release(
    budget: Budget, *, features: int, outputs: int, bound: float, rows: Sequence[int]
) -> Release:
    """Return the noise of the normal equations.

    ``bound`` is the largest absolute label; ``rows`` are each hospital's declared training rows.
    """
    moved = sensitivity.ridge(features, label_weight(bound, outputs) * bound * math.sqrt(outputs))
    length = equations_length(features, outputs)
    return plan_sum(EQUATIONS, budget, sensitivity=moved, length=length, rows=rows, least=len(rows))


def label_weight(bound: float, outputs: int) -> float:
    """Return the factor of K^T y before noise is added; labels then have length 1/2.

    Length one would raise the sensitivity from 5 / 4 to 2, and with it the noise of the Gram
    matrix; the optimum is flat.
    """
    return 0.5 / (bound * math.sqrt(outputs))


def regularize(gram: Floats, regularization: float, deviation: float) -> tuple[Floats, float]:
    """Remove the negative part of a noisy Gram matrix; return it and a lambda that suits the noise.

    The noise matrix has entries of this deviation, and eigenvalues within 2 ``deviation`` sqrt(m).
    Lambda is at least a quarter of that, a factor found on svmguide1 and phishing, to damp spurious
    directions.

    References
    ----------
    Wang, "Revisiting differentially private linear regression: optimal and adaptive prediction and
    estimation in unbounded domain", UAI 2018.
    """
    values, vectors = np.linalg.eigh(gram)
    positive = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return positive, max(regularization, 0.5 * deviation * math.sqrt(len(gram)))
