"""Secure Gram: exact kernels of ratings or of tables split by columns."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.gram.matrix import count_values, quantise
from fedkern_flwr.gram.messages import disjoint_cohorts
from fedkern_flwr.interactions import is_interactions
from fedkern_flwr.judging.figures import in_units
from fedkern_flwr.judging.judges import FIND_RARE
from fedkern_flwr.labels import balanced_weights, class_counts, decide, encode_classes
from fedkern_flwr.nodes import logger
from fedkern_flwr.options import check_choice, within
from fedkern_flwr.progress import part as time_of
from fedkern_flwr.progress import progress
from fedkern_flwr.reporting import whether_converged
from fedkern_flwr.secure_sum import check_cohort
from fedkern_flwr.seeding import derive_seed
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
from .dealt_data import DealtData, DealtTable, LabelledSettings
from .new_rows import Parts
from .pooled import PooledSplit
from .rating_data import RatingColumns, RatingData, RatingSettings, rows_of

Floats = NDArray[np.float64]
Learner = Literal["svc", "ridge"]
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


# -- the machine that the coordinator trains on the kernel


_FOLDS, _TUNING_ROWS = 5, 3000
_TELLING = 3  # a machine that is worse in each of so many folds is tried in no further one
_WIDTHS = tuple(2.0**k for k in range(-4, 5))  # times 1 / mean squared distance to the centre
_COSTS = {"svc": (0.1, 1.0, 10.0, 100.0), "ridge": (1e-4, 1e-3, 1e-2, 1e-1, 1.0)}
#: Width and cost of the first two: a wider kernel with a larger C is about as smooth. Of those that
#: are as good as each other the wider one stays.
_BEGIN = {"svc": ((0.25, 10.0), (1.0, 1.0)), "ridge": ((0.25, 1e-3), (1.0, 1e-2))}
_STEPS = ((1, 0), (-1, 0), (0, 1), (0, -1))  # to a narrower or wider kernel, a larger or smaller C
_TUBE = 0.01  # errors of SVR that cost nothing, in units of labels scaled to [-1, 1]
_TOLERANCE, STEPS, STEPS_A_ROW = 1e-5, 10**6, 100  # of LIBSVM; else it may never end
_OF_TRIALS = 1e-3  # tolerance, LIBSVM's own: errors of a fold are equal to four digits
_OWNER = "the coordinator"


@dataclass(frozen=True)
class Machine:
    """Support vector machine or ridge regression on a kernel.

    Attributes
    ----------
    kernel : DotKernel
    rows : int
        Features in the Gram matrix.
    learner : {"svc", "ridge"}
    cost : float
        C, or lambda.
    classes : tuple of float
        Empty for a regression.
    balanced : bool (default: False)
        Whether classes have equal weight.
    tolerance : float (default: 1e-5)
        Tolerance of LIBSVM.
    """

    kernel: DotKernel
    rows: int
    learner: str
    cost: float
    classes: tuple[float, ...]
    balanced: bool = False
    tolerance: float = _TOLERANCE

    def outputs(
        self,
        train: Floats,
        y: Floats,
        test: Floats,
        weights: Floats | None = None,
        stopped: Callable[[int], None] = lambda steps: None,
    ) -> Floats:
        """Fit, and return outputs of other instances for :func:`fedkern_flwr.labels.decide`.

        Parameters
        ----------
        train : ndarray, shape (n, n)
            Kernel of the training instances.
        y : ndarray, shape (n,)
            Their labels.
        test : ndarray, shape (m, n)
            Kernel between other and training instances.
        weights : ndarray, shape (n,), optional
            Weights of the training instances.
        stopped : callable
            Called with the number of steps if they were too few.

        Returns
        -------
        ndarray, shape (m, outputs)
        """
        if self.learner == "ridge":
            return np.asarray(test @ self.fit(train, y, weights)[0])
        fitted = self._vectors(train, y, weights)
        if fitted.fit_status_:
            stopped(fitted.max_iter)
        found = np.asarray(fitted.decision_function(test) if self.classes else fitted.predict(test))
        return found[:, None] if found.ndim == 1 else found

    def fit(self, train: Floats, y: Floats, weights: Floats | None = None) -> tuple[Floats, Floats]:
        """Fit, and return weights of the instances and biases.

        With svc, several classes have an output per pair, see :func:`fedkern_flwr.fitted.votes`.

        Returns
        -------
        (ndarray, ndarray), shapes (n, outputs) and (outputs,)
        """
        if self.learner == "ridge":
            targets = encode_classes(y, self.classes, _OWNER) if self.classes else y[:, None]
            shares = self.shares(y, weights)
            ridge = train + self.cost * shares.sum() * np.diag(1.0 / shares)
            made = np.asarray(np.linalg.solve(ridge, targets))
            return made, np.zeros(made.shape[1])
        fitted, count = self._vectors(train, y, weights), max(2, len(self.classes))
        place = np.searchsorted(self.classes, y[fitted.support_]) if self.classes else None
        made = np.zeros((len(y), len(fitted.intercept_)))
        for k, (i, j) in enumerate(zip(*np.triu_indices(count, 1), strict=True)):
            if count == 2 or place is None:
                made[fitted.support_, k] = fitted.dual_coef_[0]
                continue
            for mine, other in ((i, j - 1), (j, i)):  # LIBSVM's order: a row for each other class
                own = place == mine
                made[fitted.support_[own], k] = fitted.dual_coef_[other, own]
        return made, np.asarray(fitted.intercept_)

    def shares(self, y: Floats, weights: Floats | None = None) -> Floats:
        """Return the weights of rows with these labels, shape (n,); 1 on average."""
        own = np.ones(len(y)) if weights is None else weights
        if not self.balanced:
            return own
        targets = encode_classes(y, self.classes, _OWNER)
        return own * balanced_weights(targets, class_counts(targets))

    def _vectors(self, train: Floats, y: Floats, weights: Floats | None = None) -> Any:
        """Fit the support vector machine of scikit-learn."""
        from sklearn import svm

        own = {"kernel": "precomputed", "C": self.cost, "tol": self.tolerance}
        own["max_iter"] = max(STEPS, STEPS_A_ROW * len(y))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the evaluation reports it
            if self.classes:
                own["class_weight"] = "balanced" if self.balanced else None
                fitted = svm.SVC(decision_function_shape="ovr", **own).fit(train, y, weights)
            else:
                fitted = svm.SVR(epsilon=_TUBE, **own).fit(train, y, weights)
        return fitted


def choose_machine(
    gram: Floats,
    rows: int,
    y: Floats,
    kernel: DotKernel,
    classes: tuple[float, ...],
    *,
    learner: str,
    gamma: float | None,
    cost: float | None,
    seed: int,
    balanced: bool = False,
    weights: Floats | None = None,
) -> Machine:
    """Choose width and cost by five-fold cross-validation on the Gram matrix.

    The search starts at the better of two models. It doubles or halves the width and changes C
    tenfold while the error falls. Distant values are not tried, because LIBSVM is slow at large C.

    Parameters
    ----------
    gram : ndarray, shape (n, n)
        Gram matrix of the training instances.
    rows : int
        Number of features in it.
    y : ndarray, shape (n,)
        Labels.
    kernel : DotKernel
        Kernel without its width.
    classes : tuple of float
        Empty for a regression.
    learner : {"svc", "ridge"}
        Model.
    gamma : float or None
        Width of rbf.
    cost : float or None
        C, or lambda of ridge.
    seed : int
        Seed of the folds.
    balanced : bool (default: False)
        Whether classes have equal weight.
    weights : ndarray, shape (n,), optional
        Weights of the instances.
    """
    check_choice("learner", learner, get_args(Learner))
    if cost is not None:
        within("cost", cost, "(0, inf)")
    kernels, wide = [kernel], kernel.name == "rbf" and gamma is None
    if wide:
        spread = float(np.trace(gram) / len(gram) - gram.mean()) or 1.0
        kernels = [replace(kernel, gamma=width / spread) for width in _WIDTHS]
    costs = _COSTS[learner] if cost is None else (cost,)
    machines = {
        (i, j): Machine(one, rows, learner, c, classes, balanced)
        for (i, one), (j, c) in product(enumerate(kernels), enumerate(costs))
    }
    starts = [
        (_WIDTHS.index(width) if wide else 0, costs.index(c) if cost is None else 0)
        for width, c in _BEGIN[learner]
    ]
    best, error, of_folds, tried = starts[0], np.inf, list[float](), set[tuple[int, int]]()
    if len(machines) == 1:
        return machines[best]
    order = np.random.default_rng(derive_seed(seed, "folds")).permutation(len(y))[:_TUNING_ROWS]
    part, own = gram[np.ix_(order, order)], None if weights is None else weights[order]

    @lru_cache(maxsize=2)  # those of the best and of its neighbour, each of all rows
    def matrix(one: DotKernel) -> Floats:
        return one.matrix(part, rows)

    def improves(place: tuple[int, int]) -> bool:
        nonlocal best, error, of_folds
        if place not in machines or place in tried:
            return False
        tried.add(place)
        progress(f"choosing the machine on {len(order):,} rows")
        trial = replace(machines[place], tolerance=_OF_TRIALS)
        found = _validate(trial, matrix(trial.kernel), y[order], own, of_folds)
        if found[0] >= error:
            return False
        best, (error, of_folds) = place, found
        return True

    for place in starts:
        improves(place)
    moved = True
    while moved:
        moved = False
        for right, up in _STEPS:
            while improves((best[0] + right, best[1] + up)):
                moved = True
    return machines[best]


def _validate(
    machine: Machine,
    matrix: Floats,
    y: Floats,
    weights: Floats | None,
    least: Sequence[float],
) -> tuple[float, list[float]]:
    """Return the mean error in cross-validation, and that of each fold.

    The error is infinite if the first folds are all worse than ``least``.
    """
    shares, errors, sizes = machine.shares(y, weights), list[float](), list[float]()
    for fold in np.array_split(np.arange(len(y)), _FOLDS):
        rest = np.delete(np.arange(len(y)), fold)
        if machine.classes and len(np.unique(y[rest])) < 2:
            continue
        own, other = matrix[np.ix_(rest, rest)], matrix[np.ix_(fold, rest)]
        found = machine.outputs(own, y[rest], other, None if weights is None else weights[rest])
        wrong, share = _errors(found, y[fold], machine.classes), shares[fold]
        errors.append(float(np.average(wrong, weights=share)))
        sizes.append(float(share.sum()))
        worse = [now > before for now, before in zip(errors, least, strict=False)]
        if len(worse) == _TELLING and all(worse):
            return np.inf, errors
    return float(np.average(errors, weights=sizes)) if errors else np.inf, errors


def _errors(outputs: Floats, y: Floats, classes: tuple[float, ...]) -> NDArray[Any]:
    if not classes:
        return np.asarray((outputs[:, 0] - y) ** 2)
    return np.asarray(np.asarray(classes)[decide(outputs)] != y)


@dataclass(frozen=True)
class Coordinator:
    """Training on the matrix of a run with labels.

    Attributes
    ----------
    strategy : SecureGram
    part : Instances
        Table.
    config : dict
        Configuration of the run.
    """

    strategy: SecureGram
    part: Instances
    config: Config

    @cached_property
    def train(self) -> NDArray[np.bool_]:
        """Training rows of the matrix."""
        return self.part.train[self.strategy.items_]

    @cached_property
    def y(self) -> Floats:
        """Labels of the rows of the matrix."""
        return self.part.y[self.strategy.items_]

    @cached_property
    def weights(self) -> Floats | None:
        """Weights of the training rows."""
        own = self.part.weights
        return None if own is None else own[self.strategy.items_][self.train]

    @property
    def one_class(self) -> bool:
        """Whether all training rows are of one class."""
        return bool(self.part.classes) and len(np.unique(self.y[self.train])) < 2

    def features(self, rows: Any = slice(None)) -> Floats:
        """Return summed features of some rows of the matrix."""
        used = np.concatenate([self.part.parts[p] for p in self.strategy.survivors_])
        whole = self.part.features(self.strategy.encoding)
        return np.asarray(whole[np.ix_(self.strategy.items_[rows], used)])

    def machine(self) -> Machine:
        """Choose the model of the run."""
        return choose_machine(
            self.strategy.linear_[np.ix_(self.train, self.train)],
            self.strategy.rows_,
            self.y[self.train],
            self.strategy.dot_kernel_,
            self.part.classes,
            learner=self.config.get("learner", "svc"),
            gamma=self.strategy.gamma,
            cost=self.config.get("cost"),
            seed=self.strategy.seed or 0,
            balanced=bool(self.config.get("class_weight")),
            weights=self.weights,
        )

    def outputs(
        self, machine: Machine, gram: Floats, stopped: Callable[[int], None] = lambda steps: None
    ) -> Floats:
        """Return outputs of held-out rows, see :meth:`Machine.outputs`."""
        train, kernel = self.train, machine.kernel.matrix(gram, machine.rows)
        own, other = kernel[np.ix_(train, train)], kernel[np.ix_(~train, train)]
        return machine.outputs(own, self.y[train], other, self.weights, stopped)

    def measure(self, pooled: PooledSplit, *, check: bool) -> dict[str, Any]:
        """Train a model; return its metrics, seconds and errors.

        With ``check``, matrix and model are compared with those of pooled rows.
        """
        strategy, x = self.strategy, self.features()
        found: dict[str, Any] = {"error_bound": strategy.error_bound_}
        if check:
            found["max_abs_error"] = _largest_error(strategy.linear_, x)
        if self.train.all() or self.one_class:
            return found
        started, stopped = time.perf_counter(), list[int]()
        with time_of("train"):
            machine = self.machine()
            outputs = self.outputs(machine, strategy.linear_, stopped.append)
        seconds = time.perf_counter() - started
        if machine.learner == "svc":
            text = f"the support vector machine needs more than {max(stopped, default=0):,} steps"
            remedy = "scale the columns, ignore columns of ids, or give a smaller --cost"
            found |= whether_converged(not stopped, text, remedy)
        if check:
            steps = 2.0**strategy.fraction_bits
            rounded = np.rint(x * steps) / steps
            twin = self.outputs(machine, rounded @ rounded.T)
            found["centralised_difference"] = float(np.abs(outputs - twin).max())
        judged = pooled.judged(outputs, level=self.config.get("level", 0.9))
        judged = replace(judged, weighted=bool(self.config.get("class_weight")))
        metrics = judged.metrics()
        if judged.never_found and not judged.weighted:
            text = "Secure Gram: %d of %d classes are found in no held-out row; %s"
            logger.warning(text, judged.never_found, judged.yard.classes, FIND_RARE)
        if machine.kernel.name in ("rbf", "poly"):
            found["gamma"] = machine.kernel.gamma
        own = {"judged": judged, "cost": machine.cost, "seconds": seconds}
        return {**found, **metrics, **in_units(metrics, pooled.label_unit), **own}

    def whole_model(self, metrics: Mapping[str, Any]) -> Parts | None:
        """Return the model with its support rows, or None for a single class."""
        strategy, train, classes = self.strategy, self.train, self.part.classes
        if self.one_class:
            return None
        if "cost" in metrics:
            kernel = strategy.dot_kernel_
            kernel = replace(kernel, gamma=metrics.get("gamma", kernel.gamma))
            learner, cost = self.config.get("learner", "svc"), metrics["cost"]
            weighed = bool(self.config.get("class_weight"))
            machine = Machine(kernel, strategy.rows_, learner, cost, classes, weighed)
        else:
            machine = self.machine()
        gram = machine.kernel.matrix(strategy.linear_[np.ix_(train, train)], machine.rows)
        weights, bias = machine.fit(gram, self.y[train], self.weights)
        bits, bound, counts = strategy.fraction_bits, strategy.bound, strategy.encoding == "counts"
        supports = (weights != 0.0).any(axis=1)
        x = self.features(np.flatnonzero(train)[supports])
        whole = count_values(x, bound) if counts else quantise(x, bits, bound)
        arrays = {"instances": whole * 2.0**-bits, "weights": weights[supports], "bias": bias}
        used = np.concatenate([self.part.parts[p] for p in strategy.survivors_])
        told = {
            "encoded": not counts,
            "encoding": strategy.encoding,
            "bound": bound,
            "fraction_bits": bits,
            "used": used.tolist(),
            "kernel": asdict(machine.kernel),
            "rows": machine.rows,
            "votes": len(classes) if machine.learner == "svc" and len(classes) > 2 else 0,
        }
        return Parts("instances", arrays, told)


def _largest_error(gram: Floats, x: Floats) -> float:
    """Return the largest error of a Gram matrix."""
    worst, step = 0.0, 512
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        worst = max(worst, float(np.abs(gram[rows] - x[rows] @ x.T).max()))
    return worst
