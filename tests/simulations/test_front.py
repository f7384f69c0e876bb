"""The front: what it lets through, how long it holds a pull, and that no message is lost."""

from __future__ import annotations

import asyncio
import inspect
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import uvicorn
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata, PullObjectResponse

from fedkern_flwr import flower_compat as compat
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.deployment import front as module
from fedkern_flwr.simulations.deployment import held_pulls
from fedkern_flwr.simulations.deployment.certificates import make_certificates
from fedkern_flwr.simulations.deployment.front import Front
from fedkern_flwr.simulations.deployment.local import LocalDeployment, free_port

PULL, CONFIRM = "/v1/fleet/pull-messages", "/v1/fleet/confirm-message-received"
PART = "/v1/fleet/pull-object"
LONG, SOON = 3600.0, 0.3  # seconds of holding: until something happens, or shortly
PATIENCE = 60.0  # seconds that a test waits for what must come at once

T = TypeVar("T")


def within(awaitable: Awaitable[T]) -> T:
    """Run a test's coroutine, which must end."""

    async def bounded() -> T:
        return await asyncio.wait_for(awaitable, PATIENCE)

    return asyncio.run(bounded())


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
    pending: int = 0  # calls for parts of messages until they have arrived
    busy: int = 0
    busiest: int = 0
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
            self.busy += 1
            self.busiest = max(self.busiest, self.busy)
            async with self.changed:
                self.asked[node] += 1
                self.changed.notify_all()
            if self.gate is not None:
                await self.gate.wait()
            reply = self.messages[node].pop(0) if self.messages[node] else b""
            self.busy -= 1
        elif request.url.path == PART and self.pending:
            self.pending -= 1
            reply = compat.OBJECT_PENDING
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


# -- what passes


def test_a_call_passes_as_it_is_and_so_does_its_reply() -> None:
    async def story() -> None:
        superlink = SuperLink(status=418)
        async with front_of(superlink) as front:
            headers = {
                **signed("a"),
                "content-type": "application/protobuf",
                "content-length": "26",
            }
            body = b"abcdefghijklmnopqrstuvwxyz"
            call = Call(front, "/v1/fleet/push-object", headers, body)
            assert await call.answer() == (418, b"done")
            assert call.reply_headers == {"x-flower": "1", "content-length": "4"}
        (sent,) = superlink.calls
        assert (sent.method, str(sent.url)) == ("POST", "https://superlink/v1/fleet/push-object")
        assert sent.content == body
        assert headers.items() <= dict(sent.headers).items()

    within(story())


@pytest.mark.parametrize("path", [PULL, "/v1/fleet/get-run"])
def test_headers_of_one_leg_and_claims_of_origin_do_not_pass(path: str) -> None:
    async def story() -> None:
        superlink = SuperLink()
        async with front_of(superlink, SOON) as front:
            own = {"connection": "x-one, keep-alive", "x-one": "1", "x-two": "2", "te": "trailers"}
            forged = {"x-forwarded-for": "10.0.0.1", "forwarded": "for=10.0.0.1", "host": "front"}
            await Call(front, path, {**signed("a"), **own, **forged}).answer()
        for sent in superlink.calls:
            assert not {"connection", "x-one", "te", "forwarded"} & set(sent.headers)
            assert (sent.headers["x-two"], sent.headers["host"]) == ("2", "superlink")
            assert sent.headers.get_list("x-forwarded-for") == ["192.0.2.7"]

    within(story())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/list-runs"),
        ("POST", "/v1/runtime/acquire-task"),
        ("POST", "/v1/fleet/../control/list-runs"),
        ("POST", "/v1/fleet/..%2fcontrol/list-runs"),
        ("POST", "/v1/fleet/pull-messages/../../control/list-runs"),
        ("POST", "/v1/fleet/pull-messages\n"),
        ("POST", "/v1/fleet//pull-messages"),
        ("POST", "//v1/fleet/pull-messages"),
        ("POST", "/v1/fleet/"),
        ("POST", "/v1/fleet"),
        ("POST", "/v1/responses"),
        ("POST", "/health"),
        ("GET", "/docs"),
        ("GET", "/"),
        ("GET", PULL),
        ("PUT", "/v1/fleet/push-object"),
    ],
)
def test_nothing_else_passes(method: str, path: str) -> None:
    async def story() -> None:
        superlink = SuperLink()
        async with front_of(superlink) as front:
            call = Call(front, path, signed("a"), b"x", method)
            assert (await call.answer())[0] == 403
        assert not superlink.calls

    within(story())


