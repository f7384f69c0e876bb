"""``fedkern node ledger show`` and ``clean``: what a node has answered, and its old files."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkern_flwr.checkpoint import session_of
from fedkern_flwr.errors import OptionError
from fedkern_flwr.guard.ledger import NOT_ENDED, NodeLedger, RunSummary, ledger_totals

from ..warm_node.report import NodeStatus
from .console import print_table
from .node_freeze import known_ledger

_WIDTH, _METHOD = 100, 18  # columns of a line, and of the name of a method in it
_UNITS = {"h": 3600.0, "d": 86400.0, "w": 604800.0}
#: What a prediction with the model of the run needs of a node.
_MODEL = (".model", ".weights", ".state")
#: What has keys of a session: a run that is resumed draws new ones.
_KEYS = (".context", ".tmp")

_Folder = Annotated[Path, typer.Option("--state-dir", help="The node's own folder.")]


def show_ledger(
    state_dir: _Folder,
    run: Annotated[int | None, typer.Option(min=1, help="All of one run, by its number.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show runs, sums and refusals: no rows, no ids, no values."""
    ledger = known_ledger(state_dir)
    runs = [one for one in ledger.runs() if run in (None, one.number)]
    if run is not None and not runs:
        raise OptionError(
            f"--run: the ledger has no run {run}",
            remedy="leave it out to see all",
            code="FK-OPTION-RANGE",
        )
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in runs], indent=2))
    elif run is not None:
        for name, value in _facts(runs[0]):
            typer.echo(f"{name:<18} {value}")
    else:
        _show_all(state_dir, ledger, runs)


def _show_all(state_dir: Path, ledger: NodeLedger, runs: list[RunSummary]) -> None:
    heads = ("run", "opened (UTC)", "method", "rows", "parties", "figures", "refused", "epsilon")
    lines = [heads, *map(_cells, runs)]
    widths = [max(map(len, column)) + 2 for column in zip(*lines, strict=True)]
    for line, names in zip(lines, [("sums",), *(run.sums for run in runs)], strict=True):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo("".join(cells) + _short(", ".join(names) or "-", _WIDTH - sum(widths)))
    refused = [
        (str(number) if number else "-", rule, str(times))
        for number, rule, times in ledger.refusals()
    ]
    if refused:
        print_table(("run", "refused", "times"), refused)
    if spent := ledger.spent():
        typer.echo(f"all runs with noise together: epsilon {spent:.3g} of a row, at most")
    totals = ledger_totals(state_dir)
    for limit in totals.near if totals else ():
        typer.echo(f"warning: {limit}")


def _cells(run: RunSummary) -> tuple[str, ...]:
    named = run.number, run.opened[:16], _short(run.method, _METHOD), run.rows, _parties(run)
    return tuple(map(str, (*named, run.evaluations, run.refusals, _epsilon(run))))


def _facts(run: RunSummary) -> Iterator[tuple[str, Any]]:
    """Yield what the ledger has of one run, by name."""
    about = run.about
    yield from (("run", run.number), ("session", about.session), ("Flower run", about.flower_run))
    yield from (("opened (UTC)", run.opened), ("ended (UTC)", run.ended or "-"))
    yield from (("method", run.method), ("release", about.release), ("app", about.app))
    yield from (("settings", about.settings), ("settings digest", about.settings_digest))
    yield from (("rows", run.rows), ("parties", _parties(run)), ("sums", ", ".join(run.sums)))
    yield from (("figures told", run.evaluations), ("refusals", run.refusals))
    yield "epsilon", _epsilon(run)


def _epsilon(run: RunSummary) -> str:
    return f"{run.epsilon:.3g}" if run.epsilon else "-"


def _parties(run: RunSummary) -> str:
    return f"{run.parties}{'' if run.pinned else '?'}" if run.secure else "plain"


def _short(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(room, 4) - 3]}..."


def clean_folders(
    state_dir: _Folder,
    older_than: Annotated[
        str, typer.Option(help="Not written for longer, such as 12h, 30d or 8w.")
    ],
    models: Annotated[
        bool, typer.Option("--models", help="Also parts of models: predictions need them.")
    ] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Also runs that broke off; they cannot be resumed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be removed.")
    ] = False,
) -> None:
    """Remove files of old runs. Ledger, freeze, keys and secrets for later runs stay."""
    limit = time.time() - _seconds(older_than)
    ledger, status = known_ledger(state_dir), NodeStatus.read(state_dir)
    if status is not None and status.running and status.busy:
        raise OptionError(
            "the node is answering a message",
            remedy="wait until `fedkern node status` shows none under way, or stop the node",
            code="FK-NODE-BUSY",
        )
    count = 0
    for folder in sorted(state_dir.iterdir()):
        session = "" if folder.is_symlink() or not folder.is_dir() else session_of(folder)
        files = [*folder.glob("partition-*"), *folder.glob(".partition-*.tmp")] if session else []
        gone = [file for file in files if models or file.suffix not in _MODEL]
        used = max((file.stat().st_mtime for file in files), default=limit)
        if not gone or used >= limit:
            continue
        if why := ledger.clean(session, unfinished=unfinished, dry_run=dry_run):
            gone = [file for file in gone if file.suffix in _KEYS and why == NOT_ENDED]
            typer.echo(f"kept {folder.name}: {why}{', but no keys of its session' * bool(gone)}")
        else:
            count += 1
            kept = f", {len(files) - len(gone)} of its model stay" if len(files) > len(gone) else ""
            typer.echo(f"{folder.name}: {len(gone)} files{kept}")
        if not dry_run:
            for file in gone:
                file.unlink()
            with suppress(OSError):  # not empty
                folder.rmdir()
    typer.echo(f"{'would clean' if dry_run else 'cleaned'} {count} runs")


def _seconds(text: str) -> float:
    """Return a time such as 30d in seconds.

    Raises
    ------
    OptionError
    """
    found = re.fullmatch(r"(\d{1,6})([hdw])", text)
    if found is None:
        raise OptionError(
            f"--older-than is {text!r}", remedy="write 12h, 30d or 8w", code="FK-OPTION-TYPE"
        )
    return int(found[1]) * _UNITS[found[2]]
