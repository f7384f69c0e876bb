"""What a node remembers of the run at hand for its own protection; never sent."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Context

from .orders import refusal

_RECORD = "fedkern-guard"
_REFUSALS = 3


@dataclass
class RunRecord:
    """Refusals and evaluations of a run.

    Attributes
    ----------
    session : str
        The run it belongs to.
    secure : bool
        Whether it takes secure sums: when they have ended, nothing is answered in plain.
    refusals : int
        Orders refused so far.
    told : dict
        Digest of an evaluation -> the figures told; none when the run is over.
    evaluations : dict
        Digest of a set of held-out rows -> how many evaluations of it were answered.
    judged : dict
        What an evaluation is called -> the one of this run.
    sums : dict
        Name of a sum of figures -> [cohort, number] of the one that was opened, if any was.
    group : dict
        Rows that were summed last and what was released of them, see
        :class:`~fedkern_flwr.guard.counting.Group`.
    columns : int
        Columns of a row of its table, label included.
    warned : bool
        Whether it was warned of a release of too many numbers.
    privacy : str
        What the run may cost in privacy, as it was opened; empty without noise.
    spent : dict
        What it has released with noise, see :func:`~fedkern_flwr.guard.spending.spend`.
    """

    session: str = ""
    secure: bool = False
    refusals: int = 0
    told: dict[str, list[float]] = field(default_factory=dict)
    evaluations: dict[str, int] = field(default_factory=dict)
    sums: dict[str, list[int]] = field(default_factory=dict)
    group: dict[str, Any] = field(default_factory=dict)
    columns: int = 0
    warned: bool = False
    privacy: str = ""
    spent: dict[str, Any] = field(default_factory=dict)
    judged: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, context: Context, session: str) -> RunRecord:
        """Read the record of a run; an empty one for another run than the last."""
        record = context.state.get(_RECORD)
        if isinstance(record, ConfigRecord):
            found = cls(**json.loads(str(record["record"])))
            if found.session == session:
                return found
        return cls(session)

    def store(self, context: Context) -> None:
        """Keep the record in the node's state."""
        context.state[_RECORD] = ConfigRecord({"record": json.dumps(vars(self))})

    def check(self, party: str) -> None:
        """Refuse a run of which too many orders were refused.

        Raises
        ------
        RefusedError
        """
        if self.refusals >= _REFUSALS:
            raise refusal(
                f"{_REFUSALS} orders of this run were refused, it is over here",
                party,
                code="FK-ORDER-OVER",
            )
