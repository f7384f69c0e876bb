"""Secure Gram for users: exact kernels of ratings, or of a table whose columns parties hold."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.gram.matrix import count_values
from fedkern_flwr.gram.messages import disjoint_cohorts
from fedkern_flwr.interactions import is_interactions
from fedkern_flwr.secure_sum import check_cohort
from fedkern_flwr.tables.dialect import DIALECT
from fedkern_flwr.tables.table import Table, how_many
from fedkern_flwr.vertical.parties import MissingRows

from ...clients import GramClient
from ...strategies import FedCFK, Method, SecureGram
from ..run.datasets import BUILTIN_INTERACTIONS
from ..run.format import figure
from ..run.options import of_fields
from ..run.party_files import PartyFiles
from . import common
from .base import Config, Family, Kept, P, S, check_rounds
from .base import rows_of as rows_of_table
from .dealt_data import DealtData, DealtTable
from .gram_learner import Coordinator, Learner
from .labelled_data import LabelledSettings
from .new_rows import Parts
from .rating_data import RatingColumns, RatingData, RatingSettings, rows_of

Floats = NDArray[np.float64]
_PARTIES = 4


@dataclass(frozen=True)
class GramSettings(RatingColumns, LabelledSettings):
    """Which table or ratings are used, and who gets which columns or users.

    A table's columns are dealt to 4 clients by default.

    Attributes
    ----------
    data : str
        Ratings (built-in, u.data, ratings.dat, .inter, or a table with --user and --item), or a
        table (built-in, .npz, .csv, .tsv, .parquet).
    missing : {"encode", "error", "drop-row"}
        Rows of a table that lack a value (encode: the median, and a column that says so).
    task : {"auto", "classification", "regression"}
        What a table's labels are.
    party : tuple of str
        File of a node, once for each, instead of --data; FILE:features if its label is not used.
    """

    holding = "columns"

    test_size: float = 0.25
    missing: Literal["encode", MissingRows] = "error"

    @property
    def rates(self) -> bool:
        """Whether the data are ratings."""
        named = self.user is not None or self.item is not None
        if self.party:
            return named or is_interactions(self.party[0])
        return named or self.data in BUILTIN_INTERACTIONS or is_interactions(self.data)

    def of_files(self) -> dict[str, Any]:
        """Return the number of parties or nodes."""
        return self.ratings().of_files() if self.rates else super().of_files()

    @classmethod
    def counted(cls, files: PartyFiles) -> dict[str, Any]:
        """Return how many parties have columns."""
        return {"clients": sum(map(bool, files.blocks))}

    def describe(self) -> str:
        """Return who gets what, for the caption of a table."""
        return self.ratings().describe() if self.rates else f"{self.clients or _PARTIES} parties"

    def ratings(self) -> RatingSettings:
        """Return the settings for ratings: nothing is held out."""
        names = {f.name for f in fields(RatingSettings)} & {f.name for f in fields(self)}
        return RatingSettings(**{**{n: getattr(self, n) for n in names}, "test_size": 0.0})


@dataclass(frozen=True, kw_only=True, eq=False)
class Instances(DealtTable):
    """One split of a table.

    Attributes
    ----------
    raw : ndarray, shape (n, d), or None
        Features as they are, if all are numbers.
    parts : tuple of ndarray
        Columns of each party.
    encoding : str
        What is summed, see :meth:`features`.
    """

    raw: Floats | None
    parts: tuple[NDArray[np.intp], ...]
    encoding: str = "fixed-point"

    def alone(self) -> list[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
        """Return all rows and the columns of each party, as if each had the labels."""
        return [(np.ones_like(self.train), part) for part in self.parts]

    def node(self, seed: int, partition: int) -> dict[str, Any]:
        """Return the columns of a node."""
        return {"x": self.features(self.encoding)[:, self.parts[partition]].T}

    def features(self, encoding: str) -> Floats:
        """Return what is summed: whole numbers as they are, or scaled features.

        Raises
        ------
        TableError
            They are to be whole numbers, and the table has others.
        """
        if encoding != "counts":
            return self.x
        if self.raw is None:
            raise TableError(
                "counts are whole numbers, the table has text, dates or booleans",
                remedy="use --encoding fixed-point",
                code="FK-VALUES-COUNTS",
            )
        return self.raw


class InstanceData(DealtData[GramSettings, Instances]):
    """A table whose columns are dealt to parties.

    Parameters
    ----------
    settings : GramSettings

    Raises
    ------
    TableError, OptionError
        The table cannot be used, or there are too few columns to deal.
    """

    client = GramClient

    def __init__(self, settings: GramSettings) -> None:
        for name in ("users_per_client", "min_rating", "rating", "time"):
            if getattr(settings, name) is not None:
                raise OptionError(
                    f"{name.replace('_', '-')} is for ratings, {settings.data} is a table",
                    remedy="leave it out, or name the columns of ratings with --user and --item",
                    code="FK-DATA-OPTION",
                )
        super().__init__(settings)

    @property
    def num_clients(self) -> int:
        """Number of parties."""
        return self.settings.clients or _PARTIES

    def dealt_to(self, strategy: Method) -> Instances:
        """Return the split of a run, as the encoding of its strategy has it."""
        assert isinstance(strategy, SecureGram)
        dealt = super().dealt_to(strategy)
        dealt.features(strategy.encoding)  # refuses what are no counts
        return replace(dealt, encoding=strategy.encoding)

    def variant(self, strategy: Method) -> tuple[Hashable, ...]:
        """Return what the clients depend on: what is summed and how, and the split."""
        assert isinstance(strategy, SecureGram)
        seed = strategy.seed if self.settings.resplit else 0
        return strategy.encoding, seed

    def start(self) -> dict[str, Any]:
        """Return the number of rounds."""
        return {"num_rounds": self.settings.rounds or 1}

    def facts(self) -> dict[str, Any]:
        """Return who got which columns, and how many rows there are."""
        first = self.split(self.settings.seed)
        return {**super().facts(), "columns": first.names(first.parts)}

    def deal(self, found: DealtTable, table: Table, seed: int) -> Instances:
        """Deal the columns to the parties."""
        columns, parties = found.width, self.num_clients
        files = self.settings.files
        parts = None if files is None else [p for p in files.parts(found.source_names) if len(p)]
        if not 2 <= parties <= columns:
            raise OptionError(
                f"{how_many(columns, 'column')} cannot be dealt to {parties} clients",
                remedy=f"use 2 to {columns} clients",
                code="FK-COLUMNS-FEW",
            )
        raw = None if table.kinds else table.x[:, found.scaling["sources"]]
        return Instances(**vars(found), raw=raw, parts=tuple(parts or found.share(parties)))


def prepare_gram(settings: GramSettings) -> RatingData | InstanceData:
    """Load ratings or a table."""
    return RatingData(settings.ratings()) if settings.rates else InstanceData(settings)


G = TypeVar("G", bound=SecureGram)
COLUMNS_READ = ("user", "item", "rating")  # of a file of users to recommend to
_COLUMNS = {
    "accuracy": common.accuracy(4),
    "rmse": common.rmse(4),
    "error": common.metric(
        "error of K",
        "max_abs_error",
        reading="Error of K: largest difference of an entry of the Gram matrix from that of pooled "
        "data; counts are exact, features are rounded.",
        pooled=True,
    ),
    "difference": common.to_pooled(
        "To pooled: largest difference of an output of the machine that the coordinator trains on "
        "the kernel from that of the same machine on pooled, rounded features."
    ),
    "items": common.metric("items", "items", 0),
    **common.COSTS,
}


class MatrixFamily(Family[G, S, P]):
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
        strategy = self.strategy(config)
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

    def outcome(self, strategy: G) -> dict[str, Any]:
        """Return how many nodes were summed."""
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


@dataclass(frozen=True)
class MachineOptions:
    """What a coordinator does with the matrix of a table.

    Attributes
    ----------
    learner : {"svc", "ridge"}
        Of a table: machine trained on the kernel.
    cost : float or None
        C of svc or lambda of ridge (default: cross-validation at the coordinator).
    class_weight : {"balanced"} or None
        Of a table: rows of rare classes weigh more, as scikit-learn's balanced.
    level : float
        Of a table: of intervals and sets of classes.
    """

    learner: Learner = "svc"
    cost: float | None = None
    class_weight: Literal["balanced"] | None = None
    level: float = 0.9


class GramFamily(MatrixFamily[SecureGram, GramSettings, RatingData | InstanceData]):
    """Secure Gram."""

    strategies = (SecureGram,)
    settings, makes = GramSettings, staticmethod(prepare_gram)
    run_options = ("learner", "cost", "class_weight", "level")
    draws = "runs"
    afterwards = "training on the kernel"
    checked = ("centralised_difference", "max_abs_error")
    columns = _COLUMNS
    usual = "clients kernel min_support learner"
    shown = (
        *common.JUDGED,
        common.Shown("gamma", "gamma", common.short),
        common.Shown("cost", "C, or lambda", common.short),
        common.DIFFERENCE,
        common.Shown("max_abs_error", "largest error of K", common.scientific),
        common.Shown("error_bound", "  bound of rounding", common.scientific, zero=False),
    )
    own_options = of_fields(MachineOptions)
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
        strategy = self.strategy(config)
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

    def measure(
        self, strategy: SecureGram, prepared: RatingData | InstanceData, config: Config
    ) -> dict[str, Any]:
        """Return the error of K, and how good a machine on the kernel of a table is."""
        check = self.checks_pooled(prepared, config)
        if isinstance(prepared, RatingData):
            return {"max_abs_error": ratings_error(strategy, prepared)} if check else {}
        learner = Coordinator(strategy, prepared.split(strategy.seed or 0), config)
        return learner.measure(prepared.pooled(strategy.seed or 0), check=check)

    def whole_model(
        self, strategy: SecureGram, prepared: RatingData | InstanceData, kept: Kept
    ) -> Parts | None:
        """Return what predicts rows in one place; nothing does where all are of one class."""
        assert isinstance(prepared, InstanceData)
        part = prepared.split(strategy.seed or 0)
        return Coordinator(strategy, part, kept.config).whole_model(kept.metrics)

    def why_unpredictable(self, config: Config) -> tuple[str, str] | None:
        """Return why there are no labels to predict, or no sums of new rows with others."""
        if GramSettings.from_values(config["data"]).rates:
            return "ratings have no labels to predict", "use fedkern run fed-cfk to recommend"
        return None

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return the numbers of nodes, users and items, or of rows."""
        if "users" in facts:
            return f"{facts['users']} users on {facts['clients']} nodes, {facts['items']} items"
        return f"{facts['clients']} parties, {rows_of_table(facts)}"

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
    *("label", "target", "id_column", "site_column", "use", "ignore", "common_columns"),
    *("missing", "scaling", "categories", "ranks", "task", "positive", "train_rows", "test_size"),
    *("learner", "cost", "class_weight", "level"),
    *DIALECT,
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
