"""What runs should come to, from all rows in one place: plain NumPy, SciPy, scikit-learn.

Each takes what a run of the zoo found and yields pairs: what was found, and what it should be.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
from scipy import stats
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import SVC

from fedkern_flwr.alignment import AlignmentTags, hash_ids, sort_order
from fedkern_flwr.hybrid.landmarks import draw_landmarks
from fedkern_flwr.kernels.random_features import (
    draw_directions,
    draw_offsets,
    feature_map,
    gaussian_frequencies,
)
from fedkern_flwr.online.learning import select_subset
from fedkern_flwr.online.ridge import kernel_rows
from fedkern_flwr.scaling import read_ranges
from fedkern_flwr.seeding import derive_seed, uniform

Table = dict[str, Any]
Floats = np.ndarray
Pairs = Iterable[tuple[Any, Any]]
KEY = b"k" * 16  # with which all tables of the zoo are joined


def stacked(tables: list[Table], name: str = "x") -> Floats:
    """Return the rows of all tables that have some."""
    return np.concatenate([np.asarray(t[name]) for t in tables if t.get(name) is not None])


def signs(y: Floats, classes: Any) -> Floats:
    """Return targets: a column of -1 and 1 for two classes, one a class for more, or numbers."""
    if classes is None:
        return np.asarray(y, float).reshape(len(y), -1)
    found = np.where(np.asarray(y)[:, None] == np.asarray(classes), 1.0, -1.0)
    return found[:, 1:] if len(classes) == 2 else found


def balanced(y: Floats) -> Floats:
    """Return weights of rows with which all classes count alike."""
    counts = {value: np.sum(y == value) for value in np.unique(y)}
    return np.array([len(y) / (len(counts) * counts[value]) for value in y])


def outputs(found: Any, ids: Iterable[Any]) -> Floats:
    """Return what nodes wrote of these ids."""
    written = {name.partition(" ")[2]: value for name, value in found.predictions.items()}
    return np.array([written[str(name)] for name in ids])


def online_features(strategy: Any, rows: list[Floats]) -> list[Floats]:
    """Return z_i(x) = [sin(rho^T x), cos(rho^T x)] / sqrt(D) of every row and kernel."""
    d, widths = strategy.features, np.asarray(strategy.bandwidths, "<f8")
    law = strategy.run_seed, "float64", strategy.frequency_draw
    rho = gaussian_frequencies(widths.tobytes(), 3, d, *law).reshape(3, len(widths), d)
    phases = [np.einsum("td,dnk->tnk", x, rho) for x in rows]
    return [np.concatenate([np.sin(p), np.cos(p)], axis=2) / math.sqrt(d) for p in phases]


def plain_online(found: Any, *, weigh: str = "own", drawn: bool = False) -> Pairs:
    """Online learning of many kernels in plain loops, in the paper's steps or AdaGrad's.

    Algorithms 1 and 2 of POF-MKL's paper, or with AdaHedge; what other methods do otherwise is in
    ``weigh``: kernels by each client's own losses, by the mean or sum over all clients, or not at
    all. The last message has the samples that are left as well.
    """
    strategy, tables = found.strategy, found.sites.tables
    paper, lam, n = strategy.step_size == "paper", strategy.regularization, len(strategy.bandwidths)
    alone, d, rows = strategy.method == "local-only", strategy.features, len(tables[0]["y"])
    rounds, clients = len(strategy.history_), range(len(tables))
    size = rows // rounds
    z = online_features(strategy, [t["x"] for t in tables])
    y = [t["y"] - (0.0 if paper else strategy.centre) for t in tables]
    eta, theta, norms = 1.0 / math.sqrt(rows), np.zeros((len(tables), n, 2 * d)), 0.0
    losses, gaps = np.zeros((len(tables), n)), np.zeros(len(tables))
    errors, of_kernels = np.zeros(len(tables)), np.zeros((len(tables), n))

    def shares(k: int) -> Floats:
        return kernel_shares(losses[k], eta if paper else gaps[k], paper)

    def learn(k: int, told: Floats) -> None:
        gaps[k] += hedge_gap(losses[k], told, gaps[k])
        losses[k] += told

    for number, row in enumerate(strategy.history_, 1):
        start, stop = (number - 1) * size, rows if number == rounds else number * size
        chance = 0.9 * shares(0) + 0.1 / n
        draw = uniform(strategy.run_seed, "drawn kernel", number)
        pick = int(np.searchsorted(chance.cumsum(), draw, "right"))
        told, gradients = np.zeros_like(losses), np.zeros_like(theta)
        for k in clients:
            chosen = _chosen_kernels(strategy, shares(k), k, number)
            own, squares = theta[k].copy(), 4.0 * of_kernels[k]
            for t in range(start, stop):
                f = np.vecdot(own, z[k][t])
                errors[k] += float((f[pick] if drawn else shares(k) @ f) - y[k][t]) ** 2  # eq. 6
                of_kernels[k] += (f - y[k][t]) ** 2
                told[k] = (f - y[k][t]) ** 2 + lam * np.vecdot(own, own)
                if weigh == "own":
                    learn(k, told[k])
                wrong = np.vecdot(theta[k], z[k][t]) - y[k][t]
                gradients[k] += chosen * (2.0 * wrong[:, None] * z[k][t] + 2.0 * lam * theta[k])
                step = 2.0 * (f - y[k][t])[:, None] * z[k][t] + 2.0 * lam * own
                squares += np.vecdot(step, step)
                if not paper and size > 1:  # a client goes on with a copy of its own
                    own -= 0.5 * step / np.sqrt(squares)[:, None]
        if drawn:
            gradients *= (np.arange(n) == pick)[:, None] / chance[pick]
        if not alone:
            gradients[:] = gradients.mean(axis=0)
        for k in clients if weigh in ("mean", "sum") else ():
            learn(k, told.mean(axis=0) if weigh == "mean" else told.sum(axis=0))
        norms = norms + np.vecdot(gradients, gradients)
        theta -= gradients * (eta if paper else np.maximum(norms, 1e-300)[..., None] ** -0.5)
        yield row["mse"], errors.sum() / (len(tables) * stop)
        yield row["regret"], (errors - of_kernels.min(axis=1)).mean()  # eq. 11
    yield strategy.metrics_["regret_std"], (errors - of_kernels.min(axis=1)).std()
    if not alone:
        yield strategy.model()[0]["theta"], theta[0]
    if strategy.method == "pof-mkl":
        from conversation import kept_state  # which imports the ways, and these this file

        for k in clients:
            kept = kept_state(found.contexts[k])
            yield kept.arrays["losses"], losses[k]
            yield kept.settings["gap"], 0.0 if paper else gaps[k]


def _chosen_kernels(strategy: Any, weights: Floats, client: int, number: int) -> Floats:
    """Return 1 / probability of the kernels that a client chose, 0 of the others.

    A bin of Algorithm 1, eq. 8, or a subset.
    """
    n, seed = len(weights), strategy.run_seed
    found, many = np.zeros((n, 1)), getattr(strategy, "kernels_per_round", n)
    if many == n:
        return found + 1.0
    if strategy.step_size != "paper":
        rng = np.random.default_rng(derive_seed(seed, "kernels", client, number))
        chosen, chance = select_subset(weights, many, strategy.exploration, rng)
        found[chosen, 0] = 1.0 / np.asarray(chance)
        return found
    order = sorted(range(n), key=lambda i: (-weights[i], i))
    bins = [order[start : start + many] for start in range(0, n, many)]
    draw, reached = uniform(seed, "kernels", client, number), 0.0
    for one in bins:
        share = (1.0 - strategy.exploration) * weights[one].sum()
        chance = share + strategy.exploration / len(bins)
        if draw < reached + chance or one is bins[-1]:
            found[one, 0] = 1.0 / chance
            return found
        reached += chance
    raise AssertionError


def kernel_shares(losses: Floats, rate: float, paper: bool) -> Floats:
    """Weights over kernels: exponential at a rate, or AdaHedge's with what it has lost so far."""
    behind = losses - losses.min()
    if not paper and rate == 0.0:
        return (behind == 0.0) / (behind == 0.0).sum()
    eta = rate if paper else math.log(len(losses)) / rate
    return np.exp(-eta * behind - logsumexp(-eta * behind))


