"""Files with private data: closed to others from the first byte; archives that would be too large.

Nobody follows a link that somebody else put there, and nothing is inflated unread."""

from __future__ import annotations

import copy
import csv
import errno
import io
import os
import re
import secrets
import stat
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Context, RecordDict
from flwr.compat.common.parameter import bytes_to_ndarray
from refusals import raises, refuses

from fedkern_flwr import __version__
from fedkern_flwr.alignment import AlignmentTags, read_alignment
from fedkern_flwr.checkpoint import (
    load_arrays,
    make_private_folder,
    run_folder,
    save_arrays,
    session_of,
    unpack_arrays,
    write_atomically,
)
from fedkern_flwr.clients.fdskl import PhaseStore
from fedkern_flwr.clients.fed_cg_kernel import KernelRows
from fedkern_flwr.clients.table_client import PartyTable
from fedkern_flwr.errors import CheckpointError, OptionError
from fedkern_flwr.model_file import load_model, save_model
from fedkern_flwr.node.client import Client
from fedkern_flwr.node.state import (
    KeptState,
    RunRecord,
    SessionState,
    erase_state,
    forget_last,
    on_disk,
    store_state,
)
from fedkern_flwr.secure_sum import PartyState
from fedkern_flwr.simulations.deployment.local import Processes, make_certificates, make_node_key
from fedkern_flwr.simulations.deployment.node_files import write_node
from fedkern_flwr.simulations.run.drawing import save_figure
from fedkern_flwr.simulations.run.report import write_report
from fedkern_flwr.simulations.run.run_folder import RunFolder, make_folder
from fedkern_flwr.wire import PhaseMessage, array
from fedkern_flwr.wire.message import read_array

TABLE = {"x": np.ones((2, 1)), "ids": (1, 2), "alignment_key": bytes(32)}


