"""Client side: one Flower ``NumPyClient`` subclass per role."""

from __future__ import annotations

from .base import PhaseClient
from .hybrid import HybridKernelClient
from .online import OnlineKernelClient
from .vertical import VerticalKernelClient

__all__ = ["HybridKernelClient", "OnlineKernelClient", "PhaseClient", "VerticalKernelClient"]
