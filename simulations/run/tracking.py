"""Runs for the viewers of MLflow or TensorBoard, in local files.

Models and private state are not tracked.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedkern_flwr.errors import missing_package

Tracker = Literal["mlflow", "tensorboard"]


@dataclass(frozen=True)
class TrackOptions:
    """Tracking of a run.

    Attributes
    ----------
    track : {"mlflow", "tensorboard"} or None
        Keep options, metrics and plots for a viewer.
    """

    track: Tracker | None = None


_BATCH, _LONGEST = 500, 500  # metrics written at once; characters of an option


class Track:
    """Tracking of one run; this class keeps nothing.

    Parameters
    ----------
    runs : int
        Number of runs; metrics of several have a prefix.
    """

    def __init__(self, runs: int = 1) -> None:
        self._runs, self._draw, self._round = runs, 0, 0

    def update(self, label: str, done: float, total: int) -> None:
        """Notice the start of a run."""
        if not done and self._round:
            self._draw, self._round = self._draw + 1, 0

    def watch(self, metrics: Mapping[str, Any]) -> None:
        """Keep the metrics of a round."""
        self._round += 1
        draw = f"draw_{self._draw}/" if self._runs > 1 else ""
        for name, value in _finite(metrics).items():
            self.metric(f"{draw}{name}", value, self._round)

    def metric(self, name: str, value: float, step: int) -> None:
        """Keep one number."""

    def finish(self, result: Mapping[str, Any], folder: Path) -> None:
        """Keep metrics, ``result.json`` and plots."""

    def close(self, *, failed: bool) -> None:
        """Write what is left."""


class _MLflow(Track):
    def __init__(self, config: Mapping[str, Any], folder: Path) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # it prefers a database
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        super().__init__(config["runs"])
        place = Path("mlruns").resolve().as_uri()
        self._client, self._metric = MlflowClient(place, place), Metric
        known = self._client.get_experiment_by_name("fedkern")
        own = known.experiment_id if known else self._client.create_experiment("fedkern")
        self._run: str = self._client.create_run(own, run_name=folder.name).info.run_id
        options = [Param(name, value) for name, value in _options(config).items()]
        self._client.log_batch(self._run, params=options)
        self._waiting: list[Any] = []

    def metric(self, name: str, value: float, step: int) -> None:
        self._waiting.append(self._metric(name, value, int(time.time() * 1000), step))
        if len(self._waiting) >= _BATCH:
            self._write()

    def _write(self) -> None:
        self._client.log_batch(self._run, metrics=self._waiting)
        self._waiting = []

    def finish(self, result: Mapping[str, Any], folder: Path) -> None:
        for name, value in _figures(result).items():
            self.metric(f"final/{name}", value, 0)
        self._client.log_artifact(self._run, str(folder / "result.json"))
        for file in _plots(folder):
            self._client.log_artifact(self._run, str(file), "plots")

    def close(self, *, failed: bool) -> None:
        self._write()
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


class _TensorBoard(Track):
    def __init__(self, config: Mapping[str, Any], folder: Path) -> None:
        from tensorboardX import SummaryWriter

        super().__init__(config["runs"])
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))
        rows = (f"| {name} | {value} |" for name, value in _options(config).items())
        self._writer.add_text("options", "\n".join(["| option | value |", "|---|---|", *rows]))

    def metric(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def finish(self, result: Mapping[str, Any], folder: Path) -> None:
        for name, value in _figures(result).items():
            self.metric(f"final/{name}", value, 0)
        text = json.dumps(result, indent=2)
        indented = "".join(f"    {line}\n" for line in text.splitlines())
        self._writer.add_text("result.json", indented)
        for file in _plots(folder):
            from matplotlib.image import imread

            self._writer.add_image(file.stem, imread(file)[..., :3], dataformats="HWC")

    def close(self, *, failed: bool) -> None:
        self._writer.close()


#: Tracker -> module, package, and what keeps a run.
_TRACKERS = {
    "mlflow": ("mlflow", "mlflow-skinny", _MLflow),
    "tensorboard": ("tensorboardX", "tensorboardX", _TensorBoard),
}


def check_tracker(kind: Tracker | None) -> None:
    """Refuse a tracker without its package."""
    if kind is None:
        return
    try:
        __import__(_TRACKERS[kind][0])
    except ImportError:
        text = f"--track {kind} needs the package {_TRACKERS[kind][1]}"
        raise missing_package(text, "track") from None


@contextmanager
def tracking(kind: Tracker | None, config: Mapping[str, Any], folder: Path) -> Iterator[Track]:
    """Track a run; a failed one keeps its metrics so far."""
    track = _TRACKERS[kind][2](config, folder) if kind else Track()
    try:
        yield track
    except BaseException:
        track.close(failed=True)
        raise
    track.close(failed=False)


def _options(config: Mapping[str, Any]) -> dict[str, str]:
    """Return method, data and options as text."""
    more = {k: v for k, v in config.items() if k not in ("data", "options")}
    found = {**more, **config["data"], **config["options"]}
    return {name: str(value)[:_LONGEST] for name, value in found.items() if value is not None}


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    """Return finite numbers."""
    numbers = {n: float(v) for n, v in values.items() if isinstance(v, (int, float))}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _figures(result: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics and costs of a result."""
    costs = {n: result[n] for n in ("exchanges", "bytes_up", "bytes_down", "seconds")}
    return _finite({**result["metrics"], **costs})


def _plots(folder: Path) -> list[Path]:
    return sorted((folder / "plots").glob("*.png"))
