"""Figures and Table 4 of the paper on FDSKL with the data at hand, and its part of the demo.

The paper's runs stop where its curves end and it gives no widths; ours are chosen by
cross-validation at the active party, or (streaming, DSG) once from one-shot's choice. PP-SVMV is
Secure Gram with a support vector machine: the exact kernel by secure sums, LIBSVM on it. Its matrix
holds the held-out rows as well, so on a9a, whose test rows alone are 16,281, it is left out.
"""

from __future__ import annotations

from typing import Any

from ...methods.gram_data import GramSettings
from ...methods.vertical_data import VerticalSettings
from .base import Builder, Contender, Preset, Section, choose, data_file

# name -> (data, settings, width of streaming and DSG)
_SETS: dict[str, tuple[str, dict[str, Any], float]] = {
    "Phishing": ("phishing.npz", {}, 0.06),
    "a9a": ("a9a.npz", {"train_rows": 10000}, 0.03),
    "svmguide1": ("svmguide1.npz", {}, 16.0),
}
_ONE_SHOT, _STREAMING = "FDSKL, one-shot", "FDSKL, streaming"
_SVC, _BOOSTING = "LIBSVM, pooled", "boosting, pooled"
_PP_SVMV = "PP-SVMV (Secure Gram)"
_ROUNDS, _PARTIES = 500, 4
_TOO_LARGE = frozenset({"a9a"})

# Table 4: data set -> minutes of FDSKL and of SecureBoost, on 24 cores
_MINUTES = {"Phishing": (1.0, 10.0), "a9a": (2.0, 15.0)}


def _settings(dataset: str, **more: Any) -> VerticalSettings:
    data, own, _ = _SETS[dataset]
    return VerticalSettings(data=data_file(data), **{**own, **more})


def _streamed(dataset: str, **more: Any) -> dict[str, Any]:
    return {"schedule": "streaming", "gamma": _SETS[dataset][2], **more}


def _dsg(dataset: str) -> Contender:
    options = {"rounds": _ROUNDS, "loss": "smooth-hinge", "step": 2.0, "gamma": _SETS[dataset][2]}
    return ("DSG, pooled", "dsg", options)


def _pp_svmv(dataset: str, **options: Any) -> tuple[Contender, ...]:
    """Return PP-SVMV, where its matrix fits."""
    if dataset in _TOO_LARGE:
        return ()
    return ((_PP_SVMV, "secure-gram", {"encoding": "fixed-point", "kernel": "rbf", **options}),)


def _of_gram(dataset: str, **more: Any) -> dict[str, GramSettings]:
    """Return how PP-SVMV gets its data."""
    data, own, _ = _SETS[dataset]
    return {_PP_SVMV: GramSettings(data=data_file(data), clients=_PARTIES, **{**own, **more})}


def _error_time(datasets: tuple[str, ...]) -> Preset:
    return Preset(
        "fdskl-figure3",
        "FDSKL, Figure 3: test error against training time",
        "Four parties, one with labels. Streaming FDSKL and DSG on pooled data take the same "
        f"{_ROUNDS} steps (64 rows, 16 directions each); one-shot FDSKL and LIBSVM have one model "
        "at the end, after cross-validation.",
        tuple(
            Section(
                {name: _settings(name, rounds=_ROUNDS)},
                (
                    (_ONE_SHOT, "fdskl", {}),
                    (_STREAMING, "fdskl", _streamed(name, evaluate_every=50)),
                    _dsg(name),
                    (_SVC, "svc", {"max_rows": 10000}),
                    *_pp_svmv(name),
                ),
                ("accuracy", "seconds", "megabytes", "exchanges"),
                ("error-time",),
                title=name,
                dealt={name: _of_gram(name)},
            )
            for name in choose(datasets, tuple(_SETS))
        ),
        runs=1,
    )


def _topologies(datasets: tuple[str, ...]) -> Preset:
    name = choose(datasets, ("svmguide1", *_SETS))[0]
    shared: dict[str, Any] = {"gamma": _SETS[name][2], "features": 500}
    return Preset(
        "fdskl-figure4",
        "FDSKL, Figure 4: star, ring and tree",
        "The same model by the masked star and by the paper's two trees, whose real-valued masks "
        "give data away. The figure shows link times by the formulas of lab/links.py (1 ms, "
        "100 Mbit/s, sends serialised per node) for 4 to 64 parties.",
        tuple(
            Section(
                {f"{name}, {parties} parties": _settings(name, parties=parties)},
                (
                    ("star, masked", "fdskl", shared),
                    ("two trees", "fdskl", {**shared, "topology": "tree"}),
                ),
                ("accuracy", "difference", "exchanges", "megabytes", "seconds"),
                ("topologies",) if parties == 4 else (),
                title=f"{parties} parties",
            )
            for parties in (3, 4)
        ),
        runs=1,
    )


