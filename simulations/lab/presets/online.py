"""Tables and figures of the paper on POF-MKL, and the online part of the demo."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...methods.online_data import DataSettings
from .base import Builder, Contender, Preset, Section, choose, data_file

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

_PAPER = {"step_size": "paper", "samples_per_round": 1}
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


def _data(datasets: tuple[str, ...]) -> dict[str, DataSettings]:
    """Return the settings of the paper's data sets, from the folder ``$FEDKERN_DATA``."""
    found = {}
    for name in choose(datasets, tuple(_PAPER_FILES)):
        file, settings = _PAPER_FILES[name]
        found[name] = DataSettings(data=data_file(file), rounds=500, **settings)
    return found


def _pof(kernels_per_round: int, features: int, **options: Any) -> dict[str, Any]:
    return {"kernels_per_round": kernels_per_round, "features": features, **options}


def _methods(options: dict[str, Any]) -> tuple[Contender, ...]:
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
        ("local only", "local-only", {k: v for k, v in options.items() if k == "step_size"}),
    )


def _errors(number: int, columns: tuple[str, ...], datasets: tuple[str, ...]) -> Preset:
    section = Section(
        _data(datasets),
        _methods(_PAPER),
        columns,
        ("mse", "bytes"),
        paper={d: {"mse": dict(zip(_LABELS, v, strict=True))} for d, v in _TABLE_1.items()},
        ranks=_RANKS,
    )
    return Preset(
        f"pof-mkl-table{number}",
        f"POF-MKL, Table {number}: mean squared error in paper mode",
        "Step sizes 1/sqrt(T), T = 500 samples per client, at most 1000 numbers sent per "
        "client and round. MSE is the mean over clients, rounds and feature draws.",
        (section,),
    )


def _regrets(datasets: tuple[str, ...]) -> Preset:
    paper = {d: {"regret": dict(zip(_LABELS[2:], v, strict=True))} for d, v in _TABLE_3.items()}
    section = Section(
        _data(datasets),
        tuple(e for e in _methods(_PAPER) if e[1] not in ("per-fed-avg", "ofskl")),
        ("regret",),
        ("regret",),
        paper=paper,
    )
    return Preset(
        "pof-mkl-table3",
        "POF-MKL, Table 3: regret of the clients in paper mode",
        "Squared error of a client's predictions above that of its best kernel in hindsight, "
        "after 500 samples; mean and standard deviation over clients.",
        (section,),
    )


def _regret_curves(datasets: tuple[str, ...]) -> Preset:
    kept = ("vM-KOFL", "POF-MKL (M=1, D=100)", "POF-MKL (M=25, D=20)", "POF-MKL (M=51, D=9)")
    entries = tuple(e for e in _methods(_PAPER) if e[0] in kept)
    return Preset(
        "pof-mkl-figure1",
        "POF-MKL, Figure 1: average regret of the clients over time in paper mode",
        "Regret divided by the number of samples so far; it falls when regret is sub-linear.",
        (Section(_data(datasets), entries, ("regret", "mse"), ("regret",)),),
        runs=5,
    )


def _exploration(datasets: tuple[str, ...]) -> Preset:
    kept = tuple(d for d in choose(datasets, tuple(_PAPER_FILES)) if d != "UJI") or datasets
    entries = tuple(
        (f"M={m}, D={d}, exploration {rate:g}", "pof-mkl", _pof(m, d, exploration=rate, **_PAPER))
        for m, d in ((1, 100), (25, 20))
        for rate in _EXPLORATIONS
    )
    return Preset(
        "pof-mkl-figure2",
        "POF-MKL, Figure 2: regret against the exploration rate in paper mode",
        "Exploration rate 1 chooses kernels uniformly, smaller ones by the client's weights.",
        (Section(_data(kept), entries, ("regret", "mse"), ("sweep",), sweep="exploration"),),
        runs=5,
    )


def _adaptive(datasets: tuple[str, ...]) -> Preset:
    columns = ("mse", "mse_std", "regret", "megabytes")
    return Preset(
        "pof-mkl-adaptive",
        "Online methods with adaptive step sizes",
        "The data of Table 1 with the defaults of this suite: AdaGrad-norm steps and AdaHedge "
        "weights; nothing is tuned.",
        (Section(_data(datasets), _methods({}), columns, ("mse", "regret")),),
    )


PRESETS: dict[str, Builder] = {
    "pof-mkl-table1": partial(_errors, 1, ("mse", "seconds", "megabytes")),
    "pof-mkl-table2": partial(_errors, 2, ("mse", "mse_std")),
    "pof-mkl-table3": _regrets,
    "pof-mkl-figure1": _regret_curves,
    "pof-mkl-figure2": _exploration,
    "pof-mkl-adaptive": _adaptive,
}


def weather() -> Section:
    """Return the online methods' part of the demo."""
    return Section(
        {"NYC weather": DataSettings(data="nyc-weather", clients=9, rounds=75, split="site")},
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
        title="Who predicts the weather of three airports best?",
        text="Hourly weather of the three New York airports in 2013: nine clients, three at each "
        "airport, keep their rows. Every method predicts the temperature of each hour before it "
        "learns it, in time order; only gradients are sent. Local only shows what a client "
        "reaches without the others.",
    )
