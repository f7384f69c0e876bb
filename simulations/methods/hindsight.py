"""The server's regret: against the best kernel's fit to all rows, known only in hindsight."""

from __future__ import annotations

import numpy as np

from fedkern_flwr.kernels.random_features import FeatureMap

from ...strategies import Method
from ...strategies.pof_mkl import KernelLearning
from .online_data import Streams

_CHUNK = 512  # rows at a time: memory 512 * N * 2D numbers


def server_regret(strategy: Method, prepared: Streams) -> float | None:
    """Return the squared error of all predictions above that of the best kernel (eq. 12).

    The best kernel is the one whose ridge fit, with the method's own features and lambda, has the
    smallest squared error over the rows of all clients. Needs the pooled data: simulations only.

    Parameters
    ----------
    strategy : Method
        After its run.
    prepared : Streams
        The data of the run.

    Returns
    -------
    float or None
        None for methods without kernels.

    References
    ----------
    Ghari and Shen, NeurIPS 2022, eq. 12.
    """
    if not isinstance(strategy, KernelLearning):
        return None
    shards = prepared.clients.shards
    x = np.concatenate([shard.x[: prepared.rounds] for shard in shards])
    y = np.concatenate([shard.y[: prepared.rounds] for shard in shards]) - strategy.centre
    options = strategy.options()
    features = FeatureMap(
        strategy.bandwidths.astype("<f8").tobytes(),
        x.shape[1],
        strategy.features,
        options["seed"],
        strategy.precision,
        options["frequency_draw"],
    )
    width = 2 * strategy.features
    gram = np.zeros((strategy.kernels, width, width))
    moment = np.zeros((strategy.kernels, width))
    for start in range(0, len(x), _CHUNK):
        z = features(x[start : start + _CHUNK]).astype(np.float64).transpose(1, 0, 2)
        gram += z.transpose(0, 2, 1) @ z
        moment += np.einsum("nbw,b->nw", z, y[start : start + _CHUNK])
    ridge = max(strategy.regularization, 1e-9) * len(x) * np.eye(width)
    theta = np.linalg.solve(gram + ridge, moment[..., None])[..., 0]
    fitted = np.einsum("nw,nwv,nv->n", theta, gram, theta) - 2.0 * np.vecdot(theta, moment)
    best = float((y @ y + fitted).min())
    return float(strategy.metrics_["mse"] * len(x)) - best
