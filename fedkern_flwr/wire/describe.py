"""Define the first phase of every run: releases and partitions of nodes, fit of their tables."""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from ..alignment import count_duplicates, find_rows
from ..errors import (
    CheckpointError,
    PartitionError,
    ProtocolError,
    RefusedError,
    TableError,
    log_in_one_line,
)
from ..failure import mark_error
from .message import PROTOCOL_VERSION, Message, Scalar, array

# -- releases of the two sides, compared when a run begins: which is older, and what to do
#
# Messages of the phase ``describe`` say which release sent them. It is no field: releases of one
# protocol read each other's messages whether they say so or not.

logger = logging.getLogger("fedkern_flwr")

#: Earliest release with apps that run on this one. Raise it if a name that apps import is removed.
OLDEST_APP = "0.2"

_KEY = "release"
_ALIKE = "; their protocol is the same, bring all to one release"
_RELEASE = re.compile(r"\d[\w.+!-]{0,30}", re.ASCII)
# What a client says that knows no more of releases, such as those of 0.1.
_REFUSED = re.compile(r"protocol version (\d+) instead of (\d+)")


def release() -> dict[str, Scalar]:
    return {_KEY: __version__}


def release_of(scalars: Mapping[str, Any]) -> str:
    """Return the release that sent a message; "" if unknown."""
    found = scalars.get(_KEY)
    return found if isinstance(found, str) and _RELEASE.fullmatch(found) else ""


def check_server(scalars: Mapping[str, Any], *, party: str) -> None:
    """Compare the server's release with this node's; log a difference.

    Raises
    ------
    ProtocolError
        Their protocols differ. The text says which of the two is older.
    """
    _check(scalars, "the server", "this node", party, ProtocolError)
    found = release_of(scalars)
    if found != __version__:
        theirs = f"fedkern-flwr {found}" if found else "an earlier release of fedkern-flwr"
        logger.warning("%s: the server has %s, this node %s%s", party, theirs, __version__, _ALIKE)


def check_node(scalars: Mapping[str, Any], *, party: str) -> None:
    """Compare a node's protocol with this server's; RefusedError if they differ."""
    _check(scalars, "this node", "the server", party, RefusedError)


def check_refusal(text: str, *, party: str) -> None:
    """Raise the same error for the refusal text of a node with an earlier release."""
    found = _REFUSED.search(text)
    if found is not None and int(found[1]) == PROTOCOL_VERSION:
        check_node({"protocol": int(found[2])}, party=party)


def check_app(app: str) -> None:
    """Compare the release of an app with the installed one; an app calls this first.

    Parameters
    ----------
    app : str
        Release of the app, such as ``"0.2"``.

    Raises
    ------
    RefusedError
        The app is newer than the installed release, or older than :data:`OLDEST_APP`.
    """
    # what apps use does not change below the second number
    made, here, oldest = (
        [int(number) for number in name.split(".")[:2]] for name in (app, __version__, OLDEST_APP)
    )
    if oldest <= made <= here:
        return
    older = "the app is older: take the one of the installed release, see `fedkern init`"
    if made > here:
        older = "the installed one is older: `pip install --upgrade fedkern-flwr` there"
    log_in_one_line()
    error = RefusedError(
        f"the app is of fedkern-flwr {app}, and {__version__} is installed",
        remedy=older,
        code="FK-MESSAGE-VERSION",
    )
    error.args = (mark_error(f"RefusedError: {error}"),)  # a node's error that a server may show
    raise error


def other_releases(found: Mapping[int, str]) -> str:
    """Return which partitions have other releases than the server; "" if none.

    ``found`` maps each partition to its release, "" if unknown.
    """
    groups = defaultdict(list)
    for partition, name in sorted(found.items()):
        if name != __version__:
            groups[name or "an earlier release"].append(str(partition))
    told = [
        f"partition{'s' * (len(who) > 1)} {', '.join(who)} {name}" for name, who in groups.items()
    ]
    return f"the server has fedkern-flwr {__version__}, {', '.join(told)}{_ALIKE}" if told else ""


def _check(
    scalars: Mapping[str, Any], other: str, here: str, party: str, error: type[ProtocolError]
) -> None:
    version, found = scalars.get("protocol"), release_of(scalars)
    if type(version) is not int or version == PROTOCOL_VERSION:
        return
    theirs = f"fedkern-flwr {found}" if found else "another release of fedkern-flwr"
    older, newer = (other, __version__) if version < PROTOCOL_VERSION else (here, found)
    wanted = f"fedkern-flwr=={newer}" if newer else "fedkern-flwr"
    raise error(
        f"{other} has {theirs} (protocol {version}), "
        f"{here} {__version__} (protocol {PROTOCOL_VERSION})",
        remedy=f"{older} is older: `pip install --upgrade {wanted}` there",
        party=party,
        phase="describe",
        code="FK-MESSAGE-VERSION",
    )


