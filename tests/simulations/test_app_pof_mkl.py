"""The Flower app of POF-MKL: deployed clients predict new rows with weights of their own."""

from __future__ import annotations

import csv
import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.clients import OnlineKernelClient
from fedkern_flwr.clients.account import StreamAccount
from fedkern_flwr.errors import CheckpointError, FedKernError
from fedkern_flwr.model_file import load_model
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.online import current_weights
from fedkern_flwr.random_features import feature_map
from fedkern_flwr.simulations import InProcessGrid
from fedkern_flwr.strategies import POFMKL

APP = "pof_mkl"
MODULES = ("own_table", "client_app", "server_app")
CLIENTS, ROWS, NEW = 4, 24, 7
CONFIG = {"data": "", "num_rounds": 20, "samples_per_round": 5, "kernels": 7, "features": 6}


@pytest.fixture
def app(import_app: Callable[..., SimpleNamespace]) -> SimpleNamespace:
    return import_app(APP, *MODULES)


@pytest.fixture
def run(app: SimpleNamespace) -> Callable[..., InProcessGrid]:
    """Return a function that runs the app in process on nodes of the given configurations."""

    def run_app(nodes: list[dict[str, Any]], **config: Any) -> InProcessGrid:
        own = {**app.config, **{name.replace("_", "-"): value for name, value in config.items()}}
        grid = InProcessGrid(app.client_app.app, len(nodes))
        for context, node in zip(grid.contexts.values(), nodes, strict=True):
            context.node_config.update(node)
            context.run_config.update(own)
        for cached in ("own_table", "held_out"):  # the tables of a new process
            getattr(app.client_app, cached).cache_clear()
        app.server_app.app(grid, Context(1, 1, {}, RecordDict(), own))
        return grid

    return run_app


