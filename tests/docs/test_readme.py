"""The README: its code imports what there is, and every method leads to a page and to figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fedkern_flwr import strategies
from fedkern_flwr.simulations.lab.presets import NAMES

ROOT = Path(__file__).resolve().parents[2]
README, RESULTS = ROOT / "README.md", ROOT / "docs/results-archive.md"
METHODS = ("POFMKL", "FedCG", "FDSKL", "SecureGram", "FedCFK", "HierarchicalSVM")

pytestmark = pytest.mark.skipif(not README.is_file(), reason="no source tree here")


def methods() -> list[list[str]]:
    """Return the cells of the table of methods."""
    body = README.read_text("utf-8").split("\n## Methods\n")[1].split("\n|---")[1].split("\n\n")[0]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in body.splitlines()[1:]]


def python_blocks() -> list[str]:
    """Return the examples in Python."""
    return re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), flags=re.S)


def test_both_sides_import_what_there_is() -> None:
    blocks = python_blocks()
    assert len(blocks) == 3
    for block in blocks:
        compile(block, "README", "exec")
        exec("\n".join(re.findall(r"^from (?:fedkern_flwr|flwr).*$", block, flags=re.M)), {})


def test_the_example_of_scikit_learn_runs() -> None:
    (block,) = [b for b in python_blocks() if "cross_val_score" in b]
    space: dict[str, Any] = {}
    exec(block, space)
    assert len(space["scores"]) == 5
    assert space["scores"].mean() > 0.96


def test_methods_are_the_strategies() -> None:
    named = [re.findall(r"`(\w+)`", row[0])[-1] for row in methods()]
    assert tuple(named) == METHODS
    assert set(named) <= set(strategies.__all__)


def section(anchor: str) -> str:
    """Return the section of the results that has this anchor."""
    for part in re.split(r"^(?=## )", RESULTS.read_text("utf-8"), flags=re.M):
        heading = part.splitlines()[0].removeprefix("## ")
        if re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") == anchor:
            return part
    raise AssertionError(f"the results have no section {anchor}")


def test_every_method_links_to_figures_with_the_commands_that_made_them() -> None:
    for row in methods():
        anchors = re.findall(r"\(docs/results-archive\.md#([\w-]+)\)", row[-1])
        assert anchors, row[0]
        for anchor in anchors:
            commands = re.findall(r"`fedkern compare ([\w-]+)", section(anchor))
            assert commands, f"{anchor} states no command"
            assert set(commands) <= set(NAMES), anchor
