"""A deployed node answers from frozen copies of its files; changes wait until they form blocks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from flwr.app import ConfigRecord, Context, RecordDict
from pyarrow import csv, parquet
from refusals import raises, refused, refuses

from fedkern_flwr.checkpoint import with_session
from fedkern_flwr.frozen_files import FrozenFiles, FrozenTable, NodeFiles
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.freeze import HELD_OUT, Freeze
from fedkern_flwr.simulations.apps.node import Node
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.tables import load_table
from fedkern_flwr.tables.dialect import Dialect

Rows = dict[str, Any]


def patients(rows: int = 200) -> Rows:
    rng = np.random.default_rng(3)
    ids = [f"p{k}" for k in rng.permutation(rows)]
    dose = rng.integers(0, 9, rows).astype(float)
    return {"id": ids, "age": rng.normal(50.0, 9.0, rows).round(1), "dose": dose, "y": dose % 2}


def write(path: Path, rows: Rows) -> None:
    if path.suffix == ".npz":
        x = np.column_stack([rows["age"], rows["dose"]])
        names = np.array(["age", "dose"])
        np.savez(path, X=x, y=rows["y"], id=np.array(rows["id"]), feature_names=names)
    elif path.suffix == ".parquet":
        parquet.write_table(pa.table(rows), path)
    else:
        table, sep = pa.table(rows), ","
        if path.stem == "german":
            age = [str(age).replace(".", ",") for age in rows["age"]]
            table, sep = table.set_column(1, "age", pa.array(age)), ";"
        csv.write_csv(table, path, csv.WriteOptions(delimiter=sep))


def cells(table: FrozenTable | None, column: str = "dose", kind: int = 0) -> dict[str, float]:
    """Return id -> cell of a frozen file."""
    assert table is not None
    path = table.files[kind]
    assert path is not None
    found = load_table(path, id_column="id", label="y", missing="keep")
    assert found.ids is not None
    values = found.x[:, found.columns.index(column)].tolist()
    return dict(zip(found.ids.tolist(), values, strict=True))


@pytest.fixture
def files(tmp_path: Path) -> NodeFiles:
    write(tmp_path / "a.csv", patients())
    return NodeFiles(tmp_path / "a.csv", None, "id")


@pytest.fixture
def frozen(tmp_path: Path) -> FrozenFiles:
    return FrozenFiles(tmp_path / "state", 0, NodePolicy())


def test_a_row_that_stands_twice_is_frozen_once(files: NodeFiles, frozen: FrozenFiles) -> None:
    """It would else count as two in a block of few."""
    lines = files.data.read_text().splitlines()
    files.data.write_text("\n".join([*lines, *lines[1:31]]))
    table, _ = frozen.update(files)
    assert table is not None
    assert len(table.numbers[0]) == 200
    assert len(np.unique(table.numbers[0])) == 200
    assert len(cells(table)) == 200


@pytest.mark.parametrize("name", ["a.csv", "german.csv", "a.parquet", "a.npz"])
def test_at_first_all_rows_are_frozen_as_they_are_in_the_file(
    name: str, tmp_path: Path, frozen: FrozenFiles
) -> None:
    """Columns in another order, or an id in another spelling, are no change."""
    data, rows = tmp_path / name, patients()
    write(data, rows)
    files = NodeFiles(data, None, "id")
    table = frozen.open_run("r1", files)
    assert table is not None
    assert table.files[0] is not None
    assert (table.files[0].name, table.files[0].stat().st_mode & 0o777) == (name, 0o600)
    dealt = Freeze.load(frozen.folder)
    assert dealt is not None
    assert not dealt.select(HELD_OUT)  # without test data all are learned from
    how: dict[str, Any] = {"id_column": "id", "label": "y"}
    both = (vars(load_table(path, **how)).values() for path in (data, table.files[0]))
    for one, other in zip(*both, strict=True):
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other
    rows["id"] = [f" {one}" for one in rows["id"]]
    write(data, rows if data.suffix == ".npz" else dict(reversed(rows.items())))
    if name != "german.csv":
        change = frozen.update(files)[1]
        assert not any({**change.done, **change.waiting}.values())


def test_the_last_runs_keep_their_first_tables(files: NodeFiles, frozen: FrozenFiles) -> None:
    tables = [frozen.open_run(f"r{k}", files) for k in range(33)]
    assert frozen.open_run("r32", files, resumed=True).name == tables[-1].name  # type: ignore[union-attr]
    refuses("FK-FREEZE-GONE", frozen.open_run, "r0", files, resumed=True)
    frozen.update(files, withdraw=["p0"])  # whose row is in no copy any more
    refuses("FK-FREEZE-GONE", frozen.open_run, "r32", files, resumed=True)


@pytest.mark.promise("freeze-wait")
def test_changes_wait_until_they_are_a_lot(files: NodeFiles, frozen: FrozenFiles) -> None:
    rows, lot = patients(), 54
    before = cells(frozen.update(files)[0])
    rows["dose"][0] = 77.0
    gone = {key: value[:-1] for key, value in rows.items()}
    write(files.data, gone)
    table, change = frozen.update(files)
    assert cells(table) == before
    assert (change.waiting["edits"], change.waiting["withdrawals"]) == (1, 1)
    rows["dose"] = rows["dose"] + 1.0
    write(files.data, rows)
    table, change = frozen.update(files)
    assert change.done["edits"] == 200 > lot
    assert cells(table) == dict(zip(rows["id"], rows["dose"], strict=True))
    few = {key: value[2 * lot :] for key, value in rows.items()}
    write(files.data, few)
    table, change = frozen.update(files)
    assert change.done["withdrawals"] >= lot
    there = 200 - change.done["withdrawals"]
    assert list(cells(table)) == [name for name in rows["id"] if name in cells(table)]
    assert len(cells(table)) == there


def test_cells_of_rows_that_wait_get_new_columns(files: NodeFiles, frozen: FrozenFiles) -> None:
    rows = patients()
    before = cells(frozen.update(files)[0])
    some = {key: value[3:] for key, value in rows.items()}
    other = {**{k: v for k, v in some.items() if k != "age"}, "height": some["dose"] + 1.0}
    write(files.data, other)
    table, _ = frozen.update(files)
    height = cells(table, "height")
    assert cells(table) == before
    assert np.isnan([height[name] for name in rows["id"][:3]]).all()
    write(files.data, rows)
    assert cells(frozen.update(files)[0], "age") == dict(zip(rows["id"], rows["age"], strict=True))


def test_a_crash_leaves_the_old_freeze_with_the_old_table(
    files: NodeFiles, frozen: FrozenFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, old = patients(), frozen.update(files)[0]
    write(files.data, {**rows, "dose": rows["dose"] + 1.0})
    for broken in (FrozenTable, Freeze):
        with monkeypatch.context() as patch:
            patch.setattr(broken, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            raises(KeyboardInterrupt, frozen.update, files)
        known = Freeze.load(frozen.folder)
        assert known is not None
        assert old is not None
        now = frozen.load(known.table)
        assert (now.name, cells(now)) == (old.name, cells(old))
    assert frozen.update(files)[1].done["edits"] == 200


def test_a_file_whose_rows_have_no_stratum_is_not_frozen(files: NodeFiles, tmp_path: Path) -> None:
    sex = np.array(["f", "m"])[np.arange(200) % 2].astype(object)
    sex[:11] = "NA"
    write(files.data, {**patients(), "sex": sex})
    policy = NodePolicy(strata=("sex",), labels=("y",))
    refuses("FK-FREEZE-STRATA", FrozenFiles(tmp_path / "other", 0, policy).update, files)


@pytest.fixture
def node(tmp_path: Path, files: NodeFiles) -> Callable[..., Node]:
    """Return what makes the node of a message of a run."""
    write(tmp_path / "new.csv", {k: v[:20] for k, v in patients(260).items()})
    contexts: dict[str, Context] = {}

    def made(session: str, state: str | None = "state", policy: str = "", **config: Any) -> Node:
        own = {"partition-id": 0, "data": str(files.data), "label": "y", "id-column": "id"}
        own |= {"state-dir": str(tmp_path / state)} if state else {}
        own |= {"policy": policy} if policy else {}
        known = contexts.setdefault(session, Context(1, 1, own, RecordDict(), {}))
        known.run_config = {"predict": False, "resume": False, **config}
        records = {"config": ConfigRecord({"session": session})}
        message: Any = SimpleNamespace(content=records, has_content=lambda: True)
        nodes: list[Node] = []

        def build(_: Any, context: Context) -> Any:
            nodes.append(Node(context, load_table, ()))
            nodes[0].table(missing="drop-row")

        with_session(message, known, build)
        return nodes[0]

    return made


def test_a_run_reads_one_table(node: Callable[..., Node], files: NodeFiles, tmp_path: Path) -> None:
    rows = patients()
    rows["age"][3] = np.nan
    write(files.data, rows)
    first = node("s1")
    table = first.table(missing="drop-row")
    handle = first.rows(table, None, "x")["frozen"]
    assert len(handle) == table.rows == 199  # the app has left a row out
    assert first.frozen is not None
    assert handle.tolist() == np.delete(first.frozen.numbers[0], 3).tolist()
    write(files.data, {**rows, "dose": rows["dose"] + 1.0})
    second = node("s2").frozen
    assert second is not None
    assert second.name != first.frozen.name
    again = node("s1").frozen
    assert again is not None
    assert again.name == first.frozen.name
    assert node("s1", "state", resume=True).frozen.name == again.name  # type: ignore[union-attr]
    new = {**rows, "id": [*rows["id"][:-1], "later"], "dose": rows["dose"] + 1.0}
    write(files.data, new)
    predicting = node("s3", predict=True)
    read = predicting.table(missing="keep")
    assert read.ids[-1] == "later"
    assert predicting.rows(read, None, "x")["frozen"].tolist() == [*second.numbers[0][:-1], -1]
    shutil.rmtree(again.folder)
    refuses("FK-FREEZE-GONE", node, "s1")
    refuses("FK-FREEZE-GONE", node, "s4", resume=True)
    shutil.rmtree(second.folder)
    refuses("FK-FREEZE-FILE", node, "s6")
    assert node("s5", None).frozen is None


def test_an_owner_freezes_and_withdraws(files: NodeFiles, tmp_path: Path, capsys: Any) -> None:
    config, ids = tmp_path / "node.toml", tmp_path / "ids"
    keys = {"data": files.data, "state-dir": tmp_path / "state", "id-column": "id"}
    lines = ["partition-id = 0", *(f'{key} = "{value}"' for key, value in keys.items())]
    config.write_text("\n".join(lines))
    ids.write_text(" p17 \n\n")
    freeze = ["node", "freeze", "--node-config", str(config)]
    assert run([*freeze, "--withdraw", str(ids)]) == 2
    assert run(freeze) == 0
    assert run([*freeze, "--withdraw", str(ids)]) == 0
    assert run([*freeze, "--show"]) == 0
    assert run([*freeze, "--reset-failures"]) == 0
    shown = capsys.readouterr().out
    assert "5 withdrawals" in shown
    assert "195 rows are in blocks" in shown
    assert "p17" not in shown
    copies = list((tmp_path / "state").rglob("a.csv"))
    assert len(copies) == 1
    assert '"p17"' not in copies[0].read_text()


def test_a_state_dir_is_that_of_one_partition(
    node: Callable[..., Node],
    files: NodeFiles,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Under another number a node would count anew what it opens about the same rows."""
    assert node("s1").frozen is not None
    assert node("s2").frozen is not None
    state, config = tmp_path / "state", tmp_path / "node.toml"
    other = {"partition-id": 1, "data": str(files.data), "state-dir": str(state)}
    with refused("FK-NODE-STATE"):
        Node(Context(1, 1, dict(other), RecordDict(), {}), load_table, ())
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in other.items()))
    assert run(["node", "freeze", "--node-config", str(config)]) == 2
    assert run(["node", "init", "--partition-id", "1", "--state-dir", str(state)]) == 2
    assert capsys.readouterr().err.count("FK-NODE-STATE") == 2
    assert [place.name for place in state.glob("freeze-*")] == ["freeze-0"]
    assert run(["node", "init", "--partition-id", "0", "--state-dir", str(state)]) == 0


