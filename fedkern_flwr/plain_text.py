"""Text that somebody else wrote, made fit for a log, a file or a terminal."""

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

    Sequences that a terminal obeys go as a whole, line breaks become spaces, and what else cannot
    be seen goes as well: control characters, marks that turn the direction of writing.

    >>> plain_line("lost \x1b[31mall\x1b[0m\nrows\u202e")
    'lost all rows'
    """
    seen = _SPACE.sub(" ", _SEQUENCES.sub("", text[: _RAW * longest]))
    line = "".join(character for character in seen if character.isprintable()).strip()
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def read_json(text: str | bytes, **how: Any) -> Any:
    """Return what a JSON text of somebody else holds.

    Raises
    ------
    ValueError
        It is no JSON, or lists are nested deeper than Python can read.
    """
    try:
        return json.loads(text, **how)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
