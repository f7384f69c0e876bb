"""Deployments: nodes that are away are awaited, silent ones asked again, and the log says so.

On a grid whose nodes are there, and answer, at times of a clock that only waiting moves.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from refusals import raises, refused, refuses
from scripted_grid import Clock, reply
from summing_nodes import Mean, MeanClient

from fedkern_flwr.failure import Failure, mark_error
from fedkern_flwr.flower_compat import set_task_identity
from fedkern_flwr.log_lines import log_as
from fedkern_flwr.simulations import InProcessGrid
from fedkern_flwr.simulations.engines.in_process import DirectApp
from fedkern_flwr.transport import Courier, Outcome, exchange, request_messages
from fedkern_flwr.watch import Ledger, Watch
from fedkern_flwr.wire import DescribeRequest

REQUEST = DescribeRequest(session="s", method="m", resume_round=0)
NORTH, SOUTH = 1000, 1001
NAMES = {NORTH: "north (partition 0)", SOUTH: "south (partition 1)"}
ALWAYS = [(0.0, 1e9)]
#: What nodes say of a request that they have answered before.
DONE = Error(2, mark_error("ProtocolError: partition 0: done already [FK-MESSAGE-ORDER]"))
LOST = Failure("unreachable", "(its answer was lost)")
GONE = Error(5, "Node Unavailable")
#: What is said for a client that was killed: by Flower after a while, by a warm node at once.
KILLED = [
    Error(8, "ClientApp stopped responding."),
    Error(2, mark_error("EngineError: it was ended by signal 9 [FK-NODE-ENDED]")),
]


@dataclass
class Node:
    """When it is there, and after how many seconds it answers a request with what.

    The last of the answers is that to all further requests.
    """

    there: list[tuple[float, float]] = field(default_factory=lambda: list(ALWAYS))
    answers: list[tuple[float, Error | None]] = field(default_factory=lambda: [(0.1, None)])
    refuses: bool = False  # a SuperLink that does not know it takes no message for it

    def is_there(self, now: float) -> bool:
        return any(start <= now < end for start, end in self.there)


class Fleet:
    """A SuperLink and its nodes."""

    def __init__(self, clock: Clock, **nodes: Node) -> None:
        self.clock, self.nodes = clock, {NORTH: nodes["north"], SOUTH: nodes.get("south", Node())}
        self.sent: list[tuple[float, int]] = []
        self._under_way: dict[str, tuple[int, float, Message]] = {}
        self.sizes: set[int] = set()

    def get_node_ids(self) -> Iterable[int]:
        return [n for n, node in self.nodes.items() if node.is_there(self.clock.now)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            to = message.metadata.dst_node_id
            node, name = self.nodes[to], f"m{len(self.sent)}"
            there = node.is_there(self.clock.now)
            self.sent.append((self.clock.now, to))
            self.sizes.add(len(message.content))
            names.append("" if node.refuses and not there else name)
            if not there:
                self._under_way[name] = to, 0.0, reply(name, error=GONE, node=1)
            elif node.answers:
                seconds, error = node.answers[0]
                del node.answers[: len(node.answers) > 1]
                came = reply(name, error=error, node=to)
                self._under_way[name] = to, self.clock.now + seconds, came
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies in the reverse order, so that a later copy's comes first.

        Who asks for the answer of a node that is away is told so, and the request is forgotten.
        """
        for name in set(message_ids) & self._under_way.keys():
            to, at, _ = self._under_way[name]
            if at > self.clock.now and not self.nodes[to].is_there(self.clock.now):
                self._under_way[name] = to, 0.0, reply(name, error=GONE, node=1)
        due = [i for i in sorted(message_ids, reverse=True) if i in self._under_way]
        due = [i for i in due if self._under_way[i][1] <= self.clock.now]
        return [self._under_way.pop(i)[2] for i in due]

    def asked(self, node: int) -> list[float]:
        """At which seconds a node was asked, rounded down to tens."""
        return [10 * (at // 10) for at, to in self.sent if to == node]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    set_task_identity(1, 1)
    clock = Clock()
    monkeypatch.setattr("fedkern_flwr.transport.time", clock)
    monkeypatch.setattr("fedkern_flwr.watch.time", clock)
    return clock


def watching(ledger: Ledger, **more: Any) -> Watch:
    watch = Watch(120.0, lambda node: NAMES[node], ledger, **more)
    watch.answered(NORTH, 0.5)  # so that it is known how long an answer takes
    return watch


def run(fleet: Fleet, watch: Watch, timeout: float = 3600.0, **more: Any) -> Outcome:
    messages = request_messages(REQUEST, fleet.nodes, group_id="g")
    how: Any = {"phase": "fit", "timeout": timeout, "ledger": watch.ledger, "watch": watch}
    return exchange(fleet, messages, **how, **more)  # type: ignore[arg-type]


# -- away


@pytest.mark.promise("away-awaited")
@pytest.mark.parametrize("refuses", [False, True])
def test_a_node_that_is_away_is_awaited_and_asked_again(clock: Clock, refuses: bool) -> None:
    fleet = Fleet(clock, north=Node(there=[(75.0, 1e9)], refuses=refuses))
    watch = watching(Ledger())
    outcome = run(fleet, watch, timeout=20.0)
    assert (set(outcome.replies), outcome.failures) == ({NORTH, SOUTH}, {})
    assert fleet.asked(NORTH) == [0.0, 80.0]
    assert fleet.asked(SOUTH) == [0.0]
    assert (watch.ledger.exchanges, watch.ledger.messages) == (1, 3)
    assert len(fleet.sizes) == 1  # the same content


def test_a_node_that_goes_while_it_works_is_asked_again_when_it_is_back(clock: Clock) -> None:
    """Its heartbeats are missing for a minute; what it was asked is lost at the SuperLink."""
    node = Node(there=[(0.0, 15.0), (60.0, 1e9)], answers=[(40.0, GONE), (5.0, None)])
    outcome = run(Fleet(clock, north=node), watching(Ledger()))
    assert outcome.failures == {}
    assert 60.0 < clock.now < 80.0


def test_a_node_that_one_look_misses_is_not_asked_again(clock: Clock) -> None:
    node = Node(there=[(0.0, 9.0), (12.0, 1e9)], answers=[(35.0, None)])
    watch = watching(Ledger())
    watch.answered(NORTH, 10.0)
    fleet = Fleet(clock, north=node)
    assert run(fleet, watch).failures == {}
    assert fleet.asked(NORTH) == [0.0]


def test_the_answer_of_a_node_that_was_cut_off_for_a_while_is_not_lost(clock: Clock) -> None:
    """It went on to work: a copy of the request would be refused as done already."""
    north = Node(there=[(0.0, 5.0), (18.0, 1e9)], answers=[(19.0, None), (9.0, DONE)])
    fleet, ledger = Fleet(clock, north=north), Ledger()
    outcome = run(fleet, watching(ledger))
    assert (set(outcome.replies), outcome.failures) == ({NORTH, SOUTH}, {})
    assert fleet.asked(NORTH) == [0.0]


@pytest.mark.promise("away-awaited")
def test_a_party_that_is_gone_is_awaited_once(clock: Clock) -> None:
    fleet, watch = Fleet(clock, north=Node(there=[])), watching(Ledger())
    outcome = run(fleet, watch)
    assert outcome.failures == {NORTH: Failure("unreachable", "(away for 120 s)")}
    assert 120.0 <= clock.now < 140.0
    for _ in range(3):
        before = clock.now
        assert set(run(fleet, watch).failures) == {NORTH}
        assert clock.now < before + 1.0
    fleet.nodes[NORTH] = Node(answers=[(0.1, None)])
    assert run(fleet, watch).failures == {}  # it is back
    fleet.nodes[NORTH], before = Node(there=[(clock.now + 40.0, 1e9)]), clock.now
    assert run(fleet, watch).failures == {}
    assert clock.now > before + 40.0


def test_who_is_not_needed_or_only_told_is_not_awaited(clock: Clock) -> None:
    fleet = Fleet(clock, north=Node(there=[]))
    outcome = run(fleet, watching(Ledger()), enough=lambda: True)
    assert (set(outcome.replies), outcome.failures) == ({SOUTH}, {})
    assert clock.now < 10.0
    assert run(fleet, watching(Ledger()), idle=[NORTH]).failures == {}
    assert clock.now < 20.0


# -- silent


@pytest.mark.promise("silent-asked-again")
def test_a_silent_node_is_asked_again_and_the_first_answer_counts(clock: Clock) -> None:
    """Both answers are there when they are asked for, the refusal of the second copy before."""
    fleet = Fleet(clock, north=Node(answers=[(29.95, None), (10.0, DONE)]))
    watch = watching(Ledger())
    outcome = run(fleet, watch)
    assert fleet.asked(NORTH) == [0.0, 20.0]
    assert (set(outcome.replies), outcome.failures) == ({NORTH, SOUTH}, {})
    assert outcome.replies[NORTH].metadata.reply_to_message_id == "m0"


def test_a_refused_copy_waits_for_the_answer_to_the_first(clock: Clock) -> None:
    fleet = Fleet(clock, north=Node(answers=[(20.45, None), (0.0, DONE)]))
    assert run(fleet, watching(Ledger())).failures == {}


@pytest.mark.promise("silent-asked-again")
def test_a_request_that_was_lost_is_answered_at_the_second_time(clock: Clock) -> None:
    fleet = Fleet(clock, north=Node(answers=[(1e9, None), (0.5, None)]))
    outcome = run(fleet, watching(Ledger()))
    assert (outcome.failures, clock.now < 30.0) == ({}, True)


def test_an_answer_that_was_lost_is_a_failure_after_which_the_run_asks_anew(clock: Clock) -> None:
    fleet = Fleet(clock, north=Node(answers=[(1e9, None), (0.5, DONE)]))
    outcome = run(fleet, watching(Ledger()))
    assert outcome.failures == {NORTH: LOST}
    LOST.raise_final("fit")  # does not end the run
    first = Fleet(clock, north=Node(answers=[(0.5, DONE)]))
    found = run(first, watching(Ledger())).failures[NORTH]  # here it is no copy that is refused
    refuses("FK-MESSAGE-ORDER", found.raise_final, "fit")


def test_it_is_asked_at_growing_distances_a_few_times(clock: Clock) -> None:
    fleet = Fleet(clock, north=Node(answers=[]))
    outcome = run(fleet, watching(Ledger()), timeout=1000.0)
    assert outcome.failures == {NORTH: Failure("timed out", "after 1000 s")}
    assert fleet.asked(NORTH) == [0.0, 20.0, 60.0, 150.0]  # 20, 40 and 80 s, and a look each
    slow = watching(Ledger())
    slow.answered(SOUTH, 30.0)
    fleet = Fleet(clock, north=Node(answers=[]))
    begun = clock.now
    run(fleet, slow, timeout=500.0)
    times = [at - begun for at, to in fleet.sent if to == NORTH]
    assert [round(at / 50) for at in times] == [0, 3, 9]  # after 5 x 30 s, and twice that


def test_at_the_start_a_node_may_read_its_table_for_a_while(clock: Clock) -> None:
    watch = Watch(120.0, str, Ledger())
    fleet = Fleet(clock, north=Node(answers=[(50.0, None)]), south=Node(answers=[(50.0, None)]))
    assert run(fleet, watch).failures == {}
    assert len(fleet.sent) == 2


@pytest.mark.parametrize("said", KILLED)
def test_a_killed_process_is_asked_again_at_once_and_once(clock: Clock, said: Error) -> None:
    fleet = Fleet(clock, north=Node(answers=[(1.0, said), (1.0, None)]))
    assert run(fleet, watching(Ledger())).failures == {}
    assert clock.now < 5.0
    fleet = Fleet(clock, north=Node(answers=[(1.0, said)]))
    failure = run(fleet, watching(Ledger())).failures[NORTH]
    assert failure.kind == "raised"
    assert clock.now < 10.0


def test_a_process_that_is_killed_while_a_copy_waits_is_no_failure(clock: Clock) -> None:
    """The copy waits at the node behind it, and is answered next."""
    fleet = Fleet(clock, north=Node(answers=[(25.0, KILLED[1]), (7.0, None)]))
    assert run(fleet, watching(Ledger())).failures == {}
    assert fleet.asked(NORTH) == [0.0, 20.0]


def test_a_process_is_killed_after_its_node_was_away(clock: Clock) -> None:
    node = Node(answers=[(5.0, GONE), (1.0, KILLED[1]), (1.0, None)])
    assert run(Fleet(clock, north=node), watching(Ledger())).failures == {}


def test_a_node_that_every_time_goes_away_fails_in_the_end(clock: Clock) -> None:
    """The request is what ends it, for want of memory; it is started again and asked again."""
    node = Node(answers=[(5.0, GONE)])
    outcome = run(Fleet(clock, north=node), watching(Ledger()), timeout=1e9)
    assert outcome.failures[NORTH].kind == "unreachable"
    assert clock.now < 600.0


def test_a_copy_that_cannot_be_sent_is_sent_when_the_node_is_back(clock: Clock) -> None:
    """It is gone between the look that found it and the copy."""

    class Late(Fleet):
        def get_node_ids(self) -> Iterable[int]:
            return [NORTH, SOUTH]

    node = Node(there=[(0.0, 4.0), (45.0, 1e9)], answers=[(5.0, GONE), (0.1, None)], refuses=True)
    assert run(Late(clock, north=node), watching(Ledger())).failures == {}
    assert clock.now < 70.0


def test_what_is_forgotten_is_so_with_all_its_copies(clock: Clock) -> None:
    fleet = Fleet(clock, north=Node(answers=[(30.0, None), (30.0, None)]))
    watch, outcome = watching(Ledger()), Outcome()
    courier = Courier(fleet, watch.ledger, watch=watch)  # type: ignore[arg-type]
    courier.send(request_messages(REQUEST, [NORTH], group_id="g"), phase="a")
    clock.now = 25.0
    assert courier.collect(outcome) == 0
    assert len(fleet.sent) == 2
    courier.forget([NORTH])
    clock.now = 100.0
    assert (courier.collect(outcome), courier.waiting, outcome) == (0, [], Outcome())


# -- what is said


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "flwr"]


def test_a_line_says_who_is_awaited(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flwr")
    run(Fleet(clock, north=Node(there=[(45.0, 1e9)])), watching(Ledger()))
    waits = [line for line in lines(caplog) if line.startswith("waiting for")]
    assert [int(line.split(" s:")[0].split()[-1]) // 10 for line in waits] == [1, 2, 3, 4, 5]
    for part in ("north (partition 0), ", "(fit)", "1 of 2", "not connected"):
        assert part in waits[0]
    assert "south" not in waits[0]
    (over,) = [line for line in lines(caplog) if line not in waits]
    for part in ("exchange 1", "(fit)", "2 of 2"):
        assert part in over


def test_a_long_run_says_a_line_at_times(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flwr")
    watch = watching(Ledger())
    fleet = Fleet(clock, north=Node(answers=[(0.5, None)]))
    for _ in range(50):
        run(fleet, watch)
    assert len(lines(caplog)) == 50
    begun = clock.now
    for _ in range(100):
        run(fleet, watch)
    assert len(lines(caplog)) - 50 == pytest.approx((clock.now - begun) / 10.0, abs=1.5)


def test_failures_are_said_with_their_names(clock: Clock, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "flwr")
    run(
        Fleet(clock, north=Node(answers=[(0.1, Error(2, "<class 'KeyError'>"))])),
        watching(Ledger()),
    )
    assert "north (partition 0) raised KeyError" in lines(caplog)[-1]


@pytest.fixture
def loggers() -> Any:
    """Loggers that are put back as they were."""
    known = [logging.getLogger(name) for name in ("flwr", "fedkern_flwr")]
    before = [(one, one.handlers[:], one.propagate, one.level) for one in known]
    known[0].setLevel(logging.INFO)  # simulations of other tests have it quiet
    yield known
    for logger, handlers, propagate, level in before:
        logger.handlers[:], logger.propagate, logger.level = handlers, propagate, level


def test_in_json_a_line_is_an_object(clock: Clock, capsys: Any, loggers: Any) -> None:
    log_as("json", 2**63 + 1)
    run(Fleet(clock, north=Node(there=[(25.0, 1e9)])), watching(Ledger()))
    logging.getLogger("fedkern_flwr").warning("two\nlines")
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(one["level"], one["source"], one["run"]) for one in told[:-1]} == {
        ("INFO", "coordinator", str(2**63 + 1))
    }
    assert told[0]["awaited"] == ["north (partition 0)"]
    over = told[-2]
    assert (over["exchange"], over["phase"], over["answered"]) == (1, "fit", 2)
    assert over["seconds"] > 25.0
    assert (told[-1]["text"], told[-1]["level"]) == ("two\nlines", "WARNING")
    refuses("FK-OPTION-CHOICE", log_as, "xml", 1)


def test_a_line_that_fails_ends_no_run(clock: Clock, monkeypatch: Any, loggers: Any) -> None:
    """The name of a node has letters that the server's terminal lacks."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    log_as("json", 1)
    watch = Watch(120.0, lambda node: "k\u00f6ln (partition 0)", Ledger())
    fleet = Fleet(clock, north=Node(answers=[(15.0, None)]))
    assert run(fleet, watch).failures == {}


def test_text_has_the_time(loggers: Any, capsys: Any) -> None:
    from flwr.supercore.logger import console_handler

    before = console_handler.timestamps
    try:
        log_as("text", 1)
        record = logging.LogRecord("flwr", logging.INFO, "", 1, "hello", None, None)
        assert ":" in console_handler.format(record).partition("INFO")[2].partition(",")[0]
    finally:
        console_handler.timestamps = before


def figures(file: Path) -> dict[str, float]:
    rows = [row.split() for row in file.read_text().splitlines() if not row.startswith("#")]
    return {name.removeprefix("fedkern_run_"): float(value) for name, value in rows}


def test_prometheus_gets_figures_of_the_run(clock: Clock, tmp_path: Path) -> None:
    file, ledger = tmp_path / "run.prom", Ledger()
    watch = watching(ledger, figures=file)
    north = Node(there=[(25.0, 1e9)])
    run(Fleet(clock, north=north), watch)
    assert figures(file)["awaited_parties"] == 1.0  # a moment ago
    watch.close()
    assert figures(file) == {
        "exchanges_total": 1.0, "wait_seconds_total": pytest.approx(ledger.seconds),
        "received_bytes_total": ledger.bytes_up, "sent_bytes_total": ledger.bytes_down,
        "failures_total": 0.0, "online_parties": 0.0, "awaited_parties": 0.0,
        "last_exchange_timestamp_seconds": pytest.approx(clock.now, abs=1.0),
    }  # fmt: skip
    text = file.read_text()
    run(Fleet(clock, north=Node()), watch)
    assert file.read_text() == text  # a moment ago
    assert [path.name for path in tmp_path.iterdir()] == ["run.prom"]


def test_figures_that_cannot_be_written_end_no_run(clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    watch = watching(Ledger(), figures=tmp_path / "taken" / "run.prom")
    assert run(Fleet(clock, north=Node()), watch).failures == {}


# -- runs


ROWS = np.random.default_rng(1).random((4, 10, 2))


class Deployed(InProcessGrid):
    """Nodes in this process, as a deployment has them: some are away at times."""

    simulation = False

    def __init__(self, clock: Clock, away: Callable[[int, float], bool]) -> None:
        def client(context: Context) -> Any:
            own = ROWS[int(context.node_config["partition-id"])]
            return MeanClient(context, x=own, x_test=own[:5], columns=("a", "b"))

        super().__init__(DirectApp(client), len(ROWS))
        self.clock, self.away = clock, away
        names = ("north", "south", "east", "west")
        for name, context in zip(names, self.contexts.values(), strict=True):
            context.node_config["name"] = name

    def _is_away(self, node: int) -> bool:
        return self.away(int(self.contexts[node].node_config["partition-id"]), self.clock.now)

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.contexts if not self._is_away(node)]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        gone, there = [], []
        for name in message_ids:
            message = self._queue.get(name)
            if message is not None and self._is_away(message.metadata.dst_node_id):
                gone.append(Message(GONE, reply_to=self._queue.pop(name)))
            else:
                there.append(name)
        return [*gone, *super().pull_messages(there)]


def test_a_run_goes_on_when_a_node_is_back(clock: Clock) -> None:
    whole, own = Mean(times=3), Mean(times=3, attempts=1)
    whole.start(Deployed(clock, lambda partition, now: False))
    away = [(5.0, 60.0), (100.0, 190.0)]

    def is_away(partition: int, now: float) -> bool:
        clock.now += 0.5  # each look takes a while
        return partition == 1 and any(start < now < end for start, end in away)

    own.start(Deployed(clock, is_away))
    assert clock.now > 60.0
    assert own.ledger_.failures == {}
    np.testing.assert_array_equal(own.model_["mean"], whole.model_["mean"])


def test_a_stream_of_rounds_waits_once_for_a_party_that_is_gone(clock: Clock) -> None:
    """It is left out after some rounds, and costs its waiting once."""
    rounds = 0

    def is_away(partition: int, now: float) -> bool:
        return partition == 3 and rounds > 0

    strategy = Mean(times=30, attempts=1, threshold=3)

    class Counting(Deployed):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            nonlocal rounds
            listed = list(messages)
            rounds += "rows" in str(listed[0].content)
            return super().push_messages(listed)

    strategy.start(Counting(clock, is_away))
    assert 120.0 <= clock.now < 150.0
    assert sum(strategy.ledger_.failures["3"].values()) > 1
    assert strategy.metrics_["rows"] == 30


@pytest.mark.parametrize("error", [KeyboardInterrupt, KeyError])
def test_the_figures_of_a_run_that_is_stopped_await_nobody(
    clock: Clock, tmp_path: Path, error: type[BaseException]
) -> None:
    def stops(done: int, total: int, metrics: Any) -> None:
        raise error

    strategy = Mean(times=3)
    strategy.figures, strategy.on_round = tmp_path / "run.prom", stops
    raises(error, strategy.start, Deployed(clock, lambda partition, now: False))
    assert figures(tmp_path / "run.prom")["online_parties"] == 0.0


@pytest.mark.parametrize("name", ["n" * 41, "two\nlines", "\x1b[31m"])
def test_the_name_of_a_node_is_a_short_plain_line(name: str) -> None:
    config = {"partition-id": 0, "num-partitions": 2}
    own = MeanClient(Context(1, 1, {**config, "name": "n" * 40}, RecordDict(), {}), x=ROWS[0])
    assert own.name == f"{'n' * 40} (partition 0)"
    with refused("FK-NODE-NAME"):
        MeanClient(Context(1, 1, {**config, "name": name}, RecordDict(), {}), x=ROWS[0])
