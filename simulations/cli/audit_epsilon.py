"""``fedkern audit epsilon``: can the best test prove more epsilon than a run declares?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from rich.markup import escape

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import OptionError
from fedkern_flwr.privacy.accounting import check_accountant

from ..lab.audits import budget_report
from ..lab.audits.budget_report import BUDGETS, DRAWS, Budgets
from ..methods.experiment import versions
from ..run.entries import check_seed
from ..run.folders import FORCE, chosen_folder, folder_of_results, json_writer
from .console import Screen, plain_table

_RESULT = "audit.json"
_LEAST = 100  # draws
_BROKEN = 3  # exit code
_COLOURS = {"kept": "green", "no budget": "yellow", "BROKEN": "bold red"}
_DECLARED = ",".join(map("{:g}".format, BUDGETS))


def audit_budgets(
    epsilon: Annotated[str, typer.Option(help="Budgets to declare, parted by commas.")] = _DECLARED,
    draws: Annotated[int, typer.Option(help="Releases of each of the two tables.")] = DRAWS,
    seed: Annotated[int, typer.Option(help="Seed of the search for the worst record.")] = 0,
    out: Annotated[str | None, typer.Option(help="Folder of the audit.")] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
    json_target: Annotated[
        str | None, typer.Option("--json", help="Write the result here; - for stdout.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")] = False,
) -> None:
    """Release sums with noise again and again, with one record and with its worst substitute.

    The best test tells the two apart; how often it is right bounds epsilon from below, with 95 %
    confidence for all rows of the table together. Exit code 3 if a bound is above what the runs
    declare.
    """
    screen, tell = Screen(quiet), json_writer(json_target)
    check_seed(seed)
    if draws < _LEAST:
        raise OptionError(f"draws is {draws}", remedy=f"use {_LEAST} or more")
    budgets = _numbers(epsilon)
    check_accountant()
    folder = chosen_folder(out, "audit-epsilon")
    with folder_of_results(folder, _RESULT, force=force):
        with screen.progress() as bar:
            found = budget_report.audit_all_budgets(bar.update, budgets, draws, seed)
        result = {**budget_report.to_dict(found), "seed": seed, "versions": versions()}
        write_atomically(folder / _RESULT, json.dumps(result, allow_nan=False).encode())
        named = ", ".join(f"{name} {number}" for name, number in versions().items())
        facts = {"seed": str(seed), "releases of each table": str(draws), "versions": named}
        page = budget_report.write_epsilon(folder / "audit.html", found, facts)
    show(screen, found)
    screen.note(f"report: {page.resolve()}")
    tell(result)
    if not found.kept:
        raise typer.Exit(_BROKEN)


def show(screen: Screen, found: Budgets) -> None:
    """Print the tables of sums and of attacks, and what was found."""
    sums, attacks = (
        map(budget_report.cells, found.sums),
        map(budget_report.attack_cells, found.attacks),
    )
    _table(
        screen, budget_report.caption(found.draws), budget_report.COLUMNS, sums, budget_report.TEXTS
    )
    _table(screen, budget_report.ATTACK_CAPTION, budget_report.ATTACK_COLUMNS, attacks, 1)
    screen.note(found.outcome)


def _table(
    screen: Screen, caption: str, columns: Sequence[str], rows: Iterable[list[str]], texts: int
) -> None:
    """Print a table whose first columns are text."""
    table = plain_table()
    for number, name in enumerate(columns):
        text = number < texts
        heading = name if text else "\n".join(name.rsplit(" ", 1))
        table.add_column(heading, justify="left" if text else "right", no_wrap=not text)
    for *row, verdict in rows:
        table.add_row(*map(escape, row), f"[{_COLOURS[verdict]}]{verdict}[/]")
    screen.note(f"\n{caption}")
    screen.console.print(table)


def _numbers(text: str) -> list[float]:
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0.0 < one < 20.0 for one in found):
        raise OptionError(
            f"epsilon is {text[:40]!r}", remedy="use numbers between 0 and 20, such as 1,3,8"
        )
    return found
