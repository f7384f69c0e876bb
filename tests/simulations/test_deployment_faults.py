"""What goes wrong in a deployment: nodes that may not take part, nodes that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers import processes_of
from sklearn.svm import SVC

from fedkern_flwr.errors import EngineError
from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.deployment import certificates
from fedkern_flwr.simulations.deployment.certificates import make_certificates, make_node_key
from fedkern_flwr.simulations.deployment.local import LocalDeployment
from fedkern_flwr.simulations.deployment.node_files import write_node
from fedkern_flwr.simulations.deployment.run_config import app_folder
from fedkern_flwr.simulations.engines.faults import Delivery, Fault
from fedkern_flwr.simulations.methods.groups_data import HierarchicalData
from fedkern_flwr.simulations.methods.groups_settings import HierarchicalSettings
from fedkern_flwr.simulations.methods.online_data import DataSettings, Streams, prepare
from fedkern_flwr.strategies import POFMKL, HierarchicalSVM

pytestmark = pytest.mark.timeout(280)

APP = app_folder("pof_mkl")
OPTIONS = {"data": "", "num-rounds": 30, "samples-per-round": 10, "features": 5, "kernels": 11}


def streams(nodes: int) -> Streams:
    """Return the data of some nodes."""
    return prepare(DataSettings("diabetes", clients=nodes, rounds=30, seed=0))


def write_nodes(folder: Path, nodes: int) -> list[dict[str, Any]]:
    """Write the files of some nodes; return their configurations."""
    clients = streams(nodes).clients
    return [
        write_node(folder / "nodes" / str(k), k, nodes, clients.deployed(k)) for k in range(nodes)
    ]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[LocalDeployment]:
    """Return a SuperLink with registered nodes, none of which has been started."""
    found = LocalDeployment(tmp_path, write_nodes(tmp_path, 3))
    try:
        found.start_superlink()
        found.register(range(3))
        yield found
    finally:
        found.processes.stop()


def listening(deployment: LocalDeployment) -> set[int]:
    """Return the ports that a deployment listens on; each must be one of 127.0.0.1 alone.

    The SuperLink's is that of everything it serves: whoever reaches it may start runs.
    """
    sockets: set[str] = set()
    for pid in processes_of(Path(deployment.environment["FLWR_HOME"])):
        with suppress(OSError):  # ended meanwhile
            sockets |= {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
    ports = set()
    for table, loopback in (("tcp", "0100007F"), ("tcp6", f"{1 << 24:032X}")):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                address, _, port = fields[1].partition(":")
                assert address == loopback, (address, int(port, 16))
                ports.add(int(port, 16))
    return ports


def run(deployment: LocalDeployment, **options: Any) -> dict[str, Any]:
    """Run the app to its end; return its result or its error."""
    told = deployment.folder / "told.json"
    told.unlink(missing_ok=True)
    run_id = deployment.run(APP, {**OPTIONS, "seed": 0, "result": str(told), **options})
    status = deployment.wait_for_run(run_id, 200.0)
    found: dict[str, Any] = json.loads(told.read_text())
    assert status.endswith("failed" if "error" in found else "completed")
    return found


@pytest.mark.deployment
def test_nodes_that_may_not_take_part_are_refused_in_one_line(
    deployment: LocalDeployment, tmp_path: Path
) -> None:
    good = deployment.nodes[2]
    deployment.start_node(0)
    deployment.start_node(1)
    assert listening(deployment) >= {int(deployment.address.rpartition(":")[2])}

    # a key that nobody has registered, and then the key of another node
    make_node_key(tmp_path / "stranger")
    deployment.start_node(2, tmp_path / "stranger")
    with pytest.raises(EngineError, match="node 2 is refused by the SuperLink: its key"):
        deployment.wait_for_nodes()
    deployment.processes.end("node 2")
    deployment.start_node(2, deployment.key(1))
    with pytest.raises(EngineError, match="node 2 is refused by the SuperLink: its key"):
        deployment.wait_for_nodes()
    deployment.processes.end("node 2")

    wrong = {
        "partition-id": (1, "two nodes have partition-id 1; give every node its own"),
        "label-column": ("outcome", "partition 2, phase describe: data.csv has no label column"),
    }
    for key, (value, text) in wrong.items():
        deployment.nodes[2] = {**good, key: value}
        deployment.start_node(2)
        deployment.wait_for_nodes()
        found = run(deployment)
        assert text in found["error"]
        assert found["exit_code"] in (1, 2)
        assert "\n" not in found["error"]
        deployment.processes.end("node 2")


def replayed(number: int, *, uploads: bool) -> np.ndarray[Any, Any]:
    """Return theta of a simulation in which the last of four clients vanishes in a round.

    In that round its masked vector may still have been sent; after it, nothing is.
    """

    def plan(delivery: Delivery) -> Fault | None:
        if delivery.partition != 3 or delivery.round < number:
            return None
        sent = uploads and delivery.round == number and delivery.phase.startswith("online")
        return None if sent else Fault("vanished")

    strategy = POFMKL(kernels=11, features=5, samples_per_round=10, seed=0, secure=True)
    simulate(strategy, streams(4).clients, 4, num_rounds=30, faults=plan)
    theta: np.ndarray[Any, Any] = strategy.model()[0]["theta"]
    return theta


@pytest.mark.deployment
def test_a_node_killed_during_secure_sums_leaves_the_sum_of_the_others(tmp_path: Path) -> None:
    deployment = LocalDeployment(tmp_path, write_nodes(tmp_path, 4))
    told, model = tmp_path / "told.json", tmp_path / "model.npz"
    more = {"result": str(told), "model": str(model), "timeout": 15.0, "secure": "on", "seed": 0}
    with deployment:
        run_id = deployment.run(APP, {**OPTIONS, **more})
        log = tmp_path / "nodes" / "3" / "supernode.log"
        while log.read_text().count("Sent successfully") < 2:  # its first masked vector is sent
            time.sleep(0.1)
        deployment.processes.kill("node 3")
        status = deployment.wait_for_run(run_id, 200.0)
    found = json.loads(told.read_text())
    assert status.endswith("completed"), found
    survivors = [row["survivors"] for row in found["history"]]
    assert survivors[-1] == 3
    assert found["failures"]["3"]
    theta = load_model(model, "pof-mkl")[0]["theta"]
    gaps = [
        np.abs(replayed(number, uploads=uploads) - theta).max()
        for number in (1, 2, 3)
        for uploads in (True, False)
    ]
    # it died before a round's upload or after it: one of these is what happened
    assert min(gaps) < 1e-9, gaps
    assert max(gaps) > 1e-6


@pytest.mark.deployment
def test_agents_leave_out_a_group_whose_user_is_killed(tmp_path: Path) -> None:
    """The others go on without it, to the optimum of their rows in the coordinates of all."""
    settings = HierarchicalSettings("breast-cancer", users=3, groups=3, test_size=0.0)
    options: dict[str, Any] = {"lost_groups": "leave-out", "C": 1.0, "tolerance": 2e-3, "seed": 0}
    dealt = HierarchicalData(settings).client_fn(HierarchicalSVM(allow_single=True, **options))
    nodes = [
        write_node(tmp_path / "nodes" / str(k), k, 6, {**dealt.deployed(k), "allow_single": True})
        for k in range(6)
    ]
    told = tmp_path / "told.json"
    more = {"data": "", "result": str(told), "saved-model": str(tmp_path / "model.npz")}
    more |= {"timeout": 60.0, "attempts": 1, "allow-single": True}
    given = {name.replace("_", "-"): value for name, value in options.items()}
    with LocalDeployment(tmp_path, nodes) as deployment:
        run_id = deployment.run(app_folder("hierarchical_svm"), {**more, **given})
        log = deployment.processes.log_of("node 1")
        while log.read_text().count("Sent successfully") < 5:  # it has done an iteration or two
            time.sleep(0.1)
        deployment.processes.kill("node 1")
        status = deployment.wait_for_run(run_id, 250.0)
    found = json.loads(told.read_text())
    assert status.endswith("completed"), found
    assert found["metrics"]["groups_left_out"] == 1
    assert set(found["failures"]) == {"1"}
    rows = [dealt.table(k) for k in range(3)]
    every, there = (np.concatenate([rows[k]["x"] for k in own]) for own in ((0, 1, 2), (0, 2)))
    z, labels = (there - every.mean(0)) / every.std(0), np.concatenate([r["y"] for r in rows[::2]])
    best = SVC(kernel="linear", C=1.0, tol=1e-9).fit(z, labels)
    signs = np.where(labels == best.classes_[1], 1.0, -1.0)

    def objective(w: np.ndarray[Any, Any], outputs: np.ndarray[Any, Any]) -> float:
        return float(0.5 * (w**2).sum() + np.maximum(0.0, 1.0 - signs * outputs).sum())

    model = load_model(tmp_path / "model.npz", "hierarchical-svm")[0]
    ours = objective(
        model["weights"] * every.std(0), (there @ model["weights"].T)[:, 0] + model["bias"]
    )
    assert ours == pytest.approx(objective(best.coef_, best.decision_function(z)), rel=5e-3)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[LocalDeployment, int, Path]]:
    """A run of three rounds on four warm nodes that has begun, and where its result will be."""
    deployment, told = LocalDeployment(tmp_path, write_nodes(tmp_path, 4)), tmp_path / "told.json"
    more = {"result": str(told), "model": str(tmp_path / "model.npz"), "timeout": 120.0}
    with deployment:
        run_id = deployment.run(APP, {**OPTIONS, **more, "secure": "on", "seed": 0})
        log = deployment.processes.log_of("node 2")
        while log.read_text().count("Sent successfully") < 2:
            time.sleep(0.1)
        yield deployment, run_id, told


def result_of(running: tuple[LocalDeployment, int, Path]) -> dict[str, Any]:
    deployment, run_id, told = running
    assert deployment.wait_for_run(run_id, 250.0).endswith("completed")
    found: dict[str, Any] = json.loads(told.read_text())
    assert len(found["history"]) == 3
    return found


def children(pid: int) -> int:
    """How many processes one has started that are not over yet."""
    return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def group_of(leader: int) -> list[int]:
    """The processes that were started with one."""
    return [int(p.name) for p in Path("/proc").glob("[0-9]*") if _group(p) == leader]


def _group(entry: Path) -> int:
    try:
        return os.getsid(int(entry.name))
    except ProcessLookupError:
        return -1


@pytest.mark.deployment
def test_a_node_that_stands_still_for_a_minute_goes_on(
    running: tuple[LocalDeployment, int, Path],
) -> None:
    """As with a laptop that is closed: the others go on, and it is there again afterwards."""
    deployment = running[0]
    stopped = group_of(deployment.processes.pid("node 2"))
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(60.0)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    found = result_of(running)
    assert set(found["failures"]) <= {"2"}
    deployment.wait_for_nodes()


@pytest.mark.deployment
def test_a_warm_node_whose_processes_are_killed_goes_on_or_is_named(
    running: tuple[LocalDeployment, int, Path],
) -> None:
    """All but the SuperNode are replaced; of one that is killed itself nothing is left."""
    deployment = running[0]
    log = deployment.processes.log_of("node 1")
    leader = deployment.processes.pid("node 1")
    asking = max(set(group_of(leader)) - {leader})  # or who answers a message
    os.kill(asking, signal.SIGKILL)
    while "started again" not in log.read_text() and "by signal 9" not in log.read_text():
        time.sleep(0.1)
    leader = deployment.processes.pid("node 2")
    os.kill(leader, signal.SIGKILL)
    deadline = time.monotonic() + 20.0
    while [pid for pid in group_of(leader) if pid != leader] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert set(group_of(leader)) <= {leader}
    found = result_of(running)
    assert found["failures"]["2"]
    assert found["history"][-1]["survivors"] == 3


@pytest.mark.deployment
def test_a_full_disk_of_a_node_is_named(tmp_path: Path) -> None:
    small, told = tmp_path / "small", tmp_path / "told.json"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems may not be mounted here")
    try:
        nodes = write_nodes(tmp_path, 4)
        nodes[2]["state-dir"] = str(small)
        (small / "filler").write_bytes(bytes(60_000))
        deployment = LocalDeployment(tmp_path, nodes)
        with deployment:
            more = {"result": str(told), "secure": "on", "seed": 0, "num-rounds": 3}
            run_id = deployment.run(APP, {**OPTIONS, **more})
            deployment.wait_for_run(run_id, 250.0)
            deployment.wait_for_nodes()  # it is there still
        found = json.loads(told.read_text())
        assert "partition 2, phase describe: ledger.sqlite" in found["error"]
        assert "SQLITE_FULL" in found["error"]
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


@pytest.mark.deployment
def test_an_expired_certificate_and_a_wrong_clock_are_named(
    deployment: LocalDeployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong-clock"
    wrong.mkdir()
    (wrong / "sitecustomize.py").write_text(WRONG_CLOCK)
    monkeypatch.setitem(deployment.processes.environment, "PYTHONPATH", str(wrong))
    deployment.start_node(0)
    with pytest.raises(EngineError, match=r"node 0 has ended: .* its clock is wrong"):
        deployment.wait_for_nodes()
    monkeypatch.undo()

    other = LocalDeployment(tmp_path / "other", [])
    (tmp_path / "other" / "keys").mkdir()
    monkeypatch.setattr(certificates, "_DAYS", -1 / 1440)
    make_certificates(tmp_path / "other" / "keys")
    try:
        with pytest.raises(EngineError, match=r"does not hold \(certificate has expired\)"):
            other.start_superlink()
    finally:
        other.processes.stop()


#: Puts the clock of Flower's processes forward by an hour.
WRONG_CLOCK = """
import datetime, sys
class Wrong:
    def find_spec(self, name, path=None, target=None):
        if name != "flwr.supernode.node_auth_http_interceptor":
            return None
        sys.meta_path.remove(self)
        import flwr.supercore.date as date
        right = date.now
        date.now = lambda: right() + datetime.timedelta(hours=1)
        return None
sys.meta_path.insert(0, Wrong())
"""


@pytest.mark.deployment
def test_a_busy_machine_gets_no_more_processes_than_nodes(tmp_path: Path) -> None:
    """Twice as many spinning processes as processors: five nodes with one client process each."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    deployment, told, most = LocalDeployment(tmp_path, write_nodes(tmp_path, 5)), tmp_path / "t", 0
    try:
        with deployment:
            more = {"result": str(told), "secure": "on", "seed": 0, "num-rounds": 4}
            run_id = deployment.run(APP, {**OPTIONS, **more})
            done = threading.Event()

            def watch() -> None:
                nonlocal most
                leaders = [deployment.processes.pid(f"node {k}") for k in range(5)]
                while not done.wait(0.02):
                    most = max(most, *map(children, leaders))

            watching = threading.Thread(target=watch)
            watching.start()
            try:
                status = deployment.wait_for_run(run_id, 270.0)
            finally:
                done.set()
                watching.join()
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    assert status.endswith("completed"), told.read_text()
    assert most == 3  # its SuperNode, who asks for tasks, and one that answers
