"""Membership tests on FedCG: K^T K and the kernel of a row tell whether it was learned from.

``pytest -s tests/simulations/test_membership_attacks.py`` prints the figures of docs/fed-cg.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attacked import X, Y
from flwr.app import Context
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.clients import HybridKernelClient
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.hybrid.landmarks import public_seed
from fedkern_flwr.simulations import Transcript, simulate
from fedkern_flwr.simulations.lab.attacks.hybrid import HybridRun
from fedkern_flwr.simulations.lab.attacks.hybrid_insiders import Insiders
from fedkern_flwr.simulations.lab.attacks.membership import (
    ROUNDING,
    area_under_curve,
    definiteness,
    leverage,
    membership,
    membership_of_folds,
)
from fedkern_flwr.strategies import FedCG

HOSPITALS, CENTRES = 3, 2
BLOCKS = np.array_split(np.arange(30), CENTRES + 1)  # that of the hospitals first
SEEDS = (0, 1, 2)
KEY = bytes(range(32))
#: Nothing is chosen; landmarks are uniform.
PLAIN = {"tune": "off", "sampling": "U"}
FIGURES = "\nn = {}, m = {}{}: matrix {:.2f} to {:.2f}, losses {:.2f} to {:.2f}"


def serve(rows: int, seed: int, **more: Any) -> Callable[[Context], HybridKernelClient]:
    """Three hospitals that learn from ``rows`` patients and hold out as many."""
    order = np.random.default_rng(seed).permutation(len(X))[: 2 * rows]

    def client_fn(context: Context) -> HybridKernelClient:
        k = int(context.node_config["partition-id"])
        number = max(0, k - HOSPITALS + 1)
        block = BLOCKS[number]
        options: dict[str, Any] = {"alignment_key": KEY, "block": f"block {number}", **more}
        options["landmark_seed"] = public_seed(seed, options["block"])
        if k >= HOSPITALS:
            return HybridKernelClient(context, X[np.ix_(order, block)], ids=order, **options)
        train, test = np.split(order[k::HOSPITALS], 2)
        held_out = {"x_test": X[np.ix_(test, block)], "y_test": Y[test], "ids_test": test}
        options |= {"ids": train, "classes": (0, 1), **held_out}
        return HybridKernelClient(context, X[np.ix_(train, block)], Y[train], **options)

    return client_fn


def attack(
    rows: int, landmarks: int, seed: int, *, whole: bool = True, **options: Any
) -> list[float]:
    """Run FedCG; return the area under the curve of server and hospital, and that of losses.

    They know the sum that was opened, the kernels of hospital 0, and those of the candidates.
    The sum of all folds is the ``whole``; else each fold's is looked at, as chosen without counting
    what is released.
    """
    insiders, transcript = Insiders(), Transcript()
    strategy = FedCG(landmarks=landmarks, seed=seed, **options)
    policy = NodePolicy.of_simulations(allow_small_sums=not whole)
    served = insiders.watch(serve(rows, seed, policy=policy))
    simulate(strategy, served, HOSPITALS + CENTRES, transcript=transcript)
    seen = HybridRun(transcript, insiders)
    released = next(total for vector, total in seen.opened() if vector.order.name == "equations")
    grams = seen.equations_of_folds(released)[0]
    for fold, released_gram in enumerate(grams):
        parts = [seen.training_kernel(h)[seen.folds(h) == fold] for h in range(HOSPITALS)]
        np.testing.assert_allclose(released_gram, sum(k.T @ k for k in parts), atol=1e-9)
    gram = grams.sum(0)
    folds = seen.folds(0)
    if whole:
        grams, folds = gram[None], np.zeros_like(folds)
    else:
        assert len(grams) == 5
    kernels = [seen.kernel(h) for h in range(HOSPITALS)]
    trained = [len(seen.training_kernel(h)) for h in range(HOSPITALS)]
    assert sum(trained) == rows

    def parted(values: list[np.ndarray]) -> list[np.ndarray]:
        """Return what is of members, and of others, at all hospitals but the first."""
        parts = [np.split(values[h], [trained[h]]) for h in range(1, HOSPITALS)]
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    members, others = parted(kernels)
    rounding = landmarks * np.finfo(float).eps / ROUNDING  # see leverage
    assert leverage(gram, members).max() <= 1.0 + rounding
    own, familiar = kernels[0][: trained[0]], kernels[0]
    found = (membership_of_folds(grams, own, folds, familiar, c) for c in (members, others))
    misses = [
        -((kernel @ strategy.coefficients_ - labels_of(seen, h)) ** 2).sum(axis=1)
        for h, kernel in enumerate(kernels)
    ]
    return [area_under_curve(*found), area_under_curve(*parted(misses))]


def labels_of(seen: HybridRun, hospital: int) -> np.ndarray:
    """Return the targets of all rows of a hospital in the kernel's order."""
    client = seen.insiders.parties[hospital].client
    positions = seen.positions[hospital, hospital]
    order = client.table.order(seen.session, client.alignment_key)[positions]
    return np.vstack([client.table.y, client.table.y_test])[order]


