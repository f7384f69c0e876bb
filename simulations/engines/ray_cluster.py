"""Connect to a running Ray cluster, and check what its machines must share."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from fedkern_flwr.checkpoint import make_private_folder, write_atomically
from fedkern_flwr.errors import EngineError, OptionError

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
        raise OptionError(
            f"a Ray address goes with engine ray, not {engine}",
            remedy="add --engine ray",
            code="FK-ENGINE-RAY",
        )
    if "://" in address:
        raise OptionError(
            f"{address} is an address of Ray Client, which Flower's engine cannot use",
            remedy="start the command on a machine of the cluster, with host:port or auto",
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
            f"cannot join the Ray cluster at {found}: {_line(error)}",
            remedy="start the command on a machine of the cluster, with its Ray and Python",
            code="FK-ENGINE-JOIN",
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
        raise EngineError(
            "the Ray cluster has no CPU", remedy="add nodes with --num-cpus", code="FK-ENGINE-CPU"
        )
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
                    remedy="see `ray status`",
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
                    remedy="use a folder on a file system that all machines mount at the same "
                    "path (--out, shared_dir)",
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
