"""``fedkern node``: policy, identity, processes and records of a node."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from fedkern_flwr.checkpoint import make_private_folder, write_atomically
from fedkern_flwr.errors import OptionError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.guard.policy import RULES, read_policy, write_policy
from fedkern_flwr.node_config import claim_folder, read_config
from fedkern_flwr.online.source import fed_by_socket
from fedkern_flwr.secure_sum.identity import (
    fingerprint,
    make_identity,
    read_identity,
    read_trusted,
    trusted_line,
)

from ..deployment.start import NO_THREADS, LogFormat, node_command
from ..run.options import argument, declare, switch
from .console import print_table
from .node_records import (
    CleanOptions,
    FreezeOptions,
    LedgerOptions,
    StatusOptions,
    clean_folders,
    freeze_rows,
    show_ledger,
    show_status,
)
from .options import group, of_function

IDENTITY, PUBLIC, TRUSTED = "identity", "identity.pub", "trusted"


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """Options of ``fedkern node init``.

    Attributes
    ----------
    partition_id : int
        Number of the node, as all parties agreed.
    state_dir : Path
        Folder of the node.
    """

    partition_id: int = declare(limits=(0, None))
    state_dir: Path = Path("state")


def init_node(asked: InitOptions) -> None:
    """Make the folder of a node, with identity key and ledger; keep what exists."""
    state_dir, partition_id = asked.state_dir, asked.partition_id
    make_private_folder(state_dir)
    claim_folder(state_dir, partition_id)
    key, public = state_dir / IDENTITY, state_dir / PUBLIC
    made = not key.exists()
    raw = make_identity(key) if made else read_identity(key).public_key().public_bytes_raw()
    write_atomically(public, f"{trusted_line(partition_id, raw)}\n".encode())
    NodeLedger(state_dir, partition_id).make()
    click.echo(
        f"{'made' if made else 'kept'} {key}, which never leaves this machine\n"
        f"send {public} to every other party; its fingerprint, to compare by telephone, is\n"
        f"  {fingerprint(raw)}\n"
        "then pin theirs with `fedkern node trust FILE...`; write into node.toml\n"
        f'  state-dir = "{state_dir.resolve()}"\n'
        f'  identity-key = "{key.resolve()}"\n'
        f'  trusted-keys = "{(state_dir / TRUSTED).resolve()}"'
    )


@dataclass(frozen=True)
class TrustOptions:
    """Options of ``fedkern node trust``.

    Attributes
    ----------
    files : list of Path
        Files identity.pub of the parties, including this node.
    state_dir : Path
        Folder of the node.
    replace : bool
        Also accept keys that differ from those pinned before.
    """

    files: list[Path] = argument()
    state_dir: Path = Path("state")
    replace: bool = switch()


def trust_parties(asked: TrustOptions) -> None:
    """Pin the identity keys of the parties of a federation."""
    state_dir = asked.state_dir
    place = state_dir / TRUSTED
    trusted = read_trusted(place) if place.exists() else {}
    own = state_dir / PUBLIC
    for file in [*([own] if own.exists() else []), *asked.files]:
        for partition, raw in read_trusted(file).items():
            if trusted.get(partition, raw) != raw and not asked.replace:
                raise OptionError(
                    f"{file.name} has another key of partition {partition} than the one pinned",
                    code="FK-IDENTITY-CHANGED",
                )
            trusted[partition] = raw
    make_private_folder(state_dir)
    lines = [f"{trusted_line(partition, raw)}\n" for partition, raw in sorted(trusted.items())]
    write_atomically(place, "".join(lines).encode())
    for partition, raw in sorted(trusted.items()):
        click.echo(f"partition {partition:<4} {fingerprint(raw)}")
    click.echo(f"{place} has the keys of {len(trusted)} parties: compare the fingerprints")


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """Options of ``fedkern node start``.

    Attributes
    ----------
    superlink : str
        Host and port of the SuperLink.
    node_config : Path
        TOML file of the configuration of the node.
    root_certificates : Path or None
        Certificate of the authority that signed that of the SuperLink.
    key : Path or None
        Private key of the node.
    port : int
        Port on 127.0.0.1 for the processes of the node.
    max_processes : int
        Messages that are processed at a time.
    message_seconds : float
        Most seconds for a message.
    message_gigabytes : float or None
        Most memory for a message (default: three quarters of this machine).
    metrics : Path or None
        File for figures in the text format of Prometheus.
    log_format : {"text", "json"}
        Format of the log.
    """

    superlink: str
    node_config: Path
    root_certificates: Path | None = None
    key: Path | None = None
    port: int = declare(9094, limits=(1, 65535))
    max_processes: int = declare(1, limits=(1, None))
    message_seconds: float = declare(3600.0, limits=(1.0, None))
    message_gigabytes: float | None = declare(None, limits=(0.1, None))
    metrics: Path | None = None
    log_format: LogFormat = "text"


def start_node(asked: StartOptions) -> None:
    """Start a warm SuperNode, which does not start Python for each message.

    Other options are those of flower-supernode.
    """
    given = {"root-certificates": asked.root_certificates}
    given["auth-supernode-private-key"] = asked.key
    arguments: list[str] = []
    for name, path in given.items():
        if path is not None:
            _refuse_unreadable(path, f"--{name}")
            arguments += [f"--{name}", str(path)]
    fed_by_socket(read_config(asked.node_config))
    _refuse_taken(asked.port)
    command = node_command(
        asked.superlink,
        asked.node_config,
        [*arguments, *click.get_current_context().args],
        asked.port,
        max_processes=asked.max_processes,
        message_seconds=asked.message_seconds,
        message_gigabytes=asked.message_gigabytes,
        metrics=asked.metrics and str(asked.metrics.resolve()),
        log_format=asked.log_format,
    )
    sys.stdout.flush()
    os.execve(command[0], command, {**os.environ, **NO_THREADS})


@dataclass(frozen=True)
class FeedOptions:
    """Options of ``fedkern node feed``.

    Attributes
    ----------
    node_config : Path
        TOML file of the configuration of the node.
    """

    node_config: Path


def feed_stream(asked: FeedOptions) -> None:
    """Read rows from the socket of a stream; 'node start' does this itself."""
    from ..deployment.feeder import feed

    fed = fed_by_socket(read_config(asked.node_config))
    if fed is None:
        raise OptionError(
            f"{asked.node_config.name} names no socket as stream", code="FK-STREAM-SOCKET"
        )
    feed(*fed)


@dataclass(frozen=True)
class ShowOptions:
    """Options of ``fedkern node policy show``.

    Attributes
    ----------
    file : Path or None
        TOML file of the policy; without it, the defaults.
    toml : bool
        Print a file to start from.
    """

    file: Path | None = argument(None)
    toml: bool = switch()


def show_policy(asked: ShowOptions) -> None:
    """Show what a node with this policy accepts."""
    policy = NodePolicy() if asked.file is None else read_policy(asked.file)
    if asked.toml:
        click.echo(write_policy(policy), nl=False)
        return
    changed = policy.changed
    rows = [
        (
            field.name,
            _text(field.name, getattr(policy, field.name)),
            "" if field.name in changed else "default",
            RULES[field.name],
        )
        for field in fields(policy)
    ]
    print_table(("rule", "value", "", "meaning"), rows)


@dataclass(frozen=True)
class CheckOptions:
    """Options of ``fedkern node policy check``.

    Attributes
    ----------
    file : Path
        TOML file of the policy.
    """

    file: Path = argument()


def check_policy(asked: CheckOptions) -> None:
    """Check a policy; exit code 2 if a node would refuse it."""
    changed = read_policy(asked.file).changed
    click.echo(f"{asked.file.name} is a policy; {len(changed)} rules are not at their defaults")


def _refuse_unreadable(path: Path, option: str) -> None:
    """Refuse an unreadable file."""
    if not os.access(path, os.R_OK) or not path.is_file():
        raise OptionError(f"{option}: {path} cannot be read", code="FK-FILE-READ")


def _refuse_taken(port: int) -> None:
    """Refuse a port in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise OptionError(
                f"port {port} of 127.0.0.1 is in use",
                remedy="choose another with --port",
                code="FK-LISTEN-ADDRESS",
            ) from None


def _text(rule: str, value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or ("all" if rule == "methods" else "none")
    if value is None:
        words = {"min_parties": "3 or 2", "counting": "refuse", "max_binary_columns": "warns"}
        return words[rule]
    return str(value).lower() if isinstance(value, bool) else str(value)


#: ``fedkern node start`` passes further options on.
_PASSED = {"allow_extra_args": True, "ignore_unknown_options": True}
_POLICY = (
    of_function("show", show_policy, ShowOptions),
    of_function("check", check_policy, CheckOptions),
)
command = group(
    "node",
    "For the owner of a node.",
    [
        of_function("init", init_node, InitOptions),
        of_function("trust", trust_parties, TrustOptions),
        of_function("status", show_status, StatusOptions),
        of_function("freeze", freeze_rows, FreezeOptions),
        of_function("clean", clean_folders, CleanOptions),
        of_function("start", start_node, StartOptions, context_settings=_PASSED),
        of_function("feed", feed_stream, FeedOptions),
        group("policy", "What a node takes part in.", _POLICY),
        group(
            "ledger",
            "What a node has answered.",
            [of_function("show", show_ledger, LedgerOptions)],
        ),
    ],
)