# -- the first phase of every run: who is there, and do the tables fit together

LONGEST_NAME = 40  # characters of the name of a node


def called(partition: int, name: str = "") -> str:
    """Return the name of a party in texts.

    >>> called(0), called(0, "north")
    ('partition 0', 'north (partition 0)')
    """
    return f"{name} (partition {partition})" if name else f"partition {partition}"


class _Opening(Message):
    """A message at the start of a run, which has the sender's release."""

    def scalars(self) -> dict[str, Scalar]:
        return super().scalars() | release()


class DescribeRequest(_Opening, phase="describe"):
    """Request a description of a node, and open a session.

    Attributes
    ----------
    session : str
        Random name of the run. Later messages of other sessions are refused.
    method : str
        Name of the method, such as ``"pof-mkl"``.
    resume_round : int
        Round from which the client must restore its private state; 0 for a new run.
    secure : bool
        Whether the run uses secure sums: the node then makes a key.
    order_seed : int
        Seed of the order in which rows are announced; -1: random for this session.
    privacy : str
        Privacy budget; "" for a run without noise.
    nonces : str
        For a resumed run: JSON object of partition -> nonce. A node refuses to resume without it.
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
    """Describe a node: sizes and digests of names, never values.

    A client gives the size of its table; its base class adds the rest.

    Attributes
    ----------
    partition, partitions : int
        ``partition-id`` and ``num-partitions`` of the node's configuration.
    name, role : str
        Name for logs ("" for none), and role in the method, such as ``"client"``.
    rows, features, test_rows : int
        Size of the node's table.
    columns : str
        Digest of the feature names.
    restored : bool
        Whether the node has the private state of the round to resume from.
    public_key, signature : bytes
        X25519 key of a secure run, and its signature by the node's identity, if any.
    answered, opened : int
        In an interrupted secure run: the last round it answered, which it will not repeat, and the
        last with an opened sum.
    binary : int
        Columns, label included, with at most two values; they hide less.
    bits : int
        Bits of a row: 64 per column and label, 1 per two-valued column.
    counting : str
        What it does above the release limit: ``refuse``, ``warn`` or ``off``.
    nonce : str
        Random; required to resume the run.
    share : float
        Largest share of the unknowns of its rows that this run should open, in (0, 1]; see
        :mod:`..planning`.
    again, how : float, str
        Numbers that it may open instead if the run sums an earlier run's function again, with these
        parameters; 0 for none.
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
        """Name of the party in texts, such as ``north (partition 0)``."""
        return called(self.partition, self.name)

    @classmethod
    def unpack(
        cls, arrays: Sequence[NDArray[Any]], scalars: Mapping[str, Any], *, party: str, **sizes: int
    ) -> Self:
        """Check and rebuild a description that arrived."""
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
    """Return a short digest of column names and their order."""
    return hashlib.sha256("\x1f".join(names).encode()).hexdigest()[:16]


def check_parties(parties: Sequence[DescribeReply]) -> None:
    """Refuse inconsistent partitions, and tables that do not fit.

    Raises
    ------
    PartitionError
        See :func:`check_partitions`.
    ProtocolError
        Tables have different columns.
    """
    check_partitions(parties)
    check_columns(parties)


def check_partitions(parties: Sequence[DescribeReply]) -> None:
    """Refuse duplicate or missing partitions, duplicate names, or a wrong total."""
    seen: set[int] = set()
    for party in parties:
        if party.partition in seen:
            raise PartitionError(
                f"two nodes have partition-id {party.partition}",
                phase="describe",
                code="FK-PARTITION-TWICE",
            )
        seen.add(party.partition)
    names = Counter(party.name for party in parties if party.name)
    for name, times in names.items():
        if times > 1:
            raise PartitionError(
                f"{times} nodes are called {name!r}", phase="describe", code="FK-NODE-NAME-TWICE"
            )
    totals = {party.partitions for party in parties}
    if len(totals) != 1:
        raise PartitionError(
            f"nodes disagree on num-partitions: {sorted(totals)}",
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
            phase="describe",
            code="FK-PARTITION-MISSING",
        )


def check_columns(parties: Sequence[DescribeReply]) -> None:
    first = parties[0]
    for party in parties[1:]:
        if (party.features, party.columns) != (first.features, first.columns):
            raise ProtocolError(
                f"its table has {party.features} feature columns that differ from the "
                f"{first.features} of {first.called} in number, name or order",
                party=party.called,
                phase="describe",
                code="FK-COLUMNS-DIFFER",
            )


