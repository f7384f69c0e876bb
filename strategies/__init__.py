"""Server side: one Flower ``Strategy`` subclass per method."""

from __future__ import annotations

from fedkern_flwr.strategy import PhaseStrategy
from fedkern_flwr.summing import SummingStrategy

from .alignment import AlignIds
from .average import OFSKL, OFMKLAvg
from .column_ranges import ColumnRanges
from .fdskl import FDSKL
from .fed_cfk import FedCFK
from .fed_cg import FedCG
from .hierarchical_svm import HierarchicalSVM
from .kernel_pca import KernelPCA
from .kofl import EMKOFL, VMKOFL
from .local_only import LocalOnly
from .per_fed_avg import PerFedAvg
from .pof_mkl import POFMKL
from .secure_gram import SecureGram

__all__ = [
    "EMKOFL",
    "FDSKL",
    "OFSKL",
    "POFMKL",
    "VMKOFL",
    "AlignIds",
    "ColumnRanges",
    "FedCFK",
    "FedCG",
    "HierarchicalSVM",
    "KernelPCA",
    "LocalOnly",
    "OFMKLAvg",
    "PerFedAvg",
    "PhaseStrategy",
    "SecureGram",
    "SummingStrategy",
]
