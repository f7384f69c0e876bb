"""Run the papers' own programs on the split of a run, as reference methods.

They are those of :mod:`fedkern_flwr.simulations.papers`. Arguments and results are as described in
:mod:`.tables`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.alignment import hash_ids, sort_order
from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.gram.matrix import local_support
from fedkern_flwr.gram.recommenders import Recommender
from fedkern_flwr.groups.consensus import Coordinates
from fedkern_flwr.kernels.product import ProductKernel
from fedkern_flwr.kernels.random_features import draw_directions, draw_offsets
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.solvers.dual_subspace import LabelOwner, objective
from fedkern_flwr.solvers.least_squares import Penalty, solve_equations
from fedkern_flwr.vertical.phase_training import fit as fit_phases
from fedkern_flwr.vertical.phase_training import minimise
from fedkern_flwr.vertical.phases import outputs

from ...attacks.distances import reconstruction_errors
from ...methods.dealt_data import alignment_key, frequency_seed
from ...methods.groups import DEFAULT_ROUNDS, GroupedSplit, linear_svm, pooled_optimum
from ...methods.hybrid import HybridSplit, block_landmarks
from ...methods.pooled import TWO_TREES, PooledSplit, error_of
from ...methods.rating_data import PooledRatings
from ...methods.recommender import pooled_kernel, rank_all
from ...papers import hierarchical_svm as paper
from ...papers.fdskl import add_phases, draw_trees
from ...papers.fedcg import SERVER, Hospital, build_kernel, chain, naive, sample_landmarks
from ...papers.secure_gram import kernel_round, random_users
from ...run.entries import Outcome, Reference

Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]
Sampling = Literal["P", "U", "N"]

_RESIDUAL, _GAP = 0.01, 1e-3  # where runs end, as those of HierarchicalSVM do by default
_FEW = 5  # users that a disjoint sum of a round has at least
_COSINE = DotKernel("cosine")


# -- FedCG


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

    Landmarks and start are those of a run of FedCG with the same seed.

    Parameters
    ----------
    pooled, seed, progress
        See above.
    landmarks, sampling, gamma, regularization, kernel, init, tolerance, penalty
        As the options of FedCG; ``tolerance`` is relative. Sampling P takes training rows.
    protocol : {"chain", "naive", "direct"} (default: "chain")
        With direct the server solves the normal equations of what the naive protocol shows it.
        Only this has the penalty ``rkhs``.

    Returns
    -------
    metrics : dict
        Also ``centralised_difference``; of conjugate gradients ``iterations``, ``residual`` and
        ``converged``.
    history : list of dict
        A row per iteration.
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
    sees = dict.fromkeys(name for _, receiver, name, _ in transcript if receiver == SERVER)
    metrics: dict[str, Any] = {"server_sees": list(sees)}
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

    The metrics are ``reconstruction_`` and the name of each attack.
    """
    w = _landmarks(pooled, sampling, landmarks, seed)
    columns = np.concatenate([pooled.blocks[block] for block in w])
    found = reconstruction_errors(pooled.x[:, columns], np.hstack(list(w.values())), seed=seed)
    progress(1, 1)
    return {f"reconstruction_{name}": error for name, error in found.items()}, [{"round": 1}]


def _landmarks(pooled: HybridSplit, sampling: Sampling, m: int, seed: int) -> dict[str, Floats]:
    """Return each block's landmarks, those of a run of FedCG with this seed."""
    if sampling == "P":
        rng = np.random.default_rng(derive_seed(seed, "landmark rows"))
        rows = sample_landmarks("P", m, pooled.x, rng)
        return {block: rows[:, columns] for block, columns in pooled.blocks.items()}
    return {
        block: block_landmarks(sampling, m, pooled.x[:, columns], seed, block)
        for block, columns in pooled.blocks.items()
    }


