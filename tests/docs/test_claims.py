"""The page of claims: every test that it names is there, and no claim goes without."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "claims.md"
#: Pages whose claims are in the tables: a section links each of them.
PAGES = (
    "deploy.md",
    "security.md",
    "audit.md",
    "online-methods.md",
    "fed-cg.md",
    "fdskl.md",
    "secure-gram.md",
    "hierarchical-svm.md",
    "secure-aggregation.md",
    "privacy-budget.md",
)

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="no source tree here")


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names of the tests of a file, those in classes as ``Class::name``."""
    names = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        names |= {prefix + each.name for each in inner if isinstance(each, ast.FunctionDef)}
    return frozenset(name for name in names if name.rpartition("::")[2].startswith("test_"))


def rows(text: str) -> list[tuple[str, str]]:
    """Return the rows of the tables: claim, and the cell that names its tests."""
    found = re.findall(r"^\| (.*?) \| (.*) \|$", text, flags=re.M)
    return [row for row in found if row[0] != "claim"]


def wrong(claim: str, cell: str) -> list[str]:
    """Return what is wrong with a row."""
    named = re.findall(r"`(tests/[^`:]*)::([^`\[]*)(?:\[[^`]*\])?`", cell)
    found = [
        f"{claim}: {file}::{name} is not there"
        for file, name in named
        if not (ROOT / file).is_file() or name not in names_in(ROOT / file)
    ]
    if len(named) < max(1, cell.count("`") // 2):
        found.append(f"{claim}: names no test, or one that is not understood")
    return found


def test_every_claim_names_tests_that_there_are() -> None:
    table = rows(PAGE.read_text("utf-8"))
    assert len(table) > 100
    assert [line for claim, cell in table for line in wrong(claim, cell)] == []
    claims = [claim for claim, _ in table]
    assert len(set(claims)) == len(claims)


def test_what_is_wrong_is_noticed() -> None:
    here = "tests/docs/test_claims.py"
    assert wrong("a", f"`{here}::test_what_is_wrong_is_noticed[case]`") == []
    for cell in (
        "",
        "by design",
        f"`{here}::test_nothing`",
        f"`{here}::wrong`",
        "`tests/docs/nowhere.py::test_x`",
        f"`{here}::test_what_is_wrong_is_noticed`, `python -c 1`",
    ):
        assert wrong("a", cell), cell


def test_every_page_with_claims_has_its_sections() -> None:
    sections = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.M)[1:]
    assert all(rows(section) for section in sections)
    linked = {target for s in sections for target in re.findall(r"\]\((\w[\w-]*\.md)", s)}
    assert linked == set(PAGES)
