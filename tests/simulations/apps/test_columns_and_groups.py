"""What the apps of parties with columns, hospitals and groups promise beside the contract."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_sites import FDSKLSite, Given, Import, Make, Refuses, write
from other_sites import SITES

from fedkern_flwr.encoding.kept import KeptEncoder
from fedkern_flwr.groups.linear_model import outputs
from fedkern_flwr.model_file import load_model
from fedkern_flwr.tables import load_table
from fedkern_flwr.tables.table import Table

# -- Encoders of a node's own


def colours_of(site: Any, node: int, folder: Path) -> Path:
    """Give a node a column of text instead of its two columns; return its encoder's file."""
    words = np.where(np.random.default_rng(2).random(60) < 0.4, "blue", "red")
    site.x[:, 4], site.x[:, 5] = words == "blue", words == "red"
    write_colours(site, words)
    path = folder / "own" / "encoder.json"
    own = {"data": str(site.folder / "colours.csv"), "encoder": str(path)}
    site.nodes[node] = {k: v for k, v in site.nodes[node].items() if k != "ranges"} | own
    return path


def write_colours(site: Any, words: Any) -> None:
    lines = [f"{name},{word},same" for name, word in zip(site.ids, words, strict=True)]
    (site.folder / "colours.csv").write_text("\n".join(["key,colour,still", *lines]) + "\n")


@pytest.mark.promise("encoder-private")
@pytest.mark.parametrize(("name", "node"), [("fed-cg", 3), ("fdskl", 2)])
def test_a_node_encodes_a_block_of_its_own(make_site, tmp_path, refuses, name, node):
    """Text is a column for each category; later runs and predictions have the same encoder."""
    site, saved = make_site(name), tmp_path / "model.npz"
    path = colours_of(site, node, tmp_path)
    for run in ({"predict": saved}, {"resume": True}):
        refuses("FK-FILE-READ", site.client, node, run=run)
        assert not path.exists()
    grid = site.run(model=saved)
    assert site.written() == pytest.approx(site.expected(grid, saved), rel=0, abs=1e-6)
    assert path.stat().st_mode & 0o077 == 0
    kept, words = path.read_text(), np.where(site.x[:, 4] > 0, "blue", "red")
    words[site.new[0]], words[site.new[1]] = "pink", ""
    site.x[site.new[:2], 4:] = 0.0
    write_colours(site, words)
    site.run(predict=saved)
    assert site.written() == pytest.approx(site.expected(grid, saved), rel=0, abs=1e-6)
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


def test_holders_of_a_block_with_encoders_of_their_own_are_told_apart(tmp_path: Path) -> None:
    """What they are called tells nothing of the rows, so that it is drawn."""
    table = Table(np.array([[1.0], [2.0]]), None, ("a",))
    first, second = (KeptEncoder.fit(tmp_path / name, table) for name in "ab")
    assert first.encoder == second.encoder
    assert first.names != second.names
    assert KeptEncoder.read(tmp_path / "a").names == first.names


def add_text(own: dict[str, Any], node: int, folder: Path) -> None:
    """Add a column of text with gaps and one of dates to the tables of a node."""
    rng = np.random.default_rng(4)
    for key in {"data", "test-data"} & own.keys():
        with Path(own[key]).open(newline="") as file:
            heads, *lines = csv.reader(file)
        for line in lines:
            wards = [f"north{node % 2}", "south", ""]
            line += [str(rng.choice(wards, p=[0.5, 0.3, 0.2])), f"2024-0{node + 1}-17"]
        own[key] = str(folder / f"{key}{node}.csv")
        write(Path(own[key]), [*heads, "ward", "seen"], *zip(*lines, strict=True))


