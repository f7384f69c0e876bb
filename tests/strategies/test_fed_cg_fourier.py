"""FedCG on Fourier features: the pooled model, and with noise what its budget says."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import never
from flwr.app import Context
from known_noise import know_noise
from nodes import Nodes, Table, side
from scipy import linalg, stats

from fedkern_flwr.clients import HybridKernelClient
from fedkern_flwr.errors import FedKernError, OptionError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.hybrid import fourier
from fedkern_flwr.hybrid.landmarks import public_seed
from fedkern_flwr.judging.counts import Yardstick
from fedkern_flwr.kernels.product import kernel_from_distances, partial_distances
from fedkern_flwr.privacy import Budget, NoisySum
from fedkern_flwr.solvers.equations import pack_equations
from fedkern_flwr.strategies import FedCG, SecureGram, fed_cg_system

KEY = b"a secret of the data's owners"
ALARM = 1e-9  # probability of a false one: the noise cannot be seeded
M, GAMMA = 40, 0.7


def deal(
    x: np.ndarray, y: np.ndarray, hospitals: int, centres: int, *, own: bool = True, **common: Any
) -> list[Table]:
    """Deal rows to hospitals, columns to centres; a third of the rows is held out."""
    columns = np.array_split(np.arange(x.shape[1]), centres + own)
    blocks = [("own", columns[0])] if own else []
    blocks += [(f"centre {k}", c) for k, c in enumerate(columns[own:])]

    def part(rows: np.ndarray, name: str, chosen: np.ndarray, test: np.ndarray) -> Table:
        seed = public_seed(0, name)
        found: Table = {"x": x[np.ix_(rows, chosen)], "block": name, "landmark_seed": seed}
        return found | ({"x_test": x[np.ix_(test, chosen)]} if len(test) else {})

    tables: list[Table] = []
    common = {"alignment_key": KEY, **common}
    for rows in np.array_split(np.arange(len(x)), hospitals):
        train, test = rows[: 2 * len(rows) // 3], rows[2 * len(rows) // 3 :]
        labels = {"y": y[train], "y_test": y[test], "ids": train, "ids_test": test}
        tables.append({**labels, **common, **(part(train, *blocks[0], test) if own else {})})
    every, none = np.random.default_rng(1).permutation(len(x)), np.zeros(0, int)
    for name, chosen in blocks[own:]:
        tables.append({**part(every, name, chosen, none), "ids": every, **common})
    return tables


def features(x: np.ndarray, centres: int, own: bool, kernel: str = "rbf") -> np.ndarray:
    """The features of pooled rows, term by term."""
    columns = np.array_split(np.arange(x.shape[1]), centres + own)
    names = ["own"] * own + [f"centre {k}" for k in range(centres)]
    phases = np.zeros((len(x), M // 2))
    for name, chosen in zip(names, columns, strict=True):
        drawn = fourier.draw_block(public_seed(0, name), M // 2, len(chosen), kernel, GAMMA)
        phases += x[:, chosen] @ drawn[:, :-1].T + drawn[:, -1]
    return np.hstack([np.cos(phases), np.sin(phases)]) / math.sqrt(M / 2)


def training(n: int, hospitals: int) -> np.ndarray:
    parts = np.array_split(np.arange(n), hospitals)
    return np.concatenate([part[: 2 * len(part) // 3] for part in parts])


def strategy(**options: Any) -> FedCG:
    return FedCG(**{"basis": "fourier", "landmarks": M, "gamma": GAMMA, "seed": 0, **options})


def fitted(tables: list[Table], folder: Path, **options: Any) -> tuple[FedCG, Nodes]:
    nodes = Nodes(HybridKernelClient, tables, folder)
    return nodes.run(strategy(**options)), nodes


@pytest.mark.parametrize(
    ("hospitals", "centres", "own"), [(2, 0, True), (3, 2, True), (2, 3, False), (1, 2, True)]
)
@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
def test_the_model_is_that_of_the_pooled_rows(
    hospitals: int, centres: int, own: bool, kernel: str, tmp_path: Path
) -> None:
    x, y = side(90, 6)
    tables = deal(x, y, hospitals, centres, own=own, classes=(0, 1), allow_single=True)
    made, nodes = fitted(tables, tmp_path, kernel=kernel, regularization=0.01, allow_single=True)
    train = training(90, hospitals)
    z = features(x, centres, own, kernel)
    gram = z[train].T @ z[train] + 0.01 * np.eye(M)
    coefficients = linalg.solve(gram, z[train].T @ (2.0 * y[train] - 1.0), assume_a="pos")
    assert np.abs(made.coefficients_[:, 0] - coefficients).max() < 1e-8
    for name, found in nodes.outputs().items():
        assert found[0] == pytest.approx(float(z[int(name)] @ coefficients), abs=1e-8)


def test_a_regression_and_conjugate_gradients_are_the_same_model(tmp_path: Path) -> None:
    x, _ = side(90, 6)
    y = np.sin(4.0 * x[:, 0]) * x[:, 1]
    tables = deal(x, y, 3, 2)
    direct, _ = fitted(tables, tmp_path / "a", regularization=0.01)
    steps, _ = fitted(tables, tmp_path / "b", regularization=0.01, solver="cg")
    assert np.abs(direct.coefficients_ - steps.coefficients_).max() < 1e-6


@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
def test_features_estimate_the_kernel_and_have_length_one(kernel: Any) -> None:
    x = side(30, 4)[0]
    drawn = fourier.draw_block(bytes(32), 20_000, 4, kernel, GAMMA)
    z = fourier.features(fourier.block_phases(x, drawn))
    assert np.allclose((z**2).sum(1), 1.0)
    exact = kernel_from_distances(partial_distances(x, x, kernel), np.array([GAMMA]))
    assert np.abs(z @ z.T - exact).max() < 6.0 / math.sqrt(20_000)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"penalty": "rkhs"}, "penalty rkhs"),
        ({"sampling": "C"}, "sampling C"),
        ({"missing": "neutral"}, "missing neutral"),
        ({"landmark_gamma": True}, "landmark_gamma"),
        ({"tune": "gcv"}, "tune gcv"),
        ({"variance": True}, "variance"),
        ({"landmarks": 41}, "41"),
        ({"basis": "landmarks", "privacy_epsilon": 1.0}, "too long"),
        ({"solver": "cg", "privacy_epsilon": 1.0}, "normal-equations"),
        ({"privacy_epsilon": 0.0}, "privacy_epsilon"),
        ({"privacy_epsilon": 1.0, "privacy_delta": 1.0}, "privacy_delta"),
    ],
)
def test_what_does_not_go_with_it_is_refused(options: Any, named: str) -> None:
    with pytest.raises(OptionError, match=named) as why:
        strategy(**options)
    assert "\n" not in str(why.value)


def test_methods_that_add_no_noise_refuse_a_budget() -> None:
    with pytest.raises(OptionError, match="secure-gram releases a number for each pair") as why:
        SecureGram(privacy_epsilon=1.0)
    assert "\n" not in str(why.value)


# -- with noise


@pytest.fixture
def opened(monkeypatch: Any) -> list[np.ndarray]:
    """What the server opens of the normal equations, as it travels."""
    seen: list[np.ndarray] = []
    unpack = fed_cg_system.unpack_equations

    def record(vector: np.ndarray, *shape: int) -> Any:
        seen.append(vector.copy())
        return unpack(vector, *shape)

    monkeypatch.setattr(fed_cg_system, "unpack_equations", record)
    return seen


def released(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The normal equations as a hospital adds them, with labels of length one half."""
    right = z.T @ y[:, None] * fourier.label_weight(1.0, 1)
    return pack_equations(z.T @ z, right)


