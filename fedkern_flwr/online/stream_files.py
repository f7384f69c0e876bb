"""The files of streams: a node's own, or one into which what comes to a socket is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import OptionError
from .source import FileSource

_UNIX = "unix:"
_LOCAL = ("127.0.0.1", "localhost", "[::1]")


class Address(NamedTuple):
    """Where rows come in: a Unix socket, or a port of this machine."""

    path: str
    port: int = 0


def read_address(stream: str | Path) -> Address | None:
    """Return the socket that a stream names, None if it names a file.

    Raises
    ------
    OptionError
        Other machines could reach it, or it is none.
    """
    text = str(stream)
    if text.startswith(_UNIX):
        if len(text) == len(_UNIX):
            raise OptionError(
                "the stream names no socket", remedy='write "unix:/path"', code="FK-STREAM-SOCKET"
            )
        return Address(text.removeprefix(_UNIX))
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or "/" in text:
        return None
    if host not in _LOCAL:
        raise OptionError(
            f"the stream is to come from {host}: rows are taken from this machine only",
            remedy='write "127.0.0.1:PORT" or "unix:/path"',
            code="FK-STREAM-HOST",
        )
    if not 0 < int(port) < 1 << 16:
        raise OptionError(
            f"there is no port {port}", remedy="write one of 1 to 65535", code="FK-STREAM-SOCKET"
        )
    return Address("", int(port))


def spool_file(state_dir: Path, partition: int) -> Path:
    """Return the file into which a feeder writes what came to a node's socket."""
    return state_dir / f"stream-{partition}.rows"


def open_stream(
    stream: str | Path, state_dir: Path | None, partition: int, *, label: str | None, **how: Any
) -> FileSource:
    """Return the rows of a file, or of a socket from the file of its feeder.

    Raises
    ------
    OptionError
        There is no label, or no folder for what comes to a socket.
    """
    if label is None:
        raise OptionError(
            "the stream has no label", remedy="name the column to predict", code="FK-LABELS-MISSING"
        )
    path = Path(stream)
    if read_address(stream) is not None:
        if state_dir is None:
            raise OptionError(
                "a socket needs a folder of the node",
                remedy="name it as state_dir",
                code="FK-STREAM-FOLDER",
            )
        path = spool_file(state_dir, partition)
    return FileSource(path, label, **how)


def fed_by_socket(config: Mapping[str, Any]) -> tuple[Address, Path] | None:
    """Return socket and file of a node's feeder, None where it needs none.

    Raises
    ------
    OptionError
        The node's configuration does not serve.
    """
    address = read_address(str(config.get("stream", "")))
    if address is None:
        return None
    if not config.get("state-dir"):
        raise OptionError(
            "a socket needs a folder of the node",
            remedy="name it as state-dir",
            code="FK-STREAM-FOLDER",
        )
    return address, spool_file(Path(str(config["state-dir"])), int(config.get("partition-id", 0)))
