"""Attacks on what the server sees: the evidence for what secure sums protect."""

from __future__ import annotations

from .distances import DistanceRecovery, distances_by_quadric, distances_by_svd
from .edm_completion import (
    COMPLETIONS,
    Completion,
    alternating_descent,
    rank_alternation,
    reconstruction_errors,
    soft_impute,
)
from .errors import correlation, relative_error
from .gradient_inversion import Inversion, invert_gradient
from .gram import (
    Peeling,
    binary_vector,
    difference_profile,
    implied_items,
    peel_profiles,
    raised_items,
    rare_profiles,
    sparse_profile,
)
from .gram_rows import requested_items_auc, rows_by_known, rows_up_to_rotation
from .hybrid import HybridRun
from .hybrid_insiders import SERVER, Insider, Insiders, Matrix
from .hybrid_matrix import Finding, Score, attack_matrix, score
from .hybrid_rows import (
    gradient_of_others,
    gram_of_products,
    labels_of_residual,
    match_columns,
    row_of_gradient,
    rows_along_spread,
    rows_in_box,
)
from .membership import area_under_curve, leverage, membership
from .seen import MaskedVector
from .transcripts import (
    Observation,
    Recovery,
    attack_transcript,
    invert,
    invert_sum,
    observe,
)
from .trilateration import (
    Trilateration,
    distances_from_kernel,
    trilaterate,
    trilaterate_secret_widths,
    trilaterate_unknown_width,
)
from .vertical import Hop, OthersPhases, VerticalRun
from .vertical_inference import (
    RowsUpToMap,
    differences_of_phases,
    distances_of_phases,
    independent_columns,
    offsets_cancelled,
    row_differences,
    row_of_bounds,
    rows_of_known,
    rows_up_to_map,
    without_masks,
)
from .vertical_insiders import VerticalInsider, VerticalInsiders

__all__ = [
    "COMPLETIONS",
    "SERVER",
    "Completion",
    "DistanceRecovery",
    "Finding",
    "Hop",
    "HybridRun",
    "Insider",
    "Insiders",
    "Inversion",
    "MaskedVector",
    "Matrix",
    "Observation",
    "OthersPhases",
    "Peeling",
    "Recovery",
    "RowsUpToMap",
    "Score",
    "Trilateration",
    "VerticalInsider",
    "VerticalInsiders",
    "VerticalRun",
    "alternating_descent",
    "area_under_curve",
    "attack_matrix",
    "attack_transcript",
    "binary_vector",
    "correlation",
    "difference_profile",
    "differences_of_phases",
    "distances_by_quadric",
    "distances_by_svd",
    "distances_from_kernel",
    "distances_of_phases",
    "gradient_of_others",
    "gram_of_products",
    "implied_items",
    "independent_columns",
    "invert",
    "invert_gradient",
    "invert_sum",
    "labels_of_residual",
    "leverage",
    "match_columns",
    "membership",
    "observe",
    "offsets_cancelled",
    "peel_profiles",
    "raised_items",
    "rank_alternation",
    "rare_profiles",
    "reconstruction_errors",
    "relative_error",
    "requested_items_auc",
    "row_differences",
    "row_of_bounds",
    "row_of_gradient",
    "rows_along_spread",
    "rows_by_known",
    "rows_in_box",
    "rows_of_known",
    "rows_up_to_map",
    "rows_up_to_rotation",
    "score",
    "soft_impute",
    "sparse_profile",
    "trilaterate",
    "trilaterate_secret_widths",
    "trilaterate_unknown_width",
    "without_masks",
]
