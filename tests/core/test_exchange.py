"""Exchanges and the start of a run over grids that misbehave in every way that Flower's do."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.supercore.constant import TaskType
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused, refuses
from scripted_grid import reply

from fedkern_flwr import flower_compat
from fedkern_flwr import transport as exchanging
from fedkern_flwr.errors import ProtocolError, RefusedError
from fedkern_flwr.failure import Failure, mark_error
from fedkern_flwr.flower_compat import MESSAGE_LOST, set_task_identity
from fedkern_flwr.nodes import Nodes
from fedkern_flwr.online.messages import PersonalReply
from fedkern_flwr.transport import Courier, Outcome, request_messages, take_sections
from fedkern_flwr.watch import Ledger
from fedkern_flwr.wire import PROTOCOL_VERSION, DescribeReply, DescribeRequest
from fedkern_flwr.wire.message import array_record, read_array

Table = dict[str, Any]
REQUEST = DescribeRequest(session="s", method="m", resume_round=0)


@dataclass
class FakeGrid:
    """A grid whose replies are scripted: per pull, a list of messages.

    Its messages are called as is said, or m1, m2, ...; whether nodes are connected is scripted too.
    """

    pulls: list[list[Message]]
    ids: list[str] | None = None
    looks: list[set[int]] = field(default_factory=list)
    asked: list[set[str]] = field(default_factory=list)
    count: int = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        first, self.count = self.count + 1, self.count + len(list(messages))
        return self.ids or [f"m{k}" for k in range(first, self.count + 1)]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.asked.append(set(message_ids))
        return self.pulls.pop(0) if self.pulls else []

    def get_node_ids(self) -> Iterable[int]:
        """Fails where nobody should look; the last look counts from then on."""
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


@pytest.fixture(autouse=True)
def _identity() -> None:
    set_task_identity(1, 1)


def run(
    pulls: list[list[Message]],
    *,
    nodes: int = 2,
    ids: Any = None,
    looks: Any = (),
    arrays: Any = None,
    timeout: float = 0.2,
    **more: Any,
) -> tuple[Outcome, Ledger, FakeGrid]:
    """Exchange with nodes 1000, 1001, ... whose messages have ids a, b, ..."""
    ids = [chr(97 + k) for k in range(nodes)] if ids is None else ids
    grid, ledger = FakeGrid(pulls, ids, list(looks)), Ledger()
    asked = request_messages(REQUEST, range(1000, 1000 + nodes), group_id="g", arrays=arrays)
    more |= {"phase": "p", "timeout": timeout, "ledger": ledger}
    return exchanging.exchange(grid, asked, **more), ledger, grid  # type: ignore[arg-type]


def courier(pulls: list[list[Message]]) -> tuple[Courier, FakeGrid, Ledger]:
    grid, ledger = FakeGrid(pulls), Ledger()
    return Courier(grid, ledger), grid, ledger  # type: ignore[arg-type]


def test_replies_are_matched_by_the_id_of_the_request() -> None:
    """The second reply comes first and claims another node."""
    outcome, ledger, grid = run([[reply("b", node=1000)], [], [reply("a", node=1001)]])
    assert outcome.replies[1001].metadata.reply_to_message_id == "b"
    assert outcome.replies[1000].metadata.reply_to_message_id == "a"
    assert outcome.failures == {}
    assert grid.asked == [{"a", "b"}, {"a"}, {"a"}]
    assert (ledger.exchanges, ledger.messages, ledger.by_phase) == (1, 2, {"p": 1})


def test_a_node_that_flower_does_not_know_is_unreachable_at_once() -> None:
    started = time.monotonic()
    outcome, ledger, _ = run([[reply("a", node=1000)]], ids=["a", ""], timeout=30)
    assert outcome.failures == {1001: Failure("unreachable")}
    assert time.monotonic() - started < 20
    assert ledger.messages == 2
    outcome, _, grid = run([], ids=["", ""], timeout=30)
    assert set(outcome.failures) == {1000, 1001}
    assert grid.asked == []


def test_a_dead_ray_actor_stops_the_run() -> None:
    dead = reply("a", error=Error(0, "ray.exceptions.ActorDiedError: The actor died"), node=1000)
    refuses("FK-ENGINE-ACTOR", run, [[dead]])
    unknown = reply("a", error=Error(0, None), node=1000)
    outcome, _, _ = run([[unknown, reply("b", node=1001)]])
    assert outcome.failures == {1000: Failure("raised", "error code 0")}


def test_a_message_that_the_superlink_has_lost_is_no_error_of_its_node() -> None:
    assert MESSAGE_LOST == (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
    for code in MESSAGE_LOST:
        found = raised("Error: Message Unavailable - It may have expired.", code)
        assert found == Failure("unreachable", "(its message was lost at the SuperLink)")


def raised(reason: str, code: int = 2) -> Failure:
    outcome, _, _ = run([[reply("a", error=Error(code, reason), node=1000)]], nodes=1)
    return outcome.failures[1000]


# As measured on flwr 1.41 with Ray 2.x, shortened.
RAY = (
    "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'\x1b[36mray::ClientAppActor.run()"
    "\x1b[39m (pid=10084, ip=192.0.2.2)\n"
    '  File "/app/p.py", line 8, in train_personal\n    raise {name}(text)\n{name}: {text}\n\n'
    "The above exception was the direct cause of the following exception:\n\n"
    "    raise ClientAppException(str(ex)) from ex\nflwr.clientapp.client_app.ClientAppException: "
    "\nException ClientAppException occurred. Message: {text}'>"
)


@pytest.mark.parametrize(("reason", "name"), [
    ("<class 'ValueError'>:<'patient Miller has HIV'>", "ValueError"),
    ("<class 'numpy.linalg.LinAlgError'>:<'row 17 is 3.14'>", "LinAlgError"),
    ("<class 'KeyError'>:<'Miller'>", "KeyError"), ("<class 'my_package.Trouble'>:<'Miller'>", ""),
    ("<class 'fedkern_flwr.errors.TableError'>:<'no file Miller.csv'>", "TableError"),
    (RAY.format(name="ValueError", text="Miller 3.14"), "ValueError"),
    (RAY.format(name="KeyError", text="'Miller'"), "KeyError"),
])  # fmt: skip
def test_the_text_of_a_foreign_exception_reaches_no_log(reason: str, name: str) -> None:
    failure = raised(reason)
    assert failure.kind == "raised"
    for secret in ("Miller", "HIV", "3.14", "17"):
        assert secret not in str(failure)
    if name:
        assert failure.detail == name


QUOTED = [
    "no SmithError in 'x'", "see 'JonesException'", "KeyError", "row\nMiller: 3", "row\nMiller",
]  # fmt: skip


@settings(max_examples=40)
@given(st.text(max_size=60).filter(lambda text: "fedkern_flwr.errors" not in text))
def test_no_foreign_text_leaks_or_is_taken_for_the_class(drawn: str) -> None:
    for text in (drawn, *QUOTED):
        assert raised(f"<class 'ValueError'>:<'{text}'>").detail == "ValueError"


MARKED = mark_error("TableError: partition 2: NaN values; clean the table")


@pytest.mark.parametrize("reason", [
    f"<class 'fedkern_flwr.errors.TableError'>:<'{MARKED}'>",
    RAY.format(name="fedkern_flwr.errors.TableError", text=MARKED),
    f"<class 'flwr.ClientAppException'>:<'\nException occurred. Message: {MARKED}'>",
])  # fmt: skip
def test_the_text_that_a_client_marks_as_safe_is_kept(reason: str) -> None:
    detail = "TableError: partition 2: NaN values; clean the table"
    assert raised(reason) == Failure("raised", detail)
    assert str(raised(reason)) == f"raised {detail}"


def test_the_ledger_counts_the_bytes_of_every_array() -> None:
    arrays = [np.zeros((3, 4), np.float32), np.zeros(5)]
    up = reply("a", node=1000, arrays=arrays)
    sizes = [len(array.data) for array in up.content["fitres.parameters"].values()]  # type: ignore[union-attr]
    assert exchanging.payload_bytes(up) == sum(sizes)
    assert sum(sizes) >= sum(a.nbytes for a in arrays)
    error = reply("c", error=Error(2, "ValueError"), node=1002)
    pulls = [[up, reply("b", node=1001, arrays=arrays), error]]
    _, ledger, _ = run(pulls, nodes=3, arrays=ArrayRecord(arrays))
    assert (ledger.bytes_down, ledger.bytes_up) == (3 * sum(sizes), 2 * sum(sizes))
    assert Ledger.from_dict(ledger.to_dict()) == ledger


def test_a_copy_of_the_ledger_stays_as_it_was() -> None:
    """A snapshot waits for its clients while the run goes on counting."""
    ledger = Ledger()
    ledger.add_failure(0, "raised")
    snapshot = ledger.to_dict()
    ledger.add_failure(0, "raised")
    ledger.add_failure(1, "raised")
    ledger.by_phase["x"] += 1
    assert snapshot["failures"] == {"0": {"raised": 1}}
    assert snapshot["by_phase"] == {}


def test_a_reply_of_another_client_is_refused() -> None:
    message = Message(RecordDict({"metrics": ConfigRecord({"a": 1})}), 1, "train")
    refuses("FK-NODE-FOREIGN", exchanging.read_reply, PersonalReply, message, party="partition 3")


def npy(value: np.ndarray) -> bytes:
    return ArrayRecord([value])["0"].data


def header(shape: str, descr: str = "<f8") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


DAMAGED = {
    "nothing": b"", "a zip": b"PK\x03\x04x", "huge": header(f"({10**15},)"),
    "beyond any integer": header(f"({10**30},)"), "negative": header("(-1,)"),
    "no Python": header("(((("), "objects": header("(1,)", "|O") + bytes(8),
    "too short": npy(np.zeros(3))[:-1], "too long": npy(np.zeros(3)) + b"x",
    "another version": b"\x93NUMPY\x02\x00" + npy(np.zeros(3))[8:],
}  # fmt: skip


@pytest.mark.promise("messages-sizes")
@pytest.mark.parametrize("what", DAMAGED)
def test_arrays_that_are_none_are_refused_without_asking_for_memory(what: str) -> None:
    """NumPy's own reader raises half a dozen exceptions here, or reserves a petabyte."""
    record = ArrayRecord([np.zeros(1)])
    record["0"].data = DAMAGED[what]
    with pytest.raises(ValueError, match="not an array"):
        read_array(record["0"])
    message = reply("a", node=7, phase="online-personal", protocol=PROTOCOL_VERSION)
    message.content["fitres.parameters"] = record
    refuses("FK-NODE-FOREIGN", exchanging.read_reply, PersonalReply, message, party="partition 3")
    message.content["fitres.metrics"]["sections"] = '[["sum-upload", 1, {}]]'  # type: ignore[index]
    refuses("FK-MESSAGE-DAMAGED", take_sections, message, party="partition 3")


