"""The Flower app of FedCFK: `flwr run` is `simulate`, deployed nodes rank as pooled data do."""

from __future__ import annotations

import csv
import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from fedkern_flwr.cf_komd import fit_user
from fedkern_flwr.checkpoint import load_arrays, save_arrays
from fedkern_flwr.errors import CheckpointError, FedKernError, ProtocolError
from fedkern_flwr.gram import unpack
from fedkern_flwr.model_file import load_model
from fedkern_flwr.ranking import rank_metrics
from fedkern_flwr.simulations import InProcessGrid
from fedkern_flwr.simulations.deployment.run_config import app_folder
from fedkern_flwr.simulations.methods.registry import options
from fedkern_flwr.strategies import FedCFK

APP = "fed_cfk"
MODULES = ("own_ratings", "client_app", "server_app")
ITEMS = [f"film-{k:02d}" for k in range(15)]
LEAST = 3  # users of an item


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
        client = ClientApp(
            client_fn=lambda context: app.client_app.make_client(context).to_client()
        )
        grid = InProcessGrid(client, len(nodes))
        for context, node in zip(grid.contexts.values(), nodes, strict=True):
            context.node_config.update(node)
            context.run_config.update(own)
        app.server_app.app(grid, Context(1, 1, {}, RecordDict(), own))

    return run_app


class Nodes:
    """Four nodes with 9, 7, 1 and 5 users; ratings are 1 to 5, those from 3 on are positive.

    Every node has another kind of file. Of each user a positive rating or two are held out.
    """

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(11)
        self.folder = folder
        taste = rng.normal(size=(22, 2)) @ rng.normal(size=(2, len(ITEMS)))
        self.stars = np.clip(np.rint(2.5 + taste + rng.normal(0.0, 0.5, taste.shape)), 1, 5)
        self.stars[rng.random(taste.shape) < 0.35] = 0  # not rated
        self.stars[2:, [6, 12]] = 0  # hardly anybody knows these
        self.stars[4] = np.where(self.stars[4] > 2, 2, self.stars[4])  # a user without taste
        self.held = (self.stars >= 3) & (rng.random(taste.shape) < 0.2)
        self.users = [f"s3cret-{u:02d}" for u in range(22)]
        self.parts = [range(0, 9), range(9, 16), range(16, 17), range(17, 22)]
        (folder / "items.txt").write_text("\n".join(ITEMS) + "\n\n")
        (folder / "items.csv").write_text("Title,Item\n" + "".join(f'"a, b",{i}\n' for i in ITEMS))
        self.nodes: list[dict[str, Any]] = []
        for k, (suffix, catalogue) in enumerate(
            (
                (".data", "items.txt"),
                (".csv", "items.csv"),
                (".tsv", "items.txt"),
                (".dat", "items.txt"),
            )
        ):
            for name, mask in (("known", ~self.held), ("new", self.held)):
                self.write(f"{name}{k}{suffix}", self.parts[k], (self.stars > 0) & mask)
            paths = {
                "data": f"known{k}{suffix}",
                "catalogue": catalogue,
                "test-data": f"new{k}{suffix}",
                "recommendations": f"out/recommendations{k}.csv",
                "state-dir": f"state{k}",
            }
            self.nodes.append({n: str(folder / p) for n, p in paths.items()} | {"min-rating": 3})

    def write(self, name: str, users: range, which: np.ndarray) -> None:
        rows = [
            (self.users[u], ITEMS[i], int(self.stars[u, i]), 880000000 + u)
            for i in range(len(ITEMS))
            for u in users
            if which[u, i]
        ]
        separator = {".csv": ",", ".dat": "::"}.get(Path(name).suffix, "\t")
        lines = [separator.join(map(str, row)) for row in rows]
        if name.endswith((".csv", ".tsv")):
            lines.insert(0, separator.join(("userId", "movieId", "rating", "timestamp")))
        (self.folder / name).write_text("\n".join(lines) + "\n")

    @property
    def liked(self) -> np.ndarray:
        return (self.stars >= 3) & ~self.held

    def recommended(self) -> dict[str, list[tuple[str, float]]]:
        """Return user -> items and scores as the nodes wrote them."""
        found: dict[str, list[tuple[str, float]]] = {}
        for k in range(4):
            with (self.folder / f"out/recommendations{k}.csv").open(newline="") as file:
                for row in csv.DictReader(file):
                    found.setdefault(row["user"], []).append((row["item"], float(row["score"])))
                    assert len(found[row["user"]]) == int(row["rank"])
        return found

    def context(self, number: int, config: dict[str, Any], **change: Any) -> Context:
        """Return the context of a node, with another configuration."""
        node = {**self.nodes[number], **{k.replace("_", "-"): v for k, v in change.items()}}
        node = {k: v for k, v in node.items() if v is not None}
        node |= {"partition-id": number, "num-partitions": 4}
        return Context(1, 1, node, RecordDict(), config)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def pooled_scores(nodes: Nodes) -> np.ndarray:
    """Return what an owner of all ratings gives every user for every item, plain NumPy."""
    x = nodes.liked.astype(float)
    kept = np.flatnonzero(x.sum(axis=0) >= LEAST)
    gram = x[:, kept].T @ x[:, kept]
    norms = np.sqrt(gram.diagonal())
    kernel = gram / np.outer(norms, norms)
    mean = kernel.mean(axis=1)
    scores = np.zeros(x.shape)
    for u in range(len(x)):
        mine = np.flatnonzero(x[u, kept])
        if not len(mine):
            scores[u, kept] = mean
            continue
        alpha = fit_user(kernel[np.ix_(mine, mine)], mean[mine], 0.1)
        scores[u, kept] = kernel[:, mine] @ alpha - mean
    return scores


