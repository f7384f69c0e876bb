"""Deployments on real servers: nodes that may not take part, what is killed, who deviates."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Tables
from flwr.app import Context
from identities import known_node
from refusals import refuses
from servers import processes_of, wait_for_end_of
from sklearn.svm import SVC

from fedkern_flwr.checkpoint import create_file
from fedkern_flwr.clients import KernelPCAClient, SVMClient
from fedkern_flwr.flower_compat import Control
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations import Fault, simulate
from fedkern_flwr.simulations.deployment.local import (
    LocalDeployment,
    make_certificates,
    make_node_key,
)
from fedkern_flwr.simulations.deployment.node_files import write_node
from fedkern_flwr.simulations.deployment.run_config import app_folder
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.simulations.methods.groups import HierarchicalData, HierarchicalSettings
from fedkern_flwr.simulations.methods.online import DataSettings, Streams, prepare
from fedkern_flwr.strategies import POFMKL, HierarchicalSVM, KernelPCA

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(580)]

POF = {"data": "", "num-rounds": 30, "samples-per-round": 10, "features": 4, "kernels": 3}
PCA = {"method": "kernel-pca", "options": json.dumps({"components": 3, "features": 40})}
Arrays = dict[str, np.ndarray[Any, Any]]


@cache
def streams(nodes: int) -> Streams:
    """Return the data of some nodes."""
    return prepare(DataSettings("diabetes", clients=nodes, rounds=30, seed=0))


def write_nodes(folder: Path, nodes: int, policy: NodePolicy | None = None) -> list[dict[str, Any]]:
    """Write the files of some nodes; return their configurations."""
    own = map(streams(nodes).clients.deployed, range(nodes))
    return [
        write_node(folder / "nodes" / str(k), k, nodes, one, policy) for k, one in enumerate(own)
    ]


def start(deployment: LocalDeployment, app: str = "pof_mkl", name: str = "run", **more: Any) -> int:
    """Start a run that writes its result and its model under a name."""
    files = {key: str(deployment.folder / f"{name}-{key}") for key in ("result", "model")}
    Path(files["result"]).unlink(missing_ok=True)
    return deployment.run(
        app_folder(app), {**(POF if app == "pof_mkl" else PCA), "seed": 0, **files, **more}
    )


def result(deployment: LocalDeployment, number: int, name: str = "run") -> dict[str, Any]:
    """Wait for the end of a run; return its result or its error."""
    status = deployment.wait_for_run(number, 500.0)
    found: dict[str, Any] = json.loads((deployment.folder / f"{name}-result").read_text())
    assert status.endswith("failed" if "error" in found else "completed"), found
    return found


def model(deployment: LocalDeployment, name: str = "run", method: str = "pof-mkl") -> Arrays:
    return dict(load_model(deployment.folder / f"{name}-model", method)[0])


def until_sent(deployment: LocalDeployment, node: int, messages: int) -> None:
    """Wait until a node has sent so many messages."""
    log, late = deployment.folder / "nodes" / str(node) / "supernode.log", time.monotonic() + 200.0
    while log.read_text().count("Sent successfully") < messages:
        assert time.monotonic() < late, "the run has ended, or stands"
        time.sleep(0.1)


def kill_superlink(deployment: LocalDeployment) -> None:
    os.kill(deployment.processes.started["SuperLink"].pid, signal.SIGKILL)
    deployment.processes.kill("SuperLink")


def simulated(nodes: int, **more: Any) -> np.ndarray[Any, Any]:
    """Return theta of a simulation of the same run."""
    strategy = POFMKL(kernels=3, features=4, samples_per_round=10, seed=0, secure=True)
    simulate(strategy, streams(nodes).clients, nodes, num_rounds=30, **more)
    theta: np.ndarray[Any, Any] = strategy.model()[0]["theta"]
    return theta


# -- nodes that may not take part


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


def test_nodes_that_may_not_take_part_are_refused(deployment: Any, tmp_path: Path) -> None:
    good = deployment.nodes[2]
    deployment.start_node(0)
    deployment.start_node(1)
    assert listening(deployment) >= {int(deployment.address.rpartition(":")[2])}
    make_node_key(tmp_path / "stranger")
    for key in (tmp_path / "stranger", deployment.key(1)):  # of nobody, and of another node
        deployment.start_node(2, key)
        refuses("FK-DEPLOY-KEY", deployment.wait_for_nodes)
        deployment.processes.end("node 2")
    wrong = {
        "partition-id": (1, "two nodes have partition-id 1"),
        "label-column": ("outcome", "partition 2, phase describe"),
    }
    for name, (value, text) in wrong.items():
        deployment.nodes[2] = {**good, name: value}
        deployment.start_node(2)
        deployment.wait_for_nodes()
        found = result(deployment, start(deployment))
        assert text in found["error"]
        assert found["exit_code"] in (1, 2)
        assert "\n" not in found["error"]
        deployment.processes.end("node 2")


#: Puts the clock of Flower's processes forward by ten minutes.
WRONG_CLOCK = """
import datetime, sys
class Wrong:
    def find_spec(self, name, path=None, target=None):
        if name != "flwr.supernode.node_auth_http_interceptor":
            return None
        sys.meta_path.remove(self)
        import flwr.supercore.date as date
        right = date.now
        date.now = lambda: right() + datetime.timedelta(minutes=10)
        return None
