"""Samples of a stream at its client: computations and state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.guard import check_size
from fedkern_flwr.kernels.random_features import FeatureMap, Real, feature_map
from fedkern_flwr.node.state import KeptState
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online import private
from fedkern_flwr.online.learning import (
    WEIGHT_RULES,
    AdaGradNorm,
    Floats,
    GradientDescent,
    current_weights,
    kernel_weights,
    select_bin,
    select_subset,
    step_rule,
)
from fedkern_flwr.seeding import derive_seed, uniform

_OWN = "own learner "
_CHUNK = 256  # rows predicted at once

# -- state of a client of the online methods


def _none() -> Floats:
    return np.zeros(0)


@dataclass
class StreamAccount:
    """A client's stream state: (2N + 4) numbers, 13 more in a secure run, and own learners.

    Attributes
    ----------
    losses : ndarray, shape (N,)
        Summed regularised losses of each kernel: the logarithms of the weights (eq. 7).
    squared : ndarray, shape (N,)
        Summed squared errors of each kernel, for the regret (eq. 11).
    total : float
        Summed squared errors of the client's predictions.
    samples : float
        Samples predicted.
    gap : float
        Mixability gap of AdaHedge.
    largest : float
        Largest loss of a kernel so far.
    counted : ndarray, shape (6,) or (0,)
        Statistics already in the server's sums.
    pending : ndarray, shape (6,) or (0,)
        Statistics after sum number ``pending_sum``, perhaps not counted.
    pending_sum : float
    own : list of ndarray
        For POF-RLS: per local learner number of rows, inverse and coefficients.
    """

    losses: Floats = field(default_factory=_none)
    squared: Floats = field(default_factory=_none)
    total: float = 0.0
    samples: float = 0.0
    gap: float = 0.0
    largest: float = 0.0
    counted: Floats = field(default_factory=_none)
    pending: Floats = field(default_factory=_none)
    pending_sum: float = 0.0
    own: list[Floats] = field(default_factory=list)

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Read a session's payload, empty at first; CheckpointError if it is invalid."""
        kept = KeptState.unpack(payload)
        own = [kept.arrays.pop(name) for name in [*kept.arrays] if name.startswith(_OWN)]
        fields: dict[str, Any] = {**kept.settings, **kept.arrays}
        return cls(**fields, own=own)

    @classmethod
    def of_weights(cls, arrays: Mapping[str, NDArray[Any]]) -> StreamAccount:
        """Read what predictions need, also in release 0.1's format (numbers in a row)."""
        numbers = arrays.get("account", np.zeros(0))
        if numbers.dtype != np.float64 or not numbers.size:
            return StreamAccount.unpack(arrays["account"].tobytes())
        many = numbers.size - (2 * wire.STATISTICS + 1) * (numbers.size % 2)
        return StreamAccount(numbers[: many // 2 - 2], gap=float(numbers[many - 2]))

    def twin(self) -> Self:
        return replace(self, own=list(self.own))

    def of(self, kernels: int) -> Self:
        """Return the state, initialised for ``kernels`` kernels; ProtocolError if it has others."""
        if not self.samples and not self.losses.size:
            self.losses, self.squared = np.zeros(kernels), np.zeros(kernels)
        if self.losses.size != kernels:
            raise ProtocolError(
                f"the node's state does not belong to {kernels} kernels", code="FK-SETTINGS-CHANGED"
            )
        return self

    def pack(self) -> bytes:
        known = {name: one for name, one in vars(self).items() if name != "own"}
        arrays = {name: one for name, one in known.items() if isinstance(one, np.ndarray)}
        settings = {
            name: vars(one) if is_dataclass(one) else one
            for name, one in known.items()
            if name not in arrays
        }
        own = {f"{_OWN}{k}": one for k, one in enumerate(self.own)}
        return KeptState(settings, arrays=arrays | own).pack()

    def uncounted(self, statistics: Floats, number: int, counted: int) -> Floats:
        """Return the growth of the statistics, (6,), since they were last counted in a sum.

        ``number`` is that of this sum, ``counted`` that of the last sum with this client.
        """
        if not self.pending.size:
            self.counted = np.zeros_like(statistics)
        elif counted >= self.pending_sum:
            self.counted = self.pending
        self.pending, self.pending_sum = statistics, number
        return statistics - self.counted

    @property
    def regret(self) -> float:
        return float(self.total - self.squared.min()) if self.squared.size else 0.0

    def errors(self) -> dict[str, Any]:
        return {"total_samples": int(self.samples), "total_squared_error": float(self.total)}

    def report(self) -> dict[str, Any]:
        return {**self.errors(), "regret": self.regret, "largest_loss": float(self.largest)}


# -- computations on the samples of a message


class Predictions(NamedTuple):
    """Predictions of all kernels for a round's samples, before any update."""

    z: Real  # (B, N, 2D)
    kernels: Floats  # (B, N)
    squared: Floats  # (B, N)
    losses: Floats  # (B, N)
    y: Floats  # (B,), centred


def message_features(request: wire.DictionaryRequest, dimension: int) -> FeatureMap:
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
    """Return the weights after the last booked sample, (N,)."""
    rule = known_word(request.weight_rule, WEIGHT_RULES)
    return current_weights(rule, account.losses, account.gap, request.learning_rate)


def compare(z: Real, theta: Real, y: NDArray[Any], request: wire.DictionaryRequest) -> Predictions:
    """Predict with every kernel and compare with the centred labels."""
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
    residual = 2.0 * (seen.kernels[0] - seen.y[0])
    rule.update(theta, residual[:, None] * seen.z[0] + 2.0 * request.regularization * theta)


def learn_between(seen: Predictions, request: wire.PersonalRequest, squared: Floats) -> Predictions:
    """Predict each sample of a message with parameters that have learned the earlier ones.

    The learning copy starts from the message's parameters and is dropped after it. Steps are
    AdaGrad-norm: as features have length one, the squared lengths of the gradients are four times
    the squared errors so far, (N,).
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
    """Return the kernels of this client's gradients, and their probabilities."""
    labels = ("kernels", partition, request.round)
    many, exploration = request.kernels_per_round, request.exploration
    if many >= weights.size:
        return np.arange(weights.size, dtype=np.int32), np.ones(weights.size)
    if request.selection == "shared":
        return request.kernels_summed(), np.full(many, request.chance())
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
    """Return the chosen kernels' gradients over p, summed over samples (eq. 9), (M, 2D).

    With chosen frequencies only theirs, sine and cosine, (frequencies, 2).
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
    return request.pick(gradient)


def message_sum(request: Any, x: NDArray[Any], y: NDArray[Any]) -> Floats:
    """Return the contribution of a client with a budget, from the request and samples alone."""
    labels = np.asarray(y, np.float64) - request.centre
    if isinstance(request, wire.RidgeRequest):
        return private.ridge_sum(request, x, labels)
    seen = compare(message_features(request, x.shape[1])(x), request.theta, labels, request)
    residuals = private.clipped(seen.kernels - labels[:, None], request.clip)
    losses = private.clipped_losses(residuals, request.clip) if request.losses() else np.zeros(0)
    chosen = request.kernels_summed()
    gradient = private.weighed_features(residuals[:, chosen], seen.z[:, chosen])
    return np.concatenate([request.pick(gradient).ravel(), losses])


def learn_alone(
    request: wire.LocalRequest, account: StreamAccount, x: NDArray[Any], y: NDArray[Any]
) -> tuple[Real, Floats, Floats]:
    """Learn sample by sample; return parameters, squared errors and regrets so far."""
    kernels, y = len(account.losses), y - request.centre
    features = message_features(request, x.shape[1])
    theta = np.zeros((kernels, 2 * request.features))
    rule = step_rule(known_word(request.step_size, ("paper", "adaptive")), kernels, request.samples)
    squared_errors, regrets = np.empty((2, request.samples))
    for t in range(request.samples):
        z = features(x[t : t + 1])
        seen = compare(z, theta.astype(request.precision), y[t : t + 1], request)
        weights, losses, account.gap = weigh_samples(request, account, seen.losses)
        book(account, seen, losses, weights)
        squared_errors[t], regrets[t] = account.total, account.regret
        learn_sample(theta, seen, request, rule)
    account.own = [theta.ravel()]
    return theta.astype(request.precision), squared_errors, regrets


def predict_rows(
    request: wire.DictionaryRequest, theta: Real, weights: Floats, x: NDArray[Any]
) -> Floats:
    features, parts = message_features(request, x.shape[1]), [np.zeros(0)]
    for start in range(0, len(x), _CHUNK):
        z = features(x[start : start + _CHUNK])
        parts.append(np.vecdot(z, theta) @ weights)
    return np.concatenate(parts) + request.centre


def book(
    account: StreamAccount, seen: Predictions, losses: Floats, weights: Floats
) -> StreamAccount:
    """Record a round's samples; ``weights`` (N,) or (B, N) made the predictions (eq. 6)."""
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
