"""Server side: one Flower ``Strategy`` subclass per method."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedkern_flwr.errors import log_in_one_line

if TYPE_CHECKING:
    from fedkern_flwr.method import Method

    from .alignment import AlignIds
    from .baselines import EMKOFL, OFSKL, VMKOFL, LocalOnly, OFMKLAvg, PerFedAvg
    from .column_ranges import ColumnRanges
    from .fdskl import FDSKL
    from .fed_cfk import FedCFK
    from .fed_cg import FedCG
    from .hierarchical_svm import HierarchicalSVM
    from .kernel_pca import KernelPCA
    from .pof_mkl import POFMKL
    from .pof_rls import POFRLS
    from .secure_gram import SecureGram
    from .summary import Summary

log_in_one_line()

__all__ = [
    "EMKOFL",
    "FDSKL",
    "OFSKL",
    "POFMKL",
    "POFRLS",
    "VMKOFL",
    "AlignIds",
    "ColumnRanges",
    "FedCFK",
    "FedCG",
    "HierarchicalSVM",
    "KernelPCA",
    "LocalOnly",
    "Method",
    "OFMKLAvg",
    "PerFedAvg",
    "SecureGram",
    "Summary",
]

# Imported on first use: a node finds the client of a registered method by its strategy, and needs
# no other.
_MODULES = {
    "EMKOFL": "baselines",
    "FDSKL": "fdskl",
    "OFSKL": "baselines",
    "POFMKL": "pof_mkl",
    "POFRLS": "pof_rls",
    "VMKOFL": "baselines",
    "AlignIds": "alignment",
    "ColumnRanges": "column_ranges",
    "FedCFK": "fed_cfk",
    "FedCG": "fed_cg",
    "HierarchicalSVM": "hierarchical_svm",
    "KernelPCA": "kernel_pca",
    "LocalOnly": "baselines",
    "OFMKLAvg": "baselines",
    "PerFedAvg": "baselines",
    "SecureGram": "secure_gram",
    "Summary": "summary",
    "Method": "fedkern_flwr.method",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    return getattr(import_module(module if "." in module else f".{module}", __name__), name)


def __dir__() -> list[str]:
    return __all__
