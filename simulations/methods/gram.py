"""Secure Gram: exact kernels of users' ratings, or of a table whose columns parties hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.gram.matrix import count_values, quantise
from fedkern_flwr.gram.messages import disjoint_cohorts
from fedkern_flwr.judging.figures import in_units
from fedkern_flwr.judging.judges import FIND_RARE
from fedkern_flwr.nodes import logger
from fedkern_flwr.progress import part as time_of
from fedkern_flwr.reporting import whether_converged
from fedkern_flwr.secure_sum import check_cohort
from fedkern_flwr.tables.dialect import DIALECT

from ... import strategies
from ...strategies import FedCFK, Method, SecureGram
from ..run.format import figure
from ..run.options import RUN, Option
from .base import Config, Family, P, S, check_rounds
from .common import (
    COSTS,
    DIFFERENCE,
    JUDGED,
    Shown,
    accuracy,
    metric,
    rmse,
    scientific,
    short,
    to_pooled,
)
from .gram_data import GramSettings, InstanceData, prepare_gram
from .gram_learner import Learner, Machine, choose_machine
from .new_rows import Parts
from .rating_data import RatingData, rows_of

COLUMNS_READ = ("user", "item", "rating")  # of a file of users to recommend to
_COLUMNS = {
    "accuracy": accuracy(4),
    "rmse": rmse(4),
    "error": metric(
        "error of K",
        "max_abs_error",
        reading="Error of K: largest difference of an entry of the Gram matrix from that of pooled "
        "data; counts are exact, features are rounded.",
        pooled=True,
    ),
    "difference": to_pooled(
        "To pooled: largest difference of an output of the machine that the coordinator trains on "
        "the kernel from that of the same machine on pooled, rounded features."
    ),
    "items": metric("items", "items", 0),
    **COSTS,
}


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
                code="FK-OPTION-BOTH",
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
            raise OptionError(
                "a single client has nobody to sum with",
                remedy="use more clients",
                code="FK-PARTIES-FEW",
            )
        everybody, share = range(prepared.num_clients), strategy.participation
        rounds = config["data"]["rounds"] or 1
        number = max(rounds, strategy.cohorts_)
        cohorts = disjoint_cohorts(everybody, share, number, 0, halves=rounds > 1)
        if isinstance(strategy, FedCFK):
            cohorts.append(list(everybody))  # who sum how good the recommendations are
        for members in cohorts:
            check_cohort(len(members), strategy.threshold, strategy.min_cohort)

    def outcome(self, strategy: Method) -> dict[str, Any]:
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


class GramFamily(MatrixFamily[GramSettings, RatingData | InstanceData]):
    """Secure Gram."""

    strategies = (strategies.SecureGram,)
    settings = GramSettings
    run_options = ("learner", "cost", "class_weight", "level")
    draws = "runs"
    afterwards = "training on the kernel"
    checked = ("centralised_difference", "max_abs_error")
    columns = _COLUMNS
    usual = "clients kernel min_support learner"
    shown = (
        *JUDGED,
        Shown("gamma", "gamma", short),
        Shown("cost", "C, or lambda", short),
        DIFFERENCE,
        Shown("max_abs_error", "largest error of K", scientific),
        Shown("error_bound", "  bound of rounding", scientific, zero=False),
    )
    own_options = (
        Option("learner", Learner, "svc", "Of a table: machine trained on the kernel.", RUN),
        Option(
            "cost",
            float | None,
            None,
            "C of svc or lambda of ridge (default: cross-validation at the coordinator).",
            RUN,
        ),
        Option(
            "class_weight",
            Literal["balanced"] | None,
            None,
            "Of a table: rows of rare classes weigh more, as scikit-learn's balanced.",
            RUN,
        ),
        Option("level", float, 0.9, "Of a table: of intervals and sets of classes.", RUN),
    )
    seeded = "split and nodes that take part"

    def check(self, config: Config) -> None:
        """Refuse options that cannot work before any data is read."""
        super().check(config)
        if config["cost"] is not None and not 0.0 < config["cost"] < np.inf:
            raise OptionError(
                f"cost is {config['cost']}", remedy="use a positive number", code="FK-OPTION-RANGE"
            )
        if not 0.0 < config["level"] < 1.0:
            raise OptionError(
                f"level is {config['level']}",
                remedy="use a number between 0 and 1",
                code="FK-OPTION-RANGE",
            )

    def check_data(self, config: Config, prepared: RatingData | InstanceData) -> None:
        """Refuse options that cannot work with the data.

        Raises
        ------
        OptionError, TableError
        """
        super().check_data(config, prepared)
        strategy = SecureGram(**config["options"])
        if isinstance(prepared, RatingData):
            refuse_options_of_tables(config)
        if isinstance(prepared, InstanceData):
            if config.get("class_weight") and not prepared.split(config["seed"]).classes:
                raise OptionError(
                    "class_weight is for classes",
                    remedy="leave it out for numbers",
                    code="FK-WEIGHTS-NUMBERS",
                )
            check_features(strategy, prepared.split(config["seed"]).features(strategy.encoding))
        elif strategy.encoding != "counts":
            raise OptionError(
                "ratings are counts",
                remedy="leave out --encoding, or use a table of features",
                code="FK-DATA-OPTION",
            )

    def prepare(self, settings: GramSettings) -> RatingData | InstanceData:
        """Load ratings or a table and deal it."""
        return prepare_gram(settings)

    def measure(
        self, strategy: Method, prepared: RatingData | InstanceData, config: Config
    ) -> dict[str, Any]:
        """Return the error of K, and how good a machine on the kernel of a table is."""
        assert isinstance(strategy, SecureGram)
        check = self.checks_pooled(prepared, config)
        if isinstance(prepared, RatingData):
            return {"max_abs_error": ratings_error(strategy, prepared)} if check else {}
        return judge_table(strategy, prepared, config, check=check)

    def whole_model(
        self,
        strategy: Method,
        prepared: RatingData | InstanceData,
        config: Config,
        state_dir: Path,
        metrics: Config,
    ) -> Parts | None:
        """Return what predicts rows in one place; nothing does where all are of one class."""
        assert isinstance(strategy, SecureGram)
        assert isinstance(prepared, InstanceData)
        return whole_model(strategy, prepared, config, metrics)

    def why_unpredictable(self, config: Config) -> tuple[str, str] | None:
        """Return why there are no labels to predict, or no sums of new rows with others."""
        if GramSettings.from_values(config["data"]).rates:
            return "ratings have no labels to predict", "use fedkern run fed-cfk to recommend"
        return None

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return the numbers of nodes, users and items, or of rows."""
        if "users" in facts:
            return f"{facts['users']} users on {facts['clients']} nodes, {facts['items']} items"
        rows = f"{facts['rows']} training and {facts['held_out_rows']} held-out rows"
        return f"{facts['clients']} parties, {rows}"

    def seen(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return what a node sent, and what the server saw."""
        plain = 8e-6 * result["metrics"]["catalogue"] ** 2
        each = result["bytes_up"] / 1e6 / max(1, result["config"]["clients"])
        sent = f"{each:.2f} (plain float64 matrix: {plain:.2f})"
        return [["MB per node", sent], *super().seen(result)]


def refuse_options_of_tables(config: Config) -> None:
    """Refuse options of a table where the data are ratings.

    Raises
    ------
    OptionError
    """
    chosen = {**config["data"], **config}
    for option in GramFamily().parameters():
        if option.name in _OF_TABLES and chosen[option.name] not in (option.default, (), []):
            flag = option.flag.removeprefix("--") or option.name.replace("_", "-")
            raise OptionError(
                f"{flag} is for tables, {Path(config['data']['data']).name} holds ratings",
                remedy="leave it out",
                code="FK-DATA-OPTION",
            )


_OF_TABLES = (
    "label",
    "target",
    "id_column",
    "site_column",
    *DIALECT,
    "use",
    "ignore",
    "common_columns",
    "missing",
    "scaling",
    "categories",
    "task",
    "positive",
    "train_rows",
    "test_size",
    "learner",
    "cost",
    "class_weight",
    "level",
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
        raise TableError(
            "a row lacks a value", remedy="use --missing drop-row", code="FK-VALUES-MISSING"
        )
    elif np.abs(x).max() > strategy.bound:
        raise TableError(
            f"scaled features are beyond the bound {strategy.bound:g}",
            remedy="use a bound of at least 1",
            code="FK-VALUES-BOUND",
        )


def ratings_error(strategy: SecureGram, prepared: RatingData) -> int:
    """Return the largest error of an entry of K, against the users that were summed."""
    pooled = prepared.split(strategy.seed or 0)
    users = rows_of(prepared.parts, strategy.survivors_)
    part = (pooled.train + pooled.test)[users][:, strategy.items_]
    exact = (part.T @ part).toarray()
    return int(np.abs(strategy.gram_ - exact).max())


def judge_table(
    strategy: SecureGram, prepared: InstanceData, config: Config, *, check: bool
) -> dict[str, Any]:
    """Train a machine on the kernel of a run; return its metrics, seconds and the errors.

    With ``check`` the matrix and the machine are compared with those of the pooled rows.
    """
    seed = strategy.seed or 0
    part = prepared.split(seed)
    features = np.concatenate([part.parts[p] for p in strategy.survivors_])
    x = part.features(strategy.encoding)[np.ix_(strategy.items_, features)]
    gram, y, train = strategy.linear_, part.y[strategy.items_], part.train[strategy.items_]
    weights = None if part.weights is None else part.weights[strategy.items_][train]
    found: dict[str, Any] = {"error_bound": strategy.error_bound_}
    if check:
        found["max_abs_error"] = largest_error(gram, x)
    if not (~train).any() or (part.classes and len(np.unique(y[train])) < 2):
        return found
    started = time.perf_counter()
    own = gram[np.ix_(train, train)]
    stopped = list[int]()
    with time_of("train"):
        machine = train_machine(strategy, own, y[train], weights, part.classes, config, seed)
        outputs = predict_held_out(machine, gram, y, train, weights, stopped.append)
    seconds = time.perf_counter() - started
    if machine.learner == "svc":
        text = f"the support vector machine needs more than {max(stopped, default=0):,} steps"
        remedy = "scale the columns, leave out one of ids, or give a smaller --cost"
        found |= whether_converged(not stopped, text, remedy)
    if check:
        steps = 2.0**strategy.fraction_bits
        rounded = np.rint(x * steps) / steps
        twin = predict_held_out(machine, rounded @ rounded.T, y, train, weights)
        found["centralised_difference"] = float(np.abs(outputs - twin).max())
    pooled = prepared.pooled(seed)
    judged = pooled.judged(outputs, level=config.get("level", 0.9))
    judged = replace(judged, weighted=bool(config.get("class_weight")))
    metrics = judged.metrics()
    if judged.never_found and not judged.weighted:
        text = "Secure Gram: %d of %d classes are found in no held-out row; %s"
        logger.warning(text, judged.never_found, judged.yard.classes, FIND_RARE)
    width = {"gamma": machine.kernel.gamma} if machine.kernel.name in ("rbf", "poly") else {}
    return {
        **found,
        **metrics,
        **in_units(metrics, pooled.label_unit),
        "judged": judged,
        **width,
        "cost": machine.cost,
        "seconds": seconds,
    }


def predict_held_out(
    machine: Machine,
    gram: NDArray[np.float64],
    y: NDArray[np.float64],
    train: NDArray[np.bool_],
    weights: NDArray[np.float64] | None,
    stopped: Callable[[int], None] = lambda steps: None,
) -> NDArray[np.float64]:
    """Return the outputs of the rows held out; see :meth:`Machine.outputs`."""
    kernel = machine.kernel.matrix(gram, machine.rows)
    own, other = kernel[np.ix_(train, train)], kernel[np.ix_(~train, train)]
    return machine.outputs(own, y[train], other, weights, stopped)


def largest_error(gram: NDArray[np.float64], x: NDArray[np.float64]) -> float:
    """Return the largest difference of a Gram matrix from that of features, block by block."""
    worst, step = 0.0, 512
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        worst = max(worst, float(np.abs(gram[rows] - x[rows] @ x.T).max()))
    return worst


def whole_model(
    strategy: SecureGram,
    prepared: InstanceData,
    config: Mapping[str, Any],
    chosen: Mapping[str, Any],
) -> Parts | None:
    """Train the machine of a run on its matrix; return it with the rows that support it.

    ``chosen`` are metrics of the run: width and cost of its machine, if rows were held out to judge
    one.
    """
    part, counts = prepared.split(strategy.seed or 0), strategy.encoding == "counts"
    train = part.train[strategy.items_]
    gram, y = strategy.linear_[np.ix_(train, train)], part.y[strategy.items_][train]
    own = None if part.weights is None else part.weights[strategy.items_][train]
    if part.classes and len(np.unique(y)) < 2:
        return None
    if "cost" in chosen:
        kernel = strategy.dot_kernel_
        kernel = replace(kernel, gamma=chosen.get("gamma", kernel.gamma))
        learner = config.get("learner", "svc")
        weighed = bool(config.get("class_weight"))
        machine = Machine(kernel, strategy.rows_, learner, chosen["cost"], part.classes, weighed)
    else:
        seed = strategy.seed or 0
        machine = train_machine(strategy, gram, y, own, part.classes, config, seed)
    weights, bias = machine.fit(machine.kernel.matrix(gram, machine.rows), y, own)
    used = np.concatenate([part.parts[p] for p in strategy.survivors_])
    bits, bound = strategy.fraction_bits, strategy.bound
    supports = (weights != 0.0).any(axis=1)
    x = part.features(strategy.encoding)[np.ix_(strategy.items_[train][supports], used)]
    whole = count_values(x, bound) if counts else quantise(x, bits, bound)
    arrays = {"instances": whole * 2.0**-bits, "weights": weights[supports], "bias": bias}
    told = {
        "encoded": not counts,
        "encoding": strategy.encoding,
        "bound": bound,
        "fraction_bits": bits,
        "used": used.tolist(),
        "kernel": asdict(machine.kernel),
        "rows": machine.rows,
        "votes": len(part.classes) if machine.learner == "svc" and len(part.classes) > 2 else 0,
    }
    return Parts("instances", arrays, told)


def train_machine(
    strategy: SecureGram,
    gram: NDArray[np.float64],
    y: NDArray[np.float64],
    weights: NDArray[np.float64] | None,
    classes: tuple[float, ...],
    config: Mapping[str, Any],
    seed: int,
) -> Machine:
    """Choose the machine that a run is asked for on the matrix of the rows to learn from."""
    return choose_machine(
        gram,
        strategy.rows_,
        y,
        strategy.dot_kernel_,
        classes,
        learner=config.get("learner", "svc"),
        gamma=strategy.gamma,
        cost=config.get("cost"),
        seed=seed,
        balanced=bool(config.get("class_weight")),
        weights=weights,
    )
