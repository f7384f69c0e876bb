"""What the apps of streams, ratings, ids and ranges promise beside the contract."""

from __future__ import annotations

import functools
import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_sites import Given, Make

from fedkern_flwr.alignment import AlignmentTags, read_alignment
from fedkern_flwr.clients import OnlineKernelClient
from fedkern_flwr.gram.recommenders import rank_metrics
from fedkern_flwr.model_file import load_model
from fedkern_flwr.scaling import Scaling, scale_by_ranges
from fedkern_flwr.simulations.run.datasets import load_data

# -- POF-MKL


def test_a_node_may_have_a_stream_in_place_of_a_table(make_site, tmp_path, refuses):
    """One of a file, one of what came to a socket: the same run, and the same predictions."""
    site, found = make_site("pof-mkl"), []
    for kind in ("table", "stream"):
        saved, told = tmp_path / f"{kind}.npz", tmp_path / f"{kind}.json"
        for k, node in enumerate(site.nodes):
            node["state-dir"] = str(tmp_path / f"{kind}{k}")
        if kind == "stream":
            for k, node in enumerate(site.nodes):
                file = Path(node.pop("data"))
                node |= {"stream": str(file), "stream-wait": 0}
                if k == 1:
                    spool = tmp_path / "stream1" / "stream-1.rows"
                    spool.parent.mkdir()
                    shutil.copy(file, spool)
                    node["stream"] = "unix:/run/readings.sock"
        site.run(model=saved, result=told, secure="on")
        site.run(predict=saved)
        found.append((json.loads(told.read_text())["metrics"], site.written()))
    assert found[0] == found[1]
    for change, code in (
        ({"data": "x.csv"}, "FK-DATA-OPTION"),
        ({"stream": "10.0.0.1:80"}, "FK-STREAM-HOST"),
        ({"stream_columns": "a,c"}, "FK-COLUMN-MISSING"),
        ({"label_column": None}, "FK-LABELS-MISSING"),
        ({"stream_wait": "long"}, "FK-OPTION-TYPE"),
        ({"stream": None, "data": "x.csv"}, "FK-DATA-OPTION"),
    ):
        node = {"state_dir": str(tmp_path / "other"), **change}
        refuses(code, site.run, site.changed(2, **node), model=saved)
    refuses("FK-METHOD-UNKNOWN", site.run, method="ofskl")


def test_rows_with_ids_are_named_and_a_node_without_new_rows_predicts_none(make_site, tmp_path):
    """A node may move with its folder."""
    site, saved = make_site("pof-mkl"), tmp_path / "model.npz"
    for k, node in enumerate(site.nodes):
        for name in ("known", "new"):
            path = tmp_path / f"{name}{k}.csv"
            heads, *lines = path.read_text().splitlines()
            path.write_text(
                "\n".join([f"key,{heads}", *(f"r{n},{v}" for n, v in enumerate(lines))])
            )
        node["id-column"] = "key"
    grid = site.run(model=saved)
    for node in site.nodes[1:]:
        del node["test-data"]
    site.nodes[0]["state-dir"] = str(shutil.copytree(tmp_path / "state0", tmp_path / "moved"))
    site.run(predict=saved)
    found = site.written()
    assert list(found) == [f"r{n}" for n in range(7)]
    assert list(found.values()) == pytest.approx(site.outputs(0, grid, saved).tolist(), rel=1e-6)


@pytest.mark.parametrize("secure", ["on", "off"])
def test_held_out_rows_with_labels_are_judged_in_the_run(make_site, tmp_path, monkeypatch, secure):
    """A client that missed the last round predicts with its last weights."""
    site, saved, told = make_site("pof-mkl"), tmp_path / "model.npz", tmp_path / "result.json"
    real = OnlineKernelClient.train_personal

    @functools.wraps(real)
    def train(client: OnlineKernelClient, request: Any) -> Any:
        if client.partition == 1 and request.round == 4 and secure == "off":
            raise OSError
        return real(client, request)

    for k in (0, 1):
        path = tmp_path / f"new{k}.csv"
        heads, *lines = path.read_text().splitlines()
        labels = map(repr, site.y[k, site.rows :].tolist())
        rows = [f"{line},{label}" for line, label in zip(lines, labels, strict=True)]
        path.write_text("\n".join([f"{heads},power", *rows]))
    with monkeypatch.context() as patch:
        patch.setattr(OnlineKernelClient, "train_personal", train)
        grid = site.run(secure=secure, model=saved, result=told)
    result = json.loads(told.read_text())
    assert (result["privacy"]["protocol"] == "plain") == (secure == "off")
    errors = [site.outputs(k, grid, saved) - site.y[k, site.rows :] for k in (0, 1)]
    expected = np.mean(np.square(errors)) / 100.0**2
    assert result["metrics"]["test_mse"] == pytest.approx(expected, rel=1e-6)
    site.run(predict=saved)
    assert site.written() == pytest.approx(site.expected(grid, saved), rel=1e-6)


