"""What whole runs release: figures of held-out rows, no rare value, noise, no more than a share."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from conversation import asked, forgetful
from flwr.app import Context
from identities import pin_identities, pinned
from numpy.typing import NDArray
from pooled import outputs, stacked
from refusals import refused, refuses
from scipy import stats
from scipy.spatial.distance import cdist
from sklearn import metrics
from sklearn.decomposition import PCA
from zoo import WAYS, Found, Table, fit, hospitals, quiet
from zoo import fit as fit_way

from fedkern_flwr import strategies
from fedkern_flwr.align.column_ranges import Block
from fedkern_flwr.clients import HybridKernelClient, KernelPCAClient, fed_cg
from fedkern_flwr.encoding.columns import BUCKETS, HASHED, bucket_of, column_key
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.hybrid.landmarks import draw_landmarks
from fedkern_flwr.judging.figures import Calibration, bins_of, calibrating
from fedkern_flwr.kernels.random_features import feature_map
from fedkern_flwr.method import Ask, MethodClient, PrivateMethod, Sum, answers, contributes
from fedkern_flwr.privacy.accounting import check_accountant
from fedkern_flwr.simulations import Fault, FaultPlan, simulate
from fedkern_flwr.simulations.attacks.held_out import named_rows
from fedkern_flwr.simulations.methods.experiment import run_entries
from fedkern_flwr.simulations.methods.registry import family
from fedkern_flwr.simulations.run.entries import Entry
from fedkern_flwr.strategies import FedCG, KernelPCA

Floats = NDArray[np.float64]
TWO = ("fed-cg", "fdskl", "hierarchical-svm")
THREE = ("fed-cg, classes", "fdskl, classes", "hierarchical-svm, classes")
NUMBERS = ("fed-cg, numbers", "fdskl, numbers", "hierarchical-svm, ridge")


def judged(found: Found) -> tuple[Floats, Floats, NDArray[np.bool_], Calibration]:
    """Return outputs and labels of held-out rows, which calibrate (half at each party), and what.

    Rows without ids go by their place in the table of their party.
    """
    out, y, half = list[Any](), list[Any](), list[Any]()
    for k, table in enumerate(found.sites.tables):
        if table.get("y_test") is None:
            continue
        own = table.get("ids_test", [f"held-out row {i}" for i in range(len(table["y_test"]))])
        out += [found.predictions[f"{k} {name}"] for name in own]
        y += list(table["y_test"])
        half += calibrating(own).tolist()
    made = Calibration.read(found.strategy.model()[1]["calibration"], np.shape(out)[1])
    assert made is not None
    return np.array(out), np.array(y, float), np.array(half), made


@pytest.mark.parametrize("name", [*TWO, *THREE])
def test_classes(name: str) -> None:
    run = quiet(name)
    found, held_out = run.strategy.metrics_, run.strategy.result()["held_out"]
    out, y, half, made = judged(run)
    scores = out if name in THREE else np.hstack([-out, out])
    own, chosen = y[:, None] == np.arange(scores.shape[1]), scores.argmax(axis=1)
    there = np.flatnonzero(own.any(axis=0) & ~own.all(axis=0))
    area = np.mean([metrics.roc_auc_score(own[:, k], scores[:, k]) for k in there])
    assert abs(found["test_auc"] - area) <= found["test_auc_bin"] + 1e-12
    assert found["test_accuracy"] == pytest.approx(metrics.accuracy_score(y, chosen))
    balanced = metrics.balanced_accuracy_score(y, chosen)
    assert found["test_balanced_accuracy"] == pytest.approx(balanced)
    matrix = metrics.confusion_matrix(y, chosen, labels=range(scores.shape[1]))
    assert held_out["confusion"] == matrix.tolist()
    sets = made.sets(out)
    assert found["test_set_size"] == pytest.approx(sets[~half].sum(1).mean())
    assert found["test_set_coverage"] == pytest.approx(sets[own][~half].mean())
    if name in TWO:
        assert held_out["bins"] == bins_of(len(y), 2) == 4
        q = made.probabilities(out)[~half, 1]  # of the scores themselves, and not of their bins
        assert found["test_log_loss"] == pytest.approx(metrics.log_loss(y[~half], q), abs=0.1)
        assert sets[own][half].mean() >= 0.9


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str) -> None:
    run = fit(name, level=0.6)
    out, y, half, made = judged(run)
    found, errors = run.strategy.metrics_, np.abs(out[:, 0] - y)
    assert found["test_mae"] == pytest.approx(metrics.mean_absolute_error(y, out[:, 0]))
    assert found["test_r2"] == pytest.approx(metrics.r2_score(y, out[:, 0]))
    assert (made.level, 2.0 * made.widths[0]) == (0.6, found["test_interval_width"])
    exact = np.sort(errors[half])[math.ceil((half.sum() + 1) * 0.6) - 1]
    assert exact <= made.widths[0] <= 4.0 * exact  # of few bins
    inside = errors <= made.widths[0]
    assert found["test_interval_coverage"] == pytest.approx(inside[~half].mean())


FEW: Table = {"num_rounds": 4}  # as good as all, where no model is compared


@pytest.mark.promise("few-rows-no-histogram")
@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("bins", [64, 3])
def test_nodes_refuse_too_many_bins(name: str, bins: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for room in ("fed_cg_system", "fdskl", "hierarchical_runs"):
        monkeypatch.setattr(f"fedkern_flwr.strategies.{room}.bins_of", lambda *_: bins)
    refuses("FK-ORDER-BINS", fit, name, start=FEW)


@pytest.mark.parametrize("name", [*TWO, *NUMBERS])
def test_nodes_write_probabilities_and_intervals_with_a_saved_model(name: str) -> None:
    run = WAYS[name].sites().fit()
    first = run.predictions
    arrays, meta = run.strategy.model()
    again = type(run.strategy).of_model(meta)
    model = {"meta": meta} if name.startswith("fdskl") else {"arrays": arrays, "meta": meta}
    again.predict_at_nodes(run.sites.grid(), **model)
    rows = run.sites.rows()
    made = Calibration.read(meta["calibration"], 1)
    assert made is not None
    assert rows.keys() == first.keys()
    out = np.array([[float(row["output_0"])] for row in rows.values()])
    np.testing.assert_allclose(out, [*first.values()], atol=1e-9)
    if name in NUMBERS:
        ends = np.array([[float(row[end]) for end in ("low", "high")] for row in rows.values()])
        np.testing.assert_allclose(np.diff(ends), 2.0 * made.widths[0])
        np.testing.assert_allclose(ends.sum(axis=1), 2.0 * out[:, 0], atol=1e-12)
        return
    q = [[float(row[f"probability_{k}"]) for k in (0, 1)] for row in rows.values()]
    np.testing.assert_allclose(q, made.probabilities(out))
    chosen = ["|".join(np.array(["0", "1"])[here]) for here in made.sets(out)]
    assert [row["set"] for row in rows.values()] == chosen


# -- FedCG's variance


def test_variances_are_those_of_bayesian_ridge() -> None:
    sites = WAYS["fed-cg, numbers"].sites()
    sites.tables = hospitals("numbers")[:3]  # without centres: a model of two columns
    run = sites.fit(variance=True, gamma=2.0)
    arrays, meta = run.strategy.model()
    x, tests, y = (np.concatenate([t[n] for t in sites.tables]) for n in ("x", "x_test", "y_test"))
    ids = np.concatenate([t["ids_test"] for t in sites.tables])
    box = np.tile([0.0, 1.0], (2, 1))
    landmarks = draw_landmarks(sites.tables[0]["landmark_seed"], 8, box, None)
    k, k_test = (np.exp(-2.0 * cdist(part, landmarks, "sqeuclidean")) for part in (x, tests))
    inverse = np.linalg.inv(k.T @ k + run.strategy.regularization_ * np.eye(8))
    noise = ((outputs(run, ids)[:, 0] - y) ** 2).mean()
    assert meta["noise"] == [pytest.approx(noise)]
    expected = np.sqrt(noise * (1.0 + np.einsum("ij,jk,ik->i", k_test, inverse, k_test)))
    FedCG.of_model(meta).predict_at_nodes(sites.grid(), arrays, meta)
    written = {name.partition(" ")[2]: row for name, row in sites.rows().items()}
    found = [float(written[name]["deviation_0"]) for name in ids]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert any("K^T K" in line for line in run.strategy.privacy()["hospitals_see"][-1:])


def test_without_the_option_the_model_does_not_hold_the_sums() -> None:
    arrays, meta = quiet("fed-cg, numbers").strategy.model()
    assert set(arrays) == {"coefficients", "gammas"}
    assert meta["noise"] == []


# -- how often intervals and sets hold what they should, on real tables and with defaults


def splits(data: str) -> list[dict[str, float]]:
    """Return the metrics of ten splits."""
    own = family("fed-cg")
    values = {option.name: option.default for option in own.parameters()}
    values |= {"data": data, "hospitals": 3, "resplit": True}
    prepared = own.prepare(own.settings.from_values(values))
    entry = Entry("FedCG", "fed-cg", {"missing": "error"})
    run_entries([entry], prepared, engine="in-process", seed=0, runs=10)
    return [result["metrics"] for result in entry.results]


LONG = [pytest.param(data, marks=pytest.mark.long) for data in ("breast-cancer", "digits")]


@pytest.mark.parametrize("data", ["wine", *LONG])
def test_sets_hold_the_class_as_often_as_they_say(data: str) -> None:
    """Of wine's 53 held-out rows 27 calibrate: 26 of them have to be in their sets.

    A threshold is the edge of a bin of scores, and a bin has 64 rows: few rows are covered more.
    """
    found = splits(data)
    mean = np.mean([m["test_set_coverage"] for m in found])
    assert 0.88 <= mean <= {"wine": 0.99, "breast-cancer": 0.97, "digits": 0.95}[data]
    if data == "digits":  # the others have too few rows to tell
        before, after = (
            np.mean([m[f"test_calibration_error{when}"] for m in found]) for when in ("_before", "")
        )
        assert after < 0.7 * before


# -- what few rows have is in no sum of products of columns, and no count of names


SECRET = bytes(range(32))


def words(*columns: list[str]) -> list[dict[str, Any]]:
    """Return the tables of nodes that hold one column of text, with gaps, and one of numbers."""
    tables: list[dict[str, Any]] = []
    for k, column in enumerate(columns):
        known = sorted(set(column) - {""})
        codes = [known.index(one) if one else np.nan for one in column]
        x = np.column_stack([np.arange(len(column)) + k, codes])
        more = {"columns": ("a", "c"), "kinds": {"c": "category"}, "categories": {"c": known}}
        tables.append({"x": x, "category_key": SECRET, **more})
    return tables


def opened_counts(folder: Path, tables: Any, monkeypatch: Any, **options: Any) -> tuple[Any, Any]:
    """Run ranges at guarded nodes; return the strategy and the counts that its server opens."""
    totals, read = [], Block.read_fine

    def keep(block: Block, total: Any, *more: Any) -> Any:
        totals.append(np.rint(block.rows * total[2:]).astype(int))
        return read(block, total, *more)

    monkeypatch.setattr(Block, "read_fine", keep)
    sites = WAYS["ranges, encoders"].sites(folder, guarded=True)
    sites.tables = tables
    strategy = sites.fit(**options).strategy
    return strategy, totals[0]


@pytest.mark.promise("rare-names")
def test_a_holder_of_the_key_finds_no_name_of_few_rows(tmp_path: Path, monkeypatch: Any) -> None:
    """He gives the key to the server, which tests a name: one patient's, and a frequent one."""
    common = ["flu"] * 20 + ["gout"] * 9
    columns = [*common, "Ada"], [*common, "Bob", *["rash"] * 4], [*common, "Eve", *["rash"] * 4]
    strategy, counts = opened_counts(tmp_path, words(*columns), monkeypatch)
    key = column_key(SECRET, "c")
    bucket = {name: bucket_of(key, name) for name in ("Ada", "Eve", "rash", "flu")}
    counts = counts[len(counts) - BUCKETS - 1 :]
    assert {name: counts[place] for name, place in bucket.items()} == {
        "Ada": 0, "Eve": 0, "rash": 0, "flu": 61  # Ada is counted as the most frequent one
    }  # fmt: skip
    assert counts[-1] == 10  # rare ones of the two nodes that have five rows of them
    assert not ((counts > 0) & (counts < 5)).any()
    (encoder,) = strategy.encoders_.values()
    assert encoder.columns[1].outputs == ("1[1]", "1[2]", "1[other]")


