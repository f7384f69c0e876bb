"""Pulls of SuperNodes that found no message, and the one loop that asks for all of them.

A SuperNode asks the SuperLink for messages every three seconds. A front holds the call instead and
asks on the node's behalf, with what the node signed. Each asking costs the SuperLink about 10 ms of
CPU time, so the held calls are asked for one after the other: at 12 in a second at most, less the
longer nothing happens, but so that each has its turn when its node would have asked by itself. Once
there is a message for one there will be more, and the next ones are asked for at once.

The SuperLink gives a message out once. So the last reply to a node is kept until the node makes a
call that shows that it has it: a node that has gone and comes back asks again instead, and gets it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import httpx

_SOONEST, _LATEST = 0.08, 0.5  # seconds from one asking to the next
_SHARE = 0.005  # of the seconds since the last message or reply, in between
_BY_ITSELF = 3.0  # seconds after which a SuperNode would ask again
_WARM = 60.0  # seconds for which a node that took part is asked for before others
_AFTER_MESSAGE = 32  # askings without a pause that follow a message
_AT_ONCE = 8  # askings at a time
_SLOWED = 4  # askings at a time, without a message, of a SuperLink that takes long
_DOWN = 4.0  # seconds that a SuperLink is taken to need which does not answer
_KEPT = 60.0  # seconds for which a reply is kept; then the SuperLink calls the node unreachable
_LAST_ASKINGS = 5.0  # seconds that askings have to end when the front does


@dataclass(frozen=True)
class Pull:
    """A call for messages: the node's public key, and what the SuperLink needs to see."""

    node: str
    headers: list[tuple[bytes, bytes]]
    body: bytes


@dataclass
class _Node:
    """What is known of a node: when it last took part, and the last reply that held a message."""

    active: float = float("-inf")
    told: float = float("-inf")
    reply: httpx.Response | None = None


@dataclass(eq=False)
class _Held:
    pull: Pull
    warm: bool
    reply: asyncio.Future[httpx.Response | None] = field(default_factory=asyncio.Future)


class HeldPulls:
    """Pulls that wait for a message.

    Parameters
    ----------
    ask : callable
        Asks the SuperLink: pull -> awaitable reply; raises ``httpx.TransportError``.
    """

    def __init__(self, ask: Callable[[Pull], Awaitable[httpx.Response]]) -> None:
        self._ask = ask
        self._held: dict[str, _Held] = {}
        self._rings: dict[bool, OrderedDict[str, _Held]] = {
            True: OrderedDict(),
            False: OrderedDict(),
        }
        self._nodes: dict[str, _Node] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._wake = asyncio.Event()
        self._turn, self._hurried = False, 0  # nodes that took part lately have every second turn
        self._active, self._seconds = float("-inf"), 0.0
        self._loop: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        """Return how many pulls are held."""
        return len(self._held)

    async def wait(
        self, pull: Pull, seconds: float, gone: asyncio.Future[Any]
    ) -> httpx.Response | None:
        """Wait for a message for a node whose own call the SuperLink has just answered with none.

        Parameters
        ----------
        pull : Pull
            What the node asked with.
        seconds : float
            How long at most.
        gone : future
            Done when the node has hung up.

        Returns
        -------
        httpx.Response or None
            The reply with the message; none came in time.
        """
        node = self._nodes.setdefault(pull.node, _Node())
        if node.reply is not None and monotonic() < node.told + _KEPT:
            return node.reply
        if self._closed or seconds <= 0.0:
            return None
        if (older := self._held.get(pull.node)) is not None:
            self._release(older, None)  # a connection that the node has given up
        held = _Held(pull, warm=monotonic() < node.active + _WARM)
        self._held[pull.node] = self._rings[held.warm][pull.node] = held
        self._wake.set()
        if self._loop is None:
            self._loop = asyncio.create_task(self._ask_in_turn())
        ends: set[asyncio.Future[Any]] = {held.reply, gone}
        await asyncio.wait(ends, timeout=seconds, return_when="FIRST_COMPLETED")
        self._release(held, None)
        return held.reply.result()

    def found(self, node: str, reply: httpx.Response) -> None:
        """Take note of a message for a node: there will be more of them."""
        known = self._nodes.setdefault(node, _Node())
        self._active = known.active = known.told = monotonic()
        known.reply = reply
        self._hurried = min(self._hurried + _AFTER_MESSAGE, len(self._held))
        self._wake.set()

    def took_part(self, node: str, began: float) -> None:
        """Take note of a call that shows that the node has all that it was told before."""
        known = self._nodes.setdefault(node, _Node())
        self._active = known.active = monotonic()
        if known.told < began:
            known.reply = None

    async def close(self) -> None:
        """Let all go; a message that is being asked for reaches its node."""
        self._closed = True
        if self._loop is not None:
            self._loop.cancel()
        if self._asking:
            await asyncio.wait(self._asking, timeout=_LAST_ASKINGS)
        for held in list(self._held.values()):
            self._release(held, None)

    def _release(self, held: _Held, reply: httpx.Response | None) -> None:
        if self._held.get(held.pull.node) is held:
            del self._held[held.pull.node]
            self._rings[held.warm].pop(held.pull.node, None)
        if not held.reply.done():
            held.reply.set_result(reply)

    # -- asking

    async def _ask_in_turn(self) -> None:
        while True:
            self._wake.clear()
            held = self._next()
            if held is None:
                await self._wake.wait()
                continue
            await self._slots.acquire()
            task = asyncio.create_task(self._ask_for(held))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
            if self._hurried > 0:
                self._hurried -= 1
                continue
            share = _SHARE * (monotonic() - self._active)
            every = min(share, _LATEST, _BY_ITSELF / max(1, len(self._held)))
            await self._pause(max(_SOONEST, every, self._seconds / _SLOWED))

    async def _pause(self, seconds: float) -> None:
        """Wait, but not when a message is found meanwhile."""
        until = monotonic() + seconds
        while self._hurried <= 0 and (left := until - monotonic()) > 0.0:
            self._wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), left)

    def _next(self) -> _Held | None:
        """Take the pull whose turn it is; it is put back when it has been asked for."""
        self._turn = not self._turn
        ring = self._rings[self._turn] or self._rings[not self._turn]
        return ring.popitem(last=False)[1] if ring else None

    async def _ask_for(self, held: _Held) -> None:
        began = monotonic()
        try:
            reply = await self._ask(held.pull)
            self._seconds = monotonic() - began
        except httpx.TransportError:
            reply, self._seconds = None, _DOWN
        finally:
            self._slots.release()
        node = held.pull.node
        if reply is not None and has_message(reply):
            self.found(node, reply)
            if (newest := self._held.get(node)) is not None:
                self._release(newest, reply)
        elif reply is not None and reply.status_code != httpx.codes.OK:
            self._release(held, None)  # the node's next call hears why
        elif self._held.get(node) is held:
            self._rings[held.warm][node] = held
            self._wake.set()


def has_message(reply: httpx.Response) -> bool:
    """Tell whether a reply to a pull holds a message: protobuf writes an empty one as no bytes."""
    return reply.status_code == httpx.codes.OK and bool(reply.content)