# -- HierarchicalSVM


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
    the last, as in a run of HierarchicalSVM. The seed hides vectors of users and agents. ``rho`` is
    C in a chain, else 3 C, where not given.

    Returns
    -------
    metrics : dict
        Also ``objective``, ``objective_gap``, ``iterations``, ``converged`` and
        ``kilobytes_per_user``.
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
    """Learn from columns of groups by the paper's secure matrix products X^T m.

    The label owner's part is that of HierarchicalSVM. Costs are those of the products; a user sends
    its vectors once. Metrics are those of :func:`svm_paper`.
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
    """Return a function that standardises rows by the training rows."""
    x = pooled.x
    found = Coordinates.fit(x.mean(axis=0), (x**2).mean(axis=0), standardised=True)
    return lambda rows: found.rows(rows)[:, :-1]


def _rounds(pooled: GroupedSplit) -> int:
    return pooled.rounds or DEFAULT_ROUNDS


def _judged(pooled: GroupedSplit, outputs: Floats, value: float, cost: float) -> dict[str, Any]:
    """Return metrics of outputs of the held-out rows, and of an objective."""
    found: dict[str, Any] = {"objective": value, "server_sees": ["nothing: there is none"]}
    best = pooled_optimum(pooled, "hinge", cost, "standard")
    if best is not None:
        found["objective_gap"] = value / best.objective - 1.0
    return found | (pooled.judge(outputs[:, None]) if len(outputs) else {})


# -- FDSKL


def two_trees(
    pooled: PooledSplit,
    *,
    seed: int,
    progress: Progress,
    parties: int,
    gamma: float,
    features: int,
) -> Outcome:
    """Train one-shot FDSKL on phases that the paper's two trees have summed.

    Directions are those of FDSKL with the same seed.

    Parameters
    ----------
    pooled, seed, progress
        See above.
    parties : int
        How many share the columns, in order; the first has the labels.
    gamma, features : float, int
        Width of the Gaussian kernel, and number of directions.

    Returns
    -------
    metrics : dict
        Also ``regularization``, ``centralised_difference`` and, as ``costs``, the trees' steps and
        the bytes sent.
    history : list of dict
    """
    started = time.perf_counter()
    columns = np.array_split(np.arange(pooled.x.shape[1]), parties)
    secrets = [frequency_seed(seed, party) for party in range(parties)]
    law = 0, features
    blocks = [
        draw_directions(secret, *law, len(own), "rbf", gamma)
        for secret, own in zip(secrets, columns, strict=True)
    ]
    masks = [draw_offsets(secret, *law, "rbf", gamma) for secret in secrets]
    trees = draw_trees(parties, 0, 1 + derive_seed(seed, "kept", 0) % (parties - 1), seed)
    # the order in which FDSKL's parties announce rows where the table has its own held-out rows
    n, names = len(pooled.y), np.arange(len(pooled.y)).astype(str)
    order = sort_order(hash_ids(names, alignment_key(seed), f"order {seed}"))
    x, y = np.concatenate([pooled.x[order], pooled.x_test]), pooled.targets()[order]
    sent: list[Any] = []
    parts = [x[:, own] for own in columns]
    angles = add_phases(parts, np.hstack(blocks), np.stack(masks, axis=1), trees, sent)
    narrow, wide = (
        Encoding.circle(bits).encode(angles.ravel(), 1, name="").reshape(angles.shape)
        for bits in (16, 32)
    )
    chosen = fit_phases(
        "smooth-hinge", narrow[:n], y, classes=len(pooled.classes), seed=seed, multiples=(1,)
    )
    exact = minimise("smooth-hinge", wide[:n], y, chosen.regularization)
    scores = outputs(narrow[n:], chosen.weights)
    metrics = pooled.judge(scores)
    size = sum(array.nbytes for *_, array in sent)
    steps = sum((workers - 1).bit_length() for workers in (parties, parties - 1))  # pairs add
    seconds = time.perf_counter() - started
    progress(1, 1)
    return {
        **metrics,
        "regularization": chosen.regularization,
        "centralised_difference": float(np.abs(outputs(wide[n:], exact) - scores).max()),
        "costs": {"exchanges": steps, "bytes_up": size, "bytes_down": size},
        "server_sees": ["nothing: the parties send to each other"],
    }, [{"round": 1, "test_error": error_of(metrics), "seconds": seconds}]


# -- FedCFK


def recommender(
    pooled: PooledRatings,
    *,
    seed: int,
    progress: Progress,
    learner: str = "cf-komd",
    kernel: str = "cosine",
    regularization: float = 0.1,
    min_support: int = 0,
) -> Outcome:
    """Recommend from pooled ratings of items with at least ``min_support`` users."""
    counts = local_support(pooled.train)
    items = np.flatnonzero(counts >= max(1, min_support))
    users = np.arange(pooled.train.shape[0])
    found = pooled_kernel(pooled.train, items, DotKernel(kernel))
    metrics = rank_all([(Recommender(found, learner, regularization), users)], pooled)
    progress(1, 1)
    return {**metrics, "items": len(items), "rows": len(users)}, []


def kernel_rounds(
    pooled: PooledRatings,
    *,
    seed: int,
    progress: Progress,
    share: float,
    disjoint: bool = False,
    rounds: int = 200,
) -> Outcome:
    """Improve the kernel over rounds with a random ``share`` of the users each (Figure 1).

    The paper keeps the entrywise maximum of the sums. ``disjoint`` sums count a user once and add
    up: a round sums users who have not been counted, and waits for more if they are fewer than
    five.

    Returns
    -------
    metrics : dict
        ``kernel_error`` after the last round, and ``exact_from``: the first round with the exact
        kernel, or None.
    history : list of dict
        Per round ``kernel_error``, the mean squared difference of the cosine-normalised matrices,
        and ``users`` counted.
    """
    x = pooled.train + pooled.test
    exact = _COSINE.matrix(kernel_round(x, range(x.shape[0]))[0], 1)
    known: NDArray[np.int64] | None = None
    counted, waiting = set[int](), set[int]()
    history: list[dict[str, Any]] = []
    error = float((exact**2).mean())
    for number in range(1, rounds + 1):
        rng = np.random.default_rng(derive_seed(seed, "participants", number))
        fresh = set(random_users(x.shape[0], share, rng).tolist())
        if disjoint:
            waiting |= fresh - counted
            enough = len(waiting) >= _FEW or len(counted) + len(waiting) == x.shape[0]
            fresh, waiting = (waiting, set()) if enough else (set(), waiting)
        counted |= fresh
        if fresh and disjoint:
            more, _ = kernel_round(x, sorted(fresh))
            known = more if known is None else known + more
        elif fresh:
            known, _ = kernel_round(x, sorted(fresh), known)
        if fresh and known is not None:
            error = float(((_COSINE.matrix(known, 1) - exact) ** 2).mean())
        history.append({"round": number, "kernel_error": error, "users": len(counted)})
        progress(number, rounds)
    exact_from = next((r["round"] for r in history if r["kernel_error"] == 0.0), None)
    return {"kernel_error": error, "exact_from": exact_from, "rows": len(counted)}, history


HYBRID: Mapping[str, Reference] = {
    "fed-cg-paper": fed_cg_paper,
    "fed-cg-distances": fed_cg_distances,
}
GROUPS: Mapping[str, Reference] = {
    "linear-svm": linear_svm,
    "svm-paper": svm_paper,
    "svm-columns-paper": svm_columns_paper,
}
VERTICAL: Mapping[str, Reference] = {TWO_TREES: two_trees}
RECOMMENDERS: Mapping[str, Reference] = {
    "cf-komd": recommender,
    "item-knn": partial(recommender, learner="knn", min_support=5),
    "kernel-rounds": kernel_rounds,
    "popularity": partial(recommender, learner="popularity", min_support=5),
}
