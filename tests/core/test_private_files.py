"""Files with private data: closed to others from the first byte; archives that would be too large.

Nobody follows a link that somebody else put there, and nothing is inflated unread.
"""

from __future__ import annotations

import copy
import csv
import io
import os
import secrets
import stat
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Context, RecordDict
from flwr.compat.common.parameter import bytes_to_ndarray
from refusals import refused

from fedkern_flwr.alignment import AlignmentTags, read_alignment
from fedkern_flwr.checkpoint import load_arrays, save_arrays, unpack_arrays, write_atomically
from fedkern_flwr.clients.fdskl_table import PhaseStore
from fedkern_flwr.clients.fed_cg_kernel import KernelRows, RunState
from fedkern_flwr.clients.party_table import PartyTable
from fedkern_flwr.errors import CheckpointError, OptionError
from fedkern_flwr.model_file import load_model
from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.private_files import make_private_folder
from fedkern_flwr.simulations.deployment.certificates import make_certificates, make_node_key
from fedkern_flwr.simulations.deployment.node_files import write_node
from fedkern_flwr.simulations.deployment.processes import Processes
from fedkern_flwr.simulations.run.folders import make_folder
from fedkern_flwr.simulations.run.run_folder import RunFolder
from fedkern_flwr.wire import PhaseMessage, array
from fedkern_flwr.wire.numpy_format import read_array

TABLE = {"x": np.ones((2, 1)), "ids": (1, 2), "alignment_key": bytes(32)}


@pytest.fixture(autouse=True)
def nothing_masked() -> Iterator[None]:
    """The modes are those that are asked for: the user's umask takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def keep_rows(folder: Path) -> None:
    KernelRows(folder, "s", 0, 2).write(0, np.ones((3, 2)))


def keep_phases(folder: Path) -> None:
    store, rows = PhaseStore(folder, "s", 0, 3, 2, 16), np.arange(3)
    store.take(rows, np.zeros(3, int), 2, np.zeros(6, np.uint16))


WRITERS: dict[str, Callable[[Path], Any]] = {
    "state": lambda f: write_atomically(f / "new" / "s.state", b"1", private=True),
    "model": lambda f: save_arrays(f / "new" / "model.npz", {"a": np.ones(3)}, {}),
    "kernel rows": keep_rows,
    "phases": keep_phases,
    "server key": make_certificates,
    "node key": lambda f: make_node_key(f / "node"),
    "node": lambda f: write_node(f / "node", 0, 2, TABLE),
    "log": lambda f: Processes({}, f / "pids").start("one", ["/bin/true"], f / "new" / "one.log"),
}
PUBLIC = {"ca.crt", "server.pem", "node.pub"}


@pytest.mark.promise("private-files-closed")
@pytest.mark.parametrize("name", WRITERS)
def test_private_files_are_made_closed_to_others(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_link_at_the_temporary_name_is_not_followed(
    private: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_link_in_place_of_the_file_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "of somebody else"
    target.write_text("kept")
    (tmp_path / "secret").symlink_to(target)
    write_atomically(tmp_path / "secret", b"private", private=True)
    assert target.read_text() == "kept"
    assert not (tmp_path / "secret").is_symlink()
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "pipe", b"")
    assert (tmp_path / "pipe").is_fifo()


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "folder", b"private", private=True)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("trap", ["link", "dangling link", "hard link", "open to all", "folder"])
def test_files_that_are_not_ours_are_refused(trap: str, tmp_path: Path) -> None:
    rows = KernelRows(tmp_path, "s", 0, 2)
    rows.write(0, np.ones((3, 2)))
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
    with refused("FK-FILE-FOREIGN"):
        rows.open()
    assert not (tmp_path / "nowhere").exists()
    assert other.read_bytes() == b""


# -- what a party writes and remembers


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ((), {"output_0": "0.25", "output_1": "-0.5"}),
        ((2000002, 7, 1.5), {"output_0": "0.25", "output_1": "-0.5", "class": "2000002"}),
        (("owl", "cat", "dog"), {"output_0": "0.25", "output_1": "-0.5", "class": "owl"}),
    ],
)
def test_predictions_are_written_for_this_party_s_eyes(
    classes: Any, expected: dict[str, str], tmp_path: Path
) -> None:
    """In the order of its table, classes as they were declared."""
    x = np.ones((2, 2))
    ids = ["z,1", 'q"']
    table = PartyTable(
        "p", x, None, None, x, None, ids, columns=None, classes=classes, label_bound=1.0
    )
    path, outputs = tmp_path / "out" / "predictions.csv", np.array([[0.5, 1.0], [0.25, -0.5]])
    if classes:
        outputs, expected = np.c_[outputs, [[-1.0], [-1.0]]], {**expected, "output_2": "-1.0"}
    table.write_predictions(path, np.array([1, 0]), outputs)
    assert mode(path) == 0o600
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert rows[0] == {"id": "z,1", **expected}
    assert [row["id"] for row in rows] == ids


def test_a_state_survives_as_bytes_and_shows_no_secret() -> None:
    kept = RunState({"landmarks": 3}, b"\x5e" * 32, {"a": np.array([0.5, np.inf])})
    again = RunState.unpack(kept.pack())
    assert (again.settings, again.seed) == (kept.settings, kept.seed)
    assert again.arrays["a"].tolist() == [0.5, np.inf]
    assert "5e5e" not in repr(kept)
    assert "^^" not in repr(kept)
    assert kept.begun
    assert not RunState.unpack(b"").begun


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


@dataclass(frozen=True)
class Rows(PhaseMessage):
    phase = "rows"
    rows: np.ndarray = array("rows")  # noqa: RUF009


BOMBS = {"compressed": compressed, "shared": shared}


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


@pytest.mark.parametrize("read", [unpack_arrays, KeptState.unpack])
def test_kept_states_are_not_inflated(read: Callable[[bytes], Any], bomb: bytes) -> None:
    with refused("FK-CHECKPOINT-DAMAGED"):
        read(bomb)


@pytest.mark.parametrize("read", [load_arrays, load_model, AlignmentTags.load, read_alignment])
def test_files_are_not_inflated(read: Callable[[Path], Any], bomb: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    path.write_bytes(bomb)
    with pytest.raises((CheckpointError, OptionError)):
        read(path)


def test_a_server_does_not_inflate_what_a_client_sends(bomb: bytes) -> None:
    for data in (bomb, np.lib.format.magic(1, 0) + bomb):
        with pytest.raises(ValueError, match="array"):
            read_array(Array("uint8", (INFLATED,), "numpy.ndarray", data))


def test_a_client_does_not_inflate_what_a_server_sends(bomb: bytes) -> None:
    class Client(PhaseClient):
        def handlers(self) -> dict[str, Any]:
            return {"rows": (Rows, lambda _: pytest.fail("it was read"))}

    context = Context(1, 1, {"partition-id": 0, "num-partitions": 2}, RecordDict(), {})
    given = bytes_to_ndarray(bomb)
    assert not isinstance(given, np.ndarray)  # Flower opens archives as they are
    with refused("FK-MESSAGE-FIELD"):
        Client(context).fit([given], Rows(np.zeros(0)).scalars())