def hedge_gap(losses: Floats, told: Floats, gap: float) -> float:
    """Return what AdaHedge loses to the mixture."""
    after, mix = losses + told, (losses + told).min() - losses.min()
    if gap:  # of distances to the least, so that digits are left where the rate is large
        eta = math.log(len(losses)) / gap
        parts = (-eta * (some - some.min()) for some in (losses, after))
        before, then = map(logsumexp, parts)
        mix += (before - then) / eta
    return max(0.0, float(kernel_shares(losses, gap, False) @ told - mix))


def as_in_plain(found: Any) -> Pairs:
    """The same run without secure sums, for which a file of the method has a plain program."""
    plain = found.way.sites().fit(secure=False).outcome()
    for name, value in found.outcome().items():
        if isinstance(value, np.ndarray):
            yield value, plain[name]
    yield found.strategy.metrics_["mse"], plain["metrics"]["mse"]


def ridges(found: Any, gone: Collection[tuple[int, int]] = ()) -> Pairs:
    """POF-RLS: ridge regressions of all rows that were summed, weighted by their age.

    ``gone``: which clients were away from which messages. What all were away from is lost.
    """
    strategy, tables = found.strategy, found.sites.tables
    plan, arrays = strategy.plan_, strategy.model()[0]
    width = np.array([strategy.width_], "<f8").tobytes()
    half = np.arange(plan.features)
    expected: dict[str, list[Floats]] = {}
    for memory in (1.0, strategy.forgetting):
        sums: dict[str, Any] = {}
        messages = zip((0, *plan.stops), plan.starts, plan.stops, plan.sums, strict=False)
        for number, (before, window, stop, some) in enumerate(messages, 1):
            here = [t for k, t in enumerate(tables) if (k, number) not in gone]
            wanted = {"raw": before, **({"kernels": window} if some else {})} if here else {}
            for name, start in wanted.items():
                gram, right = (memory ** (stop - start) * one for one in sums.get(name, (0.0, 0.0)))
                for t in here:
                    x = t["x"][start:stop]
                    phi = np.column_stack([x, np.ones(len(x))])
                    if name == "kernels":
                        both = kernel_rows(x, width, strategy.features, strategy.run_seed)[0]
                        phi = both[:, [*half, *(strategy.features + half)]]
                    gram, right = gram + phi.T @ phi, right + phi.T @ (t["y"][start:stop] - 0.5)
                sums[name] = gram, right
        for name, (gram, right) in sums.items():
            expected.setdefault(name, []).append(
                np.linalg.solve(gram + 1e-3 * np.eye(len(gram)), right)
            )
    assert arrays.keys() == {*expected, "bandwidths"}
    for name in expected:
        yield arrays[name], expected[name]


