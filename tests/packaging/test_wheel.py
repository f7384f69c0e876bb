"""The wheel: one top-level package with everything in it, usable without the source tree."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import fedkern_flwr

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.packaging,
    pytest.mark.skipif(not (ROOT / "strategies").is_dir(), reason="no source tree here"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = ["pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(ROOT)]
    subprocess.run([sys.executable, "-m", *command], check=True, timeout=240, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def test_wheel_holds_one_package_with_every_module(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"fedkern_flwr"}
    rooms = {"fedkern_flwr": ""} | {n: f"{n}/" for n in ("strategies", "clients", "simulations")}
    for folder, prefix in rooms.items():
        for source in (ROOT / folder).rglob("*.py"):
            inner = source.relative_to(ROOT / folder)
            assert f"fedkern_flwr/{prefix}{inner.as_posix()}" in names
    assert "fedkern_flwr/py.typed" in names
    for data in (ROOT / "simulations").glob("*/*.toml"):  # tables of papers and of attacks
        assert f"fedkern_flwr/{data.relative_to(ROOT)}" in names
    for file in (ROOT / "simulations/apps").glob("*/*.*"):
        if "__pycache__" not in file.parts:
            assert f"fedkern_flwr/{file.relative_to(ROOT)}" in names


def test_wheel_works_without_the_source_tree(wheel, tmp_path):
    target = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    program = (
        "import fedkern_flwr, fedkern_flwr.strategies as s, fedkern_flwr.clients as c;"
        "import fedkern_flwr.simulations.cli.main as m;"
        f"assert fedkern_flwr.__file__.startswith({str(target)!r}), fedkern_flwr.__file__;"
        "assert s.__file__.startswith(fedkern_flwr.__path__[0]);"
        "assert m.run(['doctor']) == 0"
    )
    around = {"PYTHONPATH": str(target), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", program]
    subprocess.run(command, cwd=tmp_path, env=around, check=True, timeout=120, capture_output=True)


def test_version_is_that_of_the_metadata():
    from importlib.metadata import version

    assert version("fedkern-flwr") == fedkern_flwr.__version__
