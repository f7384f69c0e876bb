"""Solvers of FedCG: the normal equations at once, or conjugate gradients, a product an exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedkern_flwr.conjugate_gradient import CGState, conjugate_gradient
from fedkern_flwr.least_squares import regularized, solve_equations
from fedkern_flwr.preconditioner import NystromPreconditioner, probe_vectors
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.strategy import Arrays, logger

from .hybrid_chain import ChainSystem
from .hybrid_system import Floats, HybridSystem

if TYPE_CHECKING:
    from .fed_cg import FedCG


def solve_directly(run: FedCG, system: HybridSystem) -> Floats:
    """Sum the normal equations and solve them; return the coefficients, shape (m, k)."""
    gram, right = system.equations()
    coefficients = solve_equations(gram, right, run.regularization, system.landmark_kernel)
    matrix = regularized(gram, run.regularization, system.landmark_kernel)
    rest = right - matrix @ coefficients
    run.enter(1, _relative(rest, right), (rest**2).sum(0))
    run.metrics_ = {"iterations": 0, "residual": run.history_[-1]["residual"]}
    if run.on_round is not None:
        run.on_round(1, 1, run.history_[-1])
    return coefficients


def iterate(run: FedCG, system: HybridSystem, start: Floats, most: int, saved: Arrays) -> Floats:
    """Run conjugate gradients from ``start``, or go on from arrays that were saved.

    Parameters
    ----------
    run : FedCG
        The run: options, history, checkpoints.
    system : HybridSystem
        Makes the products.
    start : ndarray, shape (m, k)
        Where to start.
    most : int
        Most iterations.
    saved : dict
        Arrays of the checkpoint of a run that broke off, else empty.

    Returns
    -------
    ndarray, shape (m, k)
        The coefficients.
    """
    pairs = system.landmark_kernel

    def multiply(p: Floats) -> Floats:
        product = system.products(p)[1]
        return product + run.regularization * (p if pairs is None else pairs @ p)

    state = CGState.from_arrays(saved) if saved else None
    begun = saved or _begin(run, system, start, pairs)
    kept: Arrays = {name: begun[name] for name in ("right", "sketch", "probes") if name in begun}
    if pairs is not None:
        kept["landmark_kernel"] = pairs
    precondition = None
    if "sketch" in begun:
        precondition = NystromPreconditioner(begun["sketch"], begun["probes"], run.regularization)

    def note(now: CGState, residuals: Floats) -> None:
        run.enter(now.iteration, residuals, now.squared[-1])
        run.save("cg", {**now.arrays(), **kept})
        if run.on_round is not None:
            run.on_round(now.iteration, most, run.history_[-1])

    found = conjugate_gradient(
        multiply,
        begun["right"],
        start=begun.get("start") if state is None else None,
        start_product=begun.get("started") if state is None else None,
        precondition=precondition,
        tolerance=run.tolerance,
        max_iterations=most,
        state=state,
        on_iteration=note,
    )
    if not run.history_:
        run.enter(0, found.residuals[-1], found.squared[-1])
    residual = float(found.residuals[-1].max())
    run.metrics_ = {"iterations": found.iterations, "residual": residual}
    if not found.converged:
        logger.warning(
            "not converged after %d iterations: residual %.1e; use a larger regularization, a "
            "larger preconditioner_rank or solver normal-equations",
            found.iterations,
            residual,
        )
    return found.x


def _begin(run: FedCG, system: HybridSystem, start: Floats, pairs: Floats | None) -> Arrays:
    """Return K^T y as ``right``; ``start`` and its product ``started``; ``sketch``, ``probes``.

    One exchange; in a chain a pass, two when it does not start at zero.
    """
    out: Arrays = {}
    if start.any():
        out["start"] = start
    if isinstance(system, ChainSystem):  # what it gives is K^T (K a - y)
        gradient = system.gradient(start)
        product = system.products(start)[1] if start.any() else np.zeros_like(start)
        out["right"] = product - gradient
        if start.any():
            out["started"] = product + run.regularization * start
        return out
    if run.rank:
        seed = derive_seed(run.run_seed, "probes")
        out["probes"] = probe_vectors(run.landmarks, run.rank, seed)
    directions = [out[name] for name in ("probes", "start") if name in out]
    empty = np.zeros((run.landmarks, 0))
    out["right"], products = system.products(np.hstack([empty, *directions]), labels=True)
    if run.rank:
        out["sketch"] = products[:, : run.rank]
    if start.any():
        shift = start if pairs is None else pairs @ start
        out["started"] = products[:, run.rank :] + run.regularization * shift
    return out


def _relative(rest: Floats, right: Floats) -> Floats:
    lengths = np.linalg.norm(right, axis=0)
    return np.asarray(np.linalg.norm(rest, axis=0) / np.where(lengths > 0.0, lengths, 1.0))
