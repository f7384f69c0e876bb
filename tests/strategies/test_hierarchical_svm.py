"""HierarchicalSVM against pooled data and against plain loops of what the documents say."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from refusals import refused
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import SVC

from fedkern_flwr.clients import SVMClient
from fedkern_flwr.groups.linear_model import model_rows
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Transcript
from fedkern_flwr.strategies import HierarchicalSVM

KEY = b"a secret of the data's owners"
Array = np.ndarray
Nodes = tuple[Callable[[Context], SVMClient], int]
Table = dict[str, Any]


@pytest.fixture(autouse=True)
def _same_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda n: "5e" * n)


# -- data and nodes


def blobs(n: int = 90, d: int = 4, seed: int = 0) -> tuple[Array, Array]:
    """Return two classes that overlap, in columns of different units, not centred."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.4, 1.0, -1.0)
    x = rng.standard_normal((n, d)) + 0.7 * y[:, None] * (np.arange(d) < 3)
    return x * np.geomspace(0.3, 6.0, d) + np.arange(d), y


def deal(rows: int, users: int, seed: int = 1) -> list[Array]:
    return np.array_split(np.random.default_rng(seed).permutation(rows), users)


def serve(tables: Sequence[Table]) -> Nodes:
    def client_fn(context: Context) -> SVMClient:
        return SVMClient(context, **tables[int(context.node_config["partition-id"])])

    return client_fn, len(tables)


def horizontal(
    x: Array, y: Array, sizes: Sequence[int], *, agents: bool = True, tests: int = 0, **common: Any
) -> Nodes:
    """Deal rows to groups of so many users; the last rows are held out, at everybody in turn."""
    users, tables = sum(sizes), list[Table]()
    parts, held = deal(len(x) - tests, users), np.arange(len(x) - tests, len(x))
    common = {"classes": [-1.0, 1.0], **common}
    for k, group in enumerate(np.repeat(np.arange(len(sizes)), sizes).tolist()):
        table = {"x": x[parts[k]], "y": y[parts[k]], "group": group, **common}
        if tests:
            table |= {"x_test": x[held[k::users]], "y_test": y[held[k::users]]}
        tables.append(table)
    tables += [{"role": "agent", "group": i} for i in range(len(sizes)) if agents]
    return serve(tables)


def vertical_tables(
    x: Array, y: Array, groups: int = 2, users: int = 2, *, tests: int = 12, **owner: Any
) -> list[Table]:
    """Deal columns to groups and rows to their users, each in an order of its own."""
    n = len(x)
    ids = np.array([f"person {k}" for k in np.random.default_rng(5).permutation(9 * n)[:n]])
    learn, held, tables = np.arange(n - tests), np.arange(n - tests, n), list[Table]()
    for i, columns in enumerate(np.array_split(np.arange(x.shape[1]), groups)):
        mine, others = deal(len(learn), users, seed=i), deal(tests, users, seed=i)
        for rows, more in zip(mine, others, strict=True):
            table = {"x": x[np.ix_(rows, columns)], "ids": ids[rows], "group": i}
            table |= {"x_test": x[np.ix_(held[more], columns)], "ids_test": ids[held[more]]}
            tables.append({**table, "alignment_key": KEY})
    tables += [{"role": "agent", "group": i} for i in range(groups)]
    order = np.random.default_rng(9).permutation(learn)
    table = {"role": "owner", "y": y[order], "ids": ids[order], "alignment_key": KEY}
    if tests:
        table |= {"y_test": y[held], "ids_test": ids[held]}
    tables.append({**table, "classes": [-1.0, 1.0], **owner})
    return tables


def vertical(x: Array, y: Array, *shape: int, **more: Any) -> Nodes:
    return serve(vertical_tables(x, y, *shape, **more))


def fit(
    nodes: Nodes,
    rounds: int = 200,
    faults: Any = None,
    transcript: Transcript | None = None,
    serialise: bool = False,
    **options: Any,
) -> HierarchicalSVM:
    strategy = HierarchicalSVM(**{"seed": 3, "C": 1.0, **options})
    how: Table = {"faults": faults, "transcript": transcript, "serialise": serialise}
    simulate(strategy, *nodes, num_rounds=rounds, timeout=60.0, **how)
    return strategy


# -- pooled references


def standard(x: Array, rows: Array | None = None) -> Array:
    own = x if rows is None else rows
    return (x - own.mean(0)) / own.std(0)


