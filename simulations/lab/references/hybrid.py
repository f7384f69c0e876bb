"""The FedCG paper's protocols, and its attack on the naive one, on the split of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.kernels.product import ProductKernel
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.solvers.least_squares import Penalty, solve_equations

from ...attacks.edm_completion import reconstruction_errors
from ...methods.hybrid import HybridSplit
from ...methods.hybrid_oracle import block_landmarks
from ...papers.fedcg import SERVER, Hospital, build_kernel, chain, naive, sample_landmarks
from ...run.entries import Outcome, Reference

Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]
Sampling = Literal["P", "U", "N"]


def fed_cg_paper(
    pooled: HybridSplit,
    *,
    seed: int,
    progress: Progress,
    landmarks: int,
    sampling: Sampling,
    gamma: float,
    regularization: float,
    kernel: ProductKernel = "rbf",
    protocol: Literal["chain", "naive", "direct"] = "chain",
    init: Literal["zero", "random"] = "zero",
    tolerance: float = 1e-10,
    penalty: Penalty = "ridge",
) -> Outcome:
    """Run a protocol of :mod:`fedkern_flwr.simulations.papers.fedcg`.

    Parameters
    ----------
    pooled : HybridSplit
        The data.
    seed : int
        Seed of the landmarks and of the start. Both are those of a run of FedCG with this seed.
    progress : callable
        Called with steps done and steps in all.
    landmarks, sampling, gamma, regularization, kernel, init, tolerance, penalty
        As the options of FedCG; ``tolerance`` is relative. Sampling P takes training rows.
    protocol : {"chain", "naive", "direct"} (default: "chain")
        With direct the server solves the normal equations of what the naive protocol shows it.
        Only this has the penalty ``rkhs``.

    Returns
    -------
    metrics : dict
        Those of the held-out rows, and ``centralised_difference``; of conjugate gradients
        ``iterations``, ``residual`` and ``converged`` as well.
    history : list of dict
        A row per iteration; one of a direct solution.
    """
    w = _landmarks(pooled, sampling, landmarks, seed)
    own, *centres = pooled.blocks
    order = (*centres, own)  # a chain ends at the hospital
    y, slices = pooled.targets()[:, 0], [w[block] for block in order]

    def blocks(x: Floats) -> list[Floats]:
        return [x[:, pooled.blocks[block]] for block in order]

    def product_kernel(x: Floats) -> Floats:
        pairs = zip(blocks(x), slices, strict=True)
        return np.asarray(np.prod([build_kernel(*pair, gamma, kernel) for pair in pairs], axis=0))

    k, k_test = product_kernel(pooled.x), product_kernel(pooled.x_test)
    right, between = k.T @ y, None
    if penalty == "rkhs":
        rows = np.zeros((landmarks, pooled.x.shape[1]))
        for block in order:
            rows[:, pooled.blocks[block]] = w[block]
        between = product_kernel(rows)
    exact = solve_equations(k.T @ k, right[:, None], regularization, between)
    start = np.zeros(landmarks)
    if init == "random":
        rng = np.random.default_rng(derive_seed(seed, "initial coefficients"))
        start = rng.standard_normal(landmarks)
    mine = [pooled.hospital == h for h in np.unique(pooled.hospital)]
    found, transcript = (chain if protocol == "chain" else naive)(
        [Hospital(blocks(pooled.x[rows]), y[rows]) for rows in mine],
        slices,
        gamma,
        regularization,
        kernel=kernel,
        alpha=start,
        seed=seed,
        tolerance=tolerance**2 * float(right @ right),
        epochs=0 if protocol == "direct" else 1000,
    )
    alpha, length = found.alpha[:, None], float(np.linalg.norm(right))
    history: list[dict[str, Any]] = [
        {"round": epoch, "residual": math.sqrt(squared) / length, "squared_residual": squared}
        for epoch, squared in enumerate(found.squared[1:], start=1)
    ]
    told = dict.fromkeys(name for _, receiver, name, _ in transcript if receiver == SERVER)
    metrics: dict[str, Any] = {"server_sees": list(told)}
    if protocol == "direct":
        shown = [
            np.prod([a for *_, name, a in transcript if name == f"kernel of hospital {h}"], axis=0)
            for h in range(len(mine))
        ]
        gram = sum(one.T @ one for one in shown)
        seen = sum(one.T @ y[rows] for one, rows in zip(shown, mine, strict=True))
        alpha = solve_equations(gram, seen[:, None], regularization, between)
    else:
        last = history[-1]["residual"]
        metrics |= {"iterations": found.epochs, "residual": last, "converged": last <= tolerance}
    if protocol != "chain":  # each party sends one message to the server
        sent = sum(array.nbytes for *_, array in transcript)
        metrics["costs"] = {"exchanges": 1, "bytes_up": sent, "bytes_down": 0}
    outputs = k_test @ alpha
    metrics["centralised_difference"] = float(np.abs(outputs - k_test @ exact).max())
    progress(1, 1)
    return pooled.judge(outputs) | metrics, history or [{"round": 1}]


def fed_cg_distances(
    pooled: HybridSplit, *, seed: int, progress: Progress, landmarks: int, sampling: Sampling
) -> Outcome:
    """Reconstruct distances between training rows from the naive protocol's kernel (Figure 8).

    Returns
    -------
    metrics : dict
        ``reconstruction_`` and the name of each attack.
    history : list of dict
        One row.
    """
    w = _landmarks(pooled, sampling, landmarks, seed)
    columns = np.concatenate([pooled.blocks[block] for block in w])
    found = reconstruction_errors(pooled.x[:, columns], np.hstack(list(w.values())), seed=seed)
    progress(1, 1)
    return {f"reconstruction_{name}": error for name, error in found.items()}, [{"round": 1}]


def _landmarks(pooled: HybridSplit, sampling: Sampling, m: int, seed: int) -> dict[str, Floats]:
    """Return each block's slice of the landmarks, those of a run of FedCG with this seed."""
    if sampling == "P":
        rng = np.random.default_rng(derive_seed(seed, "landmark rows"))
        rows = sample_landmarks("P", m, pooled.x, rng)
        return {block: rows[:, columns] for block, columns in pooled.blocks.items()}
    return {
        block: block_landmarks(sampling, m, pooled.x[:, columns], seed, block)
        for block, columns in pooled.blocks.items()
    }


HYBRID: Mapping[str, Reference] = {
    "fed-cg-paper": fed_cg_paper,
    "fed-cg-distances": fed_cg_distances,
}
