"""FDSKL against the pooled data: the same function, whoever holds which columns."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nodes import Nodes, Table, side

from fedkern_flwr.clients import VerticalKernelClient
from fedkern_flwr.clients.fdskl_table import PhaseStore
from fedkern_flwr.errors import CheckpointError, FedKernError, OptionError, ProtocolError
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.simulations import Transcript
from fedkern_flwr.strategies import FDSKL, fdskl_phases
from fedkern_flwr.vertical.phase_training import MULTIPLES, REGULARIZATIONS

KEY = b"a secret of the data's owners"
SEED = 11
Array = np.ndarray


# -- data


def small() -> tuple[Array, Array]:
    x, y = side(60, 8)
    return x, y.astype(float)


def names(n: int) -> Array:
    return np.array([f"person {k}" for k in np.random.default_rng(5).permutation(9 * n)[:n]])


def secret(partition: int, salt: int = 0) -> bytes:
    return hashlib.sha256(f"party {partition}, {salt}".encode()).digest()


@dataclass
class Problem:
    """Pooled data, and who has which columns and labels."""

    x: Array
    y: Array
    parties: int
    actives: int = 1
    held_out: int = 15
    common: Table = field(default_factory=dict)
    salt: int = 0

    def __post_init__(self) -> None:
        n, d = self.x.shape
        self.ids = names(n)
        self.columns = np.array_split(np.random.default_rng(7).permutation(d), self.parties)
        self.train = np.arange(n - self.held_out)
        self.test = np.arange(n - self.held_out, n)
        self.owner = np.arange(n) % self.actives

    def tables(self) -> list[Table]:
        """Deal columns, each party with a row order of its own."""
        out: list[Table] = []
        for k in range(self.parties):
            rng = np.random.default_rng([self.salt, k])
            table: Table = {"frequency_seed": secret(k, self.salt), **self.common}
            order = rng.permutation(len(self.x))
            if k >= self.actives:
                table.pop("classes", None)
                table.pop("label_bound", None)
            else:
                mine = (order >= len(self.train)) & (self.owner[order] == k)
                held, order = order[mine], order[~mine]
                y = np.full((len(order), *self.y.shape[1:]), np.nan)
                own = (order < len(self.train)) & (self.owner[order] == k)
                y[own] = self.y[order[own]]
                table |= {"y": y, "y_test": self.y[held], "ids_test": self.ids[held]}
                table["x_test"] = self.x[np.ix_(held, self.columns[k])]
            table |= {"x": self.x[np.ix_(order, self.columns[k])], "ids": self.ids[order]}
            out.append(table)
        return out

    def plan(self) -> list[Array]:
        """Return the training rows of each active party in the order of the run."""
        return [
            self.train[self.owner[self.train] == k][
                ranks([self.ids[i] for i in self.train if self.owner[i] == k])
            ]
            for k in range(self.actives)
        ]

    def targets(self) -> Array:
        """Return targets in units of the bound, classes as columns of -1 and 1."""
        classes = self.common.get("classes")
        if classes is None:
            y = self.y[:, None] if self.y.ndim == 1 else self.y
            return y / self.common.get("label_bound", 1.0)
        if len(classes) == 2:
            return np.where(self.y == classes[1], 1.0, -1.0)[:, None]
        return np.stack([np.where(self.y == c, 1.0, -1.0) for c in classes], axis=1)


# -- the run


class Parties(Nodes):
    """Nodes of FDSKL."""

    def fit(self, rounds: int = 1, more: Table | None = None, **options: Any) -> FDSKL:
        strategy = FDSKL(**{"seed": SEED, "gamma": 0.5, "phase_bits": 32, **options})
        self.common["allow_single"] = strategy.allow_single
        self.run(strategy, num_rounds=rounds, **(more or {}))
        return strategy


Serve = Callable[..., Parties]  # what a fixture gives


def serve(tables: list[Table], folder: Path, **common: Any) -> Parties:
    return Parties(VerticalKernelClient, tables, folder, {"alignment_key": KEY, **common})


@pytest.fixture
def parties(tmp_path: Path) -> Serve:
    def make(tables: list[Table], **common: Any) -> Parties:
        tmp_path.joinpath(str(len(made))).mkdir()
        made.append(serve(tables, tmp_path / str(len(made)), **common))
        return made[-1]

    made: list[Parties] = []
    return make


# -- what a run draws, written anew


def ranks(ids: list[str], seed: int = SEED, key: bytes = KEY) -> list[int]:
    """Return the order of a run: rows sorted by keyed hashes of ids."""
    own = hmac.new(key, f"fedkern-flwr ids/order {seed}".encode(), "sha256").digest()
    digests = [hmac.new(own, str(i).encode(), "sha256").digest()[:16] for i in ids]
    words = [(int.from_bytes(t[:8], "little"), int.from_bytes(t[8:], "little")) for t in digests]
    return sorted(range(len(ids)), key=lambda k: words[k])


def derived(*labels: object) -> int:
    text = "/".join(map(str, labels))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def batch(iteration: int, rows: int, size: int, seed: int = SEED) -> list[int]:
    rng = np.random.default_rng(derived(seed, "batch", iteration))
    return sorted(rng.choice(rows, size=min(size, rows), replace=False).tolist())


def generator(seed: bytes, purpose: str, owner: int, law: str) -> np.random.Generator:
    text = f"fedkern-flwr {purpose}/{owner}/{law}/".encode() + seed
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text).digest(), "little"))


def joint_directions(
    problem: Problem, owner: int, count: int, kernel: str, gamma: float
) -> tuple[Array, Array]:
    """Return omega over the columns of the pooled data, and the sum of the parties' offsets."""
    omega, b = np.zeros((count, problem.x.shape[1])), np.zeros(count)
    for k, columns in enumerate(problem.columns):
        seed = secret(k, problem.salt)
        law = f"{kernel}/{gamma!r}"
        rng = generator(seed, "frequencies", owner, law)
        for j in range(count):  # a direction at a time
            if kernel == "rbf":
                omega[j, columns] = np.sqrt(2.0 * gamma) * rng.standard_normal(len(columns))
            else:
                omega[j, columns] = gamma * rng.standard_cauchy(len(columns))
        turns = generator(seed, "offsets", owner, law).random(count)
        b = (b + 2.0 * np.pi * turns) % (2.0 * np.pi)
    return omega, b


