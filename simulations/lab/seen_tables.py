"""Who saw what: the audited traffic of a comparison as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..run.format import size
from ..run.report import Block, TableBlock, TextBlock
from .comparison import Comparison

READING = (
    "Who saw what: bytes of the first draw that were seen, counted message by message. Plain: "
    "computed from a client's own rows, for the server to read. Total: a sum over several clients. "
    "Masked: one-time padded; sealed: encrypted for another client; both are tested to be uniform. "
    "Declared: sizes, ranges and classes as their owner states them. Pseudonyms: keyed hashes of "
    "ids. Keys: public keys, digests, shares and seeds of masks. Public: chosen by the server or "
    "made of released sums. Matching: which rows belong together. Own: about the client's rows.",
)

_SERVER = {
    "plain": ("plain",),
    "total": ("total",),
    "masked": ("masked",),
    "sealed": ("sealed",),
    "declared": ("declared", "size"),
    "pseudonyms": ("pseudonym",),
    "keys": ("key", "commitment", "share", "seed"),
}
_CLIENTS = {
    "public": ("public",),
    "matching": ("matching",),
    "masked": ("masked",),
    "sealed": ("sealed",),
    "keys": ("key",),
}
_SUSPICIOUS = 1e-6  # p-value below which bytes said to be random are not


def seen_tables(comparison: Comparison) -> list[Block]:
    """Return what the parties see of each method, in words and as bytes by kind."""
    return [_in_words(comparison), *_in_bytes(comparison)]


def _in_words(comparison: Comparison) -> TableBlock:
    """Return what is seen, by whom, and of which methods."""
    found: dict[tuple[str, str], list[str]] = {}
    for entry in comparison.entries:
        for key, seen in entry.results[0]["privacy"].items():
            if key.endswith(("_sees", "_see")):
                who = key.rpartition("_")[0].replace("_", " ")
                for what in seen:
                    found.setdefault((who, what), []).append(entry.label)
    every = len(comparison.entries)
    return TableBlock(
        f"{comparison.section.title or comparison.dataset}: who sees what",
        ["seen", "by", "of"],
        [
            [what, who, "all" if len(labels) == every > 1 else ", ".join(labels)]
            for (who, what), labels in found.items()
        ],
    )


def _in_bytes(comparison: Comparison) -> list[Block]:
    audited = {
        entry.label: entry.results[0]["privacy"]["seen"]
        for entry in comparison.entries
        if "seen" in entry.results[0]["privacy"]
    }
    if not audited:
        return []
    name, plain = comparison.dataset, [*map(_plain_fields, audited.items())]
    return [
        _table(
            f"{name}: what the server saw; in bold what single clients sent in plain",
            {label: seen["server"] for label, seen in audited.items()},
            _SERVER,
        ),
        _table(
            f"{name}: what the clients got",
            {label: seen["clients"] for label, seen in audited.items()},
            _CLIENTS,
        ),
        TextBlock("", [text for text in plain if text]),
    ]


def _plain_fields(audited: tuple[str, Mapping[str, Any]]) -> str:
    """Return which fields a method's clients sent in plain, if any."""
    label, seen = audited
    fields = dict.fromkeys(
        f"{row['field'].replace('_', ' ')} of phase {row['phase']}"
        for row in seen["server"]
        if row["kind"] == "plain"
    )
    return f"{label}, in plain: {', '.join(fields)}." if fields else ""


def _table(
    caption: str,
    seen: Mapping[str, Sequence[Mapping[str, Any]]],
    columns: Mapping[str, tuple[str, ...]],
) -> TableBlock:
    used = [
        column
        for column, kinds in columns.items()
        if any(row["kind"] in kinds for rows in seen.values() for row in rows)
    ]
    cells = [
        [label, *(_cell(rows, columns[column]) for column in used), _random(rows)]
        for label, rows in seen.items()
    ]
    bold = frozenset(
        (place, 1 + used.index("plain"))
        for place, rows in enumerate(seen.values())
        if any(row["kind"] == "plain" for row in rows)
    )
    return TableBlock(caption, ["method", *used, "uniform"], cells, bold)


def _random(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return whether what is said to be random looks random."""
    tested = [row["uniform_p"] for row in rows if row.get("uniform_p") is not None]
    if not tested:
        return "-"
    return "no" if min(tested) < _SUSPICIOUS else "yes"


def _cell(rows: Sequence[Mapping[str, Any]], kinds: tuple[str, ...]) -> str:
    """Return the bytes of some kinds."""
    mine = [row["bytes"] for row in rows if row["kind"] in kinds]
    return size(sum(mine)) if mine else "-"
