"""Apps of nodes: stock mods of Flower's around our clients, and what a process says of itself."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import mod as stock
from refusals import refused

from fedkern_flwr import flower_compat
from fedkern_flwr.clients import KernelPCAClient, serve
from fedkern_flwr.exchange import request_messages
from fedkern_flwr.simulations import InProcessGrid, simulate
from fedkern_flwr.strategies import KernelPCA
from fedkern_flwr.wire import DescribeRequest

PROCESS = "flwr.supernode.cli.flwr_clientapp"


ROWS = np.random.default_rng(0).random((4, 30, 3))


def client(context: Context) -> KernelPCAClient:
    return KernelPCAClient(context, ROWS[int(context.node_config["partition-id"])])


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[..., Any]:
    """Return what counts the lines of some messages of a run to a node."""
    monkeypatch.setitem(sys.modules, PROCESS, object())
    monkeypatch.setattr(time, "process_time", lambda: 2.14)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level("INFO", logger="flwr")

    def lines(messages: int = 2, **node: Any) -> list[str]:
        caplog.clear()
        config = {"partition-id": 0, "num-partitions": 1, **node}
        context, app = Context(1, 2, config, RecordDict(), {}), serve(client)
        flower_compat.set_task_identity(1, 2)
        opening = DescribeRequest(session="s", method="m", resume_round=0, secure=True)
        for _ in range(messages):
            (message,) = request_messages(opening, [2], group_id="describe")
            assert isinstance(app(message, context), Message)
        return [r.getMessage() for r in caplog.records if "cost" in r.getMessage()]

    return lines


def test_the_first_message_of_a_run_says_what_its_process_cost_where_one_was_started(
    said: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = said(3)
    assert line.startswith("this message cost 2.1 s of CPU to start a process; ")
    assert said(1) == [line]  # of the next run
    assert said(simulation=True) == []
    KernelPCA(features=3).start(InProcessGrid(serve(client), 2))
    assert "cost" not in caplog.text
    with monkeypatch.context() as patch:
        patch.setattr(flower_compat, "warm", True)
        assert said() == []
    monkeypatch.delitem(sys.modules, PROCESS)
    assert said() == []


def test_flower_starts_that_process_for_a_message() -> None:
    """A release of Flower that starts another one is to be told apart in `flower_compat`."""
    (program,) = entry_points(group="console_scripts", name="flwr-clientapp")
    assert program.load().__module__ == PROCESS
    constant = import_module("flwr.supercore.constant")
    assert constant.TASK_TYPE_TO_COMMAND[constant.TaskType.CLIENT_APP] == program.name
    assert flower_compat.warm is False


def components(*mods: Any) -> np.ndarray:
    """Return the model of a run whose nodes have these mods."""
    strategy = KernelPCA(features=10)
    simulate(strategy, serve(client, mods=mods), len(ROWS))
    return np.asarray(strategy.model_["components"])


def test_mods_that_count_see_what_is_sent(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def spy(message: Message, context: Context, call_next: Any) -> Message:
        seen.append(type(message.content.config_records["fitins.config"]).__name__)
        return call_next(message, context)

    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level("INFO", logger="flwr")
    found = components(stock.message_size_mod, stock.arrays_size_mod, spy)
    np.testing.assert_array_equal(found, components())
    sizes = [r.args[0] for r in caplog.records if "message size" in r.msg and r.args]
    assert len(sizes) == 2 * len(seen) > 0
    assert min(sizes) > 50
    assert max(sizes) > 10 * 10 * 8  # a sum of outer products of ten features
    assert sum("Total array elements" in r.msg for r in caplog.records) == len(sizes)


@pytest.mark.parametrize(
    "mod",
    [stock.LocalDpMod(1.0, 1.0, 1.0, 1e-5), stock.fixedclipping_mod, stock.adaptiveclipping_mod],
)
def test_mods_that_change_answers_are_refused(mod: Any) -> None:
    with refused("FK-MOD-CHANGES"):
        serve(client, mods=[mod])
