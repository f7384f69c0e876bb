"""The methods on random data of a given size: what other benchmarks run and take apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray
from scipy import sparse

from fedkern_flwr.clients import (
    GramClient,
    HybridKernelClient,
    OnlineKernelClient,
    SVMClient,
    VerticalKernelClient,
)
from fedkern_flwr.hybrid.landmarks import public_seed
from fedkern_flwr.strategies import (
    FDSKL,
    POFMKL,
    FedCFK,
    FedCG,
    HierarchicalSVM,
    PhaseStrategy,
    SecureGram,
)

KEY = b"the parties' alignment key"

Floats = NDArray[np.float64]


@dataclass
class Case:
    """A run that has not started yet.

    Attributes
    ----------
    strategy : PhaseStrategy
    client_fn : callable
    nodes : int
    start : dict
        Arguments of ``start``.
    """

    strategy: PhaseStrategy
    client_fn: Callable[[Context], Any]
    nodes: int
    start: dict[str, Any] = field(default_factory=dict)


def partition(context: Context) -> int:
    """Return the number of a node."""
    return int(context.node_config["partition-id"])


def labelled(rows: int, columns: int) -> tuple[Floats, Floats, NDArray[np.str_]]:
    """Return rows in the unit cube, classes 0 and 1, and ids."""
    rng = np.random.default_rng(0)
    x = rng.random((rows, columns))
    y = (np.sin(4.0 * (x - 0.5) @ rng.standard_normal(columns)) > 0.0).astype(np.float64)
    return x, y, np.arange(rows).astype(str)


def pof_mkl(
    clients: int, rounds: int, batch: int, features: int, secure: bool, columns: int = 15
) -> Case:
    """POF-MKL; a client's stream is made when it is asked, so that they need no memory."""

    def client_fn(context: Context) -> OnlineKernelClient:
        rng = np.random.default_rng(partition(context))
        x = rng.uniform(-1.0, 1.0, (rounds, columns)) / np.sqrt(columns)
        return OnlineKernelClient(context, x, rng.uniform(0.0, 1.0, rounds))

    chosen = None if secure else 25
    strategy = POFMKL(
        features=features,
        kernels_per_round=chosen,
        secure=secure,
        samples_per_round=batch,
        frequencies_per_round="all",  # whole gradients: the most that there can be
    )
    return Case(strategy, client_fn, clients, {"num_rounds": rounds})


