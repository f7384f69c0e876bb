"""What the suite promises, the fault that would break each promise, and the tests that notice it.

``promises.toml`` has them: the page that says it, an id, the sentence, and a ``fault``: a text of
the source and what replaces it. Its ``file`` is named only where several files have that text. A
test says which promises it proves with ``@pytest.mark.promise("id")``. The page of claims is made
from both:

::

    python tests/helpers/promises.py
"""

from __future__ import annotations

import ast
import functools
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "claims.md"
ROOMS = ("fedkern_flwr", "strategies", "clients", "simulations")
_HEAD = """# Claims and their tests

What the suite promises about who sees what, what is refused, what is noticed and what is exact.
Each sentence has tests that fail if it is false. For each sentence a small fault was made in the
code, and the tests noticed it (`python tests/mutate.py`).
A sentence on another page that promises protection and is not here is a mistake: please
[report it](security.md#report-a-flaw) like a flaw. This page is made from `tests/promises.toml`.
"""


@dataclass
class Promise:
    """A sentence that must stay true.

    Attributes
    ----------
    name, page, says : str
        Its id, the page that says it, the sentence.
    find, replace : str
        The fault that breaks it.
    file : str
        Where the fault is made; empty if no file has the text, or several have it.
    tests : list of str
        Node ids of the functions that carry its mark.
    """

    name: str
    page: str
    says: str
    find: str
    replace: str
    file: str = ""
    tests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        found = [name for name, text in source().items() if self.find in text]
        if not self.file and len(found) == 1:
            self.file = found[0]


@functools.cache
def source() -> dict[str, str]:
    """Return path -> text of the files of the source."""
    files = (path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


@functools.cache  # most of the time of all that need them goes into reading trees
def marks() -> tuple[tuple[str, str], ...]:
    """Return (id of a promise, node id of a test that carries its mark)."""
    return tuple(_marks())


def _marks() -> Iterator[tuple[str, str]]:
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.promise" not in text:
            continue
        for node in ast.parse(text).body:
            inner = node.body if isinstance(node, ast.ClassDef) else [node]
            prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
            for test in inner:
                if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef):
                    place = f"{path.relative_to(ROOT).as_posix()}::{prefix}{test.name}"
                    yield from ((name, place) for name in _named(test))


def _named(test: ast.FunctionDef) -> Iterator[str]:
    for decorator in test.decorator_list:
        for call in ast.walk(decorator):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.promise":
                yield from (str(ast.literal_eval(name)) for name in call.args)


@functools.cache
def promises() -> dict[str, Promise]:
    """Return id -> promise, with its tests.

    Raises
    ------
    KeyError
        A test carries the mark of a promise that nobody made.
    """
    made: dict[str, Promise] = {}
    for path in sorted(TESTS.glob("promises*.toml")):
        for page, ones in tomllib.loads(path.read_text(encoding="utf-8")).items():
            for name, told in ones.items():
                assert name not in made, f"{name} is promised twice"
                find, replace = told.pop("fault")
                made[name] = Promise(name, page, find=find, replace=replace, **told)
    for name, test in marks():
        made[name].tests.append(test)
    return made


def page() -> str:
    """Return the page of claims."""
    by_page: dict[str, list[Promise]] = {}
    for one in promises().values():
        by_page.setdefault(one.page, []).append(one)
    lines = [_HEAD]
    for name, ones in by_page.items():
        text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        title = next(line for line in text.splitlines() if line.startswith("# "))
        lines += [
            f"## {title[2:]}\n", f"[The page]({name}.md).\n", "| promise | tests |", "|---|---|",
        ]  # fmt: skip
        lines += [
            f"| {one.says} | {', '.join(f'`{test}`' for test in one.tests)} |" for one in ones
        ]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{len(promises())} promises in {PAGE}", file=sys.stderr)
