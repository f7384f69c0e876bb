"""No mask is made of poor randomness: who may import what, read from the sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedkern_flwr.node.sums as client_sums
from fedkern_flwr import secure_sum

FOLDER = Path(str(secure_sum.__file__)).parent
SOURCES = [*sorted(FOLDER.rglob("*.py")), Path(str(client_sums.__file__))]
BANNED = ("random", "numpy.random", "fedkern_flwr.seeding")


def package_of(path: Path) -> list[str]:
    return ["fedkern_flwr", "clients" if path.parent != FOLDER else "secure_sum"]


def resolve(node: ast.ImportFrom, package: list[str]) -> str:
    if not node.level:
        return node.module or ""
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def names_used(source: str, package: list[str]) -> set[str]:
    """Dotted names of all that a module imports or reaches through an imported module."""
    tree = ast.parse(source)
    alias: dict[str, str] = {}
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                used.add(name.name)
                alias[name.asname or name.name.split(".")[0]] = (
                    name.name if name.asname else name.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            base = resolve(node, package)
            for name in node.names:
                used |= {base, f"{base}.{name.name}"}
                alias[name.asname or name.name] = f"{base}.{name.name}"
        elif isinstance(node, ast.Call):
            words = [a.value for a in node.args if isinstance(a, ast.Constant)]
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if called in ("__import__", "import_module", "getattr"):
                used |= {word for word in words if isinstance(word, str)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts = [node.attr]
            inner: ast.expr = node.value
            while isinstance(inner, ast.Attribute):
                parts.append(inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in alias:
                used.add(".".join([alias[inner.id], *reversed(parts)]))
    return used


def check_source(source: str, package: list[str]) -> None:
    used = names_used(source, package)
    found = {n for n in used for banned in BANNED if n == banned or n.startswith(f"{banned}.")}
    assert not found, f"uses {sorted(found)}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_masks_come_from_the_operating_system(path: Path) -> None:
    check_source(path.read_text(encoding="utf-8"), package_of(path))


def test_all_modules_are_scanned() -> None:
    names = {path.stem for path in SOURCES}
    assert {"masks", "party", "keys", "shamir", "seeds", "relay", "sums", "server"} <= names
    assert len(SOURCES) >= 14


@pytest.mark.parametrize(
    "source",
    [
        "import random",
        "import random as r",
        "from random import randbytes",
        "def f():\n    import random",
        "import numpy.random",
        "import numpy as np\nnp.random.default_rng(0)",
        "import numpy as np\nx = np.random",
        "import numpy\nnumpy.random.bytes(3)",
        "from numpy import random",
        "from numpy.random import default_rng",
        "from numpy.random._generator import Generator",
        "from ..seeding import generator",
        "from .. import seeding",
        "import fedkern_flwr.seeding",
        "from fedkern_flwr import seeding",
        "from fedkern_flwr.seeding import generator",
        "__import__('random')",
        "from importlib import import_module\nimport_module('numpy.random')",
        "import numpy as np\ngetattr(np, 'random')",
    ],
)
def test_banned_modules_are_noticed(source: str) -> None:
    """Negative control of the scan."""
    with pytest.raises(AssertionError, match="uses"):
        check_source(source, ["fedkern_flwr", "secure_sum"])


@pytest.mark.parametrize(
    "source",
    [
        "import secrets\nsecrets.token_bytes(3)",
        "import os\nos.urandom(3)",
        "import numpy as np\nnp.frombuffer(b'', np.uint8)",
        "from . import graph\nfrom ..errors import SumError",
        "randomness = 3\nimport randomish",
    ],
)
def test_other_modules_are_allowed(source: str) -> None:
    check_source(source, ["fedkern_flwr", "secure_sum"])
