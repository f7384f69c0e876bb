"""A saved model predicts alike everywhere: in Python, by the command, saved again, at the server.

What a run predicted of its held-out rows, its model predicts when the table and all that nodes kept
are gone. Of other formats see tests/simulations/test_export.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from refusals import refused, refuses
from sklearn.svm import SVC
from zoo import LIKE_ANOTHER, WAYS, quiet

import fedkern_flwr
from fedkern_flwr import strategies
from fedkern_flwr.clients import OnlineKernelClient
from fedkern_flwr.fitted import FittedModel, votes
from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.simulations.cli import run as run_command
from fedkern_flwr.simulations.methods import dealt_data, online
from fedkern_flwr.simulations.methods.gram import choose_machine
from fedkern_flwr.simulations.methods.new_rows import read_predictions
from fedkern_flwr.tables import load_table

pytestmark = pytest.mark.usefixtures("in_tmp")
ROWS = 90
ONLINE = "--clients 3 --rounds 16 --test-size 0.3"
GRAM, SVM = "--encoding fixed-point", "hierarchical-svm --users 4 --rounds 12"
RUNS: dict[str, list[str]] = {
    name: typed.split()
    for name, typed in {
        "fed-cg": "fed-cg --landmarks 16",
        "fed-cg numbers": "fed-cg --landmarks 8 --label cost --variance",
        "fed-cg laplacian": "fed-cg --landmarks 20 --kernel laplacian --no-own-block",
        "fed-cg normal": "fed-cg --landmarks 20 --sampling N --gamma 0.3 --label cost",
        "fdskl": "fdskl --features 40",
        "fdskl laplacian": "fdskl --features 60 --kernel laplacian --phase-bits 16",
        "fdskl streaming": "fdskl --schedule streaming --rounds 20 --active-parties 2 --label cost",
        "secure-gram": f"secure-gram {GRAM}",
        "gram ridge": f"secure-gram {GRAM} --kernel rbf --gamma 1.5 --cost 10 --learner ridge",
        "hierarchical-svm": SVM,
        "hierarchical-svm rbf": f"{SVM} --model rbf --features 30 --gamma 0.001",
        "vertical": f"{SVM} --partition vertical",
        "vertical ridge": f"{SVM} --partition vertical --model ridge --label cost",
        "pof-mkl": f"pof-mkl --label cost {ONLINE}",
        "pof-rls": f"pof-rls --label cost {ONLINE}",
        "local-only": f"local-only --label cost {ONLINE}",
        "per-fed-avg": f"per-fed-avg --label cost --inner-step 0.1 {ONLINE}",
    }.items()
}


def messy(tables: Any) -> dict[str, Any]:
    """Write a table of text, dates, gaps and a constant column, three named classes; return it."""
    rng = np.random.default_rng(11)
    age, dose = rng.normal(50.0, 9.0, ROWS), rng.lognormal(1.0, 0.8, ROWS)
    town = rng.choice(["Ulm", "Köln", "a b,c"], ROWS)
    risk = age + 8.0 * (town == "Ulm") + 3.0 * dose
    columns = {
        "id": [f"p{k}" for k in range(ROWS)], "age": np.where(rng.random(ROWS) < 0.1, np.nan, age),
        "town": town, "dose": dose, "seen": [f"2024-0{1 + k % 9}-1{k % 7}" for k in range(ROWS)],
        "same": [1] * ROWS,
        "outcome": np.array(["bad", "fair", "good"])[np.digitize(risk, [55.0, 66.0])],
        "cost": 1000.0 + 20.0 * risk,
    }  # fmt: skip
    tables.write("train.csv", columns)
    return columns


@pytest.fixture
def prepared(monkeypatch: Any) -> list[Any]:
    """Return where runs leave their data, which know what simulated parties predicted."""
    prepared: list[Any] = []

    def prepare(config: dict[str, Any]) -> Any:
        prepared.append(prepare_data(config))
        return prepared[-1]

    prepare_data = run_command.prepare_data
    monkeypatch.setattr(run_command, "prepare_data", prepare)
    return prepared


@pytest.fixture(params=RUNS)
def ran(request: Any, tables: Any, commands: Any, prepared: list[Any]) -> Any:
    """Run a method; return its data, result and columns, when the table is gone."""
    columns, arguments = messy(tables), RUNS[request.param]
    label = [] if "--label" in arguments else ["--label", "outcome"]
    own = ["--data", "train.csv", "--id", "id", *label]
    result = commands.trained(*arguments, *own)
    Path("train.csv").unlink()
    shutil.rmtree("here/private_state")
    Path("here").rename("moved")
    return prepared[0], result, columns


@pytest.mark.promise("model-as-held-out")
def test_predictions_are_those_of_the_run(ran, tables, commands):
    """From a file, a data frame, a table and the command line; saved once more, or one client."""
    _, _, columns = ran
    check_held_out(*ran, tables, commands)
    model = fedkern_flwr.load_model("moved")
    turned = {"note": range(ROWS), **{name: columns[name] for name in reversed(columns)}}
    tables.write("new.csv", turned)  # columns in another order, and one more
    frame = pa.table({name: list(cells) for name, cells in columns.items()})
    first = model.predict("new.csv")
    assert len(first) == ROWS
    np.testing.assert_array_equal(model.predict(frame), first)
    table = load_table("new.csv", labelled=False, missing="keep", kinds=model.encoder.kinds)
    np.testing.assert_array_equal(model.predict(table), first)
    model.save("again.npz")
    assert Path("again.npz").stat().st_mode & 0o077 == 0
    assert Path("moved/predictor.npz").stat().st_mode & 0o077 == 0
    again = fedkern_flwr.load_model("again.npz")
    np.testing.assert_array_equal(again.predict("new.csv"), first)
    Path("alone").mkdir()
    Path("again.npz").rename("alone/again.npz")
    assert "90 predictions: alone/p" in commands.shown(
        "predict", "alone/again.npz", "--data", "new.csv", "--id", "id", "--out", "alone/p.csv"
    )
    out = ["--data", "new.csv", "--id", "id", "--out", "p.csv"]
    assert "90 predictions: p.csv" in commands.shown("predict", "moved", *out)
    made = tables.read("p.csv")
    assert tables.read("alone/p.csv") == made
    assert [row["id"] for row in made] == columns["id"]
    if model.classes_ is None:
        assert [float(row["prediction"]) for row in made] == first.tolist()
    else:
        assert model.classes_.tolist() == ["bad", "fair", "good"]
        assert [row["class"] for row in made] == first.tolist()
        heads = [f"probability_{name}" for name in model.classes_]
        shares = np.array([[float(row[head]) for head in heads] for row in made])
        np.testing.assert_array_equal(model.predict_proba("new.csv"), shares)
        np.testing.assert_allclose(shares.sum(axis=1), 1.0)
        sets = [set(model.classes_[row]) for row in model.predict_set("new.csv")]
        assert sets == [set(row["set"].split("|")) - {""} for row in made]
        assert np.mean(first == columns["outcome"]) > 0.5


def check_held_out(prepared, result, columns, tables, commands):
    """Rows that were held out get what the run found.

    Outputs of each, where simulated parties write them; else what they say of the model.
    """
    model, metrics = fedkern_flwr.load_model("moved"), result["metrics"]
    names = [name for name in columns if name not in ("id", model.meta["label"])]
    frame = pa.table({name: list(columns[name]) for name in names})
    if model.clients:
        kept = np.random.default_rng([0, 1]).permutation(ROWS)
        held = np.sort(kept[: round(0.3 * ROWS)])
        errors = []
        model.save("all.npz")
        for k, part in enumerate(np.array_split(held, model.clients)):
            found = model.of_client(k).predict(frame.take(part))
            named = {name: np.asarray(columns[name])[part] for name in names}
            tables.write("part.csv", named)
            model.of_client(k).save("moved/one.npz")  # beside another model
            of_one = ["--client", str(k)]
            for words in (["moved", *of_one], ["all.npz", *of_one], ["moved/one.npz"]):
                more = ["--data", "part.csv", "--out", "part-p.csv", "--force"]
                commands.shown("predict", *words, *more)
                written = [float(row["prediction"]) for row in tables.read("part-p.csv")]
                assert written == found.tolist()
            errors.append(found - columns["cost"][part])
        unit = model.meta["table"]["y_half_range"]
        error = np.mean((np.concatenate(errors) / unit) ** 2)
        assert error == pytest.approx(metrics["test_mse"], rel=1e-5)  # float32
        mean = np.mean([model.of_client(k).predict(frame) for k in range(3)], axis=0)
        np.testing.assert_allclose(model.predict(frame), mean, rtol=1e-9)
        assert np.ptp([model.of_client(k).predict(frame) for k in range(3)], axis=0).max() > 0.0
        return
    split = prepared.split(0)
    held = np.flatnonzero(~split.train)
    outputs, _ = model.outputs_of(model.features(frame.take(held)))
    written = read_predictions(prepared.predictions)
    if written:
        unit = model.meta["table"]["y_half_range"]
        middle = model.meta["table"]["y_middle"]
        expected = np.array([written[row] for row in held])
        near = 1e-6 * max(1.0, np.abs(expected).max())  # FDSKL's are float32
        np.testing.assert_allclose((outputs - middle) / unit, expected, rtol=0.0, atol=near)
    if model.classes_ is None:
        error = np.sqrt(np.mean((outputs[:, 0] - columns["cost"][held]) ** 2))
        assert error == pytest.approx(metrics["test_rmse"], rel=1e-6)
        if "streaming" not in str(result["config"]):  # whose parties calibrate nothing
            low, high = model.predict_interval(frame.take(held)).T
            assert np.mean(high - low) == pytest.approx(metrics["test_interval_width"])
    else:
        right = model.predict(frame.take(held)) == columns["outcome"][held]
        assert np.mean(right) == pytest.approx(metrics["test_accuracy"])


@pytest.mark.parametrize("name", ["fed-cg numbers", "fdskl", "hierarchical-svm", "pof-rls"])
def test_the_unit_of_the_label_is_that_of_all_that_is_told(name, tables, commands, monkeypatch):
    """A thousand times the numbers: predictions, deviations, intervals and errors as well."""
    columns, found, drawn = messy(tables), [], []
    plot = dealt_data.plot_predicted
    monkeypatch.setattr(dealt_data, "plot_predicted", lambda *a: (drawn.append(a[:3]), plot(*a))[1])
    own = [*RUNS[name], *([] if "cost" in RUNS[name] else ["--label", "cost"])]
    own += ["--model", "ridge"] if name == "hierarchical-svm" else []
    for factor in (1, 1000):
        tables.write("train.csv", {**columns, "cost": factor * columns["cost"]})
        given = (*own, "--data", "train.csv", "--id", "id")
        metrics = commands.result(*given, plots=name in ("fed-cg numbers", "fdskl"))["metrics"]
        commands.shown("predict", "here", "--data", "train.csv", "--out", "p.csv", "--force")
        rows = [[float(cell) for cell in list(row.values())[1:]] for row in tables.read("p.csv")]
        found.append((np.array(rows), {k: v for k, v in metrics.items() if v is not None}))
    (small, one), (large, other) = found
    for first, second in ((small, large), *zip(*drawn, strict=True)):
        np.testing.assert_allclose(second, 1000.0 * np.array(first), rtol=1e-5)
    assert drawn or name in ("hierarchical-svm", "pof-rls")
    assert small.shape[1] == {"fed-cg numbers": 4, "pof-rls": 1}.get(name, 3)
    for metric, value in one.items():
        times = 1000.0 if metric.endswith(("rmse", "mae", "width", "score")) else 1.0
        assert other[metric] == pytest.approx(times * value, rel=1e-4, abs=1e-5), metric


@pytest.mark.promise("model-blocks")
def test_a_block_that_a_row_lacks_is_neutral(tables, commands, prepared):
    """As it was to the run; a row without the hospitals' block is left out."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(120, 6))
    y = (x.sum(axis=1) > 0.0) * 1.0
    x[::4, 4] = np.nan  # of two columns of the second centre
    columns = {**{name: x[:, k] for k, name in enumerate("abcdef")}, "y": y}
    tables.write("t.csv", columns)
    own = ["--missing", "neutral", "--scaling", "range", "--landmarks", "20", "--allow-single"]
    commands.result("fed-cg", "--data", "t.csv", "--label", "y", *own)
    held = np.flatnonzero(~prepared[0].split(0).train)
    assert np.isnan(x[held]).any()
    written = read_predictions(prepared[0].predictions)
    model = fedkern_flwr.load_model("here")
    expected = np.array([written[row] for row in held])
    np.testing.assert_allclose(model.outputs(x)[held], expected, rtol=0.0, atol=1e-6)
    x[0, 0] = np.nan
    tables.write("new.csv", {name: x[:, k] for k, name in enumerate("abcdef")})
    shown = commands.shown("predict", "here", "--data", "new.csv")
    assert "119 predictions: here/predictions.csv, 1 left out: they lack a block" in shown


