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
from ..lab.findings import HEADINGS, count_misses, paper_figures, verdict
from ..lab.own import METHODS_OF_TABLES, own_options, own_table, registered_methods
from ..lab.presets import NAMES, PAPERS, Preset, preset
from ..lab.sweep import CellFailed, choose_jobs, sweep
from ..run.data import Settings
from ..run.entries import check_seed
from ..run.folders import FORCE, chosen_folder, folder_of_results, json_writer
from ..run.options import DATA
from .console import Screen
from .lazy import as_command
from .options import with_options

_RESULT = "compare.json"
_USUAL = {"data", "label", "id_column", "party", "test_size", "hospitals", "centres", "parties"}
_USUAL |= {"users"}  # what the short help shows of a table's options
#: All presets of the papers.
ALL = "papers"


def compare_presets(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PRESET]...",
            click_type=click.Choice([*NAMES, *registered(), ALL]),
            help="Presets or registered methods; none of a table of your own.",
        ),
    ] = None,
    *,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Of a table of your own: methods to compare, separated by commas (default: all "
            f"that can, of {', '.join(METHODS_OF_TABLES)}).",
            rich_help_panel=DATA,
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(click_type=click.Choice(["in-process", "ray"]))
    ] = None,
    datasets: Annotated[
        str | None,
        typer.Option(
            help="Data sets of the preset to use, separated by commas, or NAME=FILE where its file "
            "is not in the folder FEDKERN_DATA; of registered methods also files of features."
        ),
    ] = None,
    paper_split: Annotated[
        bool,
        typer.Option(
            "--paper-split",
            help="Of FedCG's Tables 2 to 7: hold out the rows that the paper's programs do.",
        ),
    ] = False,
    runs: Annotated[
        int | None,
        typer.Option(
            "--runs",
            "--splits",
            help="Draws per method; of your own table splits (default: 10).",
        ),
    ] = None,
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
    **own: Any,
) -> None:
    """Compare methods on a table of your own, or on that of a preset.

    With --data or --party: methods at their defaults beside scikit-learn's on pooled data, and
    beside what each party has alone.

    A preset is the demo, a table or figure of a paper, or 'papers': all of them whose data is in
    the folder named by FEDKERN_DATA. Registered methods are presets too: those that are named are
    compared with each other. A comparison that was interrupted goes on when it is started again:
    finished draws are kept.
    """
    screen = Screen(quiet, json_target)
    if jobs is not None and jobs < 1:
        raise OptionError(f"jobs is {jobs}", remedy="use at least 1", code="FK-OPTION-RANGE")
    tell = json_writer(json_target)
    asked = {k: v for k, v in (("rounds", rounds), ("clients", clients)) if v is not None}
    if own["data"] or own["party"]:
        _refuse(
            {**asked, "datasets": datasets, "paper_split": paper_split or None},
            "presets, not for a table of your own",
        )
        if names:
            raise OptionError(
                "a preset has data of its own",
                remedy="leave it out, or --data",
                code="FK-OPTION-BOTH",
            )
        named = [name.strip() for name in (methods or "").split(",") if name.strip()]
        table, left_out = own_table(own, named)
        listed, stem = [table], table.title.rpartition(" ")[2]
        jobs = jobs or 1  # so that seconds are comparable
    else:
        _refuse({**own, "methods": methods}, "a table of your own, which --data names")
        if not names:
            raise OptionError(
                "there is nothing to compare",
                remedy="name a preset, or a table with --data",
                code="FK-COMMAND-MISSING",
            )
        listed, left_out = _presets(names, datasets, paper_split)
        stem = names[0] if len(names) == 1 else "several"
    for reason in left_out:
        screen.note(f"left out: {reason}")
    chosen = [_adjust(one, cast("Engine | None", engine), runs, seed, asked) for one in listed]
    folder = chosen_folder(out, f"compare-{stem}")
    with folder_of_results(folder, _RESULT, force=force):
        store = CellStore(Path(cells), fresh=fresh)
        compared, failures = _run_all(screen, chosen, _Engines(store, seed, jobs, ray_address))
        left_out += [f"{name}: {error}" for name, error in failures.items()]
        from ..lab.comparison_report import comparison_result, write_comparison_report

        results = [comparison_result(one, comparisons, seed) for one, comparisons in compared]
        alone = len(chosen) == 1
        result: dict[str, Any] = results[0] if alone else {"presets": results}
        result["left_out"] = left_out
        write_atomically(folder / _RESULT, json.dumps(result, allow_nan=False).encode())
        report = write_comparison_report(
            folder, compared, seed=seed, left_out=left_out, alone=alone
        )
    screen.result(f"report: {report.resolve()}")
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


