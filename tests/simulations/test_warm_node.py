"""A warm node: copies of a process that has imported everything, and who keeps them running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedkern_flwr.simulations.warm_node import tasks
from fedkern_flwr.simulations.warm_node.start import NO_THREADS, node_command
from fedkern_flwr.simulations.warm_node.status import NodeStatus

#: A node whose SuperNode and tasks are made up: ``task N WORK`` on its standard input is a task.
NODE = """
import os, signal, sys, time
from fedkern_flwr.simulations.warm_node import supervisor
from fedkern_flwr.simulations.warm_node.start import NodeSettings

def supernode(arguments):
    print("supernode", os.getpid(), flush=True)
    print(*arguments, flush=True)
    print("INFO :      SuperNode ID: 5", flush=True)
    {supernode}

def asking(address, secret):
    print("asking", os.getpid(), flush=True)
    for line in {tasks!r}:
        while os.read(0, 1) != b"f":
            print("hinted", flush=True)
        print("task", line, "7", flush=True)
    while told := os.read(0, 1):
        print("hinted" if told == b"h" else "free", flush=True)
    time.sleep(600)

def answer(address, token, **limits):
    from fedkern_flwr.simulations.warm_node.forked import limit
    limit(limits["seconds"], limits["gigabytes"])
    print("answering", token, os.getpid(), os.getppid(), flush=True)
    exec({work!r})
    print("answered", token, flush=True)

