"""Labelled tables: task, classes, splits and scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.hybrid.parties import MissingBlocks
from fedkern_flwr.labels import name_classes
from fedkern_flwr.options import at_least, check_choice
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.tables.table import Table, choices

from ..run.data import TableSettings, hold_out

Floats = NDArray[np.float64]
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
