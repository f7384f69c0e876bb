"""Text from nodes: one plain line, wherever the server logs, stores or prints it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Context, Error, Message
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.errors import FedKernError, ProtocolError
from fedkern_flwr.exchange import request_messages
from fedkern_flwr.failure import Failure, mark_error, read_error
from fedkern_flwr.flower_compat import set_task_identity
from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.plain_text import LONGEST, plain_line
from fedkern_flwr.reporting import errors_reported
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import POFMKL
from fedkern_flwr.wire import DescribeReply, DescribeRequest

NASTY = {
    "colours": "\x1b[31mred\x1b[0m",
    "title": "\x1b]0;owned\x07gone",
    "lines": "one\r\n2026-01-01 ERROR: forged\u2028three",
    "eight bits": "\x9b2Jcleared\x9d0;t\x9c",
    "direction": "\u202egnp.exe\u200b",
    "zeros": "\x00\x08\x7f\ud800",
    "long": "x" * 10_000_000,
    "long of escapes": "\x1b[" * 3_000_000,
    "long of marks": "[fedkern] " * 1_000_000,
    "long traceback": "a.b.C: x\n" * 1_000_000,
}


def assert_plain(text: str, most: int = LONGEST) -> None:
    assert len(text) <= most
    assert text.isprintable(), ascii(text[:200])


@given(st.text())
def test_a_line_is_plain_and_stays_as_it_is(text: str) -> None:
    found = plain_line(text, 20)
    assert_plain(found, 20)
    assert plain_line(found, 20) == found
    if text.isascii() and text.isprintable() and len(text) <= 20:
        assert found == " ".join(text.split())


@pytest.mark.parametrize("name", NASTY)
def test_lines_of_terminals_are_taken_apart(name: str) -> None:
    assert_plain(plain_line(NASTY[name]))
    assert_plain(str(Failure("raised", NASTY[name])), LONGEST + 20)


def test_what_a_terminal_obeys_leaves_no_rest() -> None:
    found = {name: plain_line(text) for name, text in NASTY.items() if not name.startswith("long")}
    assert found == {
        "colours": "red",
        "title": "gone",
        "lines": "one 2026-01-01 ERROR: forged three",
        "eight bits": "cleared",
        "direction": "gnp.exe",
        "zeros": "",
    }


@pytest.mark.parametrize("name", NASTY)
@pytest.mark.parametrize("marked", [True, False])
def test_errors_of_clients_are_read_as_plain_lines(
    name: str, marked: bool, make_error: Callable[[str], Message]
) -> None:
    text = mark_error(NASTY[name]) if marked else f"<class '{NASTY[name]}'>:<'{NASTY[name]}'>"
    assert_plain(read_error(make_error(text), "fit").detail)


@pytest.fixture
def make_error() -> Callable[[str], Message]:
    set_task_identity(1, 1)
    request = DescribeRequest(session="s", method="m", resume_round=0)
    (message,) = request_messages(request, [7], group_id="g")
    return lambda text: Message(Error(2, text), reply_to=message)


class Vandal(PhaseClient):
    """A node that writes to the terminal of the server: by errors, or by what it says of itself."""

    text, field = "", ""

    def describe(self, request: DescribeRequest) -> DescribeReply:
        if not self.field:
            raise FedKernError(self.text)
        if self.field == "role":
            self.role = self.text
        columns = self.text if self.field == "columns" else "0" * 16
        return DescribeReply(rows=3 + self.partition, features=2 + self.partition, columns=columns)


@pytest.mark.parametrize("field", ["", "role", "columns"])
@pytest.mark.parametrize("name", ["colours", "lines", "long"])
def test_no_text_of_a_node_reaches_log_or_result(
    name: str, field: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def client_fn(context: Context) -> Vandal:
        client = Vandal(context)
        client.text, client.field = NASTY[name], field
        return client

    told = tmp_path / "result.json"
    caplog.set_level(logging.DEBUG, "flwr")
    with pytest.raises(ProtocolError) as raised, errors_reported(told):
        simulate(POFMKL(), client_fn, 2, num_rounds=1)
    assert_plain(str(raised.value), 2 * LONGEST)
    assert_plain(json.loads(told.read_text())["error"], 2 * LONGEST)
    logged = [r.getMessage() for r in caplog.records if r.name == "flwr"]  # what `flwr log` shows
    assert any(text.startswith("fedkern: ") for text in logged)
    for text in logged:
        assert_plain(text, 2 * LONGEST)
    if field:
        assert "printable" in str(raised.value)
