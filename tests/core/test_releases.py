"""Other releases: of the other side of a run, and what options of an earlier one come to."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from refusals import raises, refused, refuses

from fedkern_flwr import __version__, check_app, clients
from fedkern_flwr.checkpoint import VERSION, save_arrays
from fedkern_flwr.clients import KernelPCAClient
from fedkern_flwr.errors import OptionError, ProtocolError, RefusedError
from fedkern_flwr.failure import mark_error, read_error
from fedkern_flwr.model_file import load_model, save_model
from fedkern_flwr.node.client import Client
from fedkern_flwr.options import CLIENTS, REMOVED, Removed
from fedkern_flwr.run import RunRules
from fedkern_flwr.run_log import RunLog
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.apps.node import client_maker
from fedkern_flwr.simulations.apps.server import read_options
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.deployment.run_config import app_folder, declared
from fedkern_flwr.simulations.estimators import FDSKLClassifier, FedCGClassifier
from fedkern_flwr.simulations.methods.registry import METHODS, complete_settings, family, open_run
from fedkern_flwr.strategies import KernelPCA
from fedkern_flwr.transport import request_messages
from fedkern_flwr.wire import PROTOCOL_VERSION, DescribeReply, DescribeRequest
from fedkern_flwr.wire.describe import check_node, check_server, other_releases

NEWER, OLDER = PROTOCOL_VERSION + 1, PROTOCOL_VERSION - 1

HERE = f"{__version__} (protocol {PROTOCOL_VERSION})"


class Node(KernelPCAClient):
    """A node of whatever release: what it says of itself can be changed, and how it refuses."""

    def __init__(self, context: Context, **said: Any) -> None:
        rng = np.random.default_rng(int(context.node_config["partition-id"]))
        super().__init__(context, rng.random((8, 2)))
        self.said = said

    def fit(self, parameters: Any, config: Any) -> Any:
        arrays, samples, scalars = super().fit(parameters, config)
        if config["phase"] == "describe":
            scalars = {k: v for k, v in (scalars | self.said).items() if v is not None}
        return arrays, samples, scalars


class Node01(Node):
    """A node of release 0.1, with the words in which it refuses another protocol."""

    def fit(self, parameters: Any, config: Any) -> Any:
        raise ProtocolError(
            mark_error(
                f"ProtocolError: server, phase describe: protocol version {config['protocol']} "
                f"instead of {OLDER}; run the same release of fedkern-flwr on both sides"
            )
        )


def meet(*nodes: dict[str, Any], kinds: Any = Node) -> None:
    """Run kernel PCA with nodes that say other things of themselves."""

    def client_fn(context: Context) -> Client:
        k = int(context.node_config["partition-id"])
        return kinds(context, **nodes[k])

    simulate(KernelPCA(features=3), client_fn, len(nodes))


def told(**scalars: Any) -> str:
    """Return what a node says to a server of another release."""
    asked = {**OPENING.scalars(), **scalars}
    with refused("FK-MESSAGE-VERSION") as caught:
        Node(of_partition(3)).fit([], {k: v for k, v in asked.items() if v is not None})
    return str(caught.value)


OPENING = DescribeRequest(session="s", method="kernel-pca", resume_round=0, secure=True)


def of_partition(k: int) -> Context:
    return Context(1, 1, {"partition-id": k, "num-partitions": 4}, RecordDict(), {})


def test_both_openings_say_their_release() -> None:
    assert OPENING.scalars()["release"] == __version__
    assert DescribeReply(rows=1, features=1).scalars()["release"] == __version__
    assert Node(of_partition(0)).fit([], OPENING.scalars())[2]["release"] == __version__
    assert other_releases({0: __version__, 1: __version__}) == other_releases({}) == ""


@pytest.mark.promise("releases-named")
@pytest.mark.parametrize(("protocol", "release", "who", "install"), [
    (OLDER, None, "the server is older", f"fedkern-flwr=={__version__}"),
    (OLDER, "0.0.9", "the server is older", f"fedkern-flwr=={__version__}"),
    (NEWER, "9.1.0rc1", "this node is older", "fedkern-flwr==9.1.0rc1"),
    (NEWER, None, "this node is older", "upgrade fedkern-flwr`"),
])  # fmt: skip
def test_a_node_says_which_side_is_older_and_what_to_install(
    protocol: int, release: str | None, who: str, install: str
) -> None:
    found = told(protocol=protocol, release=release)
    named = f"fedkern-flwr {release} " if release else "fedkern-flwr"
    for text in (HERE, f"(protocol {protocol})", named, who, install):
        assert text in found
    assert "\n" not in found


@pytest.mark.parametrize("release", ["9.0; rm -rf /", "9" * 40, "latest", "9.0\n", 9, b"9.0", ""])
def test_what_is_no_release_is_not_quoted(release: Any) -> None:
    assert told(protocol=NEWER, release=release) == told(protocol=NEWER, release=None)
    for protocol in (None, "4", True):  # what is none says nothing of releases
        assert HERE not in told(protocol=protocol)


def test_a_server_names_an_older_node_also_behind_one_that_fails_otherwise() -> None:
    class Broken(Node):
        def fit(self, parameters: Any, config: Any) -> Any:
            raise ValueError

    def kinds(context: Context, **said: Any) -> Node:
        return (Node01 if context.node_config["partition-id"] else Broken)(context)

    for kind, party in ((Node01, "node 1000"), (kinds, "node 1001")):
        caught = refuses("FK-MESSAGE-VERSION", meet, {}, {}, kinds=kind)
        assert caught.party == party
        for text in (f"(protocol {OLDER})", HERE, f"fedkern-flwr=={__version__}"):
            assert text in str(caught)


def test_a_reply_of_another_protocol_is_refused_as_that() -> None:
    with refused("FK-MESSAGE-VERSION") as caught:
        meet({}, {"protocol": OLDER, "release": "0.0.9"})
    assert caught.value.party == "node 1001"
    assert "fedkern-flwr 0.0.9 (" in str(caught.value)
    with refused("FK-MESSAGE-VERSION") as caught:
        check_node({"protocol": NEWER, "release": "9.0"}, party="node 1")
    assert "fedkern-flwr==9.0" in str(caught.value)


def test_other_releases_of_the_same_protocol_are_named_once(caplog: Any) -> None:
    meet({}, {"release": "0.0.9"}, {"release": None}, {"release": "0.0.9"})
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    (text,) = [text for text in warned if "the server has" in text]
    assert f"{__version__}, partitions 1, 3 0.0.9, partition 2 an earlier" in text
    caplog.clear()
    meet({}, {})
    assert "the server has" not in caplog.text


def test_a_node_writes_into_its_log_that_the_server_has_another_release(caplog: Any) -> None:
    same = {"protocol": PROTOCOL_VERSION}
    check_server({**same, "release": __version__}, party="partition 1")
    assert caplog.text == ""
    check_server({**same, "release": "9.0"}, party="partition 1")
    check_server(same, party="partition 1")
    first, second = (record.getMessage() for record in caplog.records)
    assert f"partition 1: the server has fedkern-flwr 9.0, this node {__version__};" in first
    assert f"the server has an earlier release of fedkern-flwr, this node {__version__};" in second


# -- apps: their code comes from the coordinator, what it imports is installed at each party

APPS = sorted(path.parent for path in app_folder("method").parent.glob("*/app_release.py"))

# Each module of an app is loaded as Flower loads it, where an early release is installed.
LOAD = """
import importlib, sys
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    for name in ("client_app", "server_app"):
        sys.modules.pop("app_release", None)
        try:
            importlib.import_module(name)
        except Exception as error:
            print(str(type(error)) + ":<'" + str(error) + "'>")
    sys.path.remove(folder)