sys.meta_path.insert(0, Wrong())
"""


def test_an_expired_certificate_and_a_wrong_clock_are_named(
    deployment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong-clock"
    wrong.mkdir()
    (wrong / "sitecustomize.py").write_text(WRONG_CLOCK)
    monkeypatch.setitem(deployment.processes.environment, "PYTHONPATH", str(wrong))
    deployment.start_node(0)
    caught = refuses("FK-DEPLOY-ENDED", deployment.wait_for_nodes)
    assert "its clock is wrong" in str(caught)
    monkeypatch.undo()

    other = LocalDeployment(tmp_path / "other", [])
    (tmp_path / "other" / "keys").mkdir()
    make_certificates(tmp_path / "other" / "keys", days=-1 / 1440)
    try:
        refuses("FK-DEPLOY-CERTIFICATE", other.start_superlink)
    finally:
        other.processes.stop()


def test_a_full_disk_of_a_node_is_named(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems may not be mounted here")
    try:
        nodes = write_nodes(tmp_path, 4)
        nodes[2]["state-dir"] = str(small)
        (small / "partition").write_text("2\n")  # of an earlier run
        (small / "filler").write_bytes(bytes(60_000))
        with LocalDeployment(tmp_path, nodes) as deployment:
            number = start(deployment, secure="on", **{"num-rounds": 3})
            found = result(deployment, number)
            deployment.wait_for_nodes()  # it is there still
        assert "partition 2, phase describe: ledger.sqlite" in found["error"]
        assert "SQLITE_FULL" in found["error"]
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


# -- what is killed


def test_a_node_killed_during_secure_sums_leaves_the_sum_of_the_others(tmp_path: Path) -> None:
    with LocalDeployment(tmp_path, write_nodes(tmp_path, 4)) as deployment:
        number = start(deployment, timeout=15.0, secure="on", **{"node-timeout": 40.0})
        until_sent(deployment, 3, 2)  # its first masked vector
        deployment.processes.kill("node 3")
        found = result(deployment, number)
    assert found["history"][-1]["survivors"] == 3
    assert found["failures"]["3"]

    def vanished(number: int, uploads: bool) -> np.ndarray[Any, Any]:
        def plan(delivery: Delivery) -> Fault | None:
            if delivery.partition != 3 or delivery.round < number:
                return None
            sent = uploads and delivery.round == number and delivery.phase.startswith("online")
            return None if sent else Fault("vanished")

        return simulated(4, faults=plan)

    theta = model(deployment)["theta"]
    gaps = [np.abs(vanished(k, sent) - theta).max() for k in (1, 2, 3) for sent in (True, False)]
    # it died before a round's upload or after it: one of these is what happened
    assert min(gaps) < 1e-9, gaps
    assert max(gaps) > 1e-6


def test_a_node_killed_and_started_again_goes_on_in_the_run(tmp_path: Path) -> None:
    """It has the keys of the run on its disk, and erases them when it hears that the run is over.

    It is in all sums: the model is that of a run in which nothing happened.
    """
    with LocalDeployment(tmp_path, write_nodes(tmp_path, 4)) as deployment:
        number = start(deployment, timeout=200.0, secure="on")
        until_sent(deployment, 3, 2)  # its first masked vector
        deployment.processes.kill("node 3")
        assert list(tmp_path.glob("nodes/3/**/partition-3.context"))
        deployment.start_node(3)
        assert result(deployment, number)["history"][-1]["survivors"] == 4
    np.testing.assert_allclose(model(deployment)["theta"], simulated(4), rtol=0, atol=1e-9)
    lived = (tmp_path / "nodes" / "3" / "supernode.log").read_text().split("SuperNode ID")
    assert len(lived) == 3  # before, of the first life, of the second
    assert "Sent successfully" in lived[2]
    assert "raised an exception" not in lived[2]
    assert not list(tmp_path.glob("nodes/*/**/*.context"))


class SurvivingRuns(LocalDeployment):
    """Runs are started by a process of its own, which the end of the SuperLink leaves alone."""

    def start_superlink(self, port: int = 0) -> None:
        """Start the SuperLink and, once, the process that starts runs."""
        secret, usual = self.folder / "superexec-secret", self.processes.start
        if not secret.exists():
            with create_file(secret) as file:
                file.write(secrets.token_bytes(32))
        own = ["--superexec-auth-secret-file", str(secret)]
        kept = ["--isolation", "process", "--database", self.folder / "state.db", *own]

        def isolated(name: str, command: Sequence[str | Path], log: Path) -> int:
            return usual(name, [*command, *(kept if name == "SuperLink" else ())], log)

        self.processes.start = isolated  # type: ignore[method-assign]
        try:
            super().start_superlink(port)
        finally:
            self.processes.start = usual  # type: ignore[method-assign]
        if "SuperExec" not in self.processes.started:
            command = ["flower-superexec", "--runtime-api-address", self.address, *own]
            command += ["--root-certificates", str(self.folder / "keys" / "ca.crt")]
            usual("SuperExec", command, self.folder / "superexec.log")


def test_agents_leave_out_a_group_whose_user_is_killed(tmp_path: Path) -> None:
    """The others go on without it, to the optimum of their rows in the coordinates of all."""
    settings = HierarchicalSettings("breast-cancer", users=3, groups=3, test_size=0.0)
    options: dict[str, Any] = {"lost_groups": "leave-out", "C": 0.1, "tolerance": 3e-2, "seed": 0}
    dealt = HierarchicalData(settings).client_fn(HierarchicalSVM(allow_single=True, **options))
    nodes = [
        write_node(tmp_path / "nodes" / str(k), k, 6, {**dealt.deployed(k), "allow_single": True})
        for k in range(6)
    ]
    more = {"data": "", "saved-model": str(tmp_path / "model.npz"), "attempts": 1}
    more["node-timeout"] = 20.0
    more |= {name.replace("_", "-"): value for name, value in options.items()}
    with LocalDeployment(tmp_path, nodes) as deployment:
        common = {"timeout": 60.0, "allow-single": True, "result": str(tmp_path / "told.json")}
        number = deployment.run(app_folder("hierarchical_svm"), {**more, **common})
        until_sent(deployment, 1, 5)  # it has done an iteration or two
        deployment.processes.kill("node 1")
        assert deployment.wait_for_run(number, 250.0).endswith("completed")
    found = json.loads((tmp_path / "told.json").read_text())
    assert found["metrics"]["groups_left_out"] == 1
    assert set(found["failures"]) == {"1"}
    rows = [dealt.table(k) for k in range(3)]
    every, there = (np.concatenate([rows[k]["x"] for k in own]) for own in ((0, 1, 2), (0, 2)))
    z, labels = (there - every.mean(0)) / every.std(0), np.concatenate([r["y"] for r in rows[::2]])
    best = SVC(kernel="linear", C=0.1, tol=1e-9).fit(z, labels)
    signs = np.where(labels == best.classes_[1], 1.0, -1.0)

    def objective(w: Any, outputs: Any) -> float:
        return float(0.5 * (w**2).sum() + 0.1 * np.maximum(0.0, 1.0 - signs * outputs).sum())

    model = load_model(tmp_path / "model.npz", "hierarchical-svm")[0]
    outputs = (there @ model["weights"].T)[:, 0] + model["bias"]
    ours = objective(model["weights"] * every.std(0), outputs)
    assert ours == pytest.approx(objective(best.coef_, best.decision_function(z)), rel=2e-2)


def test_a_run_goes_on_when_the_superlink_was_killed_and_is_back(tmp_path: Path) -> None:
    with SurvivingRuns(tmp_path, write_nodes(tmp_path, 3)) as deployment:
        number = start(deployment, timeout=60.0)
        until_sent(deployment, 0, 3)  # described, and a sum was opened
        port = int(deployment.address.rpartition(":")[2])
        kill_superlink(deployment)
        deployment.start_superlink(port)
        assert result(deployment, number)["survivors"] == 3
    np.testing.assert_allclose(model(deployment)["theta"], simulated(3), rtol=0, atol=1e-9)


# -- several runs


def test_runs_at_the_same_time_and_after_one_another_give_their_models(tmp_path: Path) -> None:
    """Their owners let streams be learned from several times."""
    pca = KernelPCA(components=3, features=40, seed=0)
    rows = [shard.x for shard in streams(3).shards]
    simulate(pca, lambda c: KernelPCAClient(c, rows[int(c.node_config["partition-id"])]), 3)
    nodes = write_nodes(tmp_path, 3, NodePolicy(counting="warn"))
    with LocalDeployment(tmp_path, nodes) as deployment:
        first, second = start(deployment), start(deployment, "method", "pca")
        result(deployment, first)
        np.testing.assert_allclose(model(deployment)["theta"], simulated(3), rtol=0, atol=1e-9)
        for number in (second, None):  # and once more, by itself
            result(deployment, number or start(deployment, "method", "pca"), "pca")
            for name, values in pca.model()[0].items():
                found = model(deployment, "pca", "kernel-pca")[name]
                np.testing.assert_allclose(found, values, rtol=0, atol=1e-9, err_msg=name)
    for k in range(3):  # messages of both runs came in turns, and were answered one by one
        log = (tmp_path / "nodes" / str(k) / "supernode.log").read_text()
        runs = [int(run) for run in re.findall(r"\[RUN (\d+), .*\n.*Receiving:", log)]
        assert runs.index(second) < len(runs) - 1 - runs[::-1].index(first)
        assert runs.index(first) < len(runs) - 1 - runs[::-1].index(second)
        assert re.findall(r"(Receiving|Sending):", log) == ["Receiving", "Sending"] * len(runs)


def kill_a_client(node: int) -> None:
    """Kill what next answers a message of a node, which is named by the process that keeps it."""
    children, late = Path(f"/proc/{node}/task/{node}/children"), time.monotonic() + 60.0
    others = set(children.read_text().split())  # the SuperNode, and what asks for tasks
    while not (clients := set(children.read_text().split()) - others):
        assert time.monotonic() < late, "no message came"
    os.kill(int(clients.pop()), signal.SIGKILL)


def test_a_stopped_run_and_a_killed_client_hold_up_no_run(tmp_path: Path) -> None:
    """Before, the node waited for parts of a message that never came, or a minute for a reply."""
    nodes = write_nodes(tmp_path, 3, NodePolicy(counting="warn"))
    with LocalDeployment(tmp_path, nodes) as deployment:
        control = Control(deployment.address, tmp_path / "keys" / "ca.crt")
        first, second = start(deployment), start(deployment, "method", "pca")
        until_sent(deployment, 0, 2)
        control.stop(first)
        assert "error" not in result(deployment, second, "pca")
        log = tmp_path / "nodes" / "0" / "supernode.log"
        third, sent = start(deployment, "method", "pca"), log.read_text().count("Sent successfully")
        until_sent(deployment, 0, sent + 1)  # its description
        kill_a_client(deployment.processes.started["node 0"].pid)
        killed = time.monotonic()
        assert "error" not in result(deployment, third, "pca")
        assert time.monotonic() < killed + 30.0
    assert "was ended by signal 9" in log.read_text()


def table(k: int) -> dict[str, Any]:
    """Return the rows of a node."""
    x = np.random.default_rng(k).random((100, 4))
    y = np.where(x.sum(axis=1) > 2.0, 1.0, -1.0)
    held = {"x_test": x[80:], "y_test": y[80:]}
    return {"x": x[:80], "y": y[:80], **held, "classes": (-1.0, 1.0)}


def noise_keys(folder: Path) -> list[list[bytes]]:
    """Return the keys of noise that lie in the folders of the nodes."""
    found = []
    for k in range(3):
        with closing(sqlite3.connect(folder / f"nodes/{k}/state/ledger.sqlite")) as db:
            found.append(
                [bytes(key) for (key,) in db.execute("SELECT noise FROM runs WHERE noise <> x''")]
            )
    return found


def test_a_run_with_a_budget_goes_on_and_is_paid_once(tmp_path: Path, monkeypatch: Any) -> None:
    policy, own = NodePolicy(max_epsilon=3.0), [{**table(k), "role": "user"} for k in range(3)]
    folder, nodes = tmp_path / "nodes", []
    for k, one in enumerate(own):
        config = write_node(folder / str(k), k, 3, one, policy)
        known = known_node(folder, k, 3)
        keys = {
            name: str(known[name.replace("-", "_")]) for name in ("identity-key", "trusted-keys")
        }
        nodes.append({**config, **keys})
        NodeLedger(Path(str(config["state-dir"])), k).make()
    options: dict[str, Any] = {"C": 1.0, "privacy-epsilon": 3.0, "num-rounds": 12, "data": ""}
    options |= {"checkpoint": str(tmp_path / "run.npz"), "checkpoint-every": 3}
    options |= {"saved-model": str(tmp_path / "run-model")}

    def ledger(k: int) -> NodeLedger:
        return NodeLedger(tmp_path / "nodes" / str(k) / "state", k)

    def begin(deployment: LocalDeployment, **more: Any) -> int:
        (tmp_path / "run-result").unlink(missing_ok=True)
        config = {**options, "seed": 0, "result": str(tmp_path / "run-result"), **more}
        return deployment.run(app_folder("hierarchical_svm"), config)

    with LocalDeployment(tmp_path, nodes) as deployment:
        begin(deployment)
        until_sent(deployment, 0, 6)  # past the second checkpoint
        kill_superlink(deployment)
    for pid in processes_of(tmp_path / "flwr"):  # the app's server, which waits for its SuperLink
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    keys = noise_keys(tmp_path)
    assert [len(one) for one in keys] == [1] * 3
    for k in range(3):
        (begun,) = ledger(k).runs()
        assert 0.0 < begun.epsilon < 3.0

    with LocalDeployment(tmp_path, nodes) as deployment:  # all is started again
        found = result(deployment, begin(deployment, resume=True))
        assert "error" not in found, found
        again = result(deployment, begin(deployment, checkpoint=""))
    noise = lambda self, session, known=b"": keys[self.partition][0]  # noqa: E731
    monkeypatch.setattr(NodeLedger, "noise_key", noise)

    def client(context: Context) -> SVMClient:
        return SVMClient(context, **table(int(context.node_config["partition-id"])))

    quiet = HierarchicalSVM(C=1.0, privacy_epsilon=3.0, seed=0)
    simulate(quiet, client, 3, num_rounds=12)
    ours = model(deployment, method="hierarchical-svm")
    for name, values in quiet.model()[0].items():
        assert np.array_equal(ours[name], values), name
    assert found["metrics"] == pytest.approx(quiet.metrics_)
    assert found["privacy"]["budget"] == quiet.privacy()["budget"]
    assert noise_keys(tmp_path) == [[]] * 3  # of a run that is over
    assert wait_for_end_of(tmp_path / "flwr") == []
    assert "max_epsilon = 3" in again["error"]
    assert again["exit_code"] == 2
    for k in range(3):
        paid, *later = ledger(k).runs()
        assert paid.epsilon == pytest.approx(3.0, rel=1e-2)
        assert not sum(run.epsilon or 0.0 for run in later)


# -- a server that deviates


NODES, ROWS = 3, 80
#: Server apps of kernel PCA: what they do instead of what the method says.
MANY = """
from fedkern_flwr.simulations.attacks.many_kernels import ManyKernels
ManyKernels.widths = (1.0, 0.5)
app = server_app(lambda config: ManyKernels)
"""
NAMED = """
import secrets
secrets.token_hex = lambda size=32: "ab" * 16
"""
CHOSEN = """
import numpy as np
from fedkern_flwr.kernel_pca import REST
from fedkern_flwr.strategies import KernelPCA
class Chosen(KernelPCA):
    def rounds(self, parties):
        kernel = {"bandwidth": 1.0, "features": 4, "seed": 0}
        ask = {"mean": np.zeros(8), "components": np.eye(8)[:1], **kernel}
        yield REST({"left": (), "all": ()}, **ask)
        return {}