supervisor.run_supernode, supervisor.ask_for_tasks, supervisor.answer = supernode, asking, answer
limits = {processes}, {seconds}, {gigabytes}, 1
settings = NodeSettings("h:1", {config!r}, [], 9, *limits, log_format={log!r})
print("node", os.getpid(), flush=True)
{more}
sys.exit(supervisor.WarmNode(settings).run())
"""


class Started:
    """A node in a process of its own, and what it has printed."""

    def __init__(self, path: Path, **given: object) -> None:
        known = {"supernode": "time.sleep(600)", "tasks": [], "work": "pass"}
        self.config = path / "node.toml"
        self.config.write_text(f'partition-id = 0\nstate-dir = "{path}"\n')
        known |= {
            "processes": 1,
            "seconds": 60.0,
            "gigabytes": 4.0,
            "config": str(self.config),
            "more": "",
        }
        known |= {"log": "text"}
        self.log = path / "log"
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", NODE.format(**{**known, **given})],
                env={**os.environ, **NO_THREADS},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def wait_for(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + 60.0
        while sum(text in line for line in self.lines) < times:
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.02)

    def pids(self) -> list[int]:
        """All processes that there have been."""
        named = ("node", "supernode", "asking")
        found = [int(x.split()[-1]) for x in self.lines if x.rpartition(" ")[0] in named]
        return found + [int(x.split()[-2]) for x in self.lines if "answering" in x]

    def gone(self) -> bool:
        deadline = time.monotonic() + 20.0
        while time.monotonic() < deadline:
            if not any(running(pid) for pid in self.pids()):
                return True
            time.sleep(0.05)
        return False


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    nodes: list[Started] = []

    def begin(**given: object) -> Started:
        nodes.append(Started(tmp_path, **given))
        return nodes[-1]

    yield begin
    for node in nodes:
        node.process.kill()
        node.process.wait(20)


def test_every_message_has_a_process_and_one_at_a_time(start: Callable[..., Started]) -> None:
    node = start(tasks=["a", "b", "c"], work="time.sleep(0.3)")
    node.wait_for("answered c")
    assert any("--isolation process --host 127.0.0.1 --port 9 --superexec" in x for x in node.lines)
    done = [line.split()[-1] if "answered" in line else line.split()[-3] for line in node.lines
            if "answer" in line]  # fmt: skip
    assert done == ["a", "a", "b", "b", "c", "c"]
    pids = {line.split()[-2] for line in node.lines if "answering" in line}
    assert len(pids) == 3
    node.process.terminate()
    assert node.process.wait(20) == 128 + signal.SIGTERM
    assert node.gone()


def test_nobody_is_asked_before_the_supernode_is_there(start: Callable[..., Started]) -> None:
    """Else whoever takes the port first on this machine could hand out tasks."""
    node = start(tasks=["a"])
    node.wait_for("answered a")
    places = [k for k, line in enumerate(node.lines) if "SuperNode ID" in line or "asking" in line]
    assert "SuperNode ID" in node.lines[places[0]]


def test_messages_may_be_answered_side_by_side(start: Callable[..., Started]) -> None:
    node = start(tasks=["a", "b"], work="time.sleep(600)", processes=2)
    node.wait_for("answering", times=2)
    node.process.terminate()
    assert node.process.wait(20)
    assert node.gone()


def test_copies_draw_different_secrets(start: Callable[..., Started]) -> None:
    work = "import secrets, numpy, random; print('drawn', secrets.token_hex(8),"
    work += "numpy.random.default_rng().integers(2**62), random.random())"
    node = start(tasks=["a", "b", "c"], work=work)
    node.wait_for("answered c")
    drawn = [line.split()[1:] for line in node.lines if line.startswith("drawn ")]
    assert len(drawn) == 3
    assert all(len(set(kind)) == 3 for kind in zip(*drawn, strict=True))


def test_limits_of_a_message(start: Callable[..., Started]) -> None:
    """Too long or too much is an error in the process itself; the next message is answered."""
    node = start(tasks=["slow", "quick"], seconds=1.0, work="time.sleep(30 * (token == 'slow'))")
    node.wait_for("the message took longer than 1 s")
    node.wait_for("answered quick")


def test_memory_of_a_message(start: Callable[..., Started]) -> None:
    node = start(tasks=["big", "small"], gigabytes=0.5, work="bytearray(10**9 * (token == 'big'))")
    node.wait_for("MemoryError")
    node.wait_for("answered small")


def test_a_killed_process_is_named_and_the_next_message_answered(
    start: Callable[..., Started],
) -> None:
    node = start(tasks=["a", "b"], work="os.kill(os.getpid(), 9 * (token == 'a'))")
    node.wait_for("a message of run 7 was ended by signal 9")
    node.wait_for("answered b")


def test_who_asks_for_tasks_is_started_again(start: Callable[..., Started]) -> None:
    node = start(tasks=["a"])
    node.wait_for("answered a")
    asking = next(int(x.split()[-1]) for x in node.lines if x.startswith("asking"))
    os.kill(asking, signal.SIGKILL)
    node.wait_for("answered a", times=2)


def test_one_at_a_time_whoever_asks(start: Callable[..., Started]) -> None:
    """Who is started again to ask for tasks is not told that a busy process is free."""
    node = start(tasks=["a", "b"], work="time.sleep(600)")
    node.wait_for("answering a")
    os.kill(node.pids()[2], signal.SIGKILL)
    node.wait_for("asking", times=2)
    time.sleep(1.0)
    assert sum("answering" in line for line in node.lines) == 1


def test_what_no_signal_reaches_is_killed(start: Callable[..., Started]) -> None:
    work = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]);"
    work += "time.sleep(600 * (token == 'stuck'))"
    node = start(tasks=["stuck", "b"], work=work, seconds=1.0, more="supervisor._GRACE = 1.0")
    node.wait_for("was ended by signal 9")
    node.wait_for("answered b")


def test_who_asks_is_told_of_a_message(start: Callable[..., Started]) -> None:
    supernode = "time.sleep(2); print('INFO :  Received successfully', flush=True); time.sleep(600)"
    start(supernode=supernode).wait_for("hinted")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_lets_the_supernode_say_goodbye(
    start: Callable[..., Started], number: signal.Signals
) -> None:
    """As a terminal's Ctrl-C, or who stops a group; Flower takes the first signal only."""
    supernode = (
        "from flwr.supercore.exit import register_signal_handlers;"
        "from flwr.supercore.telemetry import EventType;"
        "bye = lambda: (time.sleep(0.5), print('goodbye', flush=True));"
        "register_signal_handlers(EventType.PING, exit_handlers=[bye]);"
        "print('ready', flush=True); time.sleep(600)"
    )
    node = start(supernode=supernode)
    node.wait_for("ready")
    os.killpg(node.process.pid, number)
    assert node.process.wait(20) == 128 + number
    assert "goodbye" in node.lines


