"""Define who takes part in a sum: cohorts, mask graphs, noise keys and votes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import NDArray

from ..errors import OptionError, SmallCohortError, SumError
from ..plain_text import read_json
from ..wire.message import PROTOCOL_VERSION
from ..wire.sums import Order, Roster
from .crypto import KEY_BYTES, SHARE_BYTES, TAG_BYTES, cut, is_public_key
from .encoding import CIPHERS, RingArray
from .identity import SIGNATURE_BYTES, Counts

# -- who masks with whom: the complete graph for few parties, a random regular graph for many
#
# Up to 30 parties everybody masks with everybody. Above, the parties are put on a circle in an
# order that a hash of all public keys decides, and each masks with its k nearest on the circle (k/2
# to either side), as in Bell et al. 2020, section 3. k grows with the logarithm of the number of
# parties such that, with a fifth of the parties colluding and a tenth dropping out, no
# neighbourhood loses its secrecy or its recovery but with negligible probability (see
# docs/security.md).

COMPLETE_UP_TO = 30
_SIZES, _DEGREES = (50, 100, 200, 1000), (16, 32, 46, 68)
_SHARE = 0.65  # of k: shares that open a seed, of k neighbours and the party itself


def degree(parties: int) -> int:
    """Return k, the number of parties with which a party shares masks."""
    if parties <= COMPLETE_UP_TO:
        return parties - 1
    if parties > _SIZES[-1]:
        slope = (_DEGREES[-1] - _DEGREES[-2]) / math.log2(_SIZES[-1] / _SIZES[-2])
        k = _DEGREES[-1] + slope * math.log2(parties / _SIZES[-1])
    else:
        k = float(np.interp(math.log2(parties), np.log2(_SIZES), _DEGREES))
    return 2 * math.ceil(k / 2)


def default_threshold(parties: int) -> int:
    """Return t = floor(2 N / 3) + 1, the least number of survivors of a sum."""
    return 2 * parties // 3 + 1


def share_threshold(parties: int, threshold: int) -> int:
    """Return how many parties must reveal their shares to reconstruct a seed."""
    k = degree(parties)
    return threshold if k == parties - 1 else math.ceil(_SHARE * k)


def fewest_colluders(parties: int, threshold: int) -> int:
    """Return a lower bound of the colluders that can open a vector, even with false survivors.

    It holds with pinned identities, for the worst choice of colluders: see below.
    """
    return min(2 * threshold - parties, share_threshold(parties, threshold) - 1)


@lru_cache(maxsize=64)
def neighbourhoods(members: tuple[int, ...], digest: bytes) -> dict[int, tuple[int, ...]]:
    """Return party -> the parties with which it shares masks, ascending.

    ``digest`` is that of the roster, which no party can predict.
    """
    k = degree(len(members))
    if k == len(members) - 1:
        return {i: tuple(j for j in members if j != i) for i in members}
    circle = sorted(members, key=lambda i: hashlib.sha256(digest + b"|%d" % i).digest())
    return {
        i: tuple(sorted(_beside(circle, position, k // 2))) for position, i in enumerate(circle)
    }


def _beside(circle: Sequence[int], position: int, reach: int) -> list[int]:
    n = len(circle)
    return [circle[(position + step) % n] for step in range(-reach, reach + 1) if step]


# -- who takes part: the roster of keys, and the cohorts among which sums are taken
#
# Both sides build the same objects from the same message, and everything secret of a run is derived
# with its digest: parties that were shown different rosters share no keys.

_LEAST = 2  # parties in any sum
_COUNTS = np.dtype("<i8")


@dataclass(frozen=True)
class Cohort:
    """A fixed set of parties among which sums are made.

    Attributes
    ----------
    number : int
        Position in the roster.
    members : tuple of int
        Partitions, ascending.
    threshold : int
        t, least number of survivors of a sum.
    digest : bytes
        Digest of the roster.
    first : int
        Number of the first sum; more than 1 in a resumed run.
    """

    number: int
    members: tuple[int, ...]
    threshold: int
    digest: bytes
    first: int = 1

    @cached_property
    def neighbours(self) -> dict[int, tuple[int, ...]]:
        return neighbourhoods(self.members, self.digest)

    @property
    def degree(self) -> int:
        return len(self.neighbours[self.members[0]])

    @cached_property
    def share_threshold(self) -> int:
        return share_threshold(len(self.members), self.threshold)

    def backs_up(self, nbytes: int) -> bool:
        """Return whether seeds of pairs are shared too, in case survivors drop out.

        Both sides compute it, for a sum with self masks. Backups are made if enough holders would
        be left, and if they are no larger than the vector of ``nbytes``.
        """
        return self.degree > self.share_threshold and self.backup_bytes <= nbytes

    @property
    def backup_bytes(self) -> int:
        return self.degree * (self.degree * SHARE_BYTES + TAG_BYTES)

    @cached_property
    def _points(self) -> dict[int, int]:
        return {member: position for position, member in enumerate(self.members, start=1)}

    def point(self, member: int) -> int:
        return self._points[member]

    def holders(self, member: int) -> tuple[int, ...]:
        return (member, *self.neighbours[member])

    def pack(self, parties: Iterable[int]) -> bytes:
        flags = np.zeros(len(self.members), bool)
        flags[[self._points[party] - 1 for party in parties]] = True
        return np.packbits(flags, bitorder="little").tobytes()

    def unpack(self, bits: bytes) -> frozenset[int]:
        flags = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
        n = len(self.members)
        if len(bits) != -(-n // 8) or flags[n:].any():
            raise SumError(f"a set of parties is not one of {n} members", code="FK-SUM-SET")
        return frozenset(np.asarray(self.members)[flags[:n].astype(bool)].tolist())


@dataclass(frozen=True)
class Membership:
    """The checked roster of a run, with its ``digest``.

    ``keys`` and ``signatures`` map each partition to its public key, and to the signature of its
    identity (zeros for none); ``counts`` to its declared row counts.
    """

    session: str
    keys: Mapping[int, bytes]
    signatures: Mapping[int, bytes]
    counts: Mapping[int, Counts]
    cohorts: tuple[Cohort, ...]
    cipher: str
    digest: bytes

    @property
    def signed(self) -> bool:
        """Whether every party has signed its key, so that all can vote."""
        return all(map(any, self.signatures.values()))

    @classmethod
    def read(cls, roster: Roster, session: str) -> Membership:
        """Read the roster message; raise SumError if it is inconsistent."""
        parties, rest = divmod(len(roster.partitions), 4)
        listed = _read_cohorts(roster.cohorts)
        if rest or len(roster.counts) != _COUNTS.itemsize * 3 * parties:
            raise SumError("the roster is damaged", code="FK-SUM-ROSTER")
        ids = np.frombuffer(roster.partitions, "<i4").tolist()
        keys = cut(roster.keys, KEY_BYTES)
        signatures = cut(roster.signatures, SIGNATURE_BYTES)
        counts = np.frombuffer(roster.counts, _COUNTS).reshape(-1, 3).tolist()
        fit = parties == len(keys) == len(signatures) and ids == sorted(set(ids))
        if not fit or any(min(declared) < 0 for declared in counts):
            raise SumError("the roster is damaged", code="FK-SUM-ROSTER")
        if roster.cipher not in CIPHERS:
            raise SumError(
                f"there is no cipher {roster.cipher[:20]!r}",
                remedy=f"choose one of {', '.join(sorted(CIPHERS))}",
                code="FK-OPTION-CHOICE",
            )
        text = [PROTOCOL_VERSION, session, ids, roster.keys.hex(), listed, roster.cipher, counts]
        digest = hashlib.sha256(json.dumps(text).encode()).digest()
        cohorts = []
        for number, (threshold, first, members) in enumerate(listed):
            if members != sorted(set(members)) or not set(members) <= set(ids):
                raise SumError(
                    f"cohort {number} has strangers or members twice", code="FK-SUM-COHORTS"
                )
            check_cohort(len(members), threshold, _LEAST)
            if first < 1:
                raise SumError("the roster's cohorts are damaged", code="FK-SUM-ROSTER")
            cohorts.append(Cohort(number, tuple(members), threshold, digest, first))
        return cls(
            session,
            dict(zip(ids, keys, strict=True)),
            dict(zip(ids, signatures, strict=True)),
            {i: Counts(*declared) for i, declared in zip(ids, counts, strict=True)},
            tuple(cohorts),
            roster.cipher,
            digest,
        )


def _read_cohorts(text: str) -> list[tuple[int, int, list[int]]]:
    try:
        listed = [
            (threshold, first, list(members)) for threshold, first, members in read_json(text)
        ]
    except (ValueError, TypeError, RecursionError):
        listed = [(0, 0, [""])]
    if any(type(n) is not int for *numbers, members in listed for n in (*numbers, *members)):
        raise SumError("the roster's cohorts are damaged", code="FK-SUM-ROSTER")
    return listed


def make_roster(
    keys: Mapping[int, tuple[bytes, bytes]],
    cohorts: Sequence[Sequence[int]],
    thresholds: Sequence[int | None],
    cipher: str,
    first: Sequence[int],
    counts: Mapping[int, Counts],
) -> Roster:
    """Return the roster message for parties with (public key, signature).

    ``thresholds`` (None for the default) and ``first``, the number of the first sum, belong to the
    cohorts. ``counts`` are the declared row counts; zeros by default.
    """
    ids = sorted(keys)
    for partition in ids:
        public, signature = keys[partition]
        if not is_public_key(public) or len(signature) not in (0, SIGNATURE_BYTES):
            raise SumError(
                "its public key or signature is not valid",
                party=f"partition {partition}",
                code="FK-SUM-KEY",
            )
    listed = []
    for members, number, threshold in zip(cohorts, first, thresholds, strict=True):
        t = default_threshold(len(members)) if threshold is None else threshold
        listed.append([t, number, sorted(members)])
    return Roster(
        partitions=np.array(ids, "<i4").tobytes(),
        keys=b"".join(keys[i][0] for i in ids),
        signatures=b"".join(keys[i][1].ljust(SIGNATURE_BYTES, b"\0") for i in ids),
        cohorts=json.dumps(listed),
        cipher=cipher,
        counts=np.array([Counts(*counts.get(i, ())) for i in ids], _COUNTS).tobytes(),
    )


def check_cohort(parties: int, threshold: int | None, min_cohort: int) -> None:
    """Refuse a cohort that cannot be summed safely.

    Raises
    ------
    SmallCohortError
        There are fewer than ``min_cohort`` parties.
    OptionError
        The minimum is below 2, or the threshold cannot work.
    """
    if min_cohort < 2:
        raise OptionError(
            f"min_cohort is {min_cohort}",
            remedy="a sum of one party hides nothing: use 2 or more",
            code="FK-OPTION-RANGE",
        )
    if parties < min_cohort:
        raise SmallCohortError(
            f"{parties} {'party is' if parties == 1 else 'parties are'} too few for a secure sum, "
            f"{min_cohort} are needed",
            code="FK-PARTIES-FEW",
        )
    if threshold is not None:
        check_threshold(parties, threshold)


def check_threshold(parties: int, threshold: int) -> None:
    """Refuse a threshold above the number of parties, or of at most half of it.

    With at most half the parties, two disjoint sets of survivors could both be opened.
    """
    if not parties // 2 < threshold <= parties:
        raise OptionError(
            f"threshold is {threshold} for {parties} parties",
            remedy=f"use {parties // 2 + 1} to {parties}",
            code="FK-SUM-THRESHOLD",
        )


# -- which noise a party adds to a sum: the same to the same release, and to no other
#
# A sum that is repeated, because a party or a message was lost, must have the same noise. Otherwise
# an observer of both gets the mean of two noises. Noise of one release must never be added to
# another: their difference would have none.
#
# So the key of the noise is a keyed digest of the request and of the exact numbers that answer it.
# The secret of the run comes from the operating system and is kept until the run is over. The same
# answer to the same request has the same noise, byte for byte. Another request has its own noise
# and is another release, which is charged, even if the numbers are the same: otherwise a server
# would learn without noise whether they are. Other numbers get other noise too, because the
# difference of two sums with one noise would reveal them. A method names its request by
# :func:`asked`.


def asked(*public: str | bytes | NDArray[Any]) -> str:
    """Return a short name of a request: a digest of all public inputs of its answer."""
    found = hashlib.blake2b(digest_size=16)
    for part in public:
        encoded: Any = part.encode() if isinstance(part, str) else part
        found.update(f"{memoryview(encoded).nbytes}/".encode())
        found.update(encoded)
    return found.hexdigest()


def noise_key(
    secret: bytes, order: Order, cohort: Cohort, release: str, numbers: RingArray
) -> bytes:
    """Return the key of a party's noise.

    Parameters
    ----------
    secret : bytes
        Secret of the run and the party.
    order : Order
        The sum, except its number, its masks and the part of its name after #: these change if the
        sum is repeated.
    cohort : Cohort
        Parties of the sum. With the same noise over others, the difference would reveal the parties
        in which the cohorts differ.
    release : str
        Name of the request.
    numbers : ndarray of unsigned integers
        Values before noise and masks.
    """
    name = order.name.partition("#")[0]
    among = [*cohort.members, cohort.threshold, order.receiver]
    terms = [among, name, release, order.length, order.bits, order.noise, order.fraction]
    found = hashlib.blake2b(json.dumps(terms).encode(), key=secret, digest_size=KEY_BYTES)
    found.update(b"/" + numbers.tobytes())
    return found.digest()


def digest_of(values: NDArray[Any]) -> bytes:
    """Return a digest of values; empty for a broadcast zero."""
    if values.strides == (0,):
        return b""
    return hashlib.sha256(np.ascontiguousarray(values).data).digest()


def value_mark(order: Order, told: bytes) -> str:
    """Return a fingerprint of a party's values in a sum, whatever their encoding; "" for zeros."""
    if not told:
        return ""
    terms = [order.name.partition("#")[0], order.length, order.receiver]
    found = hashlib.blake2b(json.dumps(terms).encode(), digest_size=8)
    found.update(told)
    return found.hexdigest()


