"""Pinned identities: keys of the run that nobody can swap on the way."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from refusals import refused
from sums_in_memory import flip, refuses

from fedkern_flwr.secure_sum import Party, PartyState, SecureSum
from fedkern_flwr.secure_sum.identity import check_key, read_identity, read_trusted, sign_key
from fedkern_flwr.secure_sum.keys import generate_key

IDENTITIES = [Ed25519PrivateKey.from_private_bytes(bytes([k]) * 32) for k in range(4)]
TRUSTED = {p: key.public_key().public_bytes_raw() for p, key in enumerate(IDENTITIES)}


def openssh_line(key: Any) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


# -- the private key


@pytest.mark.parametrize("form", [PrivateFormat.OpenSSH, PrivateFormat.PKCS8])
def test_openssh_and_pem_keys_are_read(tmp_path: Path, form: Any) -> None:
    path = tmp_path / "id"
    path.write_bytes(IDENTITIES[0].private_bytes(Encoding.PEM, form, NoEncryption()))
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
        refuses("FK-IDENTITY-KEY", read_identity, path)
    else:
        public = read_identity(path).public_key().public_bytes_raw()
        assert read_trusted(trusted) == {7: public}


def bad_keys() -> dict[str, bytes]:
    key, secret, pem = IDENTITIES[0], BestAvailableEncryption(b"correct horse"), Encoding.PEM
    raw = key.private_bytes(pem, PrivateFormat.OpenSSH, NoEncryption())
    curve = ec.derive_private_key(7, ec.SECP256R1())
    made = {
        "pem with passphrase": key.private_bytes(pem, PrivateFormat.PKCS8, secret),
        "public": openssh_line(key).encode(),
        "ecdsa": curve.private_bytes(pem, PrivateFormat.OpenSSH, NoEncryption()),
        "ecdsa as pem": curve.private_bytes(pem, PrivateFormat.PKCS8, NoEncryption()),
        "truncated": raw[: len(raw) // 2],
        "empty": b"",
        "not text": bytes(range(256)),
    }
    with suppress(UnsupportedAlgorithm):  # without bcrypt; ssh-keygen covers the case
        made["with passphrase"] = key.private_bytes(pem, PrivateFormat.OpenSSH, secret)
    return made


@pytest.mark.parametrize("data", bad_keys().values(), ids=bad_keys())
def test_other_keys_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "hospital-a"
    path.write_bytes(data)
    refuses("FK-IDENTITY-KEY", read_identity, path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "trusted"
    path.write_bytes(b"\xff\xfe\xfa")
    for wrong in (path, tmp_path / "nowhere", tmp_path):
        refuses("FK-FILE-READ", read_trusted, wrong)
        refuses("FK-IDENTITY-KEY", read_identity, wrong)


# -- the trusted keys


def test_the_file_of_trusted_keys(tmp_path: Path) -> None:
    path = tmp_path / "trusted"
    lines = [f"{p} {openssh_line(key)} hospital {p}" for p, key in enumerate(IDENTITIES)]
    path.write_text("# exchanged by phone\n\n" + "\n  ".join(lines) + "\n   \n  # the end")
    assert read_trusted(path) == TRUSTED
    path.write_text("")
    assert read_trusted(path) == {}


KEY = openssh_line(IDENTITIES[0])


LINES = [KEY, f"hospital {KEY}", f"-1 {KEY}", f"1.0 {KEY}", "1", "1 ssh-ed25519", f"1: {KEY}"]
LINES += ["1 ssh-ed25519 AAAA", f"1 {KEY[:-8]}"]
LINES += [f"1 {openssh_line(ec.derive_private_key(7, ec.SECP256R1()))}"]


@pytest.mark.parametrize("line", [*LINES, f"1 {KEY}\n2 garbage"])
def test_lines_that_are_no_trusted_key(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trusted.txt"
    path.write_text(f"0 {KEY}\n{line}\n")
    error = refuses("FK-IDENTITY-TRUSTED", read_trusted, path)
    assert f"line {2 + line.count(chr(10))} of trusted.txt" in str(error)


@pytest.mark.parametrize("again", ["3", "03"])
def test_a_partition_is_pinned_once(tmp_path: Path, again: str) -> None:
    path = tmp_path / "trusted"
    path.write_text(f"3 {KEY}\n{again} {openssh_line(IDENTITIES[1])}\n")
    refuses("FK-IDENTITY-TWICE", read_trusted, path)


# -- signatures

COUNTS = (7, 2)
PUBLIC = generate_key()[1]
SIGNATURE = sign_key(IDENTITIES[0], "run", 0, PUBLIC, COUNTS)
SIGNED: dict[str, Any] = {"trusted": TRUSTED, "session": "run", "partition": 0, "public": PUBLIC}
SIGNED |= {"signature": SIGNATURE, "counts": COUNTS}


@pytest.mark.promise("sums-signatures")
@pytest.mark.parametrize(
    "change",
    [
        *({"session": "run2"}, {"partition": 1}, {"public": generate_key()[1]}, {"trusted": {}}),
        *({"signature": text} for text in (flip(SIGNATURE, 0), SIGNATURE[:-1], b"")),
        *({"counts": (8, 2)}, {"counts": (7, 3)}),
    ],
)
def test_other_signatures_are_refused(change: dict[str, Any]) -> None:
    check_key(**SIGNED)
    code = "FK-IDENTITY-UNPINNED" if "trusted" in change else "FK-IDENTITY-UNSIGNED"
    with refused(code) as caught:
        check_key(**{**SIGNED, **change})
    assert caught.value.party == f"partition {change.get('partition', 0)}"


# -- in a run


def announce_all(
    identities: dict[int, Ed25519PrivateKey | None], trusted: dict[int, bytes] | None
) -> tuple[dict[int, Party], dict[int, tuple[bytes, bytes]]]:
    parties = {
        p: Party(p, PartyState("run"), identity=i, trusted=trusted) for p, i in identities.items()
    }
    return parties, {p: party.announce() for p, party in parties.items()}


def test_signed_runs_work_and_without_pins_signatures_are_ignored() -> None:
    """So a swapped key goes unnoticed there: this is what pinning is for."""
    parties, keys = announce_all(dict(enumerate(IDENTITIES)), TRUSTED)
    assert all(len(signature) == 64 for _, signature in keys.values())
    for party in parties.values():
        party.join(SecureSum("run", keys).roster)
        assert party.state.digest
        assert IDENTITIES[party.partition].private_bytes_raw().hex() not in str(party.state.pack())
    parties, keys = announce_all(dict.fromkeys(range(3)), None)
    assert all(signature == b"" for _, signature in keys.values())
    keys[1] = (generate_key()[1], bytes(range(64)))
    parties[0].join(SecureSum("run", keys).roster)


@pytest.mark.parametrize("kind", ["swapped", "unsigned", "signed by another", "old", "unpinned"])
def test_a_server_that_swaps_a_key_is_found_out(kind: str) -> None:
    trusted = dict(TRUSTED)
    parties, keys = announce_all(dict(enumerate(IDENTITIES)), trusted)
    fresh = generate_key()[1]
    if kind == "unpinned":
        del trusted[2]
    elif kind == "old":  # of an earlier run
        keys[2] = Party(2, PartyState("earlier"), identity=IDENTITIES[2]).announce()
    else:
        another = sign_key(IDENTITIES[3], "run", 2, fresh, (0, 0))
        keys[2] = fresh, {"swapped": keys[2][1], "unsigned": b""}.get(kind, another)
    roster = SecureSum("run", keys).roster
    code = "FK-IDENTITY-UNPINNED" if kind == "unpinned" else "FK-IDENTITY-UNSIGNED"
    for p in (0, 1, 3):
        refuses(code, parties[p].join, roster, party=2)
        assert not parties[p].state.digest
    if kind == "unpinned":  # a party need not pin itself
        parties[2].join(roster)
    else:  # and the party itself sees that its key was swapped
        refuses("FK-SUM-CHANGED", parties[2].join, roster, party=2)
