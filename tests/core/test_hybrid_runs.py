"""Runs of FedCG looked at from inside: parts, secrets, what is chosen, noise, servers that lie."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import At, Cut, PowerCutError, flip
from hospitals import KEY, TWO, Array, Parties, Serve, deal, server, small
from refusals import raises, refuses
from sklearn.datasets import load_wine
from zoo import Table, side

from fedkern_flwr.alignment import hash_ids
from fedkern_flwr.clients import HybridKernelClient
from fedkern_flwr.clients.fed_cg_kernel import HospitalKernel, KernelRows, RunState
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.hybrid.landmarks import block_phases, draw_block, fourier_features
from fedkern_flwr.kernels.product import kernel_from_distances, partial_distances
from fedkern_flwr.node.state import SessionState
from fedkern_flwr.simulations import Fault, Transcript
from fedkern_flwr.strategies import FedCG, fed_cg_system
from fedkern_flwr.strategies.fed_cg_system import HybridSystem

pytestmark = pytest.mark.usefixtures("cheap_noise")
EXACT = 1e-8


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    return server(tmp_path)


def shared() -> list[Table]:
    return deal(*side(90, 6), 3, 4, shared=2, **TWO)


# -- problems that take several messages


@pytest.mark.promise("fedcg-pooled")
@pytest.mark.parametrize("rows", [5, 89])
@pytest.mark.parametrize("solver", ["normal-equations", "cg"])
def test_rows_travel_in_parts(rows: int, solver: str, serve: Serve, monkeypatch: Any) -> None:
    """A message of distances has ``rows`` rows at most; hospitals of different sizes."""
    tables = deal(*side(89, 6), 3, 2, **TWO)
    for name in ("x", "y", "ids"):
        tables[1][name] = tables[1][name][:4]
    keep = ("y", "ids", "y_test", "ids_test", "classes")  # and one of them without features
    tables[2] = {name: tables[2][name] for name in keep}
    nodes, record = serve(tables), Transcript()
    monkeypatch.setattr(fed_cg_system, "_MESSAGE", 8 * 20 * rows)
    options: Table = {"solver": solver, "regularization": 1e-2, "missing": "neutral"}
    fitted = nodes.learn({"transcript": record}, **options)
    total = sum(len(t["ids"]) + len(t["ids_test"]) for t in tables[:3])
    assert (fitted.ledger_.by_phase["hybrid-distances"] == 1) == (rows >= total)
    up = record.entries(phase="hybrid-distances", direction="up")
    assert max(sum(a.nbytes for a in e.arrays) for e in up) <= 8 * 20 * (rows + 3)
    assert nodes.gap(fitted, 1e-2) <= (EXACT if solver != "cg" else 1e-6)


def test_what_travels_once_does_so_beside_many_parts(serve: Serve, monkeypatch: Any) -> None:
    """Moments and the kernel of landmarks; a hospital that no centre knows; the mean distance."""
    monkeypatch.setattr(fed_cg_system, "_MESSAGE", 8 * 20 * 15)
    nodes = serve(shared())
    fitted = nodes.learn(sampling="N", penalty="rkhs", gamma=2.0, regularization=0.3)
    assert nodes.gap(fitted, 0.3) <= EXACT
    assert fitted.ledger_.by_phase["hybrid-distances"] > 3
    tables = deal(*side(90, 6), 3, 2, **TWO)
    for table in tables[3:]:
        keep = ~np.isin(table["ids"], [*tables[1]["ids"], *tables[1]["ids_test"]])
        table |= {"x": table["x"][keep], "ids": np.asarray(table["ids"])[keep]}
    nodes = serve(tables, policy=UNCOUNTED)
    fitted = nodes.learn(missing="neutral", regularization=1e-2)
    assert nodes.gap(fitted, 1e-2) <= EXACT
    fitted = nodes.learn(missing="neutral", tune="gcv")
    _, y, _ = nodes.kernel(fitted)
    widths = 2.0 ** np.arange(-4, 5) / nodes.distances[: len(y)].mean()
    np.testing.assert_allclose(fitted.tuned_["gammas"], widths, rtol=1e-8)


# -- landmarks that nobody configured


def secrets(nodes: Parties) -> dict[int, bytes]:
    """Return what the parties remember of a run as the seed of their block."""
    loaded = {k: SessionState.load(context) for k, context in nodes.contexts.items()}
    return {k: RunState.unpack(state.payload).seed for k, state in loaded.items()}


def bare(tables: list[Table]) -> list[Table]:
    return [{k: v for k, v in table.items() if k != "landmark_seed"} for table in tables]


@pytest.mark.promise("fedcg-secret-landmarks")
@pytest.mark.parametrize("hospitals", [2, 3])
@pytest.mark.parametrize("sampling", ["U", "N"])
def test_holders_of_a_block_share_a_secret(sampling: Any, hospitals: int, serve: Serve) -> None:
    """Two take that of their pair, the first of several seals one for the others."""
    tables, drawn = deal(*side(90, 6), hospitals, 5, shared=1, **TWO), []
    for _ in range(2):
        nodes, record, seeds = serve(bare(tables)), Transcript(), dict[int, bytes]()
        strategy = FedCG(landmarks=20, sampling=sampling, tune="off", regularization=1e-2)
        strategy.on_round = lambda *_, n=nodes, s=seeds: s.update(secrets(n))
        nodes.fit(strategy=strategy, transcript=record)
        found = {b: {seeds[p] for p in h} for b, h in strategy.plan_.blocks.items()}
        assert [len(held) for held in found.values()] == [1] * 6  # holders agree, nobody else
        assert {len(seed) for seed in seeds.values()} == {32}
        drawn += {seeds[p] for p in strategy.plan_.parties}
        nodes.tables = [{**t, "landmark_seed": seeds[k]} for k, t in enumerate(tables)]
        assert nodes.gap(strategy, 1e-2) <= EXACT
        more = sampling == "N" or hospitals > 2
        assert strategy.ledger_.by_phase["hybrid-moments"] == more
        sent = b"".join(part for entry in record.entries() for part in parts(entry))
        assert len(sent) > 10_000
        assert not any(form in sent for s in seeds.values() for form in (s, s.hex().encode()))
    assert len(set(drawn)) == len(drawn) == 12  # others in every run


def parts(entry: Any) -> Iterable[bytes]:
    yield from (np.ascontiguousarray(array).tobytes() for array in entry.arrays)
    yield from (v if isinstance(v, bytes) else str(v).encode() for v in entry.scalars.values())


@pytest.mark.promise("fedcg-secret-landmarks")
def test_holders_keep_their_secret_for_runs_among_themselves(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is new, or has left, has another one; it costs an exchange where there is none.

    A smaller run has the first landmarks of a larger one.
    """
    rows, draw = list[Array](), HybridKernelClient._landmarks
    monkeypatch.setattr(
        HybridKernelClient, "_landmarks", lambda one: rows.append(draw(one)) or rows[-1]
    )
    tables = bare(deal(*side(90, 6), 4, 0, **TWO))
    for k, table in enumerate(tables):
        table["state_dir"] = tmp_path / f"own-{k}"
    drawn, exchanges = list[bytes](), list[int]()
    for who in ([0, 1, 2], [0, 1, 2], [0, 1], [0, 1], [0, 1, 2], [0, 1, 2, 3], [1, 2, 3]):
        nodes, seeds = serve([tables[k] for k in who]), dict[int, bytes]()
        nodes.guarded = True
        strategy = FedCG(landmarks=9 - len(drawn), tune="off", regularization=1e-2)
        strategy.on_round = lambda *_, n=nodes, s=seeds: s.update(secrets(n))
        nodes.fit(strategy=strategy)
        assert len(set(seeds.values())) == 1
        drawn += [seeds[0]]
        exchanges.append(strategy.ledger_.exchanges)
    of = {len(one): one for one in rows}
    for larger, smaller in ((9, 8), (9, 5), (7, 6)):
        np.testing.assert_array_equal(of[smaller], of[larger][:smaller])
    first, again, pair, paired, back, four, others = drawn
    assert first == again == back
    assert pair == paired
    assert len(set(drawn)) == len({first, pair, four, others}) == 4
    assert exchanges == [4, 3, 3, 3, 3, 4, 4]