def test_columns_of_rare_names_alone_are_no_error(tmp_path: Path, monkeypatch: Any) -> None:
    names = iter(map(str, range(100)))
    few = [["one"] * 3 + [""] * 6] * 2 + [["two"] * 4 + [""] * 6]
    many = [[next(names) for _ in range(20)] for _ in range(3)]
    for k, columns in enumerate((few, many)):
        strategy, counts = opened_counts(tmp_path / str(k), words(*columns), monkeypatch)
        assert counts[len(counts) - BUCKETS - 1 :].nonzero()[0].tolist() == [BUCKETS] * k
        (encoder,) = strategy.encoders_.values()
        assert len(encoder.columns[1].outputs) == 0


@pytest.mark.promise("rare-differences")
def test_runs_differ_by_no_count_of_few_rows(tmp_path: Path, monkeypatch: Any) -> None:
    """A lot of new rows is large, and one of them alone may have a category, or none."""
    rows = ["flu"] * 40 + ["gout"] * 19
    key, found = column_key(SECRET, "c"), []
    lots = [[""], ["flu"] * 599 + ["gout"], ["flu"] * 590 + ["gout"] * 4 + ["rash"] * 4 + [""] * 2]
    for seed, lot in enumerate(lots):
        rows = rows + lot
        tables = words(rows, *[["flu"] * 40 + ["gout"] * 20] * 2)
        _, counts = opened_counts(tmp_path, tables, monkeypatch, seed=seed)
        counts = counts[len(counts) - BUCKETS - 1 :]
        assert sum(counts) == len(rows) + 120  # gaps of few rows are not told either
        places = [*(bucket_of(key, name) for name in ("flu", "gout", "rash")), BUCKETS]
        found.append(counts[places].tolist())
    assert found == [[121, 59, 0, 0], [721, 59, 0, 0], [1309, 64, 0, 7]]