class Sites:
    """Clients with a stream of two columns in its own units, and new rows without labels."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(4)
        self.folder = folder
        self.x = rng.uniform([10.0, -1.0], [30.0, 1.0], (CLIENTS, ROWS + NEW, 2))
        self.y = 100.0 + 40.0 * np.sin(self.x[..., 0] / 4.0) + np.arange(CLIENTS)[:, None]
        self.x[0, -1, 0] = 900.0  # beyond the public range: clipped
        scaling = {"x_min": [10, -1], "x_max": [30, 1], "row_norm": 1.5, "y_min": 50, "y_max": 150}
        (folder / "scaling.json").write_text(json.dumps(scaling))
        self.nodes: list[dict[str, Any]] = []
        for k in range(CLIENTS):
            known = np.column_stack([self.x[k, :ROWS], self.y[k, :ROWS]])
            self.write(f"known{k}.csv", ["a", "b", "power"], known)
            self.write(f"new{k}.csv", ["a", "b"], self.x[k, ROWS:])
            names = {"data": f"known{k}.csv", "test-data": f"new{k}.csv", "scaling": "scaling.json"}
            names |= {"predictions": f"predictions{k}.csv", "state-dir": f"state{k}"}
            self.nodes.append(
                {
                    "label-column": "power",
                    **{key: str(folder / name) for key, name in names.items()},
                }
            )

    def write(self, name: str, heads: list[str], rows: np.ndarray) -> None:
        with (self.folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([heads, *([*map(repr, row)] for row in rows.tolist())])

    def predictions(self, k: int) -> tuple[list[str], list[str], list[float]]:
        """Return heads, names and outputs that a client wrote; remove its file."""
        path = self.folder / f"predictions{k}.csv"
        with path.open(newline="") as file:
            heads, *rows = csv.reader(file)
        path.unlink()
        return heads, [row[0] for row in rows], [float(row[1]) for row in rows]

    def expected(self, k: int, grid: InProcessGrid, saved: Path) -> np.ndarray:
        """Return what client k predicts with the weights that it had when the run ended."""
        arrays, meta = load_model(saved)
        context = list(grid.contexts.values())[k]
        account = StreamAccount.unpack(SessionState.load(context).payload)
        weights = current_weights("adahedge", account.losses, account.gap, 1.0)
        low, high = np.array([10.0, -1.0]), np.array([30.0, 1.0])
        x = (np.clip(self.x[k, ROWS:], low, high) - low) / (high - low) / 1.5
        z = feature_map(
            np.array(meta["bandwidths"], "<f8").tobytes(), 2, 6, 0, "float32", "orthogonal"
        )(x)
        kernels = np.vecdot(z, arrays["theta"].astype("float32"))
        return np.asarray(kernels @ weights + meta["centre"]) * 100.0 + 50.0


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites(tmp_path)


@pytest.mark.parametrize("secure", ["on", "off"])
def test_clients_predict_new_rows_with_their_own_last_weights(
    run: Callable[..., InProcessGrid], sites: Sites, tmp_path: Path, secure: str
) -> None:
    saved, told = tmp_path / "model.npz", tmp_path / "result.json"
    grid = run(sites.nodes, **CONFIG, secure=secure, model=str(saved))
    expected = [sites.expected(k, grid, saved) for k in range(CLIENTS)]
    assert not list(tmp_path.glob("predictions*.csv"))
    assert np.ptp([e.mean() for e in expected]) > 0.0
    run(sites.nodes, data="", predict=str(saved), result=str(told))
    for k in range(CLIENTS):
        heads, names, outputs = sites.predictions(k)
        assert heads == ["row", "output"]
        assert names == [str(n) for n in range(NEW)]
        np.testing.assert_allclose(outputs, expected[k], rtol=1e-6)
    result = json.loads(told.read_text())
    assert result["metrics"] == {"predicted_rows": CLIENTS * NEW}
    assert "how many rows each client predicted" in result["privacy"]["server_sees"]
    run(sites.nodes, data="", predict=str(saved))  # once more: the weights are still there
    np.testing.assert_allclose(sites.predictions(0)[2], expected[0], rtol=1e-6)


def test_rows_with_ids_are_named_and_a_node_without_new_rows_predicts_none(
    run: Callable[..., InProcessGrid], sites: Sites, tmp_path: Path
) -> None:
    for k, node in enumerate(sites.nodes):
        for name, rows in (("known", ROWS), ("new", NEW)):
            path = tmp_path / f"{name}{k}.csv"
            heads, *lines = path.read_text().splitlines()
            named = [f"r{n},{line}" for n, line in enumerate(lines)]
            assert len(named) == rows
            path.write_text("\n".join([f"key,{heads}", *named]))
        node["id-column"] = "key"
    saved = tmp_path / "model.npz"
    grid = run(sites.nodes, **CONFIG, model=str(saved))
    for node in sites.nodes[1:]:
        del node["test-data"]
    run(sites.nodes, data="", predict=str(saved))
    heads, names, outputs = sites.predictions(0)
    assert (heads, names) == (["id", "output"], [f"r{n}" for n in range(NEW)])
    np.testing.assert_allclose(outputs, sites.expected(0, grid, saved), rtol=1e-6)
    assert not list(tmp_path.glob("predictions*.csv"))


def test_held_out_rows_with_labels_are_judged_in_the_run(
    run: Callable[..., InProcessGrid], sites: Sites, tmp_path: Path
) -> None:
    saved, told = tmp_path / "model.npz", tmp_path / "result.json"
    for k in (0, 1):
        known = np.column_stack([sites.x[k, ROWS:], sites.y[k, ROWS:]])
        sites.write(f"new{k}.csv", ["a", "b", "power"], known)
    for secure in ("on", "off"):
        grid = run(sites.nodes, **CONFIG, secure=secure, model=str(saved), result=str(told))
        errors = [sites.expected(k, grid, saved) - sites.y[k, ROWS:] for k in (0, 1)]
        expected = np.mean(np.square(errors)) / 100.0**2
        found = json.loads(told.read_text())["metrics"]["test_mse"]
        assert found == pytest.approx(expected, rel=1e-6)


def refused(run: Callable[..., InProcessGrid], nodes: list[dict[str, Any]], **config: Any) -> str:
    with pytest.raises(FedKernError) as error:
        run(nodes, data="", **config)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_cannot_predict_is_refused_in_a_line(
    run: Callable[..., InProcessGrid], sites: Sites, tmp_path: Path
) -> None:
    saved = tmp_path / "model.npz"
    run(sites.nodes, **CONFIG, model=str(saved))

    def line(**change: Any) -> str:
        nodes = [dict(node) for node in sites.nodes]
        nodes[2] = {k: v for k, v in {**nodes[2], **change}.items() if v is not None}
        return refused(run, nodes, predict=str(saved))

    assert line(**{"state-dir": None}) == (
        "partition 2: this node has no folder with its weights over the kernels; give it the "
        "state-dir that it had when the model was made"
    )
    assert line(**{"state-dir": str(tmp_path / "state3")}).startswith(
        "partition 2: this node kept no weights of the run that made the model; give it the"
    )
    assert line(predictions=None) == (
        "partition 2: there is nowhere to write the predictions; name predictions in --node-config"
    )
    assert len(sites.predictions(0)[2]) == NEW  # the others have predicted all the same
    nodes = [{k: v for k, v in node.items() if k != "test-data"} for node in sites.nodes]
    assert refused(run, nodes, predict=str(saved)) == (
        "no client holds rows to predict; name test-data in the --node-config of those that shall "
        "predict"
    )
    sites.write("swapped.csv", ["b", "a"], sites.x[2, ROWS:])
    assert "the test data does not have the columns of the data, in this order" in line(
        **{"test-data": str(tmp_path / "swapped.csv")}
    )
    (weights,) = (tmp_path / "state2").glob("*/partition-2.weights")
    assert weights.stat().st_mode & 0o077 == 0
    kept = weights.read_bytes()
    for damaged in (kept[:50], kept.replace(b'"law": "', b'"law": "0')):
        weights.write_bytes(damaged)
        assert "the weights of this node belong to another model or other columns" in line()


def test_a_scaling_that_is_no_text_is_refused_in_a_line(
    run: Callable[..., InProcessGrid], sites: Sites, tmp_path: Path
) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    sites.nodes[1]["scaling"] = str(tmp_path / "bytes")
    text = refused(run, sites.nodes)
    assert "partition 1, phase describe: the file of the scaling cannot be read" in text


def test_wrong_models_are_refused_in_a_line(
    run: Callable[..., InProcessGrid], sites: Sites, tmp_path: Path
) -> None:
    saved, other = tmp_path / "model.npz", tmp_path / "other.npz"
    grid = run(sites.nodes, **CONFIG, model=str(saved))
    arrays, meta = load_arrays(saved)

    def line(arrays: dict[str, Any] = arrays, **change: Any) -> str:
        save_arrays(other, arrays, {**meta, **change})
        return refused(run, sites.nodes, predict=str(other))

    head = meta["file"]
    assert "is a model of fed-cg, not of pof-mkl" in line(file={**head, "method": "fed-cg"})
    assert "this release reads up to 1; upgrade" in line(file={**head, "version": 2})
    assert "this node kept no weights of the run" in line(session="ab" * 8)
    assert "belong to another model" in line(seed=1)
    assert "other columns than the model" in line(dimension=3)
    assert "the model's theta should have shape (7, 12) and is of shape (6, 12)" in line(
        {**arrays, "theta": arrays["theta"][1:]}
    )
    del meta["session"]
    assert "the model says too little of itself" in line()
    other.write_bytes(saved.read_bytes()[:-100])
    assert "is damaged or not a model" in refused(run, sites.nodes, predict=str(other))
    with pytest.raises(CheckpointError, match=r"other options; use POFMKL.of_model\(meta\)"):
        POFMKL(kernels=7, features=6, precision="float64").predict(grid, *load_model(saved))
    checkpoint = tmp_path / "checkpoint.npz"
    run(sites.nodes, **CONFIG, checkpoint=str(checkpoint))
    assert "is a checkpoint, not a model" in refused(run, sites.nodes, predict=str(checkpoint))


def test_a_client_that_missed_the_last_round_predicts_with_its_last_weights(
    run: Callable[..., InProcessGrid],
    sites: Sites,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved, real = tmp_path / "model.npz", OnlineKernelClient.train_personal

    @functools.wraps(real)
    def train(client: OnlineKernelClient, request: Any) -> Any:
        if client.partition == 1 and request.round == 4:
            raise OSError
        return real(client, request)

    with monkeypatch.context() as patch:
        patch.setattr(OnlineKernelClient, "train_personal", train)
        grid = run(sites.nodes, **CONFIG, secure="off", model=str(saved))
    copy = shutil.copytree(tmp_path / "state1", tmp_path / "moved")  # a node may move with it
    sites.nodes[1]["state-dir"] = str(copy)
    run(sites.nodes, data="", predict=str(saved))
    for k in (0, 1):
        np.testing.assert_allclose(
            sites.predictions(k)[2], sites.expected(k, grid, saved), rtol=1e-6
        )
