"""What a user gets: the best items, in a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoint import write_csv
from .ranking import top_items


def best_items(
    user: Any,
    scores: NDArray[np.float64],
    excluded: NDArray[Any],
    top: int,
    names: Sequence[str] | None,
) -> list[tuple[Any, ...]]:
    """Return (user, rank, item, score) of the items with the highest scores, some left out."""
    return [
        (user, rank, i if names is None else names[i], f"{scores[i]:.9g}")
        for rank, i in enumerate(top_items(scores, excluded, top).tolist(), start=1)
    ]


def write_recommendations(path: Path, lines: Iterable[tuple[Any, ...]]) -> None:
    """Write what :func:`best_items` returned as CSV."""
    write_csv(path, [("user", "rank", "item", "score"), *lines], ends="\n")