def test_what_a_model_cannot_do_is_refused(tables, commands):
    columns = messy(tables)
    own = ["--data", "train.csv", "--id", "id", "--label", "outcome"]
    commands.result("hierarchical-svm", "--users", "4", "--rounds", "5", *own, "--test-size", "0")
    model = fedkern_flwr.load_model("here")
    rows = np.zeros((2, 6))
    gaps = {**columns, "age": [50.0] * ROWS, "dose": [np.nan, *columns["dose"][1:]]}
    commands.result("fdskl", "--features", "20", *own, "--missing", "drop-row", out="other")
    other = fedkern_flwr.load_model("other")
    for call, code in (
        (lambda: model.predict(rows), "FK-COLUMNS-CATEGORIES"),
        (lambda: model.predict_proba("train.csv"), "FK-HELD-OUT-NONE"),
        (lambda: model.predict_interval("train.csv"), "FK-PREDICT-KIND"),
        (lambda: model.of_client(0), "FK-MODEL-CLIENT"),
        (lambda: model.predict(pa.table({"age": [1.0]})), "FK-COLUMN-MISSING"),
        (lambda: other.predict(pa.table(gaps)), "FK-VALUES-MISSING"),
        (lambda: fedkern_flwr.load_model("here/model.npz"), "FK-MODEL-SERVER"),
        (lambda: fedkern_flwr.load_model("."), "FK-MODEL-PREDICTOR"),
        (lambda: fedkern_flwr.load_model("no.npz"), "FK-FILE-READ"),
    ):
        refuses(code, call)


