"""Words a sentence, their 90 % quantile, and odd words per 1,000, of all that people read.

    python benchmarks/words.py [--pages]

The rows are the README, the pages, docstrings of the public API and of everything, and the help of
options. Odd words are those for which the field has a better one ("told" for "sent"). ``--pages``
has a row for each page. Code, tables of figures and generated pages are left out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from common import new_table
from house import GENERATED
from rich.console import Console

from fedkern_flwr.simulations.methods.registry import METHODS, options

ROOT = Path(__file__).parent.parent
ROOMS = ("fedkern_flwr", "strategies", "clients", "simulations")
#: Private vocabulary: what these say has a usual name in machine learning or in Flower.
ODD = re.compile(
    r"\b(told|tells?|asked|asks|question|ordered|orders|rule of counting|nobody's|nobodys|whoever|"
    r"whose|what \w+ (?:is|are|has|have|needs?|tells?) (?:is|are)|the course|a draw|draws|turned|"
    r"party's own|of one's own|farewell|stands?|beside|yardstick|a party alone|"
    r"rows behind|sets of classes|largest difference to pooled|hang together|silent|leave)\b",
    re.IGNORECASE,
)


def prose(page: str) -> str:
    """Return the sentences of a page in Markdown: without code, tables, links and pictures."""
    page = re.sub(r"^(```|~~~).*?^\1", "", page, flags=re.M | re.S)
    page = re.sub(r"<!--.*?-->|!\[[^]]*\]\([^)]*\)", "", page, flags=re.S)
    page = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", page)
    lines = [line for line in page.splitlines() if not re.match(r"\s*(\||#|\{)", line)]
    return re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n\n", "\n".join(lines), flags=re.M)


def sentences(text: str) -> Iterator[int]:
    """Yield the number of words of each sentence; an empty line ends one as well."""
    for part in re.split(r"\n\s*\n|(?<=[.!?:])\s+(?=[A-Z*`\"(])", text):
        if words := re.findall(r"[^\W_][\w'’.\-/]*", part):
            yield len(words)


def docstrings(public: bool) -> Iterator[str]:
    """Yield docstrings of the package; of public names of the first level only if asked for."""
    for path in sorted(p for room in ROOMS for p in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                hidden = getattr(node, "name", "").startswith("_") or isinstance(node, ast.Module)
                if not (public and (hidden or path.name.startswith("_"))):
                    # not: rules, examples, and the lines that name a parameter and its type
                    yield re.sub(r"^-+$|^>>>.*$|^[\w*, ]+ : .*$", "\n", text, flags=re.M)


def measure(texts: list[str]) -> tuple[int, float, float, float]:
    """Return words, words a sentence, the 90 % quantile of that, odd words per 1,000."""
    lengths = np.array([n for text in texts for n in sentences(text)] or [0])
    odd = sum(len(ODD.findall(text)) for text in texts)
    total = int(lengths.sum())
    return (
        total,
        float(lengths.mean()),
        float(np.quantile(lengths, 0.9)),
        1000 * odd / max(total, 1),
    )


def main() -> None:
    """Print the table."""
    by_hand = [
        path
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if not path.relative_to(ROOT).as_posix().startswith(GENERATED)
    ]
    pages = {path.stem: prose(path.read_text("utf-8")) for path in by_hand}
    rows = {
        "README": [prose((ROOT / "README.md").read_text("utf-8"))],
        "pages": list(pages.values()),
        "docstrings, public": list(docstrings(public=True)),
        "docstrings, all": list(docstrings(public=False)),
        "help of options": [o.help for name in METHODS for o in options(METHODS[name])],
    }
    if "--pages" in sys.argv:
        rows |= {name: [text] for name, text in pages.items()}
    table = new_table("", " | words | words a sentence | 90 % | odd words per 1,000")
    for name, texts in rows.items():
        total, mean, top, odd = measure(texts)
        table.add_row(name, f"{total:,}", f"{mean:.1f}", f"{top:.0f}", f"{odd:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
