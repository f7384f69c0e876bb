"""The code blocks of README, and of the pages of methods, run as they are printed.

Python runs in an empty folder, lines of a console in one with tables of the names that the pages
have. Left out is what a comment above a block says: ``<!-- not run by the tests: why -->``. The
quick start is in ``test_long_pages.py``.
"""

from __future__ import annotations

import csv
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.simulations.cli.main import run

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("online-methods", "fed-cg", "fdskl", "secure-gram", "hierarchical-svm", "kernel-pca")
FILES = {name: ROOT / f"docs/{name}.md" for name in PAGES} | {"README": ROOT / "README.md"}
BLOCK = re.compile(
    r"^(?:<!-- not run by the tests: ([^\n]*) -->\n)?```(\w*)\n(.*?)^```", re.M | re.S
)
#: Of README's ten lines two are the sides of a Flower app: ``test_readme.py`` runs them.
SIDES = "app = "

pytestmark = pytest.mark.skipif(not FILES["README"].is_file(), reason="no source tree here")


@dataclass(frozen=True)
class Block:
    """A block, and why it is left out."""

    page: str
    language: str
    text: str
    left_out: str = ""


def blocks() -> list[Block]:
    """Return the blocks of all pages."""
    texts = {page: path.read_text("utf-8") for page, path in FILES.items() if path.is_file()}
    return [Block(p, m[2], m[3], m[1] or "") for p, t in texts.items() for m in BLOCK.finditer(t)]


def test_what_is_left_out_is_little() -> None:
    left = [(one.page, one.left_out) for one in blocks() if one.left_out]
    assert left == [
        ("online-methods", "minutes, data of others, servers"), ("kernel-pca", "servers"),
        ("README", "minutes"), ("README", "servers, packages of others, minutes"),
    ]  # fmt: skip


PYTHON = [one for one in blocks() if one.language == "python" and SIDES not in one.text]


@pytest.mark.parametrize("block", PYTHON, ids=[f"{one.page}-{k}" for k, one in enumerate(PYTHON)])
def test_python_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, block.page, "exec"), {})


def write(name: str, columns: dict[str, Any]) -> None:
    """Write a CSV file."""
    with Path(name).open("w", newline="") as file:
        csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])


def make_tables() -> None:
    """Write tables of the names that the pages have, one of them with text and gaps."""
    rng = np.random.default_rng(0)
    x = rng.random((400, 6)).round(4)
    ill = (x[:, 0] + x[:, 2] + x[:, 4] > 1.5).astype(int).tolist()
    named = {name: x[:, k].tolist() for k, name in enumerate(("age", "dose", "iron", "salt"))}
    named |= {"sex": [("F", "M")[k % 2] for k in range(400)], "gene": x[:, 4].tolist()}
    people = [f"p{k}" for k in range(400)]
    hospital = [f"h{k % 3}" for k in range(400)]
    write("patients.csv", {"patient": people, "hospital": hospital, **named, "outcome": ill})
    write("customers.csv", {"customer": people, **named, "default": ill})
    write("new.csv", {"patient": people, "hospital": hospital, **named})
    write("new-patients.csv", {"patient": people[:50], **{n: c[:50] for n, c in named.items()},
                               "hospital": hospital[:50]})  # fmt: skip
    write("new-customers.csv", {"customer": people[:50], **{n: c[:50] for n, c in named.items()}})
    for name, rows in (("north", slice(200)), ("south", slice(200, None))):
        own = {"patient": people[rows], "age": named["age"][rows], "dose": named["dose"][rows]}
        write(f"{name}.csv", {**own, "outcome": ill[rows]})
    write("lab.csv", {"patient": people, **{n: named[n] for n in ("iron", "salt", "gene")}})
    hours = rng.random((1200, 3))
    columns = {name: hours[:, k].tolist() for k, name in enumerate("abc")}
    write("weather.csv", {**columns, "temp": np.sin(hours.sum(axis=1)).tolist()})
    films = [(u, i) for u in range(40) for i in range(1, 13) if rng.random() < 0.5]
    lines = [f"{u}\t{i}\t{rng.integers(1, 6)}\t{1000 * i + u}" for u, i in films]
    Path("u.data").write_text("\n".join(lines) + "\n")
    Path("ratings-of-new-users.csv").write_text("user,item\n" + "\n".join(
        f"new-{u},{i}" for u, i in films[:60]))  # fmt: skip


def lines(page: str) -> list[str]:
    """Return what is typed on a page."""
    shown = [one.text for one in blocks() if one.page == page and one.language == "console"
             and not one.left_out]  # fmt: skip
    return re.findall(r"^\$ (.*)$", "\n".join(shown), flags=re.M)


@pytest.mark.parametrize("page", FILES)
def test_what_is_typed_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_tables()
    for line in lines(page):
        _, *words = shlex.split(line, comments=True)
        assert run([*words, "--quiet"] if words[0] in ("run", "predict") else words) == 0, line
