"""FedCG against the pooled data: the same model, whoever holds which rows and which features."""

from __future__ import annotations

import csv
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import At, Cut, PowerCutError, flip
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Result
from nodes import Nodes, Table, side
from scipy.spatial.distance import cdist
from sklearn import datasets, metrics

from fedkern_flwr.alignment import hash_ids
from fedkern_flwr.clients import HybridKernelClient
from fedkern_flwr.clients.fed_cg_kernel import RunState
from fedkern_flwr.errors import CheckpointError, FedKernError, OptionError, ProtocolError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.hybrid.landmarks import draw_landmarks, public_seed
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.simulations import Fault, Transcript
from fedkern_flwr.simulations.papers.fedcg import Hospital, chain, naive
from fedkern_flwr.simulations.run.toy import three_hospitals
from fedkern_flwr.strategies import FedCG

KEY = b"a secret of the data's owners"
EXACT = 1e-8  # promised for lambda >= 1e-4; below, ten times the rounding of float64 itself
FIVE = {
    "describe": 1,
    "hybrid-distances": 1,
    "hybrid-equations": 1,
    "hybrid-coefficients": 1,
    "finish": 1,
}
PLAIN = {"tune": "off", "sampling": "U"}  # gamma is 1 / d, and all landmarks are easily drawn again
METRICS = {"rbf": "sqeuclidean", "laplacian": "cityblock"}


# -- data


def unit(x: np.ndarray) -> np.ndarray:
    low, high = x.min(axis=0), x.max(axis=0)
    return np.asarray((x - low) / np.where(high > low, high - low, 1.0))


def load(name: str) -> tuple[np.ndarray, np.ndarray, Table]:
    """Return features, labels, and what all tables have in common."""
    if hasattr(datasets, f"load_{name}"):
        bunch = getattr(datasets, f"load_{name}")()
        return unit(bunch.data), bunch.target, {"classes": sorted(set(bunch.target.tolist()))}
    if (folder := os.environ.get("FEDKERN_DATA")) is None:
        pytest.skip("FEDKERN_DATA is not set")
    data = np.load(Path(folder) / f"{name}.npz")
    low = -1.0 if name == "ionosphere" else 0.0
    return data["X"], data["y"], {"classes": (0, 1), "ranges": (low, 1.0)}


