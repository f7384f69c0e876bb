"""Small runs of FDSKL, and how far what parties wrote is from doubly stochastic gradients."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from pooled import KEY, doubly_stochastic
from zoo import WAYS, Found, Table, Way, columns_of_parties

STREAM: Table = {"schedule": "streaming", "batch": 6, "directions": 3, "step": 0.3}


def way(
    kind: Any = 2, actives: int = 1, rounds: int | None = None, parties: int = 4, **options: Any
) -> Way:
    """Return a way of FDSKL over the first parties, two of which may be all."""
    tables = partial(columns_of_parties, kind, actives=actives)
    alone: Table = {"allow_single": True} if parties == 2 else {}
    given: Table = {"gamma": 0.5, "phase_bits": 32, "seed": 3, "regularization": 0.02, **alone}
    common: Table = {"alignment_key": KEY, **alone}
    if options.get("schedule") != "streaming":
        given["features"] = 20
    made = replace(WAYS["fdskl"], tables=lambda: tables()[:parties], rounds=rounds, common=common)
    return replace(made, options={k: v for k, v in {**given, **options}.items() if v != "leave"})


def streaming(*more: Any, **options: Any) -> Way:
    """Return a way of streaming, like :func:`way`."""
    return way(*more, **{"loss": "square", **STREAM, **options})


def gap(found: Found, **changes: Any) -> float:
    """Return max |f - f| of held-out rows, as the parties wrote them and in a plain program."""
    pairs = [*doubly_stochastic(found, **changes)]
    assert max(np.abs(expected).max() for _, expected in pairs) > 0.05
    return max(float(np.abs(got - expected).max()) for got, expected in pairs)
