"""Secure sums: the server learns the exact sum of the parties' vectors, or nothing.

This page is the protocol; each module holds one idea of it. What it protects against, and what it
does not, is argued for users in ``docs/security.md``.

**Parties.** N clients, a server that relays every message, follows the protocol, keeps all it
sees, and may collude with clients. Clients may vanish at any moment, be late, or send rubbish.
Where all clients have pinned identities (:mod:`.identity`), the server may also lie about who
survived.

**Promise.** A sum is either exactly that of the vectors of one declared set of at least t
clients, or it is aborted and nothing is released. A server that follows the protocol and t - 1
colluding clients learn the sum and what the colluders know, nothing else (complete graph; for the
sparse one see :mod:`.membership`). A server that lies, where identities are pinned: the same, with
fewer colluders than :func:`.membership.fewest_colluders`, 2 t - N on the complete graph
(:mod:`.membership`).
Without pinned identities a server that lies needs two of 10 clients, and nobody's help above 30.

**Set-up**, one exchange per run, fused with ``describe``:

1. Each client makes an X25519 key pair and sends the public key, signed with its identity key if
   it has one (:mod:`.identity`).
2. The server sends the roster of all keys and the cohorts, with the first request of each client
   (:mod:`.membership`). With every neighbour of its mask graph a client derives a root by X25519
   and HKDF, salted with the roster's digest, then erases its private key.

**A sum**, two exchanges. Number r of a sum grows within a cohort and never comes twice.

====  ==================  ==========================================================================
step  message (section)   content
====  ==================  ==========================================================================
1     Order, down         name, length, encoding with public bound, receiver
2     Upload, up          y_i = x_i + PRG(b_i) + sum_j +-PRG(s_ij) (+ PRG(pad) at the receiver),
                          x_i encoded in Z modulo 2^16, 2^32 or 2^64 (:mod:`.encoding`); a share of
                          b_i for every neighbour, sealed (:mod:`.crypto`); digests
                          of b_i and of all s_ij; where backups are on, also shares of the s_ij
2a    Ballot, down        only where identities are pinned, and somebody is missing or the graph is
                          sparse: the survivors
2b    Vote, up            their set, signed (:mod:`.membership`)
3     Unmask, down        the survivors: the clients whose y is in; to each, the sealed shares that
                          its surviving neighbours made for it; t votes where there was a ballot
4     UnmaskReply, up     for survivors i: its share of b_i. For the others d: its seed s_id
5     Recover, down       only if survivors i fell silent: Unmask again to them, and to the others,
                          if i shared s_id with a dropped d, the sealed shares of the s_ij
6     RecoverReply, up    shares of those s_id
7     Delivery, down      only for a sum with a receiver: the total, still under the receiver's pad
====  ==================  ==========================================================================

s_ij is the seed of the pair for this sum, from a ratchet of their root (:mod:`.crypto`); its stream
is added by the party with the smaller id and subtracted by the other, so that pairs of survivors
cancel. b_i is fresh from the operating system. PRG is AES-256-CTR or ChaCha20 (:mod:`.encoding`).
The server adds uploads as they arrive (:mod:`.running_sum`), rebuilds each survivor's b_i from t
shares, checks it against the digest, and subtracts what is left. Steps 1 and 2 ride on the
method's messages, steps 3 and 4 may ride on its next ones; see :class:`SecureSum` (server) and
:class:`Party` (client).

**Why it is private.**

* For each client either b_i or its s_ij are revealed, never both: a client answers for one set of
  survivors per sum (:meth:`Party.unmask`) and refuses any other. So a vector that is late, after
  its sender was declared dropped, stays under PRG(b_i), whose shares are then never revealed.
* That all clients answer for the *same* set is the server's word, or, with pinned identities,
  proved to each of them by votes. A server that lies gets shares of b_i from those whom it tells
  that i survived, and seeds s_ij from the others and from backups.
* After the first Unmask the survivors are final. Repeating a sum without one of them, with the
  same values or fresh ones, would give the difference of two sums to whoever later obtains the
  missing answer; follow-up requests are answered for the same set only.
* The X25519 keys are never shared. Roots are replaced with every sum, and seeds, shares and keys
  of a sum are erased when the next order or the end of the run closes it (:mod:`.party`).
* Relayed shares are sealed end to end, bound to run, cohort, sum, kind, source and destination.

**Sums of the whole cohort.** With ``self_masks=False`` no unmasking exchange is needed: the masks
cancel if *every* party of the cohort takes part, else the sum cannot be opened. Digests of the s_ij
travel all the same, so that a party that was shown another roster is noticed. No seed of such a
sum is ever revealed, so a late vector stays hidden. It is safe only while the set of parties stays
the same: were the sum repeated without one of them, its late vector and the two totals would give
that vector by subtraction (to the server, or to the receiver with the server, who knows both pads).
So clients repeat a sum without self masks, under its name, only with the same cohort, receiver and
masks, and a new number; a method must not sum the same values under two names.

**Sums with a receiver.** The receiver adds a pad only it knows; the server sums and forwards, and
learns nothing at all. With exactly one other party the receiver learns its values: refused unless
allowed.

**Losses.** A client that never uploaded costs nothing: each survivor reveals its own seed with it.
A survivor that falls silent before step 4 is replaced by the shares of the others, and asked again
up to three times; if it also shared a seed with a dropped client, steps 5 and 6 rebuild that seed
where backups are on, else the sum is aborted. Both sides compute whether they are: where they cost
no more than the vector (:meth:`.Cohort.backs_up`). A party that allows no recovery shares none and
helps nobody. Fewer than
t uploads, or too few answers: aborted. Digests of a pair's seed that differ abort the sum as well,
as its masks would not cancel; the party that is at odds with most others is named. A forged share
is found by the digest and left out where there are more than s.

References
----------
Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal and Seth, "Practical Secure
Aggregation for Privacy-Preserving Machine Learning", ACM CCS 2017 (double masking, recovery).

Bell, Bonawitz, Gascon, Lepoint and Raykova, "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead", ACM CCS 2020 (sparse graphs).
"""

from __future__ import annotations

from .encoding import CIPHERS, Encoding, add_streams
from .membership import check_cohort
from .party import Party, PartyState
from .running_sum import RunningSum
from .server import SecureSum

__all__ = [
    "CIPHERS",
    "Encoding",
    "Party",
    "PartyState",
    "RunningSum",
    "SecureSum",
    "add_streams",
    "check_cohort",
]
