"""Messages of deployments: packed for nodes that can read them, and as they were on both sides."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from refusals import refused

from fedkern_flwr import swift_grid
from fedkern_flwr.exchange import REPLY, reply_content, request_content
from fedkern_flwr.flower_compat import set_task_identity
from fedkern_flwr.swift_grid import SwiftGrid, packed, swift
from fedkern_flwr.wire.packed import _LARGEST, is_packed, pack, unpack

LARGE = np.arange(_LARGEST, dtype=np.float64)
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.lists(st.floats(allow_nan=False)),
)
ARRAYS = st.one_of(
    st.just(LARGE),
    arrays.arrays(
        st.sampled_from([np.float64, np.float32, np.int32, np.uint8, np.uint64]),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements=st.just(1),
    ),
)
RECORDS = st.one_of(
    st.dictionaries(st.text(), VALUES).map(ConfigRecord),
    st.dictionaries(st.text(), st.integers(-5, 5)).map(MetricRecord),
    st.lists(ARRAYS, max_size=4).map(ArrayRecord),
)


def as_plain(content: RecordDict) -> list[Any]:
    """Return records, values and arrays in their order, with their types."""
    return [
        (
            name,
            type(record),
            [
                (key, type(value), value.data if isinstance(record, ArrayRecord) else value)
                for key, value in record.items()
            ],
        )
        for name, record in content.items()
    ]


@given(st.dictionaries(st.text(), RECORDS, max_size=4))
def test_what_is_unpacked_is_what_was_packed(records: dict[str, Any]) -> None:
    content = RecordDict(records)
    before = as_plain(content)
    found = pack(content)
    large = {name for name, record in records.items() if LARGE.nbytes < _size_of(record)}
    assert is_packed(found)
    assert len(found) == 1 + len(large)
    assert as_plain(unpack(found, party="p")) == before == as_plain(content)


def _size_of(record: Any) -> int:
    data = [len(a.data) for a in record.values()] if isinstance(record, ArrayRecord) else [0]
    return max([0, *data])


@pytest.mark.parametrize(
    "change",
    [
        {"index": "[["},
        {"index": json.dumps([["r", "array", [["0", 9**9, None]]]])},
        {"index": json.dumps([["r", "array", [["1", -1, None]]]])},
        {"index": json.dumps([["r", "other", []]])},
        {"index": json.dumps([["r", "config", [["a", -1, {"b": 1}]]]])},
        {"index": json.dumps(5)},
        {"index": "[" * 100_000},
        {"blobs": b"more than there is"},
        {"blobs": 5},
    ],
)
def test_damaged_records_are_refused_in_one_line(change: dict[str, Any]) -> None:
    content = pack(RecordDict({"r": ArrayRecord([np.zeros(2), LARGE])}))
    content["fedkern.packed"].update(change)  # type: ignore[union-attr]
    with refused("FK-MESSAGE-DAMAGED"):
        unpack(content, party="p")


class Nodes:
    """A SuperLink whose nodes answer what they are sent, one of them without the mod."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.sent: list[Message] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.sent = list(messages)
        return [str(m.metadata.dst_node_id) for m in self.sent]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._answer(message) for message in self.sent]

    def _answer(self, message: Message) -> Message:
        set_task_identity(1, message.metadata.dst_node_id)
        if message.metadata.dst_node_id == 3:
            return answer(message, self.context)
        return packed(message, self.context, answer)


def answer(message: Message, context: Context) -> Message:
    assert not is_packed(message.content)
    number = int(message.content["fitins.config"]["n"])  # type: ignore[call-overload,index,arg-type]
    return Message(reply_content([LARGE, LARGE[:3]], {"n": number}), reply_to=message)


@pytest.fixture(autouse=True)
def identity() -> Iterator[None]:
    """Let messages be made."""
    set_task_identity(1, 1)
    yield
    set_task_identity(1, 1)


def test_nodes_that_can_read_packed_messages_get_them_from_the_second_on() -> None:
    context = Context(1, 1, {}, RecordDict(), {})
    grid, nodes = SwiftGrid(Nodes(context)), (3, 4, 5)
    for n in range(3):
        content = request_content(ArrayRecord([LARGE, LARGE[:2]]), ConfigRecord({"n": n}))
        messages = [Message(content, dst_node_id=k, message_type="train") for k in nodes]
        grid.push_messages(messages)
        quick = [is_packed(message.content) for message in grid._grid.sent]
        assert quick == [False, n > 0, n > 0]
        assert len({id(message.content) for message in grid._grid.sent}) == min(2, n + 1)
        replies = list(grid.pull_messages([]))
        assert all(as_plain(m.content) == as_plain(content) for m in messages)
        for reply in replies:
            expected = reply_content([LARGE, LARGE[:3]], {"n": n})
            assert as_plain(reply.content) == as_plain(expected)


def test_a_damaged_reply_is_left_to_the_exchange() -> None:
    context = Context(1, 1, {}, RecordDict(), {})
    grid = SwiftGrid(Nodes(context))
    content = pack(request_content(ArrayRecord([]), ConfigRecord({"n": 1})))
    message = Message(content, dst_node_id=4, message_type="train")
    grid.push_messages([message])
    reply = next(iter(grid._grid.pull_messages([])))
    reply.content["fedkern.packed"]["index"] = "["
    grid._grid.pull_messages = lambda ids: [reply]
    assert [REPLY in one.content for one in grid.pull_messages([])] == [False]


def test_nothing_changes_in_a_simulation() -> None:
    context = Context(1, 1, {"simulation": True}, RecordDict(), {})
    message = Message(
        request_content(ArrayRecord([]), ConfigRecord({"n": 1})),
        dst_node_id=4,
        message_type="train",
    )
    assert set(packed(message, context, answer).content[REPLY]) == {"n"}
    grid = object()
    assert swift(grid) is grid
    assert swift_grid.patient(grid) is None
