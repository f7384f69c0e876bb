"""Messages of an align run; see :mod:`fedkern_flwr.align.private_intersection` for the protocol.

Lists of points travel end to end encrypted from one party to the next in the ring. Session and
number of the exchange are filled in as a request is sent, the number of a reply by the client.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ..wire.message import Message, array


class AlignRequest(Message):
    """What every request of the method carries."""

    session: str = ""
    round: int = 0  # grows with every exchange
    # The list that the party before sealed for this one; empty at the first hop.
    received: NDArray[Any] = array("bytes", dtype="byte")


class AlignReply(Message):
    """What every reply of the method carries."""

    round: int = 0
    fingerprint: str  # digest of the party's secrets of the run, which must stay the same


class HopRequest(AlignRequest, phase="align-hop"):
    """Send your own list to the next party, or multiply one and pass it on."""

    hop: int  # how many hops the list has behind it: 0 for the party's own


class HopReply(AlignReply, phase="align-hop"):
    """The list for the next party of the ring."""

    sealed: NDArray[Any] = array("bytes", dtype="byte")


class TagsRequest(AlignRequest, phase="align-tags"):
    """Your own list is back: make tags of it, write the file, erase the secrets of the run."""


class TagsReply(AlignReply, phase="align-tags"):
    """Pseudonyms of all rows, as later runs send them."""

    ids: NDArray[Any] = array("ids", "words", dtype="ring")  # sorted, shape (rows, 2)