def test_hashed_categories_are_counted_by_nobody(tmp_path: Path, monkeypatch: Any) -> None:
    """Not even frequent ones; a column of rare ones is encoded as well."""
    common, names = ["flu"] * 20 + ["gout"] * 9 + [""] * 6, iter(map(str, range(100)))
    many = [[next(names) for _ in range(20)] for _ in range(3)]
    for k, (columns, known) in enumerate((([common] * 3, 87), (many, 60))):
        plain, _ = opened_counts(tmp_path / f"plain-{k}", words(*columns), monkeypatch)
        strategy, counts = opened_counts(
            tmp_path / str(k), words(*columns), monkeypatch, categories="hashing"
        )
        assert counts[-1] == known
        privacy = [one.privacy()["sums"][-1]["numbers"] for one in (plain, strategy)]
        assert len(counts) < BUCKETS
        assert privacy[1] < privacy[0]
        (encoder,) = strategy.encoders_.values()
        assert sum(name.startswith("1[hash") for name in encoder.columns[1].outputs) == HASHED


def test_counts_name_blood_groups() -> None:
    """The secret hides no name that is known by its share; docs/security.md has the figures."""
    found = {
        rows: np.mean([named_rows(rows, seed) for seed in range(200)]) for rows in (1000, 10000)
    }
    assert 0.72 < found[1000] < 0.82
    assert 0.94 < found[10000] < 0.98


