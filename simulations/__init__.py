"""Engines, data sets, the comparison runner and the command line."""

from __future__ import annotations

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
