"""The Flower app of FedCG: `flwr run` is `simulate`, deployed nodes give the pooled model."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.errors import FedKernError, ProtocolError
from fedkern_flwr.landmarks import draw_landmarks
from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations import InProcessGrid
from fedkern_flwr.simulations.deployment.run_config import app_folder
from fedkern_flwr.simulations.methods.registry import options
from fedkern_flwr.strategies import FedCG

APP = "fed_cg"
MODULES = ("own_table", "client_app", "server_app")
ROWS, LANDMARKS = 60, 20


@pytest.fixture
def app(import_app: Callable[..., SimpleNamespace]) -> SimpleNamespace:
    return import_app(APP, *MODULES)


@pytest.fixture
def run(app: SimpleNamespace) -> Callable[..., None]:
    """Return a function that runs the app in process on nodes of the given configurations."""

    def run_app(nodes: list[dict[str, Any]], **config: Any) -> None:
        changes = {name.replace("_", "-"): value for name, value in config.items()}
        own = {**app.config, **changes}
        grid = InProcessGrid(app.client_app.app, len(nodes))
        for context, node in zip(grid.contexts.values(), nodes, strict=True):
            context.node_config.update(node)
            context.run_config.update(own)
        app.server_app.app(grid, Context(1, 1, {}, RecordDict(), own))

    return run_app


def pooled(
    x: np.ndarray, y: np.ndarray, seeds: list[bytes], test: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients and predictions of a single owner of all data, plain NumPy."""
    ranges = np.array([[0.0, 1.0]] * 2)
    landmarks = np.hstack([draw_landmarks(seed, LANDMARKS, ranges) for seed in seeds])

    def kernel(rows: np.ndarray) -> np.ndarray:
        distances = ((rows[:, None, :] - landmarks[None, :, :]) ** 2).sum(axis=2)
        return np.exp(-distances / x.shape[1])

    k = kernel(x)
    coefficients = np.linalg.inv(k.T @ k + 1e-3 * np.eye(LANDMARKS)) @ (k.T @ y)
    return coefficients, kernel(test) @ coefficients


