"""Has a ratio become worse? Compares a run of the benchmarks with the one that was accepted.

``guard.py accept RUN...`` makes the baseline of several runs of the same code: the median of each
figure, and as its tolerance twice the spread over the runs, but at least a quarter for what is
timed. ``guard.py check RUN`` prints what differs and leaves with exit code 1 if a figure is worse
than its tolerance allows, or missing. Only ratios that say which way is better are looked at.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from common import new_table
from rich.console import Console

BASELINE = Path(__file__).parent / "baseline.json"
EXACT, TIMED = 1e-3, 0.25  # least tolerance of figures without and with noise
Key = tuple[str, str, str]  # benchmark, name, unit
Verdict = Literal["ok", "better", "worse", "missing", "new"]

app = typer.Typer(help=__doc__, no_args_is_help=True)


@dataclass(frozen=True)
class Compared:
    """A figure beside its baseline.

    Attributes
    ----------
    key : tuple of str
        Benchmark, name, unit.
    verdict : str
    before, now : float or None
    change : float
        Relative to the baseline; negative is worse.
    tolerance : float
    """

    key: Key
    verdict: Verdict
    before: float | None
    now: float | None
    change: float = 0.0
    tolerance: float = 0.0


def figures(results: dict[str, Any]) -> dict[Key, tuple[float, str]]:
    """Return (value, which way is better) of the figures to guard, from the JSON of ``run.py``."""
    return {
        (benchmark, record["name"], record["unit"]): (record["value"], record["better"])
        for benchmark, found in results["benchmarks"].items()
        for record in found["records"]
        if record["better"]
    }


def make_baseline(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the baseline of runs of the same code."""
    found = [figures(run) for run in runs]
    records = []
    for key in sorted(set.intersection(*map(set, found))):
        values = [run[key][0] for run in found]
        middle = statistics.median(values)
        spread = max(values) / min(values) - 1.0
        benchmark, name, unit = key
        records.append(
            {
                "benchmark": benchmark,
                "name": name,
                "unit": unit,
                "better": found[0][key][1],
                "value": middle,
                "tolerance": max(TIMED, 2.0 * spread) if spread > EXACT else EXACT,
            }
        )
    last = runs[-1]
    kept = {name: last[name] for name in ("date", "quick", "cores", "versions")}
    return {**kept, "runs": len(runs), "records": records}


def compare(baseline: dict[str, Any], results: dict[str, Any]) -> list[Compared]:
    """Compare a run with a baseline; figures of benchmarks that did not run are left out."""
    now = figures(results)
    compared = []
    for record in baseline["records"]:
        key: Key = (record["benchmark"], record["name"], record["unit"])
        if record["benchmark"] not in results["benchmarks"]:
            continue
        before, tolerance = record["value"], record["tolerance"]
        if key not in now:
            compared.append(Compared(key, "missing", before, None, tolerance=tolerance))
            continue
        value = now.pop(key)[0]
        # as a factor: twice as slow weighs as much whichever way the ratio is written
        factor = value / before if record["better"] == "higher" else before / value
        verdict: Verdict = "ok"
        if factor < 1.0 / (1.0 + tolerance):
            verdict = "worse"
        elif factor > 1.0 + tolerance:
            verdict = "better"
        compared.append(Compared(key, verdict, before, value, factor - 1.0, tolerance))
    return compared + [Compared(key, "new", None, value) for key, (value, _) in now.items()]


@app.command()
def accept(
    runs: Annotated[list[Path], typer.Argument(help="JSON files of run.py, same code and sizes.")],
    baseline: Annotated[Path, typer.Option(help="Where to write it.")] = BASELINE,
) -> None:
    """Make the baseline of several runs."""
    made = make_baseline([json.loads(file.read_text()) for file in runs])
    baseline.write_text(json.dumps(made, indent=1) + "\n")


@app.command()
def check(
    run: Annotated[Path, typer.Argument(help="JSON file of run.py.")],
    baseline: Annotated[Path, typer.Option(help="Made by accept.")] = BASELINE,
    every: Annotated[bool, typer.Option("--all", help="Show what has not changed, too.")] = False,
) -> None:
    """Compare a run with the baseline; exit code 1 if something is worse or missing."""
    before, results = json.loads(baseline.read_text()), json.loads(run.read_text())
    console = Console(width=max(120, Console().width))
    if before["quick"] != results["quick"]:
        console.print("the run and the baseline have different sizes; use --quick for both or none")
        raise typer.Exit(2)
    compared = compare(before, results)
    table = new_table(
        "",
        " | benchmark | of what | ratio | before | now | change | tolerance",
        text="benchmark | of what | ratio",
    )
    for one in compared:
        if every or one.verdict != "ok":
            table.add_row(
                one.verdict,
                *one.key,
                "" if one.before is None else f"{one.before:.3g}",
                "" if one.now is None else f"{one.now:.3g}",
                f"{one.change:+.0%}",
                f"{one.tolerance:.1%}",
            )
    if table.row_count:
        console.print(table)
    counts = {v: sum(one.verdict == v for one in compared) for v in ("ok", "better", "worse")}
    missing = sum(one.verdict == "missing" for one in compared)
    console.print(f"{counts}, {missing} missing, of {len(before['records'])} figures")
    if counts["worse"] or missing:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
