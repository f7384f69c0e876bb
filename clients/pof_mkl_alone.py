"""A client that learns from its stream alone, with what POF-MKL learns with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.learning import step_rule

from .pof_mkl_samples import (
    book,
    compare,
    known_word,
    learn_sample,
    message_features,
    weigh_samples,
    weights_now,
)

if TYPE_CHECKING:
    from .pof_mkl import OnlineKernelClient


def learn_alone(client: OnlineKernelClient, request: wire.LocalRequest) -> wire.LocalReply:
    """Learn sample by sample; return running totals, and the error on the held-out rows.

    Raises
    ------
    ProtocolError
        The run takes secure sums, and errors are told in plain.
    """
    if client.sums is not None:
        raise ProtocolError(
            "its errors are told in runs without secure sums",
            party=client.name,
            code="FK-ORDER-PLAIN",
        )
    kernels = len(request.bandwidths) // 8
    account = client.kept.of(kernels)
    x, y = client._rows(request.step, request.samples)
    y = y - request.centre
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
    found = theta.astype(request.precision)
    error = client._test_error(features, found, weights_now(request, account), request.centre)
    told = np.array([len(client.y_test), error])
    tests, error = client.figures("held-out rows", np.arange(len(client.y_test)), told, alone=True)
    return wire.LocalReply(
        test_samples=int(tests),
        test_squared_error=float(error),
        squared_errors=squared_errors,
        regrets=regrets,
        **account.report(),
    )
