"""A run that is stopped: it says which one it is, what is left of it and how it goes on."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from refusals import refuses

from fedkern_flwr import __version__
from fedkern_flwr.clients import KernelPCAClient, serve
from fedkern_flwr.reporting import ended_by_signals
from fedkern_flwr.simulations import InProcessGrid
from fedkern_flwr.simulations.apps.server import server_app
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.deployment.run_config import app_folder, declared
from fedkern_flwr.strategies import KernelPCA


class Stopping(KernelPCAClient):
    """A client during whose second sum somebody stops the server."""

    by: int = signal.SIGTERM

    def __init__(self, context: Context) -> None:
        self.number = int(context.node_config["partition-id"])
        super().__init__(context, np.random.default_rng(self.number).random((20, 2)))

    def fit(self, parameters: Any, config: Any) -> Any:
        if config["phase"] == "method" and config["round"] > 1:
            os.kill(os.getpid(), self.by)
        return super().fit(parameters, config)


def submit(**config: Any) -> None:
    grid = InProcessGrid(serve(Stopping), 3)
    grid.set_run(SimpleNamespace(run_id=77, fab_id="us/app", fab_version="1", fab_hash="ab"))
    own = {**declared(app_folder("method")), "method": "kernel-pca", "options": '{"features": 3}'}
    server_app(KernelPCA)(grid, Context(1, 1, {}, RecordDict(), {**own, **config}))


@pytest.fixture
def handlers() -> Iterator[None]:
    """Handlers as of a process that ignores no signal, and as they were afterwards."""
    before = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stopped_server_says_how_its_run_goes_on(
    by: signal.Signals, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stopping, "by", by)
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    file, told = tmp_path / "run.npz", tmp_path / "result.json"
    more = {"checkpoint": str(file)} if kept else {}
    caught = refuses("FK-RUN-STOPPED", submit, result=str(told), **more)
    assert file.exists() == kept
    assert "run 77 was stopped by a signal" in str(caught)
    assert (f"resume=true, checkpoint={file}" in str(caught)) == kept
    found = json.loads(told.read_text())
    assert (found["code"], found["exit_code"]) == ("FK-RUN-STOPPED", 1)
    assert found["run"]["run_id"] == "77"
    assert {number: signal.getsignal(number) for number in before} == before


def test_a_thread_of_a_simulation_has_no_handlers() -> None:
    found: list[bool] = []

    def block() -> None:
        with ended_by_signals():
            found.append(True)

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert found == [True]


def test_a_stopped_command_says_how_to_go_on(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    fit = KernelPCAClient.fit

    def stopping(client: KernelPCAClient, parameters: Any, config: Any) -> Any:
        if config["phase"] == "method" and config["round"] > 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return fit(client, parameters, config)

    monkeypatch.setattr(KernelPCAClient, "fit", stopping)
    place = tmp_path / "run"
    command = ["run", "kernel-pca", "--data", "iris", "--features", "3", "--test-size", "0.3"]
    assert run([*command, "--out", str(place)]) == 130
    shown = capsys.readouterr().err.replace("\n", "")
    assert f"fedkern run kernel-pca --resume {place}" in shown
    assert shown.endswith("[FK-COMMAND-INTERRUPTED]")
    monkeypatch.setattr(KernelPCAClient, "fit", fit)
    assert run(["run", "kernel-pca", "--resume", str(place)]) == 0
    facts = json.loads((place / "result.json").read_text())["run"]
    assert len(facts["nodes"]) == 5
    assert facts["began"] <= facts["ended"]
    assert facts["release"] == __version__


@pytest.mark.usefixtures("handlers")
def test_a_signal_that_is_ignored_stays_so() -> None:
    """As of a run that ``nohup`` has started, when its terminal is closed."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ended_by_signals():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