"""


def test_an_early_release_says_that_it_is_older_than_the_app(tmp_path: Path) -> None:
    (tmp_path / "fedkern_flwr").mkdir()
    (tmp_path / "fedkern_flwr" / "__init__.py").write_text('__version__ = "0.1.0"\n')
    command = [sys.executable, "-c", LOAD, *map(str, APPS)]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    lines = found.stdout.splitlines()
    assert len(lines) == 2 * len(APPS) == 16, found.stderr
    (line,) = set(lines)  # all of them before any other import of ours
    assert read_error(as_error(line), "describe").detail == (
        f"RefusedError: the app is of fedkern-flwr {MINOR}, and 0.1.0 is installed; the installed "
        "one is older: `pip install --upgrade fedkern-flwr` there [FK-MESSAGE-VERSION]"
    )


MINOR = ".".join(__version__.split(".")[:2])


def test_every_app_is_of_this_release() -> None:
    assert {(app / "app_release.py").read_text() for app in APPS} == {
        (APPS[0] / "app_release.py").read_text()
    }
    assert f'check_app("{MINOR}")' in (APPS[0] / "app_release.py").read_text()
    assert {app.name for app in APPS} == {p.parent.name for p in APPS[0].parent.glob("*/*_app.py")}
    for app in (MINOR, f"{MINOR}.9", __version__):
        check_app(app)


@pytest.mark.parametrize(("app", "older"), [("0.1", "the app is older"), ("9.10", "installed one")])
def test_the_server_shows_which_of_app_and_node_is_older(app: str, older: str) -> None:
    class Loading(Node):
        def fit(self, parameters: Any, config: Any) -> Any:
            check_app(app)

    caught = refuses("FK-MESSAGE-VERSION", meet, {}, {}, kinds=Loading)
    assert caught.party == "node 1000"
    assert type(caught) is RefusedError
    for text in (f"the app is of fedkern-flwr {app}, and {__version__} is installed", older):
        assert text in str(caught)


def as_error(reason: str) -> Message:
    """Return the answer of a node whose app could not be loaded, as Flower makes it."""
    (asked,) = request_messages(OPENING, [7], group_id="describe")
    return Message(Error(2, reason), reply_to=asked)


# -- options that went: dropped at their old default and refused otherwise, at every door

ROWS = [(method, name, row) for method, rows in REMOVED.items() for name, row in rows.items()]


def others(row: Removed) -> list[Any]:
    """Values that are refused: those that went, or what was never a default; none has a meaning."""
    if row.values:
        return list(row.values)
    if {True, False} <= {default for default in row.defaults if isinstance(default, bool)}:
        return []
    return [True] if row.switch else ["something else"]


def spellings(default: Any) -> list[Any]:
    """Return what a user may write for a default."""
    if not isinstance(default, bool | int | float):
        return [default]
    whole = [int(default)] if isinstance(default, float) and default.is_integer() else []
    return [default, str(default), *whole]


# -- doors: what takes a value that an earlier release had


def strategy(method: str, name: str, value: Any, folder: Path) -> None:
    assert not hasattr(METHODS[method](**{name: value}), name)


def client_of(method: str) -> Any:
    """Return the client's class; that of Secure Gram serves FedCFK as well."""
    own = "fed-cfk" if method == "secure-gram" else method
    return getattr(clients, next(name for name, one in CLIENTS.items() if one == own))