Blocks = dict[str, dict[str, Floats]]  # name -> id -> features


def join(
    tables: list[Table], missing: str = "error"
) -> tuple[Blocks, list[str], Floats, list[str]]:
    """Join the tables of FedCG by id: rows of blocks, ids to learn from, their targets, tests."""
    blocks: Blocks = {}
    for table in (t for t in tables if "x" in t):
        rows = blocks.setdefault(table["block"], {})
        rows |= dict(zip(table["ids"], table["x"], strict=True))
        rows |= dict(zip(table.get("ids_test", ()), table.get("x_test", ()), strict=True))
    homes = [t for t in tables if "y" in t]
    labels = {i: v for t in homes for i, v in zip(t["ids"], t["y"], strict=True)}
    ids, tests = [*labels], [str(i) for t in homes for i in t["ids_test"]]
    if missing == "drop-row":
        whole = set.intersection(*map(set, blocks.values()))
        ids, tests = ([i for i in some if i in whole] for some in (ids, tests))
    y = np.array([labels[i] for i in ids])
    return blocks, ids, signs(y, homes[0].get("classes")), tests


def landmark_distances(strategy: Any, tables: list[Table]) -> tuple[Floats, Floats]:
    """Return distances of rows to learn from, then of tests, to landmarks; and between these."""
    blocks, ids, _, tests = join(tables, strategy.missing)
    of = {t["block"]: (t["landmark_seed"], t.get("ranges")) for t in tables if "x" in t}
    m, metric = strategy.landmarks_, {"rbf": "sqeuclidean", "laplacian": "cityblock"}
    distances, drawn = np.zeros((len(ids + tests), m)), []
    for name, rows in blocks.items():
        x = np.array([rows[i] for i in ids if i in rows])
        seed, ranges = of[name]
        box = np.array([[0.0, 1.0]] * x.shape[1]) if ranges is None else ranges
        several = sum(t.get("block") == name for t in tables) > 1
        drawn.append(draw_landmarks(seed, m, box, _moments(strategy, x, several=several)))
        known = np.array([i in rows for i in ids + tests])
        x = np.array([rows[i] for i in ids + tests if i in rows])
        distances[known] += cdist(x, drawn[-1], metric[strategy.kernel])
    every = np.hstack(drawn)
    return distances, cdist(every, every, metric[strategy.kernel])


