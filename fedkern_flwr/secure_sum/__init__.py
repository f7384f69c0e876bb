"""Secure sums: the server learns the exact sum of the parties' vectors, or nothing.

This page is the protocol; ``docs/security.md`` explains what it protects.

**Parties.** N clients and a server. The server relays every message, keeps all it sees, and may
collude with clients. Clients may drop out at any moment, be late, or send garbage.

**Promise.** Either a sum is exactly that of the vectors of one declared set of at least t clients,
or it is aborted and nothing is released. A server that follows the protocol and t - 1 colluding
clients learn only the sum (complete graph; for the sparse one see :mod:`.membership`). With pinned
identities (:mod:`.identity`) the server may also lie about who survived, with fewer colluders than
:func:`.membership.fewest_colluders` (2 t - N on the complete graph). Without them a server that
lies needs two colluders of 10 clients, and none above 30 clients.

**Set-up**, one exchange per run, together with ``describe``:

1. Each client makes an X25519 key pair and sends the public key, signed with its identity key if it
   has one.
2. The server sends the roster (all keys and the cohorts) with the first request to each client
   (:mod:`.membership`). A client derives a root with every neighbour of its mask graph, by X25519
   and HKDF, salted with the roster's digest. Then it erases its private key.

**A sum**, two exchanges. The number r of a sum increases within a cohort and is never used twice.

====  ==================  ==========================================================================
step  message (section)   content
====  ==================  ==========================================================================
1     Order, down         name, length, encoding with public bound, receiver
2     Upload, up          y_i = x_i + PRG(b_i) + sum_j +-PRG(s_ij) (+ PRG(pad) at the receiver),
                          x_i encoded in Z modulo 2^16, 2^32 or 2^64 (:mod:`.encoding`); a sealed
                          share of b_i for every neighbour (:mod:`.crypto`); digests of b_i and of
                          all s_ij; with backups, also shares of the s_ij
2a    Ballot, down        the survivors; only with pinned identities, if a client is missing or the
                          graph is sparse
2b    Vote, up            their set, signed (:mod:`.membership`)
3     Unmask, down        the survivors: the clients whose y is in; to each, the sealed shares that
                          its surviving neighbours made for it; after a ballot, t votes
4     UnmaskReply, up     for survivors i: its share of b_i. For dropped d: its seed s_id
5     Recover, down       only if survivors i dropped out: Unmask again to them; to the others, if
                          i shared s_id with a dropped d, the sealed shares of the s_ij
6     RecoverReply, up    shares of those s_id
7     Delivery, down      only for a sum with a receiver: the total, still under the receiver's pad
====  ==================  ==========================================================================

s_ij is the seed of the pair for this sum, from a ratchet of their root (:mod:`.crypto`). The party
with the smaller id adds its stream, the other subtracts it, so pairs of survivors cancel. b_i is
fresh from the operating system. PRG is AES-256-CTR or ChaCha20. The server adds uploads as they
arrive (:mod:`.running_sum`). It reconstructs each survivor's b_i from t shares, checks it against
the digest, and subtracts its stream. Steps 1 and 2 are part of the method's messages; steps 3 and 4
may be part of its next ones.

**Why it is private.**

* For each client either b_i or its s_ij are revealed, never both: a client answers for one set of
  survivors per sum. A vector that arrives after its sender was declared dropped stays under
  PRG(b_i), because the shares of b_i are then never revealed.
* Votes prove to each client that all answer for the *same* set. Without pinned identities a server
  that lies gets shares of b_i from some clients, and seeds s_ij from others and from backups.
* After the first Unmask the survivors are final. Repeating a sum without one of them would reveal
  the difference of two sums to anyone who later gets the missing answer.
* X25519 keys are never shared. Roots are replaced with every sum. Seeds, shares and keys of a sum
  are erased when the next order or the end of the run closes it (:mod:`.party`).
* Relayed shares are encrypted end to end, bound to run, cohort, sum, kind, source and destination.

**Sums of the whole cohort.** With ``self_masks=False`` no unmasking is needed: the masks cancel if
*every* party of the cohort takes part; otherwise the sum cannot be opened. A late vector stays
hidden, but a repetition without its sender would reveal it by subtraction. So clients repeat such a
sum, under its name, only with the same cohort, receiver and masks. A method must not sum the same
values under two names.

**Sums with a receiver.** The receiver adds a pad that only it knows. The server sums and forwards,
and learns nothing. With one other party the receiver would learn its values: refused unless
allowed.

**Dropouts.** A client that never uploaded costs nothing: each survivor reveals its seed with it. A
survivor that drops out before step 4 is replaced by the others' shares, and requested up to three
more times. If it also shared a seed with a dropped client, steps 5 and 6 reconstruct that seed from
backups (:meth:`.Cohort.backs_up`). The sum is aborted without backups, with fewer than t uploads,
with too few answers, or if digests of a pair's seed differ, as the masks would not cancel. A forged
share is found by the digest, and ignored if there are more than s shares.

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
