"""Secure Gram: exact kernels of users' ratings, or of a table whose columns parties hold."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.gram.values import count_values
from fedkern_flwr.vertical.parties import MissingRows

from ... import strategies
from ...strategies import PhaseStrategy, SecureGram
from ..run.entries import Entry, average
from ..run.format import figure
from ..run.options import DATA, RUN, Option
from .base import Config, Family
from .common import (
    COSTS,
    TRAIN_ROWS,
    Column,
    accuracy,
    cost_rows,
    failure_rows,
    held_out,
    rmse,
    scientific,
    server_row,
    source,
    to_pooled,
)
from .gram_data import GramSettings, InstanceData, prepare_gram
from .gram_learner import Learner, Machine, choose_machine
from .gram_options import (
    check_cohorts,
    check_rounds,
    common_options,
    kernel_rows,
    ratings_dealt,
    ratings_source,
    refuse_plain,
)
from .labelled_data import Task
from .rating_data import RatingData, rows_of

_COLUMNS = {
    "accuracy": accuracy(4),
    "rmse": rmse(4),
    "error": Column(
        ("error of K",),
        lambda s: [scientific(s["metrics"].get("max_abs_error"))],
        reading="Error of K: largest difference of an entry of the Gram matrix from that of pooled "
        "data; counts are exact, features are rounded.",
    ),
    "difference": to_pooled(
        "To pooled: largest difference of an output of the machine that the coordinator trains on "
        "the kernel from that of the same machine on pooled, rounded features."
    ),
    "items": Column(("items",), lambda s: [figure(s["metrics"].get("items"), 0)]),
    **COSTS,
}


class GramFamily(Family[GramSettings, RatingData | InstanceData]):
    """Secure Gram."""

    strategies = (strategies.SecureGram,)
    settings = GramSettings
    run_options = ("learner", "cost")
    draws = "runs"
    columns = _COLUMNS

    def parameters(self) -> list[Option]:
        """Return the options of a run that are not the strategy's."""
        table = [option for option in source("") if option.name != "data"]
        return [
            Option(
                "data",
                str,
                "nyc-flights",
                "Ratings (built-in, u.data, ratings.dat, .inter, or a table with --user and "
                "--item), or a table (built-in, .npz, .csv, .parquet).",
                DATA,
            ),
            *ratings_source()[1:],
            *ratings_dealt(),
            *table,
            Option("missing", MissingRows, "error", "Rows of a table that lack a value.", DATA),
            Option("task", Task, "auto", "What a table's labels are.", DATA),
            Option("positive", float | None, None, "Class that is told from all others.", DATA),
            TRAIN_ROWS,
            held_out(0.25),
            Option("learner", Learner, "svc", "Of a table: machine trained on the kernel.", RUN),
            Option(
                "cost",
                float | None,
                None,
                "C of svc or lambda of ridge (default: cross-validation at the coordinator).",
                RUN,
            ),
            *common_options("split and nodes that take part"),
        ]

    def config(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Make the configuration of a run; refuse what contradicts itself."""
        refuse_plain(values)
        return super().config(name, values)

    def check(self, config: Config) -> None:
        """Refuse options that cannot work before any data is read."""
        super().check(config)
        check_rounds(config)
        if config["cost"] is not None and not 0.0 < config["cost"] < np.inf:
            raise OptionError(f"cost is {config['cost']}", remedy="use a positive number")

    def check_data(self, config: Config, prepared: RatingData | InstanceData) -> None:
        """Refuse options that cannot work with the data.

        Raises
        ------
        OptionError, TableError
        """
        super().check_data(config, prepared)
        strategy = SecureGram(**config["options"])
        check_cohorts(strategy, prepared.num_clients)
        if isinstance(prepared, RatingData):
            refuse_options_of_tables(config)
        if isinstance(prepared, InstanceData):
            check_features(strategy, prepared.split(config["seed"]).features(strategy.encoding))
        elif strategy.encoding != "counts":
            raise OptionError(
                "ratings are counts", remedy="leave out --encoding, or use a table of features"
            )

    def prepare(self, settings: GramSettings) -> RatingData | InstanceData:
        """Load ratings or a table and deal it."""
        return prepare_gram(settings)

    def measure(
        self, strategy: PhaseStrategy, prepared: RatingData | InstanceData, config: Config
    ) -> dict[str, Any]:
        """Return the error of K, and how good a machine on the kernel of a table is."""
        assert isinstance(strategy, SecureGram)
        if isinstance(prepared, RatingData):
            return {"max_abs_error": ratings_error(strategy, prepared)}
        return judge_table(strategy, prepared, config.get("learner", "svc"), config.get("cost"))

    def predict(
        self, folder: Path, config: Config, data: Path, id_column: str | None, out: Path
    ) -> tuple[int, int]:
        """Predict the rows of a file with the kernel of a run."""
        from .gram_predict import predict_rows

        return predict_rows(folder, config, data, id_column, out)

    def outcome(self, strategy: PhaseStrategy) -> dict[str, Any]:
        """Return how many nodes were summed."""
        assert isinstance(strategy, SecureGram)
        return {"survivors": len(strategy.survivors_)}

    def summarise(self, entry: Entry) -> dict[str, Any]:
        """Average the runs; the history is that of the first."""
        first = entry.results[0]
        survivors = first["survivors"]
        return average(entry.results, metrics={}, history=first["history"], survivors=survivors)

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return the numbers of nodes, users and items, or of rows."""
        if "users" in facts:
            return f"{facts['users']} users on {facts['clients']} nodes, {facts['items']} items"
        rows = f"{facts['rows']} training and {facts['held_out_rows']} held-out rows"
        return f"{facts['clients']} parties, {rows}"

    def rows(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return how exact the matrix is, how good a machine on it, what it cost."""
        metrics, rows = result["metrics"], []
        for name, text in (
            ("test_accuracy", "accuracy on held-out rows"),
            ("test_recall", "  recall"),
            ("test_precision", "  precision"),
            ("test_rmse", "RMSE on held-out rows"),
        ):
            if metrics.get(name) is not None:
                rows.append([text, figure(metrics[name], 4)])
        for name, text in (("gamma", "gamma"), ("cost", "C, or lambda")):
            if metrics.get(name) is not None:
                rows.append([text, f"{metrics[name]:.3g}"])
        if metrics.get("centralised_difference") is not None:
            rows.append(
                ["largest difference to pooled", scientific(metrics["centralised_difference"])]
            )
        rows += [["largest error of K", scientific(metrics["max_abs_error"])]]
        if metrics.get("error_bound"):
            rows.append(["  bound of rounding", scientific(metrics["error_bound"])])
        plain = 8e-6 * metrics["catalogue"] ** 2
        each = result["bytes_up"] / 1e6 / max(1, result["config"]["clients"])
        sent = [["MB per node", f"{each:.2f} (plain float64 matrix: {plain:.2f})"]]
        rows += [*kernel_rows(result), *cost_rows(result), *sent, server_row(result)]
        return rows + failure_rows(result)

    def plots(self, folder: Path, label: str, summary: Mapping[str, Any]) -> dict[str, Path]:
        """Draw nothing: a run has one matrix."""
        return {}


def refuse_options_of_tables(config: Config) -> None:
    """Refuse options of a table where the data are ratings.

    Raises
    ------
    OptionError
    """
    chosen = {**config["data"], **config}
    for option in GramFamily().parameters():
        if option.name in _OF_TABLES and chosen[option.name] != option.default:
            flag = option.flag.removeprefix("--") or option.name.replace("_", "-")
            raise OptionError(
                f"{flag} is for tables, {Path(config['data']['data']).name} holds ratings",
                remedy="leave it out",
            )


_OF_TABLES = (
    "label",
    "target",
    "id_column",
    "site_column",
    "missing",
    "task",
    "positive",
    "train_rows",
    "test_size",
    "learner",
    "cost",
)


def check_features(strategy: SecureGram, x: NDArray[np.float64]) -> None:
    """Refuse features that the encoding cannot hold, before anything is sent.

    Raises
    ------
    TableError
    """
    if strategy.encoding == "counts":
        count_values(x, strategy.bound)
    elif not np.isfinite(x).all():
        raise TableError("a row lacks a value", remedy="use --missing drop-row")
    elif np.abs(x).max() > strategy.bound:
        raise TableError(
            f"scaled features are beyond the bound {strategy.bound:g}",
            remedy="use a bound of at least 1",
        )


def ratings_error(strategy: SecureGram, prepared: RatingData) -> int:
    """Return the largest error of an entry of K, against the users that were summed."""
    pooled = prepared.split(strategy.seed or 0)
    users = rows_of(prepared.parts, strategy.survivors_)
    part = (pooled.train + pooled.test)[users][:, strategy.items_]
    exact = (part.T @ part).toarray()
    if strategy.merge == "max":
        exact = np.minimum(exact, strategy.gram_)  # what was counted cannot be more
    return int(np.abs(strategy.gram_ - exact).max())


def judge_table(
    strategy: SecureGram, prepared: InstanceData, learner: str, cost: float | None
) -> dict[str, Any]:
    """Train a machine on the kernel of a run; return its metrics, seconds and the errors."""
    seed = strategy.seed or 0
    part = prepared.split(seed)
    features = np.concatenate([part.parts[p] for p in strategy.survivors_])
    x = part.features(strategy.encoding)[np.ix_(strategy.items_, features)]
    gram, y, train = strategy.linear_, part.y[strategy.items_], part.train[strategy.items_]
    found: dict[str, Any] = {
        "max_abs_error": largest_error(gram, x),
        "error_bound": strategy.error_bound_,
    }
    if not (~train).any() or len(np.unique(y[train])) < 2:
        return found
    started = time.perf_counter()
    machine = choose_machine(
        gram[np.ix_(train, train)],
        strategy.rows_,
        y[train],
        strategy.dot_kernel_,
        part.classes,
        learner=learner,
        gamma=strategy.gamma,
        cost=cost,
        seed=seed,
    )
    outputs = predict_held_out(machine, gram, y, train)
    seconds = time.perf_counter() - started
    steps = 2.0**strategy.fraction_bits
    rounded = np.rint(x * steps) / steps
    twin = predict_held_out(machine, rounded @ rounded.T, y, train)
    metrics = prepared.pooled(seed).judge(outputs)
    width = {"gamma": machine.kernel.gamma} if machine.kernel.name in ("rbf", "poly") else {}
    return {
        **found,
        **metrics,
        **width,
        "cost": machine.cost,
        "seconds": seconds,
        "centralised_difference": float(np.abs(outputs - twin).max()),
    }


def predict_held_out(
    machine: Machine,
    gram: NDArray[np.float64],
    y: NDArray[np.float64],
    train: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return the outputs of the rows held out."""
    kernel = machine.kernel.matrix(gram, machine.rows)
    return machine.outputs(kernel[np.ix_(train, train)], y[train], kernel[np.ix_(~train, train)])


def largest_error(gram: NDArray[np.float64], x: NDArray[np.float64]) -> float:
    """Return the largest difference of a Gram matrix from that of features, block by block."""
    worst, step = 0.0, 512
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        worst = max(worst, float(np.abs(gram[rows] - x[rows] @ x.T).max()))
    return worst
