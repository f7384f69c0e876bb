"""What an audit of epsilon leaves: a table on the screen and in a page, and its JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...run.report import Block, FactsBlock, TableBlock, TextBlock, write_report
from .budget_cases import CASES
from .budgets import DELTA, Audited, audit_epsilon
from .report import explanation

ATTACK = "likelihood ratio"
COMMAND = "fedkern audit epsilon"
#: Budgets that are declared, and releases of each of the two tables, unless told otherwise.
BUDGETS, DRAWS = (1.0, 3.0, 8.0), 5000
COLUMNS = (
    *("method", "sum", "opened by", "unit"),
    *("declared", "charged", "provable", "proven", "if normal", "told apart", "verdict"),
)
TEXTS = 4  # columns of text
#: Of all bounds together.
LEVEL = 0.95

_READING = (
    "Opened by: the fewest parties over which the server can open the sum, of all. Figures are "
    "epsilon, a pure number, at the delta that is given; told apart is in per cent. Declared is "
    "the budget of the run, charged what the one sum costs of it. Provable is the epsilon of a "
    "Gaussian with this noise for these two tables: no test proves more, however often the sum is "
    "released.",
    "Proven: what the error rates of the test say of any noise. If normal: what they say of noise "
    "that is nearly normal, as this is; it needs fewer releases. Both are lower bounds, which hold "
    "together with 95 % confidence for all rows. Told apart: how much oftener the test names the "
    "one table when it was the one than when it was the other; 0 is a coin.",
    "BROKEN: a bound is above what is charged, a table moves the sum farther than is charged, or "
    "more is charged than was declared.",
)


def audit_sums(
    progress: Callable[[str, float, int], None],
    budgets: Sequence[float] = BUDGETS,
    draws: int = DRAWS,
    seed: int = 0,
) -> list[Audited]:
    """Audit all sums with some budgets, all bounds together with confidence :data:`LEVEL`."""
    every = [(case, epsilon) for case in CASES for epsilon in budgets]
    confidence = 1.0 - (1.0 - LEVEL) / (2 * len(every))
    found: list[Audited] = []
    for case, epsilon in every:
        progress(f"{case.title}, epsilon {epsilon:g}", len(found), len(every))
        found.append(audit_epsilon(case, epsilon, draws=draws, seed=seed, confidence=confidence))
    return found


def cells(audited: Audited) -> list[str]:
    """Return the row of a sum in a table."""
    bounds = audited.declared, audited.epsilon, audited.reached, audited.proven, audited.gaussian
    apart = f"{100 * audited.advantage:.0f} %"
    verdict = "kept" if audited.kept else "BROKEN"
    case = audited.case
    opened = f"{case.fewest} of {case.parties}"
    figures = (f"{value:.2f}" for value in bounds)
    return [case.method, case.sum, opened, case.unit, *figures, apart, verdict]


def outcome(audits: Sequence[Audited]) -> str:
    """Say in a line what was found."""
    broken = [f"{a.case.title} at {a.declared:g}" for a in audits if not a.kept]
    if broken:
        return f"BROKEN: {', '.join(broken)}"
    return f"{len(audits)} sums, no bound is above what is charged"


def caption(draws: int) -> str:
    """Say what the figures of the table are."""
    return f"Sums with noise: epsilon at delta {DELTA:g}, {draws:,} releases of each of two tables."


def table(audits: Sequence[Audited], draws: int) -> TableBlock:
    """Return the table of all sums."""
    marks = {(n, len(COLUMNS) - 1): "good" if a.kept else "bad" for n, a in enumerate(audits)}
    return TableBlock(caption(draws), COLUMNS, [cells(a) for a in audits], marks=marks)  # type: ignore[arg-type]


def blocks(audits: Sequence[Audited], draws: int) -> list[Block]:
    """Return table and explanation, for a page."""
    return [
        table(audits, draws),
        TextBlock("How to read it: epsilon", _READING),
        explanation(ATTACK),
    ]


def write_epsilon(path: Path, audits: Sequence[Audited], draws: int, facts: dict[str, str]) -> Path:
    """Write the report of an audit of epsilon."""
    return write_report(
        path,
        title="Audit of epsilon",
        subtitle=f"The best test of two tables against the noise of a budget: {outcome(audits)}.",
        blocks=[FactsBlock("", {"command": COMMAND, **facts}), *blocks(audits, draws)],
    )


def to_dict(audits: Sequence[Audited], draws: int) -> dict[str, Any]:
    """Return it as JSON has it."""
    return {
        "method": "epsilon",
        "verdict": "kept" if all(a.kept for a in audits) else "BROKEN",
        "confidence": LEVEL,
        "delta": DELTA,
        "draws": draws,
        "checks": [_entry(audited) for audited in audits],
    }


def _entry(audited: Audited) -> dict[str, Any]:
    return {
        "attack": ATTACK,
        "method": audited.case.method,
        "sum": audited.case.sum,
        "parties": audited.case.parties,
        "least": audited.case.fewest,
        "colluders": audited.case.colluders,
        "unit": audited.case.unit,
        "declared": audited.declared,
        "charged": audited.epsilon,
        "provable": audited.reached,
        "proven": audited.proven,
        "proven_if_normal": audited.gaussian,
        "told_apart": audited.advantage,
        "moved": audited.moved,
        "sensitivity": audited.sensitivity,
        "kept": audited.kept,
    }