def test_what_is_taken_out_of_a_reply_is_counted_and_gone() -> None:
    arrays = [np.zeros(3), np.arange(4, dtype=np.uint64)]
    up = reply("a", node=1000, arrays=arrays, phase="p", **{"0.shares": b"12345"})
    up.content["fitres.metrics"]["sections"] = '[["s", 1, {}]]'  # type: ignore[index]
    taken: list[Any] = []
    take = lambda node, m: taken.extend(take_sections(m, party="x"))  # noqa: E731
    outcome, ledger, _ = run([[up]], nodes=1, on_reply=take)
    assert ledger.bytes_up == len(npy(arrays[0])) + len(npy(arrays[1])) + 5
    np.testing.assert_array_equal(taken[0].arrays[0], arrays[1])
    left = outcome.replies[1000].content
    assert len(left["fitres.parameters"]) == 1  # type: ignore[arg-type]
    assert dict(left["fitres.metrics"]) == {"phase": "p"}  # type: ignore[arg-type]


def test_a_reply_that_cannot_be_used_is_a_failure_and_enough_is_enough() -> None:
    def refuse(node: int, message: Message) -> None:
        if node == 1000:
            raise ProtocolError("it is too large")

    replies, started = [[reply("a", node=1000), reply("b", node=1001)]], time.monotonic()
    outcome, _, _ = run(replies, nodes=3, timeout=30, on_reply=refuse, enough=lambda: True)
    assert list(outcome.replies) == [1001]
    assert outcome.failures == {1000: Failure("invalid reply", "it is too large")}
    assert time.monotonic() - started < 5