# -- doubly stochastic gradients on the pooled data, in plain loops


def slope(loss: str, f: float, y: float) -> float:
    if loss == "square":
        return 2.0 * (f - y)
    if loss == "logistic":
        return -y / (1.0 + np.exp(y * f))
    if y * f >= 1.0:
        return 0.0
    return -y if y * f <= 0.0 else -y * (1.0 - y * f)


def dsg(
    problem: Problem,
    rounds: int,
    *,
    batch_rows: int,
    new: int,
    step: float,
    regularization: float,
    loss: str = "square",
    schedule: str = "constant",
    kernel: str = "rbf",
    gamma: float = 0.5,
    decays: bool = True,
    at: Array | None = None,
) -> Array:
    """Return f (equation 7) at the held-out rows, or at other ones."""
    plan, targets = problem.plan(), problem.targets()
    outputs = targets.shape[1]
    drawn = [
        joint_directions(problem, k, rounds * new, kernel, gamma) for k in range(problem.actives)
    ]
    # phi of every row and direction; only those of directions that exist are ever looked at
    phi = [np.sqrt(2.0) * np.cos(problem.x @ omega.T + b) for omega, b in drawn]
    alpha = [np.zeros((0, outputs)) for _ in range(problem.actives)]
    for t in range(1, rounds + 1):
        leader = (t - 1) % problem.actives
        rate = step if schedule == "constant" else step / (1.0 + step * regularization * t)
        rows = [int(plan[leader][i]) for i in batch(t, len(plan[leader]), batch_rows)]
        slopes = []
        for i in rows:
            f = np.zeros(outputs)
            for k in range(problem.actives):
                f = f + phi[k][i, : len(alpha[k])] @ alpha[k]
            slopes.append([slope(loss, f[c], targets[i, c]) for c in range(outputs)])
        fresh = np.zeros((new, outputs))
        have = len(alpha[leader])
        for j in range(new):
            for c in range(outputs):
                total = 0.0
                for place, i in enumerate(rows):
                    total += slopes[place][c] * phi[leader][i, have + j]
                fresh[j, c] = -rate / new * total / len(rows)
        if decays:
            alpha = [a * (1.0 - rate * regularization) for a in alpha]
        alpha[leader] = np.concatenate([alpha[leader], fresh])
    f, x = np.zeros(outputs), problem.x[problem.test] if at is None else at
    for (omega, b), a in zip(drawn, alpha, strict=True):
        f = f + np.sqrt(2.0) * np.cos(x @ omega[: len(a)].T + b[: len(a)]) @ a
    return np.asarray(f * problem.common.get("label_bound", 1.0))


def three_classes() -> tuple[Array, Array]:
    x, _ = small()
    return x, np.digitize(x[:, 0] + x[:, 1], [0.8, 1.2]).astype(float)


def curve(outputs: int = 1) -> tuple[Array, Array]:
    x, _ = small()
    y = np.stack([3.0 * np.sin(2.0 * x[:, k]) - x[:, 3] for k in range(outputs)], axis=1)
    return x, y[:, 0] if outputs == 1 else y


TWO = {"classes": (0, 1)}
_TWO_ROWS: Table = {"batch": 2, "directions": 1}
_LOGISTIC: Table = {"loss": "logistic"}
#: Data, parties, active parties, rounds, and options of both sides.
STREAMS: dict[str, tuple[Any, Table, int, int, int, Table]] = {
    "500 iterations": (small, TWO, 3, 1, 500, {"batch": 4, "directions": 1, "step": 0.1}),
    "500 iterations, two lead": (small, TWO, 3, 2, 500, {**_TWO_ROWS, "step": 0.2, **_LOGISTIC}),
    "500 iterations, eight parties": (small, TWO, 8, 2, 500, {**_TWO_ROWS, "step": 0.05}),
    "Algorithm 1": (small, TWO, 3, 1, 30, {"batch": 1, "directions": 1, "step": 0.1}),
    "Algorithm 1, two lead": (small, TWO, 4, 2, 24, {"batch": 1, "directions": 1, "step": 0.1}),
    "logistic": (small, TWO, 3, 1, 24, {"loss": "logistic", "step": 3.0}),
    "smooth hinge": (small, TWO, 3, 1, 24, {"loss": "smooth-hinge", "step": 1.0}),
    "smooth hinge, two lead": (small, TWO, 3, 2, 24, {"loss": "smooth-hinge", "step": 0.5}),
    "two parties": (small, TWO, 2, 1, 24, {}),
    "two parties, both lead": (small, TWO, 2, 2, 16, {}),
    "eight parties": (small, TWO, 8, 1, 16, {}),
    "eight parties, three lead": (small, TWO, 8, 3, 12, {"loss": "logistic"}),
    "diminishing": (small, TWO, 3, 1, 24, {"step_schedule": "diminishing"}),
    "diminishing, two lead": (small, TWO, 3, 2, 16, {"step_schedule": "diminishing"}),
    "Laplacian": (small, TWO, 3, 1, 24, {"kernel": "laplacian"}),
    "Laplacian, two lead": (small, TWO, 3, 2, 16, {"kernel": "laplacian", "loss": "logistic"}),
    "three classes": (three_classes, {"classes": (0, 1, 2)}, 3, 1, 24, {"loss": "logistic"}),
    "three classes, two lead": (three_classes, {"classes": (0, 1, 2)}, 3, 2, 16, {}),
    "regression": (curve, {"label_bound": 4.0}, 3, 1, 24, {}),
    "two outputs, two lead": (lambda: curve(outputs=2), {"label_bound": 4.0}, 3, 2, 16, {}),
    "a batch of all rows": (small, TWO, 3, 1, 12, {"batch": 1000}),
    "16 bits": (small, TWO, 3, 1, 20, {"phase_bits": 16}),
    "16 bits, two lead": (small, TWO, 3, 2, 20, {"phase_bits": 16}),
}


