"""Run a client's side of secure sums: its state, its checks and its messages."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from ..errors import RefusedError, SumError, refusal
from ..privacy.accounting import skellam
from ..wire import sums as wire
from ..wire.sums import Ballot, Order, SumSection, Unmask
from . import crypto
from .crypto import (
    KEY_BYTES,
    SHARE_BYTES,
    commitment,
    common_key,
    cut,
    generate_key,
    next_root,
    pair_label,
    pair_root,
    pair_secret,
    read_key,
    share_seeds,
    sum_keys,
    sum_label,
)
from .encoding import Encoding, Stream, add_streams, chunks
from .identity import Counts, check_key, sign_key
from .membership import (
    Cohort,
    Membership,
    Subject,
    check_votes,
    digest_of,
    noise_key,
    sign_vote,
    value_mark,
)

# -- what a party remembers between two messages; lives with the client, never sent
#
# In a deployment every message may meet a new process, so the state must survive as bytes. A closed
# sum leaves nothing behind: its seeds, shares and keys are erased, and the roots that remain lead
# forward only.


def order_terms(order: Order) -> str:
    """Return the terms that all parties of a sum must agree on, for its label.

    Masks of parties with different terms do not cancel. Otherwise a server could send a small bound
    to one party and a large one to the others, and read the first in the leading digits of the
    total. With a shorter vector for the others it could read the rest of the first.
    """
    terms = [order.name, order.length, order.kind, order.bits, float(order.bound)]
    return json.dumps([*terms, order.receiver, order.self_masks, order.noise, order.fraction])


_BYTES = ("own_share", "pad", "alive", "delivered")


@dataclass(repr=False)  # its text would show secrets
class OpenSum:
    order: Order
    keys: dict[int, tuple[bytes, bytes]]
    own_share: bytes = b""
    pad: bytes = b""
    alive: bytes = b""  # the only survivors that it votes or answers for
    answered: bool = False
    delivered: bytes = b""  # digest of the total that was opened, if any was
    mark: str = ""  # of the values that were added, unless they are nothing

    def label(self, session: str) -> bytes:
        return sum_label(session, self.order.cohort, self.order.index, order_terms(self.order))


@dataclass(repr=False)  # its text would show secrets
class PartyState:
    """A party's memory of a run.

    Attributes
    ----------
    private : bytes
        X25519 key of the run, erased when the roster arrives.
    roots, last : dict
        Cohort -> neighbour -> root of the next sum; cohort -> number of the last sum.
    fixed : dict
        Name -> digest of the terms of the first sum of that name.
    open : dict
        (cohort, number) -> open sum.
    secrets : dict
        Neighbour -> secret of the pair for the method, if it needs one.
    shown : dict
        Fingerprint of values -> digest of the parties over which their sum was opened.
    """

    session: str
    private: bytes = b""
    digest: bytes = b""
    cipher: str = ""
    cohorts: dict[int, Cohort] = field(default_factory=dict)
    roots: dict[int, dict[int, bytes]] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    fixed: dict[str, str] = field(default_factory=dict)
    open: dict[tuple[int, int], OpenSum] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    secrets: dict[int, bytes] = field(default_factory=dict)
    counts: dict[int, Counts] = field(default_factory=dict)
    noise_key: bytes = b""

    def enter(self, cohort: Cohort, roots: dict[int, bytes]) -> None:
        self.cohorts[cohort.number], self.roots[cohort.number] = cohort, roots
        self.last[cohort.number] = cohort.first - 1

    def close(self, cohort: int, open_from: int) -> None:
        for key in [k for k in self.open if k[0] == cohort and k[1] < open_from]:
            del self.open[key]

    def keep_delivered(self, later: PartyState) -> None:
        """Copy which totals were opened from a later state that will be discarded."""
        for place, opened in later.open.items():
            if place in self.open:
                self.open[place].delivered = self.open[place].delivered or opened.delivered

    def twin(self) -> PartyState:
        twin = copy(self)
        for name in ("cohorts", "last", "fixed", "shown", "secrets", "counts"):
            setattr(twin, name, getattr(self, name).copy())
        twin.roots = {number: roots.copy() for number, roots in self.roots.items()}
        twin.open = {place: copy(opened) for place, opened in self.open.items()}
        return twin

    def pack(self) -> bytes:
        value = {
            "session": self.session,
            "private": self.private.hex(),
            "digest": self.digest.hex(),
            "cipher": self.cipher,
            "cohorts": [[c.number, c.members, c.threshold] for c in self.cohorts.values()],
            "roots": [
                [c, list(roots), b"".join(roots.values()).hex()] for c, roots in self.roots.items()
            ],
            "last": list(self.last.items()),
            "fixed": self.fixed,
            "shown": self.shown,
            "open": [_pack_open(opened) for opened in self.open.values()],
            "secrets": [[j, secret.hex()] for j, secret in self.secrets.items()],
            "counts": [[j, *pair] for j, pair in self.counts.items()],
            "noise_key": self.noise_key.hex(),
        }
        return json.dumps(value).encode()

    @classmethod
    def unpack(cls, data: bytes) -> PartyState:
        value = json.loads(data)
        digest = bytes.fromhex(value["digest"])
        return cls(
            session=value["session"],
            private=bytes.fromhex(value["private"]),
            digest=digest,
            cipher=value["cipher"],
            cohorts={c: Cohort(c, tuple(m), t, digest) for c, m, t in value["cohorts"]},
            roots={
                c: dict(zip(others, cut(bytes.fromhex(roots), KEY_BYTES), strict=True))
                for c, others, roots in value["roots"]
            },
            last=dict(value["last"]),
            fixed=value["fixed"],
            shown=value["shown"],
            open={(s.order.cohort, s.order.index): s for s in map(_unpack_open, value["open"])},
            secrets={j: bytes.fromhex(secret) for j, secret in value["secrets"]},
            counts={j: Counts(*declared) for j, *declared in value["counts"]},
            noise_key=bytes.fromhex(value["noise_key"]),
        )


def _pack_open(opened: OpenSum) -> dict[str, Any]:
    return {
        **vars(opened),
        "order": vars(opened.order),
        "keys": [list(opened.keys), b"".join(map(b"".join, opened.keys.values())).hex()],
        **{name: getattr(opened, name).hex() for name in _BYTES},
    }


def _unpack_open(value: dict[str, Any]) -> OpenSum:
    others, both = value["keys"][0], cut(bytes.fromhex(value["keys"][1]), KEY_BYTES)
    keys = {j: (both[2 * k], both[2 * k + 1]) for k, j in enumerate(others)}
    secret = {name: bytes.fromhex(value[name]) for name in _BYTES}
    return OpenSum(**{**value, "order": Order(**value["order"]), "keys": keys, **secret})


# -- the client's side of secure sums: masks its vectors, keeps shares, refuses what would leak

_LONGEST_LEAP = 1024  # sums that a party may have missed in a row


def other_parties(party: str = "") -> RefusedError:
    problem = "the parties of a sum: its values were summed over others before"
    return refusal(
        problem, party, "go on with those, or start another run", code="FK-ORDER-PARTIES"
    )


class Accepted(NamedTuple):
    cohort: Cohort
    encoding: Encoding
    label: bytes
    keys: dict[int, tuple[bytes, bytes]]


class Party:
    """One party in all sums of a run.

    Parameters
    ----------
    partition : int
        Number of the party.
    state : PartyState
        Memory between messages; changed in place.
    identity : Ed25519PrivateKey, optional
        Signs the party's key of the run.
    trusted : dict, optional
        Partition -> pinned identity key. With it, all others must have signed their keys, and voted
        for the survivors where needed; needs ``identity``.
    allow_single : bool (default: False)
        Whether the other one of two parties may open their sum, and so learn this party's values.
    pair_secrets, partners : bool, collection of int
        Whether to derive a secret with every neighbour for the method, and further parties for
        this.
    whole_cohorts : bool (default: False)
        Whether to refuse sums with self masks: a method that repeats the same values must not have
        them opened over different survivors.
    allow_recovery : bool (default: True)
        Whether to share backups of this party's seeds, and to recover those of others. Without it a
        sum that needs them is aborted.
    same_parties : bool (default: False)
        Whether the same values, under one name, are opened over the same survivors only, as the
        same noise always is.
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
        same_parties: bool = False,
    ) -> None:
        self.same_parties = same_parties
        self.partition, self.state, self.partners = partition, state, partners
        self.pair_secrets, self.whole_cohorts = pair_secrets, whole_cohorts
        self.identity, self.trusted, self.allow_single = identity, trusted, allow_single
        self.allow_recovery = allow_recovery
        self.accepted: dict[tuple[int, int], Accepted] = {}
        #: Name of a sum to which noise was added just now -> the key of that noise.
        self.drawn: dict[str, bytes] = {}
        #: What this message has opened: mark of values -> digest of the parties.
        self.shown: dict[str, str] = {}

    # -- set-up

    def announce(self, counts: Counts | None = None) -> tuple[bytes, bytes]:
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
            The roster has changed, a key is not the pinned one or not its own, or the party pins
            others without an identity key.
        """
        members = Membership.read(roster, self.state.session)
        if self.state.digest:
            if self.state.digest != members.digest:
                raise self.refuse("the roster of the run has changed", code="FK-SUM-ROSTER-OTHER")
            return
        if self.trusted is not None:
            for other in sorted(members.keys.keys() - {self.partition}):
                signature = members.signatures[other]
                signed = members.keys[other], signature if any(signature) else b""
                check_key(self.trusted, self.state.session, other, *signed, members.counts[other])
            if self.identity is None:
                raise self.refuse(
                    "it pins the identities of others and has none, so it cannot vote",
                    code="FK-IDENTITY-NONE",
                )
        if not self.state.private:
            raise self.refuse(
                "this party has announced no key", "start the run again", code="FK-SUM-KEY-NONE"
            )
        private, public = read_key(self.state.private)
        if members.keys.get(self.partition) != public:
            raise self.refuse(
                "the roster holds another key under the name of this party", code="FK-SUM-CHANGED"
            )
        if members.counts[self.partition] != self.state.counts.get(self.partition, Counts()):
            raise self.refuse(
                "the roster tells of another table of this party", code="FK-SUM-CHANGED"
            )
        self._derive_pairs(members, private)
        self.state.digest, self.state.cipher = members.digest, members.cipher
        self.state.private, self.state.counts = b"", dict(members.counts)

    # -- a sum

    def accept(self, order: wire.Order) -> None:
        """Accept an order, and use up its number.

        A cohort's numbers must increase. Save the state before the reply is sent: a key of a number
        that the state does not remember could be used twice.

        Raises
        ------
        SumError
            The number was used before, the receiver would learn this party's values, or the terms
            of a repeated sum differ.
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
        """Encode, mask and share this party's vector; refuse before anything is sent.

        ``values`` has shape (order.length,); ``np.broadcast_to(0.0, length)`` is encoded without
        cost. With ``overwrite`` the masked vector may reuse its memory. ``common`` is a digest of
        what all parties must agree on without the server, such as secret landmarks: masks of
        parties with another one do not cancel.

        Raises
        ------
        SumError
            The values do not fit the order, or noise is requested in a run without a budget; see
            also :meth:`accept`.
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
            shares=self._seal(crypto.SHARE, label, shares, opened),
            backups=self._seal(crypto.BACKUP, label, backups, opened),
            commitments=committed,
            masked=chunks(masked),
        )

    def vote(self, ballot: wire.Ballot) -> wire.Vote:
        """Sign the survivors of a sum. From then on this party answers for no other set."""
        opened, cohort = self.opened(ballot)
        self.check_survivors(opened, ballot.alive)
        if self.identity is None:
            raise self.refuse("it has no identity key to vote with", code="FK-IDENTITY-NONE")
        opened.alive = ballot.alive
        signature = sign_vote(self.identity, self.subject(cohort, ballot))
        return wire.Vote(cohort=ballot.cohort, index=ballot.index, signature=signature)

    def unmask(self, request: wire.Unmask) -> wire.UnmaskReply:
        """Reveal what opens the sum over the declared survivors, and nothing else.

        Raises
        ------
        SumError
            The sets of survivors and dropped parties are inconsistent, or differ from those
            answered before. There are too few survivors or votes. This party or the receiver is
            missing. A share was changed.
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
        sealed = cut(request.shares, crypto.SEALED_SHARE)
        if len(sealed) != len(living):
            raise self.refuse(
                f"{len(sealed)} relayed shares for {len(living)} neighbours",
                code="FK-MESSAGE-SHAPE",
            )
        label = opened.label(self.state.session)
        shares = [opened.own_share]
        for source, text in zip(living, sealed, strict=True):
            shares.append(self._unseal(crypto.SHARE, label, source, text, opened))
        self.check_shown(opened.mark, alive)
        opened.alive, opened.answered = request.alive, True
        return wire.UnmaskReply(
            cohort=cohort.number,
            index=request.index,
            shares=b"".join(shares),
            seeds=b"".join(opened.keys[j][0] for j in others if j in dead),
        )

    def recover(self, request: wire.Recover) -> wire.RecoverReply:
        """Reveal shares of the seeds that dropped survivors have with dropped parties.

        Raises
        ------
        SumError
            This party has answered for other survivors, a seed of two survivors is requested, or it
            allows no recovery.
        """
        opened, cohort = self.opened(request)
        if not self.allow_recovery:
            raise self.refuse("it does not help to recover seeds of others", code="FK-SUM-RECOVERY")
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
            plain = self._unseal(crypto.BACKUP, label, source, text, opened)
            shares = cut(plain, SHARE_BYTES)
            pairs = cohort.neighbours[source]
            if len(shares) != len(pairs):
                raise self.refuse(
                    f"what partition {source} sealed has the wrong size", code="FK-MESSAGE-SHAPE"
                )
            out += [s for j, s in zip(pairs, shares, strict=True) if j not in alive]
        return wire.RecoverReply(cohort=cohort.number, index=request.index, shares=b"".join(out))

    def receive(self, delivery: wire.Delivery) -> tuple[str, NDArray[Any]]:
        """Open a sum of which this party is the receiver; return its name and total.

        The pad does not authenticate the total: so one total is opened, and no other. Angles are in
        units of the ring, 2^bits for a full circle.
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
        """Return the beginning of the pad of a sum that this party receives."""
        words = np.zeros(length, Encoding.of(order).dtype)
        opened, _ = self.opened(order)
        add_streams(words, [(opened.pad, False)], cipher=self.state.cipher)
        return words

    # -- what it refuses: requests, survivors, votes and deliveries that would show its values

    def check_order(self, order: Order) -> tuple[Cohort, Encoding]:
        """Refuse an order that breaks a rule; return its cohort and encoding.

        The first order of a name fixes the terms of all later ones in the run.
        """
        cohort = self.state.cohorts.get(order.cohort)
        if cohort is None:
            raise self.refuse("this party is not in the cohort of the sum", code="FK-SUM-STRANGER")
        leap = order.index - self.state.last[order.cohort]
        if leap < 1:
            raise self.refuse(
                f"number {order.index} of a sum has been used already", code="FK-SUM-NUMBER"
            )
        if leap > _LONGEST_LEAP:
            raise self.refuse(
                f"number {order.index} of a sum is too far ahead", code="FK-SUM-NUMBER"
            )
        if order.receiver >= 0:
            if order.receiver not in cohort.members:
                raise self.refuse("the receiver is not in the cohort", code="FK-SUM-RECEIVER")
            if len(cohort.members) == 2 and order.receiver != self.partition:
                self._check_single()
        if self.whole_cohorts and order.self_masks:
            raise self.refuse(
                "this method sums over whole cohorts, without self masks", code="FK-ORDER-TERMS"
            )
        self._check_fixed(order)
        encoding = Encoding.of(order)
        encoding.check_room(len(cohort.members))
        return cohort, encoding

    def check_survivors(self, opened: OpenSum, survivors: bytes) -> list[int]:
        """Refuse unsafe survivors; return this party's surviving neighbours."""
        if not opened.order.self_masks:
            raise self.refuse("a sum without self masks is never unmasked", code="FK-SUM-SECRET")
        order, cohort = opened.order, self.state.cohorts[opened.order.cohort]
        alive = cohort.unpack(survivors)
        if opened.alive and opened.alive != survivors:
            raise self.refuse(
                "a second set of survivors for the same sum", code="FK-SUM-CONTRADICTED"
            )
        if len(alive) < cohort.threshold:
            raise self.refuse(
                f"{len(alive)} survivors are fewer than the threshold {cohort.threshold}",
                code="FK-SUM-FEW",
            )
        if self.partition not in alive or (order.receiver >= 0 and order.receiver not in alive):
            raise self.refuse(
                "the survivors leave out this party or the receiver", code="FK-SUM-SET"
            )
        if order.receiver not in (-1, self.partition) and len(alive) == 2:
            self._check_single()
        living = [j for j in cohort.neighbours[self.partition] if j in alive]
        if len(living) + 1 < cohort.share_threshold:
            raise self.refuse(
                "too few neighbours of this party survived to open the sum",
                code="FK-SUM-FEW",
            )
        return living

    def check_votes(self, cohort: Cohort, request: Unmask) -> None:
        if self.trusted is None:
            return
        pinned = dict(self.trusted)
        if self.identity is not None:
            pinned[self.partition] = self.identity.public_key().public_bytes_raw()
        with self.named():
            check_votes(pinned, self.subject(cohort, request), request.voters, request.votes)

    def subject(self, cohort: Cohort, section: Ballot | Unmask) -> Subject:
        return Subject(self.state.session, cohort, section.index, section.alive)

    def _check_fixed(self, order: Order) -> None:
        """Refuse to repeat a sum, under its name, with another cohort, receiver, masks or encoding.

        The difference of sums over two cohorts reveals the parties in which they differ. Rounding
        the same values to ever more digits would reveal digits of single parties by the carries.
        The part of a name after # is not compared.
        """
        members = self.state.cohorts[order.cohort].members
        terms = [members, order.receiver, order.self_masks, order.kind, order.bits, order.bound]
        terms += [order.noise, order.fraction]
        digest = hashlib.sha256(json.dumps(terms).encode()).hexdigest()[:32]
        name = order.name.partition("#")[0]
        if self.state.fixed.setdefault(name, digest) != digest:
            raise self.refuse(
                f"{name} was summed before and would be repeated otherwise", code="FK-ORDER-PARTIES"
            )

    def show(self, mark: str, parties: Iterable[int]) -> str:
        """Enter over which parties fingerprinted values will be opened; return their digest."""
        among = hashlib.sha256(json.dumps(sorted(parties)).encode()).hexdigest()[:16]
        if mark:
            self.shown[mark] = among
        return among

    def check_shown(self, mark: str, survivors: Iterable[int]) -> None:
        """Refuse to open the same values, or the same noise, over other survivors.

        The difference of two such sums reveals the parties in which they differ, without their
        noise. The node counts this RefusedError, because it reveals that values are the same.
        """
        among = self.show(mark, survivors)
        if mark and self.state.shown.setdefault(mark, among) != among:
            raise other_parties(self.name)

    def _check_single(self) -> None:
        if not self.allow_single:
            raise self.refuse(
                "the receiver of this sum would learn this party's values: there is no third",
                code="FK-SUM-SINGLE",
            )

    def opened(self, section: SumSection) -> tuple[OpenSum, Cohort]:
        opened = self.state.open.get((section.cohort, section.index))
        if opened is None:
            raise self.refuse(
                "the sum is closed, or this party had no part in it", code="FK-SUM-CLOSED"
            )
        return opened, self.state.cohorts[section.cohort]

    @property
    def name(self) -> str:
        return f"partition {self.partition}"

    def refuse(self, problem: str, remedy: str | None = None, *, code: str) -> SumError:
        return SumError(problem, remedy=remedy, party=self.name, code=code)

    @contextmanager
    def named(self) -> Iterator[None]:
        try:
            yield
        except SumError as error:
            raise self.refuse(error.problem, error.remedy, code=error.code) from None

    # -- pieces

    def _derive_pairs(self, members: Membership, private: X25519PrivateKey) -> None:
        """Derive roots, and secrets for the method, with all neighbours or with none."""
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
        """Advance the ratchet to this sum; return neighbour -> (mask key, relay key)."""
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
        sealed = [
            crypto.seal(seal, text, crypto.Route(label, kind, self.partition, other))
            for (other, (_, seal)), text in zip(opened.keys.items(), plain, strict=bool(plain))
        ]
        return b"".join(sealed)

    def _unseal(self, kind: int, label: bytes, source: int, text: bytes, opened: OpenSum) -> bytes:
        with self.named():
            route = crypto.Route(label, kind, source, self.partition)
            return crypto.unseal(opened.keys[source][1], text, route)
