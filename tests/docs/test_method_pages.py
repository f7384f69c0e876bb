"""The pages of the methods: the same headings, and tables of options that are those of the code."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.methods.registry import METHODS, options

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

#: Page -> its methods; the first has the defaults that are not named otherwise.
PAGES = {
    "online-methods": (
        "pof-mkl",
        "ofskl",
        "ofmkl-avg",
        "vm-kofl",
        "em-kofl",
        "per-fed-avg",
        "local-only",
        "pof-rls",
    ),
    "fed-cg": ("fed-cg",),
    "fdskl": ("fdskl",),
    "secure-gram": ("secure-gram", "fed-cfk"),
    "hierarchical-svm": ("hierarchical-svm",),
    "kernel-pca": ("kernel-pca",),
}
HEADINGS = [
    "What it computes",
    "When to use it",
    "Ten lines",
    "Options",
    "What each party sees",
    "Paper versus ours",
    "Expected results",
    "Limits",
]

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no source tree here")


def sections(page: str) -> dict[str, str]:
    """Return heading -> text of the sections of a page."""
    parts = re.split(r"^## (.*)$", (DOCS / f"{page}.md").read_text("utf-8"), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(text: str, head: str) -> list[list[str]]:
    """Return the cells of the table with this head."""
    body = text.split(head, 1)[1].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in body]
    assert all(len(row) == head.count("|") - 1 for row in cells), "a bar in a cell"
    return cells


def defaults(cell: str) -> dict[str, str]:
    """Read "`20`; ofskl `100`": method -> default, "" standing for all others."""
    found = {}
    for part in cell.split(";"):
        match = re.fullmatch(r"(?:([\w-]+) )?`([^`]*)`", part.strip())
        assert match is not None, cell
        found[match[1] or ""] = match[2]
    return found


def test_all_methods_have_a_page() -> None:
    assert {name for names in PAGES.values() for name in names} == set(METHODS)


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_the_same_headings_in_the_same_order(page: str) -> None:
    assert list(sections(page)) == HEADINGS


@pytest.mark.parametrize("page", PAGES)
def test_options_are_those_of_the_strategies(page: str) -> None:
    head = "| option | default | meaning | in the paper |"
    table = {
        row[0].strip("`"): defaults(row[1]) for row in rows(sections(page)["Options"], head)
    }  # fmt: skip
    known: set[str] = set()
    for name in PAGES[page]:
        for option in options(METHODS[name]):
            known.add(option.name)
            assert option.name in table, f"{name} has an option {option.name}"
            shown = table[option.name].get(name, table[option.name].get(""))
            assert shown == str(option.default), f"{name}: {option.name} is {option.default!r}"
    assert set(table) == known, "the page names options that no strategy has"


@pytest.mark.parametrize("page", PAGES)
def test_ten_lines_import_what_there_is(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", sections(page)["Ten lines"], flags=re.S)
    assert blocks
    for block in blocks:
        compile(block, page, "exec")
        imports = re.findall(r"^from fedkern_flwr.*$", block, flags=re.M)
        assert imports
        exec("\n".join(imports), {})


def expectations() -> list[Any]:
    """Return the commands whose figures the pages state."""
    head = "| command | metric | value |"
    return [
        pytest.param(*row, id=f"{page}-{number}")
        for page in PAGES
        if (DOCS / f"{page}.md").is_file()
        for number, row in enumerate(rows(sections(page)["Expected results"], head))
    ]


@pytest.mark.parametrize(("command", "metric", "value"), expectations())
def test_expected_results_are_what_the_commands_print(
    command: str, metric: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(command.strip("`"))
    assert words[0] == "fedkern"
    assert run([*words[1:], "--out", str(tmp_path / "run"), "--json", "-", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)["metrics"][metric.strip("`")]
    assert f"{found:.4f}" == value
