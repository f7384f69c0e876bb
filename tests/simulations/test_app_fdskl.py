"""The Flower app of FDSKL: `flwr run` is `simulate`, deployed nodes give the pooled model."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.errors import FedKernError, ProtocolError
from fedkern_flwr.frequencies import draw_directions, draw_offsets
from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations import InProcessGrid
from fedkern_flwr.simulations.deployment.run_config import app_folder
from fedkern_flwr.simulations.methods.registry import options
from fedkern_flwr.strategies import FDSKL

APP = "fdskl"
MODULES = ("own_table", "client_app", "server_app")
ROWS, FEATURES, GAMMA, PENALTY = 60, 40, 1.5, 1e-2


@pytest.fixture
def app(import_app: Callable[..., SimpleNamespace]) -> SimpleNamespace:
    return import_app(APP, *MODULES)


@pytest.fixture
def run(app: SimpleNamespace) -> Callable[..., None]:
    """Return a function that runs the app in process on nodes of the given configurations."""

    def run_app(nodes: list[dict[str, Any]], **config: Any) -> None:
        changes = {name.replace("_", "-"): value for name, value in config.items()}
        assert set(changes) <= set(app.config)
        own = {**app.config, **changes}
        grid = InProcessGrid(app.client_app.app, len(nodes))
        for context, node in zip(grid.contexts.values(), nodes, strict=True):
            context.node_config.update(node)
            context.run_config.update(own)
        app.server_app.app(grid, Context(1, 1, {}, RecordDict(), own))

    return run_app


class Parties:
    """Three parties with two columns each; the first ``actives`` have labels and new rows.

    Passive parties have new rows among the others, or in a file of their own.
    """

    def __init__(self, folder: Path, actives: int = 1) -> None:
        rng = np.random.default_rng(5)
        self.folder, self.actives = folder, actives
        self.x = rng.random((ROWS, 6))
        self.y = np.where(self.x.sum(axis=1) > 3.0, 1.0, -1.0)
        self.ids = [f"p{i:03d}" for i in range(ROWS)]
        self.train, self.new = np.split(rng.permutation(ROWS), [45])
        self.owner = np.arange(ROWS) % actives
        self.units = 20.0 + 60.0 * self.x  # the data's own units
        self.seeds = [bytes([k + 1]) * 32 for k in range(3)]
        (folder / "alignment").write_text("ab" * 32 + "\n")
        (folder / "short").write_text("abcd")
        self.nodes: list[dict[str, Any]] = []
        for k, columns in enumerate(("ab", "cd", "ef")):
            (folder / f"seed{k}").write_text(self.seeds[k].hex())
            (folder / f"ranges{k}.json").write_text(json.dumps({c: [20, 80] for c in columns}))
            node: dict[str, Any] = {"role": "passive", "data": f"known{k}.csv"}
            if k < actives:
                # rows that another active party learns from or predicts are here without a label
                mine = self.owner == k
                labels = {r: "ok" if self.y[r] > 0.0 else "bad" for r in self.train if mine[r]}
                new = [r for r in self.new if mine[r]]
                known = [r for r in range(ROWS) if r not in new]
                self.write(f"known{k}.csv", k, rng.permutation(known), labels)
                self.write(f"new{k}.csv", k, new)
                node |= {"role": "active", "label-column": "state", "classes": "ok,bad"}
                node |= {"test-data": f"new{k}.csv", "predictions": f"predictions{k}.csv"}
            elif k == 1:
                self.write("known1.csv", 1, rng.permutation(self.train))
                self.write("new1.csv", 1, self.new)
                node["test-data"] = "new1.csv"
            else:
                order = rng.permutation(ROWS)
                x, ids = self.units[order, 4:], np.array(self.ids)[order]
                np.savez(folder / "all.npz", X=x, key=ids, feature_names=np.array(["e", "f"]))
                node["data"] = "all.npz"
            node |= {"ranges": f"ranges{k}.json", "frequency-seed": f"seed{k}"}
            node |= {"alignment-key": "alignment", "state-dir": f"state{k}"}
            paths = {k: str(folder / v) for k, v in node.items() if k not in _PLAIN}
            self.nodes.append({**node, **paths, "id-column": "key"})

    def write(
        self, name: str, party: int, rows: Iterable[int], labels: dict[int, str] | None = None
    ) -> None:
        columns = slice(2 * party, 2 * party + 2)
        with (self.folder / name).open("w", newline="") as file:
            writer = csv.writer(file)
            last = [] if labels is None else ["state"]
            writer.writerow(["key", *"abcdef"[columns], *last])
            for row in rows:
                label = [] if labels is None else [labels.get(int(row), "")]
                writer.writerow(
                    [self.ids[row], *map(repr, self.units[row, columns].tolist()), *label]
                )

    def predictions(self) -> dict[str, tuple[float, str]]:
        """Return id -> (output, class) as the active parties wrote them, and remove their files."""
        found = {}
        for k in range(self.actives):
            path = self.folder / f"predictions{k}.csv"
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    found[row["id"]] = (float(row["output_0"]), row["class"])
            path.unlink()
        return found

    def context(self, number: int, config: dict[str, Any], **change: Any) -> Context:
        """Return the context of a node, with another configuration."""
        node = {**self.nodes[number], **{k.replace("_", "-"): v for k, v in change.items()}}
        node = {k: v for k, v in node.items() if v is not None}
        node |= {"partition-id": number, "num-partitions": 3}
        return Context(1, 1, node, RecordDict(), config)


_PLAIN = {"role", "label-column", "classes"}


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties(tmp_path)


def pooled_outputs(parties: Parties, first: int = 0) -> np.ndarray:
    """Return what a single owner of all columns predicts for the new rows, plain NumPy.

    The columns are those of the parties from the ``first``.
    """
    seeds = parties.seeds[first:]
    omega = [draw_directions(s, 0, FEATURES, 2, "rbf", GAMMA) for s in seeds]
    b = sum(draw_offsets(s, 0, FEATURES, "rbf", GAMMA) for s in parties.seeds)
    z = np.sqrt(2.0 / FEATURES) * np.cos(parties.x[:, 2 * first :] @ np.hstack(omega).T + b)
    train, labels = z[parties.train], parties.y[parties.train]
    n = len(train)
    normal = 2.0 / n * train.T @ train + PENALTY * np.eye(FEATURES)
    return np.asarray(z[parties.new] @ np.linalg.solve(normal, 2.0 / n * train.T @ labels))


ONE_SHOT = {"data": "", "features": FEATURES, "gamma": GAMMA, "regularization": PENALTY}
ONE_SHOT |= {"phase_bits": 32, "loss": "square"}
STREAMING = {"data": "", "schedule": "streaming", "num_rounds": 12, "directions": 4, "batch": 6}


def test_deployed_nodes_give_the_pooled_model_and_predict_new_rows(
    run: Callable[..., None], parties: Parties, tmp_path: Path
) -> None:
    saved = str(tmp_path / "model.npz")
    run(parties.nodes, **ONE_SHOT, model=saved)
    arrays, meta = load_model(Path(saved))
    assert arrays == {}  # the coefficients stay with the active party
    assert meta["columns"] == 6
    expected = pooled_outputs(parties)

    def check() -> None:
        found = parties.predictions()
        assert set(found) == {parties.ids[r] for r in parties.new}
        for row, output in zip(parties.new, expected, strict=True):
            value, decided = found[parties.ids[row]]
            # text classes are sorted: bad, ok
            assert value == pytest.approx(output, rel=0, abs=1e-6)
            assert decided == str(int(output >= 0.0))

    check()
    run(parties.nodes, data="", predict=saved)
    check()
    for row in (0, 1):  # rows that come later, predicted alone
        parties.write(f"later{row}.csv", 0, parties.new[row : row + 1])
        parties.nodes[0]["test-data"] = str(tmp_path / f"later{row}.csv")
        run(parties.nodes, data="", predict=saved)
        ((name, (value, _)),) = parties.predictions().items()
        assert name == parties.ids[parties.new[row]]
        assert value == pytest.approx(expected[row], rel=0, abs=1e-6)


def test_an_active_party_may_have_labels_and_no_columns(
    run: Callable[..., None], parties: Parties, tmp_path: Path
) -> None:
    known = [[parties.ids[r], "ok" if parties.y[r] > 0.0 else "bad"] for r in parties.train]
    new = [[parties.ids[r]] for r in parties.new]
    for name, lines in (("known0", [["key", "state"], *known]), ("new0", [["key"], *new])):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(lines)
    del parties.nodes[0]["ranges"]
    saved, expected = str(tmp_path / "model.npz"), pooled_outputs(parties, first=1)
    run(parties.nodes, **ONE_SHOT, model=saved)
    for again in (False, True):
        if again:
            run(parties.nodes, data="", predict=saved)
        found = parties.predictions()
        assert set(found) == {parties.ids[r] for r in parties.new}
        for row, output in zip(parties.new, expected, strict=True):
            assert found[parties.ids[row]][0] == pytest.approx(output, rel=0, abs=1e-6)


def test_two_active_parties_stream_and_predict_the_same_again(
    run: Callable[..., None], tmp_path: Path
) -> None:
    parties, saved = Parties(tmp_path, actives=2), str(tmp_path / "model.npz")
    run(parties.nodes, **STREAMING, evaluate_every=5, model=saved)
    first = parties.predictions()
    assert set(first) == {parties.ids[r] for r in parties.new}
    assert len({value for value, _ in first.values()}) == len(first)
    run(parties.nodes, data="", predict=saved)
    again = parties.predictions()
    for name, (value, decided) in first.items():
        assert again[name][0] == pytest.approx(value, rel=0, abs=1e-9)
        assert again[name][1] == decided


def test_ranges_are_written_once_and_kept(
    app: SimpleNamespace, run: Callable[..., None], parties: Parties, tmp_path: Path
) -> None:
    """A party may scale by its own rows; what it learned from is what it predicts with."""
    path, saved = tmp_path / "own" / "ranges.json", str(tmp_path / "model.npz")
    parties.nodes[2]["ranges"] = str(path)
    with pytest.raises(FedKernError, match="the file of ranges cannot be read"):
        app.client_app.make_client(parties.context(2, {**app.config, "predict": saved}))
    assert not path.exists()
    run(parties.nodes, **ONE_SHOT, model=saved)
    assert path.stat().st_mode & 0o077 == 0
    written = json.loads(path.read_text())
    assert written["e"] == [parties.units[:, 4].min(), parties.units[:, 4].max()]
    first = parties.predictions()
    # later there are more rows, with larger values; one of them is new
    far = np.vstack([parties.units[:, 4:], [[500.0, 900.0]]])
    names = np.array(["e", "f"])
    np.savez(tmp_path / "more.npz", X=far, key=np.array([*parties.ids, "new"]), feature_names=names)
    parties.nodes[2]["data"] = str(tmp_path / "more.npz")
    run(parties.nodes, data="", predict=saved)
    again = parties.predictions()
    for name, (value, _) in first.items():
        assert again[name][0] == pytest.approx(value, rel=0, abs=1e-9)
    client = app.client_app.make_client(parties.context(2, app.config))
    assert client.table.features_of(np.array([ROWS])).tolist() == [[1.0, 1.0]]  # clipped
    assert json.loads(path.read_text()) == written


def test_constant_columns_have_a_range(app: SimpleNamespace, parties: Parties) -> None:
    path = parties.folder / "same.json"
    parties.units[:, 0] = 7.0
    parties.write("known0.csv", 0, parties.train, {int(r): "ok" for r in parties.train})
    context = parties.context(0, app.config, ranges=str(path))
    client = app.client_app.make_client(context)
    assert json.loads(path.read_text())["a"] == [7.0, 8.0]
    assert client.table.x[:, 0].tolist() == [0.0] * 45


def test_simulated_nodes_predict_with_a_saved_model(
    run: Callable[..., None], tmp_path: Path
) -> None:
    config = {"data": "iris", "active_parties": 2, "state_dir": str(tmp_path / "state")}
    model, folders = str(tmp_path / "model.npz"), [tmp_path / "first", tmp_path / "second"]
    run([{}] * 3, **{**STREAMING, **config}, model=model, predictions=str(folders[0]))
    run([{}] * 3, **config, predict=model, predictions=str(folders[1]))
    first, second = (
        np.vstack([np.loadtxt(f / f"partition-{h}.csv", delimiter=",", skiprows=1) for h in (0, 1)])
        for f in folders
    )
    assert first.shape == (36, 5)  # row, three outputs, class
    np.testing.assert_allclose(first, second, rtol=0.0, atol=1e-9)
    with pytest.raises(ProtocolError, match="this node has no table"):
        run([{}] * 3, data="")


@pytest.mark.parametrize("schedule", ["one-shot", "streaming"])
def test_a_run_that_broke_off_is_resumed(
    schedule: str,
    run: Callable[..., None],
    parties: Parties,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, Any] = {**ONE_SHOT}
    if schedule == "streaming":
        options = {**STREAMING, "checkpoint_every": 4, "phase_bits": 32}
    checkpoint = {"checkpoint": str(tmp_path / "checkpoint.npz")}
    run(parties.nodes, **options)
    whole = parties.predictions()
    real, pulls = InProcessGrid.pull_messages, iter(range(2 if schedule == "one-shot" else 8))

    def pull(grid: InProcessGrid, message_ids: Any) -> Any:
        if next(pulls, None) is None:
            raise KeyboardInterrupt
        return real(grid, message_ids)

    with monkeypatch.context() as patch:
        patch.setattr(InProcessGrid, "pull_messages", pull)
        with pytest.raises(KeyboardInterrupt):
            run(parties.nodes, **options, **checkpoint)
    stage = load_arrays(tmp_path / "checkpoint.npz")[1]["stage"]
    assert stage == {"one-shot": "begun", "streaming": "iterating"}[schedule]
    run(parties.nodes, **options, **checkpoint, resume=True)
    for name, (value, decided) in parties.predictions().items():
        assert value == pytest.approx(whole[name][0], rel=0, abs=1e-6)
        assert decided == whole[name][1]


@pytest.mark.parametrize(
    ("node", "change", "text"),
    [
        (0, {"data": "gone.csv"}, "there is no file gone.csv"),
        (0, {"role": None}, "this node has no role; add role="),
        (2, {"role": "doctor"}, "this node has no role"),
        (
            0,
            {"role": "passive"},
            "a passive party has labels; leave them out, or make it an active",
        ),
        (2, {"role": "active"}, "all.npz has no label array 'y'"),
        (1, {"role": "active"}, "the label column of known1.csv is not named"),
        (
            0,
            {"data": "{folder}/unlabelled.csv", "classes": None},
            "an active party has no labels to learn from",
        ),
        (0, {"data": "{folder}/lacking.csv"}, "2 rows of lacking.csv lack a value or an id; leave"),
        (0, {"alignment_key": None}, "there is no alignment key"),
        (0, {"alignment_key": "gone"}, "the file of the alignment key cannot be read"),
        (0, {"alignment_key": "{folder}/short"}, "the alignment key has 2 bytes, at least 16"),
        (1, {"frequency_seed": "{folder}/known1.csv"}, "the file of the frequency seed cannot be"),
        (1, {"frequency_seed": "{folder}/short"}, "2 bytes instead of 32"),
        (2, {"ranges": None}, "there are values beyond 0 and 1; name a file of ranges"),
        (2, {"ranges": "{folder}/ranges1.json"}, "there is no range of column 'e'"),
        (2, {"ranges": "{folder}/flat.json"}, "a range is empty or infinite"),
        (2, {"ranges": "{folder}/alignment"}, "the file of ranges cannot be read"),
        (2, {"ranges": "{folder}/alignment/new.json"}, "the file of ranges cannot be read or writ"),
        (0, {"classes": "ok,perhaps"}, "are none of 2 classes; name all classes"),
        (0, {"classes": "0,1"}, "are none of 2 classes"),
        (0, {"label_column": "fate"}, "known0.csv has no label column 'fate'"),
        (0, {"id_column": "name"}, "known0.csv has no id column 'name'"),
        (0, {"id_column": None}, "column 'key' of known0.csv is not numeric"),
        (0, {"test_data": "gone.csv"}, "there is no file gone.csv"),
        (1, {"test_data": "{folder}/new0.csv"}, "the test data does not have the columns of the"),
        (0, {"frequencies": "open"}, "frequencies"),
        (0, {"topology": "ring"}, "topology"),
        (0, {"label_bound": 0}, "label_bound is 0"),
    ],
)
def test_a_bad_configuration_of_a_node_is_one_line(
    app: SimpleNamespace, parties: Parties, node: int, change: dict[str, Any], text: str
) -> None:
    folder = parties.folder
    (folder / "flat.json").write_text(json.dumps({"e": [20, 20], "f": [1, 2]}))
    (folder / "unlabelled.csv").write_text("key,a,b,state\np001,1,2,\np002,3,4,\n")
    (folder / "lacking.csv").write_text("key,a,b,state\np001,1,,ok\n,3,4,ok\np003,3,4,ok\n")
    change = {k: v.format(folder=folder) if isinstance(v, str) else v for k, v in change.items()}
    app.client_app.make_client(parties.context(node, app.config))
    with pytest.raises(FedKernError) as error:
        app.client_app.make_client(parties.context(node, app.config, **change))
    assert text in str(error.value)
    assert "\n" not in str(error.value)
    assert not re.search(r"\bp0\d\d", str(error.value))


def test_rows_that_lack_a_value_are_left_out_if_the_run_says_so(
    app: SimpleNamespace, run: Callable[..., None], parties: Parties, tmp_path: Path
) -> None:
    path = parties.folder / "known1.csv"
    lines = path.read_text().splitlines()
    lines[1] = lines[1].rpartition(",")[0] + ","
    path.write_text("\n".join(lines))
    with pytest.raises(FedKernError, match=r"1 rows of known1.csv lack a value .*drop-row"):
        app.client_app.make_client(parties.context(1, app.config))
    run(parties.nodes, **ONE_SHOT, missing="drop-row", model=str(tmp_path / "model.npz"))
    path.with_name("empty.csv").write_text("key,c,d\np001,1,\np002,,4\n")
    context = parties.context(
        1, {**app.config, "missing": "drop-row"}, data=str(path.with_name("empty.csv"))
    )
    with pytest.raises(FedKernError, match=r"every row of empty.csv lacks a value"):
        app.client_app.make_client(context)
    assert len(parties.predictions()) == 15
    assert load_model(tmp_path / "model.npz")[1]["missing"] == "drop-row"


def test_rows_that_are_joined_by_their_order_are_never_left_out(
    app: SimpleNamespace, tmp_path: Path
) -> None:
    """Were each of two parties to drop another row, the rows in between would be joined wrongly."""
    path = tmp_path / "bare.csv"
    path.write_text("c,d\n0.1,\n0.2,0.4\n0.3,0.5\n")
    node = {"role": "passive", "data": str(path), "partition-id": 1, "num-partitions": 2}
    context = Context(1, 1, node, RecordDict(), {**app.config, "missing": "drop-row"})
    with pytest.raises(FedKernError, match=r"1 rows of bare.csv lack a value .* by their place"):
        app.client_app.make_client(context)


def test_nodes_take_part_in_the_paper_s_modes_only_if_they_say_so(
    run: Callable[..., None], parties: Parties
) -> None:
    for change, text in (
        ({"frequencies": "shared"}, "frequencies 'private' only, not 'shared'"),
        ({"topology": "tree"}, "topology 'star' only, not 'tree'"),
    ):
        with pytest.raises(ProtocolError, match=text):
            run(parties.nodes, **ONE_SHOT, **change)
        for node in parties.nodes:
            node |= change
        run(parties.nodes, **ONE_SHOT, **change)
        assert len(parties.predictions()) == 15
        for node in parties.nodes:
            del node[next(iter(change))]


def test_a_party_that_is_alone_with_the_active_one_must_allow_it(
    run: Callable[..., None], parties: Parties
) -> None:
    nodes = parties.nodes[:2]
    with pytest.raises(FedKernError, match="partition 1 alone has columns beside partition 0"):
        run(nodes, **ONE_SHOT)
    with pytest.raises(ProtocolError, match="partition 1"):
        run(nodes, **ONE_SHOT, allow_single=True)
    nodes[1]["allow-single"] = True
    run(nodes, **ONE_SHOT, allow_single=True)
    assert len(parties.predictions()) == 15


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
    assert {option.name.replace("_", "-") for option in options(FDSKL)} <= set(app.config)
    made = app.server_app.make_strategy(app.config)
    assert vars(made).keys() == vars(FDSKL()).keys()
    for name, value in vars(FDSKL(seed=0)).items():
        if not name.startswith("_") and not name.endswith("_"):
            assert str(getattr(made, name)) == str(value), name


def test_every_option_of_the_app_reaches_the_strategy(app: SimpleNamespace) -> None:
    given = {
        "directions": 3,
        "batch": 5,
        "step": 0.25,
        "step-schedule": "diminishing",
        "evaluate-every": 7,
        "checkpoint-every": 9,
        "loss": "logistic",
        "kernel": "laplacian",
        "gamma": 2.0,
        "regularization": 0.5,
        "frequencies": "shared",
        "phase-bits": 32,
        "topology": "tree",
        "missing": "drop-row",
        "allow-single": True,
        "attempts": 2,
        "seed": 4,
        "node-timeout": 3.0,
    }
    made = app.server_app.make_strategy({**app.config, "schedule": "streaming", **given})
    attributes = {"step": "step_length"}
    for name, value in given.items():
        assert getattr(made, attributes.get(name, name.replace("-", "_"))) == value, name
    assert app.server_app.make_strategy({**app.config, "features": 11}).features == 11


def test_what_cannot_predict_is_refused_in_a_line(
    run: Callable[..., None], parties: Parties, tmp_path: Path
) -> None:
    saved, other = tmp_path / "model.npz", tmp_path / "other.npz"
    run(parties.nodes, **ONE_SHOT, model=str(saved))
    arrays, meta = load_arrays(saved)

    def refused(path: Path = saved, number: int = 0, **change: Any) -> str:
        nodes = [dict(node) for node in parties.nodes]
        change = {**nodes[number], **{k.replace("_", "-"): v for k, v in change.items()}}
        nodes[number] = {k: v for k, v in change.items() if v is not None}
        with pytest.raises(FedKernError) as error:
            run(nodes, data="", predict=str(path))
        assert "\n" not in str(error.value)
        return str(error.value)

    def wrong(**change: Any) -> str:
        save_arrays(other, arrays, {**meta, **change})
        return refused(other)

    head = meta["file"]
    assert "is a model of fed-cg, not of fdskl" in wrong(file={**head, "method": "fed-cg"})
    assert "upgrade fedkern-flwr" in wrong(file={**head, "version": 2})
    assert "what this party kept of the model is not here any more" in wrong(session="ab" * 8)
    other.write_bytes(saved.read_bytes()[:300])
    assert "is damaged or not a model" in refused(other)
    for number in (0, 2):
        text = refused(number=number, state_dir=None)
        assert f"partition {number}: what this party kept of the model is not here any more" in text
    assert "there is nowhere to write the predictions" in refused(predictions=None)
    assert "there are no rows to predict" in refused(test_data=None)
