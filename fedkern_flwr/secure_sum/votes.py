"""Votes: all parties that answer for a sum answer for the same survivors, or nobody does.

A server that tells different parties different survivors collects what belongs to neither story:
shares of b_i from those for whom i lives, the seeds s_ij from those for whom i is dead. In runs
with pinned identities a party casts one vote per sum, its signature of ::

    session, digest of the roster, cohort, number of the sum, set of survivors

and never signs or answers for another set. It answers an :class:`.Unmask` only with a certificate:
t valid votes of survivors, t being the cohort's threshold (:func:`votes_needed`). One case needs
none: on the complete graph an answer for the *full* set is itself a vote that binds its sender.
``Recover`` is answered only for the set for which the party has answered an ``Unmask``.

**What it withstands.** N parties, of whom t must survive, k neighbours each, s shares open a seed
(s = t on the complete graph), c parties that collude with the server, whichever it likes. No
vector is opened, and a sum that is opened holds the vectors of at least s - c honest parties, if ::

    c < min(2 t - N, s - 1)            (graph.fewest_colluders)

*One set.* A certificate has the votes of at least t - c honest parties. Two sets with certificates
would need 2 (t - c) votes of the N - c honest parties, each of which votes once: not if
c < 2 t - N. Above 30 parties all answers thus belong to one certified set A.

*The full set without a certificate.* On the complete graph some honest parties may answer for the
full set F beside those that voted for A: at most N - c - (t - c) = N - t. No dead party is in F, so
such answers reveal shares of self seeds only. For a party i that is not in A the server then has
N - t + c shares of b_i at most, fewer than t. For i in A neither story calls i dead.

*Within A.* For i not in A, b_i stays closed: for the sparse graph only colluders' shares of it are
known, c < s. For i in A, b_i is opened, and so is s_ij where j is dead or colluding. But a party
refuses sets that leave it fewer than s - 1 living neighbours (:meth:`.Party.unmask`); of these at
least s - 1 - c are honest, and s_ij of two honest survivors is never revealed. So i's vector is
seen only in a sum with all honest survivors that are linked to it: 1 + s - 1 - c at least.

**At the bound** vectors are opened. Complete graph, backups on, c = 2 t - N: i and N - t - 1 others
answer for F; the other N - t honest parties vote with the colluders for the set without i, and
reveal their seeds with it. Of b_i, N - t + c = t shares are known; the seeds that i has in common
with those who answered for F come from *their* backups, of which the N - t parties and the
colluders hold t shares. Without backups it takes more colluders, unless N - t = 1, where nobody but
i answers for F. Sparse graph, c = s - 1, all of them neighbours of i: the server calls the other
k - s + 1 neighbours dead, in one story for all. For a *random* set of colluders what counts is
2 t - N in all and s - 1 in each neighbourhood; the odds are in ``docs/security.md``.

Without pinned identities there are no votes. All this then holds for a server that tells everybody
the same survivors, not for one that lies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ..errors import SumError
from .crypto import cut
from .identity import SIGNATURE_BYTES
from .membership import Cohort


class Subject(NamedTuple):
    """What a vote is about.

    Attributes
    ----------
    session : str
    cohort : Cohort
    number : int
        Number of the sum.
    alive : bytes
        Bit set of the survivors.
    """

    session: str
    cohort: Cohort
    number: int
    alive: bytes

    @property
    def statement(self) -> bytes:
        """What is signed."""
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
    """Return how many votes a party must see before it answers; 0 where none are needed."""
    complete = cohort.degree == len(cohort.members) - 1
    return 0 if complete and survivors == len(cohort.members) else cohort.threshold


def sign_vote(identity: Ed25519PrivateKey, subject: Subject) -> bytes:
    """Return a party's vote."""
    return identity.sign(subject.statement)


def check_votes(pinned: Mapping[int, bytes], subject: Subject, voters: bytes, votes: bytes) -> None:
    """Refuse survivors for which too few parties have voted.

    Parameters
    ----------
    pinned : dict
        Partition -> raw Ed25519 public key.
    subject : Subject
        What the votes must be about.
    voters, votes : bytes
        The certificate, see :class:`.Unmask`.

    Raises
    ------
    SumError
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
        f"{valid} votes for these survivors, {needed} are needed{others}",
        remedy="have all parties use the same trusted keys; else find out who tells them different "
        "survivors",
        code="FK-SUM-VOTES",
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