def test_secret_landmarks_survive_a_break_down(serve: Serve) -> None:
    """Nothing is configured, all is in the nodes' folders."""
    tables = deal(*side(60, 6), 3, 2, **TWO)
    nodes = serve(bare(tables))
    where: Table = {"solver": "cg", "regularization": 0.1, "sampling": "N"}
    where["checkpoint"] = nodes.folder / "run.npz"
    raises(PowerCutError, nodes.learn, {"faults": Cut(number=6)}, **where)
    drawn = secrets(nodes)
    fitted = nodes.learn(resume=True, **where)
    nodes.tables = [{**table, "landmark_seed": drawn[k]} for k, table in enumerate(tables)]
    assert nodes.gap(fitted, 0.1) <= 1e-6


def test_a_sealed_secret_cannot_be_changed_on_the_way(serve: Serve) -> None:
    nodes = serve(bare(deal(*side(60, 6), 3, 2, **TWO)))
    plan = At(partition=0, phase="hybrid-moments", what=Fault("tamper", change=flip))
    refuses("FK-SUM-CHANGED", nodes.learn, {"faults": plan})
    assert not nodes.written()


# -- width and lambda that are chosen

UNCOUNTED = NodePolicy.of_simulations(allow_small_sums=True)


def grid_search(nodes: Parties, folds: int, gammas: Any, lambdas: Any) -> Array:
    """Errors of each width and lambda on the pooled rows, row by row; by GCV of one fold.

    Hospitals deal their rows to folds in the order of keyed hashes of the ids.
    """
    _, _, y, _ = nodes.join()
    dealt: list[int] = []
    for table in (table for table in nodes.tables if "y" in table):
        hashes = hash_ids(np.asarray(table["ids"]), KEY, "fedkern-flwr folds").tolist()
        ranks = {row: k for k, row in enumerate(sorted(range(len(hashes)), key=hashes.__getitem__))}
        dealt += [ranks[row] % folds for row in range(len(hashes))]
    of, m = np.array(dealt), nodes.distances.shape[1]
    out = np.zeros((len(gammas), len(lambdas)))
    for (g, gamma), (j, lam) in product(enumerate(gammas), enumerate(lambdas)):
        k = np.exp(-gamma * np.resize([0.5, 2.0], m) * nodes.distances[: len(y)])
        for f in range(folds) if folds > 1 else ():
            a, b = k[of != f], k[of == f]
            c = np.linalg.solve(a.T @ a + lam * np.eye(m), a.T @ y[of != f])
            out[g, j] += ((b @ c - y[of == f]) ** 2).sum() / len(y)
        if folds == 1:
            hat = k @ np.linalg.solve(k.T @ k + lam * np.eye(m), k.T)
            free = 1.0 - 1.4 * np.trace(hat) / len(y)
            out[g, j] = ((y - hat @ y) ** 2).sum() / len(y) / free**2 if free > 0.0 else np.inf
    return out


