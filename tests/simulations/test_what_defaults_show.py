"""What the defaults show to whom, beyond the table of attacks: secrets, orders, sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedkern_flwr.groups import messages as wire
from fedkern_flwr.hybrid.landmarks import draw_landmarks, public_seed
from fedkern_flwr.simulations.attacks import fed_cg, hierarchical_svm
from fedkern_flwr.simulations.attacks.distances import trilaterate
from fedkern_flwr.simulations.attacks.fed_cg import CENTRES, COLUMNS, LANDMARKS, FedCGRun, of_rows

GUESS = 0.3  # correlation of somebody who has nothing


# -- FedCG: three hospitals with a block, two centres with a block each


def run_of(seed: int) -> FedCGRun:
    """A run with the secret of each party's landmarks noted."""
    secrets: dict[int, bytes] = {}
    listen = fed_cg.Insiders.listen

    def noting(self: Any, client: Any, insider: Any) -> None:
        listen(self, client, insider)
        drawn = client._landmarks

        def landmarks() -> Any:
            secrets[client.partition] = client.kept.seed
            return drawn()

        client._landmarks = landmarks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fed_cg.Insiders, "listen", noting)
        run = fed_cg.default_run.__wrapped__(seed)
    run.secrets = secrets
    return run


@pytest.fixture(scope="module")
def runs() -> tuple[Any, Any]:
    """Two runs over the same rows."""
    return run_of(0), run_of(0)


@pytest.mark.parametrize("centre", [3, 4])
def test_a_centre_learns_which_rows_are_whose_and_nothing_else(
    runs: tuple[Any, Any], centre: int
) -> None:
    assert not runs[0].insiders.parties[centre].totals
    sent = [p for p in runs[0].messages if p.partition == centre and not p.up]
    assert sent
    for passed in sent:
        numbers = [a for a in passed.message.arrays() if a.dtype.kind == "f" and a.size]
        assert all(a is passed.message.gammas for a in numbers)
        assert {s.phase for s in passed.sections} <= {"sum-roster", "sum-order"}


def test_only_the_holders_of_a_block_have_its_landmarks(runs: tuple[Any, Any]) -> None:
    """Three hospitals share theirs by sealed messages; all is drawn anew in the next run."""
    for run in runs:
        seeds = [run.secrets[p] for p in range(5)]
        assert seeds[0] == seeds[1] == seeds[2]
        assert len({seeds[0], seeds[3], seeds[4]}) == 3
        assert all(len(seed) == 32 for seed in seeds)
    assert all(runs[0].secrets[p] != runs[1].secrets[p] for p in range(5))
    passed = sent_bytes(runs[0])
    for party, seed in runs[0].secrets.items():
        assert seed[:8] not in passed
        assert seed[-8:] not in passed
        assert runs[0].insiders.parties[party].landmarks[0, :1].tobytes() not in passed


def sent_bytes(run: FedCGRun) -> bytes:
    """All bytes that passed, and all text."""
    parts = []
    for entry in run.transcript.entries():
        parts += [array.tobytes() for array in entry.arrays]
        parts += [v if isinstance(v, bytes) else str(v).encode() for v in entry.scalars.values()]
    return b"|".join(parts)


@pytest.mark.parametrize("hospital", [0, 2])
def test_a_hospital_cannot_trilaterate_as_it_has_not_the_centres_landmarks(
    runs: tuple[Any, Any], hospital: int
) -> None:
    ((total, rows, landmarks),) = runs[0].totals(hospital)
    assert of_rows(trilaterate(total, landmarks), rows) > 0.999  # with them it could
    shapes = {block: np.tile([0.0, 1.0], (len(COLUMNS[block]), 1)) for block in CENTRES}
    own = runs[0].secrets[hospital]
    for seeds in (dict.fromkeys(CENTRES, own), {b: public_seed(0, b) for b in CENTRES}):
        guess = np.hstack([draw_landmarks(seeds[b], LANDMARKS, shapes[b]) for b in CENTRES])
        assert abs(of_rows(trilaterate(total, guess), rows)) < 2.0 * GUESS


def test_the_server_opens_sums_over_all_hospitals_only(runs: tuple[Any, Any]) -> None:
    sums: dict[str, set[int]] = {}
    for vector in runs[0].masked():
        if vector.order.receiver < 0 and not vector.delivered:
            sums.setdefault(vector.order.name.partition("/")[0], set()).add(vector.partition)
    assert {"mean distance", "equations"} >= set(sums) >= {"equations"}
    assert all(members >= {0, 1, 2} for members in sums.values())


# -- HierarchicalSVM


def test_the_server_learns_how_many_rows_a_class_has_where_classes_are_weighted_only() -> None:
    lengths = []
    for weights in (None, "balanced"):
        run = hierarchical_svm.horizontal.__wrapped__(0, class_weight=weights)[0]
        names = {v.order.name: v.order.length for v in run.masked()}
        (found,) = [n for name, n in names.items() if name.startswith(wire.STATISTICS_SUM)]
        lengths.append(found)
    assert lengths[1] == lengths[0] + 1  # one number for two classes
