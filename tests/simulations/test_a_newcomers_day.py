"""A newcomer's day: what is typed with own tables, and what is seen.

The script is tests/helpers/newcomer.py; what release 0.1 shows stands in docs/results-archive.md.
"""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from ..helpers.newcomer import DAY, write_tables


@pytest.mark.parametrize("name", DAY)
def test_what_is_typed_shows_what_it_should(name: str, in_tmp: Path, commands: Any) -> None:
    scene = DAY[name]
    write_tables(in_tmp)
    for line in scene.lines:
        code, text = _typed(line, commands)
    assert re.search(scene.seen, " ".join(text.split())), text
    assert code == scene.code


def _typed(line: str, commands: Any) -> tuple[int, str]:
    word, _, rest = line.partition(" ")
    if word == "rm":
        Path(rest).unlink()
        return 0, ""
    if word == "cat":
        return 0, Path(rest).read_text()
    if word == "python":
        with redirect_stdout(StringIO()) as shown:
            exec(rest, {})
        return 0, shown.getvalue()
    code, out, err = commands(*rest.split())
    return code, out + err