@pytest.mark.promise("fedcg-tuned")
@pytest.mark.parametrize(
    "given", ["folds 2 laplacian", "folds 3 rbf", "gcv 3 laplacian", "folds 0 rbf", "gcv 0 rbf"]
)
def test_what_is_chosen_is_the_best_of_a_grid_search(given: str, serve: Serve) -> None:
    tune, classes, kernel = given.split()
    task = int(classes)
    x, y = load_wine(return_X_y=True)
    x, labels = (x - x.min(0)) / np.ptp(x, 0), {"classes": tuple(range(task))}
    y = y if task == 3 else (y > 0).astype(int)
    if not task:  # three outputs beyond one
        x, labels = side(90, 6)[0], {"label_bound": 2.0}  # type: ignore[dict-item]
        y = 2.0 * np.stack([np.sin(4.0 * x[:, 0]), x[:, 1] * x[:, 2], x[:, 3] ** 2], axis=1)
    nodes = serve(deal(x, y, 2, 2, **labels), policy=UNCOUNTED)
    fitted = nodes.learn(landmarks=15, tune=tune, kernel=kernel)
    tuned, (_, targets, _) = fitted.tuned_, nodes.kernel(fitted)
    lambdas, widths = np.array(tuned["regularizations"]), np.array(tuned["gammas"])
    tried = 10.0 ** np.arange(-10.0 if task else -13.0, 0.1, 0.5)
    np.testing.assert_allclose(lambdas, len(targets) * tried)
    mean = nodes.distances[: len(targets)].mean()
    np.testing.assert_allclose(widths, 2.0 ** np.arange(-4, 5) / mean, rtol=1e-9)
    errors = grid_search(nodes, 5 if tune == "folds" else 1, widths, lambdas)
    g, j = np.unravel_index(np.argmin(errors), errors.shape)
    tie = 1e-2 if (tune, task) == ("gcv", 0) else 1e-6  # the largest lambda that is as good
    j = np.flatnonzero(errors[g] <= (1.0 + tie) * errors.min())[-1]
    assert tuned["gamma"] == widths[g]
    assert tuned["regularization"] == lambdas[j] == fitted.regularization_
    assert tuned["error"] == pytest.approx(errors[g, j], rel=1e-6)
    np.testing.assert_array_equal(fitted.gammas_, widths[g] * np.resize([0.5, 2.0], 15))
    if task:
        assert nodes.gap(fitted, float(lambdas[j])) <= 1e-6
    (equations,) = (s for s in fitted.privacy()["sums"] if s["name"] == "equations")
    assert equations["numbers"] == tuned["numbers"]