def test_who_is_only_told_something_is_not_waited_for_long(monkeypatch: Any) -> None:
    monkeypatch.setattr("fedkern_flwr.transport.FAREWELL", 0.0)
    refused = reply("b", error=Error(500, "no"), node=1001)
    pulls, started = [[refused], [reply("a", node=1000)]], time.monotonic()
    outcome, _, _ = run(pulls, nodes=3, timeout=30, idle={1001, 1002})
    assert (list(outcome.replies), outcome.failures) == ([1000], {})
    assert time.monotonic() - started < 5


# -- messages under way


def ask(*nodes: int) -> list[Message]:
    return request_messages(REQUEST, nodes, group_id="g")


def test_messages_are_sent_while_others_are_waited_for() -> None:
    pulls = [[], [reply("m2", node=2)], [reply("m3", node=1), reply("m1", node=1)]]
    (post, grid, ledger), outcome = courier(pulls), Outcome()
    assert post.send(ask(1, 2), phase="a") == {}
    assert post.waiting == [1, 2]
    assert [post.collect(outcome) for _ in range(2)] == [0, 1]
    assert set(outcome.replies) == {2}
    assert post.waiting == [1]
    assert post.send(ask(2), phase="b") == {}
    assert post.waiting == [1, 2]
    outcome = Outcome()
    assert post.collect(outcome) == 2
    assert post.waiting == []
    assert outcome.replies[2].metadata.reply_to_message_id == "m3"
    assert outcome.replies[1].metadata.reply_to_message_id == "m1"
    assert grid.asked == [{"m1", "m2"}, {"m1", "m2"}, {"m1", "m3"}]
    assert (ledger.exchanges, ledger.messages, ledger.seconds) == (2, 3, 0.0)
    assert ledger.by_phase == {"a": 1, "b": 1}