def test_arrays_are_features_in_the_order_of_the_table(commands):
    from sklearn.datasets import load_iris

    commands.result("fed-cg", "--data", "iris", "--landmarks", "12")
    model, iris = fedkern_flwr.load_model("here"), load_iris()
    assert repr(model).startswith("<model of fed-cg: classes 0, 1, 2; columns sepal")
    found = model.predict(iris.data)
    assert found.dtype == np.float64
    assert np.mean(found == iris.target) > 0.9
    np.testing.assert_array_equal(model.predict(iris.data.tolist()), found)
    for rows in (iris.data[:, :3], iris.data[0], [["a"] * 4]):
        with refused("FK-COLUMNS-DIFFER", "FK-COLUMN-NUMBERS"):
            model.predict(rows)


def test_counts_that_no_encoder_changes_are_taken_by_the_names_of_their_columns(tables, commands):
    x = np.random.default_rng(4).integers(0, 9, (ROWS, 4))
    y = np.where(x[:, 0] > x[:, 1], "more", "less").tolist()
    columns = {**dict(zip("abcd", x.T.tolist(), strict=True)), "y": y}
    own = ["--encoding", "counts", "--bound", "8", "--min-support", "0"]
    commands.result("secure-gram", "--data", tables.write("t.csv", columns), "--label", "y", *own)
    model = fedkern_flwr.load_model("here")
    turned = pa.table({name: columns[name] for name in reversed(columns)})
    np.testing.assert_array_equal(model.outputs(turned), model.outputs(x))
    assert np.mean(model.predict(turned) == y) > 0.9


