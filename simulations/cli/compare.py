"""``fedkern compare``: several methods on the same data, a table, plots and a report."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any, cast

import click
import typer

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import OptionError

from ..comparison import Comparison, compare_on, headings, table_rows
from ..data import Settings
from ..engines import Engine
from ..entries import check_seed
from ..experiment import versions
from ..presets import NAMES, Preset, Section, preset
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
        engine=cast("Engine | None", engine),
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
    for section in chosen.sections:
        if section.title:
            screen.note(f"\n{section.title}")
        for dataset in section.data:
            comparisons.append(_compare(screen, chosen, section, dataset, seed))
    result = _save(folder, chosen, comparisons, seed)
    from ..comparison_report import write_comparison_report

    report = write_comparison_report(folder, chosen, comparisons, result)
    screen.note(f"report: {report.resolve()}")
    text = json.dumps(result, allow_nan=False)
    if json_file is not None:
        json_file.write_text(f"{text}\n")
    elif json_target:
        sys.stdout.write(f"{text}\n")


def _compare(
    screen: Screen, chosen: Preset, section: Section, dataset: str, seed: int
) -> Comparison:
    """Run a section on a data set and show its table."""
    family = section.family
    prepared = family.prepare(section.data[dataset])
    with screen.progress() as bar:
        comparison = compare_on(
            section,
            dataset,
            prepared,
            engine=chosen.engine,
            seed=seed,
            runs=chosen.runs,
            progress=bar.update,
        )
    screen.table(
        f"{dataset}: {family.size(prepared.facts())}, {chosen.engine}, "
        f"{chosen.runs} {family.draws if chosen.runs > 1 else family.draws.removesuffix('s')}",
        headings(section, dataset),
        table_rows(comparison),
    )
    for pair in comparison.pairs:
        if pair.reversed:
            screen.note(f"reversed: {pair.better} is not better than {pair.worse}")
    return comparison


def _adjust(
    chosen: Preset,
    *,
    engine: Engine | None,
    runs: int | None,
    rounds: int | None,
    clients: int | None,
    seed: int,
) -> Preset:
    """Apply what the user asked for instead of the preset's own settings."""
    if runs is not None and runs < 1:
        raise OptionError(f"runs is {runs}", remedy="use at least 1")
    asked = {k: v for k, v in (("rounds", rounds), ("clients", clients)) if v is not None}
    for name in asked:
        if not any(_may_set(settings, name) for settings in chosen.data.values()):
            raise OptionError(f"{chosen.name} has no {name}", remedy=f"leave out --{name}")
    sections = []
    for section in chosen.sections:
        data = {}
        for dataset, settings in section.data.items():
            new: dict[str, Any] = {k: v for k, v in asked.items() if _may_set(settings, k)}
            data[dataset] = dataclasses.replace(settings, **new, seed=seed)
        sections.append(dataclasses.replace(section, data=data))
    return dataclasses.replace(
        chosen,
        sections=tuple(sections),
        engine=engine or chosen.engine,
        runs=chosen.runs if runs is None else runs,
    )


def _may_set(settings: Settings, name: str) -> bool:
    return name in settings.adjustable and hasattr(settings, name)


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
