"""Tables that are split, scaled and dealt to nodes."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
import weakref
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, get_args

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedkern_flwr.encoding import Encoder, Explanation
from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.hybrid.parties import MissingBlocks
from fedkern_flwr.judging.figures import Calibration
from fedkern_flwr.labels import name_classes
from fedkern_flwr.options import at_least, check_choice
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.tables.table import Table, choices, how_many

from ...strategies import Method
from ..run.data import Prepared, TableSettings, hold_out
from ..run.party_files import PartyFiles
from ..run.plots import plot_judged, plot_predicted
from .new_rows import read_predictions
from .pooled import PooledSplit

Floats = NDArray[np.float64]
# -- tables with labels, whose rows are held out

Task = Literal["auto", "classification", "regression"]

_MOST_CLASSES = 20  # whole numbers with more values than that are taken for a regression


@dataclass(frozen=True)
class LabelledSettings(TableSettings):
    """Labels of a table.

    Attributes
    ----------
    missing : {"encode", "error", "drop-row", "neutral"}
        Rows with missing values (encode: median and indicator).
    task : {"auto", "classification", "regression"}
        Kind of the labels (auto: classes if few whole numbers).
    positive : str or None
        Positive class, against all others, by name or number.
    train_rows : int or None
        Train on so many rows, chosen at random.
    resplit : bool
        Split again for every run.
    """

    missing: Literal["encode", MissingBlocks] = "error"
    task: Task = "auto"
    positive: str | None = None
    train_rows: int | None = None
    resplit: bool = False

    def training(self, table: Table, seed: int) -> NDArray[np.bool_]:
        """Return which rows are for training."""
        return hold_out_evenly(self, table, seed)


def check_sites(table: Table, holders: int, who: str) -> int:
    """Return the number of sites; refuse more sites than parties."""
    sites = 0 if table.site is None else len(np.unique(table.site))
    if sites > holders:
        raise OptionError(
            f"the rows come from {sites} sites, {holders} {who} cannot hold them all",
            code="FK-SPLIT-SITES",
        )
    return sites


def owners(table: Table, train: NDArray[np.bool_], parties: int) -> NDArray[np.intp]:
    """Return the party with the file of each row; refuse one without training rows."""
    assert table.site is not None
    found = table.site.astype(np.intp)
    if (np.bincount(found[train], minlength=parties) == 0).any():
        raise TableError(
            "a file has no rows to learn from that all other files have", code="FK-ROWS-FEW"
        )
    return found


def part_rows(
    settings: LabelledSettings, table: Table, seed: int
) -> tuple[Table, NDArray[np.bool_]]:
    """Return training and held-out rows as one table, and which are for training."""
    if table.y is None:
        raise TableError("the data has no labels", code="FK-LABELS-MISSING")
    if table.x_test is None or table.y_test is None:
        return table, settings.training(table, seed)
    return pool_rows(table), np.arange(table.rows + len(table.y_test)) < table.rows


def labelled_rows(
    settings: LabelledSettings, table: Table, train: NDArray[np.bool_], seed: int
) -> NDArray[np.intp]:
    """Return rows with a label, after the choice of training rows."""
    assert table.y is not None
    keep = np.isfinite(table.y)
    if settings.train_rows is not None:
        at_least("train-rows", settings.train_rows, 1)
        rng = np.random.default_rng(derive_seed(seed, "training rows"))
        mine = np.flatnonzero(train & keep)
        keep &= ~train
        keep[rng.permutation(mine)[: settings.train_rows]] = True
    return np.flatnonzero(keep)


def pool_rows(table: Table) -> Table:
    """Append the held-out rows to a table."""
    assert table.y is not None
    assert table.x_test is not None
    assert table.y_test is not None
    site = None
    if table.site is not None:  # held-out rows of a data set have no sites: dealt in turn
        site = np.concatenate([table.site, np.resize(table.site, len(table.y_test))])
    return replace(
        table,
        x=np.concatenate([table.x, table.x_test]),
        y=np.concatenate([table.y, table.y_test]),
        ids=None,
        site=site,
        x_test=None,
        y_test=None,
    )


def scale(
    settings: LabelledSettings, table: Table, train: NDArray[np.bool_]
) -> tuple[Floats, Floats, tuple[float, ...], dict[str, Any]]:
    """Encode features, and scale numeric labels of training rows to [-1, 1].

    Returns
    -------
    (ndarray, ndarray, tuple, dict)
        Features (NaN where missing), labels, classes (empty for a regression), and the scaling
        as plain values: encoder, columns, their sources, scale of the labels, class names.
    """
    assert table.y is not None
    classes, _ = read_task(settings, table)
    names = class_names(settings, table, classes)
    y = np.where(np.isfinite(table.y), table.y, np.nan)
    if not np.isfinite(y[train]).any():
        raise TableError(
            "no training row has a label", remedy="hold out fewer rows", code="FK-LABELS-MISSING"
        )
    encoder = settings.encoder(table.take(train))
    x = encoder.transform(table)
    middle, half = 0.0, 1.0
    if settings.positive is not None:
        y = np.where(np.isnan(y), np.nan, y == positive_class(settings, table))
    elif table.classes and classes:  # without those that no row has
        y = np.where(np.isnan(y), np.nan, np.searchsorted(classes, y))
        classes = tuple(map(float, range(len(classes))))
    elif not classes:
        least, most = float(np.nanmin(y[train])), float(np.nanmax(y[train]))
        middle, half = (least + most) / 2.0, (most - least) / 2.0 or 1.0
        y = (y - middle) / half
    scaling = {
        "columns": list(encoder.outputs),
        "sources": encoder.sources.tolist(),
        "encoder": encoder.to_dict(),
        "y_middle": middle,
        "y_half_range": half,
        "classes": list(classes),
        "class_names": names,
    }
    return x, y, classes, scaling


def constant_columns(x: Floats, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return a note about constant columns."""
    constant = np.ptp(np.nan_to_num(x), axis=0) == 0.0
    names = [c for c, flat in zip(columns, constant, strict=True) if flat]
    return (f"constant in the training rows: {', '.join(names[:10])}",) if names else ()


