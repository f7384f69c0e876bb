"""Pin identities: Ed25519 signatures of the keys of a run, so that the server cannot swap them.

A party signs its key of the run with its long-term identity key. The others compare it with a file
of trusted keys, which the organisations exchanged directly. Keys are those of ``ssh-keygen -t
ed25519``. The file has a line per party, partition id and public key::

    0 ssh-ed25519 AAAAC3... hospital-a
    1 ssh-ed25519 AAAAC3... hospital-b
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ..checkpoint import create_file
from ..errors import OptionError, SumError

SIGNATURE_BYTES = 64


class Counts(NamedTuple):
    """What a party declares about its table, signed if it has an identity.

    Attributes
    ----------
    rows, held_out : int
        Training rows, and held-out rows.
    bits : int
        Bits of a row: 64 per column and label, 1 per two-valued column.
    """

    rows: int = 0
    held_out: int = 0
    bits: int = 0


def read_identity(path: Path) -> Ed25519PrivateKey:
    """Read a private identity key (OpenSSH or PEM, without a passphrase)."""
    try:
        data = path.read_bytes()
        openssh = b"OPENSSH PRIVATE KEY" in data
        load = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
        key = load(data, None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise OptionError(
            f"{path.name} is not an Ed25519 private key without a passphrase",
            code="FK-IDENTITY-KEY",
        )
    return key


def read_trusted(path: Path) -> dict[int, bytes]:
    """Read the file of trusted keys: partition -> raw public key."""
    trusted: dict[int, bytes] = {}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        raise OptionError(f"{path.name} cannot be read", code="FK-FILE-READ") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        partition, _, text = line.strip().partition(" ")
        try:
            key = serialization.load_ssh_public_key(text.encode())
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not partition.isdecimal() or not isinstance(key, Ed25519PublicKey):
            raise OptionError(
                f"line {number} of {path.name} is not 'PARTITION ssh-ed25519 KEY'",
                code="FK-IDENTITY-TRUSTED",
            )
        if int(partition) in trusted:
            raise OptionError(
                f"{path.name} names partition {partition} twice", code="FK-IDENTITY-TWICE"
            )
        trusted[int(partition)] = key.public_bytes_raw()
    return trusted


def make_identity(path: Path) -> bytes:
    """Create a private identity key, readable by this user only; return the raw public key.

    Raises
    ------
    FileExistsError
        The file exists.
    """
    key = Ed25519PrivateKey.generate()
    form, plain = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    with create_file(path) as file:
        file.write(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return key.public_key().public_bytes_raw()


def trusted_line(partition: int, public: bytes) -> str:
    key = Ed25519PublicKey.from_public_bytes(public)
    form = serialization.PublicFormat.OpenSSH
    return f"{partition} {key.public_bytes(serialization.Encoding.OpenSSH, form).decode()}"


def fingerprint(public: bytes) -> str:
    """Return the fingerprint of a public key, as ``ssh-keygen -l`` shows it, to be read aloud."""
    blob = trusted_line(0, public).split()[2]
    digest = hashlib.sha256(base64.b64decode(blob)).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def sign_key(
    identity: Ed25519PrivateKey, session: str, partition: int, public: bytes, counts: Counts
) -> bytes:
    """Sign a party's key of the run and its declared row counts."""
    return identity.sign(_statement(session, partition, public, counts))


def check_key(
    trusted: dict[int, bytes],
    session: str,
    partition: int,
    public: bytes,
    signature: bytes,
    counts: Counts,
) -> None:
    """Refuse a key of the run, or row counts, that the pinned identity has not signed."""
    party = f"partition {partition}"
    if partition not in trusted:
        raise SumError("its identity key is not pinned", party=party, code="FK-IDENTITY-UNPINNED")
    try:
        pinned = Ed25519PublicKey.from_public_bytes(trusted[partition])
        pinned.verify(signature, _statement(session, partition, public, counts))
    except InvalidSignature:
        raise SumError(
            "its key of this run is not signed by its pinned identity"
            if signature
            else "its key of this run is not signed, its identity is pinned",
            party=party,
            code="FK-IDENTITY-UNSIGNED",
        ) from None


def _statement(session: str, partition: int, public: bytes, counts: Counts) -> bytes:
    text = ["fedkern-flwr key of a run", session, partition, public.hex(), *counts]
    return json.dumps(text).encode()
