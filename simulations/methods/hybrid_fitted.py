"""The whole model of a simulated run of FedCG: the landmarks that its parties kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedkern_flwr.checkpoint import run_folder
from fedkern_flwr.hybrid.fourier import draw_block
from fedkern_flwr.hybrid.landmarks import draw_landmarks

from ...clients.fed_cg_kernel import RunState
from ...strategies import FedCG
from .hybrid_data import OWN_BLOCK, HybridData
from .new_rows import Parts


def whole_model(strategy: FedCG, prepared: HybridData, state_dir: Path) -> Parts:
    """Return coefficients and the landmarks of all blocks, drawn from the parties' secrets."""
    arrays, meta = strategy.model()
    split = prepared.split(strategy.seed or 0)
    landmarks = np.zeros((strategy.landmarks_, len(split.columns)))
    if strategy.basis == "fourier":
        landmarks, offsets = landmarks[::2], np.zeros(len(landmarks) // 2)
    centre = prepared.settings.hospitals
    for block, columns in split.blocks.items():
        partition = 0 if block == OWN_BLOCK else centre
        centre += block != OWN_BLOCK
        folder = run_folder(state_dir, meta["session"], partition)
        file = folder / f"partition-{partition}-round-{meta['step']}.state"
        kept = RunState.unpack(file.read_bytes())
        if strategy.basis == "fourier":
            gamma, pairs = float(strategy.gammas_[0]), len(landmarks)
            drawn = draw_block(kept.seed, pairs, len(columns), strategy.kernel, gamma)
            landmarks[:, columns] = drawn[:, :-1]
            offsets += drawn[:, -1]
            continue
        unit, moments = np.tile([0.0, 1.0], (len(columns), 1)), kept.arrays.get("moments")
        landmarks[:, columns] = draw_landmarks(kept.seed, len(landmarks), unit, moments)
    blocks = [columns.tolist() for columns in split.blocks.values()]
    needed = {"needed": blocks[0]} if prepared.settings.missing == "neutral" else {}
    own = {name: meta[name] for name in ("kernel", "noise", "classes", "label_bound")}
    own |= {"blocks": blocks, **needed}
    if strategy.basis == "fourier":
        return Parts("fourier", {**arrays, "directions": landmarks, "offsets": offsets}, own)
    return Parts("landmarks", {**arrays, "landmarks": landmarks}, own)
