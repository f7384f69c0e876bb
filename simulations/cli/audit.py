"""``fedkern audit``: the known attacks against a method with the options of your choice."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.markup import escape

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import OptionError
from fedkern_flwr.privacy.accounting import check_accountant

from ..lab.audits import PLANS, Audited, Plan, Variant, audit, budget_report, plan_of
from ..lab.audits.engine import Progress
from ..lab.audits.report import COLUMNS, cells, write_audit
from ..lab.audits.report_all import write_all
from ..methods.experiment import versions
from ..methods.registry import family
from ..run.entries import check_seed
from ..run.folders import FORCE, chosen_folder, folder_of_results, json_writer
from ..run.options import RUN, Option
from .audit_epsilon import audit_budgets
from .console import Screen, plain_table
from .lazy import as_command
from .options import by_method
from .run import run_options

_RESULT = "audit.json"
#: Exit code of an audit that found more than is documented.
LEAK = 3
_FEW = 200  # trials of a check
_OF_SIMULATIONS = (
    *("engine", "ray_address", "drop", "runs", "resplit", "resume"),
    "explain_columns",
    "track",
    "party",
)
_NO_OPTIONS = (*_OF_SIMULATIONS, "out", "force", "json_target", "quiet", "seed", "trials")
_TEXTS = 3  # columns of text
#: Seeds that a paper's option gets to show what it gives away: of FDSKL's trees about half do.
_DRAWS = 5
_COLOURS = {"nothing": "green", "documented": "yellow", "LEAK": "bold red"}
_TRIALS = Option("trials", int, _FEW, "Least trials of a check.", RUN)

AUDITED = tuple(name for plan in PLANS for name in plan.methods)


def audit_options(name: str) -> list[Option]:
    """Return the options of an audit: those of a run that apply, as deployments have them."""
    plan, every = plan_of(name), run_options(name)
    hidden = {*_OF_SIMULATIONS, *plan.hidden}
    hidden |= {o.name for o in every if o.name == "secure" and o.default is None}  # others decide
    shown = [o for o in every if o.name not in hidden]
    changed = [replace(o, default=plan.defaults.get(o.name, o.default)) for o in shown]
    return [*changed, *plan.own, _TRIALS]


def audit_method(name: str, values: dict[str, Any]) -> None:
    """Audit a method with the options of the command line, show and save what was found."""
    screen = Screen(values["quiet"])
    defaults = {o.name: o.default for o in audit_options(name)}
    chosen = {
        key: value
        for key, value in values.items()
        if key not in _NO_OPTIONS and value != defaults[key]
    }
    tell = json_writer(values["json_target"])
    _check(values["trials"], values["seed"])
    folder = chosen_folder(values["out"], f"audit-{name}")
    with folder_of_results(folder, _RESULT, force=values["force"]):
        with screen.progress() as bar:
            done = _audit(Variant(name, chosen), values, bar.update)
        _show(screen, done)
        facts = _facts(values["seed"], values["trials"])
        result = {**done.to_dict(), **_common(values)}
        _save(folder, result)
        page = write_audit(folder / "audit.html", done, facts, plan_of(name).why)
    screen.note(f"report: {page.resolve()}")
    tell(result)
    if done.leaks:
        raise typer.Exit(LEAK)


def audit_all(
    trials: Annotated[int, typer.Option(help=_TRIALS.help)] = _FEW,
    seed: Annotated[int, typer.Option(help="Seed of the data, the runs and the trials.")] = 0,
    out: Annotated[str | None, typer.Option(help="Folder of the audit.")] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
    json_target: Annotated[
        str | None, typer.Option("--json", help="Write the result here; - for stdout.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")] = False,
) -> None:
    """Audit every method as it is, and with the options of papers.

    Exit code 0 if each default shows nothing beyond what is documented, each paper's option is
    found to give away what it is said to give away, with this seed or one of the next, and no test
    proves more epsilon than sums with noise are charged; else 3.
    """
    screen = Screen(quiet)
    tell = json_writer(json_target)
    _check(trials, seed)
    check_accountant()
    folder = chosen_folder(out, "audit-all")
    audits: list[Audited] = []
    with folder_of_results(folder, _RESULT, force=force), screen.progress() as bar:
        for variant in (variant for plan in PLANS for variant in plan.variants):
            for drawn in range(seed, seed + (_DRAWS if variant.leaks else 1)):
                values = {**_defaults(variant), "seed": drawn, "trials": trials}
                done = _audit(variant, values, bar.update)
                if done.as_expected:
                    break
            audits.append(done)
            _line(screen, done)
        budgets = budget_report.audit_all_budgets(bar.update, seed=seed)
    screen.note(f"{budget_report.COMMAND}: {budgets.outcome}")
    common = _common({"seed": seed, "trials": trials})
    number = sum(done.as_expected for done in audits) + budgets.kept
    good = number == len(audits) + 1
    result = {
        "method": "all",
        "verdict": "as documented" if good else "not as documented",
        "audits": [
            {
                **done.to_dict(),
                "expected": list(done.variant.leaks),
                "as_expected": done.as_expected,
            }
            for done in audits
        ],
        "epsilon": budget_report.to_dict(budgets),
        **common,
    }
    _save(folder, result)
    page = write_all(folder / "audit.html", audits, budgets, _facts(seed, trials))
    screen.note(f"{number} of {len(audits) + 1} audits as documented")
    screen.note(f"report: {page.resolve()}")
    tell(result)
    if not good:
        raise typer.Exit(LEAK)


def _audit(variant: Variant, values: Mapping[str, Any], progress: Progress) -> Audited:
    own, plan = family(variant.method), plan_of(variant.method)
    with TemporaryDirectory() as folder:
        config = _config(plan, variant.method, values, Path(folder))
        own.check(config)
        began = time.monotonic()
        found = audit(plan, config, trials=values["trials"], progress=progress)
    return Audited(variant, found, config, time.monotonic() - began)


def _config(plan: Plan, name: str, values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the configuration of the runs that are attacked."""
    hidden = {o.name: o.default for o in family(name).parameters()}
    config = family(name).config(name, plan.complete({**hidden, **values}, folder))
    return {**config, **{o.name: values[o.name] for o in plan.own}}


