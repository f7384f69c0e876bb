"""Serve a user, an agent or the label owner."""

from __future__ import annotations

from typing import Any

import app_release  # type: ignore[import-not-found]  # noqa: F401
from own_table import own_table  # type: ignore[import-not-found]  # the file beside this one

from fedkern_flwr.clients import SVMClient, serve
from fedkern_flwr.simulations.apps.node import Node, client_maker

KEYS = (
    "role",
    "group",
    "classes",
    "label-bound",
    "alignment-key",
    "allow-single",
    "predictions",
)


def arguments(node: Node) -> dict[str, Any]:
    """Read the table of a user or of the label owner, without missing cells. An agent has none.

    An ``encoder`` encodes gaps; with rows at users it is common to all.
    """
    role, vertical = node.role("user", "agent", "owner"), node.run["partition"] == "vertical"
    user, labelled = role == "user", role == "owner" or (role == "user" and not vertical)
    unlabelled = {} if labelled else {"classes": None}  # of which its configuration may tell
    if role == "agent":
        return unlabelled
    how: Any = {"labelled": labelled, "bare": not user, "missing": "keep"}
    if user and "encoder" in node.config:
        table, held = node.encoded(common=not vertical, **how)
    else:
        table, held = node.table(**how), node.table("test-data", **how)
    table = node.whole(table, labels=labelled)
    if held is not None:
        numbered = user and labelled and "predictions" in node.config  # they name rows by place
        held = node.whole(held, "test-data", labels=False, numbered=numbered)
    used = {"x": user, "y": labelled, "ids": vertical or "id-column" in node.config}
    return node.rows(table, held, *(name for name, does in used.items() if does)) | unlabelled


make_client = client_maker(SVMClient, arguments, own_table, keys=KEYS, simulated="hierarchical-svm")
app = serve(make_client)
