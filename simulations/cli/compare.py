"""``fedkern compare``: methods on the same data, tables, plots and a report."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from inspect import cleandoc
from pathlib import Path
from typing import Any

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import FedKernError, OptionError, TableError
from fedkern_flwr.options import at_least
from fedkern_flwr.registered import registered
from fedkern_flwr.tables.table import how_many

from ..lab.cells import Cell, CellFailed, CellStore, Record, choose_jobs, sweep
from ..lab.comparison import (
    HEADINGS,
    Comparison,
    Part,
    compare,
    count_misses,
    headings,
    paper_figures,
    plan,
    table_rows,
    verdict,
)
from ..lab.own import own_options, own_table, registered_methods
from ..lab.presets import NAMES, PAPERS, Preset, preset
from ..run.data import Settings
from ..run.entries import check_seed
from ..run.options import DATA, argument, declare, of_fields, switch
from ..run.run_folder import chosen_folder, folder_of_results, json_writer
from .console import Screen
from .options import command as make

_RESULT = "compare.json"
_USUAL = {"data", "label", "id_column", "party", "test_size", "hospitals", "centres", "parties"}
_USUAL |= {"users"}  # what the short help shows of a table's options
#: All presets of the papers.
ALL = "papers"


@dataclass(frozen=True)
class CompareOptions:
    """Options of ``fedkern compare`` besides those of a table.

    Attributes
    ----------
    names : list of str
        Presets or registered methods; none for your own table.
    methods : str or None
        Methods to compare on your own table, separated by commas.
    datasets : str or None
        Data sets of a preset, separated by commas, or NAME=FILE.
    paper_split : bool
        FedCG's Tables 2 to 7: hold out the rows of the paper.
    runs : int or None
        Runs per method, or splits of your own table (default: 10).
    rounds : int or None
        Samples per client, or most iterations.
    clients : int or None
        Number of clients.
    seed : int
        Seed of splits and runs.
    jobs : int or None
        Runs at a time (default: processors if runs are averaged, else 1).
    ray_address : str or None
        Ray cluster: host:port, or auto for a local one.
    cells : str
        Folder of finished runs, which are not computed again.
    fresh : bool
        Compute all runs again.
    out : str or None
        Folder of the comparison.
    force : bool
        Replace what an earlier command left in --out.
    json_target : str or None
        Write the results here; - for stdout.
    quiet : bool
        Show nothing but errors.
    """

    names: list[str] = argument((), metavar="[PRESET]...", choices=(*NAMES, *registered(), ALL))
    methods: str | None = declare(None, panel=DATA)
    datasets: str | None = None
    paper_split: bool = switch()
    runs: int | None = declare(None, flag="--runs --splits")
    rounds: int | None = None
    clients: int | None = None
    seed: int = 0
    jobs: int | None = None
    ray_address: str | None = None
    cells: str = "runs/cells"
    fresh: bool = switch()
    out: str | None = None
    force: bool = switch()
    json_target: str | None = None
    quiet: bool = switch()


def compare_presets(values: dict[str, Any]) -> None:
    """Compare methods on your own table, or on that of a preset.

    With --data or --party, methods run with their defaults, compared with pooled and local models
    of scikit-learn.

    A preset is the demo, a table or figure of a paper, or 'papers': all with data in the folder of
    FEDKERN_DATA. Registered methods are presets too. Finished runs are kept, so an interrupted
    comparison continues when it is started again.
    """
    asked = CompareOptions(**{one.name: values.pop(one.name) for one in fields(CompareOptions)})
    screen = Screen(asked.quiet, asked.json_target)
    if asked.jobs is not None:
        at_least("jobs", asked.jobs, 1)
    write = json_writer(asked.json_target)
    sizes = {name: getattr(asked, name) for name in ("rounds", "clients")}
    sizes = {name: value for name, value in sizes.items() if value is not None}
    names = [*asked.names]
    if values["data"] or values["party"]:
        own = {"datasets": asked.datasets, "paper_split": asked.paper_split or None}
        _refuse({**sizes, **own}, "presets, not for a table of your own")
        if names:
            raise OptionError("a preset has data of its own", code="FK-OPTION-BOTH")
        named = [name.strip() for name in (asked.methods or "").split(",") if name.strip()]
        table, left_out = own_table(values, named)
        listed, stem = [table], table.title.rpartition(" ")[2]
        asked = replace(asked, jobs=asked.jobs or 1)  # so that seconds are comparable
    else:
        _refuse({**values, "methods": asked.methods}, "a table of your own, which --data names")
        if not names:
            raise OptionError(
                "there is nothing to compare",
                remedy="name a preset, or a table with --data",
                code="FK-COMMAND-MISSING",
            )
        listed, left_out = _presets(names, asked.datasets, asked.paper_split)
        stem = names[0] if len(names) == 1 else "several"
    for reason in left_out:
        screen.note(f"left out: {reason}")
    chosen = [_adjust(one, asked, sizes) for one in listed]
    folder = chosen_folder(asked.out, f"compare-{stem}")
    with folder_of_results(folder, _RESULT, force=asked.force):
        store = CellStore(Path(asked.cells), fresh=asked.fresh)
        compared, failures = list[tuple[Preset, list[Comparison]]](), dict[str, FedKernError]()
        for one in chosen:
            if len(chosen) > 1:
                screen.note(f"\n{one.title}")
            try:
                compared.append((one, _run(screen, one, store, asked)))
            except FedKernError as error:
                if len(failures) + 1 == len(chosen):
                    raise
                failures[one.name] = error
                screen.note(f"failed: {error}")
        left_out += [f"{name}: {error}" for name, error in failures.items()]
        from ..lab.comparison_report import comparison_result, write_comparison_report

        results = [comparison_result(one, made, asked.seed) for one, made in compared]
        alone = len(chosen) == 1
        result: dict[str, Any] = results[0] if alone else {"presets": results}
        result["left_out"] = left_out
        write_atomically(folder / _RESULT, json.dumps(result, allow_nan=False).encode())
        report = write_comparison_report(
            folder, compared, seed=asked.seed, left_out=left_out, alone=alone
        )
    screen.result(f"report: {report.resolve()}")
    write(result)
    if failures:
        raise next(iter(failures.values()))


def _presets(
    names: list[str], datasets: str | None, paper_split: bool
) -> tuple[list[Preset], list[str]]:
    """Return the chosen presets, and why others are missing."""
    own = [name for name in names if name in registered()]
    others = [name for name in names if name not in own]
    if datasets and (len(others) + bool(own) > 1 or ALL in names):
        raise OptionError("--datasets goes with one preset", code="FK-COMPARE-DATASETS")
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
        raise OptionError(f"{ALL} are all presets of the papers", code="FK-COMPARE-TWICE")
    if len(set(names)) < len(names):
        raise OptionError("a preset is named twice", code="FK-COMPARE-TWICE")
    pairs = [d.strip().partition("=") for d in (datasets or "").split(",") if d.strip()]
    files = {name: file for name, sign, file in pairs if sign}
    if own and files:
        raise OptionError("NAME=FILE is for presets", code="FK-COMPARE-FILES")
    wanted = tuple(name for name, *_ in pairs)
    beside = [registered_methods(own, wanted)] if own else []
    found = [preset(name, wanted, files, paper_split=paper_split) for name in others]
    return beside + found, []


def _refuse(given: Mapping[str, Any], purpose: str) -> None:
    """Refuse options with another purpose."""
    for name, value in given.items():
        if value not in (None, []):
            flag = name.removesuffix("_column").replace("_", "-")
            raise OptionError(f"--{flag} is for {purpose}", code="FK-COMPARE-OPTION")


def _run(
    screen: Screen, chosen: Preset, store: CellStore, asked: CompareOptions
) -> list[Comparison]:
    """Compute missing runs; show each table when it is complete."""
    parts = plan(chosen, asked.seed)
    titles = {cell.key: label for part in parts for label, cell in part.named()}
    cells = {cell.key: cell for part in parts for _, cell in part.named()}
    records = {key: store.find(cell) for key, cell in cells.items()}
    missing = [cells[key] for key, record in records.items() if record is None]
    if len(missing) < len(cells):
        screen.note(f"{len(cells) - len(missing)} of {len(cells)} runs are finished already")
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
            records[cell.key] = store.keep(cell, record)
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
                jobs=choose_jobs(missing, chosen.runs) if asked.jobs is None else asked.jobs,
                ray_address=asked.ray_address,
                progress=progress,
                done=done,
            )
        except CellFailed as failed:
            what = f"{titles[failed.cell.key]}: {failed.error}"
            told = FedKernError(what, remedy="finished runs are kept", code="")  # that of the draw
            failed.error.args = told.args
            raise failed.error from None
    return comparisons


def _show(
    screen: Screen, chosen: Preset, part: Part, record_of: Callable[[Cell], Record]
) -> Comparison:
    """Show the table of a part, and the figures of the paper that it misses."""
    comparison = compare(part, record_of)
    if part.section.title and part.dataset == next(iter(part.section.data)):
        screen.result(f"\n{part.section.title}")
    screen.table(
        f"{part.dataset}: {part.section.size(comparison.facts)}, {how_many(chosen.runs, 'run')}",
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


def _adjust(chosen: Preset, asked: CompareOptions, sizes: Mapping[str, int]) -> Preset:
    """Apply the options of the user to a preset."""
    if asked.runs is not None:
        at_least("runs", asked.runs, 1)
    runs = asked.runs or chosen.runs
    check_seed(asked.seed, runs)
    for name in sizes:
        if not any(_may_set(settings, name) for settings in chosen.data.values()):
            raise OptionError(f"{chosen.name} has no {name}", code="FK-COMPARE-OPTION")

    def change(every: Mapping[str, Settings]) -> dict[str, Settings]:
        made = {}
        for name, settings in every.items():
            own: dict[str, Any] = {k: v for k, v in sizes.items() if _may_set(settings, k)}
            made[name] = replace(settings, **own, seed=asked.seed)
        return made

    sections = [
        replace(
            section,
            data=change(section.data),
            dealt={dataset: change(dealt) for dataset, dealt in section.dealt.items()},
        )
        for section in chosen.sections
    ]
    return replace(chosen, sections=tuple(sections), runs=runs)


def _may_set(settings: Settings, name: str) -> bool:
    return name in settings.adjustable and hasattr(settings, name)


command = make(
    "compare",
    cleandoc(compare_presets.__doc__ or ""),
    [*of_fields(CompareOptions, ""), *own_options()],
    compare_presets,
    _USUAL | {one.name for one in fields(CompareOptions)},
    epilog=f"Presets: {', '.join((*NAMES, ALL))}.",
)
