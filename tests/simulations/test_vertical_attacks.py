"""FDSKL against everybody who takes part: what trees and public directions give away, what is left.

Attacks succeed on the paper's mode and fail on the default; each has a control that shows that the
test could fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from attacked import KEY, UNIFORM, X, Y, p_uniform
from flwr.app import Context
from flwr.clientapp import ClientApp
from scipy.spatial.distance import cdist

from fedkern_flwr.clients import VerticalKernelClient
from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.kernels.frequencies import draw_directions, public_frequency_seed
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.simulations import InProcessGrid, Transcript, simulate
from fedkern_flwr.simulations.engines import Audit, RecordingGrid
from fedkern_flwr.simulations.engines.direct import as_client
from fedkern_flwr.simulations.lab.attacks.errors import correlation
from fedkern_flwr.simulations.lab.attacks.hybrid_rows import match_columns
from fedkern_flwr.simulations.lab.attacks.seen import MaskedVector
from fedkern_flwr.simulations.lab.attacks.vertical import Hop, OthersPhases, VerticalRun
from fedkern_flwr.simulations.lab.attacks.vertical_inference import (
    differences_of_phases,
    distances_of_phases,
    independent_columns,
    offsets_cancelled,
    row_differences,
    row_of_bounds,
    rows_of_known,
    rows_up_to_map,
    without_masks,
)
from fedkern_flwr.simulations.lab.attacks.vertical_insiders import VerticalInsiders
from fedkern_flwr.strategies import FDSKL
from fedkern_flwr.vertical import messages as wire
from fedkern_flwr.vertical import phase_tuning, trees
from fedkern_flwr.vertical.phase_tuning import Fitted

EXACT = 1e-9
SIGMAS = 6.0
TURN = 2.0 * np.pi


ACTIVE, CLINIC, LABORATORY, IMAGES = range(4)
COLUMNS = {ACTIVE: [0, 1], CLINIC: [4, 5, 8], LABORATORY: [14, 9], IMAGES: [21, 24, 27]}
LEARNED = 500  # directions of runs that make a model
RADIUS = 8**0.5  # of differences of the others' eight columns


@dataclass
class Split:
    """Parties with columns of the same rows, in an order of their own each.

    Rows before ``train`` have labels, those after them are held out; with several active parties,
    the first ones, each has the labels of every so manieth. ``of`` has more options of partitions.
    Directions are the same in all runs; masks are not.
    """

    parties: int = 4
    train: int = 60
    tests: int = 10
    actives: int = 1
    x: np.ndarray = field(default_factory=lambda: X)
    columns: dict[int, list[int]] = field(default_factory=lambda: COLUMNS)
    options: dict[str, Any] = field(default_factory=dict)
    of: dict[int, dict[str, Any]] = field(default_factory=dict)

    def client_fn(self, context: Context) -> VerticalKernelClient:
        k = int(context.node_config["partition-id"])
        order = np.random.default_rng(k).permutation(self.train + self.tests)
        secret = bytes([k + 1]) * 32
        common = {"alignment_key": KEY, "frequency_seed": secret}
        options = {**common, **self.options, **self.of.get(k, {})}
        features, mine = self.x[:, self.columns[k]], order % self.actives == k
        if k >= self.actives:
            return VerticalKernelClient(context, features[order], ids=order, **options)
        test = order[(order >= self.train) & mine]
        rest = np.setdiff1d(order, test)
        labels = np.where((rest < self.train) & (rest % self.actives == k), Y[rest], np.nan)
        return VerticalKernelClient(
            context,
            features[rest],
            labels,
            ids=rest,
            x_test=features[test],
            y_test=Y[test],
            ids_test=test,
            classes=(0, 1),
            **options,
        )


@dataclass
class Recorded:
    strategy: FDSKL
    seen: VerticalRun
    audit: Audit


def no_model(_: str, phases: np.ndarray, targets: np.ndarray, **__: Any) -> Fitted:
    """Training takes time, and comes after all that is attacked has been sent."""
    return Fitted(np.zeros((phases.shape[1], targets.shape[1])), 1, 1.0)


def run(where: Split, strategy: FDSKL, rounds: int = 4) -> Recorded:
    insiders, transcript, counted = VerticalInsiders(), Transcript(), Audit()
    client_fn = insiders.watch(where.client_fn)
    learn = phase_tuning.fit if (strategy.features or 2000) <= LEARNED else no_model
    with mock.patch.object(phase_tuning, "fit", learn):
        simulate(
            strategy,
            client_fn,
            where.parties,
            transcript=transcript,
            audit=counted,
            num_rounds=rounds,
        )
    return Recorded(strategy, VerticalRun(transcript, insiders), counted)


def fit(
    where: Split | None = None,
    kind: Callable[..., FDSKL] = FDSKL,
    rounds: int = 4,
    node: dict[str, Any] | None = None,
    **options: Any,
) -> Recorded:
    """Run with nodes that take part in runs of this kind."""
    where = Split() if where is None else where
    agreed = {name: options[name] for name in ("frequencies", "topology") if name in options}
    where = replace(where, options={**where.options, **agreed, **(node or {})})
    given: dict[str, Any] = {"seed": 1, **options}
    if given.get("schedule") != "streaming":
        given = {"features": 500, "regularization": 1e-3, **given}
    return run(where, kind(**given), rounds)


def resultant(one: np.ndarray, other: np.ndarray) -> float:
    """How far two sets of angles agree: 1 if they differ by a constant, about 0 if in nothing."""
    return float(np.abs(np.exp(1j * (one - other)).mean()))


def true_directions(seen: VerticalRun, viewer: int, count: int) -> np.ndarray:
    """Omega of the others' columns, which a viewer of the default does not have."""
    parts = [seen.own_directions(p, viewer, count)[0] for p in seen.others(viewer)]
    return np.hstack(parts)


