"""The Flower app of HierarchicalSVM: `flwr run` is `simulate`; deployed nodes of both splits."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.errors import CheckpointError, FedKernError, ProtocolError
from fedkern_flwr.linear_model import outputs as linear_outputs
from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations import InProcessGrid
from fedkern_flwr.simulations.deployment.run_config import app_folder
from fedkern_flwr.simulations.methods.registry import options
from fedkern_flwr.strategies import HierarchicalSVM

APP = "hierarchical_svm"
MODULES = ("own_table", "client_app", "server_app")
RENAMED = {"model": "kind", "tolerance": "given_tolerance"}  # options whose attribute differs


@pytest.fixture
def app(import_app: Callable[..., SimpleNamespace]) -> SimpleNamespace:
    return import_app(APP, *MODULES)


@pytest.fixture
def run(app: SimpleNamespace) -> Callable[..., None]:
    """Return a function that runs the app in process on nodes of the given configurations."""

    def run_app(nodes: list[dict[str, Any]], **config: Any) -> None:
        changes = {name.replace("_", "-"): value for name, value in config.items()}
        assert set(changes) <= set(app.config)
        own = {**app.config, **changes}
        grid = InProcessGrid(app.client_app.app, len(nodes))
        for context, node in zip(grid.contexts.values(), nodes, strict=True):
            context.node_config.update(node)
            context.run_config.update(own)
        app.client_app.own_table.cache_clear()  # the tables of a new process
        app.server_app.app(grid, Context(1, 1, {}, RecordDict(), own))

    return run_app


def write(path: Path, names: str, columns: list[Any]) -> str:
    """Write a table and return its path."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names.split(","))
        writer.writerows(zip(*columns, strict=True))
    return str(path)