def test_deployed_nodes_rank_as_an_owner_of_all_ratings_does(
    run: Callable[..., None], nodes: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = tmp_path / "model.npz"
    caplog.set_level("INFO", logger="flwr")
    run(nodes.nodes, data="", min_support=LEAST, model=str(saved))
    arrays, meta = load_model(saved)
    liked = nodes.liked.astype(int)
    kept = np.flatnonzero(liked.sum(axis=0) >= LEAST)
    assert 5 < len(kept) < len(ITEMS)
    assert arrays["items"].tolist() == kept.tolist()
    gram = unpack(arrays["gram"], len(kept))
    np.testing.assert_array_equal(gram, liked[:, kept].T @ liked[:, kept])
    assert meta["rows"] == 22

    scores, found = pooled_scores(nodes), nodes.recommended()
    assert set(found) == set(nodes.users)
    for u, user in enumerate(nodes.users):
        assert {item for item, _ in found[user]} == {
            item for i, item in enumerate(ITEMS) if i in kept and not liked[u, i]
        }
        for item, score in found[user]:
            assert score == pytest.approx(scores[u, ITEMS.index(item)], rel=0, abs=1e-6)
        assert [s for _, s in found[user]] == sorted((s for _, s in found[user]), reverse=True)
    judged = [
        metrics
        for u in range(22)
        if liked[u].any()
        and (metrics := rank_metrics(scores[u], *map(np.flatnonzero, (nodes.held[u], liked[u]))))
    ]
    assert f"evaluated_users: {len(judged)}" in caplog.text
    assert f"auc: {np.mean([m[0] for m in judged]):.6g}" in caplog.text
    assert "s3cret" not in caplog.text
    assert "film-" not in caplog.text


def test_nodes_without_held_out_ratings_recommend_and_judge_nothing(
    run: Callable[..., None], nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="flwr")
    for node in nodes.nodes:
        del node["test-data"]
        node["top"] = 4
    run(nodes.nodes, data="", kernel="linear", subtract_mean=False)
    assert {len(best) for best in nodes.recommended().values()} == {3, 4}  # one has but 3 left
    assert "evaluated_users: 0" in caplog.text
    assert "auc" not in caplog.text


def test_a_run_that_broke_off_is_resumed(
    run: Callable[..., None], nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = {"checkpoint": str(tmp_path / "checkpoint.npz"), "data": "", "min_support": LEAST}
    run(nodes.nodes, data="", min_support=LEAST)
    whole = nodes.recommended()
    shutil.rmtree(tmp_path / "out")
    for k in range(4):
        shutil.rmtree(tmp_path / f"state{k}")
    real, pulls = InProcessGrid.pull_messages, iter(range(6))

    def pull(grid: InProcessGrid, message_ids: Any) -> Any:
        if next(pulls, None) is None:
            raise KeyboardInterrupt
        return real(grid, message_ids)

    with monkeypatch.context() as patch:
        patch.setattr(InProcessGrid, "pull_messages", pull)
        with pytest.raises(KeyboardInterrupt):
            run(nodes.nodes, **checkpoint)
    assert load_arrays(tmp_path / "checkpoint.npz")[1]["stage"] == "gram"
    run(nodes.nodes, **checkpoint, resume=True)
    assert nodes.recommended() == whole


def test_nodes_take_part_in_the_paper_s_modes_only_if_they_say_so(
    run: Callable[..., None], nodes: Nodes
) -> None:
    for change, text in (
        ({"merge": "max"}, "the run has merge max, this node takes part in disjoint only"),
        ({"request": "noisy"}, "noisy requests show what a user likes, and this node makes none"),
    ):
        with pytest.raises(FedKernError) as error:
            run(nodes.nodes, data="", **change)
        assert text in str(error.value) or "no round could be opened" in str(error.value)
        for node in nodes.nodes:
            node |= change
        more = {"num_rounds": 2, "participation": 0.75} if "merge" in change else {}
        run(nodes.nodes, data="", **change, **more)
        assert len(nodes.recommended()) == 22
        for node in nodes.nodes:
            del node[next(iter(change))]


def test_nodes_with_other_catalogues_are_refused(run: Callable[..., None], nodes: Nodes) -> None:
    (nodes.folder / "other.txt").write_text("\n".join(reversed(ITEMS)))
    nodes.nodes[2]["catalogue"] = str(nodes.folder / "other.txt")
    with pytest.raises(FedKernError, match="partition 2") as error:
        run(nodes.nodes, data="")
    assert "film" not in str(error.value)


def test_simulated_nodes_without_data_are_refused(run: Callable[..., None]) -> None:
    with pytest.raises(ProtocolError, match="OptionError"):
        run([{}] * 3, data="")


def test_a_simulation_reads_a_file_and_its_columns(
    app: SimpleNamespace, run: Callable[..., None], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    lines = [
        f"{u};{i},{u},{rng.integers(1, 6)},{rng.integers(10**6)}"
        for u in range(12)
        for i in range(8)
        if rng.random() < 0.7
    ]
    lines = [line.replace(";", ",").split(",") for line in lines]
    text = "\n".join(f"{u},{i},{stars},{when}" for u, i, _, stars, when in lines)
    (tmp_path / "r.csv").write_text(f"who,what,stars,when\n{text}\n")
    config = {"data": str(tmp_path / "r.csv"), "user": "who", "item": "what", "rating": "stars"}
    config |= {"time": "when", "hold_out": "time", "test_size": 0.2, "min_rating": 2}
    config |= {"state_dir": str(tmp_path / "state"), "model": str(tmp_path / "model.npz")}
    run([{}] * 3, **config)
    _, meta = load_model(tmp_path / "model.npz")
    assert meta["catalogue"] == 8
    assert meta["rows"] == 12
    assert len(list((tmp_path / "state" / "recommendations").iterdir())) == 3


# --- What a node reads ----------------------------------------------------------------------


def test_the_ratings_of_a_node_are_read_against_the_catalogue(
    app: SimpleNamespace, nodes: Nodes
) -> None:
    for number, part in enumerate(nodes.parts):
        client = app.client_app.make_client(nodes.context(number, app.config))
        rows = [nodes.users.index(user) for user in client.users]
        assert sorted(rows) == list(part)
        assert client.items == tuple(ITEMS)
        np.testing.assert_array_equal(client.x.toarray(), nodes.liked[rows])
        np.testing.assert_array_equal(client.x_test.toarray(), nodes.held[rows])
    assert client.x.dtype == np.int64


def test_all_ratings_count_where_nothing_else_is_said(app: SimpleNamespace, nodes: Nodes) -> None:
    client = app.client_app.make_client(nodes.context(2, app.config, min_rating=None))
    np.testing.assert_array_equal(
        client.x.toarray(), ((nodes.stars > 0) & ~nodes.held)[16:17].astype(int)
    )


def test_a_user_who_likes_nothing_and_a_parquet_file(
    app: SimpleNamespace, nodes: Nodes, tmp_path: Path
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table = {"u": pa.array([7, 7]), "title": ["film-03", " film-01 "], "r": pa.array([1, 2])}
    parquet.write_table(pa.table(table), tmp_path / "one.parquet")
    names = {"user_column": "u", "item_column": "title", "rating_column": "r"}
    change = {"data": str(tmp_path / "one.parquet"), "test_data": None, **names}
    client = app.client_app.make_client(nodes.context(2, app.config, **change))
    assert client.x.shape == (1, 15)
    assert client.x.nnz == 0
    assert client.users == ("7",)
    client = app.client_app.make_client(nodes.context(2, app.config, **change, min_rating=2.0))
    assert client.x.toarray()[0].tolist() == [0, 1, *[0] * 13]


def test_times_that_are_no_numbers_do_not_matter(
    app: SimpleNamespace, nodes: Nodes, tmp_path: Path
) -> None:
    rows = "a,film-01,4,2020-01-01\na,film-02,5,\n"
    (tmp_path / "dates.csv").write_text(f"user,item,rating,time\n{rows}")
    context = nodes.context(2, app.config, data=str(tmp_path / "dates.csv"), test_data=None)
    client = app.client_app.make_client(context)
    assert np.flatnonzero(client.x.toarray()).tolist() == [1, 2]


def test_users_of_the_test_data_alone_are_left_out_with_a_note(
    app: SimpleNamespace,
    nodes: Nodes,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("INFO", logger="flwr")
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    context = nodes.context(2, app.config, test_data=str(nodes.folder / "new1.csv"))
    client = app.client_app.make_client(context)
    assert client.x_test.nnz == 0
    assert re.search(r"\d users of the test data have no ratings", caplog.text)
    assert "s3cret" not in caplog.text


def test_a_node_may_have_nothing_held_out(app: SimpleNamespace, nodes: Nodes) -> None:
    (nodes.folder / "none.csv").write_text("user,item,rating\n")
    context = nodes.context(2, app.config, test_data=str(nodes.folder / "none.csv"))
    client = app.client_app.make_client(context)
    assert client.x_test.shape == (1, 15)
    assert client.x_test.nnz == 0


def test_nothing_of_the_ratings_is_shown(app: SimpleNamespace, nodes: Nodes) -> None:
    ratings = app.own_ratings.own_ratings(
        nodes.nodes[0]["data"], nodes.nodes[0]["catalogue"], None, (None, None, None), 3.0
    )
    assert repr(ratings) == "OwnRatings(9 users, 15 items)"


HEAD = "user,item,rating\n"
FILES = {
    "nohead.csv": "s3cret-1,film-01,4\ns3cret-1,film-02,5\n",
    "letters.csv": "s3cret-1,film-01\ns3cret-1,film-02\n",
    "noitem.csv": "user,rating\ns3cret-1,4\n",
    "two.csv": "user,user_id,item\ns3cret-1,x,film-01\n",
    "unknown.csv": f"{HEAD}s3cret-1,film-01,4\ns3cret-1,s3cret-film,5\ns3cret-2,s3cret-film,5\n",
    "twice.csv": f"{HEAD}s3cret-1,film-01,4\ns3cret-1,film-01,5\n",
    "nan.csv": f"{HEAD}s3cret-1,film-01,nan\ns3cret-1,film-02,5\n",
    "text.csv": f"{HEAD}s3cret-1,film-01,s3cret\n",
    "gap.csv": f"{HEAD}s3cret-1,film-01,\n",
    "nobody.csv": f"{HEAD}s3cret-1,film-01,4\n,film-02,5\n",
    "short.csv": f"{HEAD}s3cret-1,film-01,4\ns3cret-1,film-02\n",
    "empty.csv": "",
    "head.csv": HEAD,
    "unrated.csv": "user,item\ns3cret-1,film-01\n",
    "long.data": "s3cret-1\tfilm-01\t4\t1\t2\n",
    "ratings.xlsx": "s3cret",
    "broken.parquet": "s3cret",
    "twice.txt": "film-01\nfilm-02\nfilm-01\n",
    "one.txt": "film-01\n",
    "title.csv": "title\nfilm-01\n",
    "blank.csv": 'item\nfilm-01\n""\nfilm-02\n',
}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"data": "gone.csv"}, "/gone.csv; check the path"),
        ({"data": "nohead.csv"}, "the first line of nohead.csv holds data instead of column names"),
        (
            {"data": "letters.csv"},
            "letters.csv has no columns that may be the user; add a header, or name the column as "
            "user-column",
        ),
        (
            {"data": "noitem.csv"},
            "noitem.csv has no columns that may be the item; add a header, or name the column as "
            "item-column",
        ),
        ({"data": "two.csv"}, "two.csv has 2 columns that may be the user; add a header, or name"),
        (
            {"data": "nan.csv", "item_column": "film"},
            "nan.csv has no item column 'film'; add a header, or name the column as item-column",
        ),
        ({"data": "known0.data", "user_column": "u"}, "the columns of known0.data are fixed"),
        (
            {"data": "unknown.csv"},
            "2 rows of unknown.csv name 1 items that are not in the catalogue; leave out these",
        ),
        ({"data": "twice.csv"}, "twice.csv has 1 rows that repeat a pair of user and item; keep"),
        (
            {"data": "nan.csv"},
            "the rating is not a finite number in 1 rows of nan.csv, for example in row 1; give "
            "numbers",
        ),
        ({"data": "text.csv"}, "the rating is not a finite number in 1 rows of text.csv"),
        ({"data": "gap.csv"}, "the rating is not a finite number in 1 rows of gap.csv"),
        ({"data": "nobody.csv"}, "the user id is empty in 1 rows of nobody.csv"),
        ({"data": "short.csv"}, "line 3 of short.csv has 2 columns instead of 3; mend it"),
        ({"data": "empty.csv"}, "empty.csv is empty; give a file with data"),
        ({"data": "head.csv"}, "head.csv has no rows; give a file with data"),
        ({"data": "unrated.csv"}, "unrated.csv has no ratings; leave out min-rating"),
        ({"data": "long.data"}, "line 1 of long.data has 5 columns; give user, item, rating"),
        ({"data": "ratings.xlsx"}, "ratings.xlsx has an unknown suffix; give a u.data, .dat"),
        ({"data": "broken.parquet"}, "broken.parquet is not a readable Parquet file"),
        ({"catalogue": None}, "this node has no catalogue; name the public list of all items"),
        ({"catalogue": "gone.txt"}, "/gone.txt; check the path"),
        ({"catalogue": "empty.csv"}, "empty.csv is empty"),
        ({"catalogue": "twice.txt"}, "twice.txt has 1 rows that repeat an item; keep one row of"),
        ({"catalogue": "one.txt"}, "items in one.txt: 1; list all items"),
        ({"catalogue": "title.csv"}, "title.csv has no columns that may be the item; name one"),
        ({"catalogue": "blank.csv"}, "the item id is empty in 1 rows of blank.csv"),
        ({"test_data": "known2.tsv"}, "ratings are in the data and in the test data; hold them"),
        ({"test_data": "unknown.csv"}, "2 rows of unknown.csv name 1 items"),
        ({"merge": "mean"}, "merge"),
        ({"request": "all"}, "request"),
    ],
)
def test_a_bad_configuration_of_a_node_is_one_line(
    app: SimpleNamespace, nodes: Nodes, change: dict[str, Any], text: str
) -> None:
    for name, content in FILES.items():
        (nodes.folder / name).write_text(content)
    paths = ("data", "catalogue", "test_data")
    change = {k: str(nodes.folder / v) if k in paths and v else v for k, v in change.items()}
    app.client_app.make_client(nodes.context(2, app.config))
    with pytest.raises(FedKernError) as error:
        app.client_app.make_client(nodes.context(2, app.config, **change))
    assert text in str(error.value)
    assert "\n" not in str(error.value)
    assert "s3cret" not in str(error.value)


# --- Options --------------------------------------------------------------------------------


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
    assert {option.name.replace("_", "-") for option in options(FedCFK)} <= set(app.config)
    made = app.server_app.make_strategy(app.config)
    assert vars(made).keys() == vars(FedCFK()).keys()
    for name, value in vars(FedCFK(seed=0)).items():
        if name == "cohorts_" or (not name.startswith("_") and not name.endswith("_")):
            assert str(getattr(made, name)) == str(value), name


@pytest.mark.parametrize(
    "given",
    [
        {"kernel": "poly", "degree": 3, "gamma": 0.5, "coef0": 0.0, "regularization": 2.0},
        {"kernel": "series", "coefficients": "0, 1, 0.5", "subtract-mean": False, "cohorts": 2},
        {"kernel": "disjunctive", "degree": 3, "request": "noisy", "min-support": 0},
        {"merge": "max", "participation": 0.5, "threshold": 4, "min-cohort": 3},
        {"attempts": 2, "seed": 4, "node-timeout": 3.0, "min-support": 9},
    ],
)
def test_every_option_of_the_app_reaches_the_strategy(
    app: SimpleNamespace, given: dict[str, Any]
) -> None:
    made = app.server_app.make_strategy({**app.config, **given})
    for name, value in given.items():
        expected = (0.0, 1.0, 0.5) if name == "coefficients" else value
        attribute = "cohorts_" if name == "cohorts" else name.replace("-", "_")
        assert getattr(made, attribute) == expected, name


def test_bad_coefficients_are_one_line(app: SimpleNamespace) -> None:
    with pytest.raises(FedKernError, match="coefficients are not all numbers; write them as"):
        app.server_app.make_strategy({**app.config, "kernel": "series", "coefficients": "0, x"})


# -- recommendations with a kernel that was saved


def test_nodes_recommend_with_a_saved_kernel_to_their_present_users(
    app: SimpleNamespace, run: Callable[..., None], nodes: Nodes, tmp_path: Path
) -> None:
    saved, told = tmp_path / "model.npz", tmp_path / "result.json"
    run(nodes.nodes, data="", min_support=LEAST, kernel="disjunctive", degree=3, model=str(saved))
    first = nodes.recommended()
    for node in nodes.nodes:  # nothing else is needed
        del node["test-data"], node["state-dir"]
    app.client_app.own_ratings.cache_clear()
    run(nodes.nodes, data="", predict=str(saved), result=str(told))
    again = nodes.recommended()
    assert again.keys() == first.keys()
    for user, best in first.items():
        assert [item for item, _ in again[user]] == [item for item, _ in best]
        np.testing.assert_allclose([s for _, s in again[user]], [s for _, s in best], atol=1e-9)
    result = json.loads(told.read_text())
    assert result["metrics"]["users"] == 22
    assert result["exchanges"] == 3  # describe, recommend, finish
    assert "ratings" in result["privacy"]["never_leaves_the_client"]


def test_a_saved_kernel_serves_new_users_of_other_nodes(
    run: Callable[..., None], nodes: Nodes, tmp_path: Path
) -> None:
    saved = tmp_path / "model.npz"
    run(nodes.nodes, data="", min_support=LEAST, model=str(saved))
    first = nodes.recommended()
    moved = (tmp_path / "known2.tsv").read_text() + f"fresh\t{ITEMS[0]}\t5\t0\n"
    (tmp_path / "known2.tsv").write_text(moved)
    for node in nodes.nodes:
        del node["test-data"]
    shutil.rmtree(tmp_path / "out")
    run(nodes.nodes[1:3], data="", predict=str(saved))
    with (tmp_path / "out/recommendations2.csv").open(newline="") as file:
        found = [row for row in csv.DictReader(file) if row["user"] == "fresh"]
    arrays, _ = load_model(saved)
    assert len(found) == arrays["items"].size - 1
    with (tmp_path / "out/recommendations1.csv").open(newline="") as file:
        rows = [(row["user"], row["item"]) for row in csv.DictReader(file)]
    known = {user for user, _ in rows}
    assert rows == [(user, item) for user in first if user in known for item, _ in first[user]]


def test_wrong_kernels_and_nodes_that_write_nothing_are_one_line(
    app: SimpleNamespace, run: Callable[..., None], nodes: Nodes, tmp_path: Path
) -> None:
    saved, other = tmp_path / "model.npz", tmp_path / "other.npz"
    run(nodes.nodes, data="", min_support=LEAST, model=str(saved))
    arrays, meta = load_arrays(saved)

    def refused(path: Path) -> str:
        with pytest.raises(FedKernError) as error:
            run(nodes.nodes, data="", predict=str(path))
        assert "\n" not in str(error.value)
        return str(error.value)

    def line(arrays: dict[str, Any] = arrays, **change: Any) -> str:
        save_arrays(other, arrays, {**meta, **change})
        return refused(other)

    head = meta["file"]
    assert "is a model of pof-mkl, not of fed-cfk" in line(file={**head, "method": "pof-mkl"})
    assert "upgrade fedkern-flwr" in line(file={**head, "version": 2})
    assert "another catalogue of items than the model" in line(names="0" * 64)
    assert "the model's gram should have shape" in line({**arrays, "gram": arrays["gram"][1:]})
    with pytest.raises(CheckpointError, match=r"other options; use FedCFK.of_model\(meta\)"):
        FedCFK(kernel="linear").predict(InProcessGrid(app.client_app.app, 4), *load_model(saved))
    for name in ("subtract_mean", "regularization", "names"):
        value = meta.pop(name)
        assert "the model says too little of itself" in line()
        meta[name] = value
    other.write_bytes(saved.read_bytes()[:200])
    assert "is damaged or not a model" in refused(other)
    for node in nodes.nodes:
        del node["recommendations"]
    assert refused(saved) == (
        "no node writes recommendations; name recommendations in --node-config"
    )
    nodes.nodes[1]["request"] = "noisy"
    assert "it sends the kernel in another way than was asked for" in refused(saved)
