"""Messages of secure sums; see :mod:`fedkern_flwr.secure_sum` for the protocol.

``Roster``, ``Order``, ``Upload``, ``Ballot``, ``Vote``, ``Unmask``, ``UnmaskReply``, ``Recover``,
``RecoverReply``, ``Delivery`` and ``End`` are sections that ride on the messages of a method. Where
there is none to ride on, they travel on a ``SumRequest`` and its ``SumReply``.

Bit sets are little-endian bytes, a bit per member of the cohort in ascending order.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from .message import Message, PhaseMessage, arrays, content_digest


class Roster(Message, phase="sum-roster"):
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

    long_texts = ("cohorts",)

    partitions: bytes
    keys: bytes
    signatures: bytes
    cohorts: str
    cipher: str
    counts: bytes


class SumSection(Message):
    """What every section about one sum carries: its cohort and its number in that cohort."""

    cohort: int
    index: int


class Order(SumSection, phase="sum-order"):
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
    noise : int
        Variance of the noise that each party adds, in units of the last place squared; 0 for none.
    fraction : int
        With noise: fractional bits, of which there are as many as fit without it.
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
        Per neighbour, ascending: its share of the seed of the self mask, sealed.
    backups : bytes
        Per neighbour: its shares of the seeds of the other pairs of this client, sealed. Empty
        where they are off (:meth:`.Cohort.backs_up`) or this client allows no recovery.
    commitments : bytes
        Digests of the self seed, if there is one, and of the seeds of all its pairs, 16 bytes each.
    masked : tuple of ndarray
    """

    shares: bytes
    backups: bytes
    commitments: bytes
    masked: tuple[NDArray[Any], ...] = arrays("numbers", dtype="ring")


class Ballot(SumSection, phase="sum-vote"):
    """Server to client: sign that these are the survivors of a sum.

    Attributes
    ----------
    alive : bytes
        Bit set.
    """

    alive: bytes


class Vote(SumSection, phase="sum-vote"):
    """Client to server: the only survivors for which it will ever answer.

    Attributes
    ----------
    signature : bytes
        Ed25519, 64 bytes; see :mod:`fedkern_flwr.secure_sum.membership`.
    """

    signature: bytes


class Unmask(SumSection, phase="sum-unmask"):
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

    alive: bytes
    dead: bytes
    shares: bytes
    voters: bytes
    votes: bytes


class UnmaskReply(SumSection, phase="sum-unmask"):
    """Client to server: shares of survivors' self seeds, seeds of its pairs with the dead.

    Attributes
    ----------
    shares : bytes
        Its share of its own self seed, then of each surviving neighbour's, 33 bytes each.
    seeds : bytes
        Seeds of this sum that it has in common with each dead neighbour, 32 bytes each.
    """

    shares: bytes
    seeds: bytes


class Recover(SumSection, phase="sum-recover"):
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

    alive: bytes
    silent: bytes
    backups: bytes


class RecoverReply(SumSection, phase="sum-recover"):
    """Client to server: per silent party and dead neighbour of it, a share of their seed."""

    shares: bytes


class Delivery(SumSection, phase="sum-delivery"):
    """Server to the receiver of a sum: the total, still under the receiver's pad."""

    padded: tuple[NDArray[Any], ...] = arrays("numbers", dtype="ring")


class End(Message, phase="sum-end"):
    """Server to client: the run is over with this request; erase all that belongs to its sums.

    Beside the requests of the last exchange; who has no part in it gets a :class:`FinishRequest`.
    """


class SumRequest(Message):
    """A request that only carries sections."""

    session: str
    round: int


class VoteRequest(SumRequest, phase="vote"):
    """Carries :class:`Ballot` sections."""


class UnmaskRequest(SumRequest, phase="unmask"):
    """Carries :class:`Unmask` sections."""


class RecoverRequest(SumRequest, phase="recover"):
    """Carries :class:`Unmask` sections to the silent again, :class:`Recover` to those who answered.

    Attributes
    ----------
    attempt : int
        From 1.
    """

    attempt: int


class FinishRequest(SumRequest, phase="finish"):
    """The run is over: erase all that belongs to its sums."""


class BreakRequest(SumRequest, phase="break"):
    """The run broke off, and may go on: erase what belongs to its sums, but the key of its noise.

    A sum that is asked for again must have the noise that it had.
    """


class SumReply(Message, phase="sum-reply"):
    """A reply that only carries sections."""


def bind(name: str, request: PhaseMessage, **alike: Any) -> str:
    """Return the name of a sum to which nodes contribute only if all were asked the same.

    The masks of a sum depend on its name: a server that tells nodes different things, such as other
    items or another set of nodes that count, gets a sum that cannot be opened. Scalars in which
    requests may differ are given, with what stands for them.
    """
    digest = content_digest({**request.scalars(), **alike}, request.arrays())
    return f"{name}#{digest[:32]}"