def fed_cg(hospitals: int, centres: int, rows: int, landmarks: int, columns: int = 12) -> Case:
    """FedCG, secure; a tenth of each hospital's rows is held out."""
    x, y, ids = labelled(rows, columns)
    blocks = np.array_split(np.arange(columns), centres + 1)
    dealt = np.array_split(np.arange(rows), hospitals)

    def client_fn(context: Context) -> HybridKernelClient:
        k = partition(context)
        common: dict[str, Any] = {"alignment_key": KEY}
        if k >= hospitals:
            own = blocks[k - hospitals + 1]
            seed = public_seed(0, f"centre {k}")
            return HybridKernelClient(context, x[:, own], ids=ids, landmark_seed=seed, **common)
        train, test = np.split(dealt[k], [-max(1, len(dealt[k]) // 10)])
        own = blocks[0]
        return HybridKernelClient(
            context,
            x[np.ix_(train, own)],
            y[train],
            ids=ids[train],
            x_test=x[np.ix_(test, own)],
            y_test=y[test],
            ids_test=ids[test],
            classes=(0, 1),
            landmark_seed=public_seed(0, "hospitals"),
            **common,
        )

    chosen: dict[str, Any] = {"gamma": 0.5, "regularization": 1e-3, "sampling": "U"}
    strategy = FedCG(landmarks=landmarks, seed=0, solver="normal-equations", **chosen)
    return Case(strategy, client_fn, hospitals + centres)


def _vertical(strategy: FDSKL, parties: int, rows: int, tests: int, start: dict[str, Any]) -> Case:
    x, y, ids = labelled(rows + tests, 4 * parties)
    blocks = np.array_split(np.arange(x.shape[1]), parties)

    def client_fn(context: Context) -> VerticalKernelClient:
        own = blocks[partition(context)]
        if partition(context):
            return VerticalKernelClient(context, x[:, own], ids=ids, alignment_key=KEY)
        return VerticalKernelClient(
            context,
            x[:rows, own],
            y[:rows],
            ids=ids[:rows],
            x_test=x[rows:, own],
            y_test=y[rows:],
            ids_test=ids[rows:],
            classes=(0, 1),
            alignment_key=KEY,
        )

    return Case(strategy, client_fn, parties, start)


def fdskl(parties: int, rows: int, tests: int, features: int, choose: bool = True) -> Case:
    """FDSKL one-shot; ``choose`` whether by cross-validation, else the square loss as given."""
    given: dict[str, Any] = {"gamma": 0.5, "regularization": 1e-4, "loss": "square"}
    strategy = FDSKL(features=features, seed=0, **({} if choose else given))
    return _vertical(strategy, parties, rows, tests, {})


def fdskl_streaming(
    parties: int, rows: int, tests: int, directions: int, batch: int, rounds: int
) -> Case:
    """FDSKL streaming, held-out rows scored once, at the end."""
    strategy = FDSKL(
        schedule="streaming", directions=directions, batch=batch, seed=0, evaluate_every=None
    )
    return _vertical(strategy, parties, rows, tests, {"num_rounds": rounds})


def _matrix(strategy: SecureGram | FedCFK, nodes: int, users: int, items: int) -> Case:
    def client_fn(context: Context) -> GramClient:
        rng = np.random.default_rng(partition(context))
        rows = sparse.csr_array((rng.random((users, items)) < 0.3).astype(np.int64))
        return GramClient(context, rows)

    return Case(strategy, client_fn, nodes)


def secure_gram(nodes: int, users: int, items: int, drop_outs: bool) -> Case:
    """Secure Gram of counts, items in all rows' reach."""
    strategy = SecureGram(min_support=2, drop_outs=drop_outs, seed=0)
    return _matrix(strategy, nodes, users, items)


def fed_cfk(nodes: int, users: int, items: int, drop_outs: bool) -> Case:
    """FedCFK of counts, items in all rows' reach."""
    return _matrix(FedCFK(min_support=2, drop_outs=drop_outs, seed=0), nodes, users, items)


def horizontal_svm(users: int, groups: int, columns: int, rows: int, iterations: int) -> Case:
    """HierarchicalSVM by rows, for as many iterations as are asked for."""
    x, y, _ = labelled(rows, columns)
    dealt = np.array_split(np.arange(rows), users)

    def client_fn(context: Context) -> SVMClient:
        k = partition(context)
        if k >= users:
            return SVMClient(context, role="agent", group=k - users)
        own = dealt[k]
        group = k * groups // users
        return SVMClient(context, x[own], y[own], group=group, classes=(0, 1), allow_single=True)

    strategy = HierarchicalSVM(seed=0, tolerance=1e-15)
    return Case(strategy, client_fn, users + groups, {"num_rounds": iterations})


def vertical_svm(groups: int, users: int, columns: int, rows: int, iterations: int) -> Case:
    """HierarchicalSVM by columns: ``users`` per group hold rows of the group's columns."""
    x, y, ids = labelled(rows, columns)
    blocks = np.array_split(np.arange(columns), groups)
    dealt = np.array_split(np.arange(rows), users)
    count = groups * users

    def client_fn(context: Context) -> SVMClient:
        k = partition(context)
        common: dict[str, Any] = {"alignment_key": KEY}
        if k == count + groups:
            return SVMClient(context, None, y, role="owner", classes=(0, 1), ids=ids, **common)
        if k >= count:
            return SVMClient(context, role="agent", group=k - count, **common)
        group, part = divmod(k, users)
        own = dealt[part]
        return SVMClient(
            context,
            x[np.ix_(own, blocks[group])],
            None,
            group=group,
            ids=ids[own],
            allow_single=True,
            **common,
        )

    strategy = HierarchicalSVM(seed=0, partition="vertical", tolerance=1e-15)
    return Case(strategy, client_fn, count + groups + 1, {"num_rounds": iterations})
