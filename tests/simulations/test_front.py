"""The front: what it lets through, how long it holds a pull, and that no message is lost."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

import httpx
import pytest
import uvicorn

from fedkern_flwr import flower_compat as compat
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.deployment import held_pulls
from fedkern_flwr.simulations.deployment.certificates import make_certificates
from fedkern_flwr.simulations.deployment.front import Front

PULL, CONFIRM = "/v1/fleet/pull-messages", "/v1/fleet/confirm-message-received"
LONG, SOON = 3600.0, 0.3  # seconds of holding: until something happens, or shortly
PATIENCE = 60.0  # seconds that a test waits for what must come at once


def story(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test that is a coroutine, which must end."""

    @wraps(test)
    def told(*args: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **named), PATIENCE))  # type: ignore[arg-type]

    return told


def signed(node: str, age: float = 0.0) -> dict[str, str]:
    """Return the headers by which a node says who it is."""
    at = datetime.now(UTC) - timedelta(seconds=age)
    return {"flwr-public-key": node, "flwr-timestamp": at.isoformat(), "flwr-signature": "s"}


@dataclass
class SuperLink:
    """A SuperLink that gives each message out once."""

    messages: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    calls: list[httpx.Request] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    status: int = 200
    down: bool = False
    gate: asyncio.Event | None = None
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        if self.down:
            raise httpx.ConnectError("refused", request=request)
        self.calls.append(request)
        reply = b"done"
        if request.url.path == PULL:
            node = request.headers["flwr-public-key"]
            async with self.changed:
                self.asked[node] += 1
                self.changed.notify_all()
            if self.gate is not None:
                await self.gate.wait()
            reply = self.messages[node].pop(0) if self.messages[node] else b""
        headers = {"x-flower": "1", "content-length": str(len(reply))}
        return httpx.Response(self.status, headers=headers, stream=httpx.ByteStream(reply))

    async def until_asked(self, node: str, more: int) -> None:
        """Wait until a node's messages were asked for so many times more."""
        goal = self.asked[node] + more
        async with self.changed:
            await self.changed.wait_for(lambda: self.asked[node] >= goal)


@dataclass
class Call:
    """A node's call, which the node may hang up."""

    front: Front
    path: str
    headers: dict[str, str]
    body: bytes = b""
    method: str = "POST"
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    status: int = 0
    reply: bytes = b""
    reply_headers: dict[str, str] = field(default_factory=dict)

    async def answer(self) -> tuple[int, bytes]:
        """Make the call; return status and body."""
        parts = [self.body[:10], self.body[10:]]

        async def receive() -> dict[str, Any]:
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
            await self.hung_up.wait()
            return {"type": "http.disconnect"}

        async def send(event: dict[str, Any]) -> None:
            if event["type"] == "http.response.start":
                self.status = event["status"]
                self.reply_headers = {k.decode(): v.decode() for k, v in event["headers"]}
            else:
                self.reply += event.get("body", b"")

        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "method": self.method,
            "path": self.path,
            "query_string": b"",
            "headers": [(k.encode(), v.encode()) for k, v in self.headers.items()],
            "client": ("192.0.2.7", 5),
        }
        await self.front(scope, receive, send)  # type: ignore[arg-type]
        return self.status, self.reply


@asynccontextmanager
async def front_of(superlink: SuperLink, hold: float = LONG) -> AsyncIterator[Front]:
    """Return a front before a SuperLink of a test."""
    transport = httpx.MockTransport(superlink)
    async with httpx.AsyncClient(base_url="https://superlink", transport=transport) as client:
        front = Front(client, hold=hold)
        yield front
        await front.close()


def pull(front: Front, node: str, age: float = 0.0) -> Call:
    return Call(front, PULL, signed(node, age), node.encode())


def held_pull(front: Front, node: str) -> asyncio.Task[tuple[int, bytes]]:
    return asyncio.create_task(pull(front, node).answer())


# -- what passes