def value(kind: str, w: Array, b: Array, x: Array, y: Array, c: float) -> float:
    """1/2 |w|^2 + C sum loss, of models (k, d) and targets (n, k)."""
    f = x @ w.T + b
    losses = {
        "linear": lambda: np.maximum(0.0, 1.0 - y * f),
        "logistic": lambda: np.logaddexp(0.0, -y * f),
        "ridge": lambda: 0.5 * (y - f) ** 2,
    }[kind]()
    return float(0.5 * (w**2).sum() + c * losses.sum())


def pooled(
    kind: str, x: Array, y: Array, c: float = 1.0, tol: float = 1e-9
) -> tuple[float, Array, Array]:
    """Return objective, weights (k, d) and biases (k,) of scikit-learn's optimum."""
    y = y.reshape(len(y), -1)
    weights, bias = [], []
    for target in y.T:
        if kind == "linear":
            found = SVC(kernel="linear", C=c, tol=tol).fit(x, target)
        elif kind == "logistic":
            found = LogisticRegression(C=c, tol=1e-10, max_iter=10_000, solver="newton-cholesky")
            found.fit(x, target)
        else:
            found = Ridge(alpha=1.0 / c).fit(x, target)
        weights.append(np.ravel(found.coef_))
        bias.append(float(np.ravel(found.intercept_)[0]))
    w, b = np.array(weights), np.array(bias)
    return value(kind, w, b, x, y, c), w, b


# -- a plain solver of local problems, and plain loops


def local_hinge(x: Array, y: Array, v: Array, penalty: Array, c: float) -> Array:
    """argmin C sum hinge + 1/2 (w - v)^T diag(penalty) (w - v): interior point on the dual box."""
    scale = np.sqrt(1.0 / penalty)
    z, b = y[:, None] * x * scale, 1.0 - y * (x @ v)
    q, a = z @ z.T, np.full(len(y), c / 2.0)
    low, high = np.ones(len(y)), np.ones(len(y))
    for _ in range(100):
        gap = float(low @ a + high @ (c - a))
        rest = q @ a - b - low + high
        if gap < 1e-15 * c * len(y) and np.abs(rest).max() < 1e-13 * (1.0 + np.abs(b).max()):
            break
        mu = 0.1 * gap / (2 * len(y))
        right = -(q @ a - b) + mu / a - mu / (c - a)
        da = np.linalg.solve(q + np.diag(low / a + high / (c - a)), right)
        dlow = mu / a - low - low / a * da
        dhigh = mu / (c - a) - high + high / (c - a) * da
        pairs = [(a, da), (c - a, -da), (low, dlow), (high, dhigh)]
        step = min(1.0, 0.99 / max(1e-300, *(float((-d / p).max()) for p, d in pairs)))
        a, low, high = a + step * da, low + step * dlow, high + step * dhigh
    return v + scale * (z.T @ a)


def augment(x: Array, y: Array, users: int) -> tuple[list[Array], list[Array]]:
    """Return users' rows in standardised coordinates with a constant column, and their labels."""
    rows = np.column_stack([standard(x), np.ones(len(x))])
    parts = deal(len(x), users)
    return [rows[p] for p in parts], [y[p] for p in parts]


def rise(t: int) -> float:
    return 20.0 ** (min(t, 40) / 40)


def plain_admm(
    x: Array,
    y: Array,
    sizes: Sequence[int],
    iterations: int,
    *,
    c: float = 1.0,
    a: float = 1.7,
    first: Sequence[float] | None = None,
    sigma: float | None = None,
    grow: Callable[[int], float] = rise,
    q: Array | None = None,
) -> list[Array]:
    """Two-block ADMM as the module docstring of consensus.py has it; return z of each iteration."""
    users, d = sum(sizes), x.shape[1] + 1
    xs, ys = augment(x, y, users)
    group = np.repeat(np.arange(len(sizes)), sizes)
    first = [c] * len(sizes) if first is None else list(first)
    q = np.append(np.ones(d - 1), 0.0) if q is None else q
    zi, s = np.zeros((len(sizes), d)), np.zeros((len(sizes), d))
    r, z, out = np.zeros((users, d)), np.zeros(d), []
    for t in range(iterations):
        sig, nxt = (
            float(np.mean(first)) * grow(u) * users / len(sizes) if sigma is None else sigma
            for u in (t, t + 1)
        )
        before, h = zi.copy(), np.zeros((users, d))
        rho = [p * grow(t) for p in first]
        for j, i in enumerate(group):
            w = local_hinge(xs[j], ys[j], before[i] - r[j], np.full(d, rho[i]), c)
            h[j] = a * w + (1 - a) * before[i]
        for i in range(len(sizes)):
            mine = group == i
            hi = a * z + (1 - a) * before[i]
            top = rho[i] * (h[mine] + r[mine]).sum(0) + sig * (hi - s[i])
            zi[i] = top / (rho[i] * mine.sum() + sig)
            r[mine] += h[mine] - zi[i]
            s[i] += zi[i] - hi
        r *= grow(t) / grow(t + 1)
        s *= sig / nxt
        z = nxt * (zi + s).sum(0) / (nxt * len(sizes) + q)
        out.append(z)
    return out