def hold_out_evenly(settings: LabelledSettings, table: Table, seed: int) -> NDArray[np.bool_]:
    """Return training rows; the same share of every class is held out."""
    hold_out(table, settings.test_size, seed)  # refuses shares that cannot be
    classes, _ = read_task(settings, table)
    assert table.y is not None
    groups = np.zeros(table.rows)
    if settings.positive is not None:
        groups = (table.y == positive_class(settings, table)).astype(np.float64)
    elif classes:
        groups = table.y
    if settings.party and table.site is not None:  # and of every party
        known = np.isfinite(groups)
        numbers = np.unique(groups[known], return_inverse=True)[1]
        groups = groups.copy()
        groups[known] = numbers * table.rows + table.site[known].astype(np.float64)
    rng = np.random.default_rng(derive_seed(seed, "held-out rows"))
    train = np.ones(table.rows, bool)
    for group in np.unique(groups[np.isfinite(groups)]):
        rows = rng.permutation(np.flatnonzero(groups == group))
        train[rows[: round(settings.test_size * len(rows))]] = False
    return train


def read_task(
    settings: LabelledSettings, table: Table
) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Return the classes (none for a regression) and notes."""
    check_choice("task", settings.task, get_args(Task))
    assert table.y is not None
    y = table.y if table.y_test is None else np.concatenate([table.y, table.y_test])
    values = np.unique(y[np.isfinite(y)])
    if not len(values):
        raise TableError("no row has a label", code="FK-LABELS-MISSING")
    if settings.task == "regression" and table.classes:
        raise OptionError(
            f"the label has {len(table.classes)} classes of text, which are no numbers",
            code="FK-TASK-TEXT",
        )
    if settings.positive is not None:
        if settings.task == "regression":
            raise OptionError(
                "positive is a class, and a regression has none",
                remedy="leave out --positive or --task",
                code="FK-OPTION-CONFLICT",
            )
        if positive_class(settings, table) not in values:
            named, labels = table.classes, values.tolist()
            names = [named[int(one)] for one in labels] if named else name_classes(labels)[0]
            raise OptionError(
                f"the label has no class {settings.positive!r}",
                remedy=choices(str(settings.positive), names),
                code="FK-CLASSES-UNKNOWN",
            )
        return (0.0, 1.0), ()
    auto, few = settings.task == "auto" and not table.classes, len(values) <= _MOST_CLASSES
    whole = few and bool((values == np.rint(values)).all())
    if settings.task == "regression" or (auto and not whole):
        other = "; --task classification takes them for classes"
        note = f"the label's {len(values)} values are taken for numbers" + other
        return (), (note,) * (auto and few)
    if len(values) < 2:
        raise TableError("the label is constant", code="FK-CLASSES-ONE")
    note = f"the label's {len(values)} values are taken for classes"
    note += "; --task regression takes them for numbers"
    return tuple(values.tolist()), (note,) * auto


def positive_class(settings: LabelledSettings, table: Table) -> float:
    """Return the label of the positive class, or NaN."""
    name = str(settings.positive).strip()
    if table.classes:
        return float(table.classes.index(name)) if name in table.classes else np.nan
    try:
        return float(name)
    except ValueError:
        return np.nan


def class_names(settings: LabelledSettings, table: Table, classes: tuple[float, ...]) -> list[str]:
    """Return the names of the classes."""
    if settings.positive is not None:
        positive = str(settings.positive)
        others = [name for name in table.classes if name != positive.strip()]
        return [others[0] if len(others) == 1 else f"not {positive}", positive]
    if table.classes:
        return [table.classes[int(label)] for label in classes]
    return list(name_classes(classes)[0])


_IDS = ("ids", "ids_test")


def _nothing(partition: int) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class NodeClients:
    """A ``client_fn``, which workers of Ray copy.

    Attributes
    ----------
    kind : callable
        Makes the client.
    table : callable
        Returns rows and secrets of a partition.
    options : dict
        Options of the strategy for all nodes.
    state_dir : Path or None
        Private state of simulated nodes.
    simulated : callable
        Returns further arguments in a simulation.
    configured : callable
        Returns further configuration of a deployed node.
    names : ndarray of str or None
        Ids of the rows.
    """

    kind: Any
    table: Callable[[int], Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    state_dir: Path | None = None
    simulated: Callable[[int], dict[str, Any]] = _nothing
    configured: Callable[[int], dict[str, Any]] = _nothing
    names: NDArray[np.str_] | None = None
    _tables: dict[int, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    def __call__(self, context: Context) -> Any:
        """Build the client of a node."""
        partition = int(context.node_config["partition-id"])
        own = {**self.arguments(partition), **self.simulated(partition)}
        return self.kind(context, **own, state_dir=self.state_dir)

    def arguments(self, partition: int) -> dict[str, Any]:
        """Return table, secrets and options of a node."""
        if partition not in self._tables:  # a run asks for the same tables with every message
            self._tables[partition] = self.table(partition)
        return {**self._tables[partition], **self.options}

    def deployed(self, partition: int) -> dict[str, Any]:
        """Return the contents of the files of a deployed node."""
        own = {**self.arguments(partition), **self.configured(partition)}
        numbered = [key for key in _IDS if own.get(key) is not None]
        if self.names is None:
            return own
        return {**own, **{key: self.names[np.asarray(own[key], np.intp)] for key in numbered}}


def alignment_key(seed: int) -> bytes:
    """Return the alignment key of simulated parties."""
    return hashlib.sha256(b"simulated alignment %d" % seed).digest()


def frequency_seed(seed: int, party: int) -> bytes:
    """Return the secret seed of a simulated party."""
    return hashlib.sha256(b"simulated frequencies %d/%d" % (seed, party)).digest()


@dataclass(frozen=True, kw_only=True, eq=False)
class DealtTable:
    """One scaled split of a table; subclasses deal it.

    Attributes
    ----------
    x : ndarray, shape (n, d)
        Encoded features, NaN where missing.
    y : ndarray, shape (n,)
        Labels; numbers scaled so that training rows are in [-1, 1].
    train : ndarray of bool, shape (n,)
        Training rows.
    classes : tuple of float
        Empty for a regression.
    scaling : dict
        Encoder and scale.
    notes : tuple of str
        Notes for the user.
    ids : ndarray of str, shape (n,), or None
        Ids of the rows.
    weights : ndarray, shape (n,), or None
        Weights of the rows, for one party with all labels.
    """

    x: Floats
    y: Floats
    train: NDArray[np.bool_]
    classes: tuple[float, ...]
    scaling: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    ids: NDArray[np.str_] | None = None
    weights: Floats | None = None

    @property
    def label_bound(self) -> float:
        """Bound of scaled labels, held-out ones included."""
        return 1.0 if self.classes else float(np.fmax.reduce(np.abs(self.y), initial=1.0))

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(self.scaling["class_names"])

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.scaling["columns"])

    @property
    def width(self) -> int:
        """Number of columns of the table that are used."""
        return len(np.unique(self.scaling["sources"]))

    @property
    def source_names(self) -> list[str]:
        """Source column of each encoded column."""
        names = [one["name"] for one in self.scaling["encoder"]["columns"]]
        return [names[source] for source in self.scaling["sources"]]

    def share(self, count: int) -> tuple[NDArray[np.intp], ...]:
        """Deal the columns evenly, in order."""
        sources = self.scaling["sources"]
        parts = np.array_split(np.unique(sources), count)
        return tuple(np.flatnonzero(np.isin(sources, part)) for part in parts)

    def columns_of(
        self, files: PartyFiles | None, count: int, holders: str
    ) -> tuple[NDArray[np.intp], ...]:
        """Return the columns of each file, or an even share for each of so many holders."""
        if files is not None:
            return files.parts(self.source_names)
        if self.width < count:
            text = f"{how_many(self.width, 'column')} cannot be dealt to {count} {holders}"
            raise OptionError(text, code="FK-COLUMNS-FEW")
        return self.share(count)

    def names(self, parts: Iterable[NDArray[np.intp]]) -> list[list[str]]:
        """Return the column names of each part."""
        return [[self.columns[place] for place in part] for part in parts]

    def take(self, rows: NDArray[np.intp]) -> Self:
        """Return some of the rows."""
        names = ("x", "y", "train", "ids", "weights")
        parts: dict[str, Any] = {name: getattr(self, name) for name in names}
        parts = {name: part if part is None else part[rows] for name, part in parts.items()}
        return replace(self, **parts)

    def pooled(self) -> PooledSplit:
        """Return the pooled split."""
        train, test = self.train, ~self.train
        unit = float(self.scaling["y_half_range"])
        place = np.cumsum(train) - 1  # of a row among those for training
        alone = tuple((place[rows & train], columns) for rows, columns in self.alone())
        return PooledSplit(
            self.x[train], self.y[train], self.x[test], self.y[test], self.classes, unit, alone
        )

    def complete(self, columns: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which rows have all of these columns."""
        return np.asarray(np.isfinite(self.x[:, columns]).all(axis=1))

    def alone(self) -> Iterable[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
        """Return labelled rows and columns of each party, for local models."""
        return ()

    def node(self, seed: int, partition: int) -> dict[str, Any]:
        """Return the rows of a node, and its secrets from the seed."""
        raise NotImplementedError

    def predicts(self, partition: int) -> bool:
        """Return whether a node writes predictions."""
        return False

    def configured(self, partition: int) -> dict[str, Any]:
        """Return further configuration of a deployed node."""
        return {}

    def known_labels(self, rows: NDArray[np.intp]) -> Floats | None:
        """Return the labels of held-out rows, or None if some are unknown."""
        return self.y[rows] if np.isfinite(self.y[rows]).all() else None


S = TypeVar("S", bound=LabelledSettings)
D = TypeVar("D", bound=DealtTable)


class DealtData(Prepared, Generic[S, D]):
    """A table dealt once, or again for every run.

    Parameters
    ----------
    settings : LabelledSettings

    Attributes
    ----------
    client : type
        Client of the method.
    told : tuple of str
        Options of the strategy for the clients.
    drawn : dict
        Random data sets, by name.
    """

    client: ClassVar[type[Any]]
    told: ClassVar[tuple[str, ...]] = ()
    drawn: ClassVar[Mapping[str, Callable[[int], Table]]] = {}
    settings: S

    def __init__(self, settings: S) -> None:
        self.settings = settings
        self._splits: dict[int, D] = {}
        self._folder: Path | None = None
        first = self.split(settings.seed)
        self.columns = first.columns
        self.notes = first.notes + constant_columns(first.x[first.train], first.columns)

    def start(self) -> dict[str, Any]:
        """Return the number of rounds, if given."""
        rounds = getattr(self.settings, "rounds", None)
        return {} if rounds is None else {"num_rounds": rounds}

    def facts(self) -> dict[str, Any]:
        """Return numbers of clients and rows, and the classes."""
        first = self.split(self.settings.seed)
        return {
            "clients": self.num_clients,
            "rows": int(first.train.sum()),
            "held_out_rows": int((~first.train).sum()),
            "classes": list(first.classes),
            "class_names": list(first.class_names),
        }

    def scaling_json(self) -> str:
        """Return encoder and scale of the labels."""
        return json.dumps(dict(self.split(self.settings.seed).scaling))

    def explain(self) -> list[Explanation]:
        """Return how columns were encoded."""
        return Encoder.from_dict(self.split(self.settings.seed).scaling["encoder"]).explain()

    @property
    def predictions(self) -> Path:
        """Temporary folder for predictions of simulated parties."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fedkern-"))
            # A TemporaryDirectory that nobody closes would warn of it.
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder

    def client_fn(self, strategy: Method, state_dir: Path | None = None) -> NodeClients:
        """Return the client function of a run."""
        seed = strategy.seed or 0
        dealt, folder = self.dealt_to(strategy), self.predictions
        return NodeClients(
            kind=type(self).client,
            table=partial(dealt.node, seed),
            options={name: getattr(strategy, name) for name in self.told},
            state_dir=state_dir,
            simulated=partial(_predictions, dealt, folder),
            configured=dealt.configured,
            names=dealt.ids,
        )

    def dealt_to(self, strategy: Method) -> D:
        """Return the split of a run."""
        return self.split(strategy.seed or 0)

    def variant(self, strategy: Method) -> tuple[Hashable, ...]:
        """Return what the clients depend on."""
        return (*(getattr(strategy, name) for name in self.told), strategy.seed)

    def pooled(self, seed: int) -> PooledSplit:
        """Return the pooled split of a run."""
        return self.split(seed).pooled()

    def plot_held_out(self, folder: Path, summary: Mapping[str, Any]) -> dict[str, Path]:
        """Draw plots of the held-out rows of the first run; return name -> file."""
        if not (held_out := summary.get("held_out")):
            return {}
        first = self.split(self.settings.seed)
        made = plot_judged(folder, held_out, first.class_names)
        found = read_predictions(self.predictions)
        if first.classes or not found or self.settings.resplit:
            return made
        rows = sorted(found)
        half = float(first.scaling["y_half_range"])
        predicted = np.array([found[row][0] for row in rows])
        true, predicted = (v * half + first.scaling["y_middle"] for v in (first.y[rows], predicted))
        calibration, width = Calibration.read(held_out.get("fitted", ()), 1), None
        if calibration is not None and math.isfinite(calibration.widths[0]):
            width = calibration.widths[0] * half
        file = plot_predicted(true, predicted, width, folder / "predicted.png")
        return {**made, "predicted_plot": file}

    def split(self, seed: int) -> D:
        """Return the split of a run."""
        if not self.settings.resplit:
            seed = self.settings.seed
        if seed not in self._splits:
            self._splits.clear()  # one at a time: tables may be large
            self._splits[seed] = self._make(seed)
        return self._splits[seed]

    def _make(self, seed: int) -> D:
        """Load, split, scale and deal the table."""
        settings = self.settings
        table, train = self.load(seed)
        rows = self.usable(table, train, seed)
        table, train = table.take(rows), train[rows]
        x, y, classes, scaling = scale(settings, table, train)
        found = DealtTable(
            x=x,
            y=y,
            train=train,
            classes=classes,
            scaling=scaling,
            ids=table.ids,
            weights=table.weights,
            notes=(
                *table.notes,
                *Encoder.from_dict(scaling["encoder"]).left_out(table),
                *read_task(settings, table)[1],
            ),
        )
        return self.deal(found, table, seed)

    def load(self, seed: int) -> tuple[Table, NDArray[np.bool_]]:
        """Return all rows as one table, and which are for training."""
        draw = self.drawn.get(self.settings.data)
        table = self.read() if draw is None else draw(seed)
        again = draw is None and self.settings.resplit and table.y_test is not None
        return part_rows(self.settings, pool_rows(table) if again else table, seed)

    def read(self) -> Table:
        """Load the table."""
        settings = self.settings
        return settings.load("keep" if settings.missing == "neutral" else settings.missing)

    def usable(self, table: Table, train: NDArray[np.bool_], seed: int) -> NDArray[np.intp]:
        """Return the rows that are used: those with a label."""
        return labelled_rows(self.settings, table, train, seed)

    @abstractmethod
    def deal(self, found: DealtTable, table: Table, seed: int) -> D:
        """Deal a scaled split; ``table`` has the columns before encoding."""


def _predictions(dealt: DealtTable, folder: Path, partition: int) -> dict[str, Any]:
    """Return the prediction file of a simulated node."""
    file = folder / f"partition-{partition}.csv"
    return {"predictions": file} if dealt.predicts(partition) else {}
