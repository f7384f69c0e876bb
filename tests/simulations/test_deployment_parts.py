"""The parts of a deployment that need no server: files, keys, processes, options."""

from __future__ import annotations

import csv
import json
import os
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from hypothesis import given
from hypothesis import strategies as st
from refusals import raises, refused, refuses
from scipy.sparse import csr_array
from waiting import running, soon

from fedkern_flwr.errors import EngineError
from fedkern_flwr.guard.policy import NodePolicy, read_policy, toml
from fedkern_flwr.node_config import read_classes
from fedkern_flwr.simulations.cli import deploy
from fedkern_flwr.simulations.deployment.local import (
    LocalDeployment,
    Processes,
    ended,
    free_port,
    make_certificates,
    make_node_key,
)
from fedkern_flwr.simulations.deployment.node_files import read_secrets, write_node
from fedkern_flwr.simulations.deployment.run_config import app_folder, declared, run_config
from fedkern_flwr.simulations.methods.registry import family, method, options
from fedkern_flwr.tables import load_table

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not EPHEMERAL.is_file(), reason="Linux alone says where connections begin")
def test_a_free_port_stays_free_until_it_is_listened_on() -> None:
    """A SuperNode failed to start whose port had become the near end of a connection."""
    least = int(EPHEMERAL.read_text().split()[0])
    assert all(1024 < free_port() < least for _ in range(200))
    other = free_port()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert {free_port([port, other]) for _ in range(5)} == {other}
        refuses("FK-DEPLOY-PORTS", free_port, [port, port])


# -- files of a node


def test_a_table_is_read_back_bit_for_bit_and_by_its_user_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3)) * 10.0 ** rng.integers(-300, 300, size=(50, 3))
    x[0] = [0.1, -0.0, 5e-324]
    y = rng.normal(size=50)
    y[7] = np.nan
    own = {"x": x, "y": y, "ids": np.arange(50)[::-1], "columns": ("a", "b,c", "id")}
    own |= {"x_test": np.ones((1, 3)), "alignment_key": bytes(32)}
    config = write_node(tmp_path / "node", 0, 2, {**own, "classes": (0.0, 1.0, 2.5)})

    columns = {"id_column": config["id-column"], "label": config["label-column"]}
    table = load_table(config["data"], missing="keep", **columns)
    assert table.columns == ("a", "b,c", "id")
    assert table.x.tobytes() == x.tobytes()
    np.testing.assert_array_equal(table.y, y)
    assert table.ids is not None
    assert table.ids.tolist() == [str(k) for k in range(49, -1, -1)]
    assert (config["partition-id"], config["num-partitions"]) == (0, 2)
    assert config["classes"] == "0,1,2.5"
    files = [Path(str(config[name])) for name in ("data", "test-data", "alignment-key")]
    assert bytes.fromhex(files[2].read_text()) == bytes(32)
    for path in (tmp_path / "node", *files):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("classes", "written", "labels"), [
    (("ham", "spam"), "ham,spam", ["ham", "spam", "ham"]),
    (("not ham", "ham"), "0,1", ["0", "1", "0"]),  # a node sorts names
    (("a,b", "c"), "0,1", ["0", "1", "0"]),
])  # fmt: skip
def test_labels_of_a_node_s_files_have_the_names_of_classes(classes, written, labels, tmp_path):
    own = {"x": np.ones((3, 1)), "y": np.array([0.0, 1.0, 0.0]), "classes": classes}
    config = write_node(tmp_path, 0, 2, own)
    assert config["classes"] == written
    lines = Path(str(config["data"])).read_text().splitlines()[1:]
    assert [line.rpartition(",")[2] for line in lines] == labels
    names = read_classes(str(written))
    table = load_table(config["data"], label=str(config["label-column"]), classes=names)
    np.testing.assert_array_equal(table.y, own["y"])


@pytest.mark.parametrize(("name", "listed"), [("ward", "ward"), ("ward, bed", None)])
def test_categories_of_digits_are_read_as_text_where_their_name_can_be_listed(
    name: str, listed: str | None, tmp_path: Path
) -> None:
    own = {"x": np.array([[0.0, 1.5], [1.0, 2.5]]), "columns": (name, "age")}
    own |= {"kinds": {name: "category"}, "categories": {name: ("10", "20")}}
    config = write_node(tmp_path, 0, 2, own)
    assert config.get("categories") == listed
    lines = Path(str(config["data"])).read_text().splitlines()
    assert [row[0] for row in csv.reader(lines)] == [name, "10", "20"]


