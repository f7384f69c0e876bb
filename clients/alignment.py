"""The client of an align run: a party that wants to join its rows without a common key."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from flwr.app import Context

from fedkern_flwr.align import private_intersection as wire
from fedkern_flwr.align.private_intersection import (
    Exponents,
    blind_ids,
    finish_tags,
    multiply_points,
)
from fedkern_flwr.alignment import AlignmentTags, Ids, hash_ids, id_texts, sort_order
from fedkern_flwr.checkpoint import can_be_written
from fedkern_flwr.errors import (
    CheckpointError,
    OptionError,
    ProtocolError,
    RefusedError,
    StateError,
    TableError,
)
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.node.client import Client, answers
from fedkern_flwr.node.state import KeptState, SessionState
from fedkern_flwr.secure_sum.crypto import seal_message, unseal_message
from fedkern_flwr.wire import DescribeReply, DescribeRequest, columns_digest

logger = logging.getLogger("fedkern_flwr")


class AlignmentClient(Client):
    """A party of an align run.

    Between two messages it keeps 96 secret bytes and a digest of its ids; all else is recomputed,
    so lost messages may be requested again.

    Parameters
    ----------
    context : flwr.app.Context
        The node's context.
    ids : sequence of length n
        Record ids of the party's rows; their text counts.
    alignment : path
        File (``.npz``) to write, which replaces an alignment key in later runs.
    ids_test : sequence, optional
        Record ids of held-out rows.
    **common
        Options of :class:`~fedkern_flwr.node.client.Client`.

    Raises
    ------
    TableError
        No ids, or duplicate ids.
    OptionError
        The file cannot be written.

    Notes
    -----
    CPU: about 130 microseconds per own id, and 50 per id of each other party. Memory: about 400
    bytes per id of the largest table.
    """

    freezes = False
    role = "party"
    pair_secrets: ClassVar[bool] = True
    tells_values: ClassVar[bool] = False  # only which ids two parties share
    whole_cohorts: ClassVar[bool] = True
    enough_parties: ClassVar[int] = 2

    def __init__(
        self,
        context: Context,
        ids: Ids,
        *,
        alignment: str | Path,
        ids_test: Ids | None = None,
        **common: Any,
    ) -> None:
        super().__init__(context, **common)
        self.alignment = Path(alignment)
        known, held_out = id_texts(ids), [] if ids_test is None else id_texts(ids_test)
        self.tests = len(held_out)
        self.ids = known + held_out
        if not self.ids:
            raise TableError("there are no ids", party=self.name, code="FK-ROWS-NONE")
        if repeated := len(self.ids) - len(set(self.ids)):
            raise TableError(f"{repeated} duplicate ids", party=self.name, code="FK-IDS-DUPLICATE")
        if not can_be_written(self.alignment):  # before any work is done
            raise self._unwritable()

    def choose_partners(self, request: Any) -> Collection[int]:
        return (self._neighbour(-1), self._neighbour(1))

    def own_rows(self) -> OwnRows:
        return OwnRows(ids=self.ids, learned=len(self.ids) - self.tests)

    # -- phases

    def describe(self, request: DescribeRequest) -> DescribeReply:
        return DescribeReply(
            rows=len(self.ids) - self.tests,
            features=0,
            test_rows=self.tests,
            columns=columns_digest(()),
        )

    def answer(self, request: Any, method: Any) -> Any:
        """Name this party in errors about data of another party."""
        try:
            return method(request)
        except ProtocolError as error:
            if error.party or isinstance(error, RefusedError):
                raise
            raise ProtocolError(
                error.problem, remedy="start align again", party=self.name, code=error.code
            ) from None

    @answers(wire.HopRequest)
    def pass_on(self, request: wire.HopRequest) -> wire.HopReply:
        """Send the own list to the next party, or multiply another's and pass it on."""
        if not 0 <= request.hop < self.partitions:
            raise ProtocolError(
                f"there is no hop {request.hop}", party=self.name, code="FK-MESSAGE-FIELD"
            )
        exponents = self._exponents(draw=request.hop == 0)
        if request.hop == 0:
            order = exponents.order(self.ids)
            points = blind_ids((self.ids[k] for k in order), exponents.blind)
        else:
            points = multiply_points(self._open(request, request.hop), exponents.own)
        after, owner = self._neighbour(1), self._neighbour(-request.hop)
        place = _place(request, request.hop + 1, owner, self.partition, after)
        sealed = seal_message(self.pair_secret(after), points, *place)
        return wire.HopReply(
            fingerprint=exponents.fingerprint, sealed=np.frombuffer(sealed, np.uint8)
        )

    @answers(wire.TagsRequest, last=True)
    def write_tags(self, request: wire.TagsRequest) -> wire.TagsReply:
        """Make tags of the own list, write the file, erase the run's secrets."""
        if "done" in self.kept.settings:  # the reply was lost
            tags = self._written(request.session)
        else:
            exponents = self._exponents()
            points = self._open(request, self.partitions)
            found = finish_tags(points, exponents.rest, len(self.ids))
            ids = [self.ids[k] for k in exponents.order(self.ids)]
            tags = AlignmentTags.of(request.session, ids, found)
            self._write(tags)
            self.kept = KeptState({"done": exponents.fingerprint})
        hashes = hash_ids(self.ids, tags, request.session)
        return wire.TagsReply(
            fingerprint=str(self.kept.settings["done"]), ids=hashes[sort_order(hashes)]
        )

    def forget(self, state: SessionState) -> bytes:
        return b""

    # -- pieces

    def _exponents(self, *, draw: bool = False) -> Exponents:
        """Return the secrets of the run; ``draw`` new ones if needed.

        Raises
        ------
        StateError
            They are gone: with others nothing would match.
        """
        if not self.kept.seed:
            if not draw or self.kept.settings:
                raise self._gone("its secret of this run")
            self.kept.seed = Exponents.draw().pack()
        self.check_table(hashlib.sha256(repr((self.ids, self.tests)).encode()).hexdigest())
        return Exponents.unpack(self.kept.seed)

    def _open(self, request: wire.AlignRequest, hop: int) -> bytes:
        before, owner = self._neighbour(-1), self._neighbour(-hop)
        place = _place(request, hop, owner, before, self.partition)
        return unseal_message(self.pair_secret(before), request.received.tobytes(), *place)

    def _neighbour(self, steps: int) -> int:
        return (self.partition + steps) % self.partitions

    def _write(self, tags: AlignmentTags) -> None:
        try:
            tags.save(self.alignment)
        except OSError:
            raise self._unwritable() from None
        logger.info("align run %s: %d tags in %s", tags.run, len(tags.names), self.alignment)

    def _written(self, session: str) -> AlignmentTags:
        try:
            tags = AlignmentTags.load(self.alignment)
        except CheckpointError:
            raise self._gone("the file of this run") from None
        if tags.run != session:
            raise self._gone("the file of this run")
        return tags

    def _gone(self, what: str) -> StateError:
        return StateError(
            f"{what} is gone", remedy="start align again", party=self.name, code="FK-STATE-GONE"
        )

    def _unwritable(self) -> OptionError:
        return OptionError(
            "the alignment file cannot be written", party=self.name, code="FK-FILE-WRITE"
        )


def _place(
    request: wire.AlignRequest, hop: int, owner: int, source: int, destination: int
) -> tuple[str | int, ...]:
    return ("align", request.session, hop, owner, source, destination)
