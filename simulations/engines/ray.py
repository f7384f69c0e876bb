"""Start Flower's Ray engine from Python with the defaults of this project."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedkern_flwr.checkpoint import make_private_folder, write_atomically
from fedkern_flwr.errors import EngineError, OptionError
from fedkern_flwr.flower_compat import set_telemetry
from fedkern_flwr.guard.policy import SIMULATION

from .in_process import DirectApp, ReportingApp

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


# -- a cluster that runs already

_START = "start it with `ray start --head`, and name its host and port"
_ANSWER = 5.0  # seconds to answer a connection
_PROBE = 60.0  # seconds for a task on every node, which may start a worker for it
_PACKAGES = ("fedkern-flwr", "flwr", "numpy", "scipy")


def check_ray_address(engine: str, address: str | None) -> None:
    """Refuse an address that cannot work.

    Raises
    ------
    OptionError
    """
    if address is None:
        return
    if engine != "ray":
        raise OptionError(f"a Ray address goes with engine ray, not {engine}", code="FK-ENGINE-RAY")
    if "://" in address:
        raise OptionError(
            f"{address} is an address of Ray Client, which Flower's engine cannot use",
            code="FK-ENGINE-CLIENT",
        )


@contextmanager
def joined(address: str, *, shared_dir: Path | None = None) -> Iterator[None]:
    """Join a cluster, check its machines and the folder that they share, and disconnect at the end.

    Raises
    ------
    OptionError
        There is no cluster at the address, or this machine is not part of it.
    EngineError
        The machines differ in their packages, or do not share the folder.
    """
    import ray

    found = _find(address)
    try:
        ray.init(address=found, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        raise OptionError(
            f"cannot join the Ray cluster at {found}: {_line(error)}", code="FK-ENGINE-JOIN"
        ) from None
    try:
        _check_nodes(shared_dir)
        yield
    finally:
        ray.shutdown()  # disconnects; a cluster that was there before stays


@contextmanager
def scratch_folder(shared_dir: Path) -> Iterator[Path]:
    """Make a private folder that is removed with its content."""
    make_private_folder(shared_dir)
    with tempfile.TemporaryDirectory(prefix=".fedkern-ray-", dir=shared_dir.resolve()) as folder:
        yield Path(folder)


def _find(address: str) -> str:
    """Return host and port of a cluster that answers; Ray itself would wait for minutes."""
    from ray._private.services import canonicalize_bootstrap_address
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    try:
        found = canonicalize_bootstrap_address(address)
    except (ValueError, OSError) as error:
        raise OptionError(
            f"{address} is no address of a Ray cluster: {_line(error)}",
            remedy=_START,
            code="FK-ENGINE-ADDRESS",
        ) from None
    if found is None:
        raise OptionError(
            "no Ray cluster runs on this machine", remedy=_START, code="FK-ENGINE-ADDRESS"
        )
    host, _, port = found.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()
    except (OSError, ValueError):
        raise OptionError(
            f"no Ray cluster answers at {found}", remedy=_START, code="FK-ENGINE-ADDRESS"
        ) from None
    try:
        GcsClient(address=found)
    except Exception as error:  # Ray's own classes of errors are not public
        raise OptionError(
            f"no Ray cluster answers at {found}: {_line(error)}", code="FK-ENGINE-ADDRESS"
        ) from None
    return found


def _check_nodes(shared_dir: Path | None) -> None:
    """Check versions on every node, and whether it sees a file in the folder.

    Raises
    ------
    EngineError
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def look(packages: tuple[str, ...], file: str) -> tuple[dict[str, str], str]:
        # nothing of this package: it may not be there
        from importlib.metadata import PackageNotFoundError, version
        from pathlib import Path

        there = {}
        for package in packages:
            try:
                there[package] = version(package)
            except PackageNotFoundError:
                there[package] = "missing"
        path = Path(file)
        return there, path.read_text() if path.is_file() else ""

    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    if not any(node["Resources"].get("CPU", 0) >= 1 for node in nodes):
        raise EngineError("the Ray cluster has no CPU", code="FK-ENGINE-CPU")
    here = {package: version(package) for package in _PACKAGES}
    task = ray.remote(num_cpus=0)(look)
    with scratch_folder(shared_dir or Path(tempfile.gettempdir())) as folder:
        token, file = secrets.token_hex(16), folder / "token"
        write_atomically(file, token.encode(), private=True)
        asked = {
            node["NodeID"]: task.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(_PACKAGES, str(file))
            for node in nodes
        }
        for node in nodes:
            machine = node["NodeManagerAddress"]
            try:
                there, seen = ray.get(asked[node["NodeID"]], timeout=_PROBE)
            except ray.exceptions.RayError as error:
                raise EngineError(
                    f"node {machine} of the Ray cluster does not work: {_line(error)}",
                    code="FK-ENGINE-NODE",
                ) from None
            for package, own in here.items():
                if there[package] != own:
                    raise EngineError(
                        f"node {machine} of the Ray cluster has {package} {there[package]}, "
                        f"this machine {own}",
                        remedy=f"install {package} {own} there",
                        code="FK-ENGINE-DIFFERS",
                    )
            if shared_dir is not None and seen != token:
                raise EngineError(
                    f"node {machine} of the Ray cluster does not see the folder {shared_dir}",
                    code="FK-ENGINE-FOLDER",
                )


def _line(error: Exception) -> str:
    """Return the last line of text of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Version mismatch"):
        return " ".join(lines)
    return lines[-1].rstrip(".") if lines else type(error).__name__


def address_of(ray_address: str | None) -> str | None:
    """Return the address of a cluster, also from ``RAY_ADDRESS``; None to start Ray."""
    chosen = ray_address or os.environ.get("RAY_ADDRESS")
    return None if chosen in (None, "", "local") else chosen