@pytest.mark.parametrize(("hospitals", "colluders"), [(2, 1), (4, 1), (4, 0), (4, 3)])
def test_all_that_is_opened_has_the_noise_that_is_told(
    hospitals: int, colluders: int, opened: list[np.ndarray], tmp_path: Path
) -> None:
    x, y = side(120, 5)
    tables = deal(x, y, hospitals, 2, classes=(0, 1))
    made, _ = fitted(
        tables, tmp_path, privacy_epsilon=2.0, privacy_colluders=colluders, privacy_delta=1e-6
    )
    train, z = training(120, hospitals), features(x, 2, True)
    noise = opened[0] - released(z[train], 2.0 * y[train] - 1.0)
    budget = made.result()["privacy"]["budget"]
    assert (budget["epsilon"], budget["delta"]) == (2.0, 1e-6)
    equations, outcomes = budget["releases"]
    assert [equations["release"], outcomes["release"]] == ["equations", "outcomes"]
    sigmas = stats.norm.isf(ALARM)
    apart = noise.std() / equations["deviation"] - 1
    assert abs(apart) < sigmas * math.sqrt(0.51 / noise.size)
    share = equations["deviation"] / equations["declared_deviation"]
    assert share == pytest.approx(math.sqrt(hospitals / (hospitals - colluders)))
    assert 1.99 < equations["epsilon"] <= 2.0 >= outcomes["epsilon"] > 1.99
    assert made.regularization_ == pytest.approx(0.5 * equations["deviation"] * math.sqrt(M))


