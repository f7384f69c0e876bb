"""Federated kernel learning for Flower: the core shared by strategies, clients and simulations.

Servers use :mod:`fedkern_flwr.strategies`, clients :mod:`fedkern_flwr.clients`, simulations and the
command line :mod:`fedkern_flwr.simulations`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import (
    CheckpointError,
    ClientError,
    CohortError,
    EngineError,
    FedKernError,
    OptionError,
    ProtocolError,
    StateError,
    SumError,
    TableError,
)

if TYPE_CHECKING:
    from .fitted import FittedModel, load_model
    from .wire.describe import check_app

__version__ = "0.2.0.dev0"  # the one place: pyproject.toml reads it

# In a checkout the other rooms are next to the core, not in it. A process that has the checkout
# first in its path (Ray's workers inherit the driver's working directory) finds them there.
_checkout = Path(__file__).parents[1]
if not Path(__path__[0], "strategies").exists() and (_checkout / "strategies").exists():
    __path__.append(str(_checkout))

__all__ = [
    "CheckpointError",
    "ClientError",
    "CohortError",
    "EngineError",
    "FedKernError",
    "FittedModel",
    "OptionError",
    "ProtocolError",
    "StateError",
    "SumError",
    "TableError",
    "__version__",
    "check_app",
    "load_model",
]


def __getattr__(name: str) -> Any:
    """Import lazily."""
    places = {"FittedModel": ".fitted", "load_model": ".fitted", "check_app": ".wire.describe"}
    if name not in places:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(places[name], __name__), name)