def test_projections_of_kernel_pca_are_those_of_its_nodes(tables, commands):
    columns = messy(tables)
    own = ["--data", "train.csv", "--id", "id", "--missing", "encode", "--components", "3"]
    commands.result("kernel-pca", "--clients", "3", "--features", "10", *own)
    Path("train.csv").rename("new.csv")
    nodes = [tables.read(f"here/nodes/{k}/projections.csv") for k in range(3)]
    rows = [row for own in nodes for row in own]
    expected = {row.pop("id"): [float(cell) for cell in row.values()] for row in rows}
    assert len(expected) == ROWS
    commands.shown("predict", "here", "--data", "new.csv", "--id", "id", "--out", "p.csv")
    made = tables.read("p.csv")
    assert list(made[0]) == ["id", "component 1", "component 2", "component 3"]
    assert [row["id"] for row in made] == columns["id"]
    model = fedkern_flwr.load_model("here")
    found = model.transform("new.csv")
    assert found.tolist() == [[float(cell) for cell in list(row.values())[1:]] for row in made]
    near = [expected[name] for name in columns["id"]]
    np.testing.assert_allclose(found, near, rtol=0.0, atol=1e-12)
    refuses("FK-PREDICT-KIND", model.predict, "new.csv")
    strategy = quiet("kernel-pca").strategy
    x = np.concatenate([table["x"] for table in quiet("kernel-pca").sites.tables])
    assert np.abs(strategy.fitted().transform(x).mean(axis=0)).max() < 1e-12


