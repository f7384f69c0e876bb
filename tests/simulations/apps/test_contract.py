"""What every app promises: pooled results, predictions, refusals in a line; keys that are read."""

from __future__ import annotations

import json
import math
import re
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from app_sites import Given, Make, Refuses, Site
from flwr.clientapp import ClientApp
from node_keys_page import node_keys
from refusals import refused, refuses

from fedkern_flwr import __version__
from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.errors import FedKernError
from fedkern_flwr.model_file import load_model, save_model
from fedkern_flwr.reporting import settings_digest
from fedkern_flwr.simulations.apps.server import shown_config
from fedkern_flwr.simulations.deployment.run_config import app_folder
from fedkern_flwr.strategies import (
    FDSKL,
    POFMKL,
    POFRLS,
    FedCFK,
    FedCG,
    HierarchicalSVM,
    KernelPCA,
)

STRATEGIES = {"fed_cg": FedCG, "fdskl": FDSKL, "hierarchical_svm": HierarchicalSVM}
STRATEGIES |= {"pof_mkl": POFMKL, "fed_cfk": FedCFK}


def near(found: dict[str, float], expected: dict[str, float], atol: float) -> None:
    """Check that figures have the same names and are as near as that."""
    assert found
    assert found == pytest.approx(expected, rel=0.0, abs=atol)


PREDICT = ("fed-cg", "fdskl", "fdskl two", "horizontal", "vertical", "pof-mkl", "pof-rls")
#: Strategies of other options than those of the model.
ODD = {
    "pof-mkl": POFMKL(kernels=5, features=4, precision="float32"),
    "pof-rls": POFRLS(features=2, forgetting=1.0), "fed-cfk": FedCFK(kernel="linear"),
    "horizontal": HierarchicalSVM(model="ridge"),
}  # fmt: skip


@pytest.mark.promise("predictions-of-its-model")
@pytest.mark.parametrize("name", [*PREDICT, "fed-cfk"])
def test_nodes_get_the_model_of_a_run_in_process_and_predict_with_it_later(
    name: str, make_site: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, refuses: Refuses
) -> None:
    """Which is that of the pooled rows: tests/contracts/test_oracle.py. With no other model."""
    site, saved, told = make_site(name), tmp_path / "model.npz", tmp_path / "result.json"
    caplog.set_level("INFO", logger="flwr")
    grid = site.run(model=saved, result=told)
    first, found, arrays = site.written(), site.here(), load_model(saved)[0]
    expected, result = site.written(found.sites), json.loads(told.read_text())
    if name.startswith("pof"):  # which predict by order only
        assert first == {}
    else:
        near(first, expected, 1e-6)
    assert arrays.keys() == found.strategy.model()[0].keys()
    for part, values in found.strategy.model()[0].items():
        np.testing.assert_allclose(arrays[part], values, rtol=0.0, atol=1e-6)
    figures = {k: v for k, v in found.strategy.metrics_.items() if k in result["metrics"]}
    assert result["metrics"] == pytest.approx({**result["metrics"], **figures}, rel=1e-6)
    assert figures
    assert result["exchanges"] > 2
    assert result["privacy"]["server_sees"]
    assert f"model saved: {saved}" in caplog.text
    if name in ("horizontal", "fed-cfk"):  # which need no state for it
        for node in site.nodes:
            node.pop("state-dir")
    partition = {"partition": "vertical"} if name == "vertical" else {}
    for _ in range(2):  # what is needed is still there
        site.run(predict=saved, result=told, **partition)
        again = site.written()
        near(again, first or expected, 1e-9 if first else 1e-6)
    later = json.loads(told.read_text())
    assert later["exchanges"] <= 5
    assert later["metrics"].get("predicted_rows", len(again)) == len(again)
    for text in (caplog.text, json.dumps([result, later])):
        assert not re.search(r"(patient|person) \d|s3cret|film-", text)
    if name in ODD:
        refuses("FK-MODEL-OPTIONS", ODD[name].predict_at_nodes, grid, *load_model(saved))
    if name == "fed-cg":  # with landmarks that the nodes must have kept
        site.run(model=saved, sampling="N")
        site.written()
    if name in WRONG:
        check_model(name, site, saved, partition, refuses)
    if name in WRONG.keys() - {"fed-cfk"}:  # whose nodes keep nothing, and recommend to all users
        check_what_nodes_need(name, site, {"predict": saved, **partition}, tmp_path, refuses)


