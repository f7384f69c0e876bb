"""Messages of secure sums; see :mod:`fedkern_flwr.secure_sum` for the protocol.

``Roster``, ``Order``, ``Upload``, ``Ballot``, ``Vote``, ``Unmask``, ``UnmaskReply``, ``Recover``,
``RecoverReply`` and ``Delivery`` are sections that ride on the messages of a method. Where there is
none to ride on, they travel on a ``SumRequest`` and its ``SumReply``.

Bit sets are little-endian bytes, a bit per member of the cohort in ascending order.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from .message import PhaseMessage, arrays

__all__ = [
    "Ballot",
    "Delivery",
    "FinishRequest",
    "Order",
    "Recover",
    "RecoverReply",
    "RecoverRequest",
    "Roster",
    "SumReply",
    "SumRequest",
    "Unmask",
    "UnmaskReply",
    "UnmaskRequest",
    "Upload",
    "Vote",
    "VoteRequest",
    "bind",
]


@dataclass(frozen=True, kw_only=True)
class Roster(PhaseMessage):
    """Server to client: all keys of the run, and the cohorts among which it will sum.

    Attributes
    ----------
    partitions : bytes
        Ids as little-endian int32, ascending.
    keys : bytes
        X25519 public keys, 32 bytes each, in that order.
    signatures : bytes
        Ed25519 signatures of the keys, 64 bytes each, zeros for a party without identity.
    cohorts : str
        JSON list of [threshold, number of its first sum, [partition, ...]].
    cipher : str
        The cipher that makes masks.
    counts : bytes
        Per party, in that order: rows that it learns from and held-out rows, as it declared them
        and signed with its key; little-endian int64.
    """

    phase = "sum-roster"
    partitions: bytes
    keys: bytes
    signatures: bytes
    cohorts: str
    cipher: str
    counts: bytes


@dataclass(frozen=True, kw_only=True)
class SumSection(PhaseMessage):
    """What every section about one sum carries: its cohort and its number in that cohort."""

    cohort: int
    index: int


@dataclass(frozen=True, kw_only=True)
class Order(SumSection):
    """Server to client: contribute to a sum.

    Attributes
    ----------
    name : str
        What is summed; the method's name for it.
    length : int
    kind, bits, bound
        The encoding.
    receiver : int
        Partition that alone can open the sum, -1 for the server.
    self_masks : bool
        False for a sum that is opened only if every member of the cohort takes part.
    open_from : int
        Sums of this cohort with smaller numbers are closed: erase what belongs to them.
    counted : int
        Number of the last sum of this cohort in which this client's vector was counted.
    """

    phase = "sum-order"
    name: str
    length: int
    kind: str
    bits: int
    bound: float
    receiver: int
    self_masks: bool
    open_from: int
    counted: int


@dataclass(frozen=True, kw_only=True)
class Upload(SumSection):
    """Client to server: the masked vector in chunks, and what recovers its masks.

    Attributes
    ----------
    shares : bytes
        Per neighbour, ascending: its share of the seed of the self mask, sealed.
    backups : bytes
        Per neighbour: its shares of the seeds of the other pairs of this client, sealed. Empty
        where they are off (:meth:`.Cohort.backs_up`) or this client allows no recovery.
    commitments : bytes
        Digests of the self seed, if there is one, and of the seeds of all its pairs, 16 bytes each.
    masked : tuple of ndarray
    """

    phase = "sum-upload"
    shares: bytes
    backups: bytes
    commitments: bytes
    masked: tuple[NDArray[Any], ...] = arrays("numbers", dtype="ring")


@dataclass(frozen=True, kw_only=True)
class Ballot(SumSection):
    """Server to client: sign that these are the survivors of a sum.

    Attributes
    ----------
    alive : bytes
        Bit set.
    """

    phase = "sum-vote"
    alive: bytes


@dataclass(frozen=True, kw_only=True)
class Vote(SumSection):
    """Client to server: the only survivors for which it will ever answer.

    Attributes
    ----------
    signature : bytes
        Ed25519, 64 bytes; see :mod:`fedkern_flwr.secure_sum.votes`.
    """

    phase = "sum-vote"
    signature: bytes


@dataclass(frozen=True, kw_only=True)
class Unmask(SumSection):
    """Server to client: the survivors of a sum, declared once and for all.

    Attributes
    ----------
    alive, dead : bytes
        Bit sets that part the cohort.
    shares : bytes
        Per surviving neighbour, ascending: what it sealed for this client.
    voters, votes : bytes
        Bit set of survivors and their signatures, ascending: the certificate. Empty where none is
        needed.
    """

    phase = "sum-unmask"
    alive: bytes
    dead: bytes
    shares: bytes
    voters: bytes
    votes: bytes


@dataclass(frozen=True, kw_only=True)
class UnmaskReply(SumSection):
    """Client to server: shares of survivors' self seeds, seeds of its pairs with the dead.

    Attributes
    ----------
    shares : bytes
        Its share of its own self seed, then of each surviving neighbour's, 33 bytes each.
    seeds : bytes
        Seeds of this sum that it has in common with each dead neighbour, 32 bytes each.
    """

    phase = "sum-unmask"
    shares: bytes
    seeds: bytes


@dataclass(frozen=True, kw_only=True)
class Recover(SumSection):
    """Server to client: survivors that fell silent; reveal shares of their pairs with the dead.

    Attributes
    ----------
    alive : bytes
        The survivors declared before.
    silent : bytes
        Bit set of survivors that did not answer, neighbours of this client.
    backups : bytes
        Per silent party: what it sealed for this client.
    """

    phase = "sum-recover"
    alive: bytes
    silent: bytes
    backups: bytes


@dataclass(frozen=True, kw_only=True)
class RecoverReply(SumSection):
    """Client to server: per silent party and dead neighbour of it, a share of their seed."""

    phase = "sum-recover"
    shares: bytes


@dataclass(frozen=True, kw_only=True)
class Delivery(SumSection):
    """Server to the receiver of a sum: the total, still under the receiver's pad."""

    phase = "sum-delivery"
    padded: tuple[NDArray[Any], ...] = arrays("numbers", dtype="ring")


