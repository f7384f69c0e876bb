"""What few rows have is in no sum of products of columns, and no count of names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversation import asked, forgetful
from zoo import WAYS

from fedkern_flwr import strategies
from fedkern_flwr.clients import fed_cg
from fedkern_flwr.encoding.categories import BUCKETS, HASHED, bucket_of, column_key
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.simulations.attacks.buckets import named_rows
from fedkern_flwr.strategies import column_ranges

SECRET = bytes(range(32))


def words(*columns: list[str]) -> list[dict[str, Any]]:
    """Return the tables of nodes that hold one column of text, with gaps, and one of numbers."""
    tables: list[dict[str, Any]] = []
    for k, column in enumerate(columns):
        known = sorted(set(column) - {""})
        codes = [known.index(one) if one else np.nan for one in column]
        x = np.column_stack([np.arange(len(column)) + k, codes])
        more = {"columns": ("a", "c"), "kinds": {"c": "category"}, "categories": {"c": known}}
        tables.append({"x": x, "category_key": SECRET, **more})
    return tables


def opened_counts(
    folder: Path, tables: Any, monkeypatch: Any, **options: Any
) -> tuple[Any, np.ndarray]:
    """Run ranges at guarded nodes; return the strategy and the counts that its server opens."""
    totals, read = [], column_ranges.read_fine

    def keep(total: Any, *more: Any) -> Any:
        rows = more[3]
        totals.append(np.rint(rows * total[2:]).astype(int))
        return read(total, *more)

    monkeypatch.setattr(column_ranges, "read_fine", keep)
    sites = WAYS["ranges, encoders"].sites(folder, guarded=True)
    sites.tables = tables
    strategy = sites.fit(**options).strategy
    return strategy, totals[0]


@pytest.mark.promise("rare-names")
def test_a_holder_of_the_key_finds_no_name_of_few_rows(tmp_path: Path, monkeypatch: Any) -> None:
    """He gives the key to the server, which tests a name: one patient's, and a frequent one."""
    common = ["flu"] * 20 + ["gout"] * 9
    columns = [*common, "Ada"], [*common, "Bob", *["rash"] * 4], [*common, "Eve", *["rash"] * 4]
    strategy, counts = opened_counts(tmp_path, words(*columns), monkeypatch)
    key = column_key(SECRET, "c")
    bucket = {name: bucket_of(key, name) for name in ("Ada", "Eve", "rash", "flu")}
    counts = counts[len(counts) - BUCKETS - 1 :]
    assert {name: counts[place] for name, place in bucket.items()} == {
        "Ada": 0, "Eve": 0, "rash": 0, "flu": 61  # Ada is counted as the most frequent one
    }  # fmt: skip
    assert counts[-1] == 10  # rare ones of the two nodes that have five rows of them
    assert not ((counts > 0) & (counts < 5)).any()
    (encoder,) = strategy.encoders_.values()
    assert encoder.columns[1].outputs == ("1[1]", "1[2]", "1[other]")


def test_columns_of_rare_names_alone_are_no_error(tmp_path: Path, monkeypatch: Any) -> None:
    names = iter(map(str, range(100)))
    few = [["one"] * 3 + [""] * 6] * 2 + [["two"] * 4 + [""] * 6]
    many = [[next(names) for _ in range(20)] for _ in range(3)]
    for k, columns in enumerate((few, many)):
        strategy, counts = opened_counts(tmp_path / str(k), words(*columns), monkeypatch)
        assert counts[len(counts) - BUCKETS - 1 :].nonzero()[0].tolist() == [BUCKETS] * k
        (encoder,) = strategy.encoders_.values()
        assert len(encoder.columns[1].outputs) == 0


@pytest.mark.promise("rare-differences")
def test_runs_differ_by_no_count_of_few_rows(tmp_path: Path, monkeypatch: Any) -> None:
    """A lot of new rows is large, and one of them alone may have a category, or none."""
    rows = ["flu"] * 40 + ["gout"] * 19
    key, found = column_key(SECRET, "c"), []
    lots = [[""], ["flu"] * 599 + ["gout"], ["flu"] * 590 + ["gout"] * 4 + ["rash"] * 4 + [""] * 2]
    for seed, lot in enumerate(lots):
        rows = rows + lot
        tables = words(rows, *[["flu"] * 40 + ["gout"] * 20] * 2)
        _, counts = opened_counts(tmp_path, tables, monkeypatch, seed=seed)
        counts = counts[len(counts) - BUCKETS - 1 :]
        assert sum(counts) == len(rows) + 120  # gaps of few rows are not told either
        places = [*(bucket_of(key, name) for name in ("flu", "gout", "rash")), BUCKETS]
        found.append(counts[places].tolist())
    assert found == [[121, 59, 0, 0], [721, 59, 0, 0], [1309, 64, 0, 7]]