def block(options: Table) -> tuple[Table, Table]:
    """Return the options of the strategy and of the plain implementation."""
    mine: Table = {"batch": 6, "directions": 3, "step": 0.3, "regularization": 0.02}
    mine |= {"loss": "square", **options}
    oracle = {k: v for k, v in mine.items() if k not in ("batch", "directions", "phase_bits")}
    if "step_schedule" in oracle:
        oracle["schedule"] = oracle.pop("step_schedule")
    oracle |= {"batch_rows": mine["batch"], "new": mine["directions"]}
    return {"schedule": "streaming", **mine}, oracle


#: Left to `make test-long`: shorter runs prove the same.
LONG = [name for name in STREAMS if name.startswith("500")]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in STREAMS],
)
def test_streaming_is_doubly_stochastic_gradients_of_the_pooled_data(
    name: str, parties: Serve
) -> None:
    data, common, q, actives, rounds, options = STREAMS[name]
    problem = Problem(*data(), q, actives, common=common)
    mine, oracle = block(options)
    run = parties(problem.tables())
    strategy = run.fit(rounds, allow_single=q == 2, **mine)
    f = heldout(run, problem)
    expected = dsg(problem, rounds, **oracle)
    assert np.abs(expected).max() > 0.05
    gap = np.abs(f - expected).max()
    assert 1e-7 < gap < 1e-3 if "phase_bits" in options else gap < 1e-6
    # iterations, the lag of the pipeline, one or two exchanges to judge, describe and farewell
    lag = 1 if actives == 1 else 2
    assert strategy.ledger_.exchanges == rounds + lag + lag + 2
    assert strategy.leaders == tuple(range(actives))


