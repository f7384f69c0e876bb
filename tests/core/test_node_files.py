"""A node and its server's last words: configuration, secrets, results, full disks and signals."""

from __future__ import annotations

import csv
import errno
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import mod as stock
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused, refuses

import fedkern_flwr.strategies  # noqa: F401 - of an app's server
from fedkern_flwr import __version__, checkpoint, flower_compat, node_config
from fedkern_flwr.checkpoint import plain_cell, write_csv
from fedkern_flwr.clients import KernelPCAClient, serve
from fedkern_flwr.encoding.columns import Number
from fedkern_flwr.errors import FedKernError, OptionError, ProtocolError, TableError
from fedkern_flwr.failure import mark_error, read_error
from fedkern_flwr.flower_compat import set_task_identity
from fedkern_flwr.model_file import load_model, save_model
from fedkern_flwr.node.client import Client
from fedkern_flwr.node_config import (
    FIXED,
    read_classes,
    read_config,
    read_secret,
    renew,
    reread_config,
)
from fedkern_flwr.plain_text import LONGEST, plain_line, read_json
from fedkern_flwr.reporting import ended_by_signals, errors_reported, write_result, write_somewhere
from fedkern_flwr.secure_aggregation import secure_aggregation_mod
from fedkern_flwr.simulations import Fault, InProcessGrid, simulate
from fedkern_flwr.simulations.apps.server import server_app
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.deployment.run_config import app_folder, declared
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.strategies import POFMKL, KernelPCA
from fedkern_flwr.transport import request_messages
from fedkern_flwr.wire import DescribeReply, DescribeRequest

# -- the configuration of a node, read anew

