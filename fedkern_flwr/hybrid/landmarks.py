"""Random landmarks, drawn block by block from secrets that only the holders of a block know.

A landmark is a row of all blocks together. The holders of a block draw its slice of every landmark
from a secret of their own, so that nobody can place a patient by its distances to the landmarks.

Laws with a coordinate per feature show the features' axes: uniform landmarks by the edges of their
box, normal ones by their deviations. Whoever has distances of his patients to such landmarks has
the features themselves. So the landmarks of a block are turned by a secret rotation.

References
----------
Damiani, Rodina and Decherchi, "A Hybrid Federated Kernel Regularized Least Squares Algorithm",
2024, section 2 (sampling methods U and N).
"""

from __future__ import annotations

import hashlib
import hmac
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from ..checkpoint import write_atomically
from ..errors import OptionError, ProtocolError

Floats = NDArray[np.float64]
Sampling = Literal["U", "N", "C"]
SAMPLINGS = ("U", "N", "C")
SEED_BYTES = 32
#: Landmarks, or features, of a run.
MOST_LANDMARKS = 1 << 16
_FINGERPRINT_BYTES = 16
_MOST_TOLD = 4  # secrets of an earlier run, of so many numbers of holders


def draw_landmarks(
    seed: bytes, landmarks: int, ranges: Floats, moments: Floats | None = None
) -> Floats:
    """Draw one block's slice of all landmarks: in a box, which is then turned at random.

    The rotation, uniform on the orthogonal matrices, is drawn from the same secret. It turns about
    the middle of the ranges, or about the mean, those features whose range is not a point; a
    single one has no axes to hide and stays. No landmark is farther from the middle than a corner
    of the ranges.

    Parameters
    ----------
    seed : bytes
        The secret of the block's holders, 32 bytes.
    landmarks : int
        m, number of landmarks.
    ranges : ndarray of float64, shape (d, 2)
        Least and greatest value of each feature, public.
    moments : ndarray of float64, shape (2, d) or (1 + d, d), optional
        Mean and standard deviation of each feature: draw from the normal distribution, clipped to
        the range before the turn and to the ball around the ranges after it (sampling N). Mean and
        covariance of several features: draw from that normal distribution and pull back what
        leaves the ball (sampling C); it is not turned, since it has no axes but the rows' principal
        ones. Without them draw uniformly from the range (sampling U).

    Returns
    -------
    ndarray of float64, shape (m, d)
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
    """Return count, sums and sums of squares of features scaled to [0, 1], to be added up.

    Parameters
    ----------
    x : ndarray of float64, shape (n, d)
        Rows of the block.
    ranges : ndarray of float64, shape (d, 2)
        Least and greatest value of each feature.
    sampling : {"N", "C"}
        With C sums of all products of two features, instead of squares.

    Returns
    -------
    ndarray of float64, shape (:func:`moments_length`,)
    """
    scaled = (x - ranges[:, 0]) / _spans(ranges)
    products = (scaled**2).sum(0)
    if sampling == "C":
        products = (scaled.T @ scaled)[np.triu_indices(len(ranges))]
    return np.concatenate([[float(len(x))], scaled.sum(0), products])


def moments_length(features: int, sampling: str) -> int:
    """Return how many numbers :func:`moment_sums` makes."""
    products = features * (features + 1) // 2 if sampling == "C" else features
    return 1 + features + products


def read_moments(sums: Floats, ranges: Floats, sampling: str = "N") -> Floats:
    """Return mean and deviation, with C mean and covariance, of the features from added up sums.

    Of a single feature both are mean and deviation. A covariance is mixed with a multiple of the
    identity that counts as much as a row per feature, so that landmarks of few rows do not lie in
    their span.

    Returns
    -------
    ndarray of float64, shape (2, d) or (1 + d, d)
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
    """Return a block's seed that anybody can compute: for simulations only."""
    return hashlib.sha256(f"fedkern-flwr public landmarks/{seed}/{block}".encode()).digest()


def seed_fingerprint(seed: bytes, session: str, block: str, moments: Floats | None = None) -> bytes:
    """Return 16 bytes that are equal at all holders of a block if they draw the same landmarks.

    They say nothing about the seed, which has 256 bits, nor, without it, about the moments.
    """
    text = f"fedkern-flwr fingerprint of turned landmarks/{session}/{block}".encode()
    if moments is not None:
        text += b"/" + np.ascontiguousarray(moments, "<f8").tobytes()
    return hmac.digest(seed, text, "sha256")[:_FINGERPRINT_BYTES]


@dataclass(frozen=True)
class SharedSecret:
    """The secret of landmarks that a node took with the other holders of its block, for later runs.

    With it they sum the same numbers again, which tells nothing new. Anyone who held the block
    before does not know it: a new holder has no such secret, so all take a new one. So do fewer
    holders: those who left know the old one.

    Attributes
    ----------
    file : Path or None
        Where that of two holders is kept, and with their number behind it that of more; None where
        nothing is.
    """

    file: Path | None

    @classmethod
    def of(cls, folder: str | Path | None, place: bytes | None) -> Self:
        """Return that of a node's folder; ``place`` changes where earlier runs must not go on."""
        if folder is None or place is None:
            return cls(None)
        return cls(Path(folder) / f"landmarks-{place.hex()[:32]}")

    def take(self, made: bytes, holders: int, *, lasting: bool) -> tuple[bytes, bool]:
        """Return that of earlier runs, or one that was ``made``, and whether it is for a run only.

        Raises
        ------
        ProtocolError
            There is none of earlier runs.
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
        """Return digests by which the server sees that all holders have the same, by their number.

        Of the latest secrets, as many as a text of a message holds.
        """
        if self.file is None:
            return ""
        start = len(self.file.name)
        files = self.file.parent.glob(f"{self.file.name}*")
        latest = sorted(files, key=lambda file: file.stat().st_mtime)[-_MOST_TOLD:]
        told = {one.name[start + 1 :] or "2": one.read_bytes() for one in latest}
        return " ".join(f"{n}:{session_digest(known, session)}" for n, known in told.items())


def session_digest(secret: bytes, session: str) -> str:
    """Return a digest that is equal at all who have a secret, and differs from run to run."""
    return hmac.digest(secret, session.encode(), "sha256")[:_FINGERPRINT_BYTES].hex()


def check_seed_bytes(seed: bytes) -> None:
    """Refuse a landmark seed that is too short to be secret.

    Raises
    ------
    OptionError
    """
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
    """Turn points, shape (m, d), about the origin by a random orthogonal matrix, uniform (Haar).

    Of a matrix larger than there are points only what it does to them is drawn: a random frame
    takes the place of theirs.
    """
    m, d = points.shape
    if m >= d:
        return np.asarray(points @ _frame(rng.standard_normal((d, d)))[0])
    place = _frame(points.T)[1]
    return np.asarray((_frame(rng.standard_normal((d, m)))[0] @ place).T)


def _frame(columns: Floats) -> tuple[Floats, Floats]:
    """Return the QR factors with a positive diagonal: then they do not depend on the library."""
    q, r = np.linalg.qr(columns)
    signs = np.where(np.diag(r) < 0.0, -1.0, 1.0)
    return q * signs, r * signs[:, None]
