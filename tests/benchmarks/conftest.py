"""The scripts of ``benchmarks/`` are no package: they find each other beside them."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    """Return what imports a script by its name."""
    monkeypatch.syspath_prepend(FOLDER)

    def imported(name: str) -> ModuleType:
        return importlib.import_module(name)

    return imported
