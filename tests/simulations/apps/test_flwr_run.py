"""What `flwr run` computes is what `simulate` computes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from servers import SuperLink

from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.deployment.run_config import app_folder
from fedkern_flwr.simulations.methods.online_data import DataSettings, prepare
from fedkern_flwr.strategies import POFMKL

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
