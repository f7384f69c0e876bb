"""Define the messages of secure sums; see :mod:`fedkern_flwr.secure_sum` for the protocol.

``Roster``, ``Order``, ``Upload``, ``Ballot``, ``Vote``, ``Unmask``, ``UnmaskReply``, ``Recover``,
``RecoverReply``, ``Delivery`` and ``End`` are sections of a method's messages. Without such a
message they are sent in a ``SumRequest`` and its ``SumReply``. A bit set has one bit per member of
the cohort, ascending, in little-endian bytes.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from .message import Message, PhaseMessage, arrays, content_digest


class Roster(Message, phase="sum-roster"):
    """Server to client: all keys of the run, and the cohorts of its sums.

    Attributes
    ----------
    partitions : bytes
        Ids as little-endian int32, ascending.
    keys, signatures : bytes
        X25519 public keys (32 bytes each) in that order, and their Ed25519 signatures (64 bytes
        each, zeros without identity).
    cohorts : str
        JSON list of [threshold, number of its first sum, [partition, ...]].
    cipher : str
        Cipher of the masks.
    counts : bytes
        Per party, as declared and signed: training rows, held-out rows and bits of a row, in
        little-endian int64.
    """

    long_texts = ("cohorts",)

    partitions: bytes
    keys: bytes
    signatures: bytes
    cohorts: str
    cipher: str
    counts: bytes


class SumSection(Message):
    """Base of sections about one sum: its cohort, and its number in the cohort."""

    cohort: int
    index: int


class Order(SumSection, phase="sum-order"):
    """Server to client: contribute to a sum.

    Attributes
    ----------
    kind, bits, bound
        The encoding.
    receiver : int
        Partition that alone can open the sum, -1 for the server.
    self_masks : bool
        False for a sum that is opened only if every member of the cohort takes part.
    open_from : int
        Sums of this cohort with smaller numbers are closed: erase their data.
    counted : int
        Number of the cohort's last sum that has this client's vector.
    noise, fraction : int
        Variance of each party's noise, in squared units of the last place, and fractional bits; 0
        for none.
    """

    name: str
    length: int
    kind: str
    bits: int
    bound: float
    receiver: int
    self_masks: bool
    open_from: int
    counted: int
    noise: int = 0
    fraction: int = 0


class Upload(SumSection, phase="sum-upload"):
    """Client to server: the masked vector in chunks, and what recovers its masks.

    Attributes
    ----------
    shares : bytes
        Per neighbour, ascending: its sealed share of the seed of the self mask.
    backups : bytes
        Per neighbour: its sealed shares of the seeds of this client's other pairs; may be empty.
    commitments : bytes
        Digests of the self seed, if any, and of the seeds of all pairs, 16 bytes each.
    """

    shares: bytes
    backups: bytes
    commitments: bytes
    masked: tuple[NDArray[Any], ...] = arrays("numbers", dtype="ring")


class Ballot(SumSection, phase="sum-vote"):
    """Server to client: sign these survivors of a sum (bit set ``alive``)."""

    alive: bytes


class Vote(SumSection, phase="sum-vote"):
    """Client to server: Ed25519 signature of the only survivors that it will answer for.

    See :mod:`fedkern_flwr.secure_sum.membership`.
    """

    signature: bytes


class Unmask(SumSection, phase="sum-unmask"):
    """Server to client: the final survivors of a sum.

    Attributes
    ----------
    alive, dead : bytes
        Bit sets that split the cohort.
    shares : bytes
        Per surviving neighbour, ascending: its sealed share for this client.
    voters, votes : bytes
        The certificate: bit set of voters, and their signatures, ascending; may be empty.
    """

    alive: bytes
    dead: bytes
    shares: bytes
    voters: bytes
    votes: bytes


class UnmaskReply(SumSection, phase="sum-unmask"):
    """Client to server: what opens a sum.

    Attributes
    ----------
    shares : bytes
        Shares of its self seed, then of each surviving neighbour's, 33 bytes each.
    seeds : bytes
        Seeds of its pairs with dropped neighbours, 32 bytes each.
    """

    shares: bytes
    seeds: bytes


class Recover(SumSection, phase="sum-recover"):
    """Server to client: reveal shares of the seeds that dropped survivors have with the dead.

    ``alive`` are the survivors, as declared before; ``silent`` those of them without an answer,
    neighbours of this client; ``backups`` their sealed backups for this client.
    """

    alive: bytes
    silent: bytes
    backups: bytes


class RecoverReply(SumSection, phase="sum-recover"):
    """Client to server: a share of the seed, per dropped survivor and its dead neighbour."""

    shares: bytes


class Delivery(SumSection, phase="sum-delivery"):
    """Server to the receiver of a sum: the total, still under the receiver's pad."""

    padded: tuple[NDArray[Any], ...] = arrays("numbers", dtype="ring")


class End(Message, phase="sum-end"):
    """Server to client: the run is over with this request; erase its sums.

    It is part of the last exchange; a party without a part in that gets a :class:`FinishRequest`.
    """


class SumRequest(Message):
    """A request with sections only."""

    session: str
    round: int


class VoteRequest(SumRequest, phase="vote"):
    """Carry :class:`Ballot` sections."""


class UnmaskRequest(SumRequest, phase="unmask"):
    """Carry :class:`Unmask` sections."""


class RecoverRequest(SumRequest, phase="recover"):
    """Carry :class:`Unmask` sections to dropped survivors, :class:`Recover` sections to the others.

    ``attempt`` counts from 1.
    """

    attempt: int


class FinishRequest(SumRequest, phase="finish"):
    """The run is over: erase its sums."""


class BreakRequest(SumRequest, phase="break"):
    """The run was interrupted: erase its sums, but keep its noise key.

    A repeated sum must have the same noise as before.
    """


class SumReply(Message, phase="sum-reply"):
    """A reply with sections only."""


def bind(name: str, request: PhaseMessage, **alike: Any) -> str:
    """Return the name of a sum to which nodes contribute only if all got the same request.

    Masks depend on the name. If a server sends nodes different requests, such as other items, the
    sum cannot be opened. ``alike`` replaces scalars in which requests may differ.
    """
    digest = content_digest({**request.scalars(), **alike}, request.arrays())
    return f"{name}#{digest[:32]}"
