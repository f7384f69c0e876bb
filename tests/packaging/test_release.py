"""What `make release` does to what it builds; the release itself builds twice and installs it."""

from __future__ import annotations

import hashlib
import io
import re
import sys
import tarfile
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="no source tree here")


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield import_module("release")
    sys.modules.pop("release")


def packed(names: str, **who: Any) -> bytes:
    """Return an sdist with a file for each letter, made by somebody at some time."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            for key, value in who.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(name.encode()))
    return out.getvalue()


def test_an_sdist_does_not_tell_when_and_by_whom_it_was_made(release: Any) -> None:
    one = packed("abc", mtime=1e9, uid=7, uname="anna")
    other = packed("cab", mtime=1.5e9 + 0.25, gid=8, gname="staff")
    assert one != other
    assert release.settled(one, 5) == release.settled(other, 5) != release.settled(one, 6)
    with tarfile.open(fileobj=io.BytesIO(release.settled(one, 5))) as archive:
        assert [m.name for m in archive.getmembers()] == ["a", "b", "c"]
        assert {(m.mtime, m.uid, m.uname) for m in archive.getmembers()} == {(5, 0, "")}
        found = archive.extractfile("b")
        assert found is not None
        assert found.read() == b"b"


def test_a_lock_has_the_wheel_and_names_no_server(release: Any, tmp_path: Path) -> None:
    wheel = tmp_path / "fedkern_flwr-0.2.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    lock = (
        f"--index-url https://example.org/simple\nflwr==1.42.0 \\\n    --hash=sha256:{'0' * 64}\n"
    )
    found = release.pinned(wheel, lock)
    digest = hashlib.sha256(b"wheel").hexdigest()
    assert f"\nfedkern-flwr==0.2.0 --hash=sha256:{digest}\nflwr==1.42.0 \\\n    --hash=" in found
    assert "example.org" not in found


def test_the_list_of_packages_names_licences_and_who_needs_them(release: Any) -> None:
    page = release.packages(distributions())
    rows = dict(re.findall(r"^\| ([\w.-]+) \| \S+ \| (.* \| .*) \|$", page, flags=re.M))
    assert rows["flwr"] == "Apache-2.0 | fedkern-flwr"
    assert "flwr" in rows["grpcio"]
    assert "pytest" not in rows  # no node needs it
    assert all(not licence.startswith("? ") for licence in rows.values())
