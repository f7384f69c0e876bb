"""A server and colluding clients: every seed of a sum that they can compute together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fedkern_flwr.secure_sum import add_streams, relay
from fedkern_flwr.secure_sum.seeds import commitment
from fedkern_flwr.secure_sum.shamir import SHARE_BYTES, cut, reconstruct_seed


def whole(upload: Any) -> np.ndarray:
    return np.concatenate(upload.masked)


class Coalition:
    """The server, with all that it has seen of a sum, and clients with their whole states.

    It computes every seed that it can: those of its members, those that were revealed, those that
    it can open from shares, be they revealed or sealed for a member.
    """

    def __init__(self, run: Any, running: Any, members: Iterable[int]) -> None:
        self.running, self.cohort, self.label = running, running.cohort, running.label
        self.members = set(members)
        key = running.order.cohort, running.order.index
        self.open = {p: run.party(p).state.open.get(key) for p in self.members}
        self.seen = run.transcript(running)

    def unseal(self, kind: int, text: bytes, source: int, holder: int) -> bytes:
        key = self.open[holder].keys[source][1]
        return relay.unseal(key, text, relay.Route(self.label, kind, source, holder))

    def shares_of_self_seed(self, owner: int) -> dict[int, bytes]:
        """Point -> share."""
        found: dict[int, bytes] = {}
        alive = set(self.running.survivors)
        for p, reply in self.seen.unmasked.items():
            owners = [p, *(j for j in self.cohort.neighbours[p] if j in alive)]
            for who, share in zip(owners, cut(reply.shares, SHARE_BYTES), strict=True):
                if who == owner:
                    found[self.cohort.point(p)] = share
        if owner in self.members and self.open[owner] is not None:
            found[self.cohort.point(owner)] = self.open[owner].own_share
        upload = self.seen.uploads.get(owner)
        if upload is not None and upload.shares:
            sealed = cut(upload.shares, SHARE_BYTES + relay.TAG_BYTES)
            for holder, text in zip(self.cohort.neighbours[owner], sealed, strict=True):
                if holder in self.members and self.open[holder] is not None:
                    share = self.unseal(relay.SHARE, text, owner, holder)
                    found[self.cohort.point(holder)] = share
        return found

    def self_seed(self, owner: int) -> bytes | None:
        shares = self.shares_of_self_seed(owner)
        committed = self.seen.uploads[owner].commitments[:16]
        return self.reconstruct(shares, committed)

    def reconstruct(self, shares: dict[int, bytes], committed: bytes) -> bytes | None:
        points = sorted(shares)[: self.cohort.share_threshold]
        seed = reconstruct_seed({x: shares[x] for x in points}) if points else None
        return seed if seed is not None and commitment(self.label, seed) == committed else None

    def pair_seed(self, one: int, other: int) -> bytes | None:
        for p, q in ((one, other), (other, one)):
            if p in self.members and self.open[p] is not None:
                return self.open[p].keys[q][0]
            reply = self.seen.unmasked.get(p)
            if reply is not None:
                dead = [j for j in self.cohort.neighbours[p] if j in self.running.dead]
                if q in dead:
                    return reply.seeds[32 * dead.index(q) :][:32]
            seed = self.backed_up(p, q)
            if seed is not None:
                return seed
        return None

    def backed_up(self, owner: int, other: int) -> bytes | None:
        """The seed of a pair from the shares that one of them made."""
        upload = self.seen.uploads.get(owner)
        if upload is None or not upload.backups:
            return None
        place = self.cohort.neighbours[owner].index(other)
        return self.reconstruct(
            self.backup_shares(owner, other), upload.commitments[16 * (1 + place) :][:16]
        )

    def backup_shares(self, owner: int, other: int) -> dict[int, bytes]:
        """Point -> share of the seed of a pair that one of them made."""
        shares: dict[int, bytes] = {}
        others = self.cohort.neighbours[owner]
        size = len(others) * SHARE_BYTES + relay.TAG_BYTES
        sealed = cut(self.seen.uploads[owner].backups, size)
        for holder, text in zip(others, sealed, strict=bool(sealed)):
            if holder in self.members and self.open[holder] is not None:
                plain = self.unseal(relay.BACKUP, text, owner, holder)
                shares[self.cohort.point(holder)] = cut(plain, SHARE_BYTES)[others.index(other)]
        for holder, (request, reply) in self.seen.recovered.items():
            silent = self.cohort.unpack(request.silent)
            pairs = [
                (i, j)
                for i in self.cohort.neighbours[holder]
                if i in silent
                for j in self.cohort.neighbours[i]
                if j in self.running.dead
            ]
            for pair, share in zip(pairs, cut(reply.shares, SHARE_BYTES), strict=True):
                if pair == (owner, other):
                    shares[self.cohort.point(holder)] = share
        return shares

    def remainder(self, victim: int) -> np.ndarray:
        """The victim's upload without all masks that the coalition can compute."""
        left = whole(self.seen.uploads[victim])
        streams = []
        for other in self.cohort.neighbours[victim]:
            seed = self.pair_seed(victim, other)
            if seed is not None:
                streams.append((seed, victim < other))
        if self.running.order.self_masks:
            seed = self.self_seed(victim)
            if seed is not None:
                streams.append((seed, True))
        add_streams(left, streams, cipher=self.running.cipher)
        return left
