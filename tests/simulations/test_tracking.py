"""Tracked runs: what the files of both trackers hold, and what they never hold."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

from fedkern_flwr.simulations.cli import run as run_command
from fedkern_flwr.simulations.run.tracking import tracking

pytestmark = pytest.mark.usefixtures("in_tmp")
RUN = ["pof-mkl", "--clients", "3", "--rounds", "12", "--out", "run", "--quiet"]


def check_kept(place: Path) -> None:
    """Check that models and the state of nodes are not tracked."""
    held = {path.suffix: path.name for path in place.rglob("*") if path.is_file()}
    assert held
    assert not held.keys() & {".npz", ".state", ".db"}
    assert not [*place.rglob("scaling.json")]


def tracked(*options: str) -> dict[str, Any]:
    """Run with options of tracking; return the result."""
    run_command.command.main([*RUN, *options], standalone_mode=False)
    return dict(json.loads(Path("run/result.json").read_text()))


def client() -> Any:
    """Return MLflow's client for the files here."""
    from mlflow.tracking import MlflowClient

    return MlflowClient(Path("mlruns").resolve().as_uri())


@pytest.mark.extra("mlflow-skinny")
def test_mlflow_has_options_metrics_of_rounds_and_artefacts(monkeypatch):
    """Files only: the server that the environment names is not asked (nobody listens there)."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    result = tracked("--track", "mlflow")
    own = client()
    (run,) = own.search_runs([own.get_experiment_by_name("fedkern").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["clients"] == "3"
    assert run.data.params["method"] == "pof-mkl"
    course = own.get_metric_history(run.info.run_id, "mse")
    assert [one.step for one in course] == list(range(1, len(course) + 1))
    assert [one.value for one in course] == [row["mse"] for row in result["history"]]
    assert run.data.metrics["final/mse"] == result["metrics"]["mse"]
    assert run.data.metrics["final/exchanges"] == result["exchanges"]
    names = {one.path for one in own.list_artifacts(run.info.run_id)}
    assert names == {"result.json", "plots"}
    check_kept(Path("mlruns"))


@pytest.mark.extra("tensorboardX")
def test_tensorboard_has_the_same() -> None:
    from tensorboardX.proto.event_pb2 import Event

    result = tracked("--track", "tensorboard")
    check_kept(Path("run/tensorboard"))
    (file,) = Path("run/tensorboard").glob("events*")
    data, place, found = file.read_bytes(), 0, {}
    images = texts = 0
    while place < len(data):
        size = int.from_bytes(data[place : place + 8], "little")
        event = Event.FromString(data[place + 12 : place + 12 + size])
        place += 16 + size
        for value in event.summary.value:
            images += value.HasField("image")
            texts += value.HasField("tensor")
            if value.HasField("simple_value"):
                found.setdefault(value.tag, []).append(value.simple_value)
    assert found["mse"] == pytest.approx([row["mse"] for row in result["history"]], rel=1e-6)
    assert found["final/exchanges"] == [result["exchanges"]]
    assert images == len(list(Path("run/plots").glob("*.png")))
    assert texts == 2


@pytest.mark.extra("mlflow-skinny")
def test_draws_are_told_apart_and_a_run_that_breaks_off_has_failed() -> None:
    tracked("--track", "mlflow", "--runs", "2")
    own = client()
    experiment = own.get_experiment_by_name("fedkern").experiment_id
    (run,) = own.search_runs([experiment])
    assert {"draw_0/mse", "draw_1/mse"} <= set(run.data.metrics)
    config = json.loads(Path("run/config.json").read_text())
    with suppress(RuntimeError), tracking("mlflow", config, Path("run")) as track:
        track.watch({"mse": 0.5, "name": "text", "bad": float("nan")})
        raise RuntimeError
    last = own.search_runs([experiment], order_by=["attributes.start_time DESC"])[0]
    assert last.info.status == "FAILED"
    assert set(last.data.metrics) == {"draw_0/mse"}


def test_a_missing_package_is_one_line_before_anything_is_made(monkeypatch):
    for kind, module in (("mlflow", "mlflow"), ("tensorboard", "tensorboardX")):
        monkeypatch.setitem(sys.modules, module, None)
        refuses("FK-PACKAGE-MISSING", tracked, "--track", kind)
    assert not Path("run").exists()
