"""Examples in docstrings print what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("fedkern_flwr", "strategies", "clients", "simulations")
WITH_EXAMPLES = sorted(
    path.relative_to(ROOT)
    for room in ROOMS
    for path in (ROOT / room).rglob("*.py")
    if "\n    >>> " in (text := path.read_text("utf-8")) or "\n>>> " in text
)


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=str)
def test_an_example_prints_what_it_says(path: Path) -> None:
    parts = [part for part in path.with_suffix("").parts if part != "__init__"]
    name = ".".join(parts if parts[0] == "fedkern_flwr" else ("fedkern_flwr", *parts))
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted
    assert not found.failed
