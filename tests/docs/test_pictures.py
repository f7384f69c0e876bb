"""The pictures of the concepts are those that their script draws."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

PICTURES = Path(__file__).resolve().parents[2] / "docs/pictures"

pytestmark = pytest.mark.skipif(not PICTURES.is_dir(), reason="no source tree here")


def sizes(folder: Path) -> dict[str, tuple[str, str]]:
    """Return name -> (title, size) of the pictures in a folder."""
    found = {}
    for path in folder.glob("*.svg"):
        text = path.read_text("utf-8")
        title = re.search(r"<dc:title>(.*?)</dc:title>", text)
        view = re.search(r'viewBox="([^"]*)"', text)
        assert title is not None
        assert view is not None
        found[path.name] = (title[1], view[1])
    return found


def test_pictures_are_drawn_by_the_script(tmp_path: Path) -> None:
    for script in PICTURES.glob("*.py"):
        shutil.copy(script, tmp_path)
    subprocess.run([sys.executable, "draw.py"], cwd=tmp_path, check=True, timeout=120)
    drawn = sizes(tmp_path)
    assert len(drawn) == 10
    assert drawn == sizes(PICTURES)
