"""What single apps promise beside the contract: of columns, groups, streams, ratings and ids."""

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
from app_sites import SITES, Given, Make
from command_line import Tables
from zoo import streams

from fedkern_flwr.alignment import AlignmentTags, read_alignment
from fedkern_flwr.clients import OnlineKernelClient
from fedkern_flwr.encoding import Encoder
from fedkern_flwr.encoding.columns import Number
from fedkern_flwr.encoding.encoder import KeptEncoder
from fedkern_flwr.groups.linear_model import outputs
from fedkern_flwr.model_file import load_model
from fedkern_flwr.scaling import Scaling, scale_by_ranges
from fedkern_flwr.simulations.run.datasets import load_data
from fedkern_flwr.tables import load_table
from fedkern_flwr.tables.table import Table

# -- Encoders of a node's own


def colours_of(site: Any, node: int, folder: Path, *odd: str) -> Path:
    """Give a node a column of text instead of its two columns; return its encoder's file.

    Odd words are of the first new rows: they are of no category.
    """
    own, path = site.sites.tables[node], folder / "own" / "encoder.json"
    words = np.where(np.random.default_rng(2).random(len(own["ids"])) < 0.4, "blue", "red")
    for name, word in zip(site.sites.tables[0]["ids_test"], odd, strict=False):
        words[own["ids"] == name] = word
    own["x"] = np.column_stack([words == "blue", words == "red"]).astype(float)
    columns = {"key": own["ids"], "colour": words, "still": ["same"] * len(words)}
    data = Tables.write(site.folder / "colours.csv", columns)
    site.nodes = site.changed(node, ranges=None, data=data, encoder=str(path))
    return path


@pytest.mark.promise("encoder-private")
@pytest.mark.parametrize(("name", "node"), [("fed-cg", 3), ("fdskl", 2)])
def test_a_node_encodes_a_block_of_its_own(make_site, tmp_path, refuses, name, node):
    """Text is a column for each category; later runs and predictions have the same encoder."""
    site, saved = make_site(name), tmp_path / "model.npz"
    path = colours_of(site, node, tmp_path)
    for run in ({"predict": saved}, {"resume": True}):
        refuses("FK-FILE-READ", site.client, node, run=run)
        assert not path.exists()
    site.run(model=saved)
    assert site.written() == pytest.approx(site.expected(), rel=0, abs=1e-6)
    assert path.stat().st_mode & 0o077 == 0
    kept = path.read_text()
    colours_of(site, node, tmp_path, "pink", "")
    site.run(predict=saved)
    assert site.written() == pytest.approx(site.expected(), rel=0, abs=1e-6)
    assert path.read_text() == kept


def test_an_encoder_that_does_not_serve_is_refused(make_site, tmp_path, refuses):
    site = make_site("fdskl")
    path = colours_of(site, 2, tmp_path)
    both = {"ranges": str(site.folder / "ranges.json")}
    refuses("FK-OPTION-BOTH", site.client, 2, **both)
    path.parent.mkdir()
    for damage, code in (("{}", "FK-FILE-FORMAT"), ("red", "FK-FILE-READ")):
        path.write_text(damage)
        refuses(code, site.client, 2)
    refuses("FK-FILE-WRITE", site.client, 2, encoder=str(site.folder / "colours.csv" / "e.json"))


PAID = {"privacy-epsilon": 3.0}


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("fed-cg", PAID),
        ("horizontal", PAID),
        ("kernel-pca", {"options": '{"privacy_epsilon": 3.0}'}),
    ],
)
def test_with_a_budget_an_encoder_is_of_noisy_sums(
    make_site: Any, tmp_path: Path, refuses: Any, given: Given, name: str, run: Any
) -> None:
    """One of a node's own rows would say without noise where they are."""
    site, path = make_site(name), tmp_path / "encoder.json"
    node = site.nodes[0]
    how = {"label": node.get("label-column"), "id_column": node.get("id-column")}
    table = load_table(node["data"], kinds={}, **how)
    own = Encoder.fit(table, "rank")
    KeptEncoder(own, "mark").write(path)
    more = {"ranges": None, "encoder": str(path)}
    refuses("FK-BUDGET-SCALING", site.client, 0, run=run, **more)
    wide = Encoder((*own.columns, Number.fit("further", table.x[:, 0], "rank", "encode")))
    KeptEncoder(wide, "mark", 1.0).write(path)
    found = given(site, 0, run=run, **more)
    np.testing.assert_array_equal(found["x"], own.transform(table))