def _moments(strategy: Any, x: Floats, *, several: bool) -> Floats | None:
    """Return what landmarks of a block are drawn by: nothing for those that are uniform."""
    sampling = strategy.chosen_sampling
    if sampling == "U" or (several and strategy.sampling == "auto"):
        return None
    if sampling == "N" or x.shape[1] == 1:
        return np.stack([x.mean(axis=0), x.std(axis=0)])
    (n, d), spread = x.shape, np.cov(x.T, bias=True)  # a row's worth of the identity a feature
    return np.vstack([x.mean(axis=0), (n * spread + np.trace(spread) * np.eye(d)) / (n + d)])


def kernel_ridge(found: Any, bound: float | None = None) -> Pairs:
    """FedCG: ridge regression on kernel columns of landmarks, or on Fourier features.

    Outputs are clipped to the bound of the labels, or another one.
    """
    strategy, tables = found.strategy, found.sites.tables
    arrays, meta = strategy.model()
    blocks, ids, targets, tests = join(tables, strategy.missing)
    if strategy.basis == "fourier":
        law: Any = (strategy.kernel, strategy.gamma)
        m, seeds = meta["landmarks"] // 2, {t["block"]: t["landmark_seed"] for t in tables}
        phases = sum(
            np.array([blocks[b][i] for i in ids + tests]) @ draw_directions(s, 0, m, 2, *law).T
            + draw_offsets(s, 0, m, *law)
            for b, s in seeds.items()
        )
        k = np.hstack([np.cos(phases), np.sin(phases)]) / math.sqrt(m)
    else:
        distances, pairs = landmark_distances(strategy, tables)
        k = np.exp(-arrays["gammas"] * distances)
    k, k_test = np.split(k, [len(ids)])
    labels = stacked([t for t in tables if "y" in t], "y")
    w = balanced(labels) if strategy.class_weight else np.ones(len(ids))
    gram, right, lam = k.T * w @ k, k.T * w @ targets, meta["regularization"]
    if strategy.penalty == "rkhs":
        gram = gram + lam * np.exp(-arrays["gammas"] * pairs)
        cut = len(gram) * np.finfo(float).eps
        a = np.linalg.pinv(gram, rcond=cut, hermitian=True) @ right
    else:
        a = np.linalg.solve(gram + lam * np.eye(len(gram)), right)
        yield arrays["coefficients"], a
    most = tables[0].get("label_bound", np.inf) if bound is None else bound
    yield outputs(found, tests), np.clip(k_test @ a, -most, most)


def joint(found: Any, owner: int, count: int) -> tuple[Floats, list[str]]:
    """Return FDSKL's features of all rows in an active party's directions, and the rows' ids."""
    tables, law = found.sites.tables, (found.strategy.kernel, found.strategy.gamma)
    ids = sorted({str(i) for t in tables for i in t["ids"]})
    phases = np.zeros((len(ids), count))
    for t in tables:
        rows = dict(zip(t["ids"], t["x"], strict=True))
        rows |= dict(zip(t.get("ids_test", ()), t.get("x_test", ()), strict=True))
        omega = draw_directions(t["frequency_seed"], owner, count, 2, *law)
        phases += np.array([rows[i] for i in ids]) @ omega.T
        phases += draw_offsets(t["frequency_seed"], owner, count, *law)
    return math.sqrt(2.0) * np.cos(phases), ids


def random_features(found: Any) -> Pairs:
    """FDSKL in closed form: ridge or logistic regression on random features of pooled columns."""
    strategy, (first, *_) = found.strategy, found.sites.tables
    n, known = strategy.features, np.isfinite(first["y"])
    phi, ids = joint(found, 0, n)
    z = phi / math.sqrt(n)
    train = [ids.index(i) for i in first["ids"][known]]
    test = [ids.index(i) for i in first["ids_test"]]
    y = signs(first["y"][known], first.get("classes"))
    w = balanced(first["y"][known]) if strategy.class_weight else np.ones(len(train))
    if "weights" in first:
        w = w * first["weights"][known]
        w = w / w.mean()
    if strategy.chosen_loss == "square":
        z, y = z, y / first.get("label_bound", 1.0)
        if strategy.has_intercept:
            z = np.column_stack([z, np.ones(len(z))])
        penalty = strategy.regularization * np.eye(z.shape[1])
        penalty[n:] = 0.0
        gram = 2.0 / len(train) * z[train].T * w @ z[train] + penalty
        f = z[test] @ np.linalg.solve(gram, 2.0 / len(train) * z[train].T * w @ y)
    else:
        c = 1.0 / (len(train) * strategy.regularization)
        intercept = strategy.has_intercept
        model = LogisticRegression(C=c, tol=1e-12, max_iter=1000, fit_intercept=intercept)
        f = model.fit(z[train], y[:, 0], w).decision_function(z[test])[:, None]
    yield outputs(found, first["ids_test"]), f * first.get("label_bound", 1.0)


