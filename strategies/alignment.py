"""Align: parties without a common key agree on secret tags by which their rows are joined."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedkern_flwr.alignment import Overlap, count_duplicates, count_overlaps
from fedkern_flwr.errors import (
    CohortError,
    EngineError,
    FedKernError,
    ProtocolError,
    SmallCohortError,
    StateError,
)
from fedkern_flwr.private_intersection import POINT_BYTES
from fedkern_flwr.secure_sum.envelope import SEALING_BYTES
from fedkern_flwr.strategy import logger
from fedkern_flwr.wire import DescribeReply
from fedkern_flwr.wire import alignment as wire
from fedkern_flwr.wire.describe import check_partitions

from .whole_cohort import WholeCohortStrategy


class AlignIds(WholeCohortStrategy):
    """Private set intersection: each party gets a file of secret tags, one for each of its ids.

    Later runs of any method take the file in place of a common alignment key. The protocol is
    that of :mod:`fedkern_flwr.private_intersection`; P parties take P + 2 exchanges. In the last
    one the parties send pseudonyms of their tags, as every later run does, and the server counts.

    Parameters
    ----------
    attempts : int (default: 5)
        A party that fails to answer is asked so often in all.
    node_timeout : float (default: 60.0)
        Seconds to wait for the nodes at the start.

    Attributes
    ----------
    overlaps_ : dict
        Partition -> how many of its rows others have, see
        :class:`~fedkern_flwr.alignment.Overlap`.

    Notes
    -----
    The server relays 32 bytes per id and hop, in one message per party: a table of a million ids
    is 32 MB of each exchange.
    """

    method: ClassVar[str] = "align"
    title: ClassVar[str] = "Align"
    fixed: ClassVar[frozenset[str]] = WholeCohortStrategy.fixed | {
        "seed",
        "allow_single",
        "checkpoint",
        "resume",
    }
    relays_only: ClassVar[bool] = True

    def __init__(self, *, attempts: int = 5, node_timeout: float = 60.0) -> None:
        super().__init__(attempts=attempts, node_timeout=node_timeout)

    def _reset(self) -> None:
        super()._reset()
        self.overlaps_: dict[int, Overlap] = {}
        self._fingerprints: dict[int, str] = {}

    # -- what a method tells about itself

    def privacy(self) -> dict[str, Any]:
        """Return what is seen by whom."""
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
        """Refuse partitions that clash, and a single one."""
        check_partitions(parties)
        if len(parties) < 2:
            raise SmallCohortError(
                "there is one party, and nobody to align with",
                remedy="start the other parties' nodes",
                phase="describe",
            )

    # -- Flower's interface

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 1,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Let the parties make their tags; count what they have in common.

        Parameters
        ----------
        grid : Grid
            Flower's grid, of any engine.
        timeout : float (default: 3600)
            Seconds to wait for the replies of one exchange.
        initial_arrays, num_rounds, train_config, evaluate_config, evaluate_fn : optional
            Not used.

        Returns
        -------
        Result
            No arrays; the metrics.

        Raises
        ------
        CohortError, ProtocolError, StateError, SumError, EngineError
            The run cannot start or go on: start it again.
        """
        self._reset()
        self.summary()
        self.gather(grid, secure=True)
        try:
            hashes = self._align(grid, timeout)
        except EngineError:
            raise  # nobody can be reached any more
        except FedKernError:
            with contextlib.suppress(FedKernError):  # let whoever is left erase its secrets
                self.finish(grid, number=self.step + 1, timeout=timeout)
            raise
        self.overlaps_ = count_overlaps(hashes)
        self.metrics_ = {
            "rows": sum(overlap.rows for overlap in self.overlaps_.values()),
            "rows_in_all": next(iter(self.overlaps_.values())).in_all,
        }
        result = Result()
        result.train_metrics_clientapp[1] = MetricRecord(dict(self.metrics_))
        return result

    # -- the run

    def _align(self, grid: Grid, timeout: float) -> dict[int, Any]:
        """Send the lists round the ring; return the pseudonyms of each party."""
        parties = [party.partition for party in self.described_parties()]
        sizes = {p.partition: p.rows + p.test_rows for p in self.described_parties()}
        lists = dict.fromkeys(parties, np.zeros(0, np.uint8))  # by who gets them next
        common: dict[str, Any] = {"session": self.session, "round": 0}  # numbered when sent
        for hop in range(len(parties)):
            requests = {p: wire.HopRequest(**common, hop=hop, received=lists[p]) for p in parties}
            replies = self._ask_all(grid, requests, wire.HopReply, timeout)
            for partition, reply in replies.items():
                owner = (partition - hop) % len(parties)
                if len(reply.sealed) != POINT_BYTES * sizes[owner] + SEALING_BYTES:
                    raise ProtocolError(
                        "what it passes on is a list of another length",
                        remedy="run the same release of fedkern-flwr on all nodes",
                        party=f"partition {partition}",
                        phase=wire.HopReply.phase,
                    )
            lists = {(p + 1) % len(parties): reply.sealed for p, reply in replies.items()}
            self._tell(hop + 1, len(parties) + 1)
        last = {p: wire.TagsRequest(**common, received=lists[p]) for p in parties}
        replies = self._ask_all(grid, last, wire.TagsReply, timeout)
        for partition, reply in replies.items():
            shape, dtype = (sizes[partition], 2), reply.ids.dtype
            if reply.ids.shape != shape or dtype != np.uint64 or count_duplicates(reply.ids):
                raise ProtocolError(
                    "its pseudonyms do not fit its rows",
                    party=f"partition {partition}",
                    phase=wire.TagsReply.phase,
                )
        self._tell(len(parties) + 1, len(parties) + 1)
        return {partition: reply.ids for partition, reply in sorted(replies.items())}

    def _ask_all(
        self,
        grid: Grid,
        requests: dict[int, Any],
        reply: type[wire.AlignReply],
        timeout: float,
    ) -> dict[int, Any]:
        """Return the replies of all parties; whoever does not answer is asked again."""
        found: dict[int, Any] = {}
        for _ in range(self.attempts):
            self.next_step()
            left = {
                partition: dataclasses.replace(request, round=self.step)
                for partition, request in requests.items()
                if partition not in found
            }
            found |= self.ask(grid, left, reply, timeout)
            if self.lost_state:
                raise StateError(
                    "a node has lost its secret of this run",
                    remedy=_start_again(reply.phase),
                    phase=reply.phase,
                )
            for partition, answer in found.items():
                first = self._fingerprints.setdefault(partition, answer.fingerprint)
                if answer.fingerprint != first:
                    raise ProtocolError(
                        "its secret of the run has changed between two messages",
                        remedy=_start_again(reply.phase),
                        party=f"partition {partition}",
                        phase=reply.phase,
                    )
            if len(found) == len(requests):
                return dict(sorted(found.items()))
        raise self.gave_up(reply.phase)

    def gave_up(self, phase: str) -> CohortError:
        """Return the error with which a run ends when a party does not answer."""
        remedy = f"mend it and {_start_again(phase)}"
        return CohortError(super().gave_up(phase).problem, remedy=remedy, phase=phase)

    def _tell(self, done: int, total: int) -> None:
        logger.info("align: exchange %d of %d", done + 1, total + 1)
        if self.on_round is not None:
            self.on_round(done, total, {})


def _start_again(phase: str) -> str:
    """Return what to do when a run breaks off; files are written in its last phase."""
    if phase != wire.TagsReply.phase:
        return "start align again"
    return "start align again: nodes that have written files of this run match no others"