START = {"partition-id": 0, "num-partitions": 2, "role": "hospital", "data": "old.csv"}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no configuration behind; let this process make messages."""
    monkeypatch.setattr(node_config, "_latest", None)
    set_task_identity(1, 1)


def write(folder: Path, **changes: Any) -> Path:
    """Write the configuration with some changes; None leaves a key out."""
    values = {**START, **{key.replace("_", "-"): value for key, value in changes.items()}}
    lines = [f"{key} = {value!r}\n" for key, value in values.items() if value is not None]
    (folder / "node.toml").write_text("".join(lines).replace("True", "true"))
    return folder / "node.toml"


def context() -> Context:
    """Return what a SuperNode hands over, which knows the first configuration only."""
    return Context(1, 2, dict(START), RecordDict(), {})


def seen(own: Context) -> dict[str, Any]:
    """Return the configuration that a client of ours is built with."""
    found: list[dict[str, Any]] = []

    def make_client(given: Context) -> Any:
        found.append(dict(given.node_config))
        raise OptionError("enough", code="FK-FILE-READ")

    message = Message(RecordDict(), dst_node_id=2, message_type="train")
    refuses("FK-FILE-READ", serve(make_client), message, own)
    return found[0]


def test_the_next_client_has_what_was_read_last(tmp_path: Path) -> None:
    before = read_config(write(tmp_path))
    assert before == START
    own = context()
    assert seen(own) == START  # a file that was read and not read again changes nothing
    config = reread_config(write(tmp_path, data="new.csv", allow_single=True), before)
    assert seen(own) == config == {**START, "data": "new.csv", "allow-single": True}
    app, message = context(), Message(RecordDict(), dst_node_id=2, message_type="train")
    with pytest.raises(FedKernError):  # the message is none of ours
        secure_aggregation_mod(lambda _: 1)(message, app, lambda *_: message)
    assert app.node_config == config  # an app with secure sums has it too
    config = reread_config(write(tmp_path, data=None), config)
    assert seen(own) == config == {key: START[key] for key in list(START)[:3]}
    own.node_config["data"] = "by the app"
    assert seen(own) == config


@pytest.mark.promise("node-config-same")
def test_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    config = reread_config(write(tmp_path, data="new.csv"), START)
    (tmp_path / "policy.toml").write_text("min_partie = 3\n")
    for changes, code in (
        ({"data": ["a.csv"]}, "FK-OPTION-TYPE"),
        ({"policy": str(tmp_path / "policy.toml")}, "FK-POLICY-RULE"),
        *(({key: 7}, "FK-NODE-CHANGED") for key in FIXED),
        *(({key: None}, "FK-NODE-CHANGED") for key in FIXED if key in START),
    ):
        refuses(code, reread_config, write(tmp_path, **changes), config)
    for content, code in ((b"data = ", "FORMAT"), (b"\xff", "FORMAT"), (None, "READ")):
        (tmp_path / "node.toml").unlink()
        if content is not None:
            (tmp_path / "node.toml").write_bytes(content)
        refuses(f"FK-FILE-{code}", reread_config, tmp_path / "node.toml", config)
        (tmp_path / "node.toml").touch()
    own = context()
    renew(own)
    assert own.node_config == config


# -- what a node reads


def test_a_secret_is_hexadecimal_or_refused_and_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("ab" * 32 + "\n")
    assert read_secret(path, "the key") == b"\xab" * 32
    assert read_secret(None, "the key") is None
    for text in ("zz", "abc", "\x00"):
        path.write_text(text)
        error = refuses("FK-KEY-FILE", read_secret, path, "the key")
        assert text not in str(error)
    refuses("FK-KEY-FILE", read_secret, tmp_path / "none", "the key")


@pytest.mark.parametrize(
    ("text", "names"),
    [("", ()), ("1, 0", ("1", "0")), ("yes,no,", ("no", "yes")), ("2,ten", ("2", "ten"))],
)
def test_classes_are_numbers_or_sorted_text(text: str, names: tuple[str, ...]) -> None:
    assert read_classes(text) == names


# -- what an app writes at the end


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "result.json"


@pytest.mark.promise("errors-end-in-codes")
def test_an_error_of_ours_is_written(path: Path) -> None:
    with pytest.raises(TableError), errors_reported(path):
        raise TableError("none", remedy="bring\nsome", party="partition 1", code="FK-ROWS-NONE")
    found = json.loads(path.read_text())
    assert found.pop("run")["release"] == __version__
    assert found == {
        "error": "partition 1: none; bring some [FK-ROWS-NONE]",
        "code": "FK-ROWS-NONE",
        "exit_code": 2,
    }


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_crash_leaves_no_result_of_an_earlier_run(path: Path, error: type[BaseException]) -> None:
    with errors_reported(path):
        write_result(path, {"metrics": {"rows": 3}})
    assert json.loads(path.read_text()) == {"metrics": {"rows": 3}}
    with pytest.raises(error), errors_reported(path):
        raise error
    assert not path.exists()
    path.mkdir()  # a result that cannot be written is refused before the run
    with refused("FK-FILE-WRITE"), errors_reported(path):
        raise error


@pytest.mark.parametrize("told", [True, False])
def test_an_error_of_ours_is_the_last_line_of_the_log(
    told: bool, path: Path, capsys: Any, caplog: Any, monkeypatch: Any
) -> None:
    """As Flower logs what an app raises; an app of one's own does not report it itself."""
    flower = logging.getLogger("flwr")
    caplog.set_level(logging.INFO, "flwr")  # whoever has quietened it before
    monkeypatch.setattr(flower, "handlers", [*flower.handlers, logging.StreamHandler()])
    for error in (TableError("no rows", remedy="bring\nsome"), ValueError("crash")):
        try:
            with errors_reported(path) if told else nullcontext():
                raise error
        except Exception as raised:
            flower.error("%s raised an exception", "ServerApp", exc_info=raised)
    ours, _, crash = capsys.readouterr().err.partition("ServerApp raised an exception")
    assert ours == "fedkern: no rows; bring some\n"
    assert "Traceback" in crash


# -- text from nodes

NASTY = {
    "colours": ("\x1b[31mred\x1b[0m", "red"), "title": ("\x1b]0;owned\x07gone", "gone"),
    "lines": ("one\r\n2026-01-01 ERROR: forged\u2028two", "one 2026-01-01 ERROR: forged two"),
    "eight bits": ("\x9b2Jcleared\x9d0;t\x9c", "cleared"),
    "direction": ("\u202egnp.exe\u200b", "gnp.exe"), "zeros": ("\x00\x08\x7f\ud800", ""),
}  # fmt: skip
LONG = ["x" * 10_000_000, "\x1b[" * 3_000_000, "[fedkern] " * 1_000_000, "a.b.C: x\n" * 1_000_000]


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


