"""Verdicts: what the evidence of an audit means.

A check leaks if more was recovered than chance explains. Of m checks of an audit each has its own
level 0.05 / m (Bonferroni), one-sided, for only recovering *more* is a leak: so all checks together
raise a false alarm in at most one audit of twenty. A correlation leaks from 0.1 on, four standard
deviations and more of what :data:`~.evidence.LEAST_VALUES` guesses make.

A check that is neither clearly a leak nor within the plain 95 % interval of chance is *doubtful*.
Masks are random and not seeded, so that happens to one check of twenty: it is then made once more
from the start, with fresh masks, and what comes out the second time counts. A leak shows again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .evidence import CORRELATION, Evidence, Subject

Verdict = Literal["nothing", "documented", "LEAK"]

#: Probability of a false alarm over all checks of an audit.
FAMILY_LEVEL = 0.05
_CLEAR_CORRELATION = 0.3


@dataclass(frozen=True)
class Finding:
    """One check of an audit.

    Attributes
    ----------
    subject : Subject
    evidence : Evidence
        Its trials.
    repeated : bool
        Whether the check was doubtful at first, and this is what came out the second time.
    verdict : {"nothing", "documented", "LEAK"}
    """

    subject: Subject
    evidence: Evidence
    repeated: bool
    verdict: Verdict

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        found, rated = self.evidence, bool(self.evidence.hits)
        return {
            "attack": self.subject.attack,
            "viewer": self.subject.viewer,
            "target": self.subject.target,
            "trials": len(found.hits),
            "recovered": found.recovered,
            "chance": found.chance if rated else None,
            "interval": list(found.interval) if rated else None,
            "p_value": found.p_value,
            "correlation": found.correlation,
            "values": found.values,
            "within_chance": found.within,
            "repeated": self.repeated,
            "verdict": self.verdict,
        }


def judge(
    evidence: Mapping[Subject, Evidence], repeated: frozenset[Subject] = frozenset()
) -> list[Finding]:
    """Return a finding for each subject.

    Parameters
    ----------
    evidence : mapping
        Subject -> its trials.
    repeated : frozenset of Subject
        Those whose trials are the second ones.
    """
    checked = sum(bool(e.hits) for s, e in evidence.items() if not s.documented)
    level = FAMILY_LEVEL / max(1, checked)
    return [_judge(s, e, level, s in repeated) for s, e in evidence.items()]


def _judge(subject: Subject, evidence: Evidence, level: float, repeated: bool) -> Finding:
    p_value, correlation = evidence.p_value, abs(evidence.correlation or 0.0)
    found = (p_value is not None and p_value < level) or correlation >= CORRELATION
    verdict: Verdict = "LEAK" if found else "nothing"
    return Finding(subject, evidence, repeated, "documented" if subject.documented else verdict)


def doubtful(finding: Finding) -> bool:
    """Whether a check is to be made once more: beyond chance, but not clearly."""
    evidence = finding.evidence
    if finding.verdict == "documented" or evidence.within:
        return False
    return not evidence.certain and abs(evidence.correlation or 0.0) < _CLEAR_CORRELATION
