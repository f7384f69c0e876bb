"""Look up error codes, and print the troubleshooting page made from them.

``python -m fedkern_flwr.codes`` prints the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .errors import read_codes
from .options import AUDIT, REMOVED


class Cause(NamedTuple):
    """Cause and remedy of an error code."""

    cause: str
    remedy: str


def known_codes() -> Mapping[str, Mapping[str, Cause]]:
    """Return topic -> code -> cause and remedy, for all errors."""
    found = {
        topic: {code: Cause(*told) for code, told in rows.items()}
        for topic, rows in read_codes().items()
    }
    removed = {
        f"FK-REMOVED-{AUDIT.code}": Cause(
            "An option of `fedkern audit` was removed.", AUDIT.instead
        )
    }
    for rows in REMOVED.values():
        for name, row in rows.items():
            what = "A value" if row.values else "The option"
            of = "of the option " if row.values else ""
            told = Cause(f"{what} {of}`{name}` was removed.", row.instead)
            removed.setdefault(f"FK-REMOVED-{row.code}", told)
    return {**found, "Removed options": removed}


_HEAD = """# Troubleshooting

Every refusal and every failure of fedkern-flwr is one line: who, what, what to do, and a code in
brackets at its end. Programs find the code as `code` in `result.json`, and as `error.code` in
Python.
The sentence of a line may change from release to release; its code stays.
Exit code 2 means that the input is wrong and nothing was sent; 1 means that a run failed later.
This page is made from `fedkern_flwr/codes.toml`.
"""


def page() -> str:
    lines = [_HEAD]
    for topic, rows in known_codes().items():
        lines += [f"## {topic}", "", "| code | what happened | what to do |", "|---|---|---|"]
        for code, (cause, remedy) in sorted(rows.items()):
            told = f"{remedy[0].upper()}{remedy[1:].removesuffix('.')}."
            lines.append(f"| `{code}` | {cause} | {told} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
