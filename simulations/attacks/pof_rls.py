"""POF-RLS against its clients: the sums of the others, from the inverses that each client gets.

A client goes on learning between messages, for which it needs (P + lambda I)^-1, where P is the sum
of Phi^T Phi over all rows so far of all clients. It inverts that, takes off lambda and the products
of its own rows, and has the sum over the others. P times the coefficients is Phi^T y, likewise.
What that sum shows is what any sum of so few rows shows: the release limit counts for it the rows
of all others but the largest.

Source: follows from what :mod:`fedkern_flwr.strategies.pof_rls` sends.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkern_flwr.online import messages as wire
from fedkern_flwr.online import ridge

from ...clients import OnlineKernelClient
from ...strategies import POFRLS
from ..engines import Transcript, simulate
from .phases import Floats
from .pof_mkl import CLIENTS, SAMPLES, OnlineRun, streams
from .table import Seen, served


def products(rows: Floats, centre: float) -> tuple[Floats, Floats]:
    """Return Phi^T Phi and Phi^T y of rows with labels, (..., d + 1), on raw columns."""
    flat = rows.reshape(-1, rows.shape[-1])
    phi, y = ridge.raw_rows(flat[:, :-1]), flat[:, -1] - centre
    return phi.T @ phi, phi.T @ y


def sums_of_others(request: wire.RidgeRequest, own: Floats) -> tuple[Floats, Floats]:
    """Return Phi^T Phi and Phi^T y of all others' rows so far, as a client computes them.

    ``own`` are its rows before the message, with labels.
    """
    p = own.shape[1]
    inverse, theta = ridge.unpack(request.starts[: ridge.numbers(p)], p)
    total = np.linalg.inv(inverse)
    mine = products(own, request.centre)
    return total - request.regularization * np.eye(p) - mine[0], total @ theta - mine[1]


def recovered(seed: int, **options: Any) -> Seen:
    """Run POF-RLS; return what its first client computes of the others in the last message."""
    rows, transcript = streams(seed), Transcript()

    def client(context: Any, k: int) -> OnlineKernelClient:
        return OnlineKernelClient(context, rows[k, :, :-1], rows[k, :, -1])

    strategy = POFRLS(seed=seed, **options)
    simulate(strategy, served(client), CLIENTS, transcript=transcript, num_rounds=SAMPLES)
    last = list(OnlineRun(transcript).requests(wire.RidgeRequest, 0))[-1]
    found = sums_of_others(last, rows[0, : last.step])
    true = products(rows[1:, : last.step], last.centre)
    error = max(np.abs(f - t).max() / np.abs(t).max() for f, t in zip(found, true, strict=True))
    said = "inverses from which each client computes the sums of all others"
    return Seen("client", max(0.0, 1.0 - float(error)), said, strategy.privacy())


def on_plain(seed: int) -> list[Seen]:
    """Compute the others' sums in a plain run."""
    return [recovered(seed, secure=False)]


def on_default(seed: int) -> list[Seen]:
    """Compute the others' sums in a run with secure sums: masks do not change what clients get."""
    return [recovered(seed, secure=True)]
