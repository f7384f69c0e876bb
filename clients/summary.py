"""The client of a summary: what it adds of its columns, and how it compares itself with others."""

from __future__ import annotations

import json
import logging
from dataclasses import astuple
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.alignment import AlignmentTags, hash_ids, plain_ids, sort_order
from fedkern_flwr.errors import TableError
from fedkern_flwr.guard import refusal
from fedkern_flwr.method import MethodClient, answers, contributes
from fedkern_flwr.plain_text import plain_line
from fedkern_flwr.summary import (
    MOMENTS,
    NOISY,
    PLACES,
    About,
    Column,
    Plan,
    SummaryDescribeReply,
    as_summed,
    moments,
    noisy_terms,
    places,
)
from fedkern_flwr.summary_columns import unlisted_words
from fedkern_flwr.summary_figures import Difference, Totals, compare_with_others
from fedkern_flwr.wire import DescribeRequest

logger = logging.getLogger("fedkern_flwr")

#: Checks whose text quotes names or categories: it stays at the party.
_TEXTS = ("names", "categories")

_BOUNDS = 'write [0, 120] for numbers, ["2015-01-01", "2025-12-31"] for dates, ["f", "m"] for text'

Floats = NDArray[np.float64]


class SummaryClient(MethodClient):
    """Client of :class:`~fedkern_flwr.strategies.Summary`.

    It takes the table as it is: gaps are NaN, text is positions among ``categories``. It writes
    ``comparison.csv`` into its folder for results: how its columns differ from those of the others.
    """

    labels_of_row = 0
    raw = True
    pinned = ("plan", "bound", "group", "seed")

    def describe(self, request: DescribeRequest) -> SummaryDescribeReply:
        """Return its sizes, kinds of its columns, categories of enough rows, and pseudonyms."""
        about = vars(super().describe(request))  # refuses first what the policy does not allow
        held, ids, spelled = b"", *[np.zeros((0, 2), np.uint64)] * 2
        if not request.privacy:
            words = {name: self._enough(name) for name in self.categories}
            kinds = [self.kinds.get(name, "number") for name in self.columns]
            held = json.dumps([self.columns, kinds, words]).encode()
            if self.ids is not None and self.alignment_key is not None:
                exact = isinstance(self.alignment_key, AlignmentTags)  # no other spelling has a tag
                both = self.ids, self.ids if exact else plain_ids(self.ids)
                hashes = [hash_ids(n, self.alignment_key, request.session) for n in both]
                ids, spelled = (one[sort_order(one)] for one in hashes)
        few = self.policy.min_sum_rows
        return SummaryDescribeReply(**about, held=held, fewest=few, ids=ids, spelled=spelled)

    @contributes(PLACES)
    def add_places(self, plan: str, bound: float, circles: int) -> dict[str, Any]:
        """Return counts of the values of its columns in public bins."""
        whole, own = self._own(plan)
        for one in whole.numbers:
            if np.fmax.reduce(np.abs(own.get(one.name, ())), initial=0.0) > bound:
                problem = f"column {one.name!r} has values beyond the public bound of {bound:g}"
                remedy = "write it in larger units, or raise the option bound"
                error = TableError(problem, remedy=remedy, party=self.name, code="FK-VALUES-BOUND")
                raise self.unfit(error)
        return places(whole, own, bound, circles)

    @contributes(MOMENTS)
    def add_moments(self, plan: str, **about: Any) -> dict[str, Any]:
        """Return powers, products and finer bins of its columns."""
        return moments(*self._own(plan), About(**about))

    @contributes(NOISY)
    def add_noisy(self, plan: str) -> dict[str, Any]:
        """Return all figures at once, of public columns, clipped to their ranges."""
        whole, own = self._own(plan)
        if left := [name for name in self.columns if name not in own]:
            names = plain_line(", ".join(left))
            logger.warning("%s: not summed, as they have no public bounds: %s", self.name, names)
        return noisy_terms(whole, own)

    @answers("compare", last=True)
    def compare(self, plan: str, notes: list[Any], **given: Any) -> dict[str, Any] | None:
        """Compare its columns with those of the others, for its owner; flag them if that is so."""
        whole, own = self._own(plan)
        totals = {name: given.pop(name) for name in [*given] if name.startswith("of_")}
        about = About(**given)
        terms = moments(whole, own, about)
        rest = {name: totals[f"of_{name}"] - part for name, part in terms.items()}
        mine, others = (Totals(whole, about, one) for one in (terms, rest))
        found = compare_with_others(own, mine, others)
        said = {"names": notes, "categories": unlisted_words(whole, self.categories)}
        for check, texts in said.items():
            found += [Difference(name, check, np.nan, np.nan, text) for name, text in texts]
        for one in found:
            if one.text:
                text = plain_line(f"{one.column or one.check}: {one.text}")
                logger.warning("%s: %s", self.name, text)
        heads = ["column", "check", "value", "p", "text"]
        self.write_table("comparison", [heads, *([*map(str, astuple(one))] for one in found)])
        if not self.policy.report_checks:
            return None
        return {
            "flags": [
                [one.column, one.text] for one in found if one.text and one.check not in _TEXTS
            ]
        }

    def _enough(self, name: str) -> list[str]:
        """Return the categories of a column that enough of its rows have; others stay unnamed."""
        codes, names = self.x[:, self.columns.index(name)], self.categories.get(name, ())
        counts = np.bincount(codes[np.isfinite(codes)].astype(int), minlength=len(names))
        least = max(1, self.policy.min_sum_rows)
        return [word for word, n in zip(names, counts, strict=True) if n >= least]

    def _check_kind(self, one: Column) -> None:
        """Refuse public bounds of a column that holds something else."""
        own = self.kinds.get(one.name, "number")
        if own != one.kind and not {own, one.kind} <= {"number", "boolean"}:
            problem = f"column {one.name!r} holds a {own}, the public bounds are of a {one.kind}"
            error = TableError(problem, remedy=_BOUNDS, party=self.name, code="FK-COLUMN-KIND")
            raise self.unfit(error)

    def _own(self, told: str) -> tuple[Plan, dict[str, Floats]]:
        """Return the columns of the run, and the values of those that this node adds.

        A column that fewer parties hold than the policy asks for is not added: its sum would be
        theirs. Its own rows alone hide where parties hold different columns.
        """
        plan, own = Plan.read(told), dict[str, Floats]()
        least = self.policy.min_parties or self.enough_parties
        if "absent" not in self.kept.settings:  # the last request finds no cohort any more
            [cohort, *_] = self.secure_sums.party.state.cohorts.values()
            self.kept.settings["absent"] = len(cohort.members) - cohort.threshold
        absent = self.kept.settings["absent"]  # holders may be among these
        self.rows_chosen = any(len(one.holders) < self.partitions for one in plan.columns)
        for one in plan.columns:
            if self.partition not in one.holders or one.name not in self.columns:
                if self.partition in one.holders and not one.range:
                    raise refusal("a column that it does not have", code="FK-COLUMNS-DIFFER")
                continue
            lonely = len(one.holders) < self.partitions and len(one.holders) - absent < least
            if lonely and not (self.simulated or self.allow_single):
                text = "column %r is not summed: of its %d parties too few may take part"
                logger.warning(text, one.name, len(one.holders))
                continue
            values = self.x[:, self.columns.index(one.name)]
            if self.budget is not None:
                self._check_kind(one)
            if one.kind == "category":
                names = self.categories.get(one.name, ())
                # noise hides rare ones, and a row that becomes another moves two counts only
                enough = names if self.budget else self._enough(one.name)
                counted, other = {*one.words} & {*enough}, len(one.words)
                places = [one.words.index(w) if w in counted else other for w in names]
                codes = np.nan_to_num(values, nan=len(names)).astype(int)
                values = np.array([*places, np.nan])[codes]
            else:
                values = as_summed(values, one.kind)
            own[one.name] = values
        return plan, own