def _scaling(datasets: tuple[str, ...]) -> Preset:
    name = choose(datasets, ("a9a",))[0]
    fixed = {"gamma": _SETS[name][2], "regularization": 1e-4}
    return Preset(
        "fdskl-figure5",
        "FDSKL, Figure 5: training time against the number of rows",
        "Widths and regularization are given, so that nothing but the solution is timed. PP-SVMV, "
        "the exact kernel by secure sums and LIBSVM on it, is shown on the smaller table: its "
        "matrix grows with the square of all rows, 25 % held-out ones included.",
        (
            *(_growing_matrix(),) * (not datasets),
            Section(
                {
                    f"{name}, {rows} rows": _settings(name, train_rows=rows)
                    for rows in (1000, 2000, 4000, 8000, 16000, 32000)
                },
                (
                    (_ONE_SHOT, "fdskl", fixed),
                    (f"{_ONE_SHOT}, square", "fdskl", {**fixed, "loss": "square"}),
                    (_SVC, "svc", {"C": 1.0, "gamma": _SETS[name][2]}),
                ),
                ("accuracy", "seconds", "megabytes"),
                (),
                across=("time-size",),
            ),
        ),
        runs=1,
    )


def _growing_matrix() -> Section:
    """Return FDSKL and PP-SVMV on growing parts of Phishing."""
    sizes = {f"Phishing, {rows} rows": rows for rows in (500, 1000, 2000, 4000, 8000)}
    width = _SETS["Phishing"][2]
    (machine,) = _pp_svmv("Phishing", gamma=width)
    return Section(
        {
            name: _settings("Phishing", train_rows=rows, resplit=True)
            for name, rows in sizes.items()
        },
        (
            (_ONE_SHOT, "fdskl", {"gamma": width, "regularization": 1e-4}),
            machine,
            (_SVC, "svc", {"C": 1.0, "gamma": width}),
        ),
        ("accuracy", "seconds", "megabytes"),
        (),
        title="Phishing",
        across=("time-size",),
        dealt={
            name: _of_gram("Phishing", train_rows=rows, resplit=True)
            for name, rows in sizes.items()
        },
    )


def _errors(datasets: tuple[str, ...]) -> Preset:
    return Preset(
        "fdskl-figure6",
        "FDSKL, Figure 6: test errors of ten splits",
        "Ten random 3:1 splits, new directions for each. Linear: a sum of a part per "
        "party (the role of FD-SVRG). Boosting of trees stands for SecureBoost. PP-SVMV: the exact "
        "kernel by secure sums and LIBSVM on it.",
        tuple(
            Section(
                {name: _settings(name, resplit=True, rounds=_ROUNDS)},
                (
                    (_ONE_SHOT, "fdskl", {}),
                    (_STREAMING, "fdskl", _streamed(name)),
                    _dsg(name),
                    (_SVC, "svc", {}),
                    ("linear, pooled", "linear", {}),
                    (_BOOSTING, "boosting", {}),
                    *_pp_svmv(name),
                ),
                ("accuracy", "difference", "seconds", "megabytes", "exchanges"),
                ("errors-box",),
                title=name,
                dealt={name: _of_gram(name, resplit=True)},
            )
            for name in choose(datasets, tuple(_SETS))
        ),
        runs=10,
    )


def _minutes(datasets: tuple[str, ...]) -> Preset:
    return Preset(
        "fdskl-table4",
        "FDSKL, Table 4: total training time",
        "Minutes beside the paper's, which were measured on 24 cores and with SecureBoost over a "
        "network, where ours is boosting on pooled data.",
        tuple(
            Section(
                {name: _settings(name, train_rows=None)},
                ((_ONE_SHOT, "fdskl", {}), (_BOOSTING, "boosting", {})),
                ("minutes", "accuracy"),
                (),
                title=name,
                paper={
                    name: {
                        "minutes": dict(zip((_ONE_SHOT, _BOOSTING), _MINUTES[name], strict=True))
                    }
                },
            )
            for name in choose(datasets, tuple(_MINUTES))
        ),
        runs=1,
    )


def columns() -> Section:
    """Return FDSKL's part of the demo."""
    return Section(
        {"Tumours": VerticalSettings(data="breast-cancer", parties=4, rounds=40)},
        (
            (_ONE_SHOT, "fdskl", {"features": 1000}),
            (_STREAMING, "fdskl", {"schedule": "streaming", "gamma": 2.0}),
            (_SVC, "svc", {}),
            ("linear, pooled", "linear", {}),
        ),
        ("accuracy", "difference", "exchanges", "megabytes", "seconds"),
        ("bytes",),
        title="Breast cancer again: the columns are spread over four parties, one has the labels",
        text="FDSKL trains a kernel model without showing a column. The party with the labels sees "
        "masked random phases only; one-shot it needs four exchanges.",
    )


PRESETS: dict[str, Builder] = {
    "fdskl-figure3": _error_time,
    "fdskl-figure4": _topologies,
    "fdskl-figure5": _scaling,
    "fdskl-figure6": _errors,
    "fdskl-table4": _minutes,
}
