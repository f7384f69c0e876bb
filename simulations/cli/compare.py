"""``fedkern compare``: methods on the same data, tables, plots and a report."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import click
import typer

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import FedKernError, OptionError, TableError
from fedkern_flwr.registered import registered

from ..engines import Engine
from ..lab.cells import Cell, CellStore, Record
from ..lab.comparison import Comparison, Part, compare, headings, plan, table_rows
from ..lab.paper_figures import HEADINGS, count_misses, paper_figures
from ..lab.presets import NAMES, PAPERS, Preset, preset, registered_methods
from ..lab.sweep import CellFailed, choose_jobs, sweep
from ..methods.experiment import versions
from ..run.data import Settings
from ..run.entries import check_seed
from ..run.folders import FORCE, chosen_folder, folder_of_results, json_writer
from ..run.provenance import provenance
from .console import Screen
from .lazy import as_command

_RESULT = "compare.json"
#: All presets of the papers.
ALL = "papers"


def compare_presets(
    names: Annotated[
        list[str],
        typer.Argument(metavar="PRESET...", click_type=click.Choice([*NAMES, *registered(), ALL])),
    ],
    engine: Annotated[
        str | None, typer.Option(click_type=click.Choice(["in-process", "ray"]))
    ] = None,
    datasets: Annotated[
        str | None,
        typer.Option(
            help="Data sets of the preset to use, separated by commas; of registered methods also "
            "files of features."
        ),
    ] = None,
    runs: Annotated[int | None, typer.Option(help="Draws per method.")] = None,
    rounds: Annotated[
        int | None, typer.Option(help="T, samples per client; of other methods most iterations.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="K, number of clients.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of splits and draws.")] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Draws computed at a time, if memory allows (default: as many as processors "
            "where several draws are averaged, else one, so that seconds can be compared)."
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(help="host:port of a Ray cluster that computes the draws; auto for a local."),
    ] = None,
    cells: Annotated[
        str,
        typer.Option(help="Folder of finished draws, which no comparison computes again."),
    ] = "runs/cells",
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute all draws anew.")] = False,
    out: Annotated[str | None, typer.Option(help="Folder of the comparison.")] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
    json_target: Annotated[
        str | None, typer.Option("--json", help="Write the results here; - for stdout.")
    ] = None,
    quiet: Annotated[bool, typer.Option(help="Show nothing but errors.")] = False,
) -> None:
    """Compare methods on the same data: the demo, a table or figure of a paper, or all papers.

    Registered methods are presets too: those that are named are compared with each other.

    Presets of papers read their data from the folder named by FEDKERN_DATA; `papers` leaves out
    those whose data is not there. A comparison that was interrupted goes on when it is started
    again: finished draws are kept.
    """
    screen = Screen(quiet)
    if jobs is not None and jobs < 1:
        raise OptionError(f"jobs is {jobs}", remedy="use at least 1")
    tell = json_writer(json_target)
    listed, left_out = _presets(names, datasets)
    for reason in left_out:
        screen.note(f"left out: {reason}")
    asked = {k: v for k, v in (("rounds", rounds), ("clients", clients)) if v is not None}
    chosen = [_adjust(one, cast("Engine | None", engine), runs, seed, asked) for one in listed]
    folder = chosen_folder(out, f"compare-{names[0] if len(names) == 1 else 'several'}")
    with folder_of_results(folder, _RESULT, force=force):
        store = CellStore(Path(cells), fresh=fresh)
        compared, failures = _run_all(screen, chosen, _Engines(store, seed, jobs, ray_address))
        left_out += [f"{name}: {error}" for name, error in failures.items()]
        results = [_result(one, comparisons, seed) for one, comparisons in compared]
        alone = len(chosen) == 1 and not left_out
        result = results[0] if alone else {"presets": results, "left_out": left_out}
        write_atomically(folder / _RESULT, json.dumps(result, allow_nan=False).encode())
        from ..lab.comparison_report import write_comparison_report

        report = write_comparison_report(folder, compared, seed=seed, left_out=left_out)
    screen.note(f"report: {report.resolve()}")
    tell(result)
    if failures:
        raise next(iter(failures.values()))


@dataclasses.dataclass(frozen=True)
class _Engines:
    """Where draws are computed and kept."""

    store: CellStore
    seed: int
    jobs: int | None
    ray_address: str | None


def _run_all(
    screen: Screen, chosen: list[Preset], how: _Engines
) -> tuple[list[tuple[Preset, list[Comparison]]], dict[str, FedKernError]]:
    """Run the presets; return what was compared, and what stopped those that failed.

    Raises
    ------
    FedKernError
        All failed; otherwise a report of the others is worth having.
    """
    compared: list[tuple[Preset, list[Comparison]]] = []
    failures: dict[str, FedKernError] = {}
    for one in chosen:
        if len(chosen) > 1:
            screen.note(f"\n{one.title}")
        try:
            comparisons = _run(screen, one, how)
        except FedKernError as error:
            if len(failures) + 1 == len(chosen):
                raise
            failures[one.name] = error
            screen.note(f"failed: {error}")
            continue
        compared.append((one, comparisons))
    return compared, failures


def _presets(names: list[str], datasets: str | None) -> tuple[list[Preset], list[str]]:
    """Return the presets asked for, and why others are left out.

    Raises
    ------
    OptionError, TableError
    """
    own = [name for name in names if name in registered()]
    others = [name for name in names if name not in own]
    if datasets and (len(others) + bool(own) > 1 or ALL in names):
        raise OptionError("--datasets goes with one preset", remedy="compare them one by one")
    if names == [ALL]:
        found, missing = [], defaultdict(list)
        for name in PAPERS:
            try:
                found.append(preset(name, ()))
            except TableError as error:
                missing[str(error)].append(name)
        left_out = [f"{', '.join(named)}: {reason}" for reason, named in missing.items()]
        if not found:
            raise TableError("; ".join(left_out))
        return found, left_out
    if ALL in names:
        raise OptionError(f"{ALL} are all presets of the papers", remedy="name it alone")
    if len(set(names)) < len(names):
        raise OptionError("a preset is named twice", remedy="name each once")
    wanted = tuple(d.strip() for d in datasets.split(",") if d.strip()) if datasets else ()
    beside = [registered_methods(own, wanted)] if own else []
    return beside + [preset(name, wanted) for name in others], []


def _run(screen: Screen, chosen: Preset, how: _Engines) -> list[Comparison]:
    """Compute what is missing, and show each table as soon as it is complete."""
    parts = plan(chosen, how.seed)
    titles = {cell.key: label for part in parts for label, cell in part.named()}
    cells = {cell.key: cell for part in parts for _, cell in part.named()}
    records = {key: how.store.find(cell) for key, cell in cells.items()}
    missing = [cells[key] for key, record in records.items() if record is None]
    if len(missing) < len(cells):
        screen.note(f"{len(cells) - len(missing)} of {len(cells)} draws are finished already")
    comparisons: list[Comparison] = []

    def record_of(cell: Cell) -> Record:
        record = records[cell.key]
        assert record is not None
        return record

    def show_complete() -> None:
        while len(comparisons) < len(parts) and _complete(part := parts[len(comparisons)], records):
            comparisons.append(_show(screen, chosen, part, record_of))

    show_complete()
    if not missing:
        return comparisons
    finished = 0
    with screen.progress() as bar:

        def done(cell: Cell, record: Record) -> None:
            nonlocal finished
            finished += 1
            records[cell.key] = how.store.keep(cell, record)
            bar.update(titles[cell.key], finished, len(missing))
            show_complete()

        def progress(cell: Cell, steps: int, total: int) -> None:
            bar.update(titles[cell.key], finished + min(steps / max(total, 1), 1.0), len(missing))

        bar.update("starting", 0, len(missing))
        try:
            sweep(
                missing,
                jobs=choose_jobs(missing, chosen.runs) if how.jobs is None else how.jobs,
                ray_address=how.ray_address,
                progress=progress,
                done=done,
            )
        except CellFailed as failed:
            text = f"{titles[failed.cell.key]}: {failed.error}; finished draws are kept"
            failed.error.args = (text,)
            raise failed.error from None
    return comparisons


def _complete(part: Part, records: dict[str, Record | None]) -> bool:
    return all(records[cell.key] is not None for _, cell in part.named())


def _show(
    screen: Screen, chosen: Preset, part: Part, record_of: Callable[[Cell], Record]
) -> Comparison:
    """Show the table of a part, and which of the paper's figures it misses."""
    comparison, family = compare(part, record_of), part.section.family
    if part.section.title and part.dataset == next(iter(part.section.data)):
        screen.note(f"\n{part.section.title}")
    draws = family.draws if chosen.runs > 1 else family.draws.removesuffix("s")
    screen.table(
        f"{part.dataset}: {part.section.size(comparison.facts)}, {chosen.engine}, "
        f"{chosen.runs} {draws}",
        headings(comparison),
        table_rows(comparison),
    )
    for pair in comparison.pairs:
        if pair.reversed:
            screen.note(f"reversed: {pair.better} is not better than {pair.worse}")
    figures = paper_figures(comparison)
    missed = [figure.cells() for figure in figures if figure.misses]
    if missed:
        counts = count_misses(figures)
        screen.table(
            f"{part.dataset}: {counts['missed']} of {counts['figures']} figures of the paper are "
            f"missed by more than the spread, {counts['better']} for the better",
            HEADINGS[1:],
            [cells[1:] for cells in missed],
            text=2,
        )
    return comparison


