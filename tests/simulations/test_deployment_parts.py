"""The parts of a deployment that need no server: files, keys, processes, options."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from fedkern_flwr.errors import EngineError, OptionError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.policy import read_policy
from fedkern_flwr.node_files import read_classes
from fedkern_flwr.simulations.cli import deploy
from fedkern_flwr.simulations.cli.deploy import DEPLOYABLE, deploy_options
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.deployment import local
from fedkern_flwr.simulations.deployment.certificates import make_certificates, make_node_key
from fedkern_flwr.simulations.deployment.local import LocalDeployment
from fedkern_flwr.simulations.deployment.node_files import (
    read_secrets,
    toml,
    write_node,
)
from fedkern_flwr.simulations.deployment.processes import Processes
from fedkern_flwr.simulations.deployment.run_config import app_folder, declared, run_config
from fedkern_flwr.simulations.methods.registry import family, method, options
from fedkern_flwr.tables import load_table

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


# -- ports


@pytest.mark.skipif(not EPHEMERAL.is_file(), reason="Linux alone says where connections begin")
def test_a_free_port_stays_free_until_it_is_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SuperNode failed to start whose port had become the near end of a connection."""
    least = int(EPHEMERAL.read_text().split()[0])
    assert all(1024 < local.free_port() < least for _ in range(200))
    other = local.free_port()
    monkeypatch.setattr(local, "_TRIES", 2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(local, "_PORTS", [port, other])
        assert {local.free_port() for _ in range(5)} == {other}
        monkeypatch.setattr(local, "_PORTS", [port, port])
        with pytest.raises(EngineError, match="no port of this machine is free"):
            local.free_port()


# -- files of a node


def test_a_table_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3)) * 10.0 ** rng.integers(-300, 300, size=(50, 3))
    x[0] = [0.1, -0.0, 5e-324]
    y = rng.normal(size=50)
    y[7] = np.nan
    own = {"x": x, "y": y, "ids": np.arange(50)[::-1], "columns": ("a", "b,c", "id")}
    config = write_node(tmp_path, 0, 2, {**own, "classes": (0.0, 1.0, 2.5)})

    columns = {"id_column": config["id-column"], "label": config["label-column"]}
    table = load_table(config["data"], missing="keep", **columns)
    assert table.columns == ("a", "b,c", "id")
    assert table.x.tobytes() == x.tobytes()
    np.testing.assert_array_equal(table.y, y)
    assert table.ids is not None
    assert table.ids.tolist() == [str(k) for k in range(49, -1, -1)]
    assert (config["partition-id"], config["num-partitions"]) == (0, 2)
    assert config["classes"] == "0,1,2.5"


@pytest.mark.parametrize(
    ("classes", "written", "labels"),
    [
        (("ham", "spam"), "ham,spam", ["ham", "spam", "ham"]),
        (("not ham", "ham"), "0,1", ["0", "1", "0"]),  # a node sorts names
        (("a,b", "c"), "0,1", ["0", "1", "0"]),
    ],
)
def test_labels_of_a_node_s_files_have_the_names_of_classes(
    classes: Any, written: str, labels: list[str], tmp_path: Path
) -> None:
    own = {"x": np.ones((3, 1)), "y": np.array([0.0, 1.0, 0.0]), "classes": classes}
    config = write_node(tmp_path, 0, 2, own)
    assert config["classes"] == written
    lines = Path(str(config["data"])).read_text().splitlines()[1:]
    assert [line.rpartition(",")[2] for line in lines] == labels
    names = read_classes(str(written))
    table = load_table(config["data"], label=str(config["label-column"]), classes=names)
    np.testing.assert_array_equal(table.y, own["y"])


def test_a_node_s_files_are_for_one_user_alone(tmp_path: Path) -> None:
    own = {"x": np.ones((2, 1)), "alignment_key": bytes(32), "x_test": np.ones((1, 1))}
    config = write_node(tmp_path / "node", 0, 2, own)
    files = [Path(str(config[name])) for name in ("data", "test-data", "alignment-key")]
    assert [file.stat().st_mode & 0o077 for file in files] == [0, 0, 0]
    assert (tmp_path / "node").stat().st_mode & 0o077 == 0
    assert bytes.fromhex(files[2].read_text()) == bytes(32)


