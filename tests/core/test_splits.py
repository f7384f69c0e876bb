"""Dealing rows to simulated clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from refusals import refused

from fedkern_flwr.simulations.run.splits import (
    split_by_site,
    split_dirichlet,
    split_iid,
    split_rows,
)
from fedkern_flwr.tables.table import Table


def table(rows: int, site: Any = None) -> Table:
    rng = np.random.default_rng(0)
    return Table(
        rng.normal(size=(rows, 2)),
        np.arange(rows, dtype=np.float64) % 3,
        ("a", "b"),
        "y",
        site=site,
    )


def assert_disjoint(parts: Sequence[NDArray[np.intp]], rows: int) -> None:
    together = np.concatenate(parts)
    assert np.unique(together).size == together.size
    assert together.size == 0 or (together.min() >= 0 and together.max() < rows)
    assert all(part.dtype == np.intp for part in parts)


seeds = st.integers(0, 2**32 - 1)


@given(rows=st.integers(1, 200), clients=st.integers(1, 20), each=st.integers(1, 20), seed=seeds)
def test_iid_deals_all_rows_in_equal_parts_or_exact_counts(
    rows: int, clients: int, each: int, seed: int
) -> None:
    if rows < clients:
        with refused("FK-ROWS-FEW"):
            split_iid(rows, clients, seed)
        return
    parts = split_iid(rows, clients, seed)
    assert_disjoint(parts, rows)
    sizes = [part.size for part in parts]
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1
    if clients * each <= rows:
        parts = split_iid(rows, clients, seed, each)
        assert_disjoint(parts, rows)
        assert [part.size for part in parts] == [each] * clients


@given(
    sites=st.lists(st.integers(0, 4), min_size=50, max_size=200),
    clients=st.integers(1, 8),
    seed=seeds,
)
def test_own_site_rows_are_sorted_and_all_dealt(sites: list[int], clients: int, seed: int) -> None:
    site = np.array([*range(5), *range(5), *sites])  # every site has two clients' rows
    parts = split_by_site(site, clients, seed)
    assert_disjoint(parts, site.size)
    for k, part in enumerate(parts):
        assert set(site[part]) == {k % 5}
        assert (np.diff(part) > 0).all()
    assert sum(part.size for part in parts) == np.isin(site, np.arange(min(clients, 5))).sum()


@given(
    clients=st.integers(1, 8),
    each=st.integers(1, 60),
    own_share=st.floats(0, 1),
    sites=st.integers(2, 5),
    seed=seeds,
)
def test_mixed_sites_have_exact_counts(
    clients: int, each: int, own_share: float, sites: int, seed: int
) -> None:
    site = np.tile(np.arange(sites), 8 * 60)
    parts = split_by_site(site, clients, seed, each, own_share)
    assert_disjoint(parts, site.size)
    for k, part in enumerate(parts):
        assert part.size == each
        counts = np.bincount(site[part], minlength=sites)
        quotas = np.full(sites, (1 - own_share) * each / (sites - 1))
        quotas[k % sites] = own_share * each
        assert (np.abs(counts - quotas) < 1 + 1e-6).all()


@given(
    labels=st.lists(st.integers(0, 5), min_size=40, max_size=120),
    clients=st.integers(1, 8),
    each=st.integers(1, 5),
    alpha=st.floats(0.01, 100),
    seed=seeds,
)
def test_dirichlet_has_exact_counts(
    labels: list[int], clients: int, each: int, alpha: float, seed: int
) -> None:
    y = np.array(labels, dtype=np.float64)
    parts = split_dirichlet(y, clients, seed, each, alpha)
    assert_disjoint(parts, y.size)
    assert [part.size for part in parts] == [each] * clients
    everything = split_dirichlet(y, clients, seed, alpha=alpha)
    assert_disjoint(everything, y.size)
    assert sum(part.size for part in everything) == y.size
    assert min(part.size for part in everything) >= 1


def test_dirichlet_uses_every_row_and_leaves_no_client_empty() -> None:
    parts = split_dirichlet(np.arange(100) % 7, 10, 3, rows_per_client=10, alpha=0.1)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(100))
    assert [part.size for part in split_dirichlet(np.zeros(12), 12, 0, alpha=0.01)] == [1] * 12
    y = np.random.default_rng(0).normal(size=2000)  # many labels are split by quantiles
    parts = split_dirichlet(y, 5, 1, 100, alpha=0.05)
    assert np.mean([y[part].std() for part in parts]) < 0.8 * y.std()


def test_small_alpha_skews_the_labels_and_large_alpha_does_not() -> None:
    y = np.repeat(np.arange(5.0), 400)
    largest = {}
    for alpha in (0.05, 1000.0):
        parts = split_dirichlet(y, 5, 1, 100, alpha)
        shares = [np.bincount(y[part].astype(int), minlength=5).max() / 100 for part in parts]
        largest[alpha] = np.mean(shares)
    assert largest[0.05] > 0.6
    assert largest[1000.0] < 0.35


@pytest.mark.parametrize("kind", ["iid", "site", "dirichlet"])
def test_the_seed_decides(kind: Any) -> None:
    data = table(400, np.arange(400) % 4)
    first, again, other = (split_rows(data, kind, 4, seed, 20) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any((a != b).any() for a, b in zip(first, other, strict=True))


SITES = {"site": np.repeat([0, 1], [100, 50])}


@pytest.mark.parametrize(
    ("kind", "options", "data", "code"),
    [
        ("iid", {"clients": 10, "rows_per_client": 50}, {}, "FK-ROWS-FEW"),
        ("dirichlet", {"clients": 151}, {}, "FK-ROWS-FEW"),
        ("site", {"clients": 2, "rows_per_client": 60}, SITES, "FK-ROWS-FEW"),
        ("site", {"clients": 104}, SITES, "FK-ROWS-FEW"),
        ("site", {"rows_per_client": 75, "own_share": 0.5, "clients": 2}, SITES, "FK-ROWS-FEW"),
        ("site", {}, {}, "FK-COLUMN-UNNAMED"),
        ("dirichlet", {}, {"y": None}, "FK-LABELS-MISSING"),
        ("site", {"rows_per_client": 2, "own_share": 0.5}, {"site": [0] * 150}, "FK-SPLIT-ONE"),
        ("site", {"own_share": 0.5}, SITES, "FK-OPTION-PARTNER"),
        ("site", {"own_share": 1.5}, SITES, "FK-OPTION-RANGE"),
        ("iid", {"clients": 0}, {}, "FK-OPTION-RANGE"),
        ("iid", {"rows_per_client": 0}, {}, "FK-OPTION-RANGE"),
        ("dirichlet", {"alpha": 0.0}, {}, "FK-OPTION-RANGE"),
        ("random", {}, {}, "FK-OPTION-CHOICE"),
    ],
)
def test_what_cannot_be_dealt_is_refused(kind: Any, options: Any, data: Any, code: str) -> None:
    given = {name: None if value is None else np.asarray(value) for name, value in data.items()}
    with refused(code):
        split_rows(replace(table(150), **given), kind, **{"clients": 3, "seed": 0, **options})
