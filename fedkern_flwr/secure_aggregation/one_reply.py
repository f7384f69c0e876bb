"""The grid that a strategy runs against when single replies are nobody's to see."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from ..errors import OptionError

Ask = Callable[[Grid, list[Message], float], list[Message]]


class OneReply(Grid):
    """A grid of the nodes of a run that answers with the mean of their replies.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    nodes : iterable of int
        Ids of the nodes.
    ask : callable
        Asks them all: (grid, messages, timeout) -> one reply, or none.
    """

    def __init__(self, grid: Grid, nodes: Iterable[int], ask: Ask) -> None:
        self._grid, self._nodes, self._ask = grid, nodes, ask

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *args: Any, **options: Any) -> Message:
        return self._grid.create_message(*args, **options)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise _by_itself()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise _by_itself()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self._ask(self._grid, list(messages), timeout or math.inf)


def _by_itself() -> OptionError:
    return OptionError(
        "the strategy exchanges messages in a way of its own, which nothing masks",
        remedy="use one that leaves them to Strategy.start",
        code="FK-STRATEGY-UNMASKED",
    )
