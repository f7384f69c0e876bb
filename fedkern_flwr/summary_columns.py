"""Find common columns and common ids from the parties' descriptions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

from .alignment import Overlap, count_overlaps
from .encoding.columns import FIRST_DAY
from .errors import OptionError, TableError
from .plain_text import read_json
from .summary import Column, Plan, SummaryDescribeReply
from .wire.describe import misfit

_ALIKE = 0.7
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class Common:
    """The columns of all parties.

    Attributes
    ----------
    called : dict
        Partition -> its name.
    plan : Plan
        Without columns of different kinds at different parties.
    notes : dict
        Partition -> pairs of a column (or "") and a note for that party.
    overlaps : dict
        Partition -> how many of its rows others have, with an alignment key.
    """

    called: dict[int, str]
    plan: Plan
    notes: dict[int, list[tuple[str, str]]]
    overlaps: dict[int, Overlap]

    def tables(self, flags: Mapping[int, Any]) -> dict[str, Any]:
        """Return a table of notes and checks, and one of common ids."""
        said = [(p, *note) for p in self.notes for note in self.notes[p]]
        said += [(p, *flag) for p, answer in flags.items() for flag in answer.get("flags", ())]
        found = {}
        if said:
            heads = ["party", "column", "check"]
            found["checks"] = [heads, *([self.called[p], *text] for p, *text in said)]
        if self.overlaps:
            found["ids"] = self._shared()
        return found

    def _shared(self) -> list[list[str]]:
        table = [["shared ids", *(self.called[p] for p in self.overlaps)]]
        for p, one in self.overlaps.items():
            cells = (one.rows if k == p else one.shared[k] for k in self.overlaps)
            table.append([self.called[p], *map(str, cells)])
        return table


def common_columns(parties: Sequence[SummaryDescribeReply], group: str | None = None) -> Common:
    """Return the columns of all parties, with notes.

    ``group`` must be a column of categories.

    Raises
    ------
    ProtocolError
        The columns of a party cannot be read.
    """
    kinds: dict[str, dict[int, str]] = {}
    words: dict[str, dict[str, set[int]]] = {}
    notes: dict[int, list[tuple[str, str]]] = {one.partition: [] for one in parties}
    for p, one in zip(notes, parties, strict=True):
        for name, kind, own in _read_columns(one):
            kinds.setdefault(name, {})[p] = kind
            for word in own:
                words.setdefault(name, {}).setdefault(word, set()).add(p)
    columns = []
    for name, held in kinds.items():
        here = set(held.values())
        if here == {"boolean", "number"}:  # 0 and 1 at some parties alone
            here = {"number"}
        if len(here) > 1:
            for p, kind in held.items():
                others = " or ".join(sorted(here - {kind})) or "something else"
                notes[p].append((name, f"holds a {kind} here, a {others} elsewhere: left out"))
            continue
        columns.append(Column(name, here.pop(), tuple(held), tuple(sorted(words.get(name, {})))))
        rest = [other for other in kinds if not set(kinds[other]) & set(held)]
        if len(held) == 1 < len(parties) and (like := near_name(name, rest)):
            notes[min(held)].append((name, f"only this party has it; others have {like!r}"))
        for word, where in words.get(name, {}).items():
            rest = [other for other, at in words[name].items() if not at & where]
            if len(where) == 1 < len(held) and (like := near_name(word, rest)):
                text = f"only this party has category {word!r}; others have {like!r}"
                notes[min(where)].append((name, text))
    if not columns:
        raise TableError(
            "no column holds the same at all who have it",
            remedy="write the cells of a column alike at all parties",
            code="FK-COLUMN-KIND",
        )
    plan = Plan(tuple(columns))
    if group is not None and group not in [one.name for one in plan.texts]:
        raise OptionError(
            f"{group!r} is no column of categories",
            remedy=f"name one of {', '.join(one.name for one in plan.texts) or 'these'}",
            code="FK-COLUMN-MISSING",
        )
    called = {one.partition: one.called for one in parties}
    return Common(called, plan, notes, _match(parties, called, notes))


def _read_columns(party: SummaryDescribeReply) -> list[tuple[str, str, list[str]]]:
    """Return name, kind and categories of the columns of a party.

    Raises
    ------
    ProtocolError
    """
    try:
        names, kinds, words = read_json(party.held)
        found = [
            (str(name), str(kind), [*map(str, words.get(name, ()))])
            for name, kind in zip(names, kinds, strict=True)
        ]
    except (ValueError, TypeError, AttributeError):
        raise misfit(
            party.partition, "its columns cannot be read", code="FK-MESSAGE-DAMAGED"
        ) from None
    return found


def _match(
    parties: Sequence[SummaryDescribeReply],
    called: Mapping[int, str],
    notes: Mapping[int, list[tuple[str, str]]],
) -> dict[int, Overlap]:
    """Count the ids that parties share, and note those that they would in one spelling."""
    having = [one for one in parties if len(one.ids)]
    if len(having) < 2:
        return {}
    exact = count_overlaps({one.partition: one.ids for one in having})
    plain = count_overlaps({one.partition: one.spelled for one in having})
    for p, one in plain.items():
        for k, n in one.shared.items():
            if n > (same := exact[p].shared[k]):
                text = (
                    f"{same} ids in common with {called[k]}, {n} if capital letters, leading zeros"
                )
                notes[p].append(("", f"{text} and .0 are ignored"))
    return exact


def near_name(name: str, known: Sequence[str]) -> str:
    """Return the name that may be another spelling, or ""."""

    def likeness(other: str) -> float:
        a, b = sorted((name.casefold().strip(), other.casefold().strip()), key=len)
        return 1.0 if b.startswith(a) else SequenceMatcher(None, a, b).ratio()

    best = max(known, key=likeness, default="")
    return best if best and likeness(best) >= _ALIKE else ""


def unlisted_words(plan: Plan, own: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return column and text of each category of a party that may be another's by another name."""
    found = []
    for one in plan.texts:
        names = own.get(one.name, ())
        shared = [word for word in one.words if word in names]
        missing = [word for word in one.words if word not in names]
        for word in names:
            if word not in one.words and (like := near_name(word, missing or shared)):
                text = f"category {word!r} is counted as other; it may be {like!r}"
                found.append((one.name, text))
    return found


