"""Options of methods that release a Gram matrix, and which of them go together."""

from __future__ import annotations

from typing import Any

from fedkern_flwr.errors import OptionError
from fedkern_flwr.gram.plan import GramEncoding, Merge, check_values
from fedkern_flwr.method import Method, option
from fedkern_flwr.options import at_least

MIN_SUPPORT = 5
_FRACTION_BITS = 20


class GramOptions(Method):
    """Options of methods that release a Gram matrix.

    Parameters
    ----------
    cohorts : int (default: 1)
        Disjoint sets of nodes whose sums are released one by one and added up.
    """

    min_support: int = option(
        None,
        "Items that fewer rows have are left out before K is summed, by default 5; 0 keeps all. "
        "Only for counts.",
        least=0,
    )
    merge: Merge = option(
        "disjoint",
        "Each row is summed once; or the paper's entrywise maximum over rounds of random nodes.",
    )
    participation: float = option(
        1.0, "Share of the nodes that take part, of each round with merge max.", above=0.0, most=1.0
    )
    encoding: GramEncoding = option(
        "counts",
        "Whole numbers from 0, or real features rounded to multiples of 2^-fraction_bits.",
    )
    bound: float = option(1.0, "Public bound on the absolute value of a cell.")
    fraction_bits: int = option(None, "Of fixed-point, by default 20.")
    rows_per_item: float = option(
        0.0,
        "Keep only so many items, those that most rows have, that every released sum has so many "
        "rows for each. Only for counts.",
        least=0.0,
    )
    allow_recovery: bool | None = option(
        None,
        "Whether to sum a matrix of fewer than two rows per item, from which rows can be computed. "
        "By default only in simulations.",
        of_model=False,
    )
    drop_outs: bool | None = option(
        None,
        "Whether a sum goes on without nodes that drop out: it is then opened in an exchange of "
        "its own. Without, all nodes must answer; an exchange is repeated until they do. By "
        "default in simulations, with merge max, and where a threshold is given.",
        of_model=False,
    )

    def __init__(self, *, cohorts: int = 1, **options: Any) -> None:
        super().__init__(**options)
        at_least("cohorts", cohorts, 1)
        self.cohorts_ = cohorts
        counts, disjoint = self.encoding == "counts", self.merge == "disjoint"
        self.fill_in(fraction_bits=0 if counts else _FRACTION_BITS)
        check_values(self.encoding, self.bound, self.fraction_bits)
        for name, given in (
            ("cohorts", cohorts > 1),
            ("min_support", self.min_support),
            ("rows_per_item", self.rows_per_item),
        ):
            if given and not disjoint:
                raise OptionError(
                    f"{name} is for merge disjoint: the paper's rounds are drawn at random and "
                    "suppress nothing",
                    remedy="leave it out",
                )
            if given and name != "cohorts" and not counts:
                raise OptionError(
                    f"{name} is for encoding counts: real features have no support",
                    remedy="leave it out",
                )
        self.fill_in(min_support=MIN_SUPPORT if disjoint and counts else 0)
        if self.drop_outs is False and (not disjoint or self.threshold is not None):
            what = "a threshold is given" if disjoint else "merge max draws nodes"
            raise OptionError(f"{what}, and all must answer", remedy="leave out drop_outs")

    @property
    def self_masks(self) -> bool:
        """Whether sums go on without nodes that drop out."""
        if self.drop_outs is None:
            return self.simulated or self.merge == "max" or self.threshold is not None
        return self.drop_outs

    @property
    def counts_items(self) -> bool:
        """Whether item counts are summed first."""
        return self.min_support > 1 or self.rows_per_item > 0
