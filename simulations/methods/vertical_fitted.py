"""The whole model of a simulated run of FDSKL: directions of all parties, and coefficients."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedkern_flwr.kernels.frequencies import draw_directions, draw_offsets
from fedkern_flwr.node.kept_state import KeptState

from ...strategies import FDSKL
from .new_rows import Parts
from .vertical_data import VerticalData, frequency_seed


def whole_model(strategy: FDSKL, prepared: VerticalData, state_dir: Path) -> Parts:
    """Return the coefficients that active parties kept, and the directions that all drew."""
    _, meta = strategy.model()
    split, law = prepared.split(strategy.seed or 0), (strategy.kernel, strategy.gamma_)
    weights, directions = [], []
    offsets: list[list[np.ndarray]] = [[] for _ in split.parts]
    for owner in strategy.upto_:
        file = state_dir / meta["session"] / f"partition-{owner}-round-{meta['step']}.state"
        found = KeptState.unpack(file.read_bytes()).arrays
        alpha = found.get("alpha")
        if alpha is None:  # it has led no iteration
            continue
        count = len(alpha)
        intercept = found.get("intercept", alpha[:0])
        weights.append(np.concatenate([alpha * np.sqrt(count), intercept]))
        drawn = np.zeros((count, len(split.columns)))
        for party, columns in enumerate(split.parts):
            seed = frequency_seed(strategy.seed or 0, party)
            drawn[:, columns] = draw_directions(seed, owner, count, len(columns), *law)
            offsets[party].append(draw_offsets(seed, owner, count, *law))
        directions.append(drawn)
    arrays = {
        "weights": np.concatenate(weights),
        "directions": np.concatenate(directions),
        "offsets": np.array([np.concatenate(part) for part in offsets]),
    }
    told = {
        "blocks": [columns.tolist() for columns in split.parts],
        "sizes": [len(part) for part in weights],
        "phase_bits": strategy.chosen_bits,
        "multiple": strategy.multiple_,
        "label_bound": strategy.label_bound_,
    }
    return Parts("directions", arrays, told)
