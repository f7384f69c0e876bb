"""Run SuperLink and SuperNodes on this machine, as between organisations.

Every part is a process that listens on 127.0.0.1 only: a SuperLink with TLS for registered nodes,
and a SuperNode per party with its own key, configuration and files.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Self, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedkern_flwr.checkpoint import make_private_folder, open_private, write_atomically
from fedkern_flwr.errors import EngineError, OptionError, quoted_code
from fedkern_flwr.flower_compat import NOT_ACTIVATED, Control, Refused
from fedkern_flwr.plain_text import plain_line

from ..engines.ray import ENVIRONMENT
from .node_files import NodeConfig, toml_lines
from .start import NO_THREADS, node_command

CONNECTION = "deployed"  # what the connection is called on Flower's command line

_HOST = "127.0.0.1"
_START = 60.0  # seconds for SuperLink and nodes to come up
_LOOK = 0.5  # seconds between two looks at nodes and runs
#: Below the ports of outgoing connections on Linux and other systems: such a port may be taken
#: between the test and its use.
_PORTS, _TRIES = range(16_384, 32_768), 100
_QUOTED = 300  # characters of a log in an error
_SWIFT = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}  # seconds; Flower's default is 1
#: What the command line of Flower, SuperLink and SuperNodes start.
_PROGRAMS = "flower-superlink flower-supernode flower-superexec flwr-serverapp flwr-clientapp"
_REFUSED = (NOT_ACTIVATED, "Exit Code: 304", "Exit Code: 305")

Say = Callable[[str], None]
_T = TypeVar("_T")


class LocalDeployment:
    """A SuperLink and SuperNodes that are started on entry and stopped on exit.

    Parameters
    ----------
    folder : Path
        For certificates, keys, logs and Flower's own files.
    nodes : sequence of mapping
        The configuration of each node.
    say : callable
        Called with the current step.
    warm : bool (default: True)
        Whether nodes stay warm.

    Attributes
    ----------
    address, environment : str, dict
        Of the SuperLink, and for Flower's command line.
    keep : bool
        Whether the processes continue after exit.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[NodeConfig],
        say: Say = lambda _: None,
        *,
        warm: bool = True,
    ) -> None:
        self.warm = warm
        self.folder, self.nodes, self.say = folder.resolve(), list(nodes), say
        self.address = ""
        self.keep = False
        refuse_running(self.folder / "pids")
        home = self.folder / "flwr"  # files of an earlier deployment
        shutil.rmtree(home, ignore_errors=True)
        make_private_folder(home)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        refuse_missing(path)
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # all share a machine
        own = {"FLWR_HOME": str(home), "PATH": path, **_SWIFT, **(NO_THREADS if warm else {})}
        self.environment = {**os.environ, **ENVIRONMENT, **threads, **own}
        self.processes = Processes(self.environment, self.folder / "pids")

    # -- up and down

    def __enter__(self) -> Self:
        """Start everything; on failure nothing is left running."""
        try:
            self.start_superlink()
            self.register(range(len(self.nodes)))
            for k in range(len(self.nodes)):
                self.start_node(k)
            self.wait_for_nodes()
        except BaseException:
            self.processes.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop everything, unless it is to be kept."""
        if not self.keep or kind is not None:
            self.processes.stop()

    def start_superlink(self, port: int = 0) -> None:
        """Start the SuperLink and wait until it answers.

        Raises
        ------
        EngineError
        """
        self.say("starting the SuperLink")
        keys = self.folder / "keys"
        make_private_folder(keys)
        if not (keys / "ca.crt").exists():
            make_certificates(keys)
        port = port or free_port()
        self.address = f"{_HOST}:{port}"
        values = {"address": self.address, "root-certificates": str(keys / "ca.crt")}
        head = f'[superlink]\ndefault = "{CONNECTION}"\n[superlink.{CONNECTION}]\n'
        home = Path(self.environment["FLWR_HOME"])
        write_atomically(home / "config.toml", (head + toml_lines(values)).encode(), private=True)
        command: list[str | Path] = ["flower-superlink", "--host", _HOST]
        command += ["--port", str(port), "--enable-supernode-auth"]
        command += ["--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.pem"]
        command += ["--ssl-keyfile", keys / "server.key"]
        command += ["--disable-runtime-dependency-installation"]
        log, url = self.folder / "superlink.log", f"https://{self.address}/health"
        self.processes.start("SuperLink", command, log)
        self._control = Control(self.address, keys / "ca.crt")
        context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        for _ in _looks(_START, 0.1):
            if "SuperLink" in self.processes.ended():
                break
            try:
                with urllib.request.urlopen(url, timeout=2, context=context):
                    return  # anything but a success raises
            except OSError as error:
                reason = getattr(error, "reason", None)
                if isinstance(reason, ssl.SSLCertVerificationError):
                    raise EngineError(
                        f"the certificate in {keys} does not hold ({reason.verify_message})",
                        remedy="remove ca.crt there for another, or set the clock",
                        code="FK-DEPLOY-CERTIFICATE",
                    ) from None
        raise EngineError(
            "the SuperLink does not come up", remedy=f"read {log}", code="FK-DEPLOY-ENDED"
        )

    def register(self, numbers: Sequence[int] | range) -> None:
        """Make a key for each node and register it with the SuperLink."""
        self.say(f"registering {len(numbers)} nodes")
        for k in numbers:
            if not self.key(k).exists():
                make_node_key(self.key(k))
            public = self.key(k).with_name(f"{self.key(k).name}.pub")
            self._ask(partial(Control.register, public_key=public))

    def key(self, number: int) -> Path:
        """Return the file of a node's private key."""
        return self.folder / "keys" / f"node-{number}"

    def start_node(self, number: int, key: Path | None = None) -> None:
        """Start a SuperNode, by default with its own key."""
        folder = self.node_folder(number)
        arguments = ["--root-certificates", str(self.folder / "keys" / "ca.crt")]
        arguments += ["--auth-supernode-private-key", str(key or self.key(number))]
        port, config = free_port(), folder / "node.toml"
        make_private_folder(folder)
        write_atomically(config, toml_lines(self.nodes[number]).encode(), private=True)
        command = ["flower-supernode", "--superlink", self.address, *arguments]
        command += ["--host", _HOST, "--port", str(port), "--node-config", str(config)]
        if self.warm:
            command = node_command(self.address, config, arguments, port)
        self.processes.start(f"node {number}", command, folder / "supernode.log")

    def node_folder(self, number: int) -> Path:
        """Return the folder of a node."""
        return self.folder / "nodes" / str(number)

    def wait_for_nodes(self) -> None:
        """Wait until all nodes are connected.

        Raises
        ------
        EngineError
            Some are not; the text names them.
        """
        self.say("waiting for the nodes")
        online = 0
        for _ in _looks(_START):
            self._refuse_ended()
            if (online := self._ask(Control.online)) >= len(self.nodes):
                return
        raise EngineError(
            f"{online} of {len(self.nodes)} nodes are connected after {_START:.0f} s",
            remedy=f"read nodes/*/supernode.log in {self.folder}",
            code="FK-DEPLOY-CONNECT",
        )

    def _refuse_ended(self) -> None:
        for name in self.processes.ended():
            log = self.processes.logs[name]
            if any(mark in log.read_text(errors="replace") for mark in _REFUSED):
                raise EngineError(
                    f"{name} is refused by the SuperLink: its key is not registered, or another "
                    "node uses it",
                    remedy=f"register its public key first; {log} has the details",
                    code="FK-DEPLOY-KEY",
                )
            raise ended(f"{name} has ended", log)

    # -- runs

    def run(self, app: Path, config: Mapping[str, Any]) -> int:
        """Submit an app; return the run's id.

        Raises
        ------
        EngineError
            Flower refuses it.
        """
        self.say("submitting the app")
        path = self.folder / "run-config.toml"
        write_atomically(path, toml_lines(config).encode(), private=True)
        try:
            return self._control.start(app, config)
        except Refused as error:
            raise EngineError(
                f"Flower refuses the app: {plain_line(str(error), _QUOTED)}",
                remedy="check the options of the run",
                code="FK-DEPLOY-APP",
            ) from None

    def wait_for_run(self, run_id: int, timeout: float, tick: Say = lambda _: None) -> str:
        """Wait until a run has ended; return its status.

        Raises
        ------
        EngineError
            It takes longer than ``timeout`` seconds, or the SuperLink has ended.
        """
        heard = 0.0
        for passed in _looks(timeout):
            try:
                status = self._ask(lambda control: control.status(run_id))
                heard = passed
                if status.startswith("finished"):
                    return status
            except EngineError:
                if "SuperLink" in self.processes.ended():
                    self._refuse_ended()
                if passed > heard + _START:
                    raise
            tick(f"running, {passed:.0f} s")
        self._ask(lambda control: control.stop(run_id))
        raise EngineError(f"the run has not ended after {timeout:.0f} s", code="FK-DEPLOY-TIMEOUT")

    def save_log(self, run_id: int, path: Path) -> None:
        """Write the log of a run's server."""
        text = self._ask(lambda control: control.log(run_id))
        write_atomically(path, text.encode(), private=True)

    def _ask(self, call: Callable[[Control], _T]) -> _T:
        """Call the SuperLink.

        Raises
        ------
        EngineError
        """
        try:
            return call(self._control)
        except Refused as error:
            raise EngineError(
                f"the SuperLink refuses: {plain_line(str(error), _QUOTED)}",
                remedy=f"read {self.folder / 'superlink.log'}",
                code="FK-DEPLOY-REFUSED",
            ) from None


