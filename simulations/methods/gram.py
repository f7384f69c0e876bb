"""Secure Gram: exact kernels of ratings or of tables split by columns."""

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
from fedkern_flwr.options import within
from fedkern_flwr.secure_sum import check_cohort
from fedkern_flwr.tables.table import Table, how_many
from fedkern_flwr.vertical.parties import MissingRows

from ...clients import GramClient
from ...strategies import FedCFK, Method, SecureGram
from ..run.datasets import BUILTIN_INTERACTIONS
from ..run.format import figure
from ..run.options import of_fields
from ..run.party_files import PartyFiles
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
    """Table or ratings, and columns or users of each party.

    Attributes
    ----------
    data : str
        Ratings or table: built-in, or a file (u.data, .inter, .csv, .parquet).
    missing : {"encode", "error", "drop-row"}
        Rows of a table with missing values (encode: median and indicator).
    task : {"auto", "classification", "regression"}
        Kind of the labels of a table.
    party : tuple of str
        File of a node, once for each; FILE:features ignores its label.
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
        """Return the number of parties with columns."""
        return {"clients": sum(map(bool, files.blocks))}

    def describe(self) -> str:
        """Describe the split for a caption."""
        return self.ratings().describe() if self.rates else f"{self.clients or _PARTIES} parties"

    def ratings(self) -> RatingSettings:
        """Return the settings for ratings without held-out ones."""
        names = {f.name for f in fields(RatingSettings)} & {f.name for f in fields(self)}
        return RatingSettings(**{**{n: getattr(self, n) for n in names}, "test_size": 0.0})


@dataclass(frozen=True, kw_only=True, eq=False)
class Instances(DealtTable):
    """One split of a table.

    Attributes
    ----------
    raw : ndarray, shape (n, d), or None
        Unscaled features, if all are numbers.
    parts : tuple of ndarray
        Columns of each party.
    encoding : str
        Encoding of the sums, see :meth:`features`.
    """

    raw: Floats | None
    parts: tuple[NDArray[np.intp], ...]
    encoding: str = "fixed-point"

    def alone(self) -> list[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
        """Return all rows with the columns of each party."""
        return [(np.ones_like(self.train), part) for part in self.parts]

    def node(self, seed: int, partition: int) -> dict[str, Any]:
        """Return the columns of a node."""
        return {"x": self.features(self.encoding)[:, self.parts[partition]].T}

    def features(self, encoding: str) -> Floats:
        """Return summed features: whole numbers, or scaled features."""
        if encoding != "counts":
            return self.x
        if self.raw is None:
            raise TableError(
                "counts are whole numbers, the table has text, dates or booleans",
                code="FK-VALUES-COUNTS",
            )
        return self.raw


class InstanceData(DealtData[GramSettings, Instances]):
    """A table with columns dealt to parties.

    Parameters
    ----------
    settings : GramSettings
    """

    client = GramClient

    def __init__(self, settings: GramSettings) -> None:
        for name in ("users_per_client", "min_rating", "rating", "time"):
            if getattr(settings, name) is not None:
                raise OptionError(
                    f"{name.replace('_', '-')} is for ratings, {settings.data} is a table",
                    code="FK-DATA-OPTION",
                )
        super().__init__(settings)

    @property
    def num_clients(self) -> int:
        """Number of parties."""
        return self.settings.clients or _PARTIES

    def dealt_to(self, strategy: Method) -> Instances:
        """Return the split of a run in its encoding."""
        assert isinstance(strategy, SecureGram)
        dealt = super().dealt_to(strategy)
        dealt.features(strategy.encoding)  # refuses what are no counts
        return replace(dealt, encoding=strategy.encoding)

    def variant(self, strategy: Method) -> tuple[Hashable, ...]:
        """Return encoding and split."""
        assert isinstance(strategy, SecureGram)
        seed = strategy.seed if self.settings.resplit else 0
        return strategy.encoding, seed

    def start(self) -> dict[str, Any]:
        """Return the number of rounds."""
        return {"num_rounds": self.settings.rounds or 1}

    def facts(self) -> dict[str, Any]:
        """Return columns and rows of the parties."""
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


class MatrixFamily(Family[G, S, P]):
    """Methods that sum matrices of products."""

    data = "nyc-flights"
    always_secure = "a node's products are its ratings"

    def check(self, config: Config) -> None:
        """Refuse options that cannot work before any data is read."""
        super().check(config)
        check_rounds(config)
        if (config["data"]["rounds"] or 1) > 1 and config["options"].get("cohorts", 1) > 1:
            raise OptionError(
                "cohorts are summed at once, and rounds one by one", code="FK-OPTION-BOTH"
            )

    def check_data(self, config: Config, prepared: P) -> None:
        """Refuse sums with too few nodes."""
        super().check_data(config, prepared)
        strategy = self.strategy(config)
        if prepared.num_clients < 2:
            raise OptionError("a single client has nobody to sum with", code="FK-PARTIES-FEW")
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
        """Return figures of the model and the size of the matrix."""
        metrics = result["metrics"]
        return [
            *super().figures(result),
            ["items in the matrix", f"{metrics['items']:g} of {metrics['catalogue']:g}"],
            ["rows summed", figure(metrics["rows"], 0)],
            ["nodes summed", figure(metrics["clients"], 0)],
        ]


@dataclass(frozen=True)
class MachineOptions:
    """Training on the matrix of a table.

    Attributes
    ----------
    learner : {"svc", "ridge"}
        Tables: model that is trained on the kernel.
    cost : float or None
        C of svc, lambda of ridge (default: cross-validation).
    class_weight : {"balanced"} or None
        Tables: weigh rows of rare classes more, as scikit-learn does.
    level : float
        Tables: target coverage of predicted intervals and sets.
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
    checked = ("centralised_difference", "max_abs_error")
    usual = "clients kernel min_support learner"
    own_options = of_fields(MachineOptions)

    def check(self, config: Config) -> None:
        """Refuse options that cannot work before any data is read."""
        super().check(config)
        if config["cost"] is not None:
            within("cost", config["cost"], "(0, inf)")
        within("level", config["level"], "(0, 1)")

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
                raise OptionError("class_weight is for classes", code="FK-WEIGHTS-NUMBERS")
            check_features(strategy, prepared.split(config["seed"]).features(strategy.encoding))
        elif strategy.encoding != "counts":
            raise OptionError("ratings are counts", code="FK-DATA-OPTION")

    def measure(
        self, strategy: SecureGram, prepared: RatingData | InstanceData, config: Config
    ) -> dict[str, Any]:
        """Return the error of K, and metrics of a model on a table."""
        check = self.checks_pooled(prepared, config)
        if isinstance(prepared, RatingData):
            return {"max_abs_error": ratings_error(strategy, prepared)} if check else {}
        learner = Coordinator(strategy, prepared.split(strategy.seed or 0), config)
        return learner.measure(prepared.pooled(strategy.seed or 0), check=check)

    def whole_model(
        self, strategy: SecureGram, prepared: RatingData | InstanceData, kept: Kept
    ) -> Parts | None:
        """Return the model, or None for a single class."""
        assert isinstance(prepared, InstanceData)
        part = prepared.split(strategy.seed or 0)
        return Coordinator(strategy, part, kept.config).whole_model(kept.metrics)

    def why_unpredictable(self, config: Config) -> tuple[str, str] | None:
        """Return why there are no labels to predict."""
        if GramSettings.from_values(config["data"]).rates:
            return "ratings have no labels to predict", "use fedkern run fed-cfk to recommend"
        return None

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return numbers of nodes, users and items, or of rows."""
        if "users" in facts:
            return f"{facts['users']} users on {facts['clients']} nodes, {facts['items']} items"
        return f"{facts['clients']} parties, {rows_of_table(facts)}"

    def seen(self, result: Mapping[str, Any]) -> list[list[str]]:
        """Return MB per node, and what the server saw."""
        plain = 8e-6 * result["metrics"]["catalogue"] ** 2
        each = result["bytes_up"] / 1e6 / max(1, result["config"]["clients"])
        sent = f"{each:.2f} (plain float64 matrix: {plain:.2f})"
        return [["MB per node", sent], *super().seen(result)]


def refuse_options_of_tables(config: Config) -> None:
    """Refuse options of tables if the data are ratings."""
    chosen = {**config["data"], **config}
    of_ratings = {f.name for f in fields(RatingColumns)} - {"test_size"}
    of_tables = {f.name for f in fields(GramSettings)} - of_ratings | {*GramFamily.run_options}
    for option in GramFamily().parameters():
        if option.name in of_tables and chosen[option.name] not in (option.default, (), []):
            flag = option.flag.removeprefix("--") or option.name.replace("_", "-")
            raise OptionError(
                f"{flag} is for tables, {Path(config['data']['data']).name} holds ratings",
                code="FK-DATA-OPTION",
            )


def check_features(strategy: SecureGram, x: NDArray[np.float64]) -> None:
    """Refuse features that the encoding cannot hold."""
    if strategy.encoding == "counts":
        count_values(x, strategy.bound)
    elif not np.isfinite(x).all():
        raise TableError("a row lacks a value", code="FK-VALUES-MISSING")
    elif np.abs(x).max() > strategy.bound:
        raise TableError(
            f"scaled features are beyond the bound {strategy.bound:g}", code="FK-VALUES-BOUND"
        )


def ratings_error(strategy: SecureGram, prepared: RatingData) -> int:
    """Return the largest error of an entry of K."""
    pooled = prepared.split(strategy.seed or 0)
    users = rows_of(prepared.parts, strategy.survivors_)
    part = (pooled.train + pooled.test)[users][:, strategy.items_]
    exact = (part.T @ part).toarray()
    return int(np.abs(strategy.gram_ - exact).max())
