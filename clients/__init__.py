"""Client side: one Flower ``NumPyClient`` subclass per role."""

from __future__ import annotations

from .base import PhaseClient
from .gram import GramClient
from .hierarchical import SVMClient
from .hybrid import HybridKernelClient
from .online import OnlineKernelClient
from .serving import serve
from .vertical import VerticalKernelClient

__all__ = [
    "GramClient",
    "HybridKernelClient",
    "OnlineKernelClient",
    "PhaseClient",
    "SVMClient",
    "VerticalKernelClient",
    "serve",
]