def test_weights_of_a_node_are_its_own_and_damaged_ones_are_noticed(make_site, tmp_path, refuses):
    site, saved = make_site("pof-mkl"), tmp_path / "model.npz"
    site.run(model=saved)

    def check(code: str, **change: Any) -> None:
        text = refuses(code, site.run, site.changed(2, **change), predict=saved)
        assert text.startswith("partition 2: ")

    check("FK-KEPT-NONE", state_dir=None)
    check("FK-KEPT-NONE", state_dir=str(tmp_path / "state3"))
    (weights,) = (tmp_path / "state2").glob("*/partition-2.weights")
    assert weights.stat().st_mode & 0o077 == 0
    kept = weights.read_bytes()
    for damaged in (kept[:50], kept.replace(b'"law": "', b'"law": "0')):
        weights.write_bytes(damaged)
        check("FK-KEPT-OTHER")


# -- FedCFK


def test_the_sums_of_ranks_are_those_of_an_owner_of_all_ratings(make_site, caplog):
    site = make_site("fed-cfk")
    caplog.set_level("INFO", logger="flwr")
    site.run()
    scores, _ = site.scores()
    areas = []
    for u in np.flatnonzero(site.liked.any(axis=1)):
        parts = map(np.flatnonzero, (site.held[u], site.liked[u].astype(int)))
        if metrics := rank_metrics(scores[u], *parts):
            areas.append(metrics[0])
    assert f"evaluated_users: {len(areas)}" in caplog.text
    assert f"auc: {np.mean(areas):.6g}" in caplog.text


def test_nodes_without_held_out_ratings_recommend_and_judge_nothing(make_site, caplog):
    site = make_site("fed-cfk")
    caplog.set_level("INFO", logger="flwr")
    for node in site.nodes:
        del node["test-data"]
        node["top"] = 4
    site.run(kernel="linear", subtract_mean=False, min_support=-1)
    best = [name.split()[0] for name in site.written()]
    assert {best.count(user) for user in site.users} == {3, 4}  # one has but 3 left
    assert "evaluated_users: 0" in caplog.text
    assert "auc" not in caplog.text


def test_the_ratings_of_a_node_are_read_against_the_catalogue(make_site, given, tmp_path, refuses):
    import pyarrow as pa
    from pyarrow import parquet

    site = make_site("fed-cfk")
    for number, part in enumerate(site.parts):
        found = given(site, number)
        rows = [site.users.index(user) for user in found["users"]]
        assert sorted(rows) == list(part)
        assert found["items"] == tuple(site.items)
        np.testing.assert_array_equal(found["x"].toarray(), site.liked[rows])
        np.testing.assert_array_equal(found["x_test"].toarray(), site.held[rows])
    every = given(site, 2, min_rating=None)["x"]  # all count where nothing else is said
    expected = ((site.stars > 0) & ~site.held)[16:17].astype(int)
    np.testing.assert_array_equal(every.toarray(), expected)
    # a user who likes nothing, in a Parquet file
    table = {"u": pa.array([7, 7]), "title": ["film-03", " film-01 "], "r": pa.array([1, 2])}
    parquet.write_table(pa.table(table), tmp_path / "one.parquet")
    names = {"user_column": "u", "item_column": "title", "rating_column": "r"}
    change = {"data": str(tmp_path / "one.parquet"), "test_data": None, **names}
    found = given(site, 2, **change)
    assert (found["x"].shape, found["x"].nnz, found["users"]) == ((1, 15), 0, ("7",))
    assert given(site, 2, **change, min_rating=2.0)["x"].toarray()[0].tolist() == [0, 1, *[0] * 13]
    (site.folder / "other.txt").write_text("\n".join(reversed(site.items)))
    nodes = site.changed(2, catalogue=str(site.folder / "other.txt"))
    assert "partition 2" in refuses("FK-COLUMNS-DIFFER", site.run, nodes)


