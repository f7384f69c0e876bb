"""The whole model of a simulated run of HierarchicalSVM, of a vertical split from its parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedkern_flwr.checkpoint import unpack_arrays

from ...strategies import HierarchicalSVM
from .groups_data import HierarchicalData
from .new_rows import Parts


def whole_model(strategy: HierarchicalSVM, prepared: HierarchicalData, state_dir: Path) -> Parts:
    """Return weights and biases, which agents and label owner of a vertical split kept."""
    arrays, meta = strategy.model()
    if strategy.partition == "vertical":
        split, folder = prepared.split(strategy.seed or 0), state_dir / meta["session"]

        def part(partition: int) -> dict[str, np.ndarray]:
            return unpack_arrays((folder / f"partition-{partition}.model").read_bytes())[0]

        bias = part(prepared.num_clients - 1)["bias"]
        weights = np.zeros((len(bias), len(split.columns)))
        for group in strategy.groups_:
            own = part(group.agent)
            mean, deviation = own["coordinates"]
            scaled = own["weights"].reshape(len(mean), -1) / deviation[:, None]
            weights[:, split.blocks[group.number]] = scaled.T
            bias = bias - mean @ scaled
        arrays = {"weights": weights, "bias": bias}
        meta = {**meta, "columns": len(split.columns)}
    names = ("columns", "features", "gamma", "feature_seed")
    return Parts("linear", arrays, {name: meta[name] for name in names})
