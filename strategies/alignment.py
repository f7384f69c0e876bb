"""Align: parties without a common key agree on secret tags by which their rows are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fedkern_flwr.align import private_intersection as wire
from fedkern_flwr.align.private_intersection import POINT_BYTES
from fedkern_flwr.alignment import Overlap, count_duplicates, count_overlaps
from fedkern_flwr.errors import ProtocolError, SmallCohortError, StateError
from fedkern_flwr.method import Ask, LostState, Method, Rounds, Steps
from fedkern_flwr.nodes import NODE_TIMEOUT, logger
from fedkern_flwr.options import unknown_option
from fedkern_flwr.secure_sum.crypto import SEALING_BYTES
from fedkern_flwr.wire import DescribeReply
from fedkern_flwr.wire.describe import check_partitions

_AGAIN = "start align again"
_FILES = f"{_AGAIN}: nodes that have written files of this run match no others"


class AlignIds(Method):
    """Private set intersection: each party gets a file of secret tags, one for each of its ids.

    Later runs of any method take the file in place of a common alignment key. The protocol is
    that of :mod:`fedkern_flwr.align.private_intersection`; P parties take P + 2 exchanges. In the
    last one the parties send pseudonyms of their tags, as in every later run, and the server
    counts.

    Parameters
    ----------
    attempts : int (default: 5)
        Most requests to a party that fails to answer.
    node_timeout : float (default: 120.0)
        Seconds to wait for the nodes at the start, and later for one that is away.

    Attributes
    ----------
    overlaps_ : dict
        Partition -> how many of its rows others have, see :class:`~fedkern_flwr.alignment.Overlap`.

    Notes
    -----
    The server relays 32 bytes per id and hop, in one message per party: a million ids are 32 MB per
    exchange.
    """

    method, title = "align", "Align"
    no_budget = "tells which ids are in common, without noise"
    fixed: ClassVar[frozenset[str]] = frozenset(
        {"seed", "min_clients", "min_cohort", "max_missed", "threshold"}
        | {"checkpoint", "checkpoint_every", "resume"}
    )
    relays_only = True

    def __init__(
        self, *, attempts: int = 5, node_timeout: float = NODE_TIMEOUT, **unknown: Any
    ) -> None:
        for name in unknown:
            if name in self.fixed:
                raise unknown_option(type(self), name)
        super().__init__(attempts=attempts, node_timeout=node_timeout, **unknown)

    def _reset(self) -> None:
        super()._reset()
        self.overlaps_: dict[int, Overlap] = {}
        self._fingerprints: dict[int, str] = {}

    # -- what a method reports

    def privacy(self) -> dict[str, Any]:
        return {
            "protocol": "Diffie-Hellman private set intersection",
            "server_sees": [
                "numbers of rows and held-out rows per party",
                "which rows of which party belong together, by pseudonyms of this run",
            ],
            "clients_see": ["how many ids each other party has"],
            "never_leaves_the_client": ["ids", "rows", "tags"],
        }

    def matched(self) -> dict[str, Any]:
        """Return how many rows of each party others have."""
        facts = {
            str(partition): {
                "rows": overlap.rows,
                "shared_with": {str(k): rows for k, rows in overlap.shared.items()},
                "known_to_others": list(overlap.known_to),
                "in_all": overlap.in_all,
            }
            for partition, overlap in self.overlaps_.items()
        }
        return {"partition": facts} if facts else {}

    def check_parties(self, parties: Sequence[DescribeReply]) -> None:
        check_partitions(parties)
        if len(parties) < 2:
            raise SmallCohortError(
                "there is one party, and nobody to align with",
                remedy="start the other parties' nodes",
                phase="describe",
                code="FK-PARTIES-FEW",
            )

    # -- a run

    def rounds(self, parties: Sequence[DescribeReply]) -> Rounds:
        """Send the lists round the ring, make tags of them, count what parties share."""
        sizes = {p.partition: p.rows + p.test_rows for p in parties}
        lists = dict.fromkeys(sizes, np.zeros(0, np.uint8))  # by their next receiver
        self.planned = len(sizes) + 1
        for hop in range(len(sizes)):
            asked = {p: wire.HopRequest(hop=hop, received=lists[p]) for p in sizes}
            replies = yield from self._ask(asked, wire.HopReply)
            for p, reply in replies.items():
                length = POINT_BYTES * sizes[(p - hop) % len(sizes)] + SEALING_BYTES
                if len(reply.sealed) != length:
                    raise _wrong(
                        p,
                        reply,
                        "what it passes on is a list of another length",
                        "run the same release of fedkern-flwr on all nodes",
                        code="FK-ALIGN-LIST",
                    )
            lists = {(p + 1) % len(sizes): reply.sealed for p, reply in replies.items()}
            logger.info("align: exchange %d of %d", hop + 2, len(sizes) + 2)
        last = {p: wire.TagsRequest(received=lists[p]) for p in sizes}
        replies = yield from self._ask(last, wire.TagsReply, last=True)
        for p, reply in replies.items():
            fits = reply.ids.shape == (sizes[p], 2) and reply.ids.dtype == np.uint64
            if not fits or count_duplicates(reply.ids):
                raise _wrong(p, reply, "its pseudonyms do not fit its rows", code="FK-ALIGN-LIST")
        self.overlaps_ = count_overlaps({p: reply.ids for p, reply in replies.items()})
        in_all = next(iter(self.overlaps_.values())).in_all
        return {"rows": sum(sizes.values()), "rows_in_all": in_all}

    def _ask(
        self,
        requests: Mapping[int, wire.AlignRequest],
        reply: type[wire.AlignReply],
        *,
        last: bool = False,
    ) -> Steps:
        again = _FILES if last else _AGAIN
        try:
            answers = yield Ask(requests, reply=reply, remedy=f"mend it and {again}", last=last)
        except LostState:
            raise StateError(
                "a node has lost its secret of this run",
                remedy=again,
                phase=reply.phase,
                code="FK-STATE-GONE",
            ) from None
        for p, answer in answers.replies.items():
            if self._fingerprints.setdefault(p, answer.fingerprint) != answer.fingerprint:
                changed = "its secret of the run has changed between two messages"
                raise _wrong(p, answer, changed, again, code="FK-STATE-GONE")
        return answers.replies


def _wrong(
    partition: int,
    reply: wire.AlignReply,
    problem: str,
    remedy: str | None = None,
    *,
    code: str,
) -> ProtocolError:
    party = f"partition {partition}"
    return ProtocolError(problem, remedy=remedy, party=party, phase=reply.phase, code=code)
