"""Provide keys, secret shares, seeds of masks and sealed messages for secure sums.

X25519, AES, ChaCha20, HKDF and Ed25519 are those of the package ``cryptography``. Shamir's shares
are over a prime field.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from ..errors import ProtocolError, SumError

# -- Shamir's secret sharing of 32-byte seeds over a prime field
#
# A seed s is a field element; its share at x is f(x) for a random polynomial f of degree t - 1 with
# f(0) = s. Any t shares give s, fewer say nothing about it. Shares take 33 bytes.
#
# Shamir, "How to share a secret", Communications of the ACM 22(11), 1979.

#: The least prime above 2^256: every 32-byte seed is a field element.
PRIME = 2**256 + 297
SEED_BYTES, SHARE_BYTES = 32, 33
_RANDOM_BYTES = 48  # reduced modulo the prime: within 2^-127 of uniform


def share_seeds(seeds: Sequence[bytes], points: Sequence[int], threshold: int) -> list[bytes]:
    """Share several 32-byte seeds at once; return, for each point, the joined 33-byte shares.

    ``points`` are distinct and positive, one per holder; ``threshold`` shares reconstruct a seed.
    """
    # All polynomials are evaluated together by Horner's rule. A long integer has one slot per seed,
    # wide enough not to overflow before the single reduction modulo the prime.
    count = len(seeds)
    growth = threshold * max(points).bit_length()
    slot = _RANDOM_BYTES + growth // 8 + 2
    coefficients = np.zeros((threshold, count, slot), np.uint8)
    noise = secrets.token_bytes((threshold - 1) * count * _RANDOM_BYTES)
    coefficients[:-1, :, :_RANDOM_BYTES] = np.frombuffer(noise, np.uint8).reshape(
        threshold - 1, count, _RANDOM_BYTES
    )
    coefficients[-1, :, :SEED_BYTES] = np.frombuffer(b"".join(seeds), np.uint8).reshape(count, -1)
    packed = [int.from_bytes(row.tobytes(), "little") for row in coefficients]
    out = []
    for x in points:
        value = 0
        for coefficient in packed:
            value = value * x + coefficient
        raw = value.to_bytes(count * slot, "little")
        slots = (raw[k : k + slot] for k in range(0, count * slot, slot))
        out.append(
            b"".join(
                (int.from_bytes(s, "little") % PRIME).to_bytes(SHARE_BYTES, "little") for s in slots
            )
        )
    return out


def reconstruct_seed(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the seed from exactly t shares by point; None if they do not belong together."""
    points = tuple(sorted(shares))
    total = sum(
        weight * int.from_bytes(shares[x], "little")
        for weight, x in zip(_weights_at_zero(points), points, strict=True)
    )
    seed = total % PRIME
    return seed.to_bytes(SEED_BYTES, "little") if seed < 2**256 else None


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[k : k + size] for k in range(0, len(data), size)]


@lru_cache(maxsize=1024)
def _weights_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    weights = []
    for x in points:
        above = below = 1
        for other in points:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)


# -- commitments to seeds, and seeds opened from shares that may be forged

COMMITMENT_BYTES = 16


def commitment(label: bytes, seed: bytes) -> bytes:
    """Return a digest of a 32-byte seed, bound to its sum."""
    return hashlib.sha256(b"seed of " + label + b"|" + seed).digest()[:COMMITMENT_BYTES]


def open_seed(
    shares: Mapping[int, bytes], threshold: int, label: bytes, committed: bytes
) -> tuple[bytes, int | None]:
    """Reconstruct a seed and check it against its owner's commitment.

    Returns the seed, and the point of a forged share that was ignored. ``shares`` maps points to at
    least ``threshold`` shares.

    Raises
    ------
    SumError
        The shares do not give the seed, even without any one of them.
    """
    points = sorted(shares)
    attempts: list[int | None] = [None]
    if len(points) > threshold:
        attempts += points[:threshold]  # only these were used, so the forged one is among them
    for left_out in attempts:
        used = [x for x in points if x != left_out][:threshold]
        seed = reconstruct_seed({x: shares[x] for x in used})
        if seed is not None and hmac.compare_digest(commitment(label, seed), committed):
            return seed, left_out
    raise SumError("shares do not fit the seed that its owner committed to", code="FK-SUM-SEED")


# -- what one client sends to another through the server: AES-256-GCM, bound to its place

TAG_BYTES = 16
SEALED_SHARE = SHARE_BYTES + TAG_BYTES
#: What a sealed message may be: each kind is sent once per sum and direction of a pair.
SHARE, BACKUP = 1, 2


class Route(NamedTuple):
    label: bytes
    kind: int
    source: int
    destination: int

    @property
    def nonce(self) -> bytes:
        """Kind and source: unique under a key, which belongs to one pair and one sum."""
        return self.kind.to_bytes(4, "big") + self.source.to_bytes(8, "big")

    @property
    def place(self) -> bytes:
        return self.label + b"|%d|%d|%d" % self[1:]


def seal(key: bytes, plain: bytes, route: Route) -> bytes:
    """Encrypt and authenticate; adds 16 bytes."""
    return AESGCM(key).encrypt(route.nonce, plain, route.place)


