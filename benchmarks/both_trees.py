"""Every way of every method in this checkout and in another: exchanges, bytes, figures, models.

The ways are those of the contract of strategies, of the faults, and of the engines. Each checkout
runs its own in a process of its own, so ways that only one of them has are listed by name::

    python benchmarks/both_trees.py ../before --python ../before/.venv/bin/python
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parents[1]
ROOMS = ("", "helpers", "strategies", "simulations")  # of tests/
LIMIT = 1e-9
#: What a run is called, on which the order of rows depends.
SESSION = "fedkern_flwr.strategy.secrets.token_hex"
#: What differs from run to run.
_UNLIKE = ("seconds", "cpu_seconds", "by_phase")
Found = tuple[Any, Mapping[str, Any], Mapping[str, Any]]  # strategy, arrays, other figures


def contract() -> Iterator[tuple[str, Found]]:
    """Run the ways of ``tests/strategies/test_contract.py``."""
    import conftest
    import test_contract as ways

    fixture: Any = conftest.make_streams
    for method in ways.METHODS:
        streams = fixture.__wrapped__()(ways.CLIENTS, ways.ROUNDS + 5, seed=8, test_rows=5)
        strategy = ways.make(method)
        result = ways.run(strategy, streams)
        arrays = {str(k): a for k, a in enumerate(result.arrays.to_numpy_ndarrays())}
        arrays |= strategy.model()[0]
        yield f"contract: {method.method}", (strategy, arrays, {"history": strategy.history_})


def faults() -> Iterator[tuple[str, Found]]:
    """Run the ways of ``tests/helpers/fault_cases.py``, without faults."""
    import test_faults_contract as ways

    for name, way in ways.WAYS.items():
        for place, value in {SESSION: lambda n: "5e" * n, **way.patches}.items():
            patch(place, value).start()
        with tempfile.TemporaryDirectory() as folder:
            case = ways.Case(way, lambda place=folder: Path(place))
            nodes = case.nodes()
            strategy = case.run(nodes, case.make())
            found = way.method.outcome(strategy, nodes)
        arrays = {k: v for k, v in found.items() if isinstance(v, np.ndarray)}
        others = {k: v for k, v in found.items() if k not in arrays}
        patch.stopall()
        yield f"faults: {name}", (strategy, {**arrays, **strategy.model()[0]}, others)


def engines(engine: str) -> Iterator[tuple[str, Found]]:
    """Run the ways of ``tests/simulations/both_engines.py``, without faults."""
    import both_engines as ways

    ways.ratings()
    runs = ways.Runs()
    for name in ways.RUNS:
        runs.add(name)
    patch(SESSION, lambda n: _short(Path("now").read_bytes())[: 2 * n]).start()
    found = runs.run(engine)
    patch.stopall()
    for name, step in zip(ways.RUNS, runs.steps, strict=True):
        others = {k: v for k, v in found[name].items() if k not in ("model", *_UNLIKE)}
        yield f"{engine}: {name}", (step.strategy, found[name]["model"], others)


def dump(tree: Path, ray: bool) -> None:
    """Run the ways of the checkout that this interpreter has; print what they came to."""
    sys.path[:0] = [str(tree / "tests" / room) for room in ROOMS]
    from fedkern_flwr.flower_compat import quiet_flower

    quiet_flower(50)
    found: dict[str, Any] = {}
    for ways in (contract(), faults(), engines("in-process"), *([engines("ray")] if ray else [])):
        for name, (strategy, arrays, others) in ways:
            ledger = strategy.ledger_
            found[name] = {
                "exchanges": ledger.exchanges,
                "up": ledger.bytes_up,
                "down": ledger.bytes_down,
                "figures": {"metrics": strategy.metrics_, **others},
                "model": {name: _numbers(array) for name, array in arrays.items()},
                "digest": _digest(arrays),
            }
    print(json.dumps(found, default=str))


def _numbers(array: Any) -> Any:
    found = np.asarray(array)
    return (found.astype(float) if found.dtype.kind in "biuf" else found).ravel().tolist()


def _digest(arrays: Mapping[str, Any]) -> str:
    parts = [f"{k}".encode() + np.asarray(arrays[k]).tobytes() for k in sorted(arrays)]
    return _short(b"".join(parts))


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def run_in(tree: Path, python: Path, ray: bool) -> dict[str, Any]:
    """Run the ways of a checkout by its interpreter."""
    command = [str(python), str(Path(__file__).resolve()), str(tree), "--dump"]
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        done = subprocess.run(
            [*command, *(["--ray"] if ray else [])],
            cwd=folder,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **quiet},
        )
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    found: dict[str, Any] = json.loads(line)
    return found


def apart(one: Any, other: Any) -> float:
    """Return the largest difference of two results, infinite where they are not alike."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return max((apart(one[k], other[k]) for k in one if k not in _UNLIKE), default=0.0)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max(map(apart, one, other), default=0.0)
    numbers = all(type(v) in (int, float) for v in (one, other))
    if numbers and one == one and other == other:
        return float(abs(one - other))
    return 0.0 if one == other or (numbers and one != one and other != other) else np.inf


def main() -> int:
    """Compare two checkouts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--python", type=Path, help="its interpreter (default: .venv of it)")
    parser.add_argument("--ray", action="store_true", help="the ways of the engines on Ray too")
    parser.add_argument("--dump", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    other = chosen.other.resolve()
    if chosen.dump:
        dump(other, chosen.ray)
        return 0
    python = chosen.python or other / ".venv/bin/python"
    before, now = run_in(other, python, chosen.ray), run_in(HERE, Path(sys.executable), chosen.ray)
    table = Table("way", "exchanges", "bytes up", "bytes down", "figures", "models, bits", "")
    bad = 0
    for name in (name for name in now if name in before):
        a, b = before[name], now[name]
        counts = [
            f"{a[k]} {b[k]}" if a[k] != b[k] else str(b[k]) for k in ("exchanges", "up", "down")
        ]
        gaps = [apart(a[part], b[part]) for part in ("figures", "model")]
        bits = "the same" if a["digest"] == b["digest"] else f"{gaps[1]:.1e}"
        alike = max(gaps) <= LIMIT and all(a[k] == b[k] for k in ("exchanges", "up", "down"))
        figures = "equal" if gaps[0] <= LIMIT else f"{gaps[0]:.1e}"
        ended = b["figures"].get("ended", "")[:40]
        table.add_row(name, *counts, figures, bits, ended or ("" if alike else "differs"))
        bad += not alike
    console = Console(width=150)
    console.print(table)
    for text, one, two in (("here", now, before), ("there", before, now)):
        console.print(f"only {text}: {', '.join(sorted(one.keys() - two.keys())) or 'none'}")
    console.print(f"{bad} of {len(now.keys() & before.keys())} ways differ")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