def test_holders_of_a_block_with_encoders_of_their_own_are_told_apart(tmp_path: Path) -> None:
    """What they are called tells nothing of the rows, so that it is drawn."""
    table = Table(np.array([[1.0], [2.0]]), None, ("a",))
    first, second = (KeptEncoder.fit(tmp_path / name, table) for name in "ab")
    assert first.encoder == second.encoder
    assert first.names != second.names
    assert KeptEncoder.read(tmp_path / "a").names == first.names


def add_text(site: Any, node: int) -> None:
    """Add a column of text with gaps and one of dates to the tables of a node."""
    rng = np.random.default_rng(4)
    for part in ("", "_test") if "test-data" in site.nodes[node] else ("",):
        rows, wards = len(site.sites.tables[node][f"x{part}"]), [f"north{node % 2}", "south", ""]
        ward = rng.choice(wards, rows, p=[0.5, 0.3, 0.2])
        site.write(node, part, ward=ward, seen=[f"2024-0{node + 1}-17"] * rows)


@pytest.mark.parametrize(
    ("name", "count", "label"), [("fed-cg", 2, "state"), ("pof-mkl", 4, "power")]
)
def test_holders_of_a_block_encode_rows_as_by_all_nodes(
    make_site: Any, import_app: Any, tmp_path: Path, given: Given, name: str, count: int, label: str
) -> None:
    """The app ranges makes one encoder of the text, dates and gaps of everybody."""
    site = make_site(name)
    (folder := tmp_path / "preparation").mkdir()
    preparation = SITES["ranges"](folder, import_app)
    (tmp_path / "categories").write_text("cd" * 32)
    nodes = site.nodes[:count]
    for node, own in enumerate(nodes):
        own.pop("ranges", None)
        own |= {"encoder": str(tmp_path / f"e{node}.json")}
        if name == "fed-cg":
            own |= {"block": "clinical", "category-key": str(tmp_path / "categories")}
            add_text(site, node)
        else:
            own["scaling"] = str(tmp_path / f"s{node}.json")
    preparation.nodes = [{k: v for k, v in own.items() if k != "state-dir"} for own in nodes]
    preparation.run(labels=name == "pof-mkl")
    assert len({KeptEncoder.read(Path(own["encoder"])).names for own in nodes}) == 1
    for node, own in enumerate(nodes):
        encoder, found = KeptEncoder.read(Path(own["encoder"])).encoder, given(site, node)
        how = {"label": label, "id_column": own.get("id-column"), "missing": "keep"}
        table = load_table(own["data"], kinds=encoder.kinds, **how)
        length = len(encoder.outputs) ** 0.5 if name == "pof-mkl" else 1.0
        np.testing.assert_allclose(found["x"], encoder.transform(table) / length, atol=1e-15)
        if name == "pof-mkl":
            assert np.linalg.norm(found["x"], axis=1).max() <= 1.0
        else:
            assert {"ward[missing]", "seen[month]"} <= set(encoder.outputs)
            assert sum(one.startswith("ward[") for one in encoder.outputs) == 4


# -- FDSKL and FedCG


