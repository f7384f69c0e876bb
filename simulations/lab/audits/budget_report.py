"""What an audit of epsilon leaves: a table on the screen and in a page, and its JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...run.report import Block, FactsBlock, Mark, TableBlock, TextBlock, write_report
from . import budget_attacks
from .budget_attacks import Recovered
from .budget_cases import CASES
from .budgets import DELTA, Audited, audit_epsilon
from .report import explanation

ATTACK = "likelihood ratio"
ATTACKS = (budget_attacks.LOSS, budget_attacks.DEFINITENESS, budget_attacks.JOINT)
_MARKS: dict[str, Mark] = {"kept": "good", "no budget": "fair", "BROKEN": "bad"}
COMMAND = "fedkern audit epsilon"
#: Budgets that are declared, and releases of each of the two tables, unless told otherwise.
BUDGETS, DRAWS = (1.0, 3.0, 8.0), 5000
COLUMNS = (
    *("method", "sum", "opened by", "unit"),
    *("declared", "charged", "provable", "proven", "if normal", "verdict"),
)
TEXTS = 4  # columns of text
ATTACK_COLUMNS = ("attack", "epsilon", "recovered", "95 % interval", "allowed", "verdict")
#: Of all bounds together.
LEVEL = 0.95

_READING = (
    "Opened by: the fewest parties over which the server can open the sum, of all. Figures are "
    "epsilon, a pure number, at the delta that is given. Declared is the budget of the run, "
    "charged what the one sum costs of it. Provable is the epsilon of a Gaussian with this noise "
    "for these two tables: no test proves more, however often the sum is released.",
    "Proven: what the error rates of the test say of any noise. If normal: what they say of noise "
    "that is nearly normal, as this is; it needs fewer releases. Both are lower bounds, which hold "
    "together with 95 % confidence for all rows.",
    "BROKEN: a bound is above what is charged, a table moves the sum farther than is charged, or "
    "more is charged than was declared; or an attack recovers more than is allowed, by more than "
    "chance explains once in 10,000 times.",
    "Known attacks are on rows as they come, not on the worst ones. Recovered: of a row that was "
    "learned from and one that was not, how much oftener the first looks more like it, where 0 is "
    "a coin; of the joint inversion the share of rows that were returned. Allowed: how far the "
    "best test tells the worst two tables apart with all of epsilon.",
)


@dataclass(frozen=True)
class Budgets:
    """What was found of budgets.

    Attributes
    ----------
    sums : list of Audited
    attacks : list of Recovered
    draws : int
        Releases of each of the two tables.
    """

    sums: list[Audited]
    attacks: list[Recovered]
    draws: int

    @property
    def kept(self) -> bool:
        """Whether nothing is broken."""
        return all(a.kept for a in self.sums) and all(a.kept for a in self.attacks)

    @property
    def outcome(self) -> str:
        """What was found, in a line."""
        broken = [f"{a.case.title} at {a.declared:g}" for a in self.sums if not a.kept]
        broken += [f"{a.attack} at {a.epsilon:g}" for a in self.attacks if not a.kept]
        if broken:
            return f"BROKEN: {', '.join(broken)}"
        return f"of {len(self.sums)} sums no bound is above what is charged"


def audit_all_budgets(
    progress: Callable[[str, float, int], None],
    budgets: Sequence[float] = BUDGETS,
    draws: int = DRAWS,
    seed: int = 0,
) -> Budgets:
    """Audit all sums with some budgets, all bounds together with confidence :data:`LEVEL`.

    Then try the known attacks, without a budget and with each.
    """
    every = [(case, epsilon) for case in CASES for epsilon in budgets]
    confidence = 1.0 - (1.0 - LEVEL) / (2 * len(every))
    sums, attacks = list[Audited](), list[Recovered]()
    known = [math.inf, *sorted(budgets, reverse=True)]
    steps = len(every) + len(known)
    for number, (case, epsilon) in enumerate(every):
        progress(f"{case.title}, epsilon {epsilon:g}", number, steps)
        sums.append(audit_epsilon(case, epsilon, draws=draws, seed=seed, confidence=confidence))
    for number, epsilon in enumerate(known):
        progress(f"known attacks, epsilon {epsilon:g}", len(every) + number, steps)
        attacks += budget_attacks.recover(epsilon, seed)
    order = list(dict.fromkeys(one.attack for one in attacks))
    return Budgets(sums, sorted(attacks, key=lambda one: order.index(one.attack)), draws)


def cells(audited: Audited) -> list[str]:
    """Return the row of a sum in a table."""
    bounds = audited.declared, audited.epsilon, audited.reached, audited.proven, audited.gaussian
    verdict = "kept" if audited.kept else "BROKEN"
    case = audited.case
    opened = f"{case.fewest} of {case.parties}"
    figures = (f"{value:.2f}" for value in bounds)
    return [
        case.method,
        case.sum.partition("/")[2] or case.sum,
        opened,
        case.unit,
        *figures,
        verdict,
    ]


def attack_cells(found: Recovered) -> list[str]:
    """Return the row of an attack in a table."""
    low, high = found.interval
    free = math.isinf(found.epsilon)
    return [
        found.attack,
        "none" if free else f"{found.epsilon:g}",
        f"{100 * found.shares.mean():.0f} %",
        f"{100 * low:.0f} to {100 * high:.0f}",
        "-" if free else f"{100 * found.allowed:.0f} %",
        "no budget" if free else "kept" if found.kept else "BROKEN",
    ]


def caption(draws: int) -> str:
    """Say what the figures of the table are."""
    return f"Sums with noise: epsilon at delta {DELTA:g}; {draws:,} releases of each of two tables."


ATTACK_CAPTION = f"Known attacks on runs without a budget and with one: delta {DELTA:g}."


def blocks(found: Budgets) -> list[Block]:
    """Return tables and explanations, for a page."""
    return [
        _table(caption(found.draws), COLUMNS, map(cells, found.sums)),
        _table(ATTACK_CAPTION, ATTACK_COLUMNS, map(attack_cells, found.attacks)),
        TextBlock("How to read it: epsilon", _READING),
        *map(explanation, (ATTACK, *ATTACKS)),
    ]


def _table(text: str, columns: Sequence[str], found: Iterable[list[str]]) -> TableBlock:
    rows, last = list(found), len(columns) - 1
    marks = {(n, last): _MARKS[row[-1]] for n, row in enumerate(rows)}
    return TableBlock(text, columns, rows, marks=marks)


def write_epsilon(path: Path, found: Budgets, facts: dict[str, str]) -> Path:
    """Write the report of an audit of epsilon."""
    return write_report(
        path,
        title="Audit of epsilon",
        subtitle=f"The best test of two tables against the noise of a budget: {found.outcome}.",
        blocks=[FactsBlock("", {"command": COMMAND, **facts}), *blocks(found)],
    )


def to_dict(found: Budgets) -> dict[str, Any]:
    """Return it as JSON has it."""
    return {
        "method": "epsilon",
        "verdict": "kept" if found.kept else "BROKEN",
        "confidence": LEVEL,
        "delta": DELTA,
        "draws": found.draws,
        "checks": [_entry(audited) for audited in found.sums],
        "attacks": [
            {
                "attack": one.attack,
                "epsilon": None if math.isinf(one.epsilon) else one.epsilon,
                "recovered": float(one.shares.mean()),
                "interval": list(one.interval),
                "allowed": one.allowed,
                "runs": len(one.shares),
                "kept": one.kept,
            }
            for one in found.attacks
        ],
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