@pytest.mark.parametrize(
    ("name", "count", "label"),
    [
        ("fed-cg", 2, "state"),
        ("horizontal", 4, "state"),
        ("pof-mkl", 4, "power"),
        ("kernel-pca", 3, "state"),
    ],
)
def test_holders_of_a_block_encode_rows_as_by_all_nodes(
    make_site: Make,
    import_app: Import,
    tmp_path: Path,
    given: Given,
    name: str,
    count: int,
    label: str,
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
            own["block"] = "clinical"
        if name in ("fed-cg", "horizontal"):
            own["category-key"] = str(tmp_path / "categories")
            add_text(own, node, tmp_path)
        if name == "pof-mkl":
            own["scaling"] = str(tmp_path / f"s{node}.json")
    preparation.nodes = [{k: v for k, v in own.items() if k != "state-dir"} for own in nodes]
    preparation.run(labels=name in ("pof-mkl", "kernel-pca"))
    assert len({KeptEncoder.read(Path(own["encoder"])).names for own in nodes}) == 1
    for node, own in enumerate(nodes):
        encoder, found = KeptEncoder.read(Path(own["encoder"])).encoder, given(site, node)
        how = {"label": label, "id_column": own.get("id-column"), "missing": "keep"}
        table = load_table(own["data"], kinds=encoder.kinds, **how)
        length = len(encoder.outputs) ** 0.5 if name == "pof-mkl" else 1.0
        np.testing.assert_allclose(found["x"], encoder.transform(table) / length, atol=1e-15)
        if name == "pof-mkl":
            assert np.linalg.norm(found["x"], axis=1).max() <= 1.0
        if name in ("fed-cg", "horizontal"):
            assert {"ward[missing]", "seen[month]"} <= set(encoder.outputs)
            assert sum(one.startswith("ward[") for one in encoder.outputs) == 4


# -- FDSKL and FedCG


class LabelsAloneSite(FDSKLSite):
    """The active party has no columns."""

    def build(self, rng: np.random.Generator) -> None:
        super().build(rng)
        nothing = slice(0, 0)
        self.write("known0.csv", self.train, nothing, self.words[self.train])
        self.write("new0.csv", self.new, nothing)
        del self.nodes[0]["ranges"]

    def expected(self, grid: Any, saved: Path, first: int = 1) -> dict[str, float]:
        return super().expected(grid, saved, first)


def test_an_active_party_may_have_labels_and_no_columns_and_rows_that_come_later(
    tmp_path: Path, import_app: Import
) -> None:
    site, saved = LabelsAloneSite(tmp_path, import_app), tmp_path / "model.npz"
    grid = site.run(model=saved)
    first = site.written()
    assert first == pytest.approx(site.expected(grid, saved), rel=0, abs=1e-6)
    row = site.new[0]
    site.nodes[0]["test-data"] = str(site.write("later.csv", [row], slice(0, 0)))
    site.run(predict=saved)
    name = str(site.ids[row])
    assert site.written() == pytest.approx({name: first[name]}, rel=0, abs=1e-9)


def test_two_active_parties_stream_and_predict_the_same_again(make_site, tmp_path):
    site, saved = make_site("fdskl two"), tmp_path / "model.npz"
    site.run(model=saved)
    first = site.written()
    assert set(first) == set(site.ids[site.new])
    assert len(set(first.values())) == len(first)
    site.run(predict=saved)
    assert site.written() == pytest.approx(first, rel=0, abs=1e-9)


def test_ranges_are_written_once_and_kept(make_site, tmp_path, refuses, given):
    """A party may scale by its own rows; what it learned from is what it predicts with."""
    site, path, saved = make_site("fdskl"), tmp_path / "own" / "r.json", tmp_path / "model.npz"
    site.nodes[2]["ranges"] = str(path)
    for run in ({"predict": saved}, {"resume": True}):
        refuses("FK-FILE-READ", site.client, 2, run=run)
        assert not path.exists()
    site.run(model=saved)
    assert path.stat().st_mode & 0o077 == 0
    written = json.loads(path.read_text())
    assert written["e"] == [site.units[:, 4].min(), site.units[:, 4].max()]
    first = site.written()
    # later there are more rows, with larger values; one of them is new
    far = np.vstack([site.units[:, 4:], [[500.0, 900.0]]])
    names, key = np.array(["e", "f"]), np.array([*site.ids, "new"])
    np.savez(tmp_path / "all.npz", X=far, key=key, feature_names=names)
    site.run(predict=saved)
    assert site.written() == pytest.approx(first, rel=0, abs=1e-9)
    assert given(site, 2)["x"][-1].tolist() == [1.0, 1.0]  # clipped
    assert json.loads(path.read_text()) == written


def test_a_party_that_is_alone_with_the_active_one_must_allow_it(make_site, refuses):
    site = make_site("fdskl")
    nodes = site.nodes[:2]
    refuses("FK-PARTIES-ALONE", site.run, nodes)
    assert "partition 1" in refuses("FK-ALONE-REFUSED", site.run, nodes, allow_single=True)
    policy = site.folder / "policy.toml"
    policy.write_text("min_parties = 2\n")
    for node in nodes:
        node["policy"] = str(policy)
    nodes[1]["allow-single"] = True
    site.run(nodes, allow_single=True)
    assert len(site.written()) == 18


def test_holders_of_a_block_must_scale_it_alike(make_site: Make, refuses: Refuses) -> None:
    site = make_site("fed-cg")
    wide = site.folder / "wide.json"
    wide.write_text(json.dumps({c: [0, 100] for c in "ab"}))
    assert "partition 1" in refuses(
        "FK-COLUMNS-DIFFER", site.run, site.changed(1, ranges=str(wide))
    )


# -- HierarchicalSVM


@pytest.mark.parametrize("option", [{}, {"model": "rbf"}])
def test_another_user_predicts_later_rows_without_labels(make_site, tmp_path, option):
    site, saved = make_site("horizontal"), tmp_path / "model.npz"
    site.run(**{"saved-model": str(saved)}, num_rounds=5, **option)
    expected = outputs(*load_model(saved), site.units)
    assert list(site.written().values()) == pytest.approx(expected[site.new, 0], abs=1e-12)
    rows = np.arange(40, 60)
    new = site.write("later.csv", rows, slice(0, 6), ids=False)
    site.nodes = site.changed(0, test_data=None, predictions=None)
    out = str(tmp_path / "predictions-later.csv")
    nodes = site.changed(3, test_data=str(new), predictions=out)
    for node in nodes:
        node.pop("state-dir")
    site.run(nodes, predict=saved)
    assert list(site.written().values()) == pytest.approx(expected[rows, 0], abs=1e-12)


def test_the_label_owner_predicts_rows_of_other_files_with_parts_that_nodes_kept(
    make_site: Make, tmp_path: Path
) -> None:
    site, saved = make_site("vertical"), tmp_path / "model.npz"
    for k in range(4):
        del site.nodes[k]["state-dir"]  # users keep nothing
    site.run(model=saved)
    expected = site.written()
    ids, new, known = site.ids, site.new, site.train[0]
    later = [ids[known], *ids[new[5:]], "new"]
    site.nodes[-1]["test-data"] = str(write(tmp_path / "later.csv", ["key"], later))
    fresh = np.array([25.0, 70.0, 33.0, 41.0, 52.0, 66.0])
    for user, columns in ((1, slice(0, 3)), (2, slice(3, 6))):
        heads = ["key", *"abcdef"[columns]]
        more = write(tmp_path / f"more{user}.csv", heads, ["new"], *([v] for v in fresh[columns]))
        site.nodes[user]["test-data"] = str(more)
    rest = site.train[1:]  # else it comes twice
    site.write("labels.csv", rest, slice(0, 0), site.words[rest])
    site.run(predict=saved, partition="vertical")
    found = site.written()
    assert list(found) == later
    for name in ids[new[5:]]:
        assert found[name] == pytest.approx(expected[name], abs=1e-9)
    design = np.column_stack([site.units[new], np.ones(18)])  # the model, from what it predicted
    weights = np.linalg.lstsq(design, np.array([expected[n] for n in ids[new]]), rcond=None)[0]
    for name, row in (("new", fresh), (ids[known], site.units[known])):
        assert found[name] == pytest.approx(float(np.append(row, 1.0) @ weights), abs=1e-6)


def test_a_vertical_split_that_cannot_predict_says_why_in_a_line(make_site, tmp_path, refuses):
    site, saved = make_site("vertical"), tmp_path / "model.npz"
    site.run(model=saved, num_rounds=3)
    site.written()

    def check(code: str, number: int, **change: Any) -> None:
        nodes, how = site.changed(number, **change), {"partition": "vertical"}
        assert f"partition {number}" in refuses(code, site.run, nodes, predict=saved, **how)

    check("FK-KEPT-NONE", 4, state_dir=None)
    check("FK-KEPT-NONE", 6, state_dir=str(tmp_path / "state5"))
    unknown = write(tmp_path / "unknown.csv", ["key"], ["nobody", site.ids[site.new[0]]])
    nodes = site.changed(6, test_data=str(unknown))
    refuses("FK-ROWS-LACKING", site.run, nodes, predict=saved, partition="vertical")
    assert site.written() == {}
    (part,) = (tmp_path / "state5").glob("*/partition-5.model")
    whole = part.read_bytes()
    part.write_bytes(whole[:100])
    check("FK-KEPT-OTHER", 5)
    part.write_bytes(whole)
    swapped = [dict(node) for node in site.nodes]
    for k in range(4):
        swapped[k]["group"] = 1 - swapped[k]["group"]
    refuses("FK-MODEL-PARTIES", site.run, swapped, predict=saved, partition="vertical")
    refuses("FK-MODEL-OPTIONS", site.run, predict=saved)  # by which nodes read their tables
