"""Engines, data sets, the comparison runner, the command line, and the Flower apps.

Engines are imported when they are asked for: in a deployment every message starts a process, and
the nodes of the apps need none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engines import (
        DropOut,
        Fault,
        FaultPlan,
        InProcessGrid,
        SimulationStep,
        Transcript,
        simulate,
        simulate_all,
    )

__all__ = [
    "DropOut",
    "Fault",
    "FaultPlan",
    "InProcessGrid",
    "SimulationStep",
    "Transcript",
    "simulate",
    "simulate_all",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import engines

    return getattr(engines, name)