def _shorten(numbers: Sequence[int], most: int = 8) -> str:
    text = ", ".join(map(str, numbers[:most]))
    return text if len(numbers) <= most else f"{text}, ..."


# -- parties with tables whose rows are joined by ids


class TableReply(DescribeReply):
    """Description of a party with a table."""

    outputs: int  # k, columns of the targets; 0 without labels
    classes: int  # 0 for regression or without labels
    labels: str  # digest of the names of the classes
    label_bound: float  # declared, of the targets of a regression
    labelled: bool  # whether the held-out rows have labels
    allow_single: bool  # whether others may learn what is of this party alone, see the method
    # Keyed hashes of the ids of all rows that are announced, each part of them sorted.
    ids: NDArray[Any] = array("ids", "words", dtype="ring")
    # The same of ids in one spelling, see plain_ids; nothing where all are spelled so.
    spelled: NDArray[Any] = array("spelled", "words", dtype="ring")

    @property
    def announced(self) -> int:
        return self.rows + self.test_rows


def misfit(
    partition: int, problem: str, remedy: str | None = None, *, code: str = ""
) -> ProtocolError:
    """Return the error that refuses a party for its description."""
    party = f"partition {partition}"
    return ProtocolError(problem, remedy=remedy, party=party, phase="describe", code=code)


def check_tables(
    parties: Sequence[TableReply], roles: Collection[str], kinds: str, client: str
) -> None:
    """Refuse inconsistent partitions, other roles, and duplicate pseudonyms.

    Parameters
    ----------
    parties : sequence of TableReply
        Descriptions of all parties.
    roles : collection of str
        Roles of the method.
    kinds : str
        Their name in errors, such as ``"a hospital nor a centre"``.
    client : str
        Client class of the method.
    """
    check_partitions(parties)
    for party in parties:
        if party.role not in roles:
            remedy = f"serve a {client} on this node"
            raise misfit(party.partition, f"it is neither {kinds}", remedy, code="FK-NODE-METHOD")
        many = len(party.spelled) in (0, len(party.ids))
        words = party.ids.dtype == party.spelled.dtype == np.uint64
        if party.ids.shape != (party.announced, 2) or not (many and words):
            raise misfit(party.partition, "its hashes of ids do not fit", code="FK-MESSAGE-SHAPE")
        if repeated := count_duplicates(party.ids):
            name = f"partition {party.partition}"
            raise TableError(f"{repeated} duplicate ids", party=name, code="FK-IDS-DUPLICATE")
    check_spelling(parties)


def check_spelling(parties: Sequence[TableReply]) -> None:
    """Refuse ids of which more would match if all parties spelled them alike."""
    for one, other in combinations(parties, 2):
        if len(one.spelled) or len(other.spelled):
            plain = [party.spelled if len(party.spelled) else party.ids for party in (one, other)]
            found = int((find_rows(one.ids, other.ids) >= 0).sum())
            alike = int((find_rows(*plain) >= 0).sum())
            if alike > found:
                raise TableError(
                    f"{found} ids match those of partition {other.partition}, {alike} would if "
                    "both wrote them alike",
                    remedy="write ids alike at all parties: leading zeros, .0 and capital letters",
                    party=f"partition {one.partition}",
                    code="FK-IDS-SPELLED",
                )


def check_labels(parties: Sequence[TableReply], who: str) -> None:
    """Refuse labels with other outputs, classes or bounds than the first party's."""
    first, *others = (
        (p.partition, (p.outputs, p.classes, p.labels, p.label_bound)) for p in parties
    )
    for partition, task in others:
        if task != first[1]:
            raise misfit(
                partition,
                f"its labels differ from those of partition {first[0]} in number of outputs, "
                "classes or bound",
                f"declare the same classes or the same label bound at all {who}",
                code="FK-CLASSES-DIFFER",
            )


def rows_digest(
    parties: Sequence[TableReply], *more: str, saved: str | None, checkpoint: Path | None
) -> str:
    """Return a digest of each party's rows, features and outputs, in this session.

    ``more`` names further fields. Raises CheckpointError unless it equals ``saved``, if that is
    given.
    """
    digest = hashlib.sha256()
    for party in parties:
        names = ("partition", *more, "rows", "features", "outputs")
        sizes = tuple(getattr(party, name) for name in names)
        digest.update(repr(sizes).encode() + party.ids.tobytes())
    found = digest.hexdigest()
    if saved not in (None, found):
        raise CheckpointError(
            f"the rows of the parties are not those of the run of {checkpoint}",
            remedy="bring back the tables of that run, or start anew",
            code="FK-CHECKPOINT-PARTIES",
        )
    return found
