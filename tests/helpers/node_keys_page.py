"""The page of a node's keys, made from the apps' READMEs and from the fields of its policy.

::

    python tests/helpers/node_keys_page.py
"""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
from dataclasses import fields
from pathlib import Path

from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.simulations.deployment.run_config import app_folder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "node-keys.md"
APPS = ("pof_mkl", "fed_cg", "fdskl", "fed_cfk", "hierarchical_svm", "method", "align", "ranges")
_HEAD = """# Keys of a node

Made from the apps and from the fields of the policy. [Node policy](node-policy.md) explains their
use. All nodes also take `name` (at most 40 characters), which logs and errors show.

## Configuration

The README of each app says what its keys mean.

| keys | apps |
|---|---|
"""
_POLICY = """
## Policy

`fedkern node policy show --toml > policy.toml` writes the defaults. `strata`, `labels` and
`held_out` are in the table `[freeze]` of the file.

| rule | default | meaning |
|---|---|---|
"""


def node_keys(app: str) -> set[str]:
    """Return the keys of the node configuration that the README of an app explains."""
    table = (app_folder(app) / "README.md").read_text().split("| key")[1].split("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines()[2:]]
    return {key for row in rows for key in re.findall(r"`([a-z-]+)`", row)}


def meanings() -> dict[str, str]:
    """Return rule -> what the documentation of its field says."""
    text = inspect.getdoc(NodePolicy) or ""
    found = re.findall(r"^(\w+) : .*\n((?:    .*\n?)+)", text, flags=re.M)
    return {name: " ".join(more.split()) for name, more in found}


def default(value: object) -> str:
    """Return a default as it is written in the file; nothing if the meaning says it."""
    return "" if value is None or value == math.inf else f"`{json.dumps(value)}`"


def page() -> str:
    """Return the page."""
    readers: dict[str, list[str]] = {}
    for app in APPS:
        for key in sorted(node_keys(app)):
            readers.setdefault(key, []).append(app)
    groups: dict[tuple[str, ...], list[str]] = {}
    for key, apps in readers.items():
        groups.setdefault(tuple(apps), []).append(f"`{key}`")
    lines = [_HEAD]
    for group in sorted(groups, key=len, reverse=True):
        apps = "all" if group == APPS else ", ".join(f"`{app}`" for app in group)
        lines.append(f"| {', '.join(groups[group])} | {apps} |\n")
    lines.append(_POLICY)
    says = meanings()
    for rule in fields(NodePolicy):
        meaning = says[rule.name].replace("``", "`").replace("|", "\\|")
        lines.append(f"| `{rule.name}` | {default(rule.default)} | {meaning} |\n")
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE, file=sys.stderr)
