"""Commands on the pages: `fedkern` has them, with these options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from fedkern_flwr.simulations.cli.main import app
from fedkern_flwr.simulations.lab.presets import NAMES

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="no source tree here")


def commands() -> dict[str, set[str]]:
    """Return command line -> the pages that print it."""
    found: dict[str, set[str]] = {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text("utf-8").replace("\\\n", " ")
        lines = re.findall(r"^(?:\$ )?(fedkern [a-z].*)$", text, flags=re.M)
        lines += re.findall(r"`(fedkern (?:run|compare|predict|deploy-local|audit) [^`]*)`", text)
        for line in lines:
            found.setdefault(line, set()).add(page.name)
    return found


def unknown(line: str) -> str:
    """Return what `fedkern` does not know of a command line, or nothing."""
    own = "kernel-pca"  # stands for the method that a reader of a page writes
    words = [w for w in shlex.split(line, comments=True)[1:] if w not in ("...", "|")]
    words = [own if w == "my-method" and words[0] != "new-method" else w for w in words]
    command: click.Command = app
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name.isupper():  # stands for any
            return ""
        found = command.commands.get(name)
        if found is None:
            return f"no command {name}"
        command = getattr(found, "loaded", found)
    there = [p for p in command.params if getattr(p, "help", "")]  # those that went have none
    names = {o for p in there for o in (*p.opts, *p.secondary_opts)} | {"--help"}
    missing = [word for word in words if word.startswith("--") and word not in names]
    if missing:
        return f"no option {missing[0]}"
    if command.name == "compare" and words and re.fullmatch(r"[a-z][a-z0-9-]+", words[0]):
        return "" if words[0] in (*NAMES, "kernel-pca", "papers") else f"no preset {words[0]}"
    return ""


def test_commands_on_the_pages_exist() -> None:
    found = commands()
    assert len(found) > 30
    wrong = {line: (unknown(line), pages) for line, pages in found.items() if unknown(line)}
    assert not wrong


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("fedkern rnu fed-cg", "no command rnu"),
        ("fedkern run fed-cg --landmark 3", "no option --landmark"),
        ("fedkern compare table1", "no preset table1"),
    ],
)
def test_what_is_wrong_is_noticed(line: str, what: str) -> None:
    assert unknown(line) == what