def public_columns(path: str | None, holders: Sequence[int]) -> Plan:
    """Read public columns: ranges of numbers and dates, lists of categories."""
    try:
        given = {**read_json(Path(path or "").read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError):
        given = {}
    if not given:
        raise OptionError(
            "a budget needs public columns, and bounds is no JSON file of ranges and categories",
            remedy='write {"age": [0, 120], "sex": ["f", "m"]} and name the file with --bounds',
            code="FK-BUDGET-BOUNDS",
        )
    return Plan(tuple(_public_column(name, one, tuple(holders)) for name, one in given.items()))


def _public_column(name: str, given: Any, holders: tuple[int, ...]) -> Column:
    """Return a column whose values are within two numbers or dates, or are of a list of texts."""
    kinds = {type(one) for one in given} if isinstance(given, list) else set()
    kind = "boolean" if kinds == {bool} else "number"
    try:
        ends = given
        if kinds == {str} and len(given) == 2 and all(map(_DAY.fullmatch, given)):
            kind, ends = "date", [(date.fromisoformat(one) - FIRST_DAY).days for one in given]
        elif kinds == {str}:
            return Column(name, "category", holders, tuple(given))
        low, high = map(float, ends)
        if not (kinds and -np.inf < low < high < np.inf and high - low < np.inf):
            raise ValueError
    except (ValueError, TypeError):
        raise OptionError(
            f"the public bounds of column {name!r} are {json.dumps(given)[:60]}",
            remedy='write [0, 120] for numbers, ["2015-01-01", "2025-12-31"] for dates, '
            '["f", "m"] for text',
            code="FK-BUDGET-BOUNDS",
        ) from None
    return Column(name, kind, holders, (), (low, high))
