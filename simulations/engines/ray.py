"""Start Flower's Ray engine from Python with the defaults of this project."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.errors import EngineError
from fedkern_flwr.flower_compat import set_telemetry
from fedkern_flwr.guard.policy import SIMULATION

from .direct import DirectApp, ReportingApp
from .ray_cluster import address_of, check_ray_address, joined, scratch_folder

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

ClientFn = Callable[[Context], Any]
Clients = ClientFn | ClientApp

_loaded: dict[Any, Any] = {}


class ShippedApp(ClientApp):
    """Keep an app in Ray's object store, because Flower pickles the app into every message.

    Otherwise the clients' data would travel with each message. ``scratch`` is the folder for
    temporary files: two machines of a cluster may answer a client, so both must see its files.
    """

    def __init__(self, clients: Clients, scratch: Path | None = None) -> None:
        import ray
        from ray import cloudpickle

        super().__init__()
        data = cloudpickle.dumps(clients)  # type: ignore[no-untyped-call]
        self.reference = ray.put(np.frombuffer(data, np.uint8))
        self.scratch = None if scratch is None else str(scratch)

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message to a node."""
        if self.reference not in _loaded:
            import ray
            from ray import cloudpickle

            tempfile.tempdir = self.scratch
            _loaded[self.reference] = served(cloudpickle.loads(ray.get(self.reference).data))
        context.node_config.setdefault(SIMULATION, True)
        app: ClientApp = _loaded[self.reference]
        return app(message, context)


def served(clients: Clients) -> ClientApp:
    """Return the app that serves clients."""
    if isinstance(clients, ClientApp):
        return clients
    return DirectApp(clients)


def run_on_ray(
    drive: Callable[[Grid], None],
    client_fn: Clients,
    num_clients: int,
    *,
    ray_address: str | None = None,
    shared_dir: Path | None = None,
) -> None:
    """Drive Flower's Ray engine with ``num_clients`` nodes.

    Parameters
    ----------
    drive : callable
        Takes the grid; runs one or more strategies.
    client_fn : callable or ClientApp
        Context -> client, or the app.
    num_clients : int
        Number of nodes; each takes one CPU while it works.
    ray_address : str, optional
        ``host:port`` of a running cluster, or ``auto`` (default: the environment variable
        ``RAY_ADDRESS``, else Ray runs on this machine).
    shared_dir : path, optional
        On a cluster: a folder that all machines see, for clients' files (default: the ``state_dir``
        of ``client_fn``, else the current folder).

    Raises
    ------
    OptionError
        There is no cluster at the address.
    EngineError
        Ray is not installed, its engine fails, or the machines do not fit.
    """
    folder = None
    if address_of(ray_address) is not None:
        folder = shared_dir or getattr(client_fn, "state_dir", None) or Path.cwd()
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        drive(grid)

    with (
        connected(ray_address, shared_dir=folder),
        scratch_folder(folder) if folder else nullcontext() as scratch,
        warnings.catch_warnings(),
    ):
        from flwr.simulation import run_simulation

        warnings.simplefilter("ignore", DeprecationWarning)
        run_simulation(
            server_app,
            ReportingApp(ShippedApp(client_fn, scratch)),
            num_clients,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )


@contextmanager
def connected(
    ray_address: str | None = None, *, num_cpus: int | None = None, shared_dir: Path | None = None
) -> Iterator[Any]:
    """Join a Ray cluster, or start Ray on this machine, while the block runs.

    Parameters
    ----------
    ray_address, shared_dir
        See :func:`run_on_ray`; without a folder none has to be shared.
    num_cpus : int, optional
        Of a Ray on this machine (default: its processors).

    Yields
    ------
    module
        ``ray``.

    Raises
    ------
    OptionError, EngineError
        See :func:`run_on_ray`.
    """
    os.environ.update({k: os.environ.get(k, v) for k, v in ENVIRONMENT.items()})
    set_telemetry(os.environ["FLWR_TELEMETRY_ENABLED"])
    try:
        import ray
    except ImportError:
        raise EngineError(
            "Ray is not installed",
            remedy="pip install 'fedkern-flwr[simulation]'",
            code="FK-PACKAGE-MISSING",
        ) from None
    address = address_of(ray_address)
    check_ray_address("ray", address)
    if address is not None:
        with joined(address, shared_dir=shared_dir):
            yield ray
        return
    try:
        if not ray.is_initialized():
            ray.init(
                address="local",  # else Ray would join a cluster that happens to run here
                num_cpus=num_cpus or os.cpu_count() or 1,
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        yield ray
    finally:
        ray.shutdown()
