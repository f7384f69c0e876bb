"""Hops of the paper's chain: partial products on their way from party to party.

Forward, a matrix begins as diag(p) times ones and is multiplied, entry by entry, with the kernel
block of each party; the hospital at the end multiplies its own and sums the rows: K_h p
(Algorithm 2, lines 9-18). Backward, a matrix begins at the hospital as diag(K_h p) K_h and is
multiplied with the centres' blocks; the last one sums the columns: K_h^T K_h p, which goes to the
server (lines 23-29). Between parties the matrices are sealed end to end.

As printed the algorithm exchanges the roles of eta and v at lines 36 and 46 of Algorithm 1, so that
the gradient has the wrong sign, and does not reset its accumulators. Here v belongs to one hospital
and the first backward pass carries v - eta = K alpha - y.

What it shows: a party knows p and its own block, so it divides both out of what comes and has the
product of the blocks before it, on the way back of those behind it; the server sees K_h^T K_h p of
each hospital and, at the start, v.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.secure_sum.envelope import seal_message, unseal_message
from fedkern_flwr.seeding import derive_seed

from .fed_cg_kernel import HospitalKernel
from .fed_cg_landmarks import LandmarkedParty

Floats = NDArray[np.float64]


def make_hops(
    client: LandmarkedParty, request: wire.ChainRequest, kernel: Callable[[], HospitalKernel]
) -> wire.ChainReply:
    """Answer a request: one hop for each hospital that it names; ``kernel`` is a hospital's own."""
    if client.protocol != "chain":
        raise ProtocolError(
            "partial products leave a node in protocol 'chain' only", party=client.name
        )
    sent: list[NDArray[np.uint8]] = []
    residual = np.zeros((0, 1))
    for k, hospital in enumerate(request.hospitals.tolist()):
        rows = client.kept.arrays[f"rows/{hospital}"][
            int(request.starts[k]) : int(request.stops[k])
        ]
        before, after = int(request.froms[k]), int(request.tos[k])
        back = bool(request.backwards[k])
        block = client.block_kernel(rows)
        place = ("chain", request.session, request.purpose, hospital)
        if before >= 0:
            come = (*place, before, client.partition, int(back))
            plain = unseal_message(client.pair_secret(before), request.received[k].tobytes(), *come)
            matrix = np.frombuffer(plain, "<f8")
            if matrix.size != block.size:
                raise ProtocolError("a partial product of the wrong size", party=client.name)
            block *= matrix.reshape(block.shape)
        elif not back:
            block *= request.vector[:, 0]
        if hospital == client.partition:
            vector = block.sum(axis=1)[:, None]  # K_h p
            if request.purpose == "evaluate":
                client.kept.arrays["predictions"] = vector
                sent.append(np.zeros(0, np.uint8))
                continue
            if request.purpose == "start":
                vector, residual = _start(client, kernel(), vector)
            block = client.block_kernel(rows) * vector
            back = True
        if after >= 0:
            go = (*place, client.partition, after, int(back))
            data = np.ascontiguousarray(block, "<f8").tobytes()
            sealed = seal_message(client.pair_secret(after), data, *go)
            sent.append(np.frombuffer(sealed, np.uint8))
        else:  # for the server
            sent.append(np.frombuffer(block.sum(axis=0).astype("<f8").tobytes(), np.uint8))
    return wire.ChainReply(residual=residual, sent=tuple(sent))


def label_noise(seed: int, partition: int, rows: int) -> Floats:
    """Return eta, uniform on [0, 1], from a seed that all parties know, shape (rows, 1)."""
    rng = np.random.default_rng(derive_seed(seed, "label noise", partition))
    return np.asarray(rng.random((rows, 1)))


def _start(
    client: LandmarkedParty, kernel: HospitalKernel, product: Floats
) -> tuple[Floats, Floats]:
    """Return (K alpha - y, v = K alpha - y + eta); the server is shown v (line 20)."""
    gradient = product - kernel.targets()
    seed = int(client.kept.settings["public_seed"])
    return gradient, gradient + label_noise(seed, client.partition, len(gradient))
