"""Federated kernel learning for Flower: the core shared by strategies, clients and simulations.

The server side lives in :mod:`fedkern_flwr.strategies`, the client side in
:mod:`fedkern_flwr.clients`, engines and the command line in :mod:`fedkern_flwr.simulations`.
"""

from __future__ import annotations

from .errors import (
    CheckpointError,
    ClientError,
    CohortError,
    EngineError,
    FedKernError,
    OptionError,
    ProtocolError,
    TableError,
)

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "ClientError",
    "CohortError",
    "EngineError",
    "FedKernError",
    "OptionError",
    "ProtocolError",
    "TableError",
    "__version__",
]