def unseal(key: bytes, sealed: bytes, route: Route) -> bytes:
    """Decrypt a message of :func:`seal`; SumError if it or its place was changed."""
    try:
        return AESGCM(key).decrypt(route.nonce, sealed, route.place)
    except (InvalidTag, ValueError):
        raise SumError(
            f"what partition {route.source} sent through the server was changed or misplaced",
            code="FK-SUM-CHANGED",
        ) from None


# -- the key schedule: X25519 between two parties, then one step of a ratchet per sum
#
# ::
#
#     root_0   = HKDF(X25519(own private key, other public key), salt = roster digest, info = pair)
#     root_r+1 = HKDF-Expand(root_r, "next")
#     mask key || relay key of sum r = HKDF-Expand(root_r, label of the sum || pair)
#     mask key, with something in common = HMAC(mask key, "common" || digest of it)
#     secret of a pair, for a method = HKDF(X25519(...), roster digest, info = "secret" || pair)
#
# Both parties advance one root per sum of their cohort and erase the old one, so that nothing a
# party still holds after a sum is closed leads back to its masks.

KEY_BYTES = 32
_CONTEXT = b"fedkern-flwr secure sum 1 "


def generate_key() -> tuple[bytes, bytes]:
    """Return a new (private, public) X25519 key pair, 32 raw bytes each."""
    key = X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def read_key(private: bytes) -> tuple[X25519PrivateKey, bytes]:
    key = X25519PrivateKey.from_private_bytes(private)
    return key, key.public_key().public_bytes_raw()


def is_public_key(public: bytes) -> bool:
    """Return whether 32 bytes are a usable X25519 public key."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def sum_label(session: str, cohort: int, index: int, name: str) -> bytes:
    """Return the label of a sum: unique within a run, as ``index`` only increases."""
    return json.dumps([session, cohort, index, name]).encode()


def pair_label(one: int, other: int) -> bytes:
    return f" {min(one, other)}-{max(one, other)}".encode()


def pair_root(
    private: X25519PrivateKey, public: bytes, *, digest: bytes, cohort: int, pair: bytes
) -> bytes:
    """Return root_0 of two parties in a cohort; ValueError for an invalid public key."""
    return _agree(private, public, digest, b"root %d" % cohort + pair)


def pair_secret(private: X25519PrivateKey, public: bytes, *, digest: bytes, pair: bytes) -> bytes:
    """Return a secret of two parties for a method, independent of all masks."""
    return _agree(private, public, digest, b"secret" + pair)


def _agree(private: X25519PrivateKey, public: bytes, digest: bytes, purpose: bytes) -> bytes:
    shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(hashes.SHA256(), KEY_BYTES, digest, _CONTEXT + purpose).derive(shared)


def next_root(root: bytes) -> bytes:
    """Return the root of the next sum: HKDF-Expand, one block of which is an HMAC."""
    return hmac.digest(root, _CONTEXT + b"next\x01", "sha256")


def sum_keys(root: bytes, label: bytes, pair: bytes) -> tuple[bytes, bytes]:
    """Return (mask key, relay key) of two parties for one sum."""
    info = _CONTEXT + b"keys " + label + pair
    both = HKDFExpand(hashes.SHA256(), 2 * KEY_BYTES, info).derive(root)
    return both[:KEY_BYTES], both[KEY_BYTES:]


def common_key(key: bytes, common: bytes) -> bytes:
    """Return a mask key that also depends on what the parties must agree on without the server."""
    return hmac.digest(key, _CONTEXT + b"common " + common, "sha256")


# -- sealed messages of a method from one client to another, relayed by the server
#
# Two clients hold a secret of their pair (:func:`pair_secret`). Every message has a key of
# its own, derived from that secret and the message's place, and a random nonce, so that a message
# that is sent again, with other content, is safe.

_NONCE_BYTES = 12
SEALING_BYTES = _NONCE_BYTES + 16  # what sealing adds
_ENVELOPE = b"fedkern-flwr envelope 1 "

Place = tuple[str | int, ...]


def derive_key(secret: bytes, *place: str | int) -> bytes:
    """Return 32 bytes that belong to ``place``, from a secret of a pair or of several parties."""
    info = _ENVELOPE + json.dumps(place).encode()
    return HKDFExpand(hashes.SHA256(), KEY_BYTES, info).derive(secret)


def seal_message(secret: bytes, plain: bytes, *place: str | int) -> bytes:
    """Encrypt and authenticate; adds 28 bytes.

    ``place`` is what the receiver expects: session, phase, number, sender and receiver.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(derive_key(secret, *place)).encrypt(nonce, plain, None)


def unseal_message(secret: bytes, sealed: bytes, *place: str | int) -> bytes:
    """Decrypt a message of :func:`seal_message`; ProtocolError if it or its place was changed."""
    nonce, text = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        return AESGCM(derive_key(secret, *place)).decrypt(nonce, text, None)
    except (InvalidTag, ValueError):
        raise ProtocolError(
            "what another party sent through the server was changed or misplaced",
            code="FK-SUM-CHANGED",
        ) from None
