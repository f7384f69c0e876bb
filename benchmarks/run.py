"""Run benchmarks and collect their figures: ``run.py list``, ``run.py run``, ``run.py table``.

Each script of this folder runs in a process of its own. The figures of all go to one JSON file with
versions, date and number of cores, from which ``table`` writes ``results/quick.md``.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedkern_flwr.simulations.methods.experiment import versions

HERE = Path(__file__).parent
PAGE = HERE / "results" / "quick.md"
NO_SCRIPTS = ("common", "run")
#: Minutes in all with ``--quick``; the others need servers, Ray, figures or more time.
QUICK = ("fdskl_phases", "pooled", "secagg_plus")

app = typer.Typer(help=__doc__, no_args_is_help=True)
console = Console(stderr=True, highlight=False)


def scripts() -> dict[str, str]:
    """Return the name of each script that writes figures, and the first line of its docstring."""
    found = {}
    for file in sorted(HERE.glob("*.py")):
        source = file.read_text()
        if file.stem not in NO_SCRIPTS and "run_script(" in source:
            text = ast.get_docstring(ast.parse(source)) or ""
            found[file.stem] = text.splitlines()[0] if text else ""
    return found


@app.command("list")
def show() -> None:
    """List the benchmarks."""
    table = Table("benchmark", "what it measures", "quick")
    for name, text in scripts().items():
        table.add_row(name, text, "yes" if name in QUICK else "")
    Console().print(table)


@app.command()
def run(
    names: Annotated[list[str] | None, typer.Argument(help="Benchmarks; all if none.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Some of them, at smaller sizes.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures here.")] = None,
) -> None:
    """Run benchmarks one after the other; their tables go to standard output."""
    there = scripts()
    chosen = names or list(QUICK if quick else there)
    if unknown := sorted(set(chosen) - set(there)):
        console.print(f"no benchmark {', '.join(unknown)}; choose of {', '.join(there)}")
        raise typer.Exit(2)
    found: dict[str, Any] = {}
    failed = []
    for number, name in enumerate(chosen, 1):
        console.print(f"[bold]{name}[/] ({number} of {len(chosen)})")
        started = time.monotonic()
        records = _run_script(name, quick)
        if records is None:
            failed.append(name)
            continue
        found[name] = {"seconds": round(time.monotonic() - started, 1), "records": records}
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(_described(found, quick), indent=1) + "\n")
    if failed:
        console.print(f"failed: {', '.join(failed)}")
        raise typer.Exit(1)


@app.command()
def table(
    json_file: Annotated[Path, typer.Argument(help="Made by run --json.")],
    page: Annotated[Path, typer.Option(help="File to write.")] = PAGE,
) -> None:
    """Write the table of figures."""
    made = markdown(json.loads(json_file.read_text()))
    page.write_text(f"# Benchmarks at smaller sizes\n\nWritten by `make bench`.\n\n{made}")


def markdown(results: dict[str, Any]) -> str:
    """Return the figures of a run as Markdown."""
    known = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    lines = [
        f"{results['date']}, {results['cores']} cores, {known}"
        + ("; `--quick` sizes." if results["quick"] else "."),
        "",
        "| benchmark | of what | figure | what it is | better |",
        "|---|---|---|---|---|",
    ]
    for name, found in results["benchmarks"].items():
        alike: dict[tuple[str, ...], list[str]] = {}
        for record in found["records"]:
            cells = (f"{record['value']:.4g}", record["unit"], record["better"])
            alike.setdefault(cells, []).append(record["name"])
        for cells, names in alike.items():
            what = names[0] if len(names) == 1 else f"{names[0]}, and {len(names) - 1} more"
            lines.append(f"| {' | '.join((name, what, *cells))} |")
    return "\n".join(lines) + "\n"


def _run_script(name: str, quick: bool) -> list[dict[str, Any]] | None:
    """Return the figures of a benchmark; None if it fails."""
    with tempfile.TemporaryDirectory(prefix="fedkern-") as folder:
        file = Path(folder) / "records.json"
        command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(file)]
        if subprocess.run(command + ["--quick"] * quick, check=False).returncode:
            return None
        records: list[dict[str, Any]] = json.loads(file.read_text())
        return records


def _described(found: dict[str, Any], quick: bool) -> dict[str, Any]:
    known = {n: v for n, v in versions().items() if n != "platform"}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "quick": quick,
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "versions": known,
        "benchmarks": found,
    }


if __name__ == "__main__":
    app()
