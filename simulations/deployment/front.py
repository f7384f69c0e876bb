"""A front before a SuperLink: SuperNodes reach the Fleet API through it, and nothing else.

What a SuperNode signs passes untouched. Calls for messages that find none are held
(:mod:`.held_pulls`), so that a message is seen within a fraction of a second instead of three.
"""

from __future__ import annotations

import asyncio
import logging
import re
import resource
import socket
import ssl
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

import httpx
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fedkern_flwr.errors import OptionError
from fedkern_flwr.flower_compat import (
    FLEET_PATH,
    MESSAGE_CALLS,
    NODE_KEY_HEADER,
    NODE_TIMEOUT,
    OBJECT_CALL,
    OBJECT_PENDING,
    PULL_CALL,
    PULL_FILLER,
    SIGNATURE_SECONDS,
    TIMESTAMP_HEADER,
)
from fedkern_flwr.plain_text import plain_line

from .held_pulls import HeldPulls, Pull, has_message

logger = logging.getLogger("fedkern_flwr")

_HEALTH = "/health"
_CALL = re.compile(re.escape(FLEET_PATH) + "([a-z-]+)")
_BODY = "http.response.body"
_QUIET = NODE_TIMEOUT / 2  # seconds; a SuperNode gives up when it hears nothing for NODE_TIMEOUT
_LONGEST_PULL = 65_536  # bytes; a pull is a few numbers
_PART = 0.1  # seconds from one asking for a part of a message, which is on its way, to the next
_TIMEOUT = httpx.Timeout(NODE_TIMEOUT, connect=5.0)
#: What the SuperLink answers only after it has found a node's signature to be right.
_ACCEPTED = (httpx.codes.OK, httpx.codes.FORBIDDEN)
#: Flower's servers close a connection after five idle seconds; it must not be used then.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=3.0)
_NODE_IDLE = 75  # seconds for which a node's idle connection is kept
_GRACE = 5.0  # seconds that calls have to end on SIGTERM
_BACKLOG = 2048
#: Headers of one leg (RFC 9110, 7.6.1), and what a node could say of who is calling.
_OF_ONE_LEG = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"}
_OF_ONE_LEG |= {"trailer", "transfer-encoding", "upgrade", "host", "expect"}
_OF_ONE_LEG |= {"forwarded", "x-forwarded-for", "x-forwarded-proto"}
_DECODED = {"content-encoding", "content-length"}


