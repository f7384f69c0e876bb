"""Sealed messages of a method from one client to another, relayed by the server.

Two clients hold a secret of their pair (:func:`.keys.pair_secret`). Every message has a key of its
own, derived from that secret and the message's place, and a random nonce, so that a message that
is sent again, with other content, is safe.
"""

from __future__ import annotations

import json
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from ..errors import ProtocolError
from .keys import KEY_BYTES

_NONCE_BYTES = 12
SEALING_BYTES = _NONCE_BYTES + 16  # what sealing adds
_CONTEXT = b"fedkern-flwr envelope 1 "

Place = tuple[str | int, ...]


def derive_key(secret: bytes, *place: str | int) -> bytes:
    """Return 32 bytes that belong to ``place``, from a secret of a pair or of several parties."""
    info = _CONTEXT + json.dumps(place).encode()
    return HKDFExpand(hashes.SHA256(), KEY_BYTES, info).derive(secret)


def seal_message(secret: bytes, plain: bytes, *place: str | int) -> bytes:
    """Encrypt and authenticate; adds 28 bytes.

    Parameters
    ----------
    secret : bytes
        The secret of sender and receiver.
    plain : bytes
        The content.
    *place : str or int
        Session, phase, number, sender and receiver: what the receiver expects.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(derive_key(secret, *place)).encrypt(nonce, plain, None)


def unseal_message(secret: bytes, sealed: bytes, *place: str | int) -> bytes:
    """Decrypt what :func:`seal_message` made.

    Raises
    ------
    ProtocolError
        One bit or anything about its place differs.
    """
    nonce, text = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        return AESGCM(derive_key(secret, *place)).decrypt(nonce, text, None)
    except (InvalidTag, ValueError):
        raise ProtocolError(
            "what another party sent through the server was changed or misplaced",
            code="FK-SUM-CHANGED",
        ) from None