def test_health_is_that_of_the_superlink() -> None:
    async def story() -> None:
        superlink = SuperLink()
        async with front_of(superlink) as front:
            assert (await Call(front, "/health", {}, method="GET").answer())[0] == 200
            superlink.down = True
            assert (await Call(front, "/health", {}, method="GET").answer())[0] == 502

    within(story())


def test_a_pull_that_is_too_long_is_refused() -> None:
    async def story() -> None:
        superlink = SuperLink()
        async with front_of(superlink) as front:
            assert (await Call(front, PULL, signed("a"), b"x" * 100_000).answer())[0] == 413
        assert not superlink.calls

    within(story())


# -- holding


def test_a_pull_is_held_until_there_is_a_message() -> None:
    async def story() -> None:
        superlink = SuperLink()
        async with front_of(superlink) as front:
            held = asyncio.create_task(pull(front, "a").answer())
            await superlink.until_asked("a", 3)
            assert not held.done()
            superlink.messages["a"].append(b"message")
            assert await held == (200, b"message")
            assert len(front.held) == 0
        assert {call.content for call in superlink.calls} == {b"a"}

    within(story())


def test_a_part_of_a_message_is_asked_for_until_it_has_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a SuperNode waits a second each time that it is quicker than the server."""
    monkeypatch.setattr(module, "_PART", 0.001)

    async def story() -> None:
        superlink = SuperLink(pending=5)
        async with front_of(superlink) as front:
            calls = [Call(front, PART, signed("a"), b"part") for _ in range(2)]
            assert await asyncio.gather(*(call.answer() for call in calls)) == [(200, b"done")] * 2
            assert {call.content for call in superlink.calls} == {b"part"}
            monkeypatch.setattr(module, "_QUIET", 0.01)
            superlink.pending = sys.maxsize
            early = Call(front, PART, signed("a"), b"part")
            assert await early.answer() == (200, compat.OBJECT_PENDING)
            late = Call(front, PART, signed("a", compat.SIGNATURE_SECONDS), b"part")
            before = len(superlink.calls)
            assert await late.answer() == (200, compat.OBJECT_PENDING)
            assert len(superlink.calls) == before + 1

    within(story())


def test_messages_for_many_are_seen_by_all_and_the_superlink_is_not_overrun() -> None:
    async def story() -> None:
        superlink = SuperLink()
        names = [f"node {k}" for k in range(60)]
        async with front_of(superlink) as front:
            held = [asyncio.create_task(pull(front, name).answer()) for name in names]
            while len(front.held) < len(names):
                await asyncio.sleep(0.01)
            superlink.busiest = 0
            for name in names:
                superlink.messages[name].append(name.encode())
            assert await asyncio.gather(*held) == [(200, name.encode()) for name in names]
            assert superlink.busiest <= held_pulls._AT_ONCE

    within(story())


def test_askings_are_bounded_whatever_the_number_of_nodes() -> None:
    async def story() -> None:
        superlink = SuperLink()
        async with front_of(superlink) as front:
            held = [asyncio.create_task(pull(front, str(k)).answer()) for k in range(200)]
            while len(front.held) < len(held):
                await asyncio.sleep(0.01)
            before, began = superlink.asked.total(), time.monotonic()
            await asyncio.sleep(2.0)
            most = (time.monotonic() - began) / held_pulls._SOONEST
            assert superlink.asked.total() - before <= most + 2
            await front.close()
            assert set(await asyncio.gather(*held)) == {(200, b"")}

    within(story())


def test_all_held_nodes_have_their_turn_and_those_of_a_run_more_often() -> None:
    async def story() -> None:
        superlink = SuperLink()
        async with front_of(superlink) as front:
            await Call(front, "/v1/fleet/push-messages", signed("busy")).answer()
            held = [asyncio.create_task(pull(front, n).answer()) for n in ("busy", "b", "c", "d")]
            await asyncio.gather(*(superlink.until_asked(name, 3) for name in "bcd"))
            assert superlink.asked["busy"] > 1.5 * max(superlink.asked[name] for name in "bcd")
            await front.close()
            await asyncio.gather(*held)

    within(story())


def test_a_pull_without_a_message_ends_with_what_the_superlink_said() -> None:
    async def story() -> None:
        superlink = SuperLink()
        async with front_of(superlink, SOON) as front:
            call = pull(front, "a")
            assert await call.answer() == (200, b"")
            assert call.reply_headers == {"x-flower": "1"}

    within(story())


@pytest.mark.parametrize("stamp", [None, "yesterday", "2026-01-01T00:00:00", -301.0])
def test_a_pull_whose_signature_does_not_hold_is_not_held(stamp: str | float | None) -> None:
    async def story() -> None:
        superlink = SuperLink()
        async with front_of(superlink) as front:
            headers = signed("a", -stamp if isinstance(stamp, float) else 0.0)
            if stamp is None:
                del headers["flwr-timestamp"]
            elif isinstance(stamp, str):
                headers["flwr-timestamp"] = stamp
            assert await Call(front, PULL, headers).answer() == (200, b"")
        assert superlink.asked["a"] == 1

    within(story())


def test_a_pull_is_not_held_longer_than_its_signature_holds() -> None:
    async def story() -> None:
        superlink = SuperLink()
        async with front_of(superlink) as front:
            assert await pull(front, "a", compat.SIGNATURE_SECONDS - 1.0).answer() == (200, b"")
        assert superlink.asked["a"] > 1

    within(story())


def test_a_node_that_waits_long_hears_that_its_reply_will_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_QUIET", 0.05)
    message = PullMessagesResponse(messages_list=[Message(metadata=Metadata(run_id=7))])

    async def story() -> None:
        superlink = SuperLink()
        async with front_of(superlink) as front:
            call = pull(front, "a")
            held = asyncio.create_task(call.answer())
            while len(call.reply) < 3 * len(compat.PULL_FILLER):
                await asyncio.sleep(0.01)
            assert not PullMessagesResponse.FromString(call.reply).messages_list
            superlink.messages["a"].append(message.SerializeToString())
            _, reply = await held
            assert PullMessagesResponse.FromString(reply).messages_list == message.messages_list

    within(story())


# -- nodes that go


def test_a_node_that_hangs_up_is_asked_for_no_more() -> None:
    async def story() -> None:
        superlink = SuperLink()
        async with front_of(superlink) as front:
            gone, stays = pull(front, "gone"), pull(front, "stays")
            held = [asyncio.create_task(call.answer()) for call in (gone, stays)]
            await superlink.until_asked("gone", 2)
            gone.hung_up.set()
            await held[0]
            asked = superlink.asked["gone"]
            await superlink.until_asked("stays", 5)
            assert superlink.asked["gone"] == asked
            await front.close()
            await held[1]

    within(story())


def test_a_message_found_for_a_node_that_has_gone_is_its_next_one() -> None:
    async def story() -> None:
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

    within(story())


def test_a_message_is_repeated_until_the_node_shows_that_it_has_it() -> None:
    async def story() -> None:
        superlink = SuperLink()
        superlink.messages["a"].append(b"message")
        async with front_of(superlink, SOON) as front:
            for _ in range(2):
                assert await pull(front, "a").answer() == (200, b"message")
            await Call(front, "/v1/fleet/send-node-heartbeat", signed("a")).answer()
            assert await pull(front, "a").answer() == (200, b"message")
            assert await pull(front, "b").answer() == (200, b"")
            await Call(front, CONFIRM, signed("a")).answer()
            assert await pull(front, "a").answer() == (200, b"")

    within(story())


@pytest.mark.parametrize("status", [400, 401, 404, 415, 422, 500, 502])
def test_who_is_not_the_node_neither_gets_its_message_nor_ends_its_repetition(status: int) -> None:
    async def story() -> None:
        superlink = SuperLink()
        superlink.messages["a"].append(b"message")
        async with front_of(superlink, SOON) as front:
            assert await pull(front, "a").answer() == (200, b"message")
            superlink.status = status
            assert await pull(front, "a").answer() == (status, b"")
            await Call(front, CONFIRM, signed("a")).answer()
            assert len(front.held._nodes) == 1
            superlink.status = 200
            assert await pull(front, "a").answer() == (200, b"message")

    within(story())


def test_a_reply_is_kept_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        superlink = SuperLink()
        superlink.messages["a"].append(b"message")
        async with front_of(superlink, SOON) as front:
            assert await pull(front, "a").answer() == (200, b"message")
            monkeypatch.setattr(held_pulls, "_KEPT", 0.0)
            assert await pull(front, "a").answer() == (200, b"")

    within(story())


def test_a_newer_pull_of_a_node_takes_the_place_of_the_older() -> None:
    async def story() -> None:
        superlink = SuperLink()
        async with front_of(superlink) as front:
            older = asyncio.create_task(pull(front, "a").answer())
            await superlink.until_asked("a", 2)
            newer = asyncio.create_task(pull(front, "a").answer())
            assert await older == (200, b"")
            superlink.messages["a"].append(b"message")
            assert await newer == (200, b"message")

    within(story())


# -- a SuperLink that goes


def test_a_superlink_that_is_down_is_a_bad_gateway(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        superlink = SuperLink(down=True)
        async with front_of(superlink, SOON) as front:
            for path in (PULL, PULL, CONFIRM):
                assert (await Call(front, path, signed("a")).answer())[0] == 502
            superlink.down = False
            assert (await Call(front, CONFIRM, signed("a")).answer())[0] == 200

    within(story())
    assert caplog.messages == [
        "the SuperLink superlink does not answer: refused",
        "the SuperLink superlink answers again",
    ]


def test_a_held_pull_outlasts_a_restart_of_the_superlink() -> None:
    async def story() -> None:
        superlink = SuperLink()
        async with front_of(superlink) as front:
            held = asyncio.create_task(pull(front, "a").answer())
            await superlink.until_asked("a", 2)
            superlink.down = True
            while not front._down:
                await asyncio.sleep(0.01)
            superlink.messages["a"].append(b"message")
            superlink.down = False
            assert await held == (200, b"message")

    within(story())


def test_a_refusal_while_a_pull_is_held_is_heard_by_the_next_one() -> None:
    async def story() -> None:
        superlink = SuperLink()
        async with front_of(superlink) as front:
            held = asyncio.create_task(pull(front, "a").answer())
            await superlink.until_asked("a", 2)
            superlink.status = 401
            assert await held == (200, b"")
            assert await pull(front, "a").answer() == (401, b"")

    within(story())


def test_a_message_that_is_being_asked_for_when_the_front_ends_reaches_its_node() -> None:
    async def story() -> None:
        superlink = SuperLink()
        async with front_of(superlink) as front:
            held = asyncio.create_task(pull(front, "a").answer())
            await superlink.until_asked("a", 1)
            superlink.gate = asyncio.Event()
            await superlink.until_asked("a", 1)
            superlink.messages["a"].append(b"message")
            ending = asyncio.create_task(front.close())
            await asyncio.sleep(0)
            superlink.gate.set()
            await ending
            assert await held == (200, b"message")
            assert await pull(front, "b").answer() == (200, b"")  # is held no more

    within(story())


# -- the command


@contextmanager
def serving(app: Any, folder: Path) -> Iterator[int]:
    """Serve an app with TLS; return its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            app,
            ssl_certfile=folder / "server.pem",
            ssl_keyfile=folder / "server.key",
            lifespan="off",
            ws="none",
            log_level="error",
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Reply with the body, to a pull with nothing."""
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event.get("body", b""), event.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"" if scope["path"] == PULL else body})


def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_command_serves_with_tls_and_ends_when_told_with_pulls_held(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    with (
        serving(echo, tmp_path) as upstream,
        httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=context, timeout=30.0) as client,
    ):
        command = [sys.executable, "-m", "fedkern_flwr.simulations.cli.main", "front", "start"]
        command += ["--listen", f"127.0.0.1:{port}", "--superlink", f"localhost:{upstream}"]
        command += ["--root-certificates", "ca.crt"]
        command += ["--certificate", "server.pem", "--key", "server.key"]
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        try:

            def healthy() -> bool:
                try:
                    return client.get("/health").status_code == httpx.codes.OK
                except httpx.ConnectError:
                    assert process.poll() is None
                    return False

            until(healthy)
            large = bytes(range(256)) * 20_000
            sent = iter([large, large])  # of no stated length
            reply = client.post("/v1/fleet/push-object", content=sent, headers=signed("a"))
            assert reply.content == large + large
            assert client.post("/v1/control/list-runs").status_code == 403

            replies: list[httpx.Response] = []
            held = threading.Thread(
                target=lambda: replies.append(client.post(PULL, headers=signed("a")))
            )
            held.start()
            time.sleep(1.0)
            assert not replies
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)  # the pull would have been held for longer
            held.join()
            assert [(r.status_code, r.content) for r in replies] == [(200, b"")]
        finally:
            process.kill()
            _, said = process.communicate()
    assert said.splitlines() == [
        f"a front on 127.0.0.1:{port} before the SuperLink localhost:{upstream}"
    ]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"superlink": "localhost"}, "superlink is 'localhost'; write HOST:PORT"),
        ({"listen": "localhost:99999"}, "listen is 'localhost:99999'; write HOST:PORT"),
        ({"root-certificates": "none.crt"}, "none.crt cannot be used (No such file or directory)"),
        ({"root-certificates": "server.key"}, "server.key cannot be used ("),
        ({"key": "ca.crt"}, "server.pem and ca.crt cannot be used ("),
        ({"listen": "192.0.2.1:8000"}, "nothing can listen on 192.0.2.1:8000 ("),
    ],
)
def test_bad_options_are_named_in_a_line(
    changed: dict[str, str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    make_certificates(tmp_path)
    good = {"superlink": "localhost:1", "root-certificates": "ca.crt"}
    good |= {"certificate": "server.pem", "key": "server.key"}
    options = [part for k, v in {**good, **changed}.items() for part in (f"--{k}", v)]
    assert run(["front", "start", *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fedkern: {expected}")
    assert error.count("\n") == 1


@pytest.mark.deployment
def test_a_stranger_gets_nothing_through_the_front_of_a_superlink(tmp_path: Path) -> None:
    from flwr.proto.fleet_pb2 import PullMessagesRequest, RegisterNodeFleetRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    nodes: list[dict[str, str | int | float | bool]] = [{"partition-id": 0, "num-partitions": 1}]
    deployment, keys = LocalDeployment(tmp_path, nodes, front=False), tmp_path / "keys"
    try:
        deployment.start_superlink()
        deployment.register([0])
        address = f"127.0.0.1:{free_port()}"
        command: list[str | Path] = [Path(sys.executable).parent / "fedkern", "front", "start"]
        command += ["--listen", address, "--superlink", deployment.address]
        command += ["--root-certificates", keys / "ca.crt"]
        command += ["--certificate", keys / "server.pem", "--key", keys / "server.key"]
        deployment.processes.start("front", command, tmp_path / "front.log")
        deployment.reached = address
        deployment.start_node(0)
        deployment.wait_for_nodes()  # the SuperNode gets through
        log = deployment.processes.log_of("node 0").read_text()
        node = int(re.findall(r"SuperNode ID: (\d+)", log)[0])

        context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        with httpx.Client(base_url=f"https://{address}", verify=context) as client:
            for path in ("/v1/control/list-runs", "/v1/control/register-node", "/docs"):
                assert client.post(path).status_code == 403
        private, public = generate_key_pairs()
        stranger = FleetHttpClient.from_server_address(
            address, False, str(keys / "ca.crt"), [NodeAuthHttpInterceptor(private, public)]
        )
        own = RegisterNodeFleetRequest(public_key=public_key_to_bytes(public))
        with pytest.raises(httpx.HTTPStatusError, match="412"):
            stranger.RegisterNode(own)
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            stranger.PullMessages(PullMessagesRequest(node=Node(node_id=node)))
    finally:
        deployment.processes.stop()


# -- Flower


def test_what_the_front_knows_of_the_fleet_api_is_what_flower_does() -> None:
    """Where this fails, SuperNodes call otherwise: compare flower_compat with the names below."""
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
    from flwr.supercore.protobuf.client import ProtobufClient
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
    from flwr.supernode.fleet_http_client import FleetHttpClient

    calls = {
        path.removeprefix(compat.FLEET_PATH)
        for method, path in PROTOBUF_REQUEST_TYPES
        if method == "POST" and path.startswith(compat.FLEET_PATH)
    }
    about_nodes = {"register-node", "activate-node", "deactivate-node", "unregister-node"}
    others = {compat.PULL_CALL, "send-node-heartbeat"}
    assert calls == compat.MESSAGE_CALLS | about_nodes | others
    source = inspect.getsource(FleetHttpClient)
    assert all(f'path="{compat.FLEET_PATH}{call}"' in source for call in calls)
    assert compat.NODE_KEY_HEADER == FLEET_HTTP_PUBLIC_KEY_HEADER
    assert compat.TIMESTAMP_HEADER == TIMESTAMP_HEADER
    assert compat.SIGNATURE_SECONDS < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
    assert inspect.signature(ProtobufClient).parameters["timeout"].default == compat.NODE_TIMEOUT
    assert compat.OBJECT_CALL in compat.MESSAGE_CALLS
    pending = PullObjectResponse(object_found=True, object_available=False)
    assert pending.SerializeToString() == compat.OBJECT_PENDING
    assert PullMessagesResponse().SerializeToString() == b""
    assert not PullMessagesResponse.FromString(compat.PULL_FILLER).ListFields()
