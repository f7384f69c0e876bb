"""A disk that is full at the server: the run goes on, and what it found is written elsewhere."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from refusals import refused, refuses

from fedkern_flwr import checkpoint
from fedkern_flwr.clients import KernelPCAClient
from fedkern_flwr.errors import TableError
from fedkern_flwr.model_file import load_model, save_model
from fedkern_flwr.reporting import errors_reported, write_result, write_somewhere
from fedkern_flwr.simulations import Fault, simulate
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.strategies import KernelPCA

Plan = Callable[[Delivery], Fault | None]


def full(path: Path, *data: Any, **how: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


def client(context: Context) -> KernelPCAClient:
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    return KernelPCAClient(context, rng.random((20, 2)))


def run(faults: Plan | None = None, **options: Any) -> KernelPCA:
    strategy = KernelPCA(features=3, attempts=1, **options)
    simulate(strategy, client, 3, faults=faults)
    return strategy


@pytest.mark.parametrize("writes", [0, 1])
def test_a_run_goes_on_without_a_checkpoint(
    writes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An earlier checkpoint does not know which sums are opened afterwards: it must go."""
    file, left, write = tmp_path / "run.npz", [writes], checkpoint.write_atomically

    def fills(path: Path, *data: Any, **how: Any) -> None:
        left[0] -= 1
        (write if left[0] >= 0 else full)(path, *data, **how)

    monkeypatch.setattr(checkpoint, "write_atomically", fills)
    caplog.set_level(logging.WARNING, "fedkern_flwr")
    found = run(checkpoint=file)
    np.testing.assert_array_equal(found.model()[0]["mean"], run().model()[0]["mean"])
    assert left[0] < -1  # it was tried again
    (told,) = [line for line in caplog.messages if str(file) in line]
    assert told.endswith("[FK-FILE-WRITE]")
    assert not file.exists()
    assert not found.resumable


def test_a_run_that_fails_later_says_nothing_of_resuming(tmp_path: Path, monkeypatch: Any) -> None:
    def gone(delivery: Delivery) -> Fault | None:
        """The second sum gets no answer: of the first there is a checkpoint."""
        return Fault("vanished") if delivery.phase == "method" and delivery.round > 1 else None

    with refused("FK-PARTIES-LOST") as caught:
        run(gone, checkpoint=tmp_path / "run.npz")
    assert "resume" in str(caught.value)
    monkeypatch.setattr(checkpoint, "write_atomically", full)
    with refused("FK-PARTIES-LOST") as caught:
        run(gone, checkpoint=tmp_path / "other.npz")
    assert "resume" not in str(caught.value)


def test_a_checkpoint_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, failed = checkpoint.write_atomically, []

    def fails_once(path: Path, *data: Any, **how: Any) -> None:
        if not failed:
            failed.append(path)
            full(path)
        write(path, *data, **how)

    monkeypatch.setattr(checkpoint, "write_atomically", fails_once)
    found = run(checkpoint=tmp_path / "run.npz")
    assert failed == [tmp_path / "run.npz"]
    assert found.resumable
    assert (tmp_path / "run.npz").exists()


# -- results


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a path that cannot be written; the current folder is the test's own."""
    (tmp_path / "file").write_text("")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "file" / "result.json"


def test_a_result_is_written_elsewhere_and_the_log_says_where(nowhere: Path, caplog: Any) -> None:
    caplog.set_level(logging.WARNING, "flwr")
    write_result(nowhere, {"metrics": {"rows": 3}})
    model = nowhere.with_name("model.npz")
    write_somewhere(model, lambda at: save_model(at, "kernel-pca", {"mean": np.ones(2)}, {}))
    result, saved = sorted(Path.cwd().iterdir(), key=lambda path: path.suffix)
    assert json.loads(result.read_text()) == {"metrics": {"rows": 3}}
    np.testing.assert_array_equal(load_model(saved, "kernel-pca")[0]["mean"], np.ones(2))
    for path, other, line in zip((nowhere, model), (result, saved), caplog.messages, strict=True):
        assert str(path) in line
        assert str(other) in line
        assert line.endswith("[FK-FILE-WRITE]")


def test_a_result_that_fits_nowhere_is_one_line(nowhere: Path, monkeypatch: Any) -> None:
    caught = refuses("FK-FILE-WRITE", write_somewhere, nowhere, full)
    assert str(nowhere) in str(caught)
    monkeypatch.setattr("fedkern_flwr.reporting.write_atomically", full)
    with refused("FK-ROWS-NONE"), errors_reported(""):  # what ended the run is said all the same
        raise TableError("none", code="FK-ROWS-NONE")
    with refused("FK-ROWS-NONE"), errors_reported(nowhere.parent.parent / "result.json"):
        raise TableError("none", code="FK-ROWS-NONE")
