"""Print the attacks on real tables of docs/fdskl.md, docs/fed-cg.md and docs/secure-gram.md.

``FEDKERN_DATA`` names the folder with phishing.npz and a9a.npz. The first argument is a file of
MovieLens 100k, with columns user, item, rating, time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...strategies import FDSKL, FedCG
from . import fdskl, fed_cg, secure_gram
from .audit import silence
from .seen import Floats
from .single_rows import angles_apart, equal_rows, from_known, unwrapped

ROWS = 400


def rows_of(name: str, columns: slice, rows: int, seed: int = 0) -> Floats:
    """Read some rows and columns of a binary table of ``FEDKERN_DATA``."""
    table = np.load(Path(os.environ["FEDKERN_DATA"]) / f"{name}.npz")["X"]
    drawn = np.random.default_rng(seed).choice(len(table), rows, replace=False)
    return np.asarray(table[drawn, columns], np.float64)


def phases_of(x: Floats, own: Floats, narrower: float = 1.0, **options: Any) -> fdskl.Angles:
    """Run FDSKL on columns of two passive parties and of the active one.

    ``narrower`` divides the default width of the kernel.
    """
    columns, power = x.shape[1] + own.shape[1], 1 if options.get("kernel") == "laplacian" else 2
    gamma = narrower**power / (4.0 * columns)
    half = x.shape[1] // 2
    strategy = FDSKL(gamma=gamma, regularization=1e-3, seed=0, **options)
    labels = np.arange(len(x), dtype=np.float64) % 2
    return fdskl.PhasesRun([own, x[:, :half], x[:, half:]], labels, strategy).angles


def columns_of_phases() -> Iterator[str]:
    """Yield how many binary columns FDSKL's phases give."""
    tables = {"phishing": (slice(0, 12), slice(12, 40)), "a9a": (slice(40, 53), slice(60, 88))}
    cases: list[tuple[int, float, dict[str, Any]]] = [
        (200, 1.0, {}),
        (ROWS, 1.0, {}),
        (ROWS, 1.0, {"phase_bits": 32}),
        (ROWS, 1.0, {"kernel": "laplacian"}),
        (ROWS, 4.0, {}),
        (ROWS, 16.0, {}),
    ]
    for name, (hidden, own) in tables.items():
        for rows, narrower, options in cases:
            x = rows_of(name, hidden, rows)
            angles = phases_of(x, rows_of(name, own, rows), narrower, **options)
            binary = sum(len(np.unique(column)) == 2 for column in angles.truth.T)
            kinds = len(np.unique(angles.truth, axis=0))
            tolerance = (4.0 * angles.noise) ** 2
            seen = len(equal_rows(angles_apart(angles.values), tolerance)[0])
            found = f"{angles.columns_found() * binary:.0f} of {binary} columns"
            case = f"{name}, {rows} rows, width / {narrower:g} {options or ''}"
            yield f"{case}: {found}; {seen} of {kinds} kinds of rows"


def rows_from_known() -> Iterator[str]:
    """Yield how exactly nine known records give eight continuous columns of all rows."""
    rng = np.random.default_rng(0)
    x = rng.random((ROWS, 8))
    for narrower in (1.0, 4.0):
        angles = phases_of(x, rng.random((ROWS, 8)), narrower)
        values = unwrapped(angles.values, angles_apart(angles.values))
        known = rng.choice(ROWS, 9, replace=False)
        found = from_known(values, known, angles.truth[known])
        error = np.abs(found - angles.truth).max()
        yield f"9 of {ROWS} records known, width / {narrower:g}: error at most {error:.1g}"


def columns_of_distances() -> Iterator[str]:
    """Yield how many binary columns of the centres FedCG's distances give a hospital."""
    for name, start in (("phishing", 0), ("a9a", 40)):
        for count in (8, 13):
            x = rows_of(name, slice(start, start + count + 3), 3 * ROWS)
            blocks = {"first": range(4), "second": range(4, count), "own": range(count, count + 3)}
            rows = [(part, np.arange(ROWS, dtype=np.float64) % 2) for part in np.split(x, 3)]
            columns = {block: tuple(places) for block, places in blocks.items()}
            run = fed_cg.FedCGRun(rows, columns, FedCG(landmarks=60, seed=0))
            share = fed_cg.columns_found(run)
            yield f"{name}, {ROWS} patients, {count} columns: share {share:.3f}"


def single_ratings(file: str) -> Iterator[str]:
    """Yield how well the matrix of half of MovieLens' users shows members and rare ratings."""
    pairs = np.loadtxt(file, delimiter="\t", skiprows=1, usecols=(0, 1), dtype=str)
    users, items = (np.unique(part, return_inverse=True)[1] for part in pairs.T)
    table: NDArray[np.int64] = np.zeros((users.max() + 1, items.max() + 1), np.int64)
    table[users, items] = 1
    for ratio in (2, 4, 8, 16):
        found = []
        for seed in range(5):
            mixed = np.random.default_rng(seed).permutation(table)
            members, others = np.array_split(mixed, 2)
            kept = np.argsort(-members.sum(axis=0), kind="stable")[: len(members) // ratio]
            members, others = members[:, kept], others[:, kept]
            kernel = members.T @ members
            area = secure_gram.members_found(kernel, members, others)
            rare = secure_gram.ratings_found(kernel, members)
            found.append((area, rare, members.sum(axis=0).min()))
        area, rare, support = np.mean(found, axis=0)
        yield (
            f"{ratio} users an item, {len(kept)} items, each of {support:.0f} users or more: "
            f"members {area:.2f}, rare ratings {rare:.2f}"
        )


if __name__ == "__main__":
    with silence():
        for part in (columns_of_phases, rows_from_known, columns_of_distances):
            print(*part(), sep="\n")
        for file in sys.argv[1:]:
            print(*single_ratings(file), sep="\n")
