"""Dealing rows to simulated clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from refusals import refused

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.simulations.run.splits import (
    split_by_site,
    split_dirichlet,
    split_iid,
    split_rows,
)
from fedkern_flwr.tables.table import Table

SITE = np.repeat(["d", "b", "c", "a"], 1000)


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


@given(rows=st.integers(1, 200), clients=st.integers(1, 20), seed=seeds)
def test_iid_deals_all_rows_in_equal_parts(rows: int, clients: int, seed: int) -> None:
    if rows < clients:
        with pytest.raises(TableError):
            split_iid(rows, clients, seed)
        return
    parts = split_iid(rows, clients, seed)
    assert_disjoint(parts, rows)
    sizes = [part.size for part in parts]
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1


@given(clients=st.integers(1, 10), each=st.integers(1, 20), spare=st.integers(0, 20), seed=seeds)
def test_iid_deals_exact_counts(clients: int, each: int, spare: int, seed: int) -> None:
    rows = clients * each + spare
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


def test_dirichlet_can_use_every_row_exactly() -> None:
    parts = split_dirichlet(np.arange(100) % 7, 10, 3, rows_per_client=10, alpha=0.1)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(100))


def test_dirichlet_with_as_many_clients_as_rows_leaves_none_empty() -> None:
    parts = split_dirichlet(np.zeros(12), 12, 0, alpha=0.01)
    assert [part.size for part in parts] == [1] * 12


def test_small_alpha_skews_the_labels_and_large_alpha_does_not() -> None:
    y = np.repeat(np.arange(5.0), 400)
    largest = {}
    for alpha in (0.05, 1000.0):
        parts = split_dirichlet(y, 5, 1, 100, alpha)
        shares = [np.bincount(y[part].astype(int), minlength=5).max() / 100 for part in parts]
        largest[alpha] = np.mean(shares)
    assert largest[0.05] > 0.6
    assert largest[1000.0] < 0.35


def test_many_distinct_labels_are_split_by_quantile_bins() -> None:
    y = np.random.default_rng(0).normal(size=2000)
    parts = split_dirichlet(y, 5, 1, 100, alpha=0.05)
    spread = np.mean([y[part].std() for part in parts])
    assert spread < 0.8 * y.std()


def test_pof_mkl_air_has_350_own_rows_and_50_of_each_other_site() -> None:
    parts = split_by_site(SITE, 4, 7, rows_per_client=500, own_share=0.7)
    for own, part in zip("abcd", parts, strict=True):
        counts = {site: int((SITE[part] == site).sum()) for site in "abcd"}
        assert counts == {site: 350 if site == own else 50 for site in "abcd"}
        assert (np.diff(part) < 0).any()


def test_clients_are_assigned_to_sorted_sites_in_turn() -> None:
    parts = split_by_site(SITE, 6, 0, rows_per_client=10)
    assert [set(SITE[part].tolist()) for part in parts] == [{s} for s in "abcdab"]


@pytest.mark.parametrize("kind", ["iid", "site", "dirichlet"])
def test_the_seed_decides(kind: Any) -> None:
    data = table(400, np.arange(400) % 4)
    first, again, other = (split_rows(data, kind, 4, seed, 20) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any((a != b).any() for a, b in zip(first, other, strict=True))


def test_split_rows_passes_the_options_on() -> None:
    data = table(400, np.arange(400) % 4)
    assert data.site is not None
    assert data.y is not None
    mixed = split_rows(data, "site", 2, 5, 20, own_share=0.4)
    expected = split_by_site(data.site, 2, 5, 20, 0.4)
    assert all((a == b).all() for a, b in zip(mixed, expected, strict=True))
    skewed = split_rows(data, "dirichlet", 2, 5, 20, alpha=0.1)
    expected = split_dirichlet(data.y, 2, 5, 20, 0.1)
    assert all((a == b).all() for a, b in zip(skewed, expected, strict=True))


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (
            "iid",
            {"clients": 10, "rows_per_client": 50},
            "the data has 150 rows but 10 clients x 50 rows need 500; "
            "use fewer --clients or --rounds",
        ),
        (
            "dirichlet",
            {"clients": 151},
            "the data has 150 rows but 151 clients need 151; use fewer --clients",
        ),
        (
            "site",
            {"clients": 2, "rows_per_client": 60},
            "site 2 of 2 (sorted) has 50 rows but its clients need 60; "
            "use fewer --clients or --rounds",
        ),
        (
            "site",
            {"clients": 104},
            "site 2 of 2 (sorted) has 50 rows but its clients need 52; use fewer --clients",
        ),
        (
            "site",
            {"clients": 2, "rows_per_client": 75, "own_share": 0.5},
            "site 2 of 2 (sorted) has 50 rows but its clients need 74; "
            "use fewer --clients or --rounds",
        ),
    ],
)
def test_too_few_rows_gives_the_numbers_and_the_remedy(
    kind: Any, options: dict[str, Any], expected: str
) -> None:
    data = table(150, np.repeat([0, 1], [100, 50]))
    with pytest.raises(TableError) as caught:
        split_rows(data, kind, seed=0, **options)
    assert str(caught.value) == expected


def test_splits_need_what_they_split_by() -> None:
    data = Table(np.ones((9, 1)), None, ("a",))
    with refused("FK-COLUMN-UNNAMED"):
        split_rows(data, "site", 2, 0)
    with refused("FK-LABELS-MISSING"):
        split_rows(data, "dirichlet", 2, 0)
    with refused("FK-SPLIT-ONE"):
        split_by_site(np.zeros(9), 2, 0, 2, own_share=0.5)


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("iid", {"clients": 0}, "clients is 0; use at least 1"),
        ("iid", {"rows_per_client": 0}, "rows_per_client is 0; use at least 1"),
        ("site", {"own_share": 1.5}, "own_share is 1.5; choose a value from 0 to 1"),
        ("site", {"own_share": 0.5}, "own_share below 1 needs the number of rows per client"),
        ("dirichlet", {"alpha": 0.0}, "alpha is 0.0; choose a number above 0"),
        ("random", {}, "there is no split 'random'; choose iid, site or dirichlet"),
    ],
)
def test_impossible_options_are_refused(kind: Any, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        split_rows(table(90, np.arange(90) % 3), kind, **({"clients": 3, "seed": 0} | options))
