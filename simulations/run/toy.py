"""Toy set of the FedCG paper: three hospitals with different patients."""

from __future__ import annotations

import numpy as np

from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.tables.table import Table

_CENTRES = np.array([[2.0, 5.0], [0.0, 2.0], [2.0, -1.0]])
_LABELS = np.array([1.0, 0.0, 1.0])
_ROWS = 2000  # per hospital, for training and for testing


def three_hospitals(seed: int) -> Table:
    """Generate 6000 training and 6000 test rows of three hospitals and two classes.

    Hospital h has 2000 rows with unit covariance around (2, 5), (0, 2) or (2, -1). The label is 0
    at hospital 1 and 1 at the others, so no local model can learn. The best rule has accuracy
    0.953, recall 0.965 and precision 0.964. Two features are scaled to [0, 1]; the third is a
    constant bias.

    Parameters
    ----------
    seed : int
        Seed of the draw.

    Returns
    -------
    Table
        Rows sorted by ``site``, the hospital 0, 1 or 2; the test rows are in the same order.

    References
    ----------
    Damiani, Rodina and Decherchi, "A Hybrid Federated Kernel Regularized Least Squares
    Algorithm", 2024, table 1. The places and labels are those of the authors' programs
    (github.com/celestedamiani/Hybrid-Fed-KRLS); the draw is ours.

    Examples
    --------
    >>> table = three_hospitals(0)
    >>> table.x.shape, table.x_test.shape, np.unique(table.site).tolist()
    ((6000, 3), (6000, 3), [0, 1, 2])
    """
    rng = np.random.default_rng(derive_seed(seed, "three hospitals"))
    site = np.repeat(np.arange(len(_CENTRES)), _ROWS)
    train, test = (_CENTRES[site] + rng.standard_normal((len(site), 2)) for _ in range(2))
    lowest, highest = train.min(axis=0), train.max(axis=0)
    test = np.clip(test, lowest, highest)
    bias = np.ones((len(site), 1))
    return Table(
        x=np.hstack([(train - lowest) / (highest - lowest), bias]),
        y=_LABELS[site],
        columns=("x1", "x2", "bias"),
        label="class",
        site=site,
        x_test=np.hstack([(test - lowest) / (highest - lowest), bias]),
        y_test=_LABELS[site],
    )
