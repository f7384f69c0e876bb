"""Engines: the same strategies and clients in process and on Flower's Ray engine."""

from __future__ import annotations

from .audit import Audit, AuditingGrid
from .faults import DropOut, Fault, FaultPlan, FaultyGrid
from .in_process import InProcessGrid, RecordingGrid, Transcript, TranscriptEntry
from .simulate import Engine, SimulationStep, simulate, simulate_all

__all__ = [
    "Audit",
    "AuditingGrid",
    "DropOut",
    "Engine",
    "Fault",
    "FaultPlan",
    "FaultyGrid",
    "InProcessGrid",
    "RecordingGrid",
    "SimulationStep",
    "Transcript",
    "TranscriptEntry",
    "simulate",
    "simulate_all",
]