def test_what_a_client_does_to_its_output_does_not_stop_the_node(
    start: Callable[..., Started],
) -> None:
    """It floods it, closes it, leaves processes behind; they are orphans of the node."""
    work = (
        "token == 'flood' and [os.write(1, b'x' * 65536) for _ in range(200)];"
        "token == 'shut' and (os.close(1), os.close(2), time.sleep(1), os._exit(0));"
        "token == 'leave' and __import__('subprocess').Popen(['sleep', '1'])"
    )
    reaper = "import ctypes; ctypes.CDLL(None).prctl(36, 1)  # gets orphans"
    node = start(tasks=["flood", "shut", "leave", "b"], work=work, more=reaper)
    node.wait_for("answered b")
    time.sleep(1.5)
    assert node.process.poll() is None


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    full = "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
    node = Started(tmp_path, tasks=["a"], work="print('long ' * 99)", more=full)
    try:
        deadline = time.monotonic() + 60.0
        while (status := NodeStatus.read(tmp_path)) is None or status.messages < 1 or status.busy:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert node.process.poll() is None
    finally:
        node.process.terminate()
        assert node.process.wait(20) == 128 + signal.SIGTERM


def test_the_node_ends_with_its_supernode(start: Callable[..., Started]) -> None:
    node = start(supernode="sys.exit(3)")
    assert node.process.wait(20) == 3
    assert any("the SuperNode has ended with exit code 3" in line for line in node.lines)
    assert node.gone()


def test_a_node_says_what_it_is_doing_and_reads_its_configuration_again(
    start: Callable[..., Started], tmp_path: Path
) -> None:
    work = "from fedkern_flwr import node_config; print('latest', node_config._latest);"
    node = start(tasks=["a"], work=work + "time.sleep(600)")
    node.wait_for("latest None")
    asking = next(int(x.split()[-1]) for x in node.lines if x.startswith("asking"))
    node.config.write_text(node.config.read_text() + "extra = 1\n")
    node.process.send_signal(signal.SIGHUP)
    node.wait_for("the configuration was read again")
    node.config.write_text("partition-id = 1\n")
    node.process.send_signal(signal.SIGHUP)
    node.wait_for("the configuration stays as it was: partition-id, state-dir")
    os.kill(next(pid for pid in node.pids() if pid > asking), signal.SIGKILL)
    os.kill(asking, signal.SIGKILL)  # the one after it has the same tasks
    node.wait_for("'extra': 1")
    deadline = time.monotonic() + 30.0
    while (status := NodeStatus.read(tmp_path)) is None or status.messages < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert (status.connected, status.busy, status.failures) == (True, 1, 1)
    node.process.terminate()
    node.process.wait(20)
    ended = NodeStatus.read(tmp_path)
    assert ended is not None
    assert (ended.connected, ended.running) == (False, False)


def test_a_message_under_way_ends_with_the_configuration_that_it_began_with(
    start: Callable[..., Started], tmp_path: Path
) -> None:
    work = (
        "from flwr.app import Context, RecordDict; from fedkern_flwr.node_config import renew\n"
        "for last in (False, True):\n"
        "    own = Context(1, 2, {'data': 'old.csv'}, RecordDict(), {}); renew(own)\n"
        "    print(token, 'has', own.node_config['data'], flush=True)\n"
        f"    while not last and not os.path.exists({str(tmp_path)!r} + '/' + token):\n"
        "        time.sleep(0.02)\n"
    )
    node = start(tasks=["a", "b"], work=work)
    node.wait_for("a has old.csv")
    node.config.write_text(f"{node.config.read_text()}data = 'new.csv'\n")
    node.process.send_signal(signal.SIGHUP)
    node.wait_for("the configuration was read again")
    (tmp_path / "a").touch()
    node.wait_for("a has old.csv", times=2)
    node.wait_for("b has new.csv")
    assert sum(line.startswith("supernode ") for line in node.lines) == 1
    node.process.kill()


