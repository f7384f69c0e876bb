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

from .evidence import CLEAR, CORRELATION, Evidence, Subject

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
    trials : int
    recovered : float or None
        Share of hits; None for a check that is a correlation only.
    chance, low, high : float or None
        What a guess hits, and its 95 % interval.
    p_value : float or None
        Of as many hits or more.
    correlation : float or None
        With the truth, of a reconstruction.
    values : int
        Of the correlation.
    repeated : bool
        Whether the check was doubtful at first, and this is what came out the second time.
    verdict : {"nothing", "documented", "LEAK"}
    """

    subject: Subject
    trials: int
    recovered: float | None
    chance: float | None
    low: float | None
    high: float | None
    p_value: float | None
    correlation: float | None
    values: int
    repeated: bool
    verdict: Verdict

    @property
    def within(self) -> bool:
        """Whether all lies within what chance explains: the plain 95 % interval, and |r| < 0.1."""
        inside = self.recovered is None or _inside(self)
        return inside and abs(self.correlation or 0.0) < CORRELATION

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "attack": self.subject.attack,
            "viewer": self.subject.viewer,
            "target": self.subject.target,
            "trials": self.trials,
            "recovered": self.recovered,
            "chance": self.chance,
            "interval": None if self.low is None else [self.low, self.high],
            "p_value": self.p_value,
            "correlation": self.correlation,
            "values": self.values,
            "within_chance": self.within,
            "repeated": self.repeated,
            "verdict": self.verdict,
        }


def _inside(finding: Finding) -> bool:
    assert finding.recovered is not None
    assert finding.low is not None
    assert finding.high is not None
    return finding.low <= finding.recovered <= finding.high


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
    rated = bool(evidence.hits)
    low, high = evidence.interval if rated else (None, None)
    p_value = evidence.p_value if rated else None
    correlation = evidence.correlation
    found = (p_value is not None and p_value < level) or abs(correlation or 0.0) >= CORRELATION
    verdict: Verdict = "LEAK" if found else "nothing"
    if subject.documented:
        verdict = "documented"
    return Finding(
        subject=subject,
        trials=len(evidence.hits),
        recovered=sum(evidence.hits) / len(evidence.hits) if rated else None,
        chance=evidence.chance if rated else None,
        low=low,
        high=high,
        p_value=p_value,
        correlation=correlation,
        values=evidence.values,
        repeated=repeated,
        verdict=verdict,
    )


def doubtful(finding: Finding) -> bool:
    """Whether a check is to be made once more: beyond chance, but not clearly."""
    if finding.verdict == "documented" or finding.within:
        return False
    certain = finding.p_value is not None and finding.p_value < CLEAR
    return not certain and abs(finding.correlation or 0.0) < _CLEAR_CORRELATION
