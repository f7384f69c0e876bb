"""Share among benchmarks: options, records of figures, processes with their memory."""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedkern_flwr.flower_compat import quiet_flower

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Record:
    """A figure.

    Attributes
    ----------
    name : str
        What was measured; the same from run to run.
    value : float
    unit : str
        A ratio names what is divided by what, as ``this / goal``.
    better : {"", "higher", "lower"}
        Which way is better; empty where neither is.
    """

    name: str
    value: float
    unit: str
    better: str = ""


def run_script(
    text: str | None,
    measure: Callable[[argparse.Namespace, Console], list[Record]],
    **options: Any,
) -> None:
    """Read a benchmark's options, measure, and write the figures where they are asked for.

    Parameters
    ----------
    text : str or None
        What the help says.
    measure : callable
        (options, console) -> figures; prints its table.
    **options
        Options beside those that all have, ``--quick`` for sizes that take minutes, and
        ``--json``: the default of each, which has its type, or (default, help).
    """
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    for name, given in options.items():
        default, told = given if isinstance(given, tuple) else (given, None)
        kind = type(default[0] if isinstance(default, list) else default)
        more: dict[str, Any] = {"type": float if default is None else kind}
        if isinstance(default, bool):
            more = {"action": "store_true"}
        elif isinstance(default, list):
            more["nargs"] = "+"
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, help=told, **more)
    chosen = parser.parse_args()
    quiet_flower(logging.CRITICAL)
    logging.getLogger("fedkern_flwr").setLevel(logging.ERROR)
    records = measure(chosen, Console(width=max(120, Console().width)))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([asdict(record) for record in records], indent=1))


def new_table(title: str, headings: str, *, text: str = "", **more: Any) -> Table:
    """Return a table with columns of figures, but for the one without a name and those of ``text``.

    Headings are separated by a bar: ``"ratio | seconds | method"``.
    """
    table = Table(title=title, **more)
    for heading in headings.split(" | "):
        words = heading in ("", *text.split(" | "))
        table.add_column(heading, justify="left" if words else "right", no_wrap=not words)
    return table


def in_own_process(
    script: str, values: Mapping[str, Any], *, threads: int | None = None, timeout: float = 3600.0
) -> dict[str, Any]:
    """Run a script with ``--one VALUES`` and return the JSON of its last line.

    Parameters
    ----------
    script : str
        Its ``__file__``.
    values : mapping
        What to run, as JSON.
    threads : int, optional
        Threads of its linear algebra (default: its own choice).
    timeout : float (default: 3600.0)
        Seconds.

    Raises
    ------
    subprocess.TimeoutExpired
    """
    limits = {} if threads is None else dict.fromkeys(_THREADS, str(threads))
    done = subprocess.run(
        [sys.executable, str(Path(script).resolve()), "--one", json.dumps(values)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout,
        env={**os.environ, **limits},
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def peak_memory() -> int:
    """Return the most bytes that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
