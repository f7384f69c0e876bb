"""Who takes part: the roster of keys, and the cohorts among which sums are taken.

Both sides build the same objects from the same message, and everything secret of a run is derived
with its digest: parties that were shown different rosters share no keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import OptionError, SmallCohortError, SumError
from ..plain_text import read_json
from ..wire.message import PROTOCOL_VERSION
from ..wire.sums import Roster
from . import graph
from .identity import SIGNATURE_BYTES, Counts
from .keys import KEY_BYTES, is_public_key
from .masks import CIPHERS
from .relay import TAG_BYTES
from .shamir import SHARE_BYTES, cut

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
        return graph.neighbourhoods(self.members, self.digest)

    @property
    def degree(self) -> int:
        """Number of parties that one masks with."""
        return len(self.neighbours[self.members[0]])

    @cached_property
    def share_threshold(self) -> int:
        """Shares needed to reconstruct a seed."""
        return graph.share_threshold(len(self.members), self.threshold)

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
        t = graph.default_threshold(len(members)) if threshold is None else threshold
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
