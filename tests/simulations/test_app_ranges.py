"""The Flower app of column ranges: nodes with files get the ranges of all their rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedkern_flwr.errors import FedKernError, ProtocolError
from fedkern_flwr.scaling import Scaling, scale_by_ranges
from fedkern_flwr.simulations import InProcessGrid
from fedkern_flwr.simulations.deployment.run_config import app_folder
from fedkern_flwr.simulations.methods.registry import options
from fedkern_flwr.simulations.run.datasets import load_data
from fedkern_flwr.strategies import ColumnRanges

APP = "ranges"
MODULES = ("client_app", "server_app")


@pytest.fixture
def app(import_app: Callable[..., SimpleNamespace]) -> SimpleNamespace:
    return import_app(APP, *MODULES)


@pytest.fixture
def run(app: SimpleNamespace) -> Callable[..., None]:
    """Return a function that runs the app in process on nodes of the given configurations."""

    def run_app(nodes: list[dict[str, Any]], **config: Any) -> None:
        own = {**app.config, **{name.replace("_", "-"): v for name, v in config.items()}}
        grid = InProcessGrid(app.client_app.app, len(nodes))
        for context, node in zip(grid.contexts.values(), nodes, strict=True):
            context.node_config.update(node)
            context.run_config.update(own)
        app.server_app.app(grid, Context(1, 1, {}, RecordDict(), own))

    return run_app


@pytest.fixture
def nodes(tmp_path: Path) -> list[dict[str, Any]]:
    """Three hospitals with CSV files, empty cells among them, and a centre with an NPZ file."""
    rng = np.random.default_rng(0)
    found: list[dict[str, Any]] = []
    for k in range(3):
        rows = rng.normal([50.0, 1e5, 7.0], [10.0, 0.01, 2.0], (12, 3))
        lines = ["patient,age,mass,days"]
        for i, row in enumerate(rows.tolist()):
            cells = [repr(v) if (i, j) != (k, 0) else "" for j, v in enumerate(row)]
            lines.append(",".join([f"p{k}{i}", *cells]))
        (tmp_path / f"patients{k}.csv").write_text("\n".join(lines))
        node = {"data": f"patients{k}.csv", "id-column": "patient", "label-column": "days"}
        found.append({**node, "block": "clinical", "ranges": f"r{k}.json", "scaling": f"s{k}.json"})
    x = rng.normal(size=(9, 2))
    np.savez(tmp_path / "genes.npz", X=x, feature_names=np.array(["g", "h"]))
    found.append({"data": "genes.npz", "block": "genes", "ranges": "r3.json"})
    paths = {"data", "ranges", "scaling"}
    return [{k: str(tmp_path / v) if k in paths else v for k, v in node.items()} for node in found]


def patients(folder: Path) -> np.ndarray:
    """Return the columns of all hospitals, empty cells NaN."""
    return np.concatenate(
        [
            np.genfromtxt(folder / f"patients{k}.csv", delimiter=",", skip_header=1)[:, 1:]
            for k in range(3)
        ]
    )


def test_nodes_with_files_get_the_ranges_of_all_rows(
    run: Callable[..., None], nodes: list[dict[str, Any]], tmp_path: Path
) -> None:
    run(nodes, data="", labels=True, deviations=3.0, result=str(tmp_path / "result.json"))
    x = patients(tmp_path)
    mean, deviation = np.nanmean(x, axis=0), np.nanstd(x, axis=0)
    low, high = mean - 3.0 * deviation, mean + 3.0 * deviation
    written = [json.loads((tmp_path / f"r{k}.json").read_text()) for k in range(4)]
    assert written[0] == written[1] == written[2]
    assert written[0]["clip"] is True
    assert list(written[0]["ranges"]) == ["age", "mass", "label"]
    found = np.array(list(written[0]["ranges"].values())).T
    np.testing.assert_allclose(found, [low, high], rtol=1e-12)
    scaling = Scaling.from_json((tmp_path / "s2.json").read_text())
    np.testing.assert_allclose([scaling.y_min, scaling.y_max], [low[2], high[2]], rtol=1e-12)
    scaled = scale_by_ranges(x[:, :2], ("age", "mass"), tmp_path / "r0.json")
    assert np.nanstd(scaled, axis=0) == pytest.approx([1.0 / 6.0, 1.0 / 6.0], rel=0.1)
    own = np.load(tmp_path / "genes.npz")["X"]
    assert written[3]["ranges"]["h"] == [own[:, 1].min(), own[:, 1].max()]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["exchanges"] == 4
    assert result["matched"]["blocks"]["clinical"] == {
        "holders": [0, 1, 2],
        "rows": 36,
        "columns": 3,
    }
    assert "age" not in json.dumps(result)


def test_simulated_nodes_write_into_a_folder(run: Callable[..., None], tmp_path: Path) -> None:
    run([{}] * 3, data="iris", files=str(tmp_path))
    table = load_data("iris")
    scaled = scale_by_ranges(table.x, table.columns, tmp_path / "ranges-2.json")
    np.testing.assert_allclose(scaled.mean(axis=0), 0.5, atol=1e-9)
    assert (tmp_path / "scaling-0.json").exists()
    run([{}] * 2)  # without one they write nothing
    with pytest.raises(ProtocolError, match="this node has no table; name it in --node-config"):
        run([{}] * 3, data="")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"data": "gone.csv"}, "there is no file gone.csv"),
        ({"ranges": None, "scaling": None}, "this node has nowhere to write its ranges; name a f"),
        ({"label-column": "fate"}, "has no label column 'fate'"),
        ({"id-column": "name"}, "has no id column 'name'"),
        ({"id-column": None}, "column 'patient' of patients0.csv is not numeric"),
        ({"data": "{folder}/infinite.csv"}, "column 'age' is infinite in 1 rows"),
        ({"data": "{folder}/empty.csv"}, "column 'age' has no value"),
    ],
)
def test_a_bad_configuration_of_a_node_is_one_line(
    app: SimpleNamespace,
    nodes: list[dict[str, Any]],
    tmp_path: Path,
    change: dict[str, Any],
    text: str,
) -> None:
    (tmp_path / "infinite.csv").write_text("patient,age,days\na,inf,1\nb,2,1")
    (tmp_path / "empty.csv").write_text("patient,age,days\na,,1\nb,,1")
    place = {"partition-id": 0, "num-partitions": 4}
    change = {k: v.format(folder=tmp_path) if v else v for k, v in change.items()}

    def make(**more: Any) -> Any:
        node = {k: v for k, v in {**nodes[0], **more, **place}.items() if v is not None}
        return app.client_app.make_client(Context(1, 1, node, RecordDict(), app.config))

    make()
    with pytest.raises(FedKernError) as error:
        make(**change)
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
    assert {option.name.replace("_", "-") for option in options(ColumnRanges)} <= set(app.config)
    made = app.server_app.make_strategy(app.config)
    for name, value in vars(ColumnRanges()).items():
        if not name.startswith("_") and not name.endswith("_"):
            assert getattr(made, name) == value, name


def test_the_readme_tells_of_every_key_of_a_node() -> None:
    text = (app_folder(APP) / "README.md").read_text()
    source = (app_folder(APP) / "client_app.py").read_text()
    for key in ("data", "id-column", "label-column", "block", "ranges", "scaling", "state-dir"):
        assert f"`{key}`" in text
        assert f'"{key}"' in source
    for key in ("identity-key", "trusted-keys"):
        assert f"`{key}`" in text
        assert f'"{key}"' in source
