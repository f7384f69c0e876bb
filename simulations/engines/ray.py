"""Flower's Ray engine, started from Python with the defaults of this project."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.errors import EngineError
from fedkern_flwr.flower_compat import Client, set_telemetry

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

ClientFn = Callable[[Context], Any]

_loaded: dict[str, ClientFn] = {}


class SpilledClientFn:
    """A ``client_fn`` kept in a file, because Flower pickles the app into every message.

    Each Ray worker reads the file once. Otherwise the data that a ``client_fn`` holds would
    travel with each message.

    Parameters
    ----------
    path : path
        A file written by :func:`spill`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    def __call__(self, context: Context) -> Client:
        """Build the client of a node."""
        if self.path not in _loaded:
            from ray import cloudpickle

            _loaded[self.path] = cloudpickle.loads(Path(self.path).read_bytes())
        return as_client(_loaded[self.path](context))


def spill(client_fn: ClientFn, path: Path) -> SpilledClientFn:
    """Write a ``client_fn`` with all it holds to a file that only this user can read."""
    from ray import cloudpickle

    path.touch(mode=0o600)
    path.write_bytes(cloudpickle.dumps(client_fn))  # type: ignore[no-untyped-call]
    return SpilledClientFn(path)


def as_client(client: Any) -> Client:
    """Return what Flower serves for one of our clients or a ``Client``."""
    return client if isinstance(client, Client) else client.to_client()


def run_on_ray(drive: Callable[[Grid], None], client_fn: ClientFn, num_clients: int) -> None:
    """Start Flower's Ray engine with ``num_clients`` nodes and drive it.

    Parameters
    ----------
    drive : callable
        Gets the grid; runs one strategy or several, one after the other.
    client_fn : callable
        Context -> client.
    num_clients : int
        Number of nodes; each gets one CPU while it works.

    Raises
    ------
    EngineError
        Ray is not installed or its engine broke down.
    """
    os.environ.update({k: os.environ.get(k, v) for k, v in ENVIRONMENT.items()})
    set_telemetry(os.environ["FLWR_TELEMETRY_ENABLED"])
    try:
        import ray  # noqa: F401
        from flwr.simulation import run_simulation
    except ImportError:
        raise EngineError(
            "Ray is not installed", remedy="pip install 'fedkern-flwr[simulation]'"
        ) from None
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        drive(grid)

    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {
            "num_cpus": os.cpu_count() or 1,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "log_to_driver": False,
            "logging_level": logging.ERROR,
        },
    }
    with tempfile.TemporaryDirectory(prefix="fedkern-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        light = spill(client_fn, Path(folder) / "client_fn.pickle")
        run_simulation(
            server_app,
            ClientApp(client_fn=light),
            num_clients,
            backend_config=backend,  # type: ignore[arg-type]
        )
