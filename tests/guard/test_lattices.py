"""Sums of products of whole numbers: lattice reduction finds rows where there are few of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from numpy.typing import NDArray
from refusals import refused

from fedkern_flwr.clients import OnlineKernelClient
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.online import ridge
from fedkern_flwr.online.messages import ridge_scale
from fedkern_flwr.secure_sum.membership import default_threshold
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import POFRLS

Whole = NDArray[np.int64]

_LOVASZ, _NOTHING = 0.99, 1e-6


def reduced(gram: Whole) -> tuple[Whole, Whole]:
    """Return vectors of a lattice that LLL finds, and their inner products.

    The lattice has any number of generators, of which some may depend on others. Their inner
    products stay exact; only the projections are rounded.

    Parameters
    ----------
    gram : ndarray of int64, shape (w, w)
        Inner products of the generators.

    Returns
    -------
    vectors : ndarray, shape (r, w)
        Each as a combination of the generators.
    products : ndarray, shape (r, r)
    """
    found, inner = np.eye(len(gram), dtype=np.int64), gram.copy()
    mu, length = np.zeros(gram.shape), np.zeros(len(gram))
    k = 0
    while k < len(inner):
        for _ in range(50):  # rounding of large projections: until there is nothing to subtract
            row = inner[k, :k].astype(float)
            for j in range(1, k):
                row[j] -= mu[j, :j] @ row[:j]
            mu[k, :k] = np.where(length[:k] > 0.0, row / np.maximum(length[:k], _NOTHING), 0.0)
            length[k] = inner[k, k] - mu[k, :k] @ row
            part, whole = mu[k, :k].copy(), np.zeros(k, np.int64)
            for j in range(k - 1, -1, -1):
                if abs(part[j]) > 0.51:
                    whole[j] = round(part[j])
                    part[:j] -= whole[j] * mu[j, :j]
            if not whole.any():
                break
            found[k] -= whole @ found[:k]
            inner[k] -= whole @ inner[:k]
            inner[:, k] -= inner[:, :k] @ whole
        if inner[k, k] == 0:  # it depends on those before
            found = np.delete(found, k, 0)
            inner = np.delete(np.delete(inner, k, 0), k, 1)
            k = max(k - 1, 0)
            continue
        length[k] = length[k] if length[k] > _NOTHING * inner[k, k] else 0.0
        if k and length[k] < (_LOVASZ - mu[k, k - 1] ** 2) * length[k - 1]:
            found[[k - 1, k]] = found[[k, k - 1]]
            inner[[k - 1, k]] = inner[[k, k - 1]]
            inner[:, [k - 1, k]] = inner[:, [k, k - 1]]
            k -= 1
        else:
            k += 1
    return found, inner


def exposed_rows(gram: Whole) -> Whole:
    """Return the rows that sums of products show, of columns of which the last is one.

    A vector of length one in the lattice of the columns is a unit vector: its inner products with
    the columns are the cells of a row, but for their sign.
    """
    found, inner = reduced(gram)
    rows = found[np.diag(inner) == 1] @ gram
    return np.asarray(rows * np.sign(rows[:, -1:]))


CLIENTS, COLUMNS, VALUES = 24, 25, 3
X = np.random.default_rng(2).integers(0, VALUES, (CLIENTS, 30, COLUMNS))
UNIT = (VALUES - 1) * COLUMNS**0.5
TABLES = [(w, v, seed) for w in (8, 10, 12, 14) for v in (3, 10, 100) for seed in range(6)]


def exposed(rows: Any) -> int:
    """Return how many rows of whole columns and a column of ones their products show."""
    rows = np.column_stack([rows, np.ones(len(rows), np.int64)])
    found = {tuple(row) for row in exposed_rows(rows.T @ rows).tolist()}
    return sum(tuple(row) in found for row in rows.tolist())


@pytest.mark.promise("rls-counting")
def test_no_row_of_whole_numbers_is_in_the_sums_of_a_planned_window() -> None:
    """Of the same clients' single samples, which has as many unknowns, nearly all tables fall."""
    fell = 0
    for w, values, seed in TABLES:
        clients = w - 2  # fewer rows than columns
        hidden = default_threshold(clients) - 1
        sizes = {"columns": w, "kernels": 0, "features": 0, "fixed": 0}
        plan = ridge.plan(60, 1e9, given=None, hidden=hidden, **sizes)
        samples = plan.stops[0]
        assert hidden * samples >= 2 * w
        table = np.random.default_rng(seed).integers(0, values, (samples, clients, w - 1))
        assert not exposed(table[:, 1:].reshape(-1, w - 1))  # without those of the largest client
        fell += exposed(table[0]) > 0
    assert fell >= len(TABLES) - 1


class Seen(POFRLS):
    """Keeps the products of the first message in whole numbers."""

    def step(self, total: Any, answers: int) -> None:
        """Read them from the sum."""
        if self.request_.round == 1:
            raw = total[: ridge.numbers(COLUMNS + 1) - COLUMNS - 1]
            triangle = np.zeros((COLUMNS + 1, COLUMNS + 1))
            triangle[np.triu_indices(COLUMNS + 1)] = raw / ridge_scale(self.request_.samples)
            units = np.append(np.full(COLUMNS, UNIT), 1.0)
            gram = (triangle + np.triu(triangle, 1).T) * np.outer(units, units)
            self.rows_ = exposed_rows(np.rint(gram).astype(np.int64))
        super().step(total, answers)


class Hasty(Seen):
    """Sums raw columns of single samples."""

    def plan_release(self, dimension: int) -> None:
        """Plan as if each client's single sample were enough."""
        super().plan_release(dimension)
        stops = tuple(range(1, self.num_rounds + 1))
        sums = tuple(False for _ in stops)
        self.plan_ = replace(self.plan_, stops=stops, starts=(0, *stops[:-1]), sums=sums, raw=1)


@pytest.mark.parametrize("kind", [Seen, Hasty])
def test_products_have_no_more_columns_than_half_the_samples(kind: Callable[..., Any]) -> None:
    """24 clients, 25 columns: 383 numbers, 400 unknowns; LLL has 24 of 24 rows of the first."""

    def client_fn(context: Context) -> OnlineKernelClient:
        k = int(context.node_config["partition-id"])
        policy = NodePolicy.of_simulations(counting="refuse")
        y = np.arange(30) % 2
        return OnlineKernelClient(context, X[k] / UNIT, y.astype(float), policy=policy)

    strategy = kind(secure=True, experts="global-ridge", max_missed=1)
    if kind is Hasty:
        with refused("FK-CELLS-WIDTH", "FK-PARTIES-LOST") as error:
            simulate(strategy, client_fn, CLIENTS, num_rounds=20)
        assert "FK-CELLS-WIDTH" in str(error.value)
        return
    simulate(strategy, client_fn, CLIENTS, num_rounds=20)
    assert strategy.plan_.stops[0] == 4  # 64 hidden rows, 52 needed
    assert not len(strategy.rows_)
