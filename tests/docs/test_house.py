"""The picture of the house in CONTRIBUTING.md is that of the imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="no source tree here")
def test_the_picture_is_that_of_the_imports() -> None:
    house = [sys.executable, str(ROOT / "benchmarks/house.py"), "--picture"]
    drawn = subprocess.run(house, capture_output=True, text=True, check=True, timeout=60).stdout
    assert drawn.strip() in (ROOT / "CONTRIBUTING.md").read_text("utf-8")
