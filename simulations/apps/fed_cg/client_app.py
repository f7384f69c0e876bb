"""Serve a hospital or a centre with its own table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import app_release  # type: ignore[import-not-found]  # noqa: F401
from own_table import own_table  # type: ignore[import-not-found]  # the file beside this one

from fedkern_flwr.clients import HybridKernelClient, serve
from fedkern_flwr.scaling import read_ranges, scale_by_ranges
from fedkern_flwr.simulations.apps.node import Node, client_maker
from fedkern_flwr.tables.table import Missing, Table, without_missing

KEYS = (
    "block",
    "classes",
    "label-bound",
    "alignment-key",
    "landmark-seed",
    "allow-single",
    "predictions",
)


def arguments(node: Node) -> dict[str, Any]:
    """Read the rows of a hospital, with labels, or of a centre."""
    hospital = node.role("hospital", "centre") == "hospital"
    if hospital:
        node.check_predictions()
    missing: Missing = "error" if node.run["missing"] == "error" else "drop-row"
    if "encoder" in node.config:
        table, held = node.encoded(labelled=hospital, missing="keep")
        table = without_missing(table, missing, "the table")
        held = held and without_missing(held, missing, "the table")
    else:
        table, held = node.tables(labelled=hospital, missing=missing)
    if ranges := node.config.get("ranges"):
        table, held = scale(table, ranges), held and scale(held, ranges)
    return node.rows(table, held, "x", "ids", *(("y",) if hospital else ()))


def scale(table: Table, ranges: str) -> Table:
    """Scale each feature by its public range, in the units of the data.

    ``ranges`` names a JSON file, {"column": [least, greatest], ...}, or the result of the app
    ``ranges``; without it features must be in [0, 1]. The ranges become part of the columns' names,
    so that holders of a block with other ranges are refused.
    """
    low, high, _ = read_ranges(table.columns, ranges)
    bounds = zip(table.columns, low.tolist(), high.tolist(), strict=True)
    names = tuple(f"{name} in [{least}, {most}]" for name, least, most in bounds)
    return replace(table, x=scale_by_ranges(table.x, table.columns, ranges), columns=names)


make_client = client_maker(HybridKernelClient, arguments, own_table, keys=KEYS, simulated="fed-cg")
app = serve(make_client)
