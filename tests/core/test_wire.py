"""Phase messages: what is packed arrives equal, what does not fit is refused by name."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pickle
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from example_messages import SIZES, assert_equal, example
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from refusals import raises, refused, refuses

from fedkern_flwr import transport
from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.flower_compat import (
    held_in,
    held_record,
    message_round_trip,
    set_task_identity,
)
from fedkern_flwr.node.state import KeptState, SessionState
from fedkern_flwr.online import messages as online
from fedkern_flwr.transport import (
    REPLY,
    SwiftGrid,
    packed,
    reply_content,
    request_content,
    request_messages,
    swift,
)
from fedkern_flwr.wire import (
    PROTOCOL_VERSION,
    DescribeReply,
    DescribeRequest,
    PhaseMessage,
    check_parties,
    columns_digest,
    sums,
)
from fedkern_flwr.wire.message import _LARGEST, is_packed, pack, unpack


def message_classes() -> list[type[PhaseMessage]]:
    """All messages that travel: those with a phase."""
    both = inspect.getmembers(online, inspect.isclass) + inspect.getmembers(sums, inspect.isclass)
    return [DescribeRequest, DescribeReply, *(c for _, c in both if c.__dict__.get("phase"))]


CLASSES = message_classes()
MANY = [sums.Upload, sums.Delivery]  # any number of arrays
ARRAYS = [c for c in CLASSES if example(c).arrays() and c not in MANY]
SCALARS = [c for c in CLASSES if len(example(c).scalars()) > 2]


@pytest.mark.parametrize("cls", CLASSES)
def test_messages_arrive_as_they_were_sent_by_flower_too(cls: type[PhaseMessage]) -> None:
    sent = example(cls)
    assert sent.scalars()["protocol"] == PROTOCOL_VERSION
    arrived = cls.unpack(sent.arrays(), sent.scalars(), party="partition 2", **SIZES)
    assert_equal(sent, arrived)
    set_task_identity(1, 1)
    (message,) = request_messages(sent, [5], group_id="x")
    message.metadata.__dict__["_message_id"] = "1"
    content: Any = message_round_trip(message).content
    arrays = content["fitins.parameters"].to_numpy_ndarrays()
    assert_equal(sent, cls.unpack(arrays, dict(content["fitins.config"]), party="server"))


@pytest.mark.parametrize("cls", CLASSES)
def test_a_message_that_does_not_fit_is_not_made(cls: type[PhaseMessage]) -> None:
    """A mistake of a handler or strategy stops it where it is, before anything is sent."""
    sent = example(cls)
    for f in dataclasses.fields(cls):
        value, wrongs = getattr(sent, f.name), [None, np.int64(1), np.float64(1.0), [1.0]]
        if f.metadata.get("many"):
            wrongs = [(value[0], one) for one in (None, value[0].astype("i8"), value[0][None])]
        elif "dimensions" in f.metadata:
            wrongs += [value.astype(np.complex128), value[None], np.float64(value.sum())]
        for wrong in wrongs:
            with pytest.raises(TypeError, match=rf"^{cls.__name__}: {f.name} (is|has) "):
                dataclasses.replace(sent, **{f.name: wrong})


def test_sizes_of_a_message_agree_where_it_is_made_and_where_it_arrives() -> None:
    sent = example(online.SharedRequest)
    with pytest.raises(TypeError, match="SharedRequest: weights has 6 kernels instead of 3"):
        dataclasses.replace(sent, weights=np.ones(6))
    theta, weights = sent.arrays()
    with refused("FK-MESSAGE-SHAPE"):
        online.SharedRequest.unpack([theta, weights[:1]], sent.scalars(), party="server")


def unpacked(cls: type[PhaseMessage], arrays: list[Any], scalars: dict[str, Any]) -> str:
    """The message is refused with an error that names party and phase; return its text."""
    caught = raises(ProtocolError, cls.unpack, arrays, scalars, party="partition 2", **SIZES)
    text = str(caught.value)
    assert caught.value.party == "partition 2"
    assert text.startswith(f"partition 2, phase {cls.phase}: ")
    assert "run the same release of fedkern-flwr on both sides" in text
    return text


@given(cls=st.sampled_from(SCALARS), data=st.data())
def test_a_missing_or_wrong_scalar_is_refused(cls: type[PhaseMessage], data: st.DataObject) -> None:
    sent = example(cls)
    scalars = sent.scalars()
    names = [n for n in scalars if n not in ("phase", "protocol", "release")]
    name = data.draw(st.sampled_from(names))
    wrong: Any = data.draw(
        st.sampled_from([None, True, 3, 1.5, "x", b"x", float("nan"), float("inf"), [1]]).filter(
            lambda v: type(v) is not type(scalars[name]) or v != v or v == float("inf")
        )
    )
    text = unpacked(cls, sent.arrays(), {**scalars, name: wrong})
    assert name in text
    assert "instead of" in text or "not finite" in text
    del scalars[name]
    assert f"{name} is NoneType" in unpacked(cls, sent.arrays(), scalars)


@pytest.mark.parametrize("cls", MANY)
def test_any_number_of_chunks_arrives_but_only_of_ring_elements(cls: type[PhaseMessage]) -> None:
    sent = example(cls)
    for chunks in ([], sent.arrays()[:1], [*sent.arrays(), np.zeros(7, np.uint16)]):
        arrived = cls.unpack(chunks, sent.scalars(), party="server")
        assert len(arrived.arrays()) == len(chunks)
    for wrong in (np.zeros(3), np.zeros(3, np.int64), np.zeros((2, 2), np.uint64)):
        assert "masked" in (text := unpacked(cls, [wrong], sent.scalars())) or "padded" in text


@given(cls=st.sampled_from(CLASSES), phase=st.none() | st.text(max_size=200))
def test_another_phase_or_a_bool_is_refused(cls: type[PhaseMessage], phase: Any) -> None:
    sent = example(cls)
    text = unpacked(cls, sent.arrays(), {**sent.scalars(), "phase": phase})
    assert "the message belongs to phase " in text
    assert len(text) < 400  # a long word of the other side is cut
    for version in (None, PROTOCOL_VERSION - 1, str(PROTOCOL_VERSION)):
        text = unpacked(cls, sent.arrays(), {**sent.scalars(), "protocol": version})
        assert f" instead of {PROTOCOL_VERSION}" in text
    for name, value in sent.scalars().items():
        if type(value) is int and name != "protocol":
            text = unpacked(cls, sent.arrays(), {**sent.scalars(), name: True})
            assert f"{name} is bool instead of int" in text


@settings(max_examples=40)
@given(cls=st.sampled_from(ARRAYS), data=st.data())
def test_arrays_that_do_not_fit_are_refused(cls: type[PhaseMessage], data: st.DataObject) -> None:
    sent = example(cls)
    arrays = [a.copy() for a in sent.arrays()]
    declared = [f for f in dataclasses.fields(cls) if "dimensions" in f.metadata]
    i = data.draw(st.integers(0, len(arrays) - 1))
    name, good = declared[i].name, arrays[i]
    kind = data.draw(st.sampled_from(["dtype", "ndim", "nan", "inf", "size", "fewer", "more"]))
    if kind == "dtype":
        wrong = data.draw(st.sampled_from(["int64", "float16", "complex128", ">f8", "U3", "bool"]))
        arrays[i], expected = good.astype(wrong), f"{name} has dtype"
    elif kind == "ndim":
        some = data.draw(st.sampled_from([good[None], good[..., None], good.ravel()[:1].sum()]))
        arrays[i] = np.asarray(some, good.dtype)
        expected = f"{name} has {arrays[i].ndim} dimensions instead of {good.ndim}"
    elif kind in ("nan", "inf") and good.dtype.kind == "f":
        arrays[i].flat[data.draw(st.integers(0, good.size - 1))] = float(kind)
        expected = f"{name} holds NaN or infinite values"
    elif kind in ("size", "nan", "inf"):
        arrays[i], expected = np.repeat(good, 2, axis=0), f"{name} has {2 * len(good)} "
    else:
        arrays = arrays[:-1] if kind == "fewer" else [*arrays, arrays[0]]
        expected = f"{len(arrays)} arrays instead of {len(declared)}"
    assert expected in unpacked(cls, arrays, sent.scalars())


# -- describe


def party(partition: int, partitions: int = 3, **more: Any) -> DescribeReply:
    values = {"features": 2, "columns": columns_digest(["a", "b"]), "name": "", **more}
    reply: Any = example(DescribeReply)
    return dataclasses.replace(reply, partition=partition, partitions=partitions, **values)


@pytest.mark.parametrize(("parties", "code"), [
    ([party(0), party(1, rows=9), party(2, test_rows=3)], ""),
    ([party(0), party(1), party(1)], "FK-PARTITION-TWICE"),
    ([party(0), party(2)], "FK-PARTITION-MISSING"), ([party(0, 40)], "FK-PARTITION-MISSING"),
    ([party(0), party(1), party(2), party(3)], "FK-PARTITION-MISSING"),
    ([party(0, 2), party(1, 3)], "FK-PARTITION-TOTAL"),
    ([party(0), party(1), party(2, features=3)], "FK-COLUMNS-DIFFER"),
    ([party(0), party(1), party(2, columns=columns_digest(["b", "a"]))], "FK-COLUMNS-DIFFER"),
    ([party(0), party(1), party(2, columns="")], "FK-COLUMNS-DIFFER"),
    ([party(0, name="a"), party(1, name="b"), party(2, name="")], ""),
    ([party(0, name="a"), party(1, name="b"), party(2, name="a")], "FK-NODE-NAME-TWICE"),
])  # fmt: skip
def test_parties_fit_together_or_are_refused(parties: list[DescribeReply], code: str) -> None:
    with refused(code) if code else nullcontext():
        check_parties(parties)


@pytest.mark.parametrize(("name", "good"), [("x" * 40, True), ("x" * 41, False)])
def test_a_name_that_a_node_sends_is_short(name: str, good: bool) -> None:
    """It comes into the coordinator's log; a node may be another program."""
    sent = party(0, name=name)
    with nullcontext() if good else refused("FK-MESSAGE-FIELD"):
        DescribeReply.unpack(sent.arrays(), sent.scalars(), party="node 7")