def test_agents_have_a_policy_alone_and_ratings_are_pairs(tmp_path: Path) -> None:
    agent = write_node(tmp_path / "a", 3, 5, {"role": "agent", "group": 1, "allow_single": False})
    assert {"role": "agent", "group": 1, "allow-single": False}.items() <= agent.items()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["policy.toml"]
    assert read_policy(agent["policy"]) == NodePolicy()
    own = {"x": csr_array([[1, 0, 1], [0, 0, 0]]), "users": ("u", "v"), "items": ("a", "b", "c")}
    rater = write_node(tmp_path / "r", 0, 2, own)
    assert Path(str(rater["data"])).read_text() == "user,item\nu,a\nu,c\n"
    assert Path(str(rater["catalogue"])).read_text() == "a\nb\nc\n"
    assert "test-data" not in rater


@given(st.one_of(st.text(), st.booleans(), st.integers(-(2**62), 2**62), st.floats()))
def test_values_survive_as_toml(value: Any) -> None:
    if isinstance(value, str):  # a value is one line
        value = "".join(c for c in value if c.isprintable())
    found = tomllib.loads(f"key = {toml(value)}")["key"]
    assert type(found) is type(value)
    assert found == value or value != value


@pytest.fixture
def written(tmp_path, commands, monkeypatch):
    """Return what makes the files of a deployment that does not start, and what it says."""

    def start(*_: Any) -> None:
        raise EngineError("not today", code="FK-DEPLOY-ENDED")

    monkeypatch.setattr(deploy, "LocalDeployment", start)

    def write(arguments: str, name: str = "run") -> tuple[list[dict[str, Any]], str]:
        out = tmp_path / name
        code, _, said = commands("deploy-local", *arguments.split(), "--out", str(out))
        assert code == 1
        files = (out / "nodes" / str(k) / "node-config.json" for k in range(100))
        return [json.loads(file.read_text()) for file in files if file.exists()], said

    return write


@pytest.mark.parametrize("arguments", ["pof-mkl 4", "pof-mkl 2", "fed-cg 4", "fed-cfk 10"])
def test_nodes_have_the_default_policy_but_for_what_the_options_need(
    arguments: str, written: Callable[..., Any], tmp_path: Path
) -> None:
    """What is not the default is said on the console, and how to go on after a failure."""
    changed = {"min_parties": 2} if arguments == "pof-mkl 2" else {}
    nodes, said = written(arguments.replace(" ", " --nodes "))
    noted = [line.split()[5] for line in said.splitlines() if "policies have" in line]
    assert noted == list(changed)
    assert len(nodes) == int(arguments.split()[-1])
    assert all(read_policy(node["policy"]).changed == changed for node in nodes)
    name = arguments.split()[0]
    again = f"go on with fedkern deploy-local {name} --resume {tmp_path / 'run'}"
    assert said.endswith(f"{again} [FK-DEPLOY-ENDED]\n")


@pytest.mark.promise("deployed-secrets")
@pytest.mark.parametrize(
    ("name", "own"), [("fed-cg", "landmark_seed"), ("fdskl", "frequency_seed")]
)
def test_secrets_of_nodes_come_from_the_operating_system(name, own, written):
    """Two deployments with the same options and seed."""
    found = [written(f"{name} --nodes 5 --seed 4", out)[0] for out in ("one", "two")]
    first, second = ([read_secrets(Path(n["policy"]).parent) for n in nodes] for nodes in found)
    for one, two in zip(first, second, strict=True):
        assert set(one) == set(two)
        assert not set(one.values()) & set(two.values())
        assert all(len(secret) == 32 for secret in one.values())
    for drawn, nodes in zip((first, second), found, strict=True):
        assert len({secrets["alignment_key"] for secrets in drawn}) == 1
        places = [node.get("block", k) for k, node in enumerate(nodes)]
        pairs = {(place, s[own]) for place, s in zip(places, drawn, strict=True)}
        assert len(pairs) == len(set(places)) == len({secret for _, secret in pairs})