def refuse_running(pids: Path) -> None:
    """Refuse a folder with a running deployment.

    Raises
    ------
    OptionError
    """
    listed = pids.read_text().split() if pids.is_file() else []
    if any(Path(f"/proc/{pid}").exists() for pid in listed):
        raise OptionError(
            f"the deployment in {pids.parent} is still running",
            remedy=f"stop it with: kill $(cat {pids})",
            code="FK-DEPLOY-RUNNING",
        )


def refuse_missing(path: str) -> None:
    """Refuse to start without a program of Flower's: nodes would wait for it without an error.

    Raises
    ------
    OptionError
    """
    missing = [name for name in _PROGRAMS.split() if shutil.which(name, path=path) is None]
    if missing:
        raise OptionError(
            f"{', '.join(missing)} not found beside {Path(sys.executable).name} or on the path",
            remedy="pip install flwr into the environment of this command",
            code="FK-PACKAGE-MISSING",
        )


def _looks(seconds: float, pause: float = _LOOK) -> Iterator[float]:
    """Yield the seconds that have passed, with pauses, until they are too many."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        yield passed
        time.sleep(pause)


def free_port(ports: Sequence[int] = _PORTS) -> int:
    """Return a free port of this machine, which no outgoing connection uses.

    Parameters
    ----------
    ports : sequence of int
        Ports to try.

    Raises
    ------
    EngineError
    """
    for port in random.SystemRandom().sample(ports, min(_TRIES, len(ports))):
        with socket.socket() as free, suppress(OSError):
            free.bind((_HOST, port))
            return port
    raise EngineError("no port of this machine is free", code="FK-DEPLOY-PORTS")


def ended(what: str, log: Path) -> EngineError:
    """Return the error of an ended process: the last line of its log, with its code."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said, code = quoted_code(lines[-1].strip() if lines else "its log is empty")
    return EngineError(
        f"{what}: {plain_line(said, _QUOTED)}",
        remedy=f"read {log}",
        code=code or "FK-DEPLOY-ENDED",
    )


