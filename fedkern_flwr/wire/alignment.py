"""Messages of an align run; see :mod:`fedkern_flwr.private_intersection` for the protocol.

Lists of points travel end to end encrypted from one party to the next in the ring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from .message import PhaseMessage, array

__all__ = ["HopReply", "HopRequest", "TagsReply", "TagsRequest"]


@dataclass(frozen=True, kw_only=True)
class AlignRequest(PhaseMessage):
    """What every request of the method carries.

    Attributes
    ----------
    session : str
    round : int
        Number of the step; grows with every exchange.
    received : ndarray of uint8, shape (bytes,)
        The list that the party before sealed for this one; empty at the first hop.
    """

    session: str
    round: int
    received: NDArray[Any] = array("bytes", dtype="byte")


@dataclass(frozen=True, kw_only=True)
class AlignReply(PhaseMessage):
    """What every reply of the method carries.

    Attributes
    ----------
    round : int
        The number of the step.
    fingerprint : str
        Digest of the party's secrets of the run, which must stay the same.
    """

    round: int
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class HopRequest(AlignRequest):
    """Send your own list to the next party, or multiply one and pass it on.

    Attributes
    ----------
    hop : int
        How many hops the list has behind it: 0 for the party's own.
    """

    phase = "align-hop"
    hop: int


@dataclass(frozen=True, kw_only=True)
class HopReply(AlignReply):
    """The list for the next party of the ring.

    Attributes
    ----------
    sealed : ndarray of uint8, shape (bytes,)
    """

    phase = "align-hop"
    sealed: NDArray[Any] = array("bytes", dtype="byte")


@dataclass(frozen=True, kw_only=True)
class TagsRequest(AlignRequest):
    """Your own list is back: make tags of it, write the file, erase the secrets of the run."""

    phase = "align-tags"


@dataclass(frozen=True, kw_only=True)
class TagsReply(AlignReply):
    """Pseudonyms of all rows, as later runs send them.

    Attributes
    ----------
    ids : ndarray of uint64, shape (rows, 2)
        Sorted.
    """

    phase = "align-tags"
    ids: NDArray[Any] = array("ids", "words", dtype="ring")
