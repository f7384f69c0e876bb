"""The whole model of a simulated run of FDSKL: directions of all parties, and coefficients."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedkern_flwr.kernels.frequencies import (
    draw_directions,
    draw_offsets,
    public_frequency_seed,
)
from fedkern_flwr.node.kept_state import KeptState

from ...strategies import FDSKL
from ...strategies.fdskl_paper import kept_party
from .new_rows import Parts
from .vertical_data import VerticalData, frequency_seed


def whole_model(strategy: FDSKL, prepared: VerticalData, state_dir: Path) -> Parts:
    """Return the coefficients that active parties kept, and the directions that all drew."""
    _, meta = strategy.model()
    split, law = prepared.split(strategy.seed or 0), (strategy.kernel, strategy.gamma_)
    weights, directions, tree = [], [], strategy.topology == "tree"
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
            seed = own = frequency_seed(strategy.seed or 0, party)
            if strategy.frequencies == "shared":
                seed = public_frequency_seed(strategy.run_seed, party)
            drawn[:, columns] = draw_directions(seed, owner, count, len(columns), *law)
            kept = not tree or party == kept_party(strategy.plan_.parties, owner, strategy.run_seed)
            offsets[party].append(draw_offsets(own, owner, count, *law) * kept)
        directions.append(drawn)
    blocks = [columns.tolist() for columns in split.parts]
    parts = np.array([np.concatenate(part) for part in offsets])
    if tree:  # the owner rounds what all have added
        blocks, parts = [[c for block in blocks for c in block]], parts.sum(axis=0, keepdims=True)
    arrays = {
        "weights": np.concatenate(weights),
        "directions": np.concatenate(directions),
        "offsets": parts,
    }
    told = {
        "blocks": blocks,
        "sizes": [len(part) for part in weights],
        "phase_bits": strategy.chosen_bits,
        "multiple": strategy.multiple_,
        "label_bound": strategy.label_bound_,
    }
    return Parts("directions", arrays, told)
