"""One step of a POF-RLS client: predict, mix, learn, sum; per sample, in CPU time.

Streams of 15 columns as naval has; ``D`` frequencies of each kernel, ``B`` samples per message.
With its state, the client's own learners are read from bytes before a message and written after it,
as they are in Flower's context. Global learners come with the request, as in a plain run.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from common import Record, new_table, run_script
from rich.console import Console

from fedkern_flwr.clients.pof_mkl_account import StreamAccount
from fedkern_flwr.clients.pof_rls import learn_samples
from fedkern_flwr.online import ridge
from fedkern_flwr.online.messages import RidgeRequest

DIMENSION, LAMBDA, FORGETTING = 15, 1e-3, 0.98


def request_of(kernels: int, features: int, samples: int) -> RidgeRequest:
    """Return what the server asks for in the middle of a plain run."""
    rng = np.random.default_rng(0)
    starts = []
    for many, width in ((2, DIMENSION + 1), (2 * kernels, 2 * features)):
        z = rng.standard_normal((4 * width, width)) / np.sqrt(width)
        total = ridge.sums(z, z @ rng.standard_normal(width))
        starts += [ridge.solve(total, width, LAMBDA)] * many
    return RidgeRequest(
        session="bench",
        round=1,
        step=0,
        samples=samples,
        window=0,
        experts="all",
        kernels=kernels,
        features=features,
        bandwidths=ridge.widths(kernels, 2.0),
        seed=0,
        regularization=LAMBDA,
        forgetting=FORGETTING,
        centre=0.5,
        raw=True,
        summed=features,
        shared=kernels,
        sums=True,
        begun=True,
        inverses=2,
        starts=np.concatenate(starts),
    )


def milliseconds(
    kernels: int, features: int, samples: int, repetitions: int, *, state: bool
) -> float:
    """Return the lower decile of the CPU time of a sample: others use the machine's caches."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-1.0, 1.0, (samples, DIMENSION)) / np.sqrt(DIMENSION)
    y, account = rng.uniform(0.0, 1.0, samples), StreamAccount()
    request, times = request_of(kernels, features, samples), []
    for _ in range(repetitions):
        began, kept = time.process_time(), b""
        if state:
            kept = account.pack() if account.samples else b""
            account = StreamAccount.unpack(kept)
        learn_samples(request, account, lambda start, many: (x, y))
        times.append(1e3 * (time.process_time() - began) / samples)
    return statistics.quantiles(times[1:], n=10)[0]


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Print a table of CPU time per sample."""
    table = new_table("ms per sample", "kernels | D | B | calculation | with state")
    records = []
    for kernels, features in ((1, 20), (10, 20), (10, 100)):
        for samples in (1, 10, 50):
            many = 5 if options.quick else 100
            both = [
                milliseconds(kernels, features, samples, many, state=one) for one in (False, True)
            ]
            table.add_row(str(kernels), str(features), str(samples), *(f"{t:.2f}" for t in both))
            name = f"{kernels} kernels, D={features}, B={samples}"
            records.append(Record(name, both[0], "ms per sample"))
    console.print(table)
    return records


if __name__ == "__main__":
    run_script(__doc__, measure)