def run_order(found: Any) -> tuple[list[list[int]], Floats, list[str]]:
    """Return what FDSKL's active parties learn from, in the order of the run: rows, targets, ids.

    Rows are places in the ids; ids without a label have no target.
    """
    strategy, tables = found.strategy, found.sites.tables
    ids = sorted({str(i) for t in tables for i in t["ids"]})
    rows, y = list[list[int]](), dict[str, Floats]()
    for table in (t for t in tables if "y" in t):
        known = np.isfinite(table["y"])
        names, own = table["ids"][known], signs(table["y"][known], table.get("classes"))
        y |= dict(zip(names, own, strict=True))
        ranks = hash_ids(names, KEY, f"order {strategy.run_seed}")
        rows.append([ids.index(i) for i in names[sort_order(ranks)]])
    targets = np.array([y.get(i, own[0] * np.nan) for i in ids])
    return rows, targets / tables[0].get("label_bound", 1.0), ids


def batch_of(seed: int, iteration: int, rows: int, size: int) -> list[int]:
    """Return the rows of a batch of FDSKL, in the order of the run."""
    digest = hashlib.blake2b(f"{seed}/batch/{iteration}".encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "little") >> 1)
    return sorted(rng.choice(rows, size=min(size, rows), replace=False).tolist())


def slopes(loss: str, f: Floats, y: Floats) -> Floats:
    """Return the derivatives of a loss by f."""
    if loss == "square":
        return 2.0 * (f - y)
    if loss == "logistic":
        return -y / (1.0 + np.exp(y * f))
    return -y * np.clip(1.0 - y * f, 0.0, 1.0)  # smooth hinge


def doubly_stochastic(found: Any, **changes: Any) -> Pairs:
    """FDSKL streaming: equation 7 of the paper, an active party after the other.

    ``changes`` are of the run's options.
    """
    tables = found.sites.tables
    of = {"decays": True, "step_schedule": "constant", "rounds": found.way.rounds}
    of |= {**found.strategy.options(), "loss": found.strategy.chosen_loss}
    of |= {**found.way.options, **changes}
    owners = [k for k, t in enumerate(tables) if "y" in t]
    rate, lam, new = of["step"], of["regularization"], of["directions"]
    drawn = [joint(found, k, of["rounds"] * new)[0] for k in owners]
    rows, targets, ids = run_order(found)
    alpha = [np.zeros((0, targets.shape[1])) for _ in owners]
    for t in range(1, of["rounds"] + 1):
        leader = (t - 1) % len(owners)
        places = batch_of(of["seed"], t, len(rows[leader]), of["batch"])
        batch, have = [rows[leader][i] for i in places], len(alpha[leader])
        f = sum(phi[batch, : len(a)] @ a for phi, a in zip(drawn, alpha, strict=True))
        step = rate / (1.0 + rate * lam * t) if of["step_schedule"] == "diminishing" else rate
        slope = slopes(of["loss"], f, targets[batch])
        fresh = drawn[leader][batch, have : have + new].T @ slope * (-step / new / len(batch))
        alpha = [a * (1.0 - step * lam * of["decays"]) for a in alpha]
        alpha[leader] = np.concatenate([alpha[leader], fresh])
    for k in owners:
        test = [ids.index(i) for i in tables[k]["ids_test"]]
        f = sum(phi[test, : len(a)] @ a for phi, a in zip(drawn, alpha, strict=True))
        yield outputs(found, tables[k]["ids_test"]), f * tables[0].get("label_bound", 1.0)