@pytest.mark.promise("rare-products")
@pytest.mark.parametrize("sampling", ["N", "C"])
def test_covariances_show_no_rare_value(tmp_path: Path, monkeypatch: Any, sampling: str) -> None:
    """The products of a column with a single 1 would be that patient's other columns."""
    opened, read = [], fed_cg.read_moments
    monkeypatch.setattr(fed_cg, "read_moments", lambda *one: opened.append(one[0]) or read(*one))
    sites = WAYS["fed-cg"].sites(tmp_path, guarded=True)
    for table in sites.tables[:3]:
        for name in ("x", "x_test"):
            table[name] = np.column_stack([table[name][:, 0], np.zeros(len(table[name]))])
    sites.tables[1]["x"][5, 1] = 1.0
    sites.fit(sampling=sampling)
    rows, first, rare, *products = opened[0]
    assert rows == 48.0
    assert (rare, *products[1:]) == (0.0,) * len(products)  # before, products[1] was x[5, 0]
    assert abs(first - sum(table["x"][:, 0].sum() for table in sites.tables[:3])) < 1e-6


def test_a_row_that_many_hospitals_name_is_one_row(monkeypatch: Any) -> None:
    """Else a value that one row has would be that of seven, and not rare."""
    one = asked("fed-cg, normal landmarks", "hybrid-moments at hospital: moments")
    one.client = forgetful(one.client)  # of sums of other tests
    summed, moments = [], fed_cg.moment_sums
    monkeypatch.setattr(
        fed_cg, "moment_sums", lambda x, *more: summed.append(x) or moments(x, *more)
    )
    assert one.try_out() == ("", False)
    own = next(rows for rows in one.request.rows if (rows >= 0).any())
    some, few = own[own >= 0][:5], len(one.request.hospitals)
    more = {"hospitals": np.arange(100, 106), "trains": np.full(6, 5), "starts": np.zeros(6)}
    more["stops"] = np.zeros(6)
    wide = {
        name: np.append(getattr(one.request, name), added).astype(np.int32)
        for name, added in more.items()
    }
    forged = replace(one.request, rows=(*one.request.rows, *[some] * 6), **wide)
    assert one.try_out(request=forged) == ("", False)
    assert len(forged.rows) == few + 6
    np.testing.assert_array_equal(*summed)


