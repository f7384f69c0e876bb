"""A small ReLU network with its gradient, for the baseline PerFedAvg."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..seeding import derive_seed

Floats = NDArray[np.float64]

HIDDEN_WIDTH = 20
PARAMETER_CAP = 1000


def plan_layers(dimension: int) -> tuple[int, ...]:
    """Return the widths of the largest allowed network: hidden layers of 20 neurons, one output.

    At most 1000 parameters may be sent per round (Ghari and Shen 2022, appendix C). If one hidden
    layer on all features exceeds that, a fixed projection to 20 dimensions precedes.
    """
    widths = [dimension, HIDDEN_WIDTH, 1]
    if count_parameters(widths) > PARAMETER_CAP:
        widths[0] = HIDDEN_WIDTH
    while count_parameters([*widths[:-1], HIDDEN_WIDTH, 1]) <= PARAMETER_CAP:
        widths.insert(-1, HIDDEN_WIDTH)
    return tuple(widths)


def count_parameters(widths: Sequence[int]) -> int:
    return sum((a + 1) * b for a, b in pairwise(widths))


def initial_parameters(widths: Sequence[int], seed: int) -> Floats:
    rng = np.random.default_rng(derive_seed(seed, "network"))
    parts = []
    for a, b in pairwise(widths):
        parts += [rng.standard_normal(a * b) * np.sqrt(2.0 / a), np.zeros(b)]
    return np.concatenate(parts)


def project(x: Floats, width: int, seed: int) -> Floats:
    """Map rows to ``width`` dimensions by a fixed, seeded Gaussian matrix."""
    if x.shape[1] == width:
        return x
    rng = np.random.default_rng(derive_seed(seed, "projection"))
    matrix: Floats = rng.standard_normal((x.shape[1], width)) / np.sqrt(width)
    return np.asarray(x @ matrix)


def _split(parameters: Floats, widths: Sequence[int]) -> list[tuple[Floats, Floats]]:
    layers, start = [], 0
    for a, b in pairwise(widths):
        weights = parameters[start : start + a * b].reshape(a, b)
        start += a * b
        layers.append((weights, parameters[start : start + b]))
        start += b
    return layers


def predict(parameters: Floats, widths: Sequence[int], x: Floats) -> Floats:
    """Return the outputs, (n,), for rows x, (n, widths[0])."""
    layers = _split(parameters, widths)
    for weights, bias in layers[:-1]:
        x = np.maximum(x @ weights + bias, 0.0)
    return np.asarray((x @ layers[-1][0] + layers[-1][1])[:, 0])


def squared_loss_gradient(
    parameters: Floats, widths: Sequence[int], x: Floats, y: Floats
) -> tuple[Floats, Floats]:
    """Return the outputs and the flat gradient of sum (output - y)^2."""
    layers, inputs = _split(parameters, widths), [x]
    for weights, bias in layers[:-1]:
        inputs.append(np.maximum(inputs[-1] @ weights + bias, 0.0))
    output = (inputs[-1] @ layers[-1][0] + layers[-1][1])[:, 0]
    back = (2.0 * (output - y))[:, None]
    parts: list[Floats] = []
    for (weights, _), entering in zip(reversed(layers), reversed(inputs), strict=True):
        parts[:0] = [(entering.T @ back).ravel(), back.sum(axis=0)]
        back = (back @ weights.T) * (entering > 0.0)
    return output, np.concatenate(parts)


def adapt(
    parameters: Floats, widths: Sequence[int], inputs: Floats, y: Floats, step: float
) -> Floats:
    if not len(y):
        return parameters
    return parameters - step * squared_loss_gradient(parameters, widths, inputs, y)[1] / len(y)