def test_a_node_that_stays_disconnected_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanging, "_LOOK", 0.0)
    began = time.monotonic()
    looks = [{1000, 1001}, {1000}]
    outcome, _, _ = run([[reply("a", node=1000)]], looks=looks, timeout=30.0)
    assert outcome.failures == {1001: Failure("unreachable", "(disconnected)")}
    assert list(outcome.replies) == [1000]
    assert time.monotonic() < began + 20


def test_a_node_that_is_back_at_the_next_look_is_waited_for(monkeypatch: Any) -> None:
    monkeypatch.setattr(exchanging, "_LOOK", 0.0)
    away, there = {1000}, {1000, 1001}
    pulls = [[reply("a", node=1000)], [], [], [], [reply("b", node=1001)]]
    outcome, _, _ = run(pulls, looks=[away, there, away, there], timeout=1.0)
    assert outcome.failures == {}
    assert sorted(outcome.replies) == [1000, 1001]


@given(
    dtype=st.sampled_from(["<f4", "<f8", ">f8", "<i4", "<u2", "<u8", "|b1", "<U3"]),
    shape=st.lists(st.integers(0, 4), max_size=3),
    order=st.sampled_from(["C", "F", "every other"]),
)
def test_arrays_travel_as_flower_writes_them(dtype: str, shape: list[int], order: str) -> None:
    value = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    value = np.asfortranarray(value) if order == "F" else value
    value = value[::2] if order == "every other" and shape else value
    theirs, ours = ArrayRecord([value, value]), array_record([value, value])
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        assert vars(array) == vars(theirs[name])
        if dtype not in (">f8", "<U3"):  # which no message of ours has
            found = read_array(array)
            assert found.dtype == value.dtype
            np.testing.assert_array_equal(found, value)