def test_times_that_are_no_numbers_and_strangers_do_not_matter(
    make_site: Make,
    given: Given,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site, dates, none = make_site("fed-cfk"), tmp_path / "dates.csv", tmp_path / "none.csv"
    dates.write_text("user,item,rating,time\na,film-01,4,2020-01-01\na,film-02,5,\n")
    found = given(site, 2, data=str(dates), test_data=None)
    assert np.flatnonzero(found["x"].toarray()).tolist() == [1, 2]
    none.write_text("user,item,rating\n")
    caplog.set_level("INFO", logger="flwr")
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    for held in (none, tmp_path / "new1.csv"):  # nothing held out; users that are not in the data
        x_test = given(site, 2, test_data=str(held))["x_test"]
        assert (x_test.shape, x_test.nnz) == ((1, 15), 0)
    assert re.search(r"\d users of the test data have no ratings", caplog.text)
    assert "s3cret" not in caplog.text


def test_a_saved_kernel_serves_new_users_of_other_nodes(make_site, tmp_path, refuses):
    site, saved = make_site("fed-cfk"), tmp_path / "model.npz"
    site.run(model=saved)
    first = site.written()
    with (tmp_path / "known2.tsv").open("a") as file:
        file.write(f"fresh\t{site.items[0]}\t5\t0\n")
    for node in site.nodes:
        del node["test-data"]
    site.run(site.nodes[1:3], predict=saved)
    found = site.written()
    fresh = [name for name in found if name.startswith("fresh")]
    assert len(fresh) == load_model(saved)[0]["items"].size - 1
    known = {site.users[u] for u in (*site.parts[1], *site.parts[2])}
    assert {n for n in found if n not in fresh} == {n for n in first if n.split()[0] in known}
    for node in site.nodes:
        del node["recommendations"]
    refuses("FK-PREDICT-NOWHERE", site.run, predict=saved)


# -- ranges, align and registered methods


def test_nodes_with_files_get_the_ranges_of_all_rows(make_site: Make, tmp_path: Path) -> None:
    site, told = make_site("ranges"), tmp_path / "result.json"
    site.run(result=told)
    x = site.x.reshape(-1, 3)
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
    assert written[3]["ranges"]["h"] == [site.genes[:, 1].min(), site.genes[:, 1].max()]
    clinical = json.loads(told.read_text())["matched"]["blocks"]["clinical"]
    assert clinical == {"holders": [0, 1, 2], "rows": 36, "columns": 3}
    assert "age" not in told.read_text()


def test_deployed_nodes_write_tags_that_other_apps_read(make_site: Make, tmp_path: Path) -> None:
    site = make_site("align")
    site.run(result=tmp_path / "result.json")
    tags: Any = [read_alignment(node["alignment"]) for node in site.nodes]
    assert all(isinstance(found, AlignmentTags) for found in tags)
    assert tags[0].tags_of(["010", "007"]) == tags[1].tags_of(["010", "007"])
    assert tags[0].tags_of(["009"]) == tags[2].tags_of(["009"])
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["metrics"] == {"rows": 8, "rows_in_all": 1}
    shared = {"shared_with": {"1": 2, "2": 2}, "known_to_others": [1, 2, 1]}
    assert result["matched"]["partition"]["0"] == {"rows": 4, **shared, "in_all": 1}


def test_nodes_of_a_simulation_write_ranges_and_share_made_up_ids(make_site, tmp_path):
    site, table = make_site("ranges"), load_data("iris")
    site.config = {}
    site.run([{}] * 3, data="iris", files=tmp_path)
    scaled = scale_by_ranges(table.x, table.columns, tmp_path / "ranges-2.json")
    np.testing.assert_allclose(scaled.mean(axis=0), 0.5, atol=1e-9)
    site, told, folder = make_site("align"), tmp_path / "told.json", tmp_path / "files"
    site.run([{}] * 3, rows=40, share=0.5, folder=folder, result=told)
    found = json.loads(told.read_text())["matched"]["partition"]
    assert [facts["rows"] for facts in found.values()] == [20, 20, 20]
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"alignment-{k}.npz" for k in range(3)]


def test_a_registered_method_runs_on_the_tables_of_nodes(make_site: Make, tmp_path: Path) -> None:
    site, saved = make_site("kernel-pca"), tmp_path / "model.npz"
    site.run(model=saved)
    assert load_model(saved, "kernel-pca")[1]["components"] == 2
    for k in range(3):
        assert {"projections.csv"} < {p.name for p in (tmp_path / f"results{k}").iterdir()}
