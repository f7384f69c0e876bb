"""Files of an align run: they join rows as a common key does, for their own run only."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.alignment import (
    AlignmentTags,
    check_alignment_key,
    count_overlaps,
    find_rows,
    hash_ids,
    id_texts,
    read_alignment,
)
from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.errors import CheckpointError, FedKernError, OptionError, TableError
from fedkern_flwr.tables import load_ids, load_table


def secret(name: object, run: str = "run") -> bytes:
    return hashlib.sha256(f"{run}/{name}".encode()).digest()


def tags(ids: Any, run: str = "run") -> AlignmentTags:
    return AlignmentTags.of(run, list(ids), [secret(name, run) for name in id_texts(list(ids))])


names = st.lists(st.integers(0, 30) | st.text(max_size=2), unique_by=str, max_size=20)


@given(one=names, other=names)
def test_rows_meet_as_with_a_common_key(one: list[Any], other: list[Any]) -> None:
    found, expected = (
        find_rows(hash_ids(one, a, "session"), hash_ids(other, b, "session")).tolist()
        for a, b in ((tags(one), tags(other)), (b"k" * 16, b"k" * 16))
    )
    assert found == expected
    places = {str(name): place for place, name in enumerate(other)}
    assert found == [places.get(str(name), -1) for name in one]


def test_pseudonyms_are_fresh_in_every_session_and_align_run() -> None:
    ids = [f"id {k}" for k in range(50)]
    base = hash_ids(ids, tags(ids), "one")
    assert base.shape == (50, 2)
    assert base.dtype == np.uint64
    np.testing.assert_array_equal(base, hash_ids(ids, tags(ids), "one"))
    for other in (hash_ids(ids, tags(ids), "two"), hash_ids(ids, tags(ids, "again"), "one")):
        assert (find_rows(base, other) == -1).all()
        assert not np.intersect1d(base, other).size


def test_rows_may_be_asked_for_in_any_order_and_number() -> None:
    ids = [f"id {k}" for k in range(20)]
    whole = hash_ids(ids, tags(ids), "s")
    np.testing.assert_array_equal(hash_ids(ids[7:3:-1], tags(ids), "s"), whole[7:3:-1])
    np.testing.assert_array_equal(hash_ids(np.array(ids), tags(ids), "s"), whole)
    assert hash_ids([], tags(ids), "s").shape == (0, 2)
    assert hash_ids([], tags([]), "s").shape == (0, 2)


def test_an_id_without_a_tag_is_an_error_with_a_remedy() -> None:
    ids = [f"secret name {k}" for k in range(5)]
    with pytest.raises(TableError) as error:
        hash_ids([*ids, "new a", "new b"], tags(ids), "s")
    assert str(error.value) == (
        "2 of 7 ids have no tag in the alignment file; run align again with these rows, at all "
        "parties"
    )


# -- files


def test_the_file_is_private_and_holds_no_id(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "alignment.npz"
    own = tags(["alice", "bob"])
    own.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["alignment.npz"]
    found = AlignmentTags.load(path)
    assert found.run == "run"
    np.testing.assert_array_equal(
        hash_ids(["bob", "alice"], found, "s"), hash_ids(["bob", "alice"], own, "s")
    )
    data = path.read_bytes()
    assert b"alice" not in data
    assert hashlib.sha256(b"alice").digest() not in data
    assert "tags" not in repr(found)
    other = tags(["alice", "bob"])
    assert other.salt != own.salt
    assert not np.intersect1d(other.names, own.names).size


def test_a_key_or_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("ab" * 32 + "\n")
    tags(["a"]).save(tmp_path / "alignment")  # the name does not matter
    assert read_alignment(None) is None
    assert read_alignment(tmp_path / "key") == b"\xab" * 32
    found = read_alignment(str(tmp_path / "alignment"))
    assert isinstance(found, AlignmentTags)
    check_alignment_key(found)


def _write(path: Path, **change: Any) -> None:
    arrays: dict[str, Any] = {"names": np.zeros((2, 2), np.uint64)}
    arrays["tags"] = np.zeros((2, 32), np.uint8)
    meta = {"kind": "fedkern-flwr alignment 1", "run": "r", "salt": "00" * 32}
    for name, value in change.items():
        (arrays if name in arrays else meta)[name] = value
    save_arrays(path, arrays, {k: v for k, v in meta.items() if v is not None})


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    _write(path)
    assert AlignmentTags.load(path).run == "r"
    changes: list[dict[str, Any]] = [
        {"kind": "a model"},
        {"kind": None},
        {"run": None},
        {"salt": "00"},
        {"salt": "no"},
        {"names": np.zeros((3, 2), np.uint64)},
        {"names": np.zeros((2, 2))},
        {"names": np.uint64(1)},
        {"tags": np.zeros((2, 31), np.uint8)},
        {"tags": np.zeros((2, 32), np.int8)},
    ]
    for change in changes:
        _write(path, **change)
        with pytest.raises(CheckpointError, match="is not the file of an align run; run align"):
            AlignmentTags.load(path)
        with pytest.raises(OptionError, match="the file of the alignment key cannot be read"):
            read_alignment(path)


@pytest.mark.parametrize("content", [None, b"no hex", b"\xff\xfe", b"PK\x03\x04 broken", b"abc"])
def test_files_that_cannot_be_read_are_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionError) as error:
        read_alignment(path)
    assert str(error.value) == (
        "the file of the alignment key cannot be read; put 64 hexadecimal digits into it, or name "
        "the alignment.npz of an align run"
    )


def test_what_is_written_is_one_of_our_archives(tmp_path: Path) -> None:
    tags(["a", "b"]).save(tmp_path / "f.npz")
    arrays, meta = load_arrays(tmp_path / "f.npz")
    assert {name: array.shape for name, array in arrays.items()} == {
        "names": (2, 2),
        "tags": (2, 32),
    }
    assert set(meta) == {"kind", "run", "salt"}
    with np.load(tmp_path / "f.npz", allow_pickle=False) as data:
        assert all(not data[name].dtype.hasobject for name in data.files)


# -- counts


@given(tables=st.lists(st.sets(st.integers(0, 12)), min_size=2, max_size=5))
def test_overlaps_are_counted_as_sets_do(tables: list[set[int]]) -> None:
    found = count_overlaps({k: hash_ids(sorted(t), b"k" * 16, "s") for k, t in enumerate(tables)})
    for k, own in enumerate(tables):
        others = {j: t for j, t in enumerate(tables) if j != k}
        assert found[k].rows == len(own)
        assert found[k].shared == {j: len(own & t) for j, t in others.items()}
        times = [sum(i in t for t in others.values()) for i in own]
        assert found[k].known_to == tuple(times.count(n) for n in range(len(tables)))
        assert found[k].in_all == len(set.intersection(*tables))


# -- ids of a table


def test_ids_are_read_as_the_whole_table_reads_them(tmp_path: Path) -> None:
    ids = ["007", " 8 ", "é", "日本"]
    (tmp_path / "t.csv").write_text(
        "id,x,ill\n" + "".join(f"{i},{k}.5,yes\n" for k, i in enumerate(ids)), encoding="utf-8"
    )
    np.savez(tmp_path / "t.npz", X=np.zeros((4, 1)), id=np.array(ids))
    np.savez(tmp_path / "n.npz", X=np.zeros((4, 1)), id=np.arange(4))
    for name in ("t.csv", "t.npz", "n.npz"):
        found = load_ids(tmp_path / name, "id")
        assert found.dtype.kind == "U"
        label = "ill" if name == "t.csv" else None
        table = load_table(tmp_path / name, id_column="id", label=label, labelled=False)
        assert table.ids is not None
        assert found.tolist() == table.ids.tolist()


def test_ids_of_parquet_files(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"id": [3, 1], "text": ["a", "b"]}), tmp_path / "t.parquet")
    assert load_ids(tmp_path / "t.parquet", "id").tolist() == ["3", "1"]


BAD = {
    "id,x\na,1\na,2\n": "the id column of t.csv has 1 duplicate ids; keep one row per id",
    "id,x\na,1\n,2\n": "the id column of t.csv is empty in 1 rows; fill it in, or leave these row",
    "id,x\n": "t.csv has no rows; give a file with data",
    "name,x\na,1\n": "t.csv has no id column 'id'; choose from: name, x",
    "": "t.csv is empty; give a file with data",
}


@pytest.mark.parametrize("text", BAD)
def test_ids_that_cannot_be_used_are_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(FedKernError) as error:
        load_ids(tmp_path / "t.csv", "id")
    assert str(error.value).startswith(BAD[text])
    assert os.linesep not in str(error.value)