@pytest.fixture
def table() -> tuple[Any, Any, list[str]]:
    """Return features, text labels and ids of 60 records."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 4)) * [1.0, 10.0, 0.1, 5.0] + 3.0
    score = ((x - x.mean(0)) / x.std(0)) @ [1.0, -1.0, 0.5, 0.3] + 0.4 * rng.normal(size=60)
    return x, np.where(score > 0.0, "ill", "healthy"), [f"p{k:02d}" for k in range(60)]


@pytest.fixture
def horizontal(tmp_path: Path, table: tuple[Any, Any, list[str]]) -> list[dict[str, Any]]:
    """Return four users in two groups, with their agents; user 0 has new rows."""
    x, y, _ = table
    nodes: list[dict[str, Any]] = []
    for k in range(4):
        rows = slice(12 * k, 12 * k + 12)
        path = write(tmp_path / f"own{k}.csv", "a,b,c,d,state", [*x[rows].T, y[rows]])
        nodes.append({"role": "user", "group": k // 2, "data": path, "label-column": "state"})
        nodes[k] |= {"classes": "ill,healthy", "state-dir": str(tmp_path / f"node{k}")}
    nodes[0] |= {
        "test-data": write(tmp_path / "new.csv", "a,b,c,d,state", [*x[48:].T, y[48:]]),
        "predictions": str(tmp_path / "predictions.csv"),
    }
    return nodes + [{"role": "agent", "group": k} for k in range(2)]


@pytest.fixture
def vertical(tmp_path: Path, table: tuple[Any, Any, list[str]]) -> list[dict[str, Any]]:
    """Return two groups of two users with two columns each, their agents and the label owner."""
    x, y, ids = table
    (tmp_path / "key").write_text("ab" * 32)
    rng, nodes = np.random.default_rng(4), list[dict[str, Any]]()
    for group, names in enumerate(("a,b", "c,d")):
        for rows in np.array_split(rng.permutation(60), 2):
            columns = [[ids[r] for r in rows], *x[rows][:, 2 * group : 2 * group + 2].T]
            path = write(tmp_path / f"user{len(nodes)}.csv", f"key,{names}", columns)
            nodes.append({"role": "user", "group": group, "data": path, "id-column": "key"})
    nodes += [{"role": "agent", "group": group} for group in range(2)]
    labels = write(tmp_path / "labels.csv", "key,state", [ids[:48], y[:48]])
    new = write(tmp_path / "unlabelled.csv", "key", [ids[48:]])
    nodes.append({"role": "owner", "data": labels, "id-column": "key", "label-column": "state"})
    nodes[-1] |= {"classes": "healthy,ill", "test-data": new}
    for node in nodes:
        if node["role"] != "agent":
            node["alignment-key"] = str(tmp_path / "key")
    return nodes


def test_deployed_users_in_groups_learn_the_pooled_model(
    run: Callable[..., None],
    horizontal: list[dict[str, Any]],
    table: tuple[Any, Any, list[str]],
    tmp_path: Path,
) -> None:
    from sklearn.svm import SVC

    saved = tmp_path / "model.npz"
    run(horizontal, data="", saved_model=str(saved), tolerance=1e-4, num_rounds=300)
    arrays, meta = load_model(saved)
    assert meta["columns"] == 4
    x, y = table[0], np.where(table[1] == "ill", 1.0, -1.0)  # text classes are sorted
    mean, deviation = x[:48].mean(0), x[:48].std(0)
    oracle = SVC(kernel="linear", C=1.0, tol=1e-8).fit((x[:48] - mean) / deviation, y[:48])
    found = x @ arrays["weights"][0] + arrays["bias"][0]
    expected = oracle.decision_function((x - mean) / deviation)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=0.05)
    with (tmp_path / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    np.testing.assert_allclose([float(r["output_0"]) for r in rows], found[48:], atol=1e-9)
    assert [r["class"] for r in rows] == [str(int(f > 0.0)) for f in found[48:]]


def test_no_row_is_dropped_that_a_prediction_names_by_its_place(
    run: Callable[..., None], horizontal: list[dict[str, Any]], tmp_path: Path
) -> None:
    new = Path(horizontal[0]["test-data"])
    lines = new.read_text().splitlines()
    lines[2] = "," + lines[2].partition(",")[2]
    new.write_text("\n".join(lines))
    with pytest.raises(FedKernError, match=r"1 rows of new.csv lack a value .* by their place"):
        run(horizontal, data="", missing="drop-row", num_rounds=2)
    assert not (tmp_path / "predictions.csv").exists()
    del horizontal[0]["predictions"]  # they are counted only
    run(horizontal, data="", missing="drop-row", num_rounds=2)


def test_deployed_groups_with_columns_learn_the_pooled_model(
    run: Callable[..., None],
    vertical: list[dict[str, Any]],
    table: tuple[Any, Any, list[str]],
    tmp_path: Path,
) -> None:
    from sklearn.svm import SVC

    x, y = table[0], np.where(table[1] == "ill", 1.0, -1.0)
    x = (x - x[:48].mean(0)) / x[:48].std(0)
    expected = SVC(kernel="linear", C=1.0, tol=1e-8).fit(x[:48], y[:48]).decision_function(x[48:])

    def check() -> None:
        with (tmp_path / "out.csv").open() as file:
            rows = {r["id"]: float(r["output_0"]) for r in csv.DictReader(file)}
        assert list(rows) == table[2][48:]
        np.testing.assert_allclose(list(rows.values()), expected, rtol=0.0, atol=1e-3)
        (tmp_path / "out.csv").unlink()

    vertical[-1]["predictions"] = str(tmp_path / "out.csv")
    run(vertical, data="", partition="vertical", tolerance=1e-7)
    check()
    with pytest.raises(ProtocolError, match="product 'local' only, not 'orthogonal'"):
        run(vertical, data="", partition="vertical", product="orthogonal")
    for node in vertical[:4]:
        node["product"] = "orthogonal"
    run(vertical, data="", partition="vertical", product="orthogonal")


def test_a_run_that_broke_off_is_resumed(
    run: Callable[..., None],
    horizontal: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for k, node in enumerate(horizontal):
        node["state-dir"] = str(tmp_path / f"node{k}")
    options: dict[str, Any] = {"data": "", "tolerance": 1e-9, "num_rounds": 12}
    run(horizontal, **options, saved_model=str(tmp_path / "whole.npz"))
    more = {"checkpoint": str(tmp_path / "checkpoint.npz"), "checkpoint_every": 3}
    real, pulls = InProcessGrid.pull_messages, iter(range(20))

    def pull(grid: InProcessGrid, message_ids: Any) -> Any:
        if next(pulls, None) is None:
            raise KeyboardInterrupt
        return real(grid, message_ids)

    with monkeypatch.context() as patch:
        patch.setattr(InProcessGrid, "pull_messages", pull)
        with pytest.raises(KeyboardInterrupt):
            run(horizontal, **options, **more)
    run(horizontal, **options, **more, resume=True, saved_model=str(tmp_path / "model.npz"))
    (whole, _), (model, _) = (
        load_model(tmp_path / "whole.npz"),
        load_model(tmp_path / "model.npz"),
    )
    np.testing.assert_allclose(model["weights"], whole["weights"], rtol=0.0, atol=1e-9)


@pytest.mark.parametrize(
    ("node", "change", "text"),
    [
        (0, {"role": "patient"}, "this node has no role"),
        (0, {"data": "gone.csv"}, "there is no file gone.csv"),
        (0, {"data": None}, "this node has no table"),
        (0, {"group": -1}, "group is -1"),
        (0, {"label-column": "fate"}, "own0.csv has no label column 'fate'"),
        (0, {"classes": "good,bad"}, "are none of 2 classes"),
        (0, {"test-data": "gone.csv"}, "there is no file gone.csv"),
        (0, {"product": "open"}, "product"),
        (0, {"data": "{folder}/lacking.csv"}, "2 rows of lacking.csv lack a value, a label or an"),
    ],
)
def test_a_bad_configuration_of_a_node_is_one_line(
    app: SimpleNamespace,
    horizontal: list[dict[str, Any]],
    tmp_path: Path,
    node: int,
    change: dict[str, Any],
    text: str,
) -> None:
    (tmp_path / "lacking.csv").write_text("a,b,c,d,state\n1,,1,1,ill\n1,2,3,4,\n1,2,3,4,ill\n")
    change = {k: v.format(folder=tmp_path) if isinstance(v, str) else v for k, v in change.items()}
    own = {**horizontal[node], **change, "partition-id": node, "num-partitions": 6}
    context = Context(
        1, 1, {k: v for k, v in own.items() if v is not None}, RecordDict(), app.config
    )
    with pytest.raises(FedKernError) as error:
        app.client_app.make_client(context)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_app_s_defaults_are_those_of_the_strategy_and_every_option_is_there(
    app: SimpleNamespace,
) -> None:
    used = {
        name
        for module in MODULES
        for name in app.config
        if f'["{name}"]' in (app_folder(APP) / f"{module}.py").read_text()
    }
    assert used == set(app.config)
    assert {option.name.replace("_", "-") for option in options(HierarchicalSVM)} <= set(app.config)
    made = app.server_app.make_strategy(app.config)
    for name, value in vars(HierarchicalSVM(seed=0)).items():
        if not name.startswith("_") and not name.endswith("_"):
            assert str(getattr(made, name)) == str(value), name


@pytest.mark.parametrize(
    "given",
    [
        {"model": "rbf", "features": 11, "gamma": 0.5, "C": 2.0, "bound": 1e5, "seed": 4},
        {"rho": 2.0, "sigma": 3.0, "rho-schedule": "balanced", "relaxation": 1.2},
        {"agent-topology": "ring", "lost-groups": "stop", "staleness": 3, "tolerance": 0.1},
        {"partition": "vertical", "product": "orthogonal", "missing": "drop-row"},
        {"architecture": "chain", "attempts": 2, "checkpoint-every": 4, "node-timeout": 3.0},
        {"consensus": "paper", "scale": "none", "allow-single": True},
    ],
    ids=["rbf", "rho", "ring", "vertical", "chain", "paper"],
)
def test_every_option_of_the_app_reaches_the_strategy(
    app: SimpleNamespace, given: dict[str, Any]
) -> None:
    made = app.server_app.make_strategy({**app.config, **given})
    for name, value in given.items():
        attribute = name.replace("-", "_")
        assert getattr(made, RENAMED.get(attribute, attribute)) == value, name


def test_step_sizes_are_numbers(app: SimpleNamespace) -> None:
    made = app.server_app.make_strategy({**app.config, "step-sizes": "5, 20"})
    assert made.step_sizes == (5.0, 20.0)
    with pytest.raises(FedKernError, match="write numbers separated by commas"):
        app.server_app.make_strategy({**app.config, "step-sizes": "5;20"})


# -- predictions with a model that was saved


def outputs_of(path: Path) -> dict[str, float]:
    """Return id -> output of a file of predictions, and remove the file."""
    with path.open() as file:
        found = {row["id"]: float(row["output_0"]) for row in csv.DictReader(file)}
    path.unlink()
    return found


def refused(run: Callable[..., None], nodes: list[dict[str, Any]], **config: Any) -> str:
    with pytest.raises(FedKernError) as error:
        run(nodes, data="", **config)
    assert "\n" not in str(error.value)
    return str(error.value)


def changed(nodes: list[dict[str, Any]], number: int, **change: Any) -> list[dict[str, Any]]:
    """Return nodes of which one has another configuration."""
    nodes = [dict(node) for node in nodes]
    change = {name.replace("_", "-"): value for name, value in change.items()}
    nodes[number] = {k: v for k, v in {**nodes[number], **change}.items() if v is not None}
    return nodes


@pytest.mark.parametrize("model", ["linear", "rbf"])
def test_users_predict_new_rows_with_a_saved_model(
    run: Callable[..., None],
    horizontal: list[dict[str, Any]],
    table: tuple[Any, Any, list[str]],
    tmp_path: Path,
    model: str,
) -> None:
    saved, told = tmp_path / "model.npz", tmp_path / "result.json"
    run(horizontal, data="", saved_model=str(saved), num_rounds=5, model=model)
    expected = linear_outputs(*load_model(saved), table[0])
    trained = outputs_of(tmp_path / "predictions.csv")
    np.testing.assert_allclose(list(trained.values()), expected[48:, 0], atol=1e-12)
    # later, at another user: rows without labels, and no folder with state at any node
    new = write(tmp_path / "later.csv", "a,b,c,d", [*table[0][40:].T])
    nodes = changed(horizontal, 0, test_data=None, predictions=None)
    nodes = changed(nodes, 3, test_data=new, predictions=str(tmp_path / "later-out.csv"))
    for node in nodes:
        node.pop("state-dir", None)
    run(nodes, data="", predict=str(saved), result=str(told))
    found = outputs_of(tmp_path / "later-out.csv")
    np.testing.assert_allclose(list(found.values()), expected[40:, 0], atol=1e-12)
    assert not (tmp_path / "predictions.csv").exists()
    result = json.loads(told.read_text())
    assert result["metrics"] == {"predicted_rows": 20}
    assert result["exchanges"] == 3  # describe, predict, finish
    assert "how many rows each user predicted" in result["privacy"]["server_sees"]


def test_the_label_owner_predicts_new_rows_with_parts_that_nodes_kept(
    run: Callable[..., None],
    vertical: list[dict[str, Any]],
    table: tuple[Any, Any, list[str]],
    tmp_path: Path,
) -> None:
    saved, told, out = tmp_path / "model.npz", tmp_path / "result.json", tmp_path / "out.csv"
    vertical[-1]["predictions"] = str(out)
    for k in (4, 5, 6):  # agents and label owner; users keep nothing
        vertical[k]["state-dir"] = str(tmp_path / f"node{k}")
    run(vertical, data="", partition="vertical", tolerance=1e-7, saved_model=str(saved))
    expected = outputs_of(out)
    assert load_model(saved)[0] == {}
    for part in tmp_path.glob("node*/*/*.model"):
        assert part.stat().st_mode & 0o077 == 0
    options = {"partition": "vertical", "predict": str(saved)}
    run(vertical, **options, data="", result=str(told))
    found = outputs_of(out)
    assert found.keys() == expected.keys() == set(table[2][48:])
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-9)
    result = json.loads(told.read_text())
    assert result["metrics"] == {"predicted_rows": 12}
    assert result["exchanges"] == 5  # describe, parts, outputs, predictions, finish
    # rows that come later, some at a user of their own files, one of them known before
    x, _, ids = table
    later = [ids[3], *ids[55:], "new"]
    vertical[-1]["test-data"] = write(tmp_path / "later.csv", "key", [later])
    fresh = np.array([[2.0, 9.0, 3.1, 0.5]])
    for user, columns in ((1, slice(0, 2)), (2, slice(2, 4))):
        heads = "key," + "abcd"[columns.start] + "," + "abcd"[columns.start + 1]
        more = write(tmp_path / f"more{user}.csv", heads, [["new"], *fresh[:, columns].T])
        vertical[user]["test-data"] = more
    labels = [name for name in ids[:48] if name != ids[3]]  # else it comes twice
    places = [ids.index(name) for name in labels]
    state = table[1][places]
    vertical[-1]["data"] = write(tmp_path / "labels.csv", "key,state", [labels, state])
    run(vertical, **options, data="")
    found = outputs_of(out)
    assert list(found) == later
    for name in ids[55:]:
        assert found[name] == pytest.approx(expected[name], abs=1e-9)
    design = np.column_stack([x[48:], np.ones(12)])  # the model, from what it predicted
    weights = np.linalg.lstsq(design, np.array([expected[n] for n in ids[48:]]), rcond=None)[0]
    assert found["new"] == pytest.approx(float(np.append(fresh, 1.0) @ weights), abs=1e-6)
    assert found[ids[3]] == pytest.approx(float(np.append(x[3], 1.0) @ weights), abs=1e-6)


def test_a_vertical_split_that_cannot_predict_says_why_in_a_line(
    run: Callable[..., None],
    vertical: list[dict[str, Any]],
    table: tuple[Any, Any, list[str]],
    tmp_path: Path,
) -> None:
    saved, other = tmp_path / "model.npz", tmp_path / "other.npz"
    for k, node in enumerate(vertical):
        node["state-dir"] = str(tmp_path / f"node{k}")
    run(vertical, data="", partition="vertical", saved_model=str(saved), num_rounds=3)

    def line(nodes: list[dict[str, Any]], path: Path = saved) -> str:
        return refused(run, nodes, partition="vertical", predict=str(path))

    out = str(tmp_path / "out.csv")
    assert "partition 6: there is nowhere to write the predictions; name" in line(vertical)
    vertical[-1]["predictions"] = out
    assert line(changed(vertical, 4, state_dir=None)).endswith(
        "partition 4: this agent has no folder with its part of the model; give it the state-dir "
        "that it had when the model was made"
    )
    assert "partition 6: this owner kept no part of the model; give it the state-dir" in line(
        changed(vertical, 6, state_dir=str(tmp_path / "node5"))
    )
    assert "partition 6: the label owner holds no rows to predict; name test-data" in line(
        changed(vertical, 6, test_data=None)
    )
    unknown = write(tmp_path / "unknown.csv", "key", [["nobody", table[2][50]]])
    assert "group 0 does not hold 1 of the 2 held-out rows; check ids" in line(
        changed(vertical, 6, test_data=unknown)
    )
    assert not Path(out).exists()
    (part,) = (tmp_path / "node5").glob("*/partition-5.model")
    whole = part.read_bytes()
    part.write_bytes(whole[:100])
    assert "partition 5: the part of the model that this agent kept is damaged" in line(vertical)
    part.write_bytes(whole)
    arrays, meta = load_arrays(saved)
    save_arrays(other, arrays, {**meta, "session": "ab" * 8})
    assert "this agent kept no part of the model" in line(vertical, other)
    swapped = [dict(node) for node in vertical]
    for k in range(4):
        swapped[k]["group"] = 1 - swapped[k]["group"]
    assert "the nodes have other columns, groups or classes than the model" in line(swapped)
    assert "the model is one of a vertical split; add partition=" in refused(
        run, vertical, predict=str(saved)
    )


def test_wrong_models_of_a_horizontal_split_are_refused_in_a_line(
    app: SimpleNamespace, run: Callable[..., None], horizontal: list[dict[str, Any]], tmp_path: Path
) -> None:
    saved, other = tmp_path / "model.npz", tmp_path / "other.npz"
    run(horizontal, data="", saved_model=str(saved), num_rounds=2)
    arrays, meta = load_arrays(saved)

    def line(arrays: dict[str, Any] = arrays, **change: Any) -> str:
        save_arrays(other, arrays, {**meta, **change})
        return refused(run, horizontal, predict=str(other))

    head = meta["file"]
    assert "is a model of fdskl, not of hierarchical-svm" in line(file={**head, "method": "fdskl"})
    assert "upgrade fedkern-flwr" in line(file={**head, "version": 7})
    assert "weights should have shape (1, 5) and is of shape (1, 4)" in line(columns=5)
    assert "other columns, groups or classes" in line(tables={**meta["tables"], "labels": ["", 1]})
    assert "the model's bias is not finite" in line({**arrays, "bias": np.array([np.nan])})
    with pytest.raises(CheckpointError, match=r"options; use HierarchicalSVM.of_model\(meta\)"):
        HierarchicalSVM(model="ridge").predict(
            InProcessGrid(app.client_app.app, 6), *load_model(saved)
        )
    for name in ("feature_seed", "seed", "tables"):
        value = meta.pop(name)
        assert "the model says too little of itself" in line()
        meta[name] = value
    other.write_bytes(saved.read_bytes()[:-50])
    assert "is damaged or not a model" in refused(run, horizontal, predict=str(other))
    for name in ("test-data", "predictions"):
        nodes = changed(horizontal, 0, **{name: None})
        text = refused(run, nodes, predict=str(saved))
        assert text in (
            "no user holds rows to predict; name test-data in the --node-config of those that "
            "shall predict",
            "phase svm-predict: partition 0: there is nowhere to write the predictions; name "
            "predictions in --node-config",
        )


def test_simulated_nodes_predict_with_a_saved_model(
    run: Callable[..., None], tmp_path: Path
) -> None:
    for partition, count in (("horizontal", 6), ("vertical", 7)):
        own = {"data": "iris", "partition": partition}
        own |= {"state_dir": str(tmp_path / f"state {partition}")}
        saved = str(tmp_path / "model.npz")
        first, second = tmp_path / f"first {partition}", tmp_path / f"second {partition}"
        run([{}] * count, **own, saved_model=saved, predictions=str(first), num_rounds=5)
        run([{}] * count, **own, predict=saved, predictions=str(second))
        names = sorted(path.name for path in first.iterdir())
        assert names == sorted(path.name for path in second.iterdir())
        for name in names:
            ours, theirs = (outputs_of(folder / name) for folder in (first, second))
            assert len(ours) > 3
            assert theirs == pytest.approx(ours, abs=1e-9)