def _defaults(variant: Variant) -> dict[str, Any]:
    return {o.name: o.default for o in audit_options(variant.method)} | dict(variant.options)


def _check(trials: int, seed: int) -> None:
    check_seed(seed)
    if trials < 1:
        raise OptionError(f"trials is {trials}", remedy=f"use at least {_FEW} to see small leaks")


def _common(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"seed": values["seed"], "trials": values["trials"], "versions": versions()}


def _facts(seed: int, trials: int) -> dict[str, str]:
    named = ", ".join(f"{name} {number}" for name, number in versions().items())
    return {"seed": str(seed), "least trials of a check": str(trials), "versions": named}


def _show(screen: Screen, done: Audited) -> None:
    """Print the table of an audit; text wraps, figures do not."""
    shown = plain_table()
    for number, name in enumerate(COLUMNS):
        if number < _TEXTS:
            shown.add_column(name, min_width=12)
        else:
            shown.add_column(name, justify="right", no_wrap=True)
    for row in map(cells, done.findings):
        shown.add_row(*map(escape, row[:-1]), f"[{_COLOURS[row[-1]]}]{row[-1]}[/]")
    screen.note(f"\n{done.variant.command}")
    screen.console.print(shown)
    _line(screen, done)


def _line(screen: Screen, done: Audited) -> None:
    """Print the outcome of an audit in a line."""
    found = ", ".join(done.leaks) or "nothing beyond what is documented"
    screen.note(f"{done.variant.command}: {'LEAK: ' if done.leaks else ''}{found}")


def _save(folder: Path, result: Mapping[str, Any]) -> None:
    write_atomically(folder / _RESULT, json.dumps(result, allow_nan=False).encode())


_TEXT = "Attack a method and report what is recovered."
command = by_method("audit", _TEXT, AUDITED, audit_method, audit_options)
command.add_command(as_command("all", audit_all))
command.add_command(as_command("epsilon", audit_budgets))
