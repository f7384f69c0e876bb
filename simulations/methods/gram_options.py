"""What Secure Gram and FedCFK share: a family of methods that sum matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedkern_flwr.errors import OptionError
from fedkern_flwr.gram.plan import disjoint_cohorts, drawn_rounds
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
        if config["data"]["rounds"] is not None and config["options"].get("merge") != "max":
            raise OptionError("rounds is for merge max", remedy="add --merge max")
        check_rounds(config)

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
        if strategy.merge == "max":
            cohorts = drawn_rounds(everybody, share, 1, 0)
        else:
            cohorts = disjoint_cohorts(everybody, share, strategy.cohorts_, 0)
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
