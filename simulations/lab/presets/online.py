"""Tables and figures of the paper on POF-MKL, and the online part of the demo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...methods.online_data import DataSettings
from .base import Contender, Presets, Section, choose, data_file, is_there

# Four stations as the four sites of the paper's Air experiment (Beijing, 12 stations in all).
_AIR = {"missing": "drop-row", "sites": ("0", "1", "2", "3"), "split": "site", "site_share": 0.7}
_PAPER_FILES: dict[str, dict[str, Any]] = {
    "Naval": {"data": "naval.npz", "target": "0", "clients": 23},
    "UJI": {"data": "ujiindoorloc.npz", "label": "0", "clients": 39},
    "Air": {"data": "beijing_prsa.npz", "clients": 240, **_AIR},
    "WEC": {"data": "wec.npz", "clients": 560, "split": "site", "site_share": 0.7},
}
_OPTIONAL = "WEC"

_PAPER = {"step_size": "paper", "samples_per_round": 1, "stop_diverged": False}
_SIZES = {f"POF-MKL (M={m}, D={d})": (m, d) for m, d in ((1, 100), (25, 20), (51, 9))}
_LABELS = ("PerFedAvg", "OFSKL", "OFMKL-Avg", "vM-KOFL", "eM-KOFL", *_SIZES)
_RANKS = (tuple(_SIZES), ("vM-KOFL", "vM-KOFL, summed"), ("OFMKL-Avg",), ("OFSKL",))
# data set -> a figure of each method
_TABLE_1 = {
    "Naval": (118.60, 77.77, 33.25, 26.42, 28.64, 16.16, 16.82, 16.65),
    "UJI": (63.03, 61.82, 55.44, 51.50, 61.08, 33.02, 37.34, 41.00),
    "Air": (13.68, 13.65, 10.63, 10.58, 21.94, 9.27, 9.34, 9.38),
    "WEC": (77.33, 87.87, 34.01, 25.17, 20.14, 11.44, 11.58, 11.97),
}
_SECONDS = {
    "Naval": (44.59, 0.07, 1.51, 2.01, 2.27, 1.22, 0.69, 0.82),
    "UJI": (41.67, 0.06, 1.73, 2.22, 10.13, 9.02, 2.29, 1.07),
    "Air": (37.40, 0.08, 0.91, 1.37, 1.45, 1.25, 0.63, 0.81),
    "WEC": (33.56, 0.06, 0.47, 0.67, 1.70, 1.10, 0.52, 0.65),
}
_DEVIATIONS = {  # Table 2, without PerFedAvg
    "Naval": (1.04, 1.46, 1.16, 1.32, 0.72, 0.74, 0.74),
    "UJI": (2.76, 2.48, 2.30, 2.73, 1.48, 1.67, 1.83),
    "Air": (0.61, 0.47, 0.47, 1.16, 0.41, 0.42, 0.42),
    "WEC": (3.93, 1.52, 1.12, 0.93, 0.52, 0.53, 0.55),
}
_TABLE_3 = {
    "Naval": (16.95, 13.40, 14.92, 8.33, 8.67, 8.55),
    "UJI": (24.23, 22.28, 27.26, 13.23, 15.41, 17.23),
    "Air": (3.05, 3.02, 8.53, 2.95, 2.98, 3.01),
    "WEC": (17.07, 12.65, 10.43, 6.37, 6.41, 6.51),
}
_TABLE_3_STD = {  # over clients
    "Naval": (0.39, 0.39, 0.65, 0.39, 0.39, 0.39),
    "UJI": (20.33, 15.56, 19.79, 8.80, 9.58, 10.07),
    "Air": (2.83, 2.79, 2.51, 2.08, 2.12, 2.15),
    "WEC": (14.52, 11.53, 8.28, 5.28, 5.39, 5.57),
}
_EXPLORATIONS = (0.1, 0.25, 0.5, 0.75, 1.0)

PRESETS = Presets()


def _data(datasets: tuple[str, ...]) -> dict[str, DataSettings]:
    """Return the settings of the paper's data sets, from the folder ``$FEDKERN_DATA``."""
    found = {}
    for name in choose(datasets, _PAPER_FILES, _usual()):
        settings = {"rounds": 500, **_PAPER_FILES[name]}
        found[name] = DataSettings(**{**settings, "data": data_file(settings["data"])})
    return found