# -- keys


def test_the_server_s_certificate_is_signed_for_this_machine_and_keys_of_nodes_are_pairs(tmp_path):
    make_certificates(tmp_path)
    root = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    leaf = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    leaf.verify_directly_issued_by(root)
    root.verify_directly_issued_by(root)
    hosts = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert hosts.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(a) for a in hosts.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert sorted(f.name for f in tmp_path.iterdir()) == ["ca.crt", "server.key", "server.pem"]
    make_node_key(tmp_path / "node-0")
    private: Any = load_ssh_private_key((tmp_path / "node-0").read_bytes(), None)
    assert private.public_key() == load_ssh_public_key((tmp_path / "node-0.pub").read_bytes())
    assert private.curve.name == "secp384r1"  # what Flower takes for nodes
    for name in ("server.key", "node-0"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0


# -- processes


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes({"PATH": "/usr/bin:/bin"}, tmp_path / "pids", grace=0.5)
    yield found
    found.stop()


def test_stopping_leaves_nothing_of_a_process_s_group(tmp_path, processes, monkeypatch):
    """Nor does another Ctrl-C while it goes on."""
    child, wait = tmp_path / "child", subprocess.Popen.wait
    script = f"trap '' TERM; sleep 300 & echo $! > {child}; wait"

    def interrupted(self: Any, timeout: float | None = None) -> int:
        if timeout is not None:
            raise KeyboardInterrupt
        return wait(self)

    for impatient in (False, True):
        child.unlink(missing_ok=True)
        leader = processes.start("shell", ["sh", "-c", script], tmp_path / "log")
        while not child.exists() or not child.read_text().strip():
            time.sleep(0.01)
        sleeper = int(child.read_text())
        assert (tmp_path / "pids").read_text().split() == [str(leader)]
        assert running(sleeper)
        if impatient:
            monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
            raises(KeyboardInterrupt, processes.stop)
            monkeypatch.undo()
        else:
            processes.stop()
        assert soon(lambda pid=sleeper: not running(pid), 5.0)
        assert not running(leader)
        assert not (tmp_path / "pids").exists()


def test_a_killed_process_is_gone_and_the_others_stay(tmp_path: Path, processes: Processes) -> None:
    """A Ctrl-C at the terminal reaches none of them: each leads a group of its own."""
    gone = processes.start("one", ["sleep", "300"], tmp_path / "one.log")
    stays = processes.start("two", ["sleep", "300"], tmp_path / "two.log")
    assert os.getpgid(stays) == stays
    processes.kill("one")
    assert (running(gone), running(stays), processes.ended()) == (False, True, [])
    with refused("FK-PACKAGE-MISSING"):
        processes.start("node 0", [tmp_path / "nothing"], tmp_path / "log")


def test_a_folder_whose_deployment_runs_is_refused(tmp_path: Path, processes: Processes) -> None:
    processes.start("SuperLink", ["sleep", "300"], tmp_path / "log")
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / "state.db").write_text("of the one that runs")
    refuses("FK-DEPLOY-RUNNING", LocalDeployment, tmp_path, [])
    assert (tmp_path / "flwr" / "state.db").exists()
    processes.stop()
    LocalDeployment(tmp_path, [])


@pytest.mark.parametrize(("line", "code"), [
    ("fedkern: no rows; add some [FK-ROWS-FEW]", "FK-ROWS-FEW"),
    (f"fedkern: {'x' * 900} [FK-ROWS-FEW]", "FK-ROWS-FEW"), ("ValueError: 3", "FK-DEPLOY-ENDED"),
    ("", "FK-DEPLOY-ENDED"),
])  # fmt: skip
def test_what_has_ended_passes_on_the_code_of_its_log(line: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"started\n{line}\n\n" if line else "")
    error = ended("node 0 has ended", tmp_path / "log")
    assert error.code == code
    assert str(error).endswith(f"; read {tmp_path / 'log'} [{code}]")
    assert len(str(error)) < 450 + len(str(tmp_path))


