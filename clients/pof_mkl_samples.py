"""What a client of the online methods makes of the samples of one message."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.guard import check_size
from fedkern_flwr.kernels.random_features import FeatureMap, Real, feature_map
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.learning import (
    WEIGHT_RULES,
    AdaGradNorm,
    Floats,
    GradientDescent,
    current_weights,
    kernel_weights,
    pick_frequencies,
    select_bin,
    select_subset,
    shared_frequencies,
    shared_subset,
)
from fedkern_flwr.seeding import derive_seed, uniform

from .pof_mkl_account import StreamAccount


class Predictions(NamedTuple):
    """Predictions of all kernels for the samples of one round, before any update."""

    z: Real  # (B, N, 2D)
    kernels: Floats  # (B, N)
    squared: Floats  # (B, N)
    losses: Floats  # (B, N)
    y: Floats  # (B,), without the centre


def message_features(request: wire.DictionaryRequest, dimension: int) -> FeatureMap:
    """Return the map from rows to the random features of all kernels of a message."""
    theta = getattr(request, "theta", None)
    kernels = len(request.bandwidths) // 8
    check_size(kernels, 2 * request.features, dimension, party="server")
    if theta is not None and theta.shape != (kernels, 2 * request.features):
        raise ProtocolError("the parameters are not those of the features", code="FK-MESSAGE-SHAPE")
    return feature_map(
        request.bandwidths,
        dimension,
        request.features,
        request.seed,
        known_word(request.precision, ("float32", "float64")),
        known_word(request.frequency_draw, ("independent", "orthogonal")),
    )


def weigh_samples(
    request: Any, account: StreamAccount, losses: Floats
) -> tuple[Floats, Floats, float]:
    """Return the weights before each sample, (B, N), and the losses and gap after the last."""
    rule = known_word(request.weight_rule, WEIGHT_RULES)
    return kernel_weights(rule, account.losses, losses, account.gap, request.learning_rate)


def weights_now(request: Any, account: StreamAccount) -> Floats:
    """Return the weights after the last sample that was booked, (N,)."""
    rule = known_word(request.weight_rule, WEIGHT_RULES)
    return current_weights(rule, account.losses, account.gap, request.learning_rate)


def compare(z: Real, theta: Real, y: NDArray[Any], request: wire.DictionaryRequest) -> Predictions:
    """Predict with every kernel and compare with the labels, which are without the centre."""
    kernels = np.vecdot(z, theta).astype(np.float64, copy=False)  # (B, N)
    squared = kernels - y[:, None]
    squared *= squared
    penalty = request.regularization * np.vecdot(theta, theta)
    return Predictions(z, kernels, squared, squared + penalty, y)


def learn_sample(
    theta: Floats,
    seen: Predictions,
    request: wire.DictionaryRequest,
    rule: GradientDescent | AdaGradNorm,
) -> None:
    """Move all kernels' own parameters, (N, 2D), by a single sample."""
    residual = 2.0 * (seen.kernels[0] - seen.y[0])
    rule.update(theta, residual[:, None] * seen.z[0] + 2.0 * request.regularization * theta)


def learn_between(seen: Predictions, request: wire.PersonalRequest, squared: Floats) -> Predictions:
    """Predict each sample of a message with parameters that have learned those before it.

    The copy that learns is of the parameters in the message, and forgotten with it. Its steps are
    AdaGrad-norm's; as features have length one, four times the squared errors so far, (N,), are
    the squared lengths of the gradients.
    """
    if request.local_step == 0.0 or len(seen.y) == 1:
        return seen
    theta, rule = request.theta.astype(np.float64), AdaGradNorm(len(squared), request.local_step)
    rule.state = 4.0 * squared
    found = []
    for b in range(len(seen.y)):
        sample = slice(b, b + 1)
        one = compare(seen.z[sample], theta.astype(seen.z.dtype), seen.y[sample], request)
        learn_sample(theta, one, request, rule)
        found.append(one)
    kernels, squares, losses = (np.concatenate([one[k] for one in found]) for k in (1, 2, 3))
    return Predictions(seen.z, kernels, squares, losses, seen.y)


def choose_kernels(
    request: wire.PersonalRequest, weights: Floats, partition: int
) -> tuple[NDArray[np.int32], Floats]:
    """Return the kernels whose gradients this client sends, and the probability of each."""
    labels = ("kernels", partition, request.round)
    many, exploration = request.kernels_per_round, request.exploration
    if many >= weights.size:
        return np.arange(weights.size, dtype=np.int32), np.ones(weights.size)
    if request.selection == "shared":
        shared = shared_subset(weights.size, many, request.seed, request.round)
        return shared, np.full(many, many / weights.size)
    if request.selection == "bins":
        return select_bin(weights, many, exploration, uniform(request.seed, *labels))
    rng = np.random.default_rng(derive_seed(request.seed, *labels))
    return select_subset(weights, many, exploration, rng)


def chosen_gradients(
    seen: Predictions,
    request: wire.KernelRequest,
    chosen: NDArray[np.integer[Any]],
    probabilities: Floats,
) -> Real:
    """Gradients of the chosen kernels' losses summed over the samples, over p (eq. 9), (M, 2D).

    Where frequencies are chosen as well: of these, sine and cosine, (frequencies, 2).
    """
    scale = 2.0 / probabilities
    penalty = (scale * (request.regularization * len(seen.y))).astype(seen.z.dtype)
    gradient = request.theta.take(chosen, axis=0)
    gradient *= penalty[:, None]
    if len(seen.y) == 1:
        residual = (seen.kernels[0].take(chosen) - seen.y[0]) * scale
        gradient += residual.astype(gradient.dtype)[:, None] * seen.z[0].take(chosen, axis=0)
    else:
        residuals = (seen.kernels.take(chosen, axis=1) - seen.y[:, None]) * scale
        z = seen.z.take(chosen, axis=1)
        gradient += np.einsum("bm,bmw->mw", residuals.astype(z.dtype), z)
    if not request.released:
        return gradient
    shape = len(chosen), request.features
    picked = shared_frequencies(*shape, request.released, request.seed, request.round)
    return pick_frequencies(gradient, picked)


def book(
    account: StreamAccount, seen: Predictions, losses: Floats, weights: Floats
) -> StreamAccount:
    """Enter the samples of a round; ``weights`` (N,) or (B, N) made the predictions (eq. 6)."""
    account.losses = losses
    if len(seen.y) == 1:
        error = float(seen.kernels[0] @ weights.reshape(-1) - seen.y[0])
        account.total += error * error
        account.squared = account.squared + seen.squared[0]
        largest = np.maximum.reduce(seen.losses[0])
    else:
        errors = np.vecdot(seen.kernels, weights) - seen.y
        account.total += float(errors @ errors)
        account.squared = account.squared + seen.squared.sum(axis=0)
        largest = seen.losses.max()
    account.samples += len(seen.y)
    account.largest = max(account.largest, float(largest))
    return account


def known_word(word: str, words: tuple[str, ...]) -> Any:
    """Refuse a word of the server that this release does not know."""
    if word not in words:
        raise ProtocolError(f"{word[:20]!r} is none of {', '.join(words)}", code="FK-MESSAGE-FIELD")
    return word
