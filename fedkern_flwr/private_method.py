"""What methods share that may add noise: the budget of a run, and what was released for it."""

from __future__ import annotations

from collections.abc import Mapping
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

    def _reset(self) -> None:
        super()._reset()
        self._earlier_releases: dict[str, Any] = {}  # before the run broke off

    def progress(self) -> dict[str, Any]:
        """Return what a resumed run must know, with what was released."""
        return {**super().progress(), "releases": self.release_reports()}

    def go_on(self, progress: Mapping[str, Any]) -> None:
        """Take up a run that broke off, with what it released."""
        super().go_on(progress)
        self._earlier_releases = dict(progress.get("releases", {}))

    def release_reports(self) -> dict[str, Any]:
        """Return what ``result.json`` says of each release, by its name."""
        own = {name: one.report(parties) for name, (one, parties) in self.noised_.items()}
        return self._earlier_releases | own

    def budget_report(self) -> dict[str, Any]:
        """Return what the run may cost, what it released and what that cost, for ``privacy()``."""
        if self.budget is None:
            return {}
        return {"budget": {**vars(self.budget), "releases": [*self.release_reports().values()]}}

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees, and the budget."""
        return {**super().privacy(), **self.budget_report()}