def test_ranges_are_written_once_and_kept(make_site, tmp_path, refuses, given):
    """A party may scale by its own rows; what it learned from is what it predicts with."""
    site, path, saved = make_site("fdskl"), tmp_path / "own" / "r.json", tmp_path / "model.npz"
    site.nodes[3]["ranges"] = str(path)
    for run in ({"predict": saved}, {"resume": True}):
        refuses("FK-FILE-READ", site.client, 3, run=run)
        assert not path.exists()
    site.run(model=saved)
    assert path.stat().st_mode & 0o077 == 0
    written, own = json.loads(path.read_text()), site.columns(3)
    assert written["g"] == [own["g"].min(), own["g"].max()]
    first = site.written()
    # later there are more rows, with larger values; one of them is new
    more = {"key": "new", "g": 500.0, "h": 900.0}
    site.write(3, **{name: [*cells, more[name]] for name, cells in own.items()})
    site.run(predict=saved)
    assert site.written() == pytest.approx(first, rel=0, abs=1e-9)
    assert given(site, 3)["x"][-1].tolist() == [1.0, 1.0]  # clipped
    assert json.loads(path.read_text()) == written


# -- HierarchicalSVM


def test_another_user_predicts_later_rows_without_labels(make_site, tmp_path):
    site, saved = make_site("horizontal"), tmp_path / "model.npz"
    site.run(**{"saved-model": str(saved)}, num_rounds=5, model="rbf")
    model, own = load_model(saved), site.sites.tables
    expected = outputs(*model, site.units(own[0]["x_test"]))[:, 0]
    assert list(site.written().values()) == pytest.approx(expected, abs=1e-12)
    site.nodes = site.changed(0, test_data=None, predictions=None)
    new = str(site.write(1, "_test", **{**site.columns(1), "state": None}))
    nodes = site.changed(3, test_data=new, predictions=str(tmp_path / "out/3/out.csv"))
    for node in nodes:
        node.pop("state-dir")
    site.run(nodes, predict=saved)
    expected = outputs(*model, site.units(own[1]["x"]))[:, 0]
    assert list(site.written().values()) == pytest.approx(expected, abs=1e-12)


def test_the_label_owner_predicts_rows_of_other_files_with_parts_that_nodes_kept(
    make_site: Make, tmp_path: Path
) -> None:
    site, saved = make_site("vertical"), tmp_path / "model.npz"
    for k in range(4):
        del site.nodes[k]["state-dir"]  # users keep nothing
    site.run(model=saved)
    expected, owner = site.written(), site.sites.tables[-1]
    x = {}
    for k in range(4):
        for part in ("", "_test"):
            own = site.columns(k, part)
            for name, *row in zip(*own.values(), strict=True):
                x.setdefault(name, {}).update(zip(list(own)[1:], row, strict=True))
    new, known = owner["ids_test"], owner["ids"][0]
    x["new"] = dict(zip("abcd", (25.0, 70.0, 33.0, 41.0), strict=True))
    later = [known, *new[5:], "new"]
    site.write(6, "_test", key=later)
    for user in (1, 2):
        own = site.columns(user, "_test")
        row = {"key": "new", **x["new"]}
        site.write(user, "_test", **{name: [*cells, row[name]] for name, cells in own.items()})
    own = site.columns(6)
    site.write(6, **{name: cells[1:] for name, cells in own.items()})  # else it comes twice
    site.run(predict=saved, partition="vertical")
    found = site.written()
    assert list(found) == [f"6 {name}" for name in later]
    for name in new[5:]:
        assert found[f"6 {name}"] == pytest.approx(expected[f"6 {name}"], abs=1e-9)
    rows = {name: [*(row[c] for c in "abcd"), 1.0] for name, row in x.items()}
    right = [expected[f"6 {name}"] for name in new]  # the model, from what it predicted
    weights = np.linalg.lstsq(np.array([rows[name] for name in new]), right, rcond=None)[0]
    for name in ("new", known):
        assert found[f"6 {name}"] == pytest.approx(float(rows[name] @ weights), abs=1e-6)


