"""Client side: one Flower ``NumPyClient`` subclass per role.

Modules are imported on first use: in a deployment every message may start a process.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkern_flwr.node.client import Client

    from .alignment import AlignmentClient
    from .column_ranges import RangesClient
    from .fdskl import VerticalKernelClient
    from .fed_cg import HybridKernelClient
    from .hierarchical_svm import SVMClient
    from .kernel_pca import KernelPCAClient
    from .pof_mkl import OnlineKernelClient
    from .secure_gram import GramClient
    from .serving import serve
    from .streaming import StreamClient
    from .summary import SummaryClient

__all__ = [
    "AlignmentClient",
    "Client",
    "GramClient",
    "HybridKernelClient",
    "KernelPCAClient",
    "OnlineKernelClient",
    "RangesClient",
    "SVMClient",
    "StreamClient",
    "SummaryClient",
    "VerticalKernelClient",
    "serve",
]

_MODULES = {
    "AlignmentClient": "alignment",
    "GramClient": "secure_gram",
    "HybridKernelClient": "fed_cg",
    "KernelPCAClient": "kernel_pca",
    "OnlineKernelClient": "pof_mkl",
    "Client": "fedkern_flwr.node.client",
    "RangesClient": "column_ranges",
    "SVMClient": "hierarchical_svm",
    "StreamClient": "streaming",
    "SummaryClient": "summary",
    "VerticalKernelClient": "fdskl",
    "serve": "serving",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    return getattr(import_module(module if "." in module else f".{module}", __name__), name)