# -- votes: all parties that answer for a sum answer for the same survivors, or none answers
#
# A server that sends different survivors to different parties collects shares of b_i from those to
# which i is alive, and seeds s_ij from those to which i is dead. In runs with pinned identities a
# party casts one vote per sum, its signature of ::
#
#     session, digest of the roster, cohort, number of the sum, set of survivors
#
# and never signs or answers for another set. It answers an :class:`.Unmask` only with a
# certificate: t valid votes of survivors, t being the cohort's threshold (:func:`votes_needed`).
# One case needs none: on the complete graph an answer for the *full* set is itself a vote that
# binds its sender. ``Recover`` is answered only for the set for which the party has answered an
# ``Unmask``.
#
# **What it withstands.** There are N parties, of which t must survive, with k neighbours each. s
# shares open a seed (s = t on the complete graph). Any c parties collude with the server. No vector
# is opened, and an opened sum has the vectors of at least s - c honest parties, if ::
#
#     c < min(2 t - N, s - 1)            (see fewest_colluders)
#
# *One set.* A certificate has the votes of at least t - c honest parties. Two sets with
# certificates would need 2 (t - c) votes of the N - c honest parties, each of which votes once: not
# if c < 2 t - N. Above 30 parties all answers thus belong to one certified set A.
#
# *The full set without a certificate.* On the complete graph some honest parties may answer for the
# full set F, while others voted for A: at most N - c - (t - c) = N - t. No dead party is in F, so
# such answers reveal shares of self seeds only. For a party i that is not in A the server then has
# at most N - t + c shares of b_i, fewer than t. For i in A neither set has i as dead.
#
# *Within A.* For i not in A, b_i stays closed: for the sparse graph only colluders' shares of it
# are known, c < s. For i in A, b_i is opened, and so is s_ij if j is dead or colluding. But a party
# refuses sets with fewer than s - 1 of its neighbours alive (:meth:`.Party.unmask`). At least s - 1
# - c of these are honest, and s_ij of two honest survivors is never revealed. So i's vector is seen
# only in a sum with all honest survivors that are linked to it: at least 1 + s - 1 - c.
#
# **At the bound** vectors are opened. Complete graph, backups on, c = 2 t - N: i and N - t - 1
# others answer for F. The other N - t honest parties vote with the colluders for the set without i,
# and reveal their seeds with it. Of b_i, N - t + c = t shares are known. The seeds that i has in
# common with those that answered for F come from *their* backups, of which the N - t parties and
# the colluders have t shares. Without backups it takes more colluders, unless N - t = 1, where only
# i answers for F. Sparse graph, c = s - 1, all of them neighbours of i: the server declares the
# other k - s + 1 neighbours dead, to all parties. For a *random* set of colluders what counts is 2
# t - N in all and s - 1 in each neighbourhood; the odds are in ``docs/security.md``.
#
# Without pinned identities there are no votes. All this then holds for a server that sends the same
# survivors to all parties, not for one that lies.


