"""Pinned identities: keys of the run that nobody can swap on the way."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from sums_in_memory import refused

from fedkern_flwr.errors import OptionError
from fedkern_flwr.secure_sum import Party, PartyState, SecureSum
from fedkern_flwr.secure_sum.identity import check_key, read_identity, read_trusted, sign_key
from fedkern_flwr.secure_sum.keys import generate_key

IDENTITIES = [Ed25519PrivateKey.from_private_bytes(bytes([k]) * 32) for k in range(4)]
TRUSTED = {p: key.public_key().public_bytes_raw() for p, key in enumerate(IDENTITIES)}


def openssh_line(key: Any) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


# -- the private key


@pytest.mark.parametrize(
    ("encoding", "form"),
    [
        (Encoding.PEM, PrivateFormat.OpenSSH),
        (Encoding.PEM, PrivateFormat.PKCS8),
    ],
)
def test_openssh_and_pem_keys_are_read(tmp_path: Path, encoding: Any, form: Any) -> None:
    path = tmp_path / "id"
    path.write_bytes(IDENTITIES[0].private_bytes(encoding, form, NoEncryption()))
    assert read_identity(path).private_bytes_raw() == IDENTITIES[0].private_bytes_raw()


@pytest.mark.skipif(which("ssh-keygen") is None, reason="no ssh-keygen here")
@pytest.mark.parametrize("passphrase", ["", "correct horse"])
def test_keys_of_ssh_keygen_itself(tmp_path: Path, passphrase: str) -> None:
    path = tmp_path / "id"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)]
    subprocess.run(command, check=True)
    trusted = tmp_path / "trusted"
    trusted.write_text("7 " + (tmp_path / "id.pub").read_text())
    if passphrase:
        refused(read_identity, path, text="id is not an Ed25519 private key", kind=OptionError)
    else:
        public = read_identity(path).public_key().public_bytes_raw()
        assert read_trusted(trusted) == {7: public}


def bad_keys() -> dict[str, bytes]:
    key, secret = IDENTITIES[0], BestAvailableEncryption(b"correct horse")
    raw = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    rsa_key = rsa.generate_private_key(65537, 2048)
    made = {
        "pem with passphrase": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret),
        "public": openssh_line(key).encode(),
        "ecdsa": ec.derive_private_key(7, ec.SECP256R1()).private_bytes(
            Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
        ),
        "rsa": rsa_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        "truncated": raw[: len(raw) // 2],
        "damaged": raw[:100] + b"AAAA" + raw[104:],
        "empty": b"",
        "not text": bytes(range(256)),
        "header alone": b"-----BEGIN OPENSSH PRIVATE KEY-----\n",
    }
    with suppress(UnsupportedAlgorithm):  # without bcrypt; ssh-keygen covers the case
        made["openssh with passphrase"] = key.private_bytes(
            Encoding.PEM, PrivateFormat.OpenSSH, secret
        )
    return made


@pytest.mark.parametrize(("kind", "data"), bad_keys().items(), ids=list(bad_keys()))
def test_other_keys_are_refused(tmp_path: Path, kind: str, data: bytes) -> None:
    path = tmp_path / "hospital-a"
    path.write_bytes(data)
    refused(
        read_identity,
        path,
        text="hospital-a is not an Ed25519 private key without a passphrase",
        remedy="make one with ssh-keygen -t ed25519 -N '' -f FILE",
        kind=OptionError,
    )


def test_a_missing_key_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        refused(read_identity, path, text="is not an Ed25519 private key", kind=OptionError)


# -- the trusted keys


def test_the_file_of_trusted_keys(tmp_path: Path) -> None:
    path = tmp_path / "trusted"
    lines = [f"{p} {openssh_line(key)} hospital {p}" for p, key in enumerate(IDENTITIES)]
    path.write_text("# exchanged by phone\n\n" + "\n  ".join(lines) + "\n   \n  # the end")
    assert read_trusted(path) == TRUSTED
    path.write_text("")
    assert read_trusted(path) == {}


KEY = openssh_line(IDENTITIES[0])


@pytest.mark.parametrize(
    ("line", "number"),
    [
        (KEY, 2),
        (f"hospital {KEY}", 2),
        (f"-1 {KEY}", 2),
        (f"1.0 {KEY}", 2),
        ("1", 2),
        ("1 ssh-ed25519", 2),
        ("1 ssh-ed25519 AAAA", 2),
        (f"1 {KEY[:-8]}", 2),
        (f"1: {KEY}", 2),
        (f"1 {openssh_line(ec.derive_private_key(7, ec.SECP256R1()))}", 2),
        (f"1 {KEY}\n2 garbage", 3),
    ],
)
def test_lines_that_are_no_trusted_key(tmp_path: Path, line: str, number: int) -> None:
    path = tmp_path / "trusted.txt"
    path.write_text(f"0 {KEY}\n{line}\n")
    refused(
        read_trusted,
        path,
        text=f"line {number} of trusted.txt is not 'PARTITION ssh-ed25519 KEY'",
        remedy="write the partition id before each line of a .pub file",
        kind=OptionError,
    )


def test_a_partition_is_pinned_once(tmp_path: Path) -> None:
    path = tmp_path / "trusted"
    for again in ("3", "03"):
        path.write_text(f"3 {KEY}\n{again} {openssh_line(IDENTITIES[1])}\n")
        text = f"trusted names partition {again} twice"
        refused(read_trusted, path, text=text, kind=OptionError)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "trusted"
    path.write_bytes(b"\xff\xfe\xfa")
    for wrong in (path, tmp_path / "nowhere", tmp_path):
        text = f"{wrong.name} cannot be read"
        refused(read_trusted, wrong, text=text, remedy="check the path", kind=OptionError)


# -- signatures

COUNTS = (7, 2)
PUBLIC = generate_key()[1]
SIGNATURE = sign_key(IDENTITIES[0], "run", 0, PUBLIC, COUNTS)
NOT_SIGNED = "its key of this run is not signed by its pinned identity"
SIGNED = {
    "trusted": TRUSTED,
    "session": "run",
    "partition": 0,
    "public": PUBLIC,
    "signature": SIGNATURE,
    "counts": COUNTS,
}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"session": "run2"}, NOT_SIGNED),
        ({"partition": 1}, NOT_SIGNED),
        ({"public": generate_key()[1]}, NOT_SIGNED),
        ({"signature": bytes([SIGNATURE[0] ^ 1]) + SIGNATURE[1:]}, NOT_SIGNED),
        ({"signature": SIGNATURE[:-1]}, NOT_SIGNED),
        ({"signature": b""}, "its key of this run is not signed, its identity is pinned"),
        ({"counts": (8, 2)}, NOT_SIGNED),
        ({"trusted": {}}, "its identity key is not pinned"),
    ],
)
def test_other_signatures_are_refused(change: dict[str, Any], text: str) -> None:
    check_key(**SIGNED)  # type: ignore[arg-type]
    swapped = "do not go on: give it its identity key, or find out who swaps keys"
    remedy = "add it to the trusted keys" if "trusted" in change else swapped
    party = f"partition {change.get('partition', 0)}"
    refused(check_key, **{**SIGNED, **change}, text=text, remedy=remedy, party=party)


# -- in a run


def announce_all(
    identities: dict[int, Ed25519PrivateKey | None], trusted: dict[int, bytes] | None
) -> tuple[dict[int, Party], dict[int, tuple[bytes, bytes]]]:
    parties = {
        p: Party(p, PartyState("run"), identity=key, trusted=trusted)
        for p, key in identities.items()
    }
    return parties, {p: party.announce() for p, party in parties.items()}


def test_signed_runs_work() -> None:
    parties, keys = announce_all(dict(enumerate(IDENTITIES)), TRUSTED)
    assert all(len(signature) == 64 for _, signature in keys.values())
    server = SecureSum("run", keys)
    for party in parties.values():
        party.join(server.roster)
        assert party.state.digest


def test_without_pins_signatures_are_ignored() -> None:
    parties, keys = announce_all(dict.fromkeys(range(3)), None)
    assert all(signature == b"" for _, signature in keys.values())
    parties[0].join(SecureSum("run", keys).roster)
    keys[1] = (keys[1][0], bytes(range(64)))
    parties[1].join(SecureSum("run", keys).roster)


@pytest.mark.parametrize("kind", ["swapped", "unsigned", "signed by another", "unpinned"])
def test_a_server_that_swaps_a_key_is_found_out(kind: str) -> None:
    trusted = dict(TRUSTED)
    parties, keys = announce_all(dict(enumerate(IDENTITIES)), trusted)
    signature = keys[2][1]
    fresh = generate_key()[1]
    text = "its key of this run is not signed by its pinned identity"
    if kind == "swapped":
        keys[2] = (fresh, signature)
    elif kind == "unsigned":
        keys[2] = (fresh, b"")
        text = "its key of this run is not signed, its identity is pinned"
    elif kind == "signed by another":
        keys[2] = (fresh, sign_key(IDENTITIES[3], "run", 2, fresh, (0, 0)))
    else:
        del trusted[2]
        text = "its identity key is not pinned"
    roster = SecureSum("run", keys).roster
    for p in (0, 1, 3):
        refused(parties[p].join, roster, text=text, party="partition 2")
        assert not parties[p].state.digest
    if kind == "unpinned":  # a party need not pin itself
        parties[2].join(roster)
    else:  # and the party itself sees that its key was swapped
        text = "the roster holds another key under the name of this party"
        refused(parties[2].join, roster, text=text, party="partition 2")


def test_a_swapped_key_goes_unnoticed_without_pins() -> None:
    """Negative control: this is what pinning is for."""
    parties, keys = announce_all(dict(enumerate(IDENTITIES)), None)
    keys[2] = (generate_key()[1], keys[2][1])
    parties[0].join(SecureSum("run", keys).roster)
    assert parties[0].state.digest


def test_a_signature_of_an_earlier_run_is_refused() -> None:
    old = Party(2, PartyState("an earlier run"), identity=IDENTITIES[2])
    parties, keys = announce_all(dict(enumerate(IDENTITIES)), TRUSTED)
    keys[2] = old.announce()
    text = "its key of this run is not signed by its pinned identity"
    refused(parties[0].join, SecureSum("run", keys).roster, text=text, party="partition 2")


def test_identities_are_not_in_the_state(tmp_path: Path) -> None:
    parties, _ = announce_all(dict(enumerate(IDENTITIES)), TRUSTED)
    packed = parties[0].state.pack()
    assert IDENTITIES[0].private_bytes_raw().hex().encode() not in packed
