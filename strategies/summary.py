"""A summary: what parties have together, before any model, by exact secure sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np

from fedkern_flwr.encoding.encoder import KeptEncoder
from fedkern_flwr.method import Ask, PrivateMethod, Rounds, option
from fedkern_flwr.planning import allowance
from fedkern_flwr.secure_sum.membership import default_threshold
from fedkern_flwr.summary import (
    MOMENTS,
    NOISY,
    PLACES,
    SummaryDescribeReply,
    moment_shapes,
    noisy_shapes,
    place_shapes,
)
from fedkern_flwr.summary_columns import common_columns, public_columns
from fedkern_flwr.summary_figures import Totals, fits, plan_sizes, read_places
from fedkern_flwr.summary_report import Figures
from fedkern_flwr.wire.describe import DescribeReply, check_partitions


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
        "different": "figures that differ between groups",
    }
    server_sees = (
        "of each party: names and kinds of its columns, and categories of min_sum_rows of its rows",
        "columns in which a party is unlike the others, if its policy reports them",
    )
    labels_of_row = 0
    described = SummaryDescribeReply

    group: str | None = option(None, "Column of categories; its groups are compared.")
    bound: float = option(
        2.0**24, "Public bound on the magnitude of values; dates count in days.", above=0.0
    )
    bounds: str | None = option(
        None,
        "JSON file of public ranges and categories, for a privacy budget.",
    )
    significance: float = option(
        0.05, "Level below which corrected p-values are marked.", above=0.0, below=1.0
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.budget is not None:
            public_columns(self.bounds, ())

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees, and the budget."""
        found = super().privacy()
        if "overlap" in self.details_:
            found["server_sees"].append("which rows of which party belong together, by pseudonyms")
        return found

    def check_parties(self, parties: Sequence[DescribeReply]) -> None:
        """Refuse partitions that clash; columns may differ."""
        check_partitions(parties)

    # -- a run

    def rounds(self, parties: Sequence[Any]) -> Rounds:
        """Sum twice, and let each party compare itself with the others."""
        rows = float(sum(party.rows for party in parties))
        if self.budget is not None:
            return (yield from self._with_noise(parties))
        least = default_threshold(len(parties)) if self.threshold is None else self.threshold
        self.planned = 5
        found = common_columns(parties, self.group)
        plan = found.plan
        allowed = allowance(parties, labels=0, threshold=least)
        circles, splits, products = plan_sizes(plan, allowed)
        if allowed.planned:
            self.note_plan(f"{circles} circles, {splits} bins a column", allowed)
        asked: dict[str, Any] = {"plan": plan.write()}
        first = yield PLACES(
            place_shapes(plan, circles), bound=self.bound, circles=circles, **asked
        )
        how: Any = {"rows": rows, "group": self.group or "", "products": products}
        for what, lacking in (("products", False), ("group", ""), ("", "")):
            about = read_places(first, plan, self.bound, splits, seed=self.run_seed, **how)
            if fits(plan, about, circles, allowed) or not what:
                break
            how[what] = lacking
        if not about.products:
            self.notes_.append("no correlations: they need two hidden rows for each column")
        if self.group and not about.group:
            self.notes_.append(f"no comparison by {self.group!r}: too few rows for its products")
        asked |= vars(about)
        total = yield MOMENTS(moment_shapes(plan, about), **asked)
        asked |= {f"of_{name}": np.asarray(value) for name, value in total.items()}
        there = self.nodes.contributors.get("moments", [*found.called])  # sums less their own rows
        each = {p: {**asked, "notes": found.notes[p]} for p in there}
        # parties that dropped out need a message of their own to erase the run
        flags = yield Ask("compare", each, among=there, least=1, last=len(there) == len(parties))
        self.tables_ = found.tables(flags)
        if found.overlaps:
            self.details_["overlap"] = {p: asdict(one) for p, one in found.overlaps.items()}
        fewest = max(party.fewest for party in parties)
        return self._show(Figures.of(Totals(plan, about, total), self.bound, fewest))

    def _show(self, found: Figures) -> dict[str, Any]:
        """Fill the tables, the details and the model; return the metrics."""
        self.tables_ |= {"summary": found.first_table(), "columns": found.columns()}
        self.details_ |= found.details()
        self.model_ = found.model()
        return found.metrics(self.significance)

    # -- with a budget

    def _with_noise(self, parties: Sequence[DescribeReply]) -> Rounds:
        """Sum all at once, with noise, of columns that are public."""
        plan = public_columns(self.bounds, [p.partition for p in parties])
        self.planned = 2
        total = yield NOISY(noisy_shapes(plan), plan=plan.write())
        [release] = self.noise_.reports().values()
        found, encoder = Figures.of_noisy(total, plan, release["deviation"])
        assert self.budget is not None
        kept = KeptEncoder(encoder, self.session, self.budget.epsilon)
        self.details_["encoder"] = kept.to_dict()
        return self._show(found)