class Subject(NamedTuple):
    """What a vote is about; ``alive`` is the bit set of the survivors."""

    session: str
    cohort: Cohort
    number: int
    alive: bytes

    @property
    def statement(self) -> bytes:
        cohort = self.cohort
        return json.dumps(
            [
                "fedkern-flwr survivors of a sum",
                self.session,
                cohort.digest.hex(),
                cohort.number,
                self.number,
                self.alive.hex(),
            ]
        ).encode()


def votes_needed(cohort: Cohort, survivors: int) -> int:
    """Return how many votes a party requires before it answers; 0 if none."""
    complete = cohort.degree == len(cohort.members) - 1
    return 0 if complete and survivors == len(cohort.members) else cohort.threshold


def sign_vote(identity: Ed25519PrivateKey, subject: Subject) -> bytes:
    return identity.sign(subject.statement)


def check_votes(pinned: Mapping[int, bytes], subject: Subject, voters: bytes, votes: bytes) -> None:
    """Refuse survivors (``subject``) for which too few parties have voted.

    ``pinned`` maps a partition to its raw Ed25519 public key. ``voters`` and ``votes`` are the
    certificate, see :class:`.Unmask`.
    """
    cohort = subject.cohort
    alive = cohort.unpack(subject.alive)
    needed = votes_needed(cohort, len(alive))
    if not needed:
        return
    signers = sorted(cohort.unpack(voters)) if voters else []
    signatures = cut(votes, SIGNATURE_BYTES)
    if len(signers) != len(signatures):
        raise SumError("the votes for the survivors are damaged", code="FK-SUM-VOTES")
    statement, valid, invalid = subject.statement, 0, list[int]()
    for signer, signature in zip(signers, signatures, strict=True):
        if signer in alive and _is_signed(pinned.get(signer), statement, signature):
            valid += 1
        else:
            invalid.append(signer)
        if valid == needed:
            return
    others = f", those of {_list(invalid)} are not valid" if invalid else ""
    raise SumError(
        f"{valid} votes for these survivors, {needed} are needed{others}", code="FK-SUM-VOTES"
    )


def _is_signed(key: bytes | None, statement: bytes, signature: bytes) -> bool:
    try:
        if key is not None:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return key is not None


def _list(parties: Iterable[int], most: int = 3) -> str:
    named = [f"partition {party}" for party in parties]
    return ", ".join(named[:most]) + (" and others" if len(named) > most else "")
