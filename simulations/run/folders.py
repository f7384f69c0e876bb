"""Folders that commands leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import OptionError
from fedkern_flwr.private_files import make_private_folder


def make_folder(folder: Path, option: str) -> None:
    """Make a folder for this user's eyes and see that files can be written there.

    Raises
    ------
    OptionError
        They cannot; ``option`` is what names another folder.
    """
    try:
        make_private_folder(folder)
        write_atomically(folder / ".probe", b"")
        (folder / ".probe").unlink()
    except OSError as error:
        raise OptionError(
            f"{folder} cannot be written ({error.strerror})", remedy=f"choose another {option}"
        ) from None


@contextmanager
def folder_of_results(folder: Path, result: str) -> Iterator[None]:
    """Make the folder that ``--out`` names; take it away if the block fails and leaves it empty.

    Parameters
    ----------
    folder : Path
        The folder.
    result : str
        The file by which a folder that was used before is known.

    Raises
    ------
    OptionError
        It cannot be written, or holds something else.
    """
    new = not folder.exists()
    make_folder(folder, "--out")
    if any(folder.iterdir()) and not (folder / result).exists():
        raise OptionError(
            f"{folder} is not empty and has no {result}", remedy="choose another --out"
        )
    try:
        yield
    except BaseException:
        if new:
            with suppress(OSError):  # it holds something, or is gone
                folder.rmdir()
        raise