def test_the_digest_tells_names_and_order_apart() -> None:
    names = [["a", "b"], ["b", "a"], ["ab"], ["a", "b", ""], [], ["a\u0301", "b"]]
    assert len({columns_digest(n) for n in names}) == len(names)
    assert columns_digest(["a", "b"]) == columns_digest(("a", "b"))


# -- messages of deployments: packed for nodes that can read them

LARGE = np.arange(_LARGEST, dtype=np.float64)
VALUES = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(),
    st.binary(), st.lists(st.floats(allow_nan=False)),
)  # fmt: skip
PIECES = st.one_of(
    st.just(LARGE),
    arrays.arrays(
        st.sampled_from([np.float64, np.float32, np.int32, np.uint8, np.uint64]),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements=st.just(1),
    ),
)
CONTENT = st.one_of(
    st.dictionaries(st.text(), VALUES).map(ConfigRecord),
    st.dictionaries(st.text(), st.integers(-5, 5)).map(MetricRecord),
    st.lists(PIECES, max_size=4).map(ArrayRecord),
)


def as_plain(content: RecordDict) -> list[Any]:
    """Return records, values and arrays in their order, with their types."""

    def plain(record: Any, value: Any) -> Any:
        return type(value), value.data if isinstance(record, ArrayRecord) else value

    return [
        (name, type(record), [(key, plain(record, value)) for key, value in record.items()])
        for name, record in content.items()
    ]