def test_hashed_categories_are_counted_by_nobody(tmp_path: Path, monkeypatch: Any) -> None:
    """Not even frequent ones; a column of rare ones is encoded as well."""
    common, names = ["flu"] * 20 + ["gout"] * 9 + [""] * 6, iter(map(str, range(100)))
    many = [[next(names) for _ in range(20)] for _ in range(3)]
    for k, (columns, known) in enumerate((([common] * 3, 87), (many, 60))):
        plain, _ = opened_counts(tmp_path / f"plain-{k}", words(*columns), monkeypatch)
        strategy, counts = opened_counts(
            tmp_path / str(k), words(*columns), monkeypatch, categories="hashing"
        )
        assert counts[-1] == known
        privacy = [one.privacy()["sums"][-1]["numbers"] for one in (plain, strategy)]
        assert len(counts) < BUCKETS
        assert privacy[1] < privacy[0]
        (encoder,) = strategy.encoders_.values()
        assert sum(name.startswith("1[hash") for name in encoder.columns[1].outputs) == HASHED


def test_counts_name_blood_groups() -> None:
    """The secret hides no name that is known by its share; docs/security.md has the figures."""
    found = {
        rows: np.mean([named_rows(rows, seed) for seed in range(200)]) for rows in (1000, 10000)
    }
    assert 0.72 < found[1000] < 0.82
    assert 0.94 < found[10000] < 0.98


@pytest.mark.promise("rare-products")
@pytest.mark.parametrize("sampling", ["N", "C"])
def test_covariances_show_no_rare_value(tmp_path: Path, monkeypatch: Any, sampling: str) -> None:
    """The products of a column with a single 1 would be that patient's other columns."""
    opened, read = [], fed_cg.read_moments
    monkeypatch.setattr(fed_cg, "read_moments", lambda *one: opened.append(one[0]) or read(*one))
    sites = WAYS["fed-cg"].sites(tmp_path, guarded=True)
    for table in sites.tables[:3]:
        for name in ("x", "x_test"):
            table[name] = np.column_stack([table[name][:, 0], np.zeros(len(table[name]))])
    sites.tables[1]["x"][5, 1] = 1.0
    sites.fit(sampling=sampling)
    rows, first, rare, *products = opened[0]
    assert rows == 48.0
    assert (rare, *products[1:]) == (0.0,) * len(products)  # before, products[1] was x[5, 0]
    assert abs(first - sum(table["x"][:, 0].sum() for table in sites.tables[:3])) < 1e-6


def test_a_row_that_many_hospitals_name_is_one_row(monkeypatch: Any) -> None:
    """Else a value that one row has would be that of seven, and not rare."""
    one = asked("fed-cg, normal landmarks", "hybrid-moments at hospital: moments")
    one.client = forgetful(one.client)  # of sums of other tests
    summed, moments = [], fed_cg.moment_sums
    monkeypatch.setattr(
        fed_cg, "moment_sums", lambda x, *more: summed.append(x) or moments(x, *more)
    )
    assert one.try_out() == ("", False)
    own = next(rows for rows in one.request.rows if (rows >= 0).any())
    some, few = own[own >= 0][:5], len(one.request.hospitals)
    more = {"hospitals": np.arange(100, 106), "trains": np.full(6, 5), "starts": np.zeros(6)}
    more["stops"] = np.zeros(6)
    wide = {
        name: np.append(getattr(one.request, name), added).astype(np.int32)
        for name, added in more.items()
    }
    forged = replace(one.request, rows=(*one.request.rows, *[some] * 6), **wide)
    assert one.try_out(request=forged) == ("", False)
    assert len(forged.rows) == few + 6
    np.testing.assert_array_equal(*summed)


def test_sums_of_a_stream_show_no_row_with_a_rare_value(tmp_path: Path, monkeypatch: Any) -> None:
    opened, step = [], strategies.POFRLS.step

    def keep(self: Any, total: Any, answers: int) -> None:
        opened.append(total)
        step(self, total, answers)

    monkeypatch.setattr(strategies.POFRLS, "step", keep)
    policy = NodePolicy(allow_small_sums=True, min_own_rows=0)
    sites = WAYS["pof-rls, secure"].sites(tmp_path, guarded=True, policy=policy)
    for table in sites.tables:
        table["x"][:, 2] = 0.0
    sites.tables[1]["x"][9, 2] = 0.5
    sites.fit()
    assert abs(opened[-1][0]) > 0.1
    for total in opened:
        products = np.zeros((4, 4))
        products[np.triu_indices(4)] = total[:10]
        assert not products[:, 2].any()  # before, divided by products[2, 3] they were that row