def test_sums_of_a_stream_show_no_row_with_a_rare_value(tmp_path: Path, monkeypatch: Any) -> None:
    opened, step = [], strategies.POFRLS.step

    def keep(self: Any, total: Any, answers: int) -> None:
        opened.append(total)
        step(self, total, answers)

    monkeypatch.setattr(strategies.POFRLS, "step", keep)
    policy = NodePolicy(allow_small_sums=True, min_own_rows=0)
    sites = WAYS["pof-rls, secure"].sites(tmp_path, guarded=True, policy=policy)
    for table in sites.tables:
        table["x"][:, 2] = 0.0
    sites.tables[1]["x"][9, 2] = 0.5
    sites.fit()
    assert abs(opened[-1][0]) > 0.1
    for total in opened:
        products = np.zeros((4, 4))
        products[np.triu_indices(4)] = total[:10]
        assert not products[:, 2].any()  # before, divided by products[2, 3] they were that row


# -- a budget of privacy of methods of one's own, and kernel PCA, with a budget and without


CLIENTS, ALARM = 6, 1e-9  # the noise cannot be seeded: probability of a false alarm
X = np.random.default_rng(0).random((CLIENTS, 400, 3))


@pytest.mark.parametrize("name", ["hierarchical-svm, private", "kernel-pca, private"])
def test_the_result_has_the_budget_and_what_nodes_say_tells_no_values(name: str) -> None:
    """Two tables of one size whose columns have few and many values."""
    found = []
    for kept in (np.asarray, np.round):
        sites = WAYS[name].sites()
        for table in sites.tables:
            table["x"] = kept(table["x"])
        made = sites.fit().strategy
        told = [vars(replace(p, public_key=b"", nonce="")) for p in made.parties_.values()]
        found.append(repr(told))
    assert found[0] == found[1]
    budget = made.result()["privacy"]["budget"]
    assert budget["epsilon"] == made.privacy_epsilon
    assert budget["releases"]
    assert all(0.0 < one["epsilon"] <= budget["epsilon"] for one in budget["releases"])
    assert all(one["mechanism"] == "skellam" for one in budget["releases"])


# -- a method of one's own


TOTALS = [Sum(f"numbers {k}", bound=1.0, sensitivity=1.0) for k in range(2)]
SHAPES = {"all": (200,)}


class Total(PrivateMethod):
    """Sums two hundred numbers, as often as it is told."""

    method, title, times = "total", "Total", 1

    def rounds(self, parties: Any) -> Any:
        for k in range(self.times):
            found = yield TOTALS[k](SHAPES)
            self.model_ = {"all": found["all"]}
        return {}


class TotalClient(MethodClient):
    @contributes(TOTALS[0])
    def first(self) -> Any:
        return {"all": np.full(200, len(self.x) / 200)}

    @contributes(TOTALS[1])
    def second(self) -> Any:
        return {"all": np.full(200, len(self.x) / 300)}


