"""Experiments: scaling, dealing, averaging, and the server's regret in hindsight."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.simulations.lab.presets import NAMES, preset
from fedkern_flwr.simulations.methods.experiment import Entry, run_entries, summarise
from fedkern_flwr.simulations.methods.hindsight import server_regret
from fedkern_flwr.simulations.methods.online_data import DataSettings, Streams, prepare
from fedkern_flwr.simulations.run.datasets import BUILTIN, BUILTIN_INTERACTIONS
from fedkern_flwr.simulations.run.random_labels import RANDOM_LABELS
from fedkern_flwr.strategies import OFSKL

DATA = os.environ.get("FEDKERN_DATA")


def test_rows_lie_in_the_unit_ball_and_labels_in_the_unit_interval():
    prepared = prepare(DataSettings("diabetes", clients=5, rounds=60))
    x = np.concatenate([shard.x for shard in prepared.clients.shards])
    y = np.concatenate([shard.y for shard in prepared.clients.shards])
    assert np.linalg.norm(x, axis=1).max() <= 1.0 + 1e-12
    assert y.min() >= 0.0
    assert y.max() <= 1.0
    assert all(len(shard.x) == 60 for shard in prepared.clients.shards)


def test_rounds_default_to_what_the_data_has():
    prepared = prepare(DataSettings("iris"))
    assert (prepared.num_clients, prepared.rounds) == (10, 15)
    assert "15 rounds instead of 500" in prepared.notes[-1]


def test_site_split_takes_one_client_a_site():
    prepared = prepare(DataSettings("nyc-weather", split="site", rounds=10))
    assert prepared.num_clients == 3


def test_unknown_sites_are_refused_without_naming_those_of_the_data():
    with pytest.raises(TableError, match="1 of the sites asked for") as error:
        prepare(DataSettings("nyc-weather", sites=("EWR", "CDG")))
    assert "JFK" not in str(error.value)


def test_test_size_outside_its_range_is_refused():
    with pytest.raises(OptionError, match="test-size"):
        prepare(DataSettings("iris", test_size=-0.1))


def test_summary_averages_draws_round_by_round():
    prepared = prepare(DataSettings("iris", clients=3, rounds=9))
    entry = Entry("OFSKL", "ofskl", {"samples_per_round": 3})
    run_entries([entry], prepared, engine="in-process", seed=4, runs=2)
    summary = summarise(entry)
    draws = entry.results
    assert summary["metrics"]["mse"] == pytest.approx(
        np.mean([draw["metrics"]["mse"] for draw in draws])
    )
    assert [row["round"] for row in summary["history"]] == [3, 6, 9]
    assert summary["history"][1]["mse"] == pytest.approx(
        np.mean([draw["history"][1]["mse"] for draw in draws])
    )
    assert summary["exchanges"] == 4


def test_methods_that_need_other_clients_get_them(monkeypatch):
    """Draws of one variant share an engine, and results stay in order."""
    prepared = prepare(DataSettings("iris", clients=3, rounds=4))
    asked = []
    real = Streams.client_fn

    def client_fn(self, strategy, state_dir=None):
        asked.append(strategy.method)
        return real(self, strategy, state_dir)

    monkeypatch.setattr(Streams, "client_fn", client_fn)
    entries = [Entry(name, name) for name in ("ofskl", "per-fed-avg")]
    run_entries(entries, prepared, engine="in-process", seed=0, runs=2)
    assert asked == ["ofskl"]
    monkeypatch.setattr(Streams, "variant", lambda self, strategy: strategy.method)
    again = [Entry(name, name) for name in ("ofskl", "per-fed-avg")]
    run_entries(again, prepared, engine="in-process", seed=0, runs=2)
    assert asked == ["ofskl", "ofskl", "per-fed-avg"]
    for before, after in zip(entries, again, strict=True):
        errors = [[r["metrics"]["mse"] for r in entry.results] for entry in (before, after)]
        assert errors[0] == errors[1]


def test_server_regret_is_against_the_best_ridge_fit():
    prepared = prepare(DataSettings("diabetes", clients=4, rounds=50))
    entry = Entry("OFSKL", "ofskl", {"features": 8, "precision": "float64"})
    ended = []
    run_entries(
        [entry],
        prepared,
        engine="in-process",
        seed=0,
        draw_done=lambda _, strategy: ended.append(strategy),
    )
    (strategy,) = ended
    assert isinstance(strategy, OFSKL)
    x = np.concatenate([shard.x for shard in prepared.clients.shards])
    y = np.concatenate([shard.y for shard in prepared.clients.shards])
    from fedkern_flwr.kernels.random_features import gaussian_frequencies

    frequencies = gaussian_frequencies(
        np.array([10.0]).tobytes(), x.shape[1], 8, 0, "float64", "orthogonal"
    )
    z = np.hstack([np.sin(x @ frequencies), np.cos(x @ frequencies)]) / np.sqrt(8)
    # the ridge problem as least squares with extra rows
    ridge = np.sqrt(1e-3 * len(x)) * np.eye(16)
    y = y - strategy.centre  # around which labels are learned
    theta = np.linalg.lstsq(np.vstack([z, ridge]), np.append(y, np.zeros(16)), rcond=None)[0]
    best = ((z @ theta - y) ** 2).sum()
    expected = strategy.metrics_["mse"] * len(x) - best
    assert server_regret(strategy, prepared) == pytest.approx(expected, rel=1e-8)


@pytest.mark.skipif(not DATA, reason="FEDKERN_DATA is not set")
def test_presets_describe_the_papers_experiments():
    for name in NAMES:
        if name.startswith("fed-cfk"):
            continue  # MovieLens may not be there, see test_gram_presets.py
        chosen = preset(name)
        assert chosen.entries
        for settings in chosen.data.values():
            named = (*BUILTIN, *BUILTIN_INTERACTIONS, "three-hospitals", RANDOM_LABELS)
            assert settings.data in named or Path(settings.data).is_file()
    air = prepare(preset("pof-mkl-table1").data["Air"])
    assert air.num_clients == 240
    assert {len(shard.x) for shard in air.clients.shards} == {500}


@pytest.mark.long
@pytest.mark.skipif(not DATA, reason="FEDKERN_DATA is not set")
@pytest.mark.parametrize(
    ("settings", "entry_options", "most"),
    [
        (
            {"data": "naval.npz", "target": "0", "clients": 23},
            {"kernels_per_round": 25, "features": 20},
            1.6e-3,
        ),
        (
            {"data": "naval.npz", "target": "0", "clients": 23},
            {"kernels_per_round": 1, "features": 100},
            5.0e-3,
        ),
        (
            {"data": "ujiindoorloc.npz", "label": "0", "clients": 39},
            {"kernels_per_round": 25, "features": 20},
            28e-3,
        ),
    ],
    ids=["naval (25, 20)", "naval (1, 100)", "uji (25, 20)"],
)
def test_adaptive_mode_reaches_the_promised_error(settings, entry_options, most):
    data = DataSettings(**{**settings, "data": str(Path(str(DATA)) / settings["data"])}, rounds=500)
    entry = Entry("POF-MKL", "pof-mkl", entry_options)
    run_entries([entry], prepare(data), engine="in-process", seed=0)
    assert entry.results[0]["metrics"]["mse"] <= most