def test_what_a_terminal_obeys_leaves_no_rest_and_errors_are_read_as_plain_lines() -> None:
    request = DescribeRequest(session="s", method="m", resume_round=0)
    (message,) = request_messages(request, [7], group_id="g")
    for text, plain in [*NASTY.values(), *((text, None) for text in LONG)]:
        assert plain is None or plain_line(text) == plain
        for told in (mark_error(text), f"<class '{text}'>:<'{text}'>"):
            error = Message(Error(2, told), reply_to=message)
            assert_plain(read_error(error, "fit").detail)


class Vandal(Client):
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
@pytest.mark.parametrize("text", [NASTY["colours"][0], NASTY["lines"][0], LONG[0]])
def test_no_text_of_a_node_is_logged(text: str, field: str, tmp_path: Path, caplog: Any) -> None:
    def client_fn(context: Context) -> Vandal:
        client = Vandal(context)
        client.text, client.field = text, field
        return client

    told = tmp_path / "result.json"
    caplog.set_level(logging.DEBUG, "flwr")
    with pytest.raises(ProtocolError) as raised, errors_reported(told):
        simulate(POFMKL(), client_fn, 2, num_rounds=1)
    assert_plain(str(raised.value), 2 * LONGEST)
    assert_plain(json.loads(told.read_text())["error"], 2 * LONGEST)
    logged = [r.getMessage() for r in caplog.records if r.name == "flwr"]  # what `flwr log` shows
    assert any(line.startswith("fedkern: ") for line in logged)
    for line in logged:
        assert_plain(line, 2 * LONGEST)
    assert not field or raised.value.code == "FK-NODE-METHOD"


# -- stock mods of Flower around our clients, and what a process says of itself


PROCESS = "flwr.supernode.cli.flwr_clientapp"


ROWS = np.random.default_rng(0).random((4, 30, 3))


def client(context: Context, kind: Any = KernelPCAClient) -> Any:
    return kind(context, ROWS[int(context.node_config["partition-id"])])


def test_the_first_message_of_a_run_says_what_its_process_cost_where_one_was_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, PROCESS, object())
    monkeypatch.setattr(time, "process_time", lambda: 2.14)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level("INFO", logger="flwr")

    def said(messages: int = 2, **node: Any) -> list[str]:
        caplog.clear()
        config = {"partition-id": 0, "num-partitions": 1, **node}
        context, app = Context(1, 2, config, RecordDict(), {}), serve(client)
        flower_compat.set_task_identity(1, 2)
        opening = DescribeRequest(session="s", method="m", resume_round=0, secure=True)
        for _ in range(messages):
            (message,) = request_messages(opening, [2], group_id="describe")
            assert isinstance(app(message, context), Message)
        return [r.getMessage() for r in caplog.records if "cost" in r.getMessage()]

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


@pytest.mark.app  # it is loaded: 40 MB
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


def test_mods_that_count_see_what_is_sent(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
    refuses("FK-MOD-CHANGES", serve, client, mods=[mod])


# -- text from outside


DEEP = "[" * 100_000


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 100_000, DEEP.encode(), "{", "nan nan"])
def test_deeply_nested_json_is_no_recursion_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_json(text)


@pytest.mark.promise("texts-are-short")
@pytest.mark.parametrize("text", ["x" * 201, "x" * 200_000, "\x1b[31mred", "a\nb", "a\u202eb"])
def test_a_name_has_200_printable_characters(text: str) -> None:
    """So no error quotes more, nor what a terminal obeys: 200 kB and escape codes on 6f0b6ef."""
    scalars = {**DescribeRequest(session="ab", method="m", resume_round=0).scalars()}
    DescribeRequest.unpack([], {**scalars, "method": "x" * 200}, party="server")
    with refused("FK-MESSAGE-TEXT") as caught:
        DescribeRequest.unpack([], {**scalars, "method": text}, party="server")
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


# -- files


@pytest.mark.promise("cells-are-no-formulas")
@settings(max_examples=100)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_no_cell_is_a_formula(text: str) -> None:
    cell = plain_cell(text)
    try:
        float(cell)
    except ValueError:
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


