"""The loop of a SuperNode as a warm node mends it, with the state that Flower's keeps."""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from scripted_grid import Clock

from fedkern_flwr import flower_compat
from fedkern_flwr.failure import describe_unanswered, read_error
from fedkern_flwr.flower_compat import mend_supernode, set_task_identity

pytestmark = pytest.mark.app  # Flower's servers are loaded: 70 MB, which no other test needs
CELL = "4711.25"  # of a table
FIRST, SECOND = 7, 8  # runs


class Node:
    """A SuperNode's state, and the SuperLink with which it speaks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = SimpleNamespace(**vars(import_module("flwr.supernode.start_client_internal")))
        self.objects = import_module("flwr.supercore.inflatable.inflatable_object")
        self.store = import_module("flwr.supercore.object_store").ObjectStoreFactory().store()
        self.state = import_module("flwr.supernode.nodestate").InMemoryNodeState(self.store)
        self.state.set_node_id(5)
        self.sent: list[Message] = []
        self.waiting: list[Message] = []
        self.stopped: set[int] = set()
        self.slow = False  # whether parts of messages are not at the SuperLink yet
        reading, self.keeper = os.pipe()
        mend_supernode(self.loop, describe_unanswered, reading)
        for run in (FIRST, SECOND):
            self.state.store_run(flower_compat.empty_run(run))
        monkeypatch.setattr(flower_compat, "_ASK_RUN", 0.0)

    def request(self, run: int) -> Message:
        """Have a message of a run wait for the node."""
        set_task_identity(run, 1)
        arrays = ArrayRecord([np.arange(3.0)])
        message = Message(RecordDict({"a": arrays}), dst_node_id=5, message_type="train")
        flower_compat.stamp_message(message, message_id=message.object_id)
        self.waiting.append(message)
        return message

    def check(self, run: int) -> None:
        if run in self.stopped:
            raise self.loop.RunNotRunningException

    def pull(self) -> int | None:
        def receive() -> Any:
            if not self.waiting:
                return None
            return (message := self.waiting.pop(0)), self.objects.get_object_tree(message)

        self.message = self.waiting[0] if self.waiting else None
        set_task_identity(0, 5)
        run: int | None = self.loop._pull_and_store_message(
            state=self.state, object_store=self.store, node_config={}, receive=receive,
            get_run=self.check, get_fab=None, pull_object=self.part,
            confirm_message_received=lambda run, message: self.check(run), trusted_entities=None,
        )  # fmt: skip
        return run

    def part(self, run: int, number: str) -> bytes:
        assert self.state.get_tasks(statuses=["pending"]) == []  # none before all is there
        self.check(run)
        if self.slow:
            utils = import_module("flwr.supercore.inflatable.inflatable_utils")
            raise utils.ObjectUnavailableError(number)
        found: bytes = self.objects.get_all_nested_objects(self.message)[number].deflate()
        return found

    def push(self) -> None:
        def send(message: Message, tree: Any, seconds: float) -> tuple[set[str], str]:
            self.check(message.metadata.run_id)
            self.sent.append(message)
            return {o.object_id for o in self.objects.iterate_object_tree(tree)}, "s"

        self.loop._push_messages(
            state=self.state,
            object_store=self.store,
            send=send,
            push_object=lambda run, session, number, content: None,
        )

    def take(self) -> tuple[int, Message]:
        """Take the task as a client does; return its number and its message."""
        (task,) = self.state.get_tasks(statuses=["pending"])
        assert self.state.claim_task(task.task_id)
        assert self.state.activate_task(task.task_id)
        (message,) = self.state.get_messages_legacy(run_ids=[task.run_id], is_reply=False, limit=1)
        self.state.record_message_processing_start(message_id=message.metadata.message_id)
        return task.task_id, message

    def answer(self, task: int, message: Message, *, parts: bool = True, state: bool = True) -> Any:
        """Reply as a client does, or end before the parts of the reply, or its state, are there."""
        reply = Message(RecordDict({"a": ArrayRecord([np.ones(2)])}), reply_to=message)
        flower_compat.stamp_message(reply, message_id=reply.object_id)
        self.state.record_message_processing_end(message_id=message.metadata.message_id)
        session, tree = self.state.start_session(FIRST), self.objects.get_object_tree(reply)
        _, missing = self.state.store_message_and_object_tree(reply, tree, session)
        every = self.objects.get_all_nested_objects(reply)
        for number in missing if parts else ():
            assert self.state.store_object(FIRST, session, number, every[number].deflate())
        if parts and state:
            self.state.finish_task(task, "completed", "")
        return reply

    def tell(self, task: int, problem: str) -> None:
        """Say what the keeper says of a process that has ended."""
        words = f"{task} {describe_unanswered(problem, 'FK-NODE-ENDED')}\n"
        os.write(self.keeper, words.encode())

    @property
    def left(self) -> tuple[int, int]:
        return len(self.state.msg_store), len(self.store)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    yield Node(monkeypatch)
    set_task_identity(1, 1)


def failure(node: Node) -> str:
    """Return what the server reads of the one error that was sent."""
    (message,) = node.sent
    assert message.metadata.reply_to_message_id == node.message.metadata.message_id
    return str(read_error(message, "fit"))


def test_a_reply_goes_to_its_message(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.pull() is None
    for run in (FIRST, SECOND, FIRST):
        message = node.request(run)
        assert node.pull() == run
        task, taken = node.take()
        assert taken.metadata.message_id == message.metadata.message_id
        reply = node.answer(task, taken)
        node.push()
        assert node.sent.pop().metadata.message_id == reply.metadata.message_id
        assert (node.sent, node.left) == ([], (0, 0))
        told = list(dict.fromkeys(capsys.readouterr().out.splitlines()))
        assert told == [f"@comes {run}", f"@there {task}", "@done"]


@pytest.mark.parametrize("when", ["the first part", "all parts", "being answered"])
def test_a_stopped_run_leaves_nothing(node: Node, when: str, capsys: Any, monkeypatch: Any) -> None:
    """Neither its task nor its late reply; and the keeper hears which process to end."""
    node.request(FIRST)
    part, late = node.part, None
    if when == "all parts":
        monkeypatch.setattr(node, "part", lambda *of: (part(*of), node.stopped.add(FIRST))[0])
    elif when == "the first part":
        node.stopped.add(FIRST)
    assert node.pull() == FIRST
    if when == "being answered":
        late = node.take()
        node.stopped.add(FIRST)
    node.push()
    assert (node.sent, node.left) == ([], (0, 0))
    assert node.state.get_tasks(statuses=["pending", "starting", "running"]) == []
    told = capsys.readouterr().out.splitlines()
    assert (f"@stopped {late[0]}" in told if late else "@stopped" not in str(told)) is True
    assert told[-1] == "@done"
    monkeypatch.undo()

    node.request(SECOND)
    assert node.pull() == SECOND
    if late:
        node.answer(*late)
    reply = node.answer(*node.take())
    node.push()
    assert [m.metadata.message_id for m in node.sent] == [reply.metadata.message_id]


def test_a_killed_client_is_an_error_in_the_same_second(node: Node) -> None:
    node.request(FIRST)
    node.pull()
    task, _ = node.take()
    node.tell(task, "the process was ended by signal 9")
    began = time.monotonic()
    node.push()
    assert time.monotonic() < began + 1.0
    assert failure(node) == (
        "raised EngineError: the process was ended by signal 9 [FK-NODE-ENDED]"
    )
    assert node.left == (0, 0)


def test_a_client_that_ends_without_a_reply_is_an_error_without_its_words(node: Node) -> None:
    """Whether it has taken its message or not: the words of an exception may quote a cell."""
    node.request(FIRST)
    node.pull()
    task, _ = node.take()
    node.state.finish_task(task, "failed", f"<class 'ValueError'>:<'{CELL}'>")
    node.push()
    assert failure(node).endswith("[FK-NODE-ENDED]")
    assert CELL not in str(node.sent)


@pytest.mark.parametrize("parts", [False, True])
def test_half_a_reply_of_a_killed_client_is_not_sent(node: Node, parts: bool) -> None:
    """Nor a reply without the state after it: the node would not know that it has answered."""
    node.request(FIRST)
    node.pull()
    task, message = node.take()
    node.answer(task, message, parts=parts, state=False)
    node.tell(task, "killed")
    node.push()
    assert failure(node).endswith("killed [FK-NODE-ENDED]")


def test_the_end_of_an_earlier_client_is_no_end_of_the_next(node: Node) -> None:
    """It was killed when its reply had left. Flower would take the next one for dead later."""
    node.request(FIRST)
    node.pull()
    task, message = node.take()
    node.answer(task, message)
    node.push()
    node.sent.clear()
    node.request(FIRST)
    node.pull()
    node.tell(task, "killed late")
    reply = node.answer(*node.take())
    node.push()
    assert [m.metadata.message_id for m in node.sent] == [reply.metadata.message_id]


def test_a_message_without_its_parts_is_given_up(node: Node, monkeypatch: Any) -> None:
    node.request(FIRST)
    node.slow = True
    monkeypatch.setattr(flower_compat, "CONTENT_SECONDS", 0.0)
    assert node.pull() == FIRST
    node.push()
    assert failure(node).endswith("[FK-NODE-CONTENT]")
    assert node.left == (0, 0)
    assert node.state.get_tasks() == []


# -- how often it asks


def test_a_supernode_asks_soon_after_a_message_and_seldom_when_idle() -> None:
    clock, loop = (
        Clock(),
        SimpleNamespace(**vars(import_module("flwr.supernode.start_client_internal"))),
    )
    loop.time, state = clock, SimpleNamespace(delete_messages=lambda: None)
    loop._push_messages = lambda *, state, object_store: None
    mend_supernode(loop, describe_unanswered)

    def waits(times: int) -> list[float]:
        begun = [clock.now, *(loop.time.sleep(3) or clock.now for _ in range(times))]
        return [later - earlier for earlier, later in pairwise(begun)]

    assert set(waits(20)) == {0.5}
    loop._push_messages(state=state, object_store={})
    assert set(waits(20)) == {0.5}  # for ten seconds after a message
    assert 0.5 < waits(10)[-1] < 3.0
    clock.now += 60.0
    assert waits(1) == [3.0]
    assert loop.time.monotonic() == clock.now


@pytest.mark.parametrize(
    "name", ["time", "_push_messages", "_pull_and_store_message", "NodeState", "ObjectStore"]
)
def test_an_unknown_supernode_stays_as_it_is(name: str, caplog: pytest.LogCaptureFixture) -> None:
    names = {**vars(import_module("flwr.supernode.start_client_internal")), name: print}
    loop = SimpleNamespace(**names)
    mend_supernode(loop, describe_unanswered)
    assert vars(loop) == names
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert name in record.getMessage()


def test_the_loop_of_flowers_supernode_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = import_module("flwr.supernode.start_client_internal")
    assert "time.sleep(3)" in inspect.getsource(loop)
    for name in ("time", "_push_messages", "_pull_and_store_message"):
        monkeypatch.setattr(loop, name, getattr(loop, name))  # to be put back
    command = import_module("flwr.supernode.cli.flower_supernode")
    monkeypatch.setattr(command, "flower_supernode", lambda: None)
    monkeypatch.setattr(sys, "argv", [])
    flower_compat.run_supernode(["--insecure"], describe_unanswered)
    assert (loop.time is time, sys.argv) == (False, ["flower-supernode", "--insecure"])