def context(**config: Any) -> Context:
    node = {"partition-id": 0, "num-partitions": 3, **config}
    return Context(1, 1, node, RecordDict(), {"data": "", "predict": "", "resume": False})


def client(method: str, name: str, value: Any, folder: Path) -> None:
    client_of(method)(context(), np.full((4, 2), 0.5), **{name: value})


def node(method: str, name: str, value: Any, folder: Path, copied: bool = False) -> None:
    """A copy of an app of the release before still names the key."""
    key, x = name.replace("_", "-"), np.full((4, 2), 0.5)
    keys, serve = (key,) if copied else (), lambda node: {"x": x}
    make = client_maker(client_of(method), serve, lambda path: None, keys=keys, simulated="")
    if value is not None:  # a key always has a value
        make(context(data="a.csv", **{key: value}))


def app(method: str, name: str, value: Any, folder: Path) -> None:
    keys = declared(app_folder(family(method).app))
    read = read_options(METHODS[method], {**keys, name.replace("_", "-"): value})
    METHODS[method](**read)
    assert name not in read


def run_folder(method: str, name: str, value: Any, folder: Path, part: str = "options") -> None:
    written = {"method": method, "options": {}, "data": {}, part: {"seed": 3, name: value}}
    (folder / "config.json").write_text(json.dumps(written))
    assert name not in open_run(folder)[1][part]


