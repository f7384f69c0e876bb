"""Methods of different kinds on one task: the same rows held out, dealt to parties in two ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...methods.gram import GramSettings
from ...methods.groups import HierarchicalSettings
from ...methods.hybrid import HybridSettings
from ...methods.vertical import VerticalSettings
from ...run.data import Settings
from .base import Contender, Presets, Section, choose, data_file, is_there

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
_UNIFORM = {"landmarks": 200, "sampling": "U"}
_CHOSEN: dict[str, dict[str, Any]] = {
    name: {**_UNIFORM, "kernel": kernel, "gamma": gamma, "regularization": regularization}
    for name, kernel, gamma, regularization in (
        ("Breast cancer", "laplacian", 0.125, 0.1),
        ("Digits", "rbf", 0.125, 1e-4),
        ("Ionosphere", "laplacian", 0.0625, 0.1),
        ("Svmguide1", "rbf", 1.0, 1e-6),
    )
}

_GROUPED_SVM = {"architecture": "hierarchical", "C": 1.0}
_VERTICAL_SVM = {**_GROUPED_SVM, "partition": "vertical", "allow_single": True, "bound": 2.0**30}
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
_FED_CG, _FDSKL = "FedCG", "FDSKL, one-shot"
_SECURE_GRAM, _SVM = "Secure Gram + SVC", "HierarchicalSVM (linear)"


PRESETS = Presets()


def _data(name: str, **more: Any) -> dict[str, Any]:
    data = _SETS[name][0]
    path = data_file(data) if data.endswith(".npz") else data
    return {"data": path, "test_size": _SHARE, "resplit": True, **more}


def _kept(datasets: tuple[str, ...]) -> tuple[str, ...]:
    """Return the data sets asked for; else the built-in ones, and the others that are there."""
    files = {name: data for name, (data, _) in _SETS.items()}
    there = (name for name, data in files.items() if not data.endswith(".npz") or is_there(data))
    return choose(datasets, _SETS, there)


def _columns_apart(name: str, parties: int, **more: Any) -> dict[str, Settings]:
    """Return how parties with columns get their data, by method."""
    data = _data(name, **more)
    return {
        _FDSKL: VerticalSettings(**data, parties=parties),
        _SECURE_GRAM: GramSettings(**data, clients=parties),
        _SVM: HierarchicalSettings(**data, partition="vertical", users=parties, groups=parties),
    }


def _section(
    name: str,
    entries: tuple[Contender, ...],
    dealt: Mapping[str, Settings],
    parties: int,
    holders: str = "",
) -> Section:
    return Section(
        {name: VerticalSettings(**_data(name), parties=parties)},
        (*entries, *_POOLED),
        ("accuracy", "exchanges", "megabytes", "seconds", "plain"),
        ("errors-box", "bytes"),
        title=name,
        dealt={name: dealt},
        parties=holders,
    )


@PRESETS.each(
    "cross-vertical",
    "One task, four protocols: columns at four parties",
    "The columns of the same rows lie at four parties, one of which has the labels; 30 % of "
    "the rows are held out, others in every run. FedCG takes that party as its only hospital, "
    "so that the server reads K^T K of this one (--allow-single). Pooled models see "
    f"everything. {_BESIDES}",
    _kept,
    runs=_RUNS,
)
def _vertical(name: str) -> Section:
    single: dict[str, Any] = {"hospitals": 1, "centres": _PARTIES - 1, "allow_single": True}
    dealt = {_FED_CG: HybridSettings(**_data(name), **single), **_columns_apart(name, _PARTIES)}
    del dealt[_FDSKL]  # has its data as the section has
    entries: tuple[Contender, ...] = (
        (_FED_CG, "fed-cg", {"allow_single": True, **_CHOSEN[name]}),
        (_FDSKL, "fdskl", {"intercept": False}),
        (_SECURE_GRAM, "secure-gram", _GRAM),
        (_SVM, "hierarchical-svm", _VERTICAL_SVM),
    )
    return _section(name, entries, dealt, _PARTIES)


@PRESETS.each(
    "cross-hybrid",
    "One task, four protocols: rows at four hospitals, columns also at two centres",
    "A third of the columns lies at the hospitals, of their own patients, the others at two "
    "centres; 30 % of the rows are held out, others in every run. FedCG learns from all "
    "patients. Vertical methods serve one hospital and the centres: a quarter of the rows. "
    "HierarchicalSVM over all hospitals needs all columns at them: the centres give theirs "
    f"away. Pooled models see everything. {_BESIDES}",
    _kept,
    runs=_RUNS,
)
def _hybrid(name: str) -> Section:
    parties, rows = _CENTRES + 1, f"{_SVM}, columns given away"
    alone = _columns_apart(name, parties, train_rows=_SETS[name][1] // _HOSPITALS)
    fdskl, gram, svm = (f"{label}, one hospital" for label in alone)
    dealt = {
        _FED_CG: HybridSettings(**_data(name), hospitals=_HOSPITALS, centres=_CENTRES),
        **dict(zip((fdskl, gram, svm), alone.values(), strict=True)),
        rows: HierarchicalSettings(**_data(name), users=_HOSPITALS, groups=1),
    }
    entries: tuple[Contender, ...] = (
        (_FED_CG, "fed-cg", _CHOSEN[name]),
        (fdskl, "fdskl", {"intercept": False}),
        (gram, "secure-gram", _GRAM),
        (svm, "hierarchical-svm", _VERTICAL_SVM),
        (rows, "hierarchical-svm", _GROUPED_SVM),
    )
    who = f"{_HOSPITALS} hospitals and {_CENTRES} centres"
    return _section(name, entries, dealt, parties, holders=who)
