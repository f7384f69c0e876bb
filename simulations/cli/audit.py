"""``fedkern audit``: attacks on the protocols of the papers and on the defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click
from rich.markup import escape

from ..attacks.audit import METHODS, Outcome, audit
from ..methods.experiment import versions
from ..run.entries import check_seed
from ..run.options import argument, switch
from ..run.run_folder import json_writer
from .console import Screen, plain_table, print_whole
from .options import of_function

#: Exit code of an audit that recovered more than is admitted.
LEAK = 3
_LINES = 3  # of one attack, at most
_COLOURS = {"fails": "green", "admitted": "yellow", "LEAK": "bold red"}


@dataclass(frozen=True)
class AuditOptions:
    """Options of ``fedkern audit``.

    Attributes
    ----------
    method : str or None
        Method to attack; all without it.
    seed : int
        Seed of data, runs and attacks.
    json_target : str or None
        Write the result here; - for stdout.
    quiet : bool
        Show nothing but errors.
    """

    method: str | None = argument(None, metavar="[METHOD]", choices=tuple(METHODS))
    seed: int = 0
    json_target: str | None = None
    quiet: bool = switch()


def audit_command(asked: AuditOptions) -> None:
    """Run the known attacks on the protocols of the papers and on the defaults.

    Exit code 0 if each attack on a default fails or recovers what the method admits, else 3.
    """
    screen, write = Screen(asked.quiet, asked.json_target), json_writer(asked.json_target)
    check_seed(asked.seed)
    with screen.progress() as bar:
        found = audit(asked.method, asked.seed, bar.update)
    show(screen, found)
    leaks = [outcome.attack.name for outcome in found if "LEAK" in outcome.verdicts]
    screen.result(f"LEAK: {', '.join(leaks)}" if leaks else "nothing beyond what is admitted")
    write(
        {
            "method": asked.method or "all",
            "seed": asked.seed,
            "verdict": "LEAK" if leaks else "as admitted",
            "attacks": [outcome.to_dict() for outcome in found],
            "versions": versions(),
        }
    )
    if leaks:
        raise click.exceptions.Exit(LEAK)


def show(screen: Screen, found: Sequence[Outcome]) -> None:
    """Print a line for each attack and viewer.

    The strongest of many viewers represents all.
    """
    table = plain_table("attack", "succeeds on", "score", "on the default, by", "score", "limit")
    table.add_column("verdict", no_wrap=True)
    for number, width in ((0, 26), (1, 26), (3, 34)):
        table.columns[number].max_width = width
    for number in (2, 4, 5):
        table.columns[number].justify, table.columns[number].no_wrap = "right", True
    for outcome in found:
        attack = outcome.attack
        paper = f"{min(seen.score for seen in outcome.paper):.2f}"
        cells = [escape(attack.name), escape(attack.protocol), paper]
        lines = list(zip(outcome.default, outcome.verdicts, strict=True))
        many = f"most of {len(lines)}: " if len(lines) > _LINES else ""
        for seen, verdict in [max(lines, key=lambda line: line[0].score)] if many else lines:
            coloured = f"[{_COLOURS[verdict]}]{verdict}[/]"
            scores = f"{seen.score:.2f}", f"{attack.threshold:.2f}"
            table.add_row(*cells, escape(many + seen.viewer), *scores, coloured)
            cells = ["", "", ""]
    print_whole(screen.results, table)


command = of_function("audit", audit_command, AuditOptions)