#: Changes of what belongs to a model's arrays (of "arrays" one row is cut off, "nan" has no
#: numbers), and their codes.
WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "fed-cg": [
        ({"session": "ab" * 8}, "FK-KEPT-NONE"), ({"arrays": "coefficients"}, "FK-MODEL-DAMAGED"),
    ],
    "fdskl": [({"session": "ab" * 8}, "FK-KEPT-NONE")],
    "horizontal": [
        ({"columns": 7}, "FK-MODEL-DAMAGED"), ({"tables": {"labels": ["", 1]}}, "FK-MODEL-PARTIES"),
        ({"seed": None}, "FK-MODEL-DAMAGED"), ({"feature_seed": None}, "FK-MODEL-DAMAGED"),
        ({"nan": "bias"}, "FK-MODEL-DAMAGED"),
    ],
    "vertical": [({"session": "ab" * 8}, "FK-KEPT-NONE")],
    "pof-mkl": [
        ({"session": "ab" * 8}, "FK-KEPT-NONE"), ({"seed": 1}, "FK-KEPT-OTHER"),
        ({"dimension": 2}, "FK-COLUMNS-DIFFER"), ({"arrays": "theta"}, "FK-MODEL-DAMAGED"),
        ({"session": None}, "FK-MODEL-DAMAGED"),
    ],
    "pof-rls": [
        ({"session": "ab" * 8}, "FK-KEPT-NONE"), ({"seed": 1}, "FK-KEPT-OTHER"),
        ({"experts": "global"}, "FK-KEPT-OTHER"), ({"dimension": 2}, "FK-MODEL-DAMAGED"),
        ({"columns": "0" * 64}, "FK-COLUMNS-DIFFER"), ({"nan": "raw"}, "FK-MODEL-DAMAGED"),
        ({"summed": None}, "FK-MODEL-DAMAGED"),
    ],
    "fed-cfk": [
        ({"names": "0" * 64}, "FK-MODEL-ITEMS"), ({"arrays": "gram"}, "FK-MODEL-DAMAGED"),
        ({"subtract_mean": None}, "FK-MODEL-DAMAGED"),
    ],
}  # fmt: skip


def check_model(
    name: str, site: Site, saved: Path, partition: dict[str, Any], refuses: Refuses
) -> None:
    """What is not the model is refused in a line."""
    other = saved.with_name("other.npz")
    how, (arrays, meta) = {"predict": other, **partition}, load_arrays(saved)

    def check(code: str, **change: Any) -> None:
        changed, found = {**meta, **change}, {**arrays}
        if cut := changed.pop("arrays", None):
            found[cut] = found[cut][1:]
        if nan := changed.pop("nan", None):
            found[nan] = np.full_like(found[nan], np.nan)
        changed = {k: v for k, v in changed.items() if k not in change or v is not None}
        save_arrays(other, found, changed)
        refuses(code, site.run, **how)

    check("FK-MODEL-OTHER", file={**meta["file"], "method": "secure-gram"})
    check("FK-MODEL-VERSION", file={**meta["file"], "version": 2})
    for change, code in WRONG[name]:
        check(code, **change)
    other.write_bytes(saved.read_bytes()[:-100])
    refuses("FK-MODEL-DAMAGED", site.run, **how)
    save_arrays(other, {}, {"options": {}, "session": "", "round": 1})
    refuses("FK-FILE-FORMAT", site.run, **how)  # is a checkpoint
    refuses("FK-FILE-READ", site.run, **{**how, "predict": saved.with_name("gone.npz")})
    assert site.written() == {} or not name.startswith("pof")


