"""Joining rows: keyed hashes, tags of an align run and their files, and how the tags are made."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from refusals import refuses

from fedkern_flwr import alignment
from fedkern_flwr.align import private_intersection as curve
from fedkern_flwr.alignment import AlignmentTags, find_rows, hash_ids
from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.tables import load_ids, load_table

KEY = b"sixteen bytes ok"


def hashes(ids: Any) -> np.ndarray:
    return hash_ids(list(ids), KEY, "run")


def tags(ids: Any, run: str = "run") -> AlignmentTags:
    names = alignment.id_texts(list(ids))
    secrets = [hashlib.sha256(f"{run}/{name}".encode()).digest() for name in names]
    return AlignmentTags.of(run, list(ids), secrets)


# -- rows meet where ids do

names = st.lists(st.integers(0, 30) | st.text(max_size=2), unique_by=str, max_size=20)


@given(one=names, other=names)
def test_rows_meet_by_a_common_key_and_by_tags(one: list[Any], other: list[Any]) -> None:
    places = {str(name): place for place, name in enumerate(other)}
    for a, b in ((KEY, KEY), (tags(one), tags(other))):
        found = find_rows(hash_ids(one, a, "session"), hash_ids(other, b, "session"))
        assert found.dtype == np.int32
        assert found.tolist() == [places.get(str(name), -1) for name in one]


words = st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])


pairs = st.tuples(words, words)


@given(
    st.lists(pairs, unique_by=lambda pair: pair[0]), st.lists(pairs), st.lists(st.integers(0, 9))
)
def test_both_words_of_a_hash_agree(known: list[Any], wanted: list[Any], ids: list[int]) -> None:
    places = {pair: place for place, pair in enumerate(known)}
    found = find_rows(
        np.array(wanted, np.uint64).reshape(-1, 2), np.array(known, np.uint64).reshape(-1, 2)
    )
    assert found.tolist() == [places.get(pair, -1) for pair in wanted]
    assert alignment.count_duplicates(hashes(ids)) == len(ids) - len(set(ids))


@pytest.mark.promise("align-pseudonyms-fresh")
def test_pseudonyms_are_fresh_in_every_session_and_align_run() -> None:
    """Without the key nobody can try out ids; two runs cannot be linked."""
    ids = [f"id {k}" for k in range(50)]
    for key, second in ((KEY, KEY + b"!"), (tags(ids), tags(ids, "again"))):
        base = hash_ids(ids, key, "one")
        assert base.shape == (50, 2)
        assert base.dtype == np.uint64
        np.testing.assert_array_equal(base, hash_ids(np.array(ids), key, "one"))
        np.testing.assert_array_equal(base[7:3:-1], hash_ids(ids[7:3:-1], key, "one"))
        assert 0.45 < np.unpackbits(base.view(np.uint8)).mean() < 0.55
        for other in (hash_ids(ids, key, "two"), hash_ids(ids, second, "one")):
            assert (find_rows(base, other) == -1).all()
            assert not np.intersect1d(base, other).size


def test_the_text_of_an_id_counts_and_order_tells_nothing() -> None:
    assert len(np.unique(hashes([7, "7", np.int64(7), np.str_("7")]), axis=0)) == 1
    assert len(np.unique(hashes([7, "07", "7 ", 7.0]), axis=0)) == 4
    found = hashes(range(200))
    order = alignment.sort_order(found)
    pairs = [tuple(pair) for pair in found[order].tolist()]
    assert pairs == sorted(pairs)
    assert abs(np.corrcoef(order, np.arange(200))[0, 1]) < 0.2
    assert alignment.sort_order(np.array([[1, 5], [0, 9], [1, 2]], np.uint64)).tolist() == [1, 2, 0]


@given(tables=st.lists(st.sets(st.integers(0, 12)), min_size=2, max_size=5))
def test_overlaps_are_counted_as_sets_do(tables: list[set[int]]) -> None:
    found = alignment.count_overlaps({k: hashes(sorted(t)) for k, t in enumerate(tables)})
    for k, own in enumerate(tables):
        others = {j: t for j, t in enumerate(tables) if j != k}
        assert found[k].rows == len(own)
        assert found[k].shared == {j: len(own & t) for j, t in others.items()}
        times = [sum(i in t for t in others.values()) for i in own]
        assert found[k].known_to == tuple(times.count(n) for n in range(len(tables)))
        assert found[k].in_all == len(set.intersection(*tables))


# -- files of keys and tags


@pytest.mark.promise("align-file-salted")
def test_the_file_is_private_and_holds_no_id(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "alignment.npz"
    own = tags(["alice", "bob"])
    own.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["alignment.npz"]
    found = AlignmentTags.load(path)
    assert found.run == "run"
    assert found.tags_of(["bob", "alice"]) == own.tags_of(["bob", "alice"])
    data = path.read_bytes()
    assert b"alice" not in data
    assert hashlib.sha256(b"alice").digest() not in data
    assert "tags" not in repr(found)
    other = tags(["alice", "bob"])
    assert other.salt != own.salt
    assert not np.intersect1d(other.names, own.names).size
    arrays, meta = load_arrays(path)
    assert {name: a.shape for name, a in arrays.items()} == {"names": (2, 2), "tags": (2, 32)}
    assert set(meta) == {"kind", "run", "salt"}
    assert not any(array.dtype.hasobject for array in arrays.values())


def test_an_id_without_a_tag_and_a_key_that_can_be_guessed_are_refused(tmp_path: Path) -> None:
    ids = [f"secret name {k}" for k in range(5)]
    caught = refuses("FK-ALIGN-UNTAGGED", hash_ids, [*ids, "secret a", "secret b"], tags(ids), "s")
    assert "2 of 7 ids" in str(caught)
    assert "secret" not in str(caught)
    alignment.check_alignment_key(bytes(16))
    refuses("FK-KEY-LENGTH", alignment.check_alignment_key, b"fifteen bytes!!")
    (tmp_path / "key").write_text("ab" * 32 + "\n")
    tags(["a"]).save(tmp_path / "alignment")  # the name does not matter
    assert alignment.read_alignment(None) is None
    assert alignment.read_alignment(tmp_path / "key") == b"\xab" * 32
    found = alignment.read_alignment(str(tmp_path / "alignment"))
    assert isinstance(found, AlignmentTags)
    alignment.check_alignment_key(found)


CHANGES: list[dict[str, Any]] = [
    *({name: None} for name in ("kind", "run")),
    *({"salt": text} for text in ("00", "no")),
    *({"names": a} for a in (np.zeros((3, 2), np.uint64), np.zeros((2, 2)), np.uint64(1))),
    *({"tags": a} for a in (np.zeros((2, 31), np.uint8), np.zeros((2, 32), np.int8))),
    {"kind": "a model"},
]


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    for change in ({}, *CHANGES):
        arrays: dict[str, Any] = {"names": np.zeros((2, 2), np.uint64)}
        arrays["tags"] = np.zeros((2, 32), np.uint8)
        meta = {"kind": "fedkern-flwr alignment 1", "run": "r", "salt": "00" * 32}
        for name, value in change.items():
            (arrays if name in arrays else meta)[name] = value
        save_arrays(path, arrays, {k: v for k, v in meta.items() if v is not None})
        if not change:
            assert AlignmentTags.load(path).run == "r"
            continue
        refuses("FK-FILE-FORMAT", AlignmentTags.load, path)
        refuses("FK-KEY-FILE", alignment.read_alignment, path)
    for content in (b"no hex", b"\xff\xfe", b"PK\x03\x04 broken", b"abc", None):
        path.unlink() if content is None else path.write_bytes(content)
        caught = refuses("FK-KEY-FILE", alignment.read_alignment, path)
        assert "abc" not in str(caught)


# -- ids of a table


def test_ids_are_read_as_the_whole_table_reads_them(tmp_path: Path) -> None:
    ids = ["007", " 8 ", "é", "日本"]
    lines = "".join(f"{i},{k}.5,yes\n" for k, i in enumerate(ids))
    (tmp_path / "t.csv").write_text(f"id,x,ill\n{lines}", encoding="utf-8")
    np.savez(tmp_path / "t.npz", X=np.zeros((4, 1)), id=np.array(ids))
    np.savez(tmp_path / "n.npz", X=np.zeros((4, 1)), id=np.arange(4))
    for name in ("t.csv", "t.npz", "n.npz"):
        found = load_ids(tmp_path / name, "id")
        assert found.dtype.kind == "U"
        label = "ill" if name == "t.csv" else None
        table = load_table(tmp_path / name, id_column="id", label=label, labelled=False)
        assert table.ids is not None
        assert found.tolist() == table.ids.tolist()
    parquet.write_table(pa.table({"id": [3, 1], "text": ["a", "b"]}), tmp_path / "t.parquet")
    assert load_ids(tmp_path / "t.parquet", "id").tolist() == ["3", "1"]


# -- tags by multi-party exponentiation

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
BASE = (9).to_bytes(32, "little")


def legendre(u: int) -> int:
    """The definition, by Euler's criterion."""
    value = pow((u**3 + 486662 * u * u + u) % P, (P - 1) // 2, P)
    return -1 if value == P - 1 else value


def numbers_of(data: bytes) -> list[int]:
    parts = [data[k : k + curve.POINT_BYTES] for k in range(0, len(data), curve.POINT_BYTES)]
    return [int.from_bytes(part, "little") for part in parts]


@given(u=st.integers(0, P - 1) | st.integers(0, 50))
def test_the_quick_symbol_is_that_of_legendre(u: int) -> None:
    assert curve.on_curve(u) == (legendre(u) == 1)


def test_ids_are_hashed_to_points_of_the_curve_by_their_text() -> None:
    hashed = b"".join(curve.hash_to_curve(str(k)) for k in range(300))
    found = numbers_of(hashed)
    assert all(u < P and legendre(u) == 1 for u in found)
    assert len(set(found)) == 300
    assert 0.4 < np.unpackbits(np.frombuffer(hashed, np.uint8)).mean() < 0.6
    odd = ["", "a", "A", " a", "a ", "é", "e\u0301", "ab", "1", "01", "\0", "日本", "💊"]
    assert len({curve.hash_to_curve(name) for name in odd}) == len(odd)


def ladder(scalar: int, u: int) -> int | None:
    """Any multiple of a point in plain numbers (RFC 7748, section 5); None at infinity."""
    x2, z2, x3, z3 = 1, 0, u, 1
    for bit in f"{scalar:b}":
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        x3, z3 = pow(d * a + c * b, 2, P), u * pow(d * a - c * b, 2, P) % P
        aa, bb = a * a % P, b * b % P
        x2, z2 = aa * bb % P, (aa - bb) * (aa + 121665 * (aa - bb)) % P
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
    return None if z2 == 0 else x2 * pow(z2, -1, P) % P


def test_what_leaves_a_party_lies_in_the_group_of_prime_order() -> None:
    drawn = curve.Exponents.draw()
    hashed = [numbers_of(curve.hash_to_curve(str(k)))[0] for k in range(20)]
    scalar = int.from_bytes(drawn.blind, "little")
    for u, point in zip(
        hashed, numbers_of(curve.blind_ids(map(str, range(20)), drawn.blind)), strict=True
    ):
        assert ladder(scalar, u) == point
        assert ladder(ORDER, point) is None
    outside = [u for u in hashed if ladder(ORDER, u) is not None]
    assert len(outside) > 10  # negative control: seven of eight points have a part of small order


def test_blinding_comes_off_exactly_and_secrets_do_not_show() -> None:
    points = b"".join(curve.hash_to_curve(str(k)) for k in range(5))
    for _ in range(20):
        drawn = curve.Exponents.draw()
        for scalar in (drawn.own, drawn.blind, drawn.rest):
            assert scalar[0] & 7 == 0
            assert scalar[31] >> 6 == 1
        assert len({drawn.own, drawn.blind, drawn.rest}) == 3
        both = curve.multiply_points(curve.multiply_points(points, drawn.blind), drawn.rest)
        assert both == curve.multiply_points(points, drawn.own)
        assert curve.Exponents.unpack(drawn.pack()) == drawn
    assert "own" not in repr(drawn)
    assert drawn.fingerprint == curve.Exponents.unpack(drawn.pack()).fingerprint
    assert drawn.fingerprint != curve.Exponents.draw().fingerprint
    assert len(drawn.fingerprint) == 16


@pytest.mark.promise("align-order-secret")
def test_lists_are_sent_in_a_secret_order() -> None:
    ids = [str(k) for k in range(200)]
    drawn, others = curve.Exponents.draw(), curve.Exponents.draw()
    order = drawn.order(ids)
    assert sorted(order) == list(range(200))
    assert order == drawn.order(ids)
    assert order != others.order(ids)
    assert abs(np.corrcoef(order, np.arange(200))[0, 1]) < 0.3
    turned = ids[::-1]
    assert [ids[k] for k in order] == [turned[k] for k in drawn.order(turned)]


# -- what another party may send

#: A point of order 8 on the curve, not on its twist: RFC 7748's list of small order.
EIGHT = 325606250916557431795983626356110631294008115727848805560023387167927233504
IMPROPER = {"on the twist": 2, "zero": 0, "one": 1, "order eight": EIGHT, "minus one": P - 1}
IMPROPER |= {"not reduced": P + 9, "top bit": 9 + 2**255, "all bits": 2**256 - 1}


@pytest.mark.promise("align-points-proper")
@pytest.mark.parametrize("name", IMPROPER)
def test_improper_points_are_refused(name: str) -> None:
    exponent, point = curve.Exponents.draw(), IMPROPER[name].to_bytes(32, "little")
    good = curve.multiply_points(BASE, exponent.own)
    refuses("FK-ALIGN-LIST", curve.multiply_points, good + point, exponent.own)
    refuses("FK-ALIGN-LIST", curve.finish_tags, good + point, exponent.rest, 2)


@pytest.mark.promise("align-lists-placed")
def test_lists_that_do_not_fit_are_refused() -> None:
    exponent = curve.Exponents.draw()
    points = curve.blind_ids(["a", "b"], exponent.blind)
    assert len(curve.finish_tags(points, exponent.rest, 2)) == 2
    refuses("FK-ALIGN-LIST", curve.multiply_points, points[:-1], exponent.own)
    for wrong, rows in ((points, 3), (points[:32] * 2, 2)):
        refuses("FK-ALIGN-LIST", curve.finish_tags, wrong, exponent.rest, rows)
    assert curve.multiply_points(b"", exponent.own) == b""
    assert curve.finish_tags(b"", exponent.rest, 0) == []
