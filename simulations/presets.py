"""Presets of ``fedkern compare``: the demo, and the tables and figures of the papers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedkern_flwr.errors import TableError

from .experiment import DataSettings, Entry

DATA_FOLDER = "FEDKERN_DATA"

# Four stations as the four sites of the paper's Air experiment (Beijing, 12 stations in all).
_AIR_SITES = ("0", "1", "2", "3")

_PAPER_FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "Naval": ("naval.npz", {"target": "0", "clients": 23}),
    "UJI": ("ujiindoorloc.npz", {"label": "0", "clients": 39}),
    "Air": (
        "beijing_prsa.npz",
        {
            "missing": "drop-row",
            "sites": _AIR_SITES,
            "clients": 240,
            "split": "site",
            "site_share": 0.7,
        },
    ),
}

Column = Literal["mse", "mse_std", "regret", "seconds", "megabytes", "exchanges"]
Figure = Literal["regret", "mse", "bytes", "sweep"]


@dataclass(frozen=True)
class Preset:
    """A comparison with a name.

    Attributes
    ----------
    name, title, text : str
        Name on the command line, headline and explanation in the report.
    data : dict
        Name of the data set -> settings.
    entries : tuple of (label, method, options)
        What is compared.
    columns : tuple of str
        Columns of the table.
    figures : tuple of str
        Plots.
    runs : int
        Feature draws per entry.
    engine : str
        Default engine.
    paper : dict
        Figures of the paper: data set -> label -> (value, unit of the first column).
    sweep : str
        Option on the x axis of the plot ``sweep``.
    ranks : tuple of tuple of str
        Labels from the best to the worst as the paper has them, for paired differences.
    """

    name: str
    title: str
    text: str
    data: Mapping[str, DataSettings]
    entries: tuple[tuple[str, str, dict[str, Any]], ...]
    columns: tuple[Column, ...]
    figures: tuple[Figure, ...]
    runs: int = 20
    engine: Literal["in-process", "ray"] = "in-process"
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    sweep: str = ""
    ranks: tuple[tuple[str, ...], ...] = ()

    def fresh_entries(self) -> list[Entry]:
        """Return entries without results."""
        return [Entry(label, method, dict(options)) for label, method, options in self.entries]


def paper_data(name: str) -> DataSettings:
    """Return the settings of one of the paper's data sets, from the folder ``$FEDKERN_DATA``.

    Raises
    ------
    TableError
        The folder is not named or lacks the file.
    """
    file, settings = _PAPER_FILES[name]
    folder = os.environ.get(DATA_FOLDER)
    if not folder:
        raise TableError(
            f"{DATA_FOLDER} is not set", remedy=f"set it to the folder that holds {file}"
        )
    return DataSettings(data=str(Path(folder) / file), rounds=500, **settings)


_PAPER = {"step_size": "paper"}


def _pof(kernels_per_round: int, features: int, **options: Any) -> dict[str, Any]:
    return {"kernels_per_round": kernels_per_round, "features": features, **options}


def _methods(options: dict[str, Any]) -> tuple[tuple[str, str, dict[str, Any]], ...]:
    return (
        ("PerFedAvg", "per-fed-avg", options),
        ("OFSKL", "ofskl", options),
        ("OFMKL-Avg", "ofmkl-avg", options),
        ("vM-KOFL", "vm-kofl", options),
        ("vM-KOFL, summed", "vm-kofl", {**options, "loss_aggregation": "sum"}),
        ("eM-KOFL", "em-kofl", options),
        ("eM-KOFL, undivided", "em-kofl", {**options, "importance_weighting": False}),
        ("POF-MKL (M=1, D=100)", "pof-mkl", _pof(1, 100, **options)),
        ("POF-MKL (M=25, D=20)", "pof-mkl", _pof(25, 20, **options)),
        ("POF-MKL (M=51, D=9)", "pof-mkl", _pof(51, 9, **options)),
        ("local only", "local-only", options),
    )


_LABELS = (
    "PerFedAvg",
    "OFSKL",
    "OFMKL-Avg",
    "vM-KOFL",
    "eM-KOFL",
    "POF-MKL (M=1, D=100)",
    "POF-MKL (M=25, D=20)",
    "POF-MKL (M=51, D=9)",
)
_RANKS = (_LABELS[5:], ("vM-KOFL", "vM-KOFL, summed"), ("OFMKL-Avg",), ("OFSKL",))
_TABLE_1 = {
    "Naval": (118.60, 77.77, 33.25, 26.42, 28.64, 16.16, 16.82, 16.65),
    "UJI": (63.03, 61.82, 55.44, 51.50, 61.08, 33.02, 37.34, 41.00),
    "Air": (13.68, 13.65, 10.63, 10.58, 21.94, 9.27, 9.34, 9.38),
}
_TABLE_3 = {
    "Naval": (16.95, 13.40, 14.92, 8.33, 8.67, 8.55),
    "UJI": (24.23, 22.28, 27.26, 13.23, 15.41, 17.23),
    "Air": (3.05, 3.02, 8.53, 2.95, 2.98, 3.01),
}
_EXPLORATIONS = (0.1, 0.25, 0.5, 0.75, 1.0)

NAMES = (
    "demo",
    "pof-mkl-table1",
    "pof-mkl-table2",
    "pof-mkl-table3",
    "pof-mkl-figure1",
    "pof-mkl-figure2",
    "pof-mkl-adaptive",
)


def preset(name: str, datasets: tuple[str, ...] = ()) -> Preset:
    """Return a preset.

    Parameters
    ----------
    name : str
        One of :data:`NAMES`.
    datasets : tuple of str
        Data sets of the paper to keep; all when empty.
    """
    wanted = datasets or tuple(_PAPER_FILES)
    unknown = sorted(set(wanted) - set(_PAPER_FILES))
    if unknown:
        raise TableError(
            f"the presets have no data set {unknown[0]!r}",
            remedy=f"choose of {', '.join(_PAPER_FILES)}",
        )
    if name == "demo":
        if datasets:
            raise TableError("the demo has its own data", remedy="leave out --datasets")
        return _demo()
    if name == "pof-mkl-figure2":
        wanted = tuple(d for d in wanted if d != "UJI") or wanted
    data = {dataset: paper_data(dataset) for dataset in wanted}
    if name in ("pof-mkl-table1", "pof-mkl-table2"):
        number = name[-1]
        return Preset(
            name,
            f"POF-MKL, Table {number}: mean squared error in paper mode",
            "Step sizes 1/sqrt(T), T = 500 samples per client, at most 1000 numbers sent per "
            "client and round. MSE is the mean over clients, rounds and feature draws.",
            data,
            _methods(_PAPER),
            ("mse", "seconds", "megabytes") if number == "1" else ("mse", "mse_std"),
            ("mse", "bytes"),
            paper={d: dict(zip(_LABELS, v, strict=True)) for d, v in _TABLE_1.items()},
            ranks=_RANKS,
        )
    if name == "pof-mkl-table3":
        return Preset(
            name,
            "POF-MKL, Table 3: regret of the clients in paper mode",
            "Squared error of a client's predictions above that of its best kernel in hindsight, "
            "after 500 samples; mean and standard deviation over clients.",
            data,
            tuple(e for e in _methods(_PAPER) if e[1] not in ("per-fed-avg", "ofskl")),
            ("regret",),
            ("regret",),
            paper={d: dict(zip(_LABELS[2:], v, strict=True)) for d, v in _TABLE_3.items()},
        )
    if name == "pof-mkl-figure1":
        kept = ("vM-KOFL", "POF-MKL (M=1, D=100)", "POF-MKL (M=25, D=20)", "POF-MKL (M=51, D=9)")
        return Preset(
            name,
            "POF-MKL, Figure 1: average regret of the clients over time in paper mode",
            "Regret divided by the number of samples so far; it falls when regret is sub-linear.",
            data,
            tuple(e for e in _methods(_PAPER) if e[0] in kept),
            ("regret", "mse"),
            ("regret",),
            runs=5,
        )
    if name == "pof-mkl-figure2":
        return Preset(
            name,
            "POF-MKL, Figure 2: regret against the exploration rate in paper mode",
            "Exploration rate 1 chooses kernels uniformly, smaller ones by the client's weights.",
            data,
            tuple(
                (
                    f"M={m}, D={d}, exploration {rate:g}",
                    "pof-mkl",
                    _pof(m, d, exploration=rate, **_PAPER),
                )
                for m, d in ((1, 100), (25, 20))
                for rate in _EXPLORATIONS
            ),
            ("regret", "mse"),
            ("sweep",),
            runs=5,
            sweep="exploration",
        )
    if name == "pof-mkl-adaptive":
        return Preset(
            name,
            "Online methods with adaptive step sizes",
            "The data of Table 1 with the defaults of this suite: AdaGrad-norm steps and AdaHedge "
            "weights; nothing is tuned.",
            data,
            _methods({}),
            ("mse", "mse_std", "regret", "megabytes"),
            ("mse", "regret"),
        )
    raise TableError(f"there is no preset {name!r}", remedy=f"choose of {', '.join(NAMES)}")


def _demo() -> Preset:
    return Preset(
        "demo",
        "Who predicts the weather of three airports best, without pooling it?",
        "Hourly weather of the three New York airports in 2013: nine clients, three at each "
        "airport, keep their rows. Every method predicts the temperature of each hour before it "
        "learns it, in time order; only gradients are sent. Local only shows what a client "
        "reaches without the others.",
        {"NYC weather": DataSettings(data="nyc-weather", clients=9, rounds=100, split="site")},
        (
            ("POF-MKL", "pof-mkl", {}),
            ("vM-KOFL", "vm-kofl", {}),
            ("eM-KOFL", "em-kofl", {}),
            ("OFMKL-Avg", "ofmkl-avg", {}),
            ("OFSKL", "ofskl", {}),
            ("PerFedAvg", "per-fed-avg", {}),
            ("local only", "local-only", {}),
        ),
        ("mse", "regret", "exchanges", "megabytes", "seconds"),
        ("mse", "regret", "bytes"),
        runs=1,
        engine="ray",
    )
