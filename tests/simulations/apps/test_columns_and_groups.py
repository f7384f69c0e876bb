"""What the apps of parties with columns, hospitals and groups promise beside the contract."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from app_sites import FDSKLSite, HorizontalSite, cells, write
from other_sites import SITES

from fedkern_flwr.encoding.kept import KeptEncoder
from fedkern_flwr.model_file import load_model
from fedkern_flwr.tables import load_table
from fedkern_flwr.tables.table import Table

Make = Callable[[str], Any]
Refusal = Callable[..., str]


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


@pytest.mark.parametrize(("name", "node"), [("fed-cg", 3), ("fdskl", 2)])
def test_a_node_encodes_a_block_of_its_own(
    make_site: Make, tmp_path: Path, refusal: Refusal, name: str, node: int
) -> None:
    """Text is a column for each category; later runs and predictions have the same encoder."""
    site, saved = make_site(name), tmp_path / "model.npz"
    path = colours_of(site, node, tmp_path)
    for run in ({"predict": saved}, {"resume": True}):
        assert "the file of the encoder cannot be read" in refusal(site.client, node, run=run)
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


@pytest.mark.parametrize(("name", "node"), [("fed-cg", 3), ("fdskl", 2)])
def test_an_encoder_that_does_not_serve_is_refused(
    make_site: Make, tmp_path: Path, refusal: Refusal, name: str, node: int
) -> None:
    site = make_site(name)
    path = colours_of(site, node, tmp_path)
    site.nodes[node]["ranges"] = str(site.folder / "ranges.json")
    assert "this node has ranges and an encoder of its own; leave" in refusal(site.client, node)
    del site.nodes[node]["ranges"]
    path.parent.mkdir()
    path.write_text("{}")
    assert "this is not an encoder" in refusal(site.client, node)
    path.write_text("red")
    assert "the file of the encoder cannot be read; name" in refusal(site.client, node)
    site.nodes[node]["encoder"] = str(site.folder / "colours.csv" / "e.json")
    assert "the file of the encoder cannot be written; name" in refusal(site.client, node)


def test_holders_of_a_block_with_encoders_of_their_own_are_told_apart(tmp_path: Path) -> None:
    """What they are called tells nothing of the rows, so that it is drawn."""
    table = Table(np.array([[1.0], [2.0]]), None, ("a",))
    first, second = (KeptEncoder.fit(tmp_path / name, table) for name in "ab")
    assert first.encoder == second.encoder
    assert first.names != second.names
    assert KeptEncoder.read(tmp_path / "a").names == first.names


# -- Encoders that several holders have in common


@pytest.fixture
def preparation(tmp_path: Path, import_app: Callable[..., SimpleNamespace]) -> Any:
    """Return the app that finds encoders, for the nodes of another one."""
    (folder := tmp_path / "preparation").mkdir()
    return SITES["ranges"](folder, import_app)


def holders_with_text(site: Any, folder: Path, nodes: Sequence[int]) -> None:
    """Give nodes a column of text, a date and gaps beside theirs, and the name of an encoder."""
    rng = np.random.default_rng(4)
    (folder / "categories").write_text("cd" * 32)
    for node in nodes:
        own = site.nodes[node]
        own.pop("ranges", None)
        own |= {"encoder": str(folder / f"own{node}" / "encoder.json")}
        own |= {"category-key": str(folder / "categories")}
        for key in {"data", "test-data"} & own.keys():
            with Path(own[key]).open(newline="") as file:
                heads, *lines = csv.reader(file)
            for line in lines:
                wards = [f"north{node % 2}", "south", ""]
                line += [str(rng.choice(wards, p=[0.5, 0.3, 0.2])), f"2024-0{node + 1}-17"]
            own[key] = str(folder / f"{key}{node}.csv")
            write(Path(own[key]), [*heads, "ward", "seen"], *zip(*lines, strict=True))


def encoded_by_hand(own: dict[str, Any], folder: Path, node: int) -> dict[str, Any]:
    """Return the configuration of a node whose tables were encoded beforehand."""
    kept = KeptEncoder.read(Path(own["encoder"]))
    found = {k: v for k, v in own.items() if k not in ("encoder", "state-dir")}
    for key in {"data", "test-data"} & own.keys():
        label = "state" if key == "data" else None
        how = {"label": label, "labelled": label is not None, "missing": "keep"}
        ids = own.get("id-column")
        table = load_table(own[key], id_column=ids, kinds=kept.encoder.kinds, **how)  # type: ignore[arg-type]
        x = kept.encoder.transform(table)
        heads, columns = list(kept.encoder.outputs), cells(x)
        if table.ids is not None:
            heads, columns = ["key", *heads], [table.ids.tolist(), *columns]
        if table.y is not None:
            heads, columns = [*heads, "state"], [*columns, [table.classes[int(k)] for k in table.y]]
        found[key] = str(write(folder / f"made-{key}{node}.csv", heads, *columns))
    return found


@pytest.mark.parametrize(
    ("name", "nodes", "more", "config"),
    [
        ("fed-cg", (0, 1), {"block": "clinical"}, {"landmarks": 12}),
        ("horizontal", (0, 1, 2, 3), {}, {"num_rounds": 10}),
    ],
)
def test_holders_of_a_block_have_one_encoder(
    make_site: Make,
    preparation: Any,
    tmp_path: Path,
    refusal: Refusal,
    name: str,
    nodes: tuple[int, ...],
    more: Any,
    config: Any,
) -> None:
    """That of the app ranges: what it makes of text, dates and gaps is learned from everywhere."""
    site = make_site(name)
    holders_with_text(site, tmp_path, nodes)
    for node in nodes:
        site.nodes[node] |= more
    preparation.nodes = [site.nodes[node] for node in nodes]
    refusal(site.run, **config)  # nothing is common yet
    assert not site.written()
    preparation.run(labels=False)
    encoders = [KeptEncoder.read(Path(site.nodes[node]["encoder"])) for node in nodes]
    assert len({one.names for one in encoders}) == 1
    outputs = encoders[0].encoder.outputs
    assert {"ward[missing]", "seen[month]"} <= set(outputs)
    assert sum(one.startswith("ward[") for one in outputs) >= 4
    saved, again = tmp_path / "model.npz", tmp_path / "again.npz"
    site.run(model=saved, **config)
    found = site.written()
    assert set(found) >= set(site.ids[site.new]) or len(found) == len(site.new)
    site.run(predict=saved)
    assert site.written() == pytest.approx(found, rel=0, abs=1e-9)
    for node in nodes:
        site.nodes[node] = encoded_by_hand(site.nodes[node], tmp_path, node)
    for own in site.nodes:
        own.pop("state-dir", None)
    site.run(model=again, **config)
    assert site.written() == pytest.approx(found, rel=0, abs=1e-6)


@pytest.mark.parametrize("name", ["horizontal", "pof-mkl", "kernel-pca"])
def test_without_a_common_encoder_rows_are_not_encoded_alone(
    make_site: Make, tmp_path: Path, refusal: Refusal, name: str
) -> None:
    site, path = make_site(name), tmp_path / "own" / "encoder.json"
    change = {"encoder": str(path), "ranges": None}
    assert "the file of the encoder cannot be read; name" in refusal(site.client, 0, **change)
    assert not path.exists()


@pytest.mark.parametrize(("name", "label"), [("pof-mkl", "power"), ("kernel-pca", "state")])
def test_rows_are_encoded_as_by_all_nodes(
    make_site: Make,
    preparation: Any,
    tmp_path: Path,
    given: Callable[..., Any],
    name: str,
    label: str,
) -> None:
    site = make_site(name)
    nodes = range(len(site.nodes))
    for node in nodes:
        own = site.nodes[node]
        own.pop("ranges", None)
        own |= {"encoder": str(tmp_path / f"e{node}.json")}
        if name == "pof-mkl":
            own["scaling"] = str(tmp_path / f"s{node}.json")
    preparation.nodes = [{k: v for k, v in own.items() if k != "state-dir"} for own in site.nodes]
    preparation.run(labels=True)
    arguments = [given(site, node) for node in nodes]
    assert len({tuple(one["columns"]) for one in arguments}) == 1
    for node, found in enumerate(arguments):
        encoder = KeptEncoder.read(Path(site.nodes[node]["encoder"])).encoder
        ids = site.nodes[node].get("id-column")
        table = load_table(site.nodes[node]["data"], label=label, id_column=ids)
        length = len(encoder.outputs) ** 0.5 if name == "pof-mkl" else 1.0
        np.testing.assert_allclose(found["x"], encoder.transform(table) / length, atol=1e-15)
        if name == "pof-mkl":
            assert np.linalg.norm(found["x"], axis=1).max() <= 1.0


# -- FDSKL


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


def test_an_active_party_may_have_labels_and_no_columns(
    tmp_path: Path, import_app: Callable[..., SimpleNamespace]
) -> None:
    site, saved = LabelsAloneSite(tmp_path, import_app), tmp_path / "model.npz"
    grid = site.run(model=saved)
    first = site.written()
    assert first == pytest.approx(site.expected(grid, saved), rel=0, abs=1e-6)
    site.run(predict=saved)
    assert site.written() == pytest.approx(first, rel=0, abs=1e-9)


def test_rows_that_come_later_are_predicted_alone(make_site: Make, tmp_path: Path) -> None:
    site, saved = make_site("fdskl"), tmp_path / "model.npz"
    expected = site.expected(site.run(model=saved), saved)
    site.written()
    for row in site.new[:2]:
        later = site.write(f"later{row}.csv", [row], slice(0, 2))
        site.nodes[0]["test-data"] = str(later)
        site.run(predict=saved)
        name = str(site.ids[row])
        assert site.written() == pytest.approx({name: expected[name]}, rel=0, abs=1e-6)


def test_two_active_parties_stream_and_predict_the_same_again(
    make_site: Make, tmp_path: Path
) -> None:
    site, saved = make_site("fdskl two"), tmp_path / "model.npz"
    site.run(model=saved)
    first = site.written()
    assert set(first) == set(site.ids[site.new])
    assert len(set(first.values())) == len(first)
    site.run(predict=saved)
    assert site.written() == pytest.approx(first, rel=0, abs=1e-9)


def test_ranges_are_written_once_and_kept(
    make_site: Make, tmp_path: Path, refusal: Refusal, given: Callable[..., dict[str, Any]]
) -> None:
    """A party may scale by its own rows; what it learned from is what it predicts with."""
    site, path, saved = make_site("fdskl"), tmp_path / "own" / "r.json", tmp_path / "model.npz"
    site.nodes[2]["ranges"] = str(path)
    for run in ({"predict": saved}, {"resume": True}):
        assert "the file of ranges cannot be read" in refusal(site.client, 2, run=run)
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


def test_constant_columns_have_a_range(
    make_site: Make, tmp_path: Path, given: Callable[..., dict[str, Any]]
) -> None:
    site, path = make_site("fdskl"), tmp_path / "same.json"
    site.units[:, 2] = 7.0
    site.write("known1.csv", site.train, slice(2, 4))
    x = given(site, 1, ranges=str(path), test_data=None)["x"]
    assert json.loads(path.read_text())["c"] == [7.0, 8.0]
    assert x[:, 0].tolist() == [0.0] * 42


def test_a_party_that_is_alone_with_the_active_one_must_allow_it(
    make_site: Make, refusal: Refusal
) -> None:
    site = make_site("fdskl")
    nodes = site.nodes[:2]
    assert "partition 1 alone has columns beside partition 0" in refusal(site.run, nodes)
    assert "partition 1" in refusal(site.run, nodes, allow_single=True)
    policy = site.folder / "policy.toml"
    policy.write_text("min_parties = 2\n")
    for node in nodes:
        node["policy"] = str(policy)
    nodes[1]["allow-single"] = True
    site.run(nodes, allow_single=True)
    assert len(site.written()) == 18


# -- FedCG


def test_holders_of_a_block_must_scale_it_alike(make_site: Make, refusal: Refusal) -> None:
    site = make_site("fed-cg")
    wide = site.folder / "wide.json"
    wide.write_text(json.dumps({c: [0, 100] for c in "ab"}))
    text = refusal(site.run, site.changed(1, ranges=str(wide)))
    assert "partition 1" in text
    assert "2 columns that differ" in text


# -- HierarchicalSVM


@pytest.mark.parametrize("model", ["linear", "rbf"])
def test_another_user_predicts_later_rows_without_labels(
    make_site: Make, tmp_path: Path, model: str
) -> None:
    from fedkern_flwr.groups.linear_model import outputs

    site, saved = make_site("horizontal"), tmp_path / "model.npz"
    option = {"rbf": {"model": "rbf"}}.get(model, {})
    run_with_option_model(site, saved, **option)
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


def run_with_option_model(site: HorizontalSite, saved: Path, **option: str) -> None:
    """Run with an option that is called as the file is elsewhere."""
    site.run(**{"saved-model": str(saved)}, num_rounds=5, **option)


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
    assert found["new"] == pytest.approx(float(np.append(fresh, 1.0) @ weights), abs=1e-6)
    one = float(np.append(site.units[known], 1.0) @ weights)
    assert found[ids[known]] == pytest.approx(one, abs=1e-6)


def test_a_vertical_split_that_cannot_predict_says_why_in_a_line(
    make_site: Make, tmp_path: Path, refusal: Refusal
) -> None:
    site, saved = make_site("vertical"), tmp_path / "model.npz"
    site.run(model=saved, num_rounds=3)
    site.written()

    def line(number: int, **change: Any) -> str:
        nodes = site.changed(number, **change)
        return refusal(site.run, nodes, predict=saved, partition="vertical")

    assert line(4, state_dir=None).endswith(
        "partition 4: this agent has no folder with its part of the model; give it the state-dir "
        "that it had when the model was made"
    )
    assert "partition 6: this owner kept no part of the model; give it the state-dir" in line(
        6, state_dir=str(tmp_path / "state5")
    )
    unknown = write(tmp_path / "unknown.csv", ["key"], ["nobody", site.ids[site.new[0]]])
    assert "group 0 does not hold 1 of the 2 held-out rows; check ids" in line(
        6, test_data=str(unknown)
    )
    assert site.written() == {}
    (part,) = (tmp_path / "state5").glob("*/partition-5.model")
    whole = part.read_bytes()
    part.write_bytes(whole[:100])
    assert "partition 5: the part of the model that this agent kept is damaged" in line(5)
    part.write_bytes(whole)
    swapped = [dict(node) for node in site.nodes]
    for k in range(4):
        swapped[k]["group"] = 1 - swapped[k]["group"]
    text = refusal(site.run, swapped, predict=saved, partition="vertical")
    assert "the nodes have other columns, groups or classes than the model" in text
    text = refusal(site.run, predict=saved)  # by which nodes read their tables
    assert 'the model is one of partition vertical; add partition="vertical" to --run' in text


def test_an_agent_needs_no_table(make_site: Make) -> None:
    site = make_site("horizontal")
    assert site.client(4).role == "agent"
    assert site.client(4).simulated is False
