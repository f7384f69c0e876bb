"""The state of a run on a node's disk: whose it is, which of two is newer, where it is."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, RecordDict
from refusals import refuses

from fedkern_flwr.guard import RunRecord
from fedkern_flwr.node.disk_state import forget_last, on_disk
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.node.sums import erase_state, store_state
from fedkern_flwr.run_names import run_folder, session_of
from fedkern_flwr.secure_sum import PartyState

SESSION, ASKED = "5e1f", {"session": "5e1f", "phase": "any"}


def node(**more: Any) -> Context:
    """Return the context of a node that was just started."""
    given: dict[str, Any] = {"run_id": 7, "node_id": 2**63 + 5, "run_config": {"rounds": 3}}
    given |= {"node_config": {"partition-id": 1}, "state": RecordDict()}
    return Context(**{**given, **more})


def answer(context: Context, file: Path, done: int, *, secure: bool = True) -> None:
    """Answer a message: a round is done."""
    with on_disk(context, file, ASKED):
        SessionState(SESSION, done, b"own").store(context)
        RunRecord(SESSION, secure=secure).store(context)
        if secure:
            store_state(context, PartyState(SESSION))


def found(context: Context, file: Path) -> int:
    """Return which round a node takes itself to have done; without answering anything."""
    before = file.read_bytes()
    with on_disk(context, file, ASKED):
        number = SessionState.load(context).round
    file.write_bytes(before)
    return number


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return where a run is kept of which two rounds are done."""
    path = tmp_path / "run" / "partition-1.context"
    context = node()
    answer(context, path, 1)
    answer(context, path, 2)
    return path


def test_a_restarted_node_has_its_state_for_its_user_alone(file: Path) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    context = node()
    context.state["of-the-frame"] = ConfigRecord({"table": "x"})  # read before the state is taken
    assert found(context, file) == 2


def test_no_other_node_run_or_session_has_it(file: Path) -> None:
    others: list[dict[str, Any]] = [
        {"run_id": 8}, {"node_id": 6}, {"node_config": {"partition-id": 2}},
    ]  # fmt: skip
    for other in others:
        assert found(node(**other), file) == 0
    context = node()
    for _ in range(3):  # another session of the same run of Flower, of which more is known
        with on_disk(context, file.with_name("partition-1.other"), {"session": "another"}):
            SessionState("another").store(context)
    assert found(context, file) == 0
    twin = file.with_name("partition-1.twin")
    twin.write_bytes(file.read_bytes())
    context = node()
    with on_disk(context, twin, {"session": "another"}):
        assert not context.state
    twin.write_bytes(file.read_bytes()[:-5])  # damaged, but of a run that is resumed
    with on_disk(node(run_id=8), twin, ASKED):
        pass
    context = node()
    with on_disk(context, file, {**ASKED, "phase": "describe", "nonces": "{}"}):  # with new keys
        assert not context.state


def test_nothing_that_a_server_says_brings_an_older_state_back(file: Path) -> None:
    """Its process was killed as it had written: a round would be done again, with its masks."""
    memory = node()
    with on_disk(memory, file, ASKED):
        pass
    old = RecordDict(dict(memory.state.items()))
    answer(memory, file, 3)
    for phase in ("any", "describe"):
        context = node(state=RecordDict(dict(old.items())))
        with on_disk(context, file, {**ASKED, "phase": phase, "resume_round": 1, "nonces": "{}"}):
            assert SessionState.load(context).round == 3
    context = node(state=RecordDict(dict(old.items())))
    SessionState("another").store(context)  # it was refused when it was to be opened
    assert found(context, file) == 3


def test_the_newer_of_memory_and_disk_is_taken(file: Path) -> None:
    """The process that answers is killed when it has written: the SuperNode has the older state."""
    memory = node()
    with on_disk(memory, file, ASKED):
        pass
    old = RecordDict(dict(memory.state.items()))
    answer(memory, file, 3)
    assert found(node(state=old), file) == 3
    before = file.read_bytes()
    answer(memory, file, 4)
    file.write_bytes(before)  # as if the disk had been full
    assert found(memory, file) == 4
    with on_disk(memory, file, {**ASKED, "phase": "last"}):
        erase_state(memory)
        memory.state["an answer"] = ConfigRecord({"told": 1})
    file.write_bytes(before)  # as if the power had been cut before it was gone
    context = node()
    with on_disk(context, file, ASKED):
        assert "an answer" in context.state


def test_a_message_that_fails_leaves_what_it_fixed(file: Path) -> None:
    context = node()

    def fail() -> None:
        SessionState(SESSION, 2, b"fixed").store(context)
        raise KeyError

    with pytest.raises(KeyError), on_disk(context, file, ASKED):
        fail()
    context = node()
    with on_disk(context, file, ASKED):
        assert SessionState.load(context).payload == b"fixed"
    other = file.with_name("partition-1.new")
    with pytest.raises(KeyError), on_disk(node(), other, ASKED):  # refused when it is opened
        raise KeyError
    assert not other.exists()


@pytest.mark.promise("restart-erased")
@pytest.mark.parametrize("phase", ["finish", "break", "last"])
def test_the_end_erases_it(file: Path, phase: str, tmp_path: Path) -> None:
    """But for the last answer, which may be asked for again until the node opens another run."""
    context, last = node(), file.with_suffix(".last")
    file.with_name(f".{file.name}.0a1b.tmp").write_bytes(b"its process was killed as it wrote")
    secret = PartyState(SESSION).pack()
    with on_disk(context, file, {"session": SESSION, "phase": phase}):
        erase_state(context)
        context.state["an answer"] = ConfigRecord({"told": 1})
    assert [*file.parent.glob(".*")] == []
    assert not file.exists()
    assert last.exists() == (phase == "last")
    if phase == "last":
        assert secret not in last.read_bytes()
        context = node()
        with on_disk(context, file, ASKED):
            assert context.state["an answer"]["told"] == 1
        forget_last(tmp_path, 0)
        assert last.exists()
        forget_last(tmp_path, 1)
    assert not file.parent.exists()


def test_what_cannot_be_written_is_one_line(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refuses("FK-FILE-WRITE", answer, node(), file, 3)
    file.write_bytes(file.read_bytes()[:-5])
    refuses("FK-CHECKPOINT-DAMAGED", answer, node(), file, 3)


# -- folders of runs


def test_folders_are_named_by_time_and_run(tmp_path: Path) -> None:
    place = run_folder(tmp_path, SESSION, 0)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d{4}Z-5e1f", place.name)
    assert session_of(place) == SESSION
    names = ("2024-01-31T2359Z-5e1f", "2024-01-31T2359Z-5e1f0", "freeze-5e1f", "x5e1f")
    for name in names:
        (tmp_path / name).mkdir()
    assert run_folder(tmp_path, SESSION, 0) == tmp_path / names[0]
    assert [session_of(Path(name)) for name in names] == [SESSION, "5e1f0", "", "x5e1f"]
    second = tmp_path / "2024-02-01T0000Z-5e1f"  # of a node that began a minute later
    second.mkdir()
    (second / "partition-1.context").touch()
    assert run_folder(tmp_path, SESSION, 0) == tmp_path / names[0]
    assert run_folder(tmp_path, SESSION, 1) == second
    (tmp_path / SESSION).mkdir()  # of an earlier release
    assert run_folder(tmp_path, SESSION, 1) == tmp_path / SESSION
