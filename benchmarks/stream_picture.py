"""Error over time where the data drifts in the middle, and the regret of POF-RLS with its bound.

    python benchmarks/stream_picture.py [--out docs/images/pof-rls-drift.png]

Friedman's function of ``streams.py``, whose columns change their parts after half of the samples.
Left: mean squared error of the last 25 samples of each client. Right: regret of a client against
its best learner in hindsight, mean over clients, and AdaHedge's bound at the mean loss of these,
which is above the mean of the clients' bounds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from common import Record, run_script
from rich.console import Console
from streams import Floats, generated, recursive_ridge, rows_by_round

from fedkern_flwr.online.hedge import hedge_bound
from fedkern_flwr.simulations.methods.experiment import run_entries
from fedkern_flwr.simulations.run import drawing
from fedkern_flwr.simulations.run.entries import Entry

WINDOW, EXPERTS = 25, 8
METHODS = {"POF-RLS": ("pof-rls", {"secure": True}), "POF-MKL": ("pof-mkl", {})}


def history(method: str, seed: int) -> tuple[Floats, Floats, Floats]:
    """Return samples, summed squared error and regret of a client so far, means over clients."""
    name, options = METHODS[method]
    entry = Entry(method, name, options)
    run_entries([entry], generated("Friedman", seed), engine="in-process", seed=seed)
    rows = [row for row in entry.results[0]["history"] if row["mse"] is not None]
    samples, errors, regrets = (
        np.array([row[k] for row in rows], float) for k in ("round", "mse", "regret")
    )
    return samples, errors * samples, regrets


def recent(samples: Floats, summed: Floats) -> tuple[Floats, Floats]:
    """Return the mean error of the last samples, from sums at some of them."""
    every = np.arange(WINDOW, samples[-1] + 1, 5)
    known = np.append(0.0, samples), np.append(0.0, summed)
    both = [np.interp(t, *known) for t in (every, every - WINDOW)]
    return every, (both[0] - both[1]) / WINDOW


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Draw the picture; return the regret and its bound at the end."""
    seed = 0
    curves, found = {}, {name: history(name, seed) for name in METHODS}
    for name, (samples, errors, _) in found.items():
        curves[name] = recent(samples, errors)
    x, y = rows_by_round(generated("Friedman", seed))
    z, y = np.concatenate([x, np.ones((*y.shape, 1))], axis=-1), y - 0.5
    each = [recursive_ridge(z[:, [k]], y[:, [k]]) for k in range(y.shape[1])]
    local = np.concatenate(each, axis=1)
    for name, errors in (("global ridge", recursive_ridge(z, y)), ("local ridge", local)):
        summed = errors.mean(axis=1).cumsum()
        curves[name] = recent(np.arange(1.0, len(summed) + 1), summed)
    samples, errors, regrets = found["POF-RLS"]
    best = errors - regrets
    bounds = np.array([hedge_bound(EXPERTS, int(t), b) for t, b in zip(samples, best, strict=True)])
    figure = drawing.new_figure(3.6)
    left, right = figure.subplots(1, 2)
    for name, (when, error) in curves.items():
        left.plot(when, 1e3 * error, label=name)
    left.axvline(x.shape[0] // 2, color="0.6", linestyle=":")
    left.set_ylim(0.0)
    left.set_title("error of the last 25 samples (10⁻³)", fontsize="medium")
    right.plot(samples, bounds, label="AdaHedge's bound", color="0.5", linestyle="--")
    right.plot(samples, regrets, label="regret of POF-RLS")
    right.set_title("regret against the best learner", fontsize="medium")
    for axes in (left, right):
        axes.set_xlabel("samples of a client")
        axes.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.2))
    figure.set_layout_engine("tight")
    drawing.save_figure(figure, Path(options.out))
    console.print(f"regret {regrets[-1]:.3g}, bound {bounds[-1]:.3g}: {options.out}")
    return [Record("regret / bound", float(regrets[-1] / bounds[-1]), "")]


if __name__ == "__main__":
    run_script(__doc__, measure, out=("docs/images/pof-rls-drift.png", "where to draw"))
