"""What every app promises: pooled results, predictions, resumption, refusals in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_sites import Site
from flwr.clientapp import ClientApp

from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.errors import FedKernError, ProtocolError
from fedkern_flwr.model_file import load_model, save_model
from fedkern_flwr.simulations import InProcessGrid
from fedkern_flwr.strategies import FDSKL, POFMKL, POFRLS, FedCFK, FedCG, HierarchicalSVM

Make = Callable[[str], Site]
Refusal = Callable[..., str]

PREDICT = ("fed-cg", "fdskl", "horizontal", "vertical", "pof-mkl", "pof-rls", "fed-cfk")
STRATEGIES = {
    "fed_cg": FedCG,
    "fdskl": FDSKL,
    "hierarchical_svm": HierarchicalSVM,
    "pof_mkl": POFMKL,
    "fed_cfk": FedCFK,
}


#: Runs whose model will do to be predicted with.
SHORT: dict[str, dict[str, Any]] = {
    "hierarchical_svm": {"num_rounds": 3},
    "fed_cg": {"sampling": "N"},  # landmarks that the nodes must have kept
}


def near(found: dict[str, float], expected: dict[str, float], atol: float) -> None:
    """Check that figures have the same names and are as near as that."""
    assert found.keys() == expected.keys()
    assert found
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=0.0, abs=atol), name


@pytest.mark.parametrize("name", PREDICT)
def test_nodes_get_the_pooled_model_and_predict_with_it_later(
    name: str, make_site: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site, saved, told = make_site(name), tmp_path / "model.npz", tmp_path / "result.json"
    caplog.set_level("INFO", logger="flwr")
    grid = site.run(model=saved, result=told)
    first, expected = site.written(), site.expected(grid, saved)
    if not name.startswith("pof"):  # which predict by order only
        near(first, expected, site.near)
    else:
        assert first == {}
    result = json.loads(told.read_text())
    assert result["exchanges"] > 2
    assert result["privacy"]["server_sees"]
    assert f"model saved: {saved}" in caplog.text
    assert "the server saw: " in caplog.text
    if name in ("horizontal", "fed-cfk"):  # which need no state for it
        for node in site.nodes:
            del node["state-dir"]
    partition = {"partition": "vertical"} if name == "vertical" else {}
    for _ in range(2):  # what is needed is still there
        site.run(predict=saved, result=told, **partition)
        again = site.written()
        near(again, first or expected, 1e-9 if first else site.near)
    later = json.loads(told.read_text())
    assert later["exchanges"] <= 5
    rows = later["metrics"].get("predicted_rows", len(again))
    assert rows == len(again)
    for text in (caplog.text, json.dumps([result, later])):
        assert not any(secret in text for secret in ("s3cret", "film-", "p00"))


@pytest.mark.parametrize(
    ("name", "pulls", "more"),
    [
        ("fdskl", 2, {}),
        ("fdskl two", 8, {}),
        ("fed-cg", 15, {"solver": "cg", "preconditioner_rank": 0}),
        ("fed-cfk", 6, {}),
        ("horizontal", 13, {"tolerance": 1e-9, "num_rounds": 12, "checkpoint_every": 3}),
        ("pof-mkl", 4, {"checkpoint_every": 1}),
        ("pof-rls", 6, {"checkpoint_every": 1}),
    ],
)
def test_a_run_that_broke_off_is_resumed(
    name: str,
    pulls: int,
    more: dict[str, Any],
    make_site: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site, checkpoint = make_site(name), tmp_path / "checkpoint.npz"
    options: dict[str, Any] = {k: v for k, v in more.items() if k != "checkpoint_every"}
    site.run(**options, model=tmp_path / "whole.npz")
    whole = site.written()
    for node in site.nodes:
        node["state-dir"] += "-again"
    real, left = InProcessGrid.pull_messages, iter(range(pulls))

    def pull(grid: InProcessGrid, message_ids: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(grid, message_ids)

    with monkeypatch.context() as patch:
        patch.setattr(InProcessGrid, "pull_messages", pull)
        with pytest.raises(KeyboardInterrupt):
            site.run(**more, checkpoint=checkpoint)
    again = tmp_path / "again.npz"
    site.run(**more, checkpoint=checkpoint, resume=True, model=again)
    if whole:
        near(site.written(), whole, 1e-6)
    (ours, meta), (theirs, _) = load_model(again), load_model(tmp_path / "whole.npz")
    session = load_arrays(checkpoint)[1]["session"]
    assert meta.get("session", session) == session  # it went on
    for array, values in theirs.items():
        np.testing.assert_allclose(ours[array], values, rtol=0.0, atol=1e-6)


#: Of a model's arrays and what belongs to them: what is changed, and the line.
WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "fed-cg": [
        ({"session": "ab" * 8}, "the landmarks of the model are not known here any more"),
        ({"arrays": "coefficients"}, "the model's coefficients should have shape (20, 1)"),
    ],
    "fdskl": [({"session": "ab" * 8}, "what this party kept of the model is not here any more")],
    "horizontal": [
        ({"columns": 7}, "weights should have shape (1, 7) and is of shape (1, 6)"),
        ({"tables": {"labels": ["", 1]}}, "other columns, groups or classes"),
        ({"seed": None}, "the model says too little of itself"),
        ({"feature_seed": None}, "the model says too little of itself"),
        ({"tables": None}, "the model says too little of itself"),
        ({"nan": "bias"}, "the model's bias is not finite"),
    ],
    "vertical": [({"session": "ab" * 8}, "this agent kept no part of the model")],
    "pof-mkl": [
        ({"session": "ab" * 8}, "this node kept no weights of the run"),
        ({"seed": 1}, "belong to another model"),
        ({"dimension": 3}, "other columns than the model"),
        ({"arrays": "theta"}, "theta should have shape (7, 12) and is of shape (6, 12)"),
        ({"session": None}, "the model says too little of itself"),
    ],
    "pof-rls": [
        ({"session": "ab" * 8}, "this node kept no weights of the run"),
        ({"seed": 1}, "belong to another model"),
        ({"experts": "global"}, "belong to another model"),
        ({"dimension": 3}, "the model's raw should have shape (2, 4)"),
        ({"columns": "0" * 64}, "other columns than the model"),
        ({"nan": "raw"}, "the model's raw is not finite"),
        ({"summed": None}, "the model says too little of itself"),
    ],
    "fed-cfk": [
        ({"names": "0" * 64}, "another catalogue of items than the model"),
        ({"arrays": "gram"}, "the model's gram should have shape"),
        ({"subtract_mean": None}, "the model says too little of itself"),
        ({"regularization": None}, "the model says too little of itself"),
        ({"names": None}, "the model says too little of itself"),
    ],
}


@pytest.mark.parametrize("name", PREDICT)
def test_what_is_not_the_model_is_refused_in_a_line(
    name: str, make_site: Make, tmp_path: Path, refusal: Refusal
) -> None:
    site, saved, other = make_site(name), tmp_path / "model.npz", tmp_path / "other.npz"
    checkpoint = tmp_path / "checkpoint.npz"
    site.run(model=saved, checkpoint=checkpoint, **SHORT.get(site.app, {}))
    if not checkpoint.exists():  # a short run may write none
        save_arrays(checkpoint, {}, {"options": {}, "session": "", "round": 1})
    (arrays, meta), how = load_arrays(saved), {"predict": other}
    if name == "vertical":
        how["partition"] = "vertical"  # type: ignore[assignment]

    def line(**change: Any) -> str:
        changed = {**meta, **change}
        found = {**arrays}
        if cut := changed.pop("arrays", None):
            found[cut] = found[cut][1:]
        if nan := changed.pop("nan", None):
            found[nan] = np.full_like(found[nan], np.nan)
        changed = {k: v for k, v in changed.items() if k not in change or v is not None}
        save_arrays(other, found, changed)
        return refusal(site.run, **how)

    method, head = site.config.get("method", STRATEGIES[site.app].method), meta["file"]
    assert f"is a model of secure-gram, not of {method}; name a model of {method}" in line(
        file={**head, "method": "secure-gram"}
    )
    assert "this release reads up to 1; upgrade fedkern-flwr" in line(file={**head, "version": 2})
    for change, text in WRONG[name]:
        assert text in line(**change), change
    other.write_bytes(saved.read_bytes()[:-100])
    assert "is damaged or not a model" in refusal(site.run, **how)
    other.write_bytes(checkpoint.read_bytes())
    assert "is a checkpoint, not a model" in refusal(site.run, **how)
    how["predict"] = tmp_path / "gone.npz"
    assert "there is no model" in refusal(site.run, **how)
    assert site.written() == {} or not name.startswith("pof")


@pytest.mark.parametrize(
    ("name", "made", "other"),
    [
        ("pof-mkl", {"kernels": 7, "features": 6, "precision": "float64"}, POFMKL),
        ("pof-rls", {"features": 3, "forgetting": 1.0}, POFRLS),
        ("fed-cfk", {"kernel": "linear"}, FedCFK),
        ("horizontal", {"model": "ridge"}, HierarchicalSVM),
    ],
)
def test_a_strategy_of_other_options_does_not_take_the_model(
    name: str, made: dict[str, Any], other: Any, make_site: Make, tmp_path: Path, refusal: Refusal
) -> None:
    site, saved = make_site(name), tmp_path / "model.npz"
    grid = site.run(model=saved, **({"num_rounds": 2} if name == "horizontal" else {}))
    text = refusal(other(**made).predict_at_nodes, grid, *load_model(saved))
    assert f"other options; use {other.__name__}.of_model(meta)" in text


@pytest.mark.parametrize(
    "name", ["fed-cg", "fdskl", "horizontal", "vertical", "pof-mkl", "pof-rls"]
)
def test_rows_to_predict_need_a_file_for_them(
    name: str, make_site: Make, tmp_path: Path, refusal: Refusal
) -> None:
    site, saved = make_site(name), tmp_path / "model.npz"
    site.run(model=saved, **SHORT.get(site.app, {}))
    site.written()
    how: dict[str, Any] = {"predict": saved}
    if name == "vertical":
        how["partition"] = "vertical"
    who = len(site.nodes) - 1 if name == "vertical" else 0
    text = refusal(site.run, site.changed(who, predictions=None), **how)
    assert f"partition {who}" in text
    assert "there is nowhere to write the predictions; name predictions in --node-config" in text
    nodes = [{k: v for k, v in node.items() if k != "test-data"} for node in site.nodes]
    text = refusal(site.run, nodes, **how)
    assert "no rows to predict" in text or "rows to predict; name test-data in the" in text
    if name in ("horizontal", "vertical"):
        return
    site.written()  # pof-mkl: the others have predicted all the same
    elsewhere = site.changed(0, state_dir=str(tmp_path / "elsewhere"))
    text = refusal(site.run, elsewhere, **how)
    assert text.startswith("partition 0") or "partition 0: " in text
    assert "not known here any more" in text or "not here any more" in text or "kept no w" in text


# -- what a node of a simulation is


SIMULATED = {
    "fed-cg": (4, {"data": "iris", "sampling": "N", "landmarks": 15}, 45),
    "fdskl two": (3, {"data": "iris", "active_parties": 2}, 36),
    "horizontal": (6, {"data": "iris", "partition": "horizontal", "num_rounds": 5}, 36),
    "vertical": (7, {"data": "iris", "partition": "vertical", "num_rounds": 5}, 36),
    "pof-mkl": (3, {"data": "diabetes"}, 0),
    "pof-rls": (3, {"data": "diabetes"}, 0),
}


@pytest.mark.parametrize("name", SIMULATED)
def test_simulated_nodes_get_public_data_and_predict_with_a_saved_model(
    name: str, make_site: Make, tmp_path: Path
) -> None:
    site, (count, own, rows) = make_site(name), SIMULATED[name]
    saved, outputs = tmp_path / "model.npz", []
    if rows:
        own = {**own, "state_dir": tmp_path / "state"}
    for step in ("first", "second") if rows else ("only",):
        folder = tmp_path / step
        more = {"predictions": folder} if rows else {}
        what = {"predict": saved} if step == "second" else {"model": saved}
        if "partition" in own and step == "second":
            more["partition"] = own["partition"]
        site.run([{}] * count, **{**own, **what, **more})
        if rows:
            found = [
                np.loadtxt(path, delimiter=",", skiprows=1, usecols=1)
                for path in sorted(folder.iterdir())
            ]
            outputs.append(np.concatenate([np.atleast_1d(part) for part in found]))
    assert load_model(saved)[1]
    if rows:
        assert outputs[0].shape == (rows,)
        np.testing.assert_allclose(outputs[0], outputs[1], rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("name", [*SIMULATED, "ranges", "align"])
def test_a_node_that_names_nothing_is_one_of_a_simulation(name: str, make_site: Make) -> None:
    count, own = SIMULATED.get(name, (3, {}, 0))[:2]
    assert make_site(name).stranger(count, **own).simulated is True


@pytest.mark.parametrize(
    "name",
    [*PREDICT[:3], *PREDICT[4:], "ranges", "align", "kernel-pca"],
)
def test_a_node_without_a_table_is_refused_and_no_deployed_node_is_a_simulated_one(
    name: str, make_site: Make
) -> None:
    site = make_site(name)
    with pytest.raises(ProtocolError, match="this node has no table; name it in --node-config"):
        site.run([{}] * 3)
    assert site.client().simulated is False


def test_too_few_nodes_for_the_groups_of_a_simulation_are_told_so(
    make_site: Make, refusal: Refusal
) -> None:
    text = refusal(make_site("horizontal").run, [{}] * 2, data="iris", groups=2)
    assert "2 nodes are too few for 2 groups" in text


# -- what the server says


@pytest.mark.parametrize("name", ["fed-cg", "ranges", "align", "kernel-pca"])
def test_what_a_node_lacks_is_told_to_the_server_and_in_the_result(
    name: str, make_site: Make, tmp_path: Path, refusal: Refusal
) -> None:
    site, told = make_site(name), tmp_path / "result.json"
    told.write_text("of an earlier run")
    text = refusal(site.run, site.changed(1, data=str(tmp_path / "gone.csv")), result=told)
    assert "gone.csv; check the path" in text
    found = json.loads(told.read_text())
    assert found == {"error": text, "exit_code": found["exit_code"]}
    assert text.startswith("partition 1")


@pytest.mark.parametrize("app", STRATEGIES)
def test_a_run_that_predicts_has_time_outs_and_permissions_of_its_own(
    app: str, import_app: Any, make_site: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, saved, heard = STRATEGIES[app], tmp_path / "model.npz", []
    save_model(saved, strategy.method, {}, {"seed": 3})

    def of_model(cls: type, meta: Any, **more: Any) -> Any:
        heard.append(more)
        raise FedKernError("far enough")

    monkeypatch.setattr(strategy, "of_model", classmethod(of_model))
    site = make_site({"pof_mkl": "pof-mkl", "fed_cfk": "fed-cfk"}.get(app, "fed-cg"))
    site.app = app
    config = site.modules().config
    given = {"attempts": 2, "node_timeout": 3, "allow_single": True, "threshold": 4}
    given = {k: v for k, v in given.items() if k.replace("_", "-") in config}
    with pytest.raises(FedKernError, match="far enough"):
        site.run(predict=saved, **given)
    assert {name: heard[0][name] for name in given} == given
    assert heard[0].keys() - {"missing", "threshold"} <= set(given)


@pytest.mark.parametrize("app", [*STRATEGIES, "align", "method", "ranges"])
def test_clients_travel_to_the_workers_of_a_simulation(app: str, import_app: Any) -> None:
    pickle = pytest.importorskip("ray.cloudpickle")
    found = import_app(app, "own_table", "client_app").client_app.app
    assert isinstance(pickle.loads(pickle.dumps(found)), ClientApp)