def traced(strategy: HierarchicalSVM) -> list[Array]:
    """Return the global model after each iteration of one output."""
    return [z[0] for _, t, z in strategy.trace_ if t > 0]


def check_trace(strategy: HierarchicalSVM, right: Sequence[Array], atol: float = 1e-7) -> None:
    found = traced(strategy)
    assert len(found) == len(right)
    for k, (one, other) in enumerate(zip(found, right, strict=True)):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=f"iteration {k + 1}")
    assert np.linalg.norm(right[-1]) > 0.1


SIZES = {"1": [4], "2": [2, 3], "5": [2, 2, 3, 2, 2]}


@pytest.mark.promise("svm-iterations")
@pytest.mark.promise("svm-pads")
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_each_iteration_is_that_of_the_plain_admm(sizes: list[int]) -> None:
    x, y = blobs(70)
    iterations = 12
    strategy = fit(horizontal(x, y, sizes), iterations, tolerance=1e-12)
    check_trace(strategy, plain_admm(x, y, sizes, iterations))
    assert [row["round"] for row in strategy.history_] == list(range(1, iterations + 1))


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({"C": 0.3}, {"c": 0.3}),
        ({"relaxation": 1.0}, {"a": 1.0}),
        ({"rho": 2.5}, {"first": [2.5] * 3, "grow": lambda t: 1.0}),
        ({"step_sizes": (0.5, 2.0, 1.0)}, {"first": [0.5, 2.0, 1.0], "grow": lambda t: 1.0}),
        ({"step_sizes": (0.5, 2, 1), "rho_schedule": "rising"}, {"first": [0.5, 2.0, 1.0]}),
        ({"sigma": 0.7}, {"sigma": 0.7}),
        ({"rho_schedule": "fixed", "C": 2.0}, {"c": 2.0, "first": [6.0] * 3, "grow": lambda t: 1}),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_options_enter_the_iterations_as_documented(options: Table, plain: Table) -> None:
    x, y = blobs(70)
    sizes = [2, 3, 2]
    strategy = fit(horizontal(x, y, sizes), 8, tolerance=1e-12, **options)
    check_trace(strategy, plain_admm(x, y, sizes, 8, **plain))


def test_columns_as_they_are_have_another_penalty_in_the_same_coordinates() -> None:
    x, y = blobs(70)
    q = np.append(x.std(0) ** -2.0, 0.0)
    strategy = fit(horizontal(x, y, [3, 2]), 8, scale="none", tolerance=1e-12)
    check_trace(strategy, plain_admm(x, y, [3, 2], 8, q=q))


def test_balanced_penalties_change_and_reach_the_same_optimum() -> None:
    x, y = blobs()
    strategy = fit(horizontal(x, y, [2, 2]), 75, rho_schedule="balanced", rho=0.02, tolerance=1e-9)
    rhos = [row["rho"] for row in strategy.history_]
    assert max(rhos) > 2 * rhos[0]
    steps = np.array(rhos[1:]) / rhos[:-1]
    assert steps.max() <= 2.0 + 1e-12
    assert len(set(rhos[65:])) <= 1
    best = pooled("linear", standard(x), y)[0]
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=1e-3)


# -- the pooled optimum


KINDS = {
    "hinge, standard": ("linear", "standard", 1.0),
    "hinge, as they are": ("linear", "none", 0.5),
    "logistic": ("logistic", "standard", 2.0),
    "logistic, as they are": ("logistic", "none", 1.0),
    "ridge, classes": ("ridge", "standard", 0.1),
}


_VERTICAL: Table = {"partition": "vertical"}
SPLITS: dict[str, tuple[Callable[..., Nodes], Table]] = {
    "rows": (lambda x, y, **more: horizontal(x, y, [2, 2], **more), {}),
    "columns": (vertical, _VERTICAL),
}