def client(context: Context, kind: type[MethodClient] = KernelPCAClient) -> MethodClient:
    k = int(context.node_config["partition-id"])
    return kind(context, X[k, :300], x_test=X[k, 300:])


def run(strategy: Any, kind: type[MethodClient] = TotalClient, **more: Any) -> Any:
    simulate(strategy, lambda context: client(context, kind), CLIENTS, **more)
    return strategy


@pytest.mark.promise("fourier-noise")
@pytest.mark.parametrize("lost", [(), (1, 4)])
def test_whoever_survives_there_is_the_noise_that_is_told(lost: tuple[int, ...]) -> None:
    faults = FaultPlan([(k, "method", 1, Fault("vanished")) for k in lost])
    made = run(Total(privacy_epsilon=2.0, threshold=4), faults=faults)
    budget = made.result()["privacy"]["budget"]
    (told,) = budget["releases"]
    noise = made.model_["all"] - 1.5 * (CLIENTS - len(lost))
    apart = abs(noise.std() / told["deviation"] - 1)
    assert apart < stats.norm.isf(ALARM) * math.sqrt(0.51 / noise.size)
    share = told["deviation"] / told["declared_deviation"]
    assert share == pytest.approx(math.sqrt((CLIENTS - len(lost)) / (4 - 1)))
    assert 1.99 < told["epsilon"] <= 2.0


def test_sums_about_the_same_rows_share_the_budget_and_no_more_are_made_than_were_said() -> None:
    class Twice(Total):
        times, releases = 2, 2

    class TwiceClient(TotalClient):
        releases: ClassVar[int] = 2

    budget = run(Twice(privacy_epsilon=2.0), TwiceClient).result()["privacy"]["budget"]
    one, other = budget["releases"]
    assert one["epsilon"] == other["epsilon"] < 1.5


class Asks(Total):
    """A server that sums, or asks, what it should not."""

    step: Any = Sum("numbers 0", bound=1.0)(SHAPES)  # of no sensitivity

    def rounds(self, parties: Any) -> Any:
        yield self.step


class SilentClient(MethodClient):
    @contributes(Sum("numbers 0", bound=1.0))
    def first(self) -> Any:
        return {"all": np.zeros(200)}


class Talkative(TotalClient):
    @answers("mean")
    def mean(self) -> Any:
        return {"mean": float(self.x.mean())}


def asking(step: Any) -> Any:
    return type("Asks", (Asks,), {"step": step})


@pytest.mark.parametrize(
    ("method", "kind", "code"),
    [
        (Asks, TotalClient, "FK-BUDGET-SENSITIVITY"),
        (Total, SilentClient, "FK-BUDGET-METHOD"),
        (
            asking(Sum("numbers 0", bound=1.0, sensitivity=0.1)(SHAPES)),
            TotalClient,
            "FK-ORDER-NOISE",
        ),
        (asking(Ask("mean")), Talkative, "FK-BUDGET-ANSWER"),
    ],
    ids=["no sensitivity", "no noise at the clients", "a smaller sensitivity", "an answer"],
)
def test_what_would_leave_without_its_noise_is_refused(method: Any, kind: Any, code: str) -> None:
    refuses(code, run, method(privacy_epsilon=2.0, attempts=1), kind)


# -- kernel PCA


def test_a_node_without_the_accountant_is_named_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "fedkern_flwr.node.guarded.check_accountant"

    def lacking(party: str) -> None:
        with monkeypatch.context() as there:
            if party == "partition 2":
                there.setitem(sys.modules, "dp_accounting", None)
            check_accountant(party)

    monkeypatch.setattr(place, lacking)
    with refused("FK-PACKAGE-MISSING") as why:
        run(KernelPCA(privacy_epsilon=2.0, features=5, seed=0), KernelPCAClient)
    assert why.value.party == "partition 2"
    assert why.value.exit_code == 2