def test_an_agent_has_no_files_but_its_policy(tmp_path: Path) -> None:
    config = write_node(tmp_path, 3, 5, {"role": "agent", "group": 1, "allow_single": False})
    assert config == {
        "partition-id": 3,
        "num-partitions": 5,
        "state-dir": str(tmp_path / "state"),
        "policy": str(tmp_path / "policy.toml"),
        "role": "agent",
        "group": 1,
        "allow-single": False,
    }
    assert [path.name for path in tmp_path.iterdir()] == ["policy.toml"]
    assert read_policy(config["policy"]) == NodePolicy()


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        ("pof-mkl --nodes 4", {}),
        ("pof-mkl --nodes 2", {"min_parties": 2}),
        ("fed-cg --nodes 4", {}),
        ("fed-cfk --nodes 10", {}),
    ],
)
def test_nodes_have_the_default_policy_but_for_what_the_options_need(
    arguments: str,
    changed: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is not the default is said on the console."""

    def start(*_: Any) -> None:
        raise EngineError("not today")

    monkeypatch.setattr("fedkern_flwr.simulations.cli.deploy.LocalDeployment", start)
    assert run(["deploy-local", *arguments.split(), "--out", str(tmp_path / "run")]) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if "policies have" in line]
    assert [line.split()[5] for line in said] == list(changed)
    for folder in (tmp_path / "run" / "nodes").iterdir():
        config = json.loads((folder / "node-config.json").read_text())
        assert read_policy(config["policy"]).changed == changed


def test_ratings_are_pairs(tmp_path: Path) -> None:
    own = {"x": csr_array([[1, 0, 1], [0, 0, 0]]), "users": ("u", "v"), "items": ("a", "b", "c")}
    config = write_node(tmp_path, 0, 2, own)
    assert Path(str(config["data"])).read_text() == "user,item\nu,a\nu,c\n"
    assert Path(str(config["catalogue"])).read_text() == "a\nb\nc\n"
    assert "test-data" not in config


@given(st.one_of(st.text(), st.booleans(), st.integers(-(2**62), 2**62), FLOATS))
def test_values_survive_as_toml(value: Any) -> None:
    if isinstance(value, str):  # a value is one line
        value = "".join(c for c in value if c.isprintable())
    found = tomllib.loads(f"key = {toml(value)}")["key"]
    assert type(found) is type(value)
    assert found == value


OWN_SECRETS = {"fed-cg": "landmark_seed", "fdskl": "frequency_seed", "hierarchical-svm": ""}
DEALT = {"fed-cg": "", "fdskl": "", "hierarchical-svm": "--partition vertical"}


@pytest.mark.parametrize("name", OWN_SECRETS)
def test_secrets_of_nodes_come_from_the_operating_system(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two deployments with the same options and seed; their servers are never started."""
    nodes: list[Path] = []

    def stop(*given: Any, **more: Any) -> None:
        raise EngineError("far enough")

    monkeypatch.setattr(deploy, "_execute", stop)
    options = [*["--nodes", "7", "--seed", "4"], *DEALT[name].split()]
    found = []
    for out in (tmp_path / "one", tmp_path / "two"):
        assert run(["deploy-local", name, *options, "--out", str(out)]) == 1
        nodes = sorted((out / "nodes").iterdir())
        assert len(nodes) == 7
        found.append([read_secrets(node) for node in nodes])
    own = OWN_SECRETS[name]
    for one, two in zip(*found, strict=True):
        assert set(one) == set(two)
        assert not set(one.values()) & set(two.values())
        assert all(len(secret) == 32 for secret in one.values())
    for drawn in found:
        assert len({s["alignment_key"] for s in drawn if "alignment_key" in s}) == 1
        if own:
            configs = [json.loads((node / "node-config.json").read_text()) for node in nodes]
            places = [config.get("block", k) for k, config in enumerate(configs)]
            pairs = {(place, s[own]) for place, s in zip(places, drawn, strict=True)}
            assert len(pairs) == len(set(places)) == len({secret for _, secret in pairs})


# -- keys


def test_the_server_s_certificate_is_signed_by_the_authority_for_this_machine(
    tmp_path: Path,
) -> None:
    make_certificates(tmp_path)
    root = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    leaf = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    leaf.verify_directly_issued_by(root)
    root.verify_directly_issued_by(root)
    hosts = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert hosts.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(a) for a in hosts.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert (tmp_path / "server.key").stat().st_mode & 0o077 == 0
    assert sorted(f.name for f in tmp_path.iterdir()) == ["ca.crt", "server.key", "server.pem"]


def test_keys_of_nodes_are_openssh_pairs(tmp_path: Path) -> None:
    make_node_key(tmp_path / "node-0")
    private = load_ssh_private_key((tmp_path / "node-0").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "node-0.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.public_key() == public
    assert private.curve.name == "secp384r1"
    assert (tmp_path / "node-0").stat().st_mode & 0o077 == 0


# -- processes


def running(pid: int) -> bool:
    """Tell whether a process runs; one that waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_stopping_leaves_nothing_of_a_process_s_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedkern_flwr.simulations.deployment.processes._GRACE", 1.0)
    processes = Processes({"PATH": "/usr/bin:/bin"}, tmp_path / "pids")
    child = tmp_path / "child"
    script = f"trap '' TERM; sleep 300 & echo $! > {child}; wait"
    leader = processes.start("shell", ["sh", "-c", script], tmp_path / "log")
    while not child.exists() or not child.read_text().strip():
        time.sleep(0.01)
    sleeper = int(child.read_text())
    assert (tmp_path / "pids").read_text().split() == [str(leader)]
    assert running(sleeper)
    processes.stop()
    deadline = time.monotonic() + 5.0
    while running(sleeper) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(sleeper)
    assert not running(leader)
    assert not (tmp_path / "pids").exists()


def test_another_ctrl_c_while_stopping_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = Processes({"PATH": "/usr/bin:/bin"}, tmp_path / "pids")
    script = f"trap '' TERM; touch {tmp_path}/$0; while :; do sleep 0.1; done"
    names = ("one", "two")
    started = [processes.start(n, ["sh", "-c", script, n], tmp_path / "log") for n in names]
    while not all((tmp_path / name).exists() for name in names):
        time.sleep(0.01)
    wait = subprocess.Popen.wait

    def interrupted(self: Any, timeout: float | None = None) -> int:
        if timeout is not None:
            raise KeyboardInterrupt
        return wait(self)

    try:
        monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            processes.stop()
        monkeypatch.undo()
        assert not any(map(running, started))
        assert not (tmp_path / "pids").exists()
    finally:
        processes.stop()


def test_a_killed_process_is_gone_and_the_others_stay(tmp_path: Path) -> None:
    processes = Processes({"PATH": "/usr/bin:/bin"}, tmp_path / "pids")
    try:
        gone = processes.start("one", ["sleep", "300"], tmp_path / "one.log")
        stays = processes.start("two", ["sleep", "300"], tmp_path / "two.log")
        processes.kill("one")
        assert (running(gone), running(stays), processes.ended()) == (False, True, [])
    finally:
        processes.stop()
    assert not running(stays)


def test_a_program_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    processes = Processes({}, tmp_path / "pids")
    with pytest.raises(EngineError, match="node 0 cannot be started"):
        processes.start("node 0", [tmp_path / "nothing"], tmp_path / "log")


# -- options


@pytest.mark.parametrize("name", DEPLOYABLE)
def test_every_option_of_a_deployment_reaches_the_app_or_is_refused(name: str) -> None:
    known = {o.name: o for o in options(method(name))}
    app = app_folder(family(name).app)
    keys = declared(app)
    given = {n: o.default for n, o in known.items() if o.default is not None}
    found = run_config(app, given, known, {"seed": 3}, Path("/model.npz"))
    assert set(found) <= set(keys)
    assert found["seed"] == 3
    assert found.get("data", "") == ""  # a node has its own
    assert "/model.npz" in found.values()
    for key, value in found.items():
        assert type(value) is type(keys[key]), key


def test_an_option_that_the_app_lacks_is_refused() -> None:
    known = {o.name: o for o in options(method("fed-cg"))}
    app = app_folder("fed_cg")
    with pytest.raises(OptionError, match="--max-missed is not an option of the app fed_cg"):
        run_config(app, {"max_missed": 3}, known, {}, Path("m"))


def test_the_options_that_follow_from_the_nodes_are_not_asked_for() -> None:
    for name in DEPLOYABLE:
        shown = {o.name for o in deploy_options(name)}
        assert {"nodes", "keep", "predict", "resume", "json_target"} <= shown
        assert not shown & {"engine", "drop", "runs", "clients", "secure"} - {"secure"}
        assert not shown & set(family(name).dealt_by_nodes)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("fed-cg", "the number of nodes is missing; add --nodes N"),
        ("fed-cg --nodes 1", "nodes is 1; use at least 2"),
        ("fed-cg --nodes 3 --hospitals 4", "4 hospitals on 3 nodes"),
        ("hierarchical-svm --nodes 3 --groups 2", "3 nodes are too few for 2 groups"),
        (
            "hierarchical-svm --nodes 5 --groups 2",
            "has a single user, whose model its agent would see",
        ),
        ("fed-cg --nodes 3 --data nothing.csv", "nothing.csv"),
        ("fdskl --resume OTHER", "holds no deployment of fdskl; it is a run of fed-cg"),
        ("fed-cg --predict NOWHERE", "is not the folder of a run"),
        ("secure-gram --nodes 3", "Choose of pof-mkl, pof-rls, fed-cg"),
    ],
)
def test_bad_input_is_one_line(
    arguments: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"method": "fed-cg", "engine": "deployment", "data": {}, "options": {}}
    (tmp_path / "OTHER").mkdir()
    (tmp_path / "OTHER" / "config.json").write_text(json.dumps(config))
    words = [
        str(tmp_path / word) if word in ("OTHER", "NOWHERE") else word for word in arguments.split()
    ]
    if "--resume" not in words and "--predict" not in words:
        words += ["--out", str(tmp_path / "run")]
    assert run(["deploy-local", *words]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note:")]
    assert len(lines) == 1
    assert text in lines[0]


def test_ctrl_c_at_a_terminal_does_not_reach_the_processes(tmp_path: Path) -> None:
    processes = Processes({"PATH": "/usr/bin:/bin"}, tmp_path / "pids")
    try:
        pid = processes.start("one", ["sleep", "300"], tmp_path / "log")
        found = subprocess.run(
            ["ps", "-o", "pgid=", "-p", str(pid)], capture_output=True, text=True
        )
        assert int(found.stdout) == pid
    finally:
        processes.stop()


def test_predictions_of_a_deployment_are_made_by_its_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"method": "fed-cg", "engine": "deployment", "data": {}, "options": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run(["predict", str(tmp_path), "--data", "new.csv"]) == 2
    found = capsys.readouterr().err
    assert f"use fedkern deploy-local fed-cg --predict {tmp_path}" in found
    assert found.count("\n") == 1


def test_all_that_is_started_listens_on_this_machine_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SuperLink has one address for all it serves; tests of deployments look at its sockets."""
    commands: list[list[str]] = []

    def note(self: Processes, name: str, command: Any, log: Path) -> int:
        commands.append([str(part) for part in command])
        raise EngineError("far enough")

    monkeypatch.setattr(Processes, "start", note)
    nodes: list[dict[str, str | int | float | bool]] = [{"partition-id": 0, "num-partitions": 1}]
    deployment = LocalDeployment(tmp_path, nodes, warm=False)
    for start in (deployment.start_superlink, lambda: deployment.start_node(0)):
        with pytest.raises(EngineError, match="far enough"):
            start()
    assert len(commands) == 2
    for command in commands:
        assert command[command.index("--host") + 1] == "127.0.0.1"
        others = [part for part in command if part.endswith("-api-address")]
        assert others == []  # nothing is served anywhere else


def test_a_folder_whose_deployment_runs_is_refused(tmp_path: Path) -> None:
    processes = Processes({"PATH": "/usr/bin:/bin"}, tmp_path / "pids")
    try:
        processes.start("SuperLink", ["sleep", "300"], tmp_path / "log")
        (tmp_path / "flwr").mkdir()
        (tmp_path / "flwr" / "state.db").write_text("of the one that runs")
        with pytest.raises(OptionError, match=r"is still running; stop it with: kill \$\(cat"):
            LocalDeployment(tmp_path, [])
        assert (tmp_path / "flwr" / "state.db").exists()
    finally:
        processes.stop()
    LocalDeployment(tmp_path, [])


def test_programs_of_flower_that_are_not_there_are_named_before_anything_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SuperLink without flwr-serverapp takes a run and never begins it."""
    (tmp_path / "bin").mkdir()
    for name in ("flwr", "flower-superlink", "flower-supernode", "flower-superexec"):
        (tmp_path / "bin" / name).touch(mode=0o755)
    monkeypatch.setattr("fedkern_flwr.simulations.deployment.local._BIN", tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path))
    command = ["deploy-local", "fed-cg", "--nodes", "3", "--out", str(tmp_path / "run")]
    assert run(command) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note:")]
    assert len(lines) == 1
    assert "flwr-serverapp, flwr-clientapp not found beside python" in lines[0]
    assert "pip install flwr into the environment of this command" in lines[0]