@dataclass(frozen=True, kw_only=True)
class SumRequest(PhaseMessage):
    """A request that only carries sections."""

    session: str
    round: int


@dataclass(frozen=True, kw_only=True)
class VoteRequest(SumRequest):
    """Carries :class:`Ballot` sections."""

    phase = "vote"


@dataclass(frozen=True, kw_only=True)
class UnmaskRequest(SumRequest):
    """Carries :class:`Unmask` sections."""

    phase = "unmask"


@dataclass(frozen=True, kw_only=True)
class RecoverRequest(SumRequest):
    """Carries :class:`Unmask` sections to the silent again, :class:`Recover` to those who answered.

    Attributes
    ----------
    attempt : int
        From 1.
    """

    phase = "recover"
    attempt: int


@dataclass(frozen=True, kw_only=True)
class FinishRequest(SumRequest):
    """The run is over: erase all that belongs to its sums."""

    phase = "finish"


@dataclass(frozen=True)
class SumReply(PhaseMessage):
    """A reply that only carries sections."""

    phase = "sum-reply"


def bind(name: str, request: PhaseMessage) -> str:
    """Return the name of a sum to which nodes contribute only if all were asked the same.

    The masks of a sum depend on its name: a server that tells nodes different things, such as other
    items or another set of nodes that count, gets a sum that cannot be opened.
    """
    digest = hashlib.sha256(json.dumps(sorted(request.scalars().items()), default=repr).encode())
    for array in request.arrays():
        digest.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
    return f"{name}#{digest.hexdigest()[:32]}"
