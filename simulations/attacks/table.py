"""What every attack is: a run, a score, a threshold, and what is admitted of the default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .phases import Floats

Verdict = Literal["fails", "admitted", "LEAK"]


@dataclass(frozen=True)
class Seen:
    """What somebody recovers.

    Attributes
    ----------
    viewer : str
        Who attacks.
    score : float
        How much is recovered, 0 to 1.
    admits : str (default: "")
        What the method's ``privacy()`` says of it, word for word; empty where it admits nothing.
    privacy : mapping, optional
        The ``privacy()`` of the run.
    """

    viewer: str
    score: float
    admits: str = ""
    privacy: Mapping[str, Any] | None = None

    @property
    def admitted(self) -> bool:
        """Whether ``privacy()`` says so."""
        return bool(self.admits) and self.admits in str(dict(self.privacy or {}))


Run = Callable[..., list[Seen]]


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes
    ----------
    name : str
    methods : sequence of str
        The methods that it is on, as the command line calls them.
    claim : str
        What a paper says and the attack refutes, or what a default must withstand.
    protocol : str
        The protocol on which it succeeds.
    measure : str
        What the score is.
    threshold : float
        A score above it counts as recovered.
    runs : (callable, callable)
        A seed -> what is recovered on that protocol, and on the default of the method.
    """

    name: str
    methods: Sequence[str]
    claim: str
    protocol: str
    measure: str
    threshold: float
    runs: tuple[Run, Run]

    def verdict(self, seen: Seen) -> Verdict:
        """Return what a score on the default means."""
        if seen.score <= self.threshold:
            return "fails"
        return "admitted" if seen.admitted else "LEAK"


def served(build: Callable[[Any, int], Any]) -> Callable[[Any], Any]:
    """Return the ``client_fn`` that builds a client of a context and its number."""
    return lambda context: build(context, int(context.node_config["partition-id"]))


def correlation(found: Floats, truth: Floats) -> float:
    """Return Pearson's correlation, 0 where nothing was found or it is the same everywhere."""
    if not np.isfinite(found).all() or not np.ptp(found) or not np.ptp(truth):
        return 0.0
    return float(np.corrcoef(found.ravel(), truth.ravel())[0, 1])


def made_up_table(rows: int, columns: int, seed: int) -> tuple[Floats, Floats]:
    """Return features on [0, 1] that hang together, (rows, columns), and labels 0 or 1."""
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((rows, 3))
    x = hidden @ rng.standard_normal((3, columns)) + rng.standard_normal((rows, columns))
    y = (hidden[:, 0] + 0.3 * rng.standard_normal(rows) > 0.0).astype(np.float64)
    return (x - x.min(axis=0)) / np.ptp(x, axis=0), y
