"""The online methods against a server that inverts gradients, or sums of products."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkern_flwr.online import ridge, ridge_plan

from ....strategies import POFRLS
from ..attacks.gradient_inversion import Floats, Inversion
from ..attacks.transcripts import Observation, invert, observe, observe_products
from .evidence import Sheet, Subject
from .plan import ALLOW_SMALL_SUMS, Plan, Recorded, Variant
from .released_sums import (
    PRODUCTS,
    SERVER,
    attack_joint,
    attack_lonely,
    attack_products,
    keep_sums,
)


def inspect(run: Recorded, sheet: Sheet) -> None:
    """Invert every client's reply of every round, and the sums."""
    if isinstance(run.strategy, POFRLS):
        inspect_products(run, sheet)
        return
    samples = run.strategy.batch_size()
    seen = list(observe(run.transcript))
    x, y = truth(run, seen)
    found = [invert(each) for each in seen]
    lost = Inversion(np.full(x.shape[1], np.nan), np.nan, np.inf)
    whose = "one client's sample" if samples == 1 else "a sample of one client's round"
    rows = np.array([(f or lost).x for f in found])
    labels = np.array([[(f or lost).y] for f in found])
    sheet.rows(Subject("gradient inversion", SERVER, f"{whose}: features"), rows, x)
    sheet.rows(Subject("gradient inversion", SERVER, f"{whose}: label"), labels, y[:, None])
    if run.released:
        requests = {each.round: each.request for each in seen}
        alone = attack_lonely(run.released, requests, [each.round for each in seen], x.shape[1])
        sheet.rows(Subject("sum inversion", SERVER, f"{whose}: features"), alone, x)
        attack_joint(run, requests, sheet)


def inspect_products(run: Recorded, sheet: Sheet) -> None:
    """Read a row off each client's matrix, and compute those behind the sums.

    The last row of a matrix of raw columns and a one is the sum of the rows, which with one sample
    of a client is the row. A masked vector is read as if it had no mask.
    """
    found, true, requests = [], [], {}
    for partition, request, vector in observe_products(run.transcript):
        shard, requests[request.round] = run.prepared.clients.shards[partition], request
        dimension = shard.x.shape[1]
        if request.raw:
            raw = vector[: ridge.numbers(dimension + 1)] / ridge_plan.scale(request.samples)
            ends = np.cumsum(np.arange(dimension + 1, 1, -1)) - 1  # of rows of the triangle
            mean = np.append(raw[ends], raw[-1]) / request.samples
            found.append(mean + np.append(np.zeros(dimension), request.centre))
        else:
            found.append(np.full(dimension + 1, np.nan))
        true.append(np.append(shard.x[request.step], shard.y[request.step]))
    alone = max(request.samples for request in requests.values()) == 1
    whose = "one client's sample" if alone else "a sample of one client's round"
    subject = Subject(PRODUCTS, SERVER, f"{whose}: features, label")
    sheet.rows(subject, np.array(found), np.array(true))
    if run.released:
        attack_products(run, requests, sheet)


def truth(run: Recorded, seen: list[Observation]) -> tuple[Floats, Floats]:
    """Return the first sample of each observation, shapes (n, d) and (n,)."""
    shards = run.prepared.clients.shards
    places = [(shards[s.partition], s.request.step % len(shards[s.partition].x)) for s in seen]
    x, y = ([getattr(shard, name)[row] for shard, row in places] for name in ("x", "y"))
    return np.array(x), np.array(y)


_GRADIENTS = ("pof-mkl", "ofskl", "ofmkl-avg", "vm-kofl", "em-kofl", "per-fed-avg")
_METHODS = (*_GRADIENTS, "pof-rls")
_INVERSION, _JOINT = ("gradient inversion",), ("joint inversion",)
#: Sums of the products of one sample of each client, as many as are wanted.
_PRODUCTS = {"samples_per_round": 1, "clients": 5, "allow_small_sums": True}
#: Clients choose one kernel each.
_LONELY = {
    "kernels_per_round": 1,
    "features": 40,
    "samples_per_round": 1,
    "allow_small_sums": True,
}
#: Release 0.1: whole gradients, whatever the number of samples.
_UNCOUNTED = {"frequencies_per_round": "all", "allow_small_sums": True}
#: Sums of 10 samples, with the paper's step size as well, of 2 and of 5.
_SMALL: tuple[dict[str, Any], ...] = (
    {"samples_per_round": 1},
    {"samples_per_round": 1, "step_size": "paper"},
    {"samples_per_round": 1, "clients": 2},
    {"samples_per_round": 1, "clients": 5},
)

PLAN = Plan(
    methods=_METHODS,
    inspect=inspect,
    variants=(
        *(Variant(name) for name in _METHODS),
        *(Variant(name, {"secure": False}, _INVERSION) for name in _GRADIENTS),
        Variant("pof-rls", {"secure": False}, (PRODUCTS,)),
        Variant("pof-rls", _PRODUCTS, (PRODUCTS,)),
        Variant("pof-mkl", _LONELY, ("sum inversion",)),
        Variant("pof-mkl", {"step_size": "paper"}),
        *(Variant("pof-mkl", {**options, **_UNCOUNTED}, _JOINT) for options in _SMALL),
    ),
    defaults={"secure": True, "rounds": 30, "scaling": "range"},
    why="Secure sums are on, and samples per message and numbers per round are chosen by the rule "
    "of counting, as in a deployment; there are fewer rounds.",
    spy=keep_sums,
    hidden=("hindsight",),
    own=(ALLOW_SMALL_SUMS,),
)