def gram(found: Any) -> Pairs:
    """Secure Gram: products of the pooled rows of items that enough of them have."""
    strategy, x = found.strategy, stacked(found.sites.tables)
    x = x[:, strategy.items_]
    yield strategy.gram_ * 2.0 ** (-2 * strategy.fraction_bits), x.T @ x
    yield strategy.metrics_["rows"], len(x)
    if strategy.encoding == "counts":
        counts = np.count_nonzero(stacked(found.sites.tables), axis=0)
        yield strategy.items_, np.flatnonzero(counts >= strategy.min_support)


def principal(found: Any) -> Pairs:
    """Kernel PCA: scikit-learn's, of the same features; a component has no sign."""
    strategy, tables = found.strategy, found.sites.tables
    width = np.array([strategy.options()["bandwidth"]], "<f8").tobytes()
    z = feature_map(width, 3, strategy.features, strategy.run_seed, "float64", "orthogonal")
    pooled = PCA(strategy.components, svd_solver="full").fit(z(stacked(tables))[:, 0])
    yield np.abs(strategy.model_["components"]), np.abs(pooled.components_)
    yield strategy.model_["shares"], pooled.explained_variance_ratio_
    ids = stacked(tables, "ids")
    expected = pooled.transform(z(stacked(tables))[:, 0])
    yield np.abs(outputs(found, ids)), np.abs(expected)


def pooled_figures(found: Any) -> Pairs:
    """Summary: means, deviations and skewness of all rows, groups and correlations."""
    strategy, x = found.strategy, stacked(found.sites.tables)
    known = [column[np.isfinite(column)] for column in x.T[:2]]
    yield strategy.model_["mean"], [column.mean() for column in known]
    yield strategy.model_["deviation"], [column.std(ddof=1) for column in known]
    yield strategy.model_["skewness"], [stats.skew(column, bias=False) for column in known]
    whole = x[np.isfinite(x).all(axis=1)]
    yield strategy.model_["correlations 0"][0, 1], np.corrcoef(whole.T)[0, 1]
    yield strategy.model_["counts ward"], [(x[:, 2] == 0).sum(), (x[:, 2] == 1).sum(), 0]
    test = strategy.details_["groups"]["tests"][0]
    groups = (x[x[:, 2] == k, 0] for k in (0, 1))
    yield (test["statistic"], test["p"]), stats.ttest_ind(*groups, equal_var=False)


def pooled_svm(found: Any) -> Pairs:
    """HierarchicalSVM: scikit-learn's optimum, by its objective and by what it gives rows."""
    strategy, tables = found.strategy, found.sites.tables
    owner = tables[-1] if strategy.partition == "vertical" else None
    x, y = _pooled_rows(tables, owner)
    scale = (x.mean(axis=0), x.std(axis=0)) if strategy.scale == "standard" else (0.0, 1.0)
    z = (x - scale[0]) / scale[1]
    kind, c = strategy.options()["model"], strategy.model()[1]["C"]
    classes = (owner or tables[0]).get("classes")
    w = balanced(y) if strategy.class_weight else np.ones(len(y))
    objective, coefs = 0.0, []
    for target in signs(y, classes).T:
        if kind == "logistic":
            fitted: Any = LogisticRegression(C=c, tol=1e-10, solver="newton-cholesky")
            fitted.fit(z, target, w)
        elif kind == "ridge":
            fitted = Ridge(alpha=1.0 / c).fit(z, target)
        else:
            fitted = SVC(kernel="linear", C=c, tol=1e-6).fit(z, target, w)
        weights, bias = np.ravel(fitted.coef_), float(np.ravel(fitted.intercept_)[0])
        f = z @ weights + bias
        loss = {"logistic": np.logaddexp(0.0, -target * f), "ridge": 0.5 * (target - f) ** 2}
        hinge = np.maximum(0.0, 1.0 - target * f)
        objective += 0.5 * weights @ weights + c * float(w @ loss.get(kind, hinge))
        coefs.append(f)
    yield strategy.metrics_["objective"] / objective, 1.0
    if owner is None:
        arrays = strategy.model()[0]
        f = x @ arrays["weights"].T + arrays["bias"]
        far = np.abs(coefs).max()
        yield f.T / far * 0.02, np.array(coefs) / far * 0.02


