"""The key schedule: X25519 between two parties, then one step of a ratchet per sum.

::

    root_0     = HKDF(X25519(own private key, other public key), salt = roster digest, info = pair)
    root_r+1   = HKDF-Expand(root_r, "next")
    mask key || relay key of sum r = HKDF-Expand(root_r, label of the sum || pair)
    mask key, where the parties have something in common = HMAC(mask key, "common" || digest of it)
    secret of a pair for a method = HKDF(X25519(...), salt = roster digest, info = "secret" || pair)

Both parties advance one root per sum of their cohort and erase the old one, so that nothing a
party still holds after a sum is closed leads back to its masks.
"""

from __future__ import annotations

import hmac
import json

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

KEY_BYTES = 32
_CONTEXT = b"fedkern-flwr secure sum 1 "


def generate_key() -> tuple[bytes, bytes]:
    """Return a fresh (private, public) X25519 key pair as 32 raw bytes each."""
    key = X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def read_key(private: bytes) -> tuple[X25519PrivateKey, bytes]:
    """Return a private key of 32 raw bytes as an object, and its public key."""
    key = X25519PrivateKey.from_private_bytes(private)
    return key, key.public_key().public_bytes_raw()


def is_public_key(public: bytes) -> bool:
    """Tell whether 32 bytes are an X25519 key with which a secret can be agreed."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def sum_label(session: str, cohort: int, index: int, name: str) -> bytes:
    """Return the label of a sum: unique within a run, as ``index`` only grows."""
    return json.dumps([session, cohort, index, name]).encode()


def pair_label(one: int, other: int) -> bytes:
    """Return the label of an unordered pair of parties."""
    return f" {min(one, other)}-{max(one, other)}".encode()


def pair_root(
    private: X25519PrivateKey, public: bytes, *, digest: bytes, cohort: int, pair: bytes
) -> bytes:
    """Return root_0 of two parties in a cohort.

    Raises
    ------
    ValueError
        The public key is no proper X25519 key.
    """
    return _agree(private, public, digest, b"root %d" % cohort + pair)


def pair_secret(private: X25519PrivateKey, public: bytes, *, digest: bytes, pair: bytes) -> bytes:
    """Return a secret of two parties for a method's own use, independent of all masks.

    Raises
    ------
    ValueError
        The public key is no proper X25519 key.
    """
    return _agree(private, public, digest, b"secret" + pair)


def _agree(private: X25519PrivateKey, public: bytes, digest: bytes, purpose: bytes) -> bytes:
    shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(hashes.SHA256(), KEY_BYTES, digest, _CONTEXT + purpose).derive(shared)


def next_root(root: bytes) -> bytes:
    """Return the root of the next sum: HKDF-Expand, of which one block is a plain HMAC."""
    return hmac.digest(root, _CONTEXT + b"next\x01", "sha256")


def sum_keys(root: bytes, label: bytes, pair: bytes) -> tuple[bytes, bytes]:
    """Return (mask key, relay key) of two parties for one sum."""
    info = _CONTEXT + b"keys " + label + pair
    both = HKDFExpand(hashes.SHA256(), 2 * KEY_BYTES, info).derive(root)
    return both[:KEY_BYTES], both[KEY_BYTES:]


def common_key(key: bytes, common: bytes) -> bytes:
    """Return the mask key of two parties that must know the same besides the order of a sum."""
    return hmac.digest(key, _CONTEXT + b"common " + common, "sha256")