app = server_app(lambda config: Chosen)
"""


@pytest.fixture
def nodes(tmp_path: Path) -> list[dict[str, Any]]:
    found, random = [], np.random.default_rng(0)
    for k in range(NODES):
        place = tmp_path / "nodes" / str(k)
        place.mkdir(parents=True)
        names = {"data": ROWS, "test-data": 20}
        files = {
            name: Tables.write(
                place / f"{name}.csv", dict(zip("abc", random.random((3, rows)), strict=True))
            )
            for name, rows in names.items()
        }
        known = known_node(tmp_path / "known", k, NODES)
        own = {name.replace("_", "-"): str(path) for name, path in known.items()}
        found.append({"partition-id": k, "num-partitions": NODES, **files, **own})
    return found


def app(folder: Path, patch: str) -> Path:
    """Return a copy of the app of methods whose server is another."""
    shutil.copytree(app_folder("method"), folder)
    with (folder / "server_app.py").open("a") as file:
        file.write(patch)
    return folder


def go(deployment: LocalDeployment, place: Path) -> dict[str, Any]:
    """Run an app; return its result or its error."""
    path = deployment.folder / "result"
    path.unlink(missing_ok=True)
    options = json.dumps({"components": 2, "features": 4})
    config = {"method": "kernel-pca", "options": options, "seed": 0, "result": str(path)}
    deployment.wait_for_run(deployment.run(place, config), 300.0)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_what_deviates_is_refused(nodes: list[dict[str, Any]], tmp_path: Path) -> None:
    """The same sum of another width, a model that nobody made, a second run of one name."""
    ledger = NodeLedger(Path(str(nodes[0]["state-dir"])), 0)
    with LocalDeployment(tmp_path, nodes) as deployment:
        found = go(deployment, app(tmp_path / "many", MANY))
        assert "FK-SETTINGS-CHANGED" in found["error"], found
        assert [run.sums for run in ledger.runs()] == [("moments",)]
        found = go(deployment, app(tmp_path / "chosen", CHOSEN))
        assert "FK-ORDER-MODEL" in found["error"], found
        named = app(tmp_path / "named", NAMED)
        assert "error" not in go(deployment, named)
        found = go(deployment, named)
        assert "FK-SESSION-KNOWN" in found["error"], found
