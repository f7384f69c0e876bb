"""The server's side of one sum from its survivors' answers on: removes the masks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..errors import SumError
from ..wire.sums import Delivery, Recover, RecoverReply, UnmaskReply, Upload, Vote
from .declared_sum import DeclaredSum
from .encoding import chunks
from .keys import KEY_BYTES
from .masks import Stream, add_streams
from .seeds import commitment, open_seed
from .shamir import SHARE_BYTES, cut

Pair = tuple[int, int]
Reply = Upload | Vote | UnmaskReply | RecoverReply


class RunningSum(DeclaredSum):
    """A sum from its order to its total.

    Memory: one vector of the sum (two once it is open), and per party and neighbour 65 bytes of
    sealed shares and digests (backups beyond 16 MiB go to a temporary file); an upload is added
    when it arrives and dropped.

    Attributes
    ----------
    forgers : list of int
        Parties whose shares were found to be forged and left out.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.forgers: list[int] = []
        self._total: np.ndarray = np.zeros(0)  # decoded, once the sum is open
        self._answered: set[int] = set()
        self._shares: dict[int, dict[int, bytes]] = {}  # survivor -> point -> share
        self._seeds: dict[Pair, bytes] = {}  # (survivor, dead) -> seed
        self._pair_shares: dict[Pair, dict[int, bytes]] = {}
        self._finished = self._closed = False

    def take(self, partition: int, reply: Reply, asked: Recover | None) -> None:
        """Take a section of a party's reply; ``asked`` is what it was asked to recover.

        Raises
        ------
        SumError
        """
        if isinstance(reply, Upload):
            self.add(partition, reply)
        elif isinstance(reply, Vote):
            self.vote(partition, reply)
        elif isinstance(reply, UnmaskReply):
            self.reveal(partition, reply)
        elif asked is not None:
            self.recover(partition, asked, reply)

    def reveal(self, partition: int, reply: UnmaskReply) -> None:
        """Take the shares and seeds of a survivor.

        Raises
        ------
        SumError
            Wrong sizes, or a seed other than the one committed to.
        """
        party = f"partition {partition}"
        if partition not in self.survivors or partition in self._answered:
            raise SumError(
                "it was not asked to unmask, or has answered before",
                party=party,
                code="FK-SUM-NOT-ASKED",
            )
        gone, living = self.dead, self._living(partition)
        dead = [j for j in self.cohort.neighbours[partition] if j in gone]
        shares, seeds = cut(reply.shares, SHARE_BYTES), cut(reply.seeds, KEY_BYTES)
        sizes = (len(living) + 1) * SHARE_BYTES, len(dead) * KEY_BYTES
        if (len(reply.shares), len(reply.seeds)) != sizes:
            raise SumError(
                "its shares and seeds have the wrong size", party=party, code="FK-MESSAGE-SHAPE"
            )
        for j, seed in zip(dead, seeds, strict=True):
            if commitment(self.label, seed) != self.enclosed.commitment(partition, j):
                raise SumError(
                    "a seed differs from the one it committed to", party=party, code="FK-SUM-SEED"
                )
        point = self.cohort.point(partition)
        for owner, share in zip((partition, *living), shares, strict=True):
            self._shares.setdefault(owner, {})[point] = share
        for j, seed in zip(dead, seeds, strict=True):
            self._seeds[partition, j] = seed
        self._answered.add(partition)

    # -- third exchange, when survivors fell silent

    @property
    def silent(self) -> tuple[int, ...]:
        """Survivors that have not answered."""
        return tuple(p for p in self.survivors if p not in self._answered)

    @property
    def complete(self) -> bool:
        """Whether all that the total needs has been revealed."""
        if not self.order.self_masks:
            return bool(self.survivors)
        t = self.cohort.share_threshold
        enough = all(len(self._shares.get(p, {})) >= t for p in self.survivors)
        return bool(self.survivors) and enough and not self._missing_pairs()

    def recover_requests(self) -> dict[int, Recover]:
        """Return the requests to survivors that have answered and can help.

        A party that shared no backups of its own does not help either.
        """
        backed = {p for p in self.survivors if self.enclosed.has_backups(p)}
        missing = [(i, j) for i, j in self._missing_pairs() if i in backed] if backed else []
        out = {}
        for partition in sorted(backed & self._answered) if missing else ():
            point = self.cohort.point(partition)
            wanted = {i for i, j in missing if point not in self._pair_shares.get((i, j), {})}
            sources = [j for j in self.cohort.neighbours[partition] if j in wanted]
            if sources:
                out[partition] = Recover(
                    **self._place,
                    alive=self.cohort.pack(self.survivors),
                    silent=self.cohort.pack(sources),
                    backups=self.enclosed.backed_up(sources, partition),
                )
        return out

    def recover(self, partition: int, request: Recover, reply: RecoverReply) -> None:
        """Take the shares of pair seeds that a survivor was asked for.

        Raises
        ------
        SumError
            Wrong size.
        """
        silent, dead = self.cohort.unpack(request.silent), self.dead
        pairs = [
            (i, j)
            for i in self.cohort.neighbours[partition]
            if i in silent
            for j in self.cohort.neighbours[i]
            if j in dead
        ]
        if len(reply.shares) != len(pairs) * SHARE_BYTES:
            raise SumError(
                "its shares have the wrong size",
                party=f"partition {partition}",
                code="FK-MESSAGE-SHAPE",
            )
        point = self.cohort.point(partition)
        for pair, share in zip(pairs, cut(reply.shares, SHARE_BYTES), strict=True):
            self._pair_shares.setdefault(pair, {})[point] = share

    # -- the end

    def open(self) -> None:
        """Remove all masks but a receiver's pad.

        Raises
        ------
        SumError
            Shares are missing or forged beyond repair, or the total is not one of vectors within
            their bound. Nothing is released.
        """
        if self._closed:
            raise SumError(f"{self.order.name} is closed", code="FK-SUM-CLOSED")
        if self._finished:
            return
        if not self.complete:
            raise SumError(
                f"{len(self.silent)} of {len(self.survivors)} survivors of {self.order.name} fell "
                "silent before it could be unmasked",
                remedy="repeat it with new values when more parties answer",
                code="FK-SUM-SILENT",
            )
        streams: list[Stream] = []
        if self.order.self_masks:
            for party in self.survivors:
                committed = self.enclosed.commitment(party)
                streams.append((self._open(self._shares[party], committed, party), True))
            for alive, dead in self._pairs():
                seed = self._seeds.get((alive, dead))
                if seed is None:
                    committed = self.enclosed.commitment(alive, dead)
                    seed = self._open(self._pair_shares[alive, dead], committed, alive)
                streams.append((seed, alive < dead))
        add_streams(self._vector, streams, cipher=self.cipher)
        self._finished = True
        if self.order.receiver < 0:
            self._total = self.encoding.decode(self._vector, len(self.cohort.members))
            try:
                self.encoding.check_total(self._total, len(self.survivors), name=self.order.name)
            except SumError:
                self.close()
                raise

    def total(self) -> np.ndarray:
        """Return the decoded sum over the survivors, shape (length,).

        Raises
        ------
        SumError
            It cannot be opened, or belongs to a receiver.
        """
        if self.order.receiver >= 0:
            raise SumError(
                f"{self.order.name} belongs to partition {self.order.receiver}",
                code="FK-SUM-RECEIVER",
            )
        self.open()
        return self._total

    def delivery(self) -> Delivery:
        """Return what the receiver gets: the sum under its own pad."""
        self.open()
        return Delivery(**self._place, padded=chunks(self._vector))

    def close(self) -> None:
        """Drop everything."""
        self._closed = True
        self.enclosed.close()
        self._shares.clear()
        self._seeds.clear()
        self._pair_shares.clear()
        self._vector, self._total = self._vector[:0], self._total[:0]

    # -- pieces

    def _pairs(self) -> Iterator[Pair]:
        """Yield the pairs of a survivor and a dead neighbour: their masks do not cancel."""
        dead = self.dead
        for alive in self.survivors:
            yield from ((alive, j) for j in self.cohort.neighbours[alive] if j in dead)

    def _missing_pairs(self) -> list[Pair]:
        t = self.cohort.share_threshold
        return [
            pair
            for pair in self._pairs()
            if pair not in self._seeds and len(self._pair_shares.get(pair, {})) < t
        ]

    def _open(self, shares: dict[int, bytes], committed: bytes, owner: int) -> bytes:
        try:
            seed, forged = open_seed(shares, self.cohort.share_threshold, self.label, committed)
        except SumError as error:
            raise SumError(error.problem, party=f"partition {owner}", code=error.code) from None
        if forged is not None:
            forger = self.cohort.members[forged - 1]
            if forger not in self.forgers:
                self.forgers.append(forger)
        return seed