def test_one_record_moves_what_is_added_no_farther_than_is_charged() -> None:
    """The release itself, not a formula of it: rows that are as far apart as may be."""
    budget, rng = Budget(1.0), np.random.default_rng(0)
    planned = fourier.equations_release(budget, features=M, outputs=1, bound=1.0, rows=[50, 50])
    unit, farthest = 2.0**-planned.noise.fraction, 0.0
    for _ in range(200):
        x = rng.uniform(0.0, 40.0, (50, 5))  # so far apart that features are unrelated
        y = rng.choice([-1.0, 1.0], 50)
        other, labels = x.copy(), y.copy()
        other[0], labels[0] = rng.uniform(0.0, 40.0, 5), -y[0]
        first, second = (
            np.rint(released(features(a, 2, True), b) / unit) * unit
            for a, b in ((x, y), (other, labels))
        )
        farthest = max(farthest, float(np.linalg.norm(first - second)))
    assert 0.8 * planned.sensitivity < farthest <= planned.sensitivity


def test_a_budget_for_parties_is_for_all_their_rows(tmp_path: Path) -> None:
    rows = fourier.equations_release(Budget(1.0), features=M, outputs=1, bound=1.0, rows=[60, 40])
    whole = fourier.equations_release(
        Budget(1.0, unit="party"), features=M, outputs=1, bound=1.0, rows=[60, 40]
    )
    ratio = whole.noise.deviation(2) / rows.noise.deviation(2)
    assert ratio == pytest.approx(60 * math.sqrt(2.0), rel=0.05)  # and two releases of a party
    x, y = side(90, 5)
    made, _ = fitted(
        deal(x, y, 3, 2, classes=(0, 1)), tmp_path, privacy_epsilon=2.0, privacy_unit="party"
    )
    assert made.result()["privacy"]["budget"]["unit"] == "party"


def test_held_out_rows_are_counted_with_noise_and_without_histograms(tmp_path: Path) -> None:
    x, y = side(300, 5)
    made, _ = fitted(deal(x, y, 3, 2, classes=(0, 1)), tmp_path, privacy_epsilon=8.0)
    held = made.result()["held_out"]
    confusion = np.array(held["confusion"])
    assert "bins" not in held
    assert (confusion >= 0).all()
    assert abs(confusion.sum() - 102) <= 2  # public, but for the rounding of four numbers
    plain, _ = fitted(deal(x, y, 3, 2, classes=(0, 1)), tmp_path / "plain")
    assert "bins" in plain.result()["held_out"]


def test_a_regression_with_much_budget_is_nearly_the_pooled_one(tmp_path: Path) -> None:
    x, _ = side(3000, 3)
    y = np.sin(4.0 * x[:, 0])
    made, _ = fitted(deal(x, y, 2, 2), tmp_path, privacy_epsilon=20.0, gamma=3.0)
    assert made.metrics_["test_r2"] > 0.8


@pytest.mark.parametrize("weaker", [0.5, 0.99])
def test_a_server_that_orders_less_noise_is_refused(
    weaker: float, monkeypatch: Any, tmp_path: Path
) -> None:
    """Nodes derive the noise of their own, of the budget with which the run was opened."""
    honest = fed_cg_system.equations_release

    def less(budget: Budget, **known: Any) -> Any:
        found = honest(budget, **known)
        variance = max(1 << 16, int(found.noise.variance * weaker))
        return replace(found, noise=NoisySum(variance, found.noise.fraction))

    monkeypatch.setattr(fed_cg_system, "equations_release", less)
    x, y = side(90, 5)
    with pytest.raises(FedKernError, match="the noise of a sum"):
        fitted(deal(x, y, 3, 2, classes=(0, 1)), tmp_path, privacy_epsilon=2.0)


def test_a_server_that_asks_for_histograms_without_noise_is_refused(
    monkeypatch: Any, tmp_path: Path
) -> None:
    x, y = side(90, 5)
    system = "fedkern_flwr.strategies.fed_cg_system.Yardstick"
    monkeypatch.setattr(system, lambda c, o, b, bins: Yardstick(c, o, b, 8))
    with pytest.raises(FedKernError, match="histograms without noise"):
        fitted(deal(x, y, 3, 2, classes=(0, 1)), tmp_path, privacy_epsilon=2.0)


