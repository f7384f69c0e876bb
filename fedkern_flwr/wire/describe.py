"""The first phase of every run: who is there, and do the tables fit together."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from numpy.typing import NDArray

from ..errors import PartitionError, ProtocolError
from .message import Message, Scalar
from .releases import release

LONGEST_NAME = 40  # characters of the name of a node


def called(partition: int, name: str = "") -> str:
    """Return how texts call a party.

    >>> called(0), called(0, "north")
    ('partition 0', 'north (partition 0)')
    """
    return f"{name} (partition {partition})" if name else f"partition {partition}"


class _Opening(Message):
    """A message of the beginning of a run: it says which release sent it."""

    def scalars(self) -> dict[str, Scalar]:
        """Return the scalars of any message, and the release."""
        return super().scalars() | release()


class DescribeRequest(_Opening, phase="describe"):
    """Ask a node who it is and open a session.

    Attributes
    ----------
    session : str
        Random name of the run; later messages of another session are refused.
    method : str
        The method's name, such as ``"pof-mkl"``.
    resume_round : int
        0 for a new run, else the round from which the client must restore its private state.
    secure : bool
        Whether the run takes secure sums: the node makes a key for them.
    order_seed : int
        For methods that draw rows at random: runs with the same seed announce the rows in the same
        order. -1 for an order of this session.
    privacy : str
        What the run may cost in privacy, see :class:`~fedkern_flwr.privacy.Budget`; empty for a run
        without noise.
    nonces : str
        Of a run that is resumed: what each node answered as ``nonce``, as a JSON object from its
        partition. A node that knows the session answers nobody who does not know its nonce.
    """

    long_texts = ("privacy", "nonces")

    session: str
    method: str
    resume_round: int
    secure: bool = False
    order_seed: int = -1
    privacy: str = ""
    nonces: str = ""


class DescribeReply(_Opening, phase="describe"):
    """What a node tells about itself: sizes and names of columns, never values.

    A client says how large its table is; who it is, and what else belongs to a run, is filled in by
    its base.

    Attributes
    ----------
    partition, partitions : int
        ``partition-id`` and ``num-partitions`` of the node's configuration.
    name : str
        How its owner calls it, in logs and errors; empty where it has no name. Nodes of earlier
        releases do not say it.
    role : str
        Role of the party in the method, such as ``"client"``.
    rows, features, test_rows : int
        Size of the node's table.
    columns : str
        Digest of the feature names (see :func:`columns_digest`).
    restored : bool
        Whether the node has the private state of the round to resume from.
    public_key : bytes
        Its X25519 key of the run; empty without secure sums.
    signature : bytes
        Signature of that key by the node's identity; empty if it has none.
    answered : int
        The last round that it answered in a secure run that broke off; it repeats none of them.
    opened : int
        The last round of it whose sum this node helped to open.
    binary : int
        Columns, label included, that have at most two values here; they hide less.
    bits : int
        Of a row: 64 for a column, also the label, and 1 for a column of at most two values.
    counting : str
        What it does where more numbers are released than there are unknowns: ``refuse``, ``warn``
        or ``off``.
    nonce : str
        Drawn by the node for this run: who resumes it must know it.
    share : float
        The share of the unknowns of its rows that this run should open at most, above 0; 1 where
        the node only warns. A strategy plans its default sizes by it, see :mod:`..planning`.
    again : float
        Numbers that it may open instead if it sums the function of an earlier run, and none other;
        0 where the node knows of no such run.
    how : str
        What must be asked for then, as the method has it.
    """

    long_texts = ("how",)

    rows: int
    features: int
    test_rows: int = 0
    columns: str = ""
    partition: int = -1
    partitions: int = 0
    name: str = ""
    role: str = ""
    restored: bool = True
    public_key: bytes = b""
    signature: bytes = b""
    answered: int = 0
    opened: int = 0
    binary: int = 0
    bits: int = 0
    counting: str = "off"
    nonce: str = ""
    share: float = 1.0
    again: float = 0.0
    how: str = ""

    @property
    def called(self) -> str:
        """How texts call the party, such as ``north (partition 0)``."""
        return called(self.partition, self.name)

    @classmethod
    def unpack(
        cls, arrays: Sequence[NDArray[Any]], scalars: Mapping[str, Any], *, party: str, **sizes: int
    ) -> Self:
        """Check and rebuild a description that arrived; its share is above 0 and at most 1."""
        found = super().unpack(arrays, {"name": "", **scalars}, party=party, **sizes)
        right = 0.0 < found.share <= 1.0 and 0.0 <= found.again < math.inf and found.bits >= 0
        if not right or len(found.name) > LONGEST_NAME:  # which comes into logs and errors
            raise ProtocolError(
                "share is not above 0 and at most 1, again or bits is no number from 0 on, or name "
                f"has more than {LONGEST_NAME} characters",
                party=party,
                phase=cls.phase,
                code="FK-MESSAGE-FIELD",
            )
        return found


def columns_digest(names: Iterable[str]) -> str:
    """Return a short digest of column names, equal when names and order are equal."""
    return hashlib.sha256("\x1f".join(names).encode()).hexdigest()[:16]


def check_parties(parties: Sequence[DescribeReply]) -> None:
    """Refuse duplicate, missing or contradicting partitions and tables that do not fit.

    Raises
    ------
    PartitionError
        See :func:`check_partitions`.
    ProtocolError
        Tables with different columns.
    """
    check_partitions(parties)
    check_columns(parties)


def check_partitions(parties: Sequence[DescribeReply]) -> None:
    """Refuse duplicate, missing or contradicting partitions, and names that several nodes have.

    Raises
    ------
    PartitionError
        Duplicate or missing partition ids, or nodes that disagree on their number.
    """
    seen: set[int] = set()
    for party in parties:
        if party.partition in seen:
            raise PartitionError(
                f"two nodes have partition-id {party.partition}",
                remedy="give every node its own partition-id from 0",
                phase="describe",
                code="FK-PARTITION-TWICE",
            )
        seen.add(party.partition)
    names = Counter(party.name for party in parties if party.name)
    for name, times in names.items():
        if times > 1:
            raise PartitionError(
                f"{times} nodes are called {name!r}",
                remedy="give every node a name of its own, or none",
                phase="describe",
                code="FK-NODE-NAME-TWICE",
            )
    totals = {party.partitions for party in parties}
    if len(totals) != 1:
        raise PartitionError(
            f"nodes disagree on num-partitions: {sorted(totals)}",
            remedy="set the same num-partitions on every node",
            phase="describe",
            code="FK-PARTITION-TOTAL",
        )
    total = totals.pop()
    missing = sorted(set(range(total)) - seen)
    outside = sorted(seen - set(range(total)))
    if missing or outside:
        what, which = ("missing", missing) if missing else ("out of range", outside)
        raise PartitionError(
            f"{len(seen)} of {total} partitions are there; {what}: {_shorten(which)}",
            remedy="start the missing nodes, with registered keys, or correct num-partitions",
            phase="describe",
            code="FK-PARTITION-MISSING",
        )


def check_columns(parties: Sequence[DescribeReply]) -> None:
    """Refuse tables with different columns.

    Raises
    ------
    ProtocolError
    """
    first = parties[0]
    for party in parties[1:]:
        if (party.features, party.columns) != (first.features, first.columns):
            raise ProtocolError(
                f"its table has {party.features} feature columns that differ from the "
                f"{first.features} of {first.called} in number, name or order",
                remedy="bring all tables to the same columns",
                party=party.called,
                phase="describe",
                code="FK-COLUMNS-DIFFER",
            )


def _shorten(numbers: Sequence[int], most: int = 8) -> str:
    text = ", ".join(map(str, numbers[:most]))
    return text if len(numbers) <= most else f"{text}, ..."