@pytest.mark.parametrize("split", SPLITS)
def test_ridge_regression_of_several_targets(split: str) -> None:
    deal_out, options = SPLITS[split]
    x, _ = blobs()
    rng = np.random.default_rng(0)
    y = standard(x) @ rng.standard_normal((4, 2)) + rng.standard_normal((90, 2)) + [1.0, -2.0]
    nodes = deal_out(x, y, classes=None, label_bound=20.0, tests=10)
    strategy = fit(nodes, model="ridge", tolerance=1e-5 if split == "rows" else 1e-8, **options)
    z = standard(x, x[:80])
    best, w, b = pooled("ridge", z[:80], y[:80])
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=1e-7)
    errors = np.sqrt(((z @ w.T + b - y)[80:] ** 2).mean())
    assert strategy.metrics_["test_rmse"] == pytest.approx(errors, rel=1e-4)


@pytest.mark.parametrize("split", SPLITS)
def test_incomes_years_and_seconds_are_columns_as_others(split: str) -> None:
    """Their squares are far beyond the bound of sums; the model is that of standard columns."""
    deal_out, options = SPLITS[split]
    x, y = blobs(90)
    wide = x * [3e5, 20.0, 1e7, 1e-3] + [5e4, 1990.0, 1.7e9, 0.0]
    found = [
        fit(deal_out(own, y, tests=12), 30, model="logistic", **options).metrics_
        for own in (x, wide)
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_rbf_converges() -> None:
    """Random features vary little: with the penalties of columns it took hundreds of iterations."""
    x, y = blobs(120)
    strategy = fit(horizontal(x, y, [3, 3]), 70, model="rbf", features=100, tolerance=4e-3)
    assert strategy.metrics_["converged"]
    _, meta = strategy.model()
    features = model_rows(standard(x), 100, 0.25, meta["feature_seed"])
    best, _, _ = pooled("linear", features, y)
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=3e-3)


@pytest.mark.parametrize("split", SPLITS)
def test_iterations_that_were_too_few_are_said_in_one_line(
    split: str, caplog: pytest.LogCaptureFixture
) -> None:
    deal_out, options = SPLITS[split]
    for rounds, tolerance in ((3, 1e-9), (200, 0.05)):
        caplog.clear()
        strategy = fit(deal_out(*blobs(60)), rounds, tolerance=tolerance, **options)
        said = [r.getMessage() for r in caplog.records if "not converged" in r.getMessage()]
        assert len(said) == (not strategy.metrics_["converged"]) == (rounds == 3)
        assert all("after 3 iterations" in s and "--rounds" in s for s in said)


def test_odd_tables_are_learned_from_as_if_pooled() -> None:
    """A constant column, users of one class and of one row, one of them alone in its group."""
    x, y = blobs(40)
    x[:, 1] = 7.0
    cuts = np.split(np.argsort(y), [1, 12, 30])
    groups, common = (0, 0, 0, 1), {"classes": [-1.0, 1.0], "allow_single": True}
    tables: list[Table] = [
        {"x": x[p], "y": y[p], "group": group, **common}
        for p, group in zip(cuts, groups, strict=True)
    ]
    tables += [{"role": "agent", "group": k} for k in (0, 1)]
    strategy = fit(serve(tables), tolerance=1e-2, allow_single=True)
    best = pooled("linear", standard(np.delete(x, 1, axis=1)), y)[0]
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=3e-3)


# -- one layer


def plain_central(x: Array, y: Array, users: int, iterations: int) -> list[Array]:
    d = x.shape[1] + 1
    xs, ys = augment(x, y, users)
    q, z, r, out = np.append(np.ones(d - 1), 0.0), np.zeros(d), np.zeros((users, d)), []
    for t in range(iterations):
        rho = rise(t)
        w = [local_hinge(xs[j], ys[j], z - r[j], np.full(d, rho), 1.0) for j in range(users)]
        h = 1.7 * np.array(w) - 0.7 * z
        z = rho * (h + r).sum(0) / (rho * users + q)
        r = (r + h - z) * rho / rise(t + 1)
        out.append(z)
    return out


def test_one_layer_is_the_plain_consensus_of_users() -> None:
    x, y = blobs()
    nodes = horizontal(x, y, [5], agents=False)
    strategy = fit(nodes, 12, architecture="centralised", tolerance=1e-12)
    check_trace(strategy, plain_central(x, y, 5, 12))
    phases = {"describe", "svm-statistics", "svm-local", "svm-evaluate"}
    assert set(strategy.ledger_.by_phase) == phases
    assert strategy.ledger_.by_phase["svm-local"] == 12


