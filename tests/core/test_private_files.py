"""Files with private data: closed to others from the first byte, never what a link points to."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from fedkern_flwr.checkpoint import save_arrays, write_atomically
from fedkern_flwr.clients.fdskl_table import PhaseStore
from fedkern_flwr.clients.fed_cg_kernel import KernelRows
from fedkern_flwr.private_files import create_file, make_private_folder, open_private
from fedkern_flwr.simulations.deployment.certificates import make_certificates, make_node_key
from fedkern_flwr.simulations.deployment.node_files import write_node
from fedkern_flwr.simulations.deployment.processes import Processes
from fedkern_flwr.simulations.run.folders import make_folder
from fedkern_flwr.simulations.run.run_folder import RunFolder

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
    with pytest.raises(OSError, match="what is there is no file"):
        write_atomically(tmp_path / "pipe", b"")
    assert (tmp_path / "pipe").is_fifo()


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
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


def test_a_file_of_ours_is_opened_again(tmp_path: Path) -> None:
    for text in (b"one", b"two"):
        with open_private(tmp_path / "log", append=True) as file:
            file.write(text)
    with open_private(tmp_path / "log") as file:
        assert file.read() == b"onetwo"
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "log")
