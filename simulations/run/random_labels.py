"""Random labels, as in Table 2 of the paper on HierarchicalSVM."""

from __future__ import annotations

import numpy as np

from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.tables.table import Table

#: How presets call it.
RANDOM_LABELS = "random-labels"

_USERS, ROWS, COLUMNS = 100, 100, 25


def random_labels(seed: int) -> Table:
    """Draw 100 x 100 standard normal rows of 25 columns, with labels -1 and 1 by chance.

    Parameters
    ----------
    seed : int
        Seed of the draw.

    Returns
    -------
    Table
        Without held-out rows.

    References
    ----------
    Jia, Guo and Fang, "Efficient Privacy-Preserving Machine Learning in Hierarchical Distributed
    System", IEEE TNSE 2019, section 7.2.

    Examples
    --------
    >>> table = random_labels(0)
    >>> table.x.shape, np.unique(table.y).tolist()
    ((10000, 25), [-1.0, 1.0])
    """
    rng = np.random.default_rng(derive_seed(seed, "random labels"))
    rows = _USERS * ROWS
    return Table(
        x=rng.standard_normal((rows, COLUMNS)),
        y=rng.choice([-1.0, 1.0], rows),
        columns=tuple(f"x{k + 1}" for k in range(COLUMNS)),
        label="label",
    )