def _pooled_rows(tables: list[Table], owner: Table | None) -> tuple[Floats, Floats]:
    """Return features and labels of the rows to learn from, whoever holds which columns."""
    if owner is None:
        return stacked(tables), stacked(tables, "y")
    x = np.full((len(owner["ids"]), 4), np.nan)
    places = {name: k for k, name in enumerate(owner["ids"])}
    for t in tables:
        if t.get("x") is not None:
            known = np.isin(t["ids"], owner["ids"])
            at = [places[i] for i in t["ids"][known]]
            x[np.ix_(at, [2 * t["group"], 2 * t["group"] + 1])] = t["x"][known]
    whole = ~np.isnan(x).any(axis=1)
    return x[whole], owner["y"][whole]


def intersections(found: Any) -> Pairs:
    """Align: plain intersections of sets of ids, by the server and by the tags in files."""
    ids = [[*t["ids"], *t.get("ids_test", ())] for t in found.sites.tables]
    files = [AlignmentTags.load(found.sites.folder / str(k) / "tags.npz") for k in range(len(ids))]
    tags = [dict(zip(n, f.tags_of(n), strict=True)) for f, n in zip(files, ids, strict=True)]
    for k, overlap in found.strategy.overlaps_.items():
        yield overlap.rows, len(ids[k])
        yield overlap.in_all, len(set.intersection(*map(set, ids)))
        for j, shared in overlap.shared.items():
            yield shared, len({*ids[k]} & {*ids[j]})
            yield len({*tags[k].values()} & {*tags[j].values()}), shared
            yield len(tags[k].items() & tags[j].items()), shared


def pooled_ranges(found: Any) -> Pairs:
    """Ranges: mean and deviations of the pooled rows of a block; its own of a block of one."""
    tables = found.sites.tables
    for k, table in enumerate(tables):
        x = stacked([t for t in tables if t["block"] == table["block"]])
        columns = [c for c in range(x.shape[1]) if table.get("kinds", {}).get("abc"[c]) is None]
        alone = sum(t["block"] == table["block"] for t in tables) == 1
        middle, spread = np.nanmean(x, axis=0), 4.0 * np.nanstd(x, axis=0)
        low, high = (x.min(0), x.max(0)) if alone else (middle - spread, middle + spread)
        path = found.sites.folder / str(k) / "ranges.json"
        if path.exists():
            names = table.get("columns", tuple(str(c) for c in range(x.shape[1])))
            got = read_ranges(names, path)
            yield got[0][columns], low[columns]
            yield got[1][columns], high[columns]
        elif not alone:
            yield found.strategy.ranges_[table["block"]], np.stack([low, high])[:, columns]


def square_step(x: Floats, w: Floats) -> tuple[Floats, float]:
    """Return w after a step, and its loss."""
    e = x @ w - x @ [1.0, -2.0, 0.5]
    return w - 0.1 * x.T @ e / len(x), float(e @ e / len(x))


def plain_average(found: Any) -> Pairs:
    """FedAvg of Flower, in plain: the mean of the nodes' models, weighed by their rows."""
    w, rows = np.zeros(3), [t["x"] for t in found.sites.tables]
    for number in range(1, (found.way.rounds or 0) + 1):
        steps = [square_step(x, w) for x in rows]
        sizes = [len(x) for x in rows]
        loss = np.average([step[1] for step in steps], weights=sizes)
        yield found.result.train_metrics_clientapp[number]["loss"], loss
        w = np.average([step[0] for step in steps], axis=0, weights=sizes)
    yield found.result.arrays.to_numpy_ndarrays()[0], w


# -- a plain solver


def nearest(point: Floats) -> Floats:
    """Return the nearest point of the simplex."""
    falling = np.sort(point)[::-1]
    levels = (np.cumsum(falling) - 1.0) / np.arange(1, point.size + 1)
    return np.maximum(point - levels[np.flatnonzero(falling > levels)[-1]], 0.0)


def over_simplex(quadratic: Floats, linear: Floats) -> Floats:
    """Minimise a^T Q a - 2 a^T c over the simplex, the program of CF-KOMD, by projected gradients.

    Accelerated; restarted when it turns back.
    """
    a = y = np.full(linear.size, 1.0 / linear.size)
    step, t = 1.0 / np.linalg.eigvalsh(quadratic)[-1], 1.0
    for _ in range(30_000):
        new = nearest(y - step * (quadratic @ y - linear))
        if (y - new) @ (new - a) > 0.0:
            t = 1.0
        after = (1.0 + np.sqrt(1.0 + 4.0 * t * t)) / 2.0
        y, moved = new + (t - 1.0) / after * (new - a), np.abs(new - a).max()
        a, t = new, after
        if moved < 1e-16:
            break
    return a
