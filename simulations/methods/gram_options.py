"""Options, refusals and rows of tables that Secure Gram and FedCFK share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedkern_flwr.errors import OptionError
from fedkern_flwr.gram.plan import disjoint_cohorts, drawn_rounds
from fedkern_flwr.secure_sum import check_cohort

from ...strategies import FedCFK, SecureGram
from ..run.format import figure
from ..run.options import DATA, RUN, Option
from .base import Config
from .common import (
    DROP,
    ENGINE,
    RAY_ADDRESS,
    RESULT,
    TIMEOUT,
    seed,
)


def ratings_source() -> list[Option]:
    """Return the options that name the ratings."""
    return [
        Option(
            "data",
            str,
            "nyc-flights",
            "Built-in ratings, or a u.data, ratings.dat, .inter, .csv, .tsv or .parquet file.",
            DATA,
        ),
        *(
            Option(name, str | None, None, f"Column of {what} (.csv, .tsv, .parquet).", DATA)
            for name, what in COLUMNS_OF.items()
        ),
        Option("min_rating", float | None, None, "Least positive rating (default: all).", DATA),
    ]


COLUMNS_OF = {"user": "users", "item": "items", "rating": "ratings", "time": "times"}


COLUMNS_READ = ("user", "item", "rating")  # of a file of users to recommend to


def ratings_dealt() -> list[Option]:
    """Return the options that say who has which users."""
    return [
        Option("clients", int | None, None, "Nodes (default: 20).", DATA),
        Option("users_per_client", int | None, None, "Users of each node, instead.", DATA),
    ]


def common_options(seeded: str) -> list[Option]:
    """Return the options of every run of these methods."""
    return [
        Option("rounds", int | None, None, "Rounds of --merge max.", RUN),
        Option("resplit", bool, False, "A split of its own for every repetition.", RUN),
        Option("runs", int, 1, "Repetitions, with other nodes that take part.", RUN),
        ENGINE,
        RAY_ADDRESS,
        Option("secure", bool | None, None, "Secure sums: always; --no-secure is refused.", RUN),
        seed(seeded),
        DROP,
        TIMEOUT,
        *RESULT,
    ]


def refuse_plain(values: Mapping[str, Any]) -> None:
    """Refuse a run without secure sums.

    Raises
    ------
    OptionError
    """
    if values["secure"] is False:
        raise OptionError(
            "this method has secure sums only: a node's products are its ratings",
            remedy="leave out --no-secure",
        )


def check_cohorts(strategy: SecureGram, nodes: int) -> None:
    """Refuse sums that so many nodes cannot make, before anything is made.

    Raises
    ------
    OptionError, SmallCohortError
    """
    if nodes < 2:
        raise OptionError("a single client has nobody to sum with", remedy="use more clients")
    everybody, share = range(nodes), strategy.participation
    if strategy.merge == "max":
        cohorts = drawn_rounds(everybody, share, 1, 0)
    else:
        cohorts = disjoint_cohorts(everybody, share, strategy.cohorts_, 0)
    if isinstance(strategy, FedCFK):
        cohorts.append(list(everybody))  # who sum how good the recommendations are
    for members in cohorts:
        check_cohort(len(members), strategy.threshold, strategy.min_cohort)


def check_rounds(config: Config) -> None:
    """Refuse rounds that make no sense.

    Raises
    ------
    OptionError
    """
    rounds = config["data"]["rounds"]
    if rounds is not None and config["options"].get("merge") != "max":
        raise OptionError("rounds is for merge max", remedy="add --merge max")
    if rounds is not None and rounds < 1:
        raise OptionError(f"rounds is {rounds}", remedy="use at least 1")


def kernel_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of a run's table about the matrix."""
    metrics = result["metrics"]
    return [
        ["items in the matrix", f"{metrics['items']:g} of {metrics['catalogue']:g}"],
        ["rows summed", figure(metrics["rows"], 0)],
        ["nodes summed", figure(metrics["clients"], 0)],
    ]
