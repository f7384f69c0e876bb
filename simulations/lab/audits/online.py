"""POF-MKL and its baselines against a server that inverts gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..attacks.gradient_inversion import Floats, Inversion
from ..attacks.transcripts import Observation, invert, observe
from .evidence import Sheet, Subject
from .plan import ALLOW_SMALL_SUMS, Plan, Recorded, Variant
from .released_sums import SERVER, attack_joint, attack_lonely, keep_sums


def inspect(run: Recorded, sheet: Sheet) -> None:
    """Invert every client's reply of every round, and the sums."""
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


def truth(run: Recorded, seen: list[Observation]) -> tuple[Floats, Floats]:
    """Return the first sample of each observation, shapes (n, d) and (n,)."""
    shards = run.prepared.clients.shards
    places = [(shards[s.partition], s.request.step % len(shards[s.partition].x)) for s in seen]
    x, y = ([getattr(shard, name)[row] for shard, row in places] for name in ("x", "y"))
    return np.array(x), np.array(y)


_METHODS = ("pof-mkl", "ofskl", "ofmkl-avg", "vm-kofl", "em-kofl", "per-fed-avg")
_INVERSION, _JOINT = ("gradient inversion",), ("joint inversion",)
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
        *(Variant(name, {"secure": False}, _INVERSION) for name in _METHODS),
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