def _usual(*without: str) -> list[str]:
    """Return the data sets of a preset: the paper's, WEC where the user has its file."""
    there = (n for n in _PAPER_FILES if n != _OPTIONAL or is_there(_PAPER_FILES[n]["data"]))
    return [name for name in there if name not in without]


def _pof(kernels_per_round: int, features: int, **options: Any) -> dict[str, Any]:
    return {"kernels_per_round": kernels_per_round, "features": features, **options}


def _ridges(experts: str) -> dict[str, Any]:
    """Return the options of a single learner of POF-RLS: plain recursive least squares."""
    return {"experts": experts, "forgetting": 1.0}


#: POF-RLS, and what any method should be compared with.
_SECOND_ORDER: tuple[Contender, ...] = (
    ("POF-RLS", "pof-rls", {}),
    ("local ridge", "pof-rls", _ridges("local-ridge")),
    ("local RFF-RLS", "pof-rls", _ridges("local-kernels")),
    ("global ridge", "pof-rls", _ridges("global-ridge")),
    ("global RFF-RLS", "pof-rls", _ridges("global-kernels")),
    ("MLP, federated gradients", "per-fed-avg", {"inner_step": 0.0}),
)


def _methods(options: dict[str, Any]) -> tuple[Contender, ...]:
    return (
        ("PerFedAvg", "per-fed-avg", options),
        ("OFSKL", "ofskl", options),
        ("OFMKL-Avg", "ofmkl-avg", options),
        ("vM-KOFL", "vm-kofl", options),
        ("vM-KOFL, summed", "vm-kofl", {**options, "loss_aggregation": "sum"}),
        ("eM-KOFL", "em-kofl", options),
        ("eM-KOFL, undivided", "em-kofl", {**options, "importance_weighting": False}),
        *((label, "pof-mkl", _pof(*size, **options)) for label, size in _SIZES.items()),
        ("local only", "local-only", {k: v for k, v in options.items() if k == "step_size"}),
    )


def _figures(
    tables: Mapping[str, Mapping[str, tuple[float, ...]]],
) -> dict[str, dict[str, dict[str, float]]]:
    """Return tables of the paper, by column, as sections have them; the last methods are named."""
    return {
        dataset: {
            column: dict(zip(_LABELS[-len(table[dataset]) :], table[dataset], strict=True))
            for column, table in tables.items()
        }
        for dataset in _PAPER_FILES
    }


def _errors(
    number: int, columns: tuple[str, ...], printed: Mapping[str, Mapping[str, tuple[float, ...]]]
) -> None:
    """Declare Table 1 or 2."""

    @PRESETS.add(
        f"pof-mkl-table{number}",
        f"POF-MKL, Table {number}: mean squared error in paper mode",
        "Step sizes 1/sqrt(T), T = 500 samples per client, at most 1000 numbers sent per "
        "client and round. MSE is the mean over clients, rounds and feature draws.",
    )
    def sections(datasets: tuple[str, ...]) -> list[Section]:
        paper, plots = _figures(printed), ("mse", "bytes")
        entries = _methods(_PAPER)
        return [Section(_data(datasets), entries, columns, plots, paper=paper, ranks=_RANKS)]


_errors(1, ("mse", "seconds", "megabytes"), {"mse": _TABLE_1, "seconds": _SECONDS})
_errors(2, ("mse", "mse_std"), {"mse": _TABLE_1, "mse_std": _DEVIATIONS})


