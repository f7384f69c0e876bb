"""``fedkern compare``: several methods on the same data, a table, plots and a report."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import OptionError

from ..comparison import Comparison, compare_on, headings, table_rows
from ..experiment import check_seed, prepare, versions
from ..presets import NAMES, Preset, preset
from ..run_folder import open_json_target
from .console import Screen


def compare(
    name: Annotated[str, typer.Argument(metavar="PRESET", click_type=click.Choice(NAMES))],
    engine: Annotated[
        str | None, typer.Option(click_type=click.Choice(["in-process", "ray"]))
    ] = None,
    datasets: Annotated[
        str | None, typer.Option(help="Data sets of the paper to use, separated by commas.")
    ] = None,
    runs: Annotated[int | None, typer.Option(help="Feature draws per method.")] = None,
    rounds: Annotated[int | None, typer.Option(help="T, samples per client.")] = None,
    clients: Annotated[int | None, typer.Option(help="K, number of clients.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of split and features.")] = 0,
    out: Annotated[str | None, typer.Option(help="Folder of the comparison.")] = None,
    json_target: Annotated[
        str | None, typer.Option("--json", help="Write the results here; - for stdout.")
    ] = None,
    quiet: Annotated[bool, typer.Option(help="Show nothing but errors.")] = False,
) -> None:
    """Compare methods on the same data: the demo, or a table or figure of a paper.

    Presets of papers read their data from the folder named by FEDKERN_DATA.
    """
    screen = Screen(quiet)
    check_seed(seed)
    json_file = open_json_target(json_target) if json_target else None
    chosen = _adjust(
        preset(name, tuple(d.strip() for d in datasets.split(",")) if datasets else ()),
        engine=engine,
        runs=runs,
        rounds=rounds,
        clients=clients,
        seed=seed,
    )
    folder = Path(out or Path("runs") / f"compare-{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"{folder} cannot be written ({error.strerror})", remedy="choose another --out"
        ) from None
    comparisons = []
    for dataset, settings in chosen.data.items():
        prepared = prepare(settings)
        with screen.progress() as bar:
            comparison = compare_on(chosen, dataset, prepared, seed, bar.update)
        comparisons.append(comparison)
        screen.table(
            f"{dataset}: {prepared.num_clients} clients x {prepared.rounds} samples, "
            f"{chosen.engine}, {chosen.runs} feature draw{'s' if chosen.runs > 1 else ''}",
            headings(chosen, dataset),
            table_rows(chosen, comparison),
        )
        for pair in comparison.pairs:
            if pair.reversed:
                screen.note(f"reversed: {pair.better} is not better than {pair.worse}")
    result = _save(folder, chosen, comparisons, seed)
    from ..comparison_report import write_comparison_report

    report = write_comparison_report(folder, chosen, comparisons, result)
    screen.note(f"report: {report.resolve()}")
    text = json.dumps(result, allow_nan=False)
    if json_file is not None:
        json_file.write_text(f"{text}\n")
    elif json_target:
        sys.stdout.write(f"{text}\n")


def _adjust(chosen: Preset, **changes: Any) -> Preset:
    """Apply what the user asked for instead of the preset's own settings."""
    if changes["runs"] is not None and changes["runs"] < 1:
        raise OptionError(f"runs is {changes['runs']}", remedy="use at least 1")
    data = {}
    for dataset, settings in chosen.data.items():
        new = {k: changes[k] for k in ("rounds", "clients") if changes[k] is not None}
        data[dataset] = dataclasses.replace(settings, **new, seed=changes["seed"])
    own = {k: changes[k] for k in ("engine", "runs") if changes[k] is not None}
    return dataclasses.replace(chosen, data=data, **own)


def _save(folder: Path, chosen: Preset, comparisons: list[Comparison], seed: int) -> dict[str, Any]:
    result = {
        "preset": chosen.name,
        "engine": chosen.engine,
        "seed": seed,
        "runs": chosen.runs,
        "versions": versions(),
        "datasets": {
            comparison.dataset: {
                "settings": dataclasses.asdict(chosen.data[comparison.dataset]),
                "notes": list(comparison.notes),
                "methods": comparison.summaries,
                "paired_differences": [pair.to_dict() for pair in comparison.pairs],
            }
            for comparison in comparisons
        },
    }
    try:
        write_atomically(folder / "compare.json", json.dumps(result, allow_nan=False).encode())
    except ValueError:
        raise OptionError(
            "a method's error grew beyond all numbers", remedy="compare fewer rounds"
        ) from None
    return result
