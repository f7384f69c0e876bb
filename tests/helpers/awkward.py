"""Twenty tables as people have them, and what scikit-learn makes of their columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, QuantileTransformer, StandardScaler

LABEL = "outcome"
RARE = 5  # rows that a category needs


class Awkward(NamedTuple):
    """A table: its features, what they are, and its labels."""

    columns: dict[str, Any]
    kinds: dict[str, str]
    labels: Sequence[Any]

    def arrow(self) -> pa.Table:
        """Return it with its labels."""
        return pa.table({**self.columns, LABEL: list(self.labels)})


def gaps(values: Sequence[Any], every: int) -> list[Any]:
    """Return values of which some are missing."""
    return [None if k % every == every - 1 else value for k, value in enumerate(values)]


def awkward_tables(rows: int = 221) -> dict[str, Awkward]:
    """Return the tables by name."""
    rng = np.random.default_rng(23)
    plain, skewed = rng.normal(size=rows), np.exp(3 * rng.normal(size=rows))
    two = ["no" if value < 0 else "yes" for value in plain]
    colours = rng.choice(["red", "green", "blue"], rows, p=[0.6, 0.3, 0.1]).tolist()
    start = datetime(2019, 11, 3, 7, 30, tzinfo=UTC)
    moments = [start + timedelta(hours=float(7.5 * k)) for k in range(rows)]
    days = [(date(2020, 2, 27) + timedelta(days=k)).isoformat() for k in range(rows)]
    number, text = "number", "category"

    def one(kinds: str | dict[str, str], labels: Sequence[Any] = two, **columns: Any) -> Awkward:
        columns["plain"] = plain.tolist()  # so that no table is without a useful column
        named = dict.fromkeys(columns, kinds) if isinstance(kinds, str) else kinds
        return Awkward(columns, {**named, "plain": number}, labels)

    far = [*skewed[:-1].tolist(), 1e120]
    classes = ["a"] + ["b"] * 20 + ["c"] * (rows - 21)
    odd = {name: rng.normal(size=rows).tolist() for name in (" a ", "x[1]", "ä,ö", 'q"', "№ 5")}
    towns = [f"town {k % 60}" for k in range(rows)]
    many = rng.choice([f"t{k}" for k in range(25)], rows * 2, p=np.arange(1, 26) / 325).tolist()
    numbers = [str(k % 17) for k in range(rows)]
    whole = {k: rng.normal(size=rows) for k in "ab"}
    return {
        "text": one(text, colour=colours),
        "gaps": one(number, a=gaps(plain.tolist(), 4), b=gaps(skewed.tolist(), 7)),
        "text with gaps": one(text, colour=gaps(colours, 5)),
        "constant": one({"still": number, "same": text}, still=[3.5] * rows, same=["x"] * rows),
        "one value and nulls": one(number, level=gaps([7.0] * rows, 3)),
        "one word and nulls": one(text, level=gaps(["high"] * rows, 3)),
        "empty": one(number, nothing=[None] * rows),
        "odd names": Awkward(odd, dict.fromkeys(odd, number), two),
        "booleans": one("boolean", flag=[value == "yes" for value in two], gap=gaps(two, 6)),
        "three classes": one(text, classes, colour=colours),
        "unicode": one(text, city=rng.choice(["Zürich", "東京", "São Paulo"], rows).tolist()),
        "far outlier": one(number, income=far),
        "integers as text": one(number, code=numbers),
        "dates": one("date", day=days, moment=[m.isoformat() for m in moments]),
        "dates with gaps": one("date", day=gaps(days, 9)),
        "timestamps": one("date", moment=pa.array(gaps(moments, 8), pa.timestamp("s", "UTC"))),
        "rare categories": one(text, kind=["rare", "rarer", "rarer", *colours[3:]]),
        "many categories": one(text, town=many[:rows]),
        "names of rows": one(text, name=[f"{town} {k}" for k, town in enumerate(towns)]),
        "dictionaries": one(
            {"colour": text, "a": number},
            classes[::-1],
            colour=pa.array(colours).dictionary_encode(),
            a=np.rint(8 * whole["a"]).astype(np.float32) / 8,
        ),
        "spaces and words for gaps": one(
            {"colour": text, "a": number},
            colour=[f" {c}" if k % 9 else " NA " for k, c in enumerate(colours)],
            a=["null" if k % 11 == 0 else f" {v} " for k, v in enumerate(whole["b"])],
        ),
        "regression": one(text, skewed.tolist(), colour=colours),
    }


_GAPS = {"", "NA", "N/A", "NaN", "nan", "NULL", "null", "None"}
_SCALERS: Mapping[str, Callable[[], Any]] = {
    "standard": StandardScaler,
    "range": lambda: MinMaxScaler(clip=True),
}


def quantiles(known: np.ndarray) -> QuantileTransformer:
    """Return scikit-learn's ranks of values.

    Its percentiles are interpolated, which parts equal values by a rounding and moves the neighbour
    of a far one; here they are the values.
    """
    found = QuantileTransformer(n_quantiles=len(known), subsample=None).fit(known[:, None])
    found.quantiles_ = np.sort(known)[:, None]
    return found


def by_scikit_learn(kind: str, train: Sequence[Any], new: Any, scaling: str) -> np.ndarray:
    """Return what scikit-learn makes of the new cells of a column, fitted on other rows."""
    train, new = ([_cell(cell) for cell in cells] for cells in (train, new))
    found = []
    if kind == "category":
        found.append(_categories(train, new))
    elif kind == "date":
        first = min((_moment(cell) for cell in train if cell is not None), default=None)
        for part in range(4):
            own, other = (
                [None if cell is None else _part(_moment(cell), part, first) for cell in cells]
                for cells in (train, new)
            )
            if len(set(own) - {None}) > 1:
                found.append(_numbers(own, other, scaling))
    else:
        read = _truth if kind == "boolean" else float
        own, other = ([None if c is None else read(c) for c in cells] for cells in (train, new))
        constant = len(set(own) - {None}) < 2
        if set(own) != {None} and not (constant and scaling in ("rank", "standard")):
            found.append(_numbers(own, other, scaling))
    lacks = [np.array([[int(cell is None)] for cell in cells]) for cells in (train, new)]
    if lacks[0].all():  # it would be constant
        return np.concatenate([np.zeros((len(new), 0)), *found], axis=1)
    indicator = MissingIndicator(missing_values=1, features="missing-only", error_on_new=False)
    found.append(indicator.fit(lacks[0]).transform(lacks[1]).astype(float))
    return np.concatenate(found, axis=1)


def _cell(cell: Any) -> Any:
    if isinstance(cell, str):
        cell = cell.strip()
        return None if cell in _GAPS else cell
    return None if isinstance(cell, float) and not np.isfinite(cell) else cell


def _numbers(own: Sequence[Any], other: Sequence[Any], scaling: str) -> np.ndarray:
    train, new = (np.array(values, float)[:, None] for values in (own, other))
    new = SimpleImputer(strategy="median").fit(train).transform(new)
    if scaling == "none":
        return new
    known = train[np.isfinite(train)]
    if scaling == "rank":
        return quantiles(known).transform(new)
    return _SCALERS[scaling]().fit(known[:, None]).transform(new)


def _categories(own: Sequence[Any], other: Sequence[Any]) -> np.ndarray:
    known = [cell for cell in own if cell is not None]
    counts = Counter(known)
    kept = {name: count for name, count in counts.items() if count >= RARE}
    found = np.zeros((len(other), 0))
    if len(kept) > 20:
        return np.array([[kept.get(cell, 0) / len(known)] for cell in other])
    if len(kept) + (len(kept) < len(counts)) > 1:
        encoder = OneHotEncoder(
            handle_unknown="infrequent_if_exist", min_frequency=RARE, sparse_output=False
        )
        encoder.fit(np.array(known, object)[:, None])
        there = [k for k, cell in enumerate(other) if cell is not None]
        columns = encoder.transform(np.array([other[k] for k in there], object)[:, None])
        found = np.zeros((len(other), columns.shape[1]))
        found[there] = columns
    return found


def _truth(cell: Any) -> float:
    return float(str(cell).lower() in ("true", "yes"))


def _moment(cell: Any) -> datetime:
    found = datetime.fromisoformat(cell) if isinstance(cell, str) else cell
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _part(moment: datetime, part: int, first: datetime) -> float:
    days = (moment - first).total_seconds() / 86400
    return float((days, moment.weekday(), moment.month, moment.hour)[part])


def everything(rows: int = 221) -> Awkward:
    """Return a table that has all of it: three classes of 1, 20 and 200 rows."""
    tables, rng = awkward_tables(rows), np.random.default_rng(24)
    labels = np.array(tables["three classes"].labels)
    order = rng.permutation(rows)
    columns: dict[str, Any] = {"size": (rng.normal(size=rows) + 2 * (labels == "b")).tolist()}
    kinds = {"size": "number"}
    parts = {
        "gaps": "a", "text with gaps": "colour", "constant": "still",
        "one value and nulls": "level", "odd names": "x[1]", "booleans": "gap",
        "dates with gaps": "day", "far outlier": "income", "names of rows": "name",
        "many categories": "town",
    }  # fmt: skip
    for name, column in parts.items():
        columns[column] = tables[name].columns[column]
        kinds[column] = tables[name].kinds[column]
    columns = {name: [values[k] for k in order] for name, values in columns.items()}
    return Awkward(columns, kinds, [labels[k] for k in order])
