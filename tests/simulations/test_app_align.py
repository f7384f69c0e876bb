"""The Flower app of align: nodes read the ids of their files, write tags that other apps take."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedkern_flwr.alignment import AlignmentTags, read_alignment
from fedkern_flwr.errors import FedKernError
from fedkern_flwr.simulations import InProcessGrid

APP = "align"
MODULES = ("client_app", "server_app")


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


@pytest.fixture
def nodes(tmp_path: Path) -> list[dict[str, Any]]:
    """Three nodes with files of different kinds, two of them with text beside the ids."""
    (tmp_path / "known.csv").write_text("patient,age,ill\n007,3,yes\n008,4,no\n009,,yes\n")
    (tmp_path / "new.csv").write_text("patient,age\n010,3\n")
    (tmp_path / "genes.csv").write_text("patient,gene\n010,x\n007,y\n")
    np.savez(tmp_path / "scans.npz", X=np.zeros((2, 1)), patient=np.array(["009", "007"]))
    out: list[dict[str, Any]] = []
    for k, name in enumerate(("known.csv", "genes.csv", "scans.npz")):
        node = {"data": str(tmp_path / name), "id-column": "patient"}
        out.append({**node, "alignment": str(tmp_path / f"node-{k}" / "alignment.npz")})
    out[0]["test-data"] = str(tmp_path / "new.csv")
    return out


def test_deployed_nodes_write_what_other_apps_read(
    run: Callable[..., None], nodes: list[dict[str, Any]], tmp_path: Path
) -> None:
    run(nodes, rows=0, result=str(tmp_path / "result.json"))
    found = [read_alignment(node["alignment"]) for node in nodes]
    assert all(isinstance(tags, AlignmentTags) for tags in found)
    one, two, three = found
    assert isinstance(one, AlignmentTags)
    assert isinstance(two, AlignmentTags)
    assert isinstance(three, AlignmentTags)
    assert one.tags_of(["010", "007"]) == two.tags_of(["010", "007"])
    assert one.tags_of(["009"]) == three.tags_of(["009"])
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["method"] == "align"
    assert result["exchanges"] == 5
    assert result["metrics"] == {"rows": 8, "rows_in_all": 1}
    assert result["matched"]["partition"]["0"] == {
        "rows": 4,
        "shared_with": {"1": 2, "2": 2},
        "known_to_others": [1, 2, 1],
        "in_all": 1,
    }


def test_nodes_of_a_simulation_share_made_up_ids(run: Callable[..., None], tmp_path: Path) -> None:
    result, folder = tmp_path / "result.json", tmp_path / "files"
    run([{}] * 3, rows=40, share=0.5, folder=str(folder), result=str(result))
    found = json.loads(result.read_text())["matched"]["partition"]
    assert [facts["rows"] for facts in found.values()] == [20, 20, 20]
    assert len({facts["in_all"] for facts in found.values()}) == 1
    assert sorted(path.name for path in folder.iterdir()) == [
        f"alignment-{k}.npz" for k in range(3)
    ]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no table": ({"data": None}, "this node has no table; name it in --node-config as data"),
    "no id column named": ({"id-column": None}, "does not name the column of the ids; add id-col"),
    "no file named": ({"alignment": None}, "does not name the file to write; add alignment="),
    "no file": ({"data": "gone.csv"}, "there is no file gone.csv; check the path"),
    "no such column": ({"id-column": "name"}, "new.csv has no id column 'name'; choose from: pa"),
    "twice": ({"test-data": "{}/known.csv"}, "partition 0: 3 duplicate ids; keep one row per id"),
    "a folder": ({"alignment": "{}"}, "partition 0: the alignment file cannot be written; name"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_bad_configuration_of_a_node_is_one_line(
    app: SimpleNamespace, nodes: list[dict[str, Any]], tmp_path: Path, name: str
) -> None:
    change, text = WRONG[name]
    node = {**nodes[0], **{k: v and v.format(tmp_path) for k, v in change.items()}}
    node = {k: v for k, v in node.items() if v is not None}
    node |= {"partition-id": 0, "num-partitions": 3}
    context = Context(1, 1, node, RecordDict(), {**app.config, "rows": 0})
    with pytest.raises(FedKernError) as error:
        app.client_app.make_client(context)
    assert text in str(error.value)
    assert "\n" not in str(error.value)
    assert "007" not in str(error.value)


def test_what_a_node_lacks_is_told_to_the_server(
    run: Callable[..., None], nodes: list[dict[str, Any]], tmp_path: Path
) -> None:
    result = tmp_path / "result.json"
    nodes[1]["id-column"] = "name"
    with pytest.raises(FedKernError):
        run(nodes, rows=0, result=str(result))
    told = json.loads(result.read_text())
    assert told["error"].startswith("partition 1")
    assert "genes.csv has no id column 'name'; that node's log lists the col" in told["error"]


def test_the_first_row_of_a_file_without_header_stays_at_its_node(
    run: Callable[..., None],
    nodes: list[dict[str, Any]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    result, path = tmp_path / "result.json", tmp_path / "bare.csv"
    path.write_text("P-007,Smith\nP-008,Jones\n")
    nodes[1]["data"] = str(path)
    with pytest.raises(FedKernError) as error:
        run(nodes, rows=0, result=str(result))
    assert "bare.csv has no id column" in str(error.value)
    for text in (str(error.value), result.read_text()):
        assert "P-007" not in text
        assert "Smith" not in text
    assert "choose from: P-007, Smith" in caplog.text  # of the node
