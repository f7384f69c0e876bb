"""What a run costs and what it shows to whom: exchanges, bytes, seconds, failures."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Ledger:
    """Running totals of a run, kept by the server.

    Attributes
    ----------
    exchanges : int
        Round trips, set-up included.
    bytes_up, bytes_down : int
        Array payload from clients to server and back, in bytes.
    messages : int
        Requests sent.
    seconds : float
        Wall-clock time spent in exchanges.
    by_phase : Counter
        Exchanges per phase.
    failures : dict
        Partition (as text) -> reason -> count.
    """

    exchanges: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    messages: int = 0
    seconds: float = 0.0
    by_phase: Counter[str] = field(default_factory=Counter)
    failures: dict[str, dict[str, int]] = field(default_factory=dict)

    def add_failure(self, partition: int, reason: str) -> None:
        """Count one request that a party did not answer properly."""
        reasons = self.failures.setdefault(str(partition), {})
        reasons[reason] = reasons.get(reason, 0) + 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**copy.deepcopy(vars(self)), "by_phase": dict(self.by_phase)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Ledger:
        """Rebuild a ledger from :meth:`to_dict`."""
        return cls(**{**values, "by_phase": Counter(values["by_phase"])})
