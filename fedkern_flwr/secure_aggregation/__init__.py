"""Add secure aggregation to any Message API strategy and any ``ClientApp``.

On the server ``class Secure(SecureAggregation, FedAvg): pass``, on the nodes
``ClientApp(mods=[secure_aggregation_mod(load_examples)])``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .node import secure_aggregation_mod
    from .server import SecureAggregation

__all__ = ["SecureAggregation", "secure_aggregation_mod"]

_MODULES = {"SecureAggregation": "server", "secure_aggregation_mod": "node"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