@pytest.mark.parametrize("options", [PLAIN, {}], ids=["plain", "tuned"])
@pytest.mark.parametrize(
    ("rows", "landmarks", "least", "most"),
    [(60, 100, 0.99, 1.0), (60, 40, 0.9, 1.0), (150, 100, 0.9, 1.0), (240, 40, 0.5, 0.8)],
)
def test_the_released_matrix_tells_whom_the_model_was_learned_from(
    rows: int, landmarks: int, least: float, most: float, options: dict[str, Any]
) -> None:
    """Nearly all with few rows per landmark; with many, little is left."""
    found = np.array([attack(rows, landmarks, seed, **options) for seed in SEEDS])
    low, high = found.min(axis=0), found.max(axis=0)
    how = ", nothing chosen" if options else ""
    print(FIGURES.format(rows, landmarks, how, low[0], high[0], low[1], high[1]))
    assert least <= low[0]
    assert high[0] <= most
    assert low[1] > 0.45
    assert high[1] < 0.8


def test_the_sums_of_folds_tell_what_their_total_hides() -> None:
    """Those of 48 rows each, where nodes allow them; see the last case above."""
    found = np.array([attack(240, 40, seed, whole=False) for seed in SEEDS])
    low, high = found.min(axis=0), found.max(axis=0)
    print(FIGURES.format(240, 40, ", five folds", low[0], high[0], low[1], high[1]))
    assert low[0] >= 0.9
    assert high[1] < 0.8


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_a_row_of_a_matrix_has_a_leverage_of_at_most_one(
    rows: int, columns: int, seed: int
) -> None:
    k = np.random.default_rng(seed).normal(size=(rows, columns))
    found = leverage(k.T @ k, k)
    assert found.max() < 1.0 + 1e-6
    assert found.sum() == pytest.approx(min(rows, columns), rel=1e-6)


def test_candidates_that_are_not_in_the_sum_are_a_guess() -> None:
    """Negative control: two sets of strangers cannot be told apart."""
    rng = np.random.default_rng(0)
    own, inside, one, two = (rng.random((n, 20)) for n in (40, 60, 400, 400))
    k = np.vstack([own, inside])
    found = [membership(k.T @ k, own, own, c) for c in (one, two, inside)]
    assert abs(area_under_curve(found[0], found[1]) - 0.5) < 0.06
    assert area_under_curve(found[2], found[1]) > 0.7


def test_the_area_under_the_curve_counts_ties_by_half() -> None:
    assert area_under_curve(np.array([1.0, 2.0]), np.array([0.0, 1.0])) == 3.5 / 4


@pytest.mark.parametrize("rows", [1, 5, 15])
def test_without_noise_a_rest_of_few_rows_tells_which_they_are(rows: int) -> None:
    """Less a row of its own it is positive semi-definite; less any other it is not."""
    rng = np.random.default_rng(rows)
    behind, others = rng.normal(size=(2, rows, 20))
    found = definiteness(behind.T @ behind, np.concatenate([behind, others]))
    assert (found[:rows] > -1e-9).all()
    assert (found[rows:] < -1e-3).all()
