"""Folders of results, and the JSON of ``--json``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedkern_flwr.checkpoint import make_private_folder, write_atomically
from fedkern_flwr.errors import EngineError, OptionError


def chosen_folder(out: str | None, stem: str) -> Path:
    """Return the folder of ``--out``, by default a new one below ``runs``."""
    if out:
        return Path(out)
    name = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (name, *(f"{name}-{number}" for number in range(2, 1000)))
    return next(path for path in map(Path("runs").joinpath, names) if not path.exists())


def json_writer(target: str | None) -> Callable[[Mapping[str, Any]], None]:
    """Return a writer for ``--json``: nothing, a file, or - for stdout."""
    path = None if target in (None, "", "-") else Path(str(target))
    if path is not None:
        check_target(path, "--json", devices=True)

    def write(result: Mapping[str, Any]) -> None:
        text = f"{json.dumps(result, allow_nan=False)}\n"
        try:
            if path is not None:
                path.write_text(text)
            elif target:
                sys.stdout.write(text)
                sys.stdout.flush()
        except OSError as error:
            raise EngineError(
                f"--json {target} cannot be written ({error.strerror})",
                remedy="the result is in the folder of the run",
                code="FK-FILE-WRITE",
            ) from None

    return write


def check_target(path: Path, option: str, *, devices: bool = False) -> None:
    """Refuse a path that cannot become a file."""
    odd = path.is_dir() if devices else path.exists() and not path.is_file()
    if odd or not path.resolve().parent.is_dir():
        raise OptionError(
            f"{option} {path} cannot be written",
            remedy="name a file in a folder",
            code="FK-FILE-WRITE",
        )


def make_folder(folder: Path, option: str) -> None:
    """Make a private folder, and check that it is writable."""
    try:
        make_private_folder(folder)
        write_atomically(folder / ".probe", b"")
        (folder / ".probe").unlink()
    except OSError as error:
        raise OptionError(
            f"{folder} cannot be written ({error.strerror})", code="FK-FILE-WRITE"
        ) from None


def used(folder: Path) -> OptionError:
    """Return the error for a folder with results."""
    return OptionError(f"{folder} has results already", code="FK-FOLDER-RESULTS")


@contextmanager
def folder_of_results(folder: Path, result: str, *, force: bool) -> Iterator[None]:
    """Make the folder of ``--out``; remove it if the block fails and it is empty.

    Parameters
    ----------
    folder : Path
        Folder.
    result : str
        File that identifies a used folder.
    force : bool
        Whether results may be replaced.
    """
    new = not folder.exists()
    if (folder / result).exists() and not force:
        raise used(folder)
    make_folder(folder, "--out")
    if any(folder.iterdir()) and not (folder / result).exists():
        raise OptionError(f"{folder} is not empty and has no {result}", code="FK-FOLDER-USED")
    try:
        yield
    except BaseException:
        if new:
            with suppress(OSError):  # it holds something, or is gone
                folder.rmdir()
        raise
