"""Pooled solution of FedCG, in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from fedkern_flwr.hybrid.fourier import draw_block
from fedkern_flwr.hybrid.landmarks import draw_landmarks, moment_sums, public_seed, read_moments
from fedkern_flwr.labels import balanced_weights, class_counts, encode_classes

from ...strategies import FedCG
from .new_rows import read_predictions

if TYPE_CHECKING:
    from .hybrid import HybridData, Pooled

Floats = NDArray[np.float64]

_CHUNK = 1 << 21  # numbers of a chunk of the kernel


def pooled_landmarks(strategy: FedCG, prepared: HybridData) -> dict[str, Floats]:
    """Return the landmarks or directions of each block."""
    seed = strategy.seed or 0
    pooled = prepared.split(seed)
    out = {}
    for block, columns in pooled.blocks.items():
        if strategy.basis == "fourier":
            pairs, gamma = strategy.landmarks_ // 2, float(strategy.gammas_[0])
            seed_of = public_seed(seed, block)
            out[block] = draw_block(seed_of, pairs, len(columns), strategy.kernel, gamma)
            continue
        sampling = strategy.plan_.sampling(block, strategy.chosen_sampling)
        x = pooled.x[np.ix_(taking_part(strategy, pooled) & pooled.train, columns)]
        out[block] = block_landmarks(sampling, strategy.landmarks_, x, seed, block)
    return out


def block_landmarks(sampling: str, m: int, x: Floats, seed: int, block: str) -> Floats:
    """Return the landmarks of a block with training rows ``x`` in [0, 1]."""
    ranges, moments = np.tile([0.0, 1.0], (x.shape[1], 1)), None
    if sampling in ("N", "C"):
        sums = moment_sums(x[np.isfinite(x).all(axis=1)], ranges, sampling)
        moments = read_moments(sums, ranges, sampling)
    return draw_landmarks(public_seed(seed, block), m, ranges, moments)


def taking_part(strategy: FedCG, pooled: Pooled) -> NDArray[np.bool_]:
    """Return which rows take part."""
    if strategy.missing == "drop-row":
        return np.asarray(np.isfinite(pooled.x).all(axis=1))
    return np.ones(len(pooled.x), bool)


def pooled_kernel(
    strategy: FedCG, pooled: Pooled, rows: NDArray[np.intp], landmarks: dict[str, Floats]
) -> Floats:
    """Return the kernel of rows and landmarks from its definition."""
    if strategy.basis == "fourier":
        turns = np.zeros((len(rows), strategy.landmarks_ // 2))
        for block, columns in pooled.blocks.items():
            turns += pooled.x[np.ix_(rows, columns)] @ landmarks[block][:, :-1].T
            turns += landmarks[block][:, -1]
        return np.hstack([np.cos(turns), np.sin(turns)]) / math.sqrt(strategy.landmarks_ / 2)
    total = np.zeros((len(rows), strategy.landmarks_))
    for block, columns in pooled.blocks.items():
        x = pooled.x[np.ix_(rows, columns)]
        known = np.isfinite(x).all(axis=1)
        total[known] += _distances(strategy, x[known], landmarks[block])
    return np.exp(-strategy.gammas_ * total)


def centralised_difference(strategy: FedCG, prepared: HybridData) -> float | None:
    """Return max |f_fed - f_central| over held-out rows, or None without predictions."""
    pooled = prepared.split(strategy.seed or 0)
    here = taking_part(strategy, pooled)
    train, test = (np.flatnonzero(here & part) for part in (pooled.train, ~pooled.train))
    if not len(test) or strategy.budget is not None:
        return None
    landmarks = pooled_landmarks(strategy, prepared)
    m = strategy.landmarks_
    y = pooled.y[:, None]
    if pooled.classes:
        y = encode_classes(pooled.y, pooled.classes, "the pooled table")
    gram, right = np.zeros((m, m)), np.zeros((m, y.shape[1]))
    step = max(1, _CHUNK // m)
    for start in range(0, len(train), step):
        part = train[start : start + step]
        k, goals = pooled_kernel(strategy, pooled, part, landmarks), y[part]
        if strategy.class_weight:
            root = np.sqrt(balanced_weights(goals, class_counts(y[train])))[:, None]
            k, goals = k * root, goals * root
        gram += k.T @ k
        right += k.T @ goals
    if strategy.penalty == "rkhs":
        whole = np.hstack(list(landmarks.values()))
        pairs = np.exp(-strategy.gammas_ * _distances(strategy, whole, whole))
        gram += strategy.regularization_ * pairs
        coefficients = linalg.pinvh(gram) @ right
    else:
        gram[np.diag_indices(m)] += strategy.regularization_
        coefficients = _solve(gram, right)
    found = read_predictions(prepared.predictions)
    worst = 0.0
    for start in range(0, len(test), step):
        part = test[start : start + step]
        central = pooled_kernel(strategy, pooled, part, landmarks) @ coefficients
        if not pooled.classes:
            central = np.clip(central, -pooled.label_bound, pooled.label_bound)
        federated = np.array([found[row] for row in part.tolist()])
        worst = max(worst, float(np.abs(central - federated).max()))
    return worst


def _solve(matrix: Floats, right: Floats) -> Floats:
    try:
        return np.asarray(linalg.solve(matrix, right, assume_a="pos"))
    except linalg.LinAlgError:  # lambda is lost in rounding
        return np.asarray(linalg.lstsq(matrix, right)[0])


def _distances(strategy: FedCG, x: Floats, landmarks: Floats) -> Floats:
    total = np.zeros((len(x), len(landmarks)))
    for column, place in zip(x.T, landmarks.T, strict=True):
        apart = column[:, None] - place
        total += apart**2 if strategy.kernel == "rbf" else np.abs(apart)
    return total
