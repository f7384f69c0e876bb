"""`fedkern init`: an app that `flwr run .` takes as it is, with a number of nodes of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import get_metadata_from_config
from flwr.supercore.task_identity import TaskIdentity
from servers import SuperLink

from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.cli.init import COPIED
from fedkern_flwr.simulations.deployment.run_config import app_folder
from fedkern_flwr.simulations.methods.online import DataSettings, prepare
from fedkern_flwr.simulations.methods.registry import family
from fedkern_flwr.strategies import POFMKL

MIGRATE = """
import os, sys
from flwr.cli.config_migration import migrate
from flwr.cli.flower_config import read_superlink_connection
for folder in sys.argv[1:]:
    os.environ["FLWR_HOME"] = folder + "-home"
    migrate(folder, [], ignore_legacy_usage=True)  # as `flwr run .` does
    found = read_superlink_connection()  # that of a command which names none
    print("-", found.name, found.address, found.options.num_supernodes)
"""


def test_flower_reads_the_number_of_nodes_of_the_app(tmp_path, commands):
    folders = [tmp_path / method for method in COPIED]
    for method, folder in zip(COPIED, folders, strict=True):
        code, told, _ = commands("init", method, str(folder))
        assert code == 0
        assert "flwr run . --stream" in told
        assert f'result="{folder}/result.json"' in told
        assert len(build_fab_from_disk(folder)) > 1000
    command = [sys.executable, "-c", MIGRATE, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("- ")] == [
        f"- {method}-simulation :local: {family(method).nodes}" for method in COPIED
    ]


@pytest.mark.parametrize("method", COPIED)
def test_the_copy_deals_its_data_to_its_nodes(method, tmp_path, commands, import_app):
    commands("init", method, str(tmp_path / "app"))
    project = tomllib.loads((tmp_path / "app/pyproject.toml").read_text())
    assert project["project"]["dependencies"] == ["flwr>=1.41,<1.43"]  # nothing is fetched
    run = project["tool"]["flwr"]["app"]["config"]
    values = {key.replace("-", "_"): value for key, value in run.items()}
    dealt = family(method).deal_nodes(values, family(method).nodes)
    assert all(value is None or value >= 1 for value in dealt.values())
    assert get_metadata_from_config(project)
    copied = {path.name for path in (tmp_path / "app").iterdir()}
    assert copied == {p.name for p in app_folder(family(method).app).iterdir()} - {"__pycache__"}


def test_a_wrong_path_is_an_answer_of_one_line_and_no_exception(import_app, caplog):
    """Of an exception Flower's engine prints four tracebacks for each node."""
    app = import_app("fed_cg", "own_table", "client_app")
    run = {**app.config, "data": "gone.csv", "label": "y"}
    node = {"partition-id": 1, "num-partitions": 4}
    context = Context(1, 1, node, RecordDict(), run)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    answer = app.client_app.app(message, context)
    assert "partition 1: there is no file gone.csv" in answer.error.reason
    assert answer.error.reason.endswith("[FK-FILE-READ]")
    assert "Traceback" not in caplog.text


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path, commands: Any) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert commands.complaint("init", "fed-cg", str(tmp_path)).endswith("[FK-FOLDER-USED]")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert commands.complaint("init", "no-method", "new").endswith("[FK-OPTION-CHOICE]")


def test_the_app_of_a_registered_method_is_copied(tmp_path: Path, commands: Any) -> None:
    commands("init", "kernel-pca", str(tmp_path / "app"))
    told = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]
    assert told["app"]["config"]["method"] == "kernel-pca"
    assert "federations" not in told  # its nodes have tables


CONFIG = 'data="diabetes" num-rounds=20 samples-per-round=5 features=6 seed=3 secure="on"'
CONFIG += " node-timeout=200.0"  # of a busy machine


@pytest.mark.deployment
@pytest.mark.timeout(280)
def test_flwr_run_gives_the_model_of_simulate(tmp_path: Path) -> None:
    app = Path(shutil.copytree(app_folder("pof_mkl"), tmp_path / "pof-mkl"))  # as a user does
    saved = tmp_path / "model.npz"
    with SuperLink(tmp_path / "home") as superlink:
        log = superlink.log(superlink.run(app, f'{CONFIG} model="{saved}"', clients=3))
    arrays, options = load_model(saved)

    prepared = prepare(DataSettings("diabetes", clients=3, rounds=20, seed=3))
    strategy = POFMKL(features=6, samples_per_round=5, seed=3, secure=True)
    simulate(strategy, prepared.clients, 3, num_rounds=20)

    expected_arrays, expected_options = strategy.model()
    assert {**options, "session": ""} == {**expected_options, "session": ""}
    assert arrays.keys() == expected_arrays.keys()
    assert np.abs(arrays["theta"]).max() > 0.0
    for name, expected in expected_arrays.items():
        np.testing.assert_allclose(arrays[name], expected, rtol=0.0, atol=1e-9)
    assert f"mse: {strategy.metrics_['mse']:.6g}" in log
    assert f"regret_mean: {strategy.metrics_['regret_mean']:.6g}" in log
    assert "the server saw: sums over the clients of a round" in log