def _adjust(
    chosen: Preset, engine: Engine | None, runs: int | None, seed: int, asked: Mapping[str, Any]
) -> Preset:
    """Apply what the user asked for instead of the preset's own settings."""
    if runs is not None and runs < 1:
        raise OptionError(f"runs is {runs}", remedy="use at least 1")
    check_seed(seed, chosen.runs if runs is None else runs)
    for name in asked:
        if not any(_may_set(settings, name) for settings in chosen.data.values()):
            raise OptionError(f"{chosen.name} has no {name}", remedy=f"leave out --{name}")

    def change(every: Mapping[str, Settings]) -> dict[str, Settings]:
        return {
            name: dataclasses.replace(
                settings, **{k: v for k, v in asked.items() if _may_set(settings, k)}, seed=seed
            )
            for name, settings in every.items()
        }

    sections = [
        dataclasses.replace(
            section,
            data=change(section.data),
            dealt={dataset: change(dealt) for dataset, dealt in section.dealt.items()},
        )
        for section in chosen.sections
    ]
    return dataclasses.replace(
        chosen,
        sections=tuple(sections),
        engine=engine or chosen.engine,
        runs=chosen.runs if runs is None else runs,
    )


def _may_set(settings: Settings, name: str) -> bool:
    return name in settings.adjustable and hasattr(settings, name)


def _result(chosen: Preset, comparisons: list[Comparison], seed: int) -> dict[str, Any]:
    """Return all there is of a preset as JSON; what grew beyond all numbers is null."""
    found = {
        "preset": chosen.name,
        "engine": chosen.engine,
        "seed": seed,
        "runs": chosen.runs,
        "versions": versions(),
        "datasets": {
            comparison.dataset: {
                "settings": _settings(chosen.data[comparison.dataset]),
                "source": provenance(chosen.data[comparison.dataset].data),
                "notes": list(comparison.notes),
                "methods": comparison.summaries,
                "paired_differences": [pair.to_dict() for pair in comparison.pairs],
                "paper_figures": [figure.to_dict() for figure in paper_figures(comparison)],
            }
            for comparison in comparisons
        },
    }
    finite: dict[str, Any] = json.loads(json.dumps(found), parse_constant=lambda _: None)
    return finite


def _settings(settings: Settings) -> dict[str, Any]:
    """Return settings with the name of a file instead of its place."""
    return {**dataclasses.asdict(settings), "data": Path(settings.data).name}


command = as_command("compare", compare_presets, epilog=f"Presets: {', '.join((*NAMES, ALL))}.")
