"""Compute one sum at the server, from its order to its total."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..errors import SumError
from ..wire.sums import (
    Ballot,
    Delivery,
    Order,
    Recover,
    RecoverReply,
    Unmask,
    UnmaskReply,
    Upload,
    Vote,
)
from . import crypto
from .crypto import COMMITMENT_BYTES, KEY_BYTES, SHARE_BYTES, commitment, cut, open_seed, sum_label
from .encoding import Encoding, Stream, add_streams, chunks
from .identity import SIGNATURE_BYTES
from .membership import Cohort, votes_needed
from .party import order_terms

# -- what comes with the uploads of a sum: sealed shares and backups, and digests of seeds

_SPOOL = 16 << 20  # bytes of sealed backups in memory, more go to a temporary file


class _Enclosed(NamedTuple):
    shares: list[bytes]
    commitments: list[bytes]
    backups: int  # where they begin in the spool, -1 if there are none


class Enclosures:
    """What came with the uploads of a sum: sealed shares, digests and backups.

    ``of`` maps a party to these. With self masks (``double``) a digest of the self seed comes
    first.
    """

    def __init__(self, cohort: Cohort, *, double: bool) -> None:
        self.cohort, self.double = cohort, double
        self.of: dict[int, _Enclosed] = {}
        self.spool = tempfile.SpooledTemporaryFile(max_size=_SPOOL)  # noqa: SIM115

    def fit(self, upload: Upload, *, backups: bool) -> bool:
        """Return whether an upload has the right sizes; a party may omit backups."""
        degree, double = self.cohort.degree, int(self.double)
        return (
            len(upload.shares) == double * degree * crypto.SEALED_SHARE
            and len(upload.backups) in (0, backups * self.cohort.backup_bytes)
            and len(upload.commitments) == (double + degree) * COMMITMENT_BYTES
        )

    def at_odds(self, partition: int, commitments: bytes) -> list[int]:
        """Return the neighbours that sent another digest of the pair's seed than a newcomer."""
        own = cut(commitments, COMMITMENT_BYTES)[int(self.double) :]
        pairs = zip(self.cohort.neighbours[partition], own, strict=True)
        return [j for j, one in pairs if j in self.of and one != self.commitment(j, partition)]

    def add(self, partition: int, upload: Upload) -> None:
        place = self.spool.seek(0, 2) if upload.backups else -1
        self.spool.write(upload.backups)
        shares = cut(upload.shares, crypto.SEALED_SHARE)
        self.of[partition] = _Enclosed(shares, cut(upload.commitments, COMMITMENT_BYTES), place)

    def share(self, source: int, destination: int) -> bytes:
        return self.of[source].shares[self._place(source, destination)]

    def commitment(self, owner: int, other: int | None = None) -> bytes:
        place = 0 if other is None else self.double + self._place(owner, other)
        return self.of[owner].commitments[place]

    def backed_up(self, sources: Sequence[int], destination: int) -> bytes:
        out = b""
        for source in sources:
            size = len(self.cohort.neighbours[source]) * SHARE_BYTES + crypto.TAG_BYTES
            self.spool.seek(self.of[source].backups + self._place(source, destination) * size)
            out += self.spool.read(size)
        return out

    def close(self) -> None:
        self.spool.close()
        self.of.clear()

    def _place(self, owner: int, other: int) -> int:
        return self.cohort.neighbours[owner].index(other)


# -- the server's side of one sum: adds what arrives, declares who is in it, removes the masks

Pair = tuple[int, int]
Reply = Upload | Vote | UnmaskReply | RecoverReply