def shown(seen: VerticalRun) -> tuple[OthersPhases, np.ndarray]:
    """What the active party has of the others, and their columns."""
    phases = seen.phases(ACTIVE)
    assert phases is not None
    return phases, seen.features(seen.others(ACTIVE), ACTIVE, phases.rows)


def resultants(seen: VerticalRun) -> list[float]:
    """How far the active party's phases agree with those of each other party."""
    phases, _ = shown(seen)
    found = []
    for party in seen.others(ACTIVE):
        omega, offsets = seen.own_directions(party, ACTIVE, phases.angles.shape[1])
        values = seen.features([party], ACTIVE, phases.rows) @ omega.T + offsets
        found.append(resultant(phases.angles, values))
    return found


# -- the paper's trees


@pytest.fixture(scope="module")
def paper() -> VerticalRun:
    """Trees with real-valued masks, directions that everybody knows."""
    where = Split(train=20, tests=5)
    options = {"topology": "tree", "frequencies": "shared", "gamma": 0.5}
    return fit(where, features=4000, **options).seen


@pytest.fixture(scope="module")
def default() -> Recorded:
    """Masked star, private directions."""
    return fit(Split(train=100), features=2000)


@pytest.fixture(scope="module")
def usual() -> VerticalRun:
    """The default with a width that is given."""
    return fit(gamma=0.5).seen


def single(seen: VerticalRun) -> Iterator[Hop]:
    """What came straight from one party with o + b of that party alone."""
    for viewer in seen.parties:
        for hop in seen.hops(viewer):
            if hop.tree == 1 and len(hop.parties) == 1:
                yield hop


def truth(seen: VerticalRun, hop: Hop) -> np.ndarray:
    return seen.features(sorted(hop.parties), hop.viewer, hop.rows)


def test_bounds_of_a_mask_give_a_worker_the_row_of_its_child(paper: VerticalRun) -> None:
    """The paper's inference attack (Definition 6), which Theorem 7 says to be impossible."""
    found = list(single(paper))
    assert {hop.viewer for hop in found} > {ACTIVE}  # passive workers, too
    for hop in found:
        for values, x in zip(hop.values[:3], truth(paper, hop), strict=False):
            row = row_of_bounds(values, hop.directions)
            assert row is not None
            assert np.abs(row - x).max() < 0.01


def test_more_directions_give_sharper_bounds(paper: VerticalRun) -> None:
    hop = next(single(paper))
    x = truth(paper, hop)[0]
    errors = []
    for count in (250, 4000):
        parts = [slice(k, k + count) for k in range(0, 4000, count)]
        rows = [row_of_bounds(hop.values[0, p], hop.directions[p]) for p in parts]
        errors.append(np.mean([np.abs(row - x).max() for row in rows]))
    assert errors[1] < errors[0] / 4.0