def test_a_client_of_local_only_that_was_lost_has_learned_nothing(tables, commands):
    messy(tables)
    own = [*RUNS["local-only"], "--data", "train.csv", "--id", "id"]
    commands.result(*own)
    for state in Path("here/private_state").rglob("partition-1-*.state"):
        state.unlink()
    config = json.loads(Path("here/config.json").read_text())
    prepared = run_command.prepare_data(config)
    (session,) = Path("here/private_state").iterdir()
    strategy = strategies.LocalOnly(seed=0)
    strategy.num_rounds, strategy.run_seed = 16, 0
    strategy.nodes.session = session.name.rpartition("-")[2]
    parts = online.whole_model(strategy, prepared, session.parent)
    lost = parts.arrays["weights"][1]
    assert not lost.any()
    assert parts.arrays["weights"][[0, 2]].any(axis=1).all()


# --- Where the server has it all


def test_a_server_that_has_the_whole_model_predicts():
    found = quiet("hierarchical-svm")
    strategy, model = found.strategy, found.strategy.fitted(("no", "yes"))
    x, y = (np.concatenate([t[n] for t in found.sites.tables[:4]]) for n in ("x_test", "y_test"))
    right = (model.predict(x) == "yes") == (y == 1)
    assert np.mean(right) == pytest.approx(strategy.metrics_["test_accuracy"])
    assert strategy.fitted().classes_.tolist() == [0, 1]
    np.testing.assert_array_equal(strategy.predict_proba(x), model.predict_proba(x))
    named = np.array(["no", "yes"])[strategy.predict(x.tolist()).astype(int)]
    np.testing.assert_array_equal(named, model.predict(x))


def test_a_server_that_averages_online_predicts():
    found = quiet("vm-kofl")
    strategy, x = found.strategy, found.sites.tables[0]["x"]
    assert np.ptp(strategy.predict(x.tolist())) > 0.0
    np.testing.assert_array_equal(strategy.predict(x), strategy.fitted().predict(x))
    refuses("FK-PREDICT-KIND", strategy.predict_proba, x)
    refuses("FK-MODEL-PARTS", quiet("pof-mkl").strategy.predict, x)
    with refused("FK-MODEL-PARTS"):
        quiet("hierarchical-svm, vertical").strategy.predict(np.zeros((2, 3)))


