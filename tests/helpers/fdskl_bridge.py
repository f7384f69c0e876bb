"""FDSKL's streaming against the paper's program and plain loops: the same directions and rows.

The strategy's directions are private. Here they are put together from the parties' secret seeds,
and the rows of each batch from the alignment key, and given to ``simulations/papers/fdskl.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pooled import KEY, Floats, joint, outputs, signs
from zoo import WAYS, Found, Table, Way, columns_of_parties

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


# -- small runs

STREAM: Table = {"schedule": "streaming", "batch": 6, "directions": 3, "step": 0.3}


def way(
    kind: Any = 2, actives: int = 1, rounds: int | None = None, parties: int = 4, **options: Any
) -> Way:
    """Return a way of FDSKL over the first parties, two of which may be all."""
    tables = partial(columns_of_parties, kind, actives=actives)
    alone: Table = {"allow_single": True} if parties == 2 else {}
    given: Table = {"gamma": 0.5, "phase_bits": 32, "seed": 3, "regularization": 0.02, **alone}
    common: Table = {"alignment_key": KEY, **alone}
    if options.get("schedule") != "streaming":
        given["features"] = 20
    made = replace(WAYS["fdskl"], tables=lambda: tables()[:parties], rounds=rounds, common=common)
    return replace(made, options={k: v for k, v in {**given, **options}.items() if v != "leave"})


def streaming(*more: Any, **options: Any) -> Way:
    """Return a way of streaming, like :func:`way`."""
    return way(*more, **{"loss": "square", **STREAM, **options})


# -- doubly stochastic gradients in plain loops


def slope(loss: str, f: float, y: float) -> float:
    """Return the derivative of a loss by f."""
    if loss == "square":
        return 2.0 * (f - y)
    if loss == "logistic":
        return -y / (1.0 + np.exp(y * f))
    return 0.0 if y * f >= 1.0 else -y if y * f <= 0.0 else -y * (1.0 - y * f)


def drawn(seed: int, iteration: int, rows: int, size: int) -> list[int]:
    """Return the rows of a batch, in the order of the run."""
    digest = hashlib.blake2b(f"{seed}/batch/{iteration}".encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "little") >> 1)
    return sorted(rng.choice(rows, size=min(size, rows), replace=False).tolist())


def orders(found: Found, ids: list[str]) -> tuple[list[list[int]], Floats]:
    """Return the rows that each active party learns from, in the order of the run; all targets."""
    rows, y = [], dict[str, Any]()
    for table in (t for t in found.sites.tables if "y" in t):
        known = np.isfinite(table["y"])
        names, classes = table["ids"][known], table.get("classes")
        y |= dict(zip(names, signs(table["y"][known], classes), strict=True))
        ranks = hash_ids(names, KEY, f"order {found.strategy.run_seed}")
        rows.append([ids.index(i) for i in names[sort_order(ranks)]])
    bound = found.sites.tables[0].get("label_bound", 1.0)
    return rows, np.array([y.get(i, next(iter(y.values())) * np.nan) for i in ids]) / bound


def dsg(found: Found, **changes: Any) -> dict[str, Floats]:
    """Return f (equation 7) of held-out rows, by id; ``changes`` are of the run's options."""
    of: Table = {"decays": True, "step_schedule": "constant", "rounds": found.way.rounds}
    of |= {**found.strategy.options(), **found.way.options, **changes}
    owners = [k for k, t in enumerate(found.sites.tables) if "y" in t]
    new, lam = of["directions"], of["regularization"]
    phis = [joint(found, k, of["rounds"] * new) for k in owners]
    ids, phi = phis[0][1], [one for one, _ in phis]
    rows, y = orders(found, ids)
    alpha = [np.zeros((0, y.shape[1])) for _ in owners]
    for t in range(1, of["rounds"] + 1):
        k, rate = (t - 1) % len(owners), of["step"]
        rate /= 1.0 + rate * lam * t if of["step_schedule"] == "diminishing" else 1.0
        some = [rows[k][i] for i in drawn(of["seed"], t, len(rows[k]), of["batch"])]
        have, slopes = len(alpha[k]), np.zeros((len(some), y.shape[1]))
        for place, i in enumerate(some):
            f = sum(p[i, : len(a)] @ a for p, a in zip(phi, alpha, strict=True))
            slopes[place] = [slope(of["loss"], *both) for both in zip(f, y[i], strict=True)]
        fresh = phi[k][some, have : have + new].T @ slopes * (-rate / new / len(some))
        alpha = [a * (1.0 - rate * lam * of["decays"]) for a in alpha]
        alpha[k] = np.concatenate([alpha[k], fresh])
    f = sum(p[:, : len(a)] @ a for p, a in zip(phi, alpha, strict=True))
    f = f * found.sites.tables[0].get("label_bound", 1.0)
    tests = [str(i) for k in owners for i in found.sites.tables[k]["ids_test"]]
    return {i: f[ids.index(i)] for i in tests}


def gap(found: Found, **changes: Any) -> float:
    """Return max |f - f| of held-out rows, as the parties wrote them and in plain loops."""
    expected = dsg(found, **changes)
    assert max(np.abs(f).max() for f in expected.values()) > 0.05
    return float(np.abs(outputs(found, expected) - np.array([*expected.values()])).max())
