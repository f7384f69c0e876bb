"""A warm node: copies of a process that has imported everything, and who keeps them running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest
from waiting import running, soon

from fedkern_flwr.simulations.deployment import warm_node
from fedkern_flwr.simulations.deployment.report import NodeStatus
from fedkern_flwr.simulations.deployment.start import NO_THREADS, node_command

#: A node whose SuperNode and tasks are made up: tasks are numbered from 100, of run 7.
NODE = """
import os, signal, sys, time
os.setsid()
for stream in (1, 2):
    os.dup2(os.open({out!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
from fedkern_flwr.simulations.deployment import warm_node
from fedkern_flwr.simulations.deployment.start import NodeSettings

def supernode(arguments, describe):
    print("supernode", os.getpid(), flush=True)
    print(*arguments, flush=True)
    print("INFO :      SuperNode ID: 5", flush=True)
    {supernode}

def asking(address, secret):
    print("asking", os.getpid(), flush=True)
    for number, line in enumerate({tasks!r}):
        while os.read(0, 1) != b"f":
            print("hinted", flush=True)
        print("@task", line, "7", 100 + number, flush=True)
    while told := os.read(0, 1):
        print("hinted" if told == b"h" else "free", flush=True)
    time.sleep(600)

def answer(address, token, settings):
    from fedkern_flwr.simulations.deployment.warm_node import limit
    limit(settings.message_seconds, settings.message_gigabytes)
    print("answering", token, os.getpid(), os.getppid(), flush=True)
    exec({work!r})
    print("answered", token, flush=True)

warm_node.run_supernode, warm_node.ask_for_tasks, warm_node.answer = supernode, asking, answer
limits = {processes}, {seconds}, {gigabytes}, 1
more = dict(log_format={log!r}, grace=1.0)
settings = NodeSettings("h:1", {config!r}, [], 9, *limits, **more)
print("when", "node", os.getpid(), flush=True)
{more}
sys.exit(warm_node.WarmNode(settings).run())
"""
SLEEP = "time.sleep(600)"
#: Nodes are forked from a process that has loaded what they need.
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["fedkern_flwr.clients", warm_node.__name__, "flwr.supercore.exit"])


class Started:
    """A node in a process of its own, and what it has printed."""

    def __init__(self, path: Path, **given: object) -> None:
        self.config, self.log, self.folder = path / "node.toml", path / "log", path
        self.config.write_text(f'partition-id = 0\nstate-dir = "{path}"\n')
        known = {"supernode": SLEEP, "tasks": [], "work": "pass", "log": "text", "more": ""}
        known |= {"processes": 1, "seconds": 60.0, "gigabytes": 4.0, "config": str(self.config)}
        self.log.touch()
        program = NODE.format(out=str(self.log), **{**known, **given})
        with pytest.MonkeyPatch.context() as patch:
            for name, value in NO_THREADS.items():
                patch.setenv(name, value)
            self.process = FORKS.Process(target=exec, args=(program, {}))
            self.process.start()

    def end(self) -> int | None:
        """Wait for its end; return its exit code."""
        self.process.join(20)
        return self.process.exitcode

    @property
    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def count(self, text: str) -> int:
        return sum(text in line for line in self.lines)

    def wait_for(self, text: str, times: int = 1) -> None:
        assert soon(lambda: self.count(text) >= times), self.lines

    def pids(self, kind: str = "") -> list[int]:
        """Return all processes that there have been, or those of a kind."""
        words = [line.split()[1:] for line in self.lines if line.strip()]
        named = ("node", "supernode", "asking")
        found = [(w[0], int(w[1])) for w in words if len(w) == 2 and w[0] in named]
        found += [(w[0], int(w[2])) for w in words if w[:1] == ["answering"]]
        return [pid for name, pid in found if kind in ("", name)]

    def status(self, known: Callable[[NodeStatus], bool]) -> NodeStatus:
        """Wait until the node says something of itself."""
        deadline = time.monotonic() + 60.0
        while (status := NodeStatus.read(self.folder)) is None or not known(status):
            assert time.monotonic() < deadline, status
            time.sleep(0.1)
        return status

    def gone(self) -> bool:
        return soon(lambda: not any(map(running, self.pids())), 20.0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    nodes: list[Started] = []

    def begin(**given: object) -> Started:
        nodes.append(Started(tmp_path, **given))
        return nodes[-1]

    yield begin
    for node in nodes:
        node.process.kill()
        node.end()


BAD = {
    "killed": "os.kill(os.getpid(), 9)", "left": "os._exit(3)", "slow": "time.sleep(30)",
    "big": "bytearray(10**9)",
    "stuck": "(signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]), time.sleep(600))",
    "flood": "[os.write(1, b'x' * 65536) for _ in range(50)]",
    "shut": "(os.close(1), os.close(2), time.sleep(0.3), os._exit(0))",
    "leave": "__import__('subprocess').Popen(['sleep', '0.3'])",
}  # fmt: skip


#: A SuperNode that says what it hears; the keeper says which tasks have ended without a reply.
HEARS = "[print('heard', line.strip(), flush=True) for line in open(0)]"


@pytest.mark.promise("warm-stuck-killed")
def test_every_message_has_a_process_whatever_the_one_before_did(start):
    """It draws secrets of its own, and has so much time and memory. Orphans go to the node.

    The SuperNode hears at once what ended without a reply: what the server reads has a code, and
    nothing that a client has printed.
    """
    drawn = "secrets.token_hex(8), numpy.random.default_rng().integers(2**62), random.random()"
    work = f"import secrets, numpy, random; print('drawn', {drawn}, flush=True)\n"
    work += "".join(f"if token == {token!r}: {act}\n" for token, act in BAD.items())
    reaper = "import ctypes; ctypes.CDLL(None).prctl(36, 1)  # gets orphans"
    given = {"work": work, "more": reaper, "seconds": 1.2, "gigabytes": 0.5, "supernode": HEARS}
    node = start(tasks=["a", *BAD, "b"], **given)
    node.wait_for("answered b")
    assert node.count("--isolation process --host 127.0.0.1 --port 9 --superexec") == 1
    words = [line.split() for line in node.lines]
    done = [w[2] for w in words if w[1:2] in (["answering"], ["answered"])]
    assert [t for k, t in enumerate(done) if done[k - 1 : k] != [t]] == ["a", *BAD, "b"]
    assert len(set(node.pids("answering"))) == len(BAD) + 2
    assert node.count("a message of run 7 was ended by signal 9") == 2  # killed and stuck
    assert node.count("TooLong: ") == 1
    assert node.count("MemoryError") == 1
    heard = dict(line.split(" ", 3)[2:] for line in node.lines if " heard " in line)
    assert all(text.startswith("[fedkern] EngineError: ") for text in heard.values())
    numbers = dict(zip(BAD, map(str, range(101, 999)), strict=False))
    ends = {name: heard[numbers[name]].rpartition("ended")[2] for name in ("killed", "left")}
    told = {"killed": " by signal 9", "left": " with exit code 3"}
    assert ends == {name: f"{how} [FK-NODE-ENDED]" for name, how in told.items()}
    assert heard[numbers["stuck"]].endswith("[FK-NODE-SECONDS]")
    assert heard.keys() <= {*numbers.values()}  # what was answered is not among them
    for kind in zip(*(x.split()[2:] for x in node.lines if " drawn " in x), strict=True):
        assert len(set(kind)) == len(kind) >= len(BAD)
    time.sleep(0.6)
    assert node.process.is_alive()


def test_the_process_of_a_stopped_run_is_ended_and_the_next_message_answered(start, tmp_path):
    """Whatever a client prints, it ends no other."""
    supernode = "print('@comes 7', flush=True)\n"
    supernode += (
        f"    while not os.path.exists({str(tmp_path / 'seen')!r}): time.sleep(0.02)\n"
        "    print('@stopped 100', flush=True)\n    print('@done', flush=True)\n    " + SLEEP
    )
    work = f"print('@stopped 101', flush=True) if token == 'b' else {SLEEP}"
    node = start(tasks=["a", "b"], work=work, supernode=supernode)
    running = node.status(lambda status: status.busy == 1)
    assert (running.run, running.message_since >= running.started) == ("7", True)
    (tmp_path / "seen").touch()
    node.wait_for("answered b")
    assert node.count("run 7 is over") == 1
    assert node.count("signal") == 0
    status = node.status(lambda status: status.messages == 2 and not status.busy)
    assert (status.failures, status.run, status.message_since) == (0, "", "")


def test_what_a_server_has_the_supernode_log_begins_no_task(start) -> None:
    """A log quotes names that a server gives, and their line breaks."""
    forged = ("x y z", "a 7 1", "")
    node = start(supernode="\n    ".join(f"print('@task {one}', flush=True)" for one in forged))
    node.wait_for("has ended with exit code 0")  # of the SuperNode
    assert node.count("@task") == 3
    assert node.count("answering") == node.count("Traceback") == 0


@pytest.mark.promise("warm-one-at-a-time")
def test_one_at_a_time_whoever_asks(start: Callable[..., Started]) -> None:
    """Who is started again to ask for tasks is not told that a busy process is free.

    Nobody is asked before the SuperNode is there: else whoever takes the port first on this machine
    could hand out tasks. Nothing is left of a node that is killed.
    """
    node = start(tasks=["a", "b"], work=SLEEP)
    node.wait_for("answering a")
    places = [k for k, line in enumerate(node.lines) if "SuperNode ID" in line or "asking" in line]
    assert "SuperNode ID" in node.lines[places[0]]
    os.kill(node.pids("asking")[0], signal.SIGKILL)
    node.wait_for("asking", times=2)
    time.sleep(0.5)
    assert node.count("answering") == 1
    os.kill(node.pids("answering")[0], signal.SIGKILL)
    node.wait_for("answering", times=2)
    node.process.kill()
    node.end()
    assert node.gone()


def test_messages_may_be_answered_side_by_side(start: Callable[..., Started]) -> None:
    """Who asks for tasks is told that a message has come."""
    supernode = f"time.sleep(2); print('@there 100', flush=True); {SLEEP}"
    node = start(tasks=["a", "b"], work=SLEEP, processes=2, supernode=supernode)
    node.wait_for("answering", times=2)
    node.wait_for("hinted")
    node.process.terminate()
    assert node.end() == 128 + signal.SIGTERM
    assert node.gone()


def test_a_signal_to_all_lets_the_supernode_say_goodbye(start: Callable[..., Started]) -> None:
    """As a terminal's Ctrl-C, or who stops a group; Flower takes the first signal only."""
    supernode = (
        "from flwr.supercore.exit import register_signal_handlers;"
        "from flwr.supercore.telemetry import EventType;"
        "bye = lambda: (time.sleep(0.5), print('goodbye', flush=True));"
        "register_signal_handlers(EventType.PING, exit_handlers=[bye]);"
        f"print('ready', flush=True); {SLEEP}"
    )
    node = start(supernode=supernode)
    node.wait_for("ready")
    os.killpg(node.process.pid, signal.SIGINT)
    assert node.end() == 128 + signal.SIGINT
    assert node.count("goodbye") == 1


def test_a_log_that_cannot_be_written_stops_nothing(start: Callable[..., Started]) -> None:
    full = "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
    node = start(tasks=["a"], work="print('long ' * 99)", more=full)
    node.status(lambda status: status.messages > status.busy)
    assert node.process.is_alive()


@pytest.mark.parametrize(("code", "ends", "said"), [
    (3, 3, "the SuperNode has ended with exit code 3"),
    (0, 1, "refuses what it signs; its clock is wrong"),  # Flower ends it as if it were asked
])  # fmt: skip
def test_the_node_ends_with_its_supernode(code, ends, said, start):
    node = start(supernode=f"sys.exit({code})")
    assert node.end() == ends
    assert node.count(said) == 1
    assert node.gone()


@pytest.mark.parametrize("killed", [True, False])
def test_a_node_that_was_killed_waits_until_it_is_forgotten(killed, start, tmp_path):
    """A SuperLink takes a node again a minute after it was killed, and another's key never."""
    NodeStatus("h:1", process="of another boot", connected=killed).write(tmp_path)
    once = f"os.path.exists({str(tmp_path / 'once')!r}) or (open({str(tmp_path / 'once')!r}, 'x'), "
    node = start(supernode=f"{once}print('Failed to activate SuperNode.'), sys.exit(1)); {SLEEP}")
    if killed:
        assert soon(lambda: len(node.pids("supernode")) == 2)
        assert node.process.is_alive()
    else:
        assert node.end() == 1


def test_a_node_whose_network_was_cut_in_a_handshake_goes_on(start, tmp_path):
    """Flower's SuperNode ends then, with exit code 0, and its message with it."""
    once = f"os.path.exists({str(tmp_path / 'once')!r}) or (open({str(tmp_path / 'once')!r}, 'x'), "
    gives_up = "print('@comes 7\\nWARNING :   Giving up reconnection after 30.29 seconds.')"
    node = start(supernode=f"{once}{gives_up}, sys.exit(0)); {SLEEP}")
    assert soon(lambda: len(node.pids("supernode")) == 2)
    assert node.status(lambda status: status.connected and not status.run)


def test_a_configuration_is_read_again_and_holds_from_the_next_message_on(start, tmp_path):
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
    os.kill(node.process.pid, signal.SIGHUP)
    node.wait_for("the configuration was read again")
    node.config.write_text("partition-id = 1\n")
    os.kill(node.process.pid, signal.SIGHUP)
    node.wait_for("the configuration stays as it was: partition-id, state-dir")
    (tmp_path / "a").touch()
    node.wait_for("a has old.csv", times=2)
    node.wait_for("b has new.csv")
    status = node.status(lambda status: status.messages == 2)
    assert (status.connected, status.busy, status.failures) == (True, 1, 0)
    assert len(node.pids("supernode")) == 1
    node.process.terminate()
    node.end()
    ended = node.status(lambda status: not status.connected)
    assert (ended.connected, ended.running) == (False, False)


def test_the_log_of_a_node_is_json_on_request(start: Callable[..., Started]) -> None:
    node = start(tasks=["a", "b"], work="os.kill(os.getpid(), 9 * (token == 'a'))", log="json")
    node.wait_for("answered b")
    told = [json.loads(line) for line in node.lines if not line.startswith("when ")]
    assert {line["source"] for line in told} == {"supernode", "executor", "client", "node"}
    assert {line["run"] for line in told if line["source"] == "client"} == {"7"}
    (killed,) = (line for line in told if line["source"] == "node")
    assert killed["level"] == "ERROR"
    node.status(lambda status: killed["text"] in status.last_error)


def test_a_configuration_that_cannot_be_used_ends_the_node(tmp_path: Path) -> None:
    file, env = tmp_path / "node.toml", {**os.environ, **NO_THREADS}
    file.write_text("not toml")
    command = node_command("h:1", file, [], 9094)
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"fedkern: {file} cannot be read")
    assert done.stderr.count("\n") == 1


def test_a_process_with_threads_is_not_copied(tmp_path: Path) -> None:
    program = (
        "import os, threading, time\n"
        "from fedkern_flwr.simulations.deployment.warm_node import fork\n"
        "os.dup2(os.open({out!r}, os.O_WRONLY | os.O_CREAT), 2)\n"
        "[os.environ.pop(name, None) for name in {unset!r}]\n"
        "threading.Thread(target=time.sleep, args=(5,), daemon=True).start()\n"
        "fork(lambda: None, None, end_with=9)"
    )
    for unset in ([*NO_THREADS], []):
        out = tmp_path / f"{len(unset)}"
        with pytest.MonkeyPatch.context() as patch:
            for name, value in NO_THREADS.items():
                patch.setenv(name, value)
            how = {"out": str(out), "unset": unset}
            process = FORKS.Process(target=exec, args=(program.format(**how), {}))
            process.start()
        process.join(20)
        assert process.exitcode == 1
        shown = out.read_text()
        assert shown.strip().endswith("[FK-NODE-THREADS]")
        for name, value in NO_THREADS.items():
            assert (f"{name}={value}" in shown) == bool(unset)


def test_a_warm_process_has_no_thread_no_socket_and_all_that_a_message_needs() -> None:
    program = (
        "import json, os, sys; from fedkern_flwr.simulations.deployment import warm_node\n"
        "warm_node.warm_up()\n"
        "links = [os.readlink(f'/proc/self/fd/{k}') for k in range(3, 64)"
        " if os.path.exists(f'/proc/self/fd/{k}')]\n"
        "before = set(sys.modules)\n"
        "from fedkern_flwr.clients import *\n"
        "import fedkern_flwr.simulations.apps.node\n"
        "print(json.dumps([len(os.listdir('/proc/self/task')),"
        " [x for x in links if 'socket' in x], sorted(set(sys.modules) - before)]))"
    )
    env = {**os.environ, **NO_THREADS}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [1, [], []], done.stderr


def test_no_more_tasks_are_taken_than_processes_are_free(monkeypatch, capsys):
    """What is told goes through standard input: f a free process, h a hint, its end the end."""
    taken = []

    class Endless:
        def __init__(self, address: str, secret: bytes) -> None: ...

        def take(self) -> tuple[str, int, int]:
            taken.append(len(taken))
            return f"token-{len(taken)}", 5, len(taken)

    told = iter([b"f", b"h", b"ff", b""])
    monkeypatch.setattr(warm_node, "TaskQueue", Endless)
    monkeypatch.setattr(warm_node.os, "read", lambda stream, size: next(told))
    monkeypatch.setattr(warm_node.select, "select", lambda *given: ([0], [], []))
    warm_node.ask_for_tasks("127.0.0.1:1", b"secret")
    assert capsys.readouterr().out.splitlines() == ["@task token-1 5 1", "@task token-2 5 2"]
