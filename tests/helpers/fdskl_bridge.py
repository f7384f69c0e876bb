"""The bridge from FDSKL's streaming to the paper's program: the same directions, masks and rows.

The strategy's directions are private. Here they are put together from the parties' secret seeds,
and the rows of each batch from the alignment key, and given to ``simulations/papers/fdskl.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.alignment import hash_ids, sort_order
from fedkern_flwr.kernels.frequencies import draw_directions, draw_offsets
from fedkern_flwr.simulations.papers.fdskl import fdskl
from fedkern_flwr.strategies import FDSKL
from fedkern_flwr.vertical.phases import draw_batch

#: Of a coefficient and of f, by the bits of a phase. Each of q <= 8 parties rounds its angle by at
#: most pi / 2^32 = 7e-10: a feature moves by sqrt(2) q 7e-10 < 8e-9, and f by the sum of the
#: coefficients, below 4 here, times that. With 16 bits it is 2^16 times as much.
TOLERANCE = {32: 3e-8, 16: 3e-8 * 2**16}


def paper_run(
    strategy: FDSKL, tables: Sequence[dict[str, Any]], key: bytes, rounds: int
) -> tuple[dict[int, NDArray[Any]], dict[str, float]]:
    """Return what the paper's program makes of what a run of streaming with B = r = 1 had.

    Parameters
    ----------
    strategy : FDSKL
        With step, regularization, gamma and loss given.
    tables : sequence of dict
        Arguments of the parties' clients; labels of two classes.
    key : bytes
        The alignment key.
    rounds : int
        T.

    Returns
    -------
    coefficients : dict
        Active party -> those of its directions, shape (n, 1). That of iteration t follows from f
        of the t-th iterate, so they are equal only if all iterates are.
    scores : dict
        Id of a held-out row -> f.
    """
    assert strategy.batch == strategy.directions == 1
    named = [np.concatenate([t["ids"], t.get("ids_test", ())]).astype(str) for t in tables]
    ids = np.unique(named[0])
    parts, order = [], {name: place for place, name in enumerate(ids)}
    y = np.zeros(len(ids))
    train: dict[int, NDArray[Any]] = {}
    tests: list[int] = []
    for k, (table, names) in enumerate(zip(tables, named, strict=True)):
        places = np.array([order[name] for name in names])
        x = np.concatenate([table["x"], *([table["x_test"]] if "x_test" in table else [])])
        assert sorted(places) == [*range(len(ids))]
        parts.append(x[np.argsort(places)])
        if "y" not in table:
            continue
        labels = np.asarray(table["y"], float)
        known = np.isfinite(labels)
        own = places[: len(labels)][known]
        y[own] = np.where(labels[known] == 1, 1.0, -1.0)
        ranks = hash_ids(ids[own].astype(str), key, f"order {strategy.run_seed}")
        train[k] = own[sort_order(ranks)]
        tests += places[len(labels) :].tolist()
    actives = [*train]
    leaders = [actives[t % len(actives)] for t in range(rounds)]
    rows = [
        int(train[leader][draw_batch(strategy.run_seed, t + 1, len(train[leader]), 1)[0]])
        for t, leader in enumerate(leaders)
    ]
    law = (strategy.kernel, strategy.gamma)
    omega = np.zeros((rounds, sum(part.shape[1] for part in parts)))
    b = np.zeros((rounds, len(parts)))
    ends = np.cumsum([part.shape[1] for part in parts])
    for owner in actives:
        mine = np.equal(leaders, owner)
        for k, (table, part, end) in enumerate(zip(tables, parts, ends, strict=True)):
            seed, width = table["frequency_seed"], part.shape[1]
            drawn = draw_directions(seed, owner, int(mine.sum()), width, *law)  # type: ignore[arg-type]
            omega[mine, end - width : end] = drawn
            b[mine, k] = draw_offsets(seed, owner, int(mine.sum()), *law)  # type: ignore[arg-type]
    result, _ = fdskl(
        parts,
        y,
        leaders,
        rows,
        omega,
        b,
        step=strategy.chosen_step,
        regularization=strategy.chosen_regularization,
        loss=strategy.chosen_loss,
        structure="star",
        tests=tests,
    )
    found = {owner: result.alpha[np.equal(leaders, owner)][:, None] for owner in actives}
    return found, dict(zip(ids[tests].tolist(), result.scores.tolist(), strict=True))