class Front:
    """ASGI app that passes calls of the Fleet API on to a SuperLink.

    Parameters
    ----------
    client : httpx.AsyncClient
        Its base URL is the SuperLink's.
    hold : float (default: 300.0)
        Seconds for which a pull is held at most; its signature does not hold longer.
    """

    def __init__(self, client: httpx.AsyncClient, *, hold: float = SIGNATURE_SECONDS) -> None:
        self._client, self._hold = client, hold
        self.held = HeldPulls(self._ask)
        self._down = False
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
            await response(scope, receive, send)
        except ClientDisconnect:
            pass
        except httpx.TransportError as error:  # midway: what is sent cannot be taken back
            self._note(error)

    async def close(self) -> None:
        """Let held pulls go and leave."""
        await self.held.close()

    async def _answer(self, request: Request) -> ASGIApp:
        path = request.scope["path"]
        call = _CALL.fullmatch(path)
        try:
            if path == _HEALTH and request.method == "GET":
                return await self._forward(request, None)
            if call is None or request.method != "POST":
                return Response("only SuperNodes are let through here\n", 403)
            if call[1] == PULL_CALL:
                return await self._pull(request)
            began, node = monotonic(), request.headers.get(NODE_KEY_HEADER, "")
            if call[1] == OBJECT_CALL:
                response = await self._pull_part(request, node)
            else:
                response = await self._forward(request, request.stream())
            if call[1] in MESSAGE_CALLS and response.status_code in _ACCEPTED:
                self.held.took_part(node, began)
            return response
        except _TooLongError:
            return Response("that is no pull\n", 413)
        except httpx.TransportError:
            return Response("the SuperLink does not answer\n", 502)

    async def _forward(
        self, request: Request, body: bytes | AsyncIterator[bytes] | None
    ) -> Response:
        """Pass a call on, and its reply back, as they come."""
        path = request.scope["path"]
        call = httpx.Request(
            request.method,
            self._client.base_url.join(path),
            headers=[] if body is None else _headers(request),
            content=body,
        )
        reply = await self._send(call, stream=True)
        headers = _of_both_legs(reply.headers)
        if headers.get("content-length") == str(len(OBJECT_PENDING)):
            return Response(await reply.aread(), reply.status_code, headers)
        return StreamingResponse(_parts(reply), reply.status_code, headers=headers)

    async def _pull_part(self, request: Request, node: str) -> Response:
        """Answer a pull of a part of a message once it is there, or after a while."""
        body = await _read_short(request)
        until = monotonic() + min(_QUIET, _signed_for(request))
        reply = await self._forward(request, body)
        if _is_pending(reply):
            async with self._turns[node]:  # parts come together: one is asked for at a time
                while _is_pending(reply) and monotonic() < until:
                    await asyncio.sleep(_PART)
                    reply = await self._forward(request, body)
        return reply

    async def _pull(self, request: Request) -> ASGIApp:
        """Answer a pull once there is a message, or after a while without."""
        body = await _read_short(request)
        pull = Pull(request.headers.get(NODE_KEY_HEADER, ""), _headers(request), body)
        reply = await self._ask(pull)  # the SuperLink has the word on who is calling
        headers = _of_both_legs(reply.headers, _DECODED)
        if has_message(reply):
            self.held.found(pull.node, reply)
        elif reply.status_code == httpx.codes.OK:
            seconds = min(self._hold, _signed_for(request))
            return partial(self._hold_pull, pull, seconds, Response(headers=headers).raw_headers)
        return Response(reply.content, reply.status_code, headers)

    async def _hold_pull(
        self,
        pull: Pull,
        seconds: float,
        headers: list[tuple[bytes, bytes]],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Send the reply to a pull when there is a message; a filler now and then until then."""
        own = [(name, value) for name, value in headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": own})
        gone = asyncio.ensure_future(receive())
        waiting = asyncio.create_task(self.held.wait(pull, seconds, gone))
        while not (await asyncio.wait({waiting}, timeout=_QUIET))[0]:
            await send({"type": _BODY, "body": PULL_FILLER, "more_body": True})
        found = waiting.result()
        await send({"type": _BODY, "body": b"" if found is None else found.content})
        gone.cancel()

    async def _ask(self, pull: Pull) -> httpx.Response:
        url = self._client.base_url.join(FLEET_PATH + PULL_CALL)
        return await self._send(
            httpx.Request("POST", url, headers=pull.headers, content=pull.body), stream=False
        )

    async def _send(self, call: httpx.Request, *, stream: bool) -> httpx.Response:
        try:
            reply = await self._client.send(call, stream=stream)
        except httpx.TransportError as error:
            self._note(error)
            raise
        self._note(None)
        return reply

    def _note(self, error: httpx.TransportError | None) -> None:
        """Say once that the SuperLink does not answer, and once that it does again."""
        if (error is not None) == self._down:
            return
        self._down = error is not None
        where = self._client.base_url.netloc.decode()
        if error is not None:
            reason = str(error) or type(error).__name__
            logger.warning("the SuperLink %s does not answer: %s", where, reason)
        else:
            logger.warning("the SuperLink %s answers again", where)


class _TooLongError(Exception):
    """A call says more than such a call can say."""


async def _read_short(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST_PULL:
            raise _TooLongError
    return body


def _is_pending(reply: Response) -> bool:
    """Tell whether a part of a message is on its way to the SuperLink."""
    return getattr(reply, "body", b"") == OBJECT_PENDING


def _signed_for(request: Request) -> float:
    """Return for how many seconds the signature of a call holds."""
    try:
        signed = datetime.fromisoformat(request.headers[TIMESTAMP_HEADER])
        return SIGNATURE_SECONDS - (datetime.now(UTC) - signed).total_seconds()
    except (KeyError, ValueError, TypeError):
        return 0.0


def _headers(request: Request) -> list[tuple[bytes, bytes]]:
    """Return the headers of a call that are for the SuperLink, and where it comes from."""
    dropped = _dropped(request.headers.getlist("connection"))
    kept = [(k, v) for k, v in request.headers.raw if k.decode("latin-1") not in dropped]
    if request.client is not None:
        kept.append((b"x-forwarded-for", request.client.host.encode()))
    return kept


def _of_both_legs(headers: httpx.Headers, further: Iterable[str] = ()) -> dict[str, str]:
    dropped = _dropped(headers.get_list("connection")).union(further)
    return {name: value for name, value in headers.items() if name.lower() not in dropped}


def _dropped(connection: list[str]) -> set[str]:
    named = {name.strip().lower() for value in connection for name in value.split(",")}
    return _OF_ONE_LEG | named


async def _parts(reply: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for part in reply.aiter_raw():
            yield part
    finally:
        await reply.aclose()


class _Server(uvicorn.Server):
    """A server that lets held pulls go before it waits for calls to end."""

    def __init__(self, config: uvicorn.Config, front: Front) -> None:
        super().__init__(config)
        self._front = front

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._front.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                while self.server_state.tasks:
                    await asyncio.sleep(0.05)
        self.force_exit = True  # idle connections are not waited for
        await super().shutdown(sockets)


def run_front(
    listen: str, superlink: str, *, root_certificates: Path, certificate: Path, key: Path
) -> None:
    """Serve SuperNodes until SIGTERM or Ctrl-C.

    Parameters
    ----------
    listen, superlink : str
        HOST:PORT, where SuperNodes come to and where the SuperLink is.
    root_certificates : Path
        What the SuperLink's certificate is checked against.
    certificate, key : Path
        What the front shows to SuperNodes.

    Raises
    ------
    OptionError
        A file cannot be used, or the port is taken.
    """
    host, port = _address(listen, "listen")
    _address(superlink, "superlink")
    with _readable(root_certificates):
        context = ssl.create_default_context(cafile=root_certificates)
    front = Front(
        httpx.AsyncClient(
            base_url=f"https://{superlink}",
            verify=context,
            timeout=_TIMEOUT,
            limits=_LIMITS,
            trust_env=False,
        )
    )
    config = uvicorn.Config(
        front,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        lifespan="off",
        ws="none",
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_NODE_IDLE,
    )
    with _readable(certificate, key):
        config.load()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a node has two connections at times
    try:
        listener = socket.create_server((host, port), backlog=_BACKLOG)
    except OSError as error:
        raise OptionError(
            f"nothing can listen on {listen} ({error.strerror})",
            remedy="name an address of this machine and a port that is free",
            code="FK-LISTEN-ADDRESS",
        ) from None
    logger.warning("a front on %s before the SuperLink %s", listen, superlink)
    with suppress(KeyboardInterrupt):
        _Server(config, front).run([listener])


@contextmanager
def _readable(*files: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # of which ssl.SSLError is one
        names = " and ".join(map(str, files))
        reason = error.strerror or "not in PEM format"
        raise OptionError(
            f"{names} cannot be used ({plain_line(reason)})",
            remedy="name the files of docs/deploy.md, section 3.2",
            code="FK-FRONT-FILES",
        ) from None


def _address(text: str, option: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        if parts.hostname and parts.port is not None and parts.netloc == text:
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise OptionError(
        f"{option} is {text!r}",
        remedy="write HOST:PORT, such as 127.0.0.1:8000",
        code="FK-OPTION-TYPE",
    )


if __name__ == "__main__":  # what deploy-local starts: it has checked all of it
    listen, superlink, *files = sys.argv[1:]
    names = ("root_certificates", "certificate", "key")
    run_front(listen, superlink, **dict(zip(names, map(Path, files), strict=True)))
