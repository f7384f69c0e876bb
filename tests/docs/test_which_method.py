"""The picture of methods: its exchanges are those of the table beside it."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no source tree here")


def test_picture_and_table_say_the_same() -> None:
    texts = ElementTree.parse(DOCS / "pictures/which-method.svg").iter(
        "{http://www.w3.org/2000/svg}text"
    )
    said = [text.text or "" for text in texts]
    page = (DOCS / "concepts.md").read_text("utf-8").split("## Which method when")[1]
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    stated: dict[str, str] = {}
    for row in rows:
        cells = row.split("|")
        name = re.sub(r"\[(.*?)\].*", r"\1", cells[3]).strip()
        stated[name] = stated.get(name, "") + cells[4]
    drawn: dict[str, list[str]] = {}
    for method, exchanges in pairwise(said):
        if (name := method.partition(",")[0]) in stated:
            assert set(re.findall(r"\d+", exchanges)) <= set(re.findall(r"\d+", stated[name]))
            drawn.setdefault(name, []).append(exchanges)
    assert drawn.keys() == stated.keys()
    assert all(re.search(r"\d", text) for texts in drawn.values() for text in texts)
