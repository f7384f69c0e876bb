"""Every option that went is dropped at its old default and refused otherwise, at every door."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedkern_flwr import clients
from fedkern_flwr.checkpoint import VERSION, save_arrays
from fedkern_flwr.errors import OptionError
from fedkern_flwr.model_file import load_model, save_model
from fedkern_flwr.removed import CLIENTS, REMOVED, Removed
from fedkern_flwr.run_log import RunLog
from fedkern_flwr.simulations.apps.node import client_maker
from fedkern_flwr.simulations.apps.server import read_options
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.deployment.run_config import app_folder, declared
from fedkern_flwr.simulations.estimators import FDSKLClassifier, FedCGClassifier
from fedkern_flwr.simulations.methods.registry import METHODS, family, open_run

CODE = re.compile(r"\[FK-REMOVED-[A-Z]+\]$")
ROWS = [(method, name, row) for method, rows in REMOVED.items() for name, row in rows.items()]


def others(row: Removed) -> list[Any]:
    """Values that are refused: those that went, or what was never a default; none has a meaning."""
    if row.values:
        return list(row.values)
    if {True, False} <= {default for default in row.defaults if isinstance(default, bool)}:
        return []
    return [True] if row.switch else ["something else"]


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


def checkpoint(method: str, name: str, value: Any, folder: Path) -> None:
    strategy = METHODS[method](checkpoint=folder / "checkpoint.npz", resume=True)
    options = {**strategy.options(), name: value}
    meta = {"version": VERSION, **strategy.progress(), "options": options}
    save_arrays(folder / "checkpoint.npz", {}, meta)
    assert RunLog(strategy).restore() is not None


def model(method: str, name: str, value: Any, folder: Path) -> None:
    options = {**METHODS[method]().options(), name: value}
    save_model(folder / "model.npz", method, {}, options)
    load_model(folder / "model.npz", method)


DOORS: dict[str, tuple[str, Callable[..., None]]] = {
    "a strategy": ("run", strategy),
    "a client": ("client", client),
    "a node": ("node", node),
    "a node with a copy of the app": ("node", partial(node, copied=True)),
    "an app": ("run", app),
    "options of a folder": ("run", run_folder),
    "data of a folder": ("run", partial(run_folder, part="data")),
    "a checkpoint": ("run", checkpoint),
    "a model": ("run", model),
}


@pytest.mark.promise("removed-refused")
@pytest.mark.parametrize("door", DOORS)
def test_the_default_is_dropped_and_the_rest_is_refused(
    door: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, opened = DOORS[door]
    caplog.set_level(logging.WARNING, "fedkern_flwr")
    rows = [r for r in ROWS if place in r[2].places.split()]
    if door == "an app":
        rows = [r for r in rows if r[0] in family(r[0]).deployable]
    assert rows
    for method, name, row in rows:
        caplog.clear()
        for default in row.defaults:
            opened(method, name, default, tmp_path)
            assert door != "a strategy" or name in caplog.text
        for value in [*others(row), *([np.ones(3)] if door == "a client" else [])]:
            odd = "node" in door and name == "value_bound"
            with pytest.raises(OptionError) as caught:
                opened(method, name, 2.5 if odd else value, tmp_path)
            assert caught.value.code == f"FK-REMOVED-{row.code}"
            assert str(caught.value).endswith(f"[{caught.value.code}]")
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", REMOVED)
def test_a_command_takes_the_default_refuses_the_rest_and_shows_nothing_of_it(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_client_has_no_other_option() -> None:
    for method in {r[0] for r in ROWS if "client" in r[2].places.split()}:
        with pytest.raises(TypeError):
            client(method, "never_there", 1, Path())


def test_a_copy_of_an_app_may_name_what_went() -> None:
    """Of the release before; of groups it may leave lost-groups empty."""
    for method in REMOVED:
        if method in family(method).deployable:
            keys = declared(app_folder(family(method).app))
            for name, row in REMOVED[method].items():
                if "run" not in row.places.split():
                    continue
                usual = keys.get(name.replace("_", "-"), (row.defaults or (None,))[0])
                assert row.values or usual in row.defaults, name
    keys = {**declared(app_folder("hierarchical_svm")), "lost-groups": ""}
    method = METHODS["hierarchical-svm"]
    assert method(**read_options(method, keys)).lost_groups == "stop"


@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        (FedCGClassifier, {"protocol": "chain"}),
        (FedCGClassifier, {"sampling": "P"}),
        (FDSKLClassifier, {"topology": "tree"}),
    ],
)
def test_an_estimator_refuses_them(estimator: Any, options: dict[str, Any]) -> None:
    rows = np.random.default_rng(0).random((40, 4))
    with pytest.raises(ValueError, match="FK-REMOVED-"):
        estimator(options=options).fit(rows, rows[:, 0] > 0.5)


def test_no_value_of_data_or_of_a_secret_is_in_the_line() -> None:
    row = REMOVED["fed-cg"]["category_key"]
    assert "secret" not in str(row.refusal("category_key", b"secret"))
    assert "7.5" not in str(row.refusal("landmarks", np.full((1, 1), 7.5)))


def test_an_audit_has_no_options_of_a_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "fed-cg", "--never-there", "chain"]) == 2
    assert CODE.search(capsys.readouterr().err.strip())


def test_the_changelog_says_of_each_what_to_do_instead() -> None:
    page = Path(__file__).resolve().parents[2] / "CHANGELOG.md"
    if not page.is_file():
        pytest.skip("no source tree here")
    rows = [line for line in page.read_text("utf-8").splitlines() if "FK-REMOVED-" in line]
    for _, name, row in ROWS:
        said = next(line for line in rows if line.endswith(f"| FK-REMOVED-{row.code} |"))
        assert name in said.replace("-", "_"), name