@pytest.mark.parametrize("phase", ["", "method", "always"])
def test_components_are_those_of_the_rows_that_were_summed(phase: str) -> None:
    """Who vanished then is there again for the projections, or goes without."""
    kind = Fault("vanished" if phase == "method" else "lost request")
    plan = FaultPlan([(2, "method", 1 if phase == "method" else None, kind)]) if phase else None
    more: Any = {"threshold": 3, "attempts": 2} if phase else {}
    found = fit_way("kernel-pca", faults=plan, start={"timeout": 0.2}, **more)
    strategy, tables = found.strategy, found.sites.tables
    packed = np.array([1.2], "<f8").tobytes()
    z = feature_map(packed, 3, 4, strategy.run_seed, "float64", "orthogonal")
    summed = [t for k, t in enumerate(tables) if not phase or k != 2]
    oracle = PCA(strategy.components, svd_solver="full").fit(z(stacked(summed))[:, 0])
    assert strategy.metrics_["rows"] == 15 * len(summed)
    for name, expected in (
        ("components", oracle.components_),
        ("shares", oracle.explained_variance_ratio_),
    ):
        got = np.abs(strategy.model_[name])
        np.testing.assert_allclose(got, np.abs(expected), rtol=0, atol=1e-9)
    seen = [t for k, t in enumerate(tables) if phase != "always" or k != 2]
    left = z(stacked(seen, "x_test"))[:, 0] - oracle.mean_
    lost = ((left - (left @ oracle.components_.T) @ oracle.components_) ** 2).sum()
    explained = 1.0 - lost / (left**2).sum()
    assert strategy.metrics_["test_explained"] == pytest.approx(explained, abs=1e-9)


# -- default sizes fit the share of its rows' unknowns that a node lets a fitted_by open


NODES, ROWS, COLUMNS = 3, 200, 30
RNG = np.random.default_rng(0)
TABLE = RNG.random((NODES, ROWS, COLUMNS))
LABELS = np.where(TABLE[..., 0] + TABLE[..., 1] ** 2 > 0.8, 1.0, -1.0)


@pytest.fixture
def fitted_by(tmp_path: Path) -> Any:
    """Run a strategy with pinned nodes that keep their folders; with share 1 they simulate."""
    pin_identities(tmp_path, NODES)

    def start(strategy: Any, share: float) -> Any:
        def client_fn(context: Context) -> Any:
            k = int(context.node_config["partition-id"])
            context.node_config["simulation"] = share == 1.0
            own = {"state_dir": tmp_path / str(k)} if share == 1.0 else pinned(tmp_path, k)
            if isinstance(strategy, KernelPCA):
                return KernelPCAClient(context, TABLE[k], **own)
            own |= {"classes": (-1.0, 1.0), "block": "a"}
            return HybridKernelClient(context, TABLE[k], LABELS[k], **own)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedkern_flwr.guard.opened.planned_share", lambda *_: share)
            simulate(strategy, client_fn, NODES)
        return strategy

    return start


def released(strategy: Any) -> int:
    """Return the numbers about rows to learn from that the server opened."""
    sums = strategy.privacy()["sums"]
    return sum(s["numbers"] for s in sums if s["name"].startswith(("equations", "mom", "mean")))


@pytest.mark.parametrize(("share", "options", "landmarks", "by"), [
    (0.2, {}, 67, "generalised"),  # not 100 with folds, or with a second width
    (0.02, {}, 20, "generalised"),
    (0.5, {"landmarks": 15}, 15, "5 folds"),  # as stated
    (0.2, {"gamma": 0.1, "regularization": 1e-2}, 67, ""),
    (1.0, {}, 155, "generalised"),
])  # fmt: skip
def test_fedcg_takes_the_landmarks_folds_and_widths_that_fit(
    share: float, options: Any, landmarks: int, by: str, fitted_by: Any
) -> None:
    fitted = fitted_by(FedCG(**options), share)
    assert fitted.landmarks_ == landmarks
    assert fitted.tuned_.get("by", "").startswith(by)
    assert released(fitted) <= share * 400 * (COLUMNS + 1)
    assert bool(fitted.result().get("notes")) == (share < 1.0)


@pytest.mark.parametrize(
    ("share", "options", "features"),
    [(0.01, {"components": 5}, 7), (0.2, {"features": 40}, 40), (1.0, {}, 50)],
)
def test_kernel_pca_takes_what_fits(
    share: float, options: Any, features: int, fitted_by: Any
) -> None:
    fitted = fitted_by(KernelPCA(**options), share)
    assert len(fitted.model_["mean"]) == 2 * features