def small(n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    return side(n, 6)


def split(rows: np.ndarray, share: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    cut = len(rows) - int(share * len(rows))
    return rows[:cut], rows[cut:]


def deal(
    x: np.ndarray,
    y: np.ndarray,
    hospitals: int,
    centres: int,
    *,
    seed: int = 0,
    own: bool = True,
    held_out: float = 0.3,
    sites: np.ndarray | None = None,
    **common: Any,
) -> list[Table]:
    """Deal rows to hospitals and columns to centres, each party with a row order of its own.

    ``sites`` says which hospital has a row; by default this is drawn. Where there are more centres
    than columns, several share a block, each with other patients.
    Centres also know a few people whom no hospital knows.
    """
    rng = np.random.default_rng(seed)
    n, d = x.shape
    ids = np.array([f"patient {k}" for k in rng.permutation(10 * n)[:n]])
    count = min(centres, d - own)
    columns = np.array_split(rng.permutation(d), count + own)
    classes, ranges = common.pop("classes", None), common.pop("ranges", (0.0, 1.0))

    def features(rows: np.ndarray, block: int) -> Table:
        chosen = columns[block]
        name = "clinical" if own and not block else f"omics {block}"
        return {
            "x": x[np.ix_(rows, chosen)],
            "ids": ids[rows],
            "block": name,
            "columns": [f"c{k}" for k in chosen],
            "ranges": np.tile(ranges, (len(chosen), 1)),
            "landmark_seed": public_seed(seed, name),
            **common,
        }

    tables: list[Table] = []
    dealt = np.array_split(rng.permutation(n), hospitals)
    if sites is not None:
        dealt = [rng.permutation(np.flatnonzero(sites == h)) for h in range(hospitals)]
    for rows in dealt:
        fit, test = split(rows, held_out)
        table: Table = {"ids": ids[fit], **common}
        if own:
            table = features(fit, 0)
            table["x_test"] = x[np.ix_(test, columns[0])]
        table |= {"y": y[fit], "y_test": y[test], "ids_test": ids[test], "classes": classes}
        tables.append(table)
    for c in range(centres):
        sharing = range(c % count, centres, count)
        lots = np.random.default_rng([seed, c % count]).integers(len(sharing), size=n)
        known = rng.permutation(np.flatnonzero(lots == c // count))
        table = features(known, c % count + own)
        table["x"] = np.vstack([table["x"], np.tile(table["ranges"][:, 0], (2, 1))])
        table["ids"] = [*table["ids"], f"stranger {c}", f"other stranger {c}"]
        tables.append(table)
    return tables


# -- the run


class Parties(Nodes):
    """Nodes of FedCG."""

    def predict(self, arrays: Any, meta: Any) -> FedCG:
        """Predict with a model that was saved."""
        strategy = FedCG.of_model(meta)
        strategy.predict_at_nodes(self.grid(), arrays, meta)
        return strategy

    def fit(self, *, landmarks: Any = 20, more: Table | None = None, **options: Any) -> FedCG:
        options = {**PLAIN, **options}
        strategy: FedCG = self.run(FedCG(landmarks=landmarks, **options), **(more or {}))
        return strategy

    def states(self) -> dict[int, RunState]:
        """Return what the parties remember of a run."""
        loaded = {k: SessionState.load(context) for k, context in sorted(self.contexts.items())}
        return {k: RunState.unpack(state.payload) for k, state in loaded.items()}


Serve = Callable[..., Parties]  # what a fixture gives


def serve(tables: list[Table], folder: Path, **common: Any) -> Parties:
    return Parties(HybridKernelClient, tables, folder, {"alignment_key": KEY, **common})


@pytest.fixture
def parties(tmp_path: Path) -> Serve:
    def make(tables: list[Table], **common: Any) -> Parties:
        tmp_path.joinpath(str(len(made))).mkdir()
        made.append(serve(tables, tmp_path / str(len(made)), **common))
        return made[-1]

    made: list[Parties] = []
    return make


# -- the pooled solution, in plain NumPy


@dataclass
class Pooled:
    """All tables in one place.

    ``train``, ``held_out`` are distances of rows to landmarks, ``pairs`` those between landmarks.
    """

    train: np.ndarray
    held_out: np.ndarray
    pairs: np.ndarray
    targets: np.ndarray
    labels: dict[str, Any]  # of held-out rows, by id, in order
    gamma: Any
    bound: float = np.inf  # of the labels of a regression, beyond which nothing is predicted

    def solve(
        self, lam: float, *, penalty: str = "ridge", order: Any = slice(None)
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients and predictions of held-out rows."""
        k, y = np.exp(-self.gamma * self.train)[order], self.targets[order]
        if penalty == "ridge":
            a = np.linalg.solve(k.T @ k + lam * np.eye(k.shape[1]), k.T @ y)
        else:
            matrix = k.T @ k + lam * np.exp(-self.gamma * self.pairs)
            cut = len(matrix) * np.finfo(float).eps
            a = np.linalg.pinv(matrix, rcond=cut, hermitian=True) @ (k.T @ y)
        return a, np.clip(np.exp(-self.gamma * self.held_out) @ a, -self.bound, self.bound)

    def rounding(self, lam: float, **more: Any) -> float:
        """Return what another order of the rows changes in the predictions."""
        rng, (_, f) = np.random.default_rng(0), self.solve(lam, **more)
        orders = [rng.permutation(len(self.train)) for _ in range(5)]
        return max(float(np.abs(self.solve(lam, order=o, **more)[1] - f).max()) for o in orders)


def pool(
    tables: list[Table],
    landmarks: int = 20,
    *,
    kernel: str = "rbf",
    gamma: Any = None,
    missing: str = "error",
    sampling: str = "U",
    seeds: dict[str, bytes] | None = None,
) -> Pooled:
    """Join all tables by id and compute distances to the landmarks of known seeds."""
    values: dict[str, dict[str, np.ndarray]] = {}
    ranges: dict[str, np.ndarray] = {}
    secret = dict(seeds or {})
    for k, table in enumerate(tables):
        if table.get("x") is None or not np.shape(table["x"])[1]:
            continue
        block = table.get("block", "clinical" if "y" in table else f"centre {k}")
        ranges[block] = np.asarray(table.get("ranges", [[0.0, 1.0]] * np.shape(table["x"])[1]))
        if "landmark_seed" in table:
            secret.setdefault(block, table["landmark_seed"])
        rows = values.setdefault(block, {})
        rows.update(zip(map(str, table["ids"]), np.asarray(table["x"]), strict=True))
        if "x_test" in table:
            rows.update(zip(map(str, table["ids_test"]), table["x_test"], strict=True))
    hospitals = [table for table in tables if "y" in table]
    labels: dict[str, Any] = {}
    fit: list[str] = []
    held_out: list[str] = []
    for table in hospitals:
        fit += map(str, table["ids"])
        labels.update(zip(map(str, table["ids"]), np.asarray(table["y"]), strict=True))
        tests = list(map(str, table.get("ids_test", [])))
        held_out += tests
        answers = table.get("y_test")
        answers = [None] * len(tests) if answers is None else np.asarray(answers)
        labels.update(zip(tests, answers, strict=True))
    if missing == "drop-row":
        fit, held_out = (
            [i for i in ids if all(i in rows for rows in values.values())]
            for ids in (fit, held_out)
        )
    drawn = {}
    for block, bounds in ranges.items():
        moments = None
        x = np.array([values[block][i] for i in fit if i in values[block]])
        if sampling == "N" or (sampling == "C" and x.shape[1] == 1):
            moments = np.stack([x.mean(axis=0), x.std(axis=0)])
        elif sampling == "C":  # of equal ranges; a row's worth of the identity for each feature
            (n, d), found = x.shape, np.cov(x.T, bias=True)
            mixed = (n * found + np.trace(found) * np.eye(d)) / (n + d)
            moments = np.vstack([x.mean(axis=0), mixed])
        drawn[block] = draw_landmarks(secret[block], landmarks, bounds, moments)

    def distances(ids: list[str]) -> np.ndarray:
        out = np.zeros((len(ids), landmarks))
        for block, rows in values.items():
            have = np.array([i in rows for i in ids], bool)
            assert have.all() or missing == "neutral"
            if have.any():
                x = np.array([rows[i] for i in ids if i in rows])
                out[have] += cdist(x, drawn[block], METRICS[kernel])
        return out

    everything = np.hstack(list(drawn.values()))
    y = np.array([labels[i] for i in fit], float)
    classes = hospitals[0].get("classes")
    if classes is not None and len(classes) == 2:
        targets = np.where(y == classes[1], 1.0, -1.0)[:, None]
    elif classes is not None:
        targets = np.stack([np.where(y == c, 1.0, -1.0) for c in classes], axis=1)
    else:
        targets = y.reshape(len(y), -1)
    return Pooled(
        distances(fit),
        distances(held_out),
        cdist(everything, everything, METRICS[kernel]),
        targets,
        {i: labels[i] for i in held_out},
        1.0 / everything.shape[1] if gamma is None else gamma,
        np.inf if classes is not None else hospitals[0].get("label_bound", 1.0),
    )


def difference(group: Parties, pooled: Pooled, lam: float, **more: Any) -> float:
    """Return max |f_fed - f_central| over the held-out rows, as the hospitals wrote them."""
    found = group.outputs()
    assert set(found) == set(pooled.labels)
    f = pooled.solve(lam, **more)[1]
    assert f.shape[1] > 0
    assert np.abs(f).max() > 0.01  # there is something to compare
    return float(np.abs(np.array([found[i] for i in pooled.labels]) - f).max())


# -- exactness


SETS = ["iris", "wine", "breast_cancer", "ionosphere", "sonar"]
SPLITS = [(h, c) for h in range(1, 11) for c in range(1, 6)]
LAMBDAS = (1.0, 1e-2, 1e-3, 1e-4)


@pytest.mark.parametrize("name", SETS)
def test_the_model_is_that_of_the_pooled_data(name: str, parties: Serve) -> None:
    x, y, common = load(name)
    for k, (hospitals, centres) in enumerate(SPLITS[SETS.index(name) :: len(SETS)]):
        lam = LAMBDAS[k % len(LAMBDAS)]
        tables = deal(x, y, hospitals, centres, seed=k, **common)
        group = parties(tables, allow_single=True)
        strategy = group.fit(landmarks=50, regularization=lam, allow_single=True)
        found = difference(group, pool(tables, 50), lam)
        assert found <= EXACT, f"{hospitals} hospitals, {centres} centres, lambda {lam}: {found}"
        assert strategy.ledger_.by_phase == Counter(FIVE)
        assert strategy.ledger_.exchanges == 5
        assert strategy.ledger_.failures == {}


@pytest.mark.parametrize("name", ["wine", "breast_cancer", "sonar"])
def test_a_small_regularization_costs_no_more_than_float64_itself(
    name: str, parties: Serve
) -> None:
    x, y, common = load(name)
    for lam in (1e-6, 1e-8):
        tables = deal(x, y, 3, 2, **common)
        group, pooled = parties(tables), pool(tables, 50)
        group.fit(landmarks=50, regularization=lam, allow_single=True)
        assert difference(group, pooled, lam) <= max(EXACT, 10.0 * pooled.rounding(lam))


@pytest.mark.parametrize("centres", [0, 1, 2])
def test_six_thousand_rows_of_three_hospitals(centres: int, parties: Serve) -> None:
    """Each hospital keeps its own patients; no hospital sees both classes."""
    toy, lam = three_hospitals(1), 1e-4
    tables = deal(toy.x, toy.y, 3, centres, sites=toy.site, classes=(0, 1))
    assert all(len(set(table["y"])) == 1 for table in tables[:3])
    group = parties(tables, allow_single=True)
    strategy = group.fit(landmarks=50, regularization=lam, gamma=10.0, allow_single=True)
    assert difference(group, pool(tables, 50, gamma=10.0), lam) <= EXACT
    assert strategy.ledger_.exchanges == 5
    assert strategy.metrics_["test_accuracy"] > 0.94


def figure_three(name: str = "breast_cancer") -> list[Table]:
    """Hospitals 0 and 1 share a clinical block; genomics of each at a centre of its own (2, 3),
    proteomics of both at centre 4."""
    x, y, common = load(name)
    one, two, centre = deal(x, y, 2, 1, **common)
    genes, proteins = np.array_split(np.arange(centre["x"].shape[1]), 2)
    place = {str(i): k for k, i in enumerate(centre["ids"])}
    rng, tables = np.random.default_rng(0), [one, two]

    def add(ids: Sequence[str], columns: np.ndarray, block: str) -> None:
        ids = rng.permutation(np.asarray(ids))
        part = {"x": centre["x"][np.ix_([place[str(i)] for i in ids], columns)], "ids": ids}
        part |= {"block": block, "landmark_seed": public_seed(7, block)}
        tables.append(part)

    for hospital in (one, two):
        add([*hospital["ids"], *hospital["ids_test"]], genes, "genomics")
    add(list(place), proteins, "proteomics")
    return tables


def test_the_split_of_figure_three(parties: Serve) -> None:
    tables = figure_three()
    group = parties(tables)
    strategy = group.fit(landmarks=50, regularization=1e-4)  # nobody need allow anything
    assert difference(group, pool(tables, 50), 1e-4) <= EXACT
    assert_nothing_left(group)
    assert strategy.plan_.blocks["genomics"] == (2, 3)
    assert [ward.centres for ward in strategy.plan_.wards.values()] == [(2, 4), (3, 4)]
    assert strategy.ledger_.by_phase == Counter(FIVE)


def regression() -> list[Table]:
    """Several outputs."""
    x, _ = small(90)
    y = 30.0 * np.stack([np.sin(3.0 * x[:, 0]) - x[:, 5], x[:, 1] * x[:, 2]], axis=1)
    return deal(x, y, 3, 2, label_bound=40.0)


def incomplete() -> list[Table]:
    """Some rows lack a block, some two; each has two centres or none, but for those at the end."""
    tables = deal(*small(90), 3, 3, classes=(0, 1))
    patients = np.concatenate([table["ids"] for table in tables[:3]])
    for c, gone in ((3, patients[:8]), (4, patients[8:14]), (5, patients[14:17])):
        keep = ~np.isin(tables[c]["ids"], gone)
        tables[c] |= {"x": tables[c]["x"][keep], "ids": np.asarray(tables[c]["ids"])[keep]}
    return tables


def far_from_zero() -> list[Table]:
    """Years, say, or temperatures in Kelvin: squares of the features have no digits to spare."""
    x, y = small(90)
    return deal(1e5 + x, y, 2, 2, classes=(0, 1), ranges=(1e5, 1e5 + 1.0))


def without_seeds(tables: list[Table]) -> list[Table]:
    return [{k: v for k, v in table.items() if k != "landmark_seed"} for table in tables]


VARIANTS: dict[str, tuple[Callable[[], list[Table]], Table]] = {
    "no centres": (lambda: deal(*small(), 3, 0, classes=(0, 1)), {}),
    "hospitals without features": (lambda: deal(*small(), 3, 2, own=False, classes=(0, 1)), {}),
    "several classes": (lambda: deal(*load("wine")[:2], 3, 2, classes=(0, 1, 2)), {}),
    "several outputs": (regression, {}),
    "laplacian": (lambda: deal(*small(), 2, 2, classes=(0, 1)), {"kernel": "laplacian"}),
    "a width": (lambda: deal(*small(), 2, 2, classes=(0, 1)), {"gamma": 0.9}),
    "landmarks normal": (lambda: deal(*small(), 1, 2, classes=(0, 1)), {"sampling": "N"}),
    "far from zero": (far_from_zero, {}),
    "far from zero, laplacian": (far_from_zero, {"kernel": "laplacian"}),
    "rows dropped": (incomplete, {"missing": "drop-row"}),
    "blocks neutral": (incomplete, {"missing": "neutral"}),
    "a single landmark": (lambda: deal(*small(), 2, 2, classes=(0, 1)), {"landmarks": 1}),
    "rows dropped, landmarks normal": (incomplete, {"missing": "drop-row", "sampling": "N"}),
    "blocks neutral, landmarks normal": (incomplete, {"missing": "neutral", "sampling": "N"}),
    "one held out": (lambda: deal(*small(), 2, 2, classes=(0, 1), held_out=0.04), {}),
}


@pytest.mark.parametrize("lam", [1.0, 1e-4])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_that_of_the_pooled_data(name: str, lam: float, parties: Serve) -> None:
    make, options = VARIANTS[name]
    tables = make()
    group = parties(tables, allow_single=True)
    strategy = group.fit(regularization=lam, allow_single=True, **options)
    assert difference(group, pool(tables, **options), lam) <= EXACT
    moments = {"hybrid-moments": 1} if "missing" in options and "sampling" in options else {}
    assert_nothing_left(group)
    assert strategy.ledger_.by_phase == Counter(FIVE) + Counter(moments)


@pytest.mark.parametrize(
    ("solver", "landmarks"), [("normal-equations", 20), ("normal-equations", 1), ("cg", 20)]
)
def test_the_penalty_of_the_function_s_norm(solver: str, landmarks: int, parties: Serve) -> None:
    """Equation 2.10: the kernel of the landmarks comes from the parties' slices."""
    tables = figure_three("wine")
    group, lam = parties(tables), 0.3
    options = {"penalty": "rkhs", "gamma": 2.0, "regularization": lam}
    strategy = group.fit(landmarks=landmarks, solver=solver, **options)
    pooled = pool(tables, landmarks, gamma=2.0)
    assert difference(group, pooled, lam, penalty="rkhs") <= EXACT
    ridge = pooled.solve(lam)[1] - pooled.solve(lam, penalty="rkhs")[1]
    assert landmarks == 1 or np.abs(ridge).max() > 1e-3  # it makes a difference
    assert strategy.ledger_.by_phase["hybrid-distances"] == 1


def test_a_width_per_landmark(parties: Serve) -> None:
    """Equation 4.1: log-uniform around gamma, from the run's seed."""
    tables = deal(*small(), 2, 2, classes=(0, 1))
    group = parties(tables)
    strategy = group.fit(landmark_gamma=True, gamma=0.4, seed=5)
    assert strategy.gammas_.shape == (20,)
    assert 0.2 <= strategy.gammas_.min() < 0.35 < 0.45 < strategy.gammas_.max() <= 0.8
    assert difference(group, pool(tables, gamma=strategy.gammas_), 1e-3) <= EXACT
    again, other = (parties(tables).fit(landmark_gamma=True, gamma=0.4, seed=s) for s in (5, 6))
    np.testing.assert_array_equal(again.gammas_, strategy.gammas_)
    assert not np.isclose(other.gammas_, strategy.gammas_).any()


@pytest.mark.parametrize("sampling", ["N", "C"])
def test_moments_of_shared_blocks_are_those_of_the_pooled_training_rows(
    sampling: str, parties: Serve
) -> None:
    """One more exchange: counts, sums and products of each block's rows, held-out ones excepted.

    Centre 3 holds the rows of two hospitals, more than any hospital has.
    """
    x, y = small(120)
    *tables, centre, other = deal(x, y, 3, 2, classes=(0, 1))
    there = np.isin(centre["ids"], np.concatenate([tables[2]["ids"], tables[2]["ids_test"]]))
    for rows in (~there, there):
        part = {"x": centre["x"][rows], "ids": np.asarray(centre["ids"])[rows]}
        tables.append({**centre, **part})
    tables.append(other)
    group, lam = parties(tables), 1e-4
    strategy = group.fit(sampling=sampling, regularization=lam)
    assert strategy.plan_.blocks[centre["block"]] == (3, 4)
    assert difference(group, pool(tables, sampling=sampling), lam) <= EXACT
    assert strategy.ledger_.by_phase == Counter({**FIVE, "hybrid-moments": 1})
    assert strategy.ledger_.exchanges == 6
    wrong = pool(tables)  # uniform landmarks: the comparison can fail
    assert difference(group, wrong, lam) > 1e-3


@pytest.fixture
def same_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of rows depends on the session's name, and rounding on the order."""
    monkeypatch.setattr("fedkern_flwr.strategy.secrets.token_hex", lambda n: "5e" * n)


# -- landmarks that nobody configured


def fit_and_read_seeds(
    group: Parties, lam: float = 1e-4, more: Table | None = None, **options: Any
) -> tuple[FedCG, dict[str, bytes]]:
    """Fit; return the secret of each block, as its holders remember it during the run."""
    seeds: dict[int, bytes] = {}
    strategy = FedCG(**{**PLAIN, "landmarks": 20, "regularization": lam, **options})
    strategy.on_round = lambda *_: seeds.update({k: s.seed for k, s in group.states().items()})
    group.run(strategy, **(more or {}))
    found = {b: {seeds[p] for p in holders} for b, holders in strategy.plan_.blocks.items()}
    assert all(len(secrets) == 1 for secrets in found.values())  # holders agree
    drawn = {block: next(iter(secrets)) for block, secrets in found.items()}
    assert len(set(drawn.values())) == len(drawn)  # and nobody else has the same
    assert {len(seed) for seed in drawn.values()} == {32}
    return strategy, drawn


@pytest.mark.parametrize("sampling", ["U", "N"])
def test_two_holders_of_a_block_take_the_secret_of_their_pair(
    sampling: Any, parties: Serve
) -> None:
    """Single holders draw their own. No exchange more; other landmarks in every run."""
    tables = without_seeds(figure_three("wine"))
    group = parties(tables)
    record = Transcript()
    strategy, seeds = fit_and_read_seeds(group, sampling=sampling, more={"transcript": record})
    assert difference(group, pool(tables, seeds=seeds, sampling=sampling), 1e-4) <= EXACT
    extra = {"hybrid-moments": 1} if sampling == "N" else {}
    assert strategy.ledger_.by_phase == Counter({**FIVE, **extra})
    _, others = fit_and_read_seeds(parties(tables), sampling=sampling)
    assert not set(seeds.values()) & set(others.values())
    assert_never_sent(record, seeds.values())


@pytest.mark.parametrize("sampling", ["U", "N"])
def test_the_first_of_several_holders_seals_a_secret_for_the_others(
    sampling: Any, parties: Serve
) -> None:
    tables = without_seeds(deal(*small(120), 4, 5, classes=(0, 1)))
    group, record = parties(tables), Transcript()
    strategy, seeds = fit_and_read_seeds(group, sampling=sampling, more={"transcript": record})
    assert len(strategy.plan_.blocks["clinical"]) == 4
    assert difference(group, pool(tables, seeds=seeds, sampling=sampling), 1e-4) <= EXACT
    assert strategy.ledger_.by_phase == Counter({**FIVE, "hybrid-moments": 1})
    assert_never_sent(record, seeds.values())
    replies = list(record.entries(phase="hybrid-moments", direction="up"))
    sealed = [a for e in replies for a in e.arrays if a.dtype == np.uint8]
    assert len(sealed) == 3
    assert len({a.tobytes() for a in sealed}) == 3


@pytest.mark.usefixtures("same_session")
@pytest.mark.parametrize("sampling", ["U", "N"])
def test_secret_landmarks_survive_a_break_down(sampling: str, parties: Serve) -> None:
    """Two holders and more: nothing is configured, all is in the nodes' folders."""
    tables = without_seeds(deal(*small(), 3, 2, classes=(0, 1)))
    group = parties(tables)
    options: Table = {"solver": "cg", "regularization": 0.1, "sampling": sampling}
    where: Table = {**options, "checkpoint": group.folder / "run.npz"}
    with pytest.raises(PowerCutError):
        group.fit(more={"faults": Cut(number=6)}, **where)
    drawn = {k: state.seed for k, state in group.states().items()}
    resumed = group.fit(resume=True, **where)
    again = parties([{**table, "landmark_seed": drawn[k]} for k, table in enumerate(tables)])
    known = again.fit(**options)
    np.testing.assert_array_equal(resumed.coefficients_, known.coefficients_)
    assert group.written() == again.written()


def test_a_sealed_secret_cannot_be_changed_on_the_way(parties: Serve) -> None:
    group = parties(without_seeds(deal(*small(), 3, 2, classes=(0, 1))))
    plan = At(partition=0, phase="hybrid-moments", what=Fault("tamper", change=flip))
    with pytest.raises(ProtocolError, match="through the server was changed or misplaced"):
        group.fit(more={"faults": plan})
    assert not group.written()


def assert_never_sent(record: Transcript, secrets: Iterable[bytes]) -> None:
    whole = b"".join(everything_sent(record))
    assert len(whole) > 10_000
    for secret in secrets:
        assert secret not in whole
        assert secret.hex().encode() not in whole


def everything_sent(record: Transcript) -> list[bytes]:
    """Return the bytes of all arrays and scalars of all messages."""
    out: list[bytes] = []
    for entry in record.entries():
        out += [np.ascontiguousarray(array).tobytes() for array in entry.arrays]
        out += [v if isinstance(v, bytes) else str(v).encode() for v in entry.scalars.values()]
    return out


# -- conjugate gradients


def plain_cg(k: np.ndarray, y: np.ndarray, lam: float) -> tuple[np.ndarray, list[float]]:
    """Solve (K^T K + lambda I) x = K^T y by the method of Hestenes and Stiefel, written out.

    Return x and sum(r^2) at the start and after each iteration, until |r| <= 1e-10 |K^T y|.
    """
    b = k.T @ y
    x, r, p, squares = np.zeros_like(b), b.copy(), b.copy(), [b @ b]
    while np.sqrt(squares[-1]) > 1e-10 * np.linalg.norm(b):
        q = k.T @ (k @ p) + lam * p
        step = squares[-1] / (p @ q)
        x, r = x + step * p, r - step * q
        squares.append(r @ r)
        p = r + squares[-1] / squares[-2] * p
    return x, squares


def central_iterations(pooled: Pooled, lam: float) -> int:
    """Return how many iterations the slowest output takes."""
    k = np.exp(-pooled.gamma * pooled.train)
    return max(len(plain_cg(k, y, lam)[1]) - 1 for y in pooled.targets.T)


# regularizations with which the order of the rows does not change the pooled count
CG_SETS = [("iris", 1e-1), ("wine", 1e-2), ("breast_cancer", 1.0), ("sonar", 1e-1)]


@pytest.mark.parametrize(("name", "lam"), CG_SETS)
def test_iterations_are_those_of_the_centralised_method(
    name: str, lam: float, parties: Serve
) -> None:
    """In plain float64 the same number, one more or less; in fixed point at most 1.4 times it."""
    x, y, common = load(name)
    tables = deal(x, y, 3, 2, **common)
    for table in tables:
        table["landmark_seed"] = public_seed(4, table["block"])
    pooled = pool(tables, 30)
    iterations = central_iterations(pooled, lam)
    options: Table = {"landmarks": 30, "solver": "cg", "preconditioner_rank": 0, "seed": 4}
    group = parties(tables, allow_single=True)
    secure = group.fit(regularization=lam, allow_single=True, **options)
    assert_nothing_left(group)
    assert secure.metrics_["iterations"] <= 1.4 * iterations
    assert difference(group, pooled, lam) <= EXACT
    products = 1 + secure.metrics_["iterations"]  # K^T y comes first
    phases = {**FIVE, "hybrid-product": products}
    del phases["hybrid-equations"]
    assert secure.ledger_.by_phase == Counter(phases)
    assert [row["round"] for row in secure.history_] == list(range(1, products))


def test_residuals_are_those_of_the_centralised_method(parties: Serve) -> None:
    """As the paper's figure 6 has them: sum(r^2) after each iteration."""
    tables = deal(*small(90), 2, 2, classes=(0, 1))
    lam = 0.1
    options: Table = {"preconditioner_rank": 0, "regularization": lam, "gamma": 8.0}
    strategy = parties(tables).fit(solver="cg", **options)
    pooled = pool(tables, gamma=8.0)
    kernel = np.exp(-pooled.gamma * pooled.train)
    right = kernel.T @ pooled.targets
    squares = plain_cg(kernel, pooled.targets[:, 0], lam)[1][1:]
    found = [row["squared_residual"] for row in strategy.history_]
    assert len(found) == len(squares) > 10
    assert found[:-1] == pytest.approx(squares[:-1], rel=1e-3)
    relative = [row["residual"] for row in strategy.history_]
    np.testing.assert_allclose(np.square(relative) * np.sum(right**2), found, rtol=1e-9)
    assert relative[-1] <= 1e-10 < relative[-2]
    assert strategy.metrics_["residual"] == relative[-1]


@pytest.mark.parametrize(("name", "lam"), [("wine", 1e-3), ("breast_cancer", 1e-3)])
def test_a_preconditioner_saves_iterations(name: str, lam: float, parties: Serve) -> None:
    """Its sketch comes with K^T y: no exchange more."""
    x, y, common = load(name)
    tables = deal(x, y, 3, 2, **common)
    pooled = pool(tables, 60)
    plain = central_iterations(pooled, lam)
    found = {}
    for rank in (None, 10, 60):
        group = parties(tables, allow_single=True)
        found[rank] = group.fit(
            landmarks=60,
            solver="cg",
            preconditioner_rank=rank,
            regularization=lam,
            tolerance=1e-12,
            allow_single=True,
        )
        assert difference(group, pooled, lam) <= EXACT
        iterations = found[rank].metrics_["iterations"]
        assert found[rank].ledger_.by_phase["hybrid-product"] == 1 + iterations
    assert found[None].rank == 30
    counts = [found[rank].metrics_["iterations"] for rank in (10, None, 60)]
    assert plain > counts[0] > counts[1] >= counts[2]
    assert counts[1] < plain / 5
    assert counts[2] <= 4


def test_several_outputs_share_their_exchanges(parties: Serve) -> None:
    tables, lam = regression(), 1e-2
    group, pooled = parties(tables), pool(tables)
    both = group.fit(solver="cg", preconditioner_rank=0, regularization=lam)
    assert difference(group, pooled, lam) <= EXACT * 40.0  # targets up to 30
    single = []
    for column in range(2):
        alone = []
        for table in tables:
            alone.append(dict(table))
            for name in ("y", "y_test"):
                if name in table:
                    alone[-1][name] = table[name][:, column]
        strategy = parties(alone).fit(solver="cg", preconditioner_rank=0, regularization=lam)
        single.append(strategy.metrics_["iterations"])
    assert single[0] != single[1]
    assert abs(both.metrics_["iterations"] - max(single)) <= 2
    assert both.ledger_.by_phase["hybrid-product"] == 1 + both.metrics_["iterations"]


def test_a_start_that_is_given_is_used(parties: Serve) -> None:
    """At the solution of another run hardly anything is left to do."""
    tables, options = (
        deal(*small(90), 2, 2, classes=(0, 1)),
        {"solver": "cg", "regularization": 0.1},
    )
    group = parties(tables)
    cold = group.fit(**options)
    starts: list[np.ndarray] = []

    def note(number: int, arrays: ArrayRecord) -> MetricRecord:
        starts.append(arrays.to_numpy_ndarrays()[0])
        return MetricRecord({"n": number})

    given = ArrayRecord([cold.coefficients_])
    warm = group.fit(**options, more={"initial_arrays": given, "evaluate_fn": note})
    assert warm.metrics_["iterations"] <= 1 < cold.metrics_["iterations"]
    np.testing.assert_array_equal(starts[0], cold.coefficients_)
    assert difference(group, pool(tables), 0.1) <= EXACT
    wrong = ArrayRecord([np.zeros((20, 2))])
    with pytest.raises(
        FedKernError, match=r"initial_arrays has shape \(20, 2\) instead of \(20, 1"
    ):
        group.fit(**options, more={"initial_arrays": wrong})


def test_iterations_that_do_not_converge_are_reported(
    parties: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = parties(deal(*small(), 2, 2, classes=(0, 1))).fit(
        solver="cg", preconditioner_rank=0, more={"num_rounds": 3}
    )
    assert strategy.metrics_["iterations"] == 3
    assert strategy.metrics_["residual"] > 1e-10
    assert "not converged after 3 iterations: residual" in caplog.text
    assert "solver normal-equations" in caplog.text


# -- the paper's algorithm


def test_conjugate_gradients_are_those_of_the_paper_iterate_by_iterate(parties: Serve) -> None:
    """From the same start, without a preconditioner: Algorithm 1, from sums of all hospitals.

    The start is drawn by the server from the seed of the run. No party needs it: they are asked for
    products with it. The paper's program is given what the server drew.
    """
    tables = deal(*small(), 3, 2, classes=(0, 1))
    m, lam, gamma, starts = 20, 0.3, 4.0, list[np.ndarray]()  # well conditioned: few digits go

    def note(number: int, arrays: ArrayRecord) -> None:
        if not number:
            starts.append(arrays.to_numpy_ndarrays()[0])

    options: Table = {"solver": "cg", "init": "random", "preconditioner_rank": 0, "seed": 7}
    options |= {"gamma": gamma, "regularization": lam, "tolerance": 1e-14}
    iterates = []
    for number in range(1, 11):
        more = {"num_rounds": number, "evaluate_fn": note}
        iterates.append(parties(tables).fit(landmarks=m, more=more, **options).coefficients_[:, 0])
    assert {start.tobytes() for start in starts} == {starts[0].tobytes()}
    assert np.abs(starts[0]).max() > 1.0

    hospitals, centres = tables[:3], tables[3:]
    rows: list[Hospital] = []
    for own in hospitals:
        blocks = []
        for centre in centres:
            known = dict(zip(centre["ids"], centre["x"], strict=True))
            blocks.append(np.array([known[name] for name in own["ids"]]))
        rows.append(Hospital([*blocks, own["x"]], np.where(own["y"] == 1, 1.0, -1.0)))
    w = [
        draw_landmarks(table["landmark_seed"], m, np.asarray(table["ranges"], float))
        for table in (*centres, hospitals[0])
    ]
    alpha, limits = starts[0][:, 0], {"tolerance": 1e-30, "epochs": 10}
    for paper in (chain, naive):
        found, _ = paper(rows, w, gamma, lam, alpha=alpha, **limits)
        assert len(found.iterates) == 11
        steps = np.abs(np.diff(found.iterates, axis=0)).max(axis=1)
        assert steps.min() > 1e-3  # each is another one
        for ours, theirs in zip(iterates, found.iterates[1:], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=1e-6)


# -- problems that take several messages


@pytest.mark.parametrize("rows", [5, 30, 89])
@pytest.mark.parametrize("solver", ["normal-equations", "cg"])
def test_rows_may_travel_in_many_parts(
    rows: int, solver: str, parties: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of distances has ``rows`` rows at most; hospitals of different sizes."""
    x, y = small(89)
    tables = deal(x, y, 3, 2, classes=(0, 1))
    for name in ("x", "y", "ids"):
        tables[1][name] = tables[1][name][:4]
    tables[2]["x"], tables[2]["x_test"] = None, None  # and one of them without features
    keep = {k: v for k, v in tables[2].items() if k not in ("x", "x_test", "block", "columns")}
    tables[2] = {k: v for k, v in keep.items() if k not in ("ranges", "landmark_seed")}
    group = parties(tables)
    options: Table = {"solver": solver, "regularization": 1e-2, "missing": "neutral"}
    monkeypatch.setattr("fedkern_flwr.strategies.fed_cg_system._MESSAGE", 8 * 20 * rows)
    record = Transcript()
    strategy = group.fit(**options, more={"transcript": record})
    total = sum(len(t["ids"]) + len(t["ids_test"]) for t in tables[:3])
    assert (strategy.ledger_.by_phase["hybrid-distances"] == 1) == (rows >= total)
    sizes = [
        sum(array.nbytes for array in entry.arrays)
        for entry in record.entries(phase="hybrid-distances", direction="up")
    ]
    assert max(sizes) <= 8 * 20 * (rows + 3)  # each hospital's share is rounded up
    assert difference(group, pool(tables, missing="neutral"), 1e-2) <= EXACT


@pytest.mark.parametrize("bits", [64, 32])
def test_distances_may_travel_in_half_the_bytes(bits: int, parties: Serve) -> None:
    """At the price of kernels that are rounded: to what the option's documentation says."""
    tables = deal(*small(90), 2, 2, classes=(0, 1))
    group, record = parties(tables), Transcript()
    kernels: list[np.ndarray] = []
    options: Table = {"solver": "cg", "regularization": 1.0, "gamma": 1.0, "sampling": "U"}
    strategy = FedCG(landmarks=20, distance_bits=bits, **options)

    def read(*_: Any) -> None:
        if not kernels:
            for path in sorted(group.folder.rglob("*.kernel")):
                rows = np.fromfile(path).reshape(-1, 20)
                kernels.append(rows[: len(tables[len(kernels)]["ids"])])

    strategy.on_round = read
    group.run(strategy, transcript=record)
    pooled = pool(tables, gamma=1.0)
    found, exact = np.vstack(kernels), np.exp(-pooled.train)
    assert found.shape == exact.shape
    error = np.abs(np.sort(found, axis=0) - np.sort(exact, axis=0)).max()  # in whatever order
    rounding = 2 * 2.0 ** (2 + 2 - 31)  # two centres, distances of at most two
    assert error < (1e-13 if bits == 64 else rounding)
    assert difference(group, pooled, 1.0) <= (EXACT if bits == 64 else 1e-6)
    masked = [
        array
        for entry in record.entries(phase="hybrid-distances", direction="up")
        for array in entry.arrays
    ]
    assert sum(array.nbytes for array in masked) == 2 * 3 * 45 * 20 * bits // 8


def test_many_parts_with_everything_that_travels_only_once(
    parties: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments and the kernel of the landmarks."""
    monkeypatch.setattr("fedkern_flwr.strategies.fed_cg_system._MESSAGE", 8 * 20 * 40)
    tables = without_seeds(figure_three("wine"))
    group = parties(tables)
    options: Table = {"sampling": "N", "penalty": "rkhs", "gamma": 2.0}
    strategy, seeds = fit_and_read_seeds(group, 0.3, **options)
    pooled = pool(tables, sampling="N", gamma=2.0, seeds=seeds)
    assert difference(group, pooled, 0.3, penalty="rkhs") <= EXACT
    assert strategy.ledger_.by_phase["hybrid-distances"] > 3


def test_a_hospital_without_centres_beside_one_with_many_parts(
    parties: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedkern_flwr.strategies.fed_cg_system._MESSAGE", 8 * 20 * 15)
    tables = deal(*small(90), 3, 2, classes=(0, 1))
    alone = {*tables[1]["ids"], *tables[1]["ids_test"]}
    for c in (3, 4):
        keep = ~np.isin(tables[c]["ids"], list(alone))
        tables[c] |= {"x": tables[c]["x"][keep], "ids": np.asarray(tables[c]["ids"])[keep]}
    for solver in ("normal-equations", "cg"):
        group = parties(tables)
        strategy = group.fit(solver=solver, missing="neutral", regularization=1e-2)
        assert difference(group, pool(tables, missing="neutral"), 1e-2) <= EXACT
        assert strategy.ledger_.by_phase["hybrid-distances"] > 2


# -- what a run tells


def test_metrics_are_those_of_the_predictions(parties: Serve) -> None:
    tables = deal(*load("breast_cancer")[:2], 3, 2, classes=(0, 1))
    group = parties(tables)
    strategy = group.fit(landmarks=50)
    rows = group.written()
    labels = {
        i: label
        for table in tables[:3]
        for i, label in zip(table["ids_test"], table["y_test"], strict=True)
    }
    true, chosen = [labels[r["id"]] for r in rows], [int(r["class"]) for r in rows]
    assert strategy.metrics_["test_accuracy"] == pytest.approx(metrics.accuracy_score(true, chosen))
    assert strategy.metrics_["test_recall"] == pytest.approx(metrics.recall_score(true, chosen))
    precision = metrics.precision_score(true, chosen)
    assert strategy.metrics_["test_precision"] == pytest.approx(precision)
    assert strategy.metrics_["test_accuracy"] > 0.9
    assert [int(float(r["output_0"]) >= 0.0) for r in rows] == chosen
    for k, table in enumerate(tables[:3]):  # in the order of the hospital's own table
        with (group.folder / f"{k}.csv").open() as file:
            assert [row["id"] for row in csv.DictReader(file)] == list(table["ids_test"])


def test_the_error_of_a_regression_is_that_of_the_predictions(parties: Serve) -> None:
    tables = regression()
    group = parties(tables)
    strategy = group.fit()
    found = group.outputs()
    pairs = [
        (found[i], y)
        for table in tables[:3]
        for i, y in zip(table["ids_test"], table["y_test"], strict=True)
    ]
    errors = np.array([f for f, _ in pairs]) - np.array([y for _, y in pairs])
    assert strategy.metrics_["test_rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-9)
    assert set(group.written()[0]) == {"id", "output_0", "output_1"}


def test_held_out_rows_without_labels_are_predicted_and_not_judged(parties: Serve) -> None:
    """Not even when some hospitals have labels: their metrics would be taken for all."""
    tables = deal(*small(), 3, 2, classes=(0, 1))
    for table in tables[:3]:
        del table["y_test"]
        group = parties(tables)
        strategy = group.fit(regularization=1e-2)
        assert difference(group, pool(tables), 1e-2) <= EXACT
        assert set(strategy.metrics_) == {"iterations", "residual"}


def test_counts_of_a_single_hospital_are_not_sent(
    parties: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    tables = deal(*small(), 3, 2, classes=(0, 1))
    for table in tables[1:3]:
        for name in ("x_test", "y_test", "ids_test"):
            table[name] = table[name][:0]
    group = parties(tables)
    strategy = group.fit(regularization=1e-2)
    assert "test_accuracy" not in strategy.metrics_
    assert "partition 0 alone has held-out rows: their counts are not sent" in caplog.text
    assert difference(group, pool(tables), 1e-2) <= EXACT
    allowed = group.fit(allow_single=True)
    assert 0.5 < allowed.metrics_["test_accuracy"] <= 1.0


def test_start_is_called_like_a_stock_strategy(parties: Serve) -> None:
    seen: list[int] = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        (coefficients,) = arrays.to_numpy_ndarrays()
        assert coefficients.shape == (20, 1)
        assert coefficients.any() == (number > 0 or strategy.init == "random")
        seen.append(number)
        return MetricRecord({"n": number})

    told: list[tuple[int, int, float]] = []
    paper: Table = {"solver": "cg", "init": "random", "preconditioner_rank": 0}
    for way in ({"solver": "normal-equations"}, {"solver": "cg"}, paper):
        seen.clear()
        told.clear()
        strategy = FedCG(landmarks=20, **way)
        strategy.on_round = lambda done, most, row: told.append((done, most, row["residual"]))
        result = strategy.start(
            grid=parties(deal(*small(), 2, 2, classes=(0, 1))).grid(),
            initial_arrays=None,
            num_rounds=500,
            timeout=30.0,
            train_config=ConfigRecord({"seed": 3}),
            evaluate_config=ConfigRecord(),
            evaluate_fn=evaluate,
        )
        assert isinstance(result, Result)
        last = max(1, strategy.metrics_["iterations"])
        assert seen == [0, last]
        assert result.evaluate_metrics_serverapp[last]["n"] == last
        assert list(result.train_metrics_clientapp) == list(range(1, last + 1))
        residual = result.train_metrics_clientapp[last]["residual"]
        assert residual == strategy.metrics_["residual"] == told[-1][2]
        accuracy = result.evaluate_metrics_clientapp[last]["test_accuracy"]
        assert accuracy == strategy.metrics_["test_accuracy"]
        np.testing.assert_array_equal(result.arrays.to_numpy_ndarrays()[0], strategy.coefficients_)
        assert told[-1][0] == last
        assert strategy.options()["seed"] == 3
        assert all(row["survivors"] == 4 for row in strategy.history_)
    assert list(strategy.configure_train(1, result.arrays, ConfigRecord(), None)) == []  # type: ignore[arg-type]
    assert strategy.aggregate_train(1, []) == (None, None)


def test_a_strategy_tells_its_options_and_what_is_seen(
    parties: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    tables = deal(*small(), 2, 2, classes=(0, 1))
    with caplog.at_level(logging.INFO, "fedkern_flwr"):
        strategy = parties(tables).fit()
    assert "method: fed-cg" in caplog.text
    assert "landmarks: 20" in caplog.text
    privacy = strategy.privacy()
    assert any("sums over the hospitals of K^T K and K^T y" in s for s in privacy["server_sees"])
    assert {"rows", "labels", "ids", "landmarks"} <= set(privacy["never_leaves_the_client"])
    alone = parties(tables[:1] + tables[2:], allow_single=True).fit(allow_single=True)
    assert "of the only hospital" in alone.privacy()["server_sees"][0]
    with caplog.at_level(logging.WARNING, "fedkern_flwr"):
        neutral = parties(incomplete(), allow_single=True).fit(missing="neutral", allow_single=True)
    assert "rows without a block: {'omics 1': 8" in caplog.text
    assert neutral.plan_.report()["hospitals"]["0"]["rows_without_block"]["omics 1"] == 8


# -- options


def test_the_solver_is_chosen_by_the_number_of_landmarks() -> None:
    chosen = {m: FedCG(landmarks=m).chosen_solver for m in (1, 1000, 1001)}
    assert chosen == {1: "normal-equations", 1000: "normal-equations", 1001: "cg"}
    assert FedCG(landmarks=5, solver="cg").chosen_solver == "cg"
    left: list[Table] = [{"gamma": 1.0, "regularization": 1.0}, {"landmark_gamma": True}]
    for options in (*left, {"solver": "cg"}, {"penalty": "rkhs"}):  # nothing is left to choose
        assert not FedCG(**options).tunes
    ranks = {m: FedCG(landmarks=m, solver="cg").rank for m in (10, 399, 400, 2000)}
    assert ranks == {10: 5, 399: 199, 400: 200, 2000: 200}


def test_no_rounds_are_refused(parties: Serve) -> None:
    group = parties(deal(*small(), 2, 2, classes=(0, 1)))
    with pytest.raises(OptionError, match="num_rounds is 0; use at least 1"):
        group.fit(more={"num_rounds": 0})


# -- tables that do not fit together


def change(tables: list[Table], k: int, **more: Any) -> None:
    tables[k] = {**tables[k], **more}


def rename(tables: list[Table]) -> None:
    change(tables, 3, ids=[f"nobody {k}" for k in range(len(tables[3]["ids"]))])


def forget(tables: list[Table], patients: slice = slice(None)) -> None:
    """Let centre 3 not know the patients of hospital 0."""
    keep = ~np.isin(tables[3]["ids"], [*tables[0]["ids"], *tables[0]["ids_test"]][patients])
    ids = np.asarray(tables[3]["ids"])[keep]
    change(tables, 3, x=tables[3]["x"][keep], ids=ids)


def test_names_of_parties_in_what_follows() -> None:
    tables = deal(*small(), 2, 2, classes=(0, 1))
    assert [table["block"] for table in tables] == ["clinical", "clinical", "omics 1", "omics 2"]


MISFITS: dict[str, tuple[Callable[[list[Table]], None], Table, str]] = {
    "no common ids": (
        rename,
        {"missing": "neutral"},
        r"partition 3, phase describe: none of its 62 ids belongs to a row of a hospital; check "
        "its id column and that all parties have the same alignment key",
    ),
    "another alignment key": (
        lambda tables: change(tables, 3, alignment_key=bytes(20)),
        {"missing": "neutral"},
        r"partition 3, .*that all parties have the same alignment key",
    ),
    "patients a centre does not know": (
        forget,
        {},
        r"partition 0, phase describe: 30 of its 30 rows have no block 'omics 2'; check the ids,",
    ),
    "one patient known to one centre only": (
        lambda tables: forget(tables, slice(0, 1)),
        {"missing": "neutral"},
        r"1 of 30 rows of partition 0 are known to one centre only",
    ),
    "other ranges of the same width": (
        lambda tables: change(
            tables, 1, **{k: tables[1][k] + 1 for k in ("x", "x_test", "ranges")}
        ),
        {},
        r"partition 1.* of block 'clinical' ",
    ),
    "other seeds": (
        lambda tables: change(tables, 1, landmark_seed=bytes(32)),
        {},
        r"partition 1: its landmarks of block 'clinical' differ from those of the other holders;",
    ),
    "a held-out row that is a training row": (
        lambda tables: change(
            tables, 0, ids_test=[tables[0]["ids"][0], *tables[0]["ids_test"][1:]]
        ),
        {},
        r"partition 0, phase describe: 1 duplicate ids; keep one row per id",
    ),
    "one hospital": (
        lambda tables: tables.pop(0),  # type: ignore[arg-type, return-value]
        {},
        r"there is one hospital: what is summed over hospitals would be its own; let more",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_tables_that_do_not_fit_together_end_the_run_at_once(
    name: str, parties: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    spoil, options, text = MISFITS[name]
    tables = deal(*small(), 2, 2, classes=(0, 1))
    spoil(tables)
    group, strategy = parties(tables), FedCG(landmarks=20, **options)
    with caplog.at_level(logging.DEBUG), pytest.raises(FedKernError, match=text) as caught:
        group.run(strategy)
    assert "\n" not in str(caught.value)
    assert "patient" not in caplog.text + str(caught.value)
    assert strategy.ledger_.by_phase["hybrid-distances"] <= 1  # another try is of no use
    assert not list(group.folder.glob("*.csv"))
    assert not list(group.folder.rglob("*.kernel"))


SPOILED: dict[str, tuple[Table, str]] = {
    "NaN": ({"x": np.full((21, 2), np.nan)}, "NaN or infinite values"),
    "out of range": ({"x": np.full((21, 2), 777.0)}, "column 'c2' .+ outside its declared range"),
    "an unknown class": ({"y": np.full(21, 777)}, "21 labels are none of the 2 classes"),
    "text": ({"x": [["777", "secret"]] * 21}, "features that are not numbers"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_node_with_a_bad_table_is_named_and_nothing_of_it_is_quoted(
    name: str, parties: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    tables = deal(*small(), 2, 2, classes=(0, 1))
    table, problem = SPOILED[name]
    change(tables, 1, **table)
    text = rf"^partition 1, phase describe: {problem}"
    with caplog.at_level(logging.DEBUG), pytest.raises(FedKernError, match=text) as caught:
        parties(tables).fit()
    for secret in ("777", "secret", "patient"):
        assert secret not in str(caught.value) + caplog.text


def test_clients_do_not_show_their_values_to_a_single_party_either(parties: Serve) -> None:
    """What the strategy allows, each node must allow as well."""
    tables, strategy = deal(*small(), 2, 1, classes=(0, 1)), FedCG(allow_single=True)
    with pytest.raises(
        FedKernError, match=r"partition 2.* it alone knows rows of partition 0, which"
    ):
        parties(tables).run(strategy)
    assert strategy.ledger_.by_phase["hybrid-distances"] == 0
    change(tables, 2, allow_single=True)
    parties(tables).fit(allow_single=True)
    tables = deal(*small(), 1, 2, classes=(0, 1))
    with pytest.raises(
        FedKernError, match=r"partition 0: its own values would be shown to the server: there is no"
    ):
        parties(tables).fit(allow_single=True)
    change(tables, 0, allow_single=True)
    parties(tables).fit(allow_single=True)


def test_one_party_with_everything(parties: Serve) -> None:
    tables = deal(*small(), 1, 0, classes=(0, 1))
    group = parties(tables, allow_single=True)
    for solver in ("normal-equations", "cg"):
        group.fit(solver=solver, regularization=1e-3, allow_single=True)
        assert difference(group, pool(tables), 1e-3) <= EXACT
        assert_nothing_left(group)
    with pytest.raises(OptionError, match="there is one; use penalty ridge"):
        group.fit(penalty="rkhs", allow_single=True)


def test_constant_features_do_no_harm(parties: Serve) -> None:
    x, y = small()
    x[:, 1], x[:, 4] = 0.5, 0.0
    for sampling in ("U", "N"):
        tables = deal(x, y, 2, 2, classes=(0, 1))
        group = parties(tables)
        group.fit(sampling=sampling, regularization=1e-2)
        assert difference(group, pool(tables, sampling=sampling), 1e-2) <= 1e-7
    tables = deal(x * 0.0, y, 2, 2, classes=(0, 1), ranges=(0.0, 0.0))
    group = parties(tables)
    group.fit(landmarks=3)  # all rows are the landmark
    values = np.array(list(group.outputs().values()))
    assert np.ptp(values) < 1e-12


# -- secrets


def assert_nothing_left(group: Parties) -> None:
    """No kernel, no keys, no state of the run but the seeds of the landmarks, for predictions."""
    assert group.contexts
    for context in group.contexts.values():
        assert set(context.state) <= {"fedkern", "fedkern-guard"}
        assert SessionState.load(context).payload == b""
    assert not list(group.folder.rglob("*.kernel"))
    for path in group.folder.rglob("*"):
        assert path.suffix in ("", ".csv", ".state", ".answered")
        assert path.is_dir() or path.stat().st_mode & 0o077 == 0


def test_a_run_that_ends_with_an_error_leaves_no_secret_either(parties: Serve) -> None:
    tables = deal(*small(), 2, 2, classes=(0, 1))
    change(tables, 1, landmark_seed=bytes(32))
    group = parties(tables)
    with pytest.raises(FedKernError, match="differ from those of the other holders"):
        group.fit()
    assert_nothing_left(group)
    group = parties(deal(*small(), 2, 2, classes=(0, 1)))
    with pytest.raises(FedKernError, match="singular at regularization 1e-300"):
        group.fit(landmarks=70, regularization=1e-300, gamma=1e-3)
    assert_nothing_left(group)


def test_the_server_sees_masked_sums_pseudonyms_and_counts_only(
    parties: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    tables = without_seeds(figure_three())
    record = Transcript()
    with caplog.at_level(logging.DEBUG):
        parties(tables).fit(sampling="N", penalty="rkhs", more={"transcript": record})
    for entry in record.entries(direction="up"):
        kinds = {array.dtype for array in entry.arrays if array.size}
        assert kinds <= {np.dtype(np.uint64), np.dtype(np.uint8)}, entry.phase
    sums = [
        array
        for entry in record.entries(direction="up")
        if entry.phase not in ("describe", "finish")
        for array in entry.arrays
        if array.dtype == np.uint64
    ]
    words = np.concatenate([array.ravel() for array in sums])
    bits = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1)
    assert len(words) > 20_000
    assert (np.abs(bits.mean(axis=0) - 0.5) < 5.0 * 0.5 / np.sqrt(len(words))).all()
    assert len(np.unique(words)) == len(words)
    sent = b"".join(everything_sent(record))
    log = caplog.text
    for table in tables:
        values = np.unique(np.asarray(table["x"], "<f8"))
        values = values[(values > 0.0) & (values < 1.0)][:40]
        assert len(values) == 40
        for value in values:
            assert value.tobytes() not in sent
            assert repr(float(value)) not in log
        for name in table["ids"][:40]:
            assert str(name).encode() not in sent
            assert str(name) not in log


def test_pseudonyms_are_fresh_in_every_run(parties: Serve) -> None:
    tables = deal(*small(), 2, 2, classes=(0, 1))
    seen = []
    for _ in range(2):
        record = Transcript()
        parties(tables).fit(more={"transcript": record})
        seen.append(
            np.vstack([e.arrays[0] for e in record.entries(phase="describe", direction="up")])
        )
    assert not np.intersect1d(seen[0], seen[1]).size


def test_a_finished_run_without_a_state_folder_leaves_no_file(
    parties: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    tables = deal(*small(), 2, 2, classes=(0, 1))
    group, kernels = parties(tables, state_dir=None), []
    strategy = FedCG(landmarks=20, solver="cg", regularization=1e-2, sampling="U")
    strategy.on_round = lambda *_: kernels.extend(temporary.rglob("*.kernel"))
    group.run(strategy)
    assert difference(group, pool(tables), 1e-2) <= EXACT
    assert len(set(kernels)) == 2  # of the two hospitals, while the run lasted
    assert not [path for path in temporary.rglob("*") if path.is_file()]


# -- predictions with a model that was saved


def newcomers(tables: list[Table], seed: int = 9) -> list[Table]:
    """Return tables of other patients at the same parties: to be predicted."""
    rng, out = np.random.default_rng(seed), []
    names = [f"newcomer {k}" for k in range(24)]
    for table in tables:
        part = {k: v for k, v in table.items() if k not in ("y_test", "x_test", "ids_test")}
        if "y" in table:
            mine = names[:10] if not out else names[10:]
            part |= {"y": table["y"][:0], "ids": table["ids"][:0], "ids_test": mine}
            if "x" in table:
                part["x"] = table["x"][:0]
                part["x_test"] = rng.random((len(mine), table["x"].shape[1]))
        else:
            part |= {"x": rng.random((24, table["x"].shape[1])), "ids": rng.permutation(names)}
        out.append(part)
    return out


def whole(tables: list[Table], others: list[Table]) -> list[Table]:
    """Return tables with the training rows of the former and the held-out rows of the latter."""
    out = []
    for old, new in zip(tables, others, strict=True):
        table = {**old}
        if "y" in old:
            table |= {k: new[k] for k in ("x_test", "ids_test") if k in new} | {"y_test": None}
        else:
            table["x"] = np.vstack([old["x"], new["x"]])
            table["ids"] = [*old["ids"], *new["ids"]]
        out.append(table)
    return out


PREDICTED: dict[str, tuple[Callable[[], list[Table]], Table]] = {
    "seeds configured": (lambda: deal(*small(90), 2, 2, classes=(0, 1)), {}),
    "secrets": (lambda: without_seeds(deal(*small(90), 2, 2, classes=(0, 1))), {}),
    "secrets, normal": (
        lambda: without_seeds(deal(*small(90), 2, 2, classes=(0, 1))),
        {"sampling": "N"},
    ),
    "no features": (lambda: deal(*small(90), 2, 2, own=False, classes=(0, 1)), {}),
    "widths, cg": (
        lambda: deal(*small(90), 2, 2, classes=(0, 1)),
        {"landmark_gamma": True, "solver": "cg", "kernel": "laplacian"},
    ),
    "regression": (
        lambda: deal(small(90)[0], np.sin(6.0 * small(90)[0][:, :2]), 2, 2),
        {},
    ),
}


@pytest.mark.parametrize("name", PREDICTED)
def test_new_patients_are_predicted_with_a_model_that_was_saved(name: str, parties: Serve) -> None:
    make, options = PREDICTED[name]
    tables = make()
    group = parties(tables)
    strategy, seeds = fit_and_read_seeds(group, 1e-2, **options)
    arrays, meta = strategy.model()
    others = newcomers(tables)
    later = serve(others, group.folder)  # the same folders
    kept = sorted(group.folder.rglob("*.state"))
    again = later.predict(arrays, meta)
    chosen = {k: v for k, v in options.items() if k in ("sampling", "kernel")}
    pooled = pool(whole(tables, others), gamma=strategy.gammas_, seeds=seeds, **chosen)
    assert difference(later, pooled, 1e-2) <= EXACT
    assert len(later.outputs()) == 24
    phases = {"describe": 1, "hybrid-distances": 1, "hybrid-coefficients": 1, "finish": 1}
    assert again.ledger_.by_phase == Counter(phases)
    assert_nothing_left(later)
    assert sorted(group.folder.rglob("*.state")) == kept  # nothing more to keep
    later.predict(*again.model())  # a model that was loaded is the same model
    assert difference(later, pooled, 1e-2) <= EXACT


UNKNOWN = "the landmarks of the model are not known here any more"


def test_predictions_need_the_landmarks_of_the_model(parties: Serve) -> None:
    """From the state that the node kept, or from the same seed; others are noticed."""
    tables = deal(*small(90), 2, 2, classes=(0, 1))
    group = parties(tables)
    arrays, meta = group.fit().model()
    others, elsewhere = newcomers(tables), parties([]).folder
    later = serve(others, elsewhere)  # other folders, the seeds of the configuration
    later.predict(arrays, meta)
    assert len(later.outputs()) == 24
    for k, holders in ((1, (0, 1)), (2, (2,))):
        wrong, gone = ([*others] for _ in range(2))
        wrong[k] = {**others[k], "landmark_seed": bytes(32)}
        text = rf"partition {k}: its landmarks of block .* (are no|d)"
        with pytest.raises(FedKernError, match=text):
            serve(wrong, elsewhere).predict(arrays, meta)
        for holder in holders:
            gone[holder] = without_seeds([others[holder]])[0]
        with pytest.raises(FedKernError, match=UNKNOWN):
            serve(gone, elsewhere).predict(arrays, meta)


def test_normal_landmarks_cannot_be_drawn_again_from_the_seed_alone(parties: Serve) -> None:
    tables = deal(*small(90), 2, 2, classes=(0, 1))
    arrays, meta = parties(tables).fit(sampling="N").model()
    with pytest.raises(FedKernError, match=UNKNOWN):
        serve(newcomers(tables), parties([]).folder).predict(arrays, meta)


def test_predictions_are_refused_for_other_parties_and_options(parties: Serve) -> None:
    tables = deal(*small(90), 2, 3, classes=(0, 1))
    group = parties(tables)
    arrays, meta = group.fit().model()
    assert meta["blocks"] == ["clinical", "omics 1", "omics 2", "omics 3"]
    fewer = serve(newcomers(tables)[:4], group.folder)
    with pytest.raises(FedKernError, match=r"hold blocks .*, the model has .*; bring the parties"):
        fewer.predict(arrays, meta)
    later = serve(newcomers(tables), group.folder)
    with pytest.raises(CheckpointError, match=r"other options; use FedCG\.of_model"):
        FedCG(landmarks=21).predict_at_nodes(later.grid(), arrays, meta)


def test_a_model_says_what_a_prediction_needs(parties: Serve) -> None:
    import json

    strategy = parties(deal(*small(), 2, 2, classes=(0, 1))).fit()
    arrays, meta = strategy.model()
    assert json.loads(json.dumps(meta)) == meta
    np.testing.assert_array_equal(arrays["coefficients"], strategy.coefficients_)
    np.testing.assert_array_equal(arrays["gammas"], [1 / 6])
    expected = {"method": "fed-cg", "landmarks": 20, "outputs": 1, "classes": 2}
    assert meta.items() >= expected.items()
    assert set(meta["fingerprints"]) == set(meta["blocks"])


# -- width and lambda that are chosen


UNCOUNTED = NodePolicy.of_simulations(allow_small_sums=True)
CHOSEN: Table = {"sampling": "U", "tune": "folds"}


def dealt_folds(tables: list[Table], count: int) -> np.ndarray:
    """Which fold each training row is in, hospital by hospital: in the order of keyed hashes."""
    found = []
    for table in (table for table in tables if "y" in table):
        hashes = hash_ids(np.asarray(table["ids"]), KEY, "fedkern-flwr folds").tolist()
        ranks = {
            row: rank for rank, row in enumerate(sorted(range(len(hashes)), key=hashes.__getitem__))
        }
        found += [ranks[row] % count for row in range(len(hashes))]
    return np.array(found)


def grid_search(pooled: Pooled, folds: np.ndarray, gammas: Any, lambdas: Any) -> np.ndarray:
    """Errors of each width and lambda on the pooled rows, row by row; without folds by GCV."""
    y, (n, m) = pooled.targets, pooled.train.shape
    out = np.zeros((len(gammas), len(lambdas)))
    for (g, gamma), (j, lam) in product(enumerate(gammas), enumerate(lambdas)):
        k = np.exp(-gamma * np.resize([0.5, 2.0], m) * pooled.train)
        if not folds.any():
            hat = k @ np.linalg.solve(k.T @ k + lam * np.eye(m), k.T)
            free = 1.0 - 1.4 * np.trace(hat) / n
            out[g, j] = np.inf if free <= 0.0 else ((y - hat @ y) ** 2).sum() / n / free**2
            continue
        for f in range(folds.max() + 1):
            a, b = k[folds != f], k[folds == f]
            c = np.linalg.solve(a.T @ a + lam * np.eye(m), a.T @ y[folds != f])
            out[g, j] += ((b @ c - y[folds == f]) ** 2).sum() / n
    return out


def of_numbers(n: int = 90) -> tuple[np.ndarray, np.ndarray]:
    """Three outputs beyond one."""
    x, _ = small(n)
    return x, 2.0 * np.stack([np.sin(4.0 * x[:, 0]), x[:, 1] * x[:, 2], x[:, 3] ** 2], axis=1)


@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
@pytest.mark.parametrize("task", ["two classes", "three classes", "numbers"])
@pytest.mark.parametrize("tune", ["folds", "gcv"])
def test_what_is_chosen_is_the_best_of_a_grid_search_on_the_pooled_rows(
    tune: Any, task: str, kernel: Any, parties: Serve
) -> None:
    x, y, common = load("wine")
    if task == "two classes":
        y, common = (y > 0).astype(int), {"classes": (0, 1)}
    if task == "numbers":
        (x, y), common = of_numbers(), {"label_bound": 2.0}
    tables = deal(x, y, 2, 2, **common)
    group = parties(tables, policy=UNCOUNTED)
    strategy = group.fit(landmarks=15, tune=tune, kernel=kernel)
    tuned, pooled = strategy.tuned_, pool(tables, 15, kernel=kernel)
    lambdas = np.array(tuned["regularizations"])
    tried = 10.0 ** np.arange(-13.0 if task == "numbers" else -10.0, 0.1, 0.5)
    np.testing.assert_allclose(lambdas, len(pooled.train) * tried)
    widths = 2.0 ** np.arange(-4, 5) / pooled.train.mean()
    np.testing.assert_allclose(tuned["gammas"], widths, rtol=1e-9)
    folds = dealt_folds(tables, 5) if tune == "folds" else np.zeros(1, int)
    errors = grid_search(pooled, folds, widths, lambdas)
    g, j = np.unravel_index(np.argmin(errors), errors.shape)
    if (tune, task) == ("gcv", "numbers"):  # the largest lambda that is as good to a hundredth
        j = np.flatnonzero(errors[g] <= 1.01 * errors.min())[-1]
    assert tuned["gamma"] == tuned["gammas"][g]
    assert tuned["regularization"] == lambdas[j] == strategy.regularization_
    assert tuned["error"] == pytest.approx(errors[g, j], rel=1e-6)
    np.testing.assert_array_equal(strategy.gammas_, tuned["gamma"] * np.resize([0.5, 2.0], 15))
    assert strategy.ledger_.by_phase == Counter(FIVE)
    pooled.gamma = strategy.gammas_
    limit = max(EXACT, 10.0 * pooled.rounding(lambdas[j]))
    assert difference(group, pooled, float(lambdas[j])) <= limit
    (equations,) = (s for s in strategy.privacy()["sums"] if s["name"] == "equations")
    assert equations["numbers"] == tuned["numbers"]


def test_nothing_is_predicted_beyond_the_bound_of_the_labels(parties: Serve) -> None:
    x, y = of_numbers()
    tables = deal(x, np.sign(y), 2, 2, label_bound=1.0)  # steps, which a kernel overshoots
    group = parties(tables)
    group.fit(gamma=1.0, regularization=1e-6, tune="off")
    found = np.array(list(group.outputs().values()))
    assert np.abs(found).max() == 1.0
    pooled = pool(tables, gamma=1.0)
    pooled.bound = np.inf
    assert np.abs(pooled.solve(1e-6)[1]).max() > 1.1


def test_what_is_given_is_not_chosen(parties: Serve) -> None:
    tables = deal(*small(120), 2, 2, classes=(0, 1))
    given = parties(tables, policy=UNCOUNTED).fit(tune="gcv", gamma=0.25)
    assert given.gammas_.tolist() == given.tuned_["gammas"] == [0.25]
    assert len(given.tuned_["regularizations"]) > 10
    weighed = parties(tables, policy=UNCOUNTED).fit(tune="auto", regularization=0.5).tuned_
    assert weighed["regularizations"] == [0.5]
    assert len(weighed["gammas"]) == 9
    assert parties(tables).fit(tune="auto", gamma=0.25, regularization=0.5).tuned_ == {}


def test_widths_are_chosen_where_rows_travel_in_parts(
    parties: Serve, monkeypatch: pytest.MonkeyPatch, same_session: None
) -> None:
    """The mean distance is that of all training rows, whichever travel first."""
    tables = deal(*small(120), 2, 2, classes=(0, 1))
    whole = parties(tables, policy=UNCOUNTED).fit(**CHOSEN)
    monkeypatch.setattr("fedkern_flwr.strategies.fed_cg_system._MESSAGE", 8 * 20 * 110)
    parts = parties(tables, policy=UNCOUNTED).fit(**CHOSEN)
    assert parts.ledger_.by_phase["hybrid-distances"] == 2
    np.testing.assert_allclose(parts.tuned_["gammas"], whole.tuned_["gammas"], rtol=1e-8)
    widths = np.array(parts.tuned_["gammas"])
    pooled = pool(tables)
    errors = grid_search(pooled, dealt_folds(tables, 5), widths, parts.tuned_["regularizations"])
    assert errors.min() == pytest.approx(parts.tuned_["error"], rel=1e-6)


def test_one_party_chooses_as_well(parties: Serve) -> None:
    """With nobody to sum the mean distance with: as if all were uniform in the unit cube."""
    tables = deal(*small(), 1, 0, classes=(0, 1))
    group = parties(tables, policy=UNCOUNTED, allow_single=True)
    strategy = group.fit(allow_single=True, **CHOSEN)
    np.testing.assert_allclose(strategy.tuned_["gammas"], 2.0 ** np.arange(-4, 5))  # 6 features
    assert strategy.metrics_["test_accuracy"] > 0.7


def test_as_much_is_chosen_as_the_nodes_count(parties: Serve) -> None:
    """Nodes that refuse more numbers than unknowns are asked for none they would refuse."""
    tables = deal(*small(1200), 2, 2, classes=(0, 1))
    policy = NodePolicy.of_simulations(counting="refuse")
    plans = [(5, 9), (5, 5), (5, 3), (3, 3), (1, 9), (1, 5), (5, 1), (1, 3), (3, 1), (1, 1)]
    found = set()
    for landmarks in (5, 8, 10, 15, 20, 25, 30, 40, "auto"):
        strategy = parties(tables, policy=policy).fit(landmarks=landmarks, tune="auto")
        (sums,) = (s for s in strategy.privacy()["sums"] if s["name"] == "equations")
        m, allowed = strategy.landmarks_, sums["unknowns"] - 1  # and the mean distance
        numbers = [f * (w * (m * (m + 1) // 2 + m) + 1) for f, w in plans]
        best = next(plan for plan, n in zip(plans, numbers, strict=True) if n <= allowed)
        assert sums["numbers"] == strategy.tuned_["numbers"] == numbers[plans.index(best)]
        assert len(strategy.tuned_["gammas"]) == best[1]
        assert strategy.tuned_["by"].startswith(f"{best[0]} folds" if best[0] > 1 else "general")
        found.add(best)
    assert len(found) > 5
    assert m * (m + 1) // 2 + m + 1 <= allowed < (m + 1) * (m + 2) // 2 + m + 2
    assert "counting" in strategy.tuned_["why"]
    with pytest.raises(FedKernError, match="refused by the rule of counting"):
        parties(tables, policy=policy).fit(landmarks=100, tune="auto")


def test_no_fold_has_fewer_rows_than_its_nodes_allow(parties: Serve) -> None:
    tables = deal(*small(), 2, 2, classes=(0, 1))  # 21 training rows each
    gcv = "generalised cross-validation"
    own = [
        ({"min_own_rows": least}, by) for least, by in ((4, "3 folds"), (7, "3 folds"), (8, gcv))
    ]
    for least, by in (*own, ({"min_sum_rows": 14}, "3 folds"), ({"min_sum_rows": 15}, gcv)):
        policy = NodePolicy.of_simulations(allow_small_sums=True, **least)
        tuned = parties(tables, policy=policy).fit(tune="auto").tuned_
        assert tuned["by"] == by


def test_a_model_that_was_tuned_predicts_with_its_width(parties: Serve) -> None:
    tables = deal(*small(), 2, 2, classes=(0, 1))
    group = parties(tables, policy=UNCOUNTED)
    strategy = group.fit(tune="auto", landmarks="auto", sampling="auto")
    arrays, meta = strategy.model()
    np.testing.assert_array_equal(arrays["gammas"], strategy.gammas_)
    assert meta["landmarks"] == strategy.landmarks_ == len(arrays["coefficients"])
    before = group.outputs()
    group.predict(arrays, meta)
    after = group.outputs()
    assert set(after) == set(before)
    for name, values in before.items():
        np.testing.assert_allclose(after[name], values, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lam", [1e-12, 1e-3])
def test_a_lambda_that_is_lost_in_rounding_is_told_of(
    lam: float, parties: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """What is told is about what a comparison with the pooled rows would find."""
    x = np.random.default_rng(0).random((900, 3))
    tables = deal(x, (x.sum(axis=1) > 1.5).astype(int), 2, 2, classes=(0, 1))
    group, pooled = parties(tables), pool(tables, 60)
    group.fit(landmarks=60, regularization=lam)
    told = [r.getMessage() for r in caplog.records if "lost in the rounding" in r.getMessage()]
    found = difference(group, pooled, lam)
    if lam == 1e-3:
        assert not told
        assert found < 1e-6
        return
    off = float(told[0].split("off by ")[1].split(";")[0])
    assert found > 1e-3
    assert 0.02 < off / found < 50.0