@pytest.mark.parametrize("name", [n for n, way in WAYS.items() if "," not in n and way.method])
@pytest.mark.parametrize("call", ["predict", "predict_proba"])
def test_a_server_that_has_no_model_or_a_part_says_so(name, call):
    strategy = WAYS[name].make()
    if not hasattr(strategy, call):
        assert name == "secure-aggregation"
        return
    with refused("FK-MODEL-NONE", "FK-MODEL-PARTS", "FK-PREDICT-METHOD") as caught:
        getattr(strategy, call)(np.zeros((2, 3)))
    line = str(caught.value)
    assert WAYS[name].method in line
    if caught.value.code == "FK-MODEL-PARTS":
        assert ("predict_at_nodes(grid" in line) == hasattr(strategy, "predict_at_nodes")


# --- At the nodes


AT_NODES = [
    name
    for name, way in WAYS.items()
    if hasattr(way.strategy, "predict_at_nodes")
    and "predictions" in way.paths
    and not way.private
    and name not in LIKE_ANOTHER
]


@pytest.mark.promise("model-own-columns")
@pytest.mark.parametrize("name", AT_NODES)
def test_nodes_predict_with_a_saved_model_as_in_its_run_from_its_columns_alone(name: str) -> None:
    """Columns of other names are others, though there are as many."""
    way = WAYS[name].few()
    online = way.client is OnlineKernelClient
    sites = way.sites(**({"keep_weights": True} if online else {}))
    found = sites.fit()
    arrays, meta = found.strategy.model()
    arrays = {part: array.copy() for part, array in arrays.items()}
    meta = json.loads(json.dumps(meta))
    given = {"meta": meta} if way.method == "fdskl" else {"arrays": arrays, "meta": meta}
    more = {n: v for n, v in way.options.items() if n == "allow_single"}
    before = found.predictions
    for file in sites.folder.glob("*/out.csv"):
        file.unlink()

    def predict() -> None:
        way.strategy.of_model(meta, **more).predict_at_nodes(sites.grid(), **given)

    predict()
    if online:  # what a run says of held-out rows
        y = np.concatenate([table["y_test"] for table in sites.tables])
        error = np.mean((np.concatenate([*sites.written().values()]) - y) ** 2)
        assert error == pytest.approx(found.strategy.metrics_["test_mse"])
    else:
        assert sites.written() == {row: pytest.approx(v) for row, v in before.items()} != {}
    for damaged in arrays.values():
        if damaged.dtype.kind == "f" and damaged.size:
            kept, damaged.flat[-1] = damaged.flat[-1], np.inf
            refuses("FK-MODEL-DAMAGED", predict)
            damaged.flat[-1] = kept
    for table in sites.tables:
        if "x" in table:
            table["columns"] = tuple(f"other {k}" for k in range(table["x"].shape[1]))
    with refused("FK-MODEL-PARTIES", "FK-COLUMNS-DIFFER"):
        predict()


