"""Who sums with whom: cohorts, who shares masks with whom, and whose noise a sum has."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
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
    """Return k, the number of parties that one masks with."""
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
    """Return how many holders must reveal their shares to reconstruct a seed of a party."""
    k = degree(parties)
    return threshold if k == parties - 1 else math.ceil(_SHARE * k)


def fewest_colluders(parties: int, threshold: int) -> int:
    """Return the bound on colluders: fewer cannot open a vector, whatever survivors they are told.

    It holds where all identities are pinned, for colluders in the worst places; see :mod:`.votes`.
    """
    return min(2 * threshold - parties, share_threshold(parties, threshold) - 1)


@lru_cache(maxsize=64)
def neighbourhoods(members: tuple[int, ...], digest: bytes) -> dict[int, tuple[int, ...]]:
    """Return party -> the parties that it masks with, in ascending order.

    Parameters
    ----------
    members : tuple of int
        Partitions, ascending.
    digest : bytes
        Digest of the roster, which no party can foresee.
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
    """A fixed set of parties; a sum belongs to one cohort.

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
        Number of the cohort's first sum in this roster; more than 1 in a run that was resumed.
    """

    number: int
    members: tuple[int, ...]
    threshold: int
    digest: bytes
    first: int = 1

    @cached_property
    def neighbours(self) -> dict[int, tuple[int, ...]]:
        """Party -> the parties that it masks with."""
        return neighbourhoods(self.members, self.digest)

    @property
    def degree(self) -> int:
        """Number of parties that one masks with."""
        return len(self.neighbours[self.members[0]])

    @cached_property
    def share_threshold(self) -> int:
        """Shares needed to reconstruct a seed."""
        return share_threshold(len(self.members), self.threshold)

    def backs_up(self, nbytes: int) -> bool:
        """Tell whether seeds of pairs are shared too, for survivors that fall silent.

        Both sides compute it, for a sum with self masks: where backups help (enough are left to
        hold them) and cost no more than the vector.

        Parameters
        ----------
        nbytes : int
            Size of the vector.
        """
        return self.degree > self.share_threshold and self.backup_bytes <= nbytes

    @property
    def backup_bytes(self) -> int:
        """Bytes of all backups that a party makes."""
        return self.degree * (self.degree * SHARE_BYTES + TAG_BYTES)

    @cached_property
    def _points(self) -> dict[int, int]:
        return {member: position for position, member in enumerate(self.members, start=1)}

    def point(self, member: int) -> int:
        """Return the point at which a member holds shares."""
        return self._points[member]

    def holders(self, member: int) -> tuple[int, ...]:
        """Return who holds shares of a member's seeds: its neighbours and itself."""
        return (member, *self.neighbours[member])

    def pack(self, parties: Iterable[int]) -> bytes:
        """Return a set of members as a bit set."""
        flags = np.zeros(len(self.members), bool)
        flags[[self._points[party] - 1 for party in parties]] = True
        return np.packbits(flags, bitorder="little").tobytes()

    def unpack(self, bits: bytes) -> frozenset[int]:
        """Return the members of a bit set.

        Raises
        ------
        SumError
        """
        flags = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
        n = len(self.members)
        if len(bits) != -(-n // 8) or flags[n:].any():
            raise SumError(f"a set of parties is not one of {n} members", code="FK-SUM-SET")
        return frozenset(np.asarray(self.members)[flags[:n].astype(bool)].tolist())


@dataclass(frozen=True)
class Membership:
    """The roster of a run, checked.

    Attributes
    ----------
    session : str
    keys, signatures : dict
        Partition -> public key of the run, signature of its identity (zeros for none).
    counts : dict
        Partition -> what it declared of its table.
    cohorts : tuple of Cohort
    cipher : str
    digest : bytes
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
        """Whether every party has signed its key: then all can vote."""
        return all(map(any, self.signatures.values()))

    @classmethod
    def read(cls, roster: Roster, session: str) -> Membership:
        """Build from the message.

        Raises
        ------
        SumError
            Sizes do not fit, a party comes twice, a cohort is too small or has strangers.
        """
        if len(roster.partitions) % 4:
            raise SumError("the roster is damaged", code="FK-SUM-ROSTER")
        ids = np.frombuffer(roster.partitions, "<i4").tolist()
        keys = cut(roster.keys, KEY_BYTES)
        signatures = cut(roster.signatures, SIGNATURE_BYTES)
        listed = _read_cohorts(roster.cohorts)
        if not len(ids) == len(keys) == len(signatures) or ids != sorted(set(ids)):
            raise SumError("the roster is damaged", code="FK-SUM-ROSTER")
        if len(roster.counts) != _COUNTS.itemsize * 3 * len(ids):
            raise SumError("the roster is damaged", code="FK-SUM-ROSTER")
        counts = np.frombuffer(roster.counts, _COUNTS).reshape(-1, 3).tolist()
        if any(min(declared) < 0 for declared in counts):
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

    ``thresholds`` (None for the default) and ``first``, the number of the first sum, are those of
    each cohort; ``counts`` are what each party declares of its table, zeros of one not named.

    Raises
    ------
    SumError
        A key or signature is none.
    """
    ids = sorted(keys)
    for partition in ids:
        public, signature = keys[partition]
        if not is_public_key(public) or len(signature) not in (0, SIGNATURE_BYTES):
            raise SumError(
                "its public key or signature is not valid",
                remedy="run the same release of fedkern-flwr on both sides",
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
        Fewer than ``min_cohort`` parties.
    OptionError
        A minimum of one party, or a threshold that cannot work.
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
            remedy="let more parties take part, or run without secure sums",
            code="FK-PARTIES-FEW",
        )
    if threshold is not None:
        check_threshold(parties, threshold)


def check_threshold(parties: int, threshold: int) -> None:
    """Refuse thresholds that protect nobody or that nobody can reach.

    With at most half the parties, two disjoint sets of survivors could both be opened.

    Raises
    ------
    OptionError
    """
    if not parties // 2 < threshold <= parties:
        raise OptionError(
            f"threshold is {threshold} for {parties} parties",
            remedy=f"use {parties // 2 + 1} to {parties}",
            code="FK-SUM-THRESHOLD",
        )


# -- which noise a party adds to a sum: the same to the same release, and to no other
#
# A sum that is repeated, because a party or a message was lost, must have the noise that it had:
# else whoever sees both has the mean of two noises. And noise that has been added to one release
# must never be added to another: their difference would have none.
#
# So the key of the noise is a keyed digest of the question and of the very numbers that answer it,
# under a secret of the run that was drawn from the operating system and is kept until the run is
# over. The same answer to the same question has the same noise, byte for byte. Another question has
# noise of its own and is another release, which is charged, also if the numbers are the same: else
# a server would learn without noise whether they are. And so are other numbers, which would be told
# by the difference of two sums with one noise. What the question was, a method says by
# :func:`asked`.


def asked(*public: str | bytes | NDArray[Any]) -> str:
    """Return a short name of a question: of all that is public on which its answer depends."""
    found = hashlib.blake2b(digest_size=16)
    for part in public:
        encoded: Any = part.encode() if isinstance(part, str) else part
        found.update(f"{memoryview(encoded).nbytes}/".encode())
        found.update(encoded)
    return found.hexdigest()


def noise_key(
    secret: bytes, order: Order, cohort: Cohort, release: str, numbers: RingArray
) -> bytes:
    """Return the key of the noise of a party.

    Parameters
    ----------
    secret : bytes
        Of the run and the party.
    order : Order
        Of the sum; what follows a # in its name, its number and its masks are those of an attempt.
    cohort : Cohort
        The parties among whom the sum is made: the difference of two sums with one noise over
        others is that of the parties in which they differ. Its number is the server's to choose.
    release : str
        The question: :func:`asked`.
    numbers : ndarray of unsigned integers
        What the noise is added to, before it is masked.
    """
    name = order.name.partition("#")[0]
    among = [*cohort.members, cohort.threshold, order.receiver]
    terms = [among, name, release, order.length, order.bits, order.noise, order.fraction]
    found = hashlib.blake2b(json.dumps(terms).encode(), key=secret, digest_size=KEY_BYTES)
    found.update(b"/" + numbers.tobytes())
    return found.digest()


def digest_of(values: NDArray[Any]) -> bytes:
    """Return a digest of values; of one zero, as often as a sum is long, an empty one."""
    if values.strides == (0,):
        return b""
    return hashlib.sha256(np.ascontiguousarray(values).data).digest()


def value_mark(order: Order, told: bytes) -> str:
    """Return the mark of what a party adds to a sum, however it is encoded; of nothing, none.

    ``told`` is the digest of the values.
    """
    if not told:
        return ""
    terms = [order.name.partition("#")[0], order.length, order.receiver]
    found = hashlib.blake2b(json.dumps(terms).encode(), digest_size=8)
    found.update(told)
    return found.hexdigest()
