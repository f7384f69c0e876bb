"""What Secure Gram and FedCFK share: a family of methods that sum matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedkern_flwr.errors import OptionError
from fedkern_flwr.gram.plan import disjoint_cohorts
from fedkern_flwr.secure_sum import check_cohort

from ...strategies import FedCFK, PhaseStrategy, SecureGram
from ..run.format import figure
from .base import Config, Family, P, S, check_rounds

COLUMNS_READ = ("user", "item", "rating")  # of a file of users to recommend to


class MatrixFamily(Family[S, P]):
    """Methods that sum matrices of products."""

    data = "nyc-flights"
    repetitions = "Repetitions, with other nodes that take part."
    always_secure = "a node's products are its ratings"

    def check(self, config: Config) -> None:
        """Refuse options that cannot work before any data is read."""
        super().check(config)
        check_rounds(config)
        if (config["data"]["rounds"] or 1) > 1 and config["options"].get("cohorts", 1) > 1:
            raise OptionError(
                "cohorts are summed at once, and rounds one by one",
                remedy="leave out --cohorts or --rounds",
            )

    def check_data(self, config: Config, prepared: P) -> None:
        """Refuse sums that so many nodes cannot make, before anything is made.

        Raises
        ------
        OptionError, SmallCohortError
        """
        super().check_data(config, prepared)
        strategy = self._strategy(config["method"])(**config["options"])
        assert isinstance(strategy, SecureGram)
        if prepared.num_clients < 2:
            raise OptionError("a single client has nobody to sum with", remedy="use more clients")
        everybody, share = range(prepared.num_clients), strategy.participation
        rounds = config["data"]["rounds"] or 1
        number = max(rounds, strategy.cohorts_)
        cohorts = disjoint_cohorts(everybody, share, number, 0, halves=rounds > 1)
        if isinstance(strategy, FedCFK):
            cohorts.append(list(everybody))  # who sum how good the recommendations are
        for members in cohorts:
            check_cohort(len(members), strategy.threshold, strategy.min_cohort)

    def outcome(self, strategy: PhaseStrategy) -> dict[str, Any]:
        """Return how many nodes were summed."""
        assert isinstance(strategy, SecureGram)
        return {"survivors": len(strategy.survivors_)}

    def figures(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return how good what was made of the matrix is, and what is in it."""
        metrics = result["metrics"]
        return [
            *super().figures(result),
            ["items in the matrix", f"{metrics['items']:g} of {metrics['catalogue']:g}"],
            ["rows summed", figure(metrics["rows"], 0)],
            ["nodes summed", figure(metrics["clients"], 0)],
        ]