def test_the_log_of_a_node_is_json_on_request(
    start: Callable[..., Started], tmp_path: Path
) -> None:
    node = start(tasks=["a", "b"], work="os.kill(os.getpid(), 9 * (token == 'a'))", log="json")
    node.wait_for("answered b")
    told = [json.loads(line) for line in node.lines if not line.startswith("node ")]
    assert {line["source"] for line in told} == {"supernode", "executor", "client", "node"}
    assert {line["run"] for line in told if line["source"] == "client"} == {"7"}
    (killed,) = (line for line in told if line["source"] == "node")
    assert (killed["level"], killed["text"]) == (
        "ERROR",
        "a message of run 7 was ended by signal 9",
    )
    deadline = time.monotonic() + 30.0
    while (status := NodeStatus.read(tmp_path)) is None or killed["text"] not in status.last_error:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    node.process.kill()


def test_a_configuration_that_cannot_be_used_ends_the_node(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("not toml")
    done = subprocess.run(
        node_command("h:1", file, [], 9094), env={**os.environ, **NO_THREADS},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == f"fedkern: {file} cannot be read: it is not TOML; mend it\n"


def test_a_supernode_whose_signature_is_refused_is_explained(start: Callable[..., Started]) -> None:
    """Flower ends it as if somebody had asked for that."""
    node = start(supernode="sys.exit(0)")
    assert node.process.wait(20) == 1
    assert any("refuses what it signs; its clock is wrong" in line for line in node.lines)


def test_nothing_is_left_of_a_killed_node(start: Callable[..., Started]) -> None:
    node = start(tasks=["a"], work="time.sleep(600)")
    node.wait_for("answering a")
    node.process.kill()
    node.process.wait(20)
    assert node.gone()


def test_a_process_with_threads_is_not_copied() -> None:
    program = (
        "import threading, time; from fedkern_flwr.simulations.warm_node.forked import fork\n"
        "threading.Thread(target=time.sleep, args=(5,), daemon=True).start()\n"
        "fork(lambda: None, end_with=9)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "a process with 2 threads cannot be copied" in done.stderr


def test_a_warm_process_has_no_thread_no_socket_and_all_that_a_message_needs() -> None:
    program = (
        "import json, os, sys; from fedkern_flwr.simulations.warm_node import supervisor, tasks\n"
        "tasks.warm_up()\n"
        "links = [os.readlink(f'/proc/self/fd/{k}') for k in range(3, 64)"
        " if os.path.exists(f'/proc/self/fd/{k}')]\n"
        "before = set(sys.modules)\n"
        "from fedkern_flwr.clients import *\n"
        "import fedkern_flwr.simulations.apps.node\n"
        "print(json.dumps([len(os.listdir('/proc/self/task')),"
        " [x for x in links if 'socket' in x], sorted(set(sys.modules) - before)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **NO_THREADS},
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [1, [], []], done.stderr


def test_no_more_tasks_are_taken_than_processes_are_free(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is told goes through standard input: f a free process, h a hint, its end the end."""
    taken = []

    class Endless:
        def __init__(self, address: str, secret: bytes) -> None: ...

        def take(self) -> tuple[str, int]:
            taken.append(len(taken))
            return f"token-{len(taken)}", 5

    told = iter([b"f", b"h", b"ff", b""])
    monkeypatch.setattr(tasks, "TaskQueue", Endless)
    monkeypatch.setattr(tasks.os, "read", lambda stream, size: next(told))
    monkeypatch.setattr(tasks.select, "select", lambda *given: ([0], [], []))
    tasks.ask_for_tasks("127.0.0.1:1", b"secret")
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["task token-1 5", "task token-2 5"]
    assert len(taken) == 2


def test_the_command_of_a_node_has_what_it_is_given(tmp_path: Path) -> None:
    file, more = tmp_path / "node.toml", {"max_processes": 2, "message_seconds": 5.0}
    settings = json.loads(node_command("h:1", file, ["--insecure"], 9094, **more)[-1])
    assert (settings["superlink"], settings["node_config"]) == ("h:1", str(file))
    assert settings["supernode"] == ["--insecure"]
    assert (settings["port"], settings["max_processes"]) == (9094, 2)
    assert settings["message_seconds"] == 5.0
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    assert settings["message_gigabytes"] == pytest.approx(0.75 * memory, abs=0.1)
