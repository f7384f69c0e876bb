"""What a party remembers between two messages; lives with the client, never sent.

In a deployment every message may meet a new process, so the state must survive as bytes. A closed
sum leaves nothing behind: its seeds, shares and keys are erased, and the roots that remain lead
forward only.
"""

from __future__ import annotations

import json
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from ..wire.sums import Order
from .identity import Counts
from .keys import KEY_BYTES, sum_label
from .membership import Cohort
from .shamir import cut


def order_terms(order: Order) -> str:
    """Return what all parties of a sum must have been told alike, for its label.

    Masks of parties that were told different things do not cancel. Else a server that gives one
    party a small bound and the others a large one would read the first in the leading digits of
    the total, and one that tells the others of a shorter vector would read the rest of it.
    """
    terms = [order.name, order.length, order.kind, order.bits, float(order.bound)]
    return json.dumps([*terms, order.receiver, order.self_masks, order.noise, order.fraction])


_BYTES = ("own_share", "pad", "alive", "delivered")


@dataclass(repr=False)  # its text would show secrets
class OpenSum:
    """A sum to which this party has contributed and that is not closed."""

    order: Order
    keys: dict[int, tuple[bytes, bytes]]
    own_share: bytes = b""
    pad: bytes = b""
    alive: bytes = b""  # the only survivors that it votes or answers for
    answered: bool = False
    delivered: bytes = b""  # digest of the total that was opened, if any was
    mark: str = ""  # of the values that were added, unless they are nothing

    def label(self, session: str) -> bytes:
        """Return the label of the sum."""
        return sum_label(session, self.order.cohort, self.order.index, order_terms(self.order))


@dataclass(repr=False)  # its text would show secrets
class PartyState:
    """A party's memory of a run.

    Attributes
    ----------
    session : str
    private : bytes
        X25519 key of the run, erased as soon as the roster has come.
    digest : bytes
        Digest of the roster, empty before.
    cipher : str
    cohorts : dict
        Number -> cohort, those of which this party is a member.
    roots : dict
        Cohort -> neighbour -> root of the next sum.
    last : dict
        Cohort -> number of the last sum.
    fixed : dict
        Name -> digest of how the first sum of that name was ordered: cohort, receiver, encoding.
    open : dict
        (cohort, number) -> open sum.
    secrets : dict
        Neighbour -> secret of the pair for the method's own use, if the method has any.
    counts : dict
        Partition -> what it declared of its table, as in the roster.
    shown : dict
        Mark of values -> digest of the parties over whose sum they were opened.
    noise_key : bytes
        What the noise of the run is drawn with; empty in a run without noise.
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
        """Become a member of a cohort."""
        self.cohorts[cohort.number], self.roots[cohort.number] = cohort, roots
        self.last[cohort.number] = cohort.first - 1

    def close(self, cohort: int, open_from: int) -> None:
        """Erase what belongs to the sums of a cohort before ``open_from``."""
        for key in [k for k in self.open if k[0] == cohort and k[1] < open_from]:
            del self.open[key]

    def keep_delivered(self, later: PartyState) -> None:
        """Take over which totals were opened, from a later state that is to be forgotten."""
        for place, opened in later.open.items():
            if place in self.open:
                self.open[place].delivered = self.open[place].delivered or opened.delivered

    def twin(self) -> PartyState:
        """Return a copy, which can be changed without this one."""
        twin = copy(self)
        for name in ("cohorts", "last", "fixed", "shown", "secrets", "counts"):
            setattr(twin, name, getattr(self, name).copy())
        twin.roots = {number: roots.copy() for number, roots in self.roots.items()}
        twin.open = {place: copy(opened) for place, opened in self.open.items()}
        return twin

    def pack(self) -> bytes:
        """Return the state as bytes."""
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
        """Rebuild a state from :meth:`pack`."""
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
