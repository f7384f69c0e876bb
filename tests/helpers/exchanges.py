"""The page of exchanges: who is sent what, and which sums are opened by whom.

Made from the message classes and their ``sums``, so that it cannot say anything else than the code:

::

    python tests/helpers/exchanges.py
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path

from fedkern_flwr.wire import PhaseMessage

PAGE = Path(__file__).resolve().parents[2] / "docs" / "exchanges.md"
#: Room of the core -> its page and the methods that use its messages.
ROOMS = {
    "online": ("online-methods", "POF-MKL, POF-RLS and baselines"),
    "hybrid": ("fed-cg", "FedCG"),
    "vertical": ("fdskl", "FDSKL"),
    "gram": ("secure-gram", "Secure Gram, FedCFK"),
    "groups": ("hierarchical-svm", "HierarchicalSVM"),
}
#: In every message, or in none that says something of data.
_HEADER = {"session", "round", "attempt"}
_HEAD = """# Exchanges and their sums

What travels in each exchange of a method, by the names of the fields. A request goes from the
server to a party, its reply back. Beside replies travel masked vectors: those of the sums that a
request declares. Of a vector the server sees numbers that look random, of a sum its total, and
only if it is the sum's receiver. `session`, `round` and `attempt` are in every message. Before
them come `describe` (sizes, public key) and after them `finish`; see [security](security.md).
This page is made from the classes of `fedkern_flwr/*/messages.py`.
"""


def exchanges(room: str) -> Iterator[tuple[type[PhaseMessage], type[PhaseMessage] | None]]:
    """Yield each request of a room with its reply, in the order of the file."""
    module = import_module(f"fedkern_flwr.{room}.messages")
    own = [
        c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__
    ]
    own = [c for c in own if issubclass(c, PhaseMessage) and getattr(c, "phase", "")]
    own.sort(key=lambda c: inspect.getsourcelines(c)[1])
    replies = {c.phase: c for c in own if not c.__name__.endswith("Request")}
    for one in own:
        if one.__name__.endswith("Request") and "phase" in vars(one) and vars(one)["phase"]:
            yield one, replies.get(one.phase)


def said(kind: type[PhaseMessage] | None) -> str:
    """Return the names of the fields of a message."""
    if kind is None:
        return ""
    return ", ".join(f"`{f.name}`" for f in fields(kind) if f.name not in _HEADER) or "nothing"


def summed(kind: type[PhaseMessage]) -> str:
    """Return what a request says of its sums, in its own words."""
    declares = next((c for c in kind.__mro__ if "sum_specs" in vars(c)), None)
    if declares is None or getattr(kind, "sum_name", None) == "":
        return "none"
    if not declares.phase:  # the base of all requests, of which some have the name of a sum
        name = getattr(kind, "sum_name", "")
        return f"`{name}`, over all clients" if isinstance(name, str) and name else "none"
    text = " ".join((inspect.getdoc(declares.sum_specs) or "").partition("\n\n")[0].split())
    text = re.sub(r"^(?:Return|Declare) (?:the sums: |that of |those of |no sums)?", "", text)
    text = re.sub(r":\w+:|`(?=`)", "", text).strip(".")
    return text[:1].upper() + text[1:] or "none"


def page() -> str:
    """Return the page."""
    lines = [_HEAD]
    for room, (link, title) in ROOMS.items():
        lines += [f"## {title}\n", f"[The page]({link}.md).\n"]
        lines += [
            "| exchange | the server sends | a party answers | secure sums |",
            "|---|---|---|---|",
        ]
        for request, reply in exchanges(room):
            cells = (f"`{request.phase}`", said(request), said(reply), summed(request))
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE, file=sys.stderr)
