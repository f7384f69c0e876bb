"""The client's side of secure sums: masks its vectors, keeps shares, refuses what would leak."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from ..errors import SumError
from ..privacy.noise import skellam
from ..wire import sums as wire
from . import relay
from .encoding import Encoding, chunks
from .identity import Counts, check_key, sign_key
from .keys import (
    KEY_BYTES,
    common_key,
    generate_key,
    next_root,
    pair_label,
    pair_root,
    pair_secret,
    read_key,
    sum_keys,
    sum_label,
)
from .masks import Stream, add_streams
from .membership import Cohort, Membership
from .noise_keys import digest_of, noise_key, value_mark
from .party_rules import Accepted, PartyRules
from .party_state import OpenSum, order_terms
from .seeds import commitment
from .shamir import SHARE_BYTES, cut, share_seeds
from .votes import sign_vote


class Party(PartyRules):
    """One party in all sums of a run.

    Parameters
    ----------
    partition : int
    state : PartyState
        What it remembers between messages; changed in place.
    identity : Ed25519PrivateKey, optional
        Signs the party's key of the run.
    trusted : dict, optional
        Partition -> pinned identity key. With it, every other party must have signed its key and,
        where it matters, voted for the survivors (:mod:`.votes`); needs ``identity``.
    allow_single : bool (default: False)
        Whether to contribute to a sum that another client opens and that has no third party: the
        receiver then learns this party's values.
    pair_secrets : bool (default: False)
        Whether to derive a secret with every neighbour for the method's own use.
    partners : collection of int (default: ())
        Parties with whom to derive such a secret though they are no neighbours.
    whole_cohorts : bool (default: False)
        Whether to take part in sums without self masks only: a method that repeats the same values
        must not have them opened over different survivors.
    allow_recovery : bool (default: True)
        Whether this party's seeds of pairs are shared where backups are on, and whether it helps to
        recover those of others. Without it a sum is aborted where that would be needed.
    same_parties : bool (default: False)
        Whether the same values, under one name, are opened over the same survivors only. The same
        noise always is.
    """

    # -- set-up

    def announce(self, counts: Counts | None = None) -> tuple[bytes, bytes]:
        """Make a key for the run; return (public key, signature or nothing).

        ``counts`` is what it declares of its table.
        """
        counts = Counts(*counts or ())
        self.state.counts = {self.partition: counts}
        if self.state.private:
            public = read_key(self.state.private)[1]
        else:
            self.state.private, public = generate_key()
        if self.identity is None:
            return public, b""
        signature = sign_key(self.identity, self.state.session, self.partition, public, counts)
        return public, signature

    def join(self, roster: wire.Roster) -> None:
        """Derive the roots of all pairs from the roster, then erase the private key.

        Raises
        ------
        SumError
            Another roster was accepted before, a key is not the pinned one, this party's own key
            was replaced, or it pins others without an identity of its own.
        """
        members = Membership.read(roster, self.state.session)
        if self.state.digest:
            if self.state.digest != members.digest:
                raise self.refuse(
                    "the roster of the run has changed",
                    "start the run again",
                    code="FK-SUM-ROSTER-OTHER",
                )
            return
        if self.trusted is not None:
            for other in sorted(members.keys.keys() - {self.partition}):
                signature = members.signatures[other]
                signed = members.keys[other], signature if any(signature) else b""
                check_key(self.trusted, self.state.session, other, *signed, members.counts[other])
            if self.identity is None:
                raise self.refuse(
                    "it pins the identities of others and has none, so it cannot vote",
                    "give it its identity key",
                    code="FK-IDENTITY-NONE",
                )
        if not self.state.private:
            raise self.refuse(
                "this party has announced no key", "start the run again", code="FK-SUM-KEY-NONE"
            )
        private, public = read_key(self.state.private)
        if members.keys.get(self.partition) != public:
            raise self.refuse(
                "the roster holds another key under the name of this party",
                "start the run again",
                code="FK-SUM-CHANGED",
            )
        if members.counts[self.partition] != self.state.counts.get(self.partition, Counts()):
            raise self.refuse(
                "the roster tells of another table of this party",
                "start the run again",
                code="FK-SUM-CHANGED",
            )
        self._derive_pairs(members, private)
        self.state.digest, self.state.cipher = members.digest, members.cipher
        self.state.private, self.state.counts = b"", dict(members.counts)

    # -- a sum

    def accept(self, order: wire.Order) -> None:
        """Take an order: its number is used up, whatever this party contributes.

        Orders of a cohort must be accepted in the order of their numbers. Nothing that leaves this
        party may be masked with keys of a number whose use it does not remember: what the state
        holds after this must be kept before a reply is sent.

        Raises
        ------
        SumError
            The order breaks a rule: a number used before, a receiver who would learn this party's
            values, a sum with and one without self masks of the same values.
        OptionError
            The ring has no room for the sum.
        """
        cohort, encoding = self.check_order(order)
        self.state.close(order.cohort, order.open_from)
        label = sum_label(self.state.session, cohort.number, order.index, order_terms(order))
        keys = self._advance(cohort, order.index, label)
        self.accepted[order.cohort, order.index] = Accepted(cohort, encoding, label, keys)

    def contribute(
        self,
        order: wire.Order,
        values: NDArray[Any],
        *,
        overwrite: bool = False,
        release: str = "",
        told: bytes = b"",
        common: bytes = b"",
    ) -> wire.Upload:
        """Encode, mask and share; refuse before anything leaves this party.

        Parameters
        ----------
        order : Order
            What the server asked for; accepted here if it has not been.
        values : ndarray, shape (order.length,)
            This party's vector; ``np.broadcast_to(0.0, length)`` takes no time to encode.
        overwrite : bool (default: False)
            Whether the masked vector may take the place of the values.
        release : str
            Of sums with noise: the question, see :func:`.noise_keys.asked`.
        told : bytes
            The digest of the values, where the caller has it: :func:`.noise_keys.digest_of`.
        common : bytes
            Digest of what all parties of the sum must know alike and the server need not know, such
            as secret landmarks. Masks of parties with another one do not cancel.

        Raises
        ------
        SumError
            The values do not fit the order, or noise is ordered in a run that has declared none;
            see also :meth:`accept`.
        OptionError
            The ring has no room for the sum.
        """
        if np.shape(values) != (order.length,):
            raise self.refuse(
                f"{order.name} has shape {np.shape(values)} instead of ({order.length},)",
                code="FK-SUM-VALUES",
            )
        if (order.cohort, order.index) not in self.accepted:
            self.accept(order)
        cohort, encoding, label, keys = self.accepted[order.cohort, order.index]
        if common:
            keys = {j: (common_key(mask, common), seal) for j, (mask, seal) in keys.items()}
        marked = (self.same_parties or not order.self_masks) and not order.noise
        # with noise the mark is that of its key
        mark = value_mark(order, told or digest_of(values)) if marked else ""
        with self.named():
            masked = encoding.encode(
                np.asarray(values), len(cohort.members), name=order.name, overwrite=overwrite
            )
        if order.noise:
            if not self.state.noise_key:
                raise self.refuse(
                    "noise is ordered in a run that declared no budget of privacy",
                    code="FK-ORDER-NOISE",
                )
            key = noise_key(self.state.noise_key, order, cohort, release, masked)
            masked += skellam(order.noise, order.length, key).astype(masked.dtype)
            self.drawn[order.name], mark = key, hashlib.sha256(key).hexdigest()[:16]
        if not order.self_masks:  # opens when all have contributed
            self.show(mark, cohort.members)
        del self.accepted[order.cohort, order.index]
        others = cohort.neighbours[self.partition]
        streams: list[Stream] = [(keys[j][0], j < self.partition) for j in others]
        opened = OpenSum(order, keys, mark=mark)
        if order.receiver == self.partition:
            opened.pad = secrets.token_bytes(KEY_BYTES)
            streams.append((opened.pad, False))
        shares: list[bytes] = []
        backups: list[bytes] = []
        pair_seeds = [keys[j][0] for j in others]
        committed = b"".join(commitment(label, s) for s in pair_seeds)
        if order.self_masks:
            seed = secrets.token_bytes(KEY_BYTES)
            streams.append((seed, False))
            committed = commitment(label, seed) + committed
            points = [cohort.point(h) for h in cohort.holders(self.partition)]
            opened.own_share, *shares = share_seeds([seed], points, cohort.share_threshold)
            if self.allow_recovery and cohort.backs_up(masked.nbytes):
                backups = share_seeds(pair_seeds, points[1:], cohort.share_threshold)
        add_streams(masked, streams, cipher=self.state.cipher)
        self.state.open[cohort.number, order.index] = opened
        return wire.Upload(
            cohort=cohort.number,
            index=order.index,
            shares=self._seal(relay.SHARE, label, shares, opened),
            backups=self._seal(relay.BACKUP, label, backups, opened),
            commitments=committed,
            masked=chunks(masked),
        )

    def vote(self, ballot: wire.Ballot) -> wire.Vote:
        """Sign the survivors of a sum; from now on this party answers for no others.

        Raises
        ------
        SumError
            It has no identity key; see also :meth:`unmask`.
        """
        opened, cohort = self.opened(ballot)
        self.check_survivors(opened, ballot.alive)
        if self.identity is None:
            raise self.refuse(
                "it has no identity key to vote with",
                "give it its identity key",
                code="FK-IDENTITY-NONE",
            )
        opened.alive = ballot.alive
        signature = sign_vote(self.identity, self.subject(cohort, ballot))
        return wire.Vote(cohort=ballot.cohort, index=ballot.index, signature=signature)

    def unmask(self, request: wire.Unmask) -> wire.UnmaskReply:
        """Reveal what opens the sum over the declared survivors, and nothing else.

        Raises
        ------
        SumError
            A party is both alive and dead, or neither; this party has voted or answered for another
            set; fewer survivors than the threshold; this party or the receiver is not among them;
            identities are pinned and too few have voted; a relayed share was changed.
        """
        opened, cohort = self.opened(request)
        living = self.check_survivors(opened, request.alive)
        alive, dead = cohort.unpack(request.alive), cohort.unpack(request.dead)
        if alive & dead or len(alive) + len(dead) != len(cohort.members):
            raise self.refuse(
                "survivors and dropped parties overlap or leave gaps", code="FK-SUM-SET"
            )
        self.check_votes(cohort, request)
        others = cohort.neighbours[self.partition]
        sealed = cut(request.shares, relay.SEALED_SHARE)
        if len(sealed) != len(living):
            raise self.refuse(
                f"{len(sealed)} relayed shares for {len(living)} neighbours",
                code="FK-MESSAGE-SHAPE",
            )
        label = opened.label(self.state.session)
        shares = [opened.own_share]
        for source, text in zip(living, sealed, strict=True):
            shares.append(self._unseal(relay.SHARE, label, source, text, opened))
        self.check_shown(opened.mark, alive)
        opened.alive, opened.answered = request.alive, True
        return wire.UnmaskReply(
            cohort=cohort.number,
            index=request.index,
            shares=b"".join(shares),
            seeds=b"".join(opened.keys[j][0] for j in others if j in dead),
        )

    def recover(self, request: wire.Recover) -> wire.RecoverReply:
        """Reveal shares of seeds of silent survivors' pairs with the dead.

        Raises
        ------
        SumError
            The survivors are not those that this party has answered for, a pair of two survivors
            is asked for, or this party allows no recovery.
        """
        opened, cohort = self.opened(request)
        if not self.allow_recovery:
            raise self.refuse(
                "it does not help to recover seeds of others",
                "allow recovery",
                code="FK-SUM-RECOVERY",
            )
        if not opened.answered or opened.alive != request.alive:
            raise self.refuse(
                "a second set of survivors for the same sum", code="FK-SUM-CONTRADICTED"
            )
        alive, silent = cohort.unpack(request.alive), cohort.unpack(request.silent)
        others = cohort.neighbours[self.partition]
        if not silent or not silent <= alive or not silent <= set(others):
            raise self.refuse(
                "seeds are asked for that stay secret in this sum", code="FK-SUM-SECRET"
            )
        sources = [j for j in others if j in silent]
        label = opened.label(self.state.session)
        size, rest = divmod(len(request.backups), max(1, len(sources)))
        if rest or not size:
            raise self.refuse("relayed backups of the wrong size", code="FK-MESSAGE-SHAPE")
        out = []
        for source, text in zip(sources, cut(request.backups, size), strict=True):
            plain = self._unseal(relay.BACKUP, label, source, text, opened)
            shares = cut(plain, SHARE_BYTES)
            pairs = cohort.neighbours[source]
            if len(shares) != len(pairs):
                raise self.refuse(
                    f"what partition {source} sealed has the wrong size", code="FK-MESSAGE-SHAPE"
                )
            out += [s for j, s in zip(pairs, shares, strict=True) if j not in alive]
        return wire.RecoverReply(cohort=cohort.number, index=request.index, shares=b"".join(out))

    def receive(self, delivery: wire.Delivery) -> tuple[str, NDArray[Any]]:
        """Open a sum that belongs to this party.

        Its pad hides the total and does not bind it: one total is opened, and no other.

        Returns
        -------
        (str, ndarray)
            Name of the sum and its total; of angles the ring's own numbers, 2^bits to a turn.
        """
        opened, cohort = self.opened(delivery)
        order, parts, parties = opened.order, delivery.padded, len(cohort.members)
        if order.receiver != self.partition:
            raise self.refuse(
                "a sum was delivered that belongs to somebody else", code="FK-SUM-RECEIVER"
            )
        encoding = Encoding.of(order)
        total = np.concatenate(parts) if parts else np.zeros(0, encoding.dtype)
        if any(part.dtype != encoding.dtype for part in parts) or total.size != order.length:
            raise self.refuse(
                f"the total of {order.name} has the wrong size or dtype", code="FK-MESSAGE-SHAPE"
            )
        digest = hashlib.sha256(total.data).digest()
        if (opened.delivered or digest) != digest:
            raise self.refuse(
                f"another total of {order.name} than before", code="FK-SUM-CONTRADICTED"
            )
        opened.delivered = digest
        add_streams(total, [(opened.pad, True)], cipher=self.state.cipher)
        if encoding.kind == "circle":  # as compact as they travelled
            return order.name, total
        values = encoding.decode(total, parties, overwrite=True)
        encoding.check_total(values, parties, name=order.name)
        return order.name, values

    def pad(self, order: wire.Order, length: int) -> NDArray[Any]:
        """Return the beginning of the pad that this party has put on a sum of its own."""
        words = np.zeros(length, Encoding.of(order).dtype)
        opened, _ = self.opened(order)
        add_streams(words, [(opened.pad, False)], cipher=self.state.cipher)
        return words

    # -- pieces

    def _derive_pairs(self, members: Membership, private: X25519PrivateKey) -> None:
        """Agree on roots, and on secrets for the method, with all neighbours; or with none.

        Raises
        ------
        SumError
            A public key is not valid.
        """
        derived: list[tuple[Cohort, dict[int, bytes]]] = []
        common: dict[int, bytes] = {}
        for cohort in members.cohorts:
            if self.partition not in cohort.members:
                continue
            neighbours = cohort.neighbours[self.partition]
            further = set(self.partners) & set(cohort.members) - {self.partition, *neighbours}
            roots = {}
            for other in [*neighbours, *sorted(further)]:
                pair = {"digest": members.digest, "pair": pair_label(self.partition, other)}
                public = members.keys[other]
                try:
                    if other not in further:
                        roots[other] = pair_root(private, public, cohort=cohort.number, **pair)
                    if self.pair_secrets and other not in common:
                        common[other] = pair_secret(private, public, **pair)
                except ValueError:
                    party = f"partition {other}"
                    raise SumError(
                        "its public key is not valid", party=party, code="FK-SUM-KEY"
                    ) from None
            derived.append((cohort, roots))
        for cohort, roots in derived:
            self.state.enter(cohort, roots)
        self.state.secrets = common

    def _advance(self, cohort: Cohort, index: int, label: bytes) -> dict[int, tuple[bytes, bytes]]:
        """Turn the ratchet to this sum; return neighbour -> (mask key, relay key)."""
        roots = self.state.roots[cohort.number]
        missed = index - self.state.last[cohort.number] - 1
        keys = {}
        for other, root in roots.items():
            for _ in range(missed):
                root = next_root(root)
            keys[other] = sum_keys(root, label, pair_label(self.partition, other))
            roots[other] = next_root(root)
        self.state.last[cohort.number] = index
        return keys

    def _seal(self, kind: int, label: bytes, plain: Sequence[bytes], opened: OpenSum) -> bytes:
        """Seal a piece for each neighbour; nothing if there are none to seal."""
        sealed = [
            relay.seal(seal, text, relay.Route(label, kind, self.partition, other))
            for (other, (_, seal)), text in zip(opened.keys.items(), plain, strict=bool(plain))
        ]
        return b"".join(sealed)

    def _unseal(self, kind: int, label: bytes, source: int, text: bytes, opened: OpenSum) -> bytes:
        with self.named():
            route = relay.Route(label, kind, source, self.partition)
            return relay.unseal(opened.keys[source][1], text, route)