# -- how it is done must not matter


@pytest.mark.parametrize(
    ("split", "options", "each"),
    [
        ("rows", {}, 1),
        ("rows", {"staleness": 2}, 1),
        ("rows", {"lost_groups": "leave-out"}, 1),
        ("columns", {}, 2),
    ],
)
def test_one_exchange_an_iteration_or_two(split: str, options: Table, each: int) -> None:
    nodes = horizontal(*blobs(72), [2, 2, 2]) if split == "rows" else vertical(*blobs(60))
    own = SPLITS[split][1]
    a, b = (fit(nodes, n, tolerance=1e-12, **options, **own) for n in (2, 4))
    assert b.ledger_.exchanges - a.ledger_.exchanges == 2 * each


@pytest.mark.parametrize("other", [{"lost_groups": "leave-out"}, {"staleness": 3}])
def test_groups_that_are_all_there_in_time_have_the_same_models(other: Table) -> None:
    nodes = horizontal(*blobs(72), [2, 2, 2])
    one, two = (fit(nodes, 8, tolerance=1e-12, **options) for options in ({}, other))
    for a, b in zip(traced(one), traced(two), strict=True):
        np.testing.assert_array_equal(a, b)
    assert [row["round"] for row in two.history_] == [row["round"] for row in one.history_]
    if "staleness" not in other:
        assert two.history_ == one.history_
        assert two.metrics_ == one.metrics_


# -- vertical splits


@pytest.mark.parametrize("name", KINDS)
def test_every_model_in_a_vertical_split(name: str) -> None:
    kind, scale, c = KINDS[name]
    x, y = blobs(80)
    z = standard(x, x[:68]) if scale == "standard" else x
    strategy = fit(vertical(x, y), model=kind, scale=scale, C=c, tolerance=1e-6, **_VERTICAL)
    best = pooled(kind, z[:68], y[:68], c)[0]
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=2e-6)


def test_without_held_out_rows_and_with_a_limit_of_iterations() -> None:
    nodes = vertical(*blobs(60), tests=0)
    strategy = fit(nodes, 1, partition="vertical", tolerance=1e-12)
    assert strategy.metrics_["iterations"] == 1
    assert not strategy.metrics_["converged"]
    assert set(strategy.metrics_) == {"objective", "iterations", "converged"}
    x, y = blobs(60)
    assert strategy.metrics_["objective"] > pooled("linear", standard(x), y)[0]


def test_rows_that_a_group_lacks_are_refused_or_left_out() -> None:
    x, y = blobs(60)
    tables = vertical_tables(x, y)
    missing = set(tables[0]["ids"][:5].tolist()) | set(tables[2]["ids_test"][:1].tolist())
    for k, names in ((0, ("x", "ids")), (2, ("x_test", "ids_test"))):
        cut = 5 if k == 0 else 1
        for name in names:
            tables[k][name] = tables[k][name][cut:]
    with refused("FK-ROWS-LACKING"):
        fit(serve(tables), partition="vertical")
    strategy = fit(serve(tables), partition="vertical", missing="drop-row", tolerance=1e-6)
    assert strategy.row_plan_.dropped == 6
    n = len(x)
    ids = np.array([f"person {k}" for k in np.random.default_rng(5).permutation(9 * n)[:n]])
    keep = ~np.isin(ids[:48], list(missing))
    assert keep.sum() == 43
    best = pooled("linear", standard(x[:48][keep]), y[:48][keep])[0]
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=2e-6)


def test_rows_that_nobody_labelled_do_no_harm() -> None:
    x, y = blobs(60)
    tables = vertical_tables(x, y)
    for k in (0, 2):
        extra = np.full((3, tables[k]["x"].shape[1]), 1e3)
        tables[k]["x"] = np.concatenate([extra, tables[k]["x"]])
        tables[k]["ids"] = np.concatenate([[f"stranger {j}" for j in range(3)], tables[k]["ids"]])
    strategy = fit(serve(tables), partition="vertical", tolerance=1e-6)
    best = pooled("linear", standard(x[:48]), y[:48])[0]
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=2e-6)


# -- nodes that do not fit; more in tests/core/test_groups.py