def test_rows_held_out_are_frozen_in_a_file_of_their_own(
    files: NodeFiles, frozen: FrozenFiles, tmp_path: Path
) -> None:
    held = {k: v[200:] for k, v in patients(260).items()}
    write(tmp_path / "held.csv", {**held, "id": [f"h{k}" for k in range(60)]})
    both = NodeFiles(files.data, tmp_path / "held.csv", "id", Dialect())
    table, _ = frozen.update(both)
    assert list(cells(table, kind=1)) == [f"h{k}" for k in range(60)]
    assert len(cells(table)) == 200
    assert table is not None
    handle = table.frozen(np.arange(200), np.array([2]))
    assert handle[-1] == table.numbers[1][2]


def test_a_fifth_is_held_out_where_the_owner_says_so(
    node: Callable[..., Node], files: NodeFiles, tmp_path: Path
) -> None:
    """For good; and the same ids at nodes that share an alignment key."""
    policy = NodePolicy(held_out=True)
    (tmp_path / "key").write_text("ab" * 32)
    keyed = replace(files, alignment_key=tmp_path / "key")

    def held(state: str, files: NodeFiles) -> set[str]:
        table, _ = FrozenFiles(tmp_path / state, 0, policy).update(files)
        assert not cells(table).keys() & cells(table, kind=1).keys()
        return {*cells(table, kind=1)}

    first = held("one", keyed)
    assert len(first) == 40
    assert held("two", keyed) == first
    assert held("three", files) != first
    rows = patients()
    write(files.data, {**rows, "dose": rows["dose"] + 1.0})
    assert held("one", files) == first  # also without the key that there was at the freeze
    write(files.data, patients(400))
    assert held("one", keyed) > first
    (tmp_path / "policy.toml").write_text("[freeze]\nheld_out = true\n")
    own = node("s1", policy=str(tmp_path / "policy.toml"))
    table, test = own.tables(missing="keep")
    assert (table.rows, test.rows) == (320, 80)
    handle = own.rows(table, test, "x")["frozen"]
    assert len(np.unique(handle)) == 400