class Parties:
    """Two hospitals with files of labelled rows and of new patients, two centres with all rows."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(5)
        self.folder = folder
        self.x = rng.random((ROWS, 6))
        self.y = np.where(self.x.sum(axis=1) > 3.0, 1.0, -1.0)
        self.ids = [f"p{i:03d}" for i in range(ROWS)]
        self.train, self.new = np.split(rng.permutation(ROWS), [40])
        units = 20.0 + 60.0 * self.x  # the data's own units, the public range is [20, 80]
        columns = "abcdef"
        self.seeds = [bytes([b + 1]) * 32 for b in range(3)]  # a block of two columns each
        (folder / "ranges.json").write_text(json.dumps({c: [20, 80] for c in columns}))
        (folder / "alignment").write_text("ab" * 32 + "\n")
        for b, seed in enumerate(self.seeds):
            (folder / f"seed{b}").write_text(seed.hex())
        self.nodes: list[dict[str, Any]] = []
        words = {1.0: "yes", -1.0: "no"}
        for h in range(2):
            for name, rows in (("known", self.train[h::2]), ("new", self.new[h::2])):
                labels = [[words[self.y[r]]] if name == "known" else [] for r in rows]
                body = [
                    [self.ids[r], *map(repr, units[r, :2].tolist()), *label]
                    for r, label in zip(rows, labels, strict=True)
                ]
                heads = ["patient", "a", "b", *(["ill"] if name == "known" else [])]
                self.write(f"{name}{h}.csv", [heads, *body])
            own = {"test-data": f"new{h}.csv", "predictions": f"predictions{h}.csv"}
            own |= {"label-column": "ill", "classes": "yes,no", "landmark-seed": "seed0"}
            self.add("hospital", f"known{h}.csv", own)
        order = rng.permutation(ROWS)
        body = [[self.ids[r], *map(repr, units[r, 2:4].tolist())] for r in order]
        self.write("proteins.csv", [["patient", "c", "d"], *body])
        self.add("centre", "proteins.csv", {"block": "proteins", "landmark-seed": "seed1"})
        order = rng.permutation(ROWS)
        np.savez(
            folder / "genes.npz",
            X=units[order, 4:],
            patient=np.array(self.ids)[order],
            feature_names=np.array(["e", "f"]),
        )
        self.add("centre", "genes.npz", {"block": "genes", "landmark-seed": "seed2"})

    def write(self, name: str, lines: Iterable[list[str]]) -> None:
        with (self.folder / name).open("w", newline="") as file:
            csv.writer(file).writerows(lines)

    def add(self, role: str, data: str, more: dict[str, Any]) -> None:
        node = {"data": data, "ranges": "ranges.json", "alignment-key": "alignment", **more}
        names = {"test-data", "predictions", "landmark-seed", "data", "ranges", "alignment-key"}
        node = {k: str(self.folder / v) if k in names else v for k, v in node.items()}
        self.nodes.append({"role": role, "id-column": "patient", **node})

    def predictions(self) -> dict[str, tuple[float, str]]:
        """Return id -> (output, class) as the hospitals wrote them."""
        found = {}
        for h in range(2):
            with (self.folder / f"predictions{h}.csv").open(newline="") as file:
                for row in csv.DictReader(file):
                    found[row["id"]] = (float(row["output_0"]), row["class"])
        return found

    def context(self, number: int, config: dict[str, Any], **change: Any) -> Context:
        """Return the context of a node, with another configuration."""
        node = {**self.nodes[number], **{k.replace("_", "-"): v for k, v in change.items()}}
        node = {k: v for k, v in node.items() if v is not None}
        node |= {"partition-id": number, "num-partitions": 4}
        return Context(1, 1, node, RecordDict(), config)


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties(tmp_path)


def test_deployed_nodes_give_the_pooled_model_and_predict_new_patients(
    run: Callable[..., None], parties: Parties, tmp_path: Path
) -> None:
    saved = tmp_path / "model.npz"
    run(parties.nodes, data="", landmarks=LANDMARKS, model=str(saved))
    arrays, meta = load_model(saved)
    train, new = parties.x[parties.train], parties.x[parties.new]
    # text classes are sorted: no, yes
    expected, outputs = pooled(train, parties.y[parties.train], parties.seeds, new)
    np.testing.assert_allclose(arrays["coefficients"][:, 0], expected, rtol=0.0, atol=1e-7)
    assert meta["blocks"] == ["clinical", "genes", "proteins"]

    def check() -> None:
        found = parties.predictions()
        assert set(found) == {parties.ids[r] for r in parties.new}
        for row, output in zip(parties.new, outputs, strict=True):
            value, decided = found[parties.ids[row]]
            assert value == pytest.approx(output, rel=0, abs=1e-8)
            assert decided == str(int(output >= 0.0))

    check()
    for h in range(2):
        (tmp_path / f"predictions{h}.csv").unlink()
    run(parties.nodes, data="", predict=str(saved))
    check()


def test_simulated_nodes_predict_with_a_saved_model(
    app: SimpleNamespace, run: Callable[..., None], tmp_path: Path
) -> None:
    config = {
        "data": "iris",
        "sampling": "N",
        "landmarks": 15,
        "state_dir": str(tmp_path / "state"),
    }
    model, folders = str(tmp_path / "model.npz"), [tmp_path / "first", tmp_path / "second"]
    run([{}] * 4, **config, model=model, predictions=str(folders[0]))
    run([{}] * 4, **config, predict=model, predictions=str(folders[1]))
    first, second = (
        np.vstack([np.loadtxt(f / f"partition-{h}.csv", delimiter=",", skiprows=1) for h in (0, 1)])
        for f in folders
    )
    assert first.shape == (45, 5)  # row, three outputs, class
    np.testing.assert_allclose(first, second, rtol=0.0, atol=1e-9)
    with pytest.raises(ProtocolError, match="this node has no table"):
        run([{}] * 4, data="")


def test_a_run_that_broke_off_is_resumed(
    run: Callable[..., None],
    parties: Parties,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for k, node in enumerate(parties.nodes):
        node["state-dir"] = str(tmp_path / f"state{k}")
    options = {"data": "", "landmarks": LANDMARKS, "solver": "cg", "preconditioner_rank": 0}
    checkpoint = {"checkpoint": str(tmp_path / "checkpoint.npz")}
    run(parties.nodes, **options, model=str(tmp_path / "whole.npz"))
    real, pulls = InProcessGrid.pull_messages, iter(range(15))

    def pull(grid: InProcessGrid, message_ids: Any) -> Any:
        if next(pulls, None) is None:
            raise KeyboardInterrupt
        return real(grid, message_ids)

    with monkeypatch.context() as patch:
        patch.setattr(InProcessGrid, "pull_messages", pull)
        with pytest.raises(KeyboardInterrupt):
            run(parties.nodes, **options, **checkpoint, model=str(tmp_path / "broken.npz"))
    saved = load_arrays(tmp_path / "checkpoint.npz")[1]["saved"]
    assert saved["fingerprints"]
    assert "metrics" not in saved  # it was not solved
    run(parties.nodes, **options, **checkpoint, resume=True, model=str(tmp_path / "resumed.npz"))
    whole, resumed = (load_model(tmp_path / f"{n}.npz")[0] for n in ("whole", "resumed"))
    np.testing.assert_allclose(resumed["coefficients"], whole["coefficients"], rtol=0.0, atol=1e-6)


@pytest.mark.parametrize(
    ("node", "change", "text"),
    [
        (0, {"data": "gone.csv"}, "there is no file gone.csv"),
        (0, {"role": None}, "this node has no role; add role="),
        (2, {"role": "doctor"}, "this node has no role"),
        (0, {"alignment_key": None}, "there is no alignment key"),
        (0, {"alignment_key": "gone"}, "the file of the alignment key cannot be read"),
        (0, {"landmark_seed": "{folder}/ranges.json"}, "the file of the landmark seed cannot be"),
        (0, {"landmark_seed": "{folder}/short"}, "the landmark seed has 2 bytes instead of 32"),
        (0, {"alignment_key": "{folder}/short"}, "the alignment key has 2 bytes, at least 16"),
        (2, {"ranges": "{folder}/narrow.json"}, "beyond"),
        (2, {"ranges": None}, "column 'c' (and 1 more) has values outside its declared range"),
        (2, {"ranges": "{folder}/few.json"}, "there is no range of column 'd'"),
        (2, {"ranges": "{folder}/empty.json"}, "a range is empty or infinite"),
        (2, {"ranges": "{folder}/alignment"}, "the file of ranges cannot be read"),
        (0, {"classes": "yes,perhaps"}, "are none of 2 classes; name all classes"),
        (0, {"classes": "0,1"}, "are none of 2 classes"),
        (0, {"classes": None}, "are none of 0 classes"),
        (0, {"label_column": "fate"}, "known0.csv has no label column 'fate'"),
        (0, {"id_column": "name"}, "known0.csv has no id column 'name'"),
        (0, {"id_column": None}, "column 'patient' of known0.csv is not numeric"),
        (0, {"test_data": "gone.csv"}, "there is no file gone.csv"),
        (0, {"protocol": "open"}, "protocol"),
        (0, {"label_bound": 0}, "label_bound is 0"),
    ],
)
def test_a_bad_configuration_of_a_node_is_one_line(
    app: SimpleNamespace, parties: Parties, node: int, change: dict[str, Any], text: str
) -> None:
    for name, value in (
        ("narrow", {c: [20, 70] for c in "cd"}),
        ("few", {"c": [20, 80]}),
        ("empty", {c: [20, 20] for c in "cd"}),
    ):
        (parties.folder / f"{name}.json").write_text(json.dumps(value))
    (parties.folder / "short").write_text("abcd")
    change = {
        k: v.format(folder=parties.folder) if isinstance(v, str) else v for k, v in change.items()
    }
    app.client_app.make_client(parties.context(node, app.config))
    with pytest.raises(FedKernError) as error:
        app.client_app.make_client(parties.context(node, app.config, **change))
    assert text in str(error.value)
    assert "\n" not in str(error.value)
    assert "p0" not in str(error.value)


def test_rows_with_empty_cells_lack_the_block_unless_the_run_refuses_them(
    app: SimpleNamespace, parties: Parties
) -> None:
    path = parties.folder / "proteins.csv"
    lines = path.read_text().splitlines()
    lines[1] = lines[1].rpartition(",")[0] + ","
    path.write_text("\n".join(lines))
    with pytest.raises(FedKernError, match="is empty or NaN in 1 rows"):
        app.client_app.make_client(parties.context(2, app.config))
    for missing in ("drop-row", "neutral"):
        context = parties.context(2, {**app.config, "missing": missing})
        assert app.client_app.make_client(context).table.rows == ROWS - 1


def test_holders_of_a_block_must_scale_it_alike(run: Callable[..., None], parties: Parties) -> None:
    wide = parties.folder / "wide.json"
    wide.write_text(json.dumps({c: [0, 100] for c in "ab"}))
    parties.nodes[1]["ranges"] = str(wide)
    with pytest.raises(ProtocolError, match=r"partition 1.*2 columns that differ"):
        run(parties.nodes, data="", landmarks=LANDMARKS)


def test_app_s_defaults_are_those_of_the_strategy_and_every_option_is_there(
    app: SimpleNamespace,
) -> None:
    used = {
        name
        for module in MODULES
        for name in app.config
        if f'["{name}"]' in (app_folder(APP) / f"{module}.py").read_text()
    }
    in_loops = {"allow-single", "attempts", "landmarks", "sampling", "protocol", "seed"}
    assert used | in_loops == set(app.config)
    assert {option.name.replace("_", "-") for option in options(FedCG)} <= set(app.config)
    made = app.server_app.make_strategy(app.config)
    assert vars(made).keys() == vars(FedCG()).keys()
    for name, value in vars(FedCG(seed=0)).items():
        if not name.startswith("_") and not name.endswith("_"):
            assert getattr(made, name) == value, name


def test_what_cannot_predict_is_refused_in_a_line(
    run: Callable[..., None], parties: Parties, tmp_path: Path
) -> None:
    saved, other = tmp_path / "model.npz", tmp_path / "other.npz"
    for k, node in enumerate(parties.nodes):
        node["state-dir"] = str(tmp_path / f"state{k}")
    run(parties.nodes, data="", landmarks=LANDMARKS, sampling="N", model=str(saved))
    arrays, meta = load_arrays(saved)

    def refused(path: Path = saved, number: int = 0, **change: Any) -> str:
        nodes = [dict(node) for node in parties.nodes]
        change = {**nodes[number], **{k.replace("_", "-"): v for k, v in change.items()}}
        nodes[number] = {k: v for k, v in change.items() if v is not None}
        with pytest.raises(FedKernError) as error:
            run(nodes, data="", predict=str(path))
        assert "\n" not in str(error.value)
        return str(error.value)

    def wrong(arrays: dict[str, Any] = arrays, **change: Any) -> str:
        save_arrays(other, arrays, {**meta, **change})
        return refused(other)

    head = meta["file"]
    assert "is a model of fdskl, not of fed-cg; name a model" in wrong(
        file={**head, "method": "fdskl"}
    )
    assert "upgrade fedkern-flwr" in wrong(file={**head, "version": 2})
    assert "the landmarks of the model are not known here any more" in wrong(session="ab" * 8)
    assert "the model's coefficients should have shape (20, 1)" in wrong(
        {**arrays, "coefficients": arrays["coefficients"][1:]}
    )
    other.write_bytes(saved.read_bytes()[:300])
    assert "is damaged or not a model" in refused(other)
    for number in (0, 3):
        text = refused(number=number, state_dir=str(tmp_path / "elsewhere"))
        assert f"partition {number}: the landmarks of the model are not known here any more" in text
    assert "there is nowhere to write the predictions" in refused(number=1, predictions=None)
    for node in parties.nodes:
        node.pop("test-data", None)
    assert refused().startswith("no hospital holds rows to predict; name test-data in the")
