"""The picture of methods: rows without a stream have a method, exchanges are those of the table."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no source tree here")


def test_picture_and_table_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "pictures")
    sys.modules.pop("choice", None)
    import choice

    text = (DOCS / "concepts.md").read_text("utf-8").split("## Which method when")[1]
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    stated: dict[str, str] = {}
    for row in rows:
        cells = row.split("|")
        name = re.sub(r"\[(.*?)\].*", r"\1", cells[3]).strip()
        stated[name] = stated.get(name, "") + cells[4]
    by_rows = []
    for holds, _, branches in choice.TREE:
        for _, method, exchanges in branches:
            name = method.partition(",")[0]
            assert set(re.findall(r"\d+", exchanges)) <= set(re.findall(r"\d+", stated[name]))
            by_rows += [method] * holds.startswith("rows\n")
    assert by_rows == ["POF-MKL", "FedCG, no centres", "HierarchicalSVM"]