@given(st.dictionaries(st.text(), CONTENT, max_size=4))
def test_what_is_unpacked_is_what_was_packed(records: dict[str, Any]) -> None:
    content = RecordDict(records)
    before, large = as_plain(content), 0
    for record in records.values():
        data = record.values() if isinstance(record, ArrayRecord) else ()
        large += any(len(array.data) > LARGE.nbytes for array in data)
    found = pack(content)
    assert is_packed(found)
    assert len(found) == 1 + large
    assert as_plain(unpack(found, party="p")) == before == as_plain(content)


@pytest.mark.parametrize("change", [
    {"index": "[["}, {"index": json.dumps([["r", "array", [["0", 9**9, None]]]])},
    {"index": json.dumps([["r", "array", [["1", -1, None]]]])},
    {"index": json.dumps([["r", "other", []]])},
    {"index": json.dumps([["r", "config", [["a", -1, {"b": 1}]]]])}, {"index": json.dumps(5)},
    {"index": "[" * 100_000}, {"blobs": b"more than there is"}, {"blobs": 5},
])  # fmt: skip
def test_damaged_records_are_refused_in_one_line(change: dict[str, Any]) -> None:
    content = pack(RecordDict({"r": ArrayRecord([np.zeros(2), LARGE])}))
    content["fedkern.packed"].update(change)  # type: ignore[union-attr]
    refuses("FK-MESSAGE-DAMAGED", unpack, content, party="p")


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
        content = question(n)
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