def test_what_is_given_is_not_chosen(serve: Serve) -> None:
    nodes = serve(small(120), policy=UNCOUNTED)
    given = nodes.learn(tune="gcv", gamma=0.25)
    assert given.gammas_.tolist() == given.tuned_["gammas"] == [0.25]
    assert len(given.tuned_["regularizations"]) > 10
    weighed = nodes.learn(tune="auto", regularization=0.5).tuned_
    assert weighed["regularizations"] == [0.5]
    assert len(weighed["gammas"]) == 9
    assert nodes.learn(tune="auto", gamma=0.25, regularization=0.5).tuned_ == {}
    # a party alone has nobody to sum the mean distance with: as if rows were uniform in the cube
    alone = serve(deal(*side(60, 6), 1, 0, **TWO), policy=UNCOUNTED, allow_single=True)
    found = alone.learn(tune="folds", allow_single=True)
    np.testing.assert_allclose(found.tuned_["gammas"], 2.0 ** np.arange(-4, 5))  # 6 features


@pytest.mark.promise("fedcg-counted")
def test_as_much_is_chosen_as_the_nodes_count(serve: Serve) -> None:
    """Nodes that refuse more numbers than unknowns are asked for none they would refuse."""
    policy = NodePolicy.of_simulations(counting="refuse")
    nodes, found = serve(deal(*side(1200, 6), 2, 2, **TWO), policy=policy), set()
    plans = [(5, 9), (5, 5), (5, 3), (3, 3), (1, 9), (1, 5), (5, 1), (1, 3), (3, 1), (1, 1)]
    for landmarks in (5, 10, 15, 20, 25, 30, 40, "auto"):
        fitted = nodes.learn(landmarks=landmarks, tune="auto")
        (sums,) = (s for s in fitted.privacy()["sums"] if s["name"] == "equations")
        m, allowed = fitted.landmarks_, sums["unknowns"] - 1  # and the mean distance
        numbers = [f * (w * (m * (m + 1) // 2 + m) + 1) for f, w in plans]
        best = next(plan for plan, n in zip(plans, numbers, strict=True) if n <= allowed)
        assert sums["numbers"] == fitted.tuned_["numbers"] == numbers[plans.index(best)]
        assert len(fitted.tuned_["gammas"]) == best[1]
        found.add(best)
    assert len(found) > 4
    assert m * (m + 1) // 2 + m + 1 <= allowed < (m + 1) * (m + 2) // 2 + m + 2
    refuses("FK-POLICY-COUNTING", nodes.learn, landmarks=100, tune="auto")


def test_no_fold_has_fewer_rows_than_its_nodes_allow(serve: Serve) -> None:
    tables, three, gcv = small(), "3 folds", "generalised cross-validation"
    own, whole = ("min_own_rows", (6, 7)), ("min_sum_rows", (12, 13))  # 20 training rows each
    for (name, limits), k in product((own, whole), (0, 1)):
        least, by = {name: limits[k]}, (three, gcv)[k]
        policy = NodePolicy.of_simulations(allow_small_sums=True, **least)
        assert serve(tables, policy=policy).learn(tune="auto").tuned_["by"] == by
        usual = NodePolicy.of_simulations(allow_small_sums=True)
        strict = [{**table, "policy": usual} for table in tables]
        strict[0]["policy"] = policy  # one hospital alone has the limit
        assert serve(strict).learn(tune="auto").tuned_["by"] == by


# -- Fourier features and noise

M, GAMMA = 40, 0.7
BUDGET: Table = {"privacy_epsilon": 2.0}


def noisy(nodes: Parties, more: Table | None = None, **options: Any) -> FedCG:
    given: Table = {"basis": "fourier", "landmarks": M, "gamma": GAMMA, "regularization": None}
    return nodes.learn(more, **{**given, "sampling": "auto", "tune": "auto", **options})


@pytest.mark.promise("fourier-length")
@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
def test_features_estimate_the_kernel_and_have_length_one(kernel: Any) -> None:
    x = side(30, 4)[0]
    drawn = draw_block(bytes(32), 20_000, 4, kernel, GAMMA)
    z = fourier_features(block_phases(x, drawn))
    assert np.allclose((z**2).sum(1), 1.0)
    exact = kernel_from_distances(partial_distances(x, x, kernel), np.array([GAMMA]))
    assert np.abs(z @ z.T - exact).max() < 6.0 / math.sqrt(20_000)


def test_held_out_rows_are_counted_with_noise(serve: Serve) -> None:
    nodes = serve(deal(*side(300, 5), 3, 2, **TWO))
    confusion = np.array(noisy(nodes, privacy_epsilon=8.0).result()["held_out"]["confusion"])
    assert (confusion >= 0).all()
    assert abs(confusion.sum() - 102) <= 4  # public, but for the rounding of four numbers
    assert "bins" in noisy(nodes).result()["held_out"]
    made = noisy(nodes, **BUDGET)
    assert "bins" not in made.result()["held_out"]
    equations, outcomes = made.result()["privacy"]["budget"]["releases"]
    assert [equations["release"], outcomes["release"]] == ["equations", "outcomes"]
    assert made.regularization_ == pytest.approx(0.5 * equations["deviation"] * math.sqrt(M))


def less(self: HybridSystem, *about: Any) -> Any:
    """A server that orders less noise: nodes derive it from the budget of the run."""
    found = facts(self, *about)
    assert found.budget is not None
    return replace(found, budget=replace(found.budget, epsilon=1.01 * found.budget.epsilon))


def asking(self: HybridSystem, coefficients: Array, yard: Any) -> Any:
    """A server that asks for histograms, which have no noise."""
    return give(self, coefficients, replace(yard, bins=8))


def forged(self: FedCG) -> Any:
    """A server that asks for kernel columns, which are longer than the noise is for."""
    found, self.basis = system(self), "landmarks"
    return found


system, facts, give = FedCG._system, HybridSystem.facts, HybridSystem.give
LIES: list[tuple[Any, str, Any, str]] = [
    (HybridSystem, "facts", less, "FK-ORDER-NOISE"),
    (HybridSystem, "give", asking, "FK-BUDGET-FIGURES"),
    (FedCG, "_system", forged, "FK-BUDGET-OPTION"),
]


@pytest.mark.promise("fourier-lies")
@pytest.mark.parametrize(("of", "name", "lie", "code"), LIES)
def test_a_server_that_lies_in_a_run_with_a_budget_is_refused(
    of: Any, name: str, lie: Any, code: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of, name, lie)
    refuses(code, noisy, serve(deal(*side(90, 5), 3, 2, **TWO)), **BUDGET)


def test_what_a_budget_cannot_be_for_is_refused(serve: Serve) -> None:
    alone: Table = {"allow_single": True}
    for hospitals, code in ((1, "FK-BUDGET-ALONE"), (2, "FK-BUDGET-COLLUDERS")):
        nodes = serve(deal(*side(90, 5), hospitals, 2, **TWO), **alone)
        refuses(code, noisy, nodes, **BUDGET, **alone, privacy_colluders=2)
    tables = deal(*side(90, 6), 3, 2, **TWO)
    tables[1]["ids"] = [tables[0]["ids"][0], *tables[1]["ids"][1:]]  # it would move two sums
    noisy(serve(tables))
    refuses("FK-IDS-PARTIES", noisy, serve(tables), **BUDGET)


def test_only_totals_of_the_sum_that_was_noted_are_taken(tmp_path: Path) -> None:
    """Else centres would have a part in a kernel that counts as the hospital's own."""
    kept, noted = RunState(), "distances/0/whole 3"
    kept.settings = {"landmarks": 2, "train": 3, "total": 3, "keep_training": False}
    places = np.arange(3)
    for of, name, done in ((noted, noted, 3), (noted, "distances/0", 0), ("", noted, 0)):
        kept.settings |= {"of": of, "done": 0}
        kept.arrays = {"gammas": np.ones(1), "rows": places, "order": places}
        rows = KernelRows(tmp_path, "a", 0, 2)
        kernel = HospitalKernel(kept, rows, np.ones((3, 1)), None, lambda rows, landmarks: rows)
        kernel.take({f"{name}#0": np.ones(6)})
        assert kept.done == done