def test_bounds_hold_for_no_row_if_masks_are_longer_or_directions_are_others(
    paper: VerticalRun,
) -> None:
    """Control: the attack can fail."""
    hop = next(single(paper))
    wide = hop.values[0] + np.random.default_rng(0).uniform(0.0, 10 * TURN, 4000)
    assert row_of_bounds(wide, hop.directions) is None
    assert row_of_bounds(hop.values[0], hop.directions[::-1]) is None


@pytest.mark.parametrize("frequencies", ["shared", "private"])
def test_a_mask_per_direction_gives_differences_of_rows(
    paper: VerticalRun, frequencies: str
) -> None:
    """Exactly if the directions are known, else up to a linear map."""
    seen = paper
    if frequencies == "private":
        seen = fit(Split(train=40), topology="tree", gamma=0.5, features=100).seen
    hops = [hop for viewer in seen.parties for hop in seen.hops(viewer) if hop.tree == 1]
    assert {hop.viewer for hop in hops} > {ACTIVE}
    for hop in hops:
        x = truth(seen, hop)
        if hop.directions is None:
            assert frequencies == "private"
            differences = hop.values - hop.values[0]
            assert np.linalg.matrix_rank(differences, tol=1e-8) == x.shape[1]
            mapped = np.linalg.lstsq(differences[:9], x[:9] - x[0], rcond=1e-10)[0]
            assert np.abs(differences @ mapped + x[0] - x).max() < 1e-7
        else:
            found = row_differences(hop.values, hop.directions)
            assert np.abs(found - (x - x[0])).max() < EXACT
            masks = np.random.default_rng(0).uniform(0.0, TURN, hop.values.shape)
            redrawn = row_differences(hop.values + masks, hop.directions)  # control
            assert np.abs(redrawn - (x - x[0])).max() > 0.05


def trees_of(parties: int, seed: int) -> tuple[trees.Tree, trees.Tree, int]:
    """The trees of a run's first active party, and l'."""
    others = range(1, parties)
    kept = others[derive_seed(seed, "kept", 0) % len(others)]
    return (*trees.make_trees(range(parties), 0, kept, derive_seed(seed, "trees", 0)), kept)


@pytest.mark.parametrize("parties", [3, 4])
@pytest.mark.parametrize("safe", [False, True])
def test_two_totally_different_trees_give_a_worker_both_a_value_and_its_mask(
    parties: int, safe: bool
) -> None:
    """Lemma 2 says that this cannot be; private directions do not help."""
    many = (
        seed for seed in range(100) if bool(trees.exposed_sums(*trees_of(parties, seed))) != safe
    )
    seed = next(many)
    if not safe:
        while not trees.exposed(*trees_of(parties, seed)):
            seed = next(many)
    expected = trees.exposed_sums(*trees_of(parties, seed))
    where = Split(parties, train=20)
    seen = fit(where, topology="tree", gamma=0.5, features=50, seed=seed).seen
    found = 0
    for viewer in seen.parties:
        hops = list(seen.hops(viewer))
        for group, values in without_masks(hops):
            x = seen.features(sorted(group), viewer, hops[0].rows)
            omega = [seen.own_directions(p, ACTIVE, 50)[0] for p in sorted(group)]
            assert np.abs(values - x @ np.hstack(omega).T).max() < EXACT
            assert trees.ExposedSum(viewer, group) in expected
            found += 1
    assert found == len(expected)
    assert (found == 0) == safe


def test_a_star_shows_no_party_real_numbers(default: Recorded) -> None:
    """The attacks above have nothing to work with, and find nothing in phases."""
    seen = default.seen
    for viewer in seen.parties:
        assert not list(seen.hops(viewer))
    phases = seen.phases(ACTIVE)
    assert phases is not None
    assert phases.directions is None
    omega = true_directions(seen, ACTIVE, 2000)  # even if it had them: zero is in all bounds
    x = seen.features(seen.others(ACTIVE), ACTIVE, phases.rows)
    row = row_of_bounds(phases.angles[0], omega)
    assert row is not None
    assert np.abs(row - x[0]).max() > 0.1
    assert np.abs(row).max() < 0.1


