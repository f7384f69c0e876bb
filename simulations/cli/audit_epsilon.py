"""``fedkern audit epsilon``: can the best test prove more epsilon than a run declares?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fedkern_flwr.errors import OptionError

from ..lab.audits.budgets import CASES, DELTA, Audited, audit_epsilon
from ..methods.experiment import versions
from ..run.entries import check_seed
from ..run.folders import json_writer
from .console import Screen, plain_table

_COLUMNS = ("sum", "declared", "at most provable", "proven", "proven if normal", "told apart", "")
_LEAST = 100  # draws
_LEVEL = 0.95  # of all bounds together


def audit_budgets(
    epsilon: Annotated[str, typer.Option(help="Budgets to declare, parted by commas.")] = "1,3,8",
    draws: Annotated[int, typer.Option(help="Releases of each of the two tables.")] = 5000,
    seed: Annotated[int, typer.Option(help="Seed of the search for the worst record.")] = 0,
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
    confidence = 1.0 - (1.0 - _LEVEL) / (2 * len(CASES) * len(budgets))
    found: list[Audited] = []
    with screen.progress() as bar:
        for case in CASES:
            for one in budgets:
                bar.update(f"{case.title}, epsilon {one:g}", len(found), len(CASES) * len(budgets))
                found.append(
                    audit_epsilon(case, one, draws=draws, seed=seed, confidence=confidence)
                )
    table = plain_table()
    for number, name in enumerate(_COLUMNS):
        table.add_column(name, justify="left" if number == 0 else "right")
    for audited in found:
        table.add_row(*_cells(audited))
    screen.console.print(table)
    broken = [f"{a.case.title} at {a.epsilon:g}" for a in found if not a.kept]
    verdict = f"BROKEN: {', '.join(broken)}" if broken else "no bound is above what is declared"
    screen.note(verdict)
    tell(
        {
            "method": "epsilon",
            "verdict": "BROKEN" if broken else "kept",
            "confidence": _LEVEL,
            "delta": DELTA,
            "draws": draws,
            "seed": seed,
            "checks": [_entry(audited) for audited in found],
            "versions": versions(),
        }
    )
    if broken:
        raise typer.Exit(3)


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


def _cells(audited: Audited) -> list[str]:
    bounds = audited.epsilon, audited.reached, audited.proven, audited.gaussian
    verdict = "[green]kept[/]" if audited.kept else "[bold red]BROKEN[/]"
    apart = f"{100 * audited.advantage:.0f} %"
    return [audited.case.title, *(f"{value:.2f}" for value in bounds), apart, verdict]


def _entry(audited: Audited) -> dict[str, Any]:
    return {
        "method": audited.case.method,
        "sum": audited.case.sum,
        "parties": audited.case.parties,
        "least": audited.case.least or audited.case.parties,
        "colluders": audited.case.colluders,
        "epsilon": audited.epsilon,
        "provable": audited.reached,
        "proven": audited.proven,
        "proven_if_normal": audited.gaussian,
        "advantage": audited.advantage,
        "moved": audited.moved,
        "sensitivity": audited.sensitivity,
        "kept": audited.kept,
    }