@PRESETS.add(
    "pof-mkl-table3",
    "POF-MKL, Table 3: regret of the clients in paper mode",
    "Squared error of a client's predictions above that of its best kernel in hindsight, "
    "after 500 samples; mean and standard deviation over clients.",
)
def _regrets(datasets: tuple[str, ...]) -> list[Section]:
    entries = tuple(e for e in _methods(_PAPER) if e[1] not in ("per-fed-avg", "ofskl"))
    paper = _figures({"regret": _TABLE_3, "regret_std": _TABLE_3_STD})
    columns = ("regret", "regret_std")
    return [Section(_data(datasets), entries, columns, ("regret",), paper=paper)]


@PRESETS.add(
    "pof-mkl-figure1",
    "POF-MKL, Figure 1: average regret of the clients over time in paper mode",
    "Regret divided by the number of samples so far; it falls when regret is sub-linear.",
    runs=5,
)
def _regret_curves(datasets: tuple[str, ...]) -> list[Section]:
    entries = tuple(e for e in _methods(_PAPER) if e[0] in ("vM-KOFL", *_SIZES))
    return [Section(_data(datasets), entries, ("regret", "regret_std", "mse"), ("regret",))]


@PRESETS.add(
    "pof-mkl-figure2",
    "POF-MKL, Figure 2: regret against the exploration rate in paper mode",
    "Exploration rate 1 chooses kernels uniformly, smaller ones by the client's weights.",
    runs=5,
)
def _exploration(datasets: tuple[str, ...]) -> list[Section]:
    kept = choose(datasets, _PAPER_FILES, _usual("UJI"))
    entries = tuple(
        (f"M={m}, D={d}, exploration {rate:g}", "pof-mkl", _pof(m, d, exploration=rate, **_PAPER))
        for m, d in ((1, 100), (25, 20))
        for rate in _EXPLORATIONS
    )
    columns = ("regret", "regret_std", "mse")
    return [Section(_data(kept), entries, columns, ("sweep",), sweep="exploration")]


@PRESETS.add(
    "pof-mkl-adaptive",
    "Online methods with adaptive step sizes",
    "The data of Table 1 with the defaults of this suite: AdaGrad-norm steps and AdaHedge "
    "weights; nothing is tuned. POF-RLS and its single learners beside them: recursive least "
    "squares on columns (ridge) or random features (RFF-RLS), of each client alone (local, which "
    "sends nothing of its rows) or of all (global).",
)
def _adaptive(datasets: tuple[str, ...]) -> list[Section]:
    columns = ("mse", "mse_std", "regret", "regret_std", "megabytes")
    entries = (*_methods({}), *_SECOND_ORDER)
    return [Section(_data(datasets), entries, columns, ("mse", "regret"))]


def weather() -> Section:
    """Return the online methods' part of the demo."""
    return Section(
        {"NYC weather": DataSettings(data="nyc-weather", clients=9, rounds=100, split="site")},
        (
            ("POF-RLS", "pof-rls", {}),
            ("POF-MKL", "pof-mkl", {}),
            ("vM-KOFL", "vm-kofl", {}),
            ("eM-KOFL", "em-kofl", {}),
            ("OFMKL-Avg", "ofmkl-avg", {}),
            ("OFSKL", "ofskl", {}),
            ("PerFedAvg", "per-fed-avg", {}),
            ("MLP, federated gradients", "per-fed-avg", {"inner_step": 0.0}),
            ("global ridge", "pof-rls", _ridges("global-ridge")),
            ("local ridge", "pof-rls", _ridges("local-ridge")),
            ("local only", "local-only", {}),
        ),
        ("mse", "regret", "exchanges", "megabytes", "seconds"),
        ("mse", "regret", "bytes"),
        title="Who predicts the weather of three airports best?",
        text="Hourly weather of the three New York airports in 2013: nine clients, three at each "
        "airport, keep their rows. Every method predicts the temperature of each hour before it "
        "learns it, in time order. Gradients are sent, of POF-RLS and global ridge products of "
        "columns, and in this run the server reads those of each client; with secure sums it "
        "reads their sum. Local ridge and local only send nothing of their rows: they show what a "
        "client reaches without the others, by recursive least squares and by POF-MKL's steps.",
    )
