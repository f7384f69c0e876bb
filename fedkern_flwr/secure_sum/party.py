"""The client's side of secure sums: masks its vectors, keeps shares, refuses what would leak."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from ..errors import SumError
from ..wire.sums import (
    Ballot,
    Delivery,
    Order,
    Recover,
    RecoverReply,
    Roster,
    Unmask,
    UnmaskReply,
    Upload,
    Vote,
)
from . import relay
from .encoding import Encoding, chunks
from .identity import Counts, check_key, sign_key
from .keys import (
    KEY_BYTES,
    generate_key,
    next_root,
    pair_label,
    read_key,
    sum_keys,
    sum_label,
)
from .masks import Stream, add_streams
from .membership import Cohort, Membership
from .pairs import derive_pairs
from .party_state import OpenSum, PartyState, order_terms
from .seeds import commitment
from .shamir import SHARE_BYTES, cut, share_seeds
from .votes import Subject, check_votes, sign_vote

_LONGEST_LEAP = 1024  # sums that a party may have missed in a row


class _Accepted(NamedTuple):
    cohort: Cohort
    encoding: Encoding
    label: bytes
    keys: dict[int, tuple[bytes, bytes]]


class Party:
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
    regroup : bool (default: False)
        Whether sums of the same name may be over ever new cohorts: for methods whose owner knows
        what that shows.
    """

    def __init__(
        self,
        partition: int,
        state: PartyState,
        *,
        identity: Ed25519PrivateKey | None = None,
        trusted: dict[int, bytes] | None = None,
        allow_single: bool = False,
        pair_secrets: bool = False,
        partners: Collection[int] = (),
        whole_cohorts: bool = False,
        allow_recovery: bool = True,
        regroup: bool = False,
    ) -> None:
        self.regroup = regroup
        self.partition, self.state, self.partners = partition, state, partners
        self.pair_secrets, self.whole_cohorts = pair_secrets, whole_cohorts
        self.identity, self.trusted, self.allow_single = identity, trusted, allow_single
        self.allow_recovery = allow_recovery
        self._accepted: dict[tuple[int, int], _Accepted] = {}

    # -- set-up

    def announce(self, counts: Counts = (0, 0)) -> tuple[bytes, bytes]:
        """Make a key for the run; return (public key, signature or nothing).

        ``counts`` are the rows that this party learns from and its held-out rows.
        """
        self.state.counts = {self.partition: counts}
        if self.state.private:
            public = read_key(self.state.private)[1]
        else:
            self.state.private, public = generate_key()
        if self.identity is None:
            return public, b""
        signature = sign_key(self.identity, self.state.session, self.partition, public, counts)
        return public, signature

    def join(self, roster: Roster) -> None:
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
                raise self._refuse("the roster of the run has changed", "start the run again")
            return
        if self.trusted is not None:
            for partition, public in members.keys.items():
                if partition != self.partition:
                    signature = members.signatures[partition]
                    signature = signature if any(signature) else b""
                    counts = members.counts[partition]
                    check_key(
                        self.trusted, self.state.session, partition, public, signature, counts
                    )
            if self.identity is None:
                raise self._refuse(
                    "it pins the identities of others and has none, so it cannot vote",
                    "give it its identity key",
                )
        if not self.state.private:
            raise self._refuse("this party has announced no key", "start the run again")
        private, public = read_key(self.state.private)
        if members.keys.get(self.partition) != public:
            raise self._refuse(
                "the roster holds another key under the name of this party", "start the run again"
            )
        if members.counts[self.partition] != self.state.counts.get(self.partition, (0, 0)):
            raise self._refuse(
                "the roster tells of another number of rows of this party", "start the run again"
            )
        derived, common = derive_pairs(
            members,
            self.partition,
            private,
            secrets=self.pair_secrets,
            partners=self.partners,
        )
        for cohort, roots in derived:
            self.state.enter(cohort, roots)
        self.state.digest, self.state.cipher = members.digest, members.cipher
        self.state.private, self.state.secrets = b"", common
        self.state.counts = dict(members.counts)

    # -- a sum

    def accept(self, order: Order) -> None:
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
        cohort, encoding = self._check(order)
        label = sum_label(self.state.session, cohort.number, order.index, order_terms(order))
        keys = self._advance(cohort, order.index, label)
        self._accepted[order.cohort, order.index] = _Accepted(cohort, encoding, label, keys)

    def contribute(self, order: Order, values: NDArray[Any], *, overwrite: bool = False) -> Upload:
        """Encode, mask and share; refuse before anything leaves this party.

        Parameters
        ----------
        order : Order
            What the server asked for; accepted here if it has not been.
        values : ndarray, shape (order.length,)
            This party's vector; ``np.broadcast_to(0.0, length)`` takes no time to encode.
        overwrite : bool (default: False)
            Whether the masked vector may take the place of the values.

        Raises
        ------
        SumError
            The values do not fit the order; see also :meth:`accept`.
        OptionError
            The ring has no room for the sum.
        """
        if np.shape(values) != (order.length,):
            raise SumError(
                f"{order.name} has shape {np.shape(values)} instead of ({order.length},)",
                party=self._name,
            )
        if (order.cohort, order.index) not in self._accepted:
            self.accept(order)
        cohort, encoding, label, keys = self._accepted[order.cohort, order.index]
        try:
            masked = encoding.encode(
                np.asarray(values), len(cohort.members), name=order.name, overwrite=overwrite
            )
        except SumError as error:
            raise SumError(error.problem, remedy=error.remedy, party=self._name) from None
        del self._accepted[order.cohort, order.index]
        others = cohort.neighbours[self.partition]
        streams: list[Stream] = [(keys[j][0], j < self.partition) for j in others]
        opened = OpenSum.of(order, keys)
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
        return Upload(
            cohort=cohort.number,
            index=order.index,
            shares=self._seal(relay.SHARE, label, others, shares, opened),
            backups=self._seal(relay.BACKUP, label, others, backups, opened),
            commitments=committed,
            masked=chunks(masked),
        )

    def vote(self, ballot: Ballot) -> Vote:
        """Sign the survivors of a sum; from now on this party answers for no others.

        Raises
        ------
        SumError
            It has no identity key; see also :meth:`unmask`.
        """
        opened, cohort = self._opened(ballot.cohort, ballot.index)
        self._check_survivors(opened, cohort, ballot.alive)
        if self.identity is None:
            raise self._refuse("it has no identity key to vote with", "give it its identity key")
        opened.alive = ballot.alive
        signature = sign_vote(self.identity, self._subject(cohort, ballot))
        return Vote(cohort=ballot.cohort, index=ballot.index, signature=signature)

    def unmask(self, request: Unmask) -> UnmaskReply:
        """Reveal what opens the sum over the declared survivors, and nothing else.

        Raises
        ------
        SumError
            A party is both alive and dead, or neither; this party has voted or answered for another
            set; fewer survivors than the threshold; this party or the receiver is not among them;
            identities are pinned and too few have voted; a relayed share was changed.
        """
        opened, cohort = self._opened(request.cohort, request.index)
        living = self._check_survivors(opened, cohort, request.alive)
        alive, dead = cohort.unpack(request.alive), cohort.unpack(request.dead)
        if alive & dead or len(alive) + len(dead) != len(cohort.members):
            raise self._refuse("survivors and dropped parties overlap or leave gaps")
        self._check_votes(cohort, request)
        others = cohort.neighbours[self.partition]
        sealed = cut(request.shares, relay.SEALED_SHARE)
        if len(sealed) != len(living):
            raise self._refuse(f"{len(sealed)} relayed shares for {len(living)} neighbours")
        label = opened.label(self.state.session, cohort.number, request.index)
        shares = [opened.own_share]
        for source, text in zip(living, sealed, strict=True):
            shares.append(self._unseal(relay.SHARE, label, source, text, opened))
        opened.alive, opened.answered = request.alive, True
        return UnmaskReply(
            cohort=cohort.number,
            index=request.index,
            shares=b"".join(shares),
            seeds=b"".join(opened.keys[j][0] for j in others if j in dead),
        )

    def recover(self, request: Recover) -> RecoverReply:
        """Reveal shares of seeds of silent survivors' pairs with the dead.

        Raises
        ------
        SumError
            The survivors are not those that this party has answered for, a pair of two survivors
            is asked for, or this party allows no recovery.
        """
        opened, cohort = self._opened(request.cohort, request.index)
        if not self.allow_recovery:
            raise self._refuse("it does not help to recover seeds of others", "allow recovery")
        if not opened.answered or opened.alive != request.alive:
            raise self._refuse("a second set of survivors for the same sum")
        alive, silent = cohort.unpack(request.alive), cohort.unpack(request.silent)
        others = cohort.neighbours[self.partition]
        if not silent or not silent <= alive or not silent <= set(others):
            raise self._refuse("seeds are asked for that stay secret in this sum")
        sources = [j for j in others if j in silent]
        label = opened.label(self.state.session, cohort.number, request.index)
        size, rest = divmod(len(request.backups), max(1, len(sources)))
        if rest or not size:
            raise self._refuse("relayed backups of the wrong size")
        out = []
        for source, text in zip(sources, cut(request.backups, size), strict=True):
            plain = self._unseal(relay.BACKUP, label, source, text, opened)
            shares = cut(plain, SHARE_BYTES)
            pairs = cohort.neighbours[source]
            if len(shares) != len(pairs):
                raise self._refuse(f"what partition {source} sealed has the wrong size")
            out += [s for j, s in zip(pairs, shares, strict=True) if j not in alive]
        return RecoverReply(cohort=cohort.number, index=request.index, shares=b"".join(out))

    def receive(self, delivery: Delivery) -> tuple[str, NDArray[Any]]:
        """Open a sum that belongs to this party.

        Returns
        -------
        (str, ndarray)
            Name of the sum and its total; of angles the ring's own numbers, 2^bits to a turn.
        """
        opened, cohort = self._opened(delivery.cohort, delivery.index)
        if opened.receiver != self.partition:
            raise self._refuse("a sum was delivered that belongs to somebody else")
        encoding, parts = opened.encoding, delivery.padded
        total = np.concatenate(parts) if parts else np.zeros(0, encoding.dtype)
        if any(part.dtype != encoding.dtype for part in parts) or total.size != opened.length:
            raise self._refuse(f"the total of {opened.name} has the wrong size or dtype")
        add_streams(total, [(opened.pad, True)], cipher=self.state.cipher)
        if encoding.kind == "circle":  # as compact as they travelled
            return opened.name, total
        parties = len(cohort.members)
        values = encoding.decode(total, parties, overwrite=True)
        encoding.check_total(values, parties, name=opened.name)
        return opened.name, values

    # -- pieces

    @property
    def _name(self) -> str:
        return f"partition {self.partition}"

    def _refuse(self, problem: str, remedy: str = "") -> SumError:
        return SumError(problem, remedy=remedy, party=self._name)

    def _check(self, order: Order) -> tuple[Cohort, Encoding]:
        cohort = self.state.cohorts.get(order.cohort)
        if cohort is None:
            raise self._refuse("this party is not in the cohort of the sum")
        leap = order.index - self.state.last[order.cohort]
        if leap < 1:
            raise self._refuse(f"number {order.index} of a sum has been used already")
        if leap > _LONGEST_LEAP:
            raise self._refuse(f"number {order.index} of a sum is too far ahead")
        if order.receiver >= 0:
            if order.receiver not in cohort.members:
                raise self._refuse("the receiver is not in the cohort")
            if len(cohort.members) == 2 and order.receiver != self.partition:
                self._check_single()
        if self.whole_cohorts and order.self_masks:
            raise self._refuse("this method sums over whole cohorts, without self masks")
        self._check_fixed(order)
        encoding = Encoding(order.kind, order.bits, order.bound)  # type: ignore[arg-type]
        encoding.check_room(len(cohort.members))
        self.state.close(order.cohort, order.open_from)
        return cohort, encoding

    def _check_survivors(self, opened: OpenSum, cohort: Cohort, survivors: bytes) -> list[int]:
        """Refuse survivors for whom nobody should answer; return this party's living neighbours."""
        if not opened.self_masks:
            raise self._refuse("a sum without self masks is never unmasked")
        alive = cohort.unpack(survivors)
        if opened.alive and opened.alive != survivors:
            raise self._refuse("a second set of survivors for the same sum")
        if len(alive) < cohort.threshold:
            raise self._refuse(
                f"{len(alive)} survivors are fewer than the threshold {cohort.threshold}"
            )
        if self.partition not in alive or (opened.receiver >= 0 and opened.receiver not in alive):
            raise self._refuse("the survivors leave out this party or the receiver")
        if opened.receiver not in (-1, self.partition) and len(alive) == 2:
            self._check_single()
        living = [j for j in cohort.neighbours[self.partition] if j in alive]
        if len(living) + 1 < cohort.share_threshold:
            raise self._refuse("too few neighbours of this party survived to open the sum")
        return living

    def _check_votes(self, cohort: Cohort, request: Unmask) -> None:
        """Refuse survivors for whom too few have voted; only where identities are pinned."""
        if self.trusted is None:
            return
        pinned = dict(self.trusted)
        if self.identity is not None:
            pinned[self.partition] = self.identity.public_key().public_bytes_raw()
        try:
            check_votes(pinned, self._subject(cohort, request), request.voters, request.votes)
        except SumError as error:
            raise self._refuse(error.problem, error.remedy) from None

    def _subject(self, cohort: Cohort, section: Ballot | Unmask) -> Subject:
        return Subject(self.state.session, cohort, section.index, section.alive)

    def _check_fixed(self, order: Order) -> None:
        """A sum is repeated, under its name, only as it was: cohort, receiver, masks, encoding.

        The difference of sums of the same values over two cohorts is that of the parties in which
        they differ; and what is rounded to ever more digits shows the digits of single parties by
        the carries. What follows a # in a name tells what is summed, not under which rule.
        """
        members = self.state.cohorts[order.cohort].members
        terms = [members, order.receiver, order.self_masks, order.kind, order.bits, order.bound]
        if self.regroup and order.self_masks:
            terms = ["under self masks"]
        digest = hashlib.sha256(json.dumps(terms).encode()).hexdigest()[:32]
        name = order.name.partition("#")[0]
        if self.state.fixed.setdefault(name, digest) != digest:
            raise self._refuse(
                f"{name} was summed before and would be repeated otherwise",
                "repeat it with the same parties, or end the run",
            )

    def _check_single(self) -> None:
        if not self.allow_single:
            raise self._refuse(
                "the receiver of this sum would learn this party's values: there is no third",
                "let more parties take part, or allow it with allow_single",
            )

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

    def _opened(self, cohort: int, index: int) -> tuple[OpenSum, Cohort]:
        opened = self.state.open.get((cohort, index))
        if opened is None:
            raise self._refuse("the sum is closed, or this party had no part in it")
        return opened, self.state.cohorts[cohort]

    def _seal(
        self,
        kind: int,
        label: bytes,
        others: Sequence[int],
        plain: Sequence[bytes],
        opened: OpenSum,
    ) -> bytes:
        """Seal a piece for each neighbour; nothing if there are none to seal."""
        return b"".join(
            relay.seal(
                opened.keys[j][1],
                text,
                label=label,
                kind=kind,
                source=self.partition,
                destination=j,
            )
            for j, text in (zip(others, plain, strict=True) if plain else ())
        )

    def _unseal(self, kind: int, label: bytes, source: int, text: bytes, opened: OpenSum) -> bytes:
        try:
            return relay.unseal(
                opened.keys[source][1],
                text,
                label=label,
                kind=kind,
                source=source,
                destination=self.partition,
            )
        except SumError as error:
            raise self._refuse(error.problem) from None
