"""What `make release` leaves in dist/; `release.py packages` prints the packages of a node.

A wheel and an sdist of the last commit, twice the same bytes; ``requirements.txt``, which is all
that an operator installs, by its hashes; its licences as ``packages.md``, and ``sbom.json`` for
scanners (CycloneDX). The last two describe an environment into which the file was installed.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Iterable
from hashlib import sha256
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

NAME = "fedkern-flwr"
ROOT = Path(__file__).resolve().parents[1]
HEAD = """# Packages of a node

What `pip install` adds to `fedkern-flwr` at a party and at the coordinator, without extras.
`python benchmarks/release.py packages` makes this page: run it in your environment to list yours.
Licences are those that each package declares.

| package | version | licence | needed by |
|---|---|---|---|"""


# -- the files of the project


def build(source: Path, out: Path, epoch: int) -> list[Path]:
    """Build the sdist and from it the wheel; the same bytes for the same sources and setuptools.

    Parameters
    ----------
    source, out : Path
        A tree, and where both go.
    epoch : int
        Time of all files, in seconds since 1970.
    """
    os.umask(0o022)  # modes of files are in both
    around = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    run(sys.executable, "-m", "build", "--outdir", out, source, env=around)
    (sdist,) = out.glob("*.tar.gz")
    sdist.write_bytes(settled(sdist.read_bytes(), epoch))
    return sorted(out.iterdir())


def settled(sdist: bytes, epoch: int) -> bytes:
    """Return an sdist without the time and the user of its making, its files in order."""
    plain = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as old,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return gzip.compress(plain.getvalue(), mtime=epoch)


def run(*command: str | Path, **more: object) -> bytes:
    """Run a program; return what it prints to standard output."""
    arguments = [str(part) for part in command]
    return subprocess.run(arguments, check=True, stdout=subprocess.PIPE, cwd=ROOT, **more).stdout  # type: ignore[call-overload]


# -- what is installed beside them


def requirements(wheel: Path) -> str:
    """Return all packages of a node with their hashes, for every platform and Python from 3.11.

    uv, which comes with Flower, resolves them; it takes another index from ``UV_INDEX_URL``.
    """
    uv = Path(sys.executable).with_name("uv")
    how = "--universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet"
    return pinned(wheel, run(uv, "pip", "compile", *how.split(), "pyproject.toml").decode())


def pinned(wheel: Path, lock: str) -> str:
    """Return a lock with the wheel, which pip finds beside it, and without names of servers."""
    version, found = wheel.name.split("-")[1], sha256(wheel.read_bytes()).hexdigest()
    lines = [line for line in lock.splitlines() if not line.startswith("-")]
    return "\n".join(["--find-links .", f"{NAME}=={version} --hash=sha256:{found}", *lines, ""])


def packages(installed: Iterable[Distribution]) -> str:
    """Return the page of all packages that the project needs, of those that are installed."""
    found = {simple(one.metadata["Name"]): one for one in installed}
    by: dict[str, set[str]] = {}
    left, seen = [(NAME, frozenset[str]())], set()
    while left:
        name, extras = left.pop()
        for needed in required(found[name], extras):
            key = simple(needed.name)
            if key not in found:
                continue  # another platform needs it
            by.setdefault(key, set()).add(name)
            step = key, frozenset(needed.extras)
            if step not in seen:
                seen.add(step)
                left.append(step)
    rows = [HEAD]
    for key in sorted(by):
        meta, whose = found[key].metadata, ", ".join(sorted(by[key]))
        rows.append(f"| {meta['Name']} | {meta['Version']} | {licence(found[key])} | {whose} |")
    return "\n".join([*rows, ""])


def required(found: Distribution, extras: frozenset[str]) -> list[Requirement]:
    """Return what a distribution requires here, with some of its extras."""
    needs = [Requirement(text) for text in found.requires or ()]
    wanted = [{"extra": extra} for extra in (*extras, "")]
    return [r for r in needs if r.marker is None or any(map(r.marker.evaluate, wanted))]


def licence(found: Distribution) -> str:
    """Return the licence that a distribution declares, in one line."""
    meta = found.metadata
    classes = [c.split(" :: ")[-1] for c in meta.get_all("Classifier", []) if "License ::" in c]
    text = meta.get("License-Expression") or ", ".join(classes) or meta.get("License") or "?"
    return str(text).splitlines()[0]


def simple(name: str) -> str:
    """Return a package's name as indexes have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


# -- all of it


def release(dist: Path) -> None:
    """Make all files, in place of those of an earlier release.

    Raises
    ------
    SystemExit
        The tree has changes that no commit has, or two builds differ.
    """
    if run("git", "status", "--porcelain"):
        raise SystemExit("commit or remove your changes first: a release is made of a commit")
    epoch = int(run("git", "log", "-1", "--format=%ct"))
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as place:
        folder, built = Path(place), []
        for name in ("first", "second"):
            with tarfile.open(fileobj=io.BytesIO(run("git", "archive", "HEAD"))) as tree:
                tree.extractall(folder / name / "source", filter="data")
            files = build(folder / name / "source", folder / name / "dist", epoch)
            built.append({file.name: file.read_bytes() for file in files})
        if built[0] != built[1]:
            raise SystemExit("two builds of the same commit differ")
        shutil.copytree(folder / "first/dist", dist)
        (wheel,) = dist.glob("*.whl")
        lock, bare = dist / "requirements.txt", folder / "bare"
        lock.write_text(requirements(wheel))
        venv.create(bare, with_pip=True)
        run(bare / "bin/pip", "install", "--quiet", "--require-hashes", "-r", lock)
        (site,) = bare.glob("lib/python*/site-packages")
        (dist / "packages.md").write_text(packages(distributions(path=[str(site)])))
        scan = ("environment", "--pyproject", "pyproject.toml", "--output-reproducible")
        cyclonedx = Path(sys.executable).with_name("cyclonedx-py")
        run(cyclonedx, *scan, "--output-file", dist / "sbom.json", bare / "bin/python")
    for file in sorted(dist.iterdir()):
        print(f"{sha256(file.read_bytes()).hexdigest()}  dist/{file.name}")


if __name__ == "__main__":
    if sys.argv[1:] == ["packages"]:
        print(packages(distributions()), end="")
    else:
        release(ROOT / "dist")
