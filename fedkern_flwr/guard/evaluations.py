"""Figures about held-out rows: told of enough rows of enough parties, and of each set seldom.

What is counted of one row is its label, and the difference of two counts over nearly the same rows
is that of the rows in which they differ. So a node tells figures of a set of rows so often as its
policy allows, whatever the model (one unit in the last place makes another model). Asked the same
again it repeats what it told, and a sum that it helps to open is opened once.
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
        Digest of what they are to be judged by.
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


def too_few(policy: NodePolicy, tests: Sequence[int], *, alone: bool) -> str:
    """Return why figures are not told, nothing if they may be.

    Parameters
    ----------
    policy : NodePolicy
        What the node's owner allows.
    tests : sequence of int
        Held-out rows of each party behind the figures.
    alone : bool
        Whether a single party may tell figures of its own rows.
    """
    rows, holders = sum(tests), sum(number > 0 for number in tests)
    if 0 < rows < policy.min_evaluation_rows:
        return f"min_evaluation_rows = {policy.min_evaluation_rows}: there are {rows}"
    if holders == 1 and not alone:
        return "a single party has held-out rows"
    return ""


def enter(
    record: RunRecord,
    asked: Asked,
    values: list[float],
    policy: NodePolicy,
    party: str,
) -> list[float]:
    """Enter an evaluation; return the figures to tell: those told before, if it is the same.

    What was told in a run that is over is erased, but not that it was: it is computed anew then.

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
    party : str
        How errors name this node.

    Raises
    ------
    RefusedError
        Figures of these rows were told too often.
    """
    if asked.key in record.told:
        return record.told[asked.key] or values
    done = record.evaluations.get(asked.rows, 0)
    if done >= policy.max_evaluations:
        raise refusal(
            f"max_evaluations = {policy.max_evaluations} of these rows",
            party,
            code="FK-POLICY-EVALUATIONS",
        )
    record.evaluations[asked.rows] = done + 1
    record.told[asked.key] = values
    return values


def open_once(record: RunRecord, name: str, place: tuple[int, int], party: str) -> None:
    """Refuse to help open a second sum of figures of one name; note the first.

    Raises
    ------
    RefusedError
    """
    if name not in record.sums:
        return
    if record.sums[name] not in ([], list(place)):
        raise refusal("an evaluation is opened a second time", party, code="FK-ORDER-EVALUATION")
    record.sums[name] = list(place)
