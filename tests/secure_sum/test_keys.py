"""The key schedule, what travels sealed from client to client, and messages within messages."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from example_messages import assert_equal, example
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from sums_in_memory import Run, flip, refuses

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.secure_sum import Party, PartyState, SecureSum
from fedkern_flwr.secure_sum import crypto as schedule
from fedkern_flwr.secure_sum.crypto import (
    BACKUP,
    SHARE,
    Route,
    derive_key,
    generate_key,
    pair_label,
    seal,
    seal_message,
    sum_keys,
    sum_label,
    unseal,
    unseal_message,
)
from fedkern_flwr.secure_sum.identity import check_key, read_identity, read_trusted, sign_key
from fedkern_flwr.secure_sum.party import order_terms
from fedkern_flwr.wire import sums
from fedkern_flwr.wire.message import (
    PhaseMessage,
    Section,
    attach,
    detach,
    section_arrays,
    section_bytes,
)

ONE, OTHER = generate_key(), generate_key()
PLACE = {"digest": bytes(32), "cohort": 0, "pair": pair_label(0, 1)}


def root_of(private: bytes, public: bytes, **place: Any) -> bytes:
    return schedule.pair_root(schedule.read_key(private)[0], public, **place)


def test_two_parties_derive_the_same_root_and_nobody_else() -> None:
    """Of another roster, cohort or pair it is another."""
    root = root_of(ONE[0], OTHER[1], **PLACE)
    assert root == root_of(OTHER[0], ONE[1], **PLACE)
    third = generate_key()
    changes = ({"digest": b"\1" + bytes(31)}, {"cohort": 1}, {"pair": pair_label(0, 2)})
    others = [root_of(ONE[0], OTHER[1], **PLACE | change) for change in changes]
    others += [root_of(third[0], key, **PLACE) for key in (ONE[1], OTHER[1])]
    assert len({root, *others}) == 6
    labels = {pair_label(i, j) for i in range(40) for j in range(40) if i != j}
    assert len(labels) == 40 * 39 // 2


def test_keys_of_all_sums_pairs_and_purposes_differ() -> None:
    """They are those of HKDF-Expand, and what a step leaves gives none of the step before."""
    root, seen, made = os.urandom(32), set[bytes](), 0
    for label in [
        sum_label(session, cohort, index, name)
        for session in ("a", "b")
        for cohort in (0, 1)
        for index in (1, 2, 11)
        for name in ("g", "h")
    ]:
        for pair in (pair_label(0, 1), pair_label(0, 11), pair_label(1, 11)):
            info = b"fedkern-flwr secure sum 1 keys " + label + pair
            both = HKDFExpand(hashes.SHA256(), 64, info).derive(root)
            keys = sum_keys(root, label, pair)
            assert keys == (both[:32], both[32:])
            seen.update(keys)
            made += 2
    for _ in range(50):
        seen |= {root, *sum_keys(root, label, pair)}
        root = schedule.next_root(root)
        made += 3
    assert len(seen) == made - 2  # the last label's keys of the first root came twice


SUMS = st.tuples(st.text(max_size=6), st.integers(0, 30), st.integers(0, 30), st.text(max_size=6))


@given(one=SUMS, other=SUMS)
def test_labels_tell_sums_apart(one: Any, other: Any) -> None:
    assert (sum_label(*one) == sum_label(*other)) == (one == other)


@pytest.mark.promise("sums-told-alike")
def test_the_label_holds_what_all_parties_must_have_been_told() -> None:
    order = Run(3).order(3).order
    others = {"name": "b", "length": 4, "kind": "fixed-point", "bits": 32, "bound": 8.0}
    others |= {"receiver": 0, "self_masks": False, "noise": 1 << 16, "fraction": 3}
    told = [replace(order, **{field: value}) for field, value in others.items()]
    assert len({order_terms(order), *map(order_terms, told)}) == 10
    assert sum_label("a", 1, 2, 'x", 3') != sum_label('a", 1', 2, 3, "x")


# -- sealed messages of sums, and of methods

KEY, SECRET = os.urandom(32), bytes(range(32))


@settings(max_examples=60)
@given(
    where=st.tuples(st.text(max_size=8), st.integers(0, 99), st.integers(1, 2**31), st.just("g")),
    plain=st.binary(max_size=80),
    kind=st.sampled_from([SHARE, BACKUP]),
    ends=st.permutations([0, 1, 12, 2**31 - 1]),
    data=st.data(),
)
def test_any_place_and_any_bit_are_bound(
    where: Any, plain: bytes, kind: int, ends: list[int], data: st.DataObject
) -> None:
    label, (source, destination, *_) = sum_label(*where), ends
    route = Route(label, kind, source, destination)
    sealed = seal(KEY, plain, route)
    assert unseal(KEY, sealed, route) == plain
    assert len(sealed) == len(plain) + 16
    assert len(plain) < 4 or plain not in sealed
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    changed = (int.from_bytes(sealed, "little") ^ (1 << bit)).to_bytes(len(sealed), "little")
    for broken, place in (
        (changed, route), (sealed[:-1], route), (sealed[:15], route),
        (sealed, route._replace(label=label + b" ")),
        (sealed, route._replace(label=sum_label(*where[:2], where[2] + 1, "g"))),
        (sealed, route._replace(kind=3 - kind)), (sealed, route._replace(source=source + 1)),
        (sealed, route._replace(destination=destination + 1)),
        (sealed, route._replace(source=destination, destination=source)),
    ):  # fmt: skip
        refuses("FK-SUM-CHANGED", unseal, KEY, broken, place)
    refuses("FK-SUM-CHANGED", unseal, SECRET, sealed, route)


@pytest.mark.promise("sums-sealed")
def test_two_directions_and_kinds_never_share_a_nonce() -> None:
    """The same text under the same key looks different each time."""
    label, plain = sum_label("run", 1, 7, "g"), os.urandom(33)
    ends = [(kind, s, d) for kind in (SHARE, BACKUP) for s, d in ((2, 3), (3, 2))]
    assert len({seal(KEY, plain, Route(label, *end))[:33] for end in ends}) == 4


AT: tuple[str | int, ...] = ("chain", "session", 3, 0, 1)
OTHER_PLACES: list[tuple[str | int, ...]] = [
    *((*AT[:k], value, *AT[k + 1 :]) for k, value in enumerate(("hop", "other", 4, 1, 2))),
    ("chain", "session", 3, 1, 0), ("chain", "session", 30, 1), ("chain", "session", "3", 0, 1),
    ("chain", "session", 3, 0), (),
]  # fmt: skip


def test_a_message_of_a_method_opens_in_its_own_place_only() -> None:
    """However often it is sealed no nonce comes twice: a repeated hop may carry other content."""
    sealed = [seal_message(SECRET, b"content", *AT) for _ in range(200)]
    assert {unseal_message(SECRET, one, *AT) for one in sealed} == {b"content"}
    assert len({one[:12] for one in sealed}) == len({one[12:] for one in sealed}) == 200
    first = sealed[0]
    assert len(first) == len(b"content") + 28
    assert b"content" not in first
    for bit in range(8 * len(first)):
        changed = bytearray(first)
        changed[bit // 8] ^= 1 << bit % 8
        refuses("FK-SUM-CHANGED", unseal_message, SECRET, bytes(changed), *AT)
    for length in range(0, 29, 4):
        refuses("FK-SUM-CHANGED", unseal_message, SECRET, first[:length], *AT)
    for place in OTHER_PLACES:
        refuses("FK-SUM-CHANGED", unseal_message, SECRET, first, *place)
    refuses("FK-SUM-CHANGED", unseal_message, SECRET[::-1], first, *AT)
    places = [AT, *OTHER_PLACES, ("a", "b"), ("a b",), ('a", "b',), ("a", "", "b")]
    keys = {derive_key(secret, *place) for place in places for secret in (SECRET, SECRET[::-1])}
    assert len(keys | {SECRET}) == 2 * len(places) + 1


def test_pairs_have_a_secret_for_the_method_where_it_asks_for_one() -> None:
    """Theirs alone, one whatever cohorts they share, fresh in each run, no key of a mask."""
    cohorts = [[0, 1], [1, 2, 3], [0, 1, 3]]
    found = []
    for _ in range(2):
        run = Run(5, clients={"pair_secrets": True}, cohorts=cohorts)
        run.join()
        states = [run.party(p).state for p in run.members]
        pairs = {p for members in cohorts for p in combinations(members, 2)}
        assert {(i, j) for i, one in enumerate(states) for j in one.secrets if i < j} == pairs
        assert all(states[i].secrets[j] == states[j].secrets[i] for i, j in pairs)
        found += [states[i].secrets[j] for i, j in pairs]
        for c, members in enumerate(cohorts):
            found += [states[i].roots[c][j] for i, j in combinations(members, 2)]
    assert len(set(found)) == len(found)
    run = Run(3)
    run.join()
    assert [run.party(p).state.secrets for p in run.members] == [{}, {}, {}]


# -- messages within messages, which trust nothing that arrives

KINDS = [cls for cls in vars(sums).values() if isinstance(cls, type)]
CLASSES = [cls for cls in KINDS if issubclass(cls, PhaseMessage) and cls.phase]
OWN_ARRAYS = [np.arange(4.0), np.zeros((2, 2), np.float32)]
OWN = {"phase": "update", "protocol": 3, "round": 3, "9.x": b"9"}


@given(chosen=st.lists(st.sampled_from(CLASSES), max_size=5), parts=st.integers(0, 3))
def test_sections_arrive_as_they_were_sent(chosen: list[type[PhaseMessage]], parts: int) -> None:
    sent = [example(cls, seed, parts=parts) for seed, cls in enumerate(chosen)]
    arrays, scalars = attach(sent)
    assert all(type(value) in (bytes, str) for value in scalars.values())  # plain for Flower
    left, rest, sections = detach([*OWN_ARRAYS, *arrays], {**OWN, **scalars}, party="server")
    assert len(left) == 2
    assert rest == OWN
    for message, section in zip(sent, sections, strict=True):
        assert_equal(message, section.read(type(message), party="server"))
    assert section_arrays(scalars) == (len(arrays) if sent else None)
    size = sum(len(v) for m in sent for v in m.scalars().values() if isinstance(v, bytes))
    assert section_bytes(scalars) == size


DAMAGED: list[Any] = [
    *("sections", "", "3", "null", '"abc"', '{"abc": 1}', "[[null, 0, {}]]", "[" * 100_000),
    *('[["sum-order", 0]]', '[["sum-order", 0, {}, 1]]', '[["a", 2, {}], ["b", 1, {}]]'),
    *(
        f'[["sum-order", {count}, {{}}]]'
        for count in ("-1", "0.5", '"1"', "true", "Infinity", "NaN", "1e400", "3")
    ),
    *('[["sum-order", 0, [["phase", "x"]]]]', '[["sum-order", 0, "ab"]]'),
    *(b"\xff\xfe", 3, [["sum-order", 0, {}]], None),
]


@pytest.mark.parametrize("damaged", DAMAGED, ids=lambda d: str(d)[:24])
def test_damaged_sections_are_refused(damaged: Any) -> None:
    detach(OWN_ARRAYS, {**OWN, "sections": '[["a", 1, {}], ["b", 0, {"c": 1}]]'}, party="")  # right
    scalars = {**OWN, "sections": damaged}
    with refused("FK-MESSAGE-DAMAGED", kind=ProtocolError):
        detach(OWN_ARRAYS, scalars, party="partition 3")


JSON = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
).map(json.dumps)


@settings(max_examples=50)
@given(text=st.text(max_size=40) | JSON, number=st.sampled_from(["0", "1", "\u0661", "-1", ""]))
def test_any_text_is_refused_or_gives_sections(text: str, number: str) -> None:
    try:
        arrays, _, found = detach(OWN_ARRAYS, {**OWN, "sections": text}, party="partition 3")
    except ProtocolError as error:
        assert (error.code, error.party) == ("FK-MESSAGE-DAMAGED", "partition 3")  # noqa: PT017
    else:
        assert all(type(s) is Section and type(s.scalars) is dict for s in found)
        assert len(arrays) + sum(len(s.arrays) for s in found) == len(OWN_ARRAYS)
    arrays, scalars = attach([example(sums.Roster), example(sums.SumReply)])
    extra = {f"{number}.{text}": b"x", "9" * 5000 + ".keys": b"x"}
    _, rest, sections = detach(arrays, {**scalars, **extra}, party="partition 3")
    assert [s.phase for s in sections] == ["sum-roster", "sum-reply"]
    assert len(rest) == (1 if number in ("0", "1") else 2)


# -- identities


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
        "truncated": raw[: len(raw) // 2], "empty": b"", "not text": bytes(range(256)),
    }  # fmt: skip
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


PIN = openssh_line(IDENTITIES[0])


LINES = [PIN, f"hospital {PIN}", f"-1 {PIN}", f"1.0 {PIN}", "1", "1 ssh-ed25519", f"1: {PIN}"]
LINES += ["1 ssh-ed25519 AAAA", f"1 {PIN[:-8]}"]
LINES += [f"1 {openssh_line(ec.derive_private_key(7, ec.SECP256R1()))}"]


@pytest.mark.parametrize("line", [*LINES, f"1 {PIN}\n2 garbage"])
def test_lines_that_are_no_trusted_key(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trusted.txt"
    path.write_text(f"0 {PIN}\n{line}\n")
    error = refuses("FK-IDENTITY-TRUSTED", read_trusted, path)
    assert f"line {2 + line.count(chr(10))} of trusted.txt" in str(error)


@pytest.mark.parametrize("again", ["3", "03"])
def test_a_partition_is_pinned_once(tmp_path: Path, again: str) -> None:
    path = tmp_path / "trusted"
    path.write_text(f"3 {PIN}\n{again} {openssh_line(IDENTITIES[1])}\n")
    refuses("FK-IDENTITY-TWICE", read_trusted, path)


# -- signatures

COUNTS = (7, 2)
PUBLIC = generate_key()[1]
SIGNATURE = sign_key(IDENTITIES[0], "run", 0, PUBLIC, COUNTS)
SIGNED: dict[str, Any] = {"trusted": TRUSTED, "session": "run", "partition": 0, "public": PUBLIC}
SIGNED |= {"signature": SIGNATURE, "counts": COUNTS}


@pytest.mark.promise("sums-signatures")
@pytest.mark.parametrize("change", [
    *({"session": "run2"}, {"partition": 1}, {"public": generate_key()[1]}, {"trusted": {}}),
    *({"signature": text} for text in (flip(SIGNATURE, 0), SIGNATURE[:-1], b"")),
    *({"counts": (8, 2)}, {"counts": (7, 3)}),
])  # fmt: skip
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


@pytest.mark.parametrize("kind", ["swapped", "unsigned", "unpinned"])
def test_a_server_that_swaps_a_key_is_found_out(kind: str) -> None:
    trusted = {p: key for p, key in TRUSTED.items() if kind != "unpinned" or p != 2}
    parties, keys = announce_all(dict(enumerate(IDENTITIES)), trusted)
    if kind != "unpinned":
        keys[2] = generate_key()[1], keys[2][1] * (kind == "swapped")
    roster = SecureSum("run", keys).roster
    code = "FK-IDENTITY-UNPINNED" if kind == "unpinned" else "FK-IDENTITY-UNSIGNED"
    for p in (0, 1, 3):
        refuses(code, parties[p].join, roster, party=2)
        assert not parties[p].state.digest
    if kind == "unpinned":  # a party need not pin itself
        parties[2].join(roster)
    else:  # and the party itself sees that its key was swapped
        refuses("FK-SUM-CHANGED", parties[2].join, roster, party=2)