# -- certificates and keys

_CURVE = ec.SECP384R1  # what Flower takes for nodes


def make_certificates(folder: Path, days: float = 365.0) -> None:
    """Write ``ca.crt``, ``server.pem`` and ``server.key`` for localhost and 127.0.0.1.

    The authority's key is not kept, so it signs nothing else.
    """
    authority, server = ec.generate_private_key(_CURVE()), ec.generate_private_key(_CURVE())
    name = _name("fedkern-flwr deployment")
    key_id = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    uses = dict.fromkeys(signature(x509.KeyUsage).parameters, False)
    signs = x509.KeyUsage(**uses | {"key_cert_sign": True, "crl_sign": True})
    root = (
        _certificate(name, name, authority.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signs, critical=True)
        .add_extension(key_id, critical=False)
        .sign(authority, hashes.SHA256())
    )
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_id)
    leaf = (
        _certificate(_name("localhost"), name, server.public_key(), days)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issued_by, critical=False)
        .sign(authority, hashes.SHA256())
    )
    write_atomically(folder / "ca.crt", root.public_bytes(Encoding.PEM))
    write_atomically(folder / "server.pem", leaf.public_bytes(Encoding.PEM))
    key = server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_atomically(folder / "server.key", key, private=True)


def make_node_key(path: Path) -> None:
    """Write a node's private key to ``path``, and its public key with suffix .pub."""
    key = ec.generate_private_key(_CURVE())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_atomically(path, private, private=True)
    write_atomically(path.with_name(f"{path.name}.pub"), public + b"\n")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=days))
    )


