"""The programs of the HierarchicalSVM paper, on the split of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.groups.consensus import Coordinates
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.solvers.dual_subspace import LabelOwner, objective

from ...methods.groups import DEFAULT_ROUNDS, GroupedSplit
from ...methods.groups_oracle import pooled_optimum
from ...papers import hierarchical_svm as paper
from ...run.entries import Outcome, Reference

Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]

_RESIDUAL, _GAP = 0.01, 1e-3  # where runs end, as those of HierarchicalSVM do by default


def svm_paper(
    pooled: GroupedSplit,
    *,
    seed: int,
    progress: Progress,
    consensus: Literal["chain", "equation 11"],
    C: float = 1.0,
    rho: float | None = None,
) -> Outcome:
    """Learn from rows of users in a chain, or in groups by equation 11.

    Columns are standardised by the training rows of all users. The model is the best one before
    the last, as in a run of HierarchicalSVM.

    Parameters
    ----------
    pooled : GroupedSplit
        The data.
    seed : int
        Seed of what hides vectors of users and agents.
    progress : callable
        Called with steps done and steps in all.
    consensus : {"chain", "equation 11"}
        Which of the programs.
    C : float (default: 1.0)
        Cost of errors.
    rho : float or None (default: None)
        The step size; by default C in a chain, else 3 C.

    Returns
    -------
    metrics : dict
        Those of the held-out rows, ``objective``, ``objective_gap``, ``iterations``,
        ``converged``, ``kilobytes_per_user``.
    history : list of dict
        A row per iteration.
    """
    scaled, (y,) = _standard(pooled), pooled.targets().T
    x, (holder,), sizes = scaled(pooled.x), pooled.holders, pooled.sizes
    users = [(x[holder == user], y[holder == user]) for user in range(sum(sizes))]
    common: dict[str, Any] = {"C": C, "tolerance": _RESIDUAL, "iterations": _rounds(pooled)}
    if consensus == "chain":
        found, transcript = paper.fully_distributed(users, step=rho or C, **common)
    else:
        dealt = iter(users)
        groups = [[next(dealt) for _ in range(size)] for size in sizes]
        hidden = derive_seed(seed, "paper's random vectors")
        found, transcript = paper.hierarchical(groups, rho=rho or 3.0 * C, seed=hidden, **common)
    values = [
        objective("hinge", float(w[:-1] @ w[:-1]), x @ w[:-1] + w[-1], y, C) for w in found.models
    ]
    before, history = np.zeros(x.shape[1] + 1), []
    for number, (w, value) in enumerate(zip(found.models, values, strict=True), start=1):
        change = float(np.linalg.norm(w - before))
        history.append({"round": number, "objective": value, "consensus_difference": change})
        before = w
    best = int(np.argmin(values[:-1] or values))
    w, sent = found.models[best], sum(array.nbytes for *_, array in transcript)
    progress(1, 1)
    return {
        **_judged(pooled, scaled(pooled.x_test) @ w[:-1] + w[-1], values[best], C),
        "iterations": len(values),
        "converged": found.converged,
        "kilobytes_per_user": sent / 1e3 / len(users),
        "costs": {"exchanges": len(values), "bytes_up": sent, "bytes_down": 0},
    }, history


def svm_columns_paper(
    pooled: GroupedSplit, *, seed: int, progress: Progress, C: float = 1.0
) -> Outcome:
    """Learn from columns of groups by secure matrix products.

    The label owner's part is that of HierarchicalSVM, the products X^T m are the paper's.

    Parameters
    ----------
    pooled : GroupedSplit
        The data.
    seed : int
        Seed of the users' orthogonal vectors.
    progress : callable
        Called with steps done and steps in all.
    C : float (default: 1.0)
        Cost of errors.

    Returns
    -------
    metrics : dict
        Those of the held-out rows, ``objective``, ``objective_gap``, ``iterations``,
        ``converged``. Costs are those of the products; a user sends its vectors once.
    history : list of dict
        A row per iteration.
    """
    scaled, history, sent = _standard(pooled), list[dict[str, Any]](), {"Z": 0, "W": 0}
    x = scaled(pooled.x)

    def multiply(message: Floats) -> Floats:
        """Return X^T m, the sums over the users of each group."""
        weights, vectors = np.zeros((x.shape[1], 1)), 0
        for block, holder in zip(pooled.blocks, pooled.holders, strict=True):
            for user in np.unique(holder):
                rows = np.flatnonzero(holder == user)
                secret = derive_seed(seed, "orthogonal vectors", int(user))
                product, ((*_, z), (*_, w)) = paper.secure_product(
                    x[np.ix_(rows, block)], message[rows], seed=secret
                )
                weights[block] += product
                vectors, sent["W"] = vectors + z.nbytes, sent["W"] + w.nbytes
        sent["Z"] = vectors
        return weights

    leader = LabelOwner("hinge", pooled.targets(), C, 0)
    weights, message = multiply(leader.next_message()), leader.next_message()
    for number in range(1, _rounds(pooled) + 1):
        following = multiply(message)  # the next message is under way while outputs return
        leader.receive(x @ weights)
        value, weights = float(leader.objective[0]), following
        gap = float(leader.gap[0]) / value
        history.append({"round": number, "objective": value, "gap": max(0.0, gap)})
        if gap <= _GAP:
            break
        message = leader.next_message()
    outputs = scaled(pooled.x_test) @ multiply(leader.model_message()) + leader.bias
    progress(1, 1)
    return {
        **_judged(pooled, outputs[:, 0], value, C),
        "iterations": len(history),
        "converged": gap <= _GAP,
        "costs": {"exchanges": 0, "bytes_up": sent["Z"], "bytes_down": sent["W"]},
    }, history


def _standard(pooled: GroupedSplit) -> Callable[[Floats], Floats]:
    """Return what standardises rows by the training rows."""
    x = pooled.x
    found = Coordinates.fit(x.mean(axis=0), (x**2).mean(axis=0), standardised=True)
    return lambda rows: found.rows(rows)[:, :-1]


def _rounds(pooled: GroupedSplit) -> int:
    return pooled.rounds or DEFAULT_ROUNDS


def _judged(pooled: GroupedSplit, outputs: Floats, value: float, cost: float) -> dict[str, Any]:
    """Return the metrics of outputs of the held-out rows, and of an objective."""
    found: dict[str, Any] = {"objective": value, "server_sees": ["nothing: there is none"]}
    best = pooled_optimum(pooled, "hinge", cost, "standard")
    if best is not None:
        found["objective_gap"] = value / best.objective - 1.0
    return found | (pooled.judge(outputs[:, None]) if len(outputs) else {})


GROUPS: Mapping[str, Reference] = {
    "svm-paper": svm_paper,
    "svm-columns-paper": svm_columns_paper,
}
