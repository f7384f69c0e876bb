"""The sums whose epsilon is audited: each of a run of the method as it is, over made-up rows.

A record has columns in [0, 1] and a label of -1 or 1. Widths of kernels are so narrow that phases
are whatever a record likes. Where figures are summed, the record is a held-out row; where the unit
is a party, all its rows are the record.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fedkern_flwr.groups.gradients import (
    GRADIENT_SUM,
    gradient,
    public_coordinates,
    shortened,
)
from fedkern_flwr.hybrid import fourier
from fedkern_flwr.hybrid.landmarks import public_seed
from fedkern_flwr.judging.figures import OUTCOMES
from fedkern_flwr.kernel_pca import moments
from fedkern_flwr.kernels.product import features_of
from fedkern_flwr.online import ridge
from fedkern_flwr.online.messages import UPDATE_SUM
from fedkern_flwr.solvers.equations import pack_equations

from ...clients import HybridKernelClient, KernelPCAClient, OnlineKernelClient, SVMClient
from ...strategies import POFMKL, POFRLS, FedCG, HierarchicalSVM, KernelPCA
from .budgets import WIDTH, Case, Record, audit_epsilon
from .phases import Floats
from .table import Seen, served

_ROWS = 12  # of a party, to learn from, and as many held out
_FIRST, ALL, _NONE = slice(1), slice(None), slice(0)
Run = tuple[Any, Callable[[Any], Any]]
Table = tuple[Floats, Floats]  # rows, labels


def tables_of(
    record: Record, parties: int, which: slice = _FIRST, *, spread: float = 1.0, seed: int = 1
) -> list[Table]:
    """Return rows and labels of each party; those of party 0 that are ``which`` are the record."""
    rng = np.random.default_rng(seed)
    tables = [
        (0.5 + spread * (rng.random((_ROWS, WIDTH)) - 0.5), np.resize([-1.0, 1.0], _ROWS))
        for _ in range(parties)
    ]
    tables[0][0][which], tables[0][1][which] = record
    return tables


def _both(
    record: Record, parties: int, unit: str, *, held_out: bool, spread: float = 1.0
) -> list[tuple[Table, Table]]:
    """Return of each party the rows to learn from and those held out; the record is in either."""
    which = ALL if unit == "party" else _FIRST
    learned, tests = (_NONE, which) if held_out else (which, _NONE)
    return list(
        zip(
            tables_of(record, parties, learned, spread=spread),
            tables_of(record, parties, tests, seed=2),
            strict=True,
        )
    )


def _outcome(record: Record) -> Floats:
    """Return the cell of a held-out row among counts, of which there is another for each label."""
    return np.asarray(np.eye(2)[int(record[1] > 0.0)])


# -- FedCG

_BLOCK, _PAIRS, _GAMMA = "own", 2, 300.0
_EQUATIONS, _LABELS = "equations", 0.5  # the sum; by what labels of length one are multiplied
_BLOCK_SEED = public_seed(0, _BLOCK)


def _fed_cg(record: Record, parties: int, *, held_out: bool = False, **budget: Any) -> Run:
    tables = _both(record, parties, budget["privacy_unit"], held_out=held_out)

    def hospital(context: Any, k: int) -> HybridKernelClient:
        (x, y), (x_test, y_test) = tables[k]
        ids = [f"{k}/{i}" for i in range(2 * _ROWS)]
        tests: dict[str, Any] = {}
        if held_out:
            tests = {"x_test": x_test, "y_test": y_test, "ids_test": ids[_ROWS:]}
        return HybridKernelClient(
            context,
            x,
            y,
            ids=ids[:_ROWS],
            block=_BLOCK,
            landmark_seed=_BLOCK_SEED,
            alignment_key=b"a secret of the data's owners",
            classes=(-1.0, 1.0),
            **tests,
        )

    strategy = FedCG(basis="fourier", landmarks=2 * _PAIRS, gamma=_GAMMA, seed=0, **budget)
    return strategy, served(hospital)


def _equations(record: Record) -> Floats:
    x, y = record
    drawn = fourier.draw_block(_BLOCK_SEED, _PAIRS, WIDTH, "rbf", _GAMMA)
    z = fourier.features(fourier.block_phases(x[None], drawn))
    return pack_equations(z.T @ z, z.T * y * _LABELS)


# -- kernel PCA

_PCA: dict[str, Any] = {"bandwidth": 0.05, "features": 1, "seed": 0}
_NEAR = 1e-3  # rows so near to each other that their mean has length one, nearly


def _kernel_pca(record: Record, parties: int, *, held_out: bool = False, **budget: Any) -> Run:
    spread = _NEAR if held_out else 1.0
    tables = _both(record, parties, budget["privacy_unit"], held_out=held_out, spread=spread)

    def owner(context: Any, k: int) -> KernelPCAClient:
        (x, _), (x_test, _) = tables[k]
        return KernelPCAClient(context, x, x_test=x_test if held_out else None)

    return KernelPCA(components=1, threshold=3, **_PCA, **budget), served(owner)


def _moments(record: Record) -> Floats:
    found = moments(features_of(record[0][None], **_PCA))
    return np.concatenate([np.ravel(part) for part in found.values()])


def _rest(record: Record) -> Floats:
    """Return what a held-out row leaves, of rows near 1 / 2 whose component is a tangent."""
    z, middle = (features_of(np.full((1, WIDTH), x), **_PCA)[0] for x in (record[0], 0.5))
    whole = float((z - middle) @ (z - middle))
    return np.array([min(float(middle @ (z - middle)) ** 2, whole), whole])


# -- HierarchicalSVM


def _svm(record: Record, parties: int, *, held_out: bool = False, **budget: Any) -> Run:
    tables = _both(record, parties, budget["privacy_unit"], held_out=held_out)

    def user(context: Any, k: int) -> SVMClient:
        (x, y), (x_test, y_test) = tables[k]
        tests: dict[str, Any] = {"x_test": x_test, "y_test": y_test} if held_out else {}
        return SVMClient(context, x, y, classes=(-1.0, 1.0), **tests)

    return HierarchicalSVM(architecture="centralised", C=1.0, seed=0, **budget), served(user)


def _slope(record: Record) -> Floats:
    """Return the gradient at zero, where all rows are within the margin."""
    x, y = record
    rows = shortened(public_coordinates(WIDTH, 0).rows(x[None]))
    return gradient("hinge", rows, np.array([[y]]), np.zeros((1, WIDTH + 1))).ravel()


# -- online methods


def _streams(tables: list[Table]) -> Callable[[Any], Any]:
    return served(lambda context, k: OnlineKernelClient(context, *tables[k]))


def _pof_mkl(record: Record, parties: int, **budget: Any) -> Run:
    which = ALL if budget["privacy_unit"] == "party" else _FIRST
    strategy = POFMKL(kernels=1, features=2, samples_per_round=_ROWS, seed=0, **budget)
    return strategy, _streams(tables_of(record, parties, which))


def signed(record: Record) -> Floats:
    """Return what moves as a residual of theta zero times features of length one: as labels do."""
    x, y = record
    return np.asarray(y * np.append(x, 1.0))


_RLS: dict[str, Any] = {"features": 2, "seed": 0}
_RLS_WIDTH = 0.02


def _sample(x: Floats, y: Any) -> tuple[Floats, Any]:
    """Return columns in [-1, 1] and labels in [0, 1], as the client takes them."""
    return 2.0 * x - 1.0, (np.asarray(y) + 1.0) / 2.0


def _pof_rls(record: Record, parties: int, **budget: Any) -> Run:
    tables = [_sample(*table) for table in tables_of(record, parties)]
    one = {"kernels": 1, "width": _RLS_WIDTH, "samples_per_round": _ROWS}
    return POFRLS(**one, **_RLS, **budget), _streams(tables)


def _products(record: Record) -> Floats:
    x, y = _sample(record[0][None], [record[1]])
    inside = x / max(1.0, float(np.linalg.norm(x)))
    (phi,) = ridge.kernel_rows(x, ridge.widths(1, _RLS_WIDTH), **_RLS)
    return np.concatenate([ridge.sums(rows, y - 0.5) for rows in (ridge.raw_rows(inside), phi)])


_ONE, _ALL_ROWS = {"num_rounds": 1}, {"num_rounds": _ROWS}
CASES: tuple[Case, ...] = (
    Case("fed-cg", _EQUATIONS, 2, _fed_cg, _equations),
    Case("fed-cg", _EQUATIONS, 4, _fed_cg, _equations, colluders=2),
    Case("fed-cg", _EQUATIONS, 3, _fed_cg, _equations, "party"),
    Case("fed-cg", OUTCOMES, 3, partial(_fed_cg, held_out=True), _outcome),
    Case("kernel-pca", "moments", 4, _kernel_pca, _moments, least=3),
    Case("kernel-pca", "evaluate/rest", 4, partial(_kernel_pca, held_out=True), _rest, least=3),
    Case("hierarchical-svm", GRADIENT_SUM, 3, _svm, _slope, start=_ONE),
    Case("hierarchical-svm", OUTCOMES, 3, partial(_svm, held_out=True), _outcome, start=_ONE),
    Case("pof-mkl", UPDATE_SUM, 3, _pof_mkl, signed, start=_ALL_ROWS),
    Case("pof-mkl", UPDATE_SUM, 3, _pof_mkl, signed, "party", start=_ALL_ROWS),
    Case("pof-rls", UPDATE_SUM, 3, _pof_rls, _products, start=_ALL_ROWS, uses=0.8),
)


# -- the attack

#: Budget that the runs declare, and releases of each of the two tables.
EPSILON, DRAWS = 8.0, 2000
#: Confidence of all bounds together: one audit in 10,000 is wrong by chance.
LEVEL = 1.0 - 1e-4


def lower_bounds(seed: int, method: str | None = None, noise: float = 1.0) -> list[Seen]:
    """Prove epsilon of the sums with noise, of one method or of all."""
    cases = [case for case in CASES if method in (None, case.method)]
    each = 1.0 - (1.0 - LEVEL) / (2 * len(CASES))
    options: dict[str, Any] = {"draws": DRAWS, "seed": seed, "confidence": each, "noise": noise}
    return [Seen(case.title, audit_epsilon(case, EPSILON, **options).score) for case in cases]


def on_less_noise(seed: int, method: str | None = None) -> list[Seen]:
    """Prove it with a quarter of the noise's variance: the control."""
    return lower_bounds(seed, method, noise=0.25)
