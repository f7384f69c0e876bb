"""Sections: messages within messages, which trust nothing that arrives."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from example_messages import assert_equal, example
from hypothesis import given
from hypothesis import strategies as st
from sums_in_memory import refused

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.wire import sums
from fedkern_flwr.wire.message import PhaseMessage
from fedkern_flwr.wire.sections import (
    Section,
    attach,
    detach,
    section_arrays,
    section_bytes,
)

CLASSES = [
    cls
    for cls in vars(sums).values()
    if isinstance(cls, type) and issubclass(cls, PhaseMessage) and cls.phase
]
OWN_ARRAYS = [np.arange(4.0), np.zeros((2, 2), np.float32)]
OWN = {"phase": "update", "protocol": 3, "round": 3, "0.5": "a name with a dot", "9.x": b"9"}


@given(chosen=st.lists(st.sampled_from(CLASSES), max_size=5), parts=st.integers(0, 3))
def test_sections_arrive_as_they_were_sent(chosen: list[type[PhaseMessage]], parts: int) -> None:
    sent = [example(cls, seed, parts=parts) for seed, cls in enumerate(chosen)]
    arrays, scalars = attach(sent)
    own = {name: value for name, value in OWN.items() if name != "0.5"}
    left, rest, sections = detach([*OWN_ARRAYS, *arrays], {**own, **scalars}, party="server")
    assert len(left) == 2
    assert rest == own
    for message, section in zip(sent, sections, strict=True):
        assert_equal(message, section.read(type(message), party="server"))
    assert section_arrays(scalars) == (len(arrays) if sent else None)
    size = sum(len(v) for m in sent for v in m.scalars().values() if isinstance(v, bytes))
    assert section_bytes(scalars) == size


def test_scalars_are_plain_for_flower() -> None:
    _, scalars = attach([example(cls) for cls in CLASSES])
    assert all(type(value) in (bytes, str) for value in scalars.values())


def test_a_message_without_sections_is_left_alone() -> None:
    arrays, scalars, sections = detach(OWN_ARRAYS, OWN, party="server")
    assert (len(arrays), scalars, sections) == (2, OWN, [])
    assert attach([]) == ([], {})
    assert section_arrays(OWN) is None
    assert section_bytes(OWN) == 0


def test_negative_control_of_equality() -> None:
    upload = example(sums.Upload)
    for change in ({"index": 8}, {"shares": b""}, {"masked": ()}):
        with pytest.raises(AssertionError):
            assert_equal(upload, dataclasses.replace(upload, **change))


DAMAGED: dict[str, Any] = {
    "no json": "sections",
    "empty": "",
    "a number": "3",
    "null": "null",
    "a string": '"abc"',
    "an object": '{"abc": 1}',
    "too short": '[["sum-order", 0]]',
    "too long": '[["sum-order", 0, {}, 1]]',
    "a negative count": '[["sum-order", -1, {}]]',
    "a fraction": '[["sum-order", 0.5, {}]]',
    "a word": '[["sum-order", "1", {}]]',
    "a truth": '[["sum-order", true, {}]]',
    "infinity": '[["sum-order", Infinity, {}]]',
    "not a number": '[["sum-order", NaN, {}]]',
    "a huge number": '[["sum-order", 1e400, {}]]',
    "more arrays than there are": '[["sum-order", 3, {}]]',
    "in sum more than there are": '[["a", 2, {}], ["b", 1, {}]]',
    "no phase": "[[null, 0, {}]]",
    "a list for a dictionary": '[["sum-order", 0, [["phase", "x"]]]]',
    "a string for a dictionary": '[["sum-order", 0, "ab"]]',
    "depth": "[" * 100_000,
    "bytes": b"\xff\xfe",
    "an integer": 3,
    "a list": [["sum-order", 0, {}]],
    "nothing": None,
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_sections_are_refused(kind: str) -> None:
    detach(OWN_ARRAYS, {**OWN, "sections": '[["a", 1, {}], ["b", 0, {"c": 1}]]'}, party="")  # right
    scalars = {**OWN, "sections": DAMAGED[kind]}
    refused(
        lambda: detach(OWN_ARRAYS, scalars, party="partition 3"),
        party="partition 3",
        text="its sections are damaged",
        kind=ProtocolError,
    )


@given(
    text=st.text(max_size=40)
    | st.recursive(
        st.none() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
        ),
        max_leaves=8,
    ).map(json.dumps)
)
def test_any_text_is_refused_or_gives_sections(text: str) -> None:
    try:
        arrays, _, found = detach(OWN_ARRAYS, {**OWN, "sections": text}, party="partition 3")
    except ProtocolError as error:
        assert str(error) == "partition 3: its sections are damaged"  # noqa: PT017
        return
    assert all(type(s) is Section and type(s.scalars) is dict for s in found)
    assert len(arrays) + sum(len(s.arrays) for s in found) == len(OWN_ARRAYS)


@given(name=st.text(max_size=6), number=st.sampled_from(["0", "1", "2", "00", "\u0661", "-1", ""]))
def test_odd_names_of_scalars_break_nothing(name: str, number: str) -> None:
    arrays, scalars = attach([example(sums.Roster), example(sums.SumReply)])
    extra = {f"{number}.{name}": b"x"}
    _, rest, sections = detach(arrays, {**scalars, **extra}, party="partition 3")
    assert [s.phase for s in sections] == ["sum-roster", "sum-reply"]
    assert rest == ({} if number in ("0", "1") else extra)


def test_a_very_long_number_in_a_name_breaks_nothing() -> None:
    arrays, scalars = attach([example(sums.Roster)])
    extra = {"9" * 5000 + ".keys": b"x"}
    _, rest, (section,) = detach(arrays, {**scalars, **extra}, party="partition 3")
    assert rest == extra
    assert section.read(sums.Roster, party="server") == example(sums.Roster)


@pytest.mark.parametrize("cls", CLASSES)
def test_sections_are_checked_as_messages_are(cls: type[PhaseMessage]) -> None:
    sent = example(cls)
    arrays, scalars = attach([sent])
    _, _, (section,) = detach(arrays, scalars, party="partition 3")
    names = [n for n in section.scalars if n not in ("phase", "protocol")]
    broken: list[dict[str, Any]] = [{"protocol": 1}, {"phase": "other"}]
    broken += [{name: None} for name in names]
    for change in broken:
        wrong = Section(section.phase, section.arrays, {**section.scalars, **change})
        with pytest.raises(ProtocolError, match=r"^partition 3, phase ") as caught:
            wrong.read(cls, party="partition 3")
        assert "\n" not in str(caught.value)
    floats = Section(section.phase, [np.zeros(2)], section.scalars)
    with pytest.raises(ProtocolError):
        floats.read(cls, party="partition 3")
    two_dimensions = Section(section.phase, [np.zeros((2, 2), np.uint32)], section.scalars)
    with pytest.raises(ProtocolError):
        two_dimensions.read(cls, party="partition 3")
    assert_equal(section.read(cls, party="partition 3"), sent)
