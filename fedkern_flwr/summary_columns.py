"""Find common columns and common ids from the parties' descriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

from .alignment import Overlap, count_overlaps
from .errors import OptionError, TableError
from .plain_text import read_json
from .summary import Column, Plan

_ALIKE = 0.7


@dataclass(frozen=True)
class Common:
    """The columns of all parties.

    Attributes
    ----------
    plan : Plan
        Without columns of different kinds at different parties.
    notes : dict
        Partition -> pairs of a column (or "") and a note for that party.
    overlaps : dict
        Partition -> how many of its rows others have, with an alignment key.
    """

    plan: Plan
    notes: dict[int, list[tuple[str, str]]]
    overlaps: dict[int, Overlap]

    def tables(self, called: Mapping[int, str], flags: Mapping[int, Any]) -> dict[str, Any]:
        """Return a table of notes and checks, and one of common ids."""
        said = [(p, *note) for p in self.notes for note in self.notes[p]]
        said += [(p, *flag) for p, answer in flags.items() for flag in answer.get("flags", ())]
        found = {}
        if said:
            heads = ["party", "column", "check"]
            found["checks"] = [heads, *([called[p], *text] for p, *text in said)]
        if self.overlaps:
            found["ids"] = self._shared(called)
        return found

    def _shared(self, called: Mapping[int, str]) -> list[list[str]]:
        table = [["shared ids", *(called[p] for p in self.overlaps)]]
        for p, one in self.overlaps.items():
            cells = (one.rows if k == p else one.shared[k] for k in self.overlaps)
            table.append([called[p], *map(str, cells)])
        return table


def common_columns(
    told: Mapping[int, Any], called: Mapping[int, str], group: str | None = None
) -> Common:
    """Return the columns of all parties, with notes.

    Parameters
    ----------
    told : mapping
        Partition -> ``names`` and ``kinds`` of its columns, ``words`` of its categories, and
        pseudonyms of its ids (``ids``), also in one spelling (``spelled``).
    called : mapping
        Partition -> its name.
    group : str, optional
        A column that must be one of categories.
    """
    kinds: dict[str, dict[int, str]] = {}
    words: dict[str, dict[str, set[int]]] = {}
    told = dict(sorted(told.items()))  # whichever answered first
    notes: dict[int, list[tuple[str, str]]] = {p: [] for p in told}
    for p, one in told.items():
        for name, kind in zip(one["names"], one["kinds"], strict=True):
            kinds.setdefault(name, {})[p] = kind
            for word in one["words"].get(name, ()):
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
        if len(held) == 1 < len(told) and (like := near_name(name, rest)):
            notes[min(held)].append((name, f"is here alone; others have {like!r}"))
        for word, where in words.get(name, {}).items():
            rest = [other for other, at in words[name].items() if not at & where]
            if len(where) == 1 < len(held) and (like := near_name(word, rest)):
                text = f"category {word!r} is here alone; others have {like!r}"
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
    return Common(plan, notes, _match(told, called, notes))


def _match(
    told: Mapping[int, Any],
    called: Mapping[int, str],
    notes: Mapping[int, list[tuple[str, str]]],
) -> dict[int, Overlap]:

    def overlaps(name: str) -> dict[int, Overlap]:
        given = {p: one[name] for p, one in told.items() if name in one}
        hashes = {
            p: np.ascontiguousarray(one.astype(np.uint32)).view(np.uint64)
            for p, one in given.items()
        }
        return count_overlaps(hashes) if len(hashes) > 1 else {}

    exact, plain = overlaps("ids"), overlaps("spelled")
    for p, one in plain.items():
        for k, n in one.shared.items():
            more, same = n - exact[p].shared[k], exact[p].shared[k]
            if more > 0:
                text = f"{same} ids are those of {called[k]}; {more} more would be without capital"
                notes[p].append(("", f"{text} letters, leading zeros and .0"))
    return exact


def near_name(name: str, known: Sequence[str]) -> str:
    """Return the name that may be another spelling, or ""."""

    def likeness(other: str) -> float:
        a, b = sorted((name.casefold().strip(), other.casefold().strip()), key=len)
        return 1.0 if b.startswith(a) else SequenceMatcher(None, a, b).ratio()

    best = max(known, key=likeness, default="")
    return best if best and likeness(best) >= _ALIKE else ""


def public_columns(path: str | None, holders: Sequence[int]) -> Plan:
    """Read public columns: ranges of numbers, lists of categories."""
    try:
        told = read_json(Path(path or "").read_text(encoding="utf-8"))
        columns = []
        for name, one in told.items():
            words = tuple(one) if all(isinstance(value, str) for value in one) else ()
            ends = () if words else tuple(map(float, one))
            if not words and not (len(ends) == 2 and -np.inf < ends[0] < ends[1] < np.inf):
                raise ValueError
            kind = "boolean" if ends and {type(value) for value in one} == {bool} else "number"
            kind = "category" if words else kind
            columns.append(Column(str(name), kind, tuple(holders), words, ends))
        if not columns:
            raise ValueError
    except (OSError, ValueError, TypeError, AttributeError):
        raise OptionError(
            "a budget needs public columns, and bounds is no JSON file of ranges and categories",
            remedy='write {"age": [0, 120], "sex": ["f", "m"]} and name the file with --bounds',
            code="FK-BUDGET-BOUNDS",
        ) from None
    return Plan(tuple(columns))