# -- the start of a run: waiting for nodes and asking each who it is


class LateGrid:
    """A grid whose nodes appear one after the other."""

    def __init__(self, *answers: Table, per_call: int = 1) -> None:
        self.answers, self.there, self.per_call = answers, 0, per_call

    def get_node_ids(self) -> Iterable[int]:
        self.there = min(len(self.answers), self.there + self.per_call)
        return [1000 + k for k in reversed(range(self.there))]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [str(m.metadata.dst_node_id) for m in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply(i, node=int(i), **self.answers[int(i) - 1000]) for i in message_ids]


def description(partition: int) -> Table:
    made: Table = {"int": 5, "str": "c", "bool": True, "bytes": b"", "float": 1.0}
    values = {f.name: made[str(f.type)] for f in fields(DescribeReply)}
    return DescribeReply(
        **{**values, "partition": partition, "partitions": 3, "name": ""}
    ).scalars()


def gather(grid: LateGrid, timeout: float = 5.0) -> dict[int, DescribeReply]:
    nodes = Nodes("m", node_timeout=timeout)
    nodes.gather(grid)  # type: ignore[arg-type]
    return nodes.parties


def test_nodes_that_come_late_are_awaited_and_sorted_by_partition() -> None:
    parties = gather(LateGrid(*map(description, (2, 0, 1))))
    assert [p.partition for p in parties.values()] == [0, 1, 2]
    assert list(parties) == [1001, 1002, 1000]


def test_nodes_that_never_come_are_named(caplog: Any) -> None:
    caplog.set_level(logging.INFO, "flwr")
    with refused("FK-PARTITION-MISSING"):
        gather(LateGrid(description(2), description(0), per_call=2), timeout=0.3)
    refuses("FK-PARTIES-AWAITED", gather, LateGrid(), timeout=0.3)
    assert "waiting for nodes: 0 of 1" in caplog.messages


@pytest.mark.parametrize("name", ["partition 1", "Nord: 2 (partition 1)"])
def test_a_node_that_fails_at_the_start_stops_the_run(name: str) -> None:
    text = mark_error(f"TableError: {name}: NaN values [FK-VALUES-MISSING]")
    bad = Error(2, f"<class 'fedkern_flwr.errors.TableError'>:<'{text}'>")
    with refused("FK-VALUES-MISSING", kind=RefusedError) as caught:
        gather(LateGrid(description(0), {"error": bad}, description(2), per_call=3))
    assert caught.value.party == name
    assert str(caught.value) == f"{name}, phase describe: NaN values [FK-VALUES-MISSING]"


def test_a_node_that_trusts_no_signature_of_the_app_is_named() -> None:
    unsigned = {"error": Error(7, "The FAB could not be verified.")}  # as Flower says it
    with refused("FK-APP-UNSIGNED", kind=RefusedError) as caught:
        gather(LateGrid(description(0), unsigned, description(2), per_call=3))
    assert caught.value.party.startswith("node ")


def named(partition: int, name: str) -> dict[str, Any]:
    return {**description(partition), "name": name}


def test_nodes_are_called_by_name_and_partition() -> None:
    parties = gather(LateGrid(named(0, "north"), named(1, ""), named(2, "Süd 2"), per_call=3))
    assert [p.called for p in parties.values()] == [
        "north (partition 0)", "partition 1", "Süd 2 (partition 2)",
    ]  # fmt: skip


def test_a_node_of_an_earlier_release_has_no_name() -> None:
    old = [description(k) for k in range(3)]
    for one in old:
        del one["name"]
    assert {p.name for p in gather(LateGrid(*old, per_call=3)).values()} == {""}