#: Node whose files of a run are damaged, and their name.
KEPT = {"vertical": (5, "partition-5.model"), "pof-mkl": (2, "partition-2.weights")}


def check_what_nodes_need(
    name: str, site: Site, how: dict[str, Any], folder: Path, refuses: Refuses
) -> None:
    """Rows, a file for what is predicted, and what the node itself has kept, undamaged."""

    def check(code: str, number: int, **change: Any) -> None:
        text = refuses(code, site.run, site.changed(number, **change), **how)
        assert f"partition {number}" in text

    check("FK-PREDICT-NOWHERE", len(site.nodes) - 1 if name == "vertical" else 0, predictions=None)
    nodes = [{k: v for k, v in node.items() if k != "test-data"} for node in site.nodes]
    refuses("FK-TEST-NONE", site.run, nodes, **how)
    site.written()  # pof-mkl: the others have predicted all the same
    if name not in ("horizontal", "vertical"):
        check("FK-KEPT-NONE", 0, state_dir=str(folder / "elsewhere"))
    if name in KEPT:
        number, file = KEPT[name]
        (kept,) = (folder / f"state{number}").glob(f"*/{file}")
        check("FK-KEPT-NONE", number, state_dir=None)
        check("FK-KEPT-NONE", number, state_dir=str(folder / f"state{number + 1}"))
        assert kept.stat().st_mode & 0o077 == 0
        whole = kept.read_bytes()
        for damaged in {whole[:50], whole.replace(b'"law": "', b'"law": "0')} - {whole}:
            kept.write_bytes(damaged)
            check("FK-KEPT-OTHER", number)


# -- what a node of a simulation is, and what the server says


@pytest.mark.parametrize("name", ["fed-cg", "ranges", "align", "kernel-pca", "pof-mkl", "fed-cfk"])
def test_a_node_that_names_nothing_is_one_of_a_simulation_alone(name: str, make_site: Make) -> None:
    site = make_site(name)
    if name not in ("kernel-pca", "fed-cfk"):
        assert site.stranger(4, **({"data": "iris"} if name == "fed-cg" else {})).simulated is True
    refuses("FK-NODE-KEY", site.run, [{}] * 3)  # of a run on tables
    assert site.client().simulated is False


def test_too_few_nodes_for_the_groups_of_a_simulation_are_told_so(make_site, refuses):
    refuses("FK-PARTIES-FEW", make_site("horizontal").run, [{}] * 2, data="iris", groups=2)


@pytest.mark.parametrize("name", ["fed-cg", "ranges"])
def test_what_a_node_lacks_is_told_to_the_server_and_in_the_result(
    name: str, make_site: Make, tmp_path: Path, refuses: Refuses
) -> None:
    site, told = make_site(name), tmp_path / "result.json"
    told.write_text("of an earlier run")
    lacking = site.changed(1, data=str(tmp_path / "gone.csv"))
    text = refuses("FK-FILE-READ", site.run, lacking, result=told)
    found = json.loads(told.read_text())
    assert (found["error"], found["code"]) == (text, "FK-FILE-READ")
    assert text.startswith("partition 1")


FAB = "5e" * 32


def submitted(grid: Any) -> Any:
    """Give a grid the run that a SuperLink gives it."""
    grid.set_run(SimpleNamespace(run_id=2**63, fab_id="us/app", fab_version="1.2", fab_hash=FAB))
    return grid


