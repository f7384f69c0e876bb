"""Write the rows from a node's socket into the file from which the node reads them.

A process per message cannot keep a socket. So one process takes the lines, and a run reads a
growing file.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path

from fedkern_flwr.errors import OptionError
from fedkern_flwr.online.source import Address

_LONGEST = 1 << 20  # bytes of a line
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


class Spool:
    """The file of a feeder, private to this user, without an unfinished last line.

    Raises
    ------
    OptionError
        Another feeder has it.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _NO_LINKS, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            problem = f"another process writes into {path.name}"
            raise OptionError(problem, code="FK-STREAM-TAKEN") from None
        text = path.read_bytes()
        os.ftruncate(self._file, text.rfind(b"\n") + 1)
        self._head = text[: text.find(b"\n") + 1]

    def add(self, line: bytes) -> None:
        """Add a line; the header, which every sender may repeat, once."""
        if not line.strip() or line == self._head:
            return
        self._head = self._head or line
        left = memoryview(line)
        while left:
            left = left[os.write(self._file, left) :]


async def serve(address: Address, path: Path) -> None:
    """Take lines from all connections until this process is ended.

    Raises
    ------
    OptionError
        The socket is in use.
    """
    spool = Spool(path)

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ValueError):  # a line that is too long ends the connection
            while (line := await reader.readline()).endswith(b"\n"):
                spool.add(line.rstrip(b"\r\n") + b"\n")
        writer.close()

    try:
        if address.path:
            _clear(address.path)
            before = os.umask(0o177)
            try:
                server = await asyncio.start_unix_server(take, address.path, limit=_LONGEST)
            finally:
                os.umask(before)
        else:
            server = await asyncio.start_server(take, "127.0.0.1", address.port, limit=_LONGEST)
    except OSError as error:
        where = address.path or f"127.0.0.1:{address.port}"
        raise OptionError(
            f"{where} cannot be listened to: {error.strerror}", code="FK-LISTEN-ADDRESS"
        ) from None
    async with server:
        await server.serve_forever()


def feed(address: Address, path: Path) -> None:
    """Run :func:`serve`."""
    asyncio.run(serve(address, path))


def _clear(path: str) -> None:
    """Remove the socket of a feeder that has ended."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError:
            return
        else:
            raise OSError(0, "somebody listens there")
