"""Attacks on what the server sees: the evidence for what secure sums protect."""

from __future__ import annotations

from .distances import (
    DistanceRecovery,
    Trilateration,
    correlation,
    distances_by_quadric,
    distances_by_svd,
    distances_from_kernel,
    relative_error,
    trilaterate,
    trilaterate_secret_widths,
    trilaterate_unknown_width,
)
from .edm_completion import (
    COMPLETIONS,
    Completion,
    alternating_descent,
    rank_alternation,
    reconstruction_errors,
    soft_impute,
)
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
    "COMPLETIONS",
    "Completion",
    "DistanceRecovery",
    "Inversion",
    "Observation",
    "Recovery",
    "Trilateration",
    "alternating_descent",
    "attack_transcript",
    "correlation",
    "distances_by_quadric",
    "distances_by_svd",
    "distances_from_kernel",
    "invert",
    "invert_gradient",
    "invert_sum",
    "observe",
    "rank_alternation",
    "reconstruction_errors",
    "relative_error",
    "soft_impute",
    "trilaterate",
    "trilaterate_secret_widths",
    "trilaterate_unknown_width",
]