def question(n: int = 1) -> RecordDict:
    return request_content(ArrayRecord([LARGE, LARGE[:2]]), ConfigRecord({"n": n}))


def test_a_damaged_reply_is_left_to_the_exchange() -> None:
    grid = SwiftGrid(Nodes(Context(1, 1, {}, RecordDict(), {})))
    grid.push_messages([Message(pack(question()), dst_node_id=4, message_type="train")])
    reply = next(iter(grid._grid.pull_messages([])))
    reply.content["fedkern.packed"]["index"] = "["
    grid._grid.pull_messages = lambda ids: [reply]
    assert [REPLY in one.content for one in grid.pull_messages([])] == [False]


def test_nothing_changes_in_a_simulation() -> None:
    context, grid = Context(1, 1, {"simulation": True}, RecordDict(), {}), object()
    message = Message(question(), dst_node_id=4, message_type="train")
    assert set(packed(message, context, answer).content[REPLY]) == {"n"}
    assert swift(grid) is grid
    assert transport.patient(grid) is None


@pytest.mark.parametrize(
    "look",
    [
        lambda record: record["payload"],
        lambda record: dict(record)["payload"],
        lambda record: record.copy()["payload"],
        lambda record: pickle.loads(pickle.dumps(record))["payload"],
        lambda record: ConfigRecord.inflate(record.deflate())["payload"],
    ],
)
def test_what_a_record_holds_is_written_when_somebody_looks(look: Any) -> None:
    kept = [1]
    record = held_record(kept, lambda: {"payload": bytes(kept)})
    assert held_in(record) is kept
    assert look(record) == b"\x01"
    assert held_in(record) is None  # from now on the values count: they may be changed
    record["payload"] = b"\x02"
    assert look(record) == b"\x02"
    assert held_in(None) is None


def test_a_message_that_fails_changes_nothing_that_a_node_remembers() -> None:
    context = Context(1, 1, {}, RecordDict(), {})
    kept = KeptState({"known": [1]}, arrays={"model": np.zeros(2)})
    SessionState("run", 1, kept).store(context)
    state = SessionState.load(context)
    mine, state.round = state.opened(KeptState), 2
    mine.settings["known"].append(2)
    mine.settings["more"], mine.arrays["model"] = 1, np.ones(2)
    assert not state.opened(KeptState).arrays["model"].flags.writeable
    again = SessionState.load(context)
    assert again.round == 1
    assert again.payload == KeptState({"known": [1]}, arrays={"model": np.zeros(2)}).pack()