@story
async def test_a_call_passes_as_it_is_but_for_headers_of_one_leg_and_claims_of_origin() -> None:
    superlink, body = SuperLink(status=418), b"abcdefghijklmnopqrstuvwxyz"
    dropped = {"connection": "x-one, keep-alive", "x-one": "1", "te": "trailers"}
    forged = {"x-forwarded-for": "10.0.0.1", "forwarded": "for=10.0.0.1", "host": "front"}
    async with front_of(superlink) as front:
        kept = {**signed("a"), "content-length": "26", "x-two": "2"}
        call = Call(front, "/v1/fleet/push-object", {**kept, **dropped, **forged}, body)
        assert await call.answer() == (418, b"done")
        assert call.reply_headers == {"x-flower": "1", "content-length": "4"}
    (sent,) = superlink.calls
    assert (sent.method, str(sent.url)) == ("POST", "https://superlink/v1/fleet/push-object")
    assert sent.content == body
    assert kept.items() <= dict(sent.headers).items()
    assert not {"connection", "x-one", "te", "forwarded"} & set(sent.headers)
    assert sent.headers.get_list("x-forwarded-for") == ["192.0.2.7"]
    assert sent.headers["host"] == "superlink"


#: Method and path of what is not passed on, with the status; a pull is longer than it can be.
OTHERS = [
    *(("POST", path, 403) for path in (
        "/v1/control/list-runs", "/v1/fleet/../control/list-runs",
        "/v1/fleet/..%2fcontrol/list-runs", "/v1/fleet/pull-messages/../../control/list-runs",
        "/v1/fleet/pull-messages\n", "//v1/fleet/pull-messages", "/v1/fleet/", "/health",
    )),
    ("GET", "/docs", 403), ("GET", PULL, 403), ("PUT", "/v1/fleet/push-object", 403),
    ("POST", PULL, 413),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "status"), OTHERS)
@story
async def test_nothing_else_passes(method: str, path: str, status: int) -> None:
    superlink = SuperLink()
    async with front_of(superlink) as front:
        call = Call(front, path, signed("a"), b"x" * 100_000, method)
        assert (await call.answer())[0] == status
    assert not superlink.calls


# -- holding


@story
async def test_a_pull_is_held_until_there_is_a_message_or_its_time_is_over() -> None:
    superlink = SuperLink()
    async with front_of(superlink) as front:
        held = held_pull(front, "a")
        await superlink.until_asked("a", 3)
        assert not held.done()
        superlink.messages["a"].append(b"message")
        assert await held == (200, b"message")
    async with front_of(superlink, SOON) as front:
        call = pull(front, "a")
        assert await call.answer() == (200, b"")
        assert call.reply_headers == {"x-flower": "1"}


@story
async def test_askings_are_bounded_whatever_the_number_of_nodes() -> None:
    superlink = SuperLink()
    async with front_of(superlink) as front:
        held = [held_pull(front, str(k)) for k in range(100)]
        while len(front.held) < len(held):
            await asyncio.sleep(0.01)
        before, began = superlink.asked.total(), time.monotonic()
        await asyncio.sleep(1.0)
        assert superlink.asked.total() - before <= 12.5 * (time.monotonic() - began) + 2
        await front.close()
        assert set(await asyncio.gather(*held)) == {(200, b"")}


@story
async def test_a_pull_is_not_held_longer_than_its_signature_holds() -> None:
    superlink = SuperLink()
    async with front_of(superlink) as front:
        for stamp in (None, "yesterday", "2026-01-01T00:00:00", signed("a", 301)["flwr-timestamp"]):
            headers = signed("a") | {"flwr-timestamp": stamp or ""}
            assert await Call(front, PULL, headers).answer() == (200, b"")
        assert superlink.asked["a"] == 4
        assert await pull(front, "a", compat.SIGNATURE_SECONDS - 0.5).answer() == (200, b"")
        assert superlink.asked["a"] > 5


# -- nodes and SuperLinks that go


@story
async def test_a_message_found_for_a_node_that_has_gone_is_its_next_one() -> None:
    superlink = SuperLink()
    async with front_of(superlink) as front:
        first = pull(front, "a")
        held = asyncio.create_task(first.answer())
        await superlink.until_asked("a", 2)
        superlink.gate = asyncio.Event()
        await superlink.until_asked("a", 1)  # this asking finds the message
        first.hung_up.set()
        await held
        superlink.messages["a"].append(b"message")
        superlink.gate.set()
        while superlink.messages["a"]:
            await asyncio.sleep(0.01)
        assert await pull(front, "a").answer() == (200, b"message")


