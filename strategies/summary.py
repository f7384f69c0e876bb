"""A summary: what parties have together, before any model, by exact secure sums."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedkern_flwr.alignment import count_overlaps
from fedkern_flwr.encoding.columns import CIRCLES, COARSE, DECIMALS, SPLITS
from fedkern_flwr.errors import OptionError
from fedkern_flwr.method import Ask, PrivateMethod, Rounds, option
from fedkern_flwr.planning import Allowance, allowance
from fedkern_flwr.secure_sum.membership import default_threshold
from fedkern_flwr.summary import (
    FEATURES,
    MOMENTS,
    NOISY,
    PLACES,
    About,
    Column,
    Plan,
    moment_shapes,
    noisy_shapes,
    place_shapes,
)
from fedkern_flwr.summary_figures import (
    Totals,
    near_name,
    read_correlations,
    read_noisy,
    read_numbers,
    read_places,
)
from fedkern_flwr.summary_report import Figures, compare_groups
from fedkern_flwr.wire.describe import DescribeReply, check_partitions

_BITS = 64.0


class Summary(PrivateMethod):
    """Statistics of the tables of all parties together: counts, means, quantiles, groups.

    Parties may have the same columns of different rows, different columns, or both. Each compares
    itself with the others, for its owner.
    """

    method, title = "summary", "Summary"
    client = "fedkern_flwr.clients:SummaryClient"
    shows: ClassVar[Mapping[str, str]] = {
        "rows": "rows",
        "columns": "columns",
        "gaps": "missing cells",
        "rank_error": "quantiles off by at most (rank)",
    }
    server_sees = (
        "of each party: names and kinds of its columns, and categories of min_sum_rows of its rows",
        "with an alignment key: which rows of which party belong together, by pseudonyms",
        "columns in which a party is unlike the others, if its policy reports them",
    )
    labels_of_row = 0

    group: str | None = option(
        None, "A column of categories: the other columns are compared between its groups."
    )
    bound: float = option(
        2.0**24, "Public bound on the magnitude of all values; dates count in days.", above=0.0
    )
    bounds: str | None = option(
        None,
        "JSON file of public ranges and categories, for a budget: column -> [least, greatest], or "
        "a list of categories.",
    )
    significance: float = option(
        0.05, "Corrected p-values below it are marked.", above=0.0, below=1.0
    )

    def check_parties(self, parties: Sequence[DescribeReply]) -> None:
        """Refuse partitions that clash; columns may differ."""
        check_partitions(parties)

    # -- a run

    def rounds(self, parties: Sequence[DescribeReply]) -> Rounds:
        """Ask for columns, sum twice, and let each party compare itself with the others."""
        rows = float(sum(party.rows for party in parties))
        if self.budget is not None:
            return (yield from self._with_noise(parties))
        least = default_threshold(len(parties)) if self.threshold is None else self.threshold
        self.planned = 6
        told = yield Ask("columns", least=least)
        plan, notes = self._columns(told)
        allowed = allowance(parties, labels=0, threshold=least)
        circles = self._circles(plan, allowed, rows)
        asked: dict[str, Any] = {"plan": plan.write()}
        first = yield PLACES(
            place_shapes(plan, circles), bound=self.bound, circles=circles, **asked
        )
        about = self._bins(first, plan, allowed, circles, rows)
        products = max(map(len, plan.sets()), default=0) <= allowed.columns
        if not products:
            self.notes_.append("no correlations: they need two hidden rows for each column")
        group = self.group or ""
        how: dict[str, Any] = {"group": group, "products": products, "rows": rows}
        asked |= {**how, "seed": self.run_seed, **vars(about)}
        total = yield MOMENTS(moment_shapes(plan, about, group, products), **asked)
        found = Totals(plan, about, total, rows)
        totals = {f"of_{name}": np.asarray(value) for name, value in total.items()}
        each = {
            p.partition: {**asked, **totals, "notes": notes.get(p.partition, [])} for p in parties
        }
        flags = yield Ask("compare", each, least=1)
        self.notes_ += [f"{self._called(p)}: {text}" for p in notes for text in notes[p]]
        for p, answer in flags.items():
            self.notes_ += [
                f"{self._called(p)}: {c}: {text}" for c, text in answer.get("flags", ())
            ]
        figures = Figures(
            numbers=read_numbers(found, self.bound),
            words=found.words,
            names={one.name: one.words for one in plan.texts},
            rows={one.name: found.rows[one.name] for one in plan.texts},
            correlations=read_correlations(found, products),
            groups=compare_groups(found, self.group) if self.group else {},
        )
        return self._show(figures)

    def _show(self, found: Figures) -> dict[str, Any]:
        """Fill the tables, the details and the model; return the metrics."""
        self.tables_ = {"summary": found.first_table(), "columns": found.columns()}
        self.details_ |= found.details()
        self.model_ = found.model()
        return found.metrics(self.significance)

    def _called(self, partition: int) -> str:
        return next(p.called for p in self.parties_.values() if p.partition == partition)

    def _columns(self, told: Mapping[int, Any]) -> tuple[Plan, dict[int, list[str]]]:
        """Return the columns of all parties, and what is to be said to whom about names and ids."""
        holders, kinds = dict[str, list[int]](), dict[str, set[str]]()
        words = dict[str, dict[str, list[int]]]()
        notes: dict[int, list[str]] = {p: [] for p in told}
        for p, one in told.items():
            for name, kind in zip(one["names"], one["kinds"], strict=True):
                holders.setdefault(name, []).append(p)
                kinds.setdefault(name, set()).add(kind)
            for name, texts in one["words"].items():
                for word in texts:
                    words.setdefault(name, {}).setdefault(word, []).append(p)
        found = []
        for name, who in holders.items():
            if len(kinds[name] - {"boolean"}) > 1 or kinds[name] == {"boolean", "category"}:
                for p in who:
                    kind = dict(zip(told[p]["names"], told[p]["kinds"], strict=True))[name]
                    notes[p].append(f"column {name!r} holds a {kind} here, and others elsewhere")
                continue
            kind = min(kinds[name], key=lambda k: (k == "boolean", k))
            found.append(Column(name, kind, tuple(who), tuple(sorted(words.get(name, {})))))
            others = [n for n in holders if not set(holders[n]) & set(who)]
            if len(who) == 1 and (like := near_name(name, others)):
                notes[who[0]].append(f"column {name!r} is here alone; others have {like!r}")
            for word, where in words.get(name, {}).items():
                rest = [w for w, at in words[name].items() if not set(at) & set(where)]
                if len(where) == 1 < len(who) and (like := near_name(word, rest)):
                    text = f"category {word!r} of {name!r} is here alone; others have {like!r}"
                    notes[where[0]].append(text)
        if not found:
            raise OptionError(
                "no column is left to sum",
                remedy="write the cells of a column alike at all parties",
                code="FK-COLUMN-KIND",
            )
        if self.group is not None and not any(
            c.name == self.group and c.kind == "category" for c in found
        ):
            raise OptionError(
                f"{self.group!r} is no column of categories",
                remedy=f"name one of {', '.join(c.name for c in found if c.words)}",
                code="FK-COLUMN-MISSING",
            )
        self._match(told, notes)
        return Plan(tuple(found)), notes

    def _match(self, told: Mapping[int, Any], notes: dict[int, list[str]]) -> None:
        """Count the ids that parties share, and those that they would in one spelling."""
        hashes = {
            name: {
                p: np.ascontiguousarray(one[name].astype(np.uint32)).view(np.uint64)
                for p, one in told.items()
                if name in one
            }
            for name in ("ids", "spelled")
        }
        if len(hashes["ids"]) < 2:
            return
        exact, plain = (count_overlaps(hashes[name]) for name in ("ids", "spelled"))
        self.details_["overlap"] = {
            str(p): {"rows": one.rows, "shared": {str(k): n for k, n in one.shared.items()}}
            for p, one in exact.items()
        }
        for p, one in plain.items():
            for k, n in one.shared.items():
                if (more := n - exact[p].shared[k]) > 0:
                    notes[p].append(
                        f"{more} more ids are those of {self._called(k)} without capital letters, "
                        f"leading zeros and .0; {exact[p].shared[k]} are as they stand"
                    )

    # -- sizes that the nodes' release limits allow

    def _circles(self, plan: Plan, allowed: Allowance, rows: float) -> int:
        """Return on how many circles the place of most values is looked for."""
        if not allowed.planned or not plan.numbers:
            return CIRCLES
        counts = len(plan.numbers) * (COARSE + DECIMALS) * np.log2(rows + 1.0) / _BITS
        free = allowed.numbers / 3.0 - counts
        return int(np.clip(free / (2 * len(plan.numbers)), 0, CIRCLES))

    def _bins(
        self,
        first: Mapping[str, Any],
        plan: Plan,
        allowed: Allowance,
        circles: int,
        rows: float,
    ) -> About:
        """Return where values are, with as many bins as the nodes' release limits allow."""
        if not allowed.planned or not plan.numbers:
            return read_places(first, plan, self.bound, SPLITS)
        weight, n = np.log2(rows + 1.0) / _BITS, len(plan.numbers)
        taken = n * ((COARSE + DECIMALS) * weight + 2 * circles + 3)
        taken += sum(len(one) * (len(one) + 1) / 2 + 2 * FEATURES for one in plan.sets())
        spare = (allowed.numbers - taken) / weight / n - 2 * COARSE
        splits = int(np.clip(spare, 0, SPLITS))
        self.note_plan(f"{circles} circles and {splits} bins of a column", allowed)
        return read_places(first, plan, self.bound, splits)

    # -- with a budget

    def _with_noise(self, parties: Sequence[DescribeReply]) -> Rounds:
        """Sum all at once, with noise, of columns that are public."""
        plan = self._public(tuple(p.partition for p in parties))
        self.planned = 2
        total = yield NOISY(noisy_shapes(plan), plan=plan.write())
        [release] = self.noise_.reports().values()
        numbers, errors, words = read_noisy(total, plan, release["deviation"])
        known = {name: float(counts.sum()) for name, counts in words.items()}
        names = {one.name: one.words for one in plan.texts}
        return self._show(Figures(numbers, words, names, known, errors=errors))

    def _public(self, holders: tuple[int, ...]) -> Plan:
        """Read the public columns.

        Raises
        ------
        OptionError
        """
        try:
            told = json.loads(Path(self.bounds or "").read_text(encoding="utf-8"))
            columns = []
            for name, one in told.items():
                if all(isinstance(value, str) for value in one):
                    columns.append(Column(str(name), "category", holders, tuple(one)))
                else:
                    low, high = map(float, one)
                    columns.append(Column(str(name), "number", holders, (), (low, high)))
                    if not low < high:
                        raise ValueError
            if not columns:
                raise ValueError
        except (OSError, ValueError, TypeError, AttributeError):
            raise OptionError(
                "a budget needs public columns: bounds is no JSON file of ranges and categories",
                remedy='write {"age": [0, 120], "sex": ["f", "m"]} and name it with --bounds',
                code="FK-BUDGET-BOUNDS",
            ) from None
        return Plan(tuple(columns))