def whole_progress(strategy: Any) -> dict[str, Any]:
    return {"options": strategy.options(), **strategy.nodes.progress(), **strategy.progress()}


def restored(strategy: Any) -> Any:
    return RunLog(strategy, RunRules.of(strategy), strategy.nodes).restore()


def checkpoint(method: str, name: str, value: Any, folder: Path) -> None:
    strategy = METHODS[method](checkpoint=folder / "checkpoint.npz", resume=True)
    options = {**strategy.options(), name: value}
    meta = {"version": VERSION, **whole_progress(strategy), "options": options}
    save_arrays(folder / "checkpoint.npz", {}, meta)
    assert restored(strategy) is not None


def model(method: str, name: str, value: Any, folder: Path) -> None:
    options = {**METHODS[method]().options(), name: value}
    save_model(folder / "model.npz", method, {}, options)
    load_model(folder / "model.npz", method)


def test_a_run_that_release_0_1_began_does_not_go_on(tmp_path: Path) -> None:
    """Its settings lack what this release asks for; of a finished one the defaults will do."""
    data = {"data": "breast-cancer", "seed": 3}  # of release 0.1: no na, dates, class_of
    written = {"method": "kernel-pca", "options": {}, "data": data, "engine": "in-process"}
    (tmp_path / "config.json").write_text(json.dumps(written))
    caught = refuses("FK-CHECKPOINT-VERSION", complete_settings, *open_run(tmp_path))
    for text in (str(tmp_path), "fedkern-flwr 0.1", __version__):
        assert text in str(caught)
    assert run(["run", "kernel-pca", "--resume", str(tmp_path)]) == 2
    (tmp_path / "result.json").write_text("{}")
    folder, config = open_run(tmp_path)
    complete_settings(folder, config)
    assert config["data"]["seed"] == 3
    assert family("kernel-pca").settings.from_values(config["data"]).class_of == ()


@pytest.mark.parametrize("said", [{}, {"version": VERSION - 1}, {"fedkern_flwr": "0.3.7"}])
def test_a_checkpoint_says_which_release_wrote_it(said: dict[str, Any], tmp_path: Path) -> None:
    strategy = KernelPCA(checkpoint=tmp_path / "checkpoint.npz", resume=True)
    save_arrays(tmp_path / "checkpoint.npz", {}, {**whole_progress(strategy), **said})
    caught = refuses("FK-CHECKPOINT-VERSION", restored, strategy)
    for text in ("checkpoint.npz", f"fedkern-flwr {said.get('fedkern_flwr', '0.1')}", __version__):
        assert text in str(caught)


DOORS: dict[str, tuple[str, Callable[..., None]]] = {
    "a strategy": ("run", strategy), "a client": ("client", client), "a node": ("node", node),
    "a node with a copy of the app": ("node", partial(node, copied=True)), "an app": ("run", app),
    "options of a folder": ("run", run_folder),
    "data of a folder": ("run", partial(run_folder, part="data")),
    "a checkpoint": ("run", checkpoint), "a model": ("run", model),
}  # fmt: skip


