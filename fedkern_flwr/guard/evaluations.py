"""Figures about held-out rows: reported of enough rows, of one model a run, and seldom.

What is counted of one row is its label, and the difference of two counts over nearly the same rows
is that of the rows in which they differ. A model that somebody chooses for one person shows that
person's label. So a run judges one model, once, and a set of rows is judged as often as the policy
allows over all runs. Asked the same again a node repeats what it reported, and a sum that it helps
to open is opened once (:mod:`.openings`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .orders import refusal
from .policy import NodePolicy
from .record import RunRecord


@dataclass(frozen=True)
class Asked:
    """An evaluation.

    Attributes
    ----------
    purpose : str
        What the method calls it.
    rows : str
        Digest of the held-out rows.
    model : str
        Digest of the model, and of the bins.
    """

    purpose: str
    rows: str
    model: str

    @classmethod
    def of(cls, purpose: str, rows: bytes, model: Iterable[bytes]) -> Asked:
        """Build from what is asked for."""
        digest = hashlib.sha256()
        for part in model:
            digest.update(len(part).to_bytes(8, "little") + part)
        return cls(purpose, hashlib.sha256(rows).hexdigest(), digest.hexdigest())

    @property
    def key(self) -> str:
        """Name of the figures in the node's record."""
        return f"{self.purpose}/{self.rows}/{self.model}"


def too_few(policy: NodePolicy, tests: Sequence[int], own: int, *, alone: bool) -> str:
    """Return why figures are not reported, nothing if they may be.

    The limit holds at each holder: one with fewer rows adds zeros, whoever else there is, and hides
    nobody's rows.

    Parameters
    ----------
    policy : NodePolicy
        What the node's owner allows.
    tests : sequence of int
        Held-out rows of each party in the sum, this node included.
    own : int
        Those of this node.
    alone : bool
        Whether a single party may report figures of its own rows.
    """
    least = policy.min_evaluation_rows
    if 0 < own < least:
        return f"min_evaluation_rows = {least}: it has {own}"
    if sum(number >= max(1, least) for number in tests) == 1 and not alone:
        return "a single party has enough held-out rows"
    return ""


def check_model(record: RunRecord, asked: Asked) -> None:
    """Refuse to judge a second model, or the same one by other rows or bins; note the first.

    Raises
    ------
    RefusedError
    """
    if record.judged.setdefault(asked.purpose, asked.key) != asked.key:
        raise refusal("a run judges one model, once", code="FK-ORDER-MODEL")


def enter(
    record: RunRecord,
    asked: Asked,
    values: list[float],
    policy: NodePolicy,
) -> list[float]:
    """Enter an evaluation; return the figures to report: those of before, if it is the same.

    What was reported in a run that is over is erased, but not that it was: it is computed anew
    then.

    Parameters
    ----------
    record : RunRecord
        Changed in place; to be kept before an answer leaves.
    asked : Asked
        What is asked for.
    values : list of float
        The figures, as computed now.
    policy : NodePolicy
        What the node's owner allows.

    Raises
    ------
    RefusedError
        Figures of these rows were reported too often.
    """
    if asked.key in record.told:
        return record.told[asked.key] or values
    done = record.evaluations.get(asked.rows, 0)
    if done >= policy.max_evaluations:
        raise refusal(
            f"max_evaluations = {policy.max_evaluations} of these rows",
            code="FK-POLICY-EVALUATIONS",
        )
    record.evaluations[asked.rows] = done + 1
    record.told[asked.key] = values
    return values