def test_all_that_is_started_listens_on_this_machine_only(tmp_path, monkeypatch):
    """The SuperLink has one address for all it serves; tests of deployments look at its sockets."""
    commands: list[list[str]] = []

    def note(self: Processes, name: str, command: Any, log: Path) -> int:
        commands.append([str(part) for part in command])
        raise EngineError("far enough", code="FK-DEPLOY-ENDED")

    monkeypatch.setattr(Processes, "start", note)
    nodes: list[dict[str, str | int | float | bool]] = [{"partition-id": 0, "num-partitions": 1}]
    deployment = LocalDeployment(tmp_path, nodes, warm=False)
    for start in (deployment.start_superlink, lambda: deployment.start_node(0)):
        refuses("FK-DEPLOY-ENDED", start)
    assert len(commands) == 2
    for command in commands:
        assert command[command.index("--host") + 1] == "127.0.0.1"
        assert not any(part.endswith("-api-address") for part in command)  # served nowhere else


# -- options


@pytest.mark.parametrize("name", deploy.DEPLOYABLE)
def test_every_option_of_a_deployment_reaches_the_app(name: str) -> None:
    known = {o.name: o for o in options(method(name))}
    keys = declared(app := app_folder(family(name).app))
    given = {n: o.default for n, o in known.items() if o.default is not None}
    found = run_config(app, given, known, {"seed": 3}, Path("/model.npz"))
    assert found["seed"] == 3
    assert found.get("data", "") == ""  # a node has its own
    assert "/model.npz" in found.values()
    assert {key: type(value) for key, value in found.items()} == {k: type(keys[k]) for k in found}
    if "options" not in keys:  # which takes any
        with refused("FK-APP-OPTION"):
            run_config(app, {**given, "no_such": 3}, known, {}, Path("/model.npz"))


#: What is typed; an agent would see a user's model, and what has one value only is no option.
BAD = {
    "fed-cg": "COMMAND-MISSING", "fed-cg --nodes 1": "OPTION-RANGE",
    "fed-cg --nodes 3 --hospitals 4": "PARTIES-FEW",
    "hierarchical-svm --nodes 3 --groups 2": "PARTIES-FEW",
    "hierarchical-svm --nodes 5 --groups 2": "GROUPS-SINGLE",
    "fed-cg --nodes 3 --data nothing.csv": "FILE-READ", "fdskl --resume OTHER": "RUN-OTHER",
    "fed-cg --predict NOWHERE": "RUN-NONE", "secure-gram --nodes 3": "COMMAND-UNKNOWN",
    "fed-cg --nodes 3 --engine ray": "OPTION-UNKNOWN",
}  # fmt: skip


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_is_one_line(arguments, tmp_path, commands, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {"method": "fed-cg", "engine": "deployment", "data": {}, "options": {}}
    (tmp_path / "OTHER").mkdir()
    (tmp_path / "OTHER" / "config.json").write_text(json.dumps(config))
    out = [] if "OTHER" in arguments or "NOWHERE" in arguments else ["--out", "run"]
    found, _, said = commands("deploy-local", *arguments.split(), *out)
    assert found == 2
    (line,) = [line for line in said.splitlines() if not line.startswith("note:")]
    assert line.endswith(f"[FK-{BAD[arguments]}]")
    if "OTHER" in arguments:  # its nodes alone can predict
        line = commands.complaint("predict", "OTHER", "--data", "new.csv")
        assert "fedkern deploy-local fed-cg --predict OTHER" in line


def test_programs_of_flower_that_are_not_there_are_named_before_anything_waits(
    tmp_path: Path, commands: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SuperLink without flwr-serverapp takes a run and never begins it."""
    (tmp_path / "bin").mkdir()
    for name in ("flwr", "flower-superlink", "flower-supernode", "flower-superexec"):
        (tmp_path / "bin" / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    out = str(tmp_path / "run")
    code, _, said = commands("deploy-local", "fed-cg", "--nodes", "3", "--out", out)
    (line,) = [line for line in said.splitlines() if not line.startswith("note:")]
    assert code == 2
    assert "flwr-serverapp, flwr-clientapp not found" in line
    assert line.endswith("[FK-PACKAGE-MISSING]")
