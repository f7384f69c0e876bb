"""Rows of clients: dealt to simulated ones, and of streams whose files grow."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from refusals import refused

from fedkern_flwr.online.source import FileSource, Place
from fedkern_flwr.simulations.run import splits
from fedkern_flwr.tables.table import Table


def table(rows: int, site: Any = None) -> Table:
    x = np.random.default_rng(0).normal(size=(rows, 2))
    return Table(x, np.arange(rows, dtype=np.float64) % 3, ("a", "b"), "y", site=site)


def assert_disjoint(parts: Sequence[NDArray[np.intp]], rows: int, whole: bool = False) -> None:
    together = np.concatenate(parts)
    assert np.unique(together).size == together.size
    assert together.size == 0 or (together.min() >= 0 and together.max() < rows)
    assert not whole or together.size == rows
    assert all(part.dtype == np.intp for part in parts)


seeds = st.integers(0, 2**32 - 1)


@given(rows=st.integers(1, 200), clients=st.integers(1, 20), each=st.integers(1, 20), seed=seeds)
def test_iid_deals_all_rows_in_equal_parts_or_exact_counts(
    rows: int, clients: int, each: int, seed: int
) -> None:
    with refused("FK-ROWS-FEW") if rows < clients else nullcontext():
        parts = splits.split_iid(rows, clients, seed)
        assert_disjoint(parts, rows, whole=True)
        assert np.ptp([part.size for part in parts]) <= 1
    if clients * each <= rows:
        parts = splits.split_iid(rows, clients, seed, each)
        assert_disjoint(parts, rows)
        assert [part.size for part in parts] == [each] * clients


@given(
    sites=st.lists(st.integers(0, 4), min_size=50, max_size=200),
    clients=st.integers(1, 8),
    seed=seeds,
)
def test_own_site_rows_are_sorted_and_all_dealt(sites: list[int], clients: int, seed: int) -> None:
    site = np.array([*range(5), *range(5), *sites])  # every site has two clients' rows
    parts = splits.split_by_site(site, clients, seed)
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
    parts = splits.split_by_site(site, clients, seed, each, own_share)
    assert_disjoint(parts, site.size)
    for k, part in enumerate(parts):
        assert part.size == each
        counts = np.bincount(site[part], minlength=sites)
        quotas = np.full(sites, (1 - own_share) * each / (sites - 1))
        quotas[k % sites] = own_share * each
        assert np.ptp(counts - quotas) < 1 + 1e-6  # the largest remainders are rounded up


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
    parts = splits.split_dirichlet(y, clients, seed, each, alpha)
    assert_disjoint(parts, y.size)
    assert [part.size for part in parts] == [each] * clients
    everything = splits.split_dirichlet(y, clients, seed, alpha=alpha)
    assert_disjoint(everything, y.size, whole=True)
    assert min(part.size for part in everything) >= 1


def test_dirichlet_uses_every_row_leaves_no_client_empty_and_skews_with_a_small_alpha() -> None:
    parts = splits.split_dirichlet(np.arange(100) % 7, 10, 3, rows_per_client=10, alpha=0.1)
    assert_disjoint(parts, 100, whole=True)
    assert [part.size for part in splits.split_dirichlet(np.zeros(12), 12, 0, alpha=0.01)] == [
        1
    ] * 12
    y = np.random.default_rng(0).normal(size=2000)  # many labels are split by quantiles
    parts = splits.split_dirichlet(y, 5, 1, 100, alpha=0.05)
    assert np.mean([y[part].std() for part in parts]) < 0.8 * y.std()
    y, largest = np.repeat(np.arange(5.0), 400), {}
    for alpha in (0.05, 1000.0):
        parts = splits.split_dirichlet(y, 5, 1, 100, alpha)
        shares = [np.bincount(y[part].astype(int), minlength=5).max() / 100 for part in parts]
        largest[alpha] = np.mean(shares)
    assert largest[0.05] > 0.6
    assert largest[1000.0] < 0.35


@pytest.mark.parametrize("kind", ["iid", "site", "dirichlet"])
def test_the_seed_decides(kind: Any) -> None:
    data = table(400, np.arange(400) % 4)
    first, again, other = (splits.split_rows(data, kind, 4, seed, 20) for seed in (1, 1, 2))
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
        splits.split_rows(
            replace(table(150), **given), kind, **{"clients": 3, "seed": 0, **options}
        )


# -- where the rows of a stream come from: files that grow, and lines that are none

NAMES = ("a", "b", "c", "d")


HEAD = ",".join([*NAMES, "y"]) + "\n"


def text_of(x: np.ndarray, y: np.ndarray) -> str:
    return HEAD + "".join(",".join(map(repr, row)) + "\n" for row in np.c_[x, y].tolist())


def source(path: Path, **how: Any) -> FileSource:
    return FileSource(path, "y", **{"follow": False, **how})


def test_a_line_counts_when_it_has_its_end(tmp_path: Path) -> None:
    path, x, y = tmp_path / "s.csv", np.arange(12.0).reshape(3, 4), np.arange(3.0)
    text = text_of(x, y)
    place, taken = Place(), 0
    for size in range(len(text) + 1):
        path.write_text(text[:size])
        if size < len(HEAD):
            with refused("FK-STREAM-EMPTY"):
                source(path).names(0.0)
            continue
        assert source(path).names(0.0) == NAMES
        found = source(path).take(place, 1, 0.0)
        assert len(found.y) == (text[:size].count("\n") - 1 - taken)
        if len(found.y):
            np.testing.assert_array_equal(found.x, x[taken : taken + 1])
            taken, place = taken + 1, found.place
    assert taken == 3
    assert not found.skipped


def test_rows_are_waited_for_and_no_longer_than_that(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text(text_of(np.zeros((1, 4)), np.zeros(1)))

    def later() -> None:
        time.sleep(0.3)
        with path.open("a") as file:
            file.write("1,1,1,1,1\n")

    writer = threading.Thread(target=later)
    writer.start()
    found = source(path, follow=True).take(Place(), 2, 20.0)
    writer.join()
    assert found.y.tolist() == [0.0, 1.0]
    began = time.monotonic()
    few = source(path, follow=True).take(found.place, 1, 0.3)
    assert 0.3 <= time.monotonic() - began < 5.0
    assert (len(few.y), few.ended) == (0, False)
    assert source(path).take(found.place, 1, 0.0).ended


def test_other_marks_and_separators(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text('time;a;"b, c";y\n07:00;1,5;true;2\n07:10;-;0;2\n07:20;2;false;-3,25\n')
    found = source(path, id_column="time", decimal=",", na="-").take(Place(), 9, 0.0)
    assert found.x.tolist() == [[1.5, 1.0], [2.0, 0.0]]
    assert (found.y.tolist(), found.ids) == ([2.0, -3.25], ["07:00", "07:20"])
    with path.open("a") as file:
        file.write("07:30;1;1;1\n07:30;2;0;2\n;3;1;3\n")
    more = source(path, id_column="time", decimal=",").take(found.place, 9, 0.0)
    assert (more.ids, more.y.tolist(), more.skipped.total()) == (["07:30"], [1.0], 2)
    some = source(path, id_column="time", decimal=",", columns=("b, c",))
    assert some.take(Place(), 1, 0.0).x.tolist() == [[1.0]]
    with refused("FK-COLUMN-MISSING"):
        source(path, columns=("z",)).names(0.0)


def test_another_file_in_its_place_is_read_from_its_beginning(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "s.csv"
    x = rng.random((6, 4))
    path.write_text(text_of(x[:4], np.arange(4.0)))
    found = source(path).take(Place(), 3, 0.0)
    path.write_text(text_of(x[4:], np.arange(2.0)))
    other = source(path).take(found.place, 9, 0.0)
    assert other.anew
    np.testing.assert_array_equal(other.x, x[4:])
    assert not source(path).take(other.place, 1, 0.0).anew
