"""The private files of a run on a node: kernel rows of a hospital, phases of an active party."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.clients.fdskl_table import PhaseStore
from fedkern_flwr.clients.fed_cg_kernel import KernelRows
from fedkern_flwr.errors import StateError

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


files = pytest.mark.parametrize("make", [kernel, phases])


@files
def test_only_this_user_reads_the_file(make: File, tmp_path: Path) -> None:
    path = fill(make(tmp_path / "new")).path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


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
    with pytest.raises(StateError, match="belongs to somebody else; give the client a state_dir"):
        make(None)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    rows, victim = kernel(tmp_path), tmp_path / "victim"
    rows.path.parent.mkdir()
    victim.write_bytes(b"precious" * 10)
    rows.path.symlink_to(victim)
    with pytest.raises(StateError, match="is a link"):
        rows.write(2, np.ones((1, 3)))
    rows.write(0, np.ones((1, 3)))
    assert victim.read_bytes() == b"precious" * 10


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
    with pytest.raises(StateError, match="partition 2: the kernel rows of this run are gone from"):
        rows.read(0, 5)


@pytest.mark.parametrize("damage", ["deleted", "cut off"])
def test_a_file_with_a_hole_is_not_read(damage: str, tmp_path: Path) -> None:
    """Rows that are gone must not come back as zeros when later ones are written."""
    rows = kernel(tmp_path)
    rows.write(0, np.ones((4, 3)))
    if damage == "deleted":
        rows.path.unlink()
    else:
        rows.path.write_bytes(rows.path.read_bytes()[:-8])
    with pytest.raises(StateError):
        rows.write(4, np.ones((2, 3)))
    with pytest.raises(StateError):
        rows.read(0, 4)