# --- Machines on a kernel --------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("learner", ["svc", "ridge"])
def test_a_machine_is_linear_in_the_kernel(classes, learner):
    rng = np.random.default_rng(classes)
    x = rng.normal(size=(120, 3))
    y = np.floor(rng.random(120) * classes) * 2.0 + (x[:, 0] > 0.0)
    y = np.searchsorted(np.unique(y)[:classes], np.minimum(y, np.unique(y)[classes - 1])) * 3.0
    names = tuple(np.unique(y).tolist())
    assert len(names) == classes
    kernel, gram = DotKernel("rbf", gamma=0.7), x @ x.T
    options = {"learner": learner, "gamma": 0.7, "cost": 2.0, "seed": 0}
    machine = choose_machine(gram[:80, :80], 3, y[:80], kernel, names, **options)
    matrix = machine.kernel.matrix(gram, 3)
    weights, bias = machine.fit(matrix[:80, :80], y[:80])
    found = matrix[80:, :80] @ weights + bias
    if learner == "svc" and classes > 2:
        found = votes(found, classes)
    expected = machine.outputs(matrix[:80, :80], y[:80], matrix[80:, :80])
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-12)
    if learner == "svc":
        theirs = SVC(kernel="rbf", gamma=0.7, C=2.0, tol=1e-5).fit(x[:80], y[:80])
        decided = theirs.decision_function(x[80:]).reshape(40, -1)
        np.testing.assert_allclose(found, decided, rtol=0.0, atol=1e-3)  # of LIBSVM


def test_no_predicted_number_is_beyond_the_bound_of_the_labels(tables, commands):
    """As at hospitals, whose intervals are judged by such predictions."""
    x = np.random.default_rng(4).normal(size=(ROWS, 4))
    named = dict(zip("abcd", x.T, strict=True))
    tables.write("t.csv", {**named, "y": (x[:, 0] > 0.0).astype(float)})
    own = ["--data", "t.csv", "--label", "y", "--task", "regression", "--landmarks", "16"]
    commands.result("fed-cg", *own)
    found = fedkern_flwr.load_model("here").predict("t.csv")
    assert found.min() == pytest.approx(0.0, abs=1e-12)
    assert found.max() == pytest.approx(1.0, abs=1e-12)


def test_files_to_predict_are_written_as_that_of_the_run(tables, commands):
    """A file of few rows may look like another dialect; what cannot be read is said."""
    x = np.random.default_rng(5).normal(size=(ROWS, 4)).round(3)
    names = ("a", "b,x", "c", "d")
    lines = ["|".join([*names, "y"])]
    lines += [
        "|".join([*(f"{v}".replace(".", ",") for v in row), str(int(row[0] > 0))]) for row in x
    ]
    Path("t.csv").write_text("\n".join(lines) + "\n")
    own = ["--data=t.csv", "--label=y", "--landmarks=16", "--sep=|", "--decimal=,", "--na=lost"]
    commands.result("fed-cg", *own)
    Path("new.csv").write_text(
        "\n".join(["a|b,x|c|d"] + ["1,5|2,5|7|0,5"] * 24 + ["1,5|2,5|?!|0,5", "1,5|2,5|lost|0,5"])
    )
    rows = [{"a": 1.5, "b,x": 2.5, "c": value, "d": 0.5} for value in [7.0] * 24 + [None] * 2]
    frame = pa.Table.from_pylist(rows)
    model = fedkern_flwr.load_model("here")
    np.testing.assert_array_equal(model.outputs("new.csv"), model.outputs(frame))
    said = commands.shown("predict", "here", "--data", "new.csv")
    assert "1 cells of 'c' are no numbers: taken as missing" in said
    assert "26 predictions: here/predictions.csv" in said
    Path("new.csv").write_text("a|b,x|c|d\n1,5|2,5|7.5|0,5\n")
    line = commands.complaint("predict", "here", "--data", "new.csv", "--force")
    assert line.endswith("[FK-DECIMAL-MIXED]")
    Path("new.csv").write_text("a;b,x;c;d\n1.5;2.5;7.5;0.5\n")  # what is said goes before
    own = ["--data=new.csv", "--sep=;", "--decimal=.", "--force"]
    assert "1 predictions: here/pred" in commands.shown("predict", "here", *own)


@pytest.mark.parametrize(
    ("classes", "found"),
    [((1234567.0, 1234568.0), [1234567.0, 1234568.0]), (("inf", "no"), ["inf", "no"])],
)
def test_classes_are_what_they_were_called(classes: Any, found: list[Any]) -> None:
    model = FittedModel.of_server("fdskl", "linear", {}, {}, classes)
    assert model.classes_ is not None
    assert model.classes_.tolist() == found
