"""Joining rows by keyed hashes and tags, and ranges of columns: what align and ranges compute."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pyarrow import parquet
from refusals import refused, refuses

from fedkern_flwr import alignment
from fedkern_flwr.align import column_ranges as ranges
from fedkern_flwr.align import private_intersection as curve
from fedkern_flwr.align.column_ranges import ENCODING, Centre, Statistics, first_pass, second_pass
from fedkern_flwr.alignment import AlignmentTags, find_rows, hash_ids
from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.scaling import Scaling, ranges_to_json, read_ranges, scale_by_ranges
from fedkern_flwr.tables import load_ids, load_table
from fedkern_flwr.tables.table import Table

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


# -- ranges of columns: two passes of sums are as precise as pooled rows; scaling by their files


BOUND = 2.0**20
NAN = np.nan


def add(parts: list[np.ndarray]) -> np.ndarray:
    """Add vectors up as the ring does, without masks."""
    with np.errstate(over="ignore"):
        total = sum(ENCODING.encode(part, len(parts), name="sum") for part in parts)
    return ENCODING.decode(np.asarray(total, np.uint64), len(parts))


def two_passes(*tables: np.ndarray) -> Statistics:
    rows, holders = sum(map(len, tables)), len(tables)
    total = add([first_pass(x, BOUND, rows) for x in tables])
    centre = ranges.read_first_pass(total, BOUND, rows, holders)
    total = add([second_pass(x, centre) for x in tables])
    return ranges.read_second_pass(total, centre, holders)


def check_pooled(*tables: np.ndarray) -> None:
    """As of all rows in the long numbers that NumPy has, to 1e-9 of the deviation.

    A mean is a float64 all the same.
    """
    found, x = two_passes(*tables), np.concatenate(tables).astype(np.longdouble)
    count = (~np.isnan(x)).sum(axis=0)
    mean = np.nansum(x, axis=0) / count
    deviation = np.sqrt(np.nansum((x - mean) ** 2, axis=0) / count)
    np.testing.assert_array_equal(found.count, count)
    slack = 1e-9 * deviation
    assert (np.abs(found.mean - mean) <= slack + 2.0 * np.spacing(np.abs(found.mean))).all()
    assert (np.abs(found.deviation - deviation) <= slack).all()


@pytest.mark.promise("ranges-exact")
@settings(max_examples=100)
@given(mean=st.floats(-5e5, 5e5), exponent=st.floats(-3.0, 4.5), seed=st.integers(0, 2**32 - 1))
def test_two_passes_give_the_pooled_statistics(mean: float, exponent: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    holders, rows = rng.integers(2, 11), rng.integers(2, 31)
    (apart, missing), tables = rng.random(2), []
    for _ in range(holders):
        x = rng.uniform(-1.0, 1.0, (rows, 3)) + apart * rng.uniform(-1.0, 1.0, 3)
        x[:, 1] = rng.standard_cauchy(rows).clip(-10.0, 10.0)
        x = mean + 10.0**exponent * x
        x[1:][rng.random((rows - 1, 3)) < 0.8 * missing] = NAN
        tables.append(x)
    check_pooled(*tables)


def test_the_documented_precision_holds_and_many_rows_lose_nothing() -> None:
    rng = np.random.default_rng(3)
    for mean in (0.0, 0.99 * BOUND):
        deviation = 2.0**-32 * BOUND
        tables = [mean + deviation * rng.standard_normal((100, 4)) for _ in range(10)]
        check_pooled(*tables)
    for holders in (2, 3, 4, 10, 1000):
        assert ranges.resolution(holders) <= holders**2 * 2.0**-60
    tables = [1e5 + 1e-2 * rng.standard_normal((200_000, 2)) for _ in range(2)]
    check_pooled(*tables)
    # added up row by row the squares would be off by more than their spread
    x = np.full((1_000_000, 1), 123456.7)
    x[::2] += 0.1
    check_pooled(x, x[:2])


def test_the_second_pass_is_taken_at_its_word_down_to_the_resolution() -> None:
    centre = Centre(np.full(4, 9.0), np.full(4, 100.0), np.full(4, 2.0))
    noise = ranges.resolution(3)
    total = np.array([0.5, -0.25, 0.0, 0.0, 0.5, 0.0625, 10.0 * noise, 100.0 * noise])
    found = ranges.read_second_pass(total, centre, 3)
    np.testing.assert_array_equal(found.mean, [101.0, 99.5, 100.0, 100.0])
    np.testing.assert_allclose(found.deviation, [1.0, 0.0, 0.0, 20.0 * noise**0.5], rtol=1e-15)


@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-9, 1.0, BOUND]))
def test_no_contribution_is_larger_than_one(seed: int, scale: float) -> None:
    """Whatever the rows: else a node could not contribute what the others need."""
    rng = np.random.default_rng(seed)
    x = rng.choice([-1.0, 0.0, 1.0, rng.uniform(-1, 1)], (int(rng.integers(2, 40)), 2)) * scale
    tables = [x[:1], x[1:]]
    firsts = [first_pass(t, BOUND, len(x)) for t in tables]
    centre = ranges.read_first_pass(add(firsts), BOUND, len(x), 2)
    for part in (*firsts, *(second_pass(t, centre) for t in tables)):
        assert np.abs(part).max() <= 1.0 + 1e-12
    assert (np.log2(centre.scale) == np.rint(np.log2(centre.scale))).all()


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3, 1e5 + 0.1, BOUND, -BOUND])
def test_a_constant_column_has_no_deviation_and_a_range_around_it(value: float) -> None:
    for holders in (2, 3, 7):
        tables = [np.full((11 * k + 1, 1), value) for k in range(1, holders + 1)]
        found = two_passes(*tables)
        assert found.deviation.tolist() == [0.0]
        assert found.mean[0] == pytest.approx(value, rel=1e-15, abs=1e-12)
        for limits in (ranges.summed_ranges(found, 4.0), ranges.own_ranges(tables[0])):
            low, high = limits[:, 0]
            assert high - low == pytest.approx(max(1.0, abs(value)))
            assert low + high == pytest.approx(2.0 * value, rel=1e-12, abs=1e-11)


def test_ranges_are_some_deviations_around_the_mean() -> None:
    found = Statistics(np.array([9.0, 9.0]), np.array([1.0, -2.0]), np.array([0.5, 3.0]))
    np.testing.assert_array_equal(ranges.summed_ranges(found, 2.0), [[0.0, -8.0], [2.0, 4.0]])
    tiny = Statistics(np.ones(1), np.array([1e6]), np.array([1e-14]))  # below a float64's last bit
    low, high = ranges.summed_ranges(tiny, 4.0)
    assert low < high
    own = np.array([[1.0, NAN], [3.0, 5.0]])
    np.testing.assert_array_equal(ranges.own_ranges(own), [[1.0, 2.5], [3.0, 7.5]])
    x = np.array([[1.0, -3.0, NAN, 2.0], [NAN, 1.0, 2.0, -2.5]])
    assert ranges.beyond(x, 2.0) == [1, 3]
    assert ranges.beyond(x, 3.0) == []


@pytest.mark.promise("ranges-column-empty")
def test_values_that_cannot_be_summed_are_refused() -> None:
    infinite, empty = [[1.0, np.inf]] * 2, [[1.0, NAN]] * 2
    for values, code in ((infinite, "FK-VALUES-FINITE"), (empty, "FK-BLOCK-EMPTY")):
        caught = refuses(code, ranges.check_values, np.array(values), ("a", "b"), "p")
        assert "column 'b'" in str(caught)
    ranges.check_values(np.array([[1.0, NAN], [NAN, 2.0]]), ("a", "b"), "p")
    centre = Centre(np.array([2.0]), np.array([0.0]), np.array([1.0]))
    share = second_pass(np.array([[5.0], [5.0]]), centre)  # beyond the promise
    refuses("FK-SUM-BOUND", ENCODING.encode, share, 2, name="sum")


def test_totals_that_cannot_be_are_refused_or_give_numbers() -> None:
    for count in (0.0, 1.0, 11.0, -4.0):
        with refused("FK-SUM-TOTAL"):
            ranges.read_first_pass(np.array([count / 10, 0.0, 0.0]), BOUND, 10, 2)
    # squares below zero, or below that of the mean: a party lied within the bound
    for total in ([1.0, 0.5, -0.25], [1.0, 1.0, 0.0]):
        centre = ranges.read_first_pass(np.array(total), BOUND, 10, 2)
        assert np.isfinite(centre.scale).all()
        found = ranges.read_second_pass(np.array([0.5, -1.0]), centre, 2)
        assert found.deviation.tolist() == [0.0]


# -- scaling by files of ranges: plain ones refuse what is beyond, those of summed statistics clip

X = np.array([[0.0, 10.0], [5.0, 15.0], [10.0, 20.0]])
PLAIN = {"a": [0, 10], "b": [10, 20], "other": [1, 1]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ranges.json"


def test_columns_are_scaled_by_their_ranges_in_their_order(path: Path) -> None:
    path.write_text(json.dumps(PLAIN))
    unit = np.array([[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]])
    np.testing.assert_array_equal(scale_by_ranges(X, ("a", "b"), path), unit)
    np.testing.assert_array_equal(scale_by_ranges(X[:, ::-1], ("b", "a"), str(path)), unit)
    np.testing.assert_array_equal(scale_by_ranges(X[:0], ("a", "b"), path), unit[:0])
    one = np.array([[NAN, 10.0]])
    np.testing.assert_array_equal(scale_by_ranges(one, ("a", "b"), path), [[NAN, 0.0]])


def test_values_beyond_are_refused_or_clipped(path: Path) -> None:
    x = X + np.array([0.0, 7.0])
    for content in (PLAIN, {"ranges": PLAIN, "clip": False}):
        path.write_text(json.dumps(content))
        caught = refuses("FK-RANGES-OUTSIDE", scale_by_ranges, x, ("a", "b"), path)
        assert "column 'b' has 2 values" in str(caught)
    path.write_text(json.dumps({"ranges": PLAIN, "clip": True}))
    found = scale_by_ranges(x - [3.0, 0.0], ("a", "b"), path)
    np.testing.assert_allclose(found, [[0.0, 0.7], [0.2, 1.0], [0.7, 1.0]])


NUMBERS = st.floats(-1e300, 1e300)


@settings(max_examples=25)
@given(
    x=arrays(np.float64, (5, 3), elements=NUMBERS),
    limits=st.lists(st.tuples(NUMBERS, NUMBERS).filter(lambda p: p[0] < p[1]), min_size=3),
    clip=st.booleans(),
)
def test_ranges_survive_json(tmp_path: Path, x: np.ndarray, limits: Any, clip: bool) -> None:
    low, high = np.array(limits[:3]).T
    names, path = ("x", "y", "ranges"), tmp_path / "ranges.json"
    path.write_text(ranges_to_json(names, low, high, clip=clip))
    found = read_ranges(names, path)
    np.testing.assert_array_equal(found.low, low)
    np.testing.assert_array_equal(found.high, high)
    assert found.clip is clip
    inside = x if clip else np.clip(x, low, high)
    scaled = scale_by_ranges(inside, names, path)
    assert ((scaled >= 0.0) & (scaled <= 1.0)).all()


def test_files_that_do_not_serve_are_refused(path: Path) -> None:
    wide = [-1.5e308, 1.5e308]
    wrong: dict[str, list[Any]] = {
        "FK-RANGES-MISSING": [{"a": [0, 10]}, {"ranges": {"a": [0, 10]}, "clip": True}],
        "FK-FILE-READ": [{"ranges": PLAIN, "clip": "yes"}, [PLAIN], None],
        "FK-RANGES-WRONG": [],
    }
    for code, limits in (
        ("FK-RANGES-WRONG", ([5, 5], [5, np.inf], [NAN, 5], wide)),
        ("FK-FILE-READ", ([0, 10**400], ["x", 5], [1, 2, 3], 2)),
    ):
        wrong[code] += [{"a": [0, 1], "b": b} for b in limits]
    texts = [(json.dumps(content), code) for code, found in wrong.items() for content in found]
    for text, code in (("", "FK-FILE-READ"), ("{", "FK-FILE-READ"), *texts):
        path.write_text(text)
        refuses(code, scale_by_ranges, X, ("a", "b"), path)
    path.unlink()
    refuses("FK-FILE-READ", scale_by_ranges, X, ("a", "b"), path)
    path.write_text(json.dumps(PLAIN))
    refuses("FK-COLUMN-NAMES", scale_by_ranges, X[:, :1], ("a", "b"), path)


def test_a_scaling_of_summed_statistics_clips_rows_to_learn_from() -> None:
    low, high = np.array([0.0, 10.0]), np.array([10.0, 20.0])
    table = Table(X + np.array([0.0, 7.0]), np.array([1.0, 2.0, 9.0]), ("a", "b"))
    table = Table(table.x, table.y, table.columns, x_test=table.x, y_test=table.y)
    plain = Scaling(low, high, 2.0**0.5, 0.0, 4.0)
    clipping = Scaling(low, high, 2.0**0.5, 0.0, 4.0, clip=True)
    assert np.linalg.norm(plain.apply(table).x, axis=1).max() > 1.0
    scaled = clipping.apply(table)
    assert np.linalg.norm(scaled.x, axis=1).max() <= 1.0
    np.testing.assert_array_equal(scaled.y, [0.25, 0.5, 1.0])
    np.testing.assert_array_equal(scaled.y_test, [0.25, 0.5, 2.25])  # to be predicted as they are
    np.testing.assert_array_equal(scaled.x_test, plain.apply(table).x_test)
    assert Scaling.from_json(clipping.to_json()).clip is True
    old = {k: v for k, v in json.loads(plain.to_json()).items() if k != "clip"}
    assert Scaling.from_json(json.dumps(old)).clip is False
    refuses("FK-FILE-FORMAT", Scaling.from_json, json.dumps({**old, "clip": 1}))


SOUND = {"x_min": [0, 0], "x_max": [10, 0], "row_norm": 1.5, "y_min": 0, "y_max": 3}


def test_a_scaling_that_would_scale_wrongly_is_refused() -> None:
    assert Scaling.from_json(json.dumps(SOUND)).x_max.tolist() == [10.0, 0.0]
    changes: list[dict[str, Any]] = [
        *({"x_max": wrong} for wrong in ([10], 10, [NAN, 0])),
        *({"x_min": wrong} for wrong in ([[0, 0]], [20, 0], [None, 0])),
        *({"row_norm": wrong} for wrong in (0, -1)), {"y_min": 3}, {"y_max": float("inf")},
    ]  # fmt: skip
    for change in changes:
        refuses("FK-RANGES-WRONG", Scaling.from_json, json.dumps({**SOUND, **change}))
