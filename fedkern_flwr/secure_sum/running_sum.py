"""The server's side of one sum: adds what arrives, declares the survivors, removes the masks."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

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
from . import relay
from .encoding import Encoding, chunks
from .identity import SIGNATURE_BYTES
from .keys import KEY_BYTES, sum_label
from .masks import Stream, add_streams
from .membership import Cohort
from .party_state import order_terms
from .seeds import COMMITMENT_BYTES, commitment, open_seed
from .shamir import SHARE_BYTES, cut
from .votes import votes_needed

_SPOOL = 16 << 20  # bytes of sealed backups in memory, more go to a temporary file

Pair = tuple[int, int]


@dataclass
class _Sealed:
    """What came with an upload: only its neighbours can read it."""

    shares: list[bytes]
    commitments: list[bytes]
    backups: slice  # in the spool


@dataclass
class RunningSum:
    """A sum from its order to its total.

    Memory: one vector of the sum (two once it is open), and per party and neighbour 65 bytes of
    sealed shares and digests (backups beyond 16 MiB go to a temporary file); an upload is added
    when it arrives and dropped.

    Attributes
    ----------
    order : Order
        As sent, but for the fields that differ by party.
    cohort : Cohort
    session : str
    cipher : str
    voting : bool
        Whether all parties have pinned identities, and so vote for the survivors.
    survivors : tuple of int
        Declared by :meth:`declare`, empty before.
    backups : bool
        Whether the seeds of pairs are shared too.
    forgers : list of int
        Parties whose shares were found to be forged and left out.
    suspects : list of int
        Parties whose masks do not fit those of most others, for which the sum was aborted.
    """

    order: Order
    cohort: Cohort
    session: str
    cipher: str
    voting: bool = False
    survivors: tuple[int, ...] = ()
    forgers: list[int] = field(default_factory=list)
    suspects: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        order = self.order
        self.encoding = Encoding(order.kind, order.bits, order.bound)  # type: ignore[arg-type]
        terms = order_terms(order)
        self.label = sum_label(self.session, self.cohort.number, order.index, terms)
        self._vector = np.zeros(order.length, self.encoding.dtype)
        self.backups = order.self_masks and self.cohort.backs_up(self._vector.nbytes)
        self._total: np.ndarray = np.zeros(0)  # decoded, once the sum is open
        self._uploads: dict[int, _Sealed] = {}
        self._votes: dict[int, bytes] = {}
        self._answered: set[int] = set()
        self._shares: dict[int, dict[int, bytes]] = {}  # survivor -> point -> share
        self._seeds: dict[Pair, bytes] = {}  # (survivor, dead) -> seed
        self._pair_shares: dict[Pair, dict[int, bytes]] = {}
        self._spool = tempfile.SpooledTemporaryFile(max_size=_SPOOL)  # noqa: SIM115
        self._conflicts: Counter[int] = Counter()  # pairs that committed to different seeds
        self._finished = self._closed = False

    @property
    def uploaded(self) -> tuple[int, ...]:
        """Parties whose vectors are in, ascending."""
        return tuple(sorted(self._uploads))

    # -- first exchange

    def add(self, partition: int, upload: Upload) -> None:
        """Add a masked vector.

        Raises
        ------
        SumError
            A stranger, a second or late vector, wrong sizes. The sum is as before.
        """
        order, party = self.order, f"partition {partition}"
        if partition not in self.cohort.members:
            raise SumError("it is not in the cohort of the sum", party=party)
        if partition in self._uploads:
            raise SumError("a second vector for the same sum", party=party)
        if self.survivors:
            raise SumError("its vector came after the survivors were declared", party=party)
        if any(part.dtype != self.encoding.dtype for part in upload.masked):
            raise SumError("its masked vector has the wrong dtype", party=party)
        if sum(part.size for part in upload.masked) != order.length:
            raise SumError(f"its masked vector has not {order.length} numbers", party=party)
        degree, double = self.cohort.degree, int(order.self_masks)
        sizes = (
            (upload.shares, {double * degree * relay.SEALED_SHARE}),
            (upload.backups, {0, self.backups * self.cohort.backup_bytes}),
            (upload.commitments, {(double + degree) * COMMITMENT_BYTES}),
        )
        if any(len(data) not in allowed for data, allowed in sizes):
            raise SumError("its sealed shares have the wrong size", party=party)
        commitments = cut(upload.commitments, COMMITMENT_BYTES)
        known = [j for j in self.cohort.neighbours[partition] if j in self._uploads]
        at_odds = [j for j in known if self._odd(partition, j, commitments)]
        if 2 * len(at_odds) > degree + 1:  # with most of all, so it is the odd one
            raise SumError(f"its masks do not fit those of {len(at_odds)} others", party=party)
        for other in at_odds:  # nobody can say yet which of the two is wrong
            self._conflicts.update((partition, other))
        start = 0
        for part in upload.masked:
            target = self._vector[start : start + part.size]
            np.add(target, part, out=target)
            start += part.size
        offset = self._spool.seek(0, 2)
        self._spool.write(upload.backups)
        self._uploads[partition] = _Sealed(
            cut(upload.shares, relay.SEALED_SHARE),
            commitments,
            slice(offset, offset + len(upload.backups)),
        )

    # -- second exchange

    def check_survivors(self, min_cohort: int) -> None:
        """Refuse to declare the survivors if the sum could not be opened or would reveal one.

        Raises
        ------
        SumError
            Too few, or the receiver or (without self masks) any other party is missing, or two
            parties masked with different seeds. Nothing is released.
        """
        alive, members, name = self.uploaded, self.cohort.members, self.order.name
        if self._conflicts:
            most = max(self._conflicts.values())
            self.suspects = sorted(p for p, count in self._conflicts.items() if count == most)
            raise SumError(
                f"its masks in {name} do not fit those of {most} other"
                f"{'s' if most > 1 else ', or those do not fit its'}",
                remedy="run the same release on all nodes; leave it out if it happens again",
                party=f"partition {self.suspects[0]}",
            )
        least = max(self.cohort.threshold, min_cohort)
        if len(alive) < least:
            raise SumError(
                f"{len(alive)} of {len(members)} parties contributed to {name}, "
                f"at least {least} must",
                remedy="bring the missing parties back, or lower the threshold",
            )
        if not self.order.self_masks and len(alive) < len(members):
            raise SumError(
                f"{len(members) - len(alive)} parties are missing in {name}, which has no self "
                "masks",
                remedy="repeat it with the same parties, or end the run",
            )
        survivors = set(alive)
        if self.order.self_masks and any(
            len(survivors.intersection(self.cohort.holders(p))) < self.cohort.share_threshold
            for p in alive
        ):
            raise SumError(
                f"too many neighbours of a party in {name} are missing to open it",
                remedy="bring the missing parties back",
            )
        if self.order.receiver >= 0 and self.order.receiver not in alive:
            raise SumError(f"partition {self.order.receiver}, which receives {name}, is missing")
        if self.order.receiver >= 0 and len(alive) == 2 < len(members):
            raise SumError(
                f"partition {self.order.receiver} would learn the values of the only other "
                f"survivor of {name}",
                remedy="bring the missing parties back",
            )

    def declare(self, min_cohort: int) -> tuple[int, ...]:
        """Fix the survivors: the parties whose vectors are in. Final.

        Raises
        ------
        SumError
            See :meth:`check_survivors`.
        """
        if not self.survivors:
            self.check_survivors(min_cohort)
            self.survivors = self.uploaded
        return self.survivors

    @property
    def dead(self) -> frozenset[int]:
        """Members that are not survivors."""
        return frozenset(self.cohort.members).difference(self.survivors)

    @property
    def votes_missing(self) -> int:
        """Number of votes for the survivors that must still come in before they answer."""
        if not self.voting or not self.order.self_masks:
            return 0
        return max(0, votes_needed(self.cohort, len(self.survivors)) - len(self._votes))

    def ballot(self) -> Ballot:
        """Return the request to survivors to vote."""
        return Ballot(
            cohort=self.cohort.number,
            index=self.order.index,
            alive=self.cohort.pack(self.survivors),
        )

    def vote(self, partition: int, vote: Vote) -> None:
        """Take a vote; whether it is valid only those can tell who have pinned its sender.

        Raises
        ------
        SumError
            It was not asked to vote, or the vote has the wrong size.
        """
        party = f"partition {partition}"
        if partition not in self.survivors or not self.voting:
            raise SumError("it was not asked to vote", party=party)
        if len(vote.signature) != SIGNATURE_BYTES:
            raise SumError("its vote has the wrong size", party=party)
        self._votes[partition] = vote.signature

    def unmask_request(self, partition: int) -> Unmask:
        """Return the request to a survivor.

        Raises
        ------
        SumError
            Too few have voted for the survivors.
        """
        if self.votes_missing:
            raise SumError(
                f"{len(self._votes)} of {len(self.survivors)} survivors of {self.order.name} "
                f"voted, {len(self._votes) + self.votes_missing} must",
                remedy="repeat it with new values when more parties answer",
            )
        voters = sorted(self._votes)
        shares = []
        for source in self._living(partition):
            position = self.cohort.neighbours[source].index(partition)
            shares.append(self._uploads[source].shares[position])
        return Unmask(
            cohort=self.cohort.number,
            index=self.order.index,
            alive=self.cohort.pack(self.survivors),
            dead=self.cohort.pack(self.dead),
            shares=b"".join(shares),
            voters=self.cohort.pack(voters) if voters else b"",
            votes=b"".join(self._votes[p] for p in voters),
        )

    def reveal(self, partition: int, reply: UnmaskReply) -> None:
        """Take the shares and seeds of a survivor.

        Raises
        ------
        SumError
            Wrong sizes, or a seed other than the one committed to.
        """
        party = f"partition {partition}"
        if partition not in self.survivors or partition in self._answered:
            raise SumError("it was not asked to unmask, or has answered before", party=party)
        gone, living = self.dead, self._living(partition)
        dead = [j for j in self.cohort.neighbours[partition] if j in gone]
        shares, seeds = cut(reply.shares, SHARE_BYTES), cut(reply.seeds, KEY_BYTES)
        sizes = (len(living) + 1) * SHARE_BYTES, len(dead) * KEY_BYTES
        if (len(reply.shares), len(reply.seeds)) != sizes:
            raise SumError("its shares and seeds have the wrong size", party=party)
        for j, seed in zip(dead, seeds, strict=True):
            if commitment(self.label, seed) != self._commitment(partition, j):
                raise SumError("a seed differs from the one it committed to", party=party)
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
        backed = {p for p in self.survivors if self._has_backups(p)}
        missing = [(i, j) for i, j in self._missing_pairs() if i in backed] if backed else []
        out = {}
        for partition in sorted(backed & self._answered) if missing else ():
            point = self.cohort.point(partition)
            wanted = {i for i, j in missing if point not in self._pair_shares.get((i, j), {})}
            sources = [j for j in self.cohort.neighbours[partition] if j in wanted]
            if sources:
                out[partition] = self._recover_request(partition, sources)
        return out

    def _recover_request(self, partition: int, sources: list[int]) -> Recover:
        return Recover(
            cohort=self.cohort.number,
            index=self.order.index,
            alive=self.cohort.pack(self.survivors),
            silent=self.cohort.pack(sources),
            backups=b"".join(self._backup(source, partition) for source in sources),
        )

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
            raise SumError("its shares have the wrong size", party=f"partition {partition}")
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
            raise SumError(f"{self.order.name} is closed")
        if self._finished:
            return
        if not self.complete:
            raise SumError(
                f"{len(self.silent)} of {len(self.survivors)} survivors of {self.order.name} fell "
                "silent before it could be unmasked",
                remedy="repeat it with new values when more parties answer",
            )
        streams: list[Stream] = []
        if self.order.self_masks:
            for party in self.survivors:
                committed = self._uploads[party].commitments[0]
                streams.append((self._open(self._shares[party], committed, party), True))
            for alive, dead in self._pairs():
                seed = self._seeds.get((alive, dead))
                if seed is None:
                    committed = self._commitment(alive, dead)
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
            raise SumError(f"{self.order.name} belongs to partition {self.order.receiver}")
        self.open()
        return self._total

    def delivery(self) -> Delivery:
        """Return what the receiver gets: the sum under its own pad."""
        self.open()
        return Delivery(
            cohort=self.cohort.number, index=self.order.index, padded=chunks(self._vector)
        )

    def close(self) -> None:
        """Drop everything."""
        self._closed = True
        self._spool.close()
        self._uploads.clear()
        self._shares.clear()
        self._seeds.clear()
        self._pair_shares.clear()
        self._vector, self._total = self._vector[:0], self._total[:0]

    # -- pieces

    def _living(self, partition: int) -> list[int]:
        dead = self.dead
        return [j for j in self.cohort.neighbours[partition] if j not in dead]

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

    def _commitment(self, owner: int, other: int) -> bytes:
        position = self.cohort.neighbours[owner].index(other)
        return self._uploads[owner].commitments[self.order.self_masks + position]

    def _odd(self, partition: int, other: int, commitments: list[bytes]) -> bool:
        """Tell whether a newcomer committed to another seed of a pair than its neighbour did."""
        position = self.cohort.neighbours[partition].index(other)
        return commitments[self.order.self_masks + position] != self._commitment(other, partition)

    def _has_backups(self, source: int) -> bool:
        where = self._uploads[source].backups
        return bool(where.stop > where.start)

    def _backup(self, source: int, destination: int) -> bytes:
        others = self.cohort.neighbours[source]
        size = len(others) * SHARE_BYTES + relay.TAG_BYTES
        where = self._uploads[source].backups
        self._spool.seek(where.start + others.index(destination) * size)
        return self._spool.read(size)

    def _open(self, shares: dict[int, bytes], committed: bytes, owner: int) -> bytes:
        try:
            seed, forged = open_seed(shares, self.cohort.share_threshold, self.label, committed)
        except SumError as error:
            raise SumError(error.problem, party=f"partition {owner}") from None
        if forged is not None:
            forger = self.cohort.members[forged - 1]
            if forger not in self.forgers:
                self.forgers.append(forger)
        return seed