# -- processes of the deployment


class Processes:
    """Processes with a log each, each the leader of its own group.

    A group ends as a whole. A Ctrl-C at the terminal does not reach it: we choose the sequence. The
    file ``pids`` lists the leaders; after ``grace`` seconds they are killed.
    """

    def __init__(self, environment: Mapping[str, str], pids: Path, grace: float = 10.0) -> None:
        self.environment, self.pids, self._grace = dict(environment), pids, grace
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.logs: dict[str, Path] = {}

    def start(self, name: str, command: Sequence[str | Path], log: Path) -> int:
        """Start a process; return its id.

        Raises
        ------
        EngineError
            It cannot be started.
        """
        try:
            with open_private(log, append=True) as out:
                self.started[name] = process = subprocess.Popen(
                    [str(part) for part in command],
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
        except OSError as error:
            raise EngineError(
                f"{name} cannot be started ({error.strerror})",
                remedy="pip install fedkern-flwr into the environment of this command",
                code="FK-PACKAGE-MISSING",
            ) from None
        self.logs[name] = log
        self._note()
        return process.pid

    def ended(self) -> list[str]:
        """Return the processes that have ended by themselves."""
        return [name for name, process in self.started.items() if process.poll() is not None]

    def end(self, name: str) -> None:
        """Let a process end by itself; kill it if it does not."""
        _signal(self.started[name], signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.started[name].wait(self._grace)
        self.kill(name)

    def kill(self, name: str) -> None:
        """Kill a process and its group at once."""
        process = self.started.pop(name)
        _signal(process, signal.SIGKILL)
        process.wait()
        self._note()

    def stop(self) -> None:
        """Stop all, the last one first; kill those that do not end in time, or at Ctrl-C."""
        running = [*reversed(self.started.values())]
        try:
            for process in running:
                _signal(process, signal.SIGTERM)
            deadline = time.monotonic() + self._grace
            for process in running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, deadline - time.monotonic()))
        finally:
            for process in running:
                _signal(process, signal.SIGKILL)  # also what a leader has left in its group
            for process in running:
                process.wait()
            self.started.clear()
            self.pids.unlink(missing_ok=True)

    def _note(self) -> None:
        ids = "".join(f"{process.pid}\n" for process in self.started.values())
        write_atomically(self.pids, ids.encode(), private=True)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the group of a process, if it still exists."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
