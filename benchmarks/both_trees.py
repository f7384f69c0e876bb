"""Every way of every method in this checkout and in another: exchanges, bytes, figures, models.

The ways are those of ``tests/zoo.py`` of this checkout, which knows the public interface only. They
are run by the package of each checkout in a process of its own, so that a way for which the other
checkout lacks something ends with its error::

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parents[1]
LIMIT = 1e-9
#: What a run is called, on which the order of rows depends.
SESSION = "secrets.token_hex"
#: What differs from run to run.
_UNLIKE = ("seconds", "cpu_seconds", "by_phase")


def dump(engine: str) -> None:
    """Run the ways with the package that this interpreter has; print what they came to."""
    sys.path[:0] = [str(HERE / "tests"), str(HERE / "tests/helpers")]
    import zoo

    from fedkern_flwr.flower_compat import quiet_flower

    quiet_flower(50)
    found: dict[str, Any] = {}
    for name, way in zoo.WAYS.items():
        if way.private:  # noise has no seed
            continue
        with patch(SESSION, lambda n: "5e" * n):
            try:
                run = zoo.fit(name, engine=engine)
            except Exception as error:
                found[name] = {"error": f"{type(error).__name__}: {error}"}
                continue
        outcome = run.outcome()
        arrays = {k: v for k, v in outcome.items() if isinstance(v, np.ndarray)}
        ledger = run.strategy.ledger_
        found[name] = {
            "exchanges": ledger.exchanges,
            "up": ledger.bytes_up,
            "down": ledger.bytes_down,
            "figures": {k: v for k, v in outcome.items() if k not in arrays},
            "model": {k: _numbers(array) for k, array in arrays.items()},
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


def run_in(python: Path, engine: str) -> dict[str, Any]:
    """Run the ways with the package of an interpreter."""
    command = [str(python), str(Path(__file__).resolve()), "--dump", "--engine", engine, "."]
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command,
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
    parser.add_argument("--engine", default="in-process", choices=("in-process", "ray"))
    parser.add_argument("--dump", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.dump:
        dump(chosen.engine)
        return 0
    python = chosen.python or chosen.other.resolve() / ".venv/bin/python"
    before, now = (run_in(Path(p), chosen.engine) for p in (python, sys.executable))
    table = Table("way", "exchanges", "bytes up", "bytes down", "figures", "models, bits", "")
    bad = 0
    for name, b in now.items():
        a = before[name]
        if "error" in a or "error" in b:
            bad += "error" in b
            table.add_row(name, *[""] * 5, a.get("error", b.get("error", ""))[:60])
            continue
        counts = [
            f"{a[k]} {b[k]}" if a[k] != b[k] else str(b[k]) for k in ("exchanges", "up", "down")
        ]
        gaps = [apart(a[part], b[part]) for part in ("figures", "model")]
        bits = "the same" if a["digest"] == b["digest"] else f"{gaps[1]:.1e}"
        alike = max(gaps) <= LIMIT and all(a[k] == b[k] for k in ("exchanges", "up", "down"))
        figures = "equal" if gaps[0] <= LIMIT else f"{gaps[0]:.1e}"
        table.add_row(name, *counts, figures, bits, "" if alike else "differs")
        bad += not alike
    console = Console(width=150)
    console.print(table)
    console.print(f"{bad} of {len(now)} ways differ")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