@pytest.mark.promise("faults-code-of-a-node")
def test_a_long_text_keeps_its_code() -> None:
    said = f"TableError: partition 1: {'many columns, ' * 60}and more [FK-COLUMN-MISSING]"
    failure = Failure("raised", said)
    assert len(failure.detail) <= 500
    refuses("FK-COLUMN-MISSING", failure.raise_final, "fit")
    endless = Failure("raised", f"TableError: {'a' * 600} [FK-{'A' * 600}]")
    assert len(endless.detail) <= 500
    assert Failure("raised", "TableError: a.csv: no rows").told == "a.csv: no rows"
    assert Failure("invalid reply", "field x: 3").told == ""  # no words of the node's


# -- what is used of Flower that it does not promise: each fails here first, and says what broke

its_servers = pytest.mark.app  # they are loaded: 70 MB, which no other test of one process needs

#: Module, what its text has, and what goes wrong else.
TEXTS = [
    ("supernode.cli.flwr_clientapp", "run_clientapp(", "messages of warm nodes are not answered"),
    ("supercore.superexec.run_superexec", "/flwr.proto.Runtime/AcquireTask", "no tasks"),
    ("supercore.superexec.run_superexec", "VersionHttpInterceptor(component_name", "no tasks"),
    ("supercore.retry.http_retry", "UNAUTHORIZED", "an end is explained wrongly"),
    ("supercore.retry.http_retry", "os.kill(os.getpid(), signal.SIGINT)", "as wrongly"),
]


@its_servers
@pytest.mark.parametrize(("name", "text", "otherwise"), TEXTS)
def test_flower_does_as_its_text_says(name: str, text: str, otherwise: str) -> None:
    assert text in inspect.getsource(import_module(f"flwr.{name}")), otherwise


def test_tasks_are_of_the_client_app_and_of_a_supernode_that_is_there() -> None:
    assert TaskType.CLIENT_APP == "flwr-clientapp"
    with pytest.raises(ConnectionError):
        flower_compat.TaskQueue("127.0.0.1:1", b"secret").take()


@its_servers
def test_a_supernode_takes_what_a_warm_node_gives_it() -> None:
    module = import_module("flwr.supernode.cli.flower_supernode")
    parser = module._parse_args_run_supernode()
    arguments = "--isolation process --host 127.0.0.1 --port 1 --superexec-auth-secret-file f"
    arguments += " --superlink h:1 --node-config k=1 --root-certificates c"
    arguments += " --auth-supernode-private-key k"
    found = vars(parser.parse_args(arguments.split()))
    assert (found["isolation"], found["superexec_auth_secret_file"]) == ("process", "f")


@its_servers
def test_a_grid_waits_for_parts_of_a_reply(monkeypatch: Any) -> None:
    """Else an exchange takes a second more whenever the server is quicker than a SuperNode."""

    class Runtime:
        def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
            seen.append(request.object_id)
            there = len(seen) > 3 or request.object_id == "gone"
            return PullObjectResponse(
                object_found=request.object_id != "gone", object_available=there
            )

    seen: list[str] = []
    monkeypatch.setattr(flower_compat, "_LOOK", 0.0)
    kind = import_module("flwr.superlink.grid.http_grid").HttpGrid
    grid = kind(token="t")
    grid.__dict__["_client"] = Runtime()
    patient = flower_compat.patient(grid)
    pull = "pull_object_protobuf=self._runtime_client.PullObject"
    assert pull in inspect.getsource(kind.pull_messages), "a grid pulls otherwise now"
    assert patient._runtime_client.PullObject(PullObjectRequest(object_id="a")).object_available
    assert seen == ["a"] * 4
    assert not patient._runtime_client.PullObject(PullObjectRequest(object_id="gone")).object_found
    assert flower_compat.patient(object()) is None
    assert isinstance(grid.__dict__["_client"], Runtime), "Flower's own grid is left as it is"