@pytest.mark.promise("cells-are-no-formulas")
def test_formulas_are_quoted_and_numbers_stay(tmp_path: Path) -> None:
    cells = ["=1+1", "+cmd", "-x", "@a", "-1.5", "+4", "-1e-300", "-inf", "a=b", "", "'q"]
    write_csv(tmp_path / "p.csv", [cells, [-1.5, 3, "x", None]])
    with (tmp_path / "p.csv").open(newline="") as file:
        first, second = csv.reader(file)
    assert first[:4] == ["'=1+1", "'+cmd", "'-x", "'@a"]
    assert first[4:] == cells[4:]
    assert second == ["-1.5", "3", "x", ""]


@pytest.mark.promise("no-sorted-values")
@pytest.mark.parametrize("scaling", ["range", "standard", "none", "auto", "rank"])
def test_sorted_values_are_kept_for_ranks_only(scaling: Any) -> None:
    """Of up to 1,000 rows they are all values of the column."""
    values = np.random.default_rng(0).random(50)
    column = Number.fit("dose", values, scaling, "keep")
    kept = set(column.to_dict()["facts"]["knots"])
    assert kept == (set(values) if column.scale == "rank" else {values.min(), values.max()})
    again = Number.from_dict(column.to_dict())
    np.testing.assert_array_equal(again.transform(values), column.transform(values))


# -- a disk that is full at the server: the run goes on, and what it found is written elsewhere


Plan = Callable[[Delivery], Fault | None]


