"""The page that ``fedkern audit all`` leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...run.report import Block, FactsBlock, TableBlock, TextBlock, write_report
from . import budget_report
from .report import MARKS, READING, Audited, explained, table


def write_all(
    path: Path,
    audits: Sequence[Audited],
    budgets: budget_report.Budgets,
    facts: dict[str, str],
) -> Path:
    """Write the report of all methods and variants, and of the sums with noise."""
    rows = []
    for done in audits:
        found = ", ".join(done.leaks) or "nothing"
        kind = "paper's variant" if done.variant.leaks else "default"
        rows.append([done.variant.command, kind, found, "yes" if done.as_expected else "NO"])
    more = "nothing" if budgets.kept else "more than is charged"
    rows.append([budget_report.COMMAND, "default", more, "yes" if budgets.kept else "NO"])
    marks = {
        (n, 2): MARKS["nothing" if row[2] == "nothing" else "LEAK"] for n, row in enumerate(rows)
    }
    marks |= {(n, 3): MARKS["nothing" if row[3] == "yes" else "LEAK"] for n, row in enumerate(rows)}
    findings = [
        finding
        for done in audits
        for finding in done.findings
        if finding.subject.attack not in budget_report.ATTACKS
    ]
    columns = ("audit", "kind", "found", "as documented")
    blocks: list[Block] = [
        FactsBlock("", facts),
        TableBlock("Each method as it is, and with options of papers.", columns, rows, marks=marks),
        TextBlock("How to read it", READING),
        *(table(done, done.variant.command) for done in audits),
        *budget_report.blocks(budgets),
        *explained(findings, figures=False),
    ]
    failed = sum(row[3] != "yes" for row in rows)
    outcome = "all as documented" if not failed else f"{failed} not as documented"
    return write_report(
        path,
        title="Audit of all methods",
        subtitle=f"Defaults must show nothing, options of papers what they are said to: {outcome}.",
        blocks=blocks,
    )