def test_a_vertical_split_that_cannot_predict_says_why_in_a_line(make_site, tmp_path, refuses):
    site, saved = make_site("vertical"), tmp_path / "model.npz"
    site.run(model=saved, num_rounds=3)
    site.written()
    site.write(6, "_test", key=["nobody", site.sites.tables[-1]["ids_test"][0]])
    refuses("FK-ROWS-LACKING", site.run, predict=saved, partition="vertical")
    site.write(6, "_test")
    assert site.written() == {}
    swapped = [dict(node) for node in site.nodes]
    for k in range(4):
        swapped[k]["group"] = 1 - swapped[k]["group"]
    refuses("FK-MODEL-PARTIES", site.run, swapped, predict=saved, partition="vertical")
    refuses("FK-MODEL-OPTIONS", site.run, predict=saved)  # by which nodes read their tables


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
        ({"data": "x.csv"}, "FK-DATA-OPTION"), ({"stream_columns": "a,z"}, "FK-COLUMN-MISSING"),
        ({"stream_wait": "long"}, "FK-OPTION-TYPE"),
    ):  # fmt: skip
        node = {"state_dir": str(tmp_path / "other"), **change}
        refuses(code, site.run, site.changed(2, **node), model=saved)
    refuses("FK-METHOD-UNKNOWN", site.run, method="ofskl")


def test_rows_with_ids_are_named_and_a_node_without_new_rows_predicts_none(make_site, tmp_path):
    """A node may move with its folder."""
    site, saved = make_site("pof-mkl"), tmp_path / "model.npz"
    expected = list(site.expected().values())[:6]
    for k, node in enumerate(site.nodes):
        for part, rows in (("", 12), ("_test", 6)):
            site.write(k, part, key=[f"r{n}" for n in range(rows)])
        node["id-column"] = "key"
    site.run(model=saved)
    for node in site.nodes[1:]:
        del node["test-data"]
    site.nodes[0]["state-dir"] = str(shutil.copytree(tmp_path / "state0", tmp_path / "moved"))
    site.run(predict=saved)
    found = site.written()
    assert list(found) == [f"0 r{n}" for n in range(6)]
    assert list(found.values()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("secure", ["on", "off"])
def test_held_out_rows_with_labels_are_judged_in_the_run(make_site, tmp_path, monkeypatch, secure):
    """A client that missed the last round predicts with its last weights."""
    site, saved, told = make_site("pof-mkl"), tmp_path / "model.npz", tmp_path / "result.json"
    real = OnlineKernelClient.train_personal

    @functools.wraps(real)
    def train(client: OnlineKernelClient, request: Any) -> Any:
        if client.partition == 1 and request.round == 12 and secure == "off":
            raise OSError
        return real(client, request)

    labels = {k: table["y_test"] for k, table in enumerate(streams()) if k < 2}
    for k, y in labels.items():
        site.write(k, "_test", power=50.0 + 100.0 * y)
    with monkeypatch.context() as patch:
        patch.setattr(OnlineKernelClient, "train_personal", train)
        site.run(secure=secure, model=saved, result=told)
        expected = site.expected()
    result = json.loads(told.read_text())
    assert (result["privacy"]["protocol"] == "plain") == (secure == "off")
    found = np.array([expected[f"{k} {n}"] for k in labels for n in range(6)])
    error = np.mean(((found - 50.0) / 100.0 - np.concatenate([*labels.values()])) ** 2)
    assert result["metrics"]["test_mse"] == pytest.approx(error, rel=1e-6)
    site.run(predict=saved)
    assert site.written() == pytest.approx(expected, rel=1e-6)


# -- FedCFK


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
    make_site: Make, given: Given, tmp_path: Path, caplog: Any, monkeypatch: Any
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
    here = site.here().sites
    for k in range(4):
        assert {"projections.csv"} < {p.name for p in (tmp_path / f"out/{k}").iterdir()}
    for name, values in site.sites.written().items():
        assert np.abs(values) == pytest.approx(np.abs(here.written()[name]), abs=1e-9)
