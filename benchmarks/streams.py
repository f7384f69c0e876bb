"""Ten streams: POF-MKL beside what needs no kernels, no gradients, or no federation at all.

    FEDKERN_DATA=... python benchmarks/streams.py [--streams naval nyc-weather] [--seeds 5]

Mean squared error (10⁻³) of predictions that are made before the label is used; the same rows in
the same order for all, scaled as ``fedkern run`` scales them. ``local`` is recursive least squares
of each client by itself, which sends nothing; ``global`` learns from all clients' rows of the
rounds before, which sums of x xᵀ and x y over the clients suffice for. ``ridge`` has the columns
and a constant; ``RFF`` 20 random frequencies of a Gaussian kernel at the median distance of two
rows, and a constant; the penalty is .01. All are plain NumPy, and begin with the prediction
``--start``. ``drift`` is the error over the second half divided by that over the first.

The two drifting streams are made here: Friedman's function whose columns change their parts in
the middle, and a hyperplane that turns by half a circle.

``MLP`` is a ReLU network of at most 1000 parameters, learned by the clients' summed gradients, in
plain. ``global-ridge alone`` and its like are single learners of POF-RLS, under the rule of
counting as well; nan where it allows them no sums. ``told``: kernels alone do not know the width
that the mixture finds with the sums of columns, twice the root mean squared distance of rows.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from common import Record, new_table, run_script
from numpy.typing import NDArray
from rich.console import Console

from fedkern_flwr.errors import OptionError
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.simulations.methods.experiment import run_entries
from fedkern_flwr.simulations.methods.online import (
    DataSettings,
    Shard,
    Streams,
    prepare,
)
from fedkern_flwr.simulations.run.entries import Entry
from fedkern_flwr.tables.table import Table

Floats = NDArray[np.float64]

PENALTY, FREQUENCIES = 0.01, 20
_BY_STATION = {"data": "beijing_prsa.npz", "missing": "drop-row", "split": "site"}
#: Name -> settings; a file is one of FEDKERN_DATA.
SETTINGS: dict[str, dict[str, Any]] = {
    "naval": {"data": "naval.npz", "target": "0", "clients": 23},
    "ccpp": {"data": "ccpp.npz"},
    "a9a": {"data": "a9a.npz"},
    "phishing": {"data": "phishing.npz"},
    "nyc-weather": {"data": "nyc-weather", "clients": 9, "rounds": 200},
    "Beijing CO": _BY_STATION,
    "Beijing NO2": {**_BY_STATION, "target": "NO2"},
    "UJI": {"data": "ujiindoorloc.npz", "label": "0", "clients": 39},
}
GENERATED = ("Friedman", "hyperplane")
STREAMS = (*SETTINGS, *GENERATED)
#: Column of the table -> method and options.
FEDERATED: dict[str, tuple[str, dict[str, Any]]] = {
    "POF-MKL": ("pof-mkl", {}),
    "POF-MKL, 50": ("pof-mkl", {"samples_per_round": 50}),
    "POF-MKL, secure": ("pof-mkl", {"secure": True}),
    "POF-MKL, secure, 50": ("pof-mkl", {"secure": True, "samples_per_round": 50}),
    "POF-RLS": ("pof-rls", {"secure": True}),
    "POF-RLS, 50": ("pof-rls", {"secure": True, "samples_per_round": 50}),
    "MLP": ("per-fed-avg", {"inner_step": 0.0}),
    **{
        f"{experts} alone": ("pof-rls", {"secure": True, "experts": experts})
        for experts in ("local-ridge", "local-kernels", "global-ridge", "global-kernels")
    },
    **{
        f"{experts} alone, told": ("pof-rls", {"secure": True, "experts": experts})
        for experts in ("local-kernels", "global-kernels")
    },
}
REFERENCES = ("local ridge", "local RFF", "global ridge", "global RFF")


def stream(name: str, seed: int) -> Streams:
    """Return the clients of a stream, ready for an online method; the seed deals or makes rows."""
    if name in GENERATED:
        return generated(name, seed)
    settings = {"rounds": 500, **SETTINGS[name]}
    if settings["data"].endswith(".npz"):
        settings["data"] = str(Path(os.environ["FEDKERN_DATA"]) / settings["data"])
    return prepare(DataSettings(**settings, seed=seed))


def generated(name: str, seed: int, clients: int = 10, rounds: int = 500) -> Streams:
    """Return a stream that drifts at all clients at once: rows of ten uniform columns."""
    rng = np.random.default_rng(seed)
    x = rng.random((rounds, clients, 10))
    if name == "Friedman":  # columns 0 to 4 matter at first, others in the second half
        first, second = np.arange(5), np.array([3, 5, 1, 0, 7])
        parts = np.where(np.arange(rounds)[:, None] < rounds // 2, first, second)
        a, b, c, d, e = np.moveaxis(np.take_along_axis(x, parts[:, None], axis=2), 2, 0)
        y = 10 * np.sin(np.pi * a * b) + 20 * (c - 0.5) ** 2 + 10 * d + 5 * e
        y += rng.standard_normal(y.shape)
    else:
        one, other = np.linalg.qr(rng.standard_normal((10, 2)))[0].T
        angle = np.pi * np.arange(rounds)[:, None] / rounds
        y = np.vecdot(x - 0.5, (np.cos(angle) * one + np.sin(angle) * other)[:, None])
        y += 0.05 * rng.standard_normal(y.shape)
    columns = tuple(f"x{j}" for j in range(10))
    table = Table(x.reshape(-1, 10), y.reshape(-1), columns)
    scaling = Scaling.fit(table)
    scaled = scaling.apply(table)
    assert scaled.y is not None
    shards = tuple(
        Shard(scaled.x[k::clients], scaled.y[k::clients], scaled.x[:0], scaled.y[:0])
        for k in range(clients)
    )
    settings = DataSettings(data=name)
    encoder = settings.encoder(table)
    return Streams(shards, columns, encoder, scaling, rounds, (), settings)


def rows_by_round(prepared: Streams) -> tuple[Floats, Floats]:
    """Return what the clients see, shapes (rounds, clients, d) and (rounds, clients)."""
    shards, rounds = prepared.shards, prepared.rounds
    x = np.stack([shard.x[:rounds] for shard in shards], axis=1)
    return x, np.stack([shard.y[:rounds] for shard in shards], axis=1)


def random_features(x: Floats, seed: int) -> Floats:
    """Return sines and cosines of 20 frequencies of a Gaussian kernel at the median distance."""
    rng, flat = np.random.default_rng(seed), x.reshape(-1, x.shape[-1])
    few = flat[rng.permutation(len(flat))[:500]]
    squares = np.vecdot(few, few)
    distances = np.maximum(squares[:, None] + squares - 2 * few @ few.T, 0.0)
    width = np.sqrt(np.median(distances[np.triu_indices(len(few), 1)]))
    phases = x @ rng.standard_normal((x.shape[-1], FREQUENCIES)) / width
    return np.concatenate([np.sin(phases), np.cos(phases)], axis=-1) / np.sqrt(FREQUENCIES)


def recursive_ridge(z: Floats, y: Floats) -> Floats:
    """Return squared errors of ridge regression on all rows of the rounds before.

    Parameters
    ----------
    z : ndarray, shape (rounds, n, d)
        The n rows of a round are predicted, then learned.
    y : ndarray, shape (rounds, n)
        Labels.

    Returns
    -------
    ndarray, shape (rounds, n)
    """
    rounds, n, d = z.shape
    inverse, w, errors = np.eye(d) / PENALTY, np.zeros(d), np.empty((rounds, n))
    for t in range(rounds):
        wrong = y[t] - z[t] @ w
        errors[t] = wrong**2
        moved = inverse @ z[t].T
        gain = np.linalg.solve(np.eye(n) + z[t] @ moved, moved.T).T  # Woodbury
        w += gain @ wrong
        inverse -= gain @ moved.T
    return errors


def reference(name: str, x: Floats, y: Floats, seed: int) -> Floats:
    """Return the squared errors of a reference, shape (rounds, clients)."""
    where, kind = name.split()
    z = x if kind == "ridge" else random_features(x, seed)
    z = np.concatenate([z, np.ones((*y.shape, 1))], axis=-1)
    if where == "global":
        return recursive_ridge(z, y)
    each = [recursive_ridge(z[:, [k]], y[:, [k]]) for k in range(y.shape[1])]
    return np.concatenate(each, axis=1)


def federated(column: str, prepared: Streams, seed: int) -> Floats:
    """Run a method in process; return its errors, and its costs, see :func:`figures`."""
    method, options = FEDERATED[column]
    if column.endswith("told"):
        spread = rows_by_round(prepared)[0].var(axis=(0, 1)).sum()
        options = {**options, "width": 2.0 * float(np.sqrt(2.0 * spread))}
    entry = Entry(column, method, options)
    try:
        run_entries([entry], prepared, engine="in-process", seed=seed)
    except OptionError:
        if "alone" not in column:
            raise
        # the rule of counting leaves it nothing to learn from
        return np.full(6, np.nan)
    costs = [entry.results[0][name] for name in ("exchanges", "bytes_up", "bytes_down")]
    costs = np.array(costs) / prepared.rounds / [1, *[len(prepared.shards)] * 2]
    history = {row["round"]: row["mse"] for row in entry.results[0]["history"]}
    middle = min(history, key=lambda t: abs(t - prepared.rounds / 2))  # messages may be long
    first, whole = history[middle], history[prepared.rounds]
    if middle == prepared.rounds:
        return np.array([whole, np.nan, np.nan, *costs])
    rest = (whole * prepared.rounds - first * middle) / (prepared.rounds - middle)
    return np.array([whole, first, rest, *costs])


def figures(column: str, prepared: Streams, seed: int, start: float) -> Floats:
    """Return a column's mean squared error of all rounds, the first half and the second.

    And of a client and per sample: exchanges, bytes up, bytes down; nan of the references.
    """
    if column in FEDERATED:
        return federated(column, prepared, seed)
    x, y = rows_by_round(prepared)
    errors = reference(column, x, y - start, seed).mean(axis=1)
    middle = len(errors) // 2
    parts = [part.mean() for part in (errors, errors[:middle], errors[middle:])]
    return np.array([*parts, *[np.nan] * 3])


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Run all, and print the table."""
    streams, seeds = options.streams, range(1 if options.quick else options.seeds)
    headings = " | ".join(["", *options.columns])
    table = new_table("mean squared error (10⁻³) ± std over seeds", headings)
    drifts = new_table("drift", headings)
    costs = new_table("of a client and sample: exchanges, bytes up, bytes down", headings)
    records: list[Record] = []
    for name in streams[-1:] if options.quick else streams:
        prepared = [stream(name, seed) for seed in seeds]
        cells, drift, cost = [name], [name], [name]
        for column in options.columns:
            found = [
                figures(column, one, s, options.start)
                for s, one in zip(seeds, prepared, strict=True)
            ]
            errors, first, second, *per_sample = np.transpose(found)
            value = float(errors.mean())
            cells.append(f"{1e3 * value:.3g} ± {1e3 * errors.std():.1g}")
            drift.append(f"{second.mean() / first.mean():.2g}")
            cost.append("{:.2f} {:,.0f} {:,.0f}".format(*(one[0] for one in per_sample)))
            records.append(Record(f"{name}, {column}", value, "squared error"))
        table.add_row(*cells)
        drifts.add_row(*drift)
        costs.add_row(*cost)
    console.print(table)
    console.print(drifts)
    console.print(costs)
    return records


if __name__ == "__main__":
    there = "FEDKERN_DATA" in os.environ
    names = [n for n in STREAMS if there or n in ("nyc-weather", *GENERATED)]
    run_script(
        __doc__,
        measure,
        streams=names,
        columns=[*FEDERATED, *REFERENCES],
        seeds=5,
        start=(0.0, "what the references predict at first"),
    )
