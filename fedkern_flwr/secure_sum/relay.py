"""What one client sends to another through the server: AES-256-GCM, bound to its place."""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ..errors import SumError
from .shamir import SHARE_BYTES

TAG_BYTES = 16
SEALED_SHARE = SHARE_BYTES + TAG_BYTES
#: What a sealed message may be: each kind is sent once per sum and direction of a pair.
SHARE, BACKUP = 1, 2


def seal(
    key: bytes, plain: bytes, *, label: bytes, kind: int, source: int, destination: int
) -> bytes:
    """Encrypt and authenticate; adds 16 bytes.

    The relay key belongs to one pair and one sum; the nonce holds kind and source, so that no
    nonce comes twice under a key. Associated data: label of the sum, kind, source, destination.
    """
    return AESGCM(key).encrypt(
        _nonce(kind, source), plain, _place(label, kind, source, destination)
    )


def unseal(
    key: bytes, sealed: bytes, *, label: bytes, kind: int, source: int, destination: int
) -> bytes:
    """Decrypt what :func:`seal` made.

    Raises
    ------
    SumError
        One bit or anything about its place differs.
    """
    try:
        return AESGCM(key).decrypt(
            _nonce(kind, source), sealed, _place(label, kind, source, destination)
        )
    except (InvalidTag, ValueError):
        raise SumError(
            f"what partition {source} sent through the server was changed or misplaced"
        ) from None


def _nonce(kind: int, source: int) -> bytes:
    return kind.to_bytes(4, "big") + source.to_bytes(8, "big")


def _place(label: bytes, kind: int, source: int, destination: int) -> bytes:
    return label + b"|%d|%d|%d" % (kind, source, destination)