@pytest.mark.parametrize("lost", [False, True])
def test_streaming_ends_with_a_solution_on_the_phases_at_hand(
    lost: bool, parties: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ridge regression on rows of the last half of the batches and directions of the first half.

    The parties' messages are those of a run with a step, and the same again where the active party
    has lost its phases at the end.
    """
    rounds, size, r, value = 24, 6, 3, 0.02
    problem = Problem(*small(), 3, common=TWO)
    options = {"schedule": "streaming", "batch": size, "directions": r, "regularization": value}
    options |= {"loss": "square"}
    read = PhaseStore.read

    def lose(store: PhaseStore, rows: Array, upto: int) -> Array:
        if len(rows) > size:  # than of an iteration
            monkeypatch.setattr(PhaseStore, "read", read)
            store.path.unlink()
        return read(store, rows, upto)

    if lost:
        monkeypatch.setattr(PhaseStore, "read", lose)
    run = parties(problem.tables())
    strategy = run.fit(rounds, **options)
    (order,), half = problem.plan(), rounds // 2
    rows = sorted({i for t in range(half + 1, rounds + 1) for i in batch(t, len(order), size)})
    assert r * rounds > len(rows) >= 25
    count = r * (half + 1)
    omega, b = joint_directions(problem, 0, count, "rbf", 0.5)
    phi = np.sqrt(2.0 / count) * np.cos(problem.x @ omega.T + b)
    z, y = phi[order[rows]], problem.targets()[order[rows]]
    w = np.linalg.solve(2 * z.T @ z / len(z) + value * np.eye(count), 2 * z.T @ y / len(z))
    f = heldout(run, problem)
    np.testing.assert_allclose(f, phi[problem.test] @ w, atol=1e-6)
    assert strategy.upto_ == {0: count}
    assert strategy.metrics_["regularization"] == value
    exchanges = parties(problem.tables()).fit(rounds, **options, step=0.3).ledger_.exchanges
    assert strategy.ledger_.exchanges == exchanges + 2 * lost


def test_who_says_a_step_or_takes_the_papers_mode_gets_the_last_iterate() -> None:
    strategy = FDSKL(schedule="streaming", seed=0)
    strategy.plan_ = replace(strategy.plan_, actives=(0,))
    assert strategy.solves
    given: list[Table] = [{"step": 0.3}, {"step_schedule": "constant"}]
    for options in (*given, {"directions": 1}, {"batch": 1}):
        other = FDSKL(schedule="streaming", seed=0, **options)
        other.plan_ = strategy.plan_
        assert not other.solves
    strategy.plan_ = replace(strategy.plan_, actives=(0, 1))
    assert not strategy.solves


def test_another_rule_or_another_seed_makes_another_function(parties: Serve) -> None:
    """What the comparison above would notice."""
    problem = Problem(*small(), 3, 2, common=TWO)
    mine, oracle = block({})
    run = parties(problem.tables())
    run.fit(40, **mine)
    f = heldout(run, problem)

    def gap(other: Problem = problem, **changes: Any) -> float:
        return float(np.abs(f - dsg(other, 40, **{**oracle, **changes})).max())

    assert gap() < 1e-6
    assert gap(decays=False) > 1e-3
    assert gap(regularization=0.021) > 1e-5
    assert gap(step=0.301) > 1e-4
    assert gap(batch_rows=5) > 1e-3
    assert gap(gamma=0.51) > 1e-4
    assert gap(kernel="laplacian") > 1e-2
    assert gap(schedule="diminishing") > 1e-4
    assert gap(loss="logistic") > 1e-3
    assert gap(Problem(problem.x, problem.y, 3, 1, common=TWO)) > 1e-3
    assert gap(Problem(problem.x, problem.y, 3, 2, common=TWO, salt=1)) > 1e-2
    run.fit(40, **{**mine, "seed": SEED + 1})
    f = heldout(run, problem)
    assert gap() > 1e-3


def test_rows_without_ids_are_joined_by_their_order(parties: Serve) -> None:
    x, y = small()
    problem = Problem(x, y, 4, common=TWO)
    problem.columns = [np.arange(2 * k, 2 * k + 2) for k in range(4)]
    tables: list[Table] = [
        {"x": x[:45, c], "x_test": x[45:, c], "frequency_seed": secret(k)}
        for k, c in enumerate(problem.columns)
    ]
    tables[0] |= {"y": y[:45], "y_test": y[45:], "classes": (0, 1)}
    run = parties(tables, alignment_key=None)
    run.fit(features=90, regularization=1e-2, loss="square")
    z, found = pooled_phases(problem, 90), run.outputs()
    expected = z(x[45:]) @ solve(z(x[:45]), problem.targets()[:45], 1e-2)
    mine = np.array([found[f"held-out row {k}"] for k in range(15)])
    np.testing.assert_allclose(mine, expected, atol=1e-6)


# -- how often a phase travels


@pytest.mark.parametrize("actives", [1, 2])
def test_a_phase_is_never_sent_twice(actives: int, parties: Serve) -> None:
    """Bytes of a passive party: 4 per distinct pair of row and direction, and little else."""
    problem = Problem(*small(), 3, actives, common=TWO)
    rounds, r, size = 20, 3, 10
    run, transcript = parties(problem.tables()), Transcript()
    options: Table = {"schedule": "streaming", "batch": size, "directions": r, "step": 0.2}
    run.fit(rounds, more={"transcript": transcript}, **options)
    plan, pairs = problem.plan(), 0
    known = {k: np.zeros(len(problem.x), int) for k in range(actives)}
    have = dict.fromkeys(range(actives), 0)
    for t in range(1, rounds + 1):
        leader = (t - 1) % actives
        have[leader] += r
        rows = plan[leader][batch(t, len(plan[leader]), size)]
        for k in range(actives):
            pairs += int((have[k] - known[k][rows]).sum())
            known[k][rows] = have[k]
    pairs += len(problem.test) * sum(have.values())
    sent = replies = 0
    for entry in transcript.entries(direction="up"):
        if entry.node == 1002 and entry.phase == "vertical-step":
            replies += 1
            sent += sum(array.nbytes for array in entry.arrays)
    scores = 8 * size * rounds * (actives > 1)  # 64 bits each
    assert 4 * pairs + scores <= sent <= 4 * pairs + scores + 300 * replies
    again = sum(r * (t // actives) * size for t in range(1, rounds + 1)) * actives
    assert pairs < 0.7 * again


# -- one-shot


def pooled_phases(
    problem: Problem, count: int, kernel: str = "rbf", gamma: float = 0.5, multiple: int = 1
) -> Callable[[Array], Array]:
    """Return what turns rows into features sqrt(2 / R) cos(m (omega^T x + b))."""
    omega, b = joint_directions(problem, 0, count, kernel, gamma)
    return lambda x: np.sqrt(2.0 / count) * np.cos(multiple * (x @ omega.T + b))


def solve(features: Array, targets: Array, regularization: float) -> Array:
    n, r = features.shape
    matrix = 2.0 / n * features.T @ features + regularization * np.eye(r)
    return np.asarray(np.linalg.solve(matrix, 2.0 / n * features.T @ targets))


def heldout(run: Parties, problem: Problem) -> Array:
    found = run.outputs()
    assert set(found) == {problem.ids[i] for i in problem.test}
    return np.array([found[problem.ids[i]] for i in problem.test])


ONE_SHOT: dict[str, tuple[Any, Table, int, Table]] = {
    "three parties": (small, TWO, 3, {}),
    "two parties": (small, TWO, 2, {"allow_single": True}),
    "eight parties": (small, TWO, 8, {}),
    "Laplacian": (small, TWO, 4, {"kernel": "laplacian"}),
    "three classes": (three_classes, {"classes": (0, 1, 2)}, 4, {}),
    "regression": (curve, {"label_bound": 4.0}, 4, {}),
    "two outputs": (lambda: curve(outputs=2), {"label_bound": 4.0}, 4, {}),
}


@pytest.mark.parametrize("name", ONE_SHOT)
def test_one_shot_is_the_pooled_solution(name: str, parties: Serve) -> None:
    data, common, q, options = ONE_SHOT[name]
    problem, count, regularization = Problem(*data(), q, common=common), 90, 1e-2
    run = parties(problem.tables())
    strategy = run.fit(features=count, regularization=regularization, loss="square", **options)
    z = pooled_phases(problem, count, options.get("kernel", "rbf"))
    w = solve(z(problem.x[problem.train]), problem.targets()[problem.train], regularization)
    expected = z(problem.x[problem.test]) @ w * common.get("label_bound", 1.0)
    np.testing.assert_allclose(heldout(run, problem), expected, atol=1e-6)
    assert strategy.multiple_ == 1
    assert strategy.ledger_.exchanges == 3
    by_phase = {"describe": 1, "vertical-step": 1, "vertical-train": 1}
    assert dict(strategy.ledger_.by_phase) == by_phase


@pytest.mark.parametrize("loss", ["logistic", "smooth-hinge"])
def test_one_shot_minimises_other_losses_as_well(loss: str, parties: Serve) -> None:
    """No step from the weights that the party kept makes the objective smaller."""
    problem, count, regularization = Problem(*small(), 3, common=TWO), 60, 1e-2
    run = parties(problem.tables())
    strategy = run.fit(features=count, regularization=regularization, loss=loss)
    (path,) = (run.folder / "node-0").rglob("*.state")
    w = KeptState.unpack(path.read_bytes()).arrays["alpha"] * np.sqrt(count)
    z = pooled_phases(problem, count)
    x, y = z(problem.x[problem.train]), problem.targets()[problem.train]
    slopes = [slope(loss, f, t) for f, t in zip((x @ w)[:, 0], y[:, 0], strict=True)]
    gradient = x.T @ np.array(slopes)[:, None] / len(x) + regularization * w
    assert np.abs(gradient).max() < 1e-3
    assert np.abs(w).max() > 0.1
    np.testing.assert_allclose(heldout(run, problem), z(problem.x[problem.test]) @ w, atol=1e-7)
    assert 0.0 <= strategy.metrics_["test_accuracy"] <= 1.0


@pytest.mark.parametrize(
    ("numbers", "options", "bits", "directions"),
    [
        (False, {}, 16, 2000),
        (True, {}, 32, 1000),
        (True, {"phase_bits": 16, "features": 60}, 16, 60),
        (False, {"phase_bits": 32, "features": 60}, 32, 60),
        (True, {"schedule": "streaming", "batch": 5, "directions": 2}, 16, 12),
    ],
)
def test_numbers_take_twice_the_bits_of_half_the_phases(
    numbers: bool, options: Table, bits: int, directions: int, parties: Serve
) -> None:
    problem = Problem(*small(), 3, common={"label_bound": 1.0} if numbers else TWO)
    strategy = parties(problem.tables()).fit(10, **{"phase_bits": None, **options})
    assert strategy.upto_ == {0: directions}
    assert strategy.model()[1]["phase_bits"] == bits
    assert (min(strategy.tried_regularizations) == 1e-12) == (numbers and not options)
    if strategy.schedule == "one-shot":
        phases = len(problem.x) * directions * bits // 8
        assert 3 * phases <= strategy.ledger_.bytes_up <= 3 * phases + 12_000
        assert options or phases == len(problem.x) * 4000  # of classes as of numbers


def test_balanced_classes_are_the_active_partys_own_work(parties: Serve) -> None:
    """Nobody else is told of it but by the request to it, and nothing more is sent."""
    x, y = small()
    y[:] = 0.0
    y[[3, 8, 14]] = 1.0
    problem, sizes, written, told = Problem(x, y, 3, common=TWO), [], [], []
    for weight in (None, "balanced"):
        transcript, run = Transcript(), parties(problem.tables())
        options: Table = {"features": 40, "gamma": 0.5, "regularization": 1e-2}
        run.fit(**options, class_weight=weight, more={"transcript": transcript})
        entries = list(transcript.entries())
        sizes.append([(e.node, e.direction, sum(a.nbytes for a in e.arrays)) for e in entries])
        told.append({e.node for e in entries if "balanced" in str(e.scalars)})
        written.append(heldout(run, problem))
    assert sorted(sizes[0]) == sorted(sizes[1])
    assert told == [{1000}, {1000}]
    plain, balanced = written
    assert (balanced - plain).mean() > 0.1  # three of the rows to learn from are of class 1
    assert plain.max() < 0.0 < balanced.max()
    with pytest.raises(OptionError, match="class_weight is for schedule one-shot"):
        FDSKL(schedule="streaming", class_weight="balanced")


@pytest.mark.parametrize("schedule", ["one-shot", "streaming"])
def test_phases_in_many_sums_and_messages_are_the_same_phases(
    schedule: str, parties: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(*small(), 3, 1, common=TWO)
    options: Table = {"gamma": 0.5, "loss": "square"}
    if schedule == "one-shot":
        options |= {"features": 20, "regularization": 0.01}
    else:
        options |= {"schedule": schedule, "batch": 12, "directions": 2}
    whole = parties(problem.tables())
    first = whole.fit(10, **options)
    monkeypatch.setattr(fdskl_phases, "_CHUNK", 70)
    monkeypatch.setattr(fdskl_phases, "_MESSAGE", 700)
    cut = parties(problem.tables())
    second = cut.fit(10, **options)
    assert second.ledger_.exchanges > first.ledger_.exchanges
    assert cut.outputs() == whole.outputs()


def wavy() -> tuple[Array, Array]:
    x = np.random.default_rng(4).random((150, 4))
    return x, (np.sin(11.0 * x[:, 0]) + 0.3 * np.cos(9.0 * x[:, 1]) > 0).astype(float)


@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
@pytest.mark.parametrize(("bits", "intercept"), [(16, True), (32, True), (32, False)])
def test_the_active_party_chooses_a_multiple_by_itself(
    kernel: str, bits: int, intercept: bool, parties: Serve
) -> None:
    problem, count = Problem(*wavy(), 3, held_out=40, common=TWO), 150
    run = parties(problem.tables())
    options: Table = {"features": count, "gamma": None, "loss": "square", "phase_bits": bits}
    strategy = run.fit(kernel=kernel, **options, **({} if intercept else {"intercept": False}))
    m = strategy.multiple_
    assert m in MULTIPLES
    assert strategy.regularization_ in REGULARIZATIONS
    if kernel == "rbf":
        assert m > 1  # the widest of kernels is too wide here
    factor = m if kernel == "laplacian" else m**2
    assert strategy.metrics_["gamma"] == pytest.approx(strategy.gamma_ * factor)
    assert strategy.metrics_["validation_score"] > 0.6
    assert strategy.ledger_.exchanges == 3
    features = pooled_phases(problem, count, kernel, strategy.gamma_, m)

    def z(x: Array) -> Array:
        constant = np.full((len(x), 1), 0.5)
        return np.hstack([features(x), constant]) if intercept else features(x)

    w = solve(
        z(problem.x[problem.train]),
        problem.targets()[problem.train],
        strategy.regularization_,
    )
    rounding = 5e-2 if bits == 16 else 1e-5
    np.testing.assert_allclose(heldout(run, problem), z(problem.x[problem.test]) @ w, atol=rounding)


@pytest.mark.parametrize("change", [{"gamma": 0.5}, {"intercept": False}, {"numbers": True}, {}])
def test_classes_have_an_intercept_where_the_width_is_chosen(change: Table, parties: Serve) -> None:
    options: Table = {"features": 20, "gamma": None, "loss": "square", **change}
    numbers = options.pop("numbers", False)
    problem = Problem(*small(), 3, common={"label_bound": 1.0} if numbers else TWO)
    run = parties(problem.tables())
    run.fit(**options)
    (path,) = (run.folder / "node-0").rglob("*.state")
    kept = KeptState.unpack(path.read_bytes()).arrays
    assert kept["alpha"].shape == (20, 1)
    assert kept["intercept"].shape == (0 if change else 1, 1)


# -- rows that some party lacks


@pytest.mark.parametrize("actives", [1, 2])
def test_rows_that_a_party_lacks_are_left_out(
    actives: int, parties: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    problem = Problem(*small(), 4, actives, common=TWO)
    lacking = {problem.ids[i] for i in (3, 4, 17, problem.test[2])}
    options: Table = {"schedule": "streaming", "batch": 5, "directions": 2, "step": 0.3}
    written = []
    for everywhere in (False, True):
        tables = problem.tables()
        for table in tables if everywhere else tables[3:]:
            for rows, ids in (("x", "ids"), ("x_test", "ids_test")):
                if ids in table:
                    keep = np.array([i not in lacking for i in table[ids]])
                    for name in (rows, ids, rows.replace("x", "y")):
                        if name in table:
                            table[name] = np.asarray(table[name])[keep]
        run = parties(tables)
        strategy = run.fit(15, missing="drop-row", **options)
        assert strategy.plan_.dropped == (0 if everywhere else 4)
        written.append(run.outputs())
    assert written[0] == written[1]
    assert len(written[0]) == len(problem.test) - 1
    assert "4 rows are left out: some party does not hold them" in caplog.text


# -- what cannot be run


def start(parties: Serve, changes: dict[int, Table], **options: Any) -> None:
    problem = Problem(*small(), options.pop("q", 4), options.pop("actives", 1), common=TWO)
    tables = problem.tables()
    for k, change in changes.items():
        rows = change.get("rows", len(tables[k]["ids"]))
        tables[k] |= {"x": tables[k]["x"][:rows], "ids": tables[k]["ids"][:rows]}
        tables[k] |= {name: value for name, value in change.items() if name != "rows"}
    parties(tables).fit(options.pop("rounds", 1), **options)


STREAM: Table = {"schedule": "streaming", "batch": 6, "directions": 3}
#: Arguments of the clients of some parties, options, and what is said.
REFUSED: dict[str, tuple[dict[int, Table], Table, str]] = {
    "rows missing": (
        {2: {"rows": 57}},
        {},
        r"partition 2, phase describe: it does not hold 3 of the 60 rows with labels; check the "
        "ids, or choose --missing drop-row",
    ),
    "duplicate ids": (
        {1: {"ids": [*names(60)[:59], names(60)[0]]}},
        {},
        r"partition 1.*: 1 duplicate ids; keep one row per id",
    ),
    "another alignment key": (
        {2: {"alignment_key": b"another secret of somebody"}},
        {},
        "partition 2, phase describe: it holds none of the 60 rows; check its id column and that "
        "all parties have the same alignment key",
    ),
    "two parties": (
        {},
        {"q": 2},
        "partition 1 alone has columns beside partition 0, which would learn .*; let more parties",
    ),
    "two parties, one does not allow it": (
        {0: {"allow_single": True}, 1: {"allow_single": False}},
        {"q": 2, "allow_single": True},
        "partition 1, phase describe: partition 0 would learn the phases of its columns, and it "
        "does not allow that; let more parties take part, or set allow_single at this node",
    ),
    "two actives at once": (
        {},
        {"actives": 2},
        "schedule one-shot trains at one active party, there are 2; use --schedule streaming, or",
    ),
    "logistic regression of numbers": (
        {0: {"classes": None}},
        {"loss": "logistic"},
        "loss logistic is for classes, the labels are numbers; use --loss square, or name",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_is_refused_in_one_line(
    name: str, parties: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    changes, options, text = REFUSED[name]
    if not options.get("schedule"):
        options = {"features": 20, "regularization": 1e-2, **options}
    with pytest.raises(FedKernError, match=text) as caught:
        start(parties, changes, **options)
    assert "\n" not in str(caught.value)
    assert type(caught.value) is not FedKernError
    assert "person" not in str(caught.value) + caplog.text


# -- what nodes refuse, whatever the server asks


class PassiveOwner(FDSKL):
    """Names a passive party as an owner of phases."""

    def _phases(self) -> Any:
        phases: Any = super()._phases()
        collections = phases.collections
        phases._known[1] = np.zeros(self.plan_.total, np.int32)
        phases.collections = lambda need: collections(replace(need, upto={**need.upto, 1: 16}))
        return phases


class TwoCohorts(FDSKL):
    """Sums over all parties, and over all but one: the difference is the phases of one alone."""

    def cohorts(self) -> list[list[int]] | None:
        super().cohorts()
        return [[0, 1, 2, 3], [0, 1, 2]]


class OtherRows(FDSKL):
    """Asks two of the passive parties for one row again and again: it would get those of one."""

    def _phases(self) -> Any:
        phases: Any = super()._phases()
        positions = phases.positions

        def shifted(partition: int, rows: Any) -> Any:
            found = positions(partition, rows)
            return np.full_like(found, found[0]) if partition >= 2 and len(rows) else found

        phases.positions = shifted
        return phases


LIES: list[tuple[type[FDSKL], str]] = [
    (PassiveOwner, "phases are for parties with labels"),
    (TwoCohorts, "refused by the node: the cohort of a sum"),
    (OtherRows, "partition 2: this phase contributes nothing to phases/0/0#"),
]


@pytest.mark.parametrize(("liar", "text"), LIES)
def test_a_server_that_asks_for_more_gets_nothing(
    liar: type[FDSKL], text: str, parties: Serve
) -> None:
    strategy = liar(seed=SEED, gamma=0.5, features=20, regularization=1e-2)
    with pytest.raises(ProtocolError, match=text):
        parties(Problem(*small(), 4, common=TWO).tables()).run(strategy)


@pytest.mark.parametrize(
    ("actives", "loss", "step"),
    [(1, "square", 500.0), (2, "square", 500.0), (1, "smooth-hinge", 1000.0)],
)
def test_a_step_that_is_too_large_is_noticed(
    actives: int, loss: str, step: float, parties: Serve
) -> None:
    """With a loss that grows linearly outputs grow slowly, and are at chance nevertheless."""
    text = "partition [01]: the iteration has diverged; use a smaller step"
    with pytest.raises(FedKernError, match=text) as caught:
        start(parties, {}, actives=actives, rounds=60, step=step, loss=loss, **STREAM)
    assert "\n" not in str(caught.value)


def test_a_model_at_chance_is_said_to_be_not_converged(
    parties: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    held_out = len(Problem(*small(), 4).tables()[0]["y_test"])
    one_odd_row = {0: {"y_test": 1.0 * (np.arange(held_out) == 3)}}
    start(parties, one_odd_row, rounds=2, step=1e-3, **STREAM)
    said = [r.getMessage() for r in caplog.records if "not converged" in r.getMessage()]
    assert len(said) == 1
    assert "no better than by their most frequent class" in said[0]
    assert "not converged: try a smaller --step" in said[0]


# -- predictions of a model that was saved


def fresh_tables(problem: Problem, x: Array, ids: list[str]) -> list[Table]:
    """New rows, their predictions wanted by the active parties in turn; no labels anywhere."""
    out: list[Table] = []
    for k, table in enumerate(problem.tables()):
        rng = np.random.default_rng([3, k])
        order = rng.permutation(len(x))
        columns = problem.columns[k]
        new: Table = {"x": x[np.ix_(order, columns)], "ids": [ids[i] for i in order]}
        if k < problem.actives:
            mine = order[order % problem.actives == k]
            rest = order[order % problem.actives != k]
            y = np.full((len(rest), *problem.y.shape[1:]), np.nan)
            new = {"x": x[np.ix_(rest, columns)], "ids": [ids[i] for i in rest], "y": y}
            new |= {"x_test": x[np.ix_(mine, columns)], "ids_test": [ids[i] for i in mine]}
            new |= {n: table[n] for n in ("classes", "label_bound") if n in table}
        out.append(new)  # the seed of the directions is in the folder
    return out


@pytest.mark.parametrize("actives", [0, 1, 2])
def test_rows_that_the_model_never_saw_are_predicted(actives: int, parties: Serve) -> None:
    """``actives`` 0 is one-shot."""
    problem = Problem(*small(), 4, max(actives, 1), common=TWO)
    run = parties(problem.tables())
    (mine, oracle), rounds = block({}), 9
    if actives:
        strategy = run.fit(rounds, evaluate_every=4, **mine)
    else:
        strategy = run.fit(features=50, regularization=1e-2, loss="square")
    arrays, meta = strategy.model()
    assert not arrays
    meta = json.loads(json.dumps(meta))
    for secret_text in (secret(0).hex(), KEY.decode(), "person"):
        assert secret_text not in json.dumps(meta)
    x, ids = np.random.default_rng(77).random((9, 8)), [f"newcomer {k}" for k in range(9)]
    if actives:
        expected = dsg(problem, rounds, at=x, **oracle)
    else:
        z = pooled_phases(problem, 50)
        w = solve(z(problem.x[problem.train]), problem.targets()[problem.train], 1e-2)
        expected = z(x) @ w
    for path in run.folder.glob("*.csv"):
        path.unlink()
    later = serve(fresh_tables(problem, x, ids), run.folder)
    again = FDSKL.of_model(meta)
    again.predict_at_nodes(later.grid(), meta)
    found = later.outputs()
    assert set(found) == set(ids)
    np.testing.assert_allclose(np.array([found[i] for i in ids]), expected, atol=1e-6)
    assert len(list(run.folder.rglob("*.state"))) == 4  # a prediction leaves nothing
    assert not list(run.folder.rglob("*.phases"))
    assert not again.metrics_
    again.predict_at_nodes(later.grid(), meta)  # and can be repeated
    assert later.outputs() == found


def test_predictions_need_what_the_parties_kept(parties: Serve) -> None:
    problem = Problem(*small(), 4, common=TWO)
    run = parties(problem.tables())
    meta = run.fit(features=50, regularization=1e-2).model()[1]
    x, ids = np.random.default_rng(77).random((9, 8)), [f"newcomer {k}" for k in range(9)]
    tables = fresh_tables(problem, x, ids)
    elsewhere = serve([{**t, "state_dir": None} for t in tables], run.folder)
    text = (
        "partition [0-3]: what this party kept of the model is not here any more; give the client "
        "the state_dir that it had when the model was made"
    )
    with pytest.raises(FedKernError, match=text) as caught:
        FDSKL.of_model(meta).predict_at_nodes(elsewhere.grid(), meta)
    assert "\n" not in str(caught.value)
    one = [dict(t) for t in tables]
    one[2]["state_dir"] = None
    with pytest.raises(FedKernError, match=text.replace("[0-3]", "2")):
        FDSKL.of_model(meta).predict_at_nodes(serve(one, run.folder).grid(), meta)
    others = serve([*tables, {"x": np.zeros((9, 1)), "ids": ids}], run.folder)
    with pytest.raises(CheckpointError, match="the parties are not those of the model; bring the"):
        FDSKL.of_model(meta).predict_at_nodes(others.grid(), meta)
    with pytest.raises(CheckpointError, match="the model is one of fed-cg; give a model of fdskl"):
        FDSKL.of_model({"method": "fed-cg"})
    here = serve(tables, run.folder)
    for name, value in (("drawn_for", 0.6), ("kernel", "laplacian"), ("phase_bits", 16)):
        changed = {**meta, name: value}
        with pytest.raises(ProtocolError, match="settings are not those of the run that made"):
            FDSKL.of_model(changed).predict_at_nodes(here.grid(), changed)
    no_rows = [dict(t) for t in tables]
    for name in ("x_test", "ids_test"):
        del no_rows[0][name]
    with pytest.raises(FedKernError, match="there are no rows to predict; check the tables"):
        FDSKL.of_model(meta).predict_at_nodes(serve(no_rows, run.folder).grid(), meta)


def test_a_party_that_only_wants_predictions_may_have_them_later(parties: Serve) -> None:
    """An active party without rows to learn from is none of the owners of the model."""
    problem = Problem(*small(), 4, 2, common=TWO)
    tables = problem.tables()
    tables[1]["y"][:] = np.nan
    run = parties(tables)
    strategy = run.fit(12, schedule="streaming", batch=5, directions=2, step=0.3, loss="square")
    assert strategy.leaders == (0,)
    assert set(run.outputs()) == {problem.ids[i] for i in problem.test}
    meta = strategy.model()[1]
    x, ids = np.random.default_rng(77).random((9, 8)), [f"newcomer {k}" for k in range(9)]
    for path in run.folder.glob("*.csv"):
        path.unlink()
    later = serve(fresh_tables(problem, x, ids), run.folder)
    FDSKL.of_model(meta).predict_at_nodes(later.grid(), meta)
    assert set(later.outputs()) == set(ids)


# -- what is told


@pytest.mark.parametrize("actives", [0, 2])
def test_no_secret_is_logged_or_reported(
    actives: int, parties: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    problem = Problem(*small(), 4, max(1, actives), common=TWO)
    run = parties(problem.tables())
    if actives:
        strategy = run.fit(8, schedule="streaming", batch=5, directions=2, evaluate_every=3)
    else:
        strategy = run.fit(features=30, regularization=1e-2)
    told = caplog.text + json.dumps(
        [
            strategy.privacy(),
            strategy.metrics_,
            strategy.history_,
            strategy.options(),
            strategy.model()[1],
            strategy.ledger_.to_dict(),
            strategy.plan_.report(),
        ]
    )
    secrets = [KEY.decode(), KEY.hex(), "person"]
    secrets += [secret(k).hex() for k in range(4)] + [str(secret(k))[2:-1] for k in range(4)]
    secrets += [repr(float(v)) for v in problem.x[:5].ravel()]
    for text in secrets:
        assert text not in told
    for context in run.contexts.values():
        kept = repr(context.state)
        for k in range(4):
            assert secret(k).hex() not in kept
        assert "alpha" not in kept


def test_a_run_warns_of_nothing(parties: Serve, caplog: pytest.LogCaptureFixture) -> None:
    problem = Problem(*small(), 4, common=TWO)
    parties(problem.tables()).fit(features=20, regularization=1e-2)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_nothing_but_masked_numbers_reaches_the_server(parties: Serve) -> None:
    """The same value everywhere looks like noise on the wire: all bits even, no value twice."""
    problem = Problem(np.full((60, 8), 0.5), small()[1], 4, common=TWO)
    transcript = Transcript()
    options: Table = {"features": 128, "phase_bits": 16, "regularization": 1e-1}
    parties(problem.tables()).fit(more={"transcript": transcript}, **options)
    seen = 0
    for entry in transcript.entries(direction="up", phase="vertical-step"):
        largest = max(entry.arrays, key=lambda a: a.nbytes)
        words = np.frombuffer(largest.tobytes()[-2 * 60 * 128 :], np.uint16)
        bits = np.array([(words >> k & 1).mean() for k in range(16)])
        assert np.abs(bits - 0.5).max() < 0.035  # six standard deviations
        counts = np.bincount(words >> 8, minlength=256)
        assert ((counts - 30.0) ** 2 / 30.0).sum() < 255 + 6 * np.sqrt(2 * 255)
        seen += 1
    assert seen == 4


def test_progress_is_told(parties: Serve) -> None:
    problem, done = Problem(*small(), 4, 2, common=TWO), []
    strategy = FDSKL(seed=1, schedule="streaming", batch=4, directions=2, evaluate_every=3)
    strategy.on_round = lambda *row: done.append(row[:2])
    parties(problem.tables()).run(strategy, num_rounds=8)
    assert done == [(t, 8) for t in range(1, 9)]
    assert [row["round"] for row in strategy.history_] == [3, 6, 8]
    assert all(0.0 <= row["test_accuracy"] <= 1.0 for row in strategy.history_)
