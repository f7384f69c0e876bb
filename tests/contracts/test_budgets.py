"""Contract: a run with a budget that breaks off goes on with its noise, and is paid once.

Else its noise would be drawn again, and the mean of two has less of it; or its owner would pay
twice. Of the methods that ask again for what is missing; online methods lose such rounds:
tests/core/test_online_private.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import Cut, PowerCutError
from identities import know_noise, known, paid_epsilons
from refusals import raises
from zoo import WAYS, Found

from fedkern_flwr.errors import FedKernError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.simulations import Fault

pytestmark = pytest.mark.usefixtures("cheap_noise")
EPSILON = 8.0
#: Way -> number of the exchange in which held-out rows are judged.
LAST = {
    "fed-cg, private": 3,
    "fed-cg, rows, private": 2,
    "hierarchical-svm, private": 5,
    "kernel-pca, private": 4,
}
Run = Callable[..., Found]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a way at deployed nodes that know each other, each with its ledger."""
    know_noise(monkeypatch)

    def fit(name: str, place: str, faults: Any = None, **more: Any) -> Found:
        policy = NodePolicy(max_epsilon=EPSILON, counting="warn")  # so nothing is paid for twice
        sites = known(WAYS[name].sites(tmp_path / place, guarded=True, policy=policy))
        keep = {"checkpoint": tmp_path / f"{place}.npz", "attempts": 2}
        return sites.fit(faults=faults, **keep, **more)

    return fit


@pytest.mark.parametrize("name", LAST)
def test_a_run_goes_on_with_its_noise_and_is_paid_once(name: str, run: Run, tmp_path: Path) -> None:
    """The server breaks down, or two nodes fail while all others have answered."""

    def gone(delivery: Any) -> Fault | None:
        late = delivery.round >= LAST[name] and delivery.partition in (1, 2)
        return Fault("error") if late else None

    quiet, went_on = run(name, "quiet").strategy, 0
    cuts = [Cut(number=k, parties=1 + k % 2) for k in range(quiet.ledger_.exchanges - 1, 1, -3)]
    for number, plan in enumerate([*cuts, gone]):
        place = str(number)
        raises((PowerCutError, FedKernError), run, name, place, plan)
        if not (tmp_path / f"{place}.npz").exists():  # nothing was kept yet
            continue
        found, went_on = run(name, place, resume=True).strategy, went_on + 1
        for part, values in quiet.model()[0].items():
            np.testing.assert_array_equal(found.model()[0][part], values)
        assert found.metrics_ == quiet.metrics_
        assert found.privacy()["budget"] == quiet.privacy()["budget"]
        for k in range(len(WAYS[name].tables())):
            assert paid_epsilons(tmp_path / place, k) == pytest.approx([EPSILON], rel=1e-2)
    assert went_on >= 2