class RunningSum:
    """Compute a sum, from its order to its total.

    Memory: one vector of the sum (two once it is open), and 65 bytes per party and neighbour.
    Backups beyond 16 MiB go to a temporary file.

    Attributes
    ----------
    survivors : tuple of int
        Parties whose vectors are in, once final; empty before.
    repeated : bool
        Whether parties were requested to send again.
    suspects, forgers : list of int
        Parties with masks that do not fit those of most others, and with forged shares.
    voting : bool
        Whether all parties have pinned identities, and so vote for the survivors.
    """

    def __init__(
        self, order: Order, cohort: Cohort, session: str, cipher: str, voting: bool = False
    ) -> None:
        self.order, self.cohort, self.cipher, self.voting = order, cohort, cipher, voting
        self.encoding = Encoding.of(order)
        self.label = sum_label(session, order.cohort, order.index, order_terms(order))
        self._vector = np.zeros(order.length, self.encoding.dtype)
        self.backups = order.self_masks and cohort.backs_up(self._vector.nbytes)
        self.enclosed = Enclosures(cohort, double=order.self_masks)
        self.survivors: tuple[int, ...] = ()
        self.suspects: list[int] = []
        self.forgers: list[int] = []
        self.repeated = self._finished = self._closed = False
        self._place = {"cohort": order.cohort, "index": order.index}
        self._total: np.ndarray = np.zeros(0)  # decoded, once the sum is open
        self._votes: dict[int, bytes] = {}
        self._conflicts: Counter[int] = Counter()  # pairs that committed to different seeds
        self._answered: set[int] = set()
        self._shares: dict[int, dict[int, bytes]] = {}  # survivor -> point -> share
        self._seeds: dict[Pair, bytes] = {}  # (survivor, dead) -> seed
        self._pair_shares: dict[Pair, dict[int, bytes]] = {}

    def take(self, partition: int, reply: Reply, asked: Recover | None) -> None:
        """Read a section of a party's reply."""
        if isinstance(reply, Upload):
            self.add(partition, reply)
        elif isinstance(reply, Vote):
            self.vote(partition, reply)
        elif isinstance(reply, UnmaskReply):
            self.reveal(partition, reply)
        elif asked is not None:
            self.recover(partition, asked, reply)

    @property
    def uploaded(self) -> tuple[int, ...]:
        return tuple(sorted(self.enclosed.of))

    # -- first exchange

    def add(self, partition: int, upload: Upload) -> None:
        """Add a masked vector.

        Raises
        ------
        SumError
            The party is not in the cohort, its vector is late or a second one, or sizes are wrong.
            The sum is unchanged.
        """
        party, again = f"partition {partition}", partition in self.enclosed.of
        if again and self.repeated:
            return
        stranger, length = partition not in self.cohort.members, self.order.length
        wrong = any(part.dtype != self.encoding.dtype for part in upload.masked)
        short = sum(part.size for part in upload.masked) != length
        unfit, size = not self.enclosed.fit(upload, backups=self.backups), "FK-MESSAGE-SHAPE"
        for refused, problem, code in (
            (stranger, "it is not in the cohort of the sum", "FK-SUM-STRANGER"),
            (again, "a second vector for the same sum", "FK-SUM-NOT-ASKED"),
            (self.survivors, "its vector came after the survivors were declared", "FK-SUM-LATE"),
            (wrong, "its masked vector has the wrong dtype", size),
            (short, f"its masked vector has not {length} numbers", size),
            (unfit, "its sealed shares have the wrong size", size),
        ):
            if refused:
                raise SumError(problem, party=party, code=code)
        at_odds = self.enclosed.at_odds(partition, upload.commitments)
        if 2 * len(at_odds) > self.cohort.degree + 1:  # with most of all, so it is the odd one
            raise SumError(
                f"its masks do not fit those of {len(at_odds)} others",
                party=party,
                code="FK-SUM-MASKS",
            )
        for other in at_odds:  # nobody can say yet which of the two is wrong
            self._conflicts.update((partition, other))
        start = 0
        for part in upload.masked:
            target = self._vector[start : start + part.size]
            np.add(target, part, out=target)
            start += part.size
        self.enclosed.add(partition, upload)

    # -- second exchange

    def check_survivors(self, min_cohort: int) -> None:
        """Refuse to declare the survivors if the sum could not be opened or would reveal one.

        Raises
        ------
        SumError
            There are too few survivors; the receiver or (without self masks) any party is missing;
            or two parties masked with different seeds. Nothing is released.
        """
        alive, members, name = self.uploaded, self.cohort.members, self.order.name
        if self._conflicts:
            most = max(self._conflicts.values())
            self.suspects = sorted(p for p, count in self._conflicts.items() if count == most)
            raise SumError(
                f"its masks in {name} do not fit those of {most} other"
                f"{'s' if most > 1 else ', or those do not fit its'}",
                party=f"partition {self.suspects[0]}",
                code="FK-SUM-MASKS",
            )
        least = max(self.cohort.threshold, min_cohort)
        if len(alive) < least:
            raise SumError(
                f"{len(alive)} of {len(members)} parties contributed to {name}, "
                f"at least {least} must",
                code="FK-SUM-FEW",
            )
        if not self.order.self_masks and len(alive) < len(members):
            raise SumError(
                f"{len(members) - len(alive)} parties are missing in {name}, which has no self "
                "masks",
                code="FK-SUM-WHOLE",
            )
        survivors = set(alive)
        if self.order.self_masks and any(
            len(survivors.intersection(self.cohort.holders(p))) < self.cohort.share_threshold
            for p in alive
        ):
            raise SumError(
                f"too many neighbours of a party in {name} are missing to open it",
                code="FK-SUM-FEW",
            )
        if self.order.receiver >= 0 and self.order.receiver not in alive:
            raise SumError(
                f"partition {self.order.receiver}, which receives {name}, is missing",
                code="FK-SUM-RECEIVER-GONE",
            )
        if self.order.receiver >= 0 and len(alive) == 2 < len(members):
            raise SumError(
                f"partition {self.order.receiver} would learn the values of the only other "
                f"survivor of {name}",
                code="FK-SUM-SINGLE",
            )

    @property
    def dead(self) -> frozenset[int]:
        return frozenset(self.cohort.members).difference(self.survivors)

    @property
    def votes_missing(self) -> int:
        """Number of further votes that the survivors require before they answer."""
        if not self.voting or not self.order.self_masks:
            return 0
        return max(0, votes_needed(self.cohort, len(self.survivors)) - len(self._votes))

    def ballot(self) -> Ballot:
        return Ballot(**self._place, alive=self.cohort.pack(self.survivors))

    def vote(self, partition: int, vote: Vote) -> None:
        """Store a vote; only parties that have pinned its sender can verify it."""
        party = f"partition {partition}"
        if partition not in self.survivors or not self.voting:
            raise SumError("it was not asked to vote", party=party, code="FK-SUM-NOT-ASKED")
        if len(vote.signature) != SIGNATURE_BYTES:
            raise SumError("its vote has the wrong size", party=party, code="FK-MESSAGE-SHAPE")
        self._votes[partition] = vote.signature

    def unmask_request(self, partition: int) -> Unmask:
        """Return the request to a survivor; SumError if votes are missing."""
        if self.votes_missing:
            raise SumError(
                f"{len(self._votes)} of {len(self.survivors)} survivors of {self.order.name} "
                f"voted, {len(self._votes) + self.votes_missing} must",
                code="FK-SUM-SILENT",
            )
        voters = sorted(self._votes)
        living = self._living(partition)
        return Unmask(
            **self._place,
            alive=self.cohort.pack(self.survivors),
            dead=self.cohort.pack(self.dead),
            shares=b"".join(self.enclosed.share(source, partition) for source in living),
            voters=self.cohort.pack(voters) if voters else b"",
            votes=b"".join(self._votes[p] for p in voters),
        )

    def reveal(self, partition: int, reply: UnmaskReply) -> None:
        """Store the shares and seeds of a survivor, checked against their digests."""
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

    # -- third exchange, if survivors dropped out

    @property
    def silent(self) -> tuple[int, ...]:
        return tuple(p for p in self.survivors if p not in self._answered)

    @property
    def complete(self) -> bool:
        if not self.order.self_masks:
            return bool(self.survivors)
        t = self.cohort.share_threshold
        enough = all(len(self._shares.get(p, {})) >= t for p in self.survivors)
        return bool(self.survivors) and enough and not self._missing_pairs()

    def recover_requests(self) -> dict[int, Recover]:
        """Return the requests to survivors that have answered and can help.

        A party that shared no backups does not help others.
        """
        backed = {p for p in self.survivors if self.enclosed.of[p].backups >= 0}
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
        """Store the shares of pair seeds that a survivor was requested to send."""
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
        """Remove all masks except a receiver's pad.

        Raises
        ------
        SumError
            Shares are missing or forged, or the total exceeds the bound. Nothing is released.
        """
        if self._closed:
            raise SumError(f"{self.order.name} is closed", code="FK-SUM-CLOSED")
        if self._finished:
            return
        if not self.complete:
            raise SumError(
                f"{len(self.silent)} of {len(self.survivors)} survivors of {self.order.name} fell "
                "silent before it could be unmasked",
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
        """Return the decoded sum over the survivors, shape (length,)."""
        if self.order.receiver >= 0:
            raise SumError(
                f"{self.order.name} belongs to partition {self.order.receiver}",
                code="FK-SUM-RECEIVER",
            )
        self.open()
        return self._total

    def delivery(self) -> Delivery:
        self.open()
        return Delivery(**self._place, padded=chunks(self._vector))

    def close(self) -> None:
        self._closed = True
        self.enclosed.close()
        self._shares.clear()
        self._seeds.clear()
        self._pair_shares.clear()
        self._vector, self._total = self._vector[:0], self._total[:0]

    # -- pieces

    def _living(self, partition: int) -> list[int]:
        dead = self.dead
        return [j for j in self.cohort.neighbours[partition] if j not in dead]

    def _pairs(self) -> Iterator[Pair]:
        """Yield pairs of a survivor and a dropped neighbour: their masks do not cancel."""
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
