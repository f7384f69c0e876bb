"""Attacks on what the server sees: the evidence for what secure sums protect."""

from __future__ import annotations

from .gradient_inversion import Inversion, invert_gradient
from .transcripts import (
    Observation,
    Recovery,
    attack_transcript,
    invert,
    invert_sum,
    observe,
)

__all__ = [
    "Inversion",
    "Observation",
    "Recovery",
    "attack_transcript",
    "invert",
    "invert_gradient",
    "invert_sum",
    "observe",
]
