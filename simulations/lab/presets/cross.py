"""Methods of different kinds on one task: the same rows held out, dealt to parties in two ways."""

from __future__ import annotations

from typing import Any

from fedkern_flwr.errors import TableError

from ...methods.gram_data import GramSettings
from ...methods.groups_settings import HierarchicalSettings
from ...methods.hybrid_data import HybridSettings
from ...methods.vertical_data import VerticalSettings
from .base import Builder, Contender, Preset, Section, choose, data_file

# name -> (data, training rows of a split)
_SETS = {
    "Breast cancer": ("breast-cancer", 398),
    "Digits": ("digits", 1258),
    "Ionosphere": ("ionosphere.npz", 246),
    "Svmguide1": ("svmguide1.npz", 3089),
}
_SHARE, _RUNS, _PARTIES = 0.3, 10, 4
_HOSPITALS, _CENTRES = 4, 2

# FedCG's kernel, width and lambda: best of Gaussian and Laplacian, 2^-7 to 1 (Svmguide1: Gaussian,
# 2^-8 to 2^3) and 1e-6 to 0.1 over ten (three) splits, 80:20, of the training rows of the first
# split; the other methods choose their own in every run.
_CHOSEN: dict[str, dict[str, Any]] = {
    name: {"landmarks": 200, "kernel": kernel, "gamma": gamma, "regularization": regularization}
    for name, kernel, gamma, regularization in (
        ("Breast cancer", "laplacian", 0.125, 0.1),
        ("Digits", "rbf", 0.125, 1e-4),
        ("Ionosphere", "laplacian", 0.0625, 0.1),
        ("Svmguide1", "rbf", 1.0, 1e-6),
    )
}

_VERTICAL_SVM = {"partition": "vertical", "allow_single": True, "bound": 2.0**30}
_GRAM = {"encoding": "fixed-point", "kernel": "rbf"}
_POOLED: tuple[Contender, ...] = (
    ("SVC, pooled", "svc", {}),
    ("kernel ridge, pooled", "kernel-ridge", {}),
    ("linear, pooled", "linear", {}),
)
_BESIDES = (
    "FedCG's kernel, width and lambda were chosen once, on the training rows of the first split, "
    "which are in part held out in the others; the other methods choose theirs within each split. "
    "HierarchicalSVM has one user a group where columns are split, and needs --allow-single for "
    "that. Besides what stands under plain, the server opens what was summed: FedCG's normal "
    "equations, the whole Gram matrix of Secure Gram, which is the instances up to a rotation, and "
    "the model of HierarchicalSVM where users have rows."
)
_COLUMNS = ("accuracy", "exchanges", "megabytes", "seconds", "plain")
_FED_CG, _FDSKL = "FedCG", "FDSKL, one-shot"
_SECURE_GRAM, _SVM = "Secure Gram + SVC", "HierarchicalSVM (linear)"


def _data(name: str, **more: Any) -> dict[str, Any]:
    data = _SETS[name][0]
    path = data_file(data) if data.endswith(".npz") else data
    return {"data": path, "test_size": _SHARE, "resplit": True, **more}


def _kept(datasets: tuple[str, ...]) -> list[str]:
    """Return the data sets asked for; else the built-in ones, and the others that are there."""
    kept = []
    for name in choose(datasets, tuple(_SETS)):
        try:
            _data(name)
        except TableError:
            if datasets:
                raise
            continue
        kept.append(name)
    return kept


def _vertical(datasets: tuple[str, ...]) -> Preset:
    return Preset(
        "cross-vertical",
        "One task, four protocols: columns at four parties",
        "The columns of the same rows lie at four parties, one of which has the labels; 30 % of "
        "the rows are held out, others in every run. FedCG takes that party as its only hospital, "
        "so that the server reads K^T K of this one (--allow-single). Pooled models see "
        f"everything. {_BESIDES}",
        tuple(
            Section(
                {name: VerticalSettings(**_data(name), parties=_PARTIES)},
                (
                    (_FED_CG, "fed-cg", {"allow_single": True, **_CHOSEN[name]}),
                    (_FDSKL, "fdskl", {}),
                    (_SECURE_GRAM, "secure-gram", _GRAM),
                    (_SVM, "hierarchical-svm", _VERTICAL_SVM),
                    *_POOLED,
                ),
                _COLUMNS,
                ("errors-box", "bytes"),
                title=name,
                dealt={
                    name: {
                        _FED_CG: HybridSettings(
                            **_data(name), hospitals=1, centres=_PARTIES - 1, allow_single=True
                        ),
                        _SECURE_GRAM: GramSettings(**_data(name), clients=_PARTIES),
                        _SVM: HierarchicalSettings(
                            **_data(name), partition="vertical", users=_PARTIES, groups=_PARTIES
                        ),
                    }
                },
            )
            for name in _kept(datasets)
        ),
        runs=_RUNS,
    )


def _hybrid(datasets: tuple[str, ...]) -> Preset:
    parties = _CENTRES + 1
    alone = f"{_FDSKL}, one hospital"
    gram, svm = f"{_SECURE_GRAM}, one hospital", f"{_SVM}, one hospital"
    rows = f"{_SVM}, columns given away"
    return Preset(
        "cross-hybrid",
        "One task, four protocols: rows at four hospitals, columns also at two centres",
        "A third of the columns lies at the hospitals, of their own patients, the others at two "
        "centres; 30 % of the rows are held out, others in every run. FedCG learns from all "
        "patients. Vertical methods serve one hospital and the centres: a quarter of the rows. "
        "HierarchicalSVM over all hospitals needs all columns at them: the centres give theirs "
        f"away. Pooled models see everything. {_BESIDES}",
        tuple(
            Section(
                {name: VerticalSettings(**_data(name), parties=parties)},
                (
                    (_FED_CG, "fed-cg", _CHOSEN[name]),
                    (alone, "fdskl", {}),
                    (gram, "secure-gram", _GRAM),
                    (svm, "hierarchical-svm", _VERTICAL_SVM),
                    (rows, "hierarchical-svm", {}),
                    *_POOLED,
                ),
                _COLUMNS,
                ("errors-box", "bytes"),
                title=name,
                parties=f"{_HOSPITALS} hospitals and {_CENTRES} centres",
                dealt={
                    name: {
                        _FED_CG: HybridSettings(
                            **_data(name), hospitals=_HOSPITALS, centres=_CENTRES
                        ),
                        alone: VerticalSettings(
                            **_data(name, train_rows=_one_hospital(name)), parties=parties
                        ),
                        gram: GramSettings(
                            **_data(name, train_rows=_one_hospital(name)), clients=parties
                        ),
                        svm: HierarchicalSettings(
                            **_data(name, train_rows=_one_hospital(name)),
                            partition="vertical",
                            users=parties,
                            groups=parties,
                        ),
                        rows: HierarchicalSettings(**_data(name), users=_HOSPITALS, groups=1),
                    }
                },
            )
            for name in _kept(datasets)
        ),
        runs=_RUNS,
    )


def _one_hospital(name: str) -> int:
    return _SETS[name][1] // _HOSPITALS


PRESETS: dict[str, Builder] = {"cross-vertical": _vertical, "cross-hybrid": _hybrid}