@pytest.mark.parametrize("status", [400, 401, 422, 500])
@story
async def test_who_is_not_the_node_neither_gets_its_message_nor_ends_its_repetition(
    status: int,
) -> None:
    superlink = SuperLink()
    superlink.messages["a"].append(b"message")
    async with front_of(superlink, SOON) as front:
        assert await pull(front, "a").answer() == (200, b"message")
        superlink.status = status
        assert await pull(front, "a").answer() == (status, b"")
        await Call(front, CONFIRM, signed("a")).answer()
        superlink.status = 200
        await Call(front, "/v1/fleet/send-node-heartbeat", signed("a")).answer()
        assert await pull(front, "b").answer() == (200, b"")
        assert await pull(front, "a").answer() == (200, b"message")
        await Call(front, CONFIRM, signed("a")).answer()  # the node has it
        assert await pull(front, "a").answer() == (200, b"")


@story
async def test_a_message_is_not_repeated_when_the_superlink_has_given_it_up(monkeypatch) -> None:
    superlink = SuperLink()
    superlink.messages["a"].append(b"message")
    async with front_of(superlink, SOON) as front:
        for late, reply in ((0.0, b"message"), (59.0, b"message"), (61.0, b"")):
            monkeypatch.setattr(held_pulls, "monotonic", lambda t=late: time.monotonic() + t)
            assert await pull(front, "a").answer() == (200, reply)


# -- the command, and Flower


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"superlink": "localhost"}, "FK-OPTION-TYPE"),
        ({"listen": "localhost:99999"}, "FK-OPTION-TYPE"),
        ({"root-certificates": "none.crt"}, "FK-FRONT-FILES"),
        ({"root-certificates": "server.key"}, "FK-FRONT-FILES"),
        ({"key": "ca.crt"}, "FK-FRONT-FILES"),
        ({"listen": "192.0.2.1:8000"}, "FK-LISTEN-ADDRESS"),
    ],
)
def test_bad_options_are_named_in_a_line(changed, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_certificates(tmp_path)
    monkeypatch.setattr(uvicorn.Config, "configure_logging", lambda self: None)  # of this process
    good = {"superlink": "localhost:1", "root-certificates": "ca.crt"}
    good |= {"certificate": "server.pem", "key": "server.key"}
    options = [part for k, v in {**good, **changed}.items() for part in (f"--{k}", v)]
    assert run(["front", "start", *options]) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"[{code}]\n")
    assert next(iter(changed.values())) in error
    assert error.count("\n") == 1


def test_what_the_front_knows_of_the_fleet_api_is_what_flower_does() -> None:
    """Where this fails, SuperNodes call otherwise: compare flower_compat with the names below."""
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
    from flwr.proto.fleet_pb2 import PullMessagesResponse
    from flwr.proto.message_pb2 import PullObjectResponse
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
    from flwr.supercore.protobuf.client import ProtobufClient
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    calls = {
        path.removeprefix(compat.FLEET_PATH)
        for method, path in PROTOBUF_REQUEST_TYPES
        if method == "POST" and path.startswith(compat.FLEET_PATH)
    }
    about_nodes = {"register-node", "activate-node", "deactivate-node", "unregister-node"}
    assert calls == compat.MESSAGE_CALLS | about_nodes | {compat.PULL_CALL, "send-node-heartbeat"}
    assert compat.NODE_KEY_HEADER == FLEET_HTTP_PUBLIC_KEY_HEADER
    assert compat.TIMESTAMP_HEADER == TIMESTAMP_HEADER
    assert compat.SIGNATURE_SECONDS < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
    assert inspect.signature(ProtobufClient).parameters["timeout"].default == compat.NODE_TIMEOUT
    assert compat.OBJECT_CALL in compat.MESSAGE_CALLS
    pending = PullObjectResponse(object_found=True, object_available=False)
    assert pending.SerializeToString() == compat.OBJECT_PENDING
    assert not PullMessagesResponse.FromString(compat.PULL_FILLER).ListFields()
