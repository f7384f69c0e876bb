"""What one client sends to another through the server: AES-256-GCM, bound to its place."""

from __future__ import annotations

from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ..errors import SumError
from .shamir import SHARE_BYTES

TAG_BYTES = 16
SEALED_SHARE = SHARE_BYTES + TAG_BYTES
#: What a sealed message may be: each kind is sent once per sum and direction of a pair.
SHARE, BACKUP = 1, 2


class Route(NamedTuple):
    """Where a sealed message belongs: label of its sum, kind, from whom to whom."""

    label: bytes
    kind: int
    source: int
    destination: int

    @property
    def nonce(self) -> bytes:
        """Kind and source: none comes twice under a key, which is one pair's and one sum's."""
        return self.kind.to_bytes(4, "big") + self.source.to_bytes(8, "big")

    @property
    def place(self) -> bytes:
        """What is authenticated with the message."""
        return self.label + b"|%d|%d|%d" % self[1:]


def seal(key: bytes, plain: bytes, route: Route) -> bytes:
    """Encrypt and authenticate; adds 16 bytes."""
    return AESGCM(key).encrypt(route.nonce, plain, route.place)


def unseal(key: bytes, sealed: bytes, route: Route) -> bytes:
    """Decrypt what :func:`seal` made.

    Raises
    ------
    SumError
        One bit or anything about its place differs.
    """
    try:
        return AESGCM(key).decrypt(route.nonce, sealed, route.place)
    except (InvalidTag, ValueError):
        raise SumError(
            f"what partition {route.source} sent through the server was changed or misplaced",
            code="FK-SUM-CHANGED",
        ) from None