@pytest.mark.promise("removed-refused")
@pytest.mark.parametrize("door", DOORS)
def test_defaults_are_dropped_the_rest_refused(door: str, tmp_path: Path, caplog: Any) -> None:
    place, opened = DOORS[door]
    caplog.set_level(logging.WARNING, "fedkern_flwr")
    rows = [r for r in ROWS if place in r[2].places.split()]
    if door == "an app":
        rows = [r for r in rows if r[0] in family(r[0]).deployable]
    assert rows
    for method, name, row in rows:
        caplog.clear()
        for default in [one for usual in row.defaults for one in spellings(usual)]:
            opened(method, name, default, tmp_path)
            assert door != "a strategy" or name in caplog.text
        for value in [*others(row), *([np.ones(3)] if door == "a client" else [])]:
            odd = "node" in door and name == "value_bound"
            with pytest.raises(OptionError) as caught:
                opened(method, name, 2.5 if odd else value, tmp_path)
            assert caught.value.code == f"FK-REMOVED-{row.code}"
            assert str(caught.value).endswith(f"[{caught.value.code}]")
            assert "\n" not in str(caught.value)
        if door == "a client":  # which has no other option
            raises(TypeError, opened, method, "never_there", 1, tmp_path)


@pytest.mark.parametrize("method", REMOVED)
def test_a_command_takes_the_default_and_refuses_the_rest(method: str, capsys: Any) -> None:
    assert run(["run", method, "--help-all"]) == 0
    shown = capsys.readouterr().out
    for name, row in REMOVED[method].items():
        if "run" not in row.places.split():
            continue
        flag = f"--{name.replace('_', '-')}"
        assert row.values or not re.search(rf"^│ +{flag}\b", shown, re.MULTILINE)
        for default in row.defaults:
            typed = [flag.replace("--", "--no-")] if row.switch else [flag, str(default)]
            if default is not None and default is not True:
                run(["run", method, *typed, "--json", "no/such/folder.json"])
                assert capsys.readouterr().err.strip().endswith("[FK-FILE-WRITE]")
        for value in others(row):
            typed = [flag] if row.switch else [flag, str(value)]
            for door in ("run", "deploy-local"):
                if door == "run" or method in family(method).deployable:
                    assert run([door, method, *typed]) == 2
                    assert capsys.readouterr().err.strip().endswith(f"[FK-REMOVED-{row.code}]")


def test_a_copy_of_an_app_may_leave_lost_groups_empty() -> None:
    keys = {**declared(app_folder("hierarchical_svm")), "lost-groups": ""}
    method = METHODS["hierarchical-svm"]
    assert method(**read_options(method, keys)).lost_groups == "stop"


@pytest.mark.parametrize(("estimator", "name", "value"), [
    (FedCGClassifier, "protocol", "chain"), (FedCGClassifier, "sampling", "P"),
    (FDSKLClassifier, "topology", "tree"),
])  # fmt: skip
def test_an_estimator_refuses_them(estimator: Any, name: str, value: str) -> None:
    rows = np.random.default_rng(0).random((40, 4))
    with pytest.raises(ValueError, match="FK-REMOVED-"):
        estimator(options={name: value}).fit(rows, rows[:, 0] > 0.5)


def test_no_value_of_data_or_of_a_secret_is_in_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    """And an audit has no options of a method."""
    row = REMOVED["fed-cg"]["category_key"]
    assert "secret" not in str(row.error("category_key", b"secret"))
    assert "7.5" not in str(row.error("landmarks", np.full((1, 1), 7.5)))
    assert run(["audit", "fed-cg", "--never-there", "chain"]) == 2
    assert "[FK-REMOVED-" in capsys.readouterr().err


def test_the_changelog_says_of_each_what_to_do_instead() -> None:
    page = Path(__file__).resolve().parents[2] / "CHANGELOG.md"
    if not page.is_file():
        pytest.skip("no source tree here")
    rows = [line for line in page.read_text("utf-8").splitlines() if "FK-REMOVED-" in line]
    for _, name, row in ROWS:
        said = next(line for line in rows if line.endswith(f"| FK-REMOVED-{row.code} |"))
        assert name in said.replace("-", "_"), name
