"""The wheel, as users get it: one package with every file, usable without the source tree.

It is built from what the image of docs/deploy copies, and from nothing else.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import fedkern_flwr

ROOT = Path(__file__).resolve().parents[2]
OTHERS = ("strategies", "clients", "simulations")
ROOMS = {"fedkern_flwr": ""} | {name: f"{name}/" for name in OTHERS}

pytestmark = [
    pytest.mark.packaging,
    pytest.mark.skipif(not (ROOT / "strategies").is_dir(), reason="no source tree here"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    dockerfile = (ROOT / "docs/deploy/Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--)(.*) \S+$", dockerfile, flags=re.M):
        for name in line.split():
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, source / name)
    command = ["pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(source)]
    subprocess.run([sys.executable, "-m", *command], check=True, timeout=240, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def test_wheel_holds_one_package_with_every_file_of_the_four_rooms(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {
        f"fedkern_flwr/{prefix}{file.relative_to(ROOT / room).as_posix()}"
        for room, prefix in ROOMS.items()
        for file in (ROOT / room).rglob("*")
        # what was computed of the papers' tables is of the repository, not of the package
        if file.is_file() and not {"__pycache__", "results"} & {*file.parts}
    }
    assert held == wanted


def test_wheel_works_without_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    program = (
        "import fedkern_flwr, fedkern_flwr.strategies as s, fedkern_flwr.clients as c;"
        "import fedkern_flwr.simulations.cli.main as m;"
        f"assert fedkern_flwr.__file__.startswith({str(target)!r}), fedkern_flwr.__file__;"
        "assert s.__file__.startswith(fedkern_flwr.__path__[0]);"
        "assert all(getattr(s, name) for name in s.__all__);"
        "assert all(getattr(c, name) for name in c.__all__);"
        "assert m.run(['doctor']) == 0;"
        "assert m.run(['audit', 'fed-cg', '--help']) == 0;"
        "assert m.run(['init', 'fed-cg', 'app']) == 0"
    )
    around = {"PYTHONPATH": str(target), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", program]
    subprocess.run(command, cwd=tmp_path, env=around, check=True, timeout=120, capture_output=True)


def test_version_is_that_of_the_metadata(wheel: Path) -> None:
    assert version("fedkern-flwr") == fedkern_flwr.__version__ == wheel.name.split("-")[1]