# -- public directions


@pytest.mark.parametrize(
    "options", [{}, {"gamma": 0.5}, {"gamma": 5.0}, {"gamma": 0.5, "phase_bits": 32}]
)
def test_public_directions_give_the_active_party_the_columns_of_all_others(
    options: dict[str, Any],
) -> None:
    """Differences of all rows, also modulo 2 pi; with one known record every row."""
    done = fit(frequencies="shared", **options)
    phases, x = shown(done.seen)
    assert phases.directions is not None
    assert x.shape == (70, 8)
    found = differences_of_phases(phases.angles, phases.directions, phases.noise, RADIUS)
    error = np.abs(found + x[0] - x).max()
    assert error < (EXACT if "phase_bits" in options else 2e-4)
    wrong = phases.directions[::-1]  # control
    assert np.isnan(differences_of_phases(phases.angles, wrong, phases.noise, RADIUS)[1:]).all()


def test_private_directions_are_none_that_anybody_can_draw(usual: VerticalRun) -> None:
    seen = usual
    phases = seen.phases(ACTIVE)
    assert phases is not None
    assert phases.directions is None
    assert {insider.kept.seed for insider in seen.insiders.parties.values()}.isdisjoint(
        public_frequency_seed(seed, party) for seed in (-1, 0, 1) for party in range(4)
    )

    def draw(secrets: list[bytes]) -> np.ndarray:
        parts = zip(seen.others(ACTIVE), secrets, strict=True)
        return np.hstack(
            [draw_directions(s, ACTIVE, 500, len(COLUMNS[p]), "rbf", 0.5) for p, s in parts]
        )

    public = [[public_frequency_seed(s, p) for p in seen.others(ACTIVE)] for s in (-1, 0, 1)]
    own = seen.insiders.parties[ACTIVE].kept.seed
    guessed = [draw(secrets) for secrets in (*public, [KEY] * 3, [bytes(32)] * 3, [own] * 3)]
    for omega in guessed:
        found = differences_of_phases(phases.angles, omega, phases.noise, RADIUS)
        assert np.isnan(found[1:]).all()
    right = true_directions(seen, ACTIVE, 500)  # control: it is the directions that are missing
    x = seen.features(seen.others(ACTIVE), ACTIVE, phases.rows)
    found = differences_of_phases(phases.angles, right, phases.noise, RADIUS)
    assert np.abs(found + x[0] - x).max() < 1e-3


# -- the kernel needs b to be the same in all rows


@pytest.mark.parametrize("topology", ["star", "tree"])
def test_offsets_that_are_drawn_anew_break_the_kernel(topology: str) -> None:
    """The paper draws l', and with it b, in every call of Algorithm 3 (control of the trees)."""
    count, gamma = 5000, 0.5
    seen = fit(Split(train=40), features=count, gamma=gamma, topology=topology).seen
    parties = list(seen.parties)
    rows, phases = seen.insiders.parties[ACTIVE].phases[0]
    x = seen.features(parties, ACTIVE, rows)
    kernel = np.exp(-gamma * cdist(x, x, "sqeuclidean"))
    off = ~np.eye(len(x), dtype=bool)

    def errors(angles: np.ndarray) -> np.ndarray:
        phi = np.sqrt(2.0 / count) * np.cos(angles)
        return np.abs(phi @ phi.T - kernel)[off]

    right = errors(phases * (TURN / 2**16))
    assert right.mean() < 0.02
    assert right.max() < 5.0 / np.sqrt(count)
    parts = [seen.own_directions(p, ACTIVE, count) for p in parties]
    values = x @ np.hstack([omega for omega, _ in parts]).T
    offsets = np.stack([b for _, b in parts])
    kept = np.random.default_rng(0).integers(1, len(parties), values.shape)
    redrawn = errors(values + offsets[kept, np.arange(count)])
    assert redrawn.mean() > 5 * right.mean()
    assert redrawn.max() > 0.3
    assert errors(values + offsets[1]).max() < 5.0 / np.sqrt(count)


# -- the default: the server and passive parties


