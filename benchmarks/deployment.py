"""Every method deployed on this machine, beside the same run in process.

Starts a SuperLink and SuperNodes with TLS and node authentication for each method, one after the
other, and compares what comes out with ``fedkern run``, whose nodes get the secrets that the
deployed ones drew: the largest difference of the model's arrays and of its metrics.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from common import Record, new_table, run_script
from rich.console import Console

from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.deployment.node_files import read_secrets
from fedkern_flwr.simulations.methods.hybrid_data import HybridClients
from fedkern_flwr.simulations.methods.vertical_data import VerticalClients

FEDKERN = Path(sys.executable).parent / "fedkern"
#: Method -> options, those of a deployment, those of a simulation.
RUNS = {
    "pof-mkl": ("--rounds 500 --samples-per-round 50", "--nodes 3", "--clients 3 --secure"),
    "fed-cg": ("--allow-single", "--nodes 3", "--hospitals 2 --centres 1"),
    "fdskl": ("", "--nodes 3", "--parties 3"),
    "fed-cfk": ("", "--nodes 3", "--clients 3"),
    "hierarchical-svm": ("--allow-single --rounds 10", "--nodes 5", "--users 3"),
}


def call(*arguments: str | Path) -> None:
    """Run the command line and show what it says if it fails."""
    done = subprocess.run([FEDKERN, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, arguments))}\n{done.stderr}")


@contextmanager
def secrets_of(folder: Path) -> Iterator[None]:
    """Give simulated nodes the secrets of a deployment."""
    usual = {clients: clients.arguments for clients in (HybridClients, VerticalClients)}

    def shared(clients: Any) -> Any:
        return lambda own, k: {
            **usual[clients](own, k),
            **read_secrets(folder / "nodes" / str(k)),
        }

    try:
        for clients in usual:
            setattr(clients, "arguments", shared(clients))  # noqa: B010
        yield
    finally:
        for clients, arguments in usual.items():
            setattr(clients, "arguments", arguments)  # noqa: B010


def difference(one: Path, other: Path, metrics: tuple[dict[str, Any], dict[str, Any]]) -> float:
    """Return the largest difference between two runs of a method."""
    gaps = [0.0]
    arrays, expected = load_model(one / "model.npz")[0], load_model(other / "model.npz")[0]
    for name, values in expected.items():
        gaps.append(float(np.abs(arrays[name].astype(float) - values).max(initial=0.0)))
    for name in metrics[0].keys() & metrics[1].keys():
        if isinstance(metrics[0][name], float) and name != "residual":
            gaps.append(abs(metrics[0][name] - metrics[1][name]))
    return max(gaps)


def measure(given: argparse.Namespace, console: Console) -> list[Record]:
    """Deploy each method; print the table."""
    records = []
    table = new_table(
        "deployed on this machine, TLS and node authentication",
        "method | nodes | seconds | to connect | exchanges | s per exchange | difference",
        text="method",
    )
    with tempfile.TemporaryDirectory(prefix="fedkern-") as place:
        for method in given.methods.split(","):
            options, deployed, simulated = (text.split() for text in RUNS[method])
            one, other = Path(place) / f"{method}-deployed", Path(place) / f"{method}-simulated"
            call("deploy-local", method, *options, *deployed, "--out", one, "--quiet")
            with secrets_of(one):
                if run(["run", method, *options, *simulated, "--out", str(other), "--quiet"]):
                    raise SystemExit(f"{method} failed in process")
            found, expected = (json.loads((f / "result.json").read_text()) for f in (one, other))
            gap = difference(one, other, (found["metrics"], expected["metrics"]))
            per_exchange = found["seconds"] / found["exchanges"]
            records += [
                Record(method, per_exchange, "seconds per exchange"),
                Record(method, gap, "difference from in process"),
            ]
            table.add_row(
                method,
                deployed[1],
                f"{found['total_seconds']:.0f}",
                f"{found['start_seconds']:.0f}",
                str(found["exchanges"]),
                f"{per_exchange:.1f}",
                f"{gap:.0e}",
            )
    console.print(table)
    return records


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        methods=",".join(RUNS),
    )
