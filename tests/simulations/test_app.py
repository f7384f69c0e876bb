"""The Flower app: what `flwr run` computes is what `simulate` computes."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.methods.online_data import DataSettings, prepare
from fedkern_flwr.strategies import POFMKL

CONFIG = 'data="diabetes" num-rounds=20 samples-per-round=5 features=6 seed=3 secure="on"'


def app_folder() -> Path:
    """Return the folder of the app in the installed package."""
    return Path(str(files("fedkern_flwr.simulations"))) / "apps" / "pof_mkl"


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Return a copy of the installed app, as a user makes one."""
    return Path(shutil.copytree(app_folder(), tmp_path / "pof-mkl"))


@pytest.mark.deployment
@pytest.mark.timeout(90)
def test_flwr_run_gives_the_model_of_simulate(superlink: Any, app: Path, tmp_path: Path) -> None:
    saved = tmp_path / "model.npz"
    run_id = superlink.run(app, f'{CONFIG} model="{saved}"', clients=3)
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
    log = superlink.log(run_id)
    assert f"mse: {strategy.metrics_['mse']:.6g}" in log
    assert f"regret_mean: {strategy.metrics_['regret_mean']:.6g}" in log
    assert "the server saw: sums over the clients of a round" in log


def test_app_reads_a_deployed_node_s_own_table(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = np.array([[0.0, 10.0], [4.0, 20.0]]), np.array([-5.0, 15.0])
    np.savez(tmp_path / "site.npz", X=x, y=y, feature_names=np.array(["a", "b"]))
    scaling = {"x_min": [0, 0], "x_max": [4, 20], "row_norm": 2.0, "y_min": -5, "y_max": 35}
    (tmp_path / "scaling.json").write_text(json.dumps(scaling))
    node: dict[str, Any] = {"partition-id": 1, "num-partitions": 3}
    node |= {"data": str(tmp_path / "site.npz"), "scaling": str(tmp_path / "scaling.json")}

    monkeypatch.syspath_prepend(app)
    for name in ("own_table", "client_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import client_app
    from flwr.app import Context, RecordDict

    context = Context(
        run_id=1, node_id=7, node_config=node, state=RecordDict(), run_config={"data": ""}
    )
    client = client_app.make_client(context)

    np.testing.assert_array_equal(client.x, [[0.0, 0.25], [0.5, 0.5]])
    np.testing.assert_array_equal(client.y, [0.0, 0.5])
    assert (client.partition, client.columns) == (1, ("a", "b"))


def test_app_s_defaults_are_options_the_strategy_takes(app: Path) -> None:
    with (app / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["tool"]["flwr"]["app"]["config"]
    used = {
        name
        for source in ("server_app.py", "client_app.py")
        for name in declared
        if f'["{name}"]' in (app / source).read_text()
    }
    assert used == set(declared)
    POFMKL(
        kernels=declared["kernels"],
        kernels_per_round=declared["kernels-per-round"] or None,
        features=declared["features"],
        exploration=declared["exploration"],
        step_size=declared["step-size"],
    )
