"""Phase messages: what is packed arrives equal, what does not fit is refused by name."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest
from example_messages import SIZES, assert_equal, example
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.exchange import request_messages
from fedkern_flwr.flower_compat import message_round_trip, set_task_identity
from fedkern_flwr.online import messages as online
from fedkern_flwr.wire import (
    PROTOCOL_VERSION,
    DescribeReply,
    DescribeRequest,
    PhaseMessage,
    check_parties,
    columns_digest,
    sums,
)


def message_classes() -> list[type[PhaseMessage]]:
    """All messages that travel: those with a phase."""
    both = [
        *inspect.getmembers(online, inspect.isclass),
        *inspect.getmembers(sums, inspect.isclass),
    ]
    return [DescribeRequest, DescribeReply, *(c for _, c in both if c.__dict__.get("phase"))]


CLASSES = message_classes()
MANY = [sums.Upload, sums.Delivery]  # any number of arrays
ARRAYS = [c for c in CLASSES if example(c).arrays() and c not in MANY]
SCALARS = [c for c in CLASSES if len(example(c).scalars()) > 2]


def test_every_phase_has_its_messages() -> None:
    assert len(CLASSES) == 43
    ours = [c for c in CLASSES if c.__module__ != sums.__name__]
    requests = {c.phase for c in ours if c.__name__.endswith("Request")}
    replies = {c.phase for c in ours if c.__name__.endswith("Reply")}
    # they answer any request of a secure run
    assert replies - requests == {"online-masked", "online-noisy"}
    assert requests <= replies


@pytest.mark.parametrize("cls", CLASSES)
def test_messages_arrive_as_they_were_sent(cls: type[PhaseMessage]) -> None:
    sent = example(cls)
    assert sent.scalars()["protocol"] == PROTOCOL_VERSION
    arrived = cls.unpack(sent.arrays(), sent.scalars(), party="partition 2", **SIZES)
    assert_equal(sent, arrived)


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


def test_sizes_of_a_message_agree_where_it_is_made() -> None:
    sent = example(online.SharedRequest)
    with pytest.raises(TypeError, match="SharedRequest: weights has 6 kernels instead of 3"):
        dataclasses.replace(sent, weights=np.ones(6))


@pytest.mark.parametrize("cls", CLASSES)
def test_messages_survive_flowers_serialisation(cls: type[PhaseMessage]) -> None:
    set_task_identity(1, 1)
    sent = example(cls)
    (message,) = request_messages(sent, [5], group_id="x")
    message.metadata.__dict__["_message_id"] = "1"
    copy: Message = message_round_trip(message)
    arrays = copy.content["fitins.parameters"].to_numpy_ndarrays()  # type: ignore[union-attr]
    scalars = dict(copy.content["fitins.config"])
    assert_equal(sent, cls.unpack(arrays, scalars, party="server"))


def unpacked(cls: type[PhaseMessage], arrays: list[Any], scalars: dict[str, Any]) -> str:
    """The message is refused with an error that names party and phase; return its text."""
    with pytest.raises(ProtocolError) as caught:
        cls.unpack(arrays, scalars, party="partition 2", **SIZES)
    text = str(caught.value)
    assert caught.value.party == "partition 2"
    assert text.startswith(f"partition 2, phase {cls.phase}: ")
    assert "run the same release of fedkern-flwr on both sides" in text
    return text


@given(cls=st.sampled_from(SCALARS), data=st.data())
def test_a_missing_or_wrongly_typed_scalar_is_refused(
    cls: type[PhaseMessage], data: st.DataObject
) -> None:
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


@pytest.mark.parametrize("cls", CLASSES)
def test_bool_does_not_pass_for_a_number(cls: type[PhaseMessage]) -> None:
    sent = example(cls)
    for name, value in sent.scalars().items():
        if type(value) is int and name != "protocol":
            text = unpacked(cls, sent.arrays(), {**sent.scalars(), name: True})
            assert f"{name} is bool instead of int" in text


@given(cls=st.sampled_from(CLASSES), version=st.none() | st.integers() | st.text(max_size=5))
def test_another_protocol_version_is_refused(cls: type[PhaseMessage], version: Any) -> None:
    if version == PROTOCOL_VERSION:
        return
    sent = example(cls)
    text = unpacked(cls, sent.arrays(), {**sent.scalars(), "protocol": version})
    found = version if isinstance(version, int) else type(version).__name__  # text is not quoted
    assert f"protocol version {found} instead of {PROTOCOL_VERSION}" in text


@pytest.mark.parametrize("cls", MANY)
def test_any_number_of_chunks_arrives_but_only_of_ring_elements(cls: type[PhaseMessage]) -> None:
    sent = example(cls)
    for chunks in ([], sent.arrays()[:1], [*sent.arrays(), np.zeros(7, np.uint16)]):
        arrived = cls.unpack(chunks, sent.scalars(), party="server")
        assert len(arrived.arrays()) == len(chunks)
    for wrong in (np.zeros(3), np.zeros(3, np.int64), np.zeros((2, 2), np.uint64)):
        assert "masked" in (text := unpacked(cls, [wrong], sent.scalars())) or "padded" in text


@given(cls=st.sampled_from(CLASSES), phase=st.none() | st.text(max_size=200))
def test_another_phase_is_refused(cls: type[PhaseMessage], phase: Any) -> None:
    sent = example(cls)
    text = unpacked(cls, sent.arrays(), {**sent.scalars(), "phase": phase})
    assert "the message belongs to phase " in text
    assert len(text) < 400  # a long word of the other side is cut


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
        arrays[i] = data.draw(
            st.sampled_from([good[None], good[..., None], good.ravel()[:1].sum()])
        )
        arrays[i] = np.asarray(arrays[i])
        arrays[i] = arrays[i].astype(good.dtype)
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


def test_sizes_must_agree_within_a_message() -> None:
    sent = example(online.SharedRequest)
    theta, weights = sent.arrays()
    with refused("FK-MESSAGE-SHAPE"):
        online.SharedRequest.unpack([theta, weights[:1]], sent.scalars(), party="server")


# -- describe


def party(partition: int, partitions: int = 3, **more: Any) -> DescribeReply:
    values = {"features": 2, "columns": columns_digest(["a", "b"]), **more}
    reply: Any = example(DescribeReply)
    return dataclasses.replace(reply, partition=partition, partitions=partitions, **values)


def test_parties_that_fit_are_accepted() -> None:
    check_parties([party(0), party(1, rows=9), party(2, test_rows=3)])


@pytest.mark.parametrize(
    ("parties", "code"),
    [
        ([party(0), party(1), party(1)], "TWICE"),
        ([party(0), party(2)], "MISSING"),
        ([party(0, 40)], "MISSING"),
        ([party(0), party(1), party(2), party(3)], "MISSING"),
        ([party(0, 2), party(1, 3)], "TOTAL"),
    ],
)
def test_wrong_partitions_are_refused(parties: list[DescribeReply], code: str) -> None:
    with refused(f"FK-PARTITION-{code}") as caught:
        check_parties(parties)
    assert str(caught.value).startswith("phase describe: ")


@pytest.mark.parametrize(
    "odd", [{"features": 3}, {"columns": columns_digest(["b", "a"])}, {"columns": ""}]
)
def test_tables_with_other_columns_are_refused(odd: dict[str, Any]) -> None:
    with refused("FK-COLUMNS-DIFFER"):
        check_parties([party(0), party(1), party(2, **odd)])


def test_the_digest_tells_names_and_order_apart() -> None:
    names = [["a", "b"], ["b", "a"], ["ab"], ["a", "b", ""], [], ["a\u0301", "b"]]
    assert len({columns_digest(n) for n in names}) == len(names)
    assert columns_digest(["a", "b"]) == columns_digest(("a", "b"))
