"""What methods share that may add noise: the budget of a run, and what was released for it."""

from __future__ import annotations

from typing import Any, Literal

from .method import Method
from .options import option
from .privacy import Budget
from .privacy.accounting import check_accountant


class PrivateMethod(Method):
    """A method whose sums may have noise, so that a run keeps a budget of privacy.

    Attributes
    ----------
    budget : Budget or None
        What a run may cost; None without noise.
    """

    privacy_epsilon: float | None = option(
        None,
        "Add noise to all that is released, so that a run costs no more than this epsilon; by "
        "default none is added. The options of a run and the ranges of its columns are taken to be "
        "public.",
        above=0.0,
    )
    privacy_delta: float = option(
        1e-5, "The delta that belongs to it: far less than one over the rows.", above=0.0, below=1.0
    )
    privacy_unit: Literal["row", "party"] = option(
        "row", "What epsilon is about: one record, or all records of a party."
    )
    privacy_colluders: int = option(
        1,
        "Parties that may subtract the noise that they added themselves: the others add as much "
        "more.",
        least=0,
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.privacy_epsilon is not None:
            self.budget = Budget(
                self.privacy_epsilon,
                self.privacy_delta,
                self.privacy_unit,
                self.privacy_colluders,
            )
            check_accountant()

    def budget_report(self) -> dict[str, Any]:
        """Return what the run may cost, what it released and what that cost, for ``privacy()``."""
        if self.budget is None:
            return {}
        releases = [one.report(parties) for one, parties in self.noised_.values()]
        return {"budget": {**vars(self.budget), "releases": releases}}

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees, and the budget."""
        return {**super().privacy(), **self.budget_report()}