def altered(k: int, **changes: Any) -> Nodes:
    """Two groups of two users, of which a node is another one."""
    x, y = blobs(60)
    tables: list[Table] = [
        {"x": x[p], "y": y[p], "group": j // 2, "classes": [-1.0, 1.0]}
        for j, p in enumerate(deal(60, 4))
    ]
    tables += [{"role": "agent", "group": j} for j in (0, 1)]
    tables[k] |= changes
    return serve(tables)


def rows(*sizes: int, **more: Any) -> Nodes:
    return horizontal(*blobs(60), sizes, **more)


def columns(k: int, *, owners: int = 1, **changes: Any) -> Nodes:
    """Two groups of columns, of which a node is another one."""
    tables = vertical_tables(*blobs(60))
    tables[k] |= changes
    return serve(tables[:-1] + tables[-1:] * owners)


def test_what_an_agent_and_the_server_see_is_told() -> None:
    for options in ({}, {"partition": "vertical"}, {"staleness": 3}):
        strategy = HierarchicalSVM(**options)
        seen = strategy.privacy()
        assert seen["server_sees"]
        assert seen["user_sees"]
    assert "differ" in str(HierarchicalSVM(lost_groups="leave-out").privacy()["server_sees"])


def test_without_groups_all_users_are_around_the_server() -> None:
    x, y = blobs(60)
    found = {}
    for agents in (False, True):
        for architecture in (None, "hierarchical" if agents else "centralised"):
            nodes = horizontal(x, y, [2, 2] if agents else [4], agents=agents)
            found[agents, architecture] = fit(nodes, 5, architecture=architecture)
    for agents, architecture in found:
        one, other = found[agents, architecture], found[agents, None]
        assert ("svm-combine" in one.ledger_.by_phase) == agents
        np.testing.assert_array_equal(one.coefficients_, other.coefficients_)


BAD_NODES: dict[str, tuple[str, Callable[[], Nodes], Table]] = {
    "no users": ("FK-GROUPS-SHAPE", lambda: serve([{"role": "agent", "group": 0}] * 2), {}),
    "groups without agents": ("FK-GROUPS-SHAPE", lambda: rows(2, 2, agents=False), {}),
    "staleness, no agents": ("FK-GROUPS-SHAPE", lambda: rows(4, agents=False), {"staleness": 1}),
    "a budget with agents": ("FK-GROUPS-NO-AGENT", lambda: altered(0), {"privacy_epsilon": 1.0}),
    "two agents": ("FK-GROUPS-SHAPE", lambda: altered(4, group=1), {}),
    "agents in one layer": (
        "FK-GROUPS-NO-AGENT",
        lambda: altered(0),
        {"architecture": "centralised"},
    ),
    "other classes": ("FK-CLASSES-DIFFER", lambda: altered(1, classes=[-1.0, 1.0, 3.0]), {}),
    "numbers": ("FK-LOSS-CLASSES", lambda: rows(2, 2, classes=None), {}),
    "step sizes": ("FK-GROUPS-DIFFER", lambda: rows(2, 2), {"step_sizes": (1, 1, 1)}),
    "none may go": ("FK-GROUPS-LEFT", lambda: rows(2, 2), {"lost_groups": "leave-out"}),
    "a single user": ("FK-GROUPS-SINGLE", lambda: rows(2, 1), {}),
    "that refuses": ("FK-ALONE-REFUSED", lambda: rows(2, 1), {"allow_single": True}),
    "no owner": ("FK-GROUPS-OWNER", lambda: columns(0, owners=0), _VERTICAL),
    "no ids": ("FK-IDS-SOME", lambda: columns(2, ids=None, ids_test=None), _VERTICAL),
    "another key": ("FK-ROWS-LACKING", lambda: columns(0, alignment_key=bytes(16)), _VERTICAL),
    "duplicate ids": ("FK-IDS-DUPLICATE", lambda: columns(0, ids=["a"] * 24), _VERTICAL),
    "an owner": ("FK-GROUPS-OWNER", lambda: columns(0), {}),
    "one class": ("FK-LOSS-CLASSES", lambda: columns(6, y=np.ones(48)), _VERTICAL),
}


@pytest.mark.promise("svm-alone")
@pytest.mark.parametrize(("code", "make", "options"), BAD_NODES.values(), ids=BAD_NODES)
def test_nodes_that_do_not_fit_are_refused_in_one_line(
    code: str, make: Callable[[], Nodes], options: Table
) -> None:
    with refused(code) as caught:
        fit(make(), **options)
    assert "\n" not in str(caught.value)