def test_predictions_with_a_private_model_are_made_within_the_limit_and_cost_nothing(
    tmp_path: Path,
) -> None:
    x, y = side(90, 5)
    policy = NodePolicy.of_simulations(max_epsilon=2.0)
    nodes = Nodes(HybridKernelClient, deal(x, y, 3, 2, classes=(0, 1), policy=policy), tmp_path)
    arrays, meta = nodes.run(strategy(privacy_epsilon=2.0)).model()
    before = nodes.outputs()
    for path in tmp_path.glob("*.csv"):
        path.unlink()
    again = FedCG.of_model(meta)
    assert again.budget == Budget(2.0)
    again.predict_at_nodes(nodes.grid(), arrays, meta)
    assert nodes.outputs() == {name: pytest.approx(values) for name, values in before.items()}
    assert not again.noised_


@pytest.mark.parametrize(("hospitals", "named"), [(1, "several hospitals"), (2, "collude")])
def test_too_few_hospitals_are_refused(hospitals: int, named: str, tmp_path: Path) -> None:
    x, y = side(90, 5)
    tables = deal(x, y, hospitals, 2, classes=(0, 1), allow_single=True)
    with pytest.raises(OptionError, match=named):
        fitted(tables, tmp_path, privacy_epsilon=2.0, privacy_colluders=2, allow_single=True)


@pytest.mark.parametrize(("epsilon", "fine"), [(None, False), (2.1, False), (2.0, True)])
def test_a_node_takes_part_within_its_limit(
    epsilon: float | None, fine: bool, tmp_path: Path
) -> None:
    x, y = side(90, 5)
    policy = NodePolicy.of_simulations(max_epsilon=2.0)
    tables = deal(x, y, 3, 2, classes=(0, 1), policy=policy)
    if fine:
        fitted(tables, tmp_path, privacy_epsilon=epsilon)
        return
    with pytest.raises(FedKernError, match="max_epsilon = 2"):
        fitted(tables, tmp_path, privacy_epsilon=epsilon)


def test_a_row_of_two_hospitals_is_refused_by_who_holds_it(tmp_path: Path) -> None:
    """It would move the sums of both, and is charged once."""
    x, y = side(90, 6)
    tables = deal(x, y, 3, 2, classes=(0, 1))
    tables[1]["ids"] = [tables[0]["ids"][0], *list(tables[1]["ids"])[1:]]
    fitted([dict(one) for one in tables], tmp_path / "free")
    with pytest.raises(FedKernError, match="asked for by two hospitals"):
        fitted(tables, tmp_path / "budget", privacy_epsilon=2.0)


def test_a_server_that_asks_for_landmarks_in_a_run_with_a_budget_is_refused(
    monkeypatch: Any, tmp_path: Path
) -> None:
    honest = FedCG._system

    def forged(self: FedCG) -> Any:
        system = honest(self)
        self.basis = "landmarks"
        return system

    monkeypatch.setattr(FedCG, "_system", forged)
    x, y = side(90, 5)
    with pytest.raises(FedKernError, match="features are of basis 'fourier' only"):
        fitted(deal(x, y, 3, 2, classes=(0, 1)), tmp_path, privacy_epsilon=2.0)


class Deployed(HybridKernelClient):
    """A party of a deployment: it has a ledger."""

    def __init__(self, context: Context, *table: Any, **more: Any) -> None:
        context.node_config["simulation"] = False
        super().__init__(context, *table, **more)


def test_a_run_that_breaks_off_while_it_is_judged_goes_on_and_is_paid_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_noise(monkeypatch)
    x, y = side(90, 5)
    tables = deal(x, y, 3, 2, classes=(0, 1), policy=NodePolicy(max_epsilon=2.0))

    def run(name: str, faults: Any = None, **more: Any) -> FedCG:
        nodes = Nodes(Deployed, tables, tmp_path / name)
        keep = {"checkpoint": tmp_path / f"{name}.npz", "attempts": 2, "privacy_epsilon": 2.0}
        return nodes.run(strategy(**keep, **more), faults=faults)  # type: ignore[no-any-return]

    quiet = run("quiet")
    with pytest.raises(FedKernError, match="resume from the checkpoint"):
        run("broken", never(1, "hybrid-coefficients"))
    found = run("broken", resume=True)
    assert np.array_equal(found.coefficients_, quiet.coefficients_)
    assert found.metrics_ == quiet.metrics_
    assert found.privacy()["budget"] == quiet.privacy()["budget"]
    for k in range(5):
        (paid,) = NodeLedger(tmp_path / "broken" / f"node-{k}", k).runs()
        assert paid.epsilon == pytest.approx(2.0, rel=1e-2)
