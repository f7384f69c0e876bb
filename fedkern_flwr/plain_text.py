"""Sanitise foreign text for logs, files and terminals."""

from __future__ import annotations

import json
import re
from typing import Any

QUOTED = 200  # characters of a text from a server
LONGEST = 500  # characters of a text from a node

# What a terminal obeys: sequences that end with a letter, strings that end with BEL or ESC \\.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*"
)
_SPACE = re.compile(r"\s+")
_RAW = 20  # times as many characters are looked at


def plain_line(text: str, longest: int = LONGEST) -> str:
    r"""Return a text as one line of at most ``longest`` printable characters.

    Terminal sequences, control characters and marks of writing direction are removed; line breaks
    become spaces.

    >>> plain_line("lost \x1b[31mall\x1b[0m\nrows\u202e")
    'lost all rows'
    """
    seen = _SPACE.sub(" ", _SEQUENCES.sub("", text[: _RAW * longest]))
    line = "".join(character for character in seen if character.isprintable()).strip()
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def read_json(text: str | bytes, **how: Any) -> Any:
    """Parse foreign JSON; ValueError also if it is nested too deeply."""
    try:
        return json.loads(text, **how)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
