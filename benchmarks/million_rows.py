"""FedCG and FDSKL on a million rows, beside Nyström ridge regression of the pooled table.

A made table of 18 columns, in sizes that Falkon's authors use (SUSY): classes by a wave and a
square of mixed columns, with noise; 20,000 further rows are held out. FedCG and FDSKL run as
``fedkern run`` does, in a process of their own, all parties in it; its peak memory and CPU seconds
are those of all parties together, reading the table included. The pooled model takes 500 rows as
landmarks, width and penalty by 20,000 rows of its own; it is solved in chunks of rows.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import Record, in_own_process, new_table, peak_memory, run_script
from numpy.typing import NDArray
from rich.console import Console
from scipy import linalg
from scipy.spatial.distance import cdist

Floats = NDArray[np.float64]

COLUMNS, TESTS, CHOICE, CENTRES, CHUNK = 18, 20_000, 20_000, 500, 20_000
WIDTHS, PENALTIES = (0.25, 1.0, 4.0, 16.0), (1e-3, 1e-5, 1e-7)


def write_table(path: Path, rows: int) -> None:
    """Write the table, held-out rows in arrays of their own."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((rows + TESTS, COLUMNS))
    s = z @ rng.standard_normal((COLUMNS, 3)) / np.sqrt(COLUMNS)
    f = 1.2 * s[:, 0] + 1.5 * np.sin(2.0 * s[:, 1]) + s[:, 2] ** 2 - 1.0
    y = (f / f.std() + 0.45 * rng.standard_normal(len(f)) > 0.0).astype(float)
    x = z @ (0.3 * rng.standard_normal((COLUMNS, COLUMNS)) + np.eye(COLUMNS))
    np.savez(path, X=x[:rows], y=y[:rows], X_test=x[rows:], y_test=y[rows:])


@dataclass
class Nystroem:
    """Ridge regression on Gaussian kernel values of landmarks."""

    landmarks: Floats
    gamma: float

    def features(self, x: Floats) -> Floats:
        """Return kernel values, shape (rows, landmarks)."""
        return np.asarray(np.exp(-self.gamma * cdist(x, self.landmarks, "sqeuclidean")))

    def equations(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Return K^T K / n and K^T y / n, chunk by chunk."""
        m = len(self.landmarks)
        gram, right = np.zeros((m, m)), np.zeros(m)
        for start in range(0, len(x), CHUNK):
            k = self.features(x[start : start + CHUNK])
            gram += k.T @ k
            right += k.T @ y[start : start + CHUNK]
        return gram / len(x), right / len(x)


def solve(gram: Floats, right: Floats, penalty: float) -> Floats:
    """Return the coefficients."""
    scale = penalty * np.trace(gram) / len(gram)
    return np.asarray(linalg.solve(gram + scale * np.eye(len(gram)), right, assume_a="pos"))


def pooled(path: str) -> dict[str, Any]:
    """Fit the pooled model."""
    with np.load(path) as found:
        x, y, tests = found["X"], 2.0 * found["y"] - 1.0, found["X_test"]
        wanted = found["y_test"] > 0.5
    middle, spread = x.mean(axis=0), x.std(axis=0)
    x, tests = (x - middle) / spread, (tests - middle) / spread
    rows = np.random.default_rng(1).permutation(len(x))
    few = min(CHOICE, len(rows) // 2)
    sample, held = rows[:few], rows[few : 2 * few]
    scores = {}
    for width in WIDTHS:
        model = Nystroem(x[rows[:CENTRES]], width / COLUMNS)
        gram, right = model.equations(x[sample], y[sample])
        values = model.features(x[held])
        for penalty in PENALTIES:
            guess = values @ solve(gram, right, penalty)
            scores[width, penalty] = float(((guess > 0.0) == (y[held] > 0.0)).mean())
    width, penalty = max(scores, key=lambda key: scores[key])
    model = Nystroem(x[rows[:CENTRES]], width / COLUMNS)
    w = solve(*model.equations(x, y), penalty)
    return {"accuracy": float(((model.features(tests) @ w > 0.0) == wanted).mean())}


def federated(path: str, command: list[str]) -> dict[str, Any]:
    """Run a method by the command line; return what it got and what it sent."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        program = str(Path(sys.executable).parent / "fedkern")
        asked = [program, "run", *command, "--data", path, "--json", str(file)]
        subprocess.run([*asked, "--quiet", "--out", f"{folder}/out"], check=True, cwd=folder)
        found = json.loads(file.read_text())
    result = next(iter(found["methods"].values())) if "methods" in found else found
    return {
        "accuracy": result["metrics"]["test_accuracy"],
        "exchanges": result["exchanges"],
        "bytes": result["bytes_up"],
    }


def run(kind: str, path: str, command: list[str]) -> dict[str, Any]:
    """Run one of them; add CPU seconds and peak memory of its process."""
    found = pooled(path) if kind == "pooled" else federated(path, command)
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    usage = next(one for one, of in zip(own, ("pooled", kind), strict=True) if of == kind)
    peak = peak_memory() if kind == "pooled" else usage.ru_maxrss * 1024
    return {**found, "cpu": usage.ru_utime + usage.ru_stime, "peak": peak}


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Make the table and run all of them on it."""
    if options.one:
        print(json.dumps(run(**json.loads(options.one))))
        return []
    rows = 20_000 if options.quick else options.rows
    commands = {
        "FedCG": ["fed-cg", "--hospitals", "3", "--centres", "2"],
        "FDSKL": ["fdskl", "--parties", "3", "--features", str(options.features)],
        "pooled": [],
    }
    commands["FedCG"] += ["--landmarks", str(options.landmarks)]
    table = new_table(
        f"{rows:,} rows, {COLUMNS} columns",
        "method | accuracy | CPU s | peak GB | exchanges | GB up",
        text="method",
    )
    records = []
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.npz"
        write_table(path, rows)
        for kind, command in commands.items():
            found = in_own_process(
                __file__, {"kind": kind, "path": str(path), "command": command}, threads=1
            )
            console.print(kind, found)
            cells = f"{found['accuracy']:.4f}", f"{found['cpu']:.0f}", f"{found['peak'] / 1e9:.2f}"
            sent = f"{found['bytes'] / 1e9:.2f}" if "bytes" in found else ""
            table.add_row(kind, *cells, str(found.get("exchanges", "")), sent)
            records.append(Record(f"{kind}, {rows:,} rows", found["accuracy"], "accuracy"))
    console.print(table)
    return records


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        rows=1_000_000,
        landmarks=(200, "of FedCG"),
        features=(300, "directions of FDSKL"),
    )
