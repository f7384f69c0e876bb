"""The start of a run: waiting for nodes and asking each who it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from refusals import refused

from fedkern_flwr.errors import RefusedError
from fedkern_flwr.failure import Failure, mark_error
from fedkern_flwr.flower_compat import set_task_identity
from fedkern_flwr.gather import gather_nodes
from fedkern_flwr.ledger import Ledger
from fedkern_flwr.wire import DescribeReply


def answer(node: int, reply: DescribeReply | Error) -> Message:
    """What a node sends back, or the error that Flower reports for it."""
    request = Message(RecordDict(), node, "train")
    request.metadata.__dict__["_message_id"] = str(node)
    if isinstance(reply, Error):
        message = Message(reply, reply_to=request)
    else:
        metrics = ConfigRecord(dict(reply.scalars()))
        content = {"fitres.parameters": ArrayRecord([]), "fitres.metrics": metrics}
        message = Message(RecordDict(content), reply_to=request)
    message.metadata.__dict__["_src_node_id"] = node
    return message


@pytest.fixture(autouse=True)
def _identity() -> None:
    set_task_identity(1, 1)


class Nodes:
    """A grid whose nodes appear one after the other."""

    def __init__(self, answers: list[Any], per_call: int = 1) -> None:
        self.answers, self.there, self.per_call = answers, 0, per_call
        self.waiting: dict[str, int] = {}

    def get_node_ids(self) -> Iterable[int]:
        self.there = min(len(self.answers), self.there + self.per_call)
        return [1000 + k for k in reversed(range(self.there))]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = [str(m.metadata.dst_node_id) for m in messages]
        self.waiting.update({i: int(i) - 1000 for i in ids})
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [answer(int(i), self.answers[self.waiting.pop(i)]) for i in message_ids]


def description(partition: int, partitions: int = 3) -> Any:
    values = {
        f.name: {"int": 5, "str": "c", "bool": True, "bytes": b""}[str(f.type)]
        for f in fields(DescribeReply)
    }
    return DescribeReply(**{**values, "partition": partition, "partitions": partitions})  # type: ignore[arg-type]


def gather(grid: Nodes, timeout: float = 5.0, say: Any = None) -> dict[int, DescribeReply]:
    return gather_nodes(
        grid,  # type: ignore[arg-type]
        session="s",
        method="m",
        resume_round=0,
        min_clients=1,
        timeout=timeout,
        ledger=Ledger(),
        say=say or (lambda _: None),
    )


def test_nodes_that_come_late_are_awaited_and_sorted_by_partition() -> None:
    said: list[str] = []
    parties = gather(Nodes([description(k) for k in (2, 0, 1)]), say=said.append)
    assert [p.partition for p in parties.values()] == [0, 1, 2]
    assert list(parties) == [1001, 1002, 1000]
    assert said[0] == "waiting for nodes: 1 of 3"


def test_nodes_that_never_come_are_named() -> None:
    with refused("FK-PARTITION-MISSING"):
        gather(Nodes([description(2), description(0)], per_call=2), timeout=0.3)
    with refused("FK-PARTIES-AWAITED"):
        gather(Nodes([]), timeout=0.3)


def test_a_node_that_fails_at_the_start_stops_the_run() -> None:
    text = mark_error("TableError: partition 1: NaN values [FK-VALUES-MISSING]")
    bad = Error(2, f"<class 'fedkern_flwr.errors.TableError'>:<'{text}'>")
    with refused("FK-VALUES-MISSING", kind=RefusedError) as caught:
        gather(Nodes([description(0), bad, description(2)], per_call=3))
    assert caught.value.party == "partition 1"
    assert str(caught.value) == "partition 1, phase describe: NaN values [FK-VALUES-MISSING]"


def test_duplicate_partitions_are_refused() -> None:
    with refused("FK-PARTITION-TWICE"):
        gather(Nodes([description(0), description(0), description(1)], per_call=3))


@pytest.mark.promise("faults-code-of-a-node")
def test_a_long_text_keeps_its_code() -> None:
    said = f"TableError: partition 1: {'many columns, ' * 60}and more [FK-COLUMN-MISSING]"
    failure = Failure("raised", said)
    assert len(failure.detail) <= 500
    with refused("FK-COLUMN-MISSING"):
        failure.raise_final("fit")
    endless = Failure("raised", f"TableError: {'a' * 600} [FK-{'A' * 600}]")
    assert len(endless.detail) <= 500
