"""Inversion of PerFedAvg's gradients: the first layer of a network shows its input.

For one sample the gradient of the first layer's weights is x delta^T, where delta, the gradient of
its biases, travels as well: x is their quotient. Behind a fixed projection, whose seed is public,
it is the row of least norm with that projection. The last bias has 2 (f - y), and f is nearly the
output of the network that was sent, as a client adapts it by one small step only.

Source: Phong et al., "Privacy-Preserving Deep Learning via Additively Homomorphic Encryption",
IEEE TIFS 2018, section 3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.online.network import predict, project

from .gradient_inversion import Inversion

Floats = NDArray[np.float64]

_EXPLAINED = 1e-4  # of float32


def invert_network(
    gradient: Floats, parameters: Floats, layers: bytes, seed: int, dimension: int
) -> Inversion | None:
    """Compute x and about y of the one sample from which a gradient was made.

    Parameters
    ----------
    gradient, parameters : ndarray, shape (parameters,)
        The gradient, and the network that was sent.
    layers : bytes
        Widths of the layers as little-endian int32.
    seed : int
        Of the projection.
    dimension : int
        Number d of features.

    Returns
    -------
    Inversion or None
        None where no neuron of the first layer is active.
    """
    widths = np.frombuffer(layers, "<i4").tolist()
    first, second = widths[:2]
    outer = gradient[: first * second].reshape(first, second)
    delta = gradient[first * second : (first + 1) * second]
    size = float(delta @ delta)
    if not size:
        return None
    inputs = outer @ delta / size
    missing = np.linalg.norm(outer - np.outer(inputs, delta))
    misfit = float(missing / max(float(np.linalg.norm(outer)), np.finfo(np.float64).tiny))
    y = float(predict(parameters, widths, inputs[None])[0] - gradient[-1] / 2.0)
    x = inputs
    if first != dimension:
        projection = project(np.eye(dimension), first, seed)
        x = np.asarray(np.linalg.lstsq(projection.T, inputs, rcond=None)[0], np.float64)
    return Inversion(x, y, misfit, bool(misfit < _EXPLAINED))