@pytest.mark.parametrize("name", ["fed-cg", "kernel-pca"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_result_says_which_run_it_is_of(
    name: str, fails: bool, make_site: Make, tmp_path: Path
) -> None:
    site, told, saved = make_site(name), tmp_path / "result.json", tmp_path / "model.npz"
    gone = {"data": str(tmp_path / "gone.csv")} if fails else {}
    with refused("FK-FILE-READ") if fails else nullcontext():
        site.run(site.changed(0, **gone), wrap=submitted, result=told, model=saved)
    run = json.loads(told.read_text())["run"]
    assert {key: run[key] for key in ("run_id", "app", "fab_hash", "release")} == {
        "run_id": str(2**63), "app": "us/app 1.2", "fab_hash": FAB, "release": __version__,
    }  # fmt: skip
    assert re.fullmatch(r"[0-9a-f]{16}", run["session"])
    began, ended = (
        datetime.strptime(run[key], "%Y-%m-%dT%H:%M:%S%z") for key in ("began", "ended")
    )
    assert timedelta() <= ended - began <= datetime.now(UTC) - began
    if not fails:
        assert run["session"] == load_model(saved)[1]["session"]
        assert [node["partition"] for node in run["nodes"]] == list(range(len(site.nodes)))
        assert all(set(node) == {"partition", "name", "node_id"} for node in run["nodes"])


def test_a_result_shows_no_path_and_no_secret_text(make_site: Make, tmp_path: Path) -> None:
    site, told = make_site("fed-cg"), tmp_path / "result.json"
    site.run(result=told, model=tmp_path / "model.npz", checkpoint=tmp_path / "run.npz", tune="gcv")
    run = json.loads(told.read_text())["run"]
    assert str(tmp_path) not in told.read_text()
    assert [run["config"][key] for key in ("result", "model", "checkpoint")] == [None] * 3
    assert {"tune": "gcv", "regularization": 0.05, "attempts": 5, "resume": False}.items() <= (
        run["config"].items()
    )
    options = {"components": 2, "token": "hunter2", "list": ["x"]}
    config = {"method": "kernel-pca", "options": json.dumps(options), "my-key": "s3cret"}
    hidden = dict.fromkeys(["list", "my-key", "token"])
    assert shown_config(KernelPCA, config) == {"method": "kernel-pca", "components": 2, **hidden}
    assert shown_config(KernelPCA, {"timeout": math.inf}) == {"timeout": "inf"}  # JSON has none
    assert settings_digest(config) == settings_digest({"empty": "", **config})
    assert settings_digest(config) != settings_digest({**config, "my-key": "other"})
    assert len(run["settings_digest"]) == 16


@pytest.mark.parametrize("app", STRATEGIES)
def test_a_run_that_predicts_has_time_outs_and_permissions_of_its_own(
    app: str, import_app: Any, make_site: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, saved, heard = STRATEGIES[app], tmp_path / "model.npz", []
    save_model(saved, strategy.method, {}, {"seed": 3})

    def of_model(cls: type, meta: Any, **more: Any) -> Any:
        heard.append(more)
        raise FedKernError("far enough", code="FK-MODEL-OTHER")

    monkeypatch.setattr(strategy, "of_model", classmethod(of_model))
    site = make_site({"pof_mkl": "pof-mkl", "fed_cfk": "fed-cfk"}.get(app, "fed-cg"))
    site.app = app
    given = {"attempts": 2, "node_timeout": 3, "allow_single": True, "threshold": 4}
    given = {k: v for k, v in given.items() if k.replace("_", "-") in site.modules().config}
    refuses("FK-MODEL-OTHER", site.run, predict=saved, **given)
    assert {name: heard[0][name] for name in given} == given
    assert heard[0].keys() - {"missing", "threshold"} <= set(given)


@pytest.mark.ray  # it is loaded: 60 MB
@pytest.mark.parametrize("app", [*STRATEGIES, "align", "method", "ranges"])
def test_clients_travel_to_the_workers_of_a_simulation(app: str, import_app: Any) -> None:
    pickle = pytest.importorskip("ray.cloudpickle")
    found = import_app(app, "own_table", "client_app").client_app.app
    assert isinstance(pickle.loads(pickle.dumps(found)), ClientApp)


@pytest.mark.parametrize("name", ["fed-cg", "ranges"])
def test_a_node_answers_from_its_frozen_table(make_site: Make, monkeypatch: Any, name: str) -> None:
    """A row that has gone from its file since is still in the next run."""
    monkeypatch.setattr("fedkern_flwr.simulations.apps.node.is_simulated", lambda context: False)
    monkeypatch.setattr("fedkern_flwr.frozen_files.needed_rows", lambda sums: 100)
    site = make_site(name)
    site.run()
    copies = {*site.folder.glob("state*/freeze-*/*/data/*")}
    assert len(copies) == len(site.nodes)
    heads, _, *rest = Path(site.nodes[0]["data"]).read_text().splitlines()
    Path(site.nodes[0]["data"]).write_text("\n".join([heads, *rest, ""]))
    site.run()
    assert {*site.folder.glob("state*/freeze-*/*/data/*")} == copies


# -- keys: of a node each reaches its client (that options are keys is in tests/contracts)


APPS = ("align", "fdskl", "fed_cfk", "fed_cg", "hierarchical_svm", "method", "pof_mkl", "ranges")


# -- what a node says


#: Values of keys that the first node of a site does not have; a wrong column is refused.
VALUES: dict[str, Any] = {
    "allow-single": True, "block": "other", "classes": "bad,ok,perhaps", "group": 1,
    "label-bound": 2, "top": 7.0,
}  # fmt: skip
OTHERS = {"fed-cg", "fdskl", "horizontal", "vertical", "pof-mkl", "fed-cfk", "ranges", "align"}


@pytest.mark.parametrize("name", [*sorted(OTHERS), "kernel-pca"])
def test_every_key_of_a_readme_reaches_the_client(name: str, make_site: Make, given: Given) -> None:
    """Without it, or with it, the client gets something else, or the node is refused."""
    site = make_site(name)
    number = len(site.nodes) - 1 if name == "vertical" else 0
    if name == "fed-cfk":
        number = 1  # a file with a header

    def found(**change: Any) -> str:
        try:
            return repr(given(site, number, **change))
        except FedKernError as error:
            return f"refused: {error}"

    usual = found()
    assert not usual.startswith("refused")
    keys = node_keys(site.app) - {"partition-id", "num-partitions"}
    keys.discard("na")  # no table has such cells: the next test
    assert {"data", "state-dir", "identity-key", "trusted-keys", "policy"} <= keys
    if name == "vertical":
        keys -= {"group", "predictions", "encoder"}  # of users
    if name == "kernel-pca":
        keys -= {"categories"}  # of summary, see test_bad_nodes
    for key in keys:
        change = None if key in site.nodes[number] else VALUES.get(key, "other")
        if key == "data":
            change = "gone.csv"
        if (name, key) in {("ranges", "id-column"), ("horizontal", "alignment-key")}:
            change = "other"
        assert found(**{key: change}) != usual, key


def test_a_centre_gives_no_labels(make_site: Make, given: Given) -> None:
    site = make_site("fed-cg")
    hospital = site.nodes[0]
    text = {"data": hospital["data"], "label_column": "state", "classes": "ok,bad"}
    assert "y" in given(site, 0)
    assert not given(site, 2, **text).keys() & {"y", "y_test"}


@pytest.mark.parametrize("app", APPS)
def test_an_app_is_a_folder_with_one_file_to_change(app: str) -> None:
    folder = app_folder(app)
    files = {path.name for path in folder.iterdir() if path.name != "__pycache__"}
    assert files == {
        *("LICENSE", "README.md", "pyproject.toml"),
        *("app_release.py", "client_app.py", "own_table.py", "server_app.py"),
    }
    assert "CHANGE THIS" in (folder / "own_table.py").read_text()
    assert "own_table.py" in (folder / "README.md").read_text()
