"""What the audit of a method leaves: a table on the screen, ``audit.json`` and ``audit.html``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...run.report import Block, FactsBlock, Mark, TableBlock, TextBlock, write_report
from .catalogue import ATTACKS
from .findings import Finding
from .plan import Variant

COLUMNS = ("attack", "who looks", "at what", "trials", "recovered", "chance (95 %)", "r", "verdict")
MARKS: dict[str, Mark] = {"nothing": "good", "documented": "fair", "LEAK": "bad"}
READING = (
    "Recovered: share of trials in which the attack was right. Mostly the true row is hidden among "
    "nine others of the table and the one nearest to what was computed is taken for it, or one of "
    "two has to be chosen; chance is what somebody hits who has seen nothing, with the exact "
    "binomial interval that holds 95 % of such guesses. r is Spearman's correlation of what was "
    "computed with the truth; guesses stay well below 0.1.",
    "LEAK: more was recovered than chance explains, at a level of 5 % for all checks of the audit "
    "together, or r is 0.1 or more. Nothing: the attack is no better than a guess. Documented: "
    "what the documentation of the method lists as what remains; it is shown and not judged.",
    "Every attack is tried with the same effort whatever the options. Where a message does not "
    "exist, the attack is given the nearest thing that the viewer has, mostly a masked vector, and "
    "often more than the viewer would know.",
    "An audit without a leak is no proof. It says that these attacks, on this data, found nothing.",
)


@dataclass(frozen=True)
class Audited:
    """A finished audit.

    Attributes
    ----------
    variant : Variant
        What was audited.
    findings : list of Finding
    config : dict
        Configuration of its runs.
    seconds : float
    """

    variant: Variant
    findings: list[Finding]
    config: dict[str, Any]
    seconds: float

    @property
    def leaks(self) -> list[str]:
        """The attacks that found something."""
        found = {f.subject.attack for f in self.findings if f.verdict == "LEAK"}
        return sorted(found)

    @property
    def as_expected(self) -> bool:
        """Whether a default shows nothing, and a paper's variant what it is said to show."""
        if not self.variant.leaks:
            return not self.leaks
        return set(self.variant.leaks) <= set(self.leaks)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it; a file of data by its name alone."""
        data = self.config["data"]
        return {
            "method": self.variant.method,
            "command": self.variant.command,
            "verdict": "LEAK" if self.leaks else "nothing",
            "leaks": self.leaks,
            "checks": [finding.to_dict() for finding in self.findings],
            "config": {**self.config, "data": {**data, "data": Path(data["data"]).name}},
            "seconds": self.seconds,
        }


def cells(finding: Finding) -> list[str]:
    """Return the row of a finding in a table."""
    subject, found = finding.subject, finding.evidence
    recovered, chance, r = found.recovered, "-", found.correlation
    if recovered is not None:
        low, high = found.interval
        chance = f"{100 * found.chance:.0f} %"
        if found.chance:
            chance += f" ({100 * low:.1f} to {100 * high:.1f})"
    return [
        subject.attack,
        subject.viewer,
        subject.target,
        str(len(found.hits) or found.values),
        "-" if recovered is None else f"{100 * recovered:.1f} %",
        chance,
        "-" if r is None else f"{r:.3f}",
        finding.verdict,
    ]


def table(audited: Audited, caption: str) -> TableBlock:
    """Return the table of an audit."""
    marks = {
        (row, len(COLUMNS) - 1): MARKS[finding.verdict]
        for row, finding in enumerate(audited.findings)
    }
    return TableBlock(caption, COLUMNS, [cells(f) for f in audited.findings], marks=marks)


def write_audit(path: Path, audited: Audited, facts: dict[str, str], why: str) -> Path:
    """Write the report of one audit."""
    verdict = "nothing beyond what is documented was recovered"
    if audited.leaks:
        verdict = f"LEAK: {', '.join(audited.leaks)}"
    blocks: list[Block] = [
        FactsBlock("", {"verdict": verdict, "command": audited.variant.command, **facts}),
        table(audited, "What each attack recovered, against chance."),
        TextBlock("How to read it", [*READING, *([f"This audit. {why}"] if why else [])]),
        *explained(audited.findings),
    ]
    return write_report(
        path,
        title=f"Audit of {audited.variant.method}",
        subtitle=f"Known attacks against every party's view of a run: {verdict}.",
        blocks=blocks,
    )


def explained(findings: Sequence[Finding], *, figures: bool = True) -> list[Block]:
    """Return a section for each attack that was tried."""
    names = dict.fromkeys(f.subject.attack for f in findings)
    return [
        explanation(name, [f for f in findings if f.subject.attack == name] if figures else [])
        for name in names
    ]


def explanation(name: str, findings: Sequence[Finding] = ()) -> TextBlock:
    """Return the section of an attack, and what it found."""
    attack = ATTACKS[name]
    paragraphs = [
        f"What it knows. {attack.knows}",
        f"What it computes. {attack.computes} Source: {attack.source}",
        f"What success would mean. {attack.means}",
        f"The default. {attack.default}",
    ]
    paragraphs += [_sentence(finding) for finding in findings]
    if attack.remains:
        paragraphs.append(f"What remains. {attack.remains}")
    return TextBlock(f"Attack: {name}", paragraphs)


def _sentence(finding: Finding) -> str:
    """Say what was recovered and what that means."""
    subject, found, parts = finding.subject, finding.evidence, []
    if found.recovered is not None:
        hits = f"{100 * found.recovered:.1f} % of {len(found.hits)} trials"
        parts.append(f"{hits} were right, where a guess is right in {100 * found.chance:.0f} %")
    if found.correlation is not None:
        parts.append(f"the correlation with the truth is {found.correlation:.3f}")
    meaning = {
        "LEAK": "That is a leak.",
        "nothing": "That is no better than a guess.",
        "documented": "That is documented and no fault of these options.",
    }[finding.verdict]
    again = " It was doubtful at first; these are the figures of a second attempt."
    return (
        f"{subject.viewer.capitalize()}, {subject.target}: {'; '.join(parts)}. {meaning}"
        f"{again if finding.repeated else ''}"
    )
