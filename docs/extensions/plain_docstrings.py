"""A Sphinx extension: docstrings are plain text in which bars are norms and ``names_`` are names.

reStructuredText takes ``|w|`` for a substitution and ``coefficients_`` for a link. Both are escaped
here, so that docstrings need no backslashes.
"""

from __future__ import annotations

import inspect
import re

from sphinx.application import Sphinx

# Literals and roles are left as they are; what is between them is text.
_MARKUP = re.compile(r"(``.+?``|:[a-z:]+:`[^`]+`)")
_NAME = re.compile(r"(?<=\w)_(?=[\s,.;:)\]]|$)")


def escape(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Escape the lines of a docstring in place; a constant has none but that of its type."""
    if what == "data" and inspect.getdoc(obj) == inspect.getdoc(type(obj)):
        lines.clear()
    block: int | None = None  # indentation of the line that introduced a literal block
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if block is not None and line.strip() and indent <= block:
            block = None
        if block is None and not line.lstrip().startswith((">>>", "...", ".. ")):
            parts = _MARKUP.split(line)
            parts[::2] = [_NAME.sub(r"\\_", part.replace("|", r"\|")) for part in parts[::2]]
            lines[i] = "".join(parts)
            if line.rstrip().endswith("::"):
                block = indent


def setup(app: Sphinx) -> dict[str, bool]:
    """Escape after Napoleon, which has the priority 500, has read the sections."""
    app.connect("autodoc-process-docstring", escape, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
