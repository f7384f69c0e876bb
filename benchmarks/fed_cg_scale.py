"""FedCG against the same normal equations on pooled data in plain NumPy.

Both do the same: Gaussian kernel values of all rows and m landmarks, K^T K, K^T y, solve. The
yardstick does it in chunks of rows with BLAS and nothing else. FedCG runs through the in-process
engine: it joins rows by hashed ids, encodes, masks, sums and delivers the distances of every row to
every landmark, checks every message, and pays for all parties one after the other. Each run is a
process of its own, so its peak memory is its own too; the two are interleaved. Seconds count from
when the tables are there to the coefficients at the hospitals. CPU time includes threads of BLAS
that wait for work.

``--bits 32`` sums distances in half as many bytes, see ``distance_bits`` of FedCG.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from common import Record, in_own_process, new_table, peak_memory, run_script
from flwr.app import Context
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from scipy import linalg

from fedkern_flwr.clients import HybridKernelClient
from fedkern_flwr.hybrid.landmarks import draw_landmarks, public_seed
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import FedCG

Floats = NDArray[np.float64]

GOAL_RATIO, GOAL_BYTES = 3.0, 4e9
GAMMA, REGULARIZATION = 1.0 / 40, 1e-3
KEY = b"the parties' alignment key"
TESTS = 1000  # rows on which the two models are compared
CHUNK = 4096  # rows of the yardstick at a time


@dataclass(frozen=True)
class Size:
    """Rows, features, landmarks, hospitals and centres of a problem; bits of its distances."""

    n: int
    d: int
    m: int
    hospitals: int
    centres: int
    bits: int

    def table(self) -> tuple[Floats, Floats]:
        """Return features in [0, 1] and a smooth target in [-1, 1]."""
        rng = np.random.default_rng(0)
        x = rng.random((self.n, self.d))
        weights = rng.standard_normal(self.d) / np.sqrt(self.d)
        return x, np.sin(4.0 * (x - 0.5) @ weights)

    @property
    def columns(self) -> list[NDArray[np.intp]]:
        """Columns of the hospitals' block and of each centre's."""
        return np.array_split(np.arange(self.d), 1 + self.centres)

    @property
    def blocks(self) -> list[str]:
        """Names of the blocks."""
        return ["clinical", *(f"centre {self.hospitals + c}" for c in range(self.centres))]

    def landmarks(self) -> Floats:
        """Return all landmarks, which no party of FedCG sees."""
        return np.hstack(
            [
                draw_landmarks(public_seed(0, name), self.m, np.tile([0.0, 1.0], (len(own), 1)))
                for name, own in zip(self.blocks, self.columns, strict=True)
            ]
        )


def kernel(x: Floats, landmarks: Floats) -> Floats:
    """Return kernel values, shape (rows, m): one matrix product, the rest in place."""
    out = x @ (-2.0 * landmarks).T
    out += (x**2).sum(1)[:, None]
    out += (landmarks**2).sum(1)
    np.maximum(out, 0.0, out=out)
    out *= -GAMMA
    return np.exp(out, out=out)


def pooled(size: Size) -> dict[str, Any]:
    """Solve the normal equations of pooled data."""
    x, y = size.table()
    landmarks = size.landmarks()
    started, busy = time.perf_counter(), time.process_time()
    gram, right = np.zeros((size.m, size.m)), np.zeros(size.m)
    for start in range(0, size.n, CHUNK):
        k = kernel(x[start : start + CHUNK], landmarks)
        gram += k.T @ k
        right += k.T @ y[start : start + CHUNK]
    gram[np.diag_indices(size.m)] += REGULARIZATION
    coefficients = linalg.cho_solve(linalg.cho_factor(gram, lower=True), right)
    return {
        "seconds": time.perf_counter() - started,
        "busy": time.process_time() - busy,
        "coefficients": coefficients.tolist(),
    }


class Parties:
    """``client_fn``: hospitals first, then centres, whose rows stand in orders of their own."""

    def __init__(self, size: Size, folder: str) -> None:
        x, y = size.table()
        self.hospitals, self.folder = size.hospitals, folder
        ids = np.arange(size.n).astype(str)
        landmark_seeds = [public_seed(0, name) for name in size.blocks]
        self.tables: list[dict[str, Any]] = []
        order = np.random.default_rng(1).permutation(size.n)
        for rows in np.array_split(order, size.hospitals):
            block = np.ascontiguousarray(x[np.ix_(rows, size.columns[0])])
            self.tables.append(
                {"x": block, "y": y[rows], "ids": ids[rows], "landmark_seed": landmark_seeds[0]}
            )
        for c, own in enumerate(size.columns[1:]):
            rows = np.random.default_rng(2 + c).permutation(size.n)
            block = np.ascontiguousarray(x[np.ix_(rows, own)])
            self.tables.append(
                {"x": block, "ids": ids[rows], "landmark_seed": landmark_seeds[1 + c]}
            )

    def __call__(self, context: Context) -> HybridKernelClient:
        """Build the client of a node."""
        partition = int(context.node_config["partition-id"])
        return HybridKernelClient(
            context, **self.tables[partition], alignment_key=KEY, state_dir=self.folder
        )


def federated(size: Size) -> dict[str, Any]:
    """Run FedCG."""
    with tempfile.TemporaryDirectory() as folder:
        parties = Parties(size, folder)
        strategy = FedCG(
            landmarks=size.m,
            sampling="U",
            gamma=GAMMA,
            regularization=REGULARIZATION,
            solver="normal-equations",
            distance_bits=size.bits,
        )
        started, busy = time.perf_counter(), time.process_time()
        simulate(strategy, parties, size.hospitals + size.centres)
        seconds, busy = time.perf_counter() - started, time.process_time() - busy
    ledger = strategy.ledger_
    return {
        "seconds": seconds,
        "busy": busy,
        "coefficients": strategy.coefficients_[:, 0].tolist(),
        "exchanges": ledger.exchanges,
        "parts": ledger.by_phase["hybrid-distances"],
        "up": ledger.bytes_up,
        "down": ledger.bytes_down,
    }


def compare(size: Size, repetitions: int) -> tuple[dict[str, Any], dict[str, Any], float]:
    """Interleave both; return the best run of each and how far the two models differ."""
    runs: dict[str, list[dict[str, Any]]] = {"pooled": [], "federated": []}
    for _ in range(repetitions):
        for kind, found in runs.items():
            found.append(in_own_process(__file__, {"kind": kind, **asdict(size)}))
    best = [min(found, key=lambda run: run["seconds"]) for found in runs.values()]
    rows = np.random.default_rng(9).random((TESTS, size.d))
    values = kernel(rows, size.landmarks())
    own, other = (values @ np.array(run["coefficients"]) for run in best)
    return best[0], best[1], float(np.abs(own - other).max())


def row(size: Size, repetitions: int) -> tuple[list[str], float]:
    """Measure one size; return its row of the table, and the ratio of CPU times."""
    plain, ours, difference = compare(size, repetitions)
    ratio = ours["busy"] / plain["busy"]
    cells = [
        f"{ours['seconds'] / plain['seconds']:.2f}",
        f"{ratio:.2f}",
        f"{size.n:,}",
        f"{size.m:,}",
        f"{ours['seconds']:.2f}",
        f"{ours['busy']:.2f}",
        f"{plain['seconds']:.2f}",
        f"{plain['busy']:.2f}",
        f"{ours['peak'] / 1e9:.2f}",
        f"{plain['peak'] / 1e9:.2f}",
        f"{ours['exchanges']} ({ours['parts']})",
        f"{ours['up'] / 1e9:.2f}",
        f"{difference:.0e}",
    ]
    return cells, ratio


def run(kind: str, **values: int) -> dict[str, Any]:
    """Run one of both at a size."""
    found = {"pooled": pooled, "federated": federated}[kind](Size(**values))
    return {**found, "peak": peak_memory()}


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Measure the largest problem, then how time grows with rows and landmarks."""
    if options.one:
        print(json.dumps(run(**json.loads(options.one))))
        return []
    n, m = (200_000, 1000) if options.full else (options.n, options.m)
    if options.quick:
        n, m = 20_000, 200
    shape = options.d, options.hospitals, options.centres, options.bits

    def size(n: int, m: int) -> Size:
        return Size(n, shape[0], m, *shape[1:])

    sizes = [size(n, m)]
    if not (options.no_growth or options.quick):
        sizes += [size(n >> k, m) for k in (1, 2, 3)]
        sizes += [size(n, m >> k) for k in (1, 2)]
    table = new_table(
        f"FedCG, secure, {shape[1]} hospitals, {shape[2]} centres, {shape[0]} features, "
        f"{shape[3]} bits: goal is a ratio of {GOAL_RATIO:g} and {GOAL_BYTES / 1e9:g} GB",
        "ours /\npooled | of CPU\ntime | n | m | ours\ns | \nCPU s | pooled\ns | "
        "\nCPU s | ours\nGB | pooled\nGB | exchanges\n(distances) | GB up | "
        "most that\nf differs",
    )
    records = []
    for each in track(sizes, transient=True):
        cells, ratio = row(each, 3 if options.quick else options.repetitions)
        table.add_row(*cells)
        name = f"n = {each.n:,}, m = {each.m:,}, {each.bits} bits"
        records.append(Record(name, ratio, "CPU time, ours / pooled", "lower"))
    console.print(table)
    return records


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        n=(50_000, "most rows"),
        d=(40, "features"),
        m=(500, "most landmarks"),
        hospitals=4,
        centres=3,
        repetitions=1,
        full=(False, "--n 200000 --m 1000"),
        bits=(64, "of distances, 32 or 64"),
        no_growth=(False, "only the largest problem"),
    )
