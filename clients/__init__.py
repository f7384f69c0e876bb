"""Client side: one Flower ``NumPyClient`` subclass per role."""

from __future__ import annotations

from .alignment import AlignmentClient
from .base import PhaseClient
from .column_ranges import RangesClient
from .gram import GramClient
from .hierarchical import SVMClient
from .hybrid import HybridKernelClient
from .online import OnlineKernelClient
from .serving import serve
from .vertical import VerticalKernelClient

__all__ = [
    "AlignmentClient",
    "GramClient",
    "HybridKernelClient",
    "OnlineKernelClient",
    "PhaseClient",
    "RangesClient",
    "SVMClient",
    "VerticalKernelClient",
    "serve",
]