def full(path: Path, *data: Any, **how: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


def learn(faults: Plan | None = None, **options: Any) -> KernelPCA:
    strategy = KernelPCA(features=3, attempts=1, **options)
    simulate(strategy, client, 3, faults=faults)
    return strategy


@pytest.mark.parametrize(("fails", "kept"), [
    (lambda number: True, False), (lambda number: number > 1, False),
    (lambda number: number == 1, True),
])  # fmt: skip
def test_checkpoints_may_fail(
    fails: Any, kept: bool, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    """An earlier checkpoint does not know which sums are opened afterwards: it must go."""
    file, tries, write = tmp_path / "run.npz", [], checkpoint.write_atomically

    def fills(path: Path, *data: Any, **how: Any) -> None:
        tries.append(path)
        (full if fails(len(tries)) else write)(path, *data, **how)

    monkeypatch.setattr(checkpoint, "write_atomically", fills)
    caplog.set_level(logging.WARNING, "fedkern_flwr")
    found = learn(checkpoint=file)
    np.testing.assert_array_equal(found.model()[0]["mean"], learn().model()[0]["mean"])
    assert len(tries) > 2  # it was tried again
    (told,) = [line for line in caplog.messages if str(file) in line]
    assert told.endswith("[FK-FILE-WRITE]")
    assert file.exists() == found.nodes.resumable == kept


def test_a_run_that_fails_later_says_nothing_of_resuming(tmp_path: Path, monkeypatch: Any) -> None:
    def gone(delivery: Delivery) -> Fault | None:
        """The second sum gets no answer: of the first there is a checkpoint."""
        return Fault("vanished") if delivery.phase == "method" and delivery.round > 1 else None

    with refused("FK-PARTIES-LOST") as caught:
        learn(gone, checkpoint=tmp_path / "run.npz")
    assert "resume" in str(caught.value)
    monkeypatch.setattr(checkpoint, "write_atomically", full)
    with refused("FK-PARTIES-LOST") as caught:
        learn(gone, checkpoint=tmp_path / "other.npz")
    assert "resume" not in str(caught.value)


# -- results


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a path that cannot be written; the current folder is the test's own."""
    (tmp_path / "file").write_text("")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "file" / "result.json"


def test_a_result_is_written_elsewhere_and_the_log_says_where(nowhere: Path, caplog: Any) -> None:
    caplog.set_level(logging.WARNING, "flwr")
    write_result(nowhere, {"metrics": {"rows": 3}})
    model = nowhere.with_name("model.npz")
    write_somewhere(model, lambda at: save_model(at, "kernel-pca", {"mean": np.ones(2)}, {}))
    result, saved = sorted(Path.cwd().iterdir(), key=lambda path: path.suffix)
    assert json.loads(result.read_text()) == {"metrics": {"rows": 3}}
    np.testing.assert_array_equal(load_model(saved, "kernel-pca")[0]["mean"], np.ones(2))
    for path, other, line in zip((nowhere, model), (result, saved), caplog.messages, strict=True):
        assert str(path) in line
        assert str(other) in line
        assert line.endswith("[FK-FILE-WRITE]")


def test_a_result_that_fits_nowhere_is_one_line(nowhere: Path, monkeypatch: Any) -> None:
    caught = refuses("FK-FILE-WRITE", write_somewhere, nowhere, full)
    assert str(nowhere) in str(caught)
    monkeypatch.setattr("fedkern_flwr.reporting.write_atomically", full)
    with refused("FK-ROWS-NONE"), errors_reported(""):  # what ended the run is said all the same
        raise TableError("none", code="FK-ROWS-NONE")
    with refused("FK-ROWS-NONE"), errors_reported(nowhere.parent.parent / "result.json"):
        raise TableError("none", code="FK-ROWS-NONE")


# -- a run that is stopped: it says which one it is, what is left of it and how it goes on


class Stopping(KernelPCAClient):
    """A client during whose second sum somebody stops the server."""

    by: int = signal.SIGTERM

    def fit(self, parameters: Any, config: Any) -> Any:
        if config["phase"] == "method" and config["round"] > 1:
            os.kill(os.getpid(), self.by)
        return super().fit(parameters, config)


def submit(**config: Any) -> None:
    grid = InProcessGrid(serve(partial(client, kind=Stopping)), 3)
    grid.set_run(SimpleNamespace(run_id=77, fab_id="us/app", fab_version="1", fab_hash="ab"))
    own = {**declared(app_folder("method")), "method": "kernel-pca", "options": '{"features": 3}'}
    server_app(KernelPCA)(grid, Context(1, 1, {}, RecordDict(), {**own, **config}))


@pytest.fixture
def handlers() -> Iterator[None]:
    """Handlers as of a process that ignores no signal, and as they were afterwards."""
    before = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stopped_server_says_how_its_run_goes_on(
    by: signal.Signals, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stopping, "by", by)
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    file, told = tmp_path / "run.npz", tmp_path / "result.json"
    more = {"checkpoint": str(file)} if kept else {}
    caught = refuses("FK-RUN-STOPPED", submit, result=str(told), **more)
    assert file.exists() == kept
    assert "run 77 was stopped by a signal" in str(caught)
    assert (f"resume=true, checkpoint={file}" in str(caught)) == kept
    found = json.loads(told.read_text())
    assert (found["code"], found["exit_code"]) == ("FK-RUN-STOPPED", 1)
    assert found["run"]["run_id"] == "77"
    assert {number: signal.getsignal(number) for number in before} == before


def test_a_thread_of_a_simulation_has_no_handlers() -> None:
    found: list[bool] = []

    def block() -> None:
        with ended_by_signals():
            found.append(True)

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert found == [True]


def test_a_stopped_command_says_how_to_go_on(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    fit = KernelPCAClient.fit

    def stopping(client: KernelPCAClient, parameters: Any, config: Any) -> Any:
        if config["phase"] == "method" and config["round"] > 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return fit(client, parameters, config)

    monkeypatch.setattr(KernelPCAClient, "fit", stopping)
    place = tmp_path / "run"
    command = ["run", "kernel-pca", "--data", "iris", "--features", "3", "--test-size", "0.3"]
    assert run([*command, "--out", str(place)]) == 130
    shown = capsys.readouterr().err.replace("\n", "")
    assert f"fedkern run kernel-pca --resume {place}" in shown
    assert shown.endswith("[FK-COMMAND-INTERRUPTED]")
    monkeypatch.setattr(KernelPCAClient, "fit", fit)
    assert run(["run", "kernel-pca", "--resume", str(place)]) == 0
    facts = json.loads((place / "result.json").read_text())["run"]
    assert len(facts["nodes"]) == 5
    assert facts["began"] <= facts["ended"]
    assert facts["release"] == __version__


@pytest.mark.usefixtures("handlers")
def test_a_signal_that_is_ignored_stays_so() -> None:
    """As of a run that ``nohup`` has started, when its terminal is closed."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ended_by_signals():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