class Bare(VerticalRun):
    """The same run with a party's phases encoded, but under no mask."""

    def masked(self) -> Iterator[MaskedVector]:
        for vector in super().masked():
            own = own_phases(self, vector)
            ring = vector.encoding.encode(own, len(vector.members), name="bare")
            yield replace(vector, ring=ring)


def own_phases(seen: VerticalRun, vector: MaskedVector) -> np.ndarray:
    """What a party masked; of a total that was delivered, the sum of it."""
    total = np.zeros(vector.ring.size)
    insider = seen.insiders.parties[ACTIVE]
    rows = insider.phases[0][0]
    for party in seen.parties if vector.delivered else (vector.partition,):
        omega, offsets = seen.own_directions(party, ACTIVE, vector.ring.size // len(rows))
        total += (seen.features([party], ACTIVE, rows) @ omega.T + offsets).ravel()
    return total


@pytest.mark.parametrize("bits", [16, 32])
def test_the_server_sees_uniform_numbers_that_tell_nothing_about_rows(
    bits: int, default: Recorded
) -> None:
    wide = bits == 32
    seen = fit(Split(train=100), features=2000, phase_bits=32).seen if wide else default.seen
    turn, kind = TURN / 2**bits, np.uint32 if wide else np.uint16
    vectors = list(seen.masked())
    assert [v.partition for v in vectors] == [*seen.parties, ACTIVE]
    assert [v.delivered for v in vectors] == [False] * 4 + [True]
    for vector in vectors:
        assert vector.ring.dtype == kind
        assert p_uniform(vector.ring) > UNIFORM
        angles, own = vector.ring * turn, own_phases(seen, vector)
        assert resultant(angles, own) < SIGMAS / np.sqrt(len(own))
        assert not rows_up_to_map(angles.reshape(-1, 2000), 1e-4).consistent
    together = np.sum([v.ring for v in vectors[:-1]], axis=0, dtype=kind)
    np.testing.assert_array_equal(together, vectors[-1].ring)  # what it adds up is padded
    for vector in Bare(seen.transcript, seen.insiders).masked():  # control
        angles, own = vector.ring * turn, own_phases(seen, vector)
        assert resultant(angles, own) > 0.99
        assert rows_up_to_map(angles.reshape(-1, 2000), 1e-4).consistent


def test_masks_are_fresh_in_every_run_and_for_every_row(usual: VerticalRun) -> None:
    """The same phases of the same rows twice: the difference is noise, too."""
    first, second = usual, fit(gamma=0.5).seen
    pairs = list(zip(first.masked(), second.masked(), strict=True))
    for one, other in pairs:
        np.testing.assert_allclose(own_phases(first, one), own_phases(second, other))
        assert p_uniform(one.ring - other.ring) > UNIFORM
        by_row = one.ring.reshape(-1, 500)
        assert p_uniform(np.diff(by_row, axis=0)) > UNIFORM
        assert p_uniform(np.diff(by_row, axis=1)) > UNIFORM


@pytest.mark.parametrize("schedule", ["one-shot", "streaming"])
def test_passive_parties_receive_nothing_about_others(schedule: str) -> None:
    """Messages to them are the same whatever the others' columns are."""
    noise = np.random.default_rng(0).random(X.shape)
    noise[:, COLUMNS[CLINIC]] = X[:, COLUMNS[CLINIC]]
    shown = []
    for x in (X, noise):
        done = fit(Split(x=x), schedule=schedule, gamma=0.5)
        seen = done.seen
        for party in (CLINIC, LABORATORY, IMAGES):
            assert done.audit.kinds("down", 1000 + party) == {
                "control",
                "public",
                "key",
                "matching",
            }
            assert seen.phases(party) is None
            assert not seen.insiders.parties[party].totals
            assert not list(seen.hops(party))
        assert "masked" in done.audit.kinds("down", 1000 + ACTIVE)
        assert seen.phases(ACTIVE) is not None
        down = [p for p in seen.messages if not p.up and p.partition == CLINIC]
        shown.append([a.tolist() for p in down for a in p.message.arrays()])
    assert shown[0] == shown[1]


# -- what remains by design


def test_the_active_party_learns_distances_between_rows_of_all_others(default: Recorded) -> None:
    """To about sqrt(2 / R): the kernel is what it learns from."""
    seen = default.seen
    phases, x = shown(seen)
    off = ~np.eye(len(x), dtype=bool)
    truth = cdist(x, x, "sqeuclidean")[off]
    for count in (125, 2000):
        found = distances_of_phases(phases.angles[:, :count], seen.settings.gamma, "rbf")[off]
        relative = np.sqrt(np.mean((found / truth - 1.0) ** 2))
        assert 0.3 * np.sqrt(2.0 / count) < relative < 2.0 * np.sqrt(2.0 / count)
    assert correlation(found, truth) > 0.998
    noise = np.random.default_rng(0).uniform(0.0, TURN, phases.angles.shape)  # control
    found = distances_of_phases(noise, seen.settings.gamma, "rbf")[off]
    assert abs(correlation(found, truth)) < 0.05


def test_the_active_party_learns_distances_under_a_laplacian_kernel() -> None:
    seen = fit(gamma=0.5, kernel="laplacian", features=4000).seen
    phases, x = shown(seen)
    found = distances_of_phases(phases.angles, 0.5, "laplacian")
    assert correlation(found.ravel(), cdist(x, x, "cityblock").ravel()) > 0.99


@pytest.mark.parametrize("gamma", [None, 0.5, 2.0])
def test_as_many_known_records_as_columns_and_one_more_give_the_active_party_all_rows(
    gamma: float | None,
) -> None:
    """Phases are cut where the circle is empty: rows up to a linear map, which records fix."""
    done = fit(Split(train=200), features=1000, gamma=gamma)
    phases, x = shown(done.seen)
    found = rows_up_to_map(phases.angles, phases.noise)
    assert found.consistent
    assert found.rows.shape == x.shape  # it learns the number of columns as well
    known = np.arange(9)
    rows = rows_of_known(found, known, x[known])
    assert rows is not None
    assert np.abs(rows - x).max() < 2e-3
    assert rows_of_known(found, known[:8], x[known[:8]]) is None  # control: eight are too few
    wrong = rows_of_known(found, known, x[known[::-1]])
    assert wrong is not None
    assert np.abs(wrong - x).max() > 0.5


def test_rows_that_are_too_far_apart_for_the_width_cannot_be_cut_from_the_circle() -> None:
    """Control: the distances remain, of near rows."""
    seen = fit(Split(train=200), gamma=100.0).seen
    phases = seen.phases(ACTIVE)
    assert phases is not None
    assert not rows_up_to_map(phases.angles, phases.noise).consistent


def test_columns_that_do_not_depend_on_each_other_need_no_known_record() -> None:
    """Binary columns: the linear map is given away by their shape."""
    rng = np.random.default_rng(0)
    x = (rng.random((500, 30)) < rng.uniform(0.3, 0.7, 30)).astype(float)
    seen = fit(Split(train=400, x=x), gamma=0.02, features=501).seen
    phases, truth = shown(seen)
    found = independent_columns(rows_up_to_map(phases.angles, phases.noise))
    np.testing.assert_array_equal(np.rint(match_columns(found, truth)), truth)
    normal = rng.standard_normal((410, 8)) @ rng.standard_normal((8, 8))  # control: no axes
    whole = replace(rows_up_to_map(phases.angles, phases.noise), rows=normal)
    assert correlation(match_columns(independent_columns(whole), normal), normal) < 0.99


def test_multiples_of_phases_are_made_of_what_the_active_party_has() -> None:
    """Cross-validation over the width moves nothing else."""
    searched = fit(features=100)
    given = fit(features=100, gamma=searched.strategy.gamma_)
    ((rows, phases),) = searched.seen.insiders.parties[ACTIVE].phases
    ((others, again),) = given.seen.insiders.parties[ACTIVE].phases
    np.testing.assert_array_equal(rows, others)
    np.testing.assert_array_equal(phases, again)
    sent = [[p.message.phase for p in r.seen.messages] for r in (searched, given)]
    assert sent[0] == sent[1]


def test_of_two_parties_the_active_one_learns_the_phases_of_the_other() -> None:
    pair = Split(2, train=200, options={"allow_single": True})
    seen = fit(pair, allow_single=True, gamma=0.5).seen
    assert resultants(seen)[0] > 1.0 - 1e-6
    phases, x = shown(seen)
    assert rows_up_to_map(phases.angles, phases.noise).rows.shape == x.shape
    with pytest.raises(OptionError, match="alone has columns"):
        fit(pair, gamma=0.5)
    with pytest.raises(ProtocolError, match="would learn the phases"):
        fit(Split(2), allow_single=True, gamma=0.5)


def test_three_parties_hide_whose_phases_they_are() -> None:
    """Control: the sum of two parties' phases agrees with neither's."""
    assert max(resultants(fit(Split(3), gamma=0.5).seen)) < 0.1


@pytest.mark.parametrize("actives", [2, 3])
def test_of_two_active_parties_each_learns_the_others_part_of_the_function(actives: int) -> None:
    seen = fit(Split(actives=actives), schedule="streaming", gamma=0.5, rounds=6).seen
    for viewer in range(actives):
        named = [
            t for name, t in seen.insiders.parties[viewer].totals if name.startswith("outcome")
        ]
        rows = held_out(seen, viewer)
        parts = {p: part_of_f(seen, p, viewer, rows) for p in range(actives)}
        rest = named[-1] - parts.pop(viewer)
        assert np.abs(rest).max() > 1e-2
        assert np.abs(rest - np.sum(list(parts.values()), axis=0)).max() < 1e-4
        alone = [np.abs(rest - part).max() < 1e-3 for part in parts.values()]
        assert any(alone) == (actives == 2)


def held_out(seen: VerticalRun, viewer: int) -> np.ndarray:
    """The held-out rows of an active party, as it was asked to predict them."""
    asked = (p.message for p in seen.messages if not p.up and p.partition == viewer)
    request = [m for m in asked if isinstance(m, wire.OutcomeRequest)][-1]
    place = request.owners.tolist().index(viewer)
    start = int(request.sizes[:place].sum())
    return np.asarray(request.rows[start : start + int(request.sizes[place])])


def part_of_f(seen: VerticalRun, owner: int, viewer: int, rows: np.ndarray) -> np.ndarray:
    """The part of f that belongs to an owner, from its coefficients and all parties' columns."""
    alpha = seen.insiders.parties[owner].kept.arrays["alpha"]
    angles = np.zeros((len(rows), len(alpha)))
    for party in seen.parties:
        omega, offsets = seen.own_directions(party, owner, len(alpha))
        angles += seen.features([party], viewer, rows) @ omega.T + offsets
    return np.asarray(np.sqrt(2.0) * np.cos(angles) @ alpha)[:, 0]


# -- what the server reads


def test_the_server_links_rows_of_runs_with_one_seed_by_their_order() -> None:
    """Not by their pseudonyms; without a seed the order is another one, too."""

    def order(seen: VerticalRun) -> Any:
        return seen.insiders.parties[CLINIC].kept.arrays["order"].tolist()

    first, second = (fit(gamma=0.5, features=50).seen for _ in range(2))
    ids = [seen.parties[CLINIC].ids for seen in (first, second)]
    assert not set(ids[0].ravel().tolist()) & set(ids[1].ravel().tolist())
    assert order(first) == order(second)
    where, insiders = Split(), VerticalInsiders()
    served = insiders.watch(where.client_fn)
    app = ClientApp(client_fn=lambda context: as_client(served(context)))
    transcript = Transcript()
    grid = RecordingGrid(InProcessGrid(app, where.parties), transcript)
    FDSKL(features=50, gamma=0.5, regularization=1e-3).start(grid)
    assert order(VerticalRun(transcript, insiders)) != order(first)


# -- what a node refuses, whatever the server asks


class Hops(FDSKL):
    """Asks nodes of a star for the hops of a tree."""

    def _phases(self) -> Any:
        phases = super()._phases()
        phases.settings = {**phases.settings, "topology": "star"}
        return phases


def test_a_node_of_a_star_makes_no_hops_of_a_tree() -> None:
    """They would show o + b as real numbers to whom the server names."""

    def lying(**options: Any) -> FDSKL:
        return Hops(topology="tree", **options)

    with pytest.raises(ProtocolError, match="hops leave a node"):
        fit(kind=lying, gamma=0.5)


class SomeOwners(FDSKL):
    """Names a passive party as an owner of phases."""

    def _phases(self) -> Any:
        phases: Any = super()._phases()
        collections = phases.collections
        phases._known[CLINIC] = np.zeros(self.plan_.total, np.int32)
        phases.collections = lambda need: collections(replace(need, upto={**need.upto, CLINIC: 16}))
        return phases


def test_a_passive_party_takes_no_phases() -> None:
    with pytest.raises(ProtocolError, match="phases are for parties with labels"):
        fit(kind=SomeOwners, gamma=0.5)


class TwoCohorts(FDSKL):
    """Sums over all parties, and over all but one."""

    def cohorts(self) -> list[list[int]] | None:
        super().cohorts()
        return [[0, 1, 2, 3], [0, 1, 2]]


def test_a_node_sums_with_all_parties_only() -> None:
    """The difference of two sums would be the phases of a party alone."""
    with pytest.raises(ProtocolError, match="refused by the node: the cohort of a sum"):
        fit(kind=TwoCohorts, gamma=0.5)


def predict(where: Split, meta: dict[str, Any]) -> VerticalRun:
    insiders, transcript = VerticalInsiders(), Transcript()
    served = insiders.watch(where.client_fn)
    app = ClientApp(client_fn=lambda context: as_client(served(context)))
    grid = RecordingGrid(InProcessGrid(app, where.parties), transcript)
    FDSKL.of_model(meta).predict_at_nodes(grid, meta)
    return VerticalRun(transcript, insiders)


def test_directions_of_a_model_are_used_again_as_they_were(tmp_path: Path) -> None:
    """With another width the offsets would cancel: see the next test."""
    fresh: dict[str, Any] = {"frequency_seed": None}
    where = Split(of={k: {"state_dir": tmp_path / str(k), **fresh} for k in range(4)})
    fitted = fit(where, gamma=0.5)
    _, meta = fitted.strategy.model()
    again = predict(where, meta)
    for party in range(4):
        for one, other in zip(
            fitted.seen.own_directions(party, ACTIVE, 500),
            again.own_directions(party, ACTIVE, 500),
            strict=True,
        ):
            np.testing.assert_array_equal(one, other)
    for name, value in (("drawn_for", 0.6), ("kernel", "laplacian"), ("phase_bits", 32)):
        with pytest.raises(ProtocolError, match="settings are not those of the run"):
            predict(where, {**meta, name: value})


@pytest.mark.parametrize("seeded", [True, False])
def test_two_runs_with_one_frequency_seed_and_near_widths_do_not_show_where_the_rows_are(
    usual: VerticalRun, seeded: bool
) -> None:
    """Nor do runs without seeds, whose directions have nothing in common."""
    first, node = usual, {} if seeded else {"frequency_seed": None}
    if not seeded:
        first = fit(gamma=0.5, node=node).seen
    one, x = shown(first)
    other, _ = shown(fit(gamma=0.6, node=node).seen)
    found = offsets_cancelled(one.angles, other.angles, 0.5, 0.6)
    parts = found - x @ true_directions(first, ACTIVE, 500).T
    assert np.abs(parts).max() > (0.1 if seeded else 1.0)


class Shifts(FDSKL):
    """Names the same row again and again to all passive parties but one."""

    def _phases(self) -> Any:
        phases: Any = super()._phases()
        positions = phases.positions

        def shifted(partition: int, rows: Any) -> Any:
            found = positions(partition, rows)
            return np.full_like(found, found[0]) if partition >= LABORATORY and len(rows) else found

        phases.positions = shifted
        return phases


def test_a_server_cannot_ask_different_parties_for_different_rows() -> None:
    """Together with the active party it would have the rows of one party alone."""
    try:
        seen = fit(Split(train=200), kind=Shifts, gamma=0.5).seen
    except ProtocolError:
        return
    phases = seen.phases(ACTIVE)
    assert phases is not None
    found = rows_up_to_map(phases.angles, phases.noise)
    x = seen.features([CLINIC], ACTIVE, phases.rows)
    rows = rows_of_known(found, np.arange(4), x[:4])
    assert rows is None or np.abs(rows - x).max() > 0.1