def _presets(
    names: list[str], datasets: str | None, paper_split: bool
) -> tuple[list[Preset], list[str]]:
    """Return the presets asked for, and why others are left out.

    Raises
    ------
    OptionError, TableError
    """
    own = [name for name in names if name in registered()]
    others = [name for name in names if name not in own]
    if datasets and (len(others) + bool(own) > 1 or ALL in names):
        raise OptionError(
            "--datasets goes with one preset",
            remedy="compare them one by one",
            code="FK-COMPARE-DATASETS",
        )
    if names == [ALL]:
        found, missing, code = [], defaultdict(list), ""
        for name in PAPERS:
            try:
                found.append(preset(name, (), paper_split=paper_split))
            except TableError as error:
                missing[f"{error.problem}; {error.remedy}"].append(name)
                code = error.code
        left_out = [f"{', '.join(named)}: {reason}" for reason, named in missing.items()]
        if not found:
            raise TableError("; ".join(left_out), code=code)
        return found, left_out
    if ALL in names:
        raise OptionError(
            f"{ALL} are all presets of the papers", remedy="name it alone", code="FK-COMPARE-TWICE"
        )
    if len(set(names)) < len(names):
        raise OptionError(
            "a preset is named twice", remedy="name each once", code="FK-COMPARE-TWICE"
        )
    pairs = [d.strip().partition("=") for d in (datasets or "").split(",") if d.strip()]
    files = {name: file for name, sign, file in pairs if sign}
    if own and files:
        raise OptionError(
            "NAME=FILE is for presets",
            remedy="name files of features by themselves",
            code="FK-COMPARE-FILES",
        )
    wanted = tuple(name for name, *_ in pairs)
    beside = [registered_methods(own, wanted)] if own else []
    found = [preset(name, wanted, files, paper_split=paper_split) for name in others]
    return beside + found, []


def _refuse(given: Mapping[str, Any], purpose: str) -> None:
    """Refuse options that are for something else."""
    for name, value in given.items():
        if value not in (None, []):
            flag = name.removesuffix("_column").replace("_", "-")
            raise OptionError(
                f"--{flag} is for {purpose}", remedy=f"leave out --{flag}", code="FK-COMPARE-OPTION"
            )


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
        for part in parts[len(comparisons) :]:
            if any(records[cell.key] is None for _, cell in part.named()):
                return
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
            screen.subject = titles[cell.key]
            share = min(steps / total, 1.0) if total else 1.0  # what follows the steps has no count
            bar.update(titles[cell.key], finished + share, len(missing))

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
            what = f"{titles[failed.cell.key]}: {failed.error}"
            told = FedKernError(what, remedy="finished draws are kept", code="")  # that of the draw
            failed.error.args = told.args
            raise failed.error from None
    return comparisons


def _show(
    screen: Screen, chosen: Preset, part: Part, record_of: Callable[[Cell], Record]
) -> Comparison:
    """Show the table of a part, and which of the paper's figures it misses."""
    comparison, family = compare(part, record_of), part.section.family
    if part.section.title and part.dataset == next(iter(part.section.data)):
        screen.result(f"\n{part.section.title}")
    draws = family.draws if chosen.runs > 1 else family.draws.removesuffix("s")
    screen.table(
        f"{part.dataset}: {part.section.size(comparison.facts)}, {chosen.engine}, "
        f"{chosen.runs} {draws}",
        headings(comparison),
        table_rows(comparison),
    )
    for note in comparison.notes:
        screen.note(f"note: {note}")
    for pair in comparison.pairs:
        if pair.reversed:
            screen.result(f"reversed: {pair.better} is not better than {pair.worse}")
    figures = paper_figures(comparison)
    if missed := [figure.cells() for figure in figures if figure.misses]:
        counts = count_misses(figures)
        screen.table(
            f"{part.dataset}: {counts['missed']} of {counts['figures']} figures of the paper are "
            f"missed by more than the spread, {counts['better']} for the better",
            HEADINGS[1:],
            [cells[1:] for cells in missed],
            text=2,
        )
    if text := verdict(comparison):
        screen.result(text)
    return comparison


def _adjust(
    chosen: Preset, engine: Engine | None, runs: int | None, seed: int, asked: Mapping[str, Any]
) -> Preset:
    """Apply what the user asked for instead of the preset's own settings."""
    if runs is not None and runs < 1:
        raise OptionError(f"runs is {runs}", remedy="use at least 1", code="FK-OPTION-RANGE")
    check_seed(seed, chosen.runs if runs is None else runs)
    for name in asked:
        if not any(_may_set(settings, name) for settings in chosen.data.values()):
            raise OptionError(
                f"{chosen.name} has no {name}",
                remedy=f"leave out --{name}",
                code="FK-COMPARE-OPTION",
            )

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


command = as_command(
    "compare",
    with_options(compare_presets, own_options(), _USUAL),
    epilog=f"Presets: {', '.join((*NAMES, ALL))}.",
)