@pytest.fixture(autouse=True)
def nothing_masked() -> Iterator[None]:
    """The modes are those that are asked for: the user's umask takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


File = Callable[..., Any]  # (folder, partition) -> the file


def kernel(folder: Path | None, partition: int = 2) -> KernelRows:
    return KernelRows(folder, "5e", partition, 3)


def phases(folder: Path | None, partition: int = 2) -> PhaseStore:
    return PhaseStore(folder, "5e", partition, 9, 12, 16)


def fill(file: Any) -> Any:
    """Write something; return the file."""
    if isinstance(file, KernelRows):
        file.write(0, np.ones((1, 3)))
    else:
        file.take(np.array([0]), np.array([0]), 2, np.array([7, 8], np.uint16))
    return file


ROWS = np.array([1, 0])


def predicted(*classes: str) -> PartyTable:
    x, own = np.ones((2, 2)), {"columns": None, "classes": classes, "label_bound": 1.0}
    return PartyTable("p", x, None, None, x, None, ["z,1", 'q"'], **own)  # type: ignore[arg-type]


def test_predictions_are_in_the_order_of_the_table_with_classes_as_declared(tmp_path: Path) -> None:
    outputs = np.array([[0.5, 1.0, -1.0], [0.25, -0.5, -1.0]])
    predicted("owl", "cat", "dog").write_predictions(tmp_path / "p.csv", ROWS, outputs)
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert [(row["id"], row["class"]) for row in rows] == [("z,1", "owl"), ('q"', "cat")]


WRITERS: dict[str, Callable[[Path], Any]] = {
    "state": lambda f: write_atomically(f / "new" / "s.state", b"1", private=True),
    "model": lambda f: save_arrays(f / "new" / "model.npz", {"a": np.ones(3)}, {}),
    "kernel rows": lambda f: fill(kernel(f)), "phases": lambda f: fill(phases(f)),
    "predictions": lambda f: predicted().write_predictions(f / "p.csv", ROWS, np.eye(2)),
    "server key": make_certificates, "node key": lambda f: make_node_key(f / "node"),
    "node": lambda f: write_node(f / "node", 0, 2, TABLE),
    "picture": lambda f: save_figure(import_module("matplotlib.figure").Figure(), f / "s.png"),
    "report": lambda f: write_report(f / "report.html", title="title", subtitle="", blocks=[]),
    "log": lambda f: Processes({}, f / "pids").start("one", ["/bin/true"], f / "new" / "one.log"),
}  # fmt: skip
PUBLIC = {"ca.crt", "server.pem", "node.pub"}


@pytest.mark.promise("private-files-closed")
@pytest.mark.parametrize("name", WRITERS)
def test_private_files_are_closed_to_others(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Closed when they are made: a mode that is changed later comes too late."""
    made: list[tuple[str, int, int]] = []
    real = os.open

    def opened(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_CREAT and str(path).startswith(str(tmp_path)):
            made.append((Path(path).name, flags, mode))
        return real(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "chmod", None)
    WRITERS[name](tmp_path)
    found = [path for path in tmp_path.rglob("*") if path.name not in PUBLIC]
    assert found
    assert all(mode(path) == (0o700 if path.is_dir() else 0o600) for path in found)
    assert made
    for file, flags, asked in made:
        assert flags & os.O_NOFOLLOW
        assert flags & os.O_EXCL
        assert asked == 0o600 or any(public in file for public in PUBLIC)


def test_files_for_all_are_open_and_folders_of_runs_are_not(tmp_path: Path) -> None:
    write_atomically(tmp_path / "new" / "result.json", b"{}")
    assert mode(tmp_path / "new" / "result.json") == 0o666
    RunFolder.create(tmp_path / "runs" / "one", {"method": "", "data": {}, "options": {}})
    make_folder(tmp_path / "audits" / "one", "--out")
    for folder in ("runs", "runs/one", "audits", "audits/one"):
        assert mode(tmp_path / folder) == 0o700
    (tmp_path / "there").mkdir(mode=0o755)
    make_private_folder(tmp_path / "there" / "new")
    assert [mode(tmp_path / f) for f in ("there", "there/new")] == [0o755, 0o700]


@pytest.mark.parametrize("private", [True, False])
def test_a_link_there_is_not_followed(private: bool, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    trap, target = tmp_path / ".secret.guessed.tmp", tmp_path / "of somebody else"
    for there in (True, False):
        if there:
            target.write_text("kept")
        trap.symlink_to(target)
        with pytest.raises(FileExistsError):
            write_atomically(tmp_path / "secret", b"private", private=private)
        assert trap.is_symlink()  # it is not ours to remove
        assert target.exists() == there
        assert not there or target.read_text() == "kept"
        assert not (tmp_path / "secret").exists()
        trap.unlink()
        target.unlink(missing_ok=True)


def test_a_link_in_place_of_the_file_is_replaced_and_what_is_no_file_is_not(tmp_path: Path) -> None:
    names = {"of somebody else", "secret", "pipe", "folder"}
    target, secret = tmp_path / "of somebody else", tmp_path / "secret"
    target.write_text("kept")
    secret.symlink_to(target)
    write_atomically(secret, b"private", private=True)
    assert target.read_text() == "kept"
    assert not secret.is_symlink()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, error in (("pipe", FileExistsError), ("folder", IsADirectoryError)):
        raises(error, write_atomically, tmp_path / name, b"private", private=True)
    assert (tmp_path / "pipe").is_fifo()
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize("trap", ["link", "dangling link", "hard link", "open to all", "folder"])
def test_files_that_are_not_ours_are_refused(trap: str, tmp_path: Path) -> None:
    rows = fill(kernel(tmp_path))
    other = tmp_path / "other"
    other.touch(mode=0o600)
    if trap == "open to all":
        rows.path.chmod(0o644)
    elif trap == "hard link":
        os.link(rows.path, other.with_name("second"))
    else:
        rows.path.unlink()
        if trap == "folder":
            rows.path.mkdir()
        else:
            rows.path.symlink_to(other if trap == "link" else tmp_path / "nowhere")
    refuses("FK-FILE-FOREIGN", rows.open)
    assert not (tmp_path / "nowhere").exists()
    assert other.read_bytes() == b""


# -- archives that would become far more than they are

INFLATED = 64 * 2**20


def compressed() -> bytes:
    """64 MiB of zeros in 64 KiB."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, meta_json=np.zeros(2, np.uint8), zeros=np.zeros(INFLATED, np.uint8))
    assert len(buffer.getvalue()) < INFLATED / 500
    return buffer.getvalue()


def shared() -> bytes:
    """100 parts of 1 MiB that are the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("zeros.npy", bytes(2**20))
        (part,) = archive.filelist
        archive.filelist += [copy.copy(part) for _ in range(99)]
    return buffer.getvalue()


def many() -> bytes:
    """400 parts of 64 KiB, none larger than the file."""
    parts = {f"zeros{k}": np.zeros(2**16, np.uint8) for k in range(400)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, meta_json=np.frombuffer(b"{}", np.uint8), **parts)
    assert len(buffer.getvalue()) > 1.1 * 2**16
    return buffer.getvalue()


@dataclass(frozen=True)
class RowsMessage(PhaseMessage):
    phase = "rows"
    rows: np.ndarray = array("rows")  # noqa: RUF009


BOMBS = {"compressed": compressed, "shared": shared, "many": many}


@pytest.fixture(params=BOMBS)
def bomb(request: pytest.FixtureRequest) -> Iterator[bytes]:
    """Return a bomb; whoever reads it may not take a tenth of what would come of it."""
    data = BOMBS[request.param]()
    tracemalloc.start()
    try:
        yield data
        assert tracemalloc.get_traced_memory()[1] < INFLATED / 10
    finally:
        tracemalloc.stop()


OF_BYTES = unpack_arrays, KeptState.unpack


@pytest.mark.parametrize(
    "read", [*OF_BYTES, load_arrays, load_model, AlignmentTags.load, read_alignment]
)
def test_states_and_files_are_not_inflated(read: Any, bomb: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    path.write_bytes(bomb)
    raises((CheckpointError, OptionError), read, bomb if read in OF_BYTES else path)


def test_a_server_does_not_inflate_what_a_client_sends(bomb: bytes) -> None:
    for data in (bomb, np.lib.format.magic(1, 0) + bomb):
        with pytest.raises(ValueError, match="array"):
            read_array(Array("uint8", (INFLATED,), "numpy.ndarray", data))


def test_a_client_does_not_inflate_what_a_server_sends(bomb: bytes) -> None:
    class Silent(Client):
        def handlers(self) -> dict[str, Any]:
            return {"rows": (RowsMessage, lambda _: pytest.fail("it was read"))}

    context = Context(1, 1, {"partition-id": 0, "num-partitions": 2}, RecordDict(), {})
    given = bytes_to_ndarray(bomb)
    assert not isinstance(given, np.ndarray)  # Flower opens archives as they are
    refuses("FK-MESSAGE-FIELD", Silent(context).fit, [given], RowsMessage(np.zeros(0)).scalars())


# -- files of a run on a node: kernel rows of a hospital, phases of an active party


files = pytest.mark.parametrize("make", [kernel, phases])


@files
def test_the_folder_of_a_run_goes_with_its_last_file(make: File, tmp_path: Path) -> None:
    one, two = (fill(make(tmp_path, k)) for k in (1, 2))
    one.erase()
    assert not one.path.exists()
    assert two.path.is_file()
    two.erase()
    assert not two.path.parent.exists()
    two.erase()  # of no file


@files
def test_without_a_folder_it_lies_among_temporary_files_of_this_user(
    make: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = fill(make(None))
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert file.path.is_relative_to(folder)
    owner = os.getuid() + 1
    monkeypatch.setattr("os.getuid", lambda: owner)
    (tmp_path / f"fedkern-flwr-{owner}").mkdir()
    refuses("FK-FOLDER-FOREIGN", make, None)


# -- kernel rows


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows, data = kernel(tmp_path), np.random.default_rng(0).random((9, 3))
    for start, stop in ((0, 4), (4, 7), (7, 9)):
        rows.write(start, data[start:stop])
    np.testing.assert_array_equal(rows.read(0, 9), data)
    np.testing.assert_array_equal(rows.read(2, 8), data[2:8])
    assert rows.read(3, 3).shape == (0, 3)
    rows.write(4, data[:3])  # a part that comes twice
    np.testing.assert_array_equal(rows.read(4, 9), np.vstack([data[:3], data[7:]]))
    rows.write(0, data[:4])  # the first part begins a new file
    refuses("FK-STATE-GONE", rows.read, 0, 5)


# -- models

ARRAYS = {"theta": np.arange(6.0).reshape(2, 3), "items": np.arange(4)}
META = {"method": "pof-mkl", "seed": 3, "names": ["a", "b"]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "model.npz"
    save_model(path, "pof-mkl", ARRAYS, META)
    return path


def test_a_model_comes_back_as_it_was_and_says_what_it_is(path: Path) -> None:
    for method in (None, "pof-mkl"):
        arrays, meta = load_model(path, method)
        assert meta == META
        assert arrays.keys() == ARRAYS.keys()
        for name, found in arrays.items():
            np.testing.assert_array_equal(found, ARRAYS[name])
    head: dict[str, Any] = {"format": "fedkern-flwr model", "version": 1, "method": "pof-mkl"}
    assert load_arrays(path)[1]["file"] == {**head, "fedkern_flwr": __version__}


def test_a_damaged_file_is_refused_or_its_damage_does_not_matter(path: Path) -> None:
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for end in rng.integers(0, len(whole), 60):
        path.write_bytes(whole[:end])
        refuses("FK-MODEL-DAMAGED", load_model, path)
    for place in rng.integers(0, len(whole), 400):
        damaged = bytearray(whole)
        damaged[place] ^= int(rng.integers(1, 256))
        path.write_bytes(bytes(damaged))
        try:
            arrays, meta = load_model(path)
        except CheckpointError:
            continue
        assert meta == META  # a byte of the archive that nobody reads, such as a date
        for name in arrays.keys() & ARRAYS.keys():
            np.testing.assert_array_equal(arrays[name], ARRAYS[name])


# -- the state of a run on a node's disk: whose it is, which of two is newer, where it is


SESSION, ASKED = "5e1f", {"session": "5e1f", "phase": "any"}


def node(**more: Any) -> Context:
    """Return the context of a node that was just started."""
    given: dict[str, Any] = {"run_id": 7, "node_id": 2**63 + 5, "run_config": {"rounds": 3}}
    given |= {"node_config": {"partition-id": 1}, "state": RecordDict()}
    return Context(**{**given, **more})


def answer(context: Context, file: Path, done: int, *, secure: bool = True) -> None:
    """Answer a message: a round is done."""
    with on_disk(context, file, ASKED):
        SessionState(SESSION, done, b"own").store(context)
        RunRecord(SESSION, secure=secure).store(context)
        if secure:
            store_state(context, PartyState(SESSION))


def found(context: Context, file: Path) -> int:
    """Return which round a node takes itself to have done; without answering anything."""
    before = file.read_bytes()
    with on_disk(context, file, ASKED):
        number = SessionState.load(context).round
    file.write_bytes(before)
    return number


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return where a run is kept of which two rounds are done."""
    path = tmp_path / "run" / "partition-1.context"
    context = node()
    answer(context, path, 1)
    answer(context, path, 2)
    return path


def test_a_restarted_node_has_its_state_for_its_user_alone(file: Path) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    context = node()
    context.state["of-the-frame"] = ConfigRecord({"table": "x"})  # read before the state is taken
    assert found(context, file) == 2


def test_no_other_node_run_or_session_has_it(file: Path) -> None:
    others: list[dict[str, Any]] = [
        {"run_id": 8}, {"node_id": 6}, {"node_config": {"partition-id": 2}},
    ]  # fmt: skip
    for other in others:
        assert found(node(**other), file) == 0
    context = node()
    for _ in range(3):  # another session of the same run of Flower, of which more is known
        with on_disk(context, file.with_name("partition-1.other"), {"session": "another"}):
            SessionState("another").store(context)
    assert found(context, file) == 0
    twin = file.with_name("partition-1.twin")
    twin.write_bytes(file.read_bytes())
    context = node()
    with on_disk(context, twin, {"session": "another"}):
        assert not context.state
    twin.write_bytes(file.read_bytes()[:-5])  # damaged, but of a run that is resumed
    with on_disk(node(run_id=8), twin, ASKED):
        pass
    context = node()
    with on_disk(context, file, {**ASKED, "phase": "describe", "nonces": "{}"}):  # with new keys
        assert not context.state


def test_nothing_that_a_server_says_brings_an_older_state_back(file: Path) -> None:
    """Its process was killed as it had written: a round would be done again, with its masks."""
    memory = node()
    with on_disk(memory, file, ASKED):
        pass
    old = RecordDict(dict(memory.state.items()))
    answer(memory, file, 3)
    for phase in ("any", "describe"):
        context = node(state=RecordDict(dict(old.items())))
        with on_disk(context, file, {**ASKED, "phase": phase, "resume_round": 1, "nonces": "{}"}):
            assert SessionState.load(context).round == 3
    context = node(state=RecordDict(dict(old.items())))
    SessionState("another").store(context)  # it was refused when it was to be opened
    assert found(context, file) == 3


def test_the_newer_of_memory_and_disk_is_taken(file: Path) -> None:
    """The process that answers is killed when it has written: the SuperNode has the older state."""
    memory = node()
    with on_disk(memory, file, ASKED):
        pass
    old = RecordDict(dict(memory.state.items()))
    answer(memory, file, 3)
    assert found(node(state=old), file) == 3
    before = file.read_bytes()
    answer(memory, file, 4)
    file.write_bytes(before)  # as if the disk had been full
    assert found(memory, file) == 4
    with on_disk(memory, file, {**ASKED, "phase": "last"}):
        erase_state(memory)
        memory.state["an answer"] = ConfigRecord({"told": 1})
    file.write_bytes(before)  # as if the power had been cut before it was gone
    context = node()
    with on_disk(context, file, ASKED):
        assert "an answer" in context.state


def test_a_message_that_fails_leaves_what_it_fixed(file: Path) -> None:
    context = node()

    def fail() -> None:
        SessionState(SESSION, 2, b"fixed").store(context)
        raise KeyError

    with pytest.raises(KeyError), on_disk(context, file, ASKED):
        fail()
    context = node()
    with on_disk(context, file, ASKED):
        assert SessionState.load(context).payload == b"fixed"
    other = file.with_name("partition-1.new")
    with pytest.raises(KeyError), on_disk(node(), other, ASKED):  # refused when it is opened
        raise KeyError
    assert not other.exists()


@pytest.mark.promise("restart-erased")
@pytest.mark.parametrize("phase", ["finish", "break", "last"])
def test_the_end_erases_it(file: Path, phase: str, tmp_path: Path) -> None:
    """But for the last answer, which may be asked for again until the node opens another run."""
    context, last = node(), file.with_suffix(".last")
    file.with_name(f".{file.name}.0a1b.tmp").write_bytes(b"its process was killed as it wrote")
    secret = PartyState(SESSION).pack()
    with on_disk(context, file, {"session": SESSION, "phase": phase}):
        erase_state(context)
        context.state["an answer"] = ConfigRecord({"told": 1})
    assert [*file.parent.glob(".*")] == []
    assert not file.exists()
    assert last.exists() == (phase == "last")
    if phase == "last":
        assert secret not in last.read_bytes()
        context = node()
        with on_disk(context, file, ASKED):
            assert context.state["an answer"]["told"] == 1
        forget_last(tmp_path, 0)
        assert last.exists()
        forget_last(tmp_path, 1)
    assert not file.parent.exists()


def test_what_cannot_be_written_is_one_line(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refuses("FK-FILE-WRITE", answer, node(), file, 3)
    file.write_bytes(file.read_bytes()[:-5])
    refuses("FK-CHECKPOINT-DAMAGED", answer, node(), file, 3)


# -- folders of runs


def test_folders_are_named_by_time_and_run(tmp_path: Path) -> None:
    place = run_folder(tmp_path, SESSION, 0)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d{4}Z-5e1f", place.name)
    assert session_of(place) == SESSION
    names = ("2024-01-31T2359Z-5e1f", "2024-01-31T2359Z-5e1f0", "freeze-5e1f", "x5e1f")
    for name in names:
        (tmp_path / name).mkdir()
    assert run_folder(tmp_path, SESSION, 0) == tmp_path / names[0]
    assert [session_of(Path(name)) for name in names] == [SESSION, "5e1f0", "", "x5e1f"]
    second = tmp_path / "2024-02-01T0000Z-5e1f"  # of a node that began a minute later
    second.mkdir()
    (second / "partition-1.context").touch()
    assert run_folder(tmp_path, SESSION, 0) == tmp_path / names[0]
    assert run_folder(tmp_path, SESSION, 1) == second
    (tmp_path / SESSION).mkdir()  # of an earlier release
    assert run_folder(tmp_path, SESSION, 1) == tmp_path / SESSION
