"""Hospitals and centres of FedCG, and the pooled solution of their tables in plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pooled import KEY, Blocks, join, kernel_ridge, landmark_distances
from sklearn import datasets
from zoo import WAYS, Found, Sites, Table, side

from fedkern_flwr.hybrid.landmarks import public_seed
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import FedCG

Array = np.ndarray
TWO: Table = {"classes": (0, 1)}
NEUTRAL: Table = {"missing": "neutral"}


def deal(
    x: Array,
    y: Array,
    hospitals: int,
    centres: int,
    *,
    own: bool = True,
    shared: int = 1,
    ranges: tuple[float, float] = (0.0, 1.0),
    **labels: Any,
) -> list[Table]:
    """Deal rows to hospitals and columns to centres, each party with a row order of its own.

    So many centres hold a block together, each other patients. Centres know strangers as well.
    """
    rng = np.random.default_rng([hospitals, centres])
    ids = np.array([f"patient {k}" for k in rng.permutation(10 * len(x))[: len(x)]])
    columns = np.array_split(rng.permutation(x.shape[1]), centres // shared + own)
    names = ["clinical"] * own + [f"centre {k}" for k in range(centres // shared)]
    blocks = dict(zip(names, columns, strict=True))

    def part(rows: Array, name: str) -> Table:
        columns = [f"c{k}" for k in blocks[name]]
        table: Table = {"x": x[np.ix_(rows, blocks[name])], "ids": ids[rows], "block": name}
        table |= {"columns": columns, "ranges": np.tile(ranges, (len(columns), 1))}
        return {**table, "landmark_seed": public_seed(1, name)}

    tables: list[Table] = []
    for rows in np.array_split(rng.permutation(len(x)), hospitals):
        fit, test = np.split(rows, [2 * len(rows) // 3])
        table = part(fit, "clinical") if own else {"ids": ids[fit]}
        table |= {"x_test": x[np.ix_(test, blocks["clinical"])]} if own else {}
        tables.append({**table, "y": y[fit], "y_test": y[test], "ids_test": ids[test], **labels})
    for name in names[own:]:
        for rows in np.array_split(rng.permutation(len(x)), shared):
            table = part(rows, name)
            table["x"] = np.vstack([table["x"], np.full((2, len(blocks[name])), ranges[0])])
            tables.append({**table, "ids": [*table["ids"], f"{len(tables)} a", f"{len(tables)} b"]})
    return tables


def small(n: int = 60) -> list[Table]:
    """Two hospitals and two centres."""
    return deal(*side(n, 6), 2, 2, **TWO)


def iris_tables(hospitals: int, centres: int) -> list[Table]:
    x, y = datasets.load_iris(return_X_y=True)
    return deal((x - x.min(0)) / np.ptp(x, 0), y, hospitals, centres, classes=(0, 1, 2))


def number_tables() -> list[Table]:
    x = side(90, 6)[0]
    y = 30.0 * np.stack([np.sin(3.0 * x[:, 0]) - x[:, 5], x[:, 1] * x[:, 2]], axis=1)
    return deal(x, y, 3, 2, label_bound=40.0)


def incomplete() -> list[Table]:
    """Some rows lack a block, some two."""
    tables = deal(*side(90, 6), 3, 3, **TWO)
    patients = np.concatenate([table["ids"] for table in tables[:3]])
    for c, gone in ((3, patients[:8]), (4, patients[8:14]), (5, patients[14:17])):
        keep = ~np.isin(tables[c]["ids"], gone)
        tables[c] |= {"x": tables[c]["x"][keep], "ids": np.asarray(tables[c]["ids"])[keep]}
    return tables


def far_from_zero() -> list[Table]:
    """Years, say: squares of the features have no digits to spare."""
    x, y = side(90, 6)
    return deal(1e5 + x, y, 2, 2, ranges=(1e5, 1e5 + 1.0), **TWO)


def constant_columns() -> list[Table]:
    x, y = side(60, 6)
    x[:, 1], x[:, 4] = 0.5, 0.0
    return deal(x, y, 2, 2, **TWO)


#: Name -> tables, options: ways to deal rows and columns, whose model is that of the pooled rows.
VARIANTS: dict[str, tuple[Callable[[], list[Table]], Table]] = {
    "a single party": (lambda: deal(*side(40, 6), 1, 0, **TWO), {}),
    "one hospital": (lambda: iris_tables(1, 3), {}),
    "no centres": (lambda: deal(*side(60, 6), 3, 0, **TWO), {}),
    "no centres, normal": (lambda: deal(*side(60, 6), 3, 0, **TWO), {"sampling": "N"}),
    "no centres, rkhs": (
        lambda: deal(*side(60, 6), 3, 0, **TWO),
        {"penalty": "rkhs", "gamma": 2.0},
    ),
    "no features": (lambda: deal(*side(60, 6), 3, 2, own=False, **TWO), {}),
    "shared blocks": (lambda: deal(*side(60, 6), 2, 4, shared=2, **TWO), {}),
    "shared, normal": (lambda: deal(*side(60, 6), 2, 4, shared=2, **TWO), {"sampling": "N"}),
    "shared, covariances": (lambda: deal(*side(60, 6), 3, 4, shared=2, **TWO), {"sampling": "C"}),
    "laplacian": (small, {"kernel": "laplacian"}),
    "a single landmark": (small, {"landmarks": 1}),
    "far from zero": (far_from_zero, {}),
    "rows dropped": (incomplete, {"missing": "drop-row", "sampling": "N"}),
    "blocks neutral": (incomplete, NEUTRAL),
    "neutral, normal": (incomplete, {**NEUTRAL, "sampling": "N"}),
    "constant columns": (constant_columns, {"sampling": "N"}),
    "rkhs, cg": (small, {"penalty": "rkhs", "gamma": 2.0, "solver": "cg"}),
    "cg": (number_tables, {"solver": "cg"}),
}


@dataclass
class Parties(Sites):
    """Nodes of FedCG; of the last kernel, distances of rows and ``pairs`` to landmarks."""

    distances: Array = field(init=False)
    pairs: Array = field(init=False)

    def learn(self, more: Table | None = None, **options: Any) -> FedCG:
        """Fit uniform landmarks with what is given; ``more`` is of ``start``."""
        plain: Table = {"tune": "off", "sampling": "U", "landmarks": 20, "seed": 1}
        strategy = FedCG(**{**plain, **options})
        simulate(strategy, self.client_fn, len(self), **(more or {}))
        return strategy

    def files(self, suffix: str) -> list[Path]:
        """Return the files with this ending in all folders."""
        return sorted(self.folder.rglob(f"*.{suffix}"))

    def outputs(self) -> dict[str, list[float]]:
        """Return the predictions that were written, by id."""
        found = {name.partition(" ")[2]: values for name, values in self.written().items()}
        assert len(found) == len(self.written())
        return found

    def join(self, missing: str = "error") -> tuple[Blocks, list[str], Array, list[str]]:
        """Return what :func:`pooled.join` does of the tables."""
        return join(self.tables, missing)

    def kernel(self, fitted: FedCG) -> tuple[Array, Array, list[str]]:
        """Return the kernel of rows to learn from, then of tests; targets, and tests."""
        _, _, y, tests = self.join(fitted.missing)
        self.distances, self.pairs = landmark_distances(fitted, self.tables)
        return np.exp(-fitted.gammas_ * self.distances), y, tests

    def gap(self, fitted: FedCG, lam: float = 1e-3, bound: float = np.inf) -> float:
        """Return max |f_fed - f_central| over the held-out rows, as the hospitals wrote them."""
        assert fitted.model()[1]["regularization"] == lam
        *_, (found, expected) = kernel_ridge(Found(self.way, fitted, self, None, None), bound)
        assert len(found) == len(self.outputs())
        assert np.abs(expected).max() > 0.01  # there is something to compare
        return float(np.abs(found - expected).max())


Serve = Callable[..., Parties]  # what a fixture gives


def server(tmp_path: Path) -> Serve:
    """Return what serves tables, each time in a folder of its own or in one that is given."""

    def make(tables: list[Table], folder: Path | None = None, **common: Any) -> Parties:
        if folder is None:
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            folder.mkdir()
        way = replace(WAYS["fed-cg"], common={"alignment_key": KEY})
        return Parties(way, folder, tables, common)

    return make
